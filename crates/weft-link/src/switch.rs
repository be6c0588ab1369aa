//! The dead man's switch of a link: a timer that the link's user winds up while it is active. If the timer runs down, the user's deputy
//! stands in for it (docs/design/helper.md).

use rustix::io::Errno;
use rustix::time::{
    timerfd_create, timerfd_settime, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec,
};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use weft_shm::Descriptor;

/// How long a wound switch runs.
pub const SWITCH: Duration = Duration::from_millis(3);

/// Shows a bundle's deputy that the bundle is active.
#[derive(Debug)]
pub struct Switch {
    /// The deputy rests, so the bundle winds the switch when it does something.
    is_resting: AtomicBool,
    /// How often the switch was wound. Counted before the timer is set.
    windings: AtomicU64,
    /// Watched by the helper for edges, so nobody ever reads it.
    timer: Descriptor,
}

impl Switch {
    /// A switch for a deputy that rests.
    ///
    /// # Errors
    /// If the kernel gives no descriptor.
    pub fn new() -> Result<Switch, Errno> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = Descriptor::make(|| timerfd_create(TimerfdClockId::Monotonic, flags))?;
        Ok(Switch { is_resting: AtomicBool::new(true), windings: AtomicU64::new(0), timer })
    }

    /// The bundle did something that the deputy should know of. Winds the switch if the deputy rests, and returns whether it did. Otherwise
    /// it costs one load.
    #[inline(always)]
    pub fn notice(&self) -> bool {
        // Relaxed: the deputy issues a barrier after it has said that it rests, and looks again.
        let is_resting = self.is_resting.load(Ordering::Relaxed);
        if is_resting {
            self.wind();
        }
        is_resting
    }

    /// Winds the switch up: it runs down [`SWITCH`] from now. A system call.
    #[cold]
    #[inline(never)]
    pub fn wind(&self) {
        self.is_resting.store(false, Ordering::Relaxed);
        // Before the timer is set, so that a deputy that sees the count may rely on the timer. Release pairs with the acquire in
        // `windings`.
        self.windings.fetch_add(1, Ordering::Release);
        let once = Timespec { tv_sec: 0, tv_nsec: SWITCH.subsec_nanos().into() };
        let never = Timespec { tv_sec: 0, tv_nsec: 0 };
        // It fails only if the descriptor is no timer.
        let _ = timerfd_settime(
            self.timer.checked(),
            TimerfdTimerFlags::empty(),
            &Itimerspec { it_interval: never, it_value: once },
        );
    }

    /// Becomes readable when it has run down.
    pub fn timer(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }

    /// How often it was wound. A caller that sees the count also sees what the program did before it wound the switch.
    pub fn windings(&self) -> u64 {
        self.windings.load(Ordering::Acquire)
    }

    /// The deputy rests from now on, or does not. A deputy that rests issues a barrier and looks again.
    pub fn rest(&self, is_resting: bool) {
        self.is_resting.store(is_resting, Ordering::SeqCst);
    }

    /// The deputy stands in for the program, which need not wind the switch.
    pub fn stand_in(&self) {
        self.is_resting.store(false, Ordering::Relaxed);
    }
}
