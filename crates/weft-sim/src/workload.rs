//! Programs that come with the simulator, written as a user would write them.

use crate::program::{Context, Message, Notice, Program};
use crate::topology::HostId;
use std::rc::Rc;
use std::time::Duration;
use weft_core::{MessageKind, Outgoing, Returned, SendError, Service};
use weft_transport::{Random, Time};
use weft_wire::Reason;

/// Who sends what to whom.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pattern {
    /// Each even host asks the next one, one request at a time; the answer is as large as the request.
    PingPong,
    /// Each host sends one-way messages to all others in turn.
    AllToAll,
    /// All hosts send one-way messages to the first.
    Incast,
    /// All hosts ask the first, up to 8 requests at a time each; the answer is as large as the request.
    ClientServer,
    /// Each even host sends one-way messages to the next one.
    Bulk,
}

/// What hosts are to do.
///
/// ```
/// use std::time::Duration;
/// use weft_sim::{Config, Pattern, Simulation, Workload};
///
/// let mut workload = Workload::new(Pattern::Bulk, 100, 1024);
/// workload.asks = true;
/// let mut simulation = Simulation::new(Config::default(), move |host| workload.program(host, 2));
/// let report = simulation.settle(Duration::from_secs(10)).expect("every promise is kept");
/// assert_eq!(report.messages.completed, 100); // told that they are stored
/// ```
#[derive(Clone, Debug)]
pub struct Workload {
    /// Who sends what to whom.
    pub pattern: Pattern,
    /// Messages of each host that sends.
    pub count: u64,
    /// Bytes of payload.
    pub size: usize,
    /// Senders ask to be told that one-way messages are stored.
    pub asks: bool,
    /// Messages that come back are sent again, to the next life of their host if need be. Otherwise they have ended.
    pub persists: bool,
    /// No message is sent after this time.
    pub stops_at: Option<Duration>,
    /// Time between two sends of a host. `None`: as fast as possible.
    pub pace: Option<Duration>,
    /// Nothing more is sent to a host from which a message came back, or that was lost.
    pub gives_up: bool,
    /// The service that messages ask for.
    pub service: Service,
    /// Payloads are slices of this.
    noise: Rc<[u8]>,
}

/// The operation of all messages.
const OP: u8 = 1;

/// Requests of one client under way.
const CLIENT_WINDOW: u64 = 8;

/// Time before a lost host is looked up again.
const PATIENCE: Duration = Duration::from_millis(20);

impl Workload {
    /// `count` messages of `size` bytes from each host that sends.
    pub fn new(pattern: Pattern, count: u64, size: usize) -> Workload {
        let size = size.min(64 << 10);
        let mut random = Random::new(0x6e6f_6973);
        let noise = (0..size + 4096).map(|_| random.bits() as u8).collect();
        Workload {
            pattern,
            count,
            size,
            asks: false,
            persists: false,
            stops_at: None,
            pace: None,
            gives_up: false,
            service: Service::default(),
            noise,
        }
    }

    /// `count` small requests, one after the other.
    pub fn ping_pong(count: u64) -> Workload {
        Workload::new(Pattern::PingPong, count, 16)
    }

    /// The program of `host`, one of `hosts`.
    pub fn program(&self, host: HostId, hosts: u32) -> Load {
        let others = self.others(host, hosts);
        let left = if others.is_empty() { 0 } else { self.count };
        Load {
            workload: self.clone(),
            others,
            is_asking: self.is_asking(),
            under_way_most: self.under_way_most(),
            left,
            next: 0,
            serial: 0,
            under_way: 0,
            waits: false,
            rests: false,
            again: Vec::new(),
            received: 0,
            returned: 0,
        }
    }

    /// The hosts that `host` sends to, in turn.
    pub(crate) fn others(&self, host: HostId, hosts: u32) -> Vec<HostId> {
        let HostId(number) = host;
        match self.pattern {
            Pattern::PingPong | Pattern::Bulk if number % 2 == 0 && number + 1 < hosts => vec![HostId(number + 1)],
            Pattern::Incast | Pattern::ClientServer if number > 0 => vec![HostId(0)],
            Pattern::AllToAll => (1..hosts).map(|away| HostId((number + away) % hosts)).collect(),
            _ => Vec::new(),
        }
    }

    /// Whether messages are requests.
    pub(crate) fn is_asking(&self) -> bool {
        matches!(self.pattern, Pattern::PingPong | Pattern::ClientServer)
    }

    /// Requests of one host under way, at most.
    pub(crate) fn under_way_most(&self) -> u64 {
        match self.pattern {
            Pattern::PingPong => 1,
            Pattern::ClientServer => CLIENT_WINDOW,
            _ => u64::MAX,
        }
    }

    /// The arguments and payload of a host's message with this serial number.
    pub(crate) fn message(&self, host: HostId, serial: u64) -> ([u32; 3], &[u8]) {
        let from = serial as usize * 8 % 4096;
        ([serial as u32, (serial >> 32) as u32, host.0], &self.noise[from..from + self.size])
    }
}

/// A program that plays its part in a workload.
#[derive(Debug)]
pub struct Load {
    workload: Workload,
    /// The hosts that it sends to.
    others: Vec<HostId>,
    is_asking: bool,
    under_way_most: u64,
    /// Messages still to be sent.
    left: u64,
    /// The next one of `others`.
    next: usize,
    /// Messages sent.
    serial: u64,
    /// Requests not yet answered.
    under_way: u64,
    /// The last send was refused as *full*.
    waits: bool,
    /// A host was lost or returned something: nothing is sent until the alarm.
    rests: bool,
    /// Messages to be sent again, by destination and serial number.
    again: Vec<(HostId, u64)>,
    received: u64,
    returned: u64,
}

impl Load {
    /// Messages that came.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Messages that came back.
    pub fn returned(&self) -> u64 {
        self.returned
    }

    /// Messages still to be sent.
    pub fn left(&self) -> u64 {
        self.left + self.again.len() as u64
    }

    fn send_more(&mut self, cx: &mut Context<'_>) {
        if self.workload.stops_at.is_some_and(|at| cx.now().since(Time::default()) >= at) {
            self.stop();
        }
        while !self.waits && !self.rests && self.under_way < self.under_way_most {
            if let Some(&(to, serial)) = self.again.last() {
                if !self.send_one(cx, to, serial) {
                    return;
                }
                self.again.pop();
            } else if self.left > 0 {
                let to = self.others[self.next % self.others.len()];
                if !self.send_one(cx, to, self.serial) {
                    return;
                }
                (self.left, self.next, self.serial) = (self.left - 1, self.next + 1, self.serial + 1);
            } else {
                return;
            }
            if let Some(pace) = self.workload.pace {
                self.rest(cx, pace);
            }
        }
    }

    /// Sets the alarm again, since a wait for a lost host may have replaced it.
    fn wake_to_stop(&self, cx: &mut Context<'_>) {
        let passed = cx.now().since(Time::default());
        if let Some(at) = self.workload.stops_at.filter(|at| *at > passed) {
            cx.wake_in(at - passed);
        }
    }

    /// Sends nothing for a while. After a loss, an immediate new call would fail again and again without end.
    fn rest(&mut self, cx: &mut Context<'_>, time: Duration) {
        if !std::mem::replace(&mut self.rests, true) {
            cx.wake_in(time);
        }
    }

    fn stop(&mut self) {
        self.left = 0;
        self.again.clear();
    }

    fn send_one(&mut self, cx: &mut Context<'_>, to: HostId, serial: u64) -> bool {
        let (args, payload) = self.workload.message(cx.host(), serial);
        let completion = self.workload.asks.then_some(serial);
        let message = Outgoing { op: OP, args: &args, payload, completion };
        let sent = match self.is_asking {
            true => cx.try_request(to, Outgoing { completion: Some(serial), ..message }),
            false => cx.try_send(to, message),
        };
        match sent {
            Ok(()) => self.under_way += u64::from(self.is_asking),
            Err(SendError::Full) => self.waits = true,
            Err(error) => unreachable!("a small message to a host that there is: {error}"),
        }
        sent.is_ok()
    }
}

impl Program for Load {
    fn on_start(&mut self, cx: &mut Context<'_>) {
        cx.set_service(self.workload.service);
        self.wake_to_stop(cx);
        self.send_more(cx);
    }

    fn on_message(&mut self, cx: &mut Context<'_>, message: &Message<'_>) -> Result<(), Reason> {
        self.received += 1;
        if message.kind == MessageKind::Request {
            if let Some(token) = message.take_reply() {
                // The requester may be gone.
                let _ = cx.reply(token, OP, message.args, message.payload);
            }
        }
        Ok(())
    }

    fn on_returned(&mut self, cx: &mut Context<'_>, message: Returned) {
        self.returned += 1;
        let Some(to) = message.destination else { return };
        if message.kind == MessageKind::Request {
            self.under_way -= 1;
        }
        if self.workload.gives_up {
            return self.stop();
        }
        if self.workload.persists {
            let serial = message.args[..2].iter().rev().fold(0, |all, arg| all << 32 | u64::from(*arg));
            self.again.push((HostId(to), serial));
        }
        self.rest(cx, PATIENCE);
    }

    fn on_notice(&mut self, cx: &mut Context<'_>, notice: Notice) {
        match notice {
            Notice::Completed(_) => self.under_way -= u64::from(self.is_asking),
            Notice::CanSend(_) => self.waits = false,
            Notice::PeerLost(..) if self.workload.gives_up => self.stop(),
            Notice::PeerLost(..) => self.rest(cx, PATIENCE),
        }
        self.send_more(cx);
    }

    fn on_alarm(&mut self, cx: &mut Context<'_>) {
        self.wake_to_stop(cx);
        (self.waits, self.rests) = (false, false);
        let others = std::mem::take(&mut self.others);
        others.iter().for_each(|other| _ = cx.look_up(*other));
        self.others = others;
        self.send_more(cx);
    }

    fn is_done(&self) -> bool {
        // While requests are under way, one may come back and have to be sent again.
        self.left == 0 && self.again.is_empty() && self.under_way == 0
    }
}
