//! Frames: their endpoints, and which of these gives up its frame to another.

use crate::rows::RowId;
use std::collections::BTreeMap;
use weft_transport::{Random, Time};
use weft_wire::Uid;

/// How to choose the resident endpoint that gives up its frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Policy {
    /// At random, from the seed.
    Random,
    /// The first one not used since the hand passed it (CLOCK).
    #[default]
    Clock,
    /// The one that was used least recently.
    Lru,
}

/// A frame with its endpoint.
#[derive(Clone, Copy, Debug)]
struct Frame {
    row: RowId,
    user: Uid,
    since: Time,
    /// The last turn in which it was visited, or got a delivery. 0 if never since it came.
    used_at: u64,
    /// It was used since the hand passed.
    is_referenced: bool,
    /// Visits since it came.
    visits: u32,
    /// It has nothing to send.
    is_idle: bool,
}

/// A resident endpoint that was not used may be evicted after this time: the message that it was made resident for may never come.
const STAY_NANOS: u64 = 1_000_000;

/// An endpoint with more to send stays for so many visits. With one visit each, most of the time would go into binding and evicting.
const VISITS_LEAST: u32 = 8;

/// All frames.
#[derive(Clone, Debug)]
pub(crate) struct Frames {
    frames: Vec<Option<Frame>>,
    free: Vec<u32>,
    policy: Policy,
    random: Random,
    hand: usize,
    turn: u64,
    /// Frames of each user that has some.
    held: BTreeMap<Uid, u32>,
}

impl Frames {
    pub fn new(frames: u32, policy: Policy, seed: u64) -> Frames {
        Frames {
            frames: vec![None; frames as usize],
            free: (0..frames).rev().collect(),
            policy,
            random: Random::new(seed),
            hand: 0,
            turn: 0,
            held: BTreeMap::new(),
        }
    }

    /// Begins a turn.
    pub fn turn(&mut self) {
        self.turn += 1;
    }

    pub fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// Gives a free frame to an endpoint.
    pub fn give(&mut self, row: RowId, user: Uid, now: Time) -> Option<u32> {
        let at = self.free.pop()?;
        let frame = Frame { row, user, since: now, used_at: 0, is_referenced: true, visits: 0, is_idle: true };
        self.frames[at as usize] = Some(frame);
        *self.held.entry(user).or_default() += 1;
        Some(at)
    }

    /// Takes a frame back.
    pub fn take_back(&mut self, at: u32) {
        let Some(frame) = self.frames.get_mut(at as usize).and_then(Option::take) else { return };
        self.free.push(at);
        if let Some(held) = self.held.get_mut(&frame.user) {
            *held -= 1;
            if *held == 0 {
                self.held.remove(&frame.user);
            }
        }
    }

    /// The endpoint in a frame was visited, and has more to send or not.
    pub fn note_visit(&mut self, at: u32, has_more: bool) {
        if let Some(Some(frame)) = self.frames.get_mut(at as usize) {
            frame.used_at = self.turn;
            frame.is_referenced = true;
            frame.visits = frame.visits.saturating_add(1);
            frame.is_idle = !has_more;
        }
    }

    /// The endpoint that should give up its frame: one that was used since it came and has nothing to send or had its visits, or one that
    /// came a while ago. Users above their share come first. `None` if there is no such endpoint.
    pub fn victim(&mut self, now: Time) -> Option<RowId> {
        let users = self.held.len().max(1);
        let share = (self.frames.len() / users).max(1) as u32;
        let is_rich = self.held.values().any(|held| *held > share);
        let may_go = |frame: &Frame| {
            let had_its_turn = frame.used_at != 0 && (frame.is_idle || frame.visits >= VISITS_LEAST);
            had_its_turn || now.nanos_since(frame.since) >= STAY_NANOS
        };
        if is_rich {
            let held = &self.held;
            let is_above = |frame: &Frame| held.get(&frame.user).is_some_and(|held| *held > share);
            let may_go_first = |frame: &Frame| may_go(frame) && is_above(frame);
            let found = choose(&mut self.frames, self.policy, &mut self.random, &mut self.hand, may_go_first);
            if found.is_some() {
                return found;
            }
        }
        choose(&mut self.frames, self.policy, &mut self.random, &mut self.hand, may_go)
    }

    /// The endpoint in a frame.
    #[cfg(test)]
    pub fn endpoint(&self, at: u32) -> Option<RowId> {
        self.frames.get(at as usize).copied().flatten().map(|frame| frame.row)
    }

    /// Frames in use.
    pub fn in_use(&self) -> usize {
        self.frames.len() - self.free.len()
    }
}

/// Chooses among the frames that `may_go`.
fn choose(
    frames: &mut [Option<Frame>],
    policy: Policy,
    random: &mut Random,
    hand: &mut usize,
    may_go: impl Fn(&Frame) -> bool,
) -> Option<RowId> {
    let len = frames.len();
    match policy {
        Policy::Random => {
            let begin = random.below(len as u64) as usize;
            let at = |step: usize| (begin + step) % len;
            (0..len).find_map(|step| frames[at(step)].filter(|frame| may_go(frame))).map(|frame| frame.row)
        }
        Policy::Lru => {
            let those = frames.iter().flatten().filter(|frame| may_go(frame));
            those.min_by_key(|frame| frame.used_at).map(|frame| frame.row)
        }
        Policy::Clock => {
            // Two rounds: the first one clears the marks.
            for _ in 0..2 * len {
                *hand = (*hand + 1) % len;
                let Some(frame) = frames[*hand].as_mut().filter(|frame| may_go(frame)) else { continue };
                if !std::mem::take(&mut frame.is_referenced) {
                    return Some(frame.row);
                }
            }
            None
        }
    }
}
