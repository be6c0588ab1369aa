//! Packets that are suddenly lost because of their size, and strangers who claim that they are.

use super::lab::{in_lab, in_lab_for_long, Wire, ADDRESSES};
use super::messages::Talk;
use super::support::{wait_until, Peer};
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{bind, send, socket, AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType};
use std::fmt::Write;
use std::os::fd::AsRawFd;

/// A scenario with these MTUs, each for this many milliseconds.
fn steps(sizes: &[u32], each_ms: usize) -> String {
    let mut scenario = String::new();
    for (at, mtu) in sizes.iter().enumerate() {
        let _ = write!(scenario, "[[step]]\nat = \"{}ms\"\nmtu = {mtu}\n", at * each_ms);
    }
    scenario
}

/// Streams while the wire's MTU changes; the wire silently drops packets that are too large.
fn while_sizes_change(sizes: &[u32], each_ms: usize) {
    let path = std::env::temp_dir().join(format!("weft-wire-{}.toml", std::process::id()));
    std::fs::write(&path, steps(sizes, each_ms)).expect("the directory for temporary files can be written");
    let mut talk = Talk::start(9000);
    // The steps follow the wire's time; a rate limits how much can be sent in it.
    let wire = Wire::start(&format!("--rate 50Mbit --scenario {}", path.display()));
    let start = std::time::Instant::now();
    talk.begin();
    let mut sent = 0;
    while start.elapsed().as_millis() < (each_ms * sizes.len()) as u128 {
        talk.stream(200, 0);
        talk.ask(5);
        sent += 200;
    }
    talk.end(sent);
    let counts = wire.stop();
    std::fs::remove_file(&path).expect("it was there");
    assert!(counts.of(0, "too_large") > 0, "the stream meets a smaller size");
    eprintln!("{sent} messages, {} frames too large", counts.sum("too_large"));
}

#[test]
fn messages_arrive_while_the_path_carries_less_and_more() {
    in_lab("sizes::messages_arrive_while_the_path_carries_less_and_more", || {
        while_sizes_change(&[9000, 1500, 576, 9000], 1500);
    });
}

#[test]
#[ignore = "takes minutes"]
fn messages_arrive_while_the_path_carries_less_and_more_for_long() {
    in_lab_for_long("sizes::messages_arrive_while_the_path_carries_less_and_more_for_long", || {
        let sizes = [9000, 8000, 4352, 1500, 1492, 1280, 1006, 576, 577, 1501, 9000, 576, 9000, 1280, 8999, 576];
        while_sizes_change(&sizes, 10_000);
    });
}

/// An ICMP message that a datagram of the sender was too large for a link of `mtu` bytes, in an Ethernet frame.
fn too_big(to: [u8; 6], datagram: &[u8], mtu: u16) -> Vec<u8> {
    // RFC 1191: unreachable, because fragmentation was needed and DF set. It quotes the head of the datagram.
    let mut icmp = vec![3, 4, 0, 0, 0, 0];
    icmp.extend(mtu.to_be_bytes());
    icmp.extend(&datagram[..28]);
    let sum = checksum(&icmp);
    icmp[2..4].copy_from_slice(&sum);
    let mut ip = vec![0x45, 0];
    ip.extend((20 + icmp.len() as u16).to_be_bytes());
    ip.extend([0, 0, 0, 0, 64, 1, 0, 0, 10, 77, 0, 9]);
    ip.extend(&datagram[12..16]);
    let sum = checksum(&ip);
    ip[10..12].copy_from_slice(&sum);
    [&to[..], &[2, 0, 0, 0, 0, 9, 0x08, 0x00], &ip, &icmp].concat()
}

/// RFC 1071.
fn checksum(bytes: &[u8]) -> [u8; 2] {
    let sum: u32 = bytes.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    (!(((sum & 0xffff) + (sum >> 16)) as u16)).to_be_bytes()
}

/// The size of the largest packets that a host's channel sends.
fn packet_bytes(host: &mut Peer) -> u64 {
    host.ask("packet").parse().expect("a number")
}

/// A stranger who sees the sender's packets claims that all of them are too large.
#[test]
fn a_forged_word_that_packets_are_too_large_changes_nothing() {
    in_lab("sizes::a_forged_word_that_packets_are_too_large_changes_nothing", || {
        let mut talk = Talk::start(1500);
        let wire = Wire::start("--delay 1ms");
        talk.begin();
        talk.stream(500, 8192);
        let before = packet_bytes(&mut talk.lab.a);
        assert_eq!(before, 1472);
        let mut forger = Forger::at("a0");
        talk.lab.a.say("stream 3000 8192");
        let mut forged = 0;
        wait_until("the stream to end", || {
            forged += u32::from(forger.answer_one());
            talk.lab.a.overhear().is_some()
        });
        assert!(forged > 10, "{forged} were forged");
        assert_eq!(packet_bytes(&mut talk.lab.a), before);
        talk.end(3500);
        wire.stop();
    });
}

/// An attacker who sees a host's packets, and answers.
struct Forger(std::os::fd::OwnedFd);

impl Forger {
    /// At the interface that leads to a host.
    fn at(interface: &str) -> Forger {
        let socket = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_NONBLOCK, SockProtocol::EthAll);
        let socket = socket.expect("a socket for frames");
        let mut found = getifaddrs().expect("interfaces").filter(|at| at.interface_name == interface);
        let address = found.find_map(|at| at.address?.as_link_addr().copied()).expect("its address");
        bind(socket.as_raw_fd(), &address).expect("bind");
        Forger(socket)
    }

    /// Answers the host's next large datagram, if there is one.
    fn answer_one(&mut self) -> bool {
        let mut frame = [0; 2000];
        let Ok(length) = rustix::net::recv(&self.0, &mut frame[..], rustix::net::RecvFlags::empty()) else {
            return false;
        };
        let (frame, own) = (&frame[..length.0], ADDRESSES[0].parse::<std::net::Ipv4Addr>().expect("an address"));
        let is_large = frame.len() > 1000 && frame[12..14] == [8, 0] && frame[26..30] == own.octets();
        if is_large {
            let forged = too_big(frame[6..12].try_into().expect("six bytes"), &frame[14..], 600);
            send(self.0.as_raw_fd(), &forged, MsgFlags::empty()).expect("the host is there");
        }
        is_large
    }
}
