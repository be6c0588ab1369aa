//! Names and keys, and the ids in names.
//!
//! A name is opaque to programs: they get it from an endpoint and pass it to a peer by any rendezvous.

use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use base64::Engine as _;
use core::net::Ipv4Addr;
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;

/// The random 64 bits that tell one life of a network interface from every other.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Epoch(pub u64);

/// Number of an endpoint within one network interface. Never reused within one epoch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct EndpointId(pub u32);

/// Number of a bundle within one network interface.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct BundleId(pub u32);

/// A user of the host, as the kernel numbers it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Uid(pub u32);

impl Uid {
    /// An unknown user. The kernel gives this number to no user.
    pub const UNKNOWN: Uid = Uid(u32::MAX);

    /// The user that the kernel shows for all users that a user namespace does not map. It counts as equal to no user.
    pub const OVERFLOW: Uid = Uid(65534);

    /// Whether both are certainly the same user.
    pub fn is_same_as(self, other: Uid) -> bool {
        self == other && self != Uid::OVERFLOW && self != Uid::UNKNOWN
    }
}

/// What a message must carry to be delivered (AM-II calls it tag). `Debug` does not print it.
#[derive(Clone, Copy)]
pub struct Key(pub u64);

impl Key {
    /// No key, as callers without a key send it. An endpoint that needs protection must have another key.
    pub const NONE: Key = Key(0);

    /// Compares in constant time: no branch depends on the secret bits.
    #[inline(always)]
    pub fn matches(self, other: Key) -> bool {
        (self.0 ^ other.0) == 0
    }
}

/// The error for a text that is no key.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a key is 1 to 16 hexadecimal digits, and this text is not; copy it whole from where the name was printed")]
pub struct KeyError;

crate::debug_says_display!(KeyError);

impl FromStr for Key {
    type Err = KeyError;

    /// Reads hexadecimal digits, as programs print them beside the name: `{:016x}` of the number.
    fn from_str(text: &str) -> Result<Key, KeyError> {
        let digits = text.trim();
        let is_number = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        u64::from_str_radix(digits, 16).ok().filter(|_| is_number).map(Key).ok_or(KeyError)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

impl fmt::Debug for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Epoch({:016x})", self.0)
    }
}

/// Bytes of an encoded name.
pub const NAME_BYTES: usize = 40;

/// The beginning of every printed name.
pub const NAME_PREFIX: &str = "weft1:";

/// An endpoint's address: 40 bytes, printed `weft1:` and base64url.
///
/// Names are equal if they name the same endpoint, whatever address they have. A host may have several addresses, and the receiver of
/// its message knows only the one that the message came from.
///
/// ```
/// # use weft_wire::{EndpointId, Epoch, HostAddress, Name, Uid};
///
/// let name = Name { epoch: Epoch(1), endpoint: EndpointId(2), uid: Uid(1000), address: HostAddress::NONE };
/// let text = name.to_string(); // for an argument, a file, a pipe
/// assert!(text.starts_with("weft1:") && text.len() == 60);
/// assert_eq!(text.parse(), Ok(name));
/// assert!(text[..50].parse::<Name>().is_err());
/// ```
#[derive(Clone, Copy)]
pub struct Name {
    /// The life of the network interface that the endpoint belongs to.
    pub epoch: Epoch,
    /// The endpoint within it.
    pub endpoint: EndpointId,
    /// The user who owns the endpoint, by its number in the parent of the owner's user namespace. A sender compares it with the kernel's
    /// answer about the peer.
    pub uid: Uid,
    /// The address of the network interface for other hosts.
    pub address: HostAddress,
}

/// The address of a network interface for other hosts: one address, or any of several.
///
/// ```
/// use std::net::Ipv4Addr;
/// # use weft_wire::HostAddress;
///
/// let (one, other) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(192, 168, 1, 2));
/// let address = HostAddress::of_several(&[one, other], 4000).expect("there is room for three");
/// assert_eq!(address.each().count(), 2);
/// assert_eq!(format!("{address:?}"), "[10.0.0.1:4000, 192.168.1.2:4000]");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct HostAddress {
    /// IPv6, or IPv4-mapped, or several addresses of IPv4 as [`HostAddress::of_several`] packs them.
    pub ip: [u8; 16],
    /// The UDP port.
    pub port: u16,
}

/// The most addresses of IPv4 in a name.
pub const ADDRESSES_MOST: usize = 3;

/// The first bytes of several addresses, before their number. No interface has such an address of IPv6: it would be multicast, of a scope
/// that is not assigned and with a flag that must be zero (RFC 4291, section 2.7).
const SEVERAL: [u8; 3] = [0xff, 0xff, 4];

impl HostAddress {
    /// No address: only its own host can reach it.
    pub const NONE: HostAddress = HostAddress { ip: [0; 16], port: 0 };

    /// Whether it is [`HostAddress::NONE`].
    pub fn is_none(self) -> bool {
        self == HostAddress::NONE
    }

    /// Several addresses with one port, the preferred one first. `None` if there are no addresses or too many.
    pub fn of_several(addresses: &[Ipv4Addr], port: u16) -> Option<HostAddress> {
        let ip = match addresses {
            [one] => one.to_ipv6_mapped().octets(),
            [] => return None,
            _ if addresses.len() > ADDRESSES_MOST => return None,
            _ => {
                let mut ip = [0; 16];
                ip[..3].copy_from_slice(&SEVERAL);
                ip[3] = addresses.len() as u8;
                for (place, address) in ip[4..].chunks_exact_mut(4).zip(addresses) {
                    place.copy_from_slice(&address.octets());
                }
                ip
            }
        };
        Some(HostAddress { ip, port })
    }

    /// Each of the addresses, the preferred one first. Empty for [`HostAddress::NONE`].
    pub fn each(self) -> impl Iterator<Item = HostAddress> {
        let (one, several) = match (self.is_none(), self.several()) {
            (true, _) => (None, None),
            (false, None) => (Some(self), None),
            (false, several) => (None, several),
        };
        let several = several.into_iter().flat_map(|(count, ip)| {
            (0..count).map(move |at| Ipv4Addr::from(array::<4>(&ip[4 + 4 * at..])).to_ipv6_mapped().octets())
        });
        one.into_iter().chain(several.map(move |ip| HostAddress { ip, port: self.port }))
    }

    /// Whether these are bytes of one address, or such as [`HostAddress::of_several`] makes.
    fn is_well_formed(self) -> bool {
        let says_several = self.ip[..3] == SEVERAL;
        let is_filled_up = |(count, ip): (usize, [u8; 16])| ip[4 + 4 * count..].iter().all(|byte| *byte == 0);
        !says_several || self.several().is_some_and(is_filled_up)
    }

    /// The number of addresses if there are several, and their bytes.
    fn several(self) -> Option<(usize, [u8; 16])> {
        let count = usize::from(self.ip[3]);
        (self.ip[..3] == SEVERAL && (2..=ADDRESSES_MOST).contains(&count)).then_some((count, self.ip))
    }

    /// The address as bytes, with the port last. Cookies are made from them.
    pub fn to_bytes(self) -> [u8; 18] {
        let mut b = [0; 18];
        b[..16].copy_from_slice(&self.ip);
        b[16..].copy_from_slice(&self.port.to_le_bytes());
        b
    }
}

impl fmt::Debug for HostAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.several().is_some() {
            return f.debug_list().entries(self.each()).finish();
        }
        match (self.is_none(), self.ip) {
            (true, _) => f.write_str("nowhere"),
            (_, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d]) => write!(f, "{a}.{b}.{c}.{d}:{}", self.port),
            (_, ip) => {
                let groups: Vec<String> =
                    ip.chunks_exact(2).map(|g| format!("{:x}", u16::from(g[0]) << 8 | u16::from(g[1]))).collect();
                write!(f, "[{}]:{}", groups.join(":"), self.port)
            }
        }
    }
}

/// Why a text or some bytes are not a name.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The text does not begin with `weft1:`.
    #[error("a name begins with \"weft1:\"; this text does not. Pass the name that the peer's endpoint printed")]
    Prefix,
    /// What follows the prefix is not base64url.
    #[error("the part after \"weft1:\" is not base64url; was the name cut or wrapped when it was copied?")]
    Encoding,
    /// Not 40 bytes.
    #[error("a name is {NAME_BYTES} bytes, this is {0}; was the name cut or wrapped when it was copied?")]
    Length(usize),
    /// The first byte names another version of the format.
    #[error("the name has format {0}, this weft reads format 1; use the same weft on both sides")]
    Format(u8),
    /// Bytes that must be zero are not.
    #[error("the name is damaged: reserved bytes are not zero")]
    Reserved,
    /// Its several addresses are malformed.
    #[error("the name is damaged: its addresses are malformed")]
    Addresses,
}

crate::debug_says_display!(NameError);

impl Name {
    const FORMAT: u8 = 1;

    /// The fields that tell an endpoint from every other.
    fn identity(&self) -> (Epoch, EndpointId, Uid) {
        (self.epoch, self.endpoint, self.uid)
    }

    /// The 40 bytes that stand for this name everywhere.
    pub fn to_bytes(&self) -> [u8; NAME_BYTES] {
        let mut b = [0u8; NAME_BYTES];
        b[0] = Self::FORMAT;
        b[2..4].copy_from_slice(&self.address.port.to_le_bytes());
        b[4..8].copy_from_slice(&self.uid.0.to_le_bytes());
        b[8..16].copy_from_slice(&self.epoch.0.to_le_bytes());
        b[16..20].copy_from_slice(&self.endpoint.0.to_le_bytes());
        b[20..36].copy_from_slice(&self.address.ip);
        b
    }

    /// Reads a name. Total: any bytes give a name or an error.
    pub fn from_bytes(bytes: &[u8]) -> Result<Name, NameError> {
        let b: &[u8; NAME_BYTES] = bytes.try_into().map_err(|_| NameError::Length(bytes.len()))?;
        if b[0] != Self::FORMAT {
            return Err(NameError::Format(b[0]));
        }
        if b[1] != 0 || b[36..] != [0; 4] {
            return Err(NameError::Reserved);
        }
        let address = HostAddress { ip: array(&b[20..36]), port: u16::from_le_bytes(array(&b[2..4])) };
        if !address.is_well_formed() {
            return Err(NameError::Addresses);
        }
        Ok(Name {
            epoch: Epoch(u64::from_le_bytes(array(&b[8..16]))),
            endpoint: EndpointId(u32::from_le_bytes(array(&b[16..20]))),
            uid: Uid(u32::from_le_bytes(array(&b[4..8]))),
            address,
        })
    }
}

impl PartialEq for Name {
    fn eq(&self, other: &Name) -> bool {
        self.identity() == other.identity()
    }
}

impl Eq for Name {}

impl PartialOrd for Name {
    fn partial_cmp(&self, other: &Name) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Name {
    fn cmp(&self, other: &Name) -> Ordering {
        self.identity().cmp(&other.identity())
    }
}

impl Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.identity().hash(state);
    }
}

/// The first `N` bytes of a slice that its caller cut to at least that length.
pub(crate) fn array<const N: usize>(slice: &[u8]) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&slice[..N]);
    out
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{NAME_PREFIX}{}", URL_SAFE_NO_PAD.encode(self.to_bytes()))
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Name({:016x}/{} of user {}, {:?})", self.epoch.0, self.endpoint.0, self.uid.0, self.address)
    }
}

impl FromStr for Name {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Name, NameError> {
        let body = text.trim().strip_prefix(NAME_PREFIX).ok_or(NameError::Prefix)?;
        let bytes = URL_SAFE_NO_PAD.decode(body).map_err(|_| NameError::Encoding)?;
        Name::from_bytes(&bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GOLDEN: &str = "weft1:AQA0EugDAAAIBwYFBAMCASoAAAAAAAAAAAAAAAAA__8KAAABAAAAAA";

    fn sample() -> Name {
        Name {
            epoch: Epoch(0x0102_0304_0506_0708),
            endpoint: EndpointId(42),
            uid: Uid(1000),
            address: HostAddress { ip: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1], port: 0x1234 },
        }
    }

    #[test]
    fn a_printed_name_is_the_golden_text_and_reads_back() {
        assert_eq!(sample().to_string(), GOLDEN);
        assert_eq!(GOLDEN.parse::<Name>().map(|name| name.to_bytes()), Ok(sample().to_bytes()));
    }

    const GOLDEN_SEVERAL: &str = "weft1:AQA0EugDAAAIBwYFBAMCASoAAAD__wQCCgAAAcCoAQIAAAAAAAAAAA";

    fn address(ip: [u8; 4]) -> HostAddress {
        HostAddress { ip: Ipv4Addr::from(ip).to_ipv6_mapped().octets(), port: 0x1234 }
    }

    #[test]
    fn a_key_is_read_from_its_digits_and_what_is_none_says_so() {
        let read = |text: &str| text.parse::<Key>().map(|key| key.0);
        assert_eq!(read("00000000000000ff"), Ok(255));
        assert_eq!(read("ffffffffffffffff\n"), Ok(u64::MAX));
        for none in ["", "key", "0x12", "+1", "1 2", "10000000000000000"] {
            assert_eq!(read(none), Err(KeyError), "{none:?}");
        }
    }

    #[test]
    fn a_name_with_several_addresses_is_the_golden_text_and_gives_each() {
        let addresses = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(192, 168, 1, 2)];
        let several = HostAddress::of_several(&addresses, 0x1234).expect("two");
        let name = Name { address: several, ..sample() };
        assert_eq!(name.to_string(), GOLDEN_SEVERAL);
        assert!(include_str!("../../../docs/design/wire.md").contains(GOLDEN_SEVERAL));
        let read: Name = GOLDEN_SEVERAL.parse().expect("golden");
        assert_eq!(read.to_bytes(), name.to_bytes());
        assert_eq!(read.address.each().collect::<Vec<_>>(), [address([10, 0, 0, 1]), address([192, 168, 1, 2])]);
        assert_eq!(format!("{several:?}"), "[10.0.0.1:4660, 192.168.1.2:4660]");
    }

    #[test]
    fn an_address_stands_for_itself_for_several_or_for_none() {
        let all = [1, 2, 3, 4].map(|n| Ipv4Addr::new(10, 0, 0, n));
        let each = |address: HostAddress| address.each().collect::<Vec<_>>();
        assert_eq!(each(HostAddress::NONE), []);
        assert_eq!(each(sample().address), [sample().address]);
        assert_eq!(HostAddress::of_several(&all[..1], 0x1234), Some(address([10, 0, 0, 1])));
        let three = HostAddress::of_several(&all[..3], 0x1234).expect("three");
        assert_eq!(each(three), [1, 2, 3].map(|n| address([10, 0, 0, n])));
        assert_eq!(HostAddress::of_several(&all, 1), None);
        assert_eq!(HostAddress::of_several(&[], 1), None);
    }

    #[test]
    fn several_addresses_that_nobody_writes_are_no_name() {
        let good = Name { address: HostAddress::of_several(&[Ipv4Addr::LOCALHOST; 2], 7).expect("two"), ..sample() };
        assert!(Name::from_bytes(&good.to_bytes()).is_ok());
        // A wrong number, and bytes behind the last address.
        for (at, value) in [(23, 0), (23, 1), (23, 4), (23, 255), (32, 1), (35, 1)] {
            let mut bytes = good.to_bytes();
            bytes[at] = value;
            assert_eq!(Name::from_bytes(&bytes), Err(NameError::Addresses), "{value} at {at}");
        }
    }

    #[test]
    fn names_of_one_endpoint_are_equal_whatever_their_address() {
        let elsewhere = Name { address: HostAddress::NONE, ..sample() };
        assert_eq!(elsewhere, sample());
        assert_eq!(std::collections::HashSet::from([elsewhere, sample()]).len(), 1);
        assert_ne!(Name { endpoint: EndpointId(43), ..sample() }, sample());
        assert_ne!(Name { epoch: Epoch(1), ..sample() }, sample());
    }

    #[test]
    fn unparsable_names_say_why() {
        assert_eq!("10.0.0.1:80".parse::<Name>(), Err(NameError::Prefix));
        assert_eq!("weft1:???".parse::<Name>(), Err(NameError::Encoding));
        assert_eq!("weft1:AQAA".parse::<Name>(), Err(NameError::Length(3)));
        let mut bytes = sample().to_bytes();
        bytes[0] = 9;
        assert_eq!(Name::from_bytes(&bytes), Err(NameError::Format(9)));
        bytes[0] = 1;
        bytes[39] = 1;
        assert_eq!(Name::from_bytes(&bytes), Err(NameError::Reserved));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_name_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(name) = Name::from_bytes(&bytes) {
                prop_assert_eq!(&name.to_bytes()[..], &bytes[..]);
                prop_assert_eq!(name.to_string().parse::<Name>().map(|name| name.to_bytes()), Ok(name.to_bytes()));
            }
        }

        #[test]
        fn any_address_stands_for_three_at_most(ip in any::<[u8; 16]>(), says_several: bool, count in 0u8..6) {
            let mut address = HostAddress { ip, port: 7 };
            if says_several {
                address.ip[..3].copy_from_slice(&SEVERAL);
                address.ip[3] = count;
            }
            prop_assert!(address.each().count() <= ADDRESSES_MOST);
            prop_assert!(address.each().all(|one| one.each().eq([one]) || one.is_none()));
        }

        #[test]
        fn any_text_is_a_name_or_an_error(text in ".{0,80}") {
            let _ = text.parse::<Name>();
        }
    }
}
