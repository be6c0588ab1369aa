//! Handles: what C has in place of pointers to objects of this library.
//!
//! A handle is a number that looks like a pointer: the kind of the object, how many objects had its place before, and the place. It is never
//! dereferenced. A handle of an object that is gone, of another kind, or made up, is not the one that the place has now. The memory
//! of places is never given back, so a look at one is safe at any time and takes no lock.

use std::ffi::c_void;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

const _: () = assert!(usize::BITS == 64, "a handle needs the 64 bits of a pointer");

const KIND_SHIFT: u32 = 60;
const LIFE_SHIFT: u32 = 20;
const INDEX_MASK: u64 = (1 << LIFE_SHIFT) - 1;
const LIFE_MASK: u64 = (1 << (KIND_SHIFT - LIFE_SHIFT)) - 1;

/// The kinds of objects. No pointer of a program begins with these bits, so a handle that is followed ends the program at once.
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
        Handle((kind as u64) << KIND_SHIFT | (life & LIFE_MASK) << LIFE_SHIFT | (index as u64 & INDEX_MASK))
    }

    #[inline(always)]
    pub fn index(self) -> usize {
        (self.0 & INDEX_MASK) as usize
    }

    /// As C has it.
    #[inline(always)]
    pub fn to_c<T>(self) -> *mut T {
        std::ptr::without_provenance_mut(self.0 as usize)
    }

    /// From C, unchecked.
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
    /// The handle of the object that is here; 0 if there is none.
    handle: AtomicU64,
    object: T,
}

impl<T> Place<T> {
    /// The handle of the object that is here now. Another thread may free it at any time.
    #[inline(always)]
    pub fn handle(&self) -> Handle {
        // Acquire: pairs with the release in `publish`.
        Handle(self.handle.load(Ordering::Acquire))
    }

    /// Whether the object of this handle is here.
    #[inline(always)]
    pub fn is(&self, handle: Handle) -> bool {
        self.handle() == handle
    }

    /// From now on the handle is good.
    pub fn publish(&self, handle: Handle) {
        self.handle.store(handle.0, Ordering::Release);
    }

    /// From now on no handle is good here. False if this one was not: then another thread was faster.
    pub fn withdraw(&self, handle: Handle) -> bool {
        self.handle.compare_exchange(handle.0, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
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

/// The places of all objects of one kind. They grow by chunks, which stay.
pub struct Table<T: 'static> {
    kind: Kind,
    chunks: [OnceLock<Box<[Place<T>]>>; CHUNKS],
    free: Mutex<Free>,
}

struct Free {
    /// Places whose object is gone, and how many lives each has had.
    places: Vec<(usize, u64)>,
    /// Places that were never used begin here.
    fresh: usize,
}

impl<T: Default> Table<T> {
    pub const fn new(kind: Kind) -> Table<T> {
        let free = Mutex::new(Free { places: Vec::new(), fresh: 0 });
        Table { kind, chunks: [const { OnceLock::new() }; CHUNKS], free }
    }

    /// The place that a handle says, whatever is there now.
    #[inline(always)]
    pub fn place(&'static self, handle: Handle) -> Option<&'static Place<T>> {
        let index = handle.index();
        self.chunks.get(index / CHUNK)?.get()?.get(index % CHUNK)
    }

    /// The place of a handle's object. The object may be freed meanwhile by another thread.
    #[inline(always)]
    pub fn find(&'static self, handle: Handle) -> Option<&'static Place<T>> {
        self.place(handle).filter(|place| handle != Handle::NULL && place.is(handle))
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
        let chunk = self.chunks[index / CHUNK]
            .get_or_init(|| (0..CHUNK).map(|_| Place { handle: AtomicU64::new(0), object: T::default() }).collect());
        Some((&chunk[index % CHUNK], Handle::new(self.kind, life + 1, index)))
    }

    /// Gives a place back whose object is gone. It must have been withdrawn, or never published.
    pub fn give_back(&'static self, handle: Handle) {
        let life = handle.0 >> LIFE_SHIFT & LIFE_MASK;
        self.free.lock().unwrap_or_else(PoisonError::into_inner).places.push((handle.index(), life));
    }

    /// All objects of now.
    pub fn all(&'static self) -> impl Iterator<Item = (Handle, &'static Place<T>)> {
        let places = self.chunks.iter().map_while(OnceLock::get).flat_map(|chunk| chunk.iter());
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
        for strange in [0, 1, u64::MAX, second.to_bits() ^ 1 << KIND_SHIFT, second.to_bits() + 1] {
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
