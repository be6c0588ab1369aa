//! The desk: the helper's side of the status socket. Askers, the clients, connect to a socket of its own, so they cannot hold up
//! set-ups. They are answered once every bundle has left a report or has shown that it does not poll.
//!
//! Bounds: [`ASKERS_MOST`] at a time, each for [`PATIENCE`] and one answer of at most [`ROWS_MOST`] rows. Others wait in the
//! kernel's queue. Askers of other users get no answer; at most one per [`FOREIGN_EVERY`] is accepted, however many there are.

use super::document::{Activity, Bundle, Process, VERSION};
use super::stamps::{self, KEPT_MOST, PERIOD};
use super::{address, digits, ANSWER_MOST, ASKS_FOR_STAMPS};
use crate::node::Error;
use crate::setup::owner_of;
use crate::socket::{self, Listener, Socket};
use crate::watch::Signals;
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{self, SendFlags, SocketAddrUnix, SocketType};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weft_shm::Descriptor;
use weft_wire::{BundleId, Epoch, Uid};

/// Largest number of askers served at a time.
const ASKERS_MOST: usize = 4;

/// Backlog of the status socket.
const BACKLOG: i32 = 16;

/// How long a bundle has to leave a report before it counts as computing.
const REPORT_WITHIN: Duration = Duration::from_millis(100);

/// How long an asker has to read its answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// After an asker of another user, nobody is accepted for this long: even a flood of calls causes only a hundred accepts a second.
const FOREIGN_EVERY: Duration = Duration::from_millis(10);

/// Largest number of rows of one answer, which keeps it below [`ANSWER_MOST`]. Endpoints, peers, flows and destinations are rows;
/// an endpoint for remote memory counts twice.
pub(super) const ROWS_MOST: usize = 4096;

/// Largest number of bundles of one answer.
const BUNDLES_MOST: usize = 1024;

/// Largest number of stamped messages of one answer. It has all or none of a bundle's.
const STAMPS_MOST: usize = 8 * KEPT_MOST;

/// The events for which the desk's descriptors are watched.
const OPEN: epoll::EventFlags = epoll::EventFlags::IN.union(epoll::EventFlags::ONESHOT);
const WRITABLE: epoll::EventFlags = epoll::EventFlags::OUT.union(epoll::EventFlags::ONESHOT);

/// The desk of a node.
#[derive(Debug)]
pub(crate) struct Desk {
    listener: Listener,
    epoch: Epoch,
    uid: Uid,
    askers: Vec<Asker>,
    next: u32,
    /// The listener is watched for the next asker.
    is_open: bool,
    /// No asker is accepted before.
    closed_until: Option<Instant>,
    /// Until when messages are stamped, and when windows open next.
    stamps_until: Option<Instant>,
    next_window: Option<Instant>,
}

#[derive(Debug)]
struct Asker {
    id: u32,
    socket: Socket,
    /// It asked for stamped messages too.
    has_stamps: bool,
    /// The deadline, first for the reports, then for the asker to read its answer.
    until: Instant,
    answer: Option<Answer>,
}

#[derive(Debug)]
struct Answer {
    bytes: Vec<u8>,
    told: usize,
    is_watched: bool,
}

/// The surroundings that the desk works with.
pub(crate) struct Around<'a> {
    /// The helper's set.
    pub epoll: &'a Descriptor,
    /// The token of the listener, and the bit that tokens of askers have besides their numbers.
    pub listener: u64,
    pub asker: u64,
    /// Bundles ring it when they have left a report.
    pub bell: &'a Arc<Descriptor>,
    /// The bundles.
    pub bundles: &'a [(BundleId, Arc<Signals>)],
}

impl Desk {
    /// Opens the status socket of an epoch.
    ///
    /// # Errors
    /// If the kernel gives none.
    pub fn open(epoch: Epoch, uid: Uid) -> Result<Desk, Error> {
        let way_out = "raise the limit of open files (ulimit -n), or close some";
        let listener = Listener::open(&address(epoch)?, SocketType::STREAM, BACKLOG)
            .map_err(|e| Error::system("cannot make the status socket", e, way_out))?;
        let (askers, next) = (Vec::new(), 0);
        let (closed_until, stamps_until, next_window) = (None, None, None);
        Ok(Desk { listener, epoch, uid, askers, next, is_open: false, closed_until, stamps_until, next_window })
    }

    /// Whether there is no asker, nothing is stamped, and the listener is watched.
    pub fn is_idle(&self) -> bool {
        self.askers.is_empty() && self.is_open && self.stamps_until.is_none()
    }

    /// The listener's watch has fired.
    pub fn is_called(&mut self) {
        self.is_open = false;
    }

    /// Accepts askers, and asks all bundles for a report.
    pub fn hear(&mut self, now: Instant, around: &Around<'_>) {
        while self.askers.len() < ASKERS_MOST {
            if socket::is_crowded() {
                self.closed_until = Some(now + FOREIGN_EVERY);
                break;
            }
            let Ok(socket) = self.listener.accept() else { break };
            if !self.may_ask(&socket) {
                // It is closed without an answer.
                self.closed_until = Some(now + FOREIGN_EVERY);
                break;
            }
            let has_stamps = wants_stamps(&socket);
            if has_stamps {
                around.bundles.iter().for_each(|(_, signals)| signals.lease.renew());
                // Later than the lease of any bundle: a bundle that is told of the end then cannot mistake it for another window.
                self.stamps_until = Some(now + stamps::LEASE + PERIOD);
                self.next_window = Some(now);
            }
            self.askers.push(Asker { id: self.next, socket, has_stamps, until: now + REPORT_WITHIN, answer: None });
            self.next = self.next.wrapping_add(1);
        }
        if self.askers.iter().any(|asker| asker.answer.is_none()) {
            for (_, signals) in around.bundles {
                signals.board.ask(around.bell, signals.is_waiting());
                signals.raise(Signals::REPORT);
            }
        }
    }

    /// An asker's socket has room again.
    pub fn go_on(&mut self, id: u32, around: &Around<'_>) {
        if let Some(asker) = self.askers.iter_mut().find(|asker| asker.id == id) {
            asker.tell(around);
        }
        self.let_go(Instant::now(), around);
    }

    /// Does what is due. Returns when something is due next.
    pub fn tick(&mut self, now: Instant, around: &Around<'_>) -> Option<Instant> {
        if self.askers.iter().any(|asker| asker.answer.is_none()) {
            let have_all = !around.bundles.iter().any(|(_, signals)| signals.board.is_asked());
            let are_due = |asker: &&mut Asker| asker.answer.is_none() && (have_all || asker.until <= now);
            let mut answers = [None, None];
            for asker in self.askers.iter_mut().filter(are_due) {
                let answer = &mut answers[usize::from(asker.has_stamps)];
                let compose = || compose(self.epoch, self.uid, now, around, asker.has_stamps);
                let bytes = answer.get_or_insert_with(compose).clone();
                asker.answer = Some(Answer { bytes, told: 0, is_watched: false });
                asker.until = now + PATIENCE;
                asker.tell(around);
            }
        }
        self.let_go(now, around);
        self.open_again(now, around);
        self.open_windows(now, around);
        self.askers.iter().map(|asker| asker.until).chain(self.closed_until).chain(self.next_window).min()
    }

    /// Opens a window each [`PERIOD`], at the same moments as other processes do, and ends stamping when the time is over.
    fn open_windows(&mut self, now: Instant, around: &Around<'_>) {
        let Some(until) = self.stamps_until.filter(|_| self.next_window.is_some_and(|next| next <= now)) else {
            return;
        };
        for (_, signals) in around.bundles {
            // At the end, a bundle with an open window is told too. A sleeping bundle is not woken for this.
            if now >= until || !signals.lease.is_open() {
                signals.leave(Signals::STAMP);
            }
        }
        let period = PERIOD.as_nanos() as u64;
        let left = Duration::from_nanos(period - stamps::now() % period);
        (self.stamps_until, self.next_window) =
            if now >= until { (None, None) } else { (Some(until), Some(now + left)) };
    }

    /// Accepts askers again, if there is a place for them.
    fn open_again(&mut self, now: Instant, around: &Around<'_>) {
        self.closed_until = self.closed_until.filter(|until| *until > now);
        if self.is_open || self.closed_until.is_some() || self.askers.len() >= ASKERS_MOST {
            return;
        }
        let token = epoll::EventData::new_u64(around.listener);
        let watched = match epoll::modify(around.epoll, &self.listener, token, OPEN) {
            Err(Errno::NOENT) => epoll::add(around.epoll, &self.listener, token, OPEN),
            watched => watched,
        };
        self.is_open = watched.is_ok();
    }

    /// Removes askers that have their whole answer, and those that took too long.
    fn let_go(&mut self, now: Instant, around: &Around<'_>) {
        self.askers.retain(|asker| {
            let Some(answer) = &asker.answer else { return true };
            let stays = answer.told < answer.bytes.len() && asker.until > now;
            if !stays && answer.is_watched {
                // A forked child may hold the socket open, and then closing it would not remove it from the set.
                let _ = epoll::delete(around.epoll, &asker.socket);
            }
            stays
        });
    }

    /// The same user may ask, and so may root, who could look into the process anyway.
    fn may_ask(&self, socket: &Socket) -> bool {
        owner_of(socket).is_some_and(|user| user.is_same_as(self.uid) || user == Uid(0))
    }
}

impl Asker {
    /// Sends as much as the socket takes.
    fn tell(&mut self, around: &Around<'_>) {
        let Asker { id, socket, answer: Some(answer), .. } = self else { return };
        while answer.told < answer.bytes.len() {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match net::send(&*socket, &answer.bytes[answer.told..], flags) {
                Ok(bytes) => answer.told += bytes,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return answer.wait(*id, socket, around),
                // The asker is gone.
                Err(_) => answer.told = answer.bytes.len(),
            }
        }
    }
}

impl Answer {
    /// Has the helper watch for room in the socket.
    fn wait(&mut self, id: u32, socket: &Socket, around: &Around<'_>) {
        let token = epoll::EventData::new_u64(around.asker | u64::from(id));
        let watched = match self.is_watched {
            true => epoll::modify(around.epoll, socket.as_fd(), token, WRITABLE),
            false => epoll::add(around.epoll, socket.as_fd(), token, WRITABLE),
        };
        self.is_watched |= watched.is_ok();
    }
}

/// Whether an asker's socket name asks for stamped messages.
fn wants_stamps(socket: &Socket) -> bool {
    let name = net::getpeername(socket).ok().flatten().and_then(|name| SocketAddrUnix::try_from(name).ok());
    name.is_some_and(|name| name.abstract_name().is_some_and(|name| name.starts_with(ASKS_FOR_STAMPS.as_bytes())))
}

/// The status of the process, as JSON.
fn compose(epoch: Epoch, uid: Uid, now: Instant, around: &Around<'_>, has_stamps: bool) -> Vec<u8> {
    let mut left = Left { rows: ROWS_MOST, stamps: if has_stamps { STAMPS_MOST } else { 0 } };
    let mut bundles: Vec<&(BundleId, Arc<Signals>)> = around.bundles.iter().collect();
    bundles.sort_by_key(|(bundle, _)| *bundle);
    let left_out = bundles.len().saturating_sub(BUNDLES_MOST) as u64;
    bundles.truncate(BUNDLES_MOST);
    let process = Process {
        version: VERSION,
        weft: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        uid: uid.0,
        epoch: digits(epoch),
        bundles: bundles.into_iter().map(|(bundle, signals)| describe(*bundle, signals, now, &mut left)).collect(),
        left_out,
    };
    // Fails only for maps whose keys are not strings, and there are none.
    let bytes = serde_json::to_vec(&process).unwrap_or_default();
    debug_assert!(bytes.len() <= ANSWER_MOST, "{} bytes", bytes.len());
    bytes
}

/// The room left in an answer.
struct Left {
    rows: usize,
    stamps: usize,
}

fn describe(bundle: BundleId, signals: &Signals, now: Instant, left: &mut Left) -> Bundle {
    let activity = match (signals.board.is_asked(), signals.board.did_wait()) {
        (true, _) => Activity::Computes,
        (false, true) => Activity::Waits,
        (false, false) => Activity::Polls,
    };
    let bundle = Bundle { is_stamping: signals.lease.runs(), ..Bundle::silent(bundle.0, activity) };
    let Some(told) = signals.board.take() else { return bundle };
    let mut bundle = bundle.told(now.saturating_duration_since(told.at), &told, &mut left.rows);
    let stamped = |stamps: &&stamps::Stamps| stamps.asked.len() + stamps.answered.len();
    bundle.stamps = told.stamps.as_ref().filter(|stamps| stamped(stamps) <= left.stamps).cloned();
    left.stamps -= bundle.stamps.as_ref().as_ref().map_or(0, stamped);
    signals.board.put_back(told);
    bundle
}
