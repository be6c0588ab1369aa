//! The cost of a read to the owner of the region, whose program sleeps or computes: context switches and system calls.

mod support;

use nix::errno::Errno;
use nix::sys::ptrace;
use nix::sys::wait::{waitpid, WaitPidFlag, WaitStatus};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::hint::spin_loop;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use support::calls::call_that_begins;
use support::rights::may_read_memory;
use support::threads::{self, sleeps};
use support::{left_out, tell, turn, wait_until, Address, Order, Orders, Peer, BOUND};
use weft::memory::{Outcome, Place, RegionKey, Rights, Settings, Window};
use weft::{Bundle, Endpoint, Key, Node, SharedBundle};

const REGION: RegionKey = RegionKey(7);

/// Between two reads the owner has time to fall asleep.
const PAUSE: Duration = Duration::from_millis(5);

/// Reads of one try, and number of tries: other programs may disturb one.
const READS: u64 = 60;
const TRIES: u32 = 5;

#[test]
fn child() {
    support::play(&[
        ("sleeper", |orders| own(orders, Program::Sleeps)),
        ("computer", |orders| own(orders, Program::Computes)),
    ]);
}

/// The program's activity meanwhile.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Program {
    Sleeps,
    Computes,
}

/// Owns a region in a serviced bundle, and does something else.
fn own(orders: Orders, program: Program) {
    let bundle = SharedBundle::serviced(&Node::new().expect("node")).expect("bundle");
    let here = bundle.memory_endpoint(Key(5), Settings::default()).expect("endpoint");
    // Lent, so that peers cannot map it: a read of mapped memory costs the owner nothing.
    let window = Window::leaked(vec![0; 4096].into());
    bundle.with_memory(here, |memory| memory.open(window, REGION, Rights::ALL)).expect("ours").expect("room");
    tell(Address { name: bundle.name(here).expect("ours"), key: Key(5) });
    match program {
        Program::Sleeps => assert_eq!(orders.wait(), None),
        Program::Computes => {
            while !matches!(orders.look(), Order::End) {
                (0..10_000).for_each(|_| spin_loop());
            }
        }
    }
}

/// Reads from a peer's region, one read after the other.
struct Reader {
    bundle: Bundle,
    here: Endpoint,
}

impl Reader {
    fn new(there: Address) -> Reader {
        let mut bundle = Bundle::new(&Node::new().expect("node")).expect("bundle");
        let here = bundle.memory_endpoint(Key(6), Settings::default()).expect("endpoint");
        bundle.map(here, 0, there.name, there.key).expect("map");
        Reader { bundle, here }
    }

    /// Reads a word. `meanwhile` is called again and again.
    fn read(&mut self, mut meanwhile: impl FnMut()) {
        let Reader { bundle, here } = self;
        bundle.memory(*here).expect("ours").try_read(0, Place::new(REGION, 8), vec![1; 8], 0).expect("room");
        let since = Instant::now();
        loop {
            bundle.poll();
            meanwhile();
            if let Some(end) = bundle.memory(*here).expect("ours").next_completion() {
                assert_eq!((end.outcome, end.target), (Outcome::Done, Some(vec![0; 8])));
                return;
            }
            assert!(since.elapsed() < BOUND, "a read does not end");
        }
    }
}

/// All threads of a process.
fn tasks(process: u32) -> Vec<PathBuf> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).expect("it lives");
    tasks.flatten().map(|task| task.path()).collect()
}

fn number(task: &Path) -> Pid {
    let name = task.file_name().and_then(|name| name.to_str()).expect("a number");
    Pid::from_raw(name.parse().expect("a number"))
}

/// How often the threads of a process have left the processor to wait.
fn switches(process: u32) -> u64 {
    tasks(process).iter().map(|task| sleeps(task)).sum()
}

/// The threads of a process, stopped at each system call.
struct Traced {
    threads: Vec<Pid>,
    /// The numbers of the system calls that they have begun.
    calls: Vec<u64>,
}

impl Traced {
    fn seize(process: u32) -> Result<Traced, Errno> {
        let threads: Vec<Pid> = tasks(process).iter().map(|task| number(task)).collect();
        let mut traced = Traced { threads: Vec::new(), calls: Vec::new() };
        for thread in threads {
            ptrace::seize(thread, ptrace::Options::PTRACE_O_TRACESYSGOOD)?;
            ptrace::interrupt(thread)?;
            wait_until("a thread to stop", || next_stop(thread) != WaitStatus::StillAlive);
            ptrace::syscall(thread, None)?;
            traced.threads.push(thread);
        }
        Ok(traced)
    }

    /// Makes one read, and then waits until the threads sleep.
    fn read(&mut self, reader: &mut Reader) {
        reader.read(|| self.go_on());
        let since = Instant::now();
        while since.elapsed() < PAUSE {
            self.go_on();
        }
    }

    /// Lets stopped threads go on, and records their system calls.
    fn go_on(&mut self) {
        let Traced { threads, calls } = self;
        threads.retain(|&thread| {
            match next_stop(thread) {
                WaitStatus::StillAlive => return true,
                WaitStatus::PtraceSyscall(_) => calls.extend(call_that_begins(thread)),
                WaitStatus::Stopped(..) | WaitStatus::PtraceEvent(..) => {}
                // A thread that was only needed at the start of the process.
                WaitStatus::Exited(..) => return false,
                other => panic!("the child ended: {other:?}"),
            }
            ptrace::syscall(thread, None).expect("stopped");
            true
        });
    }
}

/// Detaches: a process whose threads stay traced cannot be waited for.
impl Drop for Traced {
    fn drop(&mut self) {
        for &thread in &self.threads {
            if ptrace::interrupt(thread).is_ok() {
                wait_until("a thread to stop", || next_stop(thread) != WaitStatus::StillAlive);
                let _ = ptrace::detach(thread, None);
            }
        }
    }
}

fn next_stop(thread: Pid) -> WaitStatus {
    waitpid(thread, Some(WaitPidFlag::__WALL | WaitPidFlag::WNOHANG)).expect("a child")
}

fn warm(peer: &Peer, reader: &mut Reader) {
    wait_until("the service thread", || !threads::named(peer.id(), &["weft-service"]).is_empty());
    for _ in 0..20 {
        reader.read(|| ());
        std::thread::sleep(PAUSE);
    }
}

fn expect_few_switches(role: &'static str) {
    let peer = Peer::start(role, &[]);
    let mut reader = Reader::new(peer.address());
    warm(&peer, &mut reader);
    let mut tries = Vec::new();
    while tries.last().is_none_or(|switches| *switches > 2 * READS) {
        assert!(tries.len() < TRIES as usize, "context switches in {READS} reads, of each try: {tries:?}");
        let before = switches(peer.id());
        for _ in 0..READS {
            reader.read(|| ());
            std::thread::sleep(PAUSE);
        }
        tries.push(switches(peer.id()) - before);
    }
    eprintln!("context switches in {READS} reads from a {role}, of each try: {tries:?}");
    peer.finish();
}

/// How often each number is among the calls.
fn by_number(calls: &[u64]) -> BTreeMap<u64, u64> {
    calls.iter().fold(BTreeMap::new(), |mut sums, call| {
        *sums.entry(*call).or_default() += 1;
        sums
    })
}

fn expect_few_calls(role: &'static str) {
    if !may_read_memory() {
        return left_out("system calls of a read: nobody's memory can be read here, so nobody is trusted, and wakes need more of them");
    }
    let mut peer = Peer::start(role, &[]);
    let mut reader = Reader::new(peer.address());
    warm(&peer, &mut reader);
    let mut traced = match Traced::seize(peer.id()) {
        Ok(traced) => traced,
        Err(Errno::EPERM) => {
            left_out("system calls of a read: the kernel lets no process trace its child here");
            return peer.kill();
        }
        Err(why) => panic!("cannot trace a child: {why}"),
    };
    // An interrupted thread makes its call again.
    (0..10).for_each(|_| traced.read(&mut reader));
    let mut tries = Vec::new();
    while tries.last().is_none_or(|calls: &Vec<u64>| calls.len() as u64 > 4 * READS) {
        assert!(
            tries.len() < TRIES as usize,
            "system calls in {READS} reads, by their numbers: {:?}",
            tries.last().map(|calls| by_number(calls))
        );
        traced.calls.clear();
        (0..READS).for_each(|_| traced.read(&mut reader));
        let calls = traced.calls.clone();
        assert!(calls.len() as u64 >= READS, "the tracer counts: {calls:?}");
        tries.push(calls);
    }
    let counts: Vec<usize> = tries.iter().map(Vec::len).collect();
    eprintln!("system calls in {READS} reads from a {role}, of each try: {counts:?}");
    drop(traced);
    peer.kill();
}

#[test]
fn a_read_from_a_program_that_sleeps_costs_it_few_context_switches() {
    let _turn = turn("switches of a sleeper");
    expect_few_switches("sleeper");
}

#[test]
fn a_read_from_a_program_that_computes_costs_it_few_context_switches() {
    let _turn = turn("switches of a computer");
    expect_few_switches("computer");
}

#[test]
fn a_read_from_a_program_that_sleeps_costs_it_few_system_calls() {
    let _turn = turn("system calls of a sleeper");
    expect_few_calls("sleeper");
}

#[test]
fn a_read_from_a_program_that_computes_costs_it_few_system_calls() {
    let _turn = turn("system calls of a computer");
    expect_few_calls("computer");
}
