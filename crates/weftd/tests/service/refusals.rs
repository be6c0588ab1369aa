//! Refusals of the host at the daemon's start: the daemon reports the cause and the way out.

use crate::daemon::{arguments, complaint, weftd, Daemon, Folder, SMALL};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// The daemon's command in a shell that lowers a limit first.
fn limited(folder: &Folder, limit: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("ulimit {limit}; exec \"$0\" \"$@\""), env!("CARGO_BIN_EXE_weftd")]);
    command.args(arguments(folder, "file_mib = 2\n[network]\naddress = \"127.0.0.1\"\n"));
    command
}

#[test]
fn a_file_that_is_no_socket_is_left_alone() {
    let folder = Folder::new();
    std::fs::write(folder.at("socket"), "precious").expect("written");
    let said = complaint(weftd(&folder, SMALL));
    assert!(said.contains("not a socket") && said.contains("name another socket"), "{said}");
    assert_eq!(std::fs::read_to_string(folder.at("socket")).expect("it is there"), "precious");
}

#[test]
fn a_socket_that_nobody_listens_at_is_replaced() {
    let folder = Folder::new();
    drop(std::os::unix::net::UnixListener::bind(folder.at("socket")).expect("bound"));
    Daemon::serve(&folder, SMALL);
}

#[test]
fn an_address_that_the_host_has_not_is_named() {
    let folder = Folder::new();
    let said = complaint(weftd(&folder, "[network]\naddress = \"192.0.2.1\"\n"));
    assert!(said.contains("192.0.2.1") && said.contains("[network]") && said.contains("none"), "{said}");
}

#[test]
fn a_folder_where_the_user_may_not_write_is_named() {
    let folder = Folder::new();
    std::fs::set_permissions(&folder.0, PermissionsExt::from_mode(0o755)).expect("rights");
    let mut command = weftd(&folder, SMALL);
    command.uid(65_530).stderr(Stdio::null());
    match command.status() {
        Ok(_) => {
            let mut command = weftd(&folder, SMALL);
            command.uid(65_530);
            let said = complaint(command);
            assert!(said.contains("Permission denied") && said.contains("run weftd as root"), "{said}");
        }
        Err(error) => eprintln!("LEFT OUT: another user: {error}"),
    }
}

#[test]
fn too_few_descriptors_are_named_wherever_they_end() {
    let folder = Folder::new();
    let mut has_failed = 0;
    for files in 4..64 {
        let daemon = Daemon::start(limited(&folder, &format!("-n {files}")));
        let line = daemon.first_line();
        if line.contains("serves") {
            daemon.hear("not all bundles will find a descriptor");
            break;
        }
        // With the lowest limits the loader cannot even open its libraries.
        if line.starts_with("weftd: ") {
            has_failed += 1;
            assert!(line.contains("open files"), "{files}: {line}");
        }
    }
    assert!(has_failed >= 3, "only {has_failed} places were met");
    assert!(folder.at("port").exists(), "it served at last");
}
