//! Where the pieces of a transfer go.

use weft_wire::Reason;

/// An incoming transfer, as its receiver sees it. Its pieces arrive in order, and their lengths determine where they go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placement {
    /// Where the next byte goes.
    at: u64,
    left: u64,
}

impl Placement {
    /// Expects `len` bytes, which go to `at` and after it. The caller has checked that there is room for all of them.
    pub fn new(at: u64, len: u64) -> Placement {
        Placement { at, left: len }
    }

    /// Takes the next piece, of `len` bytes. Returns where its first byte goes.
    ///
    /// # Errors
    /// [`Reason::Violation`] if the piece has no bytes, or more than are expected. Nothing changes then.
    #[inline(always)]
    pub fn next(&mut self, len: usize) -> Result<u64, Reason> {
        let (at, len) = (self.at, len as u64);
        if len == 0 || len > self.left {
            return Err(Reason::Violation);
        }
        self.left -= len;
        self.at = at.saturating_add(len);
        Ok(at)
    }

    /// Whether all bytes have arrived.
    #[inline(always)]
    pub fn is_whole(&self) -> bool {
        self.left == 0
    }
}
