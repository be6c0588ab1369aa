//! Memory for streams that have much under way, as the owner of a channel provides it.

use std::ops::{Deref, Range};

/// Bytes that packets go out from, where they lie.
///
/// A link may hand the memory itself to whoever sends, which then reads it after the call: the kernel, until the packet was received. So memory
/// for such a link is used for nothing else when it is dropped, as the heap would use it; whoever has it mapped gives the mapping back.
pub trait Memory: AsRef<[u8]> + AsMut<[u8]> + std::fmt::Debug {
    /// So many bytes, all zero.
    fn zeroed(bytes: usize) -> Self;
}

/// Packets that lie one behind the other where their stream is kept.
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
