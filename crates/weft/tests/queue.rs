//! The sending queue: bounds, room, returns, and counts that account for every message.

mod support;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;
use support::{over_udp, turn, wait_until, Dice, BOUND};
use weft::queue::{Bound, Counts, PushError, SendQueue, Unsent};
use weft::{
    Bundle, Certainty, Endpoint, Event, Key, MessageKind, Name, Node, Outgoing, Reason, Returned, SendError, Settings,
    SharedBundle,
};

const NOTE: u8 = 1;
const ASK: u8 = 2;
const NOBODYS: u8 = 9;
const KEY: Key = Key(7);

fn bundle() -> (Bundle, Endpoint) {
    let mut bundle = Bundle::new(&Node::new().expect("node")).expect("bundle");
    let here = bundle.endpoint(KEY).expect("endpoint");
    (bundle, here)
}

/// A receiver, which records its messages.
struct Receiver {
    bundle: Bundle,
    name: Name,
    came: Rc<RefCell<Vec<u32>>>,
}

fn receiver() -> Receiver {
    let (mut bundle, here) = bundle();
    let came: Rc<RefCell<Vec<u32>>> = Rc::default();
    for handler in [NOTE, ASK] {
        let noted = came.clone();
        bundle.on(here, handler, move |m| noted.borrow_mut().push(m.args()[0])).expect("on");
    }
    let name = bundle.name(here).expect("name");
    Receiver { bundle, name, came }
}

/// The accounts of a destination agree.
fn check(counts: Counts) {
    let Counts { pushed, queued, under_way, delivered, not_delivered, unknown, taken_back } = counts;
    assert_eq!(pushed, queued + under_way + delivered + not_delivered + unknown + taken_back, "{counts:?}");
}

fn returned(event: Event) -> Returned {
    match event {
        Event::Returned(message) => *message,
        event => panic!("{event:?}"),
    }
}

/// Takes all events there are.
fn events(queue: &mut SendQueue, bundle: &mut Bundle) -> Vec<Event> {
    bundle.poll();
    std::iter::from_fn(|| queue.next_event(bundle).expect("all are mapped")).collect()
}

fn is_full(result: Result<(), PushError>) -> bool {
    assert!(matches!(result, Ok(()) | Err(PushError::Full)), "{result:?}");
    result.is_err()
}

#[test]
fn a_full_destination_refuses_then_has_room_and_all_arrives_in_order() {
    let _turn = turn("a full destination");
    let (mut bundle, me) = bundle();
    let mut there = receiver();
    bundle.map(me, 3, there.name, KEY).expect("map");
    let mut queue = SendQueue::new(me, Bound { messages: 50, bytes: 4000 });
    // Nobody polls, so nothing is sent.
    let mut pushed = 0;
    while !is_full(queue.push(3, NOTE, &[pushed], b"0123456789abcdef")) {
        pushed += 1;
    }
    assert_eq!((pushed, queue.counts(3).queued), (50, 50), "bounded by messages");
    let mut told = 0;
    wait_until("all to arrive", || {
        there.bundle.poll();
        for event in events(&mut queue, &mut bundle) {
            assert_eq!(event, Event::CanSend { endpoint: me, destination: 3 });
            told += 1;
            assert!(queue.counts(3).queued <= 25, "half of it is free");
        }
        check(queue.counts(3));
        queue.is_settled()
    });
    assert_eq!(told, 1, "once, because one push was refused");
    assert_eq!(*there.came.borrow(), (0..50).collect::<Vec<u32>>());
    assert_eq!(queue.counts(3), Counts { pushed: 50, delivered: 50, ..Counts::default() });
}

#[test]
fn bytes_are_bounded_too_and_what_never_fits_is_told_at_once() {
    let _turn = turn("bounded bytes");
    let (mut bundle, me) = bundle();
    let mut there = receiver();
    bundle.map(me, 0, there.name, KEY).expect("map");
    let mut queue = SendQueue::new(me, Bound { messages: 1000, bytes: 1000 });
    assert_eq!(queue.push(0, NOTE, &[1], &[0; 997]), Err(PushError::TooLarge));
    assert_eq!(queue.push(0, NOTE, &[0; 17], &[]), Err(PushError::TooLarge));
    let mut large = SendQueue::new(me, Bound { messages: 1, bytes: usize::MAX });
    assert_eq!(large.push(0, NOTE, &[], &vec![0; weft::MAX_PAYLOAD + 1]), Err(PushError::TooLarge));
    for n in 0..10 {
        assert_eq!(queue.push(0, NOTE, &[n], &[0; 96]), Ok(()));
    }
    // The larger of the refused ones must fit before room is told.
    assert_eq!(queue.push(0, NOTE, &[10], &[0; 996]), Err(PushError::Full));
    assert_eq!(queue.push(0, NOTE, &[10], &[0; 1]), Err(PushError::Full));
    assert_eq!(queue.push(1, NOTE, &[10], &[0; 996]), Ok(()), "another destination has its own");
    assert_eq!(queue.forget(1).taken_back, 1);
    wait_until("room", || {
        there.bundle.poll();
        events(&mut queue, &mut bundle).contains(&Event::CanSend { endpoint: me, destination: 0 })
    });
    assert_eq!(queue.push(0, NOTE, &[10], &[0; 996]), Ok(()));
    assert_eq!(queue.counts(0).pushed, 11);
}

#[test]
fn what_waits_for_a_peer_that_dies_comes_back_at_once_in_order_with_its_contents() {
    let _turn = turn("a peer that dies");
    let (mut bundle, me) = bundle();
    let (mut there, mut other) = (receiver(), receiver());
    bundle.map(me, 0, there.name, KEY).expect("map");
    bundle.map(me, 1, other.name, KEY).expect("map");
    let mut queue = SendQueue::new(me, Bound { messages: 5000, bytes: 64 << 20 });
    queue.push(0, NOTE, &[0], b"first").expect("room");
    wait_until("the first message", || {
        there.bundle.poll();
        events(&mut queue, &mut bundle);
        queue.is_settled()
    });
    // More than its ring holds.
    let mut pushed = 1;
    while !is_full(queue.push(0, NOTE, &[pushed, 8], &[pushed as u8; 20_000])) {
        pushed += 1;
    }
    queue.push(1, NOTE, &[0], b"to another").expect("room");
    queue.pump(&mut bundle).expect("mapped");
    assert!(queue.counts(0).queued > 0 && queue.counts(0).under_way > 0, "{:?}", queue.counts(0));
    drop(there);
    let (mut back, mut lost) = (Vec::new(), 0);
    wait_until("all to come back", || {
        other.bundle.poll();
        for event in events(&mut queue, &mut bundle) {
            match event {
                Event::PeerLost { destination: 0, reason: Reason::PeerLost, .. } => lost += 1,
                // There is room again.
                Event::CanSend { destination: 0, .. } => assert!(queue.counts(0).queued <= 2500),
                event => back.push(returned(event)),
            }
        }
        check(queue.counts(0));
        queue.is_settled()
    });
    assert_eq!(lost, 1);
    let numbers: Vec<u32> = back.iter().map(|m| m.args[0]).collect();
    let delivered = queue.counts(0).delivered as u32;
    assert_eq!(numbers, (delivered..pushed).collect::<Vec<u32>>());
    for m in &back {
        assert!(m.payload == vec![m.args[0] as u8; 20_000] && m.args[1] == 8 && m.op == NOTE);
        assert_eq!((m.destination, m.completion, m.kind), (Some(0), None, MessageKind::OneWay));
        assert_eq!(m.reason, Reason::PeerLost);
    }
    let unknown = back.iter().filter(|m| m.certainty == Certainty::Unknown).count() as u64;
    assert_eq!((queue.counts(0).unknown, queue.counts(0).not_delivered), (unknown, back.len() as u64 - unknown));
    assert_eq!((queue.counts(1).delivered, &*other.came.borrow()), (1, &vec![0]));
}

/// 10,000 messages for a peer that never existed come back after one call.
fn nobody_is_called_once() {
    let (mut bundle, me) = bundle();
    let there = receiver();
    bundle.map(me, 0, there.name, KEY).expect("map");
    drop(there);
    let mut queue = SendQueue::new(me, Bound { messages: 10_000, bytes: 1 << 20 });
    for n in 0..10_000 {
        queue.push(0, NOTE, &[n], &[]).expect("room");
    }
    let mut back = Vec::new();
    wait_until("all to come back", || {
        back.extend(events(&mut queue, &mut bundle).into_iter().map(returned));
        queue.is_settled()
    });
    assert!(back.iter().all(|m| m.certainty == Certainty::NotDelivered));
    assert_eq!(back.iter().map(|m| m.args[0]).collect::<Vec<_>>(), (0..10_000).collect::<Vec<u32>>());
    assert_eq!(queue.counts(0).not_delivered, 10_000);
    assert!(back.iter().all(|m| m.reason == back[0].reason), "{}", back[0].reason);
}

#[test]
fn what_waits_for_a_peer_that_is_not_there_comes_back_after_one_call() {
    let _turn = turn("a peer that is not there");
    nobody_is_called_once();
}

#[test]
fn what_waits_for_a_peer_of_another_host_that_is_not_there_comes_back_after_one_call() {
    let test = "what_waits_for_a_peer_of_another_host_that_is_not_there_comes_back_after_one_call";
    let Some(_turn) = over_udp(test) else { return };
    let begun = std::time::Instant::now();
    nobody_is_called_once();
    assert!(begun.elapsed() < BOUND / 2, "{:?}", begun.elapsed());
}

#[test]
fn a_refused_message_comes_back_alone_and_others_go_on() {
    let _turn = turn("a refused message");
    let (mut bundle, me) = bundle();
    let mut there = receiver();
    bundle.map(me, 0, there.name, KEY).expect("map");
    let mut queue = SendQueue::new(me, Bound::default());
    for (n, handler) in [NOTE, NOBODYS, NOTE, ASK, NOBODYS, NOTE].into_iter().enumerate() {
        match handler {
            ASK => queue.push_request(0, handler, &[n as u32], b"x").expect("room"),
            _ => queue.push(0, handler, &[n as u32], b"x").expect("room"),
        }
    }
    let mut back = Vec::new();
    wait_until("all to end", || {
        there.bundle.poll();
        back.extend(events(&mut queue, &mut bundle).into_iter().map(returned));
        queue.is_settled()
    });
    assert_eq!(*there.came.borrow(), [0, 2, 3, 5]);
    assert_eq!(back.iter().map(|m| (m.args[0], m.reason)).collect::<Vec<_>>(), [1, 4].map(|n| (n, Reason::NoHandler)));
    assert_eq!(queue.counts(0), Counts { pushed: 6, delivered: 4, not_delivered: 2, ..Counts::default() });
}

#[test]
fn a_programs_own_events_are_left_to_it() {
    let _turn = turn("a program's own events");
    let (mut bundle, me) = bundle();
    let other = bundle.endpoint(KEY).expect("endpoint");
    let mut there = receiver();
    bundle.map(me, 0, there.name, KEY).expect("map");
    bundle.map(other, 0, there.name, KEY).expect("map");
    let mut queue = SendQueue::new(me, Bound::default());
    let mut second = SendQueue::new(me, Bound::default());
    queue.push(0, NOTE, &[1], b"").expect("room");
    assert_eq!(bundle.try_send(other, 0, NOTE, &[2], b""), Err(SendError::Full));
    let own = |op, completion| Outgoing { op, args: &[3], payload: b"own", completion: Some(completion) };
    let (mut seen, mut sent, mut taken_by_itself) = (Vec::new(), 0, false);
    wait_until("all events", || {
        there.bundle.poll();
        bundle.poll();
        // The program takes events itself, has two queues, and sends messages of its own.
        while let Some(event) = bundle.next_event() {
            seen.extend(queue.take(event).and_then(|event| second.take(event)));
        }
        queue.pump(&mut bundle).expect("mapped");
        taken_by_itself |= queue.pop_event().is_some();
        if seen.contains(&Event::CanSend { endpoint: other, destination: 0 }) {
            let next = [own(NOTE, 11), own(NOBODYS, 12)].into_iter().nth(sent);
            sent += usize::from(next.is_some_and(|m| bundle.try_post(other, 0, MessageKind::OneWay, m).is_ok()));
        }
        let is_back = seen.iter().any(|event| matches!(event, Event::Returned(m) if m.completion == Some(12)));
        is_back && seen.contains(&Event::Completed(11)) && queue.is_settled()
    });
    assert!(!taken_by_itself);
    assert_eq!(seen.len(), 3, "nothing of the queue's: {seen:?}");
    assert_eq!((queue.counts(0).delivered, second.counts(0)), (1, Counts::default()));
}

#[test]
fn what_was_not_sent_is_taken_back_and_the_rest_ends_as_it_would_have() {
    let _turn = turn("messages that are taken back");
    let (mut bundle, me) = bundle();
    let mut there = receiver();
    bundle.map(me, 0, there.name, KEY).expect("map");
    let mut queue = SendQueue::new(me, Bound { messages: 4000, bytes: 64 << 20 });
    let mut pushed = 0;
    wait_until("a queue that is full, and something under way", || {
        while !is_full(queue.push_request(0, ASK, &[pushed], &[5; 100])) {
            pushed += 1;
        }
        // The peer sets up the session but takes nothing, because its endpoint is not served yet.
        there.bundle.poll();
        events(&mut queue, &mut bundle);
        queue.counts(0).under_way > 0
    });
    let (waited, under_way) = (queue.counts(0).queued, queue.counts(0).under_way);
    let taken = queue.take_back(0);
    assert_eq!(taken.len() as u64, waited);
    let first = pushed - waited as u32;
    let expected =
        |n: usize| Unsent { kind: MessageKind::Request, op: ASK, args: vec![first + n as u32], payload: vec![5; 100] };
    assert!(taken.iter().enumerate().all(|(n, message)| *message == expected(n)), "in order, with their contents");
    assert!(under_way <= 32);
    let told = events(&mut queue, &mut bundle);
    assert_eq!(told, [Event::CanSend { endpoint: me, destination: 0 }], "there is room again");
    wait_until("the rest to end", || {
        there.bundle.poll();
        assert_eq!(events(&mut queue, &mut bundle), []);
        queue.is_settled()
    });
    check(queue.counts(0));
    assert_eq!(queue.counts(0).taken_back, waited);
    assert_eq!(*there.came.borrow(), (0..first).collect::<Vec<u32>>());
    assert_eq!(queue.take_back(0), []);
    assert_eq!(queue.take_back(5), []);
}

#[test]
fn an_index_that_is_not_mapped_is_an_error_and_holds_up_no_other() {
    let _turn = turn("an index that is not mapped");
    let (mut bundle, me) = bundle();
    let mut there = receiver();
    bundle.map(me, 1, there.name, KEY).expect("map");
    let mut queue = SendQueue::new(me, Bound::default());
    for to in [0, 1, u32::MAX] {
        queue.push(to, NOTE, &[to], b"").expect("room");
    }
    let mut errors = Vec::new();
    wait_until("the mapped one's", || {
        there.bundle.poll();
        bundle.poll();
        match queue.next_event(&mut bundle) {
            Ok(event) => assert_eq!(event, None),
            Err(error) => errors.push(error),
        }
        queue.counts(1).delivered == 1
    });
    assert!(errors.iter().all(|error| matches!(error, SendError::NotMapped(0 | u32::MAX))) && !errors.is_empty());
    assert_eq!(queue.take_back(u32::MAX).len(), 1);
    assert_eq!(queue.pump(&mut bundle), Err(SendError::NotMapped(0)), "it still waits");
    bundle.map(me, 0, there.name, KEY).expect("map");
    wait_until("the one that is mapped by now", || {
        there.bundle.poll();
        events(&mut queue, &mut bundle);
        queue.is_settled()
    });
    assert_eq!(*there.came.borrow(), [1, 0]);
}

#[test]
fn a_new_peer_at_the_index_of_one_that_was_forgotten_is_not_taken_for_it() {
    let _turn = turn("an index that is used again");
    let (mut bundle, me) = bundle();
    let (old, mut new) = (receiver(), receiver());
    bundle.map(me, 0, old.name, KEY).expect("map");
    let mut queue = SendQueue::new(me, Bound::default());
    let mut old = Some(old);
    queue.push(0, NOTE, &[0], b"").expect("room");
    wait_until("a session", || {
        old.as_mut().expect("it lives").bundle.poll();
        events(&mut queue, &mut bundle);
        queue.is_settled()
    });
    for n in 1..100 {
        queue.push(0, NOTE, &[n], b"").expect("room");
    }
    queue.pump(&mut bundle).expect("mapped");
    let last = queue.forget(0);
    check(last);
    assert_eq!((last.pushed, last.under_way, queue.counts(0)), (100, 99, Counts::default()));
    bundle.map(me, 0, new.name, KEY).expect("map");
    drop(old.take());
    for n in 0..50 {
        queue.push(0, NOTE, &[n], b"").expect("room");
    }
    let mut back = 0;
    wait_until("the new one's", || {
        new.bundle.poll();
        for event in events(&mut queue, &mut bundle) {
            // Messages under way to the old peer are reported, but not counted.
            back += u32::from(matches!(event, Event::Returned(_)));
        }
        queue.is_settled()
    });
    assert_eq!(queue.counts(0), Counts { pushed: 50, delivered: 50, ..Counts::default() });
    assert_eq!(*new.came.borrow(), (0..50).collect::<Vec<u32>>());
    assert!(back <= 99);
}

#[test]
fn a_shared_bundle_sends_from_a_queue_too() {
    let _turn = turn("a shared bundle");
    let mut shared = SharedBundle::new(&Node::new().expect("node")).expect("bundle");
    let me = shared.endpoint_with_random_key().expect("endpoint");
    let mut there = receiver();
    shared.map(me, 0, there.name, KEY).expect("map");
    let mut queue = SendQueue::new(me, Bound::default());
    for n in 0..100 {
        queue.push(0, NOTE, &[n], b"shared").expect("room");
    }
    wait_until("all to arrive", || {
        there.bundle.poll();
        shared.poll().expect("no handler");
        assert_eq!(queue.next_event(&mut shared), Ok(None));
        queue.is_settled()
    });
    assert_eq!((queue.counts(0).delivered, there.came.borrow().len()), (100, 100));
}

/// Pushes at random to peers that read, stop reading, die and are replaced. Every message is accounted for at both ends.
fn chaos(rounds: u32) {
    let mut dice = Dice::fresh("a sending queue among peers that die");
    let (mut bundle, me) = bundle();
    let mut queue = SendQueue::new(me, Bound { messages: 40, bytes: 100_000 });
    let mut peers: Vec<(u32, Receiver)> = Vec::new();
    // By index: the numbers of messages that were pushed, that came back, and that were refused.
    let (mut pushed, mut back, mut refused) = ([0u64; 8], [0u64; 8], [0u64; 8]);
    let came: Vec<Rc<Cell<u64>>> = (0..8).map(|_| Rc::default()).collect();
    let mut taken_back = [0u64; 8];
    for to in 0..8 {
        let there = receiver();
        bundle.map(me, to, there.name, KEY).expect("map");
        peers.push((to, there));
    }
    for round in 0..rounds {
        for _ in 0..dice.below(60) {
            let to = dice.below(8) as usize;
            let payload = vec![1; [0, 60, 3000, 20_000][dice.below(4) as usize]];
            let done = match dice.below(2) {
                0 => queue.push(to as u32, NOTE, &[round], &payload),
                _ => queue.push_request(to as u32, ASK, &[round], &payload),
            };
            match done {
                Ok(()) => pushed[to] += 1,
                Err(PushError::Full) => refused[to] += 1,
                Err(error) => panic!("{error}"),
            }
        }
        for (to, there) in &mut peers {
            // Some are slow.
            if dice.below(u64::from(*to) + 1) == 0 {
                there.bundle.poll();
                let mut noted = there.came.borrow_mut();
                came[*to as usize].set(came[*to as usize].get() + noted.len() as u64);
                noted.clear();
            }
        }
        if dice.below(40) == 0 && peers.len() > 4 {
            drop(peers.swap_remove(dice.below(peers.len() as u64) as usize));
        }
        if dice.below(20) == 0 {
            let to = dice.below(8) as usize;
            taken_back[to] += queue.take_back(to as u32).len() as u64;
        }
        for event in events(&mut queue, &mut bundle) {
            if let Event::Returned(m) = event {
                back[m.destination.expect("no replies are sent") as usize] += 1;
            }
        }
        (0..8).for_each(|to| check(queue.counts(to)));
    }
    wait_until("all to end", || {
        for (to, there) in &mut peers {
            there.bundle.poll();
            let mut noted = there.came.borrow_mut();
            came[*to as usize].set(came[*to as usize].get() + noted.len() as u64);
            noted.clear();
        }
        for event in events(&mut queue, &mut bundle) {
            if let Event::Returned(m) = event {
                back[m.destination.expect("no replies are sent") as usize] += 1;
            }
        }
        queue.is_settled()
    });
    let living: Vec<u32> = peers.iter().map(|(to, _)| *to).collect();
    for to in 0..8u32 {
        let (counts, at) = (queue.counts(to), to as usize);
        check(counts);
        assert_eq!((counts.pushed, counts.taken_back), (pushed[at], taken_back[at]), "{to}");
        assert_eq!(counts.not_delivered + counts.unknown, back[at], "{to}: {counts:?}");
        match living.contains(&to) {
            true => assert_eq!((counts.delivered, back[at]), (came[at].get(), 0), "{to}: {counts:?}"),
            false => assert!(counts.delivered + counts.unknown >= came[at].get(), "{to}: {counts:?}"),
        }
    }
    assert!(refused.iter().sum::<u64>() > 0 && back.iter().sum::<u64>() > 0, "{refused:?} {back:?}");
}

#[test]
fn every_message_is_accounted_for_among_peers_that_die_and_read_slowly() {
    let _turn = turn("every message is accounted for");
    chaos(600);
}

#[test]
fn every_message_is_accounted_for_between_hosts() {
    let Some(_turn) = over_udp("every_message_is_accounted_for_between_hosts") else { return };
    chaos(300);
}

/// A peer that was stopped for the suspicion time is lost. The next messages call it again; the first of them comes back because of
/// the old loss.
#[test]
fn what_is_pushed_after_a_loss_goes_to_a_peer_that_is_there_again() {
    let test = "what_is_pushed_after_a_loss_goes_to_a_peer_that_is_there_again";
    let Some(_turn) = over_udp(test) else { return };
    // Without a helper, nothing answers for it while it does not poll.
    let mut there = Bundle::new(&Node::without_helper().expect("node")).expect("bundle");
    let end = there.endpoint(KEY).expect("endpoint");
    let came = Rc::new(Cell::new(0));
    let noted = came.clone();
    there.on(end, NOTE, move |_| noted.set(noted.get() + 1)).expect("on");
    let settings = Settings { suspicion: Some(Duration::from_millis(200)), ..Settings::default() };
    let mut bundle = Bundle::with_settings(&Node::new().expect("node"), settings).expect("bundle");
    let me = bundle.endpoint(KEY).expect("endpoint");
    bundle.map(me, 0, there.name(end).expect("name"), KEY).expect("map");
    let mut queue = SendQueue::new(me, Bound::default());
    queue.push(0, NOTE, &[], b"").expect("room");
    wait_until("the first message", || {
        there.poll();
        events(&mut queue, &mut bundle);
        came.get() == 1
    });
    queue.push(0, NOTE, &[], b"").expect("room");
    wait_until("the loss", || {
        let told = events(&mut queue, &mut bundle);
        told.iter().any(|event| matches!(event, Event::PeerLost { reason: Reason::Silent, .. }))
    });
    wait_until("the end of what was under way", || {
        events(&mut queue, &mut bundle);
        queue.is_settled()
    });
    let before = queue.counts(0);
    for _ in 0..100 {
        queue.push(0, NOTE, &[], b"").expect("room");
    }
    wait_until("the fate of a hundred messages", || {
        there.poll();
        events(&mut queue, &mut bundle);
        queue.is_settled()
    });
    let after = queue.counts(0);
    check(after);
    let back = after.not_delivered + after.unknown - before.not_delivered - before.unknown;
    assert!(back <= 1, "{before:?}, then {after:?}");
}
