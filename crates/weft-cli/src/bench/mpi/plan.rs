//! The measurements of each MPI over each transport.

use super::transport::Half;
use crate::bench::plan::Extent;
use crate::bench::results::Metric;

/// A group of figures that the user can select.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Group {
    /// A message there and back.
    Rtt,
    /// Bytes one way.
    Bandwidth,
    /// Messages one way.
    Rate,
    /// Barriers.
    Barrier,
    /// Sums at all ranks.
    Allreduce,
    /// Put: alone, and its bandwidth.
    Put,
    /// Get: alone, and its bandwidth.
    Get,
    /// Particles that attract each other: a step with two ranks, and the speed-up over one rank.
    Nbody,
    /// Linear equations, transposition, random updates and Fourier transforms of HPC Challenge. Only on request: a run takes ten
    /// seconds.
    Hpcc,
}

/// A measurement, as the program is asked for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Probe {
    /// The program's name for it.
    pub name: &'static str,
    pub metric: Metric,
    pub size: usize,
    pub half: Half,
}

impl Probe {
    /// The argument for the program.
    pub fn argument(&self) -> String {
        format!("{}:{}", self.name, self.size)
    }
}

/// A metric of the program, with its sizes in normal and in quick runs.
struct Figure {
    group: Group,
    name: &'static str,
    metric: Metric,
    half: Half,
    sizes: &'static [usize],
    quick: &'static [usize],
}

const FIGURES: [Figure; 11] = [
    Figure {
        group: Group::Rtt,
        name: "rtt",
        metric: Metric::MpiRtt,
        half: Half::Messages,
        sizes: &[8, 64, 1024, 8192, 65536, 1 << 20],
        quick: &[8, 8192],
    },
    Figure {
        group: Group::Bandwidth,
        name: "bandwidth",
        metric: Metric::MpiBandwidth,
        half: Half::Messages,
        sizes: &[1024, 8192, 65536, 1 << 20],
        quick: &[65536, 1 << 20],
    },
    Figure {
        group: Group::Rate,
        name: "rate",
        metric: Metric::MpiRate,
        half: Half::Messages,
        sizes: &[8],
        quick: &[8],
    },
    Figure {
        group: Group::Barrier,
        name: "barrier",
        metric: Metric::MpiBarrier,
        half: Half::Messages,
        sizes: &[0],
        quick: &[0],
    },
    Figure {
        group: Group::Allreduce,
        name: "allreduce",
        metric: Metric::MpiAllReduce,
        half: Half::Messages,
        sizes: &[8, 8192, 65536, 1 << 20],
        quick: &[8],
    },
    Figure {
        group: Group::Nbody,
        name: "nbody",
        metric: Metric::NBody,
        half: Half::Messages,
        sizes: &[16, 32, 64, 128, 256, 512, 1024],
        quick: &[64, 1024],
    },
    Figure {
        group: Group::Put,
        name: "put",
        metric: Metric::MpiPut,
        half: Half::OneSided,
        sizes: &[8, 8192, 65536],
        quick: &[8],
    },
    Figure {
        group: Group::Put,
        name: "put.bandwidth",
        metric: Metric::MpiPutBytes,
        half: Half::OneSided,
        sizes: &[8192, 65536, 1 << 20],
        quick: &[65536],
    },
    Figure {
        group: Group::Get,
        name: "get",
        metric: Metric::MpiGet,
        half: Half::OneSided,
        sizes: &[8, 8192, 65536],
        quick: &[8],
    },
    Figure {
        group: Group::Get,
        name: "get.bandwidth",
        metric: Metric::MpiGetBytes,
        half: Half::OneSided,
        sizes: &[8192, 65536, 1 << 20],
        quick: &[65536],
    },
    // A process can run it only once.
    Figure { group: Group::Hpcc, name: "hpcc", metric: Metric::Hpl, half: Half::Hpcc, sizes: &[2000], quick: &[400] },
];

/// Additional metrics that a measurement of another name gives.
const MORE: [(&str, Metric); 5] = [
    ("nbody.speedup", Metric::SpeedUp),
    ("hpcc.hpl", Metric::Hpl),
    ("hpcc.transpose", Metric::Transpose),
    ("hpcc.random", Metric::RandomAccess),
    ("hpcc.fft", Metric::Fft),
];

/// All measurements of one MPI over one transport, in order. By default all but those of hpcc.
pub fn plan(extent: Extent, groups: &[Group]) -> Vec<Probe> {
    let is_wanted = |group: Group| if groups.is_empty() { group != Group::Hpcc } else { groups.contains(&group) };
    let wanted = FIGURES.iter().filter(|figure| is_wanted(figure.group));
    let probes = wanted.flat_map(|figure| {
        let sizes = if extent == Extent::Full { figure.sizes } else { figure.quick };
        let probe = |&size| Probe { name: figure.name, metric: figure.metric, size, half: figure.half };
        sizes.iter().map(probe)
    });
    probes.collect()
}

/// The metric of a line of the program.
pub fn metric(name: &str) -> Option<Metric> {
    let figures = FIGURES.iter().map(|figure| (figure.name, figure.metric));
    figures.chain(MORE).find(|figure| figure.0 == name).map(|figure| figure.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quick_run_measures_the_same_figures_at_fewer_sizes() {
        let (full, quick) = (plan(Extent::Full, &[]), plan(Extent::Quick, &[]));
        assert!(quick.len() < full.len() / 2);
        for probe in &full {
            assert!(quick.iter().any(|other| other.metric == probe.metric), "{probe:?}");
            assert_eq!(metric(probe.name), Some(probe.metric));
        }
        let puts = plan(Extent::Full, &[Group::Put]);
        assert!(puts.iter().all(|probe| probe.half == Half::OneSided && probe.name.starts_with("put")), "{puts:?}");
        assert!(full.iter().all(|probe| probe.half != Half::Hpcc), "{full:?}");
        let hpcc = plan(Extent::Full, &[Group::Hpcc]);
        assert_eq!(hpcc.iter().map(Probe::argument).collect::<Vec<_>>(), ["hpcc:2000"]);
    }
}
