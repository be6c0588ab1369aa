//! A node's set-up socket, and who is behind which endpoint.
//!
//! The set-up socket is an abstract Unix socket named by the node's random epoch, so a process that ends leaves nothing
//! behind and nobody inherits its address. A stranger is given nothing before its first message has proved that it knows
//! (endpoint, key): no memory, no descriptor, and a place among at most [`STRANGERS_MOST`].
//!
//! Callers are answered by the helper, also while the program computes; without a helper by the polls of any bundle.

use crate::foreigners::Foreigners;
use crate::node::{lock, random_u64, Error};
use crate::owner::{owner, Owner, UserMap};
use crate::reception::{Answer, Answered, Caller, Post, Reception};
use crate::setup::{owner_of, read_nonce, receive, receive_words, say, Class, Heard};
use crate::watch::Signals;
use crate::watched::Watched;
use rustix::event::{epoll, Timespec};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::collections::{BTreeMap, HashMap};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};
use weft_core::{Admission, Back, Errand};
use weft_shm::Descriptor;
use weft_wire::proof::{KeyProof, Side};
use weft_wire::setup::{Hello, Message, Nonce};
use weft_wire::{BundleId, EndpointId, Epoch, HostAddress, Key, Name, Reason, Uid};

/// Connections that have not said who they are; the oldest is dropped for the next.
pub const STRANGERS_MOST: usize = 64;

/// Of these, connections of other users.
const FOREIGN_STRANGERS_MOST: usize = 16;

/// Callers that proved that they know a key and are not done; the oldest is dropped for the next.
const CALLERS_MOST: usize = 256;

/// Connections accepted in one look at the set-up socket.
const ACCEPTS_MOST: usize = 16;

/// Events of one look.
const EVENTS_MOST: usize = 32;

/// The token of the set-up socket; guests have others.
const LISTENER: u64 = 0;

/// The set-up socket of a node.
#[derive(Debug)]
pub(crate) struct Office {
    pub epoch: Epoch,
    /// Our user, in the numbers of `users`.
    user: Uid,
    users: UserMap,
    /// `WEFT_TRUST=off`: no process is taken for trusted.
    trusts: bool,
    /// What shows a process of our user that it may read our memory. It stays where it is.
    nonce: Box<Nonce>,
    listener: Descriptor,
    /// Watches the listener and the guests.
    epoll: Arc<Descriptor>,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    next_endpoint: u32,
    next_bundle: u32,
    endpoints: HashMap<EndpointId, Resident>,
    receptions: HashMap<BundleId, Arc<Reception>>,
    /// By their tokens, so the oldest come first.
    guests: BTreeMap<u64, Guest>,
    next_guest: u64,
    foreigners: Foreigners,
}

/// An endpoint, as far as callers are concerned.
#[derive(Debug)]
struct Resident {
    bundle: BundleId,
    key: Key,
    admission: Admission,
}

/// A connection that is no session yet.
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
    /// It knows a key, and is to prove that it can read our memory as we can its.
    Challenged(Arc<Reception>, Caller, Nonce),
    /// It waits for a place.
    Waiting(Arc<Reception>, Caller),
    /// It was given a ring.
    Answered(Box<Answered>),
}

impl Office {
    /// Opens the set-up socket under a fresh random epoch.
    pub fn open() -> Result<Office, Error> {
        let way_out = "raise the limit of open files (ulimit -n), or close some";
        let epoch = Epoch(random_u64()?);
        let nonce = u128::from(random_u64()?) << 64 | u128::from(random_u64()?) | 1;
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let listener = Descriptor::make(|| net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None))
            .map_err(|e| Error::system("cannot make the set-up socket", e, way_out))?;
        net::bind(&listener, &address(epoch)?)
            .and_then(|()| net::listen(&listener, 128))
            .map_err(|e| Error::system("cannot bind the set-up socket", e, "try again: its name is random"))?;
        let epoll = Descriptor::make(|| epoll::create(epoll::CreateFlags::CLOEXEC))
            .and_then(|epoll| {
                epoll::add(&epoll, &listener, epoll::EventData::new_u64(LISTENER), epoll::EventFlags::IN)
                    .map(|()| epoll)
            })
            .map_err(|e| Error::system("cannot watch the set-up socket", e, way_out))?;
        let users = UserMap::of_this_process();
        let user = users.outside(Uid(rustix::process::geteuid().as_raw()));
        let inner = Inner { next_guest: LISTENER + 1, ..Inner::default() };
        let (nonce, epoll, inner) = (Box::new(Nonce(nonce)), Arc::new(epoll), Mutex::new(inner));
        let trusts = std::env::var_os("WEFT_TRUST").is_none_or(|value| value != "off");
        Ok(Office { epoch, user, users, trusts, nonce, listener, epoll, inner })
    }

    /// Readable when there is something to do here.
    pub fn epoll(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Whose process is at the other end of a socket, as the kernel says.
    fn user_at(&self, socket: &impl AsFd) -> Uid {
        owner_of(socket).map_or(Uid::UNKNOWN, |user| self.users.outside(user))
    }

    /// Whose process is at the other end of a socket, of which a name says that it is `named`'s.
    pub fn owner_at(&self, socket: &impl AsFd, named: Uid) -> Owner {
        owner(self.user_at(socket), named, self.user)
    }

    /// The user as whom the sessions of our own user's processes count.
    pub fn user(&self) -> Uid {
        self.user
    }

    /// Where our nonce lies, for processes that may read it.
    pub fn nonce_at(&self) -> u64 {
        std::ptr::from_ref(&*self.nonce) as u64
    }

    /// The nonce of the process at the other end of a socket, if we may read it and trust anybody.
    pub fn read_nonce(&self, socket: &impl AsFd, nonce_at: u64) -> Nonce {
        if self.trusts {
            read_nonce(socket, nonce_at)
        } else {
            Nonce::UNSEEN
        }
    }

    /// Of which class a process of our user is, which says it read `it_saw` in us, and in which we read `seen`.
    pub fn class_of(&self, it_saw: Nonce, seen: Nonce) -> Class {
        match it_saw == *self.nonce && seen != Nonce::UNSEEN {
            true => Class::Trusted,
            false => Class::Unreadable,
        }
    }

    // ---- bundles and endpoints

    pub fn add_bundle(&self, signals: Arc<Signals>, bells: Descriptor) -> (BundleId, Arc<Reception>) {
        let mut inner = lock(&self.inner);
        let id = BundleId(inner.next_bundle);
        inner.next_bundle += 1;
        let reception = Arc::new(Reception::new(id, signals, bells));
        inner.receptions.insert(id, reception.clone());
        (id, reception)
    }

    pub fn remove_bundle(&self, bundle: BundleId) {
        let mut inner = lock(&self.inner);
        inner.receptions.remove(&bundle);
        inner.endpoints.retain(|_, resident| resident.bundle != bundle);
        inner.guests.retain(|_, guest| guest.bundle() != Some(bundle));
    }

    /// A name for a new endpoint of a bundle.
    pub fn add_endpoint(&self, bundle: BundleId, key: Key, address: HostAddress) -> Name {
        let mut inner = lock(&self.inner);
        let endpoint = EndpointId(inner.next_endpoint);
        inner.next_endpoint += 1;
        inner.endpoints.insert(endpoint, Resident { bundle, key, admission: Admission::default() });
        Name { epoch: self.epoch, endpoint, uid: self.user, address }
    }

    /// An endpoint lives in this bundle from now on.
    pub fn move_endpoint(&self, endpoint: EndpointId, key: Key, admission: Admission, bundle: BundleId) {
        lock(&self.inner).endpoints.insert(endpoint, Resident { bundle, key, admission });
    }

    /// Leaves an errand of a bundle where its endpoint lives, or says why nobody takes it.
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

    /// Leaves what became of an errand where it came from. For a bundle that is no more there is nobody to tell.
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
        lock(&self.inner).endpoints.remove(&endpoint);
    }

    // ---- guests

    /// Accepts connections and hears what guests say. Returns at once; leaves it to another thread that is at it. False if
    /// connections wait that the kernel has no descriptor for.
    pub fn service(&self) -> bool {
        let Ok(mut inner) = self.inner.try_lock() else { return true };
        let mut can_accept = true;
        let mut events = [MaybeUninit::<epoll::Event>::uninit(); EVENTS_MOST];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let Ok((ready, _)) = epoll::wait(&self.epoll, &mut events, Some(&now)) else { return true };
        for event in ready.iter() {
            match event.data.u64() {
                LISTENER => can_accept = self.accept(&mut inner),
                token => self.attend(&mut inner, token),
            }
        }
        self.seat(&mut inner);
        can_accept
    }

    /// Answers those who waited for places, of which there are some now.
    pub fn seat_waiting(&self) {
        self.seat(&mut lock(&self.inner));
    }

    fn accept(&self, inner: &mut Inner) -> bool {
        for _ in 0..ACCEPTS_MOST {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            match Descriptor::make(|| net::accept_with(&self.listener, flags)) {
                Ok(socket) => self.admit_stranger(inner, socket),
                Err(error) => return !matches!(error, Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM),
            }
        }
        true
    }

    fn admit_stranger(&self, inner: &mut Inner, socket: Descriptor) {
        let user = self.user_at(&socket);
        if !user.is_same_as(self.user) && inner.endpoints.values().all(|r| r.admission == Admission::OwnUser) {
            return refuse(&socket, Reason::ForeignUser);
        }
        let token = inner.next_guest;
        inner.next_guest += 1;
        let socket = match Watched::new(socket, &self.epoll, token, epoll::EventFlags::IN) {
            Ok(socket) => socket,
            Err(socket) => return refuse(&socket, Reason::NoRoom),
        };
        let is_stranger = |guest: &Guest| matches!(guest.step, Step::Stranger);
        inner.make_room(STRANGERS_MOST, is_stranger);
        if !user.is_same_as(self.user) {
            let own = self.user;
            inner.make_room(FOREIGN_STRANGERS_MOST, |guest| is_stranger(guest) && !guest.user.is_same_as(own));
        }
        inner.guests.insert(token, Guest { socket, user, step: Step::Stranger });
        // Most speak at once.
        self.attend(inner, token);
    }

    /// Hears what a guest says, if it says something. Whoever says what is not his to say is dropped.
    fn attend(&self, inner: &mut Inner, token: u64) {
        let Some(guest) = inner.guests.remove(&token) else { return };
        let heard = match guest.step {
            Step::Answered(_) => receive(&guest.socket),
            // No room for descriptors: the kernel closes any that were sent.
            _ => receive_words(&guest.socket),
        };
        let Guest { socket, user, step } = guest;
        let next = match (heard, step) {
            (Heard::Nothing, step) => Ok(Some(step)),
            (Heard::End, _) => Ok(None),
            (Heard::Version, Step::Stranger) => Err(Reason::Version),
            (Heard::Message(Message::Hello(hello, proof), _), Step::Stranger) => {
                self.greet(inner, &socket, user, &hello, proof)
            }
            (Heard::Message(Message::Proof { seen }, _), Step::Challenged(reception, mut caller, saw)) => {
                caller.class = self.class_of(seen, saw);
                Ok(Some(Step::Waiting(reception, caller)))
            }
            (Heard::Message(Message::Ready { ring, bell }, fds), Step::Answered(answered)) => {
                return answered.arrive(socket.into_inner(), ring, bell, fds);
            }
            (_, Step::Answered(answered)) => {
                answered.bar();
                Ok(None)
            }
            _ => Err(Reason::Violation),
        };
        match next {
            Ok(Some(step)) => {
                if !matches!(step, Step::Stranger) {
                    inner.make_room(CALLERS_MOST, |guest| !matches!(guest.step, Step::Stranger));
                }
                inner.guests.insert(token, Guest { socket, user, step });
            }
            Ok(None) => {}
            Err(reason) => refuse(&socket, reason),
        }
    }

    /// Hears who a stranger is.
    fn greet(
        &self,
        inner: &Inner,
        socket: &Watched,
        user: Uid,
        hello: &Hello,
        proof: KeyProof,
    ) -> Result<Option<Step>, Reason> {
        let (reception, proof) = self.find(inner, hello, proof, user)?;
        let mut caller = Caller::new(hello, user, Class::OtherUser, proof);
        if !user.is_same_as(self.user) {
            caller.pass = Some(inner.foreigners.admit(user).ok_or(Reason::NoRoom)?);
            return Ok(Some(Step::Waiting(reception, caller)));
        }
        let seen = self.read_nonce(socket, hello.nonce_at);
        say(socket, &Message::Challenge { seen, nonce_at: self.nonce_at(), proof });
        Ok(Some(Step::Challenged(reception, caller, seen)))
    }

    /// Gives those who wait for it a place, as far as there are any.
    fn seat(&self, inner: &mut Inner) {
        let waiting: Vec<u64> =
            inner.guests.iter().filter(|(_, g)| matches!(g.step, Step::Waiting(..))).map(|(&token, _)| token).collect();
        for token in waiting {
            let Some(Guest { socket, user, step: Step::Waiting(reception, caller) }) = inner.guests.remove(&token)
            else {
                continue;
            };
            let step = match reception.answer(&socket, caller) {
                Answer::Given(answered) => Step::Answered(answered),
                Answer::Wait(caller) => Step::Waiting(reception, caller),
                Answer::Joined => continue,
                Answer::Refuse(reason) => {
                    refuse(&socket, reason);
                    continue;
                }
            };
            inner.guests.insert(token, Guest { socket, user, step });
        }
    }

    /// The reception behind the endpoint that is called, and our proof that we know its key; or why there is none. What is wrong is
    /// told only to the own user: others hear that they are others.
    fn find(
        &self,
        inner: &Inner,
        hello: &Hello,
        proof: KeyProof,
        user: Uid,
    ) -> Result<(Arc<Reception>, KeyProof), Reason> {
        let found = self.resident(inner, hello, proof);
        if !user.is_same_as(self.user) && !matches!(&found, Ok(r) if r.admission == Admission::AnyUser) {
            return Err(Reason::ForeignUser);
        }
        let resident = found?;
        let reception = inner.receptions.get(&resident.bundle).ok_or(Reason::NoSuchEndpoint)?;
        Ok((reception.clone(), hello.proof(resident.key, Side::Callee)))
    }

    /// The endpoint that is called, if the caller knows the key that it has now.
    fn resident<'a>(&self, inner: &'a Inner, hello: &Hello, proof: KeyProof) -> Result<&'a Resident, Reason> {
        if hello.destination.epoch != self.epoch {
            return Err(Reason::WrongEpoch);
        }
        let resident = inner.endpoints.get(&hello.destination.endpoint).ok_or(Reason::NoSuchEndpoint)?;
        if hello.proof(resident.key, Side::Caller).matches(proof) {
            Ok(resident)
        } else {
            Err(Reason::WrongKey)
        }
    }
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
    /// Drops the oldest of these guests if there are as many as there may be.
    fn make_room(&mut self, most: usize, is_one: impl Fn(&Guest) -> bool) {
        let mut these = self.guests.iter().filter(|(_, guest)| is_one(guest));
        let oldest = these.next().map(|(&token, _)| token);
        if let Some(oldest) = oldest.filter(|_| these.count() + 1 >= most) {
            self.guests.remove(&oldest);
        }
    }
}

/// The address of the set-up socket of an epoch: abstract, so it lives exactly as long as its socket.
pub(crate) fn address(epoch: Epoch) -> Result<SocketAddrUnix, Error> {
    let name = format!("weft1-{:016x}", epoch.0);
    SocketAddrUnix::new_abstract_name(name.as_bytes())
        .map_err(|e| Error::system("cannot name the set-up socket", e, "this kernel has no abstract Unix sockets"))
}

/// Says no and lets the socket go. A peer that does not read is not waited for.
fn refuse(socket: impl AsFd, reason: Reason) {
    say(socket, &Message::Refuse { reason });
}
