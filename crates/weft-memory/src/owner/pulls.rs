//! Pulls: writes whose bytes the owner reads in the memory of the process that asks.
//!
//! A pull is carried out in pieces, one in each poll, and the pulls of a flow one after the other. The credential is looked up again for
//! each piece, so that nothing is stored after a revocation.

use super::{Owner, Writing, PULLS_MOST};
use crate::engine::Notice;
use crate::platform::{NotPulled, Pulled, Space};
use crate::table::{RegionId, Rights};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::num::NonZeroU32;
use weft_core::{Delivery, FlowId, ReplyToken, State};
use weft_wire::memory::{Credential, Mark, Origin, Place, PullEnd, Word};
use weft_wire::path::Tx;
use weft_wire::Reason;

/// Bytes of a piece. Bounds the time for which one peer can keep the others waiting.
const PIECE: u64 = 256 << 10;

/// A pull that is not complete.
#[derive(Debug)]
struct Pull {
    token: ReplyToken,
    mark: Mark,
    process: NonZeroU32,
    origin: Origin,
    region: RegionId,
    by: Credential,
    /// Where its first byte goes.
    at: u64,
    len: u64,
    done: u64,
    notice: Option<Notice>,
    is_part: bool,
}

/// Pulls that have not ended.
#[derive(Debug, Default)]
pub(super) struct Pulls {
    /// By flow, at most [`PULLS_MOST`] of each. No queue is empty.
    flows: BTreeMap<FlowId, VecDeque<Pull>>,
    /// The flows that have pulls, the next one first.
    turns: VecDeque<FlowId>,
    /// Flows whose bytes were unreadable once. Later pulls by them are not read either, so that none overtakes an earlier one.
    unreadable: BTreeSet<FlowId>,
}

impl Pulls {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }
}

impl<S: Space> Owner<S> {
    /// Accepts a write whose bytes are to be read, if all of it may be written.
    pub(super) fn take_up<T: Tx>(
        &mut self,
        state: &mut State<T>,
        message: &Delivery<'_>,
        place: Place,
        Writing { len, notice, is_part }: Writing,
        mark: Mark,
    ) -> Result<(), Reason> {
        let flow = message.flow();
        // The initiator gave up the write before this one.
        self.forget(flow);
        let origin = Origin::from_bytes(message.payload).filter(|_| len > 0).ok_or(Reason::Violation)?;
        let (grant, _) = self.table.check(place, len, Rights::WRITE)?;
        if notice.is_some() && self.notices.len() + self.notices_to_come >= self.notices_most {
            return Err(Reason::QueueFull);
        }
        let open = self.pulls.flows.get(&flow).map_or(0, VecDeque::len);
        if open >= PULLS_MOST {
            return Err(Reason::QueueFull);
        }
        let Some(token) = message.take_reply() else { return Err(Reason::Violation) };
        let process = state.neighbour(flow.session).filter(|_| !self.pulls.unreadable.contains(&flow));
        let Some(process) = process else {
            answer(state, token, mark, PullEnd::Unreadable { is_partly: false });
            return Ok(());
        };
        self.notices_to_come += usize::from(notice.is_some());
        let notice = notice.map(|value| Notice { region: grant.region, at: grant.at, len, value });
        let (region, by, at) = (grant.region, place.by, grant.at);
        let pull = Pull { token, mark, process, origin, region, by, at, len, done: 0, notice, is_part };
        self.pulls.flows.entry(flow).or_default().push_back(pull);
        if open == 0 {
            self.pulls.turns.push_back(flow);
        }
        state.come_again();
        Ok(())
    }

    /// Carries out one piece of one flow's oldest pull. Returns the number of pieces done.
    pub fn go_on<T: Tx>(&mut self, state: &mut State<T>) -> u32 {
        let Some(flow) = self.pulls.turns.pop_front() else { return 0 };
        let Some(mut pull) = self.pulls.flows.get_mut(&flow).and_then(VecDeque::pop_front) else { return 0 };
        if !state.is_open(&pull.token) {
            // The process may be gone, and its number may belong to another one.
            self.put_back(flow, pull);
            self.drop_pulls(flow);
            return 1;
        }
        match self.step(&mut pull) {
            None => self.put_back(flow, pull),
            Some(end) => {
                self.end_pull(state, pull, end);
                if let PullEnd::Unreadable { .. } = end {
                    self.pulls.unreadable.insert(flow);
                    let rest = self.pulls.flows.remove(&flow);
                    for pull in rest.into_iter().flatten() {
                        self.end_pull(state, pull, PullEnd::Unreadable { is_partly: false });
                    }
                }
            }
        }
        match self.pulls.flows.get(&flow).is_some_and(|left| !left.is_empty()) {
            true => self.pulls.turns.push_back(flow),
            false => _ = self.pulls.flows.remove(&flow),
        }
        if !self.pulls.is_empty() {
            state.come_again();
        }
        1
    }

    fn put_back(&mut self, flow: FlowId, pull: Pull) {
        self.pulls.flows.entry(flow).or_default().push_front(pull);
    }

    /// Reads and stores the next piece. `None` if more are to come.
    fn step(&mut self, pull: &mut Pull) -> Option<PullEnd> {
        let is_partly = pull.done > 0;
        let space = match self.table.check_again(pull.region, pull.by) {
            Ok(space) => space,
            Err(reason) => return Some(PullEnd::Failed { reason, is_partly }),
        };
        let len = (pull.len - pull.done).min(PIECE);
        // All of it was checked before, so none of these sums wraps.
        let from = Pulled { process: pull.process, origin: &pull.origin, skip: pull.done, len: len as usize };
        match space.pull(pull.at.saturating_add(pull.done), from) {
            Ok(()) => {
                pull.done += len;
                self.counters.bytes_written += len;
                self.counters.bytes_pulled += len;
                (pull.done == pull.len).then_some(PullEnd::Whole)
            }
            // Part of the piece may have been stored.
            Err(NotPulled::Unreadable) => Some(PullEnd::Unreadable { is_partly: true }),
            Err(NotPulled::Gone) => Some(PullEnd::Failed { reason: Reason::PeerLost, is_partly: true }),
            Err(NotPulled::Outside) => Some(PullEnd::Failed { reason: Reason::OutsideRegion, is_partly }),
        }
    }

    fn end_pull<T: Tx>(&mut self, state: &mut State<T>, pull: Pull, end: PullEnd) {
        self.notices_to_come = self.notices_to_come.saturating_sub(usize::from(pull.notice.is_some()));
        match end {
            PullEnd::Whole => {
                self.counters.pulls += 1;
                self.end(Some(pull.region), pull.is_part, pull.notice);
            }
            PullEnd::Unreadable { .. } => {}
            PullEnd::Failed { reason, .. } => self.count_refusal(reason),
        }
        answer(state, pull.token, pull.mark, end);
    }

    /// A flow has closed: nobody waits for its pulls.
    pub(super) fn flow_of_pulls_closed(&mut self, flow: FlowId) {
        self.pulls.unreadable.remove(&flow);
        if self.pulls.flows.contains_key(&flow) {
            self.drop_pulls(flow);
        }
    }

    fn drop_pulls(&mut self, flow: FlowId) {
        self.pulls.turns.retain(|other| *other != flow);
        for pull in self.pulls.flows.remove(&flow).into_iter().flatten() {
            self.notices_to_come = self.notices_to_come.saturating_sub(usize::from(pull.notice.is_some()));
        }
    }

    /// The endpoint is freed: tells the peers that wait.
    pub fn close<T: Tx>(&mut self, state: &mut State<T>) {
        let Pulls { flows, .. } = std::mem::take(&mut self.pulls);
        for pull in flows.into_values().flatten() {
            let end = PullEnd::Failed { reason: Reason::NoSuchEndpoint, is_partly: pull.done > 0 };
            self.end_pull(state, pull, end);
        }
    }

    /// Whether [`Owner::go_on`] needs the time.
    pub fn pulls_need_time(&self) -> bool {
        !self.pulls.is_empty()
    }
}

/// Fails only if the peer is gone, and then nobody waits.
fn answer<T: Tx>(state: &mut State<T>, token: ReplyToken, mark: Mark, end: PullEnd) {
    let packed = Word::Pulled(mark, end).pack();
    let _ = state.reply(token, packed.op, packed.args(), &[]);
}
