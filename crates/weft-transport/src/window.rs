//! The window of requests that one endpoint may have outstanding at another: 32 slots, as in Active Messages II.

use weft_wire::record::WINDOW;

/// Which of the 32 slots are taken.
///
/// ```
/// use weft_transport::Window;
///
/// let mut window = Window::default();
/// let slots: Vec<u16> = std::iter::from_fn(|| window.take()).collect();
/// assert!(slots.len() == 32 && window.is_full());
/// assert!(window.put(5) && !window.put(5));
/// assert_eq!(window.take(), Some(5));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Window {
    taken: u32,
}

impl Window {
    /// Takes the lowest free slot, or `None` if all are taken.
    #[inline(always)]
    pub fn take(&mut self) -> Option<u16> {
        let slot = (!self.taken).trailing_zeros();
        if slot == WINDOW as u32 {
            return None;
        }
        self.taken |= 1 << slot;
        Some(slot as u16)
    }

    /// Takes this slot. False if it is taken or does not exist.
    #[inline(always)]
    pub fn take_slot(&mut self, slot: u16) -> bool {
        let free = slot < WINDOW as u16 && self.taken >> slot & 1 == 0;
        if free {
            self.taken |= 1 << slot;
        }
        free
    }

    /// Frees a slot. False if it was not taken.
    #[inline(always)]
    pub fn put(&mut self, slot: u16) -> bool {
        let was = slot < WINDOW as u16 && self.taken >> slot & 1 != 0;
        if was {
            self.taken &= !(1 << slot);
        }
        was
    }

    /// A window with all slots taken, which gives out none.
    pub const SHUT: Window = Window { taken: u32::MAX };

    /// Slots taken, one bit each.
    pub fn taken(&self) -> u32 {
        self.taken
    }

    /// Whether no slot is free.
    pub fn is_full(&self) -> bool {
        self.taken == u32::MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn thirty_two_slots_then_none_until_one_is_put_back() {
        let mut window = Window::default();
        let slots: Vec<_> = std::iter::from_fn(|| window.take()).collect();
        assert_eq!(slots, (0..32).collect::<Vec<u16>>());
        assert!(window.is_full());
        assert!(window.put(17) && !window.put(17));
        assert_eq!(window.take(), Some(17));
    }

    proptest! {
        #[test]
        fn any_slot_number_is_safe(slots in proptest::collection::vec((any::<u16>(), any::<bool>()), 0..100)) {
            let mut window = Window::default();
            let mut model = std::collections::BTreeSet::new();
            for (slot, take) in slots {
                if take {
                    prop_assert_eq!(window.take_slot(slot), slot < 32 && model.insert(slot));
                } else {
                    prop_assert_eq!(window.put(slot), model.remove(&slot));
                }
                prop_assert_eq!(window.taken().count_ones() as usize, model.len());
            }
        }
    }
}
