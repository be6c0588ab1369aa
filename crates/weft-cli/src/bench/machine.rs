//! The machine: its description, and the two CPUs of a measurement.

use crate::error::Error;
use rustix::thread::{sched_getaffinity, sched_setaffinity, CpuSet};
use serde::{Deserialize, Serialize};
use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

/// The CPUs of the process that measures and of its peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cpus {
    pub ours: usize,
    pub theirs: usize,
}

/// The facts that the figures depend on.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Machine {
    pub cpu: String,
    pub cores: usize,
    pub cpus: [usize; 2],
    pub kernel: String,
    pub date: String,
    pub weft: String,
    /// Cache-line round trips (ns) seen during the run, the least and the most; `None` if the limits were not measured.
    pub line: Option<[f64; 2]>,
}

impl Machine {
    /// The machine as it is now.
    pub fn describe(cpus: Cpus) -> Machine {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let model = |info: &str| {
            let line = info.lines().find(|l| l.starts_with("model name"))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        Machine {
            cpu: model(&read("/proc/cpuinfo")).unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            cores: allowed().map_or(0, |cpus| cpus.len()),
            cpus: [cpus.ours, cpus.theirs],
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            date: date(SystemTime::now()),
            weft: env!("CARGO_PKG_VERSION").to_owned(),
            line: None,
        }
    }
}

/// Two CPUs that this process may use: the first, and the first that does not share a core with it.
pub fn choose_cpus() -> Result<Cpus, Error> {
    let allowed = allowed()?;
    let too_few = Error::TooFewCpus { allowed: allowed.len() };
    let (&ours, others) = allowed.split_first().ok_or(too_few)?;
    let twins = twins_of(ours);
    let theirs = others.iter().find(|cpu| !twins.contains(cpu)).or(others.first());
    let &theirs = theirs.ok_or(Error::TooFewCpus { allowed: allowed.len() })?;
    Ok(Cpus { ours, theirs })
}

/// Pins this process to one CPU.
pub fn pin(cpu: usize) -> Result<(), Error> {
    if cpu >= CpuSet::MAX_CPU {
        let cause = format!("there is no CPU {cpu}");
        return Err(Error::Usage { cause, way_out: "Name one that `taskset -pc $$` lists".to_owned() });
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    keep_to(&set)
}

/// The CPUs that this process may use.
pub fn affinity() -> Result<CpuSet, Error> {
    sched_getaffinity(None).map_err(|e| Error::system("ask which CPUs may be used", e, "Run it on Linux"))
}

/// Restricts this process to some CPUs.
pub fn keep_to(set: &CpuSet) -> Result<(), Error> {
    sched_setaffinity(None, set)
        .map_err(|e| Error::system("stay on one CPU", e, "Name CPUs that `taskset -pc $$` lists"))
}

/// The CPUs that this process may use.
pub fn allowed() -> Result<Vec<usize>, Error> {
    let set = affinity()?;
    Ok((0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect())
}

/// The CPUs that share a core with this one, including itself.
fn twins_of(cpu: usize) -> Vec<usize> {
    let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
    parse_list(&fs::read_to_string(path).unwrap_or_default())
}

/// Parses the kernel's lists of numbers, such as `0-2,64`. Anything else is skipped.
fn parse_list(text: &str) -> Vec<usize> {
    let ranges = text.trim().split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse().ok()?..=last.parse().ok()?)
    });
    ranges.flatten().take(CpuSet::MAX_CPU).collect()
}

/// A point in time as `2026-11-21T11:52:17Z`.
fn date(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let (days, second) = (seconds / 86400, seconds % 86400);
    let (mut year, mut day) = (1970, days);
    let is_leap = |y: u64| (y % 4 == 0 && y % 100 != 0) || y % 400 == 0;
    while day >= 365 + u64::from(is_leap(year)) {
        day -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if day < length {
            break;
        }
        day -= length;
        month += 1;
    }
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year}-{month:02}-{:02}T{hour:02}:{minute:02}:{second:02}Z", day + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn dates_are_those_of_the_calendar() {
        let at = |seconds| date(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(at(1_795_262_094), "2026-11-21T11:54:54Z");
        assert_eq!(at(1_798_761_599), "2026-12-31T23:59:59Z");
    }

    #[test]
    fn lists_of_cpus_are_read_and_nonsense_is_left_out() {
        assert_eq!(parse_list("0-2,64\n"), [0, 1, 2, 64]);
        assert_eq!(parse_list("x,3-,\n"), [0usize; 0]);
    }
}
