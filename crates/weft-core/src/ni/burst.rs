//! Runs of packets, made one behind the other so that the link can take them with one call.

use super::{Link, NiCounters, Sent};
use weft_transport::{Channel, Time};
use weft_wire::HostAddress;

/// Bytes of a run, at most: what one datagram may have, of which the kernel makes many.
const BURST_MOST: usize = 65_000;

/// Packets of a run, at most: the kernel takes 64, older ones too.
const PACKETS_MOST: usize = 64;

/// Room for a run, and for one packet more.
const ROOM: usize = 80_000;

/// Packets that the link did not take.
#[derive(Clone, Copy, Debug)]
struct Held {
    to: HostAddress,
    from: usize,
    until: usize,
    segment: usize,
}

/// The run that is being made.
#[derive(Debug, Default)]
pub(super) struct Burst {
    bytes: Vec<u8>,
    held: Option<Held>,
}

impl Burst {
    /// Sends all that a channel has to say now. False if the link takes no more.
    #[inline]
    pub fn send<L: Link>(
        &mut self,
        channel: &mut Channel,
        to: HostAddress,
        now: Time,
        link: &mut L,
        counters: &mut NiCounters,
    ) -> bool {
        if !self.send_held(link) {
            return false;
        }
        if self.bytes.is_empty() {
            self.bytes = vec![0; ROOM];
        }
        let most = channel.packet_size();
        let (mut start, mut end, mut segment) = (0, 0, 0);
        while let Some(len) = channel.transmit(now, &mut self.bytes[end..end + most]) {
            if segment != 0 && len > segment {
                // The kernel cuts a run into equal packets; this one begins another run.
                counters.bursts_sent += 1;
                if !self.give(link, Held { to, from: start, until: end, segment }) {
                    // This packet is lost, as packets may be: what is in it goes again.
                    return false;
                }
                (start, segment) = (end, 0);
            }
            let is_last = len < segment;
            segment = segment.max(len);
            end += len;
            if is_last || end - start + segment > BURST_MOST || (end - start) / segment >= PACKETS_MOST {
                counters.bursts_sent += 1;
                if !self.give(link, Held { to, from: start, until: end, segment }) {
                    return false;
                }
                (start, end, segment) = (0, 0, 0);
            } else if end + most > ROOM {
                self.bytes.copy_within(start..end, 0);
                (start, end) = (0, end - start);
            }
        }
        if end > start {
            counters.bursts_sent += 1;
            return self.give(link, Held { to, from: start, until: end, segment });
        }
        true
    }

    /// Gives a run to the link, and holds what it does not take.
    #[inline]
    fn give<L: Link>(&mut self, link: &mut L, run: Held) -> bool {
        match link.send(run.to, &self.bytes[run.from..run.until], run.segment) {
            Sent::All | Sent::TooLarge(_) => true,
            Sent::Full(packets) => {
                let from = (run.from + packets * run.segment).min(run.until);
                self.held = (from < run.until).then_some(Held { from, ..run });
                self.held.is_none()
            }
        }
    }

    #[inline]
    fn send_held<L: Link>(&mut self, link: &mut L) -> bool {
        match self.held.take() {
            None => true,
            Some(run) => self.give(link, run),
        }
    }
}
