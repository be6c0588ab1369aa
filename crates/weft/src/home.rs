//! The in-process home of a bundle: set-up of sessions with processes of the same host, and notice of their deaths.
//!
//! This is done inside `poll` and `wait`, when the helper thread has left word that a socket has something to say; without a helper,
//! when the bundle has been idle for some turns. So a message costs no system call. Every step is non-blocking; each
//! connection is a small state machine behind one epoll descriptor.

use crate::net::Net;
use crate::node::{address, owner_of, refuse, Caller, Error, Inbox, Node};
use crate::paths::{Core, Inlet, Outlet};
use crate::watch::Signals;
use crate::watched::Watched;
use rustix::event::epoll;
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::net::{
    self, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use std::collections::HashMap;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU32;
use std::sync::Arc;
use std::time::Duration;
use weft_core::{Call, PeerId, SessionId, Sink};
use weft_shm::{Bell, BellPage, Consumer, Lanes, MapMem, Producer, Ringing, Shared};
use weft_wire::setup::{Geometry, Message, MESSAGE_BYTES};
use weft_wire::{BundleId, Epoch, HostAddress, Key, Name, Reason};

/// Bytes of a hot lane. Small enough that all lines of a busy pair stay in the private caches.
const HOT_BYTES: usize = 16 << 10;

/// Bytes of an arena: what a stream needs to run ahead until its lines have left the writer's private cache.
const ARENA_BYTES: usize = 8 << 20;

/// Bytes of an arena once the process has many sessions, so that all arenas of a process stay bounded.
const SMALL_ARENA_BYTES: usize = 512 << 10;

/// Sessions with a large arena.
const LARGE_ARENAS_MOST: usize = 32;

/// Looks that are made soon after a set-up began or went on, without waiting for the helper's word.
const QUICK_LOOKS: u32 = 10_000;

/// Descriptors that come with a ring: the ring, the bell page, what wakes its owner.
const DESCRIPTORS: usize = 3;

/// Events of one look at the descriptors.
const EVENTS_MOST: usize = 32;

/// What the home has a socket for.
#[derive(Debug)]
enum Talk {
    /// We called and wait for the answer.
    Calling { call: Call, name: Name, is_alone: bool },
    /// We were called, gave our ring, and wait for the caller's.
    Answering(Answering),
    /// A session; the socket tells of its end.
    Session(SessionId),
}

#[derive(Debug)]
struct Answering {
    peer: PeerId,
    index: u32,
    rx: Box<Consumer<MapMem>>,
}

#[derive(Debug)]
struct Line {
    socket: Watched,
    talk: Talk,
}

/// A bundle's home.
#[derive(Debug)]
pub(crate) struct Home {
    node: Node,
    id: BundleId,
    inbox: Arc<Inbox>,
    /// What wakes the bundle.
    signals: Arc<Signals>,
    epoll: Arc<OwnedFd>,
    lines: HashMap<u64, Line>,
    next_line: u64,
    /// Calls that found the peer's backlog of connections full.
    retries: Vec<(Call, bool)>,
    /// The helper watches our descriptors.
    is_watched: bool,
    /// Quick looks left, while a set-up is under way.
    quick_looks: u32,
    /// Callers could not be accepted at the last look.
    is_stuck: bool,
    /// The way to other hosts, if there is one.
    net: Option<Net>,
}

/// The token of the node's descriptor in the epoll set; lines have others.
const NODE_TOKEN: u64 = 0;

impl Home {
    /// The home of a new bundle, which finds in `signals` what is left for it.
    pub fn new(node: &Node, signals: &Arc<Signals>) -> Result<Home, Error> {
        let way_out = "raise the limit of open files (ulimit -n), or close some";
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .and_then(|e| {
                epoll::add(&e, node.epoll(), epoll::EventData::new_u64(NODE_TOKEN), epoll::EventFlags::IN).map(|()| e)
            })
            .map_err(|e| Error::system("cannot watch the set-up socket", e, way_out))?;
        let (id, inbox) = node.add_bundle(signals.clone());
        let is_watched = node.helper().is_some_and(|h| h.add(id, &epoll, signals.clone()));
        let net = node.open_network(is_watched)?;
        if let (Some(net), Some(helper)) = (&net, node.helper().filter(|_| is_watched)) {
            helper.add_deputy(id, net.deputy(signals, helper.summons()));
        }
        Ok(Home {
            node: node.clone(),
            id,
            inbox,
            signals: signals.clone(),
            epoll: Arc::new(epoll),
            lines: HashMap::new(),
            next_line: NODE_TOKEN + 1,
            retries: Vec::new(),
            is_watched,
            quick_looks: 0,
            is_stuck: false,
            net,
        })
    }

    /// A name for a new endpoint.
    pub fn add_endpoint(&self, key: Key) -> Name {
        let address = self.net.as_ref().map_or(HostAddress::NONE, Net::address);
        self.node.add_endpoint(self.id, key, address)
    }

    /// A count of the polls until the next look at the network, which others set to zero.
    pub fn net_turns(&self) -> Arc<AtomicU32> {
        self.net.as_ref().map_or_else(Arc::default, Net::turns)
    }

    /// Looks for packets of other hosts. Returns how many messages were taken, and the polls until the next look.
    #[inline]
    pub fn look_at_network<S: Sink<Outlet>>(&mut self, core: &mut Core, budget: u32, sink: &mut S) -> (u32, u32) {
        let Some(net) = &mut self.net else { return (0, u32::MAX) };
        let looked = net.look(core, budget, sink);
        if let (Some(watch), Some(helper)) = (looked.watch, self.node.helper()) {
            if !watch {
                net.unwatch(|socket| _ = helper.unwatch_network(socket));
                // Nobody watches now but a deputy that does not rest.
                net.get_up();
            } else if !net.for_sockets(|socket| helper.watch_network(self.id, socket)) {
                net.do_without_helper();
            }
        }
        (looked.work, looked.turns)
    }

    /// Sends what waits for the network. Says whether nothing waits any more.
    pub fn flush_network(&mut self) -> bool {
        self.net.as_mut().is_none_or(Net::flush)
    }

    /// Packets came.
    pub fn wake_network(&mut self) {
        if let Some(net) = &mut self.net {
            net.wake();
        }
    }

    pub fn node(&self) -> &Node {
        &self.node
    }

    /// Whether a set-up is under way, so that the next look should come soon. A peer that keeps us waiting is not waited for.
    pub fn is_busy(&self) -> bool {
        self.quick_looks > 0 || !self.retries.is_empty()
    }

    /// Whether the helper says when there is something to look at.
    pub fn is_watched(&self) -> bool {
        self.is_watched
    }

    /// Whether callers wait that could not be accepted: there is no descriptor for them.
    pub fn is_stuck(&self) -> bool {
        self.is_stuck
    }

    /// All that the helper left word of was looked at.
    pub fn watch_on(&self) {
        if let Some(helper) = self.node.helper().filter(|_| self.is_watched) {
            helper.rearm(self.id, self.epoll.as_fd());
        }
    }

    /// Makes ready for the bundle to sleep, watching its descriptors itself. False if there is something to do.
    pub fn lie_down(&mut self, core: &mut Core) -> bool {
        let Some(net) = &mut self.net else { return true };
        let may_sleep = net.lie_down(core);
        if let Some(helper) = self.node.helper() {
            // What comes now wakes the bundle, and is not to wake the helper as well.
            net.unwatch(|socket| _ = helper.unwatch_network(socket));
        }
        may_sleep
    }

    /// The bundle has slept.
    pub fn get_up(&self) {
        if let Some(net) = &self.net {
            net.get_up();
        }
    }

    /// How long until something is due, if anything is.
    pub fn until_due(&self) -> Option<Duration> {
        self.net.as_ref()?.until_due()
    }

    /// The descriptors of set-up and deaths.
    pub fn sockets(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Calls `run` for each socket of the network until one says no. Says whether none did.
    pub fn for_network(&self, run: impl FnMut(BorrowedFd<'_>) -> bool) -> bool {
        self.net.as_ref().is_none_or(|net| net.for_sockets(run))
    }

    /// Whether calls are to be made again that nobody answered.
    pub fn has_retries(&self) -> bool {
        !self.retries.is_empty()
    }

    /// Does what there is to do: calls to make, callers to answer, peers that died. Returns at once.
    pub fn service<S: Sink<Outlet>>(&mut self, core: &mut Core, sink: &mut S) {
        self.is_stuck = false;
        self.make_calls(core);
        self.look_at_descriptors(core, sink);
        self.answer_callers(core);
        self.close_broken(core, sink);
        self.quick_looks = match self.lines.values().any(|l| !matches!(l.talk, Talk::Session(_))) {
            true => self.quick_looks.saturating_sub(1),
            false => 0,
        };
    }

    fn make_calls(&mut self, core: &mut Core) {
        let fresh = core.state_mut().take_calls().into_iter().map(|call| (call, false));
        let calls: Vec<(Call, bool)> = self.retries.drain(..).chain(fresh).collect();
        for (call, is_alone) in calls {
            if let Err(reason) = self.make_call(core, call, is_alone) {
                core.state_mut().refused(call, reason);
            }
        }
    }

    fn make_call(&mut self, core: &mut Core, call: Call, is_alone: bool) -> Result<(), Reason> {
        let state = core.state();
        let Ok((name, key)) = state.translation(call.endpoint, call.destination) else {
            return Ok(());
        };
        let Ok(source) = state.name(call.endpoint) else {
            return Ok(());
        };
        let socket = match self.connect(name.epoch)? {
            Connected::Yes(socket) => socket,
            Connected::Later => {
                self.retries.push((call, is_alone));
                return Ok(());
            }
            Connected::Nobody => return self.call_host(core, call),
        };
        if owner_of(&socket) != Some(name.uid) {
            return Err(Reason::WrongOwner);
        }
        let hello = Message::Hello { source, destination: name, key, bundle: self.id, is_alone };
        // A callee that refuses us for who we are may have hung up already: what it said before is heard like any answer.
        let _ = net::send(&socket, &hello.to_bytes(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        self.add_line(socket, Talk::Calling { call, name, is_alone })
    }

    /// Connects to the set-up socket of a life on this host.
    fn connect(&self, epoch: Epoch) -> Result<Connected, Reason> {
        if !self.node.uses_memory() {
            return Ok(Connected::Nobody);
        }
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket =
            net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).map_err(|_| Reason::NoRoom)?;
        Ok(match net::connect(&socket, &address(epoch).map_err(|_| Reason::NobodyThere)?) {
            Ok(()) => Connected::Yes(socket),
            Err(Errno::AGAIN) => Connected::Later,
            Err(_) => Connected::Nobody,
        })
    }

    /// Calls a life that is not on this host, as far as can be seen from here. If its name says that it would be, it is no more.
    fn call_host(&mut self, core: &mut Core, call: Call) -> Result<(), Reason> {
        let there = call.name.address;
        let net = self.net.as_mut().filter(|_| !there.is_none()).ok_or(Reason::NobodyThere)?;
        let is_ours = |there: HostAddress| net.address().each().any(|here| here.ip == there.ip);
        if self.node.uses_memory() && there.each().all(is_ours) {
            return Err(Reason::NobodyThere);
        }
        net.call(core, call);
        Ok(())
    }

    fn look_at_descriptors<S: Sink<Outlet>>(&mut self, core: &mut Core, sink: &mut S) {
        let mut events = [MaybeUninit::<epoll::Event>::uninit(); EVENTS_MOST];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        let Ok((ready, _)) = epoll::wait(self.epoll.as_fd(), &mut events, Some(&now)) else {
            return;
        };
        let tokens: Vec<u64> = ready.iter().map(|e| e.data.u64()).collect();
        for token in tokens {
            if token == NODE_TOKEN {
                self.is_stuck = !self.node.service();
            } else if let Some(line) = self.lines.remove(&token) {
                self.hear(token, line, core, sink);
            }
        }
    }

    /// Hears what a line says.
    fn hear<S: Sink<Outlet>>(&mut self, token: u64, line: Line, core: &mut Core, sink: &mut S) {
        let heard = receive(&line.socket);
        if matches!(heard, Heard::Nothing) {
            self.lines.insert(token, line);
            return;
        }
        let Line { socket, talk } = line;
        match talk {
            Talk::Calling { call, name, is_alone } => match self.on_answer(core, token, socket, call, &name, heard) {
                Ok(()) => {}
                Err(Answer::NotJoined) if !is_alone => self.retries.push((call, true)),
                Err(Answer::NotJoined) => core.state_mut().refused(call, Reason::NobodyThere),
                Err(Answer::Refused(reason)) => core.state_mut().refused(call, reason),
            },
            Talk::Answering(Answering { peer, index, rx }) => {
                let ready = match heard {
                    Heard::Message(Message::Ready { ring, bell }, fds) => open_tx(ring, bell, fds),
                    _ => Err(Reason::Violation),
                };
                let Ok(tx) = ready else { return core.unreserve(index) };
                let id = core.attach(index, peer, Outlet::Ring(tx), Inlet::Ring(*rx));
                self.lines.insert(token, Line { socket, talk: Talk::Session(id) });
            }
            Talk::Session(id) => {
                let reason = if matches!(heard, Heard::End) { Reason::PeerLost } else { Reason::Violation };
                core.lose(id, reason, sink);
            }
        }
    }

    /// The answer to a call of ours.
    fn on_answer(
        &mut self,
        core: &mut Core,
        token: u64,
        socket: Watched,
        call: Call,
        name: &Name,
        heard: Heard,
    ) -> Result<(), Answer> {
        let (message, fds) = match heard {
            Heard::Message(message, fds) => (message, fds),
            Heard::End => return Err(Answer::Refused(Reason::NobodyThere)),
            Heard::Nothing | Heard::Nonsense => return Err(Answer::Refused(Reason::Violation)),
        };
        match message {
            Message::Accept { ring, bell, bundle } => {
                let tx = open_tx(ring, bell, fds).map_err(Answer::Refused)?;
                let peer = PeerId { epoch: name.epoch, bundle, uid: name.uid, address: name.address };
                let index = core.reserve().ok_or(Answer::Refused(Reason::NoRoom))?;
                let made = self.make_rx(core).and_then(|(lanes, rx, fd)| {
                    let ready = Message::Ready { ring: lanes.geometry(), bell: index };
                    self.send_with(&socket, &ready, &fd, core.bells())?;
                    Ok(rx)
                });
                let rx = made.map_err(|reason| {
                    core.unreserve(index);
                    Answer::Refused(reason)
                })?;
                let id = core.attach(index, peer, Outlet::Ring(tx), Inlet::Ring(rx));
                core.state_mut().connected(call, id);
                self.lines.insert(token, Line { socket, talk: Talk::Session(id) });
                Ok(())
            }
            Message::Join { bundle } => {
                // By memory: of a session over the network nobody can say whose it is.
                let there = |peer: &PeerId| (peer.epoch, peer.bundle, peer.uid) == (name.epoch, bundle, name.uid);
                let found = core.state().sessions().find(|(_, peer)| there(peer)).map(|(id, _)| id);
                core.state_mut().connected(call, found.ok_or(Answer::NotJoined)?);
                Ok(())
            }
            Message::Refuse { reason } => Err(Answer::Refused(reason)),
            Message::Hello { .. } | Message::Ready { .. } => Err(Answer::Refused(Reason::Violation)),
        }
    }

    /// Answers those who proved that they know one of our endpoints and its key.
    fn answer_callers(&mut self, core: &mut Core) {
        for caller in self.inbox.take() {
            if let Err((socket, reason)) = self.answer(core, caller) {
                refuse(&socket, reason);
            }
        }
    }

    fn answer(&mut self, core: &mut Core, caller: Caller) -> Result<(), (OwnedFd, Reason)> {
        let Caller { socket, source, bundle, is_alone, uid } = caller;
        let peer = PeerId { epoch: source.epoch, bundle, uid, address: source.address };
        if !is_alone && core.state().sessions().any(|(_, p)| p == peer) {
            let join = Message::Join { bundle: self.id };
            let _ = net::send(&socket, &join.to_bytes(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
            return Ok(());
        }
        let Some(index) = core.reserve() else {
            return Err((socket, Reason::NoRoom));
        };
        let made = self.make_rx(core).and_then(|(lanes, rx, fd)| {
            let accept = Message::Accept { ring: lanes.geometry(), bell: index, bundle: self.id };
            self.send_with(&socket, &accept, &fd, core.bells())?;
            Ok(rx)
        });
        match made {
            Ok(rx) => {
                if self.add_line(socket, Talk::Answering(Answering { peer, index, rx: Box::new(rx) })).is_err() {
                    core.unreserve(index);
                }
                Ok(())
            }
            Err(reason) => {
                core.unreserve(index);
                Err((socket, reason))
            }
        }
    }

    /// A ring for what a peer will send us.
    fn make_rx(&self, core: &Core) -> Result<(Lanes, Consumer<MapMem>, OwnedFd), Reason> {
        let many = core.state().sessions().count() >= LARGE_ARENAS_MOST;
        let lanes = Lanes::new(HOT_BYTES, if many { SMALL_ARENA_BYTES } else { ARENA_BYTES });
        let (shared, fd) = Shared::create("weft-ring", lanes.bytes()).map_err(|_| Reason::NoRoom)?;
        Ok((lanes, Consumer::new(MapMem::new(shared, lanes), lanes), fd))
    }

    /// Sends a message with the descriptors of a ring, of the bell page, and of what wakes us.
    fn send_with(&self, socket: impl AsFd, message: &Message, ring: &OwnedFd, bells: &BellPage) -> Result<(), Reason> {
        let fds = [ring.as_fd(), bells.fd(), self.signals.waker()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(&fds)) {
            return Err(Reason::NoRoom);
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let sent = net::sendmsg(socket, &[IoSlice::new(&message.to_bytes())], &mut control, flags);
        sent.map(|_| ()).map_err(|_| Reason::NobodyThere)
    }

    fn close_broken<S: Sink<Outlet>>(&mut self, core: &mut Core, sink: &mut S) {
        for id in core.take_broken() {
            self.lines.retain(|_, line| !matches!(line.talk, Talk::Session(other) if other == id));
            if let Some(net) = &mut self.net {
                net.close(id, Reason::Violation);
            }
            core.lose(id, Reason::Violation, sink);
        }
    }

    /// Watches a new socket. It keeps its token for as long as it lives, whatever it is used for.
    fn add_line(&mut self, socket: OwnedFd, talk: Talk) -> Result<(), Reason> {
        let token = self.next_line;
        let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
        let socket = Watched::new(socket, &self.epoll, token, flags).map_err(|_| Reason::NoRoom)?;
        self.next_line += 1;
        self.quick_looks = QUICK_LOOKS;
        self.lines.insert(token, Line { socket, talk });
        Ok(())
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if let Some(helper) = self.node.helper() {
            helper.remove(self.id, self.epoll.as_fd());
            if let Some(net) = &self.net {
                net.for_sockets(|socket| helper.unwatch_network(socket));
            }
        }
        self.node.remove_bundle(self.id);
    }
}

/// What became of connecting to a set-up socket.
enum Connected {
    Yes(OwnedFd),
    /// Too many wait there.
    Later,
    Nobody,
}

/// Why a call did not get a session by its answer.
enum Answer {
    Refused(Reason),
    /// We were told to join a session that we do not have (any more).
    NotJoined,
}

/// What a socket said.
enum Heard {
    Nothing,
    Message(Message, Vec<OwnedFd>),
    Nonsense,
    End,
}

/// Receives one message and at most three descriptors; the kernel closes any more.
fn receive(socket: impl AsFd + Copy) -> Heard {
    let mut bytes = [0u8; MESSAGE_BYTES + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let mut got = net::recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags);
    if matches!(got, Err(Errno::CONNRESET)) {
        // Said once, before what the other side had sent, if that side hung up without having read all: a refusal unread.
        got = net::recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags);
    }
    let fds = control.drain().flat_map(|m| match m {
        RecvAncillaryMessage::ScmRights(fds) => fds.collect::<Vec<OwnedFd>>(),
        _ => Vec::new(),
    });
    let fds: Vec<OwnedFd> = fds.collect();
    match got {
        Err(Errno::AGAIN | Errno::INTR) => Heard::Nothing,
        Err(_) => Heard::End,
        Ok(got) if got.bytes == 0 => Heard::End,
        Ok(got) => match Message::from_bytes(&bytes[..got.bytes.min(bytes.len())]) {
            Ok(message) => Heard::Message(message, fds),
            Err(_) => Heard::Nonsense,
        },
    }
}

/// Maps the ring and the bell that a peer sent. Its waker is only ever written to, by calls that do not block.
fn open_tx(ring: Geometry, bell: u32, fds: Vec<OwnedFd>) -> Result<Ringing, Reason> {
    let lanes = Lanes::check(ring).ok_or(Reason::Violation)?;
    let Ok([ring_fd, bell_fd, waker]) = <[OwnedFd; DESCRIPTORS]>::try_from(fds) else {
        return Err(Reason::Violation);
    };
    if !rustix::fs::fcntl_getfl(&waker).is_ok_and(|flags| flags.contains(OFlags::NONBLOCK)) {
        return Err(Reason::Violation);
    }
    let shared = Shared::open(ring_fd, lanes.bytes()).map_err(|_| Reason::Violation)?;
    let bell = Bell::open(bell_fd, bell).map_err(|_| Reason::Violation)?;
    Ok(Ringing::new(Producer::new(MapMem::new(shared, lanes), lanes), bell, waker))
}
