//! Runs the plan round after round: each measurement for a moment, with weftd and without one after the other.

use super::plan::{hot, Beside, Probe, Way, What, SMALL};
use super::scene::{Crowded, Scene};
use super::service::{look, Look};
use super::writer::WriteJob;
use crate::bench::contention::Seen;
use crate::bench::meter::Sampled;
use crate::bench::peer::ask;
use crate::bench::results::{Results, Run};
use crate::bench::runner::{in_round, waiting_way};
use crate::bench::talk::{Contact, Job, Waiting};
use crate::bench::weft_side::{Bench, Landing};
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::progress::Progress;
use serde::Serialize;
use std::time::Duration;
use weft::Bundle;

/// Frames, endpoints that take turns on them, and writes per second of all these endpoints.
pub const FRAMES: u32 = 8;
pub const WRITERS: u32 = 64;
pub const WRITES_PER_SECOND: u32 = 300;

/// How long the writing program may take to end.
const END_MOST: Duration = Duration::from_secs(20);

/// The rounds of a measurement, with its progress bar and interrupt.
#[derive(Clone, Copy, Debug)]
pub struct Rounds<'a> {
    pub rounds: u32,
    pub interrupt: &'a Interrupt,
    pub progress: &'a Progress,
}

/// The counts of the writing program in one round.
#[derive(Clone, Debug, Serialize)]
pub struct Written {
    pub round: u32,
    /// How the hot programs waited during the round.
    pub way: &'static str,
    pub remappings_per_second: f64,
    /// In the whole run; each was answered once and in order.
    pub requests: u64,
    pub answers: u64,
    pub out_of_order: u64,
    pub returned: u64,
}

impl Rounds<'_> {
    /// Measures two programs, with weftd and without.
    pub fn of_pair(self, place: &str, scene: &mut Scene, probes: &[Probe]) -> Result<Results, Error> {
        let mut results = Results::default();
        self.run(
            probes,
            |&(what, _)| format!("{place}: {}", what.title()),
            |&(what, way), round| {
                let bench = match way {
                    Way::Without => &mut scene.without,
                    Way::Through => &mut scene.through,
                };
                let sampled = match what {
                    What::RoundTrip(size, waiting) => bench.round_trip_waiting(size, waiting)?,
                    What::Rate(size) => bench.rate(size)?,
                    What::Stream(size) => bench.bandwidth(size, Landing::InPlace)?,
                };
                results.add(what.key(way), Run { round, sampled, detail: None });
                Ok(())
            },
        )?;
        Ok(results)
    }

    /// Measures a hot endpoint, during remappings and without. Adds the results to those of pairs.
    pub fn of_hot(self, crowded: &mut Crowded, results: &mut Results) -> Result<Vec<Written>, Error> {
        let mut all = Vec::new();
        self.run(
            &hot(),
            |&(waiting, _)| format!("remappings: {}", waiting_way(waiting).1),
            |&(waiting, beside), round| {
                let sampled = match beside {
                    Beside::Quiet => crowded.hot.round_trip_waiting(SMALL, waiting)?,
                    Beside::Remappings => {
                        let (sampled, written) = crowded.beside_writes(waiting, round)?;
                        all.push(written);
                        sampled
                    }
                };
                results.add(beside.key(waiting), Run { round, sampled, detail: None });
                Ok(())
            },
        )?;
        Ok(all)
    }

    fn run<P>(
        self,
        probes: &[P],
        title: impl Fn(&P) -> String,
        mut one: impl FnMut(&P, u32) -> Result<(), Error>,
    ) -> Result<(), Error> {
        for round in 0..self.rounds {
            for probe in in_round(probes, round) {
                self.interrupt.check()?;
                self.progress.say(format!("round {}: {}", round + 1, title(probe)));
                one(probe, round)?;
                self.progress.one_more();
            }
        }
        Ok(())
    }
}

impl Crowded {
    /// The round trip of the hot endpoint while the other program writes.
    fn beside_writes(&mut self, waiting: Waiting, round: u32) -> Result<(Sampled, Written), Error> {
        let job = WriteJob { endpoints: WRITERS, per_second: WRITES_PER_SECOND };
        let contacts = self.writer.give(&Job::Write(job))?;
        let before = look()?;
        let sampled = self.hot.round_trip_waiting(SMALL, waiting)?;
        let after = look()?;
        let _stopping = contacts.first().map(|contact| stop(&self.hot, contact)).transpose()?;
        let Some(seen) = self.writer.contended(END_MOST)? else {
            let what = "the end of the program that writes".to_owned();
            return Err(Error::Silence { seconds: END_MOST.as_secs(), what });
        };
        judge(&seen, &after).map_err(|cause| Error::Process {
            who: "the measurement beside remappings".to_owned(),
            cause,
            way_out: "This is a fault of weft: please report it with this line",
        })?;
        let seconds = after.at.saturating_duration_since(before.at).as_secs_f64();
        let remappings_per_second =
            after.remapped.saturating_sub(before.remapped) as f64 / seconds.max(f64::MIN_POSITIVE);
        let Seen { sent: requests, came: answers, strange: out_of_order, returned, .. } = seen;
        let way = waiting_way(waiting).0.name();
        Ok((sampled, Written { round, way, remappings_per_second, requests, answers, out_of_order, returned }))
    }
}

/// Tells the writing program to end. The caller must keep the returned bundle until it has ended.
fn stop(hot: &Bench, to: &Contact) -> Result<Bundle, Error> {
    let mut bundle = Bundle::new(&hot.node)?;
    let endpoint = bundle.endpoint_with_random_key()?;
    let (name, key) = to.read()?;
    bundle.map(endpoint, 0, name, key)?;
    bundle.send(endpoint, 0, ask::STOP, &[], &[])?;
    bundle.flush();
    Ok(bundle)
}

/// Checks the counts. The error is the first promise that was broken.
fn judge(seen: &Seen, look: &Look) -> Result<(), String> {
    let Seen { sent, came, strange, returned, why, .. } = seen;
    let why = why.as_ref().map_or_else(String::new, |why| format!("; of the first one: {why}"));
    let faults = [
        (*returned > 0, format!("{returned} messages came back or were refused{why}")),
        (sent != came, format!("{sent} requests have {came} answers")),
        (*strange > 0, format!("{strange} messages came out of order, twice, not at all, or with other contents")),
        (look.violations > 0, format!("the daemon cut {} programs off", look.violations)),
        (
            look.frames_used > u64::from(FRAMES),
            format!("{} frames were in use, and there are {FRAMES}", look.frames_used),
        ),
    ];
    faults.into_iter().find(|(is_so, _)| *is_so).map_or(Ok(()), |(_, cause)| Err(cause))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn each_promise_that_is_broken_is_told() {
        let good = (
            Seen { sent: 10, came: 10, ..Seen::default() },
            Look { at: Instant::now(), frames_used: 8, remapped: 0, evicted: 0, refused: 0, paused: 0, violations: 0 },
        );
        let judged = |change: fn(&mut Seen, &mut Look)| {
            let (mut seen, mut look) = good.clone();
            change(&mut seen, &mut look);
            judge(&seen, &look).err().unwrap_or_default()
        };
        assert_eq!(judged(|_, _| ()), "");
        assert_eq!(judged(|seen, _| seen.came = 9), "10 requests have 9 answers");
        assert_eq!(judged(|seen, _| seen.came = 11), "10 requests have 11 answers");
        assert!(judged(|seen, _| seen.strange = 1).starts_with("1 messages came out of order"));
        let returned = |seen: &mut Seen, _: &mut Look| (seen.returned, seen.why) = (2, Some("peer lost".to_owned()));
        assert_eq!(judged(returned), "2 messages came back or were refused; of the first one: peer lost");
        assert_eq!(judged(|_, look| look.violations = 1), "the daemon cut 1 programs off");
        assert_eq!(judged(|_, look| look.frames_used = 9), "9 frames were in use, and there are 8");
    }
}
