//! Why a message came back, and how sure that is.

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

/// What every call says in a forked child: cause and way out.
pub const FORKED: &str =
    "this process was forked after weft was opened, and what its parent has open is not its own; make a new \
                          Node here, with bundles of its own";

/// Why a message or a set-up was refused. The number is the wire code.
#[derive(Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[repr(u8)]
pub enum Reason {
    /// The key carried is not the endpoint's.
    #[error("wrong key: the endpoint's key is another one; ask its owner for the present key")]
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
    #[error("peer lost: its process ended; find its successor by your rendezvous")]
    PeerLost = 5,
    /// Nobody answers under that name's epoch: the process ended, or it never was on this host.
    #[error("nobody there: no process of that name's epoch answers; it ended, or its host cannot be reached; ask for a present name")]
    NobodyThere = 6,
    /// The peer speaks another version.
    #[error("another version: the peer runs a weft of another wire version; use the same on both sides")]
    Version = 7,
    /// The peer is of another user, and does not admit others, or not with this key.
    #[error("another user: the endpoint admits only processes of its own user, or another key; its owner can admit all users")]
    ForeignUser = 8,
    /// The peer broke the protocol and was cut off.
    #[error("protocol violation: the peer wrote what no weft writes and was cut off; restart it")]
    Violation = 9,
    /// The peer has as many sessions, flows or endpoints as it can hold.
    #[error("no room: the peer holds as many sessions as it may; close some, or raise its limit")]
    NoRoom = 10,
    /// The name says another owner than the kernel does, or who answers does not know the endpoint's key.
    #[error("wrong owner: who answers under this name is not the user that the name states, or does not know the key; ask for a present name")]
    WrongOwner = 11,
    /// The name is of another life of that network interface.
    #[error("wrong epoch: the process that had this name has ended; ask for a present name")]
    WrongEpoch = 12,
    /// The endpoint admits nobody at present.
    #[error("closed: the endpoint admits nobody at present; send again when its owner has opened it")]
    Closed = 13,
    /// One side heard nothing of the other for the suspicion time. Between hosts, that is all that is known.
    #[error(
        "silent: nothing was heard of the peer for the suspicion time, or it heard nothing of us; its process may be stopped, \
         or its host or the network down; send again, which calls it anew"
    )]
    Silent = 14,
}

crate::debug_says_display!(Reason);

impl Reason {
    /// All reasons, in the order of their codes.
    pub const ALL: [Reason; 14] = [
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
    ];

    /// The wire code.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// The reason of a wire code, if there is one.
    pub fn from_code(code: u8) -> Option<Reason> {
        Reason::ALL.get(usize::from(code).checked_sub(1)?).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_stable_and_read_back() {
        for (i, reason) in Reason::ALL.into_iter().enumerate() {
            assert_eq!(usize::from(reason.code()), i + 1);
            assert_eq!(Reason::from_code(reason.code()), Some(reason));
        }
        assert_eq!(Reason::from_code(0), None);
        assert_eq!(Reason::from_code(15), None);
    }
}
