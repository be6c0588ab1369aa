//! A host with many interfaces, only one of which leads to the other host.

use super::lab::{in_lab, obey, Lab, Wire, INTERFACE};
use super::support::BOUND;
use std::time::{Duration, Instant};

/// The time limit for a session, whatever addresses do not answer.
const MOST: Duration = Duration::from_secs(2);

/// Interfaces that do not lead to the other host.
const DEAD: usize = 19;

/// Adds interfaces to a host that lead nowhere, every third without a carrier. The first one has the default route.
fn with_dead_interfaces(lab: &mut Lab) {
    let host = &mut lab.b;
    for number in 0..DEAD {
        obey(host, &format!("ip link add dead{number} type veth peer name to{number}"));
        obey(host, &format!("ip addr add 10.80.{number}.1/24 dev dead{number}"));
        obey(host, &format!("ip link set dead{number} up"));
        if number % 3 != 2 {
            obey(host, &format!("ip link set to{number} up"));
        }
    }
    obey(host, "carrier dead0");
    obey(host, "ip route add default via 10.80.0.2");
    // Only the interface with an address answers ARP for it; otherwise all addresses would be found through the one that is alive.
    obey(host, "write /proc/sys/net/ipv4/conf/all/arp_ignore 1");
    obey(&mut lab.a, &format!("ip route add 10.80.0.0/16 dev {INTERFACE}"));
}

#[test]
fn of_twenty_interfaces_the_one_that_leads_there_is_found_and_the_others_have_their_reasons() {
    let test = "interfaces::of_twenty_interfaces_the_one_that_leads_there_is_found_and_the_others_have_their_reasons";
    in_lab(test, || {
        let mut lab = Lab::new(1500);
        let wire = Wire::start("");
        with_dead_interfaces(&mut lab);
        // The host's names carry three addresses: the first, which is dead, the one that is alive, and another dead one.
        let reasons = lab.b.ask("doctor");
        let (carried, left_out) = reasons.split_once("; not ").expect("some are left out");
        for interface in ["dead0", INTERFACE, "dead1"] {
            assert!(carried.contains(&format!("({interface})")), "{reasons}");
        }
        for number in 2..DEAD {
            let why = if number % 3 == 2 { "down, or without a carrier" } else { "names have no room for more" };
            let reason = format!("10.80.{number}.1 (dead{number}): {why}");
            assert!(left_out.contains(&reason), "{reason}: {reasons}");
        }
        lab.b.say("receive");
        let there = lab.b.hear();
        lab.a.say(&format!("send {there}"));
        assert_eq!(lab.a.hear(), "ready");
        let start = Instant::now();
        lab.a.say("ask 1");
        assert_eq!(lab.a.hear_for(BOUND).as_deref(), Some("answered"));
        assert!(start.elapsed() < MOST, "{:?}", start.elapsed());
        wire.stop();
    });
}
