//! Forked children and started programs during traffic: the parent's traffic is not disturbed, the child has nothing of weft and
//! its calls say so, and no peer mistakes a living child for its parent.

mod support;

use nix::sys::wait::{waitpid, WaitPidFlag, WaitStatus};
use nix::unistd::{ForkResult, Pid};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;
use support::{
    bundle_with_endpoint, contents, events, left_out, over_udp, poll_until, returns_of, tell, turn, wait_until,
    Address, Census, Order, Orders, Peer,
};
use weft::am::{NotReplied, ReplyToken};
use weft::{
    Bundle, Endpoint, Error, Event, EventMask, Key, MessageKind, Node, Outgoing, Reason, ReplyError, SendError,
};

const ECHO: u8 = 1;
const KEEP: u8 = 2;
const FORK: u8 = 3;
const NOTE: u8 = 4;
const ANSWER: u8 = 20;

#[test]
fn child() {
    support::play(&[("forker", forker), ("starter", starter), ("echo", echo)]);
}

// ---- processes

/// Forks; the child runs `run` and ends, with 0 if it did not panic. It dies with the parent unless `survives`.
fn fork(survives: bool, run: impl FnOnce()) -> Pid {
    // SAFETY: the C library's allocator works in forked children, and no lock of this program that the child takes is held by
    // another thread now.
    match unsafe { nix::unistd::fork() }.expect("fork") {
        ForkResult::Parent { child } => child,
        ForkResult::Child => end_after(survives, run),
    }
}

/// The same without the C library, so that its fork handlers do not run.
fn clone_raw(run: impl FnOnce()) -> Pid {
    // SAFETY: with these flags it is fork(2); otherwise as in `fork`.
    let child = unsafe { nix::libc::syscall(nix::libc::SYS_clone, nix::libc::SIGCHLD, 0, 0, 0, 0) };
    assert!(child >= 0, "clone");
    match child {
        0 => end_after(false, run),
        child => Pid::from_raw(child as i32),
    }
}

fn end_after(survives: bool, run: impl FnOnce()) -> ! {
    if !survives {
        support::die_with_the_parent();
    }
    let failed = catch_unwind(AssertUnwindSafe(run)).is_err();
    // SAFETY: it ends the process, and runs none of the parent's exit handlers.
    unsafe { nix::libc::_exit(failed.into()) }
}

/// system(3).
fn system(command: &std::ffi::CStr) -> i32 {
    // SAFETY: a string that ends with 0.
    unsafe { nix::libc::system(command.as_ptr()) }
}

/// Expects a child to end well, while something is done.
fn expect_good_end(child: Pid, mut meanwhile: impl FnMut()) {
    let mut status = WaitStatus::StillAlive;
    wait_until("the end of a forked child", || {
        meanwhile();
        status = waitpid(child, Some(WaitPidFlag::WNOHANG)).expect("a child of ours");
        status != WaitStatus::StillAlive
    });
    assert_eq!(status, WaitStatus::Exited(child, 0), "see above");
}

/// The open descriptors of this process: the link of each number.
fn open_files() -> BTreeMap<String, String> {
    let all = std::fs::read_dir("/proc/self/fd").expect("/proc").flatten();
    let links = all.filter_map(|entry| {
        let link = std::fs::read_link(entry.path()).ok()?.to_string_lossy().into_owned();
        Some((entry.file_name().to_string_lossy().into_owned(), link))
    });
    links.filter(|(_, link)| !link.starts_with("/proc/")).collect()
}

// ---- roles and what they do in children

fn map(bundle: &mut Bundle, here: Endpoint, there: Address) {
    bundle.map(here, 0, there.name, there.key).expect("map");
}

/// Answers.
fn echo(orders: Orders) {
    let (mut bundle, here) = bundle_with_endpoint();
    bundle.on(here, ECHO, |m| m.reply(ANSWER, m.args(), m.payload()).expect("once")).expect("on");
    tell(Address::of(&bundle, here));
    orders.serve(&mut bundle, |_, _| {});
}

/// Sends a request with contents of this number, and checks the answer.
fn ask(bundle: &mut Bundle, here: Endpoint, answer: &Answer, number: u32) {
    let (args, payload) = contents(number, number as usize % 17, number as usize * 37 % 3000);
    bundle.request(here, 0, ECHO, &args, &payload).expect("mapped");
    poll_until(bundle, "an answer", |_| answer.borrow().is_some());
    assert!(answer.take() == Some((args, payload)), "the answer to question {number}");
}

/// The latest answer.
type Answer = Rc<RefCell<Option<(Vec<u32>, Vec<u8>)>>>;

/// A bundle that keeps the latest answer.
fn asker(there: Address) -> (Bundle, Endpoint, Answer) {
    let (mut bundle, here) = bundle_with_endpoint();
    let answer = Answer::default();
    let seen = answer.clone();
    bundle.on(here, ANSWER, move |m| _ = seen.replace(Some((m.args().to_vec(), m.payload().to_vec())))).expect("on");
    map(&mut bundle, here, there);
    (bundle, here, answer)
}

/// Checks the errors of every call in a child.
fn expect_all_calls_to_say_so(node: &Node, bundle: &mut Bundle, here: Endpoint, token: ReplyToken) {
    let is_error = |error: Error| {
        assert!(matches!(error, Error::Forked(_)), "{error}");
        let text = error.to_string();
        assert!(text.contains("forked") && text.contains("new Node"), "cause and way out: {text}");
    };
    is_error(Bundle::new(node).expect_err("not the parent's node"));
    is_error(bundle.endpoint(Key(1)).expect_err("endpoint"));
    is_error(bundle.endpoint_with_random_key().expect_err("endpoint"));
    is_error(bundle.name(here).expect_err("name"));
    is_error(bundle.key(here).expect_err("key"));
    is_error(bundle.set_key(here, Key(1)).expect_err("set_key"));
    is_error(bundle.set_served(here, false).expect_err("set_served"));
    is_error(bundle.set_event_mask(here, EventMask::default()).expect_err("set_event_mask"));
    is_error(bundle.on(here, 9, |_| {}).expect_err("on"));
    is_error(bundle.on_return(here, |_, _| {}).expect_err("on_return"));
    is_error(bundle.unmap(here, 0).expect_err("unmap"));
    is_error(bundle.free(here).expect_err("free"));
    assert_eq!(bundle.try_request(here, 0, ECHO, &[], b""), Err(SendError::Forked));
    assert_eq!(bundle.try_send(here, 0, ECHO, &[], b""), Err(SendError::Forked));
    assert_eq!(bundle.request(here, 0, ECHO, &[], b""), Err(SendError::Forked));
    assert_eq!(bundle.send(here, 0, ECHO, &[], b""), Err(SendError::Forked));
    for kind in [MessageKind::Request, MessageKind::OneWay] {
        let message = Outgoing { op: ECHO, args: &[], payload: b"", completion: None };
        assert_eq!(bundle.try_post(here, 0, kind, message), Err(SendError::Forked));
    }
    let (error, token) = bundle.reply(token, ANSWER, &[], b"").expect_err("reply");
    assert_eq!(error, ReplyError::Forked);
    let (error, token) = token.reply_from_afar(ANSWER, &[], b"").expect_err("reply_from_afar");
    assert_eq!(error, ReplyError::Forked);
    drop(token);
    bundle.waker().wake();
    expect_panic(bundle, "poll", |bundle| _ = bundle.poll());
    expect_panic(bundle, "poll_until", |bundle| bundle.poll_until(|_| true));
    expect_panic(bundle, "drain", |bundle| bundle.drain());
    expect_panic(bundle, "flush", |bundle| _ = bundle.flush());
    expect_panic(bundle, "next_event", |bundle| _ = bundle.next_event());
    expect_panic(bundle, "wait", |bundle| _ = bundle.wait(Some(Duration::ZERO)));
    expect_panic(bundle, "wait_fd", |bundle| _ = bundle.wait_fd());
    expect_panic(bundle, "arm", |bundle| _ = bundle.arm());
    expect_panic(bundle, "wait_limit", |bundle| _ = bundle.wait_limit());
}

/// Expects a call without an error of its own to panic with the words.
fn expect_panic(bundle: &mut Bundle, call: &str, run: impl FnOnce(&mut Bundle)) {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let panicked = catch_unwind(AssertUnwindSafe(|| run(bundle)));
    std::panic::set_hook(hook);
    let words = panicked.expect_err(call);
    let words = words.downcast_ref::<String>().expect("words");
    assert!(words.contains("forked") && words.contains("new Node"), "{call}: {words}");
}

/// Serves, and forks when it is told.
fn forker(orders: Orders) {
    let before = open_files();
    let node = Node::new().expect("node");
    let mut bundle = Bundle::new(&node).expect("bundle");
    let here = bundle.endpoint_with_random_key().expect("endpoint");
    let is_child = Rc::new(Cell::new(None::<Pid>));
    bundle.on(here, ECHO, |m| m.reply(ANSWER, m.args(), m.payload()).expect("once")).expect("on");
    let keep: Rc<RefCell<Vec<ReplyToken>>> = Rc::default();
    let sink = keep.clone();
    bundle.on(here, NOTE, |_| {}).expect("on");
    bundle.on(here, KEEP, move |m| sink.borrow_mut().push(m.defer().expect("a request"))).expect("on");
    let forked = is_child.clone();
    bundle
        .on(here, FORK, move |m| {
            // SAFETY: as in `fork`; here the child goes on in the poll that runs this handler.
            match unsafe { nix::unistd::fork() }.expect("fork") {
                ForkResult::Parent { child } => {
                    expect_good_end(child, || {});
                    m.reply(ANSWER, m.args(), m.payload()).expect("once");
                }
                ForkResult::Child => {
                    support::die_with_the_parent();
                    forked.set(Some(Pid::this()));
                    let _ = m.payload().iter().map(|&b| u32::from(b)).sum::<u32>(); // there is something to read
                    assert_eq!(m.reply(ANSWER, &[], b""), Err(NotReplied::Refused(ReplyError::Forked)));
                    assert_eq!(m.context().try_send(here, 0, ECHO, &[], b""), Err(SendError::Forked));
                }
            }
        })
        .expect("on");
    let address = Address::of(&bundle, here);
    tell(address);
    loop {
        bundle.poll();
        if is_child.get().is_some() {
            // The poll in which the child was made has returned; another one must panic.
            expect_panic(&mut bundle, "poll", |bundle| _ = bundle.poll());
            end_after(false, move || drop((bundle, node, keep)));
        }
        let order = match orders.look() {
            Order::None => continue,
            Order::End => return,
            Order::Line(order) => order,
        };
        let mut words = order.split(' ');
        match (words.next(), words.next()) {
            (Some("forget"), _) => {
                keep.borrow_mut().clear();
                tell("forgotten");
            }
            // A child that checks everything, talks to its parent, and ends.
            (Some(way @ ("fork" | "clone")), _) => {
                let run = |node: Node, mut bundle: Bundle| {
                    if way == "fork" {
                        assert_eq!(open_files(), before, "closed before the fork returns");
                    }
                    let token = keep.borrow_mut().pop().expect("a request in hand");
                    expect_all_calls_to_say_so(&node, &mut bundle, here, token);
                    assert_eq!(open_files(), before, "closed by the first call");
                    drop((bundle, node));
                    assert_eq!(open_files(), before, "and nothing else was");
                    assert_eq!(Census::take().mappings, 0);
                    let (mut own, here, answer) = asker(address);
                    (0..100).for_each(|number| ask(&mut own, here, &answer, number));
                };
                // The child has copies; the parent's are kept from being dropped by the closure's end.
                let mut own = Some((node.clone(), bundle));
                let child = {
                    let own = &mut own;
                    let run = || {
                        let (node, bundle) = own.take().expect("once");
                        run(node, bundle);
                    };
                    if way == "fork" {
                        fork(false, run)
                    } else {
                        clone_raw(run)
                    }
                };
                bundle = own.expect("the parent's").1;
                expect_good_end(child, || _ = bundle.poll());
                tell("it ended well");
            }
            // One that lives on, does nothing, and outlives its parent.
            (Some("leave"), _) => {
                let child = fork(true, || std::thread::sleep(4 * support::BOUND));
                tell(child);
            }
            (Some("compute"), Some(turns)) => {
                // It does not poll, so its deputy visits. Each child drops its copies of what the parent has.
                for _ in 0..turns.parse::<u32>().expect("a number") {
                    let mut own = Some((node.clone(), bundle));
                    let child = {
                        let own = &mut own;
                        fork(false, || drop(own.take()))
                    };
                    bundle = own.expect("the parent's").1;
                    expect_good_end(child, || {});
                }
                tell("computed");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_forked_child_has_nothing_of_weft_is_told_so_and_can_begin_anew() {
    let _turn = turn("forked child");
    for way in ["fork", "clone"] {
        let mut peer = Peer::start("forker", &[]);
        let (mut bundle, here, answer) = asker(peer.address());
        let returns = returns_of(&mut bundle, here);
        for round in 0..3 {
            ask(&mut bundle, here, &answer, round);
            // The parent keeps it unanswered; its child gets a copy.
            bundle.request(here, 0, KEEP, &[], b"").expect("mapped");
            ask(&mut bundle, here, &answer, round);
            peer.say(way);
            let mut number = 0;
            let mut line = None;
            while line.is_none() {
                number += 1;
                ask(&mut bundle, here, &answer, number);
                line = peer.overhear();
            }
            assert_eq!(line.as_deref(), Some("it ended well"), "{way}");
        }
        assert!(returns.borrow().is_empty() && bundle.sessions() == 1);
        assert_eq!(peer.ask("forget"), "forgotten");
        peer.finish();
    }
}

#[test]
fn a_child_that_is_made_in_a_handler_comes_to_the_end_of_its_poll() {
    let _turn = turn("children made in handlers");
    fork_in_handlers();
}

#[test]
fn a_child_that_is_made_in_a_handler_comes_to_the_end_of_its_poll_over_udp() {
    let name = "a_child_that_is_made_in_a_handler_comes_to_the_end_of_its_poll_over_udp";
    let Some(_turn) = over_udp(name) else { return };
    fork_in_handlers();
}

fn fork_in_handlers() {
    let peer = Peer::start("forker", &[]);
    let (mut bundle, here, answer) = asker(peer.address());
    for round in 0..20 {
        // In the middle of other messages.
        let (args, payload) = contents(round, 3, [0, 50, 700, 60_000][round as usize % 4]);
        bundle.send(here, 0, NOTE, &[], b"").expect("mapped");
        bundle.request(here, 0, FORK, &args, &payload).expect("mapped");
        bundle.send(here, 0, NOTE, &[], b"").expect("mapped");
        poll_until(&mut bundle, "the answer", |_| answer.borrow().is_some());
        assert!(answer.take() == Some((args, payload)));
    }
    peer.finish();
}

#[test]
fn a_parents_death_is_noticed_while_its_child_lives() {
    let _turn = turn("death of a parent");
    let mut peer = Peer::start("forker", &[]);
    let (mut bundle, here, answer) = asker(peer.address());
    let returns = returns_of(&mut bundle, here);
    ask(&mut bundle, here, &answer, 1);
    bundle.request(here, 0, KEEP, &[7], b"kept").expect("mapped");
    ask(&mut bundle, here, &answer, 2);
    let child: i32 = peer.ask("leave").parse().expect("a number");
    ask(&mut bundle, here, &answer, 3);
    peer.kill();
    poll_until(&mut bundle, "what the dead parent had in hand", |_| !returns.borrow().is_empty());
    let back = returns.borrow_mut().remove(0);
    assert_eq!((back.reason, back.args, back.payload), (Reason::PeerLost, vec![7], b"kept".to_vec()));
    assert!(events(&mut bundle).iter().any(|e| matches!(e, Event::PeerLost { reason: Reason::PeerLost, .. })));
    let child = rustix::process::Pid::from_raw(child).expect("a number");
    rustix::process::kill_process(child, rustix::process::Signal::KILL).expect("the child lived");
}

#[test]
fn children_made_during_a_deputys_visits_drop_what_they_inherited() {
    let name = "children_made_during_a_deputys_visits_drop_what_they_inherited";
    let Some(_turn) = over_udp(name) else { return };
    let mut peer = Peer::start("forker", &[]);
    let (mut bundle, here, answer) = asker(peer.address());
    ask(&mut bundle, here, &answer, 1);
    peer.say("compute 200");
    let mut line = None;
    // So many packets come that the deputy is nearly always visiting.
    poll_until(&mut bundle, "the end of its children", |bundle| {
        while bundle.try_send(here, 0, NOTE, &[], &[7; 1000]).is_ok() {}
        line = peer.overhear();
        line.is_some()
    });
    assert_eq!(line.as_deref(), Some("computed"));
    ask(&mut bundle, here, &answer, 2);
    peer.finish();
}

/// Starts programs in a thread of its own while it serves.
fn starter(orders: Orders) {
    let (mut bundle, here) = bundle_with_endpoint();
    bundle.on(here, ECHO, |m| m.reply(ANSWER, m.args(), m.payload()).expect("once")).expect("on");
    tell(Address::of(&bundle, here));
    let mut thread = None;
    let before = Cell::new(None);
    orders.serve(&mut bundle, |_, order| {
        before.set(Some(Census::take()));
        let rounds = order.parse().expect("a number");
        thread = Some(std::thread::spawn(move || {
            for _ in 0..rounds {
                start_programs();
            }
            tell("all ended well");
        }));
    });
    thread.expect("it was told").join().expect("see above");
    assert_eq!(Some(Census::take()), before.get());
}

/// Starts programs in every way there is. Each must see only the first three descriptors, and no memory of weft.
fn start_programs() {
    const LOOK: &str = "for f in /proc/$$/fd/*; do case $(readlink $f) in *weft*|socket:*|anon_inode:*) \
                        case ${f##*/} in 0|1|2) ;; *) exit 7;; esac;; esac; done; ! grep -q weft- /proc/$$/maps";
    let shell = || {
        let mut shell = Command::new("sh");
        shell.args(["-c", LOOK]);
        shell
    };
    // posix_spawn; then fork and exec, which std uses when it has to set the user; then the C library's `system`.
    assert!(shell().status().expect("sh").success());
    let own = rustix::process::getuid().as_raw();
    match shell().uid(own).status() {
        Ok(status) => assert!(status.success()),
        Err(error) => left_out(&format!("fork and exec: {error}")),
    }
    let look = std::ffi::CString::new(LOOK).expect("no 0");
    assert_eq!(system(&look), 0);
    // A fork whose child ends at once, as a library may make it.
    expect_good_end(fork(false, || {}), || {});
}

#[test]
fn programs_are_started_under_traffic_and_see_nothing_of_weft() {
    let _turn = turn("programs started under traffic");
    start_under_traffic();
}

#[test]
fn programs_are_started_under_traffic_over_udp_and_see_nothing_of_weft() {
    let name = "programs_are_started_under_traffic_over_udp_and_see_nothing_of_weft";
    let Some(_turn) = over_udp(name) else { return };
    start_under_traffic();
}

fn start_under_traffic() {
    let mut peer = Peer::start("starter", &[]);
    let (mut bundle, here, answer) = asker(peer.address());
    // Enough for a direct socket, over UDP.
    (0..200).for_each(|number| ask(&mut bundle, here, &answer, number));
    peer.say("50");
    let (mut number, mut line) = (0, None);
    while line.is_none() {
        number += 1;
        ask(&mut bundle, here, &answer, number);
        line = peer.overhear();
    }
    assert_eq!(line.as_deref(), Some("all ended well"));
    eprintln!("{number} questions were answered meanwhile");
    assert_eq!((bundle.sessions(), bundle.counters().violations), (1, 0));
    peer.finish();
}
