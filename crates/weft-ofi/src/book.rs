//! The addresses of a vector, where endpoints look up their peers.

use crate::addr::Peer;
use slab::Slab;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use weft::tagged::Directory;
use weft::{Key, Name};

/// Addresses of a vector, at most: an endpoint's table has room for so many.
const ADDRESSES_MOST: usize = 1 << 20;

/// Addresses by number, and numbers by address. A service thread may look things up too, so there is a lock; no call is made while it is
/// held.
#[derive(Debug, Default)]
pub struct Book(Mutex<Addresses>);

#[derive(Debug, Default)]
struct Addresses {
    peers: Slab<Peer>,
    /// By the identity of a name.
    numbers: HashMap<(u64, u32), u32>,
    /// Addresses that were entered while another one had the same identity.
    doubles: usize,
}

/// The epoch and the number of the endpoint, which no two names share.
fn identity(name: &Name) -> (u64, u32) {
    (name.epoch.0, name.endpoint.0)
}

impl Book {
    fn addresses(&self) -> MutexGuard<'_, Addresses> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters an address. Returns its number, if one is left. An address that is entered twice has two numbers, and messages from it show
    /// one of them.
    pub fn insert(&self, peer: Peer) -> Option<u32> {
        let mut addresses = self.addresses();
        let number = Some(addresses.peers.vacant_key()).filter(|&number| number < ADDRESSES_MOST)? as u32;
        addresses.peers.insert(peer);
        if addresses.numbers.insert(identity(&peer.name), number).is_some() {
            addresses.doubles += 1;
        }
        Some(number)
    }

    /// Removes an address. False if there is none of that number.
    pub fn remove(&self, number: usize) -> bool {
        let mut addresses = self.addresses();
        let Some(peer) = addresses.peers.try_remove(number) else { return false };
        let identity = identity(&peer.name);
        // A linear search, because few clients enter an address twice and then remove it.
        let is_same = |(_, other): &(usize, &Peer)| self::identity(&other.name) == identity;
        let other = if addresses.doubles > 0 { addresses.peers.iter().find(is_same) } else { None };
        match other.map(|(number, _)| number as u32) {
            Some(other) => {
                addresses.numbers.insert(identity, other);
                addresses.doubles -= 1;
            }
            None => _ = addresses.numbers.remove(&identity),
        }
        true
    }

    pub fn get(&self, number: usize) -> Option<Peer> {
        self.addresses().peers.get(number).copied()
    }

    /// All numbers, except those of some names.
    pub fn numbers_but_for(&self, names: &[Name]) -> Vec<u32> {
        let addresses = self.addresses();
        let others = addresses.peers.iter().filter(|(_, peer)| !names.contains(&peer.name));
        others.map(|(number, _)| number as u32).collect()
    }
}

impl Directory for Book {
    fn peer_at(&self, index: u32) -> Option<(Name, Key)> {
        self.get(index as usize).map(|peer| (peer.name, peer.key))
    }

    fn index_of(&self, name: &Name) -> Option<u32> {
        let addresses = self.addresses();
        let &number = addresses.numbers.get(&identity(name))?;
        // The rest of the name must match too.
        addresses.peers.get(number as usize).filter(|peer| peer.name == *name).map(|_| number)
    }
}
