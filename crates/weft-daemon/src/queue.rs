//! A queue whose entries may leave from anywhere.

use slab::Slab;

/// An entry's place in a queue, valid while it is queued.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ticket(u32);

/// A queue. Each operation takes constant time.
#[derive(Clone, Debug)]
pub(crate) struct Queue<T> {
    links: Slab<Link<T>>,
    first: Option<Ticket>,
    last: Option<Ticket>,
}

#[derive(Clone, Debug)]
struct Link<T> {
    entry: T,
    before: Option<Ticket>,
    behind: Option<Ticket>,
}

impl<T> Default for Queue<T> {
    fn default() -> Queue<T> {
        Queue { links: Slab::new(), first: None, last: None }
    }
}

impl<T> Queue<T> {
    /// Puts an entry at the end.
    pub fn push(&mut self, entry: T) -> Ticket {
        let before = self.last;
        let ticket = Ticket(self.links.insert(Link { entry, before, behind: None }) as u32);
        match before {
            Some(before) => self.link(before, |link| link.behind = Some(ticket)),
            None => self.first = Some(ticket),
        }
        self.last = Some(ticket);
        ticket
    }

    /// Takes the first entry.
    pub fn pop(&mut self) -> Option<T> {
        self.take(self.first?)
    }

    /// Removes the entry with this ticket.
    pub fn take(&mut self, ticket: Ticket) -> Option<T> {
        let Link { entry, before, behind } = self.links.try_remove(ticket.0 as usize)?;
        match before {
            Some(before) => self.link(before, |link| link.behind = behind),
            None => self.first = behind,
        }
        match behind {
            Some(behind) => self.link(behind, |link| link.before = before),
            None => self.last = before,
        }
        Some(entry)
    }

    /// The entries, the first one first.
    #[cfg(test)]
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        let link = |ticket: Ticket| self.links.get(ticket.0 as usize);
        std::iter::successors(self.first.and_then(link), move |found| found.behind.and_then(link))
            .map(|found| &found.entry)
    }

    pub fn is_empty(&self) -> bool {
        self.links.is_empty()
    }

    pub fn len(&self) -> usize {
        self.links.len()
    }

    fn link(&mut self, ticket: Ticket, change: impl FnOnce(&mut Link<T>)) {
        self.links.get_mut(ticket.0 as usize).map(change);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn entries_come_in_order_whatever_leaves_between(steps in proptest::collection::vec((0u8..4, any::<u8>()), 0..200)) {
            let (mut queue, mut expected) = (Queue::default(), Vec::<(Ticket, usize)>::new());
            for (number, (step, which)) in steps.into_iter().enumerate() {
                match step {
                    0 => prop_assert_eq!(queue.pop(), (!expected.is_empty()).then(|| expected.remove(0).1)),
                    1 if !expected.is_empty() => {
                        let (ticket, entry) = expected.remove(usize::from(which) % expected.len());
                        prop_assert_eq!(queue.take(ticket), Some(entry));
                    }
                    _ => expected.push((queue.push(number), number)),
                }
                let entries: Vec<usize> = expected.iter().map(|(_, entry)| *entry).collect();
                prop_assert_eq!(queue.iter().copied().collect::<Vec<_>>(), entries);
                prop_assert_eq!((queue.len(), queue.is_empty()), (expected.len(), expected.is_empty()));
            }
        }
    }
}
