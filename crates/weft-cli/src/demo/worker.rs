//! A worker of the demonstration: counts the words of the chunks that the master sends.
//!
//! The environment gives it the master's name and key. Only its own user can read that, while everybody can read a command line.

use super::count::{count, write, Counts};
use super::{master_op, worker_op, MASTER_VARIABLE, PART_MOST};
use crate::child;
use crate::error::Error;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use weft::am::ReplyToken;
use weft::{Bundle, Endpoint, Event, Key, Name, Node};

/// A chunk to count.
struct Task {
    /// The chunk and the attempt, which the answer repeats.
    id: [u32; 2],
    text: Vec<u8>,
    token: ReplyToken,
}

/// Serves the master until it is gone.
pub fn run() -> Result<(), Error> {
    child::die_with_parent()?;
    let (master, key) = master()?;
    let node = Node::new()?;
    let mut bundle = Bundle::new(&node)?;
    let endpoint = bundle.endpoint_with_random_key()?;
    let tasks: Rc<RefCell<VecDeque<Task>>> = Rc::default();
    let arriving = tasks.clone();
    bundle.on(endpoint, worker_op::COUNT, move |m| {
        let &[chunk, attempt] = m.args() else { return };
        let text = m.payload().to_vec();
        if let Some(token) = m.defer() {
            arriving.borrow_mut().push_back(Task { id: [chunk, attempt], text, token });
        }
    })?;
    bundle.map(endpoint, 0, master, key)?;
    let Key(own) = bundle.key(endpoint)?;
    bundle.request(endpoint, 0, master_op::HELLO, &[own as u32, (own >> 32) as u32, std::process::id()], &[])?;
    loop {
        let mut is_over = false;
        bundle.serve_until(|bundle| {
            is_over = has_ended(bundle);
            is_over || !tasks.borrow().is_empty()
        });
        if is_over {
            return Ok(());
        }
        let next = tasks.borrow_mut().pop_front();
        if let Some(task) = next {
            serve(&mut bundle, endpoint, task)?;
        }
    }
}

/// Counts one chunk and sends the counts in parts. The last part is the reply; those before it are one-way messages. Each has the number of
/// parts.
fn serve(bundle: &mut Bundle, endpoint: Endpoint, task: Task) -> Result<(), Error> {
    let Task { id: [chunk, attempt], text, token } = task;
    let mut counts = Counts::default();
    count(&text, &mut counts);
    let parts = write(&counts, PART_MOST);
    let args = [chunk, attempt, parts.len() as u32];
    let Some((last, others)) = parts.split_last() else { return Ok(()) };
    for part in others {
        bundle.send(endpoint, 0, master_op::PART, &args, part)?;
    }
    // This fails if the master is gone. The next poll notices that.
    let _ = bundle.reply(token, master_op::PART, &args, last);
    Ok(())
}

/// Whether the master is gone.
fn has_ended(bundle: &mut Bundle) -> bool {
    std::iter::from_fn(|| bundle.next_event()).any(|event| matches!(event, Event::PeerLost { .. } | Event::Returned(_)))
}

/// The master's name and key.
fn master() -> Result<(Name, Key), Error> {
    let unusable = |cause: String| Error::Usage {
        cause: format!("{MASTER_VARIABLE} does not name a master: {cause}"),
        way_out: "`weft demo` starts the workers; type that".to_owned(),
    };
    let text = std::env::var(MASTER_VARIABLE).map_err(|e| unusable(e.to_string()))?;
    let (name, key) = text.split_once(' ').ok_or_else(|| unusable("it has no key".to_owned()))?;
    let name = name.parse().map_err(|e: weft::NameError| unusable(e.to_string()))?;
    let key = key.parse().map_err(|e: weft::KeyError| unusable(e.to_string()))?;
    Ok((name, key))
}
