//! PMI-1, the protocol of Hydra (`mpiexec` of MPICH and Intel MPI): lines of text over a socket that the process inherits.
//!
//! ```text
//! cmd=init pmi_version=1 pmi_subversion=1      cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0
//! cmd=get_maxes                                cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024
//! cmd=get_my_kvsname                           cmd=my_kvsname kvsname=kvs_1
//! cmd=put kvsname=kvs_1 key=w1-0-0 value=2:ab  cmd=put_result rc=0 msg=success
//! cmd=barrier_in                               cmd=barrier_out
//! cmd=get kvsname=kvs_1 key=w1-0-0             cmd=get_result rc=0 msg=success value=2:ab
//! cmd=finalize                                 cmd=finalize_ack
//! cmd=abort exitcode=3                         (the launcher ends the job)
//! ```
//!
//! Values are texts without blanks, so bytes go in hexadecimal digits, and long ones under several keys.

use crate::launcher::{number, Rounds};
use crate::JobError;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use weft_launch::passed;
use weft_wire::job::GIFT_MOST;

/// The variable with the descriptor.
pub const DESCRIPTOR: &str = "PMI_FD";

/// Bytes of the longest line that is read.
const LINE_MOST: u64 = 16 << 10;

/// Digits of the longest value that is put at once, even if the launcher allows more.
const VALUE_MOST: usize = 4 << 10;

/// Digits that every launcher accepts.
const VALUE_LEAST: usize = 32;

/// A connection to the launcher.
#[derive(Debug)]
pub struct Pmi {
    lines: BufReader<File>,
    pub rank: u32,
    pub size: u32,
    space: String,
    /// Digits of a value.
    value_most: usize,
    rounds: Rounds,
    has_left: bool,
}

impl Pmi {
    pub fn connect() -> Result<Pmi, JobError> {
        let failed = |e: std::io::Error| JobError::NoLauncher {
            what: "the socket of mpiexec cannot be used",
            why: e.to_string(),
            variable: DESCRIPTOR,
        };
        let socket = passed::copy(number(DESCRIPTOR)?).map_err(failed)?;
        let lines = BufReader::new(File::from(socket));
        Pmi::begin(lines, number("PMI_RANK")?, number("PMI_SIZE")?)
    }

    fn begin(lines: BufReader<File>, rank: u32, size: u32) -> Result<Pmi, JobError> {
        let mut pmi = Pmi {
            lines,
            rank,
            size,
            space: String::new(),
            value_most: VALUE_LEAST,
            rounds: Rounds::default(),
            has_left: false,
        };
        pmi.ask("cmd=init pmi_version=1 pmi_subversion=1", "response_to_init")?;
        let maxes = pmi.ask("cmd=get_maxes", "maxes")?;
        let most: usize = value(&maxes, "vallen_max").and_then(|most| most.parse().ok()).unwrap_or(VALUE_LEAST);
        // One less: launchers differ in whether they count the end of the text.
        pmi.value_most = most.saturating_sub(1).clamp(VALUE_LEAST, VALUE_MOST);
        let space = pmi.ask("cmd=get_my_kvsname", "my_kvsname")?;
        pmi.space = value(&space, "kvsname").ok_or_else(|| strange(&space))?.to_owned();
        Ok(pmi)
    }

    pub fn exchange(&mut self, gift: &[u8]) -> Result<Vec<Vec<u8>>, JobError> {
        let round = self.rounds.next();
        let text = encode(gift);
        for (piece, digits) in text.as_bytes().chunks(self.value_most).enumerate() {
            let digits = std::str::from_utf8(digits).expect("digits and a colon");
            let put = format!("cmd=put kvsname={} key=w{round}-{}-{piece} value={digits}", self.space, self.rank);
            self.ask(&put, "put_result")?;
        }
        self.ask("cmd=barrier_in", "barrier_out")?;
        (0..self.size).map(|rank| self.get(round, rank)).collect()
    }

    fn get(&mut self, round: u32, rank: u32) -> Result<Vec<u8>, JobError> {
        let mut text = String::new();
        for piece in 0.. {
            let get = format!("cmd=get kvsname={} key=w{round}-{rank}-{piece}", self.space);
            let got = self.ask(&get, "get_result")?;
            let digits = value(&got, "value").filter(|digits| !digits.is_empty()).ok_or_else(|| strange(&got))?;
            text.push_str(digits);
            match decode(&text) {
                Decoded::Whole(bytes) => return Ok(bytes),
                Decoded::Part => {}
                Decoded::Strange => break,
            }
        }
        Err(strange(&text))
    }

    pub fn exit(&mut self, status: i32) -> Result<(), JobError> {
        self.say(&format!("cmd=abort exitcode={status}"))
    }

    pub fn leave(&mut self) -> Result<(), JobError> {
        if std::mem::replace(&mut self.has_left, true) {
            return Ok(());
        }
        self.ask("cmd=finalize", "finalize_ack").map(drop)
    }

    pub fn forget(&mut self) {
        self.has_left = true;
    }

    fn say(&mut self, line: &str) -> Result<(), JobError> {
        self.lines.get_mut().write_all(format!("{line}\n").as_bytes()).map_err(gone)
    }

    /// Sends a line and returns the answer, which must be of this kind and successful.
    fn ask(&mut self, line: &str, answer: &str) -> Result<String, JobError> {
        self.say(line)?;
        let mut said = Vec::new();
        self.lines.by_ref().take(LINE_MOST).read_until(b'\n', &mut said).map_err(gone)?;
        if said.is_empty() {
            return Err(gone(std::io::ErrorKind::UnexpectedEof.into()));
        }
        let said = String::from_utf8_lossy(&said).trim_end().to_owned();
        let is_good = value(&said, "cmd") == Some(answer) && value(&said, "rc").is_none_or(|rc| rc == "0");
        match is_good {
            true => Ok(said),
            false => Err(strange(&said)),
        }
    }
}

/// The value of a word `name=value` in a line.
fn value<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    line.split_ascii_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
}

/// Bytes as `LENGTH:DIGITS`, so that the first piece of a long value tells its length.
fn encode(bytes: &[u8]) -> String {
    let mut text = format!("{}:", bytes.len());
    bytes.iter().for_each(|byte| _ = write!(text, "{byte:02x}"));
    text
}

#[derive(PartialEq, Eq, Debug)]
enum Decoded {
    Whole(Vec<u8>),
    /// The rest is under the next key.
    Part,
    Strange,
}

fn decode(text: &str) -> Decoded {
    let Some((length, digits)) = text.split_once(':') else { return Decoded::Strange };
    let Some(length) = length.parse::<usize>().ok().filter(|&length| length <= GIFT_MOST) else {
        return Decoded::Strange;
    };
    if digits.len() < 2 * length {
        return Decoded::Part;
    }
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    match digits.as_bytes().chunks(2).map(byte).collect::<Option<Vec<u8>>>() {
        Some(bytes) if bytes.len() == length => Decoded::Whole(bytes),
        _ => Decoded::Strange,
    }
}

fn gone(error: std::io::Error) -> JobError {
    JobError::Launcher(format!("does not answer ({error})"))
}

fn strange(line: &str) -> JobError {
    JobError::Launcher(format!("answered {:?}", line.chars().take(80).collect::<String>()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back_and_other_texts_are_strange() {
        for bytes in [&b""[..], b"\0\xff=\n", &[7; 300]] {
            assert_eq!(decode(&encode(bytes)), Decoded::Whole(bytes.to_vec()));
        }
        assert_eq!(decode("2:ab"), Decoded::Part);
        for text in ["", "2", "x:ab", "1:abc", "1:zz", "99999:ab", "0:a", "1:é"] {
            assert_eq!(decode(text), Decoded::Strange, "{text}");
        }
    }

    /// Plays a launcher of one rank, whose values have at most 33 digits.
    fn launcher(socket: std::os::unix::net::UnixStream) {
        let mut to = socket.try_clone().expect("a descriptor");
        let mut kept = std::collections::BTreeMap::new();
        for line in BufReader::new(socket).lines().map_while(Result::ok) {
            let word = |name| value(&line, name).unwrap_or_default().to_owned();
            let answer = match &word("cmd")[..] {
                "init" => "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0".to_owned(),
                "get_maxes" => "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=34".to_owned(),
                "get_my_kvsname" => "cmd=my_kvsname kvsname=kvs_7".to_owned(),
                "put" => {
                    assert!(word("value").len() <= 33 && word("kvsname") == "kvs_7", "{line}");
                    kept.insert(word("key"), word("value"));
                    "cmd=put_result rc=0 msg=success".to_owned()
                }
                "get" => match kept.get(&word("key")) {
                    Some(value) => format!("cmd=get_result rc=0 msg=success value={value}"),
                    None => "cmd=get_result rc=-1 msg=key_not_found".to_owned(),
                },
                "barrier_in" => "cmd=barrier_out".to_owned(),
                _ => "cmd=finalize_ack".to_owned(),
            };
            if writeln!(to, "{answer}").is_err() {
                return;
            }
        }
    }

    #[test]
    fn gifts_longer_than_a_value_go_in_pieces() {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().expect("a pair");
        let launcher = std::thread::spawn(move || launcher(theirs));
        let file = File::from(std::os::fd::OwnedFd::from(ours));
        let mut pmi = Pmi::begin(BufReader::new(file), 0, 1).expect("it answers");
        for gift in [&b"short"[..], &[0xa5; 100], b""] {
            assert_eq!(pmi.exchange(gift).expect("it answers"), [gift]);
        }
        assert!(matches!(pmi.get(9, 0), Err(JobError::Launcher(_))), "there was no such round");
        pmi.leave().expect("it answers");
        drop(pmi);
        launcher.join().expect("it saw no fault");
    }
}
