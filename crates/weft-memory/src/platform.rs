//! The memory that an engine works with, as traits.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use weft_wire::memory::Origin;

/// Memory that peers may be given access to. Others read and write it at any time, so it is never behind a reference.
///
/// No call panics, whatever it is asked for.
pub trait Space {
    /// How many bytes there are.
    fn len(&self) -> u64;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the program lent it: nobody else can map it.
    fn is_lent(&self) -> bool {
        false
    }

    /// Copies bytes out of it. False, and nothing was copied, if they are not all within it.
    fn read(&self, at: u64, to: &mut [u8]) -> bool;

    /// Copies bytes into it in ascending order. The last aligned word is stored last, with release: a reader that sees it sees all of
    /// them. False, and nothing was copied, if they are not all within it.
    fn write(&self, at: u64, bytes: &[u8]) -> bool;

    /// Copies `len` bytes of another process into it, from `skip` bytes behind an [`Origin`]. The order is free, except that the last
    /// aligned word is stored last, with release, and only when it is certain that the process still has the bytes.
    ///
    /// # Errors
    /// Some bytes may have been copied then, but not the last word.
    fn pull(&self, at: u64, from: Pulled<'_>) -> Result<(), NotPulled> {
        let _ = (at, from);
        Err(NotPulled::Unreadable)
    }

    /// Whether the word of 1, 2, 4 or 8 bytes there is within it and aligned.
    fn is_word(&self, at: u64, bytes: usize) -> bool;

    /// Whether all these bytes can be changed. False if some of them lie in a part of the memory where nothing is mapped.
    fn can_be_changed(&self, at: u64, len: u64) -> bool {
        at.checked_add(len).is_some_and(|end| end <= self.len())
    }

    /// Changes the word of 1, 2, 4 or 8 bytes there in one step, and returns the old value; `change` returns none to leave it, and may be
    /// called more than once. `None` if there is [no such word](Space::is_word).
    fn update(&self, at: u64, bytes: usize, change: impl FnMut(u64) -> Option<u64>) -> Option<u64>;

    /// Offers `len` bytes from `at` to a neighbour, which can then map them. Returns a number to withdraw the offer by, and what
    /// [`Reach::open`] needs there. `None` if that is not possible.
    fn offer(&self, at: u64, len: u64) -> Option<(u64, Vec<u8>)> {
        let _ = (at, len);
        None
    }

    /// Withdraws offers by their numbers. When this returns, nobody reads or writes the memory through them or through offers that were
    /// [let go](Space::let_go). May block if a peer is stopped.
    fn withdraw(&self, offers: &[u64]) {
        let _ = offers;
    }

    /// Whether an offer has not ended. It also ends when its peer no longer needs it and other offers need its place.
    fn is_offered(&self, offer: u64) -> bool {
        let _ = offer;
        true
    }

    /// Ends an offer whose peer is gone.
    fn let_go(&self, offer: u64) {
        let _ = offer;
    }
}

/// Memory of a neighbour that is mapped here. `T` is the type of the targets that it is read into.
///
/// No call panics, whatever it is asked for.
pub trait Reach<T>: Sized {
    /// Maps the memory that a process [offers](Space::offer). `None` if that is not possible. The offer may be anything. Does not block.
    fn open(process: NonZeroU32, offer: &[u8]) -> Option<Self>;

    /// Whether the owner has not withdrawn it.
    fn is_open(&self) -> bool;

    /// Copies bytes to it, as [`Space::write`].
    ///
    /// # Errors
    /// If they were not, or perhaps not.
    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), Missed>;

    /// Copies `len` bytes out of it, to an offset of the target.
    ///
    /// # Errors
    /// If they were not, or perhaps not.
    fn read(&self, at: u64, target: &mut T, to: usize, len: usize) -> Result<(), Missed>;

    /// Whether so many bytes from there are within it.
    fn holds(&self, at: u64, len: usize) -> bool;

    /// Whether the word of 1, 2, 4 or 8 bytes there is within it and aligned.
    fn is_word(&self, at: u64, bytes: usize) -> bool;

    /// Changes a word, as [`Space::update`].
    ///
    /// # Errors
    /// If it was not changed, or perhaps not.
    fn update(&self, at: u64, bytes: usize, change: impl FnMut(u64) -> Option<u64>) -> Result<u64, Missed>;

    /// A handle that ends its use from another thread.
    fn closer(&self) -> Closer;
}

/// Why an access to mapped memory was not made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Missed {
    /// The access was not made: the owner has withdrawn the memory, or the range is not within it.
    NotMade,
    /// The owner withdrew the memory during the access.
    Interrupted,
}

/// Ends the use of mapped memory from another thread: an access that begins later is not made.
pub struct Closer(pub Box<dyn Close>);

/// What a [`Closer`] does.
pub trait Close: Send + Sync {
    /// Ends the use.
    fn close(&self);

    /// Whether the mapping is gone anyway.
    fn is_done(&self) -> bool;
}

impl std::fmt::Debug for Closer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Closer")
    }
}

/// Memory that does not exist: for platforms without neighbours.
#[derive(Debug)]
pub enum NoReach {}

impl<T> Reach<T> for NoReach {
    fn open(_: NonZeroU32, _: &[u8]) -> Option<NoReach> {
        None
    }

    fn is_open(&self) -> bool {
        match *self {}
    }

    fn write(&self, _: u64, _: &[u8]) -> Result<(), Missed> {
        match *self {}
    }

    fn read(&self, _: u64, _: &mut T, _: usize, _: usize) -> Result<(), Missed> {
        match *self {}
    }

    fn holds(&self, _: u64, _: usize) -> bool {
        match *self {}
    }

    fn is_word(&self, _: u64, _: usize) -> bool {
        match *self {}
    }

    fn update(&self, _: u64, _: usize, _: impl FnMut(u64) -> Option<u64>) -> Result<u64, Missed> {
        match *self {}
    }

    fn closer(&self) -> Closer {
        match *self {}
    }
}

/// Bytes of another process that [`Space::pull`] copies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pulled<'a> {
    /// The process.
    pub process: NonZeroU32,
    /// Where its bytes are.
    pub origin: &'a Origin,
    /// How many bytes behind the origin they begin.
    pub skip: u64,
    /// How many are copied.
    pub len: usize,
}

/// Why bytes were not pulled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotPulled {
    /// The kernel does not let this process read them, or they are not there.
    Unreadable,
    /// The process has ended, or has given the bytes up.
    Gone,
    /// The range leaves the memory here.
    Outside,
}

/// A word in the process that asks for a pull. The owner reads it after the bytes: while it is unchanged, the asking process still has the
/// bytes.
#[derive(Clone, Debug)]
pub struct Proof(Arc<AtomicU64>);

impl Proof {
    pub(crate) fn new(value: u64) -> Proof {
        Proof(Arc::new(AtomicU64::new(value)))
    }

    /// Where it is in this process.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.0.as_ptr().addr() as u64
    }

    /// What it is now.
    #[must_use]
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Invalidates the proof: bytes that are read from now on are not the write's.
    pub(crate) fn set(&self, value: u64) {
        // The program may change the bytes only after this store. So a process that reads the bytes, and then still reads the old value,
        // has the old bytes.
        self.0.store(value, Ordering::SeqCst);
    }
}

/// Bytes that an operation sends. They do not change until it has sent them.
pub trait Source {
    /// The bytes.
    fn bytes(&self) -> &[u8];

    /// Their address in this process, if another process can read them there.
    fn address(&self) -> Option<u64> {
        None
    }
}

/// Room that an operation receives into: it is the operation's until it ends.
pub trait Target {
    /// How many bytes there are.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies bytes to an offset, as many as there is room for.
    fn write(&mut self, at: usize, bytes: &[u8]);
}

/// The kinds of memory that an engine works with.
pub trait Platform {
    /// A region's memory.
    type Space: Space + std::fmt::Debug;
    /// What is written to others.
    type Source: Source + From<Vec<u8>> + std::fmt::Debug;
    /// What is read from others.
    type Target: Target + std::fmt::Debug;
    /// Memory of neighbours that is mapped here.
    type Reach: Reach<Self::Target> + std::fmt::Debug;

    /// Called for each proof that is made, for platforms whose processes are simulated.
    fn note_proof(proof: &Proof) {
        let _ = proof;
    }
}

impl Source for Vec<u8> {
    fn bytes(&self) -> &[u8] {
        self
    }
}

impl Target for Vec<u8> {
    fn len(&self) -> usize {
        self.len()
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        for (to, byte) in self.iter_mut().skip(at).zip(bytes) {
            *to = *byte;
        }
    }
}
