//! The example that a newcomer runs first: a key-value server and its client.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// An example's program: beside the tests', where `cargo test` and `cargo build --examples` put it. Built if it is missing.
fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its file");
    let profile = test.parent().and_then(Path::parent).expect("tests lie in PROFILE/deps");
    let path = profile.join("examples").join(name);
    if !path.is_file() {
        // A profile's folder has its name, but for that of `dev`.
        let name_of_profile = profile.file_name().expect("a profile has a name");
        let name_of_profile = if name_of_profile == "debug" { "dev".as_ref() } else { name_of_profile };
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--locked", "-p", "weft", "--example", name]).current_dir(env!("CARGO_MANIFEST_DIR"));
        cargo.arg("--profile").arg(name_of_profile);
        cargo.arg("--target-dir").arg(profile.parent().expect("a profile lies in the target directory"));
        let built = cargo.status().is_ok_and(|status| status.success());
        assert!(built && path.is_file(), "{} is missing: cargo build -p weft --examples", path.display());
    }
    path
}

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a server. Returns its name and key too.
fn server() -> (Server, Vec<String>) {
    let mut child = Command::new(example("kv_server")).stdout(Stdio::piped()).spawn().expect("it was built");
    let mut line = String::new();
    let out = child.stdout.take().expect("it has a pipe");
    BufReader::new(out).read_line(&mut line).expect("it prints its name and key");
    (Server(child), line.split_whitespace().map(str::to_owned).collect())
}

fn client(arguments: &[&str]) -> Output {
    Command::new(example("kv_client")).args(arguments).output().expect("it was built")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

#[test]
fn what_was_put_can_be_got() {
    let (_server, contact) = server();
    let [name, key] = &contact[..] else { panic!("not a name and a key: {contact:?}") };
    assert_eq!(said(&client(&[name, key, "get", "colour"])), "(nothing)");
    assert!(client(&[name, key, "put", "colour", "green"]).status.success());
    assert_eq!(said(&client(&[name, key, "get", "colour"])), "green");
}

#[test]
fn a_wrong_key_an_unparsable_name_and_a_dead_server_are_told_apart() {
    let (server, contact) = server();
    let [name, key] = &contact[..] else { panic!("not a name and a key: {contact:?}") };
    let fails = |name: &str, key: &str, why: &str| {
        let output = client(&[name, key, "get", "colour"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(why), "{said}");
    };
    fails(name, "12", "wrong key");
    fails("weft1:AQAA", key, "was it cut");
    drop(server);
    fails(name, key, "nobody there");
}
