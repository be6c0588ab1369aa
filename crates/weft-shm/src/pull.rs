//! Pulls: bytes read from the memory of another process straight into a [`Window`], with one copy.
//!
//! The kernel decides whether this process may (process_vm_readv(2)). A process can make a read of its memory take as long as it wants, by
//! a page that its own file system or thread serves. So pull only from processes that can be trusted.

use crate::window::{last_piece, store_last, Window};
use rustix::io::Errno;
use rustix::process::Pid;
use std::num::NonZeroU32;

/// Bytes of another process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PullFrom {
    /// The process.
    pub process: NonZeroU32,
    /// The address of the first byte there.
    pub address: u64,
    /// How many there are.
    pub len: usize,
    /// The address of a word there.
    pub proof_at: u64,
    /// The value of that word. A process that has given the bytes up, or another process under the same number, has another value there.
    pub proof: u64,
}

/// Why bytes were not pulled.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PullError {
    /// The kernel does not let this process read them, or they are not there; or the window is the whole address space.
    #[error(
        "unreadable: the kernel does not let this process read the other one's memory there; have it send the bytes"
    )]
    Unreadable,
    /// The process has ended, or its word is another one: it has given the bytes up, or it is another process under the same number.
    #[error("gone: the other process has ended, or has given the bytes up")]
    Gone,
    /// The range leaves the window.
    #[error("outside: the range leaves the window")]
    Outside,
}

weft_wire::debug_says_display!(PullError);

impl Window {
    /// Copies bytes of another process into it. They are stored in any order, except the last aligned word: it is stored last, with
    /// release, and only if the proof is right once all other bytes are stored. A reader that sees it sees all bytes. Blocks for as long
    /// as the kernel reads.
    ///
    /// # Errors
    /// [`PullError`]. Some bytes may have been stored then, but not the last word. They may be bytes of another process under the same
    /// number.
    #[doc(hidden)] // users of weft need not know the types
    pub fn pull(&self, at: u64, from: PullFrom) -> Result<(), PullError> {
        if self.is_whole {
            // The addresses may not be mapped, and this process stores the last word itself.
            return Err(PullError::Unreadable);
        }
        let PullFrom { process, address, len, proof_at, proof } = from;
        let to = self.at(at, len).ok_or(PullError::Outside)?;
        let last = last_piece(to, len);
        let body = len - last;
        let (mut tail, mut seen) = ([0u8; 8], [0u8; 8]);
        let number = |address: u64| usize::try_from(address).map_err(|_| PullError::Unreadable);
        let here = [(to, body), (tail.as_mut_ptr(), last), (seen.as_mut_ptr(), seen.len())];
        let there = [(number(address)?, len), (number(proof_at)?, seen.len())];
        // SAFETY: `body` bytes from `to` are within the window, whose memory can be written and is behind no reference; the two arrays are
        // this function's alone, and as long as said. The kernel checks the addresses there.
        unsafe { read_process(process, here, there) }?;
        if u64::from_ne_bytes(seen) != proof {
            return Err(PullError::Gone);
        }
        // SAFETY: the bytes are within the window, behind those that were stored, and aligned to their number.
        unsafe { store_last(tail.as_ptr(), to.add(body), last) };
        Ok(())
    }
}

/// Reads bytes of another process in one call, so that all come from the same process.
///
/// # Safety
/// The places here must be writable, and behind no reference that others use.
unsafe fn read_process(
    process: NonZeroU32,
    here: [(*mut u8, usize); 3],
    there: [(usize, usize); 2],
) -> Result<(), PullError> {
    let process = i32::try_from(process.get()).ok().and_then(Pid::from_raw).ok_or(PullError::Gone)?;
    let here = here.map(|(base, len)| libc::iovec { iov_base: base.cast(), iov_len: len });
    let there = there.map(|(base, len)| libc::iovec { iov_base: std::ptr::without_provenance_mut(base), iov_len: len });
    let all: usize = there.iter().map(|part| part.iov_len).sum();
    // SAFETY: the caller vouches for the places here; those there are numbers to the kernel.
    let read = unsafe { libc::process_vm_readv(process.as_raw_pid(), here.as_ptr(), 3, there.as_ptr(), 2, 0) };
    match usize::try_from(read) {
        Ok(read) if read == all => Ok(()),
        Ok(_) => Err(PullError::Unreadable),
        Err(_) => match std::io::Error::last_os_error().raw_os_error() {
            Some(error) if error == Errno::SRCH.raw_os_error() => Err(PullError::Gone),
            _ => Err(PullError::Unreadable),
        },
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    fn remote(bytes: &[u8], proof: &AtomicU64) -> PullFrom {
        PullFrom {
            process: NonZeroU32::new(std::process::id()).expect("a process has a number"),
            address: bytes.as_ptr().addr() as u64,
            len: bytes.len(),
            proof_at: proof.as_ptr().addr() as u64,
            proof: 7,
        }
    }

    /// Whether the kernel lets processes read each other here; where it does not, there is nothing to pull.
    fn may_read() -> bool {
        let (window, proof) = (Window::create(8).expect("memfd"), AtomicU64::new(7));
        window.pull(0, remote(&[0; 8], &proof)).is_ok()
    }

    #[test]
    fn bytes_of_every_length_and_place_are_pulled_and_no_others() {
        let source: Vec<u8> = (0..300u32).map(|n| (n % 251) as u8 + 1).collect();
        let proof = AtomicU64::new(7);
        for (at, from) in (0..20usize).flat_map(|at| [0, 1, 7].map(|from| (at, from))).filter(|_| may_read()) {
            for len in (0..40).chain([200, 255]) {
                let window = Window::create(300).expect("memfd");
                assert_eq!(window.pull(at as u64, remote(&source[from..from + len], &proof)), Ok(()));
                let mut all = vec![0; 300];
                assert!(window.read(0, &mut all));
                assert_eq!(all[at..at + len], source[from..from + len], "{len} at {at}");
                assert!(all[..at].iter().chain(&all[at + len..]).all(|byte| *byte == 0), "{len} at {at}");
            }
        }
    }

    #[test]
    fn nothing_outside_is_written_and_what_is_not_there_is_not_read() {
        let (window, proof) = (Window::create(100).expect("memfd"), AtomicU64::new(7));
        let good = remote(&[9; 16], &proof);
        for at in [85, 100, u64::MAX] {
            assert_eq!(window.pull(at, good), Err(PullError::Outside), "{at}");
        }
        for from in [0, 8, 1 << 46, u64::MAX - 7] {
            assert_eq!(window.pull(0, PullFrom { address: from, ..good }), Err(PullError::Unreadable), "{from:x}");
            assert_eq!(window.pull(0, PullFrom { proof_at: from, ..good }), Err(PullError::Unreadable), "{from:x}");
        }
        let mut last = [0; 8];
        assert!(window.read(8, &mut last));
        assert_eq!(last, [0; 8], "the last word of a pull that failed is not stored");
    }

    #[test]
    fn what_was_given_up_and_what_is_another_process_is_gone() {
        let (window, proof) = (Window::create(64).expect("memfd"), AtomicU64::new(7));
        let bytes = [1; 64];
        let good = remote(&bytes, &proof);
        proof.store(0, Ordering::SeqCst);
        let mut child = Command::new("true").stdout(Stdio::null()).spawn().expect("a process");
        let process = NonZeroU32::new(child.id()).expect("a process has a number");
        child.wait().expect("it ends");
        let gone = window.pull(0, PullFrom { process, ..good });
        assert_eq!(gone, Err(if may_read() { PullError::Gone } else { gone.unwrap_err() }));
        if may_read() {
            assert_eq!(window.pull(0, good), Err(PullError::Gone));
            let mut all = [0; 64];
            assert!(window.read(0, &mut all));
            assert_eq!(all[56..], [0; 8], "its last word is not stored");
        }
    }

    /// A reader that sees the last word of a pull sees all of it.
    #[test]
    fn a_reader_that_sees_the_last_word_of_a_pull_sees_all_bytes() {
        const BYTES: usize = 4096;
        const ROUNDS: u64 = 5_000;
        if !may_read() {
            return;
        }
        let (window, proof, is_done) =
            (Window::create(BYTES).expect("memfd"), AtomicU64::new(7), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=ROUNDS {
                    let bytes = round.to_le_bytes().repeat(BYTES / 8);
                    assert_eq!(window.pull(0, remote(&bytes, &proof)), Ok(()));
                }
                is_done.store(true, Ordering::Release);
            });
            let word = |at: usize| {
                // SAFETY: the word is within the window and aligned, and accessed as this atomic.
                unsafe { AtomicU64::from_ptr(window.as_ptr().add(at).cast()) }.load(Ordering::Acquire)
            };
            while !is_done.load(Ordering::Acquire) {
                let last = word(BYTES - 8);
                for at in (0..BYTES).step_by(512) {
                    assert!(word(at) >= last, "no word is older than the last one that was seen before");
                }
            }
        });
    }
}
