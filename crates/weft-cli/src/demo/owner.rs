//! The process whose memory is written. It opens a region, prints its endpoint, and sleeps until the demo asks for the contents of its memory.

use crate::bench::lines_of;
use crate::child::{self, myself, Owned};
use crate::error::Error;
use crate::output::print_line;
use std::io::{BufRead, Write};
use std::process::{ChildStdin, Stdio};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};
use weft::memory::{RegionKey, Rights, Settings};
use weft::names::Contact;
use weft::{Node, SharedBundle};

/// The region's key, its length, and the offset of the first put. Nobody reaches the region without the endpoint's key, so its own key need
/// not be random.
pub const KEY: RegionKey = RegionKey(1);
const BYTES: usize = 1 << 20;
pub const AT: u64 = 4096;

/// The length of the longest text that is put.
const TEXT_MOST: usize = 64;

/// How long the process may take to answer, and to fall asleep.
const PATIENCE: Duration = Duration::from_secs(20);
const ASLEEP_MOST: Duration = Duration::from_secs(2);

/// The process counts as asleep if the kernel has not run it for this long.
const ASLEEP: Duration = Duration::from_millis(5);

/// The parent's handle on the process.
#[derive(Debug)]
pub struct Owner {
    /// Its endpoint.
    pub contact: Contact,
    process: Owned,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl Owner {
    /// Starts the process.
    pub fn start() -> Result<Owner, Error> {
        let mut command = myself()?;
        command.arg("demo-owner").stdin(Stdio::piped()).stdout(Stdio::piped());
        let started = command.spawn();
        let mut process = Owned(
            started
                .map_err(|e| Error::system("start a second process", e, "Check the limit of processes (ulimit -u)"))?,
        );
        let (Some(input), Some(output)) = (process.0.stdin.take(), process.0.stdout.take()) else {
            return Err(failed("it has no pipes"));
        };
        let lines = lines_of(output)?;
        let contact = hear(&lines)?.parse().map_err(|e| failed(format!("it printed no name and key: {e}")))?;
        Ok(Owner { contact, process, input, lines })
    }

    /// The process's number.
    pub fn process(&self) -> u32 {
        self.process.0.id()
    }

    /// Waits until the program sleeps. Returns how often the kernel had run it by then, if the kernel tells this.
    pub fn sleeps(&self) -> Option<u64> {
        let since = Instant::now();
        let mut before = self.runs()?;
        while since.elapsed() < ASLEEP_MOST {
            std::thread::sleep(ASLEEP);
            match self.runs()? {
                runs if runs == before => return Some(runs),
                runs => before = runs,
            }
        }
        None
    }

    /// How often the kernel has run the program's main thread. The kernel counts a run when it ends.
    pub fn runs(&self) -> Option<u64> {
        let process = self.process();
        runs_in(&std::fs::read_to_string(format!("/proc/{process}/task/{process}/status")).ok()?)
    }

    /// Asks the process for the text at the place of the first put.
    pub fn wake(&mut self) -> Result<String, Error> {
        self.input.write_all(b"\n").map_err(|e| failed(e.to_string()))?;
        hear(&self.lines)
    }
}

/// The number of a thread's context switches, voluntary or not, from its status.
fn runs_in(status: &str) -> Option<u64> {
    let of = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
    Some(of("voluntary_ctxt_switches:")?.saturating_add(of("nonvoluntary_ctxt_switches:")?))
}

fn hear(lines: &Receiver<String>) -> Result<String, Error> {
    lines.recv_timeout(PATIENCE).map_err(|_| failed("it did not answer; what it printed is above"))
}

fn failed(cause: impl Into<String>) -> Error {
    let way_out = "Run it again; if it fails again, report this line";
    Error::Process { who: "the process whose memory is written".to_owned(), cause: cause.into(), way_out }
}

/// Runs the process: opens the region, and waits for a line of input.
pub fn run() -> Result<(), Error> {
    child::die_with_parent()?;
    // This thread sleeps, so the bundle needs a thread of its own to set up sessions: a serviced bundle has one.
    let bundle = SharedBundle::serviced(&Node::new()?)?;
    let me = bundle.memory_endpoint_with_random_key(Settings::default())?;
    let (_region, window) = bundle.with_memory(me, |memory| memory.allocate(BYTES, KEY, Rights::ALL))??;
    print_line(bundle.contact(me)?.to_string())?;
    let cannot = |e| Error::system("read a line of input", e, "`weft demo` starts this command; type that");
    if std::io::stdin().lock().read_line(&mut String::new()).map_err(cannot)? == 0 {
        return Ok(());
    }
    let mut text = [0; TEXT_MOST];
    window.read(AT, &mut text);
    let length = text.iter().position(|&byte| byte == 0).unwrap_or(TEXT_MOST);
    print_line(String::from_utf8_lossy(&text[..length]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn voluntary_and_other_switches_are_counted() {
        let status = "Name:\tweft\nState:\tS (sleeping)\nvoluntary_ctxt_switches:\t7\nnonvoluntary_ctxt_switches:\t2\n";
        assert_eq!(runs_in(status), Some(9));
        assert_eq!(runs_in("Name:\tweft\n"), None);
    }
}
