//! Checks which crates may depend on which, which may contain `unsafe`, and that the faces of `weft` do not know each other: the picture in
//! `docs/design/architecture.md`.
//!
//! A new crate gets a row in [`CRATES`]; without one the test fails.

use serde_json::{json, Value};
use std::process::Command;

/// The rules for one crate of the workspace.
struct Rule {
    name: &'static str,
    /// Its height in the picture: its tests (dev-dependencies) may use any crate of a lower layer.
    layer: u8,
    /// The crates of the workspace that it may depend on.
    may_know: &'static [&'static str],
    /// The crates from outside that it may depend on; `None` for any.
    from_outside: Option<&'static [&'static str]>,
    /// The line that each of its roots must contain; `None` for the island of unsafe code and for tests.
    unsafe_policy: Option<&'static str>,
}

const FORBID: Option<&str> = Some("#![forbid(unsafe_code)]");
const DENY: Option<&str> = Some("#![deny(unsafe_code)]");
/// Crates that run without an operating system take nothing from outside that could reach one.
const NO_OS: Option<&[&str]> =
    Some(&["base64", "constant_time_eq", "crc-fast", "serde", "siphasher", "slab", "thiserror"]);

#[rustfmt::skip]
const CRATES: &[Rule] = &[
    Rule { name: "weft-crc", layer: 0, may_know: &[], from_outside: Some(&["crc-fast", "rustversion"]), unsafe_policy: None },
    Rule { name: "weft-wire", layer: 1, may_know: &["weft-crc"], from_outside: NO_OS, unsafe_policy: FORBID },
    Rule { name: "weft-shm", layer: 2, may_know: &["weft-wire"], from_outside: None, unsafe_policy: None },
    Rule { name: "weft-transport", layer: 2, may_know: &["weft-wire"], from_outside: NO_OS, unsafe_policy: FORBID },
    Rule { name: "weft-core", layer: 3, may_know: &["weft-wire", "weft-transport"], from_outside: NO_OS, unsafe_policy: FORBID },
    Rule { name: "weft-memory", layer: 4, may_know: &["weft-wire", "weft-core"], from_outside: NO_OS, unsafe_policy: FORBID },
    Rule { name: "weft-daemon", layer: 4, may_know: &["weft-wire", "weft-transport", "weft-core"], from_outside: NO_OS, unsafe_policy: FORBID },
    Rule { name: "weft-link", layer: 4, may_know: &["weft-wire", "weft-shm", "weft-transport", "weft-core"], from_outside: None, unsafe_policy: FORBID },
    Rule { name: "weft-sim", layer: 5, may_know: &["weft-wire", "weft-transport", "weft-core", "weft-daemon"], from_outside: NO_OS, unsafe_policy: FORBID },
    Rule { name: "weft", layer: 5, may_know: &["weft-wire", "weft-shm", "weft-transport", "weft-core", "weft-memory", "weft-link"], from_outside: None, unsafe_policy: DENY },
    Rule { name: "weft-launch", layer: 1, may_know: &[], from_outside: Some(&["libc", "thiserror"]), unsafe_policy: None },
    Rule { name: "weft-job", layer: 6, may_know: &["weft", "weft-launch", "weft-wire"], from_outside: None, unsafe_policy: FORBID },
    Rule { name: "weftd", layer: 6, may_know: &["weft-wire", "weft-shm", "weft-transport", "weft-core", "weft-link", "weft-daemon"], from_outside: None, unsafe_policy: FORBID },
    Rule { name: "weft-cli", layer: 6, may_know: &["weft", "weft-sim", "weft-wire"], from_outside: None, unsafe_policy: FORBID },
    Rule { name: "weft-ofi", layer: 6, may_know: &["weft", "weft-shm"], from_outside: None, unsafe_policy: DENY },
    Rule { name: "weft-capi", layer: 7, may_know: &["weft", "weft-shm", "weft-job"], from_outside: None, unsafe_policy: DENY },
    Rule { name: "weft-system-tests", layer: 8, may_know: &[], from_outside: None, unsafe_policy: None },
];

fn rule(name: &str) -> Option<&'static Rule> {
    CRATES.iter().find(|rule| rule.name == name)
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

fn list<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value[field].as_array().map_or(&[], Vec::as_slice)
}

/// Every dependency in `metadata` that its crate may not have, as text.
fn forbidden_arrows(metadata: &Value) -> Vec<String> {
    let mut faults = Vec::new();
    for package in list(metadata, "packages") {
        let name = text(package, "name");
        let Some(rule) = rule(name) else {
            faults.push(format!("{name} has no row in tests/tests/arrows.rs"));
            continue;
        };
        for dependency in list(package, "dependencies") {
            let (to, kind) = (text(dependency, "name"), text(dependency, "kind"));
            if !may_depend(rule, to, kind == "dev") {
                let kind = if kind.is_empty() { "normal" } else { kind };
                faults.push(format!("{name} -> {to} ({kind} dependency)"));
            }
        }
    }
    faults
}

fn may_depend(from: &Rule, to: &str, for_tests_only: bool) -> bool {
    match rule(to) {
        Some(target) if for_tests_only => target.layer < from.layer,
        Some(target) => from.may_know.contains(&target.name),
        None => for_tests_only || from.from_outside.is_none_or(|allowed| allowed.contains(&to)),
    }
}

/// Every root (`lib.rs`, `main.rs`) in `metadata` that lacks its crate's line about unsafe code. `read` is called with a path.
fn missing_unsafe_policies(metadata: &Value, read: impl Fn(&str) -> String) -> Vec<String> {
    let mut faults = Vec::new();
    for package in list(metadata, "packages") {
        let name = text(package, "name");
        let Some(policy) = rule(name).and_then(|rule| rule.unsafe_policy) else {
            continue;
        };
        for target in list(package, "targets") {
            let is_root =
                list(target, "kind").iter().any(|kind| kind != "test" && kind != "bench" && kind != "example");
            let path = text(target, "src_path");
            if is_root && !read(path).lines().any(|line| line.trim() == policy) {
                faults.push(format!("{name}: {path} lacks {policy}"));
            }
        }
    }
    faults
}

/// The workspace's metadata from cargo. Needs no network.
fn metadata() -> Value {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--locked", "--offline"])
        .args(["--manifest-path", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")])
        .output()
        .expect("the cargo that built this test still starts");
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON")
}

#[test]
fn arrows_point_down_only() {
    let metadata = metadata();
    let seen = |rule: &Rule| list(&metadata, "packages").iter().any(|package| text(package, "name") == rule.name);
    let unseen: Vec<_> = CRATES.iter().filter(|rule| !seen(rule)).map(|rule| rule.name).collect();
    assert!(unseen.is_empty(), "rows without a crate, so held by nobody: {unseen:?}");
    let faults = forbidden_arrows(&metadata);
    assert!(faults.is_empty(), "forbidden dependencies:\n{}", faults.join("\n"));
}

#[test]
fn unsafe_code_stays_on_its_island() {
    let faults = missing_unsafe_policies(&metadata(), |path| std::fs::read_to_string(path).expect(path));
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// A workspace with one crate and one dependency, as `cargo metadata` prints it.
fn planted(from: &str, to: &str, kind: Value) -> Value {
    json!({ "packages": [{ "name": from, "dependencies": [{ "name": to, "kind": kind }] }] })
}

#[test]
fn planted_arrow_upwards_is_found() {
    for (from, to) in [
        ("weft-wire", "weft-core"),
        ("weft-core", "weft-shm"),
        ("weft-shm", "weft-transport"),
        ("weft-cli", "weft-core"),
        ("weft-sim", "weft"),
    ] {
        let faults = forbidden_arrows(&planted(from, to, Value::Null));
        assert_eq!(faults, [format!("{from} -> {to} (normal dependency)")]);
        assert_eq!(
            forbidden_arrows(&planted(from, to, json!("build"))),
            [format!("{from} -> {to} (build dependency)")]
        );
    }
}

#[test]
fn planted_operating_system_below_core_is_found() {
    assert_eq!(
        forbidden_arrows(&planted("weft-core", "rustix", Value::Null)),
        ["weft-core -> rustix (normal dependency)"]
    );
    assert_eq!(forbidden_arrows(&planted("weft-shm", "rustix", Value::Null)), [""; 0]);
}

#[test]
fn tests_may_look_down_but_not_up() {
    assert_eq!(forbidden_arrows(&planted("weft-core", "weft-shm", json!("dev"))), [""; 0]);
    assert_eq!(forbidden_arrows(&planted("weft-core", "weft", json!("dev"))), ["weft-core -> weft (dev dependency)"]);
}

#[test]
fn planted_crate_without_a_row_is_found() {
    assert_eq!(
        forbidden_arrows(&planted("weft-new", "weft", Value::Null)),
        ["weft-new has no row in tests/tests/arrows.rs"]
    );
}

#[test]
fn planted_root_without_its_policy_is_found() {
    let metadata = json!({ "packages": [{ "name": "weft-core", "targets": [
        { "kind": ["lib"], "src_path": "core/lib.rs" },
        { "kind": ["test"], "src_path": "core/tests/any.rs" },
    ] }] });
    let found = |source: &str| missing_unsafe_policies(&metadata, |_| source.to_string());
    assert_eq!(found("//! Core.\n#![forbid(unsafe_code)]\n"), [""; 0]);
    for source in ["", "// #![forbid(unsafe_code)]\n", "#![deny(unsafe_code)]\n"] {
        assert_eq!(found(source), ["weft-core: core/lib.rs lacks #![forbid(unsafe_code)]"]);
    }
}
/// The modules of `weft` that are faces. Each uses the bundle, and imports no other face.
const FACES: &[&str] = &["am", "memory", "tagged"];

/// Modules of `weft` that may name faces: the list of faces, the types of handlers, and the crate's root.
const KNOW_FACES: &[&str] = &["bundle/faces.rs", "bundle/threads.rs", "lib.rs"];

/// Every line of `weft` that imports a face and may not, as `file: line`. `sources` are paths below `src`, with their text.
fn forbidden_imports(sources: &[(String, String)]) -> Vec<String> {
    let mut faults = Vec::new();
    for (path, text) in sources {
        let own = path.split(['/', '.']).next().unwrap_or_default();
        for line in text.lines().map(str::trim).filter(|line| !line.starts_with("//")) {
            let names = |face: &&&str| {
                let spellings = [format!("crate::{face}"), format!("super::super::{face}")];
                let in_group =
                    line.starts_with("use crate::{") && line.split(['{', ',', '}']).any(|n| n.trim() == **face);
                spellings.iter().any(|s| names_module(line, s)) || in_group
            };
            let foreign = FACES.iter().filter(|face| **face != own).find(names);
            if foreign.is_some() && !KNOW_FACES.contains(&path.as_str()) {
                faults.push(format!("{path}: {line}"));
            }
        }
    }
    faults
}

/// Whether a path occurs in a line, as a whole.
fn names_module(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(at, _)| {
        let next = line[at + path.len()..].chars().next();
        next.is_none_or(|c| !c.is_alphanumeric() && c != '_')
    })
}

fn sources_below(folder: &std::path::Path, prefix: &str, into: &mut Vec<(String, String)>) {
    for entry in std::fs::read_dir(folder).expect("the sources of weft") {
        let path = entry.expect("a file").path();
        let name = path.file_name().and_then(|n| n.to_str()).expect("a name in ASCII");
        if path.is_dir() {
            sources_below(&path, &format!("{prefix}{name}/"), into);
        } else if name.ends_with(".rs") {
            let text = std::fs::read_to_string(&path).expect("a source");
            into.push((format!("{prefix}{name}"), text));
        }
    }
}

#[test]
fn faces_do_not_know_each_other() {
    let mut sources = Vec::new();
    sources_below(std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/weft/src")), "", &mut sources);
    for face in FACES {
        assert!(sources.iter().any(|(path, _)| path.starts_with(&format!("{face}/"))), "there is no face {face}");
    }
    for file in KNOW_FACES {
        assert!(sources.iter().any(|(path, _)| path == file), "there is no file {file}");
    }
    let faults = forbidden_imports(&sources);
    assert!(faults.is_empty(), "forbidden imports in crates/weft/src:\n{}", faults.join("\n"));
}

#[test]
fn planted_import_of_another_face_is_found() {
    let planted = |path: &str, line: &str| forbidden_imports(&[(path.to_owned(), format!("//! Text.\n{line}\n"))]);
    for (path, line) in [
        ("tagged/engine/mod.rs", "use crate::am::Message;"),
        ("am/mod.rs", "    let it = crate::tagged::Face::default();"),
        ("bundle/mod.rs", "use crate::am::{Context, Message};"),
        ("home.rs", "use crate::{am, node};"),
    ] {
        assert_eq!(planted(path, line), [format!("{path}: {}", line.trim())]);
    }
    for (path, line) in [
        ("am/mod.rs", "use crate::am::stamps::Gate;"),
        ("bundle/faces.rs", "use crate::{am, tagged};"),
        ("home.rs", "use crate::amount::Sum; // as crate::am does"),
        ("tagged/mod.rs", "/// As [`crate::am`] has it."),
    ] {
        let found = planted(path, line.split(" //").next().unwrap_or_default());
        assert_eq!(found, [""; 0]);
    }
}
