//! The experiment with real processes: one weftd, its server, and all clients in one process that is its own network interface.
//!
//! All are on this host and communicate through the loopback interface, because set-up sockets are switched off. Their speed
//! depends on the machine; the checks do not.

mod order;
mod roles;

pub use order::{contents, Order};
pub use roles::{play, ContentionJob, Returns, Seen, WINDOW};

use super::plan::{Extent, ENOUGH, FEW};
use crate::bench::daemon::{look, possible, Daemon, Folder, Look, INTERFACE_VARIABLE, LOOPBACK};
use crate::bench::machine;
use crate::bench::talk::{Contact, Job, Peer};
use crate::child::myself;
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::progress::Progress;
use serde::Serialize;
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Numbers of clients.
const CLIENTS: [u32; 2] = [16, 64];

/// Time between two looks at the daemon.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// How long the two processes may take beyond the measured time.
const END_MOST: Duration = Duration::from_secs(20);

/// The results.
#[derive(Debug, Default, Serialize)]
pub struct Real {
    /// CPUs that the processes may use.
    pub cpus: usize,
    pub rows: Vec<RealRow>,
    /// Why the runs were left out, if they were.
    pub left_out: Option<String>,
}

/// One run.
#[derive(Clone, Debug, Serialize)]
pub struct RealRow {
    pub clients: u32,
    pub frames: u32,
    pub requests_per_second: f64,
    /// Relative to the mean.
    pub slowest_client: f64,
    pub remappings_per_second: f64,
    /// Remappings in the whole run.
    pub remapped: u64,
    /// Looks at the daemon, and the most frames in use at any of them.
    pub looks: u64,
    pub frames_used_most: u64,
    /// Records that the daemon refused for now, and how often it paused a stream.
    pub refused: u64,
    pub paused: u64,
    /// Requests in the whole run; each was answered once and in order.
    pub requests: u64,
    pub answers: u64,
    pub out_of_order: u64,
    pub returned: u64,
}

/// A run to be made.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub clients: u32,
    pub frames: u32,
    warms: Duration,
    lasts: Duration,
}

impl Case {
    /// Its text in the progress bar.
    pub fn title(&self) -> String {
        format!("real, {} clients, {} frames", self.clients, self.frames)
    }
}

/// All runs.
pub fn cases(extent: Extent) -> Vec<Case> {
    let (warms, lasts) = match extent {
        Extent::Full => (Duration::from_secs(1), Duration::from_secs(4)),
        Extent::Quick => (Duration::from_millis(200), Duration::from_millis(800)),
    };
    let all = CLIENTS.into_iter().flat_map(|clients| [FEW, ENOUGH].map(|frames| (clients, frames)));
    all.map(|(clients, frames)| Case { clients, frames, warms, lasts }).collect()
}

/// Why a run has no result.
#[derive(Debug)]
enum Wrong {
    /// The daemon does not start.
    NoDaemon(String),
    /// A promise was broken.
    Broken(String),
    /// Something else.
    Failed(Error),
}

impl From<Error> for Wrong {
    fn from(error: Error) -> Wrong {
        Wrong::Failed(error)
    }
}

/// Makes all runs.
pub fn run(extent: Extent, interrupt: &Interrupt, progress: &Progress) -> Result<Real, Error> {
    let mut real = Real { cpus: machine::allowed()?.len(), ..Real::default() };
    let program = match possible() {
        Ok(program) => program,
        Err(why) => return Ok(Real { left_out: Some(why), ..real }),
    };
    for case in cases(extent) {
        interrupt.check()?;
        progress.say(case.title());
        let ran = run_case(&case, &program, interrupt, &mut |_| {}).map(|(row, _)| row);
        // Its processes get Ctrl-C as well; their errors are then no failure.
        interrupt.check()?;
        match ran {
            Ok(row) => real.rows.push(row),
            // If others started, the daemon can run here, and this is a failure.
            Err(Wrong::NoDaemon(why)) if real.rows.is_empty() => return Ok(Real { left_out: Some(why), ..real }),
            Err(Wrong::NoDaemon(cause) | Wrong::Broken(cause)) => {
                return Err(super::wrong(format!("the run \"{}\"", case.title()), cause));
            }
            Err(Wrong::Failed(error)) => return Err(error),
        }
        progress.one_more();
    }
    Ok(real)
}

/// The result of one run: its row, and the answers that each client got in the counted time.
pub type Shown = (RealRow, Vec<u64>);

/// Makes one run with the given clients, frames and time. `sees` is called at each look at the daemon. Returns the reason if it cannot be made.
pub fn show(
    (clients, frames, lasts): (u32, u32, Duration),
    interrupt: &Interrupt,
    sees: &mut dyn FnMut(&Look),
) -> Result<Result<Shown, String>, Error> {
    let program = match possible() {
        Ok(program) => program,
        Err(why) => return Ok(Err(why)),
    };
    let case = Case { clients, frames, warms: Duration::ZERO, lasts };
    let ran = run_case(&case, &program, interrupt, sees);
    // Its processes get Ctrl-C as well; their errors are then no failure.
    interrupt.check()?;
    match ran {
        Ok(shown) => Ok(Ok(shown)),
        Err(Wrong::NoDaemon(cause)) => Err(Error::Process {
            who: "weftd".to_owned(),
            cause,
            way_out: "See that it starts by itself: weftd --foreground --socket /tmp/weftd/socket",
        }),
        Err(Wrong::Broken(cause)) => Err(super::wrong(format!("the run \"{}\"", case.title()), cause)),
        Err(Wrong::Failed(error)) => Err(error),
    }
}

/// Makes one run and calls `sees` at each look at the daemon. Also returns the answers that each client got.
fn run_case(case: &Case, program: &Path, interrupt: &Interrupt, sees: &mut dyn FnMut(&Look)) -> Result<Shown, Wrong> {
    let folder = Folder::make()?;
    let _daemon = Daemon::start(program, &folder, (case.frames, LOOPBACK), Command::spawn).map_err(Wrong::NoDaemon)?;
    let _looked_at = LookedAt::begin(&folder);
    let mut server = start(|command| _ = command.env(INTERFACE_VARIABLE, folder.socket()))?;
    let own = [(INTERFACE_VARIABLE, "process"), ("WEFT_ADDR", LOOPBACK)];
    let mut clients = start(|command| _ = command.envs(own))?;
    let to: Vec<Contact> = server.give(&Job::Contention(ContentionJob::Serve { endpoints: case.clients }))?;
    clients.give(&Job::Contention(ContentionJob::Ask { to, warms: case.warms, lasts: case.lasts }))?;
    let mut looks = Looks::begin(look()?);
    let asked = loop {
        interrupt.check()?;
        match clients.contended(LOOK_EVERY)? {
            Some(seen) => break seen,
            None if looks.last.at > looks.first.at + case.lasts + END_MOST => {
                let what = "the end of the clients".to_owned();
                return Err(Error::Silence { seconds: END_MOST.as_secs(), what }.into());
            }
            None => {
                looks.note(look()?, case.lasts);
                sees(&looks.last);
            }
        }
    };
    // If the server did not hear of the end, requests are missing or came back; `judge` reports that.
    let served = server.contended(END_MOST).ok().flatten();
    looks.end(look()?);
    sees(&looks.last);
    judge(case, &asked, served.as_ref(), &looks).map_err(Wrong::Broken)?;
    Ok((row(case, &asked, &looks), asked.counted))
}

/// Makes this daemon the one that is looked at, while this value lives.
struct LookedAt(Option<OsString>);

impl LookedAt {
    fn begin(folder: &Folder) -> LookedAt {
        let before = std::env::var_os(INTERFACE_VARIABLE);
        std::env::set_var(INTERFACE_VARIABLE, folder.socket());
        LookedAt(before)
    }
}

impl Drop for LookedAt {
    fn drop(&mut self) {
        match self.0.take() {
            Some(before) => std::env::set_var(INTERFACE_VARIABLE, before),
            None => std::env::remove_var(INTERFACE_VARIABLE),
        }
    }
}

/// Starts one of the two processes. All its messages go over the network.
fn start(environment: impl FnOnce(&mut Command)) -> Result<Peer, Error> {
    let mut command = myself()?;
    command.arg("bench-peer").env("WEFT_LOCAL", "off").env_remove("WEFT_PORT");
    environment(&mut command);
    Peer::start(command, Command::spawn)
}

/// The looks at the daemon during the measured time.
#[derive(Debug)]
struct Looks {
    first: Look,
    /// The last one within the measured time.
    counted: Look,
    last: Look,
    count: u64,
    frames_used_most: u64,
}

impl Looks {
    fn begin(first: Look) -> Looks {
        Looks { first, counted: first, last: first, count: 1, frames_used_most: first.frames_used }
    }

    fn note(&mut self, look: Look, lasts: Duration) {
        if look.at < self.first.at + lasts {
            self.counted = look;
        }
        self.end(look);
    }

    fn end(&mut self, look: Look) {
        self.last = look;
        self.count += 1;
        self.frames_used_most = self.frames_used_most.max(look.frames_used);
    }

    fn remappings_per_second(&self) -> f64 {
        let time = self.counted.at.saturating_duration_since(self.first.at).as_secs_f64();
        self.counted.remapped.saturating_sub(self.first.remapped) as f64 / time.max(f64::MIN_POSITIVE)
    }
}

/// Checks the counts. The error is the first promise that was broken.
fn judge(case: &Case, asked: &Seen, served: Option<&Seen>, looks: &Looks) -> Result<(), String> {
    let Case { frames, .. } = case;
    let used = looks.frames_used_most;
    for seen in [Some(asked), served].into_iter().flatten() {
        let why = seen.why.as_ref().map_or_else(String::new, |why| format!("; of the first one: {why}"));
        expect(seen.returned == 0, || format!("{} messages came back or were refused{why}", seen.returned))?;
    }
    expect(asked.came == asked.sent, || format!("{} requests have {} answers", asked.sent, asked.came))?;
    let strange = asked.strange + served.map_or(0, |served| served.strange);
    expect(strange == 0, || format!("{strange} messages came out of order, twice, or with other contents"))?;
    let Some(Seen { came, sent, .. }) = served else { return Err("the server did not hear of the end".to_owned()) };
    let of_server = || format!("the server took {came} requests of {}, and answered {sent}", asked.sent);
    expect((*came, *sent) == (asked.sent, asked.sent), of_server)?;
    expect(looks.last.violations == 0, || format!("the daemon cut {} programs off", looks.last.violations))?;
    expect(used <= u64::from(*frames), || format!("{used} frames were in use, and there are {frames}"))
}

fn expect(is_so: bool, otherwise: impl FnOnce() -> String) -> Result<(), String> {
    match is_so {
        true => Ok(()),
        false => Err(otherwise()),
    }
}

fn row(case: &Case, asked: &Seen, looks: &Looks) -> RealRow {
    let all: u64 = asked.counted.iter().sum();
    let mean = all as f64 / asked.counted.len().max(1) as f64;
    let least = asked.counted.iter().min().copied().unwrap_or_default() as f64;
    RealRow {
        clients: case.clients,
        frames: case.frames,
        requests_per_second: all as f64 / asked.lasted.as_secs_f64().max(f64::MIN_POSITIVE),
        slowest_client: least / mean.max(f64::MIN_POSITIVE),
        remappings_per_second: looks.remappings_per_second(),
        remapped: looks.last.remapped,
        looks: looks.count,
        frames_used_most: looks.frames_used_most,
        refused: looks.last.refused,
        paused: looks.last.paused,
        requests: asked.sent,
        answers: asked.came,
        out_of_order: asked.strange,
        returned: asked.returned,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CASE: Case = Case { clients: 2, frames: 8, warms: Duration::ZERO, lasts: Duration::from_secs(1) };

    fn look(frames_used: u64, violations: u64) -> Look {
        Look { at: std::time::Instant::now(), frames_used, remapped: 0, evicted: 0, refused: 0, paused: 0, violations }
    }

    /// The error of a run with a planted fault.
    fn judged(change: impl FnOnce(&mut Seen, &mut Seen, &mut Looks)) -> String {
        let mut asked = Seen { sent: 10, came: 10, ..Seen::default() };
        let (mut served, mut looks) = (asked.clone(), Looks::begin(look(8, 0)));
        change(&mut asked, &mut served, &mut looks);
        judge(&CASE, &asked, Some(&served), &looks).err().unwrap_or_default()
    }

    #[test]
    fn a_run_is_good_if_nothing_is_missing() {
        assert_eq!(judged(|_, _, _| ()), "");
    }

    #[test]
    fn each_promise_that_is_broken_is_told() {
        assert_eq!(judged(|asked, _, _| asked.came = 7), "10 requests have 7 answers");
        assert_eq!(judged(|asked, _, _| asked.came = 12), "10 requests have 12 answers");
        assert!(judged(|asked, _, _| asked.strange = 1).contains("1 messages came out of order"));
        assert!(judged(|_, served, _| served.strange = 2).contains("2 messages came out of order"));
        assert_eq!(judged(|_, served, _| served.came = 11), "the server took 11 requests of 10, and answered 10");
        assert_eq!(judged(|_, served, _| served.sent = 9), "the server took 10 requests of 10, and answered 9");
        let why = "of the first one: peer lost";
        let returned = |asked: &mut Seen| (asked.returned, asked.why) = (1, Some("peer lost".to_owned()));
        assert!(judged(|asked, _, _| returned(asked)).ends_with(why));
        assert!(judged(|_, served, _| returned(served)).ends_with(why));
        assert_eq!(judged(|_, _, looks| looks.end(look(9, 0))), "9 frames were in use, and there are 8");
        assert_eq!(judged(|_, _, looks| looks.end(look(8, 1))), "the daemon cut 1 programs off");
    }

    #[test]
    fn a_server_that_does_not_hear_of_the_end_is_a_fault() {
        let asked = Seen { sent: 10, came: 10, ..Seen::default() };
        let said = judge(&CASE, &asked, None, &Looks::begin(look(8, 0)));
        assert_eq!(said, Err("the server did not hear of the end".to_owned()));
    }

    #[test]
    fn remappings_count_while_answers_do() {
        let mut looks = Looks::begin(look(8, 0));
        let begin = looks.first.at;
        let at = |ms, remapped| Look { at: begin + Duration::from_millis(ms), remapped, ..look(8, 0) };
        looks.note(at(500, 100), CASE.lasts);
        looks.note(at(1500, 900), CASE.lasts);
        assert_eq!((looks.remappings_per_second(), looks.count), (200.0, 3));
    }
}
