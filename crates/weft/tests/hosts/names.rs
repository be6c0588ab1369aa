//! The addresses that names carry, and the errors for invalid settings.

use super::support::{again, over_udp, poll_until, tell, Address, Orders, Peer};
use super::{Client, ECHO};
use std::ffi::OsStr;
use std::net::UdpSocket;
use weft::{Bundle, Certainty, HostAddress, Key, Name, Node, Reason};
use weft_wire::Epoch;

/// Opens a node and a bundle, and reports the port of its name, or the error.
pub fn opener(_: Orders) {
    let opened = Node::new().and_then(|node| {
        let mut bundle = Bundle::new(&node)?;
        let here = bundle.endpoint(Key(1))?;
        bundle.name(here)
    });
    match opened {
        Ok(name) if name.address.is_none() => tell("none"),
        Ok(name) => tell(name.address.port),
        Err(error) => tell(error),
    }
}

/// The report of an opener with this environment.
fn said(environment: &[(&str, &str)]) -> String {
    let environment: Vec<(&str, &OsStr)> = environment.iter().map(|(name, value)| (*name, OsStr::new(value))).collect();
    let peer = Peer::start_with("opener", &[], &environment);
    let line = peer.hear();
    peer.finish();
    line
}

#[test]
fn a_port_in_use_is_told_with_the_way_out() {
    let Some(_turn) = over_udp("names::a_port_in_use_is_told_with_the_way_out") else { return };
    let taken = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let port = taken.local_addr().expect("bound").port();
    let line = said(&[("WEFT_PORT", &port.to_string())]);
    for part in [&port.to_string(), "127.0.0.1", "in use", "WEFT_PORT"] {
        assert!(line.contains(part), "{part}: {line}");
    }
    // From a range the first free port is taken; the next one may be in use as well.
    let line = said(&[("WEFT_PORT", &format!("{port}-{}", port.saturating_add(50)))]);
    let got: u16 = line.parse().unwrap_or_else(|_| panic!("{line}"));
    assert!(got > port && got <= port.saturating_add(50), "{got}");
    drop(taken);
    assert_eq!(said(&[("WEFT_PORT", &port.to_string())]), port.to_string());
}

#[test]
fn invalid_settings_are_reported_by_their_names() {
    let Some(_turn) = over_udp("names::invalid_settings_are_reported_by_their_names") else { return };
    for (variable, value) in [
        ("WEFT_ADDR", "localhost"),
        ("WEFT_ADDR", "127.0.0.1:7"),
        ("WEFT_ADDR", "0.0.0.0"),
        ("WEFT_ADDR", "224.0.0.1"),
        ("WEFT_PORT", "0"),
        ("WEFT_PORT", "65536"),
        ("WEFT_PORT", "9-8"),
        ("WEFT_PORT", "http"),
        // Another host's address.
        ("WEFT_ADDR", "192.0.2.1"),
    ] {
        let line = said(&[(variable, value)]);
        assert!(line.contains(variable) && line.contains(value), "{variable}={value}: {line}");
    }
}

#[test]
fn without_a_network_names_carry_no_address_and_this_host_is_reached() {
    let name = "names::without_a_network_names_carry_no_address_and_this_host_is_reached";
    let Some(_turn) = again(name, &[], &[("WEFT_ADDR", "none")]) else { return };
    let local = Peer::start("server", &[]);
    let there = local.address();
    assert_eq!(there.name.address, HostAddress::NONE);
    // A name of another host: with another epoch and an address.
    let ip = std::net::Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets();
    let silent = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let address = HostAddress { ip, port: silent.local_addr().expect("bound").port() };
    let far = Name { epoch: Epoch(there.name.epoch.0 ^ 1), address, ..there.name };
    let mut client = Client::of(&[there, Address { name: far, key: there.key }]);
    client.ask(0, 1, 100);
    client.bundle.request(client.here, 1, ECHO, &[3], b"far").expect("mapped");
    let returns = client.returns.clone();
    poll_until(&mut client.bundle, "a return", |_| !returns.borrow().is_empty());
    let back = returns.borrow_mut().remove(0);
    assert_eq!((back.reason, back.certainty), (Reason::NobodyThere, Certainty::NotDelivered));
    assert_eq!((back.args, back.payload), (vec![3], b"far".to_vec()));
    silent.set_nonblocking(true).expect("a socket");
    assert!(silent.recv(&mut [0; 9]).is_err(), "nothing was sent there");
    client.ask(0, 2, 100);
    local.finish();
}
