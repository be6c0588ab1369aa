//! The calls of operations on lists.

use super::{Memory, PostError, ReadList, Source, Target, WriteList};

/// The buffers of an operation on lists, given back to the program: those that weft owned, in their order.
#[derive(PartialEq, Eq, Debug)]
pub struct Buffers {
    /// The buffers that were sent from.
    pub sources: Vec<Vec<u8>>,
    /// The buffers that were received into.
    pub targets: Vec<Vec<u8>>,
}

#[cold]
#[inline(never)]
pub(super) fn give_back(buffers: weft_memory::Buffers<super::Platform>) -> Box<Buffers> {
    Box::new(Buffers {
        sources: buffers.sources.into_iter().filter_map(Source::give_back).collect(),
        targets: buffers.targets.into_iter().filter_map(Target::give_back).collect(),
    })
}

impl Memory<'_> {
    /// Writes the bytes of a list of buffers, one after the other, to parts of a region of the peer at index `to`. Like [one
    /// write](Memory::try_write) it has one end: [`Outcome::Done`](super::Outcome::Done) when all bytes are stored there. The owner
    /// checks each part separately. If one is refused, later parts may have been stored; then the write fails with
    /// [*unknown*](crate::Certainty::Unknown).
    ///
    /// Both lists have [`LIST_MOST`](super::LIST_MOST) items at most. Each piece between two boundaries of either side is a message and
    /// counts as an operation.
    ///
    /// ```
    /// use weft::memory::{Outcome, Part, RegionKey, Rights, Settings, WriteList};
    /// use weft::{Bundle, Key, Node};
    ///
    /// let mut bundle = Bundle::new(&Node::new()?)?;
    /// let me = bundle.memory_endpoint(Key(1), Settings::default())?;
    /// bundle.map(me, 0, bundle.name(me)?, Key(1))?;
    /// let (_, window) = bundle.memory(me)?.allocate(64, RegionKey(7), Rights::ALL)?;
    /// let parts = [Part { at: 0, len: 4 }, Part { at: 10, len: 2 }];
    /// let list = WriteList::to(RegionKey(7), &parts);
    /// let buffers = vec![b"abc".to_vec().into(), b"def".to_vec().into()];
    /// bundle.memory(me)?.try_write_list(0, list, buffers, 1).map_err(|(error, _)| error)?;
    /// bundle.poll_until(|bundle| {
    ///     let end = bundle.memory(me).ok().and_then(|mut memory| memory.next_completion());
    ///     end.is_some_and(|end| end.outcome == Outcome::Done)
    /// });
    /// let mut seen = [0; 12];
    /// assert!(window.read(0, &mut seen));
    /// assert_eq!(&seen, b"abcd\0\0\0\0\0\0ef");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// If it was not posted; the buffers come back. [`PostError::NoSuchList`] if a list is too long, or the two sides differ in
    /// their number of bytes.
    pub fn try_write_list(
        &mut self,
        to: u32,
        write: WriteList<'_>,
        sources: Vec<Source>,
        context: u64,
    ) -> Result<(), (PostError, Vec<Source>)> {
        self.engine.try_write_list(self.state, to, write, sources, context)
    }

    /// Reads parts of a region of the peer at index `to` into a list of buffers, until these are full. Has one end:
    /// [`Outcome::Done`](super::Outcome::Done) when all bytes are in the buffers. Otherwise as [`Memory::try_write_list`].
    ///
    /// # Errors
    /// As [`Memory::try_write_list`].
    pub fn try_read_list(
        &mut self,
        to: u32,
        read: ReadList<'_>,
        targets: Vec<Target>,
        context: u64,
    ) -> Result<(), (PostError, Vec<Target>)> {
        self.engine.try_read_list(self.state, to, read, targets, context)
    }
}
