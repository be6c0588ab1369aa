//! Whose a process is. Names say users as the parent of their maker's user namespace numbers them, so that a process in a container
//! and one outside that share a network mean the same user by the same number. What the kernel says of a peer is brought
//! into those terms too.

use weft_wire::Uid;

pub(crate) use weft_shm::users::UserMap;

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
