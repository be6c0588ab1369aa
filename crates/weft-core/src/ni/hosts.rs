//! The hosts of a network interface, and how they are found.

use super::Channel;
use super::{HostId, HostKey, Way};
use std::collections::BTreeMap;
use weft_transport::{Memory, Time};
use weft_wire::packet::ChannelId;
use weft_wire::path::Abandoned;
use weft_wire::Reason;

/// What is known of a host.
#[derive(Debug)]
pub(super) struct Host<M> {
    pub key: HostKey,
    /// The way to it; while `others` are tried as well, the preferred one.
    pub way: Way,
    /// Other ways that are tried until it answers on one of them: none once it did.
    pub others: Vec<Way>,
    /// The preferred way was tried alone.
    pub has_called: bool,
    /// Why one of the ways led to somebody else.
    pub refusal: Option<Reason>,
    pub channel: Channel<M>,
    /// In the list of those for which something may have to be sent.
    pub is_marked: bool,
    /// Bytes of records that were not sent, about.
    pub unsent: usize,
    /// When something was sent to it.
    pub sent_at: Time,
    /// There are records to take.
    pub is_readable: bool,
    /// An event waits that says so.
    pub is_told_readable: bool,
    /// The same of messages that might have been lost.
    pub is_told_unreliable: bool,
    pub is_watched: bool,
    /// It was told that it is over, and is kept until it knows.
    pub is_closing: bool,
    /// The timer that is set for it; others are old.
    pub timer_at: Option<Time>,
    /// What it did not surely take, once it is closed.
    pub abandoned: Vec<Abandoned>,
}

impl<M: Memory> Host<M> {
    pub fn new(key: HostKey, way: Way, channel: Channel<M>) -> Host<M> {
        Host {
            key,
            way,
            others: Vec::new(),
            has_called: false,
            refusal: None,
            channel,
            is_marked: false,
            unsent: 0,
            sent_at: Time::default(),
            is_readable: false,
            is_told_readable: false,
            is_told_unreliable: false,
            is_watched: false,
            is_closing: false,
            timer_at: None,
            abandoned: Vec::new(),
        }
    }

    /// Whom it is found as: as many as there are ways that are tried.
    fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
        std::iter::once(&self.way).chain(&self.others).map(|way| (HostKey { address: way.to, ..self.key }, way.from))
    }
}

/// Who a host is, and by which of our own addresses it knows us: by each of them it may have called us.
type Entry = (HostKey, u8);

#[derive(Debug)]
struct Place<M> {
    life: u32,
    host: Option<Box<Host<M>>>,
}

/// All hosts, by index, by the id that packets carry, and by who they are.
#[derive(Debug)]
pub(super) struct Hosts<M> {
    places: Vec<Place<M>>,
    free: Vec<u32>,
    by_channel: BTreeMap<u32, u32>,
    by_key: BTreeMap<Entry, HostId>,
    /// The last id that was looked for, and the index that it led to.
    last: Option<(ChannelId, u32)>,
    /// Packets of hosts that are gone.
    gone: Dropped,
}

/// Packets that channels dropped for good.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Dropped {
    /// Damaged, or none.
    pub damaged: u64,
    /// Not of the channel, copies, or such as say what cannot be.
    pub refused: u64,
    /// Messages that may be lost, and were here.
    pub unreliable: u64,
}

impl Dropped {
    fn plus<M: Memory>(self, channel: &Channel<M>) -> Dropped {
        let c = channel.counters();
        let refused = c.dropped_old + c.dropped_foreign + c.dropped_violation;
        Dropped {
            damaged: self.damaged + c.dropped_malformed,
            refused: self.refused + refused,
            unreliable: self.unreliable + c.unreliable_dropped,
        }
    }
}

impl<M> Default for Hosts<M> {
    fn default() -> Hosts<M> {
        let (by_channel, by_key) = (BTreeMap::new(), BTreeMap::new());
        Hosts { places: Vec::new(), free: Vec::new(), by_channel, by_key, last: None, gone: Dropped::default() }
    }
}

impl<M: Memory> Hosts<M> {
    pub fn add(&mut self, host: Host<M>) -> HostId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place { life: 0, host: None });
            self.places.len() as u32 - 1
        });
        let place = &mut self.places[index as usize];
        let id = HostId { index, life: place.life };
        self.by_channel.insert(host.channel.ours().id.0, index);
        for entry in host.entries() {
            // When we call ourselves, who answers is not the one to be found.
            self.by_key.entry(entry).or_insert(id);
        }
        place.host = Some(Box::new(host));
        id
    }

    pub fn remove(&mut self, index: u32) {
        let Some(place) = self.places.get_mut(index as usize) else { return };
        let Some(host) = place.host.take() else { return };
        let id = HostId { index, life: place.life };
        place.life = place.life.wrapping_add(1);
        self.gone = self.gone.plus(&host.channel);
        self.by_channel.remove(&host.channel.ours().id.0);
        self.forget_keys_of(&host, id);
        self.free.push(index);
        self.last = None;
    }

    /// From now on a host with the same address and life is another one, and no further ways to this one are tried.
    pub fn forget_key(&mut self, id: HostId) {
        let Some(place) = self.places.get_mut(id.index as usize).filter(|p| p.life == id.life) else { return };
        let Some(mut host) = place.host.take() else { return };
        self.forget_keys_of(&host, id);
        host.others.clear();
        self.places[id.index as usize].host = Some(host);
    }

    /// This is the way to a host from now on, and these are the others that are still tried.
    pub fn set_ways(&mut self, id: HostId, way: Way, others: Vec<Way>) {
        self.forget_key(id);
        let Some(host) = self.get_mut(id) else { return };
        (host.key.address, host.way, host.others) = (way.to, way, others);
        let entries: Vec<Entry> = host.entries().collect();
        for entry in entries {
            self.by_key.entry(entry).or_insert(id);
        }
    }

    fn forget_keys_of(&mut self, host: &Host<M>, id: HostId) {
        for entry in host.entries() {
            if self.by_key.get(&entry) == Some(&id) {
                self.by_key.remove(&entry);
            }
        }
    }

    pub fn find(&self, key: HostKey) -> Option<HostId> {
        self.by_key.range((key, u8::MIN)..=(key, u8::MAX)).next().map(|(_, id)| *id)
    }

    /// The host that knows us by this address of ours.
    pub fn find_by(&self, key: HostKey, from: u8) -> Option<HostId> {
        self.by_key.get(&(key, from)).copied()
    }

    /// The host whose channel has this id on our side.
    #[inline]
    pub fn by_channel(&mut self, id: ChannelId) -> Option<u32> {
        if let Some((_, index)) = self.last.filter(|&(last, _)| last == id) {
            return Some(index);
        }
        let index = *self.by_channel.get(&id.0)?;
        self.last = Some((id, index));
        Some(index)
    }

    #[inline]
    pub fn at(&mut self, index: u32) -> Option<&mut Host<M>> {
        self.places.get_mut(index as usize)?.host.as_deref_mut()
    }

    #[inline]
    pub fn get(&self, id: HostId) -> Option<&Host<M>> {
        let place = self.places.get(id.index as usize)?;
        place.host.as_deref().filter(|_| place.life == id.life)
    }

    #[inline]
    pub fn get_mut(&mut self, id: HostId) -> Option<&mut Host<M>> {
        let place = self.places.get_mut(id.index as usize)?;
        place.host.as_deref_mut().filter(|_| place.life == id.life)
    }

    /// The host at an index, and its id.
    #[inline]
    pub fn entry(&mut self, index: u32) -> Option<(HostId, &mut Host<M>)> {
        let place = self.places.get_mut(index as usize)?;
        Some((HostId { index, life: place.life }, place.host.as_deref_mut()?))
    }

    /// The id of the host at an index.
    pub fn id(&self, index: u32) -> Option<HostId> {
        self.places.get(index as usize).map(|place| HostId { index, life: place.life })
    }

    /// How many hosts there were at one time, at the most.
    pub fn places(&self) -> usize {
        self.places.len()
    }

    /// The timers that are set for hosts.
    pub fn timers(&self) -> impl Iterator<Item = (Time, u32)> + '_ {
        let hosts = (0u32..).zip(&self.places);
        hosts.filter_map(|(index, place)| Some((place.host.as_ref()?.timer_at?, index)))
    }

    /// Whether no records wait for any host.
    pub fn all_sent(&self) -> bool {
        self.places.iter().filter_map(|place| place.host.as_ref()).all(|host| host.unsent == 0 || host.is_closing)
    }

    /// Whether nothing is under way to any host.
    pub fn all_acknowledged(&self) -> bool {
        let mut live = self.places.iter().filter_map(|place| place.host.as_ref()).filter(|host| !host.is_closing);
        live.all(|host| host.channel.in_flight() == 0)
    }

    /// Bytes of memory behind them, about: trees have some of their own.
    pub fn memory(&self) -> usize {
        use std::mem::size_of;
        let hosts = self.places.iter().filter_map(|place| place.host.as_deref());
        let each = |host: &Host<M>| {
            let kept: usize = host.abandoned.iter().map(|r| r.payload.capacity() + r.args.capacity() * 4).sum();
            let around = size_of::<Host<M>>() - size_of::<Channel<M>>() + host.others.capacity() * size_of::<Way>();
            around + host.channel.memory() + kept + host.abandoned.capacity() * size_of::<Abandoned>()
        };
        hosts.map(each).sum::<usize>()
            + self.places.capacity() * size_of::<Place<M>>()
            + self.free.capacity() * size_of::<u32>()
            + self.by_channel.len() * size_of::<(u32, u32)>()
            + self.by_key.len() * size_of::<(Entry, HostId)>()
    }

    /// Packets that channels dropped for good, those of hosts that are gone included.
    pub fn dropped(&self) -> Dropped {
        let hosts = self.places.iter().filter_map(|place| place.host.as_deref());
        hosts.fold(self.gone, |sum, host| sum.plus(&host.channel))
    }

    pub fn iter(&self) -> impl Iterator<Item = (HostId, HostKey)> + '_ {
        self.places.iter().enumerate().filter_map(|(index, place)| {
            let host = place.host.as_deref().filter(|h| !h.is_closing)?;
            Some((HostId { index: index as u32, life: place.life }, host.key))
        })
    }
}
