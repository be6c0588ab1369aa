//! The files that a daemon leaves beside its socket, and what others may put in their places.

use crate::daemon::{complaint, weftd, Daemon, Folder, SMALL};
use std::os::unix::fs::{symlink, MetadataExt, PermissionsExt};

/// With a network, and so with a port to keep.
const NETWORK: &str = "file_mib = 2\n[network]\naddress = \"127.0.0.1\"\n";

#[test]
fn a_link_in_the_place_of_the_port_is_replaced_and_not_followed() {
    let folder = Folder::new();
    std::fs::write(folder.at("victim"), "1").expect("written");
    symlink(folder.at("victim"), folder.at("port")).expect("a link");
    std::fs::write(folder.at("port.new"), "left by a daemon that was killed").expect("written");
    let daemon = Daemon::start(weftd(&folder, NETWORK));
    daemon.hear("symbolic link");
    daemon.hear("serves");
    assert_eq!(std::fs::read_to_string(folder.at("victim")).expect("it is there"), "1");
    let port = std::fs::symlink_metadata(folder.at("port")).expect("written");
    assert!(port.is_file() && !folder.at("port.new").exists());
    let text = std::fs::read_to_string(folder.at("port")).expect("it can be read");
    assert!(text.parse::<u16>().is_ok_and(|port| port > 1), "{text}");
}

#[test]
fn the_next_daemon_has_the_port_and_the_secret_of_the_one_before() {
    let folder = Folder::new();
    let read = || ["port", "secret"].map(|name| std::fs::read(folder.at(name)).expect("kept"));
    let mut daemon = Daemon::serve(&folder, NETWORK);
    let before = read();
    assert_eq!(std::fs::metadata(folder.at("secret")).expect("kept").mode() & 0o777, 0o600);
    assert!(daemon.end().success());
    let _next = Daemon::serve(&folder, NETWORK);
    assert_eq!(read(), before);
}

#[test]
fn a_secret_that_others_could_know_or_choose_is_refused() {
    let refused = |put: &dyn Fn(&Folder), words: &str| {
        let folder = Folder::new();
        put(&folder);
        let said = complaint(weftd(&folder, SMALL));
        assert!(said.contains(words) && said.contains("secret") && said.contains("remove the file"), "{words}: {said}");
    };
    let put = |folder: &Folder, bytes: &[u8], mode| {
        std::fs::write(folder.at("secret"), bytes).expect("written");
        std::fs::set_permissions(folder.at("secret"), PermissionsExt::from_mode(mode)).expect("rights");
    };
    refused(&|folder| put(folder, &[7; 16], 0o640), "other users have rights");
    refused(&|folder| put(folder, &[7; 5], 0o600), "not 16 bytes");
    refused(&|folder| symlink("/dev/zero", folder.at("secret")).expect("a link"), "symbolic link");
    refused(&|folder| std::fs::create_dir(folder.at("secret")).expect("a folder"), "no ordinary file");
    let is_anothers = |folder: &Folder| {
        put(folder, &[7; 16], 0o600);
        std::os::unix::fs::chown(folder.at("secret"), Some(65_530), None)
    };
    match is_anothers(&Folder::new()) {
        Ok(()) => refused(&|folder| is_anothers(folder).expect("as before"), "another user"),
        Err(error) => eprintln!("LEFT OUT: a secret of another user: {error}"),
    }
}
