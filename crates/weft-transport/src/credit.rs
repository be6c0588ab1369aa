//! Credit for one-way messages, per pair of endpoints, in messages and in ring lines.
//!
//! The receiver grants credit; the sender spends it, and gets it back when the receiving endpoint has consumed the
//! messages. Returned credit rides on replies, or goes in a record of its own when half the grant is due (MU11).

use weft_wire::Credit;

/// What a receiver is ready to hold for one pair of endpoints.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Grant {
    /// Messages.
    pub messages: u32,
    /// Ring lines of 64 bytes.
    pub lines: u32,
}

impl Grant {
    /// The grant of all wire versions so far: 32,768 messages and 8 MiB, the size of an arena, so that a stream can fill one.
    pub const V1: Grant = Grant { messages: 32 << 10, lines: 128 << 10 };
}

/// The sender's account.
///
/// ```
/// use weft_transport::{CreditAccount, Grant};
///
/// let mut account = CreditAccount::new(Grant { messages: 2, lines: 10 });
/// assert!(account.spend(4) && account.spend(4));
/// assert!(!account.spend(1)); // a third message: the sender is told *full*
/// assert!(account.refund(1, 4) && account.covers(6));
/// assert!(!account.refund(9, 9)); // more than was spent: the peer lies
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CreditAccount {
    left: Grant,
    grant: Grant,
}

impl CreditAccount {
    /// An account with the whole grant in it.
    pub fn new(grant: Grant) -> CreditAccount {
        CreditAccount { left: grant, grant }
    }

    /// The remaining credit.
    pub fn left(&self) -> Grant {
        self.left
    }

    /// Whether a message of `lines` could be spent.
    #[inline(always)]
    pub fn covers(&self, lines: u32) -> bool {
        self.left.messages > 0 && self.left.lines >= lines
    }

    /// Spends a message of `lines`, after [`CreditAccount::covers`] returned true.
    #[inline(always)]
    pub fn spend_covered(&mut self, lines: u32) {
        self.left.messages = self.left.messages.wrapping_sub(1);
        self.left.lines = self.left.lines.wrapping_sub(lines);
    }

    /// Spends a message of `lines`; false, and nothing spent, if the account does not cover it.
    #[inline(always)]
    pub fn spend(&mut self, lines: u32) -> bool {
        let covered = self.covers(lines);
        if covered {
            self.spend_covered(lines);
        }
        covered
    }

    /// Takes credit back. False if that is more than was ever spent: the peer lies. The account stays within its grant.
    #[inline]
    pub fn refund(&mut self, messages: u32, lines: u32) -> bool {
        let spent =
            Grant { messages: self.grant.messages - self.left.messages, lines: self.grant.lines - self.left.lines };
        let honest = messages <= spent.messages && lines <= spent.lines;
        self.left.messages += messages.min(spent.messages);
        self.left.lines += lines.min(spent.lines);
        honest
    }
}

/// What the receiver owes the sender.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CreditDue {
    messages: u32,
    lines: u32,
    /// Messages stored and not yet reported. A message is reported as stored at the latest when its credit goes back.
    stored: u32,
    /// What the sender has spent and not got back.
    spent: Grant,
    asked: bool,
}

impl CreditDue {
    /// `messages` of `lines` in all arrived. False if the sender overdrew its grant.
    pub fn on_arrived(&mut self, messages: u32, lines: u32, grant: Grant) -> bool {
        self.spent.messages = self.spent.messages.saturating_add(messages);
        self.spent.lines = self.spent.lines.saturating_add(lines);
        self.spent.messages <= grant.messages && self.spent.lines <= grant.lines
    }

    /// A message of `lines` goes back to its sender, and its credit with it.
    pub fn on_returned(&mut self, lines: u32) {
        self.give(1, lines);
    }

    /// `messages` were stored: handed to their endpoint, or queued there.
    pub fn on_stored(&mut self, messages: u32, asked: bool) {
        self.stored = self.stored.saturating_add(messages);
        self.asked |= asked;
    }

    /// `messages` of `lines` in all were consumed; their space is free.
    pub fn on_consumed(&mut self, messages: u32, lines: u32) {
        self.messages = self.messages.saturating_add(messages);
        self.lines = self.lines.saturating_add(lines);
    }

    /// Whether all that came was consumed or sent back.
    pub fn is_all_consumed(&self) -> bool {
        self.spent.messages == self.messages
    }

    /// The sender wants to be told soon.
    pub fn ask(&mut self) {
        self.asked = true;
    }

    /// Whether the credit due has to go in a record of its own now.
    #[inline(always)]
    pub fn is_urgent(&self, grant: Grant) -> bool {
        self.asked || self.messages >= grant.messages / 2 || self.lines >= grant.lines / 2
    }

    /// What is due, as `[messages, lines, stored]`, for a record of its own; nothing is due afterwards.
    pub fn take(&mut self) -> [u32; 3] {
        let due = [self.messages, self.lines, self.stored];
        self.give(self.messages, self.lines);
        *self = CreditDue { spent: self.spent, ..CreditDue::default() };
        due
    }

    /// Whether anything is due.
    pub fn is_due(&self) -> bool {
        self.messages != 0 || self.stored != 0
    }

    /// Whether credit is due that might ride on another record.
    #[inline(always)]
    pub fn has_ride(&self) -> bool {
        self.messages != 0
    }

    /// What can ride on another record; empty unless all that is due fits and every stored message was consumed.
    #[inline(always)]
    pub fn take_ride(&mut self) -> Credit {
        if self.messages == 0 {
            return Credit::default();
        }
        let most = u32::from(u16::MAX);
        if self.messages != self.stored || self.lines > most || self.messages > most {
            return Credit::default();
        }
        let [messages, lines, _] = self.take();
        Credit { messages: messages as u16, lines: lines as u16 }
    }

    fn give(&mut self, messages: u32, lines: u32) {
        self.spent.messages = self.spent.messages.saturating_sub(messages);
        self.spent.lines = self.spent.lines.saturating_sub(lines);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_account_runs_out_by_messages_or_by_lines() {
        let mut by_messages = CreditAccount::new(Grant { messages: 2, lines: 100 });
        assert!(by_messages.spend(1) && by_messages.spend(1) && !by_messages.spend(1));
        let mut by_lines = CreditAccount::new(Grant { messages: 100, lines: 10 });
        assert!(by_lines.spend(9) && !by_lines.spend(2) && by_lines.spend(1));
    }

    #[test]
    fn a_refund_of_more_than_was_spent_is_reported_and_capped() {
        let grant = Grant { messages: 4, lines: 40 };
        let mut account = CreditAccount::new(grant);
        assert!(account.spend(10));
        assert!(!account.refund(2, 10));
        assert_eq!(account, CreditAccount::new(grant));
    }

    #[test]
    fn an_overdrawn_grant_is_noticed() {
        let grant = Grant { messages: 2, lines: 10 };
        let mut due = CreditDue::default();
        assert!(due.on_arrived(1, 4, grant) && due.on_arrived(1, 4, grant));
        assert!(!due.on_arrived(1, 1, grant));
    }

    proptest! {
        #[test]
        fn credit_is_conserved(steps in proptest::collection::vec((0u8..4, 1u32..50), 0..300)) {
            let grant = Grant { messages: 20, lines: 200 };
            let mut account = CreditAccount::new(grant);
            let mut due = CreditDue::default();
            let mut queued = std::collections::VecDeque::new();
            for (step, lines) in steps {
                match step {
                    0 => if account.spend(lines) {
                        prop_assert!(due.on_arrived(1, lines, grant));
                        due.on_stored(1, false);
                        queued.push_back(lines);
                    },
                    1 => if let Some(lines) = queued.pop_front() {
                        due.on_consumed(1, lines);
                    },
                    2 => {
                        let ride = due.take_ride();
                        prop_assert!(account.refund(u32::from(ride.messages), u32::from(ride.lines)));
                    }
                    _ => {
                        let [messages, lines, _] = due.take();
                        prop_assert!(account.refund(messages, lines));
                    }
                }
            }
            for lines in queued {
                due.on_consumed(1, lines);
            }
            let [messages, lines, _] = due.take();
            prop_assert!(account.refund(messages, lines));
            prop_assert_eq!(account, CreditAccount::new(grant));
        }
    }
}
