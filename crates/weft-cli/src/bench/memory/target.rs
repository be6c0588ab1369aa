//! The second process of `weft bench memory`: the owner of the regions, and the program that reads what is written to them.

use crate::bench::peer::{contact, expect_jobs, expect_life, say, Gone};
use crate::bench::source::{sum_bytes, Source};
use crate::bench::talk::{Account, Answer, Contact, PATIENCE};
use crate::error::Error;
use serde::{Deserialize, Serialize};
use std::cell::OnceCell;
use weft::memory::{
    OperationError, Outcome, Place, PostError, RegionKey, Remote, RemoteError, Rights, Settings, Window, Write,
};
use weft::{Bundle, Endpoint, Node};

/// The region for data, and the one with the words below: each process has its own.
pub const DATA: RegionKey = RegionKey(1);
pub const CONTROL: RegionKey = RegionKey(2);

/// Bytes of the control region.
pub const CONTROL_BYTES: usize = 4096;

/// The word that goes there and back. [`STOP`] ends any job.
pub const WORD: u64 = 0;
pub const STOP: u64 = u64::MAX;

/// In the target's control region: how many writes were posted, if they are direct stores.
pub const POSTED: u64 = 128;

/// In the initiator's control region: how many writes the target's program has read.
pub const TAKEN: u64 = 64;

/// The largest data region.
pub const DATA_MOST: usize = 16 << 20;

/// Bytes that the target's program copies out of a region at once to read them: they stay in the nearest cache.
const COPY: usize = 16 << 10;

/// How often a word that others store is read between two polls.
pub const LOOKS: u32 = 1024;

/// Polls without a message between two checks that the other process lives.
const LOOK_EVERY: u32 = 1 << 16;

/// Whose memory the data region is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Whose {
    /// Weft allocated it. On one host the initiator maps it.
    Weft,
    /// The same, and nobody maps it.
    Executed,
    /// The program lent it.
    Lent,
}

impl Whose {
    /// The settings of both processes' endpoints.
    pub fn settings(self) -> Settings {
        Settings { is_direct: self != Whose::Executed, ..Settings::default() }
    }
}

/// A job: what to serve, and to whom.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MemoryJob {
    /// The endpoint of the process that measures.
    pub to: Contact,
    /// The size of a write or a read.
    pub size: usize,
    /// How many of them fit into the data region.
    pub slots: usize,
    pub whose: Whose,
    pub does: Does,
}

/// The job of the target's program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Does {
    /// Polls a word, and writes each new value back.
    Exchange,
    /// Reads all bytes of each write, and reports how many writes it has read.
    Take,
    /// Polls. The data region has the source's first bytes.
    Serve,
}

/// Serves a job until its word is [`STOP`].
pub fn serve(
    (node, source, gone): (&Node, &Source, &Gone),
    lent: &OnceCell<Window>,
    job: &MemoryJob,
    out: &mut dyn std::io::Write,
) -> Result<Answer, Error> {
    let mut bundle = Bundle::new(node)?;
    let here = bundle.memory_endpoint_with_random_key(job.whose.settings())?;
    let (name, key) = job.to.read()?;
    bundle.map(here, 0, name, key)?;
    let bytes = (job.size * job.slots).min(DATA_MOST);
    let data = match job.whose {
        Whose::Weft | Whose::Executed => bundle.memory(here)?.allocate(bytes, DATA, Rights::ALL)?.1,
        Whose::Lent => {
            let window = lent.get_or_init(|| Window::leaked(vec![0; DATA_MOST].into())).clone();
            bundle.memory(here)?.open(window.clone(), DATA, Rights::ALL).map_err(weft::Error::from)?;
            window
        }
    };
    // Make the pages present before the measurement.
    data.write(0, &source.bytes()[..bytes]);
    if job.does != Does::Serve {
        data.write(0, &vec![0; bytes]);
    }
    let (_, control) = bundle.memory(here)?.allocate(CONTROL_BYTES, CONTROL, Rights::ALL)?;
    say(&Answer::Ready(vec![contact(&bundle, here)?]), out)?;
    let mapped = bundle.map_region_within(PATIENCE, here, 0, CONTROL).map_err(not_mapped)?;
    let mut target = Target { bundle, here, control, mapped, word: Some(vec![0; 8]), idle: 0, gone };
    match job.does {
        Does::Exchange => target.exchange(),
        Does::Take => target.take(&data, job),
        Does::Serve => target.serve(),
    }
    .map(Answer::Done)
}

struct Target<'a> {
    bundle: Bundle,
    here: Endpoint,
    control: Window,
    /// The other process's control region, if it can be mapped.
    mapped: Option<Remote>,
    /// The buffer for words; `None` while one is under way.
    word: Option<Vec<u8>>,
    idle: u32,
    gone: &'a Gone,
}

impl Target<'_> {
    fn exchange(&mut self) -> Result<Account, Error> {
        let (mut last, mut sent, mut looks) = (0, 0, 0u32);
        loop {
            looks = looks.wrapping_add(1);
            if self.mapped.is_none() || looks % LOOKS == 0 {
                self.turn()?;
            }
            match read_word(&self.control, WORD) {
                STOP => return Ok(Account { received: sent, received_sum: 0, sent }),
                word if word != last => {
                    last = word;
                    sent += 1;
                    while !self.try_write_word(WORD, word)? {
                        self.turn()?;
                    }
                }
                _ => {}
            }
        }
    }

    fn take(&mut self, data: &Window, job: &MemoryJob) -> Result<Account, Error> {
        let mut copy = vec![0; COPY.min(job.size)];
        let every = (job.slots as u64 / 8).max(1);
        let (mut count, mut sum, mut told) = (0u64, 0u64, 0u64);
        loop {
            let is_idle = self.turn()? == 0;
            while let Some(notice) = self.bundle.memory(self.here)?.next_notice() {
                sum = sum.wrapping_add(sum_window(data, notice.at, job.size, &mut copy));
                count += 1;
            }
            let stored = read_word(&self.control, POSTED);
            let has_come = count < stored;
            while count < stored {
                let at = count % job.slots as u64 * job.size as u64;
                sum = sum.wrapping_add(sum_window(data, at, job.size, &mut copy));
                count += 1;
            }
            let is_idle = is_idle && !has_come;
            if count > told && (is_idle || count - told >= every) && self.try_write_word(TAKEN, count)? {
                told = count;
            }
            if is_idle && read_word(&self.control, WORD) == STOP {
                return Ok(Account { received: count, received_sum: sum, sent: 0 });
            }
        }
    }

    fn serve(&mut self) -> Result<Account, Error> {
        while self.turn()? > 0 || read_word(&self.control, WORD) != STOP {}
        Ok(Account { received: 0, received_sum: 0, sent: 0 })
    }

    /// Polls once. Returns how much came.
    #[inline(always)]
    fn turn(&mut self) -> Result<u32, Error> {
        let came = self.bundle.poll();
        if came == 0 && self.word.is_some() {
            self.idle = self.idle.wrapping_add(1);
            if self.idle % LOOK_EVERY == 0 {
                expect_life(&mut self.bundle)?;
                expect_jobs(self.gone)?;
            }
            return Ok(0);
        }
        while let Some(end) = self.bundle.memory(self.here)?.next_completion() {
            expect_done(end.outcome)?;
            self.word = end.source;
        }
        Ok(came)
    }

    /// Writes a word to the process that measures, unless one is under way.
    #[inline(always)]
    fn try_write_word(&mut self, at: u64, word: u64) -> Result<bool, Error> {
        if let Some(mapped) = &self.mapped {
            return mapped.write(at, &word.to_le_bytes()).map(|()| true).map_err(not_stored);
        }
        let Some(mut bytes) = self.word.take() else { return Ok(false) };
        bytes.copy_from_slice(&word.to_le_bytes());
        let write = Write::to(Place::new(CONTROL, at));
        match self.bundle.memory(self.here)?.try_write(0, write, bytes, 0) {
            Ok(()) => Ok(true),
            Err((PostError::Full, weft::memory::Source::Owned(bytes))) => {
                self.word = Some(bytes);
                Ok(false)
            }
            Err((error, _)) => Err(not_posted(error)),
        }
    }
}

/// A word of a window.
#[inline(always)]
pub fn read_word(window: &Window, at: u64) -> u64 {
    let mut bytes = [0; 8];
    window.read(at, &mut bytes);
    u64::from_le_bytes(bytes)
}

/// The sum of bytes of a window, which are copied into the nearest cache to be read.
fn sum_window(window: &Window, at: u64, len: usize, copy: &mut [u8]) -> u64 {
    let (mut sum, mut done) = (0u64, 0);
    while done < len {
        let part = (len - done).min(copy.len());
        window.read(at + done as u64, &mut copy[..part]);
        sum = sum.wrapping_add(sum_bytes(&copy[..part]));
        done += part;
    }
    sum
}

/// An error if an operation failed.
#[inline(always)]
pub fn expect_done(outcome: Outcome) -> Result<(), Error> {
    match outcome {
        Outcome::Done | Outcome::Free => Ok(()),
        Outcome::Failed { reason, certainty } => Err(lost(format!("an operation failed, {certainty}: {reason}"))),
    }
}

/// The error if a region that should be mapped is not.
pub fn not_mapped(error: OperationError) -> Error {
    lost(format!("a region was not mapped: {error}"))
}

/// The error if a store was refused.
pub fn not_stored(error: RemoteError) -> Error {
    lost(format!("a store was not made: {error}"))
}

/// The error if an operation could not be posted.
pub fn not_posted(error: PostError) -> Error {
    lost(format!("an operation was not posted: {error}"))
}

fn lost(cause: String) -> Error {
    let way_out = "Run it again; if it happens again, report it with this line";
    Error::Process { who: "the other process of the measurement".to_owned(), cause, way_out }
}
