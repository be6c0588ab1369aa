//! `weft trace`: weft's packets on the network, captured without the processes noticing; or, with `--stages`, the stages of
//! requests, which the processes stamp themselves.

mod capture;
mod datagram;
mod join;
mod packet;
mod pcapng;
mod stages;
mod table;

use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::output::{is_standard_output, note_line};
use crate::top::looker::Looker;
use capture::{Ear, Heard};
use datagram::Datagram;
use packet::Told;
use pcapng::Capture;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use weft::status::{look, Look};
use weft::Name;

/// Time between two looks for the ports of processes.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Packets that are handled before anything else gets a turn.
const AT_ONCE: usize = 256;

/// Text after the options in `--help`.
const HELP: &str = "\
Shows packets in this network namespace, on all interfaces: all packets of weft, and all other packets to or from the \
UDP ports of processes that `weft status` shows. The kernel copies them: the processes do nothing for it. A run of packets that left \
in one call is split again. Wireshark and tshark read packets of weft with contrib/wireshark/weft.lua. Ctrl-C ends it.

With --stages this user's processes (all users' if root asks) stamp some of their requests themselves while this runs, about one in \
500 where there are many. The stamps say when the program called, the message was written, a poll of the other process found it, that process \
replied, the reply was written, a poll found it, and its handler had run. This takes no privilege, and works through memory as well as over \
UDP. One-way and tagged messages are not stamped, since nobody answers them. Operations on regions are stamped if one request carries them out; \
they are shown with what they do and with the region's place in its owner's table, never with a key.";

/// The arguments of `weft trace`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = HELP)]
pub struct Options {
    /// Only the packets from and to this process's ports, or the requests from and to it.
    pid: Option<u32>,
    /// Prints, in place of packets, how long requests and their answers take in each of six stages. Needs no root.
    #[arg(long, conflicts_with = "pcap")]
    stages: bool,
    /// Writes a capture for Wireshark (pcap-ng) and prints nothing; `-` for standard output.
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    pcap: Option<PathBuf>,
    /// Prints one JSON document per line for each packet or request.
    #[arg(long)]
    json: bool,
    /// Ends after this many packets or requests.
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Ends after this many seconds.
    #[arg(short, long, value_name = "SECONDS", value_parser = seconds)]
    duration: Option<Duration>,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.1..=86_400.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "give seconds from 0.1 to 86400".to_owned())
}

impl Options {
    /// When to end.
    fn end(&self) -> Option<Instant> {
        self.duration.map(|duration| Instant::now() + duration)
    }

    /// Checks that the process asked for is there.
    fn check(&self, look: &Look) -> Result<(), Error> {
        let is_missing = |pid: &u32| !look.processes.iter().any(|found| found.pid == Some(*pid));
        self.pid.filter(is_missing).map_or(Ok(()), |pid| {
            Err(Error::Usage {
                cause: format!("process {pid} has no node of weft here that this user may look at"),
                way_out: "`weft status` tells which processes have one".to_owned(),
            })
        })
    }
}

/// Prints until the count or the time is reached, or Ctrl-C.
pub fn run(options: &Options) -> Result<(), Error> {
    match options.stages {
        true => stages::run(options),
        false => tell_packets(options),
    }
}

fn tell_packets(options: &Options) -> Result<(), Error> {
    let mut ear = Ear::open()?;
    let interrupt = Interrupt::watch(|| ())?;
    let mut out = Out::open(options)?;
    let mut looker = Looker::start(look)?;
    let end = options.end();
    let mut ports = BTreeSet::new();
    let mut is_begun = false;
    looker.ask();
    let mut next = None;
    while !interrupt.came() && end.is_none_or(|end| Instant::now() < end) {
        if let Some((_, look)) = looker.take() {
            let look = look?;
            ports = ports_of(&look, options.pid);
            next = Some(Instant::now() + LOOK_EVERY);
            if !std::mem::replace(&mut is_begun, true) {
                options.check(&look)?;
                begun(&ports, options.pid);
            }
        }
        if next.is_some_and(|at| at <= Instant::now()) {
            looker.ask();
            next = None;
        }
        let is_more = hear(&mut ear, &mut out, &ports)?;
        out.flush()?;
        if !is_more {
            break;
        }
        interrupt.wait(&[ear.socket(), looker.bell()], next.into_iter().chain(end).min());
    }
    out.sum(ear.missed());
    Ok(())
}

/// The ports of processes that were found.
fn ports_of(look: &Look, pid: Option<u32>) -> BTreeSet<u16> {
    let wanted = look.processes.iter().filter(|found| pid.is_none() || found.pid == pid);
    let bundles = wanted.filter_map(|found| found.answer.as_ref().ok()).flat_map(|process| &process.bundles);
    let names = bundles.flat_map(|bundle| &bundle.endpoints).filter_map(|endpoint| endpoint.name.parse::<Name>().ok());
    names.map(|name| name.address.port).filter(|port| *port != 0).collect()
}

fn begun(ports: &BTreeSet<u16>, pid: Option<u32>) {
    let n = ports.len();
    let ports = format!("{n} UDP port{}", if n == 1 { "" } else { "s" });
    note_line(match pid {
        Some(pid) if n == 0 => format!(
            "weft trace: process {pid} has no UDP port yet: without WEFT_ADDR=none it gets one with its first endpoint. `weft trace --stages \
             {pid}` tells of messages through memory; Ctrl-C ends it"
        ),
        Some(pid) => format!("weft trace: process {pid} has {ports}; Ctrl-C ends it"),
        None => format!("weft trace: hears all of weft, {ports} known; Ctrl-C ends it"),
    });
}

/// Takes the captured packets. Returns whether more are wanted.
fn hear(ear: &mut Ear, out: &mut Out, ports: &BTreeSet<u16>) -> Result<bool, Error> {
    for _ in 0..AT_ONCE {
        let Some(heard) = ear.next()? else { break };
        let Some(datagram) = Datagram::read(heard.bytes) else { continue };
        let is_known = ports.contains(&datagram.from.port()) || ports.contains(&datagram.to.port());
        // A process that has just started may have a port that is not known yet.
        if !is_known && (out.is_of_one || !datagram.is_weft()) {
            continue;
        }
        for part in datagram.packets() {
            if !out.tell(&heard, &datagram, part)? {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// The output for packets.
struct Out {
    form: Form,
    /// Whether only packets known to be of one process are printed.
    is_of_one: bool,
    left: Option<u64>,
    told: u64,
}

enum Form {
    Pcap(Capture<Box<dyn Write>>),
    Json(BufWriter<io::Stdout>),
    Words(BufWriter<io::Stdout>),
}

impl Out {
    fn open(options: &Options) -> Result<Out, Error> {
        let stdout = || BufWriter::new(io::stdout());
        let form = match &options.pcap {
            None if options.json => Form::Json(stdout()),
            None => Form::Words(stdout()),
            Some(path) => {
                let to: Box<dyn Write> = if is_standard_output(path) {
                    Box::new(stdout())
                } else {
                    let way_out = "Choose a folder that you may write to";
                    let file = File::create(path);
                    let cannot = |source| Error::File { verb: "write", path: path.clone(), source, way_out };
                    Box::new(BufWriter::new(file.map_err(cannot)?))
                };
                Form::Pcap(Capture::begin(to).map_err(cannot)?)
            }
        };
        Ok(Out { form, is_of_one: options.pid.is_some(), left: options.count, told: 0 })
    }

    /// Prints a packet. Returns whether more are wanted.
    fn tell(&mut self, heard: &Heard<'_>, datagram: &Datagram<'_>, part: &[u8]) -> Result<bool, Error> {
        let &Heard { at, way, .. } = heard;
        let told = || Told::read(at, way, [datagram.from, datagram.to], part);
        let done = match &mut self.form {
            Form::Pcap(capture) => capture.push(at, way, &datagram.alone(part)),
            Form::Words(out) => writeln!(out, "{}", told().in_words()),
            Form::Json(out) => {
                serde_json::to_writer(&mut *out, &told()).map_err(io::Error::from).and_then(|()| writeln!(out))
            }
        };
        self.told += 1;
        self.left = self.left.map(|left| left.saturating_sub(1));
        done.map_err(cannot)?;
        Ok(self.left != Some(0))
    }

    /// Flushes the output.
    fn flush(&mut self) -> Result<(), Error> {
        match &mut self.form {
            Form::Pcap(capture) => capture.flush(),
            Form::Words(out) | Form::Json(out) => out.flush(),
        }
        .map_err(cannot)
    }

    /// Prints how many packets there were.
    fn sum(&self, missed: u32) {
        let missed = match missed {
            0 => String::new(),
            missed => format!("; {missed} of all packets came too fast and were missed"),
        };
        let plural = if self.told == 1 { "" } else { "s" };
        note_line(format!("weft trace: {} packet{plural}{missed}", self.told));
    }
}

/// The error if packets could not be written to a file or to standard output.
fn cannot(source: io::Error) -> Error {
    match source.kind() {
        io::ErrorKind::BrokenPipe => Error::Closed,
        _ => Error::system("write the packets", source, "Make room there, or write to another file"),
    }
}
