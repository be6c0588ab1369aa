//! Messages in their handlers, and replies that come later or from other threads.

use super::not_sent;
use super::stamps::Gate;
use crate::node::lock;
use crate::paths::Outlet;
use crate::watch::Signals;
use std::sync::{Arc, Mutex};
use weft_core::{Contents, Delivery, Endpoint, MessageKind, Outgoing, ReplyError, SendError, State};
use weft_shm::{Life, Own};
use weft_wire::{Key, Name};

/// The calls that a handler can make in addition to reading its message.
///
/// ```
/// use weft::{Bundle, Key, Node};
///
/// let mut bundle = Bundle::new(&Node::new()?)?;
/// let (door, me) = (bundle.endpoint(Key(1))?, bundle.endpoint(Key(2))?);
/// // A peer that sends its name is entered in the table.
/// bundle.on(door, 1, move |m| {
///     let Ok(name) = String::from_utf8_lossy(m.payload()).parse() else { return };
///     m.context().map(door, 0, name, Key(2)).expect("there is room in the table");
/// })?;
/// bundle.on(me, 1, |m| assert_eq!(m.payload(), b"welcome"))?;
/// let (to, from) = (bundle.name(door)?, bundle.name(me)?.to_string());
/// bundle.map(me, 0, to, Key(1))?;
/// bundle.send(me, 0, 1, &[], from.as_bytes())?;
/// bundle.drain();
/// bundle.send(door, 0, 1, &[], b"welcome")?;
/// bundle.drain();
/// assert_eq!(bundle.counters().sent, 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Context<'a> {
    pub(super) state: &'a mut State<Outlet>,
    pub(super) gate: &'a mut Gate,
}

impl Context<'_> {
    /// Sends a request, as [`Bundle::try_request`](crate::Bundle::try_request) does. Does not block.
    pub fn try_request(
        &mut self,
        from: Endpoint,
        to: u32,
        handler: u8,
        args: &[u32],
        payload: &[u8],
    ) -> Result<(), SendError> {
        if self.gate.is_shut() {
            let message = Outgoing { op: handler, args, payload, completion: None };
            return self.gate.request(self.state, from, to, message);
        }
        self.state.try_request(from, to, Outgoing { op: handler, args, payload, completion: None })
    }

    /// Sends a one-way message, as [`Bundle::try_send`](crate::Bundle::try_send) does. Does not block.
    pub fn try_send(
        &mut self,
        from: Endpoint,
        to: u32,
        handler: u8,
        args: &[u32],
        payload: &[u8],
    ) -> Result<(), SendError> {
        if self.gate.life().is_over() {
            return not_sent(self.gate.life());
        }
        self.state.try_send(from, to, Outgoing { op: handler, args, payload, completion: None })
    }

    /// Enters a peer in a translation table, as [`Bundle::map`](crate::Bundle::map) does.
    pub fn map(&mut self, endpoint: Endpoint, index: u32, name: Name, key: Key) -> Result<(), SendError> {
        if self.gate.life().is_over() {
            return not_sent(self.gate.life());
        }
        self.state.map(endpoint, index, name, key)
    }
}

/// A message that arrived, as its handler gets it.
///
/// ```
/// use weft::{Bundle, Key, MessageKind, Node};
///
/// let mut bundle = Bundle::new(&Node::new()?)?;
/// let (store, me) = (bundle.endpoint(Key(1))?, bundle.endpoint(Key(2))?);
/// bundle.on(store, 1, |m| {
///     let size = m.payload().len() as u32;
///     m.reply(2, &[size], b"").ok(); // a one-way message takes no reply
/// })?;
/// bundle.on(me, 2, move |m| {
///     assert_eq!((m.kind(), m.args(), m.endpoint()), (MessageKind::Reply, &[5][..], me));
/// })?;
/// let name = bundle.name(store)?;
/// bundle.map(me, 0, name, Key(1))?;
/// bundle.request(me, 0, 1, &[], b"hello")?;
/// bundle.drain();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Message<'a> {
    pub(super) context: Context<'a>,
    pub(super) delivery: &'a Delivery<'a>,
}

impl<'a> Message<'a> {
    /// Returns the 32-bit arguments, as many as were sent.
    #[inline(always)]
    pub fn args(&self) -> &'a [u32] {
        self.delivery.args
    }

    /// Returns the payload. It is 8-byte aligned and valid until the handler returns.
    #[inline(always)]
    pub fn payload(&self) -> &'a [u8] {
        self.delivery.payload
    }

    /// Returns the number of the handler that the message names.
    pub fn handler(&self) -> u8 {
        self.delivery.op()
    }

    /// Returns the local endpoint that the message came to.
    pub fn endpoint(&self) -> Endpoint {
        self.delivery.endpoint
    }

    /// Returns the name of the endpoint that sent the message. The session vouches for it; the message cannot forge it.
    /// `None` once that peer is gone.
    pub fn source(&self) -> Option<Name> {
        self.context.state.source(self.delivery)
    }

    /// Returns the key that the message carries. It may differ from the endpoint's key if the endpoint admits senders [without a
    /// key](crate::Admission). `None` for replies, which need no key; for messages of a peer that is gone; and for messages
    /// forwarded by the bundle that the endpoint left.
    pub fn key(&self) -> Option<Key> {
        self.context.state.carried_key(self.delivery)
    }

    /// Returns whether the message is a one-way message, a request or a reply.
    pub fn kind(&self) -> MessageKind {
        self.delivery.kind()
    }

    /// Returns the context, with the other calls that a handler can make.
    pub fn context(&mut self) -> &mut Context<'a> {
        &mut self.context
    }

    /// Replies to a request. Each request can be replied to once. Does not block.
    ///
    /// # Errors
    /// If there is nothing to reply to (the message is not a request, or was answered or deferred already), or if the
    /// reply is too large.
    #[inline(always)]
    pub fn reply(&mut self, handler: u8, args: &[u32], payload: &[u8]) -> Result<(), NotReplied> {
        if !self.context.gate.is_shut() && self.context.state.reply_small(self.delivery, handler, args, payload) {
            return Ok(());
        }
        self.reply_any(handler, args, payload)
    }

    /// Sends a reply of any size, also while messages are stamped.
    #[inline(never)]
    fn reply_any(&mut self, handler: u8, args: &[u32], payload: &[u8]) -> Result<(), NotReplied> {
        let right = self.delivery.take_reply().ok_or(NotReplied::NothingToReplyTo)?;
        let Context { state, gate } = &mut self.context;
        let replied = match gate.is_shut() {
            true => gate.reply(state, right, handler, args, payload),
            false => state.reply(right, handler, args, payload),
        };
        replied.map_err(|(error, right)| {
            self.delivery.put_reply(right);
            NotReplied::Refused(error)
        })
    }

    /// Takes the right to reply, for use after the handler or in another thread. `None` if there is nothing to reply
    /// to.
    pub fn defer(&mut self) -> Option<ReplyToken> {
        let right = self.delivery.take_reply()?;
        Some(ReplyToken { right: Some(right), mailbox: self.context.gate.mailbox.clone() })
    }
}

/// Why a reply was refused.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotReplied {
    /// The message is not a request, or was answered or deferred already.
    #[error("nothing to reply to: the message is not a request, or was answered already")]
    NothingToReplyTo,
    /// The core refused the reply.
    #[error(transparent)]
    Refused(#[from] ReplyError),
}

weft_wire::debug_says_display!(NotReplied);

/// The right to reply once to one request, at any time and from any thread. A token that is dropped unused ends the
/// request without a reply.
///
/// ```
/// use std::{cell::Cell, rc::Rc, sync::mpsc, thread};
/// use weft::{Bundle, Key, Node};
///
/// let mut bundle = Bundle::new(&Node::new()?)?;
/// let (server, me) = (bundle.endpoint(Key(1))?, bundle.endpoint(Key(2))?);
/// let (put, tokens) = mpsc::channel();
/// bundle.on(server, 1, move |m| m.defer().into_iter().for_each(|token| put.send(token).unwrap_or_default()))?;
/// let worker = thread::spawn(move || {
///     let token = tokens.recv().expect("a request");
///     token.reply_from_afar(2, &[42], b"").expect("it is not too large");
/// });
/// let answer = Rc::new(Cell::new(0));
/// let seen = answer.clone();
/// bundle.on(me, 2, move |m| seen.set(m.args()[0]))?;
/// let name = bundle.name(server)?;
/// bundle.map(me, 0, name, Key(1))?;
/// bundle.request(me, 0, 1, &[], b"")?;
/// bundle.poll_until(|_| answer.get() == 42);
/// worker.join().expect("it ended");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "dropping the token ends the request without a reply"]
pub struct ReplyToken {
    pub(super) right: Option<weft_core::ReplyToken>,
    pub(super) mailbox: Arc<Mailbox>,
}

impl ReplyToken {
    /// Replies from any thread. The bundle's next poll sends the reply. In the bundle's own thread use
    /// [`Bundle::reply`](crate::Bundle::reply). Does not block.
    ///
    /// # Errors
    /// If the reply is too large or this is a forked child. The token comes back.
    pub fn reply_from_afar(
        mut self,
        handler: u8,
        args: &[u32],
        payload: &[u8],
    ) -> Result<(), (ReplyError, ReplyToken)> {
        if args.len() > crate::MAX_ARGS || payload.len() > crate::MAX_PAYLOAD {
            return Err((ReplyError::TooLarge, self));
        }
        if self.mailbox.life().check().is_err() {
            return Err((ReplyError::Forked, self));
        }
        if let Some(right) = self.right.take() {
            let answer = Answer::Reply(handler, args.to_vec(), payload.to_vec());
            self.mailbox.put(Letter { right, answer });
        }
        Ok(())
    }
}

impl Drop for ReplyToken {
    fn drop(&mut self) {
        if let Some(right) = self.right.take() {
            self.mailbox.put(Letter { right, answer: Answer::None });
        }
    }
}

/// Replies of other threads, until the bundle sends them. Bounded by the number of requests that peers may have
/// outstanding.
#[derive(Debug)]
pub(super) struct Mailbox {
    pub(super) signals: Arc<Signals>,
    pub(super) letters: Own<Mutex<Vec<Letter>>>,
}

/// The answer to a request.
#[derive(Debug)]
pub(super) struct Letter {
    pub(super) right: weft_core::ReplyToken,
    pub(super) answer: Answer,
}

/// A reply, or the end of a request without one.
#[derive(Debug)]
pub(super) enum Answer {
    /// Handler, arguments and payload.
    Reply(u8, Vec<u32>, Vec<u8>),
    /// Handler, arguments, offset and contents.
    Long(u8, Vec<u32>, u64, Contents),
    None,
}

impl Mailbox {
    pub fn life(&self) -> Life {
        self.letters.life()
    }

    /// Leaves a letter for the bundle. Does nothing in a forked child: the lock's holder may be a thread that does not
    /// exist here.
    pub fn put(&self, letter: Letter) {
        if self.life().is_over() {
            return;
        }
        lock(&self.letters).push(letter);
        self.signals.raise(Signals::LETTERS);
    }

    pub fn take(&self) -> Vec<Letter> {
        std::mem::take(&mut *lock(&self.letters))
    }
}
