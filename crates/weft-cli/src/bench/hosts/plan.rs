//! What is measured between hosts, and in which order: figures that are compared are taken one after the other.

use crate::bench::mixed::{Beside, Route};
use crate::bench::plan::Extent;
use crate::bench::results::Metric;
use crate::bench::talk::Waiting;
use crate::bench::weft_side::Landing;

/// The size of messages for rates and for the lone message.
pub const SMALL: usize = 16;

/// The size of messages for bandwidths.
pub const LARGE: usize = 65536;

/// Sizes of round trips.
const RTT_SIZES: [usize; 4] = [SMALL, 64, 1024, 8192];

/// A group of figures that the user can select.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Group {
    /// Round trips.
    Rtt,
    /// Messages per second.
    Rate,
    /// Bytes per second.
    Bandwidth,
    /// A lone message, after which its sender computes.
    Lone,
    /// Messages to a process that computes, until they are acknowledged.
    Computing,
    /// Round trips of a process with a peer on its own host and one on the other.
    Mixed,
}

/// The systems that are measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum System {
    /// weft itself.
    Weft,
    /// Bare UDP: spinning, blocking, with sendmmsg, with segmentation offload.
    Udp,
    /// Bare TCP: spinning and blocking.
    Tcp,
    /// UCX over TCP, if it is installed.
    Ucx,
}

/// A thing to run in each round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Probe {
    /// weft's round trip.
    RoundTrip(usize),
    /// weft's round trip between processes that wait.
    WaitingRoundTrip(usize, Waiting),
    /// weft's one-way rate.
    Rate(usize),
    /// weft's one-way bandwidth.
    Bandwidth(usize, Landing),
    /// weft's one-way message after which the sender computes.
    Lone,
    /// weft's one-way messages to a process that computes.
    Computing,
    /// weft's one-way rate or bandwidth with an ordinary user's buffers.
    Ordinary(Metric),
    /// weft's round trip on one path, and what happens on the other.
    Mixed(Route, Beside),
    /// weft's round trips on both paths, at once or in turns.
    MixedBoth(Beside),
    /// A limit program over bare sockets.
    Socket { program: &'static str, how: &'static str, size: usize },
    /// UCX over TCP.
    Ucx { metric: Metric, size: usize },
}

impl Probe {
    /// The system that it measures.
    pub fn system(self) -> System {
        match self {
            Probe::Socket { how, .. } if how.starts_with("tcp") => System::Tcp,
            Probe::Socket { .. } => System::Udp,
            Probe::Ucx { .. } => System::Ucx,
            _ => System::Weft,
        }
    }

    /// Its text in the progress bar.
    pub fn title(self) -> String {
        match self {
            Probe::RoundTrip(size) => format!("weft, round trip of {size} B"),
            Probe::WaitingRoundTrip(size, _) => format!("weft, round trip of {size} B, waiting"),
            Probe::Rate(size) => format!("weft, messages of {size} B"),
            Probe::Bandwidth(size, Landing::InPlace) => format!("weft, bandwidth at {size} B"),
            Probe::Bandwidth(size, Landing::Copied) => format!("weft, bandwidth at {size} B, copied"),
            Probe::Lone => "weft, a lone message".to_owned(),
            Probe::Computing => "weft, acknowledgements by a computing peer".to_owned(),
            Probe::Ordinary(metric) => format!("weft, {}, an ordinary user's buffers", metric.name()),
            Probe::Mixed(Route::Memory, _) => "weft, round trip through memory".to_owned(),
            Probe::Mixed(Route::Network, _) => "weft, round trip over the network".to_owned(),
            Probe::MixedBoth(_) => "weft, round trips by both ways".to_owned(),
            Probe::Socket { program, how, size } => format!("{program}: {how}, {size} B"),
            Probe::Ucx { metric, size } => format!("UCX over TCP: {}, {size} B", metric.name()),
        }
    }
}

/// Everything to be run, in order.
pub fn probes(extent: Extent, groups: &[Group], systems: &[System]) -> Vec<Probe> {
    let wants = |group| groups.is_empty() || groups.contains(&group);
    let socket = |program, how, size| Probe::Socket { program, how, size };
    let mut probes = Vec::new();
    if wants(Group::Rtt) {
        RTT_SIZES.iter().for_each(|&size| round_trips(&mut probes, extent, size));
    }
    if wants(Group::Rate) {
        probes.extend([Probe::Rate(SMALL), socket("host-rate", "udp", SMALL)]);
        probes.push(Probe::Ordinary(Metric::Rate));
        probes.push(Probe::Ucx { metric: Metric::Rate, size: SMALL });
    }
    if wants(Group::Bandwidth) {
        probes.extend([Probe::Bandwidth(LARGE, Landing::InPlace), socket("host-bandwidth", "udp", LARGE)]);
        probes.extend([Probe::Bandwidth(LARGE, Landing::Copied), socket("host-bandwidth", "tcp", LARGE)]);
        probes.push(Probe::Ordinary(Metric::Bandwidth));
        probes.push(Probe::Ucx { metric: Metric::Bandwidth, size: LARGE });
    }
    if wants(Group::Lone) {
        probes.extend([Probe::Lone, socket("host-lone", "udp", SMALL)]);
    }
    if wants(Group::Computing) {
        probes.push(Probe::Computing);
    }
    if wants(Group::Mixed) {
        let one = |route| [Beside::Nothing, Beside::Idle].map(|beside| Probe::Mixed(route, beside));
        probes.extend(one(Route::Memory));
        // Close to the figures that these are compared with.
        probes.extend([Beside::Busy, Beside::Turns].map(Probe::MixedBoth));
        probes.extend(one(Route::Network));
    }
    probes.retain(|probe| systems.is_empty() || systems.contains(&probe.system()));
    probes
}

fn round_trips(probes: &mut Vec<Probe>, extent: Extent, size: usize) {
    let others: &[&str] = match (size, extent) {
        (SMALL, _) => &["udp-spin", "udp-block", "tcp-spin", "tcp-block"],
        (_, Extent::Full) => &["udp-spin", "tcp-spin"],
        (_, Extent::Quick) => &["udp-spin"],
    };
    probes.push(Probe::RoundTrip(size));
    for how in others {
        probes.push(Probe::Socket { program: "host-rtt", how, size });
        if *how == "udp-block" {
            probes.extend([Waiting::Waits, Waiting::Sleeps].map(|waiting| Probe::WaitingRoundTrip(size, waiting)));
        }
    }
    if size == SMALL || extent == Extent::Full {
        probes.push(Probe::Ucx { metric: Metric::Rtt, size });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_figure_of_weft_stands_next_to_the_one_it_is_compared_with() {
        let probes = probes(Extent::Quick, &[], &[]);
        let next_to = |probe: Probe| probes.iter().skip_while(|&&p| p != probe).nth(1).copied();
        let socket = |program, how, size| Some(Probe::Socket { program, how, size });
        assert_eq!(next_to(Probe::RoundTrip(SMALL)), socket("host-rtt", "udp-spin", SMALL));
        assert_eq!(next_to(Probe::Rate(SMALL)), socket("host-rate", "udp", SMALL));
        assert_eq!(next_to(Probe::Bandwidth(LARGE, Landing::InPlace)), socket("host-bandwidth", "udp", LARGE));
        assert_eq!(next_to(Probe::Lone), socket("host-lone", "udp", SMALL));
    }

    #[test]
    fn groups_and_systems_that_were_not_asked_for_are_left_out() {
        let probes = probes(Extent::Full, &[Group::Lone, Group::Rate], &[System::Udp]);
        assert!(probes.iter().all(|probe| probe.system() == System::Udp));
        assert_eq!(probes.len(), 2);
    }
}
