//! The daemon under systemd. The tests play systemd's part.

use crate::daemon::{arguments, attach, complaint, weftd, Daemon, Folder, BOUND, SMALL};
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;

/// The socket where systemd listens to the daemon.
fn manager(folder: &Folder) -> UnixDatagram {
    let manager = UnixDatagram::bind(folder.at("manager")).expect("a socket");
    manager.set_read_timeout(Some(BOUND)).expect("a limit");
    manager
}

fn hear(manager: &UnixDatagram) -> String {
    let mut bytes = [0; 256];
    let got = manager.recv(&mut bytes).expect("it is told something");
    String::from_utf8(bytes[..got].to_vec()).expect("text")
}

/// A socket that listens at a path.
fn listener(path: &Path, kind: SocketType) -> OwnedFd {
    let socket = net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).expect("a socket");
    net::bind(&socket, &SocketAddrUnix::new(path).expect("a short path")).expect("bound");
    net::listen(&socket, 8).expect("it listens");
    socket
}

/// The daemon's command, with a socket passed as systemd does it: as descriptor 3. The shell becomes the daemon.
fn with_passed(folder: &Folder, socket: OwnedFd, count: u32) -> Command {
    let mut command = Command::new("sh");
    let script = format!("export LISTEN_PID=$$ LISTEN_FDS={count}; exec \"$0\" \"$@\" 3<&0 0</dev/null");
    command.args(["-c", &script, env!("CARGO_BIN_EXE_weftd")]).args(arguments(folder, SMALL)).stdin(socket);
    command
}

#[test]
fn a_passed_socket_is_served_and_the_manager_is_told() {
    let folder = Folder::new();
    let (manager, passed) = (manager(&folder), folder.at("passed"));
    let mut command = with_passed(&folder, listener(&passed, SocketType::SEQPACKET), 1);
    command.env("NOTIFY_SOCKET", folder.at("manager"));
    let mut daemon = Daemon::start(command);
    assert_eq!(hear(&manager), format!("READY=1\nSTATUS=serves at {}\n", passed.display()));
    assert!(attach(&passed).success());
    assert!(!folder.at("socket").exists(), "it makes no socket of its own");
    assert!(daemon.end().success());
    assert_eq!(hear(&manager), "STOPPING=1\nSTATUS=ends\n");
    assert!(passed.exists(), "the socket is systemd's");
}

#[test]
fn the_manager_is_told_at_a_socket_without_a_file() {
    use std::os::linux::net::SocketAddrExt;
    let folder = Folder::new();
    let name = format!("weftd-test-{}", std::process::id());
    let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).expect("a name");
    let manager = UnixDatagram::bind_addr(&address).expect("a socket");
    manager.set_read_timeout(Some(BOUND)).expect("a limit");
    let mut command = weftd(&folder, SMALL);
    command.env("NOTIFY_SOCKET", format!("@{name}"));
    let _daemon = Daemon::start(command);
    assert!(hear(&manager).starts_with("READY=1\n"));
}

#[test]
fn a_passed_descriptor_of_the_wrong_kind_is_named() {
    let folder = Folder::new();
    let stream = with_passed(&folder, listener(&folder.at("stream"), SocketType::STREAM), 1);
    let file = std::fs::File::open(folder.at("weftd.toml")).expect("written");
    let deaf = net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    let deaf = deaf.expect("a socket");
    for (command, words) in [
        (stream, "no Unix socket of sequential packets"),
        (with_passed(&folder, file.into(), 1), "non-socket"),
        (with_passed(&folder, deaf, 1), "no Unix socket of sequential packets that listens"),
        (with_passed(&folder, listener(&folder.at("two"), SocketType::SEQPACKET), 2), "not at 2"),
    ] {
        let said = complaint(command).to_lowercase();
        assert!(said.contains(&words.to_lowercase()) && said.contains("weftd.socket"), "{words}: {said}");
    }
}

#[test]
fn a_socket_that_was_passed_to_another_process_is_left_alone() {
    let folder = Folder::new();
    let mut command = weftd(&folder, SMALL);
    command.env("LISTEN_PID", "1").env("LISTEN_FDS", "1");
    let daemon = Daemon::start(command);
    daemon.hear("serves");
    assert!(attach(&folder.at("socket")).success());
}

#[test]
fn a_manager_that_cannot_be_reached_does_not_stop_the_daemon() {
    let folder = Folder::new();
    let mut command = weftd(&folder, SMALL);
    command.env("NOTIFY_SOCKET", folder.at("nobody"));
    let daemon = Daemon::start(command);
    daemon.hear("cannot reach the service manager");
    daemon.hear("serves");
}

/// The faults that systemd finds in the units, with the daemon that was built in place of the installed one. `None` if there is no systemd
/// here.
fn faults(change: impl Fn(String) -> String) -> Option<String> {
    let units = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/systemd");
    let folder = Folder::new();
    let mut verify = Command::new("systemd-analyze");
    verify.args(["verify", "--man=no"]);
    for name in ["weftd.service", "weftd.socket"] {
        let text = std::fs::read_to_string(units.join(name)).expect("a unit");
        let text = text.replace("/usr/bin/weftd", env!("CARGO_BIN_EXE_weftd"));
        std::fs::write(folder.at(name), change(text)).expect("written");
        verify.arg(folder.at(name));
    }
    let out = verify.output().map_err(|error| eprintln!("LEFT OUT: systemd's own look at the units: {error}")).ok()?;
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success() || !said.is_empty(), "{}", out.status);
    Some(said)
}

#[test]
fn systemd_finds_nothing_wrong_with_the_units() {
    assert_eq!(faults(|text| text).unwrap_or_default(), "");
    if let Some(said) = faults(|text| text.replace("ListenSequentialPacket", "ListenSequential")) {
        assert!(said.contains("ListenSequential"), "a fault that was planted is found: {said}");
    }
}
