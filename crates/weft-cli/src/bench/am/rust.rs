//! The two processes in Rust: the same loops as in `bench/am/pair.c`, with the crate `weft`.

use super::plan::{Form, Message, What};
use super::program::Received;
use crate::bench::meter::{Meter, Per, Sampled};
use crate::bench::peer::{contact, expect_jobs, expect_life, say, Gone, Tally};
use crate::bench::source::{sum_args, sum_bytes, Half, Source};
use crate::bench::talk::{Account, Answer, Job};
use crate::bench::weft_side::{Bench, Quiet};
use crate::error::Error;
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::io::Write;
use std::rc::Rc;
use std::time::Duration;
use weft::am::Long;
use weft::memory::Window;
use weft::{Bundle, Contents, Endpoint, Node, SendError};

/// Handlers. Those that begin with `TAKE` do not reply.
const NONE: u8 = 1;
const ARGS: u8 = 2;
const BYTES: u8 = 3;
const LONG: u8 = 4;
const TAKE_NONE: u8 = 5;
const TAKE_ARGS: u8 = 6;
const TAKE_BYTES: u8 = 7;
const TAKE_LONG: u8 = 8;
const STOP: u8 = 9;
const STOPPED: u8 = 10;

/// Long messages use this many places of the segment in turn: as many as are under way.
const PLACES: usize = 32;

/// Bytes to copy out of a segment at once before reading them: they stay in the nearest cache. The program in C reads in place.
const COPY: usize = 16 << 10;

/// Polls without a message between two checks that the other process lives.
const LOOK_EVERY: u32 = 1 << 16;

/// The job of the answering process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AmJob {
    message: Message,
}

/// Answers or takes requests until as many have come as the other process announces.
pub fn serve(
    (node, source, gone): (&Node, &Rc<Source>, &Gone),
    AmJob { message }: AmJob,
    out: &mut dyn Write,
) -> Result<Answer, Error> {
    let mut bundle = Bundle::new(node)?;
    let here = bundle.endpoint_with_random_key()?;
    let tally = Rc::new(Tally::default());
    rewind(source, message, Half::Second);
    let segment = segment(&mut bundle, here, message)?;
    answer(&mut bundle, here, source, &tally, message.size)?;
    count(&mut bundle, here, &tally, TAKERS)?;
    if let Some(segment) = segment {
        let seen = tally.clone();
        bundle.on(here, TAKE_LONG, sum_placed(&segment, move |_, sum| seen.add(sum)))?;
        let (seen, from, turns) = (tally.clone(), source.clone(), Turns::default());
        let size = message.size;
        bundle.on(
            here,
            LONG,
            sum_placed(&segment, move |m, sum| {
                seen.add(sum);
                let long = Long { handler: LONG, args: &[], offset: turns.next(size) };
                let _ = m.reply_long(long, from.message(size).to_vec());
                from.advance(size);
            }),
        )?;
    }
    let is_stopped = Rc::new(Cell::new(false));
    let (seen, told) = (tally.clone(), is_stopped.clone());
    bundle.on(here, STOP, move |m| {
        if let [low, high] = m.args() {
            told.set(seen.count.get() >= u64::from(*low) | u64::from(*high) << 32);
        }
        // If a reply is not accepted, the other process misses it and reports that.
        let _ = m.reply(STOPPED, &[told.get().into()], &[]);
    })?;
    say(&Answer::Ready(vec![contact(&bundle, here)?]), out)?;
    let mut idle = 0u32;
    while !is_stopped.get() {
        if bundle.poll() == 0 {
            idle = idle.wrapping_add(1);
            if idle % LOOK_EVERY == 0 {
                expect_life(&mut bundle)?;
                expect_jobs(gone)?;
            }
        }
    }
    Ok(Answer::Done(Account { received: tally.count.get(), received_sum: tally.sum.get(), sent: 0 }))
}

/// Answers every request with a message of the same form and size.
fn answer(
    bundle: &mut Bundle,
    here: Endpoint,
    source: &Rc<Source>,
    tally: &Rc<Tally>,
    size: usize,
) -> Result<(), Error> {
    let seen = tally.clone();
    bundle.on(here, NONE, move |m| {
        seen.add(0);
        let _ = m.reply(NONE, &[], &[]);
    })?;
    let (seen, from) = (tally.clone(), source.clone());
    bundle.on(here, ARGS, move |m| {
        seen.add(sum_args(m.args()));
        let _ = m.reply(ARGS, &from.args(size), &[]);
        from.advance(size);
    })?;
    let (seen, from) = (tally.clone(), source.clone());
    bundle.on(here, BYTES, move |m| {
        seen.add(sum_bytes(m.payload()));
        let _ = m.reply(BYTES, &[], from.message(size));
        from.advance(size);
    })?;
    Ok(())
}

/// A handler for each kind of message.
#[derive(Clone, Copy, Debug)]
struct Handlers {
    none: u8,
    args: u8,
    bytes: u8,
    long: u8,
}

const REPLIERS: Handlers = Handlers { none: NONE, args: ARGS, bytes: BYTES, long: LONG };
const TAKERS: Handlers = Handlers { none: TAKE_NONE, args: TAKE_ARGS, bytes: TAKE_BYTES, long: TAKE_LONG };

/// Counts the messages that reach these handlers, except long ones, and sends no replies.
fn count(bundle: &mut Bundle, here: Endpoint, tally: &Rc<Tally>, handlers: Handlers) -> Result<(), Error> {
    let Handlers { none, args, bytes, .. } = handlers;
    let seen = tally.clone();
    bundle.on(here, none, move |_| seen.add(0))?;
    let seen = tally.clone();
    bundle.on(here, args, move |m| seen.add(sum_args(m.args())))?;
    let seen = tally.clone();
    bundle.on(here, bytes, move |m| seen.add(sum_bytes(m.payload())))?;
    Ok(())
}

/// The segment of an endpoint to which long messages go.
fn segment(bundle: &mut Bundle, here: Endpoint, message: Message) -> Result<Option<Window>, Error> {
    if message.form != Form::Long {
        return Ok(None);
    }
    let cannot =
        |e| Error::system("make a segment", e, "Free some memory, or raise the limit of file sizes (ulimit -f)");
    let window = Window::create(PLACES * message.size).map_err(cannot)?;
    // Make the pages present before the measurement.
    window.write(0, &vec![0; PLACES * message.size]);
    bundle.set_segment(here, Some(window.clone()))?;
    Ok(Some(window))
}

/// A handler that reads all bytes of a long message where it was placed.
fn sum_placed(
    segment: &Window,
    mut then: impl FnMut(&mut weft::am::Message<'_>, u64) + 'static,
) -> impl FnMut(&mut weft::am::Message<'_>) + 'static {
    let (segment, mut copy) = (segment.clone(), vec![0; COPY]);
    move |m| {
        let (mut at, mut left) = m.placed().map_or((0, 0), |placed| (placed.offset, placed.len as usize));
        let mut sum = 0u64;
        while left > 0 {
            let part = left.min(COPY);
            if !segment.read(at, &mut copy[..part]) {
                break;
            }
            sum = sum.wrapping_add(sum_bytes(&copy[..part]));
            (at, left) = (at + part as u64, left - part);
        }
        then(m, sum);
    }
}

/// The next place in the other segment.
#[derive(Debug, Default)]
struct Turns(Cell<usize>);

impl Turns {
    fn next(&self, size: usize) -> u64 {
        let turn = self.0.get();
        self.0.set((turn + 1) % PLACES);
        (turn * size) as u64
    }
}

/// The figures of the asking process, what it sent and received, and what the other one received.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    pub sampled: Sampled,
    pub sent: u64,
    pub received: Received,
    pub received_there: Received,
}

impl Bench {
    /// Measures.
    pub fn am(&mut self, what: What) -> Result<Measured, Error> {
        let message = what.message();
        let contacts = self.peer.give(&Job::Am(AmJob { message }))?;
        let mut asker = Asker::new(self, &contacts, what)?;
        let run = |asker: &mut Asker| match what {
            What::RoundTrip(_) => asker.trips(what.batch()),
            What::Rate(_) | What::Stream(_) => asker.rate(what.batch(), what.units()),
        };
        let done = run(&mut asker).and_then(|sampled| asker.stop().map(|()| sampled));
        let sampled = self.or_its_cause(done)?;
        let account = self.peer.finish()?;
        let tally = &asker.tally;
        Ok(Measured {
            sampled,
            sent: asker.sent,
            received: Received { count: tally.count.get(), sum: tally.sum.get() },
            received_there: Received { count: account.received, sum: account.received_sum },
        })
    }
}

struct Asker {
    bundle: Bundle,
    here: Endpoint,
    source: Rc<Source>,
    tally: Rc<Tally>,
    message: Message,
    /// The handlers of the peer.
    handlers: Handlers,
    turns: Turns,
    time: Duration,
    sent: u64,
    quiet: Quiet,
}

impl Asker {
    fn new(bench: &Bench, contacts: &[crate::bench::talk::Contact], what: What) -> Result<Asker, Error> {
        let mut bundle = Bundle::new(&bench.node)?;
        let here = bundle.endpoint_with_random_key()?;
        let (name, key) = contacts[0].read()?;
        bundle.map(here, 0, name, key)?;
        let (message, source, tally) = (what.message(), bench.source.clone(), Rc::new(Tally::default()));
        rewind(&source, message, Half::First);
        count(&mut bundle, here, &tally, REPLIERS)?;
        if let Some(segment) = segment(&mut bundle, here, message)? {
            let seen = tally.clone();
            bundle.on(here, LONG, sum_placed(&segment, move |_, sum| seen.add(sum)))?;
        }
        let handlers = match what {
            What::RoundTrip(_) => REPLIERS,
            What::Rate(_) | What::Stream(_) => TAKERS,
        };
        let (turns, time, quiet) = (Turns::default(), bench.time, Quiet::new());
        Ok(Asker { bundle, here, source, tally, message, handlers, turns, time, sent: 0, quiet })
    }

    /// Sends a request. Polls while 32 are under way.
    #[inline(always)]
    fn request(&mut self) -> Result<(), Error> {
        if self.message.form == Form::Long {
            return self.request_long();
        }
        while !self.try_request()? {
            self.turn()?;
        }
        self.sent += 1;
        Ok(())
    }

    /// Sends a long request, whose contents are copied as in C.
    fn request_long(&mut self) -> Result<(), Error> {
        let Message { size, .. } = self.message;
        let mut contents = Contents::from(self.source.message(size).to_vec());
        self.source.advance(size);
        let long = Long { handler: self.handlers.long, args: &[], offset: self.turns.next(size) };
        loop {
            match self.bundle.try_request_long(self.here, 0, long, contents) {
                Ok(()) => break,
                Err((SendError::Full, kept)) => contents = kept,
                Err((error, _)) => return Err(error.into()),
            }
            self.turn()?;
        }
        self.sent += 1;
        Ok(())
    }

    #[inline(always)]
    fn try_request(&mut self) -> Result<bool, Error> {
        let Asker { here, handlers: Handlers { none, args, bytes, .. }, message: Message { form, size }, .. } = *self;
        let (bundle, source) = (&mut self.bundle, &self.source);
        let asked = match form {
            Form::Short if size == 0 => return taken(bundle.try_request(here, 0, none, &[], &[])),
            Form::Short => bundle.try_request(here, 0, args, &source.args(size), &[]),
            Form::Medium | Form::Long => bundle.try_request(here, 0, bytes, &[], source.message(size)),
        };
        let is_taken = taken(asked)?;
        if is_taken {
            source.advance(size);
        }
        Ok(is_taken)
    }

    #[inline(always)]
    fn turn(&mut self) -> Result<(), Error> {
        if self.bundle.poll() == 0 {
            self.quiet.look_now_and_then(&mut self.bundle, self.tally.count.get())?;
        }
        Ok(())
    }

    /// One request and its answer.
    #[inline(always)]
    fn trip(&mut self) -> Result<(), Error> {
        let answers = self.tally.count.get() + 1;
        self.request()?;
        while self.tally.count.get() < answers {
            self.turn()?;
        }
        Ok(())
    }

    fn trips(&mut self, batch: u32) -> Result<Sampled, Error> {
        // This sets the session up.
        self.trip()?;
        let mut meter = Meter::start(Per::Unit, self.time);
        loop {
            for _ in 0..batch {
                self.trip()?;
            }
            if !meter.tick(f64::from(batch)) {
                return Ok(meter.finish());
            }
        }
    }

    fn rate(&mut self, batch: u32, units: f64) -> Result<Sampled, Error> {
        self.request()?;
        let mut meter = Meter::start(Per::Second, self.time);
        loop {
            for _ in 0..batch {
                self.request()?;
            }
            if !meter.tick(f64::from(batch) * units) {
                return Ok(meter.finish());
            }
        }
    }

    /// Announces how many messages there were, until all have come: the announcement may overtake the last of them.
    fn stop(&mut self) -> Result<(), Error> {
        let told = Rc::new(Cell::new(Some(false)));
        let heard = told.clone();
        self.bundle.on(self.here, STOPPED, move |m| heard.set(Some(m.args() == [1])))?;
        let all = [self.sent as u32, (self.sent >> 32) as u32];
        while told.get() == Some(false) {
            told.set(None);
            while !taken(self.bundle.try_request(self.here, 0, STOP, &all, &[]))? {
                self.turn()?;
            }
            while told.get().is_none() {
                self.turn()?;
            }
        }
        Ok(())
    }
}

/// Whether a request was accepted. False if there was no room.
#[inline(always)]
fn taken(asked: Result<(), SendError>) -> Result<bool, Error> {
    match asked {
        Ok(()) => Ok(true),
        Err(SendError::Full) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn rewind(source: &Source, message: Message, half: Half) {
    if message.size > 0 {
        source.rewind(message.size, half);
    }
}
