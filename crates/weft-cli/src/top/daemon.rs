//! weftd compared between two looks: its rates, and its active endpoints.

use crate::daemon::{by_need, frames, judge, process, state, title};
use crate::held::Held;
use serde::Serialize;
use std::time::Duration;
use weft::status::{DaemonAnswer, DaemonFound, EndpointStatus};
use weft::Name;

/// Two looks closer than this are too close for a rate.
const APART_LEAST: Duration = Duration::from_millis(20);

/// The most endpoints with a line on the screen.
const LINES_MOST: usize = 16;

/// A daemon.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct DaemonRow {
    /// The daemon, for display.
    #[serde(skip)]
    title: String,
    pid: Option<u32>,
    /// Why it did not answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    silent: Option<String>,
    /// Its frames, in words.
    #[serde(skip)]
    frames: String,
    /// `None` if there are no two looks to compare.
    rates: Option<DaemonRates>,
    /// Endpoints that are resident or wait for a frame, or have no room.
    endpoints: Vec<EndpointRow>,
}

/// A daemon's work per second.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct DaemonRates {
    pub delivered: f64,
    pub sent: f64,
    pub refused: f64,
    pub remapped: f64,
}

/// An endpoint.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct EndpointRow {
    /// Descriptors per second taken from it, and stored for it.
    sent_per_s: Option<f64>,
    received_per_s: Option<f64>,
    limited_by: Held,
    /// The same in words, with what helps.
    because: String,
    #[serde(flatten)]
    told: EndpointStatus,
}

/// What changed between two looks.
pub fn compare(first: Option<&DaemonFound>, second: &DaemonFound) -> DaemonRow {
    let row = DaemonRow {
        title: title(second),
        pid: second.pid,
        silent: second.answer.as_ref().err().map(ToString::to_string),
        frames: String::new(),
        rates: None,
        endpoints: Vec::new(),
    };
    let Ok(answer) = &second.answer else { return row };
    // Only of the same process: a new daemon counts from zero.
    let before =
        first.filter(|first| first.pid == second.pid).and_then(|first| Some((first.at, first.answer.as_ref().ok()?)));
    let apart = before.and_then(|(at, _)| second.at.checked_duration_since(at)).filter(|apart| *apart >= APART_LEAST);
    let before = before.map(|(_, answer)| answer);
    let rate = |before: u64, now: u64| Some(now.checked_sub(before)? as f64 / apart?.as_secs_f64());
    let endpoint = |told: &EndpointStatus| {
        let earlier = before.and_then(|before| before.endpoints.iter().find(|earlier| earlier.name == told.name));
        let (limited_by, because) = judge(told, answer);
        EndpointRow {
            sent_per_s: earlier.and_then(|earlier| rate(earlier.sent, told.sent)),
            received_per_s: earlier.and_then(|earlier| rate(earlier.received, told.received)),
            limited_by,
            because,
            told: told.clone(),
        }
    };
    DaemonRow {
        frames: frames(answer),
        rates: before.and_then(|before| rates(before, answer, rate)),
        endpoints: by_need(answer).into_iter().map(endpoint).collect(),
        ..row
    }
}

fn rates(before: &DaemonAnswer, now: &DaemonAnswer, rate: impl Fn(u64, u64) -> Option<f64>) -> Option<DaemonRates> {
    let (before, now) = (&before.daemon.counters, &now.daemon.counters);
    Some(DaemonRates {
        delivered: rate(before.delivered, now.delivered)?,
        sent: rate(before.sent, now.sent)?,
        refused: rate(before.refused, now.refused)?,
        remapped: rate(before.remapped, now.remapped)?,
    })
}

impl DaemonRow {
    /// Its lines. `scaled` formats a rate.
    pub fn lines(&self, scaled: fn(f64) -> String) -> Vec<String> {
        if let Some(silent) = &self.silent {
            return vec![format!("{}: {silent}", self.title)];
        }
        let mut head = format!("{}: {}", self.title, self.frames);
        if let Some(DaemonRates { delivered, sent, refused, remapped }) = self.rates {
            let [delivered, sent, refused, remapped] = [delivered, sent, refused, remapped].map(scaled);
            head += &format!(", delivers {delivered}/s, sends {sent}/s, refuses {refused}/s, remaps {remapped}/s");
        }
        let mut lines = vec![head];
        lines.extend(self.endpoints.iter().take(LINES_MOST).map(|row| row.line(scaled)));
        if let Some(more @ 1..) = self.endpoints.len().checked_sub(LINES_MOST) {
            lines.push(format!("  {more} more endpoints: see --json"));
        }
        lines
    }
}

impl EndpointRow {
    fn line(&self, scaled: fn(f64) -> String) -> String {
        let EndpointRow { told, sent_per_s, received_per_s, limited_by, .. } = self;
        // Print only the number in the name: the process is printed beside it.
        let number = told.name.parse::<Name>().map_or_else(|_| "?".to_owned(), |name| name.endpoint.0.to_string());
        let mut text = format!("  endpoint {number} of process {}: {}", process(told), state(told));
        for (rate, what) in [(sent_per_s, "sends"), (received_per_s, "receives")] {
            if let Some(rate) = rate {
                text += &format!(", {what} {}/s", scaled(*rate));
            }
        }
        if *limited_by != Held::Nothing {
            text += &format!(", limited by {}", limited_by.in_words());
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;
    use weft::status::{Attaches, DaemonCounters, DaemonStatus, ResidenceStatus};

    fn found(at: Instant, delivered: u64, sent: u64) -> DaemonFound {
        let counters = DaemonCounters { delivered, ..DaemonCounters::default() };
        let daemon =
            DaemonStatus { frames: 8, frames_used: 1, policy: "clock".into(), counters, ..DaemonStatus::default() };
        let endpoint = EndpointStatus {
            name: "here".into(),
            attachment: 1,
            uid: 1000,
            pid: Some(7),
            residence: ResidenceStatus::Resident,
            frame: Some(3),
            weight: 1,
            lines: 1,
            sent,
            received: 0,
            not_taken: 0,
            refused: 0,
            has_stalled: false,
        };
        DaemonFound {
            socket: "/run/weftd/socket".into(),
            pid: Some(5),
            uid: Some(0),
            program: None,
            attaches: Attaches::ByThemselves,
            at,
            answer: Ok(DaemonAnswer { daemon, endpoints: vec![endpoint], ..DaemonAnswer::default() }),
        }
    }

    #[test]
    fn rates_are_those_between_two_looks_at_one_daemon() {
        let begin = Instant::now();
        let (first, second) = (found(begin, 100, 10), found(begin + Duration::from_secs(2), 500, 30));
        let row = compare(Some(&first), &second);
        assert_eq!(row.rates.map(|rates| rates.delivered), Some(200.0));
        assert_eq!(row.endpoints[0].sent_per_s, Some(10.0));
        let lines = row.lines(|rate| format!("{rate}"));
        assert!(lines[0].contains("1 of 8 frames in use (clock)") && lines[0].contains("delivers 200/s"), "{lines:?}");
        assert!(lines[1].contains("process 7, user 1000: frame 3, sends 10/s"), "{lines:?}");
        let other = DaemonFound { pid: Some(6), ..found(begin, 100, 10) };
        assert_eq!(compare(Some(&other), &second).rates, None);
        assert_eq!(compare(Some(&second), &first).rates, None, "it was restarted");
    }
}
