//! Quotas for sessions with this process: for the processes of each other user, and for processes of our own user that show no key.

use crate::node::lock;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use weft_core::admission::Allowance;
use weft_core::Admitted;
use weft_wire::Uid;

/// Sessions that all processes of one other user may have with this process.
pub(crate) const SESSIONS_MOST: u32 = 16;

/// Sessions that all processes of its own user may have with this process without a key.
pub(crate) const GUESTS_MOST: u32 = 256;

/// Largest number of sessions that all processes of all other users may have with this process without a key. One user of a machine
/// can have thousands of user ids (`/etc/subuid`), and must not take all places with them. Smaller than `USERS_MOST`, for the same
/// reason.
const OTHER_GUESTS_MOST: u32 = 128;

/// Largest number of users with an account. Further users are refused.
const USERS_MOST: usize = 256;

/// How long a user is barred after one of its processes broke the protocol.
const BAR: Duration = Duration::from_secs(1);

/// The accounts of users.
#[derive(Clone, Debug)]
pub(crate) struct Foreigners(Arc<Books>);

#[derive(Debug)]
struct Books {
    since: Instant,
    accounts: Mutex<HashMap<Uid, Account>>,
}

#[derive(Debug, Default)]
struct Account {
    sessions: u32,
    /// Sessions without a key, if this is another user.
    guests: u32,
    barred_until: Option<Instant>,
    /// For sessions without a key.
    allowance: Allowance,
}

impl Account {
    fn is_barred(&self) -> bool {
        self.barred_until.is_some_and(|until| Instant::now() < until)
    }

    fn has_only_an_allowance(&self) -> bool {
        self.sessions == 0 && !self.is_barred()
    }

    fn is_empty(&self, now: Duration) -> bool {
        self.has_only_an_allowance() && self.allowance.is_whole(now)
    }
}

/// Permission for one session, given back on drop.
#[derive(Debug)]
pub(crate) struct Pass {
    accounts: Foreigners,
    user: Uid,
    /// The session is of another user, without a key.
    is_guest: bool,
}

impl Default for Foreigners {
    fn default() -> Foreigners {
        Foreigners(Arc::new(Books { since: Instant::now(), accounts: Mutex::default() }))
    }
}

impl Foreigners {
    /// Permission for one more session with another user, if its quota allows it.
    pub fn admit(&self, user: Uid, admitted: Admitted) -> Option<Pass> {
        self.give(user, false, admitted, self.0.since.elapsed())
    }

    /// Permission for one more session with our own user without a key, if the quota allows it.
    pub fn admit_guest(&self, user: Uid) -> Option<Pass> {
        self.give(user, true, Admitted::WithoutKey, self.0.since.elapsed())
    }

    fn give(&self, user: Uid, is_own: bool, admitted: Admitted, now: Duration) -> Option<Pass> {
        let is_guest = !is_own && admitted == Admitted::WithoutKey;
        let most = if is_own { GUESTS_MOST } else { SESSIONS_MOST };
        let mut accounts = lock(&self.0.accounts);
        if accounts.len() >= USERS_MOST {
            // An entry kept only for its used allowance must not keep out anyone but other users without a key.
            accounts.retain(|_, account| !(account.is_empty(now) || (!is_guest && account.has_only_an_allowance())));
            if accounts.len() >= USERS_MOST && !accounts.contains_key(&user) {
                return None;
            }
        }
        if is_guest && accounts.values().map(|account| account.guests).sum::<u32>() >= OTHER_GUESTS_MOST {
            return None;
        }
        let account = accounts.entry(user).or_default();
        if account.is_barred() || account.sessions >= most {
            return None;
        }
        if admitted == Admitted::WithoutKey && !account.allowance.take(now) {
            return None;
        }
        account.sessions += 1;
        account.guests += u32::from(is_guest);
        Some(Pass { accounts: self.clone(), user, is_guest })
    }
}

impl Pass {
    /// A process of the user broke the protocol: bars the user for a while.
    pub fn bar(&self) {
        if let Some(account) = lock(&self.accounts.0.accounts).get_mut(&self.user) {
            account.barred_until = Some(Instant::now() + BAR);
        }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let now = self.accounts.0.since.elapsed();
        let mut accounts = lock(&self.accounts.0.accounts);
        let Some(account) = accounts.get_mut(&self.user) else { return };
        account.sessions = account.sessions.saturating_sub(1);
        account.guests = account.guests.saturating_sub(u32::from(self.is_guest));
        if account.is_empty(now) {
            accounts.remove(&self.user);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_core::admission::BURST;
    use Admitted::{ByKey, WithoutKey};

    #[test]
    fn a_user_has_so_many_sessions_and_others_have_theirs() {
        let foreigners = Foreigners::default();
        let passes: Vec<Pass> = (0..SESSIONS_MOST).filter_map(|_| foreigners.admit(Uid(1), ByKey)).collect();
        assert_eq!(passes.len() as u32, SESSIONS_MOST);
        assert!(foreigners.admit(Uid(1), ByKey).is_none(), "one more");
        assert!(foreigners.admit(Uid(2), ByKey).is_some(), "another user");
        drop(passes);
        assert!(foreigners.admit(Uid(1), ByKey).is_some(), "after they were given back");
        assert!(lock(&foreigners.0.accounts).is_empty(), "nothing is kept of who has no session");
    }

    #[test]
    fn a_user_who_misbehaved_is_barred_for_a_while_and_others_are_not() {
        let foreigners = Foreigners::default();
        let pass = foreigners.admit(Uid(1), ByKey).expect("the first session");
        pass.bar();
        drop(pass);
        assert!(foreigners.admit(Uid(1), ByKey).is_none());
        assert!(foreigners.admit(Uid(2), ByKey).is_some());
    }

    #[test]
    fn users_that_are_remembered_are_bounded() {
        let foreigners = Foreigners::default();
        for user in 0..2 * USERS_MOST as u32 {
            if let Some(pass) = foreigners.admit(Uid(user), ByKey) {
                pass.bar();
            }
        }
        assert!(lock(&foreigners.0.accounts).len() <= USERS_MOST);
    }

    #[test]
    fn sessions_without_a_key_are_given_in_a_burst_and_then_slowly_for_each_user() {
        let foreigners = Foreigners::default();
        let mut given = 0;
        // Each session ends at once, so the quota does not bound them; the allowance does.
        while foreigners.admit(Uid(1), WithoutKey).is_some() {
            given += 1;
            assert!(given < 10 * BURST, "no end");
        }
        assert!(given >= BURST, "only {given}");
        assert!(foreigners.admit(Uid(1), ByKey).is_some(), "with the key");
        assert!(foreigners.admit(Uid(2), WithoutKey).is_some(), "another user");
    }

    #[test]
    fn other_users_without_a_key_leave_room_for_those_with_it_however_many_they_are() {
        let foreigners = Foreigners::default();
        let users = 0..100 * USERS_MOST as u32;
        let passes: Vec<Pass> = users.filter_map(|user| foreigners.admit(Uid(user), WithoutKey)).collect();
        assert_eq!(passes.len() as u32, OTHER_GUESTS_MOST);
        let own = Uid(u32::MAX - 1);
        assert!(foreigners.admit(Uid(u32::MAX - 2), ByKey).is_some(), "another user with the key");
        assert!(foreigners.admit_guest(own).is_some(), "our own user");
        drop(passes);
        // Each has used some of its allowance, so it is remembered.
        for user in 0..100 * USERS_MOST as u32 {
            drop(foreigners.admit(Uid(user), WithoutKey));
        }
        assert!(foreigners.admit(Uid(u32::MAX - 2), ByKey).is_some(), "another user with the key, afterwards");
        assert!(foreigners.admit_guest(own).is_some(), "our own user, afterwards");
        assert!(lock(&foreigners.0.accounts).len() <= USERS_MOST);
    }

    #[test]
    fn our_own_user_has_so_many_sessions_without_a_key_however_slowly_they_come() {
        let foreigners = Foreigners::default();
        let at = |second: u64| foreigners.give(Uid(1), true, WithoutKey, Duration::from_secs(second));
        let passes: Vec<Pass> = (1..1000).filter_map(at).collect();
        assert_eq!(passes.len() as u32, GUESTS_MOST);
        drop(passes);
        assert!(at(1001).is_some(), "after they were given back");
    }
}
