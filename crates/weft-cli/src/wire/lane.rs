//! One direction of the wire, without I/O or clock: frames and the time come in, frames come out when they are due.
//!
//! A frame may be lost. Otherwise it waits for the rate in a queue, then for the delay, and then may be held back until others have
//! passed. Its faults are drawn when it comes, from its number ([`Dice`]).

use super::counts::Counts;
use super::dice::Dice;
use super::faults::Faults;
use super::frame;
use super::values::Room;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// A held frame leaves after this many nanoseconds at the latest.
const HELD_MOST: u64 = 10_000_000;

/// The most frames under way: more are dropped, as by a full queue.
const ON_WAY_MOST: usize = 1 << 16;

/// The bytes of a frame, in a buffer that may be larger.
#[derive(Clone, Debug, Default)]
pub struct Buffer {
    pub bytes: Box<[u8]>,
    pub length: usize,
}

impl Buffer {
    pub fn frame(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    pub fn frame_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.length]
    }
}

/// A frame that is passed on, and its faults.
#[derive(Debug)]
pub struct Frame {
    pub buffer: Buffer,
    pub fate: Fate,
}

/// The faults of a frame that is passed on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Fate {
    pub is_copy: bool,
    pub is_corrupt: bool,
    pub is_late: bool,
    pub is_overtaken: bool,
    /// How many frames have to overtake it.
    passes: u32,
}

/// One direction.
#[derive(Debug)]
pub struct Lane {
    faults: Faults,
    seed: u64,
    way: usize,
    /// Frames received so far.
    number: u64,
    /// Frames lost in a row by `loss`.
    run: u32,
    is_in_burst: bool,
    queue: Queue,
    on_way: BinaryHeap<Reverse<Leaving>>,
    /// The number of the next frame under way: it orders frames that are due at the same time.
    order: u64,
    last_due: u64,
    held: Vec<Held>,
    pub counts: Counts,
}

/// The frames that wait for the rate: when each has passed, and its size.
#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<(u64, u64)>,
    bytes: u64,
    through: u64,
}

/// A frame under way.
#[derive(Debug)]
struct Leaving {
    due: u64,
    order: u64,
    frame: Frame,
}

/// A frame held back until others have passed.
#[derive(Debug)]
struct Held {
    until: u64,
    frame: Frame,
}

impl Lane {
    /// The direction from A to B (0) or back (1).
    pub fn new(faults: Faults, seed: u64, way: usize) -> Lane {
        Lane {
            faults,
            seed,
            way,
            number: 0,
            run: 0,
            is_in_burst: false,
            queue: Queue::default(),
            on_way: BinaryHeap::new(),
            order: 0,
            last_due: 0,
            held: Vec::new(),
            counts: Counts::default(),
        }
    }

    /// Sets other faults for the frames from now on.
    pub fn change(&mut self, faults: Faults) {
        self.faults = faults;
    }

    /// Takes a frame that came at this time. Returns the buffer if the frame is dropped.
    pub fn take(&mut self, came: u64, buffer: Buffer) -> Option<Buffer> {
        self.counts.frames += 1;
        self.counts.bytes += buffer.length as u64;
        let number = self.number;
        self.number += 1;
        let mut dice = Dice::of(self.seed, self.way, number, 0);
        if self.is_lost(&mut dice, &buffer) {
            return Some(buffer);
        }
        let duplicate = self.faults.duplicate;
        if duplicate.share.has(dice.roll()) {
            let late = dice.below(duplicate.late.0 + 1);
            let copy = Buffer { bytes: buffer.frame().into(), length: buffer.length };
            let mut dice = Dice::of(self.seed, self.way, number, 1);
            let rest = self.queue(came, buffer, Fate::default(), 0, &mut Dice::of(self.seed, self.way, number, 2));
            // If the frame found no room, its copy finds none either.
            if rest.is_none() {
                self.queue(came, copy, Fate { is_copy: true, ..Fate::default() }, late, &mut dice);
            }
            return rest;
        }
        self.queue(came, buffer, Fate::default(), 0, &mut dice)
    }

    /// When [`Lane::leave`] has something next.
    pub fn next_due(&self) -> Option<u64> {
        let on_way = self.on_way.peek().map(|Reverse(leaving)| leaving.due);
        let held = self.held.iter().map(|held| held.until).min();
        on_way.into_iter().chain(held).min()
    }

    /// Removes a frame that is due.
    pub fn leave(&mut self, now: u64) -> Option<Frame> {
        // The first held frame that enough others have passed, or whose time is up.
        if let Some(at) = self.held.iter().position(|held| held.frame.fate.passes == 0 || held.until <= now) {
            let frame = self.held.remove(at).frame;
            // It also overtakes the frames that were held before it and still wait.
            self.held[..at].iter_mut().for_each(Held::let_pass);
            return Some(frame);
        }
        while let Some(leaving) = self.on_way.peek().filter(|Reverse(leaving)| leaving.due <= now) {
            let Reverse(Leaving { due, .. }) = *leaving;
            let Some(Reverse(Leaving { frame, .. })) = self.on_way.pop() else { break };
            if frame.fate.passes > 0 {
                self.held.push(Held { until: due + HELD_MOST, frame });
                continue;
            }
            self.held.iter_mut().for_each(Held::let_pass);
            return Some(frame);
        }
        None
    }

    /// Frames that are neither lost nor passed on.
    pub fn on_way(&self) -> usize {
        self.on_way.len() + self.held.len()
    }

    fn is_lost(&mut self, dice: &mut Dice, buffer: &Buffer) -> bool {
        let Faults { loss, loss_run, bursts, mtu, .. } = self.faults;
        // Draw all random numbers for every frame, so that one fault's choice does not depend on the others.
        let [by_lot, turn, by_burst] = [dice.roll(), dice.roll(), dice.roll()];
        let turns = if self.is_in_burst { bursts.end } else { bursts.begin };
        self.is_in_burst ^= turns.has(turn);
        if mtu.is_some_and(|mtu| frame::packet_bytes(buffer.frame()) > mtu as usize) {
            self.counts.too_large += 1;
            return true;
        }
        if self.is_in_burst && bursts.loss.has(by_burst) {
            self.counts.burst_lost += 1;
            return true;
        }
        if loss.has(by_lot) && loss_run.is_none_or(|most| self.run < most) {
            self.run += 1;
            self.counts.lost += 1;
            return true;
        }
        self.run = 0;
        false
    }

    /// Puts a frame under way, if the queue has room.
    fn queue(&mut self, came: u64, mut buffer: Buffer, fate: Fate, late: u64, dice: &mut Dice) -> Option<Buffer> {
        let Faults { delay, jitter, rate, reorder, corrupt, .. } = self.faults;
        let [damages, place, holds] = [dice.roll(), dice.roll(), dice.roll()];
        let passes = 1 + dice.below(u64::from(reorder.window)) as u32;
        let jitter = dice.below(2 * jitter.0 + 1) as i64 - jitter.0 as i64;
        let through = match rate.0 {
            0 => Some(came),
            bits => self.queue.push(came, buffer.length as u64, bits, self.faults.room()),
        };
        let Some(through) = through.filter(|_| self.on_way() < ON_WAY_MOST) else {
            self.counts.queue_dropped += 1;
            return Some(buffer);
        };
        let is_corrupt = corrupt.has(damages) && frame::corrupt(buffer.frame_mut(), place);
        let passes = if reorder.share.has(holds) { passes } else { 0 };
        let mut due = (through + delay.0).saturating_add_signed(jitter).max(self.last_due);
        if fate.is_copy {
            due += late;
        } else {
            self.last_due = due;
        }
        let fate = Fate { is_corrupt, passes, is_late: due > came, ..fate };
        self.on_way.push(Reverse(Leaving { due, order: self.order, frame: Frame { buffer, fate } }));
        self.order += 1;
        None
    }
}

impl Held {
    fn let_pass(&mut self) {
        self.frame.fate.passes = self.frame.fate.passes.saturating_sub(1);
        self.frame.fate.is_overtaken = true;
    }
}

impl Queue {
    /// When a frame that comes now has passed; `None` if there is no room for it.
    fn push(&mut self, came: u64, bytes: u64, bits_per_second: u64, room: Room) -> Option<u64> {
        while let Some((_, bytes)) = self.waiting.front().filter(|(through, _)| *through <= came) {
            self.bytes -= bytes;
            self.waiting.pop_front();
        }
        let has_room = match room {
            Room::Frames(most) => self.waiting.len() < most,
            Room::Bytes(most) => self.bytes + bytes <= most,
        };
        if !has_room {
            return None;
        }
        self.through = self.through.max(came) + bytes * 8 * 1_000_000_000 / bits_per_second;
        self.bytes += bytes;
        self.waiting.push_back((self.through, bytes));
        Some(self.through)
    }
}

impl PartialEq for Leaving {
    fn eq(&self, other: &Leaving) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Leaving {}

impl PartialOrd for Leaving {
    fn partial_cmp(&self, other: &Leaving) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Leaving {
    fn cmp(&self, other: &Leaving) -> std::cmp::Ordering {
        (self.due, self.order).cmp(&(other.due, other.order))
    }
}

#[cfg(test)]
mod tests;
