//! The limit programs of `bench/limits`: found, built if they must be, run, and their lines read.

use super::machine::Cpus;
use super::meter::Sampled;
use super::results::{Key, Metric, Way};
use crate::child::{output_of, NoOutput};
use crate::repository;
use serde::Deserialize;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// What one run of a limit program may take: they end themselves after 20 s.
const RUN_MOST: Duration = Duration::from_secs(30);

/// What building them may take.
const BUILD_MOST: Duration = Duration::from_secs(120);

/// The variable that names the program when it lies elsewhere.
const VARIABLE: &str = "WEFT_LIMITS";

/// The built program.
#[derive(Clone, Debug)]
pub struct Limits {
    path: PathBuf,
    cpus: Cpus,
}

/// One line that it printed.
#[derive(Clone, Debug, Deserialize)]
pub struct Line {
    metric: String,
    size: usize,
    system: String,
    median: f64,
    p99: f64,
    mean: f64,
    n: usize,
    detail: String,
    /// Which kind of ring won.
    pub variant: Option<String>,
    #[serde(default)]
    line_before: f64,
    #[serde(default)]
    line_after: f64,
}

impl Limits {
    /// Finds the program, or builds it. Else says what to do.
    pub fn find(cpus: Cpus) -> Result<Limits, String> {
        if let Some(path) = std::env::var_os(VARIABLE).map(PathBuf::from) {
            return match path.is_file() {
                true => Ok(Limits { path, cpus }),
                false => Err(format!("{VARIABLE} names {}, and there is no such file", path.display())),
            };
        }
        let Some(root) = repository::root() else {
            return Err(format!(
                "the limit programs are built in weft's repository, and this is outside of it; \
                 run it inside, or set {VARIABLE} to bench/limits/build/limits of a checkout"
            ));
        };
        let path = root.join("bench/limits/build/limits");
        if !path.is_file() {
            let built = output_of(Command::new("make").arg("-C").arg(root.join("bench/limits")), BUILD_MOST);
            if !built.is_ok_and(|output| output.status.success()) || !path.is_file() {
                let dir = root.join("bench/limits");
                return Err(format!("the limit programs could not be built; type: make -C {}", dir.display()));
            }
        }
        Ok(Limits { path, cpus })
    }

    /// A command that runs one program.
    pub fn command(&self, arguments: &[String], time: Duration) -> Command {
        let cpus = format!("{},{}", self.cpus.ours, self.cpus.theirs);
        let mut command = Command::new(&self.path);
        command.args(arguments).args(["--cpus", &cpus, "--seconds", &time.as_secs_f64().to_string()]);
        command
    }

    /// Runs one program. `Ok(None)`: it does not measure this, and said why.
    pub fn run(&self, arguments: &[String], time: Duration) -> Result<Line, String> {
        let output = output_of(&mut self.command(arguments, time), RUN_MOST).map_err(|e| match e {
            NoOutput::NotStarted(e) => format!("{} cannot be run: {e}", self.path.display()),
            NoOutput::TooLong => format!("no end after {} s", RUN_MOST.as_secs()),
        })?;
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        let printed = String::from_utf8_lossy(&output.stdout);
        match printed.lines().next() {
            Some(line) if output.status.success() => {
                serde_json::from_str(line).map_err(|e| format!("its line cannot be read ({e}): {line}"))
            }
            _ => Err(said.trim_start_matches("limits: ").to_owned()),
        }
    }
}

impl Line {
    /// The series that it belongs to, if its metric is one of ours.
    pub fn key(&self, way: Way) -> Option<Key> {
        let metric = [Metric::Rtt, Metric::Rate, Metric::Bandwidth, Metric::Lone]
            .into_iter()
            .find(|m| m.name() == self.metric)?;
        Some(Key::plain(metric, self.size, &self.system).by(way))
    }

    /// The figures.
    pub fn sampled(&self) -> Sampled {
        Sampled { median: self.median, p99: self.p99, mean: self.mean, n: self.n }
    }

    /// What it said of itself.
    pub fn detail(&self) -> String {
        self.detail.clone()
    }

    /// The cache line's round trips beside it, where it has seen them.
    pub fn lines(&self) -> impl Iterator<Item = f64> {
        [self.line_before, self.line_after].into_iter().filter(|&ns| ns > 0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_limit_programs_is_read() {
        let line: Line = serde_json::from_str(
            r#"{"metric":"rtt","size":16,"unit":"ns","system":"ring","median":496.359,"p99":1014,"mean":2437.07,"n":641,
                "detail":"ring 8 MiB","variant":"8M,early,place","line_before":496.7,"line_after":495.1}"#,
        )
        .expect("it is as they print it");
        assert_eq!(line.key(Way::Plain), Some(Key::plain(Metric::Rtt, 16, "ring")));
        assert_eq!(line.sampled().median, 496.359);
        assert_eq!(line.lines().count(), 2);
    }
}
