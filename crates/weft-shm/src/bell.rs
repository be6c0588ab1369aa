//! Bells: how a consumer of many rings finds one that has records, in the same time however many rings there are.
//!
//! A page with one byte per ring, owned by the consumer. A producer whose ring asks for attention stores 1 into its byte
//! after it publishes: a plain store, so bells of different producers need no locked operation and never undo each other.
//! With more than 64 rings the producer also marks the byte's line in the summary line, and the consumer reads that first.
//!
//! While the consumer polls, a bell can be missed, because the store that asks for it is not fenced against the producer's load.
//! The consumer's occasional full scan of its rings bounds the delay.
//!
//! # Sleeping
//!
//! Before it sleeps the consumer asks all rings for their bells, *arms* the page with the number of its sleep, issues a
//! [`crate::barrier`] and looks once more. A producer that rings looks at that number next and wakes the consumer if it is
//! armed, once per sleep. The barrier takes effect between two instructions of the producer. If it is before the producer's look,
//! the producer sees that it has to wake; if it is after it, the consumer's last look finds the record. So messages to a consumer
//! that does not sleep need no fence.

use crate::barrier;
use crate::foreign;
use crate::fork::Descriptor;
use crate::sys::{OpenError, Shared};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, AtomicU8, Ordering};
use weft_wire::path::Bells;
use weft_wire::LINE;

const PAGE: usize = 4096;

/// Where the number of the consumer's sleep lies: the beginning of the last line.
const ARMED: usize = PAGE - LINE;

/// Bells of a page: all its lines but the summary and the last.
pub const BELLS: u32 = (ARMED - LINE) as u32;

/// Lines of bells, each with a mark in the summary.
const GROUPS: usize = BELLS as usize / LINE;

/// The consumer's side.
///
/// ```
/// use weft_shm::{Bell, BellPage};
///
/// let page = BellPage::create()?;
/// let mut bell = Bell::open(page.fd(), 3)?; // in the producer's process
/// bell.ring();
/// let mut rung = Vec::new();
/// page.collect(8, |bell| rung.push(bell));
/// assert_eq!(rung, [3]);
/// page.collect(8, |_| panic!("each ring is told once"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct BellPage {
    page: Page,
    fd: Descriptor,
    /// Sleeps so far. Wraps around, skipping 0.
    sleeps: u32,
}

/// A producer's view of the page. Ringing needs this order: stores before a `light_barrier` are visible to a consumer that issues
/// a [`crate::barrier`] after it, and loads after a `light_barrier` are no older than a barrier that was before it.
pub trait BellMem {
    /// Marks the bell as rung.
    fn ring(&self, index: u32);
    /// The number of the consumer's sleep, or 0 while it is awake.
    fn armed(&self) -> u32;
    /// Keeps the accesses before it before those behind it, together with the consumer's barrier.
    fn light_barrier(&self);
}

/// The producer's side: one bell of a page.
#[derive(Debug)]
pub struct Bell<M = Page> {
    page: M,
    index: u32,
    /// The sleep that we ended, or 0.
    ended: u32,
}

impl BellPage {
    /// A page with no bell rung.
    pub fn create() -> io::Result<BellPage> {
        let (shared, fd) = Shared::create("weft-bells", PAGE)?;
        Ok(BellPage { page: Page(shared), fd, sleeps: 0 })
    }

    /// The descriptor to send to producers.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Calls `rung` for each bell below `in_use` that was rung since, and clears it first. Reads one line if none was.
    #[inline]
    pub fn collect(&self, in_use: u32, mut rung: impl FnMut(u32)) {
        let in_use = in_use.min(BELLS);
        if in_use <= LINE as u32 {
            self.collect_line(1, in_use, &mut rung);
            return;
        }
        let marks = self.page.nonzero(0);
        if marks != 0 {
            self.collect_marked(marks, in_use, &mut rung);
        }
    }

    /// Collects the lines of bells that have a mark in the summary line.
    #[cold]
    fn collect_marked(&self, mut marks: u64, in_use: u32, rung: &mut impl FnMut(u32)) {
        while marks != 0 {
            let group = marks.trailing_zeros() as usize;
            marks &= marks - 1;
            if group >= GROUPS {
                return; // only a hostile producer marks a group that does not exist
            }
            // Clear, then look: a producer that rings after the look marks the line again. The exchange keeps this order.
            self.page.byte(group).swap(0, Ordering::SeqCst);
            self.collect_line(group + 1, in_use, rung);
        }
    }

    #[inline]
    fn collect_line(&self, line: usize, in_use: u32, rung: &mut impl FnMut(u32)) {
        // A mask, and then its bits: nobody can predict which bell is rung next, so there is no branch for each byte.
        let mut bells = self.page.nonzero(line);
        while bells != 0 {
            let byte = line * LINE + bells.trailing_zeros() as usize;
            bells &= bells - 1;
            let index = (byte - LINE) as u32;
            if index < in_use {
                // Relaxed: a bell only says where to look. The ring's header orders what is found there.
                self.page.byte(byte).store(0, Ordering::Relaxed);
                rung(index);
            }
        }
    }
}

impl Bells for BellPage {
    #[inline]
    fn collect(&mut self, in_use: u32, rung: impl FnMut(u32)) {
        BellPage::collect(self, in_use, rung);
    }

    fn arm(&mut self) {
        self.sleeps = self.sleeps.checked_add(1).unwrap_or(1);
        // Relaxed: the barrier that follows orders it.
        self.page.armed_word().store(self.sleeps, Ordering::Relaxed);
    }

    fn disarm(&mut self) {
        // Relaxed: a producer that sees it late wakes a consumer that is awake.
        self.page.armed_word().store(0, Ordering::Relaxed);
    }
}

impl Bell {
    /// Bell `index` of a page that a consumer sent.
    pub fn open(fd: impl AsFd, index: u32) -> Result<Bell, OpenError> {
        if index >= BELLS {
            return Err(OpenError::Size { want: u64::from(index), have: u64::from(BELLS) });
        }
        Ok(Bell::of(Page(Shared::open(fd, PAGE)?), index))
    }
}

impl<M: BellMem> Bell<M> {
    /// A bell of a page that is mapped already.
    pub fn of(page: M, index: u32) -> Bell<M> {
        Bell { page, index, ended: 0 }
    }

    /// Rings, after a publication. True if the consumer sleeps and is to be woken now. Never blocks.
    #[inline]
    pub fn ring(&mut self) -> bool {
        self.page.ring(self.index);
        self.page.light_barrier();
        let armed = self.page.armed();
        armed != 0 && std::mem::replace(&mut self.ended, armed) != armed
    }
}

/// A page of bells in memory that several processes share.
///
/// Atomic accesses to bells and marks are of one byte, those to the number of the sleep of four bytes: no place is accessed in two
/// sizes. The consumer looks at a whole line by volatile loads (`foreign.rs`).
#[derive(Debug)]
pub struct Page(Shared);

impl BellMem for Page {
    #[inline(always)]
    fn ring(&self, index: u32) {
        // Release: the bell after the record, and the line's mark after the bell.
        self.byte(LINE + index as usize).store(1, Ordering::Release);
        self.byte(index as usize / LINE).store(1, Ordering::Release);
    }

    #[inline(always)]
    fn armed(&self) -> u32 {
        // Relaxed: the barriers order it.
        self.armed_word().load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn light_barrier(&self) {
        barrier::light();
    }
}

impl Page {
    /// A mark or a bell.
    #[inline(always)]
    fn byte(&self, index: usize) -> &AtomicU8 {
        assert!(index < ARMED, "neither a mark nor a bell");
        // SAFETY: the byte is inside the mapping of PAGE bytes, which lives as long as `self`. A byte is always aligned.
        // Nothing accesses it through this mapping but this atomic and the volatile loads of `nonzero`.
        unsafe { AtomicU8::from_ptr(self.0.base().as_ptr().add(index)) }
    }

    /// The bytes of a line of marks or bells that are not zero, one bit for each, the lowest for the first.
    #[inline(always)]
    fn nonzero(&self, line: usize) -> u64 {
        assert!(line * LINE < ARMED, "no line of marks or bells");
        // SAFETY: the line is inside the mapping of PAGE bytes, and aligned to a line because the mapping is aligned to a page.
        // Producers may store to it meanwhile, which `nonzero` permits.
        unsafe { foreign::nonzero(self.0.base().as_ptr().add(line * LINE)) }
    }

    #[inline(always)]
    fn armed_word(&self) -> &AtomicU32 {
        // SAFETY: the word is inside the mapping of PAGE bytes, which lives as long as `self`, and aligned because it begins the
        // last line. Nothing accesses it through this mapping but this atomic: `byte` and `nonzero` end before it.
        unsafe { AtomicU32::from_ptr(self.0.base().as_ptr().add(ARMED).cast()) }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_bell_is_collected_once_among_few_and_many() {
        for in_use in [3, 64, 65, 1000, BELLS] {
            let page = BellPage::create().expect("page");
            let rung: Vec<u32> = (0..in_use).filter(|i| i % 3 == 0 || *i == in_use - 1).collect();
            for &index in &rung {
                let fd = page.fd().try_clone_to_owned().expect("dup");
                assert!(!Bell::open(fd, index).expect("bell").ring(), "nobody sleeps");
            }
            let mut found = Vec::new();
            page.collect(in_use, |i| found.push(i));
            assert_eq!(found, rung);
            page.collect(in_use, |i| panic!("bell {i} twice"));
        }
    }

    #[test]
    fn on_a_scribbled_page_each_bell_in_use_is_collected_once_and_no_other() {
        let page = BellPage::create().expect("page");
        for in_use in [1, 13, 64, 200, BELLS] {
            (0..ARMED).for_each(|byte| page.page.byte(byte).store(0x80 | byte as u8, Ordering::Relaxed));
            let mut found = Vec::new();
            page.collect(in_use, |i| found.push(i));
            assert_eq!(found, (0..in_use).collect::<Vec<_>>());
            page.collect(in_use, |i| panic!("bell {i} twice"));
        }
    }

    #[test]
    fn a_sleeper_is_woken_once_by_each_producer() {
        let mut page = BellPage::create().expect("page");
        let open = |index| Bell::open(page.fd().try_clone_to_owned().expect("dup"), index).expect("bell");
        let mut bells = [open(0), open(BELLS - 1)];
        for _ in 0..3 {
            page.arm();
            assert_eq!(bells.each_mut().map(Bell::ring), [true, true]);
            assert_eq!(bells.each_mut().map(Bell::ring), [false, false], "woken already");
            page.disarm();
            assert_eq!(bells.each_mut().map(Bell::ring), [false, false], "awake");
        }
    }

    #[test]
    fn a_bell_outside_the_page_is_refused() {
        let page = BellPage::create().expect("page");
        let fd = page.fd().try_clone_to_owned().expect("dup");
        assert!(Bell::open(fd, BELLS).is_err());
    }
}
