//! A put into the memory of another process, whose program sleeps meanwhile; then the time that puts and gets take.

use super::owner::{Owner, AT, KEY};
use crate::bench::meter::{Meter, Per, Sampled};
use crate::bench::report::{times_by_size, Curve, Section, Shape, Side, Sketch, Who};
use crate::bench::table::{bytes, ns};
use crate::error::Error;
use crate::output::print_line;
use std::time::{Duration, Instant};
use weft::memory::{Completion, Outcome, Place, PostError, Settings, Source, Target, Write};
use weft::names::Contact;
use weft::{Bundle, Endpoint, Node};

/// The sizes of the timed puts and gets, and their offset: apart from the first put, whose text must stay.
const SIZES: [usize; 5] = [8, 64, 1024, 8192, 65536];
const TIMED_AT: u64 = 128 << 10;

/// The size whose times are printed.
const TOLD: usize = 64;

/// How long each size is timed.
const TIME: Duration = Duration::from_millis(40);

/// How long to wait until the region is mapped here, if that is possible.
const MAPPED_MOST: Duration = Duration::from_millis(200);

/// How long an operation may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// Polls between two reads of the clock.
const LOOK_EVERY: u32 = 1 << 12;

/// The times of a put and a get of one size.
struct Cost {
    size: usize,
    put: Sampled,
    get: Sampled,
}

/// The results.
struct Seen {
    /// The text that was put.
    text: String,
    /// The owner's process.
    owner: u32,
    /// How often the kernel ran the owner's program meanwhile, if the kernel tells this.
    runs: Option<u64>,
    /// Whether this process's own loads and stores carried the operations out.
    is_direct: bool,
    costs: Vec<Cost>,
}

/// Shows this part.
pub fn run() -> Result<Vec<Section>, Error> {
    print_line("\nA put: this process writes into the memory of another one, whose program sleeps.")?;
    let mut owner = Owner::start()?;
    let mut here = Initiator::new(owner.contact)?;
    let text = format!("put there by process {}", std::process::id());
    let before = owner.sleeps();
    here.have_it_mapped()?;
    let direct_before = here.direct()?;
    here.put(AT, text.clone().into_bytes())?;
    let is_direct = here.direct()? > direct_before;
    let costs = here.time()?;
    let runs = before.zip(owner.runs()).map(|(before, after)| after.saturating_sub(before));
    let found = owner.wake()?;
    if found != text {
        return Err(Error::Mismatch {
            what: "the text that was put and the text that the owner found".to_owned(),
            left: text,
            right: found,
        });
    }
    let seen = Seen { text, owner: owner.process(), runs, is_direct, costs };
    seen.tell()?;
    seen.draw()
}

/// The side that puts and gets.
struct Initiator {
    bundle: Bundle,
    me: Endpoint,
}

impl Initiator {
    fn new(owner: Contact) -> Result<Initiator, Error> {
        let mut bundle = Bundle::new(&Node::new()?)?;
        let me = bundle.memory_endpoint_with_random_key(Settings::default())?;
        bundle.map(me, 0, owner.name, owner.key)?;
        Ok(Initiator { bundle, me })
    }

    /// Puts bytes into the owner's region. Returns the buffer when the put is complete.
    fn put(&mut self, at: u64, mut bytes: Vec<u8>) -> Result<Vec<u8>, Error> {
        loop {
            match self.bundle.memory(self.me)?.try_write(0, Write::to(Place::new(KEY, at)), bytes, 0) {
                Ok(()) => return Ok(self.end()?.source.unwrap_or_default()),
                Err((PostError::Full, Source::Owned(back))) => bytes = back,
                Err((error, _)) => return Err(lost(format!("it could not be posted: {error}"))),
            }
            self.bundle.poll();
        }
    }

    /// Fills a buffer from the owner's region, and returns it.
    fn get(&mut self, at: u64, mut to: Vec<u8>) -> Result<Vec<u8>, Error> {
        loop {
            match self.bundle.memory(self.me)?.try_read(0, Place::new(KEY, at), to, 0) {
                Ok(()) => return Ok(self.end()?.target.unwrap_or_default()),
                Err((PostError::Full, Target::Owned(back))) => to = back,
                Err((error, _)) => return Err(lost(format!("it could not be posted: {error}"))),
            }
            self.bundle.poll();
        }
    }

    /// Waits for the completion of the operation under way. There is only one at a time.
    fn end(&mut self) -> Result<Completion, Error> {
        let (mut since, mut turns) = (None, 0u32);
        let mut source = None;
        loop {
            if let Some(end) = self.bundle.memory(self.me)?.next_completion() {
                match end.outcome {
                    Outcome::Done => return Ok(Completion { source: end.source.or(source), ..end }),
                    Outcome::Free => source = end.source,
                    Outcome::Failed { reason, certainty } => return Err(lost(format!("{certainty}: {reason}"))),
                }
                continue;
            }
            self.bundle.poll();
            turns = turns.wrapping_add(1);
            if turns % LOOK_EVERY == 0 && since.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                let what = "no completion of a put or a get".to_owned();
                return Err(Error::Silence { seconds: PATIENCE.as_secs(), what });
            }
        }
    }

    /// Puts again and again until the region is mapped here, if that is possible: weft maps a region that is used more than once.
    fn have_it_mapped(&mut self) -> Result<(), Error> {
        let since = Instant::now();
        while self.direct()? == 0 && since.elapsed() < MAPPED_MOST {
            self.put(TIMED_AT, vec![0; 8])?;
        }
        Ok(())
    }

    /// The number of operations that this process carried out by its own loads and stores.
    fn direct(&mut self) -> Result<u64, Error> {
        Ok(self.bundle.memory(self.me)?.counters().direct)
    }

    /// Times puts and gets, one at a time, each from the call until its completion.
    fn time(&mut self) -> Result<Vec<Cost>, Error> {
        let one = |&size: &usize| {
            let put = timed(vec![1; size], |bytes| self.put(TIMED_AT, bytes))?;
            let get = timed(vec![0; size], |bytes| self.get(TIMED_AT, bytes))?;
            Ok(Cost { size, put, get })
        };
        SIZES.iter().map(one).collect()
    }
}

/// Times an operation that is repeated with the same buffer.
fn timed(mut bytes: Vec<u8>, mut once: impl FnMut(Vec<u8>) -> Result<Vec<u8>, Error>) -> Result<Sampled, Error> {
    const BATCH: u32 = 16;
    let mut meter = Meter::start(Per::Unit, TIME);
    loop {
        for _ in 0..BATCH {
            bytes = once(bytes)?;
        }
        if !meter.tick(f64::from(BATCH)) {
            return Ok(meter.finish());
        }
    }
}

fn lost(cause: String) -> Error {
    let way_out = "Run it again; if it fails again, report this line";
    Error::Process { who: "a put into the memory of another process".to_owned(), cause, way_out }
}

impl Seen {
    fn tell(&self) -> Result<(), Error> {
        let Seen { text, owner, .. } = self;
        print_line(format!("  put: \"{text}\", at byte {AT} of a region of process {owner}"))?;
        print_line(format!("  process {owner} finds \"{text}\" in its own memory"))?;
        print_line(format!("  meanwhile {}; {}", self.sleep(), self.way()))?;
        let cost = self.costs.iter().find(|cost| cost.size == TOLD);
        cost.map_or(Ok(()), |cost| {
            let [put, get] = [&cost.put, &cost.get].map(|sampled| ns(sampled.median));
            print_line(format!("  a put of {TOLD} B takes {put}, a get of {TOLD} B {get}"))
        })
    }

    /// A sentence about the owner's program.
    fn sleep(&self) -> String {
        match self.runs {
            Some(0) => "its program slept: the kernel did not run it once".to_owned(),
            Some(runs) => format!("its program waited for a line of input: the kernel ran it {runs} times"),
            None => "its program waited for a line of input".to_owned(),
        }
    }

    /// A sentence about who carried the operations out.
    fn way(&self) -> &'static str {
        match self.is_direct {
            true => "this process puts and gets by its own stores and loads",
            false => "a thread of weft in that process carries puts and gets out",
        }
    }

    fn draw(&self) -> Result<Vec<Section>, Error> {
        let cost = |cost: &Cost| {
            let Cost { size, put, get } = cost;
            vec![bytes(*size), ns(put.median), ns(put.p99), ns(get.median), ns(get.p99), (put.n + get.n).to_string()]
        };
        let curve = |who, name: &str, of: fn(&Cost) -> f64| {
            let points = self.costs.iter().map(|cost| (cost.size, of(cost)));
            Curve { who, name: name.to_owned(), points: points.filter(|(_, value)| *value > 0.0).collect() }
        };
        let curves =
            [curve(Who::WEFT, "put", |cost| cost.put.median), curve(Who::Another, "get", |cost| cost.get.median)];
        let title = "What a put and a get take";
        Ok(vec![
            Section {
                title: "A put into the memory of another process",
                words: format!("During the put and the measurement below, {}. Here, {}.", self.sleep(), self.way()),
                picture: self.sketch().draw()?,
                heads: Vec::new(),
                rows: Vec::new(),
            },
            Section {
                title,
                words: "Lower is better. Puts and gets run one at a time, each timed from the call until its completion. The curves show medians.".to_owned(),
                picture: times_by_size(title, &curves)?,
                heads: vec!["size", "put", "put, p99", "get", "get, p99", "n"],
                rows: self.costs.iter().map(cost).collect(),
            },
        ])
    }

    /// Draws the two processes, and the text that was put.
    fn sketch(&self) -> Sketch {
        let mut sketch = Sketch::new("A put into the memory of another process", (820, 190));
        sketch.frame((10, 30), (240, 160), Who::WEFT);
        sketch.say((125, 80), Side::Middle, format!("process {}", std::process::id()));
        sketch.say((125, 104), Side::Middle, "calls try_write");
        sketch.shapes.push(Shape::Arrow { from: (240, 95), to: (500, 95) });
        sketch.say((370, 78), Side::Middle, format!("put: {} bytes", self.text.len()));
        sketch.frame((480, 10), (810, 180), Who::WEFT);
        sketch.say((645, 30), Side::Middle, format!("process {}", self.owner));
        sketch.say((645, 60), Side::Middle, format!("its region, byte {AT}:"));
        sketch.frame((500, 78), (790, 112), Who::Another);
        sketch.say((645, 95), Side::Middle, &*self.text);
        let runs = self.runs.map_or_else(String::new, |runs| format!(", run {runs} times"));
        sketch.say((645, 148), Side::Middle, format!("its program: asleep{runs}"));
        sketch
    }
}
