//! How much memory the kernel lets the daemon have, and how much of it programs and other hosts may use.
//!
//! The kernel charges a page to the control group of the process that touches it first, even if that only reads it, and even if the page
//! belongs to a shared file. Pages of a program's file cannot be reclaimed without swap. So programs whose files the daemon touches could
//! get it killed. What they can make it touch, and what it keeps for them and for other hosts, is therefore bounded by shares of its limit.

use crate::config::{Config, LimitsConfig};
use std::path::{Path, PathBuf};
use weft_core::ni;
use weft_daemon::{Limits, Settings};
use weft_wire::segment::PAGE;

/// From this size on a limit counts as none: without a limit the kernel reports `2^63` less a page.
const NO_LIMIT: u64 = 1 << 60;

/// Below this limit the shares are too small for even a few programs.
const LEAST: u64 = 32 << 20;

/// Parts of the limit, in sixteenths: pages of programs' files; bytes that other hosts have not taken; bytes that came from them and were
/// not taken, with the rest of streams that have ended; the hosts themselves; lines; callers that are not attached, including tools. The
/// rest is for the daemon itself and for the kernel's socket buffers.
const PROGRAMS: u64 = 8;
const UNDER_WAY: u64 = 1;
const HELD: u64 = 1;
const HOSTS: u64 = 1;
const LINES: u64 = 1;
const CALLERS: u64 = 1;

/// Bytes for each of these: a host with nothing under way; one end of a line, with its stream; a tool that does not read.
const HOST: u64 = 8 << 10;
const LINE: u64 = 1 << 10;
const CALLER: u64 = 192 << 10;

/// The part of the limit that packets waiting in one socket may fill. The daemon has a socket for each address, and four more.
const RECEIVED_PART: u64 = 64;

/// Buffers have a size that is a power of two, so up to twice the bytes kept.
const SLACK: u64 = 2;

/// The settings if there is no limit and the configuration does not say.
const LINES_USUAL: u64 = 1 << 22;
const MEMORY_MIB_USUAL: u64 = 1 << 20;
const UNDER_WAY_MIB_USUAL: u64 = 1024;

/// Programs and tools that are not attached, at most: of all users, and of one.
const CALLERS_USUAL: usize = 256;
const CALLERS_OF_USER: usize = 16;

/// A memory limit of the kernel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Limit {
    /// How much.
    pub bytes: u64,
    /// The file that states it.
    pub file: PathBuf,
}

/// What programs and hosts may make the daemon use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Pages of files, lines, chunks of 16 KiB under way.
    pages: u64,
    lines: u64,
    under_way: u64,
    /// Bounds of what hosts may make the network interface keep.
    pub hosts: ni::Bounds,
    /// Bytes that the kernel keeps of packets in a socket of the network: control groups of version 2 count them.
    pub received: Option<usize>,
    /// Bytes that are kept of streams that have ended.
    last: u64,
    /// Whether one chunk of each line does not count.
    has_free_chunk: bool,
    /// Callers that are not attached: of all users, and of one.
    pub callers: usize,
    pub callers_of_user: usize,
}

impl Bounds {
    /// The configuration's values, and shares of the limit where it has none.
    pub fn new(config: &Config, limit: Option<u64>) -> Bounds {
        let LimitsConfig { lines, memory_mib, under_way_mib, .. } = config.limits;
        let of = |sixteenths: u64| limit.map_or(u64::MAX, |limit| limit / 16 * sixteenths);
        let said = |mib: u64, unit: u64| (mib > 0).then(|| mib.saturating_mul(1 << 20) / unit);
        let usual = |mib: u64, unit: u64| mib * ((1 << 20) / unit);
        let (page, chunk) = (PAGE as u64, 16 << 10);
        let hosts = (of(HOSTS) / HOST).clamp(16, 1 << 12) as usize;
        let callers = (of(CALLERS) / CALLER).clamp(8, CALLERS_USUAL as u64) as usize;
        Bounds {
            pages: said(memory_mib, page).unwrap_or((of(PROGRAMS) / page).min(usual(MEMORY_MIB_USUAL, page))),
            lines: Some(lines).filter(|lines| *lines > 0).unwrap_or((of(LINES) / LINE).clamp(64, LINES_USUAL)),
            under_way: said(under_way_mib, chunk)
                .unwrap_or((of(UNDER_WAY) / SLACK / chunk).clamp(64, usual(UNDER_WAY_MIB_USUAL, chunk))),
            hosts: match limit {
                Some(_) => ni::Bounds { hosts, strangers: (hosts / 4).min(256), held: of(HELD) / SLACK },
                None => ni::Bounds::default(),
            },
            received: limit.map(|limit| usize::try_from(limit / RECEIVED_PART).unwrap_or(usize::MAX)),
            last: (of(HELD) / SLACK).min(64 << 20),
            has_free_chunk: limit.is_none(),
            callers,
            callers_of_user: CALLERS_OF_USER.min(callers / 2),
        }
    }

    /// Sets them in an engine's settings.
    pub fn apply(&self, settings: Settings) -> Settings {
        let Bounds { pages, lines, under_way, last, has_free_chunk, .. } = *self;
        let limits = Limits { pages, lines, under_way, ..settings.limits };
        Settings { limits, has_free_chunk, last_most: last, ..settings }
    }

    /// Bytes of programs' files that the daemon may touch.
    pub fn programs(&self) -> u64 {
        self.pages.saturating_mul(PAGE as u64)
    }

    /// The sum of all of it, with the daemon's own needs.
    fn sum(&self, limit: u64) -> u64 {
        let own = limit / 16 * (16 - PROGRAMS - UNDER_WAY - HELD - HOSTS - LINES - CALLERS);
        let under_way = self.under_way.saturating_mul(SLACK * (16 << 10));
        let fixed = limit / 16 * (HELD + HOSTS + CALLERS);
        [self.programs(), under_way, self.lines.saturating_mul(LINE), fixed, own]
            .into_iter()
            .fold(0, u64::saturating_add)
    }
}

/// A complaint about a limit that does not suit a configuration, for the log, for `--check` and for tools.
pub fn complaint(config: &Config, limit: Option<&Limit>) -> Option<String> {
    let limit = limit?;
    let (most, file) = (limit.bytes >> 20, limit.file.display());
    if limit.bytes < LEAST {
        let least = LEAST >> 20;
        return Some(format!("the memory limit of {most} MiB ({file}) is too small: raise it to {least} MiB or more"));
    }
    let sum = Bounds::new(config, Some(limit.bytes)).sum(limit.bytes);
    // Divisions were rounded, so allow for a page.
    (sum > limit.bytes + PAGE as u64).then(|| {
        format!(
            "[limits] lets programs and other hosts have weftd use {} MiB, and its memory limit is {most} MiB ({file}): the kernel may \
             end it; lower memory_mib, under_way_mib and lines, or leave them at 0, or raise the limit",
            sum >> 20
        )
    })
}

/// The lowest limit of this process's control groups and of those above them, if there is one.
pub fn limit() -> Option<Limit> {
    let read = |path: &Path| std::fs::read_to_string(path).ok();
    least(&read(Path::new("/proc/self/cgroup"))?, &read(Path::new("/proc/self/mountinfo"))?, read)
}

fn least(groups: &str, mounts: &str, read: impl Fn(&Path) -> Option<String>) -> Option<Limit> {
    let found = groups.lines().filter_map(|line| {
        // `4:memory:/path`, or `0::/path` in version 2.
        let mut words = line.splitn(3, ':').skip(1);
        let (controllers, path) = (words.next()?, words.next()?);
        let (kind, files): (_, &[&str]) = match controllers {
            "" => ("cgroup2", &["memory.max", "memory.high"]),
            these if these.split(',').any(|one| one == "memory") => ("cgroup", &["memory.limit_in_bytes"]),
            _ => return None,
        };
        let (at, top) = place(mounts, kind, path)?;
        let above = at.ancestors().take_while(|group| group.starts_with(&top));
        let files: Vec<PathBuf> = above.flat_map(|group| files.iter().map(move |file| group.join(file))).collect();
        Some(files)
    });
    let limits = found.flatten().filter_map(|file| {
        // `max` means none.
        let bytes: u64 = read(&file)?.trim().parse().ok()?;
        Some(Limit { bytes, file })
    });
    limits.filter(|limit| limit.bytes < NO_LIMIT).min_by_key(|limit| limit.bytes)
}

/// The folder of a group, and the topmost one that is visible.
fn place(mounts: &str, kind: &str, path: &str) -> Option<(PathBuf, PathBuf)> {
    mounts.lines().find_map(|line| {
        // `id parent device root place options [fields] - kind source options`: proc_pid_mountinfo(5).
        let (before, behind) = line.split_once(" - ")?;
        let (before, behind): (Vec<&str>, Vec<&str>) = (before.split(' ').collect(), behind.split(' ').collect());
        let (root, top) = (before.get(3)?, PathBuf::from(before.get(4)?));
        let is_it = match kind {
            "cgroup" => behind.get(2).is_some_and(|options| options.split(',').any(|one| one == "memory")),
            _ => true,
        };
        if behind.first() != Some(&kind) || !is_it {
            return None;
        }
        // In a container only a part of the tree may be visible.
        let below = Path::new(path).strip_prefix(root).unwrap_or(Path::new(""));
        Some((top.join(below), top))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const MOUNTS: &str = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
        33 31 0:30 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n\
        35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n\
        41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";

    fn found(groups: &str, mounts: &str, files: &[(&str, &str)]) -> Option<(u64, String)> {
        let files: BTreeMap<&Path, &str> = files.iter().map(|(path, text)| (Path::new(*path), *text)).collect();
        let limit = least(groups, mounts, |path| files.get(path).map(|text| (*text).to_owned()))?;
        Some((limit.bytes, limit.file.display().to_string()))
    }

    #[test]
    fn the_least_limit_of_a_group_and_of_those_above_is_found() {
        let groups = "9:name=systemd:/\n4:cpuset,memory:/system/weftd\n1:cpu:/other\n0::/\n";
        let none = "9223372036854771712\n";
        let at = |name: &str| format!("/sys/fs/cgroup/memory{name}/memory.limit_in_bytes");
        let (own, above, top) = (at("/system/weftd"), at("/system"), at(""));
        for (files, limit) in [
            ([(&*own, "67108864\n"), (&*above, none), (&*top, none)], Some((67_108_864, own.clone()))),
            ([(&*own, "67108864\n"), (&*above, "1048576\n"), (&*top, none)], Some((1_048_576, above.clone()))),
            ([(&*own, none), (&*above, none), (&*top, none)], None),
        ] {
            assert_eq!(found(groups, MOUNTS, &files), limit);
        }
        assert_eq!(found("1:cpu:/\n", MOUNTS, &[(&*top, "4096")]), None);
    }

    #[test]
    fn limits_of_the_second_version_and_of_containers_are_found() {
        let mounts = "29 23 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
        let service = "/sys/fs/cgroup/system.slice/weftd.service";
        let (max, high) = (format!("{service}/memory.max"), format!("{service}/memory.high"));
        let files = [(&*max, "134217728\n"), (&*high, "max\n"), ("/sys/fs/cgroup/system.slice/memory.max", "max\n")];
        let groups = "0::/system.slice/weftd.service\n";
        assert_eq!(found(groups, mounts, &files), Some((134_217_728, max.clone())));
        let files = [(&*max, "134217728\n"), (&*high, "100000000\n")];
        assert_eq!(found(groups, mounts, &files), Some((100_000_000, high.clone())));
        // A container sees its own group as the root.
        let mounts = "9 8 0:32 /docker/7 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
        let file = "/sys/fs/cgroup/memory/memory.limit_in_bytes";
        assert_eq!(found("4:memory:/docker/7\n", mounts, &[(file, "50000000")]), Some((50_000_000, file.to_owned())));
        assert_eq!(found("4:memory:/\n", mounts, &[(file, "50000000")]), Some((50_000_000, file.to_owned())));
    }

    fn config(text: &str) -> Config {
        Config::parse(Path::new("weftd.toml"), text).expect("it can be used")
    }

    #[test]
    fn without_a_limit_the_settings_are_the_usual_ones_and_with_one_its_shares() {
        let usual = Bounds::new(&config(""), None).apply(Settings::default());
        assert_eq!(usual.limits, Settings::default().limits);
        assert!(usual.has_free_chunk && usual.last_most == 64 << 20);
        for mib in [32, 64, 1000, 1 << 14] {
            let limit = mib << 20;
            let bounds = Bounds::new(&config(""), Some(limit));
            assert!(bounds.sum(limit) <= limit + PAGE as u64, "{mib} MiB: {bounds:?}");
            assert!(bounds.programs() >= limit / 2 - PAGE as u64);
            let of_limit = Limit { bytes: limit, file: PathBuf::new() };
            assert_eq!(complaint(&config(""), Some(&of_limit)), None);
        }
    }

    #[test]
    fn a_configuration_that_asks_for_more_than_the_limit_is_told_so_and_has_its_way() {
        let limit = Limit { bytes: 64 << 20, file: "/group/memory.max".into() };
        let greedy = config("[limits]\nmemory_mib = 100");
        assert_eq!(Bounds::new(&greedy, Some(limit.bytes)).programs(), 100 << 20);
        let said = complaint(&greedy, Some(&limit)).expect("it is too much");
        assert!(["memory_mib", "64 MiB", "/group/memory.max"].iter().all(|word| said.contains(word)), "{said}");
        assert_eq!(complaint(&config("[limits]\nmemory_mib = 20"), Some(&limit)), None);
        assert_eq!(complaint(&greedy, None), None);
        let small = Limit { bytes: 8 << 20, ..limit };
        assert!(complaint(&config(""), Some(&small)).is_some_and(|said| said.contains("32 MiB or more")));
    }
}
