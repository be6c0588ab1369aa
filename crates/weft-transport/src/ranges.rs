//! Sets of ranges of a stream's bytes.

/// Ranges that neither overlap nor touch, in order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Ranges {
    list: Vec<(u64, u64)>,
}

impl Ranges {
    /// Adds the range from `from` to before `to`.
    pub fn insert(&mut self, from: u64, to: u64) {
        if from >= to {
            return;
        }
        let first = self.list.partition_point(|&(_, end)| end < from);
        let last = self.list.partition_point(|&(start, _)| start <= to);
        if first == last {
            self.list.insert(first, (from, to));
            return;
        }
        let joined = (from.min(self.list[first].0), to.max(self.list[last - 1].1));
        self.list[first] = joined;
        self.list.drain(first + 1..last);
    }

    /// Removes the range from `from` to before `to`.
    pub fn remove(&mut self, from: u64, to: u64) {
        let first = self.list.partition_point(|&(_, end)| end <= from);
        let last = self.list.partition_point(|&(start, _)| start < to);
        if first >= last || from >= to {
            return;
        }
        let before = (self.list[first].0, from);
        let after = (to, self.list[last - 1].1);
        let left = [before, after].into_iter().filter(|&(start, end)| start < end);
        self.list.splice(first..last, left);
    }

    /// Removes and returns the lowest contiguous bytes, at most `most`.
    pub fn take_first(&mut self, most: u64) -> Option<(u64, u64)> {
        let first = self.list.first_mut()?;
        let (from, to) = (first.0, first.1.min(first.0 + most));
        first.0 = to;
        if first.0 == first.1 {
            self.list.remove(0);
        }
        Some((from, to))
    }

    /// Forgets everything and gives the memory back.
    pub fn clear(&mut self) {
        self.list = Vec::new();
    }

    /// The lowest range.
    #[inline]
    pub fn first(&self) -> Option<(u64, u64)> {
        self.list.first().copied()
    }

    /// Whether adding these bytes would make one more range.
    pub fn would_add(&self, from: u64, to: u64) -> bool {
        let first = self.list.partition_point(|&(_, end)| end < from);
        self.list.get(first).is_none_or(|&(start, _)| start > to)
    }

    /// How many ranges there are.
    #[inline]
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether there is nothing in it.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Bytes of memory behind it.
    pub fn memory(&self) -> usize {
        self.list.capacity() * std::mem::size_of::<(u64, u64)>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ranges_hold_what_a_set_of_bytes_holds(
            steps in proptest::collection::vec((0u8..3, 0u64..100, 0u64..20), 0..60),
        ) {
            let mut ranges = Ranges::default();
            let mut model = std::collections::BTreeSet::new();
            for (step, from, len) in steps {
                let to = from + len;
                match step {
                    0 => {
                        let before = ranges.len();
                        let adds = len > 0 && ranges.would_add(from, to);
                        ranges.insert(from, to);
                        prop_assert_eq!(adds, ranges.len() > before);
                        model.extend(from..to);
                    }
                    1 => {
                        ranges.remove(from, to);
                        model.retain(|b| !(from..to).contains(b));
                    }
                    _ => if let Some((from, to)) = ranges.take_first(len + 1) {
                        prop_assert_eq!(Some(&from), model.first());
                        model.retain(|b| !(from..to).contains(b));
                    },
                }
                let bytes: Vec<u64> = ranges.list.iter().flat_map(|&(from, to)| from..to).collect();
                prop_assert_eq!(&bytes, &model.iter().copied().collect::<Vec<_>>());
                prop_assert!(ranges.list.windows(2).all(|w| w[0].1 < w[1].0));
            }
        }
    }
}
