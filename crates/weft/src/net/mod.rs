//! The network interface in the process: its link over UDP, and the address that names carry.
#![allow(dead_code)] // Until the node uses it.

pub(crate) mod address;
pub(crate) mod udp;

use address::Ports;
use std::io;
use std::net::IpAddr;

/// Why there is no link.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// A variable of the environment says something that it cannot.
    #[error("{variable} is {value:?}, and should be {wanted}")]
    Setting { variable: &'static str, value: String, wanted: &'static str },
    /// Somebody else has the port, or all ports of the range.
    #[error(
        "UDP port {ports} at {address} is in use. Set WEFT_PORT to another port, to a range of ports (first-last), or \
         unset it: then any free port is taken"
    )]
    PortInUse { address: IpAddr, ports: Ports },
    /// An interface carries packets that are too small.
    #[error(
        "network interface {interface} ({address}) carries packets of {mtu} bytes, and weft needs {least}. Raise its MTU \
         (ip link set dev {interface} mtu {least}), set WEFT_ADDR to another address of this host, or to `none`: then weft \
         does without the network"
    )]
    SmallMtu { interface: String, address: IpAddr, mtu: u32, least: u32 },
    /// The kernel refused something else.
    #[error("{what}: {source}. {way_out}")]
    System { what: String, source: io::Error, way_out: &'static str },
}
