//! A barrier between two processes for which only one side pays. Before it sleeps, the consumer has the kernel interrupt every thread
//! that may be publishing at this moment. The producer, which sends many messages for each sleep, only keeps the compiler from changing
//! the order.
//!
//! A fence on the producer's side would instead wait for the published line to come from the consumer's cache: 100 ns and more for
//! each message. See membarrier(2): MEMBARRIER_CMD_GLOBAL_EXPEDITED between processes, MEMBARRIER_CMD_PRIVATE_EXPEDITED between the
//! threads of one.
//!
//! The global command is not used for both, because on Linux 6.18 it can miss a core. If a thread of a registered process ends on a core,
//! the core forgets the registration, and learns it anew only when another process has run there. So between processes the barrier may
//! be missing, and a consumer that relies on it must not sleep for ever.

use rustix::thread::{membarrier, MembarrierCommand};
use std::sync::atomic::{compiler_fence, Ordering};

/// Registers this process, so that [`heavy`] and [`heavy_here`] reach its threads. Call it before anything is published, best while the
/// process has one thread: then it takes a microsecond, later milliseconds. False if the kernel does not allow it: then messages of this
/// process may not wake a consumer that sleeps.
pub fn register() -> bool {
    membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok()
        && membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok()
}

/// The consumer's side: a full barrier here, and in every thread of a registered process between two of its instructions. (It can miss a
/// core: see the head of the module.) Takes some microseconds. False if the kernel does not allow it: then there was no barrier.
pub fn heavy() -> bool {
    membarrier(MembarrierCommand::GlobalExpedited).is_ok()
}

/// As [`heavy`], in every thread of this process. False if the process is not registered: then there was no barrier.
pub fn heavy_here() -> bool {
    membarrier(MembarrierCommand::PrivateExpedited).is_ok()
}

/// The producer's side: only the compiler is told.
#[inline(always)]
pub fn light() {
    compiler_fence(Ordering::SeqCst);
}
