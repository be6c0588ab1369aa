//! `weft trace --stages`: where the time of requests and their answers goes. The processes stamp them while somebody traces.

use super::join::{Joiner, Lost, Pair, Trip};
use super::table::{Ends, Line, Seen};
use super::Options;
use crate::bench::table::ns;
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::output::{note_line, print};
use crate::status::title;
use crate::top::looker::Looker;
use rustix::termios::tcgetwinsize;
use rustix::time::{clock_gettime, ClockId};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};
use weft::status::{trace, Found, Look, Path};

/// Time between two looks: short enough that few stamps are lost, and that processes go on stamping.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// The same after [`QUIET_LOOKS`] looks without stamps. Processes go on stamping for 2 s after a look.
const LOOK_SELDOM: Duration = Duration::from_secs(1);
const QUIET_LOOKS: u32 = 40;

/// Pairs whose names are cached; beyond that they are looked up again.
const ENDS_MOST: usize = 1024;

/// Readings of the clock per trip.
const STAMPS: f64 = 7.0;

/// Prints until the count or the time is reached, or Ctrl-C.
pub fn run(options: &Options) -> Result<(), Error> {
    let interrupt = Interrupt::watch(|| ())?;
    let mut looker = Looker::start(trace)?;
    let mut tracer = Tracer::new(options);
    let end = options.end();
    let mut next = Some(Instant::now());
    while !interrupt.came() && end.is_none_or(|end| Instant::now() < end) {
        if next.is_some_and(|at| at <= Instant::now()) {
            looker.ask();
            next = None;
        }
        interrupt.wait(&[looker.bell()], next.into_iter().chain(end).min());
        let Some((asked_at, look)) = looker.take() else { continue };
        if !tracer.take(&look?)? {
            break;
        }
        next = Some(asked_at + if tracer.quiet < QUIET_LOOKS { LOOK_EVERY } else { LOOK_SELDOM });
    }
    tracer.finish()
}

struct Tracer<'a> {
    options: &'a Options,
    is_live: bool,
    /// Lines of the last drawing.
    drawn: usize,
    joiner: Joiner,
    seen: Seen,
    ends: BTreeMap<Pair, Ends>,
    told: u64,
    /// Looks in a row without a request.
    quiet: u32,
    /// Nodes without stamps, for which the reason was printed once.
    silent: BTreeSet<String>,
    /// Pairs of processes with different clocks, which were printed once.
    two_clocks: BTreeSet<(String, String)>,
    /// Requests of all processes that ended without a reply, at the first and the last look.
    unreplied: Option<[u64; 2]>,
    is_begun: bool,
}

/// The last line of JSON.
#[derive(Serialize)]
struct Last {
    kind: &'static str,
    requests: u64,
    one_sided: u64,
    odd: u64,
    missed: u64,
    clock_ns: f64,
}

impl<'a> Tracer<'a> {
    fn new(options: &'a Options) -> Tracer<'a> {
        Tracer {
            options,
            is_live: !options.json && io::stdout().is_terminal(),
            drawn: 0,
            joiner: Joiner::default(),
            seen: Seen::default(),
            ends: BTreeMap::new(),
            told: 0,
            quiet: 0,
            silent: BTreeSet::new(),
            two_clocks: BTreeSet::new(),
            unreplied: None,
            is_begun: false,
        }
    }

    /// Takes a look. Returns whether more are wanted.
    fn take(&mut self, look: &Look) -> Result<bool, Error> {
        self.begin(look)?;
        self.complain(look)?;
        let unreplied = unreplied(look);
        self.unreplied = Some([self.unreplied.map_or(unreplied, |[first, _]| first), unreplied]);
        let mut lines = String::new();
        let trips = self.joiner.take(look);
        self.quiet = if trips.is_empty() { self.quiet.saturating_add(1) } else { 0 };
        for trip in trips {
            let Some(ends) = self.ends_of(&trip, look) else { continue };
            self.compare_clocks(&trip, &ends)?;
            if self.options.json {
                lines += &json(&Line::new(&trip, &ends))?;
            }
            self.seen.take(trip, &ends);
            self.told += 1;
            if self.options.count.is_some_and(|count| self.told >= count) {
                print(lines)?;
                return Ok(false);
            }
        }
        print(lines)?;
        self.draw()?;
        Ok(true)
    }

    /// Prints the first lines, at the first look.
    fn begin(&mut self, look: &Look) -> Result<(), Error> {
        if std::mem::replace(&mut self.is_begun, true) {
            return Ok(());
        }
        let asked = look.processes.iter().filter(|found| found.answer.is_ok()).count();
        self.options.check(look)?;
        let they = if asked == 1 { "process stamps" } else { "processes stamp" };
        note_line(format!("weft trace: {asked} {they} requests now; Ctrl-C ends it"));
        Ok(())
    }

    /// Prints why a process gives no stamps.
    fn complain(&mut self, look: &Look) -> Result<(), Error> {
        self.silent.retain(|epoch| look.processes.iter().any(|found| found.epoch == *epoch));
        for found in &look.processes {
            let why = match &found.answer {
                Err(silence) => silence.to_string(),
                // A process that computes may not have noticed the tracer yet; one that polls has.
                Ok(process)
                    if process.bundles.iter().any(|bundle| bundle.is_stamping) || process.bundles.is_empty() =>
                {
                    continue
                }
                Ok(_) => "an earlier weft, which stamps nothing; use the same weft everywhere".to_owned(),
            };
            if self.silent.insert(found.epoch.clone()) {
                self.note(&format!("weft trace: nothing of {}: {why}", title(found)))?;
            }
        }
        Ok(())
    }

    /// Prints, once, that two processes have different clocks.
    fn compare_clocks(&mut self, trip: &Trip, ends: &Ends) -> Result<(), Error> {
        if self.two_clocks.len() >= ENDS_MOST {
            self.two_clocks.clear();
        }
        if self.joiner.has_two_clocks(trip.pair) && self.two_clocks.insert((ends.from.clone(), ends.to.clone())) {
            self.note(&format!(
                "weft trace: {} and {} are in different time namespaces, so their clocks cannot be compared: what happens at the second \
                 is shown as one stage, `away`. For all stages, run both in one time namespace (`nsenter --time --target PID COMMAND`)",
                ends.from, ends.to
            ))?;
        }
        Ok(())
    }

    /// Writes a line to standard error. It first removes the drawing, whose place would change; the next look draws it again.
    fn note(&mut self, line: &str) -> Result<(), Error> {
        print(self.up())?;
        note_line(line);
        Ok(())
    }

    /// The names of the two endpoints. `None` if another process was asked for.
    fn ends_of(&mut self, trip: &Trip, look: &Look) -> Option<Ends> {
        if let Some(ends) = self.ends.get(&trip.pair) {
            return Some(ends.clone());
        }
        let digits = [trip.pair.from.0, trip.pair.to.0].map(|epoch| format!("{:016x}", epoch.0));
        let found = digits.each_ref().map(|epoch| look.processes.iter().find(|found| found.epoch == *epoch));
        let is_wanted = |pid: u32| found.iter().flatten().any(|found| found.pid == Some(pid));
        if !self.options.pid.is_none_or(is_wanted) {
            return None;
        }
        let [from, to] = [0, 1].map(|at| match found[at] {
            Some(found) => title(found),
            None => format!("{} (not seen here)", digits[at]),
        });
        let ends = Ends { from, to, path: path(found[0], &digits[1]) };
        if self.ends.len() >= ENDS_MOST {
            self.ends.clear();
        }
        self.ends.insert(trip.pair, ends.clone());
        Some(ends)
    }

    /// On a terminal, replaces the last drawing of the figures.
    fn draw(&mut self) -> Result<(), Error> {
        if !self.is_live {
            return Ok(());
        }
        let size = tcgetwinsize(io::stdout()).ok();
        let (rows, columns) = size.map_or((24, 80), |size| (size.ws_row.into(), size.ws_col.into()));
        // One line less than the terminal has: the cursor is in the last one.
        let lines: Vec<String> =
            self.text().lines().take(usize::saturating_sub(rows, 1)).map(|l| cut(l, columns)).collect();
        let mut text = self.up();
        lines.iter().for_each(|line| _ = writeln!(text, "{line}"));
        self.drawn = lines.len();
        print(text)
    }

    /// Moves the cursor to the beginning of the last drawing and clears it. The terminal may have echoed a key at the cursor.
    fn up(&mut self) -> String {
        match std::mem::take(&mut self.drawn) {
            0 => String::new(),
            lines => format!("\r\x1b[{lines}A\x1b[J"),
        }
    }

    fn text(&self) -> String {
        let mut text = String::new();
        let figures = self.seen.figures();
        figures.iter().for_each(|figures| _ = writeln!(text, "{}", figures.text()));
        if figures.iter().any(|figures| figures.is_half()) {
            text.push_str(
                "stages of a process that is not seen here are unknown: it is on another host, of another user, without a helper, or in another \
                 time namespace\n",
            );
        }
        if figures.is_empty() {
            text.push_str("no request has been traced yet\n");
        } else {
            let clock = clock_ns();
            let _ = writeln!(
                text,
                "reading the clock takes {}, seven times per round trip: {}",
                ns(clock),
                ns(STAMPS * clock)
            );
        }
        if figures.iter().any(|figures| figures.path() == BY_DAEMON) {
            text.push_str("weftd stamps nothing: its work is in stages 2 and 5 of requests through it\n");
        }
        text.push_str(&lost(&self.joiner.lost));
        if self.seen.left_out > 0 {
            let _ = writeln!(text, "{} requests of further pairs of endpoints", self.seen.left_out);
        }
        text
    }

    /// Prints the figures at the end.
    fn finish(mut self) -> Result<(), Error> {
        let text = if self.options.json {
            let mut lines = String::new();
            for figures in self.seen.figures() {
                lines += &json(&figures)?;
            }
            let Lost { one_sided, odd, missed } = self.joiner.lost;
            lines += &json(&Last { kind: "end", requests: self.told, one_sided, odd, missed, clock_ns: clock_ns() })?;
            lines
        } else {
            self.up() + &self.text()
        };
        if self.seen.is_empty() {
            let unreplied = self.unreplied.map_or(0, |[first, last]| last.saturating_sub(first));
            note_line(format!("weft trace: {}", why_none(self.joiner.lost.missed, unreplied)));
        }
        print(text)
    }
}

/// The path of requests that go through the daemon.
const BY_DAEMON: &str = "weftd";

/// How many requests have ended so far without a reply from their handlers.
fn unreplied(look: &Look) -> u64 {
    let bundles =
        look.processes.iter().filter_map(|found| found.answer.as_ref().ok()).flat_map(|process| &process.bundles);
    bundles.map(|bundle| bundle.counters.ended).sum()
}

/// The path from the requester to the replier.
fn path(asker: Option<&Found>, answerer: &str) -> &'static str {
    let bundles = asker.and_then(|found| found.answer.as_ref().ok()).into_iter().flat_map(|process| &process.bundles);
    match bundles.flat_map(|bundle| &bundle.peers).find(|peer| peer.epoch == answerer).map(|peer| peer.path) {
        Some(Path::Memory) => "memory",
        Some(Path::Network) => "UDP",
        Some(Path::Daemon) => BY_DAEMON,
        None => "gone",
    }
}

/// Why there are no figures, if so many requests were forgotten before they were read, and so many ended without a reply.
fn why_none(missed: u64, unreplied: u64) -> String {
    match (missed, unreplied) {
        (0, 0) => "no request was answered meanwhile. Only requests between polling processes that `weft status` shows are traced; \
                   one-way and tagged messages are not stamped"
            .to_owned(),
        (0, n) => format!(
            "{n} requests ended meanwhile without a reply of their handlers, and none with one. Only requests that a handler replies \
             to have stages: let it call `reply`"
        ),
        (n, _) => format!(
            "{n} requests were answered meanwhile, but their process ended before their times were read, ten times a second. Let it \
             run for a second or longer"
        ),
    }
}

fn lost(lost: &Lost) -> String {
    let Lost { one_sided, odd, missed } = *lost;
    let mut text = String::new();
    let mut say = |count: u64, what: &str| {
        if count > 0 {
            let _ = writeln!(text, "left out: {count} {what}");
        }
    };
    say(one_sided, "that only one of the two stamped: its window was open when the other's was not");
    say(odd, "with impossible stamps");
    say(missed, "stamped, but forgotten before they were read");
    text
}

fn json(value: &impl Serialize) -> Result<String, Error> {
    let text = serde_json::to_string(value).map_err(|e| Error::system("write JSON", e, "Report this"))?;
    Ok(text + "\n")
}

/// As much of a line as fits into the columns.
fn cut(line: &str, columns: usize) -> String {
    line.chars().take(columns).collect()
}

/// How long it takes to read the clock here.
fn clock_ns() -> f64 {
    const LOOKS: u32 = 1000;
    let begin = Instant::now();
    for _ in 0..LOOKS {
        std::hint::black_box(clock_gettime(ClockId::Monotonic));
    }
    begin.elapsed().as_nanos() as f64 / f64::from(LOOKS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn why_nothing_was_traced_is_told_apart() {
        let told = [why_none(0, 0), why_none(0, 2), why_none(3, 0), why_none(3, 2)];
        let said =
            ["no request was answered", "2 requests ended meanwhile", "3 requests were answered", "3 requests were"];
        assert!(told.iter().zip(said).all(|(told, said)| told.starts_with(said)), "{told:?}");
    }
}
