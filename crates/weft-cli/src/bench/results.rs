//! The results: one series per figure and system, with one run per round.

use super::meter::{median, Sampled};

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Metric {
    Rtt,
    Rate,
    Bandwidth,
    LogpOs,
    LogpOr,
    LogpL,
    LogpG,
    NHalf,
    Lone,
    /// Until a message to a process that computes is acknowledged.
    Ack,
    /// From a peer's death until all that was under way to it had come back.
    Settled,
    /// Round trip through memory of a process with peers both on its host and on another.
    MixedMemory,
    /// Round trip over the network, of the same.
    MixedNetwork,
    /// A word written to another process's region, and one written back.
    Word,
    /// The time within which 98.6 % of these end.
    WordTail,
    /// Bytes written to another process's region, and read there.
    Write,
    /// Bytes read from another process's region.
    Read,
    /// One write, from the call to its completion.
    WriteTime,
    /// One read.
    ReadTime,
    /// One addition that returns the old value.
    FetchAdd,
    /// Additions that do not return old values.
    Adds,
    /// An MPI message there and back.
    MpiRtt,
    /// Bytes and messages, one way.
    MpiBandwidth,
    MpiRate,
    MpiBarrier,
    MpiAllReduce,
    /// One put or get until it is complete; and the bandwidth of many.
    MpiPut,
    MpiPutBytes,
    MpiGet,
    MpiGetBytes,
    /// A step of particles that attract each other.
    NBody,
    /// The time of such a step by one rank, divided by that by two.
    SpeedUp,
    /// Of hpcc: linear equations (HPL), a matrix transposed and added, random updates across all ranks, a Fourier transform.
    Hpl,
    Transpose,
    RandomAccess,
    Fft,
}

impl Metric {
    const ALL: [Metric; 36] = [
        Metric::Rtt,
        Metric::Rate,
        Metric::Bandwidth,
        Metric::LogpOs,
        Metric::LogpOr,
        Metric::LogpL,
        Metric::LogpG,
        Metric::NHalf,
        Metric::Lone,
        Metric::Ack,
        Metric::Settled,
        Metric::MixedMemory,
        Metric::MixedNetwork,
        Metric::Word,
        Metric::WordTail,
        Metric::Write,
        Metric::Read,
        Metric::WriteTime,
        Metric::ReadTime,
        Metric::FetchAdd,
        Metric::Adds,
        Metric::MpiRtt,
        Metric::MpiBandwidth,
        Metric::MpiRate,
        Metric::MpiBarrier,
        Metric::MpiAllReduce,
        Metric::MpiPut,
        Metric::MpiPutBytes,
        Metric::MpiGet,
        Metric::MpiGetBytes,
        Metric::NBody,
        Metric::SpeedUp,
        Metric::Hpl,
        Metric::Transpose,
        Metric::RandomAccess,
        Metric::Fft,
    ];

    /// The metric that a row names.
    pub fn named(name: &str) -> Option<Metric> {
        Metric::ALL.into_iter().find(|metric| metric.name() == name)
    }

    /// The name in rows.
    pub fn name(self) -> &'static str {
        match self {
            Metric::Rtt => "rtt",
            Metric::Rate => "rate",
            Metric::Bandwidth => "bandwidth",
            Metric::LogpOs => "logp.os",
            Metric::LogpOr => "logp.or",
            Metric::LogpL => "logp.l",
            Metric::LogpG => "logp.g",
            Metric::NHalf => "n_half",
            Metric::Lone => "lone",
            Metric::Ack => "ack",
            Metric::Settled => "settled",
            Metric::MixedMemory => "mixed.memory",
            Metric::MixedNetwork => "mixed.network",
            Metric::Word => "memory.word",
            Metric::WordTail => "memory.word.98.6",
            Metric::Write => "memory.write",
            Metric::Read => "memory.read",
            Metric::WriteTime => "memory.write.time",
            Metric::ReadTime => "memory.read.time",
            Metric::FetchAdd => "memory.fetch-add",
            Metric::Adds => "memory.adds",
            Metric::MpiRtt => "mpi.rtt",
            Metric::MpiBandwidth => "mpi.bandwidth",
            Metric::MpiRate => "mpi.rate",
            Metric::MpiBarrier => "mpi.barrier",
            Metric::MpiAllReduce => "mpi.allreduce",
            Metric::MpiPut => "mpi.put",
            Metric::MpiPutBytes => "mpi.put.bandwidth",
            Metric::MpiGet => "mpi.get",
            Metric::MpiGetBytes => "mpi.get.bandwidth",
            Metric::NBody => "mpi.nbody",
            Metric::SpeedUp => "mpi.nbody.speedup",
            Metric::Hpl => "mpi.hpcc.hpl",
            Metric::Transpose => "mpi.hpcc.transpose",
            Metric::RandomAccess => "mpi.hpcc.random",
            Metric::Fft => "mpi.hpcc.fft",
        }
    }

    /// The unit in rows.
    pub fn unit(self) -> &'static str {
        match self {
            Metric::Rate | Metric::Adds | Metric::MpiRate | Metric::RandomAccess => "1/s",
            Metric::Bandwidth | Metric::Write | Metric::Read => "B/s",
            Metric::MpiBandwidth | Metric::MpiPutBytes | Metric::MpiGetBytes | Metric::Transpose => "B/s",
            Metric::Hpl | Metric::Fft => "flop/s",
            Metric::NHalf => "B",
            Metric::SpeedUp => "times",
            _ => "ns",
        }
    }

    /// Whether a greater figure is a better one.
    pub fn more_is_better(self) -> bool {
        matches!(self.unit(), "1/s" | "B/s" | "flop/s" | "times")
    }
}

/// How a metric was measured, if there are several ways.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Way {
    /// As the metric's name says.
    Plain,
    /// Request and reply with as many under way as allowed; for rings, two.
    RequestReply,
    /// The same bytes every time, which nobody reads: as UCX's benchmark does it.
    Unread,
    /// By UCX, with bytes out of 64 MiB in turn that both sides read: the plain way of weft and the limits. The plain way of UCX is
    /// that of its own benchmark.
    Read,
    /// Both sides wait, and spin as long as that has paid off.
    Waiting,
    /// Both sides wait, and sleep at once.
    Sleeping,
    /// Copied into memory of the program's own before it is read.
    Copied,
    /// From the only peer, measured as the next two are.
    OnePeer,
    /// From one fixed sender of many.
    FixedOfMany,
    /// From a sender drawn for each message.
    DrawnOfMany,
    /// To an endpoint whose neighbour is not served but has no messages.
    Alone,
    /// The same when the neighbour's queue is full.
    BesideFull,
    /// Before and after the kills of others that have requests under way.
    BeforeDeaths,
    BesideDeaths,
    /// With a bundle that several threads could use; one uses it.
    Shared,
    /// Between processes of different trusted classes.
    Foreign,
    /// Between processes of two users.
    OtherUser,
    /// Of memory that the program lends, not weft's.
    Lent,
    /// In weft's memory, but executed by the owner: by messages.
    Executed,
    /// Between bundles with one endpoint, measured as the next one is.
    OneEndpoint,
    /// Between bundles with many endpoints, of which one is busy.
    OneOfMany,
    /// With the three forms of Active Messages.
    Short,
    Medium,
    Long,
}

impl Way {
    /// The name in rows.
    pub fn name(self) -> &'static str {
        match self {
            Way::Plain => "plain",
            Way::RequestReply => "request-reply",
            Way::Unread => "unread",
            Way::Read => "read",
            Way::Waiting => "waiting",
            Way::Sleeping => "sleeping",
            Way::Copied => "copied",
            Way::OnePeer => "one-peer",
            Way::FixedOfMany => "fixed-of-many",
            Way::DrawnOfMany => "drawn-of-many",
            Way::Alone => "alone",
            Way::BesideFull => "beside-full",
            Way::BeforeDeaths => "before-deaths",
            Way::BesideDeaths => "beside-deaths",
            Way::Shared => "shared",
            Way::Foreign => "foreign",
            Way::OtherUser => "other-user",
            Way::Lent => "lent",
            Way::Executed => "executed",
            Way::OneEndpoint => "one-endpoint",
            Way::OneOfMany => "one-of-many",
            Way::Short => "short",
            Way::Medium => "medium",
            Way::Long => "long",
        }
    }
}

/// The identity of a series.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Key {
    pub metric: Metric,
    pub size: usize,
    pub system: String,
    pub way: Way,
}

impl Key {
    /// A metric measured as its name says.
    pub fn plain(metric: Metric, size: usize, system: &str) -> Key {
        Key { metric, size, system: system.to_owned(), way: Way::Plain }
    }

    /// The same, measured another way.
    pub fn by(self, way: Way) -> Key {
        Key { way, ..self }
    }
}

/// One run.
#[derive(Clone, Debug)]
pub struct Run {
    pub round: u32,
    pub sampled: Sampled,
    pub detail: Option<String>,
}

/// The runs of one system for one figure.
#[derive(Clone, Debug)]
pub struct Series {
    pub key: Key,
    pub runs: Vec<Run>,
}

impl Series {
    /// The median of the rounds' medians.
    pub fn median(&self) -> f64 {
        self.over(|s| s.median)
    }

    /// The median of the rounds' slow tails.
    pub fn p99(&self) -> f64 {
        self.over(|s| s.p99)
    }

    /// The least and the greatest of the rounds' medians.
    pub fn range(&self) -> Option<[f64; 2]> {
        let medians = self.runs.iter().map(|run| run.sampled.median).filter(|median| median.is_finite());
        medians.fold(None, |range, median| {
            let [least, most] = range.unwrap_or([median; 2]);
            Some([least.min(median), most.max(median)])
        })
    }

    /// All samples.
    pub fn n(&self) -> usize {
        self.runs.iter().map(|run| run.sampled.n).sum()
    }

    /// The last run's remark.
    pub fn detail(&self) -> Option<&str> {
        self.runs.last().and_then(|run| run.detail.as_deref())
    }

    fn over(&self, figure: impl Fn(&Sampled) -> f64) -> f64 {
        median(self.runs.iter().map(|run| figure(&run.sampled))).unwrap_or(f64::NAN)
    }
}

/// All results, in the order of the first runs.
#[derive(Clone, Default, Debug)]
pub struct Results {
    series: Vec<Series>,
    /// The least and the greatest round trip of a cache line, seen during other measurements.
    pub line: Option<[f64; 2]>,
}

impl Results {
    /// Adds a run.
    pub fn add(&mut self, key: Key, run: Run) {
        match self.series.iter_mut().find(|series| series.key == key) {
            Some(series) => series.runs.push(run),
            None => self.series.push(Series { key, runs: vec![run] }),
        }
    }

    /// Notes a round trip of a cache line.
    pub fn saw_line(&mut self, ns: f64) {
        let [least, most] = self.line.unwrap_or([ns, ns]);
        self.line = Some([least.min(ns), most.max(ns)]);
    }

    /// All series.
    pub fn series(&self) -> &[Series] {
        &self.series
    }

    /// One series.
    pub fn get(&self, key: &Key) -> Option<&Series> {
        self.series.iter().find(|series| series.key == *key)
    }

    /// The systems that were measured at a figure.
    pub fn at(&self, metric: Metric, size: usize, way: Way) -> impl Iterator<Item = &Series> {
        self.series.iter().filter(move |s| (s.key.metric, s.key.size, s.key.way) == (metric, size, way))
    }

    /// The best of the systems that `which` accepts, measured as the metric's name says.
    pub fn best(&self, metric: Metric, size: usize, which: impl Fn(&str) -> bool) -> Option<&Series> {
        self.best_by(Way::Plain, metric, size, which)
    }

    /// The best of those measured in one way. Different ways are different work, so they are never compared.
    pub fn best_by(&self, way: Way, metric: Metric, size: usize, which: impl Fn(&str) -> bool) -> Option<&Series> {
        let among = self.at(metric, size, way).filter(|s| which(&s.key.system) && s.median().is_finite());
        match metric.more_is_better() {
            true => among.max_by(|a, b| a.median().total_cmp(&b.median())),
            false => among.min_by(|a, b| a.median().total_cmp(&b.median())),
        }
    }

    /// UCX at its best, to compare with weft: with receivers that read if that was measured, otherwise by its own benchmark.
    pub fn ucx(&self, metric: Metric, size: usize) -> Option<&Series> {
        self.best_by(Way::Read, metric, size, is_ucx).or_else(|| self.best(metric, size, is_ucx))
    }

    /// How many rounds there were.
    pub fn rounds(&self) -> u32 {
        self.series.iter().flat_map(|series| &series.runs).map(|run| run.round + 1).max().unwrap_or(0)
    }

    /// A series' figures in one round.
    pub fn in_round(&self, key: &Key, round: u32) -> Option<Sampled> {
        self.get(key)?.runs.iter().find(|run| run.round == round).map(|run| run.sampled)
    }
}

/// Whether it is a system of the kernel: pipes (`kpipe`) and sockets.
pub fn is_kernel(system: &str) -> bool {
    ["kpipe-", "unix-", "tcp-", "udp-"].iter().any(|prefix| system.starts_with(prefix))
}

/// Whether it is UCX through one of its interfaces.
pub fn is_ucx(system: &str) -> bool {
    system.starts_with("ucx-")
}
