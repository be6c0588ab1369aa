//! The status that the daemon sends to tools, a piece at a time.

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{self, SendFlags};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::time::Instant;
use weft_core::ni::Link;
use weft_daemon::{Engine, Survey};
use weft_transport::Time;
use weft_wire::segment::Segment;
use weft_wire::status::{DaemonStatus, Item, Scope, ITEMS_BYTES};
use weft_wire::Uid;

/// While there is other work, looks rest this many times as long as they took, so that users who look without end get at most a tenth of
/// the daemon.
const REST: u64 = 9;

/// All looks, and what the daemon knows in addition to its engine.
#[derive(Debug)]
pub struct Looks {
    /// The clients whose looks can go on, in turn. A look whose tool does not read is not among them.
    queue: VecDeque<usize>,
    /// The processes of attachments, by their numbers.
    pids: Vec<Option<u32>>,
    /// What the daemon runs without, and what would help.
    degraded: Vec<String>,
    begin: Instant,
    /// When the next step is due while there is other work.
    due_at: Time,
}

/// A look: a tool's request for the status.
#[derive(Debug)]
pub struct Look {
    survey: Survey,
    /// A packet that was not sent, because the tool has not read earlier ones.
    packet: Vec<u8>,
}

/// When to continue a look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Onward {
    /// In a later turn.
    Later,
    /// Once the tool has read something.
    Blocked,
    /// Never: all was sent, or the tool is gone.
    Over,
}

impl Looks {
    pub fn new() -> Looks {
        Looks {
            queue: VecDeque::new(),
            pids: Vec::new(),
            degraded: Vec::new(),
            begin: Instant::now(),
            due_at: Time::default(),
        }
    }

    /// Notes what the daemon runs without, and what would help.
    pub fn note_degraded(&mut self, what: impl Into<String>) {
        self.degraded.push(what.into());
    }

    /// Notes the process of an attachment.
    pub fn note_process(&mut self, attachment: u32, pid: Option<u32>) {
        let at = attachment as usize;
        if self.pids.len() <= at {
            self.pids.resize(at + 1, None);
        }
        self.pids[at] = pid;
    }

    /// Schedules a client's look for one of the next turns.
    pub fn enqueue(&mut self, client: usize) {
        if !self.queue.contains(&client) {
            self.queue.push_back(client);
        }
    }

    /// The client whose look is to continue now. `is_busy` says that there is other work.
    pub fn next(&mut self, is_busy: bool, now: Time) -> Option<usize> {
        match is_busy && now < self.due_at {
            true => None,
            false => self.queue.pop_front(),
        }
    }

    /// Notes that a step took from `begin` to `end`.
    pub fn note_step(&mut self, begin: Time, end: Time) {
        self.due_at = end.plus_nanos(end.nanos_since(begin).saturating_mul(REST));
    }

    /// A client is gone.
    pub fn forget(&mut self, client: usize) {
        self.queue.retain(|other| *other != client);
    }

    /// Adds what only the process knows to an item of the engine.
    fn complete(&self, item: &mut Item) {
        match item {
            Item::Daemon(daemon) => {
                *daemon = DaemonStatus {
                    weft: env!("CARGO_PKG_VERSION").into(),
                    pid: std::process::id(),
                    uid: own_user().0,
                    runs_ms: u64::try_from(self.begin.elapsed().as_millis()).unwrap_or(u64::MAX),
                    degraded: self.degraded.clone(),
                    ..std::mem::take(daemon)
                }
            }
            Item::Attachment(told) => told.pid = self.process_of(told.attachment),
            Item::Endpoint(told) => told.pid = self.process_of(told.attachment),
            Item::User(_) | Item::Host(_) | Item::Line(_) | Item::End(_) => {}
        }
    }

    fn process_of(&self, attachment: u32) -> Option<u32> {
        self.pids.get(attachment as usize).copied().flatten()
    }
}

impl Look {
    /// A look for a user, or for a viewer who may see everything.
    pub fn new(scope: Scope, viewer: Option<Uid>) -> Look {
        Look { survey: Survey::new(scope, viewer), packet: Vec::new() }
    }

    /// Sends some more, if the tool has read what was sent.
    pub fn go_on<S: Segment, L: Link>(&mut self, engine: &mut Engine<S, L>, looks: &Looks, socket: &OwnedFd) -> Onward {
        if self.packet.is_empty() {
            let mut items = Vec::new();
            engine.survey(&mut self.survey, &mut items);
            if !items.is_empty() {
                items.iter_mut().for_each(|item| looks.complete(item));
                // Fails only for maps with keys that are not text, and there are none.
                self.packet = serde_json::to_vec(&items).unwrap_or_default();
                debug_assert!(self.packet.len() <= ITEMS_BYTES, "{} bytes", self.packet.len());
            }
        }
        if !self.packet.is_empty() {
            match net::send(socket, &self.packet, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(_) => self.packet.clear(),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Onward::Blocked,
                Err(_) => return Onward::Over,
            }
        }
        match self.packet.is_empty() && self.survey.is_over() {
            true => Onward::Over,
            false => Onward::Later,
        }
    }
}

/// The daemon's user. Asked each time, because the daemon may become another user after its start.
pub fn own_user() -> Uid {
    Uid(rustix::process::geteuid().as_raw())
}

/// The events of a tool's socket that the daemon waits for: room if it is blocked, and otherwise only its end.
pub fn interest(is_blocked: bool) -> epoll::EventFlags {
    match is_blocked {
        true => epoll::EventFlags::OUT,
        false => epoll::EventFlags::empty(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_take_a_tenth_of_a_busy_daemon_and_all_of_an_idle_one() {
        // A turn takes 1 µs, and a step 50 µs.
        let steps = |is_busy: bool| {
            let (mut looks, mut now, mut told) = (Looks::new(), Time::default(), 0u64);
            looks.enqueue(3);
            while now < Time::default().plus_nanos(10_000_000) {
                let begin = now.plus_nanos(1000);
                now = begin;
                if let Some(client) = looks.next(is_busy, begin) {
                    now = begin.plus_nanos(50_000);
                    looks.note_step(begin, now);
                    looks.enqueue(client);
                    told += 1;
                }
            }
            told
        };
        assert!((15..=20).contains(&steps(true)), "{}", steps(true));
        assert!(steps(false) > 190, "{}", steps(false));
    }
}
