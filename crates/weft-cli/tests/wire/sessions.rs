//! Session set-up over a bad wire. The connecting side checks that each message is answered and none comes back.

use super::lab::{in_lab, in_lab_for_long, obey, Wire};
use super::messages::Talk;
use std::time::{Duration, Instant};

/// As in QUIC's interoperability tests.
const WIRE: &str = "--delay 15ms --rate 10Mbit --queue 25p --loss 30% --loss-run 3 --seed 2";

/// The time limit for fifty set-ups, each with a message there and back.
const MOST: Duration = Duration::from_secs(60);

#[test]
fn fifty_sessions_are_set_up_at_once_through_bursts_of_loss() {
    in_lab("sessions::fifty_sessions_are_set_up_at_once_through_bursts_of_loss", || {
        let mut talk = Talk::start(1500);
        let wire = Wire::start(WIRE);
        talk.begin();
        let start = Instant::now();
        obey(&mut talk.lab.a, "connect 50 50");
        assert!(start.elapsed() < MOST, "{:?}", start.elapsed());
        eprintln!("50 at once: {:?}", start.elapsed());
        let counts = wire.stop();
        assert!(counts.of(0, "lost") > 20 && counts.of(1, "lost") > 20);
    });
}

#[test]
#[ignore = "takes a minute"]
fn fifty_sessions_are_set_up_one_by_one_through_bursts_of_loss() {
    in_lab_for_long("sessions::fifty_sessions_are_set_up_one_by_one_through_bursts_of_loss", || {
        let mut talk = Talk::start(1500);
        let wire = Wire::start(WIRE);
        talk.begin();
        let start = Instant::now();
        for _ in 0..50 {
            obey(&mut talk.lab.a, "connect 1 1");
        }
        assert!(start.elapsed() < MOST, "{:?}", start.elapsed());
        eprintln!("50 one by one: {:?}", start.elapsed());
        wire.stop();
    });
}
