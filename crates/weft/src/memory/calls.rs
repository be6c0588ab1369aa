//! Calls that post an operation and wait until it ends.

use super::stamps::stamped;
use super::{Change, Completion, Credential, Engine, Fetch, Outcome, Place, PostError, Remote, Source, Target, Write};
use crate::bundle::{AnyThread, Bundle, InHandler, SharedBundle, Threads};
use crate::node::Error;
use crate::paths::Outlet;
use crate::status::recorder::Recorder;
use crate::status::Operation;
use std::time::Duration;
use weft_core::{Endpoint, State};
use weft_memory::Ticket;
use weft_wire::{Certainty, Reason};

/// One call in so many polls, even if its operation has ended at once. If all operations of a program are direct, it may never poll
/// otherwise: it would not notice that the owner is gone, and go on writing to memory that nobody reads.
const POLL_EVERY: u32 = 16;

/// Why a call that waits for an operation has no result.
#[derive(thiserror::Error)]
pub enum OperationError {
    /// It was not posted.
    #[error(transparent)]
    NotPosted(#[from] PostError),
    /// It failed.
    #[error("the operation failed: {reason}; {}", match .certainty {
        Certainty::NotDelivered => "nothing was changed",
        Certainty::Unknown => "it is unknown whether anything was changed",
    })]
    Failed {
        /// Why.
        reason: Reason,
        /// Whether it is certain that nothing was changed.
        certainty: Certainty,
    },
    /// It has not ended within the limit. It continues, but its end is not reported.
    #[error("timed out: the operation has not ended within the limit, and may still be carried out; the owner is slow, stopped or unreachable")]
    TimedOut,
    /// The bundle or the endpoint cannot be used.
    #[error(transparent)]
    Bundle(#[from] Error),
}

weft_wire::debug_says_display!(OperationError);

impl From<InHandler> for OperationError {
    fn from(error: InHandler) -> OperationError {
        OperationError::Bundle(error.into())
    }
}

/// The function that posts a call's operation.
type Post<'a> =
    &'a mut dyn FnMut(&mut Engine, &mut State<Outlet>, &mut Option<&mut Recorder>) -> Result<Ticket, PostError>;

fn ended(end: weft_memory::Completion<super::Platform>) -> Result<Completion, OperationError> {
    let end = Completion::from(end);
    match end.outcome {
        Outcome::Done | Outcome::Free => Ok(end),
        Outcome::Failed { reason, certainty } => Err(OperationError::Failed { reason, certainty }),
    }
}

impl<H: Threads> Bundle<H> {
    /// Writes to a region of the peer at index `to` of the endpoint's translation table. Blocks until all bytes are stored there, and
    /// polls meanwhile. The endpoint's other operations continue; [`Memory::next_completion`](super::Memory) returns their ends.
    ///
    /// ```
    /// use weft::memory::{Atomic, Change, Place, RegionKey, Rights, Settings, Type, Write};
    /// use weft::{Bundle, Key, Node};
    ///
    /// let mut bundle = Bundle::new(&Node::new()?)?;
    /// let me = bundle.memory_endpoint(Key(1), Settings::default())?;
    /// bundle.map(me, 0, bundle.name(me)?, Key(1))?;
    /// bundle.memory(me)?.allocate(64, RegionKey(7), Rights::ALL)?;
    /// let place = Place::new(RegionKey(7), 8);
    /// bundle.write(me, 0, Write::to(place), 41u64.to_le_bytes())?;
    /// let add = Change { place, atomic: Atomic::Add, of: Type::U64 };
    /// assert_eq!(bundle.change(me, 0, add, &1u64.to_le_bytes(), &[])?, 41u64.to_le_bytes());
    /// assert_eq!(bundle.read(me, 0, place, 8)?, 42u64.to_le_bytes());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`OperationError`]. [`PostError::Full`] until the program has taken completions.
    pub fn write(
        &mut self,
        from: Endpoint,
        to: u32,
        write: Write,
        bytes: impl Into<Vec<u8>>,
    ) -> Result<(), OperationError> {
        self.write_by(None, from, to, write, bytes.into())
    }

    /// As [`Bundle::write`], but blocks for `limit` at most.
    ///
    /// # Errors
    /// As [`Bundle::write`]; [`OperationError::TimedOut`], and then the write may still be carried out.
    pub fn write_within(
        &mut self,
        limit: Duration,
        from: Endpoint,
        to: u32,
        write: Write,
        bytes: impl Into<Vec<u8>>,
    ) -> Result<(), OperationError> {
        self.write_by(Some(limit), from, to, write, bytes.into())
    }

    /// Reads `len` bytes of a region of the peer at index `to` of the endpoint's translation table. Blocks until they are here, and polls
    /// meanwhile.
    ///
    /// # Errors
    /// As [`Bundle::write`].
    pub fn read(&mut self, from: Endpoint, to: u32, place: Place, len: usize) -> Result<Vec<u8>, OperationError> {
        self.read_by(None, from, to, place, len)
    }

    /// As [`Bundle::read`], but blocks for `limit` at most.
    ///
    /// # Errors
    /// As [`Bundle::read`]; [`OperationError::TimedOut`].
    pub fn read_within(
        &mut self,
        limit: Duration,
        from: Endpoint,
        to: u32,
        place: Place,
        len: usize,
    ) -> Result<Vec<u8>, OperationError> {
        self.read_by(Some(limit), from, to, place, len)
    }

    /// Changes words in a region of the peer at index `to` of the endpoint's translation table, as many as there are operands, and returns
    /// the old values. `second` are second operands, for operations that have them. Blocks until the old values are here, and polls
    /// meanwhile.
    ///
    /// # Errors
    /// As [`Bundle::write`].
    pub fn change(
        &mut self,
        from: Endpoint,
        to: u32,
        change: Change,
        operands: &[u8],
        second: &[u8],
    ) -> Result<Vec<u8>, OperationError> {
        self.change_by(None, from, to, change, (operands, second))
    }

    /// As [`Bundle::change`], but blocks for `limit` at most.
    ///
    /// # Errors
    /// As [`Bundle::change`]; [`OperationError::TimedOut`], and then the words may still be changed.
    pub fn change_within(
        &mut self,
        limit: Duration,
        from: Endpoint,
        to: u32,
        change: Change,
        operands: &[u8],
        second: &[u8],
    ) -> Result<Vec<u8>, OperationError> {
        self.change_by(Some(limit), from, to, change, (operands, second))
    }

    /// Maps memory of the peer at index `to` of the endpoint's translation table here, as
    /// [`Memory::try_map_region`](super::Memory::try_map_region) does. `None` if it cannot be mapped. Blocks for a round trip, and
    /// polls meanwhile.
    ///
    /// ```
    /// use weft::memory::{RegionKey, Rights, Settings};
    /// use weft::{Bundle, Key, Node};
    ///
    /// let mut bundle = Bundle::new(&Node::new()?)?;
    /// let me = bundle.memory_endpoint(Key(1), Settings::default())?;
    /// bundle.map(me, 0, bundle.name(me)?, Key(1))?;
    /// let (region, window) = bundle.memory(me)?.allocate(64, RegionKey(7), Rights::ALL)?;
    /// if let Some(remote) = bundle.map_region(me, 0, RegionKey(7))? {
    ///     remote.write(8, b"by a store")?;
    ///     let mut seen = [0; 10];
    ///     assert!(window.read(8, &mut seen) && &seen == b"by a store");
    ///     assert!(bundle.memory(me)?.revoke(region));
    ///     assert!(remote.write(8, b"too late").is_err());
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Bundle::write`].
    pub fn map_region(
        &mut self,
        from: Endpoint,
        to: u32,
        by: impl Into<Credential>,
    ) -> Result<Option<Remote>, OperationError> {
        self.attach_by(None, from, to, by.into())
    }

    /// As [`Bundle::map_region`], but blocks for `limit` at most.
    ///
    /// # Errors
    /// As [`Bundle::map_region`]; [`OperationError::TimedOut`].
    pub fn map_region_within(
        &mut self,
        limit: Duration,
        from: Endpoint,
        to: u32,
        by: impl Into<Credential>,
    ) -> Result<Option<Remote>, OperationError> {
        self.attach_by(Some(limit), from, to, by.into())
    }

    /// Waits until all operations that were posted to index `to` of the endpoint's translation table have ended, in whatever way.
    /// Blocks, and polls meanwhile.
    ///
    /// # Errors
    /// As [`Bundle::write`].
    pub fn flush_to(&mut self, from: Endpoint, to: u32) -> Result<(), OperationError> {
        self.call(None, from, &mut |engine, state, _| engine.flush_for_call(state, to)).map(|_| ())
    }

    /// As [`Bundle::flush_to`], but blocks for `limit` at most.
    ///
    /// # Errors
    /// As [`Bundle::flush_to`]; [`OperationError::TimedOut`].
    pub fn flush_to_within(&mut self, limit: Duration, from: Endpoint, to: u32) -> Result<(), OperationError> {
        self.call(Some(limit), from, &mut |engine, state, _| engine.flush_for_call(state, to)).map(|_| ())
    }

    /// Takes the end of an operation if it has come. An error ends the wait too.
    fn take_end(&mut self, from: Endpoint, ticket: Ticket) -> Option<Result<Completion, OperationError>> {
        match self.memory_parts(from) {
            Ok((engine, ..)) => engine.take_end(ticket).map(ended),
            Err(error) => Some(Err(error.into())),
        }
    }

    fn post_for_call(&mut self, from: Endpoint, post: Post<'_>) -> Result<Ticket, OperationError> {
        let (engine, state, mut stamps) = self.memory_parts(from)?;
        Ok(post(engine, state, &mut stamps)?)
    }

    fn is_poll_due(&mut self) -> bool {
        self.memory_calls = self.memory_calls.wrapping_add(1);
        self.memory_calls % POLL_EVERY == 0
    }

    fn forget_end(&mut self, from: Endpoint, ticket: Ticket) {
        if let Ok((engine, ..)) = self.memory_parts(from) {
            engine.forget_end(ticket);
        }
    }
}

/// The calls, built on one that posts and waits.
trait Calls {
    fn call(&mut self, limit: Option<Duration>, from: Endpoint, post: Post<'_>) -> Result<Completion, OperationError>;

    fn write_by(
        &mut self,
        limit: Option<Duration>,
        from: Endpoint,
        to: u32,
        write: Write,
        bytes: Vec<u8>,
    ) -> Result<(), OperationError> {
        let mut source = Some(Source::from(bytes));
        let post: Post<'_> = &mut |engine, state, stamps| {
            // The closure is called only once.
            let source = source.take().unwrap_or_else(|| Vec::new().into());
            stamped(stamps, (engine, state), (to, Operation::Write), |engine, state| {
                engine.write_for_call(state, to, write, source)
            })
        };
        self.call(limit, from, post).map(|_| ())
    }

    fn read_by(
        &mut self,
        limit: Option<Duration>,
        from: Endpoint,
        to: u32,
        place: Place,
        len: usize,
    ) -> Result<Vec<u8>, OperationError> {
        let post: Post<'_> = &mut |engine, state, stamps| {
            stamped(stamps, (engine, state), (to, Operation::Read), |engine, state| {
                engine.read_for_call(state, to, place, vec![0; len].into())
            })
        };
        Ok(self.call(limit, from, post)?.target.unwrap_or_default())
    }

    fn attach_by(
        &mut self,
        limit: Option<Duration>,
        from: Endpoint,
        to: u32,
        by: Credential,
    ) -> Result<Option<Remote>, OperationError> {
        let post: Post<'_> = &mut |engine, state, _| engine.attach_for_call(state, to, by);
        Ok(self.call(limit, from, post)?.remote)
    }

    fn change_by(
        &mut self,
        limit: Option<Duration>,
        from: Endpoint,
        to: u32,
        change: Change,
        (operands, second): (&[u8], &[u8]),
    ) -> Result<Vec<u8>, OperationError> {
        let post: Post<'_> = &mut |engine, state, stamps| {
            let old = Some(Target::from(vec![0; operands.len()]));
            stamped(stamps, (engine, state), (to, Operation::Change), |engine, state| {
                engine.change_for_call(state, to, change, operands, Fetch { second, old })
            })
        };
        Ok(self.call(limit, from, post)?.target.unwrap_or_default())
    }
}

impl<H: Threads> Calls for Bundle<H> {
    fn call(&mut self, limit: Option<Duration>, from: Endpoint, post: Post<'_>) -> Result<Completion, OperationError> {
        let ticket = self.post_for_call(from, post)?;
        if self.is_poll_due() {
            self.poll();
        }
        let mut end = None;
        let mut has_ended = |bundle: &mut Bundle<H>| {
            end = bundle.take_end(from, ticket);
            end.is_some()
        };
        match limit {
            None => self.poll_until(&mut has_ended),
            Some(limit) => _ = self.poll_until_within(limit, &mut has_ended),
        }
        end.unwrap_or_else(|| {
            self.forget_end(from, ticket);
            Err(OperationError::TimedOut)
        })
    }
}

impl Calls for &SharedBundle {
    fn call(&mut self, limit: Option<Duration>, from: Endpoint, post: Post<'_>) -> Result<Completion, OperationError> {
        let (ticket, is_poll_due) = self.with(|bundle: &mut Bundle<AnyThread>| {
            let ticket = bundle.post_for_call(from, post)?;
            Ok::<_, OperationError>((ticket, bundle.is_poll_due()))
        })??;
        if is_poll_due {
            self.poll()?;
        }
        let mut end = None;
        let mut has_ended = |bundle: &SharedBundle| {
            end = bundle.with(|bundle| bundle.take_end(from, ticket)).unwrap_or_else(|error| Some(Err(error.into())));
            end.is_some()
        };
        match limit {
            None => self.poll_until(&mut has_ended)?,
            Some(limit) => _ = self.poll_until_within(limit, &mut has_ended)?,
        }
        match end {
            Some(end) => end,
            None => {
                self.with(|bundle| bundle.forget_end(from, ticket))?;
                Err(OperationError::TimedOut)
            }
        }
    }
}

impl SharedBundle {
    /// As [`Bundle::map_region`]. The lock is free while it waits.
    ///
    /// # Errors
    /// As [`Bundle::map_region`].
    pub fn map_region(
        &self,
        from: Endpoint,
        to: u32,
        by: impl Into<Credential>,
    ) -> Result<Option<Remote>, OperationError> {
        (&mut &*self).attach_by(None, from, to, by.into())
    }

    /// As [`Bundle::map_region_within`].
    ///
    /// # Errors
    /// As [`Bundle::map_region_within`].
    pub fn map_region_within(
        &self,
        limit: Duration,
        from: Endpoint,
        to: u32,
        by: impl Into<Credential>,
    ) -> Result<Option<Remote>, OperationError> {
        (&mut &*self).attach_by(Some(limit), from, to, by.into())
    }

    /// As [`Bundle::write`]. The lock is free while it waits.
    ///
    /// # Errors
    /// As [`Bundle::write`].
    pub fn write(
        &self,
        from: Endpoint,
        to: u32,
        write: Write,
        bytes: impl Into<Vec<u8>>,
    ) -> Result<(), OperationError> {
        (&mut &*self).write_by(None, from, to, write, bytes.into())
    }

    /// As [`Bundle::write_within`].
    ///
    /// # Errors
    /// As [`Bundle::write_within`].
    pub fn write_within(
        &self,
        limit: Duration,
        from: Endpoint,
        to: u32,
        write: Write,
        bytes: impl Into<Vec<u8>>,
    ) -> Result<(), OperationError> {
        (&mut &*self).write_by(Some(limit), from, to, write, bytes.into())
    }

    /// As [`Bundle::read`].
    ///
    /// # Errors
    /// As [`Bundle::read`].
    pub fn read(&self, from: Endpoint, to: u32, place: Place, len: usize) -> Result<Vec<u8>, OperationError> {
        (&mut &*self).read_by(None, from, to, place, len)
    }

    /// As [`Bundle::read_within`].
    ///
    /// # Errors
    /// As [`Bundle::read_within`].
    pub fn read_within(
        &self,
        limit: Duration,
        from: Endpoint,
        to: u32,
        place: Place,
        len: usize,
    ) -> Result<Vec<u8>, OperationError> {
        (&mut &*self).read_by(Some(limit), from, to, place, len)
    }

    /// As [`Bundle::change`].
    ///
    /// # Errors
    /// As [`Bundle::change`].
    pub fn change(
        &self,
        from: Endpoint,
        to: u32,
        change: Change,
        operands: &[u8],
        second: &[u8],
    ) -> Result<Vec<u8>, OperationError> {
        (&mut &*self).change_by(None, from, to, change, (operands, second))
    }

    /// As [`Bundle::change_within`].
    ///
    /// # Errors
    /// As [`Bundle::change_within`].
    pub fn change_within(
        &self,
        limit: Duration,
        from: Endpoint,
        to: u32,
        change: Change,
        operands: &[u8],
        second: &[u8],
    ) -> Result<Vec<u8>, OperationError> {
        (&mut &*self).change_by(Some(limit), from, to, change, (operands, second))
    }

    /// As [`Bundle::flush_to`].
    ///
    /// # Errors
    /// As [`Bundle::flush_to`].
    pub fn flush_to(&self, from: Endpoint, to: u32) -> Result<(), OperationError> {
        (&mut &*self).call(None, from, &mut |engine, state, _| engine.flush_for_call(state, to)).map(|_| ())
    }

    /// As [`Bundle::flush_to_within`].
    ///
    /// # Errors
    /// As [`Bundle::flush_to_within`].
    pub fn flush_to_within(&self, limit: Duration, from: Endpoint, to: u32) -> Result<(), OperationError> {
        (&mut &*self).call(Some(limit), from, &mut |engine, state, _| engine.flush_for_call(state, to)).map(|_| ())
    }
}
