//! Arbitrary messages to the socket at which programs attach: the daemon keeps little of them, trusts none, and serves others meanwhile.

use crate::daemon::{attach, connect, wait_until, Daemon, Folder, SMALL};
use crate::players::{become_user, may_become_others};
use rustix::net::{self, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use weft_wire::attach::{Message, Token, Welcome, MESSAGE_BYTES};
use weft_wire::status::Scope;
use weft_wire::{Epoch, Reason};

/// Descriptors that the kernel passes in one message, at most.
const FDS_MOST: usize = 253;

/// Descriptors that the daemon may have open besides its own: those of callers that are not attached, and of one that is being accepted.
const OPEN_MOST: usize = 100;

/// How much the daemon's resident memory may grow, in KiB.
const MORE_KIB: u64 = 4096;

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Sends a message with descriptors. False if the other side hung up, or does not read.
fn say(socket: &OwnedFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> bool {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MOST))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags).is_ok()
}

fn hear(socket: &OwnedFd) -> Message {
    let mut bytes = [0; MESSAGE_BYTES];
    let (_, got) = net::recv(socket, &mut bytes[..], RecvFlags::empty()).expect("it answers");
    Message::from_bytes(&bytes[..got]).expect("a message")
}

/// Bytes that are a message, a piece of one, or noise.
fn wild(state: &mut u64) -> Vec<u8> {
    let whole = match random(state) % 6 {
        0 => Message::Hello(None).to_bytes(),
        1 => Message::Hello(Some((Epoch(random(state)), Token(random(state).into())))).to_bytes(),
        2 => Message::Mapped.to_bytes(),
        3 => Message::Look(Scope::All).to_bytes(),
        4 => Message::Wake.to_bytes(),
        _ => std::array::from_fn(|_| random(state) as u8),
    };
    let mut bytes = whole.to_vec();
    match random(state) % 4 {
        0 => bytes.truncate(random(state) as usize % MESSAGE_BYTES),
        1 => bytes.resize(MESSAGE_BYTES + random(state) as usize % 4096, 7),
        2 => bytes[random(state) as usize % MESSAGE_BYTES] ^= 1 << (random(state) % 8),
        _ => {}
    }
    bytes
}

/// Makes so many calls. Each sends a few messages and reads nothing. Some stay connected.
fn call_wildly(calls: u32) {
    const KEPT: usize = 64;
    let folder = Folder::new();
    let daemon = Daemon::serve(&folder, SMALL);
    assert!(attach(&folder.at("socket")).success());
    let (descriptors, resident) = (daemon.descriptors(), daemon.resident_kib());
    let file = std::fs::File::open("/dev/null").expect("a file");
    let (mut state, mut kept) = (0x9e37_79b9_7f4a_7c15, Vec::new());
    for call in 0..calls {
        let caller = connect(&folder.at("socket"));
        for _ in 0..random(&mut state) % 4 {
            let fds = vec![file.as_fd(); random(&mut state) as usize % 5];
            say(&caller, &wild(&mut state), &fds);
        }
        match kept.len() < KEPT {
            true => kept.push(caller),
            false => kept[random(&mut state) as usize % KEPT] = caller,
        }
        if call % (calls / 20) == 0 {
            assert!(daemon.descriptors() < OPEN_MOST, "{} descriptors", daemon.descriptors());
            assert!(attach(&folder.at("socket")).success(), "others attach meanwhile");
        }
    }
    drop(kept);
    wait_until("all callers are forgotten", || daemon.descriptors() == descriptors);
    let then = daemon.resident_kib();
    assert!(then <= resident + MORE_KIB, "{resident} KiB resident, then {then}");
}

#[test]
fn whatever_strangers_say_the_daemon_keeps_little_and_others_attach() {
    call_wildly(20_000);
}

#[test]
#[ignore = "takes minutes"]
fn whatever_a_million_strangers_say_the_daemon_keeps_little() {
    call_wildly(1_000_000);
}

/// Attaches as far as the daemon can tell, without mapping the memory. Returns the daemon's answer.
fn attach_in_name(socket: &Path, life: Option<(Epoch, Token)>) -> Result<(OwnedFd, Welcome), Reason> {
    let caller = connect(socket);
    assert!(say(&caller, &Message::Hello(life).to_bytes(), &[]));
    match hear(&caller) {
        Message::Welcome(welcome) => {
            assert!(say(&caller, &Message::Mapped.to_bytes(), &[]));
            Ok((caller, welcome))
        }
        Message::Refuse(reason) => Err(reason),
        other => panic!("{other:?}"),
    }
}

#[test]
fn descriptors_that_are_sent_to_the_daemon_do_not_stay_there() {
    let folder = Folder::new();
    let daemon = Daemon::serve(&folder, SMALL);
    let memory = rustix::fs::memfd_create("sent", rustix::fs::MemfdFlags::CLOEXEC).expect("memory");
    let (reads, _writes) = rustix::pipe::pipe().expect("a pipe");
    let place = std::fs::File::open(&folder.0).expect("a folder");
    let (own, _other) = std::os::unix::net::UnixStream::pair().expect("sockets");
    let before = daemon.descriptors();
    let mut programs = Vec::new();
    for kind in [memory.as_fd(), reads.as_fd(), place.as_fd(), own.as_fd()] {
        // Passes descriptors with every valid message, and with invalid ones.
        let program = connect(&folder.at("socket"));
        let many = [kind; FDS_MOST];
        assert!(say(&program, &Message::Hello(None).to_bytes(), &many));
        assert!(matches!(hear(&program), Message::Welcome(_)));
        assert!(say(&program, &Message::Mapped.to_bytes(), &many));
        programs.push(program);
        // Each has its connection and its waker. The file is only mapped once a program is attached.
        wait_until("it is attached", || daemon.descriptors() == before + 2 * programs.len());
    }
    for program in &programs {
        assert!(say(program, &Message::Wake.to_bytes(), &[memory.as_fd(); FDS_MOST]));
        assert!(matches!(hear(program), Message::Refuse(Reason::Violation)));
    }
    wait_until("they are closed", || daemon.descriptors() == before);
    assert!(attach(&folder.at("socket")).success());
}

#[test]
fn names_are_not_to_be_had_by_guessing_nor_with_another_users_token() {
    let folder = Folder::new();
    let _daemon = Daemon::serve(&folder, SMALL);
    let socket = folder.at("socket");
    let (first, Welcome { epoch, token, .. }) = attach_in_name(&socket, None).expect("attached");
    let mut state = 0x9e37_79b9_7f4a_7c15;
    for guess in 0..1000 {
        // Near and far guesses, for this life and for others.
        let wrong = match guess % 3 {
            0 => (epoch, Token(token.0 ^ 1 << (guess % 128))),
            1 => (epoch, Token(u128::from(random(&mut state)) << 64 | u128::from(random(&mut state)))),
            _ => (Epoch(epoch.0 ^ 1 << (guess % 64)), token),
        };
        assert_eq!(attach_in_name(&socket, Some(wrong)).err(), Some(Reason::WrongOwner), "{wrong:?}");
    }
    if may_become_others() {
        let replayed = std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                become_user(65_531).expect("root may become anybody");
                attach_in_name(&socket, Some((epoch, token))).err()
            });
            other.join().expect("it ends")
        });
        assert_eq!(replayed, Some(Reason::WrongOwner));
    } else {
        eprintln!("LEFT OUT: another user: this process may not become one");
    }
    // Its own program gets them again and again, even at once after it ended.
    for _ in 0..20 {
        drop(attach_in_name(&socket, Some((epoch, token))).expect("attached"));
    }
    drop(first);
}
