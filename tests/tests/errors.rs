//! Each error that weft's interfaces give has a row with its cause in `docs/errors.md` or `docs/design/errors.md`, and in the latter a test
//! that provokes it. What counts is every public enum or struct of the crates that derives `thiserror::Error`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The page for users, and the one for builders, whose rows end with a cell of tests.
const PAGES: [&str; 2] = ["docs/errors.md", "docs/design/errors.md"];

/// What the crate `weft` exports of the crates below it. Pages have both names.
const EXPORTED: [(&str, &str); 11] = [
    ("weft::Reason", "weft_wire::Reason"),
    ("weft::NameError", "weft_wire::NameError"),
    ("weft::KeyError", "weft_wire::KeyError"),
    ("weft::SendError", "weft_core::SendError"),
    ("weft::ReplyError", "weft_core::ReplyError"),
    ("weft::NetworkError", "weft_link::NetworkError"),
    ("weft::Forked", "weft_shm::Forked"),
    ("weft::memory::PostError", "weft_memory::PostError"),
    ("weft::memory::RegionError", "weft_memory::RegionError"),
    ("weft::memory::CookieError", "weft_memory::CookieError"),
    ("weft::memory::RemoteError", "weft_shm::RemoteError"),
];

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

/// The variants of each error in a file's `source`, by the error's name. A struct has none.
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
            found.insert(name, Vec::new());
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

/// What the pages say of an error.
#[derive(Default)]
struct Row {
    has_cause: bool,
    tests: Option<String>,
    faults: Vec<String>,
}

/// An error's path without modules, as the crate calls it that defines it.
fn defined(path: &str) -> String {
    let exported = EXPORTED.iter().find_map(|(from, to)| {
        let rest = path.strip_prefix(from)?;
        (rest.is_empty() || rest.starts_with("::")).then(|| format!("{to}{rest}"))
    });
    let path = exported.unwrap_or_else(|| path.to_owned());
    let is_module = |part: &str| part.starts_with(char::is_lowercase);
    let parts = path.split("::").enumerate().filter(|(nth, part)| *nth == 0 || !is_module(part));
    parts.map(|(_, part)| part).collect::<Vec<_>>().join("::")
}

/// What is between pairs of backticks.
fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// Adds the rows of a page. The code at the end of a heading, if there is any, precedes the errors in the first cells below it.
fn add_rows(page: &str, has_tests: bool, rows: &mut BTreeMap<String, Row>) {
    let mut before = None;
    for line in page.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            before = quoted(heading).last().map(|code| format!("{code}::"));
        }
        if !line.starts_with("| `") {
            continue;
        }
        let mut cells = line.trim_matches('|').split('|').map(str::trim);
        let errors = cells.next().unwrap_or_default();
        let mut rest: Vec<&str> = cells.collect();
        let tests = if has_tests { rest.pop() } else { None };
        for error in quoted(errors) {
            let row = rows.entry(defined(&format!("{}{error}", before.as_deref().unwrap_or_default()))).or_default();
            if rest.contains(&"") || tests == Some("") {
                row.faults.push("has an empty cell".to_owned());
            }
            if row.has_cause && !rest.is_empty() || row.tests.is_some() && tests.is_some() {
                row.faults.push("stands there twice".to_owned());
            }
            row.has_cause |= !rest.is_empty();
            row.tests = row.tests.take().or(tests.map(str::to_owned));
        }
    }
}

/// What is wrong with a row: no cause, or a test that does not exist. `text_of` gives the source of a file of tests.
fn faults(row: &Row, text_of: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let mut faults = row.faults.clone();
    if !row.has_cause {
        faults.push("has no row with a cause".to_owned());
    }
    let tests = row.tests.as_deref().unwrap_or_default();
    if tests.starts_with("no test: ") {
        return faults; // with the reason
    }
    let named: Vec<&str> = quoted(tests).collect();
    if named.is_empty() {
        faults.push("names no test".to_owned());
    }
    for name in named {
        let found = name.split_once(':').and_then(|(file, function)| {
            text_of(file).filter(|source| source.contains(&format!("fn {function}(")) && source.contains("#[test]"))
        });
        if found.is_none() {
            faults.push(format!("names the test {name}, which does not exist (as `file:function`)"));
        }
    }
    faults
}

/// The paths of all errors of the crates: of each variant, or of a struct.
fn known() -> BTreeSet<String> {
    let mut known = BTreeSet::new();
    for krate in std::fs::read_dir(root().join("crates")).expect("crates").flatten() {
        let krate_name = krate.file_name().to_string_lossy().replace('-', "_");
        for file in sources(&krate.path().join("src")) {
            for (error, variants) in errors(&read(&file)) {
                let error = format!("{krate_name}::{error}");
                known.extend(variants.iter().map(|variant| format!("{error}::{variant}")));
                if variants.is_empty() {
                    known.insert(error);
                }
            }
        }
    }
    known
}

#[test]
fn each_error_has_its_row_and_its_test() {
    let mut rows = BTreeMap::new();
    for (page, has_tests) in PAGES.into_iter().zip([false, true]) {
        add_rows(&read(&root().join(page)), has_tests, &mut rows);
    }
    let known = known();
    assert!(known.len() > 100, "only {} errors were found in the crates", known.len());
    let tests = |path: &str| std::fs::read_to_string(root().join(path)).ok();
    let mut wrong = Vec::new();
    for error in &known {
        match rows.get(error) {
            None => wrong.push(format!("{error} has no row")),
            Some(row) => wrong.extend(faults(row, tests).iter().map(|fault| format!("{error} {fault}"))),
        }
    }
    let gone = rows.keys().filter(|&error| !known.contains(error));
    wrong.extend(gone.map(|error| format!("{error} is no error, or none any more")));
    assert!(wrong.is_empty(), "{PAGES:?}:\n  {}", wrong.join("\n  "));
}

/// Errors with a derived `Debug`. If `main` returns such an error, the user sees no way out.
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
    assert_eq!(found["Lone"], [""; 0]);
    let mut rows = BTreeMap::new();
    add_rows(
        "## Faults: `a::Fault`\n| error | cause |\n| `One`, `Four` | c | w |\n| `Two` | | w |\n",
        false,
        &mut rows,
    );
    let tests =
        "## Tests: `a`\n| `Fault::One` | `t.rs:there` |\n| `Fault::Two` | `t.rs:not` |\n| `Fault::Three` | by hand |\n\
                 | `Fault::Four` | no test: t |\n| `Fault::Four` | `t.rs:there` |\n";
    add_rows(tests, true, &mut rows);
    let text_of = |file: &str| (file == "t.rs").then(|| "#[test]\nfn there() {}".to_owned());
    let told =
        ["One", "Two", "Three", "Four"].map(|variant| faults(&rows[&format!("a::Fault::{variant}")], text_of).len());
    assert_eq!(told, [0, 2, 2, 1]);
}

#[test]
fn an_error_has_one_path() {
    assert_eq!(defined("weft::Reason::NoRoom"), "weft_wire::Reason::NoRoom");
    assert_eq!(defined("weft::memory::PostError::Full"), "weft_memory::PostError::Full");
    assert_eq!(defined("weft::tagged::PostError::Full"), "weft::PostError::Full");
    assert_eq!(defined("weft::InHandler"), "weft::InHandler");
    for (exported, _) in EXPORTED {
        let (file, name) = match exported.strip_prefix("weft::memory::") {
            Some(name) => ("crates/weft/src/memory/mod.rs", name),
            None => ("crates/weft/src/lib.rs", exported.trim_start_matches("weft::")),
        };
        assert!(read(&root().join(file)).contains(name), "{file} does not export {name}");
    }
}
