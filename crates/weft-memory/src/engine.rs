//! The state of an endpoint for remote memory, and what it does with each message.

use crate::direct::Mapped;
use crate::flush::INLINE_MOST;
use crate::initiator::Initiator;
use crate::lists::{Buffers, LIST_MOST};
use crate::owner::Owner;
use crate::platform::Platform;
use crate::table::{RegionId, Table};
use std::collections::VecDeque;
use std::time::Duration;
use weft_core::bulk::Failure;
use weft_core::{Client, Delivery, Endpoint, Event, FlowId, MessageKind, Returned, State};
use weft_wire::memory::{Mark, ShortWrite, Word};
use weft_wire::path::Tx;
use weft_wire::{Certainty, Reason};

/// Bounds of an endpoint for remote memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Regions that are open at a time.
    pub regions_most: usize,
    /// Cookies that are valid at a time.
    pub cookies_most: usize,
    /// Operations posted here plus completions not yet taken. At this number further operations return *full*.
    pub operations_most: usize,
    /// Notices of peers' writes not yet taken. At this number further writes with a notice go back with *queue full*.
    pub notices_most: usize,
    /// Whether neighbours may map the regions here that are not lent, and whether their regions are mapped here. If so, the initiator
    /// carries out operations without a notice by its own loads and stores.
    pub is_direct: bool,
    /// Bytes in the bundle that wait for peers to read them, answers among them. Above this number, a peer that leaves some unread gets its
    /// requests back with *queue full*.
    pub unread_bytes_most: usize,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            regions_most: 1 << 16,
            cookies_most: 1 << 16,
            operations_most: 1 << 16,
            notices_most: 1 << 16,
            is_direct: true,
            unread_bytes_most: 256 << 20,
        }
    }
}

/// How an operation ended, or how far it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// All of a write has left, and its source is the program's again. A second completion tells the end of the operation. Only for writes
    /// that [ask for it](crate::Write::tells_when_free).
    Free,
    /// The operation was carried out: what was written is in the region, what was read or replaced is in the target.
    Done,
    /// The operation failed.
    Failed {
        /// Why.
        reason: Reason,
        /// Whether it is certain that nothing was changed.
        certainty: Certainty,
    },
}

#[doc(hidden)] // else the reference of `weft` lists it, whose users do not have the type
impl From<Result<(), Failure>> for Outcome {
    fn from(end: Result<(), Failure>) -> Outcome {
        match end {
            Ok(()) => Outcome::Done,
            Err(Failure { reason, certainty }) => Outcome::Failed { reason, certainty },
        }
    }
}

/// The end of an operation, or the news that its source is free.
pub struct Completion<P: Platform> {
    /// What the program gave with the operation.
    pub context: u64,
    /// How it ended.
    pub outcome: Outcome,
    /// The source, unless it was given back before.
    pub source: Option<P::Source>,
    /// What was received into.
    pub target: Option<P::Target>,
    /// The buffers of an operation on lists, if they were not given back before.
    pub buffers: Option<Box<Buffers<P>>>,
    /// What was mapped: see [`Engine::try_attach`].
    pub mapped: Option<Box<Mapped<P::Reach>>>,
}

impl<P: Platform> std::fmt::Debug for Completion<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Completion")
            .field("context", &self.context)
            .field("outcome", &self.outcome)
            .finish_non_exhaustive()
    }
}

/// A peer's announcement that it has written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Notice {
    /// The region.
    pub region: RegionId,
    /// Where the bytes begin.
    pub at: u64,
    /// How many there are.
    pub len: u64,
    /// The value that the peer sent.
    pub value: u64,
}

/// What an endpoint has counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Peers' writes that were carried out.
    pub writes: u64,
    /// Reads of peers, in pieces.
    pub reads: u64,
    /// Atomic operations of peers, in words.
    pub atomics: u64,
    /// Bytes that peers have written.
    pub bytes_written: u64,
    /// Writes among them whose bytes the owner read in the peer's memory.
    pub pulls: u64,
    /// Bytes read that way and stored, including those of writes that did not complete.
    pub bytes_pulled: u64,
    /// Bytes that peers have read.
    pub bytes_read: u64,
    /// Operations on peers' regions that were done here, by loads and stores.
    pub direct: u64,
    /// Messages that were refused.
    pub refused: u64,
    /// Messages among them that named something revoked.
    pub refused_revoked: u64,
}

/// An endpoint for remote memory: the owner of its regions, and the initiator of operations on regions of peers.
///
/// It is the [`Client`] of its endpoint. The program opens regions and posts operations by its calls, none of which blocks.
#[derive(Debug)]
pub struct Engine<P: Platform> {
    owner: Owner<P::Space>,
    initiator: Initiator<P>,
    done: VecDeque<Completion<P>>,
    is_closing: bool,
}

/// Why an operation was not posted.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// Too many operations are posted, or too many completions were not taken.
    #[error("full: poll and take completions, then post it again")]
    Full,
    /// Nothing is mapped at that index of the endpoint's translation table.
    #[error("nothing is mapped at index {0} of the endpoint's translation table; map a name there first")]
    NotMapped(u32),
    /// There is no such operation on words of this type, or the operands are not whole words, or their number is wrong.
    #[error("no such atomic operation: it does not exist for such words, or operands and room are not whole words of the same number")]
    NoSuchAtomic,
    /// An inline write has too many bytes.
    #[error("too long: an inline write has at most {INLINE_MOST} bytes; give weft the buffer")]
    TooLong,
    /// There is no such operation on lists.
    #[error("no such list: a list has at most {LIST_MOST} parts and {LIST_MOST} buffers, and both have the same number of bytes")]
    NoSuchList,
    /// The endpoint was freed.
    #[error("the endpoint was freed")]
    NoEndpoint,
}

weft_wire::debug_says_display!(PostError);

impl<P: Platform> Engine<P> {
    /// An engine for an endpoint, without regions.
    #[must_use]
    pub fn new(endpoint: Endpoint, settings: Settings) -> Engine<P> {
        Engine {
            owner: Owner::new(settings),
            initiator: Initiator::new(endpoint, settings),
            done: VecDeque::new(),
            is_closing: false,
        }
    }

    /// Claims the endpoint's events and completions. Call it once, before any other call.
    pub fn attach<T: Tx>(&self, state: &mut State<T>) {
        // Cannot fail: the endpoint is there.
        let _ = state.claim_events(self.initiator.endpoint);
        let _ = state.claim_completions(self.initiator.endpoint);
    }

    /// The regions and cookies.
    pub fn table(&self) -> &Table<P::Space> {
        &self.owner.table
    }

    /// The same, to open and revoke. When [`Table::revoke`] returns, nothing is written to the region any more.
    pub fn table_mut(&mut self) -> &mut Table<P::Space> {
        &mut self.owner.table
    }

    /// Whether the caller must read the clock and call [`Engine::expire`] before it delivers this message. Cheap if no region or cookie
    /// ends in time.
    #[inline]
    pub fn needs_time(&self, message: &Delivery<'_>) -> bool {
        self.owner.table.has_ends() && self.owner.needs_time(message)
    }

    /// The same before [`Client::go_on`].
    pub fn needs_time_to_go_on(&self) -> bool {
        self.owner.pulls_need_time() && self.next_end().is_some()
    }

    /// When the next region or cookie ends, as [`Table::set_end`] was told.
    #[inline]
    pub fn next_end(&self) -> Option<Duration> {
        self.owner.table.next_end()
    }

    /// Revokes regions and cookies that have ended by now. Returns how many.
    pub fn expire(&mut self, now: Duration) -> usize {
        self.owner.table.expire(now)
    }

    /// Takes the oldest completion.
    #[inline]
    pub fn next_completion(&mut self) -> Option<Completion<P>> {
        self.done.pop_front()
    }

    /// Takes the oldest notice.
    pub fn next_notice(&mut self) -> Option<Notice> {
        self.owner.notices.pop_front()
    }

    /// The endpoint.
    pub fn endpoint(&self) -> Endpoint {
        self.initiator.endpoint
    }

    /// Requests of the engine's own to map a region that have not ended.
    pub fn attaching(&self) -> usize {
        self.initiator.attaching
    }

    /// The index in the table of the region that a message names, if it names one.
    pub fn region_of(&self, message: &Delivery<'_>) -> Option<u32> {
        match Word::unpack(message.op(), message.args)? {
            Word::Write { place, .. }
            | Word::Read { place, .. }
            | Word::Atomic { place, .. }
            | Word::Pull { place, .. } => self.owner.table.place_of(place.by),
            Word::Data | Word::Bytes(_) | Word::Pulled(..) | Word::Attach { .. } => None,
        }
    }

    /// What was counted.
    pub fn counters(&self) -> Counters {
        Counters { direct: self.initiator.direct, ..self.owner.counters }
    }

    /// Operations to a destination that have not ended.
    pub fn pending(&self, to: u32) -> usize {
        self.initiator.pending(to)
    }

    /// Operations that have not ended.
    pub fn pending_in_all(&self) -> usize {
        self.initiator.pending_in_all()
    }

    /// Completions that were not taken.
    pub fn completions(&self) -> usize {
        self.done.len()
    }

    /// Notices that were not taken.
    pub fn notices(&self) -> usize {
        self.owner.notices.len()
    }

    /// What the calls that post operations need.
    pub(crate) fn parts(&mut self) -> (&mut Initiator<P>, &mut VecDeque<Completion<P>>) {
        (&mut self.initiator, &mut self.done)
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.is_closing
    }

    fn revoke_all(&mut self) {
        let open: Vec<RegionId> = self.owner.table.regions().collect();
        for region in open {
            drop(self.owner.table.revoke(region));
        }
    }

    /// Ends a wait if something came since `before`.
    fn note<T: Tx>(&self, state: &mut State<T>, before: (usize, usize)) {
        if self.lengths() != before {
            state.note();
        }
    }

    /// Takes a short write without a notice, or the answer to one. False, with nothing changed, if the message is another one or needs more
    /// work: then call [`Client::deliver`].
    #[inline(always)]
    pub fn deliver_short<T: Tx>(&mut self, state: &mut State<T>, message: &Delivery<'_>) -> bool {
        if self.is_closing {
            return false;
        }
        match message.kind() {
            // A region or cookie that ends in time needs the time.
            MessageKind::Request if self.owner.table.has_ends() => false,
            MessageKind::Request => {
                let Some(write) = ShortWrite::unpack(message.op(), message.args) else { return false };
                self.owner.write_short(state, message, write)
            }
            MessageKind::Reply => {
                let Some(mark) = Mark::unpack(message.op(), message.args) else { return false };
                let has_ended = self.initiator.end_short(state, &mut self.done, message, mark);
                if has_ended {
                    state.note();
                    if state.idle_polls() > 0 {
                        state.end_visit();
                    }
                }
                has_ended
            }
            MessageKind::OneWay => false,
        }
    }

    /// Takes any message.
    #[inline(never)]
    fn deliver_any<T: Tx>(&mut self, state: &mut State<T>, message: &Delivery<'_>) -> Result<(), Reason> {
        if self.is_closing {
            return Err(Reason::NoSuchEndpoint);
        }
        let before = self.lengths();
        let taken = match (message.kind(), Word::unpack(message.op(), message.args)) {
            (MessageKind::Reply, Some(Word::Bytes(mark))) => {
                self.initiator.take_bytes(state, &mut self.done, message, mark)
            }
            (MessageKind::Reply, Some(Word::Pulled(mark, end))) => {
                self.initiator.pull_ended(state, &mut self.done, message.flow(), (mark, end))
            }
            (MessageKind::Reply, _) | (_, None | Some(Word::Bytes(_) | Word::Pulled(..))) => Err(Reason::NoHandler),
            (_, Some(word)) => self.owner.execute(state, message, word),
        };
        if taken.is_err() && message.kind() == MessageKind::Reply {
            self.initiator.reply_fits_nothing(state, &mut self.done, message.flow());
        }
        self.note(state, before);
        if state.idle_polls() > 0 && self.lengths() != before {
            // The program waits for this, so end the visit and let it see the result first.
            state.end_visit();
        }
        taken
    }

    fn lengths(&self) -> (usize, usize) {
        let told = self.owner.notices.len().wrapping_add(self.owner.tallied);
        (self.done.len().wrapping_add(self.initiator.calls.come), told)
    }
}

#[doc(hidden)] // else the reference of `weft` lists it, whose users do not have the type
impl<T: Tx, P: Platform> Client<T> for Engine<P> {
    fn deliver(&mut self, state: &mut State<T>, message: &Delivery<'_>) -> Result<(), Reason> {
        match self.deliver_short(state, message) {
            true => Ok(()),
            false => self.deliver_any(state, message),
        }
    }

    fn returned(&mut self, state: &mut State<T>, message: Returned) -> Option<Returned> {
        let before = self.lengths();
        self.initiator.came_back(state, &mut self.done, &message);
        self.note(state, before);
        None
    }

    fn on_event(&mut self, state: &mut State<T>, event: &Event) {
        let before = self.lengths();
        match *event {
            Event::CanSend { destination, .. } => self.initiator.can_send(state, &mut self.done, destination),
            Event::PeerLost { destination, reason, .. } => {
                self.initiator.peer_lost(state, &mut self.done, destination, reason);
            }
            Event::Completed(_) | Event::Returned(_) | Event::ReplyRefused { .. } => {}
        }
        self.note(state, before);
    }

    fn completed(&mut self, state: &mut State<T>, _: Endpoint, completion: u64) {
        let before = self.lengths();
        self.initiator.stored(state, &mut self.done, completion);
        self.note(state, before);
    }

    fn flow_closed(&mut self, _: &mut State<T>, _: Endpoint, flow: FlowId) {
        self.owner.flow_closed(flow);
    }

    fn go_on(&mut self, state: &mut State<T>) -> u32 {
        let before = self.lengths();
        let work = self.initiator.go_on(state, &mut self.done) + self.owner.go_on(state);
        self.note(state, before);
        work
    }

    /// Revokes all regions, which blocks as [`Table::revoke`] does. Posted operations that have not left end with the endpoint.
    fn close(&mut self, state: &mut State<T>, _: Endpoint) {
        self.is_closing = true;
        self.owner.close(state);
        self.revoke_all();
        self.initiator.close(state);
    }
}

impl<P: Platform> Drop for Engine<P> {
    /// Closes all mappings.
    fn drop(&mut self) {
        self.revoke_all();
        self.initiator.close_neighbours();
    }
}
