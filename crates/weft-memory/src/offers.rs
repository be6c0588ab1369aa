//! Regions that neighbours map: each offer, and its peer.

use crate::table::RegionId;
use std::collections::{BTreeMap, BTreeSet};
use weft_core::FlowId;

/// An offer that a peer has taken up or may take up.
#[derive(Clone, Copy, Debug)]
struct Offer {
    flow: FlowId,
    /// The index of the cookie that it was made for.
    cookie: Option<u32>,
    /// Its number in the space.
    ticket: u64,
}

/// Offers that have not ended. The space bounds their number.
#[derive(Debug, Default)]
pub(crate) struct Offers {
    by_region: BTreeMap<RegionId, Vec<Offer>>,
    by_flow: BTreeMap<FlowId, BTreeSet<RegionId>>,
}

impl Offers {
    pub fn add(&mut self, region: RegionId, cookie: Option<u32>, flow: FlowId, ticket: u64) {
        self.by_region.entry(region).or_default().push(Offer { flow, cookie, ticket });
        self.by_flow.entry(flow).or_default().insert(region);
    }

    /// The number of offers for a region.
    pub fn of_region(&self, region: RegionId) -> usize {
        self.by_region.get(&region).map_or(0, Vec::len)
    }

    /// Forgets the offers of a region that have ended.
    pub fn keep(&mut self, region: RegionId, is_offered: impl Fn(u64) -> bool) {
        self.take(region, |offer| !is_offered(offer.ticket));
    }

    /// Ends the offers for a region, and returns their tickets.
    pub fn take_region(&mut self, region: RegionId) -> Vec<u64> {
        self.take(region, |_| true)
    }

    /// Ends the offers for a cookie of a region, and returns their tickets.
    pub fn take_cookie(&mut self, region: RegionId, cookie: u32) -> Vec<u64> {
        self.take(region, |offer| offer.cookie == Some(cookie))
    }

    /// Ends the offers to the peer of a flow. Returns the regions, and the tickets for each.
    pub fn take_flow(&mut self, flow: FlowId) -> Vec<(RegionId, Vec<u64>)> {
        let Some(regions) = self.by_flow.get(&flow).cloned() else { return Vec::new() };
        regions.into_iter().map(|region| (region, self.take(region, |offer| offer.flow == flow))).collect()
    }

    fn take(&mut self, region: RegionId, is_meant: impl Fn(&Offer) -> bool) -> Vec<u64> {
        let Some(offers) = self.by_region.get_mut(&region) else { return Vec::new() };
        let (taken, left): (Vec<Offer>, Vec<Offer>) = offers.drain(..).partition(is_meant);
        *offers = left;
        for Offer { flow, .. } in &taken {
            let is_left = offers.iter().any(|other| other.flow == *flow);
            if let Some(regions) = self.by_flow.get_mut(flow).filter(|_| !is_left) {
                regions.remove(&region);
                if regions.is_empty() {
                    self.by_flow.remove(flow);
                }
            }
        }
        if offers.is_empty() {
            self.by_region.remove(&region);
        }
        taken.into_iter().map(|offer| offer.ticket).collect()
    }
}

#[cfg(test)]
mod tests {
    use crate::platform::Space;
    use crate::{RegionId, Rights, Table};
    use std::cell::RefCell;
    use std::rc::Rc;
    use weft_core::{FlowId, SessionId};
    use weft_wire::memory::Credential;

    /// A call to the space.
    #[derive(Clone, PartialEq, Eq, Debug)]
    enum Asked {
        LetGo(u64),
        Withdraw(Vec<u64>),
    }

    /// Memory that records the calls made to it. It numbers its offers from 1.
    #[derive(Clone, Default)]
    struct Saying {
        offers: Rc<RefCell<u64>>,
        asked: Rc<RefCell<Vec<Asked>>>,
    }

    impl Saying {
        fn take(&self) -> Vec<Asked> {
            self.asked.take()
        }
    }

    impl Space for Saying {
        fn len(&self) -> u64 {
            64
        }

        fn read(&self, _: u64, _: &mut [u8]) -> bool {
            false
        }

        fn write(&self, _: u64, _: &[u8]) -> bool {
            false
        }

        fn is_word(&self, _: u64, _: usize) -> bool {
            false
        }

        fn update(&self, _: u64, _: usize, _: impl FnMut(u64) -> Option<u64>) -> Option<u64> {
            None
        }

        fn offer(&self, _: u64, _: u64) -> Option<(u64, Vec<u8>)> {
            *self.offers.borrow_mut() += 1;
            Some((*self.offers.borrow(), Vec::new()))
        }

        fn withdraw(&self, offers: &[u64]) {
            self.asked.borrow_mut().push(Asked::Withdraw(offers.to_vec()));
        }

        fn is_offered(&self, offer: u64) -> bool {
            offer + 3 > *self.offers.borrow()
        }

        fn let_go(&self, offer: u64) {
            self.asked.borrow_mut().push(Asked::LetGo(offer));
        }
    }

    const BY: Credential = Credential::Key(1);

    fn flow(number: u16) -> FlowId {
        FlowId { session: SessionId { index: 1, life: 1 }, number }
    }

    fn table() -> (Table<Saying>, RegionId, Saying) {
        let (mut table, space) = (Table::new(4, 4), Saying::default());
        let region = table.open(1, Rights::ALL, space.clone()).expect("room");
        (table, region, space)
    }

    /// A peer that is gone may be in the middle of an access: the memory waits for it.
    #[test]
    fn memory_is_withdrawn_from_those_that_were_let_go() {
        let (mut table, region, space) = table();
        assert!(table.offer(BY, Some(flow(1))).is_ok_and(|mappable| mappable.is_some()));
        table.flow_closed(flow(1));
        assert_eq!(space.take(), [Asked::LetGo(1)]);
        table.revoke(region);
        assert_eq!(space.take(), [Asked::Withdraw(Vec::new())]);
    }

    /// A peer maps a region again and again, and the memory ends its old offers.
    #[test]
    fn offers_that_have_ended_are_not_kept() {
        let (mut table, region, space) = table();
        for _ in 0..10_000 {
            assert!(table.offer(BY, Some(flow(1))).is_ok_and(|mappable| mappable.is_some()));
            assert!(table.mapped(region) <= 256);
        }
        table.revoke(region);
        let asked = space.take();
        assert!(matches!(&asked[..], [Asked::Withdraw(tickets)] if tickets.contains(&10_000) && tickets.len() <= 256));
    }
}
