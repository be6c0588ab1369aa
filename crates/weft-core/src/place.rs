//! Receiving long messages: their bytes are placed into the segment of their endpoint. A message whose bytes cannot be
//! placed is refused as a whole, once all of it has arrived.

use crate::bulk::Placement;
use crate::client::Sink;
use crate::endpoint::Endpoint;
use crate::event::MessageKind;
use crate::long::{whole, Arriving, Placed, Segment, Side, What};
use crate::message::Delivery;
use crate::receive::Violation;
use crate::session::{head, SessionId};
use crate::state::State;
use weft_wire::path::{Record, Tx};
use weft_wire::record::{BEGUN, OF_REPLY, RETURNED_LONG, WINDOW};
use weft_wire::{Certainty, Credit, Head, HeadWords, Kind, Reason};

/// The long message that a record belongs to.
#[derive(Clone, Copy)]
struct Whose {
    session: u32,
    side: Side,
    flow: u16,
    slot: u16,
}

impl Whose {
    /// The message of a record whose slot may carry one mark.
    fn of(session: u32, head: HeadWords, side: Side, mark: u16) -> Result<Whose, Violation> {
        let slot = head.slot() & !mark;
        match slot < WINDOW as u16 {
            true => Ok(Whose { session, side, flow: head.flow(), slot }),
            false => Err(Violation),
        }
    }
}

impl<T: Tx> State<T> {
    /// Takes a record of a long message, or a report about one.
    pub(crate) fn receive_long<S: Sink<T>>(
        &mut self,
        id: &SessionId,
        record: Record<'_>,
        sink: &mut S,
    ) -> Result<(), Violation> {
        self.end_run()?;
        match record.head.kind() {
            Kind::Piece => self.receive_piece(id, &record),
            Kind::Long => self.receive_long_request(id, &record, sink),
            Kind::LongReply => self.receive_long_reply(id, &record, sink),
            Kind::Get => self.receive_get(id, &record),
            Kind::Taken => self.receive_taken(id.index, &record),
            _ => Err(Violation),
        }
    }

    /// Takes a piece of a long message that is not the last one.
    fn receive_piece(&mut self, id: &SessionId, record: &Record<'_>) -> Result<(), Violation> {
        let side = if record.head.slot() & OF_REPLY != 0 { Side::Out } else { Side::In };
        let whose = Whose::of(id.index, record.head, side, OF_REPLY)?;
        self.expects(whose)?;
        let mut arriving = match (record.args, self.take_arriving(whose)) {
            (&[a, b, c, d], None) => self.begin(whose, Placed { offset: whole([a, b]), len: whole([c, d]) })?,
            // Only the first piece may be empty.
            ([], Some(arriving)) if !record.payload.is_empty() => arriving,
            _ => return Err(Violation),
        };
        self.place(whose, &mut arriving, record.payload)?;
        if let Some(longs) = self.live(id.index).and_then(|s| s.longs(side, whose.flow)) {
            longs.arriving.insert(whose.slot, arriving);
        }
        Ok(())
    }

    /// Takes the last record of a long request.
    fn receive_long_request<S: Sink<T>>(
        &mut self,
        id: &SessionId,
        record: &Record<'_>,
        sink: &mut S,
    ) -> Result<(), Violation> {
        let whose = Whose::of(id.index, record.head, Side::In, BEGUN)?;
        self.expects(whose)?;
        let (args, arriving) = self.finish(whose, record)?;
        let state = self.flow_in(id.index, whose.flow)?;
        if !state.under_way.take_slot(whose.slot) {
            return Err(Violation);
        }
        let endpoint = state.destination;
        let head = plain(Kind::Request, record.head.op(), args.len(), whose);
        let message = Delivery::new(endpoint, id, Record { head, args, payload: &[] }, true);
        match arriving.refused {
            Some(reason) => _ = self.send_back(&message, reason),
            None => {
                self.placed = Some(arriving.placed);
                self.deliver_request(&message, head, sink);
                self.placed = None;
            }
        }
        if message.is_open.get() {
            self.end_request(id.index, whose.flow, whose.slot);
        }
        Ok(())
    }

    /// Takes the last record of a long reply. The request ends after the peer was told that the reply was taken; its
    /// slot is not free before.
    fn receive_long_reply<S: Sink<T>>(
        &mut self,
        id: &SessionId,
        record: &Record<'_>,
        sink: &mut S,
    ) -> Result<(), Violation> {
        let whose = Whose::of(id.index, record.head, Side::Out, BEGUN)?;
        self.expects(whose)?;
        let (said, arriving) = self.finish(whose, record)?;
        let out = self.flow_out(id.index, whose.flow)?;
        let (endpoint, destination) = (out.source, out.destination);
        let asked = out.end_long(whose.slot)?;
        let completion = out.slots.get_mut(usize::from(whose.slot)).and_then(|kept| kept.completion.take());
        let get = asked.filter(|kept| matches!(kept.what, What::Get { .. }));
        // The endpoint that asked for the bytes set the operation and arguments itself.
        let (op, args) = match &get {
            Some(_) if !said.is_empty() => return Err(Violation),
            Some(kept) => (kept.op, &kept.args[..]),
            None => (record.head.op(), said),
        };
        let head = plain(Kind::Reply, op, args.len(), whose);
        let message = Delivery::new(endpoint, id, Record { head, args, payload: &[] }, false);
        completion.into_iter().for_each(|completion| self.complete(endpoint, completion));
        // Keeps the flow from closing meanwhile.
        self.count_held_reply(*id, whose.flow, true);
        let taken = match arriving.refused {
            Some(reason) => Err(reason),
            None => {
                self.placed = Some(arriving.placed);
                let taken = self.deliver_reply(&message, head, sink);
                self.placed = None;
                taken
            }
        };
        let said = match taken {
            Ok(()) => crate::session::head(Kind::Taken, 0, whose.flow, whose.slot, Credit::default()),
            Err(reason) => head_of_return(whose, reason),
        };
        self.say_of(id.index, said);
        if let Err(reason) = taken {
            self.counters.refused += 1;
            match get {
                Some(kept) => {
                    let (kind, certainty) = (MessageKind::Request, Certainty::NotDelivered);
                    self.return_long(endpoint, Some(destination), kind, kept, reason, certainty);
                }
                None => self.tell_refused_reply(&message, reason),
            }
        }
        if let Ok(out) = self.flow_out(id.index, whose.flow) {
            out.window.put(whose.slot);
        }
        self.tell_room(id.index, whose.flow)?;
        self.count_held_reply(*id, whose.flow, false);
        Ok(())
    }

    /// Takes a request for bytes of a segment here. No handler runs.
    fn receive_get(&mut self, id: &SessionId, record: &Record<'_>) -> Result<(), Violation> {
        let whose = Whose::of(id.index, record.head, Side::In, 0)?;
        let (&[a, b, c, d, e, f], true) = (record.args, record.payload.is_empty()) else { return Err(Violation) };
        let (source, len, offset) = (whole([a, b]), whole([c, d]), whole([e, f]));
        self.expects(whose)?;
        let state = self.flow_in(id.index, whose.flow)?;
        if !state.under_way.take_slot(whose.slot) {
            return Err(Violation);
        }
        let endpoint = state.destination;
        let head = plain(Kind::Request, 0, 0, whose);
        let message = Delivery::new(endpoint, id, Record { head, args: &[], payload: &[] }, true);
        let admitted = self.may_touch(whose, Placed { offset: source, len }).and_then(|()| self.admit_here(&message));
        match admitted {
            Ok(()) => self.answer_get(id.index, whose.flow, whose.slot, [source, len, offset]),
            Err(reason) => _ = self.send_back(&message, reason),
        }
        Ok(())
    }

    /// The peer has taken a long reply of ours.
    fn receive_taken(&mut self, session: u32, record: &Record<'_>) -> Result<(), Violation> {
        let whose = Whose::of(session, record.head, Side::In, 0)?;
        match (record.args, record.payload) {
            ([], []) => self.end_reply(whose).map(|_| ()),
            _ => Err(Violation),
        }
    }

    /// A long reply of ours came back.
    pub(crate) fn receive_returned_long(
        &mut self,
        session: u32,
        flow: u16,
        slot: u16,
        reason: Reason,
    ) -> Result<(), Violation> {
        let kept = self.end_reply(Whose { session, side: Side::In, flow, slot })?;
        if matches!(kept.what, What::Put { .. }) {
            let endpoint = self.note_returned_reply(session, flow)?;
            self.return_long(endpoint, None, MessageKind::Reply, kept, reason, Certainty::NotDelivered);
        }
        Ok(())
    }

    /// Ends a long reply of ours, and its request: the slot is free.
    fn end_reply(&mut self, Whose { session, flow, slot, .. }: Whose) -> Result<crate::long::Kept, Violation> {
        let state = self.flow_in(session, flow)?;
        let kept = state.longs.as_mut().ok_or(Violation)?.end(slot)?.ok_or(Violation)?;
        state.under_way.put(slot);
        Ok(kept)
    }

    /// Whether bytes may arrive for a slot: of a request if the slot is free, of a reply if it is taken.
    fn expects(&mut self, Whose { session, side, flow, slot }: Whose) -> Result<(), Violation> {
        let is_taken = |taken: u32| taken >> slot & 1 != 0;
        let is_expected = match side {
            Side::In => !is_taken(self.flow_in(session, flow)?.under_way.taken()),
            Side::Out => {
                let out = self.flow_out(session, flow)?;
                let kept = out.longs.as_ref().and_then(|longs| longs.kept.get(&slot));
                // The peer cannot answer a request that has not left completely.
                is_taken(out.window.taken()) && kept.is_none_or(|kept| kept.has_left)
            }
        };
        is_expected.then_some(()).ok_or(Violation)
    }

    fn take_arriving(&mut self, whose: Whose) -> Option<Arriving> {
        self.live(whose.session)?.longs(whose.side, whose.flow)?.arriving.remove(&whose.slot)
    }

    /// Begins a long message.
    fn begin(&mut self, whose: Whose, placed: Placed) -> Result<Arriving, Violation> {
        let Whose { session, side, flow, slot } = whose;
        let longs = match side {
            Side::In => self.flow_in(session, flow)?.longs.get_or_insert_default(),
            Side::Out => self.flow_out(session, flow)?.longs.get_or_insert_default(),
        };
        if let (Side::Out, Some(&What::Get { len, offset, .. })) = (side, longs.kept.get(&slot).map(|kept| &kept.what))
        {
            // The endpoint that asked for the bytes set their number and place itself.
            if placed != (Placed { offset, len }) {
                return Err(Violation);
            }
        }
        let refused = self.may_touch(whose, placed).err();
        Ok(Arriving { placement: Placement::new(placed.offset, placed.len), placed, refused })
    }

    /// Takes the last bytes of a long message. Returns its arguments, and where it was placed.
    fn finish<'a>(&mut self, whose: Whose, record: &Record<'a>) -> Result<(&'a [u32], Arriving), Violation> {
        let has_begun = record.head.slot() & BEGUN != 0;
        let (args, mut arriving) = match (has_begun, self.take_arriving(whose)) {
            (true, Some(arriving)) => (record.args, arriving),
            (false, None) => {
                let (args, offset) = record.args.split_last_chunk().ok_or(Violation)?;
                let placed = Placed { offset: whole(*offset), len: record.payload.len() as u64 };
                (args, self.begin(whose, placed)?)
            }
            _ => return Err(Violation),
        };
        self.place(whose, &mut arriving, record.payload)?;
        match arriving.placement.is_whole() {
            true => Ok((args, arriving)),
            false => Err(Violation),
        }
    }

    /// Places the next bytes. Once some bytes could not be placed, later ones are not placed either.
    fn place(&mut self, whose: Whose, arriving: &mut Arriving, bytes: &[u8]) -> Result<(), Violation> {
        if bytes.is_empty() {
            return Ok(());
        }
        let at = arriving.placement.next(bytes.len()).map_err(|_| Violation)?;
        if arriving.refused.is_none() {
            // The endpoint, its key or its segment may have changed since the beginning.
            let here = Placed { offset: at, len: bytes.len() as u64 };
            let placed = self.may_touch(whose, here).and_then(|()| {
                let segment = self.endpoints.get(self.owner(whose)).and_then(|endpoint| endpoint.segment.get());
                segment.map_or(Err(Reason::BadOffset), |segment| segment.write(at, bytes))
            });
            arriving.refused = placed.err();
        }
        Ok(())
    }

    /// The endpoint whose segment a message is for.
    fn owner(&self, Whose { session, side, flow, .. }: Whose) -> Endpoint {
        let place = self.sessions.get(session as usize).and_then(|place| place.session.as_ref());
        let owner = place.and_then(|s| match side {
            Side::In => s.flows_in.get(usize::from(flow)).map(|flow| flow.destination),
            Side::Out => s.flows_out.get(usize::from(flow)).map(|out| out.source),
        });
        owner.unwrap_or(Endpoint::NONE)
    }

    /// Whether a message may access bytes of its endpoint's segment now. A peer that was asked may always write its answer.
    fn may_touch(&self, whose: Whose, bytes: Placed) -> Result<(), Reason> {
        let Placed { offset, len } = bytes;
        let endpoint = self.endpoints.get(self.owner(whose)).ok_or(Reason::NoSuchEndpoint)?;
        let s = self.sessions.get(whose.session as usize).and_then(|place| place.session.as_ref());
        let s = s.ok_or(Reason::PeerLost)?;
        let flow = s.flows_in.get(usize::from(whose.flow)).filter(|_| whose.side == Side::In);
        match (flow, endpoint.segment.get()) {
            (Some(flow), Some(segment)) => segment.admit(s.peer.uid, flow.key, offset, len),
            (Some(flow), None) => {
                endpoint.admit(s.peer.uid, flow.key)?;
                Segment::default().check(offset, len)
            }
            (None, Some(segment)) => segment.check(offset, len),
            (None, None) => Segment::default().check(offset, len),
        }
    }
}

/// The head of a long message as its client sees it.
fn plain(kind: Kind, op: u8, args: usize, Whose { flow, slot, .. }: Whose) -> HeadWords {
    // Within the limits, because there are no more arguments than in the record.
    Head { op, args: args as u8, flow, slot, ..Head::new(kind) }.into()
}

/// The head of the record that returns a long reply.
fn head_of_return(Whose { flow, slot, .. }: Whose, reason: Reason) -> Head {
    head(Kind::Return, reason.code(), flow, RETURNED_LONG | slot, Credit::default())
}
