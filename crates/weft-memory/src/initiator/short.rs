//! Short writes that the program likely waits for, in as few steps as possible. There is at most one to each destination, kept apart from
//! the other operations.

use super::{Done, Initiator, Write};
use crate::engine::{Completion, Outcome};
use crate::platform::{Platform, Source};
use weft_core::bulk::Failure;
use weft_core::{Delivery, FlowId, Outgoing, Returned, State};
use weft_wire::memory::{Credential, Mark, ShortWrite};
use weft_wire::path::{Tx, SMALL_MOST};

/// Marks a short write, with its destination in the other bits. It cannot be taken for an operation's number: these, like destinations, are
/// below `u32::MAX / 2`.
const SHORT: u32 = 1 << 31;

/// A write that has left in one request.
#[derive(Debug)]
pub(super) struct Short<S> {
    context: u64,
    source: S,
    /// The number of the next flush posted after it.
    flush: u32,
    /// The flow by which it was sent.
    by: Option<FlowId>,
}

impl<P: Platform> Initiator<P> {
    /// Posts a write of a few bytes as a request, if nothing else is under way to the destination. Otherwise gives the source back, with
    /// nothing changed.
    #[inline(always)]
    pub fn post_short<T: Tx>(
        &mut self,
        state: &mut State<T>,
        to: u32,
        write: Write,
        source: P::Source,
        context: u64,
    ) -> Result<(), P::Source> {
        let queue = self.queues.get_mut(to as usize);
        let queue = queue.filter(|q| q.pending == 0 && !q.departures.is_full() && !q.fences_next);
        let (Some(queue), Credential::Key(key), None) = (queue, write.place.by, write.notice) else {
            return Err(source);
        };
        if self.is_direct && !self.neighbours.get(to as usize).is_some_and(|neighbour| neighbour.is_executed(key)) {
            return Err(source);
        }
        let Some(place) = self.shorts.get_mut(to as usize) else { return Err(source) };
        let bytes = source.bytes();
        if bytes.len() > SMALL_MOST || write.tells_when_free {
            return Err(source);
        }
        let mark = Mark { operation: SHORT | to, piece: 0 };
        let args = ShortWrite { key, at: write.place.at, len: bytes.len() as u64, mark }.to_args();
        let message = Outgoing { op: ShortWrite::OP, args: &args, payload: bytes, completion: None };
        if state.try_request(self.endpoint, to, message).is_err() {
            return Err(source);
        }
        queue.pending = 1;
        self.shorts_under_way += 1;
        let by = state.flow_to(self.endpoint, to);
        *place = Some(Short { context, source, flush: queue.flushes.next(), by });
        Ok(())
    }

    /// Ends a short write, if the message answers one. Otherwise false, with nothing changed.
    #[inline(always)]
    pub fn end_short<T: Tx>(
        &mut self,
        state: &mut State<T>,
        done: &mut Done<P>,
        message: &Delivery<'_>,
        mark: Mark,
    ) -> bool {
        let to = mark.operation & !SHORT;
        if mark.operation & SHORT == 0 || !message.payload.is_empty() {
            return false;
        }
        // A peer could name a write that was sent to another one.
        let short = self.shorts.get_mut(to as usize);
        let short = short.and_then(|place| place.take_if(|short| short.by == Some(message.flow())));
        let Some(Short { context, source, flush, .. }) = short else { return false };
        done.push_back(Completion {
            context,
            outcome: Outcome::Done,
            source: Some(source),
            target: None,
            buffers: None,
            mapped: None,
        });
        self.shorts_under_way = self.shorts_under_way.saturating_sub(1);
        let queue = self.queues.get_mut(to as usize);
        let is_alone = queue.is_some_and(|queue| {
            queue.pending = queue.pending.saturating_sub(1);
            queue.pending == 0 && queue.flushes.is_empty()
        });
        if !is_alone {
            self.go_on_behind(state, done, to, flush);
        }
        true
    }

    /// A short write has ended: flushes and operations behind it go on.
    #[cold]
    #[inline(never)]
    fn go_on_behind<T: Tx>(&mut self, state: &mut State<T>, done: &mut Done<P>, to: u32, flush: u32) {
        self.end_flushes(done, to, flush);
        self.send(state, done, to);
    }

    /// Fails the short writes that were sent by a flow and will get no answer. Returns their destinations.
    #[cold]
    pub(super) fn fail_shorts(&mut self, done: &mut Done<P>, by: FlowId, failure: Failure) -> Vec<u32> {
        let mut failed = Vec::new();
        for (place, to) in self.shorts.iter_mut().zip(0u32..) {
            failed.extend(place.take_if(|short| short.by == Some(by)).map(|short| (to, short)));
        }
        failed.into_iter().map(|(to, short)| self.fail_short(done, to, short, failure)).collect()
    }

    /// Tells that a short write has failed. Returns its destination.
    fn fail_short(&mut self, done: &mut Done<P>, to: u32, short: Short<P::Source>, failure: Failure) -> u32 {
        let Short { context, source, flush, .. } = short;
        let (source, outcome) = (Some(source), Outcome::from(Err(failure)));
        done.push_back(Completion { context, outcome, source, target: None, buffers: None, mapped: None });
        self.shorts_under_way = self.shorts_under_way.saturating_sub(1);
        if let Some(queue) = self.queues.get_mut(to as usize) {
            queue.pending = queue.pending.saturating_sub(1);
        }
        self.end_flushes(done, to, flush);
        to
    }

    /// Ends a short write that came back. False if the mark belongs to no short write.
    #[cold]
    pub(super) fn short_came_back<T: Tx>(
        &mut self,
        state: &mut State<T>,
        done: &mut Done<P>,
        mark: Mark,
        message: &Returned,
    ) -> bool {
        let to = mark.operation & !SHORT;
        if mark.operation & SHORT == 0 {
            return false;
        }
        if let Some(short) = self.shorts.get_mut(to as usize).and_then(Option::take) {
            let failure = Failure { reason: message.reason, certainty: message.certainty };
            self.fail_short(done, to, short, failure);
            self.send(state, done, to);
        }
        true
    }
}
