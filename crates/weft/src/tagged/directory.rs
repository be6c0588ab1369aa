//! Directories: peers that an endpoint may have much to do with, and mostly has not.

use weft_wire::{Key, Name};

/// Where an endpoint finds peers that nothing was mapped for yet: by the index that the program names, and by the name of one that speaks
/// first. What is found is mapped then, as by [`Tagged::map`](super::Tagged::map).
///
/// An entry that is never used costs what the directory keeps for it, and nothing in the endpoint: one of a thousand ranks that talks to ten
/// of them has ten peers. (libfabric's address vectors.)
///
/// Both calls are made under the bundle's lock, and must not call the bundle. A service thread may make them.
pub trait Directory: std::fmt::Debug + Send + Sync {
    /// The name and key of the peer at an index.
    fn peer_at(&self, index: u32) -> Option<(Name, Key)>;

    /// The index of a peer.
    fn index_of(&self, name: &Name) -> Option<u32>;
}
