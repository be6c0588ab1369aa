//! Captures the traffic of this network namespace: IP packets on all interfaces, through a packet socket.

use super::pcapng::Way;
use crate::error::Error;
use nix::errno::Errno;
use nix::sys::socket::sockopt::{RcvBuf, RcvBufForce, ReceiveTimestampns, RxqOvfl};
use nix::sys::socket::{
    recvmsg, setsockopt, socket, AddressFamily, ControlMessageOwned, LinkAddr, MsgFlags, SockFlag, SockProtocol,
    SockType,
};
use nix::sys::time::TimeSpec;
use std::io::IoSliceMut;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, SystemTime};

/// The largest IP packet, merged runs included.
const PACKET_MOST: usize = 64 << 10;

/// The kernel buffer to ask for; without root it is smaller.
const KERNEL_BYTES: usize = 32 << 20;

/// The `sll_pkttype` of outgoing packets, packet(7); and the `sll_hatype` of the loopback interface, which shows each packet twice.
const OUTGOING: u8 = 4;
const LOOPBACK: u16 = 772;

const WAY_OUT: &str = "Seeing what is on the wire needs root, or CAP_NET_RAW: type `sudo` before the command. `weft trace --stages` needs neither";

/// A socket that hears all interfaces.
#[derive(Debug)]
pub struct Ear {
    socket: OwnedFd,
    buffer: Vec<u8>,
    /// Packets of any kind that the kernel had no room for.
    missed: u32,
}

/// A packet of IP.
#[derive(Clone, Copy, Debug)]
pub struct Heard<'a> {
    /// When the kernel captured it, since 1970.
    pub at: Duration,
    pub way: Way,
    pub bytes: &'a [u8],
}

impl Ear {
    /// Begins to hear.
    pub fn open() -> Result<Ear, Error> {
        let cannot = |what| move |e: Errno| Error::system(what, e, WAY_OUT);
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = socket(AddressFamily::Packet, SockType::Datagram, flags, SockProtocol::EthAll)
            .map_err(cannot("see what is on the wire"))?;
        setsockopt(&socket, RcvBufForce, &KERNEL_BYTES)
            .or_else(|_| setsockopt(&socket, RcvBuf, &KERNEL_BYTES))
            .map_err(cannot("ask for room for packets"))?;
        setsockopt(&socket, ReceiveTimestampns, &true).map_err(cannot("ask when packets come"))?;
        setsockopt(&socket, RxqOvfl, &1).map_err(cannot("ask how many packets are missed"))?;
        Ok(Ear { socket, buffer: vec![0; PACKET_MOST], missed: 0 })
    }

    /// The descriptor, for waiting.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Packets lost because the kernel had no room for them.
    pub fn missed(&self) -> u32 {
        self.missed
    }

    /// The next packet, if there is one. A packet that is seen twice, as on the loopback interface, is returned once.
    pub fn next(&mut self) -> Result<Option<Heard<'_>>, Error> {
        loop {
            let mut control = nix::cmsg_space!(TimeSpec, u32);
            let mut slices = [IoSliceMut::new(&mut self.buffer)];
            let got = recvmsg::<LinkAddr>(self.socket.as_raw_fd(), &mut slices, Some(&mut control), MsgFlags::empty());
            let (length, way, at) = match got {
                Ok(message) => {
                    let Some(address) = message.address else { continue };
                    let way = if address.pkttype() == OUTGOING { Way::Out } else { Way::In };
                    if (way, address.hatype()) == (Way::Out, LOOPBACK) {
                        continue;
                    }
                    let mut at = None;
                    for control in message.cmsgs().into_iter().flatten() {
                        match control {
                            ControlMessageOwned::ScmTimestampns(time) => at = Some(Duration::from(time)),
                            ControlMessageOwned::RxqOvfl(missed) => self.missed = missed,
                            _ => {}
                        }
                    }
                    (message.bytes, way, at)
                }
                Err(Errno::EAGAIN) => return Ok(None),
                // An interface went down, and may come up again.
                Err(Errno::EINTR | Errno::ENETDOWN) => continue,
                Err(error) => return Err(Error::system("receive packets", error, WAY_OUT)),
            };
            let at = at.unwrap_or_else(|| SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default());
            return Ok(Some(Heard { at, way, bytes: &self.buffer[..length] }));
        }
    }
}
