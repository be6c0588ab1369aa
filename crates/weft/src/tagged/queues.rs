//! Queues for matching: posted receives, and messages that wait.
//!
//! Each entry is in the queue of its peer and, if needed, in one for all peers, ordered by age. A search goes through a
//! queue from its start; its cost is proportional to the entries it passes.

use crate::buffers::Target;
use std::collections::VecDeque;

/// A tag, and the bits of it that are ignored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tags {
    /// The tag.
    pub tag: u64,
    /// Bits that may differ.
    pub ignore: u64,
}

impl Tags {
    #[inline(always)]
    fn fits(self, tag: u64) -> bool {
        (self.tag ^ tag) & !self.ignore == 0
    }
}

/// Values by number. The number of a removed value is used again.
#[derive(Debug)]
pub(super) struct Slab<T> {
    values: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Slab<T> {
        Slab { values: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    #[inline(always)]
    pub fn insert(&mut self, value: T) -> u32 {
        match self.free.pop() {
            Some(at) => {
                self.values[at as usize] = Some(value);
                at
            }
            None => {
                self.values.push(Some(value));
                self.values.len() as u32 - 1
            }
        }
    }

    #[inline(always)]
    pub fn get_mut(&mut self, at: u32) -> Option<&mut T> {
        self.values.get_mut(at as usize)?.as_mut()
    }

    pub fn get(&self, at: u32) -> Option<&T> {
        self.values.get(at as usize)?.as_ref()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.values.len() - self.free.len()
    }

    #[inline(always)]
    pub fn remove(&mut self, at: u32) -> Option<T> {
        let value = self.values.get_mut(at as usize)?.take()?;
        self.free.push(at);
        Some(value)
    }

    /// Returns the numbers of the values that satisfy a condition.
    pub fn numbers(&self, is_wanted: impl Fn(&T) -> bool) -> Vec<u32> {
        let wanted = |(at, value): (usize, &Option<T>)| value.as_ref().filter(|v| is_wanted(v)).map(|_| at as u32);
        self.values.iter().enumerate().filter_map(wanted).collect()
    }
}

/// A queue whose values are built in place instead of being moved in by a call. A value that is written in many small
/// stores and then copied in large pieces stalls until the stores are done.
#[derive(Debug)]
pub(crate) struct InPlace<T> {
    /// Its length is zero or a power of two.
    slots: Vec<Option<T>>,
    first: usize,
    len: usize,
}

impl<T> Default for InPlace<T> {
    fn default() -> InPlace<T> {
        InPlace { slots: Vec::new(), first: 0, len: 0 }
    }
}

impl<T> InPlace<T> {
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.len
    }

    #[inline(always)]
    pub fn push(&mut self, value: T) {
        if self.len == self.slots.len() {
            self.grow();
        }
        let at = (self.first + self.len) & (self.slots.len() - 1);
        if let Some(slot) = self.slots.get_mut(at) {
            // The slot is empty, so there is nothing to drop.
            std::mem::forget(slot.replace(value));
            self.len += 1;
        }
    }

    #[inline(always)]
    pub fn pop(&mut self) -> Option<T> {
        if self.len == 0 {
            return None;
        }
        let value = self.slots.get_mut(self.first)?.take();
        self.first = (self.first + 1) & (self.slots.len() - 1);
        self.len -= 1;
        value
    }

    /// Lets the caller use the first value in place, then drops it.
    #[inline(always)]
    pub fn pop_with<R>(&mut self, take: impl FnOnce(&mut T) -> R) -> Option<R> {
        if self.len == 0 {
            return None;
        }
        let slot = self.slots.get_mut(self.first)?;
        let taken = slot.as_mut().map(take);
        *slot = None;
        self.first = (self.first + 1) & (self.slots.len() - 1);
        self.len -= 1;
        taken
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        let len = (2 * self.slots.len()).max(16);
        self.slots.rotate_left(self.first);
        self.first = 0;
        self.slots.resize_with(len, || None);
    }
}

/// Returns the queue of a peer. Makes it when it is first needed.
#[inline(always)]
fn line<T>(lines: &mut Vec<VecDeque<T>>, peer: u32) -> &mut VecDeque<T> {
    let at = peer as usize;
    if lines.len() <= at {
        lines.resize_with(at + 1, VecDeque::new);
    }
    &mut lines[at]
}

/// A receive in its queue.
#[derive(Debug)]
pub(super) struct Wanted {
    /// Younger receives have larger ages.
    pub age: u64,
    pub tags: Tags,
    pub taker: Taker,
}

impl Wanted {
    /// Whether it is a receive of one message, for this one.
    #[inline(always)]
    fn is_one_for(&self, tag: u64) -> bool {
        self.tags.fits(tag) && matches!(self.taker, Taker::One(_))
    }
}

/// The messages that a receive takes: one or many.
#[derive(Debug)]
pub(super) enum Taker {
    /// One message. The receive exists only in its queue.
    One(Once),
    /// Many messages. Holds the number of the receive, which stays in its queue when it takes one.
    Many(u32),
}

/// A receive of one message.
#[derive(Debug)]
pub(super) struct Once {
    pub target: Target,
    pub context: u64,
}

/// Posted receives. Each is in one queue: that of its peer, or that for any peer.
#[derive(Debug, Default)]
pub(super) struct Posted {
    any: VecDeque<Wanted>,
    of_peers: Vec<VecDeque<Wanted>>,
}

impl Posted {
    #[inline(always)]
    pub fn push(&mut self, peer: Option<u32>, wanted: Wanted) {
        match peer {
            Some(peer) => line(&mut self.of_peers, peer).push_back(wanted),
            None => self.any.push_back(wanted),
        }
    }

    /// Finds the oldest receive for a message. Returns its queue and its place there.
    fn find(&self, peer: u32, tag: u64) -> Option<(Option<u32>, usize)> {
        let of_peer = match self.of_peers.get(peer as usize) {
            Some(line) => find_first(line, tag),
            None => None,
        };
        match (of_peer, find_first(&self.any, tag)) {
            (Some((_, at)), None) => Some((Some(peer), at)),
            (Some((age, at)), Some((any, _))) if age < any => Some((Some(peer), at)),
            (_, Some((_, at))) => Some((None, at)),
            (None, None) => None,
        }
    }

    /// Finds the oldest receive for a message. A receive of a single message leaves its queue.
    #[inline(always)]
    pub fn take(&mut self, peer: u32, tag: u64) -> Option<Taker> {
        match self.of_peers.get_mut(peer as usize) {
            // Usually the first one of the peer's fits.
            Some(line) if self.any.is_empty() && line.front().is_some_and(|wanted| wanted.is_one_for(tag)) => {
                line.pop_front().map(|wanted| wanted.taker)
            }
            _ => self.take_any(peer, tag),
        }
    }

    /// As [`Posted::take`], wherever the receive is.
    #[inline(never)]
    fn take_any(&mut self, peer: u32, tag: u64) -> Option<Taker> {
        let (of, at) = self.find(peer, tag)?;
        let line = match of {
            Some(peer) => self.of_peers.get_mut(peer as usize)?,
            None => &mut self.any,
        };
        match line.get(at)?.taker {
            Taker::Many(receive) => Some(Taker::Many(receive)),
            Taker::One(_) => line.remove(at).map(|wanted| wanted.taker),
        }
    }

    /// Removes a receive of many messages that is posted for this peer, or for any peer if `None`.
    pub fn remove(&mut self, peer: Option<u32>, receive: u32) {
        let line = match peer {
            Some(peer) => line(&mut self.of_peers, peer),
            None => &mut self.any,
        };
        line.retain(|wanted| !matches!(wanted.taker, Taker::Many(other) if other == receive));
    }

    /// Finds the oldest receive whose taker satisfies a condition. Returns its age.
    pub fn oldest(&self, is_wanted: impl Fn(&Taker) -> bool) -> Option<u64> {
        let all = self.of_peers.iter().flatten().chain(&self.any);
        all.filter(|wanted| is_wanted(&wanted.taker)).map(|wanted| wanted.age).min()
    }

    /// Removes the receive of this age.
    pub fn remove_aged(&mut self, age: u64) -> Option<Taker> {
        self.of_peers.iter_mut().chain([&mut self.any]).find_map(|line| {
            let at = line.binary_search_by_key(&age, |wanted| wanted.age).ok()?;
            line.remove(at).map(|wanted| wanted.taker)
        })
    }

    /// Whether a receive of one message is posted that this peer could match.
    pub fn waits_for(&self, peer: u32) -> bool {
        let of_peer = self.of_peers.get(peer as usize).into_iter().flatten();
        of_peer.chain(&self.any).any(|wanted| matches!(wanted.taker, Taker::One(_)))
    }

    /// Removes the receives that are posted for this peer alone.
    pub fn take_all_of(&mut self, peer: u32) -> Vec<Wanted> {
        line(&mut self.of_peers, peer).drain(..).collect()
    }

    /// Removes all receives.
    pub fn take_all(&mut self) -> Vec<Wanted> {
        let Posted { any, of_peers } = std::mem::take(self);
        of_peers.into_iter().flatten().chain(any).collect()
    }
}

/// Finds the oldest receive of a queue for a message. Returns its age and its place.
fn find_first(line: &VecDeque<Wanted>, tag: u64) -> Option<(u64, usize)> {
    let at = line.iter().position(|wanted| wanted.tags.fits(tag))?;
    Some((line[at].age, at))
}

/// A message in its queues.
#[derive(Clone, Copy, Debug)]
struct Here {
    age: u64,
    tag: u64,
    message: u32,
}

/// Messages that wait, each in two queues: that of its peer, and that of all peers.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    all: VecDeque<Here>,
    of_peers: Vec<VecDeque<Here>>,
}

impl Waiting {
    pub fn push(&mut self, peer: u32, age: u64, tag: u64, message: u32) {
        let here = Here { age, tag, message };
        self.all.push_back(here);
        line(&mut self.of_peers, peer).push_back(here);
    }

    /// Finds the oldest message for a receive.
    #[inline(always)]
    pub fn find(&self, peer: Option<u32>, tags: Tags) -> Option<u32> {
        let line = match peer {
            Some(peer) => self.of_peers.get(peer as usize)?,
            None => &self.all,
        };
        if line.is_empty() {
            return None;
        }
        line.iter().find(|here| tags.fits(here.tag)).map(|here| here.message)
    }

    /// Removes the message of this age.
    pub fn remove(&mut self, peer: u32, age: u64) {
        for line in [&mut self.all, line(&mut self.of_peers, peer)] {
            if let Ok(at) = line.binary_search_by_key(&age, |here| here.age) {
                line.remove(at);
            }
        }
    }

    /// Returns the number of messages of this peer that wait.
    pub fn of_peer(&self, peer: u32) -> usize {
        self.of_peers.get(peer as usize).map_or(0, VecDeque::len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_queued_in_place_comes_out_in_order() {
        let (mut queue, mut model, mut next) = (InPlace::default(), VecDeque::new(), 0u32);
        for round in 0..200usize {
            // The queue grows, wraps and runs empty at different places.
            for _ in 0..round * 7 % 40 {
                queue.push(Box::new(next));
                model.push_back(next);
                next += 1;
            }
            for _ in 0..round * 11 % 45 {
                assert_eq!(queue.pop().map(|value| *value), model.pop_front(), "round {round}");
                assert_eq!(queue.len(), model.len());
            }
        }
        assert!(next > 3000);
    }

    #[test]
    fn the_oldest_receive_takes_a_message_wherever_it_stands() {
        let mut posted = Posted::default();
        let exactly = |tag| Tags { tag, ignore: 0 };
        let once = |context| Taker::One(Once { target: Vec::new().into(), context });
        for (age, peer, tag) in [(1, None, 7), (2, Some(3), 8), (3, Some(3), 7), (4, None, 8)] {
            posted.push(peer, Wanted { age, tags: exactly(tag), taker: once(age) });
        }
        posted.push(Some(3), Wanted { age: 5, tags: exactly(9), taker: Taker::Many(5) });
        let mut take = |peer, tag| match posted.take(peer, tag)? {
            Taker::One(once) => Some(once.context),
            Taker::Many(receive) => Some(receive.into()),
        };
        assert_eq!([take(3, 7), take(3, 7), take(3, 7)], [Some(1), Some(3), None]);
        assert_eq!([take(2, 8), take(2, 8), take(3, 8)], [Some(4), None, Some(2)]);
        // A receive of many messages stays.
        assert_eq!([take(3, 9), take(3, 9), take(4, 9)], [Some(5), Some(5), None]);
    }
}
