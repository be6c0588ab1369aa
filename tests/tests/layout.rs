//! Limits of what a newcomer has to fetch, build and read: the number of crates, with a reason for each, and the length of the examples.
//! Also checks that nothing shipped contains rare paths, which only tests trigger (`weft_transport::rare`).

use std::path::{Path, PathBuf};

/// Crates in the lock file, including those of this workspace.
const CRATES_MOST: usize = 130;

/// Lines of one file of an example.
const LINES_MOST: usize = 120;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository").to_path_buf()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The lines of a table of a manifest.
fn table(manifest: &str, is_it: impl Fn(&str) -> bool) -> Vec<&str> {
    let mut is_inside = false;
    let inside = |line: &&str| {
        if line.starts_with('[') {
            is_inside = is_it(line);
            return false;
        }
        is_inside && !line.is_empty()
    };
    manifest.lines().filter(inside).collect()
}

/// Outside dependencies without a comment right above them.
fn without_reason(manifest: &str) -> Vec<String> {
    let lines = table(manifest, |head| head == "[workspace.dependencies]");
    let is_told = |at: usize| at > 0 && lines[at - 1].starts_with("# ");
    let is_ours = |line: &str| line.contains("path = ");
    let found = lines.iter().enumerate().filter(|(at, line)| !line.starts_with('#') && !is_ours(line) && !is_told(*at));
    found.map(|(_, line)| (*line).to_owned()).collect()
}

/// Dependencies of a crate that bypass the workspace's table, where the reasons are.
fn not_of_the_workspace(manifest: &str) -> Vec<String> {
    let lines = table(manifest, |head| head.ends_with("dependencies]"));
    let is_of_it = |line: &str| line.ends_with(".workspace = true") || line.contains("{ workspace = true,");
    let found = lines.iter().filter(|line| !line.starts_with('#') && !is_of_it(line));
    found.map(|line| (*line).to_owned()).collect()
}

/// Lines that switch the feature `rare` on by default, or in a dependency of shipped code.
fn rare_paths(manifest: &str) -> Vec<String> {
    let of_use = table(manifest, |head| head.ends_with("dependencies]") && head != "[dev-dependencies]");
    let features = table(manifest, |head| head == "[features]");
    let default = features.into_iter().filter(|line| line.starts_with("default"));
    of_use.into_iter().chain(default).filter(|line| line.contains("rare\"")).map(str::to_owned).collect()
}

/// The manifests of the crates.
fn manifests() -> Vec<PathBuf> {
    let crates = std::fs::read_dir(root().join("crates")).expect("the crates");
    crates.flatten().map(|entry| entry.path().join("Cargo.toml")).collect()
}

/// Files of Rust below these folders.
fn sources(folders: impl IntoIterator<Item = PathBuf>) -> Vec<PathBuf> {
    let (mut open, mut found): (Vec<PathBuf>, Vec<PathBuf>) = (folders.into_iter().collect(), Vec::new());
    while let Some(folder) = open.pop() {
        for path in std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()) {
            match path.is_dir() {
                true => open.push(path),
                false if path.extension().is_some_and(|end| end == "rs") => found.push(path),
                false => {}
            }
        }
    }
    found
}

#[test]
fn no_file_of_an_example_is_longer_than_what_is_read_at_once() {
    let of_crates = manifests().into_iter().map(|manifest| manifest.with_file_name("examples"));
    let found = sources(of_crates.chain([root().join("examples/tokio/src")]));
    assert!(found.len() > 15, "only {found:?}");
    for file in found {
        let lines = read(&file).lines().count();
        assert!(lines <= LINES_MOST, "{} has {lines} lines, at most {LINES_MOST} are allowed", file.display());
    }
}

#[test]
fn the_lock_file_has_no_more_crates_than_allowed() {
    let crates = read(&root().join("Cargo.lock")).lines().filter(|line| *line == "[[package]]").count();
    assert!((2..=CRATES_MOST).contains(&crates), "{crates} crates in Cargo.lock, at most {CRATES_MOST} are allowed");
}

#[test]
fn each_dependency_has_its_reason() {
    let workspace = read(&root().join("Cargo.toml"));
    assert_eq!(without_reason(&workspace), [""; 0], "say why in one line above it");
    for manifest in manifests().into_iter().chain([root().join("tests/Cargo.toml")]) {
        let strays = not_of_the_workspace(&read(&manifest));
        assert!(strays.is_empty(), "{}: not from [workspace.dependencies]: {strays:?}", manifest.display());
    }
}

#[test]
fn planted_dependency_without_a_reason_is_found() {
    let manifest = "[workspace.dependencies]\nours = { path = \"x\" }\n# For y.\ny = \"1\"\nz = \"1\"\n\n[profile.release]\nlto = 1\n";
    assert_eq!(without_reason(manifest), ["z = \"1\""]);
    let manifest = "[package]\nname = \"n\"\n[dependencies]\n# Why.\na.workspace = true\nb = \"1\"\n[dev-dependencies]\nc = \"2\"\n";
    assert_eq!(not_of_the_workspace(manifest), ["b = \"1\"", "c = \"2\""]);
}

#[test]
fn nothing_that_is_shipped_has_rare_paths() {
    let mut with_feature = 0;
    for path in manifests().into_iter().chain([root().join("Cargo.toml")]) {
        let manifest = read(&path);
        assert_eq!(rare_paths(&manifest), [""; 0], "{}", path.display());
        with_feature += usize::from(manifest.lines().any(|line| line.starts_with("rare = ")));
    }
    assert!(with_feature >= 3, "the crates that have rare paths are looked at");
}

#[test]
fn planted_rare_paths_are_found() {
    for planted in [
        "[features]\ndefault = [\"rare\"]\n",
        "[dependencies]\nweft-transport = { workspace = true, features = [\"rare\"] }\n",
        "[workspace.dependencies]\nweft-core = { path = \"crates/weft-core\", features = [\"rare\"] }\n",
    ] {
        assert_eq!(rare_paths(planted).len(), 1, "{planted}");
    }
    assert_eq!(rare_paths("[features]\nrare = [\"weft-core/rare\"]\n"), [""; 0]);
}
