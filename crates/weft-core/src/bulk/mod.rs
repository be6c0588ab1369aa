//! Bulk: contents of any length, which are sent in pieces, as messages or requests of a client.
//!
//! A *transfer* is a sequence of bytes with a single outcome. Its sender cuts it into pieces of [`PIECE`] bytes and
//! sends them in order; its receiver places them in order. The client decides what a message looks like, where bytes
//! come from and where they go. This module does the rest, without an operating system and without knowing a client:
//!
//! * [`Piece`]: where a transfer is cut.
//! * [`Departures`]: the transfers to one destination, in order, as far as there is room, a turn at a time ([`Turn`], [`Turns`]).
//! * [`Placement`]: where the next piece of a transfer goes at its receiver, and which pieces are invalid.
//! * [`Announced`]: contents that were announced to a receiver, which fetches them when it has room (*rendezvous*).
//! * [`Sum`]: one outcome from the outcomes of the pieces.
//!
//! `docs/design/bulk.md` has the reasons.
//!
//! ```
//! use weft_core::bulk::{Departures, Placement, Step, Turn};
//!
//! let contents = vec![7; 40_000];
//! let (mut departures, mut turn) = (Departures::default(), Turn::default());
//! let (mut placement, mut there) = (Placement::new(0, 40_000), vec![0; 40_000]);
//! departures.post("transfer", contents.len());
//! let step = departures.send(&mut turn, |_, piece| {
//!     // A client sends a message with these bytes. When it arrives, its receiver places them.
//!     let at = placement.next(piece.len).expect("the next piece") as usize;
//!     there[at..at + piece.len].copy_from_slice(&contents[piece.range()]);
//!     Ok(())
//! });
//! assert_eq!(step, Step::Left("transfer"));
//! assert!(placement.is_whole() && there == contents);
//! ```

mod announced;
mod departures;
mod placement;
mod sum;
#[cfg(test)]
mod tests;

pub use announced::{Announced, Demand};
pub use departures::{Departures, Step, Turn, Turns};
pub use placement::Placement;
pub use sum::{Failure, Sum};

use std::ops::Range;

/// Bytes of a piece: while one side copies a piece into the ring, the other copies one out of it.
pub const PIECE: usize = 16 << 10;

/// A piece of a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// How many pieces are before it.
    pub number: u32,
    /// Where its bytes begin in the transfer.
    pub at: usize,
    /// Its length: [`PIECE`], or the rest in the last piece.
    pub len: usize,
    /// No piece follows.
    pub is_last: bool,
}

impl Piece {
    /// The piece with this number of a transfer of `of` bytes. A piece beyond the end of the transfer has no bytes. An
    /// empty transfer is one empty piece.
    #[inline(always)]
    pub fn numbered(number: u32, of: usize) -> Piece {
        Piece::beginning(number, (number as usize).saturating_mul(PIECE), of)
    }

    /// All pieces of a transfer of `of` bytes.
    pub fn all(of: usize) -> impl Iterator<Item = Piece> {
        std::iter::successors(Some(Piece::numbered(0, of)), move |piece| (!piece.is_last).then(|| piece.following(of)))
    }

    /// The range of its bytes in the transfer.
    #[inline(always)]
    pub fn range(self) -> Range<usize> {
        self.at..self.at.saturating_add(self.len)
    }

    /// The piece behind it.
    #[inline(always)]
    fn following(self, of: usize) -> Piece {
        // Numbers wrap around after 64 TiB.
        Piece::beginning(self.number.wrapping_add(1), self.at.saturating_add(self.len), of)
    }

    #[inline(always)]
    fn beginning(number: u32, at: usize, of: usize) -> Piece {
        let left = of.saturating_sub(at);
        Piece { number, at, len: left.min(PIECE), is_last: left <= PIECE }
    }
}
