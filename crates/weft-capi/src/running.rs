//! The message whose handler runs: what the token means that C's handlers get.
//!
//! The handlers of an endpoint run one at a time, so each endpoint has one place for it. A token is good in the thread that runs the handler
//! and until the handler returns. What it says is looked up in that place and never dereferenced.

use crate::handle::{Handle, Kind};
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use weft::am::Message;
use weft::Returned;
use weft_shm::biased::this_thread;

/// What a handler runs for.
pub enum Running<'r, 'm> {
    /// A message.
    Message(&'r mut Message<'m>),
    /// A message of the endpoint's own that came back.
    Returned(Back<'r>),
}

/// A message that came back.
pub struct Back<'r> {
    pub returned: &'r Returned,
    /// Why, as Active Messages number it.
    pub status: c_int,
    /// It never left: the call that sent it was wrong. Its reason says nothing.
    pub is_misuse: bool,
}

/// Where an endpoint notes it.
#[derive(Debug, Default)]
pub struct Desk {
    /// The thread that runs a handler, or 0.
    thread: AtomicUsize,
    /// The token of now. Changes with each message.
    token: AtomicU64,
    /// A [`Running`] on that thread's stack.
    running: AtomicPtr<c_void>,
}

impl Desk {
    /// Runs a handler with a token for `running`. All stores are relaxed: no other thread reads what follows from them.
    #[inline(always)]
    pub fn run(&self, endpoint: usize, running: &mut Running<'_, '_>, handler: impl FnOnce(*mut c_void)) {
        let life = (self.token.load(Ordering::Relaxed) >> 20).wrapping_add(1);
        let token = Handle::new(Kind::Message, life, endpoint);
        self.token.store(token.to_bits(), Ordering::Relaxed);
        self.running.store(std::ptr::from_mut(running).cast(), Ordering::Relaxed);
        self.thread.store(this_thread(), Ordering::Relaxed);
        handler(token.to_c());
        self.thread.store(0, Ordering::Relaxed);
    }

    /// Runs a call of a handler on what its token means. `None` if the token is not, or no longer, good in this thread.
    #[inline(always)]
    pub fn with<R>(&self, token: Handle, call: impl FnOnce(&mut Running<'_, '_>) -> R) -> Option<R> {
        if self.thread.load(Ordering::Relaxed) != this_thread() || self.token.load(Ordering::Relaxed) != token.to_bits()
        {
            return None;
        }
        let running = self.running.load(Ordering::Relaxed).cast::<Running<'_, '_>>();
        // SAFETY: this thread is inside `run`, which keeps the value alive and leaves it alone until the handler returns. The handler is
        // C, and `call` calls none, so there is no other reference to it.
        Some(call(unsafe { &mut *running }))
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
        let old = Rc::new(Cell::new(0));
        let kept = old.clone();
        bundle
            .on(here, 1, move |message| {
                let before = Handle::from_bits(kept.get());
                desk.run(7, &mut Running::Message(message), |token| {
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
