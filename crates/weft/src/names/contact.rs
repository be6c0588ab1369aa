//! A name and its key, as one text.

use std::fmt;
use std::str::FromStr;
use weft_wire::{Key, Name, NameError};

/// An endpoint's name and key: what a peer needs to send to it. Its text is `NAME#KEY`, the key in hexadecimal digits.
///
/// ```
/// use weft::names::Contact;
/// use weft::{Bundle, Node};
///
/// let mut bundle = Bundle::new(&Node::new()?)?;
/// let me = bundle.endpoint_with_random_key()?;
/// let text = bundle.contact(me)?.to_string(); // for an argument, a file, a pipe
/// let contact: Contact = text.parse()?;
/// assert_eq!(contact.name, bundle.name(me)?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Contact {
    /// The endpoint's name.
    pub name: Name,
    /// The endpoint's key. [`Key::NONE`] if it is not known.
    pub key: Key,
}

/// Why a text is not a contact.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ContactError {
    /// There is no `#`.
    #[error("the key is missing: after the name there must be # and the key, as the endpoint's program prints them")]
    NoKey,
    /// The text after `#` is not a key.
    #[error(
        "the text after # is not a key: a key is up to 16 hexadecimal digits, as the endpoint's program prints it"
    )]
    Key,
    /// The text before `#` is not a name.
    #[error(transparent)]
    Name(#[from] NameError),
}

weft_wire::debug_says_display!(ContactError);

impl fmt::Display for Contact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{:016x}", self.name, self.key.0)
    }
}

impl FromStr for Contact {
    type Err = ContactError;

    fn from_str(text: &str) -> Result<Contact, ContactError> {
        let (name, key) = text.trim().rsplit_once('#').ok_or(ContactError::NoKey)?;
        let key = key.parse().map_err(|_| ContactError::Key)?;
        Ok(Contact { name: name.parse()?, key })
    }
}
