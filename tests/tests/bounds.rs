//! Everything that a peer can make grow has a bound. `docs/design/bounds.md` lists every field of these crates that can grow: either with
//! its bound, what happens there and the attack that tests it, or with the reason why no peer can make it grow. This test reads the sources
//! and the list, and fails if they differ.
//!
//! A field can grow if its type names a collection, or one of our structs that is listed as a container. Local variables are ignored: they
//! are gone when their function returns.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

const CRATES: [&str; 9] = [
    "weft-wire",
    "weft-transport",
    "weft-core",
    "weft-shm",
    "weft-memory",
    "weft",
    "weft-link",
    "weft-daemon",
    "weft-job",
];

/// The collections that code here uses or may use one day.
const COLLECTIONS: [&str; 15] = [
    "Vec",
    "VecDeque",
    "HashMap",
    "HashSet",
    "BTreeMap",
    "BTreeSet",
    "BinaryHeap",
    "LinkedList",
    "String",
    "OsString",
    "PathBuf",
    "CString",
    "Cow",
    "Sender",
    "Receiver",
];

/// A field, a variant of an enum, or a static, and its type.
type Fields = BTreeMap<(String, String), String>;

/// The list's rows.
#[derive(Default)]
struct List {
    /// Each field once, with the position of its row.
    fields: BTreeMap<(String, String), usize>,
    twice: Vec<String>,
    /// Structs whose owners are listed in their place.
    containers: BTreeSet<String>,
    /// Names of constants in bounds, and of attacks.
    constants: BTreeSet<String>,
    attacks: BTreeSet<String>,
    incomplete: Vec<String>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_path_buf()
}

fn sources_below(dir: &Path, to: &mut Vec<PathBuf>) {
    let mut entries: Vec<PathBuf> =
        std::fs::read_dir(dir).expect("a folder").map(|entry| entry.expect("an entry").path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            sources_below(&path, to);
        } else if path.extension().is_some_and(|e| e == "rs") {
            to.push(path);
        }
    }
}

/// Everything that can grow in the crates, by file.
fn all_fields(containers: &BTreeSet<String>) -> Fields {
    let mut fields = Fields::new();
    for krate in CRATES {
        let mut files = Vec::new();
        sources_below(&root().join("crates").join(krate).join("src"), &mut files);
        // Tests may keep anything.
        for file in files.iter().filter(|f| {
            !f.ends_with("testing.rs")
                && !f.components().any(|c| c.as_os_str() == "testing")
                && !f.ends_with("tests.rs")
        }) {
            let name = file.strip_prefix(root().join("crates")).expect("below it").display().to_string();
            let text = std::fs::read_to_string(file).expect("a source");
            for (field, its_type) in fields_of(&text) {
                if can_grow(&its_type, containers) {
                    fields.insert((name.clone(), field), its_type);
                }
            }
        }
    }
    fields
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|w| !w.is_empty())
}

fn can_grow(its_type: &str, containers: &BTreeSet<String>) -> bool {
    let dense: String = its_type.split_whitespace().collect();
    let is_slice = ["Box<[", "Rc<[", "Arc<[", "Box<str", "Rc<str", "Arc<str"].iter().any(|s| dense.contains(s));
    is_slice || words(its_type).any(|w| COLLECTIONS.contains(&w) || containers.contains(w))
}

/// The text with blanks in place of comments, literals and test modules.
fn without_words(text: &str) -> String {
    let b: Vec<char> = text.chars().collect();
    let (mut out, mut at) = (String::with_capacity(text.len()), 0);
    while at < b.len() {
        let rest = &b[at..];
        let skipped = match rest {
            ['/', '/', ..] => rest.iter().position(|&c| c == '\n').unwrap_or(rest.len()),
            ['r', '"', ..] | ['r', '#', ..] if raw_string(rest).is_some() => raw_string(rest).unwrap_or(1),
            ['"', ..] => string(rest),
            ['\'', '\\', ..] => rest.iter().skip(2).position(|&c| c == '\'').map_or(rest.len(), |n| n + 3),
            ['\'', _, '\'', ..] => 3,
            _ => 0,
        };
        if skipped == 0 {
            out.push(b[at]);
            at += 1;
        } else {
            out.push(' ');
            at += skipped;
        }
    }
    while let Some(start) = out.find("#[cfg(test)]") {
        let open = out[start..].find(['{', ';']).map_or(out.len(), |n| start + n);
        let end = if out[open..].starts_with('{') { close(&out, open) } else { open };
        out.replace_range(start..(end + 1).min(out.len()), " ");
    }
    out
}

fn string(rest: &[char]) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != '"' {
        at += if rest[at] == '\\' { 2 } else { 1 };
    }
    at + 1
}

fn raw_string(rest: &[char]) -> Option<usize> {
    let hashes = rest[1..].iter().take_while(|&&c| c == '#').count();
    if rest.get(1 + hashes) != Some(&'"') {
        return None;
    }
    let end: Vec<char> = std::iter::once('"').chain(std::iter::repeat_n('#', hashes)).collect();
    let from = 2 + hashes;
    rest[from..].windows(end.len()).position(|w| w == end).map(|n| from + n + end.len())
}

/// The position of the bracket that closes the one at `open`.
fn close(text: &str, open: usize) -> usize {
    let mut depth = 0usize;
    for (at, c) in text[open..].char_indices() {
        match c {
            '{' | '(' | '[' => depth += 1,
            '}' | ')' | ']' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return open + at;
        }
    }
    text.len()
}

/// The parts between commas outside of brackets.
fn parts(text: &str) -> Vec<String> {
    let (mut parts, mut depth, mut before) = (vec![String::new()], 0i32, ' ');
    for c in text.chars() {
        match c {
            '(' | '[' | '{' | '<' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            '>' if before != '-' && before != '=' => depth -= 1,
            _ => {}
        }
        match c {
            ',' if depth == 0 => parts.push(String::new()),
            _ => parts.last_mut().expect("one at least").push(c),
        }
        before = c;
    }
    parts.into_iter().map(|p| p.trim().to_string()).filter(|p| !p.is_empty()).collect()
}

/// A part without its attributes and its visibility.
fn bare(part: &str) -> &str {
    let mut rest = part.trim();
    while rest.starts_with("#[") {
        rest = rest[close(rest, 1) + 1..].trim_start();
    }
    if let Some(after) = rest.strip_prefix("pub").filter(|after| after.starts_with([' ', '('])) {
        rest = after.trim_start();
        if rest.starts_with('(') {
            rest = rest[close(rest, 0) + 1..].trim_start();
        }
    }
    rest
}

/// The position of the fields of the item that is named at `at`: after its parameters, and after `where` unless the fields have no names.
fn body_of(text: &str, at: usize) -> Option<usize> {
    let name_end = at + text[at..].find(|c: char| !(c.is_alphanumeric() || c == '_' || c == ' '))?;
    let (mut depth, mut before, mut end) = (0i32, ' ', name_end);
    for (n, c) in text[name_end..].char_indices() {
        match c {
            '<' => depth += 1,
            '>' if before != '-' => depth -= 1,
            _ if depth > 0 || c.is_whitespace() => {}
            _ => {
                end = name_end + n;
                break;
            }
        }
        before = c;
    }
    match text[end..].starts_with(['(', '{', ';']) {
        true => Some(end),
        false => text[end..].find(['{', ';']).map(|n| end + n),
    }
}

/// Every field, variant and static of a source, with its type.
fn fields_of(source: &str) -> Vec<(String, String)> {
    let text = without_words(source);
    let mut found = Vec::new();
    let mut at = 0;
    while let Some((kind, start)) = ["struct ", "enum ", "union ", "static "]
        .iter()
        .filter_map(|kind| text[at..].find(kind).map(|n| (*kind, at + n)))
        .min_by_key(|&(_, n)| n)
    {
        at = start + kind.len();
        let is_word = text[..start].chars().next_back().is_none_or(|c| !(c.is_alphanumeric() || c == '_' || c == '\''));
        let name: String = text[at..].trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        if !is_word || name.is_empty() || name == "mut" {
            continue;
        }
        if kind == "static " {
            let end = text[at..].find(['=', ';']).map_or(text.len(), |n| at + n);
            found.push((name, text[at..end].split_once(':').map_or("", |(_, t)| t).to_string()));
            continue;
        }
        let Some(open) = body_of(&text, at) else { break };
        if text[open..].starts_with(';') {
            continue;
        }
        let body = &text[open + 1..close(&text, open)];
        for (nth, part) in parts(body).iter().enumerate() {
            let part = bare(part);
            match (kind, text[open..].starts_with('(')) {
                ("enum ", _) => {
                    let variant: String = part.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                    found.push((format!("{name}::{variant}"), part[variant.len()..].to_string()));
                }
                (_, true) => found.push((format!("{name}.{nth}"), part.to_string())),
                _ => {
                    let (field, its_type) = part.split_once(':').unwrap_or((part, ""));
                    found.push((format!("{name}.{}", field.trim()), its_type.to_string()));
                }
            }
        }
    }
    found
}

/// What is between pairs of backticks.
fn quoted(cell: &str) -> impl Iterator<Item = String> + '_ {
    cell.split('`').skip(1).step_by(2).map(str::to_string)
}

fn list_of(text: &str) -> List {
    let mut list = List::default();
    let mut section = "";
    for (nth, line) in text.lines().enumerate() {
        if let Some(title) = line.strip_prefix("## ") {
            section = title;
        }
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, file, fields, rest @ .., _] = &cells[..] else { continue };
        let Some(file) = quoted(file).next() else { continue };
        for field in quoted(fields) {
            if section == "Containers" {
                list.containers.insert(field.split('.').next().unwrap_or_default().to_string());
            }
            if list.fields.insert((file.clone(), field.clone()), nth).is_some() {
                list.twice.push(format!("{file} {field}"));
            }
        }
        if rest.iter().any(|cell| cell.is_empty()) {
            list.incomplete.push(line.to_string());
        }
        if section == "What peers can make grow" {
            let [bound, _, attacks] = rest else {
                list.incomplete.push(line.to_string());
                continue;
            };
            let is_constant = |word: &&str| word.len() > 3 && word.chars().all(|c| c.is_ascii_uppercase() || c == '_');
            list.constants.extend(words(bound).filter(is_constant).map(str::to_string));
            list.attacks.extend(quoted(attacks));
            if quoted(attacks).next().is_none() {
                list.incomplete.push(line.to_string());
            }
        }
    }
    list
}

/// The faults of a list, given everything that can grow, and the text of all sources and tests.
fn faults(list: &List, fields: &Fields, all: &str) -> Vec<String> {
    let mut faults = Vec::new();
    for ((file, field), its_type) in fields {
        if !list.fields.contains_key(&(file.clone(), field.clone())) {
            let its_type: String = its_type.split_whitespace().collect();
            faults.push(format!("{file}: `{field}` ({its_type}) can grow and is not listed"));
        }
    }
    for (file, field) in list.fields.keys().filter(|key| !fields.contains_key(*key)) {
        faults.push(format!("{file}: `{field}` is listed, and is not there or cannot grow"));
    }
    faults.extend(list.twice.iter().map(|row| format!("{row}: listed twice")));
    faults.extend(list.incomplete.iter().map(|row| format!("bound, action or attack is missing: {row}")));
    for name in &list.attacks {
        let test = all.find(&format!("fn {name}(")).map(|at| &all[at.saturating_sub(60)..at]);
        if !test.is_some_and(|before| before.contains("#[test]") && !before.contains("#[ignore")) {
            faults.push(format!("no test is called {name}"));
        }
    }
    for name in list.constants.iter().filter(|name| !all.contains(&format!("const {name}:"))) {
        faults.push(format!("no constant is called {name}"));
    }
    faults
}

fn all_text() -> String {
    let mut files = Vec::new();
    for krate in CRATES {
        for part in ["src", "tests"] {
            let dir = root().join("crates").join(krate).join(part);
            if dir.is_dir() {
                sources_below(&dir, &mut files);
            }
        }
    }
    files.iter().map(|f| std::fs::read_to_string(f).expect("a source")).collect()
}

#[test]
fn whatever_can_grow_is_listed_with_its_bound_and_attack_or_the_reason_why_no_peer_can() {
    let text = std::fs::read_to_string(root().join("docs/design/bounds.md")).expect("docs/design/bounds.md");
    let list = list_of(&text);
    let fields = all_fields(&list.containers);
    assert!(fields.len() > 80, "{} fields: the sources were not read", fields.len());
    let faults = faults(&list, &fields, &all_text());
    assert!(faults.is_empty(), "docs/design/bounds.md and the sources differ:\n{}", faults.join("\n"));
}

mod planted {
    use super::*;

    const SOURCE: &str = r#"
        //! struct Comment { words: Vec<u8> }
        pub struct Queue<T> where T: Fn() -> u8 {
            /// Bounded: Vec<u8>.
            #[allow(dead_code)]
            pub(crate) behind: Option<Box<VecDeque<(u8, T)>>>,
            ranges: [Ranges; 2],
            text: &'static str,
            count: u64,
        }
        struct Letters(pub Arc<Mutex<HashMap<u8, u8>>>, u8);
        enum Step { Waiting, Heard(Message, Vec<u8>), Said { words: Box<[u8]> } }
        static ALL: Mutex<BTreeSet<u8>> = Mutex::new(BTreeSet::new());
        const TEXT: &str = "struct Text { words: Vec<u8> }";
        #[cfg(test)]
        mod tests { struct Test { words: Vec<u8> } }
    "#;

    const LIST: &str = "## What peers can make grow\n\
        | `a.rs` | `Queue.behind`, `Queue.ranges` | QUEUE_MOST | dropped | `a_queue_is_filled` |\n\
        | `a.rs` | `Letters.0` | QUEUE_MOST | dropped | `a_queue_is_filled` |\n\
        ## What no peer can make grow\n\
        | `a.rs` | `Step::Heard`, `Step::Said`, `ALL` | the program's |\n";

    const TESTS: &str = "const QUEUE_MOST: u8 = 1; #[test]\nfn a_queue_is_filled() {}";

    fn fields(source: &str) -> Fields {
        let containers = BTreeSet::from(["Ranges".to_string()]);
        let all = fields_of(source).into_iter().filter(|(_, its_type)| can_grow(its_type, &containers));
        all.map(|(field, its_type)| (("a.rs".to_string(), field), its_type)).collect()
    }

    fn faults_of(source: &str, list: &str, tests: &str) -> Vec<String> {
        faults(&list_of(list), &fields(source), tests)
    }

    #[test]
    fn a_source_and_its_list_agree() {
        assert_eq!(faults_of(SOURCE, LIST, TESTS), [""; 0]);
    }

    #[test]
    fn a_queue_that_is_added_and_one_that_is_gone_are_found() {
        let more = SOURCE.replace("count: u64", "count: u64, waiting: Vec<u64>");
        assert_eq!(faults_of(&more, LIST, TESTS), ["a.rs: `Queue.waiting` (Vec<u64>) can grow and is not listed"]);
        let less = SOURCE.replace("ranges: [Ranges; 2]", "ranges: [Range; 2]");
        let gone = "a.rs: `Queue.ranges` is listed, and is not there or cannot grow";
        assert_eq!(faults_of(&less, LIST, TESTS), [gone]);
        for row in ["`Queue.behind`", "`Letters.0`", "`Step::Heard`", "`Step::Said`", "`ALL`"] {
            assert_eq!(faults_of(SOURCE, &LIST.replace(row, "`Queue.ranges`"), TESTS).len(), 2, "{row}");
        }
    }

    #[test]
    fn a_bound_without_a_constant_an_action_or_an_attack_is_found() {
        for (list, tests) in [
            (LIST, TESTS.replace("QUEUE_MOST:", "OTHER_MOST:")),
            (LIST, TESTS.replace("a_queue_is_filled", "another")),
            (LIST, TESTS.replace("#[test]", "#[test]\n#[ignore = \"long\"]")),
            (LIST, TESTS.replace("#[test]", "")),
        ] {
            assert_eq!(faults_of(SOURCE, list, &tests).len(), 1, "{tests}");
        }
        for (from, to) in
            [("dropped", ""), ("`a_queue_is_filled`", "none"), ("| dropped |", "|"), ("the program's", "")]
        {
            assert_ne!(faults_of(SOURCE, &LIST.replacen(from, to, 1), TESTS), [""; 0], "{from}");
        }
    }
}
