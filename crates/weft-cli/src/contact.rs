//! The target of a command, as it is typed: an endpoint's `NAME#KEY`, or `HOST:PORT` where a program gives its name.

use crate::error::Error;
use std::net::{IpAddr, Ipv6Addr, ToSocketAddrs};
use std::str::FromStr;
use std::time::Duration;
use weft::names::{resolve, Contact, ContactError};
use weft::Name;

/// The text before the first colon of a name.
const PREFIX: &str = "weft1";

/// The target, as it is typed.
#[derive(Clone, Debug)]
pub enum Target {
    /// An endpoint.
    Endpoint(Contact),
    /// `HOST:PORT` or `HOST:PORT/LABEL`, where a program may give an endpoint's name.
    Host(String),
}

/// Why a text is not a target.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TargetError {
    /// What follows a host is not a port.
    #[error("the text after the last : is not a port, which is a number from 1 to 65535, as in localhost:7000")]
    Port,
    /// There is neither a port nor a key.
    #[error("there is no port: write HOST:PORT, where the endpoint's program tells its name, as in localhost:7000; or NAME#KEY, as it prints them")]
    NoPort,
    /// It is neither a host nor a contact.
    #[error("{0}. You can also give HOST:PORT, where the endpoint's program gives its name")]
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
            _ if text.contains('#') || host.trim() == PREFIX => endpoint(),
            _ => Err(TargetError::Port),
        }
    }
}

impl Target {
    /// The endpoint. If it is not known yet, its host is asked, for at most this time.
    pub fn find(&self, limit: Duration) -> Result<Contact, Error> {
        match self {
            Target::Endpoint(contact) => Ok(*contact),
            Target::Host(place) => Ok(resolve(place, limit)?),
        }
    }

    /// A warning if a name was given by a host but leads to other addresses. May resolve the host's addresses.
    pub fn doubt(&self, name: &Name) -> Option<String> {
        let Target::Host(place) = self else { return None };
        let (host, _) = place.rsplit_once(':')?;
        let asked: Vec<IpAddr> = (host.trim_matches(['[', ']']), 0).to_socket_addrs().ok()?.map(|at| at.ip()).collect();
        let led: Vec<IpAddr> = name.address.each().map(|at| Ipv6Addr::from(at.ip).to_canonical()).collect();
        if asked.iter().any(|ip| ip.is_loopback() || led.contains(ip)) {
            return None;
        }
        let led: Vec<String> = led.iter().map(IpAddr::to_string).collect();
        Some(match led.is_empty() {
            true => format!(
                "the name that {place} gives has no address: its program was started without a network, or before its host had an \
                 address. Start it again"
            ),
            false => format!(
                "the name that {place} gives leads to {}. If the address of that host was replaced since its program was started, start \
                 the program again",
                led.join(", ")
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_leads_away_from_the_host_that_gave_it_is_doubted() {
        let at = |ip: &str| {
            let ip: Ipv6Addr = ip.parse::<std::net::Ipv4Addr>().expect("an address").to_ipv6_mapped();
            weft::HostAddress { ip: ip.octets(), port: 4000 }
        };
        let name = |address| Name { epoch: weft::Epoch(1), endpoint: weft::EndpointId(1), uid: weft::Uid(0), address };
        let doubt = |place: &str, address| Target::Host(place.to_owned()).doubt(&name(address));
        assert_eq!(doubt("10.0.0.1:4000", at("10.0.0.1")), None);
        assert_eq!(doubt("127.0.0.1:4000/log", at("10.0.0.1")), None, "asked on the same host");
        let said = doubt("10.0.0.5:4000", at("10.0.0.1")).expect("another address");
        assert!(said.contains("leads to 10.0.0.1") && said.contains("start the program again"), "{said}");
        let said = doubt("10.0.0.5:4000/log", weft::HostAddress::NONE).expect("no address");
        assert!(said.contains("has no address"), "{said}");
    }

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
