//! Readers that lie about what they took, while their peer sends packets from its streams' memory.

use crate::hostile::{Liar, START};
use crate::world::{micros, seed, World};
use std::collections::BTreeMap;
use weft_transport::Random;
use weft_wire::frame::{Frame, Pause, PauseReason, StreamId, FIRST_OFFSET};
use weft_wire::packet::{reseal_partly, Integrity, Packet, HEADER, PACKET_LEAST, RECORD_COVERED};
use weft_wire::path::{Abandoned, PushError};
use weft_wire::record::packed_payload_at;
use weft_wire::{Head, Kind, Reason};

/// The largest packets of a jumbo link.
const BUFFER: usize = 8972;

const STREAMS: u32 = 2;

/// A stream, as its writer wrote it.
#[derive(Default)]
struct Written {
    bytes: Vec<u8>,
    /// The records: the place of each, its arguments and payload.
    records: Vec<(usize, Vec<u32>, Vec<u8>)>,
    round: u32,
}

impl Written {
    fn push(&mut self, head: Head, args: Vec<u32>, payload: Vec<u8>) {
        let start = self.bytes.len();
        let head = Head { args: args.len() as u8, len: payload.len() as u32, ..head };
        head.pack().iter().for_each(|word| self.bytes.extend(word.to_le_bytes()));
        args.iter().for_each(|arg| self.bytes.extend(arg.to_le_bytes()));
        self.bytes.resize(start + packed_payload_at(args.len()), 0);
        self.bytes.extend(&payload);
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
        self.records.push((start, args, payload));
    }
}

/// A host that sends much to a liar, and what it wrote.
struct Attack {
    liar: Liar,
    written: BTreeMap<StreamId, Written>,
    random: Random,
    /// The low half of the last packet's number, plus one.
    next: u32,
    partly: u64,
}

impl Attack {
    fn new(integrity: Integrity, seed: u64) -> Attack {
        let mut random = Random::new(seed);
        let mut world = World::new(STREAMS, seed);
        world.mtu = BUFFER;
        for host in &mut world.hosts {
            host.settings.integrity = integrity;
            host.settings.send_most = 128 << 10 << random.below(4);
            host.settings.packet_first = [PACKET_LEAST, 1200, 1472, BUFFER][random.below(4) as usize] as u16;
        }
        world.run(micros(100_000)).expect("nothing to go wrong");
        let mut liar = Liar::of(world);
        liar.world.capture = Some(Vec::new());
        let written = (1..=STREAMS).map(|s| (StreamId(s), Written::default())).collect();
        Attack { liar, written, random, next: weft_wire::packet::FIRST_NUMBER as u32, partly: 0 }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.random.below(bound)
    }

    fn stream(&mut self) -> StreamId {
        StreamId(1 + self.below(STREAMS.into()) as u32)
    }

    /// Writes some records while there is room.
    fn write(&mut self) {
        let (stream, most) = (self.stream(), [40, 3000, 65_537][self.below(3) as usize]);
        for _ in 0..self.below(20) {
            let (args, bytes) = (self.below(17) as usize, self.below(most) as usize);
            let args: Vec<u32> = (0..args).map(|_| self.random.bits() as u32).collect();
            let first = self.random.bits();
            let payload: Vec<u8> = (0..bytes as u64).map(|n| (first.wrapping_add(n * n) >> 3) as u8).collect();
            match self.liar.world.channel(0).send(stream, Head::new(Kind::Send), &args, &payload) {
                Ok(()) => {
                    let written = self.written.get_mut(&stream).expect("a stream of ours");
                    written.push(Head::new(Kind::Send), args, payload);
                }
                Err(PushError::Full | PushError::Gone) => return,
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// A place of a stream: the beginning of a record that was not taken, the end, or any place.
    fn place(&mut self, stream: StreamId) -> u32 {
        let taken = (self.liar.world.channel(0).traffic(stream).taken.max(FIRST_OFFSET) - FIRST_OFFSET) as usize;
        let written = &self.written[&stream];
        let open = written.records.partition_point(|(start, ..)| *start <= taken);
        let (count, end) = (written.records.len() - open, written.bytes.len());
        let offset = match self.random.below(8) {
            0 => end,
            1 => self.random.bits() as usize,
            2 => taken + self.random.below(1 << 18) as usize,
            _ if count == 0 => end,
            _ => written.records[open + self.random.below(count.min(40) as u64) as usize].0,
        };
        START.wrapping_add(offset as u32)
    }

    fn say(&mut self) {
        let stream = self.stream();
        let (place, other) = (self.place(stream), self.place(stream));
        let junk: Vec<u8> = (0..1 + self.below(400)).map(|_| self.random.bits() as u8).collect();
        let limit = place.wrapping_add(self.below(1 << 20) as u32);
        let frame = match self.below(40) {
            0..20 => Frame::Taken { stream, taken: place, limit },
            20..24 => Frame::Acks { bitmap: &junk[..junk.len().min(128)] },
            24..30 => {
                let written = self.written.get_mut(&stream).expect("a stream of ours");
                written.round = written.round.wrapping_add(self.random.below(3) as u32);
                let pause = Pause { stream, from: place, round: written.round };
                match written.round % 2 {
                    1 => Frame::Pause { pause, reason: PauseReason::Crowded },
                    _ => Frame::Resume(pause),
                }
            }
            30..33 => Frame::Records { stream, offset: other, bytes: &junk },
            33 => Frame::Share { bytes: self.below(1 << 20) as u32 },
            34 if self.below(20) == 0 => Frame::Nack { stream, taken: place, touched: other, reason: Reason::NoRoom },
            _ => Frame::Ping,
        };
        self.liar.header.acked = Some(self.next.wrapping_sub(self.random.below(20).saturating_sub(10) as u32));
        let mut packet = self.liar.packet(&[frame]);
        if self.below(2) == 0 {
            let covered = HEADER as u64 + self.random.below((packet.len() - HEADER) as u64);
            reseal_partly(&mut packet, covered as usize);
        }
        self.liar.world.take(0, &packet);
    }

    /// Sends what may go, and compares it with what was written.
    fn send(&mut self) {
        self.liar.world.transmit(0);
        let capture = self.liar.world.capture.replace(Vec::new()).expect("a capture");
        for (_, packet) in &capture {
            let read = Packet::decode_as(packet, Integrity::Header).expect("sealed as it says");
            self.next = read.header.number.wrapping_add(1);
            let left_out = packet.len() - read.covered();
            self.partly += u64::from(left_out > 0);
            for frame in read.frames() {
                let Frame::Records { stream, offset, bytes } = frame.expect("a frame") else { continue };
                let from = offset.wrapping_sub(START) as usize;
                let to = from + bytes.len();
                let written = &self.written[&stream];
                assert_eq!(Some(bytes), written.bytes.get(from..to), "{from}..{to} of {stream:?}");
                if packet.as_ptr_range().end == bytes.as_ptr_range().end && left_out > 0 {
                    // The peer ignores bytes that it has taken.
                    let taken = (self.liar.world.channel(0).traffic(stream).taken - FIRST_OFFSET) as usize;
                    let behind = written.records.partition_point(|(start, ..)| *start < to);
                    let last = written.records[..behind].last().map(|(start, ..)| *start).filter(|at| *at >= taken);
                    assert!(
                        last.is_none_or(|start| start + RECORD_COVERED <= to - left_out),
                        "the record at {last:?} in {from}..{to} of {stream:?}, {left_out} bytes left out"
                    );
                }
            }
        }
    }

    fn step(&mut self) {
        match self.below(12) {
            0..4 => self.write(),
            4 if self.below(4) == 0 => {
                let size = self.liar.world.channel(0).packet_size() as u64;
                let bytes = PACKET_LEAST as u64 + self.below(size.max(PACKET_LEAST as u64 + 1) - PACKET_LEAST as u64);
                let now = self.liar.world.now;
                self.liar.world.channel(0).too_large(now, bytes as usize);
            }
            4..6 => {
                self.liar.world.now = self.liar.world.now + micros(self.random.below(30_000));
                let now = self.liar.world.now;
                let channel = self.liar.world.channel(0);
                if channel.next_timeout().is_some_and(|at| at <= now) {
                    channel.on_timeout(now);
                }
            }
            _ => self.say(),
        }
        self.send();
        assert!(self.liar.world.channel(0).is_open());
    }

    /// Records that the peer did not report as taken come back as they were written.
    fn settle(&mut self) {
        for (stream, returned) in self.liar.world.channel(0).abandon() {
            let records = &self.written[&stream].records;
            let kept = records.iter().skip(records.len() - returned.len());
            for ((_, args, payload), Abandoned { args: its, payload: contents, .. }) in kept.zip(&returned) {
                assert!((args, payload) == (its, contents), "a record of {stream:?} came back changed");
            }
        }
    }
}

#[test]
fn packets_to_a_lying_reader_have_the_bytes_that_were_written() {
    let first = seed() * 1000;
    for integrity in [Integrity::Full, Integrity::Header] {
        let (mut partly, mut runs) = (0, 0);
        for seed in first..first + 60 {
            let mut attack = Attack::new(integrity, seed);
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                (0..600).for_each(|_| attack.step());
                attack.settle();
            }));
            assert!(done.is_ok(), "{integrity:?}, seed {seed}");
            partly += attack.partly;
            runs += attack.liar.world.runs[0];
        }
        println!("{integrity:?}: {runs} runs, {partly} packets covered in part");
        assert!(runs > 1000, "{runs} runs that lay ready");
        assert_eq!(partly > 1000, integrity == Integrity::Header, "{partly} packets covered in part");
    }
}
