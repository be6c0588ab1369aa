//! The user that owns a process. A name gives the user id as seen from the parent of its maker's user namespace. So a process in a
//! container and one outside it, on the same network, use the same number for the same user. User ids from the kernel are
//! translated the same way.

use weft_wire::Uid;

pub(crate) use weft_shm::users::UserMap;

/// The owner of a peer, by the kernel's word and by its name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Owner {
    /// Our user.
    Us,
    /// Another user; [`Uid::OVERFLOW`] if the user has no number here.
    Other(Uid),
    /// Not the user that its name gives.
    NotAsNamed,
}

/// Finds the owner of a peer. The kernel says `seen`, its name says `named`, and we are `own`.
pub(crate) fn owner(seen: Uid, named: Uid, own: Uid) -> Owner {
    // The overflow user stands for every user without a number in our namespace, so it equals nobody, not even itself.
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
    fn an_owner_needs_the_kernel_and_the_name_to_agree() {
        let (own, other, anybody) = (Uid(1000), Uid(1001), Uid::OVERFLOW);
        assert_eq!(owner(own, own, own), Owner::Us);
        assert_eq!(owner(other, other, own), Owner::Other(other));
        assert_eq!(owner(other, own, own), Owner::NotAsNamed);
        assert_eq!(owner(own, other, own), Owner::NotAsNamed);
        // The overflow user may be anybody, whatever the name says, so it equals nobody.
        assert_eq!(owner(anybody, own, own), Owner::Other(anybody));
        assert_eq!(owner(own, anybody, own), Owner::Other(anybody));
        assert_eq!(owner(other, anybody, own), Owner::Other(other));
        assert_eq!(owner(anybody, anybody, anybody), Owner::Other(anybody));
    }
}
