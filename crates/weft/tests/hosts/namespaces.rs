//! Two network namespaces joined by a veth pair: hosts of their own, as far as the network is concerned. They are made by
//! `unshare` and `ip`, by root or by an ordinary user who may have user namespaces, and end with their processes.

use super::support::{again, insist, left_out, poll_until, tell, turn, Orders, Peer, BOUND};
use super::{contents, deaths, Client, ECHO};
use std::process::Command;
use std::time::Instant;
use weft::{HostAddress, MessageKind, Outgoing};

/// The interface in each of the two. A name that begins with `veth` would be taken for a container's.
const INTERFACE: &str = "weft0";

pub fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output().expect("ip, of iproute2");
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Waits until the kernel reports the interface's carrier, which can take a moment.
pub fn wait_for_carrier(interface: &str) {
    let start = Instant::now();
    let is_up = || {
        let output = Command::new("ip").args(["-br", "link", "show", interface]).output().expect("ip, of iproute2");
        String::from_utf8_lossy(&output.stdout).split_whitespace().nth(1) == Some("UP")
    };
    while !is_up() {
        assert!(start.elapsed() < BOUND, "{interface} has no carrier");
    }
}

/// The far side: sets its interface up as it is told, until it is told to serve.
pub fn far(orders: Orders) {
    tell("there");
    while let Some(line) = orders.wait().filter(|line| line != "serve") {
        match line.strip_prefix("carrier ") {
            Some(interface) => wait_for_carrier(interface),
            None => ip(&line),
        }
        tell("done");
    }
    super::server(orders);
}

/// The command that makes a network namespace here, if there is one, with these further options of `unshare`.
pub fn unshare(options: &[&'static str]) -> Option<Vec<&'static str>> {
    let ways: [&[&str]; 2] = [&["unshare", "--net"], &["unshare", "--user", "--map-root-user", "--net"]];
    let works = |way: &Vec<&str>| {
        let output = Command::new(way[0]).args(&way[1..]).args(["ip", "link", "set", "lo", "up"]).output();
        output.is_ok_and(|output| output.status.success())
    };
    ways.into_iter().map(|way| [way, options].concat()).find(works)
}

/// Another process of this program in a network namespace of its own, for [`far`].
pub fn start_far() -> Peer {
    let mut command = Command::new("unshare");
    command.arg("--net").arg(std::env::current_exe().expect("this program"));
    let far = Peer::start_by(command, "far", &[], &[]);
    assert_eq!(far.hear(), "there");
    far
}

/// Both sides of a network, which carries packets of 1,500 bytes.
struct Sides {
    client: Client,
    far: Peer,
}

impl Sides {
    /// The two sides have these addresses, and each is the other's default route.
    fn of([here, there]: [&str; 2], bits: u32) -> Sides {
        let mut far = start_far();
        ip(&format!("link add {INTERFACE} type veth peer name {INTERFACE} netns {}", far.id()));
        // Skip IPv6 duplicate address detection, which takes time.
        let no_doubt = if bits == 64 { " nodad" } else { "" };
        let set_up = |own: &str, other: &str| {
            [
                "link set lo up".to_owned(),
                format!("addr add {own}/{bits} dev {INTERFACE}{no_doubt}"),
                format!("link set {INTERFACE} up"),
                format!("route add default via {other}"),
            ]
        };
        for order in set_up(there, here) {
            assert_eq!(far.ask(&order), "done");
        }
        set_up(here, there).iter().for_each(|order| ip(order));
        far.say("serve");
        let address = far.address();
        // By default names carry the address with the default route.
        assert_eq!(ip_of(address.name.address), there);
        let client = Client::of(&[address]);
        assert_eq!(ip_of(client.bundle.name(client.here).expect("name").address), here);
        Sides { client, far }
    }

    /// Requests and one-way messages of all sizes; none comes back.
    fn talk(&mut self, rounds: u32) {
        let Sides { client, .. } = self;
        for round in 0..rounds {
            client.ask(0, round, [0, 100, 1400, 8192, 65_536][round as usize % 5]);
        }
        // Many at once, because these go differently: as one datagram that the kernel splits.
        let (args, payload) = contents(1, 3, 30_000);
        for _ in 0..rounds {
            let message = Outgoing { op: ECHO, args: &args, payload: &payload, completion: None };
            insist(&mut client.bundle, client.here, 0, MessageKind::Request, message);
        }
        let answers = client.answers.clone();
        poll_until(&mut client.bundle, "all answers", |_| answers.borrow().len() == rounds as usize);
        answers.borrow_mut().clear();
        client.bundle.drain();
        let counters = client.bundle.counters();
        assert_eq!((counters.returned, counters.sessions_lost, client.bundle.sessions()), (0, 0, 1));
    }
}

pub fn ip_of(address: HostAddress) -> String {
    std::net::Ipv6Addr::from(address.ip).to_canonical().to_string()
}

/// Talks over a path of 1,500 bytes, then over one whose MTU suddenly shrinks on either side, then over the old one again.
fn talk_between(test: &str, addresses: [&str; 2], bits: u32) {
    let Some(way) = unshare(&[]) else {
        let _turn = turn(test);
        return left_out(&format!("{test}: no network namespace is to be had here, not as an ordinary user either"));
    };
    let Some(_turn) = again(test, &way, &[]) else { return };
    let mut sides = Sides::of(addresses, bits);
    sides.talk(40);
    for (is_far, mtu) in [(false, 1280), (false, 1500), (true, 1280), (true, 1500)] {
        let order = format!("link set {INTERFACE} mtu {mtu}");
        match is_far {
            true => assert_eq!(sides.far.ask(&order), "done"),
            false => ip(&order),
        }
        sides.talk(40);
    }
    assert_eq!(sides.far.ask("sessions"), "1 0");
    sides.far.finish();
}

#[test]
fn two_namespaces_talk_over_ipv4_while_the_path_shrinks() {
    talk_between("namespaces::two_namespaces_talk_over_ipv4_while_the_path_shrinks", ["10.77.0.1", "10.77.0.2"], 24);
}

#[test]
fn two_namespaces_talk_over_ipv6_while_the_path_shrinks() {
    talk_between("namespaces::two_namespaces_talk_over_ipv6_while_the_path_shrinks", ["fd77::1", "fd77::2"], 64);
}

/// A process is killed while much is under way, on a host that lives on. That host's kernel limits the refusals that it sends per
/// second.
#[test]
fn a_process_that_is_killed_in_another_namespace_is_noticed_soon() {
    let test = "namespaces::a_process_that_is_killed_in_another_namespace_is_noticed_soon";
    let Some(way) = unshare(&[]) else {
        let _turn = turn(test);
        return left_out(&format!("{test}: no network namespace is to be had here, not as an ordinary user either"));
    };
    let Some(_turn) = again(test, &way, &[]) else { return };
    let Sides { client, far } = Sides::of(["10.77.0.1", "10.77.0.2"], 24);
    let own = client.bundle.name(client.here).expect("name");
    for round in 0..3 {
        // A second process of the far host, which outlives it.
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", far.id())).arg(std::env::current_exe().expect("this program"));
        let mut victim = Peer::start_by(command, "server", &[], &[]);
        let there = victim.address();
        let mut client = Client::of(&[there]);
        assert_eq!(client.bundle.name(client.here).expect("name").address.ip, own.address.ip);
        if round == 0 {
            deaths::lose_soon(&mut client, &mut victim);
            continue;
        }
        client.ask(0, 1, 10);
        let mut stopped = false;
        let mut sent = 0;
        let (args, payload) = contents(1, 3, 30_000);
        let since = Instant::now();
        while !stopped {
            let message = Outgoing { op: ECHO, args: &args, payload: &payload, completion: None };
            sent += u32::from(client.bundle.try_post(client.here, 0, MessageKind::Request, message).is_ok());
            client.bundle.poll();
            if since.elapsed() > std::time::Duration::from_millis(100) {
                victim.kill();
                stopped = true;
            }
        }
        let killed = Instant::now();
        poll_until(&mut client.bundle, "the end", |bundle| bundle.sessions() == 0);
        let took = killed.elapsed();
        eprintln!("a process killed under {sent} requests was noticed after {took:?}");
        assert!(took < std::time::Duration::from_millis(2000), "{took:?}");
        assert!(client.returns.borrow().iter().all(|back| back.reason == weft::Reason::PeerLost));
    }
    far.finish();
}
