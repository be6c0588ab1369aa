//! weftd with fewer frames than endpoints: clients send requests to all endpoints, which take turns on the frames.

use crate::bench::contention::{show, RealRow};
use crate::bench::report::{Section, Shape, Side, Sketch, Who};
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::output::print_line;
use crate::progress::Progress;
use std::time::{Duration, Instant};

/// Endpoints of the program that answers, and frames of weftd.
const ENDPOINTS: u32 = 64;
const FRAMES: u32 = 8;

/// How long the clients send requests.
const LASTS: Duration = Duration::from_secs(1);

/// The daemon's counters at one moment.
#[derive(Clone, Copy, Debug)]
struct Moment {
    at: Instant,
    remapped: u64,
    evicted: u64,
}

/// The results.
#[derive(Debug)]
struct Seen {
    row: RealRow,
    /// Answers of each endpoint.
    answers: Vec<u64>,
    moments: Vec<Moment>,
}

/// Shows this part. Without weftd, prints how to get it and returns no section.
pub fn run(interrupt: &Interrupt) -> Result<Option<Section>, Error> {
    print_line(format!(
        "\nMore endpoints than frames: {ENDPOINTS} clients send requests to the {ENDPOINTS} endpoints of a program, through a weftd with {FRAMES} frames."
    ))?;
    let progress = Progress::new();
    let mut moments: Vec<Moment> = Vec::new();
    let shown = show((ENDPOINTS, FRAMES, LASTS), interrupt, &mut |look| {
        progress.say(format!("{} of {FRAMES} frames in use, {} evictions", look.frames_used, look.evicted));
        moments.push(Moment { at: look.at, remapped: look.remapped, evicted: look.evicted });
    });
    progress.clear();
    let (row, answers) = match shown? {
        Ok(shown) => shown,
        Err(missing) => {
            print_line(format!("  left out: {missing}"))?;
            return Ok(None);
        }
    };
    let seen = Seen { row, answers, moments };
    seen.tell()?;
    seen.draw().map(Some)
}

impl Seen {
    fn tell(&self) -> Result<(), Error> {
        let RealRow { requests, answers, frames_used_most, .. } = self.row;
        let [remapped, evicted] = self.moves();
        print_line(format!(
            "  {requests} requests to {ENDPOINTS} endpoints, {answers} answers; each came once and in order"
        ))?;
        print_line(format!(
            "  at most {frames_used_most} of {FRAMES} frames were in use; endpoints got a frame {remapped} times and lost it {evicted} times"
        ))
    }

    /// How often endpoints got a frame, and how often they lost it.
    fn moves(&self) -> [u64; 2] {
        self.moments.last().map_or([0, 0], |moment| [moment.remapped, moment.evicted])
    }

    fn draw(&self) -> Result<Section, Error> {
        let RealRow { requests, answers, frames_used_most, .. } = self.row;
        let [remapped, evicted] = self.moves();
        let row = |what: &str, value: u64| vec![what.to_owned(), value.to_string()];
        Ok(Section {
            title: "More endpoints than frames",
            words: format!(
                "weftd serves an endpoint only while it has a frame, a slot of the daemon's memory. With {FRAMES} frames, {ENDPOINTS} endpoints \
                 take turns. Each request was answered once and in order."
            ),
            picture: self.sketch().draw()?,
            heads: vec!["", "number"],
            rows: vec![
                row("endpoints", ENDPOINTS.into()),
                row("most frames in use", frames_used_most),
                row("requests", requests),
                row("answers", answers),
                row("times an endpoint got a frame", remapped),
                row("times an endpoint lost its frame", evicted),
            ],
        })
    }

    /// Draws a bar for each endpoint's answers, a box for each frame, and a curve of evictions over time.
    fn sketch(&self) -> Sketch {
        const LEFT: i32 = 20;
        const RIGHT: i32 = 800;
        let mut sketch = Sketch::new("More endpoints than frames", (820, 360));
        let most = self.answers.iter().max().copied().unwrap_or(0).max(1);
        let least = self.answers.iter().min().copied().unwrap_or(0);
        sketch.say(
            (LEFT, 14),
            Side::Right,
            format!("answers from each of {ENDPOINTS} endpoints in {} s: {least} to {most}", LASTS.as_secs()),
        );
        let step = (RIGHT - LEFT) / ENDPOINTS as i32;
        for (at, answers) in (0..).zip(&self.answers) {
            let height = (100 * answers / most) as i32;
            sketch.fill((LEFT + at * step, 130 - height), (LEFT + (at + 1) * step - 3, 131), Who::WEFT);
        }
        sketch.say((LEFT, 160), Side::Right, format!("{FRAMES} frames of weftd"));
        for frame in 0..FRAMES as i32 {
            sketch.frame((LEFT + 160 + frame * 40, 148), (LEFT + 190 + frame * 40, 172), Who::Another);
        }
        let [_, evicted] = self.moves();
        let seconds = self.seconds();
        sketch.say((LEFT, 205), Side::Right, format!("frames taken from endpoints: {evicted} in {seconds:.1} s"));
        sketch.shapes.push(Shape::Line { through: vec![(LEFT, 220), (LEFT, 335), (RIGHT, 335)], who: Who::Tail });
        sketch.shapes.push(Shape::Line { through: self.line((LEFT, 335), (RIGHT, 220)), who: Who::Another });
        sketch.say((LEFT, 350), Side::Right, "0 s");
        sketch.say((RIGHT, 350), Side::Left, format!("{seconds:.1} s"));
        sketch
    }

    fn seconds(&self) -> f64 {
        let ends = self.moments.first().zip(self.moments.last());
        ends.map_or(0.0, |(first, last)| last.at.saturating_duration_since(first.at).as_secs_f64())
    }

    /// The curve of evictions over time, from the lower left corner to the upper right one.
    fn line(&self, (left, bottom): (i32, i32), (right, top): (i32, i32)) -> Vec<(i32, i32)> {
        let (Some(first), [_, most]) = (self.moments.first(), self.moves()) else { return Vec::new() };
        let seconds = self.seconds().max(f64::MIN_POSITIVE);
        let point = |moment: &Moment| {
            let across = moment.at.saturating_duration_since(first.at).as_secs_f64() / seconds;
            let up = moment.evicted as f64 / most.max(1) as f64;
            let x = left + (across * f64::from(right - left)) as i32;
            (x, bottom - (up * f64::from(bottom - top)) as i32)
        };
        self.moments.iter().map(point).collect()
    }
}
