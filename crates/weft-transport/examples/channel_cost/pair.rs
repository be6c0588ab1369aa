//! Two channels that hand each other their packets.

use std::time::Duration;
use weft_transport::{Caller, Channel, FixedWindow, Life, Lot, Settings, Time};
use weft_wire::frame::{StreamId, Terms, HEADER_INTEGRITY};
use weft_wire::packet::{ChannelId, Integrity};
use weft_wire::path::Peek;
use weft_wire::{Epoch, Head, Kind};

const STREAM: StreamId = StreamId(1);

/// Two connected channels. Time advances by a microsecond with each packet.
pub struct Pair {
    now: Time,
    channels: [Channel; 2],
    packet: Vec<u8>,
    pub packets: u64,
}

impl Pair {
    pub fn new(packet_size: u16, integrity: Integrity) -> Pair {
        let now = Time::from_micros(1_000_000);
        let [caller, answerer] = [1, 2].map(|n| Life { epoch: Epoch(n), id: ChannelId(n as u32) });
        let sizes = Settings { window: 2 << 20, send_most: 2 << 20, packet_first: packet_size, ..Settings::default() };
        let settings = Settings { integrity, ..sizes };
        let features = if integrity == Integrity::Header { HEADER_INTEGRITY } else { 0 };
        let terms = Terms { features, window: 1 << 20, ack_delay: 1000, packet_most: 9000 };
        let lot = Lot { nonce: 3, seed: 4 };
        let call = Caller { epoch: caller.epoch, id: caller.id, nonce: 3, terms, sent_at: 0, arrived: now };
        let window = FixedWindow(1 << 20);
        let channels = [
            Channel::call(now, caller, answerer.epoch, settings, lot, window),
            Channel::answer(now, answerer, &call, settings, lot, window),
        ];
        let mut pair = Pair { now, channels, packet: vec![0; usize::from(packet_size)], packets: 0 };
        for channel in &mut pair.channels {
            channel.open(STREAM).expect("room");
        }
        pair.carry(1);
        pair.carry(0);
        assert!(pair.channels.iter().all(Channel::is_open));
        pair
    }

    fn send(&mut self, at: usize, payload: &[u8]) {
        self.channels[at].send(STREAM, Head::new(Kind::Request), &[1, 2], payload).expect("room");
    }

    fn carry(&mut self, from: usize) {
        let [one, other] = &mut self.channels;
        let (ours, theirs) = if from == 0 { (one, other) } else { (other, one) };
        let size = ours.packet_size();
        while let Some(run) = ours.transmit_run(self.now, 44) {
            for packet in run.chunks(size) {
                self.now = self.now + Duration::from_micros(1);
                theirs.on_packet(self.now, packet);
                self.packets += 1;
            }
        }
        while let Some(bytes) = self.channels[from].transmit(self.now, &mut self.packet) {
            self.now = self.now + Duration::from_micros(1);
            self.channels[1 - from].on_packet(self.now, &self.packet[..bytes]);
            self.packets += 1;
        }
    }

    fn read(&mut self, at: usize) -> u32 {
        let channel = &mut self.channels[at];
        let mut records = 0;
        while channel.poll_event().is_some() {}
        while let Peek::Record(record) = channel.peek(STREAM) {
            std::hint::black_box(record.payload);
            channel.pop(STREAM);
            records += 1;
        }
        channel.release(STREAM);
        records
    }

    /// Sends a burst of records one way, then carries the answers of the other side.
    pub fn burst(&mut self, records: u32, payload: &[u8]) {
        (0..records).for_each(|_| self.send(0, payload));
        self.carry(0);
        assert_eq!(self.read(1), records);
        self.now = self.now + Duration::from_millis(2);
        self.channels[1].on_timeout(self.now);
        self.carry(1);
    }

    /// One record there and one back.
    pub fn there_and_back(&mut self, payload: &[u8]) {
        for at in [0, 1] {
            self.send(at, payload);
            self.carry(at);
            assert_eq!(self.read(1 - at), 1);
        }
    }
}
