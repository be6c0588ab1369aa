//! Gives up the daemon's rights once they have served their purpose.

use crate::start::{cannot, StartError};
use nix::unistd::{getresgid, getresuid, setgroups, setresgid, setresuid, Gid, Uid, User};
use rustix::io::Errno;
use rustix::thread::{self, CapabilitySet, CapabilitySets};
use std::io;

/// The user that the configuration tells the daemon to become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    user: Uid,
    group: Gid,
}

impl Identity {
    /// The user of this name, with its group. `None` for an empty name.
    ///
    /// # Errors
    /// If there is no such user; the error is a text.
    pub fn of(name: &str) -> Result<Option<Identity>, String> {
        if name.is_empty() {
            return Ok(None);
        }
        let found = User::from_name(name).map_err(|error| format!("user: {error}"))?;
        let found = found.ok_or_else(|| format!("user: there is no user {name:?}"))?;
        Ok(Some(Identity { user: found.uid, group: found.gid }))
    }

    fn become_it(self) -> nix::Result<()> {
        // A supervisor may have started the daemon as that user already, and that user may not change users.
        let (users, groups) = (getresuid()?, getresgid()?);
        let is_user = [users.real, users.effective, users.saved].iter().all(|user| *user == self.user);
        let is_group = [groups.real, groups.effective, groups.saved].iter().all(|group| *group == self.group);
        if is_user && is_group {
            return Ok(());
        }
        setgroups(&[self.group])?;
        setresgid(self.group, self.group, self.group)?;
        setresuid(self.user, self.user, self.user)
    }
}

/// Becomes another user, if one is given, and gives up all capabilities and all ways to get them back. For a process with one thread,
/// because capabilities belong to threads.
///
/// # Errors
/// If the kernel refuses something.
pub fn give_up(identity: Option<Identity>) -> Result<(), StartError> {
    let failed = || cannot("cannot give up capabilities", "run weftd as root, or as an ordinary user");
    bound().map_err(failed())?;
    if let Some(identity) = identity {
        let way_out = "start weftd as root, or leave `user` in weftd.toml empty";
        let what = format!("cannot become user {}", identity.user);
        identity.become_it().map_err(io::Error::from).map_err(cannot(what, way_out))?;
    }
    let none = CapabilitySet::empty();
    let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
    thread::set_capabilities(None, sets).map_err(io::Error::from).map_err(failed())?;
    thread::set_no_new_privs(true).map_err(io::Error::from).map_err(failed())
}

/// Empties the sets from which an executed program gets capabilities. That takes a capability itself. Without it the bounding set stays,
/// and `no_new_privs` keeps executed programs from gaining any.
fn bound() -> io::Result<()> {
    match thread::clear_ambient_capability_set() {
        // A kernel before 4.3.
        Ok(()) | Err(Errno::INVAL) => {}
        Err(error) => return Err(error.into()),
    }
    if !thread::capabilities(None)?.effective.contains(CapabilitySet::SETPCAP) {
        return Ok(());
    }
    for bit in 0..u64::BITS {
        match thread::remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << bit)) {
            Ok(()) => {}
            // The kernel has no more.
            Err(Errno::INVAL) => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
