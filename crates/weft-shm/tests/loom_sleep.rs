//! Falling asleep while others send, in every interleaving and with every value that the memory model lets a load return:
//! the consumer's last look before the sleep finds the record, or the sender wakes the consumer.
//!
//! The bell is the one that ships, over loom's memory. The kernel's barrier takes effect between any two instructions of the
//! producer. Here it is a fence on each side: the consumer's where it issues the barrier, the producer's at each light barrier of
//! the ring and the bell. Planted faults show that the models would find a missing barrier.
//!
//! Runs by `RUSTFLAGS="--cfg loom" cargo test -p weft-shm --release --test loom_sleep`.
#![cfg(loom)]

use loom::sync::atomic::{fence, AtomicBool, AtomicU32, AtomicU64, Ordering};
use loom::sync::Arc;
use loom::thread;
use std::panic::{catch_unwind, AssertUnwindSafe};
use weft_shm::{Bell, BellMem};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    None,
    /// The producer looks for attention before its record is visible.
    NoBarrierBehindTheRecord,
    /// The producer looks whether the consumer sleeps before its bell is visible.
    NoBarrierBehindTheBell,
    /// The consumer looks a last time before all producers can see that it sleeps.
    NoBarrierBeforeTheLook,
}

/// What a producer and a consumer share.
struct Shared {
    header: AtomicU64,
    attention: AtomicBool,
    bell: AtomicBool,
    armed: AtomicU32,
    woken: AtomicBool,
    fault: Fault,
}

impl Shared {
    fn new(fault: Fault, attention: bool) -> Arc<Shared> {
        Arc::new(Shared {
            header: AtomicU64::new(0),
            attention: AtomicBool::new(attention),
            bell: AtomicBool::new(false),
            armed: AtomicU32::new(0),
            woken: AtomicBool::new(false),
            fault,
        })
    }

    fn barrier_unless(&self, fault: Fault) {
        if self.fault != fault {
            fence(Ordering::SeqCst);
        }
    }

    /// Sends a record as `Ringing` does.
    fn send(&self, bell: &mut Bell<Page>) {
        self.header.store(1, Ordering::Release);
        self.barrier_unless(Fault::NoBarrierBehindTheRecord);
        if self.attention.load(Ordering::Relaxed) && bell.ring() {
            self.woken.store(true, Ordering::Relaxed);
        }
    }
}

struct Page(Arc<Shared>);

impl BellMem for Page {
    fn ring(&self, _index: u32) {
        self.0.bell.store(true, Ordering::Release);
    }

    fn armed(&self) -> u32 {
        self.0.armed.load(Ordering::Relaxed)
    }

    fn light_barrier(&self) {
        self.0.barrier_unless(Fault::NoBarrierBehindTheBell);
    }
}

/// A consumer falls asleep while a producer sends. `knew_before` if the ring's producer was asked to ring before an earlier
/// barrier: then only its bell is looked at, not the ring.
fn falls_asleep(fault: Fault, knew_before: bool) {
    loom::model(move || {
        let shared = Shared::new(fault, knew_before);
        let theirs = shared.clone();
        let sending = thread::spawn(move || theirs.send(&mut Bell::of(Page(theirs.clone()), 0)));
        shared.attention.store(true, Ordering::Relaxed);
        shared.armed.store(1, Ordering::Relaxed);
        shared.barrier_unless(Fault::NoBarrierBeforeTheLook);
        let found = match knew_before {
            true => shared.bell.load(Ordering::Relaxed),
            false => shared.header.load(Ordering::Acquire) != 0,
        };
        sending.join().expect("the producer");
        assert!(found || shared.woken.load(Ordering::Relaxed), "asleep for ever");
    });
}

fn finds(fault: Fault, knew_before: bool) -> bool {
    catch_unwind(AssertUnwindSafe(|| falls_asleep(fault, knew_before))).is_err()
}

#[test]
fn a_consumer_that_falls_asleep_finds_the_record_or_is_woken() {
    falls_asleep(Fault::None, false);
}

#[test]
fn a_bell_alone_is_enough_where_it_was_asked_for_before() {
    falls_asleep(Fault::None, true);
}

#[test]
fn a_missing_barrier_is_found() {
    assert!(finds(Fault::NoBarrierBehindTheRecord, false));
    assert!(finds(Fault::NoBarrierBeforeTheLook, false));
    assert!(finds(Fault::NoBarrierBeforeTheLook, true));
    assert!(finds(Fault::NoBarrierBehindTheBell, true));
}
