//! The seam between the core and the paths that carry its records: the two ends of a path, as traits, and the values they exchange.
//!
//! The core knows no operating system and the rings know no endpoints; both know these traits. `weft-shm` implements them for rings in
//! shared memory, and `weft-core::testing` for queues in ordinary memory.

use crate::{Head, HeadWords, Malformed, MAX_ARGS, MAX_PAYLOAD};
use std::num::NonZeroU32;

/// Why a record was not pushed.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PushError {
    /// There is no room now, because the consumer has not read enough. Nothing was changed.
    #[error("the ring is full")]
    Full,
    /// Larger than any record may be.
    #[error("a record has at most {MAX_ARGS} arguments and {MAX_PAYLOAD} bytes")]
    TooLarge,
    /// The consumer wrote an impossible cursor; the path is given up.
    #[error("the peer broke the ring")]
    Broken,
    /// The consumer is gone, or takes no more. The path's maker learns of it, and the reason, by other means. Nothing was changed.
    #[error("the peer is gone")]
    Gone,
}

crate::debug_says_display!(PushError);

/// A record in hand.
#[derive(Debug)]
pub struct Record<'a> {
    /// Its header, within its limits.
    pub head: HeadWords,
    /// Its arguments, copied out.
    pub args: &'a [u32],
    /// Its payload. Small ones are copied out, larger ones are read in place.
    pub payload: &'a [u8],
}

/// The result of a look at a path.
#[derive(Debug)]
pub enum Peek<'a> {
    /// Nothing.
    Empty,
    /// A record. It stays where it is until [`Rx::pop`].
    Record(Record<'a>),
    /// A record that violates the protocol; the path is given up.
    Broken(Malformed),
}

/// The result of a short look at a path, which is enough for most messages and made to be inlined.
#[derive(Debug)]
pub enum Glance<'a> {
    /// Nothing.
    Empty,
    /// A message. It stays where it is until [`Rx::pop`].
    Record(Record<'a>),
    /// Something else: call [`Rx::peek`].
    More,
}

/// What is known of a record that a dead consumer left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// It was never looked at.
    Untouched,
    /// It was in hand, or on its way to another host. Whether it was dealt with cannot be known.
    InHand,
    /// It was dealt with. Reported only behind a refused record, so that records can be numbered.
    Done,
    /// It was refused, for the reason with this code, and its return was not under way yet.
    Refused(u8),
}

/// A record that a dead consumer left.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Abandoned {
    /// Its header.
    pub head: Head,
    /// Its arguments; empty for [`Fate::Done`].
    pub args: Vec<u32>,
    /// Its payload; empty for [`Fate::Done`].
    pub payload: Vec<u8>,
    /// What happened to it.
    pub fate: Fate,
}

/// How far a path was written and read since it was made, in the path's bytes, including headers and padding.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Traffic {
    /// Written.
    pub pushed: u64,
    /// Read by the program at the other end, as far as is known.
    pub taken: u64,
}

/// The most bytes of payload that [`Tx::push_small`] takes.
pub const SMALL_MOST: usize = 128;

/// The writing end of a path. No call blocks.
pub trait Tx {
    /// Copies a record in and makes it visible. `head.args` and `head.len` are set from the slices.
    fn push(&mut self, head: Head, args: &[u32], payload: &[u8]) -> Result<(), PushError>;
    /// As [`Tx::push`], for a record that may be lost: it is not tracked and has no order with others. Paths that lose nothing treat it
    /// like any other.
    #[inline]
    fn push_unreliable(&mut self, head: Head, args: &[u32], payload: &[u8]) -> Result<(), PushError> {
        self.push(head, args, payload)
    }
    /// As [`Tx::push`] for a record of at most [`SMALL_MOST`] bytes of payload, if a few stores are enough: made to be inlined. False, with
    /// nothing changed, if they are not: then call `push`. The consumer is not woken before [`Tx::signal`].
    #[inline(always)]
    fn push_small(&mut self, head: Head, args: &[u32], payload: &[u8]) -> bool {
        let _ = (head, args, payload);
        false
    }
    /// Wakes the consumer for records of [`Tx::push_small`], if it wants that.
    #[inline(always)]
    fn signal(&mut self) {}
    /// Whether a record takes long, for memory, to reach the consumer: some hundred nanoseconds. False for paths that are not through
    /// memory.
    #[inline(always)]
    fn is_far(&self) -> bool {
        false
    }
    /// The process at the other end, if it is on this host and the kernel lets the two processes read and write each other's memory. Such a
    /// process can be trusted with memory.
    fn neighbour(&self) -> Option<NonZeroU32> {
        None
    }

    /// Whether a session without flows gives this path back. Then its owner must be told when the last flow has closed.
    fn closes_at_rest(&self) -> bool {
        false
    }

    /// Whether a record of `lines` would be taken now.
    fn has_room(&mut self, lines: u32) -> bool;
    /// The records that the consumer has refused, or may not have taken, oldest first. Call it only once the consumer is known to be dead.
    fn abandoned(&mut self) -> Vec<Abandoned>;
    /// How far it was written and read. For tools that look from outside now and then.
    fn traffic(&mut self) -> Traffic;
    /// Whether more than `bytes` wait for the reader, in a path that has room for many more. A sender of much data then waits, so that
    /// short messages do not queue behind all of it.
    fn is_ahead(&mut self, bytes: u64) -> bool {
        let _ = bytes;
        false
    }
    /// Gives back resources that an idle path does not need. May make system calls.
    fn rest(&mut self);
}

/// The reading end of a path. No call blocks.
pub trait Rx {
    /// Looks for the next record.
    fn peek(&mut self) -> Peek<'_>;
    /// Looks for the next record and hands it out if it is a message that can be read quickly.
    fn glance(&mut self) -> Glance<'_> {
        Glance::More
    }
    /// Drops the record in hand.
    fn pop(&mut self);
    /// Notes that the record in hand was refused and that there is no room yet to return it. When popped it stays in place, with the code
    /// of the reason, until [`Rx::let_go`]: if this process dies before that, the sender finds it there.
    fn hold(&mut self, reason: u8);
    /// The oldest `records` held records are being returned and need not be kept any more.
    fn let_go(&mut self, records: u32);
    /// Tells the producer of all records that were popped and are not held.
    fn release(&mut self);
    /// Asks the producer to ring the bell after each record, or to stop doing so.
    fn set_attention(&mut self, wanted: bool);
    /// How many records to take in this visit, at most `most`. Fewer, or none, where it pays to let a fast stream run ahead for some
    /// microseconds. Only for visits that are repeated.
    #[inline(always)]
    fn allowance(&mut self, most: u32) -> u32 {
        most
    }
    /// A visit took this many one-way messages. It `caught_up` if it took all that there were. Not called if there were none.
    #[inline(always)]
    fn note_visit(&mut self, one_way: u32, caught_up: bool) {
        let _ = (one_way, caught_up);
    }
    /// Whether the producer is of another user of this host. Then tighter limits apply to what is held for it.
    fn is_of_other_user(&self) -> bool {
        false
    }
    /// The bell was rung, and all records were taken. False if it was rung without cause so often that the producer is to be cut off.
    #[inline(always)]
    fn note_bell(&mut self) -> bool {
        true
    }
    /// Whether polls need not look at this path, because its bell announces everything.
    fn stays_cold(&self) -> bool {
        false
    }
}

/// The bells of producers that were asked to ring.
pub trait Bells {
    /// Calls `rung` for each bell below `in_use` that was rung since the last call.
    fn collect(&mut self, in_use: u32, rung: impl FnMut(u32));
    /// From now on each producer that rings wakes us, once. Certain only after a barrier that reaches the producers.
    fn arm(&mut self);
    /// From now on no producer wakes us.
    fn disarm(&mut self);
}
