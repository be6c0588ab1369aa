//! `weft status`: the state of weft's processes, read from outside while they run.

use crate::bench::table::{self, digits, right};
use crate::daemon;
use crate::error::Error;
use crate::regions;
use crate::tell::Form;
use comfy_table::Cell;
use serde::Serialize;
use std::fmt::Write;
use std::time::Duration;
use weft::status::{look_at_daemon, Activity, Bundle, DaemonFound, Found, Limit, Look, Path, Peer, Process, Scope};

/// How long processes may take to answer: a running process takes at most a tenth of a second.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// Lines of one kind that are printed per bundle; JSON has all of them.
const LINES_MOST: usize = 16;

/// Text after the options in `--help`.
const HELP: &str = "\
Reports this user's processes in this network namespace, or those of all users if root asks. A process answers by its helper thread: one \
without (WEFT_HELPER=off) cannot be looked at, and one that does not poll is shown as `computes`, with its last report. Looking \
costs a process one wake-up, and messages nothing. weftd is shown too, if there is one: the one that WEFT_NI names, else the \
administrator's. The exit status is 0 whatever was found.";

/// The arguments of `weft status`.
#[derive(Clone, Copy, Debug, clap::Args)]
#[command(after_help = HELP)]
pub struct Options {
    #[command(flatten)]
    form: Form,
}

#[derive(Serialize)]
struct Document<'a> {
    processes: Vec<Row<'a>>,
    /// The daemon that programs here use, or the administrator's.
    daemon: Option<daemon::Document<'a>>,
    /// Nodes of other users, which are not shown.
    of_others: usize,
    /// Nodes that cannot be asked, of any user.
    without_helper: usize,
}

#[derive(Serialize)]
struct Row<'a> {
    pid: Option<u32>,
    program: Option<&'a str>,
    uid: u32,
    epoch: &'a str,
    /// Its answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<&'a Process>,
    /// Why it gave none.
    #[serde(skip_serializing_if = "Option::is_none")]
    silent: Option<String>,
}

/// Looks at all processes, and reports.
pub fn run(options: &Options) -> Result<(), Error> {
    let look = weft::status::look(PATIENCE)?;
    let daemon = match options.form.is_json() {
        true => look_at_daemon(Scope::All, PATIENCE)?,
        false => daemon::look_for_people()?,
    };
    options.form.tell(&document(&look, daemon.as_ref()), || text(&look, daemon.as_ref()))
}

fn document<'a>(look: &'a Look, daemon: Option<&'a DaemonFound>) -> Document<'a> {
    let processes = look.processes.iter().map(|found| Row {
        pid: found.pid,
        program: found.program.as_deref(),
        uid: found.uid,
        epoch: &found.epoch,
        status: found.answer.as_ref().ok(),
        silent: found.answer.as_ref().err().map(ToString::to_string),
    });
    Document {
        processes: processes.collect(),
        daemon: daemon.map(daemon::Document::new),
        of_others: look.of_others,
        without_helper: look.without_helper,
    }
}

fn text(look: &Look, daemon: Option<&DaemonFound>) -> String {
    let mut text = String::new();
    if let Some(found) = daemon {
        let _ = writeln!(text, "{}", daemon::text(found));
    }
    if look.processes.is_empty() {
        text.push_str("no process of this user has a node of weft here that can be looked at\n");
    }
    for (at, found) in look.processes.iter().enumerate() {
        if at > 0 {
            text.push('\n');
        }
        let _ = writeln!(text, "{}, user {}", title(found), found.uid);
        match &found.answer {
            Ok(process) => tell_process(&mut text, process, look),
            Err(silence) => _ = writeln!(text, "  {silence}"),
        }
    }
    let Look { of_others, without_helper, .. } = *look;
    if of_others > 0 {
        let _ = writeln!(text, "not shown: {of_others} of other users (root sees all)");
    }
    if without_helper > 0 {
        let _ = writeln!(text, "cannot be looked at: {without_helper} without a helper (WEFT_HELPER=off)");
    }
    text
}

/// A process, for display.
pub fn title(found: &Found) -> String {
    let program = found.program.as_deref().unwrap_or("an unknown program");
    match found.pid {
        Some(pid) => format!("{program}, process {pid}"),
        None => program.to_owned(),
    }
}

fn tell_process(text: &mut String, process: &Process, look: &Look) {
    for bundle in &process.bundles {
        let _ = writeln!(text, "  bundle {} {}", bundle.bundle, activity(bundle));
        if bundle.age_ms.is_none() {
            continue;
        }
        let counted: Vec<String> =
            bundle.counters.each().filter(|(_, n)| *n > 0).map(|(name, n)| in_words(name, n)).collect();
        let _ =
            writeln!(text, "    {}", if counted.is_empty() { "no messages".to_owned() } else { counted.join(", ") });
        if bundle.packets_damaged > 0 {
            let _ = writeln!(text, "    {} packets from the network were damaged and dropped", bundle.packets_damaged);
        }
        if bundle.packets_refused > 0 {
            let _ = writeln!(
                text,
                "    {} packets from the network were refused: copies, or not ours",
                bundle.packets_refused
            );
        }
        for endpoint in bundle.endpoints.iter().take(LINES_MOST) {
            let served = match (endpoint.is_served, endpoint.parked) {
                (true, _) => String::new(),
                (false, parked) => format!(", not served, {parked} messages wait"),
            };
            let _ = writeln!(text, "    endpoint {} is {}{served}", endpoint.endpoint, endpoint.name);
            for line in endpoint.memory.iter().flat_map(regions::lines) {
                let _ = writeln!(text, "      {line}");
            }
        }
        leave_out(text, bundle.endpoints.len(), "endpoints");
        for destination in bundle.destinations.iter().take(LINES_MOST) {
            let why = destination.refused.as_deref().unwrap_or("being called");
            let _ = writeln!(text, "    no session with {}: {why}", destination.name);
        }
        leave_out(text, bundle.destinations.len(), "destinations");
        if let Some(table) = peers(bundle, look) {
            let _ = writeln!(text, "{table}");
        }
        leave_out(text, bundle.peers.len(), "peers");
        if bundle.left_out > 0 {
            let _ = writeln!(text, "    {} more rows did not fit into the report", bundle.left_out);
        }
    }
    if process.left_out > 0 {
        let _ = writeln!(text, "  {} more bundles", process.left_out);
    }
}

fn leave_out(text: &mut String, lines: usize, what: &str) {
    if let Some(more @ 1..) = lines.checked_sub(LINES_MOST) {
        let _ = writeln!(text, "    {more} more {what}: see --json");
    }
}

/// What a bundle is doing, with the age of its last report.
fn activity(bundle: &Bundle) -> String {
    match (bundle.activity, bundle.age_ms) {
        (Activity::Polls, _) => "polls".to_owned(),
        (Activity::Waits, _) => "sleeps in a wait".to_owned(),
        (Activity::Computes, Some(age)) => {
            format!("computes, and does not poll; as it was {} s ago", digits(age as f64 / 1e3))
        }
        (Activity::Computes, None) => "computes, and has reported nothing yet".to_owned(),
    }
}

/// A counter, such as "2 requests sent" or "1 request sent", "2 false bells" or "1 false bell".
pub fn in_words(counter: &str, count: u64) -> String {
    // Orderly ends count too, and these are no losses.
    let text = if counter == "sessions_lost" { "peers gone".to_owned() } else { counter.replace('_', " ") };
    // What is counted comes first, or behind one adjective.
    let mut words: Vec<&str> = text.split(' ').collect();
    let one: String;
    if let Some(counted) = words.iter_mut().take(2).find(|word| count == 1 && word.ends_with('s')) {
        one = counted
            .strip_suffix("ies")
            .map_or_else(|| counted.trim_end_matches('s').to_owned(), |stem| format!("{stem}y"));
        *counted = &one;
    }
    format!("{count} {}", words.join(" "))
}

fn peers(bundle: &Bundle, look: &Look) -> Option<comfy_table::Table> {
    let mut table =
        table::new(&["peer", "path", "asked", "asking", "not stored", "not taken", "round trip", "limited by"]);
    for peer in bundle.peers.iter().take(LINES_MOST) {
        let asked: u32 = peer.to.iter().map(|flow| flow.requests).sum();
        let asking: u32 = peer.from.iter().map(|flow| flow.requests).sum();
        let unstored: u64 = peer.to.iter().map(|flow| flow.unstored).sum();
        let not_taken = peer.written_bytes.saturating_sub(peer.taken_bytes);
        let trip = peer.network.as_ref().and_then(|n| n.round_trip_us).map(|us| format!("{} µs", digits(us)));
        table.add_row(vec![
            Cell::new(who(peer, look)),
            Cell::new(path(peer)),
            right(asked.to_string()),
            right(asking.to_string()),
            right(unstored.to_string()),
            right(format!("{not_taken} B")),
            right(trip.unwrap_or_default()),
            Cell::new(limits(peer)),
        ]);
    }
    (table.row_count() > 0).then_some(table)
}

/// The peer: a process that was found too, or an epoch.
pub fn who(peer: &Peer, look: &Look) -> String {
    match look.processes.iter().find(|found| found.epoch == peer.epoch) {
        Some(found) => title(found),
        None => peer.epoch.clone(),
    }
}

fn path(peer: &Peer) -> String {
    match (peer.path, &peer.network) {
        (_, Some(network)) => format!("UDP, {}", network.address),
        (Path::Daemon, None) => "weftd".to_owned(),
        (Path::Memory | Path::Network, None) => "memory".to_owned(),
    }
}

fn limits(peer: &Peer) -> String {
    let mut all: Vec<&str> = peer.to.iter().filter_map(|flow| limit(flow.limit)).collect();
    all.dedup();
    all.join(", ")
}

/// A limit, in one word.
fn limit(limit: Limit) -> Option<&'static str> {
    match limit {
        Limit::Nothing => None,
        Limit::Window => Some("window"),
        Limit::Credit => Some("credit"),
        Limit::Room => Some("room"),
        Limit::Congestion => Some("congestion"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_told_in_the_singular() {
        for (counter, one, two) in [
            ("requests_sent", "1 request sent", "2 requests sent"),
            ("replies_queued", "1 reply queued", "2 replies queued"),
            ("sessions_lost", "1 peer gone", "2 peers gone"),
            ("false bells", "1 false bell", "2 false bells"),
            ("sent to other hosts", "1 sent to other hosts", "2 sent to other hosts"),
            ("full", "1 full", "2 full"),
        ] {
            assert_eq!([in_words(counter, 1), in_words(counter, 2)], [one, two]);
        }
    }
}
