//! What happens by itself.

use super::{Channel, Phase};
use crate::congestion::Congestion;
use crate::memory::Memory;
use crate::rare::{self, Point};
use crate::time::Time;
use std::time::Duration;
use weft_wire::Reason;

/// Fewer time-outs than this in silence say that we were away, not the peer.
const PROBES_LEAST: u32 = 3;

/// Who comes later than by this part of the suspicion time was away.
const ABSENCE: u32 = 8;

/// Who waits asks a peer that was silent for this part of the suspicion time.
const ASK_AFTER: u32 = 4;

/// Packets that go when no acknowledgement came in time.
const PROBES: u32 = 2;

/// The first of two times. Plain, for it is asked each turn: with this instead of `flatten` and `min` of an array, and the peer's patience
/// looked at only where it counts, [`Channel::next_timeout`] takes 174 instructions instead of 423.
#[inline]
fn sooner(a: Option<Time>, b: Option<Time>) -> Option<Time> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

impl<C: Congestion, M: Memory> Channel<C, M> {
    /// When [`Channel::on_timeout`] is to be called, if nothing happens before. None: never; an idle channel wants nothing.
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

    /// Does what is due. Call [`Channel::transmit`] afterwards.
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

    /// Something goes that the peer is to answer.
    #[inline]
    pub(super) fn note_asked(&mut self, now: Time) {
        if self.watch.asked_at.is_none() {
            self.watch.asked_at = Some(if self.watch.is_wanted { self.waits_since(now) } else { now });
        }
    }

    /// Since when the peer's silence counts if somebody waits already: since it was heard. At most the time after which it is
    /// asked goes before, for who waits only now has not waited for longer.
    #[inline]
    fn waits_since(&self, now: Time) -> Time {
        let least = now.since(Time::default() + self.settings.suspicion / ASK_AFTER);
        self.watch.heard_at.max(Time::default() + least)
    }

    /// If we were away, the peer perhaps was so with us: a machine that was suspended, a group of processes that was stopped.
    /// That time does not count as its silence; once, for a program that polls seldom is to learn of a death too.
    #[cold]
    pub(super) fn forgive_absence(&mut self, now: Time) {
        let away = self.retry_at.map_or(Duration::ZERO, |at| now.since(at));
        if away >= self.settings.suspicion / ABSENCE && !self.watch.has_forgiven {
            self.watch.asked_at = self.watch.asked_at.map(|at| at + away);
            self.watch.has_forgiven = true;
        }
    }

    /// No acknowledgement came in time: what is oldest goes again, and the wait gets longer. The rest stays in flight; the
    /// answer tells what became of it.
    fn retry(&mut self, now: Time) {
        let under_way = self.sent.in_flight();
        let Channel { sent, streams, .. } = self;
        for _ in 0..PROBES {
            let gave_up = sent.give_up_oldest(now, |frame| streams.on_lost(frame));
            self.counters.packets_lost += u64::from(gave_up);
        }
        self.counters.timeouts += 1;
        // The first of a row is a probe: it may be that the last packets were lost, behind which nothing comes that would tell.
        match self.backoff.tries() {
            0 => self.congestion.on_lost(now, under_way - self.sent.in_flight()),
            _ => self.congestion.on_timeout(now),
        }
        self.backoff.on_silence();
        self.watch.probes += 1;
        self.probes_due = PROBES;
        // Set again by the packet that goes now.
        self.retry_at = None;
    }

    /// When the peer is taken for gone. Not before we have asked several times: if we were stopped, its answers wait for us.
    fn lost_at(&self) -> Option<Time> {
        let since = self.watch.asked_at.filter(|_| self.watch.probes >= PROBES_LEAST)?;
        Some(since + self.settings.suspicion)
    }

    /// When a peer whose host refused a packet is to be asked, or given up.
    fn refusal_at(&self) -> Option<Time> {
        self.watch.refusal.map(|refusal| refusal.next_at())
    }

    /// When the next packet may go that only waits for its time.
    fn paced_at(&self) -> Option<Time> {
        let waits = self.has_more() && self.may_send(self.paced_until);
        waits.then_some(self.paced_until)
    }

    /// When to ask whether the peer is there: nothing is in flight, and somebody waits.
    fn ask_at(&self) -> Option<Time> {
        let waits = self.watch.is_wanted || self.streams.has_kept();
        let is_asking = self.sent.in_flight() > 0 || self.probes_due > 0 || self.retry_at.is_some();
        (waits && !is_asking).then_some(self.watch.heard_at + self.settings.suspicion / ASK_AFTER)
    }
}
