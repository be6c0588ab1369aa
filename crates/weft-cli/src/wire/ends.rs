//! The two ends of the wire: one interface each, whose raw frames are received and sent (AF_PACKET).
//!
//! nix can bind such a socket only to an address reported by the kernel, which names the interface but no protocol. So the socket
//! asks for all protocols when it is made, and may have frames of other interfaces before it is bound. Those are dropped.

use super::lane::{Buffer, Frame};
use crate::error::Error;
use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::sockopt::{RcvBuf, RcvBufForce, ReceiveTimestampns, RxqOvfl};
use nix::sys::socket::{
    bind, recvmmsg, sendmmsg, setsockopt, socket, AddressFamily, ControlMessageOwned, LinkAddr, MsgFlags, MultiHeaders,
    SockFlag, SockProtocol, SockType,
};
use nix::sys::time::TimeSpec;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant, SystemTime};

/// Frames per call.
const BATCH: usize = 64;

/// The size of a buffer: a packet of 9,000 bytes, its header, and a tag. Larger frames are truncated, and dropped.
const BUFFER_BYTES: usize = 9000 + 14 + 4 + 1;

/// The most unused buffers to keep: 36 MiB.
const SPARE_MOST: usize = 4096;

/// The kernel buffer to ask for, which includes the kernel's overhead. Without root it is smaller.
const KERNEL_BYTES: usize = 32 << 20;

/// `sll_pkttype` of a frame that left by this interface: packet(7).
const OUTGOING: u8 = 4;

/// What helps when the kernel refuses something.
const WAY_OUT: &str = "The wire needs root, or CAP_NET_RAW in the network namespace of the interfaces";

/// The time of the wire: nanoseconds since it began.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Instant);

/// An interface.
pub struct End {
    socket: OwnedFd,
    index: usize,
    outgoing: MultiHeaders<LinkAddr>,
    buffers: Vec<Buffer>,
    told: Vec<Told>,
    /// Frames that the kernel had no room for, by its last report.
    missed: u32,
}

/// Unused buffers. The ends share them: one takes buffers, the other gives them back.
#[derive(Debug, Default)]
pub struct Spare(Vec<Buffer>);

/// The kernel's data on a frame.
#[derive(Clone, Copy, Debug)]
struct Told {
    length: usize,
    is_ours: bool,
    came: Option<Duration>,
}

/// The result of one receive.
#[derive(Clone, Copy, Debug)]
pub struct Received {
    /// Frames, including those that are not ours.
    pub frames: usize,
    /// Frames too large for a buffer.
    pub merged: u64,
    /// Frames that the kernel had no room for.
    pub missed: u64,
}

/// The outcome for a frame that was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gone {
    HandedOn,
    Refused,
}

impl Clock {
    pub fn start() -> Clock {
        Clock(Instant::now())
    }

    pub fn now(self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }
}

impl Spare {
    fn take(&mut self) -> Buffer {
        self.0.pop().unwrap_or_else(empty)
    }

    /// A copy's buffer is only as large as its frame, so it is not kept.
    fn give_back(&mut self, buffer: Buffer) {
        if self.0.len() < SPARE_MOST && buffer.bytes.len() == BUFFER_BYTES {
            self.0.push(buffer);
        }
    }
}

impl End {
    /// Opens an interface of this network namespace.
    pub fn open(name: &str) -> Result<End, Error> {
        let cannot = |what| move |e: Errno| Error::system(what, e, WAY_OUT);
        let socket = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::EthAll)
            .map_err(cannot("take frames as they are"))?;
        let mut found = getifaddrs().map_err(cannot("list the interfaces"))?.filter(|at| at.interface_name == name);
        let address = found.find_map(|at| at.address.as_ref().and_then(|address| address.as_link_addr().copied()));
        let Some(address) = address else {
            let cause = format!("there is no interface `{name}` in this network namespace");
            return Err(Error::Usage { cause, way_out: "`ip link` lists those that there are".to_owned() });
        };
        bind(socket.as_raw_fd(), &address).map_err(cannot("bind to an interface"))?;
        setsockopt(&socket, RcvBufForce, &KERNEL_BYTES)
            .or_else(|_| setsockopt(&socket, RcvBuf, &KERNEL_BYTES))
            .map_err(cannot("ask for room for frames"))?;
        setsockopt(&socket, ReceiveTimestampns, &true).map_err(cannot("ask when frames come"))?;
        setsockopt(&socket, RxqOvfl, &1).map_err(cannot("ask how many frames are missed"))?;
        Ok(End {
            socket,
            index: address.ifindex(),
            outgoing: MultiHeaders::preallocate(BATCH, None),
            buffers: (0..BATCH).map(|_| empty()).collect(),
            told: Vec::with_capacity(BATCH),
            missed: 0,
        })
    }

    /// The descriptor, for waiting.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Passes on the frames that came, each with its time, in buffers from `spare`; gives unneeded buffers back.
    pub fn receive(
        &mut self,
        clock: Clock,
        spare: &mut Spare,
        mut take: impl FnMut(u64, Buffer) -> Option<Buffer>,
    ) -> Result<Received, Error> {
        let (before, mut merged) = (self.missed, 0);
        self.told.clear();
        self.receive_into_buffers()?;
        let (now, of_day) = (clock.now(), SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default());
        for (at, told) in self.told.iter().enumerate().filter(|(_, told)| told.is_ours) {
            if told.length > BUFFER_BYTES {
                merged += 1;
                continue;
            }
            let fresh = spare.take();
            let mut buffer = std::mem::replace(&mut self.buffers[at], fresh);
            buffer.length = told.length;
            // The time of day may have been set in the meantime.
            let ago = told.came.map_or(Duration::ZERO, |came| of_day.saturating_sub(came)).min(AGO_MOST);
            let came = now.saturating_sub(ago.as_nanos() as u64);
            if let Some(buffer) = take(came, buffer) {
                spare.give_back(buffer);
            }
        }
        Ok(Received { frames: self.told.len(), merged, missed: u64::from(self.missed.wrapping_sub(before)) })
    }

    fn receive_into_buffers(&mut self) -> Result<(), Error> {
        let End { socket, buffers, told, missed, index, .. } = self;
        // Rebuilt for each call: nix leaves the space for control data as the last call used it.
        let mut headers = MultiHeaders::<LinkAddr>::preallocate(BATCH, Some(nix::cmsg_space!(TimeSpec, u32)));
        let mut slices: Vec<_> = buffers.iter_mut().map(|buffer| [IoSliceMut::new(&mut buffer.bytes)]).collect();
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_TRUNC;
        let received = match recvmmsg(socket.as_raw_fd(), &mut headers, &mut slices, flags, None) {
            Ok(received) => received,
            // The interface went down, and may come up again.
            Err(Errno::EAGAIN | Errno::EINTR | Errno::ENETDOWN) => return Ok(()),
            Err(error) => return Err(Error::system("receive frames", error, WAY_OUT)),
        };
        for message in received {
            let mut came = None;
            for control in message.cmsgs().into_iter().flatten() {
                match control {
                    ControlMessageOwned::ScmTimestampns(time) => came = Some(Duration::from(time)),
                    ControlMessageOwned::RxqOvfl(count) => *missed = count,
                    _ => {}
                }
            }
            let address = message.address;
            let is_ours = address.is_some_and(|at| at.ifindex() == *index && at.pkttype() != OUTGOING);
            told.push(Told { length: message.bytes, is_ours, came });
        }
        Ok(())
    }

    /// Sends frames, and gives their buffers back to `spare`. Reports the outcome of each.
    pub fn send(&mut self, frames: &mut Vec<Frame>, spare: &mut Spare, mut tell: impl FnMut(&Frame, Gone)) {
        let mut sent = 0;
        while sent < frames.len() {
            let batch = &frames[sent..(sent + BATCH).min(frames.len())];
            let slices: Vec<_> = batch.iter().map(|frame| [IoSlice::new(frame.buffer.frame())]).collect();
            let addresses = [None; BATCH];
            let flags = MsgFlags::MSG_DONTWAIT;
            let socket = self.socket.as_raw_fd();
            let (gone, count) = match sendmmsg(socket, &mut self.outgoing, &slices, &addresses[..], [], flags) {
                Ok(done) => (Gone::HandedOn, done.count()),
                Err(Errno::EINTR) => continue,
                Err(_) => (Gone::Refused, 1),
            };
            batch[..count].iter().for_each(|frame| tell(frame, gone));
            sent += count;
        }
        frames.drain(..).for_each(|frame| spare.give_back(frame.buffer));
    }
}

/// A frame that seems to be older than this came before the time of day was set.
const AGO_MOST: Duration = Duration::from_millis(200);

fn empty() -> Buffer {
    Buffer { bytes: vec![0; BUFFER_BYTES].into_boxed_slice(), length: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_of_copies_are_not_used_for_other_frames_and_no_more_are_kept_than_may_be() {
        let mut spare = Spare::default();
        spare.give_back(Buffer { bytes: [0; 60].into(), length: 60 });
        assert_eq!(spare.take().bytes.len(), BUFFER_BYTES);
        (0..=SPARE_MOST).for_each(|_| spare.give_back(Buffer { bytes: vec![0; BUFFER_BYTES].into(), length: 0 }));
        assert_eq!(spare.0.len(), SPARE_MOST);
    }
}
