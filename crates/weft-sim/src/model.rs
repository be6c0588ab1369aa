//! Other protocols, as models. They run on simulated hosts in place of weft, with the same links, faults and event queue, so that
//! they can be compared with weft and can share links with it.

use crate::checker::{Contents, Ends};
use crate::host::Shared;
use crate::network::Event;
use crate::topology::HostId;
use std::time::Duration;
use weft_core::MessageKind;
use weft_transport::{Random, Time};
use weft_wire::Epoch;

/// A protocol on a host. Its calls must not block; they take no simulated time.
pub trait Model {
    /// The host is up.
    fn on_start(&mut self, wire: &mut Wire<'_>);

    /// A packet came. It may be damaged, a duplicate, or from a host that speaks weft.
    fn on_packet(&mut self, wire: &mut Wire<'_>, from: HostId, packet: &[u8]);

    /// The time given to [`Wire::wake_at`] has come.
    fn on_alarm(&mut self, wire: &mut Wire<'_>) {
        let _ = wire;
    }

    /// Whether it has done all that it meant to, and waits for nothing.
    fn is_done(&self) -> bool {
        true
    }
}

/// What a model can do.
#[derive(Debug)]
pub struct Wire<'a> {
    host: HostId,
    now: u64,
    alarm: &'a mut Option<u64>,
    random: &'a mut Random,
    shared: &'a Shared,
}

impl Wire<'_> {
    /// Sends a packet. The outcome is not reported.
    pub fn send(&mut self, to: HostId, packet: &[u8]) {
        self.shared.network.borrow_mut().send(self.host.0, to.0, packet);
    }

    /// Makes the host call [`Model::on_alarm`] at `at`. There is one alarm: a new one replaces it.
    pub fn wake_at(&mut self, at: Time) {
        *self.alarm = Some(at.as_nanos());
    }

    /// A message was accepted: from now on the checker holds it to the same promises as weft's messages.
    pub fn note_sent(&mut self, to: HostId, args: &[u32], payload: &[u8]) {
        let ends = Ends { from: self.host, from_life: life(self.host), to, to_life: life(to) };
        self.shared.checker.borrow_mut().on_sent(self.now, ends, contents(args, payload), None);
    }

    /// A message is delivered.
    pub fn note_delivered(&mut self, from: HostId, args: &[u32], payload: &[u8]) {
        let ends = Ends { from, from_life: life(from), to: self.host, to_life: life(self.host) };
        let takes = self.shared.checker.borrow_mut().on_delivered(self.now, ends, contents(args, payload));
        let bytes = args.len() * 4 + payload.len();
        self.shared.network.borrow_mut().sampler.note_delivery(self.now, bytes, takes.unwrap_or_default());
    }

    /// This host.
    pub fn host(&self) -> HostId {
        self.host
    }

    /// Simulated time.
    pub fn now(&self) -> Time {
        Time::from_nanos(self.now)
    }

    /// A generator of random numbers, whose seed comes from the simulation's.
    pub fn random(&mut self) -> &mut Random {
        self.random
    }

    /// The largest packet that this host's link claims to carry.
    pub fn packet_bytes(&self) -> u16 {
        self.shared.network.borrow().packet_bytes(self.host.0)
    }
}

/// A model at work on a host.
pub(crate) struct Station {
    model: Box<dyn Model>,
    random: Random,
    alarm: Option<u64>,
    /// When its valid timer event comes; any other is stale.
    timer_at: Option<u64>,
    has_started: bool,
    packets: Vec<u32>,
}

impl std::fmt::Debug for Station {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a model with its alarm at {:?}", self.alarm.map(Duration::from_nanos))
    }
}

impl Station {
    pub fn new(model: Box<dyn Model>, random: Random) -> Station {
        Station { model, random, alarm: None, timer_at: None, has_started: false, packets: Vec::new() }
    }

    /// Takes packets in, and lets the model go on.
    pub fn look(&mut self, host: HostId, shared: &Shared) {
        let now = {
            let mut network = shared.network.borrow_mut();
            network.take_inbox(host.0, &mut self.packets);
            network.now
        };
        let Station { model, random, alarm, has_started, packets, .. } = self;
        if !std::mem::replace(has_started, true) {
            model.on_start(&mut Wire { host, now, alarm, random, shared });
        }
        for id in packets.drain(..) {
            let (from, bytes, _) = shared.network.borrow_mut().take_packet(id);
            model.on_packet(&mut Wire { host, now, alarm, random, shared }, HostId(from), &bytes);
            shared.network.borrow_mut().give_back(id, bytes);
        }
        if alarm.is_some_and(|at| at <= now) {
            *alarm = None;
            model.on_alarm(&mut Wire { host, now, alarm, random, shared });
        }
        if let Some(at) = self.alarm.filter(|at| self.timer_at.is_none_or(|timer| *at < timer)) {
            let at = at.max(now + 1);
            self.timer_at = Some(at);
            shared.network.borrow_mut().at(at, Event::Timer { host: host.0 });
        }
    }

    /// A timer event came. True if it is valid.
    pub fn on_timer(&mut self, now: u64) -> bool {
        let is_due = self.timer_at == Some(now);
        if is_due {
            self.timer_at = None;
        }
        is_due
    }

    pub fn is_done(&self) -> bool {
        self.model.is_done()
    }
}

/// A model has one life.
fn life(host: HostId) -> Epoch {
    Epoch(u64::from(host.0) + 1)
}

fn contents<'a>(args: &'a [u32], payload: &'a [u8]) -> Contents<'a> {
    Contents { kind: MessageKind::OneWay, op: 0, args, payload }
}
