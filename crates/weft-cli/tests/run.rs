//! `weft run` with real processes: their output, their ends, and that none is left.
#![allow(clippy::disallowed_methods)] // a test that has no thread may panic

mod support;

use rustix::process::{kill_process, test_kill_process, Pid, Signal};
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use support::{err, out, program_example, Folder};
use weft_wire::job::Head;

/// The time limit for operations that take milliseconds on a quiet machine.
const BOUND: Duration = Duration::from_secs(30);

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
    command.arg("run").args(arguments);
    command
}

fn weft_run(arguments: &[&str]) -> Output {
    command(arguments).stdin(Stdio::null()).output().expect("it was built")
}

/// Runs a script with this many ranks.
fn script(ranks: &str, script: &str) -> Output {
    weft_run(&["-n", ranks, "--", "sh", "-c", script])
}

fn lines(text: &str) -> BTreeSet<&str> {
    text.lines().collect()
}

/// A job that runs until it is ended, and the processes that it printed in its first lines.
fn lasting(ranks: &str, script: &str, processes: usize) -> (Child, Vec<Pid>) {
    let arguments = ["-n", ranks, "--no-prefix", "--", "sh", "-c", script];
    let mut job =
        command(&arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("built");
    let told = BufReader::new(job.stdout.take().expect("it has a pipe")).lines();
    let pid = |line: std::io::Result<String>| {
        line.expect("text").trim().parse().ok().and_then(Pid::from_raw).expect("a process")
    };
    let pids = told.take(processes).map(pid).collect();
    (job, pids)
}

fn expect_gone(pids: &[Pid]) {
    let since = Instant::now();
    // The parent of orphans reaps them here; a zombie has ended as well.
    let lives = |pid: &Pid| test_kill_process(*pid).is_ok() && !is_zombie(*pid);
    while let Some(pid) = pids.iter().find(|pid| lives(pid)) {
        assert!(since.elapsed() < BOUND, "process {pid:?} is left");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn is_zombie(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('Z'))
}

#[test]
fn each_rank_knows_its_place_and_its_lines_carry_it() {
    let output = script("3", "echo rank $WEFT_RANK of $WEFT_SIZE; echo complaint >&2; printf 'no end'");
    assert!(output.status.success(), "{}", err(&output));
    let wanted = (0..3).flat_map(|rank| [format!("[{rank}] rank {rank} of 3"), format!("[{rank}] no end")]);
    let wanted: Vec<String> = wanted.collect();
    assert_eq!(lines(&out(&output)), wanted.iter().map(String::as_str).collect());
    assert_eq!(lines(&err(&output)), BTreeSet::from(["[0] complaint", "[1] complaint", "[2] complaint"]));
    let output = weft_run(&["-n", "2", "--no-prefix", "sh", "-c", "echo $WEFT_RANK"]);
    assert_eq!(lines(&out(&output)), BTreeSet::from(["0", "1"]));
}

#[test]
fn lines_of_several_ranks_are_never_mixed() {
    let output = script("4", "for i in $(seq 500); do printf 'a line of '; echo rank $WEFT_RANK; done");
    let text = out(&output);
    assert_eq!(text.lines().count(), 2000);
    for line in text.lines() {
        let rank = line.get(1..2).expect("a rank");
        assert_eq!(line, format!("[{rank}] a line of rank {rank}"));
    }
}

#[test]
fn standard_input_goes_to_rank_0_alone() {
    let mut job = command(&["-n", "2", "cat"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("built");
    job.stdin.take().expect("a pipe").write_all(b"for rank 0\n").expect("it is read");
    let output = job.wait_with_output().expect("it ends");
    assert_eq!((out(&output).as_str(), output.status.code()), ("[0] for rank 0\n", Some(0)));
}

#[test]
fn a_crash_ends_the_job_and_is_told_with_rank_program_and_signal() {
    let output = script("4", "[ $WEFT_RANK != 2 ] || kill -SEGV $$; sleep 1000");
    assert_eq!(output.status.code(), Some(128 + 11));
    let said = err(&output);
    assert!(said.contains("rank 2 (sh, process ") && said.contains("was ended by signal 11 (SIGSEGV)"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[test]
fn a_rank_that_was_killed_is_the_cause_though_another_gave_up_first() {
    // As if freeing its memory took long: it is killed only when the launcher asks it to end.
    let ready = std::env::temp_dir().join(format!("weft-run-ready-{}", std::process::id()));
    let of_each = [
        format!("if [ $WEFT_RANK = 0 ]; then while [ ! -e {} ]; do sleep 0.02; done; exit 8; fi", ready.display()),
        format!("trap 'kill -KILL $$' TERM; : >{}; while :; do sleep 0.02; done", ready.display()),
    ];
    let output = script("2", &of_each.join("; "));
    std::fs::remove_file(&ready).expect("rank 1 made it");
    let said = err(&output);
    assert_eq!(output.status.code(), Some(128 + 9), "{said}");
    assert!(said.contains("rank 1 (sh, process ") && said.contains("SIGKILL"), "{said}");
}

#[test]
fn a_rank_that_asked_for_the_end_is_the_cause_though_another_one_aborted_for_it() {
    let folder = Folder::new("asked");
    std::fs::write(folder.file("message"), Head::Exit(9).to_bytes()).expect("written");
    let script = format!(
        "echo $$; while [ ! -e {go} ]; do sleep 0.02; done; socket=${{WEFT_JOB#*:}}; socket=${{socket%:*}}; \
         if [ $WEFT_RANK = 1 ]; then bash -c \"cat {message} >&$socket\"; : >{asked}; exit 9; fi; \
         while [ ! -e {asked} ]; do sleep 0.02; done; kill -ABRT $$",
        go = folder.file("go"),
        message = folder.file("message"),
        asked = folder.file("asked"),
    );
    let (mut job, pids) = lasting("2", &script, 2);
    // It notices everything at once.
    let launcher = Pid::from_child(&job);
    kill_process(launcher, Signal::STOP).expect("it lives");
    folder.write("go", "");
    expect_gone(&pids);
    kill_process(launcher, Signal::CONT).expect("it lives");
    let mut said = String::new();
    job.stderr.take().expect("it has a pipe").read_to_string(&mut said).expect("text");
    assert_eq!(job.wait().expect("it is ours").code(), Some(9), "{said}");
    assert!(said.contains("ended the job with status 9"), "{said}");
}

/// A job of two shells in which rank 0 tells that it misses a rank, and then ends with status 8. Then rank 1 does what `then` says. The
/// launcher notices all of it at once if `at_once`.
fn misses(missing: u32, then: &str, at_once: bool) -> (Option<i32>, String) {
    static JOBS: AtomicU32 = AtomicU32::new(0);
    let folder = Folder::new(&format!("misses-{}", JOBS.fetch_add(1, Ordering::Relaxed)));
    std::fs::write(folder.file("message"), Head::Missing(missing).to_bytes()).expect("written");
    let script = format!(
        "echo $$; while [ ! -e {go} ]; do sleep 0.02; done; socket=${{WEFT_JOB#*:}}; socket=${{socket%:*}}; \
         if [ $WEFT_RANK = 0 ]; then bash -c \"cat {message} >&$socket\"; : >{told}; exit 8; fi; \
         while [ ! -e {told} ]; do sleep 0.02; done; {then}",
        go = folder.file("go"),
        message = folder.file("message"),
        told = folder.file("told"),
    );
    let (mut job, pids) = lasting("2", &script, 2);
    let launcher = Pid::from_child(&job);
    if at_once {
        kill_process(launcher, Signal::STOP).expect("it lives");
    }
    folder.write("go", "");
    if at_once {
        expect_gone(&pids);
        kill_process(launcher, Signal::CONT).expect("it lives");
    }
    let mut said = String::new();
    job.stderr.take().expect("it has a pipe").read_to_string(&mut said).expect("text");
    (job.wait().expect("it is ours").code(), said)
}

#[test]
fn a_rank_that_others_miss_is_the_cause_though_they_failed_first() {
    let (status, said) = misses(1, "exit 101", true);
    assert_eq!(status, Some(101), "{said}");
    assert!(said.contains("rank 1 (sh, process ") && said.contains("ended with status 101"), "{said}");
    // Ranks may give up by an abort as well.
    let (status, said) = misses(1, "kill -ABRT $$", true);
    assert_eq!(status, Some(128 + 6), "{said}");
    assert!(said.contains("rank 1 (sh, process "), "{said}");
}

#[test]
fn a_rank_that_left_with_status_0_is_named_with_the_one_that_missed_it() {
    let (status, said) = misses(1, "exit 0", true);
    assert_eq!(status, Some(8), "{said}");
    let (first, second) = said.split_once(" left the job first, with status 0, and ").expect(&said);
    assert!(first.contains("rank 1 (sh, process "), "{said}");
    assert!(second.contains("rank 0 (sh, process ") && second.contains("ended with status 8"), "{said}");
}

#[test]
fn a_rank_that_others_miss_without_reason_does_not_hold_the_job() {
    let (status, said) = misses(1, "exec sleep 1000", false);
    assert_eq!(status, Some(8), "{said}");
    assert!(said.contains("rank 0 (sh, process ") && said.contains("ended with status 8"), "{said}");
    // One that misses itself is to blame itself.
    let (status, said) = misses(0, "exec sleep 1000", false);
    assert_eq!(status, Some(8), "{said}");
}

#[test]
fn a_rank_that_misses_one_that_the_job_does_not_have_talks_nonsense() {
    let (status, said) = misses(2, "exec sleep 1000", false);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("rank 0 (sh, process ") && said.contains("sent an invalid message"), "{said}");
}

#[test]
fn the_first_status_that_is_not_0_ends_the_job_and_is_its_status() {
    let output = script("3", "[ $WEFT_RANK != 1 ] || exit 7; sleep 1000");
    assert_eq!(output.status.code(), Some(7));
    assert!(
        err(&output).contains("rank 1 (sh, process ") && err(&output).contains("ended with status 7"),
        "{}",
        err(&output)
    );
}

#[test]
fn a_rank_that_does_not_hear_the_request_to_end_is_killed() {
    let since = Instant::now();
    let output = script("2", "trap '' TERM; [ $WEFT_RANK = 0 ] || exit 3; while true; do sleep 1000; done");
    assert_eq!(output.status.code(), Some(3));
    assert!(since.elapsed() < BOUND);
}

#[test]
fn ctrl_c_and_sigterm_end_all_ranks_and_what_they_started() {
    for signal in [Signal::INT, Signal::TERM] {
        let (job, pids) = lasting("3", "sleep 1000 & echo $!; echo $$; wait", 6);
        kill_process(Pid::from_child(&job), signal).expect("it lives");
        let output = job.wait_with_output().expect("it is ours");
        assert_eq!(output.status.code(), Some(130), "{}", err(&output));
        assert_eq!(err(&output), "weft: interrupted; all ranks are ended\n");
        expect_gone(&pids);
    }
}

#[test]
fn a_second_ctrl_c_ends_at_once_what_does_not_hear_the_first() {
    let (mut job, pids) = lasting("2", "trap '' TERM; echo $$; while true; do sleep 1000; done", 2);
    // Repeatedly: a signal is lost if one of its kind is pending.
    while job.try_wait().expect("it is ours").is_none() {
        let _ = kill_process(Pid::from_child(&job), Signal::INT);
        std::thread::sleep(Duration::from_millis(20));
    }
    let output = job.wait_with_output().expect("it is ours");
    assert_eq!((output.status.code(), err(&output).as_str()), (Some(130), ""));
    expect_gone(&pids);
}

#[test]
fn more_ranks_than_there_are_files_for_leave_nothing_and_say_what_to_do() {
    let weft = env!("CARGO_BIN_EXE_weft");
    // The first ranks have started by then.
    let script = format!("ulimit -n 60; exec {weft} run -n 64 --no-prefix sh -c 'echo $$; exec sleep 1000'");
    let output = Command::new("sh").args(["-c", &script]).stdin(Stdio::null()).output().expect("a shell");
    assert_eq!(output.status.code(), Some(1), "{}", err(&output));
    let said = err(&output);
    assert!(said.contains(" of 64 failed: Too many open files") && said.contains("Give fewer with -n"), "{said}");
    expect_gone(&out(&output).lines().filter_map(|line| Pid::from_raw(line.parse().ok()?)).collect::<Vec<_>>());
}

#[test]
fn a_killed_launcher_leaves_nothing() {
    let (mut job, pids) = lasting("3", "sleep 1000 & echo $!; echo $$; wait", 6);
    job.kill().expect("it lives");
    job.wait().expect("it is ours");
    expect_gone(&pids);
}

#[test]
fn what_a_rank_started_and_left_ends_with_the_job() {
    let output = weft_run(&["-n", "2", "--no-prefix", "sh", "-c", "sleep 1000 & echo $!"]);
    assert!(output.status.success(), "{}", err(&output));
    let pids: Vec<Pid> = out(&output).lines().filter_map(|line| Pid::from_raw(line.parse().ok()?)).collect();
    assert_eq!(pids.len(), 2);
    expect_gone(&pids);
}

#[test]
fn sixty_four_processes_are_started_and_end() {
    let since = Instant::now();
    let output = weft_run(&["-n", "64", "true"]);
    assert!(output.status.success(), "{}", err(&output));
    eprintln!("weft run -n 64 true: {:?}", since.elapsed());
    let output = script("64", "echo $WEFT_RANK");
    assert_eq!(lines(&out(&output)).len(), 64);
}

#[test]
fn what_cannot_be_is_told_with_a_way_out() {
    let cases: [(&[&str], &str); 6] = [
        (&["-n", "2", "no-such-program-of-weft"], "there is no program no-such-program-of-weft in PATH. Give its path"),
        (&["-n", "2", "./no-such-file"], "there is no file ./no-such-file"),
        (&["-n", "2", "/etc/passwd"], "/etc/passwd is no program that may be executed. Try chmod +x"),
        (&["-n", "0", "true"], "a job has at least one process. Give -n 1"),
        (&["-n", "4097", "true"], "4097 processes are more than a job may have. Give -n 4096 at most"),
        (&["-n", "1", "--json", "/no/such/folder/x", "true"], "cannot create /no/such/folder/x"),
    ];
    for (arguments, says) in cases {
        let output = weft_run(arguments);
        assert!(!output.status.success(), "{arguments:?}");
        assert!(err(&output).contains(says), "{arguments:?}: {}", err(&output));
    }
    let folder = Folder::new("run-no-format");
    let file = folder.write("program", "#!/no/such/interpreter\n");
    assert!(Command::new("chmod").args(["+x", &file]).status().expect("it is there").success());
    let output = weft_run(&["-n", "1", &file]);
    assert_eq!(output.status.code(), Some(126), "{}", err(&output));
    assert!(err(&output).contains("cannot execute"), "{}", err(&output));
}

#[test]
fn a_job_that_takes_too_long_is_ended_and_the_report_says_how_each_rank_ended() {
    let folder = Folder::new("run-report");
    let file = folder.file("report.json");
    let script = "[ $WEFT_RANK = 0 ] || exec sleep 1000";
    let output = weft_run(&["-n", "2", "--timeout", "0.3", "--json", &file, "--", "sh", "-c", script]);
    assert_eq!(output.status.code(), Some(124));
    assert!(err(&output).contains("1 of 2 ranks had not ended after 0.3 s"), "{}", err(&output));
    let report: Value = serde_json::from_str(&std::fs::read_to_string(&file).expect("it is written")).expect("JSON");
    assert_eq!((&report["size"], &report["status"]), (&2.into(), &124.into()), "{report}");
    let [first, second] = report["ranks"].as_array().expect("ranks").as_slice() else { panic!("{report}") };
    assert_eq!((&first["status"], &first["was_ended"]), (&0.into(), &false.into()), "{report}");
    assert_eq!((&second["signal"], &second["was_ended"]), (&15.into(), &true.into()), "{report}");
    let seconds = |of: &Value| of["seconds"].as_f64().expect("a number");
    assert!(0.0 < seconds(second) && seconds(second) <= seconds(&report) && seconds(&report) >= 0.3, "{report}");
}

#[test]
fn a_report_to_standard_output_follows_what_the_ranks_print() {
    let folder = Folder::new("run-report-out");
    let mut job = command(&["-n", "2", "--json", "-", "--", "sh", "-c", "printf 'no end'; exit 3"]);
    let output = job.current_dir(folder.file("")).stdin(Stdio::null()).output().expect("built");
    let said = out(&output);
    let (lines, report) = said.split_at(said.find('{').expect("a document"));
    let lines: Vec<&str> = lines.lines().collect();
    assert!(!lines.is_empty() && lines.iter().all(|line| line.ends_with("] no end")), "{said}");
    let report: Value = serde_json::from_str(report).expect("JSON, and nothing behind it");
    assert_eq!((&report["status"], output.status.code()), (&3.into(), Some(3)), "{report}");
    assert_eq!(std::fs::read_dir(folder.file("")).expect("a folder").count(), 0, "a file was written");
}

#[test]
fn a_reader_that_goes_ends_the_job() {
    let mut job = command(&["-n", "2", "yes"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("built");
    let mut line = String::new();
    BufReader::new(job.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
    assert!(line.ends_with("] y\n"), "{line}");
    let output = job.wait_with_output().expect("it ends");
    assert_eq!((output.status.code(), err(&output).as_str()), (Some(141), ""));
}

#[test]
fn a_full_device_ends_the_job_and_is_told() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("every Linux has it");
    let output = command(&["-n", "2", "yes"]).stdout(full).stderr(Stdio::piped()).output().expect("built");
    let said = err(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("cannot write to standard output"), "{said}");
}

#[test]
fn ranks_find_each_other_and_add_up() {
    let sum = program_example("weft-job", "sum");
    for ranks in ["1", "2", "5"] {
        let output = weft_run(&["-n", ranks, sum.to_str().expect("text")]);
        assert!(output.status.success(), "{}", err(&output));
        assert_eq!(out(&output), format!("[0] the sum of 1 to 1000000 is 500000500000, by {ranks} ranks\n"));
    }
}

#[test]
fn a_rank_that_ends_before_it_joins_is_told_and_the_others_do_not_wait_for_ever() {
    let sum = program_example("weft-job", "sum");
    let output = script("3", &format!("[ $WEFT_RANK = 1 ] || exec {}", sum.display()));
    assert_eq!(output.status.code(), Some(1));
    let said = err(&output);
    assert!(said.contains("rank 1 (sh, process ") && said.contains("took no part in what rank"), "{said}");
}

#[test]
fn a_rank_ends_the_whole_job_with_the_status_that_it_says() {
    let ranks = program_example("weft-job", "ranks");
    let program = ranks.to_str().expect("text");
    let output = weft_run(&["-n", "4", program, "exit", "3"]);
    assert_eq!(output.status.code(), Some(3), "{}", err(&output));
    assert!(err(&output).contains("ended the job with status 3"), "{}", err(&output));
    assert_eq!(weft_run(&["-n", "4", program, "exit", "0"]).status.code(), Some(0));
    let output = weft_run(&["-n", "6", program]);
    assert_eq!(out(&output), "[0] ranks: 6 ranks by weft run: all as it should be\n", "{}", err(&output));
}
