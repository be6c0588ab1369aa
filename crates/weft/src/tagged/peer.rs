//! The state of a peer: what we may send it, what we owe it, and what is under way in both directions.

use super::Source;
use std::collections::{HashMap, VecDeque};
use weft_core::bulk::{Announced, Departures};
use weft_core::{FlowId, SendError};
use weft_wire::tagged::{Label, Told, Word, UNIT};
use weft_wire::{Key, Name, Reason};

/// Largest number of messages of one sender that may wait unmatched.
pub(super) const MESSAGES_MOST: u32 = 8192;

/// Units of eager contents of one sender that may wait unmatched: 4 MiB.
pub(super) const UNITS_MOST: u32 = (4 << 20) / UNIT as u32;

/// The number of units that eager contents count for.
#[inline(always)]
pub(super) fn units(len: usize) -> u32 {
    len.div_ceil(UNIT) as u32
}

/// The sender's account of credit. All counts are totals that wrap around.
#[derive(Debug, Default)]
pub(super) struct Window {
    /// The number of the next message, which is the number of messages sent.
    pub next: u32,
    /// Units sent.
    units: u32,
    /// How many messages came back as credit. The same for units follows.
    told_messages: u32,
    told_units: u32,
}

impl Window {
    #[inline(always)]
    pub fn has_message(&self) -> bool {
        self.next.wrapping_sub(self.told_messages) < MESSAGES_MOST
    }

    #[inline(always)]
    pub fn has_units(&self, units: u32) -> bool {
        self.units.wrapping_sub(self.told_units) + units <= UNITS_MOST
    }

    #[inline(always)]
    pub fn spend(&mut self, units: u32) {
        self.next = self.next.wrapping_add(1);
        self.units = self.units.wrapping_add(units);
    }

    /// Takes credit that the receiver reported. Returns false if it reports more than was sent, which is a violation.
    #[inline(always)]
    pub fn take(&mut self, told: Told) -> bool {
        let messages = u32::from(told.messages.wrapping_sub(self.told_messages as u16));
        let units = u32::from(told.units.wrapping_sub(self.told_units as u16));
        let is_honest =
            messages <= self.next.wrapping_sub(self.told_messages) && units <= self.units.wrapping_sub(self.told_units);
        if is_honest {
            self.told_messages = self.told_messages.wrapping_add(messages);
            self.told_units = self.told_units.wrapping_add(units);
        }
        is_honest
    }
}

/// The receiver's account of credit. All counts are totals that wrap around.
#[derive(Debug, Default)]
pub(super) struct Due {
    /// Messages that came, which is also the number of the next one.
    messages: u32,
    units: u32,
    matched_messages: u32,
    matched_units: u32,
    /// How many of the matched messages and units were reported to the sender. For messages it can be more than matched, if some
    /// were [granted](Due::grant).
    told_messages: u32,
    told_units: u32,
    /// The sender waits for credit.
    pub asked: bool,
    /// Messages were granted, and the sender has not been told.
    owes_grant: bool,
}

impl Due {
    /// Notes a message. Returns false if its number is not the next one, or if the sender exceeds its credit.
    #[inline(always)]
    pub fn arrive(&mut self, number: u32, units: u32) -> bool {
        let is_next = number == self.messages;
        self.messages = self.messages.wrapping_add(1);
        self.units = self.units.wrapping_add(units);
        is_next
            && self.messages.wrapping_sub(self.told_messages) <= MESSAGES_MOST
            && self.units.wrapping_sub(self.told_units) <= UNITS_MOST
    }

    /// Notes that a message was matched or dropped.
    #[inline(always)]
    pub fn matched(&mut self, units: u32) {
        self.matched_messages = self.matched_messages.wrapping_add(1);
        self.matched_units = self.matched_units.wrapping_add(units);
    }

    /// Whether the sender has no credit for another message.
    pub fn is_exhausted(&self) -> bool {
        self.messages.wrapping_sub(self.told_messages) >= MESSAGES_MOST
    }

    /// Gives credit for all messages that came, even those not matched.
    pub fn grant(&mut self) {
        self.told_messages = self.messages;
        self.owes_grant = true;
    }

    /// Messages that were matched and not reported.
    #[inline(always)]
    fn unreported(&self) -> u32 {
        let ahead = self.matched_messages.wrapping_sub(self.told_messages);
        // Granted messages are reported before they are matched.
        if ahead > u32::MAX / 2 {
            0
        } else {
            ahead
        }
    }

    /// Whether to report credit in a word of its own.
    #[inline(always)]
    pub fn is_urgent(&self) -> bool {
        let units = self.matched_units.wrapping_sub(self.told_units);
        let exceeds = |messages: u32, units_most: u32| self.unreported() >= messages || units >= units_most;
        exceeds(MESSAGES_MOST / 2, UNITS_MOST / 2) || self.owes_grant || (self.asked && exceeds(1, 1))
    }

    /// The credit to report with the next word.
    #[inline(always)]
    pub fn to_tell(&self) -> Told {
        let messages = self.told_messages.wrapping_add(self.unreported());
        Told { messages: messages as u16, units: self.matched_units as u16 }
    }

    /// Notes that the credit was reported.
    #[inline(always)]
    pub fn on_told(&mut self) {
        self.told_messages = self.told_messages.wrapping_add(self.unreported());
        self.told_units = self.matched_units;
        (self.asked, self.owes_grant) = (false, false);
    }
}

/// A message of ours that has not ended.
#[derive(Debug)]
pub(super) struct Sending {
    pub label: Label,
    pub contents: Source,
    pub ends: Ends,
}

/// How a message of ours ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ends {
    /// With a completion of this context, when its buffer can be used again.
    Sent(u64),
    /// With a completion of this context, when it is stored at the receiver.
    Stored(u64),
    /// Without a completion: its contents are a copy.
    Injected,
    /// It has ended already, but its contents came back and wait to be fetched.
    Bounced,
}

impl Ends {
    /// Whether the program considers the message sent: it was told so, or need not be told.
    pub fn was_told(self) -> bool {
        matches!(self, Ends::Injected | Ends::Bounced)
    }
}

/// Contents on their way to a peer that fetches them.
#[derive(Debug)]
pub(super) struct Stream {
    pub number: u32,
    /// The peer's receive.
    pub receive: u32,
    pub sending: Sending,
}

/// A peer. Its number is also its index in the endpoint's translation table.
#[derive(Debug)]
pub(super) struct Peer {
    pub name: Name,
    pub key: Key,
    /// The index at which the program has mapped it.
    pub index: Option<u32>,
    /// Number of times that everything under way with it was ended.
    pub life: u32,
    /// The reason of the last time, unless it has sent something since.
    pub lost: Option<Reason>,
    /// It has freed its endpoint, and receives from it stay.
    pub has_left: bool,
    /// We have said hello.
    pub is_greeted: bool,
    /// Say hello even if there is nothing else to say.
    pub wants_hello: bool,
    /// Say goodbye when everything else is said: the program freed the endpoint.
    pub says_bye: bool,
    /// The flow by which it sends to us.
    pub flow: Option<FlowId>,
    pub window: Window,
    pub due: Due,
    /// We asked for credit and have got none yet.
    pub has_asked: bool,
    /// Words to send before anything else.
    pub words: VecDeque<Word>,
    pub queue: VecDeque<Sending>,
    /// Messages that wait to be fetched.
    pub announced: Announced<Sending>,
    /// How many of them came back because the receiver had no memory for them.
    pub bounced: usize,
    /// Contents that are being fetched. It also knows whether there is room for anything.
    pub streams: Departures<Stream>,
    /// Sends that end when they are stored, by number: context, and buffer to give back.
    pub unstored: HashMap<u32, (u64, Option<Vec<u8>>)>,
}

impl Peer {
    pub fn new(name: Name, key: Key) -> Peer {
        Peer {
            name,
            key,
            index: None,
            life: 0,
            lost: None,
            has_left: false,
            is_greeted: false,
            wants_hello: false,
            says_bye: false,
            flow: None,
            window: Window::default(),
            due: Due::default(),
            has_asked: false,
            words: VecDeque::new(),
            queue: VecDeque::new(),
            announced: Announced::new(MESSAGES_MOST as usize),
            bounced: 0,
            streams: Departures::default(),
            unstored: HashMap::new(),
        }
    }

    /// Whether there is anything to send.
    pub fn has_something(&self) -> bool {
        let is_silent = self.words.is_empty() && self.queue.is_empty() && self.streams.is_empty();
        !is_silent || self.due.is_urgent() || (self.wants_hello && !self.is_greeted) || self.says_bye
    }

    /// Whether the endpoint, which the program has freed, still has words to send to this peer.
    pub fn has_last_words(&self) -> bool {
        !(self.words.is_empty() && self.queue.is_empty() && self.announced.is_empty() && self.streams.is_empty())
            || self.says_bye
    }

    /// Number of messages that the program considers sent but that wait in this process.
    pub fn unsent(&self) -> usize {
        let told = |sending: &&Sending| sending.ends.was_told();
        let streams = self.streams.iter().map(|stream| &stream.sending);
        self.queue.iter().chain(self.announced.iter()).chain(streams).filter(told).count()
    }

    /// Whether a message could go at once, before any other word.
    #[inline(always)]
    pub fn is_free(&self) -> bool {
        self.is_greeted && !self.streams.is_full() && self.words.is_empty() && self.queue.is_empty()
    }

    /// Notes the result of sending a message with its contents. Returns whether it was sent.
    #[inline(always)]
    pub fn on_sent_eager(&mut self, sent: Result<(), SendError>, len: usize) -> bool {
        match sent {
            Ok(()) => {
                self.window.spend(units(len));
                self.due.on_told();
                true
            }
            Err(_) => {
                self.streams.set_full();
                false
            }
        }
    }

    /// Whether a message of this length is sent with its contents.
    #[inline(always)]
    pub fn goes_whole(&self, len: usize, most: usize) -> bool {
        len <= most && self.bounced == 0 && self.window.has_units(units(len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credit_comes_round_and_is_never_more_than_was_spent() {
        let (mut window, mut due) = (Window::default(), Due::default());
        for round in 0..20u32 {
            for _ in 0..MESSAGES_MOST {
                assert!(window.has_message() && window.has_units(2));
                assert!(due.arrive(window.next, 2));
                window.spend(2);
            }
            assert!(!window.has_message(), "round {round}");
            for at in 1..=MESSAGES_MOST {
                due.matched(2);
                assert_eq!(due.is_urgent(), at >= MESSAGES_MOST / 2);
            }
            assert!(window.take(due.to_tell()));
            due.on_told();
            assert!(!due.is_urgent());
            // Repeated credit changes nothing. Credit beyond what was sent is refused.
            assert!(window.take(due.to_tell()));
            let mut lie = due.to_tell();
            lie.messages = lie.messages.wrapping_add(1);
            assert!(!window.take(lie));
        }
    }

    #[test]
    fn what_is_granted_is_credit_once() {
        let (mut window, mut due) = (Window::default(), Due::default());
        for round in 1..=20u32 {
            assert!(!due.is_exhausted());
            for _ in 0..MESSAGES_MOST {
                assert!(window.has_message() && due.arrive(window.next, 0));
                window.spend(0);
            }
            assert!(!window.has_message() && due.is_exhausted() && !due.is_urgent(), "round {round}");
            due.grant();
            assert!(due.is_urgent() && window.take(due.to_tell()));
            due.on_told();
            assert!(!due.is_urgent());
        }
        // All of them are matched, which changes nothing for the sender. Later messages count as usual.
        (0..20 * MESSAGES_MOST).for_each(|_| due.matched(0));
        assert!(!due.is_urgent() && window.take(due.to_tell()));
        for _ in 0..MESSAGES_MOST {
            assert!(window.has_message() && due.arrive(window.next, 0));
            window.spend(0);
            due.matched(0);
        }
        assert!(!window.has_message() && due.is_urgent());
        assert!(window.take(due.to_tell()) && window.has_message());
    }

    #[test]
    fn numbers_out_of_order_and_overdrafts_are_found() {
        let mut due = Due::default();
        assert!(due.arrive(0, 0) && !due.arrive(2, 0));
        let mut due = Due::default();
        assert!(due.arrive(0, UNITS_MOST) && !due.arrive(1, 1));
        let mut due = Due::default();
        assert!((0..MESSAGES_MOST).all(|number| due.arrive(number, 0)));
        assert!(!due.arrive(MESSAGES_MOST, 0));
    }

    #[test]
    fn a_sender_that_asked_is_told_of_the_first() {
        let mut due = Due { asked: true, ..Due::default() };
        assert!(due.arrive(0, 1) && !due.is_urgent());
        due.matched(1);
        assert!(due.is_urgent());
        due.on_told();
        assert!(!due.is_urgent() && !due.asked);
    }
}
