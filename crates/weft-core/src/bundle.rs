//! The bundle: sessions and endpoints that are polled together.

use crate::client::Sink;
use crate::moving::Errand;
use crate::receive::Trouble;
use crate::session::{Limits, PeerId, Session, SessionId};
use crate::state::{Place, Run, Settings, State};
use weft_wire::path::{Bells, Glance, Peek, Record, Rx, Tx};
use weft_wire::Reason;

/// Messages taken from one session per visit: the loitering bound of virtual networks.
const LOITER: u32 = 64;

/// Largest number of hot sessions, which every poll looks at. The others ring bells.
const HOT_MOST: usize = 4;

/// Polls between two looks at all sessions. Bounds the delay if a bell is missed.
const SCAN_EVERY: u32 = 256;

/// The reading end of a session. Aligned to a cache line, as its [`Place`] is.
#[derive(Debug)]
#[repr(align(64))]
struct Inbound<R> {
    rx: R,
    id: SessionId,
    is_hot: bool,
    /// The producer may not know yet that it must ring: there was no barrier since it was told.
    is_unsure: bool,
    /// The turn in which it last had messages.
    busy_at: u32,
    /// The current visit ends after this record.
    has_enough: bool,
}

impl<R: Rx> Inbound<R> {
    /// Takes a record that a glance does not return. Returns the number of records taken: none or one.
    #[inline(never)]
    fn take_long<T: Tx, S: Sink<T>>(&mut self, state: &mut State<T>, sink: &mut S) -> Result<u32, Stop> {
        let taken = match self.rx.peek() {
            Peek::Empty => return Ok(0),
            Peek::Broken(_) => return Err(Stop),
            Peek::Record(record) => state.receive(&self.id, record, sink),
        };
        self.drop_record(taken).map(|()| 1)
    }

    /// Releases the current record and notes any trouble with it.
    #[inline(always)]
    fn drop_record(&mut self, taken: Result<(), Trouble>) -> Result<(), Stop> {
        if let Err(trouble) = taken {
            return self.note(trouble);
        }
        self.rx.pop();
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn note(&mut self, trouble: Trouble) -> Result<(), Stop> {
        let noted = match trouble {
            Trouble::Enough => {
                self.has_enough = true;
                Err(Stop)
            }
            Trouble::Unreturned(reason) => {
                self.rx.hold(reason.code());
                Ok(())
            }
            Trouble::Violation => Err(Stop),
        };
        self.rx.pop();
        noted
    }
}

/// Ends a visit before its budget: the session took [enough](Trouble::Enough), or the peer broke the protocol.
struct Stop;

/// The parameters of one visit to a session.
#[derive(Clone, Copy)]
struct Visit {
    /// The largest number of messages to take.
    budget: u32,
    /// The session is visited on every poll, so messages that are left are found soon.
    is_regular: bool,
}

/// The largest number of messages of a lost session that are still delivered: more than any path holds.
const LAST_WORDS_MOST: u32 = 1 << 20;

/// A bundle of endpoints: the unit of polling and of single-threadedness.
///
/// `R` and `T` are the ends of the paths to its peers, `B` its bells. No call blocks.
#[derive(Debug)]
pub struct Bundle<R, T, B> {
    inbound: Vec<Option<Inbound<R>>>,
    hot: Vec<u32>,
    bells: B,
    /// Armed for sleep. No session becomes hot meanwhile, because its peer would not ring.
    is_armed: bool,
    /// The sessions to visit in this poll: first those that rang no bell, then those that did.
    rung: Vec<u32>,
    /// The number of sessions in `rung` that rang no bell.
    unrung: usize,
    /// The sessions that are unsure to ring.
    unsure: Vec<u32>,
    /// The session that last had messages, of those that ring bells.
    last: u32,
    turns: u32,
    /// The last visit ended early, so the session may have messages left.
    has_left: bool,
    /// Messages taken from hot sessions. Wraps around.
    hot_work: u32,
    state: State<T>,
}

impl<R: Rx, T: Tx, B: Bells> Bundle<R, T, B> {
    /// Makes a bundle without endpoints or sessions.
    pub fn new(bells: B, settings: Settings) -> Bundle<R, T, B> {
        Bundle {
            inbound: Vec::new(),
            hot: Vec::with_capacity(HOT_MOST),
            bells,
            is_armed: false,
            rung: Vec::with_capacity(64),
            unrung: 0,
            unsure: Vec::with_capacity(HOT_MOST),
            last: u32::MAX,
            turns: 0,
            has_left: false,
            hot_work: 0,
            state: State::new(settings),
        }
    }

    /// Reserves a place for a session. Returns its index, which is also the number of the session's bell, or `None` if
    /// there is no room.
    pub fn reserve(&mut self) -> Option<u32> {
        let places = &mut self.state.sessions;
        let free = places.iter().position(|p| p.session.is_none() && !p.is_reserved);
        let index = free.unwrap_or(places.len());
        if index >= self.state.settings.sessions_most as usize {
            return None;
        }
        if index == places.len() {
            // Grow by an eighth instead of doubling: places are large, and most bundles have few sessions.
            if index == places.capacity() {
                places.reserve_exact(index / 8 + 1);
            }
            places.push(Place { life: 0, session: None, is_reserved: false });
        }
        places[index].is_reserved = true;
        Some(index as u32)
    }

    /// Gives a reserved place back.
    pub fn unreserve(&mut self, index: u32) {
        if let Some(place) = self.state.sessions.get_mut(index as usize) {
            place.is_reserved = false;
        }
    }

    /// Adds a session at a reserved place.
    ///
    /// # Panics
    /// If the place was not reserved.
    pub fn attach(&mut self, index: u32, peer: PeerId, tx: T, rx: R) -> SessionId {
        let limits = if rx.is_of_other_user() { Limits::OTHER_USER } else { Limits::TRUSTED };
        let place = &mut self.state.sessions[index as usize];
        assert!(std::mem::take(&mut place.is_reserved), "a place that was set aside");
        place.session = Some(Session::new(peer, tx, limits));
        let id = SessionId { index, life: place.life };
        let stays_cold = rx.stays_cold();
        if self.inbound.len() <= index as usize {
            self.inbound.resize_with(index as usize + 1, || None);
        }
        self.inbound[index as usize] =
            Some(Inbound { rx, id, is_hot: false, is_unsure: false, busy_at: self.turns, has_enough: false });
        match self.hot.len() < HOT_MOST && !stays_cold && !self.is_armed {
            true => self.warm(index),
            false => self.cool(index),
        }
        id
    }

    /// Ends a session: delivers what the peer has sent, then returns every message of ours that is under way to it.
    ///
    /// Call this when the peer is dead or was cut off.
    pub fn lose<S: Sink<T>>(&mut self, id: SessionId, reason: Reason, sink: &mut S) {
        if self.state.session(id).is_none() {
            return;
        }
        // Bounded, because a peer that only claims to be dead could write forever.
        let may_have_spoken = matches!(reason, Reason::PeerLost | Reason::Silent);
        let mut left = if may_have_spoken { LAST_WORDS_MOST } else { 0 };
        while left > 0 {
            match self.serve(id.index, Visit { budget: LOITER.min(left), is_regular: false }, sink) {
                0 => break,
                taken => left -= taken,
            }
        }
        self.state.lose(id, reason);
        self.hot.retain(|&i| i != id.index);
        if let Some(place) = self.inbound.get_mut(id.index as usize) {
            *place = None;
        }
        self.hand_returns(sink);
    }

    /// Forgets a session at rest, whose path both sides have closed: nobody is told, and nothing comes back. Returns false, and
    /// does nothing, if it has a flow.
    pub fn forget(&mut self, id: SessionId) -> bool {
        let is_forgotten = self.state.forget(id);
        if is_forgotten {
            self.hot.retain(|&i| i != id.index);
            if let Some(place) = self.inbound.get_mut(id.index as usize) {
                *place = None;
            }
        }
        is_forgotten
    }

    /// Takes a record of an unreliable message, which arrives outside the session's path.
    #[cold]
    pub fn take_unreliable<S: Sink<T>>(&mut self, id: SessionId, record: Record<'_>, sink: &mut S) {
        // A malformed record is ignored: it could have been lost as well.
        let _ = self.state.receive_unreliable(&id, record, sink);
    }

    /// Makes the next poll look at a session, for arrivals that ring no bell.
    pub fn ring(&mut self, id: SessionId) {
        self.rung.push(id.index);
    }

    /// Notes that a session's peer woke us; the next poll looks at it. A peer that wakes us without cause is cut off.
    pub fn on_wake(&mut self, id: SessionId) {
        if self.justify(id.index) {
            self.ring(id);
        }
    }

    /// Makes ready to sleep: asks all peers to ring and to wake us. The caller then issues a barrier that reaches the
    /// peers and calls [`Bundle::poll`] once more. If that poll finds nothing, every later arrival wakes us.
    pub fn arm(&mut self) {
        while let Some(index) = self.hot.pop() {
            self.cool(index);
        }
        self.is_armed = true;
        self.bells.arm();
        // From the barrier on they ring. They may have missed it before, so the next poll looks at them.
        for index in self.unsure.drain(..) {
            if let Some(inbound) = self.inbound.get_mut(index as usize).and_then(Option::as_mut) {
                inbound.is_unsure = false;
                self.rung.push(index);
            }
        }
    }

    /// Whether all peers ring, and knew it before the last barrier after [`Bundle::arm`].
    pub fn all_ring(&self) -> bool {
        self.hot.is_empty() && self.unsure.is_empty()
    }

    /// Makes the next poll look at every session.
    pub fn look_at_all(&mut self) {
        self.rung.extend(0..self.inbound.len() as u32);
    }

    /// Tells peers that they need not wake us any more.
    pub fn disarm(&mut self) {
        self.is_armed = false;
        self.bells.disarm();
    }

    /// Takes about `budget` messages at most and delivers them to the sink. Returns the number of messages taken.
    #[inline(always)]
    pub fn poll<S: Sink<T>>(&mut self, budget: u32, sink: &mut S) -> u32 {
        let mut work = self.serve_hot(budget, sink);
        self.hot_work = self.hot_work.wrapping_add(work);
        if self.inbound.len() > self.hot.len() {
            work += self.serve_rung(sink);
        }
        if self.state.has_chores {
            work += self.do_chores(budget, sink);
        }
        work
    }

    /// Returns the sessions found broken since the last call. The home ends them with [`Bundle::lose`].
    pub fn take_broken(&mut self) -> Vec<SessionId> {
        let broken = std::mem::take(&mut self.state.broken);
        let lives = |i: u32| self.state.sessions.get(i as usize).map(|p| SessionId { index: i, life: p.life });
        broken.into_iter().filter_map(lives).collect()
    }

    /// Returns the number of messages taken from hot sessions so far. Wraps around.
    pub fn hot_work(&self) -> u32 {
        self.hot_work
    }

    /// Whether a request is under way to a hot session.
    pub fn awaits_hot(&self) -> bool {
        let session = |index: &u32| self.state.sessions.get(*index as usize).and_then(|place| place.session.as_ref());
        self.hot.iter().filter_map(session).flat_map(|s| &s.flows_out).any(|flow| flow.window.taken() != 0)
    }

    /// Whether [`Bundle::take_broken`] has sessions to return.
    #[inline(always)]
    pub fn has_broken(&self) -> bool {
        !self.state.broken.is_empty()
    }

    /// Lets idle paths give unused memory back. May make system calls.
    pub fn rest(&mut self) {
        for s in self.state.sessions.iter_mut().flat_map(|p| &mut p.session) {
            s.tx.rest();
            s.rest();
        }
        self.state.rest();
    }

    /// The state that programs use between polls.
    #[inline(always)]
    pub fn state(&self) -> &State<T> {
        &self.state
    }

    /// The state that programs use between polls.
    #[inline(always)]
    pub fn state_mut(&mut self) -> &mut State<T> {
        &mut self.state
    }

    /// Returns the results of errands to the bundles that sent them.
    pub fn carry_back<S: Sink<T>>(&mut self, sink: &mut S) {
        self.state.carry_back(sink);
    }

    /// Does an errand that another bundle forwarded for an endpoint that moved here.
    pub fn do_errand<S: Sink<T>>(&mut self, errand: Errand, sink: &mut S) {
        self.state.do_errand(errand, sink);
        self.hand_returns(sink);
        self.state.carry_back(sink);
    }

    /// The bells.
    pub fn bells(&self) -> &B {
        &self.bells
    }

    /// The bells, for adding some.
    pub fn bells_mut(&mut self) -> &mut B {
        &mut self.bells
    }

    /// Visits the hot sessions.
    #[inline(always)]
    fn serve_hot<S: Sink<T>>(&mut self, budget: u32, sink: &mut S) -> u32 {
        let mut left = budget;
        let mut at = 0;
        while let Some(&index) = self.hot.get(at) {
            if left == 0 {
                // The next poll begins with another session, so that a full budget starves none.
                self.hot.rotate_left(1);
                break;
            }
            left -= self.serve(index, Visit { budget: LOITER.min(left), is_regular: true }, sink).min(left);
            at += 1;
        }
        budget - left
    }

    /// Visits the sessions that rang, and every [`SCAN_EVERY`] turns all sessions.
    #[inline(always)]
    fn serve_rung<S: Sink<T>>(&mut self, sink: &mut S) -> u32 {
        let sessions = self.inbound.len();
        self.turns = self.turns.wrapping_add(1);
        if self.turns % SCAN_EVERY == 0 {
            self.rung.extend(0..sessions as u32);
            self.unrung = self.rung.len();
        } else {
            let rung = &mut self.rung;
            self.unrung = rung.len();
            self.bells.collect(sessions as u32, |bell| rung.push(bell));
        }
        if self.rung.is_empty() {
            0
        } else {
            self.visit_rung(sink)
        }
    }

    #[inline(never)]
    fn visit_rung<S: Sink<T>>(&mut self, sink: &mut S) -> u32 {
        let mut work = 0;
        let mut unfinished = 0;
        let rung = self.rung.len();
        for at in 0..rung {
            let index = self.rung[at];
            let Some(inbound) = self.inbound.get(index as usize).and_then(Option::as_ref).filter(|i| !i.is_hot) else {
                continue;
            };
            let stays_cold = inbound.rx.stays_cold();
            self.has_left = false;
            let taken = self.serve(index, Visit { budget: LOITER, is_regular: false }, sink);
            work += taken;
            if at >= self.unrung && !self.justify(index) {
                continue;
            }
            if taken > 0 {
                // Twice in a row from the same session: make it hot.
                if self.last == index && !stays_cold && !self.is_armed {
                    self.promote(index);
                }
                self.last = index;
            }
            if self.has_left || taken == LOITER {
                // Its bell is silent now, but messages may be left.
                self.rung[unfinished] = index;
                unfinished += 1;
            }
        }
        // Entries after `rung` are sessions that were cooled meanwhile; the next poll looks at them.
        self.rung.drain(unfinished..rung);
        work
    }

    /// Notes that a session's bell was rung. Returns false if the peer rings without cause and was cut off.
    fn justify(&mut self, index: u32) -> bool {
        let inbound = self.inbound.get_mut(index as usize).and_then(Option::as_mut);
        let is_honest = inbound.is_none_or(|inbound| inbound.rx.note_bell());
        if !is_honest {
            self.cut(index);
        }
        is_honest
    }

    /// Does the work that most polls have none of: queued messages to deliver, peers to tell, backlogs, returned
    /// messages.
    #[inline(never)]
    fn do_chores<S: Sink<T>>(&mut self, budget: u32, sink: &mut S) -> u32 {
        let mut work = self.state.unpark(sink, budget);
        self.state.drain_flows();
        self.state.flush_dirty();
        self.state.flush_blocked();
        work += self.state.push_longs();
        self.let_go();
        self.hand_returns(sink);
        self.state.hand_on_completions(sink);
        self.state.carry_back(sink);
        // A flow that closes while clients work is reported to its client in the next poll, and to its opener after that.
        let closing = std::mem::take(&mut self.state.closing);
        work += self.do_clients_chores(sink);
        self.state.say_closed(closing);
        self.state.has_chores = self.state.has_unfinished();
        work
    }

    /// Calls the clients if there is work for them.
    fn do_clients_chores<S: Sink<T>>(&mut self, sink: &mut S) -> u32 {
        let asked = std::mem::take(&mut self.state.client_waits);
        if asked || self.state.events.has_claimed() {
            sink.do_chores(&mut self.state)
        } else {
            0
        }
    }

    /// Takes messages of one session. Returns their number.
    #[inline(always)]
    fn serve<S: Sink<T>>(&mut self, index: u32, visit: Visit, sink: &mut S) -> u32 {
        let Some(inbound) = self.inbound.get_mut(index as usize).and_then(Option::as_mut) else {
            return 0;
        };
        let budget = if visit.is_regular { inbound.rx.allowance(visit.budget) } else { visit.budget };
        let mut work = 0;
        while work < budget {
            let taken = match inbound.rx.glance() {
                Glance::Empty => break,
                Glance::Record(record) => {
                    let taken = self.state.receive(&inbound.id, record, sink);
                    inbound.drop_record(taken)
                }
                Glance::More => match inbound.take_long(&mut self.state, sink) {
                    Ok(0) => break,
                    taken => taken.map(|_| ()),
                },
            };
            if taken.is_err() {
                if !std::mem::take(&mut inbound.has_enough) {
                    self.cut(index);
                    return work;
                }
                work += 1;
                self.has_left = true;
                break;
            }
            work += 1;
        }
        if work > 0 {
            if self.state.run.messages > 0 {
                inbound.rx.note_visit(self.state.run.messages, work < budget);
            }
            if self.state.end_run().is_err() {
                self.cut(index);
                return work;
            }
            // Release the records before the sender is told that they are stored. If we die, it takes unreleased
            // records back, and messages that it knows to be stored must not be among them.
            inbound.rx.release();
            inbound.busy_at = self.turns;
        }
        work
    }

    /// Cuts a peer off that broke the protocol: nothing more of it is read.
    #[cold]
    fn cut(&mut self, index: u32) {
        if let Some(place) = self.inbound.get_mut(index as usize) {
            *place = None;
        }
        // Drop its counts, so that they are not added to those of the next session.
        self.state.run = Run::default();
        self.state.cut(index);
    }

    /// Lets go of held records whose returns are under way.
    fn let_go(&mut self) {
        for index in self.state.let_go.drain(..) {
            if let Some(inbound) = self.inbound.get_mut(index as usize).and_then(Option::as_mut) {
                inbound.rx.let_go(1);
            }
        }
    }

    fn hand_returns<S: Sink<T>>(&mut self, sink: &mut S) {
        while let Some(returned) = self.state.returns.pop_front() {
            let Some(returned) = self.state.hand_on_returned(returned, sink) else { continue };
            if let Some(left) = sink.returned(&mut self.state, returned) {
                self.state.tell(crate::Event::Returned(Box::new(left)));
            }
        }
    }

    /// Makes a session hot. If there is no room, the session that has been idle for longest cools.
    fn promote(&mut self, index: u32) {
        if self.hot.len() == HOT_MOST {
            let busy_at = |i: &u32| self.inbound[*i as usize].as_ref().map(|i| i.busy_at);
            let idle = |i: &u32| busy_at(i).map_or(u32::MAX, |at| self.turns.wrapping_sub(at));
            let Some(coldest) = (0..self.hot.len()).max_by_key(|&at| idle(&self.hot[at])) else {
                return;
            };
            if idle(&self.hot[coldest]) == 0 {
                return; // all of them are busy
            }
            let out = self.hot.swap_remove(coldest);
            self.cool(out);
        }
        self.warm(index);
    }

    fn warm(&mut self, index: u32) {
        if let Some(inbound) = self.inbound[index as usize].as_mut() {
            inbound.is_hot = true;
            inbound.busy_at = self.turns;
            inbound.rx.set_attention(false);
            self.hot.push(index);
        }
    }

    fn cool(&mut self, index: u32) {
        if let Some(inbound) = self.inbound[index as usize].as_mut() {
            inbound.is_hot = false;
            inbound.rx.set_attention(true);
            // Messages that come before the producer sees the request are found by this look, by the next scan, or
            // before we sleep.
            self.rung.push(index);
            if !std::mem::replace(&mut inbound.is_unsure, true) {
                self.unsure.push(index);
            }
        }
    }
}
