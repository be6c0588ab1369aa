//! The texts of reasons, as C has them.

use std::ffi::{c_char, CString};
use std::sync::OnceLock;
use weft::Reason;

/// The text of a reason. It stays.
pub fn text(reason: Reason) -> *const c_char {
    static TEXTS: OnceLock<Vec<CString>> = OnceLock::new();
    let texts = TEXTS.get_or_init(|| {
        Reason::ALL.iter().map(|reason| CString::new(reason.to_string()).unwrap_or_default()).collect()
    });
    let at = Reason::ALL.iter().position(|other| *other == reason);
    at.and_then(|at| texts.get(at)).map_or(c"".as_ptr(), |text| text.as_ptr())
}
