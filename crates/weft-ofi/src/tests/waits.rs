//! Waiting for queues and counters outside of libfabric's calls: by a descriptor, and by a mutex and a condition.

use super::*;
use std::sync::mpsc;
use std::thread;

/// Rounds of a test. In each the waiter should be asleep when the message is sent.
const ROUNDS: usize = 30;

/// Wakeups in vain that a wait may have: arrivals need not be for the queue.
const VAIN_MOST: usize = 100;

/// The wait object, as `FI_GETWAIT` returns it.
enum Object {
    Descriptor(c_int),
    MutexCond(MutexCondPlace),
}

// SAFETY: any thread may use the mutex and the condition.
unsafe impl Send for Object {}

impl Object {
    fn of(fid: *mut Fid, kind: c_int) -> Object {
        // SAFETY: an object that is open, and room for what it was opened with.
        let get = |place: *mut c_void| assert_eq!(unsafe { ((*fid).ops.control)(fid, CONTROL_GETWAIT, place) }, 0);
        match kind {
            WAIT_FD => {
                let mut fd = -1;
                get((&raw mut fd).cast());
                Object::Descriptor(fd)
            }
            _ => {
                let mut place = MutexCondPlace { mutex: null_mut(), cond: null_mut() };
                get((&raw mut place).cast());
                Object::MutexCond(place)
            }
        }
    }

    /// Waits at most so long, if `may_wait` returns true. Returns `None` if it did not wait, or else whether it was woken.
    fn wait(&self, most: Duration, may_wait: impl FnOnce() -> bool) -> Option<bool> {
        match self {
            Object::Descriptor(fd) => may_wait().then(|| {
                let mut asked = libc::pollfd { fd: *fd, events: libc::POLLIN, revents: 0 };
                // SAFETY: one descriptor that is open.
                unsafe { libc::poll(&mut asked, 1, most.as_millis() as c_int) == 1 }
            }),
            // SAFETY: both are there as long as the object is open, and the mutex is held around the wait.
            Object::MutexCond(place) => unsafe {
                libc::pthread_mutex_lock(place.mutex);
                let woken = may_wait().then(|| {
                    let mut until = std::mem::zeroed();
                    libc::clock_gettime(libc::CLOCK_REALTIME, &mut until);
                    until.tv_nsec += i64::from(most.subsec_nanos());
                    until.tv_sec += most.as_secs() as i64 + until.tv_nsec / 1_000_000_000;
                    until.tv_nsec %= 1_000_000_000;
                    libc::pthread_cond_timedwait(place.cond, place.mutex, &until) == 0
                });
                libc::pthread_mutex_unlock(place.mutex);
                woken
            },
        }
    }
}

impl Client {
    /// One endpoint that knows no peer, with a queue of that kind.
    fn with_waits(change: impl Fn(&mut Hints), kind: c_int) -> (Client, Object) {
        let mut client = Client::with(0, change, false);
        assert_eq!(closed(client.cq.cast()), 0);
        let (domain, mut cq) = (client.domain, null_mut());
        // SAFETY: a domain that is open, attributes, and a place.
        unsafe {
            let mut attr: CqAttr = std::mem::zeroed();
            (attr.format, attr.wait_obj) = (FORMAT_TAGGED, kind);
            assert_eq!(((*domain).ops.cq_open)(domain, &mut attr, &mut cq, null_mut()), 0);
        }
        client.cq = cq;
        client.open(false);
        (client, Object::of(cq.cast(), kind))
    }

    fn inserted(&self, address: &[u8]) -> u64 {
        let (av, mut number) = (self.av, 0);
        // SAFETY: an address vector that is open, an address, and a place for a number.
        let inserted = unsafe { ((*av).ops.insert)(av, address.as_ptr().cast(), 1, &mut number, 0, null_mut()) };
        assert_eq!(inserted, 1);
        number
    }

    fn try_wait(&self, fid: *mut Fid) -> c_int {
        let mut fids = [fid];
        // SAFETY: a fabric and an object that are open.
        unsafe { ((*self.fabric).ops.trywait)(self.fabric, fids.as_mut_ptr(), 1) }
    }

    /// Waits by the object until something completes. Returns the number of wakeups in vain.
    fn next_by(&self, object: &Object) -> usize {
        let mut vain = 0;
        loop {
            match self.try_next() {
                Ok(_) => return vain,
                Err(error) => assert_eq!(error, AGAIN),
            }
            let woken = object.wait(BOUND, || match self.try_wait(self.cq.cast()) {
                0 => true,
                error => {
                    assert_eq!(error, -libc::EAGAIN);
                    false
                }
            });
            assert_ne!(woken, Some(false), "nobody was woken");
            vain += usize::from(woken == Some(true));
            assert!(vain < VAIN_MOST, "woken again and again");
        }
    }

    /// Whether nobody is woken when nothing comes any more.
    fn is_silent(&self, object: &Object) -> bool {
        (0..VAIN_MOST).any(|_| {
            let woken = object.wait(Duration::from_millis(20), || self.try_wait(self.cq.cast()) == 0);
            woken == Some(false)
        })
    }
}

/// Runs a client in its own thread, which takes orders. It ends after the last order.
fn other(
    act: impl Fn(&Client, u64, usize) + Send + 'static,
    address: Vec<u8>,
    change: fn(&mut Hints),
) -> mpsc::Sender<usize> {
    let (orders, ordered) = mpsc::channel();
    thread::spawn(move || {
        let client = Client::unacquainted(change);
        let there = client.inserted(&address);
        for order in ordered {
            // So that the waiter is usually asleep.
            thread::sleep(Duration::from_millis(2));
            act(&client, there, order);
        }
    });
    orders
}

fn one_sided(hints: &mut Hints) {
    hints.info.caps = MSG | TAGGED | RMA | RMA_EVENT;
}

fn automatic(hints: &mut Hints) {
    plain_messages(hints);
    hints.domain.data_progress = PROGRESS_AUTO;
}

fn serialised(hints: &mut Hints) {
    one_sided(hints);
    hints.domain.threading = THREAD_DOMAIN;
}

fn send(client: &Client, there: u64, order: usize) {
    static BYTES: [u8; 100_000] = [1; 100_000];
    // Long ones need the receiver's help.
    let len = if order % 2 == 0 { 8 } else { BYTES.len() };
    assert_eq!(client.send(0, there, 1, &BYTES[..len], order), 0);
    client.next().expect("sent");
}

#[test]
fn a_client_that_waits_by_descriptor_or_condition_is_woken_by_arrivals() {
    for kind in [WAIT_FD, WAIT_MUTEX_COND] {
        for (change, registers) in
            [(plain_messages as fn(&mut Hints), false), (automatic, false), (one_sided, true), (serialised, true)]
        {
            let (waiter, object) = Client::with_waits(change, kind);
            let orders = other(send, waiter.address(0), plain_messages);
            let mut shared = [0u64; 2];
            let mut mr = null_mut();
            let mut room = vec![0u8; 100_000];
            for round in 0..ROUNDS {
                if registers && round == ROUNDS / 2 {
                    // From now on a thread serves the domain; the object stays.
                    let (domain, start) = (waiter.domain, shared.as_mut_ptr().cast());
                    // SAFETY: a domain that is open; the memory stays until the registration is closed.
                    let registered = unsafe {
                        ((*domain).mr.reg)(domain.cast(), start, 16, REMOTE_WRITE, 0, 1, 0, &mut mr, null_mut())
                    };
                    assert_eq!(registered, 0);
                }
                assert_eq!(waiter.receive(0, ADDR_UNSPEC, 1, 0, &mut room, round), 0);
                orders.send(round).expect("it is there");
                waiter.next_by(&object);
            }
            assert!(waiter.is_silent(&object));
            if !mr.is_null() {
                assert_eq!(closed(mr.cast()), 0);
            }
        }
    }
}

#[test]
fn a_waiting_client_is_woken_by_a_signal() {
    for kind in [WAIT_FD, WAIT_MUTEX_COND] {
        for change in [plain_messages as fn(&mut Hints), automatic] {
            let (waiter, object) = Client::with_waits(change, kind);
            assert!(waiter.is_silent(&object));
            let cq = waiter.cq as usize;
            let signaller = thread::spawn(move || {
                thread::sleep(Duration::from_millis(5));
                let cq = cq as *mut FidCq;
                // SAFETY: the queue is open until this thread is joined.
                assert_eq!(unsafe { ((*cq).ops.signal)(cq) }, 0);
            });
            // The signal may come before the wait.
            let woken = object.wait(BOUND, || waiter.try_wait(waiter.cq.cast()) == 0);
            signaller.join().expect("it ends");
            assert_ne!(woken, Some(false));
        }
    }
}

fn write_there(client: &Client, there: u64, order: usize) {
    let ep = client.eps[0];
    // SAFETY: an endpoint that is open, and bytes that stay.
    let written =
        unsafe { ((*ep).rma.write)(ep, b"counted!".as_ptr().cast(), 8, null_mut(), there, 0, 1, order as *mut c_void) };
    assert_eq!(written, 0);
    client.next().expect("written");
}

#[test]
fn a_client_that_waits_for_a_counter_is_woken_when_it_counts() {
    for kind in [WAIT_FD, WAIT_MUTEX_COND] {
        let waiter = Client::unacquainted(one_sided);
        let (domain, mut cntr, mut mr) = (waiter.domain, null_mut(), null_mut());
        let mut attr = CntrAttr { events: 0, wait_obj: kind, wait_set: null_mut(), flags: 0 };
        let memory = Box::into_raw(Box::new([0u64; 2]));
        // SAFETY: what is open, places, and memory that stays until the registration is closed.
        unsafe {
            assert_eq!(((*domain).ops.cntr_open)(domain, &mut attr, &mut cntr, null_mut()), 0);
            assert_eq!(
                ((*domain).mr.reg)(domain.cast(), memory.cast(), 16, REMOTE_WRITE, 0, 1, 0, &mut mr, null_mut()),
                0
            );
            let fid = mr.cast::<Fid>();
            assert_eq!(((*fid).ops.bind)(fid, cntr.cast(), REMOTE_WRITE), 0);
        }
        let object = Object::of(cntr.cast(), kind);
        let orders = other(write_there, waiter.address(0), one_sided);
        for round in 1..=ROUNDS as u64 {
            orders.send(round as usize).expect("it is there");
            let mut vain = 0;
            // SAFETY: a counter that is open.
            while unsafe { ((*cntr).ops.read)(cntr) } < round {
                let woken = object.wait(BOUND, || waiter.try_wait(cntr.cast()) == 0);
                assert_ne!(woken, Some(false), "nobody was woken");
                vain += 1;
                assert!(vain < VAIN_MOST, "woken again and again");
            }
        }
        drop(orders);
        assert_eq!((closed(mr.cast()), closed(cntr.cast())), (0, 0));
        // SAFETY: nobody writes there any more.
        drop(unsafe { Box::from_raw(memory) });
    }
}

/// A client for two threads, each of which makes its own calls.
struct Both(Client);

// SAFETY: the client's domain is for any number of threads, and its pointers are only read.
unsafe impl Sync for Both {}

/// Calls of a client that are news by themselves.
const OWN_CALLS: [fn(&Client, *mut FidCntr); 4] = [
    |client, _| assert_eq!(client.send(0, 0, 1, b"to itself", 3), 0),
    |client, _| {
        let mut room = [0; 8];
        // A miss, which is reported as an error in the queue.
        assert_eq!(client.look(0, 7, PEEK, &mut room, 4), 0);
    },
    |client, _| {
        let ep = client.eps[0].cast::<Fid>();
        // SAFETY: an endpoint that is open.
        assert_eq!(unsafe { ((*client.eps[0]).ops.cancel)(ep, 99 as *mut c_void) }, 0);
    },
    // SAFETY: a counter that is open.
    |_, cntr| assert_eq!(unsafe { ((*cntr).ops.add)(cntr, 1) }, 0),
];

#[test]
fn a_waiting_client_is_woken_by_calls_of_its_other_thread() {
    for kind in [WAIT_FD, WAIT_MUTEX_COND] {
        for change in [plain_messages as fn(&mut Hints), automatic] {
            for (which, call) in OWN_CALLS.into_iter().enumerate() {
                let (client, object) = Client::with_waits(change, kind);
                let mut attr = CntrAttr { events: 0, wait_obj: kind, wait_set: null_mut(), flags: 0 };
                let mut cntr = null_mut();
                // SAFETY: a domain that is open, attributes, and a place.
                let opened =
                    unsafe { ((*client.domain).ops.cntr_open)(client.domain, &mut attr, &mut cntr, null_mut()) };
                assert_eq!(opened, 0);
                assert_eq!(client.inserted(&client.address(0)), 0);
                let mut room = [0; 8];
                assert_eq!(client.receive(0, ADDR_UNSPEC, 5, 0, &mut room, 99), 0);
                let is_of_counter = which == OWN_CALLS.len() - 1;
                let counted = Object::of(cntr.cast(), kind);
                let (fid, object) =
                    if is_of_counter { (cntr.cast::<Fid>(), counted) } else { (client.cq.cast(), object) };
                assert!(client.is_silent(&object));
                let (fid, counter, both) = (fid as usize, cntr as usize, &Both(client));
                thread::scope(|scope| {
                    scope.spawn(move || {
                        thread::sleep(Duration::from_millis(3));
                        call(&both.0, counter as *mut FidCntr);
                    });
                    let fid = fid as *mut Fid;
                    for _ in 0..VAIN_MOST {
                        // Until there is something to look at.
                        let woken = object.wait(BOUND, || both.0.try_wait(fid) == 0);
                        assert_ne!(woken, Some(false), "call {which} of {kind} wakes nobody");
                        if woken.is_none() {
                            return;
                        }
                    }
                    panic!("woken again and again");
                });
                assert_eq!(closed(cntr.cast()), 0);
            }
        }
    }
}

#[test]
fn each_of_several_threads_is_woken_for_its_own_queue() {
    for kind in [WAIT_FD, WAIT_MUTEX_COND] {
        for (is_served, change) in [(false, plain_messages as fn(&mut Hints)), (true, automatic)] {
            let (mut client, first) = Client::with_waits(change, kind);
            let (domain, mut cq) = (client.domain, null_mut());
            // SAFETY: a domain that is open, attributes, and a place.
            unsafe {
                let mut attr: CqAttr = std::mem::zeroed();
                (attr.format, attr.wait_obj) = (FORMAT_TAGGED, kind);
                assert_eq!(((*domain).ops.cq_open)(domain, &mut attr, &mut cq, null_mut()), 0);
            }
            let second = Object::of(cq.cast(), kind);
            let queues = [std::mem::replace(&mut client.cq, cq), cq];
            client.open(false);
            let orders = [0, 1].map(|at| other(send, client.address(at), plain_messages));
            let (queues, mut whole) = (queues.map(|cq| cq as usize), Both(client));
            let both = &whole;
            thread::scope(|scope| {
                for (at, object) in [first, second].into_iter().enumerate() {
                    let orders = orders[at].clone();
                    scope.spawn(move || {
                        let mut room = vec![0u8; 100_000];
                        let cq = queues[at] as *mut FidCq;
                        for round in 0..ROUNDS {
                            assert_eq!(both.0.receive(at, ADDR_UNSPEC, 1, 0, &mut room, round), 0);
                            orders.send(round).expect("it is there");
                            let mut entry = CqEntry::default();
                            // SAFETY: a queue that is open, and room for one.
                            while unsafe { ((*cq).ops.read)(cq, (&raw mut entry).cast(), 1) } != 1 {
                                let woken = object.wait(BOUND, || both.0.try_wait(cq.cast()) == 0);
                                assert_ne!(
                                    woken,
                                    Some(false),
                                    "queue {at}, round {round}, kind {kind}, served {is_served}"
                                );
                            }
                        }
                    });
                }
            });
            drop(orders);
            assert_eq!(closed(whole.0.eps.remove(0).cast()), 0);
            assert_eq!(closed(queues[0] as *mut Fid), 0);
        }
    }
}

#[test]
fn a_client_that_has_a_mutex_may_open_and_close_others_and_write_events() {
    for change in [plain_messages as fn(&mut Hints), serialised] {
        let (client, object) = Client::with_waits(change, WAIT_MUTEX_COND);
        let Object::MutexCond(place) = &object else { panic!("it was asked for") };
        // SAFETY: the mutex is there as long as the queue; what is opened is open.
        unsafe {
            assert_eq!(libc::pthread_mutex_lock(place.mutex), 0);
            for kind in [WAIT_FD, WAIT_MUTEX_COND] {
                let mut cq = null_mut();
                let mut attr: CqAttr = std::mem::zeroed();
                attr.wait_obj = kind;
                assert_eq!(((*client.domain).ops.cq_open)(client.domain, &mut attr, &mut cq, null_mut()), 0);
                Object::of(cq.cast(), kind);
                assert_eq!(closed(cq.cast()), 0);
            }
            assert_eq!(libc::pthread_mutex_unlock(place.mutex), 0);
        }
        let mut attr = EqAttr { size: 4, flags: WRITE, wait_obj: WAIT_MUTEX_COND };
        let mut eq = null_mut();
        // SAFETY: a fabric that is open, attributes, and a place; then a queue that is open, and its mutex.
        unsafe {
            assert_eq!(((*client.fabric).ops.eq_open)(client.fabric, &mut attr, &mut eq, null_mut()), 0);
            let Object::MutexCond(place) = Object::of(eq.cast(), WAIT_MUTEX_COND) else { panic!("it was asked for") };
            assert_eq!(libc::pthread_mutex_lock(place.mutex), 0);
            assert_eq!(((*eq).ops.write)(eq, 3, b"".as_ptr().cast(), 0, 0), 0);
            assert_eq!(libc::pthread_mutex_unlock(place.mutex), 0);
        }
        assert_eq!(closed(eq.cast()), 0);
    }
}

#[test]
fn an_event_wakes_a_client_that_waits_by_a_condition() {
    let client = Client::with(0, plain_messages, false);
    let mut attr = EqAttr { size: 4, flags: WRITE, wait_obj: WAIT_MUTEX_COND };
    let mut eq = null_mut();
    // SAFETY: a fabric that is open, attributes, and a place.
    assert_eq!(unsafe { ((*client.fabric).ops.eq_open)(client.fabric, &mut attr, &mut eq, null_mut()) }, 0);
    let object = Object::of(eq.cast(), WAIT_MUTEX_COND);
    let place = eq as usize;
    let writer = thread::spawn(move || {
        let eq = place as *mut FidEq;
        // SAFETY: the queue is open until this thread is joined.
        assert_eq!(unsafe { ((*eq).ops.write)(eq, 3, b"".as_ptr().cast(), 0, 0) }, 0);
    });
    while client.try_wait(eq.cast()) == 0 {
        assert_ne!(object.wait(BOUND, || client.try_wait(eq.cast()) == 0), Some(false));
    }
    writer.join().expect("it ends");
    assert_eq!(closed(eq.cast()), 0);
}
