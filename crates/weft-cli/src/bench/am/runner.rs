//! Runs the plan round after round: each measurement for a moment, in C and in Rust one after the other.

use super::plan::{By, Message, Probe, What};
use super::program::{Asked, Pair, Received};
use super::rust;
use crate::bench::results::{Results, Run};
use crate::bench::runner::in_round;
use crate::bench::source::{Half, Source};
use crate::bench::weft_side::{agree, Bench};
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::progress::Progress;

/// Two processes in C, and two in Rust; this process is the first of the latter.
#[derive(Debug)]
pub struct Scene {
    pub c: Pair,
    pub rust: Bench,
}

/// The rounds of a measurement, with its progress bar and interrupt.
#[derive(Clone, Copy, Debug)]
pub struct Rounds<'a> {
    pub rounds: u32,
    pub interrupt: &'a Interrupt,
    pub progress: &'a Progress,
}

impl Rounds<'_> {
    /// Measures.
    pub fn of(self, place: &str, scene: &mut Scene, probes: &[Probe]) -> Result<Results, Error> {
        let mut results = Results::default();
        for round in 0..self.rounds {
            for &(what, by) in in_round(probes, round) {
                self.interrupt.check()?;
                self.progress.say(format!("round {}: {place}: {}, {}", round + 1, what.title(), by.language()));
                let sampled = scene.run(what, by)?;
                results.add(what.key(by), Run { round, sampled, detail: None });
                self.progress.one_more();
            }
        }
        Ok(results)
    }
}

impl Scene {
    fn run(&mut self, what: What, by: By) -> Result<crate::bench::meter::Sampled, Error> {
        let measured = match by {
            By::C => {
                let (Asked { sampled, sent, received }, received_there) = self.c.run(what, self.rust.time)?;
                rust::Measured { sampled, sent, received, received_there }
            }
            By::Rust => self.rust.am(what)?,
        };
        check(&self.rust.source, what, &measured)?;
        Ok(measured.sampled)
    }
}

/// Checks that both processes received what the other one sent.
fn check(source: &Source, what: What, measured: &rust::Measured) -> Result<(), Error> {
    let rust::Measured { sent, received, received_there, .. } = *measured;
    let back = match what {
        What::RoundTrip(_) => sent,
        What::Rate(_) | What::Stream(_) => 0,
    };
    let title = what.title();
    for (which, half, sent, Received { count, sum }) in
        [("requests", Half::First, sent, received_there), ("replies", Half::Second, back, received)]
    {
        agree(&format!("the numbers of {which} sent and received ({title})"), sent, count)?;
        let expected = sum_of(source, what.message(), half, sent);
        agree(&format!("the sums of the bytes of {which} sent and received ({title})"), expected, sum)?;
    }
    Ok(())
}

fn sum_of(source: &Source, message: Message, half: Half, count: u64) -> u64 {
    match message.size {
        0 => 0,
        size => source.sum_of(size, half, count),
    }
}
