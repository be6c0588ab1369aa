//! Sends a number of requests with their replies between two bundles of one thread, one after the other, and does nothing else. With
//! the second argument `one-way` it sends one-way messages instead. The counts in `docs/instructions.txt` are the difference of two runs with
//! different numbers under callgrind.

use std::cell::Cell;
use std::rc::Rc;
use weft::{Bundle, Key, Node};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args().skip(1);
    let count: u64 = words.next().ok_or("give the number of messages")?.parse()?;
    let is_one_way = match words.next().as_deref() {
        None => false,
        Some("one-way") => true,
        Some(other) => return Err(format!("{other}: the second argument is one-way").into()),
    };
    let node = Node::new()?;
    let (mut server, mut client) = (Bundle::new(&node)?, Bundle::new(&node)?);
    let key = Key(1);
    let (there, here) = (server.endpoint(key)?, client.endpoint(key)?);
    server.on(there, 1, |m| {
        let args = m.args();
        m.reply(2, args, b"").expect("asked once, and small");
    })?;
    let taken = Rc::new(Cell::new(0));
    let seen = taken.clone();
    server.on(there, 3, move |m| seen.set(seen.get() + u64::from(m.args()[0])))?;
    let answers = Rc::new(Cell::new(0));
    let seen = answers.clone();
    client.on(here, 2, move |m| seen.set(seen.get() + u64::from(m.args()[0])))?;
    client.map(here, 0, server.name(there)?, key)?;
    // The helper sets up the session, one end after the other. The number of polls until the first answer varies, and must not be
    // counted.
    let mut is_asked = false;
    while answers.get() == 0 {
        is_asked = is_asked || client.try_request(here, 0, 1, &[1, 2, 3, 4], b"").is_ok();
        client.poll();
        server.poll();
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    if is_one_way {
        for sent in 0..count {
            client.try_send(here, 0, 3, &[1, 2, 3, 4], b"")?;
            while taken.get() == sent {
                server.poll();
                client.poll();
            }
        }
        return Ok(());
    }
    for answered in 1..=count {
        client.try_request(here, 0, 1, &[1, 2, 3, 4], b"")?;
        // One round is enough; over the network it may take two.
        while answers.get() == answered {
            server.poll();
            client.poll();
        }
    }
    Ok(())
}
