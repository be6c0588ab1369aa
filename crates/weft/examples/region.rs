//! A region that other processes write, read and count in, while its owner does something else.
//!
//!     cargo run --release --example region own 4000                        serves its name at port 4000; sleeps until Ctrl-C
//!     cargo run --release --example region write localhost:4000 64 hello
//!     cargo run --release --example region read localhost:4000 64 5        prints hello
//!     cargo run --release --example region add localhost:4000 0 1          prints the word's old value
//!
//! A cookie can replace the region's key: `own` prints one for the first 4,096 bytes, which allows reads and additions but no
//! writes.
//!
//!     cargo run --release --example region read localhost:4000 64 5 COOKIE
use std::time::Duration;
use weft::memory::{Atomic, Change, Completion, Cookie, Credential, Fetch, Outcome, Part, Place, RegionKey, Rights};
use weft::memory::{Settings, Type, Write};
use weft::names::{resolve, NameServer};
use weft::{Bundle, Endpoint, Node, SharedBundle};

type Failure = Box<dyn std::error::Error>;

/// The region's key, known to both sides. A small number is enough, because nobody gets here without the endpoint's key.
const KEY: RegionKey = RegionKey(1);
const BYTES: usize = 1 << 20;

fn own(port: u16) -> Result<(), Failure> {
    // Serviced: the bundle's own thread carries out the peers' operations while this thread sleeps.
    let bundle = SharedBundle::serviced(&Node::new()?)?;
    let me = bundle.memory_endpoint_with_random_key(Settings::default())?;
    let (region, window) = bundle.with_memory(me, |memory| memory.allocate(BYTES, KEY, Rights::ALL))??;
    let rights = Rights { write: false, ..Rights::ALL };
    let cookie = bundle.with_memory(me, |memory| memory.cookie(region, Part { at: 0, len: 4096 }, rights))??;
    let names = NameServer::open(port)?;
    names.tell_with_key("", bundle.contact(me)?)?;
    println!("{} {cookie}", names.port());
    let mut before = 0;
    loop {
        std::thread::sleep(Duration::from_millis(100));
        // The owner can read its region through its window at any time.
        let mut word = [0; 8];
        window.read(0, &mut word);
        let count = u64::from_le_bytes(word);
        if std::mem::replace(&mut before, count) != count {
            println!("the first word is {count}");
        }
    }
}

/// Waits for the one operation that is under way.
fn end(bundle: &mut Bundle, me: Endpoint) -> Result<Completion, Failure> {
    loop {
        bundle.wait(None);
        if let Some(end) = bundle.memory(me)?.next_completion() {
            return match end.outcome {
                Outcome::Failed { reason, .. } => Err(reason.into()),
                _ => Ok(end),
            };
        }
    }
}

fn access(word: &str, place: &str, at: u64, what: &str, by: Credential) -> Result<(), Failure> {
    let mut bundle = Bundle::new(&Node::new()?)?;
    let me = bundle.memory_endpoint_with_random_key(Settings::default())?;
    let owner = resolve(place, Duration::from_secs(5))?;
    bundle.map(me, 0, owner.name, owner.key)?;
    let place = Place::new(by, at);
    let mut memory = bundle.memory(me)?;
    match word {
        "write" => memory.try_write(0, Write::to(place), what.as_bytes().to_vec(), 0).map_err(|(why, _)| why)?,
        "read" => memory.try_read(0, place, vec![0; what.parse()?], 0).map_err(|(why, _)| why)?,
        "add" => {
            let change = Change { place, atomic: Atomic::Add, of: Type::U64 };
            let fetch = Fetch { old: Some(vec![0; 8].into()), ..Fetch::default() };
            memory.try_change(0, change, &what.parse::<u64>()?.to_le_bytes(), fetch, 0)?;
        }
        _ => return Err("usage: see the start of the source file".into()),
    }
    let Some(bytes) = end(&mut bundle, me)?.target else { return Ok(()) };
    match <[u8; 8]>::try_from(&bytes[..]) {
        Ok(old) if word == "add" => println!("{}", u64::from_le_bytes(old)),
        _ => println!("{}", String::from_utf8_lossy(&bytes)),
    }
    Ok(())
}

fn run(words: &[&str]) -> Result<(), Failure> {
    match *words {
        ["own", port] => own(port.parse()?),
        [word, place, at, what] => access(word, place, at.parse()?, what, KEY.into()),
        [word, place, at, what, cookie] => access(word, place, at.parse()?, what, cookie.parse::<Cookie>()?.into()),
        _ => {
            Err("usage: region own PORT | write HOST:PORT AT TEXT | read HOST:PORT AT LENGTH | add HOST:PORT AT NUMBER"
                .into())
        }
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let Err(why) = run(&words.iter().map(String::as_str).collect::<Vec<_>>()) {
        eprintln!("region: {why}");
        std::process::exit(1);
    }
}
