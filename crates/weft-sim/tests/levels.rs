//! The levels of reliability, and order among refused messages: over links that lose, duplicate, reorder and damage packets, with
//! receivers that restart.

use std::collections::VecDeque;
use std::time::Duration;
use weft_sim::{
    Change, Config, Context, Failure, Faults, HostId, Load, Message, Notice, Outgoing, Pattern, Plant, Program, Random,
    Reason, Reliability, Returned, SendError, Service, Simulation, Workload, Wrong,
};

const UNRELIABLE: Service = Service { reliability: Reliability::Unreliable, is_ordered: false };
const RECEPTION: Service = Service { reliability: Reliability::Reception, is_ordered: false };
const ORDERED: Service = Service { reliability: Reliability::Delivery, is_ordered: true };

fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Every fault that packets can meet.
fn bad(random: &mut Random) -> Faults {
    Faults {
        duplicate: random.below(300_000) as u32,
        copies_late_most: millis(random.below(2_000)),
        reorder: random.below(300_000) as u32,
        window: 64,
        corrupt: random.below(20_000) as u32,
        ..Faults::loss(random.below(300_000) as u32)
    }
}

fn bulk(config: Config, count: u64, size: usize, service: Service) -> Simulation<Load> {
    let mut workload = Workload::new(Pattern::Bulk, count, size);
    workload.service = service;
    Simulation::new(config, move |host| workload.program(host, 2))
}

#[test]
fn unreliable_messages_over_a_good_link_all_arrive_whatever_their_size() {
    for size in [0, 100, 1400, 5_000, 60_000] {
        let mut simulation = bulk(Config::default(), 500, size, UNRELIABLE);
        let report = simulation.settle(Duration::from_secs(60)).unwrap_or_else(|failure| panic!("{size}: {failure}"));
        simulation.run_for(Duration::from_secs(1));
        let messages = simulation.messages();
        assert_eq!((messages.unreliable, messages.delivered), (500, 500), "{size} B: {report:?}");
        assert_eq!(simulation.violations(), []);
    }
}

/// The checker verifies that no message is delivered twice, changed or returned.
#[test]
fn unreliable_messages_come_at_most_once_and_unchanged_whatever_happens() {
    let (mut lost, mut delivered) = (0, 0);
    for seed in 1..=40 {
        let mut random = Random::new(seed);
        let faults = bad(&mut random);
        let size = [16, 900, 4_000, 30_000][random.below(4) as usize];
        let mut simulation = bulk(Config { seed, faults, ..Config::default() }, 1_000, size, UNRELIABLE);
        for n in 1..=random.below(3) {
            simulation.at(millis(n * (1 + random.below(20))), Change::Restart(HostId(1)));
        }
        simulation.settle(Duration::from_secs(600)).unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
        simulation.run_for(Duration::from_secs(10));
        let messages = simulation.messages();
        assert_eq!(simulation.violations(), [], "seed {seed}");
        assert_eq!((messages.returned, messages.unknown, messages.completed), (0, 0, 0), "seed {seed}");
        assert_eq!(messages.unreliable, 1_000, "seed {seed}");
        (lost, delivered) = (lost + messages.sent - messages.delivered, delivered + messages.delivered);
    }
    println!("{delivered} delivered, {lost} lost");
    assert!(lost > 2_000 && delivered > 10_000, "{lost} lost, {delivered} delivered");
}

/// As many messages are lost as packets: a small message is lost with its packet, and is not sent again.
#[test]
fn small_unreliable_messages_are_lost_as_packets_are_and_none_goes_again() {
    for loss in [10_000, 150_000] {
        let mut workload = Workload::new(Pattern::Bulk, 5_000, 800);
        (workload.service, workload.pace) = (UNRELIABLE, Some(Duration::from_micros(100)));
        let config = Config { faults: Faults::loss(loss), ..Config::default() };
        let mut simulation = Simulation::new(config, move |host| workload.program(host, 2));
        let report = simulation.settle(Duration::from_secs(600)).unwrap_or_else(|failure| panic!("{failure}"));
        simulation.run_for(Duration::from_secs(1));
        let part = simulation.messages().delivered as f64 / 5_000.0;
        let kept = 1.0 - f64::from(loss) / 1e6;
        assert!((part - kept).abs() < 0.03, "{part} of {kept}");
        assert!(report.packets.sent < 5_000 * 2, "one packet each, and acknowledgements: {:?}", report.packets);
    }
}

/// The record that opens the flow is sent again if it is lost; until it has arrived, messages go behind it in the stream.
#[test]
fn the_first_unreliable_messages_of_a_pair_are_not_lost_with_what_opens_their_flow() {
    for seed in 1..=60 {
        let config = Config { seed, faults: Faults::loss(300_000), ..Config::default() };
        let mut simulation = bulk(config, 3, 100, UNRELIABLE);
        simulation.settle(Duration::from_secs(60)).unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
        simulation.run_for(Duration::from_secs(10));
        assert_eq!(simulation.messages().delivered, 3, "seed {seed}");
    }
}

/// Congestion control bounds an endless sender: it is told *full*.
#[test]
fn a_flood_of_unreliable_messages_waits_for_the_network() {
    let link = weft_sim::Link { rate: 10_000_000, ..weft_sim::Link::default() };
    let mut simulation = bulk(Config { link, ..Config::default() }, u64::MAX, 1_000, UNRELIABLE);
    simulation.run_for(Duration::from_secs(10));
    let messages = simulation.messages();
    // 12.5 MB in 10 s, a window of 256 KiB and what waits for it.
    assert!(messages.sent < 13_500, "{messages:?}");
    assert!(messages.delivered > 10_000, "the sender goes on when there is room: {messages:?}");
    assert_eq!(simulation.violations(), []);
}

fn found(plant: Plant, service: Service) -> Vec<Wrong> {
    let mut simulation = bulk(Config::default(), 500, 100, service);
    simulation.plant(plant, 123);
    match simulation.settle(Duration::from_secs(60)) {
        Err(Failure::Violations(first, _)) => first.into_iter().map(|violation| violation.what).collect(),
        Err(other) => panic!("{other}"),
        Ok(_) => Vec::new(),
    }
}

#[test]
fn the_checker_finds_what_may_not_become_of_unreliable_messages_and_lets_them_be_lost() {
    assert_eq!(found(Plant::Lose, UNRELIABLE), []);
    assert_eq!(found(Plant::Repeat, UNRELIABLE), [Wrong::DeliveredTooOften]);
    assert_eq!(found(Plant::Change, UNRELIABLE), [Wrong::DeliveredTooOften]);
    // The receiver refuses it after all: it counts as lost.
    assert_eq!(found(Plant::Return, UNRELIABLE), []);
    assert_eq!(found(Plant::Lose, RECEPTION), [Wrong::Lost]);
    assert_eq!(found(Plant::Repeat, RECEPTION), [Wrong::DeliveredTooOften]);
}

#[test]
fn a_completion_of_reception_that_is_a_lie_is_found() {
    let mut workload = Workload::new(Pattern::Bulk, 500, 100);
    (workload.service, workload.asks) = (RECEPTION, true);
    let mut simulation = Simulation::new(Config::default(), move |host| workload.program(host, 2));
    simulation.plant(Plant::Lose, 123);
    let failure = simulation.settle(Duration::from_secs(60)).expect_err("one was not handed over");
    let Failure::Violations(first, _) = failure else { panic!("{failure}") };
    assert_eq!(first[0].what, Wrong::CompletedTooOften);
}

/// A message reported received was delivered; if the receiver is gone, every other message comes back.
#[test]
fn reception_is_told_of_what_was_received_and_of_nothing_else() {
    let (mut told, mut back) = (0, 0);
    for seed in 1..=60 {
        let mut random = Random::new(seed);
        let mut workload = Workload::new(Pattern::Bulk, 2_000, random.below(3_000) as usize);
        (workload.service, workload.asks, workload.gives_up) = (RECEPTION, true, true);
        let faults = bad(&mut random);
        let mut simulation =
            Simulation::new(Config { seed, faults, ..Config::default() }, move |host| workload.program(host, 2));
        let dies = random.chance(500_000);
        if dies {
            simulation.at(Duration::from_micros(200 + random.below(60_000)), Change::Crash(HostId(1)));
        }
        simulation.settle(Duration::from_secs(600)).unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
        let messages = simulation.messages();
        assert_eq!(
            messages.completed + messages.returned + messages.unknown,
            messages.sent,
            "seed {seed}: {messages:?}"
        );
        assert!(messages.completed <= messages.delivered, "seed {seed}: {messages:?}");
        if !dies {
            assert_eq!(messages.completed, 2_000, "seed {seed}");
        }
        (told, back) = (told + messages.completed, back + messages.returned + messages.unknown);
    }
    assert!(told > 50_000 && back > 100, "{told} received, {back} back");
}

/// Sends numbered messages to the second host, and returned ones again before anything else. The second host refuses some.
struct Numbered {
    service: Service,
    left: u32,
    next: u32,
    again: VecDeque<u32>,
    expected: u32,
    refused: u64,
    /// Whether the numbers came out of order.
    broken: bool,
}

impl Numbered {
    fn new(host: HostId, service: Service) -> Numbered {
        let left = if host.0 == 0 { 3_000 } else { 0 };
        Numbered { service, left, next: 0, again: VecDeque::new(), expected: 0, refused: 0, broken: false }
    }

    fn send(&mut self, cx: &mut Context<'_>) {
        loop {
            let number = match self.again.front() {
                Some(&number) => number,
                None if self.next < self.left => self.next,
                None => return,
            };
            let message = Outgoing { op: 1, args: &[number], payload: &[7; 50], completion: None };
            // Requests and one-way messages share one order.
            let sent = match number % 5 {
                0 => cx.try_request(HostId(1), message),
                _ => cx.try_send(HostId(1), message),
            };
            match sent {
                Ok(()) if self.again.pop_front().is_none() => self.next += 1,
                Ok(()) => {}
                Err(SendError::Full) => return,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

impl Program for Numbered {
    fn on_start(&mut self, cx: &mut Context<'_>) {
        cx.set_service(self.service);
        self.send(cx);
    }

    fn on_message(&mut self, cx: &mut Context<'_>, message: &Message<'_>) -> Result<(), Reason> {
        if cx.random().chance(20_000) {
            self.refused += 1;
            return Err(Reason::QueueFull);
        }
        self.broken |= message.args[0] != self.expected;
        self.expected = message.args[0] + 1;
        Ok(())
    }

    fn on_returned(&mut self, cx: &mut Context<'_>, message: Returned) {
        self.again.push_back(message.args[0]);
        self.send(cx);
    }

    fn on_notice(&mut self, cx: &mut Context<'_>, _notice: Notice) {
        self.send(cx);
    }

    fn is_done(&self) -> bool {
        self.next == self.left && self.again.is_empty()
    }
}

/// Runs it over a bad link. Returns how many messages were refused, and whether order held.
fn numbered(seed: u64, service: Service) -> (u64, bool) {
    let mut random = Random::new(seed);
    let faults = bad(&mut random);
    let mut simulation =
        Simulation::new(Config { seed, faults, ..Config::default() }, move |host| Numbered::new(host, service));
    simulation.settle(Duration::from_secs(600)).unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    let receiver = simulation.program(HostId(1)).expect("it lives");
    (receiver.refused, !receiver.broken && receiver.expected == 3_000)
}

#[test]
fn on_an_ordered_pair_nothing_overtakes_what_was_refused() {
    for seed in 1..=20 {
        for service in [ORDERED, RECEPTION] {
            let (refused, in_order) = numbered(seed, service);
            assert!(refused > 20, "seed {seed}: {refused} refused");
            assert!(in_order, "seed {seed}: {service:?}");
        }
    }
}

#[test]
#[should_panic(expected = "out of order")]
fn on_a_pair_that_is_not_ordered_what_follows_does_overtake() {
    let (_, in_order) = numbered(1, Service::default());
    assert!(in_order, "out of order");
}
