//! Congestion: links that are offered more than they carry. Each function measures weft's delay-based window in a run of its own.
//! `cargo run --release -p weft-sim --example congestion` prints them all.
//!
//! Goodput counts payloads. Shares are parts of [`capacity`], the payload that packets of full size carry on a link.

use crate::cubic::{CubicReceiver, CubicSender};
use crate::faults::{Faults, PerMillion};
use crate::network::Link;
use crate::program::{Context, Message, Notice, Program};
use crate::simulation::{Change, Config, Report, Simulation};
use crate::topology::{HostId, Links, Topology};
use std::time::Duration;
use weft_core::Outgoing;
use weft_transport::{Method, Random};
use weft_wire::packet::HEADER;
use weft_wire::Reason;

/// A link of 1 Gb/s with this delay and a queue of this many bytes.
pub fn gigabit(delay: Duration, queue: u32) -> Link {
    Link { rate: GIGABIT, delay, queue, ..Link::default() }
}

/// Bits of payload per second that a link carries in packets of full size.
pub fn capacity(link: Link) -> f64 {
    let (packet, header) = (f64::from(link.packet_bytes), HEADER as f64);
    link.rate as f64 * (packet - header) / (packet + f64::from(link.overhead))
}

/// Jain's index: 1 if all are equal, 1/n if one has everything.
pub fn jain(shares: &[f64]) -> f64 {
    let (sum, squares) = shares.iter().fold((0.0, 0.0), |(sum, squares), x| (sum + x, squares + x * x));
    if squares > 0.0 {
        sum * sum / (shares.len() as f64 * squares)
    } else {
        0.0
    }
}

/// Many send to one.
#[derive(Clone, Copy, Debug)]
pub struct Incast {
    /// Jain's index of the senders' goodputs.
    pub jain: f64,
    /// The share of the receiver's link.
    pub share: f64,
    /// Packets sent by all.
    pub sent: u64,
    /// Those of them that found a queue full.
    pub dropped: u64,
    /// The queue of the receiver's link.
    pub queue: Queue,
    /// Retransmission time-outs.
    pub timeouts: u64,
}

/// Bytes in a queue, sampled at equal intervals.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Queue {
    /// The median.
    pub p50: u64,
    /// The 99th percentile.
    pub p99: u64,
    /// The maximum.
    pub most: u64,
}

/// A link's rate falls while a flow uses it.
#[derive(Clone, Copy, Debug)]
pub struct RateFall {
    /// Bytes of a round trip on the slower link while its queue is empty.
    pub bytes_of_a_round_trip: u64,
    /// The queue in the second half of the time before the fall.
    pub before: Queue,
    /// The queue in the first 50 round trips after it.
    pub within: Queue,
    /// The queue after these.
    pub later: Queue,
    /// The share of the slower link after these.
    pub share: f64,
    /// Packets that found the queue full, in the whole run.
    pub dropped: u64,
}

/// Two flows share a link.
#[derive(Clone, Copy, Debug)]
pub struct Two {
    /// The shares of the first and the second flow.
    pub shares: [f64; 2],
    /// The queue of the shared link.
    pub queue: Queue,
    /// Packets that found that queue full.
    pub dropped: u64,
}

/// `senders` hosts send messages of 1 KiB to one host without end, over `link`s to and from a switch. It measures for `lasts`, from
/// 100 ms after the beginning.
pub fn incast(seed: u64, senders: u32, link: Link, lasts: Duration) -> Incast {
    let topology = Topology::Star(senders + 1);
    let mut simulation = flows(Config { topology, ..config(seed, link) }, 1024, |host| {
        (host.0 > 0).then_some((HostId(0), Duration::ZERO))
    });
    let began = Duration::from_millis(100);
    simulation.run_until(began);
    let (before, dropped_before) = (received(&simulation, HostId(0)), simulation.report());
    let queue = watch(&mut simulation, Links::To(HostId(0)), began + lasts);
    let after = received(&simulation, HostId(0));
    let rates: Vec<f64> = after.iter().zip(&before).skip(1).map(|(a, b)| bits(a - b, lasts)).collect();
    let report = good(&simulation);
    Incast {
        jain: jain(&rates),
        share: rates.iter().sum::<f64>() / capacity(link),
        sent: report.packets.sent - dropped_before.packets.sent,
        dropped: report.packets.queue_full - dropped_before.packets.queue_full,
        queue,
        timeouts: report.channels.timeouts - dropped_before.channels.timeouts,
    }
}

/// One flow of 8 KiB messages over `link`, whose rate falls to `rate` after a second. It measures for two more seconds.
pub fn rate_fall(seed: u64, link: Link, rate: u64) -> RateFall {
    let mut simulation = flows(config(seed, link), 8192, one_flow);
    let slow = Link { rate, ..link };
    let (falls, ends) = (Duration::from_secs(1), Duration::from_secs(3));
    let round_trip = 2 * link.delay;
    let links = Links::From(HostId(0));
    simulation.run_until(falls / 2);
    let before = watch(&mut simulation, links, falls);
    simulation.change(Change::Link(Links::All, slow));
    let within = watch(&mut simulation, links, falls + 50 * round_trip);
    let (came, from) = (received(&simulation, HostId(1))[0], simulation.now());
    let later = watch(&mut simulation, links, ends);
    let rate = bits(received(&simulation, HostId(1))[0] - came, ends - from);
    RateFall {
        bytes_of_a_round_trip: slow.rate / 8 * round_trip.as_nanos() as u64 / 1_000_000_000,
        before,
        within,
        later,
        share: rate / capacity(slow),
        dropped: good(&simulation).packets.queue_full,
    }
}

/// Two flows of 8 KiB messages to one host over `link`s. The second begins one second late. It measures from the third second to
/// the end of the fourth.
pub fn two_flows(seed: u64, link: Link) -> Two {
    let config = Config { topology: Topology::Star(3), ..config(seed, link) };
    let late = Duration::from_secs(1);
    let mut simulation = flows(config, 8192, move |host| match host {
        HostId(0) => None,
        HostId(number) => Some((HostId(0), late * (number - 1))),
    });
    simulation.run_until(2 * late);
    let before = received(&simulation, HostId(0));
    let queue = watch(&mut simulation, Links::To(HostId(0)), 4 * late);
    let after = received(&simulation, HostId(0));
    let share = |n: usize| bits(after[n] - before[n], 2 * late) / capacity(link);
    Two { shares: [share(1), share(2)], queue, dropped: good(&simulation).packets.queue_full }
}

/// A flow of weft, of 8 KiB messages, and one of [`CubicSender`], each between hosts of its own, over one `link` between switches.
/// Both begin at once. It measures from the end of the second second to the end of the tenth.
pub fn beside_cubic(seed: u64, link: Link) -> Two {
    with_cubic(seed, link, true)
}

/// [`CubicSender`] alone on the same link, to check that the model can fill it.
pub fn cubic_alone(seed: u64, link: Link) -> Two {
    with_cubic(seed, link, false)
}

fn with_cubic(seed: u64, link: Link, is_weft_there: bool) -> Two {
    let fast = Link { rate: 10 * GIGABIT, delay: Duration::from_micros(5), ..Link::default() };
    let (topology, trunk) = (Topology::Tree { switches: 2, hosts: 2 }, Some(link));
    let config = Config { topology, trunk, ..config(seed, fast) };
    let mut simulation =
        flows(config, 8192, move |host| (is_weft_there && host == HostId(2)).then_some((HostId(0), Duration::ZERO)));
    let receiver = CubicReceiver::default();
    let bytes = receiver.bytes();
    simulation.install(HostId(1), receiver);
    simulation.install(HostId(3), CubicSender::new(HostId(1), Duration::ZERO));
    let (begins, ends) = (Duration::from_secs(2), Duration::from_secs(10));
    simulation.run_until(begins);
    let before = [received(&simulation, HostId(0))[2], bytes.get()];
    let queue = watch(&mut simulation, Links::Trunks, ends);
    let after = [received(&simulation, HostId(0))[2], bytes.get()];
    let share = |n: usize| bits(after[n] - before[n], ends - begins) / capacity(link);
    Two { shares: [share(0), share(1)], queue, dropped: good(&simulation).packets.queue_full }
}

/// The share of `link` that one flow of 8 KiB messages gets in two seconds, from 100 ms after its first message arrived, if each
/// direction loses `loss` in a million packets; and the queue in that time.
pub fn one_flow_share(seed: u64, link: Link, loss: PerMillion) -> (f64, Queue) {
    let config = config(seed, link);
    let faults = Faults { carries: config.faults.carries, ..Faults::loss(loss) };
    let mut simulation = flows(Config { faults, ..config }, 8192, one_flow);
    while simulation.messages().delivered == 0 {
        simulation.run_for(Duration::from_millis(1));
    }
    simulation.run_for(Duration::from_millis(100));
    let (before, lasts) = (received(&simulation, HostId(1))[0], Duration::from_secs(2));
    let ends = simulation.now() + lasts;
    let queue = watch(&mut simulation, Links::From(HostId(0)), ends);
    let came = received(&simulation, HostId(1))[0] - before;
    good(&simulation);
    (bits(came, lasts) / capacity(link), queue)
}

/// One flow of 8 KiB messages between hosts that are away by turns, like two processes that share a core: each runs for `runs`,
/// then is away for `away`. Returns its share and the queue.
pub fn busy_hosts(seed: u64, link: Link, method: Method, runs: Duration, away: Duration) -> (f64, Queue) {
    let mut config = config(seed, link);
    config.settings.congestion = method;
    let mut simulation = flows(config, 8 << 10, one_flow);
    let mut random = Random::new(seed);
    let mut next = [Duration::ZERO, away];
    let mut live = |simulation: &mut Simulation<Flow>, lasts: Duration| {
        let ends = simulation.now() + lasts;
        let mut seen = Vec::new();
        while simulation.now() < ends {
            for host in [0, 1] {
                if simulation.now() >= next[host as usize] {
                    simulation.change(Change::Stop(HostId(host), away));
                    let varies = Duration::from_nanos(random.below(runs.as_nanos() as u64 / 4 + 1));
                    next[host as usize] = simulation.now() + away + runs + varies;
                }
            }
            simulation.run_for(LOOK_EVERY);
            seen.push(simulation.queued(Links::From(HostId(0))));
        }
        seen
    };
    live(&mut simulation, Duration::from_secs(1));
    let (before, lasts) = (received(&simulation, HostId(1))[0], Duration::from_secs(2));
    let seen = live(&mut simulation, lasts);
    let came = received(&simulation, HostId(1))[0] - before;
    good(&simulation);
    (bits(came, lasts) / capacity(link), Queue::of(seen))
}

/// Sends messages of one size without end, and counts the bytes that it receives.
struct Flow {
    /// The destination, and when it begins.
    to: Option<(HostId, Duration)>,
    payload: Vec<u8>,
    sent: u64,
    /// Bytes received, by sender.
    received: Vec<u64>,
}

impl Program for Flow {
    fn on_start(&mut self, cx: &mut Context<'_>) {
        self.received = vec![0; cx.hosts().count()];
        if let Some((_, starts)) = self.to {
            cx.wake_in(starts);
        }
    }

    fn on_message(&mut self, _cx: &mut Context<'_>, message: &Message<'_>) -> Result<(), Reason> {
        self.received[message.from.0 as usize] += message.payload.len() as u64;
        Ok(())
    }

    fn on_notice(&mut self, cx: &mut Context<'_>, notice: Notice) {
        if let Notice::CanSend(_) = notice {
            self.on_alarm(cx);
        }
    }

    fn on_alarm(&mut self, cx: &mut Context<'_>) {
        let Some((to, _)) = self.to else { return };
        loop {
            let args = [self.sent as u32, (self.sent >> 32) as u32];
            let message = Outgoing { op: 1, args: &args, payload: &self.payload, completion: None };
            if cx.try_send(to, message).is_err() {
                return;
            }
            self.sent += 1;
        }
    }
}

const GIGABIT: u64 = 1_000_000_000;

/// Queues are looked at this often.
const LOOK_EVERY: Duration = Duration::from_micros(10);

/// Two hosts with this link, whose packets are as large as it allows.
fn config(seed: u64, link: Link) -> Config {
    let faults = Faults { carries: link.packet_bytes, ..Faults::default() };
    Config { seed, link, faults, ..Config::default() }
}

fn one_flow(host: HostId) -> Option<(HostId, Duration)> {
    (host == HostId(0)).then_some((HostId(1), Duration::ZERO))
}

fn flows(config: Config, size: usize, to: impl Fn(HostId) -> Option<(HostId, Duration)> + 'static) -> Simulation<Flow> {
    Simulation::new(config, move |host| Flow { to: to(host), payload: vec![0; size], sent: 0, received: Vec::new() })
}

/// Bytes of payload that a host received, by sender.
fn received(simulation: &Simulation<Flow>, host: HostId) -> Vec<u64> {
    simulation.program(host).map_or_else(Vec::new, |flow| flow.received.clone())
}

/// Runs, and samples queues.
fn watch(simulation: &mut Simulation<Flow>, links: Links, until: Duration) -> Queue {
    let mut seen = Vec::new();
    while simulation.now() < until {
        simulation.run_for(LOOK_EVERY);
        seen.push(simulation.queued(links));
    }
    Queue::of(seen)
}

impl Queue {
    fn of(mut seen: Vec<u64>) -> Queue {
        seen.sort_unstable();
        let at = |per_cent: usize| seen.get((seen.len() * per_cent / 100).min(seen.len().saturating_sub(1))).copied();
        let [p50, p99, most] = [50, 99, 100].map(|per_cent| at(per_cent).unwrap_or(0));
        Queue { p50, p99, most }
    }
}

/// The report of a run in which no promise was broken.
///
/// # Panics
/// If a promise was broken.
fn good(simulation: &Simulation<Flow>) -> Report {
    assert_eq!(simulation.violations(), []);
    simulation.report()
}

fn bits(bytes: u64, time: Duration) -> f64 {
    bytes as f64 * 8.0 / time.as_secs_f64()
}
