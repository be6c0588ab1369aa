//! The network interface in the process: its link over UDP, and the address that names carry.

pub(crate) mod address;
pub(crate) mod deputy;
pub(crate) mod hosts;
mod leaving;
mod link;
mod shared;
mod shares;
mod spin;
pub(crate) mod udp;

pub(crate) use hosts::{Net, Times};
pub(crate) use shared::{UdpNi, Users};

use address::Ports;
use std::io;
use std::net::IpAddr;

/// Why there is no link.
#[derive(thiserror::Error)]
pub enum NetworkError {
    /// A variable of the environment says something that it cannot.
    #[error("{variable} is {value:?}, and should be {wanted}")]
    Setting {
        /// Its name.
        variable: &'static str,
        /// What it says.
        value: String,
        /// What it may say.
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
        /// What weft was doing.
        what: String,
        /// What the kernel said.
        source: io::Error,
        /// What helps.
        way_out: &'static str,
    },
}

weft_wire::debug_says_display!(NetworkError);
