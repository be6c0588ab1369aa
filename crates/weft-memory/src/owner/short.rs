//! Short writes that their initiator waits for, in as few steps as possible.

use super::{answer, Owner};
use crate::platform::Space;
use weft_core::{Delivery, State};
use weft_wire::memory::{Mark, ShortWrite};
use weft_wire::path::Tx;

impl<S: Space> Owner<S> {
    /// Carries out a write of one message without a notice, and answers it. False, with nothing changed, if it is to be refused.
    #[inline(always)]
    pub fn write_short<T: Tx>(&mut self, state: &mut State<T>, message: &Delivery<'_>, write: ShortWrite) -> bool {
        let ShortWrite { key, at, len, mark } = write;
        let space = self.table.writable(key, at, len).filter(|_| len == message.payload.len() as u64);
        if !space.is_some_and(|(space, at)| space.write(at, message.payload)) {
            return false;
        }
        self.counters.bytes_written += len;
        self.counters.writes += 1;
        if !state.reply_small(message, Mark::BYTES, &mark.to_args(), &[]) {
            answer(state, message, mark, &[]);
        }
        true
    }
}
