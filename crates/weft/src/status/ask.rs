//! Asking all processes for their status.

use super::document::{Process, VERSION};
use super::{address, digits, ANSWER_MOST, ASKS_FOR_STAMPS, BEFORE_EPOCH, BEHIND_EPOCH};
use crate::node::{random_u64, Error};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType};
use std::collections::BTreeSet;
use std::fs;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use weft_wire::Epoch;

/// Where the kernel lists the Unix sockets of this network namespace.
const SOCKETS: &str = "/proc/net/unix";

/// Time between two attempts to connect to a socket whose backlog is full.
const CALL_EVERY: Duration = Duration::from_millis(5);

/// Unless the machine is overloaded, a running process has answered after this time. One that has not is checked for being stopped.
const RUNNING_WITHIN: Duration = Duration::from_millis(300);

/// Largest number of sockets asked at the same time.
const CALLED_MOST: usize = 128;

/// The result of asking.
#[derive(Debug, Default)]
pub struct Look {
    /// Processes of this user, and of all users if this one is root.
    pub processes: Vec<Found>,
    /// Nodes of other users, which give no answer.
    pub of_others: usize,
    /// Nodes without a helper, of any user, which cannot be asked.
    pub without_helper: usize,
}

/// A node that was found. A process may have several.
#[derive(Debug)]
pub struct Found {
    /// Its epoch: 16 hexadecimal digits.
    pub epoch: String,
    /// Its process, if it is in this PID namespace.
    pub pid: Option<u32>,
    /// Its user, according to the kernel.
    pub uid: u32,
    /// Its program, according to the kernel, without unprintable characters.
    pub program: Option<String>,
    /// When it answered, or was given up.
    pub at: Instant,
    /// Its answer.
    pub answer: Result<Process, Silence>,
}

/// Why a node gave no answer.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum Silence {
    /// It was stopped.
    #[error("stopped: the process was stopped by a signal; `kill -CONT {0}` lets it go on")]
    Stopped(u32),
    /// It has ended, but a child that it forked holds its sockets.
    #[error("ended: the process has ended, but a child that it forked still holds its sockets, until the child ends or runs another program")]
    Ended,
    /// Nothing came in time.
    #[error("no answer in time: the machine is overloaded, or too many ask at once; try again")]
    Late,
    /// It closed without an answer.
    #[error("no answer: it was just ending, or does not admit this user")]
    Closed,
    /// Its answer is invalid.
    #[error("an answer that this weft does not read ({0}); use the same weft on both sides")]
    Strange(String),
}

weft_wire::debug_says_display!(Silence);

/// Asks all nodes of this network namespace at the same time, and waits for `patience` at most.
///
/// # Errors
/// If there is no /proc, or no descriptor left.
///
/// ```
/// use std::time::Duration;
///
/// let look = weft::status::look(Duration::from_millis(300))?;
/// for found in &look.processes {
///     println!("process {:?}, life {}", found.pid, found.epoch);
/// }
/// println!("and {} nodes of other users", look.of_others);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn look(patience: Duration) -> Result<Look, Error> {
    ask(patience, Want::Status)
}

/// Asks as [`look`] does, and also has some of the processes' requests stamped for the next two seconds.
/// [`Bundle::stamps`](super::Bundle::stamps) has those that were stamped recently. A program that asks about once a second sees the
/// stages of messages; when no program asks, stamping stops. `docs/looking.md` says what is stamped, and what that costs.
///
/// # Errors
/// If there is no /proc, or no descriptor left.
pub fn trace(patience: Duration) -> Result<Look, Error> {
    ask(patience, Want::Stamps)
}

/// Whether a node is also asked for stamps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Want {
    Status,
    Stamps,
}

fn ask(patience: Duration, want: Want) -> Result<Look, Error> {
    let list = fs::read(SOCKETS).map_err(|e| {
        Error::system("cannot list the Unix sockets", e, "mount proc at /proc: weft finds its processes there")
    })?;
    let (nodes, without_helper) = find(&String::from_utf8_lossy(&list));
    let own = rustix::process::geteuid().as_raw();
    let mut look = Look { without_helper, ..Look::default() };
    let end = Instant::now() + patience;
    for some in nodes.chunks(CALLED_MOST) {
        let mut talks = some.iter().map(|epoch| Talk::new(*epoch, want)).collect::<Result<Vec<Talk>, Error>>()?;
        let begin = Instant::now();
        // Step through all of them: a silent one must not delay the others.
        while talks.iter_mut().fold(false, |is_more, talk| talk.step(own) | is_more) && Instant::now() < end {
            wait(&talks, end);
            if begin.elapsed() > RUNNING_WITHIN {
                talks.iter_mut().for_each(Talk::give_up_stopped);
            }
        }
        for mut talk in talks {
            talk.give_up();
            match talk.stage {
                Stage::Done(Ending::Found(found)) => look.processes.push(found),
                Stage::Done(Ending::Foreign) => look.of_others += 1,
                Stage::Done(Ending::Nobody) | Stage::Calling | Stage::Listening { .. } => {}
            }
        }
    }
    look.processes.sort_by(|a, b| (a.pid, &a.epoch).cmp(&(b.pid, &b.epoch)));
    Ok(look)
}

/// The epochs that have a status socket in the kernel's list, and how many have a set-up socket only.
fn find(list: &str) -> (Vec<Epoch>, usize) {
    let mut askable = BTreeSet::new();
    let mut all = BTreeSet::new();
    for name in list.lines().filter_map(|line| line.split_ascii_whitespace().nth(7)?.strip_prefix('@')) {
        let Some(rest) = name.strip_prefix(BEFORE_EPOCH) else { continue };
        let (epoch, has_desk) = match rest.strip_suffix(BEHIND_EPOCH) {
            Some(epoch) => (epoch, true),
            None => (rest, false),
        };
        let is_epoch = epoch.len() == 16 && epoch.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        if let (true, Ok(epoch)) = (is_epoch, u64::from_str_radix(epoch, 16)) {
            all.insert(epoch);
            if has_desk {
                askable.insert(epoch);
            }
        }
    }
    let without = all.len() - askable.len();
    (askable.into_iter().map(Epoch).collect(), without)
}

/// Waits for an answer, or for the next call.
fn wait(talks: &[Talk], end: Instant) {
    let listening = talks.iter().filter(|talk| matches!(talk.stage, Stage::Listening { .. }));
    let mut fds: Vec<PollFd<'_>> = listening.map(|talk| PollFd::new(&talk.socket, PollFlags::IN)).collect();
    let is_calling = talks.iter().any(|talk| matches!(talk.stage, Stage::Calling));
    let left = end.saturating_duration_since(Instant::now());
    let most = left.min(if is_calling { CALL_EVERY } else { RUNNING_WITHIN });
    let most = Timespec { tv_sec: most.as_secs() as i64, tv_nsec: most.subsec_nanos().into() };
    // The result does not matter: the caller checks again.
    let _ = poll(&mut fds, Some(&most));
}

/// Asking one node.
#[derive(Debug)]
struct Talk {
    epoch: Epoch,
    socket: OwnedFd,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// The backlog was full.
    Calling,
    Listening {
        pid: Option<u32>,
        uid: u32,
        heard: Vec<u8>,
    },
    Done(Ending),
}

#[derive(Debug)]
enum Ending {
    Found(Found),
    Foreign,
    /// It ended meanwhile.
    Nobody,
}

impl Talk {
    fn new(epoch: Epoch, want: Want) -> Result<Talk, Error> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
            .map_err(|e| Error::system("cannot make a socket", e, "raise the limit of open files (ulimit -n)"))?;
        if want == Want::Stamps {
            name_for_stamps(&socket)?;
        }
        Ok(Talk { epoch, socket, stage: Stage::Calling })
    }

    /// Goes as far as possible without waiting. Returns whether there is more to do.
    fn step(&mut self, own: u32) -> bool {
        if matches!(self.stage, Stage::Calling) {
            self.call(own);
        }
        self.listen();
        !matches!(self.stage, Stage::Done(_))
    }

    fn call(&mut self, own: u32) {
        let connected = address(self.epoch).map(|address| net::connect(&self.socket, &address));
        match connected {
            Ok(Ok(())) => {}
            Ok(Err(Errno::AGAIN | Errno::INTR)) => return,
            _ => return self.stage = Stage::Done(Ending::Nobody),
        }
        self.stage = match holder(&self.socket) {
            // Another user's process may have taken this name, so its answer is not trusted.
            Some((_, uid)) if own != 0 && uid != own => Stage::Done(Ending::Foreign),
            Some((pid, uid)) => Stage::Listening { pid, uid, heard: Vec::new() },
            None => Stage::Done(Ending::Nobody),
        };
    }

    fn listen(&mut self) {
        let Stage::Listening { pid, uid, heard } = &mut self.stage else { return };
        let mut buffer = [0u8; 16 << 10];
        let answer = loop {
            match net::recv(&self.socket, &mut buffer, RecvFlags::DONTWAIT) {
                Ok((_, 0)) => break read(heard),
                Ok((bytes, _)) if heard.len() + bytes > ANSWER_MOST => {
                    break Err(Silence::Strange(format!("more than {ANSWER_MOST} bytes")))
                }
                Ok((bytes, _)) => heard.extend_from_slice(&buffer[..bytes]),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => break Err(Silence::Closed),
            }
        };
        let (pid, uid) = (*pid, *uid);
        self.finish(pid, uid, answer);
    }

    /// Gives up a process that is stopped.
    fn give_up_stopped(&mut self) {
        if matches!(self.stage, Stage::Listening { pid, .. } if why_silent(pid) != Silence::Late) {
            self.give_up();
        }
    }

    /// The time is over: gives up.
    fn give_up(&mut self) {
        match self.stage {
            Stage::Done(_) => {}
            // It was never connected, so its user is unknown.
            Stage::Calling => self.stage = Stage::Done(Ending::Foreign),
            Stage::Listening { pid, uid, .. } => self.finish(pid, uid, Err(why_silent(pid))),
        }
    }

    fn finish(&mut self, pid: Option<u32>, uid: u32, answer: Result<Process, Silence>) {
        let at = Instant::now();
        let found = Found { epoch: digits(self.epoch), pid, uid, program: program(pid), at, answer };
        self.stage = Stage::Done(Ending::Found(found));
    }
}

/// Binds an asker's socket to a name that asks for stamps.
fn name_for_stamps(socket: &OwnedFd) -> Result<(), Error> {
    let cannot = |e| Error::system("cannot name a socket", e, "this kernel has no abstract Unix sockets");
    loop {
        let name = format!("{ASKS_FOR_STAMPS}{:016x}", random_u64()?);
        let name = SocketAddrUnix::new_abstract_name(name.as_bytes()).map_err(cannot)?;
        match net::bind(socket, &name) {
            // Another process has this name, by chance or on purpose: try the next.
            Err(Errno::ADDRINUSE) => {}
            bound => return bound.map_err(cannot),
        }
    }
}

/// Reads an answer.
fn read(heard: &[u8]) -> Result<Process, Silence> {
    if heard.is_empty() {
        return Err(Silence::Closed);
    }
    // Escapes in JSON could hide control sequences for the terminal of root, who looks at other users' processes.
    if heard.iter().any(|byte| !(b' '..=b'~').contains(byte) || *byte == b'\\') {
        return Err(Silence::Strange("characters that weft never writes".to_owned()));
    }
    match serde_json::from_slice::<Process>(heard) {
        Ok(process) if process.version == VERSION => Ok(process),
        Ok(process) => Err(Silence::Strange(format!("version {}", process.version))),
        Err(error) => Err(Silence::Strange(error.to_string())),
    }
}

/// Why a process does not answer, as far as the kernel knows.
pub(super) fn why_silent(pid: Option<u32>) -> Silence {
    let Some(pid) = pid else { return Silence::Late };
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return Silence::Ended };
    // The state follows the program's name, which is in parentheses and may contain parentheses itself.
    match stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next()) {
        Some('T' | 't') => Silence::Stopped(pid),
        Some('Z' | 'X') => Silence::Ended,
        _ => Silence::Late,
    }
}

/// The process and the user at the other end of a socket, according to the kernel. The process is unknown if it is in another PID
/// namespace.
pub(super) fn holder(socket: &OwnedFd) -> Option<(Option<u32>, u32)> {
    let peer = getsockopt(socket, PeerCredentials).ok()?;
    Some((u32::try_from(peer.pid()).ok().filter(|pid| *pid != 0), peer.uid()))
}

/// The name of a process's program. The process chooses it, so only printable characters are kept.
pub(super) fn program(pid: Option<u32>) -> Option<String> {
    let comm = fs::read(format!("/proc/{}/comm", pid?)).ok()?;
    Some(String::from_utf8_lossy(&comm).chars().filter(|c| !c.is_control()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_found_by_their_sockets_and_each_once() {
        let list = "\
Num       RefCount Protocol Flags    Type St Inode Path
0000000000000000: 00000002 00000000 00010000 0005 01 11 @weft1-00000000000000ab
0000000000000000: 00000002 00000000 00010000 0001 01 12 @weft1-00000000000000ab-status
0000000000000000: 00000003 00000000 00000000 0001 03 13 @weft1-00000000000000ab-status
0000000000000000: 00000002 00000000 00010000 0005 01 14 @weft1-00000000000000cd
0000000000000000: 00000002 00000000 00010000 0001 01 15 /run/weft1-00000000000000ef-status
0000000000000000: 00000002 00000000 00010000 0001 01 16 @weft1-ABCDEFABCDEFABCD-status
0000000000000000: 00000002 00000000 00010000 0001 01 17 @weft1-0-status
0000000000000000: 00000003 00000000 00000000 0001 03 18
";
        assert_eq!(find(list), (vec![Epoch(0xab)], 1));
        assert_eq!(find(""), (vec![], 0));
    }

    #[test]
    fn an_invalid_answer_is_reported_as_such() {
        assert_eq!(read(b""), Err(Silence::Closed));
        for bytes in [&b"{"[..], b"[]", b"\xff", b"{\"version\":1}"] {
            assert!(matches!(read(bytes), Err(Silence::Strange(_))), "{bytes:?}");
        }
        let process = Process {
            version: VERSION + 1,
            weft: String::new(),
            pid: 1,
            uid: 2,
            epoch: String::new(),
            bundles: Vec::new(),
            left_out: 0,
        };
        let text = |process: &Process| serde_json::to_vec(process).expect("JSON");
        assert_eq!(read(&text(&process)), Err(Silence::Strange(format!("version {}", VERSION + 1))));
        let process = Process { version: VERSION, ..process };
        assert_eq!(read(&text(&process)), Ok(process.clone()));
        for words in ["\x1b[2J", "\u{9b}2J", "\n", "\\", "\u{202e}"] {
            let hostile = Process { epoch: words.to_owned(), ..process.clone() };
            assert!(matches!(read(&text(&hostile)), Err(Silence::Strange(_))), "{words:?}");
        }
    }
}
