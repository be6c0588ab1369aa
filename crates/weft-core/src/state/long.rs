//! Sending long messages.

use super::State;
use crate::bulk::{Piece, Step, Turn};
use crate::endpoint::{Endpoint, Endpoints, Route};
use crate::event::{MessageKind, Returned};
use crate::long::{halves, Contents, Get, Kept, Long, Longs, Memory, Segment, Side, What};
use crate::message::{ReplyError, ReplyToken, SendError};
use crate::session::{head, Session, SessionId};
use crate::state::Call;
use weft_wire::path::{PushError, Tx};
use weft_wire::record::{lines, BEGUN, MAX_ARGS, OF_REPLY, WINDOW};
use weft_wire::{Certainty, Credit, Head, Kind, Reason, MAX_PAYLOAD};

/// Room that a path must have before a piece is sent: the largest record. So short messages find room while a long one leaves.
const ROOM_LINES: u32 = lines(MAX_ARGS, MAX_PAYLOAD);

/// If more bytes than this in a path are unread, no piece is sent, because a short message would wait behind them. A
/// reader frees bytes by the megabyte, so with a lower limit it would stall now and then.
const AHEAD_MOST: u64 = 2 << 20;

/// Where a long message can be sent.
enum Way {
    Flow(u32, u16),
    /// Nowhere: it comes back.
    Nowhere(Reason),
}

impl<T: Tx> State<T> {
    /// Sets the memory into which long messages for an endpoint are placed, and which its peers may read. Without
    /// memory, only long messages without bytes arrive. When this returns, nobody accesses the previous memory.
    pub fn set_segment(&mut self, endpoint: Endpoint, memory: Option<Box<dyn Memory>>) -> Result<(), SendError> {
        let state = self.endpoint_mut(endpoint)?;
        let segment = state.segment.get_or_init(Segment::default);
        segment.guard(state);
        segment.set(memory);
        Ok(())
    }

    /// Sends a long request. It takes a slot of the flow's window like any other, and leaves in pieces as there is
    /// room, during later polls. Its contents are kept until it has ended.
    ///
    /// # Errors
    /// Those of [`State::try_request`]. The contents are returned.
    pub fn try_request_long(
        &mut self,
        from: Endpoint,
        to: u32,
        long: Long<'_>,
        contents: Contents,
    ) -> Result<(), (SendError, Contents)> {
        let Long { op, args, offset } = long;
        let found = match args.len() > MAX_ARGS {
            true => Err(SendError::TooLarge),
            false => self.way(from, to),
        };
        let slot = match found {
            Ok(Way::Flow(session, flow)) => self.take_slot(session, flow).map(|slot| (session, flow, slot)),
            Ok(Way::Nowhere(reason)) => {
                let what = What::Put { offset, contents };
                let kept = Kept { op, args: args.to_vec(), what, has_begun: false, has_left: false };
                self.return_long(from, Some(to), MessageKind::Request, kept, reason, Certainty::NotDelivered);
                return Ok(());
            }
            Err(error) => Err(error),
        };
        let (session, flow, slot) = match slot {
            Ok(found) => found,
            Err(error) => return Err((error, contents)),
        };
        let len = contents.len();
        let what = What::Put { offset, contents };
        let kept = Kept { op, args: args.to_vec(), what, has_begun: false, has_left: false };
        self.keep(session, flow, slot, kept);
        self.post_long(session, Side::Out, flow, slot, len);
        Ok(())
    }

    /// Requests bytes of another endpoint's segment. When they are in the segment of `from`, that endpoint gets a reply
    /// with the given operation and arguments.
    ///
    /// # Errors
    /// Those of [`State::try_request`].
    pub fn try_get(&mut self, from: Endpoint, to: u32, get: Get<'_>) -> Result<(), SendError> {
        let Get { op, args, source, len, offset } = get;
        if args.len() > MAX_ARGS {
            return Err(SendError::TooLarge);
        }
        let way = self.way(from, to)?;
        let what = What::Get { source, len, offset };
        let kept = Kept { op, args: args.to_vec(), what, has_begun: true, has_left: true };
        let (session, flow) = match way {
            Way::Flow(session, flow) => (session, flow),
            Way::Nowhere(reason) => {
                self.return_long(from, Some(to), MessageKind::Request, kept, reason, Certainty::NotDelivered);
                return Ok(());
            }
        };
        let slot = self.take_slot(session, flow)?;
        let Some(s) = self.live(session) else { return Err(SendError::Full) };
        let [[a, b], [c, d], [e, f]] = [source, len, offset].map(halves);
        let header = head(Kind::Get, 0, flow, slot, Credit::default());
        if let Err(error) = s.tx.push(header, &[a, b, c, d, e, f], &[]) {
            s.flows_out[usize::from(flow)].window.put(slot);
            return Err(self.not_pushed(session, flow, error));
        }
        self.keep(session, flow, slot, kept);
        Ok(())
    }

    /// Replies to a request with a long message. Never blocks: the message leaves in pieces as there is room. Its
    /// contents are kept until the peer has taken it, and the request's slot is not free before.
    ///
    /// # Errors
    /// Those of [`State::reply`]. The token and the contents are returned.
    pub fn reply_long(
        &mut self,
        token: ReplyToken,
        long: Long<'_>,
        contents: Contents,
    ) -> Result<(), (ReplyError, ReplyToken, Contents)> {
        if long.args.len() > MAX_ARGS {
            return Err((ReplyError::TooLarge, token, contents));
        }
        let Long { op, args, offset } = long;
        let index = token.session.index;
        if State::<T>::is_guest(token.session) {
            return self.reply_long_to_guest(token, long, contents);
        }
        let Some(flow) = self.session_mut(token.session).and_then(|s| s.flows_in.get_mut(usize::from(token.flow)))
        else {
            return Err((ReplyError::PeerLost, token, contents));
        };
        let len = contents.len();
        let what = What::Put { offset, contents };
        let kept = Kept { op, args: args.to_vec(), what, has_begun: false, has_left: false };
        flow.longs.get_or_insert_default().kept.insert(token.slot, kept);
        self.counters.replies_sent += 1;
        self.post_long(index, Side::In, token.flow, token.slot, len);
        Ok(())
    }

    /// Answers a request for bytes of the segment here.
    pub(crate) fn answer_get(&mut self, session: u32, flow: u16, slot: u16, [source, len, offset]: [u64; 3]) {
        let Some(state) = self.live(session).and_then(|s| s.flows_in.get_mut(usize::from(flow))) else { return };
        let what = What::Answer { source, len, offset };
        let kept = Kept { op: 0, args: Vec::new(), what, has_begun: false, has_left: false };
        state.longs.get_or_insert_default().kept.insert(slot, kept);
        // A length beyond the address space was rejected before, because it does not fit in a segment.
        self.post_long(session, Side::In, flow, slot, usize::try_from(len).unwrap_or(usize::MAX));
    }

    /// Returns a long message to its sender.
    pub(crate) fn return_long(
        &mut self,
        endpoint: Endpoint,
        destination: Option<u32>,
        kind: MessageKind,
        kept: Kept,
        reason: Reason,
        certainty: Certainty,
    ) {
        let (op, args, payload, transfer) = kept.give_back();
        let (long, completion) = (Some(transfer), None);
        self.come_back(Returned {
            endpoint,
            destination,
            kind,
            op,
            args,
            payload,
            reason,
            certainty,
            completion,
            long,
        });
    }

    /// Sends pieces of long messages, a turn for each flow, as far as there is room. Returns their number.
    pub(crate) fn push_longs(&mut self) -> u32 {
        let mut pieces = 0;
        for _ in 0..self.leaving.len() {
            let Some((id, side, flow)) = self.leaving.pop_front() else { break };
            if self.session(id).is_some() {
                pieces += self.push_flow(id.index, side, flow);
                self.list_again(id, side, flow);
            }
        }
        pieces
    }

    /// The number of long messages that have not left completely.
    pub(crate) fn longs_leaving(&self) -> u64 {
        let flows = self.sessions.iter().flat_map(|p| &p.session).flat_map(|s| {
            let flows_in = s.flows_in.iter().filter_map(|flow| flow.longs.as_deref());
            s.flows_out.iter().filter_map(|flow| flow.longs.as_deref()).chain(flows_in)
        });
        flows.map(|longs| longs.leaving.len() as u64).sum()
    }

    /// Where a message of an endpoint goes. Makes a call if there was none yet.
    fn way(&mut self, from: Endpoint, to: u32) -> Result<Way, SendError> {
        if self.events.is_full() {
            self.refuse_for_events(from, to)?;
        }
        let entry = self.endpoint_mut(from)?.translation_mut(to).ok_or(SendError::NotMapped(to))?;
        match entry.route {
            Route::Unknown => {
                entry.route = Route::Calling;
                let name = entry.name;
                self.calls.push(Call { endpoint: from, destination: to, name });
                Err(SendError::Full)
            }
            Route::Calling => Err(SendError::Full),
            Route::Refused(reason) => {
                entry.route = Route::Unknown;
                Ok(Way::Nowhere(reason))
            }
            Route::Flow { session, flow } => Ok(Way::Flow(session, flow)),
            Route::Served { session, flow } => {
                self.go_on(from, to, session, flow)?;
                Ok(Way::Flow(session, flow))
            }
        }
    }

    /// Takes a slot of a flow of ours for a long request.
    fn take_slot(&mut self, session: u32, flow: u16) -> Result<u16, SendError> {
        let Some(s) = self.live(session) else { return Err(SendError::Full) };
        let out = s.flows_out.get_mut(usize::from(flow)).filter(|_| s.backlog.is_empty());
        match out.and_then(|out| out.window.take()) {
            Some(slot) => Ok(slot),
            None => Err(self.send_unready(session, flow)),
        }
    }

    /// Keeps a long request in a slot that was taken for it.
    fn keep(&mut self, session: u32, flow: u16, slot: u16, kept: Kept) {
        self.counters.requests_sent += 1;
        let Some(out) = self.live(session).and_then(|s| s.flows_out.get_mut(usize::from(flow))) else { return };
        out.requests += 1;
        // Mark the slot as if it asked for a completion: the fast path for replies would miss the kept message.
        out.asked |= 1 << (slot % WINDOW as u16);
        out.longs.get_or_insert_default().kept.insert(slot, kept);
    }

    /// Queues a long message behind the others of its flow, and sends what there is room for.
    fn post_long(&mut self, session: u32, side: Side, flow: u16, slot: u16, len: usize) {
        let Some(place) = self.sessions.get_mut(session as usize) else { return };
        let id = SessionId { index: session, life: place.life };
        let Some(longs) = place.session.as_mut().and_then(|s| s.longs(side, flow)) else { return };
        longs.leaving.post(slot, len);
        if !longs.is_listed {
            self.push_flow(session, side, flow);
            self.list_again(id, side, flow);
        }
    }

    /// Lists a flow that has more to send.
    fn list_again(&mut self, id: SessionId, side: Side, flow: u16) {
        let Some(longs) = self.session_mut(id).and_then(|s| s.longs(side, flow)) else { return };
        longs.is_listed = !longs.leaving.is_empty();
        if longs.is_listed {
            self.leaving.push_back((id, side, flow));
            self.has_chores = true;
        }
    }

    /// Sends pieces of one flow for a turn. Returns their number.
    fn push_flow(&mut self, session: u32, side: Side, flow: u16) -> u32 {
        let (mut turn, mut pieces) = (Turn::default(), 0);
        loop {
            let State { sessions, endpoints, scratch, .. } = self;
            let Some(s) = sessions.get_mut(session as usize).and_then(|place| place.session.as_mut()) else { break };
            let Some(sent) = s.push_pieces(side, flow, &mut turn, &mut Source { endpoints, scratch }) else { break };
            pieces += sent.pieces;
            if sent.is_broken {
                self.cut(session);
            }
            match sent.step {
                Step::Left(slot) => self.has_left(session, side, flow, slot),
                Step::Never(slot, _) => self.give_up_answer(session, flow, slot, sent.unread),
                Step::Stopped | Step::TurnIsOver => break,
            }
        }
        pieces
    }

    fn has_left(&mut self, session: u32, side: Side, flow: u16, slot: u16) {
        let longs = self.live(session).and_then(|s| s.longs(side, flow));
        if let Some(kept) = longs.and_then(|longs| longs.kept.get_mut(&slot)) {
            kept.has_left = true;
        }
    }

    /// A peer asked for bytes that are no longer in the segment: its request goes back.
    fn give_up_answer(&mut self, session: u32, flow: u16, slot: u16, reason: Option<Reason>) {
        if let Some(longs) = self.live(session).and_then(|s| s.longs(Side::In, flow)) {
            longs.kept.remove(&slot);
        }
        self.counters.refused += 1;
        let reason = reason.unwrap_or(Reason::BadOffset);
        self.say_of(session, head(Kind::Return, reason.code(), flow, slot, Credit::default()));
    }

    /// Pushes a record without contents about a request, or queues it: at most one for each request.
    pub(crate) fn say_of(&mut self, session: u32, header: Head) {
        let Some(s) = self.live(session) else { return };
        match s.backlog.is_empty() && s.tx.push(header, &[], &[]).is_ok() {
            true => s.on_pushed(header),
            false => self.queue(session, header, &[], &[]),
        }
    }
}

impl<T> Session<T> {
    /// The long messages of a flow, if it has had any.
    pub(crate) fn longs(&mut self, side: Side, flow: u16) -> Option<&mut Longs> {
        let flow = usize::from(flow);
        match side {
            Side::Out => self.flows_out.get_mut(flow)?.longs.as_deref_mut(),
            Side::In => self.flows_in.get_mut(flow)?.longs.as_deref_mut(),
        }
    }
}

impl<T: Tx> Session<T> {
    /// Sends pieces of one flow until a message has left or it stops. `None` if there is no such flow.
    fn push_pieces(&mut self, side: Side, flow: u16, turn: &mut Turn, from: &mut Source<'_>) -> Option<Sent> {
        let Session { tx, flows_out, flows_in, backlog, .. } = self;
        let (longs, owner) = match side {
            Side::Out => flows_out.get_mut(usize::from(flow)).map(|out| (&mut out.longs, out.source))?,
            Side::In => flows_in.get_mut(usize::from(flow)).map(|flow| (&mut flow.longs, flow.destination))?,
        };
        let Longs { kept, leaving, .. } = longs.as_deref_mut()?;
        leaving.on_room();
        leaving.begin_turn();
        let (mut pieces, mut is_broken, mut unread) = (0, false, None);
        let step = leaving.send(turn, |&slot, piece| {
            if !backlog.is_empty() || !tx.has_room(ROOM_LINES) || tx.is_ahead(AHEAD_MOST) {
                return Err(SendError::Full);
            }
            let Kept { op, args, what, has_begun, .. } = kept.get_mut(&slot).ok_or(SendError::NoEndpoint)?;
            let (bytes, offset, len) = match what {
                What::Put { offset, contents } => {
                    (contents.bytes().get(piece.range()).unwrap_or(&[]), *offset, contents.len() as u64)
                }
                What::Answer { source, len, offset } => match from.read(owner, *source, piece) {
                    Ok(bytes) => (bytes, *offset, *len),
                    Err(reason) => {
                        unread = Some(reason);
                        return Err(SendError::NoEndpoint);
                    }
                },
                // A get has left completely when it is made.
                What::Get { .. } => return Ok(()),
            };
            let part = Part { side, flow, slot, op: *op, args, offset, len, piece, bytes };
            part.push(tx, has_begun).map(|()| pieces += 1).map_err(|error| {
                is_broken |= error == PushError::Broken;
                SendError::Full
            })
        });
        Some(Sent { step, pieces, is_broken, unread })
    }
}

/// The result of sending pieces.
struct Sent {
    step: Step<u16>,
    pieces: u32,
    is_broken: bool,
    /// Set if the segment no longer has the bytes that a peer asked for.
    unread: Option<Reason>,
}

/// The local segments, to read bytes that peers asked for.
struct Source<'a> {
    endpoints: &'a Endpoints,
    scratch: &'a mut Vec<u8>,
}

impl Source<'_> {
    fn read(&mut self, owner: Endpoint, from: u64, piece: Piece) -> Result<&[u8], Reason> {
        self.scratch.resize(piece.len, 0);
        if piece.len > 0 {
            let segment = self.endpoints.get(owner).and_then(|e| e.segment.get()).ok_or(Reason::BadOffset)?;
            segment.read(from.saturating_add(piece.at as u64), self.scratch)?;
        }
        Ok(self.scratch)
    }
}

/// A piece of a long message, with the fields of the message that its records carry.
struct Part<'a> {
    side: Side,
    flow: u16,
    slot: u16,
    op: u8,
    args: &'a [u32],
    offset: u64,
    /// The length of the whole message.
    len: u64,
    piece: Piece,
    bytes: &'a [u8],
}

impl Part<'_> {
    /// Pushes the records for the piece: a piece record, the message's last record, or both. It may be called again if
    /// there is no room.
    fn push(&self, tx: &mut impl Tx, has_begun: &mut bool) -> Result<(), PushError> {
        let Part { side, flow, slot, op, args, piece, bytes, .. } = *self;
        let [low, high] = halves(self.offset);
        let (last, mark) = match side {
            Side::Out => (Kind::Long, 0),
            Side::In => (Kind::LongReply, OF_REPLY),
        };
        let piece_head = head(Kind::Piece, 0, flow, slot | mark, Credit::default());
        if piece.is_last && !*has_begun {
            let mut all = [0; MAX_ARGS];
            let count = args.len() + 2;
            if let (Some(all), true) = (all.get_mut(..count), piece.number == 0) {
                all[..args.len()].copy_from_slice(args);
                all[args.len()..].copy_from_slice(&[low, high]);
                return tx.push(head(last, op, flow, slot, Credit::default()), all, bytes);
            }
        }
        if !*has_begun {
            let [len_low, len_high] = halves(self.len);
            // The arguments leave no room for the offset, so it goes ahead in a record of its own.
            let bytes = if piece.is_last { &[] } else { bytes };
            tx.push(piece_head, &[low, high, len_low, len_high], bytes)?;
            *has_begun = true;
            if !piece.is_last {
                return Ok(());
            }
        }
        match piece.is_last {
            true => tx.push(head(last, op, flow, slot | BEGUN, Credit::default()), args, bytes),
            false => tx.push(piece_head, &[], bytes),
        }
    }
}
