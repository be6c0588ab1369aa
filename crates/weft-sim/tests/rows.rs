//! The rows of the simulated wire, with the code that ships: each in a short form that always runs, and in a long form under `make
//! soak`. `WEFT_SIM_TIMES=n` makes the long ones n times as long; `WEFT_SIM_SEED=n` begins with another seed.

use std::time::Duration;
use weft_sim::congestion::{beside_cubic, busy_hosts, gigabit, incast, one_flow_share, rate_fall, two_flows};
use weft_sim::{
    chaos, Bursts, Change, ClockChange, Config, Faults, HostId, Link, Load, Loss, Method, Pattern, Random, Report,
    Settings, Simulation, Time, Topology, Workload,
};

const A: HostId = HostId(0);
const B: HostId = HostId(1);
const SUSPICION: Duration = Duration::from_secs(3);

/// For long simulated times: a message takes so long that few are sent.
const SLOW: Link = Link {
    rate: 10_000_000,
    delay: Duration::from_millis(1),
    jitter: Duration::ZERO,
    queue: 64 << 10,
    overhead: 66,
    packet_bytes: 1472,
};

/// Loss in each direction (in a million), and the least share of the lossless goodput.
const GOODPUT_LEAST: [(u32, f64); 3] = [(10_000, 0.95), (50_000, 0.80), (150_000, 0.60)];

/// Hosts that run and then are away, in microseconds, and the least share of the link that one flow gets.
const BUSY_LEAST: [(u64, u64, f64); 3] = [(1_000, 200, 0.95), (300, 300, 0.95), (3_000, 3_000, 0.3)];

/// Incast, 64 to 1: Jain's index of the senders' goodputs, and the share of the link that all get together.
const INCAST_JAIN_LEAST: f64 = 0.95;
const INCAST_SHARE_LEAST: f64 = 0.9;
/// The queue's 99th percentile from 50 round trips after the rate fell, in bytes of a round trip.
const QUEUE_AFTER_FALL_MOST: f64 = 2.0;
/// The least share of a link for weft and for CUBIC, and the sizes of its queue in bytes of a round trip.
const BESIDE_CUBIC_LEAST: f64 = 0.3;
const BESIDE_CUBIC_QUEUES: [u32; 2] = [1, 4];
/// The least share of the slower of two weft flows.
const LESSER_FLOW_LEAST: f64 = 0.3;

fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(otherwise)
}

/// Which form of a row runs.
#[derive(Clone, Copy)]
enum Form {
    Short,
    Long,
}

impl Form {
    /// The amount for this form.
    fn of(self, short: u64, long: u64) -> u64 {
        match self {
            Form::Short => short,
            Form::Long => long * number("WEFT_SIM_TIMES", 1),
        }
    }
}

/// Whether each run and its outcome are printed.
fn talks() -> bool {
    std::env::var_os("WEFT_SIM_TALK").is_some()
}

/// Runs a row for one seed after the other.
fn seeds(row: &str, runs: u64, mut run: impl FnMut(u64)) {
    let first = number("WEFT_SIM_SEED", 1);
    for seed in first..first + runs {
        if talks() {
            println!("{row}: seed {seed}");
        }
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(seed)));
        if let Err(cause) = outcome {
            println!("to repeat: WEFT_SIM_SEED={seed} cargo test -p weft-sim --profile tests --test rows {row}");
            std::panic::resume_unwind(cause);
        }
    }
}

fn simulation(config: Config, workload: Workload) -> Simulation<Load> {
    Simulation::new(config, move |host| workload.program(host, config.topology.hosts()))
}

/// Settles, or panics with the reason. Prints the outcome if `talks`.
fn settled(simulation: &mut Simulation<Load>, latest: Duration) -> Report {
    let report = simulation.settle(latest).unwrap_or_else(|failure| panic!("{failure}"));
    if talks() {
        let Report { hash, messages, packets, .. } = &report;
        let (sent, delivered, returned) = (messages.sent, messages.delivered, messages.returned + messages.unknown);
        println!(
            "    sent {sent}, delivered {delivered}, returned {returned}; packets lost {}, reordered {}; hash {hash:016x}",
            packets.lost, packets.reordered
        );
    }
    report
}

/// One-way messages between hosts over a bad link. All must be delivered.
fn all_delivered(seed: u64, count: u64, size: usize, faults: Faults, latest: Duration) -> Report {
    let config = Config { seed, faults, ..Config::default() };
    let mut workload = Workload::new(Pattern::Bulk, count, size);
    workload.asks = seed % 2 == 0;
    let report = settled(&mut simulation(config, workload), latest);
    let messages = report.messages;
    assert_eq!((messages.delivered, messages.returned, messages.unknown), (count, 0, 0), "{report:?}");
    report
}

fn s1(form: Form) {
    let link = Link { queue: 64 << 20, ..Link::default() };
    let config = Config { topology: Topology::Star(64), link, ..Config::default() };
    let each = form.of(2_000, 1_600_000);
    let report = settled(&mut simulation(config, Workload::new(Pattern::AllToAll, each, 32)), seconds(600));
    assert_eq!(report.messages.delivered, 64 * each);
    assert_eq!((report.channels.packets_lost, report.channels.timeouts), (0, 0), "nothing is sent twice");
}

fn s2(form: Form) {
    let link = gigabit(Duration::from_micros(100), 512 << 10);
    seeds("s2", form.of(1, 100), |seed| {
        let goodput = |loss| {
            let faults = Faults { carries: link.packet_bytes, ..Faults::loss(loss) };
            let config = Config { seed, link, faults, ..Config::default() };
            let each = form.of(30_000, 100_000);
            let mut simulation = simulation(config, Workload::new(Pattern::Bulk, each, 1024));
            // A lost call is repeated only after 100 ms, which is not a matter of goodput.
            while simulation.messages().delivered == 0 {
                simulation.run_for(millis(1));
            }
            let (began, before) = (simulation.now(), simulation.messages().bytes);
            let report = settled(&mut simulation, seconds(3600));
            let Report { messages, .. } = report;
            assert_eq!((messages.delivered, messages.returned, messages.unknown), (each, 0, 0), "{report:?}");
            (messages.bytes - before) as f64 * 8.0 / (report.last_delivery - began).as_secs_f64()
        };
        let lossless = goodput(0);
        for (loss, least) in GOODPUT_LEAST {
            let part = goodput(loss) / lossless;
            assert!(part >= least, "loss of {loss} in a million leaves {part:.3} of {lossless:.0} b/s");
        }
    });
}

fn s3(form: Form) {
    let faults = Faults { reorder: 300_000, window: 64, ..Faults::loss(300_000) };
    // 10^6 messages, or 10^8.
    let each = form.of(50_000, 100_000);
    seeds("s3", form.of(20, 1000), |seed| {
        let report = all_delivered(seed, each, 16, faults, seconds(3600));
        assert!(report.packets.lost > 0 && report.packets.reordered > 0);
    });
}

/// Loss so heavy that a peer may be taken for silent. Then messages may be returned as unknown, but not otherwise.
fn s4(form: Form) {
    for loss in [500_000, 900_000] {
        seeds("s4", form.of(5, 200), |seed| {
            let mut workload = Workload::new(Pattern::ClientServer, 2000, 40);
            workload.gives_up = true;
            let config = Config { seed, topology: Topology::Star(4), faults: Faults::loss(loss), ..Config::default() };
            let report = settled(&mut simulation(config, workload), seconds(3600));
            let messages = report.messages;
            // One call in 2,400 gets none of its 27 tries through and back; but a peer that was heard once is not taken for lost.
            let all = messages.completed + 2000 * messages.returned;
            assert!(loss > 500_000 || (all, messages.unknown) == (6000, 0), "{messages:?}");
        });
    }
}

fn s5(form: Form) {
    let faults = Faults { loss: Loss::Bursts(Bursts::default()), ..Faults::default() };
    seeds("s5", form.of(10, 1000), |seed| {
        let report = all_delivered(seed, 10_000, 256, faults, seconds(3600));
        assert!(report.packets.lost > 0);
    });
}

fn s6(form: Form) {
    let faults = Faults { duplicate: 500_000, copies_late_most: seconds(60), ..Faults::default() };
    seeds("s6", form.of(5, 1000), |seed| {
        // Copies outlive the channels and the lives of the packets that they were copied from.
        let mut workload = Workload::new(Pattern::PingPong, u64::MAX, 100);
        (workload.persists, workload.stops_at) = (true, Some(seconds(40)));
        let mut simulation = simulation(Config { seed, faults, link: SLOW, ..Config::default() }, workload);
        for n in 1..6 {
            simulation.at(seconds(n * 6), Change::Restart(B));
        }
        // Old copies are answered by resets, and these are copied, too.
        simulation.run_until(seconds(40 + 60 + 60 + 60));
        let report = simulation.verdict().unwrap_or_else(|failure| panic!("{failure}"));
        assert!(report.packets.duplicated > 5000 && report.messages.completed > 5000, "{report:?}");
        let packets = report.packets;
        let came = packets.arrived + packets.not_taken;
        assert_eq!(came, packets.sent + packets.duplicated, "the last copy came: {packets:?}");
    });
}

fn s7(form: Form) {
    seeds("s7", form.of(300, 100_000), |seed| {
        let mut random = Random::new(seed);
        let pattern = [Pattern::Bulk, Pattern::PingPong, Pattern::AllToAll][random.below(3) as usize];
        let mut workload = Workload::new(pattern, 100_000, random.below(3000) as usize);
        (workload.gives_up, workload.asks) = (true, random.chance(500_000));
        let mut simulation = simulation(Config { seed, ..Config::default() }, workload);
        let silent_at = Duration::from_nanos(random.below(2_000_000));
        simulation.run_until(silent_at);
        simulation.change(match random.chance(500_000) {
            true => Change::Crash(B),
            false => Change::Isolate { host: B, from: true, to: true },
        });
        let timeout = millis(200);
        simulation.hurry();
        simulation.run_for(SUSPICION + timeout);
        assert_eq!(simulation.open_messages(), 0, "all have ended in {SUSPICION:?} and a time-out");
        assert_eq!(simulation.violations(), []);
    });
}

fn s8(form: Form) {
    seeds("s8", form.of(60, 5000), |seed| {
        let mut random = Random::new(seed);
        let mut workload = Workload::new(Pattern::PingPong, u64::MAX, 64);
        (workload.persists, workload.stops_at) = (true, Some(seconds(20)));
        let mut simulation = simulation(Config { seed, link: SLOW, ..Config::default() }, workload);
        let mut at = millis(1);
        for _ in 0..3 {
            let lasts = Duration::from_micros(1000 * 10u64.pow(random.below(4) as u32) + random.below(1_000_000));
            let (from, to) = if random.chance(500_000) { (A, B) } else { (B, A) };
            simulation.run_until(at);
            simulation.change(Change::Cut(from, to));
            simulation.run_for(lasts);
            simulation.change(Change::Heal);
            let before = simulation.messages().delivered;
            // An unanswered call is repeated after as long again, and a lost peer is looked up after 20 ms.
            simulation.run_for(2 * SUSPICION / 32 + millis(50));
            assert!(simulation.messages().delivered > before, "goes on soon after {lasts:?} of silence");
            at = simulation.now() + millis(random.below(300));
        }
        settled(&mut simulation, seconds(60));
    });
}

fn s10(form: Form) {
    let faults = Faults { corrupt: 300_000, ..Faults::default() };
    seeds("s10", form.of(10, 1000), |seed| {
        let report = all_delivered(seed, 20_000, 300, faults, seconds(3600));
        let counters = report.channels;
        assert!(counters.dropped_malformed > 0);
        let dropped = counters.dropped_malformed + counters.dropped_foreign + counters.dropped_old;
        assert!(dropped + 20 >= report.packets.corrupted * 9 / 10, "{report:?}");
        assert_eq!(counters.dropped_violation, 0, "nothing that was damaged got past the checksum");
    });
}

fn s11(form: Form) {
    seeds("s11", form.of(60, 10_000), |seed| {
        let mut random = Random::new(seed);
        let mut workload = Workload::new(Pattern::PingPong, u64::MAX, 64);
        workload.stops_at = Some(seconds(10));
        let link = Link { delay: millis(1), ..Link::default() };
        let mut simulation = simulation(Config { seed, skew_most: 500, link, ..Config::default() }, workload);
        for _ in 0..3 {
            let change = match random.below(3) {
                0 => ClockChange::Ahead(seconds(random.below(3600))),
                1 => ClockChange::Freeze(millis(random.below(2000))),
                _ => ClockChange::Skew(random.below(1001) as i32 - 500),
            };
            let host = HostId(random.below(2) as u32);
            simulation.at(millis(random.below(5000)), Change::Clock(host, change));
        }
        let report = settled(&mut simulation, seconds(60));
        assert_eq!((report.messages.returned, report.messages.unknown), (0, 0), "nobody was taken for dead");
        let round_trip = simulation.channels(A)[0].round_trip.expect("measured");
        assert!((millis(1)..millis(4)).contains(&round_trip), "the estimate recovered: {round_trip:?}");
    });
}

fn s12(form: Form) {
    // Packet numbers and offsets of streams always begin a little below 2^32; here clocks do, too, of 16 and of 32 bits.
    let starts = [(1u64 << 16) - 100, (1 << 32) - 100, (1 << 32) - 2_000_000, (1 << 48) - 100];
    for (seed, start) in (1..).zip(starts) {
        let config = Config { seed, clock_start: Time::from_micros(start), skew_most: 100, ..Config::default() };
        let count = form.of(50_000, 1_000_000);
        let report = settled(&mut simulation(config, Workload::ping_pong(count)), seconds(3600));
        assert_eq!(report.messages.completed, count);
        assert_eq!((report.channels.packets_lost, report.channels.timeouts), (0, 0), "clocks that begin at {start} µs");
        let faults = Faults::loss(50_000);
        let mut workload = Workload::new(Pattern::Bulk, 4000, 1000);
        workload.asks = true;
        let report = settled(&mut simulation(Config { faults, ..config }, workload), seconds(3600));
        assert_eq!(report.messages.delivered, 4000);
    }
}

fn s14(form: Form) {
    let link = gigabit(Duration::from_micros(25), 64 << 10);
    seeds("s14", form.of(1, 30), |seed| {
        let row = incast(seed, 64, link, seconds(1));
        println!("s14: {row:?}");
        assert!(row.jain >= INCAST_JAIN_LEAST, "{row:?}");
        assert!(row.share >= INCAST_SHARE_LEAST, "{row:?}");
    });
}

/// The rate of a link falls from 1 Gb/s to a tenth.
fn rate_falls(form: Form) {
    for (delay, share) in [(200, 0.9), (500, 0.95)] {
        seeds("rate_falls", form.of(4, 30), |seed| {
            let row = rate_fall(seed, gigabit(Duration::from_micros(delay), 512 << 10), 100_000_000);
            println!("rate_falls: {row:?}");
            let most = row.bytes_of_a_round_trip as f64 * QUEUE_AFTER_FALL_MOST;
            assert!(row.later.p99 as f64 <= most, "{row:?}");
            assert!(row.share >= share, "{row:?}");
        });
    }
}

/// A flow fills 1 Gb/s with a delay of 200 µs.
fn long_way(form: Form) {
    seeds("long_way", form.of(1, 30), |seed| {
        let (share, queue) = one_flow_share(seed, gigabit(Duration::from_micros(200), 512 << 10), 0);
        assert!((0.97..=1.0).contains(&share), "{share} {queue:?}");
    });
}

/// Hosts that are away by turns: the congestion control must not take their absence for a queue.
fn busy_ends(form: Form) {
    let micros = Duration::from_micros;
    for (runs, away, least) in BUSY_LEAST {
        seeds("busy_ends", form.of(1, 30), |seed| {
            let link = gigabit(micros(100), 512 << 10);
            let (share, queue) = busy_hosts(seed, link, Method::Delay, micros(runs), micros(away));
            println!("busy_ends: away for {away} of {} µs: {share:.3} {queue:?}", runs + away);
            assert!(share >= least, "away for {away} of {} µs: {share} {queue:?}", runs + away);
        });
    }
}

/// Two flows, of which one begins a second late.
fn two_share(form: Form) {
    seeds("two_share", form.of(1, 30), |seed| {
        let row = two_flows(seed, gigabit(Duration::from_micros(50), 64 << 10));
        println!("two_share: {row:?}");
        let [first, second] = row.shares;
        assert!(first.min(second) >= LESSER_FLOW_LEAST && first + second >= 0.85, "{row:?}");
    });
}

/// TCP beside weft.
fn beside_tcp(form: Form) {
    for round_trips in BESIDE_CUBIC_QUEUES {
        seeds("beside_tcp", form.of(1, 10), |seed| {
            let row = beside_cubic(seed, gigabit(Duration::from_micros(95), round_trips * 50_000));
            println!("beside_tcp: room for {round_trips} round trips: {row:?}");
            assert!(row.shares.iter().all(|share| *share >= BESIDE_CUBIC_LEAST), "{round_trips}: {row:?}");
        });
    }
}

fn s15(form: Form) {
    seeds("s15", form.of(10, 1000), |seed| {
        let config = Config { seed, full: 50_000, faults: Faults::loss(50_000), ..Config::default() };
        let report = settled(&mut simulation(config, Workload::new(Pattern::Bulk, 20_000, 700)), seconds(600));
        assert_eq!(report.messages.delivered, 20_000);
    });
}

/// Everything at once, on 2 to 16 hosts; with the feature `rare`, rare paths fired on purpose as well.
fn s16(form: Form) {
    let mut met = [0; 8];
    seeds("s16", form.of(60, 10_000), |seed| {
        #[cfg(feature = "rare")]
        let _fires = weft_transport::rare::Switch::on(seed, 50_000);
        let mut random = Random::new(seed);
        let topology = match random.below(3) {
            0 => Topology::Pair,
            1 => Topology::Star(2 + random.below(15) as u32),
            _ => Topology::Tree { switches: 2 + random.below(2) as u32, hosts: 2 + random.below(4) as u32 },
        };
        let until = millis(1 + random.below(20_000));
        let patterns = [Pattern::PingPong, Pattern::AllToAll, Pattern::Incast, Pattern::ClientServer, Pattern::Bulk];
        let pattern = patterns[random.below(5) as usize];
        let most = if random.chance(100_000) { 65_000 } else { 5000 };
        let size = random.below(most) as usize;
        let mut workload = Workload::new(pattern, u64::MAX, size);
        // Up to a few hundred sends of each host, spread over the time of the faults and beyond.
        workload.pace = Some(until / (20 + random.below(300) as u32));
        let settings = Settings {
            suspicion: if random.chance(500_000) { SUSPICION } else { millis(50 + random.below(1000)) },
            window: 128 << (10 + random.below(3)),
            send_most: 128 << (10 + random.below(3)),
            packet_most: if random.chance(500_000) { 9000 } else { 1472 },
            ..Settings::default()
        };
        let link = Link { packet_bytes: if random.chance(800_000) { 1472 } else { 8000 }, ..Link::default() };
        (workload.persists, workload.asks) = (random.chance(500_000), random.chance(500_000));
        workload.stops_at = Some(until + until / 4);
        let config = Config { seed, topology, settings, link, skew_most: 500, ..Config::default() };
        let mut simulation = simulation(config, workload);
        for (at, change) in chaos(seed, topology.hosts(), until) {
            simulation.at(at, change);
        }
        let Report { messages, packets, .. } = settled(&mut simulation, until + seconds(120));
        let now = [
            messages.delivered,
            messages.returned,
            messages.unknown,
            packets.lost,
            packets.corrupted,
            packets.cut,
            packets.not_taken,
            packets.too_large,
        ];
        met.iter_mut().zip(now).for_each(|(all, now)| *all += now);
    });
    println!("delivered, returned, unknown, lost, corrupted, cut, not taken, too large: {met:?}");
    assert!(met.iter().all(|met| *met > 0), "everything happened: {met:?}");
}

/// After the faults end, everything settles soon.
fn s18(form: Form) {
    seeds("s18", form.of(60, 10_000), |seed| {
        let mut random = Random::new(seed);
        let hosts = 2 + random.below(4) as u32;
        let until = millis(1 + random.below(4000));
        let plan = chaos(seed, hosts, until);
        let ends = plan.last().map_or(until, |(at, _)| *at);
        let mut workload = Workload::new(Pattern::AllToAll, u64::MAX, 100);
        workload.stops_at = Some(until);
        let config = Config { seed, topology: Topology::Star(hosts), link: SLOW, ..Config::default() };
        let mut simulation = simulation(config, workload);
        plan.into_iter().for_each(|(at, change)| simulation.at(at, change));
        simulation.run_until(ends);
        simulation.hurry();
        let (round_trip, timeout) = (millis(60), millis(200));
        simulation.run_for(SUSPICION + 10 * round_trip + timeout);
        assert_eq!(simulation.open_messages(), 0, "all messages have ended");
        assert_eq!(simulation.violations(), []);
    });
}

macro_rules! rows {
    ($($row:ident $long:ident),*) => {
        $(
            #[test]
            fn $row() {
                super::$row(super::Form::Short);
            }

            #[test]
            #[ignore = "the long form; make soak runs it"]
            fn $long() {
                super::$row(super::Form::Long);
            }
        )*
    };
}

mod row {
    rows!(
        s1 s1_long, s2 s2_long, s3 s3_long, s4 s4_long, s5 s5_long, s6 s6_long, s7 s7_long, s8 s8_long, s10 s10_long,
        s11 s11_long, s12 s12_long, s14 s14_long, s15 s15_long, s16 s16_long, s18 s18_long, rate_falls rate_falls_long,
        long_way long_way_long, busy_ends busy_ends_long, two_share two_share_long, beside_tcp beside_tcp_long
    );
}
