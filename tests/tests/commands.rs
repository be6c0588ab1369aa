//! Every command in the documents is run as it is written: here, with the release build of `weft` and the examples beside this program, or
//! by the test or script that [`ELSEWHERE`] names. A command is each line of a block marked `sh`, each line after `$ ` in a block marked
//! `console`, and each piece of code within a line that begins with one of [`PROGRAMS`].

mod documents;
#[path = "commands/elsewhere.rs"]
mod elsewhere;
#[path = "commands/stage.rs"]
mod stage;

use documents::{code_spans, fences_and_prose, pages, read, root, Page};
use elsewhere::{By, ELSEWHERE};
use stage::Stage;
use std::collections::BTreeSet;
use std::time::Instant;

/// Code within a line is a command if it begins with one of these and more follows. Scripts of the repository count too.
const PROGRAMS: [&str; 9] = ["weft", "make", "cargo", "apt", "mpirun", "mpiexec", "fi_info", "fi_pingpong", "tshark"];

/// Languages of blocks. `text` is for pictures, and for what programs print or exchange.
const LANGUAGES: [&str; 8] = ["sh", "console", "text", "rust", "c", "cmake", "toml", "json"];

/// Programs that many machines lack. Without one, a command is cut off at its pipe or left out.
const WISHED_FOR: [&str; 4] = ["jq", "tshark", "fi_info", "fi_pingpong"];

/// A command as a document has it.
#[derive(Debug, PartialEq)]
struct Shown {
    place: String,
    text: String,
    /// Exports in the lines above it in its block.
    exports: Vec<String>,
}

/// The commands of a page, and the faults of the page.
fn commands(page: &Page) -> (Vec<Shown>, Vec<String>) {
    let (fences, prose) = fences_and_prose(&page.text);
    let (mut shown, mut faults) = (Vec::new(), Vec::new());
    for fence in fences {
        let place = |offset: usize| format!("{}:{}", page.path, fence.at + offset);
        if !LANGUAGES.contains(&fence.language) {
            faults.push(format!("{}: a block without one of the languages {LANGUAGES:?}", place(0)));
        }
        let mut exports = Vec::new();
        for (offset, line) in fence.lines.iter().enumerate() {
            let typed = match fence.language {
                "sh" => without_comment(line),
                "console" => line.strip_prefix("$ ").map_or("", without_comment),
                _ if line.starts_with("$ ") => {
                    faults.push(format!("{}: a command in a block that is not `console`", place(offset)));
                    ""
                }
                _ => "",
            };
            if let Some(assignments) = typed.strip_prefix("export ") {
                exports.push(assignments.to_owned());
            }
            if !typed.is_empty() {
                shown.push(Shown { place: place(offset), text: typed.to_owned(), exports: exports.clone() });
            }
        }
    }
    for (at, span) in code_spans(&prose) {
        let pieces = span.split(" && ").filter(|piece| is_command(piece));
        let place = format!("{}:{at}", page.path);
        shown.extend(pieces.map(|text| Shown { place: place.clone(), text: text.to_owned(), exports: Vec::new() }));
    }
    (shown, faults)
}

/// A line without anything from ` #` on.
fn without_comment(line: &str) -> &str {
    let line = if line.starts_with('#') { "" } else { line };
    line.split_once(" #").map_or(line, |(typed, _)| typed).trim()
}

fn is_command(span: &str) -> bool {
    let mut words = span.split(' ').filter(|word| *word != "sudo" && !is_assignment(word));
    let program = words.next().unwrap_or_default();
    let is_complete = words.next().is_some();
    program == "make" || is_complete && (PROGRAMS.contains(&program) || program.starts_with("scripts/"))
}

/// `NAME=value` in front of a command.
fn is_assignment(word: &str) -> bool {
    let of_name = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    word.split_once('=').is_some_and(|(name, _)| name.chars().all(of_name))
}

/// A command as the table writes it.
fn plain(text: &str) -> &str {
    text.strip_prefix("sudo ").unwrap_or(text)
}

/// The fault of a row of the table. `text_of` returns a file's text.
fn row_fault(by: &By, text_of: impl Fn(&str) -> Option<String>) -> Option<String> {
    let (file, test, says) = match *by {
        By::Test { file, test, says } => (file, Some(test), says),
        By::Script { file, says } => (file, None, says),
        By::Hand => return None,
    };
    let Some(text) = text_of(file) else { return Some(format!("there is no {file}")) };
    if test.is_some_and(|test| !text.contains(&format!("fn {test}("))) {
        return Some(format!("{file} has no test {test:?}"));
    }
    (!text.contains(says)).then(|| format!("{file} does not say {says:?}"))
}

#[test]
fn every_command_of_the_documents_does_what_it_is_shown_for() {
    let (shown, mut faults): (Vec<_>, Vec<_>) = pages().iter().map(commands).unzip();
    let mut faults: Vec<String> = faults.drain(..).flatten().collect();
    let (mut seen, mut used) = (BTreeSet::new(), BTreeSet::new());
    let mut stage = Stage::new();
    for shown in shown.into_iter().flatten() {
        let row = ELSEWHERE.iter().position(|row| row.command == plain(&shown.text));
        used.extend(row);
        if !seen.insert((shown.text.clone(), shown.exports.clone())) {
            continue;
        }
        let begun = Instant::now();
        let done = match row {
            Some(_) if plain(&shown.text).starts_with("make") => stage.makes(plain(&shown.text)),
            Some(_) => Ok(()),
            None => stage.run(&shown.text, &shown.exports),
        };
        println!("{:>6} ms: {}", begun.elapsed().as_millis(), shown.text);
        faults.extend(done.err().map(|why| format!("{}: `{}`: {why}", shown.place, shown.text)));
    }
    assert!(seen.len() > 60, "only {} commands were found", seen.len());
    let stale = (0..ELSEWHERE.len()).filter(|at| !used.contains(at)).map(|at| ELSEWHERE[at].command);
    faults.extend(stale.map(|command| format!("no document has `{command}` any more: take it out of the table")));
    assert!(faults.is_empty(), "\n  {}", faults.join("\n  "));
}

#[test]
fn what_is_not_run_here_is_run_by_what_the_table_names() {
    let text_of = |path: &str| Some(read(&root().join(path)));
    for row in ELSEWHERE {
        assert_eq!(row_fault(&row.by, text_of), None, "`{}`", row.command);
        assert!(row.why.len() > 8, "`{}` says why", row.command);
        // `By hand` is allowed only if `make -n` at least has checked it, or the row says when it was done.
        let is_seen = row.command.starts_with("make ") || row.why.contains("done on 20");
        assert!(!matches!(row.by, By::Hand) || is_seen, "`{}`", row.command);
    }
}

#[test]
fn planted_commands_are_found() {
    let text = "# A page\nType `weft demo --x` or `sudo make install && weft top`; `weft` alone is none, nor is `a b`,\n\
        nor `weft::am`. `WEFT_X=1 cargo\nrun` is one over two lines.\n\n```sh\nexport A=1   # and so on\n\nweft 'B#C' # told\n```\n\
        ```console\n$ weft status\nweft, process 1\n```\n```text\nweft no\n$ weft hidden\n```\n```\nx\n```\n";
    let (shown, faults) = commands(&Page { path: "P.md".to_owned(), text: text.to_owned() });
    let told: Vec<(&str, &str, usize)> =
        shown.iter().map(|one| (&one.place[..], &one.text[..], one.exports.len())).collect();
    let expected = [
        ("P.md:7", "export A=1", 1),
        ("P.md:9", "weft 'B#C'", 1),
        ("P.md:12", "weft status", 0),
        ("P.md:2", "weft demo --x", 0),
        ("P.md:2", "sudo make install", 0),
        ("P.md:2", "weft top", 0),
        ("P.md:2", "WEFT_X=1 cargo run", 0),
    ];
    assert_eq!(told, expected);
    assert_eq!(faults.len(), 2, "{faults:?}"); // the hidden one, and the block without a language
}

#[test]
fn planted_faults_of_commands_and_of_the_table_are_found() {
    let mut stage = Stage::new();
    for (wrong, why) in [
        ("weft status --jsom", "--json"),
        ("weft bench locally", "local"),
        ("make no-such-target", "no-such-target"),
        ("cargo run --release --example no_such_example", "no_such_example"),
        ("weft ping SOMEBODY", "SOMEBODY"),
        ("weft sim --count 10 --seed", "--seed"),
    ] {
        let told = stage.run(wrong, &[]).expect_err(wrong);
        assert!(told.contains(why), "{wrong}: {told}");
    }
    let text_of = |path: &str| (path == "there.rs").then(|| "#[test]\nfn a_test() { run(\"it\"); }".to_owned());
    let fault = |file, test, says| row_fault(&By::Test { file, test, says }, text_of).is_some();
    assert!(!fault("there.rs", "a_test", "\"it\""));
    assert!(
        fault("gone.rs", "a_test", "it") && fault("there.rs", "b_test", "it") && fault("there.rs", "a_test", "that")
    );
    assert!(row_fault(&By::Script { file: "there.rs", says: "that" }, text_of).is_some());
}
