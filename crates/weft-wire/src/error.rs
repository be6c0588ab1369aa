//! How errors are printed.

/// Makes `Debug` of these errors print their `Display`. An error that leaves `main`, or ends an `unwrap`, is printed by `Debug`, but only
/// `Display` names the way out.
///
/// ```
/// #[derive(thiserror::Error)]
/// #[error("the door is shut; knock")]
/// struct Shut;
/// weft_wire::debug_says_display!(Shut);
///
/// assert_eq!(format!("{:?}", Shut), "the door is shut; knock");
/// ```
#[macro_export]
macro_rules! debug_says_display {
    ($($error:ty),+) => {$(
        impl ::std::fmt::Debug for $error {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                ::std::fmt::Display::fmt(self, f)
            }
        }
    )+};
}
