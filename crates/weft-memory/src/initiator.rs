//! The initiator's side: operations on regions of others.

mod calls;
mod operation;
mod pulls;
mod short;

pub use self::calls::{Change, Fetch, Write};
pub(crate) use self::operation::{operands, Kind, Posting, Special};

use self::operation::Operation;
use self::pulls::{Lending, Pull, PULL_LEAST};
use self::short::Short;
use crate::direct::{Mapped, Neighbour};
use crate::engine::{Completion, Outcome, Settings};
use crate::flush::{Calls, Flushes, Whom};
use crate::lists::{Lists, Run};
use crate::platform::{Platform, Source, Target};
use slab::Slab;
use std::collections::VecDeque;
use weft_core::bulk::{Departures, Failure, Piece, Step, Sum, Turn, Turns};
use weft_core::{Delivery, Endpoint, FlowId, MessageKind, Outgoing, Reserved, Returned, SendError, SessionId, State};
use weft_wire::memory::{Credential, Mark, Place, Word};
use weft_wire::path::Tx;
use weft_wire::{Certainty, Reason};

/// Bytes that the owner keeps in addition to those of an answer that is not read.
const ANSWER_KEPT: usize = 128;

/// What waits to be sent to a destination.
#[derive(Debug, Default)]
struct Queue {
    /// Operations that have not wholly left.
    departures: Departures<usize>,
    /// Operations that have not ended, whether they have left or not.
    pending: usize,
    /// The first one to be sent waits until an earlier one has ended.
    is_held: bool,
    /// The next operation posted is fenced.
    fences_next: bool,
    flushes: Flushes,
    answers: Answers,
    /// Operations whose bytes the owner was asked to read and has not answered.
    pulls: u32,
    lending: Lending,
}

impl Queue {
    /// Whether operations posted before the next one to be sent have not ended.
    fn has_under_way(&self) -> bool {
        self.pending > self.departures.len()
    }
}

/// Bytes reserved for answers, and the session they are reserved with.
#[derive(Debug, Default)]
struct Answers {
    asked: usize,
    of: Option<SessionId>,
}

impl Answers {
    /// Reserves the answer to a piece, if it has one. `None` if there is no room: an event follows.
    #[inline(always)]
    fn reserve<P: Platform, T: Tx>(
        &mut self,
        state: &mut State<T>,
        from: Endpoint,
        operation: &Operation<P>,
        piece: u32,
    ) -> Option<usize> {
        let Some(bytes) = operation.answer_bytes(piece) else { return Some(0) };
        match state.reserve_answer(from, operation.to, bytes) {
            Reserved::Yes(session) => {
                if self.of != Some(session) {
                    // What was reserved with another session ended with it.
                    (self.of, self.asked) = (Some(session), 0);
                }
                self.asked += bytes;
                Some(bytes)
            }
            Reserved::NoSession => Some(0),
            Reserved::Full => None,
        }
    }

    /// Gives back what was reserved for an operation's answer.
    #[inline(always)]
    fn give_back_of<P: Platform, T: Tx>(&mut self, state: &mut State<T>, operation: &Operation<P>, bytes: usize) {
        match operation.by {
            // The index leads to another session since then.
            Some(by) if self.of != Some(by.session) => state.answer_came(by.session, bytes),
            _ => self.give_back(state, bytes),
        }
    }

    /// Gives back what was reserved.
    #[inline(always)]
    fn give_back<T: Tx>(&mut self, state: &mut State<T>, bytes: usize) {
        let bytes = bytes.min(self.asked);
        if let Some(session) = self.of.filter(|_| bytes > 0) {
            self.asked -= bytes;
            state.answer_came(session, bytes);
        }
    }
}

/// Where arriving bytes go.
enum Room<'a, T> {
    Own(&'a mut T),
    OfList(Run),
    /// No bytes are expected.
    None,
}

/// Operations of an endpoint on the regions of others.
#[derive(Debug)]
pub(crate) struct Initiator<P: Platform> {
    pub endpoint: Endpoint,
    operations_most: usize,
    /// By destination. Dropped before the operations, so that nobody still reads their memory.
    queues: Vec<Queue>,
    operations: Slab<Operation<P>>,
    /// By destination, as `queues`: a short write that has left in one request.
    shorts: Vec<Option<Short<P::Source>>>,
    shorts_under_way: usize,
    pub lists: Lists<P>,
    pub calls: Calls<P>,
    /// Flushes that wait.
    flushes: usize,
    turns: Turns,
    serial: u32,
    /// Whether regions of neighbours are mapped.
    is_direct: bool,
    /// By destination, if they are.
    pub neighbours: Vec<Neighbour<P::Reach>>,
    /// Attachments of the engine's own that have not ended.
    pub attaching: usize,
    /// What the attachment that ends now has mapped.
    opened: Option<(FlowId, Box<Mapped<P::Reach>>)>,
    /// Operations that were done without a message.
    pub direct: u64,
}

type Done<P> = VecDeque<Completion<P>>;

impl<P: Platform> Initiator<P> {
    pub fn new(endpoint: Endpoint, settings: Settings) -> Initiator<P> {
        Initiator {
            endpoint,
            operations_most: settings.operations_most,
            queues: Vec::new(),
            operations: Slab::new(),
            shorts: Vec::new(),
            shorts_under_way: 0,
            lists: Lists::new(),
            calls: Calls::new(),
            flushes: 0,
            turns: Turns::default(),
            serial: 0,
            is_direct: settings.is_direct,
            neighbours: Vec::new(),
            attaching: 0,
            opened: None,
            direct: 0,
        }
    }

    /// Operations to a destination that have not ended, without the engine's own.
    pub fn pending(&self, to: u32) -> usize {
        let own = self.neighbours.get(to as usize).map_or(0, |neighbour| neighbour.attaching);
        self.under_way(to).saturating_sub(own)
    }

    pub fn pending_in_all(&self) -> usize {
        (self.operations.len() + self.shorts_under_way).saturating_sub(self.attaching)
    }

    /// All operations to a destination that have not ended.
    pub fn under_way(&self, to: u32) -> usize {
        self.queues.get(to as usize).map_or(0, |queue| queue.pending)
    }

    /// Drops all operations without telling their end.
    pub fn close<T: Tx>(&mut self, state: &mut State<T>) {
        for queue in &mut self.queues {
            queue.answers.give_back(state, usize::MAX);
        }
        self.queues.clear();
        self.operations.clear();
        self.attaching = 0;
        self.shorts.clear();
        self.shorts_under_way = 0;
        self.lists.close();
        self.close_neighbours();
    }

    /// Closes everything that is mapped of neighbours.
    pub fn close_neighbours(&mut self) {
        self.neighbours.iter_mut().for_each(Neighbour::close);
    }

    /// Whether there is room to post `operations` more.
    pub fn has_room_for(&self, done: &Done<P>, operations: usize) -> bool {
        self.pending_in_all() + self.flushes + done.len() + operations <= self.operations_most
    }

    /// Posts an operation. Does it directly if no message is needed; otherwise sends as much of it as can leave now.
    pub fn post<T: Tx>(
        &mut self,
        state: &mut State<T>,
        done: &mut Done<P>,
        mut posting: Posting,
        mut kind: Kind<P::Source, P::Target>,
    ) {
        if self.is_direct && self.do_directly(state, done, &mut posting, &mut kind) {
            return;
        }
        let Posting { to, context, special, mut is_fenced } = posting;
        self.serial = self.serial.wrapping_add(1);
        let queue = self.queue(to);
        queue.pending += 1;
        is_fenced |= std::mem::take(&mut queue.fences_next);
        let may_go = queue.departures.is_empty()
            && !queue.departures.is_full()
            && queue.pulls == 0
            && (!is_fenced || queue.pending == 1);
        let operation = Operation {
            context,
            to,
            is_fenced,
            special,
            flush: queue.flushes.next(),
            serial: self.serial,
            by: None,
            kind,
            pieces: Sum::default(),
            answered: 0,
            is_pulled: false,
        };
        let len = operation.len();
        let index = self.operations.insert(operation);
        if may_go && self.send_at_once(state, done, index) {
            return;
        }
        self.queues[to as usize].departures.post(index, len);
        self.send(state, done, to);
    }

    fn queue(&mut self, to: u32) -> &mut Queue {
        if self.queues.len() <= to as usize {
            // At most as long as the endpoint's translation table, which has this index.
            self.queues.resize_with(to as usize + 1, Queue::default);
            self.shorts.resize_with(to as usize + 1, || None);
            if self.is_direct {
                self.neighbours.resize_with(to as usize + 1, Neighbour::default);
            }
        }
        &mut self.queues[to as usize]
    }

    /// Posts a flush. False if there is nothing to wait for.
    pub fn flush(&mut self, to: u32, whom: Whom) -> bool {
        let queue = self.queue(to);
        let waits = queue.pending > 0;
        if waits {
            queue.flushes.push(whom, queue.pending);
            self.flushes += 1;
        }
        waits
    }

    /// A fence: operations posted from now on begin when all earlier ones have ended.
    pub fn fence(&mut self, to: u32) {
        self.queue(to).fences_next = true;
    }

    /// A direct operation ends when nothing before it is under way, so a fence before it has nothing left to hold back.
    pub fn pass_fence(&mut self, to: u32) {
        if let Some(queue) = self.queues.get_mut(to as usize) {
            queue.fences_next = false;
        }
    }

    /// Tells the end of an operation that has no buffers.
    pub fn tell(&mut self, done: &mut Done<P>, whom: Whom, outcome: Outcome) {
        let end =
            Completion { context: whom.context(), outcome, source: None, target: None, buffers: None, mapped: None };
        match whom {
            Whom::Program(_) => done.push_back(end),
            Whom::Call(ticket) => self.calls.come(ticket, end),
        }
    }

    /// An operation has ended, and so may flushes behind it.
    #[cold]
    fn end_flushes(&mut self, done: &mut Done<P>, to: u32, before: u32) {
        let Some(queue) = self.queues.get_mut(to as usize) else { return };
        queue.flushes.ended(before);
        while let Some(whom) = self.queues.get_mut(to as usize).and_then(|queue| queue.flushes.pop()) {
            self.flushes = self.flushes.saturating_sub(1);
            self.tell(done, whom, Outcome::Done);
        }
    }

    /// Sends an operation of one piece when nothing must go before it. False if it is longer, or there is no room.
    fn send_at_once<T: Tx>(&mut self, state: &mut State<T>, done: &mut Done<P>, index: usize) -> bool {
        let Some(operation) = self.operations.get_mut(index) else { return false };
        let piece = Piece::numbered(0, operation.len());
        let Queue { answers, pending, .. } = &mut self.queues[operation.to as usize];
        if !piece.is_last
            || send_reserved(state, answers, &self.lists, self.endpoint, operation, (index, piece), *pending == 1)
                .is_err()
        {
            return false;
        }
        tell_free(done, &mut self.lists, operation);
        true
    }

    /// Sends to a destination as much as there is room for.
    fn send<T: Tx>(&mut self, state: &mut State<T>, done: &mut Done<P>, to: u32) {
        let mut turn = Turn::default();
        while let Some(queue) = self.queues.get_mut(to as usize) {
            let Some(&first) = queue.departures.iter().next() else { return };
            if queue.has_under_way() && self.operations.get(first).is_some_and(|operation| operation.is_fenced) {
                return queue.is_held = true;
            }
            if queue.pulls > 0 || queue.departures.begins_with(PULL_LEAST) {
                match self.pull(state, to, first) {
                    Pull::No => {}
                    Pull::Asked => continue,
                    Pull::Waits => return,
                    Pull::Never(reason) => {
                        self.withdraw_first(to, first);
                        self.give_up(done, first, reason);
                        continue;
                    }
                }
            }
            let Some(queue) = self.queues.get_mut(to as usize) else { return };
            let (operations, lists, endpoint) = (&mut self.operations, &self.lists, self.endpoint);
            let Queue { departures, answers, .. } = queue;
            let step = departures.send(&mut turn, |&index, piece| match operations.get_mut(index) {
                Some(operation) => send_reserved(state, answers, lists, endpoint, operation, (index, piece), false),
                None => Err(SendError::NoEndpoint),
            });
            match step {
                Step::Left(index) => {
                    if let Some(operation) = self.operations.get_mut(index) {
                        tell_free(done, &mut self.lists, operation);
                    }
                }
                Step::Never(index, SendError::NotMapped(_)) => self.give_up(done, index, Reason::NobodyThere),
                Step::Never(index, _) => self.give_up(done, index, Reason::PeerLost),
                Step::Stopped => return,
                Step::TurnIsOver => return self.turns.come_again(state, to),
            }
        }
    }

    /// Sends no more of an operation.
    fn give_up(&mut self, done: &mut Done<P>, index: usize, reason: Reason) {
        if let Some(operation) = self.operations.get_mut(index) {
            operation.pieces.fail(reason);
        }
        self.settle(done, index);
    }

    /// Ends an operation if none of its pieces is under way any more.
    fn settle(&mut self, done: &mut Done<P>, index: usize) {
        let Some(end) = self.operations.get(index).and_then(|operation| operation.pieces.outcome()) else { return };
        let Some(operation) = self.operations.try_remove(index) else { return };
        let (to, flush) = (operation.to, operation.flush);
        let has_flushes = self.queues.get_mut(to as usize).is_some_and(|queue| {
            queue.pending = queue.pending.saturating_sub(1);
            !queue.flushes.is_empty()
        });
        self.tell_end(done, operation, end);
        if has_flushes {
            self.end_flushes(done, to, flush);
        }
    }

    /// Tells how an operation has ended.
    #[inline(always)]
    fn tell_end(&mut self, done: &mut Done<P>, operation: Operation<P>, end: Result<(), Failure>) {
        if let Some(run) = operation.run() {
            return self.end_run(done, operation.to, run, end);
        }
        let outcome = Outcome::from(end);
        let (source, target) = match operation.kind {
            Kind::Write { source, .. } => (source, None),
            Kind::Read { target, .. } => (None, target),
            Kind::Atomic { old, .. } => (None, old),
            Kind::Attach { by } => {
                return self.tell_attached(done, (operation.to, by), operation.special, (operation.context, outcome))
            }
        };
        let end = Completion { context: operation.context, outcome, source, target, buffers: None, mapped: None };
        match operation.special.as_deref() {
            Some(Special::Call(ticket)) => self.calls.come(*ticket, end),
            _ => done.push_back(end),
        }
    }

    #[cold]
    #[inline(never)]
    fn tell_attached(
        &mut self,
        done: &mut Done<P>,
        (to, by): (u32, Credential),
        special: Option<Box<Special>>,
        (context, outcome): (u64, Outcome),
    ) {
        let opened = self.opened.take().filter(|_| outcome == Outcome::Done);
        match (special.as_deref(), opened) {
            (Some(Special::Own), opened) => self.attached(to, by, opened),
            (special, opened) => {
                if let Some((flow, mapped)) = &opened {
                    self.lend(to, *flow, mapped);
                }
                let mapped = opened.map(|(_, mapped)| mapped);
                let end = Completion { context, outcome, source: None, target: None, buffers: None, mapped };
                match special {
                    Some(Special::Call(ticket)) => self.calls.come(*ticket, end),
                    _ => done.push_back(end),
                }
            }
        }
    }

    #[cold]
    #[inline(never)]
    pub fn end_run(&mut self, done: &mut Done<P>, to: u32, run: Run, end: Result<(), Failure>) {
        let is_first_failure = self.lists.run_ended(done, run, end);
        if let (true, Err(Failure { reason, .. })) = (is_first_failure, end) {
            self.give_up_list(done, to, run, reason);
        }
    }

    /// A run of a list has failed: its other runs that have not left no longer do.
    fn give_up_list(&mut self, done: &mut Done<P>, to: u32, run: Run, reason: Reason) {
        let Some(queue) = self.queues.get_mut(to as usize) else { return };
        let operations = &self.operations;
        let runs = queue.departures.withdraw(|&index| {
            let other = operations.get(index).and_then(Operation::run);
            other.is_some_and(|other| other.is_of_the_same_list(run))
        });
        // The operations behind them may leave.
        queue.is_held |= !runs.is_empty();
        runs.into_iter().for_each(|index| self.give_up(done, index, reason));
    }

    /// A piece of an operation has failed.
    fn fail(&mut self, done: &mut Done<P>, index: usize, failure: Failure) {
        let Some(operation) = self.operations.get_mut(index) else { return };
        operation.pieces.on_end(Err(failure));
        let to = operation.to;
        self.withdraw_first(to, index);
        self.settle(done, index);
    }

    /// Takes an operation out of the queue: no more of it is sent.
    fn withdraw_first(&mut self, to: u32, index: usize) {
        if let Some(queue) = self.queues.get_mut(to as usize) {
            queue.departures.withdraw_first(|&first| first == index);
        }
    }

    // ---- what arrives

    /// A one-way message was stored.
    pub fn stored<T: Tx>(&mut self, state: &mut State<T>, done: &mut Done<P>, completion: u64) {
        let Some(index) = self.find(completion) else { return };
        let Some(operation) = self.operations.get_mut(index) else { return };
        operation.pieces.on_end(Ok(()));
        let to = operation.to;
        self.settle(done, index);
        if let Some(queue) = self.queues.get_mut(to as usize).filter(|queue| queue.is_held) {
            queue.is_held = false;
            self.send(state, done, to);
        }
    }

    /// The operation that a completion belongs to.
    fn find(&self, completion: u64) -> Option<usize> {
        let index = (completion as u32) as usize;
        self.operations.get(index).filter(|operation| operation.serial == (completion >> 32) as u32).map(|_| index)
    }

    /// A message came back.
    pub fn came_back<T: Tx>(&mut self, state: &mut State<T>, done: &mut Done<P>, message: &Returned) {
        let index = match message.kind {
            MessageKind::OneWay => message.completion.and_then(|completion| self.find(completion)),
            MessageKind::Request => {
                // It comes from this process's own memory, so it is what was sent.
                match Word::unpack(message.op, &message.args) {
                    Some(Word::Write { mark: Some(mark), .. }) if self.short_came_back(state, done, mark, message) => {
                        None
                    }
                    Some(
                        Word::Read { mark, .. } | Word::Atomic { mark, .. } | Word::Write { mark: Some(mark), .. },
                    ) => {
                        self.answer_ended(state, mark);
                        Some(mark.operation as usize)
                    }
                    Some(Word::Attach { mark, .. }) => Some(mark.operation as usize),
                    Some(Word::Pull { mark, .. }) => {
                        self.pull_came_back(mark.operation as usize, message);
                        Some(mark.operation as usize)
                    }
                    _ => None,
                }
            }
            MessageKind::Reply => None,
        };
        let Some(index) = index else { return };
        let to = self.operations.get(index).map(|operation| operation.to);
        self.fail(done, index, Failure { reason: message.reason, certainty: message.certainty });
        if let Some(to) = to {
            self.send(state, done, to);
        }
    }

    /// A request came back: there will be no answer.
    fn answer_ended<T: Tx>(&mut self, state: &mut State<T>, mark: Mark) {
        let Some(operation) = self.operations.get(mark.operation as usize) else { return };
        if let (Some(bytes), Some(queue)) =
            (operation.answer_bytes(mark.piece), self.queues.get_mut(operation.to as usize))
        {
            queue.answers.give_back_of(state, operation, bytes);
        }
    }

    /// Bytes that were asked for, or old values.
    ///
    /// # Errors
    /// If nobody asked for them.
    pub fn take_bytes<T: Tx>(
        &mut self,
        state: &mut State<T>,
        done: &mut Done<P>,
        message: &Delivery<'_>,
        mark: Mark,
    ) -> Result<(), Reason> {
        let index = mark.operation as usize;
        let operation = self.operations.get_mut(index).filter(|o| !o.is_pulled).ok_or(Reason::NoHandler)?;
        // A peer could name an operation that was sent to another one.
        if operation.by != Some(message.flow()) || !operation.pieces.is_under_way() {
            return Err(Reason::NoHandler);
        }
        if let (Some(bytes), Some(queue)) =
            (operation.answer_bytes(mark.piece), self.queues.get_mut(operation.to as usize))
        {
            queue.answers.give_back_of(state, operation, bytes);
        }
        let is_next = mark.piece == operation.answered;
        operation.answered = operation.answered.saturating_add(1);
        let Piece { at, len, .. } = Piece::numbered(mark.piece, operation.len());
        let run = operation.run();
        if let Kind::Attach { .. } = operation.kind {
            self.opened =
                Mapped::open(state.neighbour(message.flow().session).filter(|_| self.is_direct), message.payload)
                    .map(|mapped| (message.flow(), mapped));
            let to = operation.to;
            operation.pieces.on_end(Ok(()));
            self.settle(done, index);
            self.send(state, done, to);
            return Ok(());
        }
        let room = match (&mut operation.kind, run) {
            (Kind::Read { target: Some(target), .. }, _) => Room::Own(target),
            (Kind::Read { target: None, .. }, Some(run)) => Room::OfList(run),
            (Kind::Atomic { old: Some(old), .. }, _) => Room::Own(old),
            _ => Room::None,
        };
        let to = operation.to;
        let is_right = match room {
            Room::None => message.payload.is_empty(),
            _ => message.payload.len() == len,
        };
        if is_next && is_right {
            match room {
                Room::Own(room) => room.write(at, message.payload),
                Room::OfList(run) => self.lists.write(run, at, message.payload),
                Room::None => {}
            }
            operation.pieces.on_end(Ok(()));
            self.settle(done, index);
        } else {
            self.fail(done, index, Failure { reason: Reason::Violation, certainty: Certainty::Unknown });
        }
        // The window has room again, and no other event says so.
        self.send(state, done, to);
        Ok(())
    }

    /// There may be room for what waits for a destination, or its index leads to another peer.
    pub fn can_send<T: Tx>(&mut self, state: &mut State<T>, done: &mut Done<P>, to: u32) {
        if let Some(neighbour) = self.neighbours.get_mut(to as usize) {
            neighbour.close_others(state.flow_to(self.endpoint, to));
        }
        let Some(queue) = self.queues.get_mut(to as usize) else { return };
        queue.departures.on_room();
        self.send(state, done, to);
    }

    /// A peer is gone. Pieces under way come back; what was not sent fails now.
    pub fn peer_lost<T: Tx>(&mut self, _: &mut State<T>, done: &mut Done<P>, to: u32, reason: Reason) {
        let Some(queue) = self.queues.get_mut(to as usize) else { return };
        queue.departures.on_room();
        if let Some(neighbour) = self.neighbours.get_mut(to as usize) {
            neighbour.close();
        }
        for index in queue.departures.withdraw(|_| true) {
            self.give_up(done, index, reason);
        }
    }

    /// Goes on with destinations that have used up their turn.
    pub fn go_on<T: Tx>(&mut self, state: &mut State<T>, done: &mut Done<P>) -> u32 {
        let ready = self.turns.take();
        for &to in &ready {
            if let Some(queue) = self.queues.get_mut(to as usize) {
                queue.departures.begin_turn();
            }
            self.send(state, done, to);
        }
        ready.len() as u32
    }
}

/// All of a write has left: gives its source back, if the program asked for that.
#[inline(always)]
fn tell_free<P: Platform>(done: &mut Done<P>, lists: &mut Lists<P>, operation: &mut Operation<P>) {
    if let Some(run) = operation.run() {
        return lists.run_left(done, run);
    }
    if let Kind::Write { write: Write { tells_when_free: true, .. }, source, .. } = &mut operation.kind {
        let source = source.take();
        let (context, outcome) = (operation.context, Outcome::Free);
        done.push_back(Completion { context, outcome, source, target: None, buffers: None, mapped: None });
    }
}

/// Sends a piece of an operation, after room for its answer was reserved.
#[inline(always)]
fn send_reserved<T: Tx, P: Platform>(
    state: &mut State<T>,
    answers: &mut Answers,
    lists: &Lists<P>,
    endpoint: Endpoint,
    operation: &mut Operation<P>,
    (index, piece): (usize, Piece),
    is_alone: bool,
) -> Result<(), SendError> {
    let flow = state.flow_to(endpoint, operation.to);
    if flow.is_some() && operation.by.is_some_and(|by| flow != Some(by)) {
        // The index leads to another peer since then, which must not get the rest.
        return Err(SendError::NoEndpoint);
    }
    let reserved = answers.reserve(state, endpoint, operation, piece.number).ok_or(SendError::Full)?;
    let sent = send_piece(state, lists, endpoint, operation, (index, piece), is_alone);
    match sent {
        Ok(()) => operation.by = flow,
        Err(_) => answers.give_back(state, reserved),
    }
    sent
}

/// Sends a piece of an operation. The program likely waits for a write that `is_alone`, so this goes as a request: its reply comes sooner
/// than the news that a one-way message was stored, and costs less. Writes in a row are one-way messages, as at most 32 requests can be
/// under way.
fn send_piece<T: Tx, P: Platform>(
    state: &mut State<T>,
    lists: &Lists<P>,
    endpoint: Endpoint,
    operation: &mut Operation<P>,
    (index, piece): (usize, Piece),
    is_alone: bool,
) -> Result<(), SendError> {
    let Piece { number, at, len: bytes, is_last } = piece;
    let len = operation.len();
    let mark = Mark { operation: index as u32, piece: number };
    let (to, completion) = (operation.to, Some(u64::from(operation.serial) << 32 | index as u64));
    let has_more_runs = || operation.run().is_some_and(|run| run.is_part);
    let further = |place: Place| Place { at: place.at.saturating_add(at as u64), ..place };
    match &operation.kind {
        Kind::Write { write, source, .. } => {
            let mark = Some(mark).filter(|_| is_alone);
            let word = match at {
                0 => Word::Write {
                    place: write.place,
                    len: len as u64,
                    notice: write.notice,
                    mark,
                    is_part: has_more_runs(),
                },
                _ => Word::Data,
            };
            let packed = word.pack();
            let payload = match (source, operation.run()) {
                (Some(source), _) => &source.bytes()[piece.range()],
                (None, Some(run)) => lists.bytes(run, at, bytes),
                (None, None) => &[],
            };
            let message = Outgoing { op: packed.op, args: packed.args(), payload, completion: None };
            match is_alone {
                true => state.try_request(endpoint, to, message),
                false => state.try_send_urgent(endpoint, to, Outgoing { completion, ..message }),
            }
        }
        Kind::Read { place, .. } => {
            let is_part = !is_last || has_more_runs();
            let packed = Word::Read { place: further(*place), len: bytes as u32, mark, is_part }.pack();
            let message = Outgoing { op: packed.op, args: packed.args(), ..Outgoing::default() };
            state.try_request(endpoint, to, message)
        }
        Kind::Atomic { change, operands, old, .. } => {
            let Change { place, atomic, of } = *change;
            let packed = Word::Atomic { place: further(place), atomic, of, mark, is_part: !is_last }.pack();
            let each = if atomic.has_second() { 2 } else { 1 };
            let payload = &operands[at * each..(at + bytes) * each];
            let message = Outgoing { op: packed.op, args: packed.args(), payload, completion: None };
            match old {
                Some(_) => state.try_request(endpoint, to, message),
                None => state.try_send_urgent(endpoint, to, Outgoing { completion, ..message }),
            }
        }
        Kind::Attach { by } => {
            let packed = Word::Attach { by: *by, mark }.pack();
            let message = Outgoing { op: packed.op, args: packed.args(), ..Outgoing::default() };
            state.try_request(endpoint, to, message)
        }
    }?;
    operation.pieces.on_sent(is_last);
    Ok(())
}
