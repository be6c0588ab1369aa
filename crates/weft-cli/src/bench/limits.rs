//! The limit programs of `bench/limits`: finds them, builds them if necessary, runs them, and reads their output.

use super::machine::Cpus;
use super::meter::Sampled;
use super::results::{Key, Metric, Way};
use crate::child::{output_of, NoOutput};
use crate::repository;
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// How long one run of a limit program may take: the programs end themselves after 20 s.
const RUN_MOST: Duration = Duration::from_secs(30);

/// How long building them may take.
const BUILD_MOST: Duration = Duration::from_secs(120);

/// The variable with the program's path if it is elsewhere. The program for UCX is then beside it.
const VARIABLE: &str = "WEFT_LIMITS";

/// The program that can be built only with UCX's headers.
const UCX_READ: &str = "ucx-read";

/// One of the built programs.
#[derive(Clone, Debug)]
pub struct Limits {
    path: PathBuf,
    cpus: Cpus,
}

/// One line of output.
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
    /// The kind of ring that won.
    pub variant: Option<String>,
    #[serde(default)]
    line_before: f64,
    #[serde(default)]
    line_after: f64,
}

impl Limits {
    /// Finds the limit program, or builds it. The error says what to do.
    pub fn find(cpus: Cpus) -> Result<Limits, String> {
        if let Some(path) = named() {
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
        let dir = root.join("bench/limits");
        match built(&dir, "limits") {
            Some(path) => Ok(Limits { path, cpus }),
            None => Err(format!("the limit programs could not be built; type: make -C {}", dir.display())),
        }
    }

    /// Finds the program for round trips through UCX whose two sides read all bytes.
    pub fn find_for_ucx(cpus: Cpus) -> Result<Limits, String> {
        let path = match named() {
            Some(limits) => Some(limits.with_file_name(UCX_READ)).filter(|path| path.is_file()),
            None => repository::root().and_then(|root| built(&root.join("bench/limits"), UCX_READ)),
        };
        path.map(|path| Limits { path, cpus }).ok_or_else(|| {
            format!(
                "there is no {UCX_READ} beside the limit programs, which takes UCX's headers; to have it type `make bench`, or \
                 apt-get install libucx-dev && make -C bench/limits in weft's repository"
            )
        })
    }

    /// The command for one run.
    pub fn command(&self, arguments: &[String], time: Duration) -> Command {
        let cpus = format!("{},{}", self.cpus.ours, self.cpus.theirs);
        let mut command = Command::new(&self.path);
        command.args(arguments).args(["--cpus", &cpus, "--seconds", &time.as_secs_f64().to_string()]);
        command
    }

    /// Runs it once. `Ok(None)`: it does not measure this, and has said why.
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
            _ => {
                let name = self.path.file_name().unwrap_or_default().to_string_lossy();
                Err(said.strip_prefix(&*format!("{name}: ")).unwrap_or(&said).to_owned())
            }
        }
    }
}

/// The path of the limit program, if the user set it.
fn named() -> Option<PathBuf> {
    std::env::var_os(VARIABLE).map(PathBuf::from)
}

/// A program of the repository. It is built if necessary and possible.
fn built(dir: &Path, program: &str) -> Option<PathBuf> {
    let path = dir.join("build").join(program);
    if path.is_file() {
        return Some(path);
    }
    let made = output_of(Command::new("make").arg("-C").arg(dir), BUILD_MOST);
    (made.is_ok_and(|output| output.status.success()) && path.is_file()).then_some(path)
}

impl Line {
    /// The series of the line, if its metric is known.
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

    /// The program's remark on the run.
    pub fn detail(&self) -> String {
        self.detail.clone()
    }

    /// The round trips of a cache line measured along with it, if any.
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
