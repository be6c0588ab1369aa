//! Several threads at one bundle.

mod support;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use support::{again, bundle_with_endpoint, tell, turn, Address, Orders, Peer, OVER_UDP};
use weft::{AnyThread, Bundle, Endpoint, Event, InHandler, Key, Node, SendError, Settings, SharedBundle, Waited};

/// Handlers of the servers: replies; is silent; replies after what its thread slept.
const ECHO: u8 = 1;
const SILENT: u8 = 2;
const LATER: u8 = 3;
/// Handler of the tests.
const ANSWER: u8 = 20;

/// Longer than any wait on a running machine, so that a wait of this length means a lost wakeup.
const LONG: Duration = Duration::from_secs(20);

#[test]
fn child() {
    support::play(&[("server", server)]);
}

fn server(orders: Orders) {
    let (mut bundle, here) = bundle_with_endpoint();
    bundle.on(here, ECHO, |m| m.reply(ANSWER, m.args(), m.payload()).expect("once")).expect("on");
    bundle.on(here, SILENT, |_| {}).expect("on");
    let later = |m: &mut weft::am::Message<'_>| {
        let (token, args) = (m.defer().expect("a request"), m.args().to_vec());
        thread::spawn(move || {
            thread::sleep(Duration::from_millis(2));
            token.reply_from_afar(ANSWER, &args, b"").expect("small");
        });
    };
    bundle.on(here, LATER, later).expect("on");
    tell(Address::of(&bundle, here));
    orders.serve(&mut bundle, |_, _| {});
}

/// One thread's answers: how often each number came.
type Answers = Arc<Vec<AtomicU32>>;

/// An endpoint of a thread's own, mapped to a server.
fn endpoint_of_a_thread(bundle: &SharedBundle, there: Address, numbers: u32) -> (Endpoint, Answers, Arc<AtomicU32>) {
    let here = bundle.endpoint_with_random_key().expect("endpoint");
    bundle.map(here, 0, there.name, there.key).expect("map");
    let answers: Answers = Arc::new((0..numbers).map(|_| AtomicU32::new(0)).collect());
    let count = Arc::new(AtomicU32::new(0));
    let (seen, counted) = (answers.clone(), count.clone());
    let take = move |m: &mut weft::am::Message<'_>| {
        seen[m.args()[0] as usize].fetch_add(1, Ordering::Relaxed);
        counted.fetch_add(1, Ordering::Relaxed);
    };
    bundle.on(here, ANSWER, take).expect("on");
    (here, answers, count)
}

/// How a thread waits for its answers.
#[derive(Clone, Copy, Debug)]
enum By {
    PollUntil,
    Wait,
    Poll,
}

fn ask_by_many_threads(threads: usize, requests: u32, by: &[By], handler: u8) {
    let server = Peer::start("server", &[]);
    let there = server.address();
    let bundle = SharedBundle::new(&Node::new().expect("node")).expect("bundle");
    thread::scope(|scope| {
        for at in 0..threads {
            let (bundle, by) = (bundle.clone(), by[at % by.len()]);
            scope.spawn(move || {
                let (here, answers, count) = endpoint_of_a_thread(&bundle, there, requests);
                for asked in 0..requests {
                    bundle.request(here, 0, handler, &[asked, at as u32], &[at as u8; 100]).expect("mapped");
                    let is_answered = || count.load(Ordering::Relaxed) > asked;
                    match by {
                        By::PollUntil => bundle.poll_until(|_| is_answered()).expect("no handler"),
                        By::Wait => {
                            while !is_answered() {
                                assert_ne!(bundle.wait(Some(LONG)), Ok(Waited::Nothing), "thread {at}, {asked}");
                            }
                        }
                        By::Poll => {
                            while !is_answered() {
                                bundle.poll().expect("no handler");
                            }
                        }
                    }
                }
                assert!(answers.iter().all(|n| n.load(Ordering::Relaxed) == 1), "each answered once");
            });
        }
    });
    bundle.drain().expect("no handler");
    let counters = bundle.counters().expect("no handler");
    assert_eq!(counters.replies_delivered, u64::from(requests) * threads as u64);
    assert_eq!(counters.returned, 0);
    server.finish();
}

#[test]
fn each_thread_gets_the_answers_to_its_requests_once() {
    let _turn = turn("several threads ask");
    ask_by_many_threads(4, 5_000, &[By::PollUntil], ECHO);
    ask_by_many_threads(4, 5_000, &[By::Wait], ECHO);
    ask_by_many_threads(3, 3_000, &[By::PollUntil, By::Wait, By::Poll], ECHO);
}

#[test]
fn more_threads_than_cores_get_on() {
    let _turn = turn("more threads than cores");
    ask_by_many_threads(24, 300, &[By::PollUntil, By::Wait], ECHO);
}

#[test]
fn threads_that_sleep_are_woken_by_their_answers() {
    let _turn = turn("several threads sleep");
    ask_by_many_threads(6, 50, &[By::Wait, By::PollUntil], LATER);
}

#[test]
fn threads_share_a_bundle_over_the_network() {
    let Some(_turn) = again("threads_share_a_bundle_over_the_network", &[], &OVER_UDP) else { return };
    ask_by_many_threads(4, 500, &[By::PollUntil, By::Wait, By::Poll], ECHO);
    ask_by_many_threads(4, 30, &[By::PollUntil, By::Wait], LATER);
}

#[test]
fn one_thread_sends_and_is_answered_while_another_sleeps() {
    let _turn = turn("one sends, one sleeps");
    let server = Peer::start("server", &[]);
    let there = server.address();
    let bundle = SharedBundle::new(&Node::new().expect("node")).expect("bundle");
    let is_over = Arc::new(AtomicBool::new(false));
    let (sleeper, ends) = (bundle.clone(), is_over.clone());
    // It never gets an answer of its own: the answers are for another thread, and yet they end its waits.
    let sleeps = thread::spawn(move || {
        let mut waits = 0u64;
        while !ends.load(Ordering::Acquire) {
            sleeper.wait(None).expect("no handler");
            waits += 1;
        }
        waits
    });
    let (here, _, count) = endpoint_of_a_thread(&bundle, there, 300);
    for asked in 0..300 {
        bundle.request(here, 0, ECHO, &[asked], b"").expect("mapped");
        let since = Instant::now();
        while count.load(Ordering::Relaxed) <= asked {
            // Only check: the sleeper has to take the answer, or this thread's next poll.
            assert!(since.elapsed() < LONG, "answer {asked}");
            if asked % 2 == 0 {
                bundle.poll().expect("no handler");
            } else {
                thread::sleep(Duration::from_micros(20));
            }
        }
    }
    is_over.store(true, Ordering::Release);
    bundle.waker().wake();
    assert!(sleeps.join().expect("the sleeper") > 0);
    server.finish();
}

#[test]
fn a_set_up_goes_on_while_the_thread_that_wants_it_does_something_else() {
    let _turn = turn("set-up by a sleeper");
    let server = Peer::start("server", &[]);
    let there = server.address();
    let bundle = SharedBundle::new(&Node::new().expect("node")).expect("bundle");
    let (events, seen) = channel();
    let sleeper = bundle.clone();
    let sleeps = thread::spawn(move || loop {
        sleeper.wait(None).expect("no handler");
        while let Some(event) = sleeper.next_event().expect("no handler") {
            if matches!(event, Event::CanSend { .. }) {
                return events.send(event).expect("the test listens");
            }
        }
    });
    thread::sleep(Duration::from_millis(50));
    let (here, _, count) = endpoint_of_a_thread(&bundle, there, 1);
    assert_eq!(bundle.try_request(here, 0, ECHO, &[0], b""), Err(SendError::Full), "no session yet");
    seen.recv_timeout(LONG).expect("the sleeper sets the session up");
    sleeps.join().expect("the sleeper");
    bundle.request(here, 0, ECHO, &[0], b"").expect("mapped");
    bundle.poll_until(|_| count.load(Ordering::Relaxed) == 1).expect("no handler");
    server.finish();
}

#[test]
fn a_wake_up_ends_a_wait_of_each_handle() {
    let _turn = turn("wake-ups of handles");
    let bundle = SharedBundle::new(&Node::new().expect("node")).expect("bundle");
    let waker = bundle.waker();
    let waits: Vec<_> = (0..3)
        .map(|_| {
            let bundle = bundle.clone();
            thread::spawn(move || bundle.wait(Some(LONG)))
        })
        .collect();
    let since = Instant::now();
    // A handle that has not begun to wait is woken as soon as it does.
    waker.wake();
    for wait in waits {
        assert_eq!(wait.join().expect("it ends"), Ok(Waited::Nothing));
    }
    assert_eq!(bundle.wait(Some(LONG)), Ok(Waited::Nothing), "this handle's next one");
    assert!(since.elapsed() < LONG / 2);
    let pause = Duration::from_millis(20);
    let since = Instant::now();
    assert_eq!(bundle.wait(Some(pause)), Ok(Waited::Nothing));
    assert!(since.elapsed() >= pause, "and no more than that");
}

#[test]
fn a_handler_that_calls_the_bundle_is_told_so() {
    let _turn = turn("calls by handlers");
    let bundle = SharedBundle::new(&Node::new().expect("node")).expect("bundle");
    let (here, there) = (bundle.endpoint(Key(1)).expect("endpoint"), bundle.endpoint(Key(2)).expect("endpoint"));
    bundle.map(here, 0, bundle.name(there).expect("ours"), Key(2)).expect("map");
    let said = Arc::new(Mutex::new(Vec::new()));
    let (inner, says) = (Mutex::new(bundle.clone()), said.clone());
    let handler = move |m: &mut weft::am::Message<'_>| {
        let bundle = inner.lock().expect("nobody panics");
        let mut said = says.lock().expect("nobody panics");
        said.push(bundle.try_request(there, 0, ECHO, &[], b"").err());
        said.push(bundle.request(there, 0, ECHO, &[], b"").err());
        said.push(bundle.poll().err().map(SendError::from));
        said.push(bundle.wait(None).err().map(SendError::from));
        said.push(bundle.poll_until(|_| false).err().map(SendError::from));
        said.push(bundle.drain().err().map(SendError::from));
        assert_eq!(bundle.flush(), Err(InHandler));
        assert!(bundle.endpoint(Key(3)).is_err());
        // A reply is not refused: it goes with the next poll.
        let token = m.defer().expect("a request");
        bundle.reply(token, ANSWER, &[7], b"").expect("taken");
    };
    bundle.on(there, ECHO, handler).expect("on");
    let (answered, answer) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let (sets, value) = (answered.clone(), answer.clone());
    let take = move |m: &mut weft::am::Message<'_>| {
        value.store(m.args()[0], Ordering::Relaxed);
        sets.fetch_add(1, Ordering::Relaxed);
    };
    bundle.on(here, ANSWER, take).expect("on");
    bundle.request(here, 0, ECHO, &[], b"").expect("mapped");
    bundle.poll_until(|_| answered.load(Ordering::Relaxed) == 1).expect("not in a handler");
    assert_eq!(answer.load(Ordering::Relaxed), 7);
    let said = said.lock().expect("nobody panics");
    assert_eq!(*said, vec![Some(SendError::InHandler); 6]);
}

#[test]
fn a_panic_in_a_handler_leaves_the_bundle_to_the_other_threads() {
    let _turn = turn("a panic under the lock");
    let bundle = SharedBundle::new(&Node::new().expect("node")).expect("bundle");
    let (here, there) = (bundle.endpoint(Key(1)).expect("endpoint"), bundle.endpoint(Key(2)).expect("endpoint"));
    bundle.map(here, 0, bundle.name(there).expect("ours"), Key(2)).expect("map");
    bundle.on(there, SILENT, |_| panic!("a handler's")).expect("on");
    let asker = bundle.clone();
    let asks = thread::spawn(move || {
        asker.request(here, 0, SILENT, &[], b"").expect("mapped");
        asker.poll_until(|_| false)
    });
    assert!(asks.join().is_err(), "the handler's panic");
    let server = Peer::start("server", &[]);
    let (other, _, count) = endpoint_of_a_thread(&bundle, server.address(), 1);
    bundle.request(other, 0, ECHO, &[0], b"").expect("mapped");
    bundle.poll_until(|_| count.load(Ordering::Relaxed) == 1).expect("not in a handler");
    server.finish();
}

#[test]
fn a_bundle_for_any_thread_goes_to_another_thread_and_is_shared_there() {
    let _turn = turn("a bundle that is sent");
    let server = Peer::start("server", &[]);
    let there = server.address();
    let node = Node::new().expect("node");
    let mut bundle: Bundle<AnyThread> = Bundle::for_any_thread(&node, Settings::default()).expect("bundle");
    let here = bundle.endpoint_with_random_key().expect("endpoint");
    bundle.map(here, 0, there.name, there.key).expect("map");
    let answers = Arc::new(AtomicU64::new(0));
    let seen = answers.clone();
    bundle.on(here, ANSWER, move |_| _ = seen.fetch_add(1, Ordering::Relaxed)).expect("on");
    bundle.request(here, 0, ECHO, &[1], b"").expect("mapped");
    let there = thread::spawn(move || {
        bundle.request(here, 0, ECHO, &[2], b"").expect("mapped");
        bundle.drain();
        SharedBundle::from(bundle)
    });
    let bundle = there.join().expect("a thread");
    bundle.request(here, 0, ECHO, &[3], b"").expect("mapped");
    bundle.drain().expect("not in a handler");
    assert_eq!(answers.load(Ordering::Relaxed), 3);
    server.finish();
}

/// Threads send to each other's endpoint of one bundle, and each message is received once.
#[test]
fn threads_share_an_endpoint_for_tagged_messages() {
    use weft::tagged::{Label, Outcome, Pattern, Settings};
    const EACH: u64 = 300;
    let _turn = turn("shared tagged messages");
    let bundle = SharedBundle::serviced(&Node::new().expect("node")).expect("bundle");
    let here = bundle.tagged_endpoint(Key(4), Settings::default()).expect("endpoint");
    let name = bundle.name(here).expect("ours");
    bundle.with_tagged(here, |tagged| tagged.map(0, name, Key(4))).expect("ours").expect("map");
    let threads: Vec<_> = (0..3u64)
        .map(|thread| {
            let bundle = bundle.clone();
            std::thread::spawn(move || {
                for number in 0..EACH {
                    let tag = thread * EACH + number;
                    let post = |tagged: &mut weft::tagged::Tagged<'_>| {
                        tagged.try_receive(Pattern::tagged(tag), vec![0; 8], tag).map_err(|(error, _)| error)?;
                        tagged.try_inject(0, Label::tagged(tag), &tag.to_le_bytes())
                    };
                    bundle.with_tagged(here, post).expect("ours").expect("posted");
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().expect("it ended"));
    let (since, mut seen) = (std::time::Instant::now(), std::collections::BTreeSet::new());
    while seen.len() < 3 * EACH as usize {
        assert!(since.elapsed() < support::BOUND, "{} have come", seen.len());
        bundle.wait(Some(std::time::Duration::from_millis(10))).expect("no handler");
        while let Some(done) = bundle.next_completion().expect("no handler") {
            assert!(matches!(done.outcome, Outcome::Received(_)), "{done:?}");
            assert_eq!(done.buffer.as_deref(), Some(&done.context.to_le_bytes()[..]));
            assert!(seen.insert(done.context), "each once");
        }
    }
}
