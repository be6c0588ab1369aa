//! Root's rights that others do not have: socket buffers beyond the kernel's limits, and becoming another user.

use crate::error::Error;
use rustix::thread::{capabilities, set_capabilities, set_thread_res_uid, CapabilitySet, Uid};
use std::fs;

/// The right to larger buffers, `CAP_NET_ADMIN`.
const RIGHT: CapabilitySet = CapabilitySet::NET_ADMIN;

/// Runs something without this right. If the thread had it, it has it again afterwards.
pub fn as_ordinary_user<T>(run: impl FnOnce() -> T) -> Result<T, Error> {
    let before = capabilities(None).map_err(cannot)?;
    give_up()?;
    let result = run();
    set_capabilities(None, before).map_err(cannot)?;
    Ok(result)
}

/// Drops the right for good.
pub fn give_up() -> Result<(), Error> {
    let mut sets = capabilities(None).map_err(cannot)?;
    sets.effective.remove(RIGHT);
    set_capabilities(None, sets).map_err(cannot)
}

fn cannot(source: rustix::io::Errno) -> Error {
    Error::system("change the rights of this thread", source, "Run it on Linux, where capset(2) is allowed")
}

/// Whether this process may start others as this user.
pub fn may_become(user: u32) -> bool {
    let may = capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SETUID));
    may && fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| has_user(&map, user))
}

/// Whether a user namespace has a user. Each line of the map has a first user inside, that user outside, and a count
/// (user_namespaces(7)).
fn has_user(map: &str, user: u32) -> bool {
    map.lines().any(|line| {
        let numbers: Vec<u64> = line.split_whitespace().filter_map(|number| number.parse().ok()).collect();
        matches!(numbers[..], [first, _, count] if (first..first.saturating_add(count)).contains(&u64::from(user)))
    })
}

/// Becomes this user for good.
pub fn become_user(user: u32) -> Result<(), Error> {
    let user = Uid::from_raw(user);
    set_thread_res_uid(user, user, user)
        .map_err(|e| Error::system("become another user", e, "Start this role through `weft bench local` only"))
}

/// The size of the largest receive buffer of an ordinary user. `None` if the kernel does not say.
pub fn receive_buffer_most() -> Option<usize> {
    fs::read_to_string("/proc/sys/net/core/rmem_max").ok()?.trim().parse().ok()
}

/// UDP packets dropped by the kernel in this network namespace because a receive buffer was full. `None` if the kernel does not
/// say.
pub fn dropped_datagrams() -> Option<u64> {
    read_dropped(&fs::read_to_string("/proc/thread-self/net/snmp").ok()?)
}

/// Two lines begin with `Udp:`, one with names and one with numbers: proc_net(5).
fn read_dropped(text: &str) -> Option<u64> {
    let mut lines = text.lines().filter(|line| line.starts_with("Udp:"));
    let at = lines.next()?.split_whitespace().position(|name| name == "RcvbufErrors")?;
    lines.next()?.split_whitespace().nth(at)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_count_is_found_by_its_name() {
        let text = "Tcp: A B\nTcp: 1 2\nUdp: InDatagrams NoPorts RcvbufErrors\nUdp: 7 8 9\nUdpLite: RcvbufErrors\nUdpLite: 3\n";
        assert_eq!(read_dropped(text), Some(9));
        assert_eq!(read_dropped("Udp: InDatagrams\nUdp: 7\n"), None);
    }

    #[test]
    fn a_user_is_there_if_the_namespace_has_its_number() {
        assert!(has_user("         0          0 4294967295\n", 65_532));
        assert!(!has_user("         0       1000          1\n", 65_532));
        assert!(has_user("0 1000 1\n1 100000 65536\n", 65_532));
        assert!(has_user("0 1000 1\n1 100000 65536\n", 65_536) && !has_user("0 1000 1\n1 100000 65536\n", 65_537));
        assert!(!has_user("", 0));
    }

    #[test]
    fn a_right_that_was_given_up_is_there_again_afterwards() {
        let effective = || capabilities(None).map(|sets| sets.effective);
        let before = effective().ok();
        let meanwhile = as_ordinary_user(effective).expect("a thread may give up its rights").ok();
        assert!(meanwhile.is_some_and(|effective| !effective.contains(RIGHT)));
        assert_eq!(effective().ok(), before);
    }
}
