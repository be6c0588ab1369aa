//! How much each user may hold: a share of what is left, so that the next user always finds some. (The rule of dbus-broker.)

use std::collections::BTreeMap;
use std::ops::Bound;
use weft_wire::Uid;

/// A thing that is counted for each user.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Quota {
    /// Endpoints.
    Endpoints,
    /// Lines of its endpoints, and lines that these opened at other users' endpoints.
    Lines,
    /// Pages of files.
    Pages,
    /// Attachments.
    Attachments,
    /// Calls that are not answered yet.
    Calls,
    /// Chunks of 16 KiB of what other hosts have not taken.
    UnderWay,
}

const KINDS: usize = 6;

/// All of them, with the words for people.
pub(crate) const QUOTAS: [(Quota, &str); KINDS] = [
    (Quota::Endpoints, "endpoints"),
    (Quota::Lines, "lines"),
    (Quota::Pages, "pages"),
    (Quota::Attachments, "attachments"),
    (Quota::Calls, "calls"),
    (Quota::UnderWay, "chunks of 16 KiB under way"),
];

/// Limits for all users together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Endpoints.
    pub endpoints: u64,
    /// Lines.
    pub lines: u64,
    /// Pages of files, of 4 KiB.
    pub pages: u64,
    /// Attachments.
    pub attachments: u64,
    /// Calls that are not answered yet.
    pub calls: u64,
    /// Chunks of 16 KiB of what other hosts have not taken. The first one of each line does not count.
    pub under_way: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        let (endpoints, lines, pages, under_way) = (1 << 20, 1 << 22, 1 << 28, 1 << 16);
        Limits { endpoints, lines, pages, attachments: 4096, calls: 4096, under_way }
    }
}

impl Limits {
    fn of(&self, quota: Quota) -> u64 {
        match quota {
            Quota::Endpoints => self.endpoints,
            Quota::Lines => self.lines,
            Quota::Pages => self.pages,
            Quota::Attachments => self.attachments,
            Quota::Calls => self.calls,
            Quota::UnderWay => self.under_way,
        }
    }
}

/// What all users hold.
#[derive(Debug)]
pub(crate) struct Accounts {
    shares: [Share; KINDS],
}

impl Accounts {
    pub fn new(limits: Limits) -> Accounts {
        Accounts { shares: QUOTAS.map(|(quota, _)| Share::new(limits.of(quota))) }
    }

    /// Takes an amount for a user. False, with nothing taken, if that exceeds its share.
    pub fn take(&mut self, user: Uid, quota: Quota, amount: u64) -> bool {
        self.shares[quota as usize].take(user, amount)
    }

    /// Gives back an amount that was taken.
    pub fn give_back(&mut self, user: Uid, quota: Quota, amount: u64) {
        self.shares[quota as usize].give_back(user, amount);
    }

    /// How much a user holds.
    pub fn held(&self, user: Uid, quota: Quota) -> u64 {
        self.shares[quota as usize].own(user)
    }

    /// How much a user may hold now.
    pub fn share(&self, user: Uid, quota: Quota) -> u64 {
        self.shares[quota as usize].most(user)
    }

    /// How much all users hold together, and the limit.
    pub fn total(&self, quota: Quota) -> (u64, u64) {
        let Share { limit, held, .. } = self.shares[quota as usize];
        (held, limit)
    }

    /// The next user after `last` that holds something, or the first one.
    pub fn next_user(&self, last: Option<Uid>) -> Option<Uid> {
        let behind = last.map_or(Bound::Unbounded, Bound::Excluded);
        let next = |share: &Share| share.users.range((behind, Bound::Unbounded)).next().map(|(user, _)| *user);
        self.shares.iter().filter_map(next).min()
    }

    /// Users that hold something, counted for each thing.
    pub fn users(&self) -> usize {
        self.shares.iter().map(|share| share.users.len()).sum()
    }
}

/// One thing that users share.
#[derive(Debug)]
pub(crate) struct Share {
    limit: u64,
    held: u64,
    /// What each user holds, if it holds some.
    users: BTreeMap<Uid, u64>,
}

impl Share {
    pub fn new(limit: u64) -> Share {
        Share { limit, held: 0, users: BTreeMap::new() }
    }

    /// Takes an amount for a user. False, with nothing taken, if that exceeds its share.
    pub fn take(&mut self, user: Uid, amount: u64) -> bool {
        let own = self.own(user);
        if own.saturating_add(amount) > self.most(user) {
            return false;
        }
        if amount > 0 {
            self.users.insert(user, own + amount);
            self.held += amount;
        }
        true
    }

    /// Gives back an amount that was taken.
    pub fn give_back(&mut self, user: Uid, amount: u64) {
        let Some(own) = self.users.get_mut(&user) else { return };
        let amount = amount.min(*own);
        *own -= amount;
        self.held -= amount;
        if *own == 0 {
            self.users.remove(&user);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.users.is_empty()
    }

    fn own(&self, user: Uid) -> u64 {
        self.users.get(&user).copied().unwrap_or(0)
    }

    /// How much a user may hold now.
    fn most(&self, user: Uid) -> u64 {
        let own = self.own(user);
        // Counts this user too.
        let users = self.users.len() as u64 + u64::from(own == 0);
        self.limit.saturating_sub(self.held).saturating_add(own) / (users + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    impl Share {
        fn held(&self, user: Uid) -> u64 {
            self.users.get(&user).copied().unwrap_or(0)
        }
    }

    #[test]
    fn each_next_user_finds_some() {
        let mut share = Share::new(1200);
        let shares: Vec<usize> =
            (0..5).map(|user| (0..2000).take_while(|_| share.take(Uid(user), 1)).count()).collect();
        assert_eq!(shares[0], 600, "one half");
        assert!(shares.windows(2).all(|pair| pair[1] > 0 && pair[1] <= pair[0]), "{shares:?}");
    }

    #[test]
    fn what_is_given_back_is_there_again_and_empty_accounts_are_forgotten() {
        let mut share = Share::new(10);
        assert!(share.take(Uid(1), 5) && !share.take(Uid(1), 1));
        assert!(!share.take(Uid(2), 2), "a third of the rest is one");
        share.give_back(Uid(1), 9);
        assert_eq!((share.held(Uid(1)), share.users.len()), (0, 0));
        assert!(share.take(Uid(2), 5));
        share.give_back(Uid(3), 1);
        assert_eq!(share.held(Uid(2)), 5);
    }

    proptest! {
        #[test]
        fn the_sum_is_never_above_the_limit(steps in proptest::collection::vec((0u32..6, 1u64..40, any::<bool>()), 1..300)) {
            let mut share = Share::new(1000);
            let mut held = [0u64; 6];
            for (user, amount, takes) in steps {
                let own = &mut held[user as usize];
                if takes {
                    if share.take(Uid(user), amount) {
                        *own += amount;
                    }
                } else {
                    share.give_back(Uid(user), amount);
                    *own = own.saturating_sub(amount);
                }
                prop_assert_eq!(share.held(Uid(user)), *own);
                prop_assert!(held.iter().sum::<u64>() <= 1000);
                prop_assert_eq!(share.held, held.iter().sum::<u64>());
                prop_assert_eq!(share.users.len(), held.iter().filter(|held| **held > 0).count());
            }
        }
    }
}
