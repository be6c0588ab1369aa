//! Memory of simulated processes: bytes that one of them shows can be pulled by the others.

use super::Bytes;
use crate::platform::{NoReach, NotPulled, Platform, Proof, Pulled, Source};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

thread_local! {
    /// By address. Bytes that were dropped cannot be read.
    static SHOWN: RefCell<BTreeMap<u64, Weak<Vec<u8>>>> = const { RefCell::new(BTreeMap::new()) };
    static PROOFS: RefCell<BTreeMap<u64, Proof>> = const { RefCell::new(BTreeMap::new()) };
    /// Pulls that may still succeed.
    static ALLOWED: Cell<u64> = const { Cell::new(u64::MAX) };
}

/// Lets this thread's next `times` pulls succeed. Further ones fail as if the kernel refused them. [`u64::MAX`] removes the limit.
pub fn allow_pulls(times: u64) {
    ALLOWED.set(times);
}

/// Bytes that another process can pull, as long as one of the clones exists.
#[derive(Clone, Debug)]
pub struct Shown(Rc<Vec<u8>>);

impl From<Vec<u8>> for Shown {
    fn from(bytes: Vec<u8>) -> Shown {
        let shown = Shown(Rc::new(bytes));
        SHOWN.with_borrow_mut(|all| {
            // Forgets dropped bytes, whose addresses may be used again.
            all.retain(|_, bytes| bytes.strong_count() > 0);
            all.insert(shown.at(), Rc::downgrade(&shown.0))
        });
        shown
    }
}

impl Shown {
    fn at(&self) -> u64 {
        self.0.as_ptr().addr() as u64
    }
}

impl Source for Shown {
    fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn address(&self) -> Option<u64> {
        Some(self.at())
    }
}

/// Regions of [`Bytes`], operations with [`Shown`] bytes as sources and vectors as targets.
#[derive(Debug)]
pub enum Showing {}

impl Platform for Showing {
    type Space = Bytes;
    type Source = Shown;
    type Target = Vec<u8>;
    type Reach = NoReach;

    fn note_proof(proof: &Proof) {
        PROOFS.with_borrow_mut(|all| all.insert(proof.address(), proof.clone()));
    }
}

/// What `Space::pull` of [`Bytes`] does.
pub(super) fn pull(to: &Bytes, at: u64, from: Pulled<'_>) -> Result<(), NotPulled> {
    let left = ALLOWED.get();
    ALLOWED.set(if left == u64::MAX { left } else { left.saturating_sub(1) });
    if left == 0 {
        return Err(NotPulled::Unreadable);
    }
    let Pulled { origin, skip, len, .. } = from;
    let begin = origin.from.checked_add(skip).ok_or(NotPulled::Unreadable)?;
    let found = SHOWN.with_borrow(|all| all.range(..=begin).next_back().map(|(at, bytes)| (*at, bytes.upgrade())));
    let Some((first, Some(bytes))) = found else { return Err(NotPulled::Unreadable) };
    let skipped = usize::try_from(begin - first).map_err(|_| NotPulled::Unreadable)?;
    let bytes = skipped.checked_add(len).and_then(|end| bytes.get(skipped..end)).ok_or(NotPulled::Unreadable)?;
    let proof = PROOFS.with_borrow(|all| all.get(&origin.proof_at).map(Proof::value)).ok_or(NotPulled::Unreadable)?;
    if proof != origin.proof {
        return Err(NotPulled::Gone);
    }
    to.with(at, len, |room| room.copy_from_slice(bytes)).ok_or(NotPulled::Outside)
}
