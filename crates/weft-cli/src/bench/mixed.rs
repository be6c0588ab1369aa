//! Round trips of a process with one peer on its own host and one on another host, in one bundle.
//!
//! Both peers are one process on the other CPU. One thread polls a bundle for each: two processes there would measure the
//! scheduler. It polls the busy bundle most of the time.

use super::meter::{summarize, Meter, Per, Sampled};
use super::peer::{ask, try_ask, Tally, ARGS_BYTES_MOST};
use super::source::{Half, Source};
use super::talk::{Contact, Job, Polls};
use super::weft_side::{count_answers, Bench, Quiet, BATCH};
use crate::error::Error;
use std::rc::Rc;
use std::time::{Duration, Instant};
use weft::{Bundle, Endpoint, Node};

/// How the peers are polled while one of them is measured: the other one so rarely that it does not matter.
const SELDOM: u32 = 1 << 12;

/// How they are polled while both are measured: the network as often as weft itself looks at it beside messages through memory, and
/// whenever memory has been silent for a while.
const BOTH: Polls = Polls { memory: 256, still: 64, network: 1 };

/// Round trips over the network per sample.
const NETWORK_BATCH: u32 = 16;

/// Round trips through memory between two over the network, if they take turns.
const TURN: u32 = 16;

/// The path to a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Route {
    Memory,
    Network,
}

/// What happens on the other path at the same time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Beside {
    /// There is no peer.
    Nothing,
    /// The peer is connected and idle.
    Idle,
    /// Round trips at the same time.
    Busy,
    /// Round trips in turns: never on both paths at once.
    Turns,
}

impl Beside {
    /// As it stands in rows.
    pub fn system(self) -> &'static str {
        match self {
            Beside::Nothing => "weft-alone",
            Beside::Idle => "weft-beside-idle",
            Beside::Busy => "weft-at-once",
            Beside::Turns => "weft-in-turns",
        }
    }

    /// What the other peer does while this path is measured.
    pub fn detail(self, route: Route) -> &'static str {
        match (self, route) {
            (Beside::Nothing, Route::Memory) => "no UDP peer",
            (Beside::Idle, Route::Memory) => "a UDP peer is connected, and idle",
            (Beside::Busy, Route::Memory) => "beside UDP round trips in the same bundle; both peers are one thread",
            (Beside::Turns, Route::Memory) => "16 of them, then one over UDP, and so on",
            (Beside::Turns, Route::Network) => "one of them, then 16 through memory, and so on",
            (Beside::Nothing, Route::Network) => "no local peer",
            (Beside::Idle, Route::Network) => "a local peer is connected, and idle",
            (Beside::Busy, Route::Network) => "beside local round trips in the same bundle; both peers are one thread",
        }
    }
}

/// The figures of each path, if it is measured.
type Figures = [Option<Sampled>; 2];

impl Bench {
    /// Round trip of 16 bytes on one path.
    pub fn round_trip_by(&mut self, route: Route, beside: Beside) -> Result<Sampled, Error> {
        let (polls, other) = match route {
            Route::Memory => (Polls { memory: SELDOM, still: SELDOM, network: 1 }, Route::Network),
            Route::Network => (Polls { memory: 1, still: 1, network: SELDOM }, Route::Memory),
        };
        let figures = self.between_two(polls, |caller, time| {
            if beside == Beside::Idle {
                caller.trip(other)?;
            }
            caller.trip(route)?;
            caller.side(route).meter = Some(Meter::start(Per::Unit, time));
            while caller.side(route).meter.is_some() {
                caller.trip(route)?;
                caller.side(route).note();
            }
            Ok(())
        })?;
        Ok(figures[route as usize].unwrap_or_else(|| summarize(Vec::new(), Per::Unit)))
    }

    /// Round trips of 16 bytes on both paths at once, one under way on each: through memory, and over the network.
    pub fn round_trips_by_both(&mut self) -> Result<[Sampled; 2], Error> {
        let figures = self.between_two(BOTH, |caller, time| {
            for route in [Route::Memory, Route::Network] {
                caller.trip(route)?;
                caller.side(route).meter = Some(Meter::start(Per::Unit, time));
            }
            let mut is_asked = [false; 2];
            while is_asked != [false; 2] || caller.sides.iter().any(|side| side.meter.is_some()) {
                // Neither stops before both are measured.
                let goes_on = caller.sides.iter().any(|side| side.meter.is_some());
                for (route, is_asked) in [Route::Memory, Route::Network].into_iter().zip(&mut is_asked) {
                    if *is_asked && caller.side(route).is_answered() {
                        caller.side(route).note();
                        *is_asked = false;
                    }
                    if !*is_asked && goes_on {
                        *is_asked = caller.try_ask(route)?;
                    }
                }
                caller.turn()?;
            }
            Ok(())
        })?;
        Ok(figures.map(|figure| figure.unwrap_or_else(|| summarize(Vec::new(), Per::Unit))))
    }

    /// Round trips of 16 bytes on the two paths in turns, each timed by itself: through memory, and over the network.
    pub fn round_trips_in_turns(&mut self) -> Result<[Sampled; 2], Error> {
        let mut samples = [(); 2].map(|()| Vec::with_capacity(1 << 16));
        self.between_two(BOTH, |caller, time| {
            caller.trip(Route::Network)?;
            caller.trip(Route::Memory)?;
            let start = Instant::now();
            while start.elapsed() < time {
                for (route, trips) in [(Route::Memory, TURN), (Route::Network, 1)] {
                    let start = Instant::now();
                    (0..trips).try_for_each(|_| caller.trip(route))?;
                    samples[route as usize].push(start.elapsed().as_nanos() as f64 / f64::from(trips));
                }
            }
            Ok(())
        })?;
        Ok(samples.map(|samples| summarize(samples, Per::Unit)))
    }

    /// Gives the peers their job, measures, and compares the bytes sent and received.
    fn between_two(
        &mut self,
        polls: Polls,
        measure: impl FnOnce(&mut Caller, Duration) -> Result<(), Error>,
    ) -> Result<Figures, Error> {
        let contacts = self.peer.give(&Job::EchoAtTwo { size: ARGS_BYTES_MOST, polls })?;
        self.source.rewind(ARGS_BYTES_MOST, Half::First);
        let mut caller = Caller::new(&self.node, &contacts, &self.source)?;
        let measured = measure(&mut caller, self.time);
        self.or_its_cause(measured)?;
        // On a path that is already connected.
        let by = caller.sides.iter().find(|side| side.asked > 0).map_or(caller.sides[0].endpoint, |side| side.endpoint);
        caller.bundle.send(by, 0, ask::STOP, &[], &[])?;
        caller.bundle.flush();
        let account = self.peer.finish()?;
        let all = Tally::default();
        for Side { tally, .. } in &caller.sides {
            all.count.set(all.count.get() + tally.count.get());
            all.sum.set(all.sum.get().wrapping_add(tally.sum.get()));
        }
        self.compare(ARGS_BYTES_MOST, &all, account)?;
        Ok(caller.sides.map(|side| side.figure))
    }
}

/// A bundle that sends requests to two peers and counts the answers.
struct Caller {
    bundle: Bundle,
    source: Rc<Source>,
    sides: [Side; 2],
    quiet: Quiet,
}

/// The state of one of the two peers.
struct Side {
    endpoint: Endpoint,
    tally: Rc<Tally>,
    asked: u64,
    /// Round trips per sample, and those since the last sample.
    batch: u32,
    done: u32,
    /// Runs while this path is measured.
    meter: Option<Meter>,
    figure: Option<Sampled>,
}

impl Side {
    #[inline(always)]
    fn is_answered(&self) -> bool {
        self.tally.count.get() == self.asked
    }

    /// Counts a finished round trip.
    #[inline(always)]
    fn note(&mut self) {
        self.done += 1;
        if self.done < self.batch {
            return;
        }
        self.done = 0;
        let is_over = self.meter.as_mut().is_some_and(|meter| !meter.tick(f64::from(self.batch)));
        if is_over {
            self.figure = self.meter.take().map(Meter::finish);
        }
    }
}

impl Caller {
    fn new(node: &Node, contacts: &[Contact], source: &Rc<Source>) -> Result<Caller, Error> {
        let mut bundle = Bundle::new(node)?;
        let mut side = |to: &Contact, batch| {
            let endpoint = bundle.endpoint_with_random_key()?;
            let (name, key) = to.read()?;
            bundle.map(endpoint, 0, name, key)?;
            let tally = Rc::new(Tally::default());
            count_answers(&mut bundle, endpoint, &tally)?;
            Ok::<_, Error>(Side { endpoint, tally, asked: 0, batch, done: 0, meter: None, figure: None })
        };
        let sides = [side(&contacts[0], BATCH)?, side(&contacts[1], NETWORK_BATCH)?];
        Ok(Caller { bundle, source: source.clone(), sides, quiet: Quiet::new() })
    }

    #[inline(always)]
    fn side(&mut self, route: Route) -> &mut Side {
        &mut self.sides[route as usize]
    }

    /// Sends a request. False if there is no room.
    #[inline(always)]
    fn try_ask(&mut self, route: Route) -> Result<bool, Error> {
        let side = &mut self.sides[route as usize];
        let asked = try_ask(&mut self.bundle, side.endpoint, &self.source, ARGS_BYTES_MOST)?;
        side.asked += u64::from(asked);
        Ok(asked)
    }

    /// One poll.
    #[inline(always)]
    fn turn(&mut self) -> Result<(), Error> {
        if self.bundle.poll() == 0 {
            let count = self.sides.iter().map(|side| side.tally.count.get()).sum();
            self.quiet.look_now_and_then(&mut self.bundle, count)?;
        }
        Ok(())
    }

    /// One request and its answer.
    #[inline(always)]
    fn trip(&mut self, route: Route) -> Result<(), Error> {
        while !self.try_ask(route)? {
            self.turn()?;
        }
        while !self.side(route).is_answered() {
            self.turn()?;
        }
        Ok(())
    }
}
