//! The packet size, found by trial as in RFC 8899 (packetization layer path MTU discovery).
//!
//! It begins with a size that the link should carry, and tries larger ones while the channel has much to send. A trial
//! is a packet of zeros, one at a time; its loss means nothing else. If large packets vanish while smaller ones arrive,
//! the size is reduced. During silence smaller packets are used, without changing the size.

use crate::time::Time;
use std::time::Duration;
use weft_wire::packet::PACKET_LEAST;

/// What nearly every path carries: the size to fall back to.
const BASE: u16 = 1200;

/// Common sizes, the most common first: Ethernet's packets and jumbo frames, less an IPv4 and a UDP header.
const USUAL: [u16; 3] = [1500 - 28, 9000 - 28, BASE];

/// How often one size is tried before it counts as too large: one trial may be lost by chance.
const ATTEMPTS: u8 = 2;

/// The most trials of one search.
const TRIALS_MOST: u8 = 8;

/// No size is tried between two that are this close.
const NEAR: u16 = 32;

/// How long after a search the next one begins: RFC 8899, section 5.1.1, PMTU_RAISE_TIMER.
const SEARCH_AGAIN: Duration = Duration::from_secs(600);

/// The same, after large packets were found to vanish.
const SEARCH_AGAIN_AFTER_FALL: Duration = Duration::from_secs(60);

/// Large packets that must vanish, and at how many different times, while smaller ones arrive and no large one does.
const VANISHED: u32 = 6;
const VANISHED_TIMES: u32 = 3;

/// Consecutive timeouts after which smaller packets are used, and the smallest.
const SILENT_BASE: u32 = 2;
const SILENT_LEAST: u32 = 4;

/// The packet size of one direction of a channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PacketSize {
    /// The largest size known to get through.
    size: u16,
    /// The smallest size known not to.
    too_large: u16,
    /// The size of the trial that is under way.
    trial: Option<u16>,
    /// The size that was last tried, and how often it failed.
    attempts: (u16, u8),
    /// Trials of this search.
    trials: u8,
    /// A packet was filled, so larger ones would be useful.
    is_wanted: bool,
    /// No search before.
    search_at: Option<Time>,
    suspicion: Suspicion,
    trials_lost: u64,
}

/// Large packets that were lost in a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Suspicion {
    /// The smallest of them; zero if there is none.
    least: u16,
    /// When a smaller packet arrived after that. Large packets sent before may have been lost for another reason.
    alive_at: Option<Time>,
    /// Large packets lost that were sent after `alive_at`.
    packets: u32,
    /// At how many different times, and the last of them.
    times: u32,
    last: Option<Time>,
}

impl PacketSize {
    /// Begins with a size that the link should carry.
    pub fn new(first: u16) -> PacketSize {
        PacketSize {
            size: first,
            too_large: u16::MAX,
            trial: None,
            attempts: (0, 0),
            trials: 0,
            is_wanted: false,
            search_at: None,
            suspicion: Suspicion::default(),
            trials_lost: 0,
        }
    }

    /// A packet was filled up to the size: a larger one would have held more.
    #[inline]
    pub fn on_filled(&mut self) {
        self.is_wanted = true;
    }

    /// The size to try now, up to `most`, if it is time for a trial.
    pub fn next_trial(&mut self, now: Time, most: usize) -> Option<u16> {
        let most = u16::try_from(most).unwrap_or(u16::MAX);
        if !self.is_wanted || self.trial.is_some() || most <= self.size || self.search_at.is_some_and(|at| now < at) {
            return None;
        }
        if self.search_at.take().is_some() {
            (self.too_large, self.trials, self.attempts) = (u16::MAX, 0, (0, 0));
        }
        let candidate = self.candidate(most).filter(|_| self.trials < TRIALS_MOST);
        if candidate.is_none() {
            self.end_search(now, SEARCH_AGAIN);
        }
        candidate
    }

    /// A trial goes out.
    pub fn on_trial(&mut self, bytes: u16) {
        self.trial = Some(bytes);
        self.trials += 1;
    }

    /// A trial arrived.
    pub fn on_trial_came(&mut self, bytes: u16) {
        if self.trial.take_if(|trial| *trial == bytes).is_some() && bytes > self.size {
            self.size = bytes;
            self.suspicion = Suspicion::default();
        }
    }

    /// A trial is declared lost.
    pub fn on_trial_lost(&mut self, bytes: u16) {
        self.trials_lost += 1;
        if self.trial.take_if(|trial| *trial == bytes).is_none() {
            return;
        }
        let before = if self.attempts.0 == bytes { self.attempts.1 } else { 0 };
        self.attempts = (bytes, before + 1);
        if self.attempts.1 >= ATTEMPTS {
            self.too_large = self.too_large.min(bytes);
        }
    }

    /// An ordinary packet arrived.
    #[inline]
    pub fn on_came(&mut self, now: Time, bytes: u16) {
        if self.suspicion.least != 0 {
            self.on_came_in_doubt(now, bytes);
        }
    }

    /// An ordinary packet, sent at `sent_at`, is declared lost.
    pub fn on_lost(&mut self, now: Time, bytes: u16, sent_at: Time) {
        if bytes <= below(self.size) {
            return;
        }
        let s = &mut self.suspicion;
        s.least = if s.least == 0 { bytes } else { s.least.min(bytes) };
        if s.alive_at.is_some_and(|at| sent_at >= at) {
            s.packets += 1;
            s.times += u32::from(s.last != Some(now));
            s.last = Some(now);
        }
    }

    /// The link refuses packets of `bytes` bytes. That is certain, so sizes above the base may be tried at once.
    pub fn on_refused(&mut self, bytes: u16) {
        while self.size >= bytes && self.size > PACKET_LEAST as u16 {
            self.size = below(self.size);
        }
        self.too_large = self.too_large.min(bytes);
        self.trial = self.trial.filter(|trial| *trial < bytes);
        self.suspicion = Suspicion::default();
        self.search_at = None;
    }

    /// The size to use after this many consecutive timeouts.
    #[inline]
    pub fn after(&self, timeouts: u32) -> u16 {
        match timeouts {
            0..SILENT_BASE => self.size,
            SILENT_BASE..SILENT_LEAST => below(self.size),
            SILENT_LEAST.. => self.size.min(PACKET_LEAST as u16),
        }
    }

    /// Trials that were declared lost.
    pub fn trials_lost(&self) -> u64 {
        self.trials_lost
    }

    /// The next size to try: the largest first, then common sizes, then half-way between what arrives and what does not.
    fn candidate(&self, most: u16) -> Option<u16> {
        if self.too_large > most {
            return Some(most);
        }
        let usual = USUAL.into_iter().find(|&usual| usual > self.size && usual < self.too_large);
        let gap = self.too_large.saturating_sub(self.size);
        usual.or((gap > NEAR).then_some(self.size + gap / 2))
    }

    #[cold]
    fn on_came_in_doubt(&mut self, now: Time, bytes: u16) {
        let s = &mut self.suspicion;
        if bytes >= s.least {
            *s = Suspicion::default();
        } else if s.packets >= VANISHED && s.times >= VANISHED_TIMES {
            self.too_large = s.least;
            self.size = below(self.size);
            self.trial = None;
            self.suspicion = Suspicion::default();
            self.end_search(now, SEARCH_AGAIN_AFTER_FALL);
        } else {
            s.alive_at.get_or_insert(now);
        }
    }

    fn end_search(&mut self, now: Time, wait: Duration) {
        self.search_at = Some(now + wait);
        self.is_wanted = false;
    }
}

/// The size to fall back to from this one.
#[inline]
fn below(size: u16) -> u16 {
    if size > BASE {
        BASE
    } else {
        PACKET_LEAST as u16
    }
}
