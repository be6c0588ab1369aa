//! The checker finds what it must find, and the fault injector injects what it should.

use std::time::Duration;
use weft_sim::{
    Change, Config, Failure, Faults, HostId, Links, Load, Pattern, Plant, Rule, Simulation, Target, Topology, Workload,
    Wrong,
};

fn simulation(config: Config, pattern: Pattern, count: u64, asks: bool) -> Simulation<Load> {
    let mut workload = Workload::new(pattern, count, 100);
    workload.asks = asks;
    Simulation::new(config, move |host| workload.program(host, config.topology.hosts()))
}

/// The violations found after one planted fault.
fn found(plant: Plant, pattern: Pattern, asks: bool) -> Vec<Wrong> {
    let mut simulation = simulation(Config::default(), pattern, 500, asks);
    simulation.plant(plant, 123);
    match simulation.settle(Duration::from_secs(60)) {
        Err(Failure::Violations(first, all)) => {
            assert_eq!(first.len() as u64, all);
            first.into_iter().map(|violation| violation.what).collect()
        }
        other => panic!("{plant:?} among {pattern:?} was not found: {other:?}"),
    }
}

#[test]
fn every_planted_fault_is_found_among_messages_of_every_kind() {
    for (pattern, asks) in [(Pattern::Bulk, false), (Pattern::Bulk, true), (Pattern::ClientServer, false)] {
        let lost = found(Plant::Lose, pattern, asks);
        assert!(lost == [Wrong::Lost] || lost == [Wrong::CompletedTooOften, Wrong::Lost], "{lost:?}");
        assert_eq!(found(Plant::Repeat, pattern, asks)[0], Wrong::DeliveredTooOften);
        let changed = found(Plant::Change, pattern, asks);
        assert!(changed.contains(&Wrong::DeliveredTooOften) && changed.contains(&Wrong::Lost), "{changed:?}");
    }
    // A reply is not sent back, whatever its handler returns.
    for asks in [false, true] {
        assert_eq!(found(Plant::Return, Pattern::Bulk, asks)[0], Wrong::ReturnedTooOften);
    }
}

#[test]
fn a_run_that_does_not_settle_says_so() {
    let mut simulation = simulation(Config::default(), Pattern::PingPong, 1000, false);
    simulation.at(Duration::from_millis(1), Change::Isolate { host: HostId(1), from: true, to: true });
    let failure = simulation.settle(Duration::from_secs(1)).expect_err("the peer is silent");
    assert_eq!(failure, Failure::Unsettled { messages: 1, programs: 1 });
}

/// A rule drops exactly what it aims at, and no message is lost for good.
#[test]
fn rules_hit_what_they_aim_at_and_nothing_is_lost_for_good() {
    for target in [Target::Acks, Target::Retransmissions, Target::Fresh, Target::SetUp, Target::Every] {
        for chance in [300_000, 700_000] {
            let rule = Rule { target, every: 1, chance };
            let faults = Faults { rule: Some(rule), ..Faults::loss(50_000) };
            let mut simulation = simulation(Config { faults, ..Config::default() }, Pattern::Bulk, 3000, true);
            let report = simulation.settle(Duration::from_secs(3600)).unwrap_or_else(|f| panic!("{target:?}: {f}"));
            assert_eq!((report.messages.delivered, report.messages.unknown), (3000, 0), "{target:?}");
            assert!(report.packets.aimed_at > 0, "{target:?}");
        }
    }
}

#[test]
fn a_peer_that_is_not_heard_is_lost_and_what_it_may_have_is_unknown() {
    let mut workload = Workload::new(Pattern::Bulk, 1_000_000, 100);
    workload.gives_up = true;
    let mut simulation = Simulation::new(Config::default(), move |host| workload.program(host, 2));
    simulation.run_until(Duration::from_micros(400));
    let rule = Rule { target: Target::Every, every: 1, chance: 1_000_000 };
    simulation.change(Change::Faults(Links::From(HostId(1)), Faults { rule: Some(rule), ..Faults::default() }));
    simulation.run_until(Duration::from_secs(4));
    let messages = simulation.messages();
    assert_eq!((simulation.violations(), simulation.open_messages()), (vec![], 0));
    assert!(messages.unknown > 0 && messages.delivered + messages.returned <= messages.sent, "{messages:?}");
}

#[test]
fn a_full_queue_drops_and_everything_arrives_all_the_same() {
    let link = weft_sim::Link { queue: 20_000, rate: 100_000_000, ..weft_sim::Link::default() };
    let config = Config { topology: Topology::Star(9), link, ..Config::default() };
    let report = simulation(config, Pattern::Incast, 2000, false).settle(Duration::from_secs(600)).expect("settles");
    assert!(report.packets.queue_full > 0);
    assert_eq!(report.messages.delivered, 8 * 2000);
}

#[test]
fn a_restarted_host_is_another_one_and_gets_nothing_of_the_old_ones() {
    let mut workload = Workload::new(Pattern::ClientServer, 3000, 100);
    workload.persists = true;
    let config = Config { topology: Topology::Star(4), ..Config::default() };
    let mut simulation = Simulation::new(config, move |host| workload.program(host, 4));
    for n in 1..6 {
        simulation.at(Duration::from_millis(4 * n), Change::Restart(HostId(0)));
    }
    simulation.at(Duration::from_millis(3), Change::Crash(HostId(2)));
    let report = simulation.settle(Duration::from_secs(60)).unwrap_or_else(|failure| panic!("{failure}"));
    assert!(report.messages.returned + report.messages.unknown > 0);
    assert!(report.messages.completed >= 2 * 3000, "{:?}", report.messages);
    assert!(simulation.program(HostId(2)).is_none());
}
