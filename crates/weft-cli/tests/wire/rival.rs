//! A flow of the kernel's TCP beside one of weft's over the same shaped wire.

use super::lab::{in_lab_for_long, Wire, ADDRESSES};
use super::messages::Talk;
use nix::sys::socket::{setsockopt, sockopt::TcpCongestion};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

const PORT: u16 = 7001;

/// Receives bytes, whatever else this host does.
pub fn sink() {
    let listener = TcpListener::bind((ADDRESSES[1], PORT)).expect("the port is free");
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        let mut buffer = vec![0; 256 << 10];
        while stream.read(&mut buffer).is_ok_and(|bytes| bytes > 0) {}
    });
}

/// Sends bytes until this host ends. They are counted as the kernel accepts them; it buffers some 4 MB.
pub fn flow() -> Arc<AtomicU64> {
    let mut stream = TcpStream::connect((ADDRESSES[1], PORT)).expect("there is a sink");
    setsockopt(&stream, TcpCongestion, &"cubic".into()).expect("root may choose, and the kernel has it");
    let sent = Arc::new(AtomicU64::new(0));
    let count = sent.clone();
    std::thread::spawn(move || {
        let buffer = vec![7; 64 << 10];
        while stream.write_all(&buffer).is_ok() {
            count.fetch_add(buffer.len() as u64, Ordering::Relaxed);
        }
    });
    sent
}

/// The shares of weft and of TCP with CUBIC on a wire with this rate in Mb/s, delay in µs and queue in bytes.
fn shares(rate: u32, delay: u32, queue: u32) -> [f64; 2] {
    const MESSAGES: u32 = 5000;
    let mut talk = Talk::start(1500);
    let wire = Wire::start(&format!("--rate {rate}Mbit --delay {delay}us --queue {queue}"));
    talk.begin();
    assert_eq!(talk.lab.b.ask("sink"), "done");
    assert_eq!(talk.lab.a.ask("flow"), "done");
    // Until each knows the other.
    talk.stream(MESSAGES / 4, 8192);
    let written = |talk: &mut Talk| talk.lab.a.ask("written").parse::<u64>().expect("a number");
    let before = written(&mut talk);
    let took = talk.stream(MESSAGES, 8192).as_secs_f64();
    let bytes = [u64::from(MESSAGES) * 8192, written(&mut talk) - before];
    talk.end(MESSAGES / 4 + MESSAGES);
    wire.stop();
    bytes.map(|bytes| bytes as f64 * 8.0 / took / f64::from(rate) / 1e6)
}

#[test]
#[ignore = "measures"]
fn what_each_gets_beside_the_kernels_cubic_is_told() {
    in_lab_for_long("rival::what_each_gets_beside_the_kernels_cubic_is_told", || {
        // A queue of one round trip's bytes, and one of four. Two cores cannot fill the last one.
        for (rate, delay) in [(200, 1000), (400, 500), (1000, 200)] {
            for queue in [50_000, 200_000] {
                let [weft, cubic] = shares(rate, delay, queue);
                eprintln!("{rate} Mb/s, {delay} us, queue of {queue} bytes: weft {weft:.3}, CUBIC {cubic:.3} of it");
                assert!(weft.min(cubic) > 0.0);
            }
        }
    });
}
