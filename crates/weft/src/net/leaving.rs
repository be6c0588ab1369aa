//! The exit of a process whose bundles were not dropped: it waits, within their linger times, until other hosts have acknowledged
//! everything. The bundles' threads may be gone or busy, so this uses their network interfaces as a deputy does.

use super::deputy::take_in;
use super::shared::Interface;
use crate::node::lock;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};
use weft_link::RECEIVE_BYTES;
use weft_shm::biased::Visitor;
use weft_shm::exit::at_exit;
use weft_shm::fork::without_forks;
use weft_shm::Life;

/// Time between two checks of an interface with unacknowledged packets.
const LOOK_EVERY: Duration = Duration::from_micros(200);

/// An interface, and how long an exit waits for it.
#[derive(Debug)]
struct Leaving {
    life: Life,
    interface: Weak<Visitor<Interface>>,
    linger: Duration,
}

/// The network interfaces of this process. Locked only while no other thread can fork, so that a child does not find it locked.
static ALL: Mutex<Vec<Leaving>> = Mutex::new(Vec::new());

/// Has the process wait for the interface when it exits, for as long as the bundle keeps the handle.
pub(super) fn wait_at_exit(interface: Visitor<Interface>, linger: Duration) -> Arc<Visitor<Interface>> {
    let interface = Arc::new(interface);
    let leaving = Leaving { life: Life::current(), interface: Arc::downgrade(&interface), linger };
    without_forks(|| {
        let mut all = lock(&ALL);
        all.retain(|other| other.interface.strong_count() > 0);
        all.push(leaving);
        at_exit(see_off);
    });
    interface
}

/// Waits until other hosts have acknowledged everything, or the linger times are over.
extern "C" fn see_off() {
    let begin = Instant::now();
    let mut left = without_forks(|| std::mem::take(&mut *lock(&ALL)));
    left.retain(|leaving| !leaving.life.is_over());
    let mut buffer = Vec::new();
    loop {
        left.retain(|leaving| begin.elapsed() < leaving.linger && !has_come(leaving, &mut buffer));
        if left.is_empty() {
            return;
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Whether other hosts have acknowledged everything. Takes in packets, and sends what is due.
fn has_come(leaving: &Leaving, buffer: &mut Vec<u8>) -> bool {
    let interface = leaving.interface.upgrade().filter(|interface| interface.may_visit());
    let Some(interface) = interface else { return true };
    // If another thread uses it now, the next check sees the result.
    let has_come = interface.try_with(|ni| {
        if ni.is_acknowledged() || ni.link().has_lost_its_sockets() {
            return true;
        }
        buffer.resize(RECEIVE_BYTES, 0);
        take_in(ni, buffer);
        ni.flush_and_acknowledge();
        ni.is_acknowledged()
    });
    has_come.unwrap_or(false)
}
