//! The documents as a book: every page of `docs/` is in the contents, every link has a target, and the map names existing files.
//! mdBook itself is not needed here; `make book` builds with it.

mod documents;

use documents::{anchors, links, markdown_below, pages, read, root, Page};
use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

const CONTENTS: &str = "docs/SUMMARY.md";

/// The pages with one file a row: headings that are folders, and below each a table of files in that folder.
const MAP: [&str; 2] = ["docs/design/map.md", "docs/design/map-programs.md"];

/// The folders whose files must have a row in the map, if they are longer than [`ROW_FROM`] lines and not tests.
const MAPPED: [&str; 5] = [
    "crates/weft-wire/src",
    "crates/weft-transport/src",
    "crates/weft-core/src",
    "crates/weft-shm/src",
    "crates/weft/src",
];
const ROW_FROM: usize = 100;

/// The path that a link leads to, without `..` in it. `None` if it leads out of the repository.
fn resolved(page: &str, target: &str) -> Option<PathBuf> {
    let mut path = Path::new(page).parent()?.to_path_buf();
    for part in Path::new(target).components() {
        match part {
            Component::ParentDir if !path.pop() => return None,
            Component::ParentDir | Component::CurDir => {}
            Component::Normal(name) => path.push(name),
            _ => return None,
        }
    }
    Some(path)
}

/// The broken links of a page. `text_of` returns a file's text; an empty one if the file exists without any.
fn broken(page: &Page, text_of: impl Fn(&Path) -> Option<String>) -> Vec<String> {
    let mut faults = Vec::new();
    for (at, link) in links(&page.text) {
        if link.starts_with("https://") {
            continue;
        }
        let (file, anchor) = link.split_once('#').map_or((&link[..], None), |(file, anchor)| (file, Some(anchor)));
        let path = match file {
            "" => Some(PathBuf::from(&page.path)),
            file => resolved(&page.path, file),
        };
        let mut fault = |what: &str| faults.push(format!("{}:{at}: {link}: {what}", page.path));
        // The book contains only the pages of docs/. Other files are named, not linked.
        let is_inside = path.as_ref().is_some_and(|path| path.starts_with("docs"));
        match path.and_then(|path| text_of(&path)) {
            None => fault("there is no such file"),
            Some(_) if page.path.starts_with("docs/") && !is_inside => fault("leads out of the book"),
            Some(text) if anchor.is_some_and(|anchor| !anchors(&text).iter().any(|one| one == anchor)) => {
                fault("there is no such heading");
            }
            Some(_) => {}
        }
    }
    faults
}

#[test]
fn each_page_has_its_one_place_in_the_book() {
    let targets: Vec<String> = links(&read(&root().join(CONTENTS))).into_iter().map(|(_, target)| target).collect();
    let named: BTreeSet<String> = targets.iter().map(|target| format!("docs/{target}")).collect();
    assert_eq!(named.len(), targets.len(), "{CONTENTS} names a page twice");
    let there: BTreeSet<String> = markdown_below("docs").into_iter().filter(|path| path != CONTENTS).collect();
    assert!(there.len() > 10, "the pages are found");
    assert_eq!(named, there, "{CONTENTS} and the pages that there are");
}

#[test]
fn every_link_leads_to_a_file_and_a_heading() {
    let mut pages = pages();
    let path = "CHANGELOG.md".to_owned();
    pages.push(Page { text: read(&root().join(&path)), path });
    let text_of = |path: &Path| {
        let path = root().join(path);
        path.exists().then(|| std::fs::read_to_string(path).unwrap_or_default())
    };
    let faults: Vec<String> = pages.iter().flat_map(|page| broken(page, text_of)).collect();
    let checked: usize = pages.iter().map(|page| links(&page.text).len()).sum();
    assert!(checked > 50, "only {checked} links were found");
    assert!(faults.is_empty(), "\n  {}", faults.join("\n  "));
}

/// Lines of the longest page. Dated measurements may be longer.
const LINES_MOST: usize = 300;

/// Words of all pages for users: neither design nor measurements.
const WORDS_MOST: usize = 25_000;

/// What is wrong with the lengths of these pages.
fn too_long(pages: &[Page]) -> Vec<String> {
    let is_dated = |page: &&Page| page.path.starts_with("docs/measurements/");
    let lines = |page: &Page| page.text.lines().count();
    let long = pages.iter().filter(|page| !is_dated(page) && lines(page) > LINES_MOST);
    let mut faults: Vec<String> =
        long.map(|page| format!("{} has {} lines, at most {LINES_MOST} are allowed", page.path, lines(page))).collect();
    let is_for_users =
        |page: &&Page| page.path.strip_prefix("docs/").is_some_and(|path| !path.contains('/') && page.path != CONTENTS);
    let words: usize = pages.iter().filter(is_for_users).map(|page| page.text.split_whitespace().count()).sum();
    if words > WORDS_MOST {
        faults.push(format!("the pages for users have {words} words, at most {WORDS_MOST} are allowed"));
    }
    faults
}

#[test]
fn pages_are_short_enough_to_be_read() {
    let faults = too_long(&pages());
    assert!(faults.is_empty(), "\n  {}", faults.join("\n  "));
}

#[test]
fn planted_long_pages_are_found() {
    let page = |path: &str, text: String| Page { path: path.to_owned(), text };
    let long = "a line\n".repeat(LINES_MOST + 1);
    assert_eq!(too_long(&[page("docs/a.md", long.clone()), page("docs/design/b.md", long.clone())]).len(), 2);
    assert_eq!(too_long(&[page("docs/measurements/c.md", long)]).len(), 0);
    let wordy = "word ".repeat(WORDS_MOST / 2 + 1);
    let pages = ["docs/a.md", "docs/b.md"].map(|path| page(path, wordy.clone()));
    assert_eq!(too_long(&pages[..1]).len(), 0);
    assert_eq!(
        too_long(&pages),
        [format!("the pages for users have {} words, at most {WORDS_MOST} are allowed", WORDS_MOST + 2)]
    );
}

/// The paths that the map has a row for.
fn rows_of_map(text: &str) -> Vec<String> {
    let (mut folder, mut rows) = (String::new(), Vec::new());
    for line in text.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            folder = heading
                .strip_prefix('`')
                .and_then(|rest| rest.strip_suffix('`'))
                .map_or(String::new(), |path| format!("{path}/"));
        } else if let Some((file, _)) = line.strip_prefix("| `").and_then(|rest| rest.split_once('`')) {
            rows.push(format!("{folder}{file}"));
        }
    }
    rows
}

/// The faults of a map: rows of files that do not exist, files with two rows, files without one.
fn faults_of_map(text: &str, exists: impl Fn(&str) -> bool, must_have: &[String]) -> Vec<String> {
    let rows = rows_of_map(text);
    let mut faults: Vec<String> =
        rows.iter().filter(|path| !exists(path)).map(|path| format!("{path} does not exist")).collect();
    let mut seen = BTreeSet::new();
    faults.extend(rows.iter().filter(|path| !seen.insert(*path)).map(|path| format!("{path} has two rows")));
    faults.extend(must_have.iter().filter(|path| !seen.contains(path)).map(|path| format!("{path} has no row")));
    faults
}

/// The Rust files in a folder that are long enough for a row and not tests.
fn long_sources(folder: &str) -> Vec<String> {
    let entries = std::fs::read_dir(root().join(folder)).unwrap_or_else(|e| panic!("{folder}: {e}"));
    let names = entries.flatten().map(|entry| format!("{folder}/{}", entry.file_name().to_string_lossy()));
    let below = names.flat_map(|path| match root().join(&path).is_dir() {
        true => long_sources(&path),
        false => vec![path],
    });
    let is_long = |path: &String| read(&root().join(path)).lines().count() > ROW_FROM;
    below.filter(|path| path.ends_with(".rs") && !path.ends_with("/tests.rs") && is_long(path)).collect()
}

#[test]
fn the_map_has_a_row_for_each_file_and_each_of_its_files_exists() {
    let must_have: Vec<String> = MAPPED.into_iter().flat_map(long_sources).collect();
    assert!(must_have.len() > 60, "the sources are found");
    let map = MAP.map(|page| read(&root().join(page))).concat();
    let faults = faults_of_map(&map, |path| root().join(path).exists(), &must_have);
    assert!(faults.is_empty(), "{MAP:?}:\n  {}", faults.join("\n  "));
}

#[test]
fn planted_faults_of_a_map_are_found() {
    let map = "## `a/src`\n\n| file | what |\n| --- | --- |\n| `b.rs` | b |\n| `c.rs` | `b.rs` again |\n\n## Beside\n\n| `fuzz` | inputs |\n";
    assert_eq!(rows_of_map(map), ["a/src/b.rs", "a/src/c.rs", "fuzz"]);
    let must_have = ["a/src/b.rs".to_owned()];
    assert_eq!(faults_of_map(map, |_| true, &must_have), [""; 0]);
    assert_eq!(faults_of_map(map, |path| path != "a/src/c.rs", &must_have), ["a/src/c.rs does not exist"]);
    assert_eq!(faults_of_map(map, |_| true, &["a/src/d.rs".to_owned()]), ["a/src/d.rs has no row"]);
    assert_eq!(faults_of_map(&map.replace("c.rs", "b.rs"), |_| true, &must_have), ["a/src/b.rs has two rows"]);
}

#[test]
fn planted_broken_links_are_found() {
    let page = |path: &str, text: &str| Page { path: path.to_owned(), text: text.to_owned() };
    let text_of = |path: &Path| match path.to_str()? {
        "docs/a.md" | "docs/b.md" => Some("# A page\n## What `it::Is`, and why\n## Twice\n## Twice\n".to_owned()),
        "README.md" => Some(String::new()),
        _ => None,
    };
    let told = |path: &str, text: &str| broken(&page(path, text), text_of).len();
    let good = "# Here\n[b](b.md), [c](b.md#what-itis-and-why) [d](#here)\n[e](https://example.org)\n```text\n[f](none.md)\n```\n";
    assert_eq!(told("docs/a.md", &good.replace("#here", "#twice-1")), 0);
    for wrong in
        ["[x](c.md)", "[x](b.md#whatever)", "[x](../README.md)", "[x](../../b.md)", "[x]: c.md", "[x](#nowhere)"]
    {
        assert_eq!(told("docs/a.md", wrong), 1, "{wrong}");
    }
    assert_eq!(told("README.md", "[x](docs/a.md#a-page) and [y](docs/c.md)"), 1);
}
