//! Parses the documents for their tests: fenced blocks, code within lines, headings, links.
#![allow(dead_code)] // each test program uses its own part of this

use std::path::{Path, PathBuf};

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository").to_path_buf()
}

pub fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// A page of Markdown, by its path in the repository.
pub struct Page {
    pub path: String,
    pub text: String,
}

/// The pages for users and contributors: the README, CONTRIBUTING, and everything below `docs/`.
pub fn pages() -> Vec<Page> {
    let mut paths = vec!["README.md".to_owned(), "CONTRIBUTING.md".to_owned()];
    paths.extend(markdown_below("docs"));
    paths.into_iter().map(|path| Page { text: read(&root().join(&path)), path }).collect()
}

/// The pages below a folder of the repository, in order.
pub fn markdown_below(folder: &str) -> Vec<String> {
    let entries = std::fs::read_dir(root().join(folder)).unwrap_or_else(|e| panic!("{folder}: {e}"));
    let names = entries.flatten().map(|entry| format!("{folder}/{}", entry.file_name().to_string_lossy()));
    let below = names.flat_map(|path| match root().join(&path).is_dir() {
        true => markdown_below(&path),
        false => vec![path],
    });
    let mut pages: Vec<String> = below.filter(|path| path.ends_with(".md")).collect();
    pages.sort();
    pages
}

/// A fenced block: the number of its first line, its language, and its lines.
#[derive(Debug, PartialEq)]
pub struct Fence<'a> {
    pub at: usize,
    pub language: &'a str,
    pub lines: Vec<&'a str>,
}

/// A page's fenced blocks, and its other lines with their numbers.
pub fn fences_and_prose(text: &str) -> (Vec<Fence<'_>>, Vec<(usize, &str)>) {
    let (mut fences, mut prose) = (Vec::new(), Vec::new());
    let mut open: Option<Fence> = None;
    for (at, line) in (1..).zip(text.lines()) {
        match (line.trim_start().strip_prefix("```"), open.take()) {
            (Some(_), Some(fence)) => fences.push(fence),
            (Some(language), None) => open = Some(Fence { at: at + 1, language: language.trim(), lines: Vec::new() }),
            (None, Some(mut fence)) => {
                fence.lines.push(line);
                open = Some(fence);
            }
            (None, None) => prose.push((at, line)),
        }
    }
    assert!(open.is_none(), "a fenced block has no end");
    (fences, prose)
}

/// Code within lines, between runs of equally many back quotes, with the number of the paragraph's first line.
pub fn code_spans(prose: &[(usize, &str)]) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (at, paragraph) in paragraphs(prose) {
        let mut rest = &paragraph[..];
        while let Some(start) = rest.find('`') {
            let quotes: String = rest[start..].chars().take_while(|&c| c == '`').collect();
            let behind = &rest[start + quotes.len()..];
            let end = behind.find(&quotes).unwrap_or_else(|| panic!("line {at}: a code mark has no end: {rest}"));
            found.push((at, behind[..end].trim().to_owned()));
            rest = &behind[end + quotes.len()..];
        }
    }
    found
}

/// Lines that form one text. Each row of a table and each item of a list begins a new one.
fn paragraphs(prose: &[(usize, &str)]) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let mut before = 0;
    for &(at, line) in prose {
        let trimmed = line.trim();
        let goes_on = before + 1 == at && !trimmed.starts_with(['|', '#', '-']);
        match found.last_mut() {
            Some((_, text)) if goes_on && !text.is_empty() && !text.starts_with('#') && !trimmed.is_empty() => {
                text.push(' ');
                text.push_str(trimmed);
            }
            _ => found.push((at, trimmed.to_owned())),
        }
        before = at;
    }
    found
}

/// The anchors of a page's headings, as GitHub and mdBook make them.
pub fn anchors(text: &str) -> Vec<String> {
    let (_, prose) = fences_and_prose(text);
    let headings = prose.iter().filter_map(|(_, line)| line.strip_prefix('#'));
    let mut found: Vec<String> = Vec::new();
    for heading in headings.map(|line| line.trim_start_matches('#').trim().to_lowercase()) {
        let kept = heading.chars().filter(|&c| c.is_alphanumeric() || c == ' ' || c == '-' || c == '_');
        let anchor: String = kept.map(|c| if c == ' ' { '-' } else { c }).collect();
        let same = found.iter().filter(|one| **one == anchor).count();
        found.push(if same == 0 { anchor } else { format!("{anchor}-{same}") });
    }
    found
}

/// The targets of a page's links, with the number of the line: `[text](target)` and `[text]: target`.
pub fn links(text: &str) -> Vec<(usize, String)> {
    let (_, prose) = fences_and_prose(text);
    let mut found = Vec::new();
    for (at, line) in prose {
        let behind = line.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
        found.extend(behind.map(|(target, _)| (at, target.to_owned())));
        if let Some((_, target)) = line.strip_prefix('[').and_then(|rest| rest.split_once("]: ")) {
            found.push((at, target.trim().to_owned()));
        }
    }
    found
}
