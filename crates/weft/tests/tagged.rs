//! Tagged messages through the public calls: matching, bounds, and how everything ends.

mod support;

use std::collections::VecDeque;
use std::time::{Duration, Instant};
use support::{tell, turn, Address, Dice, Order, Orders, Peer, BOUND};
use weft::tagged::{Completion, Label, Lent, LentMut, Outcome, Pattern, PostError, Received, Settings, Tags};
use weft::{Admission, AnyThread, Bundle, Certainty, Endpoint, Key, Node, Reason, SendError};
use weft_wire::tagged::{Envelope, Word};

/// Lengths around every limit: a line, a unit of credit, a piece, eager or announced, a record.
const SIZES: [usize; 18] =
    [0, 1, 8, 24, 25, 255, 256, 257, 4096, 16_383, 16_384, 16_385, 65_535, 65_536, 65_537, 1 << 20, 3_000_001, 4 << 20];

/// Number of messages that a sender may have waiting at a receiver: `docs/tagged.md`.
const WINDOW: usize = 8192;

#[test]
fn child() {
    support::play(&[("echo", echo), ("announcer", announcer), ("idle", idle)]);
}

/// A bundle with an endpoint for tagged messages, and its completions so far.
struct Side {
    bundle: Bundle,
    here: Endpoint,
    done: VecDeque<Completion>,
}

impl Side {
    fn new() -> Side {
        Side::with(Settings::default())
    }

    fn with(settings: Settings) -> Side {
        let mut bundle = Bundle::new(&Node::new().expect("node")).expect("bundle");
        let here = bundle.tagged_endpoint(Key(7), settings).expect("endpoint");
        Side { bundle, here, done: VecDeque::new() }
    }

    fn address(&self) -> Address {
        Address::of(&self.bundle, self.here)
    }

    fn map(&mut self, index: u32, there: Address) {
        self.calls().map(index, there.name, there.key).expect("map");
    }

    fn calls(&mut self) -> weft::tagged::Tagged<'_> {
        self.bundle.tagged(self.here).expect("an endpoint for tagged messages")
    }

    fn poll(&mut self) {
        self.bundle.poll();
        self.done.extend(std::iter::from_fn(|| self.bundle.next_completion()));
    }

    fn send(&mut self, to: u32, tag: u64, bytes: Vec<u8>, context: u64) {
        self.calls().try_send(to, Label::tagged(tag), bytes, context).expect("posted");
    }

    fn receive(&mut self, pattern: Pattern, len: usize, context: u64) {
        self.calls().try_receive(pattern, vec![0; len], context).expect("posted");
    }

    /// Polls alone until there is a completion.
    fn next(&mut self) -> Completion {
        let since = Instant::now();
        loop {
            if let Some(done) = self.done.pop_front() {
                return done;
            }
            assert!(since.elapsed() < BOUND, "no completion");
            self.bundle.wait(Some(Duration::from_millis(10)));
            self.poll();
        }
    }

    /// Takes the completion with a context.
    fn take(&mut self, context: u64) -> Option<Completion> {
        let at = self.done.iter().position(|c| c.context == context)?;
        self.done.remove(at)
    }
}

/// Contents that depend on a number.
fn contents(number: u32, len: usize) -> Vec<u8> {
    support::contents(number, 0, len).1
}

/// Two sides that have each other mapped at 0.
fn pair() -> (Side, Side) {
    pair_with(Settings::default(), Settings::default())
}

fn pair_with(a: Settings, b: Settings) -> (Side, Side) {
    let (mut a, mut b) = (Side::with(a), Side::with(b));
    let (at_a, at_b) = (a.address(), b.address());
    a.map(0, at_b);
    b.map(0, at_a);
    meet(&mut a, &mut b);
    (a, b)
}

/// Sends a message each way, so that sessions exist. After that, bundles of one thread need nothing but their polls.
fn meet(a: &mut Side, b: &mut Side) {
    let address = (a.address(), b.address());
    for side in [&mut *a, &mut *b] {
        let there = if side.address().name == address.0.name { address.1 } else { address.0 };
        side.map(99, there);
        side.calls().try_receive(Pattern::untagged().from(99), vec![], 0).expect("posted");
        side.calls().try_inject(99, Label::default(), b"").expect("posted");
    }
    together(&mut [a, b], "both", |s| s.iter().all(|s| s.done.len() == 1));
    for side in [a, b] {
        side.done.clear();
        side.calls().unmap(99).expect("mapped");
    }
}

fn together(sides: &mut [&mut Side], what: &str, mut is_done: impl FnMut(&mut [&mut Side]) -> bool) {
    let since = Instant::now();
    while !is_done(sides) {
        assert!(since.elapsed() < BOUND, "waited in vain for {what}");
        sides.iter_mut().for_each(|side| side.poll());
    }
}

/// Polls both until nothing more happens. Bundles of one thread with a session have nothing else to wait for.
fn settle(a: &mut Side, b: &mut Side) {
    let look = |a: &Side, b: &Side| (a.done.len(), b.done.len(), a.bundle.counters(), b.bundle.counters());
    let mut still = 0;
    while still < 20 {
        let before = look(a, b);
        a.poll();
        b.poll();
        still = if look(a, b) == before { still + 1 } else { 0 };
    }
}

fn received(completion: &Completion) -> Received {
    match &completion.outcome {
        Outcome::Received(received) => *received,
        other => panic!("not received: {other:?}"),
    }
}

fn failed(completion: &Completion) -> (Reason, Certainty) {
    match &completion.outcome {
        Outcome::Failed { reason, certainty } => (*reason, *certainty),
        other => panic!("not failed: {other:?}"),
    }
}

/// Whether an operation failed because its peer is gone, with a session or before there was one.
fn is_gone(completion: &Completion) -> bool {
    matches!(failed(completion).0, Reason::PeerLost | Reason::NobodyThere)
}

/// The contents of a completed receive.
fn bytes(completion: &Completion) -> &[u8] {
    let received = received(completion);
    &completion.buffer.as_ref().expect("the last completion has the buffer")[received.at..][..received.stored]
}

// ---- contents

/// Sends back every message, until its input ends. Long messages wait here before a receive is posted.
fn echo(orders: Orders) {
    let mut side = Side::new();
    tell(side.address());
    let caller = Address::parse(&orders.wait().expect("the caller"));
    side.map(0, caller);
    tell("ready");
    let mut is_posted = false;
    while !matches!(orders.look(), Order::End) {
        if !is_posted {
            // A receive is posted for odd tags; messages with even tags are received once they wait.
            let odd = Pattern { source: Some(0), tags: Some(Tags { tag: 1, ignore: !1 }) };
            side.receive(odd, 4 << 20, 1);
            is_posted = true;
        }
        let even = Pattern::any_tag().ignoring(!1).from(0);
        if let Some(message) = side.calls().peek(even).expect("mapped") {
            side.calls().try_receive(even, vec![0; message.len], 2).expect("posted");
        }
        side.poll();
        while let Some(done) = side.done.pop_front() {
            // The last receive ends with the caller.
            let Outcome::Received(Received { message, stored, .. }) = done.outcome else { continue };
            is_posted &= done.context != 1;
            let mut contents = done.buffer.expect("owned");
            contents.truncate(stored);
            side.calls().try_send(0, message.label, contents, 3).expect("posted");
        }
    }
}

fn every_size(side: &mut Side, peer: &mut Peer) {
    let there = peer.address();
    side.map(0, there);
    peer.say(&side.address().to_string());
    assert_eq!(peer.hear(), "ready");
    for (round, &size) in SIZES.iter().enumerate() {
        for is_posted_there in [0, 1] {
            let tag = (round as u64) << 1 | is_posted_there;
            let sent = contents(tag as u32, size);
            let label = Label::tagged(tag).with(!tag);
            side.receive(Pattern::tagged(tag).from(0), size, 10);
            side.calls().try_send(0, label, sent.clone(), 20).expect("posted");
            let mut left = vec![10, 20];
            while !left.is_empty() {
                let done = side.next();
                left.retain(|&context| context != done.context);
                assert!(done.is_last);
                if done.context == 20 {
                    assert_eq!((done.outcome, done.buffer.as_ref()), (Outcome::Sent, Some(&sent)));
                } else {
                    assert_eq!(received(&done).message.label, label);
                    assert_eq!(received(&done).message.source, Some(0));
                    assert!(bytes(&done) == sent, "{size} bytes came otherwise than they went");
                }
            }
        }
    }
}

#[test]
fn every_size_crosses_both_ways_whether_it_is_waited_for_or_not() {
    let _turn = turn("tagged sizes");
    let mut peer = Peer::start("echo", &[]);
    every_size(&mut Side::new(), &mut peer);
    peer.finish();
}

#[test]
fn every_size_crosses_between_hosts() {
    let Some(_turn) = support::over_udp("every_size_crosses_between_hosts") else { return };
    let mut peer = Peer::start("echo", &[]);
    every_size(&mut Side::new(), &mut peer);
    peer.finish();
}

#[test]
fn an_endpoint_sends_to_itself() {
    let _turn = turn("tagged to itself");
    let mut side = Side::new();
    let here = side.address();
    side.map(5, here);
    for size in [8, 1 << 20] {
        side.receive(Pattern::tagged(1).from(5), size, 1);
        side.send(5, 1, contents(9, size), 2);
        let done = [side.next(), side.next()];
        let got = done.iter().find(|c| c.context == 1).expect("received");
        assert_eq!((received(got).message.source, bytes(got)), (Some(5), &contents(9, size)[..]));
    }
}

#[test]
fn lent_memory_is_sent_from_and_received_into() {
    let _turn = turn("lent memory");
    let (mut a, mut b) = pair();
    for size in [100, 1 << 20] {
        let sent = contents(3, size);
        let mut room = vec![0u8; size + 2];
        // SAFETY: both outlive their operations, which end below, and nobody reads the target before that.
        let (from, into) = unsafe { (Lent::new(sent.as_ptr(), size), LentMut::new(room[1..].as_mut_ptr(), size)) };
        b.calls().try_receive(Pattern::tagged(1), into, 1).expect("posted");
        a.calls().try_send(0, Label::tagged(1), from, 2).expect("posted");
        together(&mut [&mut a, &mut b], "both ends", |s| s.iter().all(|s| !s.done.is_empty()));
        assert_eq!(a.done.pop_front().map(|c| (c.outcome, c.buffer)), Some((Outcome::Sent, None)));
        let done = b.done.pop_front().expect("received");
        assert_eq!((received(&done).stored, &done.buffer), (size, &None));
        assert!(room[1..=size] == sent && room[0] == 0 && room[size + 1] == 0);
    }
}

// ---- matching

/// A simple matcher: every receive takes the oldest message that fits, every message the oldest receive.
#[derive(Default)]
struct Model {
    /// Planted fault: messages find the youngest receive.
    is_wrong: bool,
    /// Sender, tag, number.
    messages: Vec<(u32, Option<u64>, u32)>,
    receives: Vec<(Pattern, u64)>,
    /// Receives, with the numbers of the messages that they took.
    matched: Vec<(u64, u32)>,
}

impl Model {
    fn fits(pattern: &Pattern, from: u32, tag: Option<u64>) -> bool {
        let is_tag = match (pattern.tags, tag) {
            (Some(tags), Some(tag)) => tags.tag & !tags.ignore == tag & !tags.ignore,
            (None, None) => true,
            _ => false,
        };
        is_tag && pattern.source.is_none_or(|source| source == from)
    }

    fn arrive(&mut self, from: u32, tag: Option<u64>, number: u32) {
        let mut fitting = (0..self.receives.len()).filter(|&at| Model::fits(&self.receives[at].0, from, tag));
        match if self.is_wrong { fitting.next_back() } else { fitting.next() } {
            Some(at) => self.matched.push((self.receives.remove(at).1, number)),
            None => self.messages.push((from, tag, number)),
        }
    }

    fn receive(&mut self, pattern: Pattern, context: u64) {
        match self.find(&pattern) {
            Some(at) => self.matched.push((context, self.messages.remove(at).2)),
            None => self.receives.push((pattern, context)),
        }
    }

    fn find(&self, pattern: &Pattern) -> Option<usize> {
        self.messages.iter().position(|&(from, tag, _)| Model::fits(pattern, from, tag))
    }
}

fn pattern_of(dice: &mut Dice) -> Pattern {
    let source = [None, Some(0), Some(1)][dice.below(3) as usize];
    let tags = (dice.below(5) > 0).then(|| {
        let ignore = [0, 0, 0b1, 0b11, u64::MAX][dice.below(5) as usize];
        Tags { tag: dice.below(4), ignore }
    });
    Pattern { source, tags }
}

#[test]
fn what_is_matched_is_what_a_simple_model_matches() {
    let _turn = turn("tagged model");
    let mut dice = Dice::fresh("histories");
    for _ in 0..40 {
        one_history(&mut dice, Model::default());
    }
}

#[test]
#[should_panic(expected = "otherwise than the model")]
fn a_model_that_matches_the_youngest_receive_is_found_to_differ() {
    let _turn = turn("tagged wrong model");
    let mut dice = Dice::fresh("wrong histories");
    for _ in 0..40 {
        one_history(&mut dice, Model { is_wrong: true, ..Model::default() });
    }
}

/// Two senders and a receiver take random steps, one after the other.
fn one_history(dice: &mut Dice, mut model: Model) {
    // Small bounds, so that all paths are taken: announced messages, and contents sent back for lack of memory.
    let settings = Settings { eager_most: 64, unexpected_most: 300, ..Settings::default() };
    let mut receiver = Side::with(settings);
    let mut senders = [Side::with(settings), Side::with(settings)];
    for (index, sender) in senders.iter_mut().enumerate() {
        sender.map(0, receiver.address());
        receiver.map(index as u32, sender.address());
        meet(sender, &mut receiver);
    }
    let mut context = 0;
    for number in 0..150u32 {
        match dice.below(10) {
            0..=4 => {
                let from = dice.below(2) as u32;
                let tag = (dice.below(5) > 0).then(|| dice.below(4));
                let size = [0, 4, 64, 65, 1000][dice.below(5) as usize];
                let mut sent = number.to_le_bytes().to_vec();
                sent.resize(4 + size, number as u8);
                let sender = &mut senders[from as usize];
                sender.calls().try_send(0, Label { tag, data: None }, sent, 1).expect("posted");
                settle(sender, &mut receiver);
                model.arrive(from, tag, number);
            }
            5..=7 => {
                context += 1;
                let pattern = pattern_of(dice);
                receiver.receive(pattern, 2000, context);
                model.receive(pattern, context);
            }
            8 => {
                let pattern = pattern_of(dice);
                let seen = receiver.calls().peek(pattern).expect("mapped");
                let expected = model.find(&pattern).map(|at| (model.messages[at].0, model.messages[at].1));
                assert_eq!(
                    seen.map(|m| (m.source.expect("mapped"), m.label.tag)),
                    expected,
                    "otherwise than the model"
                );
            }
            _ => {
                let open: Vec<u64> = model.receives.iter().map(|r| r.1).collect();
                let victim = dice.below(context + 1);
                assert_eq!(receiver.calls().cancel(victim), open.contains(&victim), "otherwise than the model");
                model.receives.retain(|r| r.1 != victim);
            }
        }
    }
    let [first, second] = &mut senders;
    // Don't wait until as much is matched as in the model: a wrong model may match more.
    for _ in 0..2 {
        settle(first, &mut receiver);
        settle(second, &mut receiver);
    }
    let mut got = Vec::new();
    for done in receiver.done.drain(..).filter(|c| c.outcome != Outcome::Cancelled) {
        let number = u32::from_le_bytes(bytes(&done)[..4].try_into().expect("four bytes"));
        assert!(bytes(&done)[4..].iter().all(|&b| b == number as u8));
        got.push((done.context, number));
    }
    got.sort_unstable();
    model.matched.sort_unstable();
    assert_eq!(got, model.matched, "otherwise than the model");
    assert_eq!(receiver.calls().waiting().0, model.messages.len());
    assert!(receiver.calls().waiting().1 <= 300);
}

#[test]
fn messages_of_a_pair_are_matched_in_order_whatever_their_size() {
    let _turn = turn("tagged order");
    let (mut a, mut b) = pair();
    let sizes = [100_000, 8, 20_000, 0, 65_536, 8, 1 << 20, 9];
    for is_posted in [false, true] {
        let rounds = 0..sizes.len() * 4;
        if is_posted {
            rounds.clone().for_each(|round| b.receive(Pattern::any_tag(), 1 << 20, round as u64));
        }
        for round in rounds.clone() {
            a.send(0, round as u64, contents(round as u32, sizes[round % 8]), 0);
        }
        if !is_posted {
            settle(&mut a, &mut b);
            rounds.clone().for_each(|round| b.receive(Pattern::any_tag(), 1 << 20, round as u64));
        }
        together(&mut [&mut a, &mut b], "all", |s| s[1].done.len() == rounds.len());
        for done in b.done.drain(..) {
            let round = done.context as usize;
            assert_eq!(received(&done).message.label.tag, Some(round as u64));
            assert!(bytes(&done) == contents(round as u32, sizes[round % 8]));
        }
        together(&mut [&mut a, &mut b], "all sends", |s| s[0].done.len() == rounds.len());
        a.done.clear();
    }
}

#[test]
fn peeked_messages_stay_and_claimed_ones_are_taken_once() {
    let _turn = turn("tagged peek");
    let (mut a, mut b) = pair();
    assert_eq!(b.calls().peek(Pattern::any_tag()), Ok(None));
    for (tag, size) in [(1, 10), (2, 100_000), (3, 20), (4, 200_000)] {
        a.send(0, tag, contents(tag as u32, size), tag);
    }
    settle(&mut a, &mut b);
    for _ in 0..2 {
        let seen = b.calls().peek(Pattern::tagged(2)).expect("mapped").expect("it waits");
        assert_eq!((seen.len, seen.label, seen.source), (100_000, Label::tagged(2), Some(0)));
    }
    let (seen, claim) = b.calls().claim(Pattern::any_tag()).expect("mapped").expect("the first");
    assert_eq!(seen.label.tag, Some(1));
    let (_, large) = b.calls().claim(Pattern::tagged(2)).expect("mapped").expect("it waits");
    assert_eq!(b.calls().peek(Pattern::tagged(2)), Ok(None));
    let (error, claim, _) = a.calls().try_receive_claimed(claim, vec![0; 10], 11).expect_err("it waits elsewhere");
    assert_eq!(error, PostError::NoMessage);
    b.calls().try_receive_claimed(claim, vec![0; 10], 11).expect("posted");
    b.calls().try_receive_claimed(large, vec![0; 100_000], 12).expect("posted");
    for tag in [3, 4] {
        let (_, claim) = b.calls().claim(Pattern::tagged(tag)).expect("mapped").expect("it waits");
        b.calls().discard(claim);
    }
    together(&mut [&mut a, &mut b], "all ends", |s| s[0].done.len() == 4 && s[1].done.len() == 2);
    assert!(a.done.iter().all(|c| c.outcome == Outcome::Sent));
    for (context, tag, size) in [(11, 1, 10), (12, 2, 100_000)] {
        assert!(bytes(&b.take(context).expect("received")) == contents(tag, size));
    }
    assert_eq!(b.calls().waiting(), (0, 0));
}

#[test]
fn what_is_too_long_is_cut_off_and_says_so() {
    let _turn = turn("tagged truncation");
    let (mut a, mut b) = pair();
    for (size, room) in [(10, 4), (100_000, 30_000), (100_000, 0), (10, 0)] {
        for is_posted in [true, false] {
            if is_posted {
                b.receive(Pattern::tagged(1), room, 1);
            }
            a.send(0, 1, contents(5, size), 2);
            settle(&mut a, &mut b);
            if !is_posted {
                b.receive(Pattern::tagged(1), room, 1);
            }
            together(&mut [&mut a, &mut b], "both ends", |s| s.iter().all(|s| !s.done.is_empty()));
            assert_eq!(a.done.pop_front().map(|c| c.outcome), Some(Outcome::Sent));
            let done = b.done.pop_front().expect("received");
            let Received { message, stored, .. } = received(&done);
            assert_eq!((message.len, stored, received(&done).is_truncated()), (size, room, true));
            assert!(bytes(&done) == &contents(5, size)[..room]);
        }
    }
}

#[test]
fn a_receive_of_many_takes_messages_one_behind_the_other_until_it_is_full() {
    let _turn = turn("tagged many");
    let (mut a, mut b) = pair();
    b.calls().try_receive_many(Pattern::untagged(), vec![0; 300_000], 1000, 7).expect("posted");
    let sizes = [10, 100_000, 0, 20_000, 100_000, 79_500];
    for (number, &size) in sizes.iter().enumerate() {
        a.calls().try_send(0, Label::default(), contents(number as u32, size), 1).expect("posted");
    }
    a.send(0, 9, vec![1], 1); // is none of them
    together(&mut [&mut a, &mut b], "all", |s| s[1].done.iter().any(|c| c.is_last));
    let last = b.done.iter().find(|c| c.is_last).expect("just seen");
    let memory = last.buffer.clone().expect("owned");
    assert_eq!(b.done.len(), sizes.len());
    // Announced messages complete later, but have their places in order of arrival.
    let mut at = 0;
    for (size, number) in sizes.iter().zip(0..) {
        let mut places = b.done.iter().map(received).filter(|r| r.message.len == *size);
        let r = places.find(|r| r.at == at).expect("in its place");
        assert!(memory[at..][..r.stored] == contents(number, *size) && !r.is_truncated());
        at = (at + size).next_multiple_of(8);
    }
    b.done.clear();
    // Empty messages fill it as well.
    b.calls().try_receive_many(Pattern::untagged(), vec![0; 640], 1, 8).expect("posted");
    for _ in 0..30 {
        a.calls().try_inject(0, Label::default(), b"").expect("posted");
    }
    settle(&mut a, &mut b);
    assert_eq!((b.done.len(), b.done.back().map(|c| c.is_last)), (11, Some(true)));
    assert_eq!(b.calls().waiting().0, 30 - 11 + 1);
}

// ---- bounds

#[test]
fn a_flood_that_nobody_receives_waits_on_its_senders_side() {
    let _turn = turn("tagged flood");
    let (mut a, mut b) = pair();
    const FLOOD: u64 = 40_000;
    for number in 0..FLOOD {
        a.send(0, number, number.to_le_bytes().to_vec(), number);
        a.poll();
        b.poll();
    }
    settle(&mut a, &mut b);
    assert_eq!(b.calls().waiting(), (WINDOW, 8 * WINDOW));
    assert_eq!(a.done.len(), WINDOW, "the others wait");
    // One is taken, so one may come.
    b.receive(Pattern::tagged(5), 8, 0);
    settle(&mut a, &mut b);
    assert_eq!((b.calls().waiting().0, a.done.len()), (WINDOW, WINDOW + 1));
    b.done.clear();
    for number in (0..FLOOD).filter(|&number| number != 5) {
        b.receive(Pattern::any_tag(), 8, number);
        together(&mut [&mut a, &mut b], "the next", |s| !s[1].done.is_empty());
        let done = b.done.pop_front().expect("just seen");
        assert_eq!((done.context, bytes(&done)), (number, &number.to_le_bytes()[..]));
    }
    assert_eq!((b.calls().waiting(), a.done.len()), ((0, 0), FLOOD as usize));
}

#[test]
fn a_receive_for_the_last_message_of_a_flood_is_matched_within_the_bound() {
    let _turn = turn("tagged flood backwards");
    const FLOOD: u64 = 40_000;
    for (waiting_most, is_matched) in [(1 << 16, true), (10_000, false)] {
        let (mut a, mut b) = pair_with(Settings::default(), Settings { waiting_most, ..Settings::default() });
        for number in 0..FLOOD {
            a.send(0, number, number.to_le_bytes().to_vec(), number);
        }
        settle(&mut a, &mut b);
        assert_eq!(b.calls().waiting().0, WINDOW);
        // One receive is posted before the end of the flood has come, one after it.
        b.receive(Pattern::tagged(FLOOD - 1).from(0), 8, 1);
        settle(&mut a, &mut b);
        let waiting = b.calls().waiting().0;
        if !is_matched {
            assert!(b.done.is_empty() && (waiting_most..waiting_most + WINDOW).contains(&waiting), "{waiting} wait");
            continue;
        }
        assert_eq!(b.take(1).map(|done| bytes(&done).to_vec()), Some((FLOOD - 1).to_le_bytes().to_vec()));
        // Contents beyond 4 MiB, in units of 256 bytes, stay at the sender.
        assert_eq!((waiting, a.done.len()), (FLOOD as usize - 1, 2 * WINDOW + 1));
        // Receive the rest backwards. The next flood has the same bound as the first one.
        for number in (0..FLOOD - 1).rev() {
            b.receive(Pattern::tagged(number), 8, number);
            together(&mut [&mut a, &mut b], "the one before", |s| !s[1].done.is_empty());
            let done = b.done.pop_front().expect("just seen");
            assert_eq!((done.context, bytes(&done)), (number, &number.to_le_bytes()[..]));
        }
        settle(&mut a, &mut b);
        assert_eq!((b.calls().waiting(), a.done.len()), ((0, 0), FLOOD as usize));
        a.done.clear();
        for number in 0..2 * WINDOW as u64 {
            a.send(0, number, vec![1], number);
        }
        settle(&mut a, &mut b);
        assert_eq!((b.calls().waiting().0, a.done.len()), (WINDOW, WINDOW));
    }
}

#[test]
fn contents_that_find_no_memory_go_back_and_are_fetched_in_their_turn() {
    let _turn = turn("tagged memory");
    let (mut a, mut b) = pair_with(Settings::default(), Settings { unexpected_most: 100_000, ..Settings::default() });
    for number in 0..300u32 {
        a.send(0, 1, contents(number, 5000), number.into());
        a.poll();
    }
    // Sends whose contents were taken have ended; weft keeps the contents that came back.
    settle(&mut a, &mut b);
    let (messages, memory) = b.calls().waiting();
    assert_eq!((messages, memory), (300, 100_000));
    for number in 0..300u32 {
        b.receive(Pattern::any_tag(), 5000, number.into());
    }
    together(&mut [&mut a, &mut b], "all", |s| s[1].done.len() == 300 && s[0].done.len() == 300);
    assert!(a.done.iter().all(|c| c.outcome == Outcome::Sent));
    for done in &b.done {
        assert!(bytes(done) == contents(done.context as u32, 5000), "message {}", done.context);
    }
    assert_eq!(b.calls().waiting(), (0, 0));
}

#[test]
fn contents_that_are_fetched_before_their_sender_has_looked_at_what_came_back_are_sent() {
    let _turn = turn("tagged early fetch");
    let (mut a, mut b) = pair_with(Settings::default(), Settings { unexpected_most: 0, ..Settings::default() });
    for room in [100, 0] {
        a.calls().try_send_stored(0, Label::tagged(1), contents(1, 100), 1).expect("posted");
        together(&mut [&mut b], "the envelope", |s| s[0].calls().waiting() == (1, 0));
        b.receive(Pattern::tagged(1), room, 2);
        // The sender's next poll finds both the contents that came back and the request for them.
        together(&mut [&mut a, &mut b], "both ends", |s| s.iter().all(|s| !s.done.is_empty()));
        assert_eq!(a.done.pop_front().map(|c| c.outcome), Some(Outcome::Sent));
        assert_eq!(bytes(&b.done.pop_front().expect("received")), &contents(1, 100)[..room]);
    }
    // Nothing is left over: the next message carries its contents again, and they come back when there is no room.
    b.receive(Pattern::tagged(2), 100, 3);
    a.send(0, 2, contents(2, 100), 4);
    assert_eq!(a.next().outcome, Outcome::Sent);
}

#[test]
fn operations_and_completions_that_nobody_takes_are_bounded() {
    let _turn = turn("tagged operations");
    let most = Settings { operations_most: 10, injected_most: 1000, ..Settings::default() };
    let (mut a, mut b) = (Side::with(most), Side::new());
    a.map(0, b.address());
    for context in 0..10 {
        a.receive(Pattern::tagged(1), 8, context);
    }
    let (error, target) = a.calls().try_receive(Pattern::tagged(1), vec![1; 8], 10).expect_err("full");
    assert_eq!((error, target), (PostError::Full, vec![1; 8].into()));
    assert_eq!(
        a.calls().try_send(0, Label::tagged(1), vec![2], 11).expect_err("full"),
        (PostError::Full, vec![2].into())
    );
    assert!(a.calls().cancel(3));
    // The completion was not taken.
    assert_eq!(a.calls().try_receive(Pattern::tagged(1), vec![1; 8], 10).expect_err("full").0, PostError::Full);
    let done = a.bundle.next_completion().expect("cancelled");
    assert_eq!((done.context, done.outcome, done.is_last), (3, Outcome::Cancelled, true));
    a.receive(Pattern::tagged(1), 8, 10);
    // Injected messages wait for the session, up to the bound.
    assert_eq!(a.calls().try_inject(0, Label::tagged(1), &[0; 2000]), Err(PostError::TooLarge));
    a.calls().try_inject(0, Label::tagged(1), &[3; 500]).expect("posted");
    assert_eq!(a.calls().try_inject(0, Label::tagged(1), &[0; 500]), Err(PostError::Full));
    together(&mut [&mut a, &mut b], "the first", |s| s[1].calls().waiting().0 == 1);
    a.calls().try_inject(0, Label::tagged(1), &[4; 500]).expect("it went");
    b.receive(Pattern::tagged(1), 500, 0);
    assert_eq!(bytes(&b.next()), [3; 500]);
    // Misuse has errors of its own.
    assert_eq!(a.calls().try_inject(1, Label::tagged(1), b""), Err(PostError::NotMapped(1)));
    assert_eq!(a.calls().peek(Pattern::any_tag().from(1)), Err(PostError::NotMapped(1)));
    assert_eq!(a.calls().unmap(1), Err(PostError::NotMapped(1)));
    let here = a.here;
    assert!(matches!(a.bundle.on(here, 1, |_| ()), Err(weft::Error::Send(SendError::OtherClient))));
    assert!(matches!(a.bundle.release(here), Err(SendError::OtherClient)));
    let other = a.bundle.endpoint(Key(3)).expect("endpoint");
    assert!(matches!(a.bundle.tagged(other), Err(weft::Error::Send(SendError::NoEndpoint))));
}

#[test]
fn injected_messages_that_come_back_and_are_not_taken_are_bounded() {
    let _turn = turn("tagged injections that come back");
    let most = Settings { operations_most: 10, ..Settings::default() };
    let (mut a, b) = (Side::with(most), Side::new());
    let there = b.address();
    a.calls().map(0, there.name, Key(there.key.0 ^ 1)).expect("map");
    let (mut injected, since) = (0, Instant::now());
    while since.elapsed() < BOUND {
        match a.calls().try_inject(0, Label::tagged(1), &[7; 100]) {
            Ok(()) => injected += 1,
            Err(PostError::Full) => break,
            Err(error) => panic!("{error}"),
        }
        assert!(injected < 1000, "the program takes none, and {injected} were injected");
        a.bundle.wait(Some(Duration::from_millis(1)));
    }
    a.poll();
    assert!(a.done.len() >= 10, "{} completions", a.done.len());
    assert!(a.done.iter().all(|done| matches!(done.outcome, Outcome::CameBack(_))));
    a.calls().try_inject(0, Label::tagged(1), &[7; 100]).expect("they were taken");
}

#[test]
fn all_that_a_peer_has_heard_nothing_of_can_be_cancelled() {
    let _turn = turn("tagged cancel unsent");
    let (mut a, mut b) = (Side::new(), Side::new());
    a.map(0, b.address());
    // There is no session yet, so all of it waits here.
    a.send(0, 1, vec![1; 10], 1);
    a.send(0, 1, vec![2; 100_000], 2);
    a.calls().try_send_stored(0, Label::tagged(1), vec![3; 10], 3).expect("posted");
    a.calls().try_inject(0, Label::tagged(1), &[4; 10]).expect("posted");
    assert_eq!(a.calls().cancel_unsent(0), Ok(4));
    assert_eq!(a.calls().cancel_unsent(0), Ok(0));
    assert_eq!(a.calls().cancel_unsent(1), Err(PostError::NotMapped(1)));
    let ended: Vec<_> = (0..3).map(|_| a.next()).map(|done| (done.context, done.outcome)).collect();
    assert_eq!(ended, [1, 2, 3].map(|context| (context, Outcome::Cancelled)));
    a.send(0, 1, vec![5; 10], 5);
    together(&mut [&mut a, &mut b], "what was sent", |s| s[1].calls().waiting() == (1, 10));
    b.receive(Pattern::tagged(1), 10, 0);
    assert_eq!(bytes(&b.next()), [5; 10]);
    assert_eq!(a.next().outcome, Outcome::Sent);
    assert_eq!(a.calls().cancel_unsent(0), Ok(0));
}

#[test]
fn a_send_that_waits_to_be_stored_ends_when_it_is() {
    let _turn = turn("tagged stored");
    let (mut a, mut b) = pair_with(Settings::default(), Settings { unexpected_most: 100, ..Settings::default() });
    a.calls().try_send_stored(0, Label::tagged(1), vec![1; 8], 1).expect("posted");
    a.calls().try_send_stored(0, Label::tagged(1), vec![2; 5000], 2).expect("posted");
    a.calls().try_send_stored(0, Label::tagged(1), vec![3; 100_000], 3).expect("posted");
    assert!(a.done.is_empty());
    settle(&mut a, &mut b);
    // A message that waits counts as stored, but only with its contents.
    assert_eq!(a.done.iter().map(|c| c.context).collect::<Vec<_>>(), [1]);
    for size in [8, 5000, 100_000] {
        b.receive(Pattern::tagged(1), size, 0);
    }
    together(&mut [&mut a, &mut b], "all ends", |s| s[0].done.len() == 3 && s[1].done.len() == 3);
    assert!(a.done.iter().all(|c| c.outcome == Outcome::Sent && c.buffer.is_some()));
}

// ---- endings

/// Announces a large message, and says so; takes nothing.
fn announcer(orders: Orders) {
    let mut side = Side::new();
    tell(side.address());
    side.map(0, Address::parse(&orders.wait().expect("the other")));
    side.send(0, 1, vec![1; 4 << 20], 1);
    side.send(0, 2, vec![2; 8], 2);
    while !matches!(orders.look(), Order::End) {
        side.poll();
        if side.take(2).is_some() {
            tell("sent");
        }
    }
}

/// Polls and posts nothing.
fn idle(orders: Orders) {
    let mut side = Side::new();
    tell(side.address());
    while !matches!(orders.look(), Order::End) {
        side.poll();
    }
}

#[test]
fn everything_posted_for_a_killed_peer_ends_and_what_had_come_stays() {
    let _turn = turn("tagged death");
    let mut side = Side::new();
    let mut peer = Peer::start("announcer", &[]);
    side.map(0, peer.address());
    peer.say(&side.address().to_string());
    assert_eq!(peer.hear_polling(&mut side.bundle), "sent");
    // While stopped, it fetches and answers nothing.
    peer.stop();
    side.receive(Pattern::tagged(1), 4 << 20, 10); // to be fetched
    side.receive(Pattern::tagged(7).from(0), 8, 11); // for it alone
    side.receive(Pattern::tagged(7), 8, 12); // for any
    side.send(0, 3, vec![0; 100_000], 13); // announced
    side.calls().try_send_stored(0, Label::tagged(4), vec![0; 8], 14).expect("posted");
    for context in 0..WINDOW as u64 + 10 {
        side.send(0, 5, vec![], 100 + context); // some go, some wait
    }
    peer.kill();
    let ends = |side: &Side, of: &[u64]| of.iter().all(|&context| side.done.iter().any(|c| c.context == context));
    together(&mut [&mut side], "all ends", |s| {
        ends(s[0], &[10, 11, 13, 14])
            && s[0].done.iter().filter(|c| (100..50_000).contains(&c.context)).count() == WINDOW + 10
    });
    for context in [10, 11, 13] {
        let done = side.take(context).expect("just seen");
        assert!(is_gone(&done) && done.is_last && done.buffer.is_some(), "{done:?}");
        assert_eq!(failed(&done).1, Certainty::NotDelivered);
    }
    assert!(is_gone(&side.take(14).expect("just seen")));
    assert!(side.take(12).is_none(), "another peer may send that");
    assert!(side.calls().cancel(12));
    side.poll();
    // Messages that came with their contents can be received although their sender is dead.
    side.done.clear();
    side.receive(Pattern::tagged(2), 8, 20);
    assert_eq!(bytes(&side.next()), [2; 8]);
    // Later operations fail too.
    side.send(0, 1, vec![1], 21);
    let done = side.next();
    assert!(is_gone(&done), "{done:?}");
    side.receive(Pattern::tagged(1).from(0), 1, 22);
    assert!(is_gone(&side.next()));
}

#[test]
fn a_receive_for_one_peer_ends_with_it_though_it_never_said_anything() {
    let _turn = turn("tagged silent death");
    let mut side = Side::new();
    let mut peer = Peer::start("idle", &[]);
    side.map(0, peer.address());
    side.receive(Pattern::tagged(1).from(0), 8, 1);
    let since = Instant::now();
    while side.bundle.sessions() == 0 {
        assert!(since.elapsed() < BOUND, "it says hello");
        side.poll();
    }
    peer.kill();
    assert!(is_gone(&side.next()));
}

#[test]
fn nobody_wrong_keys_and_endpoints_for_handlers_are_told_apart() {
    let _turn = turn("tagged refusals");
    let (mut a, mut b) = pair();
    let there = b.address();
    a.map(1, Address { key: Key(!there.key.0), ..there });
    let am = b.bundle.endpoint(Key(4)).expect("endpoint");
    a.map(2, Address { name: b.bundle.name(am).expect("ours"), key: Key(4) });
    for (to, reason) in [(1, Reason::WrongKey), (2, Reason::NoHandler)] {
        for size in [8, 100_000] {
            a.send(to, 1, vec![1; size], 1);
            a.receive(Pattern::tagged(1).from(to), 8, 2);
            let mut reasons = Vec::new();
            together(&mut [&mut a, &mut b], "both ends", |s| {
                reasons.extend(s[0].done.drain(..).map(|c| match c.outcome {
                    Outcome::Failed { reason, .. } => (c.context, reason),
                    // It was accepted before the refusal of the hello arrived.
                    Outcome::CameBack(back) => (if back.contents.len() == 8 { 1 } else { 9 }, back.reason),
                    Outcome::Sent if size == 8 => (8, reason),
                    other => panic!("{other:?}"),
                }));
                reasons.iter().any(|r| r.0 == 1) && reasons.iter().any(|r| r.0 == 2)
            });
            assert!(reasons.iter().all(|r| r.1 == reason), "{reasons:?}");
        }
    }
}

#[test]
fn freeing_an_endpoint_ends_what_is_posted_on_both_sides() {
    let _turn = turn("tagged free");
    let (mut a, mut b) = pair();
    a.send(0, 1, vec![1; 100_000], 1); // announced
    a.receive(Pattern::tagged(9).from(0), 8, 2);
    settle(&mut a, &mut b);
    b.receive(Pattern::tagged(5), 8, 3);
    b.send(0, 5, vec![5; 100_000], 4);
    settle(&mut a, &mut b);
    let freed = b.here;
    b.bundle.free(freed).expect("ours");
    assert!(matches!(b.bundle.tagged(freed), Err(weft::Error::Send(SendError::NoEndpoint))));
    together(&mut [&mut a, &mut b], "all ends", |s| s[0].done.len() == 2 && s[1].done.len() == 2);
    for context in [1, 2] {
        assert_eq!(failed(&a.take(context).expect("ended")), (Reason::NoSuchEndpoint, Certainty::NotDelivered));
    }
    assert!(b.done.iter().all(|c| c.outcome == Outcome::Cancelled && c.buffer.is_some()));
    // Messages that it announced cannot be fetched any more, and are gone.
    assert_eq!(a.calls().peek(Pattern::tagged(5)), Ok(None));
    // Later operations fail at once.
    together(&mut [&mut a, &mut b], "the endpoint's end", |s| s[1].bundle.name(freed).is_err());
    a.done.clear();
    a.send(0, 1, vec![1], 6);
    together(&mut [&mut a, &mut b], "a failure", |s| {
        s[0].done.iter().any(|c| matches!(c.outcome, Outcome::Failed { .. } | Outcome::CameBack(_)))
    });
}

#[test]
fn receives_that_are_to_stay_do_so_until_their_peer_dies() {
    let _turn = turn("tagged leaving");
    let (mut a, mut b) = pair_with(Settings { receives_stay: true, ..Settings::default() }, Settings::default());
    a.send(0, 1, vec![1; 100_000], 1); // announced
    a.receive(Pattern::tagged(9).from(0), 8, 2);
    settle(&mut a, &mut b);
    b.bundle.free(b.here).expect("ours");
    drop(b);
    let since = Instant::now();
    while a.bundle.sessions() > 0 {
        assert!(since.elapsed() < BOUND, "nobody noticed the end");
        a.poll();
    }
    assert_eq!(failed(&a.take(1).expect("a send ends")), (Reason::NoSuchEndpoint, Certainty::NotDelivered));
    assert!(a.done.is_empty(), "the receive stays: {:?}", a.done);
    assert!(a.calls().cancel(2));
    assert_eq!(a.next().outcome, Outcome::Cancelled);
    // A process that dies sends no goodbye.
    let mut peer = Peer::start("idle", &[]);
    a.map(1, peer.address());
    a.receive(Pattern::tagged(1).from(1), 8, 3);
    while !a.calls().greet(1).expect("mapped") {
        assert!(since.elapsed() < BOUND, "there is no session");
        a.poll();
    }
    peer.kill();
    let end = a.next();
    assert!(end.context == 3 && is_gone(&end));
}

#[test]
fn nonsense_ends_its_sender_and_nobody_else() {
    let _turn = turn("tagged nonsense");
    let (mut a, mut b) = pair();
    let there = b.address();
    a.send(0, 1, vec![7; 8], 1);
    settle(&mut a, &mut b);
    let mut stranger = Bundle::new(&Node::new().expect("node")).expect("bundle");
    let mut dice = Dice::fresh("nonsense");
    for _ in 0..60 {
        let here = stranger.endpoint(Key(5)).expect("endpoint");
        stranger.map(here, 0, there.name, there.key).expect("map");
        let mut words = vec![(1u8, vec![1, 5, 0])];
        for _ in 0..20 {
            let op = [0, 1, 2, 3, 4, 5, 6, 0x10, 0x11, 0x13, 0x20, 0x21, 0x27, 0xff][dice.below(14) as usize];
            let args = (0..dice.below(9)).map(|_| dice.below(3) as u32).collect();
            words.push((op, args));
        }
        for (op, args) in words {
            let payload = vec![0; dice.below(3) as usize * 10];
            while stranger.try_send(here, 0, op, &args, &payload).is_err() {
                stranger.poll();
                b.poll();
            }
        }
        for _ in 0..20 {
            stranger.poll();
            b.poll();
            while stranger.next_event().is_some() {}
        }
    }
    // Whatever it left behind, the honest sender is not disturbed and memory stays bounded.
    assert!(b.calls().waiting().0 <= 60 * 21 + 1);
    b.done.clear();
    b.receive(Pattern::tagged(1).from(0), 8, 2);
    together(&mut [&mut a, &mut b], "what waited", |s| !s[1].done.is_empty());
    assert_eq!(bytes(&b.done.pop_front().expect("just seen")), [7; 8]);
    b.receive(Pattern::tagged(2).from(0), 100_000, 3);
    a.send(0, 2, contents(1, 100_000), 4);
    together(&mut [&mut a, &mut b], "another one", |s| s[1].done.iter().any(|c| c.context == 3));
    assert!(bytes(&b.take(3).expect("just seen")) == contents(1, 100_000));
}

/// A bundle that sends arbitrary words to an endpoint for tagged messages.
struct Liar {
    bundle: Bundle,
    here: Endpoint,
}

impl Liar {
    fn new(there: Address) -> Liar {
        let mut bundle = Bundle::new(&Node::new().expect("node")).expect("bundle");
        let here = bundle.endpoint(Key(5)).expect("endpoint");
        bundle.map(here, 0, there.name, there.key).expect("map");
        Liar { bundle, here }
    }

    fn say(&mut self, victim: &mut Side, word: &Word) {
        let packed = word.pack();
        while self.bundle.try_send(self.here, 0, packed.op, packed.args(), &[]).is_err() {
            self.bundle.poll();
            victim.poll();
        }
    }

    /// The reasons for which its words came back: waits for `words` of them, and a little longer for more.
    fn refused(&mut self, victim: &mut Side, words: usize) -> Vec<Reason> {
        let (mut refused, mut more, since) = (Vec::new(), 100, Instant::now());
        while more > 0 {
            assert!(since.elapsed() < BOUND, "{} of {words} came back", refused.len());
            more -= u32::from(refused.len() >= words);
            self.bundle.poll();
            victim.poll();
            while let Some(event) = self.bundle.next_event() {
                if let weft::Event::Returned(returned) = event {
                    refused.push(returned.reason);
                }
            }
        }
        refused
    }
}

/// Messages that a peer sent before it started over can still be received. So it must not be able to start over without end.
#[test]
fn a_peer_that_says_hello_again_and_again_leaves_no_more_than_two_windows() {
    let _turn = turn("tagged hellos");
    let mut victim = Side::new();
    let mut liar = Liar::new(victim.address());
    for _ in 0..4 {
        liar.say(&mut victim, &Word::Hello(Key(5)));
        for number in 0..WINDOW as u32 {
            let (credit, label) = Default::default();
            liar.say(&mut victim, &Word::Eager(Envelope { number, credit, label, wants_done: false }));
        }
    }
    // Only the first window is accepted.
    let refused = liar.refused(&mut victim, 3 * (WINDOW + 1));
    assert_eq!(refused.iter().filter(|&&r| r == Reason::NoRoom).count(), 3);
    let (messages, _) = victim.calls().waiting();
    assert_eq!((messages, refused.len()), (WINDOW, 3 * (WINDOW + 1)));
    // Once one is received, it may start over.
    victim.receive(Pattern::untagged(), 8, 1);
    victim.next();
    liar.say(&mut victim, &Word::Hello(Key(5)));
    assert_eq!(liar.refused(&mut victim, 0), []);
}

#[test]
fn a_peer_that_fetches_what_nobody_sends_ends_itself() {
    let _turn = turn("tagged fetches");
    let mut victim = Side::new();
    let mut liar = Liar::new(victim.address());
    liar.say(&mut victim, &Word::Hello(Key(5)));
    for number in 0..2 * WINDOW as u32 {
        let credit = Default::default();
        liar.say(&mut victim, &Word::Fetch { number: number + 7, receive: 1, bytes: 100, credit });
    }
    // As many early fetches as allowed are noted, the next one is a violation, and after that the peer would have to say hello.
    let refused = liar.refused(&mut victim, WINDOW);
    assert_eq!(refused.iter().filter(|&&r| r == Reason::Violation).count(), 1);
    assert_eq!(refused.len(), WINDOW);
}

#[test]
fn an_unmapped_sender_is_known_by_name_and_can_be_answered() {
    let _turn = turn("tagged unmapped");
    let (mut a, mut b) = (Side::new(), Side::new());
    a.map(3, b.address());
    b.receive(Pattern::tagged(1), 100_000, 1);
    a.send(3, 1, contents(1, 100_000), 2);
    together(&mut [&mut a, &mut b], "it", |s| !s[1].done.is_empty());
    let message = received(&b.done[0]).message;
    assert_eq!((message.source, b.calls().name_of(message.peer)), (None, Some(a.address().name)));
    b.calls().map_peer(8, message.peer).expect("known");
    a.receive(Pattern::tagged(2).from(3), 8, 3);
    b.send(8, 2, vec![9; 8], 4);
    together(&mut [&mut a, &mut b], "the answer", |s| s[0].take(3).is_some());
}

#[test]
fn a_wait_ends_with_completions_that_a_call_made() {
    let _turn = turn("tagged wait");
    let (mut a, mut b) = pair();
    a.send(0, 1, vec![1; 8], 1);
    settle(&mut a, &mut b);
    while b.bundle.wait(Some(Duration::ZERO)) != weft::Waited::Nothing {}
    b.receive(Pattern::tagged(1), 8, 2);
    assert_eq!(b.bundle.wait(Some(BOUND)), weft::Waited::Events);
}

#[test]
fn a_bundle_for_any_thread_has_them_too() {
    let _turn = turn("tagged threads");
    let node = Node::new().expect("node");
    let mut bundle: Bundle<AnyThread> = Bundle::for_any_thread(&node, weft::Settings::default()).expect("bundle");
    let here = bundle.tagged_endpoint(Key(1), Settings::default()).expect("endpoint");
    let name = bundle.name(here).expect("ours");
    bundle.tagged(here).expect("ours").map(0, name, Key(1)).expect("map");
    bundle.tagged(here).expect("ours").try_receive(Pattern::tagged(1), vec![0; 8], 1).expect("posted");
    let thread = std::thread::spawn(move || {
        bundle.tagged(here).expect("ours").try_inject(0, Label::tagged(1), &[5; 8]).expect("posted");
        let mut done = None;
        bundle.poll_until(|bundle| {
            done = bundle.next_completion();
            done.is_some()
        });
        done.expect("just seen")
    });
    assert_eq!(bytes(&thread.join().expect("no panic")), [5; 8]);
}

#[test]
fn a_peer_that_was_mapped_without_its_key_gets_everything_and_says_so() {
    let _turn = turn("tagged messages without a key");
    let (mut server, mut client) = (Side::new(), Side::new());
    server.bundle.set_admission(server.here, Admission::OwnUserWithoutKey).expect("endpoint");
    client.map(0, Address { key: Key::NONE, ..server.address() });
    // The server's hello tells its key while the client's messages are under way.
    for (number, len) in (0..).zip(SIZES) {
        server.receive(Pattern::tagged(3), len, 1);
        client.send(0, 3, contents(number, len), 2);
        together(&mut [&mut server, &mut client], "both", |s| s.iter().all(|s| !s.done.is_empty()));
        let [got, sent] = [&mut server, &mut client].map(|side| side.done.pop_front().expect("one").outcome);
        assert!(matches!(got, Outcome::Received(Received { stored, .. }) if stored == len), "{len} bytes: {got:?}");
        assert!(matches!(sent, Outcome::Sent), "{len} bytes: {sent:?}");
    }
}
