use super::*;
use crate::Window;
use std::sync::atomic::{AtomicBool, AtomicU64};

fn mapped(window: &Window, at: u64, len: u64) -> (Ticket, Remote) {
    barrier::register();
    let (ticket, offer) = window.offer(at, len).expect("an offer");
    let offer = Offer::from_bytes(&offer.to_bytes()).expect("of that length");
    (ticket, Remote::open(std::process::id(), &offer).expect("this process may map what it made"))
}

#[test]
fn bytes_are_the_same_on_both_sides_and_none_outside_the_part_is_reached() {
    let window = Window::create(10_000).expect("memfd");
    let (ticket, remote) = mapped(&window, 100, 50);
    assert_eq!((remote.len(), window.offers()), (50, 1));
    assert_eq!(remote.write(3, b"three"), Ok(()));
    let mut seen = [0; 5];
    assert!(window.read(103, &mut seen));
    assert_eq!(&seen, b"three");
    assert!(window.write(149, b"x"));
    assert_eq!((remote.read(49, &mut seen[..1]), seen[0]), (Ok(()), b'x'));
    for (at, len) in [(46, 5), (50, 1), (u64::MAX, 1), (u64::MAX, 0)] {
        assert_eq!(remote.write(at, &seen[..len]), Err(RemoteError::Outside), "{len} at {at}");
    }
    // The part begins at a multiple of 4.
    assert_eq!(remote.update(12, 8, |old| Some(old + 1)).map(|_| ()), Ok(()));
    assert_eq!(remote.update(0, 8, Some), Err(RemoteError::Outside), "not aligned");
    window.withdraw(&[ticket]);
    assert_eq!(remote.write(3, b"four"), Err(RemoteError::Withdrawn));
    assert_eq!((remote.is_open(), window.offers()), (false, 0));
    assert!(window.read(103, &mut seen));
    assert_eq!(&seen, b"three");
}

#[test]
fn lent_memory_is_read_into_where_it_has_room() {
    let window = Window::create(100).expect("memfd");
    assert!(window.write(0, &[1, 2, 3, 4]));
    let (_, remote) = mapped(&window, 0, 100);
    let mut room = [0u8; 4];
    // SAFETY: `room` outlives it, and is not used meanwhile.
    let mut lent = unsafe { LentMut::new(room.as_mut_ptr(), 4) };
    assert_eq!(remote.read_lent(1, &mut lent, 2, 2), Ok(()));
    for (at, to_at, len) in [(0, 3, 2), (0, usize::MAX, 2), (99, 0, 2)] {
        assert_eq!(remote.read_lent(at, &mut lent, to_at, len), Err(RemoteError::Outside), "{at} {to_at} {len}");
    }
    assert_eq!(room, [0, 0, 2, 3]);
}

#[test]
fn a_closer_ends_the_use_of_a_mapping_and_does_not_keep_it() {
    let window = Window::create(100).expect("memfd");
    let (_, remote) = mapped(&window, 0, 100);
    let closer = remote.closer();
    assert!(remote.is_open() && !closer.is_done());
    closer.close();
    assert_eq!((remote.is_open(), remote.write(0, &[1])), (false, Err(RemoteError::Withdrawn)));
    drop(remote);
    assert!(closer.is_done());
    closer.close();
}

#[test]
fn memory_that_is_not_offered_is_not_mapped() {
    let window = Window::create(8192).expect("memfd");
    assert!(window.offer(1, 8192).is_none() && window.offer(u64::MAX, 2).is_none());
    let (_, offer) = window.offer(0, 8192).expect("an offer");
    let process = std::process::id();
    let wrong = [
        Offer { file: offer.file + 1, ..offer },
        Offer { descriptor: 1 << 20, ..offer },
        Offer { descriptor: u32::MAX, ..offer },
        Offer { bytes: offer.bytes + 4096, ..offer },
        Offer { bytes: 0, ..offer },
        Offer { line: OFFERS_MOST as u32, ..offer },
        Offer { at: 1, ..offer },
        Offer { at: u64::MAX, ..offer },
    ];
    for wrong in wrong {
        assert!(Remote::open(process, &wrong).is_none(), "{wrong:?}");
    }
    assert!(Remote::open(0, &offer).is_none() && Remote::open(u32::MAX, &offer).is_none());
    assert_eq!(Offer::from_bytes(&offer.to_bytes()[1..]), None);
}

/// A peer has the descriptor, and can punch holes into the memory, control lines included. They read as zeros.
#[test]
fn holes_in_the_memory_break_nothing() {
    use rustix::fs::FallocateFlags;
    let window = Window::create(3 << 12).expect("memfd");
    assert!(window.write(0, b"before"));
    let (ticket, remote) = mapped(&window, 0, 3 << 12);
    let (other, _) = mapped(&window, 0, 8);
    let (_, offer) = window.offer(0, 8).expect("an offer");
    let descriptor = fetch(std::process::id(), &offer).expect("this process may");
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&descriptor, punch, 0, offer.bytes).expect("holes can be made");
    assert!(rustix::fs::ftruncate(&descriptor, 0).is_err(), "it cannot shrink");
    let mut seen = [7; 6];
    assert!(window.read(0, &mut seen) && seen == [0; 6]);
    // The generation now differs from that of its offer, so it writes nothing; the owner goes on as before.
    assert_eq!((remote.write(0, b"x"), remote.is_open()), (Err(RemoteError::Withdrawn), false));
    window.withdraw(&[ticket, other]);
    let (_, remote) = mapped(&window, 0, 3 << 12);
    assert_eq!(remote.write(0, b"after!"), Ok(()));
    assert!(window.read(0, &mut seen) && &seen == b"after!");
}

#[test]
fn offers_are_bounded_and_their_lines_are_used_again() {
    let window = Window::create(100).expect("memfd");
    barrier::register();
    let tickets: Vec<Ticket> = std::iter::from_fn(|| window.offer(0, 100)).map(|(ticket, _)| ticket).collect();
    assert_eq!((tickets.len(), window.offers()), (OFFERS_MOST, OFFERS_MOST));
    window.withdraw(&tickets[..2]);
    window.withdraw(&tickets[..2]);
    assert!(window.offer(0, 1).is_some() && window.offer(0, 1).is_some() && window.offer(0, 1).is_none());
    window.let_go(tickets[5]);
    window.let_go(tickets[5]);
    let (_, again) = window.offer(0, 1).expect("one was let go");
    assert!(again.line == tickets[5].line && again.generation != tickets[5].generation);
    assert!(window.offer(0, 1).is_none());
}

/// A peer that drops its mapping no longer needs its line; the others keep theirs.
#[test]
fn lines_of_mappings_that_are_gone_are_used_again() {
    let window = Window::create(64).expect("memfd");
    let (kept_by, kept) = mapped(&window, 0, 64);
    for round in 0..20 * OFFERS_MOST as u64 {
        let (ticket, remote) = mapped(&window, 0, 64);
        assert_eq!(remote.write(8, &round.to_le_bytes()), Ok(()));
        assert!(window.is_offered(ticket) && word_at_8(&window) == round);
    }
    assert_eq!(kept.write(0, &[1]), Ok(()));
    window.withdraw(&[kept_by]);
    assert!(!window.is_offered(kept_by) && !kept.is_open());
}

/// A line whose offer was let go rests, whatever is left in its busy words from earlier offers, and goes to one peer only.
#[test]
fn a_line_that_rests_is_not_given_to_two_peers() {
    let window = Window::create(64).expect("memfd");
    let mut others = with_one_line(&window);
    // More often than a line has busy words.
    for _ in 0..3 * BUSY_WORDS {
        let (_, remote) = mapped(&window, 0, 64);
        assert_eq!(remote.write(8, &[1]), Ok(()));
    }
    let (last, remote) = mapped(&window, 0, 64);
    window.let_go(last);
    drop(remote);
    let (first, one) = mapped(&window, 0, 64);
    assert!(window.offer(0, 1).is_none(), "there is one line");
    window.withdraw(&[others.pop().expect("another")]);
    let (_, two) = mapped(&window, 0, 64);
    assert!(one.is_open() && two.is_open() && one.line != two.line);
    assert_eq!(window.offers(), OFFERS_MOST);
    window.withdraw(&[first]);
    assert!(!one.is_open() && two.is_open());
}

/// An access that ends while the owner waits for it was made. If a slow machine makes the owner wait for too long, it was interrupted.
#[test]
fn an_access_that_ends_while_the_owner_waits_is_made() {
    let was_made = (0..10).any(|_| {
        let window = Window::create(64).expect("memfd");
        let (ticket, remote) = mapped(&window, 0, 64);
        let (_, looking) = mapped(&window, 0, 64);
        let (line, generation) = (Line::of(&looking.mapping, remote.line).generation, remote.generation);
        let end = std::thread::scope(|scope| {
            in_an_access(remote, || {
                scope.spawn(|| window.withdraw(&[ticket]));
                while line.load(Ordering::Acquire) == generation {
                    std::thread::yield_now();
                }
            })
        });
        match end {
            Ok(old) => assert_eq!((old, word_at_8(&window)), (0, 7)),
            Err(error) => assert_eq!((error, word_at_8(&window)), (RemoteError::Interrupted, 0)),
        }
        end.is_ok()
    });
    assert!(was_made, "the owner waited 100 ms in vain, 10 times");
}

/// A peer that is stopped in the middle of an access does not delay the owner for long, and its later writes reach nobody. The old bytes
/// take no memory.
#[test]
fn a_peer_that_stays_in_an_access_is_left_with_the_old_bytes() {
    // More than one piece of the copy.
    const LEN: u64 = 40 << 20;
    let window = Window::create(LEN as usize).expect("memfd");
    let marked = [2 << 20, (16 << 20) - 3, (32 << 20) + 5, LEN - 6];
    for at in marked {
        assert!(window.write(at, b"before"));
    }
    let (stopped, remote) = mapped(&window, 0, LEN);
    let (_, offer) = window.offer(0, 8).expect("an offer");
    let file = fetch(std::process::id(), &offer).expect("this process may");
    let pages = || rustix::fs::fstat(&file).expect("a file").st_blocks;
    assert!(pages() >= marked.len() as i64);
    let (_, other) = mapped(&window, 0, 8);
    let [inside, go_on] = [(); 2].map(|()| AtomicBool::new(false));
    std::thread::scope(|scope| {
        let (inside, go_on) = (&inside, &go_on);
        let late = scope.spawn(move || {
            let end = remote.update(8, 8, |_| {
                inside.store(true, Ordering::Release);
                while !go_on.load(Ordering::Acquire) {
                    std::thread::yield_now();
                }
                Some(7)
            });
            (end, remote.write(0, b"more"))
        });
        while !inside.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        let pointer = window.as_ptr();
        window.withdraw(&[stopped]);
        assert_eq!(window.as_ptr(), pointer, "the owner's pointers stay good");
        go_on.store(true, Ordering::Release);
        let end = late.join().expect("it ended");
        assert_eq!(end, (Err(RemoteError::Interrupted), Err(RemoteError::Withdrawn)));
    });
    let mut seen = [0; 6];
    assert!(window.read(8, &mut seen));
    assert_eq!(seen, [0; 6], "a late write");
    for at in marked {
        assert!(window.read(at, &mut seen));
        assert_eq!(&seen, b"before", "at {at}");
    }
    let room_of_control = CONTROL as i64 / 512;
    assert!(pages() <= room_of_control + 8, "the control lines, and the page of the late write: {}", pages());
    assert_eq!(other.write(0, b"x"), Err(RemoteError::Withdrawn), "of the same memory");
    assert!(window.offer(0, 1).is_none() && window.offers() == 0);
    assert!(window.write(0, b"mine") && window.read(0, &mut seen));
}

/// Has a peer be in the middle of an access that adds 7 to the word at 8, while `meanwhile` runs. Returns how the access ended.
fn in_an_access(remote: Remote, meanwhile: impl FnOnce()) -> Result<u64, RemoteError> {
    let [inside, go_on] = [(); 2].map(|()| AtomicBool::new(false));
    std::thread::scope(|scope| {
        let (inside, go_on) = (&inside, &go_on);
        let access = scope.spawn(move || {
            remote.update(8, 8, |old| {
                inside.store(true, Ordering::Release);
                while !go_on.load(Ordering::Acquire) {
                    std::thread::yield_now();
                }
                Some(old + 7)
            })
        });
        while !inside.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        meanwhile();
        go_on.store(true, Ordering::Release);
        access.join().expect("it ended")
    })
}

fn word_at_8(window: &Window) -> u64 {
    let mut word = [0; 8];
    assert!(window.read(8, &mut word));
    u64::from_le_bytes(word)
}

/// All lines of a window but one have offers.
fn with_one_line(window: &Window) -> Vec<Ticket> {
    barrier::register();
    (1..OFFERS_MOST).map(|_| window.offer(0, 1).expect("a line").0).collect()
}

/// The owner reuses the control line of an ended offer for another one.
#[test]
fn closing_a_mapping_neither_reopens_a_withdrawn_one_nor_closes_another() {
    let window = Window::create(64).expect("memfd");
    let _others = with_one_line(&window);
    let (first, revoked) = mapped(&window, 0, 64);
    window.withdraw(&[first]);
    let (second, mine) = mapped(&window, 0, 64);
    assert_eq!(mine.line, revoked.line);
    mine.closer().close();
    assert_eq!(mine.write(0, &[1]), Err(RemoteError::Withdrawn));
    assert_eq!(revoked.write(0, &[1]), Err(RemoteError::Withdrawn), "a late write");
    window.withdraw(&[second]);
    let (_, last) = mapped(&window, 0, 64);
    mine.closer().close();
    assert_eq!(last.write(0, &[1]), Ok(()));
}

/// One peer tries a mapping that was withdrawn, while another one, whose offer has the control line now, is in the middle of an access.
#[test]
fn trying_a_withdrawn_mapping_hides_no_access_of_another_peer() {
    let window = Window::create(64).expect("memfd");
    let _others = with_one_line(&window);
    let (first, revoked) = mapped(&window, 0, 64);
    window.withdraw(&[first]);
    let (second, remote) = mapped(&window, 0, 64);
    assert_eq!(remote.line, revoked.line);
    let end = in_an_access(remote, || {
        assert_eq!(revoked.write(0, &[1]), Err(RemoteError::Withdrawn));
        window.withdraw(&[second]);
    });
    assert_eq!((end, word_at_8(&window)), (Err(RemoteError::Interrupted), 0), "a late write");
}

/// A peer that was let go may be in the middle of an access. A withdrawal waits for it, too.
#[test]
fn a_peer_let_go_in_an_access_writes_nothing_after_a_withdrawal() {
    for with_another in [true, false] {
        let window = Window::create(64).expect("memfd");
        let (ticket, remote) = mapped(&window, 0, 64);
        let (other, _) = mapped(&window, 0, 64);
        let end = in_an_access(remote, || {
            window.let_go(ticket);
            window.withdraw(&[other][..usize::from(with_another)]);
        });
        assert_eq!((end, word_at_8(&window)), (Err(RemoteError::Interrupted), 0), "a late write");
    }
    // One that is not in an access keeps nobody waiting, and its line is free.
    let window = Window::create(64).expect("memfd");
    let (ticket, _) = mapped(&window, 0, 64);
    window.let_go(ticket);
    window.withdraw(&[]);
    assert!(window.offer(0, 1).is_some(), "the memory is still shared");
}

/// Mappings that a writer gets at a time, each with a word of its own.
const BATCH: u64 = 200;

/// Withdraws this many mappings one after the other, while another thread writes to all of them in turn without a pause. Returns how many
/// late writes there were: words that changed after their withdrawal.
fn late_writes(rounds: u64, write: impl Fn(&Remote, u64, u64) -> bool + Sync) -> usize {
    let (written, mut late, mut in_use) = (AtomicU64::new(0), 0, 0);
    let (send, receive) = std::sync::mpsc::sync_channel::<Vec<Remote>>(1);
    let (ended, end) = std::sync::mpsc::sync_channel::<()>(1);
    std::thread::scope(|scope| {
        let (written, write) = (&written, &write);
        scope.spawn(move || {
            for remotes in receive {
                let mut value = 0;
                let mut goes_on = true;
                while goes_on {
                    value += 1;
                    goes_on = false;
                    for (remote, number) in remotes.iter().zip(0..) {
                        goes_on |= write(remote, 8 * number, value);
                    }
                    written.fetch_add(1, Ordering::Relaxed);
                }
                ended.send(()).expect("it waits");
            }
        });
        for batch in 0..rounds.div_ceil(BATCH) {
            // A new window each time: if the writer is preempted for long, the memory is replaced by a copy.
            let window = Window::create(8 * BATCH as usize).expect("memfd");
            let word = |number: u64| {
                let mut word = [0; 8];
                assert!(window.read(8 * number, &mut word));
                u64::from_le_bytes(word)
            };
            let last = BATCH.min(rounds - batch * BATCH);
            let (tickets, remotes): (Vec<Ticket>, Vec<Remote>) =
                (0..last).map(|_| mapped(&window, 0, 8 * BATCH)).unzip();
            let before = written.load(Ordering::Relaxed);
            send.send(remotes).expect("it takes them");
            while written.load(Ordering::Relaxed) == before {
                std::thread::yield_now();
            }
            let mut seen = Vec::new();
            for (ticket, number) in tickets.into_iter().zip(0..) {
                window.withdraw(&[ticket]);
                seen.push(word(number));
            }
            end.recv().expect("it says so");
            in_use += seen.iter().filter(|&&seen| seen > 1).count();
            late += (0..).zip(seen).filter(|&(number, seen)| word(number) != seen).count();
        }
        drop(send);
    });
    assert!(in_use as u64 > rounds / 10, "{in_use} of {rounds} were written to when they were withdrawn");
    late
}

#[test]
fn nothing_is_written_after_a_withdrawal() {
    let late = late_writes(100_000, |remote, at, value| remote.write(at, &value.to_le_bytes()).is_ok());
    assert_eq!(late, 0);
}

#[test]
#[ignore = "takes a quarter of an hour; `make soak` runs it"]
fn nothing_is_written_after_ten_million_withdrawals() {
    let late = late_writes(10_000_000, |remote, at, value| remote.write(at, &value.to_le_bytes()).is_ok());
    assert_eq!(late, 0);
}

/// The same check finds a writer that does not set its busy word.
#[test]
fn a_writer_without_its_busy_word_is_found() {
    let late = late_writes(1000, |remote, at, value| {
        let is_open = remote.is_open();
        let to = remote.at(at, 8).expect("within");
        if at % 512 == 0 {
            // As if the thread were preempted here.
            std::thread::sleep(4 * SETTLING);
        }
        if is_open {
            // SAFETY: the word is within the mapping.
            unsafe { write(value.to_le_bytes().as_ptr(), to, 8) };
        }
        is_open
    });
    assert!(late > 0, "the planted fault was not found");
}
