//! Moves a number of 16-byte messages between pairs of endpoints through the engine's loop, among many idle endpoints, and then closes all
//! of them one by one. For counting what the daemon does, and measuring its memory.
//!
//! ```text
//! cargo build --release -p weftd --example count_many
//! valgrind --tool=callgrind --toggle-collect='*daemons_turn*' target/release/examples/count_many 100000 5 11000
//! ```
//!
//! This has 100,000 endpoints, five pairs and 11,000 messages. Run it again with 1,000 messages: the cost of a message is the difference of
//! the two "Collected" lines, divided by 10,000. Without valgrind it prints the memory in use, and the time that closing an endpoint takes.

#[path = "../count_loop/program.rs"]
mod program;

use program::Program;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use weft_core::{Outgoing, SendError};
use weft_daemon::Engine;
use weft_shm::SegmentFile;
use weft_transport::Time;
use weft_wire::attach::Request;
use weft_wire::segment::Sizes;
use weft_wire::{EndpointId, Key};

/// The smallest rings and areas.
const SMALL: Sizes = Sizes { ring_order: 4, area_pages: 33 };

/// Bytes of the files: room for 3,000 endpoints in those of the two programs that talk, and for 120,000 in that of the idle ones.
const FILE: usize = 1 << 30;
const MANY: usize = 32 << 30;

/// The engine's time, in nanoseconds.
static NOW: AtomicU64 = AtomicU64::new(0);

fn later(nanos: u64) -> Time {
    Time::from_nanos(NOW.fetch_add(nanos, Ordering::Relaxed) + nanos)
}

#[inline(never)]
fn daemons_turn(engine: &mut Engine<SegmentFile>) -> u32 {
    engine.poll(later(10_000))
}

/// Waits until so many requests of a program are served, in turns that are not counted.
fn ask_for_all(engine: &mut Engine<SegmentFile>, program: &mut Program, count: u32, request: impl Fn(u32) -> Request) {
    let mut asked = 0;
    let begin = engine.counters().requests;
    while engine.counters().requests - begin < count.into() {
        while asked < count && program.sessions.port().borrow_mut().ask(&request(asked)).is_some() {
            asked += 1;
        }
        // No user may make so many requests at once.
        engine.poll(later(100_000_000));
        program.poll();
    }
}

/// The value of a line of `/proc/self/status`, in KiB.
fn status(field: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find(|line| line.starts_with(field))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let numbers: Vec<u32> = std::env::args().skip(1).map(|word| word.parse()).collect::<Result<_, _>>()?;
    let &[endpoints, pairs, messages] = &numbers[..] else {
        return Err("say how many endpoints, pairs and messages".into());
    };
    let mut engine = Engine::new(weft_daemon::Settings::default());
    let (mut from, from_file) = Program::attach(&mut engine, 1, FILE)?;
    let (mut to, to_file) = Program::attach(&mut engine, 2, FILE)?;
    let mut senders = Vec::new();
    for _ in 0..pairs {
        let (x, y) = (from.endpoint(&mut engine, SMALL)?, to.endpoint(&mut engine, SMALL)?);
        let name = to.core.state().name(y)?;
        from.core.state_mut().map(x, 0, name, Key(1))?;
        senders.push(x);
    }
    let idle = endpoints.saturating_sub(2 * pairs);
    let (mut other, other_file) = Program::attach(&mut engine, 3, MANY)?;
    ask_for_all(&mut engine, &mut other, idle, |number| Request::Allocate {
        endpoint: EndpointId(number),
        key: Key(1),
        admission: 0,
        sizes: SMALL,
    });
    println!("{} endpoints, {} of them asked for", engine.endpoints(), endpoints.max(2 * pairs));
    let mut sent = 0;
    while to.count.0 < messages.into() {
        for x in &senders {
            let message = Outgoing { op: 1, args: &[1, 2], payload: &[7; 8], completion: None };
            match from.core.state_mut().try_send(*x, 0, message) {
                Ok(()) => sent += 1,
                Err(SendError::Full) => {}
                Err(error) => return Err(error.into()),
            }
        }
        // Until all of them have closed, so that each endpoint begins anew.
        loop {
            from.poll();
            let work = daemons_turn(&mut engine);
            to.poll();
            if work == 0 {
                break;
            }
        }
    }
    let mut kib = 0;
    for file in [&from_file, &to_file, &other_file] {
        kib += rustix::fs::fstat(file)?.st_blocks as u64 / 2;
    }
    println!("{sent} sent, {} remappings, {} frames in use", engine.counters().bound, engine.resident());
    println!("memory in KiB: {} of the engine and the example, {kib} in files", status("RssAnon").unwrap_or(0));
    let begin = Instant::now();
    ask_for_all(&mut engine, &mut other, idle, |number| Request::Free { part: number + 1 });
    println!("{idle} ends, {:?} each; {} endpoints left", begin.elapsed() / idle.max(1), engine.endpoints());
    Ok(())
}
