//! The control messages between a program and weftd: on the daemon's socket, one message per packet, and as records on the line of the
//! system endpoint.
//!
//! ```text
//! program                          weftd
//!   Hello(version; epoch and token if it attaches again) ->
//!                                <- Welcome(epoch, token, address, user, bytes) + descriptors [file, page, eventfd]
//!                                or Refuse(reason), and the socket is closed
//!   Mapped ->                        the file is mapped; nobody else can map it from now on
//!                                <- Wake, whenever something comes for a program that sleeps
//! ```
//!
//! A tool sends Look(scope) in place of Hello, and gets the answer that [`status`](crate::status) describes.
//!
//! The daemon makes the file, the page and the eventfd. The page's first word is the number of the daemon's sleep, or 0 while it is awake;
//! programs cannot write there. The eventfd wakes it.

use crate::name::{array, NAME_BYTES};
use crate::segment::Sizes;
use crate::setup::SetupError;
use crate::status::Scope;
use crate::{EndpointId, Epoch, HostAddress, Key, Name, NameError, Reason, Uid, VERSION};

/// Bytes of every message on the socket.
pub const MESSAGE_BYTES: usize = 128;

const MAGIC: [u8; 4] = *b"wftd";

/// Proves that a daemon of this host drew an epoch for this user. To others it reveals nothing.
#[derive(Clone, Copy)]
pub struct Token(pub u128);

impl Token {
    /// Compares in constant time: no branch depends on how much of it is right.
    pub fn matches(self, other: Token) -> bool {
        (self.0 ^ other.0) == 0
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(..)")
    }
}

/// What a new attachment gets.
#[derive(Clone, Copy, Debug)]
pub struct Welcome {
    /// The epoch of the program's names.
    pub epoch: Epoch,
    /// With it, the program can attach again with the same epoch.
    pub token: Token,
    /// The daemon's address for other hosts, which is the address in the program's names.
    pub address: HostAddress,
    /// The program's user, as the daemon's kernel says.
    pub user: Uid,
    /// Bytes of the file.
    pub bytes: u64,
}

/// A message on the socket.
#[derive(Clone, Copy, Debug)]
pub enum Message {
    /// First message of a program; with epoch and token if it attaches again.
    Hello(Option<(Epoch, Token)>),
    /// The program is attached.
    Welcome(Welcome),
    /// The program is not attached, and why.
    Refuse(Reason),
    /// The program has mapped the file.
    Mapped,
    /// Something came.
    Wake,
    /// First message of a tool: asks for the daemon's status.
    Look(Scope),
}

impl Message {
    /// The message's bytes.
    pub fn to_bytes(&self) -> [u8; MESSAGE_BYTES] {
        let mut b = [0; MESSAGE_BYTES];
        b[..4].copy_from_slice(&MAGIC);
        b[4..6].copy_from_slice(&VERSION.to_le_bytes());
        match self {
            Message::Hello(life) => {
                b[6] = 1;
                if let Some((epoch, token)) = life {
                    b[7] = 1;
                    b[8..16].copy_from_slice(&epoch.0.to_le_bytes());
                    b[16..32].copy_from_slice(&token.0.to_le_bytes());
                }
            }
            Message::Welcome(Welcome { epoch, token, address, user, bytes }) => {
                b[6] = 2;
                b[8..16].copy_from_slice(&epoch.0.to_le_bytes());
                b[16..32].copy_from_slice(&token.0.to_le_bytes());
                b[32..40].copy_from_slice(&bytes.to_le_bytes());
                b[40..44].copy_from_slice(&user.0.to_le_bytes());
                b[44..62].copy_from_slice(&address.to_bytes());
            }
            Message::Refuse(reason) => (b[6], b[8]) = (3, reason.code()),
            Message::Wake => b[6] = 4,
            Message::Mapped => b[6] = 5,
            Message::Look(scope) => {
                b[6] = 6;
                b[7] = match scope {
                    Scope::Totals => 0,
                    Scope::Active => 1,
                    Scope::All => 2,
                    Scope::Endpoint(epoch, endpoint) => {
                        b[8..16].copy_from_slice(&epoch.0.to_le_bytes());
                        b[16..20].copy_from_slice(&endpoint.0.to_le_bytes());
                        3
                    }
                };
            }
        }
        b
    }

    /// Reads a message. Total.
    ///
    /// # Errors
    /// If the bytes are no message of this version.
    pub fn from_bytes(bytes: &[u8]) -> Result<Message, SetupError> {
        let b: &[u8; MESSAGE_BYTES] = bytes.try_into().map_err(|_| SetupError::NotOurs)?;
        if b[..4] != MAGIC {
            return Err(SetupError::NotOurs);
        }
        let version = u16::from_le_bytes(array(&b[4..6]));
        // A refusal has the same layout in every version, so that sides of different versions understand it.
        if version != VERSION && b[6] != 3 {
            return Err(SetupError::Version(version));
        }
        let epoch = Epoch(u64::from_le_bytes(array(&b[8..16])));
        let token = Token(u128::from_le_bytes(array(&b[16..32])));
        match b[6] {
            1 => Ok(Message::Hello((b[7] != 0).then_some((epoch, token)))),
            2 => Ok(Message::Welcome(Welcome {
                epoch,
                token,
                bytes: u64::from_le_bytes(array(&b[32..40])),
                user: Uid(u32::from_le_bytes(array(&b[40..44]))),
                address: HostAddress { ip: array(&b[44..60]), port: u16::from_le_bytes(array(&b[60..62])) },
            })),
            3 => Ok(Message::Refuse(Reason::from_code(b[8]).ok_or(SetupError::Reason(b[8]))?)),
            4 => Ok(Message::Wake),
            5 => Ok(Message::Mapped),
            6 => match b[7] {
                0 => Ok(Message::Look(Scope::Totals)),
                1 => Ok(Message::Look(Scope::Active)),
                2 => Ok(Message::Look(Scope::All)),
                3 => {
                    let endpoint = EndpointId(u32::from_le_bytes(array(&b[16..20])));
                    Ok(Message::Look(Scope::Endpoint(epoch, endpoint)))
                }
                _ => Err(SetupError::NotOurs),
            },
            other => Err(SetupError::Type(other)),
        }
    }
}

/// Bytes in the file about a peer that opened a line: its name.
pub const OPENED_BYTES: usize = NAME_BYTES;

/// A request of a program, which the daemon answers.
#[derive(Clone, Copy, Debug)]
pub enum Request {
    /// Make an endpoint.
    Allocate {
        /// Its number in its name.
        endpoint: EndpointId,
        /// Its key.
        key: Key,
        /// The code of its admission.
        admission: u8,
        /// The sizes of its part.
        sizes: Sizes,
    },
    /// Free an endpoint. Its lines end.
    Free {
        /// Its part.
        part: u32,
    },
    /// Change an endpoint's key.
    SetKey {
        /// Its part.
        part: u32,
        /// The key.
        key: Key,
    },
    /// Change an endpoint's admission.
    SetAdmission {
        /// Its part.
        part: u32,
        /// The code of the admission.
        admission: u8,
    },
    /// Open a line from an endpoint to a peer.
    Open {
        /// The endpoint's part.
        part: u32,
        /// The peer's name.
        to: Name,
    },
}

/// The answer to a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// The request was carried out.
    Done,
    /// The endpoint's part, and its place in the file.
    Part {
        /// Its number, which is also that of its bell.
        part: u32,
        /// The page where it begins.
        page: u32,
    },
    /// The line, and the peer's user if the kernel says it, otherwise [`Uid::UNKNOWN`].
    Line(u32, Uid),
    /// The request was not carried out.
    Refused(Reason),
}

/// Why a record is no request or no answer.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// An operation that this version does not know.
    #[error("request with unknown operation {0}")]
    Operation(u8),
    /// Other arguments than the operation has.
    #[error("request of operation {0} with wrong arguments")]
    Arguments(u8),
    /// The name in it is damaged.
    #[error("request with a bad name: {0}")]
    Name(#[from] NameError),
}

crate::debug_says_display!(RequestError);

mod code {
    pub const ALLOCATE: u8 = 1;
    pub const FREE: u8 = 2;
    pub const SET_KEY: u8 = 3;
    pub const SET_ADMISSION: u8 = 4;
    pub const OPEN: u8 = 5;

    pub const DONE: u8 = 1;
    pub const PART: u8 = 2;
    pub const LINE: u8 = 3;
    pub const REFUSED: u8 = 4;
}

fn halves(key: Key) -> [u32; 2] {
    [key.0 as u32, (key.0 >> 32) as u32]
}

fn key(low: u32, high: u32) -> Key {
    Key(u64::from(low) | u64::from(high) << 32)
}

impl Request {
    /// Calls `then` with its operation, arguments and payload.
    pub fn with<R>(&self, then: impl FnOnce(u8, &[u32], &[u8]) -> R) -> R {
        match *self {
            Request::Allocate { endpoint, key, admission, sizes } => {
                let [low, high] = halves(key);
                let args = [endpoint.0, low, high, admission.into(), sizes.ring_order, sizes.area_pages];
                then(code::ALLOCATE, &args, &[])
            }
            Request::Free { part } => then(code::FREE, &[part], &[]),
            Request::SetKey { part, key } => {
                let [low, high] = halves(key);
                then(code::SET_KEY, &[part, low, high], &[])
            }
            Request::SetAdmission { part, admission } => then(code::SET_ADMISSION, &[part, admission.into()], &[]),
            Request::Open { part, to } => then(code::OPEN, &[part], &to.to_bytes()),
        }
    }

    /// Reads a request. Total.
    ///
    /// # Errors
    /// If it is malformed.
    pub fn from_record(op: u8, args: &[u32], payload: &[u8]) -> Result<Request, RequestError> {
        let byte = |arg: u32| u8::try_from(arg).map_err(|_| RequestError::Arguments(op));
        match (op, args) {
            (code::ALLOCATE, &[endpoint, low, high, admission, ring_order, area_pages]) => Ok(Request::Allocate {
                endpoint: EndpointId(endpoint),
                key: key(low, high),
                admission: byte(admission)?,
                sizes: Sizes { ring_order, area_pages },
            }),
            (code::FREE, &[part]) => Ok(Request::Free { part }),
            (code::SET_KEY, &[part, low, high]) => Ok(Request::SetKey { part, key: key(low, high) }),
            (code::SET_ADMISSION, &[part, admission]) => {
                Ok(Request::SetAdmission { part, admission: byte(admission)? })
            }
            (code::OPEN, &[part]) => Ok(Request::Open { part, to: Name::from_bytes(payload)? }),
            (code::ALLOCATE..=code::OPEN, _) => Err(RequestError::Arguments(op)),
            _ => Err(RequestError::Operation(op)),
        }
    }
}

impl Answer {
    /// Calls `then` with its operation and arguments.
    pub fn with<R>(&self, then: impl FnOnce(u8, &[u32]) -> R) -> R {
        match *self {
            Answer::Done => then(code::DONE, &[]),
            Answer::Part { part, page } => then(code::PART, &[part, page]),
            Answer::Line(line, user) => then(code::LINE, &[line, user.0]),
            Answer::Refused(reason) => then(code::REFUSED, &[reason.code().into()]),
        }
    }

    /// Reads an answer. Total.
    ///
    /// # Errors
    /// If it is malformed.
    pub fn from_record(op: u8, args: &[u32]) -> Result<Answer, RequestError> {
        match (op, args) {
            (code::DONE, []) => Ok(Answer::Done),
            (code::PART, &[part, page]) => Ok(Answer::Part { part, page }),
            (code::LINE, &[line, user]) => Ok(Answer::Line(line, Uid(user))),
            (code::REFUSED, &[reason]) => {
                let reason = u8::try_from(reason).ok().and_then(Reason::from_code);
                Ok(Answer::Refused(reason.ok_or(RequestError::Arguments(op))?))
            }
            (code::DONE..=code::REFUSED, _) => Err(RequestError::Arguments(op)),
            _ => Err(RequestError::Operation(op)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn name() -> Name {
        Name {
            epoch: Epoch(7),
            endpoint: EndpointId(3),
            uid: Uid(1000),
            address: HostAddress { ip: [9; 16], port: 80 },
        }
    }

    #[test]
    fn each_message_reads_back() {
        let welcome = Welcome {
            epoch: Epoch(u64::MAX - 1),
            token: Token(u128::MAX - 7),
            address: HostAddress { ip: [4; 16], port: 4711 },
            user: Uid(1000),
            bytes: 1 << 40,
        };
        let life = Some((Epoch(5), Token(6)));
        for message in [
            Message::Hello(None),
            Message::Hello(life),
            Message::Welcome(welcome),
            Message::Refuse(Reason::NoRoom),
            Message::Wake,
            Message::Mapped,
            Message::Look(Scope::Totals),
            Message::Look(Scope::Active),
            Message::Look(Scope::All),
            Message::Look(Scope::Endpoint(Epoch(8), EndpointId(9))),
        ] {
            let bytes = message.to_bytes();
            let back = Message::from_bytes(&bytes).expect("own message");
            assert_eq!(back.to_bytes(), bytes);
            assert_eq!(format!("{back:?}"), format!("{message:?}"));
        }
    }

    #[test]
    fn each_request_and_each_answer_reads_back() {
        let sizes = Sizes::default();
        for request in [
            Request::Allocate { endpoint: EndpointId(9), key: Key(u64::MAX - 4), admission: 3, sizes },
            Request::Free { part: 1 },
            Request::SetKey { part: 2, key: Key(1 << 33) },
            Request::SetAdmission { part: 3, admission: 4 },
            Request::Open { part: 4, to: name() },
        ] {
            let said = |request: &Request| request.with(|op, args, payload| (op, args.to_vec(), payload.to_vec()));
            let back = request.with(Request::from_record).expect("own request");
            assert_eq!(said(&back), said(&request));
        }
        let answers =
            [Answer::Done, Answer::Part { part: 1, page: 2 }, Answer::Line(3, Uid(7)), Answer::Refused(Reason::NoRoom)];
        for answer in answers {
            assert_eq!(answer.with(Answer::from_record), Ok(answer));
        }
    }

    #[test]
    fn what_is_no_request_is_an_error_each() {
        assert_eq!(Request::from_record(99, &[], &[]).err(), Some(RequestError::Operation(99)));
        assert_eq!(Request::from_record(code::FREE, &[1, 2], &[]).err(), Some(RequestError::Arguments(code::FREE)));
        let args = [1, 256];
        assert_eq!(Request::from_record(code::SET_ADMISSION, &args, &[]).err(), Some(RequestError::Arguments(4)));
        assert!(matches!(Request::from_record(code::OPEN, &[1], b"no name").err(), Some(RequestError::Name(_))));
        assert_eq!(Answer::from_record(77, &[]), Err(RequestError::Operation(77)));
        assert_eq!(Answer::from_record(code::REFUSED, &[0]), Err(RequestError::Arguments(code::REFUSED)));
    }

    #[test]
    fn a_token_is_not_printed() {
        assert_eq!(format!("{:?}", Token(5)), "Token(..)");
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_message_a_request_and_an_answer_or_errors(
            bytes in proptest::collection::vec(any::<u8>(), MESSAGE_BYTES),
            kind in 0u8..8,
            args in proptest::collection::vec(any::<u32>(), 0..8),
        ) {
            let mut bytes = bytes;
            bytes[..4].copy_from_slice(&MAGIC);
            bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
            bytes[6] = kind;
            let _ = Message::from_bytes(&bytes);
            let _ = Request::from_record(kind, &args, &bytes[..40]);
            let _ = Answer::from_record(kind, &args);
        }
    }
}
