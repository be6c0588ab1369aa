//! Two hosts and a wire.

use super::messages;
use super::support::{again, left_out, memory_of, tell, turn, wait_until, Orders, Peer, LONG};
use rustix::process::{kill_process, Pid, Signal};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;

/// The interface of each host. Names that begin with `veth` are taken for containers' interfaces.
pub const INTERFACE: &str = "weft0";

/// Runs `ip` with these arguments.
pub fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output().expect("ip, of iproute2");
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A host: runs `ip` orders until one of [`messages`] comes.
pub fn host(orders: Orders) {
    tell("there");
    while let Some(line) = orders.wait() {
        let (word, rest) = line.split_once(' ').unwrap_or((&line, ""));
        match word {
            "ip" => {
                ip(rest);
                tell("done");
            }
            "carrier" => {
                wait_for_carrier(rest);
                tell("done");
            }
            "write" => {
                let (path, value) = rest.split_once(' ').expect("a file and a value");
                std::fs::write(path, value).expect("a setting of this network namespace");
                tell("done");
            }
            "doctor" => tell(network_check()),
            _ => return messages::play(word, rest, orders),
        }
    }
}

/// The finding of `weft doctor` about this host's network.
fn network_check() -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_weft")).args(["doctor", "--json"]).output().expect("it was built");
    let document: Value = serde_json::from_slice(&output.stdout).expect("a document");
    let findings = document["findings"].as_array().expect("a list").iter();
    let found = findings.filter(|finding| finding["check"] == "network").find_map(|finding| finding["found"].as_str());
    found.expect("the check is there").to_owned()
}

pub fn wait_for_carrier(interface: &str) {
    wait_until("a carrier", || {
        let output = Command::new("ip").args(["-br", "link", "show", interface]).output().expect("ip, of iproute2");
        String::from_utf8_lossy(&output.stdout).split_whitespace().nth(1) == Some("UP")
    });
}

/// Runs a test in a network namespace of its own, if possible.
pub fn in_lab(test: &str, run: impl FnOnce()) {
    let ways: [&[&str]; 2] = [&["unshare", "--net"], &["unshare", "--user", "--map-root-user", "--net"]];
    let works = |way: &&[&str]| {
        let output = Command::new(way[0]).args(&way[1..]).args(["ip", "link", "set", "lo", "up"]).output();
        output.is_ok_and(|output| output.status.success())
    };
    let Some(way) = ways.into_iter().find(works) else {
        let _turn = turn(test);
        return left_out(&format!("{test}: no network namespace is to be had here, not as an ordinary user either"));
    };
    let Some(_turn) = again(test, way, &[]) else { return };
    ip("link set lo up");
    run();
}

/// The same for a test of `make soak`, which may take an hour.
pub fn in_lab_for_long(test: &str, run: impl FnOnce()) {
    std::env::set_var(LONG, "3600");
    in_lab(test, run);
}

/// Two hosts, connected to `a0` and `b0` here.
pub struct Lab {
    pub a: Peer,
    pub b: Peer,
}

pub const ADDRESSES: [&str; 2] = ["10.77.0.1", "10.77.0.2"];

impl Lab {
    pub fn new(mtu: u32) -> Lab {
        let [mut a, mut b] = [Host("a0"), Host("b0")].map(|host| host.start(mtu));
        for (host, address) in [&mut a, &mut b].into_iter().zip(ADDRESSES) {
            obey(host, &format!("ip addr add {address}/24 dev {INTERFACE}"));
            obey(host, &format!("ip link set {INTERFACE} address {} gso_max_segs 1 up", mac(address)));
        }
        // ARP asks only once per second; if that packet is lost, nothing else gets through until the next try.
        for (host, other) in [(&mut a, ADDRESSES[1]), (&mut b, ADDRESSES[0])] {
            obey(host, &format!("ip neigh replace {other} lladdr {} dev {INTERFACE} nud permanent", mac(other)));
        }
        for (host, own) in [(&mut a, "a0"), (&mut b, "b0")] {
            ip(&format!("link set {own} addrgenmode none up"));
            wait_for_carrier(own);
            obey(host, &format!("carrier {INTERFACE}"));
        }
        Lab { a, b }
    }
}

/// The Ethernet address of a host.
fn mac(address: &str) -> String {
    format!("02:00:00:00:00:0{}", address.rsplit('.').next().expect("an address"))
}

struct Host(&'static str);

impl Host {
    /// A process in a network namespace of its own, with one end of an interface pair.
    fn start(self, mtu: u32) -> Peer {
        let Host(own) = self;
        let mut command = Command::new("unshare");
        command.arg("--net").arg(std::env::current_exe().expect("this program"));
        let host = Peer::start_by(command, "host", &[], &[]);
        assert_eq!(host.hear(), "there");
        // The interface of an earlier lab may still exist: the kernel removes it some time after the host's last process.
        let _ = Command::new("ip").args(["link", "del", own]).stderr(Stdio::null()).status();
        ip(&format!("link add {own} mtu {mtu} type veth peer name {INTERFACE} mtu {mtu} netns {}", host.id()));
        host
    }
}

/// Gives a host an order without a result.
pub fn obey(host: &mut Peer, order: &str) {
    assert_eq!(host.ask(order), "done", "{order}");
}

/// `weft wire` between the two.
pub struct Wire {
    child: Child,
    json: PathBuf,
    /// Its output at its end.
    said: Option<JoinHandle<Vec<String>>>,
}

impl Wire {
    /// Starts it with these arguments, which contain no blanks.
    pub fn start(words: &str) -> Wire {
        let json = std::env::temp_dir().join(format!("weft-wire-{}.json", std::process::id()));
        let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
        command.args(["wire", "a0", "b0", "--json"]).arg(&json).args(words.split_whitespace());
        let mut child = command.stderr(Stdio::piped()).spawn().expect("it was built");
        let mut said = BufReader::new(child.stderr.take().expect("it has a pipe")).lines().map_while(Result::ok);
        assert!(said.any(|line| line.starts_with("weft: forwarding")), "weft wire {words} does not begin");
        let said = Some(std::thread::spawn(move || said.collect()));
        Wire { child, json, said }
    }

    /// Its memory, in KiB.
    pub fn resident(&self) -> u64 {
        memory_of(self.child.id(), "VmRSS")
    }

    /// Ends it as Ctrl-C does, and returns the counts of both directions.
    pub fn stop(mut self) -> Counts {
        kill_process(Pid::from_child(&self.child), Signal::INT).expect("it lives");
        assert!(self.child.wait().expect("it is ours").success());
        let text = std::fs::read_to_string(&self.json).expect("it wrote its counts");
        Counts(serde_json::from_str(&text).expect("JSON"))
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.json);
        let said = self.said.take().and_then(|said| said.join().ok()).unwrap_or_default();
        if std::thread::panicking() {
            eprintln!("{}", said.join("\n"));
        }
    }
}

/// The counts of a wire.
pub struct Counts(Value);

impl Counts {
    /// The sum of both directions.
    pub fn sum(&self, what: &str) -> u64 {
        [0, 1].map(|way| self.of(way, what)).iter().sum()
    }

    pub fn of(&self, way: usize, what: &str) -> u64 {
        self.0["directions"][way][what].as_u64().unwrap_or_else(|| panic!("no count {what}: {}", self.0))
    }
}
