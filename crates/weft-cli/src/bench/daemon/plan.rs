//! What is measured with weftd and without, and in which order: figures that are compared are taken one after the other.

use crate::bench::results::{Key, Metric};
use crate::bench::runner::waiting_way;
use crate::bench::talk::Waiting;

/// The size of messages for rates, and for round trips during remappings.
pub const SMALL: usize = 16;

/// Sizes of round trips: all, and those of a quick run.
const RTT_SIZES: [usize; 4] = [SMALL, 64, 1024, 8192];
const QUICK_RTT_SIZES: [usize; 2] = [SMALL, 8192];

/// Sizes of messages in one-way streams.
const STREAM_SIZES: [usize; 2] = [8192, 65536];

/// What the two programs of a round trip do while they wait.
pub const WAYS: [Waiting; 3] = [Waiting::Polls, Waiting::Waits, Waiting::Sleeps];

/// A group of figures that the user can select.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Group {
    /// Two programs of one host.
    Local,
    /// Two programs of two hosts, each with its own weftd. Needs root.
    Hosts,
    /// Round trips while many endpoints take turns on few frames.
    Remapping,
}

/// How much is run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extent {
    Full,
    Quick,
}

/// The path of messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// Each program is its own network interface.
    Without,
    /// Through weftd.
    Through,
}

impl Way {
    pub const BOTH: [Way; 2] = [Way::Without, Way::Through];

    /// The name in rows.
    pub fn system(self) -> &'static str {
        match self {
            Way::Without => "weft",
            Way::Through => "weftd",
        }
    }
}

/// A figure of two programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    RoundTrip(usize, Waiting),
    /// Messages one way.
    Rate(usize),
    /// Bytes one way.
    Stream(usize),
}

impl What {
    /// Its text in the progress bar.
    pub fn title(self) -> String {
        match self {
            What::RoundTrip(size, waiting) => format!("round trip of {size} B, {}", waiting_way(waiting).1),
            What::Rate(size) => format!("messages of {size} B"),
            What::Stream(size) => format!("stream of {size} B"),
        }
    }

    /// The key of its rows.
    pub fn key(self, way: Way) -> Key {
        let system = way.system();
        match self {
            What::RoundTrip(size, waiting) => Key::plain(Metric::Rtt, size, system).by(waiting_way(waiting).0),
            What::Rate(size) => Key::plain(Metric::Rate, size, system),
            What::Stream(size) => Key::plain(Metric::Bandwidth, size, system),
        }
    }
}

/// A thing to run in each round.
pub type Probe = (What, Way);

/// All runs with two programs, in order.
pub fn probes(extent: Extent) -> Vec<Probe> {
    let sizes = match extent {
        Extent::Full => &RTT_SIZES[..],
        Extent::Quick => &QUICK_RTT_SIZES,
    };
    let trips = sizes.iter().flat_map(|&size| WAYS.map(|waiting| What::RoundTrip(size, waiting)));
    let all = trips.chain([What::Rate(SMALL)]).chain(STREAM_SIZES.map(What::Stream));
    all.flat_map(|what| Way::BOTH.map(|way| (what, way))).collect()
}

/// Whether the hot endpoint is measured during remappings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Beside {
    Quiet,
    Remappings,
}

impl Beside {
    pub const BOTH: [Beside; 2] = [Beside::Quiet, Beside::Remappings];

    /// The key of its rows.
    pub fn key(self, waiting: Waiting) -> Key {
        let system = match self {
            Beside::Quiet => "weftd-quiet",
            Beside::Remappings => "weftd-beside-remappings",
        };
        Key::plain(Metric::Rtt, SMALL, system).by(waiting_way(waiting).0)
    }
}

/// Every measurement of a hot endpoint, in order.
pub fn hot() -> Vec<(Waiting, Beside)> {
    WAYS.into_iter().flat_map(|waiting| Beside::BOTH.map(|beside| (waiting, beside))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_figure_with_weftd_stands_next_to_the_one_without() {
        for extent in [Extent::Full, Extent::Quick] {
            for pair in probes(extent).chunks(2) {
                assert!(matches!(pair, [(a, Way::Without), (b, Way::Through)] if a == b), "{pair:?}");
            }
        }
        assert!(hot().chunks(2).all(|pair| pair[0].0 == pair[1].0 && pair[0].1 != pair[1].1));
    }
}
