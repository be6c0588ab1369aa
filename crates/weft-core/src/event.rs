//! What a bundle reports: events, returned messages, counters.

use crate::endpoint::Endpoint;
use weft_wire::{Certainty, Reason};

/// The kinds of messages that can come back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MessageKind {
    /// A one-way message.
    OneWay,
    /// A request.
    Request,
    /// A reply.
    Reply,
}

/// A message that came back, with its contents (VN9: return to sender).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Returned {
    /// The endpoint that sent it.
    pub endpoint: Endpoint,
    /// Where it was to go: an index of the endpoint's translation table. `None` for a reply.
    pub destination: Option<u32>,
    /// What it was.
    pub kind: MessageKind,
    /// Its operation (an Active Message handler's number).
    pub op: u8,
    /// Its arguments.
    pub args: Vec<u32>,
    /// Its payload, byte for byte.
    pub payload: Vec<u8>,
    /// Why it came back.
    pub reason: Reason,
    /// Whether it is certain that it was not delivered.
    pub certainty: Certainty,
    /// The completion that was asked for, which will not be reported otherwise.
    pub completion: Option<u64>,
}

/// Something that happened to a bundle.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// The one-way message with this completion was stored in its destination, or the request was answered.
    Completed(u64),
    /// A send that said *full* may be tried again.
    CanSend {
        /// The endpoint that wanted to send.
        endpoint: Endpoint,
        /// Its translation table index.
        destination: u32,
    },
    /// A message came back and the client did not take it.
    Returned(Box<Returned>),
    /// The peer that a translation led to is gone; what was under way has been returned.
    PeerLost {
        /// The local endpoint.
        endpoint: Endpoint,
        /// Its translation table index.
        destination: u32,
        /// Why.
        reason: Reason,
    },
}

/// What a bundle counted since it was made. All are totals.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// One-way messages sent.
    pub sent: u64,
    /// Requests sent.
    pub requests_sent: u64,
    /// Replies sent.
    pub replies_sent: u64,
    /// One-way messages delivered to local endpoints.
    pub delivered: u64,
    /// Requests delivered to local endpoints.
    pub requests_delivered: u64,
    /// Replies delivered to local endpoints.
    pub replies_delivered: u64,
    /// Requests of ours that ended without a reply message.
    pub ended: u64,
    /// Messages of ours that came back.
    pub returned: u64,
    /// Messages of others that were refused here.
    pub refused: u64,
    /// Sends that found no room or no credit.
    pub full: u64,
    /// Replies that found no room and were queued.
    pub replies_queued: u64,
    /// Messages queued at an endpoint that was not being served.
    pub parked: u64,
    /// Sessions cut off because the peer broke the protocol.
    pub violations: u64,
    /// Sessions lost.
    pub sessions_lost: u64,
}
