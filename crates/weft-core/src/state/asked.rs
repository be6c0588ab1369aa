//! Reserved bytes for answers: reserved before a request leaves, so that no peer has to keep more answers than it may.
//!
//! A peer answers the requests of a session while the unread answers stay within a bound, [`Limits::backlog_bytes`],
//! and then refuses requests. A flow's window alone does not respect that bound if there are many flows. So clients
//! with long answers reserve them. Half of the bound is for these; the other half is for everything else.

use super::State;
use crate::endpoint::Endpoint;
use crate::session::{Limits, SessionId};
use weft_wire::path::Tx;

/// Whether an answer was reserved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reserved {
    /// The bytes are reserved, at this session.
    Yes(SessionId),
    /// There is no session yet, so nothing to reserve.
    NoSession,
    /// The limit is reached. An event tells the endpoint when to try the request again.
    Full,
}

/// The reservations of a session.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Asked {
    bytes: usize,
    /// The first flow that found no room. All others wait too, until half of the bytes have arrived, so that each gets
    /// its turn.
    waits: Option<u16>,
}

impl Asked {
    /// The most bytes of answers in flight, including the peer's overhead for each.
    pub const fn most(limits: &Limits) -> usize {
        limits.backlog_bytes / 2
    }

    fn take(&mut self, bytes: usize, flow: u16, most: usize) -> bool {
        let sum = self.bytes.saturating_add(bytes);
        // With nothing in flight there is nothing to wait for.
        let is_taken = self.bytes == 0 || (self.waits.is_none() && sum <= most);
        match is_taken {
            true => self.bytes = sum,
            false => _ = self.waits.get_or_insert(flow),
        }
        is_taken
    }

    /// Returns whether waiting senders should try again.
    fn give_back(&mut self, bytes: usize, most: usize) -> bool {
        self.bytes = self.bytes.saturating_sub(bytes);
        self.waits.is_some() && self.bytes <= most / 2
    }

    /// The flow that is told first that there is room. If half is free, the wait is over.
    pub fn take_first(&mut self, limits: &Limits) -> u16 {
        let is_free = self.bytes <= Asked::most(limits) / 2;
        self.waits.filter(|_| is_free).map_or(0, |_| self.waits.take().unwrap_or(0))
    }
}

impl<T: Tx> State<T> {
    /// Reserves `bytes` bytes for an answer of the peer at an index of the endpoint's translation table.
    #[doc(hidden)] // users need not know the type
    pub fn reserve_answer(&mut self, from: Endpoint, to: u32, bytes: usize) -> Reserved {
        let Some((index, flow)) = self.route(from, to) else { return Reserved::NoSession };
        let Some(place) = self.sessions.get_mut(index as usize) else { return Reserved::NoSession };
        let life = place.life;
        let Some(s) = place.session.as_mut() else { return Reserved::NoSession };
        if s.asked.take(bytes, flow, Asked::most(&s.limits)) {
            return Reserved::Yes(SessionId { index, life });
        }
        // The caller gets *full*, and an event follows when that changes.
        self.send_unready(index, flow);
        Reserved::Full
    }

    /// Releases a reservation: the answer arrived, or there will be none. Does nothing if the session has ended.
    pub fn answer_came(&mut self, session: SessionId, bytes: usize) {
        let place = self.sessions.get_mut(session.index as usize).filter(|place| place.life == session.life);
        let Some(s) = place.and_then(|place| place.session.as_mut()) else { return };
        if s.asked.give_back(bytes, Asked::most(&s.limits)) {
            self.block(session.index);
        }
    }

    /// Bytes that wait until the session's peer has read earlier records.
    #[inline]
    pub fn unread_by(&self, session: SessionId) -> usize {
        self.session(session).map_or(0, |s| s.backlog_bytes)
    }

    /// Bytes that wait until peers have read earlier records, over all sessions. The cost grows with the number of such
    /// sessions.
    pub fn unread(&self) -> usize {
        let waiting = self.blocked.iter().filter_map(|&index| self.sessions.get(index as usize)?.session.as_ref());
        waiting.fold(0, |sum, s| sum.saturating_add(s.backlog_bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_that_waits_for_answer_room_gets_its_turn() {
        let mut asked = Asked::default();
        for flow in 0..10 {
            assert!(asked.take(10, flow, 100));
        }
        assert!(!asked.take(1, 7, 100) && !asked.take(10, 3, 100));
        // Others wait even if there is room again, until half of it is free.
        assert!(!asked.give_back(10, 100) && !asked.take(10, 0, 100));
        let limits = Limits { backlog_bytes: 200, ..Limits::TRUSTED };
        assert!(!asked.give_back(30, 100) && asked.take_first(&limits) == 0 && !asked.take(1, 0, 100));
        assert!(asked.give_back(10, 100));
        assert_eq!(asked.take_first(&limits), 7);
        assert!(asked.take(50, 3, 100) && !asked.take(1, 3, 100));
        assert!(asked.give_back(1000, 100));
        assert_eq!(asked.take_first(&limits), 3);
        assert!(asked.take(1000, 0, 100), "it cannot wait for others");
    }
}
