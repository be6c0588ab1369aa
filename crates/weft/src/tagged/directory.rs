//! Directories: look-up of peers that an endpoint may talk to, but mostly does not.

use weft_wire::{Key, Name};

/// Finds peers that are not mapped yet: by the index that the program uses, and by the name of a peer that sends first. The
/// endpoint then maps the peer, as [`Tagged::map`](super::Tagged::map) does.
///
/// An entry that is never used costs memory only in the directory, none in the endpoint: a rank that talks to ten of a thousand
/// ranks has ten peers. libfabric's address vectors are directories.
///
/// Both calls are made under the bundle's lock, and must not call the bundle. A service thread may make them.
pub trait Directory: std::fmt::Debug + Send + Sync {
    /// The name and key of the peer at an index.
    fn peer_at(&self, index: u32) -> Option<(Name, Key)>;

    /// The index of a peer.
    fn index_of(&self, name: &Name) -> Option<u32>;
}
