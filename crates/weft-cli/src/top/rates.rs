//! What changed between two looks: processes, their bundles and peers, their rates, and what limits them.

use super::daemon::{compare as compare_daemon, DaemonRow};
use super::Sight;
use crate::held::{is_same, judge, Case, Held};
use crate::status::{title, who};
use serde::Serialize;
use std::time::Duration;
use weft::status::{
    Activity, Bundle, Counters, Endpoint, FlowTo, Found, Look, Path, Peer, RemoteMemory, RemoteMemoryCounters,
};

/// Two reports closer than this are the same one, or too close for a rate.
const APART_LEAST: Duration = Duration::from_millis(20);

/// Everything that is shown of one moment.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Picture {
    /// Processes of this user; of all users if root asks.
    pub processes: Vec<ProcessRow>,
    /// weftd, if there is one.
    pub daemon: Option<DaemonRow>,
    /// Nodes of other users, which are not shown.
    pub of_others: usize,
    /// Nodes that cannot be asked, of any user.
    pub without_helper: usize,
}

/// A node of a process.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ProcessRow {
    pub pid: Option<u32>,
    pub program: Option<String>,
    pub uid: u32,
    pub epoch: String,
    /// The process, for display.
    #[serde(skip)]
    pub title: String,
    /// Why it did not answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub silent: Option<String>,
    pub bundles: Vec<BundleRow>,
}

/// A bundle.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct BundleRow {
    pub bundle: u32,
    pub activity: Activity,
    /// The age of the rest.
    pub age_ms: Option<u64>,
    pub endpoints: usize,
    /// Endpoints that are not served, and the messages that wait there.
    pub not_served: usize,
    pub parked: u64,
    /// Messages per second. `None` if there are no two reports to compare.
    pub rates: Option<Rates>,
    /// Its endpoints for remote memory.
    pub memory: Vec<MemoryRow>,
    pub peers: Vec<PeerRow>,
    /// Rows that the process left out.
    pub left_out: u64,
}

/// Messages per second.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Rates {
    pub sent: f64,
    pub requests_sent: f64,
    pub replies_sent: f64,
    pub delivered: f64,
    pub requests_delivered: f64,
    pub replies_delivered: f64,
    pub returned: f64,
    /// Sends refused for lack of room or credit.
    pub full: f64,
}

impl Rates {
    /// All messages sent.
    pub fn out(&self) -> f64 {
        self.sent + self.requests_sent + self.replies_sent
    }

    /// All messages delivered.
    pub fn came(&self) -> f64 {
        self.delivered + self.requests_delivered + self.replies_delivered
    }
}

/// An endpoint for remote memory.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct MemoryRow {
    pub endpoint: u32,
    /// Peers' operations per second. `None` if there are no two reports to compare.
    pub rates: Option<MemoryRates>,
    #[serde(flatten)]
    pub told: RemoteMemory,
}

/// Peers' operations on regions, per second.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct MemoryRates {
    pub writes: f64,
    pub reads: f64,
    /// Atomic operations; all others are in the fields above.
    pub atomics: f64,
    pub bytes_written: f64,
    pub bytes_read: f64,
    pub refused: f64,
}

/// A bundle with which there is a session.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct PeerRow {
    /// The process, if it was found too, or its epoch.
    pub peer: String,
    pub path: Path,
    pub address: Option<String>,
    /// Bytes per second written to the path to the peer, with headers and padding.
    pub bytes_per_s: Option<f64>,
    /// Bytes that the peer's program has not taken.
    pub not_taken_bytes: u64,
    /// The peer's requests that were not answered.
    pub asking: u32,
    pub round_trip_us: Option<f64>,
    pub in_flight_bytes: Option<u64>,
    pub window_bytes: Option<u64>,
    pub flows: Vec<FlowRow>,
}

/// A flow from one of the bundle's endpoints to one of the peer's.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct FlowRow {
    /// Requests and one-way messages per second.
    pub messages_per_s: Option<f64>,
    pub limited_by: Held,
    /// The same in words, with what helps.
    pub because: String,
    #[serde(flatten)]
    pub flow: FlowTo,
}

/// What changed between two looks. Without a first one there are no rates.
pub fn compare(first: Option<&Sight>, second: &Sight) -> Picture {
    let processes = second.look.processes.iter().map(|found| {
        let before = first.and_then(|first| first.look.processes.iter().find(|before| before.epoch == found.epoch));
        process(before, found, second)
    });
    let Look { of_others, without_helper, .. } = second.look;
    let daemon =
        second.daemon.as_ref().map(|found| compare_daemon(first.and_then(|first| first.daemon.as_ref()), found));
    Picture { processes: processes.collect(), daemon, of_others, without_helper }
}

fn process(before: Option<&Found>, found: &Found, sight: &Sight) -> ProcessRow {
    let bundles = found.answer.iter().flat_map(|process| &process.bundles).map(|bundle| {
        let earlier = before.and_then(|before| Some((before, before.answer.as_ref().ok()?)));
        let earlier =
            earlier.and_then(|(at, process)| Some((at, process.bundles.iter().find(|b| b.bundle == bundle.bundle)?)));
        let apart = earlier.and_then(|(before, earlier)| apart((before, earlier), (found, bundle)));
        describe(&Two { before: earlier.map(|(_, earlier)| earlier), bundle, apart, sight })
    });
    ProcessRow {
        pid: found.pid,
        program: found.program.clone(),
        uid: found.uid,
        epoch: found.epoch.clone(),
        title: title(found),
        silent: found.answer.as_ref().err().map(ToString::to_string),
        bundles: bundles.collect(),
    }
}

/// The time between two reports of a bundle, if it is known.
fn apart(before: (&Found, &Bundle), now: (&Found, &Bundle)) -> Option<Duration> {
    let made = |(found, bundle): (&Found, &Bundle)| found.at.checked_sub(Duration::from_millis(bundle.age_ms?));
    made(now)?.checked_duration_since(made(before)?).filter(|apart| *apart >= APART_LEAST)
}

/// A bundle in two looks.
struct Two<'a> {
    before: Option<&'a Bundle>,
    bundle: &'a Bundle,
    apart: Option<Duration>,
    sight: &'a Sight,
}

impl Two<'_> {
    /// A rate. `None` if the counter started anew.
    fn rate(&self, before: u64, now: u64) -> Option<f64> {
        Some(now.checked_sub(before)? as f64 / self.apart?.as_secs_f64())
    }
}

fn describe(two: &Two<'_>) -> BundleRow {
    let Two { before, bundle, .. } = *two;
    BundleRow {
        bundle: bundle.bundle,
        activity: bundle.activity,
        age_ms: bundle.age_ms,
        endpoints: bundle.endpoints.len(),
        not_served: bundle.endpoints.iter().filter(|endpoint| !endpoint.is_served).count(),
        parked: bundle.endpoints.iter().map(|endpoint| endpoint.parked).sum(),
        rates: before.and_then(|before| rates(two, &before.counters)),
        memory: bundle.endpoints.iter().filter_map(|endpoint| describe_memory(two, endpoint)).collect(),
        peers: bundle.peers.iter().map(|peer| describe_peer(two, peer)).collect(),
        left_out: bundle.left_out,
    }
}

fn rates(two: &Two<'_>, before: &Counters) -> Option<Rates> {
    let now = &two.bundle.counters;
    Some(Rates {
        sent: two.rate(before.sent, now.sent)?,
        requests_sent: two.rate(before.requests_sent, now.requests_sent)?,
        replies_sent: two.rate(before.replies_sent, now.replies_sent)?,
        delivered: two.rate(before.delivered, now.delivered)?,
        requests_delivered: two.rate(before.requests_delivered, now.requests_delivered)?,
        replies_delivered: two.rate(before.replies_delivered, now.replies_delivered)?,
        returned: two.rate(before.returned, now.returned)?,
        full: two.rate(before.full, now.full)?,
    })
}

fn describe_memory(two: &Two<'_>, endpoint: &Endpoint) -> Option<MemoryRow> {
    let told = endpoint.memory.clone()?;
    let earlier = two.before.and_then(|before| before.endpoints.iter().find(|e| e.name == endpoint.name));
    let rates = earlier.and_then(|earlier| memory_rates(two, &earlier.memory.as_ref()?.counters, &told.counters));
    Some(MemoryRow { endpoint: endpoint.endpoint, rates, told })
}

fn memory_rates(two: &Two<'_>, before: &RemoteMemoryCounters, now: &RemoteMemoryCounters) -> Option<MemoryRates> {
    Some(MemoryRates {
        writes: two.rate(before.writes, now.writes)?,
        reads: two.rate(before.reads, now.reads)?,
        atomics: two.rate(before.atomics, now.atomics)?,
        bytes_written: two.rate(before.bytes_written, now.bytes_written)?,
        bytes_read: two.rate(before.bytes_read, now.bytes_read)?,
        refused: two.rate(before.refused, now.refused)?,
    })
}

fn describe_peer(two: &Two<'_>, peer: &Peer) -> PeerRow {
    let Two { before, bundle, sight: Sight { look, daemon }, .. } = *two;
    let before = before.and_then(|b| b.peers.iter().find(|p| is_same(p, peer)));
    let receiver = look.processes.iter().find(|found| found.epoch == peer.epoch);
    let daemon = daemon.as_ref().and_then(|found| found.answer.as_ref().ok());
    let network = peer.network.as_ref();
    let flows = peer.to.iter().map(|flow| {
        let (limited_by, because) = judge(&Case { bundle, before, peer, flow, receiver, daemon });
        let earlier =
            before.and_then(|before| before.to.iter().find(|f| (f.endpoint, &f.name) == (flow.endpoint, &flow.name)));
        let sent = |flow: &FlowTo| flow.sent.saturating_add(flow.requests_sent);
        let messages_per_s = earlier.and_then(|earlier| two.rate(sent(earlier), sent(flow)));
        FlowRow { messages_per_s, limited_by, because, flow: flow.clone() }
    });
    PeerRow {
        peer: who(peer, look),
        path: peer.path,
        address: network.map(|network| network.address.clone()),
        bytes_per_s: before.and_then(|before| two.rate(before.written_bytes, peer.written_bytes)),
        not_taken_bytes: peer.written_bytes.saturating_sub(peer.taken_bytes),
        asking: peer.from.iter().fold(0, |sum, flow| flow.requests.saturating_add(sum)),
        round_trip_us: network.and_then(|network| network.round_trip_us),
        in_flight_bytes: network.map(|network| network.in_flight_bytes),
        window_bytes: network.map(|network| network.window_bytes),
        flows: flows.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;
    use weft::status::{Limit, Process, VERSION};

    fn flow(sent: u64, requests_sent: u64) -> FlowTo {
        FlowTo {
            endpoint: 0,
            name: "there".to_owned(),
            sent,
            requests_sent,
            requests: 0,
            requests_most: 32,
            credit_messages: 1,
            credit_bytes: 64,
            unstored: 0,
            wants_room: false,
            limit: Limit::Nothing,
        }
    }

    /// An endpoint for remote memory that peers wrote to `writes` times, 8 bytes each.
    fn memory(writes: u64) -> Endpoint {
        let counters = RemoteMemoryCounters { writes, bytes_written: 8 * writes, ..Default::default() };
        let memory = Some(RemoteMemory { regions: 1, counters, ..Default::default() });
        Endpoint { endpoint: 3, name: "memory".to_owned(), is_served: true, parked: 0, memory }
    }

    /// A process whose one bundle has sent this much to one peer.
    fn look(at: Instant, age_ms: u64, sent: u64, bytes: u64) -> Sight {
        let peer = Peer {
            path: Path::Memory,
            epoch: "b".to_owned(),
            bundle: Some(0),
            uid: None,
            address: None,
            written_bytes: bytes,
            taken_bytes: bytes,
            has_room: true,
            backlog: 0,
            backlog_bytes: 0,
            network: None,
            to: vec![flow(sent, 2 * sent)],
            from: Vec::new(),
        };
        let bundle = Bundle {
            bundle: 0,
            activity: Activity::Polls,
            age_ms: Some(age_ms),
            counters: Counters { sent, requests_sent: 2 * sent, ..Counters::default() },
            unsettled: 0,
            packets_damaged: 0,
            packets_refused: 0,
            endpoints: vec![memory(sent)],
            peers: vec![peer],
            destinations: Vec::new(),
            left_out: 0,
            is_stamping: false,
            stamps: None,
        };
        let (weft, epoch) = (String::new(), "a".to_owned());
        let process = Process {
            version: VERSION,
            weft,
            pid: 1,
            uid: 0,
            epoch: epoch.clone(),
            bundles: vec![bundle],
            left_out: 0,
        };
        let found = Found { epoch, pid: Some(1), uid: 0, program: None, at, answer: Ok(process) };
        Sight { look: Look { processes: vec![found], ..Look::default() }, daemon: None }
    }

    /// The rates of messages of the bundle, and of messages and bytes of its flow.
    fn rates(first: &Sight, second: &Sight) -> [Option<f64>; 3] {
        let picture = compare(Some(first), second);
        let bundle = &picture.processes[0].bundles[0];
        [bundle.rates.map(|rates| rates.out()), bundle.peers[0].flows[0].messages_per_s, bundle.peers[0].bytes_per_s]
    }

    #[test]
    fn rates_are_what_was_counted_between_two_reports_however_late_they_were_told() {
        let begin = Instant::now() + Duration::from_secs(10);
        let ms = Duration::from_millis;
        let first = look(begin, 0, 100, 1000);
        let expected = [Some(1500.0), Some(1500.0), Some(4000.0)];
        assert_eq!(rates(&first, &look(begin + ms(1000), 0, 600, 5000)), expected);
        // The same moment, reported half a second later.
        assert_eq!(rates(&first, &look(begin + ms(1500), 500, 600, 5000)), expected);
    }

    #[test]
    fn rates_of_remote_memory_are_told_of_its_endpoint() {
        let begin = Instant::now() + Duration::from_secs(10);
        let (first, second) = (look(begin, 0, 100, 0), look(begin + Duration::from_secs(2), 0, 600, 0));
        let row = |picture: Picture| picture.processes[0].bundles[0].memory[0].clone();
        let MemoryRow { endpoint, rates, told } = row(compare(Some(&first), &second));
        let expected = MemoryRates { writes: 250.0, bytes_written: 2000.0, ..MemoryRates::default() };
        assert_eq!((endpoint, rates, told.counters.writes), (3, Some(expected), 600));
        assert_eq!(row(compare(None, &second)).rates, None);
        assert_eq!(row(compare(Some(&second), &first)).rates, None, "it was restarted");
    }

    #[test]
    fn the_same_report_and_one_that_began_anew_have_no_rates() {
        let begin = Instant::now() + Duration::from_secs(10);
        let first = look(begin, 0, 100, 1000);
        assert_eq!(rates(&first, &look(begin + Duration::from_secs(1), 1000, 100, 1000)), [None; 3]);
        assert_eq!(rates(&first, &look(begin + Duration::from_secs(1), 0, 7, 64)), [None; 3]);
        let alone = compare(None, &first);
        assert_eq!(alone.processes[0].bundles[0].rates, None);
        assert_eq!(alone.processes[0].bundles[0].peers[0].flows.len(), 1);
    }
}
