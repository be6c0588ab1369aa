//! The seam between the core and what carries its records: the two ends of a path, as traits, and the values they exchange.
//!
//! The core knows no operating system, the rings know no endpoints; both know these. Implemented by `weft-shm` for rings in
//! shared memory and by `weft-core::testing` for queues in ordinary memory.

use crate::{Head, HeadWords, Malformed, MAX_ARGS, MAX_PAYLOAD};
use std::num::NonZeroU32;

/// Why a record was not pushed.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PushError {
    /// No room now; the consumer has not read enough. Nothing was changed.
    #[error("the ring is full")]
    Full,
    /// Larger than any record may be.
    #[error("a record has at most {MAX_ARGS} arguments and {MAX_PAYLOAD} bytes")]
    TooLarge,
    /// The consumer wrote a cursor that cannot be; the path is given up.
    #[error("the peer broke the ring")]
    Broken,
    /// The consumer is gone, or takes no more. Whoever made the path is told so by other means, and why. Nothing was changed.
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
    /// Its payload: small ones copied out, larger ones where they lie.
    pub payload: &'a [u8],
}

/// What a look at a path finds.
#[derive(Debug)]
pub enum Peek<'a> {
    /// Nothing.
    Empty,
    /// A record. It stays where it is until [`Rx::pop`].
    Record(Record<'a>),
    /// What no weft writes; the path is given up.
    Broken(Malformed),
}

/// What a short look at a path finds: enough for most messages, and made to be inlined.
#[derive(Debug)]
pub enum Glance<'a> {
    /// Nothing.
    Empty,
    /// A message. It stays where it is until [`Rx::pop`].
    Record(Record<'a>),
    /// Something else: [`Rx::peek`] tells.
    More,
}

/// What is known of a record that a dead consumer left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// It was never looked at.
    Untouched,
    /// It was the one in hand, or on its way to another host; whether it was done with cannot be known.
    InHand,
    /// It was done with. Told only behind one that was refused, so that records can be numbered.
    Done,
    /// It was refused, for the reason with this code, and its return was not under way yet.
    Refused(u8),
}

/// A record that a dead consumer left.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Abandoned {
    /// Its header.
    pub head: Head,
    /// Its arguments; none if it was done with.
    pub args: Vec<u32>,
    /// Its payload; none if it was done with.
    pub payload: Vec<u8>,
    /// What became of it.
    pub fate: Fate,
}

/// How far a path was written and read, since it was made, in bytes of its own: headers and padding are among them.
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
    /// The same for a record that may be lost: one that is not tracked and stands in no order with others. Paths that lose nothing
    /// take it as any other.
    #[inline]
    fn push_unreliable(&mut self, head: Head, args: &[u32], payload: &[u8]) -> Result<(), PushError> {
        self.push(head, args, payload)
    }
    /// As [`Tx::push`] for a record of at most [`SMALL_MOST`] bytes of payload, where a few stores do it: made to be inlined. False, and
    /// nothing was changed, if they do not: then it is for `push`. The consumer is not woken before [`Tx::signal`].
    #[inline(always)]
    fn push_small(&mut self, head: Head, args: &[u32], payload: &[u8]) -> bool {
        let _ = (head, args, payload);
        false
    }
    /// Wakes the consumer of what [`Tx::push_small`] made visible, if it wants that.
    #[inline(always)]
    fn signal(&mut self) {}
    /// Whether what is pushed takes long to come to the consumer, for memory: some hundred nanoseconds. A path that is not through
    /// memory says no.
    #[inline(always)]
    fn is_far(&self) -> bool {
        false
    }
    /// The process at the other end, if it is one of this host that the kernel lets read and write this one's memory, and the other way
    /// round. Such a process can be trusted with memory.
    fn neighbour(&self) -> Option<NonZeroU32> {
        None
    }

    /// Whether a session without flows gives this path back, so that its owner is to be told when the last flow has closed.
    fn closes_at_rest(&self) -> bool {
        false
    }

    /// Whether a record of `lines` would be taken now.
    fn has_room(&mut self, lines: u32) -> bool;
    /// The records that the consumer has not surely taken or has refused, oldest first. Only once it is known to be dead.
    fn abandoned(&mut self) -> Vec<Abandoned>;
    /// How far it was written and read: for whoever looks at it from outside, now and then.
    fn traffic(&mut self) -> Traffic;
    /// Whether more than so many bytes wait there for their reader, in a path that has room for many more. Who sends much then waits, so
    /// that what is short does not stand behind all of it.
    fn is_ahead(&mut self, bytes: u64) -> bool {
        let _ = bytes;
        false
    }
    /// Gives back what an idle path can do without. May make system calls.
    fn rest(&mut self);
}

/// The reading end of a path. No call blocks.
pub trait Rx {
    /// Looks for the next record.
    fn peek(&mut self) -> Peek<'_>;
    /// Looks for the next record and hands it out if that is a message that is quickly had.
    fn glance(&mut self) -> Glance<'_> {
        Glance::More
    }
    /// Drops the record in hand.
    fn pop(&mut self);
    /// Notes that the record in hand was refused and that its return finds no room yet. Popped, it stays where it is, with
    /// the code of the reason, until [`Rx::let_go`]: should we die before, its sender finds it there.
    fn hold(&mut self, reason: u8);
    /// The returns of so many held records are under way, the oldest ones': they need not be kept any more.
    fn let_go(&mut self, records: u32);
    /// Lets the producer know of all that was popped and is not held.
    fn release(&mut self);
    /// Asks the producer to ring the bell after each record, or to stop doing so.
    fn set_attention(&mut self, wanted: bool);
    /// How many records to take in this visit, at most `most`. Fewer, or none, where it pays to let a fast stream run ahead for
    /// some microseconds: for visits that are made again and again only.
    #[inline(always)]
    fn allowance(&mut self, most: u32) -> u32 {
        most
    }
    /// A visit took so many one-way messages, and all that there was if it `caught_up`. Not called if there were none.
    #[inline(always)]
    fn note_visit(&mut self, one_way: u32, caught_up: bool) {
        let _ = (one_way, caught_up);
    }
    /// Whether the producer is of another user of this host: then what it may have us hold is bounded more closely.
    fn is_of_other_user(&self) -> bool {
        false
    }
    /// The bell was rung, and what there was has been taken. False if it was rung without cause so often that the producer is
    /// to be cut off.
    #[inline(always)]
    fn note_bell(&mut self) -> bool {
        true
    }
    /// Whether it is of no use to look at this path on every poll: its bell says all.
    fn stays_cold(&self) -> bool {
        false
    }
}

/// Where producers that were asked to leave word.
pub trait Bells {
    /// Calls `rung` for each bell below `in_use` that was rung since the last call.
    fn collect(&mut self, in_use: u32, rung: impl FnMut(u32));
    /// From now on whoever rings wakes us, once. Sure only after a barrier that reaches the producers.
    fn arm(&mut self);
    /// Nobody wakes us any more.
    fn disarm(&mut self);
}
