//! Runs of packets, built back to back so that the link can send a run with one call.

use super::Channel;
use super::{Link, Sent, Way};
use weft_transport::rare::{self, Point};
use weft_transport::{Memory, Time};
use weft_wire::packet::PACKET_LEAST;

/// Bytes of a run: the most that one datagram holds, which the kernel then splits into packets.
pub(super) const BURST_MOST: usize = 65_000;

/// Packets of a run: what all supported kernels split one datagram into.
const PACKETS_MOST: usize = 64;

/// Bytes of the buffer: room for a run and one more packet.
const ROOM: usize = 80_000;

/// The largest packet that any link carries.
const PACKET_MOST: usize = 9000;

/// Largest number of times that one call shrinks its packets because the link refuses them as too large.
const SHRINKS_MOST: u32 = 16;

/// The result of sending a channel's packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Progress {
    /// Everything was sent.
    All,
    /// The wanted number of runs was sent, with this many bytes; there may be more.
    Some(usize),
    /// The link takes no more.
    LinkFull,
}

/// Packets of equal size, except that the last one may be shorter.
#[derive(Clone, Copy, Debug)]
struct Run {
    from: usize,
    until: usize,
    segment: usize,
    /// The last packet had room left, so there is nothing more to send.
    says_all: bool,
    /// The run was complete in the channel's memory.
    is_whole: bool,
}

/// The run under construction.
#[derive(Debug, Default)]
pub(super) struct Burst {
    bytes: Vec<u8>,
    /// Packets that the link did not take, and their destination.
    held: Option<(Way, Run)>,
    /// A packet larger than those before it. It begins the next run.
    ahead: Option<(usize, usize)>,
}

impl Burst {
    /// Bytes of heap memory in use.
    pub fn memory(&self) -> usize {
        self.bytes.capacity()
    }

    /// Sends what the channel has to send now, in at most `runs_most` runs.
    #[inline]
    pub fn send<L: Link>(
        &mut self,
        channel: &mut Channel<L::Memory>,
        to: Way,
        now: Time,
        runs_most: u32,
        link: &mut L,
    ) -> Progress {
        if !self.send_held(link) {
            return Progress::LinkFull;
        }
        let (mut shrinks, mut bytes) = (0, 0);
        let mut runs = 0;
        // Send the packet that begins the next run too, because it belongs to this host.
        while runs < runs_most || self.ahead.is_some() {
            let (run, went) = match self.send_in_place(channel, to, now, link) {
                Some(done) => done,
                None => {
                    let Some(run) = self.fill(channel, now) else { return Progress::All };
                    let is_refused = run.segment > PACKET_LEAST && rare::fires(Point::TooLarge);
                    let packets = &self.bytes[run.from..run.until];
                    (run, if is_refused { Sent::TooLarge(0) } else { link.send(to, packets, run.segment) })
                }
            };
            // Packets that only precede complete ones do not count as a run.
            runs = runs.saturating_add(u32::from(run.is_whole || !channel.has_run(now)));
            match went {
                Sent::All if run.says_all => return Progress::All,
                Sent::All => bytes += run.until,
                Sent::Full(packets) => {
                    self.hold(to, run, packets);
                    return Progress::LinkFull;
                }
                Sent::TooLarge(_) if shrinks == SHRINKS_MOST => {
                    self.ahead = None;
                    return Progress::All;
                }
                Sent::TooLarge(_) => {
                    shrinks += 1;
                    self.ahead = None;
                    channel.too_large(now, run.segment);
                }
            }
        }
        Progress::Some(bytes)
    }

    /// Sends a run that is complete in the channel's memory.
    #[inline]
    fn send_in_place<L: Link>(
        &mut self,
        channel: &mut Channel<L::Memory>,
        to: Way,
        now: Time,
        link: &mut L,
    ) -> Option<(Run, Sent)> {
        if self.ahead.is_some() {
            return None;
        }
        let segment = channel.packet_size();
        let packets = channel.transmit_run(now, (BURST_MOST / segment).min(PACKETS_MOST))?;
        let went = link.send_lasting(to, &packets, segment);
        if let Sent::Full(_) = went {
            self.bytes.resize(ROOM, 0);
            self.bytes[..packets.len()].copy_from_slice(&packets);
        }
        Some((Run { from: 0, until: packets.len(), segment, says_all: false, is_whole: true }, went))
    }

    /// Builds a run of what the channel has to send.
    #[inline]
    fn fill<M: Memory>(&mut self, channel: &mut Channel<M>, now: Time) -> Option<Run> {
        if self.bytes.is_empty() {
            self.bytes = vec![0; ROOM];
        }
        let (mut until, mut segment) = (0, 0);
        if let Some((from, to)) = self.ahead.take() {
            self.bytes.copy_within(from..to, 0);
            (until, segment) = (to - from, to - from);
        }
        let size = channel.packet_size();
        let mut says_all = false;
        while until + segment <= BURST_MOST && until < segment * PACKETS_MOST || until == 0 {
            if until > 0 && channel.has_run(now) {
                break;
            }
            let Some(len) = channel.transmit(now, &mut self.bytes[until..until + PACKET_MOST]) else { break };
            if segment != 0 && len > segment {
                self.ahead = Some((until, until + len));
                break;
            }
            segment = segment.max(len);
            until += len;
            if len < size {
                says_all = !channel.has_run(now);
                break;
            }
        }
        (until > 0).then_some(Run { from: 0, until, segment, says_all, is_whole: false })
    }

    /// Keeps packets that the link did not take. The packet ahead is dropped like a lost one; its contents are sent
    /// again.
    #[cold]
    fn hold(&mut self, to: Way, run: Run, sent: usize) {
        self.ahead = None;
        let from = run.from + sent * run.segment;
        self.held = (from < run.until).then_some((to, Run { from, ..run }));
    }

    /// Sends held packets. Returns false if the link still takes no more.
    #[inline]
    fn send_held<L: Link>(&mut self, link: &mut L) -> bool {
        let Some((to, run)) = self.held.take() else { return true };
        match link.send(to, &self.bytes[run.from..run.until], run.segment) {
            // Too large now: the channel notices when no acknowledgement comes.
            Sent::All | Sent::TooLarge(_) => true,
            Sent::Full(packets) => {
                self.hold(to, run, packets);
                self.held.is_none()
            }
        }
    }
}
