//! Long messages: requests and replies of any length, whose bytes are placed into the receiving endpoint's *segment* before its handler
//! runs, and requests for bytes of a segment. `docs/design/long.md` says why they are made this way.
//!
//! This module has the state that flows keep of them, and the segments. `state/long.rs` sends them, `place.rs` receives them.

use crate::admission::Admission;
use crate::bulk::{Departures, Placement};
use crate::endpoint::EndpointState;
use crate::receive::Violation;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use weft_wire::{Key, Reason, Uid};

/// The contents of a long message: memory that weft owns until the message has ended. Creating one copies nothing.
#[derive(Clone, PartialEq, Eq)]
pub struct Contents(Bytes);

#[derive(Clone, PartialEq, Eq)]
enum Bytes {
    Owned(Vec<u8>),
    Shared(Arc<[u8]>),
}

impl Contents {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        match &self.0 {
            Bytes::Owned(bytes) => bytes,
            Bytes::Shared(bytes) => bytes,
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.bytes().len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.bytes().is_empty()
    }

    /// The bytes as a vector. Copies shared bytes.
    pub fn into_vec(self) -> Vec<u8> {
        match self.0 {
            Bytes::Owned(bytes) => bytes,
            Bytes::Shared(bytes) => bytes.to_vec(),
        }
    }
}

impl fmt::Debug for Contents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len())
    }
}

impl From<Vec<u8>> for Contents {
    fn from(bytes: Vec<u8>) -> Contents {
        Contents(Bytes::Owned(bytes))
    }
}

impl From<Box<[u8]>> for Contents {
    fn from(bytes: Box<[u8]>) -> Contents {
        Contents(Bytes::Owned(bytes.into_vec()))
    }
}

impl From<Arc<[u8]>> for Contents {
    fn from(bytes: Arc<[u8]>) -> Contents {
        Contents(Bytes::Shared(bytes))
    }
}

/// A long message to send, without its contents.
#[derive(Clone, Copy, Debug)]
pub struct Long<'a> {
    /// The client's operation (an Active Message handler's number).
    pub op: u8,
    /// At most 16 arguments.
    pub args: &'a [u32],
    /// Where the bytes go in the segment of the receiving endpoint.
    pub offset: u64,
}

/// A request for bytes of another endpoint's segment.
#[derive(Clone, Copy, Debug)]
pub struct Get<'a> {
    /// The operation of the message that reports the arrival of the bytes. It comes as a reply.
    pub op: u8,
    /// Its arguments, at most 16. They do not travel.
    pub args: &'a [u32],
    /// Where the bytes are in the segment of the other endpoint.
    pub source: u64,
    /// How many.
    pub len: u64,
    /// Where they go in the segment of the requesting endpoint.
    pub offset: u64,
}

/// Where the bytes of a long message lie in the segment of the endpoint that got it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placed {
    /// Where the first one is.
    pub offset: u64,
    /// How many there are.
    pub len: u64,
}

/// What a returned long message was meant to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transfer {
    /// Place its payload at this offset.
    Put {
        /// In the segment of the receiving endpoint.
        offset: u64,
    },
    /// Fetch bytes.
    Get {
        /// Where they are in the segment of the other endpoint.
        source: u64,
        /// How many.
        len: u64,
        /// Where they go in the segment of the requesting endpoint.
        offset: u64,
    },
}

/// The memory of a segment. Others may read and write it at any time, so it is never accessed through a reference.
///
/// No call panics, whatever its arguments.
pub trait Memory: Send + fmt::Debug {
    /// How many bytes there are.
    fn len(&self) -> u64;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the segment is the whole address space of the process, so that an offset is an address.
    fn is_whole(&self) -> bool {
        false
    }

    /// Copies bytes out of it. False if they are not all within it.
    fn read(&self, at: u64, to: &mut [u8]) -> bool;

    /// Copies bytes into it. False if they are not all within it.
    fn write(&self, at: u64, bytes: &[u8]) -> bool;
}

/// An endpoint's segment. Clones share it: an endpoint that moves to another bundle takes one along, and the stub that
/// it leaves uses the other to place bytes that still arrive there. Copies are made under the lock, so memory that was
/// taken away is never touched again.
#[derive(Clone, Debug, Default)]
pub(crate) struct Segment(Arc<Mutex<Inside>>);

#[derive(Debug, Default)]
struct Inside {
    memory: Option<Box<dyn Memory>>,
    /// Whom the endpoint admits. Kept here because its stub does not learn of changes.
    guard: Option<(Uid, Key, Admission)>,
}

impl Segment {
    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets its memory. When this returns, nobody accesses the previous memory any more.
    pub fn set(&self, memory: Option<Box<dyn Memory>>) {
        self.lock().memory = memory;
    }

    /// Notes whom its endpoint admits.
    pub fn guard(&self, endpoint: &EndpointState) {
        self.lock().guard = Some((endpoint.name.uid, endpoint.key, endpoint.admission));
    }

    /// Whether a message of `user` with `key` may place or read `len` bytes at `at` now.
    pub fn admit(&self, user: Uid, key: Key, at: u64, len: u64) -> Result<(), Reason> {
        let inside = self.lock();
        let (own, wanted, admission) = inside.guard.ok_or(Reason::NoSuchEndpoint)?;
        let admitted = admission.admit(own, wanted, user, key)?;
        inside.check(at, len)?;
        let is_stranger = admitted == crate::Admitted::WithoutKey && !user.is_same_as(own);
        match is_stranger && inside.memory.as_ref().is_some_and(|memory| memory.is_whole()) {
            true => Err(Reason::NoRight),
            false => Ok(()),
        }
    }

    /// Whether `len` bytes at `at` lie within the segment. A range without bytes always does, even if there is no memory.
    pub fn check(&self, at: u64, len: u64) -> Result<(), Reason> {
        self.lock().check(at, len)
    }

    /// Copies bytes into it.
    pub fn write(&self, at: u64, bytes: &[u8]) -> Result<(), Reason> {
        let inside = self.lock();
        inside.check(at, bytes.len() as u64)?;
        let memory = inside.memory.as_ref();
        match bytes.is_empty() || memory.is_some_and(|memory| memory.write(at, bytes)) {
            true => Ok(()),
            false => Err(Reason::BadOffset),
        }
    }

    /// Copies bytes out of it.
    pub fn read(&self, at: u64, to: &mut [u8]) -> Result<(), Reason> {
        let inside = self.lock();
        inside.check(at, to.len() as u64)?;
        match to.is_empty() || inside.memory.as_ref().is_some_and(|memory| memory.read(at, to)) {
            true => Ok(()),
            false => Err(Reason::BadOffset),
        }
    }
}

impl Inside {
    fn check(&self, at: u64, len: u64) -> Result<(), Reason> {
        let size = self.memory.as_ref().map_or(0, |memory| memory.len());
        match at.checked_add(len) {
            _ if len == 0 => Ok(()),
            _ if at >= size => Err(Reason::BadOffset),
            Some(end) if end <= size => Ok(()),
            _ => Err(Reason::BadLength),
        }
    }
}

/// A long message of ours that has not ended.
#[derive(Debug)]
pub(crate) struct Kept {
    pub op: u8,
    pub args: Vec<u32>,
    pub what: What,
    /// Its first piece has left.
    pub has_begun: bool,
    /// It has left completely.
    pub has_left: bool,
}

/// The contents, or the request, of a long message of ours.
#[derive(Debug)]
pub(crate) enum What {
    Put {
        offset: u64,
        contents: Contents,
    },
    Get {
        source: u64,
        len: u64,
        offset: u64,
    },
    /// Bytes of a segment here, for a peer that asked for them and told where they go.
    Answer {
        source: u64,
        len: u64,
        offset: u64,
    },
}

impl Kept {
    /// The operation, arguments, payload and transfer for a returned message.
    pub fn give_back(self) -> (u8, Vec<u32>, Vec<u8>, Transfer) {
        let (payload, transfer) = match self.what {
            What::Put { offset, contents } => (contents.into_vec(), Transfer::Put { offset }),
            What::Get { source, len, offset } | What::Answer { source, len, offset } => {
                (Vec::new(), Transfer::Get { source, len, offset })
            }
        };
        (self.op, self.args, payload, transfer)
    }
}

/// A long message of the peer that has not arrived completely.
#[derive(Debug)]
pub(crate) struct Arriving {
    pub placement: Placement,
    pub placed: Placed,
    /// Why it is not placed. Its sender is told once all of it has arrived.
    pub refused: Option<Reason>,
}

/// The long messages of a flow, by the slots of their requests.
#[derive(Debug, Default)]
pub(crate) struct Longs {
    /// Our messages: requests on a flow of ours, replies on a flow of the peer.
    pub kept: BTreeMap<u16, Kept>,
    /// Our messages that have not left completely.
    pub leaving: Departures<u16>,
    /// The peer's messages: the other way round.
    pub arriving: BTreeMap<u16, Arriving>,
    /// The flow is among those that have something to send.
    pub is_listed: bool,
}

impl Longs {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty() && self.arriving.is_empty() && self.leaving.is_empty() && !self.is_listed
    }

    /// Ends the messages in a slot. Returns ours, if there is one.
    ///
    /// # Errors
    /// If ours has not left completely: then the peer cannot know of it.
    pub fn end(&mut self, slot: u16) -> Result<Option<Kept>, Violation> {
        if self.kept.get(&slot).is_some_and(|kept| !kept.has_left) {
            return Err(Violation);
        }
        self.arriving.remove(&slot);
        Ok(self.kept.remove(&slot))
    }
}

/// The direction of a flow in a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    /// A flow of ours, for our requests.
    Out,
    /// A flow of the peer, for our replies.
    In,
}

/// Splits a word of 64 bits into two of 32.
pub(crate) fn halves(word: u64) -> [u32; 2] {
    [word as u32, (word >> 32) as u32]
}

/// Joins two words of 32 bits.
pub(crate) fn whole([low, high]: [u32; 2]) -> u64 {
    u64::from(low) | u64::from(high) << 32
}
