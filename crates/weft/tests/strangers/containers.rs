//! Processes of a user namespace whose users are a range of this one's (subuid), as in rootless containers that share the
//! host's network. Only root can make it, so other users skip the test.

use crate::support::{contents, left_out, poll_until, returns_of, tell, turn, wait_until, Address, Orders, Peer};
use crate::users::{exchange, open_bundle};
use crate::ECHO;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use weft::{Certainty, Reason, Uid};

/// The user inside, and where the range begins outside.
const INSIDE: u32 = 5;
const RANGE: u32 = 100_000;

/// A user namespace that lives as long as this, and a copy of this program that its users may run.
struct Container {
    holder: Child,
    program: PathBuf,
}

impl Container {
    /// `None`, with a report, if this user may not make it.
    fn make() -> Option<Container> {
        let holder = Command::new("unshare").args(["--user", "cat"]).stdin(Stdio::piped()).spawn().expect("unshare");
        let program = std::env::temp_dir().join(format!("weft-container-{}", std::process::id()));
        let mut container = Container { holder, program };
        let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/user")).ok();
        let process = container.holder.id().to_string();
        let mut ended = None;
        wait_until("a user namespace", || {
            ended = container.holder.try_wait().expect("it is ours");
            ended.is_some() || namespace(&process).is_some_and(|there| Some(there) != namespace("self"))
        });
        if let Some(status) = ended {
            left_out(&format!("a user namespace: unshare says why: {status}"));
            return None;
        }
        for map in ["uid_map", "gid_map"] {
            if let Err(why) = fs::write(format!("/proc/{process}/{map}"), format!("0 {RANGE} 65536\n")) {
                left_out(&format!("a user namespace with a range of users, which this user may not make: {why}"));
                return None;
            }
        }
        fs::copy(std::env::current_exe().expect("this program"), &container.program).expect("a copy");
        Some(container)
    }

    /// Starts another process of this program inside.
    fn start(&self, role: &str, words: &[&str]) -> Peer {
        let mut command = Command::new("nsenter");
        let user = INSIDE.to_string();
        command.args(["--user", "--target", &self.holder.id().to_string(), "--setuid", &user, "--setgid", &user, "--"]);
        command.arg(&self.program);
        Peer::start_by(command, role, words, &[])
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
        let _ = fs::remove_file(&self.program);
    }
}

/// The process inside: calls, and is called.
pub fn contained(orders: Orders) {
    let there = Address::parse(&orders.words[0]);
    let (mut bundle, here, answers) = open_bundle();
    assert_eq!(rustix::process::getuid().as_raw(), INSIDE);
    bundle.map(here, 0, there.name, there.key).expect("map");
    exchange(&mut bundle, here, &answers);
    tell(Address::of(&bundle, here));
    orders.serve(&mut bundle, |_, _| {});
}

#[test]
fn processes_of_a_container_with_users_of_its_own_call_and_are_called() {
    let _turn = turn("a container with users of its own");
    let Some(container) = Container::make() else { return };
    let (mut bundle, here, answers) = open_bundle();
    let peer = container.start("contained", &[&Address::of(&bundle, here).to_string()]);
    let there = Address::parse(&peer.hear_polling(&mut bundle));
    assert_eq!(there.name.uid, Uid(RANGE + INSIDE), "as it is called out here");
    bundle.map(here, 0, there.name, there.key).expect("map");
    let (before, returns) = (answers.get(), returns_of(&mut bundle, here));
    let (mut args, payload) = contents(0, 3, 16);
    args.insert(0, 0);
    bundle.request(here, 0, ECHO, &args, &payload).expect("mapped");
    poll_until(&mut bundle, "an end", |_| answers.get() > before || !returns.borrow().is_empty());
    assert_eq!(returns.borrow().first().map(|back| back.reason), None, "called from outside");
    exchange(&mut bundle, here, &answers);
    assert_eq!(bundle.sessions(), 1, "both ways over the session that the other side made");
    // An endpoint that admits only its own user cannot call there, because that process is another user's.
    let closed = bundle.endpoint_with_random_key().expect("endpoint");
    let returns = returns_of(&mut bundle, closed);
    bundle.map(closed, 0, there.name, there.key).expect("map");
    bundle.request(closed, 0, ECHO, &[], b"").expect("mapped");
    poll_until(&mut bundle, "a return", |_| !returns.borrow().is_empty());
    let back = returns.borrow_mut().remove(0);
    assert_eq!((back.reason, back.certainty), (Reason::ForeignUser, Certainty::NotDelivered));
    peer.finish();
}
