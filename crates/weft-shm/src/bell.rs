//! Bells: how a consumer of many rings finds the one that has something, in the same time however many there are.
//!
//! A page with one byte per ring, owned by the consumer. A producer whose ring asks for attention stores 1 into its byte
//! after it publishes: a plain store, so bells of different producers need no locked operation and never undo each other.
//! With more than 64 rings the producer also marks the byte's line in the summary line, and the consumer reads that first.
//!
//! A bell can be missed (the store that asks for it is not fenced against the producer's look at it); the consumer's
//! occasional full scan of its rings bounds what that costs.

use crate::sys::{OpenError, Shared};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, AtomicU8, Ordering};
use weft_wire::path::Bells;
use weft_wire::LINE;

const PAGE: usize = 4096;

/// Bells of a page: all its lines but the summary.
pub const BELLS: u32 = (PAGE - LINE) as u32;

/// The consumer's side.
#[derive(Debug)]
pub struct BellPage {
    page: Page,
    fd: OwnedFd,
}

/// The producer's side: one bell of a page.
#[derive(Debug)]
pub struct Bell {
    page: Page,
    index: u32,
}

impl BellPage {
    /// A page with no bell rung.
    pub fn create() -> io::Result<BellPage> {
        let (shared, fd) = Shared::create("weft-bells", PAGE)?;
        Ok(BellPage { page: Page(shared), fd })
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
        for word in 0..LINE / 8 {
            if self.page.word(word).load(Ordering::Relaxed) != 0 {
                self.collect_summary(word, in_use, &mut rung);
            }
        }
    }

    #[cold]
    fn collect_summary(&self, word: usize, in_use: u32, rung: &mut impl FnMut(u32)) {
        for group in word * 8..word * 8 + 8 {
            let mark = self.page.byte(group);
            // Clear before looking: what is rung after the look is marked again.
            if mark.load(Ordering::Relaxed) != 0 {
                mark.store(0, Ordering::SeqCst);
                self.collect_line(group + 1, in_use, rung);
            }
        }
    }

    #[inline]
    fn collect_line(&self, line: usize, in_use: u32, rung: &mut impl FnMut(u32)) {
        if line >= PAGE / LINE {
            return; // only a hostile producer marks a group that does not exist
        }
        for word in 0..LINE / 8 {
            let at = line * LINE / 8 + word;
            // Relaxed: a bell says only where to look; the ring's header orders what is found there.
            if self.page.word(at).load(Ordering::Relaxed) != 0 {
                for byte in at * 8..at * 8 + 8 {
                    let bell = self.page.byte(byte);
                    let index = (byte - LINE) as u32;
                    if bell.load(Ordering::Relaxed) != 0 && index < in_use {
                        bell.store(0, Ordering::Relaxed);
                        rung(index);
                    }
                }
            }
        }
    }
}

impl Bells for BellPage {
    #[inline]
    fn collect(&mut self, in_use: u32, rung: impl FnMut(u32)) {
        BellPage::collect(self, in_use, rung);
    }
}

impl Bell {
    /// Bell `index` of a page that a consumer sent.
    pub fn open(fd: OwnedFd, index: u32) -> Result<Bell, OpenError> {
        if index >= BELLS {
            return Err(OpenError::Size { want: u64::from(index), have: u64::from(BELLS) });
        }
        Ok(Bell { page: Page(Shared::open(fd, PAGE)?), index })
    }

    /// Rings. Two plain stores; never blocks.
    #[inline]
    pub fn ring(&self) {
        // Relaxed, but not before the record: stores of x86 stay in order, and elsewhere the full scan finds what a bell
        // that overtook its record missed.
        self.page.byte(LINE + self.index as usize).store(1, Ordering::Release);
        self.page.byte(self.index as usize / LINE).store(1, Ordering::Release);
    }
}

/// A page of bells, as atomic bytes and words.
#[derive(Debug)]
struct Page(Shared);

impl Page {
    #[inline(always)]
    fn byte(&self, index: usize) -> &AtomicU8 {
        assert!(index < PAGE, "outside the page");
        // SAFETY: inside the mapping of PAGE bytes, which lives as long as `self`; accessed only atomically.
        unsafe { AtomicU8::from_ptr(self.0.base().as_ptr().add(index)) }
    }

    #[inline(always)]
    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < PAGE / 8, "outside the page");
        // SAFETY: inside the mapping, 8-byte aligned as the mapping is page aligned; accessed only atomically. Mixed sizes
        // of atomic access are defined by every processor that Linux runs on; a torn view costs a look, not a message.
        unsafe { AtomicU64::from_ptr(self.0.base().as_ptr().cast::<u64>().add(index).cast()) }
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
                Bell::open(fd, index).expect("bell").ring();
            }
            let mut found = Vec::new();
            page.collect(in_use, |i| found.push(i));
            assert_eq!(found, rung);
            page.collect(in_use, |i| panic!("bell {i} twice"));
        }
    }

    #[test]
    fn a_bell_outside_the_page_is_refused() {
        let page = BellPage::create().expect("page");
        let fd = page.fd().try_clone_to_owned().expect("dup");
        assert!(Bell::open(fd, BELLS).is_err());
    }
}
