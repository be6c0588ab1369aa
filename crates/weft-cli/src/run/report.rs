//! The report of `--json`: how and when each process ended.

use super::end::{Ended, How};
use super::Options;
use crate::error::Error;
use crate::output::{is_standard_output, print};
use crate::tell::text;
use serde::Serialize;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

const WAY_OUT: &str = "Name a file in a folder that can be written to";

/// The file. It is created before the job starts.
#[derive(Debug)]
pub struct File {
    path: PathBuf,
    /// `None` for standard output.
    file: Option<fs::File>,
}

#[derive(Serialize)]
struct Document {
    program: String,
    size: u32,
    status: u8,
    seconds: f64,
    ranks: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    rank: usize,
    process: i32,
    /// Either this or the signal is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<i32>,
    /// Whether the launcher asked it to end.
    was_ended: bool,
    seconds: f64,
}

impl File {
    pub fn create(path: &Path) -> Result<File, Error> {
        let create = || fs::File::create(path).map_err(|source| failed("create", path, source));
        let file = (!is_standard_output(path)).then(create).transpose()?;
        Ok(File { path: path.to_path_buf(), file })
    }

    pub fn write(&mut self, ended: &Ended, options: &Options) -> Result<(), Error> {
        let rows = ended.ranks.iter().enumerate().map(|(rank, it)| {
            let (status, signal) = match it.end.map(|(how, _)| how) {
                Some(How::Status(status)) => (Some(status), None),
                Some(How::Signal { number, .. }) => (None, Some(number)),
                None => (None, None),
            };
            let seconds = it.end.map_or(ended.time, |(_, time)| time).as_secs_f64();
            Row { rank, process: it.pid.as_raw_nonzero().get(), status, signal, was_ended: it.was_ended, seconds }
        });
        let document = Document {
            program: options.program.to_string_lossy().into_owned(),
            size: options.ranks,
            status: ended.exit_status(),
            seconds: ended.time.as_secs_f64(),
            ranks: rows.collect(),
        };
        let text = text(&document)?;
        match &mut self.file {
            Some(file) => file.write_all(text.as_bytes()).map_err(|source| failed("write", &self.path, source)),
            // The launcher has printed the ranks' output.
            None => print(text),
        }
    }
}

fn failed(verb: &'static str, path: &Path, source: std::io::Error) -> Error {
    Error::File { verb, path: path.to_path_buf(), source, way_out: WAY_OUT }
}
