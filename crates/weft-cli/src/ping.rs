//! `weft ping`: how long an endpoint takes to answer, and why it does not.

use crate::bench::meter::median;
use crate::bench::table::ns;
use crate::contact::Target;
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::output::{note_line, print_line};
use crate::serve::{answer, ask};
use crate::tell::print_json;
use serde::Serialize;
use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};
use weft::names::Contact;
use weft::{Admission, Bundle, Endpoint, Event, Node, SendError};

/// Text after the options in `--help`.
const HELP: &str = "\
Only `weft serve` answers. With HOST:PORT the name and key are first asked for by TCP, at the port of `weft serve`; HOST:PORT/LABEL asks for \
another name there. The first round trip sets the session up \
and takes longer than the others. The exit status is 0 if anything was answered.";

/// The arguments of `weft ping`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = HELP)]
pub struct Options {
    /// The endpoint's name and key, as `weft serve` prints them, or the host and the port where it runs.
    #[arg(value_name = "NAME#KEY|HOST:PORT")]
    to: Target,
    /// How many requests to send (until Ctrl-C).
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    count: Option<u32>,
    /// Seconds between two requests.
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    interval: Duration,
    /// Seconds to wait for an answer.
    #[arg(short = 'W', long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    timeout: Duration,
    /// Prints one JSON document at the end and nothing else.
    #[arg(long)]
    json: bool,
}

/// The outcome of one request.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum Outcome {
    /// Answered, after this many nanoseconds.
    Ns(f64),
    /// It came back, for this reason.
    Returned(String),
    /// No answer came in time.
    Silent,
}

#[derive(Serialize)]
struct Document<'a> {
    name: String,
    sent: usize,
    answered: usize,
    /// Missing if nothing was answered.
    #[serde(flatten)]
    times: Option<Times>,
    requests: &'a [Outcome],
}

/// Sends requests and reports their outcomes.
pub fn run(options: &Options) -> Result<(), Error> {
    let interrupt = Interrupt::watch(|| {})?;
    let to = options.to.find(options.timeout)?;
    let mut pinger = Pinger::new(to, options.timeout, interrupt)?;
    let mut outcomes = Vec::new();
    while options.count.is_none_or(|count| outcomes.len() < count as usize) {
        let start = Instant::now();
        let Some(outcome) = pinger.ping()? else {
            // One request is still under way.
            outcomes.push(Outcome::Silent);
            break;
        };
        if !options.json {
            print_line(format!("{}: {}", outcomes.len() + 1, outcome.in_words(options.timeout)))?;
        }
        outcomes.push(outcome);
        let is_last = options.count.is_some_and(|count| outcomes.len() >= count as usize);
        let rest = options.interval.saturating_sub(start.elapsed());
        if is_last || !pinger.idle_for(rest) {
            break;
        }
    }
    tell(options, to, &outcomes)
}

/// An endpoint that sends pings.
struct Pinger {
    bundle: Bundle,
    endpoint: Endpoint,
    /// The number of the last answered request.
    answered: Rc<Cell<u32>>,
    sent: u32,
    timeout: Duration,
    interrupt: Interrupt,
}

impl Pinger {
    fn new(to: Contact, timeout: Duration, interrupt: Interrupt) -> Result<Pinger, Error> {
        let mut bundle = Bundle::new(&Node::new()?)?;
        let endpoint = bundle.endpoint_with_random_key()?;
        // Admit answers from another user's server. The server needs our key, and nobody else is told it.
        bundle.set_admission(endpoint, Admission::AnyUser)?;
        bundle.map(endpoint, 0, to.name, to.key)?;
        let answered = Rc::new(Cell::new(0));
        let seen = answered.clone();
        bundle.on(endpoint, answer::PONG, move |m| {
            if let [number, ..] = *m.args() {
                seen.set(number);
            }
        })?;
        interrupt.ends_waits_of(bundle.waker());
        Ok(Pinger { bundle, endpoint, answered, sent: 0, timeout, interrupt })
    }

    /// Sends one request and waits for its outcome. `None` if the user asks the command to end meanwhile.
    fn ping(&mut self) -> Result<Option<Outcome>, Error> {
        self.sent = self.sent.wrapping_add(1);
        let start = Instant::now();
        let mut is_sent = false;
        loop {
            if !is_sent {
                match self.bundle.try_request(self.endpoint, 0, ask::PING, &[self.sent], &[]) {
                    Ok(()) => is_sent = true,
                    Err(SendError::Full) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            if is_sent && self.answered.get() == self.sent {
                return Ok(Some(Outcome::Ns(start.elapsed().as_nanos() as f64)));
            }
            if let Some(why) = self.returned() {
                return Ok(Some(Outcome::Returned(why)));
            }
            if self.interrupt.came() {
                return Ok(None);
            }
            let left = self.timeout.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Ok(Some(Outcome::Silent));
            }
            self.bundle.wait(Some(left));
        }
    }

    /// Why the request came back, if it did.
    fn returned(&mut self) -> Option<String> {
        while let Some(event) = self.bundle.next_event() {
            match event {
                // A late return is of an earlier request, which was given up.
                Event::Returned(m) if m.args == [self.sent] => return Some(format!("{} ({})", m.reason, m.certainty)),
                Event::Returned(_)
                | Event::PeerLost { .. }
                | Event::Completed(_)
                | Event::CanSend { .. }
                | Event::ReplyRefused { .. } => {}
            }
        }
        None
    }

    /// Waits for this time. Returns whether to go on.
    fn idle_for(&mut self, time: Duration) -> bool {
        let end = Instant::now() + time;
        while !self.interrupt.came() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            self.bundle.wait(Some(left));
            // Each event ends one wait; late returns were given up.
            while self.bundle.next_event().is_some() {}
        }
        false
    }
}

impl Outcome {
    fn in_words(&self, timeout: Duration) -> String {
        match self {
            Outcome::Ns(time) => ns(*time),
            Outcome::Returned(why) => format!("came back: {why}"),
            Outcome::Silent => format!("no answer within {} s", timeout.as_secs_f64()),
        }
    }
}

/// The round trips of the answered requests, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
struct Times {
    min_ns: f64,
    median_ns: f64,
    p99_ns: f64,
}

impl Times {
    /// `None` if nothing was answered.
    fn of(outcomes: &[Outcome]) -> Option<Times> {
        let ns = |outcome: &Outcome| if let Outcome::Ns(ns) = outcome { Some(*ns) } else { None };
        let mut times: Vec<f64> = outcomes.iter().filter_map(ns).collect();
        times.sort_by(f64::total_cmp);
        // The 99th percentile: the smallest time that 99 in a hundred do not exceed.
        let p99 = (99 * times.len()).div_ceil(100).checked_sub(1)?;
        Some(Times { min_ns: times[0], median_ns: median(times.iter().copied())?, p99_ns: times[p99] })
    }
}

fn tell(options: &Options, to: Contact, outcomes: &[Outcome]) -> Result<(), Error> {
    let sent = outcomes.len();
    let answered = outcomes.iter().filter(|outcome| matches!(outcome, Outcome::Ns(_))).count();
    let times = Times::of(outcomes);
    if options.json {
        let name = to.name.to_string();
        print_json(&Document { name, sent, answered, times, requests: outcomes })?;
    } else if let Some(Times { min_ns, median_ns, p99_ns }) = times {
        print_line(format!(
            "{answered} of {sent} answered: at least {}, median {}, p99 {}",
            ns(min_ns),
            ns(median_ns),
            ns(p99_ns)
        ))?;
    }
    if let Some(doubt) = options.to.doubt(&to.name).filter(|_| answered == 0) {
        note_line(format!("weft ping: {doubt}"));
    }
    let way_out = match outcomes.iter().any(|outcome| matches!(outcome, Outcome::Returned(_))) {
        true => "The reasons are printed above, with what helps",
        false => "Only `weft serve` answers pings. `weft explain` with the same name shows what is there, and whether it is stopped",
    };
    match answered {
        0 => Err(Error::Unanswered { sent, way_out }),
        _ => Ok(()),
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().map_err(|_| "give a number of seconds".to_owned())?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(time) if time <= Duration::from_secs(86_400) => Ok(time),
        _ => Err("give a number of seconds from 0 to 86400".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_few_answers_the_slowest_is_the_tail() {
        let outcomes = [Outcome::Ns(3.0), Outcome::Silent, Outcome::Ns(1.0)];
        assert_eq!(Times::of(&outcomes), Some(Times { min_ns: 1.0, median_ns: 2.0, p99_ns: 3.0 }));
        assert_eq!(Times::of(&[Outcome::Silent]), None);
        let many: Vec<Outcome> = (1..=200).map(|ns| Outcome::Ns(f64::from(ns))).collect();
        assert_eq!(Times::of(&many).map(|times| times.p99_ns), Some(198.0));
    }
}
