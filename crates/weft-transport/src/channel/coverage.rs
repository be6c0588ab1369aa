//! How much of a packet its checksum covers, where both sides of the channel leave payloads to UDP's checksum and the link.
//!
//! Each packet says how much. Everything that the two sides act on is always covered: the header, all frames except the
//! bytes of the last one, and of these the first [`RECORD_COVERED`] bytes of each record.

use super::Channel;
use crate::congestion::Congestion;
use crate::memory::Memory;
use weft_wire::frame::{Frame, Frames, Piece, HEADER_INTEGRITY};
use weft_wire::packet::{Integrity, HEADER, RECORD_COVERED};

/// In packets up to this size the checksum covers everything: there is almost nothing to leave out.
pub(super) const PARTLY_LEAST: usize = 2 * RECORD_COVERED;

impl<C: Congestion, M: Memory> Channel<C, M> {
    /// What the checksums of packets cover: everything, unless both sides asked at set-up for [`Integrity::Header`].
    #[inline]
    pub fn integrity(&self) -> Integrity {
        match self.terms.features & HEADER_INTEGRITY {
            0 => Integrity::Full,
            _ => Integrity::Header,
        }
    }

    /// What this side has asked for.
    pub fn integrity_wanted(&self) -> Integrity {
        self.settings.integrity
    }

    /// Whether packets built now may leave payloads out: the peer has agreed, and knows that we agreed.
    #[inline]
    pub(super) fn leaves_payloads_out(&self) -> bool {
        self.terms.features & HEADER_INTEGRITY != 0 && !self.is_unconfirmed
    }

    /// How much of a packet with written frames its checksum has to cover.
    #[inline(never)]
    pub(super) fn covered(&mut self, packet: &[u8]) -> usize {
        let (bytes, covered) = match Frames::new(&packet[HEADER..]).last() {
            Some(Ok(Frame::Records { stream, offset, bytes })) => {
                (bytes.len(), self.streams.covered(stream, offset, bytes.len()))
            }
            Some(Ok(Frame::Unreliable(Piece { at, bytes, .. }))) => {
                (bytes.len(), RECORD_COVERED.saturating_sub(at as usize).min(bytes.len()))
            }
            _ => return packet.len(),
        };
        packet.len() - (bytes - covered)
    }
}
