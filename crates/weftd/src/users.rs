//! Whose programs may attach, and the tokens that prove the ownership of names.

use crate::config::Config;
use crate::kept::{self, Readers};
use nix::unistd::{Group, User};
use rustix::io::Errno;
use siphasher::sip128::{Hasher128, SipHasher24};
use std::hash::Hasher;
use std::io;
use std::path::Path;
use weft_wire::attach::Token;
use weft_wire::{Epoch, Uid};

/// Whose programs may attach.
#[derive(Clone, Debug)]
pub struct Allowed {
    everybody: bool,
    users: Vec<u32>,
    groups: Vec<u32>,
    /// Users with a weight in the schedule.
    pub weights: Vec<(Uid, u32)>,
}

impl Allowed {
    /// The users and groups of a configuration.
    ///
    /// # Errors
    /// The first user or group that does not exist, as a text.
    pub fn new(config: &Config) -> Result<Allowed, String> {
        let everybody = config.allow_users.iter().any(|user| user == "*");
        let user = |name: &str, setting: &str| {
            let found = name.parse().ok().or_else(|| User::from_name(name).ok()?.map(|user| user.uid.as_raw()));
            found.ok_or_else(|| format!("{setting}: there is no user {name:?}"))
        };
        let users = config.allow_users.iter().filter(|user| *user != "*").map(|name| user(name, "allow_users"));
        let weights = config.weights.iter().map(|(name, weight)| Ok((Uid(user(name, "weights")?), *weight)));
        let groups = config.allow_groups.iter().map(|name| {
            let found = name.parse().ok().or_else(|| Group::from_name(name).ok()?.map(|group| group.gid.as_raw()));
            found.ok_or_else(|| format!("allow_groups: there is no group {name:?}"))
        });
        Ok(Allowed {
            everybody,
            users: users.collect::<Result<_, String>>()?,
            groups: groups.collect::<Result<_, String>>()?,
            weights: weights.collect::<Result<_, String>>()?,
        })
    }

    /// Whether a program of this user and group may attach. Users that the host cannot tell apart may not.
    pub fn has(&self, user: Uid, group: u32) -> bool {
        user != Uid::OVERFLOW && (self.everybody || self.users.contains(&user.0) || self.groups.contains(&group))
    }
}

/// The secret by which a daemon, and the one after it, recognises its own tokens.
#[derive(Clone, Copy)]
pub struct Secret([u64; 2]);

impl Secret {
    /// Reads the secret in a file that its owner alone may read, or makes one.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn at(path: &Path) -> io::Result<Secret> {
        let mut bytes = [0; 16];
        match kept::read(path, Readers::Nobody)? {
            Some(kept) => {
                let wrong = |_| io::Error::new(io::ErrorKind::InvalidData, "it has not 16 bytes");
                bytes = kept.try_into().map_err(wrong)?;
            }
            None => {
                random(&mut bytes)?;
                kept::write(path, &bytes, Readers::Nobody)?;
            }
        }
        let whole = u128::from_le_bytes(bytes);
        Ok(Secret([whole as u64, (whole >> 64) as u64]))
    }

    /// The token of an epoch that was assigned to a user.
    pub fn token(&self, epoch: Epoch, user: Uid) -> Token {
        let mut hash = SipHasher24::new_with_keys(self.0[0], self.0[1]);
        hash.write(b"weftd token");
        hash.write(&epoch.0.to_le_bytes());
        hash.write(&user.0.to_le_bytes());
        Token(hash.finish128().as_u128())
    }
}

/// Random bytes of the kernel's.
///
/// # Errors
/// What the kernel says.
pub fn random(bytes: &mut [u8]) -> io::Result<()> {
    let got = rustix::rand::getrandom(&mut *bytes, rustix::rand::GetRandomFlags::empty())?;
    if got < bytes.len() {
        return Err(Errno::AGAIN.into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_good_for_one_epoch_and_user_and_for_the_next_daemon() {
        let folder = std::env::temp_dir().join(format!("weftd-secret-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let path = folder.join("secret");
        let (first, second) = (Secret::at(&path).expect("made"), Secret::at(&path).expect("read"));
        std::fs::remove_dir_all(&folder).expect("removed");
        let token = first.token(Epoch(5), Uid(1000));
        assert!(token.matches(second.token(Epoch(5), Uid(1000))));
        assert!(!token.matches(first.token(Epoch(6), Uid(1000))) && !token.matches(first.token(Epoch(5), Uid(1001))));
    }

    #[test]
    fn users_and_groups_are_let_in_by_name_and_number() {
        let config = |users: &[&str], groups: &[&str]| Config {
            allow_users: users.iter().map(|user| (*user).to_owned()).collect(),
            allow_groups: groups.iter().map(|group| (*group).to_owned()).collect(),
            ..Config::default()
        };
        let allowed = Allowed::new(&config(&["root", "1234"], &["7"])).expect("there are such");
        let has = [(0, 1), (1234, 1), (5, 7), (5, 8)].map(|(user, group)| allowed.has(Uid(user), group));
        assert_eq!(has, [true, true, true, false]);
        let everybody = Allowed::new(&config(&["*"], &[])).expect("all");
        assert!(everybody.has(Uid(4711), 4711) && !everybody.has(Uid::OVERFLOW, 0));
        let error = Allowed::new(&config(&["nobody-of-this-name"], &[])).expect_err("there is none");
        assert!(error.contains("nobody-of-this-name"));
    }
}
