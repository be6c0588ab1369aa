//! The manual pages and shell completions, generated from the definition of the command line.

use crate::error::Error;
use crate::output::print;
use clap_complete::Shell;
use clap_mangen::Man;
use std::io;
use std::path::{Path, PathBuf};

/// The arguments of `weft man`.
#[derive(Clone, Debug, clap::Args)]
pub struct ManOptions {
    /// Writes a page for each command into this directory, instead of weft(1) to standard output.
    #[arg(long, value_name = "DIRECTORY")]
    dir: Option<PathBuf>,
}

/// The arguments of `weft completions`.
#[derive(Clone, Debug, clap::Args)]
pub struct CompletionOptions {
    /// The shell.
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

/// Prints the manual page, or writes all of them.
pub fn run_man(command: clap::Command, options: &ManOptions) -> Result<(), Error> {
    let shown = without_hidden(command);
    let Some(dir) = &options.dir else {
        return print(page(shown).map_err(cannot_render)?);
    };
    write_pages(shown, dir).map_err(|source| Error::File {
        verb: "write manual pages into",
        path: dir.clone(),
        source,
        way_out: "Name an existing directory that you may write to",
    })
}

/// Prints the completion script of a shell.
pub fn run_completions(command: clap::Command, options: &CompletionOptions) -> Result<(), Error> {
    let (mut command, mut script) = (without_hidden(command), Vec::new());
    clap_complete::generate(options.shell, &mut command, "weft", &mut script);
    print(script)
}

/// A command's page.
fn page(command: clap::Command) -> io::Result<String> {
    let mut page = Vec::new();
    Man::new(command).source(concat!("weft ", env!("CARGO_PKG_VERSION"))).render(&mut page)?;
    let page = String::from_utf8(page).map_err(io::Error::other)?;
    // clap's own heading says nothing. Commands in the text can be copied only if lines are neither stretched nor hyphenated.
    Ok(page.replace(".SH EXTRA\n", ".SH NOTES\n").replacen(".SH NAME\n", ".ad l\n.nh\n.SH NAME\n", 1))
}

/// One page for each command, named as `weft-bench-local.1`.
fn write_pages(mut command: clap::Command, dir: &Path) -> io::Result<()> {
    command.build();
    let mut todo = vec![command];
    while let Some(command) = todo.pop() {
        let name = command.get_display_name().unwrap_or(command.get_name()).to_owned();
        let below = command.get_subcommands().filter(|one| one.get_name() != "help");
        // Each page stands alone: subcommands get pages of their own.
        todo.extend(below.cloned());
        std::fs::write(dir.join(format!("{name}.1")), page(command.disable_help_subcommand(true))?)?;
    }
    Ok(())
}

/// The command without the hidden subcommands, which only weft itself starts.
fn without_hidden(command: clap::Command) -> clap::Command {
    let shown: Vec<clap::Command> = command.get_subcommands().filter(|one| !one.is_hide_set()).cloned().collect();
    let all =
        clap::Command::new("weft").bin_name("weft").version(env!("CARGO_PKG_VERSION")).arg_required_else_help(true);
    let about = command.get_about().cloned().unwrap_or_default();
    all.about(about).subcommands(shown)
}

fn cannot_render(source: io::Error) -> Error {
    Error::system("make the manual page", source, "Report this")
}
