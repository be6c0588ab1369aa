//! Two hosts and the links between them.

use std::collections::BTreeMap;
use std::time::Duration;
use weft_transport::testing::{Faults, Faulty, Link, MemLink};
use weft_transport::{Answer, Channel, Door, Event, FixedWindow, Life, Lot, Random, Settings, Time, Verdict};
use weft_wire::frame::StreamId;
use weft_wire::packet::{receiver_of, ChannelId, Quote};
use weft_wire::path::{Abandoned, Fate, Peek, PushError};
use weft_wire::{Epoch, Head, Kind, Reason};

/// Bytes of a packet, unless a test says otherwise: Ethernet's.
pub const MTU: usize = 1472;

pub const fn micros(n: u64) -> Duration {
    Duration::from_micros(n)
}

/// The seed of a random test.
pub fn seed() -> u64 {
    let seed = std::env::var("SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
    println!("to run this again: SEED={seed}");
    seed
}

/// The contents of a record, from its stream and number: the same on both sides.
pub fn record(stream: StreamId, number: u32, bytes_most: usize) -> (Head, Vec<u32>, Vec<u8>) {
    let mut random = Random::new(u64::from(stream.0) << 32 | u64::from(number));
    let args = (0..random.below(5)).map(|_| random.bits() as u32);
    let args = std::iter::once(number).chain(args).collect();
    let len = random.below(bytes_most as u64 + 1) as usize;
    let first = random.bits() as u8;
    let payload = (0..len).map(|i| first.wrapping_add(i as u8)).collect();
    let head = Head { op: first, flow: stream.0 as u16, slot: number as u16, ..Head::new(Kind::Send) };
    (head, args, payload)
}

/// Writes and reads the records of one side, and checks them.
#[derive(Debug, Default)]
pub struct Program {
    /// How many records to send on each stream, and how many were.
    pub to_send: BTreeMap<StreamId, (u32, u32)>,
    /// How many arrived on each stream.
    pub got: BTreeMap<StreamId, u32>,
    /// Streams that are not read.
    pub deaf: Vec<StreamId>,
    pub bytes_most: usize,
    /// A planted fault of the reader, which the check must find: the record that is taken twice, or skipped.
    pub taken_twice: Option<u32>,
    pub left_out: Option<u32>,
    pub events: Vec<Event>,
    pub payload_bytes: u64,
}

impl Program {
    fn write(&mut self, channel: &mut Channel) {
        for (&stream, (all, sent)) in &mut self.to_send {
            // Ask first, because making a record is slow.
            while sent < all && channel.has_room(stream, 5, self.bytes_most) {
                let (head, args, payload) = record(stream, *sent, self.bytes_most);
                match channel.send(stream, head, &args, &payload) {
                    Ok(()) => *sent += 1,
                    Err(PushError::Full | PushError::Gone) => break,
                    Err(error) => panic!("{error}"),
                }
            }
        }
    }

    /// Reads everything. Fails at the first record that is not the expected one.
    fn read(&mut self, channel: &mut Channel) -> Result<(), String> {
        let streams: Vec<StreamId> = self.got.keys().copied().filter(|s| !self.deaf.contains(s)).collect();
        for stream in streams {
            while self.read_one(channel, stream)? {}
            channel.release(stream);
        }
        Ok(())
    }

    pub fn read_one(&mut self, channel: &mut Channel, stream: StreamId) -> Result<bool, String> {
        let next = self.got.get_mut(&stream).expect("a stream of the program");
        let payload_bytes = match channel.peek(stream) {
            Peek::Empty => return Ok(false),
            Peek::Broken(error) => return Err(format!("stream {stream:?}: {error}")),
            Peek::Record(got) => {
                let (head, args, payload) = record(stream, *next, self.bytes_most);
                let head = Head { args: args.len() as u8, len: payload.len() as u32, ..head };
                if got.args != args || got.payload != payload || got.head.head() != head {
                    return Err(format!("stream {stream:?}: record {next} is {:?}", got.args.first()));
                }
                payload.len() as u64
            }
        };
        self.payload_bytes += payload_bytes;
        if self.taken_twice != Some(*next) {
            channel.pop(stream);
        } else {
            self.taken_twice = None;
        }
        *next += 1;
        if self.left_out == Some(*next) {
            channel.peek(stream);
            channel.pop(stream);
        }
        Ok(true)
    }
}

/// A host: one life of a network interface, with at most one channel.
#[derive(Debug)]
pub struct Host {
    pub epoch: Epoch,
    pub door: Door,
    pub channel: Option<Channel>,
    pub program: Program,
    pub settings: Settings,
    pub window: FixedWindow,
    pub calls: bool,
    lot: Random,
}

impl Host {
    fn new(at: usize, life: u64, seed: u64) -> Host {
        let mut lot = Random::new(seed ^ life << 8 ^ at as u64);
        let epoch = Epoch(lot.bits());
        Host {
            epoch,
            door: Door::new(epoch, [lot.bits(), lot.bits()]),
            channel: None,
            program: Program { bytes_most: 40, ..Program::default() },
            // The links carry whatever fits the buffer, unless a test says otherwise.
            settings: Settings { packet_first: MTU as u16, ..Settings::default() },
            window: FixedWindow::default(),
            calls: false,
            lot,
        }
    }

    fn draw(&mut self) -> (Life, Lot) {
        let id = ChannelId(self.lot.bits() as u32 | 1);
        (self.door.life(id), Lot { nonce: self.lot.bits(), seed: self.lot.bits() })
    }

    fn install(&mut self, mut channel: Channel) {
        for &stream in self.program.got.keys() {
            channel.open(stream).expect("room for streams");
        }
        self.channel = Some(channel);
    }
}

/// Changes a packet on its way, given the side that sent it and its bytes. False drops it.
pub type Tamper = Box<dyn FnMut(usize, &mut Vec<u8>) -> bool>;

pub struct World {
    pub now: Time,
    pub hosts: [Host; 2],
    /// Where the packets of each host go.
    pub links: [Faulty<MemLink>; 2],
    pub mtu: usize,
    /// Larger packets are refused by the link, at once.
    pub interface: usize,
    pub tamper: Option<Tamper>,
    /// All packets that were put on the links.
    pub capture: Option<Vec<(usize, Vec<u8>)>>,
    pub packets: [u64; 2],
    /// Runs of packets that lay ready.
    pub runs: [u64; 2],
    /// Hosts whose process ended: this many of the packets for them are refused with a quote, the others vanish.
    pub refuses: [Option<u32>; 2],
    pub bytes: [u64; 2],
    seed: u64,
}

impl World {
    /// Two hosts with `streams` streams, over links of a quarter of a millisecond and ten gigabits; host 0 will call host 1.
    pub fn new(streams: u32, seed: u64) -> World {
        let links = [0, 1].map(|at| {
            Faulty::new(MemLink::new(micros(250), 10_000_000_000), Faults::default(), seed.wrapping_mul(31) + at)
        });
        let mut world = World {
            now: Time::from_micros(1_000_000),
            hosts: [0, 1].map(|at| Host::new(at, 0, seed)),
            links,
            mtu: MTU,
            interface: usize::MAX,
            tamper: None,
            capture: None,
            packets: [0; 2],
            runs: [0; 2],
            refuses: [None; 2],
            bytes: [0; 2],
            seed,
        };
        for host in &mut world.hosts {
            host.program.got = (1..=streams).map(|s| (StreamId(s), 0)).collect();
        }
        world.hosts[0].calls = true;
        world
    }

    /// A world that is connected and quiet.
    pub fn connected(streams: u32, seed: u64) -> World {
        let mut world = World::new(streams, seed);
        world.run(micros(100_000)).expect("nothing to go wrong");
        assert!([0, 1].iter().all(|&at| world.channel(at).is_open()));
        world
    }

    pub fn channel(&mut self, at: usize) -> &mut Channel {
        self.hosts[at].channel.as_mut().expect("a channel")
    }

    pub fn call(&mut self, at: usize) {
        let peer = self.hosts[1 - at].epoch;
        let host = &mut self.hosts[at];
        let (life, lot) = host.draw();
        host.install(Channel::call(self.now, life, peer, host.settings, lot, host.window));
    }

    /// Adds `records` to be sent on each stream of a host.
    pub fn order(&mut self, at: usize, records: u32) {
        let program = &mut self.hosts[at].program;
        for &stream in program.got.keys() {
            program.to_send.entry(stream).or_default().0 += records;
        }
    }

    /// Ends a host's life and begins another, which has the same links and knows nothing.
    pub fn restart(&mut self, at: usize) {
        let old = &self.hosts[at];
        let (settings, life) = (old.settings, old.epoch.0);
        let streams = old.program.got.keys().map(|&s| (s, 0)).collect();
        self.hosts[at] = Host::new(at, life, self.seed);
        self.hosts[at].program.got = streams;
        self.hosts[at].settings = settings;
    }

    /// Runs the world for `time`, or until nothing more happens.
    pub fn run(&mut self, time: Duration) -> Result<(), String> {
        let end = self.now + time;
        while self.turn(end)? {}
        self.now = end;
        Ok(())
    }

    /// Runs the world until every ordered record has arrived; fails if that takes longer than `time`.
    pub fn run_until_done(&mut self, time: Duration) -> Result<(), String> {
        let end = self.now + time;
        while !self.is_done() {
            if !self.turn(end)? {
                return Err(format!("not done after {time:?}: {}", self.state()));
            }
        }
        Ok(())
    }

    pub fn is_done(&self) -> bool {
        [0, 1].iter().all(|&at| {
            let got = &self.hosts[1 - at].program.got;
            self.hosts[at].program.to_send.iter().all(|(stream, (all, _))| got.get(stream) == Some(all))
        })
    }

    pub fn state(&self) -> String {
        let of =
            |h: &Host| (h.program.to_send.clone(), h.program.got.clone(), h.channel.as_ref().map(|c| *c.counters()));
        format!("{:?}", [0, 1].map(|at| of(&self.hosts[at])))
    }

    /// One turn of both hosts' loops. False if nothing more happens by `end`.
    pub fn turn(&mut self, end: Time) -> Result<bool, String> {
        for at in [0, 1] {
            if self.hosts[at].calls && self.hosts[at].channel.is_none() {
                self.call(at);
            }
            self.serve(at)?;
        }
        let times = [0, 1].map(|at| {
            let channel = self.hosts[at].channel.as_ref().filter(|_| self.refuses[at].is_none());
            let timeout = channel.and_then(|c| c.next_timeout());
            [timeout, self.links[at].next_arrival()]
        });
        let Some(next) = times.into_iter().flatten().flatten().min().filter(|&next| next <= end) else {
            return Ok(false);
        };
        self.now = self.now.max(next);
        for at in [0, 1] {
            self.deliver(at);
            if let Some(channel) = self.hosts[at].channel.as_mut().filter(|_| self.refuses[at].is_none()) {
                if channel.next_timeout().is_some_and(|t| t <= self.now) {
                    channel.on_timeout(self.now);
                }
            }
        }
        Ok(true)
    }

    /// One turn of one host's loop.
    fn serve(&mut self, at: usize) -> Result<(), String> {
        let host = &mut self.hosts[at];
        let Some(channel) = host.channel.as_mut().filter(|_| self.refuses[at].is_none()) else { return Ok(()) };
        while let Some(event) = channel.poll_event() {
            host.program.events.push(event);
        }
        host.program.read(channel)?;
        host.program.write(channel);
        self.transmit(at);
        Ok(())
    }

    pub fn transmit(&mut self, at: usize) {
        let (now, mut packet) = (self.now, vec![0; self.mtu]);
        loop {
            self.transmit_runs(at);
            let Some(bytes) = self.channel(at).transmit(now, &mut packet) else { return };
            if bytes > self.interface {
                self.channel(at).too_large(now, bytes);
            } else {
                self.put(at, packet[..bytes].to_vec());
            }
        }
    }

    /// Sends packets that lie ready, unless they are larger than the buffer for others.
    fn transmit_runs(&mut self, at: usize) {
        let (now, mtu) = (self.now, self.mtu);
        loop {
            let channel = self.channel(at);
            let size = channel.packet_size();
            let Some(run) = (size <= mtu).then(|| channel.transmit_run(now, 44)).flatten() else { return };
            let packets: Vec<Vec<u8>> = run.chunks(size).map(<[u8]>::to_vec).collect();
            assert!(packets.len() <= 44);
            if size > self.interface {
                self.channel(at).too_large(now, size);
            } else {
                self.runs[at] += 1;
                packets.into_iter().for_each(|packet| self.put(at, packet));
            }
        }
    }

    /// Puts a packet of a host on its link.
    pub fn put(&mut self, at: usize, mut packet: Vec<u8>) {
        self.packets[at] += 1;
        self.bytes[at] += packet.len() as u64;
        if let Some(capture) = &mut self.capture {
            capture.push((at, packet.clone()));
        }
        if self.tamper.as_mut().is_none_or(|tamper| tamper(at, &mut packet)) {
            self.links[at].send(self.now, &packet);
        }
    }

    /// Delivers the packets that arrived for a host.
    fn deliver(&mut self, at: usize) {
        while let Some(packet) = self.links[1 - at].receive(self.now) {
            self.take(at, &packet);
        }
    }

    /// Handles one packet at a host.
    pub fn take(&mut self, at: usize, packet: &[u8]) -> Option<Verdict> {
        let now = self.now;
        if let Some(left) = &mut self.refuses[at] {
            if *left > 0 {
                *left -= 1;
                self.channel(1 - at).on_refusal(now, &Quote::read(packet).expect("a packet"));
            }
            return None;
        }
        let host = &mut self.hosts[at];
        let ours = host.channel.as_ref().map(|c| c.ours().id);
        if let Some(channel) = host.channel.as_mut().filter(|_| ours.is_some() && receiver_of(packet) == ours) {
            return Some(channel.on_packet(now, packet));
        }
        match host.door.answer(now, &[1 - at as u8], packet) {
            Answer::Reply(reply) => {
                assert!(reply.bytes().len() <= packet.len());
                self.put(at, reply.bytes().to_vec());
            }
            Answer::Admit(caller) if host.channel.as_ref().is_none_or(|c| c.lost().is_some()) => {
                let (life, lot) = host.draw();
                host.install(Channel::answer(now, life, &caller, host.settings, lot, host.window));
            }
            Answer::Admit(caller) => {
                if let Some(channel) = &mut host.channel {
                    channel.give_way(&caller);
                }
            }
            Answer::Drop => {}
        }
        None
    }

    /// Ends a host's channel and compares the returned records with what its peer got. Returns how many were certainly
    /// not delivered, and how many are in doubt.
    pub fn settle(&mut self, at: usize) -> Result<(u32, u32), String> {
        let returned = self.channel(at).abandon();
        let mut fates = (0, 0);
        for (stream, records) in returned {
            self.check_returned(at, stream, &records, &mut fates)?;
        }
        Ok(fates)
    }

    /// Checks that every record of a stream was delivered, or returned with its contents, and that none was returned as
    /// not delivered although it was.
    pub fn check_returned(
        &self,
        at: usize,
        stream: StreamId,
        records: &[Abandoned],
        fates: &mut (u32, u32),
    ) -> Result<(), String> {
        let program = &self.hosts[at].program;
        let sent = program.to_send.get(&stream).map_or(0, |&(_, sent)| sent);
        let got = self.hosts[1 - at].program.got[&stream];
        let first = sent - records.len() as u32;
        if first > got {
            return Err(format!("{stream:?}: records {got}..{first} of {sent} have vanished"));
        }
        for (number, returned) in (first..).zip(records) {
            let (head, args, payload) = record(stream, number, program.bytes_most);
            let head = Head { args: args.len() as u8, len: payload.len() as u32, ..head };
            if (returned.head, &returned.args, &returned.payload) != (head, &args, &payload) {
                return Err(format!("{stream:?}: record {number} came back changed"));
            }
            match returned.fate {
                Fate::Untouched if number < got => {
                    return Err(format!("{stream:?}: record {number} was delivered, and came back as not delivered"))
                }
                Fate::Untouched => fates.0 += 1,
                Fate::InHand => fates.1 += 1,
                other => {
                    return Err(format!("{stream:?}: record {number} came back as {other:?}, which only rings say"))
                }
            }
        }
        Ok(())
    }

    pub fn lost(&mut self, at: usize) -> Option<Reason> {
        self.channel(at).lost()
    }
}
