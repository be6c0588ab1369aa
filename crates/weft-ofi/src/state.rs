//! The state of a domain: one bundle, its endpoints, completion queues, address vectors and registrations, and how results get from the
//! bundle to the queues.

use crate::abi::{self, CqEntry, CqErrEntry};
use crate::addr::Peer;
use crate::alarm::Alarm;
use crate::bell::Bell;
use crate::book::Book;
use crate::bundle::{DomainBundle, Sleeper};
use crate::cntr::Count;
use crate::memory::EpMemory;
use crate::regions::Registrations;
use slab::Slab;
use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};
use weft::names::NameServer;
use weft::tagged::{self, Claim, Completion, LentMut, Outcome, Received};
use weft::{Endpoint, Name, Reason};
use weft_shm::biased::this_thread;

/// Completions that a queue keeps. Above this number, new operations that would complete there are refused for now.
const UNREAD_MOST: usize = 1 << 16;

/// Reads of completions between two checks for lost peers.
const LOSSES_EVERY: u32 = 256;

/// How often a read polls before it reports nothing, in some 0.5 us. A waiting client does other things between two reads, such as a system
/// call in MPICH, and would see arrivals later without this.
const LOOKS: u32 = 64;

/// At most this many reads in a row poll so often. A client that computes between its reads would lose time with each.
const LOOKS_LAST: u32 = 16;

/// Sends that find no room for so long are reported.
const FULL_LONG: Duration = Duration::from_secs(5);

/// An endpoint.
#[derive(Debug)]
pub struct EpState {
    pub endpoint: Endpoint,
    /// Its part for reads, writes and atomic operations, if it has those capabilities.
    pub memory: Option<EpMemory>,
    /// Whether receives take messages only from their source.
    pub is_directed: bool,
    /// The flags of operations that carry none.
    pub tx_flags: u64,
    pub rx_flags: u64,
    pub av: Option<usize>,
    pub tx: Option<Bound>,
    pub rx: Option<Bound>,
    /// Counters of ended operations, for each direction.
    pub tx_count: Option<Arc<Count>>,
    pub rx_count: Option<Arc<Count>>,
    /// Counters of reads from peers' memory, and of writes to it.
    pub read_count: Option<Arc<Count>>,
    pub write_count: Option<Arc<Count>>,
    /// A multi-receive buffer is released when fewer bytes are left.
    pub least: usize,
    pub ops: Slab<Op>,
    /// The pieces of operations that receive into several.
    pub pieces: HashMap<usize, Vec<LentMut>>,
    /// Claimed messages, by the context of the claim, with the completions that reported them.
    pub claims: Vec<(usize, Claim, CqEntry)>,
    /// Publishes its address at a port, if the client wants that.
    pub told: Option<NameServer>,
    /// Peers whose session was waited for once.
    pub met: HashSet<u32>,
    /// By peer, why a message came back after its operation had ended. The next injection to the peer fails, and takes the entry out.
    pub came_back: HashMap<u32, Reason>,
}

/// A queue that an endpoint is bound to.
#[derive(Clone, Copy, Debug)]
pub struct Bound {
    pub cq: usize,
    /// Whether only operations that ask for it complete there.
    pub is_selective: bool,
}

impl Bound {
    /// Whether an operation with these flags completes there.
    pub fn tells(&self, flags: u64) -> bool {
        !self.is_selective || flags & abi::COMPLETION != 0
    }
}

/// An operation that was posted. Small and plain, because one is entered and removed for each message.
#[derive(Clone, Copy, Debug)]
pub struct Op {
    pub context: usize,
    /// The kind that its completion reports.
    pub kind: u64,
    pub is_told: bool,
    /// Where it receives.
    pub buf: usize,
    /// Whether it receives into several pieces: see [`EpState::pieces`].
    pub has_pieces: bool,
    /// A receive from any source, when no source is left.
    pub is_orphan: bool,
    /// A receive from any source.
    pub is_for_any: bool,
    /// Its parts, as operations of weft, that have not ended.
    pub to_end: u8,
    /// Why a part has failed, if one has.
    pub failed: Option<Reason>,
}

impl Op {
    /// An operation without special properties.
    pub fn new(context: usize, kind: u64, is_told: bool) -> Op {
        let (has_pieces, is_orphan, is_for_any) = (false, false, false);
        Op { context, kind, is_told, buf: 0, has_pieces, is_orphan, is_for_any, to_end: 1, failed: None }
    }
}

/// A completion queue.
#[derive(Debug, Default)]
pub struct CqState {
    /// Completions, with their sources.
    pub entries: VecDeque<(CqEntry, u64)>,
    pub errors: VecDeque<CqErrEntry>,
    /// Rung at each entry and error.
    pub bell: Option<Arc<Bell>>,
}

impl CqState {
    /// Adds a completion.
    #[inline(always)]
    pub fn tell(&mut self, entry: CqEntry, source: u64) {
        self.entries.push_back((entry, source));
        self.has_news();
    }

    #[inline(always)]
    fn has_news(&self) {
        if let Some(bell) = &self.bell {
            bell.ring();
        }
    }

    pub fn fail(&mut self, entry: CqEntry, err: c_int, prov_errno: c_int, olen: usize) {
        say_once(prov_errno);
        self.errors.push_back(CqErrEntry { entry, olen, err, prov_errno, err_data: 0, err_data_size: 0 });
        self.has_news();
    }

    /// Takes the end of an operation that received nothing.
    #[inline(never)]
    fn take_other(&mut self, outcome: &Outcome, op: Op, entry: CqEntry) {
        match outcome {
            Outcome::Sent if op.is_told => self.tell(entry, abi::ADDR_UNSPEC),
            Outcome::Cancelled if op.is_orphan => {
                self.fail(entry, libc::ECONNRESET, Reason::PeerLost as c_int, 0);
            }
            Outcome::Cancelled => self.fail(entry, libc::ECANCELED, 0, 0),
            Outcome::Failed { reason, .. } => self.fail(entry, errno(*reason), *reason as c_int, 0),
            Outcome::Sent | Outcome::Received(_) | Outcome::CameBack(_) => {}
        }
    }

    /// Gives a completion to the reader, if it reads this queue, or else to the queue.
    pub fn tell_or_hand(&mut self, number: usize, entry: CqEntry, source: u64, reader: &mut impl Reader) {
        if !self.entries.is_empty() || !reader.takes(number, &entry, source) {
            self.tell(entry, source);
        }
    }

    /// Whether it has room for another completion.
    pub fn has_room(&self) -> bool {
        self.entries.len() < UNREAD_MOST
    }

    /// Reports an operation that found nothing, or was refused at once.
    pub fn refuse(&mut self, entry: CqEntry, err: c_int) {
        self.fail(entry, err, 0, 0);
    }
}

/// A client's read, which takes completions without a stay in the queue.
pub trait Reader {
    /// Takes a completion of that queue with its source. False leaves it to the queue.
    fn takes(&mut self, queue: usize, entry: &CqEntry, source: u64) -> bool;
}

/// No read is under way.
struct Nobody;

impl Reader for Nobody {
    fn takes(&mut self, _queue: usize, _entry: &CqEntry, _source: u64) -> bool {
        false
    }
}

/// A domain.
#[derive(Debug)]
pub struct State {
    pub bundle: DomainBundle,
    pub eps: Slab<EpState>,
    /// Slots, by the bundle's endpoint numbers.
    slots: Vec<usize>,
    pub cqs: Slab<CqState>,
    pub avs: Slab<Arc<Book>>,
    pub registrations: Registrations,
    /// Endpoints with a side for remote memory.
    pub with_memory: Vec<usize>,
    /// Wakes clients that wait outside of calls.
    alarm: Alarm,
    /// The thread that has armed the bundle's descriptor, and made no other call since. 0 if there is none.
    waits_by_descriptor: usize,
    lost: u64,
    reads: u32,
    /// Number of reads in a row that found nothing: the client is waiting.
    awaited: u32,
    /// The settings of endpoints for messages.
    pub settings: tagged::Settings,
    /// Since when no send was accepted, for lack of room.
    full_since: Option<Instant>,
    has_told: bool,
}

impl State {
    pub fn new(bundle: DomainBundle, registrations: Registrations, settings: tagged::Settings) -> State {
        let (eps, cqs, avs) = Default::default();
        State {
            bundle,
            eps,
            slots: Vec::new(),
            cqs,
            avs,
            registrations,
            with_memory: Vec::new(),
            alarm: Alarm::new(),
            waits_by_descriptor: 0,
            lost: 0,
            reads: 0,
            awaited: 0,
            settings,
            full_since: None,
            has_told: false,
        }
    }

    /// A send was accepted.
    #[inline(always)]
    pub fn is_taken(&mut self) {
        if self.full_since.is_some() {
            self.full_since = None;
        }
    }

    /// A send to a peer found no room. If that lasts, reports once which peer this process waits for.
    #[cold]
    pub fn is_full(&mut self, slot: usize, to: u32) {
        let now = Instant::now();
        let since = *self.full_since.get_or_insert(now);
        if self.has_told || now - since < FULL_LONG {
            return;
        }
        self.has_told = true;
        let av = self.eps[slot].av.and_then(|av| self.avs.get(av));
        let peer = av.and_then(|av| av.get(to as usize));
        let peer = peer.map_or_else(|| String::from("a peer"), |peer| peer.name.to_string());
        let (mib, process) = (self.settings.injected_most >> 20, std::process::id());
        eprintln!(
            "weft: process {process} has waited {} s to send: {peer} (number {to}) has received none of {mib} MiB of messages. \
             If it waits for this process, raise WEFT_SEND_BUFFER (now {mib})",
            FULL_LONG.as_secs()
        );
    }

    /// Enters an endpoint.
    pub fn add(&mut self, ep: EpState) -> usize {
        let (number, has_memory) = (ep.endpoint.index(), ep.memory.is_some());
        let slot = self.eps.insert(ep);
        if has_memory {
            self.with_memory.push(slot);
        }
        if self.slots.len() <= number {
            self.slots.resize(number + 1, usize::MAX);
        }
        self.slots[number] = slot;
        slot
    }

    /// The address of an endpoint.
    pub fn address(&self, slot: usize) -> Option<Peer> {
        let EpState { endpoint, memory, .. } = &self.eps[slot];
        let memory = memory.as_ref().map(|memory| self.bundle.name(memory.endpoint)).transpose().ok()?;
        let memory = memory.map(|name| name.endpoint);
        Some(Peer { name: self.bundle.name(*endpoint).ok()?, key: self.bundle.key(*endpoint).ok()?, memory })
    }

    /// Frees an endpoint. Later polls may still send its last messages.
    pub fn free_endpoint(&mut self, slot: usize) {
        let EpState { endpoint, memory, .. } = &self.eps[slot];
        // Cannot fail: the endpoint exists.
        let _ = self.bundle.free(*endpoint);
        if let Some(memory) = memory {
            let _ = self.bundle.free(memory.endpoint);
        }
    }

    /// Removes an endpoint that was freed. Its further results are dropped.
    pub fn forget_endpoint(&mut self, slot: usize) {
        self.slots.iter_mut().filter(|other| **other == slot).for_each(|other| *other = usize::MAX);
        self.with_memory.retain(|other| *other != slot);
        self.close_all(slot);
        self.eps.remove(slot);
    }

    /// Whether a queue has room for the results of more operations.
    pub fn has_room(&self, bound: Option<Bound>) -> bool {
        bound.is_none_or(|bound| self.cqs.get(bound.cq).is_none_or(CqState::has_room))
    }

    /// Polls, and hands over ended operations.
    pub fn progress(&mut self) {
        self.awaited = 0;
        self.progress_for(&mut Nobody);
    }

    /// The same during a read. Polls several times if the last read found nothing either.
    #[inline(always)]
    pub fn progress_for(&mut self, reader: &mut impl Reader) {
        if self.waits_by_descriptor != 0 {
            self.is_looked_at();
        }
        let looks = if (1..=LOOKS_LAST).contains(&self.awaited) { LOOKS } else { 1 };
        let has_come = (0..looks).any(|_| self.look(reader, true));
        self.awaited = if has_come { 0 } else { self.awaited.saturating_add(1) };
        self.reads = self.reads.wrapping_add(1);
        if self.reads % LOSSES_EVERY == 0 {
            self.look_for_losses();
        }
    }

    /// Whether the last progress found nothing.
    #[inline(always)]
    pub fn is_awaited(&self) -> bool {
        self.awaited > 0
    }

    /// Hands over ended operations.
    pub fn hand_over(&mut self) {
        self.look(&mut Nobody, false);
    }

    /// Hands over ended operations under one lock, after a poll if `polls`. Returns whether there were any.
    #[inline(always)]
    fn look(&mut self, reader: &mut impl Reader, polls: bool) -> bool {
        let State { bundle, eps, slots, cqs, with_memory, registrations, .. } = self;
        let mut held = bundle.hold();
        let mut has_come = polls && held.poll() > 0;
        let mut ended = held.ended();
        let mut take_next = || {
            ended.next_with(|done| {
                let ep = slots.get(done.endpoint.index()).and_then(|&slot| eps.get_mut(slot));
                if let Some(ep) = ep {
                    ep.take(done, cqs, reader);
                }
            })
        };
        // A receive that found its message waiting has ended without a poll.
        while take_next().is_some() {
            has_come = true;
        }
        for &slot in with_memory.iter() {
            has_come |= eps[slot].hand_over_memory(&mut held, registrations, cqs, reader);
        }
        has_come
    }

    /// Ends receives from any source once no source is left, and the last ones died: all inserted peers, except endpoints of this domain.
    /// Peers that left in an orderly way do not count, because new ones may come.
    #[cold]
    fn look_for_losses(&mut self) {
        let lost = self.bundle.sessions_lost();
        if std::mem::replace(&mut self.lost, lost) == lost {
            return;
        }
        let own: Vec<Name> = self.eps.iter().filter_map(|(_, ep)| self.bundle.name(ep.endpoint).ok()).collect();
        for (_, ep) in &mut self.eps {
            let Some(av) = ep.av.and_then(|av| self.avs.get(av)) else { continue };
            let others = av.numbers_but_for(&own);
            // Cannot fail: the endpoint exists.
            let _ = self.bundle.tagged(ep.endpoint, |tagged| {
                let are_gone = others.iter().all(|at| tagged.lost(*at).is_some());
                if !are_gone || others.iter().all(|at| tagged.has_left(*at)) {
                    return;
                }
                // Except multi-receives: MPICH keeps some posted until it ends, which is after its peers have ended.
                let waits = |op: &Op| op.is_for_any && op.kind & abi::MULTI_RECV == 0;
                for (at, op) in ep.ops.iter_mut().filter(|(_, op)| waits(op)) {
                    op.is_orphan = tagged.cancel(at as u64);
                }
            });
        }
        self.hand_over();
    }

    /// A message that was reported as sent waits here for its receiver. A thread of weft takes care of it, because the client may make no
    /// more calls.
    #[cold]
    pub fn serve_what_waits(&mut self) {
        // Without a thread, only the client's calls can send it.
        let _ = self.serve();
    }

    /// Makes a thread serve the bundle too.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn serve(&mut self) -> Result<(), weft::Error> {
        self.share_or_say();
        self.bundle.serve()
    }

    /// Lets other threads use the bundle. From now on a thread wakes clients that wait outside of calls.
    ///
    /// # Errors
    /// If that thread cannot be started.
    #[cold]
    fn share(&mut self) -> std::io::Result<()> {
        self.bundle.share();
        match self.bundle.shared() {
            Some(bundle) if !self.alarm.has_no_bells() => self.alarm.follow(bundle),
            _ => Ok(()),
        }
    }

    /// Makes a bell that rings a descriptor.
    ///
    /// # Errors
    /// As C wants them.
    pub fn new_event(&mut self) -> Result<Arc<Bell>, c_int> {
        let bell = self.alarm.add_event(self.bundle.wait_fd()).map_err(in_c)?;
        self.follow(bell)
    }

    /// Makes a bell that rings a mutex and a condition.
    ///
    /// # Errors
    /// As C wants them.
    pub fn new_cond(&mut self) -> Result<Arc<Bell>, c_int> {
        let bell = self.alarm.add_cond();
        self.bundle.share();
        self.follow(bell)
    }

    /// Makes the thread wait for a new bell, if there is to be a thread.
    fn follow(&mut self, bell: Arc<Bell>) -> Result<Arc<Bell>, c_int> {
        let followed = self.bundle.shared().map_or(Ok(()), |bundle| self.alarm.follow(bundle));
        match followed {
            Ok(()) => Ok(bell),
            Err(error) => {
                self.alarm.remove(&bell);
                Err(in_c(error))
            }
        }
    }

    /// Removes a bell that nobody waits for any more.
    pub fn remove_bell(&mut self, bell: &Arc<Bell>) {
        self.alarm.remove(bell);
    }

    /// A thread polls the bundle, so its descriptor reports nothing until it is armed again. If another thread waits on it, the bundle is
    /// shared from now on.
    #[cold]
    fn is_looked_at(&mut self) {
        let waits = std::mem::replace(&mut self.waits_by_descriptor, 0);
        if waits != this_thread() {
            self.share_or_say();
        }
    }

    /// As [`State::share`]. If the thread cannot be started, prints that.
    fn share_or_say(&mut self) {
        if let Err(error) = self.share() {
            eprintln!("weft: cannot start the thread that wakes clients waiting for libfabric's queues: {error}");
        }
    }

    /// Prepares to wait outside of calls, for a bell if there is one. False if something `is_there` already that the client must look at
    /// first.
    pub fn arm(&mut self, bell: Option<&Bell>, is_there: impl Fn(&State) -> bool) -> bool {
        if let Some(bell) = bell {
            bell.hush();
            // Before looking for the thread's handle: a thread that waits already then rings it for whatever comes from now on.
            bell.arm(true);
        }
        if self.waits_by_descriptor != 0 {
            // Before taking the thread's handle, which may exist from now on.
            self.is_looked_at();
        }
        let handle = self.alarm.begin();
        self.progress();
        let is_quiet = !is_there(self) && self.bundle.arm();
        self.hand_over();
        let is_armed = is_quiet && !is_there(self);
        if let Some(bell) = bell.filter(|_| !is_armed) {
            bell.arm(false);
        }
        if let Some(handle) = handle {
            self.alarm.end(handle, is_armed);
        }
        if is_armed && bell.is_some() && self.bundle.shared().is_none() {
            self.waits_by_descriptor = this_thread();
        }
        is_armed
    }

    /// What a thread can sleep on. `None` if there is something to do.
    pub fn sleeper(&mut self) -> Option<Sleeper> {
        self.bundle.sleeper()
    }
}

impl EpState {
    /// Hands over one ended operation.
    #[inline(always)]
    fn take(&mut self, done: &mut Completion, cqs: &mut Slab<CqState>, reader: &mut impl Reader) {
        if let Outcome::CameBack(back) = &done.outcome {
            // Its operation has ended, so an error could name no context. Open MPI 4.1 crashed when such an error was likely.
            say_once(back.reason as c_int);
            self.came_back.extend(back.to.map(|to| (to, back.reason)));
            return;
        }
        let at = done.context as usize;
        let Some(op) = self.ops.get_mut(at) else { return };
        let (bound, count) =
            if op.kind & abi::SEND != 0 { (self.tx, &self.tx_count) } else { (self.rx, &self.rx_count) };
        if let Some(count) = count {
            count.add(matches!(done.outcome, Outcome::Received(_) | Outcome::Sent));
        }
        if let Some((number, cq)) = bound.and_then(|bound| Some((bound.cq, cqs.get_mut(bound.cq)?))) {
            let mut entry = CqEntry { op_context: op.context, flags: op.kind, ..CqEntry::default() };
            match &done.outcome {
                Outcome::Received(received) => {
                    if op.has_pieces {
                        let pieces = self.pieces.remove(&at).unwrap_or_default();
                        scatter(pieces, received, done.buffer.as_deref());
                    }
                    fill(&mut entry, op, received);
                    if done.is_last && op.kind & abi::MULTI_RECV != 0 {
                        entry.flags |= abi::MULTI_RECV;
                    }
                    if received.is_truncated() {
                        cq.fail(entry, abi::ETRUNC, 0, received.message.len - received.stored);
                    } else if op.is_told {
                        let source = received.message.source.map_or(abi::ADDR_UNSPEC, u64::from);
                        if !cq.entries.is_empty() || !reader.takes(number, &entry, source) {
                            cq.tell(entry, source);
                        }
                    }
                }
                outcome => cq.take_other(outcome, *op, entry),
            }
        }
        if done.is_last {
            self.end(at);
        }
    }

    /// Why a message to this peer came back after its operation had ended, once.
    #[inline(always)]
    pub fn failure(&mut self, to: u32) -> Option<Reason> {
        if self.came_back.is_empty() {
            None
        } else {
            self.came_back.remove(&to)
        }
    }

    /// Enters an operation that receives at `buf`, or into several pieces.
    #[inline(always)]
    pub fn enter(&mut self, op: Op, buf: usize, pieces: Vec<LentMut>) -> usize {
        let has_pieces = !pieces.is_empty();
        let at = self.ops.insert(Op { buf, has_pieces, ..op });
        if has_pieces {
            self.pieces.insert(at, pieces);
        }
        at
    }

    /// Removes an operation that has ended.
    #[inline(always)]
    pub fn end(&mut self, at: usize) {
        if self.ops.try_remove(at).is_some_and(|op| op.has_pieces) {
            self.pieces.remove(&at);
        }
    }
}

/// Distributes a received message over the pieces that it is for.
#[cold]
fn scatter(pieces: Vec<LentMut>, received: &Received, buffer: Option<&[u8]>) {
    let Some(mut bytes) = buffer.map(|bytes| &bytes[..received.stored]) else { return };
    for mut piece in pieces {
        let stored = piece.write(0, bytes);
        bytes = &bytes[stored..];
    }
}

fn fill(entry: &mut CqEntry, op: &Op, received: &Received) {
    let label = received.message.label;
    entry.len = received.stored;
    entry.buf = op.buf.wrapping_add(received.at);
    entry.flags &= !abi::MULTI_RECV;
    entry.tag = label.tag.unwrap_or(0);
    if let Some(data) = label.data {
        entry.flags |= abi::REMOTE_CQ_DATA;
        entry.data = data;
    }
}

/// The code of a system error, for C.
fn in_c(error: std::io::Error) -> c_int {
    -error.raw_os_error().unwrap_or(libc::EIO)
}

/// Says on standard error why a peer was not reached, once in each process: MPIs report all such errors as `MPI_ERR_INTERN`.
#[cold]
fn say_once(number: c_int) {
    static HAS_SAID: AtomicBool = AtomicBool::new(false);
    let is_meant = |reason: &Reason| *reason as c_int == number && is_of_set_up(*reason);
    let Some(reason) = Reason::ALL.into_iter().find(is_meant) else { return };
    // Relaxed: nothing else depends on it.
    if !HAS_SAID.swap(true, Ordering::Relaxed) {
        eprintln!("weft: process {}: an operation failed: {reason}", std::process::id());
    }
}

/// Whether the reason is one for the person who set hosts and processes up. The others are for the client, or a launcher reports them.
fn is_of_set_up(reason: Reason) -> bool {
    use Reason as R;
    let is_of_hosts = matches!(reason, R::Silent | R::NobodyThere | R::Version | R::ForeignUser);
    is_of_hosts || matches!(reason, R::NoRoom | R::PeerLimit | R::OwnDescriptors | R::OwnMemory | R::OwnFileSize)
}

/// The system's error number for a reason.
pub fn errno(reason: Reason) -> c_int {
    match reason {
        Reason::PeerLost => libc::ECONNRESET,
        Reason::Silent => libc::ETIMEDOUT,
        Reason::NobodyThere | Reason::NoSuchEndpoint | Reason::WrongEpoch | Reason::Closed => libc::ECONNREFUSED,
        Reason::WrongKey | Reason::ForeignUser | Reason::WrongOwner => libc::EACCES,
        Reason::QueueFull | Reason::NoRoom | Reason::PeerLimit => libc::ENOBUFS,
        Reason::OwnDescriptors => libc::EMFILE,
        Reason::OwnMemory => libc::ENOMEM,
        Reason::OwnFileSize => libc::EFBIG,
        Reason::Version => libc::EPROTONOSUPPORT,
        Reason::Revoked | Reason::NoRegion | Reason::NoRight => libc::EACCES,
        Reason::OutsideRegion | Reason::BadOffset | Reason::BadLength => libc::EFAULT,
        Reason::Unaligned => libc::EINVAL,
        Reason::Violation | Reason::NoHandler => libc::EPROTO,
    }
}
