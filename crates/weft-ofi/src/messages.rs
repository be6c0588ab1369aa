//! Sending and receiving messages: the common part of the calls in `calls.rs`.

use crate::abi::{self, CqEntry, FiAddr};
use crate::ep::Ep;
use crate::info::{INJECT_MOST, IOV_MOST};
use crate::state::{errno, Op, State};
use libc::iovec;
use std::ffi::c_void;
use std::time::{Duration, Instant};
use weft::tagged::{Label, Lent, LentMut, Pattern, PostError, Source, Tags, Target};
use weft::Error;

/// How long the first message to a peer waits for its session. One host takes less than a millisecond.
pub const MEETING: Duration = Duration::from_millis(100);

// ---- sending

/// A send, with the arguments of all forms of calls.
pub struct Sending {
    to: FiAddr,
    label: Label,
    context: usize,
    /// The flags; the endpoint's own if the call has none.
    flags: Option<u64>,
}

impl Sending {
    pub fn new(to: FiAddr, label: Label, context: *mut c_void, flags: Option<u64>) -> Sending {
        Sending { to, label, context: context as usize, flags }
    }
}

pub const AGAIN: isize = -(libc::EAGAIN as isize);

/// The error code for a refusal. *Full* ends once the client has read completions.
fn refusal(error: PostError) -> isize {
    match error {
        PostError::Full => AGAIN,
        PostError::NotMapped(_) | PostError::NoMessage => -(libc::EINVAL as isize),
        PostError::TooLarge => -(libc::EMSGSIZE as isize),
    }
}

fn kind(way: u64, is_tagged: bool) -> u64 {
    way | if is_tagged { abi::TAGGED } else { abi::MSG }
}

impl Ep {
    #[inline(always)]
    pub fn inject(&self, to: FiAddr, label: Label, bytes: &[u8]) -> isize {
        match self.state.with(|state| state.inject(self.slot, to, label, bytes)) {
            Ok(true) => 0,
            Ok(false) => self.inject_first(to, label, bytes),
            Err(error) => error,
        }
    }

    /// Injects a message if there is a session with the peer. Without one nothing is injected, because the message would wait here for
    /// further calls, which a client may never make.
    #[cold]
    #[inline(never)]
    fn inject_first(&self, to: FiAddr, label: Label, bytes: &[u8]) -> isize {
        let lost = self.meet(to);
        let injected = self.state.with(|state| match lost {
            // If the peer is not there the message comes back.
            true => state.inject_anyway(self.slot, to, label, bytes),
            false => state.inject(self.slot, to, label, bytes),
        });
        match injected {
            Ok(true) => 0,
            Ok(false) => AGAIN,
            Err(error) => error,
        }
    }

    /// Waits a moment for the session that was asked for, once for each peer, so that a message leaves even if the program makes no more
    /// calls. Returns whether the peer was lost before.
    #[cold]
    #[inline(never)]
    fn meet(&self, to: FiAddr) -> bool {
        let Ok(to) = index(to) else { return false };
        let mut is_lost = false;
        let is_first = self.state.with(|state| Some(state.eps[self.slot].met.insert(to)));
        let most = if is_first == Some(true) { MEETING } else { Duration::ZERO };
        self.wait_for(Instant::now(), most, |state| {
            let endpoint = state.eps[self.slot].endpoint;
            let met = state.bundle.tagged(endpoint, |tagged| {
                is_lost = tagged.lost(to).is_some();
                tagged.has_session(to) != Ok(false) || is_lost
            });
            met.unwrap_or(true)
        });
        is_lost
    }

    /// The result of a call that sends.
    #[inline(always)]
    fn sent(&self, sent: Result<bool, isize>, to: FiAddr) -> isize {
        match sent {
            Ok(false) => 0,
            Ok(true) => {
                self.meet(to);
                0
            }
            Err(error) => error,
        }
    }

    /// Sends bytes in one piece.
    ///
    /// # Safety
    /// The bytes can be read, and do not change, until the operation has ended, or until this returns if they are injected.
    #[inline(always)]
    pub unsafe fn send(&self, start: *const c_void, len: usize, sending: &Sending) -> isize {
        // SAFETY: the caller's promise.
        let lent = unsafe { Lent::new(start.cast(), len) };
        self.sent(self.state.with(|state| state.send(self.slot, lent, sending)), sending.to)
    }

    /// Sends pieces.
    ///
    /// # Safety
    /// Until this returns there are `count` pieces at `iov`. For the bytes of each, as for [`Ep::send`].
    pub unsafe fn send_pieces(&self, iov: *const iovec, count: usize, sending: &Sending) -> isize {
        match count {
            // SAFETY: there are no bytes.
            0 => unsafe { self.send(std::ptr::null(), 0, sending) },
            1 => {
                // SAFETY: the caller's promise.
                let piece = unsafe { *iov };
                // SAFETY: as above.
                unsafe { self.send(piece.iov_base, piece.iov_len, sending) }
            }
            2..=IOV_MOST => {
                let mut bytes = Vec::new();
                for at in 0..count {
                    // SAFETY: the caller's promise.
                    let piece = unsafe { *iov.add(at) };
                    // SAFETY: as above; the bytes are copied at once, and the value is dropped.
                    bytes.extend_from_slice(unsafe { Lent::new(piece.iov_base.cast(), piece.iov_len) }.bytes());
                }
                let len = bytes.len();
                let sent = self.state.with(|state| state.send_any(self.slot, Source::Owned(bytes), len, sending));
                self.sent(sent, sending.to)
            }
            _ => -(libc::EINVAL as isize),
        }
    }
}

fn bytes(source: &Source) -> &[u8] {
    match source {
        Source::Owned(bytes) => bytes,
        Source::Lent(lent) => lent.bytes(),
    }
}

/// The same bytes, copied.
fn owned(source: Source) -> Source {
    Source::Owned(bytes(&source).to_vec())
}

/// The index at which a peer is mapped.
pub fn index(address: FiAddr) -> Result<u32, isize> {
    u32::try_from(address).map_err(|_| -(libc::EINVAL as isize))
}

impl State {
    /// Injects a message. False if there is no session with the peer yet; then it has been asked for.
    #[inline(never)]
    fn inject(&mut self, slot: usize, to: FiAddr, label: Label, bytes: &[u8]) -> Result<bool, isize> {
        let ep = &mut self.eps[slot];
        if bytes.len() > INJECT_MOST {
            return Err(-(libc::EMSGSIZE as isize));
        }
        let to = index(to)?;
        if let Some(reason) = ep.failure(to) {
            return Err(-(errno(reason) as isize));
        }
        let has_gone = self.bundle.tagged(ep.endpoint, |tagged| tagged.inject_now(to, label, bytes) == Ok(true));
        if !has_gone.unwrap_or(false) {
            return self.inject_later(slot, to, label, bytes);
        }
        if let Some(count) = &ep.tx_count {
            count.add(true);
        }
        self.is_taken();
        Ok(true)
    }

    /// Injects a message that cannot leave now.
    #[cold]
    #[inline(never)]
    fn inject_later(&mut self, slot: usize, to: u32, label: Label, bytes: &[u8]) -> Result<bool, isize> {
        let endpoint = self.eps[slot].endpoint;
        let injected = self.bundle.tagged(endpoint, |tagged| match tagged.greet(to)? {
            true => tagged.try_inject(to, label, bytes).map(|()| Some(tagged.keeps_injected())),
            false => Ok(None),
        });
        self.injected(slot, to, injected)
    }

    /// Injects a message, which waits here until there is a session with the peer.
    #[cold]
    fn inject_anyway(&mut self, slot: usize, to: FiAddr, label: Label, bytes: &[u8]) -> Result<bool, isize> {
        let to = index(to)?;
        let endpoint = self.eps[slot].endpoint;
        let injected = self.bundle.tagged(endpoint, |tagged| tagged.try_inject(to, label, bytes).map(|()| Some(false)));
        self.injected(slot, to, injected)
    }

    /// The result of an injection: false if there is no session yet. If copies wait here, has a thread serve them.
    #[cold]
    fn injected(
        &mut self,
        slot: usize,
        to: u32,
        injected: Result<Result<Option<bool>, PostError>, Error>,
    ) -> Result<bool, isize> {
        match injected.map_err(|_| -(libc::EIO as isize))? {
            Ok(None) => {
                self.progress();
                Ok(false)
            }
            Ok(Some(keeps)) => {
                self.is_taken();
                if keeps && !self.bundle.is_served() {
                    self.serve_what_waits();
                }
                if let Some(count) = &self.eps[slot].tx_count {
                    count.add(true);
                }
                Ok(true)
            }
            Err(error) => {
                if error == PostError::Full {
                    self.is_full(slot, to);
                }
                self.progress();
                Err(refusal(error))
            }
        }
    }

    /// Sends a message. Returns whether it is the first one to its peer, and so waits for the session.
    #[inline(never)]
    fn send(&mut self, slot: usize, lent: Lent, sending: &Sending) -> Result<bool, isize> {
        match self.send_now(slot, lent.bytes(), sending) {
            true => Ok(false),
            false => {
                let len = lent.bytes().len();
                self.send_any(slot, Source::Lent(lent), len, sending)
            }
        }
    }

    /// Sends a small message by copying it, if it can leave now, and completes it. Otherwise false, with nothing done.
    #[inline(always)]
    fn send_now(&mut self, slot: usize, bytes: &[u8], sending: &Sending) -> bool {
        let State { bundle, eps, cqs, .. } = self;
        let ep = &eps[slot];
        let flags = sending.flags.unwrap_or(ep.tx_flags);
        let cq = ep.tx.filter(|tx| tx.tells(flags)).and_then(|tx| cqs.get_mut(tx.cq));
        let (Ok(to), false) = (index(sending.to), cq.as_ref().is_some_and(|cq| !cq.has_room())) else { return false };
        if bytes.len() > INJECT_MOST || flags & abi::DELIVERY_COMPLETE != 0 {
            return false;
        }
        let has_gone = bundle.tagged(ep.endpoint, |tagged| tagged.inject_now(to, sending.label, bytes) == Ok(true));
        if !has_gone.unwrap_or(false) {
            return false;
        }
        if let Some(count) = &ep.tx_count {
            count.add(true);
        }
        if let Some(cq) = cq {
            let flags = kind(abi::SEND, sending.label.tag.is_some());
            let entry = CqEntry { op_context: sending.context, flags, ..CqEntry::default() };
            cq.tell(entry, abi::ADDR_UNSPEC);
        }
        self.is_taken();
        true
    }

    /// Sends any message.
    #[cold]
    #[inline(never)]
    fn send_any(&mut self, slot: usize, source: Source, len: usize, sending: &Sending) -> Result<bool, isize> {
        let ep = &self.eps[slot];
        let (bound, flags) = (ep.tx, sending.flags.unwrap_or(ep.tx_flags));
        let is_told = bound.is_some_and(|tx| tx.tells(flags));
        let kind = kind(abi::SEND, sending.label.tag.is_some());
        let is_stored = flags & abi::DELIVERY_COMPLETE != 0;
        if is_told && !self.has_room(bound) {
            self.progress();
            return Err(AGAIN);
        }
        if len > INJECT_MOST || is_stored {
            let op = Op::new(sending.context, kind, is_told);
            return match flags & abi::INJECT {
                0 => self.post(slot, source, op, sending, is_stored),
                _ if len > INJECT_MOST => Err(-(libc::EMSGSIZE as isize)),
                _ => self.post(slot, owned(source), op, sending, is_stored),
            };
        }
        // As in `send_now`. Without a session the message would not leave without further calls, so its completion comes when it has left.
        match self.inject(slot, sending.to, sending.label, bytes(&source)) {
            Ok(true) => {
                if let Some(cq) = bound.filter(|_| is_told).and_then(|bound| self.cqs.get_mut(bound.cq)) {
                    let entry = CqEntry { op_context: sending.context, flags: kind, ..CqEntry::default() };
                    cq.tell(entry, abi::ADDR_UNSPEC);
                }
                Ok(false)
            }
            Ok(false) | Err(AGAIN) if flags & abi::INJECT == 0 => {
                self.post(slot, source, Op::new(sending.context, kind, is_told), sending, false)
            }
            Ok(false) => self.post(slot, owned(source), Op::new(sending.context, kind, is_told), sending, false),
            Err(error) => Err(error),
        }
    }

    /// Posts a send that ends later: when the buffer is free again, or when the receiver has stored the message. Returns whether it waits
    /// for a session.
    fn post(&mut self, slot: usize, source: Source, op: Op, sending: &Sending, is_stored: bool) -> Result<bool, isize> {
        let ep = &mut self.eps[slot];
        let to = index(sending.to)?;
        let at = ep.ops.insert(op);
        let posted = self.bundle.tagged(ep.endpoint, |tagged| {
            let posted = match is_stored {
                false => tagged.try_send(to, sending.label, source, at as u64),
                true => tagged.try_send_stored(to, sending.label, source, at as u64),
            };
            posted.map(|()| tagged.has_session(to) == Ok(false)).map_err(|(error, _)| error)
        });
        match posted {
            Ok(Ok(waits)) => Ok(waits),
            Ok(Err(error)) => Err(self.refuse(slot, at, error)),
            Err(_) => {
                self.eps[slot].end(at);
                Err(-(libc::EIO as isize))
            }
        }
    }

    /// An operation was not posted.
    #[cold]
    fn refuse(&mut self, slot: usize, at: usize, error: PostError) -> isize {
        self.eps[slot].end(at);
        self.progress();
        refusal(error)
    }
}

// ---- receiving

/// A receive, with the arguments of all forms of calls.
pub struct Receiving {
    from: FiAddr,
    tags: Option<Tags>,
    context: usize,
    /// The flags; the endpoint's own if the call has none.
    flags: Option<u64>,
}

impl Receiving {
    pub fn new(from: FiAddr, tags: Option<Tags>, context: *mut c_void, flags: Option<u64>) -> Receiving {
        Receiving { from, tags, context: context as usize, flags }
    }
}

/// Where a receive stores its message.
struct Room {
    target: Target,
    /// The address that its completion reports.
    buf: usize,
    /// The pieces over which the bytes of the target are distributed in the end, if there are several.
    pieces: Vec<LentMut>,
}

impl Ep {
    /// Receives into one piece.
    ///
    /// # Safety
    /// It can be written, and is left alone, until the operation has ended.
    #[inline(always)]
    pub unsafe fn receive(&self, start: *mut c_void, len: usize, receiving: &Receiving) -> isize {
        // SAFETY: the caller's promise.
        let lent = unsafe { LentMut::new(start.cast(), len) };
        let room = Room { target: Target::Lent(lent), buf: start as usize, pieces: Vec::new() };
        self.state.with(|state| state.receive(self.slot, room, receiving))
    }

    /// Receives into pieces.
    ///
    /// # Safety
    /// Until this returns there are `count` pieces at `iov`. For each piece, as for [`Ep::receive`]; no two overlap.
    pub unsafe fn receive_pieces(&self, iov: *const iovec, count: usize, receiving: &Receiving) -> isize {
        match count {
            // SAFETY: there are no bytes.
            0 => unsafe { self.receive(std::ptr::null_mut(), 0, receiving) },
            1 => {
                // SAFETY: the caller's promise.
                let piece = unsafe { *iov };
                // SAFETY: as above.
                unsafe { self.receive(piece.iov_base, piece.iov_len, receiving) }
            }
            2..=IOV_MOST => {
                // SAFETY: the caller's promise.
                let pieces = (0..count).map(|at| unsafe { *iov.add(at) });
                // SAFETY: as above.
                let lent = pieces.map(|piece| unsafe { LentMut::new(piece.iov_base.cast(), piece.iov_len) });
                let pieces: Vec<LentMut> = lent.collect();
                let Some(len) = pieces.iter().try_fold(0usize, |sum, piece| sum.checked_add(piece.len())) else {
                    return -(libc::EINVAL as isize);
                };
                let room = Room { target: Target::Owned(vec![0; len]), buf: 0, pieces };
                self.state.with(|state| state.receive(self.slot, room, receiving))
            }
            _ => -(libc::EINVAL as isize),
        }
    }
}

impl State {
    /// Posts a receive. Returns the call's result.
    #[inline(never)]
    fn receive(&mut self, slot: usize, room: Room, receiving: &Receiving) -> isize {
        let State { bundle, eps, cqs, .. } = self;
        let ep = &mut eps[slot];
        let source = match receiving.from {
            address if address != abi::ADDR_UNSPEC && ep.is_directed => match index(address) {
                Ok(index) => Some(index),
                Err(error) => return error,
            },
            _ => None,
        };
        let pattern = Pattern { source, tags: receiving.tags };
        let flags = receiving.flags.unwrap_or(ep.rx_flags);
        let many = flags & abi::MULTI_RECV;
        if many != 0 && !room.pieces.is_empty() {
            return -(libc::EINVAL as isize);
        }
        if flags & (abi::PEEK | abi::CLAIM) != 0 {
            return self.receive_in_steps(slot, pattern, room, receiving.context, flags);
        }
        if ep.rx.and_then(|rx| cqs.get(rx.cq)).is_some_and(|cq| !cq.has_room()) {
            return AGAIN;
        }
        let is_told = ep.rx.is_some_and(|rx| rx.tells(flags));
        let op = Op::new(receiving.context, kind(abi::RECV, receiving.tags.is_some()) | many, is_told);
        let at = ep.enter(Op { is_for_any: source.is_none(), ..op }, room.buf, room.pieces);
        let (least, target) = (ep.least, room.target);
        let posted = bundle.tagged(ep.endpoint, |tagged| {
            let posted = match many {
                0 => tagged.try_receive(pattern, target, at as u64),
                _ => tagged.try_receive_many(pattern, target, least, at as u64),
            };
            posted.map_err(|(error, _)| error)
        });
        match posted {
            Ok(Ok(())) => 0,
            Ok(Err(error)) => self.refuse(slot, at, error),
            Err(_) => {
                self.eps[slot].end(at);
                -(libc::EIO as isize)
            }
        }
    }

    /// Looks for a waiting message, claims one, or receives or drops a claimed one. A completion reports success at once. An error reports
    /// that there was none.
    #[cold]
    fn receive_in_steps(&mut self, slot: usize, pattern: Pattern, room: Room, context: usize, flags: u64) -> isize {
        let kind = kind(abi::RECV, pattern.tags.is_some());
        if flags & abi::PEEK == 0 {
            return self.receive_claimed(slot, room, (context, kind), flags);
        }
        self.progress();
        let ep = &mut self.eps[slot];
        let found = self.bundle.tagged(ep.endpoint, |tagged| match flags & (abi::CLAIM | abi::DISCARD) {
            0 => tagged.peek(pattern).map(|found| found.map(|envelope| (envelope, None))),
            _ => tagged.claim(pattern).map(|found| found.map(|(envelope, claim)| (envelope, Some(claim)))),
        });
        let Ok(found) = found else { return -(libc::EIO as isize) };
        let mut entry = CqEntry { op_context: context, flags: kind, ..CqEntry::default() };
        match found {
            Err(error) => refusal(error),
            Ok(None) => {
                entry.tag = pattern.tags.map_or(0, |tags| tags.tag);
                if let Some(cq) = ep.rx.and_then(|rx| self.cqs.get_mut(rx.cq)) {
                    cq.refuse(entry, libc::ENOMSG);
                }
                0
            }
            Ok(Some((envelope, claim))) => {
                entry.len = envelope.len;
                entry.tag = envelope.label.tag.unwrap_or(0);
                entry.data = envelope.label.data.unwrap_or(0);
                entry.flags |= if envelope.label.data.is_some() { abi::REMOTE_CQ_DATA } else { 0 };
                match claim {
                    Some(claim) if flags & abi::DISCARD != 0 => {
                        // Cannot fail: the endpoint exists.
                        let _ = self.bundle.tagged(ep.endpoint, |tagged| tagged.discard(claim));
                    }
                    Some(claim) => ep.claims.push((context, claim, entry)),
                    None => {}
                }
                self.tell(slot, entry, envelope.source.map_or(abi::ADDR_UNSPEC, u64::from), flags)
            }
        }
    }

    /// Receives or drops a claimed message, found by the context of the claim.
    fn receive_claimed(&mut self, slot: usize, room: Room, (context, kind): (usize, u64), flags: u64) -> isize {
        let ep = &mut self.eps[slot];
        let Some(claim) = ep.claims.iter().position(|(of, ..)| *of == context) else {
            return -(libc::EINVAL as isize);
        };
        let (_, claim, told) = ep.claims.swap_remove(claim);
        if flags & abi::DISCARD != 0 {
            // Cannot fail: the endpoint exists.
            let _ = self.bundle.tagged(ep.endpoint, |tagged| tagged.discard(claim));
            return self.tell(slot, told, abi::ADDR_UNSPEC, flags);
        }
        let is_told = ep.rx.is_some_and(|rx| rx.tells(flags));
        let Room { target, buf, pieces } = room;
        let at = ep.enter(Op::new(context, kind, is_told), buf, pieces);
        let posted = self.bundle.tagged(ep.endpoint, |tagged| tagged.try_receive_claimed(claim, target, at as u64));
        match posted {
            Ok(Ok(())) => 0,
            Ok(Err((error, claim, _))) => {
                ep.claims.push((context, claim, told));
                self.refuse(slot, at, error)
            }
            Err(_) => {
                ep.end(at);
                -(libc::EIO as isize)
            }
        }
    }

    /// Adds a completion for an operation that has ended at once.
    fn tell(&mut self, slot: usize, entry: CqEntry, source: FiAddr, flags: u64) -> isize {
        let bound = self.eps[slot].rx.filter(|rx| rx.tells(flags | abi::COMPLETION));
        if let Some(cq) = bound.and_then(|bound| self.cqs.get_mut(bound.cq)) {
            cq.tell(entry, source);
        }
        0
    }
}
