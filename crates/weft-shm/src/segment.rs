//! The mapped file that a program shares with weftd, whose layout is in [`weft_wire::segment`], and the page in which the daemon says
//! whether it sleeps.
//!
//! Words that both sides use are accessed as 64-bit atomics, always of that size. Contents are copied out of the file once, by volatile
//! loads (`foreign.rs`), because the other side may store there meanwhile.

use crate::barrier;
use crate::foreign;
use crate::fork::Descriptor;
use crate::sys::{OpenError, Shared};
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use weft_wire::descriptor::{lap, Words, DESCRIPTOR, WORDS};
use weft_wire::segment::{Segment, PAGE, PARTS, PARTS_MOST};
use weft_wire::LINE;

/// The words of bells below each word of the level above.
const FAN: usize = 64;

/// Where the second and the third level of a tree of bells begin.
const BRANCHES: usize = LINE;
const LEAVES: usize = BRANCHES + FAN * 8;

const _: () = assert!(DESCRIPTOR == WORDS * 8 && PARTS_MOST as usize == FAN * FAN * FAN);

/// A file that is shared with one program, or with the daemon.
///
/// ```
/// use weft_shm::SegmentFile;
/// use weft_wire::segment::{Segment, PARTS, TO_DAEMON};
///
/// let (daemon, descriptor) = SegmentFile::create(2 * PARTS)?;
/// let program = SegmentFile::open(&descriptor, 2 * PARTS)?;
/// program.publish(PARTS, &[5, 1, 2, 3, 4, 5, 6, 7]);
/// program.ring(TO_DAEMON, 9);
///
/// let mut rung = Vec::new();
/// daemon.collect(TO_DAEMON, 64, |part| rung.push(part));
/// assert_eq!(rung, [9]);
/// assert_eq!(daemon.look(PARTS, 5), Some([5, 1, 2, 3, 4, 5, 6, 7]));
/// assert_eq!(daemon.look(PARTS, 6), None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct SegmentFile(Shared);

impl SegmentFile {
    /// Makes a file of zeros. Its pages are allocated when they are touched. Returns the descriptor to hand to the program.
    ///
    /// # Errors
    /// What the kernel says, and `InvalidInput` if it has no room for a part or is not made of whole pages.
    pub fn create(bytes: usize) -> io::Result<(SegmentFile, Descriptor)> {
        if bytes <= PARTS || bytes % PAGE != 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let (shared, fd) = Shared::create_to_seal("weft-segment", bytes)?;
        Ok((SegmentFile(shared), fd))
    }

    /// From now on nobody can map the file for writing, write to it by a call, or punch holes into it, which would make accesses here wait.
    /// Existing mappings stay. The daemon calls this once the program has mapped the file.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn seal(fd: impl AsFd) -> io::Result<()> {
        Shared::seal_for_good(fd)
    }

    /// Maps a file that the daemon made.
    ///
    /// # Errors
    /// If it is not sealed, has another size, or the kernel has no room for the mapping.
    pub fn open(fd: impl AsFd, bytes: usize) -> Result<SegmentFile, OpenError> {
        if bytes <= PARTS || bytes % PAGE != 0 {
            return Err(OpenError::Size { want: bytes as u64, have: 0 });
        }
        Ok(SegmentFile(Shared::open(fd, bytes)?))
    }

    /// The address of a range that is checked to be inside the mapping.
    #[inline(always)]
    fn at(&self, at: usize, len: usize) -> *mut u8 {
        // Saturating: no sum wraps around and seems to be inside.
        assert!(at.saturating_add(len) <= self.0.bytes(), "outside the segment");
        // SAFETY: the range ends inside the mapping, by the assertion, and the mapping lives as long as `self`.
        unsafe { self.0.base().as_ptr().add(at) }
    }

    /// A word that both sides access as an atomic.
    #[inline(always)]
    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at % 8 == 0, "not aligned");
        // SAFETY: `at` checked the range; it is aligned to 8, as the mapping is to a page. Descriptors, cursors and bells are accessed
        // as this atomic alone; where they lie, no contents lie, which `weft_wire::segment` lays out and tests.
        unsafe { AtomicU64::from_ptr(self.at(at, 8).cast()) }
    }

    /// The words of a descriptor.
    #[inline(always)]
    fn words(&self, at: usize) -> &[AtomicU64; WORDS] {
        assert!(at % 8 == 0, "not aligned");
        // SAFETY: as in `word`, for all words of the descriptor, whose range `at` checked. Atomics may be behind a shared reference while
        // others store to them.
        unsafe { &*self.at(at, DESCRIPTOR).cast() }
    }
}

impl Segment for SegmentFile {
    fn bytes(&self) -> usize {
        self.0.bytes()
    }

    #[inline(always)]
    fn look(&self, at: usize, expected: u16) -> Option<Words> {
        let [first, rest @ ..] = self.words(at);
        // Acquire: pairs with the release store in `publish`.
        let first = first.load(Ordering::Acquire);
        if lap(first) != expected {
            return None;
        }
        // Relaxed: ordered by the load above. Each word is loaded once.
        let [a, b, c, d, e, f, g] = rest.each_ref().map(|word| word.load(Ordering::Relaxed));
        Some([first, a, b, c, d, e, f, g])
    }

    #[inline(always)]
    fn publish(&self, at: usize, words: &Words) {
        let places = self.words(at);
        for (place, word) in places.iter().zip(words).skip(1) {
            // Relaxed: ordered by the store below.
            place.store(*word, Ordering::Relaxed);
        }
        // Release: pairs with the acquire load in `look`.
        places[0].store(words[0], Ordering::Release);
    }

    #[inline(always)]
    fn cursor(&self, at: usize) -> u64 {
        // Acquire: pairs with the release store in `set_cursor`. What the other side read before it is free now.
        self.word(at).load(Ordering::Acquire)
    }

    #[inline(always)]
    fn set_cursor(&self, at: usize, value: u64) {
        // Release: pairs with the acquire load in `cursor`.
        self.word(at).store(value, Ordering::Release);
    }

    fn read(&self, at: usize, len: usize, to: &mut Vec<u8>) {
        assert!(at % 8 == 0, "not aligned");
        let from = self.at(at, len);
        to.clear();
        to.reserve(len);
        // SAFETY: `at` checked the source, which is aligned to 8 and may change at any time. `to` has room for `len` bytes that are this
        // process's alone, and all of them are initialised before its length says so.
        unsafe {
            foreign::copy(from, to.as_mut_ptr(), len);
            to.set_len(len);
        }
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        let to = self.at(at, bytes.len());
        // SAFETY: the source is a slice, and `at` checked the destination. They do not overlap, for no slice of a mapping is ever made.
        // Until the descriptor is published the other side has no reason to look there. If it does, it alone bears the consequences.
        unsafe { crate::copy::copy(bytes.as_ptr(), to, bytes.len()) };
    }

    fn copy_to(&self, at: usize, len: usize, other: &SegmentFile, to: usize) {
        assert!(at % 8 == 0, "not aligned");
        let (from, to) = (self.at(at, len), other.at(to, len));
        // SAFETY: `at` checked both ranges; the source is aligned to 8 and may change at any time. They lie in two files, or in two areas
        // of one file, which do not overlap. The destination is as in `write`.
        unsafe { foreign::copy(from, to, len) };
    }

    #[inline(always)]
    fn ring(&self, bells: usize, part: u32) {
        let part = (part % PARTS_MOST) as usize;
        let (leaf, branch) = (part / FAN, part / (FAN * FAN));
        // Release: a collector that takes the bell finds what was published before it. A word that was not zero is marked above, or
        // being collected right now: words are cleared from the root down.
        if self.word(bells + LEAVES + leaf * 8).fetch_or(1 << (part % FAN), Ordering::AcqRel) == 0
            && self.word(bells + BRANCHES + branch * 8).fetch_or(1 << (leaf % FAN), Ordering::AcqRel) == 0
        {
            self.word(bells).fetch_or(1 << branch, Ordering::AcqRel);
        }
    }

    #[inline(always)]
    fn collect(&self, bells: usize, words: u32, rung: impl FnMut(u32)) {
        // Relaxed: it only says whether to look.
        if self.word(bells).load(Ordering::Relaxed) != 0 {
            self.collect_rung(bells, words, rung);
        }
    }

    #[inline(always)]
    fn light_barrier(&self) {
        barrier::light();
    }
}

impl SegmentFile {
    #[inline(never)]
    fn collect_rung(&self, bells: usize, mut words: u32, mut rung: impl FnMut(u32)) {
        // From the root down, so that a bell which is rung meanwhile is either found now or marked again in the words above.
        let root = self.word(bells);
        let mut branches = root.swap(0, Ordering::AcqRel);
        while branches != 0 {
            let branch = branches.trailing_zeros() as usize;
            let word = self.word(bells + BRANCHES + branch * 8);
            let mut leaves = word.swap(0, Ordering::AcqRel);
            while leaves != 0 {
                if words == 0 {
                    word.fetch_or(leaves, Ordering::AcqRel);
                    root.fetch_or(branches, Ordering::AcqRel);
                    return;
                }
                words -= 1;
                let leaf = branch * FAN + leaves.trailing_zeros() as usize;
                leaves &= leaves - 1;
                let mut parts = self.word(bells + LEAVES + leaf * 8).swap(0, Ordering::AcqRel);
                while parts != 0 {
                    rung((leaf * FAN) as u32 + parts.trailing_zeros());
                    parts &= parts - 1;
                }
            }
            branches &= branches - 1;
        }
    }
}

/// The page in which the daemon says whether it sleeps. Programs can read it, and none can write there.
#[derive(Debug)]
pub struct AwakePage {
    page: Shared,
    sleeps: u64,
}

/// A program's view of that page.
#[derive(Debug)]
pub struct AwakeView(Shared);

impl AwakePage {
    /// Makes the page, and the descriptor to hand to programs.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn create() -> io::Result<(AwakePage, Descriptor)> {
        let (page, fd) = Shared::create_read_only("weft-awake", PAGE)?;
        Ok((AwakePage { page, sleeps: 0 }, fd))
    }

    /// From now on programs that ring wake the daemon. Certain only after a [`barrier`].
    pub fn lie_down(&mut self) {
        self.sleeps += 1;
        self.store(self.sleeps);
    }

    /// Programs need not wake the daemon any more.
    pub fn get_up(&mut self) {
        self.store(0);
    }

    fn store(&mut self, value: u64) {
        // SAFETY: the word begins the page, which is mapped as long as `self`; all access it as this atomic.
        let word = unsafe { AtomicU64::from_ptr(self.page.base().as_ptr().cast()) };
        // Relaxed: the barrier that follows orders it. A program that sees an old value wakes a daemon that is awake.
        word.store(value, Ordering::Relaxed);
    }
}

impl AwakeView {
    /// Maps the page that the daemon made.
    ///
    /// # Errors
    /// If it is not such a page, or the kernel has no room.
    pub fn open(fd: impl AsFd) -> Result<AwakeView, OpenError> {
        Ok(AwakeView(Shared::open_to_read(fd, PAGE)?))
    }

    /// The number of the daemon's sleep, or 0 while it is awake. Call it after [`Segment::light_barrier`].
    #[inline(always)]
    pub fn sleep(&self) -> u64 {
        // SAFETY: the word begins the page, which is mapped as long as `self`; all access it as this atomic, and this one only loads.
        let word = unsafe { AtomicU64::from_ptr(self.0.base().as_ptr().cast()) };
        // Relaxed: the barriers order it.
        word.load(Ordering::Relaxed)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use weft_wire::segment::{TO_DAEMON, TO_PROGRAM};

    fn pair() -> (SegmentFile, SegmentFile) {
        let (daemon, fd) = SegmentFile::create(2 * PARTS).expect("a file");
        let program = SegmentFile::open(&fd, 2 * PARTS).expect("the same file");
        (daemon, program)
    }

    #[test]
    fn each_bell_is_collected_once_wherever_it_lies() {
        let (daemon, program) = pair();
        let parts = [0, 1, 63, 64, 4095, 4096, 70_000, PARTS_MOST - 1];
        parts.iter().for_each(|part| program.ring(TO_DAEMON, *part));
        let mut rung = Vec::new();
        daemon.collect(TO_DAEMON, u32::MAX, |part| rung.push(part));
        assert_eq!(rung, parts);
        daemon.collect(TO_DAEMON, u32::MAX, |part| panic!("{part} twice"));
        daemon.collect(TO_PROGRAM, u32::MAX, |part| panic!("{part} in the other tree"));
    }

    #[test]
    fn bells_beyond_the_budget_are_found_the_next_time() {
        let (daemon, program) = pair();
        let parts: Vec<u32> = (0..300).map(|n| n * 640).collect();
        parts.iter().for_each(|part| program.ring(TO_DAEMON, *part));
        let (mut rung, mut turns) = (Vec::new(), 0);
        while rung.len() < parts.len() {
            let before = rung.len();
            daemon.collect(TO_DAEMON, 64, |part| rung.push(part));
            assert!(rung.len() > before && rung.len() <= before + 64);
            turns += 1;
        }
        assert_eq!((rung, turns), (parts, 5));
    }

    #[test]
    fn no_bell_is_lost_while_others_are_collected() {
        let (daemon, program) = pair();
        const ROUNDS: u64 = 20_000;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=ROUNDS {
                    let part = (round % 7 * 4097 + round % 64) as u32;
                    program.set_cursor(PARTS + 8 * (round % 7) as usize, round);
                    program.ring(TO_DAEMON, part);
                }
            });
            let mut seen = [0; 7];
            // The last bell of each branch tells of the last round there.
            while seen.iter().any(|round| *round <= ROUNDS - 7) {
                daemon.collect(TO_DAEMON, 3, |part| {
                    let branch = (part / 4097) as usize;
                    seen[branch] = daemon.cursor(PARTS + 8 * branch);
                });
            }
        });
    }

    #[test]
    fn contents_are_copied_from_file_to_file() {
        let ((one, _), (two, other_view)) = (pair(), pair());
        let bytes: Vec<u8> = (0..5001).map(|n| n as u8).collect();
        one.write(PARTS, &bytes);
        one.copy_to(PARTS, bytes.len(), &two, PARTS + 64);
        let mut found = vec![7; 3];
        other_view.read(PARTS + 64, bytes.len(), &mut found);
        assert_eq!(found, bytes);
    }

    #[test]
    fn a_sealed_file_stays_as_it_is_mapped() {
        let (daemon, fd) = SegmentFile::create(2 * PARTS).expect("a file");
        let program = SegmentFile::open(&fd, 2 * PARTS).expect("the same file");
        SegmentFile::seal(&fd).expect("sealed");
        program.set_cursor(PARTS, 5);
        assert_eq!(daemon.cursor(PARTS), 5);
        assert!(SegmentFile::open(&fd, 2 * PARTS).is_err(), "a mapping to write");
        assert!(program.0.give_back(PARTS, PAGE).is_err(), "a hole");
        assert!(rustix::io::pwrite(&fd, b"x", 0).is_err());
        assert_eq!(daemon.cursor(PARTS), 5);
    }

    #[test]
    #[should_panic(expected = "outside the segment")]
    fn a_place_behind_the_end_is_refused() {
        pair().0.read(2 * PARTS - 8, 16, &mut Vec::new());
    }

    #[test]
    fn programs_read_the_awake_page_and_cannot_write_there() {
        let (mut page, fd) = AwakePage::create().expect("a page");
        let view = AwakeView::open(&fd).expect("to read");
        assert_eq!(view.sleep(), 0);
        page.lie_down();
        assert_eq!(view.sleep(), 1);
        page.get_up();
        page.lie_down();
        assert_eq!(view.sleep(), 2);
        assert!(Shared::open(&fd, PAGE).is_err(), "a mapping to write");
        assert!(rustix::io::pwrite(&fd, b"x", 0).is_err());
        assert!(AwakeView::open(Shared::create("no such page", PAGE).expect("memory").1).is_err());
    }
}
