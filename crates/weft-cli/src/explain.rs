//! `weft explain`: which path messages to a name take from here, why, and what limits them now.

use crate::contact::{Target, TargetError};
use crate::daemon;
use crate::error::Error;
use crate::held::{activity, is_of, is_same, judge, state, Case, Held};
use crate::output::note_line;
use crate::regions;
use crate::status::{title, PATIENCE};
use crate::tell::Form;
use serde::Serialize;
use std::fmt::Write;
use std::str::FromStr;
use std::time::Duration;
use weft::names::{Contact, ContactError};
use weft::status::{self, DaemonAnswer, EndpointStatus, FlowTo, Leg, Look, Network, Path, Peer, RemoteMemory, Way};
use weft::{Integrity, Key, Name, Reason};

/// Time between the two looks, which shows what moves and what does not.
const BETWEEN: Duration = Duration::from_millis(150);

/// How long a host may take to give a name.
const ASK_MOST: Duration = Duration::from_secs(5);

/// Text after the options in `--help`.
const HELP: &str = "\
No message is sent. The path is the one that a process of this user with this environment (WEFT_LOCAL, WEFT_ADDR) would take. Limits \
are reported for this user's processes that have a session with the name, by two looks at them. With HOST:PORT the name is \
first asked for by TCP, at the port where a program tells it (`weft serve`, or any `NameServer`); HOST:PORT/LABEL asks for another \
name there. The exit status is 0 if there is a path, else 1.";

/// The arguments of `weft explain`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = HELP)]
pub struct Options {
    /// The endpoint's name (a key behind it is ignored), or the host and port where its program gives it; or the reason for which
    /// an operation or a message failed, such as Revoked or 19.
    #[arg(value_name = "NAME|HOST:PORT|REASON")]
    to: Whom,
    #[command(flatten)]
    form: Form,
}

/// What is to be explained.
#[derive(Clone, Debug)]
enum Whom {
    /// The way to an endpoint. The key may be missing.
    Endpoint(Target),
    /// A reason.
    Reason(Named),
}

/// A reason with its name in programs.
#[derive(Clone, Copy, Debug)]
struct Named {
    name: &'static str,
    reason: Reason,
}

macro_rules! reasons {
    ($($name:ident,)*) => {
        /// All reasons, in the order of their numbers.
        const REASONS: &[Named] = &[$(Named { name: stringify!($name), reason: Reason::$name },)*];
    };
}

reasons! {
    WrongKey, NoSuchEndpoint, NoHandler, QueueFull, PeerLost, NobodyThere, Version, ForeignUser, Violation, NoRoom, WrongOwner,
    WrongEpoch, Closed, Silent, PeerLimit, OwnDescriptors, OwnMemory, OwnFileSize, Revoked, NoRegion, OutsideRegion, NoRight,
    Unaligned, BadOffset, BadLength,
}

/// A reason as programs and people write it: its name, with or without spaces and capitals, or its number.
fn reason(text: &str) -> Option<Named> {
    let plain = |text: &str| text.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_ascii_lowercase();
    let wanted = plain(text);
    let is_it = |named: &&Named| plain(named.name) == wanted || (named.reason as u8).to_string() == wanted;
    REASONS.iter().find(is_it).copied()
}

impl FromStr for Whom {
    type Err = String;

    fn from_str(text: &str) -> Result<Whom, String> {
        if let Some(reason) = reason(text) {
            return Ok(Whom::Reason(reason));
        }
        target(text).map(Whom::Endpoint).map_err(|error| match is_word(text) {
            true => format!("{error}. It is no reason either; {}", reasons_near(text)),
            false => error.to_string(),
        })
    }
}

/// The endpoint, whose key may be missing.
fn target(text: &str) -> Result<Target, TargetError> {
    match text.parse() {
        Err(TargetError::Contact(ContactError::NoKey) | TargetError::NoPort) => {
            let name = text.trim().parse().map_err(ContactError::from)?;
            Ok(Target::Endpoint(Contact { name, key: Key::NONE }))
        }
        other => other,
    }
}

/// Whether it can be a mistyped reason: a name or a host with a port has more than letters.
fn is_word(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphabetic())
}

/// The reasons that begin as this word does; all if there are none.
fn reasons_near(word: &str) -> String {
    let begins = |named: &&Named| {
        word.get(..2).is_some_and(|start| named.name.get(..2).is_some_and(|two| two.eq_ignore_ascii_case(start)))
    };
    let near: Vec<&str> = REASONS.iter().filter(begins).map(|named| named.name).collect();
    match near.is_empty() {
        true => format!("the reasons are {}", REASONS.iter().map(|named| named.name).collect::<Vec<_>>().join(", ")),
        false => format!("near it: {}", near.join(", ")),
    }
}

/// Everything that is reported.
#[derive(Serialize)]
struct Explanation<'a> {
    name: String,
    way: &'a Way,
    /// Why messages take this path, or none.
    because: String,
    /// What is known of the endpoint, if its process can be looked at.
    endpoint: Option<Destination>,
    /// What weftd knows of the endpoint, if it serves it.
    daemon: Option<Served>,
    /// This user's processes that send to the name.
    senders: Vec<Sender>,
}

/// The endpoint of the name.
#[derive(Clone, PartialEq, Debug, Serialize)]
struct Destination {
    process: String,
    /// What its process is doing, in words.
    state: String,
    /// Whether the endpoint exists. `None` if the process does not say, or has too many endpoints to tell.
    exists: Option<bool>,
    is_served: Option<bool>,
    parked: Option<u64>,
    /// Its state, if it is for remote memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<RemoteMemory>,
}

/// An endpoint that weftd serves.
#[derive(Clone, PartialEq, Debug, Serialize)]
struct Served {
    /// The daemon, in words.
    by: String,
    endpoint: EndpointStatus,
    /// What limits the endpoint itself.
    limited_by: Held,
    /// The same in words, with what helps.
    because: String,
}

/// A process that sends to the name, or is calling it.
#[derive(Clone, PartialEq, Debug, Serialize)]
struct Sender {
    process: String,
    bundle: u32,
    endpoint: u32,
    /// What limits it.
    limit: Held,
    /// The same in words, with what helps.
    because: String,
    /// Its flow, if it has a session.
    flow: Option<FlowTo>,
    /// What checksums cover, if it goes over the network.
    #[serde(flatten)]
    integrity: Option<Agreed>,
}

/// What the two sides of a channel agreed on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
struct Agreed {
    /// What checksums cover.
    integrity: Integrity,
    /// What this side asked for.
    integrity_wanted: Integrity,
}

impl Agreed {
    /// For the channel to a peer: the bundle's own, or weftd's to the host of this name.
    fn of(peer: &Peer, name: &Name, daemon: Option<&DaemonAnswer>) -> Option<Agreed> {
        if let Some(Network { integrity, integrity_wanted, .. }) = peer.network {
            return Some(Agreed { integrity, integrity_wanted });
        }
        let addresses: Vec<String> = name.address.each().map(|address| format!("{address:?}")).collect();
        let daemon = daemon.filter(|_| peer.path == Path::Daemon)?;
        let host = daemon.hosts.iter().find(|host| addresses.contains(&host.address))?;
        Some(Agreed { integrity: host.integrity, integrity_wanted: host.integrity_wanted })
    }

    fn in_words(self) -> &'static str {
        match (self.integrity, self.integrity_wanted) {
            (Integrity::Header, _) => "header (payloads are left to UDP's checksum and the link)",
            (Integrity::Full, Integrity::Full) => "full",
            (Integrity::Full, Integrity::Header) => "full (this side asked for header, and the peer did not)",
        }
    }
}

/// A reason, as it is reported.
#[derive(Serialize)]
struct Meaning {
    reason: &'static str,
    /// Its number in Rust and, except for limits of this process itself, on the wire.
    number: u8,
    because: String,
}

/// Explains.
pub fn run(options: &Options) -> Result<(), Error> {
    match &options.to {
        Whom::Endpoint(target) => explain_way(options, target),
        &Whom::Reason(Named { name, reason }) => {
            let told = Meaning { reason: name, number: reason as u8, because: reason.to_string() };
            options.form.tell(&told, || format!("{name} ({}): {}\n", told.number, told.because))
        }
    }
}

fn explain_way(options: &Options, target: &Target) -> Result<(), Error> {
    let name = target.find(ASK_MOST)?.name;
    if let Some(doubt) = target.doubt(&name) {
        note_line(format!("weft explain: {doubt}"));
    }
    let way = status::way_to(&name)?;
    let first = status::look(PATIENCE)?;
    std::thread::sleep(BETWEEN);
    let second = status::look(PATIENCE)?;
    let (at_daemon, served) = daemon::look_at_name(&name)?.unzip();
    let answer = at_daemon.as_ref().and_then(|found| found.answer.as_ref().ok());
    let served = at_daemon.as_ref().zip(answer).zip(served.flatten()).map(|((found, answer), endpoint)| {
        let (limited_by, because) = daemon::judge(&endpoint, answer);
        Served { by: daemon::title(found), endpoint, limited_by, because }
    });
    let explanation = Explanation {
        name: name.to_string(),
        way: &way,
        because: way.why.to_string(),
        endpoint: destination(&second, &name),
        daemon: served,
        senders: senders(&first, &second, answer, &name),
    };
    options.form.tell(&explanation, || text(&explanation))?;
    match way.path {
        Some(_) => Ok(()),
        None => Err(Error::NoWay(way.why)),
    }
}

fn destination(look: &Look, name: &Name) -> Option<Destination> {
    let found = look.processes.iter().find(|found| found.epoch == epoch(name))?;
    let mut told = Destination {
        process: title(found),
        state: state(found),
        exists: None,
        is_served: None,
        parked: None,
        memory: None,
    };
    let Ok(process) = &found.answer else { return Some(told) };
    let endpoint = process.bundles.iter().flat_map(|b| b.endpoints.iter().map(move |e| (b, e)));
    match endpoint.into_iter().find(|(_, e)| is_of(&e.name, name)) {
        Some((bundle, endpoint)) => {
            told.state = activity(bundle);
            (told.exists, told.is_served, told.parked) = (Some(true), Some(endpoint.is_served), Some(endpoint.parked));
            told.memory = endpoint.memory.clone();
        }
        None => {
            let knows_all =
                process.left_out == 0 && process.bundles.iter().all(|b| b.left_out == 0 && b.age_ms.is_some());
            told.exists = knows_all.then_some(false);
        }
    }
    Some(told)
}

/// The processes that send to a name, and what limits them, from two looks.
fn senders(first: &Look, second: &Look, daemon: Option<&DaemonAnswer>, name: &Name) -> Vec<Sender> {
    let receiver = second.processes.iter().find(|found| found.epoch == epoch(name));
    let mut senders = Vec::new();
    for found in &second.processes {
        let Ok(process) = &found.answer else { continue };
        let before = first.processes.iter().find(|f| f.epoch == found.epoch).and_then(|f| f.answer.as_ref().ok());
        for bundle in &process.bundles {
            let before = before.and_then(|process| process.bundles.iter().find(|b| b.bundle == bundle.bundle));
            let flows = bundle.peers.iter().flat_map(|peer| peer.to.iter().map(move |flow| (peer, flow)));
            for (peer, flow) in flows.filter(|(_, flow)| is_of(&flow.name, name)) {
                let before = before.and_then(|b| b.peers.iter().find(|p| is_same(p, peer)));
                let (limit, because) = judge(&Case { bundle, before, peer, flow, receiver, daemon });
                senders.push(Sender {
                    process: title(found),
                    bundle: bundle.bundle,
                    endpoint: flow.endpoint,
                    limit,
                    because,
                    flow: Some(flow.clone()),
                    integrity: Agreed::of(peer, name, daemon),
                });
            }
            for entry in bundle.destinations.iter().filter(|entry| is_of(&entry.name, name)) {
                let is_refused = entry.refused.as_ref() == Some(&Reason::NoRoom.to_string());
                let used_up = daemon.filter(|_| is_refused).and_then(|answer| daemon::used_up(found.uid, answer));
                senders.push(Sender {
                    process: title(found),
                    bundle: bundle.bundle,
                    endpoint: entry.endpoint,
                    limit: if used_up.is_some() { Held::Quota } else { Held::NoSession },
                    because: match (used_up, &entry.refused) {
                        (Some(quota), _) => quota,
                        (None, Some(reason)) => format!("the last call was refused: {reason}"),
                        (None, None) => "it is being called, and has not answered yet".to_owned(),
                    },
                    flow: None,
                    integrity: None,
                });
            }
        }
    }
    senders
}

fn text(told: &Explanation<'_>) -> String {
    let mut text = String::new();
    let way = match told.way.path {
        Some(Path::Memory) => "through memory",
        Some(Path::Network) => "over UDP",
        Some(Path::Daemon) => "through weftd",
        None => "no way",
    };
    let _ = writeln!(text, "{}\n  path: {way}: {}", told.name, told.because);
    told.way.addresses.iter().for_each(|leg| _ = writeln!(text, "    {}", leg_in_words(leg)));
    match (&told.endpoint, &told.way.holder) {
        (Some(endpoint), _) => {
            let _ = writeln!(text, "  its process: {}: {}", endpoint.process, endpoint.state);
            match (endpoint.exists, endpoint.is_served) {
                (Some(false), _) => {
                    text.push_str("  the endpoint is not there: it was freed; ask its owner for its present name\n")
                }
                (_, Some(false)) => {
                    let _ =
                        writeln!(text, "  the endpoint is not served; {} messages wait", endpoint.parked.unwrap_or(0));
                }
                _ => {}
            }
            for line in endpoint.memory.iter().flat_map(regions::lines) {
                let _ = writeln!(text, "  {line}");
            }
            if endpoint.memory.as_ref().is_some_and(|memory| memory.counters.refused_revoked > 0) {
                let _ = writeln!(text, "  {}", Reason::Revoked);
            }
        }
        (None, Some(holder)) => {
            let program = holder.program.as_deref().unwrap_or("an unknown program");
            let _ = writeln!(text, "  its process: {program}, user {}; it cannot be looked at", holder.uid);
        }
        (None, None) => {}
    }
    if let Some(Served { by, endpoint, limited_by, because }) = &told.daemon {
        let _ =
            writeln!(text, "  served by {by}: {}, of process {}", daemon::state(endpoint), daemon::process(endpoint));
        let _ = writeln!(text, "  the endpoint there: limited by {}: {because}", limited_by.in_words());
    }
    if told.senders.is_empty() {
        text.push_str("  limited by: no process of this user sends there now\n");
    }
    for sender in &told.senders {
        let _ = writeln!(
            text,
            "  from {}, endpoint {}: limited by {}: {}",
            sender.process,
            sender.endpoint,
            sender.limit.in_words(),
            sender.because
        );
        if let Some(agreed) = sender.integrity {
            let _ = writeln!(text, "    integrity: {}", agreed.in_words());
        }
    }
    text
}

fn leg_in_words(leg: &Leg) -> String {
    let Some(from) = &leg.from else {
        return format!("to {}: no route: {}", leg.to, leg.error.as_deref().unwrap_or_default());
    };
    let interface = leg.interface.as_deref().unwrap_or("an interface");
    let mtu = leg.mtu.map_or_else(String::new, |mtu| format!(", MTU {mtu}"));
    format!("to {} from {from} ({interface}{mtu})", leg.to)
}

fn epoch(name: &Name) -> String {
    format!("{:016x}", name.epoch.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_have_its_key_behind_it_or_not() {
        let name = "weft1:AQA0EugDAAAIBwYFBAMCASoAAAAAAAAAAAAAAAAA__8KAAABAAAAAA";
        for text in [name.to_owned(), format!("{name}#ff"), format!(" {name}\n")] {
            assert!(
                matches!(text.parse(), Ok(Whom::Endpoint(Target::Endpoint(found))) if is_of(name, &found.name)),
                "{text}"
            );
        }
        assert!(matches!("loom:4000".parse(), Ok(Whom::Endpoint(Target::Host(_)))));
        assert!("weft1:AQ".parse::<Whom>().is_err());
    }

    #[test]
    fn every_reason_is_known_by_name_and_number() {
        assert_eq!(REASONS.iter().map(|named| named.reason).collect::<Vec<_>>(), Reason::ALL);
        for Named { name, reason: expected } in REASONS {
            for text in [name.to_string(), (*expected as u8).to_string()] {
                assert!(reason(&text).is_some_and(|found| found.reason == *expected), "{text}");
            }
        }
        assert!(reason("no region").is_some_and(|found| found.reason == Reason::NoRegion));
        for wrong in ["", "0", "26", "119", "revoke"] {
            assert!(reason(wrong).is_none(), "{wrong}");
        }
    }
}
