//! The regions and cookies of an endpoint, and the rights to them.

use crate::direct::Mappable;
use crate::offers::Offers;
use crate::platform::Space;
use crate::tally::{Access, Tally};
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use base64::Engine as _;
use constant_time_eq::constant_time_eq_16;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;
use weft_core::FlowId;
use weft_wire::memory::{Credential, Place, RegionHandle, Secret};
use weft_wire::Reason;

/// Revoked regions and cookies that are remembered as revoked, of each kind. Older ones count as never having existed.
const REMEMBERED: usize = 1024;

/// At this number of offers of a region, those that have ended are removed. A window of weft's has at most 255 at a time.
const OFFERS_KEPT: usize = 256;

/// The operations that a key or cookie allows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Rights {
    /// Reads.
    pub read: bool,
    /// Writes.
    pub write: bool,
    /// Atomic operations.
    pub atomic: bool,
}

impl Rights {
    /// Everything.
    pub const ALL: Rights = Rights { read: true, write: true, atomic: true };
    /// Reads alone.
    pub const READ: Rights = Rights { read: true, write: false, atomic: false };
    /// Writes alone.
    pub const WRITE: Rights = Rights { read: false, write: true, atomic: false };
    /// Atomic operations alone.
    pub const ATOMIC: Rights = Rights { read: false, write: false, atomic: true };

    /// Whether all of `other` are among them.
    #[must_use]
    pub const fn contain(self, other: Rights) -> bool {
        (self.read || !other.read) && (self.write || !other.write) && (self.atomic || !other.atomic)
    }

    /// The rights that both have.
    #[must_use]
    pub const fn and(self, other: Rights) -> Rights {
        Rights { read: self.read && other.read, write: self.write && other.write, atomic: self.atomic && other.atomic }
    }
}

/// A region of an endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct RegionId {
    index: u32,
    /// How many regions had this index before.
    life: u32,
}

/// Low bits of a handle, which hold the region's index. The others count the regions that had the index before.
const HANDLE_BITS: u32 = 20;

impl RegionId {
    /// The handle. `None` if the index is too high.
    fn handle(self) -> Option<RegionHandle> {
        let place = self.index.checked_add(1).filter(|place| *place < 1 << HANDLE_BITS)?;
        Some(RegionHandle(self.life << HANDLE_BITS | place))
    }

    /// Its index in the endpoint's table, which another region may have had before.
    #[must_use]
    pub const fn index(self) -> u32 {
        self.index
    }
}

/// A part of a region: the range of a cookie, or one entry of a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// Its first byte.
    pub at: u64,
    /// How many bytes.
    pub len: u64,
}

/// A bearer capability: a process that has it may use the part of a region that it was made for (CLAN's RDMA cookie).
///
/// It is printed as `weftc1:` and base64url, which [`Cookie::from_str`] reads. `Debug` does not print its secret.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Cookie {
    index: u32,
    secret: Secret,
}

/// The text is not a cookie.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a cookie: a cookie is {PREFIX} and 27 letters, digits, - or _")]
pub struct CookieError;

weft_wire::debug_says_display!(CookieError);

const PREFIX: &str = "weftc1:";

impl Cookie {
    /// How many bytes [`Cookie::to_bytes`] gives.
    pub const BYTES: usize = 20;

    /// As bytes, to be handed on.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Cookie::BYTES] {
        let mut bytes = [0; Cookie::BYTES];
        bytes[..4].copy_from_slice(&self.index.to_le_bytes());
        bytes[4..].copy_from_slice(&self.secret);
        bytes
    }

    /// The cookie of bytes that were handed on.
    #[must_use]
    pub fn from_bytes(bytes: [u8; Cookie::BYTES]) -> Cookie {
        let (index, secret) = bytes.split_at(4);
        let mut cookie = Cookie { index: 0, secret: [0; 16] };
        let mut low = [0; 4];
        low.copy_from_slice(index);
        cookie.index = u32::from_le_bytes(low);
        cookie.secret.copy_from_slice(secret);
        cookie
    }
}

impl From<Cookie> for Credential {
    fn from(cookie: Cookie) -> Credential {
        Credential::Cookie { index: cookie.index, secret: cookie.secret }
    }
}

impl fmt::Debug for Cookie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a cookie")
    }
}

impl fmt::Display for Cookie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PREFIX)?;
        f.write_str(&URL_SAFE_NO_PAD.encode(self.to_bytes()))
    }
}

impl FromStr for Cookie {
    type Err = CookieError;

    fn from_str(text: &str) -> Result<Cookie, CookieError> {
        let rest = text.trim().strip_prefix(PREFIX).ok_or(CookieError)?;
        let bytes = URL_SAFE_NO_PAD.decode(rest).map_err(|_| CookieError)?;
        Ok(Cookie::from_bytes(bytes.try_into().map_err(|_| CookieError)?))
    }
}

/// Why a region or a cookie was not made.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RegionError {
    /// Another region is open under that key.
    #[error(
        "the key is taken: another region of this endpoint is open under it; choose another key, or revoke that region"
    )]
    KeyTaken,
    /// The endpoint has as many regions, or cookies, as it may.
    #[error(
        "too many: the endpoint has as many regions or cookies as it may (regions_most, cookies_most); revoke some"
    )]
    TooMany,
    /// The region was revoked.
    #[error("the region was revoked; open it again")]
    Revoked,
    /// The part is not within the region.
    #[error("outside: the part is not within the region")]
    Outside,
    /// The cookie asks for rights that its region does not have.
    #[error("no such right: a cookie has no right that its region has not")]
    NoRight,
}

weft_wire::debug_says_display!(RegionError);

/// The result of a check: a range of a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grant {
    /// The region.
    pub region: RegionId,
    /// Their beginning, from the region's.
    pub at: u64,
    /// Whether operations on the region are counted.
    pub is_counted: bool,
}

impl Grant {
    /// The region, if operations on it are counted.
    pub(crate) fn counted(self) -> Option<RegionId> {
        self.is_counted.then_some(self.region)
    }
}

/// Indexed slots for regions or cookies. A revoked entry keeps its slot for a while, so that it can be told from one that never existed.
#[derive(Debug)]
struct Places<V> {
    places: Vec<V>,
    /// Places of revoked ones, oldest first.
    free: VecDeque<u32>,
    most: usize,
}

impl<V> Places<V> {
    fn new(most: usize) -> Places<V> {
        Places { places: Vec::new(), free: VecDeque::new(), most: most.min(u32::MAX as usize / 2) }
    }

    fn live(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// The slot of the entry that was revoked longest ago, if enough revoked ones are remembered. An error if all slots are in use.
    fn reuse(&mut self) -> Result<Option<u32>, RegionError> {
        match (self.live() < self.most, self.free.len() > REMEMBERED) {
            (false, _) => Err(RegionError::TooMany),
            (true, true) => Ok(self.free.pop_front()),
            (true, false) => Ok(None),
        }
    }

    fn push(&mut self, value: V) -> u32 {
        self.places.push(value);
        self.places.len() as u32 - 1
    }
}

#[derive(Debug)]
struct Region<S> {
    /// How many regions had this slot before.
    life: u32,
    key: u64,
    rights: Rights,
    /// `None` after it was revoked.
    space: Option<S>,
    /// When it is to be revoked, if it is.
    end: Option<Duration>,
    /// Where offsets by its key begin.
    key_base: u64,
    /// Where offsets by its handle begin. `None` if its handle may not be used.
    handle_base: Option<u64>,
    /// Where operations on it are counted. Empty for most regions.
    tallies: Vec<Tally>,
}

#[derive(Debug)]
struct Narrow {
    secret: Secret,
    region: RegionId,
    part: Part,
    rights: Rights,
    is_revoked: bool,
    /// When it is to be revoked, if it is.
    end: Option<Duration>,
}

/// A region or cookie that ends in time, by its index.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Ends {
    Region(u32),
    Cookie(u32),
}

/// The regions and cookies of an endpoint.
#[derive(Debug)]
pub struct Table<S> {
    regions: Places<Region<S>>,
    /// By key: the region that has it, or the last one that had it and is remembered.
    by_key: BTreeMap<u64, u32>,
    /// The open regions, by size.
    by_size: BTreeSet<(u64, u32)>,
    /// The sum of their bytes.
    bytes: u128,
    revoked: u64,
    cookies: Places<Narrow>,
    /// Open regions and cookies that end in time, the next one first.
    ends: BTreeSet<(Duration, Ends)>,
    /// Offers to neighbours.
    offers: Offers,
}

impl<S: Space> Table<S> {
    /// A table without regions, with bounds for regions and cookies.
    #[must_use]
    pub fn new(regions_most: usize, cookies_most: usize) -> Table<S> {
        Table {
            regions: Places::new(regions_most),
            by_key: BTreeMap::new(),
            by_size: BTreeSet::new(),
            bytes: 0,
            revoked: 0,
            cookies: Places::new(cookies_most),
            ends: BTreeSet::new(),
            offers: Offers::default(),
        }
    }

    /// Opens a region under a key.
    ///
    /// # Errors
    /// If the key is taken, or there are too many regions.
    pub fn open(&mut self, key: u64, rights: Rights, space: S) -> Result<RegionId, RegionError> {
        let found = self.by_key.get(&key).and_then(|&index| self.regions.places.get(index as usize));
        if found.is_some_and(|region| region.space.is_some()) {
            return Err(RegionError::KeyTaken);
        }
        let reused = self.regions.reuse()?;
        let bytes = space.len();
        let (end, handle_base, tallies) = (None, None, Vec::new());
        let mut region = Region { life: 0, key, rights, space: Some(space), end, key_base: 0, handle_base, tallies };
        let index = match reused.and_then(|index| self.regions.places.get_mut(index as usize).map(|old| (index, old))) {
            Some((index, old)) => {
                region.life = old.life;
                let forgotten = std::mem::replace(old, region).key;
                if self.by_key.get(&forgotten) == Some(&index) {
                    self.by_key.remove(&forgotten);
                }
                index
            }
            None => self.regions.push(region),
        };
        self.by_key.insert(key, index);
        self.by_size.insert((bytes, index));
        self.bytes += u128::from(bytes);
        Ok(RegionId { index, life: self.regions.places[index as usize].life })
    }

    /// The memory of a region that was not revoked.
    pub fn space(&self, region: RegionId) -> Option<&S> {
        self.region(region).map(|(_, space)| space)
    }

    /// The key of a region that was not revoked.
    pub fn key(&self, region: RegionId) -> Option<u64> {
        self.region(region).map(|(region, _)| region.key)
    }

    /// The regions that were not revoked.
    pub fn regions(&self) -> impl Iterator<Item = RegionId> + '_ {
        let open = self.regions.places.iter().zip(0..).filter(|(region, _)| region.space.is_some());
        open.map(|(region, index)| RegionId { index, life: region.life })
    }

    /// The regions that were not revoked, the largest one first.
    pub fn largest(&self) -> impl Iterator<Item = (RegionId, Rights, &S)> + '_ {
        self.by_size.iter().rev().filter_map(|&(_, index)| {
            let region = self.regions.places.get(index as usize)?;
            Some((RegionId { index, life: region.life }, region.rights, region.space.as_ref()?))
        })
    }

    /// How many regions were not revoked.
    pub fn open_regions(&self) -> usize {
        self.regions.live()
    }

    /// Bytes of the regions that were not revoked.
    pub fn bytes(&self) -> u64 {
        u64::try_from(self.bytes).unwrap_or(u64::MAX)
    }

    /// How many regions were revoked.
    pub fn revoked(&self) -> u64 {
        self.revoked
    }

    /// How often a region is mapped by neighbours.
    pub fn mapped(&self, region: RegionId) -> u32 {
        u32::try_from(self.offers.of_region(region)).unwrap_or(u32::MAX)
    }

    /// Offers the memory of a credential to the neighbour at the other end of a flow, if there is one. `None` if the memory cannot be
    /// mapped. Also `None` if it ends in time or operations on it are counted: then the owner must carry out each operation.
    ///
    /// # Errors
    /// If the credential is not good.
    pub fn offer(&mut self, by: Credential, neighbour: Option<FlowId>) -> Result<Option<Mappable>, Reason> {
        let (id, part, rights) = self.find(by)?;
        let (region, space) = self.region(id).ok_or(Reason::Revoked)?;
        let is_for_owner = self.is_timed(by) || !region.tallies.is_empty();
        let Some(flow) = neighbour.filter(|_| !is_for_owner) else { return Ok(None) };
        let part = part.unwrap_or(Part { at: 0, len: space.len() });
        let rights = rights.unwrap_or(region.rights).and(region.rights);
        let (base, cookie) = match by {
            Credential::Key(_) => (region.key_base, None),
            Credential::Handle(_) => (region.handle_base.unwrap_or(0), None),
            Credential::Cookie { index, .. } => (0, Some(index)),
        };
        let Some((ticket, offer)) = space.offer(part.at, part.len) else { return Ok(None) };
        if self.offers.of_region(id) >= OFFERS_KEPT {
            let space = self.regions.places.get(id.index as usize).and_then(|region| region.space.as_ref());
            self.offers.keep(id, |ticket| space.is_some_and(|space| space.is_offered(ticket)));
        }
        self.offers.add(id, cookie, flow, ticket);
        Ok(Some(Mappable { rights, base, offer }))
    }

    /// A peer is gone, and with it any mappings that it had.
    pub(crate) fn flow_closed(&mut self, flow: FlowId) {
        for (region, tickets) in self.offers.take_flow(flow) {
            if let Some(space) = self.space(region) {
                tickets.into_iter().for_each(|ticket| space.let_go(ticket));
            }
        }
    }

    /// Ends the offers for a region that stays open.
    fn withdraw(&mut self, id: RegionId) {
        let tickets = self.offers.take_region(id);
        if let Some(space) = self.space(id) {
            space.withdraw(&tickets);
        }
    }

    /// Ends the offers for a cookie.
    fn withdraw_cookie(&mut self, index: u32) {
        let Some(id) = self.cookies.places.get(index as usize).map(|narrow| narrow.region) else { return };
        let tickets = self.offers.take_cookie(id, index);
        if let Some(space) = self.space(id) {
            space.withdraw(&tickets);
        }
    }

    /// How many cookies were made and not revoked.
    pub fn cookies(&self) -> usize {
        self.cookies.live()
    }

    fn region(&self, id: RegionId) -> Option<(&Region<S>, &S)> {
        let region = self.regions.places.get(id.index as usize).filter(|region| region.life == id.life)?;
        region.space.as_ref().map(|space| (region, space))
    }

    /// Makes a cookie for a part of a region. `secret` is random.
    ///
    /// # Errors
    /// If the region was revoked or lacks the part or the rights, or there are too many cookies.
    pub fn cookie(&mut self, id: RegionId, part: Part, rights: Rights, secret: Secret) -> Result<Cookie, RegionError> {
        let (region, space) = self.region(id).ok_or(RegionError::Revoked)?;
        if part.at.checked_add(part.len).is_none_or(|end| end > space.len()) {
            return Err(RegionError::Outside);
        }
        if !region.rights.contain(rights) {
            return Err(RegionError::NoRight);
        }
        let narrow = Narrow { secret, region: id, part, rights, is_revoked: false, end: None };
        let index = match self.cookies.reuse()? {
            Some(index) => {
                self.cookies.places[index as usize] = narrow;
                index
            }
            None => self.cookies.push(narrow),
        };
        Ok(Cookie { index, secret })
    }

    /// Revokes a region and all cookies for it. Returns its memory; `None` if it was revoked before. Blocks for some microseconds if
    /// neighbours map it, and up to 200 ms if one of them was stopped in the middle of an access.
    pub fn revoke(&mut self, id: RegionId) -> Option<S> {
        self.withdraw(id);
        let region = self.regions.places.get_mut(id.index as usize).filter(|region| region.life == id.life)?;
        let space = region.space.take()?;
        region.tallies.clear();
        region.life = region.life.wrapping_add(1);
        if let Some(end) = region.end.take() {
            self.ends.remove(&(end, Ends::Region(id.index)));
        }
        self.regions.free.push_back(id.index);
        self.by_size.remove(&(space.len(), id.index));
        self.bytes = self.bytes.saturating_sub(u128::from(space.len()));
        self.revoked += 1;
        let Places { places, free, .. } = &mut self.cookies;
        for (narrow, index) in places.iter_mut().zip(0..).filter(|(narrow, _)| narrow.region == id) {
            if !std::mem::replace(&mut narrow.is_revoked, true) {
                free.push_back(index);
                if let Some(end) = narrow.end.take() {
                    self.ends.remove(&(end, Ends::Cookie(index)));
                }
            }
        }
        Some(space)
    }

    /// Revokes a cookie. False if it does not exist. Blocks as [`Table::revoke`] does.
    pub fn revoke_cookie(&mut self, cookie: Cookie) -> bool {
        let narrow = self.cookies.places.get(cookie.index as usize);
        let is_there = narrow.is_some_and(|narrow| !narrow.is_revoked && is_same(&narrow.secret, &cookie.secret));
        if is_there {
            self.end_cookie(cookie.index);
        }
        is_there
    }

    fn end_cookie(&mut self, index: u32) {
        self.withdraw_cookie(index);
        let Some(narrow) = self.cookies.places.get_mut(index as usize) else { return };
        narrow.is_revoked = true;
        if let Some(end) = narrow.end.take() {
            self.ends.remove(&(end, Ends::Cookie(index)));
        }
        self.cookies.free.push_back(index);
    }

    /// Opens a region under its handle too, to those that may use its key, and returns the handle. Offsets by the handle count from `base`:
    /// pass the region's address to make them addresses. A later call sets another base. `None` if the region was revoked, or its index is
    /// too high for a handle (2^20 - 1 indexes have one).
    ///
    /// A handle is reused only after its index had 4,096 more regions. A freed index rests until 1,024 other regions were revoked.
    pub fn handle(&mut self, id: RegionId, base: u64) -> Option<RegionHandle> {
        let region = self.regions.places.get_mut(id.index as usize);
        let region = region.filter(|region| region.life == id.life && region.space.is_some())?;
        let handle = id.handle()?;
        let before = region.handle_base.replace(base);
        if before.is_some_and(|before| before != base) {
            // Neighbours that map it count from the old base.
            self.withdraw(id);
        }
        Some(handle)
    }

    /// Sets where offsets by a region's key count from: pass the region's address to make them addresses. It is 0 at first. False if the
    /// region was revoked.
    pub fn count_from(&mut self, id: RegionId, base: u64) -> bool {
        let region = self.regions.places.get_mut(id.index as usize);
        let region = region.filter(|region| region.life == id.life && region.space.is_some());
        let Some(region) = region else { return false };
        if std::mem::replace(&mut region.key_base, base) != base {
            // Neighbours that map it count from the old base.
            self.withdraw(id);
        }
        true
    }

    // ---- tallies

    /// Counts operations on a region from now on, in addition to earlier tallies. False if the region was revoked.
    ///
    /// From then on the owner carries out all of them: neighbours no longer map the region. Blocks as [`Table::revoke`] does.
    pub fn count(&mut self, id: RegionId, tally: Tally) -> bool {
        let region = self.regions.places.get_mut(id.index as usize);
        let region = region.filter(|region| region.life == id.life && region.space.is_some());
        let Some(region) = region else { return false };
        region.tallies.push(tally);
        self.withdraw(id);
        true
    }

    /// Counts an operation on a region that has ended. True if the region has a tally.
    pub(crate) fn add(&self, id: RegionId, access: Access) -> bool {
        let Some((region, _)) = self.region(id) else { return false };
        region.tallies.iter().for_each(|tally| tally.add(access));
        !region.tallies.is_empty()
    }

    // ---- ends in time

    /// Sets when [`Table::expire`] revokes a region: a time on the caller's clock, or never. Replaces an earlier end. False if the region
    /// was revoked.
    pub fn set_end(&mut self, id: RegionId, end: Option<Duration>) -> bool {
        let region = self.regions.places.get_mut(id.index as usize);
        let Some(region) = region.filter(|region| region.life == id.life && region.space.is_some()) else {
            return false;
        };
        let old = std::mem::replace(&mut region.end, end);
        self.move_end(Ends::Region(id.index), old, end);
        if end.is_some() {
            self.withdraw(id);
        }
        true
    }

    /// Sets when [`Table::expire`] revokes a cookie.
    pub fn set_cookie_end(&mut self, cookie: Cookie, end: Option<Duration>) -> bool {
        let narrow = self.cookies.places.get_mut(cookie.index as usize);
        let Some(narrow) = narrow.filter(|n| !n.is_revoked && is_same(&n.secret, &cookie.secret)) else { return false };
        let old = std::mem::replace(&mut narrow.end, end);
        self.move_end(Ends::Cookie(cookie.index), old, end);
        if end.is_some() {
            self.withdraw_cookie(cookie.index);
        }
        true
    }

    fn move_end(&mut self, what: Ends, from: Option<Duration>, to: Option<Duration>) {
        if let Some(from) = from {
            self.ends.remove(&(from, what));
        }
        self.ends.extend(to.map(|to| (to, what)));
    }

    /// When the next region or cookie ends.
    pub fn next_end(&self) -> Option<Duration> {
        self.ends.first().map(|(end, _)| *end)
    }

    /// Revokes what has ended by now. Returns the number of regions and cookies.
    pub fn expire(&mut self, now: Duration) -> usize {
        let mut expired = 0;
        while let Some(&(_, what)) = self.ends.first().filter(|(end, _)| *end <= now) {
            // Whatever it names, remove the entry.
            self.ends.pop_first();
            match what {
                Ends::Cookie(index) => self.end_cookie(index),
                Ends::Region(index) => {
                    let life = self.regions.places.get(index as usize).map_or(0, |region| region.life);
                    drop(self.revoke(RegionId { index, life }));
                }
            }
            expired += 1;
        }
        expired
    }

    /// Whether the region or cookie of this credential ends in time, so that an access by it needs the time.
    pub fn is_timed(&self, by: Credential) -> bool {
        if self.ends.is_empty() {
            return false;
        }
        let ends = |id: RegionId| self.region(id).is_some_and(|(region, _)| region.end.is_some());
        match by {
            Credential::Cookie { index, .. } => {
                let narrow = self.cookies.places.get(index as usize);
                narrow.is_some_and(|narrow| narrow.end.is_some() || ends(narrow.region))
            }
            by => self.find(by).is_ok_and(|(id, ..)| ends(id)),
        }
    }

    /// Checks that an operation that needs this right may use `len` bytes at a place. Returns their range and memory.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self, place: Place, len: u64, right: Rights) -> Result<(Grant, &S), Reason> {
        let (id, part, rights) = self.find(place.by)?;
        let (region, space) = self.region(id).ok_or(Reason::Revoked)?;
        let base = match place.by {
            Credential::Key(_) => region.key_base,
            Credential::Handle(_) => region.handle_base.unwrap_or(0),
            Credential::Cookie { .. } => 0,
        };
        let offset = place.at.checked_sub(base).ok_or(Reason::OutsideRegion)?;
        let end = offset.checked_add(len).ok_or(Reason::OutsideRegion)?;
        if !rights.unwrap_or(region.rights).and(region.rights).contain(right) {
            return Err(Reason::NoRight);
        }
        let part = part.unwrap_or(Part { at: 0, len: space.len() });
        if end > part.len {
            return Err(Reason::OutsideRegion);
        }
        let at = part.at.checked_add(offset).ok_or(Reason::OutsideRegion)?;
        Ok((Grant { region: id, at, is_counted: !region.tallies.is_empty() }, space))
    }

    /// The memory of a region for an access that was checked before, if the credential it was checked by is still good.
    ///
    /// # Errors
    /// If the region or the cookie was revoked since.
    pub fn check_again(&self, id: RegionId, by: Credential) -> Result<&S, Reason> {
        if let Credential::Cookie { .. } = by {
            self.find(by).ok().filter(|(region, ..)| *region == id).ok_or(Reason::Revoked)?;
        }
        self.space(id).ok_or(Reason::Revoked)
    }

    /// The index in the table of the region that a credential names, if it is valid.
    pub fn place_of(&self, by: Credential) -> Option<u32> {
        self.find(by).ok().map(|(region, ..)| region.index)
    }

    /// Whether something ends in time.
    #[inline]
    pub fn has_ends(&self) -> bool {
        !self.ends.is_empty()
    }

    /// The memory of a region that is open under a key, and the offset in it of a place, if `len` bytes there may be written and no tally
    /// counts that. Otherwise [`Table::check`] says why not.
    #[inline]
    pub fn writable(&self, key: u64, at: u64, len: u64) -> Option<(&S, u64)> {
        let region = self.regions.places.get(*self.by_key.get(&key)? as usize)?;
        let space = region.space.as_ref()?;
        let at = at.checked_sub(region.key_base)?;
        (region.rights.write && region.tallies.is_empty() && at.checked_add(len)? <= space.len()).then_some((space, at))
    }

    /// The region of a credential, and what a cookie narrows it to.
    fn find(&self, by: Credential) -> Result<(RegionId, Option<Part>, Option<Rights>), Reason> {
        match by {
            Credential::Key(key) => {
                let index = *self.by_key.get(&key).ok_or(Reason::NoRegion)?;
                let region = self.regions.places.get(index as usize).ok_or(Reason::NoRegion)?;
                Ok((RegionId { index, life: region.life }, None, None))
            }
            Credential::Handle(handle) => {
                let index = (handle & ((1 << HANDLE_BITS) - 1)).checked_sub(1).ok_or(Reason::NoRegion)?;
                let region = self.regions.places.get(index as usize).filter(|region| region.handle_base.is_some());
                let region = region.ok_or(Reason::NoRegion)?;
                // The revocation has already counted the next region of this slot.
                let is_open = region.space.is_some();
                let life = if is_open { region.life } else { region.life.wrapping_sub(1) };
                match (life << HANDLE_BITS == handle >> HANDLE_BITS << HANDLE_BITS, is_open) {
                    (false, _) => Err(Reason::NoRegion),
                    (true, false) => Err(Reason::Revoked),
                    (true, true) => Ok((RegionId { index, life }, None, None)),
                }
            }
            Credential::Cookie { index, secret } => {
                let narrow = self.cookies.places.get(index as usize);
                let narrow = narrow.filter(|narrow| is_same(&narrow.secret, &secret)).ok_or(Reason::NoRegion)?;
                match narrow.is_revoked {
                    false => Ok((narrow.region, Some(narrow.part), Some(narrow.rights))),
                    true => Err(Reason::Revoked),
                }
            }
        }
    }
}

/// Compares secrets in constant time.
fn is_same(one: &Secret, other: &Secret) -> bool {
    constant_time_eq_16(one, other)
}

#[cfg(test)]
mod tests;
