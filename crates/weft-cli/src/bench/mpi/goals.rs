//! The goals for MPI over weft, relative to other transports.

use crate::bench::goals::{Asked, Goal};
use crate::bench::results::{Key, Metric, Results};

/// All goals for which both sides were measured. An MPI's own transport is shared memory on one host, and TCP between two.
pub fn goals(results: &Results, is_of_hosts: bool) -> Vec<Goal> {
    let (rtt, bandwidth) = (Metric::MpiRtt, Metric::MpiBandwidth);
    let between = [
        ("two hosts, Open MPI, 8 B ÷ its own TCP", "openmpi-weft", "openmpi-own", rtt, 8, Asked::AtMost(0.7)),
        (
            "two hosts, Open MPI, 64 KiB ÷ its own TCP",
            "openmpi-weft",
            "openmpi-own",
            bandwidth,
            65536,
            Asked::AtLeast(1.2),
        ),
    ];
    let local = [
        ("Open MPI, 8 B ÷ over libfabric's tcp", "openmpi-weft", "openmpi-tcp", rtt, 8, Asked::AtMost(0.1)),
        ("Open MPI, 8 B ÷ its own shared memory", "openmpi-weft", "openmpi-own", rtt, 8, Asked::AtMost(1.6)),
        ("MPICH, 8 B ÷ its own shared memory", "mpich-weft", "mpich-own", rtt, 8, Asked::AtMost(1.0)),
        (
            "Open MPI, 64 KiB ÷ its own shared memory",
            "openmpi-weft",
            "openmpi-own",
            bandwidth,
            65536,
            Asked::AtLeast(1.0),
        ),
        (
            "Open MPI, 1 MiB ÷ its own shared memory",
            "openmpi-weft",
            "openmpi-own",
            bandwidth,
            1 << 20,
            Asked::AtLeast(1.0),
        ),
        (
            "Open MPI, HPL ÷ over its own shared memory",
            "openmpi-weft",
            "openmpi-own",
            Metric::Hpl,
            2000,
            Asked::AtLeast(1.0),
        ),
    ];
    let asked: &[_] = if is_of_hosts { &between } else { &local };
    let measured = asked.iter().filter_map(|&(what, ours, theirs, metric, size, asked)| {
        let key = |system| Key::plain(metric, size, system);
        let value = results.compare(&key(ours), &key(theirs), |a, b| a.median / b.median)?;
        Some(Goal { what: what.to_owned(), value, asked, unit: "" })
    });
    measured.collect()
}
