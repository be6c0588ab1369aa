//! The master of the demonstration. It starts workers, hands out chunks, gathers counts, and gives a dead worker's chunks to other
//! workers.

use super::count::{self, Counts};
use super::{master_op, worker_op, MASTER_VARIABLE};
use crate::child::{self, Owned};
use crate::error::Error;
use rustix::process::{kill_process, waitid, Pid, Signal, WaitId, WaitIdOptions};
use std::cell::RefCell;
use std::process::Stdio;
use std::rc::Rc;
use std::time::{Duration, Instant};
use weft::{Bundle, Endpoint, Event, Key, Name, Node, SendError};

/// The most chunks that a worker has at once: one that it counts, and one that is under way to it.
const IN_HAND: usize = 2;

/// The longest wait between two checks of the workers.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// How long the master waits for any message before it fails.
const PATIENCE: Duration = Duration::from_secs(30);

/// What the handlers received.
#[derive(Debug, Default)]
struct Inbox {
    hellos: Vec<Hello>,
    parts: Vec<Part>,
    /// Requests that came back: chunk and attempt.
    returned: Vec<[u32; 2]>,
}

#[derive(Debug)]
struct Hello {
    name: Name,
    key: Key,
    process: u32,
}

#[derive(Debug)]
struct Part {
    chunk: u32,
    attempt: u32,
    of: u32,
    counts: Vec<u8>,
}

/// The state of a chunk.
#[derive(Clone, Debug, Default)]
struct Chunk {
    attempt: u32,
    parts: Vec<Vec<u8>>,
    is_done: bool,
}

#[derive(Debug)]
struct Worker {
    process: Owned,
    is_alive: bool,
    /// It was stopped, and is to be killed.
    is_stopped: bool,
    in_hand: Vec<u32>,
}

/// Hands out chunks and collects counts.
pub struct Master<'a> {
    bundle: Bundle,
    endpoint: Endpoint,
    _node: Node,
    inbox: Rc<RefCell<Inbox>>,
    texts: Vec<&'a [u8]>,
    chunks: Vec<Chunk>,
    waiting: Vec<u32>,
    /// In the order of the endpoint's translation table.
    workers: Vec<Worker>,
    /// Processes that were started and have sent no HELLO yet.
    starting: Vec<Owned>,
    counts: Counts,
    done: usize,
    last_news: Instant,
}

/// The result.
#[derive(Debug)]
pub struct Outcome {
    pub counts: Counts,
    pub chunks: usize,
    /// Chunks that were given to a second worker because the first one died.
    pub given_again: usize,
    /// How long the workers took to start, and to count.
    pub starting: Duration,
    pub counting: Duration,
}

impl<'a> Master<'a> {
    /// Starts the workers.
    pub fn start(texts: Vec<&'a [u8]>, workers: usize) -> Result<Master<'a>, Error> {
        let node = Node::new()?;
        let mut bundle = Bundle::new(&node)?;
        let endpoint = bundle.endpoint_with_random_key()?;
        let inbox = listen(&mut bundle, endpoint)?;
        let contact = format!("{} {:016x}", bundle.name(endpoint)?, bundle.key(endpoint)?.0);
        let start_one = || {
            let mut command = child::myself()?;
            command.arg("demo-worker").env(MASTER_VARIABLE, &contact).stdin(Stdio::null()).stdout(Stdio::null());
            command
                .spawn()
                .map(Owned)
                .map_err(|e| Error::system("start a worker", e, "Check the limit of processes (ulimit -u)"))
        };
        let starting = (0..workers).map(|_| start_one()).collect::<Result<_, Error>>()?;
        Ok(Master {
            bundle,
            endpoint,
            _node: node,
            inbox,
            chunks: vec![Chunk::default(); texts.len()],
            waiting: (0..texts.len() as u32).rev().collect(),
            texts,
            workers: Vec::new(),
            starting,
            counts: Counts::default(),
            done: 0,
            last_news: Instant::now(),
        })
    }

    /// Counts all chunks. Calls `progress` with the number of chunks that are done. With `kill_one`, kills a worker while it counts.
    pub fn run(mut self, mut kill_one: bool, progress: impl Fn(usize) -> Result<(), Error>) -> Result<Outcome, Error> {
        let start = Instant::now();
        while !self.starting.is_empty() {
            self.turn()?;
        }
        let starting = start.elapsed();
        while self.done < self.chunks.len() {
            self.hand_out()?;
            kill_one = kill_one && !self.kill_one_in_the_middle();
            self.turn()?;
            progress(self.done)?;
        }
        let given_again = self.chunks.iter().map(|chunk| chunk.attempt as usize).sum();
        let counting = start.elapsed() - starting;
        Ok(Outcome { counts: self.counts, chunks: self.chunks.len(), given_again, starting, counting })
    }

    /// Waits once, and handles what arrived.
    fn turn(&mut self) -> Result<(), Error> {
        // The limit makes it check the workers even if nothing arrives.
        self.bundle.wait(Some(LOOK_EVERY));
        let inbox = std::mem::take(&mut *self.inbox.borrow_mut());
        if !inbox.is_empty() {
            self.last_news = Instant::now();
        }
        let Inbox { hellos, parts, returned } = inbox;
        for hello in hellos {
            self.admit(&hello)?;
        }
        for part in parts {
            self.take(part)?;
        }
        for [chunk, attempt] in returned {
            self.take_back(chunk, attempt);
        }
        self.look_after_workers()
    }

    /// Adds a worker that sent HELLO: from now on it gets chunks.
    fn admit(&mut self, hello: &Hello) -> Result<(), Error> {
        let Some(at) = self.starting.iter().position(|process| process.0.id() == hello.process) else { return Ok(()) };
        let process = self.starting.swap_remove(at);
        self.bundle.map(self.endpoint, self.workers.len() as u32, hello.name, hello.key)?;
        self.workers.push(Worker { process, is_alive: true, is_stopped: false, in_hand: Vec::new() });
        Ok(())
    }

    /// Gives chunks to the workers that have fewer than [`IN_HAND`]: first one to each, then a second one.
    fn hand_out(&mut self) -> Result<(), Error> {
        for in_hand in 0..IN_HAND {
            for index in 0..self.workers.len() {
                let worker = &mut self.workers[index];
                if !worker.is_alive || worker.in_hand.len() > in_hand {
                    continue;
                }
                let Some(&chunk) = self.waiting.last() else { return Ok(()) };
                let args = [chunk, self.chunks[chunk as usize].attempt];
                let text = self.texts[chunk as usize];
                match self.bundle.try_request(self.endpoint, index as u32, worker_op::COUNT, &args, text) {
                    Ok(()) => {
                        self.waiting.pop();
                        worker.in_hand.push(chunk);
                    }
                    // The session is being set up, or the ring is full: try again in the next turn.
                    Err(SendError::Full) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(())
    }

    /// Takes a part of a chunk's counts. A chunk is done when all parts of its present attempt have arrived.
    fn take(&mut self, part: Part) -> Result<(), Error> {
        let Some(chunk) = self.chunks.get_mut(part.chunk as usize) else { return Ok(()) };
        if chunk.is_done || chunk.attempt != part.attempt {
            return Ok(());
        }
        chunk.parts.push(part.counts);
        if chunk.parts.len() < part.of as usize {
            return Ok(());
        }
        chunk.is_done = true;
        for counts in std::mem::take(&mut chunk.parts) {
            count::read(&counts, &mut self.counts).ok_or_else(|| Error::Mismatch {
                what: "the counts that a worker sent and those that arrived".to_owned(),
                left: "words with their counts".to_owned(),
                right: format!("{} bytes in another format", counts.len()),
            })?;
        }
        self.done += 1;
        self.let_go(part.chunk);
        Ok(())
    }

    /// Takes back a chunk whose worker died. Drops the parts that this worker sent; another worker gets the chunk.
    fn take_back(&mut self, index: u32, attempt: u32) {
        self.let_go(index);
        let Some(chunk) = self.chunks.get_mut(index as usize) else { return };
        if !chunk.is_done && chunk.attempt == attempt {
            chunk.attempt += 1;
            chunk.parts.clear();
            self.waiting.push(index);
        }
    }

    fn let_go(&mut self, chunk: u32) {
        self.workers.iter_mut().for_each(|worker| worker.in_hand.retain(|&c| c != chunk));
    }

    /// Notices dead workers. Fails if all are dead, or if nothing arrived for too long.
    fn look_after_workers(&mut self) -> Result<(), Error> {
        while let Some(event) = self.bundle.next_event() {
            if let Event::PeerLost { destination, .. } = event {
                if let Some(worker) = self.workers.get_mut(destination as usize) {
                    worker.is_alive = false;
                }
            }
        }
        for process in &mut self.starting {
            if let Ok(Some(status)) = process.0.try_wait() {
                return Err(dead(format!("it ended before it reached the master: {status}")));
            }
        }
        if self.starting.is_empty() && self.workers.iter().all(|worker| !worker.is_alive) {
            return Err(dead("all of them are dead".to_owned()));
        }
        if self.last_news.elapsed() > PATIENCE {
            let what = format!("{} of {} chunks are counted", self.done, self.chunks.len());
            return Err(Error::Silence { seconds: PATIENCE.as_secs(), what });
        }
        Ok(())
    }

    /// Kills a worker that has a chunk, once a third of the chunks is done. Returns whether it did.
    ///
    /// Stops the worker first, and kills it in a later turn. By then the master has taken its answers, and chunks that the worker still has
    /// stay unanswered.
    fn kill_one_in_the_middle(&mut self) -> bool {
        if self.done < self.chunks.len() / 3 {
            return false;
        }
        let chosen = self.workers.iter().position(|worker| worker.is_stopped);
        let chosen = chosen.or_else(|| self.workers.iter().position(|worker| worker.is_alive));
        let Some(worker) = chosen.map(|at| &mut self.workers[at]) else { return false };
        if worker.is_stopped {
            // The master notices this death like any other, by `PeerLost`.
            return !worker.in_hand.is_empty() && worker.process.0.kill().is_ok();
        }
        let process = Pid::from_child(&worker.process.0);
        // A worker on another processor goes on answering until the signal takes effect: wait for that. NOWAIT leaves the status of a
        // worker that died instead, so that its death is noticed like any other.
        let is_over = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        worker.is_stopped =
            kill_process(process, Signal::STOP).is_ok() && waitid(WaitId::Pid(process), is_over).is_ok();
        false
    }
}

impl Inbox {
    fn is_empty(&self) -> bool {
        self.hellos.is_empty() && self.parts.is_empty() && self.returned.is_empty()
    }
}

fn dead(cause: String) -> Error {
    Error::Process { who: "a worker".to_owned(), cause, way_out: "Run it again; the output of the worker is above" }
}

/// Sets the handlers. They only put what they receive into the inbox.
fn listen(bundle: &mut Bundle, endpoint: Endpoint) -> Result<Rc<RefCell<Inbox>>, Error> {
    let inbox: Rc<RefCell<Inbox>> = Rc::default();
    let to = inbox.clone();
    bundle.on(endpoint, master_op::HELLO, move |m| {
        if let (Some(name), &[low, high, process]) = (m.source(), m.args()) {
            let key = Key(u64::from(low) | u64::from(high) << 32);
            to.borrow_mut().hellos.push(Hello { name, key, process });
        }
    })?;
    let to = inbox.clone();
    bundle.on(endpoint, master_op::PART, move |m| {
        if let &[chunk, attempt, of] = m.args() {
            to.borrow_mut().parts.push(Part { chunk, attempt, of, counts: m.payload().to_vec() });
        }
    })?;
    let to = inbox.clone();
    bundle.on_return(endpoint, move |_, returned| {
        if let [chunk, attempt] = returned.args[..] {
            to.borrow_mut().returned.push([chunk, attempt]);
        }
    })?;
    Ok(inbox)
}
