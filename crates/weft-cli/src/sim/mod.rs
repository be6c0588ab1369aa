//! `weft sim`: hosts that run weft over bad links, in virtual time and from one seed.

mod compare;
mod parse;

use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::output::{is_standard_output, print_beside, write_file};
use crate::progress::Progress;
use crate::tell::print_json;
use parse::Spell;
use serde::Serialize;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use weft_sim::plot;
use weft_sim::{
    chaos, Bursts, Change, Config, Failure, Faults, HostId, Link, Load, Loss, Method, Pattern, PerMillion, Plant,
    Report, Rule, Settings, Simulation, Topology, Workload,
};

/// Text after the options in `--help`.
const HELP: &str = "\
The hosts run the code that ships: weft's network interfaces and channels. Times are simulated, except the events per second. The \
same seed and options give the same trace hash on every machine. Every message is checked: it must end in exactly one outcome, with \
the contents that were sent. If one does not, the exit status is 1, and the command that repeats the run is printed. Faults \
happen on the links that lead from hosts. docs/design/sim.md has examples.";

/// The arguments of `weft sim`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = HELP)]
pub struct Options {
    /// How hosts are connected: pair, star:N, or tree:SxH (S switches with H hosts each).
    #[arg(long, default_value = "pair", value_name = "SHAPE", value_parser = parse::topology)]
    topology: Topology,
    /// Who sends what to whom.
    #[arg(long, default_value = "ping-pong", value_name = "NAME")]
    workload: Kind,
    /// Messages of each host that sends.
    #[arg(long, default_value_t = 10_000, value_name = "N")]
    count: u64,
    /// Bytes of a message.
    #[arg(long, default_value = "16", value_name = "BYTES", value_parser = parse::bytes)]
    size: u32,
    /// Senders ask to be told that one-way messages are stored.
    #[arg(long)]
    asks: bool,
    /// Messages that come back are sent again, to the next life of their host if need be.
    #[arg(long)]
    persists: bool,
    /// The seed of everything random. The same seed gives the same run.
    #[arg(long, default_value_t = 1, value_name = "N", conflicts_with = "seeds")]
    seed: u64,
    /// Runs once with each seed from A to B, both included: 1..10 makes ten runs.
    #[arg(long, value_name = "A..B", value_parser = parse::seeds)]
    seeds: Option<RangeInclusive<u64>>,
    /// Bits per second of a link.
    #[arg(long, default_value = "10G", value_name = "BITS", value_parser = parse::rate)]
    rate: u64,
    /// The delay from one end of a link to the other.
    #[arg(long, default_value = "5us", value_name = "TIME", value_parser = parse::duration)]
    delay: Duration,
    /// A random time up to this is added to each packet's delay.
    #[arg(long, default_value = "0us", value_name = "TIME", value_parser = parse::duration)]
    jitter: Duration,
    /// The most bytes that may wait for a link.
    #[arg(long, default_value = "512K", value_name = "BYTES", value_parser = parse::bytes)]
    queue: u32,
    /// The size of the largest packet, without the headers of IP and UDP.
    #[arg(long, default_value_t = 1472, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(548..=9000))]
    packet: u16,
    /// Packets that are lost.
    #[arg(long, default_value = "0%", value_name = "CHANCE", value_parser = parse::chance)]
    loss: PerMillion,
    /// Loses packets in bursts of 20 instead: half of them, once in 400.
    #[arg(long, conflicts_with = "loss")]
    bursts: bool,
    /// Packets that are duplicated.
    #[arg(long, default_value = "0%", value_name = "CHANCE", value_parser = parse::chance)]
    duplicate: PerMillion,
    /// How late a copy is at most.
    #[arg(long, default_value = "1ms", value_name = "TIME", value_parser = parse::duration)]
    copies_late: Duration,
    /// Packets that are overtaken by others.
    #[arg(long, default_value = "0%", value_name = "CHANCE", value_parser = parse::chance)]
    reorder: PerMillion,
    /// How many others overtake them, at most.
    #[arg(long, default_value_t = 64, value_name = "PACKETS")]
    window: u32,
    /// Packets that are damaged.
    #[arg(long, default_value = "0%", value_name = "CHANCE", value_parser = parse::chance)]
    corrupt: PerMillion,
    /// Drops all packets of one kind: acks, retransmissions, fresh, set-up or every; `:N` drops each N-th.
    #[arg(long, value_name = "SORT[:N]", value_parser = parse::rule)]
    drop: Option<Rule>,
    /// How often a host's kernel refuses a packet for now.
    #[arg(long, default_value = "0%", value_name = "CHANCE", value_parser = parse::chance)]
    full: PerMillion,
    /// Cuts a host off for a time. This and the next two options may be given several times.
    #[arg(long, value_name = "HOST@FROM..UNTIL", value_parser = parse::spell)]
    partition: Vec<Spell>,
    /// Ends a host, and starts it again.
    #[arg(long, value_name = "HOST@AT[..UNTIL]", value_parser = parse::spell)]
    crash: Vec<Spell>,
    /// Stops a host's process for a time.
    #[arg(long, value_name = "HOST@FROM..UNTIL", value_parser = parse::spell)]
    stop: Vec<Spell>,
    /// Lets everything go wrong for this long: faults, partitions, crashes and clocks, drawn from the seed.
    #[arg(long, value_name = "TIME", value_parser = parse::duration)]
    chaos: Option<Duration>,
    /// The largest difference in the speed of hosts' clocks, in parts per million.
    #[arg(long, default_value_t = 0, value_name = "PPM", value_parser = clap::value_parser!(u32).range(..=10_000))]
    skew: u32,
    /// A peer that is silent for this long is lost.
    #[arg(long, default_value = "3s", value_name = "TIME", value_parser = parse::duration)]
    suspicion: Duration,
    /// The congestion control: a window that follows the delay, or a fixed one.
    #[arg(long, default_value = "delay", value_name = "METHOD")]
    congestion: Congestion,
    /// Everything must be settled by this time.
    #[arg(long, default_value = "10min", value_name = "TIME", value_parser = parse::duration)]
    limit: Duration,
    /// Mishandles a message, to check that this is found: lose, repeat, change or return, and after how many messages.
    #[arg(long, value_name = "WHAT:N", value_parser = parse::plant)]
    plant: Option<(Plant, u64)>,
    /// Compares weft with stop-and-wait on 1 to 64 channels, as in the paper on virtual networks: one table over these losses.
    #[arg(long, value_name = "LOSS,...", num_args = 0..=1, require_equals = true, value_delimiter = ',',
        default_missing_value = "0%,1%,5%,15%", value_parser = parse::chance,
        conflicts_with_all = ["loss", "bursts", "drop", "seeds", "chaos", "partition", "crash", "stop", "plant"])]
    compare_channels: Option<Vec<PerMillion>>,
    /// Draws goodput, latencies and queues over time (of the last seed); `-` is standard output.
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Prints one JSON document and nothing else.
    #[arg(long)]
    json: bool,
}

/// How much may be under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Congestion {
    /// 512 KiB.
    Fixed,
    /// As much as keeps the path busy and its queues short.
    Delay,
}

impl From<Congestion> for Method {
    fn from(congestion: Congestion) -> Method {
        match congestion {
            Congestion::Fixed => Method::Fixed,
            Congestion::Delay => Method::Delay,
        }
    }
}

/// Who sends what to whom.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Kind {
    /// Each even host asks the next one, one request at a time.
    PingPong,
    /// Each host sends one-way messages to all others in turn.
    AllToAll,
    /// All hosts send one-way messages to the first.
    Incast,
    /// All hosts ask the first, up to 8 requests at a time each.
    ClientServer,
    /// Each even host sends one-way messages to the next one.
    Bulk,
}

impl From<Kind> for Pattern {
    fn from(kind: Kind) -> Pattern {
        match kind {
            Kind::PingPong => Pattern::PingPong,
            Kind::AllToAll => Pattern::AllToAll,
            Kind::Incast => Pattern::Incast,
            Kind::ClientServer => Pattern::ClientServer,
            Kind::Bulk => Pattern::Bulk,
        }
    }
}

/// A run, as it is reported.
#[derive(Debug, Serialize)]
struct Run {
    seed: u64,
    hash: String,
    events: u64,
    /// In real time.
    events_per_second: f64,
    seconds: f64,
    sent: u64,
    delivered: u64,
    completed: u64,
    returned: u64,
    unknown: u64,
    goodput_bits_per_second: f64,
    latency_ns: Percentiles,
    round_trip_ns: Percentiles,
    packets: Packets,
    failure: Option<String>,
    /// The command that repeats the run.
    command: String,
}

#[derive(Debug, Serialize)]
struct Percentiles {
    p50: u64,
    p99: u64,
    p99_9: u64,
    most: u64,
}

#[derive(Debug, Serialize)]
struct Packets {
    sent: u64,
    arrived: u64,
    queue_full: u64,
    lost: u64,
    aimed_at: u64,
    duplicated: u64,
    reordered: u64,
    corrupted: u64,
    too_large: u64,
    cut: u64,
    not_taken: u64,
    /// As counted by the senders that exist at the end.
    taken_for_lost: u64,
    timeouts: u64,
}

/// Runs the simulation with each seed.
pub fn run(options: &Options) -> Result<(), Error> {
    options.check()?;
    if let Some(losses) = &options.compare_channels {
        return compare::run(options, losses);
    }
    let interrupt = Interrupt::watch(|| {})?;
    let seeds = options.seeds.clone().unwrap_or(options.seed..=options.seed);
    let (plot, last) = (options.plot.as_deref(), *seeds.end());
    let bar = if options.json { Progress::hidden() } else { Progress::new() };
    let (mut runs, mut failed) = (Vec::new(), 0);
    for seed in seeds {
        let (mut simulation, began) = (options.simulation(seed), Instant::now());
        while simulation.now() < options.limit && !simulation.settle_some(options.limit) {
            if !simulation.violations().is_empty() {
                break;
            }
            interrupt.check()?;
            bar.say(progress(seed, &simulation, began));
        }
        let run = options.told(seed, &mut simulation, began.elapsed());
        failed += u64::from(run.failure.is_some());
        if !options.json {
            bar.aside(|| print_beside(plot, run.words()))?;
        }
        // A file is overwritten by the next seed's, which standard output cannot be.
        if let Some(path) = plot.filter(|path| seed == last || !is_standard_output(path)) {
            write_plot(path, &plot::svg(&run.command, &simulation.series()))?;
        }
        runs.push(run);
    }
    bar.clear();
    if options.json {
        print_json(&runs)?;
    } else if let (Some(seeds), 0) = (&options.seeds, failed) {
        let (count, plural) = (runs.len(), if runs.len() == 1 { "" } else { "s" });
        let (start, end) = (seeds.start(), seeds.end());
        print_beside(plot, format!("{count} run{plural}, seeds {start} to {end}: no promise was broken\n"))?;
    }
    match failed {
        0 => Ok(()),
        _ => Err(Error::Broken { failed, runs: runs.len() as u64 }),
    }
}

impl Options {
    /// Checks what clap cannot: that the hosts exist, and that standard output gets one document.
    fn check(&self) -> Result<(), Error> {
        if self.json && self.plot.as_deref().is_some_and(is_standard_output) {
            return Err(Error::Usage {
                cause: "--json and --plot - both write to standard output".to_owned(),
                way_out: "Name a file for the picture: --plot FILE.svg".to_owned(),
            });
        }
        let hosts = self.topology.hosts();
        let mut spells = self.partition.iter().chain(&self.crash).chain(&self.stop);
        match spells.find(|spell| spell.host.0 >= hosts) {
            None => Ok(()),
            Some(spell) => Err(Error::Usage {
                cause: format!("there is no host {}", spell.host.0),
                way_out: format!("Hosts are numbered from 0 to {}", hosts - 1),
            }),
        }
    }

    fn config(&self, seed: u64) -> Config {
        let loss = if self.bursts { Loss::Bursts(Bursts::default()) } else { Loss::Independent(self.loss) };
        let faults = Faults {
            loss,
            rule: self.drop,
            duplicate: self.duplicate,
            copies_late_most: self.copies_late,
            reorder: self.reorder,
            window: self.window,
            corrupt: self.corrupt,
            ..Faults::default()
        };
        let link = Link {
            rate: self.rate,
            delay: self.delay,
            jitter: self.jitter,
            queue: self.queue,
            packet_bytes: self.packet,
            ..Link::default()
        };
        let congestion = self.congestion.into();
        let settings = Settings { suspicion: self.suspicion, congestion, ..Settings::default() };
        Config {
            seed,
            topology: self.topology,
            link,
            faults,
            settings,
            skew_most: self.skew,
            full: self.full,
            ..Config::default()
        }
    }

    fn load(&self) -> Workload {
        let mut workload = Workload::new(self.workload.into(), self.count, self.size as usize);
        (workload.asks, workload.persists) = (self.asks, self.persists);
        workload
    }

    fn simulation(&self, seed: u64) -> Simulation<Load> {
        let (workload, hosts) = (self.load(), self.topology.hosts());
        let mut simulation = Simulation::new(self.config(seed), move |host: HostId| workload.program(host, hosts));
        self.plan(seed, &mut simulation);
        simulation
    }

    fn plan(&self, seed: u64, simulation: &mut Simulation<Load>) {
        for Spell { host, from, until } in self.partition.iter().copied() {
            simulation.at(from, Change::Isolate { host, from: true, to: true });
            until.into_iter().for_each(|at| simulation.at(at, Change::Isolate { host, from: false, to: false }));
        }
        for Spell { host, from, until } in self.crash.iter().copied() {
            simulation.at(from, Change::Crash(host));
            until.into_iter().for_each(|at| simulation.at(at, Change::Restart(host)));
        }
        for Spell { host, from, until } in self.stop.iter().copied() {
            simulation.at(from, Change::Stop(host, until.unwrap_or(self.limit).saturating_sub(from)));
        }
        for (at, change) in self.chaos.into_iter().flat_map(|until| chaos(seed, self.topology.hosts(), until)) {
            simulation.at(at, change);
        }
        if let Some((plant, after)) = self.plant {
            simulation.plant(plant, after);
        }
    }

    fn told(&self, seed: u64, simulation: &mut Simulation<Load>, took: Duration) -> Run {
        let failure = simulation.verdict().err().map(|failure| match failure {
            Failure::Unsettled { .. } => format!("{failure} ({})", plot::duration(self.limit)),
            failure => failure.to_string(),
        });
        let report = simulation.report();
        let Report { messages, .. } = report;
        Run {
            seed,
            hash: format!("{:016x}", report.hash),
            events: report.events,
            events_per_second: report.events as f64 / took.as_secs_f64().max(1e-9),
            seconds: report.time.as_secs_f64(),
            sent: messages.sent,
            delivered: messages.delivered,
            completed: messages.completed,
            returned: messages.returned,
            unknown: messages.unknown,
            goodput_bits_per_second: report.goodput(),
            latency_ns: Percentiles::of(&report.latency),
            round_trip_ns: Percentiles::of(&report.round_trips),
            packets: Packets::of(&report),
            failure,
            command: command(std::env::args().skip(1), seed),
        }
    }
}

/// The command line, for one seed.
fn command(arguments: impl Iterator<Item = String>, seed: u64) -> String {
    let (mut words, mut skips) = (vec!["weft".to_string()], false);
    for argument in arguments {
        if std::mem::take(&mut skips) {
            continue;
        }
        match argument.as_str() {
            "--seed" | "--seeds" => skips = true,
            other if other.starts_with("--seed=") || other.starts_with("--seeds=") => {}
            other if other.contains(|c: char| !(c.is_ascii_alphanumeric() || "-_=.,:/%@+".contains(c))) => {
                words.push(format!("'{}'", other.replace('\'', "'\\''")));
            }
            other => words.push(other.to_string()),
        }
    }
    words.extend(["--seed".to_string(), seed.to_string()]);
    words.join(" ")
}

fn progress(seed: u64, simulation: &Simulation<Load>, began: Instant) -> String {
    let (messages, events) = (simulation.messages(), simulation.events());
    format!(
        "seed {seed}: {} of the simulation's time, {} messages delivered, {:.2} million events a second",
        plot::duration(simulation.now()),
        messages.delivered,
        events as f64 / began.elapsed().as_secs_f64().max(1e-9) / 1e6
    )
}

fn write_plot(path: &Path, picture: &str) -> Result<(), Error> {
    write_file(path, picture, "Give a path that can be written")
}

impl Run {
    fn words(&self) -> String {
        let Run { seed, hash, events, sent, delivered, completed, returned, unknown, packets, .. } = self;
        let time = |nanos| plot::duration(Duration::from_nanos(nanos));
        let latency = |name: &str, p: &Percentiles| match p.most {
            0 => String::new(),
            _ => format!(
                "  {name}: median {}, 99 % {}, 99.9 % {}, most {}\n",
                time(p.p50),
                time(p.p99),
                time(p.p99_9),
                time(p.most)
            ),
        };
        let Packets { queue_full, lost, aimed_at, duplicated, reordered, corrupted, cut, .. } = packets;
        let outcome = match &self.failure {
            None => String::new(),
            Some(failure) => format!("  FAILED: {failure}\n  to repeat it: {}\n", self.command),
        };
        format!(
            "seed {seed}: hash {hash}, {} in {events} events, {:.2} million a second\n\
             \x20 messages: {sent} sent, {delivered} delivered, {completed} told done, {returned} returned as not delivered, \
             {unknown} as unknown\n\
             \x20 packets: {} sent, {lost} lost, {aimed_at} aimed at, {queue_full} found a queue full, {duplicated} copied, \
             {reordered} overtaken, {corrupted} damaged, {cut} cut off; {} taken for lost, {} time-outs\n\
             \x20 goodput: {}\n{}{}{outcome}",
            plot::duration(Duration::from_secs_f64(self.seconds)),
            self.events_per_second / 1e6,
            packets.sent,
            packets.taken_for_lost,
            packets.timeouts,
            plot::rate(self.goodput_bits_per_second),
            latency("message", &self.latency_ns),
            latency("request and answer", &self.round_trip_ns),
        )
    }
}

impl Percentiles {
    fn of(histogram: &weft_sim::Histogram) -> Percentiles {
        let at = |per_10000| histogram.quantile(per_10000).as_nanos() as u64;
        Percentiles { p50: at(5000), p99: at(9900), p99_9: at(9990), most: at(10_000) }
    }
}

impl Packets {
    fn of(report: &Report) -> Packets {
        let (done, channels) = (report.packets, report.channels);
        Packets {
            sent: done.sent,
            arrived: done.arrived,
            queue_full: done.queue_full,
            lost: done.lost,
            aimed_at: done.aimed_at,
            duplicated: done.duplicated,
            reordered: done.reordered,
            corrupted: done.corrupted,
            too_large: done.too_large,
            cut: done.cut,
            not_taken: done.not_taken,
            taken_for_lost: channels.packets_lost,
            timeouts: channels.timeouts,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_that_repeats_a_run_names_its_seed_and_keeps_the_rest() {
        let typed = ["sim", "--seeds", "1..100", "--loss", "30%", "--seed=4", "--plot", "a b.svg"];
        let command = command(typed.into_iter().map(str::to_string), 17);
        assert_eq!(command, "weft sim --loss 30% --plot 'a b.svg' --seed 17");
    }
}
