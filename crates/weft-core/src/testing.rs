//! Paths in ordinary memory, for tests and simulation: bounded queues with the semantics of the ring but not its layout.
//!
//! Like the ring, a path frees the lines of a record late: with [`Rx::release`], or when an eighth of it was popped.
//! Until then the last record that was looked at counts as the one in hand, popped or not.

use crate::long::Memory;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use weft_wire::path::{Abandoned, Bells, Fate, Glance, Peek, PushError, Record, Rx, Traffic, Tx};
use weft_wire::record::{lines, LINE, MAX_ARGS};
use weft_wire::{Head, MAX_PAYLOAD};

#[derive(Debug, Default)]
struct Queue {
    records: VecDeque<Rc<Abandoned>>,
    /// Records that were looked at and whose lines are not free yet, oldest first, with their fate should the consumer die.
    taken_up: VecDeque<(Rc<Abandoned>, Fate)>,
    /// Lines that are not free for the producer.
    lines: u32,
    /// The part of `lines` that was popped since lines were last freed.
    popped: u32,
    /// Held records, oldest first; and the number of the oldest ones that had to be dropped.
    held: VecDeque<Rc<Abandoned>>,
    dropped: u32,
    /// Lines of all records so far.
    pushed: u64,
    room: u32,
    is_broken: bool,
}

/// The writing end of a queue.
#[derive(Debug)]
pub struct MemTx {
    queue: Rc<RefCell<Queue>>,
    neighbour: Option<NonZeroU32>,
}

/// The reading end of a queue. Dropping it leaves the queue as a dead consumer would.
#[derive(Debug)]
pub struct MemRx {
    queue: Rc<RefCell<Queue>>,
    in_hand: Option<Rc<Abandoned>>,
}

/// A segment in ordinary memory. Clones share the bytes.
#[derive(Clone, Debug, Default)]
pub struct Bytes(Arc<Mutex<Vec<u8>>>);

/// Bells that never ring; the bundle's full scan finds what they miss.
#[derive(Debug, Default)]
pub struct NoBells;

/// A path that holds records of `room` lines in all.
pub fn path(room: u32) -> (MemTx, MemRx) {
    let queue = Rc::new(RefCell::new(Queue { room, ..Queue::default() }));
    (MemTx { queue: queue.clone(), neighbour: None }, MemRx { queue, in_hand: None })
}

impl Bytes {
    /// `len` bytes, all zero.
    pub fn new(len: usize) -> Bytes {
        Bytes(Arc::new(Mutex::new(vec![0; len])))
    }

    /// The current bytes.
    pub fn all(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[doc(hidden)] // for the documentation of crates that re-export the trait
impl Memory for Bytes {
    fn len(&self) -> u64 {
        self.all().len() as u64
    }

    fn read(&self, at: u64, to: &mut [u8]) -> bool {
        let (at, all) = (at as usize, self.all());
        let from = at.checked_add(to.len()).and_then(|end| all.get(at..end));
        from.map(|from| to.copy_from_slice(from)).is_some()
    }

    fn write(&self, at: u64, bytes: &[u8]) -> bool {
        let (at, mut all) = (at as usize, self.all());
        let to = at.checked_add(bytes.len()).and_then(|end| all.get_mut(at..end));
        to.map(|to| to.copy_from_slice(bytes)).is_some()
    }
}

impl Queue {
    /// Drops held records while they and the records after them take more than half of the room.
    fn drop_held(&mut self, in_hand: Option<&Rc<Abandoned>>) {
        while let Some(first) = self.held.front() {
            let behind = self.taken_up.iter().skip_while(|(r, _)| !Rc::ptr_eq(r, first)).map(|(r, _)| r);
            let lines: u32 = behind.filter(|r| in_hand.is_none_or(|h| !Rc::ptr_eq(r, h))).map(|r| r.head.lines()).sum();
            if lines <= self.room / 2 {
                break;
            }
            self.held.pop_front();
            self.dropped += 1;
        }
    }
}

impl MemRx {
    /// Whether held records had to be dropped before they were let go.
    pub fn has_dropped(&self) -> bool {
        self.queue.borrow().dropped > 0
    }
}

impl MemTx {
    /// Marks the path as leading to a process that can be trusted with memory.
    #[must_use]
    pub fn to_process(self, process: NonZeroU32) -> MemTx {
        MemTx { neighbour: Some(process), ..self }
    }

    /// Makes every further push fail as if the consumer had written nonsense.
    pub fn break_it(&self) {
        self.queue.borrow_mut().is_broken = true;
    }
}

#[doc(hidden)]
impl Tx for MemTx {
    fn push(&mut self, head: Head, args: &[u32], payload: &[u8]) -> Result<(), PushError> {
        if args.len() > MAX_ARGS || payload.len() > MAX_PAYLOAD {
            return Err(PushError::TooLarge);
        }
        let mut queue = self.queue.borrow_mut();
        let need = lines(args.len(), payload.len());
        if queue.is_broken {
            return Err(PushError::Broken);
        }
        if queue.lines + need > queue.room {
            return Err(PushError::Full);
        }
        queue.lines += need;
        queue.pushed += u64::from(need);
        let head = Head { args: args.len() as u8, len: payload.len() as u32, ..head };
        queue.records.push_back(Rc::new(Abandoned {
            head,
            args: args.to_vec(),
            payload: payload.to_vec(),
            fate: Fate::Untouched,
        }));
        Ok(())
    }

    fn push_small(&mut self, head: Head, args: &[u32], payload: &[u8]) -> bool {
        self.push(head, args, payload).is_ok()
    }

    fn neighbour(&self) -> Option<NonZeroU32> {
        self.neighbour
    }

    fn has_room(&mut self, lines: u32) -> bool {
        let queue = self.queue.borrow();
        queue.is_broken || queue.lines == 0 || queue.lines + lines <= queue.room
    }

    fn abandoned(&mut self) -> Vec<Abandoned> {
        let mut queue = self.queue.borrow_mut();
        let taken_up = std::mem::take(&mut queue.taken_up);
        let taken_up = taken_up.into_iter().map(|(r, fate)| Abandoned { fate, ..Abandoned::clone(&r) });
        let untouched = queue.records.drain(..).map(|r| Abandoned::clone(&r));
        taken_up.skip_while(|r| r.fate == Fate::Done).chain(untouched).collect()
    }

    fn traffic(&mut self) -> Traffic {
        let Queue { pushed, lines, .. } = *self.queue.borrow();
        Traffic { pushed: pushed * LINE as u64, taken: (pushed - u64::from(lines)) * LINE as u64 }
    }

    fn rest(&mut self) {}
}

impl Rx for MemRx {
    fn peek(&mut self) -> Peek<'_> {
        if self.in_hand.is_none() {
            let mut queue = self.queue.borrow_mut();
            self.in_hand = queue.records.pop_front();
            if let Some(record) = &self.in_hand {
                if let Some((_, fate @ Fate::InHand)) = queue.taken_up.back_mut() {
                    *fate = Fate::Done;
                }
                queue.taken_up.push_back((record.clone(), Fate::InHand));
            }
        }
        match &self.in_hand {
            None => Peek::Empty,
            Some(r) => Peek::Record(Record { head: r.head.into(), args: &r.args, payload: &r.payload }),
        }
    }

    fn glance(&mut self) -> Glance<'_> {
        match self.peek() {
            Peek::Record(record) if record.head.lines() == 1 => Glance::Record(record),
            Peek::Empty => Glance::Empty,
            _ => Glance::More,
        }
    }

    fn pop(&mut self) {
        if let Some(record) = self.in_hand.take() {
            let mut queue = self.queue.borrow_mut();
            queue.popped += record.head.lines();
            if queue.popped < queue.room / 8 {
                return;
            }
        }
        self.release();
    }

    fn hold(&mut self, reason: u8) {
        let mut queue = self.queue.borrow_mut();
        if let (Some(record), Some((_, fate))) = (&self.in_hand, queue.taken_up.back_mut()) {
            *fate = Fate::Refused(reason);
            queue.held.push_back(record.clone());
        }
    }

    fn let_go(&mut self, records: u32) {
        for _ in 0..records {
            let queue = &mut *self.queue.borrow_mut();
            match queue.dropped.checked_sub(1) {
                Some(dropped) => queue.dropped = dropped,
                None => _ = queue.held.pop_front(),
            }
        }
        self.release();
    }

    fn release(&mut self) {
        let queue = &mut *self.queue.borrow_mut();
        queue.popped = 0;
        queue.drop_held(self.in_hand.as_ref());
        while let Some((first, _)) = queue.taken_up.front() {
            let is_kept =
                [queue.held.front(), self.in_hand.as_ref()].into_iter().flatten().any(|r| Rc::ptr_eq(r, first));
            if is_kept {
                break;
            }
            queue.lines -= first.head.lines();
            queue.taken_up.pop_front();
        }
    }

    fn set_attention(&mut self, _wanted: bool) {}
}

impl Bells for NoBells {
    fn collect(&mut self, _in_use: u32, _rung: impl FnMut(u32)) {}

    fn arm(&mut self) {}

    fn disarm(&mut self) {}
}
