//! The owner's side: peers' operations on the regions here.

mod pulls;
mod short;

use self::pulls::Pulls;
use crate::engine::{Counters, Notice, Settings};
use crate::platform::Space;
use crate::table::{Grant, RegionId, Rights, Table};
use crate::tally::Access;
use std::collections::{BTreeMap, VecDeque};
use weft_core::bulk::Placement;
use weft_core::{Delivery, FlowId, MessageKind, State};
use weft_wire::memory::{Atomic, Credential, Mark, Place, Type, Word};
use weft_wire::path::Tx;
use weft_wire::{Reason, MAX_PAYLOAD};

/// Pulls of a flow, at most, at a time.
pub(crate) const PULLS_MOST: usize = 4;

/// A write of which more bytes are to come on its flow.
#[derive(Debug)]
struct Incoming {
    /// The region that the bytes go to, or the reason why they are discarded.
    to: Result<RegionId, Reason>,
    /// The credential they are written by.
    by: Credential,
    rest: Placement,
    /// Where the write begins, and the notice for its end.
    notice: Option<Notice>,
    /// Whether its operation goes on after it.
    is_part: bool,
}

/// A write as its message describes it, without its destination.
#[derive(Clone, Copy, Debug)]
struct Writing {
    len: u64,
    notice: Option<u64>,
    is_part: bool,
}

/// The regions here, and peers' operations on them.
#[derive(Debug)]
pub(crate) struct Owner<S> {
    pub table: Table<S>,
    pub notices: VecDeque<Notice>,
    notices_most: usize,
    unread_bytes_most: usize,
    /// Notices of writes that are not complete.
    notices_to_come: usize,
    pub counters: Counters,
    /// Operations that were counted in tallies. Wraps around.
    pub tallied: usize,
    /// By flow, at most one of each.
    incoming: BTreeMap<FlowId, Incoming>,
    /// Whether neighbours may map regions.
    is_direct: bool,
    pulls: Pulls,
    /// Bytes that were read, on their way into the reply.
    copy: Vec<u8>,
}

impl<S: Space> Owner<S> {
    pub fn new(settings: Settings) -> Owner<S> {
        Owner {
            table: Table::new(settings.regions_most, settings.cookies_most),
            notices: VecDeque::new(),
            notices_most: settings.notices_most,
            unread_bytes_most: settings.unread_bytes_most,
            notices_to_come: 0,
            counters: Counters::default(),
            tallied: 0,
            incoming: BTreeMap::new(),
            is_direct: settings.is_direct,
            pulls: Pulls::default(),
            copy: Vec::new(),
        }
    }

    /// Carries out the operation that a peer asks for, or refuses it.
    pub fn execute<T: Tx>(&mut self, state: &mut State<T>, message: &Delivery<'_>, word: Word) -> Result<(), Reason> {
        let done = match (word, message.kind()) {
            (_, MessageKind::Request) if self.is_unread(state, message) => Err(Reason::QueueFull),
            (Word::Write { place, len, notice, mark: None, is_part }, MessageKind::OneWay) => {
                self.write(message.flow(), place, Writing { len, notice, is_part }, message.payload)
            }
            (Word::Write { place, len, notice, mark: Some(mark), is_part }, MessageKind::Request) => {
                self.write_whole(state, message, place, Writing { len, notice, is_part }, mark)
            }
            (Word::Data, MessageKind::OneWay) => self.data(message.flow(), message.payload),
            (Word::Read { place, len, mark, is_part }, MessageKind::Request) => {
                self.read(state, message, (place, len), mark, is_part)
            }
            (Word::Attach { by, mark }, MessageKind::Request) => self.attach(state, message, by, mark),
            (Word::Atomic { place, atomic, of, mark, is_part }, _) => {
                self.atomic(state, message, place, (atomic, of), (mark, is_part))
            }
            (Word::Pull { place, len, notice, mark, is_part }, MessageKind::Request) => {
                self.take_up(state, message, place, Writing { len, notice, is_part }, mark)
            }
            _ => Err(Reason::NoHandler),
        };
        if let Err(reason) = done {
            self.count_refusal(reason);
        }
        done
    }

    /// Whether the peer leaves answers unread, and all such peers together exceed the bound of bytes.
    fn is_unread<T: Tx>(&self, state: &State<T>, message: &Delivery<'_>) -> bool {
        state.unread_by(message.flow().session) > 0 && state.unread() > self.unread_bytes_most
    }

    fn count_refusal(&mut self, reason: Reason) {
        self.counters.refused += 1;
        self.counters.refused_revoked += u64::from(reason == Reason::Revoked);
    }

    /// Whether a message depends on the time, because its region or cookie ends in time.
    pub fn needs_time(&self, message: &Delivery<'_>) -> bool {
        match Word::unpack(message.op(), message.args) {
            Some(
                Word::Write { place, .. }
                | Word::Read { place, .. }
                | Word::Atomic { place, .. }
                | Word::Pull { place, .. },
            ) => self.table.is_timed(place.by),
            Some(Word::Attach { by, .. }) => self.table.is_timed(by),
            Some(Word::Data) => {
                let incoming = self.incoming.get(&message.flow());
                incoming.is_some_and(|incoming| self.table.is_timed(incoming.by))
            }
            Some(Word::Bytes(_) | Word::Pulled(..)) | None => false,
        }
    }

    /// A flow has closed: nothing more comes by it.
    pub fn flow_closed(&mut self, flow: FlowId) {
        self.forget(flow);
        self.table.flow_closed(flow);
        self.flow_of_pulls_closed(flow);
    }

    fn forget(&mut self, flow: FlowId) {
        if let Some(Incoming { notice: Some(_), .. }) = self.incoming.remove(&flow) {
            self.notices_to_come = self.notices_to_come.saturating_sub(1);
        }
    }

    fn write(&mut self, flow: FlowId, place: Place, writing: Writing, payload: &[u8]) -> Result<(), Reason> {
        // The initiator gave up the write before this one.
        self.forget(flow);
        let begun = self.begin(place, writing, payload);
        let Writing { len, is_part, .. } = writing;
        let first = payload.len() as u64;
        if first >= len {
            let (grant, notice) = begun?;
            self.end(grant.counted(), is_part, notice);
            return Ok(());
        }
        let (to, at, notice) = match begun {
            Ok((grant, notice)) => (Ok(grant.region), grant.at.saturating_add(first), notice),
            Err(reason) => (Err(reason), 0, None),
        };
        self.notices_to_come += usize::from(notice.is_some());
        let rest = Placement::new(at, len - first);
        self.incoming.insert(flow, Incoming { to, by: place.by, rest, notice, is_part });
        begun.map(|_| ())
    }

    /// A write in one message, which is answered.
    fn write_whole<T: Tx>(
        &mut self,
        state: &mut State<T>,
        message: &Delivery<'_>,
        place: Place,
        writing: Writing,
        mark: Mark,
    ) -> Result<(), Reason> {
        if writing.len != message.payload.len() as u64 {
            return Err(Reason::Violation);
        }
        let (grant, notice) = self.begin(place, writing, message.payload)?;
        self.end(grant.counted(), writing.is_part, notice);
        answer(state, message, mark, &[]);
        Ok(())
    }

    /// Checks the range of the whole write, and stores its first bytes.
    fn begin(
        &mut self,
        place: Place,
        Writing { len, notice, .. }: Writing,
        payload: &[u8],
    ) -> Result<(Grant, Option<Notice>), Reason> {
        let first = payload.len() as u64;
        let (grant, space) = self.table.check(place, len.max(first), Rights::WRITE)?;
        if first > len {
            return Err(Reason::Violation);
        }
        if notice.is_some() && self.notices.len() + self.notices_to_come >= self.notices_most {
            return Err(Reason::QueueFull);
        }
        if !space.write(grant.at, payload) {
            return Err(Reason::OutsideRegion);
        }
        self.counters.bytes_written += first;
        Ok((grant, notice.map(|value| Notice { region: grant.region, at: grant.at, len, value })))
    }

    /// A write is complete. It is tallied if its region is.
    fn end(&mut self, region: Option<RegionId>, is_part: bool, notice: Option<Notice>) {
        self.counters.writes += 1;
        self.notices.extend(notice);
        if let Some(region) = region {
            self.tally(region, Access::Write, is_part);
        }
    }

    /// Tallies an operation, or a part of one, if its region is counted.
    #[cold]
    fn tally(&mut self, region: RegionId, access: Access, is_part: bool) {
        if !is_part && self.table.add(region, access) {
            self.tallied = self.tallied.wrapping_add(1);
        }
    }

    fn data(&mut self, flow: FlowId, payload: &[u8]) -> Result<(), Reason> {
        let incoming = self.incoming.get_mut(&flow).ok_or(Reason::Violation)?;
        let at = incoming.rest.next(payload.len())?;
        let stored = incoming.to.and_then(|region| {
            let space = self.table.check_again(region, incoming.by)?;
            space.write(at, payload).then_some(region).ok_or(Reason::OutsideRegion)
        });
        incoming.to = stored;
        if stored.is_err() && incoming.notice.take().is_some() {
            // The rest of the write is refused too, even if a region is opened there meanwhile.
            self.notices_to_come = self.notices_to_come.saturating_sub(1);
        }
        let (is_whole, notice, is_part) = (incoming.rest.is_whole(), incoming.notice, incoming.is_part);
        if is_whole {
            self.forget(flow);
        }
        let region = stored?;
        self.counters.bytes_written += payload.len() as u64;
        if is_whole {
            self.end(Some(region), is_part, notice);
        }
        Ok(())
    }

    fn read<T: Tx>(
        &mut self,
        state: &mut State<T>,
        message: &Delivery<'_>,
        (place, len): (Place, u32),
        mark: Mark,
        is_part: bool,
    ) -> Result<(), Reason> {
        let (grant, space) = self.table.check(place, u64::from(len), Rights::READ)?;
        let len = usize::try_from(len).ok().filter(|&len| len <= MAX_PAYLOAD).ok_or(Reason::OutsideRegion)?;
        self.copy.resize(len, 0);
        if !space.read(grant.at, &mut self.copy) {
            return Err(Reason::OutsideRegion);
        }
        self.counters.reads += 1;
        self.counters.bytes_read += len as u64;
        answer(state, message, mark, &self.copy);
        if grant.is_counted {
            self.tally(grant.region, Access::Read, is_part);
        }
        Ok(())
    }

    /// Tells a neighbour how to map the memory of a credential.
    #[cold]
    fn attach<T: Tx>(
        &mut self,
        state: &mut State<T>,
        message: &Delivery<'_>,
        by: Credential,
        mark: Mark,
    ) -> Result<(), Reason> {
        let is_neighbour = self.is_direct && state.neighbour(message.flow().session).is_some();
        let mappable = self.table.offer(by, Some(message.flow()).filter(|_| is_neighbour))?;
        self.copy.clear();
        if let Some(mappable) = mappable {
            mappable.write_to(&mut self.copy);
        }
        answer(state, message, mark, &self.copy);
        Ok(())
    }

    fn atomic<T: Tx>(
        &mut self,
        state: &mut State<T>,
        message: &Delivery<'_>,
        place: Place,
        (atomic, of): (Atomic, Type),
        (mark, is_part): (Mark, bool),
    ) -> Result<(), Reason> {
        let bytes = of.bytes();
        let operands = match atomic.has_second() {
            true => message.payload.len() / 2,
            false => message.payload.len(),
        };
        let is_whole = operands > 0 && operands % bytes == 0 && atomic.is_for(of);
        if !is_whole || (atomic.has_second() && message.payload.len() % 2 != 0) {
            return Err(Reason::Unaligned);
        }
        let (grant, space) = self.table.check(place, operands as u64, Rights::ATOMIC)?;
        // If the first word is aligned, so are the others.
        if !space.is_word(grant.at, bytes) {
            return Err(Reason::Unaligned);
        }
        if !space.can_be_changed(grant.at, operands as u64) {
            return Err(Reason::OutsideRegion);
        }
        let (first, second) = message.payload.split_at(operands);
        self.copy.clear();
        for (at, operand) in (grant.at..).step_by(bytes).zip(first.chunks_exact(bytes)) {
            let from = usize::try_from(at - grant.at).unwrap_or(usize::MAX);
            let other = second.get(from..from.saturating_add(bytes)).map_or(0, word);
            let old = space.update(at, bytes, |old| atomic.apply(of, old, word(operand), other));
            self.copy.extend_from_slice(&old.unwrap_or_default().to_le_bytes()[..bytes]);
        }
        self.counters.atomics += (operands / bytes) as u64;
        answer(state, message, mark, &self.copy);
        if grant.is_counted {
            let access = match (atomic, message.kind()) {
                (Atomic::Read, _) => Access::Read,
                (_, MessageKind::Request) => Access::Fetch,
                _ => Access::Write,
            };
            self.tally(grant.region, access, is_part);
        }
        Ok(())
    }
}

/// A word of 8 bytes at most.
pub(crate) fn word(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

/// Answers a request. A one-way message gets no answer.
fn answer<T: Tx>(state: &mut State<T>, message: &Delivery<'_>, mark: Mark, bytes: &[u8]) {
    if let Some(token) = message.take_reply() {
        let packed = Word::Bytes(mark).pack();
        // Fails only if the peer is gone, and then nobody waits.
        let _ = state.reply(token, packed.op, packed.args(), bytes);
    }
}
