//! How programs end: the messages that they sent arrive, those that they took are acknowledged, and no end waits without limit.
//! Over shared memory and over UDP.

mod support;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};
use support::{bundle_with_endpoint, events, over_udp, poll_until, tell, turn, Address, Orders, Peer, BOUND};
use weft::tagged::{self, Label, Outcome, Pattern};
use weft::{Bundle, Endpoint, Event, Key, Node, Reliability, Service, Settings};

/// One-way messages, each with its number.
const COUNT: u8 = 1;
/// Requests whose token is dropped.
const DROPPED: u8 = 2;
/// Requests that are answered.
const ANSWERED: u8 = 3;
const ANSWER: u8 = 4;

#[test]
fn child() {
    support::play(&[
        ("receiver", receiver),
        ("sender", sender),
        ("computer", computer),
        ("taker", taker),
        ("injector", injector),
        ("answerer", answerer),
    ]);
}

/// Counts messages. When told a number, it answers once that many have come, or when nothing has come for a while.
fn receiver(orders: Orders) {
    let (mut bundle, here) = bundle_with_endpoint();
    let count = Rc::new(Cell::new(0u32));
    let seen = count.clone();
    let next = move |m: &mut weft::am::Message<'_>| {
        assert_eq!(m.args(), [seen.get()], "in order, each once");
        seen.set(seen.get() + 1);
    };
    bundle.on(here, COUNT, next).expect("on");
    tell(Address::of(&bundle, here));
    orders.serve(&mut bundle, |bundle, line| {
        let wanted: u32 = line.parse().expect("a number");
        let (mut before, mut since) = (count.get(), Instant::now());
        while count.get() < wanted && since.elapsed() < Duration::from_secs(4) {
            bundle.wait(Some(Duration::from_millis(10)));
            if std::mem::replace(&mut before, count.get()) != count.get() {
                since = Instant::now();
            }
        }
        tell(count.get());
    });
}

/// Sends a number of messages, and ends in the way that it is told.
fn sender(orders: Orders) {
    let there = Address::parse(&orders.words[0]);
    let messages: u32 = orders.words[1].parse().expect("a number");
    let (mut bundle, here) = bundle_with_endpoint();
    bundle.map(here, 0, there.name, there.key).expect("map");
    for number in 0..messages {
        bundle.send(here, 0, COUNT, &[number], &[7; 100]).expect("sent");
    }
    match orders.words[2].as_str() {
        "drops" => drop(bundle),
        "exits" => std::process::exit(0),
        other => panic!("{other}: a sender drops its bundle or exits"),
    }
}

fn expect_all_to_arrive(messages: u32, how: &str) {
    let mut receiver = Peer::start("receiver", &[]);
    let sender = Peer::start("sender", &[&receiver.address().to_string(), &messages.to_string(), how]);
    sender.finish();
    assert_eq!(
        receiver.ask(&messages.to_string()),
        messages.to_string(),
        "of {messages} messages of a sender that {how}"
    );
    receiver.finish();
}

#[test]
fn what_a_program_has_sent_arrives_though_it_ends() {
    let _turn = turn("a program that ends");
    for how in ["drops", "exits"] {
        [1, 100_000].into_iter().for_each(|messages| expect_all_to_arrive(messages, how));
    }
}

#[test]
fn what_a_program_has_sent_arrives_over_udp_though_it_ends() {
    let Some(_turn) = over_udp("what_a_program_has_sent_arrives_over_udp_though_it_ends") else { return };
    for how in ["drops", "exits"] {
        [1, 100_000].into_iter().for_each(|messages| expect_all_to_arrive(messages, how));
    }
}

/// Computes until it is told a number, and counts messages only then.
fn computer(orders: Orders) {
    let (mut bundle, here) = bundle_with_endpoint();
    let count = Rc::new(Cell::new(0u32));
    let seen = count.clone();
    bundle.on(here, COUNT, move |_| seen.set(seen.get() + 1)).expect("on");
    tell(Address::of(&bundle, here));
    let wanted: u32 = orders.wait().expect("a number").parse().expect("a number");
    let since = Instant::now();
    while count.get() < wanted && since.elapsed() < Duration::from_secs(4) {
        bundle.wait(Some(Duration::from_millis(10)));
    }
    tell(count.get());
}

fn expect_all_to_arrive_later() {
    for how in ["drops", "exits"] {
        for messages in [1, 5000] {
            let mut receiver = Peer::start("computer", &[]);
            let sender = Peer::start("sender", &[&receiver.address().to_string(), &messages.to_string(), how]);
            sender.finish();
            assert_eq!(receiver.ask(&messages.to_string()), messages.to_string(), "of a sender that {how}");
            receiver.finish();
        }
    }
}

#[test]
fn what_a_program_has_sent_arrives_though_its_receiver_looks_only_after_its_end() {
    let _turn = turn("a receiver that looks later");
    expect_all_to_arrive_later();
}

#[test]
fn what_a_program_has_sent_arrives_over_udp_though_its_receiver_looks_only_after_its_end() {
    let test = "what_a_program_has_sent_arrives_over_udp_though_its_receiver_looks_only_after_its_end";
    let Some(_turn) = over_udp(test) else { return };
    expect_all_to_arrive_later();
}

/// Takes one message, and ends. On order it ends without dropping its bundle.
fn taker(_: Orders) {
    let mut bundle = Bundle::new(&Node::new().expect("node")).expect("bundle");
    let plain = bundle.endpoint_with_random_key().expect("endpoint");
    let tagged = bundle.tagged_endpoint_with_random_key(tagged::Settings::default()).expect("endpoint");
    let count = Rc::new(Cell::new(0));
    let seen = count.clone();
    bundle.on(plain, COUNT, move |_| seen.set(seen.get() + 1)).expect("on");
    let receive = |bundle: &mut Bundle| {
        let mut calls = bundle.tagged(tagged).expect("ours");
        calls.try_receive(Pattern::tagged(1), vec![0; 100], 0).map_err(|(e, _)| e).expect("room");
    };
    receive(&mut bundle);
    tell(Address::of(&bundle, plain));
    tell(Address::of(&bundle, tagged));
    let mut received = 0;
    poll_until(&mut bundle, "two messages", |bundle| {
        received += u32::from(bundle.next_completion().is_some());
        count.get() == 1 && received == 1
    });
}

fn expect_to_be_told_stored() {
    let taker = Peer::start("taker", &[]);
    let (plain, tagged) = (taker.address(), taker.address());
    let mut bundle = Bundle::new(&Node::new().expect("node")).expect("bundle");
    let here = bundle.endpoint_with_random_key().expect("endpoint");
    bundle.map(here, 0, plain.name, plain.key).expect("map");
    let service = Service { reliability: Reliability::Reception, ..Service::default() };
    bundle.set_service(here, service).expect("service");
    let from = bundle.tagged_endpoint_with_random_key(tagged::Settings::default()).expect("endpoint");
    let mut calls = bundle.tagged(from).expect("ours");
    calls.map(0, tagged.name, tagged.key).expect("map");
    calls.try_send_stored(0, Label::tagged(1), vec![1; 100], 5).map_err(|(e, _)| e).expect("room");
    bundle.send(here, 0, COUNT, &[0], b"once").expect("sent");
    let mut outcome = None;
    poll_until(&mut bundle, "the fate of both messages", |bundle| {
        outcome = outcome.take().or_else(|| bundle.next_completion().map(|done| done.outcome));
        outcome.is_some() && bundle.unreceived(here, 0).is_ok_and(|messages| messages == 0)
    });
    assert!(matches!(outcome, Some(Outcome::Sent)), "{outcome:?}");
    for event in events(&mut bundle) {
        assert!(!matches!(event, Event::Returned(_)), "{event:?}");
    }
    taker.finish();
}

#[test]
fn a_receiver_that_ends_has_told_what_it_took() {
    let _turn = turn("a receiver that ends");
    expect_to_be_told_stored();
}

#[test]
fn a_receiver_that_ends_has_told_what_it_took_over_udp() {
    let Some(_turn) = over_udp("a_receiver_that_ends_has_told_what_it_took_over_udp") else { return };
    for _ in 0..5 {
        expect_to_be_told_stored();
    }
}

/// Injects one message, its first to that peer, frees the endpoint, and ends.
fn injector(orders: Orders) {
    let there = Address::parse(&orders.words[0]);
    let mut bundle = Bundle::new(&Node::new().expect("node")).expect("bundle");
    let from = bundle.tagged_endpoint_with_random_key(tagged::Settings::default()).expect("endpoint");
    let mut calls = bundle.tagged(from).expect("ours");
    calls.map(0, there.name, there.key).expect("map");
    calls.try_inject(0, Label::tagged(1), b"last words").expect("room");
    assert_eq!(calls.unsent(0), Ok(1), "there is no session yet");
    match orders.words[1].as_str() {
        "frees" => bundle.free(from).expect("ours"),
        "drops" => {}
        other => panic!("{other}: an injector frees its endpoint first, or drops its bundle"),
    }
}

fn expect_the_injected(how: &str) {
    let mut bundle = Bundle::new(&Node::new().expect("node")).expect("bundle");
    let here = bundle.tagged_endpoint_with_random_key(tagged::Settings::default()).expect("endpoint");
    let mut calls = bundle.tagged(here).expect("ours");
    calls.try_receive(Pattern::tagged(1), vec![0; 100], 0).map_err(|(e, _)| e).expect("room");
    let injector = Peer::start("injector", &[&Address::of(&bundle, here).to_string(), how]);
    let mut done = None;
    poll_until(&mut bundle, "the message", |bundle| {
        done = bundle.next_completion();
        done.is_some()
    });
    let done = done.expect("just there");
    assert!(matches!(&done.outcome, Outcome::Received(r) if r.stored == 10), "{:?}", done.outcome);
    injector.finish();
}

#[test]
fn an_injected_message_arrives_though_its_sender_ends_before_there_is_a_session() {
    let _turn = turn("an injector");
    ["frees", "drops"].into_iter().for_each(expect_the_injected);
}

#[test]
fn an_injected_message_arrives_over_udp_though_its_sender_ends_before_there_is_a_session() {
    let test = "an_injected_message_arrives_over_udp_though_its_sender_ends_before_there_is_a_session";
    let Some(_turn) = over_udp(test) else { return };
    ["frees", "drops"].into_iter().for_each(expect_the_injected);
}

/// Drops the token of a request, answers another one later, drains and ends.
fn answerer(orders: Orders) {
    let (mut bundle, here) = bundle_with_endpoint();
    let tokens = Rc::new(RefCell::new(Vec::new()));
    let (first, second) = (tokens.clone(), tokens.clone());
    bundle.on(here, DROPPED, move |m| first.borrow_mut().push((false, m.defer()))).expect("on");
    bundle.on(here, ANSWERED, move |m| second.borrow_mut().push((true, m.defer()))).expect("on");
    tell(Address::of(&bundle, here));
    poll_until(&mut bundle, "both requests", |_| tokens.borrow().len() == 2);
    for (answers, token) in tokens.take() {
        let token = token.expect("a request");
        match answers {
            true => token.reply_from_afar(ANSWER, &[], b"late").expect("small"),
            false => drop(token),
        }
    }
    if orders.words[0] == "drains" {
        bundle.drain();
    }
}

fn expect_the_ends_of_requests(how: &str) {
    let answerer = Peer::start("answerer", &[how]);
    let there = answerer.address();
    let (mut bundle, here) = bundle_with_endpoint();
    bundle.map(here, 0, there.name, there.key).expect("map");
    let answers = Rc::new(Cell::new(0));
    let seen = answers.clone();
    bundle.on(here, ANSWER, move |_| seen.set(seen.get() + 1)).expect("on");
    bundle.request(here, 0, DROPPED, &[], b"").expect("sent");
    bundle.request(here, 0, ANSWERED, &[], b"").expect("sent");
    bundle.drain();
    for event in events(&mut bundle) {
        assert!(!matches!(event, Event::Returned(_)), "{event:?}");
    }
    assert_eq!(answers.get(), 1);
    answerer.finish();
}

#[test]
fn requests_whose_tokens_were_dropped_or_used_elsewhere_end_before_the_program() {
    let _turn = turn("ends of requests");
    for how in ["drains", "ends"] {
        (0..4).for_each(|_| expect_the_ends_of_requests(how));
    }
}

#[test]
fn requests_whose_tokens_were_dropped_or_used_elsewhere_end_before_the_program_over_udp() {
    let test = "requests_whose_tokens_were_dropped_or_used_elsewhere_end_before_the_program_over_udp";
    let Some(_turn) = over_udp(test) else { return };
    for how in ["drains", "ends"] {
        (0..4).for_each(|_| expect_the_ends_of_requests(how));
    }
}

#[test]
fn an_end_waits_no_longer_than_it_may_and_counts_what_is_lost() {
    let Some(_turn) = over_udp("an_end_waits_no_longer_than_it_may_and_counts_what_is_lost") else { return };
    let node = Node::new().expect("node");
    let receiver = Peer::start("receiver", &[]);
    let there = receiver.address();
    let settings = Settings { linger: Some(Duration::from_millis(100)), ..Settings::default() };
    let mut before = 0;
    for lingers in [true, false] {
        let mut bundle = Bundle::with_settings(&node, settings).expect("bundle");
        let here = bundle.endpoint(Key(1)).expect("endpoint");
        bundle.map(here, 0, there.name, there.key).expect("map");
        // Makes a session. These messages have no handler, so they come back.
        bundle.send(here, 0, 99, &[], b"").expect("sent");
        bundle.drain();
        receiver.stop();
        bundle.send(here, 0, 99, &[], b"").expect("sent");
        bundle.send(here, 0, 99, &[], b"").expect("sent");
        let begin = Instant::now();
        match lingers {
            true => drop(bundle),
            // The message before them may count too, because the receiver has not confirmed that its program took it.
            false => assert!((2..=3).contains(&bundle.close(Duration::ZERO)), "nobody has acknowledged two of them"),
        }
        assert!(begin.elapsed() < BOUND / 10, "{:?}", begin.elapsed());
        assert!(!lingers || begin.elapsed() >= Duration::from_millis(100));
        let unsettled = node.unsettled();
        assert!((2..=3).contains(&(unsettled - before)), "{before} before, now {unsettled}");
        before = unsettled;
        receiver.go_on();
    }
    receiver.finish();
}

/// Sends ten messages to a stopped receiver, which dies or is given up while their sender ends.
#[test]
fn what_comes_back_while_a_bundle_ends_is_counted() {
    let Some(_turn) = over_udp("what_comes_back_while_a_bundle_ends_is_counted") else { return };
    let node = Node::new().expect("node");
    for dies in [true, false] {
        let mut receiver = Peer::start("receiver", &[]);
        let there = receiver.address();
        let settings = Settings { suspicion: Some(Duration::from_millis(200)), ..Settings::default() };
        let mut bundle = Bundle::with_settings(&node, settings).expect("bundle");
        let here = bundle.endpoint(Key(1)).expect("endpoint");
        bundle.map(here, 0, there.name, there.key).expect("map");
        bundle.request(here, 0, 99, &[], b"").expect("sent");
        bundle.drain();
        receiver.stop();
        for number in 0..10 {
            bundle.send(here, 0, COUNT, &[number], b"").expect("sent");
        }
        if dies {
            receiver.kill();
        }
        let before = node.unsettled();
        let lost = bundle.close(BOUND);
        assert!((10..=11).contains(&lost), "{lost} are told as lost; it dies: {dies}");
        assert_eq!(node.unsettled() - before, lost);
    }
}

/// A bundle with an endpoint for tagged messages.
fn tagged() -> (Bundle, Endpoint) {
    let mut bundle = Bundle::new(&Node::new().expect("node")).expect("bundle");
    let here = bundle.tagged_endpoint_with_random_key(tagged::Settings::default()).expect("endpoint");
    (bundle, here)
}

fn map_tagged(bundle: &mut Bundle, here: Endpoint, there: Address) {
    bundle.tagged(here).expect("ours").map(0, there.name, there.key).expect("map");
}

fn inject(bundle: &mut Bundle, here: Endpoint, bytes: usize) {
    let injected = bundle.tagged(here).expect("ours").try_inject(0, Label::tagged(1), &vec![7; bytes]);
    injected.expect("room");
}

/// Has a bundle in another thread receive one message, starting after the time `after`. It goes on until the sender is gone.
fn receive_in_a_thread(after: Duration) -> (Address, std::thread::JoinHandle<Option<Outcome>>) {
    let (put, address) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        let (mut bundle, here) = tagged();
        put.send(Address::of(&bundle, here)).expect("the test waits");
        bundle.poll_until_within(after, |_| false);
        let mut calls = bundle.tagged(here).expect("ours");
        calls.try_receive(Pattern::tagged(1), vec![0; 200_000], 0).map_err(|(e, _)| e).expect("room");
        let mut done = None;
        bundle.poll_until_within(BOUND, |bundle| {
            done = done.take().or_else(|| bundle.next_completion());
            done.is_some() && bundle.sessions() == 0
        });
        done.map(|done| done.outcome)
    });
    (address.recv().expect("its address"), thread)
}

/// Sends one injected message, polls for the time `before`, and ends. The end must not take longer than sending takes.
fn expect_large_last_words(bytes: usize, before: Duration, receives_after: Duration) {
    let (there, receiver) = receive_in_a_thread(receives_after);
    let (mut bundle, here) = tagged();
    map_tagged(&mut bundle, here, there);
    inject(&mut bundle, here, bytes);
    bundle.poll_until_within(before, |_| false);
    let begin = Instant::now();
    assert_eq!(bundle.close(BOUND), 0);
    assert!(begin.elapsed() < BOUND / 2, "{:?} after all was said", begin.elapsed());
    let outcome = receiver.join().expect("no panic");
    assert!(matches!(&outcome, Some(Outcome::Received(r)) if r.stored == bytes), "{outcome:?}");
}

#[test]
fn last_words_that_are_fetched_arrive_and_are_not_waited_for_afterwards() {
    let _turn = turn("large last words");
    let moment = Duration::from_millis(50);
    // With the end at once, the receiver calls back while the endpoint is closing.
    for before in [Duration::ZERO, moment] {
        for after in [Duration::ZERO, 2 * moment] {
            expect_large_last_words(100_000, before, after);
        }
    }
}

#[test]
fn last_words_for_nobody_are_counted_and_not_waited_for() {
    let _turn = turn("last words for nobody");
    let nobody = {
        let (gone, there) = tagged();
        Address::of(&gone, there)
    };
    let node = Node::new().expect("node");
    let mut bundle = Bundle::new(&node).expect("bundle");
    let here = bundle.tagged_endpoint_with_random_key(tagged::Settings::default()).expect("endpoint");
    map_tagged(&mut bundle, here, nobody);
    inject(&mut bundle, here, 5);
    let begin = Instant::now();
    assert_eq!((bundle.close(BOUND), node.unsettled()), (1, 1));
    assert!(begin.elapsed() < BOUND / 2, "{:?}", begin.elapsed());
}

thread_local! {
    static KEPT: RefCell<Option<Bundle>> = const { RefCell::new(None) };
}

#[test]
fn a_bundle_in_a_thread_local_variable_ends_with_its_thread() {
    let _turn = turn("a bundle in a thread-local variable");
    let (there, receiver) = receive_in_a_thread(Duration::ZERO);
    let sender = std::thread::spawn(move || {
        KEPT.with_borrow_mut(|kept| {
            let (mut bundle, here) = tagged();
            // Its packet buffer, another thread-local variable, is made later and so is destroyed earlier.
            (0..200).for_each(|_| _ = bundle.poll());
            map_tagged(&mut bundle, here, there);
            inject(&mut bundle, here, 10);
            *kept = Some(bundle);
        });
    });
    sender.join().expect("no panic");
    let outcome = receiver.join().expect("no panic");
    assert!(matches!(&outcome, Some(Outcome::Received(r)) if r.stored == 10), "{outcome:?}");
}

#[test]
fn a_freed_endpoint_tells_nothing_as_stored_that_it_throws_away() {
    let _turn = turn("stored at a freed endpoint");
    let ((mut freed, from), (mut other, to)) = (tagged(), tagged());
    let (first, second) = (Address::of(&freed, from), Address::of(&other, to));
    map_tagged(&mut freed, from, second);
    map_tagged(&mut other, to, first);
    let mut calls = freed.tagged(from).expect("ours");
    calls.try_receive(Pattern::tagged(3), vec![0; 8], 1).map_err(|(e, _)| e).expect("room");
    // The other side does not fetch it, so the freed endpoint waits.
    inject(&mut freed, from, 100_000);
    let both = |freed: &mut Bundle, other: &mut Bundle| {
        (0..20_000).for_each(|_| _ = freed.poll() + other.poll());
    };
    both(&mut freed, &mut other);
    freed.free(from).expect("ours");
    for tag in [3, 4] {
        let mut calls = other.tagged(to).expect("ours");
        calls.try_send_stored(0, Label::tagged(tag), b"in vain!".to_vec(), tag).map_err(|(e, _)| e).expect("room");
        both(&mut freed, &mut other);
        let told = other.next_completion().map(|done| done.outcome);
        assert!(!matches!(told, Some(Outcome::Sent)), "{told:?}");
    }
    assert!(freed.close(Duration::ZERO) >= 1, "the message that nobody fetched");
}

#[test]
fn handlers_of_released_endpoints_do_not_run_while_their_bundle_ends() {
    let _turn = turn("a released endpoint at the end");
    let mut bundle = Bundle::for_any_thread(&Node::new().expect("node"), Settings::default()).expect("bundle");
    let here = bundle.endpoint(Key(2)).expect("endpoint");
    let (ran, seen) = std::sync::mpsc::channel();
    bundle.on(here, COUNT, move |_| _ = ran.send(())).expect("on");
    let name = bundle.name(here).expect("ours");
    let (put, address) = std::sync::mpsc::channel();
    let (over, is_over) = std::sync::mpsc::channel::<()>();
    let sender = std::thread::spawn(move || {
        let (mut other, there) = tagged();
        put.send(Address::of(&other, there)).expect("the test waits");
        let (mut sender, from) = bundle_with_endpoint();
        sender.map(from, 0, name, Key(2)).expect("map");
        while is_over.try_recv().is_err() {
            let _ = sender.try_send(from, 0, COUNT, &[], b"");
            sender.poll();
            other.poll();
        }
    });
    // This keeps the end waiting: a message that nobody fetches.
    let there = address.recv().expect("its address");
    let from = bundle.tagged_endpoint_with_random_key(tagged::Settings::default()).expect("endpoint");
    bundle.tagged(from).expect("ours").map(0, there.name, there.key).expect("map");
    bundle.tagged(from).expect("ours").try_inject(0, Label::tagged(1), &[7; 100_000]).expect("room");
    bundle.poll_until_within(BOUND, |_| seen.try_recv().is_ok());
    let moving = bundle.release(here).expect("ours");
    while seen.try_recv().is_ok() {}
    bundle.close(Duration::from_millis(100));
    assert_eq!(seen.try_iter().count(), 0, "messages that a handler took while the bundle ended");
    drop(moving);
    over.send(()).expect("it goes on");
    sender.join().expect("no panic");
}
