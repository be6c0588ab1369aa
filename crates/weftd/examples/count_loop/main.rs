//! Moves a number of 16-byte messages between two programs through the engine's loop, in memory as weftd shares it, all in one thread. For
//! counting what the daemon does for a message. The second argument is `stream` (sends as many one-way messages as there is room for before
//! each turn of the engine) or `request` (one request at a time, each after the reply to the last). With a third argument, messages have
//! that many bytes of payload and no arguments.
//!
//! ```text
//! cargo build --release -p weftd --example count_loop
//! valgrind --tool=callgrind --toggle-collect='*daemons_turn*' target/release/examples/count_loop 11000 stream
//! ```
//!
//! Run it again with 1000 messages. The cost of a message is the difference of the two "Collected" lines, divided by 10,000. Without
//! valgrind it prints the time that a message takes in all three.

mod program;

use program::Program;
use std::time::Instant;
use weft_core::{Outgoing, SendError};
use weft_daemon::Engine;
use weft_shm::SegmentFile;
use weft_transport::Time;
use weft_wire::segment::Sizes;
use weft_wire::Key;

/// Bytes of a program's file.
const FILE: usize = 16 << 20;

#[inline(never)]
fn daemons_turn(engine: &mut Engine<SegmentFile>) -> u32 {
    engine.poll(Time::from_micros(1))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args().skip(1);
    let count: u64 = words.next().ok_or("say how many messages")?.parse()?;
    let asks = match words.next().as_deref() {
        Some("stream") => false,
        Some("request") => true,
        _ => return Err("the second argument is stream or request".into()),
    };
    let (args, payload): (&[u32], _) = match words.next() {
        Some(bytes) => (&[], vec![7; bytes.parse()?]),
        None => (&[1, 2], vec![7; 8]),
    };
    let mut engine = Engine::new(weft_daemon::Settings::default());
    let mut programs = [Program::attach(&mut engine, 1, FILE)?.0, Program::attach(&mut engine, 2, FILE)?.0];
    let [from, to] = &mut programs;
    let (here, there) = (from.endpoint(&mut engine, Sizes::default())?, to.endpoint(&mut engine, Sizes::default())?);
    let name = to.core.state().name(there)?;
    from.core.state_mut().map(here, 0, name, Key(1))?;
    let (mut sent, begin) = (0, Instant::now());
    while to.count.0 < count || (asks && from.count.0 < count) {
        loop {
            let message = Outgoing { op: 1, args, payload: &payload, completion: None };
            let state = from.core.state_mut();
            let done = if asks { state.try_request(here, 0, message) } else { state.try_send(here, 0, message) };
            match done {
                Ok(()) => sent += 1,
                Err(SendError::Full) => break,
                Err(error) => return Err(error.into()),
            }
            if sent == count || asks {
                break;
            }
        }
        // One at a time: the next request is sent after the reply to this one.
        for _ in 0..4 {
            from.poll();
            daemons_turn(&mut engine);
            to.poll();
            if !asks || from.count.0 >= sent {
                break;
            }
        }
        if sent == count && !asks {
            daemons_turn(&mut engine);
        }
    }
    println!("{:.1} ns a message", begin.elapsed().as_nanos() as f64 / count as f64);
    Ok(())
}
