//! What limits the messages from one endpoint to another, judged by two looks from outside.

use crate::daemon::judge_flow;
use crate::status::title;
use serde::Serialize;
use weft::status::{Activity, Bundle, DaemonAnswer, FlowTo, Found, Limit, Path, Peer, Silence};
use weft::Name;

/// What limits messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Held {
    Nothing,
    Window,
    Credit,
    Room,
    Congestion,
    /// The network: nothing comes back.
    Network,
    /// The program at the other end.
    Application,
    /// The program at this end.
    OwnApplication,
    /// There is no session.
    NoSession,
    /// The lack of a frame at weftd.
    Frame,
    /// The endpoint at the other end, served by weftd, has no room.
    Peer,
    /// The quota of its user at weftd.
    Quota,
}

impl Held {
    /// In a word or two.
    pub fn in_words(self) -> &'static str {
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
            Held::Frame => "a frame",
            Held::Peer => "the peer",
            Held::Quota => "a quota",
        }
    }
}

/// The facts about a flow.
pub struct Case<'a> {
    pub bundle: &'a Bundle,
    /// The peer in the earlier look.
    pub before: Option<&'a Peer>,
    pub peer: &'a Peer,
    pub flow: &'a FlowTo,
    /// The receiving process, if it can be looked at.
    pub receiver: Option<&'a Found>,
    /// weftd's answer, if there is one.
    pub daemon: Option<&'a DaemonAnswer>,
}

/// What limits a flow now, and why.
pub fn judge(case: &Case<'_>) -> (Held, String) {
    let Case { bundle, before, peer, flow, receiver, daemon } = case;
    if bundle.activity == Activity::Computes {
        let because =
            "this process computes, and sends and takes nothing; the figures are from its last report. Let it poll or \
                       wait";
        return (Held::OwnApplication, because.to_owned());
    }
    if let Some(told) = daemon.filter(|_| peer.path == Path::Daemon).and_then(|answer| at_daemon(bundle, flow, answer))
    {
        return told;
    }
    let not_taken = peer.written_bytes.saturating_sub(peer.taken_bytes);
    let stands_still = not_taken > 0 && before.is_some_and(|before| before.taken_bytes == peer.taken_bytes);
    if let Some(network) = peer.network.as_ref().filter(|network| network.silences > 0) {
        let because = format!(
            "nothing was heard from {} in time, {} times in a row. Is the host up, and does the network path work?",
            network.address, network.silences
        );
        return (Held::Network, because);
    }
    if stands_still || peer.network.as_ref().is_some_and(|network| network.waits_for_peer) {
        let at = receiver.map_or_else(String::new, |found| format!(" ({}: {})", title(found), state(found)));
        let stopped = receiver.is_some_and(|found| matches!(found.answer, Err(Silence::Stopped(_))));
        let way_out = if stopped { "Let it go on" } else { "Let it poll or wait more often" };
        let because =
            format!("the peer's program does not take what came: {not_taken} bytes wait for it{at}. {way_out}");
        return (Held::Application, because);
    }
    if let Some(parked) = receiver.and_then(|found| parked_at(found, &flow.name)) {
        let because = format!(
            "its endpoint is not served: {parked} messages wait there until its program serves it (set_served)"
        );
        return (Held::Application, because);
    }
    match flow.limit {
        Limit::Window if not_taken == 0 => {
            let because = format!(
                "the peer's program has taken all {} requests but not answered them: it holds the reply tokens, or is slow",
                flow.requests
            );
            (Held::Application, because)
        }
        Limit::Window => {
            let because =
                format!("{} requests are under way, the most that may be: answers set the pace", flow.requests);
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
                Path::Daemon => {
                    "the queue at weftd is full: the endpoint waits for a frame, or the peer takes messages too slowly"
                }
                Path::Network => {
                    "the send buffer for the peer is full: the network or the peer's program is slower than this sender"
                }
            };
            (Held::Room, because.to_owned())
        }
        Limit::Congestion => {
            let bytes = peer.network.as_ref().map_or(0, |network| network.in_flight_bytes);
            (Held::Congestion, format!("{bytes} bytes are under way in the network, which fills the congestion window"))
        }
        Limit::Nothing => (Held::Nothing, "messages are taken at once".to_owned()),
    }
}

/// What limits a flow at weftd, if anything does.
fn at_daemon(bundle: &Bundle, flow: &FlowTo, answer: &DaemonAnswer) -> Option<(Held, String)> {
    let own = bundle.endpoints.iter().find(|endpoint| endpoint.endpoint == flow.endpoint)?;
    judge_flow(&own.name, &flow.name.parse().ok()?, answer)
}

/// Whether two looks show the same session. Sessions that do not use rings belong to one pair of endpoints.
pub fn is_same(before: &Peer, now: &Peer) -> bool {
    fn ends(peer: &Peer) -> Option<(u32, &str)> {
        let to = peer.to.first().map(|flow| (flow.endpoint, flow.name.as_str()));
        to.or_else(|| peer.from.first().map(|flow| (flow.endpoint, flow.name.as_str())))
    }
    (&before.epoch, before.bundle) == (&now.epoch, now.bundle) && (now.bundle.is_some() || ends(before) == ends(now))
}

/// How many messages wait at an endpoint that is not served. `None` if it is served, or its process does not report it.
fn parked_at(found: &Found, name: &str) -> Option<u64> {
    let process = found.answer.as_ref().ok()?;
    let name: Name = name.parse().ok()?;
    let mut endpoints = process.bundles.iter().flat_map(|bundle| &bundle.endpoints);
    endpoints.find(|endpoint| !endpoint.is_served && is_of(&endpoint.name, &name)).map(|endpoint| endpoint.parked)
}

/// Whether a printed name is of this endpoint. The user of a peer on another host is not known, so users are not compared.
pub fn is_of(printed: &str, name: &Name) -> bool {
    printed.parse().is_ok_and(|other: Name| Name { uid: name.uid, ..other } == *name)
}

/// What a process is doing, as far as it reports it.
pub fn state(found: &Found) -> String {
    match &found.answer {
        Ok(process) => match &process.bundles[..] {
            [] => "has no bundle".to_owned(),
            bundles => activity(&bundles[0]),
        },
        Err(silence) => silence.to_string(),
    }
}

/// What a bundle is doing.
pub fn activity(bundle: &Bundle) -> String {
    match bundle.activity {
        Activity::Polls => "polls".to_owned(),
        Activity::Waits => "sleeps in a wait".to_owned(),
        Activity::Computes => "computes, and does not poll".to_owned(),
    }
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
            integrity: weft::Integrity::Full,
            integrity_wanted: weft::Integrity::Full,
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
            packets_refused: 0,
            endpoints: Vec::new(),
            peers: Vec::new(),
            destinations: Vec::new(),
            left_out: 0,
            is_stamping: false,
            stamps: None,
        }
    }

    /// The judgement of a flow whose path looked like this in two looks.
    fn said(activity: Activity, limit: Limit, before: &Peer, peer: &Peer) -> (Held, String) {
        let (bundle, flow) = (bundle(activity), flow(limit));
        judge(&Case { bundle: &bundle, before: Some(before), peer, flow: &flow, receiver: None, daemon: None })
    }

    #[test]
    fn a_path_that_stands_still_is_the_applications_fault_and_a_moving_one_is_limited_by_what_is_full() {
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
    fn a_silent_network_differs_from_a_peer_that_does_not_read() {
        let silent = peer(900, 100, Some(Network { silences: 3, ..network() }));
        let (held, because) = said(Activity::Polls, Limit::Room, &silent, &silent);
        assert!(held == Held::Network && because.contains("10.0.0.1:4000") && because.contains('3'), "{because}");
        let full = peer(900, 400, Some(Network { waits_for_peer: true, ..network() }));
        assert_eq!(said(Activity::Polls, Limit::Room, &peer(900, 100, None), &full).0, Held::Application);
        let busy = peer(900, 400, Some(network()));
        let (held, because) = said(Activity::Polls, Limit::Congestion, &peer(900, 100, None), &busy);
        assert!(held == Held::Congestion && because.contains("1234 bytes"), "{because}");
    }
}
