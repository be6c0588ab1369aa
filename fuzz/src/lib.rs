//! Code shared by the targets. `scripts/fuzz.sh` builds and runs them; `fuzz/corpus` has the inputs that each begins with.
#![forbid(unsafe_code)]

use weft_wire::packet::{Header, HEADER};

/// Reads an input from its beginning.
#[derive(Debug)]
pub struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    /// The next byte.
    pub fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    /// The next two bytes.
    pub fn word(&mut self) -> Option<u16> {
        Some(u16::from_le_bytes([self.byte()?, self.byte()?]))
    }

    /// The next `most` bytes, or what is left.
    pub fn take(&mut self, most: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(most.min(self.0.len()));
        self.0 = rest;
        taken
    }
}

/// A packet with this header and these frames, and the right checksum.
pub fn sealed(header: Header, frames: &[u8]) -> Vec<u8> {
    let mut packet = vec![0; HEADER];
    packet.extend_from_slice(frames);
    header.seal(&mut packet);
    packet
}
