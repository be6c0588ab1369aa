//! What `scripts/test.sh licences` accepts of a dependency, and which sources the lock files name.

#[path = "../examples/licences/rules.rs"]
mod rules;

use serde_json::{json, Value};
use std::path::Path;

const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// A dependency as `cargo metadata` prints it.
fn package(source: Option<&str>, licence: Option<&str>) -> Value {
    json!({ "packages": [{ "name": "planted", "version": "1.2.3", "source": source, "license": licence }] })
}

fn faults_of(licence: &str) -> Vec<String> {
    rules::faults(&package(Some(CRATES_IO), Some(licence)))
}

#[test]
fn allowed_licences_pass_alone_together_and_as_a_choice() {
    for licence in [
        "MIT",
        "MIT OR Apache-2.0",
        "MIT/Apache-2.0",
        "Unlicense OR MIT",
        "MIT OR GPL-3.0-only AND BSD-3-Clause",
        "(MIT OR Apache-2.0) AND Unicode-3.0",
        "Apache-2.0 WITH LLVM-exception OR GPL-3.0-only",
    ] {
        assert_eq!(faults_of(licence), [""; 0], "{licence}");
    }
    assert_eq!(rules::faults(&package(None, Some("MIT OR Apache-2.0"))), [""; 0], "a package of this repository");
}

#[test]
fn planted_package_with_another_licence_is_found() {
    for licence in [
        "GPL-3.0-only",
        "MIT AND GPL-3.0-only",
        "(MIT OR Apache-2.0) AND AGPL-3.0-only",
        "GPL-3.0-only WITH Classpath-exception-2.0",
        "(MIT",
        "MIT OR",
        "MIT)",
        "MIT Apache-2.0",
        "mit",
    ] {
        let found = faults_of(licence);
        assert_eq!(found.len(), 1, "{licence}: {found:?}");
    }
    assert!(faults_of("GPL-3.0-only")[0].starts_with("planted 1.2.3: is under GPL-3.0-only"));
    let nameless = rules::faults(&package(Some(CRATES_IO), None));
    assert_eq!(nameless, ["planted 1.2.3: names no licence"]);
}

#[test]
fn planted_package_from_elsewhere_is_found() {
    for source in
        ["git+https://example.org/planted#0123", "registry+https://example.org/index", "sparse+https://example.org/"]
    {
        let found = rules::faults(&package(Some(source), Some("MIT")));
        assert_eq!(found, [format!("planted 1.2.3: comes from {source}, and not from crates.io")]);
    }
}

#[test]
fn all_lock_files_name_crates_io_and_nothing_else() {
    for lock in ["Cargo.lock", "fuzz/Cargo.lock", "examples/tokio/Cargo.lock"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(lock);
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{lock}: {e}"));
        let sources: Vec<&str> = text.lines().filter(|line| line.starts_with("source = ")).collect();
        assert!(sources.len() > 10, "{lock}: only {sources:?}");
        let expected = format!("source = \"{CRATES_IO}\"");
        let strays: Vec<&&str> = sources.iter().filter(|line| **line != expected).collect();
        assert!(strays.is_empty(), "{lock}: {strays:?}");
    }
}
