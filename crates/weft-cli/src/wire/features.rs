//! Offloads of an interface: merging frames, segmenting them, computing checksums. A wire needs frames as they are on a cable, so
//! it switches the offloads off while it runs, and then on again. It uses the kernel's netlink messages for ethtool
//! (linux/ethtool_netlink.h), so that program is not needed.

use crate::error::Error;
use rustix::io::Errno;
use rustix::net::{self, netlink, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use std::fmt;
use std::os::fd::OwnedFd;

/// Of linux/netlink.h, linux/genetlink.h and linux/ethtool_netlink.h.
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLA_F_NESTED: u16 = 1 << 15;
const GENL_ID_CTRL: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
const FEATURES_GET: u8 = 11;
const FEATURES_SET: u8 = 12;
const FEATURES_HEADER: u16 = 1;
const FEATURES_HW: u16 = 2;
const FEATURES_WANTED: u16 = 3;
const FEATURES_ACTIVE: u16 = 4;
const HEADER_DEV_NAME: u16 = 2;
const HEADER_FLAGS: u16 = 3;
const OMIT_REPLY: u32 = 2;
const BITSET_BITS: u16 = 3;
const BITSET_BIT: u16 = 1;
const BIT_NAME: u16 = 2;
const BIT_VALUE: u16 = 3;

const WAY_OUT: &str = "The wire needs root, or CAP_NET_ADMIN in the network namespace of the interfaces";

/// The offloads of an interface that were switched off; dropping this switches them on again.
pub struct Offloads {
    asker: Asker,
    interface: String,
    /// The kernel's names for them.
    off: Vec<String>,
}

impl Offloads {
    /// Switches off the offloads that change frames, for an interface of this thread's network namespace.
    pub fn off(interface: &str) -> Result<Offloads, Error> {
        let cannot = |e| Error::system("switch the interface's offloads off", e, WAY_OUT);
        let mut asker = Asker::open().map_err(cannot)?;
        let off = asker.active(interface).map_err(cannot)?;
        let offloads = Offloads { asker, interface: interface.to_owned(), off };
        let Offloads { asker, off, .. } = &offloads;
        asker.set(interface, off, false).map_err(cannot)?;
        Ok(offloads)
    }
}

impl fmt::Display for Offloads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: off until the end: {}", self.interface, self.off.join(", "))
    }
}

impl Drop for Offloads {
    fn drop(&mut self) {
        // The interface may be gone.
        let _ = self.asker.set(&self.interface, &self.off, true);
    }
}

/// Whether a feature changes frames on their way.
fn changes_frames(name: &str) -> bool {
    let merges = ["rx-gro", "rx-gro-hw", "rx-gro-list", "rx-lro", "rx-udp-gro-forwarding"].contains(&name);
    let cuts = name.starts_with("tx-") && (name.contains("segmentation") || name.starts_with("tx-gso"));
    merges || cuts || name.starts_with("tx-checksum-") || name == "rx-vlan-hw-parse"
}

/// A socket to the kernel's ethtool.
struct Asker {
    socket: OwnedFd,
    family: u16,
}

impl Asker {
    fn open() -> Result<Asker, Errno> {
        let flags = SocketFlags::CLOEXEC;
        let socket = net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(netlink::GENERIC))?;
        let mut asker = Asker { socket, family: GENL_ID_CTRL };
        let reply = asker.ask(CTRL_CMD_GETFAMILY, &attribute(CTRL_ATTR_FAMILY_NAME, b"ethtool\0"), false)?;
        let id = attributes(&reply).find(|(kind, _)| *kind == CTRL_ATTR_FAMILY_ID).map(|(_, value)| value);
        let id = id.and_then(|value| value.get(..2)).ok_or(Errno::PROTO)?;
        asker.family = u16::from_ne_bytes([id[0], id[1]]);
        Ok(asker)
    }

    /// The features that change frames, are on, and may be switched.
    fn active(&mut self, interface: &str) -> Result<Vec<String>, Errno> {
        let reply = self.ask(FEATURES_GET, &header(interface), false)?;
        let bits = |wanted: u16| {
            let set = attributes(&reply).find(|(kind, _)| *kind == wanted).map_or(&[][..], |(_, value)| value);
            names_of(set)
        };
        let may_change = bits(FEATURES_HW);
        let active = bits(FEATURES_ACTIVE).into_iter();
        Ok(active.filter(|name| changes_frames(name) && may_change.contains(name)).collect())
    }

    fn set(&self, interface: &str, names: &[String], on: bool) -> Result<(), Errno> {
        let bit = |name: &String| {
            let mut bit = attribute(BIT_NAME, &[name.as_bytes(), b"\0"].concat());
            if on {
                bit.extend(attribute(BIT_VALUE, &[]));
            }
            attribute(BITSET_BIT | NLA_F_NESTED, &bit)
        };
        let bits: Vec<u8> = names.iter().flat_map(bit).collect();
        let wanted = attribute(FEATURES_WANTED | NLA_F_NESTED, &attribute(BITSET_BITS | NLA_F_NESTED, &bits));
        self.ask(FEATURES_SET, &[header(interface), wanted].concat(), true).map(drop)
    }

    /// Sends a command and returns the attributes of the answer; an acknowledgement has none.
    fn ask(&self, command: u8, attributes: &[u8], wants_ack: bool) -> Result<Vec<u8>, Errno> {
        let flags = NLM_F_REQUEST | if wants_ack { NLM_F_ACK } else { 0 };
        let mut message = Vec::new();
        message.extend((MESSAGE as u32 + attributes.len() as u32).to_ne_bytes());
        message.extend(self.family.to_ne_bytes());
        message.extend(flags.to_ne_bytes());
        message.extend([0; 8]);
        message.extend([command, 1, 0, 0]);
        message.extend(attributes);
        net::send(&self.socket, &message, SendFlags::empty())?;
        let mut reply = vec![0; 64 << 10];
        let (length, _) = net::recv(&self.socket, &mut reply[..], RecvFlags::empty())?;
        reply.truncate(length);
        let kind = reply.get(4..6).map(|kind| u16::from_ne_bytes([kind[0], kind[1]]));
        if kind == Some(NLMSG_ERROR) {
            let code = reply.get(16..20).ok_or(Errno::PROTO)?;
            return match i32::from_ne_bytes([code[0], code[1], code[2], code[3]]) {
                0 => Ok(Vec::new()),
                error => Err(Errno::from_raw_os_error(-error)),
            };
        }
        Ok(reply.split_off(MESSAGE.min(reply.len())))
    }
}

/// The sizes of a message's header and of the generic netlink header after it.
const MESSAGE: usize = 16 + 4;

fn header(interface: &str) -> Vec<u8> {
    let name = attribute(HEADER_DEV_NAME, &[interface.as_bytes(), b"\0"].concat());
    let flags = attribute(HEADER_FLAGS, &OMIT_REPLY.to_ne_bytes());
    attribute(FEATURES_HEADER | NLA_F_NESTED, &[name, flags].concat())
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(4 + value.len().next_multiple_of(4));
    bytes.extend((4 + value.len() as u16).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// A sequence of attributes, up to the first one that is not complete.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes([*bytes.first()?, *bytes.get(1)?]));
        let kind = u16::from_ne_bytes([*bytes.get(2)?, *bytes.get(3)?]) & !NLA_F_NESTED;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// The names of the set bits.
fn names_of(set: &[u8]) -> Vec<String> {
    let lists = attributes(set).filter(|(kind, _)| *kind == BITSET_BITS);
    let bits = lists.flat_map(|(_, bits)| attributes(bits)).filter(|(kind, _)| *kind == BITSET_BIT);
    let is_set = |bit: &[u8], has_mask: bool| !has_mask || attributes(bit).any(|(kind, _)| kind == BIT_VALUE);
    // A list without a mask contains only the set bits.
    let has_mask = !attributes(set).any(|(kind, _)| kind == 1);
    bits.filter(|(_, bit)| is_set(bit, has_mask))
        .filter_map(|(_, bit)| attributes(bit).find(|(kind, _)| *kind == BIT_NAME))
        .map(|(_, name)| String::from_utf8_lossy(name).trim_end_matches('\0').to_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_written_and_read() {
        let bytes = [attribute(3, b"name\0"), attribute(4 | NLA_F_NESTED, &attribute(1, &[7]))].concat();
        let read: Vec<_> = attributes(&bytes).collect();
        assert_eq!(read[0], (3, &b"name\0"[..]));
        assert_eq!(attributes(read[1].1).collect::<Vec<_>>(), [(1, &[7][..])]);
        assert_eq!(read.len(), 2);
        assert_eq!(attributes(&[200, 0, 1, 0, 5]).count(), 0, "an incomplete attribute is skipped");
    }

    #[test]
    fn features_that_change_frames_are_recognised() {
        for name in ["tx-checksum-ip-generic", "tx-udp-segmentation", "tx-gso-partial", "rx-gro", "rx-lro"] {
            assert!(changes_frames(name), "{name}");
        }
        for name in ["rx-checksum", "tx-lockless", "highdma", "tx-scatter-gather", "tx-vlan-hw-insert"] {
            assert!(!changes_frames(name), "{name}");
        }
    }
}
