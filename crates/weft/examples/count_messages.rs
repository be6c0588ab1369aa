//! Sends a number of requests with their replies between two bundles of one thread, one after the other, and does nothing else. With
//! the second argument `one-way` it sends one-way messages instead. With `write` or `read` it writes or reads 8 bytes of a region, which the
//! owner does; with `direct-write` or `direct-read` it does so itself; with `mapped` it stores 16 bytes in a region that it has mapped. The
//! counts in `docs/instructions.txt` are the difference of two runs with different numbers under callgrind.

use std::cell::Cell;
use std::rc::Rc;
use weft::memory::{Completion, Place, RegionKey, Rights, Settings, Write};
use weft::{Bundle, Endpoint, Error, Key, Node};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args().skip(1);
    let count: u64 = words.next().ok_or("say how many messages")?.parse()?;
    let is_one_way = match words.next().as_deref() {
        None => false,
        Some("one-way") => true,
        Some("write") => return access(count, true, false),
        Some("read") => return access(count, false, false),
        Some("direct-write") => return access(count, true, true),
        Some("direct-read") => return access(count, false, true),
        Some("mapped") => return mapped(count),
        Some(other) => return Err(format!("{other}: no such count; the head of the source names them").into()),
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
    // The helper sets the session up, and its two ends are there one after the other: polls until the first answer, however many, are not
    // to be counted.
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
        // Once; over the network it may be twice.
        while answers.get() == answered {
            server.poll();
            client.poll();
        }
    }
    Ok(())
}

/// The owner of a region, and an initiator.
struct Pair {
    server: Bundle,
    client: Bundle,
    here: Endpoint,
}

impl Pair {
    fn new(is_direct: bool) -> Result<Pair, Box<dyn std::error::Error>> {
        let node = Node::new()?;
        let (mut server, mut client) = (Bundle::new(&node)?, Bundle::new(&node)?);
        let settings = Settings { is_direct, ..Settings::default() };
        let (there, here) = (server.memory_endpoint(Key(1), settings)?, client.memory_endpoint(Key(2), settings)?);
        server.memory(there)?.allocate(4096, RegionKey(1), Rights::ALL)?;
        client.map(here, 0, server.name(there)?, Key(1))?;
        Ok(Pair { server, client, here })
    }

    /// Polls both until the next operation has ended.
    fn end(&mut self, is_first: bool) -> Result<Completion, Error> {
        loop {
            self.server.poll();
            self.client.poll();
            if let Some(end) = self.client.memory(self.here)?.next_completion() {
                return Ok(end);
            }
            if is_first {
                // The helper sets the session up.
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        }
    }
}

/// Stores 16 bytes so many times in a region that is mapped.
fn mapped(count: u64) -> Result<(), Box<dyn std::error::Error>> {
    let mut pair = Pair::new(true)?;
    pair.client.memory(pair.here)?.try_map_region(0, RegionKey(1), 0)?;
    let remote = pair.end(true)?.remote.ok_or("it cannot be mapped")?;
    for number in 0..count {
        let bytes = u128::from(number).to_le_bytes();
        remote.write(64, std::hint::black_box(&bytes))?;
    }
    Ok(())
}

/// Writes or reads 8 bytes so many times, one after the other.
fn access(count: u64, writes: bool, is_direct: bool) -> Result<(), Box<dyn std::error::Error>> {
    let mut pair = Pair::new(is_direct)?;
    let here = pair.here;
    let place = Place::new(RegionKey(1), 64);
    let mut buffer = vec![1; 8];
    for number in 0..=count {
        let mut memory = pair.client.memory(here)?;
        match writes {
            true => memory.try_write(0, Write::to(place), buffer, number).map_err(|(error, _)| error)?,
            false => memory.try_read(0, place, buffer, number).map_err(|(error, _)| error)?,
        }
        // What is direct has ended.
        let end = match is_direct.then(|| memory.next_completion()).flatten() {
            Some(end) => end,
            None => pair.end(number == 0)?,
        };
        buffer = end.source.or(end.target).ok_or("the buffer comes back")?;
    }
    Ok(())
}
