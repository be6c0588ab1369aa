//! Records that wait: for room in a full path, or to be combined with others (credit, ends of requests).

use super::State;
use crate::event::Event;
use crate::session::{head, FlowOut, Pending, Phase};
use crate::SessionId;
use weft_wire::path::{PushError, Tx};
use weft_wire::record::{lines, MAX_ARGS, RETURNED_SEND};
use weft_wire::{Credit, Head, Kind, MAX_PAYLOAD};

/// Room that a blocked session must have before its senders are told: the largest record.
const UNBLOCK_LINES: u32 = lines(MAX_ARGS, MAX_PAYLOAD);

impl<T: Tx> State<T> {
    /// Pushes everything that waits locally. Returns whether nothing waits any more.
    pub fn flush(&mut self) -> bool {
        self.flush_dirty();
        self.flush_blocked();
        self.push_longs();
        self.leaving.is_empty()
            && self.sessions.iter().flat_map(|p| &p.session).all(|s| s.backlog.is_empty())
            && self.dirty.is_empty()
    }

    /// Whether nothing waits here to be sent on a session.
    pub(crate) fn has_said_all(&self, id: SessionId) -> bool {
        self.session(id).is_none_or(|s| s.backlog.is_empty()) && self.leaving.iter().all(|(session, ..)| *session != id)
    }

    /// Like [`State::flush`], and also tells senders what would otherwise ride on a later record: which of their
    /// messages are stored, and their credit. For a bundle that ends.
    pub fn flush_all(&mut self) -> bool {
        for session in 0..self.sessions.len() {
            let flows = self.sessions[session].session.as_mut().map_or(&mut [][..], |s| &mut s.flows_in[..]);
            let due: Vec<u16> = (0u16..).zip(flows).filter_map(|(at, flow)| flow.say_now().then_some(at)).collect();
            due.into_iter().for_each(|flow| self.mark_dirty(session as u32, flow));
        }
        self.flush()
    }

    /// The number of messages that found no room and wait in this process: replies, and messages on their way back.
    pub fn queued(&self) -> u64 {
        let backlogs = self.sessions.iter().flat_map(|p| &p.session).flat_map(|s| &s.backlog);
        let waiting = backlogs.filter(|r| r.head.kind.is_message()).count() as u64;
        waiting + self.longs_leaving()
    }

    /// Asks every peer with one-way messages of ours to report soon that they are stored.
    pub fn hasten(&mut self) {
        for place in &mut self.sessions {
            let Some(s) = place.session.as_mut().filter(|s| s.backlog.is_empty()) else {
                continue;
            };
            for (flow, out) in s.flows_out.iter_mut().enumerate() {
                if out.sent > out.stored && out.asked_at < out.sent {
                    let header = head(Kind::Credit, 0, flow as u16, 0, Credit::default());
                    if s.tx.push(header, &[], &[]).is_ok() {
                        out.asked_at = out.sent;
                    }
                }
            }
        }
    }

    /// The number of sent messages whose end is not known or not reported: requests in flight, one-way messages not
    /// known to be stored, and returned messages that the sink did not get yet.
    pub fn unsettled(&self) -> u64 {
        let flows = self.sessions.iter().flat_map(|p| &p.session).flat_map(|s| &s.flows_out);
        let under_way: u64 = flows.map(|f| u64::from(f.window.taken().count_ones()) + (f.sent - f.stored)).sum();
        under_way + self.returns.len() as u64
    }

    #[inline(always)]
    pub(crate) fn mark_dirty(&mut self, session: u32, flow: u16) {
        let Some(s) = self.sessions[session as usize].session.as_mut() else {
            return;
        };
        let state = &mut s.flows_in[usize::from(flow)];
        if !state.is_dirty {
            state.is_dirty = true;
            self.dirty.push((session, flow));
            self.has_chores = true;
        }
    }

    /// Tells senders of ended requests and of credit.
    pub(crate) fn flush_dirty(&mut self) {
        let mut dirty = std::mem::take(&mut self.dirty);
        dirty.retain(|&(session, flow)| !self.flush_flow(session, flow));
        self.dirty = dirty;
    }

    /// Tells one sender. True if there is nothing more to tell.
    fn flush_flow(&mut self, session: u32, flow: u16) -> bool {
        let Some(s) = self.sessions.get_mut(session as usize).and_then(|p| p.session.as_mut()) else {
            return true;
        };
        let Some(state) = s.flows_in.get_mut(usize::from(flow)) else {
            return true;
        };
        if !s.backlog.is_empty() {
            return false;
        }
        if state.ended != 0 {
            let header = head(Kind::Ended, 0, flow, 0, Credit::default());
            if s.tx.push(header, &[state.ended], &[]).is_err() {
                return false;
            }
            state.ended = 0;
        }
        if state.due.is_urgent(weft_transport::Grant::V1) {
            let mut due = state.due;
            if s.tx.push(head(Kind::Credit, 0, flow, 0, Credit::default()), &due.take(), &[]).is_err() {
                return false;
            }
            state.due = due;
        }
        state.is_dirty = false;
        true
    }

    /// Pushes backlogs and tells waiting senders of room.
    pub(crate) fn flush_blocked(&mut self) {
        let mut blocked = std::mem::take(&mut self.blocked);
        blocked.retain(|&index| !self.unblock(index));
        self.blocked = blocked;
    }

    /// Retries a blocked session. Returns true if it is no longer blocked.
    fn unblock(&mut self, index: u32) -> bool {
        let Some(s) = self.sessions.get_mut(index as usize).and_then(|p| p.session.as_mut()) else {
            return true;
        };
        while let Some(next) = s.backlog.front() {
            match s.tx.push(next.head, &next.args, &next.payload) {
                Ok(()) => {
                    // A return of a one-way message is in a backlog only if it found no room, so its record is held.
                    if next.head.kind == Kind::Return && next.head.slot & 0xff00 == RETURNED_SEND {
                        self.let_go.push(index);
                        self.has_chores = true;
                    }
                    s.pop_backlog();
                }
                Err(PushError::Broken) => {
                    self.cut(index);
                    return true;
                }
                Err(_) => return false,
            };
        }
        if !s.tx.has_room(UNBLOCK_LINES) {
            return false;
        }
        let has_returns = !self.returns.is_empty();
        if has_returns && s.flows_out.iter().any(|f| f.wants_room && f.is_stopped) {
            // The program has to see the returned messages before anything new is sent.
            return false;
        }
        s.is_blocked = false;
        let waits = |f: &FlowOut| f.wants_room && f.phase == Phase::Open && !(f.is_stopped && f.has_under_way());
        let all = s.flows_out.len();
        let first = usize::from(s.asked.take_first(&s.limits)).min(all);
        for flow in (first..all).chain(0..first) {
            let out = self.live(index).and_then(|s| s.flows_out.get_mut(flow));
            let Some(out) = out.filter(|out| waits(out)) else { continue };
            out.wants_room = false;
            let (endpoint, destination) = (out.source, out.destination);
            self.tell(Event::CanSend { endpoint, destination });
        }
        // The records that waited may have been the last of the last flow.
        self.note_rest(index);
        true
    }

    pub(crate) fn block(&mut self, session: u32) {
        let Some(s) = self.sessions[session as usize].session.as_mut() else {
            return;
        };
        if !s.is_blocked {
            s.is_blocked = true;
            self.blocked.push(session);
            self.has_chores = true;
        }
    }

    /// Queues a record that found no room.
    #[cold]
    #[inline(never)]
    pub(crate) fn queue(&mut self, session: u32, head: Head, args: &[u32], payload: &[u8]) {
        let Some(s) = self.sessions[session as usize].session.as_mut() else {
            return;
        };
        s.backlog_bytes += payload.len() + std::mem::size_of::<Pending>();
        s.backlog.push_back(Pending { head, args: args.to_vec(), payload: payload.to_vec() });
        self.block(session);
    }
}
