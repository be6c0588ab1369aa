//! A channel, and a peer that says anything in packets that are in order outside: the input is a list of what happens.
#![no_main]

use std::time::Duration;
use weft_fuzz::{sealed, Input};
use weft_transport::{Caller, Channel, FixedWindow, Life, Lot, Settings, Time};
use weft_wire::frame::{Accept, Frame, StreamId, Terms, Writer, UNRELIABLE};
use weft_wire::packet::{ChannelId, Header, Packet, PacketKind, Reflected, FIRST_NUMBER, HEADER, PACKET_LEAST, SPAN};
use weft_wire::path::Peek;
use weft_wire::{Epoch, Head, Kind, Reason};

const OURS: Life = Life { epoch: Epoch(1), id: ChannelId(7) };
const THEIRS: Life = Life { epoch: Epoch(2), id: ChannelId(9) };
const LOT: Lot = Lot { nonce: 3, seed: 4 };
const TERMS: Terms = Terms { features: UNRELIABLE, window: 100_000, ack_delay: 1000, packet_most: 9000 };
const STREAMS: u8 = 4;

/// Steps of one run, and packets between two of them.
const STEPS_MOST: usize = 400;
const PACKETS_MOST: u32 = 4000;

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
    // What was begun goes on without anything that would break, until nobody waits.
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
}

impl World {
    fn new(how: u8) -> World {
        let now = Time::from_micros(1_000_000);
        let settings = Settings {
            suspicion: Duration::from_secs(if how & 2 == 0 { 3 } else { 300 }),
            window: 128 << 10,
            send_most: 128 << 10,
            streams_most: u32::from(STREAMS),
            packet_first: if how & 4 == 0 { 1200 } else { 9000 },
            ..Settings::default()
        };
        let window = FixedWindow(64 << 10);
        let channel = if how & 1 == 0 {
            let caller =
                Caller { epoch: THEIRS.epoch, id: THEIRS.id, nonce: LOT.nonce, terms: TERMS, sent_at: 0, arrived: now };
            Channel::answer(now, OURS, &caller, settings, LOT, window)
        } else {
            Channel::call(now, OURS, THEIRS.epoch, settings, LOT, window)
        };
        let mut world = World { now, channel, number: FIRST_NUMBER - 1, sent: FIRST_NUMBER as u32 };
        world.channel.open(StreamId(1)).expect("the first stream");
        if how & 9 == 1 {
            let accept = Accept { nonce: LOT.nonce, caller: OURS.epoch, callee: THEIRS.epoch, terms: TERMS };
            let mut packet = [0; 200];
            let mut writer = Writer::new(&mut packet);
            assert!(writer.push(&Frame::Accept(accept)));
            world.number += 1;
            let header = Header::new(PacketKind::Data, OURS.id, THEIRS.id);
            let packet = writer.finish();
            Header { number: world.number as u32, ..header }.seal(packet);
            world.channel.on_packet(now, packet);
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
            7 => drop(self.channel.close(stream, Reason::NoRoom)),
            _ if how & 0x60 == 0x60 => {
                let payload = [what; 65_537];
                let len = usize::from(input.word()?);
                // *Full* is a normal answer.
                let _ = self.channel.send_unreliable(stream, Head::new(Kind::Unreliable), &[1], &payload[..len]);
                while let Some(message) = self.channel.take_unreliable() {
                    assert!(message.record().args.len() <= 16 && message.record().payload.len() <= 65_536);
                }
            }
            _ => match how % 4 {
                0 => self.channel.rest(),
                1 => self.channel.keep_watch(how & 128 != 0),
                2 => self.channel.too_large(self.now, usize::from(input.word()?)),
                _ => while self.channel.poll_event().is_some() {},
            },
        }
        Some(())
    }

    /// A packet of the peer, with anything for frames.
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
        let reflected = Reflected { sent_at: self.now.stamp().wrapping_sub(u32::from(behind)), held: behind / 2 };
        let header = Header {
            number: self.number as u32,
            behind: behind % SPAN,
            sent_at: self.now.stamp(),
            reflected: (how & 4 != 0).then_some(reflected),
            acked: (how & 8 != 0).then_some(self.sent.wrapping_add(1).wrapping_sub(u32::from(acked))),
            ..Header::new(kind, OURS.id, from)
        };
        let bytes = usize::from(input.word()? % 1500);
        self.channel.on_packet(self.now, &sealed(header, input.take(bytes)));
        Some(())
    }

    /// Lets the channel say what it has to say, and holds it against what is promised.
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
            assert!(packet.frames().all(|frame| frame.is_ok()));
            assert!(bytes <= size || matches!(packet.only_frame(), Some(Frame::Padding { .. })), "{bytes} of {size}");
            if packet.header.kind == PacketKind::Data {
                assert!(packet.header.from == OURS.id && bytes >= HEADER);
                self.sent = packet.header.number;
            }
            assert!(packets < PACKETS_MOST, "no end of packets");
        }
    }
}
