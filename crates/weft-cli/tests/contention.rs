//! `weft bench contention` as a user types it.

mod support;

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};
use support::{printed, program_of, Folder};

fn contention(arguments: &[&str]) -> Output {
    contention_of(Path::new(env!("CARGO_BIN_EXE_weft")), arguments)
}

fn contention_of(weft: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(weft);
    command.args(["bench", "contention", "--quick"]).args(arguments).current_dir(std::env::temp_dir());
    command.output().expect("the command was built with this test")
}

fn document(arguments: &[&str]) -> Value {
    let output = contention(&[arguments, &["--json", "-"]].concat());
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON document and nothing else")
}

fn rows(arguments: &[&str]) -> Vec<Value> {
    document(arguments)["rows"].as_array().expect("rows").clone()
}

#[test]
fn equal_seeds_give_equal_figures() {
    let both = rows(&["--only", "prices", "--seed", "3"]);
    assert_eq!(both, rows(&["--only", "prices", "--seed", "3"]));
    assert_ne!(both[0]["hash"], rows(&["--only", "prices"])[0]["hash"]);
    assert!(both.iter().any(|row| row["remapping_instructions"] == 0 && row["frames"] == 8));
}

#[test]
fn pictures_and_a_table_tell_of_the_collapse_without_the_writable_state() {
    let folder = std::env::temp_dir().join(format!("weft-contention-{}", std::process::id()));
    let place = folder.to_str().expect("a name of letters");
    let output = contention(&["--only", "ablation", "--svg", place]);
    let picture = std::fs::read_to_string(folder.join("contention-ablation.svg"));
    let names = ["contention-small.svg", "contention-bulk.svg", "contention-round-trips.svg"];
    let are_there = names.iter().all(|name| Path::exists(&folder.join(name)));
    std::fs::remove_dir_all(&folder).expect("it was made");
    let words = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && words.contains("without the writable state"), "{words}");
    assert!(!words.contains("figure 6"), "other parts are not shown: {words}");
    // ST and MT, each without an upload and with one.
    assert_eq!(picture.expect("it was drawn").matches("<polyline").count(), 4);
    assert!(are_there);
}

#[test]
fn a_weftd_with_fewer_frames_than_endpoints_answers_every_request_once_and_in_order() {
    program_of("weftd", "weftd");
    let told = document(&["--only", "real"]);
    assert_eq!(told["rows"].as_array().map(Vec::len), Some(0), "nothing was simulated");
    let real = &told["real"];
    assert!(real["left_out"].is_null(), "{real:#}");
    let rows = real["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 4);
    for row in rows {
        let number = |name: &str| row[name].as_u64().expect("a number");
        assert!(number("requests") > 0 && number("answers") == number("requests"), "{row}");
        assert_eq!((number("out_of_order"), number("returned")), (0, 0), "{row}");
        let most = number("frames").min(number("clients"));
        assert!(number("looks") > 1 && (1..=most).contains(&number("frames_used_most")), "{row}");
        assert!(number("remapped") >= number("clients"), "every endpoint has had a frame: {row}");
    }
}

#[test]
fn without_weftd_beside_weft_the_real_run_is_left_out_and_said_to_be() {
    let folder = Folder::new("contention-alone");
    let weft = folder.0.join("weft");
    std::fs::copy(env!("CARGO_BIN_EXE_weft"), &weft).expect("copied");
    let output = contention_of(&weft, &["--only", "real"]);
    let words = printed(&output);
    assert!(words.contains("left out: the real run: there is no") && words.contains("weftd"), "{words}");
}
