//! Outgoing and arriving messages, the right to reply, and the errors of sends and replies.

use crate::endpoint::Endpoint;
use crate::event::MessageKind;
use crate::session::{FlowId, SessionId};
use std::cell::Cell;
use weft_wire::path::Record;
use weft_wire::record::MAX_ARGS;
use weft_wire::{HeadWords, Kind, MAX_PAYLOAD};

/// A message to send. The client's operation and arguments are its header.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outgoing<'a> {
    /// The client's operation (an Active Message handler's number).
    pub op: u8,
    /// At most 16 arguments.
    pub args: &'a [u32],
    /// At most 64 KiB. Copied before the call returns, so the caller can use the buffer again.
    pub payload: &'a [u8],
    /// Reported as [`Event::Completed`](crate::Event::Completed) when the message is stored or the request answered.
    pub completion: Option<u64>,
}

/// Why a message was not sent: nothing of it is queued, and nothing is left to cancel. *Full* is a normal result: an
/// [`Event::CanSend`](crate::Event::CanSend) follows.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// There is no room, no credit, or no session yet; or so many events wait that the program has to take some first.
    /// Poll, take the events, and try again after the can-send event.
    #[error("full: poll, take events, and send again after the can-send event")]
    Full,
    /// A call with a time limit found no room within it. The message was not sent.
    #[error("timed out: no room within the time limit, and the message was not sent; the receiver is slow, stopped or unreachable")]
    TimedOut,
    /// More than 16 arguments, or more than 64 KiB.
    #[error("too large: a message has at most {MAX_ARGS} arguments and {MAX_PAYLOAD} bytes; split it")]
    TooLarge,
    /// The translation table has no entry at that index.
    #[error("nothing is mapped at index {0} of the endpoint's translation table; map a name there first")]
    NotMapped(u32),
    /// The endpoint was freed.
    #[error("the local endpoint was freed")]
    NoEndpoint,
    /// The endpoint belongs to another client than the call.
    #[error("the endpoint is another client's; use that client's calls, or make another endpoint")]
    OtherClient,
    /// A handler called the shared bundle that runs it, which would deadlock.
    #[error("a handler cannot call the shared bundle that runs it; use the message's context")]
    InHandler,
    /// This is a forked child of the process that made the endpoint.
    #[error("{}", weft_wire::FORKED)]
    Forked,
}

weft_wire::debug_says_display!(SendError);

/// Why a reply was not sent.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReplyError {
    /// More than 16 arguments, or more than 64 KiB. The token can be used again.
    #[error("too large: a reply has at most {MAX_ARGS} arguments and {MAX_PAYLOAD} bytes")]
    TooLarge,
    /// The peer that sent the request is gone.
    #[error("the peer that asked is gone: nobody waits for this reply any more")]
    PeerLost,
    /// This is a forked child of the process that got the request.
    #[error("{}", weft_wire::FORKED)]
    Forked,
}

weft_wire::debug_says_display!(ReplyError);

/// The right to reply once to one request. If the token is dropped, the request stays open until the session ends.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "a request whose token is dropped stays open; reply or end it"]
pub struct ReplyToken {
    pub(crate) session: SessionId,
    pub(crate) flow: u16,
    pub(crate) slot: u16,
}

impl ReplyToken {
    /// The flow on which the request arrived.
    pub fn flow(&self) -> FlowId {
        FlowId { session: self.session, number: self.flow }
    }

    /// The request's slot in its flow's window.
    pub fn slot(&self) -> u16 {
        self.slot
    }
}

/// A message that arrived, as its [`Client`](crate::Client) gets it. [`State::source`](crate::State::source) returns
/// its sender.
pub struct Delivery<'a> {
    /// The local endpoint that the message is for.
    pub endpoint: Endpoint,
    /// Its arguments.
    pub args: &'a [u32],
    /// Its payload, valid until the client returns.
    pub payload: &'a [u8],
    pub(crate) head: HeadWords,
    /// A reference, not a copy: this saves a store per message.
    pub(crate) session: &'a SessionId,
    /// The message is a request whose right to reply was not taken. If that is still so when the sink returns, the
    /// request ends without a reply.
    pub(crate) is_open: Cell<bool>,
}

impl<'a> Delivery<'a> {
    #[inline(always)]
    pub(crate) fn new(endpoint: Endpoint, session: &'a SessionId, record: Record<'a>, is_open: bool) -> Delivery<'a> {
        let Record { head, args, payload } = record;
        Delivery { endpoint, args, payload, head, session, is_open: Cell::new(is_open) }
    }

    /// Returns whether the message is a one-way message, a request or a reply.
    #[inline(always)]
    pub fn kind(&self) -> MessageKind {
        if self.head.is(Kind::Request) {
            MessageKind::Request
        } else if self.head.is(Kind::Reply) {
            MessageKind::Reply
        } else {
            MessageKind::OneWay
        }
    }

    /// Returns the client's operation.
    #[inline(always)]
    pub fn op(&self) -> u8 {
        self.head.op()
    }

    /// Returns the flow of the message. All requests and one-way messages of one flow come from one endpoint of one
    /// peer. A reply has the flow of its request, which is a flow of ours and is numbered separately.
    #[inline(always)]
    pub fn flow(&self) -> FlowId {
        FlowId { session: *self.session, number: self.head.flow() }
    }

    /// Returns the slot of a request or of a reply's request in the window of its [flow](Delivery::flow).
    pub fn slot(&self) -> u16 {
        self.head.slot()
    }

    /// Takes the right to reply to a request. `None` if the message is not a request or the right was taken.
    #[inline(always)]
    pub fn take_reply(&self) -> Option<ReplyToken> {
        let token = ReplyToken { session: *self.session, flow: self.head.flow(), slot: self.head.slot() };
        self.is_open.replace(false).then_some(token)
    }

    /// Gives back the unused right to reply to this message.
    #[inline(always)]
    pub fn put_reply(&self, token: ReplyToken) {
        debug_assert_eq!((token.session, token.flow, token.slot), (*self.session, self.head.flow(), self.head.slot()));
        self.is_open.set(true);
    }
}

impl std::fmt::Debug for Delivery<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Delivery { endpoint, args, payload, .. } = self;
        write!(f, "{:?} {} for {endpoint:?} with {args:?} and {} bytes", self.kind(), self.op(), payload.len())
    }
}
