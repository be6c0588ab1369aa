//! Checks every message against what the design promises: it ends in exactly one outcome, its contents are unchanged, it is
//! delivered at most once, and "not delivered" is never said of a delivered one.
//!
//! Nothing is added to messages. The checker identifies a message by a hash of its sender's life, its receiver's life and its
//! contents, and counts the outcomes per hash. Equal messages are therefore interchangeable.

use crate::histogram::Histogram;
use crate::topology::HostId;
use crate::trace::contents_hash;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::time::Duration;
use weft_core::{MessageKind, Returned};
use weft_wire::{Certainty, Epoch};

/// What a message says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Contents<'a> {
    pub kind: MessageKind,
    pub op: u8,
    pub args: &'a [u32],
    pub payload: &'a [u8],
}

/// The sender and the receiver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ends {
    pub from: HostId,
    pub from_life: Epoch,
    pub to: HostId,
    pub to_life: Epoch,
}

/// Which promise was broken.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Wrong {
    /// It was delivered more often than it was sent, or after it was returned as not delivered; or its contents were changed; or
    /// nobody sent it to this receiver.
    DeliveredTooOften,
    /// It came back as not delivered although it was delivered or had already come back.
    ReturnedTooOften,
    /// It was reported stored or answered although it was not delivered or had already ended.
    CompletedTooOften,
    /// It was neither delivered nor returned.
    Lost,
    /// It was delivered, but its sender had asked for a completion and got none.
    NeverTold,
}

/// A broken promise.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Violation {
    /// Which promise was broken.
    pub what: Wrong,
    /// When, in simulated time.
    pub at: Duration,
    /// The sender, as far as the message tells.
    pub from: HostId,
    /// The kind of the message.
    pub kind: MessageKind,
    /// Its operation.
    pub op: u8,
    /// Its first arguments, as far as they are known.
    pub args: [u32; 2],
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.what {
            Wrong::DeliveredTooOften => {
                "was delivered but should not have been: twice, changed, after a return, or never sent"
            }
            Wrong::ReturnedTooOften => "came back as not delivered, but was delivered or had come back before",
            Wrong::CompletedTooOften => "was reported done, but was not delivered or had ended before",
            Wrong::Lost => "was lost: neither delivered nor returned",
            Wrong::NeverTold => "was delivered, but its sender was never told",
        };
        let Violation { at, from, kind, op, args: [a, b], .. } = self;
        write!(f, "{at:?}: a {kind:?} of host {} (operation {op}, arguments {a} {b}) {what}", from.0)
    }
}

/// The outcomes of the messages of one hash.
#[derive(Clone, Copy, Debug)]
struct Fate {
    sent_at: u64,
    sent: u32,
    delivered: u32,
    /// Came back as certainly not delivered.
    returned: u32,
    /// Came back as unknown.
    unknown: u32,
    /// Those whose sender asked for a completion; `told` counts the ones whose end was reported, as done or as returned.
    asked: u32,
    told: u32,
    from: HostId,
    from_life: Epoch,
    to_life: Epoch,
    kind: MessageKind,
    op: u8,
    args: [u32; 2],
}

impl Fate {
    /// How many have not ended.
    fn open(&self) -> u32 {
        self.sent.saturating_sub(self.delivered + self.returned + self.unknown)
    }

    /// Whether no further outcome is possible.
    fn is_over(&self) -> bool {
        self.delivered + self.returned == self.sent && self.told == self.asked
    }
}

/// A message that was sent and not delivered, whose sender asked for no completion. It is kept here until it is delivered in order,
/// or until it is moved to `entries`.
#[derive(Clone, Copy, Debug)]
struct Fresh {
    hash: u64,
    sent_at: u64,
    ends: Ends,
    kind: MessageKind,
    op: u8,
    args: [u32; 2],
}

/// Unreliable messages of one hash.
#[derive(Clone, Copy, Debug)]
struct Loose {
    sent_at: u64,
    /// Sent and not delivered.
    left: u32,
}

/// Messages from one host to another whose senders asked for no completion.
#[derive(Debug, Default)]
struct Pair {
    /// Sent and not delivered, in order. A stream delivers in order, so the message is at the front, and no look-up is needed in a
    /// map larger than the CPU's caches.
    fresh: VecDeque<Fresh>,
    /// Delivered; nothing else is expected of them.
    recent: VecDeque<u64>,
}

/// A message whose sender asked for a completion.
#[derive(Clone, Copy, Debug)]
struct Asked {
    hash: u64,
    life: u32,
    /// The completion that the program chose.
    by: Option<u64>,
}

/// Counts of messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Messages {
    /// Accepted from programs.
    pub sent: u64,
    /// The unreliable ones among them.
    pub unreliable: u64,
    /// Handed to programs.
    pub delivered: u64,
    /// Bytes of their arguments and payloads.
    pub bytes: u64,
    /// Requests answered, and one-way messages reported stored to senders that asked.
    pub completed: u64,
    /// Returned as not delivered.
    pub returned: u64,
    /// Returned as unknown.
    pub unknown: u64,
}

/// A hasher for keys that are hashes already.
#[derive(Clone, Copy, Default, Debug)]
struct Same(u64);

impl Hasher for Same {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0 << 8 | u64::from(*byte));
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

/// How many delivered messages of a pair are remembered if their sender asked for no completion: more than a stream keeps, so that
/// an older one cannot come back.
const REMEMBERED: usize = 1 << 15;

/// Violations that are kept.
const VIOLATIONS_MOST: usize = 100;

/// The checker.
#[derive(Debug)]
pub(crate) struct Checker {
    /// By sender and receiver, for pairs that have sent something.
    pairs: HashMap<u64, Pair, BuildHasherDefault<Same>>,
    /// Messages that are not in their pair, by hash. An entry is removed when no further outcome is possible.
    entries: HashMap<u64, Fate, BuildHasherDefault<Same>>,
    /// Unreliable messages, by hash: how many were sent and not delivered.
    unreliable: HashMap<u64, Loose, BuildHasherDefault<Same>>,
    asked: Vec<Asked>,
    free: Vec<u32>,
    hosts: u32,
    /// Lives that ended: their programs are told nothing more.
    dead: BTreeSet<u64>,
    /// Requests that came back as unknown, by requester and replier.
    unknown_requests: BTreeMap<(u64, u64), u32>,
    pub messages: Messages,
    pub latency: Histogram,
    pub round_trips: Histogram,
    pub violations: Vec<Violation>,
    pub violated: u64,
}

impl Checker {
    pub fn new(hosts: u32) -> Checker {
        Checker {
            pairs: HashMap::default(),
            entries: HashMap::default(),
            unreliable: HashMap::default(),
            asked: Vec::new(),
            free: Vec::new(),
            hosts,
            dead: BTreeSet::new(),
            unknown_requests: BTreeMap::new(),
            messages: Messages::default(),
            latency: Histogram::new(5),
            round_trips: Histogram::new(5),
            violations: Vec::new(),
            violated: 0,
        }
    }

    /// The number that identifies the next message, if its sender asked for a completion.
    pub fn ask(&mut self, by: Option<u64>) -> u64 {
        let asked = Asked { hash: 0, life: 0, by };
        let place = self.free.pop().unwrap_or_else(|| {
            self.asked.push(asked);
            self.asked.len() as u32 - 1
        });
        let slot = &mut self.asked[place as usize];
        *slot = Asked { life: slot.life.wrapping_add(1), ..asked };
        u64::from(slot.life) << 32 | u64::from(place)
    }

    /// Takes a number back: the message was not accepted.
    pub fn take_back(&mut self, number: u64) {
        self.free.push(number as u32);
    }

    /// A message was accepted from a program.
    pub fn on_sent(&mut self, now: u64, ends: Ends, contents: Contents<'_>, number: Option<u64>) {
        let hash = hash(ends.from_life, ends.to_life, contents);
        if let Some(number) = number {
            self.asked[number as u32 as usize].hash = hash;
        }
        self.messages.sent += 1;
        let fresh =
            Fresh { hash, sent_at: now, ends, kind: contents.kind, op: contents.op, args: first_two(contents.args) };
        match number {
            None => self.pairs.entry(pair(ends.from, ends.to)).or_default().fresh.push_back(fresh),
            Some(_) => self.enter(fresh).asked += 1,
        }
    }

    /// An unreliable message was accepted from a program. It may be delivered once, and has no other outcome.
    pub fn on_sent_unreliable(&mut self, now: u64, ends: Ends, contents: Contents<'_>) {
        self.messages.sent += 1;
        self.messages.unreliable += 1;
        let hash = hash(ends.from_life, ends.to_life, contents);
        let loose = self.unreliable.entry(hash).or_insert(Loose { sent_at: now, left: 0 });
        *loose = Loose { sent_at: now, left: loose.left + 1 };
    }

    /// An unreliable message is handed to a program. `None` if no such message is outstanding.
    #[cold]
    fn deliver_unreliable(&mut self, now: u64, hash: u64) -> Option<Duration> {
        let Entry::Occupied(mut place) = self.unreliable.entry(hash) else { return None };
        let takes = Duration::from_nanos(now.saturating_sub(place.get().sent_at));
        place.get_mut().left -= 1;
        if place.get().left == 0 {
            place.remove();
        }
        self.latency.add(takes);
        Some(takes)
    }

    /// Adds a message to `entries`.
    fn enter(&mut self, fresh: Fresh) -> &mut Fate {
        let Fresh { hash, sent_at, ends, kind, op, args } = fresh;
        let entry = self.entries.entry(hash).or_insert_with(|| Fate {
            sent_at,
            sent: 0,
            delivered: 0,
            returned: 0,
            unknown: 0,
            asked: 0,
            told: 0,
            from: ends.from,
            from_life: ends.from_life,
            to_life: ends.to_life,
            kind,
            op,
            args,
        });
        entry.sent_at = sent_at;
        entry.sent += 1;
        entry
    }

    /// Moves the undelivered messages of a pair to `entries`.
    #[cold]
    fn enter_fresh(&mut self, pair: u64) {
        let Some(pair) = self.pairs.get_mut(&pair) else { return };
        for message in std::mem::take(&mut pair.fresh) {
            self.enter(message);
        }
    }

    /// A message is handed to a program. Returns how long it took, if it was sent.
    pub fn on_delivered(&mut self, now: u64, ends: Ends, contents: Contents<'_>) -> Option<Duration> {
        let hash = hash(ends.from_life, ends.to_life, contents);
        self.messages.delivered += 1;
        self.messages.bytes += (contents.args.len() * 4 + contents.payload.len()) as u64;
        if !self.unreliable.is_empty() {
            if let Some(takes) = self.deliver_unreliable(now, hash) {
                return Some(takes);
            }
        }
        let key = pair(ends.from, ends.to);
        let pair = self.pairs.entry(key).or_default();
        if let Some(fresh) = pair.fresh.front().filter(|fresh| fresh.hash == hash).copied() {
            pair.fresh.pop_front();
            let takes = Duration::from_nanos(now.saturating_sub(fresh.sent_at));
            pair.remember(hash);
            self.latency.add(takes);
            return Some(takes);
        }
        self.enter_fresh(key);
        let Entry::Occupied(mut place) = self.entries.entry(hash) else {
            self.violate(now, Wrong::DeliveredTooOften, ends.from, contents);
            return None;
        };
        let fate = place.get_mut();
        if fate.delivered + fate.returned >= fate.sent {
            self.violate(now, Wrong::DeliveredTooOften, ends.from, contents);
            return None;
        }
        fate.delivered += 1;
        let takes = Duration::from_nanos(now.saturating_sub(fate.sent_at));
        let wants_to_know = fate.asked > 0;
        if fate.is_over() {
            place.remove();
        }
        if !wants_to_know {
            self.pairs.entry(key).or_default().remember(hash);
        }
        self.latency.add(takes);
        Some(takes)
    }

    /// A sender is told that its message was stored or answered. Returns the completion that its program chose.
    pub fn on_completed(&mut self, now: u64, from: HostId, number: u64) -> Option<u64> {
        let slot = self.asked.get(number as u32 as usize).copied().filter(|slot| slot.life == (number >> 32) as u32);
        let found = slot.and_then(|slot| self.entries.get_mut(&slot.hash).map(|entry| (slot, entry)));
        let Some((slot, entry)) =
            found.filter(|(_, e)| e.told < e.asked && e.told < e.delivered + e.returned + e.unknown)
        else {
            let contents = Contents { kind: MessageKind::OneWay, op: 0, args: &[], payload: &[] };
            self.violate(now, Wrong::CompletedTooOften, from, contents);
            return None;
        };
        entry.told += 1;
        self.messages.completed += 1;
        if entry.kind == MessageKind::Request {
            self.round_trips.add(Duration::from_nanos(now.saturating_sub(entry.sent_at)));
        }
        self.end_asked(number, slot.hash);
        slot.by
    }

    /// A message came back. `lives` are the receivers' lives that it may have been sent to, if its sender asked for no completion.
    /// Returns the completion that its program chose.
    pub fn on_returned(
        &mut self,
        now: u64,
        from: HostId,
        life: Epoch,
        message: &Returned,
        lives: &[Epoch],
    ) -> Option<u64> {
        match message.destination {
            Some(to) => self.enter_fresh(pair(from, HostId(to))),
            None => (0..self.hosts).for_each(|to| self.enter_fresh(pair(from, HostId(to)))),
        }
        let contents = Contents { kind: message.kind, op: message.op, args: &message.args, payload: &message.payload };
        let is_certain = message.certainty == Certainty::NotDelivered;
        let asked = message.completion.and_then(|number| {
            let slot = self.asked.get(number as u32 as usize).copied()?;
            (slot.life == (number >> 32) as u32).then_some(slot)
        });
        let fits = |checker: &Checker, hash: u64| {
            let entry = checker.entries.get(&hash);
            entry.is_some_and(|e| match is_certain {
                true => e.delivered + e.returned < e.sent,
                false => e.returned + e.unknown < e.sent,
            })
        };
        let wanted = |to: &Epoch| hash(life, *to, contents);
        let found = match asked {
            // Found by its number; its contents must be those that were sent.
            Some(slot) => {
                Some(slot.hash).filter(|hash| lives.iter().any(|to| wanted(to) == *hash) && fits(self, *hash))
            }
            // Sent to any of these lives; prefer one that has an open message.
            None => {
                let is_open = |hash: &u64| self.entries.get(hash).is_some_and(|fate| fate.open() > 0);
                let all = || lives.iter().map(wanted);
                all().find(is_open).or_else(|| all().find(|hash| fits(self, *hash)))
            }
        };
        let Some(entry) = found.and_then(|hash| self.entries.get_mut(&hash)) else {
            // It may have been delivered although its sender does not know.
            if is_certain || asked.is_some() || !lives.iter().any(|to| self.forget_recent(from, wanted(to))) {
                self.violate(now, Wrong::ReturnedTooOften, from, contents);
            }
            return None;
        };
        match is_certain {
            true => (entry.returned, self.messages.returned) = (entry.returned + 1, self.messages.returned + 1),
            false => (entry.unknown, self.messages.unknown) = (entry.unknown + 1, self.messages.unknown + 1),
        }
        if entry.kind == MessageKind::Request && !is_certain {
            *self.unknown_requests.entry((entry.from_life.0, entry.to_life.0)).or_default() += 1;
        }
        if let (Some(number), Some(hash)) = (message.completion, found) {
            entry.told += 1;
            self.end_asked(number, hash);
        }
        asked.and_then(|slot| slot.by)
    }

    /// A host's life ended: its program is told of no more outcomes.
    pub fn on_death(&mut self, life: Epoch) {
        self.dead.insert(life.0);
    }

    /// The simulation is at rest: a message that has not ended by now is lost.
    ///
    /// A reply ends with its request. If the channel is lost before the requester accepted the reply, the replier is not told; the
    /// requester's request comes back as unknown.
    pub fn on_rest(&mut self, now: u64) {
        let pairs: Vec<u64> = self.pairs.keys().copied().collect();
        pairs.into_iter().for_each(|pair| self.enter_fresh(pair));
        let mut open: Vec<(Wrong, Fate)> = Vec::new();
        for fate in self.entries.values().filter(|fate| !self.dead.contains(&fate.from_life.0)) {
            if fate.open() > 0 {
                open.push((Wrong::Lost, *fate));
            } else if fate.told < fate.asked {
                open.push((Wrong::NeverTold, *fate));
            }
        }
        // The map's order differs between runs.
        open.sort_by_key(|(what, fate)| (*what, fate.sent_at, fate.from, fate.op, fate.args));
        for (what, fate) in open {
            if fate.kind == MessageKind::Reply && self.excuses(&fate) {
                continue;
            }
            let Fate { from, kind, op, args, .. } = fate;
            self.violate(now, what, from, Contents { kind, op, args: &args, payload: &[] });
        }
    }

    /// Messages of living senders that have not ended. Replies do not count: they end with their requests.
    pub fn open(&self) -> usize {
        let is_open = |fate: &&Fate| fate.open() > 0 || fate.told < fate.asked;
        let awaited = |kind, life: Epoch| kind != MessageKind::Reply && !self.dead.contains(&life.0);
        let entries = self.entries.values().filter(|fate| awaited(fate.kind, fate.from_life)).filter(is_open).count();
        let fresh = self.pairs.values().flat_map(|pair| &pair.fresh);
        entries + fresh.filter(|fresh| awaited(fresh.kind, fresh.ends.from_life)).count()
    }

    /// Whether the requester knows that these replies may not have arrived, or is gone.
    fn excuses(&mut self, replies: &Fate) -> bool {
        if self.dead.contains(&replies.to_life.0) {
            return true;
        }
        let unknown = self.unknown_requests.get_mut(&(replies.to_life.0, replies.from_life.0));
        let Some(left) = unknown.and_then(|count| count.checked_sub(replies.open()).map(|left| (count, left))) else {
            return false;
        };
        *left.0 = left.1;
        true
    }

    /// Forgets a recently delivered message. False if there was none.
    #[cold]
    fn forget_recent(&mut self, from: HostId, hash: u64) -> bool {
        let found = (0..self.hosts).find_map(|to| {
            let recent = &mut self.pairs.get_mut(&pair(from, HostId(to)))?.recent;
            recent.iter().position(|other| *other == hash).map(|at| recent.remove(at))
        });
        self.messages.unknown += u64::from(found.is_some());
        found.is_some()
    }

    fn end_asked(&mut self, number: u64, hash: u64) {
        let slot = &mut self.asked[number as u32 as usize];
        slot.life = slot.life.wrapping_add(1);
        self.free.push(number as u32);
        self.forget_if_over(hash);
    }

    #[inline]
    fn forget_if_over(&mut self, hash: u64) {
        if self.entries.get(&hash).is_some_and(Fate::is_over) {
            self.entries.remove(&hash);
        }
    }

    #[cold]
    fn violate(&mut self, now: u64, what: Wrong, from: HostId, contents: Contents<'_>) {
        self.violated += 1;
        if self.violations.len() < VIOLATIONS_MOST {
            let Contents { kind, op, args, .. } = contents;
            let at = Duration::from_nanos(now);
            self.violations.push(Violation { what, at, from, kind, op, args: first_two(args) });
        }
    }
}

impl Pair {
    /// Remembers a delivered message.
    #[inline]
    fn remember(&mut self, hash: u64) {
        if self.recent.len() == REMEMBERED {
            self.recent.pop_front();
        }
        self.recent.push_back(hash);
    }
}

/// The key of a pair: unique, and spread over all bits.
#[inline]
fn pair(from: HostId, to: HostId) -> u64 {
    (u64::from(from.0) << 32 | u64::from(to.0)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32)
}

#[inline]
fn hash(from: Epoch, to: Epoch, contents: Contents<'_>) -> u64 {
    let first = from.0 ^ to.0.rotate_left(32) ^ u64::from(contents.op) << 8 ^ contents.kind as u64;
    contents_hash(first, contents.args, contents.payload)
}

fn first_two(args: &[u32]) -> [u32; 2] {
    let at = |n: usize| args.get(n).copied().unwrap_or(0);
    [at(0), at(1)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_core::Endpoint;
    use weft_wire::Reason;

    const FROM: Epoch = Epoch(1);
    const CONTENTS: Contents<'_> = Contents { kind: MessageKind::OneWay, op: 1, args: &[7], payload: b"x" };

    fn ends(to_life: Epoch) -> Ends {
        Ends { from: HostId(0), from_life: FROM, to: HostId(1), to_life }
    }

    fn returned(certainty: Certainty) -> Returned {
        let Contents { kind, op, args, payload } = CONTENTS;
        let (args, payload, reason) = (args.to_vec(), payload.to_vec(), Reason::PeerLost);
        let endpoint = Endpoint::default();
        Returned {
            endpoint,
            destination: Some(1),
            kind,
            op,
            args,
            payload,
            reason,
            certainty,
            completion: None,
            long: None,
        }
    }

    #[test]
    fn a_message_sent_again_to_the_next_life_is_a_new_message() {
        let (lives, mut checker) = ([Epoch(2), Epoch(3)], Checker::new(2));
        checker.on_sent(1, ends(lives[0]), CONTENTS, None);
        checker.on_returned(2, HostId(0), FROM, &returned(Certainty::Unknown), &lives);
        checker.on_sent(3, ends(lives[1]), CONTENTS, None);
        checker.on_returned(4, HostId(0), FROM, &returned(Certainty::NotDelivered), &lives);
        checker.on_rest(5);
        assert_eq!(checker.violations, []);
        // The first may have been delivered; the second was not.
        assert!(checker.on_delivered(6, ends(lives[0]), CONTENTS).is_some());
        assert!(checker.on_delivered(7, ends(lives[1]), CONTENTS).is_none());
        assert_eq!(checker.violations[0].what, Wrong::DeliveredTooOften);
    }

    #[test]
    fn a_message_of_unknown_fate_comes_back_once() {
        for is_delivered in [false, true] {
            let (lives, mut checker) = ([Epoch(2)], Checker::new(2));
            checker.on_sent(1, ends(lives[0]), CONTENTS, None);
            if is_delivered {
                checker.on_delivered(2, ends(lives[0]), CONTENTS);
            }
            checker.on_returned(3, HostId(0), FROM, &returned(Certainty::Unknown), &lives);
            assert_eq!(checker.violations, []);
            checker.on_returned(4, HostId(0), FROM, &returned(Certainty::Unknown), &lives);
            assert_eq!(checker.violations[0].what, Wrong::ReturnedTooOften);
        }
    }

    #[test]
    fn a_lost_reply_is_excused_by_its_request_and_by_nothing_else() {
        for is_unknown in [false, true] {
            let (lives, mut checker) = ([Epoch(2)], Checker::new(2));
            let request = Contents { kind: MessageKind::Request, ..CONTENTS };
            let number = checker.ask(None);
            checker.on_sent(1, ends(lives[0]), request, Some(number));
            checker.on_delivered(2, ends(lives[0]), request);
            let back = Ends { from: HostId(1), from_life: lives[0], to: HostId(0), to_life: FROM };
            checker.on_sent(3, back, Contents { kind: MessageKind::Reply, ..CONTENTS }, None);
            match is_unknown {
                true => {
                    let kind = MessageKind::Request;
                    let message = Returned { kind, completion: Some(number), ..returned(Certainty::Unknown) };
                    checker.on_returned(4, HostId(0), FROM, &message, &lives);
                }
                false => _ = checker.on_completed(4, HostId(0), number),
            }
            checker.on_rest(5);
            assert_eq!(checker.violations.is_empty(), is_unknown, "{:?}", checker.violations);
        }
    }
}
