//! The results as JSON. The benchmarks write it; `weft bench report`, `weft bench compare` and other tools of the project read it.

use super::goals::{Asked, Goal};
use super::machine::Machine;
use super::meter::{median, Sampled};
use super::results::{is_kernel, is_ucx, Metric, Results, Series, Way};
use crate::error::Error;
use crate::output::write_file;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::Path;

/// The results of one command.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Document {
    pub machine: Machine,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// What is between the two processes, if known. Missing in files of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub between: Option<String>,
    /// The number of rounds. Missing in files of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rounds: Option<u32>,
    pub rows: Vec<Row>,
    /// Measurements that were left out or failed, with the reason. Only of MPIs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<String>,
    /// The ratios with a goal.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub goals: Vec<Judged>,
}

/// One figure of one system.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// `local` or `hosts`.
    #[serde(rename = "where")]
    pub place: String,
    pub metric: String,
    pub size: usize,
    pub unit: String,
    pub system: String,
    /// How it was measured, if not as the metric's name says. Missing in files of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub way: Option<String>,
    pub median: Option<f64>,
    /// Some systems report none.
    pub p99: Option<f64>,
    pub n: usize,
    /// The least and the greatest of the rounds' medians. Missing in files of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rounds: Option<[f64; 2]>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// The medians of the rounds in order, and their means; `None` for a round in which the figure was not measured. Missing in
    /// files of earlier versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub medians: Vec<Option<f64>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub means: Vec<Option<f64>>,
}

/// A goal, and whether it holds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Judged {
    pub what: String,
    pub value: Option<f64>,
    pub unit: String,
    /// One of these two is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_most: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_least: Option<f64>,
    pub holds: bool,
}

impl From<&Goal> for Judged {
    fn from(goal: &Goal) -> Judged {
        let (at_most, at_least) = match goal.asked {
            Asked::AtMost(most) => (Some(most), None),
            Asked::AtLeast(least) => (None, Some(least)),
        };
        Judged {
            what: goal.what.clone(),
            value: goal.value.is_finite().then_some(goal.value),
            unit: goal.unit.trim().to_owned(),
            at_most,
            at_least,
            holds: goal.asked.holds(goal.value),
        }
    }
}

/// Where it was measured.
#[derive(Clone, Copy, Debug)]
pub enum Between<'a> {
    /// Two processes of one machine.
    Local,
    /// Two hosts, over a network of this MTU if it is known. The title says what is between them.
    Hosts { mtu: Option<u32>, title: &'a str },
}

impl Document {
    /// All results.
    pub fn of(machine: &Machine, between: Between<'_>, results: &Results, goals: &[Goal]) -> Document {
        let (place, mtu, title) = match between {
            Between::Local => ("local", None, None),
            Between::Hosts { mtu, title } => ("hosts", mtu, Some(title.to_owned())),
        };
        let rounds = results.rounds();
        let rows = results.series().iter().map(|series| row(place, series, rounds)).collect();
        let goals = goals.iter().map(Judged::from).collect();
        Document {
            machine: machine.clone(),
            mtu,
            between: title,
            rounds: Some(rounds),
            rows,
            left_out: Vec::new(),
            goals,
        }
    }

    /// Reads a document from a file.
    pub fn read(path: &Path) -> Result<Document, Error> {
        let failed = |source: std::io::Error| Error::File {
            verb: "read the figures in",
            path: path.to_path_buf(),
            source,
            way_out: "Name a file that `weft bench local --json FILE` or `weft bench hosts --json FILE` wrote",
        };
        let text = std::fs::read(path).map_err(failed)?;
        let mut document: Document = serde_json::from_slice(&text).map_err(|e| failed(e.into()))?;
        document.name_ways();
        match document.rows.is_empty() {
            true => Err(failed(std::io::Error::new(std::io::ErrorKind::InvalidData, "it has no rows"))),
            false => Ok(document),
        }
    }

    /// If several rows are of one figure and system, one of them was measured as the metric's name says: in files that don't mark
    /// it, the one without a detail, otherwise the first. The others are named by their detail.
    fn name_ways(&mut self) {
        let key = |row: &Row| (row.metric.clone(), row.size, row.system.clone());
        for at in 0..self.rows.len() {
            let is_same = |row: &&Row| row.way.is_none() && key(row) == key(&self.rows[at]);
            let same: Vec<&Row> = self.rows.iter().filter(is_same).collect();
            let plain = same.iter().find(|row| row.detail.is_none()).or(same.first());
            let is_plain = plain.is_none_or(|plain| std::ptr::eq(*plain, &self.rows[at]));
            if self.rows[at].way.is_none() && !is_plain {
                self.rows[at].way = Some(self.rows[at].detail.clone().unwrap_or_else(|| "another".to_owned()));
            }
        }
    }

    /// Whether it has the figures of each round.
    pub fn has_rounds(&self) -> bool {
        self.rows.iter().any(|row| !row.medians.is_empty())
    }

    /// The row of a system for a figure, measured in one way.
    pub fn get(&self, metric: Metric, size: usize, way: Way, system: &str) -> Option<&Row> {
        let is_way = |row: &Row| row.way.as_deref().unwrap_or(Way::Plain.name()) == way.name();
        let is_it = |row: &&Row| row.metric == metric.name() && row.size == size && row.system == system;
        self.rows.iter().filter(is_it).find(|row| is_way(row))
    }

    /// The best of a family for a figure, among rows measured as the metric's name says. For UCX, rows whose receivers read come
    /// first, since all others' receivers read.
    pub fn best(&self, metric: Metric, size: usize, family: Family) -> Option<(&Row, f64)> {
        let reading = || self.best_by(Some(Way::Read.name()), metric, size, family).filter(|_| family == Family::Ucx);
        reading().or_else(|| self.best_by(None, metric, size, family))
    }

    fn best_by(&self, way: Option<&str>, metric: Metric, size: usize, family: Family) -> Option<(&Row, f64)> {
        let rows = self.rows.iter().filter(|row| row.way.as_deref() == way && row.family() == Some(family));
        let of_it = rows.filter(|row| row.metric == metric.name() && (row.size == size || metric == Metric::NHalf));
        let among = of_it.filter_map(|row| row.median.map(|median| (row, median)));
        match metric.more_is_better() {
            true => among.max_by(|a, b| a.1.total_cmp(&b.1)),
            false => among.min_by(|a, b| a.1.total_cmp(&b.1)),
        }
    }

    /// Whether UCX was measured with receivers that read.
    pub fn has_ucx_that_reads(&self) -> bool {
        self.rows.iter().any(Row::is_ucx_that_reads)
    }

    /// The sizes at which a metric was measured.
    pub fn sizes(&self, metric: Metric) -> BTreeSet<usize> {
        self.rows.iter().filter(|row| row.metric == metric.name()).map(|row| row.size).collect()
    }

    /// Whether it is of MPIs.
    pub fn is_of_mpi(&self) -> bool {
        self.rows.iter().any(|row| row.metric.starts_with("mpi."))
    }

    /// Whether it is of two hosts.
    pub fn is_of_hosts(&self) -> bool {
        self.rows.iter().any(|row| row.place == "hosts")
    }
}

/// Systems that share a line in a picture: the line shows the best of them at each size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    Weft,
    /// What the hardware can do; between hosts, bare UDP.
    Limit,
    /// The kernel's pipes and sockets; between hosts, TCP.
    Kernel,
    Ucx,
}

impl Family {
    pub const ALL: [Family; 4] = [Family::Weft, Family::Limit, Family::Kernel, Family::Ucx];

    /// The name in a picture.
    pub fn name(self, is_of_hosts: bool) -> &'static str {
        match (self, is_of_hosts) {
            (Family::Weft, _) => "weft",
            (Family::Limit, false) => "limit (bare C)",
            (Family::Limit, true) => "bare UDP",
            (Family::Kernel, false) => "kernel, best",
            (Family::Kernel, true) => "TCP",
            (Family::Ucx, _) => "UCX, best",
        }
    }
}

impl Row {
    /// This figure divided by another: the median of the rounds' ratios, or the ratio of the medians if the file has no rounds. UCX
    /// reports only the means of rates, so means are divided there.
    pub fn divided_by(&self, other: &Row) -> Option<f64> {
        let of_means = self.metric == Metric::Rate.name() && [self, other].iter().any(|row| is_ucx(&row.system));
        let (ours, theirs) = if of_means { (&self.means, &other.means) } else { (&self.medians, &other.medians) };
        let ratios = ours.iter().zip(theirs).filter_map(|(ours, theirs)| Some((*ours)? / (*theirs)?));
        let of_medians = || Some(self.median? / other.median?);
        median(ratios.filter(|ratio| ratio.is_finite())).or_else(of_medians).filter(|ratio| ratio.is_finite())
    }

    /// Whether it is a row of UCX with receivers that read.
    pub fn is_ucx_that_reads(&self) -> bool {
        self.way.as_deref() == Some(Way::Read.name()) && self.family() == Some(Family::Ucx)
    }

    /// The family of its system, if there is one.
    pub fn family(&self) -> Option<Family> {
        let is_of_hosts = self.place == "hosts";
        match self.system.as_str() {
            "weft" => Some(Family::Weft),
            ucx if is_ucx(ucx) => Some(Family::Ucx),
            udp if is_of_hosts && udp.starts_with("udp-") => Some(Family::Limit),
            kernel if is_kernel(kernel) => Some(Family::Kernel),
            "cache-line" | "ring" | "pipe" => Some(Family::Limit),
            _ => None,
        }
    }
}

/// Writes a document to a file, or to standard output if the path is `-`.
pub fn write(path: &Path, document: &impl Serialize) -> Result<(), Error> {
    write_file(path, crate::tell::text(document)?, "Name a file in a directory where you may write, or `-`")
}

fn row(place: &str, series: &Series, rounds: u32) -> Row {
    let metric = series.key.metric;
    let told = |value: f64| value.is_finite().then_some(value);
    let median = series.median();
    Row {
        place: place.to_owned(),
        metric: metric.name().to_owned(),
        // The result of n_half is itself a size.
        size: if metric == Metric::NHalf { median.round() as usize } else { series.key.size },
        unit: metric.unit().to_owned(),
        system: series.key.system.clone(),
        way: (series.key.way != Way::Plain).then(|| series.key.way.name().to_owned()),
        median: told(median),
        p99: told(series.p99()),
        n: series.n(),
        rounds: series.range(),
        detail: series.detail().map(str::to_owned),
        medians: in_rounds(series, rounds, |sampled| sampled.median),
        means: in_rounds(series, rounds, |sampled| sampled.mean),
    }
}

/// A figure in each round, in order.
fn in_rounds(series: &Series, rounds: u32, figure: impl Fn(Sampled) -> f64) -> Vec<Option<f64>> {
    let of = |round| series.runs.iter().find(|run| run.round == round).map(|run| figure(run.sampled));
    (0..rounds).map(|round| of(round).filter(|value| value.is_finite())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_ucx_the_rows_that_read_go_before_faster_ones_that_do_not() {
        let row = |system: &str, way: Option<&str>, median: f64| serde_json::json!({ "where": "local", "metric": "rtt", "size": 64, "unit": "ns", "system": system, "way": way, "median": median, "p99": null, "n": 9 });
        let best = |rows: Vec<serde_json::Value>, family| {
            let text = serde_json::json!({
                "machine": { "cpu": "c", "cores": 2, "cpus": [0, 1], "kernel": "6", "date": "d", "weft": "0", "line": null },
                "rows": rows,
            });
            let document: Document = serde_json::from_value(text).expect("a document");
            document.best(Metric::Rtt, 64, family).map(|(row, median)| (row.way.clone(), median))
        };
        let plain = [row("ucx-uct-am", None, 200.0), row("ucx-ucp-am", None, 250.0), row("weft", None, 100.0)];
        let read = [row("ucx-ucp-am", Some("read"), 400.0), row("ucx-uct-am", Some("read"), 300.0)];
        let both = [&plain[..], &read].concat();
        assert_eq!(best(both.clone(), Family::Ucx), Some((Some("read".to_owned()), 300.0)));
        assert_eq!(best(plain.to_vec(), Family::Ucx), Some((None, 200.0)));
        assert_eq!(best(both, Family::Weft), Some((None, 100.0)));
        assert_eq!(best(vec![row("weft", Some("read"), 50.0)], Family::Weft), None, "a way of UCX alone");
    }
}
