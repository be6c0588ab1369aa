//! Packets that are received late, after their sender has reused their pages for other bytes.

use crate::address::Ports;
use crate::link::Stock;
use crate::udp::{Received, Udp, RECEIVE_BYTES};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;
use weft_transport::{Answer, Channel, Door, FixedWindow, Life, Lot, Packets, Random, Settings, Time, Verdict};
use weft_wire::frame::StreamId;
use weft_wire::packet::{ChannelId, Integrity};
use weft_wire::path::{Peek, PushError};
use weft_wire::{Epoch, Head, Kind};

const A: StreamId = StreamId(0);

/// A record's payload: each word names its record and its place in it.
fn payload(number: u32) -> Vec<u8> {
    let bytes = [40, 3000, 65_000][number as usize % 3];
    (0..bytes / 8).flat_map(|at: u32| (u64::from(number) << 32 | u64::from(at)).to_le_bytes()).collect()
}

/// Sockets of one host on two ways to another one, as when one direct socket replaces another.
fn ways() -> ([Udp; 2], [Udp; 2]) {
    let open = || Udp::open(IpAddr::V4(Ipv4Addr::LOCALHOST), Ports::ANY).expect("loopback has free ports");
    let to = [open(), open()];
    let from = [0, 1]
        .map(|way: usize| open().direct(&to[way].local(), [].into_iter()).expect("two sockets may have one port"));
    (from, to)
}

struct Writer {
    channel: Channel<FixedWindow, Stock>,
    ways: [Udp; 2],
    random: Random,
    written: u32,
}

struct Reader {
    channel: Channel<FixedWindow>,
    ways: [Udp; 2],
    random: Random,
    /// The way that is read at present.
    heard: usize,
    read: u32,
}

/// Both sides of a channel that is open.
fn pair(integrity: Integrity, seed: u64, now: Time) -> (Writer, Reader) {
    let settings = Settings {
        integrity,
        packet_first: 1472,
        packet_most: 1472,
        window: 1 << 20,
        // Small, so that its memory is reused soon.
        send_most: 128 << 10,
        ..Settings::default()
    };
    let (ours, theirs) = (Life { epoch: Epoch(1), id: ChannelId(11) }, Life { epoch: Epoch(2), id: ChannelId(22) });
    let window = FixedWindow(256 << 10);
    let door = Door::new(theirs.epoch, [3, 4]);
    let mut writer = Channel::call_in(now, ours, theirs.epoch, settings, Lot { nonce: 5, seed }, window);
    let mut packet = [0; 2048];
    let length = writer.transmit(now, &mut packet).expect("a call");
    let Answer::Reply(cookie) = door.answer(now, b"here", &packet[..length]) else { panic!("no cookie") };
    assert_eq!(writer.on_packet(now, cookie.bytes()), Verdict::Taken);
    let length = writer.transmit(now, &mut packet).expect("another call");
    let Answer::Admit(caller) = door.answer(now, b"here", &packet[..length]) else { panic!("not admitted") };
    let mut reader = Channel::answer(now, theirs, &caller, settings, Lot { nonce: 7, seed }, window);
    let length = reader.transmit(now, &mut packet).expect("it accepts");
    assert_eq!(writer.on_packet(now, &packet[..length]), Verdict::Taken);
    assert_eq!(writer.integrity(), integrity);
    writer.open(A).expect("room for a stream");
    let (from, to) = ways();
    let random = Random::new(seed);
    (
        Writer { channel: writer, ways: from, random: random.clone(), written: 0 },
        Reader { channel: reader, ways: to, random, heard: 0, read: 0 },
    )
}

impl Writer {
    fn write(&mut self, now: Time) {
        while self.random.below(30) > 0 {
            match self.channel.send(A, Head::new(Kind::Send), &[self.written], &payload(self.written)) {
                Ok(()) => self.written += 1,
                Err(PushError::Full) => break,
                Err(error) => panic!("{error}"),
            }
        }
        let mut packet = [0; 2048];
        loop {
            let way = &self.ways[self.random.below(2) as usize];
            let size = self.channel.packet_size();
            if let Some(Packets { memory, place }) = self.channel.transmit_run(now, 44) {
                way.send_lasting_to_peer(&memory.0, place, size);
            } else if let Some(bytes) = self.channel.transmit(now, &mut packet) {
                way.send_to_peer(&packet[..bytes], bytes);
            } else {
                return;
            }
        }
    }

    fn on_time(&mut self, now: Time) {
        if self.channel.next_timeout().is_some_and(|at| at <= now) {
            self.channel.on_timeout(now);
        }
    }
}

impl Reader {
    /// Receives some packets of one way. Those of the other wait, mostly until they are sent again.
    fn receive(&mut self, now: Time, buffer: &mut [u8]) {
        if self.random.below(40) == 0 {
            self.heard = 1 - self.heard;
        }
        for _ in 0..self.random.below(40) {
            let got = self.ways[self.heard].receive(buffer);
            let Received::Run { bytes, segment, .. } = got else { return };
            for packet in buffer[..bytes].chunks(segment) {
                self.channel.on_packet(now, packet);
            }
        }
    }

    /// Reads records, and passes on the packets for the writer.
    fn read(&mut self, now: Time, mut tell: impl FnMut(&[u8])) {
        while let Peek::Record(record) = self.channel.peek(A) {
            assert_eq!(record.args, [self.read]);
            assert!(record.payload == payload(self.read), "record {} is another one", self.read);
            self.channel.pop(A);
            self.read += 1;
        }
        assert!(matches!(self.channel.peek(A), Peek::Empty), "a record that nobody wrote");
        self.channel.release(A);
        let mut packet = [0; 2048];
        while let Some(bytes) = self.channel.transmit(now, &mut packet) {
            tell(&packet[..bytes]);
        }
    }

    fn on_time(&mut self, now: Time) {
        if self.channel.next_timeout().is_some_and(|at| at <= now) {
            self.channel.on_timeout(now);
        }
    }
}

#[test]
fn late_packets_from_reused_pages_are_not_delivered() {
    for integrity in [Integrity::Full, Integrity::Header] {
        let (mut changed, mut buffer) = (0, vec![0; RECEIVE_BYTES]);
        for seed in 1..=8 {
            let mut now = Time::from_micros(1_000_000);
            let (mut writer, mut reader) = pair(integrity, seed, now);
            let mut random = Random::new(seed);
            for _ in 0..2000 {
                match random.below(8) {
                    0..3 => writer.write(now),
                    3..6 => reader.receive(now, &mut buffer),
                    6 => reader.read(now, |packet| _ = writer.channel.on_packet(now, packet)),
                    _ => {
                        now = now + Duration::from_micros(random.below(30_000));
                        writer.on_time(now);
                        reader.on_time(now);
                    }
                }
                assert!(writer.channel.is_open() && reader.channel.is_open(), "seed {seed}");
            }
            assert!(reader.read > 20, "seed {seed}: {:?}", reader.channel.counters());
            changed += reader.channel.counters().dropped_malformed;
        }
        println!("{integrity:?}: {changed} packets whose bytes changed");
        assert!(changed > 0 || !weft_shm::Pages::are_sent(), "nothing was received late");
    }
}
