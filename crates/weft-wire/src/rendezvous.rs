//! The messages over TCP by which a program learns the name of an endpoint from a host and a port: one query, one answer.
//!
//! ```text
//! query:   "weftask", version (1 byte), length of the label (1), the label (0 to 63), CRC32C of all that (4)
//! answer:  "weftask", version (1 byte), status (1), zero (3), name (40), key (8), CRC32C of all that (4)
//! ```
//!
//! Numbers are little-endian. Every version begins with the same eight bytes, so that each side can say which version the
//! other one speaks. An answer always has 64 bytes.

use crate::name::NAME_BYTES;
use crate::packet::checksum_of;
use crate::{Key, Name};

/// Version of these messages.
pub const VERSION: u8 = 1;

/// The first bytes of each message, before its version.
const MAGIC: [u8; 7] = *b"weftask";

/// Bytes of the magic and the version.
const HEADER: usize = 8;

/// Bytes of the checksum at the end of each message.
const CHECKSUM: usize = 4;

/// Bytes of the longest label.
pub const LABEL_MOST: usize = 63;

/// Bytes of the longest query.
pub const QUERY_MOST: usize = HEADER + 1 + LABEL_MOST + CHECKSUM;

/// Bytes of an answer.
pub const ANSWER_BYTES: usize = HEADER + 4 + NAME_BYTES + 8 + CHECKSUM;

/// Status codes of answers.
const TOLD: u8 = 0;
const TOLD_WITH_KEY: u8 = 1;
const NO_SUCH_LABEL: u8 = 2;
const OTHER_VERSION: u8 = 3;

/// Why bytes are no query or no answer.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RendezvousError {
    /// They do not begin like a message of weft.
    #[error("not a message of weft's name service; is this the port of another program?")]
    NotOurs,
    /// The other side speaks another version.
    #[error("the other side speaks version {0} of the name service, this weft speaks {VERSION}; use the same weft on both sides")]
    Version(u8),
    /// The checksum is wrong.
    #[error("the message is damaged: its checksum is wrong; ask again")]
    Checksum,
    /// A part of the message is invalid.
    #[error("the message is damaged: a part of it is invalid; ask again")]
    Malformed,
}

crate::debug_says_display!(RendezvousError);

/// Whether a text may be a label: at most 63 letters, digits, `-`, `_` and `.` of ASCII. The empty text is a label too.
pub fn is_label(text: &str) -> bool {
    let is_allowed = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.');
    text.len() <= LABEL_MOST && text.bytes().all(is_allowed)
}

/// Asks which endpoint has a label.
///
/// ```
/// use weft_wire::rendezvous::Query;
///
/// let bytes = Query { label: "store" }.to_bytes().expect("a label");
/// assert_eq!(Query::parse(&bytes), Ok(Some(Query { label: "store" })));
/// assert_eq!(Query::parse(&bytes[..10]), Ok(None)); // more has to come
/// assert!(Query::parse(b"GET / HTTP/1.1\r\n").is_err());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Query<'a> {
    /// A text that [`is_label`] allows.
    pub label: &'a str,
}

impl<'a> Query<'a> {
    /// Returns the bytes to send. `None` if the text is no label.
    pub fn to_bytes(&self) -> Option<Vec<u8>> {
        let length = u8::try_from(self.label.len()).ok().filter(|_| is_label(self.label))?;
        let mut bytes = Vec::with_capacity(QUERY_MOST);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&[VERSION, length]);
        bytes.extend_from_slice(self.label.as_bytes());
        bytes.extend_from_slice(&checksum_of(&bytes).to_le_bytes());
        Some(bytes)
    }

    /// Reads a query from the bytes that came so far. `None` if more has to come first.
    ///
    /// # Errors
    /// As soon as the bytes cannot be the beginning of a query.
    pub fn parse(bytes: &'a [u8]) -> Result<Option<Query<'a>>, RendezvousError> {
        if !begins(bytes)? {
            return Ok(None);
        }
        let Some(&length) = bytes.get(HEADER) else { return Ok(None) };
        let length = usize::from(length);
        if length > LABEL_MOST {
            return Err(RendezvousError::Malformed);
        }
        let Some(message) = bytes.get(..HEADER + 1 + length + CHECKSUM) else { return Ok(None) };
        let body = sealed(message)?;
        let label = std::str::from_utf8(&body[HEADER + 1..]).map_err(|_| RendezvousError::Malformed)?;
        match is_label(label) {
            true => Ok(Some(Query { label })),
            false => Err(RendezvousError::Malformed),
        }
    }
}

/// The answer to a query.
///
/// ```
/// use weft_wire::rendezvous::{Answer, ANSWER_BYTES};
/// use weft_wire::{EndpointId, Epoch, HostAddress, Key, Name, Uid};
///
/// let name = Name { epoch: Epoch(1), endpoint: EndpointId(2), uid: Uid(1000), address: HostAddress::NONE };
/// let bytes = Answer::Told { name, key: None }.to_bytes();
/// assert_eq!(bytes.len(), ANSWER_BYTES);
/// let Ok(Some(Answer::Told { name: told, key: None })) = Answer::parse(&bytes) else { panic!() };
/// assert_eq!(told, name);
/// ```
#[derive(Clone, Copy, Debug)]
pub enum Answer {
    /// An endpoint has that label.
    Told {
        /// Its name.
        name: Name,
        /// Its key, if the asker may know it.
        key: Option<Key>,
    },
    /// No endpoint has that label.
    NoSuchLabel,
    /// The query was of another version than [`VERSION`].
    OtherVersion,
}

impl Answer {
    /// Returns the bytes to send.
    pub fn to_bytes(&self) -> [u8; ANSWER_BYTES] {
        let mut bytes = [0; ANSWER_BYTES];
        bytes[..7].copy_from_slice(&MAGIC);
        bytes[7] = VERSION;
        bytes[8] = match self {
            Answer::Told { name, key } => {
                bytes[12..52].copy_from_slice(&name.to_bytes());
                bytes[52..60].copy_from_slice(&key.map_or(0, |key| key.0).to_le_bytes());
                if key.is_some() {
                    TOLD_WITH_KEY
                } else {
                    TOLD
                }
            }
            Answer::NoSuchLabel => NO_SUCH_LABEL,
            Answer::OtherVersion => OTHER_VERSION,
        };
        let sum = checksum_of(&bytes[..60]);
        bytes[60..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Reads an answer from the bytes that came so far. `None` if more has to come first.
    ///
    /// # Errors
    /// As soon as the bytes cannot be the beginning of an answer.
    pub fn parse(bytes: &[u8]) -> Result<Option<Answer>, RendezvousError> {
        if !begins(bytes)? {
            return Ok(None);
        }
        let Some(message) = bytes.get(..ANSWER_BYTES) else { return Ok(None) };
        let body = sealed(message)?;
        let malformed = RendezvousError::Malformed;
        let (name, key) = (&body[12..52], u64::from_le_bytes(body[52..60].try_into().map_err(|_| malformed)?));
        let is_blank = name.iter().all(|&byte| byte == 0) && key == 0;
        if body[9..12] != [0; 3] {
            return Err(malformed);
        }
        match body[8] {
            TOLD if key != 0 => Err(malformed),
            status @ (TOLD | TOLD_WITH_KEY) => {
                let name = Name::from_bytes(name).map_err(|_| malformed)?;
                Ok(Some(Answer::Told { name, key: (status == TOLD_WITH_KEY).then_some(Key(key)) }))
            }
            NO_SUCH_LABEL if is_blank => Ok(Some(Answer::NoSuchLabel)),
            OTHER_VERSION if is_blank => Ok(Some(Answer::OtherVersion)),
            _ => Err(malformed),
        }
    }
}

/// Whether the magic and the version have come.
fn begins(bytes: &[u8]) -> Result<bool, RendezvousError> {
    let came = bytes.len().min(MAGIC.len());
    match bytes.get(MAGIC.len()) {
        _ if bytes[..came] != MAGIC[..came] => Err(RendezvousError::NotOurs),
        Some(&VERSION) => Ok(true),
        Some(&version) => Err(RendezvousError::Version(version)),
        None => Ok(false),
    }
}

/// Returns the bytes before the checksum, if the checksum is right.
fn sealed(message: &[u8]) -> Result<&[u8], RendezvousError> {
    let (body, sum) = message.split_at(message.len() - CHECKSUM);
    match sum == checksum_of(body).to_le_bytes() {
        true => Ok(body),
        false => Err(RendezvousError::Checksum),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EndpointId, Epoch, HostAddress, Uid};

    fn name() -> Name {
        Name { epoch: Epoch(7), endpoint: EndpointId(3), uid: Uid(1000), address: HostAddress::NONE }
    }

    fn answers() -> [Answer; 5] {
        let told = |key| Answer::Told { name: name(), key };
        [told(None), told(Some(Key(0))), told(Some(Key(u64::MAX))), Answer::NoSuchLabel, Answer::OtherVersion]
    }

    #[test]
    fn messages_cut_anywhere_wait_for_the_rest() {
        let longest = "x".repeat(LABEL_MOST);
        for label in ["", "a", "store-2.of_all", &longest] {
            let query = Query { label };
            let bytes = query.to_bytes().expect("a label");
            assert_eq!(Query::parse(&bytes), Ok(Some(query)));
            assert!((0..bytes.len()).all(|cut| Query::parse(&bytes[..cut]) == Ok(None)), "{label:?}");
        }
        for answer in answers() {
            let bytes = answer.to_bytes();
            let read = Answer::parse(&bytes).expect("an answer").expect("all of it");
            assert_eq!(read.to_bytes(), bytes);
            assert!((0..bytes.len()).all(|cut| matches!(Answer::parse(&bytes[..cut]), Ok(None))), "{answer:?}");
        }
    }

    #[test]
    fn each_damaged_bit_is_noticed() {
        let query = Query { label: "store" }.to_bytes().expect("a label");
        for bit in 0..8 * query.len() {
            let mut bytes = query.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            // A length that grew waits for more, which never comes.
            assert!(!matches!(Query::parse(&bytes), Ok(Some(_))), "bit {bit}");
        }
        for answer in answers() {
            for bit in 0..8 * ANSWER_BYTES {
                let mut bytes = answer.to_bytes();
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert!(Answer::parse(&bytes).is_err(), "bit {bit} of {answer:?}");
            }
        }
    }

    #[test]
    fn what_no_weft_says_is_refused_though_its_checksum_is_right() {
        let seal = |bytes: &mut Vec<u8>| bytes.extend_from_slice(&checksum_of(bytes).to_le_bytes());
        for label in [&b"a b"[..], b"a/b", b"\xff", b"\n"] {
            let mut bytes = [&MAGIC[..], &[VERSION, label.len() as u8], label].concat();
            seal(&mut bytes);
            assert_eq!(Query::parse(&bytes), Err(RendezvousError::Malformed), "{label:?}");
        }
        assert_eq!(Query::parse(&[&MAGIC[..], &[VERSION, 64]].concat()), Err(RendezvousError::Malformed));
        assert_eq!(Query::parse(&[&MAGIC[..], &[2]].concat()), Err(RendezvousError::Version(2)));
        assert_eq!(Query::parse(b"wefx"), Err(RendezvousError::NotOurs));
        assert!(["a b", "a/b", "\u{e9}", &"x".repeat(64)].iter().all(|label| Query { label }.to_bytes().is_none()));
        // An unknown status, reserved bytes that are set, and a key or a name where the status allows none.
        for (answer, at) in [(answers()[0], 8), (answers()[0], 9), (answers()[0], 52), (answers()[3], 12)] {
            let mut bytes = answer.to_bytes()[..60].to_vec();
            bytes[at] = 9;
            seal(&mut bytes);
            assert!(matches!(Answer::parse(&bytes), Err(RendezvousError::Malformed)), "{answer:?} at {at}");
        }
    }
}
