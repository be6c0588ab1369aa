//! Hosts with several addresses: which of them names carry, and which are used.

use super::namespaces::{ip, ip_of, start_far, unshare, wait_for_carrier};
use super::support::{again, left_out, tell, turn, Address, Order, Orders, Peer};
use super::Client;
use std::process::Command;
use std::time::{Duration, Instant};
use weft::{Bundle, Key, Name, Node};

/// How long a message may take to find another path.
const SIDE_BY_SIDE: Duration = Duration::from_secs(2);

fn addresses_of(name: Name) -> Vec<String> {
    name.address.each().map(ip_of).collect()
}

/// Reports the addresses that its name carries.
pub fn namer(_: Orders) {
    let mut bundle = Bundle::new(&Node::new().expect("node")).expect("bundle");
    let here = bundle.endpoint(Key(1)).expect("endpoint");
    tell(addresses_of(bundle.name(here).expect("name")).join(" "));
}

/// A server that sleeps whenever it may.
pub fn sleeper(orders: Orders) {
    let mut bundle = Bundle::new(&Node::new().expect("node")).expect("bundle");
    let here = bundle.endpoint_with_random_key().expect("endpoint");
    super::answer(&mut bundle, here, 0, &super::Log { file: None, back: Default::default() });
    tell(Address::of(&bundle, here));
    bundle.set_spin_limit(Duration::ZERO);
    while !matches!(orders.look(), Order::End) {
        bundle.wait(Some(Duration::from_secs(1)));
    }
}

/// Two hosts on two networks. The first network has the default route.
struct Sides {
    far: Peer,
    there: Address,
}

const NETWORKS: [(&str, &str); 2] = [("weft0", "10.77.0"), ("weft1", "10.77.1")];

impl Sides {
    fn new() -> Sides {
        let mut far = start_far();
        for (interface, _) in NETWORKS {
            ip(&format!("link add {interface} type veth peer name {interface} netns {}", far.id()));
        }
        let set_up = |host: u8| {
            let each = |(interface, network): (&str, &str)| {
                [format!("addr add {network}.{host}/24 dev {interface}"), format!("link set {interface} up")]
            };
            let other = 3 - host;
            let route = format!("route add default via {}.{other}", NETWORKS[0].1);
            NETWORKS.into_iter().flat_map(each).chain([route]).collect::<Vec<_>>()
        };
        for order in set_up(2) {
            assert_eq!(far.ask(&order), "done");
        }
        set_up(1).iter().for_each(|order| ip(order));
        for (interface, _) in NETWORKS {
            wait_for_carrier(interface);
            assert_eq!(far.ask(&format!("carrier {interface}")), "done");
        }
        far.say("serve");
        let there = far.address();
        assert_eq!(addresses_of(there.name), ["10.77.0.2", "10.77.1.2"]);
        Sides { far, there }
    }

    /// The time until a new process has the answer to its first message.
    fn time_to_answer(&self) -> (Duration, Client) {
        let mut client = Client::of(&[self.there]);
        let start = Instant::now();
        client.ask(0, 1, 100);
        let took = start.elapsed();
        // A large message uses the path that was found.
        client.ask(0, 2, 60_000);
        (took, client)
    }
}

/// Runs a test of two sides in a namespace of its own, if one can be made.
fn in_namespaces(test: &str, run: impl FnOnce(Sides)) {
    let Some(way) = unshare(&[]) else {
        let _turn = turn(test);
        return left_out(&format!("{test}: no network namespace is to be had here, not as an ordinary user either"));
    };
    let Some(_turn) = again(test, &way, &[]) else { return };
    ip("link set lo up");
    run(Sides::new());
}

#[test]
fn a_first_address_that_does_not_answer_is_found_out_within_two_seconds() {
    let test = "addresses::a_first_address_that_does_not_answer_is_found_out_within_two_seconds";
    in_namespaces(test, |mut sides| {
        let (at_once, client) = sides.time_to_answer();
        assert_eq!(addresses_of(client.bundle.name(client.here).expect("name")), ["10.77.0.1", "10.77.1.1"]);
        drop(client);
        // No host has it any more, so ARP requests for it are not answered.
        assert_eq!(sides.far.ask("addr del 10.77.0.2/24 dev weft0"), "done");
        let (took, client) = sides.time_to_answer();
        assert!(took < SIDE_BY_SIDE && took > at_once, "{took:?}");
        assert_eq!(client.bundle.sessions(), 1);
        assert_eq!(sides.far.ask("sessions"), "1 0");
        sides.far.finish();
    });
}

#[test]
fn a_dead_network_or_one_without_a_way_is_passed_over() {
    in_namespaces("addresses::a_dead_network_or_one_without_a_way_is_passed_over", |mut sides| {
        // Packets to there vanish, and so do their answers.
        for [break_it, mend_it] in [
            ["route add blackhole 10.77.0.2/32", "route del blackhole 10.77.0.2/32"],
            ["route add unreachable 10.77.0.2/32", "route del unreachable 10.77.0.2/32"],
            ["link set weft0 down", "link set weft0 up"],
        ] {
            ip(break_it);
            let (took, client) = sides.time_to_answer();
            assert!(took < SIDE_BY_SIDE, "{break_it}: {took:?}");
            assert_eq!((client.bundle.sessions(), client.bundle.counters().returned), (1, 0));
            drop(client);
            ip(mend_it);
            wait_for_carrier("weft0");
        }
        // The far side's interface is down: ours has no carrier.
        assert_eq!(sides.far.ask("link set weft0 down"), "done");
        let (took, client) = sides.time_to_answer();
        assert!(took < SIDE_BY_SIDE, "{took:?}");
        assert_eq!((client.bundle.sessions(), client.bundle.counters().returned), (1, 0));
        assert_eq!(sides.far.ask("sessions"), "1 0");
        sides.far.finish();
    });
}

#[test]
fn a_session_over_a_network_that_dies_is_made_anew_over_another() {
    in_namespaces("addresses::a_session_over_a_network_that_dies_is_made_anew_over_another", |mut sides| {
        let (_, mut client) = sides.time_to_answer();
        assert_eq!(sides.far.ask("addr del 10.77.0.2/24 dev weft0"), "done");
        client.bundle.request(client.here, 0, super::ECHO, &[1], b"lost").expect("mapped");
        let returns = client.returns.clone();
        super::poll_until(&mut client.bundle, "a return", |_| !returns.borrow().is_empty());
        assert_eq!(returns.borrow()[0].reason, weft::Reason::Silent);
        // The next message comes back as well; then the other network is found.
        client.bundle.request(client.here, 0, super::ECHO, &[2], b"").expect("mapped");
        super::poll_until(&mut client.bundle, "a return", |_| returns.borrow().len() == 2);
        returns.borrow_mut().clear();
        let start = Instant::now();
        client.ask(0, 3, 100);
        assert!(start.elapsed() < SIDE_BY_SIDE, "{:?}", start.elapsed());
        sides.far.finish();
    });
}

#[test]
fn a_process_whose_address_was_replaced_calls_from_the_new_one() {
    in_namespaces("addresses::a_process_whose_address_was_replaced_calls_from_the_new_one", |mut sides| {
        ip("link set weft1 down");
        assert_eq!(sides.far.ask("link set weft1 down"), "done");
        let (_, mut client) = sides.time_to_answer();
        assert_eq!(addresses_of(client.bundle.name(client.here).expect("name")), ["10.77.0.1"]);
        // As when a lease ends.
        ip("addr del 10.77.0.1/24 dev weft0");
        ip("addr add 10.77.0.9/24 dev weft0");
        ip("route add default via 10.77.0.2");
        client.bundle.request(client.here, 0, super::ECHO, &[1], b"lost").expect("mapped");
        let returns = client.returns.clone();
        super::poll_until(&mut client.bundle, "a return", |_| !returns.borrow().is_empty());
        assert_eq!(returns.borrow()[0].reason, weft::Reason::Silent);
        client.bundle.request(client.here, 0, super::ECHO, &[2], b"").expect("mapped");
        super::poll_until(&mut client.bundle, "a return", |_| returns.borrow().len() == 2);
        returns.borrow_mut().clear();
        let start = Instant::now();
        for seed in 0..300 {
            client.ask(0, seed, 100);
        }
        assert!(start.elapsed() < SIDE_BY_SIDE, "{:?}", start.elapsed());
        // It is reached at the new address.
        let second = client.bundle.endpoint(Key(5)).expect("endpoint");
        let name = client.bundle.name(second).expect("name");
        assert_eq!(addresses_of(name), ["10.77.0.9"]);
        // While asleep, it is woken by packets to the new address.
        client.bundle.set_spin_limit(Duration::ZERO);
        let start = Instant::now();
        for round in 0..20 {
            client.bundle.request(client.here, 0, super::ECHO, &[round], b"").expect("mapped");
            while client.answers.borrow().is_empty() {
                client.bundle.wait(Some(Duration::from_secs(1)));
            }
            client.answers.borrow_mut().clear();
        }
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
        sides.far.finish();
    });
}

#[test]
fn names_leave_out_bridges_and_what_leads_nowhere() {
    let test = "addresses::names_leave_out_bridges_and_what_leads_nowhere";
    let Some(way) = unshare(&["--mount"]) else {
        let _turn = turn(test);
        return left_out(&format!("{test}: no network namespace is to be had here, not as an ordinary user either"));
    };
    let Some(_turn) = again(test, &way, &[]) else { return };
    // /sys shows the interfaces of the namespace in which it was mounted, so mount it again.
    if !Command::new("mount").args(["-t", "sysfs", "sysfs", "/sys"]).status().is_ok_and(|status| status.success()) {
        return left_out(&format!("{test}: /sys cannot be mounted here"));
    }
    // Each is paired with an interface without an address; the bridge has one end of a pair as its port.
    let add = |name: &str, address: &str| {
        let port = format!("{name}p");
        ip(&format!("link add {port} type veth peer name {name}q"));
        match name {
            "lan0" => {
                ip("link add lan0 type bridge");
                ip("link set lan0q master lan0 up");
            }
            _ => ip(&format!("link set {name}q name {name}")),
        }
        ip(&format!("addr add {address} dev {name}"));
        ip(&format!("link set {port} up"));
        ip(&format!("link set {name} up"));
        wait_for_carrier(name);
    };
    add("docker0", "172.17.0.1/16");
    add("lan0", "172.18.0.1/16");
    add("first0", "10.78.0.1/24");
    add("local0", "169.254.7.1/16");
    add("down0", "10.78.9.1/24");
    ip("link set down0 down");
    add("next0", "10.78.1.1/24");
    let said = || {
        let peer = Peer::start("namer", &[]);
        let line = peer.hear();
        peer.finish();
        line
    };
    assert_eq!(said(), "10.78.0.1 10.78.1.1");
    ip("route add default via 10.78.1.2");
    assert_eq!(said(), "10.78.1.1 10.78.0.1");
    add("more0", "10.78.2.1/24");
    add("many0", "10.78.3.1/24");
    assert_eq!(said(), "10.78.1.1 10.78.0.1 10.78.2.1");
    // Names carry the bridge's address if it has the default route.
    ip("route replace default via 172.18.0.2");
    assert_eq!(said(), "172.18.0.1 10.78.0.1 10.78.1.1");
}

#[test]
fn a_process_is_reached_at_all_addresses_that_are_set_and_reaches_itself() {
    let test = "addresses::a_process_is_reached_at_all_addresses_that_are_set_and_reaches_itself";
    let environment = [("WEFT_ADDR", "127.0.0.1,127.0.0.2,127.0.0.3"), ("WEFT_LOCAL", "off")];
    let Some(_turn) = again(test, &[], &environment) else { return };
    let mut peer = Peer::start("server", &[]);
    let there = peer.address();
    assert_eq!(addresses_of(there.name), ["127.0.0.1", "127.0.0.2", "127.0.0.3"]);
    let each = there.name.address.each().map(|address| Address { name: Name { address, ..there.name }, ..there });
    let mut client = Client::of(&std::iter::once(there).chain(each).collect::<Vec<_>>());
    for to in 0..4 {
        for seed in 0..100 {
            client.ask(to, seed, 50 * seed as usize);
        }
    }
    // The whole name, and the name with only its first address, share a session.
    assert_eq!(peer.ask("sessions"), "3 0");
    let own = client.bundle.name(client.here).expect("name");
    assert_eq!(addresses_of(own), ["127.0.0.1", "127.0.0.2", "127.0.0.3"]);
    peer.finish();
}

#[test]
fn a_process_that_sleeps_wakes_up_for_what_comes_to_any_of_its_addresses() {
    let test = "addresses::a_process_that_sleeps_wakes_up_for_what_comes_to_any_of_its_addresses";
    let environment = [("WEFT_ADDR", "127.0.0.1,127.0.0.2,127.0.0.3"), ("WEFT_LOCAL", "off")];
    let Some(_turn) = again(test, &[], &environment) else { return };
    let peer = Peer::start("sleeper", &[]);
    let there = peer.address();
    let each = there.name.address.each().map(|address| Address { name: Name { address, ..there.name }, ..there });
    let mut client = Client::of(&each.collect::<Vec<_>>());
    let start = Instant::now();
    for round in 0..30 {
        for to in 0..3 {
            client.ask(to, round, 100);
        }
    }
    // It wakes up by itself once in a second.
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    peer.finish();
}

#[test]
fn a_bundle_that_calls_itself_over_the_network_is_answered() {
    let test = "addresses::a_bundle_that_calls_itself_over_the_network_is_answered";
    let Some(_turn) = super::support::over_udp(test) else { return };
    let mut client = Client::of(&[]);
    let (own, key) = (client.bundle.name(client.here).expect("name"), client.bundle.key(client.here).expect("key"));
    client.bundle.map(client.here, 0, own, key).expect("map");
    let log = super::Log { file: None, back: Default::default() };
    super::answer(&mut client.bundle, client.here, 0, &log);
    // Enough for a socket of its own, which is connected to itself.
    for seed in 0..1000 {
        client.ask(0, seed, [0, 100, 60_000][seed as usize % 3]);
    }
    let counters = client.bundle.counters();
    assert_eq!((counters.returned, counters.sessions_lost, counters.violations), (0, 0, 0));
}
