//! `weft sim` as a user types it.

use serde_json::Value;
use std::process::{Command, Output};

fn sim(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
    command.arg("sim").args(arguments).current_dir(std::env::temp_dir());
    command.output().expect("the command was built with this test")
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The runs in a JSON document.
fn runs(arguments: &[&str]) -> Vec<Value> {
    let output = sim(&[arguments, &["--json"]].concat());
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON document and nothing else")
}

#[test]
fn equal_seeds_give_equal_hashes_and_others_others() {
    let bad = ["--workload", "bulk", "--count", "2000", "--loss", "30%", "--reorder", "30%", "--corrupt", "1%"];
    let both = runs(&[&bad[..], &["--seeds", "3..4"]].concat());
    let one = runs(&[&bad[..], &["--seed", "4"]].concat());
    assert_eq!((both.len(), one.len()), (2, 1));
    assert_eq!(both[1]["hash"], one[0]["hash"]);
    assert_ne!(both[0]["hash"], both[1]["hash"]);
    assert_eq!(one[0]["delivered"], 2000);
    assert!(one[0]["packets"]["lost"].as_u64() > Some(10));
}

#[test]
fn seeds_from_one_to_ten_make_ten_runs_and_say_so() {
    let words = out(&sim(&["--count", "10", "--seeds", "1..10"]));
    assert_eq!(words.lines().filter(|line| line.starts_with("seed ")).count(), 10, "{words}");
    assert!(
        words.contains("\nseed 10: ") && words.ends_with("10 runs, seeds 1 to 10: no promise was broken\n"),
        "{words}"
    );
    assert!(out(&sim(&["--help"])).contains("both included"));
}

#[test]
fn a_failing_run_prints_the_one_command_that_repeats_it() {
    let failing = sim(&["--count", "500", "--plant", "change:100", "--loss", "5%", "--seeds", "7..7"]);
    assert_eq!(failing.status.code(), Some(1));
    let words = out(&failing);
    let hash = |words: &str| words.split("hash ").nth(1).and_then(|rest| rest.split(',').next()).map(str::to_string);
    let command =
        words.lines().find_map(|line| line.trim().strip_prefix("to repeat it: weft sim ")).expect("the command");
    assert_eq!(command, "--count 500 --plant change:100 --loss 5% --seed 7");
    let again = sim(&command.split(' ').collect::<Vec<_>>());
    assert_eq!(again.status.code(), Some(1));
    assert_eq!(hash(&out(&again)), hash(&words));
    assert!(words.contains("broken promises"), "{words}");
}

#[test]
fn hosts_crash_and_links_are_cut_and_everything_settles() {
    let arguments =
        ["--topology", "star:4", "--workload", "client-server", "--count", "2000", "--persists", "--skew", "100"];
    let faults = ["--crash", "0@2ms..3ms", "--partition", "1@5ms..30ms", "--stop", "2@6ms..9ms", "--full", "1%"];
    let run = &runs(&[&arguments[..], &faults].concat())[0];
    assert!(run["completed"].as_u64() >= Some(6000), "{run}");
    assert!(run["packets"]["cut"].as_u64() > Some(0) && run["packets"]["not_taken"].as_u64() > Some(0), "{run}");
    assert!(run["unknown"].as_u64() > Some(0), "{run}");
    assert_eq!(run["failure"], Value::Null);
}

#[test]
fn chaos_on_a_tree_settles() {
    let arguments = ["--topology", "tree:3x3", "--workload", "all-to-all", "--count", "200", "--chaos", "500ms"];
    assert_eq!(runs(&[&arguments[..], &["--seeds", "1..5"]].concat()).len(), 5);
}

#[test]
fn goodput_latencies_and_queues_are_drawn() {
    let path = std::env::temp_dir().join(format!("weft-sim-{}.svg", std::process::id()));
    let name = path.to_str().expect("made of letters");
    runs(&["--topology", "star:9", "--workload", "incast", "--count", "200", "--size", "4096", "--plot", name]);
    let drawn = std::fs::read_to_string(&path).expect("it was drawn");
    std::fs::remove_file(&path).expect("it is ours");
    assert!(drawn.starts_with("<svg") && drawn.ends_with("</svg>\n"));
    assert!(["goodput", "99th percentile", "longest queue"].iter().all(|text| drawn.contains(text)));
    assert!(drawn.matches("<polyline").count() >= 4);
}

#[test]
fn weft_is_compared_with_stop_and_wait_in_one_table_and_one_drawing() {
    let path = std::env::temp_dir().join(format!("weft-sim-channels-{}.svg", std::process::id()));
    let name = path.to_str().expect("made of letters");
    let link = ["--workload", "bulk", "--count", "2000", "--size", "1024", "--rate", "1G", "--delay", "100us"];
    let compared = [&link[..], &["--compare-channels=0%,5%", "--plot", name]].concat();
    let rows = runs(&compared);
    assert_eq!(rows.len(), 2 * 8);
    assert!(rows.iter().all(|row| row["delivered"] == 2000 && row["failure"] == Value::Null), "{rows:?}");
    let goodput = |at: usize| rows[at]["goodput_bits_per_second"].as_f64().expect("a number");
    // One channel: 1,036 bytes (with 12 of arguments) per 0.2 ms of delay, 9.1 µs for the packet and 0.8 µs for the
    // acknowledgement.
    assert!((goodput(0) / (1036.0 * 8.0 / 209.9e-6) - 1.0).abs() < 0.03, "{}", goodput(0));
    assert!(rows[7]["channels"].is_null() && goodput(7) > 10.0 * goodput(0));
    assert!(goodput(15) > goodput(14), "with losses a window does better than 64 channels: {rows:?}");
    assert_eq!(rows, runs(&compared), "the same seed, the same table");
    let drawn = std::fs::read_to_string(&path).expect("it was drawn");
    std::fs::remove_file(&path).expect("it is ours");
    assert_eq!(drawn.matches("<polyline").count(), 3 * 2);
    let words = out(&sim(&["--count", "50", "--compare-channels"]));
    assert!(["64 channels", "weft", "15 %", "packets per message"].iter().all(|text| words.contains(text)), "{words}");
}

#[test]
fn what_cannot_be_is_refused_with_a_reason() {
    for (arguments, reason) in [
        (&["--crash", "9@1ms"][..], "there is no host 9"),
        (&["--topology", "ring"], "not pair, star:2"),
        (&["--loss", "130%"], "not from 0% to 100%"),
        (&["--seeds", "4..2"], "such as 1..100"),
        (&["--delay", "5"], "unknown unit"),
    ] {
        let output = sim(arguments);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
        assert!(error.contains(reason), "{arguments:?}: {error}");
    }
}

#[test]
fn a_plot_to_standard_output_is_there_alone() {
    for more in [&["--seeds", "1..2"][..], &["--compare-channels=0%"]] {
        let output = sim(&[&["--count", "10", "--plot", "-"], more].concat());
        let picture = out(&output);
        assert!(picture.starts_with("<svg") && picture.trim_end().ends_with("</svg>"), "{picture}");
        assert_eq!(picture.matches("<svg").count(), 1, "of the last seed");
        assert!(!output.stderr.is_empty(), "the text goes to standard error");
    }
    let output = sim(&["--count", "10", "--json", "--plot", "-"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && said.contains("both write to standard output"), "{said}");
}
