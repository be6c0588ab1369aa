//! An operation that was posted, and its state.

use super::calls::{Change, Fetch, Write};
use super::ANSWER_KEPT;
use crate::engine::PostError;
use crate::flush::Ticket;
use crate::lists::Run;
use crate::platform::{Platform, Source, Target};
use weft_core::bulk::{Piece, Sum, PIECE};
use weft_core::FlowId;
use weft_wire::memory::{Credential, Place};

#[derive(Debug)]
pub(crate) enum Kind<S, T> {
    /// The source is `None` in a run of a list: the list has the bytes.
    Write { write: Write, source: Option<S>, len: usize },
    /// The target is `None` in a run of a list: the list has the room.
    Read { place: Place, target: Option<T>, len: usize },
    /// The operands of each piece lie together, first operands before second ones.
    Atomic { change: Change, operands: Vec<u8>, len: usize, old: Option<T> },
    /// A request to map the memory of a credential here.
    Attach { by: Credential },
}

impl<S: Source, T: Target> Kind<S, T> {
    #[inline(always)]
    pub fn write(write: Write, source: S) -> Kind<S, T> {
        let len = source.bytes().len();
        Kind::Write { write, source: Some(source), len }
    }

    /// # Errors
    /// If there is no such operation.
    pub fn change(change: Change, operands: &[u8], fetch: Fetch<'_, T>) -> Result<Kind<S, T>, PostError> {
        let Change { atomic, of, .. } = change;
        let len = operands.len();
        let seconds = if atomic.has_second() { len } else { 0 };
        let is_right = len > 0 && len % of.bytes() == 0 && atomic.is_for(of) && fetch.second.len() == seconds;
        if !is_right || fetch.old.as_ref().is_some_and(|old| old.len() != len) {
            return Err(PostError::NoSuchAtomic);
        }
        let mut together = Vec::with_capacity(len + seconds);
        for piece in Piece::all(len) {
            together.extend_from_slice(&operands[piece.range()]);
            together.extend_from_slice(fetch.second.get(piece.range()).unwrap_or_default());
        }
        Ok(Kind::Atomic { change, operands: together, len, old: fetch.old })
    }
}

/// Where an operation goes, and how it was posted.
#[derive(Debug)]
pub(crate) struct Posting {
    pub to: u32,
    pub context: u64,
    pub special: Option<Box<Special>>,
    /// The operation begins when all earlier ones to the same destination have ended.
    pub is_fenced: bool,
}

impl Posting {
    pub fn run(&self) -> Option<Run> {
        match self.special.as_deref() {
            Some(Special::Run(run)) => Some(*run),
            _ => None,
        }
    }

    #[inline(always)]
    pub fn new(to: u32, context: u64) -> Posting {
        Posting { to, context, special: None, is_fenced: false }
    }
}

/// What only few operations have.
#[derive(Debug)]
pub(crate) enum Special {
    /// It is a run of a list. The list has the buffers, and tells the end of the whole.
    Run(Run),
    /// A call waits for its end.
    Call(Ticket),
    /// It is the engine's own.
    Own,
}

/// An operation that has not ended.
#[derive(Debug)]
pub(super) struct Operation<P: Platform> {
    pub context: u64,
    pub to: u32,
    pub is_fenced: bool,
    /// `None` for most operations, which keeps them small.
    pub special: Option<Box<Special>>,
    /// The number of the next flush posted after it.
    pub flush: u32,
    /// Distinguishes it from earlier operations in the same slot.
    pub serial: u32,
    /// The flow by which its pieces were sent, once one was.
    pub by: Option<FlowId>,
    pub kind: Kind<P::Source, P::Target>,
    /// The state of its pieces.
    pub pieces: Sum,
    /// Pieces that were answered. Replies come in the order of their requests.
    pub answered: u32,
    /// Whether the owner was asked to read its bytes and has not answered.
    pub is_pulled: bool,
}

impl<P: Platform> Operation<P> {
    /// Bytes in the owner's region.
    pub fn len(&self) -> usize {
        match &self.kind {
            Kind::Write { len, .. } | Kind::Read { len, .. } | Kind::Atomic { len, .. } => *len,
            Kind::Attach { .. } => 0,
        }
    }

    /// Bytes that the owner may have to keep for the answer to a piece. `None` if the answer has no bytes.
    #[inline(always)]
    pub fn answer_bytes(&self, piece: u32) -> Option<usize> {
        match &self.kind {
            Kind::Read { len, .. } | Kind::Atomic { len, old: Some(_), .. } => {
                Some(Piece::numbered(piece, *len).len + ANSWER_KEPT)
            }
            Kind::Write { .. } | Kind::Atomic { old: None, .. } | Kind::Attach { .. } => None,
        }
    }

    pub fn run(&self) -> Option<Run> {
        match self.special.as_deref() {
            Some(Special::Run(run)) => Some(*run),
            _ => None,
        }
    }
}

/// The operands of the word at an offset, laid out by [`Kind::change`].
pub(crate) fn operands(together: &[u8], len: usize, has_second: bool, at: usize, bytes: usize) -> (u64, u64) {
    let piece = Piece::numbered((at / PIECE) as u32, len);
    let begin = if has_second { piece.at.saturating_mul(2) } else { piece.at };
    let at = begin + (at - piece.at);
    let word = |at: usize| together.get(at..at + bytes).map_or(0, crate::owner::word);
    (word(at), if has_second { word(at + piece.len) } else { 0 })
}
