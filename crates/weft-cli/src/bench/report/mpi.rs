//! The pictures of MPIs: each over weft, its own shared memory, and libfabric's tcp and shm.

use super::draw::{self, Curve, Dot, Frame, Name, Sizes, Who};
use super::page::{self, Page};
use super::{frame, lettered};
use crate::bench::json::{Document, Family};
use crate::bench::mpi::table::{by_mpi, Line};
use crate::bench::mpi::Transport;
use crate::bench::results::Metric;
use crate::error::Error;

/// A picture by size; or rows of dots at one size, which come last.
struct Picture {
    metric: Metric,
    title: &'static str,
    words: &'static str,
    values: &'static str,
    sizes: Sizes,
}

const BYTES: &str = "bytes per second, logarithmic";
const TIME: &str = "time, logarithmic";
const FLOPS: &str = "operations per second, logarithmic";

const PICTURES: [Picture; 9] = [
    Picture {
        metric: Metric::MpiRtt,
        title: "a message there and back",
        words: "Less is better. MPI_Send and MPI_Recv, in turn.",
        values: TIME,
        sizes: Sizes::Bytes,
    },
    Picture {
        metric: Metric::MpiBandwidth,
        title: "bytes one way",
        words: "More is better. 32 messages by MPI_Isend and MPI_Irecv, and a word back.",
        values: BYTES,
        sizes: Sizes::Bytes,
    },
    Picture {
        metric: Metric::MpiAllReduce,
        title: "all-reduce",
        words: "Less is better. The sum of doubles of two ranks, at both.",
        values: TIME,
        sizes: Sizes::Bytes,
    },
    Picture {
        metric: Metric::MpiPut,
        title: "put and flush",
        words: "Less is better. One MPI_Put and MPI_Win_flush.",
        values: TIME,
        sizes: Sizes::Bytes,
    },
    Picture {
        metric: Metric::MpiGet,
        title: "get and flush",
        words: "Less is better. One MPI_Get and MPI_Win_flush.",
        values: TIME,
        sizes: Sizes::Bytes,
    },
    Picture {
        metric: Metric::MpiPutBytes,
        title: "put, bytes",
        words: "More is better. 32 MPI_Put and one MPI_Win_flush.",
        values: BYTES,
        sizes: Sizes::Bytes,
    },
    Picture {
        metric: Metric::MpiGetBytes,
        title: "get, bytes",
        words: "More is better. 32 MPI_Get and one MPI_Win_flush.",
        values: BYTES,
        sizes: Sizes::Bytes,
    },
    Picture {
        metric: Metric::NBody,
        title: "n-body, a step",
        words: "Less is better. All particles attract each other; each rank moves half of them, and MPI_Allgather tells where they are.",
        values: TIME,
        sizes: Sizes::Particles,
    },
    Picture {
        metric: Metric::SpeedUp,
        title: "n-body, speed-up",
        words: "More is better, and 2 is the most. The time of a step by one rank, divided by that by two.",
        values: "times, logarithmic",
        sizes: Sizes::Particles,
    },
];

/// Metrics with only one size, drawn as rows of dots.
const SINGLE: [(Metric, &str, &str, &str); 6] = [
    (Metric::MpiBarrier, "barrier", "Less is better.", TIME),
    (
        Metric::MpiRate,
        "messages of 8 B",
        "More is better. 32 by MPI_Isend and MPI_Irecv, and a word back.",
        "messages per second, logarithmic",
    ),
    (Metric::Hpl, "hpcc, linear equations", "More is better. HPL: dense linear equations.", FLOPS),
    (Metric::Transpose, "hpcc, transposition", "More is better. PTRANS: a matrix is transposed and added.", BYTES),
    (
        Metric::RandomAccess,
        "hpcc, random updates",
        "More is better. MPIRandomAccess: words of all ranks, in random order.",
        "updates per second, logarithmic",
    ),
    (Metric::Fft, "hpcc, Fourier transform", "More is better. MPIFFT, of one dimension.", FLOPS),
];

/// The colours and marks of a transport: those of weft, the limits, the kernel and UCX are reused.
fn who(transport: Transport) -> Who {
    Who::Family(match transport {
        Transport::Weft => Family::Weft,
        Transport::Own => Family::Limit,
        Transport::Tcp => Family::Kernel,
        Transport::Shm => Family::Ucx,
    })
}

/// Adds all pictures of MPIs, each with its table.
pub fn add(page: &mut Page, documents: &[Document]) -> Result<(), Error> {
    for (name, title) in mpis(documents) {
        for picture in &PICTURES {
            let drawn = picture.drawn(documents, name, title)?;
            let heading = format!("{title}: {}", picture.title);
            page.figure((&heading, picture.words), drawn, page::of_mpi(documents, name, picture.metric));
        }
        for (metric, what, words, values) in SINGLE {
            let heading = format!("{title}: {what}");
            let drawn = rows(documents, name, &heading, metric, values)?;
            page.figure((&heading, words), drawn, page::of_mpi(documents, name, metric));
        }
    }
    Ok(())
}

/// The MPIs in any of the measurements.
fn mpis(documents: &[Document]) -> Vec<(&'static str, &'static str)> {
    let mut all = Vec::new();
    for (name, title, _) in documents.iter().flat_map(by_mpi) {
        if !all.contains(&(name, title)) {
            all.push((name, title));
        }
    }
    all
}

/// The lines of one MPI and metric.
pub fn lines_of<'a>(document: &'a Document, name: &str, metric: Metric) -> Vec<Line<'a>> {
    let all = by_mpi(document).into_iter().filter(|mpi| mpi.0 == name).flat_map(|mpi| mpi.2);
    all.filter(|line| line.metric == metric).collect()
}

impl Picture {
    fn drawn(&self, documents: &[Document], name: &str, title: &str) -> Result<Vec<String>, Error> {
        let all: Vec<Vec<Curve>> = documents.iter().map(|document| curves(document, name, self.metric)).collect();
        let values = all.iter().flatten().flat_map(|curve| curve.points.iter().map(|point| point.1));
        let Some(range) = draw::range_of(values) else { return Ok(Vec::new()) };
        let title = format!("{title}: {}", self.title);
        let one = |(at, curves): (usize, &Vec<Curve>)| {
            let name = Name { letter: lettered(documents, at), title: &title };
            let frame = Frame { sizes: self.sizes, ..frame(documents, name, self.metric, self.values, 440) };
            draw::curves(&frame, curves, range.clone())
        };
        all.iter().enumerate().map(one).collect()
    }
}

fn curves(document: &Document, name: &str, metric: Metric) -> Vec<Curve> {
    let lines = lines_of(document, name, metric);
    let curve = |(at, transport): (usize, Transport)| {
        let median = |line: &Line<'_>| line.rows[at].and_then(|row| row.median).filter(|median| *median > 0.0);
        let points = lines.iter().filter_map(|line| Some((line.size, median(line)?))).collect();
        Curve { who: who(transport), name: transport.title(document.is_of_hosts()).to_owned(), points }
    };
    let all = Transport::ALL.into_iter().enumerate().map(curve);
    all.filter(|curve| !curve.points.is_empty()).collect()
}

fn rows(documents: &[Document], name: &str, title: &str, metric: Metric, values: &str) -> Result<Vec<String>, Error> {
    let dots = |document: &Document| {
        let lines = lines_of(document, name, metric);
        let dot = |(at, transport): (usize, Transport)| {
            let value = lines.first()?.rows[at]?.median?;
            Some(Dot { who: who(transport), name: transport.title(document.is_of_hosts()).to_owned(), value })
        };
        Transport::ALL.into_iter().enumerate().filter_map(dot).collect()
    };
    let all: Vec<Vec<Dot>> = documents.iter().map(dots).collect();
    super::rows_of_dots(documents, title, (metric, values), &all)
}
