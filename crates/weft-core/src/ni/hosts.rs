//! The hosts of a network interface, and the indexes that find them.

use super::Channel;
use super::{HostId, HostKey, Way};
use std::collections::BTreeMap;
use weft_transport::{Memory, Time};
use weft_wire::frame::StreamId;
use weft_wire::packet::ChannelId;
use weft_wire::path::Abandoned;
use weft_wire::{Epoch, HostAddress, Reason};

/// The state of a host.
#[derive(Debug)]
pub(super) struct Host<M> {
    pub key: HostKey,
    /// The way to it. While `others` are tried too, the preferred way.
    pub way: Way,
    /// Other ways that are tried until the host answers on one of them.
    pub others: Box<[Way]>,
    /// The preferred way was tried alone.
    pub has_called: bool,
    /// The reason that a wrong host gave on one of the ways.
    pub refusal: Option<Reason>,
    pub channel: Channel<M>,
    /// It is in the list of hosts that may have something to send.
    pub is_marked: bool,
    /// Approximate bytes of unsent records.
    pub unsent: usize,
    /// When something was last sent to it.
    pub sent_at: Time,
    /// An event for unreliable messages is queued.
    pub is_told_unreliable: bool,
    pub is_watched: bool,
    /// There was a session that both sides knew of.
    pub is_accepted: bool,
    /// Somebody waits for it.
    pub is_wanted: bool,
    /// Its network interface serves many programs, each with an epoch of its own.
    pub serves_many: bool,
    /// It is closing: it was told, and is kept until it has acknowledged that.
    pub is_closing: bool,
    /// The current timer. Other timers of this host are stale.
    pub timer_at: Option<Time>,
    /// Records of closed streams that the host may not have taken.
    pub abandoned: Vec<(StreamId, Vec<Abandoned>)>,
}

impl<M: Memory> Host<M> {
    pub fn new(key: HostKey, way: Way, channel: Channel<M>) -> Host<M> {
        Host {
            key,
            way,
            others: Box::default(),
            has_called: false,
            refusal: None,
            channel,
            is_marked: false,
            unsent: 0,
            sent_at: Time::default(),
            is_told_unreliable: false,
            is_watched: false,
            is_accepted: false,
            is_wanted: false,
            serves_many: false,
            is_closing: false,
            timer_at: None,
            abandoned: Vec::new(),
        }
    }

    /// Whether it has acknowledged everything that was pushed.
    pub fn has_all_come(&self) -> bool {
        self.channel.in_flight() == 0 && !self.channel.has_unsent()
    }

    /// The entries under which it is found, one for each way that is tried.
    fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
        std::iter::once(&self.way).chain(&*self.others).map(|way| (HostKey { address: way.to, ..self.key }, way.from))
    }
}

/// The key of a host, and our own address by which it knows us. It may have called us by any of our addresses.
type Entry = (HostKey, u8);

#[derive(Debug)]
struct Place<M> {
    life: u32,
    host: Option<Box<Host<M>>>,
}

/// All hosts: by index, by the channel id in packets, and by key.
#[derive(Debug)]
pub(super) struct Hosts<M> {
    places: Vec<Place<M>>,
    free: Vec<u32>,
    by_channel: BTreeMap<u32, u32>,
    by_key: BTreeMap<Entry, HostId>,
    /// The last channel id that was looked up, and the index found.
    last: Option<(ChannelId, u32)>,
    /// Packets dropped by channels of removed hosts.
    gone: Dropped,
}

/// Packets that channels dropped for good.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Dropped {
    /// Damaged packets, and datagrams that are not packets.
    pub damaged: u64,
    /// Packets of other channels, duplicates, and packets with impossible contents.
    pub refused: u64,
    /// Unreliable messages that were dropped.
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
            // When we call ourselves, the caller's entry stays, so that it is found and not the answering host.
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

    /// Removes a host's entries, so that its key can belong to a new host. No other ways to it are tried any more.
    pub fn forget_key(&mut self, id: HostId) {
        let Some(place) = self.places.get_mut(id.index as usize).filter(|p| p.life == id.life) else { return };
        let Some(mut host) = place.host.take() else { return };
        self.forget_keys_of(&host, id);
        host.others = Box::default();
        self.places[id.index as usize].host = Some(host);
    }

    /// Notes the epoch of a host's network interface, which differs from that of the program that was called.
    pub fn learn(&mut self, id: HostId, epoch: Epoch) {
        self.forget_key(id);
        let Some(host) = self.get_mut(id) else { return };
        (host.key.epoch, host.serves_many) = (epoch, true);
        let entries: Vec<Entry> = host.entries().collect();
        for entry in entries {
            // If both sides called at once there are two entries, and either will do.
            self.by_key.entry(entry).or_insert(id);
        }
    }

    /// Sets the way to a host, and the other ways that are still tried.
    pub fn set_ways(&mut self, id: HostId, way: Way, others: Box<[Way]>) {
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

    /// Returns a host at this address that serves many programs.
    pub fn find_server(&self, address: HostAddress) -> Option<HostId> {
        let servers = self.at_address(address).filter_map(|id| Some((id, self.get(id)?)));
        let open = servers.filter(|(_, host)| host.serves_many && host.channel.is_open());
        // A restarted host may exist beside its previous life, which is not given up yet.
        open.max_by_key(|(_, host)| host.channel.heard_at()).map(|(id, _)| id)
    }

    /// Returns a host at this address that we are still calling from this address of ours.
    pub fn find_called(&self, address: HostAddress, from: u8) -> Option<HostId> {
        let is_called =
            |id: &HostId| self.get(*id).is_some_and(|host| host.way.from == from && host.channel.is_calling());
        self.at_address(address).find(is_called)
    }

    fn at_address(&self, address: HostAddress) -> impl Iterator<Item = HostId> + '_ {
        let key = |epoch| HostKey { address, epoch: Epoch(epoch) };
        self.by_key.range((key(u64::MIN), u8::MIN)..=(key(u64::MAX), u8::MAX)).map(|(_, id)| *id)
    }

    /// Returns the host that knows us by this address of ours.
    pub fn find_by(&self, key: HostKey, from: u8) -> Option<HostId> {
        self.by_key.get(&(key, from)).copied()
    }

    /// Returns the index of the host whose channel has this id on our side.
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

    /// Returns the host at an index, and its id.
    #[inline]
    pub fn entry(&mut self, index: u32) -> Option<(HostId, &mut Host<M>)> {
        let place = self.places.get_mut(index as usize)?;
        Some((HostId { index, life: place.life }, place.host.as_deref_mut()?))
    }

    /// Returns the id of the host at an index.
    pub fn id(&self, index: u32) -> Option<HostId> {
        self.places.get(index as usize).map(|place| HostId { index, life: place.life })
    }

    /// Returns the number of hosts, those that are closing included.
    pub fn count(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Returns the number of hosts that were called and have not answered. Looks at all places.
    pub fn calling(&self) -> usize {
        self.places.iter().filter_map(|place| place.host.as_ref()).filter(|host| host.channel.is_calling()).count()
    }

    /// Returns the number of places: the largest number of hosts so far.
    pub fn places(&self) -> usize {
        self.places.len()
    }

    /// Returns the timers that are set for hosts.
    pub fn timers(&self) -> impl Iterator<Item = (Time, u32)> + '_ {
        let hosts = (0u32..).zip(&self.places);
        hosts.filter_map(|(index, place)| Some((place.host.as_ref()?.timer_at?, index)))
    }

    /// Whether no records wait for any host.
    pub fn all_sent(&self) -> bool {
        self.places
            .iter()
            .filter_map(|place| place.host.as_ref())
            .all(|host| host.is_closing || (host.unsent == 0 && !host.channel.has_unsent()))
    }

    /// Whether no packets are in flight to any host.
    pub fn all_acknowledged(&self) -> bool {
        let mut live = self.places.iter().filter_map(|place| place.host.as_ref()).filter(|host| !host.is_closing);
        live.all(|host| host.channel.in_flight() == 0)
    }

    /// Approximate bytes of heap memory in use. The inner nodes of trees are not counted.
    pub fn memory(&self) -> usize {
        use std::mem::size_of;
        let hosts = self.places.iter().filter_map(|place| place.host.as_deref());
        let each = |host: &Host<M>| {
            let records = host.abandoned.iter().flat_map(|(_, records)| records);
            let kept: usize =
                records.map(|r| size_of::<Abandoned>() + r.payload.capacity() + r.args.capacity() * 4).sum();
            let around = size_of::<Host<M>>() - size_of::<Channel<M>>() + host.others.len() * size_of::<Way>();
            around + host.channel.memory() + kept
        };
        hosts.map(each).sum::<usize>()
            + self.places.capacity() * size_of::<Place<M>>()
            + self.free.capacity() * size_of::<u32>()
            + self.by_channel.len() * size_of::<(u32, u32)>()
            + self.by_key.len() * size_of::<(Entry, HostId)>()
    }

    /// Packets that channels dropped for good, including channels of removed hosts.
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
