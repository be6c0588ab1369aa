//! The event queue: events by time, and in the order of entry within one time.
//!
//! A radix heap (Ahuja, Mehlhorn, Orlin, Tarjan, 1990): time never goes back, so an event lies in the bucket of the highest bit in
//! which its time differs from the present, and moves down as that time comes near. Each bucket keeps the order of entry, and
//! events of one time always share a bucket, so they come out as they went in.

/// Events that wait for their time, in nanoseconds.
#[derive(Debug)]
pub(crate) struct EventQueue<E> {
    now: u64,
    /// By the highest bit in which a time differs from `now`, counted from 1; the first has those of `now`.
    buckets: Vec<Vec<(u64, E)>>,
    /// One bit for each bucket but the first that is not empty.
    occupied: u64,
    /// How many events of the first bucket were taken.
    taken: usize,
}

impl<E: Copy> EventQueue<E> {
    pub fn new() -> EventQueue<E> {
        EventQueue { now: 0, buckets: (0..65).map(|_| Vec::new()).collect(), occupied: 0, taken: 0 }
    }

    /// Adds an event. One whose time has passed happens now.
    #[inline]
    pub fn push(&mut self, at: u64, event: E) {
        let at = at.max(self.now);
        self.put(at, event);
    }

    /// The next event, unless it is later than `end`.
    #[inline]
    pub fn pop(&mut self, end: u64) -> Option<(u64, E)> {
        if self.taken == self.buckets[0].len() && !self.refill(end) {
            return None;
        }
        let next = self.buckets[0][self.taken];
        if next.0 > end {
            return None;
        }
        self.taken += 1;
        Some(next)
    }

    #[inline]
    fn put(&mut self, at: u64, event: E) {
        let bucket = 64 - (at ^ self.now).leading_zeros();
        if bucket > 0 {
            self.occupied |= 1 << (bucket - 1);
        }
        self.buckets[bucket as usize].push((at, event));
    }

    /// Moves the earliest bucket down. False if there is none, or all of it is later than `end`.
    fn refill(&mut self, end: u64) -> bool {
        self.buckets[0].clear();
        self.taken = 0;
        if self.occupied == 0 {
            return false;
        }
        let bucket = self.occupied.trailing_zeros() as usize + 1;
        let earliest = self.buckets[bucket].iter().map(|(at, _)| *at).min().unwrap_or(u64::MAX);
        if earliest > end {
            return false;
        }
        self.now = earliest;
        self.occupied &= !(1 << (bucket - 1));
        let mut events = std::mem::take(&mut self.buckets[bucket]);
        for (at, event) in events.drain(..) {
            self.put(at, event);
        }
        self.buckets[bucket] = events;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_transport::Random;

    #[test]
    fn events_come_by_time_and_in_the_order_they_were_made() {
        let (mut queue, mut random) = (EventQueue::new(), Random::new(1));
        let (mut model, mut now) = (Vec::new(), 0);
        for n in 0..100_000u32 {
            // Many of one time, some far ahead.
            let bits = random.below(40);
            let ahead = random.below(1 << bits) / 8 * 8;
            queue.push(now + ahead, n);
            model.push((now + ahead, n));
            while random.below(100) < 55 {
                let Some((at, n)) = queue.pop(now + 1000) else { break };
                assert!(at >= now);
                now = at;
                let first = model.iter().min().copied();
                assert_eq!(first, Some((at, n)));
                model.retain(|entry| *entry != (at, n));
            }
            if n % 64 == 0 && model.len() > 300 {
                while let Some(found) = queue.pop(u64::MAX) {
                    assert_eq!(model.iter().min(), Some(&found));
                    model.retain(|entry| *entry != found);
                    now = found.0;
                }
                assert!(model.is_empty());
            }
        }
    }

    #[test]
    fn events_after_the_end_stay_and_earlier_ones_may_still_be_added() {
        let mut queue = EventQueue::new();
        queue.push(1000, 'b');
        assert_eq!(queue.pop(999), None);
        queue.push(500, 'a');
        assert_eq!(queue.pop(u64::MAX), Some((500, 'a')));
        assert_eq!(queue.pop(u64::MAX), Some((1000, 'b')));
        assert_eq!(queue.pop(u64::MAX), None);
    }
}
