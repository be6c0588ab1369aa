//! Callers from other hosts that have a session without a key: how many there may be, and how fast more are admitted.

use super::{HostId, Link, Ni, Origin};
use crate::admission::Allowance;
use std::time::Duration;
use weft_transport::Time;
use weft_wire::frame::StreamId;

/// Largest number of sessions of callers that showed no key. A caller is refused too if its origin holds as many as are free.
pub(super) const GUESTS_MOST: usize = 256;

/// Number of allowances. Origins whose hash is the same share one.
const ALLOWANCES: usize = 64;

/// A session of a caller without a key.
type Seat = (HostId, StreamId, Origin);

/// The sessions of callers without a key.
#[derive(Debug)]
pub(super) struct Guests {
    seats: Vec<Seat>,
    /// None until the first guest comes.
    allowances: Option<Box<[Allowance; ALLOWANCES]>>,
    /// Keeps others from choosing an address that shares somebody else's allowance.
    secret: u64,
}

impl Guests {
    pub fn new(secret: [u64; 2]) -> Guests {
        Guests { seats: Vec::new(), allowances: None, secret: secret[0] ^ secret[1].rotate_left(29) }
    }

    /// Gives a caller a seat, if its origin may have one now. No origin gets more than remain free, as with
    /// [strangers](super::Ni).
    fn admit(&mut self, now: Time, id: HostId, stream: StreamId, origin: Origin) -> bool {
        let taken = self.seats.iter().filter(|(_, _, other)| *other == origin).count();
        if taken >= GUESTS_MOST.saturating_sub(self.seats.len()) {
            return false;
        }
        let place = self.allowance_of(origin);
        let allowances = self.allowances.get_or_insert_with(|| Box::new([Allowance::default(); ALLOWANCES]));
        let is_admitted = allowances.get_mut(place).is_some_and(|it| it.take(Duration::from_nanos(now.as_nanos())));
        if is_admitted {
            self.seats.push((id, stream, origin));
        }
        is_admitted
    }

    /// The sessions of a host have ended.
    pub fn forget_host(&mut self, id: HostId) {
        self.seats.retain(|(host, _, _)| *host != id);
    }

    /// A session has ended.
    pub fn forget(&mut self, id: HostId, stream: StreamId) {
        self.seats.retain(|(host, its, _)| (*host, *its) != (id, stream));
    }

    /// Bytes of memory beyond its own.
    pub fn memory(&self) -> usize {
        let allowances = self.allowances.as_ref().map_or(0, |allowances| size_of_val(&**allowances));
        self.seats.capacity() * size_of::<Seat>() + allowances
    }

    fn allowance_of(&self, origin: Origin) -> usize {
        let mix = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31);
        let hash = origin.words().into_iter().fold(self.secret, mix);
        (mix(hash, self.secret) % ALLOWANCES as u64) as usize
    }
}

impl<L: Link> Ni<L> {
    /// Whether a host may have a session without a key on this stream. If so, it holds a seat until the stream is closed.
    pub fn admit_guest(&mut self, id: HostId, stream: StreamId) -> bool {
        let now = self.link.now();
        let Some(host) = self.hosts.get(id) else { return false };
        let origin = Origin::of(host.key.address);
        self.guests.admit(now, id, stream, origin)
    }

    /// Sessions of callers without a key.
    pub fn guests(&self) -> usize {
        self.guests.seats.len()
    }
}
