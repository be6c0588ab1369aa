//! The side that gets the file. The file gets its name when it is complete.

use super::{digest, number, Result, DONE, END, FAILED, PIECE};
use std::cell::RefCell;
use std::fs::File;
use std::io::Write;
use std::rc::Rc;
use weft::am::Message;
use weft::{Bundle, Node};

pub fn receive(path: &str) -> Result<()> {
    let mut bundle = Bundle::new(&Node::new()?)?;
    let me = bundle.endpoint_with_random_key()?;
    let part = format!("{path}.part");
    let copy = Rc::new(RefCell::new(Copy::begin(&part)?));
    let is_whole = Rc::new(RefCell::new(false));

    let (pieces, begin) = (copy.clone(), part.clone());
    bundle.on(me, PIECE, move |m| {
        let mut copy = pieces.borrow_mut();
        let done = match number(m.args()) {
            // A new sender, perhaps after an earlier one died.
            Some(0) if copy.length > 0 => Copy::begin(&begin).map(|new| *copy = new),
            Some(at) if at == copy.length => Ok(()),
            _ => Err("pieces are missing: is a second sender running?".into()),
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
    bundle.poll_until(Bundle::is_acknowledged); // the last reply too
    Ok(())
}

/// The file, as far as it has arrived.
struct Copy {
    file: File,
    length: u64,
    digest: crc_fast::Digest,
}

impl Copy {
    fn begin(path: &str) -> Result<Copy> {
        Ok(Copy { file: File::create(path).map_err(|why| format!("{path}: {why}"))?, length: 0, digest: digest() })
    }
}

/// Tells the sender the result of its request. If the sender has died, nobody needs the answer.
fn answer(m: &mut Message, done: Result<()>) {
    match done {
        Ok(()) => m.reply(DONE, &[m.payload().len() as u32], b"").ok(),
        Err(why) => m.reply(FAILED, &[], why.to_string().as_bytes()).ok(),
    };
}
