//! Loads and stores in a ring's memory, and where its words lie.
//!
//! A ring's memory is its control lines, the hot lane, and the arena:
//!
//! ```text
//! line 0    written by the consumer: head of the hot lane, head of the arena
//! line 1    written by the consumer: claim of the hot lane, claim of the arena (read only after its death)
//! line 2    written by the consumer: attention (1: ring the bell after publishing)
//! line 3    written by the producer, now and then: its place, and whether to evict lines that were read (hints)
//! line 4..  the hot lane, then from the next page boundary the arena
//! ```
//!
//! [`RingMem`] is the seam between the ring's algorithm, which is safe code, and the memory: [`MapMem`] is mapped memory, and
//! the loom tests have an implementation of their own.

use crate::barrier;
use crate::copy::{fetch_bytes, Cache};
use crate::foreign;
use crate::ring::Lanes;
use crate::sys::Shared;
use std::sync::atomic::{AtomicU64, Ordering};
use weft_wire::record::{payload_at, HEADER, LARGE_LEAST};
use weft_wire::{LINE, MAX_ARGS};

/// Lines before the hot lane.
pub const CONTROL_LINES: u32 = 4;

/// Words that a record's arguments and copied payload take at most: 16 arguments and 64 bytes.
pub const COPY_WORDS: usize = 8 + 8;

/// A ring's memory, addressed by line. Implementations check every index; no call can reach outside.
///
/// The ring needs this order: `publish` is a release and `header` an acquire, of the same word; `set_head` is a release and
/// `head` an acquire. Everything else is unordered.
pub trait RingMem {
    /// Loads a header's first word. Acquire: pairs with `publish`, so what was written before is visible.
    fn header(&self, line: u32) -> u64;
    /// Stores a header's first word. Release: pairs with `header`.
    fn publish(&self, line: u32, word: u64);
    /// Zeroes a header's first word, ordered before the next `publish` by that release.
    fn clear(&self, line: u32);
    /// Loads a header's second word.
    fn second(&self, line: u32) -> u64;
    /// Both words of a header, unless the first is 0. Acquire, as `header`.
    #[inline(always)]
    fn look(&self, line: u32) -> Option<[u64; 2]> {
        let first = self.header(line);
        (first != 0).then(|| [first, self.second(line)])
    }
    /// Stores a header's second word; only the record's consumer does this. Ordered before the claims that follow.
    fn mark(&self, line: u32, second: u64);
    /// Writes everything of a record but the header's first word.
    fn write(&self, line: u32, second: u64, args: &[u32], payload: &[u8]);
    /// As `write`, with stores that fill one line after the other: for lines that are, or were, in another core's cache.
    fn write_by_lines(&self, line: u32, second: u64, args: &[u32], payload: &[u8]) {
        self.write(line, second, args, payload);
    }
    /// As `write`, with stores that go past the caches. Ordered before a `publish` that follows.
    fn write_past_caches(&self, line: u32, second: u64, args: &[u32], payload: &[u8]) {
        self.write(line, second, args, payload);
    }
    /// As `head`, with about how many nanoseconds the load took (a third of the processor's time stamps; 0 where there is
    /// no such counter). If the cursor has changed, that is how long a line takes from the consumer's cache.
    fn timed_head(&self, lane: usize) -> (u64, u64) {
        (self.head(lane), 0)
    }
    /// Copies what follows the header at `line` into `out`, `bytes` rounded up to words; at most `out` holds.
    fn copy_out(&self, line: u32, bytes: usize, out: &mut [u64; COPY_WORDS]);
    /// As `copy_out`, for a record that does not go beyond its line. May copy more of the line.
    fn copy_line(&self, line: u32, bytes: usize, out: &mut [u64; COPY_WORDS]) {
        self.copy_out(line, bytes, out);
    }
    /// As `copy_out`, for all that follows the header of a record of two lines.
    fn copy_two_lines(&self, line: u32, out: &mut [u64; COPY_WORDS]) {
        self.copy_out(line, 2 * LINE - HEADER, out);
    }
    /// The payload of `len` bytes that begins `offset` bytes behind `line`, where it lies. For payloads of a trusted peer; all
    /// others are copied with [`RingMem::copy_payload`].
    ///
    /// # Safety
    /// Nobody writes to these bytes while the slice lives: neither this side nor the peer, through whatever mapping.
    unsafe fn in_place(&self, line: u32, offset: usize, len: usize) -> &[u8];
    /// Replaces the contents of `out` by that payload. Each byte is loaded once, whatever the peer does meanwhile.
    fn copy_payload(&self, line: u32, offset: usize, len: usize, out: &mut Vec<u8>);
    /// Prefetches a line that will be read soon. The line need not exist.
    fn fetch_ahead(&self, line: u32) {
        let _ = line;
    }
    /// Whether [`RingMem::evict`] works and a far producer gains by it.
    fn can_evict(&self) -> bool {
        false
    }
    /// Evicts the lines from `from` to before `to` from all caches, so that the next writer gets them from memory. A hint; orders nothing.
    fn evict(&self, from: u32, to: u32) {
        let _ = (from, to);
    }
    /// Stores the consumer's cursor in a lane. Release: the consumer's reads before it are done.
    fn set_head(&self, lane: usize, pos: u64);
    /// Loads the consumer's cursor in a lane. Acquire: pairs with `set_head`.
    fn head(&self, lane: usize) -> u64;
    /// Stores how far the consumer has taken records in hand, before it looks at them.
    fn set_claim(&self, lane: usize, pos: u64);
    /// Loads the claim. Says something certain only when the consumer is dead.
    fn claim(&self, lane: usize) -> u64;
    /// Stores the producer's place, which is a hint: unordered.
    fn set_progress(&self, word: u64) {
        let _ = word;
    }
    /// Loads the producer's place. The other side can have stored anything.
    fn progress(&self) -> u64 {
        0
    }
    /// A clock of about nanoseconds (a third of the processor's time stamps). `None` without a counter that can be read without
    /// a system call.
    fn nanoseconds(&self) -> Option<u64> {
        None
    }
    /// Asks the producer to ring the bell after publishing, or to stop doing so.
    fn set_attention(&self, wanted: bool);
    /// Whether the consumer wants the bell.
    fn attention(&self) -> bool;
    /// Between a `publish` and the `attention` after it, as [`crate::bell::BellMem::light_barrier`].
    fn light_barrier(&self);
}

/// Ring memory in a mapping that two processes share.
#[derive(Debug)]
pub struct MapMem {
    shared: Shared,
    lines: u32,
}

impl MapMem {
    /// Uses a mapping of exactly the bytes that `lanes` needs.
    ///
    /// # Panics
    /// If the mapping has another size: the caller made it, or checked it, from the same `lanes`.
    pub fn new(shared: Shared, lanes: Lanes) -> MapMem {
        assert_eq!(shared.bytes(), lanes.bytes(), "mapping and lanes disagree");
        assert!(shared.bytes() >= CONTROL_LINES as usize * LINE, "no room for the control lines");
        MapMem { lines: (shared.bytes() / LINE) as u32, shared }
    }

    /// Gives the pages from `line` to the end back to the kernel.
    pub(crate) fn give_back_from(&self, line: u32) -> std::io::Result<()> {
        let offset = line as usize * LINE;
        self.shared.give_back(offset, self.shared.bytes().saturating_sub(offset))
    }

    /// The address `offset` bytes behind `line`, of a range of `len` bytes that is checked to be inside the mapping.
    #[inline(always)]
    fn at(&self, line: u32, offset: usize, len: usize) -> *mut u8 {
        let first = line as usize * LINE;
        // Saturating: no sum wraps around and seems to be inside.
        let end = first.saturating_add(offset.saturating_add(len));
        assert!(end <= self.lines as usize * LINE, "outside the ring");
        // SAFETY: the range ends inside the mapping, by the assertion; `lines` is private and was set from the mapping's size.
        unsafe { self.shared.base().as_ptr().add(first + offset) }
    }

    /// A word of a line, by its index below 8.
    #[inline(always)]
    fn word(&self, line: u32, index: usize) -> &AtomicU64 {
        assert!(line < self.lines && index < LINE / 8, "outside the ring");
        // A line is the producer's until `publish` and then the consumer's until `set_head`: release stores, which the other
        // side loads with acquire. So payload may lie where a header word was. Two kinds of access reach a line of the other
        // side. The consumer loads the first word where it expects a header: from the `clear` of that word to its `publish` the
        // producer, too, accesses it only as this atomic. And the producer reads abandoned records: the consumer stores nothing
        // there but the second word, as this atomic.
        // SAFETY: the word is inside the mapping, by the assertion, and the mapping lives as long as `self`. It is aligned to 8
        // because lines and `index * 8` are. Accesses that are not atomic cannot race with it, as said above.
        unsafe { AtomicU64::from_ptr(self.shared.base().as_ptr().add(line as usize * LINE + index * 8).cast()) }
    }

    /// A word of the control lines.
    #[inline(always)]
    fn control(&self, line: usize, index: usize) -> &AtomicU64 {
        assert!(line < CONTROL_LINES as usize && index < LINE / 8, "outside the control lines");
        // SAFETY: the word is inside the mapping, which `new` found to hold the control lines; otherwise as in `word`.
        unsafe { AtomicU64::from_ptr(self.shared.base().as_ptr().add(line * LINE + index * 8).cast()) }
    }
}

impl RingMem for MapMem {
    #[inline(always)]
    fn header(&self, line: u32) -> u64 {
        // Pairs with the release store in `publish`.
        self.word(line, 0).load(Ordering::Acquire)
    }

    #[inline(always)]
    fn publish(&self, line: u32, word: u64) {
        // Pairs with the acquire load in `header`.
        self.word(line, 0).store(word, Ordering::Release);
    }

    #[inline(always)]
    fn clear(&self, line: u32) {
        // Relaxed: the consumer looks here only after the `publish` that follows, whose release orders this store.
        self.word(line, 0).store(0, Ordering::Relaxed);
    }

    #[inline(always)]
    fn second(&self, line: u32) -> u64 {
        // Relaxed: ordered by the acquire load of the first word.
        self.word(line, 1).load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn look(&self, line: u32) -> Option<[u64; 2]> {
        // Both addresses are computed before the first load: the compiler would compute them anew behind an acquire load.
        let (first, second) = (self.word(line, 0), self.word(line, 1));
        let first = first.load(Ordering::Acquire);
        (first != 0).then(|| [first, second.load(Ordering::Relaxed)])
    }

    fn mark(&self, line: u32, second: u64) {
        // Relaxed, then a fence: whoever sees the claim of a later record sees this mark.
        self.word(line, 1).store(second, Ordering::Relaxed);
        std::sync::atomic::fence(Ordering::Release);
    }

    #[inline(always)]
    fn write(&self, line: u32, second: u64, args: &[u32], payload: &[u8]) {
        assert!(args.len() <= MAX_ARGS, "too many arguments");
        let payload_at = payload_at(args.len(), payload.len());
        let record = self.at(line, 0, payload_at + payload.len());
        // SAFETY: `at` checked the record's range, which begins with the two header words. The second one is aligned to 8,
        // as lines are. `word` says which side owns it.
        let second_word = unsafe { AtomicU64::from_ptr(record.add(8).cast()) };
        // Relaxed: ordered by the `publish` that follows.
        second_word.store(second, Ordering::Relaxed);
        // SAFETY: the sources are slices, and `at` checked the destination. They do not overlap: a slice of this mapping comes
        // only from `in_place`, which forbids writing while it lives. Behind the header the lines are this side's alone until
        // `publish`.
        unsafe {
            copy_words(args.as_ptr(), record.add(HEADER), args.len());
            crate::copy::copy(payload.as_ptr(), record.add(payload_at), payload.len());
        }
    }

    fn write_by_lines(&self, line: u32, second: u64, args: &[u32], payload: &[u8]) {
        // The header's line last: the reader polls it, and takes the line away as soon as something is stored in it.
        let to = self.at(line, payload_at(args.len(), payload.len()), payload.len());
        // SAFETY: `at` checked the destination. The rest is as in `write`.
        unsafe { crate::copy::copy_by_lines(payload.as_ptr(), to, payload.len()) };
        self.write(line, second, args, &[]);
    }

    #[cfg(target_arch = "x86_64")]
    fn write_past_caches(&self, line: u32, second: u64, args: &[u32], payload: &[u8]) {
        self.write(line, second, args, &[]);
        let to = self.at(line, payload_at(args.len(), payload.len()), payload.len());
        // SAFETY: `at` checked the destination. The rest is as in `write`.
        unsafe { copy_past_caches(payload, to) };
    }

    #[cfg(target_arch = "x86_64")]
    fn timed_head(&self, lane: usize) -> (u64, u64) {
        use std::arch::x86_64::{_mm_lfence, _rdtsc};
        // SAFETY: every x86-64 processor has both instructions. They access no memory.
        let before = unsafe {
            _mm_lfence();
            _rdtsc()
        };
        let head = self.head(lane);
        // SAFETY: as above.
        let after = unsafe {
            _mm_lfence();
            _rdtsc()
        };
        (head, after.wrapping_sub(before) / 3)
    }

    #[inline(always)]
    fn copy_line(&self, line: u32, bytes: usize, out: &mut [u64; COPY_WORDS]) {
        // Four arguments.
        const FIRST: usize = 16;
        let body = self.at(line, HEADER, LINE - HEADER);
        let out = out.as_mut_ptr().cast::<u8>();
        // SAFETY: the rest of the line is inside the mapping (checked by `at`) and aligned to 16, as lines and the header are.
        // `out` is longer, and a reference that nobody else has. The peer may write meanwhile, which the copy permits. The
        // constant lengths compile to one load and store, and two.
        unsafe {
            foreign::copy_fixed::<FIRST>(body, out);
            if bytes > FIRST {
                foreign::copy_fixed::<{ LINE - HEADER - FIRST }>(body.add(FIRST), out.add(FIRST));
            }
        }
    }

    #[inline(always)]
    fn copy_two_lines(&self, line: u32, out: &mut [u64; COPY_WORDS]) {
        const BODY: usize = 2 * LINE - HEADER;
        let body = self.at(line, HEADER, BODY);
        // SAFETY: what is copied of both lines is inside the mapping (checked by `at`); otherwise as in `copy_line`. The
        // constant length compiles to a few loads and stores.
        unsafe { foreign::copy_fixed::<BODY>(body, out.as_mut_ptr().cast()) };
    }

    fn copy_out(&self, line: u32, bytes: usize, out: &mut [u64; COPY_WORDS]) {
        let bytes = bytes.div_ceil(8) * 8;
        assert!(bytes <= COPY_WORDS * 8, "more than is ever copied out");
        let body = self.at(line, HEADER, bytes);
        prefetch(body, bytes);
        // SAFETY: `bytes` are inside the mapping (checked by `at`) and fit `out` (checked above); otherwise as in `copy_line`.
        unsafe { foreign::copy(body, out.as_mut_ptr().cast(), bytes) };
    }

    #[inline(always)]
    unsafe fn in_place(&self, line: u32, offset: usize, len: usize) -> &[u8] {
        let p = self.at(line, offset, len);
        // Without a prefetch, dirty lines come from the other core one at a time.
        prefetch(p, len);
        // SAFETY: the range is inside the mapping (checked by `at`), which lives as long as `self`. The caller vouches that
        // nobody writes there.
        unsafe { std::slice::from_raw_parts(p, len) }
    }

    fn copy_payload(&self, line: u32, offset: usize, len: usize, out: &mut Vec<u8>) {
        assert!(offset % 8 == 0, "payloads lie 8-byte aligned");
        let p = self.at(line, offset, len);
        prefetch(p, len);
        // SAFETY: the range is inside the mapping (checked by `at`) and aligned to 8, as lines and the offset are. The peer may
        // write meanwhile, which the copy permits.
        unsafe { foreign::copy_into(p, len, out) };
    }

    #[inline(always)]
    fn fetch_ahead(&self, line: u32) {
        // Not checked to be inside: nothing is read.
        prefetch(self.shared.base().as_ptr().wrapping_add(line as usize * LINE), LINE);
    }

    #[cfg(target_arch = "x86_64")]
    fn can_evict(&self) -> bool {
        crate::evict::is_worthwhile()
    }

    #[cfg(target_arch = "x86_64")]
    fn evict(&self, from: u32, to: u32) {
        let lines = to.saturating_sub(from) as usize;
        if self.can_evict() {
            // SAFETY: the processor has the instruction, and `at` checks that the lines are inside the mapping.
            unsafe { crate::evict::evict(self.at(from, 0, lines * LINE), lines) };
        }
    }

    #[inline(always)]
    fn set_head(&self, lane: usize, pos: u64) {
        // Pairs with the acquire load in `head`.
        self.control(0, lane).store(pos, Ordering::Release);
    }

    #[inline(always)]
    fn head(&self, lane: usize) -> u64 {
        // Pairs with the release store in `set_head`.
        self.control(0, lane).load(Ordering::Acquire)
    }

    #[inline(always)]
    fn set_claim(&self, lane: usize, pos: u64) {
        // Relaxed, then a fence: whatever the program does with the record comes after the claim. So if there is no claim,
        // nothing was done. (On x86 the fence costs nothing.)
        self.control(1, lane).store(pos, Ordering::Relaxed);
        std::sync::atomic::fence(Ordering::Release);
    }

    #[inline(always)]
    fn claim(&self, lane: usize) -> u64 {
        self.control(1, lane).load(Ordering::Acquire)
    }

    #[inline(always)]
    fn set_progress(&self, word: u64) {
        // Relaxed: it is only a hint.
        self.control(3, 0).store(word, Ordering::Relaxed);
    }

    #[inline(always)]
    fn progress(&self) -> u64 {
        // Relaxed: see `set_progress`.
        self.control(3, 0).load(Ordering::Relaxed)
    }

    #[cfg(target_arch = "x86_64")]
    fn nanoseconds(&self) -> Option<u64> {
        // SAFETY: every x86-64 processor has the instruction. It accesses no memory.
        Some(unsafe { std::arch::x86_64::_rdtsc() } / 3)
    }

    #[inline(always)]
    fn set_attention(&self, wanted: bool) {
        // Relaxed: if the producer sees this late and does not ring, the consumer's next full scan finds the record. Before the
        // consumer sleeps, a barrier orders it.
        self.control(2, 0).store(u64::from(wanted), Ordering::Relaxed);
    }

    #[inline(always)]
    fn attention(&self) -> bool {
        // Relaxed: see `set_attention`.
        self.control(2, 0).load(Ordering::Relaxed) != 0
    }

    #[inline(always)]
    fn light_barrier(&self) {
        barrier::light();
    }
}

/// Copies up to 16 words of 32 bits without a call; from 4 words on as two blocks that may overlap.
///
/// # Safety
/// `from` must be readable and `to` writable for `count` words, and they must not overlap. No alignment is needed.
#[inline(always)]
unsafe fn copy_words(from: *const u32, to: *mut u8, count: usize) {
    debug_assert!(count <= MAX_ARGS);
    // SAFETY: each block begins and ends within the `count` words that the caller vouches for.
    unsafe {
        if count >= 8 {
            copy_block::<8>(from, to, 0);
            copy_block::<8>(from, to, count - 8);
        } else if count >= 4 {
            copy_block::<4>(from, to, 0);
            if count > 4 {
                copy_block::<4>(from, to, count - 4);
            }
        } else {
            for at in 0..count {
                copy_block::<1>(from, to, at);
            }
        }
    }
}

/// Copies `N` words from the word `at` on.
///
/// # Safety
/// As for [`copy_words`], for the words `at .. at + N`.
#[inline(always)]
unsafe fn copy_block<const N: usize>(from: *const u32, to: *mut u8, at: usize) {
    // SAFETY: the caller vouches for the words; the accesses are made unaligned.
    unsafe { to.add(at * 4).cast::<[u32; N]>().write_unaligned(from.add(at).cast::<[u32; N]>().read_unaligned()) };
}

/// Copies with non-temporal stores, and fences them against what is stored later.
///
/// # Safety
/// `to` must be writable for the payload's length, and not overlap it.
#[cfg(target_arch = "x86_64")]
unsafe fn copy_past_caches(payload: &[u8], to: *mut u8) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    let head = to.align_offset(16).min(payload.len());
    let blocks = (payload.len() - head) / 16;
    let tail = head + blocks * 16;
    // SAFETY: head, blocks and tail are parts of the payload's length, for which the caller vouches. `to + head` is aligned to 16,
    // as a streaming store needs it, or there is no block. The fence orders streaming stores before all later ones, as the
    // compiler takes for granted of stores. SSE2 is part of x86-64.
    unsafe {
        std::ptr::copy_nonoverlapping(payload.as_ptr(), to, head);
        for block in 0..blocks {
            let from = payload.as_ptr().add(head + block * 16).cast::<__m128i>();
            _mm_stream_si128(to.add(head + block * 16).cast(), _mm_loadu_si128(from));
        }
        std::ptr::copy_nonoverlapping(payload.as_ptr().add(tail), to.add(tail), payload.len() - tail);
        _mm_sfence();
    }
}

/// The most bytes that are prefetched. The processor fetches the lines that follow by itself, and faster than by prefetches: with 16 KiB
/// here, 4 KiB there and back took 1,110 ns instead of 920.
const PREFETCH_MOST: usize = 512;

/// Prefetches the beginning of a payload, unless it is large. A reader of a large payload would gain 1 to 4 %. A receiver that does not
/// read it would make the producer wait for these lines when it writes there again: 4 KiB there and back then take 537 ns instead of 346.
#[inline(always)]
fn prefetch(p: *const u8, len: usize) {
    if len >= LARGE_LEAST {
        return;
    }
    fetch_bytes(Cache::First, p, len.min(PREFETCH_MOST));
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::panic::{catch_unwind, AssertUnwindSafe};

    #[test]
    fn a_range_outside_is_refused_even_if_its_end_wraps_around() {
        let lanes = Lanes::new(4096, 512 << 10);
        let (shared, _fd) = Shared::create("weft-test", lanes.bytes()).expect("memfd");
        let mem = MapMem::new(shared, lanes);
        let lines = (lanes.bytes() / LINE) as u32;
        let copies = |line, offset, len| {
            let copy = AssertUnwindSafe(|| mem.copy_payload(line, offset, len, &mut Vec::new()));
            catch_unwind(copy).is_ok()
        };
        assert!(copies(lines - 1, 0, LINE) && copies(lines, 0, 0));
        assert!(!copies(lines - 1, 8, LINE) && !copies(lines, 0, 1));
        assert!(!copies(1, 0usize.wrapping_sub(LINE), 8) && !copies(1, 0, 0usize.wrapping_sub(LINE)));
        assert!(!copies(1, 8, usize::MAX) && !copies(u32::MAX, usize::MAX - 7, 16));
    }
}
