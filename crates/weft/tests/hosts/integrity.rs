//! Checksums that leave payloads out: what two processes agree on, and what happens to damage that UDP's checksum misses.

use super::hostile::{loopback, socket};
use super::support::{contents, over_udp, Address, Peer};
use super::{inverted, Client, ECHO};
use std::ffi::OsStr;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use weft::status::{self, Network};
use weft::{HostAddress, Integrity, Name, Settings};
use weft_wire::packet::Packet;

use Integrity::{Full, Header};

/// A server with this in its environment, and its address.
fn server(integrity: &str) -> (Peer, Address) {
    let peer = Peer::start_with("server", &[], &[("WEFT_INTEGRITY", OsStr::new(integrity))]);
    let there = peer.address();
    (peer, there)
}

fn settings(integrity: Option<Integrity>) -> Settings {
    Settings { integrity, ..Settings::default() }
}

/// The channel of a server that has one peer, from its status.
fn channel_of(there: &Address) -> Network {
    let look = status::look(Duration::from_secs(10)).expect("proc");
    let epoch = format!("{:016x}", there.name.epoch.0);
    let found = look.processes.into_iter().find(|found| found.epoch == epoch).expect("it is there");
    let process = found.answer.expect("an answer");
    process.bundles[0].peers[0].network.clone().expect("over the network")
}

#[test]
fn two_processes_leave_payloads_out_only_if_both_want_it() {
    let Some(_turn) = over_udp("integrity::two_processes_leave_payloads_out_only_if_both_want_it") else { return };
    for (there_wants, here_wants, agreed) in [
        ("header", Some(Header), Header),
        ("header", Some(Full), Full),
        ("header", None, Full),
        ("full", Some(Header), Full),
        ("", Some(Header), Full),
    ] {
        let (peer, there) = server(there_wants);
        let mut client = Client::with(settings(here_wants), &[there]);
        for (seed, bytes) in (0..).zip([0, 16, 255, 600, 1_400, 9_000, 65_536, 65_536]) {
            client.ask(0, seed, bytes);
        }
        let told = channel_of(&there);
        let wanted = if there_wants == "header" { Header } else { Full };
        assert_eq!((told.integrity, told.integrity_wanted), (agreed, wanted), "{there_wants:?} and {here_wants:?}");
        assert_eq!(told.packets_dropped, 0);
        peer.finish();
    }
}

/// Stands between two processes, and flips a bit of the last byte of large packets on the way to the server. The kernel computes
/// UDP's checksum again.
struct Relay {
    front: u16,
    stop: Arc<AtomicBool>,
    flipped: Arc<AtomicU64>,
    covered_in_part: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Relay {
    /// Flips a bit in one packet of `one_of`.
    fn start(client: u16, server: u16, one_of: u64) -> Relay {
        let (front, back, stop) = (socket(), socket(), Arc::new(AtomicBool::new(false)));
        let port = front.local_addr().expect("bound").port();
        let twin = |socket: &UdpSocket| socket.try_clone().expect("a descriptor");
        let counts = [(); 2].map(|()| Arc::new(AtomicU64::new(0)));
        let ways = [(twin(&front), twin(&back), server, one_of), (back, front, client, u64::MAX)];
        let threads = ways.map(|(from, by, to, one_of)| {
            let (stop, [flipped, covered_in_part]) = (stop.clone(), counts.clone());
            std::thread::spawn(move || {
                let (mut buffer, mut large) = (vec![0; 65_536], 0);
                while !stop.load(Ordering::Relaxed) {
                    let Ok((bytes, _)) = from.recv_from(&mut buffer) else { continue };
                    let packet = &mut buffer[..bytes];
                    let is_covered = Packet::decode(packet).is_ok();
                    covered_in_part.fetch_add(u64::from(!is_covered), Ordering::Relaxed);
                    large += u64::from(bytes > 1_000);
                    if bytes > 1_000 && large % one_of == 0 {
                        packet[bytes - 1] ^= 1;
                        flipped.fetch_add(1, Ordering::Relaxed);
                    }
                    // A packet that cannot be sent is lost.
                    let _ = by.send_to(packet, loopback(to));
                }
            })
        });
        let [flipped, covered_in_part] = counts;
        Relay { front: port, stop, flipped, covered_in_part, threads: threads.into() }
    }

    /// Ends it. Returns how many packets it changed, and how many were only partly covered by a checksum.
    fn end(self) -> [u64; 2] {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().expect("it ends well"));
        [self.flipped, self.covered_in_part].map(|count| count.load(Ordering::Relaxed))
    }
}

/// A client that knows a server through such a relay only.
fn through_relay(there: Address, integrity: Integrity) -> (Client, Relay) {
    let mut client = Client::with(settings(Some(integrity)), &[]);
    let own = client.bundle.name(client.here).expect("name").address.port;
    let relay = Relay::start(own, there.name.address.port, 5);
    let address = HostAddress { port: relay.front, ..there.name.address };
    client.bundle.map(client.here, 0, Name { address, ..there.name }, there.key).expect("map");
    (client, relay)
}

#[test]
fn damage_that_udp_does_not_find_is_found_unless_both_left_that_to_it() {
    let name = "integrity::damage_that_udp_does_not_find_is_found_unless_both_left_that_to_it";
    let Some(_turn) = over_udp(name) else { return };
    for (wants, agreed) in [("full", Full), ("header", Header)] {
        let (peer, there) = server(wants);
        let (mut client, relay) = through_relay(there, Header);
        let mut wrong = 0;
        for seed in 0..20 {
            let (args, payload) = contents(seed, seed as usize % 17, 60_000);
            client.bundle.request(client.here, 0, ECHO, &args, &payload).expect("mapped");
            let (args, payload) = inverted(&args, &payload);
            let (answered, contents) = client.answer();
            assert_eq!((answered, contents.len()), (args, payload.len()), "arguments and lengths are covered");
            wrong += u64::from(contents != payload);
        }
        let told = channel_of(&there);
        assert_eq!(told.integrity, agreed);
        let [flipped, covered_in_part] = relay.end();
        assert!(flipped > 5, "{flipped} packets were changed");
        match agreed {
            Full => assert!(wrong == 0 && covered_in_part == 0 && told.packets_dropped > 0, "{told:?}"),
            Header => assert!(wrong > 0 && covered_in_part > 0, "{wrong} wrong, {covered_in_part} covered in part"),
        }
        let counters = client.bundle.counters();
        assert_eq!((counters.returned, counters.sessions_lost, counters.violations), (0, 0, 0));
        peer.finish();
    }
}
