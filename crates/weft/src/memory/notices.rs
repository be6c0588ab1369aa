//! Handlers of notices, which run at the owner when a peer's write with a notice is complete.

use super::{Memory, Notice};
use crate::bundle::{AnyThread, Bundle, SharedBundle, Threads};
use crate::node::Error;
use weft_core::{Endpoint, SendError};

impl Bundle {
    /// Sets the handler for notices of peers' writes, and replaces the previous one. It runs inside [`Bundle::poll`] when all bytes of a
    /// write are stored, before anything else of that peer is taken. [`Memory::next_notice`] returns no notices then; those that wait
    /// go to the handler with the next one.
    ///
    /// The handler gets the endpoint's calls, by which it can read the region's window, post operations and revoke regions. If it panics,
    /// the session of its peer ends as with [Active Messages](Bundle::on); the write was stored, and its initiator is told *done* or
    /// *unknown*.
    ///
    /// ```
    /// use std::{cell::Cell, rc::Rc};
    /// use weft::memory::{Place, RegionKey, Rights, Settings, Write};
    /// use weft::{Bundle, Key, Node};
    ///
    /// let mut bundle = Bundle::new(&Node::new()?)?;
    /// let me = bundle.memory_endpoint(Key(1), Settings::default())?;
    /// bundle.map(me, 0, bundle.name(me)?, Key(1))?;
    /// bundle.memory(me)?.allocate(64, RegionKey(7), Rights::ALL)?;
    /// let told = Rc::new(Cell::new(0));
    /// let tells = told.clone();
    /// bundle.on_notice(me, move |_, notice| tells.set(notice.value))?;
    /// let write = Write::to(Place::new(RegionKey(7), 0)).with_notice(42);
    /// bundle.memory(me)?.try_write(0, write, b"whole".to_vec(), 0).map_err(|(error, _)| error)?;
    /// bundle.poll_until(|_| told.get() == 42);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// If the endpoint is not for remote memory or was freed.
    pub fn on_notice(
        &mut self,
        endpoint: Endpoint,
        run: impl FnMut(&mut Memory<'_>, Notice) + 'static,
    ) -> Result<(), Error> {
        self.set_notice_handler(endpoint, Box::new(run))
    }
}

impl Bundle<AnyThread> {
    /// Sets the handler for notices of peers' writes, and replaces the previous one. It runs inside [`Bundle::poll`], in the thread that
    /// polls, when all bytes of a write are stored, before anything else of that peer is taken. [`Memory::next_notice`] returns no notices
    /// then; those that wait go to the handler with the next one.
    ///
    /// The handler gets the endpoint's calls, by which it can read the region's window, post operations and revoke regions. If it panics,
    /// the session of its peer ends as with [Active Messages](Bundle::on); the write was stored, and its initiator is told *done* or
    /// *unknown*.
    ///
    /// # Errors
    /// If the endpoint is not for remote memory or was freed.
    pub fn on_notice(
        &mut self,
        endpoint: Endpoint,
        run: impl FnMut(&mut Memory<'_>, Notice) + Send + 'static,
    ) -> Result<(), Error> {
        self.set_notice_handler(endpoint, Box::new(run))
    }
}

impl SharedBundle {
    /// As [`Bundle::on_notice`]. The handler runs in the thread that polls, which may be the service thread; it must not call the bundle.
    /// One that panics in the service thread ends it.
    ///
    /// # Errors
    /// As [`Bundle::on_notice`], and [`InHandler`](crate::InHandler).
    pub fn on_notice(
        &self,
        endpoint: Endpoint,
        run: impl FnMut(&mut Memory<'_>, Notice) + Send + 'static,
    ) -> Result<(), Error> {
        self.with(|bundle| bundle.on_notice(endpoint, run))?
    }
}

impl<H: Threads> Bundle<H> {
    fn set_notice_handler(&mut self, endpoint: Endpoint, run: H::NoticeHandler) -> Result<(), Error> {
        self.life.check()?;
        match self.faces.memory.notice_handler(endpoint) {
            Some(handler) => {
                *handler = Some(run);
                Ok(())
            }
            None => Err(Error::Send(SendError::NoEndpoint)),
        }
    }
}
