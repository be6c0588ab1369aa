//! Jobs of real processes: what ranks learn about each other, barriers, gathers, and ranks that die.

mod support;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};
use support::{order, play, tell, Rank, Ranks};
use weft::{Bundle, Endpoint, Node, SharedBundle};
use weft_job::{Job, JobError, Launched};

/// The sizes of jobs that are tested: powers of two, and one other.
const SIZES: [u32; 4] = [1, 2, 5, 8];

#[test]
fn child() {
    play(&[
        ("alone", alone),
        ("acquainted", acquainted),
        ("shared", shared),
        ("joins twice", joins_twice),
        ("barrier", waits_in_barriers),
        ("short barrier", waits_in_short_barriers),
        ("counts", counts),
        ("out of step", out_of_step),
        ("survivor", survivor),
        ("forker", forker),
        ("errors", errors),
    ]);
}

/// A job that has joined a bundle with one endpoint.
fn joined() -> (Job, Bundle, Endpoint) {
    let mut job = Job::from_environment().expect("a launcher, or none");
    let mut bundle = Bundle::new(&Node::new().expect("a node")).expect("a bundle");
    let me = bundle.endpoint_with_random_key().expect("an endpoint");
    job.join(&mut bundle, me).expect("all join");
    (job, bundle, me)
}

// ---- what ranks learn

#[test]
fn a_process_that_no_launcher_started_is_a_job_of_one() {
    let rank = Rank::alone("alone");
    assert_eq!(rank.hear(), "0 of 1, Alone: [[1, 2, 3]] [[4]]");
    rank.finish();
}

fn alone() {
    let (mut job, mut bundle, _) = joined();
    job.barrier(&mut bundle).expect("nobody else");
    let gathered = job.all_gather(&mut bundle, &[1, 2, 3]).expect("nobody else");
    let exchanged = job.exchange(&[4]).expect("nobody else");
    tell(format_args!("{} of {}, {:?}: {gathered:?} {exchanged:?}", job.rank(), job.size(), job.launched()));
}

#[test]
fn every_rank_reaches_every_other_one_and_gathers_what_all_gave() {
    for size in SIZES {
        let ranks = Ranks::start("acquainted", size);
        assert_eq!(ranks.hear(), vec!["all as it should be"; size as usize], "{size} ranks");
        ranks.finish();
    }
}

/// A rank's contribution to a gather: empty, short, or longer than a message.
fn gift(rank: u32, round: u32) -> Vec<u8> {
    let length = match (rank + round) % 4 {
        0 => 0,
        1 => 7,
        2 => 70_000,
        _ => 200_001,
    };
    (0..length).map(|at| (at * 31 + rank as usize * 7 + round as usize) as u8).collect()
}

fn acquainted() {
    let mut job = Job::from_environment().expect("a launcher");
    assert_eq!(job.launched(), Launched::ByWeft);
    let mut bundle = Bundle::new(&Node::new().expect("a node")).expect("a bundle");
    let me = bundle.endpoint_with_random_key().expect("an endpoint");
    let heard = Rc::new(RefCell::new(vec![0; job.size() as usize]));
    let asked = heard.clone();
    let rank = job.rank();
    bundle
        .on(me, 1, move |m| {
            let from = m.args()[0] as usize;
            asked.borrow_mut()[from] += 1;
            m.reply(2, &[rank], b"").expect("it is a request");
        })
        .expect("an endpoint");
    let answers = Rc::new(RefCell::new(Vec::new()));
    let told = answers.clone();
    bundle.on(me, 2, move |m| told.borrow_mut().push(m.args()[0])).expect("an endpoint");
    job.join(&mut bundle, me).expect("all join");
    for to in 0..job.size() {
        bundle.request(me, to, 1, &[rank], b"").expect("it is mapped");
    }
    // Ranks that are in the barrier already answer: their handlers run there.
    bundle.poll_until(|_| answers.borrow().len() == heard.borrow().len());
    job.barrier(&mut bundle).expect("all come");
    answers.borrow_mut().sort_unstable();
    assert_eq!(*answers.borrow(), (0..job.size()).collect::<Vec<_>>());
    assert_eq!(*heard.borrow(), vec![1; job.size() as usize], "behind the barrier");
    for round in 0..8 {
        let all = job.all_gather(&mut bundle, &gift(rank, round)).expect("all come");
        let wanted: Vec<_> = (0..job.size()).map(|rank| gift(rank, round)).collect();
        assert!(all == wanted, "round {round}");
        let all = job.exchange(&rank.to_le_bytes()).expect("all come");
        assert_eq!(all, (0..job.size()).map(|rank| rank.to_le_bytes().to_vec()).collect::<Vec<_>>());
    }
    (0..100).for_each(|_| job.barrier(&mut bundle).expect("all come"));
    tell("all as it should be");
}

#[test]
fn a_bundle_of_several_threads_carries_a_job_too() {
    let ranks = Ranks::start("shared", 3);
    assert_eq!(ranks.hear(), ["3 gifts"; 3]);
    ranks.finish();
}

fn shared() {
    let mut job = Job::from_environment().expect("a launcher");
    let mut bundle = SharedBundle::new(&Node::new().expect("a node")).expect("a bundle");
    let me = bundle.endpoint_with_random_key().expect("an endpoint");
    let other = bundle.clone();
    let (ends, is_over) = std::sync::mpsc::channel();
    // Another thread polls as well, and may take messages for the barrier.
    let thread = std::thread::spawn(move || {
        while is_over.try_recv().is_err() {
            other.wait(Some(Duration::from_millis(1))).expect("no handler");
        }
    });
    job.join(&mut bundle, me).expect("all join");
    (0..50).for_each(|_| job.barrier(&mut bundle).expect("all come"));
    let all = job.all_gather(&mut bundle, b"gift").expect("all come");
    ends.send(()).expect("it waits");
    thread.join().expect("it ended well");
    tell(format_args!("{} gifts", all.iter().filter(|gift| *gift == b"gift").count()));
}

#[test]
fn a_job_joins_with_as_many_endpoints_as_it_likes() {
    let ranks = Ranks::start("joins twice", 3);
    assert_eq!(ranks.hear(), ["heard of 3"; 3]);
    ranks.finish();
}

fn joins_twice() {
    let (mut job, mut bundle, _) = joined();
    let other = bundle.endpoint_with_random_key().expect("an endpoint");
    let heard = Rc::new(Cell::new(0));
    let noted = heard.clone();
    bundle.on(other, 1, move |_| noted.set(noted.get() + 1)).expect("an endpoint");
    job.join(&mut bundle, other).expect("all join");
    for to in 0..job.size() {
        bundle.send(other, to, 1, &[], b"").expect("it is mapped");
    }
    bundle.poll_until(|_| heard.get() == job.size());
    job.barrier(&mut bundle).expect("all come");
    tell(format_args!("heard of {}", heard.get()));
}

// ---- barriers

/// Lets all ranks but one enter a barrier of that kind, and returns those that leave it before the last one comes.
fn early_ones(role: &str, size: u32, last: u32) -> Vec<u32> {
    let mut ranks = Ranks::start(role, size);
    assert_eq!(ranks.hear(), vec!["ready"; size as usize]);
    for rank in (0..size).filter(|&rank| rank != last) {
        ranks.0[rank as usize].say("enter");
    }
    let pause = Duration::from_millis(if last == 0 { 100 } else { 10 });
    let early = (0..size).filter(|&rank| ranks.0[rank as usize].hear_within(pause).is_some()).collect::<Vec<_>>();
    ranks.0[last as usize].say("enter");
    for rank in (0..size).filter(|rank| !early.contains(rank)) {
        assert_eq!(ranks.0[rank as usize].hear(), "through");
    }
    ranks.finish();
    early
}

#[test]
fn nobody_leaves_a_barrier_before_all_have_come() {
    for size in [2, 5, 8] {
        for last in 0..size {
            assert_eq!(early_ones("barrier", size, last), [0; 0], "{size} ranks, of which {last} is the last");
        }
    }
}

#[test]
fn a_barrier_with_a_round_too_few_is_found_out() {
    // Of the ranks above the last one, those at a distance of 4 or more hear of it only in the third round.
    assert_eq!(early_ones("short barrier", 8, 0), [4, 5, 6, 7]);
}

fn waits_in_barriers() {
    let (mut job, mut bundle, _) = joined();
    tell("ready");
    order();
    job.barrier(&mut bundle).expect("all come");
    tell("through");
}

/// The same with a barrier of the test's own that leaves the last round out.
fn waits_in_short_barriers() {
    let mut job = Job::from_environment().expect("a launcher");
    let mut bundle = Bundle::new(&Node::new().expect("a node")).expect("a bundle");
    let me = bundle.endpoint_with_random_key().expect("an endpoint");
    let come = Rc::new(Cell::new(0u32));
    let noted = come.clone();
    bundle.on(me, 1, move |m| noted.set(noted.get() | 1 << m.args()[0])).expect("an endpoint");
    job.join(&mut bundle, me).expect("all join");
    tell("ready");
    order();
    for round in 0..2 {
        bundle.send(me, (job.rank() + (1 << round)) % job.size(), 1, &[round], b"").expect("it is mapped");
        bundle.poll_until(|_| come.get() >> round & 1 == 1);
    }
    tell("through");
    // It must not end before all are through, because its messages must arrive.
    job.barrier(&mut bundle).expect("all come");
}

#[test]
fn a_barrier_takes_one_message_a_round_and_one_sleep_of_those_that_wait() {
    for (size, rounds) in [(2u32, 1), (5, 3), (8, 3)] {
        let mut least = vec![u64::MAX; size as usize];
        let mut ranks = Ranks::start("counts", size);
        for turn in 0..20u32 {
            assert_eq!(ranks.hear(), vec!["ready"; size as usize]);
            let last = turn % size;
            for rank in (0..size).filter(|&rank| rank != last) {
                ranks.0[rank as usize].say("enter");
            }
            // Gives them time to fall asleep.
            std::thread::sleep(Duration::from_millis(20));
            ranks.0[last as usize].say("enter");
            for (rank, said) in ranks.hear().into_iter().enumerate() {
                let (messages, sleeps) = said.split_once(' ').expect("two numbers");
                assert_eq!(messages.parse(), Ok(rounds), "messages of rank {rank} of {size}");
                let sleeps: u64 = sleeps.parse().expect("a number");
                // The last one does not wait for the others.
                if rank as u32 != last {
                    least[rank] = least[rank].min(sleeps);
                }
            }
        }
        ranks.say("end");
        ranks.finish();
        // A busy machine takes processors away, so the least disturbed turn of each rank counts.
        eprintln!("{size} ranks sleep so often: {least:?}");
        assert!(least.iter().all(|&sleeps| sleeps <= 1), "{size} ranks sleep so often: {least:?}");
    }
}

fn counts() {
    let (mut job, mut bundle, _) = joined();
    // Sets up the sessions first.
    job.barrier(&mut bundle).expect("all come");
    loop {
        tell("ready");
        if order().as_deref() != Some("enter") {
            assert_eq!(bundle.next_event(), None, "the program hears nothing of the job's messages");
            return;
        }
        let before = (bundle.counters().sent, sleeps());
        job.barrier(&mut bundle).expect("all come");
        let after = (bundle.counters().sent, sleeps());
        tell(format_args!("{} {}", after.0 - before.0, after.1 - before.1));
    }
}

/// How often this thread has slept.
fn sleeps() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.and_then(|number| number.trim().parse().ok()).expect("a number")
}

// ---- faults

#[test]
fn ranks_that_call_different_things_are_told_so() {
    let ranks = Ranks::start("out of step", 4);
    for (rank, said) in ranks.hear().into_iter().enumerate() {
        assert!(said.starts_with("out of step with rank "), "rank {rank}: {said}");
    }
    ranks.finish();
}

fn out_of_step() {
    let (mut job, mut bundle, _) = joined();
    let done = match job.rank() % 2 {
        0 => job.barrier(&mut bundle),
        _ => job.all_gather(&mut bundle, b"gift").map(drop),
    };
    match done {
        Err(JobError::OutOfStep { rank }) => tell(format_args!("out of step with rank {rank}")),
        other => tell(format_args!("{other:?}")),
    }
    // Its neighbours learn it from its messages, so it stays until they have.
    job.exchange(b"").expect("all come");
}

/// Makes processes of one host talk as between hosts, through the loopback interface.
const OVER_UDP: [(&str, &str); 2] = [("WEFT_ADDR", "127.0.0.1"), ("WEFT_LOCAL", "off")];

#[test]
fn ranks_of_several_hosts_reach_each_other_as_well() {
    if !has_loopback() {
        return eprintln!("LEFT OUT: the loopback interface is down");
    }
    let ranks = Ranks::start_in("acquainted", 3, &OVER_UDP);
    assert_eq!(ranks.hear(), ["all as it should be"; 3]);
    ranks.finish();
}

#[test]
fn a_killed_rank_of_another_host_is_noticed_by_all_others_in_time() {
    if !has_loopback() {
        return eprintln!("LEFT OUT: the loopback interface is down");
    }
    all_notice_a_death(5, 2, &OVER_UDP);
}

fn has_loopback() -> bool {
    let listener = std::net::TcpListener::bind("127.0.0.1:0");
    listener.and_then(|listener| std::net::TcpStream::connect(listener.local_addr()?)).is_ok()
}

#[test]
fn a_killed_rank_is_noticed_by_all_others_in_time() {
    for victim in [0, 3] {
        all_notice_a_death(8, victim, &[]);
    }
}

/// Covers the suspicion time, a retransmission timeout, and the delays of a busy machine.
const NOTICED: Duration = Duration::from_secs(10);

fn all_notice_a_death(size: usize, victim: usize, environment: &[(&str, &str)]) {
    let mut ranks = Ranks::start_in("survivor", size as u32, environment);
    assert_eq!(ranks.hear(), vec!["ready"; size]);
    let living: Vec<_> = (0..size).filter(|&rank| rank != victim).collect();
    ranks.0[victim].child.kill().expect("it lives");
    let since = Instant::now();
    for &rank in &living {
        ranks.0[rank].say("go on");
    }
    for &rank in &living {
        let said = ranks.0[rank].hear();
        let lost = ranks.0[rank].hear_of_missing();
        let text = format!("lost rank {lost}: rank {lost} does not answer: it ended, or cannot be reached (");
        assert!(said.starts_with(&text) && said.ends_with("); look at its output"), "rank {rank}: {said}");
    }
    eprintln!("all of {size} noticed the death of rank {victim} within {:?}", since.elapsed());
    assert!(since.elapsed() < NOTICED, "{:?}", since.elapsed());
}

fn survivor() {
    let (mut job, mut bundle, _) = joined();
    job.barrier(&mut bundle).expect("all come");
    tell("ready");
    order();
    match job.barrier(&mut bundle) {
        Err(error @ JobError::Lost { rank, .. }) => tell(format_args!("lost rank {rank}: {error}")),
        other => tell(format_args!("{other:?}")),
    }
    order(); // stays until the test has heard all
}

#[test]
fn a_forked_child_is_no_rank() {
    let ranks = Ranks::start("forker", 2);
    assert_eq!(ranks.hear(), ["the child's calls fail", "the child's calls fail"]);
    ranks.finish();
}

fn forker() {
    let (mut job, mut bundle, _) = joined();
    // SAFETY: the child makes no call that needs another thread or a lock of this program, and ends by itself.
    match unsafe { nix::unistd::fork() }.expect("fork") {
        nix::unistd::ForkResult::Child => {
            let fails = |done: Result<(), JobError>| matches!(done, Err(JobError::Forked));
            let all_fail = fails(job.barrier(&mut bundle)) && fails(job.exchange(b"").map(drop)) && fails(job.leave());
            // SAFETY: nothing of the parent's is undone by this exit.
            unsafe { nix::libc::_exit(if all_fail { 0 } else { 1 }) }
        }
        nix::unistd::ForkResult::Parent { child } => {
            let end = nix::sys::wait::waitpid(child, None).expect("it is ours");
            assert_eq!(end, nix::sys::wait::WaitStatus::Exited(child, 0));
            // The rank is as it was.
            job.barrier(&mut bundle).expect("all come");
            job.exchange(b"").expect("all come");
            tell("the child's calls fail");
        }
    }
}

#[test]
fn what_the_environment_says_wrongly_is_told_with_the_way_out() {
    let cases: [(&[(&str, &str)], &str); 5] = [
        (&[("WEFT_JOB", "2:999:7")], "descriptor 999"),
        (&[("WEFT_JOB", "2:0:7")], "descriptor 0 is another file"),
        (&[("WEFT_JOB", "nonsense")], "a launcher of weft writes VERSION:DESCRIPTOR:INODE there"),
        (&[("WEFT_JOB", "9:0:7")], "speaks version 9"),
        (&[("PMI_FD", "x")], "PMI_FD is \"x\""),
    ];
    for (environment, says) in cases {
        let rank = Rank::with("errors", environment);
        let said = rank.hear();
        assert!(said.contains(says) && said.contains("unset"), "{environment:?}: {said}");
        rank.finish();
    }
    // This machine may have no such library.
    let rank = Rank::with("errors", &[("PMIX_NAMESPACE", "nobody"), ("PMIX_RANK", "0")]);
    let said = rank.hear();
    assert!(said.contains("PMIx_Init: ") || said.contains("cannot load libpmix.so.2: "), "{said}");
    rank.finish();
    let rank = Rank::alone("errors");
    assert_eq!(rank.hear(), "the job has not joined a bundle; call join first");
    assert_eq!(rank.hear(), "4097 bytes are more than a rank of 1 may give here (4096); send them as messages");
    rank.finish();
}

fn errors() {
    let mut job = match Job::from_environment() {
        Ok(job) => job,
        Err(error) => return tell(error),
    };
    let mut bundle = Bundle::new(&Node::new().expect("a node")).expect("a bundle");
    tell(job.barrier(&mut bundle).expect_err("it has not joined"));
    tell(job.exchange(&[0; 4097]).expect_err("too large"));
}
