//! `weft doctor`: what costs speed or safety on this machine, and the command that fixes it.

mod checks;
mod facts;

use crate::bench::table;
use crate::error::Error;
use crate::output::{columns, wrap};
use crate::tell::Form;
use checks::{examine, Finding, Level};
use comfy_table::{Cell, ContentArrangement};
use facts::Facts;
use serde::Serialize;
use std::fmt::Write;

/// Text after the options in `--help`.
const HELP: &str = "\
It changes nothing. It checks what a program of this user with this environment would find: run it as the user who runs the programs. \
The exit status is 1 if something does not work or costs safety, else 0. Findings that only cost speed do not count.";

/// The arguments of `weft doctor`.
#[derive(Clone, Copy, Debug, clap::Args)]
#[command(after_help = HELP)]
pub struct Options {
    #[command(flatten)]
    form: Form,
}

/// The indentation of a broken line's rest.
const INDENT: &str = "         ";

#[derive(Serialize)]
struct Document<'a> {
    /// The worst level of all findings.
    level: Level,
    findings: &'a [Finding],
}

/// Examines this machine.
pub fn run(options: &Options) -> Result<(), Error> {
    let findings = examine(&Facts::gather());
    let level = findings.iter().map(|finding| finding.level).max().unwrap_or(Level::Ok);
    options.form.tell(&Document { level, findings: &findings }, || text(&findings, columns()))?;
    match level {
        Level::Ok | Level::Missing | Level::Speed => Ok(()),
        Level::Safety | Level::Broken => {
            let grave = findings.iter().filter(|f| f.level >= Level::Safety).map(|f| f.check);
            Err(Error::Unsound { checks: grave.collect::<Vec<_>>().join(", ") })
        }
    }
}

fn text(findings: &[Finding], columns: usize) -> String {
    let mut table = table::new(&["", "check", "found"]);
    table.set_content_arrangement(ContentArrangement::Dynamic).set_width(columns.try_into().unwrap_or(u16::MAX));
    for finding in findings {
        table.add_row(vec![Cell::new(in_words(finding.level)), Cell::new(finding.check), Cell::new(&finding.found)]);
    }
    let mut text = format!("{table}\n");
    for finding in findings.iter().filter(|finding| finding.level != Level::Ok) {
        let cost = finding.cost.as_ref().map(|cost| format!("  costs: {cost}"));
        text.push('\n');
        for line in [Some(format!("{}: {}", finding.check, finding.found)), cost].into_iter().flatten() {
            wrap(&line, columns, INDENT).iter().for_each(|line| _ = writeln!(text, "{line}"));
        }
        // Keep it in one line, however long: it is a command to copy.
        finding.mend.iter().for_each(|mend| _ = writeln!(text, "  mend:  {mend}"));
    }
    text
}

fn in_words(level: Level) -> &'static str {
    match level {
        Level::Ok => "ok",
        Level::Missing => "missing",
        Level::Speed => "costs speed",
        Level::Safety => "COSTS SAFETY",
        Level::Broken => "BROKEN",
    }
}
