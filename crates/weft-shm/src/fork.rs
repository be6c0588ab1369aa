//! Forked children: what belongs to the process that made it, and is nobody's in its children.
//!
//! A forked child has a copy of the memory, shares the descriptors, and has only the thread that forked. What weft has there is of
//! no use and does harm: descriptors keep sockets open after their owner's death, so nobody hears of it; rings would have two
//! writers; a lock may be held, and a value be half changed, by a thread that is not there. So in the child
//!
//! - each [`Life`] that began before is over, which every call of weft asks first: a look at a word on a page that the kernel
//!   wipes in children (MADV_WIPEONFORK), so that it holds also for children that the C library knows nothing of (`clone`, `_Fork`);
//! - descriptors ([`Descriptor`]) are closed before `fork` returns (pthread_atfork), or by the first call where that was not to be had;
//!   who still uses one is told EBADF, and closing it does nothing, for its number may be somebody else's;
//! - shared memory is not inherited (MADV_DONTFORK); where it was lies private memory of zeros, in case that a handler forked
//!   and returns in the child to a poll that goes on, or nothing where that was not to be had;
//! - values that were under change are not dropped but left ([`Own`]).
//!
//! Descriptors and mappings are made and given back while no other thread can fork, so none is forgotten.

use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::cell::UnsafeCell;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

const PAGE: usize = 4096;

/// The process is another one than that in which weft was opened.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{}", weft_wire::FORKED)]
pub struct Forked;

weft_wire::debug_says_display!(Forked);

/// From when a process begins to use weft to its end; in a forked child it is over.
#[derive(Clone, Copy, Debug)]
pub struct Life(&'static AtomicBool);

impl Life {
    /// The present process's.
    pub fn current() -> Life {
        // Acquire: pairs with the release in `begin`.
        let word = CURRENT.load(Ordering::Acquire);
        // SAFETY: it is null, or `begin` stored it, and that word is never given back.
        match unsafe { word.as_ref() } {
            Some(word) if word.load(Ordering::Relaxed) => Life(word),
            _ => Life::begin(),
        }
    }

    /// One that is over, in every process: for who asks a life anyway and is to be told no.
    pub fn over() -> Life {
        Life(&OVER)
    }

    /// Whether this is a forked child of the process that it was begun in.
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
        // In a child that the C library did not make there is something to leave.
        registry.leave();
        registry.watch_for_forks();
        let word = new_word();
        word.store(true, Ordering::Relaxed);
        CURRENT.store(std::ptr::from_ref(word).cast_mut(), Ordering::Release);
        Life(word)
    }

    /// Leaves what the parent had if that was not done when the child was made.
    #[cold]
    fn end(self) -> Forked {
        if std::ptr::eq(CURRENT.load(Ordering::Relaxed), self.0) {
            // A thread that is not here may have had it at that moment. Then the descriptors stay.
            if let Ok(mut registry) = REGISTRY.try_lock() {
                registry.leave();
            }
        }
        Forked
    }
}

/// A word that says whether this life goes on: of a page that the kernel wipes in children.
fn new_word() -> &'static AtomicBool {
    match wiped_page() {
        // SAFETY: the page is never given back, and is used as nothing else. It is of zeros, which are `false`, as in children.
        Some(page) => unsafe { AtomicBool::from_ptr(page.cast()) },
        // Then `in_the_child` alone tells.
        None => Box::leak(Box::new(AtomicBool::new(false))),
    }
}

/// The word of the latest life, in which a child is until it begins its own.
static CURRENT: AtomicPtr<AtomicBool> = AtomicPtr::new(std::ptr::null_mut());

/// The word of a life that never was.
static OVER: AtomicBool = AtomicBool::new(false);

/// A value of the process that made it. In forked children it is not dropped: it may have been under change by a thread that is
/// not there.
#[derive(Debug)]
pub struct Own<T> {
    life: Life,
    value: ManuallyDrop<T>,
}

impl<T> Own<T> {
    /// This process's.
    pub fn new(value: T) -> Own<T> {
        Own { life: Life::current(), value: ManuallyDrop::new(value) }
    }

    /// That of the process that made it.
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
            // SAFETY: this is the only place that drops the value, and nobody uses it behind `drop`.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

/// A descriptor of the process that made it, closed in forked children.
#[derive(Debug)]
pub struct Descriptor {
    life: Life,
    fd: ManuallyDrop<OwnedFd>,
}

impl Descriptor {
    /// Takes what `open` gives, while no other thread can fork. `open` makes no other descriptor or mapping of weft.
    ///
    /// # Errors
    /// Those of `open`.
    pub fn make<E>(open: impl FnOnce() -> Result<OwnedFd, E>) -> Result<Descriptor, E> {
        let life = Life::current();
        let mut registry = registry();
        Ok(registry.add(life, open()?))
    }

    /// The same of several, with something else that `open` has to say.
    pub fn make_several<R>(open: impl FnOnce() -> (R, Vec<OwnedFd>)) -> (R, Vec<Descriptor>) {
        let life = Life::current();
        let mut registry = registry();
        let (result, fds) = open();
        (result, fds.into_iter().map(|fd| registry.add(life, fd)).collect())
    }

    /// Takes the descriptor out of weft's hands, for a close that may take long: no other thread may fork or make a descriptor while
    /// one is dropped here. A child that is forked before the close keeps a copy. `None` in a forked child.
    pub fn release(self) -> Option<OwnedFd> {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: taken once, here, and not used behind it: `this` is not dropped.
        let fd = unsafe { ManuallyDrop::take(&mut this.fd) };
        if this.life.is_over() {
            // It is closed, or `Life::begin` will see to it.
            let _ = fd.into_raw_fd();
            return None;
        }
        registry().descriptors.remove(&fd.as_raw_fd());
        Some(fd)
    }
}

impl AsFd for Descriptor {
    /// In a forked child one that is none: the kernel says EBADF.
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
        // SAFETY: this is the only place that takes the value, and nobody uses it behind `drop`.
        let fd = unsafe { ManuallyDrop::take(&mut self.fd) };
        if self.life.is_over() {
            // It is closed, or `Life::begin` will see to it.
            let _ = fd.into_raw_fd();
            return;
        }
        let mut registry = registry();
        registry.descriptors.remove(&fd.as_raw_fd());
        // Still while nobody forks.
        drop(fd);
    }
}

/// Runs something that makes and closes descriptors, while no other thread can fork. It makes no descriptor or mapping of weft that
/// stays.
pub fn without_forks<R>(run: impl FnOnce() -> R) -> R {
    let _registry = registry();
    run()
}

/// What is not for children.
#[derive(Debug)]
pub(crate) struct Registry {
    is_watching: bool,
    /// With what the kernel said of them: a number that the program closed behind our back may be another one's by now.
    descriptors: BTreeMap<RawFd, Option<File>>,
    /// Bytes by first byte.
    mappings: BTreeMap<usize, usize>,
}

impl Registry {
    fn add(&mut self, life: Life, fd: OwnedFd) -> Descriptor {
        self.descriptors.insert(fd.as_raw_fd(), File::of(&fd));
        Descriptor { life, fd: ManuallyDrop::new(fd) }
    }

    pub fn add_mapping(&mut self, base: *mut c_void, bytes: usize) {
        self.mappings.insert(base as usize, bytes);
    }

    pub fn remove_mapping(&mut self, base: *mut c_void) {
        self.mappings.remove(&(base as usize));
    }

    /// Sees to it that forks are seen.
    fn watch_for_forks(&mut self) {
        if std::mem::replace(&mut self.is_watching, true) {
            return;
        }
        // SAFETY: the three functions have the types that POSIX says, do not unwind, and live as long as this code: the C library
        // forgets them when it unloads the code. The call fails only for want of memory; then the first call in a child sees.
        unsafe { pthread_atfork(Some(before_fork), Some(after_fork), Some(in_the_child)) };
    }

    /// In a child: closes the parent's descriptors, and puts memory where it had shared memory.
    fn leave(&mut self) {
        for (&fd, &known) in &self.descriptors {
            leave_descriptor(fd, known);
        }
        for (&base, &bytes) in &self.mappings {
            fill(base as *mut c_void, bytes);
        }
        // Given back to nobody: this may be the moment after a fork.
        std::mem::forget(std::mem::take(&mut self.descriptors));
        std::mem::forget(std::mem::take(&mut self.mappings));
    }
}

/// What a descriptor leads to: a device, and a number there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct File {
    device: u64,
    inode: u64,
}

impl File {
    fn of(fd: impl AsFd) -> Option<File> {
        let stat = rustix::fs::fstat(fd).ok()?;
        Some(File { device: stat.st_dev, inode: stat.st_ino })
    }
}

/// Closes a descriptor if it is still what was known of it.
fn leave_descriptor(fd: RawFd, known: Option<File>) {
    // SAFETY: the borrow lasts for one call that only asks what the number is. If it is closed, the kernel says so.
    let now = File::of(unsafe { BorrowedFd::borrow_raw(fd) });
    if now.is_some() && now == known {
        // SAFETY: the number is open, and still that of the `Descriptor` that was entered here. Its life is over, so it does not close
        // the number itself, and it lends another one.
        drop(unsafe { OwnedFd::from_raw_fd(fd) });
    }
}

/// Puts private memory of zeros where nothing is.
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

/// Nobody forks while this is held.
pub(crate) fn registry() -> MutexGuard<'static, Registry> {
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

static REGISTRY: Mutex<Registry> =
    Mutex::new(Registry { is_watching: false, descriptors: BTreeMap::new(), mappings: BTreeMap::new() });

/// A page of zeros that is of zeros again in children.
fn wiped_page() -> Option<*mut c_void> {
    let (rights, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: a new mapping at an address that the kernel chooses overlaps nothing.
    let page = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), PAGE, rights, flags) }.ok()?;
    // SAFETY: the range is the mapping just made, and this changes only what children see. Where the kernel does not know it,
    // `in_the_child` clears the word.
    let _ = unsafe { rustix::mm::madvise(page, PAGE, Advice::LinuxWipeOnFork) };
    Some(page)
}

/// What the forking thread holds from before a fork until after it.
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
        word.store(false, Ordering::Relaxed); // as the kernel has done if it could
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
}
