//! UDP datagrams in captured IP packets. Runs that the kernel sent or delivered as one packet are split again.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use weft_wire::packet::{end_of_partly_covered, Integrity, Packet, HEADER, PACKET_VERSION};

/// Header sizes in bytes.
const IPV4: usize = 20;
const IPV6: usize = 40;
const UDP: usize = 8;

/// The protocol number in the IP header.
const PROTOCOL_UDP: u8 = 17;

/// A datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram<'a> {
    pub from: SocketAddr,
    pub to: SocketAddr,
    /// The headers of IP and UDP.
    headers: &'a [u8],
    /// What it carries: a packet, or a run of them.
    pub payload: &'a [u8],
}

impl<'a> Datagram<'a> {
    /// Reads an IP packet. `None` for anything but UDP, and for fragments.
    pub fn read(bytes: &'a [u8]) -> Option<Datagram<'a>> {
        let (headers, from, to) = match bytes.first()? >> 4 {
            4 => Datagram::read_ipv4(bytes)?,
            6 => Datagram::read_ipv6(bytes)?,
            _ => return None,
        };
        let udp = bytes.get(headers..headers + UDP)?;
        let port = |at: usize| u16::from_be_bytes([udp[at], udp[at + 1]]);
        // Cut the link's padding off. If the length does not fit into 16 bits, the payload is the whole rest.
        let rest = &bytes[headers + UDP..];
        let length = match usize::from(port(4)) {
            0 => rest.len(),
            length => length.checked_sub(UDP)?.min(rest.len()),
        };
        Some(Datagram {
            from: SocketAddr::new(from, port(0)),
            to: SocketAddr::new(to, port(2)),
            headers: &bytes[..headers + UDP],
            payload: &rest[..length],
        })
    }

    fn read_ipv4(bytes: &[u8]) -> Option<(usize, IpAddr, IpAddr)> {
        let header = bytes.first_chunk::<IPV4>()?;
        let length = usize::from(header[0] & 15) * 4;
        // The flag of more fragments, and the offset of this one.
        let is_fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0;
        let address = |at: usize| IpAddr::V4(Ipv4Addr::new(header[at], header[at + 1], header[at + 2], header[at + 3]));
        let is_udp = header[9] == PROTOCOL_UDP && length >= IPV4 && !is_fragment;
        is_udp.then_some((length, address(12), address(16)))
    }

    fn read_ipv6(bytes: &[u8]) -> Option<(usize, IpAddr, IpAddr)> {
        let header = bytes.first_chunk::<IPV6>()?;
        let address = |at: usize| {
            let octets: [u8; 16] = header[at..at + 16].try_into().ok()?;
            Some(IpAddr::V6(Ipv6Addr::from(octets)))
        };
        (header[6] == PROTOCOL_UDP).then_some((IPV6, address(8)?, address(24)?))
    }

    /// Whether it begins with a whole and undamaged packet of weft.
    pub fn is_weft(&self) -> bool {
        // Most other datagrams are recognised without computing the checksum.
        let may_be = self.payload.get(4..HEADER).is_some_and(|header| {
            header[0] == PACKET_VERSION && (1..=4).contains(&header[1]) && header[2] & 0xe0 == 0 && header[3] == 0
        });
        may_be && first_packet(self.payload).is_some()
    }

    /// The packets in it: one, or those of a run, all of one size except the last. A payload that is no packet stays whole.
    pub fn packets(&self) -> impl Iterator<Item = &'a [u8]> {
        let size = first_packet(self.payload).unwrap_or(self.payload.len());
        self.payload.chunks(size.max(1))
    }

    /// The IP packet that would have carried this part of the payload alone.
    pub fn alone(&self, part: &[u8]) -> Vec<u8> {
        let mut bytes = [self.headers, part].concat();
        if part.len() == self.payload.len() {
            return bytes;
        }
        let ip = self.headers.len() - UDP;
        // The part is no longer than the whole, whose length fitted, or than a packet of weft.
        let length = (part.len() + UDP) as u16;
        if self.from.is_ipv4() {
            bytes[2..4].copy_from_slice(&(length + ip as u16).to_be_bytes());
            bytes[10..12].fill(0);
            let sum = !folded(0, &bytes[..ip]);
            bytes[10..12].copy_from_slice(&sum.to_be_bytes());
        } else {
            bytes[4..6].copy_from_slice(&length.to_be_bytes());
        }
        bytes[ip + 4..ip + 6].copy_from_slice(&length.to_be_bytes());
        bytes[ip + 6..ip + 8].fill(0);
        let addresses = if self.from.is_ipv4() { 12..20 } else { 8..40 };
        let pseudo = folded(u32::from(PROTOCOL_UDP) + u32::from(length), &bytes[addresses]);
        let sum = match !folded(pseudo.into(), &bytes[ip..]) {
            0 => 0xffff,
            sum => sum,
        };
        bytes[ip + 6..ip + 8].copy_from_slice(&sum.to_be_bytes());
        bytes
    }
}

/// The Internet's sum of 16-bit words (RFC 1071).
fn folded(begin: u32, bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|word| u32::from(word[0]) << 8 | word.get(1).map_or(0, |&low| u32::from(low)));
    let mut sum = words.fold(begin, u32::wrapping_add);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// The length of the first packet: the whole payload, or the length that it states, or otherwise, in a run, the least length at
/// which its checksum holds. Packets with full checksums do not state their length; by chance, one in some sixty thousand runs is
/// split too early.
fn first_packet(payload: &[u8]) -> Option<usize> {
    let is_packet = |end: &usize| Packet::decode_as(&payload[..*end], Integrity::Header).is_ok();
    let said = Some(payload.len()).filter(is_packet).or_else(|| end_of_partly_covered(payload).filter(is_packet));
    said.or_else(|| first_of_run(payload))
}

/// The least length at which the checksum holds for everything.
fn first_of_run(payload: &[u8]) -> Option<usize> {
    let wanted = u32::from_le_bytes(*payload.first_chunk()?);
    let mut sum = u32::MAX;
    for (at, byte) in payload.iter().enumerate().skip(4) {
        sum = TABLE[usize::from(sum as u8 ^ byte)] ^ sum >> 8;
        if at + 1 >= HEADER && !sum == wanted && Packet::decode(&payload[..=at]).is_ok() {
            return Some(at + 1);
        }
    }
    None
}

/// The effect of one byte on a CRC32C.
const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut sum = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            sum = if sum & 1 == 1 { sum >> 1 ^ 0x82f6_3b78 } else { sum >> 1 };
            bit += 1;
        }
        table[byte] = sum;
        byte += 1;
    }
    table
};

#[cfg(test)]
pub mod tests {
    use super::*;
    use weft_wire::frame::{Frame, StreamId, Writer};
    use weft_wire::packet::{ChannelId, Header, PacketKind};

    /// A packet with these frames.
    pub fn packet(kind: PacketKind, frames: &[Frame<'_>]) -> Vec<u8> {
        let mut bytes = vec![0; 4096];
        let mut writer = Writer::new(&mut bytes);
        frames.iter().for_each(|frame| assert!(writer.push(frame), "there is room"));
        let length = writer.finish().len();
        bytes.truncate(length);
        let (to, from) = if kind == PacketKind::Call { (0, 0xb1b2_b3b4) } else { (0xa1a2_a3a4, 0xb1b2_b3b4) };
        Header { number: 7, acked: Some(5), ..Header::new(kind, ChannelId(to), ChannelId(from)) }.seal(&mut bytes);
        bytes
    }

    /// A packet of IPv4 that carries this.
    pub fn ipv4(payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, PROTOCOL_UDP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        let length = (payload.len() + UDP) as u16;
        bytes[2..4].copy_from_slice(&(length + IPV4 as u16).to_be_bytes());
        let sum = !folded(0, &bytes);
        bytes[10..12].copy_from_slice(&sum.to_be_bytes());
        bytes.extend([0x0f, 0xa0, 0x0f, 0xa1]);
        bytes.extend(length.to_be_bytes());
        bytes.extend([0, 0]);
        bytes.extend(payload);
        bytes
    }

    fn ipv6(payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0x60, 0, 0, 0, 0, 0, PROTOCOL_UDP, 64];
        let length = (payload.len() + UDP) as u16;
        bytes[4..6].copy_from_slice(&length.to_be_bytes());
        bytes.extend(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1).octets());
        bytes.extend(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2).octets());
        bytes.extend([0x0f, 0xa0, 0x0f, 0xa1]);
        bytes.extend(length.to_be_bytes());
        bytes.extend([0, 0]);
        bytes.extend(payload);
        bytes
    }

    /// A run whose first packets have partial checksums.
    fn partly_covered_run() -> [Vec<u8>; 3] {
        let mut packets = run();
        for (packet, covered) in packets.iter_mut().zip([52, 299]) {
            let header = Packet::decode(packet).expect("it was just made").header;
            header.seal_partly(packet, covered);
        }
        packets
    }

    fn run() -> [Vec<u8>; 3] {
        let records =
            |bytes: &[u8]| packet(PacketKind::Data, &[Frame::Records { stream: StreamId(1), offset: 0, bytes }]);
        [records(&[1; 300]), records(&[2; 300]), records(&[3; 21])]
    }

    /// Whether the checksums of both headers are right.
    fn sums_hold(bytes: &[u8]) -> bool {
        let (ip, addresses) = if bytes[0] >> 4 == 4 { (IPV4, 12..20) } else { (IPV6, 8..40) };
        let udp = &bytes[ip..];
        let pseudo = folded(u32::from(PROTOCOL_UDP) + udp.len() as u32, &bytes[addresses]);
        folded(pseudo.into(), udp) == 0xffff && (ip == IPV6 || folded(0, &bytes[..ip]) == 0xffff)
    }

    #[test]
    fn a_run_is_cut_into_the_packets_that_it_was_made_of() {
        let runs = [run(), partly_covered_run()];
        let wholes = |packets: &[Vec<u8>; 3]| [ipv4(&packets.concat()), ipv6(&packets.concat())];
        for (packets, whole) in runs.iter().flat_map(|run| wholes(run).map(|whole| (run, whole))) {
            let datagram = Datagram::read(&whole).expect("UDP");
            assert_eq!((datagram.from.port(), datagram.to.port()), (4000, 4001));
            assert!(datagram.is_weft());
            let found: Vec<&[u8]> = datagram.packets().collect();
            assert_eq!(found, packets.iter().map(Vec::as_slice).collect::<Vec<_>>());
            let told =
                found.iter().map(|packet| Packet::decode_as(packet, Integrity::Header).expect("whole").covered());
            assert_eq!(told.sum::<usize>() < datagram.payload.len(), packets[0] != run()[0]);
            for packet in found {
                let alone = datagram.alone(packet);
                assert!(sums_hold(&alone), "{alone:?}");
                let again = Datagram::read(&alone).expect("UDP");
                assert_eq!((again.payload, again.from, again.to), (packet, datagram.from, datagram.to));
            }
        }
    }

    #[test]
    fn one_packet_and_what_is_none_stay_as_they_are() {
        let [packet, ..] = run();
        for payload in [&packet[..], b"no packet at all, but long enough to be one of them", b""] {
            let whole = ipv4(payload);
            let datagram = Datagram::read(&whole).expect("UDP");
            let parts: Vec<&[u8]> = datagram.packets().collect();
            assert_eq!(parts.concat(), payload);
            assert!(parts.len() <= 1 && datagram.is_weft() == (payload == packet));
            assert_eq!(datagram.alone(payload), whole);
        }
    }

    #[test]
    fn other_protocols_and_truncated_packets_are_skipped() {
        let whole = ipv4(&run()[0]);
        for length in 0..IPV4 + UDP {
            assert_eq!(Datagram::read(&whole[..length]), None);
        }
        for (at, value) in [(0, 0x55), (0, 0x41), (9, 6), (6, 0x20), (7, 1)] {
            let mut other = whole.clone();
            other[at] = value;
            assert_eq!(Datagram::read(&other), None, "{at}");
        }
        let mut short = whole;
        short[24..26].copy_from_slice(&7u16.to_be_bytes());
        assert_eq!(Datagram::read(&short), None, "a length below that of the header");
    }
}
