//! The experiment with more endpoints than frames: its promises, its controls, and small runs of the goals set for it.

use std::time::Duration;
use weft_sim::contention::{run, Config, Costs, Failure, Message, Outcome, Plant, Serving};

const BOTH: [Serving; 2] = [Serving::SingleThread, Serving::ManyThreads];

/// A run whose length fits the number of clients and their messages: long enough for all of them to get an equal share.
fn config(serving: Serving, clients: u32, frames: u32, message: Message) -> Config {
    let rounds = clients.div_ceil(64);
    let (warms, lasts) = match message {
        Message::Small => (10, 20),
        Message::Bulk => (50, 50),
    };
    let millis = |of_64: u32| Duration::from_millis(u64::from(of_64 * rounds));
    Config { serving, clients, frames, message, warms: millis(warms), lasts: millis(lasts), ..Config::default() }
}

fn good(config: Config) -> Outcome {
    run(&config).unwrap_or_else(|failure| panic!("{config:?}: {failure}"))
}

/// The throughput on 8 frames relative to one frame per endpoint; and the run on 8 frames.
fn ratio(config: Config) -> (f64, Outcome) {
    let few = good(Config { frames: 8, ..config });
    let enough = good(Config { frames: config.clients.max(96), ..config });
    assert_eq!(enough.remapped, 0, "each has a frame");
    assert!(few.remapped > 100 && few.frames_most == 8);
    (few.rate() / enough.rate(), few)
}

#[test]
fn equal_seeds_give_equal_runs_and_others_others() {
    let config = config(Serving::ManyThreads, 12, 8, Message::Small);
    let of = |seed| {
        let outcome = good(Config { seed, ..config });
        (outcome.hash, outcome.answered, outcome.remapped, outcome.work, outcome.round_trips)
    };
    assert_eq!(of(7), of(7));
    assert_ne!(of(7).0, of(8).0);
}

#[test]
fn every_request_is_answered_once_however_it_is_served() {
    for serving in [Serving::OneVn, Serving::SingleThread, Serving::ManyThreads] {
        for (message, frames) in [(Message::Small, 1), (Message::Small, 3), (Message::Bulk, 3), (Message::Bulk, 96)] {
            for has_writable_state in [true, false] {
                let config = Config { has_writable_state, ..config(serving, 10, frames, message) };
                let outcome = good(config);
                assert_eq!(outcome.answered.len(), 10);
                assert!(outcome.answered.iter().all(|answered| *answered > 0), "{config:?}");
                assert!(outcome.frames_most <= frames as usize);
            }
        }
    }
}

#[test]
fn planted_faults_are_found() {
    let planted = |plant| run(&Config { plant: Some((plant, 100)), ..config(BOTH[0], 10, 8, Message::Small) }).err();
    assert_eq!(planted(Plant::Lose), Some(Failure::Unanswered(1)));
    assert_eq!(planted(Plant::Repeat), Some(Failure::Strange(1)));
    assert_eq!(planted(Plant::Change), Some(Failure::Strange(1)));
}

#[test]
fn free_remappings_leave_the_throughput_as_it_is() {
    let costs = Costs { remapping: 0, ..Costs::default() };
    for serving in BOTH {
        let (ratio, few) = ratio(Config { costs, ..config(serving, 64, 8, Message::Small) });
        assert!((0.95..1.02).contains(&ratio), "{serving:?}: {ratio:.3}");
        assert_eq!(few.remapping, 0.0);
    }
}

#[test]
fn dear_remappings_are_seen() {
    let costs = Costs { remapping: 100_000, ..Costs::default() };
    let (ratio, _) = ratio(Config { costs, ..config(Serving::SingleThread, 64, 8, Message::Small) });
    assert!(ratio < 0.5, "{ratio:.3}");
}

#[test]
fn without_the_writable_state_one_thread_collapses_and_many_do_not() {
    let of = |serving, has_writable_state| {
        let upload = Duration::from_micros(190);
        good(Config { has_writable_state, upload, ..config(serving, 64, 8, Message::Small) }).rate()
    };
    let [one, many] = BOTH.map(|serving| of(serving, false) / of(serving, true));
    assert!(one < 0.25 && many > 0.9, "{one:.3}, {many:.3}");
}

#[test]
fn eight_endpoints_to_a_frame_keep_nine_tenths() {
    for serving in BOTH {
        for message in [Message::Small, Message::Bulk] {
            let (ratio, few) = ratio(config(serving, 64, 8, message));
            assert!(ratio >= 0.9, "{serving:?}, {message:?}: {ratio:.3}");
            assert!(few.remapping <= 0.05, "{serving:?}, {message:?}: {:.3} of the daemon's work", few.remapping);
        }
    }
}

#[test]
fn more_endpoints_to_a_frame_keep_most_and_nobody_starves() {
    for (clients, least) in [(256, 0.75), (1024, 0.5)] {
        let (ratio, few) = ratio(config(Serving::SingleThread, clients, 8, Message::Small));
        assert!(ratio >= least, "{clients}: {ratio:.3}");
        assert!(few.slowest() >= 0.3, "{clients}: {:.3}", few.slowest());
    }
}

/// A user may make a thousand endpoints at once, and ten thousand in a second.
#[test]
fn a_server_has_more_endpoints_than_a_user_may_make_at_once() {
    for serving in BOTH {
        let lasts = Duration::from_millis(2);
        let outcome = good(Config { warms: Duration::ZERO, lasts, ..config(serving, 1024, 8, Message::Small) });
        assert!(outcome.rate() > 0.0 && outcome.answered.len() == 1024);
    }
}

/// Together they could have four times as much under way as the daemon's socket holds.
#[test]
fn of_many_that_send_much_nobody_starves_and_nothing_is_dropped() {
    for (clients, frames) in [(256, 8), (256, 256)] {
        let outcome = good(config(Serving::SingleThread, clients, frames, Message::Bulk));
        assert!(outcome.slowest() >= 0.3, "{clients} on {frames}: {:.3}", outcome.slowest());
        assert_eq!(outcome.dropped, 0, "{clients} on {frames}");
    }
}
