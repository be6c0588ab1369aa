//! `weft doctor` on this machine, with faults planted in its environment.

mod support;

use serde_json::Value;
use std::process::{Command, Output};
use support::{err, out};

fn doctor(arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
    for name in ["WEFT_ADDR", "WEFT_PORT", "WEFT_HELPER", "WEFT_LOCAL", "WEFT_TRUST"] {
        command.env_remove(name);
    }
    command.arg("doctor").args(arguments).envs(environment.iter().copied()).output().expect("it was built")
}

/// The findings in an environment.
fn findings(environment: &[(&str, &str)]) -> (Value, Option<i32>) {
    let output = doctor(&["--json"], environment);
    (serde_json::from_str(&out(&output)).expect("standard output is the document alone"), output.status.code())
}

/// The finding of a check.
fn found<'a>(document: &'a Value, check: &str) -> &'a Value {
    let all = document["findings"].as_array().expect("a list");
    all.iter().find(|finding| finding["check"] == check).expect("the check is there")
}

#[test]
fn a_machine_that_runs_the_tests_is_sound() {
    let (document, status) = findings(&[]);
    assert_eq!(status, Some(0), "{document:#}");
    for check in ["bundle", "user", "variables", "helper", "memory path"] {
        assert_eq!(found(&document, check)["level"], "ok", "{document:#}");
    }
    let text = out(&doctor(&[], &[]));
    assert!(text.contains("a bundle can be made"), "{text}");
}

#[test]
fn what_costs_safety_fails_the_command_and_names_what_mends_it() {
    let (document, status) = findings(&[("WEFT_HELPER", "off")]);
    assert_eq!((status, &document["level"]), (Some(1), &"safety".into()), "{document:#}");
    let helper = found(&document, "helper");
    assert_eq!((&helper["level"], &helper["mend"]), (&"safety".into(), &"unset WEFT_HELPER".into()));
    let output = doctor(&[], &[("WEFT_HELPER", "off")]);
    assert!(out(&output).contains("mend:  unset WEFT_HELPER") && err(&output).contains("helper"), "{}", out(&output));
}

#[test]
fn what_it_says_is_as_wide_as_a_terminal_but_for_commands_to_copy() {
    let wide = |output: &Output, columns: usize| {
        let said = out(output);
        let lines = said.lines().filter(|line| !line.starts_with("  mend:  "));
        lines.filter(|line| line.chars().count() > columns).map(str::to_owned).collect::<Vec<_>>()
    };
    // An environment with many findings.
    let environment =
        [("WEFT_HELPER", "off"), ("WEFT_LOCAL", "off"), ("WEFT_TRUST", "off"), ("WEFT_ADDR", "127.0.0.1")];
    for columns in [80, 60, 132] {
        let width = columns.to_string();
        let output = doctor(&[], &[&environment[..], &[("COLUMNS", &width)]].concat());
        assert_eq!(wide(&output, columns), Vec::<String>::new());
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
    let output = command.arg("doctor").env_remove("COLUMNS").output().expect("it was built");
    assert_eq!(wide(&output, 80), Vec::<String>::new());
}

#[test]
fn a_setting_that_cannot_be_is_found_with_its_own_words() {
    let (document, status) = findings(&[("WEFT_ADDR", "here")]);
    assert_eq!((status, &document["level"]), (Some(1), &"broken".into()), "{document:#}");
    let said = found(&document, "bundle")["found"].as_str().expect("words");
    assert!(said.contains("WEFT_ADDR") && said.contains("here"), "{said}");
}

#[test]
fn what_costs_speed_or_is_missing_is_found_and_does_not_fail() {
    let environment = [("WEFT_LOCAL", "off"), ("WEFT_ADDR", "none"), ("WEFT_ADDRESS", "10.0.0.1")];
    let (document, status) = findings(&environment);
    assert_eq!(status, Some(0), "{document:#}");
    assert_eq!(found(&document, "memory path")["level"], "speed");
    assert_eq!(found(&document, "network")["level"], "missing");
    assert!(found(&document, "variables")["found"].as_str().expect("words").contains("WEFT_ADDRESS"));
}
