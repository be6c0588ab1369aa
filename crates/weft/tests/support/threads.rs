//! Information about threads, from their folders in /proc.

use super::wait_until;
use std::fs;
use std::path::{Path, PathBuf};

/// The threads of a process that have one of these names.
pub fn named(process: u32, names: &[&str]) -> Vec<PathBuf> {
    let threads = fs::read_dir(format!("/proc/{process}/task")).expect("it lives").flatten().map(|t| t.path());
    threads.filter(|t| fs::read_to_string(t.join("comm")).is_ok_and(|name| names.contains(&name.trim()))).collect()
}

/// The helpers of a process's nodes. A thread gets its name a moment after it began.
pub fn helpers(process: u32) -> Vec<PathBuf> {
    named(process, &["weft-helper"])
}

/// The only helper of a process, which has one or will have in a moment.
pub fn helper(process: u32) -> PathBuf {
    wait_until("the helper", || !helpers(process).is_empty());
    helpers(process).remove(0)
}

/// A field of a thread's status.
pub fn status(thread: &Path, field: &str) -> String {
    let all = fs::read_to_string(thread.join("status")).expect("it lives");
    let value = all.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    value.expect("the field").trim().to_owned()
}

/// How often a thread was preempted.
pub fn preemptions(thread: &Path) -> u64 {
    status(thread, "nonvoluntary_ctxt_switches").parse().expect("a number")
}

/// How often a thread went to sleep. It was woken as often, except for the last time.
pub fn sleeps(thread: &Path) -> u64 {
    status(thread, "voluntary_ctxt_switches").parse().expect("a number")
}
