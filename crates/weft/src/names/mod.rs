//! Names by host and port: a program serves the names of its endpoints at a TCP port, and others look them up there.
//!
//! An endpoint's [`Name`](crate::Name) changes each time its process starts, and has 60 characters. A [`NameServer`] serves it at a
//! port that stays the same, and [`resolve`] looks it up there:
//!
//! ```
//! use std::time::Duration;
//! use weft::names::{resolve, NameServer};
//! use weft::{Bundle, Node};
//!
//! // The server.
//! let mut bundle = Bundle::new(&Node::new()?)?;
//! let me = bundle.endpoint_with_random_key()?;
//! let names = NameServer::open(0)?; // any free port; usually a number that its clients know
//! names.tell_with_key("", bundle.contact(me)?)?; // every client that asks may also send
//!
//! // The client, usually in another process.
//! let server = resolve(&format!("localhost:{}", names.port()), Duration::from_secs(5))?;
//! let mut bundle = Bundle::new(&Node::new()?)?;
//! let me = bundle.endpoint_with_random_key()?;
//! bundle.map(me, 0, server.name, server.key)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! One port can serve several names: each has a label, and the client asks for `host:port/label`. `host:port` alone stands for the
//! empty label.
//!
//! Anybody who can reach the port gets the names, in clear text. Only [`NameServer::tell_with_key`] serves the key too; then the
//! key no longer keeps out anybody who can reach the port. An endpoint that admits callers without its key
//! ([`Admission::OwnUserWithoutKey`](crate::Admission::OwnUserWithoutKey), [`Admission::Anybody`](crate::Admission::Anybody)) needs
//! only [`NameServer::tell`].

mod contact;
mod resolve;
mod server;

pub use contact::{Contact, ContactError};
pub use resolve::{resolve, ResolveError};
pub use server::{NameServer, TellError};

#[cfg(test)]
mod tests;

use crate::bundle::{Bundle, SharedBundle, Threads};
use crate::node::Error;
use std::net::IpAddr;
use weft_core::Endpoint;
use weft_wire::rendezvous::is_label;

impl<H: Threads> Bundle<H> {
    /// Returns the endpoint's name and key, which a peer needs to send to it.
    pub fn contact(&self, endpoint: Endpoint) -> Result<Contact, Error> {
        Ok(Contact { name: self.name(endpoint)?, key: self.key(endpoint)? })
    }
}

impl SharedBundle {
    /// As [`Bundle::contact`].
    pub fn contact(&self, endpoint: Endpoint) -> Result<Contact, Error> {
        Ok(Contact { name: self.name(endpoint)?, key: self.key(endpoint)? })
    }
}

/// The place to ask: `host:port`, or `host:port/label`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Place<'a> {
    /// A host's name, or an address without brackets.
    host: &'a str,
    port: u16,
    label: &'a str,
}

impl<'a> Place<'a> {
    /// `None` if the text is not a place.
    fn parse(text: &'a str) -> Option<Place<'a>> {
        let (host, rest) = text.trim().rsplit_once(':')?;
        let (port, label) = rest.split_once('/').unwrap_or((rest, ""));
        let is_number = port.bytes().all(|digit| digit.is_ascii_digit());
        let port = port.parse().ok().filter(|&port| is_number && port > 0)?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let host = bare.unwrap_or(host);
        let is_host = match bare {
            Some(address) => address.parse::<IpAddr>().is_ok(),
            None => !host.is_empty() && !host.contains(['/', '#', '[', ']', ' ']),
        };
        (is_host && is_label(label)).then_some(Place { host, port, label })
    }
}
