//! The service thread of a shared bundle: it polls while the program does not, so that peers reach its regions while it computes.
//!
//! The program comes first. While its threads poll or wait, the service thread only checks once a millisecond whether they still
//! do. After a millisecond without a poll it leads, as a waiting thread does: it sleeps until something comes, takes it, and sleeps
//! again. If a thread of the program then begins to wait, the service thread hands it the lead.

use super::lead::{Lead, Wait};
use super::lock::{Common, Locked};
use super::SharedBundle;
use crate::bundle::Bundle;
use crate::node::{Error, Node};
use crate::settings;
use crate::watch::spawn_without_signals;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use weft_core::Settings;

/// How often the service thread checks whether the program still polls. After this long without a poll it serves.
const TICK: Duration = Duration::from_millis(1);

/// The longest time that it sleeps while a thread of the program waits: bounds the delay if a panic ended that thread.
const DEEP_MOST: Duration = Duration::from_millis(500);

/// Handlers of the program run in the service thread.
const STACK_BYTES: usize = 2 << 20;

/// What ends the service thread with the last handle of its bundle.
#[derive(Debug)]
pub(super) struct Keeper {
    common: Arc<Common>,
    thread: Option<JoinHandle<()>>,
}

impl SharedBundle {
    /// Makes a shared bundle with a thread of its own that polls while the program does not: a *serviced* bundle. Messages, and
    /// peers' reads and writes of [regions](crate::memory), are then handled while the program computes, after at most a
    /// millisecond. Handlers may run in that thread. A handler that panics there ends it, and from then on the bundle makes
    /// progress only when the program polls. There is no order between messages of this bundle and of others in the process,
    /// because each bundle has its own sessions.
    ///
    /// With `WEFT_SERVICE=off` there is no such thread, and the bundle makes progress only when the program polls.
    ///
    /// ```
    /// use weft::memory::{Place, RegionKey, Rights, Settings, Write};
    /// use weft::{Bundle, Key, Node, SharedBundle};
    ///
    /// let node = Node::new()?;
    /// let bundle = SharedBundle::serviced(&node)?;
    /// let owner = bundle.memory_endpoint(Key(1), Settings::default())?;
    /// let window = bundle.with_memory(owner, |m| m.allocate(64, RegionKey(1), Rights::ALL))??.1;
    /// // Nobody polls that bundle here.
    /// let mut other = Bundle::new(&node)?;
    /// let me = other.memory_endpoint(Key(2), Settings::default())?;
    /// other.map(me, 0, bundle.name(owner)?, Key(1))?;
    /// let write = Write::to(Place::new(RegionKey(1), 0));
    /// other.memory(me)?.try_write(0, write, b"written".to_vec(), 0).map_err(|(error, _)| error)?;
    /// other.poll_until(|other| other.memory(me).is_ok_and(|mut m| m.next_completion().is_some()));
    /// let mut seen = [0; 7];
    /// assert!(window.read(0, &mut seen));
    /// assert_eq!(&seen, b"written");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Bundle::with_settings`], and if the thread cannot be started.
    pub fn serviced(node: &Node) -> Result<SharedBundle, Error> {
        SharedBundle::serviced_with_settings(node, Settings::default())
    }

    /// As [`SharedBundle::serviced`], with settings.
    ///
    /// # Errors
    /// As [`SharedBundle::serviced`].
    pub fn serviced_with_settings(node: &Node, settings: Settings) -> Result<SharedBundle, Error> {
        // Before anything is made, because it fails for an invalid setting.
        settings::is_on(settings::SERVICE)?;
        let mut shared = SharedBundle::from(Bundle::for_any_thread(node, settings)?);
        shared.start_service()?;
        Ok(shared)
    }

    /// Turns this bundle into a [serviced](SharedBundle::serviced) one, for programs that decide later that peers should reach them
    /// while they compute. Handles that were cloned earlier do not keep the thread alive; it ends with this one and those cloned
    /// from it. Does nothing if this handle has a thread, or with `WEFT_SERVICE=off`.
    ///
    /// # Errors
    /// If the thread cannot be started. The bundle stays as it was.
    pub fn start_service(&mut self) -> Result<(), Error> {
        if self.keeper.is_none() && settings::is_on(settings::SERVICE)? {
            self.keeper = Some(Arc::new(Keeper::start(&self.common)?));
        }
        Ok(())
    }
}

impl Keeper {
    fn start(common: &Arc<Common>) -> Result<Keeper, Error> {
        let served = common.clone();
        let thread = spawn_without_signals("weft-service", STACK_BYTES, move || served.serve()).map_err(|error| {
            let way_out =
                "raise the limit of threads or memory (ulimit -u, -v), or use a bundle without one: WEFT_SERVICE=off";
            Error::system("cannot start the service thread of a bundle", error, way_out)
        })?;
        Ok(Keeper { common: common.clone(), thread: Some(thread) })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if self.common.life.is_over() {
            // A forked child has no such thread.
            return std::mem::forget(thread);
        }
        self.common.service_is_over.store(true, Ordering::Release);
        self.common.waker.ring();
        self.common.rest.notify_all();
        if thread.thread().id() != std::thread::current().id() {
            // It ends after its current poll. A panic in it was reported when it happened.
            let _ = thread.join();
        }
    }
}

impl Common {
    /// The service thread's loop.
    fn serve(&self) {
        let mut seen = None;
        while !self.service_is_over.load(Ordering::Acquire) {
            self.serve_once(&mut seen);
        }
    }

    fn serve_once(&self, seen: &mut Option<u64>) {
        let mut locked = self.wait_for_lock();
        let visits = locked.visits;
        let is_attended = seen.replace(visits) != Some(visits);
        match locked.lead {
            Lead::Free if !is_attended => {
                locked.serves = true;
                let since = locked.bundle.core.state().tally().without_room();
                let wait = Wait { since, nudges: None, begin: Instant::now(), most: Duration::MAX, spins: false };
                let led = self.lead(locked, &wait);
                if let Ok(mut locked) = led {
                    (locked.serves, locked.lead_is_wanted) = (false, false);
                    let ((), tell) = self.finish(locked, |_| ());
                    self.tell(tell);
                }
            }
            Lead::Free => self.rest(locked, TICK),
            // A thread of the program waits, and may do so for long.
            _ if !is_attended => {
                locked.service_rests = true;
                self.rest(locked, DEEP_MOST);
            }
            _ => self.rest(locked, TICK),
        }
    }

    /// Sleeps for at most `most`.
    fn rest(&self, locked: Locked<'_>, most: Duration) {
        if self.service_is_over.load(Ordering::Acquire) {
            return;
        }
        let Locked { _holding, guard } = locked;
        drop(_holding);
        let (guard, _) = self.rest.wait_timeout(guard, most).unwrap_or_else(PoisonError::into_inner);
        let mut locked = self.hold(guard);
        locked.service_rests = false;
    }
}
