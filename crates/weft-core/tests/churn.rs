//! A million pairs of endpoints, one after the other, on one session: no message is returned, and memory does not grow.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use weft_core::testing::{path, MemRx, MemTx, NoBells};
use weft_core::{Bundle, Delivery, Endpoint, MessageKind, Outgoing, PeerId, SessionId, Settings, Sink, State};
use weft_wire::{BundleId, EndpointId, Epoch, HostAddress, Key, Name, Reason, Uid};

const PAIRS: u64 = if cfg!(debug_assertions) { 20_000 } else { 1_000_000 };
/// After this many pairs memory must not grow.
const WARM: u64 = 1_000;
const KEY: Key = Key(7);

/// The system's allocator, counting per thread, because tests run in parallel.
struct Counting;

thread_local! {
    static LIVE: Cell<i64> = const { Cell::new(0) };
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

/// Bytes that this thread has allocated and not freed.
fn live() -> i64 {
    LIVE.get()
}

fn count(bytes: i64) {
    // The thread-local is gone while a thread ends.
    let _ = LIVE.try_with(|live| live.set(live.get() + bytes));
    let _ = CALLS.try_with(|calls| calls.set(calls.get() + u64::from(bytes > 0)));
}

// SAFETY: every call goes to the system's allocator unchanged; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller keeps `alloc`'s contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: the caller keeps `dealloc`'s contract.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

type Core = Bundle<MemRx, MemTx, NoBells>;

/// Answers requests, and counts.
#[derive(Default)]
struct Echo {
    requests: u64,
    replies: u64,
    sends: u64,
    returned: Vec<Reason>,
}

impl Sink<MemTx> for Echo {
    fn deliver(&mut self, state: &mut State<MemTx>, message: &Delivery<'_>) -> Result<(), Reason> {
        match message.kind() {
            MessageKind::Request => {
                self.requests += 1;
                let token = message.take_reply().ok_or(Reason::NoHandler)?;
                state.reply(token, 2, message.args, message.payload).map_err(|_| Reason::PeerLost)?;
            }
            MessageKind::Reply => self.replies += 1,
            MessageKind::OneWay => self.sends += 1,
        }
        Ok(())
    }

    fn returned(&mut self, _: &mut State<MemTx>, message: weft_core::Returned) -> Option<weft_core::Returned> {
        self.returned.push(message.reason);
        None
    }
}

struct Side {
    core: Core,
    echo: Echo,
    epoch: Epoch,
    peer: SessionId,
    endpoints: u32,
}

impl Side {
    fn name(&mut self) -> Name {
        self.endpoints += 1;
        let endpoint = EndpointId(self.endpoints);
        Name { epoch: self.epoch, endpoint, uid: Uid(1000), address: HostAddress::NONE }
    }

    fn add(&mut self) -> (Endpoint, Name) {
        let name = self.name();
        (self.core.state_mut().add_endpoint(name, KEY), name)
    }

    fn poll(&mut self) {
        for call in self.core.state_mut().take_calls() {
            self.core.state_mut().connected(call, self.peer);
        }
        self.core.poll(64, &mut self.echo);
        while self.core.state_mut().next_event().is_some() {}
    }
}

/// Two bundles with a session.
fn sides() -> [Side; 2] {
    let ((ab, b_from_a), (ba, a_from_b)) = (path(4096), path(4096));
    let make = |epoch, other, tx, rx| {
        let mut core = Core::new(NoBells, Settings::default());
        let at = core.reserve().expect("room");
        let peer = PeerId { epoch: other, bundle: BundleId(0), uid: Uid(1000), address: HostAddress::NONE };
        let peer = core.attach(at, peer, tx, rx);
        Side { core, echo: Echo::default(), epoch, peer, endpoints: 0 }
    };
    [make(Epoch(1), Epoch(2), ab, a_from_b), make(Epoch(2), Epoch(1), ba, b_from_a)]
}

#[test]
fn a_million_pairs_on_one_session_return_nothing_and_keep_nothing() {
    let [mut a, mut b] = sides();
    let (mut bytes, mut calls) = (0, Vec::new());
    for pair in 1..=PAIRS {
        let ((here, _), (there, name)) = (a.add(), b.add());
        a.core.state_mut().map(here, 0, name, KEY).expect("alive");
        let mut sent = [false; 2];
        let message = Outgoing { op: 1, args: &[1, 2], payload: &[3; 100], completion: None };
        while sent != [true; 2] || a.echo.replies < pair || b.echo.sends < pair {
            let state = a.core.state_mut();
            sent[0] = sent[0] || state.try_request(here, 0, message).is_ok();
            sent[1] = sent[1] || state.try_send(here, 0, message).is_ok();
            a.poll();
            b.poll();
        }
        a.core.state_mut().free_endpoint(here).expect("alive");
        b.core.state_mut().free_endpoint(there).expect("alive");
        if pair == WARM {
            bytes = live();
        }
        if [WARM, 2 * WARM, PAIRS - WARM, PAIRS].contains(&pair) {
            calls.push(CALLS.get());
        }
    }
    assert_eq!((a.echo.returned.len(), b.echo.returned.len()), (0, 0));
    assert_eq!((b.echo.requests, a.echo.replies, b.echo.sends), (PAIRS, PAIRS, PAIRS));
    let grown = live() - bytes;
    assert!(grown.abs() < 4096, "{grown} bytes more than after {WARM} pairs");
    let (early, late) = ((calls[1] - calls[0]) / WARM, (calls[3] - calls[2]) / WARM);
    assert!(early <= 32 && late <= early + 1, "{early} allocations for an early pair, {late} for a late one");
}

/// A resting bundle frees the buffers that it kept from a burst.
#[test]
fn the_buffers_of_a_burst_of_requests_are_given_back_at_rest() {
    let [mut a, mut b] = sides();
    let ((here, _), (_, name)) = (a.add(), b.add());
    a.core.state_mut().map(here, 0, name, KEY).expect("alive");
    let burst = |a: &mut Side, b: &mut Side, payload: &[u8]| {
        let replies = a.echo.replies;
        let mut asked = 0;
        while a.echo.replies < replies + 64 {
            let message = Outgoing { op: 1, args: &[], payload, completion: None };
            asked += u64::from(asked < 64 && a.core.state_mut().try_request(here, 0, message).is_ok());
            a.poll();
            b.poll();
        }
    };
    burst(&mut a, &mut b, &[1; 16]);
    let before = live();
    burst(&mut a, &mut b, &[1; 60_000]);
    let after = live();
    a.core.rest();
    b.core.rest();
    let rested = live();
    assert!(after - before > 50_000, "a burst keeps its buffers: {}", after - before);
    assert!(rested - before < 8192, "{} bytes are kept at rest", rested - before);
}

/// All numbers are closing and the peer never answers: endpoints that are created and freed meanwhile leave nothing behind.
#[test]
fn endpoints_that_wait_in_vain_for_a_number_leave_nothing_behind() {
    const NUMBERS: u32 = 4096;
    let [mut a, mut b] = sides();
    let ((here, _), (_, name)) = (a.add(), b.add());
    let message = Outgoing { op: 1, args: &[], payload: &[], completion: None };
    for index in 0..NUMBERS {
        a.core.state_mut().map(here, index, name, KEY).expect("alive");
        let _ = a.core.state_mut().try_send(here, index, message);
        a.poll();
    }
    a.core.state_mut().free_endpoint(here).expect("alive");
    let mut bytes = 0;
    for pair in 0..20_000 {
        let (here, _) = a.add();
        a.core.state_mut().map(here, 0, name, KEY).expect("alive");
        assert!(a.core.state_mut().try_send(here, 0, message).is_err());
        a.poll();
        a.core.state_mut().free_endpoint(here).expect("alive");
        if pair == WARM {
            bytes = live();
        }
    }
    assert_eq!(a.echo.returned, []);
    let grown = live() - bytes;
    assert!(grown < 64 << 10, "{grown} bytes more than after {WARM} pairs");
}
