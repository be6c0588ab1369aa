//! What each user may hold: a share of what is left, so that the next user always finds some. (The rule of dbus-broker.)

use std::collections::BTreeMap;
use weft_wire::Uid;

/// A thing that is counted for each user.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Quota {
    /// Endpoints.
    Endpoints,
    /// Lines of its endpoints, and those that they opened at others.
    Lines,
    /// Pages of files.
    Pages,
    /// Attachments.
    Attachments,
}

const KINDS: usize = 4;

/// How much there is for all users together.
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
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { endpoints: 1 << 20, lines: 1 << 22, pages: 1 << 28, attachments: 4096 }
    }
}

impl Limits {
    fn of(&self, quota: Quota) -> u64 {
        match quota {
            Quota::Endpoints => self.endpoints,
            Quota::Lines => self.lines,
            Quota::Pages => self.pages,
            Quota::Attachments => self.attachments,
        }
    }
}

/// What all users hold.
#[derive(Debug)]
pub(crate) struct Accounts {
    limits: Limits,
    held: [u64; KINDS],
    users: BTreeMap<Uid, Account>,
}

/// What one user holds.
#[derive(Clone, Copy, Debug, Default)]
struct Account {
    held: [u64; KINDS],
}

impl Accounts {
    pub fn new(limits: Limits) -> Accounts {
        Accounts { limits, held: [0; KINDS], users: BTreeMap::new() }
    }

    /// Takes so much for a user. False, and nothing taken, if that is more than its share.
    pub fn take(&mut self, user: Uid, quota: Quota, amount: u64) -> bool {
        let kind = quota as usize;
        let own = self.users.get(&user).map_or(0, |account| account.held[kind]);
        // Those who hold some of it, this user among them.
        let users =
            self.users.iter().filter(|(other, account)| **other != user && account.held[kind] > 0).count() as u64 + 1;
        let left = self.limits.of(quota).saturating_sub(self.held[kind]);
        let share = left.saturating_add(own) / (users + 1);
        if own.saturating_add(amount) > share {
            return false;
        }
        self.users.entry(user).or_default().held[kind] += amount;
        self.held[kind] += amount;
        true
    }

    /// Gives back so much that was taken.
    pub fn give_back(&mut self, user: Uid, quota: Quota, amount: u64) {
        let kind = quota as usize;
        let Some(account) = self.users.get_mut(&user) else { return };
        let amount = amount.min(account.held[kind]);
        account.held[kind] -= amount;
        self.held[kind] -= amount;
        if account.held == [0; KINDS] {
            self.users.remove(&user);
        }
    }

    /// Users that hold something.
    pub fn users(&self) -> usize {
        self.users.len()
    }

    /// How much a user holds.
    #[cfg(test)]
    pub fn held(&self, user: Uid, quota: Quota) -> u64 {
        self.users.get(&user).map_or(0, |account| account.held[quota as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const EACH: Quota = Quota::Endpoints;

    fn accounts(endpoints: u64) -> Accounts {
        Accounts::new(Limits { endpoints, ..Limits::default() })
    }

    #[test]
    fn each_next_user_finds_some() {
        let mut accounts = accounts(1200);
        let shares: Vec<usize> =
            (0..5).map(|user| (0..2000).take_while(|_| accounts.take(Uid(user), EACH, 1)).count()).collect();
        assert_eq!(shares[0], 600, "one half");
        assert!(shares.windows(2).all(|pair| pair[1] > 0 && pair[1] <= pair[0]), "{shares:?}");
    }

    #[test]
    fn what_is_given_back_is_there_again_and_empty_accounts_are_forgotten() {
        let mut accounts = accounts(10);
        assert!(accounts.take(Uid(1), EACH, 5) && !accounts.take(Uid(1), EACH, 1));
        assert!(!accounts.take(Uid(2), EACH, 2), "a third of the rest is one");
        accounts.give_back(Uid(1), EACH, 9);
        assert_eq!((accounts.held(Uid(1), EACH), accounts.users.len()), (0, 0));
        assert!(accounts.take(Uid(2), EACH, 5));
        accounts.give_back(Uid(3), EACH, 1);
        assert_eq!(accounts.held(Uid(2), EACH), 5);
    }

    proptest! {
        #[test]
        fn the_sum_is_never_above_the_limit(steps in proptest::collection::vec((0u32..6, 1u64..40, any::<bool>()), 1..300)) {
            let mut accounts = accounts(1000);
            let mut held = [0u64; 6];
            for (user, amount, takes) in steps {
                let own = &mut held[user as usize];
                if takes {
                    if accounts.take(Uid(user), EACH, amount) {
                        *own += amount;
                    }
                } else {
                    accounts.give_back(Uid(user), EACH, amount);
                    *own = own.saturating_sub(amount);
                }
                prop_assert_eq!(accounts.held(Uid(user), EACH), *own);
                prop_assert!(held.iter().sum::<u64>() <= 1000);
                prop_assert_eq!(accounts.held[EACH as usize], held.iter().sum::<u64>());
            }
        }
    }
}
