//! The command `weft`: the command line, and how errors are reported.
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr, clippy::disallowed_methods)]

mod bench;
mod child;
mod contact;
mod daemon;
mod demo;
mod doctor;
mod error;
mod explain;
mod held;
mod interrupt;
mod manual;
mod namespaces;
mod output;
mod ping;
mod progress;
mod regions;
mod repository;
mod run;
mod serve;
mod sim;
mod status;
mod tell;
mod thread;
mod top;
mod trace;
mod wire;

use clap::{CommandFactory, Parser, Subcommand};
use error::Error;
use std::process::ExitCode;

/// Fast, protected messages between ordinary Linux processes.
#[derive(Debug, Parser)]
#[command(name = "weft", version, arg_required_else_help = true)]
struct Command {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Shows what weft does with several processes, then what messages cost.
    Demo(demo::Options),
    /// Measures weft beside the limits of the machine and its peers.
    #[command(subcommand)]
    Bench(Bench),
    /// Runs a program as a job: as several processes that know each other.
    Run(run::Options),
    /// Answers `weft ping` until Ctrl-C.
    Serve(serve::Options),
    /// Sends requests to an endpoint and reports how long the answers took.
    Ping(ping::Options),
    /// Reports what costs speed or safety here, and how to fix it.
    Doctor(doctor::Options),
    /// Explains which path messages to a name take, and what limits them.
    Explain(explain::Options),
    /// Reports the state of weft's processes: endpoints, peers, counters.
    Status(status::Options),
    /// Shows `weft status` as a live screen, with rates.
    Top(top::Options),
    /// Shows weft's packets live, or records them for Wireshark. Needs root.
    Trace(trace::Options),
    /// Makes a bad network between hosts: loss, delay, a rate. Needs root.
    Wire(Box<wire::Options>),
    /// Runs weft over bad links in virtual time, and checks every message.
    Sim(Box<sim::Options>),
    /// Prints the manual page weft(1).
    #[command(hide = true)]
    Man(manual::ManOptions),
    /// Prints a script with which a shell completes this command.
    #[command(hide = true)]
    Completions(manual::CompletionOptions),
    /// A worker of `weft demo`; the master starts it.
    #[command(hide = true)]
    DemoWorker,
    /// The process whose memory `weft demo` writes; the demo starts it.
    #[command(hide = true)]
    DemoOwner,
    /// A command in a host of `weft wire`; the wire starts it.
    #[command(hide = true)]
    WireHost(wire::HostOptions),
    /// A process of `weft run`, before it becomes the program.
    #[command(hide = true)]
    RunRank(run::RankOptions),
    /// The process that ends the ranks of a `weft run` that was killed.
    #[command(hide = true)]
    RunKeeper,
    /// The second process of `weft bench`; the first starts it.
    #[command(hide = true)]
    BenchPeer(bench::PeerOptions),
    /// Runs a program that ends with this command; `weft bench` starts it.
    #[command(hide = true)]
    BenchLauncher(bench::mpi::launch::LauncherOptions),
}

#[derive(Debug, Subcommand)]
enum Bench {
    /// Two processes on this machine, pinned to two CPUs.
    Local(bench::Options),
    /// Two hosts: processes in two network namespaces of this machine. Needs root.
    Hosts(bench::hosts::Options),
    /// Remote memory: writes, reads and atomic operations between two processes, on one host or two.
    Memory(bench::memory::Options),
    /// Open MPI and MPICH over weft, beside their own shared memory and libfabric's tcp and shm.
    Mpi(bench::mpi::Options),
    /// A server with more endpoints than weftd has frames, simulated: the experiment of the paper on virtual networks.
    Contention(bench::contention::Options),
    /// Messages through weftd, beside the same two programs without it: on one host, between two, and during remappings.
    Daemon(bench::daemon::Options),
    /// Active Messages in C beside the same in Rust: short, medium and long, on one host and between two.
    Am(bench::am::Options),
    /// Two real machines: one listens, the other connects and measures.
    Pair(bench::pair::Options),
    /// Draws one measurement, or two side by side, as one HTML file; or prints Markdown.
    Report(bench::report::Options),
    /// Compares two measurements and reports what changed beyond noise.
    Compare(bench::compare::Options),
}

fn main() -> ExitCode {
    match parse().and_then(|command| command.map_or(Ok(()), |command| run(command.what))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error.note();
            ExitCode::from(error.exit_status())
        }
    }
}

/// Reads the command line. `None` if it asked for help or the version, which has been printed.
fn parse() -> Result<Option<Command>, Error> {
    match Command::try_parse() {
        Ok(command) => Ok(Some(command)),
        Err(error) if error.use_stderr() => Err(Error::CommandLine(error)),
        Err(help) => output::print(help.render().to_string()).map(|()| None),
    }
}

fn run(what: What) -> Result<(), Error> {
    match what {
        What::Demo(options) => demo::run(&options),
        What::Bench(Bench::Local(options)) => bench::run(&options),
        What::Bench(Bench::Hosts(options)) => bench::hosts::run(&options),
        What::Bench(Bench::Memory(options)) => bench::memory::run(&options),
        What::Bench(Bench::Mpi(options)) => bench::mpi::run(&options),
        What::Bench(Bench::Contention(options)) => bench::contention::run(&options),
        What::Bench(Bench::Daemon(options)) => bench::daemon::run(&options),
        What::Bench(Bench::Am(options)) => bench::am::run(&options),
        What::Bench(Bench::Pair(options)) => bench::pair::run(&options),
        What::Bench(Bench::Report(options)) => bench::report::run(&options),
        What::Bench(Bench::Compare(options)) => bench::compare::run(&options),
        What::Run(options) => run::run(&options),
        What::Serve(options) => serve::run(&options),
        What::Ping(options) => ping::run(&options),
        What::Doctor(options) => doctor::run(&options),
        What::Explain(options) => explain::run(&options),
        What::Status(options) => status::run(&options),
        What::Top(options) => top::run(&options),
        What::Trace(options) => trace::run(&options),
        What::Wire(options) => wire::run(&options),
        What::Sim(options) => sim::run(&options),
        What::Man(options) => manual::run_man(Command::command(), &options),
        What::Completions(options) => manual::run_completions(Command::command(), &options),
        What::DemoWorker => demo::run_worker(),
        What::DemoOwner => demo::run_owner(),
        What::WireHost(options) => wire::run_host(&options),
        What::RunRank(options) => run::run_rank(&options),
        What::RunKeeper => run::run_keeper(),
        What::BenchPeer(options) => bench::run_peer(&options),
        What::BenchLauncher(options) => bench::mpi::launch::run_launcher(&options),
    }
}
