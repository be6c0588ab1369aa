//! Reads, writes and atomic operations on peers' memory: the common part of the calls in `rma.rs` and `atomic.rs`, and how operations end.

use crate::abi::{self, CqEntry, FiAddr};
use crate::addr::Peer;
use crate::bundle::{DomainBundle, Held};
use crate::ep::Ep;
use crate::info::{INJECT_MOST, OPERATIONS};
use crate::messages::{index, AGAIN, MEETING};
use crate::regions::Registrations;
use crate::state::{errno, CqState, EpState, Op, Reader, State};
use slab::Slab;
use std::ffi::c_int;
use std::time::Instant;
use weft::memory::{
    Change, Completion, Fetch, LentMut, Memory, Notice, Outcome, Part, Place, PostError, ReadList, RegionKey, Source,
    Tally, Target, Write, WriteList,
};
use weft::{Endpoint, Reason};

/// The part of an endpoint for remote memory: operations on peers' memory, and peers' operations here.
#[derive(Debug)]
pub struct EpMemory {
    pub endpoint: Endpoint,
    /// Which peers of the address vector are mapped: those that had an operation.
    mapped: Vec<bool>,
    /// Operations that have not ended.
    under_way: usize,
    /// Where peers' operations here are counted.
    pub tallies: Vec<Tally>,
}

impl EpMemory {
    pub fn new(endpoint: Endpoint) -> EpMemory {
        EpMemory { endpoint, mapped: Vec::new(), under_way: 0, tallies: Vec::new() }
    }

    fn has_mapped(&self, at: u32) -> bool {
        self.mapped.get(at as usize) == Some(&true)
    }

    /// Maps a peer.
    ///
    /// # Errors
    /// The call's result: the peer has no such endpoint, or there is no room.
    #[cold]
    fn map(&mut self, bundle: &mut DomainBundle, at: u32, peer: Option<&Peer>) -> Result<(), isize> {
        let peer = peer.ok_or(-(libc::EINVAL as isize))?;
        let name = peer.memory_name().ok_or(-(libc::EOPNOTSUPP as isize))?;
        bundle.map(self.endpoint, at, name, peer.key).map_err(|_| -(libc::ENOMEM as isize))?;
        if self.mapped.len() <= at as usize {
            self.mapped.resize(at as usize + 1, false);
        }
        self.mapped[at as usize] = true;
        Ok(())
    }

    /// An address was removed.
    pub fn unmap(&mut self, bundle: &mut DomainBundle, at: u32) {
        if self.has_mapped(at) {
            // Cannot fail: it is mapped.
            let _ = bundle.unmap(self.endpoint, at);
            self.mapped[at as usize] = false;
        }
    }
}

/// An operation on peers' memory, with the arguments of all forms of calls.
pub struct Remote {
    pub to: FiAddr,
    pub addr: u64,
    pub key: u64,
    pub context: usize,
    /// The flags; the endpoint's own if the call has none.
    pub flags: Option<u64>,
    /// The data for the target's queue.
    pub data: Option<u64>,
    /// Its end is not reported unless it fails.
    pub is_quiet: bool,
}

impl Remote {
    pub fn place(&self) -> Place {
        Place::new(RegionKey(self.key), self.addr)
    }
}

/// An operation, with the client's memory. Small, because it is moved several times: parts that few operations have are boxed.
pub enum Action {
    Write(Source),
    WriteAll(Box<Listed<Source>>),
    Read(Target),
    ReadAll(Box<Listed<Target>>),
    Change(Box<Changing>),
}

/// Pieces of the client's memory, and their places at the target.
pub struct Listed<T> {
    pub pieces: Vec<T>,
    pub places: Places,
}

/// Parts of a registration.
pub struct Places {
    pub key: u64,
    pub parts: Vec<Part>,
}

/// An atomic operation.
pub struct Changing {
    pub change: Change,
    pub operands: Vec<u8>,
    pub second: Vec<u8>,
    pub old: Option<Target>,
    /// Where old values that arrive in one piece go, if the client has several pieces.
    pub pieces: Vec<LentMut>,
}

fn bytes(source: &Source) -> &[u8] {
    match source {
        Source::Owned(bytes) => bytes,
        Source::Lent(lent) => lent.bytes(),
    }
}

fn len(source: &Source) -> usize {
    bytes(source).len()
}

fn owned(source: Source) -> Source {
    match source {
        Source::Owned(bytes) => Source::Owned(bytes),
        Source::Lent(lent) => Source::Owned(lent.bytes().to_vec()),
    }
}

impl Action {
    /// The kind of operation that its completion reports.
    fn kind(&self) -> u64 {
        match self {
            Action::Write(_) | Action::WriteAll(..) => abi::RMA | abi::WRITE,
            Action::Read(_) | Action::ReadAll(..) => abi::RMA | abi::READ,
            Action::Change(changing) if changing.old.is_none() => abi::ATOMIC | abi::WRITE,
            Action::Change(_) => abi::ATOMIC | abi::READ,
        }
    }

    /// The bytes that it sends.
    fn sends(&self) -> usize {
        match self {
            Action::Write(source) => len(source),
            Action::WriteAll(list) => list.pieces.iter().map(len).fold(0, usize::saturating_add),
            Action::Change(changing) => changing.operands.len(),
            Action::Read(_) | Action::ReadAll(..) => 0,
        }
    }

    /// Copies what it sends, so that the client's memory is free when the call returns. Operands of atomic operations are always copied.
    fn copy(&mut self) {
        match self {
            Action::Write(source) => *source = owned(std::mem::replace(source, Source::Owned(Vec::new()))),
            Action::WriteAll(list) => list.pieces = std::mem::take(&mut list.pieces).into_iter().map(owned).collect(),
            Action::Read(_) | Action::ReadAll(..) | Action::Change(_) => {}
        }
    }

    /// Joins several pieces into one, for a write to one place: a list's notice would report only the length of its last piece.
    fn gather(&mut self) {
        if let Action::WriteAll(list) = self {
            let bytes = list.pieces.iter().flat_map(|source| bytes(source).iter().copied()).collect();
            *self = Action::Write(Source::Owned(bytes));
        }
    }

    /// Posts it.
    #[inline(always)]
    fn post(self, memory: &mut Memory<'_>, to: u32, remote: &Remote, at: u64) -> Result<(), PostError> {
        let place = remote.place();
        match self {
            Action::Write(source) => {
                let write = Write { notice: remote.data, ..Write::to(place) };
                memory.try_write(to, write, source, at).map_err(|(error, _)| error)
            }
            Action::WriteAll(listed) => {
                let Listed { pieces: sources, places: Places { key, parts } } = *listed;
                let list = WriteList::to(RegionKey(key), &parts);
                memory.try_write_list(to, list, sources, at).map_err(|(error, _)| error)
            }
            Action::Read(target) => memory.try_read(to, place, target, at).map_err(|(error, _)| error),
            Action::ReadAll(listed) => {
                let Listed { pieces: targets, places: Places { key, parts } } = *listed;
                let list = ReadList::from(RegionKey(key), &parts);
                memory.try_read_list(to, list, targets, at).map_err(|(error, _)| error)
            }
            Action::Change(changing) => {
                let Changing { change, operands, second, old, .. } = *changing;
                memory.try_change(to, change, &operands, Fetch { second: &second, old }, at)
            }
        }
    }
}

/// Copies what an operation sends, so that the client's memory is free when the call returns.
///
/// # Errors
/// It sends more than may be injected.
fn inject(actions: &mut [Action]) -> Result<(), isize> {
    if actions.iter().map(Action::sends).fold(0, usize::saturating_add) > INJECT_MOST {
        return Err(-(libc::EMSGSIZE as isize));
    }
    actions.iter_mut().for_each(Action::copy);
    Ok(())
}

fn refusal(error: PostError) -> isize {
    match error {
        PostError::Full => AGAIN,
        PostError::TooLong => -(libc::EMSGSIZE as isize),
        PostError::NoSuchAtomic => -(libc::EOPNOTSUPP as isize),
        PostError::NotMapped(_) | PostError::NoSuchList | PostError::NoEndpoint => -(libc::EINVAL as isize),
    }
}

impl Ep {
    /// Posts an operation. Returns the call's result.
    #[inline(always)]
    pub fn operate(&self, remote: &Remote, action: Action) -> isize {
        match self.state.with(|state| state.operate(self.slot, remote, action)) {
            Ok(None) => 0,
            Ok(Some(to)) => self.send_first(to),
            Err(error) => error,
        }
    }

    /// Posts an operation that consists of several, each with its own places. They have one end.
    pub fn operate_all(&self, remote: &Remote, actions: Vec<Action>) -> isize {
        match self.state.with(|state| state.operate_all(self.slot, remote, actions)) {
            Ok(()) => 0,
            Err(error) => error,
        }
    }

    /// Waits a moment for the session that a quiet operation has asked for, so that the operation leaves even if the program makes no more
    /// calls.
    #[cold]
    #[inline(never)]
    fn send_first(&self, to: u32) -> isize {
        self.wait_for(Instant::now(), MEETING, |state| !state.is_pending(self.slot, to));
        0
    }
}

impl State {
    /// Posts an operation. Returns the peer's number if this is the first operation for it and its end is not reported.
    #[inline(never)]
    fn operate(&mut self, slot: usize, remote: &Remote, mut action: Action) -> Result<Option<u32>, isize> {
        let Admitted { to, is_first, is_told, flags } = self.admit(slot, remote)?;
        if flags & abi::INJECT != 0 || remote.is_quiet {
            inject(std::slice::from_mut(&mut action))?;
        }
        if remote.data.is_some() {
            action.gather();
        }
        let EpState { memory: Some(memory), ops, pieces, .. } = &mut self.eps[slot] else {
            return Err(-(libc::EOPNOTSUPP as isize));
        };
        let at = ops.insert(Op::new(remote.context, action.kind(), is_told));
        if let Action::Change(changing) = &mut action {
            if !changing.pieces.is_empty() {
                ops[at].has_pieces = true;
                pieces.insert(at, std::mem::take(&mut changing.pieces));
            }
        }
        let posted = self.bundle.memory(memory.endpoint, |calls| {
            if flags & abi::FENCE != 0 {
                calls.fence(to)?;
            }
            action.post(calls, to, remote, at as u64)
        });
        match posted {
            Ok(Ok(())) => {
                memory.under_way += 1;
                Ok(Some(to).filter(|_| is_first && remote.is_quiet))
            }
            Ok(Err(error)) => {
                self.eps[slot].end(at);
                self.progress();
                Err(refusal(error))
            }
            Err(_) => {
                self.eps[slot].end(at);
                Err(-(libc::EIO as isize))
            }
        }
    }

    /// Whether an operation may be posted.
    #[inline(always)]
    fn admit(&mut self, slot: usize, remote: &Remote) -> Result<Admitted, isize> {
        let State { bundle, eps, cqs, avs, .. } = self;
        let EpState { memory, av, tx, tx_flags, .. } = &mut eps[slot];
        let memory = memory.as_mut().ok_or(-(libc::EOPNOTSUPP as isize))?;
        let flags = remote.flags.unwrap_or(*tx_flags);
        let cq = tx.filter(|tx| !remote.is_quiet && tx.tells(flags)).map(|tx| tx.cq);
        let to = index(remote.to)?;
        // Below that number weft has room for all parts of one operation.
        let is_full = memory.under_way >= OPERATIONS;
        if is_full || cq.and_then(|cq| cqs.get(cq)).is_some_and(|cq| !cq.has_room()) {
            self.progress();
            return Err(AGAIN);
        }
        // Checked last: if the client must try again, the next try is still the first one.
        let is_first = !memory.has_mapped(to);
        if is_first {
            let peer = av.and_then(|av| avs.get(av)).and_then(|av| av.get(to as usize));
            memory.map(bundle, to, peer.as_ref())?;
        }
        Ok(Admitted { to, is_first, is_told: cq.is_some(), flags })
    }

    /// Posts all parts of an operation. None of them is refused for lack of room: see [`State::admit`].
    #[cold]
    fn operate_all(&mut self, slot: usize, remote: &Remote, mut actions: Vec<Action>) -> Result<(), isize> {
        let Admitted { to, is_told, flags, .. } = self.admit(slot, remote)?;
        let (Some(first), Ok(to_end)) = (actions.first(), u8::try_from(actions.len())) else {
            return Err(-(libc::EINVAL as isize));
        };
        let kind = first.kind();
        // The target would learn only the length of the last place, and not whether the earlier ones were stored.
        if remote.data.is_some() {
            return Err(-(libc::EINVAL as isize));
        }
        if flags & abi::INJECT != 0 {
            inject(&mut actions)?;
        }
        let EpState { memory: Some(memory), ops, .. } = &mut self.eps[slot] else {
            return Err(-(libc::EOPNOTSUPP as isize));
        };
        let at = ops.insert(Op { to_end, ..Op::new(remote.context, kind, is_told) });
        let mut posted = 0;
        let ended = self.bundle.memory(memory.endpoint, |calls| {
            if flags & abi::FENCE != 0 {
                calls.fence(to)?;
            }
            actions.into_iter().try_for_each(|action| action.post(calls, to, remote, at as u64).map(|()| posted += 1))
        });
        memory.under_way += posted;
        match ended {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) if posted == 0 => {
                self.eps[slot].end(at);
                Err(refusal(error))
            }
            // The endpoint is gone, so the earlier parts fail as well, and the last of them reports it.
            _ if posted > 0 => {
                let op = &mut self.eps[slot].ops[at];
                (op.to_end, op.failed) = (posted as u8, Some(Reason::NoSuchEndpoint));
                Ok(())
            }
            _ => {
                self.eps[slot].end(at);
                Err(-(libc::EIO as isize))
            }
        }
    }

    /// Whether operations on a peer's memory have not ended.
    fn is_pending(&mut self, slot: usize, to: u32) -> bool {
        let endpoint = self.eps[slot].memory.as_ref().map(|memory| memory.endpoint);
        // An error means that the endpoint is gone.
        endpoint.is_some_and(|endpoint| self.bundle.memory(endpoint, |memory| memory.pending(to) > 0).unwrap_or(false))
    }

    /// Whether operations of an endpoint have not ended.
    pub fn has_memory_under_way(&self, slot: usize) -> bool {
        self.eps[slot].memory.as_ref().is_some_and(|memory| memory.under_way > 0)
    }
}

/// How an operation may be posted.
struct Admitted {
    to: u32,
    /// Whether it is the first one for its peer.
    is_first: bool,
    is_told: bool,
    flags: u64,
}

impl EpState {
    /// Hands over ended operations, and peers' notices of writes. Returns whether there was anything.
    #[inline(always)]
    pub fn hand_over_memory(
        &mut self,
        held: &mut Held<'_>,
        registrations: &Registrations,
        cqs: &mut Slab<CqState>,
        reader: &mut impl Reader,
    ) -> bool {
        let Some(memory) = self.memory.as_ref().filter(|memory| memory.under_way > 0 || registrations.are_open())
        else {
            return false;
        };
        // Cannot fail: the endpoint exists.
        let Ok(mut calls) = held.memory(memory.endpoint) else { return false };
        let mut has_taken = false;
        while let Some(done) = calls.next_completion() {
            has_taken = true;
            self.take_remote(&done, cqs, reader);
        }
        while self.hears(cqs) {
            let Some(notice) = calls.next_notice() else { break };
            has_taken = true;
            self.take_notice(notice, cqs, reader);
        }
        has_taken
    }

    /// Hands over the end of an operation.
    fn take_remote(&mut self, done: &Completion, cqs: &mut Slab<CqState>, reader: &mut impl Reader) {
        let at = done.context as usize;
        let Some(op) = self.ops.get(at).copied() else { return };
        if let Some(memory) = &mut self.memory {
            memory.under_way = memory.under_way.saturating_sub(1);
        }
        let failed = match done.outcome {
            Outcome::Failed { reason, .. } => op.failed.or(Some(reason)),
            Outcome::Done | Outcome::Free => op.failed,
        };
        if op.to_end > 1 {
            self.ops[at] = Op { to_end: op.to_end - 1, failed, ..op };
            return;
        }
        let is_well = failed.is_none();
        let count = if op.kind & abi::READ != 0 { &self.read_count } else { &self.write_count };
        if let Some(count) = count {
            count.add(is_well);
        }
        if let (true, Some(bytes)) = (is_well && op.has_pieces, &done.target) {
            let mut bytes = &bytes[..];
            for mut piece in self.pieces.remove(&at).unwrap_or_default() {
                let stored = piece.write(0, bytes);
                bytes = bytes.get(stored..).unwrap_or_default();
            }
        }
        let entry = CqEntry { op_context: op.context, flags: op.kind, ..CqEntry::default() };
        if let Some((number, cq)) = self.tx.and_then(|tx| Some((tx.cq, cqs.get_mut(tx.cq)?))) {
            match failed {
                Some(reason) => cq.fail(entry, errno(reason), reason as c_int, 0),
                None if op.is_told => cq.tell_or_hand(number, entry, abi::ADDR_UNSPEC, reader),
                None => {}
            }
        }
        self.end(at);
    }

    /// Whether there is room for peers' notices of writes.
    fn hears(&self, cqs: &Slab<CqState>) -> bool {
        self.rx.and_then(|rx| cqs.get(rx.cq)).is_none_or(CqState::has_room)
    }

    /// Hands over a peer's notice of a write.
    fn take_notice(&mut self, notice: Notice, cqs: &mut Slab<CqState>, reader: &mut impl Reader) {
        if let Some((number, cq)) = self.rx.and_then(|rx| Some((rx.cq, cqs.get_mut(rx.cq)?))) {
            let entry = CqEntry {
                flags: abi::RMA | abi::REMOTE_WRITE | abi::REMOTE_CQ_DATA,
                len: usize::try_from(notice.len).unwrap_or(usize::MAX),
                data: notice.value,
                ..CqEntry::default()
            };
            cq.tell_or_hand(number, entry, abi::ADDR_UNSPEC, reader);
        }
    }
}
