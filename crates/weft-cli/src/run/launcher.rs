//! The launcher: starts the ranks, and runs until the last one has ended.

use super::end::{interrupted, Cause, Ended, How};
use super::gathering::{settle, Said};
use super::keeper::Keeper;
use super::lines::Prefix;
use super::outlet::{Outlet, Stream};
use super::ranks::{raise_files, Pipe, Rank, Start};
use super::Options;
use crate::error::Error;
use crate::interrupt::{timespec, Interrupt};
use crate::thread;
use rustix::event::{poll, PollFd, PollFlags};
use rustix::process::{getpgrp, Signal};
use rustix::termios::{isatty, tcgetpgrp};
use std::ffi::OsString;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::process::ChildStdin;
use std::time::{Duration, Instant};

/// Time for ranks to end by themselves after they were asked to.
const GRACE: Duration = Duration::from_secs(2);

/// Time for a rank that others miss to end by itself. Others failed because of it, so its own end says more than theirs.
const LEAVES_WITHIN: Duration = Duration::from_secs(1);

/// Time for output to arrive after the last rank has ended: another process may hold a rank's pipe.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// The longest sleep without a reason. A safety net: no known case needs it.
const SLEEP_MOST: Duration = Duration::from_secs(60);

/// Bytes to read from a rank's pipe at once.
const PIECE: usize = 16 << 10;

/// How often a launcher in the background checks whether it may read from the terminal.
const FOREGROUND_EVERY: Duration = Duration::from_millis(200);

/// A job that runs.
#[derive(Debug)]
pub struct Launcher {
    program: OsString,
    ranks: Vec<Rank>,
    keeper: Option<Keeper>,
    interrupt: Interrupt,
    screen: Outlet,
    complaints: Outlet,
    began: Instant,
    timeout: Option<Duration>,
    cause: Option<Cause>,
    /// A rank that failed after it missed another one, and until when the launcher waits for the end of that one.
    failed: Option<(Failed, Instant)>,
    /// When the ranks that were asked to end are killed.
    kill_at: Option<Instant>,
    /// When the last rank had ended.
    last_end: Option<Instant>,
}

/// The end of a rank that may be a consequence of another rank's.
#[derive(Clone, Copy, Debug)]
struct Failed {
    rank: u32,
    how: How,
    /// The cause if the other rank does not end.
    cause: Cause,
}

/// What the launcher waits for.
#[derive(Clone, Copy)]
enum Source {
    /// A request to end, or room for output: each turn checks these.
    Turn,
    Output(usize),
    Errors(usize),
    Talk(usize),
    Death(usize),
}

impl Launcher {
    /// Starts all ranks.
    pub fn start(options: &Options, path: &Path, interrupt: Interrupt) -> Result<Launcher, Error> {
        let prefix =
            |is_terminal: bool| match (options.no_prefix, is_terminal && std::env::var_os("NO_COLOR").is_none()) {
                (true, _) => Prefix::Nothing,
                (false, true) => Prefix::Coloured,
                (false, false) => Prefix::Rank,
            };
        let start = Start {
            options,
            path,
            files: raise_files(options.ranks),
            prefixes: [prefix(isatty(io::stdout())), prefix(isatty(io::stderr()))],
            feeds: isatty(io::stdin()),
        };
        let mut launcher = Launcher {
            program: options.program.clone(),
            ranks: Vec::new(),
            keeper: Some(Keeper::start()?),
            interrupt,
            screen: Outlet::new(Stream::Output(io::stdout())),
            complaints: Outlet::new(Stream::Error(io::stderr())),
            began: Instant::now(),
            timeout: options.timeout,
            cause: None,
            failed: None,
            kill_at: None,
            last_end: None,
        };
        for rank in 0..options.ranks {
            launcher.interrupt.check().map_err(|_| interrupted())?;
            let (rank, stdin) = start.rank(rank)?;
            if let Some(keeper) = &mut launcher.keeper {
                keeper.knows(rank.pid);
            }
            launcher.ranks.push(rank);
            if let Some(to) = stdin {
                thread::start(move || feed(to))?;
            }
        }
        Ok(launcher)
    }

    /// Runs until all ranks have ended and all output is printed.
    pub fn run(mut self) -> Ended {
        while !self.is_over() {
            self.wait().into_iter().for_each(|source| self.serve(source));
            settle(self.ranks.iter_mut().map(|rank| &mut rank.talk));
            self.look_for_the_missing();
            self.judge();
            self.end_late_ones();
        }
        self.ranks.iter_mut().for_each(|rank| {
            rank.output.lines.end(&mut self.screen);
            rank.errors.lines.end(&mut self.complaints);
        });
        self.screen.write_some();
        self.complaints.write_some();
        let time = self.began.elapsed();
        let ended = Ended { program: self.program, ranks: self.ranks, cause: self.cause, time };
        // Dropping the ranks removes their groups. Kill the groups' remaining processes before telling the keeper, which would
        // otherwise not clean up if this process were killed now.
        ended.ranks.iter().for_each(Rank::end_rest);
        if let Some(keeper) = self.keeper.take() {
            keeper.let_go();
        }
        ended
    }

    fn is_over(&self) -> bool {
        let Some(last_end) = self.last_end else { return false };
        let is_silent = self.ranks.iter().all(|rank| rank.output.from.is_none() && rank.errors.from.is_none());
        let is_printed = self.screen.pending().is_empty() && self.complaints.pending().is_empty();
        // After a request to end, a slow reader does not delay the end.
        let is_late = last_end.elapsed() >= LAST_WORDS && (is_printed || self.interrupt.came());
        is_silent && is_printed || is_late
    }

    /// Waits for something to do.
    fn wait(&self) -> Vec<Source> {
        let watched = self.watched();
        let mut fds: Vec<PollFd<'_>> =
            watched.iter().map(|(_, fd, flags)| PollFd::from_borrowed_fd(*fd, *flags)).collect();
        let now = Instant::now();
        let most = self.until().map_or(SLEEP_MOST, |at| at.saturating_duration_since(now)).min(SLEEP_MOST);
        // Even if a signal interrupted it: the next turn looks again.
        let _ = poll(&mut fds, Some(&timespec(most)));
        let ready = watched.iter().zip(&fds).filter(|(_, fd)| !fd.revents().is_empty());
        ready.map(|((source, ..), _)| *source).collect()
    }

    fn watched(&self) -> Vec<(Source, BorrowedFd<'_>, PollFlags)> {
        let mut watched = Vec::new();
        if !self.interrupt.came() {
            watched.push((Source::Turn, self.interrupt.bell(), PollFlags::IN));
        }
        for outlet in [&self.screen, &self.complaints].into_iter().filter(|outlet| !outlet.pending().is_empty()) {
            watched.push((Source::Turn, outlet.stream.as_fd(), PollFlags::OUT));
        }
        for (rank, it) in self.ranks.iter().enumerate() {
            if let Some(from) = it.output.from.as_ref().filter(|_| self.screen.has_room()) {
                watched.push((Source::Output(rank), from.as_fd(), PollFlags::IN));
            }
            if let Some(from) = it.errors.from.as_ref().filter(|_| self.complaints.has_room()) {
                watched.push((Source::Errors(rank), from.as_fd(), PollFlags::IN));
            }
            if let Some(socket) = &it.talk.socket {
                let flags = if it.talk.owes() { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
                watched.push((Source::Talk(rank), socket.as_fd(), flags));
            }
            if it.end.is_none() {
                watched.push((Source::Death(rank), it.death.as_fd(), PollFlags::IN));
            }
        }
        watched
    }

    /// When something is due that no descriptor announces.
    fn until(&self) -> Option<Instant> {
        let timeout = self.timeout.filter(|_| self.cause.is_none()).and_then(|time| self.began.checked_add(time));
        let missing = self.failed.filter(|_| self.cause.is_none()).map(|(_, until)| until);
        [timeout, missing, self.kill_at, self.last_end.map(|at| at + LAST_WORDS)].into_iter().flatten().min()
    }

    fn serve(&mut self, source: Source) {
        match source {
            Source::Turn => {}
            Source::Output(rank) => pass_on(&mut self.ranks[rank].output, &mut self.screen),
            Source::Errors(rank) => pass_on(&mut self.ranks[rank].errors, &mut self.complaints),
            Source::Talk(rank) => self.hear(rank),
            Source::Death(rank) => self.note_death(rank),
        }
    }

    fn hear(&mut self, rank: usize) {
        let talk = &mut self.ranks[rank].talk;
        talk.tell();
        match talk.hear() {
            Said::Nothing => {}
            // A second contribution would be an invalid message, so this ends.
            Said::Gave => self.hear(rank),
            Said::Exit(status) => {
                let (cause, how) = (Cause::Asked(rank as u32, status), How::Status(status));
                match status != 0 && self.ranks[rank].misses.is_some() {
                    true => self.suspect(Failed { rank: rank as u32, how, cause }),
                    false => self.end_all(cause),
                }
            }
            Said::Missing(missing) if (missing as usize) < self.ranks.len() => {
                // A rank tells it once. More may come from a rank that wants to keep the launcher here.
                if self.ranks[rank].misses.is_none() {
                    self.ranks[rank].misses = Some(missing as usize);
                    self.hear(rank);
                }
            }
            Said::Missing(_) => {
                self.ranks[rank].talk.socket = None;
                self.end_all(Cause::Nonsense(rank as u32));
            }
            Said::Nonsense => self.end_all(Cause::Nonsense(rank as u32)),
        }
    }

    fn note_death(&mut self, rank: usize) {
        if !self.ranks[rank].look() {
            return;
        }
        // Read its messages first: it may have asked for the end of the job with another status.
        self.hear(rank);
        if let Some((how, _)) = self.ranks[rank].end.filter(|(how, _)| *how != How::Status(0)) {
            if self.cause.is_none() {
                // Another one may have asked for it, and this one failed because that one was gone.
                (0..self.ranks.len()).for_each(|rank| self.hear(rank));
            }
            self.find_cause(rank, how);
        }
        if self.ranks.iter().all(|rank| rank.end.is_some()) {
            self.last_end = Some(Instant::now());
            // Processes that the ranks left behind would keep the ranks' pipes open.
            self.ranks.iter().for_each(Rank::end_rest);
        }
    }

    /// A rank failed. The first failure is the cause, with two exceptions. A rank that gave up because another one does not
    /// answer often ends before that one, so the launcher waits for that one's end. A killed rank with much memory ends late, after
    /// others have noticed and given up; so a signal that the launcher did not send takes precedence over a status. An abort does
    /// not, since ranks give up by it.
    fn find_cause(&mut self, rank: usize, how: How) {
        let gave_up = matches!(self.cause, Some(Cause::Failed(_, How::Status(_))));
        if gave_up && self.kill_at.is_some() && how.is_from_elsewhere() {
            self.ranks[rank].was_ended = false;
            self.cause = Some(Cause::Failed(rank as u32, how));
        }
        let cause = Cause::Failed(rank as u32, how);
        let may_be_a_consequence = match how {
            How::Status(_) => true,
            How::Signal { .. } => self.ranks[rank].misses.is_some() && !how.is_from_elsewhere(),
        };
        match may_be_a_consequence {
            true => self.suspect(Failed { rank: rank as u32, how, cause }),
            false => self.end_all(cause),
        }
    }

    /// A rank failed, perhaps because another one does not answer. If so, waits a moment for the end of that one.
    fn suspect(&mut self, failed: Failed) {
        match self.missing() {
            Some(missing) if missing != failed.rank as usize => {
                self.failed.get_or_insert((failed, Instant::now() + LEAVES_WITHIN));
            }
            _ => self.end_all(failed.cause),
        }
    }

    /// The rank that others miss, and that misses none itself: a rank that gives up is missed too.
    fn missing(&self) -> Option<usize> {
        self.ranks.iter().filter_map(|rank| rank.misses).find(|&missing| self.ranks[missing].misses.is_none())
    }

    /// Finds the cause once the missing rank has ended, or the time for that is over.
    fn look_for_the_missing(&mut self) {
        let Some((failed, until)) = self.failed.filter(|_| self.cause.is_none()) else { return };
        let missing = self.missing();
        match missing.and_then(|missing| Some((missing as u32, self.ranks[missing].end?.0))) {
            Some((missing, How::Status(0))) => self.end_all(Cause::Left(missing, failed.rank, failed.how)),
            Some((missing, how)) => self.end_all(Cause::Failed(missing, how)),
            None if missing.is_none() || Instant::now() >= until => self.end_all(failed.cause),
            None => {}
        }
    }

    /// Checks for reasons to end the job that do not come from a single rank.
    fn judge(&mut self) {
        self.screen.write_some();
        self.complaints.write_some();
        if self.last_end.is_some() || self.cause.is_some() {
            return;
        }
        let waiting = self.ranks.iter().position(|rank| rank.talk.has_given());
        let absent = self.ranks.iter().position(|rank| rank.end.is_some() && !rank.talk.has_given());
        if self.interrupt.came() {
            self.end_all(Cause::Interrupted);
        } else if let Some(error) = self.screen.closed_by {
            self.end_all(Cause::Closed(error));
        } else if let Some(timeout) = self.timeout.filter(|time| self.began.elapsed() >= *time) {
            self.end_all(Cause::TimedOut(timeout));
        } else if let (Some(waiting), Some(absent)) = (waiting, absent) {
            self.end_all(Cause::Absent(absent as u32, waiting as u32));
        }
    }

    /// Asks all ranks to end. The first cause is kept.
    fn end_all(&mut self, cause: Cause) {
        if self.cause.is_none() {
            self.cause = Some(cause);
            self.kill_at = Some(Instant::now() + GRACE);
            self.ranks.iter_mut().filter(|rank| rank.end.is_none()).for_each(|rank| rank.signal(Signal::TERM));
        }
    }

    fn end_late_ones(&mut self) {
        if self.kill_at.is_some_and(|at| Instant::now() >= at) {
            self.kill_at = None;
            self.ranks.iter_mut().for_each(|rank| rank.signal(Signal::KILL));
        }
    }
}

/// Prints what is in a rank's pipe.
fn pass_on<R: Read>(pipe: &mut Pipe<R>, to: &mut Outlet) {
    let mut piece = [0; PIECE];
    let Some(from) = &mut pipe.from else { return };
    match from.read(&mut piece) {
        Ok(0) => {
            pipe.from = None;
            pipe.lines.end(to);
        }
        Ok(bytes) => pipe.lines.take(&piece[..bytes], to),
        Err(error) if error.kind() == ErrorKind::Interrupted => {}
        Err(_) => pipe.from = None,
    }
}

/// Passes the terminal's input on, because rank 0 is not in the foreground. Ends with this process, or when rank 0 stops reading.
fn feed(mut to: ChildStdin) {
    let mut piece = [0; PIECE];
    loop {
        // Reading in the background would stop this process.
        while tcgetpgrp(io::stdin()).is_ok_and(|group| group != getpgrp()) {
            std::thread::sleep(FOREGROUND_EVERY);
        }
        match io::stdin().lock().read(&mut piece) {
            Ok(0) => return,
            Ok(bytes) if to.write_all(&piece[..bytes]).is_ok() => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            _ => return,
        }
    }
}
