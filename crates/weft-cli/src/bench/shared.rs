//! The cost of a shared bundle that one thread uses: the caller of its round trips.

use super::peer::{answer, ask, note_asked, Tally, ARGS_BYTES_MOST};
use super::source::{sum_args, sum_bytes, Source};
use super::talk::{Contact, PATIENCE};
use crate::error::Error;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Instant;
use weft::{Endpoint, Node, SendError, SharedBundle};

/// Polls without an answer between two checks whether to give up.
const LOOK_EVERY: u32 = 1 << 18;

/// What came. The handlers that write it run one at a time.
#[derive(Debug, Default)]
struct Came {
    count: AtomicU64,
    sum: AtomicU64,
}

impl Came {
    #[inline(always)]
    fn add(&self, sum: u64) {
        let add =
            |to: &AtomicU64, more: u64| to.store(to.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
        add(&self.count, 1);
        add(&self.sum, sum);
    }
}

/// A shared bundle that sends requests and counts the answers.
#[derive(Debug)]
pub struct SharedCaller {
    bundle: SharedBundle,
    endpoint: Endpoint,
    source: Rc<Source>,
    came: Arc<Came>,
    size: usize,
}

impl SharedCaller {
    pub fn new(node: &Node, to: &Contact, source: &Rc<Source>, size: usize) -> Result<SharedCaller, Error> {
        let bundle = SharedBundle::new(node)?;
        let endpoint = bundle.endpoint_with_random_key()?;
        let (name, key) = to.read()?;
        bundle.map(endpoint, 0, name, key)?;
        let came = Arc::new(Came::default());
        let seen = came.clone();
        bundle.on(endpoint, answer::ARGS, move |m| seen.add(sum_args(m.args())))?;
        let seen = came.clone();
        bundle.on(endpoint, answer::PAYLOAD, move |m| seen.add(sum_bytes(m.payload())))?;
        Ok(SharedCaller { bundle, endpoint, source: source.clone(), came, size })
    }

    /// One request and its answer.
    #[inline(always)]
    pub fn trip(&mut self) -> Result<(), Error> {
        let answers = self.came.count.load(Ordering::Relaxed) + 1;
        while !self.try_ask()? {
            self.poll()?;
        }
        let (mut idle, mut since) = (0u32, None);
        while self.came.count.load(Ordering::Relaxed) < answers {
            if self.poll()? == 0 {
                idle += 1;
                if idle % LOOK_EVERY == 0 && since.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                    let what = "an answer to a shared bundle".to_owned();
                    return Err(Error::Silence { seconds: PATIENCE.as_secs(), what });
                }
            }
        }
        Ok(())
    }

    /// Tells the peer that the measurement is over.
    pub fn stop(&self) -> Result<(), Error> {
        self.bundle.send(self.endpoint, 0, ask::STOP, &[], &[])?;
        self.bundle.flush().map_err(SendError::from)?;
        Ok(())
    }

    /// What came, in the form of other callers.
    pub fn tally(&self) -> Tally {
        let tally = Tally::default();
        tally.count.set(self.came.count.load(Ordering::Relaxed));
        tally.sum.set(self.came.sum.load(Ordering::Relaxed));
        tally
    }

    #[inline(always)]
    fn poll(&self) -> Result<u32, Error> {
        Ok(self.bundle.poll().map_err(SendError::from)?)
    }

    #[inline(always)]
    fn try_ask(&self) -> Result<bool, Error> {
        let (source, size) = (&self.source, self.size);
        let asked = match size <= ARGS_BYTES_MOST {
            true => self.bundle.try_request(self.endpoint, 0, ask::ARGS, &source.args(size)[..size / 4], &[]),
            false => self.bundle.try_request(self.endpoint, 0, ask::PAYLOAD, &[], source.message(size)),
        };
        note_asked(asked, source, size)
    }
}
