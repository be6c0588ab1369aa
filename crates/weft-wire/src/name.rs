//! Names, keys and the ids they are made of.
//!
//! A name is opaque to programs: they get it from an endpoint and carry it to a peer by any rendezvous (VN3 of the seeds).

use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use base64::Engine as _;
use std::fmt;
use std::str::FromStr;

/// The random 64 bits that tell one life of a network interface from every other.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Epoch(pub u64);

/// Number of an endpoint within one network interface. Never used again within one epoch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct EndpointId(pub u32);

/// Number of a bundle within one network interface.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct BundleId(pub u32);

/// A user of the host, as the kernel numbers it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Uid(pub u32);

impl Uid {
    /// Nobody can say: the kernel gives this number to no user.
    pub const UNKNOWN: Uid = Uid(u32::MAX);
}

/// What a message must carry to be delivered (AM-II calls it tag). `Debug` does not print it.
#[derive(Clone, Copy)]
pub struct Key(pub u64);

impl Key {
    /// Compares without a branch on the secret bits, so that the time taken says nothing about them.
    #[inline(always)]
    pub fn matches(self, other: Key) -> bool {
        (self.0 ^ other.0) == 0
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

/// What every printed name begins with.
pub const NAME_PREFIX: &str = "weft1:";

/// An endpoint's address: 40 bytes, printed `weft1:` and base64url.
///
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name {
    /// The life of the network interface that the endpoint belongs to.
    pub epoch: Epoch,
    /// The endpoint within it.
    pub endpoint: EndpointId,
    /// The user who owns the endpoint; a sender checks it against what the kernel says of the peer.
    pub uid: Uid,
    /// Where other hosts reach the network interface.
    pub address: HostAddress,
}

/// Where a network interface is reached from other hosts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct HostAddress {
    /// IPv6, or IPv4-mapped.
    pub ip: [u8; 16],
    /// The UDP port.
    pub port: u16,
}

impl HostAddress {
    /// Nowhere: only its own host can reach it.
    pub const NONE: HostAddress = HostAddress { ip: [0; 16], port: 0 };

    /// Whether other hosts cannot reach it.
    pub fn is_none(self) -> bool {
        self == HostAddress::NONE
    }

    /// The address as bytes, port last: what a cookie is baked with.
    pub fn to_bytes(self) -> [u8; 18] {
        let mut b = [0; 18];
        b[..16].copy_from_slice(&self.ip);
        b[16..].copy_from_slice(&self.port.to_le_bytes());
        b
    }
}

impl fmt::Debug for HostAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NameError {
    /// The text does not begin with `weft1:`.
    #[error("a name begins with \"weft1:\"; this text does not. Pass the name that the peer's endpoint printed")]
    Prefix,
    /// What follows the prefix is not base64url.
    #[error("the part after \"weft1:\" is not base64url; was the name cut or wrapped when it was copied?")]
    Encoding,
    /// Not 40 bytes.
    #[error("a name is {NAME_BYTES} bytes, this is {0}; was it cut when it was copied?")]
    Length(usize),
    /// The first byte names another version of the format.
    #[error("the name has format {0}, this weft reads format 1; use the same weft on both sides")]
    Format(u8),
    /// Bytes that must be zero are not.
    #[error("the name is damaged: reserved bytes are not zero")]
    Reserved,
}

impl Name {
    const FORMAT: u8 = 1;

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
        Ok(Name {
            epoch: Epoch(u64::from_le_bytes(array(&b[8..16]))),
            endpoint: EndpointId(u32::from_le_bytes(array(&b[16..20]))),
            uid: Uid(u32::from_le_bytes(array(&b[4..8]))),
            address: HostAddress { ip: array(&b[20..36]), port: u16::from_le_bytes(array(&b[2..4])) },
        })
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
        assert_eq!(GOLDEN.parse::<Name>(), Ok(sample()));
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
                prop_assert_eq!(name.to_string().parse::<Name>(), Ok(name));
            }
        }

        #[test]
        fn any_text_is_a_name_or_an_error(text in ".{0,80}") {
            let _ = text.parse::<Name>();
        }
    }
}
