//! The interface between a job and a bundle, of whichever kind.

use crate::team::Team;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};
use weft::client::{Outlet, State};
use weft::{AnyThread, Bundle, Endpoint, Error, Key, Name, OneThread, SharedBundle, Waited};

/// How long a process polls after a sleep before it sleeps again. The message that woke it woke other ranks too, and it needs theirs next.
const AWAKE: Duration = Duration::from_millis(1);

/// A bundle that a [`Job`](crate::Job) can use: a [`Bundle`], or a handle of a [`SharedBundle`].
pub trait Carrier: sealed::Sealed {}

impl Carrier for Bundle<OneThread> {}
impl Carrier for Bundle<AnyThread> {}
impl Carrier for SharedBundle {}

pub(crate) mod sealed {
    use super::{Duration, Endpoint, Error, Key, Name, Outlet, State, Team, Waited};

    /// The calls, which only this crate makes.
    pub trait Sealed {
        /// Makes an endpoint for the job's own messages.
        #[doc(hidden)]
        fn make_team(&mut self, rank: u32, size: u32) -> Result<Endpoint, Error>;
        #[doc(hidden)]
        fn with_team<R>(
            &mut self,
            endpoint: Endpoint,
            run: impl FnOnce(&mut Team, &mut State<Outlet>) -> R,
        ) -> Result<R, Error>;
        #[doc(hidden)]
        fn contact(&mut self, endpoint: Endpoint) -> Result<(Name, Key), Error>;
        #[doc(hidden)]
        fn enter(&mut self, endpoint: Endpoint, index: u32, name: Name, key: Key) -> Result<(), Error>;
        #[doc(hidden)]
        fn poll_once(&mut self) -> Result<(), Error>;
        /// Waits until something comes, for at most that time.
        #[doc(hidden)]
        fn wait_once(&mut self, most: Duration) -> Result<Waited, Error>;
        /// Ends the program's next wait.
        #[doc(hidden)]
        fn nudge(&self);
    }
}

macro_rules! bundle_carries {
    ($bundle:ty) => {
        impl sealed::Sealed for $bundle {
            fn make_team(&mut self, rank: u32, size: u32) -> Result<Endpoint, Error> {
                let endpoint = self.endpoint_with_random_key()?;
                self.attach(endpoint, Team::new(endpoint, rank, size))?;
                Ok(endpoint)
            }

            fn with_team<R>(
                &mut self,
                endpoint: Endpoint,
                run: impl FnOnce(&mut Team, &mut State<Outlet>) -> R,
            ) -> Result<R, Error> {
                let (team, state) = self.client::<Team>(endpoint)?;
                Ok(run(team, state))
            }

            fn contact(&mut self, endpoint: Endpoint) -> Result<(Name, Key), Error> {
                Ok((self.name(endpoint)?, self.key(endpoint)?))
            }

            fn enter(&mut self, endpoint: Endpoint, index: u32, name: Name, key: Key) -> Result<(), Error> {
                self.map(endpoint, index, name, key)
            }

            fn poll_once(&mut self) -> Result<(), Error> {
                self.poll();
                Ok(())
            }

            fn wait_once(&mut self, most: Duration) -> Result<Waited, Error> {
                Ok(self.wait(Some(most)))
            }

            fn nudge(&self) {
                self.waker().wake();
            }
        }
    };
}

bundle_carries!(Bundle<OneThread>);
bundle_carries!(Bundle<AnyThread>);

impl sealed::Sealed for SharedBundle {
    fn make_team(&mut self, rank: u32, size: u32) -> Result<Endpoint, Error> {
        let endpoint = self.endpoint_with_random_key()?;
        self.attach(endpoint, Team::new(endpoint, rank, size))?;
        Ok(endpoint)
    }

    fn with_team<R>(
        &mut self,
        endpoint: Endpoint,
        run: impl FnOnce(&mut Team, &mut State<Outlet>) -> R,
    ) -> Result<R, Error> {
        self.with_client(endpoint, run)
    }

    fn contact(&mut self, endpoint: Endpoint) -> Result<(Name, Key), Error> {
        Ok((self.name(endpoint)?, self.key(endpoint)?))
    }

    fn enter(&mut self, endpoint: Endpoint, index: u32, name: Name, key: Key) -> Result<(), Error> {
        self.map(endpoint, index, name, key)
    }

    fn poll_once(&mut self) -> Result<(), Error> {
        self.poll()?;
        Ok(())
    }

    fn wait_once(&mut self, most: Duration) -> Result<Waited, Error> {
        Ok(self.wait(Some(most))?)
    }

    fn nudge(&self) {
        self.waker().wake();
    }
}

/// Polls and waits until `done` returns a result. Until then `done` returns how long the next wait may be. A waker that the program uses
/// meanwhile ends the program's next wait, not this one.
pub(crate) fn wait_until<C: Carrier, R>(
    bundle: &mut C,
    mut done: impl FnMut(&mut C) -> Result<ControlFlow<R, Duration>, Error>,
) -> Result<R, Error> {
    let (mut was_nudged, mut woke) = (false, None::<Instant>);
    // Handlers run even if there is nobody to wait for, as in a job of one.
    bundle.poll_once()?;
    let result = loop {
        let most = match done(bundle) {
            Ok(ControlFlow::Continue(most)) => most,
            Ok(ControlFlow::Break(result)) => break Ok(result),
            Err(error) => break Err(error),
        };
        if woke.is_some_and(|woke| woke.elapsed() < AWAKE) {
            bundle.poll_once()?;
            std::thread::yield_now();
            continue;
        }
        let begin = Instant::now();
        let waited = bundle.wait_once(most)?;
        let end = Instant::now();
        was_nudged |= waited == Waited::Nothing && end - begin < most;
        // Not after a timeout, when nobody was woken.
        woke = (waited != Waited::Nothing).then_some(end);
    };
    if was_nudged {
        bundle.nudge();
    }
    result
}
