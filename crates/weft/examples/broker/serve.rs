//! The broker.

use super::{Result, END, JOIN, JOINED, LINE, PUBLISH};
use std::cell::RefCell;
use std::rc::Rc;
use weft::names::{Contact, NameServer};
use weft::queue::{Bound, Counts, SendQueue};
use weft::{Bundle, Event, Node};

/// A subscriber, known by its index in the translation table.
#[derive(Default)]
struct Subscriber {
    published: u64,
    /// Lines that found no room.
    missed: u64,
    is_behind: bool,
    is_gone: bool,
}

struct Hub {
    queue: SendQueue,
    subscribers: Vec<Subscriber>,
    is_over: bool,
}

impl Hub {
    fn publish(&mut self, line: &[u8]) {
        for (to, subscriber) in (0..).zip(&mut self.subscribers).filter(|(_, subscriber)| !subscriber.is_gone) {
            subscriber.published += 1;
            // A subscriber that is behind misses lines until the queue reports room, that is, until half of its part is free.
            if subscriber.is_behind || self.queue.push(to, LINE, &[], line).is_err() {
                subscriber.is_behind = true;
                subscriber.missed += 1;
            }
        }
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::CanSend { destination, .. } => self.subscribers[destination as usize].is_behind = false,
            // Its lines come back as events of their own. The queue counts them.
            Event::PeerLost { destination, reason, .. } => {
                eprintln!("broker: subscriber {destination} has gone: {reason}");
                self.subscribers[destination as usize].is_gone = true;
            }
            _ => {}
        }
    }
}

pub fn serve(port: u16) -> Result<()> {
    let mut bundle = Bundle::new(&Node::new()?)?;
    let (me, out) = (bundle.endpoint_with_random_key()?, bundle.endpoint_with_random_key()?);
    let queue = SendQueue::new(out, Bound::default());
    let hub = Rc::new(RefCell::new(Hub { queue, subscribers: Vec::new(), is_over: false }));
    let (joins, lines, ends) = (hub.clone(), hub.clone(), hub.clone());
    bundle.on(me, JOIN, move |m| {
        let mut hub = joins.borrow_mut();
        let Ok(contact) = String::from_utf8_lossy(m.payload()).parse::<Contact>() else { return };
        let index = hub.subscribers.len() as u32;
        if m.context().map(out, index, contact.name, contact.key).is_ok() {
            hub.subscribers.push(Subscriber::default());
            m.reply(JOINED, &[], b"").ok(); // if it is gone by now, its lines will come back
        }
    })?;
    bundle.on(me, PUBLISH, move |m| lines.borrow_mut().publish(m.payload()))?;
    bundle.on(me, END, move |_| ends.borrow_mut().is_over = true)?;
    let names = NameServer::open(port)?;
    names.tell_with_key("", bundle.contact(me)?)?;
    println!("{}", names.port());
    loop {
        // Sends the messages that handlers pushed. No handler runs meanwhile, so nothing else borrows the hub.
        let mut now = hub.borrow_mut();
        while let Some(event) = now.queue.next_event(&mut bundle)? {
            now.on_event(event);
        }
        if now.is_over && now.queue.is_settled() {
            break;
        }
        drop(now);
        bundle.wait(None);
    }
    let hub = hub.borrow();
    for (to, Subscriber { published, missed, .. }) in (0..).zip(&hub.subscribers) {
        let Counts { delivered, not_delivered, unknown, .. } = hub.queue.counts(to);
        println!(
            "subscriber {to}: {published} published, {delivered} delivered, {not_delivered} not delivered, \
             {unknown} unknown, {missed} missed"
        );
    }
    Ok(())
}
