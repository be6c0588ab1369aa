//! Each main type of the crates has an example in the reference, in a block that `cargo test` compiles and runs.

mod documents;

use documents::{read, root};

/// The main types: the items that a program, a simulation or a reader of the protocol crates meets first.
const MAIN: [(&str, &str); 40] = [
    ("weft/src/node.rs", "pub struct Node("),
    ("weft/src/bundle/mod.rs", "pub struct Bundle<"),
    ("weft/src/bundle/shared/mod.rs", "pub struct SharedBundle "),
    ("weft/src/bundle/wait.rs", "pub struct Waker("),
    ("weft/src/am/message.rs", "pub struct Context<"),
    ("weft/src/am/message.rs", "pub struct Message<"),
    ("weft/src/am/message.rs", "pub struct ReplyToken "),
    ("weft/src/am/moving.rs", "pub struct Moving<"),
    ("weft/src/names/contact.rs", "pub struct Contact "),
    ("weft/src/names/resolve.rs", "pub fn resolve("),
    ("weft/src/names/server.rs", "pub struct NameServer "),
    ("weft/src/queue.rs", "pub struct SendQueue "),
    ("weft/src/status/ask.rs", "pub fn look("),
    ("weft/src/tagged/mod.rs", "pub struct Tagged<"),
    ("weft-core/src/event.rs", "pub enum Event "),
    ("weft-core/src/event.rs", "pub struct EventMask "),
    ("weft-core/src/state.rs", "pub struct Settings "),
    ("weft-core/src/state.rs", "pub struct State<"),
    ("weft-core/src/client.rs", "pub trait Client<"),
    ("weft-core/src/client.rs", "pub trait Sink<"),
    ("weft-wire/src/name.rs", "pub struct HostAddress "),
    ("weft-wire/src/name.rs", "pub struct Name "),
    ("weft-wire/src/packet.rs", "pub struct Packet<"),
    ("weft-wire/src/proof.rs", "pub struct KeyProof("),
    ("weft-wire/src/record.rs", "pub struct Head "),
    ("weft-wire/src/rendezvous.rs", "pub enum Answer "),
    ("weft-wire/src/rendezvous.rs", "pub struct Query<"),
    ("weft-transport/src/channel/mod.rs", "pub struct Channel<"),
    ("weft-transport/src/credit.rs", "pub struct CreditAccount "),
    ("weft-transport/src/door.rs", "pub struct Door "),
    ("weft-transport/src/window.rs", "pub struct Window "),
    ("weft-shm/src/bell.rs", "pub struct BellPage "),
    ("weft-shm/src/ring/consumer.rs", "pub struct Consumer<"),
    ("weft-shm/src/ring.rs", "pub struct Producer<"),
    ("weft-shm/src/sys.rs", "pub struct Shared "),
    ("weft-sim/src/faults.rs", "pub struct Faults "),
    ("weft-sim/src/program.rs", "pub trait Program "),
    ("weft-sim/src/simulation.rs", "pub struct Simulation<"),
    ("weft-sim/src/topology.rs", "pub enum Topology "),
    ("weft-sim/src/workload.rs", "pub struct Workload "),
];

/// Why an item of a source counts as having no example. `item` is the beginning of its line.
fn lacks_example(source: &str, item: &str) -> Option<&'static str> {
    let lines: Vec<&str> = source.lines().collect();
    let Some(at) = lines.iter().position(|line| line.starts_with(item)) else { return Some("is not there") };
    // Right above are the attributes, and above these the documentation.
    let above = lines[..at].iter().rev().skip_while(|line| line.starts_with("#["));
    let documentation: Vec<&str> = above.map_while(|line| line.strip_prefix("///")).collect();
    let opens = |line: &&str| line.trim_start().starts_with("```");
    match documentation.iter().filter(|line| opens(line)).count() {
        0 => Some("has no example"),
        // With a language, `ignore` or `no_run` it would not be run.
        _ if documentation.iter().any(|line| opens(line) && line.trim() != "```") => {
            Some("has an example that is not run")
        }
        _ => None,
    }
}

#[test]
fn each_main_type_has_an_example_that_is_run() {
    let wanted = MAIN.iter().filter_map(|(path, item)| {
        let source = read(&root().join("crates").join(path));
        lacks_example(&source, item).map(|why| format!("{path}: {item} {why}"))
    });
    assert_eq!(wanted.collect::<Vec<_>>(), [""; 0]);
}

#[test]
fn planted_types_without_an_example_are_found() {
    let source = "/// A.\n///\n/// ```\n/// a();\n/// ```\n#[derive(Debug)]\n#[must_use]\npub struct A {\n}\n/// B.\n\
        pub struct B;\n/// ```ignore\n/// c();\n/// ```\npub struct C;\n";
    assert_eq!(lacks_example(source, "pub struct A "), None);
    assert_eq!(lacks_example(source, "pub struct B"), Some("has no example"));
    assert_eq!(lacks_example(source, "pub struct C"), Some("has an example that is not run"));
    assert_eq!(lacks_example(source, "pub struct D"), Some("is not there"));
}

#[test]
fn the_first_program_of_the_readme_is_the_example_that_is_built() {
    let example = read(&root().join("crates/weft/examples/first.rs"));
    let program: String =
        example.lines().skip_while(|line| line.starts_with("//!")).map(|line| format!("{line}\n")).collect();
    let readme = read(&root().join("README.md"));
    assert!(readme.contains(&format!("```rust\n{program}```\n")), "README.md and crates/weft/examples/first.rs differ");
    let lines = program.lines().filter(|line| !line.is_empty()).count();
    assert!(lines < 20, "{lines} lines");
}
