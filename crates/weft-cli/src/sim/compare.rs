//! `weft sim --compare-channels`: stop-and-wait on 1 to 64 channels beside weft, over the same links and with the same workload.

use super::Options;
use crate::bench::table::{new, right};
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::output::print_beside;
use crate::tell::print_json;
use comfy_table::Cell;
use serde::Serialize;
use std::path::Path;
use std::time::Duration;
use weft_sim::plot::{self, Measured};
use weft_sim::{Channels, Config, Faults, HostId, PerMillion, Simulation, StopAndWait};

/// The numbers of channels per pair of hosts.
const COUNTS: [u16; 7] = [1, 2, 4, 8, 16, 32, 64];

/// The result of one protocol with one loss.
#[derive(Debug, Serialize)]
struct Row {
    loss: f64,
    /// `None` for weft.
    channels: Option<u16>,
    goodput_bits_per_second: f64,
    latency_p50_ns: u64,
    latency_p99_ns: u64,
    packets_per_message: f64,
    delivered: u64,
    failure: Option<String>,
}

/// Runs each protocol with each loss, and prints one table.
pub fn run(options: &Options, losses: &[PerMillion]) -> Result<(), Error> {
    let interrupt = Interrupt::watch(|| {})?;
    let mut rows = Vec::new();
    for loss in losses {
        for channels in COUNTS.map(Some).into_iter().chain([None]) {
            interrupt.check()?;
            rows.push(row(options, *loss, channels));
        }
    }
    match options.json {
        true => print_json(&rows)?,
        false => print_beside(options.plot.as_deref(), words(options, &rows))?,
    }
    if let Some(path) = &options.plot {
        draw(path, &rows)?;
    }
    match rows.iter().filter(|row| row.failure.is_some()).count() as u64 {
        0 => Ok(()),
        failed => Err(Error::Broken { failed, runs: rows.len() as u64 }),
    }
}

fn row(options: &Options, loss: PerMillion, channels: Option<u16>) -> Row {
    let config = options.config(options.seed);
    // Weft would probe for larger packets, which the model does not do.
    let faults = Faults { loss: Faults::loss(loss).loss, carries: options.packet, ..config.faults };
    let (workload, hosts) = (options.load(), config.topology.hosts());
    let all = workload.clone();
    let mut simulation = Simulation::new(Config { faults, ..config }, move |host| all.program(host, hosts));
    for (host, count) in (0..hosts).zip(channels.into_iter().cycle()) {
        // At most four links each way, plus the same again as a margin before the first retransmission.
        let timeout = Channels::new(count).timeout + 16 * options.delay;
        let channels = Channels { timeout, ..Channels::new(count) };
        simulation.install(HostId(host), StopAndWait::new(channels, &workload, HostId(host), hosts));
    }
    let failure = simulation.settle(options.limit).err().map(|failure| failure.to_string());
    let report = simulation.report();
    let latency = |per_10000| report.latency.quantile(per_10000).as_nanos() as u64;
    Row {
        loss: f64::from(loss) / 1e6,
        channels,
        goodput_bits_per_second: report.goodput(),
        latency_p50_ns: latency(5000),
        latency_p99_ns: latency(9900),
        packets_per_message: report.packets.sent as f64 / report.messages.delivered.max(1) as f64,
        delivered: report.messages.delivered,
        failure,
    }
}

fn words(options: &Options, rows: &[Row]) -> String {
    let mut table = new(&["loss", "protocol", "goodput", "median", "99 %", "packets per message"]);
    let time = |nanos| right(plot::duration(Duration::from_nanos(nanos)));
    for row in rows {
        table.add_row([
            right(row.loss_name()),
            Cell::new(row.protocol()),
            right(plot::rate(row.goodput_bits_per_second)),
            time(row.latency_p50_ns),
            time(row.latency_p99_ns),
            right(format!("{:.2}", row.packets_per_message)),
        ]);
    }
    let failures = rows.iter().filter_map(|row| {
        let failure = row.failure.as_ref()?;
        Some(format!("FAILED with {} loss, {}: {failure}\n", row.loss_name(), row.protocol()))
    });
    format!(
        "{table}\n{} messages of {} B of each host that sends; seed {}. Latency is from the call that took a message to its handler.\n{}",
        options.count,
        options.size,
        options.seed,
        failures.collect::<String>()
    )
}

fn draw(path: &Path, rows: &[Row]) -> Result<(), Error> {
    let kinds: Vec<String> = COUNTS.iter().map(u16::to_string).chain(["weft".to_string()]).collect();
    let lines: Vec<_> =
        rows.chunks(kinds.len()).map(|rows| (format!("{} loss", rows[0].loss_name()), measured(rows))).collect();
    super::write_plot(path, &plot::kinds("stop-and-wait by number of channels, and weft", &kinds, &lines))
}

fn measured(rows: &[Row]) -> Vec<Measured> {
    let one = |row: &Row| Measured {
        goodput: row.goodput_bits_per_second,
        latency: Duration::from_nanos(row.latency_p99_ns).as_secs_f64(),
        packets: row.packets_per_message,
    };
    rows.iter().map(one).collect()
}

impl Row {
    fn protocol(&self) -> String {
        match self.channels {
            None => "weft".to_string(),
            Some(1) => "1 channel".to_string(),
            Some(count) => format!("{count} channels"),
        }
    }

    fn loss_name(&self) -> String {
        format!("{} %", (self.loss * 1e6).round() / 1e4)
    }
}
