//! Asking weftd for its status.

use super::ask::{holder, program, why_silent, Silence};
use crate::daemon::{distrust, said_user, Distrust, Wish, SOCKET, USER};
use crate::node::Error;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use serde::Serialize;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use weft_wire::attach::Message;
use weft_wire::status::{
    AttachmentStatus, DaemonStatus, EndStatus, EndpointStatus, HostStatus, Item, LineStatus, Scope, UserStatus,
    ITEMS_BYTES, STATUS_VERSION,
};
use weft_wire::Reason;

/// The whole answer may take this many times as long as one part of it.
const PATIENCES_MOST: u32 = 10;

/// The process that starts others, and may listen for them (socket activation).
const FIRST: u32 = 1;

/// Items of one answer that are kept. Further ones are only counted.
const KEPT_ITEMS_MOST: usize = 1 << 20;

/// A daemon that was asked.
#[derive(Debug)]
pub struct DaemonFound {
    /// The socket at which programs attach.
    pub socket: PathBuf,
    /// The process that listens at the socket, if it is in this PID namespace. If process 1 listens, which passes sockets to
    /// others, this is the process that the daemon reports itself.
    pub pid: Option<u32>,
    /// The user of the process that began to listen, according to the kernel. The daemon may have changed its user since.
    pub uid: Option<u32>,
    /// Its program, according to the kernel.
    pub program: Option<String>,
    /// Whether programs of this user with this environment attach to it.
    pub attaches: Attaches,
    /// When it answered, or was given up.
    pub at: Instant,
    /// Its answer.
    pub answer: Result<DaemonAnswer, DaemonSilence>,
}

/// Whether programs of this user with this environment attach to a daemon.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Attaches {
    /// They do, because `WEFT_NI` names it.
    Told,
    /// They do by default: it is the administrator's.
    ByThemselves,
    /// They do not, because `WEFT_NI` excludes it.
    Forbidden,
    /// They do not, because someone other than the administrator could own the socket.
    Distrusted {
        /// Why.
        because: String,
        /// What helps.
        mend: String,
    },
}

/// A daemon's answer.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct DaemonAnswer {
    /// The daemon itself.
    pub daemon: DaemonStatus,
    /// The resources that users hold.
    pub users: Vec<UserStatus>,
    /// Other hosts.
    pub hosts: Vec<HostStatus>,
    /// Bundles that use it.
    pub attachments: Vec<AttachmentStatus>,
    /// Endpoints that were asked for.
    pub endpoints: Vec<EndpointStatus>,
    /// Lines that were asked for.
    pub lines: Vec<LineStatus>,
    /// How many there are of each state.
    pub end: EndStatus,
    /// Number of items that were not kept.
    pub left_out: u64,
}

/// Why a daemon gave no answer.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum DaemonSilence {
    /// The socket is there, and nobody listens.
    #[error("nobody listens at the socket: the daemon has ended; start it again (weftd --foreground)")]
    NobodyListens,
    /// It refuses this user, or is of another version.
    #[error("it refuses to tell: {0}")]
    Refused(Reason),
    /// It was called, and gave no valid answer.
    #[error("{0}")]
    Silent(Silence),
}

weft_wire::debug_says_display!(DaemonSilence);

/// Asks the daemon that programs of this user with this environment use, or the administrator's if they use none. Waits for each
/// part of its answer for `patience` at most, and ten times as long for all of them. `None` if there is no daemon's socket.
///
/// # Errors
/// If `WEFT_NI` is invalid, or there is no descriptor left.
///
/// ```
/// use std::time::Duration;
/// use weft::status::{look_at_daemon, Scope};
///
/// if let Some(found) = look_at_daemon(Scope::Totals, Duration::from_secs(2))? {
///     println!("{}: {:?}", found.socket.display(), found.answer);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn look_at_daemon(scope: Scope, patience: Duration) -> Result<Option<DaemonFound>, Error> {
    let wish = Wish::of_environment()?;
    let path = match &wish {
        Wish::Named(path) => path.clone(),
        Wish::Any | Wish::Process | Wish::Administrators => PathBuf::from(SOCKET),
    };
    let found = std::fs::symlink_metadata(&path);
    if found.is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound) {
        return Ok(None);
    }
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(|error| Error::system("cannot make a socket", error, "raise the limit of open files (ulimit -n)"))?;
    let address = SocketAddrUnix::new(&path).map_err(|error| {
        Error::system("cannot name the socket of weftd", error, "WEFT_NI names a path that is too long")
    })?;
    let connected = net::connect(&socket, &address);
    let peer = connected.ok().and_then(|()| holder(&socket));
    let attaches = attaches(&wish, &path, peer.map(|(_, uid)| uid));
    let (pid, uid) = (peer.and_then(|(pid, _)| pid), peer.map(|(_, uid)| uid));
    let answer = match connected {
        Ok(()) => ask(&socket, pid, scope, patience),
        Err(Errno::CONNREFUSED) => Err(DaemonSilence::NobodyListens),
        // Its backlog is full.
        Err(Errno::AGAIN) => Err(DaemonSilence::Silent(Silence::Late)),
        Err(error) => Err(DaemonSilence::Silent(Silence::Strange(error.to_string()))),
    };
    let pid = process(pid, answer.as_ref().ok());
    Ok(Some(DaemonFound { socket: path, pid, uid, program: program(pid), attaches, at: Instant::now(), answer }))
}

/// The daemon's process, if another one listens for it.
fn process(listens: Option<u32>, answer: Option<&DaemonAnswer>) -> Option<u32> {
    match (listens, answer) {
        (Some(FIRST), Some(answer)) => Some(answer.daemon.pid),
        (listens, _) => listens,
    }
}

/// Whether programs attach to a daemon, whose process is of this user.
fn attaches(wish: &Wish, path: &Path, uid: Option<u32>) -> Attaches {
    match wish {
        Wish::Named(_) if path != Path::new(SOCKET) => return Attaches::Told,
        Wish::Process => return Attaches::Forbidden,
        Wish::Any | Wish::Administrators | Wish::Named(_) => {}
    }
    // For a socket named by the user, the user vouches for the path. The process still has to be checked if the path is the
    // administrator's.
    if let Some(Distrust { found, mend, .. }) = distrust(path).filter(|_| !matches!(wish, Wish::Named(_))) {
        return Attaches::Distrusted { because: found, mend };
    }
    let said = said_user(Path::new(USER));
    match uid {
        Some(uid) if uid != 0 && said.as_ref().ok() != Some(&Some(uid)) => {
            let because = match said {
                Ok(Some(user)) => format!("the daemon runs as user {uid}, and {USER} says {user}"),
                Ok(None) => format!("the daemon runs as user {uid}, and there is no {USER}"),
                Err(why) => format!("the daemon runs as user {uid}, and {USER} is not used: {why}"),
            };
            let mend =
                format!("echo {uid} | sudo tee {USER}, owned by root and with mode 644, if user {uid} is the daemon's");
            Attaches::Distrusted { because, mend }
        }
        _ if *wish == Wish::Any => Attaches::ByThemselves,
        _ => Attaches::Told,
    }
}

/// Asks, and takes the answer.
fn ask(socket: &OwnedFd, pid: Option<u32>, scope: Scope, patience: Duration) -> Result<DaemonAnswer, DaemonSilence> {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    match net::send(socket, &Message::Look(scope).to_bytes(), flags) {
        // On EPIPE it has hung up, and its reason can still be read.
        Ok(_) | Err(Errno::PIPE) => {}
        Err(error) => return Err(DaemonSilence::Silent(Silence::Strange(error.to_string()))),
    }
    let begin = Instant::now();
    let (mut end, last) = (begin + patience, begin + patience * PATIENCES_MOST);
    let mut answer = DaemonAnswer::default();
    let mut buffer = vec![0; ITEMS_BYTES];
    let (mut has_daemon, mut was_reset) = (false, false);
    loop {
        // With `TRUNC`, the returned length is that of the whole packet even if the buffer is too small.
        match net::recv(socket, &mut buffer[..], RecvFlags::DONTWAIT | RecvFlags::TRUNC) {
            Ok((0, _)) => return Err(DaemonSilence::Silent(Silence::Closed)),
            Ok((_, bytes)) => {
                end = last.min(Instant::now() + patience);
                let packet = buffer.get(..bytes).ok_or_else(|| strange("a packet that is too long"))?;
                for item in read(packet)? {
                    has_daemon |= matches!(item, Item::Daemon(_));
                    let is_end = matches!(item, Item::End(_));
                    answer.take(item)?;
                    if is_end {
                        return has_daemon.then_some(answer).ok_or_else(|| strange("an answer without a beginning"));
                    }
                }
            }
            Err(Errno::INTR) => {}
            // The kernel reports this once, before the daemon's message, if the daemon refused and hung up without reading all of
            // ours.
            Err(Errno::CONNRESET) if !was_reset => was_reset = true,
            Err(Errno::AGAIN) if Instant::now() >= end => return Err(DaemonSilence::Silent(why_silent(pid))),
            Err(Errno::AGAIN) => wait(socket, end),
            Err(_) => return Err(DaemonSilence::Silent(Silence::Closed)),
        }
    }
}

fn wait(socket: &OwnedFd, end: Instant) {
    let left = end.saturating_duration_since(Instant::now());
    let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
    // The result does not matter: the caller checks again.
    let _ = poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&left));
}

fn strange(what: &str) -> DaemonSilence {
    DaemonSilence::Silent(Silence::Strange(what.to_owned()))
}

/// Reads a packet of an answer.
fn read(packet: &[u8]) -> Result<Vec<Item>, DaemonSilence> {
    if let Ok(message) = Message::from_bytes(packet) {
        return match message {
            Message::Refuse(reason) => Err(DaemonSilence::Refused(reason)),
            _ => Err(strange("an answer to another question")),
        };
    }
    // Escapes in JSON could hide control sequences for the terminal of the user who looks.
    if packet.iter().any(|byte| !(b' '..=b'~').contains(byte) || *byte == b'\\') {
        return Err(strange("characters that weft never writes"));
    }
    serde_json::from_slice(packet).map_err(|error| strange(&error.to_string()))
}

impl DaemonAnswer {
    fn take(&mut self, item: Item) -> Result<(), DaemonSilence> {
        let kept =
            self.users.len() + self.hosts.len() + self.attachments.len() + self.endpoints.len() + self.lines.len();
        let has_room = kept < KEPT_ITEMS_MOST;
        match item {
            Item::Daemon(daemon) if daemon.version != STATUS_VERSION => {
                return Err(strange(&format!("version {}", daemon.version)))
            }
            Item::Daemon(daemon) => self.daemon = daemon,
            Item::End(end) => self.end = end,
            _ if !has_room => self.left_out += 1,
            Item::User(user) => self.users.push(user),
            Item::Host(host) => self.hosts.push(host),
            Item::Attachment(attachment) => self.attachments.push(attachment),
            Item::Endpoint(endpoint) => self.endpoints.push(endpoint),
            Item::Line(line) => self.lines.push(line),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(items: &[Item]) -> Vec<u8> {
        serde_json::to_vec(items).expect("JSON")
    }

    #[test]
    fn an_invalid_answer_of_a_daemon_is_reported_as_such() {
        for bytes in [&b""[..], b"{", b"[{\"daemon\":{}}]", b"[{\"what\":1}]", b"\xff"] {
            assert!(matches!(read(bytes), Err(DaemonSilence::Silent(Silence::Strange(_)))), "{bytes:?}");
        }
        let refusal = Message::Refuse(Reason::ForeignUser).to_bytes();
        assert_eq!(read(&refusal), Err(DaemonSilence::Refused(Reason::ForeignUser)));
        assert!(read(&Message::Wake.to_bytes()).is_err());
        let daemon = DaemonStatus { version: STATUS_VERSION, ..DaemonStatus::default() };
        assert_eq!(read(&packet(&[Item::Daemon(daemon.clone())])).expect("it is one").len(), 1);
        for words in ["\x1b[2J", "\n", "\u{202e}"] {
            let hostile = DaemonStatus { weft: words.to_owned(), ..daemon.clone() };
            assert!(read(&packet(&[Item::Daemon(hostile)])).is_err(), "{words:?}");
        }
        let newer = DaemonStatus { version: STATUS_VERSION + 1, ..daemon };
        assert_eq!(DaemonAnswer::default().take(Item::Daemon(newer)), Err(strange("version 2")));
    }

    #[test]
    fn a_daemon_that_another_process_listens_for_says_which_process_it_is() {
        let daemon = DaemonStatus { pid: 77, ..DaemonStatus::default() };
        let answer = DaemonAnswer { daemon, ..DaemonAnswer::default() };
        assert_eq!(process(Some(1), Some(&answer)), Some(77));
        assert_eq!((process(Some(1), None), process(None, Some(&answer))), (Some(1), None));
        assert_eq!(process(Some(5), Some(&answer)), Some(5), "a daemon in a container has another number there");
    }

    #[test]
    fn a_folder_that_others_may_write_to_is_distrusted_and_reported_with_its_remedy() {
        let folder = std::env::temp_dir().join(format!("weft-door-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let found = distrust(&folder.join("socket")).expect("there is no socket");
        std::fs::write(folder.join("socket"), "").expect("written");
        // Everybody may write to the folder of temporary files.
        let open = distrust(&folder.join("socket")).expect("everybody may write there");
        std::fs::remove_dir_all(&folder).expect("removed");
        assert!(found.found.contains("socket: ") && found.mend.contains("weftd"), "{found:?}");
        assert!(open.mend.starts_with("sudo ch"), "{open:?}");
    }
}
