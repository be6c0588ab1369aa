//! The side that has the file.

use super::{digest, words, Result, DONE, END, FAILED, PIECE};
use std::cell::RefCell;
use std::fs::File;
use std::io::Read;
use std::rc::Rc;
use weft::{Bundle, Node, MAX_PAYLOAD};

pub fn send(name: &str, key: &str, path: &str) -> Result<()> {
    let mut file = File::open(path).map_err(|why| format!("{path}: {why}"))?;
    let length = file.metadata()?.len();
    let mut bundle = Bundle::new(&Node::new()?)?;
    let me = bundle.endpoint_with_random_key()?;
    bundle.map(me, 0, name.parse()?, key.parse()?)?;
    // Bytes that have arrived, and the first error.
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
