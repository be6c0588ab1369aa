//! Whose messages an endpoint admits, and how often it admits callers without a key.
//!
//! The tags `AM_ALL` and `AM_NONE` of Active Messages II are [`Admission::Anybody`] and [`Admission::Nobody`].

use std::time::Duration;
use weft_wire::{Key, Reason, Uid};

/// Whose messages an endpoint admits.
///
/// The kernel reports the user of a process on this host. A process on another host claims its own user, so nobody can
/// rely on that.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Admission {
    /// Nobody's. Messages come back with [`Reason::Closed`]. Replies to the endpoint's own requests still arrive.
    Nobody,
    /// Those of processes that know the key: of the own user on this host, and of any user on other hosts.
    #[default]
    OwnUser,
    /// Those of processes of any user that know the key. Processes of other users are *foreign*: their payloads are
    /// copied out before anyone reads them, and what they may hold here is bounded.
    AnyUser,
    /// Like `OwnUser`, but processes of the own user on this host need no key.
    OwnUserWithoutKey,
    /// Those of all processes, without a key. The number of their sessions, and the rate of new ones, is bounded for
    /// each user of this host and for each address on other hosts.
    Anybody,
}

/// Why a message is admitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admitted {
    /// It carries the endpoint's key.
    ByKey,
    /// The endpoint asks for none.
    WithoutKey,
}

impl Admission {
    /// Whether an endpoint of user `own` with this `key` admits a message of `user` that carries `carried`. `user` is
    /// [`Uid::UNKNOWN`] on other hosts. Another user that is not admitted always gets `ForeignUser`, and does not learn
    /// whether its key was right.
    ///
    /// # Errors
    /// `Closed`, `WrongKey` or `ForeignUser`.
    #[doc(hidden)] // for the home of a bundle
    pub fn admit(self, own: Uid, key: Key, user: Uid, carried: Key) -> Result<Admitted, Reason> {
        self.admit_who(own, user, key.matches(carried))
    }

    /// Like [`Admission::admit`], for a sender that has proved that it knows the key, or has not.
    ///
    /// # Errors
    /// Those of [`Admission::admit`].
    #[doc(hidden)] // for the home of a bundle
    pub fn admit_who(self, own: Uid, user: Uid, has_key: bool) -> Result<Admitted, Reason> {
        let is_remote = user == Uid::UNKNOWN;
        let is_other = !is_remote && !user.is_same_as(own);
        match self {
            Admission::Nobody if is_other => Err(Reason::ForeignUser),
            Admission::Nobody => Err(Reason::Closed),
            Admission::OwnUser | Admission::OwnUserWithoutKey if is_other => Err(Reason::ForeignUser),
            Admission::AnyUser if is_other && !has_key => Err(Reason::ForeignUser),
            _ if has_key => Ok(Admitted::ByKey),
            Admission::Anybody => Ok(Admitted::WithoutKey),
            Admission::OwnUserWithoutKey if !is_remote => Ok(Admitted::WithoutKey),
            _ => Err(Reason::WrongKey),
        }
    }

    /// All variants, in the order of their codes.
    const ALL: [Admission; 5] =
        [Admission::Nobody, Admission::OwnUser, Admission::AnyUser, Admission::OwnUserWithoutKey, Admission::Anybody];

    /// The number that tells weftd of it.
    #[doc(hidden)] // for the home of a bundle
    pub fn code(self) -> u8 {
        Admission::ALL.iter().position(|other| *other == self).unwrap_or(0) as u8
    }

    /// The admission with this number.
    #[doc(hidden)] // for weftd
    pub fn from_code(code: u8) -> Option<Admission> {
        Admission::ALL.get(usize::from(code)).copied()
    }

    /// Whether processes of other users may be admitted.
    pub fn admits_others(self) -> bool {
        matches!(self, Admission::AnyUser | Admission::Anybody)
    }
}

/// Sessions that may be set up at once for callers without a key, from one user or one address.
pub const BURST: u32 = 64;

/// The time after which one more may be set up.
pub const EVERY: Duration = Duration::from_millis(20);

/// A token bucket: [`BURST`] uses at once, and one more for each [`EVERY`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Allowance {
    /// When it will be full again. Times may count from any beginning.
    whole_at: Duration,
}

impl Allowance {
    /// Takes one use, if there is one.
    pub fn take(&mut self, now: Duration) -> bool {
        let used = self.whole_at.saturating_sub(now);
        if used > EVERY * (BURST - 1) {
            return false;
        }
        self.whole_at = now.saturating_add(used).saturating_add(EVERY);
        true
    }

    /// Whether it is full, so that it can be forgotten.
    pub fn is_whole(&self, now: Duration) -> bool {
        self.whole_at <= now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Uid = Uid(1000);
    const KEY: Key = Key(7);

    #[test]
    fn each_admission_admits_whom_it_says() {
        use Admission::{AnyUser, Anybody, Nobody, OwnUser, OwnUserWithoutKey};
        let (by_key, without) = (Ok(Admitted::ByKey), Ok(Admitted::WithoutKey));
        let (closed, wrong, foreign) = (Err(Reason::Closed), Err(Reason::WrongKey), Err(Reason::ForeignUser));
        for (admission, own, other, remote) in [
            // Each result with the right key, and with a wrong one.
            (Nobody, [closed, closed], [foreign, foreign], [closed, closed]),
            (OwnUser, [by_key, wrong], [foreign, foreign], [by_key, wrong]),
            (AnyUser, [by_key, wrong], [by_key, foreign], [by_key, wrong]),
            (OwnUserWithoutKey, [by_key, without], [foreign, foreign], [by_key, wrong]),
            (Anybody, [by_key, without], [by_key, without], [by_key, without]),
        ] {
            for (user, expected) in [(OWN, own), (Uid(1001), other), (Uid::OVERFLOW, other), (Uid::UNKNOWN, remote)] {
                let got = [KEY, Key::NONE].map(|carried| admission.admit(OWN, KEY, user, carried));
                assert_eq!(got, expected, "{admission:?} of {user:?}");
            }
        }
        assert_eq!(Anybody.admit(Uid::OVERFLOW, KEY, Uid::OVERFLOW, KEY), by_key);
        assert_eq!(OwnUser.admit(Uid::OVERFLOW, KEY, Uid::OVERFLOW, KEY), foreign, "nobody's equal");
    }

    #[test]
    fn an_allowance_gives_a_burst_and_then_one_at_a_time() {
        let mut allowance = Allowance::default();
        let start = Duration::from_secs(5);
        let given = |allowance: &mut Allowance, now| (0..1000).filter(|_| allowance.take(now)).count() as u32;
        assert_eq!(given(&mut allowance, start), BURST);
        assert_eq!(given(&mut allowance, start + EVERY / 2), 0);
        assert_eq!(given(&mut allowance, start + EVERY), 1);
        assert_eq!(given(&mut allowance, start + EVERY * 4), 3);
        assert!(!allowance.is_whole(start + EVERY * 5));
        assert!(allowance.is_whole(start + EVERY * (BURST + 10)));
        assert_eq!(given(&mut allowance, start + EVERY * 10_000), BURST);
        assert_eq!(given(&mut allowance, Duration::ZERO), 0, "a clock that goes back");
    }
}
