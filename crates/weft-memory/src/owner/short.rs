//! Short writes that are waited for, in as few steps as there can be.

use super::{answer, Owner};
use crate::platform::Space;
use crate::table::Rights;
use weft_core::{Delivery, State};
use weft_wire::memory::{Credential, Mark, Place, ShortWrite};
use weft_wire::path::Tx;
use weft_wire::Reason;

impl<S: Space> Owner<S> {
    /// Carries out a write of one message without a notice, and answers it.
    #[inline]
    pub fn write_short<T: Tx>(
        &mut self,
        state: &mut State<T>,
        message: &Delivery<'_>,
        write: ShortWrite,
    ) -> Result<(), Reason> {
        let place = Place { by: Credential::Key(write.key), at: write.at };
        let stored = self.table.check(place, write.len, Rights::WRITE).and_then(|(grant, space)| {
            match write.len == message.payload.len() as u64 {
                true => space.write(grant.at, message.payload).then_some(()).ok_or(Reason::OutsideRegion),
                false => Err(Reason::Violation),
            }
        });
        if let Err(reason) = stored {
            self.count_refusal(reason);
            return Err(reason);
        }
        self.counters.bytes_written += write.len;
        self.counters.writes += 1;
        if !state.reply_small(message, Mark::BYTES, &write.mark.to_args(), &[]) {
            answer(state, message, write.mark, &[]);
        }
        Ok(())
    }
}
