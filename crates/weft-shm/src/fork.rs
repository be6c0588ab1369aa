//! Forked children: resources that belong to the process that made them, and must not be used in its children.
//!
//! A forked child has a copy of the memory, shares the descriptors, and has only the thread that forked. weft's resources are useless
//! there and do harm: descriptors keep sockets open after their owner's death, so nobody sees that death; rings would have two
//! writers; a lock may be held, and a value be half changed, by a thread that does not exist in the child. So in the child
//!
//! - each [`Life`] that began before is over. Every call of weft checks that first, by a word on a page that the kernel wipes in
//!   children (MADV_WIPEONFORK), so it also works in children that the C library does not know of (`clone`, `_Fork`);
//! - descriptors ([`Descriptor`]) are closed before `fork` returns (pthread_atfork), or by the first call if that cannot be had.
//!   Using one gives EBADF, and dropping it closes nothing, because its number may be somebody else's;
//! - shared memory is not inherited (MADV_DONTFORK). Private memory of zeros takes its place, in case a handler forked and the child
//!   returns from it into a poll that goes on; nothing takes its place if that cannot be had;
//! - values that may be half changed are not dropped but left ([`Own`]).
//!
//! Descriptors and mappings are made and given back while no other thread can fork, so none is forgotten.
//!
//! # Programs that close descriptors by number
//!
//! A program can close every descriptor it finds, as daemons do, and its next files get the numbers. Then weft would write into the
//! program's log, or close it. So each descriptor is marked in the kernel when it is made (`MARK`), and [`Descriptor::is_ours`] asks
//! whether the mark is still there. Code that closes a descriptor or writes to one asks first.

use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::time::{clock_gettime, ClockId};
use std::cell::UnsafeCell;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

const PAGE: usize = 4096;

/// The mark: the signal that a file would send if `O_ASYNC` were set on it, which weft never does. Other files have 0, or a signal that
/// their program handles. The kernel keeps this signal with the open file, whatever kind of file it is, so it tells our files from the
/// program's where nothing else does: all eventfds, epoll sets and timers have the same device and inode. The number is SIGWINCH's, which
/// is ignored where nobody handles it.
const MARK: c_int = 28;

/// Commands of fcntl(2): set and get that signal. The same numbers on all architectures that weft builds for.
const F_SETSIG: c_int = 10;
const F_GETSIG: c_int = 11;

/// The process is another one than that in which weft was opened.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{}", weft_wire::FORKED)]
pub struct Forked;

weft_wire::debug_says_display!(Forked);

/// The time from a process's first use of weft to its end. In a forked child it is over.
#[derive(Clone, Copy, Debug)]
pub struct Life(&'static AtomicBool);

impl Life {
    /// The life of this process.
    pub fn current() -> Life {
        // Acquire: pairs with the release in `begin`.
        let word = CURRENT.load(Ordering::Acquire);
        // SAFETY: it is null, or `begin` stored it, and that word is never given back.
        match unsafe { word.as_ref() } {
            Some(word) if word.load(Ordering::Relaxed) => Life(word),
            _ => Life::begin(),
        }
    }

    /// A life that is over in every process, for values that check a life and must refuse.
    pub fn over() -> Life {
        Life(&OVER)
    }

    /// Whether this is a forked child of the process in which the life began.
    #[inline(always)]
    pub fn is_over(self) -> bool {
        // Relaxed: it changes in a child, which has one thread.
        !self.0.load(Ordering::Relaxed)
    }

    /// An error if it is over.
    ///
    /// # Errors
    /// [`Forked`].
    #[inline(always)]
    pub fn check(self) -> Result<(), Forked> {
        match self.is_over() {
            false => Ok(()),
            true => Err(self.end()),
        }
    }

    #[cold]
    fn begin() -> Life {
        let mut registry = registry();
        // SAFETY: as in `current`.
        if let Some(word) = unsafe { CURRENT.load(Ordering::Acquire).as_ref() } {
            if word.load(Ordering::Relaxed) {
                return Life(word); // another thread was faster
            }
        }
        // In a child that the C library did not make, nobody has done this yet.
        registry.leave();
        registry.watch_for_forks();
        let word = new_word();
        word.store(true, Ordering::Relaxed);
        CURRENT.store(std::ptr::from_ref(word).cast_mut(), Ordering::Release);
        Life(word)
    }

    /// Leaves the parent's descriptors and mappings if that was not done when the child was made.
    #[cold]
    fn end(self) -> Forked {
        if std::ptr::eq(CURRENT.load(Ordering::Relaxed), self.0) {
            // A thread of the parent may have held the lock when the child was made. Then the descriptors stay open.
            if let Ok(mut registry) = REGISTRY.try_lock() {
                registry.leave();
            }
        }
        Forked
    }
}

/// A word that says whether this life goes on, on a page that the kernel wipes in children.
fn new_word() -> &'static AtomicBool {
    match wiped_page() {
        // SAFETY: the page is never given back, and is used for nothing else. It holds zeros, which are `false`, in children too.
        Some(page) => unsafe { AtomicBool::from_ptr(page.cast()) },
        // Then only `in_the_child` clears it.
        None => Box::leak(Box::new(AtomicBool::new(false))),
    }
}

/// The word of the latest life. In a child it is the parent's until the child begins its own.
static CURRENT: AtomicPtr<AtomicBool> = AtomicPtr::new(std::ptr::null_mut());

/// The word of a life that never was.
static OVER: AtomicBool = AtomicBool::new(false);

/// A value of the process that made it. In forked children it is not dropped: a thread that does not exist there may have been
/// changing it.
#[derive(Debug)]
pub struct Own<T> {
    life: Life,
    value: ManuallyDrop<T>,
}

impl<T> Own<T> {
    /// A value of this process.
    pub fn new(value: T) -> Own<T> {
        Own { life: Life::current(), value: ManuallyDrop::new(value) }
    }

    /// The life of the process that made it.
    pub fn life(&self) -> Life {
        self.life
    }
}

impl<T> Deref for Own<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Own<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T> Drop for Own<T> {
    fn drop(&mut self) {
        if !self.life.is_over() {
            // SAFETY: this is the only place that drops the value, and nobody uses it after `drop`.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

/// A descriptor of the process that made it, closed in forked children.
#[derive(Debug)]
pub struct Descriptor {
    life: Life,
    fd: ManuallyDrop<OwnedFd>,
    /// Tells it from descriptors of ours that had this number before, or get it after the program closed this one.
    serial: u32,
    /// Whether it has the mark.
    is_marked: bool,
    /// When it was last found to be ours (by [`now`]), or 0.
    seen: AtomicU32,
}

impl Descriptor {
    /// Takes the descriptor that `open` returns, while no other thread can fork. `open` must make no other descriptor or mapping of weft.
    ///
    /// # Errors
    /// Those of `open`.
    pub fn make<E>(open: impl FnOnce() -> Result<OwnedFd, E>) -> Result<Descriptor, E> {
        let life = Life::current();
        let mut registry = registry();
        Ok(registry.add(life, open()?))
    }

    /// As [`Descriptor::make`], for a memfd. A peer that is given a memfd shares its open file, and could remove our mark; then we would
    /// never close it. But each memfd has an inode number of its own, which stays, so it is known by that.
    ///
    /// # Errors
    /// Those of `open`.
    pub fn make_memfd<E>(open: impl FnOnce() -> Result<OwnedFd, E>) -> Result<Descriptor, E> {
        let life = Life::current();
        let mut registry = registry();
        let fd = open()?;
        let known = Known::number(fd.as_fd());
        Ok(registry.enter(life, fd, known))
    }

    /// As [`Descriptor::make`], for several descriptors, with a result of `open` besides.
    pub fn make_several<R>(open: impl FnOnce() -> (R, Vec<OwnedFd>)) -> (R, Vec<Descriptor>) {
        let life = Life::current();
        let mut registry = registry();
        let (result, fds) = open();
        (result, fds.into_iter().map(|fd| registry.add(life, fd)).collect())
    }

    /// Takes the descriptor out of weft's care, for a close that may take long: while a [`Descriptor`] is dropped no other thread can fork
    /// or make one. A child that is forked before the close keeps a copy. `None` in a forked child, and if the program closed the number.
    pub fn release(self) -> Option<OwnedFd> {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: taken once, here, and not used afterwards: `this` is not dropped.
        let fd = unsafe { ManuallyDrop::take(&mut this.fd) };
        if this.life.is_over() || !registry().remove(&fd, this.serial) {
            // In a child it is closed, or `Life::begin` will close it. Otherwise the program closed it, and the number is another file's.
            let _ = fd.into_raw_fd();
            return None;
        }
        Some(fd)
    }

    /// Asks the kernel whether the number still leads to what was opened. False in a forked child, and after the program closed the
    /// number behind our back.
    ///
    /// A system call, which does not block.
    pub fn is_ours(&self) -> bool {
        if self.life.is_over() {
            return false;
        }
        match REGISTRY.try_lock() {
            Ok(registry) => registry.has(&self.fd, self.serial),
            Err(TryLockError::Poisoned(registry)) => registry.into_inner().has(&self.fd, self.serial),
            // Another thread forks or opens something, and this call does not wait. If there are marks, the mark alone tells our files
            // from the program's.
            Err(TryLockError::WouldBlock) => {
                let has_none = !self.is_marked || CANNOT_MARK.load(Ordering::Relaxed);
                has_none || Known::Marked.is_still(self.fd.as_fd())
            }
        }
    }

    /// As [`Descriptor::is_ours`], but asks the kernel only once in each tick of its clock (1 to 4 ms); in between the last answer holds.
    /// For callers that cannot afford a system call each time.
    #[inline]
    pub fn is_ours_lately(&self) -> bool {
        // Relaxed: a time, which orders nothing.
        let now = now();
        self.seen.load(Ordering::Relaxed) == now || self.look(now)
    }

    /// The descriptor, to write to or to read from, if it [is ours](Descriptor::is_ours_lately). Otherwise an invalid one, for which the
    /// kernel says EBADF.
    #[inline]
    pub fn checked(&self) -> BorrowedFd<'_> {
        match self.is_ours_lately() {
            true => self.as_fd(),
            false => rustix::fs::CWD,
        }
    }

    #[cold]
    fn look(&self, now: u32) -> bool {
        let is_ours = self.is_ours();
        if is_ours {
            self.seen.store(now, Ordering::Relaxed);
        }
        is_ours
    }
}

/// A time that changes with each tick of the kernel's clock, never 0. Read without a system call.
#[inline]
fn now() -> u32 {
    let now = clock_gettime(ClockId::MonotonicCoarse);
    // Milliseconds, wrapping around. A tick has at least one.
    (now.tv_sec as u32).wrapping_mul(1000).wrapping_add(now.tv_nsec as u32 / 1_000_000).max(1)
}

impl AsFd for Descriptor {
    /// In a forked child this is an invalid descriptor: the kernel says EBADF.
    #[inline(always)]
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self.life.is_over() {
            false => self.fd.as_fd(),
            true => rustix::fs::CWD,
        }
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: nobody uses the value after `drop`, and `release`, the other place that takes it, does not run `drop`.
        let fd = unsafe { ManuallyDrop::take(&mut self.fd) };
        if self.life.is_over() {
            // It is closed already, or `Life::begin` will close it.
            let _ = fd.into_raw_fd();
            return;
        }
        let mut registry = registry();
        // Closed while `registry` is held, so that no child gets a copy.
        match registry.remove(&fd, self.serial) {
            true => drop(fd),
            // The program closed it, and the number is another file's by now.
            false => _ = fd.into_raw_fd(),
        }
    }
}

/// Runs `run`, which may open and close descriptors, while no other thread can fork. It must leave no descriptor or mapping of weft
/// behind.
pub fn without_forks<R>(run: impl FnOnce() -> R) -> R {
    let _registry = registry();
    run()
}

/// The descriptors and mappings of this process, which children must leave.
#[derive(Debug)]
pub(crate) struct Registry {
    is_watching: bool,
    descriptors: BTreeMap<RawFd, Entry>,
    /// The serial number of the last descriptor.
    last: u32,
    /// The length of each mapping, by its address.
    mappings: BTreeMap<usize, usize>,
}

impl Registry {
    fn add(&mut self, life: Life, fd: OwnedFd) -> Descriptor {
        let known = Known::mark(&fd);
        self.enter(life, fd, known)
    }

    fn enter(&mut self, life: Life, fd: OwnedFd, known: Known) -> Descriptor {
        self.last = self.last.wrapping_add(1);
        // If the number had an entry, the program closed that descriptor behind our back.
        self.descriptors.insert(fd.as_raw_fd(), Entry { serial: self.last, known });
        let is_marked = matches!(known, Known::Marked);
        Descriptor { life, fd: ManuallyDrop::new(fd), serial: self.last, is_marked, seen: AtomicU32::new(0) }
    }

    /// Whether the number still belongs to this descriptor.
    fn has(&self, fd: &OwnedFd, serial: u32) -> bool {
        self.descriptors
            .get(&fd.as_raw_fd())
            .is_some_and(|entry| entry.serial == serial && entry.known.is_still(fd.as_fd()))
    }

    /// Forgets a descriptor. True if its number is still its own: then the caller closes it.
    fn remove(&mut self, fd: &OwnedFd, serial: u32) -> bool {
        let is_ours = self.has(fd, serial);
        if self.descriptors.get(&fd.as_raw_fd()).is_some_and(|entry| entry.serial == serial) {
            self.descriptors.remove(&fd.as_raw_fd());
        }
        is_ours
    }

    pub fn add_mapping(&mut self, base: *mut c_void, bytes: usize) {
        self.mappings.insert(base as usize, bytes);
    }

    pub fn remove_mapping(&mut self, base: *mut c_void) {
        self.mappings.remove(&(base as usize));
    }

    /// Registers the functions that run at each fork.
    fn watch_for_forks(&mut self) {
        if std::mem::replace(&mut self.is_watching, true) {
            return;
        }
        // SAFETY: the three functions have the types that POSIX says, do not unwind, and live as long as this code: the C library
        // forgets them when it unloads the code. The call fails only for want of memory; then the first call in a child notices the fork.
        unsafe { pthread_atfork(Some(before_fork), Some(after_fork), Some(in_the_child)) };
    }

    /// In a child: closes the parent's descriptors, and puts private memory in the place of its shared memory.
    fn leave(&mut self) {
        for (&fd, entry) in &self.descriptors {
            leave_descriptor(fd, entry.known);
        }
        for (&base, &bytes) in &self.mappings {
            fill(base as *mut c_void, bytes);
        }
        // Leaked: right after a fork nothing should be given back to the allocator.
        std::mem::forget(std::mem::take(&mut self.descriptors));
        std::mem::forget(std::mem::take(&mut self.mappings));
    }
}

/// Whether the kernel refused a mark, as in a sandbox.
static CANNOT_MARK: AtomicBool = AtomicBool::new(false);

/// The registry's knowledge of a descriptor.
#[derive(Clone, Copy, Debug)]
struct Entry {
    serial: u32,
    known: Known,
}

/// By what a file of ours is recognised.
#[derive(Clone, Copy, Debug)]
enum Known {
    /// By the mark.
    Marked,
    /// By its device and inode: memfds, and all files where the kernel takes no marks.
    File { device: u64, inode: u64 },
    /// By nothing. It is never closed in children.
    Not,
}

impl Known {
    /// Marks a file; by its device and inode if the kernel takes no mark.
    fn mark(fd: impl AsFd) -> Known {
        if fcntl_signal(fd.as_fd(), F_SETSIG, MARK) == 0 && fcntl_signal(fd.as_fd(), F_GETSIG, 0) == MARK {
            return Known::Marked;
        }
        CANNOT_MARK.store(true, Ordering::Relaxed);
        Known::number(fd.as_fd())
    }

    /// By its device and inode.
    fn number(fd: BorrowedFd<'_>) -> Known {
        file(fd).map_or(Known::Not, |(device, inode)| Known::File { device, inode })
    }

    /// Whether a descriptor number still leads to the known file. One system call.
    fn is_still(self, fd: BorrowedFd<'_>) -> bool {
        match self {
            Known::Marked => fcntl_signal(fd, F_GETSIG, 0) == MARK,
            Known::File { device, inode } => file(fd) == Some((device, inode)),
            Known::Not => true,
        }
    }
}

fn file(fd: BorrowedFd<'_>) -> Option<(u64, u64)> {
    let stat = rustix::fs::fstat(fd).ok()?;
    Some((stat.st_dev, stat.st_ino))
}

/// Sets or gets the signal of a file. Negative if that fails.
fn fcntl_signal(fd: BorrowedFd<'_>, command: c_int, signal: c_int) -> c_int {
    // SAFETY: both commands take an integer or nothing, and access no memory. If the number is closed, the kernel says so.
    unsafe { fcntl(fd.as_raw_fd(), command, signal) }
}

/// Closes a descriptor if its number still leads to the known file.
fn leave_descriptor(fd: RawFd, known: Known) {
    // SAFETY: the borrow lasts for one call that only asks about the number. If it is closed, the kernel says so.
    let is_ours = known.is_still(unsafe { BorrowedFd::borrow_raw(fd) });
    if is_ours && !matches!(known, Known::Not) {
        // SAFETY: the number is open, and still that of the `Descriptor` that was entered here. Its life is over, so it does not close
        // the number itself, and it lends another one.
        drop(unsafe { OwnedFd::from_raw_fd(fd) });
    }
}

/// Maps private memory of zeros at an address where nothing is mapped.
fn fill(base: *mut c_void, bytes: usize) {
    let (rights, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
    // SAFETY: with this flag the new mapping replaces none. A kernel that does not know the flag may take another place.
    let got = unsafe { rustix::mm::mmap_anonymous(base, bytes, rights, flags | MapFlags::FIXED_NOREPLACE) };
    if let Ok(other) = got {
        if other != base {
            // SAFETY: the mapping was just made, and nobody has its address.
            let _ = unsafe { rustix::mm::munmap(other, bytes) };
        }
    }
}

/// Locks the registry. No other thread forks while this is held.
pub(crate) fn registry() -> MutexGuard<'static, Registry> {
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

static REGISTRY: Mutex<Registry> =
    Mutex::new(Registry { is_watching: false, descriptors: BTreeMap::new(), last: 0, mappings: BTreeMap::new() });

/// A page of zeros that the kernel zeroes again in children.
fn wiped_page() -> Option<*mut c_void> {
    let (rights, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: a new mapping at an address that the kernel chooses overlaps nothing.
    let page = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), PAGE, rights, flags) }.ok()?;
    // SAFETY: the range is the mapping just made, and this changes only what children see. Where the kernel does not know it,
    // `in_the_child` clears the word.
    let _ = unsafe { rustix::mm::madvise(page, PAGE, Advice::LinuxWipeOnFork) };
    Some(page)
}

/// The lock that the forking thread holds from before a fork until after it.
struct Held(UnsafeCell<Option<MutexGuard<'static, Registry>>>);

// SAFETY: only a thread that holds the registry's lock uses it.
unsafe impl Sync for Held {}

static HELD: Held = Held(UnsafeCell::new(None));

extern "C" fn before_fork() {
    let registry = registry();
    // SAFETY: this thread holds the lock.
    unsafe { *HELD.0.get() = Some(registry) };
}

extern "C" fn after_fork() {
    // SAFETY: this thread has held the lock since `before_fork`.
    drop(unsafe { (*HELD.0.get()).take() });
}

extern "C" fn in_the_child() {
    // SAFETY: this thread, the child's only one, has held the lock since `before_fork`.
    let registry = unsafe { (*HELD.0.get()).take() };
    // SAFETY: as in `Life::current`.
    if let Some(word) = unsafe { CURRENT.load(Ordering::Relaxed).as_ref() } {
        word.store(false, Ordering::Relaxed); // the kernel did so already where it can
    }
    if let Some(mut registry) = registry {
        registry.leave();
    }
}

extern "C" {
    /// POSIX; in every C library of Linux, with which the standard library is linked anyway.
    fn pthread_atfork(
        prepare: Option<extern "C" fn()>,
        parent: Option<extern "C" fn()>,
        child: Option<extern "C" fn()>,
    ) -> c_int;

    /// POSIX.
    fn fcntl(fd: c_int, command: c_int, ...) -> c_int;
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_memfd_is_closed_although_a_peer_removed_its_mark() {
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let given = Descriptor::make_memfd(|| rustix::fs::memfd_create("weft-test", flags)).expect("a memfd");
        // A peer's descriptor has the same open file.
        let peers = rustix::io::dup(&given).expect("a copy");
        assert_eq!(fcntl_signal(peers.as_fd(), F_SETSIG, 0), 0);
        assert!(given.is_ours());
        let number = given.as_fd().as_raw_fd();
        drop(given);
        // SAFETY: the borrow lasts for one call that only asks about the number. If it is closed, the kernel says so.
        let now = file(unsafe { BorrowedFd::borrow_raw(number) });
        assert_ne!(now, file(peers.as_fd()), "it is still open");
    }
}
