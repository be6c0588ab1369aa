//! Reading in the memory of other processes, which shows that the kernel allows it.
//!
//! A process can make a read of its memory take as long as it wants, with a page that is served by its own file system or thread.
//! So the reads run in threads that do nothing else. The threads end when nothing is left to read, the last one after [`IDLE`]. If
//! all of them are stuck in a read for [`PATIENCE`], the processes still queued are treated as unreadable.

use crate::node::lock;
use crate::watch::spawn_without_signals;
use nix::sys::uio::{process_vm_readv, RemoteIoVec};
use nix::unistd::Pid;
use std::collections::VecDeque;
use std::fmt;
use std::io::IoSliceMut;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;
use weft_wire::setup::Nonce;

/// Largest number of reading threads.
const THREADS_MOST: u32 = 4;

/// Largest number of queued reads. Beyond it, a process is treated as unreadable.
const WAITING_MOST: usize = 256;

/// If no read ends for this long, the queued reads are given up.
const PATIENCE: Duration = Duration::from_millis(100);

/// How long one idle thread stays: waking it is faster than starting another one.
const IDLE: Duration = Duration::from_secs(1);

/// Bytes of the stack of a thread.
const STACK_BYTES: usize = 64 << 10;

/// The threads that read, as many as there is work for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Readers(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    /// Wakes the idle thread.
    work: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Read>,
    threads: u32,
    /// One of the threads waits for work.
    is_idle: bool,
    /// A thread watches whether the others make progress.
    is_watched: bool,
    /// Threads inside a read. A thread that is still waiting for a processor does not count.
    reading: u32,
    /// Reads that ended.
    ended: u64,
}

/// A read of sixteen bytes, and the function that takes them.
struct Read {
    process: Pid,
    nonce_at: u64,
    then: Box<dyn FnOnce(Nonce) + Send>,
}

impl fmt::Debug for Read {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Read").field("process", &self.process).finish_non_exhaustive()
    }
}

impl Readers {
    /// Reads the nonce of a process, and passes it on; [`Nonce::UNSEEN`] if the kernel does not allow it, or cannot show the
    /// process. Does not block. `then` runs in another thread, or here if there is nothing to wait for. It must not block.
    pub fn read(&self, process: Option<Pid>, nonce_at: u64, then: impl FnOnce(Nonce) + Send + 'static) {
        let Some(process) = process else { return then(Nonce::UNSEEN) };
        let mut queue = lock(&self.0.queue);
        if queue.waiting.len() >= WAITING_MOST {
            drop(queue);
            return then(Nonce::UNSEEN);
        }
        queue.waiting.push_back(Read { process, nonce_at, then: Box::new(then) });
        if std::mem::take(&mut queue.is_idle) {
            return self.0.work.notify_one();
        }
        let is_more = queue.threads < THREADS_MOST;
        let readers = self.clone();
        let started = match (is_more, queue.is_watched) {
            (true, _) => {
                queue.threads += 1;
                spawn_without_signals("weft-reader", STACK_BYTES, move || readers.work())
            }
            (false, false) => {
                queue.is_watched = true;
                spawn_without_signals("weft-reader", STACK_BYTES, move || readers.watch())
            }
            (false, true) => return,
        };
        if started.is_ok() {
            return;
        }
        // No thread could be started.
        match is_more {
            true => queue.threads -= 1,
            false => queue.is_watched = false,
        }
        let given_up = std::mem::take(&mut queue.waiting);
        drop(queue);
        give_up(given_up);
    }

    /// Starts a thread if none is idle, so that a read which comes soon finds one. Does not block.
    pub fn prepare(&self) {
        let mut queue = lock(&self.0.queue);
        if queue.is_idle || queue.threads >= THREADS_MOST {
            return;
        }
        queue.threads += 1;
        let readers = self.clone();
        if spawn_without_signals("weft-reader", STACK_BYTES, move || readers.work()).is_err() {
            queue.threads -= 1;
        }
    }

    /// The next read. Waits for one for a while, unless another thread does so. `None` when the thread is to end.
    fn next(&self) -> Option<Read> {
        let mut queue = lock(&self.0.queue);
        if queue.waiting.is_empty() && !queue.is_idle {
            queue.is_idle = true;
            let waited = self.0.work.wait_timeout_while(queue, IDLE, |queue| queue.is_idle);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
            queue.is_idle = false;
        }
        let read = queue.waiting.pop_front();
        match read {
            Some(_) => queue.reading += 1,
            None => queue.threads -= 1,
        }
        read
    }

    /// Reads for as long as there is something to read.
    fn work(&self) {
        while let Some(read) = self.next() {
            let nonce = read.now();
            {
                let mut queue = lock(&self.0.queue);
                queue.reading -= 1;
                queue.ended += 1;
            }
            (read.then)(nonce);
        }
    }

    /// Checks from time to time whether the others make progress, until nothing is queued.
    fn watch(&self) {
        let mut before = None;
        loop {
            {
                let mut queue = lock(&self.0.queue);
                let has_ended = before.replace(queue.ended) != Some(queue.ended);
                // On a busy machine, a thread that has not begun its read may only be waiting for a processor.
                let gets_on = has_ended || queue.reading < THREADS_MOST;
                if queue.waiting.is_empty() || !gets_on {
                    queue.is_watched = false;
                    let given_up = std::mem::take(&mut queue.waiting);
                    drop(queue);
                    return give_up(given_up);
                }
            }
            std::thread::sleep(PATIENCE);
        }
    }
}

fn give_up(reads: VecDeque<Read>) {
    reads.into_iter().for_each(|read| (read.then)(Nonce::UNSEEN));
}

impl Read {
    fn now(&self) -> Nonce {
        let mut bytes = [0u8; 16];
        let nonce = RemoteIoVec { base: self.nonce_at as usize, len: bytes.len() };
        match process_vm_readv(self.process, &mut [IoSliceMut::new(&mut bytes)], &[nonce]) {
            Ok(16) => Nonce(u128::from_ne_bytes(bytes)),
            _ => Nonce::UNSEEN,
        }
    }
}
