//! Round trips of a process while other processes are killed that it has sent requests to.

use super::meter::{summarize, Per, Sampled};
use super::peer::{ask, expect_alive, Tally};
use super::source::Half;
use super::talk::{Job, Peer, Waiting, PATIENCE};
use super::weft_side::{Bench, Caller, WINDOW};
use crate::error::Error;
use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};
use weft::{Endpoint, Event, SendError};

/// How long round trips are measured before and after each death.
const LOOK: Duration = Duration::from_millis(2);

/// Polls without a message between two readings of the clock.
const LOOK_EVERY: u32 = 1 << 18;

/// The results.
#[derive(Clone, Copy, Debug)]
pub struct Deaths {
    /// Round trips just before and just after the kills.
    pub before: Sampled,
    pub beside: Sampled,
    /// From a kill until all requests to the killed process had come back.
    pub settled: Sampled,
}

/// The process that survives.
struct Survivor {
    caller: Caller,
    /// Sends to the processes that are killed.
    asker: Endpoint,
    returned: Rc<Cell<u64>>,
    deaths: u64,
}

/// Samples in nanoseconds.
#[derive(Default)]
struct Samples {
    before: Vec<f64>,
    beside: Vec<f64>,
    settled: Vec<f64>,
}

impl Bench {
    /// Single round trips before and after the kills of processes that `start` starts one after the other.
    pub fn beside_deaths(&mut self, size: usize, start: &dyn Fn() -> Result<Peer, Error>) -> Result<Deaths, Error> {
        let contacts = self.peer.give(&Job::Echo { size, waiting: Waiting::Polls })?;
        let tally = Rc::new(Tally::default());
        self.source.rewind(size, Half::First);
        let mut survivor = Survivor::new(Caller::new(&self.node, &contacts[0], &self.source, &tally, size)?)?;
        let end = Instant::now() + self.time;
        let mut run = || {
            let mut samples = Samples::default();
            survivor.trip()?;
            while samples.settled.is_empty() || Instant::now() < end {
                survivor.see_one_die(start()?, &mut samples)?;
            }
            Ok(samples)
        };
        let samples = run();
        let samples = self.or_its_cause(samples)?;
        let account = self.stop(&mut survivor.caller)?;
        self.compare(size, &tally, account)?;
        let [before, beside, settled] =
            [samples.before, samples.beside, samples.settled].map(|samples| summarize(samples, Per::Unit));
        Ok(Deaths { before, beside, settled })
    }
}

impl Survivor {
    fn new(mut caller: Caller) -> Result<Survivor, Error> {
        let asker = caller.bundle.endpoint_with_random_key()?;
        let returned = Rc::new(Cell::new(0));
        let count = returned.clone();
        caller.bundle.on_return(asker, move |_, _| count.set(count.get() + 1))?;
        Ok(Survivor { caller, asker, returned, deaths: 0 })
    }

    fn see_one_die(&mut self, mut victim: Peer, samples: &mut Samples) -> Result<(), Error> {
        self.engage(&mut victim)?;
        let since = Instant::now();
        while since.elapsed() < LOOK {
            samples.before.push(self.trip()?);
        }
        let (returned, deaths) = (self.returned.get() + WINDOW, self.deaths + 1);
        let since = Instant::now();
        victim.kill()?;
        let mut settled = None;
        while settled.is_none() || since.elapsed() < LOOK {
            samples.beside.push(self.trip()?);
            if settled.is_none() && self.returned.get() == returned && self.deaths == deaths {
                settled = Some(since.elapsed());
            }
            bounded(since, "requests to a process that was killed")?;
        }
        samples.settled.extend(settled.map(|time| time.as_nanos() as f64));
        Ok(())
    }

    /// Sends a window of requests to a peer that does not answer them.
    fn engage(&mut self, victim: &mut Peer) -> Result<(), Error> {
        let contacts = victim.give(&Job::Keep)?;
        let (name, key) = contacts[0].read()?;
        let bundle = &mut self.caller.bundle;
        bundle.map(self.asker, 0, name, key)?;
        let since = Instant::now();
        let mut sent = 0;
        while sent < WINDOW {
            match bundle.try_request(self.asker, 0, ask::ARGS, &[], &[]) {
                Ok(()) => sent += 1,
                Err(SendError::Full) => {
                    bundle.poll();
                    bounded(since, "room for requests")?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        self.note()
    }

    /// One round trip with the peer, in nanoseconds.
    #[inline(always)]
    fn trip(&mut self) -> Result<f64, Error> {
        let Survivor { caller, .. } = self;
        let answers = caller.tally.count.get() + 1;
        let start = Instant::now();
        while !caller.try_ask()? {
            caller.bundle.poll();
        }
        let mut idle = 0u32;
        while caller.tally.count.get() < answers {
            if caller.bundle.poll() == 0 {
                idle = idle.wrapping_add(1);
                if idle % LOOK_EVERY == 0 {
                    bounded(start, "a message of the peer")?;
                }
            }
        }
        let time = start.elapsed();
        self.note()?;
        Ok(time.as_nanos() as f64)
    }

    /// Counts deaths. The peer itself must live.
    fn note(&mut self) -> Result<(), Error> {
        while let Some(event) = self.caller.bundle.next_event() {
            match event {
                Event::PeerLost { endpoint, .. } if endpoint == self.asker => self.deaths += 1,
                event => expect_alive(&event)?,
            }
        }
        Ok(())
    }
}

/// An error if something takes too long.
fn bounded(since: Instant, what: &str) -> Result<(), Error> {
    match since.elapsed() > PATIENCE {
        true => Err(Error::Silence { seconds: PATIENCE.as_secs(), what: what.to_owned() }),
        false => Ok(()),
    }
}
