//! The results as JSON, in the form that other tools of the project read.

use super::machine::Machine;
use super::results::{Metric, Results, Series};
use crate::error::Error;
use serde::Serialize;
use std::io::Write;
use std::path::Path;

#[derive(Serialize)]
struct Document<'a> {
    machine: &'a Machine,
    #[serde(skip_serializing_if = "Option::is_none")]
    mtu: Option<u32>,
    rows: Vec<Row<'a>>,
}

#[derive(Serialize)]
struct Row<'a> {
    #[serde(rename = "where")]
    place: &'static str,
    metric: &'static str,
    size: usize,
    unit: &'static str,
    system: &'a str,
    median: f64,
    p99: f64,
    n: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<&'a str>,
}

/// Where it was measured.
#[derive(Clone, Copy, Debug)]
pub enum Between {
    /// Two processes of one machine.
    Local,
    /// Two hosts, over a network of that MTU, if it is known.
    Hosts { mtu: Option<u32> },
}

/// Writes all results to a file, or to standard output if it is called `-`.
pub fn write(path: &Path, machine: &Machine, between: Between, results: &Results) -> Result<(), Error> {
    let (place, mtu) = match between {
        Between::Local => ("local", None),
        Between::Hosts { mtu } => ("hosts", mtu),
    };
    let rows = results.series().iter().map(|series| row(place, series)).collect();
    let failed = |source| Error::File {
        verb: "write",
        path: path.to_path_buf(),
        source,
        way_out: "Name a file in a directory where you may write, or `-`",
    };
    let mut text = serde_json::to_string_pretty(&Document { machine, mtu, rows }).map_err(|e| failed(e.into()))?;
    text.push('\n');
    match path.as_os_str() == "-" {
        true => std::io::stdout().write_all(text.as_bytes()).map_err(failed),
        false => std::fs::write(path, text).map_err(failed),
    }
}

fn row<'a>(place: &'static str, series: &'a Series) -> Row<'a> {
    let metric = series.key.metric;
    let median = series.median();
    Row {
        place,
        metric: metric.name(),
        // The result of n_half is itself a size.
        size: if metric == Metric::NHalf { median.round() as usize } else { series.key.size },
        unit: metric.unit(),
        system: &series.key.system,
        median,
        p99: series.p99(),
        n: series.n(),
        detail: series.detail(),
    }
}
