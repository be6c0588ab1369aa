//! Long messages: requests and replies of any length, and requests for bytes of a segment.

use super::message::{Answer, Letter};
use super::stamps::Gate;
use super::{not_sent, Context, Message, NotReplied, ReplyToken};
use crate::bundle::faces::Kind;
use crate::bundle::{Bundle, SharedBundle, Threads};
use crate::node::Error;
use crate::paths::Outlet;
use std::cell::Cell;
use weft_core::{Contents, Endpoint, Memory, Placed, ReplyError, SendError, State};
use weft_shm::Window;

/// A long message to send, without its contents.
///
/// ```
/// use weft::am::{Get, Long};
/// use weft::memory::Window;
/// use weft::{Bundle, Key, Node};
///
/// let mut bundle = Bundle::new(&Node::new()?)?;
/// let (store, me) = (bundle.endpoint(Key(1))?, bundle.endpoint(Key(2))?);
/// bundle.set_segment(store, Some(Window::create(1 << 20)?))?;
/// let mine = Window::create(1 << 20)?;
/// bundle.set_segment(me, Some(mine.clone()))?;
/// bundle.on(store, 1, |m| {
///     let placed = m.placed().expect("a long message");
///     assert_eq!((placed.offset, placed.len, m.args()), (4096, 100_000, &[7][..]));
/// })?;
/// bundle.on(me, 2, |m| assert_eq!(m.placed().map(|placed| placed.len), Some(50_000)))?;
///
/// let name = bundle.name(store)?;
/// bundle.map(me, 0, name, Key(1))?;
/// bundle.request_long(me, 0, Long { handler: 1, args: &[7], offset: 4096 }, vec![3; 100_000]).map_err(|(error, _)| error)?;
/// bundle.drain(); // its bytes are in the segment, and its handler has run
/// bundle.get(me, 0, Get { handler: 2, args: &[], source: 4096, len: 50_000, offset: 0 })?;
/// bundle.drain();
/// let mut last = [0; 2];
/// assert!(mine.read(49_999, &mut last));
/// assert_eq!(last, [3, 0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Long<'a> {
    /// The number of the handler that runs when all bytes are placed.
    pub handler: u8,
    /// At most 16 arguments.
    pub args: &'a [u32],
    /// Where the bytes go in the segment of the receiving endpoint.
    pub offset: u64,
}

/// A request for bytes of another endpoint's segment. See [`Long`] for an example.
#[derive(Clone, Copy, Debug)]
pub struct Get<'a> {
    /// The number of the handler that runs here, as for a reply, when all bytes are placed.
    pub handler: u8,
    /// At most 16 arguments for it. They stay here.
    pub args: &'a [u32],
    /// Where the bytes are in the segment of the other endpoint.
    pub source: u64,
    /// How many.
    pub len: u64,
    /// Where they go in the segment of the asking endpoint.
    pub offset: u64,
}

/// A segment's memory, as the core uses it.
#[derive(Debug)]
struct Segment(Window);

impl Memory for Segment {
    fn len(&self) -> u64 {
        self.0.len() as u64
    }

    fn is_whole(&self) -> bool {
        self.0.as_ptr().is_null()
    }

    fn read(&self, at: u64, to: &mut [u8]) -> bool {
        self.0.read(at, to)
    }

    fn write(&self, at: u64, bytes: &[u8]) -> bool {
        self.0.write(at, bytes)
    }
}

fn boxed(segment: Option<Window>) -> Option<Box<dyn Memory>> {
    segment.map(|window| Box::new(Segment(window)) as Box<dyn Memory>)
}

impl<'a> Long<'a> {
    fn for_core(self) -> weft_core::Long<'a> {
        let Long { handler, args, offset } = self;
        weft_core::Long { op: handler, args, offset }
    }
}

impl<'a> Get<'a> {
    fn for_core(self) -> weft_core::Get<'a> {
        let Get { handler, args, source, len, offset } = self;
        weft_core::Get { op: handler, args, source, len, offset }
    }
}

impl<H: Threads> Bundle<H> {
    /// Sets or replaces the segment of an endpoint: the memory into which long messages are placed. At first there is none, and
    /// long messages with bytes come back. Every peer that may send to the endpoint may write any byte of its segment at any time,
    /// and read it with [`Bundle::get`]. A peer to which the endpoint sends a request may write it too, with a long reply. For
    /// memory that the program lends see [`Window::lend`]; when this call returns, weft no longer touches the previous memory. A
    /// [whole address space](Window::whole_address_space) takes nothing from other users and hosts that show no key.
    ///
    /// # Errors
    /// If there is no such endpoint of Active Messages here, or if this is a forked child.
    pub fn set_segment(&mut self, endpoint: Endpoint, segment: Option<Window>) -> Result<(), Error> {
        self.life.check()?;
        self.faces.expect(endpoint, Kind::Am)?;
        self.faces.expect_here(endpoint)?;
        Ok(self.core.state_mut().set_segment(endpoint, boxed(segment))?)
    }

    /// Sends a long request to the peer at index `to` of the translation table. Does not block: it leaves in pieces with the polls that
    /// follow. Its contents are kept until the request has ended, and are copied only once here, into the ring or packets. Like any
    /// request, it takes one of the 32 slots of its destination. Short messages find room while it leaves.
    ///
    /// # Errors
    /// As [`Bundle::try_request`]. The contents come back.
    pub fn try_request_long(
        &mut self,
        from: Endpoint,
        to: u32,
        long: Long<'_>,
        contents: impl Into<Contents>,
    ) -> Result<(), (SendError, Contents)> {
        let contents = contents.into();
        match not_sent(self.life).and_then(|()| self.faces.expect(from, Kind::Am)) {
            Ok(()) => self.core.state_mut().try_request_long(from, to, long.for_core(), contents),
            Err(error) => Err((error, contents)),
        }
    }

    /// As [`Bundle::try_request_long`], but blocks until the request has a slot, and polls meanwhile. Does not wait for it to
    /// leave.
    ///
    /// # Errors
    /// As [`Bundle::request`]. The contents come back.
    pub fn request_long(
        &mut self,
        from: Endpoint,
        to: u32,
        long: Long<'_>,
        contents: impl Into<Contents>,
    ) -> Result<(), (SendError, Contents)> {
        let mut kept = Some(contents.into());
        let sent =
            self.insist(None, |bundle| keep_trying(&mut kept, |all| bundle.try_request_long(from, to, long, all)));
        sent.map_err(|error| (error, kept.unwrap_or_else(|| Vec::new().into())))
    }

    /// Asks for bytes of the segment of the peer at index `to` of the translation table. When they are in the segment of `from`,
    /// its handler runs, as for a reply. No handler runs at the peer. Does not block.
    ///
    /// # Errors
    /// As [`Bundle::try_request`].
    pub fn try_get(&mut self, from: Endpoint, to: u32, get: Get<'_>) -> Result<(), SendError> {
        not_sent(self.life)?;
        self.faces.expect(from, Kind::Am)?;
        self.core.state_mut().try_get(from, to, get.for_core())
    }

    /// As [`Bundle::try_get`], but blocks until there is room for the request, and polls meanwhile.
    ///
    /// # Errors
    /// As [`Bundle::request`].
    pub fn get(&mut self, from: Endpoint, to: u32, get: Get<'_>) -> Result<(), SendError> {
        self.insist(None, |bundle| bundle.try_get(from, to, get))
    }

    /// Replies to a request with a long message and a token that a handler [deferred](Message::defer). Does not block.
    ///
    /// # Errors
    /// If there are too many arguments, the peer is gone or this is a forked child. The token comes back.
    pub fn reply_long(
        &mut self,
        mut token: ReplyToken,
        long: Long<'_>,
        contents: impl Into<Contents>,
    ) -> Result<(), (ReplyError, ReplyToken)> {
        if self.life.check().is_err() {
            return Err((ReplyError::Forked, token));
        }
        let Some(right) = token.right.take() else { return Ok(()) };
        let replied = self.faces.am.gate.reply_long(self.core.state_mut(), right, long, contents.into());
        replied.map_err(|(error, right)| {
            token.right = Some(right);
            (error, token)
        })?;
        self.carry_back();
        Ok(())
    }
}

/// Tries to send contents that are kept if there is no room.
fn keep_trying(
    kept: &mut Option<Contents>,
    mut attempt: impl FnMut(Contents) -> Result<(), (SendError, Contents)>,
) -> Result<(), SendError> {
    let Some(contents) = kept.take() else { return Ok(()) };
    attempt(contents).map_err(|(error, contents)| {
        *kept = Some(contents);
        error
    })
}

impl SharedBundle {
    /// As [`Bundle::set_segment`].
    pub fn set_segment(&self, endpoint: Endpoint, segment: Option<Window>) -> Result<(), Error> {
        self.with(|bundle| bundle.set_segment(endpoint, segment))?
    }

    /// As [`Bundle::try_request_long`].
    pub fn try_request_long(
        &self,
        from: Endpoint,
        to: u32,
        long: Long<'_>,
        contents: impl Into<Contents>,
    ) -> Result<(), (SendError, Contents)> {
        let mut kept = Some(contents.into());
        let sent = self.with(|bundle| keep_trying(&mut kept, |all| bundle.try_request_long(from, to, long, all)));
        let sent = sent.map_err(SendError::from).and_then(|sent| sent);
        sent.map_err(|error| (error, kept.unwrap_or_else(|| Vec::new().into())))
    }

    /// As [`Bundle::request_long`].
    pub fn request_long(
        &self,
        from: Endpoint,
        to: u32,
        long: Long<'_>,
        contents: impl Into<Contents>,
    ) -> Result<(), (SendError, Contents)> {
        let kept = Cell::new(Some(contents.into()));
        let sent = self.insist(None, || {
            let mut contents = kept.take();
            let sent = keep_trying(&mut contents, |all| self.try_request_long(from, to, long, all));
            kept.set(contents);
            sent
        });
        sent.map_err(|error| (error, kept.take().unwrap_or_else(|| Vec::new().into())))
    }

    /// As [`Bundle::try_get`].
    pub fn try_get(&self, from: Endpoint, to: u32, get: Get<'_>) -> Result<(), SendError> {
        self.with(|bundle| bundle.try_get(from, to, get))?
    }

    /// As [`Bundle::get`].
    pub fn get(&self, from: Endpoint, to: u32, get: Get<'_>) -> Result<(), SendError> {
        self.insist(None, || self.try_get(from, to, get))
    }

    /// As [`Bundle::reply_long`]. In a handler, as [`ReplyToken::reply_long_from_afar`].
    pub fn reply_long(
        &self,
        token: ReplyToken,
        long: Long<'_>,
        contents: impl Into<Contents>,
    ) -> Result<(), (ReplyError, ReplyToken)> {
        let mut contents = Some(contents.into());
        let replied = self.with_unless_in_handler(token, |bundle, token| {
            bundle.reply_long(token, long, contents.take().unwrap_or_else(|| Vec::new().into()))
        });
        let rest = contents.take();
        replied.unwrap_or_else(|token| token.reply_long_from_afar(long, rest.unwrap_or_else(|| Vec::new().into())))
    }
}

impl Context<'_> {
    /// Sets the segment of an endpoint, as [`Bundle::set_segment`] does.
    pub fn set_segment(&mut self, endpoint: Endpoint, segment: Option<Window>) -> Result<(), SendError> {
        not_sent(self.gate.life())?;
        self.state.set_segment(endpoint, boxed(segment))
    }

    /// Sends a long request, as [`Bundle::try_request_long`] does. Does not block.
    pub fn try_request_long(
        &mut self,
        from: Endpoint,
        to: u32,
        long: Long<'_>,
        contents: impl Into<Contents>,
    ) -> Result<(), (SendError, Contents)> {
        let contents = contents.into();
        match not_sent(self.gate.life()) {
            Ok(()) => self.state.try_request_long(from, to, long.for_core(), contents),
            Err(error) => Err((error, contents)),
        }
    }

    /// Asks for bytes of another endpoint's segment, as [`Bundle::try_get`] does. Does not block.
    pub fn try_get(&mut self, from: Endpoint, to: u32, get: Get<'_>) -> Result<(), SendError> {
        not_sent(self.gate.life())?;
        self.state.try_get(from, to, get.for_core())
    }
}

impl Message<'_> {
    /// Replies to a request with a long message. Does not block: it leaves in pieces with the polls that follow, and its contents are kept
    /// until the peer has taken it. If the peer cannot place it, it comes back with its contents.
    ///
    /// # Errors
    /// As [`Message::reply`].
    pub fn reply_long(&mut self, long: Long<'_>, contents: impl Into<Contents>) -> Result<(), NotReplied> {
        let right = self.delivery.take_reply().ok_or(NotReplied::NothingToReplyTo)?;
        let Context { state, gate } = &mut self.context;
        gate.reply_long(state, right, long, contents.into()).map_err(|(error, right)| {
            self.delivery.put_reply(right);
            NotReplied::Refused(error)
        })
    }

    /// Returns where the bytes of a long message lie in the endpoint's segment. `None` for short and medium messages.
    pub fn placed(&self) -> Option<Placed> {
        self.context.state.placed()
    }
}

impl ReplyToken {
    /// Replies with a long message from any thread, as [`ReplyToken::reply_from_afar`] does.
    ///
    /// # Errors
    /// If there are too many arguments or this is a forked child. The token comes back.
    pub fn reply_long_from_afar(
        mut self,
        long: Long<'_>,
        contents: impl Into<Contents>,
    ) -> Result<(), (ReplyError, ReplyToken)> {
        if long.args.len() > crate::MAX_ARGS {
            return Err((ReplyError::TooLarge, self));
        }
        if self.mailbox.life().check().is_err() {
            return Err((ReplyError::Forked, self));
        }
        if let Some(right) = self.right.take() {
            let answer = Answer::Long(long.handler, long.args.to_vec(), long.offset, contents.into());
            self.mailbox.put(Letter { right, answer });
        }
        Ok(())
    }
}

impl Gate {
    /// Sends a long reply.
    pub(super) fn reply_long(
        &mut self,
        state: &mut State<Outlet>,
        right: weft_core::ReplyToken,
        long: Long<'_>,
        contents: Contents,
    ) -> Result<(), (ReplyError, weft_core::ReplyToken)> {
        if self.life().check().is_err() {
            return Err((ReplyError::Forked, right));
        }
        state.reply_long(right, long.for_core(), contents).map_err(|(error, right, _)| (error, right))
    }
}
