//! The Rust counterpart of `tests/c/count.c`: the difference of the two instruction counts is the cost of C. `count_rust COUNT requests`
//! sends requests and replies between two bundles of one thread, and polls before each 16th, as libweft does. `count_rust COUNT polls`
//! polls in vain.

use std::cell::Cell;
use std::hint::black_box;
use std::rc::Rc;
use weft::{Bundle, Key, Node};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args().skip(1);
    let count: u64 = words.next().ok_or("say how many")?.parse()?;
    let what = words.next().ok_or("say what: requests or polls")?;
    let node = Node::new()?;
    let (mut server, mut client) = (Bundle::new(&node)?, Bundle::new(&node)?);
    let key = Key(2);
    let (there, here) = (server.endpoint(key)?, client.endpoint(key)?);
    server.on(there, 1, |m| {
        let args = m.args();
        m.reply(2, args, b"").expect("asked once, and small");
    })?;
    let answers = Rc::new(Cell::new(0));
    let seen = answers.clone();
    client.on(here, 2, move |m| seen.set(seen.get() + u64::from(m.args()[0])))?;
    client.map(here, 0, server.name(there)?, key)?;
    let mut is_asked = false;
    while answers.get() == 0 {
        is_asked = is_asked || client.try_request(here, 0, 1, &[1, 2, 3, 4], b"").is_ok();
        client.poll();
        server.poll();
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    match what.as_str() {
        "requests" => {
            for answered in 1..=count {
                if answered % 16 == 0 {
                    client.poll();
                }
                // The compiler must not know how many arguments there are, as in C.
                client.try_request(here, 0, 1, black_box(&[1, 2, 3, 4][..]), b"")?;
                while answers.get() == answered {
                    server.poll();
                    client.poll();
                }
            }
        }
        "polls" => (0..count).for_each(|_| _ = client.poll()),
        other => return Err(format!("{other}: say requests or polls").into()),
    }
    Ok(())
}
