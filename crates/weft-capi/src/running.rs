//! The message whose handler runs, and the token by which C's handler names it.
//!
//! An endpoint runs one handler at a time, so it has one place for that message. A token is valid in the thread that runs the handler,
//! until the handler returns. It is compared with that place and never dereferenced.

use crate::handle::{Handle, Kind};
use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use weft::am::Message;
use weft::Returned;
use weft_shm::biased::this_thread;

/// What a handler runs for.
pub enum Running<'r, 'm> {
    /// A message.
    Message(&'r mut Message<'m>),
    /// A message of the endpoint's own that came back.
    Returned(&'r Back<'r>),
}

/// A message that came back.
pub struct Back<'r> {
    pub returned: &'r Returned,
    /// Why, as Active Messages number it.
    pub status: c_int,
    /// Whether it never left, because the call that sent it was wrong. Then its reason means nothing.
    pub is_misuse: bool,
}

/// An endpoint's place for the message whose handler runs.
#[derive(Debug, Default)]
pub struct Desk {
    /// The thread that runs a handler, or 0.
    thread: AtomicUsize,
    /// The current token, which changes with each message.
    token: AtomicU64,
    /// The message, or the one that came back, on that thread's stack.
    message: AtomicPtr<c_void>,
    back: AtomicPtr<c_void>,
}

impl Desk {
    /// Prepares the place for a new endpoint.
    pub fn begin(&self, endpoint: usize) {
        let old = Handle::from_bits(self.token.load(Ordering::Relaxed));
        if old == Handle::NULL {
            self.token.store(Handle::new(Kind::Message, 0, endpoint).to_bits(), Ordering::Relaxed);
        }
    }

    /// Runs a handler for a message, with a token. All stores are relaxed, because no other thread relies on them.
    #[inline(always)]
    pub fn run(&self, message: &mut Message<'_>, handler: impl FnOnce(*mut c_void)) {
        self.message.store(std::ptr::from_mut(message).cast(), Ordering::Relaxed);
        self.run_with_token(handler);
    }

    /// The same for a message that came back.
    pub fn run_for_returned(&self, back: &Back<'_>, handler: impl FnOnce(*mut c_void)) {
        self.message.store(std::ptr::null_mut(), Ordering::Relaxed);
        self.back.store(std::ptr::from_ref(back).cast_mut().cast(), Ordering::Relaxed);
        self.run_with_token(handler);
    }

    #[inline(always)]
    fn run_with_token(&self, handler: impl FnOnce(*mut c_void)) {
        let token = Handle::from_bits(self.token.load(Ordering::Relaxed)).next();
        self.token.store(token.to_bits(), Ordering::Relaxed);
        self.thread.store(this_thread(), Ordering::Relaxed);
        handler(token.to_c());
        self.thread.store(0, Ordering::Relaxed);
    }

    /// Whether a token is valid in this thread.
    #[inline(always)]
    fn is_good(&self, token: Handle) -> bool {
        self.thread.load(Ordering::Relaxed) == this_thread() && self.token.load(Ordering::Relaxed) == token.to_bits()
    }

    /// The message of a token. `None` if the token is not valid in this thread, or no longer, or belongs to no message. The message lives
    /// until this thread's handler returns, and nothing else uses it while the handler, which is C, makes a call.
    #[inline(always)]
    pub fn message(&self, token: Handle) -> Option<NonNull<Message<'_>>> {
        match self.is_good(token) {
            true => NonNull::new(self.message.load(Ordering::Relaxed).cast()),
            false => None,
        }
    }

    /// Runs a handler's call on the message of its token. `None` if the token is not valid in this thread, or no longer.
    pub fn with<R>(&self, token: Handle, call: impl FnOnce(Running<'_, '_>) -> R) -> Option<R> {
        if !self.is_good(token) {
            return None;
        }
        let message = self.message.load(Ordering::Relaxed).cast::<Message<'_>>();
        // SAFETY: it is null, or this thread is inside `run`, which keeps the message alive and leaves it alone until the handler returns.
        // The handler is C, and `call` calls none, so there is no other reference to it.
        if let Some(message) = unsafe { message.as_mut() } {
            return Some(call(Running::Message(message)));
        }
        let back = self.back.load(Ordering::Relaxed).cast::<Back<'_>>();
        // SAFETY: this thread is inside `run_for_returned`, which keeps it alive.
        Some(call(Running::Returned(unsafe { back.as_ref() }?)))
    }

    /// Whether this thread runs a handler of the endpoint.
    pub fn is_here(&self) -> bool {
        self.thread.load(Ordering::Relaxed) == this_thread()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft::{Bundle, Key, Node};

    #[test]
    fn a_token_is_good_while_its_handler_runs_and_in_its_thread() {
        use std::{cell::Cell, rc::Rc};
        let node = Node::new().expect("a node");
        let mut bundle = Bundle::new(&node).expect("a bundle");
        let here = bundle.endpoint(Key(1)).expect("an endpoint");
        let desk: &'static Desk = Box::leak(Box::default());
        desk.begin(7);
        let old = Rc::new(Cell::new(0));
        let kept = old.clone();
        bundle
            .on(here, 1, move |message| {
                let before = Handle::from_bits(kept.get());
                desk.run(message, |token| {
                    let token = Handle::from(token);
                    assert!(desk.with(token, |_| ()).is_some());
                    assert!(desk.with(before, |_| ()).is_none(), "the token of the message before");
                    std::thread::scope(|scope| {
                        scope.spawn(|| assert!(desk.with(token, |_| ()).is_none())).join().expect("it found nothing");
                    });
                    kept.set(token.to_bits());
                });
            })
            .expect("a handler");
        let name = bundle.name(here).expect("a name");
        bundle.map(here, 0, name, Key(1)).expect("room");
        for _ in 0..2 {
            bundle.send(here, 0, 1, &[], b"").expect("sent");
            bundle.drain();
        }
        assert!(desk.with(Handle::from_bits(old.get()), |_| ()).is_none());
        assert_eq!(Handle::from_bits(old.get()).index(), 7);
    }
}
