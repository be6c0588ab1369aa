//! Memory that the program lends for as long as an operation lasts: the buffers that C interfaces send from and receive into.
//!
//! Lent memory is an address and a length. The caller that lends it promises what the compiler cannot check. No reference to the memory
//! outlives a call.

use std::ptr::NonNull;

/// Bytes that the program lends for reading: to send them.
#[derive(PartialEq, Eq, Debug)]
pub struct Lent {
    start: NonNull<u8>,
    len: usize,
}

/// Bytes that the program lends for writing: to receive into them.
#[derive(PartialEq, Eq, Debug)]
pub struct LentMut {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: this is an address and a length. `Lent::new` demands that the bytes can be read from any thread.
unsafe impl Send for Lent {}
// SAFETY: a shared reference only reads the bytes, and `Lent::new` demands that nobody writes them meanwhile.
unsafe impl Sync for Lent {}
// SAFETY: this is an address and a length. `LentMut::new` demands that the bytes can be written from any thread.
unsafe impl Send for LentMut {}
// SAFETY: a shared reference neither reads nor writes the bytes.
unsafe impl Sync for LentMut {}

impl Lent {
    /// Lends `len` bytes from `start`.
    ///
    /// # Safety
    /// Until the value is dropped, which for an operation is when its completion was queued: the bytes lie in one allocation, they
    /// can be read, from any thread, and nobody writes them. If there are none, `start` may be anything.
    #[must_use]
    pub unsafe fn new(start: *const u8, len: usize) -> Lent {
        let (start, len) = bounded(start.cast_mut(), len);
        Lent { start, len }
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the caller of `new` promised that the bytes lie in one allocation, can be read, and are not written until this
        // value is dropped. `bounded` made the address one that is not null, and the length at most `isize::MAX`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl LentMut {
    /// Lends `len` bytes from `start`. They need not hold anything.
    ///
    /// # Safety
    /// Until the value is dropped, which for an operation is when its completion was queued: the bytes lie in one allocation, they
    /// can be written, from any thread, and nobody else reads or writes them. If there are none, `start` may be anything.
    #[must_use]
    pub unsafe fn new(start: *mut u8, len: usize) -> LentMut {
        let (start, len) = bounded(start, len);
        LentMut { start, len }
    }

    /// How many bytes there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first `at` bytes, or all if there are fewer, and the others.
    #[must_use]
    pub fn split_at(self, at: usize) -> (LentMut, LentMut) {
        let at = at.min(self.len);
        // SAFETY: `at` is at most `self.len`, so this is within the lent bytes or just behind them.
        let rest = unsafe { self.start.add(at) };
        (LentMut { start: self.start, len: at }, LentMut { start: rest, len: self.len - at })
    }

    /// The address of an offset, if there is room for `len` bytes.
    pub(crate) fn room(&mut self, at: usize, len: usize) -> Option<NonNull<u8>> {
        let end = at.checked_add(len)?;
        // SAFETY: `at` is at most `self.len`, within the lent bytes or just behind them.
        (end <= self.len).then(|| unsafe { self.start.add(at) })
    }

    /// Copies bytes to an offset, as many as there is room for. Returns how many.
    #[inline(always)]
    pub fn write(&mut self, at: usize, bytes: &[u8]) -> usize {
        let len = bytes.len().min(self.len.saturating_sub(at));
        if len > 0 {
            // SAFETY: `at + len` is at most `self.len`. The caller of `new` promised that these bytes can be written until this
            // value is dropped, and that nobody else reads them: so `bytes`, which can be read, do not overlap them.
            unsafe { crate::copy::copy(bytes.as_ptr(), self.start.as_ptr().add(at), len) }
        }
        len
    }
}

/// An allocation has at most `isize::MAX` bytes. No bytes, or a null pointer, become an empty range.
fn bounded(start: *mut u8, len: usize) -> (NonNull<u8>, usize) {
    match NonNull::new(start) {
        Some(start) if len > 0 => (start, len.min(isize::MAX as usize)),
        _ => (NonNull::dangling(), 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lent_memory_is_split_into_two_parts_that_are_written_apart() {
        let mut memory = [0u8; 5];
        // SAFETY: `memory` outlives it and is not looked at before all of it is dropped.
        let lent = unsafe { LentMut::new(memory.as_mut_ptr(), 5) };
        let (mut first, rest) = lent.split_at(2);
        let (mut rest, none) = rest.split_at(9);
        assert_eq!((first.write(0, b"abc"), rest.write(1, b"xyz")), (2, 2));
        assert_eq!((first.len(), rest.len(), none.is_empty()), (2, 3, true));
        assert_eq!(&memory, b"ab\0xy");
    }

    #[test]
    fn bytes_are_written_where_there_is_room_and_nowhere_else() {
        let mut memory = [0u8; 8];
        // SAFETY: `memory` outlives it and is not looked at before it is dropped; only the middle is lent.
        let mut lent = unsafe { LentMut::new(memory[2..6].as_mut_ptr(), 4) };
        assert_eq!(
            (lent.write(1, &[1, 2]), lent.write(3, &[3, 4]), lent.write(4, &[5]), lent.write(9, &[6])),
            (2, 1, 0, 0)
        );
        assert_eq!(memory, [0, 0, 0, 1, 2, 3, 0, 0]);
    }

    #[test]
    fn nothing_may_be_lent_from_nowhere() {
        // SAFETY: there are no bytes.
        let (lent, mut room) = unsafe { (Lent::new(std::ptr::null(), 0), LentMut::new(std::ptr::null_mut(), 0)) };
        assert_eq!((lent.bytes(), room.write(0, &[1]), room.len()), (&[][..], 0, 0));
    }

    #[test]
    fn bytes_lent_to_be_read_are_read() {
        let memory = [7u8; 5];
        // SAFETY: `memory` outlives it and is not written.
        assert_eq!(unsafe { Lent::new(memory.as_ptr(), 5) }.bytes(), memory);
    }
}
