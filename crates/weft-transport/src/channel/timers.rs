//! Timers.

use super::{Channel, Phase};
use crate::congestion::Congestion;
use crate::memory::Memory;
use crate::rare::{self, Point};
use crate::time::Time;
use std::time::Duration;
use weft_wire::Reason;

/// With fewer timeouts than this during a silence, it was this host that was away, not the peer.
const PROBES_LEAST: u32 = 3;

/// A host that handles a timer later than by this fraction of the suspicion time was away.
const ABSENCE: u32 = 8;

/// A peer that somebody waits for is asked after it was silent for this fraction of the suspicion time.
const ASK_AFTER: u32 = 4;

/// Packets that are sent on a retransmission timeout.
const PROBES: u32 = 2;

/// The earlier of two times. Plain code, because it runs in every turn: `flatten` and `min` of an array took more than
/// twice as many instructions.
#[inline]
fn sooner(a: Option<Time>, b: Option<Time>) -> Option<Time> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

impl<C: Congestion, M: Memory> Channel<C, M> {
    /// When to call [`Channel::on_timeout`], if nothing happens before. `None` for an idle channel, which has no timer.
    pub fn next_timeout(&self) -> Option<Time> {
        match self.phase {
            Phase::Lost(_) => None,
            Phase::Calling { next_at, .. } => sooner(Some(next_at), self.refusal_at()),
            Phase::Open => {
                let packet_lost_at = self.sent.lost_at(|| self.rtt.patience());
                let times = [
                    self.acks.due_at,
                    packet_lost_at,
                    self.lost_at(),
                    self.ask_at(),
                    self.paced_at(),
                    self.refusal_at(),
                ];
                times.iter().fold(self.retry_at, |first, &at| sooner(first, at))
            }
        }
    }

    /// Handles the timers that are due. Call [`Channel::transmit`] afterwards.
    pub fn on_timeout(&mut self, now: Time) {
        self.catch_up();
        match self.phase {
            Phase::Lost(_) => return,
            Phase::Calling { .. } => {
                let is_silent =
                    self.watch.probes >= PROBES_LEAST && now >= self.watch.heard_at + self.settings.suspicion;
                if is_silent || self.is_refusal_true(now) {
                    self.lose(Reason::NobodyThere);
                }
                return;
            }
            Phase::Open => {}
        }
        self.forgive_absence(now);
        if self.lost_at().is_some_and(|at| at <= now) {
            return self.lose(Reason::Silent);
        }
        if self.is_refusal_true(now) {
            return self.lose(Reason::PeerLost);
        }
        self.acks.is_due |= self.acks.due_at.is_some_and(|at| at <= now);
        self.find_lost(now);
        if self.retry_at.is_some_and(|at| at <= now || rare::fires(Point::RetryEarly)) {
            self.retry(now);
        }
        if rare::fires(Point::RestEarly) {
            self.streams.rest();
            self.sent.rest();
            self.congestion.rest();
        }
        if self.ask_at().is_some_and(|at| at <= now) {
            self.watch.asked_at = Some(self.waits_since(now));
            self.probes_due = 1;
        }
    }

    /// A packet goes out that the peer has to answer.
    #[inline]
    pub(super) fn note_asked(&mut self, now: Time) {
        if self.watch.asked_at.is_none() {
            self.watch.asked_at = Some(if self.watch.is_wanted { self.waits_since(now) } else { now });
        }
    }

    /// When the peer's silence began, if somebody already waits: when it was last heard, but at most the asking
    /// interval before now, because a wait that begins only now has not lasted longer.
    #[inline]
    fn waits_since(&self, now: Time) -> Time {
        let least = now.since(Time::default() + self.settings.suspicion / ASK_AFTER);
        self.watch.heard_at.max(Time::default() + least)
    }

    /// If this host was away, the peer may have been away too: a suspended machine, a stopped group of processes. That
    /// time does not count as silence of the peer. It is forgiven only once, so that a program that polls rarely still
    /// learns of a death.
    #[cold]
    pub(super) fn forgive_absence(&mut self, now: Time) {
        let away = self.retry_at.map_or(Duration::ZERO, |at| now.since(at));
        if away >= self.settings.suspicion / ABSENCE && !self.watch.has_forgiven {
            self.watch.asked_at = self.watch.asked_at.map(|at| at + away);
            self.watch.has_forgiven = true;
        }
    }

    /// Handles a retransmission timeout: the oldest packets are sent again, and the wait gets longer. The rest stays in
    /// flight until the answer tells what became of it.
    fn retry(&mut self, now: Time) {
        let under_way = self.sent.in_flight();
        let Channel { sent, streams, .. } = self;
        for _ in 0..PROBES {
            let gave_up = sent.give_up_oldest(now, |frame| streams.on_lost(frame));
            self.counters.packets_lost += u64::from(gave_up);
        }
        self.counters.timeouts += 1;
        // The first timeout in a row is only a probe: the last packets may have been lost, and nothing follows that
        // would show it.
        match self.backoff.tries() {
            0 => self.congestion.on_lost(now, under_way - self.sent.in_flight()),
            _ => self.congestion.on_timeout(now),
        }
        self.backoff.on_silence();
        self.watch.probes += 1;
        self.probes_due = PROBES;
        // The packet that goes now sets it again.
        self.retry_at = None;
    }

    /// When the peer counts as gone. Not before it was asked several times: if this process was stopped, answers may be
    /// waiting.
    fn lost_at(&self) -> Option<Time> {
        let since = self.watch.asked_at.filter(|_| self.watch.probes >= PROBES_LEAST)?;
        Some(since + self.settings.suspicion)
    }

    /// When to ask, or give up, a peer whose host refused a packet.
    fn refusal_at(&self) -> Option<Time> {
        self.watch.refusal.map(|refusal| refusal.next_at())
    }

    /// When the next paced packet may go.
    fn paced_at(&self) -> Option<Time> {
        let waits = self.has_more() && self.may_send(self.paced_until);
        waits.then_some(self.paced_until)
    }

    /// When to ask whether the peer is alive: nothing is in flight, and somebody waits.
    fn ask_at(&self) -> Option<Time> {
        let waits = self.watch.is_wanted || self.streams.has_kept();
        let is_asking = self.sent.in_flight() > 0 || self.probes_due > 0 || self.retry_at.is_some();
        (waits && !is_asking).then_some(self.watch.heard_at + self.settings.suspicion / ASK_AFTER)
    }
}
