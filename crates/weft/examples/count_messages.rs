//! Sends a number of requests with their replies between two bundles of one thread, one after the other, and does nothing else. The
//! count in `docs/instructions.txt` is the difference of two runs with different numbers under callgrind.

use std::cell::Cell;
use std::rc::Rc;
use weft::{Bundle, Key, Node};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let count: u64 = std::env::args().nth(1).ok_or("say how many requests")?.parse()?;
    let node = Node::new()?;
    let (mut server, mut client) = (Bundle::new(&node)?, Bundle::new(&node)?);
    let key = Key(1);
    let (there, here) = (server.endpoint(key)?, client.endpoint(key)?);
    server.on(there, 1, |m| {
        let args = m.args();
        m.reply(2, args, b"").expect("asked once, and small");
    })?;
    let answers = Rc::new(Cell::new(0));
    let seen = answers.clone();
    client.on(here, 2, move |m| seen.set(seen.get() + u64::from(m.args()[0])))?;
    client.map(here, 0, server.name(there)?, key)?;
    // The helper sets the session up, and its two ends are there one after the other: polls until the first answer, however many, are not
    // to be counted.
    let mut is_asked = false;
    while answers.get() == 0 {
        is_asked = is_asked || client.try_request(here, 0, 1, &[1, 2, 3, 4], b"").is_ok();
        client.poll();
        server.poll();
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    for answered in 1..=count {
        client.try_request(here, 0, 1, &[1, 2, 3, 4], b"")?;
        // Once; over the network it may be twice.
        while answers.get() == answered {
            server.poll();
            client.poll();
        }
    }
    Ok(())
}
