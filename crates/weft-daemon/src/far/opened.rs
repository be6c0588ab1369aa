//! Streams that were opened here: each user has a share of those to each host.

use crate::quota::Share;
use std::collections::BTreeMap;
use weft_core::ni::HostId;
use weft_transport::Settings;
use weft_wire::frame::StreamId;
use weft_wire::Uid;

/// The users that opened streams, and how many each of them has to each host.
#[derive(Debug, Default)]
pub(super) struct Opened {
    users: BTreeMap<(HostId, StreamId), Uid>,
    shares: BTreeMap<HostId, Share>,
}

impl Opened {
    /// Takes one for a user. False, with nothing taken, if the user has its share of those to this host.
    pub fn take(&mut self, host: HostId, user: Uid) -> bool {
        let most = Settings::default().streams_most.into();
        let share = self.shares.entry(host).or_insert_with(|| Share::new(most));
        let is_taken = share.take(user, 1);
        self.forget(host);
        is_taken
    }

    /// Notes the stream that was taken.
    pub fn note(&mut self, stream: (HostId, StreamId), user: Uid) {
        self.users.insert(stream, user);
    }

    /// Gives back one that was taken and not used.
    pub fn give_back(&mut self, host: HostId, user: Uid) {
        self.shares.get_mut(&host).into_iter().for_each(|share| share.give_back(user, 1));
        self.forget(host);
    }

    /// A stream is closed, by whichever side.
    pub fn close(&mut self, stream: (HostId, StreamId)) {
        if let Some(user) = self.users.remove(&stream) {
            self.give_back(stream.0, user);
        }
    }

    pub fn len(&self) -> usize {
        self.users.len() + self.shares.len()
    }

    fn forget(&mut self, host: HostId) {
        if self.shares.get(&host).is_some_and(Share::is_empty) {
            self.shares.remove(&host);
        }
    }
}
