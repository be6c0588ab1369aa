//! Programs and daemons that are killed again and again while messages are under way: nothing is left, and no message ends twice.

use crate::daemon::{wait_until, Daemon, Folder, SMALL};
use crate::players::Player;
use std::time::{Duration, Instant};

/// With a network.
const NETWORK: &str = "file_mib = 2\n[network]\naddress = \"127.0.0.1\"\n";

/// The order in which programs are killed.
const SEED: u64 = 0x2545_f491_4f6c_dd1d;

/// Programs that run at the same time, besides the one that stays.
const FLEET: usize = 4;

/// Users of programs, if this process may start programs as other users.
const USERS: [u32; 3] = [65_531, 65_532, 65_533];

struct Dice(u64);

impl Dice {
    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % most as u64) as usize
    }
}

/// The files that weft keeps, beside the socket and in the file system of shared memory.
fn files(folder: &Folder) -> Vec<String> {
    let names = |path: &std::path::Path| {
        let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect::<Vec<_>>()
    };
    let shared = names("/dev/shm".as_ref()).into_iter().filter(|name| name.contains("weft"));
    let mut found: Vec<String> = names(&folder.0).into_iter().chain(shared).collect();
    found.sort();
    found
}

fn seen(folder: &Folder) -> String {
    Player::start(folder, "tool", 0, "").hear()
}

/// Kills programs so many times, at random moments of their lives, while all of them send requests to one that stays, and it sends requests
/// to them. Returns the daemon's resident memory in the middle and at the end.
fn kill_programs(times: usize) -> [u64; 2] {
    let folder = Folder::new();
    let daemon = Daemon::serve(&folder, SMALL);
    let mut keeper = Player::start(&folder, "asker", 0, "");
    let name = keeper.hear();
    // The first one leaves behind what lasts: the frame of the endpoint that it asked.
    let first = Player::start(&folder, "asker", USERS[0], &name);
    first.hear();
    assert_eq!(first.hear(), "went on");
    first.kill();
    let is_as_one = |state: &str| state.starts_with("1 attachments, 1 endpoints, 0 lines, ");
    wait_until("the first one is forgotten", || is_as_one(&seen(&folder)));
    let (state, descriptors, files_before) = (seen(&folder), daemon.descriptors(), files(&folder));
    let mut dice = Dice(SEED);
    let mut fleet: [Option<Player>; FLEET] = Default::default();
    let mut in_the_middle = 0;
    for number in 0..times {
        let place = dice.below(FLEET);
        if let Some(player) = fleet[place].take() {
            player.kill();
            keeper.order(&format!("leave {place}"));
        }
        let player = Player::start(&folder, "asker", USERS[number % USERS.len()], &name);
        let stage = dice.below(4);
        if stage > 0 {
            let its = player.hear();
            keeper.order(&format!("ask {place} {its}"));
        }
        if stage > 1 {
            assert_eq!(player.hear(), "went on");
        }
        fleet[place] = Some(player);
        if number == times / 2 {
            in_the_middle = daemon.resident_kib();
        }
    }
    fleet.into_iter().flatten().for_each(Player::kill);
    (0..FLEET).for_each(|place| keeper.order(&format!("leave {place}")));
    wait_until("the daemon holds what it held", || seen(&folder) == state && daemon.descriptors() == descriptors);
    assert_eq!(files(&folder), files_before);
    let at_the_end = daemon.resident_kib();
    // It reports a request that ended twice, or never.
    keeper.end_orders();
    let ledger = keeper.hear();
    eprintln!("the one that stayed: {ledger}; {in_the_middle} and {at_the_end} KiB resident");
    assert!(ledger.ends_with(" 0 again") && !ledger.contains(" 0 returned"), "{ledger}");
    keeper.finish();
    [in_the_middle, at_the_end]
}

#[test]
fn programs_that_are_killed_leave_nothing_and_their_peers_messages_end_once() {
    kill_programs(200);
}

#[test]
#[ignore = "takes minutes"]
fn ten_thousand_programs_that_are_killed_leave_nothing() {
    let [in_the_middle, at_the_end] = kill_programs(10_000);
    assert!(at_the_end <= in_the_middle + 1024, "{in_the_middle} KiB resident, then {at_the_end}");
}

/// A program that asks and one that answers. A test kills what is between them.
pub struct Pair {
    asks: Player,
    answers: Player,
}

impl Pair {
    /// At the daemons of two folders, which may be one.
    pub fn start(from: &Folder, to: &Folder) -> Pair {
        let answers = Player::start(to, "asker", USERS[0], "");
        let asks = Player::start(from, "asker", USERS[1], &answers.hear());
        asks.hear();
        assert_eq!(asks.hear(), "went on");
        Pair { asks, answers }
    }

    /// Waits until a request that is sent from now on is answered. Returns how long that took.
    pub fn go_on(&mut self) -> Duration {
        let begin = Instant::now();
        self.asks.order("mark");
        assert_eq!(self.asks.hear(), "went on");
        begin.elapsed()
    }

    /// Ends both. Checks that each request ended once, that none came twice, and that none came that was reported as not delivered. Returns
    /// how many came back.
    pub fn finish(self) -> u64 {
        let Pair { mut asks, mut answers } = self;
        let pid = asks.child.id();
        asks.end_orders();
        let (ledger, not_delivered) = (asks.hear(), asks.hear());
        answers.order(&format!("came {pid} {not_delivered}"));
        assert_eq!(answers.hear(), "0", "of those that were said not to be delivered");
        asks.finish();
        answers.end_orders();
        let came = answers.hear();
        eprintln!("asks: {ledger}; answers: {came}");
        assert!(came.ends_with(" 0 again"), "{came}");
        answers.finish();
        let words: Vec<&str> = ledger.split(' ').collect();
        words[2].parse().expect("a number")
    }
}

/// Prints the times, from which the requirements are judged.
fn tell_times(what: &str, mut times: Vec<Duration>) {
    times.sort();
    let of = |hundredths: usize| times[(times.len() - 1) * hundredths / 100];
    eprintln!("{what}: p50 {:?}, p99 {:?}, most {:?}", of(50), of(99), of(100));
}

/// Kills the daemon of a pair so many times. Its programs go on, with their names.
fn kill_own_daemon(times: usize) {
    let folder = Folder::new();
    let mut daemon = Daemon::serve(&folder, SMALL);
    let mut pair = Pair::start(&folder, &folder);
    let mut took = Vec::new();
    for _ in 0..times {
        daemon.child.kill().expect("it runs");
        daemon.child.wait().expect("it ends");
        daemon = Daemon::serve(&folder, SMALL);
        took.push(pair.go_on());
    }
    tell_times("answered again after", took);
    assert!(pair.finish() > 0, "messages were under way");
}

#[test]
fn programs_go_on_when_their_daemon_is_killed_and_no_message_ends_twice() {
    kill_own_daemon(20);
}

#[test]
#[ignore = "takes minutes"]
fn programs_go_on_when_their_daemon_is_killed_a_thousand_times() {
    kill_own_daemon(1000);
}

/// Kills the daemon of another host so many times, beside a pair of programs that does not use it.
fn kill_other_daemon(times: usize) {
    let (here, there) = (Folder::new(), Folder::new());
    let _stays = Daemon::serve(&here, NETWORK);
    let mut daemon = Daemon::serve(&there, NETWORK);
    let (mut between, mut beside) = (Pair::start(&here, &there), Pair::start(&here, &here));
    let mut took = Vec::new();
    for _ in 0..times {
        daemon.child.kill().expect("it runs");
        daemon.child.wait().expect("it ends");
        beside.go_on();
        daemon = Daemon::serve(&there, NETWORK);
        took.push(between.go_on());
        beside.go_on();
    }
    tell_times("answered again after", took);
    assert_eq!(beside.finish(), 0, "the others notice nothing");
    assert!(between.finish() > 0, "messages were under way");
}

#[test]
fn the_end_of_another_hosts_daemon_is_told_to_those_that_talk_to_it_alone() {
    kill_other_daemon(5);
}

#[test]
#[ignore = "takes minutes"]
fn the_end_of_another_hosts_daemon_a_thousand_times() {
    kill_other_daemon(1000);
}
