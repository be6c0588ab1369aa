//! What a message and a peer cost: heap allocations, system calls, resident memory, instructions.

mod support;

use nix::sys::ptrace;
use nix::sys::wait::{waitpid, WaitPidFlag, WaitStatus};
use nix::unistd::Pid;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::time::{Duration, Instant};
use support::{events, left_out, poll_until, tell, turn, wait_until, Address, Orders, Peer, BOUND};
use weft::am::Bundle;
use weft::{Endpoint, Node, SendError};

/// Requests that one endpoint may have outstanding at another.
const WINDOW: u32 = 32;

const ECHO: u8 = 1;
const ONE_WAY: u8 = 2;
const ALLOCATIONS: u8 = 3;
const ANSWER: u8 = 20;
const COUNTED: u8 = 21;

/// The system's allocator, counting calls by thread.
struct Counting;

thread_local! {
    static ALLOCATED: Cell<u64> = const { Cell::new(0) };
}

fn count_one() {
    // Not there while a thread ends.
    let _ = ALLOCATED.try_with(|count| count.set(count.get() + 1));
}

fn allocated() -> u64 {
    ALLOCATED.with(Cell::get)
}

// SAFETY: every call goes to the system's allocator unchanged; counting uses a thread-local without a destructor, which
// allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count_one();
        // SAFETY: the caller keeps `alloc`'s contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps `dealloc`'s contract.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count_one();
        // SAFETY: the caller keeps `realloc`'s contract.
        unsafe { System.realloc(pointer, layout, bytes) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn child() {
    support::play(&[("ponger", ponger), ("pinger", pinger), ("idlers", idlers), ("mesh", mesh)]);
}

/// Answers, and says what it allocated and what memory it has.
fn ponger(orders: Orders) {
    let mut bundle = Bundle::new(&Node::new().expect("node")).expect("bundle");
    let here = bundle.endpoint_with_random_key().expect("endpoint");
    bundle.on(here, ECHO, |m| m.reply(ANSWER, m.args(), m.payload()).expect("once")).expect("on");
    let sum = Cell::new(0u64);
    bundle.on(here, ONE_WAY, move |m| sum.set(sum.get() + m.payload().len() as u64)).expect("on");
    bundle
        .on(here, ALLOCATIONS, |m| {
            let count = allocated();
            m.reply(COUNTED, &[count as u32, (count >> 32) as u32], b"").expect("once");
        })
        .expect("on");
    tell(Address::of(&bundle, here));
    orders.serve(&mut bundle, |_, _| tell(resident_kib()));
}

/// A bundle whose endpoint is mapped to one address, and the answers it got.
fn bundle_to(there: Address) -> (Bundle, Endpoint, Rc<Cell<u64>>) {
    let mut bundle = Bundle::new(&Node::new().expect("node")).expect("bundle");
    let here = bundle.endpoint_with_random_key().expect("endpoint");
    bundle.map(here, 0, there.name, there.key).expect("map");
    let answers = Rc::new(Cell::new(0));
    let seen = answers.clone();
    bundle.on(here, ANSWER, move |_| seen.set(seen.get() + 1)).expect("on");
    (bundle, here, answers)
}

#[test]
fn messages_allocate_nothing_once_warm() {
    let _turn = turn("allocations");
    let peer = Peer::start("ponger", &[]);
    let (mut bundle, here, answers) = bundle_to(peer.address());
    let theirs = Rc::new(Cell::new(None));
    let seen = theirs.clone();
    bundle
        .on(here, COUNTED, move |m| seen.set(Some(u64::from(m.args()[0]) | u64::from(m.args()[1]) << 32)))
        .expect("on");
    let ask = |bundle: &mut Bundle| {
        bundle.request(here, 0, ALLOCATIONS, &[], b"").expect("mapped");
        poll_until(bundle, "the peer's count", |_| theirs.get().is_some());
        theirs.take().expect("just there")
    };
    let payload = [7u8; 300];
    let exchange = |bundle: &mut Bundle, count: u64| {
        let until = answers.get() + count;
        for number in 0..count {
            let bytes = number as usize % payload.len();
            bundle.request(here, 0, ECHO, &[1, 2, 3, 4], &payload[..bytes]).expect("mapped");
            bundle.send(here, 0, ONE_WAY, &[1, 2], &payload[..bytes]).expect("mapped");
            while bundle.next_event().is_some() {}
        }
        while answers.get() < until {
            bundle.poll();
        }
    };
    // Warm is: every slot of the window has held a message of the largest size. Without a poll in between none is used twice.
    for _ in 0..WINDOW {
        bundle.try_request(here, 0, ECHO, &[], &payload).ok();
    }
    assert_eq!(bundle.try_request(here, 0, ECHO, &[], &payload), Err(SendError::Full), "the window is full");
    exchange(&mut bundle, 20_000);
    let (here_before, there_before) = (allocated(), ask(&mut bundle));
    let own_question = allocated();
    exchange(&mut bundle, 100_000);
    let own = allocated() - own_question;
    let there = ask(&mut bundle) - there_before;
    eprintln!("allocations in 100,000 requests, replies and one-way messages: {own} here, {there} there");
    assert!(here_before > 0, "the allocator counts");
    assert_eq!((own, there), (0, 0));
    peer.finish();
}

/// So many ping-pongs when told; says how many polls found nothing.
fn pinger(orders: Orders) {
    let (mut bundle, here, answers) = bundle_to(Address::parse(&orders.words[0]));
    bundle.request(here, 0, ECHO, &[], b"").expect("mapped");
    poll_until(&mut bundle, "the first answer", |_| answers.get() == 1);
    tell(rustix::thread::gettid().as_raw_nonzero());
    while let Some(line) = orders.wait() {
        let mut idle = 0u64;
        for _ in 0..line.parse().expect("a number") {
            let until = answers.get() + 1;
            assert_ne!(bundle.try_request(here, 0, ECHO, &[1, 2, 3, 4], b""), Err(SendError::Full));
            while answers.get() < until {
                idle += u64::from(bundle.poll() == 0);
            }
        }
        tell(idle);
    }
}

#[test]
fn ping_pongs_make_no_system_calls() {
    let _turn = turn("system calls");
    let server = Peer::start("ponger", &[]);
    let there = server.address();
    let mut peer = Peer::start("pinger", &[&there.to_string()]);
    // The thread that plays the role is traced, no other.
    let tracee = Pid::from_raw(peer.hear().parse().expect("a thread's number"));
    if let Err(why) = ptrace::seize(tracee, ptrace::Options::PTRACE_O_TRACESYSGOOD) {
        left_out(&format!("counting system calls: the kernel lets no process trace its child here: {why}"));
        return peer.finish();
    }
    // None, twice: what the question and the answer themselves cost.
    calls(&mut peer, tracee, 0);
    let (nothing, _) = calls(&mut peer, tracee, 0);
    let count = 100_000;
    let (all, idle) = calls(&mut peer, tracee, count);
    let made = all.saturating_sub(nothing);
    eprintln!("system calls in {count} ping-pongs with {idle} idle polls: {made} ({nothing} calls around)");
    assert!(nothing >= 2, "the tracer counts");
    // Where the peer's core is taken by others, the wait becomes long enough for a rest: every 2^24 idle polls, 3 calls at most.
    assert!(made <= 3 * (idle >> 24), "{made} system calls");
    ptrace::interrupt(tracee).expect("traced");
    wait_stop(tracee);
    ptrace::detach(tracee, None).expect("stopped");
    peer.finish();
    server.finish();
}

/// System calls that the peer makes from hearing a number to saying that so many ping-pongs are done; and its idle polls.
fn calls(peer: &mut Peer, tracee: Pid, count: u64) -> (u64, u64) {
    ptrace::interrupt(tracee).expect("traced");
    wait_stop(tracee);
    ptrace::syscall(tracee, None).expect("stopped");
    peer.say(&count.to_string());
    let (mut stops, mut said, since) = (0u64, None, Instant::now());
    // Until it has spoken and waits for the next order. Looks seldom: to wake up disturbs what is measured.
    while said.is_none() || take_stops(tracee, &mut stops) {
        assert!(since.elapsed() < BOUND, "waited {BOUND:?} in vain for {count} ping-pongs, traced");
        if said.is_none() {
            take_stops(tracee, &mut stops);
        }
        said = peer.hear_for(Duration::from_millis(1)).or(said);
    }
    ptrace::interrupt(tracee).expect("traced");
    wait_stop(tracee);
    ptrace::cont(tracee, None).expect("stopped");
    (stops / 2, said.expect("heard").parse().expect("a number"))
}

/// Counts the stops that the child made and lets it go on. Says whether there were any.
fn take_stops(tracee: Pid, stops: &mut u64) -> bool {
    let before = *stops;
    loop {
        match waitpid(tracee, Some(WaitPidFlag::__WALL | WaitPidFlag::WNOHANG)).expect("a child") {
            WaitStatus::StillAlive => return *stops > before,
            WaitStatus::PtraceSyscall(_) => *stops += 1,
            WaitStatus::Stopped(..) | WaitStatus::PtraceEvent(..) => {}
            other => panic!("the child ended: {other:?}"),
        }
        ptrace::syscall(tracee, None).expect("stopped");
    }
}

/// Waits for any stop: one before a system call takes the place of the interruption.
fn wait_stop(tracee: Pid) {
    wait_until("the traced child to stop", || {
        let status = waitpid(tracee, Some(WaitPidFlag::__WALL | WaitPidFlag::WNOHANG)).expect("a child");
        status != WaitStatus::StillAlive
    });
}

/// Resident memory of this process.
fn resident_kib() -> u64 {
    let rollup = std::fs::read_to_string("/proc/self/smaps_rollup").expect("/proc");
    let line = rollup.lines().find(|l| l.starts_with("Rss:")).expect("Rss");
    line.split_whitespace().nth(1).expect("a number").parse().expect("a number")
}

/// So many bundles, each with a session that was used once and is idle.
fn idlers(orders: Orders) {
    let there = Address::parse(&orders.words[0]);
    let node = Node::new().expect("node");
    let make = || {
        let mut bundle = Bundle::new(&node).expect("bundle");
        let here = bundle.endpoint_with_random_key().expect("endpoint");
        bundle.map(here, 0, there.name, there.key).expect("map");
        let answered = Rc::new(Cell::new(false));
        let seen = answered.clone();
        bundle.on(here, ANSWER, move |_| seen.set(true)).expect("on");
        bundle.request(here, 0, ECHO, &[1, 2], b"once").expect("mapped");
        poll_until(&mut bundle, "an answer", |_| answered.get());
        bundle
    };
    let mut bundles = vec![make()];
    tell(resident_kib());
    while let Some(line) = orders.wait() {
        bundles.extend((0..line.parse().expect("a number")).map(|_| make()));
        tell(resident_kib());
    }
}

#[test]
fn an_idle_peer_takes_at_most_32_kib() {
    let _turn = turn("memory of idle peers");
    const PEERS: u64 = 200;
    let mut server = Peer::start("ponger", &[]);
    let there = server.address();
    let mut clients = Peer::start("idlers", &[&there.to_string()]);
    let number = |line: String| line.parse::<u64>().expect("a number");
    let before = (number(clients.hear()), number(server.ask("resident")));
    let after = (number(clients.ask(&PEERS.to_string())), number(server.ask("resident")));
    let each = ((after.0 - before.0) / PEERS, (after.1 - before.1) / PEERS);
    eprintln!("KiB resident per idle peer: {} where it is, with its bundle; {} where it is a peer", each.0, each.1);
    assert!(each.0 <= 32 && each.1 <= 32, "{each:?} KiB per idle peer");
    assert!(after.1 > before.1, "it can be measured");
    clients.finish();
    server.finish();
}

const MESH: usize = 8;

/// Asks all the others, and says what memory it has then.
fn mesh(orders: Orders) {
    let mut bundle = Bundle::new(&Node::new().expect("node")).expect("bundle");
    let here = bundle.endpoint_with_random_key().expect("endpoint");
    bundle.on(here, ECHO, |m| m.reply(ANSWER, m.args(), m.payload()).expect("once")).expect("on");
    let answers = Rc::new(Cell::new(0));
    let seen = answers.clone();
    bundle.on(here, ANSWER, move |_| seen.set(seen.get() + 1)).expect("on");
    tell(Address::of(&bundle, here));
    let mut peers = 0;
    orders.serve(&mut bundle, |bundle, line| {
        if line != "go" {
            let there = Address::parse(line);
            bundle.map(here, peers, there.name, there.key).expect("map");
            peers += 1;
            return;
        }
        for number in 0..7000 {
            bundle.request(here, number % peers, ECHO, &[number], &[1; 200]).expect("mapped");
        }
        poll_until(bundle, "all answers", |_| answers.get() == 7000);
        let _ = events(bundle);
        tell(resident_kib());
    });
}

#[test]
fn eight_processes_all_to_all_take_at_most_16_mib_each() {
    let _turn = turn("memory of eight processes");
    let mut peers: Vec<Peer> = (0..MESH).map(|_| Peer::start("mesh", &[])).collect();
    let addresses: Vec<Address> = peers.iter().map(Peer::address).collect();
    for (at, peer) in peers.iter_mut().enumerate() {
        for (_, address) in addresses.iter().enumerate().filter(|(other, _)| *other != at) {
            peer.say(&address.to_string());
        }
        peer.say("go");
    }
    let resident: Vec<u64> = peers.iter().map(|p| p.hear().parse().expect("a number")).collect();
    eprintln!("KiB resident of eight processes all to all: {resident:?}");
    assert!(resident.iter().all(|&kib| kib > 100 && kib <= 16 << 10), "{resident:?} KiB");
    for peer in peers {
        peer.finish();
    }
}

/// Instructions of the example with so many requests, by callgrind.
fn instructions(example: &Path, count: u32) -> u64 {
    let out = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(example)
        .arg(count.to_string())
        .current_dir(std::env::temp_dir())
        .output()
        .expect("valgrind is missing; to have it: scripts/setup.sh --for test");
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "callgrind failed: {said}");
    let line = said.lines().find(|l| l.contains("Collected :")).expect("a line of callgrind's with the sum");
    line.rsplit(' ').next().expect("a number").parse().expect("a number")
}

#[test]
fn a_request_with_its_reply_takes_no_more_instructions_than_recorded() {
    let _turn = turn("instructions");
    if cfg!(debug_assertions) {
        return left_out("instructions: they are recorded for release builds");
    }
    let program = std::env::current_exe().expect("this program");
    let example: PathBuf = program.parent().and_then(Path::parent).expect("target").join("examples/count_messages");
    let build = "cargo build -p weft --release --examples";
    assert!(example.exists(), "{} is missing; to have it: {build}", example.display());
    let per_message = (instructions(&example, 11_000) - instructions(&example, 1000)) as f64 / 10_000.0;
    let record = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/instructions.txt");
    let text = std::fs::read_to_string(&record).expect("docs/instructions.txt, with comment lines and one number");
    let number = text.lines().map(str::trim).find(|l| !l.is_empty() && !l.starts_with('#')).expect("a number");
    let recorded: f64 = number.parse().expect("a number");
    eprintln!("instructions per request and reply: {per_message:.1}, recorded {recorded}");
    if per_message < recorded * 0.97 {
        eprintln!(
            "HINT: that is more than 3 % better: write {per_message:.1} to docs/instructions.txt, so that it stays"
        );
    }
    assert!(
        per_message <= recorded * 1.03,
        "{per_message:.1} instructions per request and reply, more than 3 % above the {recorded} of docs/instructions.txt. \
         Look what a message does now that it did not (valgrind --tool=callgrind {} 11000; callgrind_annotate). If it is \
         worth it, or another compiler made it, record the new number there and say why in the commit.",
        example.display()
    );
}
