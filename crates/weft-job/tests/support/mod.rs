//! A launcher for tests: starts this very program in another role, as several ranks, which exchange lines with the test.
//!
//! It speaks the messages of `weft_wire::job` in its own simple way: a thread for each rank.

use rustix::io::{fcntl_setfd, FdFlags};
use rustix::process::{set_parent_process_death_signal, Signal};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;
use weft_wire::job::{push_gift, Head, Socket, HEAD_BYTES, JOB, RANK, SIZE};

/// A time limit for things that take milliseconds on a quiet machine.
pub const BOUND: Duration = Duration::from_secs(60);

const ROLE: &str = "WEFT_TEST_ROLE";
/// Begins each line that is meant for the test; the harness writes others.
const MARK: &str = "@ ";

/// A job of this program.
pub struct Ranks(pub Vec<Rank>);

/// One of its processes. Dropping this ends it.
pub struct Rank {
    pub child: Child,
    orders: ChildStdin,
    lines: Receiver<String>,
    /// The ranks that it misses, as it has told its launcher.
    missing: Option<Receiver<u32>>,
}

impl Ranks {
    /// Starts so many ranks that play a role. Needs a test called `child`.
    pub fn start(role: &str, size: u32) -> Ranks {
        Ranks::start_in(role, size, &[])
    }

    /// Starts ranks with these variables in their environment.
    pub fn start_in(role: &str, size: u32, environment: &[(&str, &str)]) -> Ranks {
        let gathering = Arc::new(Gathering::new(size));
        Ranks((0..size).map(|rank| Rank::start(role, rank, &gathering, environment)).collect())
    }

    /// Tells all ranks something.
    pub fn say(&mut self, line: &str) {
        self.0.iter_mut().for_each(|rank| rank.say(line));
    }

    /// Each rank's next line.
    pub fn hear(&self) -> Vec<String> {
        self.0.iter().map(Rank::hear).collect()
    }

    /// Waits until all have exited with success.
    pub fn finish(self) {
        for rank in self.0 {
            rank.finish();
        }
    }
}

impl Rank {
    fn start(role: &str, rank: u32, gathering: &Arc<Gathering>, environment: &[(&str, &str)]) -> Rank {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        let theirs = File::from(OwnedFd::from(theirs));
        let socket = Socket { descriptor: theirs.as_raw_fd(), inode: theirs.metadata().expect("a socket").ino() };
        let mut command = command(role);
        command.envs(environment.iter().copied());
        command.env(JOB, socket.to_string()).env(RANK, rank.to_string()).env(SIZE, gathering.size().to_string());
        // One at a time: another rank must not inherit the descriptor.
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(|e| e.into_inner());
        fcntl_setfd(&theirs, FdFlags::empty()).expect("it is open");
        let mut started = Rank::of(&mut command);
        drop(theirs);
        drop(turn);
        let gathering = gathering.clone();
        let (misses, missing) = channel();
        started.missing = Some(missing);
        std::thread::spawn(move || gathering.serve(rank as usize, ours, &misses));
        started
    }

    /// A process that no launcher started.
    pub fn alone(role: &str) -> Rank {
        Rank::of(command(role).env_remove(JOB))
    }

    /// A process with these variables in its environment.
    pub fn with(role: &str, environment: &[(&str, &str)]) -> Rank {
        Rank::of(command(role).envs(environment.iter().copied()))
    }

    fn of(command: &mut Command) -> Rank {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("this program");
        let (put, lines) = channel();
        let from = child.stdout.take().expect("a pipe");
        std::thread::spawn(move || {
            let marked = |line: std::io::Result<String>| Some(line.ok()?.split_once(MARK)?.1.to_owned());
            BufReader::new(from).lines().filter_map(marked).try_for_each(|line| put.send(line))
        });
        Rank { orders: child.stdin.take().expect("a pipe"), child, lines, missing: None }
    }

    pub fn say(&mut self, line: &str) {
        // The process may have been killed.
        let _ = writeln!(self.orders, "{line}");
    }

    pub fn hear(&self) -> String {
        self.lines.recv_timeout(BOUND).expect("it says something")
    }

    /// The next rank that it tells its launcher to miss.
    pub fn hear_of_missing(&self) -> u32 {
        let missing = self.missing.as_ref().expect("it has a launcher");
        missing.recv_timeout(BOUND).expect("it misses one")
    }

    /// Its next line, if it comes within this time.
    pub fn hear_within(&self, most: Duration) -> Option<String> {
        self.lines.recv_timeout(most).ok()
    }

    pub fn finish(mut self) {
        let status = self.child.wait().expect("it is ours");
        assert!(status.success(), "{status}");
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn command(role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", "child", "--nocapture", "--test-threads=1"]).env(ROLE, role);
    command
}

/// The contributions of the ranks, round by round.
struct Gathering {
    gifts: Mutex<Vec<Vec<u8>>>,
    all_came: Barrier,
    all_took: Barrier,
}

impl Gathering {
    fn new(size: u32) -> Gathering {
        let barrier = || Barrier::new(size as usize);
        Gathering { gifts: Mutex::new(vec![Vec::new(); size as usize]), all_came: barrier(), all_took: barrier() }
    }

    fn size(&self) -> usize {
        self.gifts.lock().expect("nobody panics").len()
    }

    fn serve(&self, rank: usize, mut socket: UnixStream, misses: &Sender<u32>) {
        let mut head = [0; HEAD_BYTES];
        while socket.read_exact(&mut head).is_ok() {
            match Head::from_bytes(head).expect("a head") {
                Head::Give(bytes) => {
                    let mut gift = vec![0; bytes as usize];
                    socket.read_exact(&mut gift).expect("all of it");
                    self.gifts.lock().expect("nobody panics")[rank] = gift;
                    self.all_came.wait();
                    let mut all = Vec::new();
                    self.gifts.lock().expect("nobody panics").iter().for_each(|gift| push_gift(&mut all, gift));
                    self.all_took.wait();
                    socket.write_all(&Head::All(all.len() as u32).to_bytes()).expect("it listens");
                    socket.write_all(&all).expect("it listens");
                }
                // A test that does not ask has dropped the other end.
                Head::Missing(missing) => _ = misses.send(missing),
                head @ (Head::Exit(_) | Head::All(_)) => panic!("no rank says {head:?} here"),
            }
        }
    }
}

// ---- the ranks' side

/// Tells the test something.
pub fn tell(line: impl std::fmt::Display) {
    println!("{MARK}{line}");
}

/// Waits for an order. `None` if the test has ended.
pub fn order() -> Option<String> {
    let mut line = String::new();
    let read = std::io::stdin().read_line(&mut line).expect("text");
    (read > 0).then(|| line.trim().to_owned())
}

/// Plays the role that this process was started for, if there is one.
pub fn play(roles: &[(&str, fn())]) {
    let Some(role) = std::env::var_os(ROLE) else { return };
    set_parent_process_death_signal(Some(Signal::KILL)).expect("Linux");
    let (_, play) = roles.iter().find(|(name, _)| role == *name).expect("a role");
    play();
}
