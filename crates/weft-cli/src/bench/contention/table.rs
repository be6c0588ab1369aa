//! The results as tables.

use super::plan::{name_of, Part, BOTH, ENOUGH, FEW, MOST, REQUEST};
use super::real::{Real, WINDOW};
use super::results::{each, Results, Row};
use crate::bench::table::{digits, left_out, new, ns, right};
use comfy_table::{Cell, Table};
use std::fmt::Write;
use weft_sim::contention::{Costs, Message, Serving};

/// Everything, as text.
pub fn render(results: &Results, goals: Option<Table>) -> String {
    let mut text = match results.rows.is_empty() {
        true => String::new(),
        false => format!(
            "simulated, seed {}; requests answered in a second, with {WINDOW} of each client under way\n",
            results.seed()
        ),
    };
    let mut part = |title: &str, table: Table| {
        if table.row_count() > 0 {
            let _ = write!(text, "\n{title}\n{table}\n");
        }
    };
    part("requests and replies of 16 B (figure 6)", figures(results, Message::Small));
    part("requests of 8 KiB, short replies (figure 7)", figures(results, Message::Bulk));
    part(&format!("more endpoints on {FEW} frames, and on a frame for each"), crowds(results));
    let title = format!("other prices of a remapping, {MOST} clients, 16 B: {FEW} frames ÷ {ENOUGH}. A request is {REQUEST} instructions");
    part(&title, prices(results));
    let title = format!(
        "without the writable state, 16 B, {FEW} frames: a write waits for its frame, and before that for an upload"
    );
    part(&title, ablation(results));
    part(&format!("round trips, {MOST} clients, 16 B"), round_trips(results));
    if let Some(goals) = goals.filter(|goals| goals.row_count() > 0) {
        let _ = write!(text, "\n{goals}\n");
    }
    if let Some(real) = &results.real {
        text.push_str(&of_processes(real));
    }
    text
}

fn rate(row: Option<&Row>) -> Cell {
    right(row.map_or_else(String::new, |row| format!("{} k", digits(row.requests_per_second / 1e3))))
}

fn ratio(few: Option<&Row>, enough: Option<&Row>) -> Cell {
    let of = |row: &Row| row.requests_per_second;
    right(few.zip(enough).map_or_else(String::new, |(few, enough)| format!("{:.2}", of(few) / of(enough))))
}

/// Throughput and remappings by the number of clients.
fn figures(results: &Results, message: Message) -> Table {
    let mut table = new(&[
        "clients",
        "OneVN",
        "ST 8",
        "ST 96",
        "÷",
        "MT 8",
        "MT 96",
        "÷",
        "remappings/s, ST",
        "MT",
        "slowest, ST 8",
    ]);
    for clients in results.clients(Part::Figures) {
        let get = |serving, frames| results.get(Part::Figures, serving, message, clients, frames);
        let mut cells = vec![right(clients.to_string()), rate(get(Serving::OneVn, ENOUGH))];
        for serving in BOTH {
            let (few, enough) = (get(serving, FEW), get(serving, ENOUGH));
            cells.extend([rate(few), rate(enough), ratio(few, enough)]);
        }
        for serving in BOTH {
            let remappings = get(serving, FEW).map(|row| format!("{:.0}", row.remappings_per_second));
            cells.push(right(remappings.unwrap_or_default()));
        }
        let slowest = get(Serving::SingleThread, FEW).map(|row| format!("{:.2}", row.slowest_client));
        cells.push(right(slowest.unwrap_or_default()));
        table.add_row(cells);
    }
    table
}

fn crowds(results: &Results) -> Table {
    let mut table = new(&["", "message", "endpoints", "8 frames", "enough", "÷", "slowest", "remappings/s"]);
    for few in results.of(Part::Crowds).filter(|row| row.frames == FEW) {
        let is_same = |row: &&Row| {
            (row.serving, row.message, row.clients) == (few.serving, few.message, few.clients) && row.frames != FEW
        };
        let enough = results.of(Part::Crowds).find(is_same);
        table.add_row([
            Cell::new(few.serving),
            Cell::new(few.message),
            right(few.clients.to_string()),
            rate(Some(few)),
            rate(enough),
            ratio(Some(few), enough),
            right(format!("{:.2}", few.slowest_client)),
            right(format!("{:.0}", few.remappings_per_second)),
        ]);
    }
    table
}

fn prices(results: &Results) -> Table {
    let mut table = new(&["instructions", "requests", "ST", "MT"]);
    for price in each(results.of(Part::Prices).map(|row| row.remapping_instructions)) {
        let [st, mt] = BOTH.map(|serving| {
            let of = |frames| {
                results.of(Part::Prices).filter(move |row| (row.serving, row.frames) == (name_of(serving), frames))
            };
            ratio(of(FEW).find(|row| row.remapping_instructions == price), of(ENOUGH).next())
        });
        let note = if price == Costs::default().remapping { " (counted)" } else { "" };
        let requests = format!("{:.1}", price as f64 / REQUEST as f64);
        table.add_row([right(format!("{price}{note}")), right(requests), st, mt]);
    }
    table
}

fn ablation(results: &Results) -> Table {
    let uploads = results.uploads();
    let title = |(serving, upload): (Serving, u64)| match upload {
        0 => name_of(serving).to_owned(),
        _ => format!("{}, {} upload", name_of(serving), ns(upload as f64)),
    };
    let columns: Vec<(Serving, u64)> =
        BOTH.into_iter().flat_map(|serving| uploads.iter().map(move |upload| (serving, *upload))).collect();
    let header: Vec<String> = std::iter::once("clients".to_owned()).chain(columns.iter().copied().map(title)).collect();
    let mut table = new(&header.iter().map(String::as_str).collect::<Vec<_>>());
    for clients in results.clients(Part::Ablation) {
        let cells =
            columns.iter().map(|(serving, upload)| rate(results.without_writable_state(*serving, clients, *upload)));
        table.add_row(std::iter::once(right(clients.to_string())).chain(cells));
    }
    table
}

fn round_trips(results: &Results) -> Table {
    let mut table = new(&["", "frames", "median", "99 %", "modes"]);
    for row in results.of(Part::Figures).filter(|row| row.clients == MOST && row.message == "small") {
        let modes: Vec<String> = row.round_trip_modes_ns.iter().map(|mode| ns(*mode as f64)).collect();
        table.add_row([
            Cell::new(row.serving),
            right(row.frames.to_string()),
            right(ns(row.round_trip_p50_ns as f64)),
            right(ns(row.round_trip_p99_ns as f64)),
            Cell::new(modes.join(", ")),
        ]);
    }
    table
}

/// The runs with real processes, and the checks that all of them passed.
fn of_processes(real: &Real) -> String {
    let Some(why) = &real.left_out else {
        let cpus = real.cpus;
        return format!(
            "\nreal: weftd, an ST server on it, and one process with all clients, by loopback, on {cpus} CPUs; 16 B, {WINDOW} of each client \
             under way\n{}\nEvery request was answered once and in order, none came back, and no more frames were in use than there are.\n",
            processes(real)
        );
    };
    left_out(&[format!("the real run: {why}")])
}

fn processes(real: &Real) -> Table {
    let mut table =
        new(&["clients", "frames", "requests/s", "slowest", "remappings/s", "frames in use", "looks", "requests"]);
    for row in &real.rows {
        table.add_row(
            [
                row.clients.to_string(),
                row.frames.to_string(),
                format!("{} k", digits(row.requests_per_second / 1e3)),
                format!("{:.2}", row.slowest_client),
                format!("{:.0}", row.remappings_per_second),
                row.frames_used_most.to_string(),
                row.looks.to_string(),
                row.requests.to_string(),
            ]
            .map(right),
        );
    }
    table
}
