//! A job in C: an example is built with what is here, and run as several ranks.

use crate::bench::daemon::Folder;
use crate::bench::report::{Section, Shape, Side, Sketch, Who};
use crate::child::{myself, output_of, NoOutput};
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::output::print_line;
use crate::repository;
use serde::Deserialize;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

/// The program. Each rank adds up its part of 1 to 1,000,000 and sends it to rank 0, which prints the sum.
const SOURCE: &str = include_str!("../../../../examples/c/ranks.c");
const SAYS: &str = "4 ranks: the sum is 500000500000";
const RANKS: u32 = 4;

/// What building it may take, and running it.
const BUILD_MOST: Duration = Duration::from_secs(60);
const RUN_MOST: Duration = Duration::from_secs(40);

/// When `weft run` ends the job.
const TIMEOUT: &str = "30";

/// How one rank ended, as `weft run --json` tells it.
#[derive(Clone, Debug, Deserialize)]
struct Rank {
    rank: u32,
    process: u32,
    status: Option<i32>,
    seconds: f64,
}

/// The file of `weft run --json`, as far as it is read.
#[derive(Clone, Debug, Deserialize)]
struct Job {
    ranks: Vec<Rank>,
    seconds: f64,
}

/// Shows it. Without a compiler or libweft, says what is missing; then there is nothing to draw.
pub fn run(interrupt: &Interrupt) -> Result<Option<Section>, Error> {
    print_line(format!("\nA job in C: examples/c/ranks.c, built here and run as {RANKS} ranks."))?;
    let folder = Folder::make()?;
    let built = build(&folder)?;
    interrupt.check()?;
    let program = match built {
        Ok(program) => program,
        Err(missing) => {
            print_line(format!("  left out: {missing}"))?;
            return Ok(None);
        }
    };
    let (said, job) = run_ranks(&folder, &program)?;
    for rank in &job.ranks {
        let Rank { rank, process, seconds, .. } = rank;
        print_line(format!("  rank {rank}: process {process}, ended after {:.0} ms", seconds * 1e3))?;
    }
    print_line(format!("  rank 0 prints: {said}"))?;
    job.draw(&said).map(Some)
}

/// Builds the program; or says what is missing for that, and how to get it.
fn build(folder: &Folder) -> Result<Result<PathBuf, String>, Error> {
    let library = match library(folder)? {
        Ok(library) => library,
        Err(missing) => return Ok(Err(missing)),
    };
    let (source, program) = (folder.file("ranks.c"), folder.file("ranks"));
    fs::write(&source, SOURCE).map_err(|e| not_written(&source, e))?;
    let mut command = Command::new("cc");
    command.arg("-O2").arg("-o").arg(&program).arg(&source).args(library);
    match output_of(&mut command, BUILD_MOST) {
        Ok(output) if output.status.success() => Ok(Ok(program)),
        Ok(output) => Err(Error::Process {
            who: "cc".to_owned(),
            cause: said(&output),
            way_out: "See that it can build programs (on Debian: apt-get install gcc libc6-dev), and that libweft is of the same version as weft",
        }),
        Err(NoOutput::NotStarted(e)) => {
            Ok(Err(format!("no C compiler can be run (cc: {e}); to have one on Debian: apt-get install gcc libc6-dev")))
        }
        Err(NoOutput::TooLong) => Err(too_long("cc", BUILD_MOST)),
    }
}

/// What the compiler is told of libweft: the one beside this program, or else that of pkg-config. Or what is missing.
fn library(folder: &Folder) -> Result<Result<Vec<OsString>, String>, Error> {
    let here = std::env::current_exe()
        .map_err(|e| Error::system("find this program's own file", e, "Start weft by its path, with /proc mounted"))?;
    // As cargo builds it. Programs look for it by the name that it has where it is installed.
    let built = here.with_file_name("libweft_c.so");
    let headers = repository::root().map(|root| root.join("crates/weft-capi/include"));
    if let Some(headers) = headers.filter(|headers| built.is_file() && has_headers(headers)) {
        let named = folder.file("libweft.so.0");
        std::os::unix::fs::symlink(&built, &named).map_err(|e| not_written(&named, e))?;
        return Ok(Ok(linked(&headers, &named)));
    }
    // As it is installed: PREFIX/bin/weft, PREFIX/lib/libweft.so.
    if let Some(prefix) = here.parent().and_then(Path::parent) {
        let (headers, installed) = (prefix.join("include"), prefix.join("lib/libweft.so"));
        if installed.is_file() && has_headers(&headers) {
            return Ok(Ok(linked(&headers, &installed)));
        }
    }
    Ok(by_pkg_config().ok_or_else(|| {
        "there is no libweft beside this program, and pkg-config knows none; to have it type \
         `make build && sudo make install` in weft's repository, or install the package"
            .to_owned()
    }))
}

fn has_headers(folder: &Path) -> bool {
    ["am.h", "am_spmd.h"].iter().all(|header| folder.join(header).is_file())
}

/// Words for the compiler: headers, library, and where the program finds it when it starts.
fn linked(headers: &Path, library: &Path) -> Vec<OsString> {
    let with = |flag: &str, path: &Path| {
        let mut word = OsString::from(flag);
        word.push(path);
        word
    };
    let folder = library.parent().unwrap_or(Path::new("/"));
    vec![with("-I", headers), library.into(), with("-Wl,-rpath,", folder)]
}

fn by_pkg_config() -> Option<Vec<OsString>> {
    let ask = |words: &[&str]| {
        let output = output_of(Command::new("pkg-config").args(words).arg("weft"), BUILD_MOST).ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let (words, folder) = (ask(&["--cflags", "--libs"])?, ask(&["--variable=libdir"])?);
    Some(words.split_whitespace().map(OsString::from).chain([format!("-Wl,-rpath,{folder}").into()]).collect())
}

/// Runs it by `weft run`. Returns what rank 0 printed, and how the ranks ended.
fn run_ranks(folder: &Folder, program: &Path) -> Result<(String, Job), Error> {
    let told = folder.file("job.json");
    let weft = myself()?;
    // It hears the signals that this process blocks, and ends with it.
    let mut command = myself()?;
    command.args(["bench-launcher", "--"]).arg(weft.get_program());
    command.args(["run", "-n", &RANKS.to_string(), "--no-prefix", "--timeout", TIMEOUT, "--json"]).arg(&told);
    command.arg("--").arg(program);
    let output = output_of(&mut command, RUN_MOST).map_err(|e| match e {
        NoOutput::NotStarted(e) => Error::system("start `weft run`", e, "Check the limit of processes (ulimit -u)"),
        NoOutput::TooLong => too_long("weft run", RUN_MOST),
    })?;
    if !output.status.success() {
        return Err(Error::Process {
            who: "the job in C".to_owned(),
            cause: said(&output),
            way_out: "See that libweft is of the same version as weft; if it is, report this with this line",
        });
    }
    let printed = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if printed != SAYS {
        let what = "what the job in C must print and what it printed".to_owned();
        return Err(Error::Mismatch { what, left: SAYS.to_owned(), right: printed });
    }
    let text = fs::read_to_string(&told);
    let job = text.and_then(|text| serde_json::from_str(&text).map_err(Into::into)).map_err(|source| Error::File {
        verb: "read",
        path: told,
        source,
        way_out: "Report this with this line",
    })?;
    Ok((printed, job))
}

fn said(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
    if said.is_empty() {
        output.status.to_string()
    } else {
        said
    }
}

fn too_long(who: &str, most: Duration) -> Error {
    Error::Silence { seconds: most.as_secs(), what: format!("no end of {who}") }
}

fn not_written(path: &Path, source: std::io::Error) -> Error {
    Error::File {
        verb: "write",
        path: path.to_path_buf(),
        source,
        way_out: "Name a folder where you may write in TMPDIR",
    }
}

impl Job {
    fn draw(&self, said: &str) -> Result<Section, Error> {
        let row = |rank: &Rank| {
            let status = rank.status.map_or_else(String::new, |status| status.to_string());
            vec![
                format!("rank {}", rank.rank),
                rank.process.to_string(),
                status,
                format!("{:.0} ms", rank.seconds * 1e3),
            ]
        };
        Ok(Section {
            title: "A job in C",
            words: format!(
                "examples/c/ranks.c, by weft run -n {RANKS}: it took {:.0} ms. Each rank adds up its numbers of 1 to 1,000,000 and sends \
                 the sum to rank 0, itself included.",
                self.seconds * 1e3
            ),
            picture: self.sketch(said).draw()?,
            heads: vec!["", "process", "status", "ended after"],
            rows: self.ranks.iter().map(row).collect(),
        })
    }

    /// Rank 0 above, and the others with an arrow to it.
    fn sketch(&self, said: &str) -> Sketch {
        const WIDTH: i32 = 820;
        let mut sketch = Sketch::new("A job in C", (WIDTH as u32, 230));
        let place = |sketch: &mut Sketch, middle: i32, top: i32, rank: &Rank| {
            sketch.frame((middle - 110, top), (middle + 110, top + 62), Who::WEFT);
            sketch.say((middle, top + 20), Side::Middle, format!("rank {}, process {}", rank.rank, rank.process));
            let first = rank.rank + 1;
            sketch.say(
                (middle, top + 42),
                Side::Middle,
                format!("{first} + {} + {} ...", first + RANKS, first + 2 * RANKS),
            );
        };
        let others = self.ranks.len().saturating_sub(1).max(1) as i32;
        for (at, rank) in (0..).zip(self.ranks.iter().skip(1)) {
            let middle = WIDTH * (2 * at + 1) / (2 * others);
            let end = WIDTH / 2 + (middle - WIDTH / 2) / 4;
            sketch.shapes.push(Shape::Arrow { from: (middle, 160), to: (end, 74) });
            place(&mut sketch, middle, 160, rank);
        }
        if let Some(rank) = self.ranks.first() {
            place(&mut sketch, WIDTH / 2, 10, rank);
        }
        sketch.say((WIDTH / 2 + 122, 41), Side::Right, format!("prints \"{said}\""));
        sketch
    }
}
