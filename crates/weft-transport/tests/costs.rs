//! The cost of a message in allocations, and of a channel in memory.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Duration;
use weft_transport::{Answer, Channel, Door, FixedWindow, Lot, Settings, Time};
use weft_wire::frame::StreamId;
use weft_wire::packet::ChannelId;
use weft_wire::path::Peek;
use weft_wire::{Epoch, Head, Kind};

/// The system's allocator, counting by thread.
struct Counting;

thread_local! {
    static CALLS: Cell<u64> = const { Cell::new(0) };
    static LIVE: Cell<i64> = const { Cell::new(0) };
}

fn count(calls: u64, bytes: i64) {
    // The thread-local is gone while a thread ends.
    let _ = CALLS.try_with(|c| c.set(c.get() + calls));
    let _ = LIVE.try_with(|l| l.set(l.get() + bytes));
}

// SAFETY: every call goes to the system's allocator unchanged; counting uses thread-locals without destructors, which
// allocate nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(1, layout.size() as i64);
        // SAFETY: the caller keeps `alloc`'s contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(0, -(layout.size() as i64));
        // SAFETY: the caller keeps `dealloc`'s contract.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const STREAM: StreamId = StreamId(1);

/// Two connected channels without a link: packets are handed over at once.
struct Pair {
    now: Time,
    channels: [Channel; 2],
    packet: Vec<u8>,
}

impl Pair {
    fn new(nth: u64) -> Pair {
        let now = Time::from_micros(1_000);
        let doors = [0, 1].map(|at| Door::new(Epoch(nth << 8 | at), [at, nth]));
        let lives = [0, 1].map(|at: usize| doors[at].life(ChannelId(7 + at as u32)));
        let (settings, window) = (Settings::default(), FixedWindow::default());
        let lot = Lot { nonce: 3, seed: 4 };
        let mut caller = Channel::call(now, lives[0], lives[1].epoch, settings, lot, window);
        let mut packet = vec![0; 1472];
        let call = |caller: &mut Channel, packet: &mut [u8]| {
            let bytes = caller.transmit(now, packet).expect("a call");
            doors[1].answer(now, &[1], &packet[..bytes])
        };
        let Answer::Reply(cookie) = call(&mut caller, &mut packet) else { panic!("no cookie") };
        caller.on_packet(now, cookie.bytes());
        let Answer::Admit(call) = call(&mut caller, &mut packet) else { panic!("not admitted") };
        let answerer = Channel::answer(now, lives[1], &call, settings, lot, window);
        let mut pair = Pair { now, channels: [caller, answerer], packet };
        for channel in &mut pair.channels {
            channel.open(STREAM).expect("room");
        }
        pair.settle();
        assert!(pair.channels.iter().all(Channel::is_open));
        pair
    }

    /// Carries packets from one to the other. Returns their number.
    fn carry(&mut self, from: usize) -> u32 {
        let mut packets = 0;
        self.now = self.now + Duration::from_micros(10);
        let [one, other] = &mut self.channels;
        let (from_channel, to_channel) = if from == 0 { (one, other) } else { (other, one) };
        let size = from_channel.packet_size();
        while let Some(run) = from_channel.transmit_run(self.now, 44) {
            for packet in run.chunks(size) {
                to_channel.on_packet(self.now, packet);
                packets += 1;
            }
        }
        while let Some(bytes) = self.channels[from].transmit(self.now, &mut self.packet) {
            self.now = self.now + Duration::from_micros(10);
            self.channels[1 - from].on_packet(self.now, &self.packet[..bytes]);
            packets += 1;
        }
        packets
    }

    /// Lets time pass until nothing is in flight.
    fn settle(&mut self) {
        for _ in 0..100 {
            self.now = self.now + Duration::from_millis(1);
            for at in [0, 1] {
                self.channels[at].on_timeout(self.now);
                self.carry(at);
                while self.channels[at].poll_event().is_some() {}
            }
        }
        assert!(self.channels.iter().all(|c| c.next_timeout().is_none()));
    }

    fn send(&mut self, at: usize, payload: &[u8]) {
        self.channels[at].send(STREAM, Head::new(Kind::Request), &[1, 2, 3, 4], payload).expect("room");
    }

    /// Takes all records. Returns how many.
    fn read(&mut self, at: usize) -> u32 {
        let channel = &mut self.channels[at];
        let mut records = 0;
        while channel.poll_event().is_some() {}
        while let Peek::Record(record) = channel.peek(STREAM) {
            assert_eq!(record.args, [1, 2, 3, 4]);
            channel.pop(STREAM);
            records += 1;
        }
        channel.release(STREAM);
        records
    }

    fn there_and_back(&mut self, messages: u32) {
        for at in [0, 1] {
            for _ in 0..messages {
                self.send(at, &[7; 16]);
            }
            self.carry(at);
            assert_eq!(self.read(1 - at), messages);
        }
    }
}

#[test]
fn small_messages_allocate_nothing_once_the_channel_is_warm() {
    let mut pair = Pair::new(1);
    for messages in [1, 32, 1_000] {
        for _ in 0..100 {
            pair.there_and_back(messages);
        }
        let before = CALLS.get();
        for _ in 0..1_000 {
            pair.there_and_back(messages);
        }
        assert_eq!(CALLS.get() - before, 0, "allocations for 1,000 times {messages} messages there and back");
    }
}

#[test]
fn a_thousand_idle_peers_take_less_than_8_mib() {
    let before = LIVE.get();
    let mut pairs: Vec<Pair> = (0..500)
        .map(|nth| {
            let mut pair = Pair::new(nth);
            pair.there_and_back(100);
            pair.settle();
            // The first rest finds that there was traffic.
            (0..2).for_each(|_| pair.channels.iter_mut().for_each(Channel::rest));
            pair.packet = Vec::new();
            pair
        })
        .collect();
    let bytes = LIVE.get() - before;
    println!("{} bytes for each of {} channels", bytes / 1000, pairs.len() * 2);
    assert!(bytes < 8 << 20, "{bytes} bytes");
    let told: usize = pairs.iter().flat_map(|p| &p.channels).map(Channel::memory).sum();
    assert!((told as i64 - bytes).abs() < bytes / 4, "{told} bytes as the channels say, {bytes} in truth");
    pairs[0].packet = vec![0; 1472];
    pairs[0].there_and_back(10);
}
