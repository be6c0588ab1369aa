//! Anonymous shared memory: memfds that nobody can shrink, mapped for as long as a [`Shared`] lives.
//!
//! Nothing here has a name in a file system, so nothing stays behind when a process is killed.

use crate::fork::{registry, Descriptor, Life};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{mremap_fixed, Advice, MapFlags, MremapFlags, ProtFlags};
use rustix::process::{getrlimit, Resource};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;

/// The file system of a memfd of ordinary pages (linux/magic.h).
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// A mapping of a whole sealed memfd, readable and writable, unmapped on drop and absent in forked children.
///
/// ```
/// use weft_shm::Shared;
///
/// let (here, descriptor) = Shared::create("some memory", 4096)?;
/// let there = Shared::open(&descriptor, 4096)?; // in the process that the descriptor was sent to
/// assert_eq!(here.bytes(), there.bytes());
/// assert!(Shared::open(&descriptor, 8192).is_err()); // not what was announced
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Shared {
    base: NonNull<u8>,
    bytes: usize,
    life: Life,
}

// SAFETY: any thread may use and unmap a mapping. Outside this crate a `Shared` shows nothing but its length. Inside, the modules that
// get its address answer for their accesses.
unsafe impl Send for Shared {}
// SAFETY: as above; no method changes a `Shared` through a shared reference.
unsafe impl Sync for Shared {}

/// Why a descriptor that a peer sent was not mapped.
#[derive(thiserror::Error)]
pub enum OpenError {
    /// The kernel refused.
    #[error("cannot map the peer's memory: {0}")]
    System(#[from] io::Error),
    /// Not a memfd, or one that could shrink under us.
    #[error("the peer's memory is not sealed against shrinking; it was not mapped")]
    NotSealed,
    /// Sealed, but not of ordinary pages: a touch could kill us.
    #[error("the peer's memory is not a memfd of ordinary pages; it was not mapped")]
    NotOrdinary,
    /// Not the size that was announced.
    #[error("the peer's memory has {have} bytes, {want} were announced; it was not mapped")]
    Size {
        /// Bytes that were announced.
        want: u64,
        /// Bytes there are.
        have: u64,
    },
}

weft_wire::debug_says_display!(OpenError);

impl Shared {
    /// Makes `bytes` of zeroed memory, sealed against shrinking, growing and further seals.
    ///
    /// The pages are allocated when they are first touched. Returns the mapping and the descriptor to hand to a peer.
    ///
    /// # Errors
    /// What the kernel says. `FBIG` if the process may not make files of this size (`ulimit -f`).
    pub fn create(label: &str, bytes: usize) -> io::Result<(Shared, Descriptor)> {
        let fd = make_file(label, bytes)?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok((Shared::map(&fd, bytes, ProtFlags::READ | ProtFlags::WRITE)?, fd))
    }

    /// As [`Shared::create`], but nobody else can map the memory for writing, or write to it by a call.
    pub(crate) fn create_read_only(label: &str, bytes: usize) -> io::Result<(Shared, Descriptor)> {
        let (shared, fd) = Shared::create_to_seal(label, bytes)?;
        Shared::seal_for_good(&fd)?;
        Ok((shared, fd))
    }

    /// As [`Shared::create`], to be sealed further by [`Shared::seal_for_good`].
    pub(crate) fn create_to_seal(label: &str, bytes: usize) -> io::Result<(Shared, Descriptor)> {
        let fd = make_file(label, bytes)?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW)?;
        Ok((Shared::map(&fd, bytes, ProtFlags::READ | ProtFlags::WRITE)?, fd))
    }

    /// From now on nobody can map the memory for writing, except where that was done before, or punch holes into it.
    pub(crate) fn seal_for_good(fd: impl AsFd) -> io::Result<()> {
        Ok(rustix::fs::fcntl_add_seals(fd, SealFlags::FUTURE_WRITE | SealFlags::SEAL)?)
    }

    /// Maps memory of [`Shared::create_read_only`] for reading. A store there kills the process.
    pub(crate) fn open_to_read(fd: impl AsFd, bytes: usize) -> Result<Shared, OpenError> {
        check_file(&fd, bytes, SealFlags::SHRINK | SealFlags::FUTURE_WRITE)?;
        Ok(Shared::map(&fd, bytes, ProtFlags::READ)?)
    }

    /// Maps memory that a peer sent, if it is sealed and has exactly the announced size.
    pub fn open(fd: impl AsFd, bytes: usize) -> Result<Shared, OpenError> {
        check_file(&fd, bytes, SealFlags::SHRINK)?;
        Ok(Shared::map(&fd, bytes, ProtFlags::READ | ProtFlags::WRITE)?)
    }

    /// Gives the pages of a range back to the kernel, for every process that maps them. They read as zero afterwards.
    ///
    /// The caller must own everything in the range, as for a store: what a peer writes there at the same time is lost.
    pub(crate) fn give_back(&self, offset: usize, bytes: usize) -> io::Result<()> {
        let end = offset.checked_add(bytes).ok_or(io::ErrorKind::InvalidInput)?;
        if end > self.bytes {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: the range is inside this mapping (checked above). MADV_REMOVE frees the pages and leaves the mapping as it is.
        // To readers it is a store of zeros, for which the caller answers.
        unsafe { rustix::mm::madvise(self.base.as_ptr().add(offset).cast(), bytes, Advice::LinuxRemove)? };
        Ok(())
    }

    /// Replaces the mapping by a private copy at the same addresses, from `done` on, in pieces; `done` counts the bytes. Other processes
    /// that have mapped the memory keep the old bytes, and see none that this one stores later. Bytes that others store during the
    /// copying are in the copy or are not. With the memory's `file`, each copied piece is given back to the kernel except the first `kept`
    /// bytes, so one piece of free memory is enough.
    ///
    /// # Errors
    /// If there is no memory for a piece. The next call continues there.
    pub(crate) fn become_private(&self, done: &mut usize, file: Option<BorrowedFd<'_>>, kept: usize) -> io::Result<()> {
        /// Each piece becomes a mapping of its own, and a process may have 65,530 mappings.
        const PIECES_MOST: usize = 256;
        const PIECE_LEAST: usize = 16 << 20;
        let page = rustix::param::page_size();
        let piece = self.bytes.div_ceil(PIECES_MOST).next_multiple_of(page).max(PIECE_LEAST);
        let _registry = registry();
        while *done < self.bytes {
            let len = piece.min(self.bytes - *done);
            self.exchange(*done, len)?;
            if let Some(file) = file {
                let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                // An error is ignored: then the old bytes only take memory.
                let from = (*done).max(kept);
                let _ = rustix::fs::fallocate(file, punch, from as u64, (*done + len).saturating_sub(from) as u64);
            }
            *done += len;
        }
        Ok(())
    }

    /// Replaces whole pages of the mapping by a copy.
    fn exchange(&self, at: usize, len: usize) -> io::Result<()> {
        /// Bytes copied at a time. A step of zeros is not stored, so it takes no memory.
        const STEP: usize = 4096;
        let (rights, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a new mapping at an address that the kernel chooses overlaps nothing.
        let copy = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, rights, flags)? };
        // SAFETY: the range is the mapping just made. Like the mapping that it replaces, it is kept out of forked children.
        let _ = unsafe { rustix::mm::madvise(copy, len, Advice::LinuxDontFork) };
        let mut step = [0; STEP];
        for from in (0..len).step_by(STEP) {
            let bytes = STEP.min(len - from);
            // SAFETY: the step lies within both mappings, because the caller's piece lies within this one. The copy is this thread's alone
            // until it is moved.
            unsafe {
                crate::foreign::copy(self.base.as_ptr().add(at + from), step.as_mut_ptr(), bytes);
                if step[..bytes].iter().any(|byte| *byte != 0) {
                    copy.cast::<u8>().add(from).copy_from_nonoverlapping(step.as_ptr(), bytes);
                }
            }
        }
        // SAFETY: both ranges are whole pages of mappings, the first one made here, the second one of this value's: it stays mapped at the
        // same address, readable and writable, so that pointers into it stay good.
        let moved = unsafe { mremap_fixed(copy, len, len, MremapFlags::MAYMOVE, self.base.as_ptr().add(at).cast()) };
        if let Err(error) = moved {
            // SAFETY: it was not moved, and nobody knows of it.
            let _ = unsafe { rustix::mm::munmap(copy, len) };
            return Err(error.into());
        }
        Ok(())
    }

    /// Bytes mapped.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether this is a forked child, where the mapping does not exist.
    pub(crate) fn is_left_behind(&self) -> bool {
        self.life.is_over()
    }

    /// First byte. Page aligned.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    fn map(fd: impl AsFd, bytes: usize, rights: ProtFlags) -> io::Result<Shared> {
        let life = Life::current();
        let mut registry = registry();
        // SAFETY: a new mapping at an address that the kernel chooses overlaps nothing. All callers have seen that the memfd has
        // `bytes` and is sealed against shrinking, so no access inside the mapping is beyond the end of the memfd.
        let base = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), bytes, rights, MapFlags::SHARED | MapFlags::NORESERVE, fd, 0)?
        };
        // SAFETY: the range is the mapping just made. DONTFORK only keeps it out of forked children. Every kernel knows it.
        unsafe { rustix::mm::madvise(base, bytes, Advice::LinuxDontFork)? };
        let first = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        registry.add_mapping(base, bytes);
        Ok(Shared { base: first, bytes, life })
    }
}

/// A memfd of `bytes` zeros, not sealed yet.
fn make_file(label: &str, bytes: usize) -> io::Result<Descriptor> {
    // The kernel would send SIGXFSZ to a thread that sizes the memfd beyond the limit, and that ends the process.
    if getrlimit(Resource::Fsize).current.is_some_and(|most| bytes as u64 > most) {
        return Err(Errno::FBIG.into());
    }
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = Descriptor::make_memfd(|| rustix::fs::memfd_create(label, flags))?;
    rustix::fs::ftruncate(&fd, bytes as u64)?;
    Ok(fd)
}

/// Checks that a peer's descriptor is memory of this size with these seals.
fn check_file(fd: impl AsFd, bytes: usize, seals: SealFlags) -> Result<(), OpenError> {
    let has = rustix::fs::fcntl_get_seals(&fd).map_err(|_| OpenError::NotSealed)?;
    if !has.contains(seals) {
        return Err(OpenError::NotSealed);
    }
    // A sealed memfd is of tmpfs or of hugetlbfs. A huge page that the machine does not have is a SIGBUS when touched.
    if rustix::fs::fstatfs(&fd).map_err(io::Error::from)?.f_type as u64 & 0xffff_ffff != TMPFS_MAGIC {
        return Err(OpenError::NotOrdinary);
    }
    let have = rustix::fs::fstat(&fd).map_err(io::Error::from)?.st_size as u64;
    if have != bytes as u64 {
        return Err(OpenError::Size { want: bytes as u64, have });
    }
    Ok(())
}

/// Checks that this process can get that much more address space. It is given back at once, so another thread can take it before the caller
/// does.
///
/// # Errors
/// What the kernel says: `ENOMEM` at a limit (`ulimit -v`).
pub fn has_address_space(bytes: usize) -> io::Result<()> {
    // SAFETY: a new mapping at an address that the kernel chooses overlaps nothing.
    let base = unsafe {
        rustix::mm::mmap_anonymous(
            std::ptr::null_mut(),
            bytes,
            ProtFlags::empty(),
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        )?
    };
    // SAFETY: the range is the mapping just made, and nobody else knows of it.
    unsafe { rustix::mm::munmap(base, bytes)? };
    Ok(())
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.life.is_over() {
            return; // it was not inherited, and what is in its place may be somebody else's
        }
        let mut registry = registry();
        registry.remove_mapping(self.base.as_ptr().cast());
        // SAFETY: this value owns the mapping, and all borrows of it have ended. It is unmapped once: the life is not over, so
        // `registry` has not filled its place. An error could only mean that it was not mapped.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn made_memory_opens_with_its_size_only() {
        let (mine, fd) = Shared::create("weft-test", 8192).expect("memfd");
        let again = Shared::open(fd.as_fd().try_clone_to_owned().expect("dup"), 8192).expect("sealed and of that size");
        assert_eq!(again.bytes(), mine.bytes());
        assert!(matches!(Shared::open(fd, 4096), Err(OpenError::Size { want: 4096, have: 8192 })));
    }

    #[test]
    fn there_is_address_space_for_a_page_and_not_for_everything() {
        assert!(has_address_space(4096).is_ok());
        assert_eq!(has_address_space(isize::MAX as usize).err().and_then(|e| e.raw_os_error()), Some(12), "ENOMEM");
    }

    #[test]
    fn memory_that_can_shrink_is_refused() {
        let fd = rustix::fs::memfd_create("weft-test", MemfdFlags::ALLOW_SEALING).expect("memfd");
        rustix::fs::ftruncate(&fd, 4096).expect("truncate");
        assert!(matches!(Shared::open(fd, 4096), Err(OpenError::NotSealed)));
        let (pipe, _writer) = rustix::pipe::pipe().expect("pipe");
        assert!(matches!(Shared::open(pipe, 4096), Err(OpenError::NotSealed)));
    }

    #[test]
    fn memory_of_huge_pages_is_refused() {
        let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
        let Ok(fd) = rustix::fs::memfd_create("weft-test", flags) else {
            return eprintln!("LEFT OUT: this kernel makes no memory of huge pages");
        };
        rustix::fs::ftruncate(&fd, 2 << 20).expect("truncate");
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK).expect("seal");
        assert!(matches!(Shared::open(fd, 2 << 20), Err(OpenError::NotOrdinary)));
    }

    #[test]
    fn given_back_pages_read_as_zero_and_a_range_outside_is_refused() {
        let (mine, _fd) = Shared::create("weft-test", 8192).expect("memfd");
        let p = mine.base();
        // SAFETY: offset 4096 is inside the 8192 bytes mapped, and nobody else has the memory.
        unsafe { p.as_ptr().add(4096).write_volatile(7) };
        mine.give_back(4096, 4096).expect("give back");
        // SAFETY: as above.
        assert_eq!(unsafe { p.as_ptr().add(4096).read_volatile() }, 0);
        assert!(mine.give_back(4096, 8192).is_err());
        assert!(mine.give_back(usize::MAX, 2).is_err());
    }
}
