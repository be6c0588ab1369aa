//! The daemon under a memory limit of the kernel, with programs and other hosts that take all they can get: these are refused, others
//! notice nothing, and the kernel does not end the daemon.

use crate::daemon::{arguments, weftd, Daemon, Folder, BOUND};
use crate::players::{orders, tell, Player, ANSWER, ECHO, KEY};
use std::cell::Cell;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::sync::mpsc::TryRecvError;
use std::time::{Duration, Instant};
use weft::{Admission, Bundle, Endpoint, Node, Reason};

/// The limit.
const LIMIT: u64 = 64 << 20;

/// With a network.
const NETWORK: &str = "file_mib = 256\n[network]\naddress = \"127.0.0.1\"\n";

/// The user that takes all it can get, and the one whose programs hosts talk to.
const GREEDY: u32 = 65_531;
const SERVER: u32 = 65_532;

/// Endpoints that one program makes at most. Without a bound the daemon would have to touch 250 KiB for each.
const ENDPOINTS_MOST: usize = 400;

/// Bytes of their messages.
const BYTES: usize = 60_000;

/// Hosts that one process plays.
const HOSTS: usize = 250;

/// Endpoints of those hosts that the daemon's programs send to.
const NAMES_MOST: usize = 64;

/// A control group with a memory limit, of version 1 or 2. It is removed at the end.
struct Group {
    folder: PathBuf,
    is_second: bool,
}

impl Group {
    /// Makes a group below this process's own. If the rights or such groups are missing, returns the reason.
    fn new(limit: u64) -> Result<Group, String> {
        let groups = std::fs::read_to_string("/proc/self/cgroup").expect("every Linux has it");
        let path_of = |controller: &str| {
            let lines = groups.lines().map(|line| line.splitn(3, ':').collect::<Vec<_>>());
            let found = lines.into_iter().find(|words| words[1].split(',').any(|one| one == controller));
            found.map(|words| words[2].trim_start_matches('/').to_owned())
        };
        let name = format!("weftd-test-{}-{limit}", std::process::id());
        let first = path_of("memory").map(|path| (Path::new("/sys/fs/cgroup/memory").join(path), false));
        let second = path_of("").map(|path| (Path::new("/sys/fs/cgroup").join(path), true));
        let mut why = String::from("no control groups for memory");
        for (own, is_second) in first.into_iter().chain(second) {
            if is_second {
                // Fails where the group itself has processes, except at the root.
                let _ = std::fs::write(own.join("cgroup.subtree_control"), "+memory");
            }
            let group = Group { folder: own.join(&name), is_second };
            let file = if is_second { "memory.max" } else { "memory.limit_in_bytes" };
            let made = std::fs::create_dir(&group.folder).and_then(|()| group.write(file, &limit.to_string()));
            match made {
                Ok(()) => {
                    if is_second {
                        // Like a host without swap. Only the daemon is to be ended.
                        let _ = group.write("memory.swap.max", "0");
                    }
                    return Ok(group);
                }
                Err(error) => why = format!("{}: {error}", group.folder.display()),
            }
        }
        Err(why)
    }

    fn write(&self, file: &str, words: &str) -> std::io::Result<()> {
        // Opens without creating, because an ordinary folder would allow to make the file.
        let mut file = std::fs::File::options().write(true).open(self.folder.join(file))?;
        std::io::Write::write_all(&mut file, words.as_bytes())
    }

    fn read(&self, file: &str) -> String {
        std::fs::read_to_string(self.folder.join(file)).expect("the kernel has it")
    }

    /// Bytes that are charged now.
    fn used(&self) -> u64 {
        let file = if self.is_second { "memory.current" } else { "memory.usage_in_bytes" };
        self.read(file).trim().parse().expect("a number")
    }

    /// How often the kernel found no room within the limit. It then reclaims memory, and ends a process if that is not enough.
    fn misses(&self) -> u64 {
        match self.is_second {
            true => self.count("memory.events", "max"),
            false => self.read("memory.failcnt").trim().parse().expect("a number"),
        }
    }

    /// How many processes the kernel has ended in the group.
    fn kills(&self) -> u64 {
        let file = if self.is_second { "memory.events" } else { "memory.oom_control" };
        self.count(file, "oom_kill")
    }

    fn count(&self, file: &str, of: &str) -> u64 {
        let text = self.read(file);
        let found = text.lines().find_map(|line| line.strip_prefix(of)?.strip_prefix(' '));
        found.and_then(|number| number.trim().parse().ok()).unwrap_or(0)
    }

    /// The daemon's command: the shell enters the group and becomes the daemon.
    fn command(&self, folder: &Folder, configuration: &str) -> Command {
        let mut command = Command::new("sh");
        let script = format!("echo $$ > {}/cgroup.procs && exec \"$0\" \"$@\"", self.folder.display());
        command.args(["-c", &script, env!("CARGO_BIN_EXE_weftd")]).args(arguments(folder, configuration));
        command
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The kernel needs a moment after the last process has ended.
        let end = Instant::now() + Duration::from_secs(5);
        while std::fs::remove_dir(&self.folder).is_err() && self.folder.exists() && Instant::now() < end {
            std::thread::yield_now();
        }
    }
}

/// A group. If this process may not make one, says that the test is left out.
fn group(limit: u64) -> Option<Group> {
    let made = Group::new(limit);
    made.map_err(|why| eprintln!("LEFT OUT: a memory limit: this process may make none: {why}")).ok()
}

/// The reason why a message came back, if one did.
type Back = Rc<Cell<Option<Reason>>>;

/// An endpoint that admits everybody, and the reason of its last returned message.
fn open(bundle: &mut Bundle) -> Result<(Endpoint, Back), weft::Error> {
    let here = bundle.endpoint(KEY)?;
    bundle.set_admission(here, Admission::AnyUser)?;
    let reason = Rc::new(Cell::new(None));
    let noted = reason.clone();
    bundle
        .on_return(here, move |_: &mut weft::am::Context<'_>, back: weft::Returned| noted.set(Some(back.reason)))
        .expect("on");
    Ok((here, reason))
}

fn orders_end() {
    std::io::stdin().lines().map_while(Result::ok).for_each(drop);
}

/// Makes as many endpoints as it can, and sends as much as it can to those of its own that take nothing. Prints how many endpoints it got
/// and why no more, and stays until its orders end.
pub fn fill() {
    let attached = Node::new().and_then(|node| Ok((Bundle::new(&node)?, Bundle::new(&node)?)));
    let (mut sends, mut takes) = match attached {
        Ok(bundles) => bundles,
        Err(error) => {
            tell(format!("0 endpoints: {error}"));
            return orders_end();
        }
    };
    let (mut pairs, mut why) = (Vec::new(), String::from("as many as it wants"));
    while pairs.len() < ENDPOINTS_MOST {
        let made = open(&mut takes).and_then(|(to, _)| Ok((open(&mut sends)?.0, to)));
        match made {
            Ok((from, to)) => {
                sends.map(from, 0, takes.name(to).expect("a name"), KEY).expect("mapped");
                pairs.push(from);
            }
            Err(error) => {
                why = error.to_string();
                break;
            }
        }
    }
    // Nobody polls the receivers, so nothing is taken. Stops when nothing could be sent for so many turns.
    let (mut idle, payload) = (0, vec![7; BYTES]);
    while idle < 200 {
        let mut went = 0;
        for from in &pairs {
            went += usize::from(sends.try_request(*from, 0, ECHO, &[], &payload).is_ok());
        }
        idle = if went > 0 { 0 } else { idle + 1 };
        sends.poll();
        sends.wait(Some(Duration::from_millis(1)));
    }
    tell(format!("{} endpoints: {why}", pairs.len()));
    orders_end();
}

/// A host of the crowd.
struct Host {
    bundle: Bundle,
    here: Endpoint,
    reason: Back,
    sent: usize,
}

/// Plays many hosts: bundles that are their own network interfaces. Each sends to two names, and takes no answer. Prints how many were let
/// in and how many refused, then their names, and stays.
pub fn crowd(words: &str) {
    let [sink, echo, count] = words.split(' ').collect::<Vec<_>>()[..] else { panic!("three words") };
    let count: usize = count.parse().expect("a number");
    let node = Node::new().expect("a node");
    let payload = vec![9; BYTES];
    let mut hosts: Vec<Host> = (0..count)
        .map(|_| {
            let mut bundle = Bundle::new(&node).expect("a bundle");
            let (here, reason) = open(&mut bundle).expect("an endpoint");
            for (at, name) in [(0, sink), (1, echo)] {
                bundle.map(here, at, name.parse().expect("a name"), KEY).expect("mapped");
            }
            Host { bundle, here, reason, sent: 0 }
        })
        .collect();
    let (mut for_room, mut otherwise) = (0, Vec::new());
    let (mut pending, end): (Vec<usize>, _) = ((0..count).collect(), Instant::now() + BOUND / 2);
    while !pending.is_empty() && Instant::now() < end {
        pending.retain(|at| {
            let Host { bundle, here, reason, sent } = &mut hosts[*at];
            // Full until there is a session, and when the limit of what may be under way is reached.
            let went = bundle.try_request(*here, 1, ECHO, &[], &payload).is_ok();
            *sent += usize::from(went);
            if went {
                let _ = bundle.try_request(*here, 0, ECHO, &[], &payload);
            }
            bundle.poll();
            match reason.get() {
                Some(Reason::NoRoom) => for_room += 1,
                Some(reason) => otherwise.push(reason),
                None => {}
            }
            *sent < 4 && reason.get().is_none()
        });
    }
    let those: Vec<&Host> = hosts.iter().filter(|host| host.sent > 0 && host.reason.get().is_none()).collect();
    let (let_in, waiting) = (those.len(), pending.len());
    tell(format!("{let_in} let in, {waiting} waiting, {for_room} refused for want of room, otherwise {otherwise:?}"));
    let names = those.iter().take(NAMES_MOST).map(|host| host.bundle.name(host.here).expect("a name").to_string());
    tell(names.collect::<Vec<_>>().join(" "));
    orders_end();
}

/// Sends to all these names as much as possible, and stays.
pub fn spray(names: &str) {
    let mut bundle = Bundle::new(&Node::new().expect("a node")).expect("a bundle");
    let (here, _) = open(&mut bundle).expect("an endpoint");
    let names: Vec<&str> = names.split_whitespace().collect();
    for (at, name) in (0..).zip(&names) {
        bundle.map(here, at, name.parse().expect("a name"), KEY).expect("mapped");
    }
    let (mut idle, payload) = (0, vec![5; BYTES]);
    let mut sent = 0;
    while idle < 200 {
        let went =
            (0..names.len() as u32).filter(|at| bundle.try_request(here, *at, ECHO, &[], &payload).is_ok()).count();
        sent += went;
        idle = if went > 0 { 0 } else { idle + 1 };
        bundle.poll();
        bundle.wait(Some(Duration::from_millis(1)));
    }
    tell(format!("{sent} sent"));
    orders_end();
}

/// Makes an endpoint that takes nothing.
pub fn sink() {
    let mut bundle = Bundle::new(&Node::new().expect("a node")).expect("a bundle");
    let (here, _) = open(&mut bundle).expect("an endpoint");
    tell(bundle.name(here).expect("a name"));
    orders_end();
}

/// Makes an endpoint that answers with what it gets.
pub fn echo() {
    let mut bundle = Bundle::new(&Node::new().expect("a node")).expect("a bundle");
    let (here, _) = open(&mut bundle).expect("an endpoint");
    bundle.on(here, ECHO, |m| _ = m.reply(ANSWER, m.args(), m.payload())).expect("on");
    tell(bundle.name(here).expect("a name"));
    let orders = orders();
    while orders.try_recv() != Err(TryRecvError::Disconnected) {
        if bundle.poll() == 0 {
            bundle.wait(Some(Duration::from_millis(1)));
        }
    }
}

/// Two programs of another user attach, and one answers the other's requests.
fn others_talk(folder: &Folder) {
    let answers = Player::start(folder, "asker", 0, "");
    let asks = Player::start(folder, "asker", 0, &answers.hear());
    asks.hear();
    assert_eq!(asks.hear(), "went on");
    asks.finish();
    answers.finish();
}

/// Runs a daemon within the limit, with programs of a user that take all they can get, and so many hosts that send and take nothing.
fn hold(hosts: usize) {
    let Some(group) = group(LIMIT) else { return };
    let folder = Folder::new();
    let mut daemon = Daemon::start(group.command(&folder, NETWORK));
    let said = daemon.hear("has a memory limit");
    assert!(said.contains("mib=64") && said.contains("programs_mib=32"), "{said}");
    daemon.hear("serves");
    let show = |when: &str| eprintln!("{when}: {} KiB count for the daemon", group.used() >> 10);
    show("at first");
    let fillers = [0, 1].map(|number| {
        let filler = Player::start(&folder, "filler", GREEDY, "");
        let told = filler.hear();
        eprintln!("filler: {told}");
        assert!(told.contains("limits of weftd") && (number == 1) == told.starts_with("0 "), "{told}");
        filler
    });
    show("with programs that take all they get");
    others_talk(&folder);
    let (sink, echo) = (Player::start(&folder, "sink", SERVER, ""), Player::start(&folder, "echo", SERVER, ""));
    let names = format!("{} {}", sink.hear(), echo.hear());
    let (mut crowds, mut reached, mut left) = (Vec::new(), String::new(), hosts);
    while left > 0 {
        let count = left.min(HOSTS);
        left -= count;
        let crowd = Player::start_as_host("crowd", &format!("{names} {count}"));
        let told = crowd.hear_within(2 * BOUND);
        let names = crowd.hear();
        show(&format!("{count} hosts: {told}"));
        // The daemon does not listen to callers while it has no room for one, so a few may take it for silent.
        assert!(told.contains(" 0 waiting") && told.matches(": ").count() <= count / 50, "{told}");
        if reached.is_empty() {
            reached = names;
        }
        crowds.push(crowd);
    }
    assert!(!reached.is_empty(), "some are let in");
    let sprayer = Player::start(&folder, "sprayer", SERVER, &reached);
    show(&sprayer.hear());
    others_talk(&folder);
    assert_eq!((group.kills(), group.misses()), (0, 0), "it stayed below its limit all the time");
    drop((fillers, sprayer, sink, echo, crowds));
    others_talk(&folder);
    show("at the end");
    assert!(daemon.end().success());
}

#[test]
fn programs_and_hosts_that_take_all_they_get_do_not_have_the_daemon_killed_within_its_limit() {
    hold(100);
}

#[test]
#[ignore = "takes minutes"]
fn ten_thousand_hosts_do_not_have_the_daemon_killed_within_its_limit() {
    hold(10_000);
}

#[test]
fn a_configuration_that_asks_for_more_than_the_limit_says_so_and_then_the_kernel_ends_the_daemon() {
    let Some(group) = group(LIMIT + (1 << 20)) else { return };
    let folder = Folder::new();
    let configuration = "file_mib = 256\n[network]\naddress = \"none\"\n[limits]\nmemory_mib = 100000\n";
    let mut check = group.command(&folder, configuration);
    let said = check.arg("--check").output().expect("it runs");
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(said.starts_with("the configuration can be used\nbut [limits]") && said.contains("memory_mib"), "{said}");
    let mut daemon = Daemon::start(group.command(&folder, configuration));
    daemon.hear("the kernel may end it");
    daemon.hear("serves");
    let degraded = Player::start(&folder, "degraded", 0, "").hear();
    assert!(degraded.contains("lower memory_mib"), "{degraded}");
    // The same programs, without the bound.
    let fillers = [0, 1].map(|_| Player::start(&folder, "filler", GREEDY, ""));
    let end = Instant::now() + BOUND;
    let status = loop {
        if let Some(status) = daemon.child.try_wait().expect("it is ours") {
            break status;
        }
        assert!(Instant::now() < end, "it lives, with {} KiB", group.used() >> 10);
        std::thread::sleep(Duration::from_millis(10));
    };
    assert_eq!((status.signal(), group.kills()), (Some(9), 1));
    drop(fillers);
}

#[test]
fn without_a_limit_nothing_is_said_of_one() {
    let folder = Folder::new();
    let mut command = weftd(&folder, NETWORK);
    let out = command.arg("--check").stdin(Stdio::null()).output().expect("it runs");
    // This process may be under a limit itself, but hardly one that is too small.
    assert_eq!(String::from_utf8_lossy(&out.stdout), "the configuration can be used\n");
}
