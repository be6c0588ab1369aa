//! A bundle's reception answers its callers, in the bundle's own polls, or in the helper while the program computes. The bundle
//! sets places for sessions aside and takes over the finished sessions.

use crate::node::lock;
use crate::setup::{say, Class, Gift, Given};
use crate::socket::Socket;
use crate::watch::Signals;
use std::collections::{BTreeSet, HashMap};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use weft_core::{Back, Errand, PeerId};
use weft_shm::{BellPage, Consumer, Descriptor, MapMem, Ringing};
use weft_wire::proof::KeyProof;
use weft_wire::setup::{Geometry, Hello, Message, Nonce};
use weft_wire::{BundleId, EndpointId, Reason, Uid};

/// Places that a bundle sets aside for callers while its program computes.
pub(crate) const PLACES: usize = 4;

/// How many of these are kept for callers with a key.
const PLACES_WITH_KEY: usize = PLACES / 2;

/// Largest number of sessions with a large arena.
const LARGE_ARENAS_MOST: usize = 32;

/// A bundle's reception.
#[derive(Debug)]
pub(crate) struct Reception {
    id: BundleId,
    signals: Arc<Signals>,
    /// The bell page of the trusted class.
    bells: Descriptor,
    has_arrivals: AtomicBool,
    has_nonces: AtomicBool,
    /// Endpoints that were freed, if the bundle is attached to weftd, which has to be told.
    freed: Option<Mutex<Vec<EndpointId>>>,
    desk: Mutex<Desk>,
    /// Bounded by what each of the other bundles may hold.
    post: Mutex<Vec<Post>>,
}

/// Messages between bundles of one node about endpoints that moved.
#[derive(Debug)]
pub(crate) enum Post {
    /// For the bundle where the endpoint lives now.
    Errand(Errand),
    /// For the bundle that the errand came from.
    Back(Back),
}

#[derive(Debug, Default)]
struct Desk {
    /// The lowest is used first, because a poll visits all places up to the highest in use.
    places: BTreeSet<u32>,
    /// The bundle has no more places.
    is_full: bool,
    /// The only places left are those kept for callers with a key.
    is_full_of_guests: bool,
    /// Callers wait for a place.
    has_waiting: bool,
    /// Peers with which the bundle has sessions through memory, and how many.
    peers: HashMap<PeerId, u32>,
    arrivals: Vec<(Arrival, Socket)>,
    /// Nonces read in the memory of processes that the bundle calls, with the tokens of its lines.
    nonces: Vec<(u64, Nonce)>,
}

/// A caller who was admitted to an endpoint.
#[derive(Debug)]
pub(crate) struct Caller {
    pub peer: PeerId,
    pub is_alone: bool,
    pub class: Class,
    /// It was admitted without a key, and gets small rings.
    pub is_guest: bool,
    /// Proves to the caller that we know the key that it knows.
    pub proof: KeyProof,
}

/// A caller that was given a ring, and has not given us its own yet.
#[derive(Debug)]
pub(crate) struct Answered {
    caller: Caller,
    place: Booking,
    rx: Box<Consumer<MapMem>>,
    page: Option<BellPage>,
}

/// A session that is set up, and that the bundle has not taken over yet.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub peer: PeerId,
    pub index: u32,
    pub class: Class,
    pub tx: Ringing,
    pub rx: Box<Consumer<MapMem>>,
    /// The bell page of a foreign peer.
    pub page: Option<BellPage>,
}

/// The answer to a caller.
pub(crate) enum Answer {
    /// It was given a ring.
    Given(Box<Answered>),
    /// It was told to use the existing session.
    Joined,
    /// There is no place until the bundle polls.
    Wait(Caller),
    /// It is refused.
    Refuse(Reason),
}

/// A place that is given back on drop, unless it was used.
#[derive(Debug)]
struct Booking {
    reception: Arc<Reception>,
    index: Option<u32>,
}

impl Drop for Booking {
    fn drop(&mut self) {
        if let Some(index) = self.index.take() {
            self.reception.give_place(index);
        }
    }
}

impl Reception {
    /// `is_attached`: the bundle is attached to weftd.
    pub fn new(id: BundleId, signals: Arc<Signals>, bells: Descriptor, is_attached: bool) -> Reception {
        let (desk, post) = (Mutex::default(), Mutex::default());
        let freed = is_attached.then(Mutex::default);
        Reception { id, signals, bells, has_arrivals: false.into(), has_nonces: false.into(), freed, desk, post }
    }

    /// An endpoint was freed.
    pub fn note_freed(&self, endpoint: EndpointId) {
        if let Some(freed) = &self.freed {
            lock(freed).push(endpoint);
            self.signals.raise(Signals::SOCKETS);
        }
    }

    /// Takes the endpoints that were freed, of a bundle that is attached to weftd.
    pub fn take_freed(&self) -> Vec<EndpointId> {
        self.freed.as_ref().map(|freed| std::mem::take(&mut *lock(freed))).unwrap_or_default()
    }

    pub fn id(&self) -> BundleId {
        self.id
    }

    // ---- for the bundle

    /// Fills up the places. `reserve` sets one aside, if there is room. Returns whether a waiting caller can be answered now.
    pub fn fill_up(&self, reserve: impl FnMut() -> Option<u32>) -> bool {
        let mut desk = lock(&self.desk);
        desk.fill_up(reserve);
        std::mem::take(&mut desk.has_waiting)
    }

    /// A place for a call of the bundle itself. It goes before callers that wait.
    pub fn take_place(&self, reserve: impl FnMut() -> Option<u32>) -> Option<u32> {
        let mut desk = lock(&self.desk);
        desk.fill_up(reserve);
        desk.places.pop_first()
    }

    /// Gives back a place that was not used.
    pub fn give_place(&self, index: u32) {
        let mut desk = lock(&self.desk);
        desk.places.insert(index);
        (desk.is_full, desk.is_full_of_guests) = (false, false);
    }

    /// Takes the sessions that were set up. Costs one load if there are none.
    pub fn take_arrivals(&self) -> Vec<(Arrival, Socket)> {
        take_if(&self.has_arrivals, || std::mem::take(&mut lock(&self.desk).arrivals))
    }

    /// Takes the nonces that were read for the bundle's calls. Costs one load if there are none.
    pub fn take_nonces(&self) -> Vec<(u64, Nonce)> {
        take_if(&self.has_nonces, || std::mem::take(&mut lock(&self.desk).nonces))
    }

    /// Leaves a nonce that was read for a call of the bundle.
    pub fn put_nonce(&self, token: u64, nonce: Nonce) {
        lock(&self.desk).nonces.push((token, nonce));
        // Release: see `take_if`.
        self.has_nonces.store(true, Ordering::Release);
        self.signals.raise(Signals::SOCKETS);
    }

    /// Gives a session up, because its socket cannot be watched.
    pub fn turn_away(&self, arrival: Arrival) {
        self.forget_session(&arrival.peer);
        self.give_place(arrival.index);
    }

    /// Notes that the bundle has a session with this peer.
    pub fn note_session(&self, peer: PeerId) {
        lock(&self.desk).note(peer);
    }

    /// Notes that a session with this peer ended.
    pub fn forget_session(&self, peer: &PeerId) {
        let mut desk = lock(&self.desk);
        if let Some(sessions) = desk.peers.get_mut(peer) {
            *sessions -= 1;
            if *sessions == 0 {
                desk.peers.remove(peer);
            }
        }
    }

    /// Whether there are so many sessions that further ones get small rings.
    pub fn is_crowded(&self) -> bool {
        lock(&self.desk).peers.len() >= LARGE_ARENAS_MOST
    }

    /// Gives a peer what it needs to send to us.
    pub fn give(&self, socket: &Socket, message: &Message, gift: &Gift) -> Result<(), Reason> {
        gift.send(socket, message, [self.bells.as_fd(), self.signals.waker()])
    }

    /// Maps what a peer gave.
    pub fn open(&self, given: Given, socket: &mut Socket) -> Result<Ringing, Reason> {
        given.open(socket, self.signals.waker())
    }

    // ---- for other bundles of the node

    /// What other bundles left.
    pub fn take_post(&self) -> Vec<Post> {
        std::mem::take(&mut *lock(&self.post))
    }

    /// Leaves something for the bundle.
    pub fn put_post(&self, post: Post) {
        lock(&self.post).push(post);
        self.signals.raise(Signals::LETTERS);
    }

    // ---- for the thread that answers callers

    /// Answers a caller.
    pub fn answer(self: &Arc<Self>, socket: &mut Socket, caller: Caller) -> Answer {
        let (place, is_one_of_many) = {
            let mut desk = lock(&self.desk);
            if !caller.is_alone && desk.peers.contains_key(&caller.peer) {
                say(socket, &Message::Join { bundle: self.id, proof: caller.proof });
                return Answer::Joined;
            }
            let (left, is_full) = match caller.is_guest {
                true => (PLACES_WITH_KEY, desk.is_full_of_guests),
                false => (0, desk.is_full),
            };
            let place = if desk.places.len() > left { desk.places.pop_first() } else { None };
            match place {
                Some(place) => (place, desk.peers.len() >= LARGE_ARENAS_MOST),
                None if is_full => return Answer::Refuse(Reason::NoRoom),
                None => {
                    desk.has_waiting = true;
                    self.signals.raise(Signals::SOCKETS);
                    return Answer::Wait(caller);
                }
            }
        };
        let booking = Booking { reception: self.clone(), index: Some(place) };
        let given = Gift::make(caller.class, place, is_one_of_many || caller.is_guest).and_then(|gift| {
            let is_trusted = caller.class == Class::Trusted;
            let Gift { ring, bell, .. } = gift;
            let accept = Message::Accept { ring, bell, bundle: self.id, is_trusted, proof: caller.proof };
            // The caller's ring comes with descriptors.
            socket.take_descriptors(true);
            self.give(socket, &accept, &gift)?;
            Ok(gift)
        });
        match given {
            Ok(Gift { rx, page, .. }) => Answer::Given(Box::new(Answered { caller, place: booking, rx, page })),
            Err(reason) => Answer::Refuse(reason),
        }
    }
}

impl Desk {
    fn fill_up(&mut self, mut reserve: impl FnMut() -> Option<u32>) {
        while self.places.len() < PLACES {
            let Some(index) = reserve() else { break };
            self.places.insert(index);
        }
        self.is_full = self.places.is_empty();
        self.is_full_of_guests = self.places.len() <= PLACES_WITH_KEY;
    }

    /// Two bundles that call each other at the same time get two sessions.
    fn note(&mut self, peer: PeerId) {
        *self.peers.entry(peer).or_default() += 1;
    }
}

impl Answered {
    /// The bundle that was called.
    pub fn bundle(&self) -> BundleId {
        self.place.reception.id
    }

    /// Takes the caller's ring, and hands the session to the bundle.
    pub fn arrive(self, mut socket: Socket, ring: Geometry, bell: u32) {
        let Answered { caller, mut place, rx, page } = self;
        // Its later messages have no descriptors.
        socket.take_descriptors(false);
        let given = Given { class: caller.class, ring, bell };
        let tx = match place.reception.open(given, &mut socket) {
            Ok(tx) => tx,
            // A caller that sent something else finds its socket closed.
            Err(Reason::Violation) => return,
            Err(reason) => return say(&socket, &Message::Refuse { reason }),
        };
        let Some(index) = place.index.take() else { return };
        let Caller { peer, class, .. } = caller;
        let mut desk = lock(&place.reception.desk);
        desk.note(peer);
        desk.arrivals.push((Arrival { peer, index, class, tx, rx, page }, socket));
        // Release: see `take_if`.
        place.reception.has_arrivals.store(true, Ordering::Release);
        drop(desk);
        place.reception.signals.raise(Signals::SOCKETS);
    }
}

/// Takes a list if a flag says that there is something in it.
fn take_if<T>(flag: &AtomicBool, take: impl FnOnce() -> Vec<T>) -> Vec<T> {
    // Acquire: pairs with the release stores in `put_nonce` and `arrive`. The mutex orders the list itself.
    match flag.load(Ordering::Relaxed) && flag.swap(false, Ordering::Acquire) {
        true => take(),
        false => Vec::new(),
    }
}

impl Caller {
    /// A caller as its hello describes it, with the user according to the kernel.
    pub fn new(hello: &Hello, user: Uid, class: Class, proof: KeyProof) -> Caller {
        let Hello { source, bundle, is_alone, .. } = *hello;
        let peer = PeerId { epoch: source.epoch, bundle, uid: user, address: source.address };
        Caller { peer, is_alone, class, is_guest: false, proof }
    }
}
