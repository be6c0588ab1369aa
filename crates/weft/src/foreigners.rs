//! What processes of other users may have of this one, for each user.

use crate::node::lock;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use weft_wire::Uid;

/// Sessions that all processes of one other user may have with this process.
pub(crate) const SESSIONS_MOST: u32 = 16;

/// Users that are remembered at a time; the sessions of more are refused.
const USERS_MOST: usize = 256;

/// How long a user is not heard after one of its processes broke the protocol.
const BAR: Duration = Duration::from_secs(1);

/// The accounts of other users.
#[derive(Clone, Debug, Default)]
pub(crate) struct Foreigners(Arc<Mutex<HashMap<Uid, Account>>>);

#[derive(Debug, Default)]
struct Account {
    sessions: u32,
    barred_until: Option<Instant>,
}

impl Account {
    fn is_barred(&self) -> bool {
        self.barred_until.is_some_and(|until| Instant::now() < until)
    }
}

/// Leave for one session. Given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Pass {
    accounts: Foreigners,
    user: Uid,
}

impl Foreigners {
    /// Leave for one session more of a user's, if it has had fewer than it may.
    pub fn admit(&self, user: Uid) -> Option<Pass> {
        let mut accounts = lock(&self.0);
        if accounts.len() >= USERS_MOST {
            accounts.retain(|_, account| account.sessions > 0 || account.is_barred());
            if accounts.len() >= USERS_MOST && !accounts.contains_key(&user) {
                return None;
            }
        }
        let account = accounts.entry(user).or_default();
        if account.is_barred() || account.sessions >= SESSIONS_MOST {
            return None;
        }
        account.sessions += 1;
        Some(Pass { accounts: self.clone(), user })
    }
}

impl Pass {
    /// A process of the user's broke the protocol: the user is not heard for a while.
    pub fn bar(&self) {
        if let Some(account) = lock(&self.accounts.0).get_mut(&self.user) {
            account.barred_until = Some(Instant::now() + BAR);
        }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let mut accounts = lock(&self.accounts.0);
        let Some(account) = accounts.get_mut(&self.user) else { return };
        account.sessions = account.sessions.saturating_sub(1);
        if account.sessions == 0 && !account.is_barred() {
            accounts.remove(&self.user);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_so_many_sessions_and_others_have_theirs() {
        let foreigners = Foreigners::default();
        let passes: Vec<Pass> = (0..SESSIONS_MOST).filter_map(|_| foreigners.admit(Uid(1))).collect();
        assert_eq!(passes.len() as u32, SESSIONS_MOST);
        assert!(foreigners.admit(Uid(1)).is_none(), "one more");
        assert!(foreigners.admit(Uid(2)).is_some(), "another user");
        drop(passes);
        assert!(foreigners.admit(Uid(1)).is_some(), "after they were given back");
        assert!(lock(&foreigners.0).is_empty(), "nothing is kept of who has no session");
    }

    #[test]
    fn a_user_who_misbehaved_is_barred_for_a_while_and_others_are_not() {
        let foreigners = Foreigners::default();
        let pass = foreigners.admit(Uid(1)).expect("the first session");
        pass.bar();
        drop(pass);
        assert!(foreigners.admit(Uid(1)).is_none());
        assert!(foreigners.admit(Uid(2)).is_some());
    }

    #[test]
    fn users_that_are_remembered_are_bounded() {
        let foreigners = Foreigners::default();
        for user in 0..2 * USERS_MOST as u32 {
            if let Some(pass) = foreigners.admit(Uid(user)) {
                pass.bar();
            }
        }
        assert!(lock(&foreigners.0).len() <= USERS_MOST);
    }
}
