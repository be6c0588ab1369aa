//! How an endpoint is told from one person to another: `NAME#KEY`, the key as hexadecimal digits.

use std::fmt;
use std::str::FromStr;
use weft::{Key, Name, NameError};

/// What stands before the first colon of a name.
const NAME: &str = "weft1";

/// An endpoint's name and key.
#[derive(Clone, Copy, Debug)]
pub struct Contact {
    pub name: Name,
    pub key: Key,
}

/// Why a text is not a contact.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ContactError {
    /// There is no `#`.
    #[error(
        "there is no key: behind the name must stand # and the key, as `weft serve` prints them (or type HOST:PORT)"
    )]
    NoKey,
    /// What follows a host is not a port.
    #[error("what follows the last : is not a port: that is a number from 1 to 65535, as in localhost:7000")]
    Port,
    /// What follows it is not a key.
    #[error("what follows # is not a key: that is up to 16 hexadecimal digits, as `weft serve` prints it")]
    Key,
    /// What stands before it is not a name.
    #[error(transparent)]
    Name(#[from] NameError),
}

impl fmt::Display for Contact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{:016x}", self.name, self.key.0)
    }
}

impl FromStr for Contact {
    type Err = ContactError;

    fn from_str(text: &str) -> Result<Contact, ContactError> {
        let (name, key) = split_key(text)?;
        Ok(Contact { name: name.parse()?, key })
    }
}

/// Whom to ask, as it is typed.
#[derive(Clone, Debug)]
pub enum Target {
    /// An endpoint.
    Endpoint(Contact),
    /// `HOST:PORT`, where somebody may tell an endpoint's name.
    Host(String),
}

impl FromStr for Target {
    type Err = ContactError;

    fn from_str(text: &str) -> Result<Target, ContactError> {
        let Some((host, port)) = text.rsplit_once(':').filter(|(host, _)| !host.is_empty()) else {
            return text.parse().map(Target::Endpoint);
        };
        match port.parse() {
            Ok(1u16..) => Ok(Target::Host(text.to_owned())),
            _ if text.contains('#') || host.trim() == NAME => text.parse().map(Target::Endpoint),
            _ => Err(ContactError::Port),
        }
    }
}

/// What stands before the last `#`, and the key behind it.
pub fn split_key(text: &str) -> Result<(&str, Key), ContactError> {
    let (before, key) = text.trim().rsplit_once('#').ok_or(ContactError::NoKey)?;
    Ok((before, key.parse().map_err(|_| ContactError::Key)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_contact_reads_back_and_what_is_none_says_why() {
        let name = "weft1:AQA0EugDAAAIBwYFBAMCASoAAAAAAAAAAAAAAAAA__8KAAABAAAAAA";
        let contact: Contact = format!("{name}#00000000000000ff").parse().expect("a name and a key");
        assert_eq!(contact.key.0, 255);
        assert_eq!(contact.to_string(), format!("{name}#00000000000000ff"));
        assert_eq!(name.parse::<Contact>().err(), Some(ContactError::NoKey));
        assert_eq!(format!("{name}#key").parse::<Contact>().err(), Some(ContactError::Key));
        let is_host = |text: &str| matches!(text.parse(), Ok(Target::Host(_)));
        assert!(["10.0.0.1:80", "[fd00::1]:4000", "loom.example:65535"].into_iter().all(is_host));
        assert!(matches!(format!("{name}#1").parse(), Ok(Target::Endpoint(_))));
        for text in ["localhost:99999", "host:0", "host:", "host:http", "[fd00::1]:x"] {
            assert_eq!(text.parse::<Target>().err(), Some(ContactError::Port), "{text}");
        }
        assert!(["10.0.0.1", ":80", "host:0", "host:65536", name, "10.0.0.1:80#1"].into_iter().all(|t| !is_host(t)));
        assert_eq!("10.0.0.1:80#1".parse::<Contact>().err(), Some(ContactError::Name(NameError::Prefix)));
    }
}
