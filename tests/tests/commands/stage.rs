//! Runs the commands of the documents, in a folder of their own, with servers in place of the names that the documents use.

use super::documents::root;
use super::WISHED_FOR;
use std::io::{BufRead, BufReader, Read};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

/// The time limit of a command, for those that never end: the slowest takes some seconds.
const BOUND: &str = "60";

/// The exit status of `timeout` at the limit.
const LATE: i32 = 124;

/// Commands that end only by Ctrl-C. The test waits for their first line of output.
const ENDLESS: [&str; 11] = [
    "weft serve --port 4000",
    "weft serve --port 4000 --users all",
    "weft serve",
    "weft trace",
    "weft bench pair --listen",
    "/kv_server 0",
    "/two_users serve 0",
    "/broker serve 0",
    "/region own 0",
    "cargo run --release --example broker subscribe HOST:4000",
    "/first",
];

/// Commands that are shortened: the words that are appended to commands with these beginnings.
const SHORTER: [(&str, &str); 3] = [
    ("weft bench local", " --quick --rounds 1 --only rtt --systems weft"),
    ("weft bench hosts", " --quick --rounds 1 --only rtt --systems weft"),
    ("weft bench pair --connect", " --quick --rounds 1"),
];

/// Commands of which only the name is shown. Only their help is run.
const NAMES: [&str; 9] = [
    "weft bench",
    "weft run",
    "weft explain",
    "weft bench pair",
    "weft demo",
    "weft ping",
    "weft wire",
    "weft serve --port",
    "weft completions bash|zsh|fish",
];

/// Commands that need root, and tell other users so.
const FOR_ROOT: [&str; 3] = ["weft trace", "weft wire", "weft bench hosts"];

/// Commands that may exit with another status than 0, on purpose.
const STATUS: [(&str, i32); 3] = [("weft doctor", 1), ("WEFT_HELPER=off weft doctor", 1), ("weft sim --plant", 1)];

/// A process that ends when this is dropped. Its output stays open, unread.
struct Server(Child, #[allow(dead_code)] Option<BufReader<ChildStdout>>);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub struct Stage {
    folder: PathBuf,
    /// The examples: `cargo test` builds them beside this program.
    examples: PathBuf,
    /// Words in the documents, and their replacements.
    bound: Vec<(&'static str, String)>,
    servers: Vec<Server>,
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.servers.clear();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Stage {
    pub fn new() -> Stage {
        let program = std::env::current_exe().expect("this program");
        let profile = program.ancestors().nth(2).expect("a test lies in TARGET/PROFILE/deps");
        let examples = profile.join("examples");
        assert!(examples.join("first").is_file(), "{} lacks the examples: scripts/test.sh test", examples.display());
        let shipped = ["weft", "libweft_fi.so"].map(|file| profile.with_file_name("release").join(file));
        for file in &shipped {
            assert!(file.is_file(), "{} is missing: type `make build` first", file.display());
        }
        let name = format!("weft-commands-{}-{:?}", std::process::id(), std::thread::current().id());
        let folder = std::env::temp_dir().join(name);
        let link = |from: &Path, to: &str| {
            let to = folder.join(to);
            std::fs::create_dir_all(to.parent().expect("it is in a folder")).expect("a folder");
            std::os::unix::fs::symlink(from, to).expect("a link");
        };
        let [weft, provider] = &shipped;
        link(weft, "bin/weft");
        link(weft, "target/release/weft");
        link(provider, "target/release/libweft_fi.so");
        link(&examples, "target/release/examples");
        link(&root().join("contrib"), "contrib");
        // For users who may not capture packets.
        let capture = root().join("contrib/wireshark/golden.pcapng");
        std::fs::copy(capture, folder.join("weft.pcapng")).expect("a copy");
        let mut stage = Stage { folder, examples, bound: Vec::new(), servers: Vec::new() };
        stage.bind_names();
        stage
    }

    /// Starts the servers for names in the documents.
    fn bind_names(&mut self) {
        let (port, other, third) = (free_port(), free_port(), free_port());
        let contact = self.serve(&format!("weft serve --port {port}"));
        let pair = self.serve(&format!("weft bench pair --listen --port {other}"));
        let store = free_port();
        self.serve(&format!("target/release/examples/kv_server {store}"));
        let users = self.serve("target/release/examples/two_users serve 0");
        let broker = self.serve("target/release/examples/broker serve 0");
        let region = self.serve("target/release/examples/region own 0");
        let (region, _) = region.split_once(' ').expect("a port and a cookie");
        let first = self.serve("target/release/examples/first");
        let (name, _) = contact.split_once('#').expect("a name and a key");
        let (_, key) = pair.split_once('#').expect("an address and a key");
        // Traffic for commands that look at packets.
        let mut pings = self.background(&format!("weft ping -i 0.002 '{contact}'"));
        self.servers.push(Server(pings.stdout(Stdio::null()).spawn().expect("a shell"), None));
        self.bound = vec![
            ("'NAME#KEY'", format!("-c 2 -i 0 '{contact}'")),
            ("HOST:PORT#KEY", format!("127.0.0.1:{other}#{key}")),
            ("weft ping HOST:4000", format!("weft ping -c 2 -i 0 127.0.0.1:{port}")),
            ("--port 4000", format!("--port {third}")),
            ("pair --listen", format!("pair --listen --port {third}")),
            ("kv_server 4000", "kv_server 0".to_owned()),
            ("kv_client localhost:4000", format!("kv_client localhost:{store}")),
            ("two_users serve 4000", "two_users serve 0".to_owned()),
            ("two_users localhost:4000", format!("two_users localhost:{users}")),
            ("region own 4000", "region own 0".to_owned()),
            ("region write localhost:4000", format!("region write localhost:{region}")),
            ("region read localhost:4000", format!("region read localhost:{region}")),
            ("region add localhost:4000", format!("region add localhost:{region}")),
            ("broker serve 4000", "broker serve 0".to_owned()),
            ("broker subscribe HOST:4000", format!("broker subscribe 127.0.0.1:{broker}")),
            ("broker publish HOST:4000", format!("broker publish 127.0.0.1:{broker}")),
            ("first NAME", format!("first {first}")),
            ("explain NAME", format!("explain {name}")),
            ("weft1:AQCvnAAAAAAubV1EsEv1zQAAAAAAAAAAAAAAAAAA___AAAICAAAAAA", name.to_owned()),
            ("FILE", "file".to_owned()),
            ("--loss P", "--loss 1%".to_owned()),
        ];
    }

    /// A program in the folder, which finds the built `weft`.
    fn program(&self, words: &[&str]) -> Command {
        let mut path = self.folder.join("bin").into_os_string();
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        let mut program = Command::new(words[0]);
        program.args(&words[1..]).current_dir(&self.folder).stdin(Stdio::null());
        program.env("PATH", path).env("HOME", &self.folder).env("COLUMNS", "100");
        program
    }

    /// A typed line, in a shell, with the time limit.
    fn shell(&self, typed: &str) -> Command {
        self.program(&["timeout", "--kill-after=5", BOUND, "sh", "-c", typed])
    }

    /// Starts a server that runs until the stage is dropped. Returns its first line.
    fn serve(&mut self, typed: &str) -> String {
        let mut child = self.background(typed).stdout(Stdio::piped()).spawn().expect("a shell");
        let mut out = BufReader::new(child.stdout.take().expect("it has a pipe"));
        let mut line = String::new();
        out.read_line(&mut line).expect("it prints text");
        self.servers.push(Server(child, Some(out)));
        assert!(!line.is_empty(), "{typed} ends without a word");
        line.trim().to_owned()
    }

    /// A program in the background, whose messages use the network even on this host.
    fn background(&self, typed: &str) -> Command {
        let mut shell = self.program(&["sh", "-c", &format!("exec {typed}")]);
        shell.envs([("WEFT_ADDR", "127.0.0.1"), ("WEFT_LOCAL", "off")]).stderr(Stdio::null());
        shell
    }

    /// Whether make has a rule for it.
    pub fn makes(&self, typed: &str) -> Result<(), String> {
        let dry = typed.replacen("make", "make -n", 1);
        let output = self.shell(&dry).current_dir(root()).output().expect("a shell");
        if output.status.success() {
            Ok(())
        } else {
            Err(said(&output))
        }
    }

    /// Runs a command of a document. An error says what is wrong.
    pub fn run(&mut self, text: &str, exports: &[String]) -> Result<(), String> {
        let plain = text.strip_prefix("sudo ").unwrap_or(text);
        if plain.starts_with("make") {
            let output = self.shell(plain).current_dir(root()).output().expect("a shell");
            return if output.status.success() { Ok(()) } else { Err(said(&output)) };
        }
        let mut typed = self.typed(plain)?;
        if ENDLESS.iter().any(|one| plain == *one || one.starts_with('/') && typed.ends_with(one)) {
            return self.run_for_a_line(&typed, is_for_root(plain));
        }
        for program in WISHED_FOR.iter().filter(|program| !self.has(program)) {
            match typed.split_once(&format!(" | {program}")) {
                Some((before, _)) => typed = before.to_owned(),
                None if typed.starts_with(program) => return Ok(()),
                None => {}
            }
        }
        let exports: String = exports.iter().map(|one| format!("export {one}; ")).collect();
        let output = self.shell(&format!("{exports}{typed}")).output().expect("a shell");
        self.keep_for_the_next();
        let allowed = STATUS.iter().find(|(begins, _)| plain.starts_with(begins)).map(|(_, status)| *status);
        match output.status.code() {
            Some(0) => Ok(()),
            status if status == allowed && !output.stdout.is_empty() => Ok(()),
            _ if is_for_root(plain) && names_the_way_out(&output) => Ok(()),
            status => Err(format!("ends with {status:?} as `{typed}`: {}", said(&output))),
        }
    }

    /// The command with all names replaced, and shortened if it would take long.
    fn typed(&self, plain: &str) -> Result<String, String> {
        if NAMES.contains(&plain) {
            let words = plain.split(' ').filter(|word| !word.starts_with('-') && !word.contains('|'));
            return Ok(format!("{} --help", words.collect::<Vec<_>>().join(" ")));
        }
        let mut typed = plain.to_owned();
        if let Some((_, rest)) = plain.split_once("--example ").filter(|_| plain.starts_with("cargo run ")) {
            let name = rest.split(' ').next().unwrap_or_default();
            if !self.examples.join(name).is_file() {
                return Err(format!("there is no example {name} among those that were built"));
            }
            typed = format!("target/release/examples/{rest}");
        }
        for (shown, bound) in &self.bound {
            typed = typed.replace(shown, bound);
        }
        if let Some((_, more)) = SHORTER.iter().find(|(begins, _)| plain.starts_with(begins)) {
            typed.push_str(more);
        }
        Ok(typed)
    }

    /// Runs an endless command until it prints something, then ends it as Ctrl-C does.
    fn run_for_a_line(&self, typed: &str, may_refuse: bool) -> Result<(), String> {
        let mut shell = self.shell(&format!("exec {typed}"));
        let mut child = shell.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("a shell");
        let mut line = String::new();
        let mut out = BufReader::new(child.stdout.take().expect("it has a pipe"));
        out.read_line(&mut line).expect("it prints text");
        // `timeout` passes the signal on, and kills a command that ignores it. The command must not block on output meanwhile.
        let interrupt = Command::new("kill").args(["-INT", &child.id().to_string()]).stderr(Stdio::null()).status();
        out.read_to_end(&mut Vec::new()).expect("a pipe");
        let output = child.wait_with_output().expect("it is ours");
        if output.status.code() == Some(LATE) {
            return Err("does not end by Ctrl-C".to_owned());
        }
        let is_told = !line.trim().is_empty() && interrupt.is_ok();
        if is_told || may_refuse && names_the_way_out(&output) {
            Ok(())
        } else {
            Err(format!("prints nothing as `{typed}`: {}", said(&output)))
        }
    }

    fn has(&self, program: &str) -> bool {
        self.shell(&format!("command -v {program}")).output().is_ok_and(|output| output.status.success())
    }

    /// If documents compare two measurements, only one is made.
    fn keep_for_the_next(&self) {
        let (made, other) = (self.folder.join("a.json"), self.folder.join("b.json"));
        if made.exists() && !other.exists() {
            std::fs::copy(made, other).expect("a copy");
        }
    }
}

fn is_for_root(plain: &str) -> bool {
    FOR_ROOT.iter().any(|begins| plain.starts_with(begins))
}

/// Whether a refusal says that root is needed, and what to type. Root is not refused.
fn names_the_way_out(output: &Output) -> bool {
    let said = said(output);
    said.contains("needs root") && said.contains("sudo")
}

fn said(output: &Output) -> String {
    let text = [&output.stderr[..], &output.stdout[..]].concat();
    String::from_utf8_lossy(&text).trim().to_owned()
}

/// A port that was free a moment ago.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a loopback interface");
    let address = listener.local_addr().expect("an address");
    TcpStream::connect(address).expect("a loopback interface that is up");
    address.port()
}
