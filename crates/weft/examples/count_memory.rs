//! Accesses a region of another bundle of this thread a number of times, one access after the other, and does nothing else. The
//! second argument says how. With `write` and `read` the owner stores or sends 8 bytes; with `direct-write` and `direct-read` the
//! initiator stores or loads 8 bytes; with `mapped` a program stores 16 bytes in a region that it has mapped. For counting, as
//! `docs/instructions.txt` describes.

use weft::memory::{Completion, Place, RegionKey, Rights, Settings, Write};
use weft::{Bundle, Endpoint, Error, Key, Node};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args().skip(1);
    let count: u64 = words.next().ok_or("give the number of accesses")?.parse()?;
    match words.next().as_deref() {
        Some("write") => access(count, true, false),
        Some("read") => access(count, false, false),
        Some("direct-write") => access(count, true, true),
        Some("direct-read") => access(count, false, true),
        Some("mapped") => mapped(count),
        _ => Err("the second argument is write, read, direct-write, direct-read or mapped".into()),
    }
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
                // The helper sets up the session.
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        }
    }
}

/// Stores 16 bytes `count` times in a mapped region.
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

/// Writes or reads 8 bytes `count` times, one after the other.
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
        // A direct access has already ended.
        let end = match is_direct.then(|| memory.next_completion()).flatten() {
            Some(end) => end,
            None => pair.end(number == 0)?,
        };
        buffer = end.source.or(end.target).ok_or("the buffer comes back")?;
    }
    Ok(())
}
