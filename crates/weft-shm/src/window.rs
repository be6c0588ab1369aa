//! Memory that peers may be given access to: a region's bytes, weft's own or lent by the program.
//!
//! Others read and write it at any time: peers, and other threads of the program by raw pointers and atomics. So it is never behind a
//! reference. Bytes are copied in and out by volatile accesses in ascending order, as `foreign` explains. A word that programs may poll
//! is stored by one atomic store, and atomic operations are those of the processor.

use crate::direct::{Offer, Offered, Ticket};
use crate::whole;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{fence, AtomicU16, AtomicU32, AtomicU64, AtomicU8, Ordering};
use std::sync::Arc;

/// Bytes of a region. Clones share the same bytes. weft's own memory lives as long as one of the clones; it is not mapped in a forked
/// child, where every access is refused.
///
/// ```
/// use weft_shm::Window;
///
/// let (here, there) = { let window = Window::create(100)?; (window.clone(), window) };
/// assert!(here.write(10, b"ten") && !here.write(98, b"beyond"));
/// let mut read = [0; 3];
/// assert!(there.read(10, &mut read));
/// assert_eq!(&read, b"ten");
/// assert_eq!(there.update(8, 8, |_| Some(7)).map(|old| old >> 16 & 0xff), Some(u64::from(b't')));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Window {
    base: NonNull<u8>,
    len: usize,
    /// Keeps the memory mapped, if it is weft's.
    memory: Option<Arc<Offered>>,
    /// Offsets are addresses, and the kernel makes each access. See [`whole`].
    pub(crate) is_whole: bool,
}

// SAFETY: a window is an address and a length. Memory of weft's own stays mapped while a window lives, and `Window::lend` demands that
// lent memory can be used from any thread. All accesses are volatile or atomic.
unsafe impl Send for Window {}
// SAFETY: as above; all accesses through a shared reference are volatile or atomic, and permit others at the same time.
unsafe impl Sync for Window {}

impl Window {
    /// Makes `len` bytes of zeroed memory. The pages are allocated when they are first touched.
    ///
    /// # Errors
    /// What the kernel says. `FBIG` if the process may not make files of this size (`ulimit -f`).
    pub fn create(len: usize) -> io::Result<Window> {
        let page = rustix::param::page_size();
        let bytes = len.max(1).checked_next_multiple_of(page).ok_or(io::ErrorKind::OutOfMemory)?;
        let memory = Offered::create("weft-region", bytes)?;
        Ok(Window { base: memory.base(), len, memory: Some(Arc::new(memory)), is_whole: false })
    }

    /// Lends `len` bytes from `start`.
    ///
    /// # Safety
    /// Until the last clone of the value is dropped, which for a region is when it was revoked: the bytes lie in one allocation, and
    /// can be read and written, from any thread. The program accesses them by raw pointers and atomics alone: it has no reference to
    /// them. If there are none, `start` may be anything.
    #[must_use]
    pub unsafe fn lend(start: *mut u8, len: usize) -> Window {
        let (base, len) = match NonNull::new(start) {
            Some(start) => (start, len.min(isize::MAX as usize)),
            None => (NonNull::dangling(), 0),
        };
        Window { base, len, memory: None, is_whole: false }
    }

    /// Lends all memory of this process, now and later: an offset is an address. For protocols whose peers name bytes by their address
    /// (libfabric's `FI_MR_BASIC`, Split-C's global pointers). No address kills the process. What is not mapped, or cannot be written,
    /// is not within the window.
    ///
    /// The kernel makes the copies, so each access costs one to three system calls. The last word of a write is stored last, in one piece
    /// as far as the kernel does that. If the program unmaps or protects memory during a write there, the write may be refused with a
    /// part of it stored.
    ///
    /// # Safety
    /// Until the last clone of the value is dropped, all accesses by it are to bytes that [`Window::lend`] could lend: those that the
    /// program accesses by raw pointers and atomics alone. Nothing checks that: a peer that may write anywhere can do anything. The
    /// program does not unmap or protect memory while an atomic operation changes a word there.
    ///
    /// # Errors
    /// If the kernel does not allow it: it is older than Linux 5.14, or a filter forbids process_vm_readv(2) or process_vm_writev(2).
    pub unsafe fn whole_address_space() -> io::Result<Window> {
        whole::check()?;
        Ok(Window { base: NonNull::dangling(), len: usize::MAX, memory: None, is_whole: true })
    }

    /// Lends bytes for good: they stay allocated as long as the process lives. As with all lent memory, no other process can map them.
    #[must_use]
    pub fn leaked(bytes: Box<[u8]>) -> Window {
        let bytes = Box::leak(bytes);
        Window { len: bytes.len(), base: NonNull::from(bytes).cast(), memory: None, is_whole: false }
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

    /// The address of the first byte. Peers may write any byte at any time: use the pointer for volatile and atomic accesses, and make no
    /// reference of it. Valid while a clone of the window lives, but not in a forked child. Null for the whole address space.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        match self.is_whole {
            true => std::ptr::null_mut(),
            false => self.base.as_ptr(),
        }
    }

    /// Whether the memory is weft's, and not lent.
    #[must_use]
    pub fn is_own(&self) -> bool {
        self.memory.is_some()
    }

    /// Offers `len` bytes from `at` to a process of the trusted class, which then can map them. `None` if they are not all within the
    /// window, the memory is lent, there are too many offers, or the kernel lacks something for it. Then the peer must send messages.
    #[doc(hidden)] // users of weft need not know the types
    #[must_use]
    pub fn offer(&self, at: u64, len: u64) -> Option<(Ticket, Offer)> {
        self.at(at, usize::try_from(len).ok()?)?;
        self.memory.as_ref()?.offer(at, len)
    }

    /// Withdraws offers. When this returns, nobody reads or writes the memory by them, nor by those that were [let go](Window::let_go).
    /// Blocks for some microseconds, and up to 200 ms if a peer was stopped or killed in the middle of an access: then all offers of this
    /// memory end, and this process has a copy of it from then on, at the same address. Bytes that another thread of this process writes
    /// there during the copying may be lost.
    #[doc(hidden)]
    pub fn withdraw(&self, tickets: &[Ticket]) {
        if let Some(memory) = &self.memory {
            memory.withdraw(tickets);
        }
    }

    /// Ends an offer of a peer that is gone, without waiting.
    #[doc(hidden)]
    pub fn let_go(&self, ticket: Ticket) {
        if let Some(memory) = &self.memory {
            memory.let_go(ticket);
        }
    }

    /// Whether an offer is still open.
    #[doc(hidden)]
    #[must_use]
    pub fn is_offered(&self, ticket: Ticket) -> bool {
        self.memory.as_ref().is_some_and(|memory| memory.is_offered(ticket))
    }

    /// How many offers of this memory are open.
    #[must_use]
    pub fn offers(&self) -> usize {
        self.memory.as_ref().map_or(0, |memory| memory.offers())
    }

    /// Whether these bytes are within it and can be changed now. Bytes within a window always can, except in the [whole address
    /// space](Window::whole_address_space), where the kernel is asked.
    #[must_use]
    pub fn can_be_changed(&self, at: u64, len: u64) -> bool {
        let (Ok(at), Ok(len)) = (usize::try_from(at), usize::try_from(len)) else { return false };
        match self.is_whole {
            true => whole::is_writable(at, len),
            false => at.checked_add(len).is_some_and(|end| end <= self.len),
        }
    }

    /// The address of bytes that are all within it.
    #[inline]
    pub(crate) fn at(&self, at: u64, len: usize) -> Option<*mut u8> {
        if self.memory.as_ref().is_some_and(|memory| memory.mapping.is_left_behind()) {
            return None;
        }
        let at = usize::try_from(at).ok()?;
        let end = at.checked_add(len)?;
        if self.is_whole {
            return Some(std::ptr::with_exposed_provenance_mut(at));
        }
        // SAFETY: `at` is at most `len`, within the memory or just behind it.
        (end <= self.len).then(|| unsafe { self.base.as_ptr().add(at) })
    }

    /// Copies bytes out of it. False if they are not all within it; the contents of `to` are then unspecified.
    pub fn read(&self, at: u64, to: &mut [u8]) -> bool {
        let Some(from) = self.at(at, to.len()) else { return false };
        if self.is_whole {
            return whole::read(from.addr(), to);
        }
        // SAFETY: the bytes are within the window, whose memory can be read; `to` is this thread's alone.
        unsafe { read(from, to.as_mut_ptr(), to.len()) };
        true
    }

    /// Copies bytes into it in ascending order. The last aligned word is stored last, with release: a reader that sees this word sees all
    /// bytes. False, with nothing copied, if they are not all within it.
    #[inline]
    pub fn write(&self, at: u64, bytes: &[u8]) -> bool {
        let Some(to) = self.at(at, bytes.len()) else { return false };
        if self.is_whole {
            return whole::write(to.addr(), bytes);
        }
        // SAFETY: the bytes are within the window, whose memory can be written; a slice that can be read is not of this memory, to which
        // nobody has references.
        unsafe { write(bytes.as_ptr(), to, bytes.len()) };
        true
    }

    /// Whether the word of 1, 2, 4 or 8 bytes at `at` is within it and aligned.
    #[must_use]
    pub fn is_word(&self, at: u64, bytes: usize) -> bool {
        self.at(at, bytes).is_some_and(|word| matches!(bytes, 1 | 2 | 4 | 8) && word.addr() % bytes == 0)
    }

    /// Changes the word of 1, 2, 4 or 8 bytes at `at` atomically, and returns the old value. `change` returns `None` to leave the word as
    /// it is, and may be called more than once. Returns `None` if there is [no such word](Window::is_word).
    pub fn update(&self, at: u64, bytes: usize, mut change: impl FnMut(u64) -> Option<u64>) -> Option<u64> {
        if !self.is_word(at, bytes) {
            return None;
        }
        let word = self.at(at, bytes)?;
        if self.is_whole && !whole::is_writable(word.addr(), bytes) {
            return None;
        }
        // SAFETY: the word is aligned and within the window, whose memory can be read and written. In the whole address space that was so a
        // moment ago, and the caller of `whole_address_space` vouches that it still is.
        Some(unsafe { update(word, bytes, &mut change) })
    }
}

/// # Safety
/// `word` must be readable and writable for 1, 2, 4 or 8 bytes, whichever is said, and aligned to them.
#[inline]
pub(crate) unsafe fn update(word: *mut u8, bytes: usize, change: &mut dyn FnMut(u64) -> Option<u64>) -> u64 {
    /// Changes a word of one type.
    macro_rules! updated {
        ($atomic:ty, $integer:ty) => {{
            // SAFETY: the caller vouches for the word.
            let word = unsafe { <$atomic>::from_ptr(word.cast()) };
            let change = |old| change(u64::from(old)).map(|new| new as $integer);
            match word.fetch_update(Ordering::AcqRel, Ordering::Acquire, change) {
                Ok(old) | Err(old) => u64::from(old),
            }
        }};
    }
    match bytes {
        1 => updated!(AtomicU8, u8),
        2 => updated!(AtomicU16, u16),
        4 => updated!(AtomicU32, u32),
        _ => updated!(AtomicU64, u64),
    }
}

/// # Safety
/// `from` must be readable for `len` bytes, which may change at any time. `to` must be writable for them, and this thread's alone.
#[inline]
pub(crate) unsafe fn read(from: *const u8, to: *mut u8, len: usize) {
    let head = from.align_offset(16).min(len);
    // SAFETY: each byte is within `len`; behind `head` the source is aligned, if anything is left.
    unsafe {
        for at in 0..head {
            to.add(at).write(from.add(at).read_volatile());
        }
        if head < len {
            crate::foreign::copy(from.add(head), to.add(head), len - head);
        }
    }
    // Later loads are not older than the bytes.
    fence(Ordering::Acquire);
}

/// # Safety
/// `from` must be readable for `len` bytes that nobody changes. `to` must be writable for them, and may be read and written by others at
/// any time. The two must not overlap.
#[inline]
pub(crate) unsafe fn write(from: *const u8, to: *mut u8, len: usize) {
    // A few whole words are the most common write.
    if (to.addr() | len) % 8 == 0 && (1..=WORDS_MOST).contains(&len) {
        // SAFETY: as the caller says; the words are aligned.
        return unsafe { write_words(from, to, len) };
    }
    // SAFETY: as the caller says.
    unsafe { write_any(from, to, len) };
}

/// The most bytes that are written word by word.
const WORDS_MOST: usize = 64;

/// # Safety
/// As [`write`]; `to` is aligned to 8, and `len` a multiple of 8 and not 0.
#[inline(always)]
unsafe fn write_words(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: all words are within `len`.
    unsafe {
        let word = |at: usize| (AtomicU64::from_ptr(to.add(at).cast()), from.add(at).cast::<u64>().read_unaligned());
        let mut at = 0;
        while at < len - 8 {
            let (to, word) = word(at);
            to.store(word, IN_TURN);
            at += 8;
        }
        let (to, word) = word(at);
        to.store(word, Ordering::Release);
    }
}

/// # Safety
/// As [`write`].
#[inline(never)]
unsafe fn write_any(from: *const u8, to: *mut u8, len: usize) {
    if len == 0 {
        return;
    }
    let last = last_piece(to, len);
    let body = len - last;
    let head = to.align_offset(16).min(body);
    // SAFETY: all of it is within `len`, for which the caller vouches. Behind `head` `to` is aligned to 16, so blocks and words are
    // aligned. The last piece is aligned to its size, by its choice.
    unsafe {
        for at in 0..head {
            store_byte(to.add(at), from.add(at).read());
        }
        let mut at = head;
        #[cfg(target_arch = "x86_64")]
        while at + 16 <= body {
            use std::arch::x86_64::__m128i;
            to.add(at).cast::<__m128i>().write_volatile(from.add(at).cast::<__m128i>().read_unaligned());
            at += 16;
        }
        while at + 8 <= body {
            let word = AtomicU64::from_ptr(to.add(at).cast());
            word.store(from.add(at).cast::<u64>().read_unaligned(), IN_TURN);
            at += 8;
        }
        while at < body {
            store_byte(to.add(at), from.add(at).read());
            at += 1;
        }
        store_last(from.add(body), to.add(body), last);
    }
}

/// How many of `len` bytes from `to` are stored last, in one piece.
#[inline]
pub(crate) fn last_piece(to: *mut u8, len: usize) -> usize {
    let end = to.addr().wrapping_add(len);
    match len {
        8.. if end % 8 == 0 => 8,
        4.. if end % 4 == 0 => 4,
        1.. => 1,
        0 => 0,
    }
}

/// Stores the [last piece](last_piece) of some bytes with release.
///
/// # Safety
/// As for `write`; `to` is aligned to `len`.
pub(crate) unsafe fn store_last(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: as the caller says.
    unsafe {
        match len {
            8 => AtomicU64::from_ptr(to.cast()).store(from.cast::<u64>().read_unaligned(), Ordering::Release),
            4 => AtomicU32::from_ptr(to.cast()).store(from.cast::<u32>().read_unaligned(), Ordering::Release),
            1 => AtomicU8::from_ptr(to).store(from.read(), Ordering::Release),
            _ => {}
        }
    }
}

/// The ordering of stores that must become visible in their order. x86-64 keeps that order by itself.
const IN_TURN: Ordering = if cfg!(target_arch = "x86_64") { Ordering::Relaxed } else { Ordering::Release };

/// # Safety
/// `to` must be writable; others may read and write it at any time.
unsafe fn store_byte(to: *mut u8, byte: u8) {
    // SAFETY: as the caller says. The compiler keeps the order of volatile stores; only x86-64 keeps it, too, without a release store.
    unsafe {
        match cfg!(target_arch = "x86_64") {
            true => to.write_volatile(byte),
            false => AtomicU8::from_ptr(to).store(byte, IN_TURN),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn leaked_bytes_belong_to_the_window_and_no_other_process_can_map_them() {
        let window = Window::leaked(vec![7; 10].into());
        let mut bytes = [0; 10];
        assert!(window.write(2, &[1, 2]) && window.read(0, &mut bytes) && !window.read(1, &mut bytes));
        assert_eq!(bytes, [7, 7, 1, 2, 7, 7, 7, 7, 7, 7]);
        assert!(!window.is_own() && window.len() == 10);
        assert!(Window::leaked(Box::default()).is_empty());
    }

    #[test]
    fn bytes_of_every_length_and_place_are_copied_and_no_others() {
        let source: Vec<u8> = (0..300u32).map(|n| (n % 251) as u8 + 1).collect();
        for at in 0..40 {
            for len in (0..120).chain([200, 255]) {
                let window = Window::create(300).expect("memfd");
                assert!(window.write(at, &source[..len]));
                let mut all = vec![0; 300];
                assert!(window.read(0, &mut all));
                let before = at as usize;
                assert_eq!(all[before..before + len], source[..len], "{len} at {at}");
                assert!(all[..before].iter().chain(&all[before + len..]).all(|byte| *byte == 0), "{len} at {at}");
                let mut part = vec![0; len];
                assert!(window.read(at, &mut part));
                assert_eq!(part, source[..len]);
            }
        }
    }

    #[test]
    fn few_bytes_are_read_wherever_they_lie() {
        let window = Window::create(64).expect("memfd");
        let all: [u8; 64] = std::array::from_fn(|n| n as u8);
        assert!(window.write(0, &all));
        for at in 0..48 {
            for len in 0..16 {
                let mut read = vec![0; len];
                assert!(window.read(at as u64, &mut read));
                assert_eq!(read, all[at..at + len]);
            }
        }
    }

    #[test]
    fn nothing_outside_is_read_or_written() {
        let window = Window::create(100).expect("memfd");
        let mut two = [9; 2];
        for at in [99, 100, 101, u64::MAX, u64::MAX - 1] {
            assert!(!window.write(at, &two) && !window.read(at, &mut two), "{at}");
            assert_eq!(window.update(at, 8, Some), None);
        }
        assert!(window.write(98, &two) && window.write(100, &[]) && !window.write(101, &[]));
        assert_eq!(two, [9; 2]);
        // SAFETY: there are no bytes.
        let nothing = unsafe { Window::lend(std::ptr::null_mut(), 10) };
        assert!(nothing.is_empty() && !nothing.write(0, &[1]));
    }

    #[test]
    fn words_are_changed_if_they_are_aligned() {
        let window = Window::create(64).expect("memfd");
        assert_eq!(window.update(8, 8, |old| Some(old + 5)), Some(0));
        assert_eq!(window.update(8, 8, |_| None), Some(5));
        assert_eq!(window.update(12, 4, |old| Some(old + 7)), Some(0));
        assert_eq!(window.update(8, 8, Some), Some(7 << 32 | 5));
        assert_eq!(window.update(17, 1, |old| Some(old + 0x1ff)), Some(0));
        assert_eq!(window.update(18, 2, |old| Some(old + 0x1_0203)), Some(0));
        assert_eq!(window.update(16, 8, Some), Some(0x0203_ff00), "no other byte is changed");
        for (at, bytes) in [(4, 8), (1, 4), (1, 2), (0, 3), (0, 16), (60, 8), (64, 1)] {
            assert!(!window.is_word(at, bytes) && window.update(at, bytes, Some).is_none(), "{bytes} at {at}");
        }
    }

    #[test]
    fn lent_memory_is_written_where_it_is() {
        let mut memory = [0u64; 4];
        {
            // SAFETY: `memory` outlives it, and is not looked at meanwhile.
            let window = unsafe { Window::lend(memory.as_mut_ptr().cast(), 32) };
            assert!(window.write(8, &7u64.to_ne_bytes()) && !window.is_own() && window.offer(0, 8).is_none());
        }
        assert_eq!(memory, [0, 7, 0, 0]);
    }

    /// A reader that sees the last word of a write sees all of it. The bytes become visible in ascending order.
    #[test]
    fn a_reader_that_sees_the_last_word_sees_all_bytes() {
        use std::sync::atomic::AtomicBool;
        const BYTES: usize = 1000;
        const ROUNDS: u64 = 20_000;
        let window = Window::create(1024).expect("memfd");
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=ROUNDS {
                    assert!(window.write(0, &round.to_le_bytes().repeat(BYTES / 8)));
                }
                is_done.store(true, Ordering::Release);
            });
            let word = |at: usize| {
                // SAFETY: the word is within the window and aligned, and accessed as this atomic.
                unsafe { AtomicU64::from_ptr(window.as_ptr().add(at).cast()) }.load(Ordering::Acquire)
            };
            while !is_done.load(Ordering::Acquire) {
                let last = word(BYTES - 8);
                let middle = word(504);
                assert!(
                    middle >= last && word(0) >= middle,
                    "no word is older than one behind it that was seen before"
                );
            }
        });
    }
}
