//! The memory kept for peers that got one message and have been idle since.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Duration;
use weft_sim::{Change, Config, Context, HostId, Message, Notice, Outgoing, Program, Reason, Simulation, Topology};

/// The system's allocator, counting by thread.
struct Counting;

thread_local! {
    static LIVE: Cell<i64> = const { Cell::new(0) };
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count(bytes: i64) {
    // The thread-local is gone while its thread ends.
    let _ = LIVE.try_with(|live| live.set(live.get() + bytes));
}

// SAFETY: every call goes to the system's allocator unchanged; counting uses a thread-local without destructor, which allocates
// nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        let _ = ALLOCATIONS.try_with(|all| all.set(all.get() + 1));
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

/// Asks some hosts once, one per millisecond, and others later, when all is quiet.
#[derive(Default)]
struct Ask {
    first: Vec<HostId>,
    then: Vec<HostId>,
}

impl Program for Ask {
    fn on_start(&mut self, cx: &mut Context<'_>) {
        // One after the other, so that few packets are under way at once: the simulator keeps memory for each.
        cx.wake_in(Duration::from_millis(1 + u64::from(cx.host().0)));
    }

    fn on_alarm(&mut self, cx: &mut Context<'_>) {
        if let Some(to) = self.first.pop() {
            ask(cx, to);
            let is_last = self.first.is_empty();
            return cx.wake_in(if is_last { IDLE } else { Duration::from_millis(1) });
        }
        let Some(to) = self.then.pop() else { return };
        ask(cx, to);
        cx.wake_in(Duration::from_millis(1));
    }

    /// Until a session is set up, sends are refused as *full*.
    fn on_notice(&mut self, cx: &mut Context<'_>, notice: Notice) {
        if let Notice::CanSend(to) = notice {
            ask(cx, to);
        }
    }

    fn on_message(&mut self, cx: &mut Context<'_>, message: &Message<'_>) -> Result<(), Reason> {
        match message.take_reply() {
            Some(token) => cx.reply(token, 2, message.args, message.payload).map_err(|_| Reason::PeerLost),
            None => Ok(()),
        }
    }
}

fn ask(cx: &mut Context<'_>, to: HostId) {
    let _full = cx.try_request(to, Outgoing { op: 1, args: &[1], payload: &[7; 64], completion: None });
}

/// The host that has these peers.
const ONE: HostId = HostId(0);

/// What the simulator itself stores per peer of a host: the known life.
const NOTED: i64 = 24 + 32;

/// How long the peers are idle before some of them are asked again, and the number of these.
const IDLE: Duration = Duration::from_secs(10);
const AGAIN: u32 = 1000;

/// The costs of a host with idle peers.
#[derive(Debug)]
struct Cost {
    /// The bytes that it keeps.
    bytes: i64,
    /// Events of the simulator, all hosts together, until the last peer that was asked again has answered.
    events: u64,
    /// Allocations in that time.
    allocations: u64,
}

/// The cost of a host with this many peers that got one message and are idle: of asking some of them again, and of the memory kept
/// afterwards.
fn idle(peers: u32) -> Cost {
    let config = Config { topology: Topology::Star(1 + peers), ..Config::default() };
    let ask = move || Ask {
        first: (1..=peers).map(HostId).collect(),
        then: (1..=AGAIN).map(|n| HostId(n * (peers / AGAIN))).collect(),
    };
    let mut simulation = Simulation::new(config, move |host| if host == ONE { ask() } else { Ask::default() });
    let asked = Duration::from_millis(u64::from(peers));
    rest_until(&mut simulation, Duration::ZERO, asked + IDLE * 9 / 10);
    let before = (simulation.events(), ALLOCATIONS.get());
    simulation.run_for(IDLE / 10 + Duration::from_millis(u64::from(AGAIN)) + Duration::from_secs(1));
    let (events, allocations) = (simulation.events() - before.0, ALLOCATIONS.get() - before.1);
    let now = simulation.now();
    // Memory of paths that have been idle since their last rest is freed.
    rest_until(&mut simulation, now, now + IDLE);
    let report = simulation.verdict().unwrap_or_else(|failure| panic!("{failure}"));
    assert_eq!(report.messages.completed, u64::from(peers + AGAIN));
    // The bytes that the host frees when it ends are those that it kept.
    let before = LIVE.get();
    simulation.change(Change::Crash(ONE));
    Cost { bytes: before - LIVE.get(), events, allocations }
}

fn rest_until(simulation: &mut Simulation<Ask>, from: Duration, until: Duration) {
    for second in 1..=(until - from).as_secs() {
        simulation.run_until(from + Duration::from_secs(second));
        simulation.rest();
    }
    simulation.run_until(until);
}

#[test]
fn an_idle_peer_takes_a_ten_thousandth_of_64_mib() {
    let (few, more) = (idle(1000), idle(2000));
    let each = (more.bytes - few.bytes) / 1000 - NOTED;
    let all = |each: i64| each as f64 * 10_000.0 / 1048576.0;
    println!("{few:?}, {more:?}: {each} bytes for each other peer, {:.1} MiB for 10,000", all(each));
    assert!((500..MOST).contains(&each), "{each} bytes");
    assert_alike(&few, &more);
}

#[test]
fn ten_thousand_idle_peers_take_64_mib_and_none_costs_others_anything() {
    let (few, all) = (idle(1000), idle(10_000));
    println!("{few:?}, {all:?}: {:.1} MiB with 10,000", all.bytes as f64 / 1048576.0);
    assert!(all.bytes - 10_000 * NOTED <= 64 << 20, "{} bytes", all.bytes);
    assert_alike(&few, &all);
}

/// Idle peers cost no time while others are asked.
fn assert_alike(few: &Cost, many: &Cost) {
    assert!(many.events.abs_diff(few.events) <= few.events / 100, "{} events, {}", few.events, many.events);
    assert!(many.allocations <= few.allocations * 21 / 20, "{} allocations, {}", few.allocations, many.allocations);
}

/// 64 MiB for 10,000.
const MOST: i64 = (64 << 20) / 10_000;
