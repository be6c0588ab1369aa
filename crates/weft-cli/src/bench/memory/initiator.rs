//! The first process of `weft bench memory`: posts operations on the other process's regions, and keeps the time.
//!
//! All operations go through [`Remote`], so another implementation of them needs only other bodies there.

use super::target::{
    expect_done, not_mapped, not_posted, not_stored, read_word, Does, MemoryJob, Whose, CONTROL, CONTROL_BYTES, DATA,
    DATA_MOST, LOOKS, POSTED, STOP, TAKEN, WORD,
};
use crate::bench::meter::{summarize, Meter, Per, Sampled};
use crate::bench::peer::contact;
use crate::bench::source::sum_bytes;
use crate::bench::talk::{Account, Job, PATIENCE};
use crate::bench::weft_side::{agree, clock_ns, Bench, Quiet};
use crate::error::Error;
use std::collections::VecDeque;
use std::time::Instant;
use weft::memory::{Atomic, Change, Fetch, Place, PostError, Rights, Type, Window, Write};
use weft::{Bundle, Endpoint};

/// Exchanges of a word per run.
const EXCHANGES: usize = 100_000;

/// Untimed exchanges before them.
const WARM: u64 = 2000;

/// The size of all sources together. They are used in turn, so that no cache holds the bytes sent.
const POOL_BYTES: usize = 64 << 20;

/// The most sources: small ones have fewer bytes in all.
const POOL_MOST: usize = 1 << 14;

/// The most bytes under way at a time, and the most operations.
const UNDER_WAY_BYTES: usize = 1 << 20;
const UNDER_WAY_MOST: usize = 256;

/// Operations per sample, if each is timed by itself.
const BATCH: u32 = 16;

/// Bytes between two readings of the clock.
const TICK_BYTES: u64 = 64 << 10;

/// The time of one word there and back.
#[derive(Clone, Copy, Debug)]
pub struct Exchange {
    pub all: Sampled,
    /// 98.6 % took no longer: CLAN's measure.
    pub tail: Sampled,
}

/// The operation that is timed by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Alone {
    Write,
    Read,
    FetchAdd,
}

impl Bench {
    /// One word there and back: each side's program polls a word in its own region and writes the other one's.
    pub fn exchange_words(&mut self) -> Result<Exchange, Error> {
        let mut remote = self.remote(Does::Exchange, Whose::Weft, 8)?;
        let mut samples = Vec::with_capacity(EXCHANGES);
        let clock = clock_ns();
        let mut run = || {
            for word in 1..=WARM + EXCHANGES as u64 {
                let start = Instant::now();
                remote.write_word(WORD, word)?;
                let mut looks = 0u32;
                while read_word(&remote.control, WORD) != word {
                    looks += 1;
                    if remote.mapped.is_none() || looks % LOOKS == 0 {
                        remote.turn()?;
                    }
                }
                if word > WARM {
                    samples.push((start.elapsed().as_nanos() as f64 - clock).max(0.0));
                }
            }
            Ok(())
        };
        let done = run();
        self.or_its_cause(done)?;
        let account = self.stop_remote(remote)?;
        agree("the numbers of words sent and sent back", WARM + EXCHANGES as u64, account.sent)?;
        let tail = percentile(&mut samples, 98.6);
        let all = summarize(samples, Per::Unit);
        Ok(Exchange { all, tail: Sampled { median: tail, p99: all.p99, mean: tail, n: all.n } })
    }

    /// Bytes per second that are written to the other process's region and read there by its program.
    pub fn write_bytes(&mut self, size: usize, whose: Whose) -> Result<Sampled, Error> {
        let mut remote = self.remote(Does::Take, whose, size)?;
        // Direct stores are announced by a word after them; other writes carry a notice.
        let stores = whose == Whose::Weft && remote.mapped.is_some();
        if stores {
            remote.have_it_mapped()?;
        }
        let mut pool = Pool::new(size);
        let sums = pool.fill(self.source.bytes());
        let mut meter = Meter::start(Per::Second, self.time);
        let (slots, most) = (slots(size) as u64, under_way(size));
        let mut posted = 0u64;
        let mut run = || {
            let mut ticked = 0;
            loop {
                let taken = read_word(&remote.control, TAKEN);
                while posted - taken < slots && remote.under_way < most {
                    let Some((number, bytes)) = pool.next() else { break };
                    let place = posted % slots * size as u64;
                    let notice = (!stores).then_some(posted);
                    if let Err(bytes) = remote.try_write(place, bytes, number, notice)? {
                        pool.refuse(number, bytes);
                        break;
                    }
                    posted += 1;
                    if stores {
                        remote.take_ends()?;
                        remote.write_word(POSTED, posted)?;
                    }
                }
                remote.turn_into(&mut pool)?;
                if (taken - ticked) * size as u64 >= TICK_BYTES.min(slots * size as u64 / 4) {
                    if !meter.tick(((taken - ticked) * size as u64) as f64) {
                        break;
                    }
                    ticked = taken;
                }
            }
            while read_word(&remote.control, TAKEN) < posted || remote.under_way > 0 {
                remote.turn_into(&mut pool)?;
            }
            Ok(())
        };
        let done = run();
        self.or_its_cause(done)?;
        let account = self.stop_remote(remote)?;
        let sum = sum_of(&sums, posted);
        agree("the numbers of writes and of those read by the target", posted, account.received)?;
        agree("the sums of the bytes written and read by the target", sum, account.received_sum)?;
        Ok(meter.finish())
    }

    /// Bytes per second that are read from the other process's region, and then by this program.
    pub fn read_bytes(&mut self, size: usize, whose: Whose) -> Result<Sampled, Error> {
        let mut remote = self.remote(Does::Serve, whose, size)?;
        let slots = slots(size);
        let all = &self.source.bytes()[..slots * size];
        let expected: Vec<u64> = all.chunks_exact(size).map(sum_bytes).collect();
        let mut meter = Meter::start(Per::Second, self.time);
        let (mut targets, most) = (vec![vec![0; size]; under_way(size)], under_way(size));
        let mut run = || {
            let (mut posted, mut read, mut ticked) = (0usize, 0usize, 0usize);
            loop {
                while remote.under_way < most {
                    let Some(target) = targets.pop() else { break };
                    let slot = posted % slots;
                    if let Err(target) = remote.try_read((slot * size) as u64, target, slot)? {
                        targets.push(target);
                        break;
                    }
                    posted += 1;
                }
                remote.turn()?;
                while let Some((slot, target)) = remote.ended.pop_front() {
                    agree(
                        "the sums of bytes of a region and of those read from it",
                        expected[slot],
                        sum_bytes(&target),
                    )?;
                    targets.push(target);
                    read += 1;
                }
                if ((read - ticked) * size) as u64 >= TICK_BYTES.min((slots * size / 4) as u64) {
                    if !meter.tick(((read - ticked) * size) as f64) {
                        break;
                    }
                    ticked = read;
                }
            }
            remote.settle()
        };
        let done = run();
        self.or_its_cause(done)?;
        self.stop_remote(remote)?;
        Ok(meter.finish())
    }

    /// The time from the call to the completion, with nothing else under way.
    pub fn alone(&mut self, what: Alone, size: usize, whose: Whose) -> Result<Sampled, Error> {
        let mut remote = self.remote(Does::Serve, whose, size)?;
        let slots = slots(size) as u64;
        let mut spare = Some(self.source.bytes()[..size].to_vec());
        let mut meter = Meter::start(Per::Unit, self.time);
        let mut run = || {
            let first = remote.read_word_at(0)?;
            let mut count = 0u64;
            loop {
                for _ in 0..BATCH {
                    let at = if what == Alone::FetchAdd { 0 } else { count % slots * size as u64 };
                    let bytes = spare.take().unwrap_or_else(|| vec![0; size]);
                    remote.post(what, at, bytes)?;
                    remote.settle()?;
                    spare = remote.ended.pop_front().map(|(_, bytes)| bytes);
                    count += 1;
                }
                if !meter.tick(f64::from(BATCH)) {
                    break;
                }
            }
            if what == Alone::FetchAdd {
                agree(
                    "the numbers of additions and what they came to",
                    first.wrapping_add(count),
                    remote.read_word_at(0)?,
                )?;
            }
            Ok(())
        };
        let done = run();
        self.or_its_cause(done)?;
        self.stop_remote(remote)?;
        Ok(meter.finish())
    }

    /// Additions per second to one word, without returning old values.
    pub fn additions(&mut self, whose: Whose) -> Result<Sampled, Error> {
        let mut remote = self.remote(Does::Serve, whose, 8)?;
        let mut meter = Meter::start(Per::Second, self.time);
        let mut run = || {
            let first = remote.read_word_at(0)?;
            let (mut posted, mut ticked) = (0u64, 0u64);
            loop {
                while remote.under_way < UNDER_WAY_MOST && remote.try_add(0, None)?.is_ok() {
                    posted += 1;
                }
                remote.turn()?;
                remote.ended.clear();
                let done = posted - remote.under_way as u64;
                if done - ticked >= 1024 {
                    if !meter.tick((done - ticked) as f64) {
                        break;
                    }
                    ticked = done;
                }
            }
            remote.settle()?;
            agree("the numbers of additions and what they came to", first.wrapping_add(posted), remote.read_word_at(0)?)
        };
        let done = run();
        self.or_its_cause(done)?;
        self.stop_remote(remote)?;
        Ok(meter.finish())
    }

    /// Gives the peer a job, and opens the region that it writes to.
    fn remote(&mut self, does: Does, whose: Whose, size: usize) -> Result<Remote, Error> {
        let mut bundle = Bundle::new(&self.node)?;
        let me = bundle.memory_endpoint_with_random_key(whose.settings())?;
        let (_, control) = bundle.memory(me)?.allocate(CONTROL_BYTES, CONTROL, Rights::ALL)?;
        let to = contact(&bundle, me)?;
        let contacts = self.peer.give(&Job::Memory(MemoryJob { to, size, slots: slots(size), whose, does }))?;
        let (name, key) = contacts[0].read()?;
        bundle.map(me, 0, name, key)?;
        let mapped = bundle.map_region_within(PATIENCE, me, 0, CONTROL).map_err(not_mapped)?;
        let (ended, quiet) = (VecDeque::new(), Quiet::new());
        Ok(Remote { bundle, me, control, mapped, under_way: 0, ends: 0, ended, words: Vec::new(), quiet })
    }

    /// Ends the job. Returns the peer's counts.
    fn stop_remote(&mut self, mut remote: Remote) -> Result<Account, Error> {
        let mut run = || {
            remote.settle()?;
            remote.write_word(WORD, STOP)?;
            // The peer ends as soon as it sees the word, perhaps before it reports the operation's end.
            remote.bundle.flush();
            Ok(())
        };
        let done = run();
        self.or_its_cause(done)?;
        let since = Instant::now();
        loop {
            remote.bundle.poll();
            if let Some(account) = self.peer.finished()? {
                return Ok(account);
            }
            if since.elapsed() > PATIENCE {
                let what = "the target's word that it is done".to_owned();
                return Err(Error::Silence { seconds: PATIENCE.as_secs(), what });
            }
        }
    }
}

/// The other process's regions, with the operations on them.
struct Remote {
    bundle: Bundle,
    me: Endpoint,
    /// The region that the other process writes to.
    control: Window,
    /// The other process's control region, if it can be mapped.
    mapped: Option<weft::memory::Remote>,
    /// Operations that have not ended.
    under_way: usize,
    /// Numbers and buffers of ended operations, except those of words.
    ended: VecDeque<(usize, Vec<u8>)>,
    /// Buffers for words.
    words: Vec<Vec<u8>>,
    /// How many operations have ended.
    ends: u64,
    quiet: Quiet,
}

/// The number of operations that use a word's buffer.
const A_WORD: u64 = u64::MAX;

impl Remote {
    /// Writes bytes to the data region, if there is room. The buffer comes back when the write has ended.
    #[inline(always)]
    fn try_write(
        &mut self,
        at: u64,
        bytes: Vec<u8>,
        number: usize,
        notice: Option<u64>,
    ) -> Result<Result<(), Vec<u8>>, Error> {
        let write = Write { notice, ..Write::to(Place::new(DATA, at)) };
        let posted = self.bundle.memory(self.me)?.try_write(0, write, bytes, number as u64);
        self.note(posted.map_err(|(error, source)| (error, owned_source(source))))
    }

    /// Fills a buffer from the data region, if there is room.
    #[inline(always)]
    fn try_read(&mut self, at: u64, to: Vec<u8>, number: usize) -> Result<Result<(), Vec<u8>>, Error> {
        let posted = self.bundle.memory(self.me)?.try_read(0, Place::new(DATA, at), to, number as u64);
        self.note(posted.map_err(|(error, target)| (error, owned_target(target))))
    }

    /// Adds 1 to a word of the data region, if there is room.
    #[inline(always)]
    fn try_add(&mut self, at: u64, old: Option<Vec<u8>>) -> Result<Result<(), Vec<u8>>, Error> {
        let change = Change { place: Place::new(DATA, at), atomic: Atomic::Add, of: Type::U64 };
        let fetch = Fetch { second: &[], old: old.map(weft::memory::Target::from) };
        let posted = self.bundle.memory(self.me)?.try_change(0, change, &1u64.to_le_bytes(), fetch, 0);
        self.note(posted.map_err(|error| (error, vec![0; 8])))
    }

    /// Writes a word to the control region.
    #[inline(always)]
    fn write_word(&mut self, at: u64, word: u64) -> Result<(), Error> {
        if let Some(mapped) = &self.mapped {
            return mapped.write(at, &word.to_le_bytes()).map_err(not_stored);
        }
        let mut bytes = self.words.pop().unwrap_or_else(|| vec![0; 8]);
        bytes.copy_from_slice(&word.to_le_bytes());
        loop {
            let write = Write::to(Place::new(CONTROL, at));
            let posted = self.bundle.memory(self.me)?.try_write(0, write, bytes, A_WORD);
            match self.note(posted.map_err(|(error, source)| (error, owned_source(source))))? {
                Ok(()) => return Ok(()),
                Err(back) => bytes = back,
            }
            self.turn()?;
        }
    }

    /// Posts an operation, and waits for room if necessary.
    #[inline(always)]
    fn post(&mut self, what: Alone, at: u64, mut bytes: Vec<u8>) -> Result<(), Error> {
        loop {
            let posted = match what {
                Alone::Write => self.try_write(at, bytes, 0, None)?,
                Alone::Read => self.try_read(at, bytes, 0)?,
                Alone::FetchAdd => self.try_add(at, Some(bytes))?,
            };
            match posted {
                Ok(()) => return Ok(()),
                Err(back) => bytes = back,
            }
            self.turn()?;
        }
    }

    /// A word of the data region.
    fn read_word_at(&mut self, at: u64) -> Result<u64, Error> {
        self.settle()?;
        self.ended.clear();
        self.post(Alone::Read, at, vec![0; 8])?;
        self.settle()?;
        let word = self.ended.pop_front().and_then(|(_, bytes)| bytes.try_into().ok());
        Ok(word.map_or(0, u64::from_le_bytes))
    }

    /// Waits until all operations have ended.
    #[inline(always)]
    fn settle(&mut self) -> Result<(), Error> {
        while self.under_way > 0 {
            self.turn()?;
        }
        Ok(())
    }

    /// Polls once, and takes the operations that have ended.
    #[inline(always)]
    fn turn(&mut self) -> Result<(), Error> {
        let (came, ends) = (self.bundle.poll(), self.ends);
        self.take_ends()?;
        match came == 0 && ends == self.ends {
            true => self.quiet.look_now_and_then(&mut self.bundle, self.ends),
            false => Ok(()),
        }
    }

    /// Posts empty writes until the data region is mapped.
    fn have_it_mapped(&mut self) -> Result<(), Error> {
        while self.bundle.memory(self.me)?.counters().direct == 0 {
            while self.try_write(0, Vec::new(), 0, None)?.is_err() {
                self.turn()?;
            }
            self.settle()?;
            self.ended.clear();
        }
        Ok(())
    }

    /// Takes the operations that have ended. Direct ones end without a poll.
    #[inline(always)]
    fn take_ends(&mut self) -> Result<(), Error> {
        while let Some(end) = self.bundle.memory(self.me)?.next_completion() {
            expect_done(end.outcome)?;
            self.under_way -= 1;
            self.ends += 1;
            match (end.context, end.source.or(end.target)) {
                (A_WORD, Some(bytes)) => self.words.push(bytes),
                (number, bytes) => self.ended.push_back((number as usize, bytes.unwrap_or_default())),
            }
        }
        Ok(())
    }

    /// The same; sources return to the pool.
    #[inline(always)]
    fn turn_into(&mut self, pool: &mut Pool) -> Result<(), Error> {
        self.turn()?;
        while let Some((number, bytes)) = self.ended.pop_front() {
            pool.put_back(number, bytes);
        }
        Ok(())
    }

    #[inline(always)]
    fn note(&mut self, posted: Result<(), (PostError, Vec<u8>)>) -> Result<Result<(), Vec<u8>>, Error> {
        match posted {
            Ok(()) => {
                self.under_way += 1;
                Ok(Ok(()))
            }
            Err((PostError::Full, bytes)) => Ok(Err(bytes)),
            Err((error, _)) => Err(not_posted(error)),
        }
    }
}

fn owned_source(source: weft::memory::Source) -> Vec<u8> {
    match source {
        weft::memory::Source::Owned(bytes) => bytes,
        weft::memory::Source::Lent(_) => Vec::new(),
    }
}

fn owned_target(target: weft::memory::Target) -> Vec<u8> {
    match target {
        weft::memory::Target::Owned(bytes) => bytes,
        weft::memory::Target::Lent(_) => Vec::new(),
    }
}

/// Sources that are used in turn.
struct Pool {
    size: usize,
    /// `None` while a source is under way.
    all: Vec<Option<Vec<u8>>>,
    at: usize,
}

impl Pool {
    fn new(size: usize) -> Pool {
        Pool { size, all: vec![None; (POOL_BYTES / size).clamp(4, POOL_MOST)], at: 0 }
    }

    /// Fills the sources. Returns the sum of each.
    fn fill(&mut self, from: &[u8]) -> Vec<u64> {
        let mut parts = from.chunks_exact(self.size).cycle();
        let fill = |to: &mut Option<Vec<u8>>| {
            let part = parts.next().unwrap_or_default();
            *to = Some(part.to_vec());
            sum_bytes(part)
        };
        self.all.iter_mut().map(fill).collect()
    }

    /// The next source, unless it is under way.
    #[inline(always)]
    fn next(&mut self) -> Option<(usize, Vec<u8>)> {
        let number = self.at;
        let bytes = self.all[number].take()?;
        self.at = (number + 1) % self.all.len();
        Some((number, bytes))
    }

    /// Returns a source whose operation has ended.
    #[inline(always)]
    fn put_back(&mut self, number: usize, bytes: Vec<u8>) {
        self.all[number] = Some(bytes);
    }

    /// Returns a source that was not posted: it is the next one again.
    #[inline(always)]
    fn refuse(&mut self, number: usize, bytes: Vec<u8>) {
        self.put_back(number, bytes);
        self.at = number;
    }
}

/// The sum of `count` messages, taken in turn.
fn sum_of(sums: &[u64], count: u64) -> u64 {
    let add = |sum: u64, one: &u64| sum.wrapping_add(*one);
    let (laps, rest) = (count / sums.len() as u64, (count % sums.len() as u64) as usize);
    sums[..rest].iter().fold(laps.wrapping_mul(sums.iter().fold(0, add)), add)
}

/// How many messages of a size fit into the data region.
fn slots(size: usize) -> usize {
    (DATA_MOST / size).clamp(4, 256)
}

/// How many operations of a size may be under way at a time.
fn under_way(size: usize) -> usize {
    (UNDER_WAY_BYTES / size).clamp(2, UNDER_WAY_MOST)
}

/// The percentile: the value that this percentage of the samples do not exceed.
fn percentile(samples: &mut [f64], percent: f64) -> f64 {
    samples.sort_by(f64::total_cmp);
    let at = ((samples.len().saturating_sub(1)) as f64 * percent / 100.0) as usize;
    samples.get(at).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_go_in_turn_and_their_sums_are_known() {
        let mut pool = Pool::new(16 << 20);
        let bytes: Vec<u8> = (0..32 << 20).map(|n| (n >> 24) as u8 + 1).collect();
        let sums = pool.fill(&bytes);
        assert_eq!((sums.len(), sums[0], sums[2]), (4, sum_bytes(&bytes[..16 << 20]), sums[0]));
        let (first, source) = pool.next().expect("all are here");
        pool.refuse(first, source);
        let taken: Vec<_> = std::iter::from_fn(|| pool.next()).collect();
        assert_eq!(taken.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert!(pool.next().is_none(), "the first one is under way");
        assert_eq!(sum_of(&[1, 2, 4], 8), 17);
        assert_eq!(percentile(&mut [5.0, 1.0, 3.0, 2.0, 4.0], 75.0), 4.0);
        for size in [8, 4096, 1 << 20, 4 << 20] {
            assert!(slots(size) * size <= DATA_MOST && under_way(size) <= slots(size), "{size}");
        }
    }
}
