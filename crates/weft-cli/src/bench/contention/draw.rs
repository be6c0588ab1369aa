//! Pictures like figures 6 and 7 of the paper, and pictures of round trips.

use super::plan::{name_of, Part, BOTH, CONFIGURATIONS, MOST};
use super::results::{Results, Row};
use crate::error::Error;
use std::path::Path;
use std::time::Duration;
use weft_sim::contention::{Message, Serving};
use weft_sim::plot::{charts, duration, Chart, Unit};

/// Classes of round trips per factor of two.
const FINE: f64 = 2.0;

/// Bytes of a bulk request.
const BULK: f64 = 8192.0;

/// Draws all pictures into a folder.
pub fn write(folder: &Path, results: &Results) -> Result<(), Error> {
    let failed = |path: &Path, source| Error::File {
        verb: "write",
        path: path.to_path_buf(),
        source,
        way_out: "Name a folder where you may write: --svg FOLDER",
    };
    std::fs::create_dir_all(folder).map_err(|source| failed(folder, source))?;
    let pictures = [
        ("contention-small.svg", figure(results, Message::Small)),
        ("contention-bulk.svg", figure(results, Message::Bulk)),
        ("contention-ablation.svg", ablation(results)),
        ("contention-round-trips.svg", round_trips(results)),
    ];
    for (name, picture) in pictures {
        let path = folder.join(name);
        std::fs::write(&path, picture).map_err(|source| failed(&path, source))?;
    }
    Ok(())
}

fn name((serving, frames): (Serving, u32)) -> String {
    match serving {
        Serving::OneVn => name_of(serving).to_owned(),
        _ => format!("{}, {frames} frames", name_of(serving)),
    }
}

/// Throughput of each client and of all, and remappings, by the number of clients.
fn figure(results: &Results, message: Message) -> String {
    let clients = results.clients(Part::Figures);
    let (title, unit, factor) = match message {
        Message::Small => ("requests of 16 B answered in a second", Unit::Count, 1.0),
        Message::Bulk => ("requests of 8 KiB: payload in a second", Unit::Bits, BULK * 8.0),
    };
    let chart = |title: &str, unit, is_logarithmic, value: &dyn Fn(&Row) -> f64| {
        let line = |configuration: (Serving, u32)| {
            let (serving, frames) = configuration;
            let of = |&clients: &u32| results.get(Part::Figures, serving, message, clients, frames).map(value);
            (name(configuration), clients.iter().map(of).collect())
        };
        Chart { title: title.to_owned(), unit, is_logarithmic, lines: CONFIGURATIONS.map(line).into() }
    };
    let panels = [
        chart("of each client", unit, true, &|row| row.requests_per_second_of_each * factor),
        chart("of all clients", unit, false, &|row| row.requests_per_second * factor),
        chart("remappings/s", Unit::Count, false, &|row| row.remappings_per_second),
    ];
    charts(title, &clients.iter().map(u32::to_string).collect::<Vec<_>>(), &panels)
}

/// Throughput without the writable state.
fn ablation(results: &Results) -> String {
    let (clients, uploads) = (results.clients(Part::Ablation), results.uploads());
    let kinds = BOTH.into_iter().flat_map(|serving| uploads.iter().map(move |upload| (serving, *upload)));
    let lines = kinds.map(|(serving, upload)| {
        let of = |&clients: &u32| {
            results.without_writable_state(serving, clients, upload).map(|row| row.requests_per_second)
        };
        let name = match upload {
            0 => name_of(serving).to_owned(),
            _ => format!("{}, {}", name_of(serving), duration(Duration::from_nanos(upload))),
        };
        (name, clients.iter().map(of).collect())
    });
    let title = "requests/s of all clients".to_owned();
    let panel = Chart { title, unit: Unit::Count, is_logarithmic: false, lines: lines.collect() };
    let title = "without the writable state, 8 frames: a write waits for its frame, and before that for an upload";
    charts(title, &clients.iter().map(u32::to_string).collect::<Vec<_>>(), &[panel])
}

/// The distribution of round trips of 64 clients, in classes of equal ratio.
fn round_trips(results: &Results) -> String {
    let panels: Vec<(Message, Vec<(String, &Row)>)> = [Message::Small, Message::Bulk]
        .map(|message| {
            let of = |configuration: (Serving, u32)| {
                let row = results.get(Part::Figures, configuration.0, message, MOST, configuration.1)?;
                Some((name(configuration), row))
            };
            (message, CONFIGURATIONS.into_iter().filter_map(of).collect())
        })
        .into();
    let class = |nanos: u64| ((nanos.max(1) as f64).log2() * FINE).floor() as i32;
    let all =
        || panels.iter().flat_map(|(_, rows)| rows).flat_map(|(_, row)| &row.round_trips).map(|(top, _)| class(*top));
    let (Some(least), Some(most)) = (all().min(), all().max()) else { return charts("round trips", &[], &[]) };
    let part = |row: &Row, at: i32| {
        let total: u64 = row.round_trips.iter().map(|(_, count)| u64::from(*count)).sum();
        let those = row.round_trips.iter().filter(|(top, _)| class(*top) == at);
        those.map(|(_, count)| u64::from(*count)).sum::<u64>() as f64 / total.max(1) as f64
    };
    let charts_of = |(message, rows): &(Message, Vec<(String, &Row)>)| {
        let line =
            |(name, row): &(String, &Row)| (name.clone(), (least..=most).map(|at| Some(part(row, at))).collect());
        let title = match message {
            Message::Small => "part of all, 16 B",
            Message::Bulk => "part of all, 8 KiB",
        };
        Chart {
            title: title.to_owned(),
            unit: Unit::Count,
            is_logarithmic: false,
            lines: rows.iter().map(line).collect(),
        }
    };
    let mark = |at: i32| {
        let begins = Duration::from_nanos(2f64.powf(f64::from(at) / FINE) as u64);
        if (at - least) % 4 == 0 {
            duration(begins)
        } else {
            String::new()
        }
    };
    let marks: Vec<String> = (least..=most).map(mark).collect();
    let title = format!("round trips of {MOST} clients with 32 requests under way, in classes of equal ratio");
    charts(&title, &marks, &panels.iter().map(charts_of).collect::<Vec<_>>())
}
