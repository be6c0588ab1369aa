//! Draws SVG: panels that share an axis of time, or of categories (kinds). Lines differ in colour and dashes, so that they can be
//! told apart in print, too.

use crate::series::{Sample, Series};
use std::fmt::Write;
use std::time::Duration;

/// Width of the drawing and height of a panel, in pixels.
const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 230.0;
/// Margins around a panel's axes.
const LEFT: f64 = 90.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 40.0;
/// Room for a line's name.
const LEGEND: f64 = 105.0;

/// Colours and dashes of lines.
const LOOKS: [(&str, &str); 6] = [
    ("#1f4e8c", ""),
    ("#b3471d", "5 3"),
    ("#2e7d32", "2 3"),
    ("#6a3d9a", "8 3 2 3"),
    ("#555555", "1 4"),
    ("#00838f", "12 4"),
];

/// One line of a panel.
struct Line<'a> {
    name: &'a str,
    colour: &'static str,
    dashes: &'static str,
    /// One for each sample; `None` leaves a gap.
    values: Vec<Option<f64>>,
}

struct Panel<'a> {
    title: String,
    unit: fn(f64) -> String,
    lines: Vec<Line<'a>>,
    /// Whether the axis has a mark for each power of ten.
    is_logarithmic: bool,
}

/// The unit of an axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// Bits per second.
    Bits,
    /// Seconds.
    Seconds,
    /// A number of something.
    Count,
}

/// One panel of [`charts`].
#[derive(Clone, PartialEq, Debug)]
pub struct Chart {
    /// The title.
    pub title: String,
    /// The unit of the axis.
    pub unit: Unit,
    /// Whether the axis has a mark for each power of ten.
    pub is_logarithmic: bool,
    /// Each line's name, and its value for each kind.
    pub lines: Vec<(String, Vec<Option<f64>>)>,
}

/// The axis that the panels share.
#[derive(Clone, Copy)]
enum Axis<'a> {
    /// Time, up to this many seconds.
    Time(f64),
    /// Kinds, one for each value of a line.
    Kinds(&'a [String]),
}

/// The figures of one kind, for [`kinds`].
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Measured {
    /// Bits per second.
    pub goodput: f64,
    /// The 99th percentile of messages' latencies, in seconds.
    pub latency: f64,
    /// Packets sent per message.
    pub packets: f64,
}

/// Goodput, latencies (median and 99th percentile) and the longest queue over time, as an SVG document.
pub fn svg(title: &str, series: &Series) -> String {
    let seconds = series.interval.as_secs_f64();
    let some = |value: fn(&Sample) -> Option<f64>| series.samples.iter().map(value).collect::<Vec<_>>();
    let latency = |sample: &Sample, part| {
        let is_any = !sample.latency.is_empty();
        is_any.then(|| sample.latency.quantile(part).as_secs_f64())
    };
    let rates = series.samples.iter().map(|sample| Some(sample.bytes as f64 * 8.0 / seconds)).collect();
    let halves = series.samples.iter().map(|sample| latency(sample, 5000)).collect();
    let tails = series.samples.iter().map(|sample| latency(sample, 9900)).collect();
    let line = |name, values| Line { name, colour: "#1f4e8c", dashes: "", values };
    let panel = |title: &str, unit, lines| Panel { title: title.to_string(), unit, lines, is_logarithmic: false };
    let tails = Line { name: "99th percentile", colour: "#b3471d", dashes: "5 3", values: tails };
    let queue = line("queue", some(|sample| Some(sample.queue_most as f64)));
    let panels = [
        panel("goodput", bits, vec![line("goodput", rates)]),
        panel("latency of a message", time, vec![line("median", halves), tails]),
        panel("longest queue of a link", bytes, vec![queue]),
    ];
    document(title, &panels, Axis::Time(seconds * series.samples.len() as f64))
}

/// The measurements of several kinds as an SVG document: one line for each name.
pub fn kinds(title: &str, kinds: &[String], named: &[(String, Vec<Measured>)]) -> String {
    let chart = |title: &str, unit, value: fn(&Measured) -> f64| {
        let values = |measured: &[Measured]| measured.iter().map(|measured| Some(value(measured))).collect();
        let lines = named.iter().map(|(name, measured)| (name.clone(), values(measured))).collect();
        Chart { title: title.to_string(), unit, is_logarithmic: false, lines }
    };
    let panels = [
        chart("goodput", Unit::Bits, |measured| measured.goodput),
        chart("latency of a message, 99th percentile", Unit::Seconds, |measured| measured.latency),
        chart("packets per message", Unit::Count, |measured| measured.packets),
    ];
    charts(title, kinds, &panels)
}

/// Panels over the same kinds, as an SVG document. A kind without a name gets no mark.
pub fn charts(title: &str, kinds: &[String], charts: &[Chart]) -> String {
    let panels: Vec<Panel<'_>> = charts.iter().map(Chart::panel).collect();
    document(title, &panels, Axis::Kinds(kinds))
}

fn document(title: &str, panels: &[Panel<'_>], axis: Axis<'_>) -> String {
    let mut out = String::new();
    let height = HEIGHT * panels.len() as f64 + 30.0;
    // Writing to a string does not fail.
    let _ = write!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"20\" font-size=\"14\">{}</text>\n",
        escaped(title)
    );
    for (number, panel) in panels.iter().enumerate() {
        panel.draw(&mut out, 30.0 + number as f64 * HEIGHT, axis);
    }
    out + "</svg>\n"
}

impl Chart {
    fn panel(&self) -> Panel<'_> {
        let looks = LOOKS.iter().cycle();
        let lines = self.lines.iter().zip(looks).map(|((name, values), (colour, dashes))| Line {
            name,
            colour,
            dashes,
            values: values.clone(),
        });
        Panel {
            title: self.title.clone(),
            unit: match self.unit {
                Unit::Bits => bits,
                Unit::Seconds => time,
                Unit::Count => count,
            },
            lines: lines.collect(),
            is_logarithmic: self.is_logarithmic,
        }
    }
}

/// The range of a panel's axis.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Values {
    /// From 0 to the first, in steps of the second.
    Linear(f64, f64),
    /// Powers of ten, from the first to the second.
    Logarithmic(f64, f64),
}

impl Values {
    fn marks(self) -> Vec<f64> {
        match self {
            Values::Linear(most, step) => {
                (0..).map(|n| f64::from(n) * step).take_while(|value| *value <= most * 1.001).collect()
            }
            Values::Logarithmic(least, most) => {
                (0..).map(|n| least * 10f64.powi(n)).take_while(|value| *value <= most * 1.001).collect()
            }
        }
    }

    /// How far along the axis a value lies, from 0 to 1.
    fn part(self, value: f64) -> f64 {
        match self {
            Values::Linear(most, _) => value / most,
            Values::Logarithmic(least, most) => (value.max(least) / least).log10() / (most / least).log10(),
        }
    }
}

impl Panel<'_> {
    fn values(&self) -> Values {
        let all = || self.lines.iter().flat_map(|line| &line.values).flatten().copied();
        let most = all().fold(0.0f64, f64::max);
        let least = all().filter(|value| *value > 0.0).fold(most, f64::min);
        match self.is_logarithmic && least > 0.0 {
            true => {
                let power = |value: f64, round: fn(f64) -> f64| 10f64.powf(round(value.log10()));
                let least = power(least, f64::floor);
                Values::Logarithmic(least, power(most, f64::ceil).max(least * 10.0))
            }
            false => {
                let (most, step) = scale(most);
                Values::Linear(most, step)
            }
        }
    }

    fn draw(&self, out: &mut String, top: f64, axis: Axis<'_>) {
        let values = self.values();
        let (width, height) = (WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM);
        let (x0, y0) = (LEFT, top + TOP + height);
        let _ = writeln!(out, "<text x=\"{x0}\" y=\"{:.1}\" font-weight=\"bold\">{}</text>", top + 26.0, self.title);
        for value in values.marks() {
            let y = y0 - height * values.part(value);
            let _ = writeln!(
                out,
                "<line x1=\"{x0}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                x0 + width,
                x0 - 6.0,
                y + 4.0,
                (self.unit)(value)
            );
        }
        for (part, name) in axis.marks() {
            let x = x0 + width * part;
            let _ = writeln!(
                out,
                "<line x1=\"{x:.1}\" y1=\"{y0:.1}\" x2=\"{x:.1}\" y2=\"{:.1}\" stroke=\"black\"/>\
                 <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                y0 + 4.0,
                y0 + 17.0,
                escaped(&name)
            );
        }
        for (number, line) in self.lines.iter().enumerate() {
            line.draw(out, |part, value| (x0 + width * part, y0 - height * values.part(value)));
            if self.lines.len() > 1 {
                let x = x0 + width - LEGEND * (self.lines.len() - number) as f64;
                let _ = writeln!(
                    out,
                    "<text x=\"{x:.1}\" y=\"{:.1}\" fill=\"{}\">{}</text>",
                    top + 26.0,
                    line.colour,
                    line.name
                );
            }
        }
        let _ = writeln!(
            out,
            "<line x1=\"{x0}\" y1=\"{y0:.1}\" x2=\"{:.1}\" y2=\"{y0:.1}\" stroke=\"black\"/>",
            x0 + width
        );
    }
}

impl Axis<'_> {
    /// The places of its marks, from 0 to 1, and their labels.
    fn marks(self) -> Vec<(f64, String)> {
        match self {
            Axis::Time(end) => {
                let (end, step) = (end.max(1e-9), scale(end).1);
                let times = (0..).map(|n| f64::from(n) * step).take_while(|at| *at <= end * 1.001);
                times.map(|at| (at / end, time(at))).collect()
            }
            Axis::Kinds(kinds) => {
                let all = kinds.len().max(1) as f64;
                let named = kinds.iter().enumerate().filter(|(_, kind)| !kind.is_empty());
                named.map(|(n, kind)| ((n as f64 + 0.5) / all, kind.clone())).collect()
            }
        }
    }
}

impl Line<'_> {
    /// Draws the line, in pieces where there are gaps.
    fn draw(&self, out: &mut String, place: impl Fn(f64, f64) -> (f64, f64)) {
        let all = self.values.len().max(1) as f64;
        let pieces = self.values.iter().enumerate().collect::<Vec<_>>();
        for piece in pieces.split(|(_, value)| value.is_none()).filter(|piece| !piece.is_empty()) {
            let points: Vec<String> = piece
                .iter()
                .filter_map(|(number, value)| value.map(|value| place((*number as f64 + 0.5) / all, value)))
                .map(|(x, y)| format!("{x:.1},{y:.1}"))
                .collect();
            // A single point would not show: draw it twice.
            let points = if points.len() == 1 { [points[0].as_str(); 2].join(" ") } else { points.join(" ") };
            let _ = writeln!(
                out,
                "<polyline points=\"{points}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.5\" stroke-linecap=\"round\" \
                 stroke-dasharray=\"{}\"/>",
                self.colour, self.dashes
            );
        }
    }
}

/// The end of an axis that has room for `most`, and a round step that gives up to six marks.
fn scale(most: f64) -> (f64, f64) {
    let most = if most > 0.0 { most } else { 1.0 };
    let power = 10f64.powf((most / 5.0).log10().floor());
    let step =
        [1.0, 2.0, 5.0, 10.0].map(|n| n * power).into_iter().find(|step| most / step <= 5.0).unwrap_or(power * 10.0);
    ((most / step).ceil() * step, step)
}

fn bits(value: f64) -> String {
    with_unit(value, &[(1e9, "Gb/s"), (1e6, "Mb/s"), (1e3, "kb/s"), (1.0, "b/s")])
}

fn bytes(value: f64) -> String {
    with_unit(value, &[(1e6, "MB"), (1e3, "kB"), (1.0, "B")])
}

fn count(value: f64) -> String {
    with_unit(value, &[(1e6, "million"), (1e3, "thousand"), (1.0, "")])
}

fn time(seconds: f64) -> String {
    with_unit(seconds, &[(1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")])
}

fn with_unit(value: f64, units: &[(f64, &str)]) -> String {
    let unit = units.iter().find(|(size, _)| value >= size * 0.9999).or(units.last());
    match unit {
        Some((size, name)) if value > 0.0 => {
            let number = format!("{:.2}", value / size);
            format!("{} {name}", number.trim_end_matches('0').trim_end_matches('.'))
        }
        _ => "0".to_string(),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// A duration as text, as on the axes.
pub fn duration(duration: Duration) -> String {
    time(duration.as_secs_f64())
}

/// A rate as text, as on the axes.
pub fn rate(bits_per_second: f64) -> String {
    bits(bits_per_second)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::histogram::Histogram;

    #[test]
    fn axes_end_at_round_numbers_and_have_few_marks() {
        for most in [0.0, 1e-9, 0.3, 1.0, 7.0, 99.0, 100.0, 123_456_789.0] {
            let (end, step) = scale(most);
            assert!(end >= most && (1.0..=6.0).contains(&(end / step).round()), "{most}: {end} by {step}");
        }
    }

    #[test]
    fn kinds_are_drawn_with_their_names_one_line_for_each_loss() {
        let measured = |goodput| Measured { goodput, latency: 0.001, packets: 2.0 };
        let named =
            [("no loss".to_string(), vec![measured(1e9), measured(2e9)]), ("5 %".to_string(), vec![measured(1e8); 2])];
        let drawn = kinds("channels", &["1".to_string(), "weft".to_string()], &named);
        assert_eq!(drawn.matches("<polyline").count(), 3 * 2);
        assert!(["weft", "no loss", "5 %", "2 Gb/s", "1 ms"].iter().all(|word| drawn.contains(word)), "{drawn}");
    }

    #[test]
    fn a_logarithmic_axis_has_powers_of_ten_and_equal_ratios_have_equal_distances() {
        let lines = vec![("all".to_string(), vec![Some(20.0), Some(200.0), Some(2000.0), None])];
        let chart = |unit| Chart { title: "rate".to_string(), unit, is_logarithmic: true, lines: lines.clone() };
        let values = chart(Unit::Count).panel().values();
        assert_eq!(values, Values::Logarithmic(10.0, 10_000.0));
        assert_eq!(values.marks(), [10.0, 100.0, 1000.0, 10_000.0]);
        let [first, second, third] = [20.0, 200.0, 2000.0].map(|value| values.part(value));
        assert!((third - second - (second - first)).abs() < 1e-9 && first > 0.0 && third < 1.0);
        let kinds = ["1", "", "4", "8"].map(str::to_string);
        let drawn = charts("a", &kinds, &[chart(Unit::Count), chart(Unit::Seconds)]);
        assert_eq!((drawn.matches("<polyline").count(), drawn.matches(">4</text>").count()), (2, 2));
    }

    #[test]
    fn every_sample_is_drawn_and_gaps_are_left() {
        let mut latency = Histogram::new(3);
        latency.add(Duration::from_micros(10));
        let full = Sample { bytes: 1000, messages: 1, queue_most: 5, latency };
        let empty = Sample { bytes: 0, messages: 0, queue_most: 0, latency: Histogram::new(3) };
        let samples = vec![full.clone(), full.clone(), empty, full];
        let drawn = svg("a < b", &Series { interval: Duration::from_millis(1), samples });
        // Goodput and queue in one piece each, the two latencies in two.
        assert_eq!(drawn.matches("<polyline").count(), 1 + 4 + 1);
        assert!(drawn.contains("a &lt; b") && drawn.contains("8 Mb/s") && drawn.contains("4 ms"), "{drawn}");
        assert_eq!(drawn.matches('<').count(), drawn.matches('>').count());
    }
}
