//! The link between hosts: UDP sockets, and the addresses of this host that names carry.
//!
//! A network interface of `weft-core`, in a program or in the daemon, sends and receives by a [`UdpLink`].

#![forbid(unsafe_code)]

pub mod address;
#[cfg(test)]
mod late;
mod link;
mod switch;
mod udp;

pub use address::Ports;
pub use link::{UdpLink, PACKET_MOST};
pub use switch::{Switch, SWITCH};
pub use udp::RECEIVE_BYTES;

use std::io;
use std::net::IpAddr;
use weft_core::ni::{Link, Ni};
use weft_transport::Time;

/// Takes in the next run of packets, if one came. Returns the time of that.
#[inline]
pub fn take_run(ni: &mut Ni<UdpLink>, buffer: &mut [u8]) -> Option<Time> {
    let Some((way, bytes, segment)) = ni.link_mut().receive(buffer) else {
        ni.has_received_all();
        return None;
    };
    let now = ni.link().now();
    let came_at = ni.link_mut().came_at(now);
    for packet in buffer[..bytes].chunks(segment) {
        ni.on_packet_of(now, came_at, way, packet);
    }
    Some(now)
}

/// Why there is no link.
#[derive(thiserror::Error)]
pub enum NetworkError {
    /// An environment variable has a value that it must not have.
    #[error("{variable} is {value:?}, and should be {wanted}")]
    Setting {
        /// Its name.
        variable: &'static str,
        /// Its value.
        value: String,
        /// The values that it may have, in words.
        wanted: &'static str,
    },
    /// Somebody else has the port, or all ports of the range.
    #[error(
        "UDP port {ports} at {address} is in use. Set WEFT_PORT to another port, to a range of ports (first-last), or \
         unset it: then any free port is taken"
    )]
    PortInUse {
        /// Where the port was wanted.
        address: IpAddr,
        /// The port, or the ports.
        ports: Ports,
    },
    /// An interface carries packets that are too small.
    #[error(
        "network interface {interface} ({address}) carries packets of {mtu} bytes, and weft needs {least}. Raise its MTU \
         (ip link set dev {interface} mtu {least}), set WEFT_ADDR to another address of this host, or to `none`: then weft \
         does without the network"
    )]
    SmallMtu {
        /// The interface's name.
        interface: String,
        /// The address that it has.
        address: IpAddr,
        /// Bytes of the packets that it carries.
        mtu: u32,
        /// Bytes that it should carry.
        least: u32,
    },
    /// The kernel refused something else.
    #[error("{what}: {source}. {way_out}")]
    System {
        /// What failed.
        what: String,
        /// The kernel's error.
        source: io::Error,
        /// What the user can do.
        way_out: &'static str,
    },
}

weft_wire::debug_says_display!(NetworkError);
