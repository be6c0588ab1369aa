//! The durations of stages over many requests: as a table, and as JSON.

use super::join::{Pair, Stages, Trip};
use crate::bench::table::{self, ns, right};
use comfy_table::{Cell, Table};
use serde::{Serialize, Serializer};
use std::collections::{BTreeMap, VecDeque};
use weft::status::Operation;

/// The figures of a pair are of this many last trips.
const KEPT_MOST: usize = 1 << 14;

/// The most pairs with figures of their own.
const PAIRS_MOST: usize = 64;

/// The stages, each from the end of the one before: the name in JSON, the name in the table, and the event that ends it.
const SIX: [(&str, &str, &str); 6] = [
    ("send", "sending", "from the call to the message written"),
    ("there", "on its way", "until a poll there finds it"),
    ("handle", "handled", "until the program there replies"),
    ("reply", "replying", "until the reply is written"),
    ("back", "on its way back", "until a poll here finds it"),
    ("take", "taken", "until its handler has run"),
];

/// The same if the replier is not seen.
const THREE: [(&str, &str, &str); 3] =
    [SIX[0], ("away", "away", "until a poll here finds the reply: there, handled, back"), SIX[5]];

/// A request as one line of JSON.
#[derive(Debug, Serialize)]
pub struct Line<'a> {
    kind: &'static str,
    from: &'a str,
    to: &'a str,
    path: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    operation: Option<Operation>,
    #[serde(skip_serializing_if = "Option::is_none")]
    region: Option<u32>,
    /// When the program called, by the machine's clock.
    called_ns: u64,
    #[serde(serialize_with = "in_order")]
    stages_ns: Vec<(&'static str, u64)>,
    sum_ns: u64,
    round_trip_ns: u64,
}

/// A map with the stages in order.
fn in_order<S: Serializer>(stages: &[(&'static str, u64)], to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(stages.iter().copied())
}

/// The names of requester and replier.
#[derive(Clone, PartialEq, Debug)]
pub struct Ends {
    pub from: String,
    pub to: String,
    pub path: &'static str,
}

impl<'a> Line<'a> {
    pub fn new(trip: &Trip, ends: &'a Ends) -> Line<'a> {
        let stages = trip.stages.each();
        Line {
            kind: "request",
            from: &ends.from,
            to: &ends.to,
            path: ends.path,
            operation: trip.operation,
            region: trip.region,
            called_ns: trip.called_ns,
            stages_ns: names(&trip.stages).iter().zip(stages).map(|((name, ..), ns)| (*name, *ns)).collect(),
            sum_ns: stages.iter().sum(),
            round_trip_ns: trip.round_trip_ns,
        }
    }
}

fn names(stages: &Stages) -> &'static [(&'static str, &'static str, &'static str)] {
    match stages {
        Stages::Six(_) => &SIX,
        Stages::Three(_) => &THREE,
    }
}

/// Requests that share figures: the pair, and what they do to which region.
type Kind = (Pair, Option<Operation>, Option<u32>);

/// All trips so far.
#[derive(Debug, Default)]
pub struct Seen {
    pairs: BTreeMap<Kind, Flow>,
    /// Trips of pairs beyond [`PAIRS_MOST`].
    pub left_out: u64,
}

/// The requests of one endpoint to another.
#[derive(Debug)]
struct Flow {
    ends: Ends,
    all: u64,
    last: VecDeque<Trip>,
}

impl Seen {
    pub fn take(&mut self, trip: Trip, ends: &Ends) {
        let kind = (trip.pair, trip.operation, trip.region);
        if !self.pairs.contains_key(&kind) && self.pairs.len() == PAIRS_MOST {
            self.left_out += 1;
            return;
        }
        let flow = self.pairs.entry(kind);
        let flow = flow.or_insert_with(|| Flow { ends: ends.clone(), all: 0, last: VecDeque::new() });
        // The replier is no longer seen, or is seen from now on: keep figures of one kind.
        if flow.last.back().is_some_and(|last| last.stages.each().len() != trip.stages.each().len()) {
            flow.last.clear();
            flow.all = 0;
        }
        if flow.last.len() == KEPT_MOST {
            flow.last.pop_front();
        }
        flow.last.push_back(trip);
        flow.all += 1;
    }

    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// The figures of each pair, those with most requests first.
    pub fn figures(&self) -> Vec<Figures<'_>> {
        let mut figures: Vec<Figures<'_>> = self.pairs.values().filter_map(Flow::figures).collect();
        figures.sort_by_key(|f| std::cmp::Reverse(f.n));
        figures
    }
}

/// The distribution of durations.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Times {
    median_ns: f64,
    p99_ns: f64,
    mean_ns: f64,
}

impl Times {
    fn of(ns: impl Iterator<Item = u64>) -> Times {
        let mut ns: Vec<u64> = ns.collect();
        ns.sort_unstable();
        // The percentile: the smallest duration that this many in a hundred do not exceed.
        let at =
            |percent: usize| ns.get((percent * ns.len()).div_ceil(100).saturating_sub(1)).map_or(0.0, |ns| *ns as f64);
        let mean_ns = ns.iter().map(|ns| *ns as f64).sum::<f64>() / ns.len().max(1) as f64;
        Times { median_ns: at(50), p99_ns: at(99), mean_ns }
    }
}

#[derive(Debug, Serialize)]
struct Row {
    stage: &'static str,
    #[serde(skip)]
    title: &'static str,
    #[serde(skip)]
    what: &'static str,
    #[serde(flatten)]
    times: Times,
}

/// The figures of a pair.
#[derive(Debug, Serialize)]
pub struct Figures<'a> {
    kind: &'static str,
    from: &'a str,
    to: &'a str,
    path: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    operation: Option<Operation>,
    #[serde(skip_serializing_if = "Option::is_none")]
    region: Option<u32>,
    /// Requests so far; the figures are of the last 16,384 of them.
    n: u64,
    stages: Vec<Row>,
    /// The sums of the columns over the stages.
    sum_of_medians_ns: f64,
    sum_of_means_ns: f64,
    /// From the call to the end of the reply's handler, as the requester measured it.
    round_trip: Times,
    /// The sum divided by the round trip: of the means, and of the medians.
    ratio: f64,
    ratio_of_medians: f64,
}

impl Flow {
    fn figures(&self) -> Option<Figures<'_>> {
        let first = self.last.front()?;
        let rows = names(&first.stages).iter().enumerate().map(|(at, &(stage, title, what))| {
            let times = Times::of(self.last.iter().filter_map(|trip| trip.stages.each().get(at).copied()));
            Row { stage, title, what, times }
        });
        let stages: Vec<Row> = rows.collect();
        let sum = |of: fn(&Times) -> f64| stages.iter().map(|row| of(&row.times)).sum::<f64>();
        let (sum_of_medians_ns, sum_of_means_ns) = (sum(|t| t.median_ns), sum(|t| t.mean_ns));
        let round_trip = Times::of(self.last.iter().map(|trip| trip.round_trip_ns));
        let Ends { from, to, path } = &self.ends;
        Some(Figures {
            kind: "figures",
            from,
            to,
            path,
            operation: first.operation,
            region: first.region,
            n: self.all,
            stages,
            sum_of_medians_ns,
            sum_of_means_ns,
            round_trip,
            // A clock that stood still gives no ratio.
            ratio: sum_of_means_ns / round_trip.mean_ns.max(1.0),
            ratio_of_medians: sum_of_medians_ns / round_trip.median_ns.max(1.0),
        })
    }
}

impl Figures<'_> {
    /// The figures as a title and a table.
    pub fn text(&self) -> String {
        let Figures { from, to, path, n, operation, region, .. } = self;
        let what = match operation {
            None => "request",
            Some(Operation::Read) => "read",
            Some(Operation::Write) => "write",
            Some(Operation::Change) => "change",
        };
        let plural = if *n == 1 { "" } else { "s" };
        let region = region.map_or_else(String::new, |region| format!(" of region {region}"));
        format!("{from} → {to}, {path}: {n} {what}{plural}{region}\n{}\n", self.table())
    }

    fn table(&self) -> Table {
        let mut table = table::new(&["stage", "median", "p99", "mean", "share", ""]);
        let mean = self.round_trip.mean_ns.max(1.0);
        for (number, row) in self.stages.iter().enumerate() {
            let Times { median_ns, p99_ns, mean_ns } = row.times;
            table.add_row(vec![
                Cell::new(format!("{} {}", number + 1, row.title)),
                right(ns(median_ns)),
                right(ns(p99_ns)),
                right(ns(mean_ns)),
                right(percent(mean_ns / mean)),
                Cell::new(row.what),
            ]);
        }
        table.add_row(vec![
            Cell::new("sum"),
            right(ns(self.sum_of_medians_ns)),
            right(String::new()),
            right(ns(self.sum_of_means_ns)),
            right(percent(self.ratio)),
            Cell::new(format!("{} of the round trip's median", percent(self.ratio_of_medians))),
        ]);
        let Times { median_ns, p99_ns, mean_ns } = self.round_trip;
        table.add_row(vec![
            Cell::new("round trip"),
            right(ns(median_ns)),
            right(ns(p99_ns)),
            right(ns(mean_ns)),
            right(percent(1.0)),
            Cell::new("as the requester measured it"),
        ]);
        table
    }

    /// The path of the requests.
    pub fn path(&self) -> &str {
        self.path
    }

    /// Whether the replier is not seen here.
    pub fn is_half(&self) -> bool {
        self.stages.len() == THREE.len()
    }
}

fn percent(part: f64) -> String {
    format!("{:.1} %", part * 100.0)
}
