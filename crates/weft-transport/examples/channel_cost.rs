//! What a channel costs the processor, without any link: two of them in one thread hand each other their packets.
//!
//! ```text
//! cargo run --release -p weft-transport --example channel_cost [CASE [ROUNDS]]
//! ```
//! Prints the least and the median of the rounds for each record, both sides together.

use std::time::{Duration, Instant};
use weft_transport::{Caller, Channel, FixedWindow, Life, Lot, Settings, Time};
use weft_wire::frame::{StreamId, Terms};
use weft_wire::packet::ChannelId;
use weft_wire::path::Peek;
use weft_wire::{Epoch, Head, Kind};

const STREAM: StreamId = StreamId(1);

/// Two channels that are connected, and time that goes on by a microsecond with each packet.
struct Pair {
    now: Time,
    channels: [Channel; 2],
    packet: Vec<u8>,
    packets: u64,
}

impl Pair {
    fn new(packet_size: u16) -> Pair {
        let now = Time::from_micros(1_000_000);
        let [caller, answerer] = [1, 2].map(|n| Life { epoch: Epoch(n), id: ChannelId(n as u32) });
        let settings =
            Settings { window: 2 << 20, send_most: 2 << 20, packet_first: packet_size, ..Settings::default() };
        let terms = Terms { features: 0, window: 1 << 20, ack_delay: 1000, packet_most: 9000 };
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

    /// So many records one way in a burst, then whatever the other side has to say.
    fn burst(&mut self, records: u32, payload: &[u8]) {
        (0..records).for_each(|_| self.send(0, payload));
        self.carry(0);
        assert_eq!(self.read(1), records);
        self.now = self.now + Duration::from_millis(2);
        self.channels[1].on_timeout(self.now);
        self.carry(1);
    }

    /// One record there and one back.
    fn there_and_back(&mut self, payload: &[u8]) {
        for at in [0, 1] {
            self.send(at, payload);
            self.carry(at);
            assert_eq!(self.read(1 - at), 1);
        }
    }
}

/// What is measured: its name, packet size, payload, records in a burst (one: there and back), and bursts in a round.
const CASES: [(&str, u16, usize, u32, u32); 6] = [
    ("ping-16", 1472, 16, 1, 20_000),
    ("burst-16", 1472, 16, 1000, 100),
    ("burst-1k", 1472, 1024, 200, 100),
    ("bulk-64k-1472", 1472, 65_536, 8, 40),
    ("bulk-64k-8972", 8972, 65_536, 8, 40),
    ("ping-64k-8972", 8972, 65_536, 1, 100),
];

fn main() {
    let wanted = std::env::args().nth(1);
    let rounds = std::env::args().nth(2).and_then(|n| n.parse().ok()).unwrap_or(40);
    for (name, packet_size, bytes, records, bursts) in CASES {
        if wanted.as_ref().is_some_and(|wanted| wanted != name) {
            continue;
        }
        let (mut pair, payload) = (Pair::new(packet_size), vec![7; bytes]);
        let each = if records == 1 { 2 } else { records };
        let mut round = || {
            let start = Instant::now();
            for _ in 0..bursts {
                match records {
                    1 => pair.there_and_back(&payload),
                    _ => pair.burst(records, &payload),
                }
            }
            start.elapsed().as_nanos() as f64 / f64::from(bursts * each)
        };
        round();
        let mut times: Vec<f64> = (0..rounds).map(|_| round()).collect();
        times.sort_by(f64::total_cmp);
        let (least, median) = (times[0], times[times.len() / 2]);
        let packets = pair.packets as f64 / f64::from((rounds + 1) * bursts * each);
        println!(
            "{name:<15} {least:>9.0} ns a record at the least, {median:>9.0} at the median; {packets:.2} packets, {:.2} GB/s",
            bytes as f64 / least
        );
    }
}
