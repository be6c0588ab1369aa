//! How often each user may do something in a second.

use std::collections::BTreeMap;
use weft_transport::Time;
use weft_wire::Uid;

/// A thing whose rate is bounded for each user.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rate {
    Endpoints,
    Remappings,
    Requests,
}

const KINDS: usize = 3;

/// How often each user may do something in a second. The excess waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rates {
    /// Endpoints made. Reusing another endpoint's memory counts once more for each 64 KiB that are zeroed.
    pub endpoints: u64,
    /// Times that an endpoint is made resident.
    pub remappings: u64,
    /// Requests, those for endpoints among them.
    pub requests: u64,
}

impl Default for Rates {
    fn default() -> Rates {
        Rates { endpoints: 10_000, remappings: 200_000, requests: 100_000 }
    }
}

/// How far a user may be ahead of its rate.
const AHEAD_NANOS: u64 = 100_000_000;

/// How far each user is ahead of its rates.
#[derive(Clone, Debug)]
pub(crate) struct Meters {
    /// Nanoseconds between two occurrences.
    intervals: [u64; KINDS],
    /// The time up to which each user has used its rates. A user without an entry has used nothing.
    users: BTreeMap<Uid, [Time; KINDS]>,
}

impl Meters {
    pub fn new(rates: Rates) -> Meters {
        let interval = |rate: u64| 1_000_000_000 / rate.max(1);
        let intervals = [rates.endpoints, rates.remappings, rates.requests].map(interval);
        Meters { intervals, users: BTreeMap::new() }
    }

    /// When a user may do something again. `None` if it may now.
    pub fn later(&self, user: Uid, rate: Rate, now: Time) -> Option<Time> {
        let used = self.users.get(&user)?[rate as usize];
        let ahead = used.nanos_since(now);
        (ahead > AHEAD_NANOS).then(|| now.plus_nanos(ahead - AHEAD_NANOS))
    }

    /// A user does something `times` times.
    pub fn note(&mut self, user: Uid, rate: Rate, times: u64, now: Time) {
        let interval = self.intervals[rate as usize];
        if interval == 0 {
            return;
        }
        let used = &mut self.users.entry(user).or_default()[rate as usize];
        *used = now.plus_nanos(used.nanos_since(now).saturating_add(interval.saturating_mul(times)));
    }

    /// Forgets users that are not ahead.
    pub fn forget(&mut self, now: Time) {
        self.users.retain(|_, used| used.iter().any(|used| *used > now));
    }

    /// Users with an entry.
    #[cfg(test)]
    pub fn users(&self) -> usize {
        self.users.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USER: Uid = Uid(1);

    #[test]
    fn a_user_does_so_much_in_a_second_and_another_one_does_not_matter() {
        let mut meters = Meters::new(Rates { requests: 1000, ..Rates::default() });
        let mut now = Time::from_micros(1);
        let mut times = 0;
        meters.note(Uid(2), Rate::Requests, 1_000_000, now);
        meters.note(USER, Rate::Endpoints, 1_000_000, now);
        while now < Time::from_micros(1_000_000) {
            match meters.later(USER, Rate::Requests, now) {
                Some(at) => {
                    assert!(at > now);
                    now = at;
                }
                None => {
                    meters.note(USER, Rate::Requests, 1, now);
                    times += 1;
                }
            }
        }
        assert!((1099..=1102).contains(&times), "a second's, and a tenth of a second ahead: {times}");
    }

    #[test]
    fn users_that_are_not_ahead_are_forgotten() {
        let mut meters = Meters::new(Rates::default());
        let now = Time::from_micros(5);
        meters.note(USER, Rate::Remappings, 1, now);
        meters.forget(now);
        assert_eq!(meters.users(), 1);
        meters.forget(now.plus_nanos(5000));
        assert_eq!(meters.users(), 0);
        let mut meters = Meters::new(Rates { remappings: u64::MAX, ..Rates::default() });
        meters.note(USER, Rate::Remappings, u64::MAX, now);
        assert_eq!((meters.users(), meters.later(USER, Rate::Remappings, now)), (0, None), "no rate at all");
    }
}
