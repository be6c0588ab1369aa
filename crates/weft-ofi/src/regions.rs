//! The registrations of a domain: regions at all its endpoints.

use crate::abi;
use crate::state::State;
use slab::Slab;
use std::collections::HashSet;
use std::ffi::c_int;
use weft::memory::{RegionError, RegionId, RegionKey, Rights, Tally, Window};
use weft::{Error, SendError};

/// Registrations of a domain, and how keys and addresses are interpreted.
#[derive(Debug)]
pub struct Registrations {
    all: Slab<Registration>,
    /// The keys in use.
    keys: HashSet<u64>,
    /// Whether the provider chooses the keys.
    makes_keys: bool,
    /// Whether offsets are addresses, and not distances from the beginning.
    by_address: bool,
}

/// Memory that is to be registered.
pub struct Wanted {
    pub window: Window,
    /// Its address.
    pub start: u64,
    /// The key that the client would like.
    pub key: u64,
    pub rights: Rights,
}

/// Registered memory.
#[derive(Debug)]
struct Registration {
    window: Window,
    key: u64,
    /// The offset of its first byte.
    base: u64,
    rights: Rights,
    /// The endpoints, by slot, at which it is open, and its regions there.
    regions: Vec<(usize, RegionId)>,
    /// Where peers' operations on it are counted.
    tallies: Vec<Tally>,
}

impl Registrations {
    /// No registrations yet, in a domain of that mode.
    pub fn new(mode: c_int) -> Registrations {
        Registrations {
            all: Slab::new(),
            keys: HashSet::new(),
            makes_keys: mode & (abi::MR_BASIC | abi::MR_PROV_KEY) != 0,
            by_address: mode & (abi::MR_BASIC | abi::MR_VIRT_ADDR) != 0,
        }
    }

    /// Whether there is anything that peers may access.
    pub fn are_open(&self) -> bool {
        !self.keys.is_empty()
    }

    /// A key that nobody can guess. `None` if the system has no randomness.
    fn make_key(&self) -> Option<u64> {
        let mut key = [0u8; 8];
        loop {
            getrandom(&mut key)?;
            let key = u64::from_le_bytes(key);
            if !self.keys.contains(&key) {
                return Some(key);
            }
        }
    }
}

#[allow(unsafe_code)] // a system call
fn getrandom(bytes: &mut [u8]) -> Option<()> {
    // SAFETY: there is room for so many bytes.
    let filled = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    (usize::try_from(filled) == Ok(bytes.len())).then_some(())
}

/// The rights for a registration's access flags. The right to write includes atomic operations.
pub fn rights(access: u64) -> Rights {
    let (read, write) = (access & abi::REMOTE_READ != 0, access & abi::REMOTE_WRITE != 0);
    Rights { read, write, atomic: write }
}

impl State {
    /// Registers memory. Returns the registration's number, and its key.
    ///
    /// # Errors
    /// An error code for C. Then nothing is registered.
    pub fn register(&mut self, wanted: Wanted) -> Result<(usize, u64), c_int> {
        let Wanted { window, start, key, rights } = wanted;
        let of = &mut self.registrations;
        let is_open = rights != Rights::default();
        let key = if of.makes_keys { of.make_key().ok_or(-libc::EIO)? } else { key };
        if is_open && !of.keys.insert(key) {
            return Err(-abi::ENOKEY);
        }
        let base = if of.by_address { start } else { 0 };
        let number =
            of.all.insert(Registration { window, key, base, rights, regions: Vec::new(), tallies: Vec::new() });
        for at in 0..if is_open { self.with_memory.len() } else { 0 } {
            if let Err(error) = self.open_one(self.with_memory[at], number) {
                self.unregister(number);
                return Err(match error {
                    Error::Region(RegionError::KeyTaken) => -abi::ENOKEY,
                    _ => -libc::ENOMEM,
                });
            }
        }
        Ok((number, key))
    }

    /// Revokes a registration at all endpoints.
    pub fn unregister(&mut self, number: usize) {
        let of = &mut self.registrations;
        let Some(registration) = of.all.try_remove(number) else { return };
        if registration.rights != Rights::default() {
            of.keys.remove(&registration.key);
        }
        for (slot, region) in registration.regions {
            if let Some(memory) = self.eps.get(slot).and_then(|ep| ep.memory.as_ref()) {
                // Cannot fail: the endpoint exists.
                let _ = self.bundle.memory(memory.endpoint, |memory| memory.revoke(region));
            }
        }
    }

    /// Counts peers' operations on registered memory from now on.
    pub fn count_registration(&mut self, number: usize, tally: &Tally) {
        let Some(registration) = self.registrations.all.get_mut(number) else { return };
        registration.tallies.push(tally.clone());
        for &(slot, region) in &registration.regions {
            if let Some(memory) = self.eps.get(slot).and_then(|ep| ep.memory.as_ref()) {
                // Cannot fail: the endpoint exists.
                let _ = self.bundle.memory(memory.endpoint, |memory| memory.count(region, tally.clone()));
            }
        }
    }

    /// Counts peers' operations by way of an endpoint from now on.
    pub fn count_endpoint(&mut self, slot: usize, tally: Tally) {
        let Some(memory) = self.eps.get_mut(slot).and_then(|ep| ep.memory.as_mut()) else { return };
        let regions = self.registrations.all.iter().flat_map(|(_, registration)| &registration.regions);
        for &(_, region) in regions.filter(|(at, _)| *at == slot) {
            let _ = self.bundle.memory(memory.endpoint, |memory| memory.count(region, tally.clone()));
        }
        memory.tallies.push(tally);
    }

    /// Opens all registrations at an endpoint.
    ///
    /// # Errors
    /// As weft's.
    pub fn open_all(&mut self, slot: usize) -> Result<(), Error> {
        if self.eps[slot].memory.is_none() {
            return Ok(());
        }
        let open = |(number, registration): (usize, &Registration)| {
            (registration.rights != Rights::default()).then_some(number)
        };
        let numbers: Vec<usize> = self.registrations.all.iter().filter_map(open).collect();
        numbers.into_iter().try_for_each(|number| self.open_one(slot, number))
    }

    /// An endpoint was closed.
    pub fn close_all(&mut self, slot: usize) {
        for (_, registration) in &mut self.registrations.all {
            registration.regions.retain(|(at, _)| *at != slot);
        }
    }

    fn open_one(&mut self, slot: usize, number: usize) -> Result<(), Error> {
        // From now on peers may come while the client computes.
        self.serve()?;
        let none = Error::Send(SendError::NoEndpoint);
        let Some(memory) = self.eps.get(slot).and_then(|ep| ep.memory.as_ref()) else { return Err(none) };
        let Some(registration) = self.registrations.all.get_mut(number) else { return Err(none) };
        let Registration { window, key, base, rights, tallies, .. } = registration;
        let tallies = tallies.iter().chain(&memory.tallies);
        let region = self.bundle.memory(memory.endpoint, |memory| {
            let region = memory.open(window.clone(), RegionKey(*key), *rights)?;
            memory.count_from(region, *base);
            tallies.for_each(|tally| _ = memory.count(region, tally.clone()));
            Ok::<_, RegionError>(region)
        })??;
        registration.regions.push((slot, region));
        Ok(())
    }
}
