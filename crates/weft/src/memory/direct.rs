//! Memory of neighbours that is mapped here.

use super::Target;
use std::num::NonZeroU32;
use weft_memory::{Close, Closer, Mapped, Missed, Rights};
use weft_shm::{Offer, RemoteError};
use weft_wire::memory::{Atomic, Type};

/// A part of a peer's region that is mapped here: read, written and changed by this process's own loads and stores. No code runs at
/// the owner, and the owner is not told. One thread uses it at a time. Offsets count from the beginning of the part that the
/// credential covers.
///
/// An access is complete before the owner's revocation returns, or is not made at all. [`RemoteError::Withdrawn`] means that it was
/// not made, [`RemoteError::Interrupted`] that this is unknown. Accesses are also refused once this bundle has noticed that the
/// owner is gone; until then they change memory that nobody reads.
///
/// Ranges and rights only protect from mistakes: a process that is allowed to map this memory could write all of the owner's
/// memory.
#[derive(Debug)]
pub struct Remote {
    memory: weft_shm::Remote,
    rights: Rights,
}

#[doc(hidden)] // users need not know the type
impl From<Mapped<Reach>> for Remote {
    fn from(mapped: Mapped<Reach>) -> Remote {
        Remote { memory: mapped.reach.0, rights: mapped.rights }
    }
}

impl Remote {
    /// Returns the number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// Returns whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.memory.is_empty()
    }

    /// Returns the rights that the credential gives.
    #[must_use]
    pub fn rights(&self) -> Rights {
        self.rights
    }

    /// Returns true until the owner withdraws the memory.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.memory.is_open()
    }

    /// Copies bytes to it in ascending order. The last aligned word is stored last, with release: a program that polls this word
    /// and sees its new value sees all other bytes too. Keep accesses below some megabytes, because a revocation waits only 100 ms
    /// for one.
    ///
    /// # Errors
    /// [`RemoteError`].
    #[inline]
    pub fn write(&self, at: u64, bytes: &[u8]) -> Result<(), RemoteError> {
        match self.rights.write {
            true => self.memory.write(at, bytes),
            false => Err(RemoteError::NoRight),
        }
    }

    /// Copies bytes out of it. Bytes that are written meanwhile can be partly old and partly new, except within aligned words of 8
    /// bytes.
    ///
    /// # Errors
    /// [`RemoteError`].
    #[inline]
    pub fn read(&self, at: u64, to: &mut [u8]) -> Result<(), RemoteError> {
        match self.rights.read {
            true => self.memory.read(at, to),
            false => Err(RemoteError::NoRight),
        }
    }

    /// Changes the word there in one step, and returns the old value. `second` is the second operand, for operations that have one.
    /// Words of 32 bits are in the lower half.
    ///
    /// # Errors
    /// [`RemoteError`]: `Outside` also if the word is not aligned, or there is no such operation on such words.
    #[inline]
    pub fn change(&self, at: u64, (atomic, of): (Atomic, Type), operand: u64, second: u64) -> Result<u64, RemoteError> {
        match (self.rights.atomic, atomic.is_for(of)) {
            (true, true) => self.memory.update(at, of.bytes(), |old| atomic.apply(of, old, operand, second)),
            (true, false) => Err(RemoteError::Outside),
            (false, _) => Err(RemoteError::NoRight),
        }
    }
}

/// The same for the engine.
#[derive(Debug)]
pub(super) struct Reach(weft_shm::Remote);

fn missed(error: RemoteError) -> Missed {
    match error {
        RemoteError::Interrupted => Missed::Interrupted,
        RemoteError::Outside | RemoteError::NoRight | RemoteError::Withdrawn => Missed::NotMade,
    }
}

impl weft_memory::Reach<Target> for Reach {
    fn open(process: NonZeroU32, offer: &[u8]) -> Option<Reach> {
        weft_shm::Remote::open(process.get(), &Offer::from_bytes(offer)?).map(Reach)
    }

    fn is_open(&self) -> bool {
        self.0.is_open()
    }

    #[inline(always)]
    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), Missed> {
        self.0.write(at, bytes).map_err(missed)
    }

    #[inline(always)]
    fn read(&self, at: u64, target: &mut Target, to: usize, len: usize) -> Result<(), Missed> {
        match target {
            Target::Owned(bytes) => match to.checked_add(len).and_then(|end| bytes.get_mut(to..end)) {
                Some(room) => self.0.read(at, room).map_err(missed),
                None => Err(Missed::NotMade),
            },
            Target::Lent(lent) => self.0.read_lent(at, lent, to, len).map_err(missed),
        }
    }

    #[inline(always)]
    fn holds(&self, at: u64, len: usize) -> bool {
        self.0.holds(at, len)
    }

    #[inline(always)]
    fn is_word(&self, at: u64, bytes: usize) -> bool {
        self.0.is_word(at, bytes)
    }

    #[inline(always)]
    fn update(&self, at: u64, bytes: usize, change: impl FnMut(u64) -> Option<u64>) -> Result<u64, Missed> {
        self.0.update(at, bytes, change).map_err(missed)
    }

    fn closer(&self) -> Closer {
        Closer(Box::new(Ender(self.0.closer())))
    }
}

struct Ender(weft_shm::Closer);

impl Close for Ender {
    fn close(&self) {
        self.0.close();
    }

    fn is_done(&self) -> bool {
        self.0.is_done()
    }
}
