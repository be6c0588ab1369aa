//! `weft top`: a live screen of the state of weft's processes.

mod daemon;
pub mod looker;
mod rates;
mod screen;
mod terminal;

use crate::error::Error;
use crate::output::print;
use crate::status::PATIENCE;
use looker::Looker;
use rates::{compare, Picture};
use screen::{Order, View};
use std::time::{Duration, Instant};
use terminal::{Happening, Key, Terminal};
use weft::status::{look, look_at_daemon, DaemonFound, Look, Scope};

/// The bounds of `--interval`. Rates need two looks, and more frequent looks show little more.
const INTERVAL_LEAST: f64 = 0.1;
const INTERVAL_MOST: f64 = 3600.0;

/// Text after the options in `--help`.
const HELP: &str = "\
Keys: q ends, s sorts by another column, p pauses, h explains, the arrows and page keys scroll. It shows the same processes and \
columns as `weft status`. Each look wakes each process once; while it is paused, it does not look.";

/// The arguments of `weft top`.
#[derive(Clone, Copy, Debug, clap::Args)]
#[command(after_help = HELP)]
pub struct Options {
    /// Seconds between two looks.
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    interval: Duration,
    /// The order of the lines.
    #[arg(short, long, value_enum, default_value_t)]
    sort: Order,
    /// Looks twice, one interval apart, prints the result and ends.
    #[arg(long)]
    once: bool,
    /// Prints one JSON document per line for each look, and nothing else.
    #[arg(long)]
    json: bool,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (INTERVAL_LEAST..=INTERVAL_MOST).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| format!("give seconds from {INTERVAL_LEAST} to {INTERVAL_MOST}"))
}

/// All processes and the daemon at one moment.
#[derive(Debug, Default)]
pub struct Sight {
    pub look: Look,
    /// The daemon that programs here use, or the administrator's.
    pub daemon: Option<DaemonFound>,
}

fn see(patience: Duration) -> Result<Sight, weft::Error> {
    Ok(Sight { look: look(patience)?, daemon: look_at_daemon(Scope::Active, patience)? })
}

/// Shows the screen, until the user ends it.
pub fn run(options: &Options) -> Result<(), Error> {
    match (options.json, options.once) {
        (false, false) => show(options),
        (_, true) => tell_once(options),
        (true, false) => tell_on(options),
    }
}

fn tell_once(options: &Options) -> Result<(), Error> {
    let first = see(PATIENCE)?;
    std::thread::sleep(options.interval);
    let picture = compare(Some(&first), &see(PATIENCE)?);
    let text = match options.json {
        true => document(&picture)?,
        false => View::new(options).text(&picture),
    };
    print(text)
}

fn tell_on(options: &Options) -> Result<(), Error> {
    let mut before = see(PATIENCE)?;
    loop {
        std::thread::sleep(options.interval);
        let now = see(PATIENCE)?;
        print(document(&compare(Some(&before), &now))?)?;
        before = now;
    }
}

fn document(picture: &Picture) -> Result<String, Error> {
    let text = serde_json::to_string(picture).map_err(|e| Error::system("write JSON", e, "Report this"))?;
    Ok(text + "\n")
}

/// Draws until a key, a signal or the end of the terminal ends it.
fn show(options: &Options) -> Result<(), Error> {
    let mut terminal = Terminal::take()?;
    let mut looker = Looker::start(see)?;
    let mut view = View::new(options);
    let mut shown = Shown::default();
    let mut next = Some(Instant::now());
    loop {
        // A new look starts only when the one before is done.
        if next.is_some_and(|at| at <= Instant::now()) && !view.is_paused {
            looker.ask();
            next = None;
        }
        let size = terminal.size();
        terminal.draw(&view.lines(&shown.picture, size))?;
        let most = next.filter(|_| !view.is_paused).map(|at| at.saturating_duration_since(Instant::now()));
        for happening in terminal.wait(looker.bell(), most)? {
            match happening {
                Happening::End | Happening::Key(Key::Letter('q' | 'Q')) => return Ok(()),
                Happening::Key(key) => view.press(key, size),
                Happening::Redraw => {}
            }
        }
        if let Some((asked_at, look)) = looker.take() {
            shown.take(look?);
            next = Some(asked_at + options.interval);
        }
    }
}

/// What is on the screen, and the look that it shows.
#[derive(Debug, Default)]
struct Shown {
    look: Option<Sight>,
    picture: Option<Picture>,
}

impl Shown {
    fn take(&mut self, look: Sight) {
        self.picture = Some(compare(self.look.as_ref(), &look));
        self.look = Some(look);
    }
}
