//! What is measured, and in which order: systems that are compared run one after the other.

use super::initiator::Alone;
use super::target::Whose;
use crate::bench::plan::{Extent, LARGE, SMALL};
use crate::bench::results::Metric;
use crate::bench::ucx::{Api, Question};

/// Bytes of a word.
pub const WORD_BYTES: usize = 8;

/// Sizes of writes and reads.
pub const SIZES: [usize; 10] = [8, 64, 512, 4096, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 2 << 20, 4 << 20];

/// Those of a quick run.
const QUICK_SIZES: [usize; 5] = [8, 4096, 64 << 10, 1 << 20, 4 << 20];

/// Sizes of single timed operations.
const ALONE_SIZES: [usize; 3] = [8, 4096, 64 << 10];

/// The largest message of the bare pipe.
const PIPE_MOST: usize = 1 << 20;

/// A group of figures that the user can select.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Group {
    /// One word there and back.
    Word,
    /// Writes.
    Write,
    /// Reads.
    Read,
    /// Atomic operations.
    Atomic,
}

/// A thing to run in each round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Probe {
    Word,
    Write(usize, Whose),
    Read(usize, Whose),
    Alone(Alone, usize, Whose),
    Adds(Whose),
    /// A cache line that goes there and back.
    Line,
    /// The bare pipe, for comparison with a metric of weft's.
    Pipe(Metric, usize),
    /// UCX, for comparison with a metric of weft's.
    Ucx(Metric, Question),
    /// Active Messages, between hosts.
    MessageTrip,
    MessageBytes,
}

impl Probe {
    /// Its text in the progress bar.
    pub fn title(&self) -> String {
        match *self {
            Probe::Word => "weft, a word there and back".to_owned(),
            Probe::Write(size, whose) => format!("weft, writes of {size} B, {}", memory(whose)),
            Probe::Read(size, whose) => format!("weft, reads of {size} B, {}", memory(whose)),
            Probe::Alone(Alone::Write, size, whose) => format!("weft, one write of {size} B, {}", memory(whose)),
            Probe::Alone(Alone::Read, size, whose) => format!("weft, one read of {size} B, {}", memory(whose)),
            Probe::Alone(Alone::FetchAdd, _, whose) => format!("weft, one fetch-and-add, {}", memory(whose)),
            Probe::Adds(whose) => format!("weft, additions, {}", memory(whose)),
            Probe::Line => "limit: cache-line".to_owned(),
            Probe::Pipe(_, size) => format!("limit: pipe, {size} B"),
            Probe::Ucx(metric, Question { api, size, .. }) => format!("{}: {}, {size} B", api.system(), metric.name()),
            Probe::MessageTrip => "weft, round trip of an Active Message".to_owned(),
            Probe::MessageBytes => "weft, bandwidth of Active Messages".to_owned(),
        }
    }

    /// Whose memory it uses, for operations on regions.
    fn whose(&self) -> Option<Whose> {
        match *self {
            Probe::Write(_, whose) | Probe::Read(_, whose) | Probe::Alone(.., whose) | Probe::Adds(whose) => {
                Some(whose)
            }
            _ => None,
        }
    }

    /// Whether it measures weft.
    pub fn is_weft(&self) -> bool {
        !matches!(self, Probe::Line | Probe::Pipe(..) | Probe::Ucx(..))
    }
}

/// Whose memory, in words.
pub fn memory(whose: Whose) -> &'static str {
    match whose {
        Whose::Weft => "weft's memory",
        Whose::Executed => "weft's memory, carried out by the owner",
        Whose::Lent => "lent memory",
    }
}

/// All runs, in order. Limits and UCX are measured only on one host.
pub fn probes(extent: Extent, groups: &[Group], is_of_hosts: bool) -> Vec<Probe> {
    let wants = |group| groups.is_empty() || groups.contains(&group);
    let sizes: &[usize] = if extent == Extent::Full { &SIZES } else { &QUICK_SIZES };
    let ucx = |metric, api, asked, size| Probe::Ucx(metric, Question { api, metric: asked, size });
    let mut probes = Vec::new();
    if wants(Group::Word) {
        let (trip, put) = (Metric::Rtt, Api::UcpPut);
        probes.extend([Probe::MessageTrip, Probe::Word, Probe::Line, ucx(Metric::Word, put, trip, WORD_BYTES)]);
    }
    if wants(Group::Write) {
        for &size in sizes {
            probes.push(Probe::Write(size, Whose::Lent));
            probes.extend((size == LARGE).then_some(Probe::MessageBytes));
            probes.extend([Probe::Write(size, Whose::Executed), Probe::Write(size, Whose::Weft)]);
            probes.extend((size <= PIPE_MOST).then_some(Probe::Pipe(Metric::Write, size)));
            probes.push(ucx(Metric::Write, Api::UcpPut, Metric::Bandwidth, size));
        }
        probes.extend(ALONE_SIZES.iter().flat_map(|&size| OWN.map(|whose| Probe::Alone(Alone::Write, size, whose))));
    }
    if wants(Group::Read) {
        for &size in sizes {
            probes.extend([Whose::Lent, Whose::Executed, Whose::Weft].map(|whose| Probe::Read(size, whose)));
            probes.extend((size <= PIPE_MOST).then_some(Probe::Pipe(Metric::Read, size)));
            probes.push(ucx(Metric::Read, Api::UcpGet, Metric::Bandwidth, size));
        }
        for size in ALONE_SIZES {
            probes.extend(OWN.map(|whose| Probe::Alone(Alone::Read, size, whose)));
            probes.push(ucx(Metric::ReadTime, Api::UcpGet, Metric::Rtt, size));
        }
    }
    if wants(Group::Atomic) {
        probes.extend(OWN.map(|whose| Probe::Alone(Alone::FetchAdd, WORD_BYTES, whose)));
        probes.push(ucx(Metric::FetchAdd, Api::UcpAdd, Metric::Rtt, WORD_BYTES));
        probes.extend(OWN.map(Probe::Adds));
        probes.push(ucx(Metric::Adds, Api::UcpAdd, Metric::Rate, WORD_BYTES));
    }
    let is_message = |probe: &Probe| matches!(probe, Probe::MessageTrip | Probe::MessageBytes);
    // Between hosts the owner executes all operations.
    probes.retain(|probe| match is_of_hosts {
        true => probe.is_weft() && probe.whose() != Some(Whose::Executed),
        false => !is_message(probe),
    });
    probes
}

/// Weft's memory, both ways.
const OWN: [Whose; 2] = [Whose::Executed, Whose::Weft];

/// Sizes of the Active Messages for comparison.
pub const MESSAGE_TRIP: usize = SMALL;
pub const MESSAGE_BYTES: usize = LARGE;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_stand_next_to_what_they_limit_and_hosts_have_messages_instead() {
        let local = probes(Extent::Quick, &[], false);
        let behind = |probe: Probe| local.iter().skip_while(|&&p| p != probe).nth(1).copied();
        assert_eq!(behind(Probe::Word), Some(Probe::Line));
        assert_eq!(behind(Probe::Write(LARGE, Whose::Weft)), Some(Probe::Pipe(Metric::Write, LARGE)));
        assert_eq!(behind(Probe::Read(4 << 20, Whose::Weft)).map(|probe| probe.is_weft()), Some(false));
        assert!(!local.contains(&Probe::MessageTrip));
        let hosts = probes(Extent::Full, &[Group::Word], true);
        assert_eq!(hosts, [Probe::MessageTrip, Probe::Word]);
        let hosts = probes(Extent::Quick, &[], true);
        assert!(hosts.iter().all(|probe| probe.whose() != Some(Whose::Executed)));
        assert!(local.contains(&Probe::Adds(Whose::Executed)) && hosts.contains(&Probe::Adds(Whose::Weft)));
    }
}
