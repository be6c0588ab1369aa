//! A bundle's record of requests while they are stamped.

use super::stamps::{
    now, Answered, Asked, Operation, StampedFlow, Stamps, FLOWS_MOST, KEPT_MOST, MESSAGES_LEAST, WINDOW,
};
use crate::paths::Outlet;
use std::collections::VecDeque;
use weft_core::{FlowId, State};

/// Largest number of stamped messages under way that are remembered, of each kind.
const UNDER_WAY_MOST: usize = 64;

/// The place of a request under way: it belongs to one request at a time, and identifies the request on both sides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    pub flow: FlowId,
    pub slot: u16,
}

/// The public part of what a request does: the place of a region in its table, but no key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct What {
    pub operation: Option<Operation>,
    pub region: Option<u32>,
}

/// Messages under way, with the times noted so far. A place that is used again drops its old times.
#[derive(Debug)]
pub(crate) struct UnderWay<const N: usize>(Vec<(Place, What, [u64; N])>);

impl<const N: usize> Default for UnderWay<N> {
    fn default() -> UnderWay<N> {
        UnderWay(Vec::with_capacity(UNDER_WAY_MOST))
    }
}

impl<const N: usize> UnderWay<N> {
    pub fn put(&mut self, place: Place, what: What, moments: [u64; N]) {
        self.take(place);
        // Above this number nothing is recorded: a sample is enough.
        if self.0.len() < UNDER_WAY_MOST {
            self.0.push((place, what, moments));
        }
    }

    fn take(&mut self, place: Place) -> Option<(What, [u64; N])> {
        let at = self.0.iter().position(|(other, ..)| *other == place)?;
        let (_, what, moments) = self.0.swap_remove(at);
        Some((what, moments))
    }
}

/// The stamps of messages.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    /// When the window opened.
    opened: u64,
    /// Messages delivered to handlers in this window.
    pub messages: u32,
    /// Our requests: when called, when written.
    pub asking: UnderWay<2>,
    /// Requests of peers: when seen.
    pub answering: UnderWay<1>,
    so_far: u64,
    /// The last [`KEPT_MOST`] messages that ended.
    kept: VecDeque<(u64, Place, What, Moments)>,
}

#[derive(Clone, Copy, Debug)]
enum Moments {
    /// When called, written, seen, done.
    Asked([u64; 4]),
    /// When seen, replied, written.
    Answered([u64; 3]),
}

impl Recorder {
    pub fn begin(&mut self) {
        (self.opened, self.messages) = (now(), 0);
        // Old places may belong to other requests by now.
        self.asking.0.clear();
        self.answering.0.clear();
    }

    pub fn has_enough(&self, now: u64) -> bool {
        self.messages >= MESSAGES_LEAST && now.saturating_sub(self.opened) >= WINDOW.as_nanos() as u64
    }

    /// Notes that a reply's handler has run.
    pub fn end_question(&mut self, place: Place, seen: u64, done: u64) {
        if let Some((what, [called, written])) = self.asking.take(place) {
            self.keep(place, what, Moments::Asked([called, written, seen, done]));
        }
    }

    /// Notes that a request was replied to.
    pub fn end_answer(&mut self, place: Place, replied: u64, written: u64) {
        if let Some((what, [seen])) = self.answering.take(place) {
            self.keep(place, what, Moments::Answered([seen, replied, written]));
        }
    }

    fn keep(&mut self, place: Place, what: What, moments: Moments) {
        if self.kept.len() == KEPT_MOST {
            self.kept.pop_front();
        }
        self.kept.push_back((self.so_far, place, what, moments));
        self.so_far += 1;
    }

    pub fn tell(&self, state: &State<Outlet>) -> Stamps {
        let mut stamps = Stamps { so_far: self.so_far, ..Stamps::default() };
        let mut flows: Vec<(FlowId, bool)> = Vec::new();
        for &(number, Place { flow, slot }, What { operation, region }, moments) in &self.kept {
            let asks = matches!(moments, Moments::Asked(_));
            let known = flows.iter().rposition(|other| *other == (flow, asks));
            let Some(flow) = known.or_else(|| {
                let told = StampedFlow::of(state, flow, asks).filter(|_| flows.len() < FLOWS_MOST)?;
                flows.push((flow, asks));
                stamps.flows.push(told);
                Some(flows.len() - 1)
            }) else {
                continue;
            };
            let flow = flow as u32;
            match moments {
                Moments::Asked([called_ns, written_ns, seen_ns, done_ns]) => {
                    stamps.asked.push(Asked { number, flow, slot, operation, called_ns, written_ns, seen_ns, done_ns });
                }
                Moments::Answered([seen_ns, replied_ns, written_ns]) => {
                    stamps.answered.push(Answered { number, flow, slot, region, seen_ns, replied_ns, written_ns });
                }
            }
        }
        stamps
    }
}

impl StampedFlow {
    /// `None` if the flow's session has ended.
    fn of(state: &State<Outlet>, flow: FlowId, asks: bool) -> Option<StampedFlow> {
        let (from, to) = if asks { state.ends_out(flow)? } else { state.ends_in(flow)? };
        Some(StampedFlow { from: from.to_string(), to: to.to_string(), number: flow.number })
    }
}
