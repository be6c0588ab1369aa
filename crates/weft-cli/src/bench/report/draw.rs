//! The pictures, as SVG by plotters. Lines and marks of a family differ in more than their colour, so that they can be told apart
//! in print.

use crate::bench::json::Family;
use crate::bench::results::Metric;
use crate::bench::table::{bytes, figure};
use crate::error::Error;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::ops::Range;

/// Coordinates are integers, on a finer grid than the displayed size.
pub(super) const FINE: i32 = 2;

/// Colours in the pictures; the page replaces them in dark mode.
pub const INK: RGBColor = RGBColor(0x22, 0x22, 0x22);
pub const GRID: RGBColor = RGBColor(0xdd, 0xdd, 0xdd);

/// Room for the names of curves, to their right.
const NAMES: i32 = 150;

pub(super) type Failed = DrawingAreaErrorKind<<SVGBackend<'static> as DrawingBackend>::ErrorType>;
pub(super) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// What a line or a mark shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Who {
    Family(Family),
    /// weft's slow tail.
    Tail,
    /// Another figure of weft, beside one of it.
    Another,
}

impl Who {
    pub const WEFT: Who = Who::Family(Family::Weft);

    /// All of them.
    pub fn all() -> impl Iterator<Item = Who> {
        Family::ALL.into_iter().map(Who::Family).chain([Who::Tail, Who::Another])
    }

    /// Its colours in light and in dark mode.
    pub fn colours(self) -> (RGBColor, &'static str) {
        match self {
            Who::Family(Family::Weft) => (RGBColor(0x1f, 0x4e, 0x8c), "#7db3ff"),
            Who::Family(Family::Limit) => (RGBColor(0x55, 0x55, 0x55), "#bbbbbb"),
            Who::Family(Family::Kernel) => (RGBColor(0xb3, 0x47, 0x1d), "#ff9a66"),
            Who::Family(Family::Ucx) => (RGBColor(0x23, 0x7a, 0x4b), "#6fd39b"),
            Who::Tail => (RGBColor(0x4f, 0x74, 0xa8), "#7f9fce"),
            Who::Another => (RGBColor(0x7a, 0x3e, 0x8e), "#d09be0"),
        }
    }

    fn style(self) -> ShapeStyle {
        let width = if self == Who::Family(Family::Weft) { 5 } else { 3 };
        ShapeStyle { color: self.colours().0.to_rgba(), filled: true, stroke_width: width }
    }

    /// The lengths of its dashes and gaps; without gaps the line is solid.
    fn dashes(self) -> (i32, i32) {
        match self {
            Who::Family(Family::Weft) => (1, 0),
            Who::Family(Family::Limit) => (14, 8),
            Who::Family(Family::Kernel) => (24, 8),
            Who::Family(Family::Ucx) => (6, 6),
            Who::Tail => (3, 8),
            Who::Another => (10, 6),
        }
    }
}

/// A curve: values by size.
#[derive(Clone, Debug)]
pub struct Curve {
    pub who: Who,
    pub name: String,
    pub points: Vec<(usize, f64)>,
}

/// A row of dots: a value with its name.
#[derive(Clone, Debug)]
pub struct Dot {
    pub who: Who,
    pub name: String,
    pub value: f64,
}

/// The name of a picture: a letter above it, and a title for screen readers.
#[derive(Clone, Copy, Debug)]
pub struct Name<'a> {
    pub letter: &'a str,
    pub title: &'a str,
}

/// The labels of the axes, and the size of a picture.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    pub name: Name<'a>,
    pub metric: Metric,
    /// The label of the value axis.
    pub values: &'a str,
    pub width: u32,
    pub height: u32,
    /// The kind of sizes on its axis.
    pub sizes: Sizes,
}

/// The kind of sizes in a picture.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sizes {
    Bytes,
    /// Bytes that are not those of a message.
    Moved,
    Particles,
}

impl Sizes {
    fn axis(self) -> &'static str {
        match self {
            Sizes::Bytes => "size of a message (B: bytes, KiB: 1024 bytes), logarithmic",
            Sizes::Moved => "bytes moved (B: bytes, KiB: 1024 bytes), logarithmic",
            Sizes::Particles => "particles, logarithmic",
        }
    }

    fn told(self, size: usize) -> String {
        match self {
            Sizes::Bytes | Sizes::Moved => bytes(size),
            Sizes::Particles => size.to_string(),
        }
    }
}

impl Frame<'_> {
    fn svg(&self, draw: impl FnOnce(&Area) -> Result<(), Failed>) -> Result<String, Error> {
        svg(self.name, (self.width, self.height), draw)
    }
}

/// A picture of this width and height.
pub(super) fn svg(
    Name { letter, title }: Name,
    (width, height): (u32, u32),
    draw: impl FnOnce(&Area) -> Result<(), Failed>,
) -> Result<String, Error> {
    let mut svg = String::new();
    {
        let size = (width * FINE as u32, height * FINE as u32);
        let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        draw(&area).and_then(|()| area.present()).map_err(|e| Error::Usage {
            cause: format!("the picture `{title}` cannot be drawn: {e}"),
            way_out: "Report this with the JSON file".to_owned(),
        })?;
    }
    let label =
        format!("<svg role=\"img\" aria-label=\"{}\" ", super::page::escaped(format!("{title} {letter}").trim()));
    Ok(svg.replacen("<svg ", &label, 1))
}

/// A range that contains all values, extended to whole powers of ten, but by no more than a third of one.
pub fn range_of(values: impl IntoIterator<Item = f64>) -> Option<Range<f64>> {
    let logs = values.into_iter().filter(|value| *value > 0.0).map(f64::log10);
    let range = logs.fold(None, |range: Option<Range<f64>>, log| match range {
        Some(Range { start, end }) => Some(start.min(log)..end.max(log)),
        None => Some(log..log),
    })?;
    Some(range.start.floor().max(range.start - 0.3)..range.end.ceil().min(range.end + 0.3))
}

/// The marks of a logarithmic axis: 1, 2 and 5 of each power of ten, or only the powers if there are many.
fn marks(range: &Range<f64>) -> Vec<f64> {
    let steps: &[f64] = if range.end - range.start > 2.6 { &[1.0] } else { &[1.0, 2.0, 5.0] };
    let powers = range.start.floor() as i32..=range.end.ceil() as i32;
    let all = powers.flat_map(|power| steps.iter().map(move |step| f64::from(power) + step.log10()));
    all.filter(|mark| *mark >= range.start - 1e-9 && *mark <= range.end + 1e-9).collect()
}

/// An axis with exactly these marks.
struct Axis {
    range: Range<f64>,
    marks: Vec<f64>,
}

impl Ranged for Axis {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (start, end): (i32, i32)) -> i32 {
        let part = (value - self.range.start) / (self.range.end - self.range.start);
        start + (part * f64::from(end - start)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.marks.clone()
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

/// A logarithmic value axis.
fn logarithmic(range: &Range<f64>) -> Axis {
    Axis { range: range.clone(), marks: marks(range) }
}

pub(super) fn text(size: i32, colour: RGBColor, at: HPos) -> TextStyle<'static> {
    let font = ("sans-serif", f64::from(size * FINE) * 1.24).into_font();
    font.color(&colour).pos(Pos::new(at, VPos::Center))
}

/// Curves by size, both axes logarithmic, each curve named at its right end.
pub fn curves(frame: &Frame, curves: &[Curve], values: Range<f64>) -> Result<String, Error> {
    let sizes: std::collections::BTreeSet<usize> = curves.iter().flat_map(|c| c.points.iter().map(|p| p.0)).collect();
    let log = |size: &usize| (*size as f64).log2();
    let ends = sizes.first().map(log).zip(sizes.last().map(log)).unwrap_or((0.0, 1.0));
    let across = ends.0 - 0.3..ends.1 + 0.3;
    let spread: Vec<f64> = thinned(sizes.iter().map(log), (across.end - across.start) / 9.0);
    frame.svg(|area| {
        letter(area, frame)?;
        let mut chart = ChartBuilder::on(area)
            .margin_top(12 * FINE)
            .margin_right(NAMES * FINE)
            .margin_bottom(4 * FINE)
            .margin_left(4 * FINE)
            .set_label_area_size(LabelAreaPosition::Left, 76 * FINE)
            .set_label_area_size(LabelAreaPosition::Bottom, 44 * FINE)
            .build_cartesian_2d(Axis { range: across, marks: spread }, logarithmic(&values))?;
        chart
            .configure_mesh()
            .axis_style(INK.stroke_width(2))
            .bold_line_style(GRID.stroke_width(1))
            .light_line_style(TRANSPARENT)
            .label_style(text(12, INK, HPos::Center))
            .axis_desc_style(text(12, INK, HPos::Center))
            .x_label_formatter(&|log| frame.sizes.told(log.exp2().round() as usize))
            .y_label_formatter(&|log| short(frame.metric, 10f64.powf(*log)))
            .x_desc(frame.sizes.axis())
            .y_desc(frame.values)
            .draw()?;
        let mut names = Vec::new();
        for curve in curves {
            let (length, gap) = curve.who.dashes();
            let points: Vec<(f64, f64)> = curve.points.iter().map(|(size, value)| (log(size), value.log10())).collect();
            let style = curve.who.style();
            match gap {
                0 => chart.draw_series(LineSeries::new(points.iter().copied(), style)),
                _ => chart.draw_series(DashedLineSeries::new(points.iter().copied(), length, gap, style)),
            }?;
            let places: Vec<(i32, i32)> = points.iter().map(|point| chart.backend_coord(point)).collect();
            for place in &places {
                mark(area, curve.who, *place)?;
            }
            names.extend(places.last().map(|place| (place.1, curve)));
        }
        let right = (frame.width as i32 - NAMES + 14) * FINE;
        names.sort_by_key(|(height, _)| *height);
        for (height, (_, curve)) in
            apart(&names.iter().map(|name| name.0).collect::<Vec<_>>(), 17 * FINE).into_iter().zip(names)
        {
            mark(area, curve.who, (right, height))?;
            let style = text(12, curve.who.colours().0, HPos::Left);
            area.draw(&Text::new(curve.name.clone(), (right + 10 * FINE, height), style))?;
        }
        Ok(())
    })
}

/// Values of different things on one logarithmic axis, one row for each.
pub fn dots(frame: &Frame, dots: &[Dot], values: Range<f64>) -> Result<String, Error> {
    let rows = dots.len() as f64;
    frame.svg(|area| {
        letter(area, frame)?;
        let mut chart = ChartBuilder::on(area)
            .margin_top(12 * FINE)
            .margin_right(84 * FINE)
            .margin_bottom(4 * FINE)
            .margin_left(4 * FINE)
            .set_label_area_size(LabelAreaPosition::Left, 130 * FINE)
            .set_label_area_size(LabelAreaPosition::Bottom, 44 * FINE)
            .build_cartesian_2d(logarithmic(&values), Axis { range: rows..0.0, marks: Vec::new() })?;
        chart
            .configure_mesh()
            .disable_y_mesh()
            .disable_y_axis()
            .y_labels(0)
            .axis_style(INK.stroke_width(2))
            .bold_line_style(GRID.stroke_width(1))
            .light_line_style(TRANSPARENT)
            .label_style(text(12, INK, HPos::Center))
            .axis_desc_style(text(12, INK, HPos::Center))
            .x_label_formatter(&|log| short(frame.metric, 10f64.powf(*log)))
            .x_desc(frame.values)
            .draw()?;
        let start = chart.backend_coord(&(values.start, 0.0)).0;
        for (row, dot) in dots.iter().enumerate() {
            // A logarithmic axis has no place for zero or less.
            let is_on_axis = dot.value > 0.0;
            let at = if is_on_axis { dot.value.log10() } else { values.start };
            let (x, y) = chart.backend_coord(&(at, row as f64 + 0.5));
            let style = dot.who.style();
            if is_on_axis {
                area.draw(&PathElement::new([(start, y), (x, y)], style.color.stroke_width(2)))?;
                mark(area, dot.who, (x, y))?;
            }
            let name = text(12, dot.who.colours().0, HPos::Right);
            area.draw(&Text::new(dot.name.clone(), (start - 10 * FINE, y), name))?;
            let value = text(12, dot.who.colours().0, HPos::Left);
            area.draw(&Text::new(figure(frame.metric, dot.value), (x + 10 * FINE, y), value))?;
        }
        Ok(())
    })
}

fn letter(area: &Area, frame: &Frame) -> Result<(), Failed> {
    area.draw(&Text::new(frame.name.letter.to_owned(), (8 * FINE, 12 * FINE), text(15, INK, HPos::Left)))
}

/// Draws the mark of `who`.
fn mark(area: &Area, who: Who, (x, y): (i32, i32)) -> Result<(), Failed> {
    let style = who.style();
    match who {
        Who::Family(Family::Weft) => area.draw(&Circle::new((x, y), 4 * FINE, style)),
        Who::Family(Family::Limit) => area.draw(&Cross::new((x, y), 4 * FINE, style)),
        Who::Family(Family::Kernel) => area.draw(&TriangleMarker::new((x, y), 5 * FINE, style)),
        Who::Family(Family::Ucx) => area.draw(&Circle::new((x, y), 4 * FINE, ShapeStyle { filled: false, ..style })),
        Who::Tail => area.draw(&Circle::new((x, y), 2 * FINE, style)),
        Who::Another => area.draw(&TriangleMarker::new((x, y), 5 * FINE, style)),
    }
}

/// Ascending heights, moved so that neighbours are at least `least` apart.
fn apart(heights: &[i32], least: i32) -> Vec<i32> {
    let mut placed: Vec<i32> = heights.to_vec();
    for _ in 0..placed.len() * placed.len() {
        for at in 1..placed.len() {
            let lack = least - (placed[at] - placed[at - 1]);
            if lack > 0 {
                placed[at - 1] -= lack / 2;
                placed[at] += lack - lack / 2;
            }
        }
    }
    placed
}

/// The first of ascending values, and those far enough from the one before.
fn thinned(values: impl Iterator<Item = f64>, least: f64) -> Vec<f64> {
    let mut kept: Vec<f64> = Vec::new();
    for value in values {
        if kept.last().is_none_or(|last| value - last >= least) {
            kept.push(value);
        }
    }
    kept
}

/// A rounded value with its unit, for an axis.
fn short(metric: Metric, value: f64) -> String {
    let units: &[(f64, &str)] = match metric.unit() {
        "1/s" => &[(1e6, "M/s"), (1e3, "k/s"), (1.0, "/s")],
        "flop/s" => &[(1e9, "Gflop/s"), (1e6, "Mflop/s")],
        "B/s" => &[(1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s")],
        "B" => &[(1.0, "B")],
        "times" => &[(1.0, "times")],
        _ => &[(1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns")],
    };
    let unit = units.iter().find(|(size, _)| value >= size * 0.999).or(units.last());
    let (size, name) = unit.copied().unwrap_or((1.0, ""));
    let number = format!("{:.2}", value / size);
    format!("{} {name}", number.trim_end_matches('0').trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_hold_all_values_and_have_few_round_marks() {
        for values in [vec![3.0], vec![200.0, 950.0], vec![1e2, 9e4, 3e7]] {
            let range = range_of(values.clone()).expect("there are values");
            assert!(values.iter().all(|value| range.contains(&value.log10())), "{values:?}: {range:?}");
            let marks = marks(&range);
            assert!((1..=9).contains(&marks.len()), "{values:?}: {marks:?}");
        }
        assert_eq!(range_of([0.0, -1.0]), None);
        assert_eq!(short(Metric::Rtt, 500.0), "500 ns");
        assert_eq!(short(Metric::Rtt, 2e3), "2 µs");
        assert_eq!(short(Metric::Rate, 5e7), "50 M/s");
    }

    #[test]
    fn names_are_moved_apart_and_stay_in_order() {
        let placed = apart(&[100, 102, 103, 300], 30);
        assert!(placed.windows(2).all(|pair| pair[1] - pair[0] >= 28), "{placed:?}");
        assert_eq!(placed[3], 300);
    }

    #[test]
    fn every_point_of_a_curve_has_its_mark() {
        let frame = Frame {
            name: Name { letter: "A", title: "a < b" },
            metric: Metric::Rtt,
            values: "time",
            width: 820,
            height: 420,
            sizes: Sizes::Bytes,
        };
        let points = vec![(8, 200.0), (64, 210.0), (65536, 12000.0)];
        let curve = Curve { who: Who::Family(Family::Weft), name: "weft".to_owned(), points };
        let svg = curves(&frame, &[curve], 2.0..4.5).expect("it can be drawn");
        // One for each point, and one beside the name.
        assert_eq!(svg.matches("<circle").count(), 4, "{svg}");
        assert!(svg.contains("aria-label=\"a &lt; b A\"") && svg.contains("64 KiB"), "{svg}");
    }
}
