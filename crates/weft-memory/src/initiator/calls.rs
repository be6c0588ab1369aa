//! The calls that post operations, and their arguments.

use super::operation::{Kind, Posting};
use crate::engine::{Engine, PostError};
use crate::platform::{Platform, Target};
use weft_core::State;
use weft_wire::memory::{Atomic, Place, Type};
use weft_wire::path::Tx;

/// A write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Write {
    /// Where to.
    pub place: Place,
    /// A value for the owner's program, delivered with a notice when all bytes are stored.
    pub notice: Option<u64>,
    /// Whether one more completion says when the source is free.
    pub tells_when_free: bool,
}

impl Write {
    /// A write to a place, without a notice, with one completion.
    #[must_use]
    pub fn to(place: Place) -> Write {
        Write { place, notice: None, tells_when_free: false }
    }

    /// The same, with a notice for the owner's program.
    #[must_use]
    pub fn with_notice(self, value: u64) -> Write {
        Write { notice: Some(value), ..self }
    }

    /// The same, with one more completion when the source is free.
    #[must_use]
    pub fn telling_when_free(self) -> Write {
        Write { tells_when_free: true, ..self }
    }
}

/// An atomic operation on the words at a place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Change {
    /// The first word.
    pub place: Place,
    /// What is done to each word.
    pub atomic: Atomic,
    /// The type of the words.
    pub of: Type,
}

/// The optional arguments of an atomic operation.
#[derive(Debug)]
pub struct Fetch<'a, T> {
    /// The second operands, as many as there are first ones. Empty for operations that take none.
    pub second: &'a [u8],
    /// Where the old values go. Without it none are sent.
    pub old: Option<T>,
}

impl<T> Default for Fetch<'_, T> {
    fn default() -> Self {
        Fetch { second: &[], old: None }
    }
}

impl<P: Platform> Engine<P> {
    pub(crate) fn may_post<T: Tx>(&mut self, state: &State<T>, to: u32) -> Result<(), PostError> {
        if self.is_closing() {
            return Err(PostError::NoEndpoint);
        }
        let (initiator, done) = self.parts();
        if !state.is_mapped(initiator.endpoint, to) {
            return Err(PostError::NotMapped(to));
        }
        match initiator.has_room_for(done, 1) {
            true => Ok(()),
            false => Err(PostError::Full),
        }
    }

    /// Posts an operation that [`Engine::may_post`] has admitted.
    fn post_admitted<T: Tx>(&mut self, state: &mut State<T>, to: u32, context: u64, kind: Kind<P::Source, P::Target>) {
        let (initiator, done) = self.parts();
        initiator.post(state, done, Posting::new(to, context), kind);
    }

    /// Writes to a region of the peer at index `to`. It is done when all bytes are stored there. Does not block.
    ///
    /// # Errors
    /// If it was not posted; the source comes back.
    #[inline]
    pub fn try_write<T: Tx>(
        &mut self,
        state: &mut State<T>,
        to: u32,
        write: Write,
        source: P::Source,
        context: u64,
    ) -> Result<(), (PostError, P::Source)> {
        let is_closing = self.is_closing();
        let (initiator, done) = self.parts();
        let source = match !is_closing && initiator.has_room_for(done, 1) {
            true => match initiator.post_short(state, to, write, source, context) {
                Ok(()) => return Ok(()),
                Err(source) => source,
            },
            false => source,
        };
        self.write_any(state, to, write, source, context)
    }

    #[inline(never)]
    fn write_any<T: Tx>(
        &mut self,
        state: &mut State<T>,
        to: u32,
        write: Write,
        source: P::Source,
        context: u64,
    ) -> Result<(), (PostError, P::Source)> {
        if let Err(error) = self.may_post(state, to) {
            return Err((error, source));
        }
        self.post_admitted(state, to, context, Kind::write(write, source));
        Ok(())
    }

    /// Reads from a region of the peer at index `to`, as much as the target has room for. It is done when all bytes are in the target.
    /// Does not block.
    ///
    /// # Errors
    /// If it was not posted; the target comes back.
    pub fn try_read<T: Tx>(
        &mut self,
        state: &mut State<T>,
        to: u32,
        place: Place,
        target: P::Target,
        context: u64,
    ) -> Result<(), (PostError, P::Target)> {
        if let Err(error) = self.may_post(state, to) {
            return Err((error, target));
        }
        self.post_admitted(state, to, context, Kind::Read { place, len: target.len(), target: Some(target) });
        Ok(())
    }

    /// Changes the words at a place in a region of the peer at index `to`, each in one step: as many as there are operands. The operands
    /// are copied. It is done when all words are changed and the old values, if they are wanted, are in the target. Does not block.
    ///
    /// # Errors
    /// If it was not posted.
    pub fn try_change<T: Tx>(
        &mut self,
        state: &mut State<T>,
        to: u32,
        change: Change,
        operands: &[u8],
        fetch: Fetch<'_, P::Target>,
        context: u64,
    ) -> Result<(), PostError> {
        let kind = Kind::change(change, operands, fetch)?;
        self.may_post(state, to)?;
        self.post_admitted(state, to, context, kind);
        Ok(())
    }
}
