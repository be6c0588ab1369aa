//! Unreachable hosts: what the network reports about them, and how long that is remembered.
//!
//! A call to an unreachable host takes some tenths of a second if its network refuses packets, and the suspicion time
//! if nothing comes back. Each message to the host would start such a call. So for a second after a call failed,
//! messages to the host come back at once. Afterwards the next message calls again, because the host may have returned.

use super::{Handle, HostId, HostKey, HostSessions, Link, Ni, Way};
use crate::{Bundle, Call};
use std::collections::VecDeque;
use std::time::Duration;
use weft_transport::Time;
use weft_wire::packet::{Quote, QUOTE};
use weft_wire::path::{Bells, Rx, Tx};
use weft_wire::{HostAddress, Reason};

/// How long an unreachable host is remembered.
const MEMORY: Duration = Duration::from_secs(1);

/// Largest number of hosts that are remembered. Above this, the oldest is forgotten.
const GONE_MOST: usize = 256;

/// Largest number of refusals that are handled in one turn.
const REFUSALS_MOST: usize = 64;

/// The hosts that are remembered, oldest first.
#[derive(Debug, Default)]
pub(super) struct Gone {
    vain: VecDeque<Vain>,
}

/// An unreachable host.
#[derive(Debug)]
struct Vain {
    host: HostKey,
    reason: Reason,
    until: Time,
}

impl Gone {
    fn add(&mut self, now: Time, host: HostKey, reason: Reason) {
        self.vain.retain(|vain| vain.until > now && vain.host != host);
        if self.vain.len() >= GONE_MOST {
            self.vain.pop_front();
        }
        self.vain.push_back(Vain { host, reason, until: now + MEMORY });
    }

    /// Forgets what is remembered of an address, because something arrived from there.
    pub fn forget(&mut self, address: HostAddress) {
        self.vain.retain(|vain| vain.host.address != address);
    }

    fn why(&self, now: Time, host: HostKey) -> Option<Reason> {
        let is_it = |vain: &&Vain| {
            let is_there = |address| vain.host == HostKey { address, ..host };
            vain.until > now && host.address.each().any(is_there)
        };
        self.vain.iter().rev().find(is_it).map(|vain| vain.reason)
    }

    /// Bytes of memory beyond its own.
    pub fn memory(&self) -> usize {
        self.vain.capacity() * size_of::<Vain>()
    }
}

impl<L: Link> Ni<L> {
    /// Handles the network's reports about packets that could not be delivered.
    #[cold]
    pub fn take_refusals(&mut self, now: Time) {
        let mut quoted = [0; QUOTE];
        for _ in 0..REFUSALS_MOST {
            let Some((to, bytes)) = self.link.next_refusal(&mut quoted) else { return };
            self.on_refusal(now, to, &quoted[..bytes]);
        }
    }

    /// A packet to this address was refused, because nobody has the port. `quoted` is the packet's beginning.
    #[cold]
    pub fn on_refusal(&mut self, now: Time, to: HostAddress, quoted: &[u8]) {
        let quote = Quote::read(quoted);
        let found = quote.and_then(|quote| Some((quote, self.hosts.by_channel(quote.from)?)));
        let Some((quote, index)) = found else { return self.refused += 1 };
        let Some((id, host)) = self.hosts.entry(index) else { return };
        if host.others.is_empty() {
            let counts = host.way.to == to && host.channel.on_refusal(now, &quote);
            self.refused += u64::from(!counts);
            return self.mark(index);
        }
        // Several addresses of it were called. The others may be right.
        let mut ways: Vec<Way> = std::iter::once(host.way).chain(host.others.iter().copied()).collect();
        let place = ways.iter().position(|way| way.to == to).filter(|_| host.channel.has_sent(&quote));
        let Some(place) = place else { return self.refused += 1 };
        ways.remove(place);
        host.has_called = true;
        host.channel.call_again(now);
        let preferred = ways.remove(0);
        self.hosts.set_ways(id, preferred, ways.into());
        self.mark(index);
    }

    /// Returns why a host is unreachable, if that was found within the last second and nothing was heard from it since.
    pub fn why_gone(&self, host: HostKey) -> Option<Reason> {
        self.gone.why(self.link.now(), host)
    }

    /// Remembers a host that was lost because it did not answer when it was called, or because its host refuses packets.
    /// One that only fell silent is not remembered: it may be reached by another address.
    pub(super) fn remember(&mut self, now: Time, id: HostId) {
        let Some(host) = self.hosts.get(id) else { return };
        let is_stranger = self.strangers.iter().any(|stranger| stranger.id == id);
        let Some(reason @ (Reason::NobodyThere | Reason::PeerLost)) = host.channel.lost() else { return };
        if !is_stranger {
            // Another address may have belonged to another process; that reason applies only to calls.
            let refusal = host.refusal.filter(|_| reason == Reason::NobodyThere);
            self.gone.add(now, host.key, refusal.unwrap_or(reason));
        }
    }
}

impl<H: Handle> HostSessions<H> {
    /// Refuses a call to a host that is known to be unreachable. Returns false if the host has to be called.
    pub(super) fn refuse_at_once<R: Rx, T: Tx, B: Bells>(&self, core: &mut Bundle<R, T, B>, call: &Call) -> bool {
        let ni = self.ni().borrow_mut();
        let host = HostKey { address: call.name.address, epoch: call.name.epoch };
        let Some(reason) = ni.why_gone(host).filter(|_| ni.find(host).is_none()) else { return false };
        drop(ni);
        core.state_mut().refused(*call, reason);
        true
    }
}
