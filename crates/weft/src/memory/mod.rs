//! Remote memory: regions that peers read, write and change with atomic operations, under keys and cookies.
//!
//! [`Bundle::memory_endpoint`] makes an endpoint for it; [`Bundle::memory`] returns its calls. An endpoint is both the owner of
//! regions here and the initiator of operations on regions of the peers in its translation table. `docs/memory.md` is the
//! introduction.
//!
//! The calls of [`Memory`] do not block, and run no handler; [`Bundle::write`], [`Bundle::read`], [`Bundle::change`] and
//! [`Bundle::flush_to`] post an operation and wait for its end. Each posted operation ends in one [`Completion`], whatever happens
//! to its peer. A peer's operation on a region here is carried out by a poll of this bundle.

mod calls;
mod direct;
mod face;
mod lists;
mod notices;
mod stamps;

pub use crate::buffers::{Source, Target};
pub use calls::OperationError;
pub use direct::Remote;
pub use lists::Buffers;
pub use weft_memory::Cookie;
pub use weft_memory::{
    Change, CookieError, Counters, Fetch, Notice, Outcome, Part, PostError, ReadList, RegionError, RegionId, Rights,
    Settings, Tally, Write, WriteList, INLINE_MOST, LIST_MOST,
};
pub use weft_shm::{Lent, LentMut, RemoteError, Window};
pub use weft_wire::memory::{Atomic, Credential, Place, RegionHandle, RegionKey, Type};

pub(crate) use face::Face;

use crate::bundle::{AnyThread, Bundle, Held, SharedBundle, Threads};
use crate::node::{random_u64, Error};
use crate::paths::Outlet;
use crate::status::recorder::Recorder;
use crate::status::Operation;
use stamps::stamped;
use std::time::Duration;
use weft_core::{Endpoint, State};
use weft_wire::Key;

/// The types of memory that engines work with here.
#[derive(Debug)]
enum Platform {}

impl weft_memory::Platform for Platform {
    type Space = face::Space;
    type Source = Source;
    type Target = Target;
    type Reach = direct::Reach;
}

type Engine = weft_memory::Engine<Platform>;

/// The end of an operation, or the news that its source is free.
#[derive(Debug)]
pub struct Completion {
    /// The context that the program gave with the operation.
    pub context: u64,
    /// How the operation ended.
    pub outcome: Outcome,
    /// The buffer that was sent from, if weft owned it and did not give it back before.
    pub source: Option<Vec<u8>>,
    /// The buffer that was received into, if weft owned it.
    pub target: Option<Vec<u8>>,
    /// The buffers of an operation on lists, if they were not given back before.
    pub buffers: Option<Box<Buffers>>,
    /// The memory that [`Memory::try_map_region`] has mapped.
    pub remote: Option<Remote>,
}

#[doc(hidden)] // users need not know the type
impl From<weft_memory::Completion<Platform>> for Completion {
    #[inline(always)]
    fn from(completion: weft_memory::Completion<Platform>) -> Completion {
        let weft_memory::Completion { context, outcome, source, target, buffers, mapped } = completion;
        let (source, target) = (source.and_then(Source::give_back), target.and_then(Target::give_back));
        let buffers = buffers.map(|buffers| lists::give_back(*buffers));
        let remote = mapped.map(|mapped| Remote::from(*mapped));
        Completion { context, outcome, source, target, buffers, remote }
    }
}

/// The calls of an endpoint for remote memory. None of them blocks.
///
/// ```
/// use weft::memory::{Outcome, Place, RegionKey, Rights, Settings, Write};
/// use weft::{Bundle, Key, Node};
///
/// let mut bundle = Bundle::new(&Node::new()?)?;
/// let owner = bundle.memory_endpoint(Key(1), Settings::default())?;
/// let (_, window) = bundle.memory(owner)?.allocate(4096, RegionKey(7), Rights::ALL)?;
///
/// // Usually in another process, which got name and keys from the owner.
/// let me = bundle.memory_endpoint(Key(2), Settings::default())?;
/// bundle.map(me, 0, bundle.name(owner)?, Key(1))?;
/// let place = Place::new(RegionKey(7), 16);
/// bundle.memory(me)?.try_write(0, Write::to(place), b"hello".to_vec(), 1).map_err(|(error, _)| error)?;
/// bundle.memory(me)?.try_read(0, place, vec![0; 5], 2).map_err(|(error, _)| error)?;
/// let mut done = Vec::new();
/// while done.len() < 2 {
///     bundle.wait(None);
///     let mut memory = bundle.memory(me)?;
///     done.extend(std::iter::from_fn(|| memory.next_completion()));
/// }
/// assert!(done.iter().all(|completion| completion.outcome == Outcome::Done));
/// // The write's end may be told after the read's.
/// let read = done.iter().find(|completion| completion.context == 2).expect("one of the two");
/// assert_eq!(read.target.as_deref(), Some(&b"hello"[..]));
/// let mut seen = [0; 5];
/// assert!(window.read(16, &mut seen));
/// assert_eq!(&seen, b"hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Memory<'a> {
    engine: &'a mut Engine,
    state: &'a mut State<Outlet>,
    /// Notes requests while they are stamped.
    stamps: Option<&'a mut Recorder>,
}

impl<H: Threads> Bundle<H> {
    /// Makes an endpoint for remote memory that admits peers which know `key`. It has no handlers, cannot be
    /// [released](Bundle::release), and its messages always arrive ([`Bundle::set_service`] is refused). Its translation table is filled
    /// by [`Bundle::map`].
    ///
    /// # Errors
    /// As [`Bundle::endpoint`].
    pub fn memory_endpoint(&mut self, key: Key, settings: Settings) -> Result<Endpoint, Error> {
        let endpoint = self.endpoint(key)?;
        self.make_memory(endpoint, settings)?;
        Ok(endpoint)
    }

    /// As [`Bundle::memory_endpoint`], with a random key. [`Bundle::key`] returns the key.
    ///
    /// # Errors
    /// As [`Bundle::endpoint`].
    pub fn memory_endpoint_with_random_key(&mut self, settings: Settings) -> Result<Endpoint, Error> {
        self.memory_endpoint(Key(random_u64()?), settings)
    }

    /// Returns the calls of an endpoint for remote memory.
    ///
    /// # Errors
    /// If the endpoint is not for remote memory or was freed.
    #[inline]
    pub fn memory(&mut self, endpoint: Endpoint) -> Result<Memory<'_>, Error> {
        let (engine, state, stamps) = self.memory_parts(endpoint)?;
        Ok(Memory { engine, state, stamps })
    }
}

impl SharedBundle {
    /// As [`Bundle::memory_endpoint`].
    ///
    /// # Errors
    /// As [`Bundle::endpoint`], and [`InHandler`](crate::InHandler).
    pub fn memory_endpoint(&self, key: Key, settings: Settings) -> Result<Endpoint, Error> {
        self.with(|bundle| bundle.memory_endpoint(key, settings))?
    }

    /// As [`Bundle::memory_endpoint_with_random_key`].
    ///
    /// # Errors
    /// As [`Bundle::endpoint`], and [`InHandler`](crate::InHandler).
    pub fn memory_endpoint_with_random_key(&self, settings: Settings) -> Result<Endpoint, Error> {
        self.with(|bundle| bundle.memory_endpoint_with_random_key(settings))?
    }

    /// Makes calls of an endpoint for remote memory, under the bundle's lock.
    ///
    /// # Errors
    /// If the endpoint is not for remote memory or was freed, and [`InHandler`](crate::InHandler).
    pub fn with_memory<R>(&self, endpoint: Endpoint, calls: impl FnOnce(&mut Memory<'_>) -> R) -> Result<R, Error> {
        self.with(|bundle: &mut Bundle<AnyThread>| bundle.memory(endpoint).map(|mut memory| calls(&mut memory)))?
    }
}

impl Held<'_> {
    /// As [`Bundle::memory`].
    ///
    /// # Errors
    /// If the endpoint is not for remote memory or was freed.
    #[inline(always)]
    pub fn memory(&mut self, endpoint: Endpoint) -> Result<Memory<'_>, Error> {
        self.bundle().memory(endpoint)
    }
}

impl Memory<'_> {
    // ---- regions

    /// Makes `len` bytes of zeroed memory, and opens them as a region under a key. The memory lives as long as the region or a clone of
    /// the window.
    ///
    /// # Errors
    /// The kernel's error, or [`RegionError`].
    pub fn allocate(&mut self, len: usize, key: RegionKey, rights: Rights) -> Result<(RegionId, Window), Error> {
        let window = Window::create(len).map_err(|error| {
            Error::system("cannot make memory for a region", error, "ask for less, or raise the limit that it names")
        })?;
        Ok((self.open(window.clone(), key, rights)?, window))
    }

    /// Opens a window as a region under a key. One window may be several regions. Lent memory ([`Window::lend`]) must stay until the
    /// region is revoked and the window dropped.
    ///
    /// # Errors
    /// [`RegionError`].
    pub fn open(&mut self, window: Window, key: RegionKey, rights: Rights) -> Result<RegionId, RegionError> {
        self.engine.table_mut().open(key.0, rights, face::Space(window))
    }

    /// Makes a cookie for a part of a region. Its bearer may use that part with these rights.
    ///
    /// # Errors
    /// If the kernel gives no randomness; [`RegionError`].
    pub fn cookie(&mut self, region: RegionId, part: Part, rights: Rights) -> Result<Cookie, Error> {
        let (low, high) = (random_u64()?, random_u64()?);
        let secret = (u128::from(low) | u128::from(high) << 64).to_le_bytes();
        Ok(self.engine.table_mut().cookie(region, part, rights, secret)?)
    }

    /// Revokes a region and all of its cookies. When this returns, peers no longer read or write there; later operations go back to
    /// their sender as [`Reason::Revoked`](crate::Reason::Revoked). False if it was revoked before.
    ///
    /// Blocks for some microseconds if neighbours have the region mapped, and up to 200 ms if one of them was stopped or killed in the
    /// middle of an access: then this process gets a copy of the window's bytes, at the same address. Bytes that another thread
    /// writes there during the copying may be lost.
    pub fn revoke(&mut self, region: RegionId) -> bool {
        self.engine.table_mut().revoke(region).is_some()
    }

    /// Revokes a cookie. When this returns, no more accesses are made under it. False if it was revoked before. Blocks as
    /// [`Memory::revoke`] does.
    pub fn revoke_cookie(&mut self, cookie: Cookie) -> bool {
        self.engine.table_mut().revoke_cookie(cookie)
    }

    /// Opens a region under a handle of 32 bits too, for peers whose protocol has no room for a key (VIA). Offsets of accesses by
    /// the handle count from `base`. So they are addresses if `base` is the region's address. `None` if the region was revoked, or
    /// its place in the table is above 2^20 - 2.
    ///
    /// Peers can guess handles: every admitted peer may use the region, as with a small key. A handle is never 0. The handle of a
    /// revoked region is refused until 4 million other regions were opened.
    pub fn handle(&mut self, region: RegionId, base: u64) -> Option<RegionHandle> {
        self.engine.table_mut().handle(region, base)
    }

    /// Sets the base from which offsets of accesses by the region's key count, for protocols whose peers name bytes by their
    /// address: use the region's address as the base. The default is 0. Call this before peers know the key. False if the region
    /// was revoked.
    pub fn count_from(&mut self, region: RegionId, base: u64) -> bool {
        self.engine.table_mut().count_from(region, base)
    }

    /// Has a region and all of its cookies revoked after this time. A later call replaces the time, counting from that call.
    /// [`Duration::MAX`] means never. False if the region was revoked.
    ///
    /// The bundle revokes it when it is polled or sleeps in a wait; in a [serviced](crate::SharedBundle::serviced) bundle, the
    /// service thread does so too. Even if that is late, an access after the time is over is refused as
    /// [`Reason::Revoked`](crate::Reason::Revoked).
    pub fn revoke_after(&mut self, region: RegionId, time: Duration) -> bool {
        let end = face::now().checked_add(time);
        self.engine.table_mut().set_end(region, end)
    }

    /// As [`Memory::revoke_after`], for a cookie.
    pub fn revoke_cookie_after(&mut self, cookie: Cookie, time: Duration) -> bool {
        let end = face::now().checked_add(time);
        self.engine.table_mut().set_cookie_end(cookie, end)
    }

    /// Counts peers' operations on a region from now on, in the program's tally. Each call adds a tally. A counted operation ends a
    /// wait, as a notice does. False if the region was revoked.
    ///
    /// Neighbours cannot map a counted region, so this bundle's polls carry out all operations on it. Blocks as [`Memory::revoke`]
    /// does.
    ///
    /// ```
    /// use std::sync::atomic::{AtomicU64, Ordering::Acquire};
    /// use std::sync::Arc;
    /// use weft::memory::{Place, RegionKey, Rights, Settings, Tally, Write};
    /// use weft::{Bundle, Key, Node};
    ///
    /// let mut bundle = Bundle::new(&Node::new()?)?;
    /// let me = bundle.memory_endpoint(Key(1), Settings::default())?;
    /// bundle.map(me, 0, bundle.name(me)?, Key(1))?;
    /// let (region, _) = bundle.memory(me)?.allocate(64, RegionKey(7), Rights::ALL)?;
    /// let writes = Arc::new(AtomicU64::new(0));
    /// bundle.memory(me)?.count(region, Tally { writes: Some(writes.clone()), ..Tally::default() });
    /// bundle.write(me, 0, Write::to(Place::new(RegionKey(7), 0)), b"counted")?;
    /// assert_eq!(writes.load(Acquire), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn count(&mut self, region: RegionId, tally: Tally) -> bool {
        self.engine.table_mut().count(region, tally)
    }

    /// Returns the memory of a region, if it was not revoked.
    pub fn window(&self, region: RegionId) -> Option<Window> {
        self.engine.table().space(region).map(|space| space.0.clone())
    }

    // ---- operations

    /// Writes to a region of the peer at index `to` of the translation table. Ends as [`Outcome::Done`] when all bytes are stored there.
    /// Operations on one peer are carried out in the order in which they were posted.
    ///
    /// # Errors
    /// If it was not posted; the source comes back.
    pub fn try_write(
        &mut self,
        to: u32,
        write: Write,
        source: impl Into<Source>,
        context: u64,
    ) -> Result<(), (PostError, Source)> {
        let Memory { engine, state, stamps } = self;
        stamped(stamps, (engine, state), (to, Operation::Write), |engine, state| {
            engine.try_write(state, to, write, source.into(), context)
        })
    }

    /// Reads from a region of the peer at index `to`, as many bytes as the target has. Ends as [`Outcome::Done`] when they are in the
    /// target.
    ///
    /// # Errors
    /// If it was not posted; the target comes back.
    pub fn try_read(
        &mut self,
        to: u32,
        place: Place,
        target: impl Into<Target>,
        context: u64,
    ) -> Result<(), (PostError, Target)> {
        let Memory { engine, state, stamps } = self;
        stamped(stamps, (engine, state), (to, Operation::Read), |engine, state| {
            engine.try_read(state, to, place, target.into(), context)
        })
    }

    /// Changes words in a region of the peer at index `to`, each in one step: as many as there are operands. The operands are copied.
    /// Ends as [`Outcome::Done`] when all are changed and, if `fetch` asks for them, the old values are in its target.
    ///
    /// # Errors
    /// If it was not posted.
    pub fn try_change(
        &mut self,
        to: u32,
        change: Change,
        operands: &[u8],
        fetch: Fetch<'_, Target>,
        context: u64,
    ) -> Result<(), PostError> {
        let Memory { engine, state, stamps } = self;
        stamped(stamps, (engine, state), (to, Operation::Change), |engine, state| {
            engine.try_change(state, to, change, operands, fetch, context)
        })
    }

    /// Writes a few bytes to a region of the peer at index `to`, [`INLINE_MOST`] at most. The bytes are copied, so the source is
    /// free when this returns. Otherwise as [`Memory::try_write`].
    ///
    /// # Errors
    /// If it was not posted. [`PostError::TooLong`] if there are more bytes.
    pub fn try_write_inline(&mut self, to: u32, write: Write, bytes: &[u8], context: u64) -> Result<(), PostError> {
        let Memory { engine, state, stamps } = self;
        stamped(stamps, (engine, state), (to, Operation::Write), |engine, state| {
            engine.try_write_inline(state, to, write, bytes, context)
        })
    }

    /// Posts a flush. It ends as [`Outcome::Done`] when all operations that were posted before it to index `to` have ended, in
    /// whatever way; their completions come before its own. It sends nothing.
    ///
    /// # Errors
    /// If it was not posted.
    pub fn try_flush(&mut self, to: u32, context: u64) -> Result<(), PostError> {
        self.engine.try_flush(self.state, to, context)
    }

    /// Sets a fence: operations posted to index `to` after it begin when all those posted before it have ended, in whatever way.
    /// Operations are carried out in order even without a fence. With a fence, results of earlier reads and atomic operations are
    /// in their targets, and all earlier completions have come, before anything of a later operation leaves this process. A fence
    /// costs a round trip if something is under way.
    ///
    /// # Errors
    /// If nothing is mapped there.
    pub fn fence(&mut self, to: u32) -> Result<(), PostError> {
        self.engine.fence(self.state, to)
    }

    /// Asks the peer at index `to` to let this process map what a credential is for. It ends with [`Completion::remote`]: memory
    /// that this process reads and writes by loads and stores, until the owner revokes the credential's region or cookie, or is
    /// gone. There is none if the peer is not a process of the same host and user that this one may trace, if the owner lent the
    /// memory, if the credential expires, or where the kernel does not allow it. Each value is for one thread at a time; ask again
    /// for another thread.
    ///
    /// The endpoint's own operations need no such call: they map memory themselves when they use it often.
    ///
    /// # Errors
    /// If it was not posted.
    pub fn try_map_region(&mut self, to: u32, by: impl Into<Credential>, context: u64) -> Result<(), PostError> {
        self.engine.try_attach(self.state, to, by.into(), context)
    }

    /// Takes the oldest completion of the endpoint. A completion ends a wait.
    #[inline(always)]
    pub fn next_completion(&mut self) -> Option<Completion> {
        self.engine.next_completion().map(Completion::from)
    }

    /// Takes the oldest notice of a peer's write. A notice ends a wait.
    pub fn next_notice(&mut self) -> Option<Notice> {
        self.engine.next_notice()
    }

    /// Returns the number of operations to a peer that have not ended.
    pub fn pending(&self, to: u32) -> usize {
        self.engine.pending(to)
    }

    /// Returns the endpoint's counters.
    pub fn counters(&self) -> Counters {
        self.engine.counters()
    }
}
