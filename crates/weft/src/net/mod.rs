//! The network interface in the process, over the link of `weft-link`.

pub(crate) mod deputy;
pub(crate) mod hosts;
mod leaving;
mod shared;
mod shares;
mod spin;

pub(crate) use hosts::{Net, NetSettings};
pub(crate) use shared::{UdpNi, Users};
