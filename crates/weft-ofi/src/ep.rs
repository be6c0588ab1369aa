//! Endpoints, and the calls that send and receive.

use crate::abi::{
    self, CmOps, CqEntry, EpOps, FiAddr, Fid, FidDomain, FidEp, Info, MsgArgs, MsgOps, Ops, StubOps, TaggedArgs,
    TaggedOps,
};
use crate::addr::encode;
use crate::av::{map_all, store_address, Av};
use crate::cell::DomainCell;
use crate::cntr::Cntr;
use crate::cq::Cq;
use crate::fabric::Domain;
use crate::info::{Chosen, INJECT_MOST, IOV_MOST};
use crate::state::{Bound, EpState, Op, State};
use crate::stubs::{self, give, NONE};
use libc::iovec;
use slab::Slab;
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::mem::size_of;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weft::tagged::{Label, Lent, LentMut, Pattern, PostError, Settings, Source, Tags, Target};
use weft::{AnyThread, Bundle};

/// How long closing an endpoint waits for what was sent last to be in its receivers' hands.
const LINGER: Duration = Duration::from_secs(1);

/// How long the first message to a peer waits for its session. One host takes less than a millisecond.
const MEETING: Duration = Duration::from_millis(100);

/// A receive of many is released when fewer bytes than this are left, unless the client says otherwise.
const LEAST: usize = 64;

/// An endpoint.
#[repr(C)]
pub struct Ep {
    fid: FidEp,
    state: Arc<DomainCell<State>>,
    slot: usize,
}

static OPS: Ops = Ops { bind, control, ..stubs::ops(close) };
static EP: EpOps = EpOps {
    size: size_of::<EpOps>(),
    cancel,
    getopt,
    setopt,
    tx_ctx: NONE,
    rx_ctx: NONE,
    rx_size_left: NONE,
    tx_size_left: NONE,
};
static CM: CmOps = CmOps {
    size: size_of::<CmOps>(),
    setname: NONE,
    getname,
    getpeer: NONE,
    connect: NONE,
    listen: NONE,
    accept: NONE,
    reject: NONE,
    shutdown: NONE,
    join: NONE,
};
static RMA: StubOps<9> = stubs::none();
static ATOMIC: StubOps<13> = stubs::none();
static COLLECTIVE: StubOps<11> = stubs::none();
static MSG: MsgOps =
    MsgOps { size: size_of::<MsgOps>(), recv, recvv, recvmsg, send, sendv, sendmsg, inject, senddata, injectdata };
static TAGGED: TaggedOps = TaggedOps {
    size: size_of::<TaggedOps>(),
    recv: trecv,
    recvv: trecvv,
    recvmsg: trecvmsg,
    send: tsend,
    sendv: tsendv,
    sendmsg: tsendmsg,
    inject: tinject,
    senddata: tsenddata,
    injectdata: tinjectdata,
};

/// `fi_endpoint`. The endpoint has its name from now on.
pub unsafe extern "C" fn open(
    domain: *mut FidDomain,
    info: *mut Info,
    place: *mut *mut FidEp,
    context: *mut c_void,
) -> c_int {
    // SAFETY: it is a domain of ours, open.
    let domain = unsafe { &*domain.cast::<Domain>() };
    // SAFETY: the client's promise: it is a description that `getinfo` gave, or a copy.
    let chosen = unsafe { Chosen::of(&*info) };
    let made = domain.state.with(|state| {
        let endpoint = state.bundle.tagged_endpoint_with_random_key(Settings::default())?;
        Ok::<usize, weft::Error>(state.add(EpState {
            endpoint,
            is_directed: chosen.is_directed,
            tx_flags: chosen.tx_flags,
            rx_flags: chosen.rx_flags,
            av: None,
            tx: None,
            rx: None,
            tx_count: None,
            rx_count: None,
            least: LEAST,
            ops: Slab::new(),
            pieces: HashMap::new(),
            claims: Vec::new(),
        }))
    });
    let slot = match made {
        Ok(slot) => slot,
        Err(error) => {
            eprintln!("weft: libfabric's endpoint cannot be opened: {error}");
            return -libc::ENOMEM;
        }
    };
    let fid = FidEp {
        fid: Fid { fclass: abi::CLASS_EP, context, ops: &OPS },
        ops: &EP,
        cm: &CM,
        msg: &MSG,
        rma: &RMA,
        tagged: &TAGGED,
        atomic: &ATOMIC,
        collective: &COLLECTIVE,
    };
    // SAFETY: libfabric's promise.
    unsafe { give(Box::new(Ep { fid, state: domain.state.clone(), slot }), place) }
}

pub unsafe extern "C" fn open2(
    domain: *mut FidDomain,
    info: *mut Info,
    place: *mut *mut FidEp,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    match flags {
        // SAFETY: libfabric's promise.
        0 => unsafe { open(domain, info, place, context) },
        _ => -abi::EBADFLAGS,
    }
}

unsafe extern "C" fn bind(fid: *mut Fid, other: *mut Fid, flags: u64) -> c_int {
    // SAFETY: it is an endpoint of ours, open.
    let ep = unsafe { &*fid.cast::<Ep>() };
    // SAFETY: the client's promise: it is an object that is open.
    match unsafe { (*other).fclass } {
        abi::CLASS_CQ => {
            // SAFETY: an object of this class that the client has of this provider is a queue of ours.
            let cq = unsafe { (*other.cast::<Cq>()).number };
            let bound = Bound { cq, is_selective: flags & abi::SELECTIVE_COMPLETION != 0 };
            ep.state.with(|state| {
                let state = &mut state.eps[ep.slot];
                if flags & abi::TRANSMIT != 0 {
                    state.tx = Some(bound);
                }
                if flags & abi::RECV != 0 {
                    state.rx = Some(bound);
                }
            });
            0
        }
        abi::CLASS_AV => {
            // SAFETY: as for a queue.
            let av = unsafe { (*other.cast::<Av>()).number };
            ep.state.with(|state| {
                state.eps[ep.slot].av = Some(av);
                map_all(state, ep.slot);
            });
            0
        }
        abi::CLASS_CNTR => {
            // SAFETY: as for a queue.
            let count = unsafe { &(*other.cast::<Cntr>()).count };
            ep.state.with(|state| {
                let state = &mut state.eps[ep.slot];
                if flags & abi::SEND != 0 {
                    state.tx_count = Some(count.clone());
                }
                if flags & abi::RECV != 0 {
                    state.rx_count = Some(count.clone());
                }
            });
            0
        }
        abi::CLASS_EQ => 0,
        _ => -libc::ENOSYS,
    }
}

unsafe extern "C" fn control(fid: *mut Fid, command: c_int, arg: *mut c_void) -> c_int {
    // SAFETY: it is an endpoint of ours, open.
    let ep = unsafe { &*fid.cast::<Ep>() };
    ep.state.with(|state| {
        let state = &mut state.eps[ep.slot];
        match command {
            abi::CONTROL_ENABLE if state.av.is_none() => -abi::ENOAV,
            abi::CONTROL_ENABLE if state.tx.is_none() && state.rx.is_none() => -abi::ENOCQ,
            abi::CONTROL_ENABLE => 0,
            abi::CONTROL_GETOPSFLAG | abi::CONTROL_SETOPSFLAG => {
                // SAFETY: the client's promise: there are flags, which can be read and written.
                let flags = unsafe { &mut *arg.cast::<u64>() };
                let mine = match *flags & (abi::TRANSMIT | abi::RECV) {
                    abi::TRANSMIT => &mut state.tx_flags,
                    abi::RECV => &mut state.rx_flags,
                    _ => return -libc::EINVAL,
                };
                match command {
                    abi::CONTROL_GETOPSFLAG => *flags = *mine,
                    _ => *mine = *flags & !(abi::TRANSMIT | abi::RECV),
                }
                0
            }
            _ => -libc::ENOSYS,
        }
    })
}

/// What is posted comes to nothing and says nothing. What was sent has a moment to go out: it may wait for a session, for room, or for
/// another host to acknowledge it.
unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    // SAFETY: `open` made it, and nobody has it after this.
    let ep = unsafe { Box::from_raw(fid.cast::<Ep>()) };
    ep.state.with(|state| {
        let begin = Instant::now();
        state.progress_until(begin, LINGER, |bundle| bundle.is_acknowledged());
        (state.eps[ep.slot].tx, state.eps[ep.slot].rx) = (None, None);
        // It fails for no endpoint that is there.
        let _ = state.bundle.free(state.eps[ep.slot].endpoint);
        state.progress_until(begin, LINGER, |bundle| bundle.is_acknowledged());
        state.remove(ep.slot);
    });
    0
}

unsafe extern "C" fn getname(fid: *mut Fid, address: *mut c_void, len: *mut usize) -> c_int {
    // SAFETY: it is an endpoint of ours, open.
    let ep = unsafe { &*fid.cast::<Ep>() };
    let found = ep.state.with(|state| {
        let endpoint = state.eps[ep.slot].endpoint;
        Ok::<_, weft::Error>((state.bundle.name(endpoint)?, state.bundle.key(endpoint)?))
    });
    let Ok((name, key)) = found else { return -abi::EOPBADSTATE };
    // SAFETY: the client's promise: there is room for `*len` bytes.
    match unsafe { store_address(&encode(&name, key), address, len) } {
        true => 0,
        false => -abi::ETOOSMALL,
    }
}

unsafe extern "C" fn getopt(fid: *mut Fid, level: c_int, name: c_int, value: *mut c_void, len: *mut usize) -> c_int {
    if (level, name) != (abi::OPT_ENDPOINT, abi::OPT_MIN_MULTI_RECV) {
        return -libc::ENOPROTOOPT;
    }
    // SAFETY: it is an endpoint of ours, open.
    let ep = unsafe { &*fid.cast::<Ep>() };
    // SAFETY: the client's promise: there is a length.
    if unsafe { *len } < size_of::<usize>() {
        return -abi::ETOOSMALL;
    }
    let least = ep.state.with(|state| state.eps[ep.slot].least);
    // SAFETY: the client's promise: there is room for `*len` bytes, of this option's type.
    unsafe { *value.cast::<usize>() = least };
    // SAFETY: the client's promise: the length can be written.
    unsafe { *len = size_of::<usize>() };
    0
}

unsafe extern "C" fn setopt(fid: *mut Fid, level: c_int, name: c_int, value: *const c_void, len: usize) -> c_int {
    if (level, name) != (abi::OPT_ENDPOINT, abi::OPT_MIN_MULTI_RECV) {
        return -libc::ENOPROTOOPT;
    }
    if len != size_of::<usize>() {
        return -libc::EINVAL;
    }
    // SAFETY: it is an endpoint of ours, open.
    let ep = unsafe { &*fid.cast::<Ep>() };
    // SAFETY: the client's promise: there is a value of this option's type.
    let least = unsafe { *value.cast::<usize>() };
    ep.state.with(|state| state.eps[ep.slot].least = least);
    0
}

/// Ends the oldest operation with that context that nothing was matched with, receives first. It ends by a completion.
unsafe extern "C" fn cancel(fid: *mut Fid, context: *mut c_void) -> isize {
    // SAFETY: it is an endpoint of ours, open.
    let ep = unsafe { &*fid.cast::<Ep>() };
    ep.state.with(|state| {
        let mine = &state.eps[ep.slot];
        let of =
            |kind: u64| mine.ops.iter().filter(move |(_, op)| op.context == context as usize && op.kind & kind != 0);
        let found: Vec<usize> = of(abi::RECV).chain(of(abi::SEND)).map(|(at, _)| at).collect();
        if let Ok(mut tagged) = state.bundle.tagged(mine.endpoint) {
            found.into_iter().any(|at| tagged.cancel(at as u64));
        }
        state.hand_over();
    });
    0
}

// ---- sending

/// A send, as all calls mean it.
struct Sending {
    to: FiAddr,
    label: Label,
    context: usize,
    /// The endpoint's own, if the call has none.
    flags: Option<u64>,
}

impl Sending {
    fn new(to: FiAddr, label: Label, context: *mut c_void, flags: Option<u64>) -> Sending {
        Sending { to, label, context: context as usize, flags }
    }
}

const AGAIN: isize = -(libc::EAGAIN as isize);

/// What a refusal is to the client. *Full* is over when completions were read.
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
    fn inject(&self, to: FiAddr, label: Label, bytes: &[u8]) -> isize {
        self.state.with(|state| state.inject(self.slot, to, label, bytes))
    }

    /// Sends bytes in one piece.
    ///
    /// # Safety
    /// They can be read, and stay as they are, until the operation has ended, or until this returns if they are injected.
    #[inline(always)]
    unsafe fn send(&self, start: *const c_void, len: usize, sending: &Sending) -> isize {
        // SAFETY: the caller's promise.
        let lent = unsafe { Lent::new(start.cast(), len) };
        self.state.with(|state| state.send(self.slot, Source::Lent(lent), len, sending))
    }

    /// Sends pieces.
    ///
    /// # Safety
    /// Until this returns there are `count` pieces at `iov`. For the bytes of each, as for [`Ep::send`].
    unsafe fn send_pieces(&self, iov: *const iovec, count: usize, sending: &Sending) -> isize {
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
                self.state.with(|state| state.send(self.slot, Source::Owned(bytes), len, sending))
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

/// The number that a peer is mapped at.
fn index(address: FiAddr) -> Result<u32, isize> {
    u32::try_from(address).map_err(|_| -(libc::EINVAL as isize))
}

impl State {
    #[inline(always)]
    fn inject(&mut self, slot: usize, to: FiAddr, label: Label, bytes: &[u8]) -> isize {
        let ep = &self.eps[slot];
        if bytes.len() > INJECT_MOST {
            return -(libc::EMSGSIZE as isize);
        }
        let Ok(to) = index(to) else { return -(libc::EINVAL as isize) };
        let Ok(mut tagged) = self.bundle.tagged(ep.endpoint) else { return -(libc::EIO as isize) };
        let is_first = tagged.has_session(to) == Ok(false) && tagged.unsent(to) == Ok(0);
        match tagged.try_inject(to, label, bytes) {
            Ok(()) => {
                if let Some(count) = &ep.tx_count {
                    count.add(true);
                }
                if is_first {
                    self.meet(slot, to);
                }
                0
            }
            Err(error) => {
                self.progress();
                refusal(error)
            }
        }
    }

    /// Waits a moment for the session that the first message to a peer asked for, so that the message goes though the program does
    /// something else from now on.
    #[cold]
    #[inline(never)]
    fn meet(&mut self, slot: usize, to: u32) {
        let endpoint = self.eps[slot].endpoint;
        self.progress_until(Instant::now(), MEETING, |bundle| {
            let Ok(tagged) = bundle.tagged(endpoint) else { return true };
            // An error means that it is not mapped any more: it was lost.
            tagged.has_session(to) != Ok(false) || tagged.lost(to).is_some()
        });
    }

    /// Makes progress until `done`, for `most` after `begin` at most; once in any case.
    fn progress_until(&mut self, begin: Instant, most: Duration, mut done: impl FnMut(&mut Bundle<AnyThread>) -> bool) {
        loop {
            self.progress();
            if done(&mut self.bundle) || begin.elapsed() > most {
                return;
            }
            // The peer may need this processor to answer.
            std::thread::yield_now();
        }
    }

    #[inline(always)]
    fn send(&mut self, slot: usize, source: Source, len: usize, sending: &Sending) -> isize {
        let ep = &self.eps[slot];
        let (bound, flags) = (ep.tx, sending.flags.unwrap_or(ep.tx_flags));
        let is_told = bound.is_some_and(|tx| tx.tells(flags));
        let kind = kind(abi::SEND, sending.label.tag.is_some());
        let is_stored = flags & abi::DELIVERY_COMPLETE != 0;
        if is_told && !self.has_room(bound) {
            self.progress();
            return AGAIN;
        }
        if len > INJECT_MOST || is_stored {
            let op = Op::new(sending.context, kind, is_told);
            return match flags & abi::INJECT {
                0 => self.post(slot, source, op, sending, is_stored),
                _ if len > INJECT_MOST => -(libc::EMSGSIZE as isize),
                _ => self.post(slot, owned(source), op, sending, is_stored),
            };
        }
        // Copied now, and done: what a completion would say is known.
        match self.inject(slot, sending.to, sending.label, bytes(&source)) {
            0 => {
                if let Some(cq) = bound.filter(|_| is_told).and_then(|bound| self.cqs.get_mut(bound.cq)) {
                    let entry = CqEntry { op_context: sending.context, flags: kind, ..CqEntry::default() };
                    cq.tell(entry, abi::ADDR_UNSPEC);
                }
                0
            }
            AGAIN if flags & abi::INJECT == 0 => {
                self.post(slot, source, Op::new(sending.context, kind, is_told), sending, false)
            }
            error => error,
        }
    }

    /// Posts a send that ends later: when the buffer is free again, or when the message is stored at the receiver.
    fn post(&mut self, slot: usize, source: Source, op: Op, sending: &Sending, is_stored: bool) -> isize {
        let ep = &mut self.eps[slot];
        let Ok(to) = index(sending.to) else { return -(libc::EINVAL as isize) };
        let Ok(mut tagged) = self.bundle.tagged(ep.endpoint) else { return -(libc::EIO as isize) };
        let at = ep.ops.insert(op);
        let is_first = tagged.has_session(to) == Ok(false);
        let posted = match is_stored {
            false => tagged.try_send(to, sending.label, source, at as u64),
            true => tagged.try_send_stored(to, sending.label, source, at as u64),
        };
        match posted {
            Ok(()) => {
                if is_first {
                    self.meet(slot, to);
                }
                0
            }
            Err((error, _)) => self.refuse(slot, at, error),
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

/// What a call that posts a receive returns.
#[inline(always)]
fn answer(posted: Result<Option<usize>, isize>) -> isize {
    posted.map_or_else(|error| error, |_| 0)
}

/// A receive, as all calls mean it.
struct Receiving {
    from: FiAddr,
    tags: Option<Tags>,
    context: usize,
    /// The endpoint's own, if the call has none.
    flags: Option<u64>,
}

impl Receiving {
    fn new(from: FiAddr, tags: Option<Tags>, context: *mut c_void, flags: Option<u64>) -> Receiving {
        Receiving { from, tags, context: context as usize, flags }
    }
}

impl Ep {
    /// Receives into one piece.
    ///
    /// # Safety
    /// It can be written, and is left alone, until the operation has ended.
    #[inline(always)]
    unsafe fn receive(&self, start: *mut c_void, len: usize, receiving: &Receiving) -> isize {
        // SAFETY: the caller's promise.
        let lent = unsafe { LentMut::new(start.cast(), len) };
        self.state.with(|state| answer(state.receive(self.slot, Target::Lent(lent), start as usize, receiving)))
    }

    /// Receives into pieces.
    ///
    /// # Safety
    /// Until this returns there are `count` pieces at `iov`. For each piece, as for [`Ep::receive`]; no two overlap.
    unsafe fn receive_pieces(&self, iov: *const iovec, count: usize, receiving: &Receiving) -> isize {
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
                let target = Target::Owned(vec![0; len]);
                self.state.with(|state| state.receive_into_pieces(self.slot, target, pieces, receiving))
            }
            _ => -(libc::EINVAL as isize),
        }
    }
}

impl State {
    fn pattern(&self, slot: usize, receiving: &Receiving) -> Result<Pattern, isize> {
        let source = match receiving.from {
            abi::ADDR_UNSPEC => None,
            _ if !self.eps[slot].is_directed => None,
            address => Some(index(address)?),
        };
        Ok(Pattern { source, tags: receiving.tags })
    }

    /// Receives over a vector, whose bytes are distributed over pieces in the end.
    fn receive_into_pieces(
        &mut self,
        slot: usize,
        target: Target,
        pieces: Vec<LentMut>,
        receiving: &Receiving,
    ) -> isize {
        let flags = receiving.flags.unwrap_or(self.eps[slot].rx_flags);
        if flags & abi::MULTI_RECV != 0 {
            return -(libc::EINVAL as isize);
        }
        let posted = self.receive(slot, target, 0, receiving);
        if let Ok(Some(at)) = posted {
            // It has not ended for the client: that is only when what has ended is handed over.
            let ep = &mut self.eps[slot];
            ep.ops[at].has_pieces = true;
            ep.pieces.insert(at, pieces);
        }
        answer(posted)
    }

    /// Posts a receive. Says which operation it is, if it is one.
    #[inline(always)]
    fn receive(
        &mut self,
        slot: usize,
        target: Target,
        buf: usize,
        receiving: &Receiving,
    ) -> Result<Option<usize>, isize> {
        let pattern = self.pattern(slot, receiving)?;
        let flags = receiving.flags.unwrap_or(self.eps[slot].rx_flags);
        let many = flags & abi::MULTI_RECV;
        if flags & (abi::PEEK | abi::CLAIM) != 0 {
            return self.receive_in_steps(slot, pattern, target, buf, receiving.context, flags);
        }
        if !self.has_room(self.eps[slot].rx) {
            return Err(AGAIN);
        }
        let ep = &mut self.eps[slot];
        let is_told = ep.rx.is_some_and(|rx| rx.tells(flags));
        let op = Op::new(receiving.context, kind(abi::RECV, receiving.tags.is_some()) | many, is_told);
        let at = ep.ops.insert(Op { buf, is_for_any: pattern.source.is_none(), ..op });
        let Ok(mut tagged) = self.bundle.tagged(ep.endpoint) else { return Err(-(libc::EIO as isize)) };
        let posted = match many {
            0 => tagged.try_receive(pattern, target, at as u64),
            _ => tagged.try_receive_many(pattern, target, ep.least, at as u64),
        };
        match posted {
            Ok(()) => Ok(Some(at)),
            Err((error, _)) => Err(self.refuse(slot, at, error)),
        }
    }

    /// Looks for a message that waits, takes one out, or receives or drops one that was taken out. What is found is told by a completion at
    /// once, and nothing by an error.
    #[cold]
    fn receive_in_steps(
        &mut self,
        slot: usize,
        pattern: Pattern,
        target: Target,
        buf: usize,
        context: usize,
        flags: u64,
    ) -> Result<Option<usize>, isize> {
        let kind = kind(abi::RECV, pattern.tags.is_some());
        if flags & abi::PEEK == 0 {
            let ep = &mut self.eps[slot];
            let claim = ep.claims.iter().position(|(of, _)| *of == context);
            let (_, claim) = ep.claims.swap_remove(claim.ok_or(-(libc::EINVAL as isize))?);
            let mut tagged = self.bundle.tagged(ep.endpoint).map_err(|_| -(libc::EIO as isize))?;
            if flags & abi::DISCARD != 0 {
                tagged.discard(claim);
                let entry = CqEntry { op_context: context, flags: kind, ..CqEntry::default() };
                return self.tell(slot, entry, abi::ADDR_UNSPEC, flags);
            }
            let is_told = ep.rx.is_some_and(|rx| rx.tells(flags));
            let at = ep.ops.insert(Op { buf, ..Op::new(context, kind, is_told) });
            return match tagged.try_receive_claimed(claim, target, at as u64) {
                Ok(()) => Ok(Some(at)),
                Err((error, claim, _)) => {
                    ep.claims.push((context, claim));
                    Err(self.refuse(slot, at, error))
                }
            };
        }
        self.progress();
        let ep = &mut self.eps[slot];
        let mut tagged = self.bundle.tagged(ep.endpoint).map_err(|_| -(libc::EIO as isize))?;
        let found = match flags & (abi::CLAIM | abi::DISCARD) {
            0 => tagged.peek(pattern).map(|found| found.map(|envelope| (envelope, None))),
            _ => tagged.claim(pattern).map(|found| found.map(|(envelope, claim)| (envelope, Some(claim)))),
        };
        let mut entry = CqEntry { op_context: context, flags: kind, ..CqEntry::default() };
        match found {
            Err(error) => Err(refusal(error)),
            Ok(None) => {
                entry.tag = pattern.tags.map_or(0, |tags| tags.tag);
                if let Some(cq) = ep.rx.and_then(|rx| self.cqs.get_mut(rx.cq)) {
                    cq.refuse(entry, libc::ENOMSG);
                }
                Ok(None)
            }
            Ok(Some((envelope, claim))) => {
                match claim {
                    Some(claim) if flags & abi::DISCARD != 0 => tagged.discard(claim),
                    Some(claim) => ep.claims.push((context, claim)),
                    None => {}
                }
                entry.len = envelope.len;
                entry.tag = envelope.label.tag.unwrap_or(0);
                entry.data = envelope.label.data.unwrap_or(0);
                entry.flags |= if envelope.label.data.is_some() { abi::REMOTE_CQ_DATA } else { 0 };
                self.tell(slot, entry, envelope.source.map_or(abi::ADDR_UNSPEC, u64::from), flags)
            }
        }
    }

    /// A completion of what has ended at once.
    fn tell(&mut self, slot: usize, entry: CqEntry, source: FiAddr, flags: u64) -> Result<Option<usize>, isize> {
        let bound = self.eps[slot].rx.filter(|rx| rx.tells(flags | abi::COMPLETION));
        if let Some(cq) = bound.and_then(|bound| self.cqs.get_mut(bound.cq)) {
            cq.tell(entry, source);
        }
        Ok(None)
    }
}

// ---- the calls

/// # Safety
/// It is an endpoint of ours, and open as long as the reference is used.
#[inline(always)]
unsafe fn of<'a>(ep: *mut FidEp) -> &'a Ep {
    // SAFETY: the caller's promise.
    unsafe { &*ep.cast::<Ep>() }
}

fn plain(data: Option<u64>) -> Label {
    Label { tag: None, data }
}

fn tagged(tag: u64, data: Option<u64>) -> Label {
    Label { tag: Some(tag), data }
}

unsafe extern "C" fn recv(
    ep: *mut FidEp,
    buf: *mut c_void,
    len: usize,
    _desc: *mut c_void,
    from: FiAddr,
    context: *mut c_void,
) -> isize {
    // SAFETY: libfabric's promise.
    let ep = unsafe { of(ep) };
    // SAFETY: the client's promise.
    unsafe { ep.receive(buf, len, &Receiving::new(from, None, context, None)) }
}

unsafe extern "C" fn recvv(
    ep: *mut FidEp,
    iov: *const iovec,
    _desc: *mut *mut c_void,
    count: usize,
    from: FiAddr,
    context: *mut c_void,
) -> isize {
    // SAFETY: libfabric's promise.
    let ep = unsafe { of(ep) };
    let receiving = Receiving::new(from, None, context, None);
    // SAFETY: the client's promise.
    unsafe { ep.receive_pieces(iov, count, &receiving) }
}

unsafe extern "C" fn recvmsg(ep: *mut FidEp, msg: *const MsgArgs, flags: u64) -> isize {
    // SAFETY: libfabric's promise of the endpoint, and the client's of the message.
    let (ep, msg) = unsafe { (of(ep), &*msg) };
    let receiving = Receiving::new(msg.addr, None, msg.context, Some(flags));
    // SAFETY: the client's promise.
    unsafe { ep.receive_pieces(msg.iov, msg.iov_count, &receiving) }
}

unsafe extern "C" fn send(
    ep: *mut FidEp,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    to: FiAddr,
    context: *mut c_void,
) -> isize {
    // SAFETY: libfabric's promise.
    let ep = unsafe { of(ep) };
    let sending = Sending::new(to, plain(None), context, None);
    // SAFETY: the client's promise.
    unsafe { ep.send(buf, len, &sending) }
}

unsafe extern "C" fn sendv(
    ep: *mut FidEp,
    iov: *const iovec,
    _desc: *mut *mut c_void,
    count: usize,
    to: FiAddr,
    context: *mut c_void,
) -> isize {
    // SAFETY: libfabric's promise.
    let ep = unsafe { of(ep) };
    let sending = Sending::new(to, plain(None), context, None);
    // SAFETY: the client's promise.
    unsafe { ep.send_pieces(iov, count, &sending) }
}

unsafe extern "C" fn sendmsg(ep: *mut FidEp, msg: *const MsgArgs, flags: u64) -> isize {
    // SAFETY: libfabric's promise of the endpoint, and the client's of the message.
    let (ep, msg) = unsafe { (of(ep), &*msg) };
    let data = (flags & abi::REMOTE_CQ_DATA != 0).then_some(msg.data);
    let sending = Sending::new(msg.addr, plain(data), msg.context, Some(flags));
    // SAFETY: the client's promise.
    unsafe { ep.send_pieces(msg.iov, msg.iov_count, &sending) }
}

unsafe extern "C" fn inject(ep: *mut FidEp, buf: *const c_void, len: usize, to: FiAddr) -> isize {
    // SAFETY: libfabric's promise of the endpoint, and the client's of the bytes, which are lent until this call returns.
    unsafe { of(ep).inject(to, plain(None), Lent::new(buf.cast(), len).bytes()) }
}

unsafe extern "C" fn senddata(
    ep: *mut FidEp,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    data: u64,
    to: FiAddr,
    context: *mut c_void,
) -> isize {
    // SAFETY: libfabric's promise.
    let ep = unsafe { of(ep) };
    let sending = Sending::new(to, plain(Some(data)), context, None);
    // SAFETY: the client's promise.
    unsafe { ep.send(buf, len, &sending) }
}

unsafe extern "C" fn injectdata(ep: *mut FidEp, buf: *const c_void, len: usize, data: u64, to: FiAddr) -> isize {
    // SAFETY: libfabric's promise of the endpoint, and the client's of the bytes, which are lent until this call returns.
    unsafe { of(ep).inject(to, plain(Some(data)), Lent::new(buf.cast(), len).bytes()) }
}

unsafe extern "C" fn trecv(
    ep: *mut FidEp,
    buf: *mut c_void,
    len: usize,
    _desc: *mut c_void,
    from: FiAddr,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: libfabric's promise.
    let ep = unsafe { of(ep) };
    let tags = Some(Tags { tag, ignore });
    // SAFETY: the client's promise.
    unsafe { ep.receive(buf, len, &Receiving::new(from, tags, context, None)) }
}

unsafe extern "C" fn trecvv(
    ep: *mut FidEp,
    iov: *const iovec,
    _desc: *mut *mut c_void,
    count: usize,
    from: FiAddr,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: libfabric's promise.
    let ep = unsafe { of(ep) };
    let tags = Some(Tags { tag, ignore });
    let receiving = Receiving::new(from, tags, context, None);
    // SAFETY: the client's promise.
    unsafe { ep.receive_pieces(iov, count, &receiving) }
}

unsafe extern "C" fn trecvmsg(ep: *mut FidEp, msg: *const TaggedArgs, flags: u64) -> isize {
    // SAFETY: libfabric's promise of the endpoint, and the client's of the message.
    let (ep, msg) = unsafe { (of(ep), &*msg) };
    let tags = Some(Tags { tag: msg.tag, ignore: msg.ignore });
    let receiving = Receiving::new(msg.addr, tags, msg.context, Some(flags));
    // SAFETY: the client's promise.
    unsafe { ep.receive_pieces(msg.iov, msg.iov_count, &receiving) }
}

unsafe extern "C" fn tsend(
    ep: *mut FidEp,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    to: FiAddr,
    tag: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: libfabric's promise.
    let ep = unsafe { of(ep) };
    let sending = Sending::new(to, tagged(tag, None), context, None);
    // SAFETY: the client's promise.
    unsafe { ep.send(buf, len, &sending) }
}

unsafe extern "C" fn tsendv(
    ep: *mut FidEp,
    iov: *const iovec,
    _desc: *mut *mut c_void,
    count: usize,
    to: FiAddr,
    tag: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: libfabric's promise.
    let ep = unsafe { of(ep) };
    let sending = Sending::new(to, tagged(tag, None), context, None);
    // SAFETY: the client's promise.
    unsafe { ep.send_pieces(iov, count, &sending) }
}

unsafe extern "C" fn tsendmsg(ep: *mut FidEp, msg: *const TaggedArgs, flags: u64) -> isize {
    // SAFETY: libfabric's promise of the endpoint, and the client's of the message.
    let (ep, msg) = unsafe { (of(ep), &*msg) };
    let data = (flags & abi::REMOTE_CQ_DATA != 0).then_some(msg.data);
    let sending = Sending::new(msg.addr, tagged(msg.tag, data), msg.context, Some(flags));
    // SAFETY: the client's promise.
    unsafe { ep.send_pieces(msg.iov, msg.iov_count, &sending) }
}

unsafe extern "C" fn tinject(ep: *mut FidEp, buf: *const c_void, len: usize, to: FiAddr, tag: u64) -> isize {
    // SAFETY: libfabric's promise of the endpoint, and the client's of the bytes, which are lent until this call returns.
    unsafe { of(ep).inject(to, tagged(tag, None), Lent::new(buf.cast(), len).bytes()) }
}

unsafe extern "C" fn tsenddata(
    ep: *mut FidEp,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    data: u64,
    to: FiAddr,
    tag: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: libfabric's promise.
    let ep = unsafe { of(ep) };
    let sending = Sending::new(to, tagged(tag, Some(data)), context, None);
    // SAFETY: the client's promise.
    unsafe { ep.send(buf, len, &sending) }
}

unsafe extern "C" fn tinjectdata(
    ep: *mut FidEp,
    buf: *const c_void,
    len: usize,
    data: u64,
    to: FiAddr,
    tag: u64,
) -> isize {
    // SAFETY: libfabric's promise of the endpoint, and the client's of the bytes, which are lent until this call returns.
    unsafe { of(ep).inject(to, tagged(tag, Some(data)), Lent::new(buf.cast(), len).bytes()) }
}
