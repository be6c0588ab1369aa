//! An Ethernet frame: where its datagram lies, damage that only the receiver of the UDP payload can detect, and checksums that the
//! sender left to a device.

/// The size of Ethernet's header, and of a VLAN tag in it.
pub const ETHERNET: usize = 14;
const TAG: usize = 4;

const TYPE_IPV4: u16 = 0x0800;
const TYPE_IPV6: u16 = 0x86dd;
const TYPE_TAG: u16 = 0x8100;
const PROTOCOL_TCP: u8 = 6;
const PROTOCOL_UDP: u8 = 17;

/// Bytes of UDP's header.
const UDP: usize = 8;

/// The position of the datagram in an unfragmented IP packet of a protocol whose checksum covers the addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Inner {
    /// Where both addresses are.
    addresses: (usize, usize),
    protocol: u8,
    /// Where the inner header begins, and where the packet ends.
    at: usize,
    end: usize,
}

/// The size of the packet in a frame.
pub fn packet_bytes(frame: &[u8]) -> usize {
    frame.len().saturating_sub(ETHERNET + if type_at(frame, 12) == Some(TYPE_TAG) { TAG } else { 0 })
}

/// Flips a random bit behind the UDP header, and corrects the UDP checksum. `false` if there is no such bit: then the frame is
/// unchanged.
pub fn corrupt(frame: &mut [u8], drawn: u64) -> bool {
    let Some(inner) = inner(frame).filter(|inner| inner.protocol == PROTOCOL_UDP) else { return false };
    let payload = inner.at + UDP..inner.end;
    let bits = payload.len() as u64 * 8;
    if bits == 0 {
        return false;
    }
    let bit = drawn % bits;
    frame[payload.start + (bit / 8) as usize] ^= 1 << (bit % 8);
    // In IPv4, a checksum of 0 means none.
    if frame[inner.at + 6..inner.at + UDP] != [0, 0] {
        put_checksum(frame, inner);
    }
    true
}

/// Completes a UDP or TCP checksum that the sender left to a device that does not exist. Such a frame has the sum of the addresses,
/// the protocol and the length in the checksum's place. If a finished checksum has that value by chance, it is computed again to
/// the same value.
pub fn finish_checksum(frame: &mut [u8]) -> bool {
    let Some(inner) = inner(frame) else { return false };
    let Some(place) = checksum_place(inner).filter(|place| place + 2 <= inner.end) else { return false };
    let is_open = [frame[place], frame[place + 1]] == fold(pseudo_sum(frame, inner)).to_be_bytes();
    if is_open {
        put_checksum(frame, inner);
    }
    is_open
}

fn inner(frame: &[u8]) -> Option<Inner> {
    let (kind, at) = match type_at(frame, 12)? {
        TYPE_TAG => (type_at(frame, 12 + TAG)?, ETHERNET + TAG),
        kind => (kind, ETHERNET),
    };
    let inner = match kind {
        TYPE_IPV4 => inner_of_ipv4(frame, at)?,
        TYPE_IPV6 => inner_of_ipv6(frame, at)?,
        _ => return None,
    };
    let header = match inner.protocol {
        PROTOCOL_UDP => UDP,
        PROTOCOL_TCP => 20,
        _ => return None,
    };
    let length = inner.end.checked_sub(inner.at)?;
    let is_whole = inner.protocol != PROTOCOL_UDP || usize::from(type_at(frame, inner.at + 4)?) == length;
    (inner.end <= frame.len() && length >= header && is_whole).then_some(inner)
}

/// RFC 791.
fn inner_of_ipv4(frame: &[u8], at: usize) -> Option<Inner> {
    let header = frame.get(at..at + 20)?;
    /// The flag for more fragments, and the offset of this one.
    const FRAGMENT: u16 = 0x3fff;
    let is_fragment = u16::from_be_bytes([header[6], header[7]]) & FRAGMENT != 0;
    let length = usize::from(u16::from_be_bytes([header[2], header[3]]));
    let begins = at + usize::from(header[0] & 15) * 4;
    let addresses = (at + 12, at + 20);
    (header[0] >> 4 == 4 && !is_fragment).then_some(Inner {
        addresses,
        protocol: header[9],
        at: begins,
        end: at + length,
    })
}

/// RFC 8200. Packets with extension headers are left alone.
fn inner_of_ipv6(frame: &[u8], at: usize) -> Option<Inner> {
    let header = frame.get(at..at + 40)?;
    let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
    let begins = at + 40;
    (header[0] >> 4 == 6).then_some(Inner {
        addresses: (at + 8, at + 40),
        protocol: header[6],
        at: begins,
        end: begins + length,
    })
}

fn checksum_place(inner: Inner) -> Option<usize> {
    match inner.protocol {
        PROTOCOL_UDP => Some(inner.at + 6),
        PROTOCOL_TCP => Some(inner.at + 16),
        _ => None,
    }
}

fn put_checksum(frame: &mut [u8], inner: Inner) {
    let Some(place) = checksum_place(inner) else { return };
    frame[place..place + 2].fill(0);
    let sum = !fold(pseudo_sum(frame, inner) + sum(&frame[inner.at..inner.end]));
    // RFC 768: a sum of 0 is sent as the other zero of ones' complement.
    let told = if sum == 0 && inner.protocol == PROTOCOL_UDP { u16::MAX } else { sum };
    frame[place..place + 2].copy_from_slice(&told.to_be_bytes());
}

fn pseudo_sum(frame: &[u8], inner: Inner) -> u64 {
    let (from, to) = inner.addresses;
    sum(&frame[from..to]) + u64::from(inner.protocol) + (inner.end - inner.at) as u64
}

/// RFC 1071, not yet folded.
fn sum(bytes: &[u8]) -> u64 {
    let words = bytes.chunks_exact(2);
    let last = words.remainder().first().map_or(0, |&byte| u64::from(byte) << 8);
    words.map(|word| u64::from(u16::from_be_bytes([word[0], word[1]]))).sum::<u64>() + last
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

fn type_at(frame: &[u8], at: usize) -> Option<u16> {
    frame.get(at..at + 2).map(|word| u16::from_be_bytes([word[0], word[1]]))
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A UDP datagram in a frame, with its checksum. From one address of 10.0.0.0/8 or fd00::/8 to another.
    pub fn datagram(payload: &[u8], is_v6: bool) -> Vec<u8> {
        let mut frame = vec![0; 12];
        let length = ((UDP + payload.len()) as u16).to_be_bytes();
        if is_v6 {
            frame.extend(TYPE_IPV6.to_be_bytes());
            frame.extend([0x60, 0, 0, 0, length[0], length[1], PROTOCOL_UDP, 64]);
            frame.extend([[0xfd; 16], [0xfe; 16]].concat());
        } else {
            frame.extend(TYPE_IPV4.to_be_bytes());
            let whole = ((20 + UDP + payload.len()) as u16).to_be_bytes();
            frame.extend([
                0x45,
                0,
                whole[0],
                whole[1],
                0,
                0,
                0x40,
                0,
                64,
                PROTOCOL_UDP,
                0,
                0,
                10,
                0,
                0,
                1,
                10,
                0,
                0,
                2,
            ]);
        }
        frame.extend([0x10, 0, 0x20, 0, length[0], length[1], 0, 0]);
        frame.extend(payload);
        let inner = inner(&frame).expect("a datagram");
        put_checksum(&mut frame, inner);
        frame
    }

    fn is_sound(frame: &[u8]) -> bool {
        let inner = inner(frame).expect("a datagram");
        fold(pseudo_sum(frame, inner) + sum(&frame[inner.at..inner.end])) == 0xffff
    }

    #[test]
    fn a_known_datagram_has_its_known_checksum() {
        // "hi" from 10.0.0.1, port 4096, to 10.0.0.2, port 8192: 0a00+0001+0a00+0002 + 0011+000a + 1000+2000+000a + 6869.
        let frame = datagram(b"hi", false);
        assert_eq!(frame[40..42], (!0xac91u16).to_be_bytes());
        assert!(is_sound(&frame));
    }

    #[test]
    fn damage_is_behind_the_header_and_the_checksum_fits() {
        for is_v6 in [false, true] {
            for length in [1usize, 2, 3, 40, 1471] {
                let payload: Vec<u8> = (0..length).map(|i| i as u8).collect();
                let whole = datagram(&payload, is_v6);
                for drawn in 0..200u64 {
                    let mut frame = whole.clone();
                    assert!(corrupt(&mut frame, drawn.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
                    assert!(is_sound(&frame), "{length} bytes, draw {drawn}");
                    let inner = inner(&frame).expect("still a datagram");
                    assert_eq!(frame[..inner.at + 6], whole[..inner.at + 6], "headers are as they were");
                    let flipped = frame[inner.at + UDP..].iter().zip(&payload).map(|(a, b)| (a ^ b).count_ones());
                    assert_eq!(flipped.sum::<u32>(), 1);
                }
            }
        }
    }

    #[test]
    fn a_datagram_without_a_checksum_stays_without() {
        let mut frame = datagram(b"hello", false);
        frame[40..42].fill(0);
        assert!(corrupt(&mut frame, 7));
        assert_eq!(frame[40..42], [0, 0]);
    }

    #[test]
    fn anything_but_a_whole_datagram_is_left_alone() {
        let whole = datagram(b"hello", false);
        let mut fragment = whole.clone();
        fragment[20] = 0x20;
        let mut other = whole.clone();
        other[23] = 1;
        let cut = whole[..whole.len() - 1].to_vec();
        let arp = [&[0; 12][..], &[0x08, 0x06], &[0; 46]].concat();
        for frame in [fragment, other, cut, arp, datagram(b"", false), Vec::new(), vec![0; 13]] {
            let mut damaged = frame.clone();
            assert!(!corrupt(&mut damaged, 3));
            assert_eq!(damaged, frame);
        }
        // Ethernet's padding of a short frame is not part of the datagram.
        let mut padded = [&datagram(b"x", false)[..], &[0; 17]].concat();
        assert!(corrupt(&mut padded, u64::MAX));
        assert_eq!(padded[43..], [0; 17]);
    }

    #[test]
    fn an_open_checksum_is_completed_and_a_finished_one_stays() {
        for is_v6 in [false, true] {
            let whole = datagram(b"some words", is_v6);
            let mut frame = whole.clone();
            assert!(!finish_checksum(&mut frame));
            assert_eq!(frame, whole);
            let inner = inner(&frame).expect("a datagram");
            let open = fold(pseudo_sum(&frame, inner)).to_be_bytes();
            frame[inner.at + 6..inner.at + 8].copy_from_slice(&open);
            assert!(finish_checksum(&mut frame));
            assert_eq!(frame, whole);
        }
    }

    #[test]
    fn a_vlan_tag_is_skipped() {
        let plain = datagram(b"tagged", false);
        let mut frame = [&plain[..12], &[0x81, 0, 0, 5], &plain[12..]].concat();
        assert_eq!(packet_bytes(&frame), packet_bytes(&plain));
        assert!(corrupt(&mut frame, 9) && is_sound(&frame));
    }
}
