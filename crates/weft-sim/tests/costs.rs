//! What peers that were spoken to once, and are idle since, keep in memory.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Duration;
use weft_sim::{Change, Config, Context, HostId, Message, Notice, Outgoing, Program, Reason, Simulation, Topology};

/// The system's allocator, counting by thread.
struct Counting;

thread_local! {
    static LIVE: Cell<i64> = const { Cell::new(0) };
}

fn count(bytes: i64) {
    // Not there while a thread ends.
    let _ = LIVE.try_with(|live| live.set(live.get() + bytes));
}

// SAFETY: every call goes to the system's allocator unchanged; counting uses a thread-local without destructor, which allocates
// nothing.
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

/// Asks some hosts once each, one each millisecond.
struct Ask(Vec<HostId>);

impl Program for Ask {
    fn on_start(&mut self, cx: &mut Context<'_>) {
        // One after the other, so that few packets are under way at once: the simulator keeps their places.
        cx.wake_in(Duration::from_millis(1 + u64::from(cx.host().0)));
    }

    fn on_alarm(&mut self, cx: &mut Context<'_>) {
        let Some(to) = self.0.pop() else { return };
        ask(cx, to);
        cx.wake_in(Duration::from_millis(1));
    }

    /// A session that is not set up says *full*.
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

/// The host whose peers they are.
const ONE: HostId = HostId(0);

/// What the simulator itself notes of each of a host's peers: the life that is known there.
const NOTED: i64 = 24 + 32;

/// Bytes of a host with so many peers, each of which was spoken to once and is idle.
fn idle(peers: u32) -> i64 {
    let config = Config { topology: Topology::Star(1 + peers), ..Config::default() };
    let others = move || (1..=peers).map(HostId).collect();
    let mut simulation = Simulation::new(config, move |host| Ask(if host == ONE { others() } else { Vec::new() }));
    // What rested before and was not used since is given back.
    for second in 1..=10 {
        simulation.run_until(Duration::from_secs(second));
        simulation.rest();
    }
    let report = simulation.verdict().unwrap_or_else(|failure| panic!("{failure}"));
    assert_eq!(report.messages.completed, u64::from(peers));
    // What it gives back when it ends is what it had.
    let before = LIVE.get();
    simulation.change(Change::Crash(ONE));
    before - LIVE.get()
}

#[test]
fn an_idle_peer_takes_a_ten_thousandth_of_64_mib() {
    let few = idle(1000);
    let each = (idle(2000) - few) / 1000 - NOTED;
    let all = |each: i64| each as f64 * 10_000.0 / 1048576.0;
    println!("{few} bytes with 1,000 idle peers, {each} more for each other one: {:.1} MiB for 10,000", all(each));
    assert!((500..MOST).contains(&each), "{each} bytes");
}

/// 64 MiB for 10,000.
const MOST: i64 = (64 << 20) / 10_000;
