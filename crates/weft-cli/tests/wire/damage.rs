//! The packets that the wire damages are those that weft refuses.

use super::lab::{in_lab, Counts, Wire};
use super::messages::Talk;
use super::support::Peer;

/// Packets that a host's processes dropped as damaged.
fn refused(host: &mut Peer) -> u64 {
    host.ask("damaged").parse().expect("a number")
}

#[test]
fn as_many_packets_are_refused_as_were_damaged() {
    in_lab("damage::as_many_packets_are_refused_as_were_damaged", || {
        const COUNT: u32 = 20_000;
        let mut talk = Talk::start(1500);
        // Slow enough that the hosts, whose buffers may be small, lose nothing themselves.
        let wire = Wire::start("--corrupt 5% --rate 200Mbit");
        talk.begin();
        talk.stream(COUNT, 0);
        talk.ask(50);
        talk.rest();
        let refused = [&mut talk.lab.b, &mut talk.lab.a].map(refused);
        talk.end(COUNT);
        let counts: Counts = wire.stop();
        assert_eq!(refused, [0, 1].map(|way| counts.of(way, "corrupted")), "by the receiver, and by the sender");
        assert!(refused[0] > 300 && refused[1] > 10, "{refused:?}");
        assert_eq!(counts.sum("lost") + counts.sum("refused") + counts.sum("missed"), 0);
    });
}
