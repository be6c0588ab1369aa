//! Incast: many hosts that send to this one at once.
//!
//! A socket buffers packets up to a size. A thousand hosts that begin with ten packets each fill a socket of 4 MiB four
//! times. The kernel drops the rest, and often it is the same hosts that lose (*incast*: Phanishayee et al., FAST
//! 2008). Congestion control does not see this, because it ignores the time that packets wait unread: a program that
//! computes is not congestion.
//!
//! So while the receiver cannot keep up, it announces to each host a share of the socket's room. Receivers in data
//! centres hand out credit in this way (Homa: Montazeri et al., SIGCOMM 2018). It cannot keep up if its polls of the
//! socket find packets and never empty it. Once a poll empties the socket, shares grow until nobody needs one.

use super::{Link, Ni};
use std::time::Duration;
use weft_transport::Time;

/// If polls have found packets for this long and never emptied the socket, more arrives than is read.
const CROWDED_AFTER: Duration = Duration::from_micros(500);

/// The length of a period. The hosts that were heard in the current or the previous period share the room.
const PERIOD: Duration = Duration::from_millis(50);

/// After a poll has emptied the socket, shares double once in this time.
const GROW_EVERY: Duration = Duration::from_millis(1);

/// The fraction of the room that is handed out. The rest is for the kernel's overhead and for hosts that have no share yet.
const ROOM_PART: u64 = 2;

/// The smallest share: a packet of Ethernet's size.
const SHARE_LEAST: u64 = 1472;

/// Counts the hosts that send to this one, and notes whether it keeps up with them.
#[derive(Debug, Default)]
pub(super) struct Incast {
    /// Since when polls find packets and never empty the socket.
    busy_since: Option<Time>,
    /// The bytes that each host may have in flight.
    share: Option<u64>,
    /// When shares grow next.
    grows_at: Time,
    /// When the current period began.
    began_at: Time,
    /// Hosts that were heard in it, and in the previous one.
    heard: [u32; 2],
}

impl Incast {
    /// A packet arrived from a host that was last heard at `heard_at`.
    #[inline]
    pub fn heard(&mut self, now: Time, heard_at: Time) {
        self.busy_since.get_or_insert(now);
        if now.since(self.began_at) >= PERIOD {
            self.end_period(now);
        }
        if heard_at < self.began_at {
            self.heard[0] = self.heard[0].saturating_add(1);
        }
    }

    /// Counts a new host, which has just been heard or will be.
    pub fn met(&mut self) {
        self.heard[0] = self.heard[0].saturating_add(1);
    }

    #[cold]
    fn end_period(&mut self, now: Time) {
        let before = if now.since(self.began_at) < 2 * PERIOD { self.heard[0] } else { 0 };
        (self.heard, self.began_at) = ([0, before], now);
    }

    /// The socket is empty.
    #[inline]
    pub fn drained(&mut self) {
        self.busy_since = None;
    }

    /// The share to announce to each host, if it is needed. `room` is the size of the socket's buffer.
    #[inline]
    pub fn share(&mut self, now: Time, room: impl FnOnce() -> u64) -> Option<u32> {
        let is_crowded = self.busy_since.is_some_and(|since| now.since(since) >= CROWDED_AFTER);
        if !is_crowded && self.share.is_none() {
            return None;
        }
        self.settle(now, is_crowded, room())
    }

    #[cold]
    fn settle(&mut self, now: Time, is_crowded: bool, room: u64) -> Option<u32> {
        if room == u64::MAX {
            return None;
        }
        if is_crowded {
            let hosts = self.heard.into_iter().max().unwrap_or(0).max(1);
            let share = (room / ROOM_PART / u64::from(hosts)).max(SHARE_LEAST);
            self.share = Some(self.share.map_or(share, |before| before.min(share)));
            self.grows_at = now + GROW_EVERY;
        } else if now >= self.grows_at {
            self.share = self.share.map(|share| share.saturating_mul(2)).filter(|share| *share < room);
            self.grows_at = now + GROW_EVERY;
        }
        self.share.and_then(|share| share.try_into().ok())
    }
}

impl<L: Link> Ni<L> {
    /// Notes that all packets in the link were received. Call it whenever a poll finds none.
    #[inline]
    pub fn has_received_all(&mut self) {
        self.incast.drained();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: u64 = 4 << 20;

    fn at(micros: u64) -> Time {
        Time::from_nanos(1_000_000_000 + micros * 1000)
    }

    /// Hears from all `hosts`, one per microsecond, from this time on.
    fn hear(incast: &mut Incast, hosts: &mut [Time], from: u64) {
        for (host, micros) in hosts.iter_mut().zip(from..) {
            incast.heard(at(micros), *host);
            *host = at(micros);
        }
    }

    #[test]
    fn who_never_comes_to_the_end_tells_shares_and_they_grow_once_it_does() {
        let (mut incast, mut hosts) = (Incast::default(), [Time::default(); 64]);
        hear(&mut incast, &mut hosts, 0);
        assert_eq!(incast.share(at(400), || ROOM), None, "not for long yet");
        hear(&mut incast, &mut hosts, 400);
        assert_eq!(incast.share(at(500), || ROOM), Some((ROOM / 128) as u32));
        // A host counts once per period.
        hear(&mut incast, &mut hosts, 10_000);
        assert_eq!(incast.share(at(10_100), || ROOM), Some((ROOM / 128) as u32));
        incast.drained();
        let mut before = ROOM as u32 / 128;
        for millis in 12..17 {
            let share = incast.share(at(millis * 1000), || ROOM).expect("it grows");
            assert_eq!(share, 2 * before);
            before = share;
        }
        let last = (17..24).filter_map(|millis| incast.share(at(millis * 1000), || ROOM)).last();
        assert!(last.is_none_or(|share| u64::from(share) < ROOM));
        assert_eq!(incast.share(at(25_000), || ROOM), None);
    }

    #[test]
    fn a_host_that_empties_its_socket_announces_no_shares_however_many_send() {
        let (mut incast, mut hosts) = (Incast::default(), [Time::default(); 4096]);
        for turn in 0..100 {
            hear(&mut incast, &mut hosts[turn * 40..][..40], turn as u64 * 500);
            assert_eq!(incast.share(at(turn as u64 * 500 + 100), || ROOM), None);
            incast.drained();
        }
    }

    #[test]
    fn hosts_that_are_not_heard_any_more_do_not_count_and_no_share_is_less_than_a_packet() {
        let (mut incast, mut hosts) = (Incast::default(), [Time::default(); 4096]);
        hear(&mut incast, &mut hosts, 0);
        assert_eq!(incast.share(at(5000), || ROOM), Some(SHARE_LEAST as u32));
        incast.drained();
        assert_eq!(incast.share(at(7000), || ROOM), Some(2 * SHARE_LEAST as u32));
        (8..40).for_each(|millis| _ = incast.share(at(millis * 1000), || ROOM));
        for from in [60_000, 120_000, 180_000] {
            hear(&mut incast, &mut hosts[..2], from);
        }
        assert_eq!(incast.share(at(181_000), || ROOM), Some((ROOM / 4) as u32));
    }

    #[test]
    fn a_link_that_keeps_everything_needs_no_shares() {
        let (mut incast, mut hosts) = (Incast::default(), [Time::default(); 64]);
        hear(&mut incast, &mut hosts, 0);
        assert_eq!(incast.share(at(5000), || u64::MAX), None);
    }
}
