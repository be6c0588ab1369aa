//! A link in memory, in virtual time, and a decorator that adds faults; for tests and simulation.

use crate::random::Random;
use crate::time::Time;
use std::collections::BTreeMap;
use std::time::Duration;

/// Carries packets one way. No call blocks.
pub trait Link {
    /// Sends a packet at a time that may lie ahead, but not before that of an earlier packet from the same call site.
    fn send(&mut self, at: Time, packet: &[u8]);
    /// The next packet that has come by now.
    fn receive(&mut self, now: Time) -> Option<Vec<u8>>;
    /// When the next packet comes.
    fn next_arrival(&self) -> Option<Time>;
}

/// A link that loses nothing: a delay, and a rate at which packets follow each other.
#[derive(Debug)]
pub struct MemLink {
    delay: Duration,
    /// The transmission time of one byte, in picoseconds.
    byte_time: u64,
    free_at: Time,
    sent: u64,
    under_way: BTreeMap<(Time, u64), Vec<u8>>,
    bytes: u64,
}

impl MemLink {
    /// A link with this delay and rate.
    pub fn new(delay: Duration, bits_per_second: u64) -> MemLink {
        let byte_time = 8_000_000_000_000 / bits_per_second.max(1);
        MemLink { delay, byte_time, free_at: Time::default(), sent: 0, under_way: BTreeMap::new(), bytes: 0 }
    }

    /// Bytes that were sent.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Packets that were sent.
    pub fn packets(&self) -> u64 {
        self.sent
    }
}

impl Link for MemLink {
    fn send(&mut self, at: Time, packet: &[u8]) {
        let takes = Duration::from_nanos(packet.len() as u64 * self.byte_time / 1000);
        self.free_at = self.free_at.max(at) + takes;
        self.under_way.insert((self.free_at + self.delay, self.sent), packet.to_vec());
        self.sent += 1;
        self.bytes += packet.len() as u64;
    }

    fn receive(&mut self, now: Time) -> Option<Vec<u8>> {
        let first = self.under_way.first_entry().filter(|first| first.key().0 <= now)?;
        Some(first.remove())
    }

    fn next_arrival(&self) -> Option<Time> {
        self.under_way.first_key_value().map(|(&(at, _), _)| at)
    }
}

/// The faults of a link: chances per million packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Faults {
    /// Packets that vanish.
    pub drop: u32,
    /// Packets that are duplicated, with a late copy.
    pub duplicate: u32,
    /// Packets with changed bits or length.
    pub corrupt: u32,
    /// Packets that are held back, so that others overtake them.
    pub reorder: u32,
    /// The longest time that packets are held back and copies are late.
    pub late_most: Duration,
}

/// The faults that a link injected.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Done {
    /// Packets that vanished.
    pub dropped: u64,
    /// Packets that were duplicated.
    pub duplicated: u64,
    /// Packets that were changed.
    pub corrupted: u64,
    /// Packets that were held back.
    pub reordered: u64,
    /// Packets that were larger than the link carries.
    pub too_large: u64,
}

/// A link with faults. The same seed injects the same faults.
#[derive(Debug)]
pub struct Faulty<L> {
    inner: L,
    /// The faults. May be changed at any time.
    pub faults: Faults,
    /// Larger packets vanish. May be changed at any time.
    pub carries: usize,
    done: Done,
    random: Random,
    held: BTreeMap<(Time, u64), Vec<u8>>,
    packets: u64,
}

impl<L: Link> Faulty<L> {
    /// A link with faults over `inner`.
    pub fn new(inner: L, faults: Faults, seed: u64) -> Faulty<L> {
        Faulty {
            inner,
            faults,
            carries: usize::MAX,
            done: Done::default(),
            random: Random::new(seed),
            held: BTreeMap::new(),
            packets: 0,
        }
    }

    /// The faults that were injected.
    pub fn done(&self) -> Done {
        self.done
    }

    /// The link below.
    pub fn inner(&self) -> &L {
        &self.inner
    }

    fn hold(&mut self, until: Time, packet: Vec<u8>) {
        self.packets += 1;
        self.held.insert((until, self.packets), packet);
    }

    fn late(&mut self, at: Time) -> Time {
        let most = u64::try_from(self.faults.late_most.as_nanos()).unwrap_or(u64::MAX);
        at + Duration::from_nanos(self.random.below(most))
    }

    fn corrupt(&mut self, packet: &mut Vec<u8>) {
        let at = self.random.below(packet.len() as u64) as usize;
        match self.random.below(5) {
            0 => packet[at] ^= 1 << self.random.below(8),
            1 => packet[at] ^= 1 + self.random.below(255) as u8,
            2 => packet.truncate(at),
            3 => packet.push(self.random.bits() as u8),
            _ => {
                let bytes = packet.len().min(at + 4);
                packet[at..bytes].iter_mut().for_each(|b| *b = !*b);
            }
        }
    }

    /// Passes on packets whose delay is over.
    fn pass_on(&mut self, now: Time) {
        while let Some(first) = self.held.first_entry().filter(|first| first.key().0 <= now) {
            let ((at, _), packet) = first.remove_entry();
            self.inner.send(at, &packet);
        }
    }
}

impl<L: Link> Link for Faulty<L> {
    fn send(&mut self, at: Time, packet: &[u8]) {
        self.pass_on(at);
        if packet.len() > self.carries {
            self.done.too_large += 1;
            return;
        }
        if self.random.chance(self.faults.drop) {
            self.done.dropped += 1;
            return;
        }
        let mut packet = packet.to_vec();
        if self.random.chance(self.faults.duplicate) {
            self.done.duplicated += 1;
            let late = self.late(at);
            self.hold(late, packet.clone());
        }
        if self.random.chance(self.faults.corrupt) {
            self.done.corrupted += 1;
            self.corrupt(&mut packet);
        }
        if self.random.chance(self.faults.reorder) {
            self.done.reordered += 1;
            let late = self.late(at);
            return self.hold(late, packet);
        }
        self.inner.send(at, &packet);
    }

    fn receive(&mut self, now: Time) -> Option<Vec<u8>> {
        self.pass_on(now);
        self.inner.receive(now)
    }

    fn next_arrival(&self) -> Option<Time> {
        let held = self.held.first_key_value().map(|(&(at, _), _)| at);
        [held, self.inner.next_arrival()].into_iter().flatten().min()
    }
}
