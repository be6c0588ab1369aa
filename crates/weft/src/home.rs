//! The home of a bundle: it sets sessions up with processes of the same host, and notices their deaths.
//!
//! `poll` and `wait` do this when the helper says that a socket has an event; without a helper, when the bundle has been idle for
//! some turns. So sending a message costs no system call. No step blocks. Each connection is a small state machine, and one epoll
//! descriptor watches all of them. `office.rs` answers callers.

use crate::daemon::{Daemon, Search};
use crate::net::{Net, NetSettings, Users};
use crate::node::{random_u64, Error, Node};
use crate::office::address;
use crate::owner::Owner;
use crate::paths::{Core, Inlet, Outlet};
use crate::reception::{Arrival, Post, Reception};
use crate::setup::{process_of, say, shortage, Class, Gift, Given};
use crate::socket::{Heard, Socket};
use crate::watch::Signals;
use crate::watched::Watched;
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType};
use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::num::NonZeroU32;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::AtomicU32;
use std::sync::Arc;
use std::time::Duration;
use weft_core::{Admission, Call, PeerId, Report, SessionId, Sink};
use weft_shm::{BellPage, Descriptor};
use weft_wire::proof::{KeyProof, Side};
use weft_wire::setup::{Hello, Message, Nonce};
use weft_wire::{BundleId, EndpointId, Epoch, HostAddress, Key, Name, Reason, Uid};

/// After a step of a set-up, the bundle checks its sockets itself this many times before it relies on the helper again.
const QUICK_LOOKS: u32 = 10_000;

/// Largest number of events taken from epoll at once.
const EVENTS_MOST: usize = 32;

/// A peer may send this many more wakeups than we had sleeps, because a wakeup can cross with the end of a sleep.
const EARLY_WAKES_MOST: u32 = 16;

/// What a socket is for.
#[derive(Debug)]
enum Talk {
    /// We called, and wait for the answer.
    Calling(Calling),
    /// A session. The socket tells of its end.
    Session(Tie),
}

#[derive(Debug)]
struct Calling {
    call: Call,
    name: Name,
    key: Key,
    is_alone: bool,
    /// The user of the other side, as the kernel says.
    user: Uid,
    /// The class of the other side, as far as it is known.
    class: Class,
    /// The proof that the other side sends if it knows the key.
    proof: KeyProof,
    /// Also accepted, if the other side need not know the key.
    proof_of_none: Option<KeyProof>,
    /// The nonce that the other side read in our memory. Kept while we read its memory.
    challenge: Option<Nonce>,
}

/// A session with a process of this host.
#[derive(Debug)]
struct Tie {
    id: SessionId,
    peer: PeerId,
    class: Class,
    /// How often we had slept when the session began. `wakes` counts how often the peer has woken us since.
    first_sleep: u32,
    wakes: u32,
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
    /// Answers callers of the bundle.
    reception: Arc<Reception>,
    epoll: Arc<Descriptor>,
    lines: HashMap<u64, Line>,
    next_line: u64,
    /// Calls to make again, because the peer's backlog was full.
    retries: Vec<(Call, bool)>,
    /// The helper watches our descriptors.
    is_watched: bool,
    /// See [`QUICK_LOOKS`]: how many are left while a set-up is under way.
    quick_looks: u32,
    /// At the last check some callers could not be accepted.
    is_stuck: bool,
    /// The network to other hosts, if the bundle has its own.
    net: Option<Net>,
    /// The attachment to weftd, which then leads to other hosts.
    daemon: Option<Daemon>,
    /// When to look for another daemon after this one has ended.
    search: Search,
    users: Users,
}

/// The token of the office's descriptor in the epoll set; lines have others.
const OFFICE_TOKEN: u64 = 0;

/// The token of weftd's socket.
const DAEMON_TOKEN: u64 = 1;

/// Polls between two checks of the clock while there is no daemon.
const LOOKS_FOR_A_DAEMON: u32 = 64;

impl Home {
    /// Makes the home of a new bundle. The helper and other bundles raise flags for it in `signals`.
    pub fn new(
        node: &Node,
        signals: &Arc<Signals>,
        bells: &BellPage,
        users: Users,
        chosen: NetSettings,
    ) -> Result<Home, Error> {
        let failed = |e| Error::shortage("cannot watch the set-up socket", e);
        if !node.office().is_open() {
            return Err(failed(Errno::BADF));
        }
        let epoll = Descriptor::make(|| epoll::create(epoll::CreateFlags::CLOEXEC)).map_err(failed)?;
        if node.helper().is_none() {
            let (office, token) = (node.office().epoll(), epoll::EventData::new_u64(OFFICE_TOKEN));
            epoll::add(&epoll, office, token, epoll::EventFlags::IN).map_err(failed)?;
        }
        let bells = Descriptor::make_memfd(|| bells.fd().try_clone_to_owned());
        let bells = bells.map_err(|e| Error::shortage("cannot hand out the bell page", e))?;
        let attached = node.attach()?;
        let (id, reception) = node.office().add_bundle(signals.clone(), bells, attached.is_some());
        let (epoll, is_attached) = (Arc::new(epoll), attached.is_some());
        let helper = node.helper();
        let is_watched = helper.is_some();
        let watched = helper.map_or(Ok(()), |helper| helper.add(id, &epoll, signals.clone()));
        let open = || if is_attached { Ok(None) } else { node.open_network(users, is_watched, chosen) };
        let daemon = attached.map(|attached| Daemon::new(attached, users, &epoll, DAEMON_TOKEN)).transpose();
        let daemon = watched.and_then(|()| daemon.map_err(failed));
        let opened = daemon.and_then(|daemon| Ok((daemon, open()?))).and_then(|(daemon, mut net)| {
            if let (Some(net), Some(helper)) = (&mut net, helper) {
                let failed = |e| Error::shortage("cannot make the deputy's timer", e);
                helper.add_deputy(id, net.deputy(signals).map_err(failed)?)?;
                net.watch_at_first(|socket| helper.watch_network(id, socket));
            }
            Ok((daemon, net))
        });
        let (daemon, net) = opened.inspect_err(|_| {
            // Undo the registration.
            if let Some(helper) = helper {
                helper.remove(id, &epoll);
            }
            node.office().remove_bundle(id);
        })?;
        Ok(Home {
            node: node.clone(),
            id,
            reception,
            epoll,
            lines: HashMap::new(),
            next_line: DAEMON_TOKEN + 1,
            retries: Vec::new(),
            is_watched,
            quick_looks: 0,
            is_stuck: false,
            net,
            daemon,
            search: Search::default(),
            users,
        })
    }

    /// Makes a name for a new endpoint. If the bundle is attached to weftd, this blocks until the daemon has made the endpoint.
    ///
    /// # Errors
    /// If the daemon does not make it.
    pub fn add_endpoint(&mut self, key: Key) -> Result<Name, Error> {
        let address = self.net.as_ref().map_or(HostAddress::NONE, Net::address);
        let address = self.daemon.as_ref().map_or(address, Daemon::address);
        let name = self.node.office().add_endpoint(self.id, key, address);
        if let Some(daemon) = &mut self.daemon {
            daemon
                .add_endpoint(name.endpoint, key)
                .inspect_err(|_| self.node.office().remove_endpoint(name.endpoint))?;
        }
        Ok(name)
    }

    /// Gives an endpoint another key.
    pub fn set_key(&mut self, endpoint: EndpointId, key: Key) {
        self.node.office().set_key(endpoint, key);
        if let Some(daemon) = &mut self.daemon {
            daemon.set_key(endpoint, key);
        }
    }

    /// Changes whom an endpoint admits.
    pub fn set_admission(&mut self, endpoint: EndpointId, admission: Admission) {
        self.node.office().set_admission(endpoint, admission);
        if let Some(daemon) = &mut self.daemon {
            daemon.set_admission(endpoint, admission);
        }
    }

    /// The bundle is about to sleep. After the caller's next barrier, weftd wakes it.
    pub fn arm(&mut self) {
        if let Some(daemon) = &mut self.daemon {
            daemon.arm();
        }
    }

    /// The bundle is awake.
    pub fn disarm(&mut self) {
        if let Some(daemon) = &mut self.daemon {
            daemon.disarm();
        }
    }

    /// The number of polls until the network is polled next. Others set it to zero.
    pub fn net_turns(&self) -> Arc<AtomicU32> {
        self.net.as_ref().map_or_else(Arc::default, Net::turns)
    }

    /// Polls for packets of other hosts. Returns how many messages were taken, and after how many polls to do this again.
    #[inline]
    pub fn look_at_network<S: Sink<Outlet>>(&mut self, core: &mut Core, budget: u32, sink: &mut S) -> (u32, u32) {
        if let Some(daemon) = &mut self.daemon {
            return match daemon.is_lost() {
                false => (daemon.look(core, budget, sink), 0),
                true => (0, self.attach_again()),
            };
        }
        let Some(net) = &mut self.net else { return (0, u32::MAX) };
        let looked = net.look(core, budget, sink);
        if let (Some(watch), Some(helper)) = (looked.watch, self.node.helper()) {
            if !watch {
                net.unwatch(|socket| _ = helper.unwatch_network(socket));
                // From now on only the deputy watches the sockets, so it must not rest.
                net.get_up();
            } else if !net.for_sockets(|socket| helper.watch_network(self.id, socket)) {
                net.do_without_helper();
            }
        }
        (looked.work, looked.turns)
    }

    /// Sends what is queued for the network. Returns whether nothing is queued any more.
    pub fn flush_network(&mut self) -> bool {
        self.net.as_mut().is_none_or(Net::flush)
    }

    /// How often something was sent to other hosts. Wraps around.
    pub fn sends(&self) -> u32 {
        self.net.as_ref().map_or(0, Net::sends)
    }

    /// Whether other hosts have acknowledged everything that was sent.
    pub fn is_acknowledged(&self) -> bool {
        self.net.as_ref().is_none_or(Net::is_acknowledged) && self.daemon.as_ref().is_none_or(Daemon::is_handed_over)
    }

    /// Whether the network is unusable, because the program closed its sockets by their numbers.
    pub fn has_lost_its_sockets(&self) -> bool {
        self.net.as_ref().is_some_and(Net::has_lost_its_sockets)
    }

    /// Tells other hosts that the bundle is gone. Returns the number of messages that may be lost.
    pub fn say_goodbye(&mut self) -> u64 {
        self.net.as_mut().map_or(0, Net::say_goodbye) + self.daemon.as_ref().map_or(0, Daemon::unsent)
    }

    /// Packets came.
    pub fn wake_network(&mut self) {
        if let Some(net) = &mut self.net {
            net.wake();
        }
    }

    /// Reports the state of the channels to other hosts.
    pub fn report_into(&self, report: &mut Report) {
        if let Some(net) = &self.net {
            net.report_into(report);
        }
        if let Some(daemon) = &self.daemon {
            daemon.report_into(report);
        }
    }

    pub fn id(&self) -> BundleId {
        self.id
    }

    /// Takes what other bundles of the node left for this one.
    pub fn take_post(&self) -> Vec<Post> {
        self.reception.take_post()
    }

    pub fn node(&self) -> &Node {
        &self.node
    }

    /// Looks for a new daemon after the old one has ended, if it is time, and attaches to it. Returns after how many polls to call
    /// again.
    #[cold]
    fn attach_again(&mut self) -> u32 {
        if !self.search.is_due() {
            return LOOKS_FOR_A_DAEMON;
        }
        // An error means that there is no daemon, or that it refuses us. The next call tries again.
        let attached = self.node.attach().ok().flatten();
        let daemon = attached.and_then(|attached| Daemon::new(attached, self.users, &self.epoll, DAEMON_TOKEN).ok());
        if let Some(mut daemon) = daemon {
            let endpoints = self.node.office().endpoints_of(self.id);
            endpoints.into_iter().for_each(|(endpoint, key, admission)| daemon.restore(endpoint, key, admission));
            (self.daemon, self.search) = (Some(daemon), Search::default());
        }
        0
    }

    /// Whether a set-up is under way, so that the sockets should be checked again soon. False after a while if the peer does not
    /// answer.
    pub fn is_busy(&self) -> bool {
        self.quick_looks > 0 || !self.retries.is_empty()
    }

    /// Whether the helper watches our descriptors.
    pub fn is_watched(&self) -> bool {
        self.is_watched
    }

    /// Whether callers are waiting that could not be accepted because no descriptor was free.
    pub fn is_stuck(&self) -> bool {
        self.is_stuck
    }

    /// Has the helper watch again, after all events were handled.
    pub fn watch_on(&self) {
        if let Some(helper) = self.node.helper().filter(|_| self.is_watched) {
            helper.rearm(self.id, self.epoll.as_fd());
        }
    }

    /// Prepares for the bundle to sleep and watch its descriptors itself. False if there is something to do.
    pub fn lie_down(&mut self, core: &mut Core) -> bool {
        let Some(net) = &mut self.net else { return true };
        let may_sleep = net.lie_down(core);
        if let Some(helper) = self.node.helper() {
            // A packet now wakes the bundle. It must not wake the helper as well.
            net.unwatch(|socket| _ = helper.unwatch_network(socket));
        }
        may_sleep
    }

    /// The bundle's sleep has ended, perhaps only briefly.
    pub fn has_slept(&self) {
        if let Some(net) = &self.net {
            net.has_slept();
        }
    }

    /// The bundle has slept.
    pub fn get_up(&self) {
        if let Some(net) = &self.net {
            net.get_up();
        }
    }

    /// The time until the next deadline, if there is one.
    pub fn until_due(&self) -> Option<Duration> {
        if self.daemon.as_ref().is_some_and(Daemon::is_lost) {
            return Some(self.search.until_due());
        }
        self.net.as_ref()?.until_due()
    }

    /// The descriptors of set-up and deaths.
    pub fn sockets(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Calls `run` for each socket of the network until it returns false. Returns whether it never did.
    pub fn for_network(&self, run: impl FnMut(BorrowedFd<'_>) -> bool) -> bool {
        self.net.as_ref().is_none_or(|net| net.for_sockets(run))
    }

    /// A number that changes whenever sockets of the network are made.
    pub fn network_sockets_made(&self) -> u32 {
        self.net.as_ref().map_or(0, |net| net.sockets_made())
    }

    /// Has the process sent a signal once something arrives that would wake the bundle from its sleep. The bundle is armed.
    pub fn send_when_readable(&self, fd: BorrowedFd<'_>, signal: Signal) -> Result<(), Error> {
        let helper = self.node.helper().filter(|_| self.is_watched);
        if helper.is_some_and(|helper| helper.send_when_readable(self.id, fd, signal)) {
            return Ok(());
        }
        let way_out = "signals need the helper: do without WEFT_HELPER=off, or wait for the descriptor of wait_fd";
        Err(Error::system("cannot have a signal sent", std::io::ErrorKind::Unsupported, way_out))
    }

    /// Whether there are unanswered calls to make again.
    pub fn has_retries(&self) -> bool {
        !self.retries.is_empty() || self.daemon.as_ref().is_some_and(Daemon::has_unfinished)
    }

    /// Makes calls, answers callers, and notices peers that died. Does not block.
    pub fn service<S: Sink<Outlet>>(&mut self, core: &mut Core, sink: &mut S) {
        self.is_stuck = false;
        self.make_calls(core);
        self.look_at_descriptors(core, sink);
        self.tell_what_was_read();
        // Before places are filled up, so that the places of broken sessions are free again.
        self.close_broken(core, sink);
        self.seat_arrivals(core);
        if let Some(daemon) = &mut self.daemon {
            self.reception.take_freed().into_iter().for_each(|endpoint| daemon.free(endpoint));
        }
        self.quick_looks = match self.lines.values().any(|l| matches!(l.talk, Talk::Calling(_))) {
            true => self.quick_looks.saturating_sub(1),
            false => 0,
        };
    }

    fn make_calls(&mut self, core: &mut Core) {
        let fresh = core.state_mut().take_calls().into_iter().map(|call| (call, false));
        let calls: Vec<(Call, bool)> = self.retries.drain(..).chain(fresh).collect();
        for (call, is_alone) in calls {
            if let Err(reason) = self.make_call(core, call, is_alone) {
                self.refused(core, call, is_alone, reason);
            }
        }
    }

    /// A call is refused. If nobody is there, the peer may have set up a session itself, sent something through it, and ended. Its
    /// messages are taken before the call fails.
    fn refused(&mut self, core: &mut Core, call: Call, is_alone: bool, reason: Reason) {
        let is_gone = matches!(reason, Reason::NobodyThere | Reason::NoSuchEndpoint);
        match is_gone && !self.node.office().has_heard_all() {
            true => self.retries.push((call, is_alone)),
            false => core.state_mut().refused(call, reason),
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
        let is_unproven = state.is_unproven(call.endpoint, call.destination);
        let admission = core.state().admission_of(call.endpoint).unwrap_or_default();
        let office = self.node.office();
        let (user, class) = match (office.owner_at(&socket, name.uid), admission) {
            // Unreadable until it has shown that it can read our memory.
            (Owner::Us, _) => (office.user(), Class::Unreadable),
            (Owner::Other(user), admission) if admission.admits_others() => (user, Class::OtherUser),
            (Owner::Other(user), _) if user == name.uid => return Err(Reason::ForeignUser),
            (Owner::Other(_) | Owner::NotAsNamed, _) => return Err(Reason::WrongOwner),
        };
        let (nonce_at, draw) = (office.nonce_at(), random_u64().map_err(|_| Reason::OwnMemory)?);
        let hello = Hello { source, destination: name, bundle: self.id, is_alone, nonce_at, draw };
        // A callee that refuses our user may have hung up already. Its refusal is received like any answer.
        say(&socket, &Message::Hello(hello, hello.proof(key, Side::Caller)));
        if class == Class::Unreadable {
            office.prepare_to_read();
        }
        let proof = hello.proof(key, Side::Callee);
        let proof_of_none = is_unproven.then(|| hello.proof(Key::NONE, Side::Callee));
        let (token, socket) = self.watch(socket)?;
        self.quick_looks = QUICK_LOOKS;
        self.keep_line(
            token,
            socket,
            Talk::Calling(Calling { call, name, key, is_alone, user, class, proof, proof_of_none, challenge: None }),
        );
        Ok(())
    }

    /// Connects to the set-up socket of the process with this epoch on this host.
    fn connect(&self, epoch: Epoch) -> Result<Connected, Reason> {
        if !self.node.uses_memory() {
            return Ok(Connected::Nobody);
        }
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = || net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let socket = Descriptor::make(socket).map_err(shortage)?;
        Ok(match net::connect(&socket, &address(epoch).map_err(|_| Reason::NobodyThere)?) {
            Ok(()) => Connected::Yes(Socket::new(socket)),
            Err(Errno::AGAIN) => Connected::Later,
            Err(_) => Connected::Nobody,
        })
    }

    /// Calls a process that has no set-up socket on this host. If all its addresses are ours, it has ended.
    fn call_host(&mut self, core: &mut Core, call: Call) -> Result<(), Reason> {
        if let Some(daemon) = &mut self.daemon {
            daemon.call(core, call);
            return Ok(());
        }
        let there = call.name.address;
        let net = self.net.as_mut().filter(|_| !there.is_none()).ok_or(Reason::NobodyThere)?;
        let is_here = |net: &Net| {
            let here = net.address();
            there.each().all(|there| here.each().any(|here| here.ip == there.ip))
        };
        if self.node.uses_memory() && is_here(net) {
            // The addresses may be of another host by now.
            net.renew_address();
            if is_here(net) {
                return Err(Reason::NobodyThere);
            }
        }
        net.call(core, call);
        Ok(())
    }

    fn look_at_descriptors<S: Sink<Outlet>>(&mut self, core: &mut Core, sink: &mut S) {
        let mut events = [MaybeUninit::<epoll::Event>::uninit(); EVENTS_MOST];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        if !self.epoll.is_ours_lately() {
            return; // the program closed it
        }
        let Ok((ready, _)) = epoll::wait(self.epoll.as_fd(), &mut events, Some(&now)) else {
            return;
        };
        let events = ready.len();
        let mut tokens = [0; EVENTS_MOST];
        for (token, event) in tokens.iter_mut().zip(ready.iter()) {
            *token = event.data.u64();
        }
        for &token in &tokens[..events] {
            if token == OFFICE_TOKEN {
                self.is_stuck = !self.node.office().service();
            } else if token == DAEMON_TOKEN {
                if let Some(daemon) = &mut self.daemon {
                    daemon.hear(core, sink);
                }
            } else if let Some(line) = self.lines.remove(&token) {
                self.hear(token, line, core, sink);
            }
        }
    }

    /// Handles the next message of a line.
    fn hear<S: Sink<Outlet>>(&mut self, token: u64, line: Line, core: &mut Core, sink: &mut S) {
        let Line { mut socket, talk } = line;
        match talk {
            Talk::Calling(calling) => match socket.receive() {
                Heard::Nothing => self.keep_line(token, socket, Talk::Calling(calling)),
                heard => self.hear_callee(token, socket, calling, core, heard),
            },
            Talk::Session(mut tie) => match socket.receive_words() {
                Heard::Nothing => self.keep_line(token, socket, Talk::Session(tie)),
                Heard::Message(Message::Wake) if tie.may_wake(core.bells().sleeps()) => {
                    core.on_wake(tie.id);
                    self.keep_line(token, socket, Talk::Session(tie));
                }
                Heard::End => {
                    self.untie(core, &tie);
                    core.lose(tie.id, Reason::PeerLost, sink);
                }
                // The peer had no descriptor or no memory left for the ring that we gave it.
                Heard::Message(Message::Refuse { reason: Reason::PeerLimit }) => {
                    self.untie(core, &tie);
                    core.lose(tie.id, Reason::PeerLimit, sink);
                }
                _ => {
                    self.untie(core, &tie);
                    socket.bar();
                    core.lose(tie.id, Reason::Violation, sink);
                }
            },
        }
    }

    /// Tells the processes we are calling what we read in their memory.
    fn tell_what_was_read(&mut self) {
        for (token, read) in self.reception.take_nonces() {
            let Some(Line { socket, talk: Talk::Calling(calling) }) = self.lines.get_mut(&token) else { continue };
            let Some(seen) = calling.challenge.take() else { continue };
            calling.class = self.node.office().class_of(seen, read);
            say(&**socket, &Message::Proof { seen: read });
        }
    }

    fn keep_line(&mut self, token: u64, socket: Watched, talk: Talk) {
        self.lines.insert(token, Line { socket, talk });
    }

    /// Handles the answer to a call of ours.
    fn hear_callee(&mut self, token: u64, socket: Watched, calling: Calling, core: &mut Core, heard: Heard) {
        let (call, key, is_alone) = (calling.call, calling.key, calling.is_alone);
        let is_unproven = calling.proof_of_none.is_some();
        let answer = self.on_answer(core, token, socket, calling, heard);
        // If the destination was mapped again meanwhile, the new mapping has a call of its own, or none yet. A peer that proved the
        // old key must not learn the new one. And if the mapping now demands a proof, this peer may have given none.
        let state = core.state();
        let now = state.translation(call.endpoint, call.destination);
        let is_waived = state.is_unproven(call.endpoint, call.destination);
        if !now.is_ok_and(|(_, now)| now.matches(key)) || (is_unproven && !is_waived) {
            return;
        }
        match answer {
            Ok(Some(session)) => core.state_mut().connected(call, session),
            Ok(None) => {}
            Err(Answer::NotJoined) if !is_alone => self.retries.push((call, true)),
            Err(Answer::NotJoined) => self.refused(core, call, is_alone, Reason::NobodyThere),
            Err(Answer::Refused(reason)) => self.refused(core, call, is_alone, reason),
        }
    }

    /// Handles the answer to a call of ours. Returns the session that leads there, if there is one now.
    fn on_answer(
        &mut self,
        core: &mut Core,
        token: u64,
        mut socket: Watched,
        mut calling: Calling,
        heard: Heard,
    ) -> Result<Option<SessionId>, Answer> {
        let message = match heard {
            // It may refuse at any time, for instance because the endpoint is gone.
            Heard::Message(message @ Message::Refuse { .. }) => message,
            // While we read its memory, it must wait for our proof.
            Heard::Message(message) if calling.challenge.is_none() => message,
            Heard::End => return Err(Answer::Refused(Reason::NobodyThere)),
            Heard::NoDescriptors => return Err(Answer::Refused(Reason::OwnDescriptors)),
            _ => return Err(Answer::Refused(Reason::Violation)),
        };
        let Calling { name, user, .. } = calling;
        match message {
            // The process that has the socket is not the one that had the endpoint.
            Message::Challenge { proof, .. } | Message::Accept { proof, .. } | Message::Join { proof, .. }
                if !calling.is_proof(proof) =>
            {
                Err(Answer::Refused(Reason::WrongOwner))
            }
            // A challenge has no descriptors. Those it brought would be kept, and each challenge could bring more.
            Message::Challenge { .. } if !socket.came().is_empty() => Err(Answer::Refused(Reason::Violation)),
            Message::Challenge { seen, nonce_at, .. } => {
                if calling.class == Class::OtherUser {
                    say(&*socket, &Message::Proof { seen: Nonce::UNSEEN });
                } else {
                    calling.challenge = Some(seen);
                    let reception = self.reception.clone();
                    let office = self.node.office();
                    office.read_nonce(process_of(&*socket), nonce_at, move |read| reception.put_nonce(token, read));
                }
                self.keep_line(token, socket, Talk::Calling(calling));
                Ok(None)
            }
            Message::Accept { ring, bell, bundle, is_trusted, .. } => {
                let class = match calling.class {
                    Class::Trusted if !is_trusted => Class::Unreadable,
                    class => class,
                };
                // Its later messages have no descriptors.
                socket.take_descriptors(false);
                let tx = self.reception.open(Given { class, ring, bell }, &mut socket).map_err(Answer::Refused)?;
                let peer = PeerId { epoch: name.epoch, bundle, uid: user, address: name.address };
                let index = self.reception.take_place(|| core.reserve()).ok_or(Answer::Refused(Reason::NoRoom))?;
                let given = Gift::make(class, index, self.reception.is_crowded()).and_then(|gift| {
                    self.reception.give(&socket, &Message::Ready { ring: gift.ring, bell: gift.bell }, &gift)?;
                    Ok(gift)
                });
                let gift = given.map_err(|reason| {
                    self.reception.give_place(index);
                    Answer::Refused(reason)
                })?;
                self.reception.note_session(peer);
                let arrival = Arrival { peer, index, class, tx, rx: gift.rx, page: gift.page };
                let tie = self.attach(core, arrival, process_of(&*socket));
                let id = tie.id;
                self.keep_line(token, socket, Talk::Session(tie));
                Ok(Some(id))
            }
            Message::Join { bundle, .. } => {
                // Only a session through memory matches: over the network the peer's user is unknown.
                let there = |peer: &PeerId| (peer.epoch, peer.bundle, peer.uid) == (name.epoch, bundle, user);
                let found = core.state().sessions().find(|(_, peer)| there(peer)).map(|(id, _)| id);
                found.map(Some).ok_or(Answer::NotJoined)
            }
            Message::Refuse { reason } => Err(Answer::Refused(reason)),
            _ => Err(Answer::Refused(Reason::Violation)),
        }
    }

    /// Sets places aside, so that callers are answered while the program computes.
    pub fn set_places_aside(&mut self, core: &mut Core) {
        if self.reception.fill_up(|| core.reserve()) {
            self.node.office().service();
        }
    }

    /// Takes over the sessions of callers, and sets more places aside.
    fn seat_arrivals(&mut self, core: &mut Core) {
        for (arrival, socket) in self.reception.take_arrivals() {
            match self.watch(socket) {
                Ok((token, socket)) => {
                    let tie = self.attach(core, arrival, process_of(&*socket));
                    self.keep_line(token, socket, Talk::Session(tie));
                }
                Err(_) => self.reception.turn_away(arrival),
            }
        }
        self.set_places_aside(core);
    }

    /// Makes a session of a finished set-up.
    fn attach(&self, core: &mut Core, arrival: Arrival, process: Option<Pid>) -> Tie {
        let Arrival { peer, index, class, tx, rx, page } = arrival;
        core.bells_mut().add(index, page);
        let process = process.filter(|_| class == Class::Trusted);
        let neighbour = process.and_then(|process| NonZeroU32::new(process.as_raw().unsigned_abs()));
        let id = core.attach(index, peer, Outlet::to_process(tx, neighbour), Inlet::Ring(*rx));
        Tie { id, peer, class, first_sleep: core.bells().sleeps(), wakes: 0 }
    }

    /// Forgets a session.
    fn untie(&self, core: &mut Core, tie: &Tie) {
        self.reception.forget_session(&tie.peer);
        core.bells_mut().remove(tie.id.index);
    }

    fn close_broken<S: Sink<Outlet>>(&mut self, core: &mut Core, sink: &mut S) {
        for id in core.take_broken() {
            let is_it = |line: &Line| matches!(&line.talk, Talk::Session(tie) if tie.id == id);
            let found = self.lines.iter().find(|(_, line)| is_it(line)).map(|(&token, _)| token);
            if let Some(Line { socket, talk: Talk::Session(tie) }) = found.and_then(|token| self.lines.remove(&token)) {
                self.untie(core, &tie);
                socket.bar();
            }
            if let Some(net) = &mut self.net {
                net.close(id, Reason::Violation);
            }
            if let Some(daemon) = &mut self.daemon {
                daemon.close(id, Reason::Violation);
            }
            core.lose(id, Reason::Violation, sink);
        }
    }

    /// Watches a new socket. It keeps its token for life, whatever it is used for.
    fn watch(&mut self, socket: Socket) -> Result<(u64, Watched), Reason> {
        let token = self.next_line;
        let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
        let socket = Watched::new(socket, &self.epoll, token, flags).map_err(|(_, error)| shortage(error))?;
        self.next_line += 1;
        Ok((token, socket))
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
        self.node.office().remove_bundle(self.id);
        // The office leaves nothing more here.
        for post in self.reception.take_post() {
            if let Post::Errand(errand) = post {
                if let Some((to, back)) = errand.refuse(Reason::NoSuchEndpoint) {
                    self.node.office().carry_back(to, back);
                }
            }
        }
    }
}

impl Calling {
    /// Whether this is a proof that we accept.
    fn is_proof(&self, proof: KeyProof) -> bool {
        proof.matches(self.proof) || self.proof_of_none.is_some_and(|none| proof.matches(none))
    }
}

impl Tie {
    /// Whether the peer may have woken us once more, given how often we have slept by now.
    fn may_wake(&mut self, sleeps: u32) -> bool {
        self.wakes = self.wakes.saturating_add(1);
        let slept = sleeps.wrapping_sub(self.first_sleep);
        self.class != Class::Trusted && self.wakes <= slept.saturating_add(EARLY_WAKES_MOST)
    }
}

/// The result of connecting to a set-up socket.
enum Connected {
    Yes(Socket),
    /// Its backlog is full: try again later.
    Later,
    Nobody,
}

/// Why an answer gave no session.
enum Answer {
    Refused(Reason),
    /// We were told to join a session that we do not have, or no longer have.
    NotJoined,
}
