//! A worker: counts the primes of the pieces that it is given.

use super::{Result, END, JOIN, RESULT, WORK};
use std::cell::Cell;
use std::rc::Rc;
use weft::{Bundle, Event, Node};

pub fn worker(name: &str, key: &str) -> Result<()> {
    let mut bundle = Bundle::new(&Node::new()?)?;
    let me = bundle.endpoint_with_random_key()?;
    bundle.map(me, 0, name.parse()?, key.parse()?)?;
    let is_over = Rc::new(Cell::new(false));
    let end = is_over.clone();
    bundle.on(me, WORK, |m| {
        let &[worker, start, end] = m.args() else { return };
        println!("{:?}", start..end);
        let primes = (start..end).filter(|&n| n > 1 && (2..).take_while(|d| *d <= n / d).all(|d| n % d != 0)).count();
        m.reply(RESULT, &[worker, primes as u32], b"").ok(); // if the master is gone, the loop below notices
    })?;
    bundle.on(me, END, move |_| end.set(true))?;
    let contact = format!("{} {:016x}", bundle.name(me)?, bundle.key(me)?.0);
    bundle.request(me, 0, JOIN, &[], contact.as_bytes())?;
    while !is_over.get() {
        bundle.wait(None);
        while let Some(event) = bundle.next_event() {
            let Event::Returned(m) = event else { continue };
            return Err(format!("no work from the master any more: {}", m.reason).into());
        }
    }
    Ok(())
}
