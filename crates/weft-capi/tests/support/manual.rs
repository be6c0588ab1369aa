//! Writes the manual pages of the headers from the headers themselves: their comments and declarations.

use crate::header::{FAMILIES, GETS};
use roff::{bold, roman, Roff};
use std::collections::BTreeSet;

/// A page, and the functions and macros with parameters that it describes.
pub struct Page {
    pub text: String,
    pub functions: BTreeSet<String>,
}

/// Declarations that belong together, and their comment.
#[derive(Default)]
struct Item {
    text: String,
    code: Vec<String>,
}

/// The page of a header.
pub fn page(name: &str, header: &str) -> Page {
    let (head, body) = header.split_once("*/").expect("a header begins with a comment");
    let mut said = paragraphs(head).into_iter();
    let summary = said.next().expect("its first paragraph is NAME: SUMMARY");
    let summary = summary.split_once(": ").map_or(&*summary, |(_, summary)| summary).trim_end_matches('.');
    let mut roff = Roff::new();
    roff.control("TH", [name, "3", " ", "weft"]);
    roff.control("SH", ["NAME"]).text([roman(format!("{name} - {summary}"))]);
    roff.control("SH", ["SYNOPSIS"]).control("nf", []);
    roff.text([bold(format!("#include <{name}>"))]).control("sp", []);
    roff.text([bold("cc program.c $(pkg-config --cflags --libs weft)")]).control("fi", []);
    roff.control("SH", ["DESCRIPTION"]);
    for text in said.filter(|text| !text.starts_with("This file is generated")) {
        roff.control("PP", []).text([roman(text)]);
    }
    let items = items(&plain(body));
    for Item { text, code } in &items {
        let text = match text.strip_prefix("---- ") {
            Some(text) => {
                let end = text.find([':', '.']).unwrap_or(text.len());
                roff.control("SH", [&*text[..end].to_uppercase()]);
                capital(text[end..].trim_start_matches([':', '.']).trim())
            }
            None => text.clone(),
        };
        if code.is_empty() {
            roff.control("PP", []).text([roman(text)]);
            continue;
        }
        roff.control("PP", []).control("nf", []);
        code.iter().for_each(|line| _ = roff.text([bold(line)]));
        roff.control("fi", []);
        if !text.is_empty() {
            roff.control("RS", ["4"]).text([roman(text)]).control("RE", []);
        }
    }
    roff.control("SH", ["SEE ALSO"]).text([roman("weft.h(3), am.h(3), am_spmd.h(3), weft(1), weftd(8)")]);
    let code = items.iter().flat_map(|item| &item.code);
    Page { text: roff.to_roff(), functions: code.filter_map(|line| name_of(line)).collect() }
}

/// The paragraphs of a comment, each as one line.
fn paragraphs(comment: &str) -> Vec<String> {
    let mut all = vec![String::new()];
    for line in comment.lines().map(|line| line.trim().trim_start_matches(['/', '*']).trim()) {
        match all.last_mut() {
            Some(last) if !line.is_empty() => {
                if !last.is_empty() {
                    last.push(' ');
                }
                last.push_str(line);
            }
            _ => all.push(String::new()),
        }
    }
    all.retain(|text| !text.is_empty());
    all
}

/// The lines of a header below its first comment, without what is for compilers alone. Functions that are defined there are declared, and
/// the families of macros have a line each.
fn plain(body: &str) -> Vec<String> {
    let mut plain: Vec<String> = Vec::new();
    let mut lines = body.lines();
    while let Some(line) = lines.next() {
        if line.starts_with("#define AM_NO_ARGS_") {
            let _generated = lines.by_ref().find(|line| line.contains("generated up to here"));
            plain.extend(families());
        } else if line.starts_with("static inline") {
            let mut text = line.to_owned();
            while !text.ends_with('{') {
                text += &format!(" {}", lines.next().expect("a function has a body").trim());
            }
            let _body = lines.by_ref().find(|line| *line == "}");
            plain.push(text.replace("static inline ", "").replace(" {", ";"));
        } else if line.trim() == ";" {
            plain.last_mut().expect("it ends a declaration").push(';');
        } else if !is_for_compilers(line) {
            plain.push(line.to_owned());
        }
    }
    plain
}

fn is_for_compilers(line: &str) -> bool {
    let line = line.trim();
    let is_guard = line.starts_with("#define WEFT_") && line.ends_with("H");
    is_guard
        || ["#if", "#el", "#end", "#include", "extern \"C\"", "__attribute__"]
            .iter()
            .any(|start| line.starts_with(start))
        || line == "}"
}

/// The families of macros, by their first and last members.
fn families() -> Vec<String> {
    let last = |name: &str, first: &str, count: usize| format!("{name}{count}({first}, a0, ..., a{});", count - 1);
    let families = FAMILIES.iter().map(|(name, first, _)| format!("{name}0({first}); ... {}", last(name, first, 16)));
    let first = "ep, dest, src_off, h, off, nbytes";
    families.chain(GETS.iter().map(|(name, _)| format!("{} {}", last(name, first, 4), last(name, first, 8)))).collect()
}

/// Groups declarations by blank lines, and by the comments in front of them.
fn items(lines: &[String]) -> Vec<Item> {
    let mut items = vec![Item::default()];
    let mut lines = lines.iter();
    while let Some(line) = lines.next() {
        let is_new = line.is_empty() || line.starts_with("/*");
        if is_new && items.last().is_some_and(|item| !item.text.is_empty() || !item.code.is_empty()) {
            items.push(Item::default());
        }
        let item = items.last_mut().expect("there is one");
        if line.starts_with("/*") {
            let mut comment = line.clone();
            while !comment.ends_with("*/") {
                comment += &format!("\n{}", lines.next().expect("a comment ends"));
            }
            item.text = paragraphs(comment.trim_end_matches("*/")).join(" ");
        } else if !line.is_empty() && !name_of(line).is_some_and(|name| name.ends_with('_')) {
            item.code.push(line.clone());
        }
    }
    // A comment whose declaration is internal.
    items.retain(|item| !item.code.is_empty() || item.text.starts_with("----"));
    items
}

/// The name that a line declares, if it has parameters.
fn name_of(line: &str) -> Option<String> {
    let before = line.trim_start_matches("#define ").split('(').next().filter(|before| before.len() < line.len())?;
    let name = before.rsplit([' ', '*']).next()?.to_owned();
    let is_ours = ["AM_", "am_", "weft_"].iter().any(|start| name.starts_with(start));
    (is_ours && !line.starts_with([' ', '/'])).then_some(name)
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}
