//! Direct access: a process maps memory that another one made, and reads and writes it by its own loads and stores until the owner
//! withdraws it. Only for processes of the trusted class, which the kernel lets write each other's memory anyway.
//!
//! In front of the bytes the memfd has control lines, one for each offer that was taken up. A line has the owner's *generation*, and the
//! peer's *busy* word. The peer sets its busy word, checks that the generation is still that of the offer, accesses the bytes, and
//! clears the busy word. The owner changes the generation, issues the barrier, and waits until the busy word is clear. So the peer pays
//! two stores to a line of its own and no fence; see [`barrier`].
//!
//! Lines are reused. A peer that had a line before, and tries its mapping once more, must not clear the busy word of the line's present
//! peer. So a peer checks the generation before it sets busy, too. The owner may still change it between the two; then the two peers
//! use different words, because a line has `BUSY_WORDS` busy words, which its generations use in turn, and the line that has been free
//! for longest is reused first.
//!
//! A peer that stays busy was stopped or killed in the middle of an access. The owner cannot wait for it, so it replaces the shared bytes
//! by a copy; from then on only that peer writes to the shared ones. Before it copies, the owner sets a word in the first line and issues
//! the barrier. So a peer that finds this word clear at the end of an access knows that the access is in the copy, or came before the
//! withdrawal.
//!
//! A peer that no longer needs an offer says so in its busy word. The owner takes such lines back when it has no others.
//!
//! The peer gets the descriptor from the kernel by its number in the owner's process (pidfd_getfd(2)), for which the kernel asks what it
//! asks for a write to the owner's memory.

use crate::barrier;
use crate::fork::Descriptor;
use crate::lent::LentMut;
use crate::sys::Shared;
use crate::window::{read, update, write};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags};
use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use weft_wire::LINE;

/// Bytes of the control lines, in whole pages. Only pages that have offers are allocated.
pub(crate) const CONTROL: usize = 16 << 10;

/// The most offers of one memory at a time. The first line has none: see [`cut_word`].
const OFFERS_MOST: usize = CONTROL / LINE - 1;

/// Busy words of a line: all its words but the generation.
const BUSY_WORDS: usize = LINE / size_of::<AtomicU32>() - 1;

/// How long the owner waits for a peer that is busy.
const PATIENCE: Duration = Duration::from_millis(100);

/// The shortest time for which the owner looks at busy words. The barrier can miss a core (see [`barrier`]), but a store that was made
/// there before the barrier is visible within a few microseconds.
const SETTLING: Duration = Duration::from_micros(20);

/// The generation of no offer.
const CLOSED: u32 = 0;

/// In a busy word: the peer is within an access.
const BUSY: u32 = 1;
/// In a busy word: the peer will make no other access.
const LEFT: u32 = 2;

/// What a peer needs to map memory: numbers that lead to the owner's descriptor, and the part that it may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Offer {
    /// The owner's number of the descriptor.
    descriptor: u32,
    /// The control line.
    line: u32,
    generation: u32,
    /// The kernel's number of the memfd.
    file: u64,
    /// Bytes of the memfd.
    bytes: u64,
    /// The part, from the first byte behind the control lines.
    at: u64,
    len: u64,
}

impl Offer {
    /// The length of [`Offer::to_bytes`].
    pub const BYTES: usize = 44;

    /// As bytes, for a message.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Offer::BYTES] {
        let mut bytes = [0; Offer::BYTES];
        let Offer { descriptor, line, generation, file, bytes: all, at, len } = *self;
        let words = [descriptor, line, generation].into_iter().flat_map(u32::to_le_bytes);
        let wide = [file, all, at, len].into_iter().flat_map(u64::to_le_bytes);
        for (to, from) in bytes.iter_mut().zip(words.chain(wide)) {
            *to = from;
        }
        bytes
    }

    /// Reads an offer that came in a message. `None` if it has another length.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Offer> {
        let bytes: &[u8; Offer::BYTES] = bytes.try_into().ok()?;
        let number = |at: usize, len: usize| {
            bytes.iter().skip(at).take(len).rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
        };
        Some(Offer {
            descriptor: number(0, 4) as u32,
            line: number(4, 4) as u32,
            generation: number(8, 4) as u32,
            file: number(12, 8),
            bytes: number(20, 8),
            at: number(28, 8),
            len: number(36, 8),
        })
    }
}

/// An offer, as its owner knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ticket {
    line: u32,
    generation: u32,
}

impl From<Ticket> for u64 {
    fn from(ticket: Ticket) -> u64 {
        u64::from(ticket.generation) << 32 | u64::from(ticket.line)
    }
}

impl From<u64> for Ticket {
    fn from(ticket: u64) -> Ticket {
        Ticket { line: ticket as u32, generation: (ticket >> 32) as u32 }
    }
}

/// Memory that this process made and can offer.
#[derive(Debug)]
pub(crate) struct Offered {
    pub mapping: Shared,
    offers: Mutex<Offers>,
}

#[derive(Debug)]
struct Offers {
    /// `None`: the memory was exchanged for a copy, which nobody else can map.
    descriptor: Option<Descriptor>,
    file: u64,
    /// The generation of each line. An offer is current if it has its line's generation.
    generations: Vec<u32>,
    /// Lines without an offer, the one that has been free for longest first.
    free: VecDeque<u32>,
    /// Lines of offers that were let go. A peer may still be in the middle of an access there.
    resting: Vec<u32>,
}

impl Offered {
    /// Makes `bytes` of zeroed memory, and the control lines in front of it.
    pub fn create(label: &str, bytes: usize) -> io::Result<Offered> {
        let bytes = bytes.checked_add(CONTROL).ok_or(io::ErrorKind::OutOfMemory)?;
        let (mapping, descriptor) = Shared::create(label, bytes)?;
        let file = rustix::fs::fstat(&descriptor)?.st_ino;
        let (generations, free, resting) = Default::default();
        let offers = Offers { descriptor: Some(descriptor), file, generations, free, resting };
        Ok(Offered { mapping, offers: Mutex::new(offers) })
    }

    /// The first byte behind the control lines.
    pub fn base(&self) -> NonNull<u8> {
        // SAFETY: the mapping has the control lines and at least the byte behind them, by `create`.
        unsafe { self.mapping.base().add(CONTROL) }
    }

    /// `None` in a forked child: the lock may be held by a thread that does not exist there.
    fn lock(&self) -> Option<MutexGuard<'_, Offers>> {
        let is_here = !self.mapping.is_left_behind();
        is_here.then(|| self.offers.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Makes an offer of `len` bytes from `at`, which the caller found to be within the memory. `None` if there are too many offers, the
    /// kernel has no barrier, or the memory was exchanged.
    pub fn offer(&self, at: u64, len: u64) -> Option<(Ticket, Offer)> {
        let mut offers = self.lock()?;
        let descriptor = offers.descriptor.as_ref().filter(|descriptor| descriptor.is_ours())?;
        let descriptor = u32::try_from(descriptor.as_fd().as_raw_fd()).ok()?;
        let line = offers.free_line(self)?;
        let generation = offers.generations.get(line as usize).copied()?;
        let words = Line::of(&self.mapping, line);
        words.forget_left(generation);
        words.generation.store(generation, Ordering::Release);
        let (file, bytes) = (offers.file, self.mapping.bytes() as u64);
        Some((Ticket { line, generation }, Offer { descriptor, line, generation, file, bytes, at, len }))
    }

    /// Ends an offer whose peer is gone, without waiting. The peer can begin no access by it any more, but may be in the middle of one.
    pub fn let_go(&self, ticket: Ticket) {
        let Some(mut offers) = self.lock() else { return };
        if offers.end(&self.mapping, ticket) {
            offers.resting.push(ticket.line);
        }
    }

    /// Withdraws offers. When this returns, nobody reads or writes the memory by them, nor by those that were let go. Blocks for some
    /// microseconds, and up to 200 ms if a peer was stopped or killed in the middle of an access: then all offers of this memory are
    /// withdrawn, and this process has a copy from then on. Bytes that another thread of this process writes there during the copying may
    /// be lost.
    pub fn withdraw(&self, tickets: &[Ticket]) {
        let Some(mut offers) = self.lock() else { return };
        let mut lines: Vec<u32> = tickets.iter().filter(|t| offers.end(&self.mapping, **t)).map(|t| t.line).collect();
        // The resting lines, too: their offers were for the same memory.
        lines.append(&mut offers.resting);
        if lines.is_empty() {
            return;
        }
        if wait_until_idle(&self.mapping, &lines, PATIENCE) {
            offers.free.extend(lines);
            return;
        }
        // Nobody but the stopped peer is to write to the shared bytes once they are copied.
        for line in 0..offers.generations.len() as u32 {
            offers.bump(&self.mapping, line);
        }
        let busy = |line: &u32| Line::of(&self.mapping, *line).is_busy();
        let others: Vec<u32> =
            (0..offers.generations.len() as u32).filter(|line| !lines.contains(line) || !busy(line)).collect();
        cut_word(&self.mapping).store(1, Ordering::Release);
        // This issues the barrier. Behind it each peer sees the word, or has made its access.
        wait_until_idle(&self.mapping, &others, PATIENCE);
        // If the control lines are whole pages they stay shared with the peers, because the wait below looks at them.
        let mut copied = if CONTROL % rustix::param::page_size() == 0 { CONTROL } else { 0 };
        let file = offers.descriptor.as_ref().map(AsFd::as_fd);
        while self.mapping.become_private(&mut copied, file, CONTROL).is_err() {
            // There is no memory for a copy: wait for the peer, or try again.
            if wait_until_idle(&self.mapping, &lines, PATIENCE) {
                break;
            }
        }
        (offers.descriptor, offers.free, offers.resting, offers.generations) = Default::default();
    }

    /// Whether an offer is still open.
    pub fn is_offered(&self, ticket: Ticket) -> bool {
        self.lock().is_some_and(|offers| offers.is(ticket))
    }

    /// How many offers are open.
    pub fn offers(&self) -> usize {
        self.lock().map_or(0, |offers| offers.generations.len() - offers.free.len() - offers.resting.len())
    }
}

impl Offers {
    /// A line that has no offer and that no peer uses.
    fn free_line(&mut self, memory: &Offered) -> Option<u32> {
        if self.generations.len() < OFFERS_MOST {
            self.generations.push(CLOSED + 1);
            return Some(self.generations.len() as u32 - 1);
        }
        if let Some(line) = self.free.pop_front() {
            return Some(line);
        }
        self.take_back(&memory.mapping);
        if let Some(line) = self.free.pop_front() {
            return Some(line);
        }
        if self.resting.is_empty() || !barrier::heavy() {
            return None;
        }
        std::thread::sleep(SETTLING);
        let is_idle = |line: &u32| !Line::of(&memory.mapping, *line).is_busy();
        let (idle, busy): (Vec<u32>, Vec<u32>) = self.resting.drain(..).partition(is_idle);
        self.free.extend(idle);
        self.resting = busy;
        self.free.pop_front()
    }

    /// Ends the offers that their peers no longer need.
    fn take_back(&mut self, mapping: &Shared) {
        for line in 0..self.generations.len() as u32 {
            let generation = self.generations.get(line as usize).copied().unwrap_or(CLOSED);
            let busy = Line::of(mapping, line).busy(generation);
            // Acquire: the peer's accesses are over. A resting line has no offer, and another peer may be within an access there.
            if busy.load(Ordering::Acquire) == LEFT && !self.resting.contains(&line) {
                self.bump(mapping, line);
                self.free.push_back(line);
            }
        }
    }

    fn is(&self, ticket: Ticket) -> bool {
        self.generations.get(ticket.line as usize) == Some(&ticket.generation) && self.descriptor.is_some()
    }

    /// Ends an offer. False if it had ended.
    fn end(&mut self, mapping: &Shared, ticket: Ticket) -> bool {
        let is_it = self.is(ticket);
        if is_it {
            self.bump(mapping, ticket.line);
        }
        is_it
    }

    fn bump(&mut self, mapping: &Shared, line: u32) {
        if let Some(generation) = self.generations.get_mut(line as usize) {
            *generation = generation.checked_add(1).unwrap_or(CLOSED + 1);
            let words = Line::of(mapping, line);
            words.forget_left(*generation);
            words.generation.store(*generation, Ordering::Release);
        }
    }
}

/// Waits until no peer is within an access that it began by an ended offer of these lines. False if `most` passes before that.
fn wait_until_idle(mapping: &Shared, lines: &[u32], most: Duration) -> bool {
    let has_barrier = barrier::heavy();
    let begin = Instant::now();
    loop {
        let time = begin.elapsed();
        // Acquire, in `is_busy`: the caller sees what the peer stored before it cleared the word.
        let is_idle = lines.iter().all(|line| !Line::of(mapping, *line).is_busy());
        match time {
            _ if is_idle && has_barrier && time >= SETTLING => return true,
            _ if time >= most => return is_idle,
            _ if time < 4 * SETTLING => std::hint::spin_loop(),
            _ => std::thread::sleep(SETTLING),
        }
    }
}

/// The word by which the owner says that it replaced the memory by a copy. It is in the first line, which no offer has.
fn cut_word(mapping: &Shared) -> &AtomicU32 {
    assert!(mapping.bytes() >= CONTROL, "no room for control lines");
    // SAFETY: it is within the control lines, which the mapping has, and lives as long as it. Both processes access it only as this
    // atomic.
    unsafe { mapping.base().cast().as_ref() }
}

/// The words of a control line.
#[derive(Clone, Copy)]
struct Line<'a> {
    generation: &'a AtomicU32,
    busy: &'a [AtomicU32; BUSY_WORDS],
}

impl<'a> Line<'a> {
    /// A line of a mapping. A number beyond the last line means the last one.
    fn of(mapping: &'a Shared, line: u32) -> Line<'a> {
        let line = (line as usize).min(OFFERS_MOST - 1) + 1;
        assert!(mapping.bytes() >= CONTROL, "no room for control lines");
        // SAFETY: the line is within the control lines, which the mapping has, and lives as long as it.
        unsafe { Line::at(mapping.base().add(line * LINE).cast()) }
    }

    /// # Safety
    /// There must be such a line of control lines for `'a`.
    unsafe fn at(first: NonNull<AtomicU32>) -> Line<'a> {
        // SAFETY: the caller vouches for the line. Both processes access its words as these atomics alone; what a peer stores there
        // instead is a value like any other.
        unsafe { Line { generation: first.as_ref(), busy: first.add(1).cast().as_ref() } }
    }

    /// The busy word of an offer.
    fn busy(&self, generation: u32) -> &'a AtomicU32 {
        &self.busy[generation as usize % BUSY_WORDS]
    }

    /// Clears `LEFT` in the busy word of a generation: an earlier generation with the same word may have left it.
    fn forget_left(&self, generation: u32) {
        let _ = self.busy(generation).compare_exchange(LEFT, 0, Ordering::Relaxed, Ordering::Relaxed);
    }

    fn is_busy(&self) -> bool {
        self.busy.iter().any(|busy| !matches!(busy.load(Ordering::Acquire), 0 | LEFT))
    }
}

/// Memory of another process, mapped here. One thread uses it at a time.
#[derive(Debug)]
pub struct Remote {
    mapping: Arc<Shared>,
    line: u32,
    /// The line's generation.
    current: NonNull<AtomicU32>,
    /// The line's busy word of our generation.
    busy: NonNull<AtomicU32>,
    generation: u32,
    base: NonNull<u8>,
    len: usize,
    /// Two threads at a time would share a busy word.
    one_thread: PhantomData<Cell<()>>,
}

// SAFETY: `base`, `current` and `busy` are within the mapping, which any thread may use, and which the value owns. All accesses are
// volatile or atomic.
unsafe impl Send for Remote {}

/// Ends the use of a [`Remote`] from elsewhere, without keeping its mapping.
#[derive(Clone, Debug)]
pub struct Closer {
    mapping: Weak<Shared>,
    line: u32,
    generation: u32,
}

impl Closer {
    /// Whether the mapping is gone.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.mapping.strong_count() == 0
    }

    /// Withdraws the memory on this side: an access that begins later is refused.
    pub fn close(&self) {
        if let Some(mapping) = self.mapping.upgrade().filter(|mapping| !mapping.is_left_behind()) {
            // If the owner has ended the offer, the line may be another peer's.
            let generation = Line::of(&mapping, self.line).generation;
            let _ = generation.compare_exchange(self.generation, CLOSED, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

/// Why an access was not made.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RemoteError {
    /// Not all bytes are within the memory, or a word is not aligned. Nothing was accessed.
    #[error("outside: not all of these bytes are within the region, or the word is not aligned")]
    Outside,
    /// The credential does not allow it. Nothing was accessed.
    #[error("no right: the key or the cookie does not allow such an access")]
    NoRight,
    /// The owner has withdrawn the memory. Nothing was accessed.
    #[error("the owner has revoked the region, or is gone")]
    Withdrawn,
    /// The owner has withdrawn the memory during the access. It is not known what was written or read.
    #[error("the owner has revoked the region during the access; whether it came first is not known")]
    Interrupted,
}

weft_wire::debug_says_display!(RemoteError);

impl Remote {
    /// Maps the memory that a process offers. `None` if the kernel does not allow it, or the offer leads to no such memory. Makes system
    /// calls, which do not block.
    #[must_use]
    pub fn open(process: u32, offer: &Offer) -> Option<Remote> {
        if !barrier::register() {
            return None;
        }
        let bytes = usize::try_from(offer.bytes).ok()?;
        let descriptor = fetch(process, offer)?;
        let mapping = Shared::open(&descriptor, bytes).ok()?;
        drop(descriptor);
        let (at, len) = (usize::try_from(offer.at).ok()?, usize::try_from(offer.len).ok()?);
        let room = bytes.checked_sub(CONTROL)?;
        if at.checked_add(len)? > room || offer.line as usize >= OFFERS_MOST {
            return None;
        }
        // SAFETY: the part lies within the mapping, behind the control lines.
        let base = unsafe { mapping.base().add(CONTROL + at) };
        let Offer { line, generation, .. } = *offer;
        let words = Line::of(&mapping, line);
        let (current, busy) = (NonNull::from(words.generation), NonNull::from(words.busy(generation)));
        Some(Remote { mapping: Arc::new(mapping), line, current, busy, generation, base, len, one_thread: PhantomData })
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

    /// Whether the owner has not withdrawn the memory yet.
    #[must_use]
    pub fn is_open(&self) -> bool {
        !self.mapping.is_left_behind() && self.is_current()
    }

    /// Whether `len` bytes from `at` are within it.
    #[must_use]
    pub fn holds(&self, at: u64, len: usize) -> bool {
        self.at(at, len).is_ok()
    }

    /// Whether the word of 1, 2, 4 or 8 bytes at `at` is within it and aligned.
    #[must_use]
    pub fn is_word(&self, at: u64, bytes: usize) -> bool {
        matches!(bytes, 1 | 2 | 4 | 8) && self.at(at, bytes).is_ok_and(|word| word.addr() % bytes == 0)
    }

    /// Copies bytes to it in ascending order, the last aligned word last and with release: a reader that sees this word sees all bytes.
    /// Write at most some megabytes at a time: the owner waits only 100 ms for the end of an access.
    ///
    /// # Errors
    /// [`RemoteError`].
    #[inline]
    pub fn write(&self, at: u64, bytes: &[u8]) -> Result<(), RemoteError> {
        let to = self.at(at, bytes.len())?;
        // SAFETY: the bytes are within the mapping, which can be written; `bytes` is not of it, for nobody has references to it.
        self.access(|| unsafe { write(bytes.as_ptr(), to, bytes.len()) })
    }

    /// Copies bytes out of it.
    ///
    /// # Errors
    /// [`RemoteError`].
    #[inline]
    pub fn read(&self, at: u64, to: &mut [u8]) -> Result<(), RemoteError> {
        let from = self.at(at, to.len())?;
        // SAFETY: the bytes are within the mapping, which can be read; `to` is this thread's alone.
        self.access(|| unsafe { read(from, to.as_mut_ptr(), to.len()) })
    }

    /// As [`Remote::read`], into `len` bytes of lent memory from `to_at`. [`RemoteError::Outside`] if it has no room for them.
    ///
    /// # Errors
    /// [`RemoteError`].
    #[inline]
    pub fn read_lent(&self, at: u64, to: &mut LentMut, to_at: usize, len: usize) -> Result<(), RemoteError> {
        let from = self.at(at, len)?;
        let to = to.room(to_at, len).ok_or(RemoteError::Outside)?;
        // SAFETY: the bytes are within the mapping, which can be read; `room` is lent memory that this call has exclusively.
        self.access(|| unsafe { read(from, to.as_ptr(), len) })
    }

    /// Changes the word of 1, 2, 4 or 8 bytes at `at` atomically, and returns the old value. `change` returns `None` to leave the word as
    /// it is, and may be called more than once.
    ///
    /// # Errors
    /// [`RemoteError`].
    #[inline]
    pub fn update(
        &self,
        at: u64,
        bytes: usize,
        mut change: impl FnMut(u64) -> Option<u64>,
    ) -> Result<u64, RemoteError> {
        if !self.is_word(at, bytes) {
            return Err(RemoteError::Outside);
        }
        let word = self.at(at, bytes)?;
        // SAFETY: the word is within the mapping and aligned.
        self.access(|| unsafe { update(word, bytes, &mut change) })
    }

    /// A handle that ends the use of this mapping from elsewhere, for when the owner may be gone.
    #[must_use]
    pub fn closer(&self) -> Closer {
        Closer { mapping: Arc::downgrade(&self.mapping), line: self.line, generation: self.generation }
    }

    #[inline(always)]
    fn at(&self, at: u64, len: usize) -> Result<*mut u8, RemoteError> {
        if self.mapping.is_left_behind() {
            return Err(RemoteError::Withdrawn);
        }
        let at = usize::try_from(at).map_err(|_| RemoteError::Outside)?;
        match at.checked_add(len) {
            // SAFETY: `at` is at most `len`, within the mapping or just behind it.
            Some(end) if end <= self.len => Ok(unsafe { self.base.as_ptr().add(at) }),
            _ => Err(RemoteError::Outside),
        }
    }

    #[inline(always)]
    fn is_current(&self) -> bool {
        // SAFETY: `open` found the word, which lives as long as the mapping.
        let generation = unsafe { self.current.as_ref() };
        // Acquire: an access is not made before this.
        generation.load(Ordering::Acquire) == self.generation
    }

    #[inline(always)]
    fn access<R>(&self, access: impl FnOnce() -> R) -> Result<R, RemoteError> {
        if !self.is_current() {
            // The busy word may be another peer's.
            return Err(RemoteError::Withdrawn);
        }
        // SAFETY: as for the generation.
        let busy = unsafe { self.busy.as_ref() };
        busy.store(BUSY, Ordering::Relaxed);
        // The owner has the heavy side.
        barrier::light();
        if !self.is_current() {
            busy.store(0, Ordering::Relaxed);
            return Err(RemoteError::Withdrawn);
        }
        let result = access();
        barrier::light();
        let was_current = self.is_current();
        // Release: the access is over.
        busy.store(0, Ordering::Release);
        match was_current || self.is_in_time() {
            true => Ok(result),
            false => Err(RemoteError::Interrupted),
        }
    }

    /// Whether an access that is over came before the memory was replaced by a copy, or the memory was not replaced.
    #[cold]
    fn is_in_time(&self) -> bool {
        barrier::light();
        cut_word(&self.mapping).load(Ordering::Acquire) == 0
    }
}

impl Drop for Remote {
    /// Tells the owner that it may reuse the line.
    fn drop(&mut self) {
        if self.is_open() {
            // SAFETY: as for the generation.
            let busy = unsafe { self.busy.as_ref() };
            // Release: its accesses are over. If the line is another peer's by now, its access is not hidden.
            let _ = busy.compare_exchange(0, LEFT, Ordering::Release, Ordering::Relaxed);
        }
    }
}

/// The descriptor of an offer, from the process that made it: a copy (pidfd_getfd(2)) or, where a filter of system calls forbids that, the
/// file opened again by way of `/proc`.
fn fetch(process: u32, offer: &Offer) -> Option<Descriptor> {
    let process = Pid::from_raw(i32::try_from(process).ok()?)?;
    let number = i32::try_from(offer.descriptor).ok()?;
    let copied = Descriptor::make(|| rustix::process::pidfd_open(process, PidfdFlags::empty())).and_then(|pidfd| {
        Descriptor::make_memfd(|| rustix::process::pidfd_getfd(&pidfd, number, PidfdGetfdFlags::empty()))
    });
    let opened = copied.or_else(|_| {
        // `O_PATH` opens the file without an effect on it, whatever it is. Only if it is the memfd, it is opened to be used.
        let path = format!("/proc/{}/fd/{number}", process.as_raw_nonzero());
        let found = Descriptor::make(|| {
            rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC | OFlags::NOCTTY, Mode::empty())
        })?;
        if rustix::fs::fstat(&found)?.st_ino != offer.file {
            return Err(rustix::io::Errno::BADF);
        }
        let path = format!("/proc/self/fd/{}", found.as_fd().as_raw_fd());
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
        Descriptor::make_memfd(|| rustix::fs::open(path, flags, Mode::empty()))
    });
    let opened = opened.ok()?;
    (rustix::fs::fstat(&opened).ok()?.st_ino == offer.file).then_some(opened)
}

#[cfg(all(test, not(loom)))]
mod tests;
