//! Memory that goes to a socket page by page, without a copy: [`Pages`].
//!
//! The kernel refers to the pages until the packets in them were received, or sent by the hardware, and does not say when that is. Two
//! things follow. Changing the pages before that changes the packets, which a checksum detects. And the process must not reuse the pages
//! for other data, which would then be sent. So they are mapped for this use alone, and unmapped when they are dropped, which leaves the
//! kernel's pages as they were.
//!
//! The pages are those of a memfd that no other process has. The kernel sends pages of a file with one call (`sendfile`); other memory
//! would need two, by way of a pipe (`vmsplice`, `splice`). A memfd's mapping is shared, so forked children do not inherit it: a child
//! that wrote there would change what its parent sends.

use crate::fork::Descriptor;
use crate::sys::Shared;
use rustix::io::{retry_on_intr, Errno};
use rustix::mm::{MapFlags, ProtFlags};
use std::alloc::Layout;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::OnceLock;

/// Zeroed pages of this process, unmapped on drop.
///
/// ```
/// let mut pages = weft_shm::Pages::zeroed(10_000);
/// assert_eq!(pages.as_ref().len(), 10_000);
/// pages.as_mut()[9_999] = 7;
/// ```
#[derive(Debug)]
pub struct Pages {
    base: NonNull<u8>,
    bytes: usize,
    /// The memfd of the pages. `None` if the kernel would not send them, gives no file, or [`FILES_MOST`] others have one.
    file: Option<File>,
}

/// A memfd and its only mapping.
#[derive(Debug)]
struct File {
    mapping: Shared,
    descriptor: Descriptor,
}

// SAFETY: this value is the only way to its memory, which any thread may use and unmap.
unsafe impl Send for Pages {}
// SAFETY: a shared reference only reads the memory.
unsafe impl Sync for Pages {}

impl Pages {
    /// This many bytes, all zero. Without memory for them the process aborts, as it does when the heap is exhausted.
    pub fn zeroed(bytes: usize) -> Pages {
        let Ok(layout) = Layout::array::<u8>(bytes.max(1)) else {
            std::alloc::handle_alloc_error(Layout::new::<u8>());
        };
        let size = layout.size();
        let file = take_file(size);
        let base = match &file {
            Some(file) => Some(file.mapping.base()),
            None => {
                let (any, rights) = (std::ptr::null_mut(), ProtFlags::READ | ProtFlags::WRITE);
                // SAFETY: a new mapping at an address that the kernel chooses overlaps nothing.
                let base = unsafe { rustix::mm::mmap_anonymous(any, size, rights, MapFlags::PRIVATE) };
                base.ok().and_then(|base| NonNull::new(base.cast()))
            }
        };
        match base {
            Some(base) => Pages { base, bytes, file },
            None => std::alloc::handle_alloc_error(layout),
        }
    }

    /// Whether the kernel sends pages without a copy.
    pub fn are_sent() -> bool {
        static SUPPORTED: OnceLock<bool> = OnceLock::new();
        *SUPPORTED.get_or_init(|| {
            let uname = rustix::system::uname();
            version(uname.release().to_str().unwrap_or_default()).is_some_and(|version| version >= KERNEL)
        })
    }

    /// Whether these pages can be [sent](Pages::send).
    pub fn can_be_sent(&self) -> bool {
        self.file.is_some()
    }

    /// Sends a part of them to the peer of a connected datagram socket. It is one datagram, which the socket may cut into several (UDP
    /// segmentation). One system call, which does not block if the socket does not.
    ///
    /// # Errors
    /// What the kernel says; `OPNOTSUPP` if these pages cannot be sent without a copy, `IO` if the kernel took only a part.
    pub fn send(&self, socket: BorrowedFd<'_>, part: Range<usize>) -> Result<(), Errno> {
        let Some(file) = self.file.as_ref().filter(|_| part.end <= self.bytes) else { return Err(Errno::OPNOTSUPP) };
        let sent = retry_on_intr(|| {
            let mut from = part.start as u64;
            rustix::fs::sendfile(socket, file.descriptor.checked(), Some(&mut from), part.len())
        })?;
        if sent < part.len() {
            return Err(Errno::IO);
        }
        Ok(())
    }
}

impl AsRef<[u8]> for Pages {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        // SAFETY: that many bytes are mapped as long as this lives, and were zeroed by the kernel. In a forked child, other zeros are mapped
        // at the same place. They are written through `as_mut` alone, which takes this exclusively. A `Layout` has them, so they are at
        // most `isize::MAX`.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.bytes) }
    }
}

impl AsMut<[u8]> for Pages {
    #[inline]
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and this is the only reference. The kernel may read the pages meanwhile, and never writes them.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.bytes) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        if self.file.is_some() {
            // The mapping ends with the file. The kernel keeps the pages that it still sends.
            FILES.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        // SAFETY: `zeroed` mapped it with this length, and what borrows from it has ended. It is private, so a forked child has its own.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes.max(1)) };
    }
}

/// Pages of this process that have a file. Each takes a descriptor, of which the program has few and wants some itself.
static FILES: AtomicU32 = AtomicU32::new(0);

/// The most pages with a file. The kernel copies what is sent from others.
const FILES_MOST: u32 = 64;

/// A file for pages, if they are sent and there may be one more.
fn take_file(bytes: usize) -> Option<File> {
    if !Pages::are_sent() {
        return None;
    }
    let is_one_more = FILES.fetch_add(1, Ordering::Relaxed) < FILES_MOST;
    let made = is_one_more.then(|| Shared::create("weft-pages", bytes).ok()).flatten();
    let file = made.map(|(mapping, descriptor)| File { mapping, descriptor });
    if file.is_none() {
        FILES.fetch_sub(1, Ordering::Relaxed);
    }
    file
}

/// The first kernel that sends a datagram to be cut without copying its pages (MSG_SPLICE_PAGES).
const KERNEL: (u32, u32) = (6, 5);

/// The first two numbers of a kernel's release.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::os::fd::AsFd;
    use std::sync::{Mutex, MutexGuard, PoisonError};

    /// Tests that need a descriptor, or take all of them, run one at a time.
    fn alone() -> MutexGuard<'static, ()> {
        static ONE: Mutex<()> = Mutex::new(());
        ONE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[test]
    fn releases_are_read_as_kernels_write_them() {
        assert_eq!(version("6.18.44-fc-v669"), Some((6, 18)));
        assert_eq!(version("5.10.0-32-amd64"), Some((5, 10)));
        assert_eq!(version("6"), None);
        assert!(version("6.1.0-18").expect("two numbers") < KERNEL);
    }

    #[test]
    fn bytes_of_pages_arrive_although_the_pages_are_dropped_before() {
        let _alone = alone();
        let (a, b) = (UdpSocket::bind("127.0.0.1:0").expect("a"), UdpSocket::bind("127.0.0.1:0").expect("b"));
        a.connect(b.local_addr().expect("bound")).expect("connects");
        let mut pages = Pages::zeroed(50_000);
        pages.as_mut().iter_mut().zip(0u32..).for_each(|(to, n)| *to = (n % 251) as u8);
        if !Pages::are_sent() {
            return;
        }
        let mut buffer = vec![0; 65_536];
        for range in [0..20_000, 123..50_000, 4096..8192] {
            pages.send(a.as_fd(), range.clone()).expect("sends");
            let got = b.recv(&mut buffer).expect("comes");
            assert_eq!(buffer[..got], pages.as_ref()[range]);
        }
        pages.send(a.as_fd(), 0..50_000).expect("sends");
        let expected = pages.as_ref().to_vec();
        drop(pages);
        // The mapping that takes its place is not sent.
        let other = Pages::zeroed(50_000);
        let got = b.recv(&mut buffer).expect("comes");
        assert_eq!(buffer[..got], expected);
        drop(other);
    }

    #[test]
    fn only_files_most_pages_have_a_descriptor() {
        let _alone = alone();
        let mut all: Vec<Pages> = (0..=FILES_MOST).map(|_| Pages::zeroed(4096)).collect();
        let count = || all.iter().filter(|pages| pages.can_be_sent()).count();
        assert_eq!(count(), if Pages::are_sent() { FILES_MOST as usize } else { 0 });
        assert!(all.iter().all(|pages| pages.as_ref() == [0; 4096]), "memory they are all the same");
        all.truncate(1);
        assert_eq!(Pages::zeroed(4096).can_be_sent(), Pages::are_sent(), "there is room again");
    }

    #[test]
    fn a_socket_without_a_peer_and_a_range_outside_are_errors() {
        let _alone = alone();
        let a = UdpSocket::bind("127.0.0.1:0").expect("a");
        let pages = Pages::zeroed(4096);
        let told = if Pages::are_sent() { Errno::DESTADDRREQ } else { Errno::OPNOTSUPP };
        assert_eq!(pages.send(a.as_fd(), 0..4096), Err(told));
        assert_eq!(pages.send(a.as_fd(), 1..4097), Err(Errno::OPNOTSUPP), "more than there is");
    }
}
