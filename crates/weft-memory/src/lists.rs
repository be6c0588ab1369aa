//! Operations on lists: several buffers here, several parts of a region there, and one completion for all.
//!
//! A list is cut into *runs* of bytes that are contiguous on both sides. Each run is an operation of the [initiator](crate::initiator). The
//! list counts the runs that have not ended, and combines their outcomes.

use crate::engine::{Completion, Engine, Outcome, PostError};
use crate::initiator::{Kind, Posting, Special, Write};
use crate::platform::{Platform, Source, Target};
use crate::table::Part;
use slab::Slab;
use std::collections::VecDeque;
use std::num::NonZeroU32;
use weft_core::bulk::{Failure, Sum};
use weft_core::State;
use weft_wire::memory::{Credential, Place};
use weft_wire::path::Tx;
use weft_wire::{Certainty, Reason};

/// Parts of a region, and buffers, that an operation on lists may have at most, of each.
pub const LIST_MOST: usize = 64;

/// A write from a list of buffers to parts of a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WriteList<'a> {
    /// The region.
    pub by: Credential,
    /// The parts, in the order in which the buffers' bytes go to them: [`LIST_MOST`] at most.
    pub parts: &'a [Part],
    /// A value for the owner's program, delivered with a notice when all bytes are stored.
    pub notice: Option<u64>,
    /// Whether one more completion says when the buffers are free.
    pub tells_when_free: bool,
}

impl<'a> WriteList<'a> {
    /// A write to parts of a region, without a notice, with one completion.
    #[must_use]
    pub fn to(by: impl Into<Credential>, parts: &'a [Part]) -> WriteList<'a> {
        WriteList { by: by.into(), parts, notice: None, tells_when_free: false }
    }

    /// The same, with a notice for the owner's program. The last bytes leave when all others are stored, which takes a round trip.
    #[must_use]
    pub fn with_notice(self, value: u64) -> WriteList<'a> {
        WriteList { notice: Some(value), ..self }
    }

    /// The same, with one more completion when the buffers are free.
    #[must_use]
    pub fn telling_when_free(self) -> WriteList<'a> {
        WriteList { tells_when_free: true, ..self }
    }
}

/// A read from parts of a region into a list of buffers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadList<'a> {
    /// The region.
    pub by: Credential,
    /// The parts, in the order in which their bytes go to the buffers: [`LIST_MOST`] at most.
    pub parts: &'a [Part],
}

impl<'a> ReadList<'a> {
    /// A read from parts of a region.
    #[must_use]
    pub fn from(by: impl Into<Credential>, parts: &'a [Part]) -> ReadList<'a> {
        ReadList { by: by.into(), parts }
    }
}

/// The buffers of an operation on lists, given back to the program.
#[derive(Debug)]
pub struct Buffers<P: Platform> {
    /// What was sent.
    pub sources: Vec<P::Source>,
    /// What was received into.
    pub targets: Vec<P::Target>,
}

/// Where the bytes of one run of a list are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    list: NonZeroU32,
    /// Below [`LIST_MOST`].
    buffer: u16,
    /// Whether more runs of the list follow it.
    pub is_part: bool,
    at: usize,
}

impl Run {
    /// There are no more than 2^32 lists: `operations_most` bounds them, and the initiator numbers its operations by as many bits.
    fn new(list: usize, buffer: usize, at: usize, is_part: bool) -> Run {
        Run { list: NonZeroU32::MIN.saturating_add(list as u32), buffer: buffer as u16, is_part, at }
    }

    fn list(self) -> usize {
        self.list.get() as usize - 1
    }

    pub fn is_of_the_same_list(self, other: Run) -> bool {
        self.list == other.list
    }
}

/// A list whose runs have not all ended.
#[derive(Debug)]
struct List<P: Platform> {
    context: u64,
    buffers: Buffers<P>,
    tells_when_free: bool,
    /// Runs that have not wholly left.
    to_leave: usize,
    /// The state of its runs.
    runs: Sum,
}

/// The lists of an endpoint.
#[derive(Debug)]
pub(crate) struct Lists<P: Platform>(Slab<List<P>>);

impl<P: Platform> Lists<P> {
    pub fn new() -> Lists<P> {
        Lists(Slab::new())
    }

    pub fn close(&mut self) {
        self.0.clear();
    }

    /// The bytes of a run to send.
    pub fn bytes(&self, run: Run, at: usize, len: usize) -> &[u8] {
        let source = self.0.get(run.list()).and_then(|list| list.buffers.sources.get(run.buffer as usize));
        let from = run.at.saturating_add(at);
        source.and_then(|source| source.bytes().get(from..from.saturating_add(len))).unwrap_or_default()
    }

    /// The reason why a run of a list has failed, if one has and others have not ended.
    fn failure(&self, list: usize) -> Option<Reason> {
        self.0.get(list).and_then(|list| list.runs.failure())
    }

    /// The address of the bytes of a run, if another process can read them there.
    pub fn address(&self, run: Run) -> Option<u64> {
        let source = self.0.get(run.list())?.buffers.sources.get(run.buffer as usize)?;
        source.address()?.checked_add(run.at as u64)
    }

    /// Stores arriving bytes of a run.
    pub fn write(&mut self, run: Run, at: usize, bytes: &[u8]) {
        let list = self.0.get_mut(run.list());
        if let Some(target) = list.and_then(|list| list.buffers.targets.get_mut(run.buffer as usize)) {
            target.write(run.at.saturating_add(at), bytes);
        }
    }

    /// Where arriving bytes of a run go: a target, and the offset in it.
    pub fn room(&mut self, run: Run) -> Option<(&mut P::Target, usize)> {
        let list = self.0.get_mut(run.list())?;
        list.buffers.targets.get_mut(run.buffer as usize).map(|target| (target, run.at))
    }

    /// All of a run has left.
    pub fn run_left(&mut self, done: &mut VecDeque<Completion<P>>, run: Run) {
        let Some(list) = self.0.get_mut(run.list()) else { return };
        list.to_leave = list.to_leave.saturating_sub(1);
        if list.to_leave == 0 && list.tells_when_free {
            let sources = std::mem::take(&mut list.buffers.sources);
            let buffers = Some(Box::new(Buffers { sources, targets: Vec::new() }));
            let (context, outcome) = (list.context, Outcome::Free);
            done.push_back(Completion { context, outcome, source: None, target: None, buffers, mapped: None });
        }
    }

    /// A run has ended. True if it is the first of its list to fail: the others need not leave.
    pub fn run_ended(&mut self, done: &mut VecDeque<Completion<P>>, run: Run, end: Result<(), Failure>) -> bool {
        let Some(list) = self.0.get_mut(run.list()) else { return false };
        let is_first = end.is_err() && !list.runs.has_failed();
        list.runs.on_end(end);
        let Some(end) = list.runs.outcome() else { return is_first };
        let (list, outcome) = (self.0.remove(run.list()), Outcome::from(end));
        let (context, buffers) = (list.context, Some(Box::new(list.buffers)));
        done.push_back(Completion { context, outcome, source: None, target: None, buffers, mapped: None });
        false
    }
}

/// Bytes that are contiguous on both sides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Cut {
    /// The offset in the region.
    there: u64,
    buffer: usize,
    /// The offset in the buffer.
    here: usize,
    len: usize,
}

/// Cuts a list into its runs: at least one, in order. `None` if it is too long, or the two sides differ in their number of bytes.
fn cut(parts: &[Part], buffers: &[usize]) -> Option<Vec<Cut>> {
    if parts.len() > LIST_MOST || buffers.len() > LIST_MOST {
        return None;
    }
    let mut cuts = Vec::with_capacity(parts.len() + buffers.len());
    let mut rest = buffers.iter().copied().enumerate().filter(|(_, len)| *len > 0);
    let (mut buffer, mut here, mut room) = (0, 0, 0);
    for part in parts {
        let mut done = 0;
        while done < part.len {
            if room == 0 {
                ((buffer, room), here) = (rest.next()?, 0);
            }
            let len = room.min(usize::try_from(part.len - done).unwrap_or(usize::MAX));
            cuts.push(Cut { there: part.at.saturating_add(done), buffer, here, len });
            (done, here, room) = (done + len as u64, here + len, room - len);
        }
    }
    if room > 0 || rest.next().is_some() {
        return None;
    }
    if cuts.is_empty() {
        let there = parts.first().map_or(0, |part| part.at);
        cuts.push(Cut { there, buffer: 0, here: 0, len: 0 });
    }
    Some(cuts)
}

impl<P: Platform> Engine<P> {
    /// Writes the bytes of a list of buffers, one after the other, to parts of a region of the peer at index `to`. Parts of no bytes are
    /// skipped. Like a single write it has one end: it is done when all bytes are stored there. If the owner refuses a part, the parts
    /// behind it may already be stored; those not sent yet are not sent. Does not block.
    ///
    /// # Errors
    /// If it was not posted; the buffers come back.
    pub fn try_write_list<T: Tx>(
        &mut self,
        state: &mut State<T>,
        to: u32,
        write: WriteList<'_>,
        sources: Vec<P::Source>,
        context: u64,
    ) -> Result<(), (PostError, Vec<P::Source>)> {
        let lens: Vec<usize> = sources.iter().map(|source| source.bytes().len()).collect();
        let cuts = match self.may_post_list(state, to, write.parts, &lens) {
            Ok(cuts) => cuts,
            Err(error) => return Err((error, sources)),
        };
        let buffers = Buffers { sources, targets: Vec::new() };
        let list = self.add_list(context, buffers, cuts.len(), write.tells_when_free);
        let last = cuts.len() - 1;
        for (number, cut) in cuts.into_iter().enumerate() {
            let Cut { there, buffer, here, len } = cut;
            // The notice goes with the last run: it is true only once everything before is stored.
            let notice = write.notice.filter(|_| number == last);
            let is_fenced = notice.is_some() && last > 0;
            let run = Run::new(list, buffer, here, number < last);
            let write = Write { place: Place { by: write.by, at: there }, notice, tells_when_free: false };
            let posting = Posting { is_fenced, ..Posting::new(to, context) };
            self.post_run(state, run, posting, Kind::Write { write, source: None, len });
        }
        Ok(())
    }

    /// Reads parts of a region of the peer at index `to` into a list of buffers, as many bytes as the buffers have room for. It has one
    /// end: it is done when all bytes are in the buffers. Does not block.
    ///
    /// # Errors
    /// If it was not posted; the buffers come back.
    pub fn try_read_list<T: Tx>(
        &mut self,
        state: &mut State<T>,
        to: u32,
        read: ReadList<'_>,
        targets: Vec<P::Target>,
        context: u64,
    ) -> Result<(), (PostError, Vec<P::Target>)> {
        let lens: Vec<usize> = targets.iter().map(Target::len).collect();
        let cuts = match self.may_post_list(state, to, read.parts, &lens) {
            Ok(cuts) => cuts,
            Err(error) => return Err((error, targets)),
        };
        let list = self.add_list(context, Buffers { sources: Vec::new(), targets }, cuts.len(), false);
        let last = cuts.len() - 1;
        for (number, Cut { there, buffer, here, len }) in cuts.into_iter().enumerate() {
            let place = Place { by: read.by, at: there };
            let kind = Kind::Read { place, target: None, len };
            self.post_run(state, Run::new(list, buffer, here, number < last), Posting::new(to, context), kind);
        }
        Ok(())
    }

    /// Posts a run of a list, unless an earlier run has failed.
    fn post_run<T: Tx>(&mut self, state: &mut State<T>, run: Run, posting: Posting, kind: Kind<P::Source, P::Target>) {
        let (initiator, done) = self.parts();
        if let Some(reason) = initiator.lists.failure(run.list()) {
            let failure = Failure { reason, certainty: Certainty::NotDelivered };
            initiator.lists.run_ended(done, run, Err(failure));
            return state.note();
        }
        let special = Some(Box::new(Special::Run(run)));
        initiator.post(state, done, Posting { special, ..posting }, kind);
    }

    fn may_post_list<T: Tx>(
        &mut self,
        state: &State<T>,
        to: u32,
        parts: &[Part],
        buffers: &[usize],
    ) -> Result<Vec<Cut>, PostError> {
        let cuts = cut(parts, buffers).ok_or(PostError::NoSuchList)?;
        self.may_post(state, to)?;
        let (initiator, done) = self.parts();
        match initiator.has_room_for(done, cuts.len()) {
            true => Ok(cuts),
            false => Err(PostError::Full),
        }
    }

    fn add_list(&mut self, context: u64, buffers: Buffers<P>, runs: usize, tells_when_free: bool) -> usize {
        let (initiator, _) = self.parts();
        // At most one run for each part and each buffer.
        let list = List { context, buffers, tells_when_free, to_leave: runs, runs: Sum::of(runs as u32) };
        initiator.lists.0.insert(list)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn part(at: u64, len: u64) -> Part {
        Part { at, len }
    }

    #[test]
    fn lists_are_cut_where_either_side_ends() {
        let cuts = cut(&[part(100, 5), part(0, 0), part(7, 10)], &[3, 0, 4, 8]).expect("15 bytes on both sides");
        let expected = [(100, 0, 0, 3), (103, 2, 0, 2), (7, 2, 2, 2), (9, 3, 0, 8)];
        assert_eq!(cuts, expected.map(|(there, buffer, here, len)| Cut { there, buffer, here, len }));
        assert_eq!(cut(&[part(9, 0)], &[]), Some(vec![Cut { there: 9, buffer: 0, here: 0, len: 0 }]));
        assert_eq!(
            cut(&[part(u64::MAX, 2)], &[1, 1]).map(|cuts| cuts[1].there),
            Some(u64::MAX),
            "the owner refuses it"
        );
        for (parts, buffers) in [(vec![part(0, 2)], vec![1]), (vec![part(0, 1)], vec![1, 1]), (vec![], vec![1])] {
            assert_eq!(cut(&parts, &buffers), None, "{parts:?} {buffers:?}");
        }
        assert_eq!(cut(&[part(0, u64::MAX); 2], &[1]), None);
        assert_eq!(cut(&[part(0, 1); LIST_MOST + 1], &[LIST_MOST + 1]), None);
        assert_eq!(cut(&[part(0, LIST_MOST as u64 + 1)], &[1; LIST_MOST + 1]), None);
        assert!(cut(&[part(0, 1); LIST_MOST], &[1; LIST_MOST]).is_some());
    }

    proptest! {
        #[test]
        fn runs_are_all_bytes_of_both_sides_in_order(parts in proptest::collection::vec(0u64..20, 0..12), at in 4usize..9) {
            let parts: Vec<Part> = parts.into_iter().enumerate().map(|(n, len)| part(n as u64 * 1000, len)).collect();
            let all: u64 = parts.iter().map(|part| part.len).sum();
            let buffers: Vec<usize> = (0..all as usize).step_by(at).map(|n| at.min(all as usize - n)).collect();
            let cuts = cut(&parts, &buffers).expect("as many bytes");
            let there: Vec<u64> = cuts.iter().flat_map(|cut| cut.there..cut.there + cut.len as u64).collect();
            let here: Vec<usize> = cuts.iter().flat_map(|cut| (0..cut.len).map(|n| cut.buffer * at + cut.here + n)).collect();
            prop_assert_eq!(there, parts.iter().flat_map(|part| part.at..part.at + part.len).collect::<Vec<_>>());
            prop_assert_eq!(here, (0..all as usize).collect::<Vec<_>>());
        }
    }
}
