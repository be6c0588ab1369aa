//! Whom to ask, as it is typed: an endpoint's `NAME#KEY`, or `HOST:PORT` where its name is told.

use crate::error::Error;
use std::str::FromStr;
use std::time::Duration;
use weft::names::{resolve, Contact, ContactError};

/// What stands before the first colon of a name.
const NAME: &str = "weft1";

/// Whom to ask, as it is typed.
#[derive(Clone, Debug)]
pub enum Target {
    /// An endpoint.
    Endpoint(Contact),
    /// `HOST:PORT` or `HOST:PORT/LABEL`, where somebody may tell an endpoint's name.
    Host(String),
}

/// Why a text is not a target.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TargetError {
    /// What follows a host is not a port.
    #[error("what follows the last : is not a port: that is a number from 1 to 65535, as in localhost:7000")]
    Port,
    /// There is neither a port nor a key.
    #[error("there is no port: write HOST:PORT, where the endpoint's program tells its name, as in localhost:7000; or NAME#KEY, as it prints them")]
    NoPort,
    /// It is no contact either.
    #[error("{0}. HOST:PORT will do as well, where the endpoint's program tells its name")]
    Contact(#[from] ContactError),
}

impl FromStr for Target {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Target, TargetError> {
        let endpoint = || text.parse().map(Target::Endpoint).map_err(TargetError::from);
        let Some((host, rest)) = text.rsplit_once(':').filter(|(host, _)| !host.is_empty()) else {
            return match text.contains('#') {
                true => endpoint(),
                false => Err(TargetError::NoPort),
            };
        };
        let port = rest.split_once('/').map_or(rest, |(port, _label)| port);
        match port.parse() {
            Ok(1u16..) => Ok(Target::Host(text.to_owned())),
            _ if text.contains('#') || host.trim() == NAME => endpoint(),
            _ => Err(TargetError::Port),
        }
    }
}

impl Target {
    /// The endpoint, which is asked for within this time if it is not known.
    pub fn find(&self, limit: Duration) -> Result<Contact, Error> {
        match self {
            Target::Endpoint(contact) => Ok(*contact),
            Target::Host(place) => Ok(resolve(place, limit)?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_hosts_are_told_apart_and_what_is_neither_says_why() {
        let name = "weft1:AQA0EugDAAAIBwYFBAMCASoAAAAAAAAAAAAAAAAA__8KAAABAAAAAA";
        let is_host = |text: &str| matches!(text.parse(), Ok(Target::Host(_)));
        assert!(["10.0.0.1:80", "[fd00::1]:4000", "loom.example:65535", "host:1/log"].into_iter().all(is_host));
        assert!(matches!(format!("{name}#1").parse(), Ok(Target::Endpoint(_))));
        for text in ["localhost:99999", "host:0", "host:", "host:http", "[fd00::1]:x", "host:/log"] {
            assert_eq!(text.parse::<Target>().err(), Some(TargetError::Port), "{text}");
        }
        assert!(["10.0.0.1", ":80", "host:0", "host:65536", name, "10.0.0.1:80#1"].into_iter().all(|t| !is_host(t)));
        assert_eq!(name.parse::<Target>().err(), Some(TargetError::Contact(ContactError::NoKey)));
        for text in ["localhost", "hello", "10.0.0.1", ""] {
            assert_eq!(text.parse::<Target>().err(), Some(TargetError::NoPort), "{text}");
        }
    }
}
