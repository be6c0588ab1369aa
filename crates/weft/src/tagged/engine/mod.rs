//! The state machine of an endpoint for tagged messages: its state, and its output to the program and to peers. Input
//! from peers is in `arrivals.rs`.

mod endings;
mod posted;
mod words;

use crate::tagged::peer::{Peer, Sending};
use crate::tagged::queues::{Once, Posted, Slab, Waiting};
use crate::tagged::{Directory, Envelope, PostError, Settings, Target, Working};
use std::collections::HashMap;
use std::sync::Arc;
use weft_core::bulk::{Placement, Turns};
use weft_core::{Endpoint, FlowId};
use weft_wire::tagged::Label;
use weft_wire::{Key, Name, Reason, MAX_PAYLOAD};

/// Number of known peers at which unmapped peers that say hello are refused.
pub(super) const UNMAPPED_MOST: usize = 1 << 16;

/// Largest number of entries in a translation table.
const TABLE_MOST: usize = 1 << 20;

/// Bytes that each message counts for at least in a receive of many messages.
const MANY_LEAST: usize = 64;

/// The state of an endpoint for tagged messages.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(super) endpoint: Endpoint,
    key: Key,
    pub(super) settings: Settings,
    pub(super) peers: Vec<Option<Peer>>,
    pub(super) by_name: HashMap<Name, u32>,
    by_index: Vec<Option<u32>>,
    /// Looks up peers that are not mapped.
    directory: Option<Arc<dyn Directory>>,
    /// The peers that send by each flow, by session and number.
    pub(super) sources: Vec<Flows>,
    /// Receives of many messages, and those of one whose message is being fetched.
    pub(super) receives: Slab<Receive>,
    /// Without tags, and with tags.
    pub(super) posted: [Posted; 2],
    pub(super) messages: Slab<Message>,
    pub(super) waiting: [Waiting; 2],
    pub(super) transfers: Slab<Transfer>,
    /// The age of the youngest receive or message, in order of arrival.
    pub(super) age: u64,
    /// Number of operations that are posted and have not ended.
    pub(super) operations: usize,
    pub(super) waiting_bytes: usize,
    injected_bytes: usize,
    /// Peers that asked for credit for messages, and have got none.
    asking: Vec<u32>,
    turns: Turns,
    /// The program freed the endpoint. It ends when its last words are sent.
    pub is_closing: bool,
    /// Messages that counted as sent and came back since.
    pub lost: u64,
}

/// The peers that send by the flows of a session.
#[derive(Debug, Default)]
pub(super) struct Flows {
    pub life: u32,
    pub peers: Vec<Option<u32>>,
}

/// A receive that is not in a queue alone.
#[derive(Debug)]
pub(super) struct Receive {
    pub target: Target,
    pub context: u64,
    many: Option<Many>,
    /// Number of messages whose contents are being fetched into it.
    pub transfers: u32,
    /// It is in a queue.
    pub is_posted: bool,
}

impl From<Once> for Receive {
    fn from(Once { target, context }: Once) -> Receive {
        Receive { target, context, many: None, transfers: 0, is_posted: false }
    }
}

/// A receive of many messages: where it is posted, and its progress.
#[derive(Debug)]
struct Many {
    peer: Option<u32>,
    space: usize,
    least: usize,
    at: usize,
    left: usize,
}

/// A message that is not matched, or that is claimed.
#[derive(Debug)]
pub(super) struct Message {
    pub peer: u32,
    /// The life of the peer when the message came.
    pub life: u32,
    pub age: u64,
    pub number: u32,
    pub label: Label,
    pub len: usize,
    pub units: u32,
    pub wants_done: bool,
    pub body: Body,
    pub is_claimed: bool,
}

#[derive(Debug)]
pub(super) enum Body {
    Here(Vec<u8>),
    /// The contents are at the sender and must be fetched.
    There,
    /// The contents cannot be fetched any more.
    Gone(Reason),
}

/// Contents that are being fetched.
#[derive(Debug)]
pub(super) struct Transfer {
    pub peer: u32,
    pub receive: u32,
    pub message: Envelope,
    pub number: u32,
    pub wants_done: bool,
    /// Where the contents begin in the buffer, and how many bytes are fetched.
    pub start: usize,
    pub room: usize,
    pub rest: Placement,
}

/// The matching space of a message: tagged and untagged messages are matched apart.
#[inline(always)]
pub(super) fn space(is_tagged: bool) -> usize {
    usize::from(is_tagged)
}

/// The bytes that an injected message counts for while it waits.
fn cost(len: usize) -> usize {
    len + std::mem::size_of::<Sending>()
}

impl Engine {
    pub fn new(endpoint: Endpoint, key: Key, settings: Settings) -> Engine {
        Engine {
            endpoint,
            key,
            settings: Settings { eager_most: settings.eager_most.min(MAX_PAYLOAD), ..settings },
            peers: Vec::new(),
            by_name: HashMap::new(),
            by_index: Vec::new(),
            directory: None,
            sources: Vec::new(),
            receives: Slab::default(),
            posted: Default::default(),
            messages: Slab::default(),
            waiting: Default::default(),
            transfers: Slab::default(),
            age: 0,
            operations: 0,
            waiting_bytes: 0,
            injected_bytes: 0,
            asking: Vec::new(),
            turns: Turns::default(),
            is_closing: false,
            lost: 0,
        }
    }

    // ---- peers

    pub fn map(&mut self, cx: &mut Working<'_>, index: u32, name: Name, key: Key) -> Result<(), PostError> {
        if index as usize >= TABLE_MOST {
            return Err(PostError::NotMapped(index));
        }
        let number = match self.by_name.get(&name) {
            Some(&number) => number,
            None => self.add_peer(cx, name, key).ok_or(PostError::Full)?,
        };
        self.set_key(cx, number, key);
        self.enter(index, number);
        Ok(())
    }

    /// Sets the directory for peers that are not mapped. Maps those that have already sent something.
    pub fn set_directory(&mut self, directory: Arc<dyn Directory>) {
        self.directory = Some(directory);
        let known: Vec<(Name, u32)> = self.by_name.iter().map(|(name, number)| (*name, *number)).collect();
        for (name, number) in known {
            if self.peers.get(number as usize).and_then(Option::as_ref).is_some_and(|peer| peer.index.is_none()) {
                self.enter_found(number, &name);
            }
        }
    }

    /// Whether a peer is mapped, or has sent something.
    pub fn knows(&self, name: &Name) -> bool {
        self.by_name.contains_key(name)
    }

    /// The number of the peer that the directory has at an unmapped index. The inner option is `None` if that peer has sent nothing
    /// yet.
    pub(super) fn known_at(&self, index: u32) -> Option<Option<u32>> {
        let (name, _) = self.directory.as_ref()?.peer_at(index)?;
        Some(self.by_name.get(&name).copied())
    }

    /// The number of the peer at an index. Maps it if only the directory has it.
    #[inline(always)]
    pub(super) fn number_for(&mut self, cx: &mut Working<'_>, index: u32) -> Result<u32, PostError> {
        match self.number_at(index) {
            Ok(number) => Ok(number),
            Err(error) => self.find_peer(cx, index, error),
        }
    }

    #[cold]
    #[inline(never)]
    fn find_peer(&mut self, cx: &mut Working<'_>, index: u32, error: PostError) -> Result<u32, PostError> {
        let found = self.directory.as_ref().and_then(|directory| directory.peer_at(index));
        let (name, key) = found.ok_or(error)?;
        self.map(cx, index, name, key)?;
        self.number_at(index)
    }

    /// The index of a peer in the directory.
    pub(in crate::tagged) fn index_of(&self, name: &Name) -> Option<u32> {
        self.directory.as_ref().and_then(|directory| directory.index_of(name))
    }

    /// Gives a peer without an index the one that the directory has for it.
    pub(super) fn enter_found(&mut self, number: u32, name: &Name) {
        let Some(index) = self.index_of(name).filter(|&index| (index as usize) < TABLE_MOST) else { return };
        match self.number_at(index) {
            Err(_) => self.enter(index, number),
            Ok(same) if same == number => {
                if let Some(peer) = self.peer(number) {
                    peer.index = Some(index);
                }
            }
            Ok(_) => {}
        }
    }

    pub fn map_peer(&mut self, index: u32, peer: u32) -> Result<(), PostError> {
        if index as usize >= TABLE_MOST || self.peer(peer).is_none() {
            return Err(PostError::NotMapped(index));
        }
        self.enter(index, peer);
        Ok(())
    }

    pub fn unmap(&mut self, index: u32) -> Result<(), PostError> {
        let number = self.empty(index).ok_or(PostError::NotMapped(index))?;
        // The directory may have the peer at another index too.
        let without = self.peers.get(number as usize).and_then(Option::as_ref).filter(|peer| peer.index.is_none());
        if let Some(name) = without.map(|peer| peer.name).filter(|name| self.index_of(name) != Some(index)) {
            self.enter_found(number, &name);
        }
        Ok(())
    }

    /// Empties an index. Returns the number of the peer that was there.
    fn empty(&mut self, index: u32) -> Option<u32> {
        let number = self.by_index.get_mut(index as usize)?.take()?;
        if let Some(peer) = self.peer(number).filter(|p| p.index == Some(index)) {
            peer.index = None;
        }
        Some(number)
    }

    pub fn lost(&self, index: u32) -> Option<Reason> {
        let number = self.number_at(index).ok()?;
        self.peers.get(number as usize)?.as_ref()?.lost
    }

    pub fn name_of(&self, peer: u32) -> Option<Name> {
        self.peers.get(peer as usize)?.as_ref().map(|p| p.name)
    }

    fn enter(&mut self, index: u32, number: u32) {
        // Remove the previous entry.
        self.empty(index);
        if self.by_index.len() <= index as usize {
            self.by_index.resize(index as usize + 1, None);
        }
        self.by_index[index as usize] = Some(number);
        if let Some(peer) = self.peer(number) {
            peer.index.get_or_insert(index);
        }
    }

    /// Adds a peer. Its number is also its index in the endpoint's own translation table.
    pub(super) fn add_peer(&mut self, cx: &mut Working<'_>, name: Name, key: Key) -> Option<u32> {
        let free = self.peers.iter().position(Option::is_none).filter(|_| self.by_name.len() < self.peers.len());
        let number = free.unwrap_or(self.peers.len()) as u32;
        cx.state.map(self.endpoint, number, name, key).ok()?;
        if free.is_none() {
            self.peers.push(None);
        }
        self.peers[number as usize] = Some(Peer::new(name, key));
        self.by_name.insert(name, number);
        Some(number)
    }

    /// Sets a peer's key, which the peer told itself or the program gave.
    pub(super) fn set_key(&mut self, cx: &mut Working<'_>, number: u32, key: Key) {
        let endpoint = self.endpoint;
        let Some(peer) = self.peer(number).filter(|p| !p.key.matches(key)) else { return };
        peer.key = key;
        // Cannot fail: the endpoint and the index are valid.
        let _ = cx.state.map(endpoint, number, peer.name, key);
    }

    #[inline(always)]
    pub(super) fn peer(&mut self, number: u32) -> Option<&mut Peer> {
        self.peers.get_mut(number as usize)?.as_mut()
    }

    #[inline(always)]
    pub(super) fn number_at(&self, index: u32) -> Result<u32, PostError> {
        self.by_index.get(index as usize).copied().flatten().ok_or(PostError::NotMapped(index))
    }

    /// Returns the peer that sends by a flow.
    #[inline(always)]
    pub(super) fn source_of(&self, flow: FlowId) -> Option<u32> {
        let flows = self.sources.get(flow.session.index as usize).filter(|flows| flows.life == flow.session.life)?;
        flows.peers.get(usize::from(flow.number)).copied().flatten()
    }
}
