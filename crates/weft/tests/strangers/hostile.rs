//! Peers that have a session and turn hostile.

use crate::support::raw::{self, Said};
use crate::support::{tell, turn, wait_until, Address, Dice, Orders, Peer};
use crate::{census, expect_back, start, Client, ECHO, QUIET, SUM};
use rustix::fs::FallocateFlags;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};
use weft::{EndpointId, Key, Name};
use weft_shm::{BellPage, Consumer, Lanes, MapMem, Producer, Shared};
use weft_wire::path::Peek;
use weft_wire::proof::Side;
use weft_wire::setup::{Geometry, Message, Open};
use weft_wire::{BundleId, Credit, Head, HeadWords, Kind};

/// A session made by hand.
pub struct ByHand {
    pub socket: OwnedFd,
    /// Ours to write records into.
    producer: Producer<MapMem>,
    /// The same memory, for arbitrary writes.
    ring: File,
    bytes: u64,
    bells: File,
    /// The ring that the victim writes into, and its memory.
    consumer: Consumer<MapMem>,
    own: File,
}

impl ByHand {
    pub fn make(me: &Name, there: &Address) -> ByHand {
        ByHand::try_make(me, there).expect("an accept")
    }

    /// `None` if it is refused.
    pub fn try_make(me: &Name, there: &Address) -> Option<ByHand> {
        let socket = raw::connect(&there.name).expect("connect");
        assert!(raw::say(&socket, &raw::hello(me, there).to_bytes()));
        let Said::Message(Message::Accept { ring, .. }, fds) = raw::hear(&socket) else { return None };
        let is_trusted = fds.len() == 3;
        let (consumer, own) = give(&socket, is_trusted, |ring| Message::Ready { ring, bell: 0 });
        Some(ByHand::of(socket, ring, fds, consumer, own))
    }

    /// Answers a caller, as a foreign process.
    pub fn accept(listener: &OwnedFd, key: Key) -> ByHand {
        let socket = raw::accept(listener);
        let proof = raw::hear_hello(&socket).proof(key, Side::Callee);
        let accept = |ring| Message::Accept { ring, bell: 0, bundle: BundleId(77), is_trusted: false, proof };
        let (consumer, own) = give(&socket, false, accept);
        let Said::Message(Message::Ready { ring, .. }, fds) = raw::hear(&socket) else { panic!("not ready") };
        ByHand::of(socket, ring, fds, consumer, own)
    }

    /// Makes a session of the ring and bell page that the victim gave, and those that it was given.
    fn of(socket: OwnedFd, ring: Geometry, fds: Vec<OwnedFd>, consumer: Consumer<MapMem>, own: File) -> ByHand {
        let mut fds = fds.into_iter();
        let (ring_fd, bell_fd) = (fds.next().expect("a ring"), fds.next().expect("a bell page"));
        let lanes = Lanes::check(ring).expect("a shape");
        let file = File::from(ring_fd.try_clone().expect("dup"));
        let shared = Shared::open(ring_fd, lanes.bytes()).expect("map");
        let producer = Producer::new(MapMem::new(shared, lanes), lanes);
        let bytes = lanes.bytes() as u64;
        ByHand { socket, producer, ring: file, bytes, bells: File::from(bell_fd), consumer, own }
    }

    /// The first record of a kind that the victim writes, within the bound.
    pub fn await_record(&mut self, kind: Kind) -> HeadWords {
        let mut found = None;
        wait_until("a record", || {
            while let Peek::Record(record) = self.consumer.peek() {
                let head = record.head;
                self.consumer.pop();
                if head.kind() == kind {
                    found = Some(head);
                }
            }
            found.is_some()
        });
        found.expect("awaited")
    }

    /// Writes a request on the flow that was opened first, and rings the bell.
    pub fn request(&mut self, op: u8) {
        self.producer.push(Head { op, ..Head::new(Kind::Request) }, &[], &[]).expect("room");
        self.bells.write_at(&[1; 128], 0).expect("write");
    }

    /// Opens a valid flow, so that later attacks get further.
    pub fn open(&mut self, there: &Address) {
        let open = Open::to(&there.name, EndpointId(0), there.key, weft::Uid(0));
        self.producer.push(Head::new(Kind::Open), &open.to_args(), &[]).expect("room");
    }

    pub fn is_cut_off(&self) -> bool {
        raw::has_ended(&self.socket)
    }
}

/// Gives the other side a ring and a bell page, with a message.
pub fn give(socket: &OwnedFd, is_trusted: bool, message: impl Fn(Geometry) -> Message) -> (Consumer<MapMem>, File) {
    let lanes = Lanes::new(16 << 10, 512 << 10);
    let (ring, fd) = Shared::create("weft-ring", lanes.bytes()).expect("memfd");
    let (page, waker) = (BellPage::create().expect("page"), raw::waker());
    let gifts = raw::gifts(fd.as_fd(), page.fd(), &waker, is_trusted);
    raw::say_with(socket, &message(lanes.geometry()).to_bytes(), &gifts).expect("say");
    let own = File::from(fd.as_fd().try_clone_to_owned().expect("dup"));
    (Consumer::new(MapMem::new(ring, lanes), lanes), own)
}

/// Attacks in the way that the first word says, with the given number of writes.
pub fn hostile(orders: Orders) {
    let there = Address::parse(&orders.words[0]);
    let (way, writes): (&str, u64) = (&orders.words[1], orders.words[2].parse().expect("a number"));
    let mut dice = Dice::fresh(&format!("hostile, {way}"));
    let (mut done, mut sessions, mut cut_off) = (0u64, 0u64, 0u64);
    while done < writes {
        let me = Name { epoch: weft_wire::Epoch(dice.roll()), ..there.name };
        let mut session = ByHand::make(&me, &there);
        sessions += 1;
        if sessions % 4 != 0 {
            session.open(&there);
        }
        for turn in 0..2000 {
            let burst = 1 + dice.below(64);
            for _ in 0..burst {
                attack(way, &mut session, &mut dice);
            }
            done += burst;
            if turn % 4 == 3 && session.is_cut_off() {
                cut_off += 1;
                break;
            }
            if done >= writes {
                break;
            }
        }
        if way == "deserter" {
            // Pretends to be dead, and keeps writing.
            drop(std::mem::replace(&mut session.socket, raw::listen(me.epoch)));
            let since = Instant::now();
            while since.elapsed() < Duration::from_millis(100) {
                attack(way, &mut session, &mut dice);
            }
        }
    }
    tell(format!("{done} {sessions} {cut_off}"));
}

pub fn attack(way: &str, s: &mut ByHand, dice: &mut Dice) {
    match way {
        // Random bytes anywhere, mostly where the victim reads.
        "noise" => {
            let reach = if dice.below(4) == 0 { s.bytes } else { 4096 };
            let at = dice.below(reach - 8) & if dice.below(2) == 0 { !63 } else { !0 };
            s.ring.write_at(&dice.roll().to_le_bytes(), at).expect("write");
        }
        // Headers that are within their limits but wrong in everything else.
        "headers" => {
            let kind = [Kind::Open, Kind::Send, Kind::Request, Kind::Reply, Kind::Ended, Kind::Return, Kind::Credit];
            let few =
                |dice: &mut Dice, end: u64| if dice.below(16) == 0 { dice.roll() } else { dice.below(end) } as u16;
            let head = Head {
                op: few(dice, 13) as u8,
                flow: few(dice, 2),
                slot: few(dice, 33) | [0, 0, 0xff00, 0xfe00][dice.below(4) as usize],
                credit: Credit { messages: few(dice, 2), lines: few(dice, 2) },
                ..Head::new(kind[dice.below(7) as usize])
            };
            let args: Vec<u32> = (0..dice.below(17)).map(|_| dice.below(5) as u32).collect();
            let payload = vec![1; dice.below(400) as usize];
            let _ = s.producer.push(head, &args, &payload);
        }
        // Lengths: raw header words of all shapes at the first line.
        "lengths" => {
            let word = dice.below(70_000) | (1 + dice.below(10)) << 32 | dice.below(18) << 48;
            let line = 4 + dice.below(12);
            s.ring.write_at(&dice.below(1 << 20).to_le_bytes(), line * 64 + 8).expect("write");
            s.ring.write_at(&word.to_le_bytes(), line * 64).expect("write");
        }
        // Valid requests, but wrong cursors for how far the answers were read.
        "cursor" => {
            let slot = dice.below(32) as u16;
            let head = Head { op: ECHO, slot, ..Head::new(Kind::Request) };
            let _ = s.producer.push(head, &[1, 2], &[7; 300]);
            if dice.below(2) == 0 {
                if let Peek::Record(_) = s.consumer.peek() {
                    s.consumer.pop();
                }
            } else {
                let lie = [dice.below(300), dice.roll(), u64::MAX, 0][dice.below(4) as usize];
                s.own.write_at(&lie.to_le_bytes(), dice.below(20) * 8).expect("write");
            }
        }
        // All bells, all the time, with attention wanted at random.
        "bells" => {
            s.bells.write_at(&[1; 4096], 0).expect("write");
            s.own.write_at(&(dice.below(2) as u32).to_le_bytes(), 128).expect("write");
            let _ = s.producer.push(Head { op: SUM, ..Head::new(Kind::Send) }, &[], &[1; 30]);
        }
        // No attack, but the same processor load.
        "compute" => _ = (0..100).map(|_| dice.roll()).fold(0, u64::wrapping_add),
        // Rings without cause.
        "idle bells" => s.bells.write_at(&[1; 4096], 0).map(drop).expect("write"),
        // Wake-ups without cause.
        "wakes" => _ = raw::say(&s.socket, &Message::Wake.to_bytes()),
        // Removed pages.
        "holes" => {
            let (at, flags) =
                (dice.below(s.bytes / 4096) * 4096, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE);
            rustix::fs::fallocate(&s.ring, flags, at, 4096).expect("a hole");
            rustix::fs::fallocate(&s.own, flags, at % (512 << 10), 4096).expect("a hole");
            let _ = s.producer.push(Head { op: SUM, ..Head::new(Kind::Send) }, &[], &vec![3; 20_000]);
        }
        // Valid messages that change while they are read.
        "changing" => {
            let _ = s.producer.push(Head { op: SUM, ..Head::new(Kind::Send) }, &[], &vec![3; 20_000]);
            s.ring.write_at(&dice.roll().to_le_bytes(), dice.below(s.bytes - 8)).expect("write");
        }
        // Requests that end at once: no credit nor window stops them.
        "deserter" => {
            let _ = s.producer.push(Head { op: QUIET, ..Head::new(Kind::Request) }, &[], b"still here");
        }
        other => panic!("way {other:?}"),
    }
}

/// One hostile peer, attacking in one way, and an honest client that is served all along.
fn attacked(way: &str, writes: u64, must_cut: bool) {
    let _turn = turn(way);
    let (mut peer, before, there, _) = start();
    let mut client = Client::new(there);
    client.ask(1);
    let with_client = census(&mut peer);
    let hostile = Peer::start("hostile", &[&there.to_string(), way, &writes.to_string()]);
    let (since, mut asked, mut slowest) = (Instant::now(), 0u64, Duration::ZERO);
    let said = loop {
        slowest = slowest.max(client.ask(1));
        asked += 1;
        if let Some(line) = hostile.overhear() {
            break line;
        }
        assert!(since.elapsed() < Duration::from_secs(100), "the hostile peer takes too long");
    };
    let numbers: Vec<u64> = said.split(' ').map(|n| n.parse().expect("a number")).collect();
    let &[done, sessions, cut_off] = &numbers[..] else { panic!("three numbers") };
    let counters = peer.ask("counters");
    eprintln!(
        "{way}: {done} writes in {sessions} sessions, {cut_off} cut off, in {:?}; violations and sessions {counters}; \
         an honest client asked {asked} times and waited {slowest:?} at most",
        since.elapsed()
    );
    let violations: u64 = counters.split(' ').next().expect("two").parse().expect("a number");
    assert!(violations >= cut_off.min(1), "cut off, and counted");
    assert!(!must_cut || (violations > 0 && cut_off > 0), "such a peer is cut off");
    hostile.finish();
    client.ask(1);
    expect_back(&mut peer, with_client, way);
    drop(client);
    expect_back(&mut peer, before, "the client");
    peer.finish();
}

#[test]
fn a_peer_that_writes_noise_is_cut_off() {
    attacked("noise", 1_000_000, true);
}

#[test]
fn a_peer_whose_headers_lie_is_cut_off() {
    attacked("headers", 300_000, true);
}

#[test]
fn a_peer_whose_lengths_lie_is_cut_off() {
    attacked("lengths", 300_000, true);
}

#[test]
fn a_peer_that_lies_about_its_cursor_is_cut_off() {
    attacked("cursor", 300_000, true);
}

#[test]
fn a_peer_that_rings_all_bells_disturbs_nobody() {
    attacked("bells", 200_000, false);
}

#[test]
fn a_peer_that_changes_messages_under_the_reader_harms_nobody() {
    attacked("changing", 50_000, false);
}

#[test]
fn a_peer_that_plays_dead_and_writes_on_is_left() {
    attacked("deserter", 200_000, false);
}
