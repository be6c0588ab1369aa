//! Tagged messages: sends and receives that find each other by source and tag, as MPI and libfabric have them.
//!
//! An endpoint made by [`Bundle::tagged_endpoint`] is for these; [`Bundle::tagged`] gives its calls. Messages of a pair of endpoints
//! are matched in the order they were sent, receives in the order they were posted. Small messages go with their
//! contents, larger ones are announced and fetched by the receive that they match. What is not matched yet waits at the receiver,
//! within bounds: `docs/tagged.md` says which, and what happens there.
//!
//! No call blocks and none runs a handler. Each posted operation ends in one [`Completion`], whatever becomes of its peer;
//! they are in one queue of the bundle, [`Bundle::next_completion`], and end its waits.

mod arrivals;
mod engine;
mod face;
mod peer;
mod queues;

pub use queues::Tags;
pub use weft_shm::{Lent, LentMut};
pub use weft_wire::tagged::Label;

pub(crate) use face::Face;

use engine::Engine;

/// Completions that the program has not taken.
type Completions = queues::InPlace<Completion>;

use crate::bundle::{Bundle, Threads};
use crate::node::{random_u64, Error};
use crate::paths::Outlet;
use peer::Ends;
use weft_core::{Endpoint, State};
use weft_wire::{Certainty, Key, Name, Reason};

/// Bounds of an endpoint for tagged messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Messages up to so many bytes, 64 KiB at most, go with their contents; larger ones are announced and fetched.
    pub eager_most: usize,
    /// Bytes of eager contents that wait here unmatched, of all senders; then contents go back to their senders until they are fetched.
    pub unexpected_most: usize,
    /// Operations posted here and completions of the bundle that were not taken, together; then further operations are told *full*.
    pub operations_most: usize,
    /// Bytes of injected messages that wait here for room; then they are told *full*.
    pub injected_most: usize,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { eager_most: 16 << 10, unexpected_most: 64 << 20, operations_most: 1 << 16, injected_most: 1 << 20 }
    }
}

/// What is sent: bytes that weft owns until the completion, or that the program lends.
#[derive(PartialEq, Eq, Debug)]
pub enum Source {
    /// Comes back with the completion.
    Owned(Vec<u8>),
    /// See there.
    Lent(Lent),
}

/// Where something is received: over the bytes of a vector, or in memory that the program lends.
#[derive(PartialEq, Eq, Debug)]
pub enum Target {
    /// Its length is what can be received. Comes back with the completion.
    Owned(Vec<u8>),
    /// See there.
    Lent(LentMut),
}

impl From<Vec<u8>> for Source {
    fn from(bytes: Vec<u8>) -> Source {
        Source::Owned(bytes)
    }
}

impl From<Lent> for Source {
    fn from(lent: Lent) -> Source {
        Source::Lent(lent)
    }
}

impl From<Vec<u8>> for Target {
    fn from(bytes: Vec<u8>) -> Target {
        Target::Owned(bytes)
    }
}

impl From<LentMut> for Target {
    fn from(lent: LentMut) -> Target {
        Target::Lent(lent)
    }
}

impl Source {
    #[inline(always)]
    fn bytes(&self) -> &[u8] {
        match self {
            Source::Owned(bytes) => bytes,
            Source::Lent(lent) => lent.bytes(),
        }
    }

    #[inline(always)]
    fn give_back(self) -> Option<Vec<u8>> {
        match self {
            Source::Owned(bytes) => Some(bytes),
            Source::Lent(_) => None,
        }
    }
}

impl Target {
    #[inline(always)]
    fn len(&self) -> usize {
        match self {
            Target::Owned(bytes) => bytes.len(),
            Target::Lent(lent) => lent.len(),
        }
    }

    /// Copies what there is room for. Returns how much.
    #[inline(always)]
    fn write(&mut self, at: usize, bytes: &[u8]) -> usize {
        match self {
            Target::Owned(room) => {
                let len = bytes.len().min(room.len().saturating_sub(at));
                if len > 0 {
                    room[at..at + len].copy_from_slice(&bytes[..len]);
                }
                len
            }
            Target::Lent(lent) => lent.write(at, bytes),
        }
    }

    #[inline(always)]
    fn give_back(self) -> Option<Vec<u8>> {
        match self {
            Target::Owned(bytes) => Some(bytes),
            Target::Lent(_) => None,
        }
    }
}

/// Which messages a receive is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pattern {
    /// Those of the peer mapped here; of any peer otherwise.
    pub source: Option<u32>,
    /// Those with such a tag; those without a tag otherwise.
    pub tags: Option<Tags>,
}

impl Pattern {
    /// Messages with this tag, of any peer.
    pub fn tagged(tag: u64) -> Pattern {
        Pattern { source: None, tags: Some(Tags { tag, ignore: 0 }) }
    }

    /// Messages with any tag, of any peer.
    pub fn any_tag() -> Pattern {
        Pattern { source: None, tags: Some(Tags { tag: 0, ignore: u64::MAX }) }
    }

    /// Messages without a tag, of any peer.
    pub fn untagged() -> Pattern {
        Pattern::default()
    }

    /// These bits of the tag may differ.
    #[must_use]
    pub fn ignoring(mut self, bits: u64) -> Pattern {
        self.tags = self.tags.map(|tags| Tags { ignore: bits, ..tags });
        self
    }

    /// Only messages of the peer mapped at this index.
    #[must_use]
    pub fn from(mut self, source: u32) -> Pattern {
        self.source = Some(source);
        self
    }
}

/// A peer that is known, mapped or not: see [`Tagged::name_of`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Peer(u32);

/// What is told of a message beside its contents.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Envelope {
    /// Who sent it.
    pub peer: Peer,
    /// Where that peer is mapped, if it is.
    pub source: Option<u32>,
    /// Its tag and data.
    pub label: Label,
    /// Its length.
    pub len: usize,
}

/// A message that was received.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Received {
    /// What is told of it.
    pub message: Envelope,
    /// Where it begins in the buffer: 0, but for a receive of many.
    pub at: usize,
    /// How many of its bytes are there. Fewer than it is long, if the buffer was too short: the rest is lost.
    pub stored: usize,
}

impl Received {
    /// Whether the buffer was too short for it.
    pub fn is_truncated(&self) -> bool {
        self.stored < self.message.len
    }
}

/// What became of an operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It was sent, or stored at the receiver, if that was asked for.
    Sent,
    /// A message came.
    Received(Received),
    /// The program cancelled it, or freed the endpoint.
    Cancelled,
    /// It came to nothing: the peer is gone, or refuses.
    Failed {
        /// Why.
        reason: Reason,
        /// Whether it is certain that the message was not stored.
        certainty: Certainty,
    },
    /// A message that was injected, or whose send had ended as sent, came back. The context is 0, for it is of no operation.
    CameBack(Box<CameBack>),
}

/// A message that came back, with its contents.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CameBack {
    /// Where it was to go, if that is still mapped.
    pub to: Option<u32>,
    /// Its tag and data.
    pub label: Label,
    /// Its contents, byte for byte.
    pub contents: Vec<u8>,
    /// Why.
    pub reason: Reason,
    /// Whether it is certain that it was not stored.
    pub certainty: Certainty,
}

/// The end of an operation, or a message taken by a receive of many.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The endpoint that it was posted at.
    pub endpoint: Endpoint,
    /// What the program gave it.
    pub context: u64,
    /// What became of it.
    pub outcome: Outcome,
    /// Nothing more comes of it, and what was lent for it is the program's again.
    pub is_last: bool,
    /// The buffer, with the last completion, if weft owned it.
    pub buffer: Option<Vec<u8>>,
}

/// A message taken out by [`Tagged::claim`]: to be received, or discarded. Dropped, it waits until the endpoint is freed.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "what is claimed waits until it is received or discarded"]
pub struct Claim {
    endpoint: Endpoint,
    message: u32,
    age: u64,
}

/// Why an operation was not posted.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// So many are posted, or so many completions were not taken, as may be; or an injected message finds no room.
    #[error("full: take completions and poll, then post it again")]
    Full,
    /// No peer is mapped at that index.
    #[error("no peer is mapped at index {0}; map its name there first")]
    NotMapped(u32),
    /// An injected message is longer than what may wait for room.
    #[error("too large to be injected: send it from a buffer that stays until the completion")]
    TooLarge,
    /// The claimed message was of another endpoint.
    #[error("the claimed message is of another endpoint; receive it there")]
    NoMessage,
}

weft_wire::debug_says_display!(PostError);

/// The calls of an endpoint for tagged messages.
///
/// ```
/// use weft::tagged::{Label, Outcome, Pattern, Settings};
/// use weft::{Bundle, Key, Node};
///
/// let mut bundle = Bundle::new(&Node::new()?)?;
/// let (here, there) = (bundle.tagged_endpoint(Key(1), Settings::default())?, bundle.tagged_endpoint(Key(2), Settings::default())?);
/// let name = bundle.name(there)?; // of another process, usually
/// bundle.tagged(here)?.map(0, name, Key(2))?;
///
/// bundle.tagged(there)?.try_receive(Pattern::tagged(7), vec![0; 100], 1).map_err(|(error, _)| error)?;
/// bundle.tagged(here)?.try_send(0, Label::tagged(7), b"hello".to_vec(), 2).map_err(|(error, _)| error)?;
/// let mut done = Vec::new();
/// while done.len() < 2 {
///     bundle.wait(None);
///     done.extend(std::iter::from_fn(|| bundle.next_completion()));
/// }
/// let received = done.iter().find(|c| c.context == 1).expect("one of the two");
/// assert!(matches!(&received.outcome, Outcome::Received(r) if r.stored == 5));
/// assert_eq!(&received.buffer.as_ref().expect("owned")[..5], b"hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Tagged<'a> {
    engine: &'a mut Engine,
    context: Working<'a>,
}

/// What an engine works with beside itself.
#[derive(Debug)]
struct Working<'a> {
    pub state: &'a mut State<Outlet>,
    pub done: &'a mut Completions,
}

impl<H: Threads> Bundle<H> {
    /// Makes an endpoint for tagged messages, which admits messages carrying `key`. It has no handlers, cannot be
    /// [released](Bundle::release), and its key and translation table are changed by none of the bundle's calls.
    ///
    /// # Errors
    /// As [`Bundle::endpoint`].
    pub fn tagged_endpoint(&mut self, key: Key, settings: Settings) -> Result<Endpoint, Error> {
        let endpoint = self.endpoint(key)?;
        self.make_tagged(endpoint, |endpoint| Engine::new(endpoint, key, settings))?;
        Ok(endpoint)
    }

    /// The same with a key that nobody else knows: [`Bundle::key`] tells it.
    ///
    /// # Errors
    /// As [`Bundle::endpoint`].
    pub fn tagged_endpoint_with_random_key(&mut self, settings: Settings) -> Result<Endpoint, Error> {
        self.tagged_endpoint(Key(random_u64()?), settings)
    }

    /// The calls of an endpoint for tagged messages.
    ///
    /// # Errors
    /// If it is none, or was freed.
    #[inline(always)]
    pub fn tagged(&mut self, endpoint: Endpoint) -> Result<Tagged<'_>, Error> {
        let (engine, context) = self.tagged_parts(endpoint)?;
        Ok(Tagged { engine, context })
    }

    /// The next completion of tagged messages, oldest first.
    #[inline]
    pub fn next_completion(&mut self) -> Option<Completion> {
        self.take_completion()
    }

    /// The same, but `take` sees it where it lies, which spares a copy of 150 bytes. None if there is no completion.
    #[inline(always)]
    pub fn next_completion_with<R>(&mut self, take: impl FnOnce(&mut Completion) -> R) -> Option<R> {
        self.take_completion_with(take)
    }
}

impl Tagged<'_> {
    /// Enters a peer's name and key at an index, in place of what was there; what is under way goes on. Makes no contact yet.
    ///
    /// # Errors
    /// If the index is beyond what a table may have, 1,048,575.
    pub fn map(&mut self, index: u32, name: Name, key: Key) -> Result<(), PostError> {
        self.engine.map(&mut self.context, index, name, key)
    }

    /// Enters a peer that has said its key itself by sending something.
    ///
    /// # Errors
    /// As [`Tagged::map`]; or if the peer is not known any more.
    pub fn map_peer(&mut self, index: u32, peer: Peer) -> Result<(), PostError> {
        self.engine.map_peer(index, peer.0)
    }

    /// Empties an index. What is under way there goes on; what that peer sends comes without a source.
    ///
    /// # Errors
    /// If nothing is mapped there.
    pub fn unmap(&mut self, index: u32) -> Result<(), PostError> {
        self.engine.unmap(index)
    }

    /// Why the peer at an index is lost. None if it is not, if something came from it since, or if nothing is mapped there.
    pub fn lost(&self, index: u32) -> Option<Reason> {
        self.engine.lost(index)
    }

    /// The name of a peer that sent something.
    pub fn name_of(&self, peer: Peer) -> Option<Name> {
        self.engine.name_of(peer.0)
    }

    /// Sends to the peer at index `to`. Ends as [`Outcome::Sent`] when the buffer can be used again.
    ///
    /// # Errors
    /// If it was not posted; the buffer comes back.
    #[inline(always)]
    pub fn try_send(
        &mut self,
        to: u32,
        label: Label,
        contents: impl Into<Source>,
        context: u64,
    ) -> Result<(), (PostError, Source)> {
        self.engine.send(&mut self.context, to, label, contents.into(), Ends::Sent(context))
    }

    /// The same, but ends as [`Outcome::Sent`] when the message is stored at the receiver's: in its buffer, or among those that wait.
    ///
    /// # Errors
    /// As [`Tagged::try_send`].
    pub fn try_send_stored(
        &mut self,
        to: u32,
        label: Label,
        contents: impl Into<Source>,
        context: u64,
    ) -> Result<(), (PostError, Source)> {
        self.engine.send(&mut self.context, to, label, contents.into(), Ends::Stored(context))
    }

    /// Sends bytes that are copied before it returns, and says nothing more unless the message comes back. What finds no room waits here,
    /// within [`Settings::injected_most`].
    ///
    /// # Errors
    /// If it was not posted.
    #[inline(always)]
    pub fn try_inject(&mut self, to: u32, label: Label, contents: &[u8]) -> Result<(), PostError> {
        self.engine.inject(&mut self.context, to, label, contents)
    }

    /// Receives the next message of a pattern.
    ///
    /// # Errors
    /// If it was not posted; the buffer comes back.
    #[inline(always)]
    pub fn try_receive(
        &mut self,
        pattern: Pattern,
        target: impl Into<Target>,
        context: u64,
    ) -> Result<(), (PostError, Target)> {
        self.engine.receive(&mut self.context, pattern, target.into(), context, None)
    }

    /// Receives messages of a pattern one behind the other into one buffer, with a completion each, until fewer than `least` bytes
    /// are left, or one message for each 64 bytes of it was taken. Messages begin at multiples of 8 bytes.
    ///
    /// # Errors
    /// If it was not posted; the buffer comes back.
    pub fn try_receive_many(
        &mut self,
        pattern: Pattern,
        target: impl Into<Target>,
        least: usize,
        context: u64,
    ) -> Result<(), (PostError, Target)> {
        self.engine.receive(&mut self.context, pattern, target.into(), context, Some(least))
    }

    /// The first message that waits and that a receive of this pattern would take.
    ///
    /// # Errors
    /// If no peer is mapped at the pattern's source.
    pub fn peek(&mut self, pattern: Pattern) -> Result<Option<Envelope>, PostError> {
        self.engine.peek(pattern)
    }

    /// The same, and takes it out for [`Tagged::try_receive_claimed`] or [`Tagged::discard`].
    ///
    /// # Errors
    /// As [`Tagged::peek`].
    pub fn claim(&mut self, pattern: Pattern) -> Result<Option<(Envelope, Claim)>, PostError> {
        self.engine.claim(pattern)
    }

    /// Receives a message that was claimed.
    ///
    /// # Errors
    /// If it was not posted; the claim and the buffer come back.
    pub fn try_receive_claimed(
        &mut self,
        claim: Claim,
        target: impl Into<Target>,
        context: u64,
    ) -> Result<(), (PostError, Claim, Target)> {
        self.engine.receive_claimed(&mut self.context, claim, target.into(), context)
    }

    /// Drops a message that was claimed.
    pub fn discard(&mut self, claim: Claim) {
        self.engine.discard(&mut self.context, &claim);
    }

    /// Cancels the oldest receive with this context that no message was matched with, or the oldest send that nothing was said of yet:
    /// it ends as [`Outcome::Cancelled`]. False if there is none; then it has ended, or will soon. Looks through what is posted.
    pub fn cancel(&mut self, context: u64) -> bool {
        self.engine.cancel(&mut self.context, context)
    }

    /// Messages that wait here unmatched, and the bytes of contents that they take.
    pub fn waiting(&self) -> (usize, usize) {
        self.engine.waiting()
    }
}
