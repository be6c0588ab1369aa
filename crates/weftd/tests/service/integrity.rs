//! Checksums that leave payloads out, between daemons.

use crate::daemon::{Daemon, Folder};
use crate::deaths::Pair;
use crate::players::Player;

/// What a daemon reports about the hosts that it talks to.
fn hosts(folder: &Folder) -> String {
    let tool = Player::start(folder, "hosts", 0, "");
    let told = tool.hear();
    tool.finish();
    told
}

#[test]
fn two_daemons_leave_payloads_out_only_if_both_are_told_to() {
    for (here_wants, there_wants, agreed) in [("header", "header", "Header"), ("header", "full", "Full")] {
        let configuration =
            |wants: &str| format!("file_mib = 2\n[network]\naddress = \"127.0.0.1\"\nintegrity = \"{wants}\"\n");
        let (here, there) = (Folder::new(), Folder::new());
        let _daemons =
            [(&here, here_wants), (&there, there_wants)].map(|(at, wants)| Daemon::serve(at, &configuration(wants)));
        let mut pair = Pair::start(&here, &there);
        pair.go_on();
        let wants = if there_wants == "header" { "Header" } else { "Full" };
        assert_eq!(hosts(&here), format!("{agreed}, wants Header"), "{here_wants} here, {there_wants} there");
        assert_eq!(hosts(&there), format!("{agreed}, wants {wants}"), "{here_wants} here, {there_wants} there");
        assert_eq!(pair.finish(), 0, "nothing comes back");
    }
}
