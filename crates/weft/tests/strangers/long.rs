//! Long messages from processes of other users: their bytes are copied before anyone reads them, and a whole address space takes
//! none from callers without a key.

use crate::support::{poll_until, returns_of, tell, turn, Address, Orders, Peer};
use crate::users::become_foreigner;
use crate::{ANSWER, ECHO};
use std::cell::Cell;
use std::rc::Rc;
use weft::am::{Get, Long};
use weft::memory::Window;
use weft::{Admission, Bundle, Certainty, Endpoint, Key, Node, Reason};

const SEGMENT: usize = 300_000;

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 253) as u8).collect()
}

/// A bundle with an endpoint that admits all users, and its segment. Its answers are counted.
fn open() -> (Bundle, Endpoint, Window, Rc<Cell<u32>>) {
    let mut bundle = Bundle::new(&Node::new().expect("node")).expect("bundle");
    let here = bundle.endpoint_with_random_key().expect("endpoint");
    bundle.set_admission(here, Admission::AnyUser).expect("endpoint");
    let window = Window::create(SEGMENT).expect("memory");
    bundle.set_segment(here, Some(window.clone())).expect("endpoint");
    let answers = Rc::new(Cell::new(0));
    let seen = answers.clone();
    bundle.on(here, ANSWER, move |_| seen.set(seen.get() + 1)).expect("on");
    (bundle, here, window, answers)
}

/// A process of another user: puts, is answered, gets, and tries an endpoint whose segment is the whole address space.
pub fn long_guest(orders: Orders) {
    let [there, whole] = [0, 1].map(|word| Address::parse(&orders.words[word]));
    if !become_foreigner() {
        return;
    }
    let (mut bundle, here, window, answers) = open();
    bundle.map(here, 0, there.name, there.key).expect("map");
    for (round, len) in [0, 100, 16_384, 70_000, SEGMENT].into_iter().enumerate() {
        let sent = bundle.request_long(here, 0, Long { handler: ECHO, args: &[], offset: 0 }, pattern(len));
        assert!(sent.is_ok(), "mapped");
        let round = 2 * round as u32;
        poll_until(&mut bundle, "a long answer", |_| answers.get() == round + 1);
        let get = Get { handler: ANSWER, args: &[], source: 0, len: len as u64, offset: 0 };
        bundle.get(here, 0, get).expect("mapped");
        poll_until(&mut bundle, "bytes of a segment", |_| answers.get() == round + 2);
        let mut bytes = vec![0; len];
        assert!(window.read(0, &mut bytes) && bytes == pattern(len));
    }
    let returns = returns_of(&mut bundle, here);
    bundle.map_unproven(here, 1, whole.name, Key::NONE).expect("map");
    let address = window.as_ptr().expose_provenance() as u64;
    let sent = bundle.request_long(here, 1, Long { handler: ECHO, args: &[], offset: address }, pattern(10));
    assert!(sent.is_ok(), "mapped");
    bundle.get(here, 1, Get { handler: ANSWER, args: &[], source: address, len: 10, offset: 0 }).expect("mapped");
    poll_until(&mut bundle, "two returns", |_| returns.borrow().len() == 2);
    for back in returns.borrow().iter() {
        assert_eq!((back.reason, back.certainty), (Reason::NoRight, Certainty::NotDelivered));
    }
    tell("done");
    let _ = orders.wait();
}

#[test]
fn other_users_put_and_get_what_they_may_and_nothing_in_a_whole_address_space_without_a_key() {
    let _turn = turn("long messages of another user");
    let (mut bundle, here, window, _) = open();
    let mine = window.clone();
    bundle
        .on(here, ECHO, move |m| {
            let placed = m.placed().expect("a long message");
            let mut bytes = vec![0; placed.len as usize];
            assert!(mine.read(placed.offset, &mut bytes) && bytes == pattern(bytes.len()));
            m.reply_long(Long { handler: ANSWER, args: &[], offset: 0 }, bytes).expect("a request");
        })
        .expect("on");
    let whole = bundle.endpoint_with_random_key().expect("endpoint");
    bundle.set_admission(whole, Admission::Anybody).expect("endpoint");
    // SAFETY: nothing is written there.
    let Ok(everything) = (unsafe { Window::whole_address_space() }) else {
        println!("left out: the kernel does not allow it");
        return;
    };
    bundle.set_segment(whole, Some(everything)).expect("endpoint");
    let addresses = [here, whole].map(|endpoint| Address::of(&bundle, endpoint).to_string());
    let guest = Peer::start("long_guest", &[&addresses[0], &addresses[1]]);
    let line = guest.hear_polling(&mut bundle);
    if !line.starts_with("left out") {
        assert_eq!(line, "done");
        guest.finish();
    }
}
