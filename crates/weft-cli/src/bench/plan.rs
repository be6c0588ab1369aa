//! What is measured, and in which order: systems that are compared run one after the other.

use super::results::{Metric, Way};
use super::talk::Waiting;
use super::ucx::{Api, Question};

/// Sizes of round trips.
pub const RTT_SIZES: [usize; 8] = [8, 16, 64, 256, 1024, 4096, 8192, 65536];

/// Sizes of one-way transfers.
pub const BANDWIDTH_SIZES: [usize; 5] = [256, 512, 1024, 8192, 65536];

/// Sizes of round trips with a goal relative to UCX, which are therefore also measured through UCX with receivers that read.
pub const READ_SIZES: [usize; 5] = [64, 256, 1024, 4096, 8192];

/// Sizes of round trips that are measured again without reading the bytes.
pub const UNREAD_SIZES: [usize; 3] = [1024, 4096, 8192];

/// The size at which rates, overheads and many peers are measured.
pub const SMALL: usize = 16;

/// The size at which bandwidths are compared.
pub const LARGE: usize = 65536;

/// The kernel's channels.
const CHANNELS: [&str; 4] = ["pipe", "unix", "tcp", "udp"];

/// A group of figures that the user can select.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Group {
    /// Round trips of requests and replies.
    Rtt,
    /// Messages per second.
    Rate,
    /// Bytes per second, and the size of half of it.
    Bandwidth,
    /// Overheads, latency and gap by the LogP model.
    Logp,
    /// Many peers, an endpoint that is not served, and peers that are killed.
    Peers,
}

/// The systems that are measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum System {
    /// weft itself.
    Weft,
    /// The limits of the machine.
    Limits,
    /// The kernel's pipes and sockets.
    Kernel,
    /// UCX, if it is installed.
    Ucx,
}

/// A thing to run in each round.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Probe {
    /// weft's round trip.
    RoundTrip(usize),
    /// weft's round trip of bytes that nobody reads.
    UnreadRoundTrip(usize),
    /// weft's round trip between processes that wait.
    WaitingRoundTrip(usize, Waiting),
    /// weft's one-way rate.
    Rate(usize),
    /// weft's requests answered per second.
    RequestRate(usize),
    /// weft's one-way bandwidth.
    Bandwidth(usize),
    /// weft's overheads of sending and receiving.
    Overheads(usize),
    /// weft's round trip with one of this many peers.
    Peers(usize, Way),
    /// weft's round trip beside an endpoint that is not served.
    BesideUnserved(usize),
    /// weft's round trip beside others that are killed.
    BesideDeaths(usize),
    /// weft's round trip with a shared bundle.
    Shared(usize),
    /// weft's round trip with a process of another trusted class.
    ForeignRoundTrip(usize),
    /// weft's one-way bandwidth from a process of another trusted class.
    ForeignBandwidth(usize),
    /// weft's round trip with another user's process.
    OtherUserRoundTrip(usize),
    /// weft's one-way bandwidth from another user's process.
    OtherUserBandwidth(usize),
    /// weft's round trip between bundles with one endpoint or many.
    Endpoints(usize, Way),
    /// A limit program, with its arguments.
    Limit { program: &'static str, size: usize, window: Option<u32>, way: Way },
    /// One of the kernel's channels.
    Kernel { program: &'static str, size: usize, how: String },
    /// UCX, measured by its own benchmark.
    Ucx(Question),
    /// A round trip through UCX whose receivers read.
    UcxRead { api: Api, size: usize },
}

impl Probe {
    /// The system that it measures.
    pub fn system(&self) -> System {
        match self {
            Probe::Limit { .. } => System::Limits,
            Probe::Kernel { .. } => System::Kernel,
            Probe::Ucx(_) | Probe::UcxRead { .. } => System::Ucx,
            _ => System::Weft,
        }
    }

    /// Its text in the progress bar.
    pub fn title(&self) -> String {
        match self {
            Probe::RoundTrip(size) => format!("weft, round trip of {size} B"),
            Probe::UnreadRoundTrip(size) => format!("weft, round trip of {size} B unread"),
            Probe::WaitingRoundTrip(size, _) => format!("weft, round trip of {size} B, waiting"),
            Probe::Rate(size) => format!("weft, messages of {size} B"),
            Probe::RequestRate(size) => format!("weft, requests of {size} B"),
            Probe::Bandwidth(size) => format!("weft, bandwidth at {size} B"),
            Probe::Overheads(_) => "weft, overheads (LogP)".to_owned(),
            Probe::Peers(..) => "weft, many peers".to_owned(),
            Probe::BesideUnserved(_) => "weft, beside an endpoint that is not served".to_owned(),
            Probe::BesideDeaths(_) => "weft, beside others that are killed".to_owned(),
            Probe::Shared(size) => format!("weft, round trip of {size} B, shared bundle"),
            Probe::ForeignRoundTrip(size) => format!("weft, round trip of {size} B, foreign"),
            Probe::ForeignBandwidth(size) => format!("weft, bandwidth at {size} B, foreign"),
            Probe::OtherUserRoundTrip(size) => format!("weft, round trip of {size} B, another user"),
            Probe::OtherUserBandwidth(size) => format!("weft, bandwidth at {size} B, another user"),
            Probe::Endpoints(..) => "weft, many endpoints".to_owned(),
            Probe::Limit { program, size, .. } => format!("limit: {program}, {size} B"),
            Probe::Kernel { program, how, size } => format!("{program}: {how}, {size} B"),
            Probe::Ucx(Question { api, metric, size }) => format!("{}: {}, {size} B", api.system(), metric.name()),
            Probe::UcxRead { api, size } => format!("{}: rtt of {size} B, all read", api.system()),
        }
    }
}

/// What is left out to save time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extent {
    Full,
    Quick,
}

/// Everything to be run, in order.
pub fn probes(extent: Extent, groups: &[Group], systems: &[System]) -> Vec<Probe> {
    let wants = |group| groups.is_empty() || groups.contains(&group);
    let mut probes = Vec::new();
    if wants(Group::Rtt) {
        RTT_SIZES.iter().for_each(|&size| round_trips(&mut probes, extent, size));
    } else if wants(Group::Logp) {
        probes.push(Probe::RoundTrip(SMALL));
    }
    if wants(Group::Rate) || wants(Group::Logp) {
        let (program, way) = ("two-rings", Way::RequestReply);
        probes.push(Probe::RequestRate(SMALL));
        probes.push(Probe::Limit { program, size: SMALL, window: Some(super::weft_side::WINDOW as u32), way });
    }
    if wants(Group::Logp) {
        probes.push(Probe::Overheads(SMALL));
    }
    if wants(Group::Rate) {
        rates(&mut probes);
    }
    if wants(Group::Bandwidth) {
        BANDWIDTH_SIZES.iter().for_each(|&size| bandwidths(&mut probes, extent, size));
    }
    if wants(Group::Peers) {
        let ways = [Way::OnePeer, Way::FixedOfMany, Way::DrawnOfMany];
        probes.extend(ways.map(|way| Probe::Peers(SMALL, way)));
        probes.push(Probe::BesideUnserved(SMALL));
        probes.push(Probe::BesideDeaths(SMALL));
        probes.extend([Way::OneEndpoint, Way::OneOfMany].map(|way| Probe::Endpoints(SMALL, way)));
    }
    probes.retain(|probe| systems.is_empty() || systems.contains(&probe.system()));
    probes
}

fn round_trips(probes: &mut Vec<Probe>, extent: Extent, size: usize) {
    let limit = |program, way| Probe::Limit { program, size, window: None, way };
    if size == 8 {
        probes.push(limit("cache-line", Way::Plain));
    }
    if READ_SIZES.contains(&size) {
        probes.extend([Api::UcpAm, Api::UctAm].map(|api| Probe::UcxRead { api, size }));
    }
    probes.push(Probe::RoundTrip(size));
    if size == SMALL {
        probes.push(Probe::Shared(size));
        probes.push(Probe::ForeignRoundTrip(size));
        probes.push(Probe::OtherUserRoundTrip(size));
    }
    probes.push(limit("ring", Way::Plain));
    if size == SMALL {
        probes.push(limit("two-rings", Way::RequestReply));
    }
    if extent == Extent::Full || (SMALL..=8192).contains(&size) {
        let apis = [Api::UctAm, Api::UcpAm].into_iter().filter(|api| api.takes(size));
        probes.extend(apis.map(|api| Probe::Ucx(Question { api, metric: Metric::Rtt, size })));
        if UNREAD_SIZES.contains(&size) {
            probes.push(Probe::UnreadRoundTrip(size));
        }
    }
    let with_kernel: &[usize] = if extent == Extent::Full { &[SMALL, 64, 1024, 8192] } else { &[SMALL] };
    if with_kernel.contains(&size) {
        for how in ["spin", "block"] {
            if how == "block" && size == SMALL {
                probes.extend([Waiting::Waits, Waiting::Sleeps].map(|waiting| Probe::WaitingRoundTrip(size, waiting)));
            }
            let how = CHANNELS.iter().map(|channel| format!("{channel}-{how}"));
            probes.extend(how.map(|how| Probe::Kernel { program: "kernel", size, how }));
        }
    }
}

fn rates(probes: &mut Vec<Probe>) {
    let size = SMALL;
    probes.push(Probe::Rate(size));
    probes.push(Probe::Limit { program: "ring-rate", size, window: None, way: Way::Plain });
    let apis = [Api::UctAm, Api::UcpAm, Api::UcpTag];
    probes.extend(apis.map(|api| Probe::Ucx(Question { api, metric: Metric::Rate, size })));
    let channels = CHANNELS.iter().map(|&how| how.to_owned());
    probes.extend(channels.map(|how| Probe::Kernel { program: "kernel-rate", size, how }));
}

fn bandwidths(probes: &mut Vec<Probe>, extent: Extent, size: usize) {
    let limit = |program| Probe::Limit { program, size, window: None, way: Way::Plain };
    let is_wanted = extent == Extent::Full || size >= 8192;
    probes.push(Probe::Bandwidth(size));
    if size == LARGE {
        probes.push(Probe::ForeignBandwidth(size));
        probes.push(Probe::OtherUserBandwidth(size));
    }
    probes.push(limit("pipe-bandwidth"));
    if is_wanted {
        probes.push(limit("memcpy"));
        let apis = [Api::UctAm, Api::UcpAm, Api::UcpTag].into_iter().filter(|api| api.takes(size));
        probes.extend(apis.map(|api| Probe::Ucx(Question { api, metric: Metric::Bandwidth, size })));
    }
    if extent == Extent::Full || size == 65536 {
        // A datagram holds a little less than 64 KiB.
        let channels = CHANNELS.iter().filter(|&&how| how != "udp" || size < 65536);
        probes.extend(channels.map(|&how| Probe::Kernel { program: "kernel-bandwidth", size, how: how.to_owned() }));
    }
}
