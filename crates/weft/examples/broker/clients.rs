//! Subscribers and publishers.

use super::{Result, END, JOIN, JOINED, LINE, PUBLISH};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;
use weft::names::resolve;
use weft::{Bundle, Endpoint, Event, Node};

/// How long looking up the broker's name may take.
const LIMIT: Duration = Duration::from_secs(5);

/// A bundle with an endpoint that has the broker at index 0.
fn connect(place: &str) -> Result<(Bundle, Endpoint)> {
    let broker = resolve(place, LIMIT)?;
    let mut bundle = Bundle::new(&Node::new()?)?;
    let me = bundle.endpoint_with_random_key()?;
    bundle.map(me, 0, broker.name, broker.key)?;
    Ok((bundle, me))
}

pub fn subscribe(place: &str, ms: u64) -> Result<()> {
    let (mut bundle, me) = connect(place)?;
    let lines = Rc::new(Cell::new(0));
    let count = lines.clone();
    bundle.on(me, JOINED, |_| println!("joined"))?;
    bundle.on(me, LINE, move |m| {
        if count.replace(count.get() + 1) == 0 {
            println!("the first line has {} bytes", m.payload().len());
        }
        std::thread::sleep(Duration::from_millis(ms));
    })?;
    bundle.request(me, 0, JOIN, &[], bundle.contact(me)?.to_string().as_bytes())?;
    loop {
        bundle.wait(None);
        while let Some(event) = bundle.next_event() {
            match event {
                Event::Returned(m) => return Err(m.reason.into()),
                // The broker has ended, as it does when all lines are read.
                Event::PeerLost { .. } => {
                    println!("{} lines", lines.get());
                    return Ok(());
                }
                _ => {}
            }
        }
    }
}

pub fn publish(place: &str) -> Result<()> {
    let (mut bundle, me) = connect(place)?;
    let mut published = 0;
    for line in std::io::stdin().lines() {
        // The broker answers a line once it is queued, and 32 may be under way. So it is not flooded.
        bundle.request(me, 0, PUBLISH, &[], line?.as_bytes())?;
        published += 1;
    }
    bundle.request(me, 0, END, &[], b"")?;
    bundle.drain();
    while let Some(event) = bundle.next_event() {
        if let Event::Returned(m) = event {
            return Err(m.reason.into());
        }
    }
    println!("{published} lines published");
    Ok(())
}
