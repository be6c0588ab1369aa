//! A packet as it is printed: in words, and as JSON.

use super::pcapng::Way;
use serde::Serialize;
use std::fmt::Write;
use std::net::SocketAddr;
use std::time::Duration;
use weft_wire::frame::{Frame, Pause, Piece, Rest, Terms};
use weft_wire::packet::{Header, Integrity, Packet, PacketKind};

/// A packet.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Told {
    /// Since 1970.
    pub seconds: f64,
    pub way: Way,
    pub from: SocketAddr,
    pub to: SocketAddr,
    /// Bytes of the packet, without headers of IP and UDP.
    pub bytes: usize,
    /// The fault, if it is not a packet; the fields below are then empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub header: Option<Head>,
    pub frames: Vec<Part>,
    /// How many bytes the checksum covers, if not all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub covered: Option<usize>,
}

/// A header, as in `docs/design/wire.md`.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Head {
    pub kind: &'static str,
    pub to_channel: u32,
    pub from_channel: u32,
    pub number: u32,
    pub behind: u16,
    pub sent_at_us: u32,
    pub reflected_us: Option<u32>,
    pub held_us: Option<u16>,
    pub lay_us: Option<u16>,
    pub acked: Option<u32>,
}

/// A frame.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(tag = "frame", rename_all = "snake_case")]
pub enum Part {
    Records { stream: u32, offset: u32, bytes: usize },
    Acks { bytes: usize, packets: u32 },
    Taken { stream: u32, taken: u32, limit: u32 },
    Nack { stream: u32, taken: u32, touched: u32, reason: String },
    Hello { caller: String, callee: String, has_cookie: bool, window: u32, packet_most: u16 },
    Cookie { generation: u32 },
    Accept { caller: String, callee: String, window: u32, packet_most: u16 },
    Refuse { reason: String },
    Reset { epoch: String },
    Ping,
    Unreliable { stream: u32, message: u32, at: u32, total: u32, bytes: usize },
    Rest { stream: u32, sent: u32, taken: u32 },
    Rested { stream: u32 },
    Stay { stream: u32, sent: u32, taken: u32 },
    Pause { stream: u32, from: u32, round: u32, reason: String },
    Resume { stream: u32, from: u32, round: u32 },
    Share { bytes: u32 },
    End { reason: String },
    Padding { bytes: usize },
    Malformed { why: String },
}

impl Told {
    /// Reads a captured packet.
    pub fn read(at: Duration, way: Way, [from, to]: [SocketAddr; 2], bytes: &[u8]) -> Told {
        let packet = Packet::decode_as(bytes, Integrity::Header);
        Told {
            seconds: at.as_secs_f64(),
            way,
            from,
            to,
            bytes: bytes.len(),
            fault: packet.as_ref().err().map(ToString::to_string),
            header: packet.as_ref().ok().map(|packet| Head::of(&packet.header)),
            frames: packet.iter().flat_map(Packet::frames).map(Part::of).collect(),
            covered: packet.ok().map(|packet| packet.covered()).filter(|covered| *covered < bytes.len()),
        }
    }

    /// The packet as one line.
    pub fn in_words(&self) -> String {
        let Told { seconds, way, from, to, bytes, .. } = self;
        let way = if *way == Way::In { "in " } else { "out" };
        let mut text = format!("{seconds:.6} {way} {from} → {to} {bytes} B");
        match (&self.header, &self.fault) {
            (Some(head), _) => {
                let _ = write!(text, " {} {}", head.kind, head.number);
                if let Some(acked) = head.acked {
                    let _ = write!(text, " acked {acked}");
                }
                if let Some(covered) = self.covered {
                    let _ = write!(text, " checksum over {covered} B");
                }
            }
            (None, fault) => _ = write!(text, ": {}", fault.as_deref().unwrap_or_default()),
        }
        for (at, part) in self.frames.iter().enumerate() {
            let _ = write!(text, "{} {}", if at == 0 { ":" } else { "," }, part.in_words());
        }
        text
    }
}

impl Head {
    fn of(header: &Header) -> Head {
        Head {
            kind: match header.kind {
                PacketKind::Call => "call",
                PacketKind::Answer => "answer",
                PacketKind::Data => "data",
                PacketKind::Reset => "reset",
            },
            to_channel: header.to.0,
            from_channel: header.from.0,
            number: header.number,
            behind: header.behind,
            sent_at_us: header.sent_at,
            reflected_us: header.reflected.map(|reflected| reflected.sent_at),
            held_us: header.reflected.map(|reflected| reflected.held),
            lay_us: header.reflected.map(|reflected| reflected.lay),
            acked: header.acked,
        }
    }
}

impl Part {
    fn of(frame: Result<Frame<'_>, weft_wire::frame::FrameError>) -> Part {
        let frame = match frame {
            Ok(frame) => frame,
            Err(error) => return Part::Malformed { why: error.to_string() },
        };
        match frame {
            Frame::Records { stream, offset, bytes } => Part::Records { stream: stream.0, offset, bytes: bytes.len() },
            Frame::Acks { bitmap } => {
                Part::Acks { bytes: bitmap.len(), packets: bitmap.iter().map(|byte| byte.count_ones()).sum() }
            }
            Frame::Taken { stream, taken, limit } => Part::Taken { stream: stream.0, taken, limit },
            Frame::Nack { stream, taken, touched, reason } => {
                Part::Nack { stream: stream.0, taken, touched, reason: reason.to_string() }
            }
            Frame::Hello(hello) => {
                let Terms { window, packet_most, .. } = hello.terms;
                let (caller, callee) = (digits(hello.caller.0), digits(hello.callee.0));
                Part::Hello { caller, callee, has_cookie: hello.cookie.is_some(), window, packet_most }
            }
            Frame::Cookie { cookie, .. } => Part::Cookie { generation: cookie.generation },
            Frame::Accept(accept) => {
                let Terms { window, packet_most, .. } = accept.terms;
                Part::Accept { caller: digits(accept.caller.0), callee: digits(accept.callee.0), window, packet_most }
            }
            Frame::Refuse { reason, .. } => Part::Refuse { reason: reason.to_string() },
            Frame::Reset { epoch } => Part::Reset { epoch: digits(epoch.0) },
            Frame::Ping => Part::Ping,
            Frame::Unreliable(Piece { stream, number, at, total, bytes }) => {
                Part::Unreliable { stream: stream.0, message: number, at, total, bytes: bytes.len() }
            }
            Frame::Rest(Rest { stream, sent, taken }) => Part::Rest { stream: stream.0, sent, taken },
            Frame::Rested { stream } => Part::Rested { stream: stream.0 },
            Frame::Stay(Rest { stream, sent, taken }) => Part::Stay { stream: stream.0, sent, taken },
            Frame::Pause { pause: Pause { stream, from, round }, reason } => {
                Part::Pause { stream: stream.0, from, round, reason: reason.to_string() }
            }
            Frame::Resume(Pause { stream, from, round }) => Part::Resume { stream: stream.0, from, round },
            Frame::Share { bytes } => Part::Share { bytes },
            Frame::End { reason } => Part::End { reason: reason.to_string() },
            Frame::Padding { bytes } => Part::Padding { bytes },
        }
    }

    fn in_words(&self) -> String {
        match self {
            Part::Records { stream, offset, bytes } => format!("{bytes} B of stream {stream} at {offset}"),
            Part::Acks { packets, .. } => format!("{packets} more came"),
            Part::Taken { stream, taken, limit } => format!("stream {stream} taken to {taken}, may go to {limit}"),
            Part::Nack { stream, taken, reason, .. } => format!("stream {stream} ends, taken to {taken}: {reason}"),
            Part::Hello { caller, callee, has_cookie, .. } => {
                format!("hello {caller} calls {callee}{}", if *has_cookie { ", with a cookie" } else { "" })
            }
            Part::Cookie { .. } => "a cookie".to_owned(),
            Part::Accept { callee, .. } => format!("{callee} accepts"),
            Part::Refuse { reason } => format!("refused: {reason}"),
            Part::Reset { epoch } => format!("{epoch} knows no such channel"),
            Part::Ping => "ping".to_owned(),
            Part::Unreliable { message, at, total, bytes, .. } => {
                format!("{bytes} B of unreliable message {message} at {at} of {total}")
            }
            Part::Rest { stream, sent, .. } => format!("stream {stream} may close at rest, sent to {sent}"),
            Part::Rested { stream } => format!("stream {stream} is closed at rest"),
            Part::Stay { stream, .. } => format!("stream {stream} stays open"),
            Part::Pause { stream, from, reason, .. } => format!("stream {stream} is paused from {from} on: {reason}"),
            Part::Resume { stream, from, .. } => format!("stream {stream} goes on from {from}"),
            Part::Share { bytes } => format!("no more than {bytes} B may be under way"),
            Part::End { reason } => format!("the channel ends: {reason}"),
            Part::Padding { bytes } => format!("{bytes} B of padding"),
            Part::Malformed { why } => why.clone(),
        }
    }
}

fn digits(epoch: u64) -> String {
    format!("{epoch:016x}")
}

#[cfg(test)]
mod tests {
    use super::super::datagram::tests::packet;
    use super::*;
    use weft_wire::frame::StreamId;

    fn told(bytes: &[u8]) -> Told {
        let address = |port| SocketAddr::from(([10, 0, 0, 1], port));
        Told::read(Duration::from_millis(1500), Way::Out, [address(1), address(2)], bytes)
    }

    #[test]
    fn a_packet_is_told_with_its_header_and_frames() {
        let frames = [Frame::Records { stream: StreamId(1), offset: 9, bytes: b"weft" }, Frame::Ping];
        let seen = told(&packet(PacketKind::Data, &frames));
        let expected = "1.500000 out 10.0.0.1:1 → 10.0.0.1:2 60 B data 7 acked 5: 4 B of stream 1 at 9, ping";
        assert_eq!(seen.in_words(), expected);
        let json = serde_json::to_value(&seen).expect("JSON");
        assert_eq!((&json["kind"], &json["number"], &json["acked"]), (&"data".into(), &7.into(), &5.into()));
        assert_eq!(json["frames"][0]["frame"], "records");
        assert_eq!(json["frames"][1]["frame"], "ping");
        assert!(json.get("fault").is_none());
    }

    #[test]
    fn what_the_checksum_covers_is_told_if_it_is_not_all() {
        let mut bytes = packet(PacketKind::Data, &[Frame::Records { stream: StreamId(1), offset: 9, bytes: b"weft" }]);
        let header = Packet::decode(&bytes).expect("it was just made").header;
        header.seal_partly(&mut bytes, 54);
        let seen = told(&bytes);
        assert!(seen.in_words().ends_with("56 B data 7 acked 5 checksum over 54 B: 4 B of stream 1 at 9"), "{seen:?}");
        assert_eq!(serde_json::to_value(&seen).expect("JSON")["covered"], 54);
        bytes[55] ^= 1;
        assert_eq!(told(&bytes), seen);
    }

    #[test]
    fn what_is_damaged_is_told_as_such() {
        let mut bytes = packet(PacketKind::Data, &[Frame::Ping]);
        bytes[41] ^= 1;
        let seen = told(&bytes);
        assert!(seen.header.is_none() && seen.in_words().ends_with("44 B: packet with a wrong checksum"), "{seen:?}");
        weft_wire::packet::reseal(&mut bytes);
        assert_eq!(told(&bytes).frames, [Part::Malformed { why: "frame with reserved bytes set".to_owned() }]);
    }
}
