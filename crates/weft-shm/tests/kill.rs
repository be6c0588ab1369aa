//! A process that is killed leaves its peer a ring that makes sense. Real processes are killed by real SIGKILLs: a producer at
//! each store of a push, in each situation of the ring; a consumer at each access of a look.
//!
//! The test program starts itself again as the victim, with the ring's memory as standard input and a socket to the test as
//! standard output. The two take turns over this socket, so every run of a situation is the same.

mod support;

use rustix::process::{getpid, kill_process, wait, Signal, WaitOptions};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use support::{pushes_until_back, Access, Contents, Memory, Tapped, INTO_ARENA};
use weft_shm::ring::store;
use weft_shm::{Consumer, Lanes, MapMem, Producer, RingMem, Shared, Steps};
use weft_wire::path::{Fate, Peek};
use weft_wire::{Credit, Head, Kind, MAX_ARGS, MAX_PAYLOAD};

/// In the environment: tells a process that it is the victim, and its role, situation and moment.
const ROLE: &str = "WEFT_KILL_TEST";

/// On the socket: a request to read all records, and the answer that all were read. Above the bytes that the test harness prints.
const READ_ALL: u8 = 0x80;
/// The victim's last word: it was about to make the store of this number.
const LAST_WORD: u8 = 0x90;

fn lanes() -> Lanes {
    Lanes::new(4096, 512 << 10)
}

/// What happens to a ring.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// A record of a stream with this many arguments and payload bytes is pushed. No lines stay unused behind it.
    Push(usize, usize),
    /// A request with this many arguments and payload bytes is pushed.
    Ask(usize, usize),
    /// Everything is read and given back.
    ReadAll,
}

/// The situations of a ring in which the last push of each is killed.
fn situations() -> Vec<(&'static str, Vec<Act>)> {
    let hot = lanes().geometry().hot_lines as usize;
    let small = |n: usize| (0..n).map(|i| Act::Push(i % 4, i % 33));
    let ask = |n: usize| (0..n).map(|i| Act::Ask(i % 4, i % 33));
    let large = Act::Push(MAX_ARGS, MAX_PAYLOAD);
    let with = |acts: Vec<Act>, last: &[Act]| acts.into_iter().chain(last.iter().copied()).collect::<Vec<Act>>();
    let end_of_hot = || with(small(hot - 2).collect(), &[Act::ReadAll]);
    let laps_of_arena = 7 * [large, Act::ReadAll].len();
    let nearly_back = |back: u32| {
        let mut acts = vec![Act::Push(0, INTO_ARENA), Act::ReadAll];
        for number in 1..back {
            acts.push(Act::Push(0, 0));
            if number % 16 == 0 {
                acts.push(Act::ReadAll);
            }
        }
        acts
    };
    vec![
        ("the first record", vec![Act::Push(4, 16)]),
        ("a record among others", with(small(10).collect(), &[Act::ReadAll, Act::Push(1, 3), Act::Push(4, 32)])),
        ("a request among others", with(ask(10).collect(), &[Act::ReadAll, Act::Ask(1, 3), Act::Ask(4, 32)])),
        ("a wrap with padding behind requests", with(end_of_hot(), &[Act::Ask(3, 10)])),
        ("a switch because the hot lane is full of requests", ask(hot / 3).collect()),
        ("a record of several lines", with(small(3).collect(), &[Act::Push(2, 500), Act::Push(2, 500)])),
        ("a record that ends with the lane", with(end_of_hot(), &[Act::Push(0, 100)])),
        ("a wrap with padding", with(end_of_hot(), &[Act::Push(3, 150)])),
        ("a switch because the hot lane is full", small(hot - 1).collect()),
        ("a switch by a large record", with(small(5).collect(), &[large])),
        ("a large record in the arena", vec![large, large]),
        ("a wrap with padding of the arena", with([large, Act::ReadAll].repeat(7)[..laps_of_arena].to_vec(), &[large])),
        ("a switch back", with(nearly_back(pushes_until_back(lanes())), &[Act::Push(2, 9)])),
        (
            "a switch to the arena after one back",
            with(nearly_back(pushes_until_back(lanes())), &[Act::Push(2, 9), Act::Push(0, INTO_ARENA)]),
        ),
    ]
}

fn situation(number: usize) -> Vec<Act> {
    situations().swap_remove(number).1
}

/// Carries acts out: calls `push` with each record, and `read_all` for each [`Act::ReadAll`].
fn act_out(acts: &[Act], first: u64, mut push: impl FnMut(&Contents), mut read_all: impl FnMut()) -> Vec<Contents> {
    let mut pushed = Vec::new();
    for act in acts {
        match *act {
            Act::Push(args, len) | Act::Ask(args, len) => {
                let mut contents = Contents::new(first + pushed.len() as u64, args, len);
                let kind = if matches!(act, Act::Ask(..)) { Kind::Request } else { Kind::Send };
                contents.head = Head { kind, slot: 0, credit: Credit::default(), ..contents.head };
                push(&contents);
                pushed.push(contents);
            }
            Act::ReadAll => read_all(),
        }
    }
    pushed
}

/// Reads all there is, and gives it back.
fn read_all<M: RingMem>(consumer: &mut Consumer<M>, mut got: impl FnMut(Contents)) {
    loop {
        match consumer.peek() {
            Peek::Empty => break,
            Peek::Broken(malformed) => panic!("broken: {malformed}"),
            Peek::Record(record) => {
                got(Contents { head: record.head.head(), args: record.args.to_vec(), payload: record.payload.to_vec() })
            }
        }
        consumer.pop();
    }
    consumer.release();
}

/// Notes the stores of a push.
#[derive(Default)]
struct Trace(Vec<u32>);

impl Steps for Trace {
    fn before(&mut self, store: u32) {
        self.0.push(store);
    }
}

fn push<S: Steps>(producer: &mut Producer<MapMem>, contents: &Contents, steps: &mut S) {
    producer.push_stepped(contents.head, &contents.args, &contents.payload, steps).expect("room");
}

/// The stores of a situation's last push, in order.
fn stores_of(acts: &[Act]) -> Vec<u32> {
    let memory = Memory::new(lanes());
    let (mut producer, mut consumer) = (memory.producer(), memory.consumer());
    let mut trace = Trace::default();
    act_out(
        acts,
        0,
        |contents| {
            trace.0.clear();
            push(&mut producer, contents, &mut trace);
        },
        || read_all(&mut consumer, drop),
    );
    trace.0
}

/// Only one test at a time has children, so that each can check that it left none.
static ALONE: Mutex<()> = Mutex::new(());

/// Runs a test, then checks that nothing is left behind.
fn leaving_nothing(test: impl FnOnce()) {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let files = || -> BTreeSet<_> {
        let entries = std::fs::read_dir("/dev/shm").into_iter().flatten();
        entries
            .filter_map(|entry| Some(entry.ok()?.file_name()))
            .filter(|n| n.to_string_lossy().contains("weft"))
            .collect()
    };
    let before = files();
    test();
    assert_eq!(files(), before, "files left in /dev/shm");
    assert_eq!(wait(WaitOptions::NOHANG).err(), Some(rustix::io::Errno::CHILD), "children left");
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default(); // unreadable on some hardened kernels
    assert!(!maps.contains("memfd:weft"), "mappings left:\n{maps}");
}

/// The victim, as its test sees it.
struct Victim {
    process: Child,
    socket: UnixStream,
}

impl Victim {
    fn start(memory: &Memory, role: &str, situation: usize, moment: usize) -> Victim {
        let (socket, other) = UnixStream::pair().expect("socket pair");
        let process = Command::new(std::env::current_exe().expect("own path"))
            .args(["--exact", "victim", "--nocapture", "--test-threads=1"])
            .env(ROLE, format!("{role} {situation} {moment}"))
            .stdin(Stdio::from(memory.fd_again()))
            .stdout(Stdio::from(OwnedFd::from(other)))
            .spawn()
            .expect("a second process of this program");
        Victim { process, socket }
    }

    /// The next byte for the test, skipping those that the harness prints. `None` if the victim is dead.
    fn hear(&mut self) -> Option<u8> {
        let mut byte = [0];
        loop {
            match self.socket.read(&mut byte).expect("socket") {
                0 => return None,
                _ if byte[0] >= READ_ALL => return Some(byte[0]),
                _ => {}
            }
        }
    }

    fn say(&mut self, byte: u8) {
        self.socket.write_all(&[byte]).expect("the victim hears");
    }

    /// Waits for its end. True if it was killed; otherwise it must have ended with success.
    fn was_killed(mut self) -> bool {
        drop(self.socket);
        let status = self.process.wait().expect("own child");
        assert!(status.success() || status.signal() == Some(9), "the victim failed: {status}");
        !status.success()
    }
}

/// Runs a situation with a producer that is killed before store number `moment` of its last push. Returns which store that was.
fn kill_producer(number: usize, acts: &[Act], stores: &[u32], moment: usize) -> Option<u8> {
    let memory = Memory::new(lanes());
    let mut consumer = memory.consumer();
    let mut victim = Victim::start(&memory, "producer", number, moment);
    let (mut got, mut store) = (Vec::new(), None);
    while let Some(heard) = victim.hear() {
        if heard == READ_ALL {
            read_all(&mut consumer, |contents| got.push(contents));
            victim.say(READ_ALL);
        } else {
            store = Some(heard - LAST_WORD);
        }
    }
    assert_eq!(victim.was_killed(), moment < stores.len());
    assert_eq!(store.map(u32::from), stores.get(moment).copied());

    read_all(&mut consumer, |contents| got.push(contents));
    let pushed = act_out(acts, 0, |_| {}, || {});
    let published = stores.iter().rposition(|&store| store == store::PUBLISH).expect("a push publishes");
    let seen = if moment > published { pushed.len() } else { pushed.len() - 1 };
    assert_eq!(got.len(), seen);
    assert!(got == pushed[..seen], "other records than were pushed");
    for _ in 0..10 {
        assert!(matches!(consumer.peek(), Peek::Empty));
    }
    store
}

#[test]
fn a_producer_killed_at_any_store_leaves_whole_records_only() {
    leaving_nothing(|| {
        let mut killed_at = BTreeSet::new();
        for (number, (name, acts)) in situations().into_iter().enumerate() {
            let stores = stores_of(&acts);
            println!("{name}: stores {stores:?}");
            for moment in 0..=stores.len() {
                killed_at.extend(kill_producer(number, &acts, &stores, moment));
            }
        }
        assert_eq!(killed_at, store::ALL.iter().map(|&store| store as u8).collect(), "not every store was tried");
    });
}

/// Splits a situation before its last part: the acts after the last [`Act::ReadAll`]. Consumers, here and in the victim, read that part.
fn last_part(acts: &[Act]) -> (&[Act], &[Act]) {
    let cut = acts.iter().rposition(|act| matches!(act, Act::ReadAll)).map_or(0, |at| at + 1);
    acts.split_at(cut)
}

/// The accesses that a consumer makes while it reads the last part of a situation.
fn accesses_of(acts: &[Act]) -> Vec<Access> {
    let memory = Memory::new(lanes());
    let (mut producer, mem, accesses) = (memory.producer(), memory.map(), Cell::new(Vec::new()));
    let note = |access| {
        let mut list = accesses.take();
        list.push(access);
        accesses.set(list);
    };
    let mut consumer = Consumer::new(Tapped::new(&mem, note), lanes());
    let (before, last) = last_part(acts);
    act_out(before, 0, |contents| push(&mut producer, contents, &mut ()), || read_all(&mut consumer, drop));
    accesses.take();
    act_out(last, 1 << 32, |contents| push(&mut producer, contents, &mut ()), || {});
    read_all(&mut consumer, drop);
    accesses.take()
}

/// Runs a situation with a consumer that is killed before access number `moment` while it reads the last part.
fn kill_consumer(number: usize, acts: &[Act], accesses: &[Access], moment: usize) {
    let memory = Memory::new(lanes());
    let mut producer = memory.producer();
    let mut victim = Victim::start(&memory, "consumer", number, moment);
    let (before, last) = last_part(acts);
    act_out(
        before,
        0,
        |contents| push(&mut producer, contents, &mut ()),
        || {
            victim.say(READ_ALL);
            assert_eq!(victim.hear(), Some(READ_ALL));
        },
    );
    let pushed = act_out(last, 1 << 32, |contents| push(&mut producer, contents, &mut ()), || {});
    victim.say(LAST_WORD);
    assert_eq!(victim.hear(), None);
    assert_eq!(victim.was_killed(), moment < accesses.len());

    let made = &accesses[..moment];
    let claimed = made.iter().filter(|access| matches!(access, Access::SetClaim(..))).count();
    let claim = made.iter().rev().find_map(|access| match access {
        Access::SetClaim(lane, pos) => Some((*lane, *pos)),
        _ => None,
    });
    let given_back = |(lane, pos)| made.iter().any(|a| matches!(a, Access::SetHead(l, p) if *l == lane && *p >= pos));
    let mut wanted: Vec<(Fate, &Contents)> = pushed[claimed..].iter().map(|left| (Fate::Untouched, left)).collect();
    if claim.is_some_and(|claim| !given_back(claim)) {
        wanted.insert(0, (Fate::InHand, &pushed[claimed - 1]));
    }
    let left = producer.abandoned();
    assert_eq!(left.len(), wanted.len(), "killed before access {moment}");
    for (left, (fate, wanted)) in left.into_iter().zip(wanted) {
        assert_eq!(left.fate, fate, "killed before access {moment}: {:?}", left.head);
        let left = Contents { head: left.head, args: left.args, payload: left.payload };
        assert!(left == *wanted, "killed before access {moment}: {:?} instead of {:?}", left.head, wanted.head);
    }
}

#[test]
fn a_consumer_killed_while_reading_leaves_exactly_what_it_did_not_touch() {
    leaving_nothing(|| {
        for (number, (name, acts)) in situations().into_iter().enumerate() {
            let accesses = accesses_of(&acts);
            println!("{name}: {} accesses", accesses.len());
            // All moments of a short situation; of a long one the beginning, the end, and some between.
            let all = accesses.len() + 1;
            for moment in (0..all).filter(|m| *m < 12 || all - *m < 24 || m % 23 == 0) {
                kill_consumer(number, &acts, &accesses, moment);
            }
        }
    });
}

fn die() -> ! {
    kill_process(getpid(), Signal::KILL).expect("may kill itself");
    unreachable!("survived SIGKILL");
}

/// The code of the victim. Run as a test it does nothing.
#[test]
fn victim() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let mut words = role.splitn(3, ' ');
    let mut word = || words.next().expect("role, situation, moment");
    let (role, situation, moment) = (word(), word().parse().expect("a number"), word().parse().expect("a number"));
    let acts = self::situation(situation);
    let fd = std::io::stdin().as_fd().try_clone_to_owned().expect("the ring's memory");
    let mem = MapMem::new(Shared::open(fd, lanes().bytes()).expect("the ring's memory"), lanes());
    let socket = UnixStream::from(std::io::stdout().as_fd().try_clone_to_owned().expect("the socket"));
    match role {
        "producer" => die_pushing(Producer::new(mem, lanes()), &acts, moment, socket),
        "consumer" => die_reading(&mem, &acts, moment, socket),
        other => panic!("no role {other}"),
    }
}

/// Dies before a store of a push.
struct Fatal<'a> {
    stores_left: usize,
    socket: &'a UnixStream,
}

impl Steps for Fatal<'_> {
    fn before(&mut self, store: u32) {
        if self.stores_left == 0 {
            self.socket.write_all(&[LAST_WORD + store as u8]).expect("the test hears");
            die();
        }
        self.stores_left -= 1;
    }
}

fn die_pushing(mut producer: Producer<MapMem>, acts: &[Act], moment: usize, socket: UnixStream) {
    let mut pushes_left = acts.iter().filter(|act| matches!(act, Act::Push(..) | Act::Ask(..))).count();
    let ask = || {
        (&socket).write_all(&[READ_ALL]).expect("the test hears");
        (&socket).read_exact(&mut [0]).expect("the test answers");
    };
    let push = |contents: &Contents| {
        pushes_left -= 1;
        match pushes_left {
            0 => push(&mut producer, contents, &mut Fatal { stores_left: moment, socket: &socket }),
            _ => push(&mut producer, contents, &mut ()),
        }
    };
    act_out(acts, 0, push, ask);
}

fn die_reading(mem: &MapMem, acts: &[Act], moment: usize, mut socket: UnixStream) {
    let accesses_left = Cell::new(None);
    let count = |_| match accesses_left.get() {
        Some(0) => die(),
        Some(left) => accesses_left.set(Some(left - 1)),
        None => {}
    };
    let mut consumer = Consumer::new(Tapped::new(mem, count), lanes());
    for _ in acts.iter().filter(|act| matches!(act, Act::ReadAll)) {
        socket.read_exact(&mut [0]).expect("the test asks");
        read_all(&mut consumer, drop);
        socket.write_all(&[READ_ALL]).expect("the test hears");
    }
    socket.read_exact(&mut [0]).expect("the test asks");
    accesses_left.set(Some(moment));
    read_all(&mut consumer, drop);
    accesses_left.set(None);
}
