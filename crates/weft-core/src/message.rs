//! Messages on their way out and in, the right to reply, and why one was not taken.

use crate::endpoint::Endpoint;
use crate::event::MessageKind;
use crate::session::{FlowId, SessionId};
use std::cell::Cell;
use weft_wire::path::Record;
use weft_wire::record::MAX_ARGS;
use weft_wire::{HeadWords, Kind, MAX_PAYLOAD};

/// A message on its way out: the client's operation and arguments are its header.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outgoing<'a> {
    /// The client's operation (an Active Message handler's number).
    pub op: u8,
    /// At most 16 arguments.
    pub args: &'a [u32],
    /// At most 64 KiB. Copied before the call returns.
    pub payload: &'a [u8],
    /// Reported as [`Event::Completed`](crate::Event::Completed) when the message is stored or the request answered.
    pub completion: Option<u64>,
}

/// Why a message was not taken. *Full* is a normal result: a [`Event::CanSend`](crate::Event::CanSend) follows.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// No room, no credit, or no session yet. Poll, and try again after the can-send event.
    #[error("full: poll, and send again after the can-send event")]
    Full,
    /// More than 16 arguments or 64 KiB.
    #[error("too large: a message has at most {MAX_ARGS} arguments and {MAX_PAYLOAD} bytes; split it")]
    TooLarge,
    /// The translation table has nothing at that index.
    #[error("nothing is mapped at index {0} of the endpoint's translation table; map a name there first")]
    NotMapped(u32),
    /// The endpoint was freed.
    #[error("the local endpoint was freed")]
    NoEndpoint,
    /// The endpoint has another client than the one that this call is of.
    #[error("the endpoint is another client's; use that client's calls, or make another endpoint")]
    OtherClient,
    /// A handler called the shared bundle that runs it, which would wait for itself.
    #[error("a handler cannot call the shared bundle that runs it; use the message's context")]
    InHandler,
    /// This is a forked child of the process that the endpoint is of.
    #[error("{}", weft_wire::FORKED)]
    Forked,
}

weft_wire::debug_says_display!(SendError);

/// Why a reply was not taken.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReplyError {
    /// More than 16 arguments or 64 KiB. The token can be used again.
    #[error("too large: a reply has at most {MAX_ARGS} arguments and {MAX_PAYLOAD} bytes")]
    TooLarge,
    /// The one who asked is gone.
    #[error("the peer that asked is gone: nobody waits for this reply any more")]
    PeerLost,
    /// This is a forked child of the process that was asked.
    #[error("{}", weft_wire::FORKED)]
    Forked,
}

weft_wire::debug_says_display!(ReplyError);

/// The right to reply once to one request. Dropping it leaves the request open until the session ends.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "a request whose token is dropped stays open; reply or end it"]
pub struct ReplyToken {
    pub(crate) session: SessionId,
    pub(crate) flow: u16,
    pub(crate) slot: u16,
}

impl ReplyToken {
    /// The flow that the request came by.
    pub fn flow(&self) -> FlowId {
        FlowId { session: self.session, number: self.flow }
    }

    /// Which of the flow's requests under way it is.
    pub fn slot(&self) -> u16 {
        self.slot
    }
}

/// A message in the hands of a [`Client`](crate::Client). [`State::source`](crate::State::source) tells who sent it.
pub struct Delivery<'a> {
    /// The local endpoint it is for.
    pub endpoint: Endpoint,
    /// Its arguments.
    pub args: &'a [u32],
    /// Its payload, valid until the sink returns.
    pub payload: &'a [u8],
    pub(crate) head: HeadWords,
    /// Referred to, not copied: one store instead of two.
    pub(crate) session: &'a SessionId,
    /// A request whose right to reply was not taken. Left so, it ends without a reply when the sink returns.
    pub(crate) is_open: Cell<bool>,
}

impl<'a> Delivery<'a> {
    #[inline(always)]
    pub(crate) fn new(endpoint: Endpoint, session: &'a SessionId, record: Record<'a>, is_open: bool) -> Delivery<'a> {
        let Record { head, args, payload } = record;
        Delivery { endpoint, args, payload, head, session, is_open: Cell::new(is_open) }
    }

    /// What it is.
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

    /// The client's operation.
    #[inline(always)]
    pub fn op(&self) -> u8 {
        self.head.op()
    }

    /// The flow that a request or one-way message came by: all of one flow are from one endpoint of one peer. Of a reply it is the
    /// flow of its request, whose numbers are counted apart.
    #[inline(always)]
    pub fn flow(&self) -> FlowId {
        FlowId { session: *self.session, number: self.head.flow() }
    }

    /// Which of its flow's requests under way a request or a reply is of, beside [`Delivery::flow`].
    pub fn slot(&self) -> u16 {
        self.head.slot()
    }

    /// The right to reply to a request, once.
    #[inline(always)]
    pub fn take_reply(&self) -> Option<ReplyToken> {
        let token = ReplyToken { session: *self.session, flow: self.head.flow(), slot: self.head.slot() };
        self.is_open.replace(false).then_some(token)
    }

    /// Takes back a right that this message gave and that was not used.
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
