//! The protocol crates read no clock, do no I/O, start no thread and draw no randomness: time and a seeded generator come in as arguments.
//! So the simulator, the fuzzers and the tests run the code that ships.
//!
//! Lists the parts of `std` that they may use, by module. Tests (`#[cfg(test)]` items, `tests.rs`) and comments are ignored.

use std::path::{Path, PathBuf};

/// The crates that must obey.
const CRATES: [&str; 4] = ["weft-wire", "weft-transport", "weft-core", "weft-sim"];

/// The modules of `std` that need no operating system. Of `time` only `Duration`, because the rest reads a clock.
const STD_MODULES: &[&str] = &[
    "alloc",
    "any",
    "array",
    "ascii",
    "borrow",
    "boxed",
    "cell",
    "char",
    "clone",
    "cmp",
    "collections",
    "convert",
    "default",
    "error",
    "fmt",
    "hash",
    "iter",
    "marker",
    "mem",
    "num",
    "ops",
    "option",
    "rc",
    "result",
    "slice",
    "str",
    "string",
    "sync",
    "time",
    "vec",
];

/// Words that no path may contain: clocks, and maps whose order differs between runs.
const FORBIDDEN: &[&str] = &[
    "Instant::now",
    "SystemTime",
    "RandomState",
    "HashMap::new",
    "HashMap::with_capacity",
    "HashSet::new",
    "HashSet::with_capacity",
    "rand::",
    "getrandom::",
    "libc::",
    "rustix::",
];

/// Everything in one file's `source` that the protocol crates may not use.
fn faults(source: &str) -> Vec<String> {
    let code = without_tests(&without_comments_and_strings(source));
    let dense = without_needless_blanks(&code);
    let mut faults: Vec<String> = Vec::new();
    for (at, _) in dense.match_indices("std::").filter(|(at, _)| starts_word(&dense, *at)) {
        for path in expand(&dense[at + "std::".len()..]) {
            let mut parts = path.split("::");
            let module = parts.next().unwrap_or_default();
            if !STD_MODULES.contains(&module) || (module == "time" && parts.next() != Some("Duration")) {
                faults.push(format!("std::{path}"));
            }
        }
    }
    for word in FORBIDDEN {
        if dense.match_indices(word).any(|(at, _)| starts_word(&dense, at)) {
            faults.push(word.to_string());
        }
    }
    faults
}

/// `code` with blanks only between words, so that `std :: net` and a list over several lines read the same.
fn without_needless_blanks(code: &str) -> String {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    code.split_whitespace().fold(String::new(), |mut dense, piece| {
        if dense.ends_with(is_word) && piece.starts_with(is_word) {
            dense.push(' ');
        }
        dense + piece
    })
}

fn starts_word(text: &str, at: usize) -> bool {
    !text[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_')
}

/// The paths at the start of `text`, groups unfolded: `time::{Duration,Instant};` gives `time::Duration`, `time::Instant`.
fn expand(text: &str) -> Vec<String> {
    let Some(group) = text.strip_prefix('{') else {
        let end = text.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(text.len());
        let (word, rest) = text.split_at(end);
        return match rest.strip_prefix("::") {
            Some(rest) => expand(rest).iter().map(|path| format!("{word}::{path}")).collect(),
            None => vec![word.to_string()],
        };
    };
    let (mut depth, mut start, mut paths) = (0, 0, Vec::new());
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                if at > start {
                    paths.extend(expand(&group[start..at]));
                }
                start = at + 1;
                if c == '}' {
                    break;
                }
            }
            _ => {}
        }
    }
    paths
}

/// `source` with each comment, string and character literal replaced by a blank.
fn without_comments_and_strings(source: &str) -> String {
    let mut code = String::new();
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let skipped = comment_length(rest).or_else(|| literal_length(rest, code.chars().last()));
        let length = skipped.unwrap_or(first.len_utf8());
        code.push(if skipped.is_some() { ' ' } else { first });
        rest = &rest[length..];
    }
    code
}

/// The length of the comment that `text` starts with. Block comments nest.
fn comment_length(text: &str) -> Option<usize> {
    if text.starts_with("//") {
        return Some(text.find('\n').unwrap_or(text.len()));
    }
    if !text.starts_with("/*") {
        return None;
    }
    let (mut depth, mut at) = (0, 0);
    while at < text.len() {
        let here = &text.as_bytes()[at..];
        let (step, change) = match here {
            [b'/', b'*', ..] => (2, 1),
            [b'*', b'/', ..] => (2, -1),
            _ => (1, 0),
        };
        at += step;
        depth += change;
        if depth == 0 {
            return Some(at);
        }
    }
    Some(text.len())
}

/// The length of the string or character literal that `text` starts with. `before` is the preceding character.
fn literal_length(text: &str, before: Option<char>) -> Option<usize> {
    let in_word = before.is_some_and(|c| c.is_alphanumeric() || c == '_');
    if let Some(raw) = text.strip_prefix('r').filter(|_| !in_word || before == Some('b')) {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        if raw[hashes..].starts_with('"') {
            let end = format!("\"{}", "#".repeat(hashes));
            let body = 1 + hashes + 1;
            return Some(text[body..].find(&end).map_or(text.len(), |at| body + at + end.len()));
        }
    }
    let quote = text.chars().next().filter(|c| matches!(c, '"' | '\''))?;
    // `'a` without a closing quote is a lifetime, not a literal.
    let mut after = text[1..].chars();
    if quote == '\'' && after.next() != Some('\\') && after.next() != Some('\'') {
        return None;
    }
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return Some(at + 1),
            _ => {}
        }
    }
    Some(text.len())
}

/// `code` without the items marked `#[cfg(test)]`: each ends with its block, or with a semicolon before any block.
fn without_tests(code: &str) -> String {
    const MARK: &str = "#[cfg(test)]";
    let Some(start) = code.find(MARK) else {
        return code.to_string();
    };
    let item = &code[start + MARK.len()..];
    let mut depth = 0;
    for (at, c) in item.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ';' => {}
            _ => continue,
        }
        if depth == 0 {
            return code[..start].to_string() + &without_tests(&item[at + 1..]);
        }
    }
    code[..start].to_string()
}

/// The Rust files below `folder`, without tests.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).expect("the crate has a src folder") {
        let path = entry.expect("the folder can be read").path();
        let is_test = path.file_stem().is_some_and(|stem| stem == "tests");
        if path.is_dir() && !is_test {
            files.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") && !is_test {
            files.push(path);
        }
    }
    files
}

#[test]
fn protocol_crates_use_no_clock_and_no_io() {
    let mut found = Vec::new();
    for name in CRATES {
        let files = sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates").join(name).join("src"));
        assert!(!files.is_empty(), "{name} has no source files");
        for file in files {
            let source = std::fs::read_to_string(&file).expect("a source file can be read");
            found.extend(faults(&source).iter().map(|fault| format!("{}: {fault}", file.display())));
        }
    }
    assert!(found.is_empty(), "not for a crate without an operating system:\n{}", found.join("\n"));
}

#[test]
fn planted_uses_are_found() {
    for (source, fault) in [
        ("use std::time::Instant;", "std::time::Instant"),
        ("use std::{fmt, time::{Duration, SystemTime}};", "std::time::SystemTime"),
        ("use std::{\n    cmp::{self, Ordering},\n    net::UdpSocket,\n};", "std::net::UdpSocket"),
        ("fn f() { let _ = ::std::fs::read(\"x\"); }", "std::fs::read"),
        ("fn f() { std::thread::yield_now() }", "std::thread::yield_now"),
        ("use std::time;", "std::time"),
        ("use std::env;", "std::env"),
        ("fn f() -> u64 { rand::random() }", "rand::"),
        ("fn f() { let m = HashMap::new(); }", "HashMap::new"),
        ("fn f<'a>(x: &'a str) { let q = '\"'; std::process::abort() }", "std::process::abort"),
        ("#[cfg(test)]\nmod tests { fn f() {} }\nuse std::io;", "std::io"),
        ("#[cfg(test)]\nuse std::fs;\nuse std::io;", "std::io"),
    ] {
        assert_eq!(faults(source).first().map(String::as_str), Some(fault), "in {source:?}");
    }
}

#[test]
fn harmless_uses_are_left_alone() {
    for source in [
        "use std::{collections::{BTreeMap, VecDeque}, fmt};\nuse std::time::Duration;",
        "/// Not `std::time::Instant::now()`.\nfn f() {} // std::fs\n/* std::net /* std::io */ std::env */",
        "const S: &str = \"std::fs \\\" std::io\"; const R: &str = r#\"std::net\" \"#; const C: char = '\\'';",
        "fn operand::f() {} struct Instant(u64); impl Instant { fn later(self) {} }",
        "#[cfg(test)]\nmod tests { use std::fs; fn f() { let x = [0; 4]; std::thread::yield_now() } }",
    ] {
        assert_eq!(faults(source), [""; 0], "in {source:?}");
    }
}
