//! Sends messages between two bundles of one thread, which take turns, and does nothing else: `stream COUNT BYTES` one way, as many as
//! find room; `echo COUNT BYTES` requests whose replies have the same contents, one after the other. With `WEFT_LOCAL=off` they go over
//! UDP. When it is the client's turn it asks the kernel for its parent's number, and when it is the server's for its group's, which nothing else
//! does: so whoever traces it knows whose system calls it sees. Its clock goes on by as much whenever it is read, however slow the program is
//! made by being counted. `crates/weft/tests/hosts_counts.rs` does, and counts instructions as
//! `docs/instructions.txt` says.

use nix::libc::{c_int, clockid_t, timespec};
use rustix::process::{getpgid, getppid};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::{AtomicI64, Ordering};
use weft::{Bundle, Endpoint, Key, Node, SendError};

const STORE: u8 = 1;
const ECHO: u8 = 2;
const ANSWER: u8 = 3;

/// Nanoseconds by which the clock goes on when it is read: about what passes between two readings of a program that is not counted.
const TICK: i64 = 300;

/// Takes the place of the C library's function, for all clocks.
///
/// # Safety
/// `to` is as the C library wants it.
#[no_mangle]
unsafe extern "C" fn clock_gettime(_: clockid_t, to: *mut timespec) -> c_int {
    // An hour since the machine was started.
    static TIME: AtomicI64 = AtomicI64::new(3600 * 1_000_000_000);
    // Relaxed: any order of readings is one.
    let now = TIME.fetch_add(TICK, Ordering::Relaxed);
    // SAFETY: whoever asks for the time gives memory for it.
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
        return Err("say stream or echo, how many, and of how many bytes".into());
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

/// Both sides, and one request between them that was answered.
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
    // The helper sets the session up: how many polls that takes is not to be counted.
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
