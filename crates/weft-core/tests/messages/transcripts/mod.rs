//! One behaviour each: input and expected output.

mod deaths;
mod refusals;
mod sending;
mod setup;
mod unserved;

use crate::world::Got;
use weft_core::{Event, Outgoing};

fn asks<'a>(op: u8, args: &'a [u32], payload: &'a [u8], completion: u64) -> Outgoing<'a> {
    Outgoing { op, args, payload, completion: Some(completion) }
}

fn completions(events: &[Event]) -> Vec<u64> {
    events.iter().filter_map(|e| if let Event::Completed(c) = e { Some(*c) } else { None }).collect()
}

fn args_of(got: &[Got]) -> Vec<u32> {
    got.iter().map(|g| g.args[0]).collect()
}
