//! Whose a process is. Names say users as the parent of their maker's user namespace numbers them, so that a process in a container
//! and one outside that share a network mean the same user by the same number. What the kernel says of a peer is brought
//! into those terms too.

use weft_wire::Uid;

/// Where the kernel says how it numbers users in our user namespace.
const MAP: &str = "/proc/self/uid_map";

/// How our user namespace numbers the users of its parent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct UserMap(Vec<Range>);

/// As many users as `count`, one after the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Range {
    here: u32,
    outside: u32,
    count: u32,
}

/// Whose a peer is, by the kernel's word and by its name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Owner {
    /// Our user's.
    Us,
    /// Another user's; [`Uid::OVERFLOW`] if nobody here can say whose.
    Other(Uid),
    /// Not whose its name says.
    NotAsNamed,
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

    /// A user as the parent of our user namespace numbers it.
    pub fn outside(&self, here: Uid) -> Uid {
        if here == Uid::OVERFLOW || here == Uid::UNKNOWN {
            return here;
        }
        let range = self.0.iter().find(|r| here.0.checked_sub(r.here).is_some_and(|at| at < r.count));
        let outside = range.and_then(|r| r.outside.checked_add(here.0 - r.here));
        outside.map_or(Uid::OVERFLOW, Uid)
    }
}

/// Whose a peer is, if the kernel says it is `seen`'s and its name that it is `named`'s, and we are `own`.
pub(crate) fn owner(seen: Uid, named: Uid, own: Uid) -> Owner {
    // A user whom no number of our namespace stands for is nobody's equal. Whoever is not of us, but could say so, is not known.
    let is_beyond_knowing = seen == Uid::OVERFLOW || named == Uid::OVERFLOW;
    match (seen == named, seen.is_same_as(own)) {
        (true, true) => Owner::Us,
        (true, false) => Owner::Other(seen),
        (false, true) if is_beyond_knowing => Owner::Other(Uid::OVERFLOW),
        (false, false) if is_beyond_knowing => Owner::Other(seen),
        (false, _) => Owner::NotAsNamed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOTLESS: &str = "         0       1000          1\n         1     100000      65536\n";

    #[test]
    fn users_are_told_in_the_numbers_of_the_parent_namespace() {
        let map = UserMap::parse(ROOTLESS).expect("as the kernel writes it");
        let outside = |uid| map.outside(Uid(uid));
        assert_eq!([0, 1, 1000, 65535].map(outside), [1000, 100_000, 100_999, 165_534].map(Uid));
        assert_eq!([70_000, Uid::OVERFLOW.0].map(outside), [Uid::OVERFLOW; 2], "there is no such user here");
        assert_eq!(map.outside(Uid::UNKNOWN), Uid::UNKNOWN);
    }

    #[test]
    fn a_map_that_cannot_be_is_none() {
        assert_eq!(UserMap::parse(""), Some(UserMap(vec![])));
        assert_eq!(["0 1000", "0 x 1", "-1 0 1"].map(UserMap::parse), [None, None, None]);
        let beyond = UserMap::parse("5 4294967290 100\n").expect("a map");
        assert_eq!([4, 5, 10, 11].map(|uid| beyond.outside(Uid(uid)).0), [65534, 4_294_967_290, u32::MAX, 65534]);
    }

    #[test]
    fn an_owner_is_whom_both_the_kernel_and_the_name_say() {
        let (own, other, anybody) = (Uid(1000), Uid(1001), Uid::OVERFLOW);
        assert_eq!(owner(own, own, own), Owner::Us);
        assert_eq!(owner(other, other, own), Owner::Other(other));
        assert_eq!(owner(other, own, own), Owner::NotAsNamed);
        assert_eq!(owner(own, other, own), Owner::NotAsNamed);
        // The overflow user may be anybody, whatever the name says, and is nobody's equal.
        assert_eq!(owner(anybody, own, own), Owner::Other(anybody));
        assert_eq!(owner(own, anybody, own), Owner::Other(anybody));
        assert_eq!(owner(other, anybody, own), Owner::Other(other));
        assert_eq!(owner(anybody, anybody, anybody), Owner::Other(anybody));
    }
}
