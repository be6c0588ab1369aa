//! Refusals: the peer's host reports that nobody has the port of one of our packets (ICMP, *port unreachable*).
//!
//! The report is only a hint, because anybody can send one. It counts only if it quotes a packet that was sent, with
//! the ids of both sides. Then the peer is asked, and a live one answers at once. A peer that does not is gone. This is
//! known within some tens of milliseconds, where silence alone takes the suspicion time.

use super::{Channel, Phase};
use crate::congestion::Congestion;
use crate::memory::Memory;
use crate::sequence::widen;
use crate::time::Time;
use std::time::Duration;
use weft_wire::packet::{ChannelId, PacketKind, Quote};

/// Questions that the peer leaves unanswered before it counts as gone.
const QUESTIONS: u32 = 4;

/// Shortest time for the answer to a question: a host that is busy needs some milliseconds.
const ANSWER_LEAST: Duration = Duration::from_millis(10);

/// The same while we call, because then the round trip is not known.
const CALLED_LEAST: Duration = Duration::from_millis(50);

/// Longest time for an answer, as a part of the suspicion time.
const ANSWER_MOST: u32 = 8;

/// A refusal that is being checked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refusal {
    /// Questions asked so far.
    asked: u32,
    /// When the next question is due, or the verdict.
    next_at: Time,
    /// Time allowed for each answer.
    wait: Duration,
}

impl Refusal {
    /// When the next question or the verdict is due.
    pub fn next_at(&self) -> Time {
        self.next_at
    }
}

impl<C: Congestion, M: Memory> Channel<C, M> {
    /// The peer's host refused a packet of ours, because nobody has the port. Asks the peer; without an answer the channel
    /// is lost. Returns false, and does nothing, if the quoted packet was not sent by this channel.
    #[cold]
    pub fn on_refusal(&mut self, now: Time, quote: &Quote) -> bool {
        if !self.has_sent(quote) {
            return false;
        }
        let wait = match self.phase {
            // The refusal took a round trip if the first call was refused.
            Phase::Calling { .. } => now.since(self.called_at).max(CALLED_LEAST),
            _ => Duration::from_nanos(self.base_timeout()).max(ANSWER_LEAST),
        };
        let wait = wait.min(self.settings.suspicion / ANSWER_MOST);
        self.watch.refusal.get_or_insert(Refusal { asked: 0, next_at: now, wait });
        true
    }

    /// Whether this channel sent the quoted packet, as far as the quote shows.
    pub fn has_sent(&self, quote: &Quote) -> bool {
        let is_ours = quote.from == self.ours.id;
        is_ours
            && match (self.phase, quote.kind) {
                (Phase::Calling { .. }, PacketKind::Call) => quote.to == ChannelId::NOBODY,
                (Phase::Open, PacketKind::Data) => {
                    quote.to == self.theirs.id && widen(self.sent.next(), quote.number) < self.sent.next()
                }
                _ => false,
            }
    }

    /// Asks a peer whose host refused a packet, when it is time. Returns true if the peer has left all questions
    /// unanswered.
    pub(super) fn is_refusal_true(&mut self, now: Time) -> bool {
        let Some(refusal) = self.watch.refusal.as_mut().filter(|refusal| refusal.next_at <= now) else { return false };
        if refusal.asked >= QUESTIONS {
            return true;
        }
        refusal.asked += 1;
        // From now, not from when it was due: if we were away, the answer waits in our socket.
        refusal.next_at = now + refusal.wait;
        match &mut self.phase {
            Phase::Calling { next_at, .. } => *next_at = now,
            _ => self.probes_due = self.probes_due.max(1),
        }
        false
    }
}
