//! The rights that a program would gain if it took the daemon over.

use crate::daemon::{attach, complaint, connect, weftd, Daemon, Folder, SMALL};

/// The fields of the daemon's status that begin with these words.
fn status(daemon: &Daemon, fields: &[&str]) -> Vec<String> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.child.id())).expect("it runs");
    let of = |field: &&str| {
        let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("no {field}")).split_whitespace().collect::<Vec<_>>().join(" ")
    };
    fields.iter().map(of).collect()
}

/// The capabilities that this process has, and so the daemon when it starts.
fn own_capabilities() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("own");
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:")).expect("a line");
    u64::from_str_radix(line.trim(), 16).expect("a number")
}

#[test]
fn a_daemon_that_serves_has_no_capability_and_can_get_none() {
    let folder = Folder::new();
    let daemon = Daemon::serve(&folder, SMALL);
    let none = "0000000000000000";
    assert_eq!(status(&daemon, &["CapInh", "CapPrm", "CapEff", "CapAmb", "NoNewPrivs"]), [none, none, none, none, "1"]);
    match own_capabilities() {
        0 => eprintln!("LEFT OUT: the bounding set: this process has no capability to lose"),
        _ => assert_eq!(status(&daemon, &["CapBnd"]), [none]),
    }
    assert!(attach(&folder.at("socket")).success());
}

#[test]
fn a_daemon_becomes_the_user_that_it_should_and_the_next_one_finds_its_files() {
    let folder = Folder::new();
    let configuration = format!("user = \"nobody\"\n{SMALL}");
    let mut daemon = Daemon::start(weftd(&folder, &configuration));
    let line = daemon.first_line();
    if !line.contains("serves") {
        // An ordinary user may not change users, and a namespace may lack that user.
        assert!(line.contains("cannot become user") && line.contains("leave `user`"), "{line}");
        eprintln!("LEFT OUT: another user: {line}");
        return;
    }
    let [users, groups] = &status(&daemon, &["Uid", "Groups"])[..] else { panic!("two fields") };
    let nobody: Vec<&str> = users.split(' ').collect();
    assert!(nobody.iter().all(|user| *user == nobody[0] && *user != "0"), "{users}");
    assert!(!groups.split(' ').any(|group| group == "0"), "{groups}");
    assert!(attach(&folder.at("socket")).success());
    // Programs trust the user who made the socket listen.
    let peer = rustix::net::sockopt::socket_peercred(connect(&folder.at("socket"))).expect("it listens");
    assert!(peer.uid.is_root(), "{:?}", peer.uid);
    let secret = std::fs::read(folder.at("secret")).expect("kept");
    assert!(daemon.end().success());
    let _next = Daemon::serve(&folder, &configuration);
    assert_eq!(std::fs::read(folder.at("secret")).expect("kept"), secret);
}

#[test]
fn a_daemon_that_serves_has_a_filter_of_system_calls_unless_it_is_switched_off() {
    let folder = Folder::new();
    let mut daemon = Daemon::serve(&folder, SMALL);
    assert_eq!(status(&daemon, &["Seccomp"]), ["2"]);
    assert!(attach(&folder.at("socket")).success());
    assert!(daemon.end().success(), "it may end");
    let daemon = Daemon::serve(&folder, &format!("seccomp = false\n{SMALL}"));
    let own = std::fs::read_to_string("/proc/self/status").expect("own");
    let is_filtered = own.lines().any(|line| line == "Seccomp:\t2");
    assert_eq!(status(&daemon, &["Seccomp"]), [if is_filtered { "2" } else { "0" }]);
}

#[test]
fn an_unknown_user_is_named() {
    let folder = Folder::new();
    let said = complaint(weftd(&folder, "user = \"no-such-user\"\n"));
    assert!(said.contains("user: there is no user \"no-such-user\""), "{said}");
}
