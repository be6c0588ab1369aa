//! What the commands report of remote memory, compared with what was done to it; and that they reveal no secret.

mod support;

use serde_json::Value;
use std::collections::BTreeSet;
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use support::{err, out};
use weft::memory::{
    Atomic, Change, Completion, Cookie, Outcome, Part, Place, RegionId, RegionKey, Rights, Settings, Type, Window,
    Write,
};
use weft::{Bundle, Endpoint, Key, Node, Reason, SharedBundle};

const KEY: Key = Key(0x5eed_0ff0_dead_1e57);
const REGION: RegionKey = RegionKey(0x5ec2_e75e_c2e7_0bad);
const LENT: RegionKey = RegionKey(0x1e27_5ec2_e7f0_0d42);

const BOUND: Duration = Duration::from_secs(20);

fn weft(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_weft")).args(arguments).output().expect("it was built")
}

/// The output of a command.
fn say(arguments: &[&str]) -> String {
    let output = weft(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", err(&output));
    out(&output) + &err(&output)
}

/// One test at a time: requests of this process are traced.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An owner of regions and a user of them, both in this process.
struct Pair {
    _alone: MutexGuard<'static, ()>,
    owner: SharedBundle,
    regions: Endpoint,
    user: Bundle,
    me: Endpoint,
}

impl Pair {
    fn new() -> Pair {
        let alone = alone();
        let owner = SharedBundle::serviced(&Node::new().expect("a node")).expect("a bundle");
        let regions = owner.memory_endpoint(KEY, Settings::default()).expect("an endpoint");
        let mut user = Bundle::new(&Node::new().expect("a node")).expect("a bundle");
        let me = user.memory_endpoint(Key(2), Settings::default()).expect("an endpoint");
        user.map(me, 0, owner.name(regions).expect("ours"), KEY).expect("mapped");
        Pair { _alone: alone, owner, regions, user, me }
    }

    fn name(&self) -> String {
        self.owner.name(self.regions).expect("ours").to_string()
    }

    fn with<R>(&self, calls: impl FnOnce(&mut weft::memory::Memory<'_>) -> R) -> R {
        self.owner.with_memory(self.regions, calls).expect("ours")
    }

    /// The completion of the only operation under way.
    fn end(&mut self) -> Completion {
        let since = Instant::now();
        loop {
            self.user.wait(Some(Duration::from_millis(10)));
            if let Some(end) = self.user.memory(self.me).expect("ours").next_completion() {
                return end;
            }
            assert!(since.elapsed() < BOUND, "an operation does not end");
        }
    }

    fn write(&mut self, place: Place, bytes: &[u8]) -> Outcome {
        let write = Write::to(place).with_notice(7);
        self.user.memory(self.me).expect("ours").try_write(0, write, bytes.to_vec(), 1).expect("room");
        self.end().outcome
    }

    fn read(&mut self, place: Place, len: usize) -> Outcome {
        self.user.memory(self.me).expect("ours").try_read(0, place, vec![0; len], 2).expect("room");
        self.end().outcome
    }
}

/// The entry of an endpoint in a document of `weft status`.
fn find<'a>(document: &'a Value, name: &str) -> &'a Value {
    let bundles = lists(document, |process| &process["status"]["bundles"]);
    let mut endpoints = bundles.flat_map(|bundle| bundle["endpoints"].as_array()).flatten();
    endpoints.find(|endpoint| endpoint["name"] == name).expect("the endpoint is told")
}

/// The lists of all processes in a document.
fn lists<'a>(document: &'a Value, of: impl Fn(&'a Value) -> &'a Value) -> impl Iterator<Item = &'a Value> {
    let processes = document["processes"].as_array().expect("a list").iter();
    processes.filter_map(move |process| of(process).as_array()).flatten()
}

fn failed(reason: Reason) -> impl Fn(Outcome) -> bool {
    move |outcome| matches!(outcome, Outcome::Failed { reason: why, .. } if why == reason)
}

/// The forms in which a secret might be printed.
fn forms(number: u64) -> Vec<String> {
    let bytes = number.to_le_bytes();
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let swapped: Vec<u8> = bytes.iter().rev().copied().collect();
    let listed = |bytes: &[u8]| bytes.iter().map(u8::to_string).collect::<Vec<_>>().join(",");
    vec![number.to_string(), (number as i64).to_string(), hex(&bytes), hex(&swapped), listed(&bytes), listed(&swapped)]
}

/// The secrets that a text reveals.
fn told<'a>(said: &str, secrets: &'a [String]) -> Vec<&'a str> {
    let plain = said.to_ascii_lowercase().replace([' ', '\n'], "");
    secrets.iter().filter(|secret| plain.contains(&secret.to_ascii_lowercase())).map(String::as_str).collect()
}

fn secrets(cookies: &[Cookie]) -> Vec<String> {
    let mut secrets: Vec<String> = [KEY.0, REGION.0, LENT.0].into_iter().flat_map(forms).collect();
    for cookie in cookies {
        let bytes = cookie.to_bytes();
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        // The index before the secret is not secret.
        secrets.extend([4, 12].into_iter().flat_map(|at| forms(word(at))));
        secrets.push(cookie.to_string().split_off("weftc1:".len() + 6));
    }
    secrets
}

#[test]
fn regions_and_what_peers_did_are_told_and_no_secret_is() {
    let mut pair = Pair::new();
    let (region, gone, cookies) = pair.with(|memory| {
        let (region, _) = memory.allocate(8192, REGION, Rights::ALL).expect("room");
        let lent = Window::leaked(vec![0; 100].into());
        memory.open(lent, LENT, Rights::READ).expect("room");
        let (gone, _) = memory.allocate(64, RegionKey(3), Rights::ALL).expect("room");
        let part = |at| Part { at, len: 64 };
        let cookies = [0, 64, 128].map(|at| memory.cookie(region, part(at), Rights::ALL).expect("room"));
        assert!(memory.revoke_cookie(cookies[2]));
        (region, gone, cookies)
    });
    assert_ne!(region, gone);
    for at in 0..3 {
        assert_eq!(pair.write(Place::new(REGION, 8 * at), &[1; 8]), Outcome::Done);
    }
    assert_eq!(pair.write(Place::new(cookies[0], 0), &[2; 16]), Outcome::Done);
    assert_eq!(pair.read(Place::new(LENT, 50), 50), Outcome::Done);
    assert!(failed(Reason::NoRight)(pair.write(Place::new(LENT, 0), b"x")));
    assert!(failed(Reason::OutsideRegion)(pair.read(Place::new(LENT, 51), 50)));
    assert!(pair.with(|memory| memory.revoke(gone)));
    assert!(failed(Reason::Revoked)(pair.read(Place::new(RegionKey(3), 0), 8)));
    assert!(failed(Reason::Revoked)(pair.read(Place::new(cookies[2], 0), 8)));

    let said = say(&["status", "--json"]);
    let document: Value = serde_json::from_str(&said).expect("JSON");
    let memory = &find(&document, &pair.name())["memory"];
    let expected = serde_json::json!({
        "regions": 2, "bytes": 8292, "revoked": 1, "cookies": 2,
        "largest": [
            { "index": 0, "bytes": 8192, "can_read": true, "can_write": true, "can_atomic": true, "is_lent": false, "mapped": 0 },
            { "index": 1, "bytes": 100, "can_read": true, "can_write": false, "can_atomic": false, "is_lent": true, "mapped": 0 },
        ],
        "counters": {
            "writes": 4, "reads": 1, "atomics": 0, "bytes_written": 40, "pulls": 0, "bytes_pulled": 0, "bytes_read": 50,
            "refused": 4, "refused_revoked": 2, "direct": 0,
        },
        "notices": 4, "pending": 0, "completions": 0,
    });
    assert_eq!(memory, &expected);
    let lines = [
        "remote memory: 2 regions, 8.10 KiB, 1 revoked, 2 cookies, 4 notices not taken",
        "by peers: 4 writes (40 B), 1 read (50 B), 4 refused (2 of what was revoked)",
        "region 0: 8.00 KiB, weft's, read write atomic",
        "region 1: 100 B, lent, read",
    ];
    for command in [&["status"][..], &["explain", &pair.name()]] {
        let text = say(command);
        assert!(lines.iter().all(|line| text.contains(line)), "{text}");
    }
    let explained: Value = serde_json::from_str(&out(&weft(&["explain", "--json", &pair.name()]))).expect("JSON");
    assert_eq!(explained["endpoint"]["memory"], expected);
    let top = say(&["top", "--once", "--interval", "0.1"]);
    assert!(top.contains("remote memory: 2 regions, 8.10 KiB, writes"), "{top}");
    let document: Value = serde_json::from_str(&out(&weft(&["top", "--once", "--json"]))).expect("JSON");
    let rows: Vec<&Value> = lists(&document, |process| &process["bundles"])
        .flat_map(|bundle| bundle["memory"].as_array())
        .flatten()
        .collect();
    let row = rows.iter().find(|row| row["bytes"] == 8292).expect("the endpoint");
    assert_eq!((&row["rates"]["writes"], &row["counters"]), (&0.0.into(), &expected["counters"]));

    let secrets = secrets(&cookies);
    // The checker finds a planted secret.
    assert_eq!(told(&format!("x{}y", cookies[0]), &secrets).len(), 1);
    assert_eq!(told(&format!("{:?}", REGION.0.to_le_bytes()), &secrets).len(), 1);
    assert_eq!(told(&format!("{KEY:016X?}{:016x}", KEY.0), &secrets).len(), 1);
    let name = pair.name();
    let all: [&[&str]; 7] = [
        &["status"],
        &["status", "--json"],
        &["top", "--once", "--interval", "0.1"],
        &["top", "--once", "--interval", "0.1", "--json"],
        &["explain", &name],
        &["explain", "--json", &name],
        &["doctor"],
    ];
    for command in all {
        let output = weft(command);
        assert_eq!(told(&(out(&output) + &err(&output)), &secrets), Vec::<&str>::new(), "{command:?} tells secrets");
    }
}

/// The output of `weft trace --stages` while a peer reads, writes and changes words of a region by its key and by a cookie.
fn traced(pair: &mut Pair, cookie: Cookie, arguments: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
    // Other processes of this user may have requests, too.
    let this = std::process::id().to_string();
    command.args(["trace", "--stages", "--count", "60", &this]).args(arguments);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it was built");
    let (user, me) = (&mut pair.user, pair.me);
    let since = Instant::now();
    while child.try_wait().expect("it is ours").is_none() {
        assert!(since.elapsed() < BOUND, "{arguments:?}: no operations are told");
        user.write(me, 0, Write::to(Place::new(cookie, 8)), [1; 8]).expect("allowed");
        user.read(me, 0, Place::new(REGION, 0), 64).expect("allowed");
        let change = Change { place: Place::new(REGION, 16), atomic: Atomic::Add, of: Type::U64 };
        user.change(me, 0, change, &[1, 0, 0, 0, 0, 0, 0, 0], &[]).expect("allowed");
        std::thread::sleep(Duration::from_micros(200)); // others want the processor, too
    }
    let output = child.wait_with_output().expect("it is ours");
    assert!(output.status.success(), "{}", err(&output));
    out(&output) + &err(&output)
}

#[test]
fn operations_are_traced_with_their_stages_and_region_and_without_secrets() {
    let mut pair = Pair::new();
    let cookie = pair.with(|memory| {
        memory.open(Window::create(64).expect("memory"), LENT, Rights::READ).expect("room");
        // A lent region, which no peer maps: all operations are requests.
        let window = Window::leaked(vec![0; 4096].into());
        let region = memory.open(window, REGION, Rights::ALL).expect("room");
        memory.cookie(region, Part { at: 0, len: 4096 }, Rights::WRITE).expect("room")
    });
    let lines = traced(&mut pair, cookie, &["--json"]);
    let told_of = |line: &str| serde_json::from_str::<Value>(line).ok().filter(|line| line["kind"] == "request");
    let requests: Vec<Value> =
        lines.lines().filter_map(told_of).filter(|line| line.get("operation").is_some()).collect();
    let operations: BTreeSet<&str> = requests.iter().filter_map(|line| line["operation"].as_str()).collect();
    assert_eq!(operations, BTreeSet::from(["change", "read", "write"]), "{lines}");
    for request in &requests {
        assert_eq!(request["region"], 1, "{request}");
        let stages = request["stages_ns"].as_object().expect("stages");
        let sum: u64 = stages.values().filter_map(Value::as_u64).sum();
        assert!(stages.len() == 6 && request["round_trip_ns"] == sum, "{request}");
    }
    let table = traced(&mut pair, cookie, &[]);
    for operation in ["read", "write", "change"] {
        let title = |line: &str| {
            line.contains(", memory: ") && line.contains(&format!(" {operation}")) && line.ends_with(" of region 1")
        };
        assert!(table.lines().any(title), "no {operation}: {table}");
    }
    let secrets = secrets(&[cookie]);
    for said in [&lines, &table] {
        assert_eq!(told(said, &secrets), Vec::<&str>::new(), "{said}");
    }
}

#[test]
fn an_initiator_tells_what_is_under_way() {
    let _alone = alone();
    let mut owner = Bundle::new(&Node::new().expect("a node")).expect("a bundle");
    let there = owner.memory_endpoint(KEY, Settings::default()).expect("an endpoint");
    owner.memory(there).expect("ours").allocate(64, REGION, Rights::ALL).expect("room");
    let mut user = Bundle::new(&Node::new().expect("a node")).expect("a bundle");
    let me = user.memory_endpoint(Key(2), Settings::default()).expect("an endpoint");
    user.map(me, 0, owner.name(there).expect("ours"), KEY).expect("mapped");
    for context in 1..=3 {
        user.memory(me).expect("ours").try_read(0, Place::new(REGION, 0), vec![0; 8], context).expect("room");
        let since = Instant::now();
        // The owner polls until the first two operations have ended, and then stops.
        while context < 3 && user.memory(me).expect("ours").pending(0) > 0 {
            owner.poll();
            user.poll();
            assert!(since.elapsed() < BOUND);
        }
    }
    let name = user.name(me).expect("ours").to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
    let child = command.args(["status", "--json"]).stdout(Stdio::piped()).spawn().expect("it was built");
    let asks =
        std::thread::Builder::new().spawn(move || child.wait_with_output().expect("it is ours")).expect("a thread");
    while !asks.is_finished() {
        user.poll();
    }
    let document: Value = serde_json::from_str(&out(&asks.join().expect("no panic"))).expect("JSON");
    let memory = &find(&document, &name)["memory"];
    assert_eq!((&memory["pending"], &memory["completions"], &memory["regions"]), (&1.into(), &2.into(), &0.into()));
}

#[test]
fn as_many_regions_as_there_may_be_make_the_document_no_longer() {
    let pair = Pair::new();
    // Only of this endpoint: other tests have endpoints in this process.
    let length = |said: &str| find(&serde_json::from_str(said).expect("JSON"), &pair.name()).to_string().len();
    let few = length(&say(&["status", "--json"]));
    let regions: Vec<RegionId> = pair.with(|memory| {
        let (first, window) = memory.allocate(1 << 20, RegionKey(0), Rights::ALL).expect("room");
        let more = (1..1 << 16).map(|key| memory.open(window.clone(), RegionKey(key), Rights::ALL).expect("room"));
        std::iter::once(first).chain(more).collect()
    });
    let said = say(&["status", "--json"]);
    let many = length(&said);
    assert!(many < few + 4096, "{many} bytes and {few} before");
    let document: Value = serde_json::from_str(&said).expect("JSON");
    let memory = &find(&document, &pair.name())["memory"];
    assert_eq!((&memory["regions"], &memory["bytes"]), (&65_536.into(), &(1u64 << 36).into()));
    assert_eq!(memory["largest"].as_array().map(Vec::len), Some(8));
    assert!(say(&["status"]).contains("and 65528 smaller regions of 64.0 GiB in all"));
    pair.with(|memory| regions.iter().for_each(|&region| assert!(memory.revoke(region))));
    let document: Value = serde_json::from_str(&say(&["status", "--json"])).expect("JSON");
    let memory = &find(&document, &pair.name())["memory"];
    assert_eq!((&memory["regions"], &memory["bytes"], &memory["revoked"]), (&0.into(), &0.into(), &65_536.into()));
}

#[test]
fn reasons_are_explained_by_name_and_number() {
    for (asked, says) in [
        ("Revoked", "Revoked (19): revoked: the region is closed"),
        ("20", "NoRegion (20): no region: the endpoint has none"),
        ("outside-region", "OutsideRegion (21): outside: the range leaves the region"),
        ("no right", "NoRight (22): no right: the region or the cookie"),
        ("unaligned", "Unaligned (23): unaligned: atomic operations need words"),
    ] {
        assert!(say(&["explain", asked]).contains(says), "{asked}: {}", say(&["explain", asked]));
    }
    let told: Value = serde_json::from_str(&say(&["explain", "--json", "NoRight"])).expect("JSON");
    assert_eq!((&told["reason"], &told["number"]), (&"NoRight".into(), &22.into()));
}
