//! Waiting: what ends it, that it takes no processor, that no wake-up is lost, and that a crowd of processes gets on.

mod support;

use nix::sys::signal::{SigSet, Signal};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::thread::{sched_getaffinity, sched_setaffinity, CpuSet};
use std::cell::{Cell, RefCell};
use std::io::Read;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::threads::{named, sleeps};
use support::{
    again, bundle_with_endpoint, events, poll_until, tell, turn, Address, Dice, Orders, Peer, BOUND, OVER_UDP,
};
use weft::{Bundle, Endpoint, Event, EventMask, Node, SendError, SharedBundle, Waited};

/// Handlers of the servers: replies; leaves the reply to another thread; is silent.
const ECHO: u8 = 1;
const LATER: u8 = 2;
const SILENT: u8 = 3;
/// A handler that nobody has.
const NOBODY: u8 = 99;
/// Handler of the tests.
const ANSWER: u8 = 20;

#[test]
fn child() {
    support::play(&[("server", server), ("sleeper", sleeper), ("runner", runner), ("asker", asker)]);
}

/// Longer than any wait on a running machine, so that a wait of this length means a lost wakeup.
const LONG: Duration = Duration::from_secs(20);

/// Sleeps until something comes, without end, and answers.
fn server(_orders: Orders) {
    let (mut bundle, here) = bundle_with_endpoint();
    bundle.on(here, ECHO, |m| m.reply(ANSWER, m.args(), m.payload()).expect("once")).expect("on");
    bundle.on(here, SILENT, |_| {}).expect("on");
    let later = |m: &mut weft::am::Message<'_>| {
        let (token, args) = (m.defer().expect("a request"), m.args().to_vec());
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(2));
            token.reply_from_afar(ANSWER, &args, b"").expect("small");
        });
    };
    bundle.on(here, LATER, later).expect("on");
    tell(Address::of(&bundle, here));
    let (waker, is_over) = (bundle.waker(), Arc::new(AtomicBool::new(false)));
    let ends = is_over.clone();
    std::thread::spawn(move || {
        let mut rest = String::new();
        std::io::stdin().read_to_string(&mut rest).expect("the input ends");
        ends.store(true, Ordering::Release);
        waker.wake();
    });
    bundle.serve_until(|_| is_over.load(Ordering::Acquire));
}

/// A bundle with an endpoint mapped to a server, and the answers it got.
fn client(there: Address) -> (Bundle, Endpoint, Rc<Cell<u32>>) {
    let (mut bundle, here) = bundle_with_endpoint();
    bundle.map(here, 0, there.name, there.key).expect("map");
    let answers = Rc::new(Cell::new(0));
    let seen = answers.clone();
    bundle.on(here, ANSWER, move |_| seen.set(seen.get() + 1)).expect("on");
    (bundle, here, answers)
}

/// Waits for this many answers, using only `wait`.
fn wait_for(bundle: &mut Bundle, answers: &Cell<u32>, wanted: u32) {
    while answers.get() < wanted {
        assert_ne!(bundle.wait(Some(LONG)), Waited::Nothing, "{} of {wanted} answers", answers.get());
    }
}

/// Asks a server that sleeps, after pauses in which both fall asleep, and others in which they do not.
fn ask_a_sleeping_server(handler: u8) {
    let server = Peer::start("server", &[]);
    let (mut bundle, here, answers) = client(server.address());
    let mut dice = Dice::fresh("pauses");
    for asked in 1..=100 {
        bundle.request(here, 0, handler, &[asked], &[7; 100]).expect("mapped");
        wait_for(&mut bundle, &answers, asked);
        std::thread::sleep(Duration::from_micros([0, 30, 300, 3000][dice.below(4) as usize]));
    }
    assert!(bundle.next_event().is_none_or(|e| matches!(e, Event::CanSend { .. })));
    server.finish();
}

#[test]
fn a_message_wakes_a_program_that_waits_for_it() {
    let _turn = turn("waiting for messages");
    ask_a_sleeping_server(ECHO);
}

#[test]
fn a_reply_of_another_thread_wakes_the_bundle_that_sends_it() {
    let _turn = turn("waiting for another thread");
    ask_a_sleeping_server(LATER);
}

#[test]
fn a_message_of_another_host_wakes_a_program_that_waits_for_it() {
    let Some(_turn) = again("a_message_of_another_host_wakes_a_program_that_waits_for_it", &[], &OVER_UDP) else {
        return;
    };
    ask_a_sleeping_server(ECHO);
    ask_a_sleeping_server(LATER);
}

/// The processor time that this thread has used.
fn own_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Has this thread, and what it starts, run on one core. Returns the cores it had before.
fn stay_on_one_core() -> CpuSet {
    let before = sched_getaffinity(None).expect("this thread");
    let mut one = CpuSet::new();
    one.set((0..CpuSet::MAX_CPU).find(|&core| before.is_set(core)).expect("a core"));
    sched_setaffinity(None, &one).expect("a core of ours");
    before
}

/// Asks a server that sleeps on the core of this thread. This thread polls and does not wait. Its own processor time
/// counts, because that is the same whatever else runs on the core.
fn poll_beside_a_sleeping_server(mut ask: impl FnMut(u32), mut is_answered: impl FnMut(u32) -> bool) {
    let times: Vec<Duration> = (1..=20)
        .map(|asked| {
            std::thread::sleep(Duration::from_millis(15));
            ask(asked);
            let begin = own_time();
            while !is_answered(asked) {}
            own_time() - begin
        })
        .collect();
    let all: Duration = times.iter().sum();
    assert!(all < Duration::from_millis(6), "processor time until each answer came: {times:?}");
}

fn poll_an_exclusive_bundle() {
    let cores = stay_on_one_core();
    let server = Peer::start("server", &[]);
    let (bundle, here, answers) = client(server.address());
    let bundle = RefCell::new(bundle);
    let ask = |asked| bundle.borrow_mut().request(here, 0, ECHO, &[asked], b"").expect("mapped");
    poll_beside_a_sleeping_server(ask, |asked| {
        bundle.borrow_mut().poll();
        answers.get() == asked
    });
    server.finish();
    sched_setaffinity(None, &cores).expect("as before");
}

#[test]
fn a_program_that_only_polls_gives_way_to_the_peer_that_it_woke() {
    let _turn = turn("polling beside a server");
    poll_an_exclusive_bundle();
}

#[test]
fn a_program_that_only_polls_gives_way_to_a_peer_of_another_host() {
    let Some(_turn) = again("a_program_that_only_polls_gives_way_to_a_peer_of_another_host", &[], &OVER_UDP) else {
        return;
    };
    poll_an_exclusive_bundle();
}

#[test]
fn a_thread_that_only_polls_a_shared_bundle_gives_way() {
    let Some(_turn) = again("a_thread_that_only_polls_a_shared_bundle_gives_way", &[], &OVER_UDP) else { return };
    let cores = stay_on_one_core();
    let server = Peer::start("server", &[]);
    let there = server.address();
    let bundle = SharedBundle::new(&Node::new().expect("node")).expect("bundle");
    let here = bundle.endpoint_with_random_key().expect("endpoint");
    bundle.map(here, 0, there.name, there.key).expect("map");
    bundle.on(here, ANSWER, |_| {}).expect("on");
    let ask = |asked| bundle.request(here, 0, ECHO, &[asked], b"").expect("mapped");
    poll_beside_a_sleeping_server(ask, |asked| {
        bundle.poll().expect("no handler");
        bundle.counters().expect("no handler").replies_delivered == u64::from(asked)
    });
    server.finish();
    sched_setaffinity(None, &cores).expect("as before");
}

#[test]
fn nothing_ends_a_wait_but_its_time() {
    let _turn = turn("waiting in vain");
    let (mut bundle, _) = bundle_with_endpoint();
    for most in [0, 1, 20] {
        let (since, most) = (Instant::now(), Duration::from_millis(most));
        assert_eq!(bundle.wait(Some(most)), Waited::Nothing);
        assert!(since.elapsed() >= most);
    }
}

#[test]
fn a_waker_ends_the_wait_that_goes_on_or_the_next() {
    let _turn = turn("wakers");
    let (mut bundle, _) = bundle_with_endpoint();
    let waker = bundle.waker();
    waker.wake();
    assert_eq!(bundle.wait(None), Waited::Nothing);
    for pause in [0, 1, 10] {
        let waker = waker.clone();
        let wakes = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(pause));
            waker.wake();
        });
        assert_eq!(bundle.wait(None), Waited::Nothing);
        wakes.join().expect("it ends");
    }
}

/// A nudge ends one wait, or one attempt to arm, and keeps no other call from sleeping.
#[test]
fn a_nudge_ends_one_wait_and_no_more() {
    let _turn = turn("nudges");
    let (mut bundle, _) = bundle_with_endpoint();
    bundle.waker().wake();
    (0..100).for_each(|_| _ = bundle.poll());
    let armed = (0..100).filter(|_| bundle.arm()).count();
    assert!((90..100).contains(&armed), "armed {armed} times of 100");
    bundle.waker().wake();
    let sleeps = || sleeps("/proc/thread-self".as_ref());
    let before = sleeps();
    let since = Instant::now();
    bundle.poll_until(|_| since.elapsed() > Duration::from_millis(200));
    assert!(sleeps() - before > 20, "slept {} times in 200 ms", sleeps() - before);
    assert_eq!(bundle.wait(None), Waited::Nothing, "the nudge");
}

/// New peers of a server that sleeps: their first messages wake it.
#[test]
fn first_messages_wake_a_program_that_waits() {
    let _turn = turn("first messages");
    let server = Peer::start("server", &[]);
    let there = server.address();
    let node = Node::new().expect("node");
    let mut slow = 0;
    for _ in 0..1500 {
        let mut bundle = Bundle::new(&node).expect("bundle");
        let here = bundle.endpoint_with_random_key().expect("endpoint");
        bundle.map(here, 0, there.name, there.key).expect("map");
        let begin = Instant::now();
        while bundle.try_request(here, 0, ECHO, &[], b"").is_err() {
            assert!(begin.elapsed() < BOUND, "no session");
            bundle.poll();
        }
        let since = Instant::now();
        bundle.on(here, ANSWER, |_| {}).expect("on");
        while bundle.counters().replies_delivered == 0 {
            assert!(since.elapsed() < BOUND, "no answer");
            bundle.poll();
        }
        slow += u32::from(since.elapsed() > Duration::from_millis(400));
    }
    // A lost wake-up takes half a second; so may a core that others want, but hardly ever.
    assert!(slow <= 1, "{slow} of 1500 first answers took half a second");
    server.finish();
}

#[test]
fn the_death_of_a_peer_ends_a_wait() {
    let _turn = turn("waiting for a death");
    let mut server = Peer::start("server", &[]);
    let (mut bundle, here, answers) = client(server.address());
    bundle.request(here, 0, ECHO, &[], b"").expect("mapped");
    wait_for(&mut bundle, &answers, 1);
    events(&mut bundle);
    server.kill();
    assert_eq!(bundle.wait(Some(LONG)), Waited::Events);
    let told = events(&mut bundle);
    assert!(told.iter().any(|e| matches!(e, Event::PeerLost { endpoint, .. } if *endpoint == here)), "{told:?}");
}

/// For an endpoint whose mask has one bit or none, checks which events end a wait.
#[test]
fn each_bit_of_a_mask_lets_its_own_events_end_a_wait_and_no_others() {
    let _turn = turn("event masks");
    let none = EventMask::NONE;
    let masks = [
        none,
        EventMask { not_empty: true, ..none },
        EventMask { can_send: true, ..none },
        EventMask { returned: true, ..none },
        EventMask { peer_lost: true, ..none },
    ];
    let short = Some(Duration::from_millis(30));
    for mask in masks {
        let mut server = Peer::start("server", &[]);
        let there = server.address();
        let (mut bundle, here, answers) = client(there);
        bundle.set_event_mask(here, mask).expect("an endpoint of ours");
        // No session yet: it will be told when there is one.
        assert_eq!(bundle.try_request(here, 0, ECHO, &[], b""), Err(SendError::Full));
        assert_eq!(bundle.wait(short) == Waited::Events, mask.can_send, "{mask:?}, can send");
        poll_until(&mut bundle, "a session", |b| b.sessions() == 1);
        assert_eq!(events(&mut bundle).len(), 1);
        for asked in 1..=3 {
            bundle.try_request(here, 0, ECHO, &[], b"").expect("room");
            let waited = bundle.wait(short);
            assert_eq!(matches!(waited, Waited::Messages(1)), mask.not_empty, "{mask:?}, a message: {waited:?}");
            poll_until(&mut bundle, "the answer", |_| answers.get() == asked);
        }
        bundle.try_send(here, 0, NOBODY, &[], b"no handler").expect("room");
        assert_eq!(bundle.wait(short) == Waited::Events, mask.returned, "{mask:?}, a return");
        poll_until(&mut bundle, "its return", |b| b.counters().returned == 1);
        assert_eq!(events(&mut bundle).len(), 1);
        bundle.wait(Some(Duration::ZERO));
        server.kill();
        let waited = bundle.wait(Some(Duration::from_millis(300)));
        // A lost peer can be sent to again: its name may lead to somebody else.
        assert_eq!(waited == Waited::Events, mask.peer_lost || mask.can_send, "{mask:?}, a death: {waited:?}");
        assert_eq!(bundle.sessions(), 0);
    }
}

#[test]
fn a_descriptor_tells_poll_when_something_came() {
    let _turn = turn("descriptor");
    let server = Peer::start("server", &[]);
    let (mut bundle, here, answers) = client(server.address());
    let mut slept = 0;
    for asked in 1..=200 {
        bundle.request(here, 0, if asked % 4 == 0 { LATER } else { ECHO }, &[], b"").expect("mapped");
        let since = Instant::now();
        while answers.get() < asked {
            assert!(since.elapsed() < BOUND, "no answer");
            if bundle.arm() {
                slept += 1;
                let most = bundle.wait_limit();
                assert!(most > Duration::from_micros(100), "{most:?}");
                let most = Timespec { tv_sec: LONG.as_secs() as i64, tv_nsec: 0 };
                let fd = bundle.wait_fd();
                let ready = rustix::event::poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&most));
                assert_eq!(ready.expect("poll"), 1, "woken");
                bundle.poll();
            }
        }
    }
    assert!(slept > 20, "slept {slept} times only");
    server.finish();
}

/// Voluntary switches of a process's threads that play the role or help, and its processor time, in clock ticks.
fn switches_and_ticks(process: u32) -> (u64, u64) {
    let switches = named(process, &["child", "weft-helper"]).iter().map(|thread| sleeps(thread)).sum();
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).expect("stat");
    let fields: Vec<&str> = stat.rsplit(')').next().expect("behind the name").split_whitespace().collect();
    (switches, fields[11].parse::<u64>().expect("ticks") + fields[12].parse::<u64>().expect("ticks"))
}

/// Asks a server once. When told, waits in one of several ways for the server, which is stopped by then.
fn asker(orders: Orders) {
    let there = Address::parse(&orders.words[0]);
    let begins = || {
        tell("asked");
        orders.wait();
    };
    if orders.words[1] == "drains, shared" {
        let bundle = SharedBundle::new(&Node::new().expect("node")).expect("bundle");
        let here = bundle.endpoint_with_random_key().expect("endpoint");
        bundle.map(here, 0, there.name, there.key).expect("map");
        bundle.request(here, 0, SILENT, &[], b"").expect("mapped");
        bundle.drain().expect("no handler");
        begins();
        bundle.request(here, 0, SILENT, &[], b"").expect("room");
        return bundle.drain().expect("no handler");
    }
    let (mut bundle, here, answers) = client(there);
    bundle.request(here, 0, ECHO, &[], b"").expect("mapped");
    wait_for(&mut bundle, &answers, 1);
    begins();
    match &orders.words[1][..] {
        "requests" => while bundle.request(here, 0, ECHO, &[], b"").is_ok() {},
        "drains" => {
            bundle.request(here, 0, ECHO, &[], b"").expect("room");
            bundle.drain();
        }
        "waits for room" => loop {
            if bundle.try_send(here, 0, SILENT, &[], &[7; 1000]).is_err() {
                bundle.wait(None);
            }
        },
        other => panic!("{other}"),
    }
}

#[test]
fn waiting_for_a_stopped_peer_causes_few_wakeups() {
    let _turn = turn("waiting for a peer that stands still");
    let server = Peer::start("server", &[]);
    let there = server.address().to_string();
    let ways = ["requests", "drains", "waits for room", "drains, shared"];
    let mut askers = ways.map(|way| Peer::start("asker", &[&there, way]));
    askers.iter().for_each(|asker| assert_eq!(asker.hear(), "asked"));
    server.stop();
    askers.iter_mut().for_each(|asker| asker.say("now"));
    std::thread::sleep(Duration::from_secs(4));
    let before = askers.each_ref().map(|asker| switches_and_ticks(asker.id()).0);
    let time = Duration::from_secs(4);
    std::thread::sleep(time);
    for ((way, asker), before) in ways.iter().zip(&mut askers).zip(before) {
        let woken = switches_and_ticks(asker.id()).0 - before;
        eprintln!("{way}: {woken} wake-ups in {time:?}");
        // The child's own watch wakes up twice a second.
        assert!(woken < (5 + 2) * time.as_secs(), "{way}: {woken} wake-ups in {time:?}");
        asker.kill();
    }
    server.go_on();
    server.finish();
}

/// The server waits without end, connected to us through memory and to another over UDP.
#[test]
fn waiting_with_idle_peers_takes_no_processor_time() {
    let _turn = turn("waiting idly");
    let server = Peer::start_with("server", &[], &[("WEFT_ADDR", "127.0.0.1".as_ref())]);
    let there = server.address();
    let (mut bundle, here, answers) = client(there);
    bundle.request(here, 0, ECHO, &[], b"").expect("mapped");
    wait_for(&mut bundle, &answers, 1);
    // Wait until the work after a message is done, such as acknowledgements.
    std::thread::sleep(Duration::from_millis(700));
    let (switches, ticks) = switches_and_ticks(server.id());
    let time = Duration::from_secs(4);
    std::thread::sleep(time);
    let (switches, ticks) = {
        let now = switches_and_ticks(server.id());
        (now.0 - switches, now.1 - ticks)
    };
    eprintln!("in {time:?} of waiting: {switches} wake-ups, {ticks} ticks of the processor");
    assert!(switches < 5 * time.as_secs(), "{switches} wake-ups in {time:?}");
    assert!(ticks <= 2, "{ticks} ticks of a hundredth of a second in {time:?}");
    server.finish();
}

/// One of a ring of processes: passes a message on, waiting.
fn runner(orders: Orders) {
    let (mut bundle, here) = bundle_with_endpoint();
    tell(Address::of(&bundle, here));
    let there = Address::parse(&orders.wait().expect("the next one"));
    bundle.map(here, 0, there.name, there.key).expect("map");
    let (left, seen) = (Rc::new(Cell::new(u32::MAX)), Rc::new(Cell::new(0u32)));
    let (leaves, counts) = (left.clone(), seen.clone());
    let pass_on = move |m: &mut weft::am::Message<'_>| {
        leaves.set(m.args()[0]);
        counts.set(counts.get() + 1);
    };
    bundle.on(here, SILENT, pass_on).expect("on");
    let mut passed = 0;
    if let Some(laps) = orders.words.first() {
        bundle.send(here, 0, SILENT, &[laps.parse().expect("a number")], b"").expect("mapped");
    }
    loop {
        while seen.get() == passed {
            bundle.wait(None);
        }
        passed = seen.get();
        let hops = left.get();
        if hops > 1 {
            bundle.send(here, 0, SILENT, &[hops - 1], b"").expect("mapped");
            bundle.drain();
        }
        if hops <= 8 {
            break;
        }
    }
    tell(passed);
    // The previous process may still need to learn that its last message was stored.
    orders.serve(&mut bundle, |_, _| {});
}

#[test]
fn more_processes_than_cores_pass_a_message_round() {
    let _turn = turn("a crowd");
    let hops = 8 * 500u32;
    let mut ring: Vec<Peer> = (0..8)
        .map(|at| match at {
            0 => Peer::start("runner", &[&hops.to_string()]),
            _ => Peer::start("runner", &[]),
        })
        .collect();
    let names: Vec<String> = ring.iter().map(|peer| peer.address().to_string()).collect();
    for at in [1, 2, 3, 4, 5, 6, 7, 0] {
        ring[at].say(&names[(at + 1) % 8]);
    }
    let since = Instant::now();
    let passed: u32 = ring.iter().map(|peer| peer.hear().parse::<u32>().expect("a number")).sum();
    eprintln!("{passed} hops among 8 processes in {:?}", since.elapsed());
    assert_eq!(passed, hops);
    ring.into_iter().for_each(Peer::finish);
}

/// Answers, and sleeps and wakes at random, by each of the ways.
fn sleeper(orders: Orders) {
    let (mut bundle, here) = bundle_with_endpoint();
    bundle.on(here, ECHO, |m| m.reply(ANSWER, m.args(), m.payload()).expect("once")).expect("on");
    tell(Address::of(&bundle, here));
    let mut dice = Dice::fresh("sleeper");
    while matches!(orders.look(), support::Order::None) {
        nap(&mut bundle, &mut dice);
    }
}

/// Waits in a way that the dice choose: spins, sleeps, sleeps by the descriptor. A wake-up that is lost costs [`LONG`].
fn nap(bundle: &mut Bundle, dice: &mut Dice) {
    match dice.below(8) {
        0..=3 => _ = bundle.wait(Some(Duration::from_millis(200))),
        4 => _ = bundle.poll(),
        5 => _ = (0..dice.below(200)).map(|_| bundle.poll()).sum::<u32>(),
        _ => {
            if bundle.arm() {
                let fd = bundle.wait_fd();
                let most = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
                let _ = rustix::event::poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&most));
            }
        }
    }
}

#[test]
fn a_signal_tells_a_program_that_computes_once_what_came() {
    let test = "a_signal_tells_a_program_that_computes_once_what_came";
    // All threads of that process block the signal, so that it stays pending.
    let Some(_turn) = support::again(test, &["env", "--block-signal=USR1"], &[]) else { return };
    let mut mine: SigSet = SigSet::empty();
    mine.add(Signal::SIGUSR1);
    // The pending signals of the process: a mask, whose tenth bit is SIGUSR1.
    let is_pending = || {
        let status = std::fs::read_to_string("/proc/self/status").expect("status");
        let mask = status.lines().find_map(|line| line.strip_prefix("ShdPnd:")).expect("signals that wait");
        u64::from_str_radix(mask.trim(), 16).expect("a mask") & 1 << 9 != 0
    };
    let server = Peer::start("sleeper", &[]);
    let (mut bundle, here, answers) = client(server.address());
    bundle.request(here, 0, ECHO, &[0], b"").expect("mapped");
    poll_until(&mut bundle, "a first answer", |_| answers.get() == 1);
    let mut late = 0;
    for round in 2..50 {
        while !bundle.arm_signal(Signal::SIGUSR1 as i32).expect("a helper") {}
        // The server checks whether to ring only after it has published an answer, and may be slow. So there may be a signal for an
        // answer that was already taken.
        while is_pending() {
            late += 1;
            assert!(late < round, "more signals than messages");
            assert_eq!(mine.wait().expect("a signal"), Signal::SIGUSR1);
            while !bundle.arm_signal(Signal::SIGUSR1 as i32).expect("a helper") {}
        }
        bundle.try_request(here, 0, ECHO, &[round], b"").expect("room");
        assert_eq!(mine.wait().expect("a signal"), Signal::SIGUSR1);
        assert!(!is_pending(), "one for each time");
        poll_until(&mut bundle, "the answer", |_| answers.get() == round);
    }
    assert!(bundle.arm_signal(-1).is_err() && bundle.arm_signal(9999).is_err());
    let mut without = Bundle::new(&Node::without_helper().expect("node")).expect("bundle");
    let error = without.arm_signal(Signal::SIGUSR1 as i32).expect_err("there is no helper").to_string();
    assert!(error.contains("WEFT_HELPER"), "{error}");
    server.finish();
}

/// Both sides sleep and wake at random, and send in between. `rounds` are answers.
fn stress(rounds: u32) {
    let server = Peer::start("sleeper", &[]);
    let (mut bundle, here, answers) = client(server.address());
    let mut dice = Dice::fresh("stress of waiting");
    let (mut asked, mut slowest) = (0, Duration::ZERO);
    while answers.get() < rounds {
        let burst = 1 + dice.below(3) as u32;
        for _ in 0..burst {
            bundle.request(here, 0, ECHO, &[asked], b"").expect("mapped");
            asked += 1;
        }
        let since = Instant::now();
        while answers.get() < asked {
            nap(&mut bundle, &mut dice);
            assert!(since.elapsed() < LONG, "a wake-up was lost: {} of {asked} answers", answers.get());
        }
        slowest = slowest.max(since.elapsed());
    }
    eprintln!("{asked} messages, the slowest answer after {slowest:?}");
    server.finish();
}

#[test]
fn no_wake_up_is_lost() {
    let _turn = turn("stress of waiting");
    stress(100_000);
}

/// For `make soak`.
#[test]
#[ignore = "takes minutes"]
fn no_wake_up_is_lost_in_ten_million() {
    for _ in 0..5 {
        stress(2_000_000);
    }
}
