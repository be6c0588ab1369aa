//! Joins the stamps of two processes for the same request. The flow and the slot identify a request while it is under way.

use std::collections::BTreeMap;
use std::path::PathBuf;
use weft::status::{Answered, Asked, Found, Look, Operation, StampedFlow, Stamps};
use weft::Name;
use weft_wire::{EndpointId, Epoch};

/// The most requests that wait for the other side's stamps.
const WAITING_MOST: usize = 1 << 16;

/// Longer round trips are nonsense: an hour.
const ROUND_TRIP_MOST: u64 = 3600 * 1_000_000_000;

/// The flow of requests from one endpoint to another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Pair {
    pub from: (Epoch, EndpointId),
    pub to: (Epoch, EndpointId),
    pub number: u16,
}

/// The duration of each stage of a request and its answer, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stages {
    /// Sent, there, handled, replied, back, taken.
    Six([u64; 6]),
    /// The answering process is not seen here, or has another clock. Sent, away, taken.
    Three([u64; 3]),
}

impl Stages {
    pub fn each(&self) -> &[u64] {
        match self {
            Stages::Six(stages) => stages,
            Stages::Three(stages) => stages,
        }
    }
}

/// A request that was answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Trip {
    pub pair: Pair,
    /// What it does to a region, and to which one, if the region's process was seen.
    pub operation: Option<Operation>,
    pub region: Option<u32>,
    /// When the program called, by the machine's clock.
    pub called_ns: u64,
    pub stages: Stages,
    /// From the call to the end of the reply's handler, as the requester measured it.
    pub round_trip_ns: u64,
}

/// Counts of requests without figures.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Lost {
    /// Requests that only one of the two sides stamped.
    pub one_sided: u64,
    /// Requests with impossible stamps.
    pub odd: u64,
    /// Requests that were stamped and forgotten before they were read.
    pub missed: u64,
}

/// A slot of a flow.
type Place = (Pair, u16);

/// Stamps that have not found their other half.
#[derive(Debug, Default)]
pub struct Joiner {
    looks: u64,
    /// How many requests each bundle had stamped at the last look.
    so_far: BTreeMap<(String, u32), u64>,
    /// The time namespace of each process, where the kernel shows it.
    clocks: BTreeMap<String, Option<PathBuf>>,
    /// Each with the look that brought it.
    asked: Vec<(Pair, Asked, u64)>,
    answered: BTreeMap<(Place, u64), (Answered, u64)>,
    pub lost: Lost,
}

impl Joiner {
    /// Takes the stamps of a look. Returns the requests with both halves.
    pub fn take(&mut self, look: &Look) -> Vec<Trip> {
        self.looks += 1;
        // Forget processes that have ended.
        self.so_far.retain(|(epoch, _), _| look.processes.iter().any(|found| found.epoch == *epoch));
        self.clocks.retain(|epoch, _| look.processes.iter().any(|found| found.epoch == *epoch));
        for found in &look.processes {
            let Ok(process) = &found.answer else { continue };
            self.clocks.entry(found.epoch.clone()).or_insert_with(|| clock_of(found.pid));
            for bundle in &process.bundles {
                if let Some(stamps) = &bundle.stamps {
                    self.take_stamps(found, bundle.bundle, stamps);
                }
            }
        }
        let now = self.looks;
        // The matching request comes with the next look at the latest.
        self.answered.retain(|_, (_, since)| *since + 1 >= now);
        let mut trips = Vec::new();
        let asked = std::mem::take(&mut self.asked);
        for (pair, asked, since) in asked {
            if self.has_two_clocks(pair) {
                trips.push(Trip::half(pair, &asked));
                continue;
            }
            match self.find(pair, &asked) {
                Some(answered) => trips.push(Trip::whole(pair, &asked, &answered)),
                None if !is_seen(look, pair.to.0) => trips.push(Trip::half(pair, &asked)),
                None if since == now => self.asked.push((pair, asked, since)),
                None => self.lost.one_sided += 1,
            }
        }
        trips
    }

    /// Whether the two processes of a pair are in different time namespaces: their clocks cannot be compared.
    pub fn has_two_clocks(&self, pair: Pair) -> bool {
        let [from, to] = [pair.from.0, pair.to.0].map(|epoch| self.clocks.get(&printed(epoch)).cloned().flatten());
        from.zip(to).is_some_and(|(from, to)| from != to)
    }

    /// The one answer that was given while the request held its slot.
    fn find(&self, pair: Pair, asked: &Asked) -> Option<Answered> {
        let place = (pair, asked.slot);
        let mut fits = self.answered.range((place, asked.called_ns)..=(place, asked.seen_ns));
        let (_, (answered, _)) = fits.next()?;
        (fits.next().is_none() && answered.replied_ns <= asked.seen_ns).then_some(*answered)
    }

    fn take_stamps(&mut self, found: &Found, bundle: u32, stamps: &Stamps) {
        let Stamps { so_far, flows, asked, answered } = stamps;
        let last = self.so_far.insert((found.epoch.clone(), bundle), *so_far);
        // A smaller count than before means a new process.
        let last = last.filter(|last| last <= so_far);
        let from = last.unwrap_or(0);
        let mut new = 0u64;
        let pairs: Vec<Option<Pair>> = flows.iter().map(Pair::read).collect();
        let pair = |flow: u32| pairs.get(flow as usize).copied().flatten();
        for asked in asked.iter().filter(|asked| asked.number >= from) {
            new += 1;
            // A process is identified by its socket's name, not by what it says.
            match pair(asked.flow).filter(|pair| is_of(found, pair.from.0) && asked.is_in_order()) {
                Some(pair) if self.asked.len() < WAITING_MOST => self.asked.push((pair, *asked, self.looks)),
                Some(_) => self.lost.missed += 1,
                None => self.lost.odd += 1,
            }
        }
        for answered in answered.iter().filter(|answered| answered.number >= from) {
            new += 1;
            match pair(answered.flow).filter(|pair| is_of(found, pair.to.0) && answered.is_in_order()) {
                Some(pair) if self.answered.len() < WAITING_MOST => {
                    self.answered.insert(((pair, answered.slot), answered.seen_ns), (*answered, self.looks));
                }
                Some(_) => self.lost.missed += 1,
                None => self.lost.odd += 1,
            }
        }
        if last.is_some() {
            self.lost.missed = self.lost.missed.saturating_add((so_far - from).saturating_sub(new));
        }
    }
}

/// The time namespace of a process. `None` if the kernel does not show it: then its clock is taken to be the same as the others'.
fn clock_of(pid: Option<u32>) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{}/ns/time", pid?)).ok()
}

/// An epoch as processes print it.
fn printed(epoch: Epoch) -> String {
    format!("{:016x}", epoch.0)
}

/// Whether the process is of this epoch.
fn is_of(found: &Found, epoch: Epoch) -> bool {
    found.epoch == printed(epoch)
}

/// Whether the process of this epoch was seen and reports its messages.
fn is_seen(look: &Look, epoch: Epoch) -> bool {
    look.processes.iter().any(|found| found.answer.is_ok() && is_of(found, epoch))
}

trait InOrder {
    fn is_in_order(&self) -> bool;
}

impl InOrder for Asked {
    fn is_in_order(&self) -> bool {
        let &Asked { called_ns, written_ns, seen_ns, done_ns, .. } = self;
        called_ns <= written_ns
            && called_ns <= seen_ns
            && seen_ns <= done_ns
            && written_ns <= done_ns
            && done_ns - called_ns <= ROUND_TRIP_MOST
    }
}

impl InOrder for Answered {
    fn is_in_order(&self) -> bool {
        self.seen_ns <= self.replied_ns && self.replied_ns <= self.written_ns
    }
}

impl Pair {
    fn read(flow: &StampedFlow) -> Option<Pair> {
        let end = |name: &str| name.parse::<Name>().ok().map(|name| (name.epoch, name.endpoint));
        Some(Pair { from: end(&flow.from)?, to: end(&flow.to)?, number: flow.number })
    }
}

impl Trip {
    fn whole(pair: Pair, asked: &Asked, answered: &Answered) -> Trip {
        // The sender may read the clock after the receiver has seen the message. Then no time is left for the way.
        let written = asked.written_ns.min(answered.seen_ns);
        let replied = answered.written_ns.min(asked.seen_ns);
        let moments =
            [asked.called_ns, written, answered.seen_ns, answered.replied_ns, replied, asked.seen_ns, asked.done_ns];
        let stages: [u64; 6] = std::array::from_fn(|at| moments[at + 1] - moments[at]);
        Trip { region: answered.region, ..Trip::new(pair, asked, Stages::Six(stages)) }
    }

    fn half(pair: Pair, asked: &Asked) -> Trip {
        let written = asked.written_ns.min(asked.seen_ns);
        let moments = [asked.called_ns, written, asked.seen_ns, asked.done_ns];
        let stages: [u64; 3] = std::array::from_fn(|at| moments[at + 1] - moments[at]);
        Trip::new(pair, asked, Stages::Three(stages))
    }

    fn new(pair: Pair, asked: &Asked, stages: Stages) -> Trip {
        let round_trip_ns = asked.done_ns - asked.called_ns;
        Trip { pair, operation: asked.operation, region: None, called_ns: asked.called_ns, stages, round_trip_ns }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;
    use weft::status::Process;
    use weft_wire::HostAddress;

    const HERE: Epoch = Epoch(0xa);
    const THERE: Epoch = Epoch(0xb);

    fn name(epoch: Epoch) -> String {
        Name { epoch, endpoint: EndpointId(1), uid: weft_wire::Uid(0), address: HostAddress::NONE }.to_string()
    }

    fn flow() -> StampedFlow {
        StampedFlow { from: name(HERE), to: name(THERE), number: 0 }
    }

    fn asked(number: u64, at: u64) -> Asked {
        Asked {
            number,
            flow: 0,
            slot: 3,
            operation: None,
            called_ns: at,
            written_ns: at + 10,
            seen_ns: at + 100,
            done_ns: at + 120,
        }
    }

    fn answered(number: u64, at: u64) -> Answered {
        Answered { number, flow: 0, slot: 3, region: None, seen_ns: at + 40, replied_ns: at + 50, written_ns: at + 60 }
    }

    fn found(epoch: Epoch, stamps: &Stamps) -> Found {
        let bundle = serde_json::json!({
            "bundle": 0, "activity": "polls", "age_ms": 0, "counters": weft::status::Counters::default(), "unsettled": 0,
            "packets_damaged": 0, "endpoints": [], "peers": [], "destinations": [], "left_out": 0, "stamps": stamps,
        });
        let process = serde_json::json!({
            "version": 1, "weft": "", "pid": 1, "uid": 0, "epoch": "", "bundles": [bundle], "left_out": 0,
        });
        let process: Process = serde_json::from_value(process).expect("a process");
        let epoch = format!("{:016x}", epoch.0);
        Found { epoch, pid: None, uid: 0, program: None, at: Instant::now(), answer: Ok(process) }
    }

    fn look(asked: &[Asked], answered: &[Answered]) -> Look {
        let so_far = |last: Option<u64>| last.map_or(0, |number| number.saturating_add(1));
        let [here, there] = [
            Stamps {
                so_far: so_far(asked.last().map(|a| a.number)),
                flows: vec![flow()],
                asked: asked.to_vec(),
                answered: vec![],
            },
            Stamps {
                so_far: so_far(answered.last().map(|a| a.number)),
                flows: vec![flow()],
                asked: vec![],
                answered: answered.to_vec(),
            },
        ];
        Look { processes: vec![found(HERE, &here), found(THERE, &there)], ..Look::default() }
    }

    #[test]
    fn two_halves_of_a_request_make_six_stages_that_sum_to_its_round_trip() {
        let mut joiner = Joiner::default();
        let trips = joiner.take(&look(&[asked(0, 1000), asked(1, 2000)], &[answered(0, 1000), answered(1, 2000)]));
        assert_eq!(trips.len(), 2);
        for trip in trips {
            assert_eq!(trip.stages, Stages::Six([10, 30, 10, 10, 40, 20]));
            assert_eq!(trip.stages.each().iter().sum::<u64>(), trip.round_trip_ns);
        }
        // Told again, they are the same ones.
        let again = look(&[asked(0, 1000), asked(1, 2000)], &[answered(0, 1000), answered(1, 2000)]);
        assert_eq!(joiner.take(&again), vec![]);
        assert_eq!(joiner.lost, Lost::default());
    }

    #[test]
    fn what_the_initiator_knows_and_what_the_owner_knows_of_an_operation_come_together() {
        let asked = Asked { operation: Some(Operation::Read), ..asked(0, 1000) };
        let answered = Answered { region: Some(3), ..answered(0, 1000) };
        let trips = Joiner::default().take(&look(&[asked], &[answered]));
        assert_eq!(trips.first().map(|trip| (trip.operation, trip.region)), Some((Some(Operation::Read), Some(3))));
        let mut alone = look(&[asked], &[]);
        alone.processes.pop();
        let trips = Joiner::default().take(&alone);
        assert_eq!(trips.first().map(|trip| (trip.operation, trip.region)), Some((Some(Operation::Read), None)));
    }

    #[test]
    fn a_half_may_come_one_look_later_but_no_more() {
        let mut joiner = Joiner::default();
        assert_eq!(joiner.take(&look(&[asked(0, 1000)], &[])), vec![]);
        assert_eq!(joiner.take(&look(&[asked(0, 1000), asked(1, 2000)], &[answered(0, 1000)])).len(), 1);
        assert_eq!(joiner.take(&look(&[asked(0, 1000), asked(1, 2000)], &[answered(0, 1000)])), vec![]);
        assert_eq!(joiner.lost, Lost { one_sided: 1, ..Lost::default() });
    }

    #[test]
    fn of_a_peer_that_is_not_seen_three_stages_are_told() {
        let mut joiner = Joiner::default();
        let mut look = look(&[asked(0, 1000)], &[]);
        look.processes.pop();
        let trips = joiner.take(&look);
        assert_eq!(trips.iter().map(|t| t.stages).collect::<Vec<_>>(), vec![Stages::Three([10, 90, 20])]);
    }

    #[test]
    fn of_a_peer_with_another_clock_three_stages_are_told() {
        let mut joiner = Joiner::default();
        for (epoch, clock) in [(HERE, "time:[1]"), (THERE, "time:[2]")] {
            joiner.clocks.insert(printed(epoch), Some(clock.into()));
        }
        let trips = joiner.take(&look(&[asked(0, 1000)], &[answered(0, 1000)]));
        assert_eq!(trips.iter().map(|t| t.stages).collect::<Vec<_>>(), vec![Stages::Three([10, 90, 20])]);
        assert_eq!(joiner.lost, Lost::default());
    }

    #[test]
    fn a_message_seen_before_its_sender_reads_the_clock_has_no_negative_way() {
        let late = Asked { written_ns: 1099, ..asked(0, 1000) };
        let trips = Joiner::default().take(&look(&[late], &[answered(0, 1000)]));
        assert_eq!(trips.first().map(|t| t.stages), Some(Stages::Six([40, 0, 10, 10, 40, 20])));
    }

    #[test]
    fn impossible_stamps_are_counted_and_make_no_figures() {
        let backwards = Asked { done_ns: 5, ..asked(0, 1000) };
        let endless = Asked { done_ns: u64::MAX, ..asked(1, 1000) };
        let of_no_flow = Asked { flow: 9, ..asked(u64::MAX, 1000) };
        let of_answer = Answered { written_ns: 0, ..answered(u64::MAX, 1000) };
        let mut joiner = Joiner::default();
        assert_eq!(joiner.take(&look(&[backwards, endless, of_no_flow], &[of_answer])), vec![]);
        assert_eq!(joiner.lost, Lost { odd: 4, ..Lost::default() });
        // A process that claims to be another one.
        let lies = Stamps { so_far: 1, flows: vec![flow()], asked: vec![asked(0, 1000)], answered: vec![] };
        let look = Look { processes: vec![found(THERE, &lies)], ..Look::default() };
        assert_eq!(Joiner::default().take(&look), vec![]);
        // An answer outside of the request's time, and two inside.
        let mut joiner = Joiner::default();
        let beyond = Answered { replied_ns: 1101, written_ns: 1102, ..answered(0, 1000) };
        joiner.take(&super::tests::look(&[asked(0, 1000)], &[beyond]));
        let twice = [answered(1, 2000), Answered { seen_ns: 2041, ..answered(2, 2000) }];
        joiner.take(&super::tests::look(&[asked(1, 2000)], &twice));
        assert_eq!(joiner.take(&super::tests::look(&[], &[])), vec![]);
        assert_eq!(joiner.lost.one_sided, 2);
    }
}
