//! Contents that wait until they are fetched.

use std::collections::BTreeMap;
use weft_wire::Reason;

/// A receiver's request to send announced contents.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Demand {
    /// The sender's number for the contents.
    pub number: u32,
    /// The receiver's number for the room, which the pieces carry.
    pub into: u32,
    /// How many bytes the receiver wants.
    pub bytes: u64,
}

/// Contents that were announced to one peer and not fetched yet, by number.
///
/// A demand may arrive before the contents are here: a peer that refused a message for lack of memory fetches the
/// contents once it has memory, and the refused message may not be back yet. Such demands are kept until then, up to a
/// bound.
#[derive(Debug)]
pub struct Announced<S> {
    waiting: BTreeMap<u32, (S, usize)>,
    early: BTreeMap<u32, Demand>,
    early_most: usize,
}

impl<S> Announced<S> {
    /// No contents. At most `early_most` demands are kept that arrive before their contents.
    pub fn new(early_most: usize) -> Announced<S> {
        Announced { waiting: BTreeMap::new(), early: BTreeMap::new(), early_most }
    }

    /// Keeps contents of `len` bytes until the peer fetches them. Returns a demand that arrived earlier, which the
    /// client [answers](Announced::answer) now.
    #[must_use = "a demand that came before is to be answered now"]
    pub fn add(&mut self, number: u32, contents: S, len: usize) -> Option<Demand> {
        self.waiting.insert(number, (contents, len));
        self.early.remove(&number)
    }

    /// Takes a demand of the peer. Returns the contents and how many bytes of them to send, or `None` if they are not here yet.
    ///
    /// # Errors
    /// [`Reason::Violation`] if the peer wants more bytes than there are, the same contents twice, or too many contents
    /// that are not here.
    pub fn answer(&mut self, demand: Demand) -> Result<Option<(S, usize)>, Reason> {
        let number = demand.number;
        let Some(&(_, len)) = self.waiting.get(&number) else {
            let is_new = self.early.len() < self.early_most && !self.early.contains_key(&number);
            if is_new {
                self.early.insert(number, demand);
            }
            return is_new.then_some(None).ok_or(Reason::Violation);
        };
        let bytes = usize::try_from(demand.bytes).ok().filter(|&bytes| bytes <= len).ok_or(Reason::Violation)?;
        Ok(self.waiting.remove(&number).map(|(contents, _)| (contents, bytes)))
    }

    /// Takes back all contents that `is_one` selects, by number. The peer cannot fetch them any more.
    pub fn withdraw(&mut self, is_one: impl Fn(&S) -> bool) -> Vec<(u32, S)> {
        let (withdrawn, kept): (BTreeMap<_, _>, _) =
            std::mem::take(&mut self.waiting).into_iter().partition(|(_, (of, _))| is_one(of));
        self.waiting = kept;
        withdrawn.into_iter().map(|(number, (contents, _))| (number, contents)).collect()
    }

    /// Whether contents of this number wait to be fetched.
    pub fn contains(&self, number: u32) -> bool {
        self.waiting.contains_key(&number)
    }

    /// Whether nothing waits to be fetched.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// What waits to be fetched, by number.
    pub fn iter(&self) -> impl Iterator<Item = &S> {
        self.waiting.values().map(|(contents, _)| contents)
    }
}
