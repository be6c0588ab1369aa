//! Processes of other users.

use crate::hostile::{attack, ByHand};
use crate::support::{
    contents, left_out, poll_until, raw, returns_of, tell, turn, wait_until, Address, Census, Dice, Order, Orders,
    Peer, BOUND,
};
use crate::{census, expect_back, start, start_with, Client, ANSWER, ECHO, QUIET};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};
use weft::am::Message;
use weft::{Admission, Bundle, Certainty, Endpoint, EndpointId, Key, Name, Node, Reason, Returned, Uid, Waited};

const FOREIGNER: u32 = 65_533;

/// Makes this thread, and those that it starts, run as another user. Reports to the test and returns false if that is not allowed.
pub fn become_foreigner() -> bool {
    become_user(FOREIGNER)
}

fn become_user(uid: u32) -> bool {
    let uid = rustix::thread::Uid::from_raw(uid);
    if let Err(why) = rustix::thread::set_thread_res_uid(uid, uid, uid) {
        tell(format!("left out: {why}"));
        return false;
    }
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).expect("die with the parent");
    true
}

/// Hears from a child that should become another user. `None`, with a report, if it may not.
pub fn hear_foreigner(child: &Peer) -> Option<String> {
    Some(child.hear()).filter(|line| !is_left_out(line))
}

/// Turns into another user, then calls, is called, and knocks by hand.
pub fn foreigner(orders: Orders) {
    let there = Address::parse(&orders.words[0]);
    if !become_foreigner() {
        return;
    }
    let mut bundle = Bundle::new(&Node::new().expect("node")).expect("bundle");
    let here = bundle.endpoint_with_random_key().expect("endpoint");
    assert_eq!(bundle.name(here).expect("name").uid, Uid(FOREIGNER));
    let returns = returns_of(&mut bundle, here);
    bundle.map(here, 0, there.name, there.key).expect("map");
    bundle.request(here, 0, ECHO, &[1], b"let me in").expect("mapped");
    poll_until(&mut bundle, "a return", |_| !returns.borrow().is_empty());
    let back = returns.borrow_mut().remove(0);
    assert_eq!((back.reason, back.certainty), (Reason::ForeignUser, Certainty::NotDelivered));
    assert_eq!((back.args, back.payload), (vec![1], b"let me in".to_vec()));
    // It learns neither whether the key was right nor whether the endpoint exists.
    let own = bundle.name(here).expect("name");
    for address in [
        there,
        Address { key: Key(1), ..there },
        Address { name: Name { endpoint: EndpointId(9), ..there.name }, ..there },
    ] {
        let socket = raw::connect(&there.name).expect("connect");
        raw::say(&socket, &raw::hello(&own, &address).to_bytes());
        assert_eq!(raw::hear(&socket).refusal(), Some(Reason::ForeignUser));
        raw::expect_end(&socket, "a foreigner's hello");
    }
    tell(Address::of(&bundle, here));
    orders.serve(&mut bundle, |_, _| {});
}

#[test]
fn another_user_is_refused_and_refuses() {
    let _turn = turn("another user");
    let (mut peer, before, there, _) = start();
    let foreigner = Peer::start("foreigner", &[&there.to_string()]);
    let Some(answer) = hear_foreigner(&foreigner) else {
        // What can still be tested: a name that states another user is not believed (returns.rs), and our own user is served.
        Client::new(there).ask(1);
        return peer.finish();
    };
    let Address { name, key } = Address::parse(&answer);
    let mut bundle = Bundle::new(&Node::new().expect("node")).expect("bundle");
    let here = bundle.endpoint_with_random_key().expect("endpoint");
    let returns = returns_of(&mut bundle, here);
    for (uid, reason) in [(name.uid, Reason::ForeignUser), (there.name.uid, Reason::WrongOwner)] {
        bundle.map(here, 0, Name { uid, ..name }, key).expect("map");
        bundle.send(here, 0, ECHO, &[7], b"from root").expect("mapped");
        poll_until(&mut bundle, "a return", |_| !returns.borrow().is_empty());
        let back = returns.borrow_mut().remove(0);
        assert_eq!((back.reason, back.certainty), (reason, Certainty::NotDelivered));
        assert_eq!(back.payload, b"from root");
    }
    foreigner.finish();
    expect_back(&mut peer, before, "a foreigner");
    peer.finish();
}

/// A bundle with an endpoint that admits all users, echoes, and counts the answers that are right.
pub fn open_bundle() -> (Bundle, Endpoint, Rc<Cell<u32>>) {
    let mut bundle = Bundle::new(&Node::new().expect("node")).expect("bundle");
    let here = bundle.endpoint_with_random_key().expect("endpoint");
    bundle.set_admission(here, Admission::AnyUser).expect("endpoint");
    let answers = Rc::new(Cell::new(0));
    let seen = answers.clone();
    bundle.on(here, ECHO, |m| m.reply(ANSWER, m.args(), m.payload()).expect("a request")).expect("on");
    bundle
        .on(here, ANSWER, move |m| {
            let (args, payload) = contents(m.args()[0], 3, m.payload().len());
            assert!(m.args()[1..] == args && m.payload() == payload, "an answer has the contents of its request");
            seen.set(seen.get() + 1);
        })
        .expect("on");
    (bundle, here, answers)
}

const SIZES: [usize; 8] = [0, 16, 64, 65, 300, 4096, 20_000, 65_536];

/// Sends requests of all sizes and waits for the answers, asleep now and then.
pub fn exchange(bundle: &mut Bundle, here: Endpoint, answers: &Cell<u32>) {
    let before = answers.get();
    for round in 0..40 {
        let (mut args, payload) = contents(round, 3, SIZES[round as usize % SIZES.len()]);
        args.insert(0, round);
        bundle.request(here, 0, ECHO, &args, &payload).expect("mapped");
        if round % 10 == 9 {
            bundle.set_spin_limit(Duration::ZERO);
            while answers.get() < before + round + 1 {
                assert_ne!(bundle.wait(Some(BOUND)), Waited::Nothing, "an answer within {BOUND:?}");
            }
        }
    }
    assert_eq!((answers.get(), bundle.counters().returned), (before + 40, 0));
}

/// A process of another user, which admits all users as well.
pub fn guest(orders: Orders) {
    let [there, closed] = [0, 1].map(|word| Address::parse(&orders.words[word]));
    if !become_foreigner() {
        return;
    }
    let (mut bundle, here, answers) = open_bundle();
    bundle.map(here, 0, there.name, there.key).expect("map");
    exchange(&mut bundle, here, &answers);
    // An endpoint of the same bundle that does not admit others, called over the existing session with the right key.
    let returns = returns_of(&mut bundle, here);
    bundle.map(here, 1, closed.name, closed.key).expect("map");
    bundle.request(here, 1, ECHO, &[1, 2], b"let me in").expect("mapped");
    poll_until(&mut bundle, "a return", |_| !returns.borrow().is_empty());
    let back = returns.borrow_mut().remove(0);
    assert_eq!((back.reason, back.certainty), (Reason::ForeignUser, Certainty::NotDelivered));
    tell(Address::of(&bundle, here));
    orders.serve(&mut bundle, |_, _| {});
}

#[test]
fn other_users_are_served_and_serve_where_endpoints_say_so() {
    let _turn = turn("a guest");
    let (mut bundle, here, answers) = open_bundle();
    let closed = bundle.endpoint_with_random_key().expect("endpoint");
    let before = Census::take();
    let words = [Address::of(&bundle, here), Address::of(&bundle, closed)].map(|address| address.to_string());
    let guest = Peer::start("guest", &[&words[0], &words[1]]);
    let line = guest.hear_polling(&mut bundle);
    if is_left_out(&line) {
        return;
    }
    let there = Address::parse(&line);
    // Now the other way, over the session that the guest made.
    bundle.map(here, 0, there.name, there.key).expect("map");
    exchange(&mut bundle, here, &answers);
    assert_eq!(bundle.sessions(), 1);
    // An endpoint that admits only its own user can neither send there nor get answers.
    let returns = returns_of(&mut bundle, closed);
    bundle.map(closed, 0, there.name, there.key).expect("map");
    bundle.request(closed, 0, ECHO, &[1], b"").expect("mapped");
    poll_until(&mut bundle, "a return", |_| !returns.borrow().is_empty());
    assert_eq!(returns.borrow()[0].reason, Reason::ForeignUser);
    drop(guest);
    poll_until(&mut bundle, "all to be given back", |_| Census::take() == before);
}

/// A process of the overflow user. It answers a call to a name that claims to be our user's, and then calls an endpoint that admits
/// no others over the session that it got.
pub fn forger(orders: Orders) {
    let closed = Address::parse(&orders.words[0]);
    if !become_user(Uid::OVERFLOW.0) {
        return;
    }
    let epoch = weft_wire::Epoch(Dice::fresh("forger").roll());
    let listener = raw::listen(epoch);
    let key = Key(1);
    tell(Address { name: Name { epoch, ..closed.name }, key });
    let mut session = ByHand::accept(&listener, key);
    session.open(&closed);
    session.request(ECHO);
    let back = session.await_record(weft_wire::Kind::Return);
    tell(Reason::from_code(back.op()).expect("a reason"));
    while orders.wait().is_some() {}
}

#[test]
fn a_forged_name_makes_nobody_our_user() {
    let _turn = turn("a forger");
    let (mut bundle, here, _) = open_bundle();
    let closed = bundle.endpoint_with_random_key().expect("endpoint");
    bundle.on(closed, ECHO, |_| panic!("this endpoint admits its own user only")).expect("on");
    let forger = Peer::start("forger", &[&Address::of(&bundle, closed).to_string()]);
    let Some(line) = hear_foreigner(&forger) else { return };
    let there = Address::parse(&line);
    assert_eq!(there.name.uid, bundle.name(closed).expect("endpoint").uid, "the name is forged");
    bundle.map(here, 0, there.name, there.key).expect("map");
    bundle.request(here, 0, QUIET, &[], b"").expect("mapped");
    assert_eq!(forger.hear_polling(&mut bundle), Reason::ForeignUser.to_string());
    forger.finish();
}

/// A process of another user, with more bundles than may have sessions.
pub fn crowd(orders: Orders) {
    let there = Address::parse(&orders.words[0]);
    if !become_foreigner() {
        return;
    }
    let node = Node::new().expect("node");
    let (mut served, mut refused) = (Vec::new(), 0);
    for _ in 0..SESSIONS_OF_A_USER + 8 {
        let mut bundle = Bundle::new(&node).expect("bundle");
        let here = bundle.endpoint_with_random_key().expect("endpoint");
        bundle.set_admission(here, Admission::AnyUser).expect("endpoint");
        let returns = returns_of(&mut bundle, here);
        bundle.map(here, 0, there.name, there.key).expect("map");
        bundle.request(here, 0, QUIET, &[], b"").expect("mapped");
        poll_until(&mut bundle, "an end", |bundle| bundle.counters().ended > 0 || !returns.borrow().is_empty());
        let reason = returns.borrow().first().map(|back| back.reason);
        match reason {
            None => served.push(bundle),
            Some(reason) => {
                assert_eq!(reason, Reason::NoRoom);
                refused += 1;
            }
        }
    }
    tell(format!("{} {refused}", served.len()));
    assert_eq!(orders.wait().as_deref(), Some("knock"));
    // A thousand callers that do not know the key, and some that know it and then stay silent.
    let own = Name { uid: Uid(FOREIGNER), ..raw::nobody(&there.name) };
    for number in 0..1000u64 {
        let wrong = Address { key: Key(there.key.0 ^ 1 << (number % 64)), ..there };
        let socket = raw::connect(&there.name).expect("connect");
        raw::say(&socket, &raw::hello(&own, &wrong).to_bytes());
        assert_eq!(raw::hear(&socket).refusal(), Some(Reason::ForeignUser));
    }
    tell("refused");
    while orders.wait().is_some() {}
}

/// As [`weft`]'s bound.
const SESSIONS_OF_A_USER: usize = 16;

#[test]
fn one_user_takes_no_more_than_its_share_and_wrong_keys_leave_nothing() {
    let _turn = turn("a crowd");
    let (mut peer, before, there, _) = start_with(&["open"]);
    let mut client = Client::new(there);
    client.ask(1);
    let mut crowd = Peer::start("crowd", &[&there.to_string()]);
    let Some(numbers) = hear_foreigner(&crowd) else { return peer.finish() };
    assert_eq!(numbers, format!("{SESSIONS_OF_A_USER} 8"));
    let with_crowd = census(&mut peer);
    assert_eq!(crowd.ask("knock"), "refused");
    expect_back(&mut peer, with_crowd, "a thousand wrong keys");
    // Our own user has its own share.
    Client::new(there).ask(1);
    client.ask(1);
    crowd.finish();
    drop(client);
    expect_back(&mut peer, before, "the crowd");
    peer.finish();
}

/// A bundle of another user, which asks an endpoint that moves.
struct Commuter {
    bundle: Bundle,
    here: Endpoint,
    asked: u32,
    answers: Rc<Cell<u32>>,
    returns: Rc<RefCell<Vec<Returned>>>,
}

impl Commuter {
    fn new(node: &Node, there: Address) -> Commuter {
        let mut bundle = Bundle::new(node).expect("bundle");
        let here = bundle.endpoint_with_random_key().expect("endpoint");
        bundle.set_admission(here, Admission::AnyUser).expect("endpoint");
        bundle.map(here, 0, there.name, there.key).expect("map");
        let (answers, returns) = (Rc::new(Cell::new(0)), returns_of(&mut bundle, here));
        let seen = answers.clone();
        let take = move |m: &mut Message<'_>| {
            let number = m.args()[0];
            let (args, payload) = contents(number, 3, SIZES[number as usize % SIZES.len()]);
            assert!(m.args()[1..] == args && m.payload() == payload, "an answer has the contents of its request");
            seen.set(seen.get() + 1);
        };
        bundle.on(here, ANSWER, take).expect("on");
        Commuter { bundle, here, asked: 0, answers, returns }
    }

    /// Sends one more request, of all sizes in turn. Up to 16 are under way.
    fn ask(&mut self) {
        let number = self.asked;
        let (mut args, payload) = contents(number, 3, SIZES[number as usize % SIZES.len()]);
        args.insert(0, number);
        self.bundle.request(self.here, 0, ECHO, &args, &payload).expect("mapped");
        self.asked += 1;
        self.settle(16);
    }

    /// Polls until fewer than `most` requests are under way.
    fn settle(&mut self, most: u32) {
        let (asked, answers, returns) = (self.asked, &self.answers, &self.returns);
        let ended = || answers.get() + returns.borrow().len() as u32;
        poll_until(&mut self.bundle, "answers of an endpoint that moves", |_| asked - ended() < most);
    }
}

/// A process of another user with a number of bundles, each with a session of its own.
pub fn commuters(orders: Orders) {
    let [there, closed] = [0, 1].map(|word| Address::parse(&orders.words[word]));
    let bundles: usize = orders.words[2].parse().expect("a number");
    if !become_foreigner() {
        return;
    }
    let node = Node::new().expect("node");
    let mut all: Vec<Commuter> = (0..bundles).map(|_| Commuter::new(&node, there)).collect();
    tell("here");
    let mut are_under_way = false;
    loop {
        if are_under_way {
            all.iter_mut().for_each(Commuter::ask);
        }
        match orders.look() {
            Order::None if are_under_way => {}
            Order::None => std::thread::sleep(Duration::from_millis(1)),
            Order::End => return,
            Order::Line(line) => match &*line {
                // Each sends requests; reports once all are answered.
                "ask" => {
                    all.iter_mut().for_each(Commuter::ask);
                    all.iter_mut().for_each(|one| one.settle(1));
                    tell("asked");
                }
                "go on" => are_under_way = true,
                "enough" => {
                    are_under_way = false;
                    all.iter_mut().for_each(|one| one.settle(1));
                    let asked: u32 = all.iter().map(|one| one.asked).sum();
                    let answered: u32 = all.iter().map(|one| one.answers.get()).sum();
                    tell(format!("{asked} {answered}"));
                }
                // One more bundle calls the open endpoint, and the first of them calls the closed one. Reports why each is refused.
                "intrude" => {
                    let mut one_more = Commuter::new(&node, there);
                    one_more.ask();
                    one_more.settle(1);
                    let one = &mut all[0];
                    one.bundle.map(one.here, 1, closed.name, closed.key).expect("map");
                    one.bundle.request(one.here, 1, ECHO, &[1], b"").expect("mapped");
                    one.asked += 1;
                    one.settle(1);
                    let back = [&one_more, one].map(|o| o.returns.borrow_mut().pop().map(|back| back.reason));
                    one.asked -= 1;
                    tell(format!("{back:?}"));
                }
                other => panic!("order {other:?}"),
            },
        }
    }
}

/// Moves an endpoint between two bundles of ours while a number of sessions of another user talk to it, and checks which are
/// served.
fn commute(bundles: usize) {
    let node = Node::new().expect("node");
    let mut ours = [(); 2].map(|()| Bundle::new(&node).expect("bundle"));
    let mut its = [(); 2].map(|()| ours[0].endpoint_with_random_key().expect("endpoint"));
    let addresses = its.map(|it| Address::of(&ours[0], it).to_string());
    for it in its {
        ours[0].on(it, ECHO, |m| m.reply(ANSWER, m.args(), m.payload()).expect("once")).expect("on");
    }
    ours[0].set_admission(its[0], Admission::AnyUser).expect("endpoint");
    let mut peer = Peer::start("commuters", &[&addresses[0], &addresses[1], &bundles.to_string()]);
    let poll_both = |ours: &mut [Bundle; 2]| {
        // One bundle takes what the other one forwards; neither sleeps here.
        ours.iter_mut().map(Bundle::poll).sum::<u32>()
    };
    let hear = |peer: &Peer, ours: &mut [Bundle; 2]| {
        let mut line = None;
        wait_until("a line of another user's", || {
            (0..1000).for_each(|_| _ = poll_both(ours));
            line = peer.overhear();
            line.is_some()
        });
        line.expect("just heard")
    };
    if is_left_out(&peer.hear()) {
        return;
    }
    peer.say("ask");
    assert_eq!(hear(&peer, &mut ours), "asked");
    assert_eq!(ours[0].sessions(), bundles);
    // Both endpoints go to and fro under traffic, until the user has as many sessions with the other bundle as its quota allows.
    peer.say("go on");
    let most = (SESSIONS_OF_A_USER - bundles).min(bundles);
    let mut moves = 0;
    while moves < 41 || moves % 2 == 0 || (ours[1].sessions() < most && moves < 4001) {
        let before: u64 = ours.iter().map(|o| o.counters().requests_delivered).sum();
        wait_until("traffic", || {
            (0..100).for_each(|_| _ = poll_both(&mut ours));
            ours.iter().map(|o| o.counters().requests_delivered).sum::<u64>() > before + 100
        });
        let (from, to) = (moves % 2, (moves + 1) % 2);
        for it in &mut its {
            let moving = ours[from].release(*it).expect("it is here");
            *it = ours[to].adopt(moving).expect("of this node");
        }
        moves += 1;
    }
    peer.say("enough");
    let line = hear(&peer, &mut ours);
    let (asked, answered) = line.split_once(' ').expect("two numbers");
    assert_eq!(asked, answered, "requests, and answers to them");
    // The user has no more sessions than its quota, with both bundles together, and is refused where the endpoint was before.
    let sessions = [ours[0].sessions(), ours[1].sessions()];
    eprintln!("{bundles} sessions of another user's: {asked} requests while an endpoint moved {moves} times; {sessions:?} sessions");
    assert_eq!(sessions[0], bundles);
    assert_eq!(sessions[1], most, "as many as it may still have");
    peer.say("intrude");
    let reason = if bundles * 2 < SESSIONS_OF_A_USER { None } else { Some(Reason::NoRoom) };
    assert_eq!(hear(&peer, &mut ours), format!("{:?}", [reason, Some(Reason::ForeignUser)]));
    // At its new place the endpoint admits only its own user.
    ours[1].set_admission(its[0], Admission::OwnUser).expect("it is here");
    let delivered: u64 = ours.iter().map(|o| o.counters().requests_delivered).sum();
    peer.say("ask");
    assert_eq!(hear(&peer, &mut ours), "asked");
    assert_eq!(ours.iter().map(|o| o.counters().requests_delivered).sum::<u64>(), delivered, "nothing more gets in");
    peer.say("enough");
    let after = hear(&peer, &mut ours);
    let asked: usize = asked.parse().expect("a number");
    assert_eq!(after, format!("{} {answered}", asked + bundles), "all came back");
    let violations: u64 = ours.iter().map(|o| o.counters().violations).sum();
    assert_eq!(violations, 0);
    peer.finish();
}

#[test]
fn another_user_keeps_talking_to_an_endpoint_that_moves_and_is_bounded_where_it_lives() {
    let _turn = turn("another user and a moving endpoint");
    commute(2);
}

#[test]
fn a_user_with_all_its_sessions_keeps_them_when_an_endpoint_moves_and_gets_no_more() {
    let _turn = turn("a crowd and a moving endpoint");
    commute(SESSIONS_OF_A_USER);
}

/// Flows of a process that asks and does not read, the requests of each at a time, and the size of an answer.
const GLUTTON_FLOWS: u32 = 20;
const GLUTTON_WINDOW: u32 = 32;
const GLUTTON_BYTES: usize = 65_536;

/// A process of another user, which sends requests and reads the answers only when told to.
pub fn glutton(orders: Orders) {
    let there = Address::parse(&orders.words[0]);
    if !become_foreigner() {
        return;
    }
    let (mut bundle, here, _) = open_bundle();
    let (answers, returns) = (Rc::new(Cell::new(0)), returns_of(&mut bundle, here));
    let seen = answers.clone();
    let take = move |m: &mut Message<'_>| {
        assert!(m.payload().len() == GLUTTON_BYTES && m.payload().iter().all(|&byte| byte == 7));
        seen.set(seen.get() + 1);
    };
    bundle.on(here, ANSWER, take).expect("on");
    for flow in 0..GLUTTON_FLOWS {
        bundle.map(here, flow, there.name, there.key).expect("map");
        bundle.request(here, flow, ECHO, &[], b"").expect("mapped");
        poll_until(&mut bundle, "an answer", |_| answers.get() == flow + 1);
    }
    tell("open");
    let mut flows = 0..GLUTTON_FLOWS;
    while let Some(order) = orders.wait() {
        if order == "ask" {
            for flow in flows.by_ref().take(GLUTTON_FLOWS as usize / 2) {
                for _ in 0..GLUTTON_WINDOW {
                    bundle.try_request(here, flow, ECHO, &[], b"").expect("room for so many");
                }
            }
            tell("asked");
        } else {
            let asked = GLUTTON_FLOWS * (1 + GLUTTON_WINDOW);
            let ended = || answers.get() + returns.borrow().len() as u32;
            poll_until(&mut bundle, "all to end", |_| ended() == asked);
            assert!(returns.borrow().iter().all(|back| back.reason == Reason::QueueFull));
            tell(format!("{} {}", answers.get(), returns.borrow().len()));
        }
    }
}

/// Serves a process that does not read its answers, at an endpoint that has moved or has not.
fn feed(has_moved: bool) {
    let node = Node::new().expect("node");
    let mut ours = [(); 2].map(|()| Bundle::new(&node).expect("bundle"));
    let it = ours[0].endpoint_with_random_key().expect("endpoint");
    ours[0].set_admission(it, Admission::AnyUser).expect("endpoint");
    let served = Rc::new(Cell::new(0));
    let count = served.clone();
    let give = move |m: &mut Message<'_>| {
        count.set(count.get() + 1);
        m.reply(ANSWER, &[], &[7; GLUTTON_BYTES]).expect("once");
    };
    ours[0].on(it, ECHO, give).expect("on");
    let mut peer = Peer::start("glutton", &[&Address::of(&ours[0], it).to_string()]);
    let line = peer.hear_polling(&mut ours[0]);
    if is_left_out(&line) {
        return;
    }
    if has_moved {
        let moving = ours[0].release(it).expect("it is here");
        let _ = ours[1].adopt(moving).expect("of this node");
    }
    let mut asked = GLUTTON_FLOWS;
    let mut meals = [0; 2];
    for meal in &mut meals {
        let before = served.get();
        assert_eq!(peer.ask("ask"), "asked");
        asked += GLUTTON_FLOWS / 2 * GLUTTON_WINDOW;
        wait_until("all requests to be served or refused", || {
            ours.iter_mut().for_each(|bundle| _ = bundle.poll());
            served.get() + ours[0].counters().refused as u32 == asked
        });
        *meal = served.get() - before;
    }
    eprintln!(
        "of one who does not read {meals:?} requests were served, of {} each",
        GLUTTON_FLOWS / 2 * GLUTTON_WINDOW
    );
    assert!(meals[0] > 32, "as much as is to be queued for it: {meals:?}");
    assert_eq!(meals[1], 0, "nothing more is queued for one who does not read");
    peer.say("eat");
    let mut line = None;
    wait_until("all answers to be read", || {
        ours.iter_mut().for_each(|bundle| _ = bundle.poll());
        line = peer.overhear();
        line.is_some()
    });
    assert_eq!(line, Some(format!("{} {}", served.get(), asked - served.get())));
    peer.finish();
}

#[test]
fn answers_that_another_user_does_not_read_are_bounded() {
    let _turn = turn("a glutton");
    feed(false);
}

#[test]
fn answers_of_an_endpoint_that_moved_are_bounded_as_well() {
    let _turn = turn("a glutton and a moved endpoint");
    feed(true);
}

/// A process of another user, which attacks in all ways, each until it is cut off.
pub fn vandal(orders: Orders) {
    let there = Address::parse(&orders.words[0]);
    if !become_foreigner() {
        return;
    }
    let mut dice = Dice::fresh("vandal");
    for word in &orders.words[1..] {
        let way = word.replace('_', " ");
        let me = Name { epoch: weft_wire::Epoch(dice.roll()), uid: Uid(FOREIGNER), ..there.name };
        // A process that was cut off is barred for a while.
        let mut session = None;
        wait_until("to be let in again", || {
            session = ByHand::try_make(&me, &there);
            session.is_some()
        });
        let mut session = session.expect("a session");
        session.open(&there);
        let (since, mut writes) = (Instant::now(), 0u64);
        while !session.is_cut_off() && since.elapsed() < Duration::from_secs(2) {
            for _ in 0..64 {
                attack(&way, &mut session, &mut dice);
            }
            writes += 64;
        }
        tell(format!("{word} {writes} {}", session.is_cut_off()));
    }
    tell("done");
    while orders.wait().is_some() {}
}

#[test]
fn whatever_another_user_does_ends_its_own_session_and_nobody_elses() {
    let _turn = turn("a vandal");
    let (mut peer, before, there, _) = start_with(&["open"]);
    let mut client = Client::new(there);
    client.ask(1);
    let with_client = census(&mut peer);
    let must_be_cut = ["noise", "headers", "cursor", "idle_bells", "wakes"];
    // Wrong lengths may be in a place that the server has already read.
    let may_be_cut = ["lengths", "compute", "bells", "changing", "holes"];
    let place = there.to_string();
    let words: Vec<&str> = [&place[..]].into_iter().chain(must_be_cut).chain(may_be_cut).collect();
    let vandal = Peer::start("vandal", &words);
    let (mut slowest, mut asked) = (Duration::ZERO, 0);
    let (mut said, mut took) = (Vec::new(), Vec::new());
    while said.last().map(String::as_str) != Some("done") {
        if let Some(line) = vandal.overhear() {
            if is_left_out(&line) {
                return peer.finish();
            }
            took.sort_unstable();
            let at = |part: f64| took.get((took.len() as f64 * part) as usize).copied().unwrap_or_default();
            eprintln!("vandal: {line}; an honest client meanwhile: median {:?}, p99 {:?}", at(0.5), at(0.99));
            took.clear();
            said.push(line);
        }
        took.push(client.ask(1));
        slowest = slowest.max(took.last().copied().unwrap_or_default());
        asked += 1;
    }
    eprintln!("an honest client asked {asked} times and waited {slowest:?} at most");
    for way in must_be_cut {
        assert!(
            said.iter().any(|line| line.starts_with(&format!("{way} ")) && line.ends_with("true")),
            "{way}: {said:?}"
        );
    }
    vandal.finish();
    client.ask(1);
    expect_back(&mut peer, with_client, "a vandal");
    drop(client);
    expect_back(&mut peer, before, "the client");
    peer.finish();
}

/// Whether a child reports that it may not become another user. If so, prints that.
pub fn is_left_out(line: &str) -> bool {
    let why = line.strip_prefix("left out: ");
    if let Some(why) = why {
        left_out(&format!("another user's process, for this one may not become another user: {why}"));
    }
    why.is_some()
}
