//! Barriers and all-gathers, as a client of the job's own endpoint: a state machine that advances whenever the program polls.
//!
//! Both *disseminate* (Hensgen, Finkel, Manber 1988): in round k each rank sends everything that it has heard to the rank 2^k above it, and
//! waits for the rank 2^k below it. After ⌈log₂ n⌉ rounds it has heard from every rank. A gather is a barrier whose messages carry the
//! contributions.
//!
//! A peer can be ahead by one call, since a call ends only when all ranks have begun it. So the arrivals of two calls are kept.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};
use weft::client::{Client, Delivery, FlowId, State, Tx};
use weft::{Endpoint, Event, MessageKind, Name, Outgoing, Reason, Returned, SendError};
use weft_wire::job::{gifts, push_gift};

/// Bytes of contents in a message. Longer contents take several messages.
const PIECE: usize = 32 << 10;

/// The longest single wait for messages, or for room to send. Only a peer's message ends a wait: the return of room and the loss of a peer
/// do not.
const WAIT: Duration = Duration::from_millis(250);
const WAIT_FOR_ROOM: Duration = Duration::from_millis(1);

/// Operations of messages that report a fault. They are passed on, so that ranks which wait for other waiting ranks learn of it too.
const LOST: u8 = 3;
const OUT_OF_STEP: u8 = 4;

/// Bytes that `push_gift` puts in front of each gift.
const LENGTH_BYTES: usize = 4;

/// The calls that all ranks make together. The numbers are the messages' operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Barrier = 1,
    Gather = 2,
}

/// Why a call fails. Later calls fail with the same fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    Lost { rank: u32, reason: Reason },
    OutOfStep { rank: u32 },
    NotSent(SendError),
}

/// The ranks that a rank sends to, round by round.
pub fn peers(rank: u32, size: u32) -> impl Iterator<Item = u32> {
    (0..rounds(size)).map(move |round| above(rank, size, 1 << round))
}

/// Bytes that a rank of a job of this size may give to a gather.
pub fn gift_most(size: u32) -> usize {
    crate::GATHER_MOST / size.max(1) as usize
}

/// ⌈log₂ n⌉
fn rounds(size: u32) -> u32 {
    size.max(1).next_power_of_two().trailing_zeros()
}

/// The rank `distance` above another one, or below. No overflow, because both are smaller than the size.
fn above(rank: u32, size: u32, distance: u32) -> u32 {
    ((u64::from(rank) + u64::from(distance)) % u64::from(size)) as u32
}

fn below(rank: u32, size: u32, distance: u32) -> u32 {
    above(rank, size, size - distance % size)
}

/// The state of this process's part in the calls.
#[derive(Debug)]
pub struct Team {
    endpoint: Endpoint,
    rank: u32,
    size: u32,
    /// The endpoints of the other ranks' teams. Empty until they are known.
    names: Vec<Name>,
    /// The number of the call that is under way, or else of the next one.
    call: u32,
    now: Option<Call>,
    /// Arrivals for that call, and for the next one, by round. The lowest bit of a call's number selects the half.
    arrivals: [Vec<Arrival>; 2],
    /// The flow of the peer that sends to us in each round, and whether it is gone.
    flows: Vec<(Option<FlowId>, bool)>,
    result: Option<Vec<Vec<u8>>>,
    fault: Option<Fault>,
    /// The peers that are not told of the fault yet, as a bit for each round.
    untold: u32,
}

/// A call that is under way here.
#[derive(Debug)]
struct Call {
    kind: Kind,
    round: u32,
    /// Contributions as far as they are known: this rank's, that of the rank below it, and so on.
    gifts: Vec<Vec<u8>>,
    /// The contents to send in this round, and how much of it was sent.
    contents: Vec<u8>,
    sent: usize,
    has_begun: bool,
}

/// The arrivals of a round.
#[derive(Debug, Default)]
struct Arrival {
    kind: u8,
    /// The length of all contents, once a message has stated it.
    total: Option<usize>,
    received: usize,
    contents: Vec<u8>,
}

impl Arrival {
    fn is_complete(&self) -> bool {
        self.total == Some(self.received)
    }

    /// Puts a piece in its place. Returns whether it is consistent with the pieces before it.
    fn put(&mut self, kind: u8, total: usize, offset: usize, piece: &[u8]) -> bool {
        let Some(end) = offset.checked_add(piece.len()).filter(|&end| end <= total) else { return false };
        let is_first = self.total.is_none();
        let fits = is_first || self.total == Some(total) && self.kind == kind && !self.is_complete();
        if fits {
            (self.kind, self.total) = (kind, Some(total));
            self.received += piece.len();
            if self.contents.len() < end {
                self.contents.resize(end, 0);
            }
            self.contents[offset..end].copy_from_slice(piece);
        }
        fits && self.received <= total
    }
}

impl Team {
    pub fn new(endpoint: Endpoint, rank: u32, size: u32) -> Team {
        let rounds = rounds(size) as usize;
        let arrivals = || std::iter::repeat_with(Arrival::default).take(rounds).collect();
        Team {
            endpoint,
            rank,
            size,
            names: Vec::new(),
            call: 0,
            now: None,
            arrivals: [arrivals(), arrivals()],
            flows: vec![(None, false); rounds],
            result: None,
            fault: None,
            untold: 0,
        }
    }

    /// Learns the endpoints of all ranks' teams.
    pub fn learn(&mut self, names: Vec<Name>) {
        self.names = names;
    }

    /// Begins a call, or continues one that an error of the bundle interrupted.
    pub fn begin<T: Tx>(&mut self, state: &mut State<T>, kind: Kind, gift: &[u8]) {
        if self.now.is_none() {
            let mut call =
                Call { kind, round: 0, gifts: vec![gift.to_vec()], contents: Vec::new(), sent: 0, has_begun: false };
            call.prepare(self.size);
            self.now = Some(call);
        }
        self.advance(state);
    }

    /// The result of the call, or how long to wait before asking again.
    pub fn result(&mut self) -> ControlFlow<Result<Vec<Vec<u8>>, Fault>, Duration> {
        match (self.fault, self.result.take()) {
            (_, Some(gifts)) => ControlFlow::Break(Ok(gifts)),
            (Some(fault), None) => ControlFlow::Break(Err(fault)),
            (None, None) if self.now.as_ref().is_some_and(Call::is_sent) => ControlFlow::Continue(WAIT),
            (None, None) => ControlFlow::Continue(WAIT_FOR_ROOM),
        }
    }

    /// Whether all peers are told of the fault, or it is time to give up.
    pub fn has_told(&self, until: Instant) -> ControlFlow<(), Duration> {
        match self.untold == 0 || Instant::now() >= until {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(WAIT_FOR_ROOM),
        }
    }

    /// Advances as far as possible, and tells peers of a fault.
    fn advance<T: Tx>(&mut self, state: &mut State<T>) {
        if self.fault.is_none() {
            let _ = self.go_on(state).map_err(|fault| self.fail(fault));
        }
        self.tell(state);
    }

    /// Tells those peers of the fault that this rank has not told yet.
    fn tell<T: Tx>(&mut self, state: &mut State<T>) {
        let (op, args) = match self.fault {
            Some(Fault::Lost { rank, reason }) => (LOST, [rank, reason.code().into()]),
            Some(Fault::OutOfStep { rank }) => (OUT_OF_STEP, [rank, 0]),
            Some(Fault::NotSent(_)) | None => return,
        };
        let untold = self.untold;
        for round in (0..rounds(self.size)).filter(|round| untold >> round & 1 == 1) {
            let sent = state.try_send(self.endpoint, round, Outgoing { op, args: &args, ..Outgoing::default() });
            if sent != Err(SendError::Full) {
                self.untold &= !(1 << round);
            }
        }
    }

    /// Sends and takes as much as possible.
    fn go_on<T: Tx>(&mut self, state: &mut State<T>) -> Result<(), Fault> {
        while let Some(call) = &mut self.now {
            if call.round == rounds(self.size) {
                self.finish();
                break;
            }
            match call.send(state, self.endpoint, self.call) {
                Ok(()) => {}
                Err(SendError::Full) => break,
                Err(error) => return Err(Fault::NotSent(error)),
            }
            let round = call.round as usize;
            let rank = below(self.rank, self.size, 1 << round);
            let arrival = &mut self.arrivals[self.call as usize % 2][round];
            if arrival.total.is_some() && arrival.kind != call.kind as u8 {
                return Err(Fault::OutOfStep { rank });
            }
            if !arrival.is_complete() {
                let (_, is_gone) = self.flows[round];
                return if is_gone { Err(Fault::Lost { rank, reason: Reason::PeerLost }) } else { Ok(()) };
            }
            if !call.take(std::mem::take(arrival), self.size) {
                return Err(Fault::OutOfStep { rank });
            }
        }
        Ok(())
    }

    fn finish(&mut self) {
        let Some(call) = self.now.take() else { return };
        self.call = self.call.wrapping_add(1);
        let mut by_rank = vec![Vec::new(); self.size as usize];
        for (distance, gift) in call.gifts.into_iter().enumerate() {
            by_rank[below(self.rank, self.size, distance as u32) as usize] = gift;
        }
        self.result = Some(by_rank);
    }

    /// Takes a message. `None` if no rank of this job sends such a message.
    fn take<T: Tx>(&mut self, state: &State<T>, message: &Delivery<'_>) -> Option<()> {
        match (message.kind(), message.op(), message.args) {
            (MessageKind::OneWay, LOST, &[rank, code]) if rank < self.size => {
                let reason = Reason::from_code(code.try_into().ok()?)?;
                self.fail(Fault::Lost { rank, reason });
                Some(())
            }
            (MessageKind::OneWay, OUT_OF_STEP, &[rank, 0]) if rank < self.size => {
                self.fail(Fault::OutOfStep { rank });
                Some(())
            }
            _ => self.take_round(state, message),
        }
    }

    /// Notes a fault, which the peers must be told of. The first one counts.
    fn fail(&mut self, fault: Fault) {
        if self.fault.is_none() {
            self.fault = Some(fault);
            self.untold = (1 << rounds(self.size)) - 1;
        }
    }

    fn take_round<T: Tx>(&mut self, state: &State<T>, message: &Delivery<'_>) -> Option<()> {
        let &[call, round, total, offset] = message.args else { return None };
        let is_known = [Kind::Barrier, Kind::Gather].iter().any(|kind| *kind as u8 == message.op());
        let ahead = call.wrapping_sub(self.call);
        if message.kind() != MessageKind::OneWay || !is_known || round >= rounds(self.size) || ahead > 1 {
            return None;
        }
        let source = below(self.rank, self.size, 1 << round);
        // Before the names are known, the key proves that the sender is a rank.
        if self.names.get(source as usize).is_some_and(|name| state.source(message) != Some(*name)) {
            return None;
        }
        let total = total as usize;
        if total > gifts_of(round, self.size) as usize * (LENGTH_BYTES + gift_most(self.size)) {
            return None;
        }
        let arrival = &mut self.arrivals[call as usize % 2][round as usize];
        self.flows[round as usize] = (Some(message.flow()), false);
        arrival.put(message.op(), total, offset as usize, message.payload).then_some(())
    }
}

/// The number of contributions that a rank passes on in a round.
fn gifts_of(round: u32, size: u32) -> u32 {
    (1 << round).min(size - (1 << round))
}

impl Call {
    /// Whether all of its round was sent.
    fn is_sent(&self) -> bool {
        self.has_begun && self.sent >= self.contents.len()
    }

    /// Makes the contents for its round.
    fn prepare(&mut self, size: u32) {
        (self.sent, self.has_begun) = (0, false);
        self.contents.clear();
        if self.kind == Kind::Gather && self.round < rounds(size) {
            let known = &self.gifts[..gifts_of(self.round, size) as usize];
            known.iter().for_each(|gift| push_gift(&mut self.contents, gift));
        }
    }

    /// Sends the rest of its round.
    fn send<T: Tx>(&mut self, state: &mut State<T>, from: Endpoint, call: u32) -> Result<(), SendError> {
        while !self.is_sent() {
            let end = self.contents.len().min(self.sent + PIECE);
            // Both are at most GATHER_MOST plus the lengths of 4,096 contributions.
            let args = [call, self.round, self.contents.len() as u32, self.sent as u32];
            let payload = &self.contents[self.sent..end];
            state.try_send(
                from,
                self.round,
                Outgoing { op: self.kind as u8, args: &args, payload, completion: None },
            )?;
            (self.sent, self.has_begun) = (end, true);
        }
        Ok(())
    }

    /// Takes the arrivals of its round, and goes on to the next one. Returns whether they are consistent.
    fn take(&mut self, arrival: Arrival, size: u32) -> bool {
        if self.kind == Kind::Gather {
            let Some(new) = gifts(&arrival.contents, gifts_of(self.round, size)) else { return false };
            self.gifts.extend(new.into_iter().map(<[u8]>::to_vec));
        }
        self.round += 1;
        self.prepare(size);
        true
    }
}

impl<T: Tx> Client<T> for Team {
    fn deliver(&mut self, state: &mut State<T>, message: &Delivery<'_>) -> Result<(), Reason> {
        self.take(state, message).ok_or(Reason::NoHandler)?;
        self.advance(state);
        Ok(())
    }

    fn returned(&mut self, state: &mut State<T>, message: Returned) -> Option<Returned> {
        let peer = message.destination.and_then(|round| peers(self.rank, self.size).nth(round as usize));
        // A message of an earlier call that comes back now was not needed: its receiver has ended that call and then itself.
        let is_of_now = message.args.first() == Some(&self.call) && message.op != LOST && message.op != OUT_OF_STEP;
        if let Some(rank) = peer.filter(|_| is_of_now && self.now.is_some()) {
            self.fail(Fault::Lost { rank, reason: message.reason });
        }
        self.tell(state);
        None
    }

    fn on_event(&mut self, state: &mut State<T>, event: &Event) {
        if let Event::CanSend { .. } = event {
            self.advance(state);
        }
    }

    fn flow_closed(&mut self, state: &mut State<T>, _: Endpoint, flow: FlowId) {
        for (known, is_gone) in &mut self.flows {
            *is_gone |= *known == Some(flow);
        }
        self.advance(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rank_hears_of_every_other_one_just_once() {
        for size in 1..=70 {
            let mut known = 1;
            for round in 0..rounds(size) {
                assert!(gifts_of(round, size) >= 1 && gifts_of(round, size) <= known);
                known += gifts_of(round, size);
            }
            assert_eq!(known, size);
            let all: Vec<u32> = (0..size).map(|distance| below(3 % size, size, distance)).collect();
            assert_eq!(all.iter().collect::<std::collections::BTreeSet<_>>().len(), size as usize, "{all:?}");
        }
        assert_eq!(peers(6, 7).collect::<Vec<_>>(), [0, 1, 3]);
    }

    #[test]
    fn pieces_come_in_any_order_and_what_does_not_fit_is_refused() {
        let mut arrival = Arrival::default();
        assert!(arrival.put(2, 5, 3, b"de") && !arrival.is_complete());
        assert!(!arrival.put(2, 6, 0, b"abc"), "another length");
        assert!(!arrival.put(1, 5, 0, b"abc"), "another kind");
        assert!(!arrival.put(2, 5, 4, b"xy"), "behind the end");
        assert!(!arrival.put(2, 5, usize::MAX, b"x"));
        assert!(arrival.put(2, 5, 0, b"abc") && arrival.is_complete());
        assert_eq!(arrival.contents, b"abcde");
        assert!(!arrival.put(2, 5, 0, b""), "more than all");
    }
}
