//! Goals for few frames, and whether they are reached.

use super::plan::{name_of, name_of_message};
use super::plan::{Part, BOTH, CROWDS, ENOUGH, FEW, MOST};
use super::results::Results;
use crate::bench::goals::{Asked, Goal};
use weft_sim::contention::Message;

/// The least throughput on 8 frames relative to one frame per endpoint; by number of clients.
const LEAST: [f64; 2] = [0.75, 0.5];

/// The least throughput of the slowest client relative to the mean.
const SLOWEST_LEAST: f64 = 0.3;

/// The most of the daemon's instructions that remapping may take.
const REMAPPING_MOST: f64 = 0.05;

/// The goals of the parts that were run.
pub fn goals(results: &Results) -> Vec<Goal> {
    let mut goals = Vec::new();
    for message in [Message::Small, Message::Bulk] {
        of_figures(results, message, &mut goals);
        for (clients, least) in CROWDS.into_iter().zip(LEAST) {
            of_crowd(results, message, (clients, least), &mut goals);
        }
    }
    goals
}

fn of_figures(results: &Results, message: Message, goals: &mut Vec<Goal>) {
    for serving in BOTH {
        let of = |frames| results.get(Part::Figures, serving, message, MOST, frames);
        let (Some(few), Some(enough)) = (of(FEW), of(ENOUGH)) else { continue };
        let named = format!("{}, {}, {MOST} endpoints", name_of(serving), name_of_message(message));
        let value = few.requests_per_second / enough.requests_per_second;
        let what = format!("{named}: {FEW} frames ÷ {ENOUGH}");
        goals.push(Goal { what, value, asked: Asked::AtLeast(0.9), unit: "" });
        let (what, value) = (format!("{named}: daemon's work in remapping"), few.remapping_share);
        goals.push(Goal { what, value, asked: Asked::AtMost(REMAPPING_MOST), unit: "" });
    }
}

fn of_crowd(results: &Results, message: Message, (clients, least): (u32, f64), goals: &mut Vec<Goal>) {
    for serving in BOTH {
        let of = |frames| results.get(Part::Crowds, serving, message, clients, frames);
        let (Some(few), Some(enough)) = (of(FEW), of(clients)) else { continue };
        let named = format!("{}, {}, {clients} endpoints", name_of(serving), name_of_message(message));
        let value = few.requests_per_second / enough.requests_per_second;
        goals.push(Goal {
            what: format!("{named}: {FEW} frames ÷ {clients}"),
            value,
            asked: Asked::AtLeast(least),
            unit: "",
        });
        if clients == CROWDS[1] {
            let what = format!("{named}: slowest client ÷ mean");
            goals.push(Goal { what, value: few.slowest_client, asked: Asked::AtLeast(SLOWEST_LEAST), unit: "" });
        }
    }
}
