//! Memory for streams with much data in flight, provided by the owner of a channel.

use std::ops::{Deref, Range};

/// Bytes from which packets are sent without a copy.
///
/// A link may pass the memory itself to the kernel, which reads it after the call until the packet was received. So
/// memory for such a link must not be reused when it is dropped, as the heap would reuse it: an implementation that
/// maps memory unmaps it.
pub trait Memory: AsRef<[u8]> + AsMut<[u8]> + std::fmt::Debug {
    /// `bytes` bytes, all zero.
    fn zeroed(bytes: usize) -> Self;
}

/// Packets that lie one after the other in the memory of their stream.
#[derive(Debug)]
pub struct Packets<'a, M> {
    /// The memory of the stream.
    pub memory: &'a M,
    /// Where they lie in it.
    pub place: Range<usize>,
}

impl<M: Memory> Deref for Packets<'_, M> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.memory.as_ref()[self.place.clone()]
    }
}

/// For links that copy.
impl Memory for Vec<u8> {
    fn zeroed(bytes: usize) -> Vec<u8> {
        vec![0; bytes]
    }
}
