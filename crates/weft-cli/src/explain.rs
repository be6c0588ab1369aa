//! `weft explain`: which way messages to a name take from here, why, and what limits them now.

use crate::contact::{ContactError, Target};
use crate::error::Error;
use crate::rendezvous;
use crate::status::{title, PATIENCE};
use crate::tell::Form;
use serde::Serialize;
use std::fmt::Write;
use std::str::FromStr;
use std::time::Duration;
use weft::status::{self, Activity, Bundle, FlowTo, Found, Leg, Limit, Look, Path, Peer, Silence, Way};
use weft::Name;

/// Between two looks, which tell what stands still from what moves.
const BETWEEN: Duration = Duration::from_millis(150);

/// How long a host may take to tell a name.
const ASK_MOST: Duration = Duration::from_secs(5);

/// What is said at the end of `--help`.
const HELP: &str = "\
No message is sent. The way is the one that a process of this user would take that has this environment (WEFT_LOCAL, WEFT_ADDR). What \
limits messages is told of this user's processes that have a session with the name, by two looks at them. With HOST:PORT the name is \
first asked for by TCP, at the port of `weft serve`. The exit status is 0 if there is a way, else 1.";

/// What can be asked of `weft explain`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = HELP)]
pub struct Options {
    /// The endpoint's name (a key behind it is not looked at), or the host and the port where `weft serve` runs.
    #[arg(value_name = "NAME|HOST:PORT")]
    to: Whom,
    #[command(flatten)]
    form: Form,
}

/// Who is meant.
#[derive(Clone, Debug)]
enum Whom {
    Endpoint(Name),
    Host(String),
}

impl FromStr for Whom {
    type Err = ContactError;

    fn from_str(text: &str) -> Result<Whom, ContactError> {
        match text.parse() {
            Ok(Target::Endpoint(contact)) => Ok(Whom::Endpoint(contact.name)),
            Ok(Target::Host(host)) => Ok(Whom::Host(host)),
            Err(ContactError::NoKey) => Ok(Whom::Endpoint(text.trim().parse()?)),
            Err(error) => Err(error),
        }
    }
}

/// Everything that is told.
#[derive(Serialize)]
struct Explanation<'a> {
    name: String,
    way: &'a Way,
    /// Why it is this way, or none.
    because: String,
    /// What is known of the endpoint, if its process can be looked at.
    endpoint: Option<Destination>,
    /// This user's processes that send to the name.
    senders: Vec<Sender>,
}

/// The endpoint that a name is of.
#[derive(Clone, PartialEq, Debug, Serialize)]
struct Destination {
    process: String,
    /// What it is at, in words.
    state: String,
    /// Whether the endpoint is there; not known if the process says nothing, or has too many.
    exists: Option<bool>,
    is_served: Option<bool>,
    parked: Option<u64>,
}

/// A process that sends to the name, or wants to.
#[derive(Clone, PartialEq, Debug, Serialize)]
struct Sender {
    process: String,
    bundle: u32,
    endpoint: u32,
    /// What limits it.
    limit: Held,
    /// In words, with what helps.
    because: String,
    /// Its flow, if it has a session.
    flow: Option<FlowTo>,
}

/// What limits messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Held {
    Nothing,
    Window,
    Credit,
    Room,
    Congestion,
    /// The network is silent.
    Network,
    /// The program at the other end.
    Application,
    /// The program at this end.
    OwnApplication,
    /// There is no session.
    NoSession,
}

/// Explains.
pub fn run(options: &Options) -> Result<(), Error> {
    let name = match &options.to {
        Whom::Endpoint(name) => *name,
        Whom::Host(host_and_port) => rendezvous::ask(host_and_port, ASK_MOST)?.name,
    };
    let way = status::way_to(&name)?;
    let first = status::look(PATIENCE)?;
    std::thread::sleep(BETWEEN);
    let second = status::look(PATIENCE)?;
    let explanation = Explanation {
        name: name.to_string(),
        way: &way,
        because: way.why.to_string(),
        endpoint: destination(&second, &name),
        senders: senders(&first, &second, &name),
    };
    options.form.tell(&explanation, || text(&explanation))?;
    match way.path {
        Some(_) => Ok(()),
        None => Err(Error::NoWay(way.why)),
    }
}

fn destination(look: &Look, name: &Name) -> Option<Destination> {
    let found = look.processes.iter().find(|found| found.epoch == epoch(name))?;
    let mut told =
        Destination { process: title(found), state: state(found), exists: None, is_served: None, parked: None };
    let Ok(process) = &found.answer else { return Some(told) };
    let endpoint = process.bundles.iter().flat_map(|b| b.endpoints.iter().map(move |e| (b, e)));
    match endpoint.into_iter().find(|(_, e)| is(&e.name, name)) {
        Some((bundle, endpoint)) => {
            told.state = activity(bundle);
            (told.exists, told.is_served, told.parked) = (Some(true), Some(endpoint.is_served), Some(endpoint.parked));
        }
        None => {
            let knows_all =
                process.left_out == 0 && process.bundles.iter().all(|b| b.left_out == 0 && b.age_ms.is_some());
            told.exists = knows_all.then_some(false);
        }
    }
    Some(told)
}

/// What a process is at, as far as it says so.
fn state(found: &Found) -> String {
    match &found.answer {
        Ok(process) => match &process.bundles[..] {
            [] => "has no bundle".to_owned(),
            bundles => activity(&bundles[0]),
        },
        Err(silence) => silence.to_string(),
    }
}

fn activity(bundle: &Bundle) -> String {
    match bundle.activity {
        Activity::Polls => "polls".to_owned(),
        Activity::Waits => "sleeps in a wait".to_owned(),
        Activity::Computes => "computes, and does not poll".to_owned(),
    }
}

/// Who sends to a name, and what limits that, by two looks.
fn senders(first: &Look, second: &Look, name: &Name) -> Vec<Sender> {
    let receiver = second.processes.iter().find(|found| found.epoch == epoch(name));
    let mut senders = Vec::new();
    for found in &second.processes {
        let Ok(process) = &found.answer else { continue };
        let before = first.processes.iter().find(|f| f.epoch == found.epoch).and_then(|f| f.answer.as_ref().ok());
        for bundle in &process.bundles {
            let before = before.and_then(|process| process.bundles.iter().find(|b| b.bundle == bundle.bundle));
            let flows = bundle.peers.iter().flat_map(|peer| peer.to.iter().map(move |flow| (peer, flow)));
            for (peer, flow) in flows.filter(|(_, flow)| is(&flow.name, name)) {
                let before =
                    before.and_then(|b| b.peers.iter().find(|p| (&p.epoch, p.bundle) == (&peer.epoch, peer.bundle)));
                let (limit, because) = judge(&Case { bundle, before, peer, flow, receiver });
                senders.push(Sender {
                    process: title(found),
                    bundle: bundle.bundle,
                    endpoint: flow.endpoint,
                    limit,
                    because,
                    flow: Some(flow.clone()),
                });
            }
            for entry in bundle.destinations.iter().filter(|entry| is(&entry.name, name)) {
                senders.push(Sender {
                    process: title(found),
                    bundle: bundle.bundle,
                    endpoint: entry.endpoint,
                    limit: Held::NoSession,
                    because: match &entry.refused {
                        Some(reason) => format!("the last call was refused: {reason}"),
                        None => "it is being called, and has not answered yet".to_owned(),
                    },
                    flow: None,
                });
            }
        }
    }
    senders
}

/// What is known of a flow.
struct Case<'a> {
    bundle: &'a Bundle,
    /// The peer in the first look.
    before: Option<&'a Peer>,
    peer: &'a Peer,
    flow: &'a FlowTo,
    /// The process that it goes to, if it can be looked at.
    receiver: Option<&'a Found>,
}

/// What limits a flow now, and why.
fn judge(case: &Case<'_>) -> (Held, String) {
    let Case { bundle, before, peer, flow, receiver } = case;
    if bundle.activity == Activity::Computes {
        let because = "this process computes, and sends and takes nothing; what follows is what it last reported. Have it poll or \
                       wait";
        return (Held::OwnApplication, because.to_owned());
    }
    let not_taken = peer.written_bytes.saturating_sub(peer.taken_bytes);
    let stands_still = not_taken > 0 && before.is_some_and(|before| before.taken_bytes == peer.taken_bytes);
    if let Some(network) = peer.network.as_ref().filter(|network| network.silences > 0) {
        let because = format!(
            "nothing was heard from {} in time, {} times in a row: is the host up, and the way through?",
            network.address, network.silences
        );
        return (Held::Network, because);
    }
    if stands_still || peer.network.as_ref().is_some_and(|network| network.waits_for_peer) {
        let at = receiver.map_or_else(String::new, |found| format!(" ({}: {})", title(found), state(found)));
        let stopped = receiver.is_some_and(|found| matches!(found.answer, Err(Silence::Stopped(_))));
        let way_out = if stopped { "Let it go on" } else { "Have it poll or wait more often" };
        let because =
            format!("the peer's program does not take what came: {not_taken} bytes wait for it{at}. {way_out}");
        return (Held::Application, because);
    }
    match flow.limit {
        Limit::Window if not_taken == 0 => {
            let because = format!(
                "the peer's program has taken all {} requests and not answered them: it keeps the right to reply, or is slow",
                flow.requests
            );
            (Held::Application, because)
        }
        Limit::Window => {
            let because = format!("{} requests are under way, as many as may be: answers set the pace", flow.requests);
            (Held::Window, because)
        }
        Limit::Credit => {
            let because = "the receiver granted no more one-way messages: its endpoint is not served, or its handlers are slower \
                           than this sender";
            (Held::Credit, because.to_owned())
        }
        Limit::Room => {
            let because = match peer.path {
                Path::Memory => "the ring to the peer is full: its program takes messages slower than they come",
                Path::Network => "as much is kept for the peer as may be until it says what it took: the network or its program is slower",
            };
            (Held::Room, because.to_owned())
        }
        Limit::Congestion => {
            let bytes = peer.network.as_ref().map_or(0, |network| network.in_flight_bytes);
            (Held::Congestion, format!("{bytes} bytes are under way in the network, as many as may be"))
        }
        Limit::Nothing => (Held::Nothing, "messages are taken at once".to_owned()),
    }
}

fn text(told: &Explanation<'_>) -> String {
    let mut text = String::new();
    let way = match told.way.path {
        Some(Path::Memory) => "through memory",
        Some(Path::Network) => "over UDP",
        None => "no way",
    };
    let _ = writeln!(text, "{}\n  path: {way}: {}", told.name, told.because);
    told.way.addresses.iter().for_each(|leg| _ = writeln!(text, "    {}", leg_in_words(leg)));
    match (&told.endpoint, &told.way.holder) {
        (Some(endpoint), _) => {
            let _ = writeln!(text, "  its process: {}: {}", endpoint.process, endpoint.state);
            match (endpoint.exists, endpoint.is_served) {
                (Some(false), _) => {
                    text.push_str("  the endpoint is not there: it was freed; ask its owner for a present name\n")
                }
                (_, Some(false)) => {
                    let _ =
                        writeln!(text, "  the endpoint is not served; {} messages wait", endpoint.parked.unwrap_or(0));
                }
                _ => {}
            }
        }
        (None, Some(holder)) => {
            let program = holder.program.as_deref().unwrap_or("a program that is not seen here");
            let _ = writeln!(text, "  its process: {program}, user {}; it cannot be looked at", holder.uid);
        }
        (None, None) => {}
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
    }
    text
}

impl Held {
    fn in_words(self) -> &'static str {
        match self {
            Held::Nothing => "nothing",
            Held::Window => "the window",
            Held::Credit => "credit",
            Held::Room => "room",
            Held::Congestion => "congestion",
            Held::Network => "the network",
            Held::Application => "the application there",
            Held::OwnApplication => "the application here",
            Held::NoSession => "set-up",
        }
    }
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

/// Whether a printed name is of the same endpoint. What is not known of a peer on another host is its user.
fn is(printed: &str, name: &Name) -> bool {
    printed.parse().is_ok_and(|other: Name| Name { uid: name.uid, ..other } == *name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft::status::{Counters, Network};

    fn flow(limit: Limit) -> FlowTo {
        FlowTo {
            endpoint: 0,
            name: String::new(),
            sent: 0,
            requests_sent: 32,
            requests: 32,
            requests_most: 32,
            credit_messages: 1,
            credit_bytes: 64,
            unstored: 0,
            wants_room: true,
            limit,
        }
    }

    fn peer(written_bytes: u64, taken_bytes: u64, network: Option<Network>) -> Peer {
        Peer {
            path: if network.is_some() { Path::Network } else { Path::Memory },
            epoch: String::new(),
            bundle: None,
            uid: None,
            address: None,
            written_bytes,
            taken_bytes,
            has_room: true,
            backlog: 0,
            backlog_bytes: 0,
            network,
            to: Vec::new(),
            from: Vec::new(),
        }
    }

    fn network() -> Network {
        Network {
            address: "10.0.0.1:4000".into(),
            round_trip_us: None,
            least_round_trip_us: None,
            in_flight_bytes: 1234,
            window_bytes: 1234,
            packet_bytes: 1472,
            has_unsent: false,
            waits_for_peer: false,
            silences: 0,
            packets_sent: 0,
            packets_received: 0,
            packets_lost: 0,
            packets_late: 0,
            timeouts: 0,
            packets_dropped: 0,
        }
    }

    fn bundle(activity: Activity) -> Bundle {
        Bundle {
            bundle: 0,
            activity,
            age_ms: Some(0),
            counters: Counters::default(),
            unsettled: 0,
            packets_damaged: 0,
            endpoints: Vec::new(),
            peers: Vec::new(),
            destinations: Vec::new(),
            left_out: 0,
        }
    }

    /// What is said of a flow whose path was seen like this in two looks.
    fn said(activity: Activity, limit: Limit, before: &Peer, peer: &Peer) -> (Held, String) {
        let (bundle, flow) = (bundle(activity), flow(limit));
        judge(&Case { bundle: &bundle, before: Some(before), peer, flow: &flow, receiver: None })
    }

    #[test]
    fn what_does_not_move_is_the_applications_and_what_does_is_limited_by_what_says_full() {
        use Activity::{Computes, Polls};
        let moving = (peer(500, 100, None), peer(900, 400, None));
        for (limit, held) in [
            (Limit::Nothing, Held::Nothing),
            (Limit::Window, Held::Window),
            (Limit::Credit, Held::Credit),
            (Limit::Room, Held::Room),
            (Limit::Congestion, Held::Congestion),
        ] {
            assert_eq!(said(Polls, limit, &moving.0, &moving.1).0, held);
            assert_eq!(said(Computes, limit, &moving.0, &moving.1).0, Held::OwnApplication);
            let still = said(Polls, limit, &peer(500, 100, None), &peer(600, 100, None));
            assert!(still.0 == Held::Application && still.1.contains("500 bytes wait"), "{still:?}");
        }
        let kept = said(Polls, Limit::Window, &peer(500, 500, None), &peer(500, 500, None));
        assert!(kept.0 == Held::Application && kept.1.contains("32 requests"), "{kept:?}");
        assert_eq!(said(Polls, Limit::Nothing, &peer(500, 500, None), &peer(500, 500, None)).0, Held::Nothing);
    }

    #[test]
    fn a_silent_network_is_told_from_a_peer_that_does_not_read() {
        let silent = peer(900, 100, Some(Network { silences: 3, ..network() }));
        let (held, because) = said(Activity::Polls, Limit::Room, &silent, &silent);
        assert!(held == Held::Network && because.contains("10.0.0.1:4000") && because.contains('3'), "{because}");
        let full = peer(900, 400, Some(Network { waits_for_peer: true, ..network() }));
        assert_eq!(said(Activity::Polls, Limit::Room, &peer(900, 100, None), &full).0, Held::Application);
        let busy = peer(900, 400, Some(network()));
        let (held, because) = said(Activity::Polls, Limit::Congestion, &peer(900, 100, None), &busy);
        assert!(held == Held::Congestion && because.contains("1234 bytes"), "{because}");
    }

    #[test]
    fn a_name_may_have_its_key_behind_it_or_not() {
        let name = "weft1:AQA0EugDAAAIBwYFBAMCASoAAAAAAAAAAAAAAAAA__8KAAABAAAAAA";
        for text in [name.to_owned(), format!("{name}#ff"), format!(" {name}\n")] {
            assert!(matches!(text.parse(), Ok(Whom::Endpoint(found)) if is(name, &found)), "{text}");
        }
        assert!(matches!("loom:4000".parse(), Ok(Whom::Host(_))));
        assert!("weft1:AQ".parse::<Whom>().is_err());
    }
}
