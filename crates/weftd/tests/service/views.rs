//! What a program can see and change beyond its own memory: nothing of the daemon, of other programs, or of what they left.

use crate::daemon::{connect, Daemon, Folder, SMALL};
use crate::players::{may_become_others, tell, Player};
use rustix::net::{self, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags};
use rustix::process::{pidfd_getfd, pidfd_open, ForeignRawFd, Pid, PidfdFlags, PidfdGetfdFlags};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use weft_shm::{AwakeView, SegmentFile};
use weft_wire::attach::{Message, MESSAGE_BYTES};
use weft_wire::segment::{Segment, PAGE};

/// The daemon's files, as in [`SMALL`].
const FILE: usize = 2 << 20;

/// Descriptors of a process that are tried.
const FDS: i32 = 64;

/// The ways in which this process gets into another one.
fn ways_into(pid: u32) -> Vec<String> {
    let mut ways = Vec::new();
    let mut note = |way: &str, is_open: bool| {
        if is_open {
            ways.push(format!("{way} of {pid}"));
        }
    };
    let path = |file: &str| format!("/proc/{pid}/{file}");
    note("fd", std::fs::read_dir(path("fd")).is_ok());
    note("map_files", std::fs::read_dir(path("map_files")).is_ok());
    for file in ["mem", "maps", "environ", "auxv"] {
        // Some of these can be opened, but are empty.
        let is_read =
            std::fs::File::open(path(file)).is_ok_and(|file| file.read_at(&mut [0; 8], 0).is_ok_and(|got| got > 0));
        note(file, is_read);
    }
    let process = pidfd_open(Pid::from_raw(pid as i32).expect("a process"), PidfdFlags::empty()).expect("it runs");
    for fd in 0..FDS {
        note(&format!("fd/{fd}"), std::fs::File::open(path(&format!("fd/{fd}"))).is_ok());
        let got = pidfd_getfd(&process, fd as ForeignRawFd, PidfdGetfdFlags::empty());
        note(&format!("pidfd_getfd({fd})"), got.is_ok());
    }
    note(
        "ptrace",
        nix::sys::ptrace::seize(nix::unistd::Pid::from_raw(pid as i32), nix::sys::ptrace::Options::empty()).is_ok(),
    );
    ways
}

/// The role of a program that tries to get into these processes.
pub fn intrude(pids: &str) {
    let ways: Vec<String> = pids.split(' ').flat_map(|pid| ways_into(pid.parse().expect("a number"))).collect();
    tell(ways.join(", "));
}

#[test]
fn a_program_gets_neither_into_the_daemon_nor_into_programs_of_other_users() {
    if !may_become_others() {
        return eprintln!("LEFT OUT: only root starts programs of other users");
    }
    let folder = Folder::new();
    let daemon = Daemon::serve(&folder, SMALL);
    let victim = Player::start(&folder, "asker", 65_531, "");
    victim.hear();
    let pids = format!("{} {}", daemon.child.id(), victim.child.id());
    let intruder = Player::start(&folder, "intruder", 65_532, &pids);
    assert_eq!(intruder.hear(), "");
    // Root gets in, so the ways do work.
    let mighty = Player::start(&folder, "intruder", 0, &pids);
    let ways = mighty.hear();
    assert!(["fd/0", "pidfd_getfd(0)", "maps"].iter().all(|way| ways.contains(way)), "{ways}");
    victim.finish();
}

/// Attaches, with its memory. Returns the connection, the descriptors, and the mapping.
fn attach(folder: &Folder) -> (OwnedFd, Vec<OwnedFd>, SegmentFile) {
    let socket = connect(&folder.at("socket"));
    net::send(&socket, &Message::Hello(None).to_bytes(), SendFlags::empty()).expect("sent");
    let mut bytes = [0; MESSAGE_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut into = [std::io::IoSliceMut::new(&mut bytes)];
    net::recvmsg(&socket, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC).expect("it answers");
    let passed = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds.collect::<Vec<OwnedFd>>()),
        _ => None,
    });
    let fds: Vec<OwnedFd> = passed.flatten().collect();
    let segment = SegmentFile::open(&fds[0], FILE).expect("mapped");
    net::send(&socket, &Message::Mapped.to_bytes(), SendFlags::empty()).expect("sent");
    (socket, fds, segment)
}

#[test]
fn memory_that_a_program_gets_is_zero_whatever_others_had_in_theirs() {
    let folder = Folder::new();
    let daemon = Daemon::serve(&folder, SMALL);
    for _ in 0..50 {
        let (_socket, _fds, segment) = attach(&folder);
        let mut all = Vec::new();
        segment.read(0, FILE, &mut all);
        assert!(all.iter().all(|byte| *byte == 0), "it was another one's");
        for at in (0..FILE).step_by(PAGE) {
            segment.write(at, &[0xa5; PAGE]);
        }
    }
    drop(daemon);
}

#[test]
fn a_program_changes_neither_the_size_of_its_file_nor_what_the_daemon_tells_all() {
    let folder = Folder::new();
    let daemon = Daemon::serve(&folder, SMALL);
    let (socket, fds, _segment) = attach(&folder);
    let seals = |fd: &OwnedFd| rustix::fs::fcntl_get_seals(fd).expect("it can be sealed");
    // The daemon seals it when it learns that the program has mapped it.
    crate::daemon::wait_until("it is sealed", || seals(&fds[0]).contains(rustix::fs::SealFlags::FUTURE_WRITE));
    for file in &fds[..2] {
        let file = std::fs::File::from(file.try_clone().expect("a descriptor"));
        assert!(file.set_len(0).is_err() && file.set_len(2 * FILE as u64).is_err());
        assert!(file.write_at(&[1], 0).is_err());
        let punch = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        assert!(rustix::fs::fallocate(file.as_fd(), punch, 0, PAGE as u64).is_err());
        assert!(SegmentFile::open(file.as_fd(), FILE).is_err(), "nobody maps it to write any more");
    }
    assert!(AwakeView::open(&fds[1]).is_ok(), "it can be read");
    drop((socket, daemon));
}
