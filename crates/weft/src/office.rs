//! A node's set-up socket, and the bundle behind each endpoint.
//!
//! The set-up socket is an abstract Unix socket named by the node's random epoch, so a process that ends leaves nothing
//! behind and nobody inherits its address. A stranger gets no memory and no descriptor before its first message is admitted; until
//! then it has one of at most [`STRANGERS_MOST`] places.
//!
//! The helper answers callers, even while the program computes. Without a helper, the polls of any bundle answer them.

use crate::foreigners::Foreigners;
use crate::node::{lock, random_u64, Error};
use crate::owner::{owner, Owner, UserMap};
use crate::readers::Readers;
use crate::reception::{Answer, Answered, Caller, Post, Reception};
use crate::setup::{listens_at, owner_of, process_of, say, shortage, Class};
use crate::socket::{self, Heard, Listener, Socket};
use crate::watch::Signals;
use crate::watched::Watched;
use nix::unistd::Pid;
use rustix::event::{epoll, Timespec};
use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, SocketType};
use std::collections::{BTreeMap, HashMap};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, TryLockError, Weak};
use weft_core::{Admission, Admitted, Back, Errand};
use weft_shm::Descriptor;
use weft_wire::proof::{KeyProof, Side};
use weft_wire::setup::{Hello, Message, Nonce};
use weft_wire::{BundleId, EndpointId, Epoch, HostAddress, Key, Name, Reason, Uid};

/// Largest number of connections that have not said who they are. A new one replaces the oldest.
pub const STRANGERS_MOST: usize = 64;

/// Largest number of these that belong to other users.
const FOREIGN_STRANGERS_MOST: usize = 16;

/// Largest number of admitted callers without a session. A new one replaces the oldest.
const CALLERS_MOST: usize = 256;

/// Backlog of the set-up socket.
const BACKLOG: i32 = 128;

/// Largest number of connections accepted at once.
const ACCEPTS_MOST: usize = 16;

/// Largest number of events taken from epoll at once.
const EVENTS_MOST: usize = 32;

/// The token of the set-up socket; guests have others.
const LISTENER: u64 = 0;

/// The set-up socket of a node.
#[derive(Debug)]
pub(crate) struct Office {
    pub epoch: Epoch,
    /// This process's user, as `users` numbers it.
    user: Uid,
    users: UserMap,
    /// False with `WEFT_TRUST=off`: then no process is trusted.
    trusts: bool,
    /// A random number that a process of the same user reads to show that it may read our memory. Its address never changes.
    nonce: Box<Nonce>,
    listener: Listener,
    /// Watches the listener and the guests.
    epoll: Arc<Descriptor>,
    readers: Readers,
    foreigners: Foreigners,
    /// Held by the thread that serves guests. No thread blocks on it: a thread that finds it locked sets `is_called` instead.
    serving: Mutex<()>,
    /// Asks the thread that serves guests to look again.
    is_called: AtomicBool,
    /// The last round did not get to all guests.
    has_more: AtomicBool,
    /// Locked briefly, never during a system call.
    inner: Mutex<Inner>,
    /// For the reading threads, which must not keep the office alive.
    itself: Weak<Office>,
}

#[derive(Debug, Default)]
struct Inner {
    next_endpoint: u32,
    next_bundle: u32,
    endpoints: HashMap<EndpointId, Resident>,
    receptions: HashMap<BundleId, Arc<Reception>>,
    /// By token, so that the oldest come first. A guest that is being served is not in the map.
    guests: BTreeMap<u64, Guest>,
    next_guest: u64,
}

/// The properties of an endpoint that decide about callers.
#[derive(Debug)]
struct Resident {
    bundle: BundleId,
    key: Key,
    admission: Admission,
}

/// A connection that has no session yet.
#[derive(Debug)]
struct Guest {
    socket: Watched,
    user: Uid,
    step: Step,
}

/// How far a guest has come.
#[derive(Debug)]
enum Step {
    /// It has said nothing.
    Stranger,
    /// It was admitted, and must prove that it can read our memory.
    Challenged(Arc<Reception>, Caller, Nonce),
    /// It waits for a place.
    Waiting(Arc<Reception>, Caller),
    /// It was given a ring.
    Answered(Box<Answered>),
}

/// How a stranger was admitted.
enum Greeted {
    /// It waits for a place.
    Admitted(Arc<Reception>, Caller),
    /// It is of the same user: each side reads the other's memory first.
    Challenge(Arc<Reception>, Caller),
}

impl Office {
    /// Opens the set-up socket under the epoch that weftd chose, or under a fresh random one. Without `trusts`, no process is
    /// trusted.
    pub fn open(trusts: bool, epoch: Option<Epoch>) -> Result<Arc<Office>, Error> {
        let epoch = epoch.map_or_else(|| random_u64().map(Epoch), Ok)?;
        let nonce = Nonce(u128::from(random_u64()?) << 64 | u128::from(random_u64()?) | 1);
        let listener = Listener::open(&address(epoch)?, SocketType::SEQPACKET, BACKLOG)
            .map_err(|e| Error::shortage("cannot make the set-up socket", e))?;
        let epoll = Descriptor::make(|| epoll::create(epoll::CreateFlags::CLOEXEC))
            .and_then(|epoll| {
                epoll::add(&epoll, &listener, epoll::EventData::new_u64(LISTENER), epoll::EventFlags::IN)
                    .map(|()| epoll)
            })
            .map_err(|e| Error::shortage("cannot watch the set-up socket", e))?;
        let users = UserMap::of_this_process();
        let user = users.outside(Uid(rustix::process::geteuid().as_raw()));
        let inner = Inner { next_guest: LISTENER + 1, ..Inner::default() };
        Ok(Arc::new_cyclic(|itself| Office {
            epoch,
            user,
            users,
            trusts,
            nonce: Box::new(nonce),
            listener,
            epoll: Arc::new(epoll),
            readers: Readers::default(),
            foreigners: Foreigners::default(),
            serving: Mutex::default(),
            is_called: AtomicBool::new(false),
            has_more: AtomicBool::new(false),
            inner: Mutex::new(inner),
            itself: itself.clone(),
        }))
    }

    /// Whether the program has left its descriptors open.
    pub fn is_open(&self) -> bool {
        self.epoll.is_ours()
    }

    /// Readable when there is something to do here.
    pub fn epoll(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// The user of the process at the other end of a socket, as the kernel says.
    fn user_at(&self, socket: &impl AsFd) -> Uid {
        owner_of(socket).map_or(Uid::UNKNOWN, |user| self.users.outside(user))
    }

    /// The owner of the process at the other end of a socket, whose name says `named`.
    pub fn owner_at(&self, socket: &impl AsFd, named: Uid) -> Owner {
        owner(self.user_at(socket), named, self.user)
    }

    /// This process's user.
    pub fn user(&self) -> Uid {
        self.user
    }

    /// The address of our nonce, for processes that may read it.
    pub fn nonce_at(&self) -> u64 {
        std::ptr::from_ref(&*self.nonce) as u64
    }

    /// Reads the nonce of a process, and calls `then` with it, in another thread or here. With `WEFT_TRUST=off` nothing is read. Does
    /// not block.
    pub fn read_nonce(&self, process: Option<Pid>, nonce_at: u64, then: impl FnOnce(Nonce) + Send + 'static) {
        match self.trusts {
            true => self.readers.read(process, nonce_at, then),
            false => then(Nonce::UNSEEN),
        }
    }

    /// Starts a thread for [`Office::read_nonce`] early.
    pub fn prepare_to_read(&self) {
        if self.trusts {
            self.readers.prepare();
        }
    }

    /// The class of a process of our user. It read `it_saw` in our memory, and we read `seen` in its memory.
    pub fn class_of(&self, it_saw: Nonce, seen: Nonce) -> Class {
        match it_saw == *self.nonce && seen != Nonce::UNSEEN {
            true => Class::Trusted,
            false => Class::Unreadable,
        }
    }

    // ---- bundles and endpoints

    pub fn add_bundle(
        &self,
        signals: Arc<Signals>,
        bells: Descriptor,
        is_attached: bool,
    ) -> (BundleId, Arc<Reception>) {
        let mut inner = lock(&self.inner);
        let id = BundleId(inner.next_bundle);
        inner.next_bundle += 1;
        let reception = Arc::new(Reception::new(id, signals, bells, is_attached));
        inner.receptions.insert(id, reception.clone());
        (id, reception)
    }

    pub fn remove_bundle(&self, bundle: BundleId) {
        let mut inner = lock(&self.inner);
        inner.receptions.remove(&bundle);
        inner.endpoints.retain(|_, resident| resident.bundle != bundle);
        let (its, others) =
            std::mem::take(&mut inner.guests).into_iter().partition(|(_, guest)| guest.bundle() == Some(bundle));
        inner.guests = others;
        drop(inner);
        let its: BTreeMap<u64, Guest> = its;
        drop(its);
    }

    /// A name for a new endpoint of a bundle.
    pub fn add_endpoint(&self, bundle: BundleId, key: Key, address: HostAddress) -> Name {
        let mut inner = lock(&self.inner);
        let endpoint = EndpointId(inner.next_endpoint);
        inner.next_endpoint += 1;
        inner.endpoints.insert(endpoint, Resident { bundle, key, admission: Admission::default() });
        Name { epoch: self.epoch, endpoint, uid: self.user, address }
    }

    /// The endpoints of a bundle, with their keys and whom they admit.
    pub fn endpoints_of(&self, bundle: BundleId) -> Vec<(EndpointId, Key, Admission)> {
        let inner = lock(&self.inner);
        let its = inner.endpoints.iter().filter(|(_, resident)| resident.bundle == bundle);
        its.map(|(endpoint, resident)| (*endpoint, resident.key, resident.admission)).collect()
    }

    /// Notes that an endpoint lives in this bundle from now on.
    pub fn move_endpoint(&self, endpoint: EndpointId, key: Key, admission: Admission, bundle: BundleId) {
        lock(&self.inner).endpoints.insert(endpoint, Resident { bundle, key, admission });
    }

    /// Hands a bundle's errand to the bundle where its endpoint lives. Returns it with the reason if that fails.
    pub fn forward(&self, from: BundleId, mut errand: Errand) -> Result<(), (Errand, Reason)> {
        errand.from.get_or_insert(from);
        let inner = lock(&self.inner);
        let found = inner.endpoints.get(&errand.endpoint).ok_or(Reason::NoSuchEndpoint).and_then(|resident| {
            errand.is_admitted(self.user, resident.key, resident.admission)?;
            inner.receptions.get(&resident.bundle).ok_or(Reason::NoSuchEndpoint)
        });
        match found {
            Ok(reception) => {
                reception.put_post(Post::Errand(errand));
                Ok(())
            }
            Err(reason) => Err((errand, reason)),
        }
    }

    /// Hands the result of an errand to the bundle that it came from. If that bundle is gone, the result is dropped.
    pub fn carry_back(&self, to: BundleId, back: Back) {
        if let Some(reception) = lock(&self.inner).receptions.get(&to) {
            reception.put_post(Post::Back(back));
        }
    }

    pub fn set_key(&self, endpoint: EndpointId, key: Key) {
        if let Some(resident) = lock(&self.inner).endpoints.get_mut(&endpoint) {
            resident.key = key;
        }
    }

    pub fn set_admission(&self, endpoint: EndpointId, admission: Admission) {
        if let Some(resident) = lock(&self.inner).endpoints.get_mut(&endpoint) {
            resident.admission = admission;
        }
    }

    pub fn remove_endpoint(&self, endpoint: EndpointId) {
        let mut inner = lock(&self.inner);
        let reception = inner.endpoints.remove(&endpoint).and_then(|resident| inner.receptions.get(&resident.bundle));
        if let Some(reception) = reception {
            reception.note_freed(endpoint);
        }
    }

    // ---- guests

    /// Accepts connections, handles messages of guests, and gives places to guests that wait for one. If another thread is doing so
    /// already, it is told to go around once more. Does not block. Returns false if some connections cannot be accepted now.
    pub fn service(&self) -> bool {
        self.is_called.store(true, Ordering::SeqCst);
        let mut can_accept = true;
        loop {
            let serving = match self.serving.try_lock() {
                Ok(serving) => serving,
                Err(TryLockError::Poisoned(serving)) => serving.into_inner(),
                Err(TryLockError::WouldBlock) => break,
            };
            if self.is_called.swap(false, Ordering::SeqCst) {
                can_accept = self.look_at_guests();
            }
            drop(serving);
            // A thread that found the lock held set the flag first.
            if !self.is_called.load(Ordering::SeqCst) {
                break;
            }
        }
        can_accept
    }

    /// Like [`Office::service`]. Returns true if every message that guests have sent so far is handled: a session that one of them
    /// set up is then with its bundle, even if it has ended since. False if another thread is serving guests.
    pub fn has_heard_all(&self) -> bool {
        self.service();
        if self.has_more.load(Ordering::SeqCst) {
            return false;
        }
        let is_free = !matches!(self.serving.try_lock(), Err(TryLockError::WouldBlock));
        is_free && !self.is_called.load(Ordering::SeqCst)
    }

    fn look_at_guests(&self) -> bool {
        if !self.epoll.is_ours_lately() {
            return true; // the program closed it, and nobody can call any more
        }
        let mut can_accept = true;
        let mut events = [MaybeUninit::<epoll::Event>::uninit(); EVENTS_MOST];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        if let Ok((ready, _)) = epoll::wait(&self.epoll, &mut events, Some(&now)) {
            self.has_more.store(ready.len() == EVENTS_MOST, Ordering::SeqCst);
            for event in ready.iter() {
                match event.data.u64() {
                    LISTENER => can_accept = self.accept(),
                    token => self.attend(token),
                }
            }
        }
        self.seat();
        can_accept
    }

    fn accept(&self) -> bool {
        for _ in 0..ACCEPTS_MOST {
            if socket::is_crowded() {
                return false;
            }
            match self.listener.accept() {
                Ok(socket) => self.admit_stranger(socket),
                Err(error) => return !matches!(error, Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM),
            }
        }
        self.has_more.store(true, Ordering::SeqCst);
        true
    }

    fn admit_stranger(&self, socket: Socket) {
        let user = self.user_at(&socket);
        let token = {
            let mut inner = lock(&self.inner);
            if !user.is_same_as(self.user) && !inner.endpoints.values().any(|r| r.admission.admits_others()) {
                drop(inner);
                return refuse(&socket, Reason::ForeignUser);
            }
            inner.next_guest += 1;
            inner.next_guest
        };
        match Watched::new(socket, &self.epoll, token, epoll::EventFlags::IN) {
            // Most callers have said something already.
            Ok(socket) => self.hear(token, Guest { socket, user, step: Step::Stranger }),
            Err((socket, error)) => refuse(&socket, shortage(error)),
        }
    }

    /// Handles the next message of a guest, if there is one.
    fn attend(&self, token: u64) {
        let guest = lock(&self.inner).guests.remove(&token);
        if let Some(guest) = guest {
            self.hear(token, guest);
        }
    }

    /// Handles the next message of a guest that is not in the map, if there is one. A guest that breaks the protocol is refused.
    fn hear(&self, token: u64, guest: Guest) {
        let Guest { mut socket, user, step } = guest;
        let heard = match step {
            Step::Answered(_) => socket.receive(),
            _ => socket.receive_words(),
        };
        let next = match (heard, step) {
            (Heard::Nothing, step) => Ok(step),
            (Heard::End, _) => return,
            (Heard::Version, Step::Stranger) => Err(Reason::Version),
            (Heard::Message(Message::Hello(hello, proof)), Step::Stranger) => {
                match self.greet(&mut socket, user, &hello, proof) {
                    Ok(Greeted::Admitted(reception, caller)) => Ok(Step::Waiting(reception, caller)),
                    Ok(Greeted::Challenge(reception, caller)) => {
                        return self.challenge(token, socket, user, hello.nonce_at, reception, caller);
                    }
                    Err(reason) => Err(reason),
                }
            }
            (Heard::Message(Message::Proof { seen }), Step::Challenged(reception, mut caller, saw)) => {
                caller.class = self.class_of(seen, saw);
                Ok(Step::Waiting(reception, caller))
            }
            (Heard::Message(Message::Ready { ring, bell }), Step::Answered(answered)) => {
                return answered.arrive(socket.into_inner(), ring, bell);
            }
            (Heard::NoDescriptors, Step::Answered(_)) => Err(Reason::OwnDescriptors),
            (_, Step::Answered(_)) => return socket.bar(),
            _ => Err(Reason::Violation),
        };
        match next {
            Ok(step) => self.keep(token, Guest { socket, user, step }),
            Err(reason) => refuse(&*socket, reason),
        }
    }

    /// Puts a guest into the map. If there are too many of its kind, the oldest of them is dropped.
    fn keep(&self, token: u64, guest: Guest) {
        let mut inner = lock(&self.inner);
        if guest.bundle().is_some_and(|bundle| !inner.receptions.contains_key(&bundle)) {
            drop(inner);
            // A guest that was given a ring has a session already. To it this looks as if the bundle had gone a moment later.
            if !matches!(guest.step, Step::Answered(_)) {
                refuse(&*guest.socket, Reason::NoSuchEndpoint);
            }
            return;
        }
        let is_stranger = |guest: &Guest| matches!(guest.step, Step::Stranger);
        let is_foreign = |guest: &Guest| !guest.user.is_same_as(self.user);
        let gone = match is_stranger(&guest) {
            false => [inner.make_room(CALLERS_MOST, |guest| !is_stranger(guest)), None],
            true => {
                let is_both = |guest: &Guest| is_stranger(guest) && is_foreign(guest);
                let foreign = if is_foreign(&guest) { inner.make_room(FOREIGN_STRANGERS_MOST, is_both) } else { None };
                [foreign, inner.make_room(STRANGERS_MOST, is_stranger)]
            }
        };
        inner.guests.insert(token, guest);
        drop(inner);
        drop(gone);
    }

    /// Admits a stranger, or says why not.
    fn greet(&self, socket: &mut Socket, user: Uid, hello: &Hello, proof: KeyProof) -> Result<Greeted, Reason> {
        let Found { reception, admitted, proof } = self.find(&lock(&self.inner), hello, proof, user)?;
        let is_guest = admitted == Admitted::WithoutKey;
        let caller = Caller { is_guest, ..Caller::new(hello, user, Class::OtherUser, proof) };
        let is_own = user.is_same_as(self.user);
        if is_own && !is_guest {
            return Ok(Greeted::Challenge(reception, caller));
        }
        let pass = if is_own { self.foreigners.admit_guest(user) } else { self.foreigners.admit(user, admitted) };
        socket.keep_pass(Some(pass.ok_or(Reason::NoRoom)?));
        // Knowing the key proves a caller's identity. Without it, a caller could use the name of any process of its user.
        let life = address(hello.source.epoch).map_err(|_| Reason::NoRoom)?;
        if is_guest && !listens_at(socket, &life)? {
            return Err(if is_own { Reason::WrongKey } else { Reason::ForeignUser });
        }
        Ok(if is_own { Greeted::Challenge(reception, caller) } else { Greeted::Admitted(reception, caller) })
    }

    /// Has the memory of a caller of our user read, and then challenges the caller. Until then nothing is received from it.
    fn challenge(&self, token: u64, socket: Watched, user: Uid, nonce_at: u64, to: Arc<Reception>, caller: Caller) {
        let (socket, itself) = (socket.into_inner(), self.itself.clone());
        self.read_nonce(process_of(&socket), nonce_at, move |seen| {
            let Some(office) = itself.upgrade() else { return };
            say(&socket, &Message::Challenge { seen, nonce_at: office.nonce_at(), proof: caller.proof });
            match Watched::new(socket, &office.epoll, token, epoll::EventFlags::IN) {
                Ok(socket) => office.keep(token, Guest { socket, user, step: Step::Challenged(to, caller, seen) }),
                Err((socket, error)) => refuse(&socket, shortage(error)),
            }
        });
    }

    /// Gives free places to guests that wait for one.
    fn seat(&self) {
        let is_waiting = |(&token, guest): (&u64, &Guest)| matches!(guest.step, Step::Waiting(..)).then_some(token);
        let waiting: Vec<u64> = lock(&self.inner).guests.iter().filter_map(is_waiting).collect();
        for token in waiting {
            let Some(guest) = lock(&self.inner).guests.remove(&token) else { continue };
            let Guest { mut socket, user, step: Step::Waiting(reception, caller) } = guest else { continue };
            let step = match reception.answer(&mut socket, caller) {
                Answer::Given(answered) => Step::Answered(answered),
                Answer::Wait(caller) => Step::Waiting(reception, caller),
                Answer::Joined => continue,
                Answer::Refuse(reason) => {
                    refuse(&*socket, reason);
                    continue;
                }
            };
            self.keep(token, Guest { socket, user, step });
        }
    }

    /// Finds the endpoint that is called, and whether it admits the caller. Only a process of our own user is told what is wrong;
    /// others are told `ForeignUser`.
    fn find(&self, inner: &Inner, hello: &Hello, proof: KeyProof, user: Uid) -> Result<Found, Reason> {
        let found = self.find_for(inner, hello, proof, user);
        if user.is_same_as(self.user) {
            found
        } else {
            found.map_err(|_| Reason::ForeignUser)
        }
    }

    fn find_for(&self, inner: &Inner, hello: &Hello, proof: KeyProof, user: Uid) -> Result<Found, Reason> {
        if hello.destination.epoch != self.epoch {
            return Err(Reason::WrongEpoch);
        }
        let resident = inner.endpoints.get(&hello.destination.endpoint).ok_or(Reason::NoSuchEndpoint)?;
        let Resident { bundle, key, admission } = *resident;
        // If the kernel does not say who owns a process of this host, treat it as another user's.
        let user = if user == Uid::UNKNOWN { Uid::OVERFLOW } else { user };
        let has_key = hello.proof(key, Side::Caller).matches(proof);
        let admitted = admission.admit_who(self.user, user, has_key)?;
        // A caller without the key could not check a proof made with it.
        let key = if has_key { key } else { Key::NONE };
        let reception = inner.receptions.get(&bundle).ok_or(Reason::NoSuchEndpoint)?.clone();
        Ok(Found { reception, admitted, proof: hello.proof(key, Side::Callee) })
    }
}

/// An endpoint that admits a caller.
struct Found {
    reception: Arc<Reception>,
    admitted: Admitted,
    /// Proves to the caller that we know the key that it knows.
    proof: KeyProof,
}

impl Guest {
    /// The bundle that it called.
    fn bundle(&self) -> Option<BundleId> {
        match &self.step {
            Step::Stranger => None,
            Step::Challenged(reception, ..) | Step::Waiting(reception, _) => Some(reception.id()),
            Step::Answered(answered) => Some(answered.bundle()),
        }
    }
}

impl Inner {
    /// Takes out the oldest of the matching guests if there are `most` of them. The caller drops it after unlocking the map.
    fn make_room(&mut self, most: usize, is_one: impl Fn(&Guest) -> bool) -> Option<Guest> {
        let mut these = self.guests.iter().filter(|(_, guest)| is_one(guest));
        let oldest = these.next().map(|(&token, _)| token);
        let oldest = oldest.filter(|_| these.count() + 1 >= most)?;
        self.guests.remove(&oldest)
    }
}

/// The address of the set-up socket of an epoch. It is abstract, so it ends with its socket.
pub(crate) fn address(epoch: Epoch) -> Result<SocketAddrUnix, Error> {
    let name = format!("weft1-{:016x}", epoch.0);
    SocketAddrUnix::new_abstract_name(name.as_bytes())
        .map_err(|e| Error::system("cannot name the set-up socket", e, "this kernel has no abstract Unix sockets"))
}

/// Tells a peer why it is refused. Does not block.
fn refuse(socket: impl AsFd, reason: Reason) {
    say(socket, &Message::Refuse { reason });
}
