//! The library knows every environment variable that a part of weft reads, or that a document names. It warns users of names that are no
//! settings.

mod documents;

use documents::{read, root};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

const LIST: &str = "crates/weft/src/settings.rs";

/// All files of these kinds below a folder, except built ones.
fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            if !path.ends_with("target") {
                files(&path, found);
            }
        } else if path.extension().is_some_and(|end| ["rs", "sh", "c", "h", "md", "py"].iter().any(|kind| end == *kind))
        {
            found.push(path);
        }
    }
}

/// The names that look like settings after any of these texts.
fn names_behind(text: &str, before: &[&str]) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for before in before {
        for rest in text.split(&format!("{before}WEFT_")).skip(1) {
            let name: String = rest.chars().take_while(|c| c.is_ascii_uppercase() || *c == '_').collect();
            // Alone it is only the prefix that all names share.
            if !name.is_empty() {
                names.insert(format!("WEFT_{name}"));
            }
        }
    }
    names
}

/// The names that a source reads.
fn read_by(source: &str) -> BTreeSet<String> {
    names_behind(source, &["var(\"", "var_os(\"", "&str = \"", "getenv(\"", "$", "${", "environ[\"", "environ.get(\""])
}

/// The names in the list, and the prefixes of names of weft's own programs.
fn known(list: &str) -> (BTreeSet<String>, BTreeSet<String>) {
    let part = |from: &str| {
        let rest = list.split(from).nth(1).unwrap_or_else(|| panic!("{LIST} has no {from}"));
        rest.split("];").next().expect("something").to_owned()
    };
    let mut names = names_behind(&part("const KNOWN"), &["\""]);
    names.extend(names_behind(list, &["&str = \""]));
    (names, names_behind(&part("const OWN"), &["\""]))
}

#[test]
fn every_variable_that_is_read_or_told_of_is_known() {
    let (known, own) = known(&read(&root().join(LIST)));
    assert!(known.len() >= 10 && own.len() >= 5, "{known:?} {own:?}");
    let is_known = |name: &String| known.contains(name) || own.iter().any(|own| name.starts_with(own.as_str()));
    let mut paths = Vec::new();
    for folder in ["crates", "tests", "scripts", "examples", "bench", "contrib", "docs"] {
        files(&root().join(folder), &mut paths);
    }
    let mut seen = BTreeSet::new();
    for path in paths {
        // This file contains names that are no settings.
        let Some(text) = std::fs::read_to_string(&path).ok().filter(|_| !path.ends_with(file!())) else { continue };
        let is_page = path.extension().is_some_and(|end| end == "md");
        let names = if is_page { names_behind(&text, &["`", "export "]) } else { read_by(&text) };
        for name in &names {
            assert!(is_known(name), "{name}, in {}, is not in {LIST}", path.display());
        }
        seen.extend(names);
    }
    for name in ["WEFT_ADDR", "WEFT_PORT", "WEFT_LIMITS", "WEFT_TEST_ROLE"] {
        assert!(seen.contains(name), "{name} is read somewhere");
    }
}

#[test]
fn a_variable_that_is_read_is_found() {
    let source = "let a = env::var(\"WEFT_ONE\"); const TWO: &str = \"WEFT_TWO\"; echo ${WEFT_THREE:-}; // WEFT_FOUR";
    assert_eq!(read_by(source).into_iter().collect::<Vec<_>>(), ["WEFT_ONE", "WEFT_THREE", "WEFT_TWO"]);
}
