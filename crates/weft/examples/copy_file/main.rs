//! Copies a file to another process, of this host or another one, in messages of 64 KiB, with progress and a checksum.
//!
//!     cargo run --release --example copy_file receive FILE          prints NAME and KEY
//!     cargo run --release --example copy_file send NAME KEY FILE
//!
//! Each piece is a request, and 32 may be under way: the replies make the window. The file gets its name when it is complete.
mod receive;
mod send;

use receive::receive;
use send::send;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// The receiver's handlers: add a piece to the file; compare the checksums.
const PIECE: u8 = 1;
const END: u8 = 2;
/// The sender's handlers: note that a request was done, or why not.
const DONE: u8 = 1;
const FAILED: u8 = 2;

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
