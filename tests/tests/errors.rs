//! Each error that weft's interfaces give has a line in `docs/errors.md`: cause, way out, a test that provokes it, and the time
//! until it is told. What counts is every public enum of the crates that derives `thiserror::Error`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const PAGE: &str = "docs/errors.md";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository").to_path_buf()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// All files of Rust below a folder.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let paths = entries.flatten().map(|entry| entry.path());
    let all = paths.flat_map(|path| match path.is_dir() {
        true => sources(&path),
        false => vec![path],
    });
    all.filter(|path| path.extension().is_some_and(|end| end == "rs")).collect()
}

/// The variants of each error in a file's `source`, by the error's name. A struct is its own one variant.
fn errors(source: &str) -> BTreeMap<String, Vec<String>> {
    let mut found = BTreeMap::new();
    let mut lines = source.lines();
    while let Some(line) = lines.next() {
        if !(line.starts_with("#[derive(") && line.contains("thiserror::Error")) {
            continue;
        }
        let head = lines.by_ref().find(|line| line.starts_with("pub ") || line.starts_with("pub(crate) "));
        let head = head.expect("an item behind each derive");
        let name = |word: &str| {
            let rest = head.split(word).nth(1)?;
            Some(rest.chars().take_while(|c| c.is_alphanumeric()).collect::<String>())
        };
        if let Some(name) = name("struct ") {
            found.insert(name.clone(), vec![name]);
        } else if let Some(name) = name("enum ") {
            let body = lines.by_ref().take_while(|line| !line.starts_with('}'));
            let is_variant = |line: &&str| {
                line.strip_prefix("    ").and_then(|rest| rest.chars().next()).is_some_and(char::is_uppercase)
            };
            let variant = |line: &str| line.trim_start().chars().take_while(|c| c.is_alphanumeric()).collect();
            found.insert(name, body.filter(is_variant).map(variant).collect());
        }
    }
    found
}

/// One line of the page.
struct Line {
    cells: Vec<String>,
}

/// The lines of each error's table by variant; tables stand below headings that end with the error's path in code marks.
fn lines(page: &str) -> BTreeMap<String, BTreeMap<String, Line>> {
    let mut tables: BTreeMap<String, BTreeMap<String, Line>> = BTreeMap::new();
    let mut now = None;
    for line in page.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            now = heading.split('`').nth(1).map(str::to_owned);
        }
        let (Some(error), Some(rest)) = (&now, line.strip_prefix("| `")) else { continue };
        let (variant, rest) = rest.split_once('`').expect("a closing mark");
        let cells = rest.trim().trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect();
        let twice = tables.entry(error.clone()).or_default().insert(variant.to_owned(), Line { cells });
        assert!(twice.is_none(), "{PAGE}: {error}::{variant} stands there twice");
    }
    tables
}

/// What is wrong with a line: an empty cell, or a test that does not exist. `tests` gives the source of a file of tests.
fn faults(line: &Line, tests: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let [_cause, _way_out, test, _time] = line.cells.as_slice() else {
        return vec![format!("has {} cells behind its name, and should have 4", line.cells.len())];
    };
    let mut faults: Vec<String> =
        line.cells.iter().filter(|cell| cell.is_empty()).map(|_| "has an empty cell".to_owned()).collect();
    if test.starts_with("no test: ") {
        return faults; // with the reason
    }
    let named: Vec<&str> = test.split('`').skip(1).step_by(2).collect();
    if named.is_empty() {
        faults.push("names no test".to_owned());
    }
    for name in named {
        let found = name.split_once(':').and_then(|(file, function)| {
            tests(file).filter(|source| source.contains(&format!("fn {function}(")) && source.contains("#[test]"))
        });
        if found.is_none() {
            faults.push(format!("names the test {name}, which does not exist (as `file:function`)"));
        }
    }
    faults
}

#[test]
fn each_error_has_its_line() {
    let tables = lines(&read(&root().join(PAGE)));
    let mut wrong = Vec::new();
    let mut known = Vec::new();
    for krate in std::fs::read_dir(root().join("crates")).expect("crates").flatten() {
        let krate_name = krate.file_name().to_string_lossy().replace('-', "_");
        for file in sources(&krate.path().join("src")) {
            for (error, variants) in errors(&read(&file)) {
                let error = format!("{krate_name}::{error}");
                for variant in &variants {
                    match tables.get(&error).and_then(|table| table.get(variant)) {
                        None => wrong.push(format!("{error}::{variant} has no line")),
                        Some(line) => {
                            let tests = |path: &str| std::fs::read_to_string(root().join(path)).ok();
                            wrong.extend(faults(line, tests).iter().map(|f| format!("{error}::{variant} {f}")));
                        }
                    }
                }
                known.push((error, variants));
            }
        }
    }
    assert!(known.len() > 10, "only {} errors were found in the crates", known.len());
    for (error, table) in &tables {
        let variants = known.iter().find(|(name, _)| name == error).map(|(_, variants)| variants.as_slice());
        for variant in table.keys().filter(|&name| !variants.unwrap_or(&[]).contains(name)) {
            wrong.push(format!("{error}::{variant} is no error, or none any more"));
        }
    }
    assert!(wrong.is_empty(), "{PAGE}:\n  {}", wrong.join("\n  "));
}

/// Errors whose `Debug` is derived: what leaves `main` with one names no way out.
fn derived(source: &str) -> Vec<&str> {
    let of_errors = |line: &&str| line.starts_with("#[derive(") && line.contains("thiserror::Error");
    source.lines().filter(of_errors).filter(|line| line.contains("Debug")).collect()
}

#[test]
fn the_debug_of_an_error_that_programs_see_says_what_its_display_says() {
    for krate in ["weft", "weft-core", "weft-shm", "weft-transport", "weft-wire", "weft-sim"] {
        for file in sources(&root().join("crates").join(krate).join("src")) {
            let text = read(&file);
            assert_eq!(derived(&text), [""; 0], "{}: weft_wire::debug_says_display! has it", file.display());
        }
    }
    assert_eq!(
        derived("#[derive(Debug, thiserror::Error)]\n#[derive(PartialEq, thiserror::Error)]\n#[derive(Debug)]").len(),
        1
    );
}

#[test]
fn what_is_missing_is_found() {
    let source = "#[derive(Debug, thiserror::Error)]\n#[repr(u8)]\npub enum Fault {\n    /// One.\n    #[error(\"one\")]\n    \
                  One,\n    Two(\n        u8,\n    ),\n    Three { what: u8 },\n}\n#[derive(thiserror::Error)]\npub struct Lone;\n";
    let found = errors(source);
    assert_eq!(found["Fault"], ["One", "Two", "Three"]);
    assert_eq!(found["Lone"], ["Lone"]);
    let page = "## Faults: `a::Fault`\n| error | cause |\n| `One` | c | w | `t.rs:there` | t |\n| `Two` | c | | `t.rs:not` | t |\n\
                | `Three` | c | w | by hand | t |\n";
    let tables = lines(page);
    let tests = |file: &str| (file == "t.rs").then(|| "#[test]\nfn there() {}".to_owned());
    let told = |variant: &str| faults(&tables["a::Fault"][variant], tests).len();
    assert_eq!((told("One"), told("Two"), told("Three")), (0, 2, 1));
}
