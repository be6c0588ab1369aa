//! Direct operations: loads and stores of this process on mapped regions of neighbours. The owner runs no code for them.
//!
//! An operation is direct if it has no notice, no earlier operation to its destination is under way, and the part that its credential names
//! is mapped. All others go by message, so that the owner can refuse them. Ranges and rights are checked here too, but only against
//! mistakes: neighbours can write each other's memory anyway.

use crate::engine::{Completion, Engine, Outcome, PostError};
use crate::flush::Ticket;
use crate::initiator::{Initiator, Kind, Posting, Special, Write};
use crate::platform::{Closer, Missed, Platform, Reach, Source, Target};
use crate::table::Rights;
use crate::Change;
use std::collections::VecDeque;
use std::num::NonZeroU32;
use weft_core::bulk::Failure;
use weft_core::{FlowId, State};
use weft_wire::memory::{Credential, Place};
use weft_wire::path::Tx;
use weft_wire::{Certainty, Reason};

/// Bytes of one access. A revoking owner waits at most 100 ms for an access to end.
const ACCESS_MOST: usize = 1 << 20;

/// Mappings that the engine makes for itself, at most, for each destination.
const MAPPED_MOST: usize = 64;

/// After so many operations under one credential its memory is mapped. A long operation counts as so many at once.
const WORTH: u32 = 4;
const LONG: usize = 64 << 10;

/// Credentials whose operations are counted, for each destination.
const COUNTED: usize = 8;

/// What a neighbour may map: the answer to [`Word::Attach`](weft_wire::memory::Word::Attach).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mappable {
    /// What its credential allows.
    pub rights: Rights,
    /// Where its offsets begin.
    pub base: u64,
    /// What [`Reach::open`] needs.
    pub offer: Vec<u8>,
}

impl Mappable {
    /// Appends it to the payload of an answer.
    pub fn write_to(&self, payload: &mut Vec<u8>) {
        let Rights { read, write, atomic } = self.rights;
        payload.push(u8::from(read) | u8::from(write) << 1 | u8::from(atomic) << 2);
        payload.extend_from_slice(&self.base.to_le_bytes());
        payload.extend_from_slice(&self.offer);
    }

    /// Reads the payload of an answer. `None` if it says that nothing can be mapped.
    #[must_use]
    pub fn from_bytes(payload: &[u8]) -> Option<Mappable> {
        let (&[rights], rest) = payload.split_first_chunk()?;
        let (base, offer) = rest.split_first_chunk()?;
        let rights = Rights { read: rights & 1 != 0, write: rights & 2 != 0, atomic: rights & 4 != 0 };
        Some(Mappable { rights, base: u64::from_le_bytes(*base), offer: offer.to_vec() })
    }
}

/// A neighbour's memory that is mapped here.
#[derive(Debug)]
pub struct Mapped<R> {
    /// What its credential allows.
    pub rights: Rights,
    /// Where offsets under its credential begin: 0 but for handles.
    pub base: u64,
    /// The memory.
    pub reach: R,
}

impl<R> Mapped<R> {
    /// Maps the memory that a process's answer describes.
    pub(crate) fn open<T>(neighbour: Option<NonZeroU32>, payload: &[u8]) -> Option<Box<Mapped<R>>>
    where
        R: Reach<T>,
    {
        let Mappable { rights, base, offer } = Mappable::from_bytes(payload)?;
        Some(Box::new(Mapped { rights, base, reach: R::open(neighbour?, &offer)? }))
    }
}

/// What is mapped of a destination's regions.
#[derive(Debug)]
pub(crate) struct Neighbour<R> {
    mapped: Vec<(FlowId, Credential, Box<Mapped<R>>)>,
    /// Operations that were not direct, by credential, oldest first.
    counted: VecDeque<(Credential, u32)>,
    /// The region key of the last operation, if its region is known not to be mapped here now or soon.
    executed: Option<u64>,
    /// Attachments that have not ended.
    pub attaching: usize,
    /// Closers of the mappings that the program holds.
    closers: Vec<(FlowId, Closer)>,
}

impl<R> Default for Neighbour<R> {
    fn default() -> Self {
        Neighbour { mapped: Vec::new(), counted: VecDeque::new(), executed: None, attaching: 0, closers: Vec::new() }
    }
}

impl<R> Neighbour<R> {
    /// Closes every mapping.
    pub fn close(&mut self) {
        self.mapped.clear();
        self.counted.clear();
        self.executed = None;
        self.closers.drain(..).for_each(|(_, closer)| closer.0.close());
    }

    /// The destination's index now leads by this flow: closes what is mapped of any other peer.
    pub fn close_others(&mut self, flow: Option<FlowId>) {
        let before = self.mapped.len();
        self.mapped.retain(|(of, ..)| Some(*of) == flow);
        if self.mapped.len() < before {
            self.counted.clear();
            self.executed = None;
        }
        let (kept, others) = self.closers.drain(..).partition(|(of, _)| Some(*of) == flow);
        self.closers = kept;
        others.into_iter().for_each(|(_, closer): (FlowId, Closer)| closer.0.close());
    }

    /// Remembers a mapping that the program now holds.
    fn lend(&mut self, flow: FlowId, closer: Closer) {
        self.closers.retain(|(_, closer)| !closer.0.is_done());
        self.closers.push((flow, closer));
    }

    /// Drops mappings that were withdrawn or belong to another peer. Their regions may be mapped again.
    fn forget_closed<T>(&mut self, flow: FlowId)
    where
        R: Reach<T>,
    {
        let before = self.mapped.len();
        self.mapped.retain(|(of, _, mapped)| *of == flow && mapped.reach.is_open());
        if self.mapped.len() < before {
            self.counted.clear();
            self.executed = None;
        }
    }

    /// What is mapped for a credential.
    #[inline(always)]
    fn find(&self, by: Credential, flow: FlowId) -> Option<usize> {
        self.mapped.iter().position(|(of, credential, _)| *of == flow && *credential == by)
    }

    /// Whether operations by this key are known to go by message, for the owner to execute.
    #[inline(always)]
    pub fn is_executed(&self, key: u64) -> bool {
        self.executed == Some(key)
    }

    /// Counts an operation that was not direct. True, once, when its credential has been used often enough to be mapped.
    fn count(&mut self, by: Credential, len: usize) -> bool {
        let weight = if len >= LONG { WORTH } else { 1 };
        let at = self.counted.iter().position(|(counted, _)| *counted == by);
        let (_, times) = match at.and_then(|at| self.counted.get_mut(at)) {
            Some(counted) => counted,
            None => {
                self.counted.truncate(COUNTED - 1);
                self.counted.push_front((by, 0));
                match self.counted.front_mut() {
                    Some(counted) => counted,
                    None => return false,
                }
            }
        };
        let before = *times;
        *times = before.saturating_add(weight);
        if let (Credential::Key(key), WORTH.., 0) = (by, before, self.attaching) {
            // Already requested, or impossible.
            self.executed = Some(key);
        }
        before < WORTH && *times >= WORTH && self.mapped.len() < MAPPED_MOST
    }
}

/// How a direct operation ended.
enum Direct {
    Done,
    /// Nothing was done: send a message.
    ByMessage,
    Failed,
}

/// The parts of an access, in order.
fn pieces(len: usize) -> impl Iterator<Item = (usize, usize)> {
    // An operation without bytes still makes one access.
    (0..len.max(1)).step_by(ACCESS_MOST).map(move |at| (at, (len - at).min(ACCESS_MOST)))
}

/// Makes the accesses of an operation, in order.
fn in_turn(
    parts: impl Iterator<Item = (usize, usize)>,
    mut access: impl FnMut(usize, usize) -> Result<(), Missed>,
) -> Direct {
    let mut is_first = true;
    for (at, len) in parts {
        match access(at, len) {
            Ok(()) => {}
            Err(Missed::NotMade) if is_first => return Direct::ByMessage,
            Err(_) => return Direct::Failed,
        }
        is_first = false;
    }
    Direct::Done
}

impl<P: Platform> Initiator<P> {
    /// Does an operation by loads and stores, if it can be done so now, and tells its end. False if it must go by message.
    pub fn do_directly<T: Tx>(
        &mut self,
        state: &mut State<T>,
        done: &mut VecDeque<Completion<P>>,
        posting: &mut Posting,
        kind: &mut Kind<P::Source, P::Target>,
    ) -> bool {
        let to = posting.to;
        let (by, len) = match kind {
            Kind::Write { write: Write { place, notice: None, .. }, len, .. } => (place.by, *len),
            Kind::Read { place, len, .. } => (place.by, *len),
            Kind::Atomic { change, len, .. } => (change.place.by, *len),
            Kind::Write { .. } | Kind::Attach { .. } => return false,
        };
        let Some(flow) = state.flow_to(self.endpoint, to) else { return false };
        let Some(neighbour) = self.neighbours.get_mut(to as usize) else { return false };
        let Some(at) = neighbour.find(by, flow) else {
            if neighbour.count(by, len) && state.neighbour(flow.session).is_some() {
                self.attach(state, done, to, by);
            }
            return false;
        };
        if self.under_way(to) > 0 {
            return false;
        }
        match self.access(to, at, posting, kind) {
            Direct::Done => self.end_directly(state, done, posting, kind, Ok(())),
            Direct::Failed => {
                let failure = Failure { reason: Reason::Revoked, certainty: Certainty::Unknown };
                self.end_directly(state, done, posting, kind, Err(failure));
            }
            Direct::ByMessage => {
                if let Some(neighbour) = self.neighbours.get_mut(to as usize) {
                    neighbour.forget_closed::<P::Target>(flow);
                }
                return false;
            }
        }
        true
    }

    #[inline(always)]
    fn access(&mut self, to: u32, at: usize, posting: &Posting, kind: &mut Kind<P::Source, P::Target>) -> Direct {
        let Some((_, _, mapped)) = self.neighbours.get(to as usize).and_then(|neighbour| neighbour.mapped.get(at))
        else {
            return Direct::ByMessage;
        };
        let Mapped { rights, base, reach } = &**mapped;
        let from = |place: Place| place.at.checked_sub(*base);
        let run = posting.run();
        if let Kind::Write { write: Write { place, .. }, len, .. } | Kind::Read { place, len, .. } = kind {
            // A single access checks its own bounds. With several, none is made unless all can be.
            if *len > ACCESS_MOST && !from(*place).is_some_and(|at| reach.holds(at, *len)) {
                return Direct::ByMessage;
            }
        }
        match kind {
            Kind::Write { write, source, len } if rights.write => {
                let Some(to) = from(write.place) else { return Direct::ByMessage };
                let bytes = match (source, run) {
                    (Some(source), _) => source.bytes(),
                    (None, Some(run)) => self.lists.bytes(run, 0, *len),
                    (None, None) => return Direct::ByMessage,
                };
                in_turn(pieces(bytes.len()), |at, len| {
                    reach.write(to.saturating_add(at as u64), bytes.get(at..at + len).unwrap_or_default())
                })
            }
            Kind::Read { place, target, len } if rights.read => {
                let Some(from) = from(*place) else { return Direct::ByMessage };
                match (target, run) {
                    (Some(target), _) => {
                        in_turn(pieces(*len), |at, len| reach.read(from.saturating_add(at as u64), target, at, len))
                    }
                    (None, Some(run)) => match self.lists.room(run) {
                        Some((target, begin)) => in_turn(pieces(*len), |at, len| {
                            reach.read(from.saturating_add(at as u64), target, begin.saturating_add(at), len)
                        }),
                        None => Direct::ByMessage,
                    },
                    (None, None) => Direct::ByMessage,
                }
            }
            Kind::Atomic { change, operands, len, old } if rights.atomic => {
                let Change { place, atomic, of } = *change;
                let (Some(from), bytes) = (from(place), of.bytes()) else { return Direct::ByMessage };
                let words = (0..*len).step_by(bytes).map(|at| (at, bytes));
                // The owner checks all words before it changes the first one.
                let last = from.checked_add((*len).saturating_sub(bytes) as u64);
                if !last.is_some_and(|last| reach.is_word(last, bytes)) {
                    return Direct::ByMessage;
                }
                in_turn(words, |at, bytes| {
                    let (first, second) = crate::initiator::operands(operands, *len, atomic.has_second(), at, bytes);
                    let word =
                        reach.update(from.saturating_add(at as u64), bytes, |old| atomic.apply(of, old, first, second));
                    let word = word?.to_le_bytes();
                    if let Some(old) = old {
                        old.write(at, word.get(..bytes).unwrap_or_default());
                    }
                    Ok(())
                })
            }
            _ => Direct::ByMessage,
        }
    }

    /// Tells the end of an operation that was done directly.
    #[inline(always)]
    fn end_directly<T: Tx>(
        &mut self,
        state: &mut State<T>,
        done: &mut VecDeque<Completion<P>>,
        posting: &mut Posting,
        kind: &mut Kind<P::Source, P::Target>,
        end: Result<(), Failure>,
    ) {
        self.direct += 1;
        self.pass_fence(posting.to);
        if let Some(run) = posting.run() {
            self.lists.run_left(done, run);
            self.end_run(done, posting.to, run, end);
            return state.note();
        }
        let context = posting.context;
        let (source, target) = match kind {
            Kind::Write { write, source, .. } => {
                if write.tells_when_free {
                    let (source, outcome) = (source.take(), Outcome::Free);
                    done.push_back(Completion { context, outcome, source, target: None, buffers: None, mapped: None });
                }
                (source.take(), None)
            }
            Kind::Read { target, .. } => (None, target.take()),
            Kind::Atomic { old, .. } => (None, old.take()),
            Kind::Attach { .. } => (None, None),
        };
        let outcome = Outcome::from(end);
        let end = Completion { context, outcome, source, target, buffers: None, mapped: None };
        match posting.special.as_deref() {
            Some(Special::Call(ticket)) => self.calls.come(*ticket, end),
            _ => done.push_back(end),
        }
        state.note();
    }

    /// Asks a neighbour to map what a credential is for.
    #[cold]
    fn attach<T: Tx>(&mut self, state: &mut State<T>, done: &mut VecDeque<Completion<P>>, to: u32, by: Credential) {
        self.attaching += 1;
        let flow = state.flow_to(self.endpoint, to);
        if let Some(neighbour) = self.neighbours.get_mut(to as usize) {
            // Mappings of another peer are not used again.
            neighbour.mapped.retain(|(of, ..)| Some(*of) == flow);
            neighbour.attaching += 1;
        }
        let posting = Posting { special: Some(Box::new(Special::Own)), ..Posting::new(to, 0) };
        self.post(state, done, posting, Kind::Attach { by });
    }

    /// The engine's own attachment has ended: keeps what it mapped.
    pub fn attached(&mut self, to: u32, by: Credential, opened: Option<(FlowId, Box<Mapped<P::Reach>>)>) {
        self.attaching = self.attaching.saturating_sub(1);
        let Some(neighbour) = self.neighbours.get_mut(to as usize) else { return };
        neighbour.attaching = neighbour.attaching.saturating_sub(1);
        if opened.is_some() {
            neighbour.executed = None;
        }
        neighbour.mapped.extend(opened.map(|(flow, mapped)| (flow, by, mapped)));
    }

    /// Lends the program a mapping.
    pub fn lend(&mut self, to: u32, flow: FlowId, mapped: &Mapped<P::Reach>) {
        if let Some(neighbour) = self.neighbours.get_mut(to as usize) {
            neighbour.lend(flow, mapped.reach.closer());
        }
    }
}

impl<P: Platform> Engine<P> {
    /// Asks the peer at index `to` to let the memory of a credential be mapped here. [`Completion::mapped`] has the mapping. It is empty if
    /// the peer is no neighbour, the memory is lent, or the peer or the kernel refuses. Does not block.
    ///
    /// # Errors
    /// If it was not posted.
    pub fn try_attach<T: Tx>(
        &mut self,
        state: &mut State<T>,
        to: u32,
        by: Credential,
        context: u64,
    ) -> Result<(), PostError> {
        self.may_post(state, to)?;
        let (initiator, done) = self.parts();
        initiator.post(state, done, Posting::new(to, context), Kind::Attach { by });
        Ok(())
    }

    /// [`Engine::try_attach`] for a call that waits.
    ///
    /// # Errors
    /// If it was not posted.
    pub fn attach_for_call<T: Tx>(
        &mut self,
        state: &mut State<T>,
        to: u32,
        by: Credential,
    ) -> Result<Ticket, PostError> {
        self.may_post(state, to)?;
        Ok(self.post_for_call(state, to, Kind::Attach { by }))
    }
}
