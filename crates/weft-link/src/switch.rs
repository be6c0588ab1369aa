//! The switch by which who uses a link lets know that it is there.

use rustix::io::Errno;
use rustix::time::{
    timerfd_create, timerfd_settime, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec,
};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use weft_shm::Descriptor;

/// How long the program's switch runs.
pub const SWITCH: Duration = Duration::from_millis(3);

/// How a bundle lets its deputy know that it is there.
#[derive(Debug)]
pub struct Switch {
    /// The deputy rests: whoever does something winds the switch.
    is_resting: AtomicBool,
    /// How often it was wound; counted before it is.
    windings: AtomicU64,
    /// Watched by the helper for edges, so nobody ever reads it.
    timer: Descriptor,
}

impl Switch {
    /// For a deputy that rests.
    ///
    /// # Errors
    /// If the kernel gives no descriptor.
    pub fn new() -> Result<Switch, Errno> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = Descriptor::make(|| timerfd_create(TimerfdClockId::Monotonic, flags))?;
        Ok(Switch { is_resting: AtomicBool::new(true), windings: AtomicU64::new(0), timer })
    }

    /// The bundle did something that the deputy should know of. One load, but for a deputy that rests. Returns true if
    /// the switch was wound.
    #[inline(always)]
    pub fn notice(&self) -> bool {
        // Relaxed: the deputy issues a barrier after it has said that it rests, and looks again.
        let is_resting = self.is_resting.load(Ordering::Relaxed);
        if is_resting {
            self.wind();
        }
        is_resting
    }

    /// Winds it up: it runs down [`SWITCH`] from now. A system call.
    #[cold]
    #[inline(never)]
    pub fn wind(&self) {
        self.is_resting.store(false, Ordering::Relaxed);
        // Before it is wound, so that whoever sees the count may rely on the switch. Release pairs with the acquire in `tick`.
        self.windings.fetch_add(1, Ordering::Release);
        let once = Timespec { tv_sec: 0, tv_nsec: SWITCH.subsec_nanos().into() };
        let never = Timespec { tv_sec: 0, tv_nsec: 0 };
        // It fails for no timer that is one.
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

    /// How often it was wound. What the program did before it wound the switch is seen by whoever sees the count.
    pub fn windings(&self) -> u64 {
        self.windings.load(Ordering::Acquire)
    }

    /// The deputy rests from now on, or does not. A deputy that rests issues a barrier and looks again.
    pub fn rest(&self, is_resting: bool) {
        self.is_resting.store(is_resting, Ordering::SeqCst);
    }

    /// The deputy stands in for the program, which need not wind.
    pub fn stand_in(&self) {
        self.is_resting.store(false, Ordering::Relaxed);
    }
}
