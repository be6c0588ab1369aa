//! Copies a file to another process, of this host or another one, in messages of 64 KiB, with progress and a checksum.
//!
//!     cargo run --release --example copy_file receive FILE          prints NAME and KEY
//!     cargo run --release --example copy_file send NAME KEY FILE
//!
//! Each piece is a request, of which 32 may be under way: the replies are the window. The file has its name once it is whole.
use std::cell::RefCell;
use std::fs::File;
use std::io::{Read, Write};
use std::rc::Rc;
use weft::am::{Bundle, Message};
use weft::{Key, Node, MAX_PAYLOAD};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// What the receiver does: add a piece to the file; compare the checksums.
const PIECE: u8 = 1;
const END: u8 = 2;
/// What the sender does: note that it was done, or why not.
const DONE: u8 = 1;
const FAILED: u8 = 2;

/// The file, as far as it is there.
struct Copy {
    file: File,
    length: u64,
    digest: crc_fast::Digest,
}

impl Copy {
    fn begin(path: &str) -> Result<Copy> {
        Ok(Copy { file: File::create(path)?, length: 0, digest: digest() })
    }
}

fn receive(path: &str) -> Result<()> {
    let mut bundle = Bundle::new(&Node::new()?)?;
    let me = bundle.endpoint_with_random_key()?;
    let part = format!("{path}.part");
    let copy = Rc::new(RefCell::new(Copy::begin(&part)?));
    let is_whole = Rc::new(RefCell::new(false));

    let (pieces, begin) = (copy.clone(), part.clone());
    bundle.on(me, PIECE, move |m| {
        let mut copy = pieces.borrow_mut();
        let done = match number(m.args()) {
            // A sender that begins, maybe after one that died.
            Some(0) if copy.length > 0 => Copy::begin(&begin).map(|new| *copy = new),
            Some(at) if at == copy.length => Ok(()),
            _ => Err("pieces are missing: does another one send as well?".into()),
        };
        let done = done.and_then(|()| Ok(copy.file.write_all(m.payload())?));
        if done.is_ok() {
            copy.length += m.payload().len() as u64;
            copy.digest.update(m.payload());
        }
        answer(m, done);
    })?;
    let (whole, to) = (is_whole.clone(), path.to_owned());
    bundle.on(me, END, move |m| {
        let done = match number(m.args()) == Some(copy.borrow().digest.finalize()) {
            true => std::fs::rename(&part, &to).map_err(Into::into),
            false => Err("the copy has another checksum; send it again".into()),
        };
        *whole.borrow_mut() = done.is_ok();
        answer(m, done);
    })?;

    println!("{} {:016x}", bundle.name(me)?, bundle.key(me)?.0);
    while !*is_whole.borrow() {
        bundle.wait(None);
    }
    bundle.poll_until(Bundle::is_acknowledged); // the last reply, too
    Ok(())
}

/// Tells the sender what became of its request. Of a sender that died nobody has to be told.
fn answer(m: &mut Message, done: Result<()>) {
    match done {
        Ok(()) => m.reply(DONE, &[m.payload().len() as u32], b"").ok(),
        Err(why) => m.reply(FAILED, &[], why.to_string().as_bytes()).ok(),
    };
}

fn send(name: &str, key: &str, path: &str) -> Result<()> {
    let mut file = File::open(path).map_err(|why| format!("{path}: {why}"))?;
    let length = file.metadata()?.len();
    let mut bundle = Bundle::new(&Node::new()?)?;
    let me = bundle.endpoint_with_random_key()?;
    bundle.map(me, 0, name.parse()?, Key(u64::from_str_radix(key, 16)?))?;
    // Bytes that are there, and what went wrong first.
    let state = Rc::new(RefCell::new((0, None)));
    let (done, failed, returned) = (state.clone(), state.clone(), state.clone());
    bundle.on(me, DONE, move |m| done.borrow_mut().0 += m.args().iter().map(|&n| u64::from(n)).sum::<u64>())?;
    bundle.on(me, FAILED, move |m| note(&failed, String::from_utf8_lossy(m.payload()).into_owned()))?;
    bundle.on_return(me, move |_, m| note(&returned, format!("{}: {}", m.certainty, m.reason)))?;

    let (mut sent, mut told, mut digest, mut piece) = (0, 0, digest(), vec![0; MAX_PAYLOAD]);
    loop {
        let read = file.read(&mut piece)?;
        if read == 0 || state.borrow().1.is_some() {
            break;
        }
        bundle.request(me, 0, PIECE, &words(sent), &piece[..read])?;
        digest.update(&piece[..read]);
        sent += read as u64;
        let there = state.borrow().0;
        if there >> 23 != told >> 23 {
            told = there;
            eprintln!("{} of {} MiB", there >> 20, length.max(sent) >> 20); // every 8 MiB
        }
    }
    bundle.request(me, 0, END, &words(digest.finalize()), b"")?;
    bundle.drain();
    if let Some(why) = state.take().1 {
        return Err(why.into());
    }
    println!("{sent} bytes, CRC-64 {:016x}", digest.finalize());
    Ok(())
}

fn note(state: &RefCell<(u64, Option<String>)>, why: String) {
    state.borrow_mut().1.get_or_insert(why);
}

fn digest() -> crc_fast::Digest {
    crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc64Nvme)
}

/// Numbers of 64 bits, as arguments.
fn words(number: u64) -> [u32; 2] {
    [(number >> 32) as u32, number as u32]
}

fn number(args: &[u32]) -> Option<u64> {
    let &[high, low] = args else { return None };
    Some(u64::from(high) << 32 | u64::from(low))
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let done = match &words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["receive", path] => receive(path),
        ["send", name, key, path] => send(name, key, path),
        _ => Err("usage: copy_file receive FILE | send NAME KEY FILE (the receiver prints NAME and KEY)".into()),
    };
    if let Err(why) = done {
        eprintln!("copy_file: {why}");
        std::process::exit(1);
    }
}
