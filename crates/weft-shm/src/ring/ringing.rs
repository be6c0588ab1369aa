//! A producer that wakes its consumer.

use super::Producer;
use crate::bell::Bell;
use crate::fork::Descriptor;
use crate::mem::MapMem;
use rustix::net::SendFlags;
use std::cell::Cell;
use weft_wire::path::{Abandoned, PushError, Traffic, Tx};
use weft_wire::setup::Message;
use weft_wire::Head;

thread_local! {
    /// How often this thread has woken a consumer.
    static WAKES: Cell<u32> = const { Cell::new(0) };
}

/// How often this thread has woken a consumer that slept. Wraps around.
pub fn wakes_by_this_thread() -> u32 {
    WAKES.get()
}

/// A producer in mapped memory together with the bell of its consumer, and what wakes it.
#[derive(Debug)]
pub struct Ringing {
    producer: Producer<MapMem>,
    bell: Bell,
    waker: Waker,
}

/// How a sleeping consumer is woken.
#[derive(Debug)]
pub enum Waker {
    /// By the eventfd that it sleeps on. Only where both sides trust each other, because a process that has the eventfd can disturb all
    /// that use it.
    Event(Descriptor),
    /// By a message on the set-up socket.
    Socket(Descriptor),
}

/// Makes an eventfd readable. Does nothing if the program closed it: its number may belong to a file of the program by now.
#[cold]
pub fn ring(eventfd: &Descriptor) {
    if eventfd.is_ours() {
        // It fails only if the counter is full, and then it is readable.
        let _ = rustix::io::write(eventfd, &1u64.to_ne_bytes());
    }
}

impl Ringing {
    /// Rings `bell` for records of `producer` when asked to, and uses the `waker` if its consumer sleeps.
    pub fn new(producer: Producer<MapMem>, bell: Bell, waker: Waker) -> Ringing {
        Ringing { producer, bell, waker }
    }

    /// Rings the bell, and wakes the consumer if it sleeps.
    #[cold]
    #[inline(never)]
    fn ring(&mut self) {
        if self.bell.ring() {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        WAKES.set(WAKES.get().wrapping_add(1));
        // This fails only if the consumer gave us a wrong descriptor or does not read. Then it sleeps on, by its own fault.
        match &self.waker {
            Waker::Event(eventfd) => _ = rustix::io::write(eventfd.checked(), &1u64.to_ne_bytes()),
            Waker::Socket(socket) => {
                let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                let _ = rustix::net::send(socket.checked(), &Message::Wake.to_bytes(), flags);
            }
        }
    }
}

#[doc(hidden)]
impl Tx for Ringing {
    #[inline(always)]
    fn push(&mut self, head: Head, args: &[u32], payload: &[u8]) -> Result<(), PushError> {
        self.producer.push(head, args, payload)?;
        self.signal();
        Ok(())
    }

    #[inline(always)]
    fn push_small(&mut self, head: Head, args: &[u32], payload: &[u8]) -> bool {
        self.producer.push_small(head, args, payload)
    }

    #[inline(always)]
    fn signal(&mut self) {
        if self.producer.wants_bell() {
            self.ring();
        }
    }

    #[inline(always)]
    fn is_far(&self) -> bool {
        self.producer.is_far
    }

    fn has_room(&mut self, lines: u32) -> bool {
        self.producer.has_room(lines)
    }

    fn abandoned(&mut self) -> Vec<Abandoned> {
        self.producer.abandoned()
    }

    fn traffic(&mut self) -> Traffic {
        self.producer.traffic()
    }

    fn rest(&mut self) {
        self.producer.give_back_arena();
    }
}
