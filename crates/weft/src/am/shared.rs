//! The calls of Active Messages for a bundle that several threads use.

use super::{AdoptError, Context, Message, Moving, ReplyToken};
use crate::bundle::{AnyThread, Held, InHandler, SharedBundle};
use crate::node::Error;
use std::time::{Duration, Instant};
use weft_core::{Admission, Endpoint, MessageKind, Outgoing, ReplyError, Returned, SendError};
use weft_shm::Window;
use weft_wire::{Key, Name};

impl SharedBundle {
    /// As [`Bundle::on`](crate::Bundle::on). The handler runs in the thread that polls.
    pub fn on(
        &self,
        endpoint: Endpoint,
        handler: u8,
        run: impl FnMut(&mut Message<'_>) + Send + 'static,
    ) -> Result<(), Error> {
        self.with(|bundle| bundle.on(endpoint, handler, run))?
    }

    /// As [`Bundle::on_return`](crate::Bundle::on_return). The handler runs in the thread that polls.
    pub fn on_return(
        &self,
        endpoint: Endpoint,
        run: impl FnMut(&mut Context<'_>, Returned) + Send + 'static,
    ) -> Result<(), Error> {
        self.with(|bundle| bundle.on_return(endpoint, run))?
    }

    /// As [`Bundle::try_request`](crate::Bundle::try_request).
    #[inline]
    pub fn try_request(
        &self,
        from: Endpoint,
        to: u32,
        handler: u8,
        args: &[u32],
        payload: &[u8],
    ) -> Result<(), SendError> {
        self.with(|bundle| bundle.try_request(from, to, handler, args, payload))?
    }

    /// As [`Bundle::try_send`](crate::Bundle::try_send).
    #[inline]
    pub fn try_send(
        &self,
        from: Endpoint,
        to: u32,
        handler: u8,
        args: &[u32],
        payload: &[u8],
    ) -> Result<(), SendError> {
        self.with(|bundle| bundle.try_send(from, to, handler, args, payload))?
    }

    /// As [`Bundle::try_post`](crate::Bundle::try_post).
    #[inline]
    pub fn try_post(&self, from: Endpoint, to: u32, kind: MessageKind, message: Outgoing<'_>) -> Result<(), SendError> {
        self.with(|bundle| bundle.try_post(from, to, kind, message))?
    }

    /// Sends a request. Blocks until there is room for it, and polls meanwhile. As [`Bundle::request`](crate::Bundle::request).
    pub fn request(&self, from: Endpoint, to: u32, handler: u8, args: &[u32], payload: &[u8]) -> Result<(), SendError> {
        self.insist(None, || self.try_request(from, to, handler, args, payload))
    }

    /// As [`Bundle::request_within`](crate::Bundle::request_within).
    pub fn request_within(
        &self,
        limit: Duration,
        from: Endpoint,
        to: u32,
        handler: u8,
        args: &[u32],
        payload: &[u8],
    ) -> Result<(), SendError> {
        self.insist(Some(limit), || self.try_request(from, to, handler, args, payload))
    }

    /// Sends a one-way message. Blocks until there is room for it, and polls meanwhile. As
    /// [`Bundle::send`](crate::Bundle::send).
    pub fn send(&self, from: Endpoint, to: u32, handler: u8, args: &[u32], payload: &[u8]) -> Result<(), SendError> {
        self.insist(None, || self.try_send(from, to, handler, args, payload))
    }

    /// As [`Bundle::send_within`](crate::Bundle::send_within).
    pub fn send_within(
        &self,
        limit: Duration,
        from: Endpoint,
        to: u32,
        handler: u8,
        args: &[u32],
        payload: &[u8],
    ) -> Result<(), SendError> {
        self.insist(Some(limit), || self.try_send(from, to, handler, args, payload))
    }

    /// As [`Bundle::reply`](crate::Bundle::reply). In a handler, as [`ReplyToken::reply_from_afar`].
    pub fn reply(
        &self,
        token: ReplyToken,
        handler: u8,
        args: &[u32],
        payload: &[u8],
    ) -> Result<(), (ReplyError, ReplyToken)> {
        let replied = self.with_unless_in_handler(token, |bundle, token| bundle.reply(token, handler, args, payload));
        replied.unwrap_or_else(|token| token.reply_from_afar(handler, args, payload))
    }

    /// As [`Bundle::release`](crate::Bundle::release).
    pub fn release(&self, endpoint: Endpoint) -> Result<Moving<AnyThread>, SendError> {
        self.with(|bundle| bundle.release(endpoint))?
    }

    /// As [`Bundle::adopt`](crate::Bundle::adopt).
    pub fn adopt(&self, moving: Moving<AnyThread>) -> Result<Endpoint, (AdoptError, Moving<AnyThread>)> {
        self.adopt_by(None, moving)
    }

    /// As [`Bundle::adopt_within`](crate::Bundle::adopt_within).
    pub fn adopt_within(
        &self,
        limit: Duration,
        moving: Moving<AnyThread>,
    ) -> Result<Endpoint, (AdoptError, Moving<AnyThread>)> {
        self.adopt_by(Some(limit), moving)
    }

    fn adopt_by(
        &self,
        limit: Option<Duration>,
        moving: Moving<AnyThread>,
    ) -> Result<Endpoint, (AdoptError, Moving<AnyThread>)> {
        let since = Instant::now();
        loop {
            // Wait without the lock: the handler that runs may call this bundle.
            match self.with(|bundle| bundle.try_adopt(&moving)) {
                Ok(Ok(Some(endpoint))) => return Ok(endpoint),
                Ok(Ok(None)) if limit.is_some_and(|limit| since.elapsed() >= limit) => {
                    return Err((AdoptError::TimedOut, moving))
                }
                Ok(Ok(None)) => std::thread::yield_now(),
                Ok(Err(error)) => return Err((error, moving)),
                Err(InHandler) => return Err((AdoptError::InHandler, moving)),
            }
        }
    }
}

impl Held<'_> {
    /// As [`Bundle::try_request`](crate::Bundle::try_request).
    #[inline(always)]
    pub fn try_request(
        &mut self,
        from: Endpoint,
        to: u32,
        handler: u8,
        args: &[u32],
        payload: &[u8],
    ) -> Result<(), SendError> {
        self.bundle().try_request(from, to, handler, args, payload)
    }

    /// As [`Bundle::set_key`](crate::Bundle::set_key).
    pub fn set_key(&mut self, endpoint: Endpoint, key: Key) -> Result<(), Error> {
        self.bundle().set_key(endpoint, key)
    }

    /// As [`Bundle::set_admission`](crate::Bundle::set_admission).
    pub fn set_admission(&mut self, endpoint: Endpoint, admission: Admission) -> Result<(), Error> {
        self.bundle().set_admission(endpoint, admission)
    }

    /// As [`Bundle::map_unproven`](crate::Bundle::map_unproven).
    pub fn map_unproven(&mut self, endpoint: Endpoint, index: u32, name: Name, key: Key) -> Result<(), Error> {
        self.bundle().map_unproven(endpoint, index, name, key)
    }

    /// As [`Bundle::unmap`](crate::Bundle::unmap).
    pub fn unmap(&mut self, endpoint: Endpoint, index: u32) -> Result<(), Error> {
        self.bundle().unmap(endpoint, index)
    }

    /// As [`Bundle::set_segment`](crate::Bundle::set_segment).
    pub fn set_segment(&mut self, endpoint: Endpoint, segment: Option<Window>) -> Result<(), Error> {
        self.bundle().set_segment(endpoint, segment)
    }
}
