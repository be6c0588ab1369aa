//! Regions and cookies that expire, through the public calls.

mod support;

use std::time::{Duration, Instant};
use support::{turn, Address, BOUND};
use weft::memory::{Outcome, Part, Place, RegionKey, Rights, Settings, Write};
use weft::{Bundle, Certainty, Key, Node, Reason, SharedBundle};

const KEY: RegionKey = RegionKey(7);
const REVOKED: Outcome = Outcome::Failed { reason: Reason::Revoked, certainty: Certainty::NotDelivered };

#[test]
fn a_timer_revokes_while_the_owner_sleeps() {
    let _turn = turn("ends in sleep");
    let mut bundle = Bundle::new(&Node::new().expect("node")).expect("bundle");
    let here = bundle.memory_endpoint(Key(1), Settings::default()).expect("endpoint");
    let mut calls = bundle.memory(here).expect("ours");
    let ends = calls.allocate(64, KEY, Rights::ALL).expect("memory").0;
    let stays = calls.allocate(64, RegionKey(8), Rights::ALL).expect("memory").0;
    let time = Duration::from_millis(30);
    assert!(calls.revoke_after(ends, time) && calls.revoke_after(stays, time));
    assert!(calls.revoke_after(stays, Duration::MAX), "never");
    let begin = Instant::now();
    while bundle.memory(here).expect("ours").window(ends).is_some() {
        assert!(begin.elapsed() < BOUND, "it does not end");
        // One wait is enough: it sleeps no longer than until the end.
        bundle.wait(Some(time));
    }
    assert!(begin.elapsed() >= Duration::from_millis(29), "not before");
    let mut calls = bundle.memory(here).expect("ours");
    assert!(calls.window(stays).is_some() && !calls.revoke_after(ends, time) && !calls.revoke(ends));
    // It works in a program that only polls, too.
    assert!(calls.revoke_after(stays, Duration::ZERO));
    (0..100).for_each(|_| _ = bundle.poll());
    assert!(bundle.memory(here).expect("ours").window(stays).is_none());
}

#[test]
fn the_service_thread_revokes_while_the_program_computes() {
    let _turn = turn("ends in service");
    let bundle = SharedBundle::serviced(&Node::new().expect("node")).expect("bundle");
    let here = bundle.memory_endpoint(Key(1), Settings::default()).expect("endpoint");
    let region = bundle.with_memory(here, |m| m.allocate(64, KEY, Rights::ALL)).expect("ours").expect("memory").0;
    // The service thread sleeps by now, and must wake up earlier than planned.
    std::thread::sleep(Duration::from_millis(20));
    bundle.with_memory(here, |m| m.revoke_after(region, Duration::from_millis(20))).expect("ours");
    let begin = Instant::now();
    while bundle.with_memory(here, |m| m.window(region).is_some()).expect("ours") {
        assert!(begin.elapsed() < BOUND, "it does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(begin.elapsed() < Duration::from_millis(400), "in time, not with the next wake-up");
}

#[test]
fn an_access_after_the_expiry_is_refused_though_the_timer_is_late() {
    let _turn = turn("late timers");
    let node = Node::new().expect("node");
    let (mut a, mut b) = (Bundle::new(&node).expect("bundle"), Bundle::new(&node).expect("bundle"));
    let here = a.memory_endpoint(Key(1), Settings::default()).expect("endpoint");
    let there = b.memory_endpoint(Key(2), Settings::default()).expect("endpoint");
    let name = Address::of(&b, there);
    a.map(here, 0, name.name, name.key).expect("map");
    let mut calls = b.memory(there).expect("ours");
    let (region, window) = calls.allocate(4 << 20, KEY, Rights::ALL).expect("memory");
    let cookies = [(); 2].map(|()| calls.cookie(region, Part { at: 0, len: 4 << 20 }, Rights::ALL).expect("a cookie"));
    let end = |a: &mut Bundle, b: &mut Bundle| {
        let since = Instant::now();
        loop {
            if let Some(end) = a.memory(here).expect("ours").next_completion() {
                return end.outcome;
            }
            assert!(since.elapsed() < BOUND, "no completion");
            a.poll();
            b.poll();
        }
    };
    let write = |a: &mut Bundle, cookie: usize, len: usize| {
        let write = Write::to(Place::new(cookies[cookie], 0));
        a.memory(here).expect("ours").try_write(0, write, vec![1; len], 0).expect("posted");
    };
    for cookie in 0..2 {
        write(&mut a, cookie, 8);
        assert_eq!(end(&mut a, &mut b), Outcome::Done);
    }
    let time = Duration::from_millis(20);
    // The message arrives before the end, and nobody polls until after it. A poll takes messages before it checks timers.
    assert!(b.memory(there).expect("ours").revoke_cookie_after(cookies[0], time));
    window.write(0, &[0; 8]);
    write(&mut a, 0, 8);
    a.poll();
    std::thread::sleep(2 * time);
    b.poll();
    assert_eq!(end(&mut a, &mut b), REVOKED);
    let mut seen = [9; 8];
    assert!(window.read(0, &mut seen));
    assert_eq!(seen, [0; 8]);
    // A long write expires in the middle.
    write(&mut a, 1, 4 << 20);
    (0..8).for_each(|_| _ = b.poll());
    assert!(b.memory(there).expect("ours").revoke_cookie_after(cookies[1], Duration::ZERO));
    let outcome = end(&mut a, &mut b);
    assert!(matches!(outcome, Outcome::Failed { reason: Reason::Revoked, .. }), "{outcome:?}");
    // The region and its key are as they were.
    a.memory(here).expect("ours").try_read(0, Place::new(KEY, 0), vec![0; 8], 0).expect("posted");
    assert_eq!(end(&mut a, &mut b), Outcome::Done);
}
