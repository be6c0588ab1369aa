//! Flushes, fences, and operations whose end a waiting call takes.

use crate::engine::{Completion, Engine, Outcome, PostError};
use crate::initiator::{Kind, Posting, Special, Write};
use crate::platform::{Platform, Target};
use crate::{Change, Fetch};
use std::collections::{BTreeMap, VecDeque};
use weft_core::bulk::PIECE;
use weft_core::State;
use weft_wire::memory::Place;
use weft_wire::path::Tx;

/// Bytes of an inline write, at most: what fits into one message.
pub const INLINE_MOST: usize = PIECE;

/// The receiver of an operation's completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Whom {
    /// The program, with its context.
    Program(u64),
    /// A call that waits.
    Call(Ticket),
}

impl Whom {
    /// The program's context.
    pub fn context(self) -> u64 {
        match self {
            Whom::Program(context) => context,
            Whom::Call(_) => 0,
        }
    }
}

/// The end of an operation that a call waits for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Ticket(u64);

/// The ends that calls wait for.
#[derive(Debug)]
pub(crate) struct Calls<P: Platform> {
    last: u64,
    /// `None` until the end comes.
    ends: BTreeMap<Ticket, Option<Completion<P>>>,
    /// Ends that have come. Wraps around.
    pub come: usize,
}

impl<P: Platform> Calls<P> {
    pub fn new() -> Calls<P> {
        Calls { last: 0, ends: BTreeMap::new(), come: 0 }
    }

    fn expect(&mut self) -> Ticket {
        self.last += 1;
        self.ends.insert(Ticket(self.last), None);
        Ticket(self.last)
    }

    /// Stores an end that has come. It is dropped if the call has given up.
    #[cold]
    #[inline(never)]
    pub fn come(&mut self, ticket: Ticket, end: Completion<P>) {
        if let Some(place) = self.ends.get_mut(&ticket) {
            *place = Some(end);
            self.come = self.come.wrapping_add(1);
        }
    }
}

/// The waiting flushes of a destination, in order. Each waits for the operations posted before it, and so for the flushes before it.
#[derive(Debug, Default)]
pub(crate) struct Flushes {
    /// Flushes that were popped before the first of these. Wraps around.
    first: u32,
    waiting: VecDeque<Flush>,
    /// Operations that all of them wait for.
    left: usize,
}

#[derive(Debug)]
struct Flush {
    whom: Whom,
    /// Operations posted between the previous flush and this one that have not ended.
    left: usize,
}

impl Flushes {
    /// The number of the next flush, which an operation posted now comes before.
    pub fn next(&self) -> u32 {
        self.first.wrapping_add(self.waiting.len() as u32)
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Adds a flush that waits for `pending` operations.
    pub fn push(&mut self, whom: Whom, pending: usize) {
        let left = pending.saturating_sub(self.left);
        self.left += left;
        self.waiting.push_back(Flush { whom, left });
    }

    /// An operation posted before the flush of this number has ended.
    pub fn ended(&mut self, before: u32) {
        if let Some(flush) = self.waiting.get_mut(before.wrapping_sub(self.first) as usize) {
            flush.left = flush.left.saturating_sub(1);
            self.left = self.left.saturating_sub(1);
        }
    }

    /// Takes the first flush, if it waits for nothing any more.
    pub fn pop(&mut self) -> Option<Whom> {
        let whom = self.waiting.front().filter(|flush| flush.left == 0)?.whom;
        self.waiting.pop_front();
        self.first = self.first.wrapping_add(1);
        Some(whom)
    }
}

impl<P: Platform> Engine<P> {
    /// Posts a flush: it is done when all operations that were posted before it to this destination have ended, however they ended. Does
    /// not block.
    ///
    /// # Errors
    /// If it was not posted.
    pub fn try_flush<T: Tx>(&mut self, state: &mut State<T>, to: u32, context: u64) -> Result<(), PostError> {
        self.flush(state, to, |_| Whom::Program(context))
    }

    fn flush<T: Tx>(
        &mut self,
        state: &mut State<T>,
        to: u32,
        whom: impl FnOnce(&mut Calls<P>) -> Whom,
    ) -> Result<(), PostError> {
        self.may_post(state, to)?;
        let (initiator, done) = self.parts();
        let whom = whom(&mut initiator.calls);
        if !initiator.flush(to, whom) {
            initiator.tell(done, whom, Outcome::Done);
            state.note();
        }
        Ok(())
    }

    /// A fence: operations posted after it to this destination begin when all operations posted before it have ended. Does not block.
    ///
    /// # Errors
    /// If nothing is mapped there, or the endpoint was freed.
    pub fn fence<T: Tx>(&mut self, state: &State<T>, to: u32) -> Result<(), PostError> {
        match self.may_post(state, to) {
            // A fence takes no room.
            Ok(()) | Err(PostError::Full) => {
                self.parts().0.fence(to);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// A write that copies its bytes: [`INLINE_MOST`] at most. Does not block.
    ///
    /// # Errors
    /// If it was not posted.
    pub fn try_write_inline<T: Tx>(
        &mut self,
        state: &mut State<T>,
        to: u32,
        write: Write,
        bytes: &[u8],
        context: u64,
    ) -> Result<(), PostError> {
        if bytes.len() > INLINE_MOST {
            return Err(PostError::TooLong);
        }
        // Checked first, so that no copy is made in vain.
        self.may_post(state, to)?;
        self.try_write(state, to, write, bytes.to_vec().into(), context).map_err(|(error, _)| error)
    }

    // ---- operations for calls that wait

    /// Posts a write whose end [`Engine::take_end`] returns.
    ///
    /// # Errors
    /// If it was not posted.
    pub fn write_for_call<T: Tx>(
        &mut self,
        state: &mut State<T>,
        to: u32,
        write: Write,
        source: P::Source,
    ) -> Result<Ticket, PostError> {
        self.may_post(state, to)?;
        Ok(self.post_for_call(state, to, Kind::write(write, source)))
    }

    /// Posts a read whose end [`Engine::take_end`] returns.
    ///
    /// # Errors
    /// If it was not posted.
    pub fn read_for_call<T: Tx>(
        &mut self,
        state: &mut State<T>,
        to: u32,
        place: Place,
        target: P::Target,
    ) -> Result<Ticket, PostError> {
        self.may_post(state, to)?;
        Ok(self.post_for_call(state, to, Kind::Read { place, len: target.len(), target: Some(target) }))
    }

    /// Posts an atomic operation whose end [`Engine::take_end`] returns.
    ///
    /// # Errors
    /// If it was not posted.
    pub fn change_for_call<T: Tx>(
        &mut self,
        state: &mut State<T>,
        to: u32,
        change: Change,
        operands: &[u8],
        fetch: Fetch<'_, P::Target>,
    ) -> Result<Ticket, PostError> {
        let kind = Kind::change(change, operands, fetch)?;
        self.may_post(state, to)?;
        Ok(self.post_for_call(state, to, kind))
    }

    /// Posts a flush whose end [`Engine::take_end`] returns.
    ///
    /// # Errors
    /// If it was not posted.
    pub fn flush_for_call<T: Tx>(&mut self, state: &mut State<T>, to: u32) -> Result<Ticket, PostError> {
        let mut ticket = Ticket(0);
        self.flush(state, to, |calls| {
            ticket = calls.expect();
            Whom::Call(ticket)
        })?;
        Ok(ticket)
    }

    pub(crate) fn post_for_call<T: Tx>(
        &mut self,
        state: &mut State<T>,
        to: u32,
        kind: Kind<P::Source, P::Target>,
    ) -> Ticket {
        let (initiator, done) = self.parts();
        let ticket = initiator.calls.expect();
        let posting = Posting { special: Some(Box::new(Special::Call(ticket))), ..Posting::new(to, 0) };
        initiator.post(state, done, posting, kind);
        ticket
    }

    /// Takes the end of an operation, if it has come.
    pub fn take_end(&mut self, ticket: Ticket) -> Option<Completion<P>> {
        let (initiator, _) = self.parts();
        match initiator.calls.ends.get(&ticket)? {
            Some(_) => initiator.calls.ends.remove(&ticket).flatten(),
            None => None,
        }
    }

    /// Gives up an end: the operation goes on, and its buffers are dropped with it.
    pub fn forget_end(&mut self, ticket: Ticket) {
        self.parts().0.calls.ends.remove(&ticket);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_waits_for_what_was_posted_before_it_and_for_no_more() {
        let mut flushes = Flushes::default();
        // Two operations, a flush, one operation, two flushes, one operation.
        let before = [flushes.next(), flushes.next()];
        flushes.push(Whom::Program(1), 2);
        let between = flushes.next();
        flushes.push(Whom::Program(2), 3);
        flushes.push(Whom::Program(3), 3);
        let behind = flushes.next();
        assert_eq!(flushes.pop(), None);
        flushes.ended(behind);
        flushes.ended(between);
        assert_eq!(flushes.pop(), None, "the first one still waits");
        flushes.ended(before[0]);
        assert_eq!(flushes.pop(), None);
        flushes.ended(before[1]);
        let done: Vec<Whom> = std::iter::from_fn(|| flushes.pop()).collect();
        assert_eq!(done, [1, 2, 3].map(Whom::Program));
        assert!(flushes.is_empty() && flushes.left == 0);
        // All operations before this flush have ended: it is done at once.
        flushes.push(Whom::Program(4), 0);
        assert_eq!(flushes.pop(), Some(Whom::Program(4)));
    }
}
