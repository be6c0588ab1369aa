//! Endpoints for remote memory, in words.

use crate::bench::table::digits;
use std::fmt::Write;
use weft::status::{Region, RemoteMemory, RemoteMemoryCounters};

/// The state of an endpoint for remote memory, one line per fact.
pub fn lines(told: &RemoteMemory) -> Vec<String> {
    let &RemoteMemory { regions, bytes, revoked, cookies, notices, pending, completions, .. } = told;
    let mut first = format!("remote memory: {}, {}", many(regions, "region"), size(bytes));
    for (number, what) in [(revoked, "revoked"), (cookies, if cookies == 1 { "cookie" } else { "cookies" })] {
        if number > 0 {
            let _ = write!(first, ", {number} {what}");
        }
    }
    for (number, what) in [(notices, "notice"), (completions, "completion")] {
        if number > 0 {
            let _ = write!(first, ", {} not taken", many(number, what));
        }
    }
    if pending > 0 {
        let _ = write!(first, ", {} under way to peers", many(pending, "operation"));
    }
    let mut lines = vec![first];
    lines.extend(counted(&told.counters));
    if told.counters.direct > 0 {
        lines.push(format!("to peers: {} by loads and stores", many(told.counters.direct, "operation")));
    }
    lines.extend(told.largest.iter().map(region));
    let told_of: u64 = told.largest.iter().fold(0, |sum, region| sum.saturating_add(region.bytes));
    if let Some(more @ 1..) = regions.checked_sub(told.largest.len() as u64) {
        lines.push(format!("and {} of {} in all", many(more, "smaller region"), size(bytes.saturating_sub(told_of))));
    }
    lines
}

/// Counts of peers' operations. `None` if there were none.
fn counted(counters: &RemoteMemoryCounters) -> Option<String> {
    let &RemoteMemoryCounters { writes, reads, atomics, bytes_written, bytes_pulled, bytes_read, .. } = counters;
    let &RemoteMemoryCounters { refused, refused_revoked, .. } = counters;
    let mut parts = Vec::new();
    if writes > 0 {
        let pulled = if bytes_pulled > 0 { format!(", {} pulled", size(bytes_pulled)) } else { String::new() };
        parts.push(format!("{} ({}{pulled})", many(writes, "write"), size(bytes_written)));
    }
    if reads > 0 {
        parts.push(format!("{} ({})", many(reads, "read"), size(bytes_read)));
    }
    if atomics > 0 {
        parts.push(many(atomics, "atomic operation"));
    }
    if refused > 0 {
        let of_revoked =
            if refused_revoked > 0 { format!(" ({refused_revoked} of what was revoked)") } else { String::new() };
        parts.push(format!("{refused} refused{of_revoked}"));
    }
    (!parts.is_empty()).then(|| format!("by peers: {}", parts.join(", ")))
}

fn region(region: &Region) -> String {
    let &Region { index, bytes, can_read, can_write, can_atomic, is_lent, mapped } = region;
    let rights = [(can_read, "read"), (can_write, "write"), (can_atomic, "atomic")];
    let rights: Vec<&str> = rights.into_iter().filter(|(has, _)| *has).map(|(_, right)| right).collect();
    let rights = if rights.is_empty() { "no right".to_owned() } else { rights.join(" ") };
    let whose = if is_lent { "lent" } else { "weft's" };
    let mapped = if mapped > 0 { format!(", mapped by {}", many(mapped.into(), "peer")) } else { String::new() };
    format!("region {index}: {}, {whose}, {rights}{mapped}", size(bytes))
}

/// A number with its noun.
pub fn many(number: u64, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// A number of bytes, for display.
pub fn size(bytes: u64) -> String {
    const KIB: f64 = 1024.0;
    match bytes as f64 {
        b if b >= KIB * KIB * KIB => format!("{} GiB", digits(b / KIB / KIB / KIB)),
        b if b >= KIB * KIB => format!("{} MiB", digits(b / KIB / KIB)),
        b if b >= KIB => format!("{} KiB", digits(b / KIB)),
        _ => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_exists_is_shown_and_the_rest_is_left_out() {
        let region = |index, bytes| Region {
            index,
            bytes,
            can_read: true,
            can_write: index == 0,
            can_atomic: false,
            is_lent: index > 0,
            mapped: 2 * index,
        };
        let told = RemoteMemory {
            regions: 2,
            bytes: 1030,
            largest: vec![region(0, 1024), region(1, 6)],
            ..RemoteMemory::default()
        };
        let expected = [
            "remote memory: 2 regions, 1.01 KiB",
            "region 0: 1.00 KiB, weft's, read write",
            "region 1: 6 B, lent, read, mapped by 2 peers",
        ];
        assert_eq!(lines(&told), expected);
        let counters = RemoteMemoryCounters {
            writes: 1,
            bytes_written: 8,
            atomics: 2,
            refused: 3,
            refused_revoked: 1,
            ..told.counters
        };
        let told = RemoteMemory {
            regions: 3,
            bytes: 3 << 20,
            revoked: 4,
            cookies: 1,
            notices: 5,
            pending: 1,
            completions: 2,
            counters,
            ..told
        };
        let lines = lines(&told);
        assert_eq!(
            lines[0],
            "remote memory: 3 regions, 3.00 MiB, 4 revoked, 1 cookie, 5 notices not taken, 2 completions not taken, 1 operation under way to peers"
        );
        assert_eq!(lines[1], "by peers: 1 write (8 B), 2 atomic operations, 3 refused (1 of what was revoked)");
        assert_eq!(lines.last().map(String::as_str), Some("and 1 smaller region of 3.00 MiB in all"));
    }
}
