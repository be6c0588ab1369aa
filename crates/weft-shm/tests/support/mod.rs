//! Shared by the tests of the ring: seeded randomness, memory that several views map, records that differ from one another, and
//! a hook on each access to memory.
#![allow(dead_code)] // every test file uses its own part

use std::hash::{BuildHasher, Hasher};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::Arc;
use weft_shm::mem::COPY_WORDS;
use weft_shm::{Consumer, Descriptor, Lanes, MapMem, Producer, RingMem, Shared};
use weft_wire::path::{Peek, Record};
use weft_wire::record;
use weft_wire::{Credit, Head, Kind};

/// The seed of this run: `WEFT_SEED` if it is set, otherwise random. Printed, so that a failure can be repeated.
pub fn seed() -> u64 {
    let seed = match std::env::var("WEFT_SEED") {
        Ok(text) => text.parse().expect("WEFT_SEED is a decimal number"),
        Err(_) => std::collections::hash_map::RandomState::new().build_hasher().finish(),
    };
    println!("to repeat this run: WEFT_SEED={seed}");
    seed
}

/// A small seeded generator (splitmix64).
#[derive(Clone, Debug)]
pub struct Rng(pub u64);

impl Rng {
    #[inline]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// True once in `n` times.
    #[inline]
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    #[inline]
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }
}

/// Payload bytes of a record that fits only the arena if the hot lane has 4 KiB.
pub const INTO_ARENA: usize = 4000;

/// After a record of [`INTO_ARENA`] bytes, the number of small records until one returns the producer to the hot lane, if each record is
/// taken and released at once.
pub fn pushes_until_back(lanes: Lanes) -> u32 {
    let memory = Memory::new(lanes);
    let (mut producer, mut consumer) = (memory.producer(), memory.consumer());
    let mut turn = |len| {
        producer.push(Head::new(Kind::Send), &[], &vec![0; len]).expect("room");
        assert!(matches!(consumer.peek(), Peek::Record(_)));
        consumer.pop();
        consumer.release();
        producer.give_back_arena()
    };
    assert!(!turn(INTO_ARENA));
    (1..100_000).find(|_| turn(0)).expect("a producer whose arena stays empty goes back")
}

/// The most records of a visit.
pub const VISIT_MOST: u32 = 64;

/// Visits a consumer as a bundle visits a session on each poll. Returns how many records were taken.
pub fn visit(consumer: &mut Consumer<MapMem>, mut took: impl FnMut(Record<'_>)) -> u32 {
    let most = consumer.allowance(VISIT_MOST);
    let (mut taken, mut one_way) = (0, 0);
    while taken < most {
        let Peek::Record(record) = consumer.peek() else { break };
        one_way += u32::from(record.head.is(Kind::Send));
        took(record);
        consumer.pop();
        taken += 1;
    }
    if one_way > 0 {
        consumer.note_visit(one_way, taken < most);
    }
    consumer.release();
    taken
}

/// A ring's memory, which a test can map several times.
pub struct Memory {
    fd: Descriptor,
    pub lanes: Lanes,
}

impl Memory {
    pub fn new(lanes: Lanes) -> Memory {
        let (_, fd) = Shared::create("weft-test", lanes.bytes()).expect("memfd");
        Memory { fd, lanes }
    }

    pub fn map(&self) -> MapMem {
        let shared = Shared::open(self.fd_again(), self.lanes.bytes()).expect("own memfd");
        MapMem::new(shared, self.lanes)
    }

    pub fn producer(&self) -> Producer<MapMem> {
        Producer::new(self.map(), self.lanes)
    }

    pub fn consumer(&self) -> Consumer<MapMem> {
        Consumer::new(self.map(), self.lanes)
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The descriptor, once more.
    pub fn fd_again(&self) -> OwnedFd {
        self.fd.as_fd().try_clone_to_owned().expect("dup")
    }
}

/// A record's contents, derived from its number and sizes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Contents {
    pub head: Head,
    pub args: Vec<u32>,
    pub payload: Vec<u8>,
}

impl Contents {
    pub fn new(number: u64, args: usize, len: usize) -> Contents {
        let mut rng = Rng(number);
        let word = rng.next();
        let kind = rng.pick(&[Kind::Send, Kind::Request, Kind::Reply, Kind::Return]);
        let credit = Credit { messages: (word >> 24) as u16, lines: (word >> 40) as u16 };
        let head = Head {
            kind,
            op: word as u8,
            args: args as u8,
            len: len as u32,
            flow: number as u16,
            slot: (word >> 8) as u16,
            // A one-way message carries no credit: a refusal is marked there.
            credit: if kind == Kind::Send { Credit::default() } else { credit },
        };
        let mut payload = vec![0; len];
        fill(&mut payload, rng.next());
        Contents { head, args: (0..args).map(|_| rng.next() as u32).collect(), payload }
    }

    /// Contents of random sizes, most of them small.
    pub fn random(number: u64, rng: &mut Rng) -> Contents {
        let len = match rng.below(100) {
            0..60 => rng.below(64),
            60..90 => rng.below(600),
            90..98 => rng.below(5000),
            _ => rng.below(65_537),
        };
        Contents::new(number, rng.below(17) as usize, len as usize)
    }

    pub fn lines(&self) -> u32 {
        self.head.lines()
    }

    /// The lines that it takes in a ring, with those that stay unused behind it.
    pub fn pitch(&self) -> u32 {
        pitch(self.lines(), self.head.streams())
    }

    pub fn is(&self, record: &Record<'_>) -> bool {
        self.head == record.head.head() && self.args == record.args && self.payload == record.payload
    }
}

/// The lines that a record takes in a ring. Unless it belongs to a stream, two lines stay unused behind a record of one line, and fifteen
/// behind a long one.
pub fn pitch(lines: u32, streams: bool) -> u32 {
    match lines {
        lines if streams => lines,
        1 => 3,
        17.. => lines + 15,
        lines => lines,
    }
}

/// Fills a payload so that each of its words differs.
pub fn fill(payload: &mut [u8], start: u64) {
    let mut word = start;
    for chunk in payload.chunks_mut(8) {
        chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
        word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    }
}

/// An access to a ring's memory. Lines count from the memory's beginning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Header read at this line.
    Header(u32),
    /// Something else read.
    Read,
    /// These lines written: first and number.
    Write(u32, u32),
    /// A payload goes past the caches with the write that follows.
    PastCaches,
    /// Cursor published: lane and position.
    SetHead(usize, u64),
    /// Cursor read.
    Head(usize),
    /// Claim stored: lane and position.
    SetClaim(usize, u64),
    /// The record at this line marked as refused.
    Mark(u32),
    /// Lines evicted: the first, and the one behind the last.
    Evict(u32, u32),
}

/// A pretended machine. Times are in nanoseconds.
#[derive(Default)]
pub struct Machine {
    /// How far the other side is.
    pub distance: AtomicU64,
    /// How long the stores of a line take. If 0 there is no clock.
    pub store: AtomicU64,
    /// Whether it can evict lines.
    pub evicts: bool,
    clock: AtomicU64,
}

impl Machine {
    pub fn new(distance: u64, store: u64) -> Machine {
        Machine { distance: distance.into(), store: store.into(), ..Machine::default() }
    }

    /// The same machine, able to evict lines.
    pub fn evicting(self) -> Machine {
        Machine { evicts: true, ..self }
    }
}

/// Ring memory that reports each access before it makes it.
pub struct Tapped<'a, F> {
    mem: &'a MapMem,
    tap: F,
    machine: Arc<Machine>,
}

impl<'a, F: Fn(Access)> Tapped<'a, F> {
    pub fn new(mem: &'a MapMem, tap: F) -> Tapped<'a, F> {
        Tapped::on(mem, tap, Arc::default())
    }

    /// As if the other side ran on a core that many nanoseconds away.
    pub fn at_distance(mem: &'a MapMem, tap: F, distance: u64) -> Tapped<'a, F> {
        Tapped::on(mem, tap, Arc::new(Machine::new(distance, 0)))
    }

    /// As if it ran on that machine.
    pub fn on(mem: &'a MapMem, tap: F, machine: Arc<Machine>) -> Tapped<'a, F> {
        Tapped { mem, tap, machine }
    }
}

impl<F: Fn(Access)> Tapped<'_, F> {
    fn wrote(&self, line: u32, args: &[u32], payload: &[u8]) {
        let lines = record::lines(args.len(), payload.len());
        (self.tap)(Access::Write(line, lines));
        self.machine.clock.fetch_add(u64::from(lines) * self.machine.store.load(Relaxed), Relaxed);
    }
}

impl<F: Fn(Access)> RingMem for Tapped<'_, F> {
    fn header(&self, line: u32) -> u64 {
        (self.tap)(Access::Header(line));
        self.mem.header(line)
    }

    fn publish(&self, line: u32, word: u64) {
        (self.tap)(Access::Write(line, 1));
        self.mem.publish(line, word);
    }

    fn clear(&self, line: u32) {
        (self.tap)(Access::Write(line, 1));
        self.mem.clear(line);
    }

    fn second(&self, line: u32) -> u64 {
        (self.tap)(Access::Read);
        self.mem.second(line)
    }

    fn mark(&self, line: u32, second: u64) {
        (self.tap)(Access::Mark(line));
        self.mem.mark(line, second);
    }

    fn write(&self, line: u32, second: u64, args: &[u32], payload: &[u8]) {
        self.wrote(line, args, payload);
        self.mem.write(line, second, args, payload);
    }

    fn write_by_lines(&self, line: u32, second: u64, args: &[u32], payload: &[u8]) {
        self.wrote(line, args, payload);
        self.mem.write_by_lines(line, second, args, payload);
    }

    fn write_past_caches(&self, line: u32, second: u64, args: &[u32], payload: &[u8]) {
        (self.tap)(Access::PastCaches);
        self.wrote(line, args, payload);
        self.mem.write_past_caches(line, second, args, payload);
    }

    fn timed_head(&self, lane: usize) -> (u64, u64) {
        (self.head(lane), self.machine.distance.load(Relaxed))
    }

    fn nanoseconds(&self) -> Option<u64> {
        (self.machine.store.load(Relaxed) > 0).then(|| self.machine.clock.load(Relaxed))
    }

    fn copy_out(&self, line: u32, bytes: usize, out: &mut [u64; COPY_WORDS]) {
        (self.tap)(Access::Read);
        self.mem.copy_out(line, bytes, out);
    }

    unsafe fn in_place(&self, line: u32, offset: usize, len: usize) -> &[u8] {
        (self.tap)(Access::Read);
        // SAFETY: the caller vouches for the bytes.
        unsafe { self.mem.in_place(line, offset, len) }
    }

    fn copy_payload(&self, line: u32, offset: usize, len: usize, out: &mut Vec<u8>) {
        (self.tap)(Access::Read);
        self.mem.copy_payload(line, offset, len, out);
    }

    fn fetch_ahead(&self, line: u32) {
        self.mem.fetch_ahead(line);
    }

    fn can_evict(&self) -> bool {
        self.machine.evicts
    }

    fn evict(&self, from: u32, to: u32) {
        (self.tap)(Access::Evict(from, to));
        self.mem.evict(from, to);
    }

    fn set_progress(&self, word: u64) {
        self.mem.set_progress(word);
    }

    fn progress(&self) -> u64 {
        self.mem.progress()
    }

    fn set_head(&self, lane: usize, pos: u64) {
        (self.tap)(Access::SetHead(lane, pos));
        self.mem.set_head(lane, pos);
    }

    fn head(&self, lane: usize) -> u64 {
        (self.tap)(Access::Head(lane));
        self.mem.head(lane)
    }

    fn set_claim(&self, lane: usize, pos: u64) {
        (self.tap)(Access::SetClaim(lane, pos));
        self.mem.set_claim(lane, pos);
    }

    fn claim(&self, lane: usize) -> u64 {
        (self.tap)(Access::Read);
        self.mem.claim(lane)
    }

    fn set_attention(&self, wanted: bool) {
        self.mem.set_attention(wanted);
    }

    fn attention(&self) -> bool {
        self.mem.attention()
    }

    fn light_barrier(&self) {
        self.mem.light_barrier();
    }
}
