//! Captures for Wireshark: pcap-ng (draft-ietf-opsawg-pcapng), with three kinds of blocks. All numbers are little-endian, and the
//! length of every block is a multiple of 4 bytes.

use std::io::{self, Write};
use std::time::Duration;

/// Types of blocks.
const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const ENHANCED_PACKET: u32 = 6;

/// Marks the byte order.
const BYTE_ORDER: u32 = 0x1a2b_3c4d;

/// IP packets without a link header.
const LINK_RAW: u16 = 101;

/// Options: the writer of the section, the unit of times (a negative power of 10), a packet's direction.
const WRITER: u16 = 4;
const TIME_UNIT: u16 = 9;
const FLAGS: u16 = 2;
const NANOSECONDS: u8 = 9;

/// The direction of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    In = 1,
    Out = 2,
}

/// A capture that is being written.
#[derive(Debug)]
pub struct Capture<W>(W);

impl<W: Write> Capture<W> {
    /// Begins a capture.
    pub fn begin(mut to: W) -> io::Result<Capture<W>> {
        let mut section = BYTE_ORDER.to_le_bytes().to_vec();
        section.extend([1, 0, 0, 0]);
        // The section's length is not known.
        section.extend([0xff; 8]);
        option(&mut section, WRITER, concat!("weft ", env!("CARGO_PKG_VERSION")).as_bytes());
        option(&mut section, 0, &[]);
        block(&mut to, SECTION, &section)?;
        let mut interface = u32::from(LINK_RAW).to_le_bytes().to_vec();
        // Packets are not truncated.
        interface.extend([0; 4]);
        option(&mut interface, TIME_UNIT, &[NANOSECONDS]);
        option(&mut interface, 0, &[]);
        block(&mut to, INTERFACE, &interface)?;
        Ok(Capture(to))
    }

    /// Appends a packet. `at` is the time since 1970.
    pub fn push(&mut self, at: Duration, way: Way, packet: &[u8]) -> io::Result<()> {
        let at = at.as_nanos() as u64;
        let mut body = vec![0; 4];
        body.extend(((at >> 32) as u32).to_le_bytes());
        body.extend((at as u32).to_le_bytes());
        body.extend((packet.len() as u32).to_le_bytes());
        body.extend((packet.len() as u32).to_le_bytes());
        body.extend(packet);
        pad(&mut body);
        option(&mut body, FLAGS, &(way as u32).to_le_bytes());
        option(&mut body, 0, &[]);
        block(&mut self.0, ENHANCED_PACKET, &body)
    }

    /// Flushes what was written.
    pub fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// A block: its type, its length, its body, and its length again.
fn block(to: &mut impl Write, kind: u32, body: &[u8]) -> io::Result<()> {
    let length = (body.len() as u32 + 12).to_le_bytes();
    to.write_all(&[&kind.to_le_bytes(), &length, body, &length].concat())
}

fn option(block: &mut Vec<u8>, code: u16, value: &[u8]) {
    block.extend(code.to_le_bytes());
    block.extend((value.len() as u16).to_le_bytes());
    block.extend(value);
    pad(block);
}

fn pad(bytes: &mut Vec<u8>) {
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::super::datagram::tests::{ipv4, packet};
    use super::*;
    use weft_wire::frame::{Accept, Cookie, Frame, Hello, Pause, PauseReason, Piece, Rest, StreamId, Terms};
    use weft_wire::frame::{FRAME_HEADER, RECORDS_HEADER};
    use weft_wire::packet::PacketKind::{self, Answer, Call, Data, Reset};
    use weft_wire::packet::{Header, Packet, Reflected, HEADER};
    use weft_wire::{Epoch, Reason};

    /// The capture that tshark reads in `tests/trace.rs`; WEFT_GOLDEN=write writes it again.
    const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../contrib/wireshark/golden.pcapng");

    /// A packet with each frame that there is.
    fn each() -> Vec<Vec<u8>> {
        let terms = Terms { features: 0, window: 262_144, ack_delay: 1000, packet_most: 9000 };
        let (caller, callee, nonce) =
            (Epoch(0x0102_0304_0506_0708), Epoch(0x1112_1314_1516_1718), 0x2122_2324_2526_2728);
        let cookie = Cookie { generation: 7, value: 0x3132_3334_3536_3738 };
        let stream = StreamId(1);
        let one = |kind: PacketKind, frame| packet(kind, &[frame]);
        let data = [
            Frame::Records { stream, offset: 0xfff0_0000, bytes: b"weft" },
            Frame::Acks { bitmap: &[6, 1] },
            Frame::Taken { stream, taken: 20, limit: 300 },
            Frame::Nack { stream, taken: 20, touched: 40, reason: Reason::NoSuchEndpoint },
            Frame::Ping,
            Frame::Unreliable(Piece { stream, number: 6, at: 1400, total: 1404, bytes: b"weft" }),
            Frame::Rest(Rest { stream, sent: 20, taken: 40 }),
            Frame::Rested { stream },
            Frame::Stay(Rest { stream, sent: 20, taken: 40 }),
            Frame::End { reason: Reason::PeerLost },
            Frame::Pause { pause: Pause { stream, from: 20, round: 1 }, reason: PauseReason::QueueFull },
            Frame::Resume(Pause { stream, from: 20, round: 2 }),
            Frame::Share { bytes: 4096 },
        ];
        vec![
            // This comes first: tshark takes what follows a known packet for weft's without a check.
            answering(packet(Data, &[Frame::Ping, Frame::Padding { bytes: 9 }])),
            one(Call, Frame::Hello(Hello { caller, callee, nonce, cookie: None, terms })),
            one(Answer, Frame::Cookie { nonce, cookie }),
            one(Call, Frame::Hello(Hello { caller, callee, nonce, cookie: Some(cookie), terms })),
            one(Answer, Frame::Refuse { nonce, reason: Reason::WrongEpoch }),
            one(Data, Frame::Accept(Accept { nonce, caller, callee, terms })),
            packet(Data, &data),
            one(Reset, Frame::Reset { epoch: callee }),
            // A run that was sent with one call, and a damaged packet.
            [one(Data, Frame::Ping), one(Data, Frame::Ping)].concat(),
            damaged(packet(Data, &data)),
            // A run of two packets whose checksums cover only the first four bytes of their records.
            [records(b"loom, and weft"), records(b"weft too")].concat(),
        ]
    }

    /// Answers a ping: it returns a time stamp, and its sender waits for the acknowledgement.
    fn answering(mut packet: Vec<u8>) -> Vec<u8> {
        let header = Packet::decode(&packet).expect("it was just made").header;
        let reflected = Some(Reflected { sent_at: 70_000, held: 250, lay: 120 });
        Header { reflected, hurries: true, ..header }.seal(&mut packet);
        packet
    }

    /// A packet with records. Its checksum covers only the first four bytes of them.
    fn records(bytes: &[u8]) -> Vec<u8> {
        let mut packet = packet(Data, &[Frame::Ping, Frame::Records { stream: StreamId(1), offset: 0, bytes }]);
        let header = Packet::decode(&packet).expect("it was just made").header;
        header.seal_partly(&mut packet, HEADER + FRAME_HEADER + RECORDS_HEADER + 4);
        packet
    }

    fn damaged(mut packet: Vec<u8>) -> Vec<u8> {
        packet[50] ^= 1;
        packet
    }

    #[test]
    fn the_golden_capture_is_what_is_written() {
        let mut capture = Capture::begin(Vec::new()).expect("memory takes all");
        for (at, payload) in (0u64..).zip(each()) {
            let at = Duration::new(1_700_000_000, 0) + Duration::from_nanos(1_000_001 * at);
            capture.push(at, if payload[5] == 2 { Way::In } else { Way::Out }, &ipv4(&payload)).expect("as before");
        }
        if std::env::var_os("WEFT_GOLDEN").is_some_and(|value| value == "write") {
            std::fs::write(GOLDEN, &capture.0).expect("the repository can be written");
        }
        let golden = std::fs::read(GOLDEN).expect("it is in the repository; to write it: WEFT_GOLDEN=write");
        assert!(golden == capture.0, "pcap-ng as written differs from {GOLDEN}");
    }
}
