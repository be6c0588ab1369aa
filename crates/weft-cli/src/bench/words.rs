//! The results in words, for newcomers.

use super::plan::SMALL;
use super::results::{is_ucx, Key, Metric, Results, Way};
use super::table::{bytes, digits, figure, ns};
use super::Report;

/// The meaning of the figures, one sentence per line.
pub fn explain(report: &Report) -> String {
    let results = &report.results;
    let paragraphs = [round_trips(results), rates(results), bandwidths(results), neighbours(results)];
    paragraphs.into_iter().flatten().collect::<Vec<_>>().join("\n\n")
}

/// A sentence about weft, and indented lines that compare its figure with others.
fn paragraph(opening: String, comparisons: impl IntoIterator<Item = Option<String>>) -> String {
    let lines: Vec<String> = comparisons.into_iter().flatten().map(|line| format!("\n  - {line}")).collect();
    let colon = if lines.is_empty() { "." } else { ". That is" };
    format!("{opening}{colon}{}", lines.concat())
}

fn round_trips(results: &Results) -> Option<String> {
    let weft = Key::plain(Metric::Rtt, SMALL, "weft");
    let own = results.get(&weft)?.median();
    let than =
        |system: &str, size| results.compare(&weft, &Key::plain(Metric::Rtt, size, system), |a, b| a.median / b.median);
    let faster = |system: &str, who: &str| {
        let times = 1.0 / than(system, SMALL)?;
        Some(format!("{} than {who} ({})", times_faster(times), ns(own * times)))
    };
    let line = than("cache-line", 8).map(|times| {
        format!(
            "{} times what the hardware needs to pass a cache line there and back ({})",
            digits(times),
            ns(own / times)
        )
    });
    let ucx = results.best(Metric::Rtt, SMALL, is_ucx).map(|series| series.key.system.clone());
    Some(paragraph(
        format!("One request of {SMALL} bytes and its answer, between two processes, take {}", ns(own)),
        [
            line,
            ucx.and_then(|ucx| faster(&ucx, "UCX, which supercomputers use")),
            faster("kpipe-spin", "a pipe that both sides poll"),
            faster("unix-spin", "a Unix socket that both sides poll"),
            faster("kpipe-block", "a pipe on which both sides sleep until something comes"),
            faster("tcp-block", "TCP on this machine, as most programs use it"),
        ],
    ))
}

fn rates(results: &Results) -> Option<String> {
    let weft = Key::plain(Metric::Rate, SMALL, "weft");
    let series = results.get(&weft)?;
    let times =
        |system: &str| results.compare(&weft, &Key::plain(Metric::Rate, SMALL, system), |a, b| a.median / b.median);
    let opening = format!(
        "One process sends another {} million messages of {SMALL} bytes a second",
        digits(series.median() / 1e6)
    );
    let ring = times("ring").map(|times| {
        format!("{} of what two processes can pass that share nothing but a ring of memory", percent(times))
    });
    let more =
        |system: &str, who: &str| times(system).map(|times| format!("{} as many as {who}", times_in_words(times)));
    let ucx = results.best(Metric::Rate, SMALL, is_ucx).map(|series| series.key.system.clone());
    Some(paragraph(
        opening,
        [
            ring,
            ucx.and_then(|ucx| more(&ucx, "UCX")),
            more("kpipe-stream", "writes to a pipe"),
            more("tcp-stream", "writes to a TCP socket"),
        ],
    ))
}

fn bandwidths(results: &Results) -> Option<String> {
    const SIZE: usize = 65536;
    let weft = Key::plain(Metric::Bandwidth, SIZE, "weft");
    let series = results.get(&weft)?;
    let times =
        |system: &str| results.compare(&weft, &Key::plain(Metric::Bandwidth, SIZE, system), |a, b| a.median / b.median);
    let opening = format!("In messages of {}, {} arrive", bytes(SIZE), figure(Metric::Bandwidth, series.median()));
    let pipe =
        times("pipe").map(|times| format!("{} of what a bare ring of memory carries between two CPUs", percent(times)));
    let copy = times("memcpy").map(|times| format!("{} of what one CPU copies from memory", percent(times)));
    let unix = times("unix-stream").map(|times| format!("{} as much as a Unix socket", times_in_words(times)));
    Some(paragraph(opening, [pipe, copy, unix]))
}

fn neighbours(results: &Results) -> Option<String> {
    let way = |way| Key::plain(Metric::Rtt, SMALL, "weft").by(way);
    let drawn = results.compare(&way(Way::DrawnOfMany), &way(Way::OnePeer), |many, one| many.median / one.median)?;
    let beside = results.compare(&way(Way::BesideFull), &way(Way::Alone), |beside, alone| beside.p99 / alone.p99)?;
    Some(format!(
        "When any of 64 peers may send, a round trip takes {} times as long as with one. And when an endpoint is not served and \
         its queue is full, the slowest round trips to its neighbour take {} times as long as before.",
        digits(drawn),
        digits(beside)
    ))
}

fn times_faster(times: f64) -> String {
    match times {
        t if t >= 1.0 => format!("{} times faster", digits(t)),
        t => format!("{} times slower", digits(1.0 / t)),
    }
}

fn times_in_words(times: f64) -> String {
    format!("{} times", digits(times))
}

fn percent(part: f64) -> String {
    format!("{:.0} %", 100.0 * part)
}
