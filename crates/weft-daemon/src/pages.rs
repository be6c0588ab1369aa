//! Allocates the pages of a file to the parts of endpoints.

use std::collections::{BTreeMap, BTreeSet};

/// The pages of a file that no part has.
#[derive(Debug)]
pub(crate) struct Pages {
    /// Their lengths, by first page. No two of them touch.
    free: BTreeMap<u32, u32>,
    /// The same ranges by length, so that a program cannot make the search slow.
    sizes: BTreeSet<(u32, u32)>,
    /// Pages from here on were never allocated, and are zero.
    fresh: u32,
    end: u32,
}

/// A range that was allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Taken {
    pub page: u32,
    /// Another part had it before, so it is not zero.
    pub is_used: bool,
}

impl Pages {
    /// The pages from `begin` to before `end`.
    pub fn new(begin: u32, end: u32) -> Pages {
        Pages { free: BTreeMap::new(), sizes: BTreeSet::new(), fresh: begin, end: end.max(begin) }
    }

    /// Whether `take` would allocate only pages that were never allocated before.
    pub fn would_be_fresh(&self, pages: u32) -> bool {
        self.sizes.range((pages, 0)..).next().is_none()
    }

    /// How many pages of the file were ever allocated, including those before the first one. They stay allocated until the file is gone,
    /// because nobody may punch holes into it.
    pub fn touched(&self) -> u32 {
        self.fresh
    }

    /// Allocates so many pages, from the smallest range that has them. `None` if there is none.
    pub fn take(&mut self, pages: u32) -> Option<Taken> {
        let found = self.sizes.range((pages, 0)..).next().copied();
        if let Some((free, page)) = found {
            self.remove(page);
            if free > pages {
                self.insert(page + pages, free - pages);
            }
            return Some(Taken { page, is_used: true });
        }
        let page = self.fresh;
        let end = page.checked_add(pages).filter(|end| *end <= self.end)?;
        self.fresh = end;
        Some(Taken { page, is_used: false })
    }

    /// Takes back a range that was allocated.
    pub fn give_back(&mut self, page: u32, pages: u32) {
        let (mut page, mut pages) = (page, pages);
        if let Some(behind) = self.remove(page + pages) {
            pages += behind;
        }
        let before = self.free.range(..page).next_back().map(|(before, count)| (*before, *count));
        if let Some((before, count)) = before.filter(|(before, count)| before + count == page) {
            self.remove(before);
            (page, pages) = (before, pages + count);
        }
        self.insert(page, pages);
    }

    fn insert(&mut self, page: u32, pages: u32) {
        self.free.insert(page, pages);
        self.sizes.insert((pages, page));
    }

    fn remove(&mut self, page: u32) -> Option<u32> {
        let pages = self.free.remove(&page)?;
        self.sizes.remove(&(pages, page));
        Some(pages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ranges_are_used_again_and_grow_together() {
        let mut pages = Pages::new(10, 20);
        let given: Vec<u32> = (0..5).map(|_| pages.take(2).expect("room").page).collect();
        assert_eq!(given, [10, 12, 14, 16, 18]);
        assert_eq!(pages.take(1), None);
        pages.give_back(12, 2);
        pages.give_back(16, 2);
        assert_eq!(pages.take(4), None, "they do not touch");
        pages.give_back(14, 2);
        assert_eq!(pages.take(7), None);
        assert_eq!(pages.take(6), Some(Taken { page: 12, is_used: true }));
    }

    proptest! {
        #[test]
        fn no_page_is_given_out_twice(steps in proptest::collection::vec((1u32..9, any::<bool>(), any::<u8>()), 1..200)) {
            let mut pages = Pages::new(3, 67);
            let mut given: Vec<(u32, u32)> = Vec::new();
            for (count, takes, which) in steps {
                if takes {
                    if let Some(Taken { page, .. }) = pages.take(count) {
                        prop_assert!(page >= 3 && page + count <= 67);
                        prop_assert!(given.iter().all(|(other, len)| page + count <= *other || other + len <= page));
                        given.push((page, count));
                    }
                } else if !given.is_empty() {
                    let (page, count) = given.swap_remove(usize::from(which) % given.len());
                    pages.give_back(page, count);
                }
            }
            given.drain(..).for_each(|(page, count)| pages.give_back(page, count));
            prop_assert!(pages.take(64).is_some() || pages.fresh < 67);
        }
    }
}
