//! Tagged messages: sends and receives that are matched by source and tag, as in MPI and libfabric.
//!
//! [`Bundle::tagged_endpoint`] makes an endpoint for them; [`Bundle::tagged`] returns its calls. Messages between a
//! pair of endpoints are matched in the order in which they were sent, receives in the order in which they were posted.
//! Small messages carry their contents. Larger ones are announced, and the matching receive fetches the contents.
//! Unmatched messages wait at the receiver, within bounds; `docs/tagged.md` lists the bounds and their effects.
//!
//! No call blocks, and none runs a handler. Each posted operation ends in one [`Completion`], whatever happens to its
//! peer. The bundle has one queue of completions, [`Bundle::next_completion`]; a completion ends a wait.

mod arrivals;
mod directory;
mod engine;
mod face;
mod peer;
mod queues;

pub use crate::buffers::{Source, Target};
pub use directory::Directory;
pub use queues::Tags;
pub use weft_shm::{Lent, LentMut};
pub use weft_wire::tagged::Label;

pub(crate) use face::Face;

use engine::Engine;

/// Completions that the program has not taken.
type Completions = queues::InPlace<Completion>;

use crate::bundle::{Bundle, Held, InHandler, SharedBundle, Threads};
use crate::node::{random_u64, Error};
use crate::paths::Outlet;
use peer::Ends;
use std::sync::Arc;
use weft_core::{Endpoint, State};
use weft_wire::{Certainty, Key, Name, Reason};

/// Bounds of an endpoint for tagged messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Messages up to this many bytes (at most 64 KiB) carry their contents. Larger ones are announced and fetched.
    pub eager_most: usize,
    /// Bytes of unmatched eager contents that may wait here, from all senders together. Above that, contents go back to
    /// their senders and are fetched later.
    pub unexpected_most: usize,
    /// Number of messages that may wait here unmatched, from all senders together. Above it, no sender gets credit beyond 8,192
    /// waiting messages of its own; below it, a sender gets such credit while a receive is posted that none of its messages
    /// matches.
    pub waiting_most: usize,
    /// Number of operations posted here plus completions of the bundle that were not taken. At this number further
    /// operations return *full*. With that many completions not taken, injections do too.
    pub operations_most: usize,
    /// Bytes of injected messages that may wait here for room. Above that, injections return *full*.
    pub injected_most: usize,
    /// Receives from a peer that has freed its endpoint stay posted until they are cancelled. Receives from a peer that dies without
    /// freeing it still fail. By default receives fail in both cases. For libraries whose programs cancel such receives themselves.
    pub receives_stay: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            eager_most: 16 << 10,
            unexpected_most: 64 << 20,
            waiting_most: 1 << 18,
            operations_most: 1 << 16,
            injected_most: 1 << 20,
            receives_stay: false,
        }
    }
}

/// Selects the messages that a receive accepts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pattern {
    /// Messages of the peer mapped at this index, or of any peer if `None`.
    pub source: Option<u32>,
    /// Messages whose tag fits, or messages without a tag if `None`.
    pub tags: Option<Tags>,
}

impl Pattern {
    /// Accepts messages with this tag, of any peer.
    pub fn tagged(tag: u64) -> Pattern {
        Pattern { source: None, tags: Some(Tags { tag, ignore: 0 }) }
    }

    /// Accepts messages with any tag, of any peer.
    pub fn any_tag() -> Pattern {
        Pattern { source: None, tags: Some(Tags { tag: 0, ignore: u64::MAX }) }
    }

    /// Accepts messages without a tag, of any peer.
    pub fn untagged() -> Pattern {
        Pattern::default()
    }

    /// Lets these bits of the tag differ.
    #[must_use]
    pub fn ignoring(mut self, bits: u64) -> Pattern {
        self.tags = self.tags.map(|tags| Tags { ignore: bits, ..tags });
        self
    }

    /// Accepts only messages of the peer mapped at this index.
    #[must_use]
    pub fn from(mut self, source: u32) -> Pattern {
        self.source = Some(source);
        self
    }
}

/// A known peer, mapped or not. [`Tagged::name_of`] returns its name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Peer(u32);

/// The description of a message, without its contents.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Envelope {
    /// The peer that sent it.
    pub peer: Peer,
    /// The index at which that peer is mapped, if it is.
    pub source: Option<u32>,
    /// Its tag and data.
    pub label: Label,
    /// Its length.
    pub len: usize,
}

/// A message that was received.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Received {
    /// The description of the message.
    pub message: Envelope,
    /// Offset of the message in the buffer: 0, except in a receive of many messages.
    pub at: usize,
    /// Number of its bytes in the buffer. Fewer than its length if the buffer was too short; the rest is lost.
    pub stored: usize,
}

impl Received {
    /// Whether the buffer was too short for the message.
    pub fn is_truncated(&self) -> bool {
        self.stored < self.message.len
    }
}

/// How an operation ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The message was sent, or was stored at the receiver if that was asked for.
    Sent,
    /// A message was received.
    Received(Received),
    /// The program cancelled the operation or freed the endpoint.
    Cancelled,
    /// The operation failed: the peer is gone or refuses.
    Failed {
        /// Why.
        reason: Reason,
        /// Whether it is certain that the message was not stored.
        certainty: Certainty,
    },
    /// A message came back that was injected or whose send had ended as sent. The completion's context is 0, because it
    /// belongs to no operation.
    CameBack(Box<CameBack>),
}

/// A message that came back, with its contents.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CameBack {
    /// The index of the peer that it was sent to, if that is still mapped.
    pub to: Option<u32>,
    /// Its tag and data.
    pub label: Label,
    /// Its contents, unchanged.
    pub contents: Vec<u8>,
    /// Why.
    pub reason: Reason,
    /// Whether it is certain that it was not stored.
    pub certainty: Certainty,
}

/// The end of an operation, or a message that a receive of many messages took.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The endpoint at which the operation was posted.
    pub endpoint: Endpoint,
    /// The context that the program gave with the operation.
    pub context: u64,
    /// How the operation ended.
    pub outcome: Outcome,
    /// No more completions follow for this operation. The program may use the memory that it lent again.
    pub is_last: bool,
    /// The buffer, with the last completion, if weft owned it.
    pub buffer: Option<Vec<u8>>,
}

/// A message taken out of the queue by [`Tagged::claim`], to be received or discarded. If the claim is dropped, the
/// message waits until the endpoint is freed.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "a claimed message waits until it is received or discarded"]
pub struct Claim {
    endpoint: Endpoint,
    message: u32,
    age: u64,
}

/// Why an operation was not posted.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// Too many operations are posted, too many completions were not taken, or an injected message finds no room.
    #[error("full: take completions and poll, then post it again")]
    Full,
    /// No peer is mapped at that index.
    #[error("no peer is mapped at index {0}; map its name there first")]
    NotMapped(u32),
    /// An injected message is larger than the space for messages that wait.
    #[error("too large to be injected: send it from a buffer that stays until the completion")]
    TooLarge,
    /// The claimed message belongs to another endpoint.
    #[error("the claimed message belongs to another endpoint; receive it there")]
    NoMessage,
}

weft_wire::debug_says_display!(PostError);

/// The calls of an endpoint for tagged messages. None of them blocks.
///
/// ```
/// use weft::tagged::{Label, Outcome, Pattern, Settings};
/// use weft::{Bundle, Key, Node};
///
/// let mut bundle = Bundle::new(&Node::new()?)?;
/// let here = bundle.tagged_endpoint(Key(1), Settings::default())?;
/// let there = bundle.tagged_endpoint(Key(2), Settings::default())?;
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

/// What an engine uses besides its own state.
#[derive(Debug)]
struct Working<'a> {
    pub state: &'a mut State<Outlet>,
    pub done: &'a mut Completions,
}

/// Completions that were not taken: see [`Bundle::ended`].
#[derive(Debug)]
pub struct Ended<'a>(&'a mut Completions);

impl Ended<'_> {
    /// As [`Bundle::next_completion_with`].
    #[inline(always)]
    pub fn next_with<R>(&mut self, take: impl FnOnce(&mut Completion) -> R) -> Option<R> {
        self.0.pop_with(take)
    }
}

impl<H: Threads> Bundle<H> {
    /// Makes an endpoint for tagged messages that accepts messages which carry `key`. It has no handlers and cannot be
    /// [released](Bundle::release). The bundle's calls cannot change its key or translation table.
    ///
    /// # Errors
    /// As [`Bundle::endpoint`].
    pub fn tagged_endpoint(&mut self, key: Key, settings: Settings) -> Result<Endpoint, Error> {
        let endpoint = self.endpoint(key)?;
        self.make_tagged(endpoint, |endpoint| Engine::new(endpoint, key, settings))?;
        Ok(endpoint)
    }

    /// As [`Bundle::tagged_endpoint`], with a random key. [`Bundle::key`] returns the key.
    ///
    /// # Errors
    /// As [`Bundle::endpoint`].
    pub fn tagged_endpoint_with_random_key(&mut self, settings: Settings) -> Result<Endpoint, Error> {
        self.tagged_endpoint(Key(random_u64()?), settings)
    }

    /// Returns the calls of an endpoint for tagged messages.
    ///
    /// # Errors
    /// If the endpoint is not for tagged messages or was freed.
    #[inline(always)]
    pub fn tagged(&mut self, endpoint: Endpoint) -> Result<Tagged<'_>, Error> {
        let (engine, context) = self.tagged_parts(endpoint)?;
        Ok(Tagged { engine, context })
    }

    /// Takes the oldest completion of tagged messages. Does not block.
    #[inline]
    pub fn next_completion(&mut self) -> Option<Completion> {
        self.completions().pop()
    }

    /// Takes the oldest completion in place: `take` gets a reference, which saves a copy of 150 bytes. `None` if there
    /// is no completion.
    #[inline(always)]
    pub fn next_completion_with<R>(&mut self, take: impl FnOnce(&mut Completion) -> R) -> Option<R> {
        self.ended().next_with(take)
    }

    /// Returns the completions of tagged messages that were not taken, to take several one after the other.
    #[inline(always)]
    pub fn ended(&mut self) -> Ended<'_> {
        Ended(self.completions())
    }
}

impl SharedBundle {
    /// As [`Bundle::tagged_endpoint`].
    ///
    /// # Errors
    /// As [`Bundle::endpoint`], and [`InHandler`].
    pub fn tagged_endpoint(&self, key: Key, settings: Settings) -> Result<Endpoint, Error> {
        self.with(|bundle| bundle.tagged_endpoint(key, settings))?
    }

    /// As [`Bundle::tagged_endpoint_with_random_key`].
    ///
    /// # Errors
    /// As [`Bundle::endpoint`], and [`InHandler`].
    pub fn tagged_endpoint_with_random_key(&self, settings: Settings) -> Result<Endpoint, Error> {
        self.with(|bundle| bundle.tagged_endpoint_with_random_key(settings))?
    }

    /// Makes calls of an endpoint for tagged messages, under the bundle's lock.
    ///
    /// # Errors
    /// If the endpoint is not for tagged messages or was freed, and [`InHandler`].
    pub fn with_tagged<R>(&self, endpoint: Endpoint, calls: impl FnOnce(&mut Tagged<'_>) -> R) -> Result<R, Error> {
        self.with(|bundle| bundle.tagged(endpoint).map(|mut tagged| calls(&mut tagged)))?
    }

    /// As [`Bundle::next_completion`]. Each completion goes to one thread.
    pub fn next_completion(&self) -> Result<Option<Completion>, InHandler> {
        self.with(|bundle| bundle.next_completion())
    }

    /// As [`Bundle::next_completion_with`]. `take` runs under the bundle's lock.
    pub fn next_completion_with<R>(&self, take: impl FnOnce(&mut Completion) -> R) -> Result<Option<R>, InHandler> {
        self.with(|bundle| bundle.next_completion_with(take))
    }
}

impl Held<'_> {
    /// As [`Bundle::tagged`].
    ///
    /// # Errors
    /// If the endpoint is not for tagged messages or was freed.
    #[inline(always)]
    pub fn tagged(&mut self, endpoint: Endpoint) -> Result<Tagged<'_>, Error> {
        self.bundle().tagged(endpoint)
    }

    /// As [`Bundle::ended`].
    #[inline(always)]
    pub fn ended(&mut self) -> Ended<'_> {
        self.bundle().ended()
    }
}

impl Tagged<'_> {
    /// Enters a peer's name and key at an index and replaces the previous entry. Operations under way with the previous
    /// peer continue. Sends nothing yet.
    ///
    /// # Errors
    /// If the index is above the largest index of a table, 1,048,575.
    pub fn map(&mut self, index: u32, name: Name, key: Key) -> Result<(), PostError> {
        self.engine.map(&mut self.context, index, name, key)
    }

    /// Sets a directory for peers that are not mapped. The endpoint looks a peer up when the program uses its index to send,
    /// receive or [greet](Tagged::greet), and when the peer sends first. Replaces an earlier directory.
    pub fn set_directory(&mut self, directory: Arc<dyn Directory>) {
        self.engine.set_directory(directory);
    }

    /// As [`Tagged::map`], but only if the peer has already sent something; otherwise does nothing and returns false. For peers
    /// that are in the endpoint's [directory](Tagged::set_directory).
    pub fn map_if_known(&mut self, index: u32, name: Name, key: Key) -> bool {
        self.engine.knows(&name) && self.map(index, name, key).is_ok()
    }

    /// Enters a peer that has sent something, which told us its key.
    ///
    /// # Errors
    /// As [`Tagged::map`]; and if the peer is no longer known.
    pub fn map_peer(&mut self, index: u32, peer: Peer) -> Result<(), PostError> {
        self.engine.map_peer(index, peer.0)
    }

    /// Empties an index. Operations under way continue. Messages that this peer sends from now on have no source index.
    ///
    /// # Errors
    /// If nothing is mapped there.
    pub fn unmap(&mut self, index: u32) -> Result<(), PostError> {
        self.engine.unmap(index)
    }

    /// Returns why the peer at an index was lost. `None` if it was not lost, if it has sent something since, or if
    /// nothing is mapped there.
    pub fn lost(&self, index: u32) -> Option<Reason> {
        self.engine.lost(index)
    }

    /// Returns the name of a peer that has sent something.
    pub fn name_of(&self, peer: Peer) -> Option<Name> {
        self.engine.name_of(peer.0)
    }

    /// Sends to the peer at index `to`. Ends as [`Outcome::Sent`] when the buffer can be used again.
    ///
    /// # Errors
    /// If the send was not posted; the buffer comes back with the error.
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

    /// As [`Tagged::try_send`], but ends as [`Outcome::Sent`] when the message is stored at the receiver: in its
    /// buffer, or in its queue of unmatched messages.
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

    /// Sends bytes that are copied before the call returns. There is no completion unless the message comes back. A
    /// message that finds no room waits here, within [`Settings::injected_most`].
    ///
    /// # Errors
    /// If the message was not posted.
    #[inline(always)]
    pub fn try_inject(&mut self, to: u32, label: Label, contents: &[u8]) -> Result<(), PostError> {
        self.engine.inject(&mut self.context, to, label, contents)
    }

    /// As [`Tagged::try_inject`], but only if the message can go now: there is a session with the peer, and room. Otherwise does
    /// nothing and returns false.
    ///
    /// # Errors
    /// If nothing is mapped there.
    #[inline(always)]
    pub fn inject_now(&mut self, to: u32, label: Label, contents: &[u8]) -> Result<bool, PostError> {
        self.engine.inject_now(&mut self.context, to, label, contents)
    }

    /// Returns whether there is a session with the peer at index `to`. The first message to a peer waits in this process until there is.
    #[inline]
    pub fn has_session(&self, to: u32) -> Result<bool, PostError> {
        self.engine.has_session(to)
    }

    /// Starts setting up a session with the peer at index `to`, if there is none; polls continue it. Returns whether there is one
    /// now. Does not block.
    ///
    /// # Errors
    /// If nothing is mapped there.
    pub fn greet(&mut self, to: u32) -> Result<bool, PostError> {
        self.engine.greet_at(&mut self.context, to)
    }

    /// Returns whether the peer at an index has freed its endpoint, and receives from it [stay](Settings::receives_stay).
    pub fn has_left(&self, index: u32) -> bool {
        self.engine.has_left(index)
    }

    /// Returns whether injected messages to any peer wait in this process: see [`Tagged::unsent`].
    #[inline]
    pub fn keeps_injected(&self) -> bool {
        self.engine.keeps_injected()
    }

    /// Returns the number of messages to the peer at index `to` that count as sent but still wait in this process. Injected
    /// messages wait for the peer's answer to our first message, for room, or for credit. Polls send them, and so does a bundle
    /// that ends.
    pub fn unsent(&self, to: u32) -> Result<usize, PostError> {
        self.engine.unsent_to(to)
    }

    /// Receives the next message that fits a pattern.
    ///
    /// # Errors
    /// If the receive was not posted; the buffer comes back with the error.
    #[inline(always)]
    pub fn try_receive(
        &mut self,
        pattern: Pattern,
        target: impl Into<Target>,
        context: u64,
    ) -> Result<(), (PostError, Target)> {
        self.engine.receive(&mut self.context, pattern, target.into(), context, None)
    }

    /// Receives messages that fit a pattern into one buffer, one after the other, with a completion each. The receive
    /// ends when fewer than `least` bytes are left, or when it has taken one message for each 64 bytes of the buffer.
    /// Messages begin at multiples of 8 bytes.
    ///
    /// # Errors
    /// If the receive was not posted; the buffer comes back with the error.
    pub fn try_receive_many(
        &mut self,
        pattern: Pattern,
        target: impl Into<Target>,
        least: usize,
        context: u64,
    ) -> Result<(), (PostError, Target)> {
        self.engine.receive(&mut self.context, pattern, target.into(), context, Some(least))
    }

    /// Returns the first waiting message that a receive with this pattern would take.
    ///
    /// # Errors
    /// If no peer is mapped at the pattern's source.
    pub fn peek(&mut self, pattern: Pattern) -> Result<Option<Envelope>, PostError> {
        self.engine.peek(pattern)
    }

    /// As [`Tagged::peek`], but takes the message out of the queue, for [`Tagged::try_receive_claimed`] or
    /// [`Tagged::discard`].
    ///
    /// # Errors
    /// As [`Tagged::peek`].
    pub fn claim(&mut self, pattern: Pattern) -> Result<Option<(Envelope, Claim)>, PostError> {
        self.engine.claim(pattern)
    }

    /// Receives a claimed message.
    ///
    /// # Errors
    /// If the receive was not posted; the claim and the buffer come back with the error.
    pub fn try_receive_claimed(
        &mut self,
        claim: Claim,
        target: impl Into<Target>,
        context: u64,
    ) -> Result<(), (PostError, Claim, Target)> {
        self.engine.receive_claimed(&mut self.context, claim, target.into(), context)
    }

    /// Drops a claimed message.
    pub fn discard(&mut self, claim: Claim) {
        self.engine.discard(&mut self.context, &claim);
    }

    /// Cancels the oldest receive with this context that has matched no message, or the oldest send with it that the peer has not
    /// heard of. The operation ends as [`Outcome::Cancelled`]. Returns false if there is none: the operation has ended or soon
    /// will. Costs a search through the posted operations.
    pub fn cancel(&mut self, context: u64) -> bool {
        self.engine.cancel(&mut self.context, context)
    }

    /// Cancels all messages to the peer at index `to` that still wait here for its session or for room. Sends end as
    /// [`Outcome::Cancelled`]; injected messages, which have no context, are dropped without a completion. Returns their number.
    /// Messages already under way are not affected.
    ///
    /// # Errors
    /// If nothing is mapped there.
    pub fn cancel_unsent(&mut self, to: u32) -> Result<usize, PostError> {
        self.engine.cancel_unsent(&mut self.context, to)
    }

    /// Returns the number of unmatched messages that wait here, and the bytes of their contents.
    pub fn waiting(&self) -> (usize, usize) {
        self.engine.waiting()
    }
}
