//! A channel, and a peer that sends arbitrary contents in well-formed packets. The input is a list of events.
#![no_main]

use std::collections::BTreeSet;
use std::time::Duration;
use weft_fuzz::{sealed, Input};
use weft_transport::{Caller, Channel, FixedWindow, Life, Lot, Settings, Time};
use weft_wire::frame::{Accept, Frame, PauseReason, Piece, StreamId, Terms, Writer, UNRELIABLE};
use weft_wire::packet::{ChannelId, Header, Packet, PacketKind, Reflected, FIRST_NUMBER, HEADER, PACKET_LEAST, SPAN};
use weft_wire::path::Peek;
use weft_wire::{Epoch, Head, Kind, Reason};

const OURS: Life = Life { epoch: Epoch(1), id: ChannelId(7) };
const THEIRS: Life = Life { epoch: Epoch(2), id: ChannelId(9) };
const LOT: Lot = Lot { nonce: 3, seed: 4 };
const TERMS: Terms = Terms { features: 0, window: 100_000, ack_delay: 1000, packet_most: 9000 };
const STREAMS: u8 = 4;

/// Steps of one run, and packets between two of them.
const STEPS_MOST: usize = 400;
const PACKETS_MOST: u32 = 4000;

/// Pieces of unreliable messages that the peer can still send back to the channel.
const PIECES_MOST: usize = 64;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let Some(how) = input.byte() else { return };
    let mut world = World::new(how);
    for _ in 0..STEPS_MOST {
        if world.step(&mut input).is_none() {
            break;
        }
        assert!(world.channel.memory() < 3 << 20, "{} bytes", world.channel.memory());
        assert!(world.channel.packet_size() >= PACKET_LEAST);
    }
    // What was begun continues without further faults, until nothing waits.
    for _ in 0..100 {
        let Some(next) = world.channel.next_timeout() else { break };
        world.now = world.now.max(next);
        world.channel.on_timeout(world.now);
        world.transmit(1472);
    }
    world.channel.abandon();
    assert_eq!(world.channel.next_timeout(), None);
});

struct World {
    now: Time,
    channel: Channel,
    /// The last number of the peer, and of the channel.
    number: u64,
    sent: u32,
    /// Whether the peer knows unreliable messages; unknown if the input decides.
    knows_unreliable: Option<bool>,
    loose: Loose,
}

/// The value of each byte of an unreliable message's payload; untouched memory is zero.
fn fill(n: u32) -> u8 {
    (n as u8).wrapping_mul(2) | 1
}

/// Unreliable messages: the channel sends them, and its peer sends their pieces back to it, so that some come back whole.
#[derive(Default)]
struct Loose {
    /// The stream and the size of each. A message's argument is its index here, and each byte of its payload depends on that.
    sent: Vec<(StreamId, usize)>,
    came: BTreeSet<u32>,
    pieces: Vec<(Said, Vec<u8>)>,
    last: Option<Said>,
    /// Where the last piece ended.
    until: u32,
    /// The peer sent pieces of its own, so anything may come.
    is_lied: bool,
}

/// A piece, without its bytes.
#[derive(Clone, Copy)]
struct Said {
    stream: StreamId,
    number: u32,
    at: u32,
    total: u32,
}

impl World {
    fn new(how: u8) -> World {
        let now = Time::from_micros(1_000_000);
        let settings = Settings {
            suspicion: Duration::from_secs(if how & 2 == 0 { 3 } else { 300 }),
            window: 128 << 10,
            send_most: 128 << 10,
            held_most: if how & 32 == 0 { u32::MAX } else { 0 },
            streams_most: u32::from(STREAMS),
            packet_first: if how & 4 == 0 { 1200 } else { 9000 },
            ..Settings::default()
        };
        let (window, knows) = (FixedWindow(64 << 10), how & 16 == 0);
        let terms = Terms { features: if knows { UNRELIABLE } else { 0 }, ..TERMS };
        let channel = if how & 1 == 0 {
            let caller =
                Caller { epoch: THEIRS.epoch, id: THEIRS.id, nonce: LOT.nonce, terms, sent_at: 0, arrived: now };
            Channel::answer(now, OURS, &caller, settings, LOT, window)
        } else {
            Channel::call(now, OURS, THEIRS.epoch, settings, LOT, window)
        };
        let (number, sent, knows_unreliable) = (FIRST_NUMBER - 1, FIRST_NUMBER as u32, (how & 9 != 9).then_some(knows));
        let mut world = World { now, channel, number, sent, knows_unreliable, loose: Loose::default() };
        world.channel.open(StreamId(1)).expect("the first stream");
        if how & 9 == 1 {
            let accept = Accept { nonce: LOT.nonce, caller: OURS.epoch, callee: THEIRS.epoch, terms };
            world.say(&[Frame::Accept(accept)]);
            assert!(world.channel.is_open());
        }
        world
    }

    fn step(&mut self, input: &mut Input<'_>) -> Option<()> {
        let (what, how) = (input.byte()?, input.byte()?);
        let stream = StreamId(u32::from(how % (STREAMS + 1)));
        match what % 9 {
            0 | 1 => self.hear(how, input)?,
            2 => {
                self.now = self.now + Duration::from_micros(1 << (how % 28));
                self.channel.on_timeout(self.now);
            }
            3 => self.transmit([PACKET_LEAST, 1200, 1472, 9000][usize::from(how % 4)]),
            4 => {
                let (args, payload) = ([0; 17], [what; 65_537]);
                let (args, len) = (&args[..usize::from(how / 14 % 18).min(17)], usize::from(input.word()?));
                let has_room = self.channel.has_room(stream, args.len(), len);
                let sent = self.channel.send(stream, Head::new(Kind::Send), args, &payload[..len]);
                assert!(sent.is_ok() || !has_room || self.channel.lost().is_some() || args.len() > 16, "{sent:?}");
            }
            5 => {
                if let Peek::Record(record) = self.channel.peek(stream) {
                    assert!(record.args.len() <= 16 && record.payload.len() <= 65_536);
                }
                if how & 128 != 0 {
                    self.channel.pop(stream);
                }
                if how & 64 != 0 {
                    self.channel.release(stream);
                }
            }
            6 => drop(self.channel.open(stream)),
            7 if how & 0x60 == 0x20 => drop(self.channel.pause(stream, PauseReason::QueueFull, u32::from(how & 128))),
            7 if how & 0x60 == 0x40 => drop(self.channel.resume(stream)),
            7 => drop(self.channel.close(stream, Reason::NoRoom)),
            _ if how & 0x60 == 0x60 => {
                self.take_unreliable();
                self.send_unreliable(stream, usize::from(input.word()?));
            }
            _ if how & 0xe0 == 0x40 => self.say_again(how),
            _ if how & 0xe0 == 0xc0 => self.say_piece(stream, input)?,
            _ => match how % 4 {
                0 => self.channel.rest(),
                1 => self.channel.keep_watch(how & 128 != 0),
                2 => self.channel.too_large(self.now, usize::from(input.word()?)),
                _ => while self.channel.poll_event().is_some() {},
            },
        }
        Some(())
    }

    /// The peer sends a packet with arbitrary frames.
    fn hear(&mut self, how: u8, input: &mut Input<'_>) -> Option<()> {
        let kind = match how & 0x70 {
            0x10 => PacketKind::Answer,
            0x20 => PacketKind::Reset,
            0x30 => PacketKind::Call,
            _ => PacketKind::Data,
        };
        let from = if how & 0x80 == 0 { THEIRS.id } else { ChannelId(11) };
        self.number += u64::from(how & 3);
        let (acked, behind) = (input.byte()?, input.word()?);
        let sent_at = self.now.stamp().wrapping_sub(u32::from(behind));
        let reflected = Reflected { sent_at, held: behind / 2, lay: behind / 4 };
        let header = Header {
            number: self.number as u32,
            behind: behind % SPAN,
            sent_at: self.now.stamp(),
            reflected: (how & 4 != 0).then_some(reflected),
            acked: (how & 8 != 0).then_some(self.sent.wrapping_add(1).wrapping_sub(u32::from(acked))),
            ..Header::new(kind, OURS.id, from)
        };
        let bytes = usize::from(input.word()? % 1500);
        let packet = sealed(header, input.take(bytes));
        let mut frames = Packet::decode(&packet).into_iter().flat_map(|packet| packet.frames());
        self.loose.is_lied |= frames.any(|frame| matches!(frame, Ok(Frame::Unreliable(_))));
        // The kernel supplies the arrival time, from a clock that may have been set.
        let behind = Duration::from_micros(u64::from(behind));
        let came_at = match how & 0x70 {
            0x40 => self.now - behind,
            0x50 => self.now - behind * 1000,
            0x60 => self.now + behind,
            0x70 => self.now + behind * 1_000_000,
            _ => self.now,
        };
        self.channel.on_packet_of(self.now, came_at, &packet);
        Some(())
    }

    /// The peer sends a well-formed packet, whose frames may be wrong.
    fn say(&mut self, frames: &[Frame<'_>]) {
        let mut packet = [0; 9000];
        let mut writer = Writer::new(&mut packet);
        frames.iter().for_each(|frame| assert!(writer.push(frame), "room for a few frames"));
        self.number += 1;
        let header = Header::new(PacketKind::Data, OURS.id, THEIRS.id);
        let packet = writer.finish();
        Header { number: self.number as u32, sent_at: self.now.stamp(), ..header }.seal(packet);
        self.channel.on_packet(self.now, packet);
    }

    fn send_unreliable(&mut self, stream: StreamId, len: usize) {
        let (n, dropped) = (self.loose.sent.len() as u32, self.channel.counters().unreliable_dropped);
        let payload = [fill(n); 65_537];
        // *Full* is a normal answer.
        if self.channel.send_unreliable(stream, Head::new(Kind::Unreliable), &[n], &payload[..len]).is_ok() {
            self.loose.sent.push((stream, len));
            let drops = self.channel.counters().unreliable_dropped - dropped;
            assert!(self.knows_unreliable.is_none_or(|knows| drops == u64::from(!knows)));
        }
    }

    /// Each message comes at most once and unchanged, unless the peer sends pieces of its own.
    fn take_unreliable(&mut self) {
        while let Some(message) = self.channel.take_unreliable() {
            let record = message.record();
            assert!(record.args.len() <= 16 && record.payload.len() <= 65_536);
            if self.loose.is_lied {
                continue;
            }
            let &[n] = record.args else { panic!("arguments {:?}", record.args) };
            assert_eq!(self.loose.sent.get(n as usize), Some(&(message.stream, record.payload.len())));
            assert!(record.payload.iter().all(|byte| *byte == fill(n)), "message {n} is mixed with another");
            assert!(self.loose.came.insert(n), "message {n} came twice");
        }
    }

    /// The peer sends back the pieces that it has received: each once, in any order, and not all of them.
    fn say_again(&mut self, how: u8) {
        let pieces = &mut self.loose.pieces;
        let count = usize::from(how % 4 + 1).min(pieces.len());
        let said: Vec<_> = (0..count).map(|_| pieces.swap_remove(usize::from(how / 4 % 8) % pieces.len())).collect();
        for (Said { stream, number, at, total }, bytes) in &said {
            self.say(&[Frame::Unreliable(Piece { stream: *stream, number: *number, at: *at, total: *total, bytes })]);
        }
    }

    /// The peer sends a piece of its own.
    fn say_piece(&mut self, stream: StreamId, input: &mut Input<'_>) -> Option<()> {
        let (number, at, total) = (u32::from(input.byte()?), u32::from(input.word()?), u32::from(input.word()?));
        let bytes = usize::from(input.word()? % 1400) + 1;
        // Also beyond its end, and beyond the end of any message.
        let total = if number == 7 { 2 * total } else { total };
        let piece = Piece { stream, number, at, total, bytes: &vec![number as u8; bytes] };
        self.loose.is_lied = true;
        self.say(&[Frame::Unreliable(piece)]);
        Some(())
    }

    /// Lets the channel send, and checks that against its promises.
    fn transmit(&mut self, most: usize) {
        let mut packet = [0; 9000];
        for packets in 0.. {
            let size = self.channel.packet_size();
            if let Some(run) = self.channel.transmit_run(self.now, 1 + most % 44) {
                assert!(!run.is_empty());
                for packet in run.chunks(size).map(|packet| Packet::decode(packet).expect("a packet")) {
                    assert!(matches!(packet.only_frame(), Some(Frame::Records { .. })));
                    self.sent = packet.header.number;
                }
            }
            let Some(bytes) = self.channel.transmit(self.now, &mut packet[..most]) else { return };
            let packet = Packet::decode(&packet[..bytes]).expect("a packet");
            for frame in packet.frames().map(|frame| frame.expect("a frame")) {
                if let Frame::Unreliable(piece) = frame {
                    assert!(self.knows_unreliable != Some(false), "the peer does not know them");
                    self.loose.note(&piece);
                }
            }
            assert!(bytes <= size || matches!(packet.only_frame(), Some(Frame::Padding { .. })), "{bytes} of {size}");
            if packet.header.kind == PacketKind::Data {
                assert!(packet.header.from == OURS.id && bytes >= HEADER);
                self.sent = packet.header.number;
            }
            assert!(packets < PACKETS_MOST, "no end of packets");
        }
    }
}

impl Loose {
    /// The channel sent a piece: pieces go in order, and no number is used twice.
    fn note(&mut self, &Piece { stream, number, at, total, bytes }: &Piece<'_>) {
        match self.last {
            Some(last) if at > 0 => {
                assert_eq!((stream, number, at, total), (last.stream, last.number, self.until, last.total))
            }
            last => assert_eq!((number, at), (last.map_or(0, |last| last.number.wrapping_add(1)), 0)),
        }
        let said = Said { stream, number, at, total };
        (self.last, self.until) = (Some(said), at + bytes.len() as u32);
        assert!(self.until <= total);
        if self.pieces.len() == PIECES_MOST {
            self.pieces.remove(0);
        }
        self.pieces.push((said, bytes.to_vec()));
    }
}
