//! Memory for tests and the simulator: cells of bytes.

use crate::platform::{Platform, Space};
use std::cell::RefCell;
use std::rc::Rc;

/// Bytes that several hold.
#[derive(Clone, Debug)]
pub struct Bytes(Rc<RefCell<Vec<u8>>>);

impl Bytes {
    /// So many zeros.
    #[must_use]
    pub fn new(len: usize) -> Bytes {
        Bytes(Rc::new(RefCell::new(vec![0; len])))
    }

    /// A copy of all of them.
    #[must_use]
    pub fn all(&self) -> Vec<u8> {
        self.0.borrow().clone()
    }

    fn with<R>(&self, at: u64, len: usize, run: impl FnOnce(&mut [u8]) -> R) -> Option<R> {
        let at = usize::try_from(at).ok()?;
        let mut bytes = self.0.borrow_mut();
        bytes.get_mut(at..at.checked_add(len)?).map(run)
    }
}

impl Space for Bytes {
    fn len(&self) -> u64 {
        self.0.borrow().len() as u64
    }

    fn read(&self, at: u64, to: &mut [u8]) -> bool {
        self.with(at, to.len(), |bytes| to.copy_from_slice(bytes)).is_some()
    }

    fn write(&self, at: u64, from: &[u8]) -> bool {
        self.with(at, from.len(), |bytes| bytes.copy_from_slice(from)).is_some()
    }

    fn is_word(&self, at: u64, bytes: usize) -> bool {
        matches!(bytes, 4 | 8) && at % bytes as u64 == 0 && self.with(at, bytes, |_| ()).is_some()
    }

    fn update(&self, at: u64, bytes: usize, mut change: impl FnMut(u64) -> Option<u64>) -> Option<u64> {
        if !self.is_word(at, bytes) {
            return None;
        }
        self.with(at, bytes, |word| {
            let mut old = [0; 8];
            old[..bytes].copy_from_slice(word);
            let old = u64::from_le_bytes(old);
            if let Some(new) = change(old) {
                word.copy_from_slice(&new.to_le_bytes()[..bytes]);
            }
            old
        })
    }
}

/// Regions of [`Bytes`], operations with vectors.
#[derive(Debug)]
pub enum Plain {}

impl Platform for Plain {
    type Space = Bytes;
    type Source = Vec<u8>;
    type Target = Vec<u8>;
}
