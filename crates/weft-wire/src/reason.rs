//! Why a message came back, and whether it may have been delivered.

use std::fmt;

/// What is known about a message that came back.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Certainty {
    /// The message was not, and will not be, delivered.
    NotDelivered,
    /// Whether it was delivered cannot be known: the peer died with it in hand.
    Unknown,
}

impl fmt::Display for Certainty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Certainty::NotDelivered => "not delivered",
            Certainty::Unknown => "unknown whether delivered",
        })
    }
}

/// The error of every call in a forked child: cause and way out.
pub const FORKED: &str =
    "this process was forked after weft was opened, and cannot use what its parent has open; make a new \
                          Node here, with bundles of its own";

/// Why a message or a set-up was refused. The number is the wire code, except for limits of this process, which have another code on the
/// wire (see [`Reason::code`]).
#[derive(Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[repr(u8)]
pub enum Reason {
    /// The message carried another key than the endpoint's.
    #[error(
        "wrong key: the message carried another key than the endpoint's, or none; ask its owner for the present key"
    )]
    WrongKey = 1,
    /// No endpoint of that number in that network interface.
    #[error("no such endpoint: it was never made or has been freed; ask its owner for a present name")]
    NoSuchEndpoint = 2,
    /// The endpoint has no handler of that number.
    #[error("no handler: the endpoint has none of that number; register it before the name is handed out")]
    NoHandler = 3,
    /// The endpoint is not served and its queue is full.
    #[error("queue full: the endpoint is not being served; send again later")]
    QueueFull = 4,
    /// The peer process is gone, or has dropped its bundle.
    #[error(
        "peer lost: its process, or a weftd on the way, ended; get the name of its successor where you got this one"
    )]
    PeerLost = 5,
    /// Nobody answers under that name's epoch: the process ended, or it never was on this host.
    #[error("nobody there: no process with that name answers; it ended, or its host cannot be reached; ask for a present name")]
    NobodyThere = 6,
    /// The peer speaks another version.
    #[error("another version: the peer runs a weft of another wire version; use the same on both sides")]
    Version = 7,
    /// The peer is of another user, and one of the two endpoints does not admit others, or not with this key.
    #[error("another user: both endpoints must admit processes of other users (set_admission), the caller's own as well as the peer's, and the key must be the peer's")]
    ForeignUser = 8,
    /// The peer broke the protocol and was cut off.
    #[error("protocol violation: the peer broke the protocol and was cut off; restart it")]
    Violation = 9,
    /// The peer, or this bundle, has as many sessions or flows as it may.
    #[error("no room: the peer, or the bundle here, has as many sessions or flows as it may; close some, or try again later")]
    NoRoom = 10,
    /// The name states another owner than the kernel does, or the process that answers does not know the endpoint's key.
    #[error("wrong owner: the process that answers under this name is not of the user that the name states, or does not know the key; ask for a present name")]
    WrongOwner = 11,
    /// The name is of another life of that network interface.
    #[error("wrong epoch: the process that had this name has ended; ask for a present name")]
    WrongEpoch = 12,
    /// The endpoint admits nobody at present.
    #[error("closed: the endpoint admits nobody at present; send again when its owner has opened it")]
    Closed = 13,
    /// One side heard nothing from the other for the suspicion time. Between hosts, nothing more is known.
    #[error(
        "silent: nothing was heard of the peer for the suspicion time, or it heard nothing of us; its process may be stopped, \
         or its host or the network down; send again, which calls it anew"
    )]
    Silent = 14,
    /// The peer's process ran into a limit of its own: open files, memory, or file size.
    #[error("the peer's limit: its process has no descriptor, no memory or no file size left for this; raise its limits there (ulimit -n, -v, -f)")]
    PeerLimit = 15,
    /// This process may open no more files.
    #[error("no descriptor here: this process, not the peer, may open no more files; raise its limit (ulimit -n), or close some")]
    OwnDescriptors = 16,
    /// This process gets no more memory or address space.
    #[error("no memory here: this process, not the peer, gets no more memory; raise its limit of address space (ulimit -v), or free some")]
    OwnMemory = 17,
    /// This process may not make shared memory of the size that a session needs.
    #[error("no file size here: this process, not the peer, may not make shared memory as large as a session needs; raise its limit of file size (ulimit -f)")]
    OwnFileSize = 18,
    /// The region was revoked.
    #[error("revoked: the region is closed to its peers since its owner revoked it; ask its owner for another one")]
    Revoked = 19,
    /// The endpoint has no region with that key, or no such cookie.
    #[error("no region: the endpoint has none under that key or cookie; ask its owner for a present one")]
    NoRegion = 20,
    /// The range is not within the region, or not within the part that the cookie is for.
    #[error(
        "outside: the range leaves the region, or the part of it that the cookie is for; look at offset and length"
    )]
    OutsideRegion = 21,
    /// The region or the cookie does not grant that right.
    #[error("no right: the region or the cookie does not allow this kind of access (read, write or atomic); ask its owner for the right")]
    NoRight = 22,
    /// An atomic operation on a word that is not aligned, on a part of a word, or one that does not exist for words of that type.
    #[error("unaligned: atomic operations need words that are aligned to their size and whole, of a type that has the operation; look at offset, length and type")]
    Unaligned = 23,
    /// The endpoint has no segment for long messages, or the offset is not in it.
    #[error("no segment there: the endpoint has no segment for long messages, or the offset is not in it; ask its owner to set one, and look at the offset")]
    BadOffset = 24,
    /// The long message begins in the segment and reaches over its end.
    #[error(
        "too long for the segment: the long message begins in it and reaches over its end; look at offset and length"
    )]
    BadLength = 25,
}

crate::debug_says_display!(Reason);

impl Reason {
    /// All reasons, in the order of their codes.
    pub const ALL: [Reason; 25] = [
        Reason::WrongKey,
        Reason::NoSuchEndpoint,
        Reason::NoHandler,
        Reason::QueueFull,
        Reason::PeerLost,
        Reason::NobodyThere,
        Reason::Version,
        Reason::ForeignUser,
        Reason::Violation,
        Reason::NoRoom,
        Reason::WrongOwner,
        Reason::WrongEpoch,
        Reason::Closed,
        Reason::Silent,
        Reason::PeerLimit,
        Reason::OwnDescriptors,
        Reason::OwnMemory,
        Reason::OwnFileSize,
        Reason::Revoked,
        Reason::NoRegion,
        Reason::OutsideRegion,
        Reason::NoRight,
        Reason::Unaligned,
        Reason::BadOffset,
        Reason::BadLength,
    ];

    /// The wire code. To the peer, a limit of this process is the peer's limit, so those have the code of [`Reason::PeerLimit`].
    pub fn code(self) -> u8 {
        match self {
            Reason::OwnDescriptors | Reason::OwnMemory | Reason::OwnFileSize => Reason::PeerLimit as u8,
            reason => reason as u8,
        }
    }

    /// The reason of a wire code, if there is one.
    pub fn from_code(code: u8) -> Option<Reason> {
        Reason::ALL.into_iter().find(|reason| *reason as u8 == code && reason.code() == code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_stable_and_read_back() {
        let codes = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 19, 20, 21, 22, 23, 24, 25];
        let own = [Reason::OwnDescriptors, Reason::OwnMemory, Reason::OwnFileSize];
        for (reason, code) in Reason::ALL.into_iter().filter(|reason| !own.contains(reason)).zip(codes) {
            assert_eq!((reason.code(), Reason::from_code(code)), (code, Some(reason)));
        }
        for code in (0..=u8::MAX).filter(|code| !codes.contains(code)) {
            assert_eq!(Reason::from_code(code), None);
        }
    }

    #[test]
    fn a_limit_of_this_process_is_the_peers_limit_to_the_peer() {
        for own in [Reason::OwnDescriptors, Reason::OwnMemory, Reason::OwnFileSize] {
            assert_eq!(Reason::from_code(own.code()), Some(Reason::PeerLimit));
            assert!(own.to_string().contains("this process, not the peer"));
        }
        let words = Reason::ForeignUser.to_string();
        assert!(words.contains("both endpoints") && words.contains("the caller's own"), "{words}");
    }
}
