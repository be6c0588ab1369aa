//! A job in C: an example is built with this machine's C compiler and run as several ranks.

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

/// The program. Each rank adds up its part of the numbers from 1 to 1,000,000 and sends the result to rank 0, which prints the sum.
const SOURCE: &str = include_str!("../../../../examples/c/ranks.c");
const SAYS: &str = "4 ranks: the sum is 500000500000";
const RANKS: u32 = 4;

/// The time limits for building the program and for running it.
const BUILD_MOST: Duration = Duration::from_secs(60);
const RUN_MOST: Duration = Duration::from_secs(40);

/// After how many seconds `weft run` ends the job. Less than [`RUN_MOST`], so that `weft run` reports it.
const TIMEOUT: &str = "30";

/// A rank in the document of `weft run --json`.
#[derive(Clone, Debug, Deserialize)]
struct Rank {
    rank: u32,
    process: u32,
    status: Option<i32>,
    seconds: f64,
}

/// The document of `weft run --json`, without the fields that are not used here.
#[derive(Clone, Debug, Deserialize)]
struct Job {
    ranks: Vec<Rank>,
    seconds: f64,
}

/// Shows this part. Without a compiler or libweft, prints how to get it and returns no section.
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

/// Builds the program. If the compiler or libweft is missing, returns a text that says how to get it.
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
            way_out: "See that cc can build programs (on Debian: apt-get install gcc libc6-dev), and that libweft has the same version as weft",
        }),
        Err(NoOutput::NotStarted(e)) => {
            Ok(Err(format!("no C compiler found (cc: {e}); install one (on Debian: apt-get install gcc libc6-dev)")))
        }
        Err(NoOutput::TooLong) => Err(too_long("cc", BUILD_MOST)),
    }
}

/// The compiler's arguments for libweft: the library beside this program, or else the one that pkg-config finds. If there is none, a text
/// that says how to get it.
fn library(folder: &Folder) -> Result<Result<Vec<OsString>, String>, Error> {
    let here = std::env::current_exe()
        .map_err(|e| Error::system("find this program's own file", e, "Start weft by its path, with /proc mounted"))?;
    // The library as cargo builds it. A link gives it the installed name, by which the linked program looks for it.
    let built = here.with_file_name("libweft_c.so");
    let headers = repository::root().map(|root| root.join("crates/weft-capi/include"));
    if let Some(headers) = headers.filter(|headers| built.is_file() && has_headers(headers)) {
        let named = folder.file("libweft.so.0");
        std::os::unix::fs::symlink(&built, &named).map_err(|e| not_written(&named, e))?;
        return Ok(Ok(linked(&headers, &named)));
    }
    // The library as `make install` installs it: PREFIX/bin/weft, PREFIX/lib/libweft.so.
    if let Some(prefix) = here.parent().and_then(Path::parent) {
        let (headers, installed) = (prefix.join("include"), prefix.join("lib/libweft.so"));
        if installed.is_file() && has_headers(&headers) {
            return Ok(Ok(linked(&headers, &installed)));
        }
    }
    Ok(by_pkg_config().ok_or_else(|| {
        "there is no libweft beside this program, and pkg-config finds none; type \
         `make build && sudo make install` in weft's repository, or install the package"
            .to_owned()
    }))
}

fn has_headers(folder: &Path) -> bool {
    ["am.h", "am_spmd.h"].iter().all(|header| folder.join(header).is_file())
}

/// The compiler's arguments: headers, library, and the folder in which the program finds the library when it starts.
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

/// Runs the program by `weft run`. Returns the output of rank 0, and how the ranks ended.
fn run_ranks(folder: &Folder, program: &Path) -> Result<(String, Job), Error> {
    let told = folder.file("job.json");
    let weft = myself()?;
    // The launcher unblocks the signals that this process blocks, and ends when this process does.
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
            way_out: "See that libweft has the same version as weft; if it has, report this line",
        });
    }
    let printed = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if printed != SAYS {
        let what = "the expected and the actual output of the job in C".to_owned();
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
    Error::Silence { seconds: most.as_secs(), what: format!("{who} did not end") }
}

fn not_written(path: &Path, source: std::io::Error) -> Error {
    Error::File {
        verb: "write",
        path: path.to_path_buf(),
        source,
        way_out: "Set TMPDIR to a folder that you may write to",
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
                "weft run -n {RANKS} ran examples/c/ranks.c in {:.0} ms. The ranks share the numbers from 1 to 1,000,000. Each adds up its own \
                 and sends the result to rank 0 (rank 0, too), which prints the sum.",
                self.seconds * 1e3
            ),
            picture: self.sketch(said).draw()?,
            heads: vec!["", "process", "status", "ended after"],
            rows: self.ranks.iter().map(row).collect(),
        })
    }

    /// Draws rank 0 at the top, and the other ranks below with an arrow to it.
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
