//! A forked child has none of its parent's descriptors, memory and values, and does them no harm.
#![cfg(not(loom))]

use nix::sys::wait::{waitpid, WaitPidFlag, WaitStatus};
use nix::unistd::ForkResult;
use rustix::fs::{fstat, OFlags};
use rustix::io::Errno;
use std::convert::Infallible;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use weft_shm::biased::Owner;
use weft_shm::{barrier, Consumer, Descriptor, Forked, Lanes, Life, MapMem, Own, Pages, Producer, Shared};
use weft_wire::path::Peek;
use weft_wire::{Head, Kind};

const BOUND: Duration = Duration::from_secs(30);

/// One test at a time: threads of other tests would fork as well, and hold locks of the allocator and of weft.
static TURN: Mutex<()> = Mutex::new(());

/// Runs `run` in a forked child and expects it to end with success.
fn in_a_child(run: impl FnOnce()) {
    // SAFETY: the C library's allocator works in children, and the child takes no lock that another thread may hold now.
    match unsafe { nix::unistd::fork() }.expect("fork") {
        ForkResult::Child => {
            let failed = catch_unwind(AssertUnwindSafe(run)).is_err();
            // SAFETY: it ends the process, and runs nothing that is the parent's.
            unsafe { nix::libc::_exit(failed.into()) }
        }
        ForkResult::Parent { child } => {
            let since = Instant::now();
            let status = loop {
                match waitpid(child, Some(WaitPidFlag::WNOHANG)).expect("a child of ours") {
                    WaitStatus::StillAlive if since.elapsed() < BOUND => std::thread::sleep(Duration::from_millis(1)),
                    status => break status,
                }
            };
            if status == WaitStatus::StillAlive {
                nix::sys::signal::kill(child, nix::sys::signal::SIGKILL).expect("it lives");
            }
            assert_eq!(status, WaitStatus::Exited(child, 0), "see above");
        }
    }
}

fn turn() -> impl Drop {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn null() -> OwnedFd {
    rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, 0.into()).expect("/dev/null")
}

/// Whether a number is open.
fn is_open(number: i32) -> bool {
    // SAFETY: the borrow lasts for one call that only asks about the number.
    fstat(unsafe { BorrowedFd::borrow_raw(number) }).is_ok()
}

#[test]
fn a_life_is_over_in_children_and_theirs_in_their_children() {
    let _turn = turn();
    let life = Life::current();
    assert_eq!(life.check(), Ok(()));
    in_a_child(|| {
        assert_eq!(life.check(), Err(Forked));
        let own = Life::current();
        assert_eq!((own.check(), life.check()), (Ok(()), Err(Forked)));
        in_a_child(|| {
            assert_eq!((own.check(), life.check()), (Err(Forked), Err(Forked)));
            let third = Life::current();
            assert_eq!((third.check(), own.check(), life.check()), (Ok(()), Err(Forked), Err(Forked)));
        });
        assert_eq!(own.check(), Ok(()));
    });
    assert_eq!(life.check(), Ok(()));
}

#[test]
fn a_childs_copy_of_a_descriptor_is_closed_and_gives_ebadf() {
    let _turn = turn();
    let mut mine = Some(Descriptor::make(|| Ok::<_, Infallible>(null())).expect("made"));
    let number = mine.as_ref().expect("made").as_fd().as_raw_fd();
    in_a_child(|| {
        let mine = mine.take().expect("inherited");
        assert!(!is_open(number));
        // Somebody else gets the number.
        let other = null();
        assert_eq!(other.as_raw_fd(), number);
        assert_eq!(rustix::io::write(&mine, b"x"), Err(Errno::BADF));
        drop(mine);
        assert!(is_open(number), "it was not ours to close");
        // A child's own are closed in its children, and only there.
        let own = Descriptor::make(|| Ok::<_, Infallible>(null())).expect("made");
        let number = own.as_fd().as_raw_fd();
        in_a_child(|| assert!(!is_open(number)));
        assert!(is_open(number));
        drop(own);
        assert!(!is_open(number));
    });
}

#[test]
fn a_file_opened_at_the_number_of_a_closed_descriptor_stays_open_in_children() {
    let _turn = turn();
    let mine = Descriptor::make(|| Ok::<_, Infallible>(null())).expect("made");
    let number = mine.as_fd().as_raw_fd();
    // SAFETY: what such programs do (`closefrom`) is unsound; here nobody uses the descriptor any more.
    drop(unsafe { OwnedFd::from_raw_fd(number) });
    let (other, _end) = rustix::pipe::pipe().expect("pipe");
    assert_eq!(other.as_raw_fd(), number, "the lowest free number");
    in_a_child(|| assert!(is_open(number)));
    std::mem::forget(mine);
}

fn eventfd() -> OwnedFd {
    use rustix::event::{eventfd, EventfdFlags};
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("eventfd")
}

/// Closes a number behind the back of whoever has it.
fn close_by_number(number: i32) {
    // SAFETY: what such programs do (`closefrom`) is unsound. Here only weft relies on the number, and that is tested.
    drop(unsafe { OwnedFd::from_raw_fd(number) });
}

/// All eventfds have the same device and inode, so these cannot tell them apart.
#[test]
fn an_eventfd_of_the_program_at_our_number_is_neither_written_to_nor_closed() {
    let _turn = turn();
    let ours = Descriptor::make(|| Ok::<_, Infallible>(eventfd())).expect("made");
    let number = ours.as_fd().as_raw_fd();
    assert!(ours.is_ours());
    close_by_number(number);
    assert!(!ours.is_ours(), "closed");
    let theirs = eventfd();
    assert_eq!(theirs.as_raw_fd(), number, "the lowest free number");
    assert!(!ours.is_ours());
    weft_shm::ring::ring(&ours);
    assert_eq!(rustix::io::write(ours.checked(), &1u64.to_ne_bytes()), Err(Errno::BADF));
    assert_eq!(rustix::io::read(&theirs, &mut [0; 8]), Err(Errno::AGAIN), "nobody wrote there");
    drop(ours);
    assert!(is_open(number), "it was not ours to close");
}

#[test]
fn a_number_that_the_program_closed_belongs_to_our_later_descriptor() {
    let _turn = turn();
    let first = Descriptor::make(|| Ok::<_, Infallible>(eventfd())).expect("made");
    let number = first.as_fd().as_raw_fd();
    close_by_number(number);
    let second = Descriptor::make(|| Ok::<_, Infallible>(eventfd())).expect("made");
    assert_eq!(second.as_fd().as_raw_fd(), number, "the lowest free number");
    assert_eq!([first.is_ours(), second.is_ours()], [false, true]);
    assert!(first.release().is_none(), "there is nothing to release");
    assert!(second.is_ours());
    assert!(second.release().is_some());
}

#[test]
fn a_descriptor_that_was_ours_lately_is_checked_again_soon() {
    let _turn = turn();
    let ours = Descriptor::make(|| Ok::<_, Infallible>(eventfd())).expect("made");
    assert!(ours.is_ours_lately());
    close_by_number(ours.as_fd().as_raw_fd());
    // A tick of the kernel's clock takes 10 ms at most.
    std::thread::sleep(Duration::from_millis(20));
    assert!(!ours.is_ours_lately());
    in_a_child(|| assert!(!ours.is_ours() && !ours.is_ours_lately()));
}

#[test]
fn a_child_that_goes_on_with_a_ring_finds_it_empty() {
    let _turn = turn();
    let lanes = Lanes::new(16 << 10, 1 << 20);
    let (shared, fd) = Shared::create("weft-test", lanes.bytes()).expect("memfd");
    let again = Shared::open(&fd, lanes.bytes()).expect("own memfd");
    let mut producer = Producer::new(MapMem::new(shared, lanes), lanes);
    let consumer = Consumer::new(MapMem::new(again, lanes), lanes);
    producer.push(Head::new(Kind::Send), &[], b"for the parent").expect("room");
    let mut both = Some((producer, consumer));
    in_a_child(|| {
        let (mut producer, mut consumer) = both.take().expect("inherited");
        assert!(matches!(consumer.peek(), Peek::Empty));
        producer.push(Head::new(Kind::Send), &[], &[1; 2000]).expect("room, of its own");
        let maps = std::fs::read_to_string("/proc/self/maps").expect("/proc");
        assert!(!maps.contains("weft-test"));
        // Dropping them leaves the memory that is mapped there now alone.
        drop((producer, consumer));
    });
    let (_producer, mut consumer) = both.expect("the child has its copy");
    let Peek::Record(record) = consumer.peek() else { panic!("the record") };
    assert_eq!(record.payload, b"for the parent");
}

#[test]
fn a_child_that_writes_to_pages_does_not_change_its_parents_packets() {
    let _turn = turn();
    let mut pages = Some(Pages::zeroed(20_000));
    let sent = pages.as_mut().expect("made");
    sent.as_mut().fill(7);
    let are_sent = sent.can_be_sent();
    in_a_child(|| {
        let mut pages = pages.take().expect("inherited");
        pages.as_mut().fill(9);
        let maps = std::fs::read_to_string("/proc/self/maps").expect("/proc");
        assert!(!maps.contains("weft-pages"));
        // Other pages are mapped in place of those of a memfd by now, and are left alone.
        let address = format!("{:x}-", pages.as_ref().as_ptr() as usize);
        drop(pages);
        let maps = std::fs::read_to_string("/proc/self/maps").expect("/proc");
        assert_eq!(maps.contains(&address), are_sent, "{address} in {maps}");
    });
    assert_eq!(pages.expect("the child has its copy").as_ref(), [7; 20_000]);
}

/// Counts its drops.
struct Dropped<'a>(&'a AtomicU32);

impl Drop for Dropped<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_child_made_during_a_visit_neither_waits_for_the_visitor_nor_touches_the_value() {
    let _turn = turn();
    barrier::register();
    static DROPS: AtomicU32 = AtomicU32::new(0);
    let mut owner = Some(Owner::new(Dropped(&DROPS)));
    let visitor = owner.as_ref().map(Owner::visitor).expect("made");
    let ((inside, is_inside), (go, may_go)) = (channel(), channel::<()>());
    let visit = std::thread::spawn(move || {
        visitor.try_with(|_| {
            inside.send(()).expect("the test waits");
            let _ = may_go.recv();
        })
    });
    is_inside.recv().expect("the visit begins");
    in_a_child(|| {
        let owner = owner.take().expect("inherited");
        let panicked = catch_unwind(AssertUnwindSafe(|| drop(owner.enter()))).expect_err("the visitor never leaves");
        let words = panicked.downcast_ref::<String>().expect("words");
        assert!(words.contains("forked"), "{words}");
        drop(owner);
        assert_eq!(DROPS.load(Ordering::Relaxed), 0, "it may be half changed");
    });
    drop(go);
    assert_eq!(visit.join().expect("it ends"), Some(()));
    drop(owner);
    assert_eq!(DROPS.load(Ordering::Relaxed), 1);
}

#[test]
fn values_are_dropped_by_the_process_that_made_them() {
    let _turn = turn();
    static DROPS: AtomicU32 = AtomicU32::new(0);
    let mut mine = Some(Own::new(Dropped(&DROPS)));
    in_a_child(|| {
        drop(mine.take());
        assert_eq!(DROPS.load(Ordering::Relaxed), 0);
        drop(Own::new(Dropped(&DROPS)));
        assert_eq!(DROPS.load(Ordering::Relaxed), 1);
    });
    drop(mine);
    assert_eq!(DROPS.load(Ordering::Relaxed), 1);
}
