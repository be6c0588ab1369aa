//! Short writes that are likely waited for, in as few steps as there can be.

use super::{Done, Initiator, Kind, Operation, Write};
use crate::engine::{Completion, Outcome};
use crate::platform::{Platform, Source};
use weft_core::{Delivery, Outgoing, State};
use weft_wire::memory::{Credential, Mark, ShortWrite};
use weft_wire::path::{Tx, SMALL_MOST};

impl<P: Platform> Initiator<P> {
    /// Posts a write of a few bytes as a request, if nothing else is under way to the destination. Gives the source back if this is not
    /// the way for it; nothing was changed then.
    #[inline(always)]
    pub fn post_short<T: Tx>(
        &mut self,
        state: &mut State<T>,
        to: u32,
        write: Write,
        source: P::Source,
        context: u64,
    ) -> Result<(), P::Source> {
        let queue = self.queues.get_mut(to as usize).filter(|q| q.pending == 0 && !q.is_full && !q.fences_next);
        let (Some(queue), Credential::Key(key), None) = (queue, write.place.by, write.notice) else {
            return Err(source);
        };
        let bytes = source.bytes();
        if bytes.len() > SMALL_MOST || write.tells_when_free {
            return Err(source);
        }
        let place = self.operations.vacant_entry();
        let (len, mark) = (bytes.len(), Mark { operation: place.key() as u32, piece: 0 });
        let args = ShortWrite { key, at: write.place.at, len: len as u64, mark }.to_args();
        let message = Outgoing { op: ShortWrite::OP, args: &args, payload: bytes, completion: None };
        if state.try_request(self.endpoint, to, message).is_err() {
            return Err(source);
        }
        self.serial = self.serial.wrapping_add(1);
        queue.pending = 1;
        place.insert(Operation {
            context,
            to,
            is_fenced: false,
            special: None,
            flush: queue.flushes.next(),
            serial: self.serial,
            kind: Kind::Write { write, source: Some(source), len },
            issued: len,
            is_issued: true,
            under_way: 1,
            answered: 0,
            failure: None,
            may_be_stored: false,
            is_pulled: false,
        });
        Ok(())
    }

    /// Ends a write that one request carried out, if this is the answer to one and nothing else hangs on it. False if not, and nothing
    /// was changed.
    #[inline(always)]
    pub fn end_short<T: Tx>(
        &mut self,
        state: &mut State<T>,
        done: &mut Done<P>,
        message: &Delivery<'_>,
        mark: Mark,
    ) -> bool {
        let index = mark.operation as usize;
        let Some(operation) = self.operations.get_mut(index) else { return false };
        let Kind::Write { source, .. } = &mut operation.kind else { return false };
        let is_whole = operation.under_way == 1 && operation.is_issued && !operation.is_pulled;
        let is_plain = operation.special.is_none() && operation.failure.is_none();
        let fits = mark.piece == operation.answered && message.payload.is_empty();
        if !(is_whole && is_plain && fits) {
            return false;
        }
        let (to, context) = (operation.to, operation.context);
        let queue = self.queues.get_mut(to as usize).filter(|q| q.flushes.is_empty() && q.operations.is_empty());
        let Some(queue) = queue else { return false };
        // Another peer could say anything.
        if state.flow_to(self.endpoint, to) != Some(message.flow()) {
            return false;
        }
        queue.pending = queue.pending.saturating_sub(1);
        let source = source.take();
        self.operations.try_remove(index);
        done.push_back(Completion { context, outcome: Outcome::Done, source, target: None, buffers: None });
        true
    }
}
