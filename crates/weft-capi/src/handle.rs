//! Handles: C gets these numbers in place of pointers to this library's objects.
//!
//! A handle looks like a pointer, but is a number: the kind of the object, how many objects had its place before, and the index of the
//! place. It is never dereferenced. A handle of a freed object, of another kind, or made up, differs from the one that its place holds now.
//! The memory of places is never freed, so a lookup is safe at any time and takes no lock.

use std::ffi::c_void;
use std::ops::Deref;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

const _: () = assert!(usize::BITS == 64, "a handle needs the 64 bits of a pointer");

const INDEX_BITS: u32 = 18;
const KIND_BITS: u32 = 4;
const LIFE_SHIFT: u32 = INDEX_BITS + KIND_BITS;
const INDEX_MASK: u64 = (1 << INDEX_BITS) - 1;

/// The number of a place's first life. With it no handle is a valid address on this processor, so following one ends the program at once.
const FIRST_LIFE: u64 = 1 << 40;

/// The kinds of objects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    Node = 1,
    Bundle = 2,
    Endpoint = 3,
    /// A message, while its handler runs.
    Message = 4,
    /// The right to reply to a request later.
    Reply = 5,
}

/// A number that C has as a pointer. Zero is NULL.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Handle(u64);

impl Handle {
    pub const NULL: Handle = Handle(0);

    #[inline(always)]
    pub fn new(kind: Kind, life: u64, index: usize) -> Handle {
        Handle(life.wrapping_add(FIRST_LIFE) << LIFE_SHIFT | (kind as u64) << INDEX_BITS | index as u64 & INDEX_MASK)
    }

    /// The handle of the next life at the same place.
    #[inline(always)]
    pub fn next(self) -> Handle {
        Handle(self.0.wrapping_add(1 << LIFE_SHIFT))
    }

    /// The value of a place without an object: the number of another place, so no handle that leads here equals it.
    fn nobody(index: usize) -> u64 {
        (index ^ 1) as u64 & INDEX_MASK
    }

    #[inline(always)]
    pub fn index(self) -> usize {
        (self.0 & INDEX_MASK) as usize
    }

    /// As a pointer for C.
    #[inline(always)]
    pub fn to_c<T>(self) -> *mut T {
        std::ptr::without_provenance_mut(self.0 as usize)
    }

    /// From a pointer of C, unchecked.
    #[inline(always)]
    pub fn from_c<T>(pointer: *const T) -> Handle {
        Handle(pointer.addr() as u64)
    }

    #[inline(always)]
    pub fn to_bits(self) -> u64 {
        self.0
    }

    #[inline(always)]
    pub fn from_bits(bits: u64) -> Handle {
        Handle(bits)
    }
}

impl From<*mut c_void> for Handle {
    #[inline(always)]
    fn from(pointer: *mut c_void) -> Handle {
        Handle::from_c(pointer)
    }
}

/// A place for an object.
pub struct Place<T> {
    /// The handle of the object that is here, or [`nobody`](Handle::nobody)'s.
    handle: AtomicU64,
    object: T,
}

impl<T> Place<T> {
    /// The handle of the object that is here now. Another thread may free it at any time.
    pub fn handle(&self) -> Handle {
        // Acquire: pairs with the release in `publish`.
        let handle = self.handle.load(Ordering::Acquire);
        Handle(if handle >> LIFE_SHIFT == 0 { 0 } else { handle })
    }

    /// Whether the object of this handle is here.
    #[inline(always)]
    pub fn is(&self, handle: Handle) -> bool {
        // Acquire: as in `handle`.
        self.handle.load(Ordering::Acquire) == handle.0
    }

    /// Makes the handle valid.
    pub fn publish(&self, handle: Handle) {
        self.handle.store(handle.0, Ordering::Release);
    }

    /// Makes the handle invalid. False if it was not valid here: another thread was faster.
    pub fn withdraw(&self, handle: Handle) -> bool {
        self.handle
            .compare_exchange(handle.0, Handle::nobody(handle.index()), Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }
}

impl<T> Deref for Place<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.object
    }
}

const CHUNK: usize = 256;
const CHUNKS: usize = 1024;

const _: () = assert!(CHUNK * CHUNKS == 1 << INDEX_BITS, "every index has a place");

/// The places of all objects of one kind. The table grows by chunks, which are never freed.
pub struct Table<T: 'static> {
    kind: Kind,
    /// Null, or a chunk that is never freed.
    chunks: [AtomicPtr<[Place<T>; CHUNK]>; CHUNKS],
    free: Mutex<Free>,
}

struct Free {
    /// Places whose object is gone, with the number of lives that each has had.
    places: Vec<(usize, u64)>,
    /// Places from here on were never used.
    fresh: usize,
}

impl<T: Default> Table<T> {
    pub const fn new(kind: Kind) -> Table<T> {
        let free = Mutex::new(Free { places: Vec::new(), fresh: 0 });
        Table { kind, chunks: [const { AtomicPtr::new(std::ptr::null_mut()) }; CHUNKS], free }
    }

    #[inline(always)]
    fn chunk(&'static self, at: usize) -> Option<&'static [Place<T>; CHUNK]> {
        // Acquire: pairs with the release in `take`.
        let chunk = self.chunks.get(at)?.load(Ordering::Acquire);
        // SAFETY: it is null, or `take` leaked it.
        unsafe { chunk.as_ref() }
    }

    /// The place that a handle names, whatever is there now.
    #[inline(always)]
    pub fn place(&'static self, handle: Handle) -> Option<&'static Place<T>> {
        let index = handle.index();
        Some(&self.chunk(index / CHUNK)?[index % CHUNK])
    }

    /// The place of a handle's object. Another thread may free the object meanwhile.
    #[inline(always)]
    pub fn find(&'static self, handle: Handle) -> Option<&'static Place<T>> {
        self.place(handle).filter(|place| place.is(handle))
    }

    /// Takes a place for a new object, and the handle that it will have once it is [published](Place::publish). `None` if
    /// there are 262,144.
    pub fn take(&'static self) -> Option<(&'static Place<T>, Handle)> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let (index, life) = match free.places.pop() {
            Some(place) => place,
            None if free.fresh < CHUNK * CHUNKS => {
                free.fresh += 1;
                (free.fresh - 1, 0)
            }
            None => return None,
        };
        let first = index - index % CHUNK;
        // Under the lock of `free`, so no other thread makes the same chunk.
        let chunk = self.chunk(index / CHUNK).unwrap_or_else(|| {
            let place = |at| Place { handle: AtomicU64::new(Handle::nobody(first + at)), object: T::default() };
            // Made on the heap: it may be large.
            let all: Box<[Place<T>]> = (0..CHUNK).map(place).collect();
            let chunk = Box::leak(all.try_into().unwrap_or_else(|_| unreachable!("it has as many")));
            self.chunks[index / CHUNK].store(chunk, Ordering::Release);
            chunk
        });
        Some((&chunk[index % CHUNK], Handle::new(self.kind, life + 1, index)))
    }

    /// Returns a place whose object is gone. Its handle must have been withdrawn, or never published.
    pub fn give_back(&'static self, handle: Handle) {
        let life = (handle.0 >> LIFE_SHIFT).wrapping_sub(FIRST_LIFE);
        self.free.lock().unwrap_or_else(PoisonError::into_inner).places.push((handle.index(), life));
    }

    /// All objects that exist now.
    pub fn all(&'static self) -> impl Iterator<Item = (Handle, &'static Place<T>)> {
        let places = (0..CHUNKS).map_while(|at| self.chunk(at)).flat_map(|chunk| chunk.iter());
        places.map(|place| (place.handle(), place)).filter(|(handle, _)| *handle != Handle::NULL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_good_for_one_life_of_its_place() {
        static TABLE: Table<u8> = Table::new(Kind::Node);
        let (place, first) = TABLE.take().expect("there is room");
        assert!(TABLE.find(first).is_none(), "it is not published");
        place.publish(first);
        assert!(TABLE.find(first).is_some());
        assert!(place.withdraw(first) && !place.withdraw(first));
        TABLE.give_back(first);
        let (place, second) = TABLE.take().expect("there is room");
        place.publish(second);
        assert_eq!(first.index(), second.index());
        assert!(TABLE.find(first).is_none() && TABLE.find(second).is_some());
        for strange in [0, 1, u64::MAX, second.to_bits() ^ 1 << INDEX_BITS, second.to_bits() + 1] {
            assert!(TABLE.find(Handle::from_bits(strange)).is_none(), "{strange:x}");
        }
    }

    #[test]
    fn no_handle_is_null() {
        static TABLE: Table<u8> = Table::new(Kind::Node);
        let (_, handle) = TABLE.take().expect("there is room");
        assert_ne!(handle, Handle::NULL);
        assert!(TABLE.find(Handle::NULL).is_none());
    }
}
