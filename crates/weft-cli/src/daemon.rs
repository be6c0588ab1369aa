//! weftd as seen from outside: its state in words, and what limits its endpoints.

use crate::bench::table::{self, digits, right};
use crate::error::Error;
use crate::held::Held;
use crate::status::{in_words, PATIENCE};
use comfy_table::Cell;
use serde::Serialize;
use std::fmt::Write;
use weft::status::{
    look_at_daemon, Attaches, DaemonAnswer, DaemonFound, DaemonStatus, EndpointStatus, HostStatus, LineLimit,
    LineStatus, QuotaStatus, ResidenceStatus, Scope, UserStatus,
};
use weft::{Integrity, Name};

/// Rows of one kind that are printed; JSON has all of them.
const ROWS_MOST: usize = 16;

/// With more endpoints than this, only the active ones are asked for.
const ALL_MOST: u64 = 1024;

/// A daemon, as JSON tells it.
#[derive(Serialize)]
pub struct Document<'a> {
    socket: String,
    pid: Option<u32>,
    uid: Option<u32>,
    program: Option<&'a str>,
    attaches: &'a Attaches,
    /// Its answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<&'a DaemonAnswer>,
    /// Why it gave none.
    #[serde(skip_serializing_if = "Option::is_none")]
    silent: Option<String>,
}

impl<'a> Document<'a> {
    pub fn new(found: &'a DaemonFound) -> Document<'a> {
        Document {
            socket: found.socket.display().to_string(),
            pid: found.pid,
            uid: found.uid,
            program: found.program.as_deref(),
            attaches: &found.attaches,
            status: found.answer.as_ref().ok(),
            silent: found.answer.as_ref().err().map(ToString::to_string),
        }
    }
}

/// The daemon for display: all endpoints if they are few, otherwise the active ones.
pub fn look_for_people() -> Result<Option<DaemonFound>, Error> {
    let found = look_at_daemon(Scope::Active, PATIENCE)?;
    let are_few = |answer: &DaemonAnswer| answer.daemon.endpoints <= ALL_MOST;
    match found {
        Some(DaemonFound { answer: Ok(answer), .. }) if are_few(&answer) => Ok(look_at_daemon(Scope::All, PATIENCE)?),
        found => Ok(found),
    }
}

/// A daemon, for display.
pub fn title(found: &DaemonFound) -> String {
    let program = found.program.as_deref().unwrap_or("weftd");
    let process = found.pid.map_or_else(String::new, |pid| format!(", process {pid}"));
    let user = found.uid.map_or_else(String::new, |uid| format!(", user {uid}"));
    // The process may have changed its user since it began to listen.
    let now = found.answer.as_ref().ok().map(|answer| answer.daemon.uid).filter(|now| Some(*now) != found.uid);
    let now = now.map_or_else(String::new, |now| format!(" (now {now})"));
    format!("{program}{process}{user}{now}, at {}", found.socket.display())
}

/// Whether programs use it, in words.
pub fn attaches(found: &DaemonFound) -> String {
    match &found.attaches {
        Attaches::Told => "programs attach to it, as WEFT_NI says".to_owned(),
        Attaches::ByThemselves => "programs attach to it by themselves".to_owned(),
        Attaches::Forbidden => "programs do not attach to it: WEFT_NI=process".to_owned(),
        Attaches::Distrusted { because, .. } => format!("programs do not attach to it by themselves: {because}"),
    }
}

/// All of it, for display.
pub fn text(found: &DaemonFound) -> String {
    let mut text = format!("{}\n  {}\n", title(found), attaches(found));
    let answer = match &found.answer {
        Ok(answer) => answer,
        Err(silence) => {
            let _ = writeln!(text, "  {silence}");
            return text;
        }
    };
    let daemon = &answer.daemon;
    let _ = writeln!(text, "  {}", frames(answer));
    let counters = counters(daemon);
    let _ = writeln!(text, "  {}", if counters.is_empty() { "no messages".to_owned() } else { counters });
    daemon.degraded.iter().for_each(|what| _ = writeln!(text, "  does without: {what}"));
    if !daemon.tells_all {
        let _ = writeln!(
            text,
            "  all users together: {} attachments, {} endpoints; the rows below are this user's (root sees all)",
            daemon.attachments, daemon.endpoints
        );
    }
    answer.users.iter().take(ROWS_MOST).for_each(|user| _ = writeln!(text, "  {}", holds(user)));
    leave_out(&mut text, answer.users.len(), "users");
    answer.hosts.iter().take(ROWS_MOST).for_each(|host| _ = writeln!(text, "  {}", host_in_words(host)));
    leave_out(&mut text, answer.hosts.len(), "hosts");
    let rows = by_need(answer);
    if !rows.is_empty() {
        let _ = writeln!(text, "{}", endpoints(&rows, answer));
    }
    leave_out(&mut text, rows.len(), "endpoints");
    text
}

/// How its frames are used.
pub fn frames(answer: &DaemonAnswer) -> String {
    let DaemonAnswer { daemon, end, .. } = answer;
    let DaemonStatus { frames, frames_used, policy, .. } = daemon;
    let mut text = format!("{frames_used} of {frames} frames in use ({policy})");
    let _ = write!(text, ", {} endpoints wait for one, {} have nothing to do", end.waiting, end.idle);
    if end.stalled > 0 {
        let _ = write!(text, "; {} of {} lines stand still", end.stalled, end.lines);
    }
    text
}

fn counters(daemon: &DaemonStatus) -> String {
    let counted = &daemon.counters;
    let all = [
        (counted.delivered, "delivered"),
        (counted.sent, "sent to other hosts"),
        (counted.refused, "refused for now"),
        (counted.paused, "streams paused"),
        (counted.remapped, "remapped"),
        (counted.evicted, "evicted"),
        (counted.false_bells, "false bells"),
        (counted.violations, "programs cut off"),
    ];
    let told: Vec<String> = all.iter().filter(|(n, _)| *n > 0).map(|(n, what)| in_words(what, *n)).collect();
    told.join(", ")
}

/// A quota, for display. Memory is in MiB, as in weftd.toml.
pub fn quota_in_words(quota: &QuotaStatus) -> String {
    let in_mib = |bytes: u64, what| {
        let mib = |units: u64| units as f64 * bytes as f64 / f64::from(1 << 20);
        format!("{:.1} of {:.0} MiB {what}", mib(quota.held), mib(quota.most))
    };
    match quota.of.as_str() {
        "pages" => in_mib(4096, "of shared memory"),
        "chunks of 16 KiB under way" => in_mib(16384, "under way"),
        of => format!("{} of {} {of}", quota.held, quota.most),
    }
}

fn holds(user: &UserStatus) -> String {
    let held = user.quotas.iter().filter(|quota| quota.held > 0);
    let told: Vec<String> = held.map(quota_in_words).collect();
    match told.is_empty() {
        true => format!("user {} holds nothing", user.uid),
        false => format!("user {} holds {}", user.uid, told.join(", ")),
    }
}

fn host_in_words(host: &HostStatus) -> String {
    let mut text = format!("host {}", host.address);
    if let Some(us) = host.round_trip_us {
        let _ = write!(text, ": round trip {} µs", digits(us));
    }
    let _ = write!(text, ", {} of {} bytes in flight", host.in_flight_bytes, host.window_bytes);
    if host.integrity == Integrity::Header {
        text.push_str(", integrity: header");
    }
    if host.silences > 0 {
        let _ = write!(text, ", silent for {} timeouts", host.silences);
    }
    text
}

fn leave_out(text: &mut String, rows: usize, what: &str) {
    if let Some(more @ 1..) = rows.checked_sub(ROWS_MOST) {
        let _ = writeln!(text, "  {more} more {what}: see --json");
    }
}

/// The endpoints: limited ones first, then resident ones.
pub fn by_need(answer: &DaemonAnswer) -> Vec<&EndpointStatus> {
    let stalled: std::collections::BTreeSet<&str> = stands_still(answer).map(|line| line.endpoint.as_str()).collect();
    let rank = |told: &EndpointStatus| match told.residence {
        ResidenceStatus::Waiting => 0,
        _ if told.has_stalled || stalled.contains(told.name.as_str()) => 1,
        ResidenceStatus::Resident => 2,
        ResidenceStatus::Idle => 3,
    };
    let mut rows: Vec<&EndpointStatus> = answer.endpoints.iter().collect();
    rows.sort_by_key(|told| (rank(told), told.attachment));
    rows
}

fn stands_still(answer: &DaemonAnswer) -> impl Iterator<Item = &LineStatus> {
    answer.lines.iter().filter(|line| line.limit != LineLimit::Nothing)
}

fn endpoints(rows: &[&EndpointStatus], answer: &DaemonAnswer) -> comfy_table::Table {
    let names = ["endpoint", "process", "state", "weight", "lines", "sent", "received", "not taken", "limited by"];
    let mut table = table::new(&names);
    for told in rows.iter().take(ROWS_MOST) {
        let (held, _) = judge(told, answer);
        table.add_row(vec![
            Cell::new(&told.name),
            Cell::new(process(told)),
            Cell::new(state(told)),
            right(told.weight.to_string()),
            right(told.lines.to_string()),
            right(told.sent.to_string()),
            right(told.received.to_string()),
            right(told.not_taken.to_string()),
            Cell::new(if held == Held::Nothing { "" } else { held.in_words() }),
        ]);
    }
    table
}

/// The process of an endpoint, for display.
pub fn process(told: &EndpointStatus) -> String {
    match told.pid {
        Some(pid) => format!("{pid}, user {}", told.uid),
        None => format!("?, user {}", told.uid),
    }
}

/// The residence of an endpoint, for display.
pub fn state(told: &EndpointStatus) -> String {
    match (told.residence, told.frame) {
        (ResidenceStatus::Resident, Some(frame)) => format!("frame {frame}"),
        (ResidenceStatus::Resident, None) => "resident".to_owned(),
        (ResidenceStatus::Waiting, _) => "waits".to_owned(),
        (ResidenceStatus::Idle, _) => "idle".to_owned(),
    }
}

/// What limits an endpoint, and why.
pub fn judge(told: &EndpointStatus, answer: &DaemonAnswer) -> (Held, String) {
    if told.residence == ResidenceStatus::Waiting {
        let DaemonStatus { frames, frames_used, .. } = answer.daemon;
        let because = format!(
            "it has work and waits for a frame: {frames_used} of {frames} are in use, and {} endpoints wait. More frames \
             (frames in weftd.toml) help, or fewer endpoints that are busy at the same time",
            answer.end.waiting
        );
        return (Held::Frame, because);
    }
    if let Some(line) = stands_still(answer).find(|line| line.endpoint == told.name) {
        return judge_line(line, answer);
    }
    if told.has_stalled {
        let because = format!(
            "its program does not take what came: {} descriptors wait for it, and senders were refused {} times. Let it poll or wait \
             more often",
            told.not_taken, told.refused
        );
        return (Held::OwnApplication, because);
    }
    (Held::Nothing, "messages are taken at once".to_owned())
}

fn judge_line(line: &LineStatus, answer: &DaemonAnswer) -> (Held, String) {
    match line.limit {
        LineLimit::Nothing => (Held::Nothing, "messages are taken at once".to_owned()),
        LineLimit::Peer => {
            let peer = line.peer.as_deref().unwrap_or("the peer");
            let whose = answer.endpoints.iter().find(|told| Some(&told.name) == line.peer.as_ref());
            let whose = whose.map_or_else(String::new, |told| format!(" (process {})", process(told)));
            let because = format!(
                "{peer}{whose} has no room: its program does not take what came. Let it poll or wait more often"
            );
            (Held::Peer, because)
        }
        LineLimit::Network => {
            let host = line.host.as_deref().unwrap_or("the other host");
            let because =
                format!("the queue for {host} is full: the network or the program there is slower than this sender");
            (Held::Network, because)
        }
    }
}

/// What limits the messages from an endpoint to a name, if the daemon knows of something.
pub fn judge_flow(from: &str, to: &Name, answer: &DaemonAnswer) -> Option<(Held, String)> {
    let is_it = |name: &str, other: &Name| crate::held::is_of(name, other);
    let from: Name = from.parse().ok()?;
    if let Some(told) = answer.endpoints.iter().find(|told| is_it(&told.name, &from)) {
        if told.residence == ResidenceStatus::Waiting {
            return Some(judge(told, answer));
        }
    }
    let host = format!("{:?}", to.address);
    let leads_there = |line: &LineStatus| match &line.peer {
        Some(peer) => is_it(peer, to),
        None => line.host.as_ref() == Some(&host),
    };
    let line = stands_still(answer).find(|line| is_it(&line.endpoint, &from) && leads_there(line))?;
    Some(judge_line(line, answer))
}

/// The daemon's data on the endpoint of a name, and on everything that is active. `None` if no daemon answers.
pub fn look_at_name(name: &Name) -> Result<Option<(DaemonFound, Option<EndpointStatus>)>, Error> {
    let Some(named) = look_at_daemon(Scope::Endpoint(name.epoch, name.endpoint), PATIENCE)? else { return Ok(None) };
    let Ok(named) = named.answer else { return Ok(None) };
    let Some(mut found) = look_at_daemon(Scope::Active, PATIENCE)? else { return Ok(None) };
    let Ok(answer) = &mut found.answer else { return Ok(None) };
    answer.lines.extend(named.lines);
    let endpoint = named.endpoints.into_iter().next();
    answer.endpoints.extend(endpoint.clone());
    Ok(Some((found, endpoint)))
}

/// The quota that a user has exhausted, in words.
pub fn used_up(uid: u32, answer: &DaemonAnswer) -> Option<String> {
    let user = answer.users.iter().find(|user| user.uid == uid)?;
    let quota = user.quotas.iter().find(|quota| quota.held >= quota.most)?;
    Some(format!(
        "user {uid} holds {}: weftd refuses more until some are freed, or [limits] in weftd.toml is raised",
        quota_in_words(quota)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft::status::EndStatus;

    const HERE: &str = "weft1:AQA0EugDAAAIBwYFBAMCASoAAAAAAAAAAAAAAAAA__8KAAABAAAAAA";

    fn endpoint(residence: ResidenceStatus) -> EndpointStatus {
        EndpointStatus {
            name: HERE.to_owned(),
            attachment: 0,
            uid: 1000,
            pid: Some(77),
            residence,
            frame: None,
            weight: 1,
            lines: 1,
            sent: 5,
            received: 3,
            not_taken: 2,
            refused: 9,
            has_stalled: false,
        }
    }

    fn answer(endpoints: Vec<EndpointStatus>, limit: LineLimit) -> DaemonAnswer {
        let line = LineStatus {
            endpoint: HERE.to_owned(),
            attachment: 0,
            line: 1,
            peer: None,
            host: None,
            under_way_bytes: 64,
            limit,
        };
        let daemon = DaemonStatus { frames: 8, frames_used: 8, ..DaemonStatus::default() };
        let end = EndStatus { waiting: 4, ..EndStatus::default() };
        DaemonAnswer { daemon, endpoints, lines: vec![line], end, ..DaemonAnswer::default() }
    }

    #[test]
    fn what_limits_an_endpoint_is_its_frame_then_its_peer_then_its_own_program() {
        let said = |told: &EndpointStatus, limit| judge(told, &answer(vec![told.clone()], limit));
        let waiting = endpoint(ResidenceStatus::Waiting);
        let (held, because) = said(&waiting, LineLimit::Peer);
        assert!(held == Held::Frame && because.contains("8 of 8 are in use, and 4 endpoints wait"), "{because}");
        let resident = endpoint(ResidenceStatus::Resident);
        assert_eq!(said(&resident, LineLimit::Peer).0, Held::Peer);
        assert_eq!(said(&resident, LineLimit::Network).0, Held::Network);
        assert_eq!(said(&resident, LineLimit::Nothing).0, Held::Nothing);
        let full = EndpointStatus { has_stalled: true, ..resident };
        let (held, because) = said(&full, LineLimit::Nothing);
        assert!(
            held == Held::OwnApplication && because.contains("2 descriptors") && because.contains("9 times"),
            "{because}"
        );
    }

    #[test]
    fn quotas_of_memory_are_told_in_mib() {
        let quota = |of: &str, held, most| quota_in_words(&QuotaStatus { of: of.into(), held, most });
        assert_eq!(quota("pages", 238, 262_144), "0.9 of 1024 MiB of shared memory");
        assert_eq!(quota("chunks of 16 KiB under way", 96, 65536), "1.5 of 1024 MiB under way");
        assert_eq!(quota("endpoints", 3, 8), "3 of 8 endpoints");
    }

    #[test]
    fn a_flow_is_judged_by_its_own_line_and_a_full_quota_is_named() {
        let to: Name = HERE.parse().expect("a name");
        let mut answer = answer(vec![endpoint(ResidenceStatus::Resident)], LineLimit::Peer);
        answer.lines[0].peer = Some(HERE.to_owned());
        assert_eq!(judge_flow(HERE, &to, &answer).map(|(held, _)| held), Some(Held::Peer));
        let other = Name { endpoint: weft::EndpointId(99), ..to };
        answer.lines[0].peer = Some(other.to_string());
        assert_eq!(judge_flow(HERE, &to, &answer), None);
        let quotas = |held| vec![QuotaStatus { of: "lines".into(), held, most: 6 }];
        answer.users = vec![UserStatus { uid: 1000, quotas: quotas(5) }];
        assert_eq!(used_up(1000, &answer), None);
        answer.users = vec![UserStatus { uid: 1000, quotas: quotas(6) }];
        assert!(used_up(1000, &answer).is_some_and(|words| words.contains("6 of 6 lines")));
        assert_eq!(used_up(1001, &answer), None);
    }
}
