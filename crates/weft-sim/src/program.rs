//! What a user writes: a program that runs on a simulated host.

use crate::checker::{Checker, Contents, Ends};
use crate::host::{Directory, Outlet};
use crate::network::Network;
use crate::topology::HostId;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;
use weft_core::{
    Client, Delivery, Endpoint, MessageKind, Outgoing, Reliability, ReplyError, Returned, SendError, Service, State,
};
use weft_transport::{Random, Time};
use weft_wire::{Epoch, Reason};

/// A program on a host: its handlers. Each life of a host gets a new program.
///
/// The calls come from the host's polls. None of them may block, and none needs to: another call reports whatever the program waits
/// for.
///
/// ```
/// use std::time::Duration;
/// use weft_sim::{Config, Context, HostId, Message, Outgoing, Program, Reason, Simulation};
///
/// /// Host 1 asks host 0 for a number.
/// struct Ask(Option<u32>);
///
/// impl Program for Ask {
///     fn on_start(&mut self, cx: &mut Context<'_>) {
///         if cx.host() == HostId(1) && cx.try_request(HostId(0), Outgoing { op: 1, ..Outgoing::default() }).is_err() {
///             cx.wake_in(Duration::from_millis(1)); // a session is being set up
///         }
///     }
///
///     fn on_alarm(&mut self, cx: &mut Context<'_>) {
///         self.on_start(cx);
///     }
///
///     fn on_message(&mut self, cx: &mut Context<'_>, message: &Message<'_>) -> Result<(), Reason> {
///         match message.take_reply() {
///             Some(token) => cx.reply(token, 2, &[42], b"").map_err(|_| Reason::PeerLost)?,
///             None => self.0 = message.args.first().copied(),
///         }
///         Ok(())
///     }
///
///     fn is_done(&self) -> bool {
///         self.0.is_some()
///     }
/// }
///
/// let mut simulation = Simulation::new(Config::default(), |host| Ask((host == HostId(0)).then_some(0)));
/// simulation.settle(Duration::from_secs(1)).expect("every promise is kept");
/// assert_eq!(simulation.program(HostId(1)).and_then(|asker| asker.0), Some(42));
/// ```
pub trait Program {
    /// The host is up.
    fn on_start(&mut self, cx: &mut Context<'_>) {
        let _ = cx;
    }

    /// A message came. To answer a request, take [`Message::take_reply`] and pass it to [`Context::reply`], now or later; a request
    /// whose reply token is not taken ends without a reply. If this returns an error, the message goes back to its sender.
    ///
    /// # Errors
    /// The reason for the return, such as [`Reason::NoHandler`].
    fn on_message(&mut self, cx: &mut Context<'_>, message: &Message<'_>) -> Result<(), Reason>;

    /// A message came back.
    fn on_returned(&mut self, cx: &mut Context<'_>, message: Returned) {
        let _ = (cx, message);
    }

    /// Something else happened.
    fn on_notice(&mut self, cx: &mut Context<'_>, notice: Notice) {
        let _ = (cx, notice);
    }

    /// The time given to [`Context::wake_in`] has passed.
    fn on_alarm(&mut self, cx: &mut Context<'_>) {
        let _ = cx;
    }

    /// The client of the host's endpoint, if the program does not take the messages itself. The client gets all messages, returns
    /// and events in the program's place. The checker does not know its messages, so the program must check them.
    fn client(&mut self) -> Option<&mut dyn Client<Outlet>> {
        None
    }

    /// The [client](Program::client) was called: it may have results for the program.
    fn on_client(&mut self, cx: &mut Context<'_>) {
        let _ = cx;
    }

    /// Whether it has done all that it meant to. A simulation settles when all programs are done and all messages have ended.
    fn is_done(&self) -> bool {
        true
    }
}

impl<P: Program + ?Sized> Program for Box<P> {
    fn on_start(&mut self, cx: &mut Context<'_>) {
        (**self).on_start(cx);
    }

    fn on_message(&mut self, cx: &mut Context<'_>, message: &Message<'_>) -> Result<(), Reason> {
        (**self).on_message(cx, message)
    }

    fn on_returned(&mut self, cx: &mut Context<'_>, message: Returned) {
        (**self).on_returned(cx, message);
    }

    fn on_notice(&mut self, cx: &mut Context<'_>, notice: Notice) {
        (**self).on_notice(cx, notice);
    }

    fn on_alarm(&mut self, cx: &mut Context<'_>) {
        (**self).on_alarm(cx);
    }

    fn client(&mut self) -> Option<&mut dyn Client<Outlet>> {
        (**self).client()
    }

    fn on_client(&mut self, cx: &mut Context<'_>) {
        (**self).on_client(cx);
    }

    fn is_done(&self) -> bool {
        (**self).is_done()
    }
}

/// Events other than messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notice {
    /// A send to this host that was refused as *full* may be tried again.
    CanSend(HostId),
    /// The one-way message sent with this completion was stored, or the request was answered.
    Completed(u64),
    /// The known life of this host is gone. [`Context::look_up`] finds the next one, once there is one.
    PeerLost(HostId, Reason),
}

/// A message in the hands of a handler.
#[derive(Debug)]
pub struct Message<'a> {
    /// Who sent it.
    pub from: HostId,
    /// What it is.
    pub kind: MessageKind,
    /// Its operation.
    pub op: u8,
    /// Its arguments.
    pub args: &'a [u32],
    /// Its payload.
    pub payload: &'a [u8],
    pub(crate) from_life: Epoch,
    pub(crate) delivery: &'a Delivery<'a>,
}

impl Message<'_> {
    /// The right to reply to a request, once.
    pub fn take_reply(&self) -> Option<ReplyToken> {
        let token = self.delivery.take_reply()?;
        Some(ReplyToken { token, to: self.from, life: self.from_life })
    }
}

/// The right to reply to one request.
#[derive(Debug)]
#[must_use = "a request whose token is dropped stays open; reply or end it"]
pub struct ReplyToken {
    token: weft_core::ReplyToken,
    to: HostId,
    life: Epoch,
}

impl ReplyToken {
    /// The requester.
    pub fn to(&self) -> HostId {
        self.to
    }
}

/// The state of one life of a host, without its network.
#[derive(Debug)]
pub(crate) struct Desk {
    pub host: HostId,
    pub life: Epoch,
    pub endpoint: Endpoint,
    pub now: u64,
    pub random: Random,
    pub alarm: Option<u64>,
    pub network: Rc<RefCell<Network>>,
    pub checker: Rc<RefCell<Checker>>,
    pub directory: Rc<RefCell<Directory>>,
    /// By host: the lives that were mapped, the present one last.
    pub known: Vec<Vec<Epoch>>,
}

/// What a handler can do.
#[derive(Debug)]
pub struct Context<'a> {
    pub(crate) state: &'a mut State<Outlet>,
    pub(crate) desk: &'a mut Desk,
}

impl Context<'_> {
    /// Sends a one-way message. It is delivered or it comes back.
    ///
    /// # Errors
    /// Those of [`State::try_send`]. *Full* is normal; a [`Notice::CanSend`] follows.
    pub fn try_send(&mut self, to: HostId, message: Outgoing<'_>) -> Result<(), SendError> {
        let by = message.completion;
        self.send(to, message, MessageKind::OneWay, by.map(Some))
    }

    /// Sets the service of what this host sends from now on.
    pub fn set_service(&mut self, service: Service) {
        // The endpoint lives as long as its host.
        let _ = self.state.set_service(self.desk.endpoint, service);
    }

    /// One-way messages to a host that are not known to be received.
    pub fn unreceived(&self, host: HostId) -> u64 {
        self.state.unreceived(self.desk.endpoint, host.0).unwrap_or_default()
    }

    /// Sends a request. It is answered or it comes back.
    ///
    /// # Errors
    /// Those of [`State::try_request`]. *Full* is normal; a [`Notice::CanSend`] follows.
    pub fn try_request(&mut self, to: HostId, message: Outgoing<'_>) -> Result<(), SendError> {
        let by = message.completion;
        self.send(to, message, MessageKind::Request, Some(by))
    }

    /// Replies to a request. Never blocks.
    ///
    /// # Errors
    /// If the reply is too large; the token can then be used again. Also if the requester is gone.
    pub fn reply(
        &mut self,
        token: ReplyToken,
        op: u8,
        args: &[u32],
        payload: &[u8],
    ) -> Result<(), (ReplyError, ReplyToken)> {
        let ReplyToken { token, to, life } = token;
        let ends = Ends { from: self.desk.host, from_life: self.desk.life, to, to_life: life };
        match self.state.reply(token, op, args, payload) {
            Ok(()) => {
                let contents = Contents { kind: MessageKind::Reply, op, args, payload };
                self.desk.checker.borrow_mut().on_sent(self.desk.now, ends, contents, None);
                Ok(())
            }
            Err((error, token)) => Err((error, ReplyToken { token, to, life })),
        }
    }

    /// Ends a request without a reply.
    pub fn end(&mut self, token: ReplyToken) {
        self.state.end(token.token);
    }

    /// Looks up the present life of a host, as a rendezvous would: later messages go to that life. The first message to a host does
    /// this by itself. Returns true if the life differs from the one known before.
    pub fn look_up(&mut self, host: HostId) -> bool {
        let found = self.desk.directory.borrow().names.get(host.0 as usize).copied();
        let Some(entry) = found else { return false };
        let known = &mut self.desk.known[host.0 as usize];
        let is_new = known.last() != Some(&entry.epoch);
        if is_new {
            known.push(entry.epoch);
            // The endpoint lives as long as its host.
            let _ = self.state.map(self.desk.endpoint, host.0, entry, crate::host::KEY);
        }
        is_new
    }

    /// Makes the host call [`Program::on_alarm`] after this time. There is one alarm: a new one replaces it.
    pub fn wake_in(&mut self, after: Duration) {
        let after = u64::try_from(after.as_nanos()).unwrap_or(u64::MAX);
        self.desk.alarm = Some(self.desk.now.saturating_add(after));
    }

    /// The arguments for calls of a [client](Program::client): the bundle's state, and the host's endpoint. Each other host is
    /// mapped there at its own number once it was [looked up](Context::look_up).
    pub fn for_client(&mut self) -> (&mut State<Outlet>, Endpoint) {
        (self.state, self.desk.endpoint)
    }

    /// This host.
    pub fn host(&self) -> HostId {
        self.desk.host
    }

    /// All hosts.
    pub fn hosts(&self) -> impl Iterator<Item = HostId> {
        (0..self.desk.known.len() as u32).map(HostId)
    }

    /// The simulation's time, which is the same for all hosts.
    pub fn now(&self) -> Time {
        Time::from_nanos(self.desk.now)
    }

    /// A generator of random numbers, whose seed comes from the simulation's.
    pub fn random(&mut self) -> &mut Random {
        &mut self.desk.random
    }

    fn send(
        &mut self,
        to: HostId,
        message: Outgoing<'_>,
        kind: MessageKind,
        asks: Option<Option<u64>>,
    ) -> Result<(), SendError> {
        let Some(known) = self.desk.known.get(to.0 as usize) else { return Err(SendError::NotMapped(to.0)) };
        if known.is_empty() {
            self.look_up(to);
        }
        let Some(life) = self.desk.known[to.0 as usize].last().copied() else {
            return Err(SendError::NotMapped(to.0));
        };
        let service = self.state.service(self.desk.endpoint).unwrap_or_default();
        let is_unreliable = kind == MessageKind::OneWay && service.reliability == Reliability::Unreliable;
        // Nothing is reported of an unreliable message.
        let number = asks.filter(|_| !is_unreliable).map(|by| self.desk.checker.borrow_mut().ask(by));
        let outgoing = Outgoing { completion: number, ..message };
        let sent = match kind {
            MessageKind::Request => self.state.try_request(self.desk.endpoint, to.0, outgoing),
            _ => self.state.try_send(self.desk.endpoint, to.0, outgoing),
        };
        let mut checker = self.desk.checker.borrow_mut();
        match sent {
            Ok(()) => {
                let ends = Ends { from: self.desk.host, from_life: self.desk.life, to, to_life: life };
                let contents = Contents { kind, op: message.op, args: message.args, payload: message.payload };
                match is_unreliable {
                    true => checker.on_sent_unreliable(self.desk.now, ends, contents),
                    false => checker.on_sent(self.desk.now, ends, contents, number),
                }
            }
            Err(_) => number.into_iter().for_each(|number| checker.take_back(number)),
        }
        sent
    }
}
