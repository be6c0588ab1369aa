//! One outcome from many parts.

use weft_wire::{Certainty, Reason};

/// Why something failed, and how certain the outcome is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failure {
    /// Why.
    pub reason: Reason,
    /// *Not delivered* if it is certain that nothing was placed.
    pub certainty: Certainty,
}

/// Sums up the outcomes of many parts. It is for clients that learn of each part: of a piece by a completion or a
/// reply, of a transfer in a list by its own sum.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sum {
    /// Parts that have not ended.
    under_way: u32,
    /// No more parts are to come.
    is_all: bool,
    may_be_placed: bool,
    failure: Option<Reason>,
}

impl Sum {
    /// The sum of `parts` parts, all of which are on their way.
    pub fn of(parts: u32) -> Sum {
        Sum { under_way: parts, is_all: true, ..Sum::default() }
    }

    /// A part has left.
    #[inline(always)]
    pub fn on_sent(&mut self, is_last: bool) {
        self.under_way = self.under_way.saturating_add(1);
        self.is_all |= is_last;
    }

    /// A part that was sent has ended. If it failed, the caller must not send more parts.
    #[inline(always)]
    pub fn on_end(&mut self, end: Result<(), Failure>) {
        self.under_way = self.under_way.saturating_sub(1);
        match end {
            Ok(()) => self.may_be_placed = true,
            Err(Failure { reason, certainty }) => {
                self.may_be_placed |= certainty == Certainty::Unknown;
                self.fail(reason);
            }
        }
    }

    /// Begins again: everything will be sent again, and the parts that were sent count as ended.
    pub fn start_again(&mut self, may_be_placed: bool) {
        (self.under_way, self.is_all) = (0, false);
        self.may_be_placed |= may_be_placed;
    }

    /// Fails the whole for a reason of its own. The caller must not send more parts. The first reason counts.
    pub fn fail(&mut self, reason: Reason) {
        self.failure.get_or_insert(reason);
    }

    /// Whether a part has not ended.
    #[inline(always)]
    pub fn is_under_way(&self) -> bool {
        self.under_way > 0
    }

    /// Whether it has failed. It may not have ended.
    pub fn has_failed(&self) -> bool {
        self.failure.is_some()
    }

    /// Why it has failed, if it has.
    pub fn failure(&self) -> Option<Reason> {
        self.failure
    }

    /// The outcome, once every part that was sent has ended and no more will be sent.
    #[inline(always)]
    pub fn outcome(&self) -> Option<Result<(), Failure>> {
        let certainty = if self.may_be_placed { Certainty::Unknown } else { Certainty::NotDelivered };
        match self.failure {
            _ if self.under_way > 0 => None,
            Some(reason) => Some(Err(Failure { reason, certainty })),
            None => self.is_all.then_some(Ok(())),
        }
    }
}
