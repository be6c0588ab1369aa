//! Addresses. An address is an endpoint's name and key, followed by the endpoint number of its memory endpoint, whose name is otherwise the
//! same. Or it is a place, host and port, where such an address can be asked for.

use crate::abi;
use std::ffi::{c_char, c_int, CStr};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::time::Duration;
use weft::names::{resolve, Contact, NameServer};
use weft::{EndpointId, Key, Name};

const NAME_BYTES: usize = 40;
const KEY_BYTES: usize = 8;

/// Bytes of an address, all the same length.
pub const ADDRESS_BYTES: usize = NAME_BYTES + KEY_BYTES + 4;

/// Stands for no memory endpoint.
const NO_MEMORY: u32 = u32::MAX;

/// The first bytes of a place. No name begins like that.
const PLACE: [u8; 8] = *b"weft at:";

/// The label under which a peer's memory endpoint is published.
const MEMORY_LABEL: &str = "memory";

/// How long to ask for the name of a peer.
const ASKING: Duration = Duration::from_secs(5);

/// The meaning of an address.
#[derive(Clone, Copy, Debug)]
pub enum Address {
    /// A peer.
    Peer(Peer),
    /// Where a peer's name is published, or is to be published. Port 0 stands for nowhere.
    Place(SocketAddr),
}

impl Address {
    /// The address of an endpoint that is published nowhere.
    pub const NOWHERE: Address = Address::Place(SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0));

    /// Its bytes.
    pub fn encode(&self) -> [u8; ADDRESS_BYTES] {
        let place = match self {
            Address::Peer(peer) => return peer.encode(),
            Address::Place(place) => place,
        };
        let ip = match place.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        let mut address = [0; ADDRESS_BYTES];
        let parts = PLACE.into_iter().chain(ip.octets()).chain(place.port().to_be_bytes());
        address.iter_mut().zip(parts).for_each(|(to, byte)| *to = byte);
        address
    }

    /// The meaning of an address. `None` if it is malformed.
    pub fn decode(address: &[u8; ADDRESS_BYTES]) -> Option<Address> {
        let Some(rest) = address.strip_prefix(&PLACE) else { return Peer::decode(address).map(Address::Peer) };
        let (ip, rest) = rest.split_first_chunk::<16>()?;
        let (port, _) = rest.split_first_chunk::<2>()?;
        Some(Address::Place(SocketAddr::new(Ipv6Addr::from(*ip).to_canonical(), u16::from_be_bytes(*port))))
    }

    /// The peer. For a place, asks there, for some seconds at most.
    pub fn peer(&self) -> Option<Peer> {
        let place = match self {
            Address::Peer(peer) => return Some(*peer),
            Address::Place(place) if place.port() == 0 => return None,
            Address::Place(place) => place.to_string(),
        };
        let Contact { name, key } = resolve(&place, ASKING).ok()?;
        let memory = resolve(&format!("{place}/{MEMORY_LABEL}"), ASKING).ok().map(|contact| contact.name.endpoint);
        Some(Peer { name, key, memory })
    }
}

impl std::fmt::Display for Address {
    /// The name, without the key; or host and port.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Address::Peer(peer) => peer.name.fmt(f),
            Address::Place(place) => place.fmt(f),
        }
    }
}

/// Publishes a peer's address at a place, until the result is dropped.
///
/// # Errors
/// The number of the system's error.
pub fn tell_at(place: SocketAddr, peer: &Peer) -> Result<NameServer, c_int> {
    let opened = match place.ip().is_unspecified() {
        true => NameServer::open(place.port()),
        false => NameServer::open_at(place),
    };
    let names = opened.map_err(|error| {
        eprintln!("weft: cannot publish libfabric's endpoint at {place}: {error}");
        -libc::EADDRINUSE
    })?;
    let told = names.tell_with_key("", Contact { name: peer.name, key: peer.key });
    let memory = peer.memory_name().map(|name| names.tell_with_key(MEMORY_LABEL, Contact { name, key: peer.key }));
    match (told, memory.transpose()) {
        (Ok(()), Ok(_)) => Ok(names),
        _ => Err(-libc::EIO),
    }
}

/// The place for a host and port from C, one of which may be missing. `None` if there is no such host or port.
///
/// # Safety
/// Each is null or a string.
pub unsafe fn place(node: *const c_char, service: *const c_char, flags: u64) -> Option<SocketAddr> {
    // SAFETY: the caller's promise.
    let text = |text: *const c_char| unsafe { text.as_ref().map(|text| CStr::from_ptr(text).to_str()) };
    let port = match text(service) {
        Some(port) => port.ok()?.parse::<u16>().ok()?,
        None => 0,
    };
    match text(node) {
        None => Some(SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), port)),
        Some(node) if flags & abi::NUMERICHOST != 0 => Some(SocketAddr::new(node.ok()?.parse().ok()?, port)),
        Some(node) => {
            let all: Vec<SocketAddr> = (node.ok()?, port).to_socket_addrs().ok()?.collect();
            // Prefer IPv4: many machines resolve names to the loopback of IPv6 without having it.
            all.iter().find(|place| place.is_ipv4()).or(all.first()).copied()
        }
    }
}

/// A peer.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// The name of its endpoint for messages.
    pub name: Name,
    /// The key of both endpoints.
    pub key: Key,
    /// The number of its endpoint for remote memory, if it has one. The rest of that endpoint's name is the same.
    pub memory: Option<EndpointId>,
}

impl Peer {
    /// The name of its endpoint for remote memory, if it has one.
    pub fn memory_name(&self) -> Option<Name> {
        self.memory.map(|endpoint| Name { endpoint, ..self.name })
    }

    /// The address of a peer.
    pub fn encode(&self) -> [u8; ADDRESS_BYTES] {
        let mut address = [0; ADDRESS_BYTES];
        let (name, rest) = address.split_at_mut(NAME_BYTES);
        let (key, number) = rest.split_at_mut(KEY_BYTES);
        name.copy_from_slice(&self.name.to_bytes());
        key.copy_from_slice(&self.key.0.to_le_bytes());
        number.copy_from_slice(&self.memory.map_or(NO_MEMORY, |number| number.0).to_le_bytes());
        address
    }

    /// The peer of an address. `None` if it is malformed.
    pub fn decode(address: &[u8; ADDRESS_BYTES]) -> Option<Peer> {
        let (name, rest) = address.split_at(NAME_BYTES);
        let (key, number) = rest.split_at(KEY_BYTES);
        let name = Name::from_bytes(name).ok()?;
        let memory = match u32::from_le_bytes(number.try_into().ok()?) {
            NO_MEMORY => None,
            number => Some(EndpointId(number)),
        };
        Some(Peer { name, key: Key(u64::from_le_bytes(key.try_into().ok()?)), memory })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_as_it_was_written_and_nothing_else_is_one() {
        let name: Name = "weft1:AQA0EugDAAAIBwYFBAMCASoAAAAAAAAAAAAAAAAA__8KAAABAAAAAA"
            .parse()
            .expect("a name, as docs/design/wire.md has it");
        for memory in [None, Some(EndpointId(77))] {
            let again = Peer::decode(&Peer { name, key: Key(7), memory }.encode()).expect("an address");
            assert!(again.name.to_bytes() == name.to_bytes() && again.key.0 == 7);
            assert_eq!(again.memory.map(|number| number.0), memory.map(|number| number.0));
        }
        assert!(Peer::decode(&[0xff; ADDRESS_BYTES]).is_none());
    }

    #[test]
    fn a_place_is_read_as_it_was_written_and_nobody_is_nowhere() {
        for text in ["127.0.0.1:9228", "[::1]:1", "[::]:65535", "[::]:0"] {
            let place: SocketAddr = text.parse().expect("a place");
            match Address::decode(&Address::Place(place).encode()) {
                Some(Address::Place(again)) => assert_eq!(again, place),
                other => panic!("{other:?}"),
            }
        }
        assert!(Address::NOWHERE.peer().is_none());
        let strings = [c"127.0.0.1", c"9228", c"no such port", c"::1"].map(CStr::as_ptr);
        let [host, port, wrong, other] = strings;
        let null = std::ptr::null();
        // SAFETY: these are strings, or null.
        let place = |node, service, flags| unsafe { place(node, service, flags) };
        assert_eq!(place(host, port, 0), "127.0.0.1:9228".parse().ok());
        assert_eq!(place(null, port, 0), "[::]:9228".parse().ok());
        assert_eq!(place(other, null, abi::NUMERICHOST), "[::1]:0".parse().ok());
        assert_eq!((place(host, wrong, 0), place(wrong, port, abi::NUMERICHOST)), (None, None));
    }
}
