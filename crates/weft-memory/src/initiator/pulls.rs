//! Pulls: long writes to a trusted process of this host, which is told where the bytes are and reads them there itself.
//!
//! Pulls are carried out one after the other, and any other operation waits until the pulls before it have ended. So a write whose bytes
//! the owner cannot read can still be sent in its turn.

use super::{tell_free, Done, Initiator, Kind, Operation};
use crate::lists::Lists;
use crate::owner::PULLS_MOST;
use crate::platform::{Platform, Proof, Source};
use std::collections::BTreeSet;
use weft_core::bulk::Failure;
use weft_core::{FlowId, Outgoing, Returned, SendError, State};
use weft_wire::memory::{Mark, Origin, PullEnd, Word};
use weft_wire::path::Tx;
use weft_wire::{Certainty, Reason};

/// A write of at least so many bytes is pulled. `docs/design/memory.md` says what that costs and gains.
pub(super) const PULL_LEAST: usize = 64 << 10;

/// The state of pulls by a destination, apart from their number.
#[derive(Debug, Default)]
pub(super) struct Lending {
    /// A flow whose owner cannot read this process's memory: nothing more is pulled by it.
    unreadable: Option<FlowId>,
    /// The owner reads this word to check that the bytes are still there.
    proof: Option<Withdrawn>,
}

/// A proof that becomes invalid when this is dropped.
#[derive(Debug)]
struct Withdrawn(Proof);

impl Drop for Withdrawn {
    fn drop(&mut self) {
        self.0.set(0);
    }
}

/// What became of the first operation of a queue.
pub(super) enum Pull {
    /// Send it.
    No,
    /// The owner is told to read it.
    Asked,
    /// It waits for room, or for earlier pulls to end.
    Waits,
    /// It cannot be posted at all.
    Never(Reason),
}

/// The address of the bytes of a write, if they may be pulled.
fn address<P: Platform>(lists: &Lists<P>, operation: &Operation<P>) -> Option<u64> {
    if operation.len() < PULL_LEAST {
        return None;
    }
    match (&operation.kind, operation.run()) {
        (Kind::Write { source: Some(source), .. }, _) => source.address(),
        (Kind::Write { source: None, .. }, Some(run)) => lists.address(run),
        _ => None,
    }
}

impl<P: Platform> Initiator<P> {
    /// Asks the owner to read the first operation of a queue, if the operation is long, none of it has left and the owner can read it.
    #[cold]
    #[inline(never)]
    pub(super) fn pull<T: Tx>(&mut self, state: &mut State<T>, to: u32, index: usize) -> Pull {
        let endpoint = self.endpoint;
        let (Some(queue), Some(operation)) = (self.queues.get_mut(to as usize), self.operations.get_mut(index)) else {
            return Pull::No;
        };
        if queue.departures.is_full() {
            return Pull::Waits;
        }
        let flow = state.flow_to(endpoint, to).filter(|flow| queue.lending.unreadable != Some(*flow));
        let is_trusted = flow.is_some_and(|flow| state.neighbour(flow.session).is_some());
        let from = address(&self.lists, operation).filter(|_| is_trusted);
        let (Some(from), Kind::Write { write, len, .. }) = (from, &operation.kind) else {
            return if queue.pulls > 0 { Pull::Waits } else { Pull::No };
        };
        if queue.pulls as usize >= PULLS_MOST {
            return Pull::Waits;
        }
        let (serial, len) = (operation.serial, *len);
        let proof = queue.lending.proof.get_or_insert_with(|| {
            // A later process with the same process number has another epoch, or none.
            let epoch = state.name(endpoint).map_or(1, |name| name.epoch.0);
            let proof = Proof::new(epoch.wrapping_add(u64::from(serial) << 1) | 1);
            P::note_proof(&proof);
            Withdrawn(proof)
        });
        let origin = Origin { from, proof_at: proof.0.address(), proof: proof.0.value() };
        let mark = Mark { operation: index as u32, piece: 0 };
        let is_part = operation.run().is_some_and(|run| run.is_part);
        let packed = Word::Pull { place: write.place, len: len as u64, notice: write.notice, mark, is_part }.pack();
        let payload = &origin.to_bytes();
        let message = Outgoing { op: packed.op, args: packed.args(), payload, completion: None };
        match state.try_request(endpoint, to, message) {
            Ok(()) => {
                operation.pieces.on_sent(true);
                (operation.is_pulled, operation.by) = (true, flow);
                queue.pulls += 1;
                queue.departures.withdraw_first(|&first| first == index);
                Pull::Asked
            }
            Err(SendError::Full | SendError::TimedOut) => {
                queue.departures.set_full();
                Pull::Waits
            }
            Err(SendError::NotMapped(_)) => Pull::Never(Reason::NobodyThere),
            Err(_) => Pull::Never(Reason::PeerLost),
        }
    }

    /// An owner says that a pull has ended.
    ///
    /// # Errors
    /// If it had none.
    pub fn pull_ended<T: Tx>(
        &mut self,
        state: &mut State<T>,
        done: &mut Done<P>,
        by: FlowId,
        (mark, end): (Mark, PullEnd),
    ) -> Result<(), Reason> {
        let index = mark.operation as usize;
        let operation = self.operations.get_mut(index).filter(|o| o.is_pulled).ok_or(Reason::NoHandler)?;
        let to = operation.to;
        // A peer could name an operation that was sent to another one.
        if operation.by != Some(by) {
            return Err(Reason::NoHandler);
        }
        let queue = self.queues.get_mut(to as usize).ok_or(Reason::NoHandler)?;
        operation.is_pulled = false;
        queue.pulls = queue.pulls.saturating_sub(1);
        match end {
            PullEnd::Whole => {
                operation.pieces.on_end(Ok(()));
                tell_free(done, &mut self.lists, operation);
            }
            PullEnd::Unreadable { is_partly } => {
                operation.pieces.start_again(is_partly);
                operation.by = None;
                queue.lending.unreadable = Some(by);
                // In its turn: behind those that were put back earlier, and before what was posted later.
                let (serial, len) = (operation.serial, operation.len());
                queue.departures.post_before(index, len, |&other| {
                    let other = self.operations.get(other).map_or(serial, |operation| operation.serial);
                    (other.wrapping_sub(serial) as i32) >= 0
                });
            }
            PullEnd::Failed { reason, is_partly } => {
                let certainty = if is_partly { Certainty::Unknown } else { Certainty::NotDelivered };
                operation.pieces.on_end(Err(Failure { reason, certainty }));
            }
        }
        self.settle(done, index);
        self.send(state, done, to);
        Ok(())
    }

    /// An owner's answer fits no request. Any request could be the one that it answered, so none of them can count on an answer: all
    /// operations sent by that flow end.
    #[cold]
    pub fn reply_fits_nothing<T: Tx>(&mut self, state: &mut State<T>, done: &mut Done<P>, by: FlowId) {
        let sent = self.operations.iter().filter(|(_, operation)| operation.by == Some(by));
        let sent: Vec<(usize, u32)> = sent.map(|(index, operation)| (index, operation.to)).collect();
        let failure = Failure { reason: Reason::Violation, certainty: Certainty::Unknown };
        let mut queues: BTreeSet<u32> = self.fail_shorts(done, by, failure).into_iter().collect();
        for (index, to) in sent {
            queues.insert(to);
            let queue = self.queues.get_mut(to as usize);
            if let (Some(operation), Some(queue)) = (self.operations.get_mut(index), queue) {
                if std::mem::take(&mut operation.is_pulled) {
                    // If the owner still reads, it discards what it gets from now on.
                    (queue.pulls, queue.lending.proof) = (queue.pulls.saturating_sub(1), None);
                }
                if queue.answers.of == Some(by.session) {
                    queue.answers.give_back(state, usize::MAX);
                }
                // No end of a piece is expected any more.
                operation.pieces.start_again(true);
                operation.pieces.fail(failure.reason);
            }
            self.withdraw_first(to, index);
            self.settle(done, index);
        }
        for to in queues {
            if let Some(queue) = self.queues.get_mut(to as usize) {
                queue.is_held = false;
            }
            self.send(state, done, to);
        }
    }

    /// A request for a pull came back, or nobody will answer it.
    pub(super) fn pull_came_back(&mut self, index: usize, message: &Returned) {
        let Some(operation) = self.operations.get_mut(index).filter(|operation| operation.is_pulled) else { return };
        operation.is_pulled = false;
        let Some(queue) = self.queues.get_mut(operation.to as usize) else { return };
        queue.pulls = queue.pulls.saturating_sub(1);
        if message.certainty == Certainty::Unknown {
            // The owner may be reading. It discards what it gets from now on.
            queue.lending.proof = None;
        }
    }
}
