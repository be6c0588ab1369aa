//! A barrier between two processes of which one pays: before it sleeps the consumer has the kernel interrupt every thread
//! that may be publishing at this moment; the producer, for which each message counts, only keeps the compiler from changing
//! the order.
//!
//! A fence on the producer's side instead would wait for the published line to come from the consumer's cache: 100 ns and
//! more for each message. See membarrier(2): MEMBARRIER_CMD_GLOBAL_EXPEDITED between processes, and between the threads of one
//! MEMBARRIER_CMD_PRIVATE_EXPEDITED.
//!
//! Why not the former for both: Linux 6.18 leaves a core out on which a thread of a registered process has ended, for as long as only threads
//! of the same process run there (the core forgets the registration when the thread gives its memory back, and learns it anew
//! only from another process's). So between processes the barrier may be missing, and who sleeps for it does not sleep for ever.

use rustix::thread::{membarrier, MembarrierCommand};
use std::sync::atomic::{compiler_fence, Ordering};

/// Makes this process one that [`heavy`] reaches, and its threads ones that [`heavy_here`] does. To be called once, before anything is
/// published; best while the process has one thread, for then it takes a microsecond and later milliseconds. False if the kernel
/// does not allow it: then who sleeps and is sent something by this process may not be woken.
pub fn register() -> bool {
    membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok()
        && membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok()
}

/// The consumer's side: a full barrier here, and in every thread of a registered process (but see the module's head), somewhere between two of its
/// instructions. Some microseconds. False if the kernel does not allow it: then nothing is known of the others.
pub fn heavy() -> bool {
    membarrier(MembarrierCommand::GlobalExpedited).is_ok()
}

/// As [`heavy`], in every thread of this process. False if it is not registered: then nothing is known of the others.
pub fn heavy_here() -> bool {
    membarrier(MembarrierCommand::PrivateExpedited).is_ok()
}

/// The producer's side.
#[inline(always)]
pub fn light() {
    compiler_fence(Ordering::SeqCst);
}
