//! Access to the whole address space of this process, at addresses that peers choose. A bad address is refused and kills no process.
//!
//! The kernel copies the bytes (process_vm_readv(2), process_vm_writev(2) on the process itself). Where nothing is mapped, or where the
//! mapping does not allow the access, the call fails, and there is no signal. A write over a page border could stop in the middle, so the
//! kernel is asked first whether all of it can be written (madvise(2), `MADV_POPULATE_WRITE`).

use crate::window::last_piece;
use nix::sys::uio::{process_vm_readv, process_vm_writev, RemoteIoVec};
use nix::unistd::Pid;
use rustix::io::Errno;
use rustix::mm::{madvise, Advice};
use std::io::{self, IoSlice, IoSliceMut};
use std::ptr::{with_exposed_provenance_mut, without_provenance_mut};
use std::sync::atomic::{fence, Ordering};

/// How often a call that a signal interrupted is made again.
const TRIES: u32 = 16;

/// Checks that the kernel lets this process use all the calls that this module needs.
///
/// # Errors
/// Why not: a filter of system calls forbids one, or Linux is older than 5.14.
pub(crate) fn check() -> io::Result<()> {
    let word = Box::new(std::cell::UnsafeCell::new(7u64));
    let at = word.get().expose_provenance();
    let mut bytes = [0; 8];
    process_vm_readv(Pid::this(), &mut [IoSliceMut::new(&mut bytes)], &[RemoteIoVec { base: at, len: 8 }])?;
    process_vm_writev(Pid::this(), &[IoSlice::new(&bytes)], &[RemoteIoVec { base: at, len: 8 }])?;
    populate(at, 8)?;
    Ok(())
}

/// Copies bytes from an address. False if they are not all there; then `to` may have got some of them.
pub(crate) fn read(at: usize, to: &mut [u8]) -> bool {
    if to.is_empty() {
        return true;
    }
    let from = RemoteIoVec { base: at, len: to.len() };
    let wanted = to.len();
    let read = process_vm_readv(Pid::this(), &mut [IoSliceMut::new(to)], &[from]) == Ok(wanted);
    fence(Ordering::Acquire);
    read
}

/// Copies bytes to an address in ascending order, the last aligned word last. False if they cannot all be written: then nothing was copied,
/// unless the program changed the mapping meanwhile.
pub(crate) fn write(at: usize, bytes: &[u8]) -> bool {
    if bytes.is_empty() {
        return true;
    }
    let Some(end) = at.checked_add(bytes.len()) else { return false };
    let page = rustix::param::page_size();
    if at / page != (end - 1) / page && !is_writable(at, bytes.len()) {
        return false;
    }
    let (body, last) = bytes.split_at(bytes.len() - last_piece(without_provenance_mut(at), bytes.len()));
    if !put(at, body) {
        return false;
    }
    // The system call in between orders the two stores as well, but nobody promises that.
    fence(Ordering::Release);
    put(at + body.len(), last)
}

fn put(at: usize, bytes: &[u8]) -> bool {
    let to = RemoteIoVec { base: at, len: bytes.len() };
    bytes.is_empty() || process_vm_writev(Pid::this(), &[IoSlice::new(bytes)], &[to]) == Ok(bytes.len())
}

/// Whether all of these bytes can be written now. Allocates their pages.
pub(crate) fn is_writable(at: usize, len: usize) -> bool {
    (0..TRIES).map(|_| populate(at, len)).find(|done| !matches!(done, Err(Errno::INTR | Errno::AGAIN))) == Some(Ok(()))
}

fn populate(at: usize, len: usize) -> Result<(), Errno> {
    let page = rustix::param::page_size();
    let first = at / page * page;
    let end = at.checked_add(len).and_then(|end| end.checked_next_multiple_of(page)).ok_or(Errno::FAULT)?;
    // SAFETY: this advice allocates the pages, as a write to them would, and changes no byte. For addresses that are not mapped it fails.
    unsafe { madvise(with_exposed_provenance_mut(first), end - first, Advice::LinuxPopulateWrite) }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use crate::Window;
    use rustix::io::Errno;
    use rustix::mm::{mmap_anonymous, mprotect, munmap, MapFlags, MprotectFlags, ProtFlags};
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Pages that the test maps: it can read and write two, can read the third, and may not touch the fourth. The fifth is a hole.
    struct Pages(usize);

    const PAGES: usize = 5;

    fn page() -> usize {
        rustix::param::page_size()
    }

    impl Pages {
        fn new() -> Pages {
            let (all, rights) = (PAGES * page(), ProtFlags::READ | ProtFlags::WRITE);
            // SAFETY: the kernel finds a place where nothing is; nobody has references to it.
            let base = unsafe { mmap_anonymous(std::ptr::null_mut(), all, rights, MapFlags::PRIVATE) }.expect("memory");
            // SAFETY: these pages are of the mapping that was just made.
            unsafe {
                mprotect(base.byte_add(2 * page()), page(), MprotectFlags::READ).expect("ours");
                mprotect(base.byte_add(3 * page()), page(), MprotectFlags::empty()).expect("ours");
                munmap(base.byte_add(4 * page()), page()).expect("ours");
            }
            Pages(base.expose_provenance())
        }

        fn at(&self, page_number: usize, offset: isize) -> u64 {
            (self.0 + page_number * page()).wrapping_add_signed(offset) as u64
        }
    }

    impl Drop for Pages {
        fn drop(&mut self) {
            let base = std::ptr::with_exposed_provenance_mut(self.0);
            // SAFETY: what is left of the mapping, to which nobody has references.
            unsafe { munmap(base, (PAGES - 1) * page()) }.expect("ours");
        }
    }

    /// `None` where the kernel does not allow it: a filter forbids the calls, or it is older than Linux 5.14.
    fn whole() -> Option<Window> {
        // SAFETY: the tests access nothing by it but what they mapped for that.
        let window = unsafe { Window::whole_address_space() };
        if let Err(why) = &window {
            assert!(matches!(Errno::from_io_error(why), Some(Errno::PERM | Errno::NOSYS | Errno::INVAL)), "{why}");
            eprintln!("LEFT OUT: the whole address space as a window: {why}");
        }
        window.ok()
    }

    /// Addresses where nothing can be.
    fn nowhere() -> [u64; 6] {
        [0, 8, 1 << 63, (1 << 63) - 8, u64::MAX - 7, u64::MAX - 4095]
    }

    #[test]
    fn offsets_are_addresses() {
        let Some(window) = whole() else { return };
        let pages = Pages::new();
        let word = AtomicU64::new(5);
        let mut bytes = [0; 8];
        assert!(window.read(word.as_ptr().expose_provenance() as u64, &mut bytes));
        assert_eq!(bytes, 5u64.to_le_bytes());
        assert!(window.write(word.as_ptr().expose_provenance() as u64, &6u64.to_le_bytes()));
        assert_eq!(word.load(Ordering::Acquire), 6);
        let all: Vec<u8> = (0..2 * page()).map(|n| n as u8 | 1).collect();
        for (at, len) in [(0, 1), (3, 13), (page() - 3, 8), (page() - 8, 8), (0, 2 * page()), (1, 2 * page() - 1)] {
            assert!(window.write(pages.at(0, 0), &vec![0; 2 * page()]));
            assert!(window.write(pages.at(0, at as isize), &all[..len]), "{len} at {at}");
            let mut seen = vec![9; 2 * page()];
            assert!(window.read(pages.at(0, 0), &mut seen));
            assert_eq!(seen[at..at + len], all[..len], "{len} at {at}");
            assert!(seen[..at].iter().chain(&seen[at + len..]).all(|byte| *byte == 0), "{len} at {at}");
        }
        assert!(!window.is_own() && window.len() == usize::MAX && window.as_ptr().is_null());
        assert!(window.offer(pages.at(0, 0), 8).is_none());
    }

    #[test]
    fn a_write_that_does_not_fit_writes_nothing() {
        let Some(window) = whole() else { return };
        let pages = Pages::new();
        for (first, len) in [(2, 1), (3, 1), (4, 1), (2, page() + 1), (3, 2 * page())] {
            assert!(!window.write(pages.at(first, 0), &vec![1; len]), "{len} in page {first}");
        }
        // Over a border, from a page that can be written.
        for len in [9, 16, page(), page() + 9] {
            let at = pages.at(2, 8 - len as isize);
            assert!(!window.write(at, &vec![1; len]), "{len}");
            let mut seen = vec![9; len - 8];
            assert!(window.read(at, &mut seen));
            assert!(seen.iter().all(|byte| *byte == 0), "a part of {len} bytes was stored");
        }
        for at in nowhere() {
            assert!(!window.write(at, &[1]) && !window.write(at, &[1; 100]), "{at:x}");
        }
        assert!(window.write(0, &[]) && window.read(0, &mut []));
    }

    #[test]
    fn reads_of_unreadable_bytes_are_refused() {
        let Some(window) = whole() else { return };
        let pages = Pages::new();
        let mut bytes = vec![0; 2 * page()];
        assert!(window.read(pages.at(2, 0), &mut bytes[..page()]), "read-only");
        for (first, offset, len) in [(3, 0, 1), (4, 0, 1), (3, -1, 2), (2, 0, page() + 1), (4, -1, 2)] {
            assert!(!window.read(pages.at(first, offset), &mut bytes[..len]), "{len} at {offset} of page {first}");
        }
        for at in nowhere() {
            assert!(!window.read(at, &mut bytes[..1]) && !window.read(at, &mut bytes), "{at:x}");
        }
    }

    #[test]
    fn words_are_changed_where_that_is_allowed() {
        let Some(window) = whole() else { return };
        let pages = Pages::new();
        assert_eq!(window.update(pages.at(1, -8), 8, |old| Some(old + 7)), Some(0));
        assert_eq!(window.update(pages.at(1, -8), 4, |_| None), Some(7));
        assert!(!window.is_word(pages.at(0, 4), 8) && window.update(pages.at(0, 4), 8, Some).is_none());
        for at in [pages.at(2, 0), pages.at(3, 0), pages.at(4, 0)].into_iter().chain(nowhere().map(|at| at & !7)) {
            assert_eq!(window.update(at, 8, Some), None, "{at:x}");
            assert!(!window.can_be_changed(at, 8), "{at:x}");
        }
        assert!(window.can_be_changed(pages.at(0, 0), 2 * page() as u64));
        assert!(!window.can_be_changed(pages.at(2, -8), 16));
    }
}
