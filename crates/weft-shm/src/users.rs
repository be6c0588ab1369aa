//! How users are numbered: as in the parent of a process's user namespace, so that processes in a container and outside use the same number
//! for the same user.

use weft_wire::Uid;

/// The kernel's map of the users in our user namespace.
const MAP: &str = "/proc/self/uid_map";

/// How our user namespace numbers the users of its parent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UserMap(Vec<Range>);

/// `count` consecutive users.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Range {
    here: u32,
    outside: u32,
    count: u32,
}

impl UserMap {
    /// The map of this process. Where the kernel shows none, users have the same numbers everywhere.
    pub fn of_this_process() -> UserMap {
        let map = std::fs::read_to_string(MAP).unwrap_or_default();
        match UserMap::parse(&map) {
            Some(map) if !map.0.is_empty() => map,
            _ => UserMap(vec![Range { here: 0, outside: 0, count: u32::MAX }]),
        }
    }

    fn parse(map: &str) -> Option<UserMap> {
        let line = |line: &str| {
            let mut numbers = line.split_whitespace().map(|number| number.parse().ok());
            Some(Range { here: numbers.next()??, outside: numbers.next()??, count: numbers.next()?? })
        };
        map.lines().map(line).collect::<Option<Vec<Range>>>().map(UserMap)
    }

    /// A user's number in the parent of our user namespace.
    pub fn outside(&self, here: Uid) -> Uid {
        if here == Uid::OVERFLOW || here == Uid::UNKNOWN {
            return here;
        }
        let range = self.0.iter().find(|r| here.0.checked_sub(r.here).is_some_and(|at| at < r.count));
        let outside = range.and_then(|r| r.outside.checked_add(here.0 - r.here));
        outside.map_or(Uid::OVERFLOW, Uid)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const ROOTLESS: &str = "         0       1000          1\n         1     100000      65536\n";

    #[test]
    fn users_get_the_numbers_of_the_parent_namespace() {
        let map = UserMap::parse(ROOTLESS).expect("as the kernel writes it");
        let outside = |uid| map.outside(Uid(uid));
        assert_eq!([0, 1, 1000, 65535].map(outside), [1000, 100_000, 100_999, 165_534].map(Uid));
        assert_eq!([70_000, Uid::OVERFLOW.0].map(outside), [Uid::OVERFLOW; 2], "there is no such user here");
        assert_eq!(map.outside(Uid::UNKNOWN), Uid::UNKNOWN);
    }

    #[test]
    fn a_malformed_map_is_refused() {
        assert_eq!(UserMap::parse(""), Some(UserMap(vec![])));
        assert_eq!(["0 1000", "0 x 1", "-1 0 1"].map(UserMap::parse), [None, None, None]);
        let beyond = UserMap::parse("5 4294967290 100\n").expect("a map");
        assert_eq!([4, 5, 10, 11].map(|uid| beyond.outside(Uid(uid)).0), [65534, 4_294_967_290, u32::MAX, 65534]);
    }
}
