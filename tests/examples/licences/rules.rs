//! The licences that a dependency may have, and where it may come from.

use serde_json::Value;

/// Where all dependencies come from.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// The licences that are allowed, each with its reason. Where a crate gives a choice, one of them is enough.
const ALLOWED: [(&str, &str); 4] = [
    ("MIT", "weft's own; asks for its text to be kept"),
    ("Apache-2.0", "weft's own; the same, and grants patents"),
    ("Unicode-3.0", "as MIT; of the character tables in unicode-ident, which derive macros read when weft is built"),
    ("NCSA", "as MIT; of LLVM's libFuzzer in libfuzzer-sys, which only the fuzzers link"),
];

/// The faults of the packages that `cargo metadata` lists. Packages without a source are this repository's own.
pub fn faults(metadata: &Value) -> Vec<String> {
    let packages = metadata["packages"].as_array().into_iter().flatten();
    packages
        .filter_map(|package| {
            Some(format!("{} {}: {}", text(package, "name"), text(package, "version"), fault(package)?))
        })
        .collect()
}

fn text<'a>(package: &'a Value, field: &str) -> &'a str {
    package[field].as_str().unwrap_or("")
}

fn fault(package: &Value) -> Option<String> {
    let licence = text(package, "license");
    match package["source"].as_str() {
        Some(source) if source != REGISTRY => Some(format!("comes from {source}, and not from crates.io")),
        _ if licence.is_empty() => Some("names no licence".to_owned()),
        _ if !is_allowed(licence) => Some(format!("is under {licence}, which is not in the table of {}", file!())),
        _ => None,
    }
}

/// Whether an SPDX expression can be satisfied with allowed licences alone. Old crates write `/` for OR.
fn is_allowed(expression: &str) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = &words[..];
    let is_whole = !matches!(words.last(), Some(&"OR" | &"AND" | &"WITH"));
    is_whole && any_of(&mut rest) && rest.is_empty()
}

/// Licences joined by OR. AND binds tighter. Reads the whole expression, even if its first part decides.
fn any_of(rest: &mut &[&str]) -> bool {
    let mut is_met = all_of(rest);
    while take(rest, "OR") {
        is_met |= all_of(rest);
    }
    is_met
}

fn all_of(rest: &mut &[&str]) -> bool {
    let mut is_met = one(rest);
    while take(rest, "AND") {
        is_met &= one(rest);
    }
    is_met
}

/// A licence, with or without an exception, or an expression in parentheses.
fn one(rest: &mut &[&str]) -> bool {
    if take(rest, "(") {
        let is_met = any_of(rest);
        return take(rest, ")") && is_met;
    }
    let Some((licence, behind)) = rest.split_first() else { return false };
    *rest = behind;
    let is_met = ALLOWED.iter().any(|(allowed, _)| allowed == licence);
    // An exception only adds permissions.
    if take(rest, "WITH") {
        *rest = rest.get(1..).unwrap_or_default();
    }
    is_met
}

fn take(rest: &mut &[&str], word: &str) -> bool {
    let is_next = rest.first() == Some(&word);
    if is_next {
        *rest = &rest[1..];
    }
    is_next
}
