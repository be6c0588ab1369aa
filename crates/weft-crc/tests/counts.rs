//! Instructions of a checksum, counted one by one: valgrind does not know the wide multiplications.
#![cfg(target_os = "linux")]

use nix::sys::ptrace;
use nix::sys::signal::{raise, Signal};
use nix::sys::wait::{waitpid, WaitPidFlag, WaitStatus};
use std::hint::black_box;
use std::process::{Command, Stdio};

const WORK: &str = "WEFT_TEST_WORK";

/// Counts the instructions of one checksum by this way over this many bytes, in a process of its own.
fn counted(way: &str, bytes: usize) -> u64 {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", "work", "--nocapture", "--test-threads=1"]).stdout(Stdio::null());
    let mut child = command.env(WORK, format!("{way} {bytes}")).spawn().expect("it starts");
    // The traced thread is the one that runs the test, not the first one of its process.
    let next_stop = || match waitpid(None, Some(WaitPidFlag::__WALL)).expect("it is traced") {
        WaitStatus::Stopped(thread, signal) => (thread, signal),
        other => panic!("{other:?}"),
    };
    let (thread, first) = next_stop();
    assert_eq!(first, Signal::SIGUSR1);
    let mut steps = 0;
    loop {
        ptrace::step(thread, None).expect("it is traced");
        match next_stop() {
            (_, Signal::SIGUSR1) => break,
            _ => steps += 1,
        }
    }
    ptrace::detach(thread, None).expect("it is traced");
    assert!(child.wait().expect("it ends").success());
    steps
}

#[test]
fn work() {
    let Ok(work) = std::env::var(WORK) else { return };
    let (way, bytes) = work.split_once(' ').expect("two words");
    let contents = vec![5; bytes.parse().expect("a number")];
    let checksum = match way {
        "chosen" => weft_crc::crc32c,
        "everywhere" => weft_crc::crc32c_everywhere,
        "lanes" => |bytes: &[u8]| weft_crc::crc32c_in_lanes(bytes).expect("this processor has them"),
        _ => |_: &[u8]| 0,
    };
    // A first call, so that one-time work is not counted.
    black_box(checksum(black_box(&contents)));
    ptrace::traceme().expect("its parent traces it");
    raise(Signal::SIGUSR1).expect("its own");
    black_box(checksum(black_box(&contents)));
    raise(Signal::SIGUSR1).expect("its own");
}

#[test]
fn the_wide_way_takes_less_than_half_of_the_instructions() {
    if !weft_crc::is_wide() {
        eprintln!("LEFT OUT: this processor or compiler does not fold with 256 bits");
        return;
    }
    let none = counted("none", 0);
    for bytes in [64, 1400, 64 << 10] {
        let [chosen, everywhere] = ["chosen", "everywhere"].map(|way| counted(way, bytes) - none);
        println!("{bytes} bytes: {chosen} instructions, {everywhere} by crc-fast");
        assert!(chosen * 2 <= everywhere, "{bytes} bytes: {chosen} and {everywhere} instructions");
    }
}

#[test]
fn three_lanes_take_an_instruction_for_five_bytes() {
    if weft_crc::crc32c_in_lanes(&[]).is_none() {
        eprintln!("LEFT OUT: this processor or compiler has no CRC instruction");
        return;
    }
    let none = counted("none", 0);
    for bytes in [64, 1400, 64 << 10] {
        let lanes = counted("lanes", bytes) - none;
        println!("{bytes} bytes: {lanes} instructions in lanes");
        // An instruction and its share of the loop for each 8 bytes, and a constant.
        assert!(lanes <= bytes as u64 / 5 + 120, "{bytes} bytes: {lanes} instructions");
    }
}
