//! The bundle of a domain. It has no lock as long as only the client's calls poll it. It becomes a shared one once peers may access memory
//! here while the client computes, because then a thread of weft polls it too.

use crate::info::MEMORY_OPERATIONS;
use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;
use weft::memory::Memory;
use weft::tagged::{Ended, Tagged};
use weft::{memory, tagged, AnyThread, Bundle, Endpoint, Error, Key, Name, SharedBundle, Waited, Waker};

/// How many MiB of sent messages an endpoint keeps for receivers that have not asked for them.
const SEND_BUFFER: &str = "WEFT_SEND_BUFFER";
const SEND_BUFFER_RANGE: RangeInclusive<usize> = 1..=1 << 20;
const SEND_BUFFER_MIB: usize = 64;

/// Messages that wait at an endpoint for receives, from all senders together, before each sender gets credit for only a window of its own.
const WAITING_MOST: usize = 1 << 20;

/// Messages up to this many bytes carry their contents. An announced message needs its sender a second time, which is slow when ranks share
/// processors.
const EAGER_MOST: usize = 64 << 10;

/// The settings of endpoints for messages.
///
/// # Errors
/// The fault of a setting.
pub fn message_settings() -> Result<tagged::Settings, String> {
    let mib = match std::env::var_os(SEND_BUFFER).filter(|value| !value.is_empty()) {
        None => SEND_BUFFER_MIB,
        Some(value) => value
            .to_str()
            .and_then(|value| value.trim().parse().ok())
            .filter(|mib| SEND_BUFFER_RANGE.contains(mib))
            .ok_or_else(|| {
                format!("{SEND_BUFFER}={} is not a number of MiB from 1 to {}", value.to_string_lossy(), 1 << 20)
            })?,
    };
    Ok(tagged::Settings {
        // Clients cancel receives themselves when a peer leaves in an orderly way.
        receives_stay: true,
        waiting_most: WAITING_MOST,
        eager_most: EAGER_MOST,
        injected_most: mib << 20,
        ..tagged::Settings::default()
    })
}

/// What a thread can sleep on.
#[derive(Debug)]
pub enum Sleeper {
    /// A descriptor that becomes readable when something comes. Check again after this time in any case.
    Descriptor(i32, Duration),
    /// The bundle's own wait.
    Shared(SharedBundle),
}

/// A domain's bundle.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // one in a domain, and each call uses it
pub enum DomainBundle {
    /// Used by the client's calls alone.
    Own(Bundle<AnyThread>),
    /// Used by a service thread, too.
    Serviced(SharedBundle),
    /// Between the two; only inside `serve`.
    OnTheWay,
}

/// Makes the same call for either kind.
macro_rules! of_either {
    ($bundle:expr, $own:ident => $with_own:expr, $shared:ident => $with_shared:expr) => {
        match $bundle {
            DomainBundle::Own($own) => $with_own,
            DomainBundle::Serviced($shared) => $with_shared,
            DomainBundle::OnTheWay => unreachable!("`serve` leaves one of the others"),
        }
    };
}

/// A domain's bundle, held: see [`DomainBundle::hold`].
pub enum Held<'a> {
    Own(&'a mut Bundle<AnyThread>),
    Shared(weft::Held<'a>),
}

impl Held<'_> {
    #[inline(always)]
    pub fn poll(&mut self) -> u32 {
        match self {
            Held::Own(own) => own.poll(),
            Held::Shared(shared) => shared.poll(),
        }
    }

    /// Completions of messages.
    #[inline(always)]
    pub fn ended(&mut self) -> Ended<'_> {
        match self {
            Held::Own(own) => own.ended(),
            Held::Shared(shared) => shared.ended(),
        }
    }

    #[inline(always)]
    pub fn memory(&mut self, endpoint: Endpoint) -> Result<Memory<'_>, Error> {
        match self {
            Held::Own(own) => own.memory(endpoint),
            Held::Shared(shared) => shared.memory(endpoint),
        }
    }
}

impl DomainBundle {
    /// Makes a thread serve it too, unless one does so already.
    ///
    /// # Errors
    /// If the thread cannot be started. Everything else works as before.
    pub fn serve(&mut self) -> Result<(), Error> {
        self.share();
        of_either!(self, _own => Ok(()), shared => shared.start_service())
    }

    /// Makes it usable by other threads too.
    pub fn share(&mut self) {
        if let DomainBundle::Own(_) = self {
            if let DomainBundle::Own(bundle) = std::mem::replace(self, DomainBundle::OnTheWay) {
                *self = DomainBundle::Serviced(bundle.into());
            }
        }
    }

    /// The shared bundle, if it is one.
    pub fn shared(&self) -> Option<&SharedBundle> {
        of_either!(self, _own => None, shared => Some(shared))
    }

    /// Whether a thread may serve it, too.
    #[inline(always)]
    pub fn is_served(&self) -> bool {
        matches!(self, DomainBundle::Serviced(_))
    }

    /// The bundle for some calls in a row, with its lock if it has one.
    #[inline(always)]
    pub fn hold(&mut self) -> Held<'_> {
        match self {
            DomainBundle::Own(own) => Held::Own(own),
            DomainBundle::Serviced(shared) => Held::Shared(shared.hold().expect("no handler calls this")),
            DomainBundle::OnTheWay => unreachable!("`serve` leaves one of the others"),
        }
    }

    #[inline(always)]
    pub fn tagged<R>(&mut self, endpoint: Endpoint, calls: impl FnOnce(&mut Tagged<'_>) -> R) -> Result<R, Error> {
        let mut held;
        let mut tagged = match self {
            DomainBundle::Own(own) => own.tagged(endpoint)?,
            DomainBundle::Serviced(shared) => {
                held = shared.hold()?;
                held.tagged(endpoint)?
            }
            DomainBundle::OnTheWay => unreachable!("`serve` leaves one of the others"),
        };
        Ok(calls(&mut tagged))
    }

    #[inline(always)]
    pub fn memory<R>(&mut self, endpoint: Endpoint, calls: impl FnOnce(&mut Memory<'_>) -> R) -> Result<R, Error> {
        let mut held;
        let mut memory = match self {
            DomainBundle::Own(own) => own.memory(endpoint)?,
            DomainBundle::Serviced(shared) => {
                held = shared.hold()?;
                held.memory(endpoint)?
            }
            DomainBundle::OnTheWay => unreachable!("`serve` leaves one of the others"),
        };
        Ok(calls(&mut memory))
    }

    /// Makes an endpoint for messages and, if it `has_memory`, one for remote memory with the same key.
    ///
    /// # Errors
    /// As weft's. Then nothing is left behind.
    pub fn endpoints(
        &mut self,
        settings: tagged::Settings,
        has_memory: bool,
    ) -> Result<(Endpoint, Option<Endpoint>), Error> {
        let endpoint = of_either!(
            self,
            own => own.tagged_endpoint_with_random_key(settings),
            shared => shared.tagged_endpoint_with_random_key(settings)
        )?;
        if !has_memory {
            return Ok((endpoint, None));
        }
        let made = self.key(endpoint).and_then(|key| {
            let settings = memory::Settings { operations_most: MEMORY_OPERATIONS, ..memory::Settings::default() };
            of_either!(
                self,
                own => own.memory_endpoint(key, settings),
                shared => shared.memory_endpoint(key, settings)
            )
        });
        match made {
            Ok(memory) => Ok((endpoint, Some(memory))),
            Err(error) => {
                // Cannot fail: the endpoint exists.
                let _ = self.free(endpoint);
                Err(error)
            }
        }
    }

    pub fn free(&mut self, endpoint: Endpoint) -> Result<(), Error> {
        of_either!(self, own => own.free(endpoint), shared => shared.free(endpoint))
    }

    pub fn name(&self, endpoint: Endpoint) -> Result<Name, Error> {
        of_either!(self, own => own.name(endpoint), shared => shared.name(endpoint))
    }

    pub fn key(&self, endpoint: Endpoint) -> Result<Key, Error> {
        of_either!(self, own => own.key(endpoint), shared => shared.key(endpoint))
    }

    /// For endpoints of remote memory. Endpoints for messages map by their own calls.
    pub fn map(&mut self, endpoint: Endpoint, index: u32, name: Name, key: Key) -> Result<(), Error> {
        of_either!(self, own => own.map(endpoint, index, name, key), shared => shared.map(endpoint, index, name, key))
    }

    pub fn unmap(&mut self, endpoint: Endpoint, index: u32) -> Result<(), Error> {
        of_either!(self, own => own.unmap(endpoint, index), shared => shared.unmap(endpoint, index))
    }

    pub fn is_acknowledged(&mut self) -> bool {
        of_either!(self, own => own.is_acknowledged(), shared => shared.is_acknowledged().unwrap_or(true))
    }

    pub fn sessions_lost(&self) -> u64 {
        let counters = of_either!(self, own => own.counters(), shared => shared.counters().unwrap_or_default());
        counters.sessions_lost
    }

    pub fn waker(&self) -> Waker {
        of_either!(self, own => own.waker(), shared => shared.waker())
    }

    pub fn wait(&mut self, most: Duration) -> Waited {
        of_either!(
            self,
            own => own.wait(Some(most)),
            shared => shared.wait(Some(most)).unwrap_or(Waited::Nothing)
        )
    }

    /// What a thread can sleep on while others use the bundle. `None` if there is something to do.
    pub fn sleeper(&mut self) -> Option<Sleeper> {
        of_either!(
            self,
            own => own.arm().then(|| Sleeper::Descriptor(own.wait_fd().as_raw_fd(), own.wait_limit())),
            shared => Some(Sleeper::Shared(shared.clone()))
        )
    }

    /// The descriptor that reports arrivals. `None` if other threads may take these first.
    pub fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        of_either!(self, own => Some(own.wait_fd()), _shared => None)
    }

    /// Arms the descriptor, if it has one that reports arrivals. False if something has come already.
    pub fn arm(&mut self) -> bool {
        of_either!(self, own => own.arm(), _shared => true)
    }
}
