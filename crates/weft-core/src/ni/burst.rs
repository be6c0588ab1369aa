//! Runs of packets, made one behind the other so that the link can take them with one call.

use super::Channel;
use super::{Link, Sent, Way};
use weft_transport::rare::{self, Point};
use weft_transport::{Memory, Time};
use weft_wire::packet::PACKET_LEAST;

/// Bytes of a run, at most: what one datagram may have, of which the kernel makes many.
pub(super) const BURST_MOST: usize = 65_000;

/// Packets of a run, at most: the kernel takes 64, older ones too.
const PACKETS_MOST: usize = 64;

/// Room for a run, and for one packet more.
const ROOM: usize = 80_000;

/// The largest packet that any link carries.
const PACKET_MOST: usize = 9000;

/// Times that one call makes packets smaller because the link says that they are too large.
const SHRINKS_MOST: u32 = 16;

/// How far a channel's packets went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Progress {
    /// All that it had to say.
    All,
    /// As many runs as were wanted, of so many bytes; there may be more.
    Some(usize),
    /// The link takes no more.
    LinkFull,
}

/// Packets of equal size, the last of which may be shorter.
#[derive(Clone, Copy, Debug)]
struct Run {
    from: usize,
    until: usize,
    segment: usize,
    /// The last packet had room left: there is nothing more to say.
    says_all: bool,
    /// It lay ready.
    is_whole: bool,
}

/// The run that is being made.
#[derive(Debug, Default)]
pub(super) struct Burst {
    bytes: Vec<u8>,
    /// What the link did not take, and for whom it is.
    held: Option<(Way, Run)>,
    /// A packet that was larger than those before it, and begins the next run.
    ahead: Option<(usize, usize)>,
}

impl Burst {
    /// Bytes of memory behind it.
    pub fn memory(&self) -> usize {
        self.bytes.capacity()
    }

    /// Sends what a channel has to say now, at most so many runs.
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
        // Not without the packet that begins the next run: that is for this host.
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
            // What only leads up to packets that lie ready is no run of its own.
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

    /// Sends what lies ready at the channel.
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
        let went = link.send_lasting(to, packets, segment);
        if let Sent::Full(_) = went {
            self.bytes.resize(ROOM, 0);
            self.bytes[..packets.len()].copy_from_slice(packets);
        }
        Some((Run { from: 0, until: packets.len(), segment, says_all: false, is_whole: true }, went))
    }

    /// Makes a run of what a channel has to say.
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
                says_all = true;
                break;
            }
        }
        (until > 0).then_some(Run { from: 0, until, segment, says_all, is_whole: false })
    }

    /// Keeps what the link did not take. A packet ahead of it is lost, as packets may be: what is in it goes again.
    #[cold]
    fn hold(&mut self, to: Way, run: Run, sent: usize) {
        self.ahead = None;
        let from = run.from + sent * run.segment;
        self.held = (from < run.until).then_some((to, Run { from, ..run }));
    }

    /// Sends what was held. False if the link still takes no more.
    #[inline]
    fn send_held<L: Link>(&mut self, link: &mut L) -> bool {
        let Some((to, run)) = self.held.take() else { return true };
        match link.send(to, &self.bytes[run.from..run.until], run.segment) {
            // Too large now: its channel finds out when nothing comes back.
            Sent::All | Sent::TooLarge(_) => true,
            Sent::Full(packets) => {
                self.hold(to, run, packets);
                self.held.is_none()
            }
        }
    }
}
