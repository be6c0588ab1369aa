//! The documents as a book: every page of `docs/` has its place in it, and every link leads somewhere. mdBook itself is not needed here;
//! `make book` builds with it.

mod documents;

use documents::{anchors, links, markdown_below, pages, read, root, Page};
use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

const CONTENTS: &str = "docs/SUMMARY.md";

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

/// The links of a page that lead nowhere: `text_of` gives a file's text, or that it is there (empty) though it has none.
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
        // The book has the pages of docs/ and nothing else: other files are named, not linked.
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
