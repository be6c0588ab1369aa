//! Sends messages between two bundles of one thread, which take turns, and does nothing else. `stream COUNT BYTES` sends one-way
//! messages while there is room; `echo COUNT BYTES` sends requests one after the other, whose replies have the same contents. With
//! `WEFT_LOCAL=off` they go over UDP. At the start of the client's turn it calls `getppid`, and at the start of the server's
//! `getpgid`. Nothing else calls these, so a tracer can tell the two sides' system calls apart. Its clock advances by a fixed time
//! per reading, however much counting slows the program down. `crates/weft/tests/hosts_counts.rs` traces it and counts its
//! instructions, as `docs/instructions.txt` describes.

use nix::libc::{c_int, clockid_t, timespec};
use rustix::process::{getpgid, getppid};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::{AtomicI64, Ordering};
use weft::{Bundle, Endpoint, Key, Node, SendError};

const STORE: u8 = 1;
const ECHO: u8 = 2;
const ANSWER: u8 = 3;

/// Nanoseconds by which the clock advances per reading: about the time between two readings in a program that is not being counted.
const TICK: i64 = 300;

/// Takes the place of the C library's function, for all clocks.
///
/// # Safety
/// `to` is valid for a write, as the C library's contract demands.
#[no_mangle]
unsafe extern "C" fn clock_gettime(_: clockid_t, to: *mut timespec) -> c_int {
    // Starts an hour after boot.
    static TIME: AtomicI64 = AtomicI64::new(3600 * 1_000_000_000);
    // Relaxed: the readings may come in any order.
    let now = TIME.fetch_add(TICK, Ordering::Relaxed);
    // SAFETY: the caller of `clock_gettime` passes valid memory for the time.
    unsafe { to.write(timespec { tv_sec: now / 1_000_000_000, tv_nsec: now % 1_000_000_000 }) };
    0
}

struct Sides {
    client: Bundle,
    here: Endpoint,
    server: Bundle,
    /// Messages that the server took, and replies that the client took.
    taken: Rc<Cell<u64>>,
    answers: Rc<Cell<u64>>,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [kind, count, bytes] = &words[..] else {
        return Err("give stream or echo, the number of messages, and their bytes".into());
    };
    let (count, contents) = (count.parse()?, vec![7; bytes.parse()?]);
    let mut sides = set_up()?;
    match kind.as_str() {
        "stream" => sides.stream(count, &contents),
        "echo" => sides.echo(count, &contents),
        other => return Err(format!("{other}: the first argument is stream or echo").into()),
    }?;
    Ok(())
}

/// Makes both sides, and has one request between them answered.
fn set_up() -> Result<Sides, Box<dyn std::error::Error>> {
    let node = Node::new()?;
    let (mut server, mut client) = (Bundle::new(&node)?, Bundle::new(&node)?);
    let key = Key(1);
    let (there, here) = (server.endpoint(key)?, client.endpoint(key)?);
    let (taken, answers) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    let (seen, answered) = (taken.clone(), answers.clone());
    server.on(there, STORE, move |_| seen.set(seen.get() + 1))?;
    server.on(there, ECHO, |m| {
        m.reply(ANSWER, m.args(), m.payload()).expect("asked once, and no longer than it may be")
    })?;
    client.on(here, ANSWER, move |_| answered.set(answered.get() + 1))?;
    client.map(here, 0, server.name(there)?, key)?;
    let mut sides = Sides { client, here, server, taken, answers };
    // The helper sets up the session. The number of polls that this takes must not be counted.
    let mut is_asked = false;
    while sides.answers.get() == 0 {
        is_asked = is_asked || sides.client.try_request(here, 0, ECHO, &[], b"").is_ok();
        sides.client.poll();
        sides.server.poll();
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    sides.answers.set(0);
    Ok(sides)
}

impl Sides {
    fn stream(&mut self, count: u64, contents: &[u8]) -> Result<(), SendError> {
        let mut sent = 0;
        while self.taken.get() < count {
            let _ = getppid();
            while sent < count {
                match self.client.try_send(self.here, 0, STORE, &[], contents) {
                    Ok(()) => sent += 1,
                    Err(SendError::Full) => break,
                    Err(error) => return Err(error),
                }
            }
            self.client.poll();
            let _ = getpgid(None);
            self.server.poll();
        }
        Ok(())
    }

    fn echo(&mut self, count: u64, contents: &[u8]) -> Result<(), SendError> {
        for answered in 0..count {
            let _ = getppid();
            self.client.try_request(self.here, 0, ECHO, &[1, 2, 3, 4], contents)?;
            while self.answers.get() == answered {
                self.client.poll();
                let _ = getpgid(None);
                self.server.poll();
                let _ = getppid();
            }
        }
        Ok(())
    }
}
