//! The provider as a client sees it: everything goes through the tables of calls, as from C.

use crate::abi::*;
use crate::addr::ADDRESS_BYTES;
use std::ffi::{c_int, c_void};
use std::ptr::{null, null_mut};
use std::time::{Duration, Instant};

mod memory;
mod queues;
mod waits;

const BOUND: Duration = Duration::from_secs(30);
const AGAIN: isize = -(libc::EAGAIN as isize);

/// Hints for `fi_getinfo`, whose structures the test may change.
struct Hints {
    info: Info,
    tx: TxAttr,
    rx: RxAttr,
    ep: EpAttr,
    domain: DomainAttr,
    fabric: FabricAttr,
}

impl Hints {
    fn none() -> Box<Hints> {
        // SAFETY: zero is a value of each; the tables' references are not among them.
        let mut hints: Box<Hints> = Box::new(unsafe { std::mem::zeroed() });
        hints.info.tx_attr = &raw mut hints.tx;
        hints.info.rx_attr = &raw mut hints.rx;
        hints.info.ep_attr = &raw mut hints.ep;
        hints.info.domain_attr = &raw mut hints.domain;
        hints.info.fabric_attr = &raw mut hints.fabric;
        hints
    }

    fn find(&self) -> Result<&'static mut Info, c_int> {
        let mut found = null_mut();
        // SAFETY: the hints are complete.
        match unsafe { (provider().getinfo)(version(1, 17), null(), null(), 0, &self.info, &mut found) } {
            // SAFETY: it was found. The tests never free it.
            0 => Ok(unsafe { &mut *found }),
            error => Err(error),
        }
    }
}

fn provider() -> &'static Provider {
    // SAFETY: it is static, and nobody writes it here.
    unsafe { &*crate::fi_prov_ini().cast::<Provider>() }
}

/// A domain with endpoints that know each other and share a queue.
struct Client {
    info: *mut Info,
    fabric: *mut FidFabric,
    domain: *mut FidDomain,
    av: *mut FidAv,
    cq: *mut FidCq,
    eps: Vec<*mut FidEp>,
}

fn closed(fid: *mut Fid) -> c_int {
    // SAFETY: it is open, and not used after this.
    unsafe { ((*fid).ops.close)(fid) }
}

impl Client {
    fn new(count: usize, change: impl Fn(&mut Hints), selective: bool) -> Client {
        let client = Client::with(count, change, selective);
        for at in 0..count {
            let (av, address, mut number) = (client.av, client.address(at), 0);
            // SAFETY: an address vector that is open, an address, and a place for a number.
            let inserted = unsafe { ((*av).ops.insert)(av, address.as_ptr().cast(), 1, &mut number, 0, null_mut()) };
            assert_eq!((inserted, number), (1, at as u64));
        }
        client
    }

    /// One with a single endpoint, which knows no peer.
    fn unacquainted(change: impl Fn(&mut Hints)) -> Client {
        Client::with(1, change, false)
    }

    fn with(count: usize, change: impl Fn(&mut Hints), selective: bool) -> Client {
        let mut hints = Hints::none();
        change(&mut hints);
        let info = hints.find().expect("it suits");
        let (mut fabric, mut domain, mut av, mut cq) = (null_mut(), null_mut(), null_mut(), null_mut());
        // SAFETY: as a client calls them, with places for what is opened; here and below.
        unsafe {
            assert_eq!((provider().fabric)(info.fabric_attr, &mut fabric, null_mut()), 0);
            assert_eq!(((*fabric).ops.domain)(fabric, info, &mut domain, null_mut()), 0);
            let mut attr: AvAttr = std::mem::zeroed();
            assert_eq!(((*domain).ops.av_open)(domain, &mut attr, &mut av, null_mut()), 0);
            let mut attr: CqAttr = std::mem::zeroed();
            (attr.format, attr.wait_obj) = (FORMAT_TAGGED, WAIT_UNSPEC);
            assert_eq!(((*domain).ops.cq_open)(domain, &mut attr, &mut cq, null_mut()), 0);
        }
        let mut client = Client { info, fabric, domain, av, cq, eps: Vec::new() };
        (0..count).for_each(|_| client.open(selective));
        client
    }

    /// Opens one more endpoint.
    fn open(&mut self, selective: bool) {
        let (domain, mut ep) = (self.domain, null_mut());
        let selective = if selective { SELECTIVE_COMPLETION } else { 0 };
        // SAFETY: as a client calls them.
        unsafe {
            assert_eq!(((*domain).ops.endpoint)(domain, self.info, &mut ep, null_mut()), 0);
            let fid = ep.cast::<Fid>();
            let enable = |fid: *mut Fid| ((*fid).ops.control)(fid, CONTROL_ENABLE, null_mut());
            assert_eq!(enable(fid), -ENOAV);
            assert_eq!(((*fid).ops.bind)(fid, self.av.cast(), 0), 0);
            assert_eq!(enable(fid), -ENOCQ);
            assert_eq!(((*fid).ops.bind)(fid, self.cq.cast(), TRANSMIT | RECV | selective), 0);
            assert_eq!(enable(fid), 0);
        }
        self.eps.push(ep);
    }

    fn address(&self, ep: usize) -> Vec<u8> {
        let (ep, mut len) = (self.eps[ep], 0);
        // SAFETY: an endpoint that is open; nothing is written where there is no room.
        let getname = |place: *mut c_void, len: &mut usize| unsafe { ((*ep).cm.getname)(ep.cast(), place, len) };
        assert_eq!(getname(null_mut(), &mut len), -ETOOSMALL);
        let mut address = vec![0; len];
        assert_eq!(getname(address.as_mut_ptr().cast(), &mut len), 0);
        address
    }

    fn send(&self, from: usize, to: u64, tag: u64, bytes: &'static [u8], context: usize) -> isize {
        let ep = self.eps[from];
        // SAFETY: the bytes stay.
        unsafe {
            ((*ep).tagged.send)(ep, bytes.as_ptr().cast(), bytes.len(), null_mut(), to, tag, context as *mut c_void)
        }
    }

    fn receive(&self, at: usize, from: u64, tag: u64, ignore: u64, room: &mut [u8], context: usize) -> isize {
        let (ep, len) = (self.eps[at], room.len());
        let room = room.as_mut_ptr().cast();
        // SAFETY: the tests keep what they receive into until its completion.
        unsafe { ((*ep).tagged.recv)(ep, room, len, null_mut(), from, tag, ignore, context as *mut c_void) }
    }

    fn look(&self, at: usize, tag: u64, flags: u64, room: &mut [u8], context: usize) -> isize {
        self.look_into(at, tag, flags, &mut [room], context)
    }

    /// The same, into several pieces.
    fn look_into(&self, at: usize, tag: u64, flags: u64, rooms: &mut [&mut [u8]], context: usize) -> isize {
        let ep = self.eps[at];
        let piece = |room: &mut &mut [u8]| libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
        let pieces: Vec<_> = rooms.iter_mut().map(piece).collect();
        let context = context as *mut c_void;
        let args = TaggedArgs {
            iov: pieces.as_ptr(),
            desc: null_mut(),
            iov_count: pieces.len(),
            addr: ADDR_UNSPEC,
            tag,
            ignore: 0,
            context,
            data: 0,
        };
        // SAFETY: as in `receive`.
        unsafe { ((*ep).tagged.recvmsg)(ep, &args, flags) }
    }

    fn try_next(&self) -> Result<(CqEntry, u64), isize> {
        let (mut entry, mut source) = (CqEntry::default(), 0);
        // SAFETY: there is room for one.
        match unsafe { ((*self.cq).ops.readfrom)(self.cq, (&raw mut entry).cast(), 1, &mut source) } {
            1 => Ok((entry, source)),
            error => Err(error),
        }
    }

    /// The next completion, with its source, or the reported error.
    fn next(&self) -> Result<(CqEntry, u64), CqErrEntry> {
        let begin = Instant::now();
        loop {
            match self.try_next() {
                Ok(next) => return Ok(next),
                Err(AGAIN) => assert!(begin.elapsed() < BOUND, "nothing completes"),
                Err(error) => {
                    assert_eq!(error, -(EAVAIL as isize));
                    // SAFETY: zero is a value of it.
                    let mut told: CqErrEntry = unsafe { std::mem::zeroed() };
                    // SAFETY: there is room for one.
                    assert_eq!(unsafe { ((*self.cq).ops.readerr)(self.cq, &mut told, 0) }, 1);
                    return Err(told);
                }
            }
        }
    }

    /// The next `count` completions, sorted by context.
    fn next_few(&self, count: usize) -> Vec<(CqEntry, u64)> {
        let mut few: Vec<_> = (0..count).map(|_| self.next().expect("no error")).collect();
        few.sort_by_key(|(entry, _)| entry.op_context);
        few
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        for fid in [self.domain.cast(), self.fabric.cast()] {
            assert_eq!(closed(fid), -libc::EBUSY, "there is something in it");
        }
        for &ep in &self.eps {
            assert_eq!(closed(ep.cast()), 0);
        }
        for fid in [self.cq.cast(), self.av.cast(), self.domain.cast(), self.fabric.cast()] {
            assert_eq!(closed(fid), 0);
        }
    }
}

fn plain(_: &mut Hints) {}

fn directed(hints: &mut Hints) {
    hints.info.caps = MSG | TAGGED | DIRECTED_RECV | SOURCE;
}

#[test]
fn getinfo_returns_the_wishes_or_no_data() {
    let mut hints = Hints::none();
    hints.domain.threading = THREAD_DOMAIN;
    hints.domain.control_progress = PROGRESS_MANUAL;
    hints.domain.av_type = AV_MAP;
    let found = hints.find().expect("it suits");
    // SAFETY: it was found, with its parts.
    let domain = unsafe { &*found.domain_attr };
    assert_eq!((domain.threading, domain.control_progress, domain.av_type), (THREAD_DOMAIN, PROGRESS_MANUAL, AV_MAP));
    assert!(found.next.is_null() && provider().fi_version >= version(2, 9));
    type Wish = fn(&mut Hints);
    let impossible: [Wish; 6] = [
        |hints| hints.info.caps = 1 << 5,
        |hints| hints.ep.kind = 1,
        |hints| hints.info.addr_format = 2,
        |hints| hints.tx.inject_size = 1 << 30,
        |hints| hints.tx.msg_order = 1 << 7,
        |hints| hints.domain.max_ep_tx_ctx = 2,
    ];
    for change in impossible {
        let mut hints = Hints::none();
        change(&mut hints);
        assert_eq!(hints.find().err(), Some(-libc::ENODATA));
    }
}

#[test]
fn messages_arrive_with_tag_data_and_source() {
    let client = Client::new(2, directed, false);
    let mut room = [0u8; 16];
    assert_eq!(client.receive(1, ADDR_UNSPEC, 0x10, 0xf, &mut room, 1), 0);
    assert_eq!(client.send(0, 1, 0x17, b"hello", 2), 0);
    let done = client.next_few(2);
    let (received, source) = done[0];
    assert_eq!((received.op_context, received.tag, received.len, source), (1, 0x17, 5, 0));
    assert_eq!((received.flags, received.buf), (RECV | TAGGED, room.as_ptr() as usize));
    assert_eq!((done[1].0.op_context, done[1].0.flags), (2, SEND | TAGGED));
    assert_eq!(&room[..5], b"hello");
    // Without a tag, in pieces, with data.
    let (ep, other) = (client.eps[0], client.eps[1]);
    let pieces = [libc::iovec { iov_base: b"ab".as_ptr() as *mut c_void, iov_len: 2 }; 2];
    let args =
        MsgArgs { iov: pieces.as_ptr(), desc: null_mut(), iov_count: 2, addr: 1, context: 3 as *mut c_void, data: 77 };
    let mut halves = [0u8; 6];
    let (first, second) = halves.split_at_mut(3);
    let into = [first, second].map(|half| libc::iovec { iov_base: half.as_mut_ptr().cast(), iov_len: half.len() });
    // SAFETY: all of it stays until the completions.
    unsafe {
        assert_eq!(((*other).msg.recvv)(other, into.as_ptr(), null_mut(), 2, 0, 4 as *mut c_void), 0);
        assert_eq!(((*ep).msg.sendmsg)(ep, &args, REMOTE_CQ_DATA), 0);
    }
    let done = client.next_few(2);
    assert_eq!((done[1].0.data, done[1].0.flags, done[1].0.len), (77, RECV | MSG | REMOTE_CQ_DATA, 4));
    assert_eq!(&halves, b"abab\0\0");
}

#[test]
fn a_directed_receive_takes_its_source_only() {
    let client = Client::new(3, directed, false);
    let mut rooms = [[0u8; 4]; 2];
    assert_eq!(client.receive(2, 1, 5, 0, &mut rooms[0], 1), 0);
    assert_eq!(client.receive(2, ADDR_UNSPEC, 5, 0, &mut rooms[1], 2), 0);
    assert_eq!((client.send(0, 2, 5, b"zero", 3), client.send(1, 2, 5, b"one!", 4)), (0, 0));
    let done = client.next_few(4);
    assert_eq!((done[0].1, done[1].1), (1, 0));
    assert_eq!((&rooms[0], &rooms[1]), (b"one!", b"zero"));
    // A client that did not ask for directed receives does not get them.
    let client = Client::new(2, plain_messages, false);
    assert_eq!(client.receive(1, 77, 5, 0, &mut rooms[0], 1), 0);
    assert_eq!(client.send(0, 1, 5, b"any.", 2), 0);
    client.next_few(2);
    assert_eq!(&rooms[0], b"any.");
}

fn plain_messages(hints: &mut Hints) {
    hints.info.caps = MSG | TAGGED;
}

#[test]
fn only_what_asks_for_it_completes_at_a_selective_queue() {
    let client = Client::new(2, plain, true);
    let mut room = [0u8; 8];
    assert_eq!(client.receive(1, ADDR_UNSPEC, 1, 0, &mut room, 1), 0);
    assert_eq!(client.send(0, 1, 1, b"quiet", 2), 0);
    let begin = Instant::now();
    // SAFETY: room of ours, which is written within the calls below.
    while unsafe { room.as_ptr().read_volatile() } == 0 {
        assert_eq!(client.try_next().err(), Some(AGAIN));
        assert!(begin.elapsed() < BOUND, "it does not come");
    }
    assert_eq!(&room[..5], b"quiet");
    assert_eq!(client.look(1, 2, COMPLETION, &mut room, 3), 0);
    assert_eq!(client.send(0, 1, 2, b"aloud", 4), 0);
    assert_eq!(client.next().expect("a completion").0.op_context, 3);
    assert_eq!(client.try_next().err(), Some(AGAIN));
}

#[test]
fn messages_are_looked_at_taken_out_and_dropped() {
    let client = Client::new(2, plain, false);
    let mut room = [0u8; 8];
    assert_eq!(client.look(1, 1, PEEK, &mut [], 1), 0);
    assert_eq!(client.next().expect_err("there is none").err, libc::ENOMSG);
    for (tag, bytes) in [(1, b"first".as_slice()), (2, b"second"), (3, b"third")] {
        assert_eq!(client.send(0, 1, tag, bytes, 9), 0);
    }
    client.next_few(3);
    // They come in order, so after the last one all are there.
    let begin = Instant::now();
    loop {
        assert_eq!(client.look(1, 3, PEEK, &mut [], 1), 0);
        match client.next() {
            Ok(_) => break,
            Err(told) => assert!(told.err == libc::ENOMSG && begin.elapsed() < BOUND),
        }
    }
    assert_eq!(client.look(1, 2, PEEK, &mut [], 1), 0);
    let (peeked, source) = client.next().expect("it is there");
    assert_eq!((peeked.op_context, peeked.len, peeked.tag, source), (1, 6, 2, 0));
    assert_eq!(client.look(1, 2, PEEK | CLAIM, &mut [], 2), 0);
    assert_eq!(client.next().expect("it is there").0.len, 6);
    assert_eq!(client.look(1, 2, PEEK, &mut [], 3), 0);
    assert_eq!(client.next().expect_err("it is taken out").err, libc::ENOMSG);
    assert_eq!(client.look(1, 2, CLAIM, &mut room, 2), 0);
    assert_eq!((client.next().expect("received").0.len, &room[..6]), (6, b"second".as_slice()));
    assert_eq!(client.send(0, 1, 2, b"in two", 9), 0);
    client.next().expect("sent");
    while client.look(1, 2, PEEK | CLAIM, &mut [], 2) == 0 && client.next().is_err() {
        assert!(begin.elapsed() < BOUND);
    }
    let (mut one, mut other) = ([0u8; 3], [0u8; 9]);
    assert_eq!(client.look_into(1, 2, CLAIM, &mut [&mut one, &mut other], 2), 0);
    assert_eq!((client.next().expect("received").0.len, &one, &other[..3]), (6, b"in ", b"two".as_slice()));
    assert_eq!(client.look(1, 1, PEEK | DISCARD, &mut [], 4), 0);
    assert_eq!(client.next().expect("dropped").0.len, 5);
    assert_eq!(client.look(1, 3, PEEK | CLAIM, &mut [], 5), 0);
    client.next().expect("it is there");
    assert_eq!(client.look(1, 3, CLAIM | DISCARD, &mut [], 5), 0);
    let (dropped, _) = client.next().expect("dropped");
    assert_eq!((dropped.op_context, dropped.tag, dropped.flags), (5, 3, RECV | TAGGED));
    for tag in 1..4 {
        assert_eq!(client.look(1, tag, PEEK, &mut [], 6), 0);
        let told = client.next().expect_err("all are gone");
        assert_eq!((told.err, told.entry.op_context, told.entry.tag), (libc::ENOMSG, 6, tag));
    }
}

#[test]
fn receives_are_cancelled_and_messages_that_are_too_long_truncated() {
    let client = Client::new(2, plain, false);
    let (mut room, ep) = ([0u8; 4], client.eps[1]);
    assert_eq!(client.receive(1, ADDR_UNSPEC, 1, 0, &mut room, 1), 0);
    // SAFETY: an endpoint that is open.
    let cancel = |context: usize| unsafe { ((*ep).ops.cancel)(ep.cast(), context as *mut c_void) };
    assert_eq!((cancel(7), cancel(1)), (0, 0));
    let told = client.next().expect_err("cancelled");
    assert_eq!((told.err, told.entry.op_context), (libc::ECANCELED, 1));
    assert_eq!(client.receive(1, ADDR_UNSPEC, 1, 0, &mut room, 2), 0);
    assert_eq!(client.send(0, 1, 1, b"too long", 3), 0);
    assert_eq!(client.next().expect("sent").0.op_context, 3);
    let told = client.next().expect_err("truncated");
    assert_eq!((told.err, told.entry.op_context, told.entry.len, told.olen), (ETRUNC, 2, 4, 4));
    assert_eq!(&room, b"too ");
}

#[test]
fn one_buffer_takes_many_messages() {
    let client = Client::new(2, plain, false);
    let (ep, sender) = (client.eps[1], client.eps[0]);
    let (least, mut room) = (64usize, [0u8; 256]);
    let iov = libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
    let args =
        MsgArgs { iov: &iov, desc: null_mut(), iov_count: 1, addr: ADDR_UNSPEC, context: 7 as *mut c_void, data: 0 };
    // SAFETY: all of it stays until the completions.
    unsafe {
        let value = (&raw const least).cast();
        assert_eq!(((*ep).ops.setopt)(ep.cast(), OPT_ENDPOINT, OPT_MIN_MULTI_RECV, value, size_of::<usize>()), 0);
        assert_eq!(((*ep).msg.recvmsg)(ep, &args, MULTI_RECV), 0);
        for byte in 1..4u8 {
            let bytes = [byte; 80];
            assert_eq!(((*sender).msg.inject)(sender, bytes.as_ptr().cast(), 80, 1), 0);
        }
    }
    for byte in 1..4u8 {
        let (entry, _) = client.next().expect("a message");
        let at = entry.buf - room.as_ptr() as usize;
        assert_eq!((entry.op_context, entry.len, room[at..at + 80] == [byte; 80]), (7, 80, true));
        assert_eq!(entry.flags & MULTI_RECV != 0, byte == 3, "the last releases it");
    }
}

#[test]
fn messages_of_any_length_and_stored_ones_complete() {
    let client = Client::new(2, |hints| hints.tx.op_flags = DELIVERY_COMPLETE, false);
    static CONTENTS: [u8; 1 << 20] = [7; 1 << 20];
    for len in [0, 1, 4096, 4097, 16 << 10, 100_000, 1 << 20] {
        let mut room = vec![0u8; len];
        assert_eq!(client.send(0, 1, 1, &CONTENTS[..len], 2), 0);
        assert_eq!(client.receive(1, ADDR_UNSPEC, 1, 0, &mut room, 1), 0);
        let done = client.next_few(2);
        assert_eq!((done[0].0.op_context, done[0].0.len, done[1].0.op_context), (1, len, 2));
        assert!(room.iter().all(|&byte| byte == 7));
    }
}

#[test]
fn a_waiting_read_is_woken_or_times_out() {
    let client = Client::new(2, plain, false);
    let mut room = [0u8; 8];
    assert_eq!(client.receive(1, ADDR_UNSPEC, 1, 0, &mut room, 1), 0);
    let mut entry = CqEntry::default();
    // SAFETY: there is room for one.
    let mut wait =
        |timeout| unsafe { ((*client.cq).ops.sread)(client.cq, (&raw mut entry).cast(), 1, null(), timeout) };
    let begin = Instant::now();
    assert_eq!(wait(20), AGAIN);
    assert!(begin.elapsed() >= Duration::from_millis(20));
    assert_eq!(client.send(0, 1, 1, b"now", 2), 0);
    assert_eq!((wait(10_000), wait(10_000)), (1, 1));
}

#[test]
fn a_descriptor_and_a_counter_tell_what_has_ended() {
    let mut client = Client::new(2, plain, false);
    let (mut cq, mut cntr) = (null_mut(), null_mut());
    // SAFETY: as a client calls them, with places for the opened objects. The queue here belongs to no client.
    unsafe {
        let domain = client.domain;
        let mut attr: CqAttr = std::mem::zeroed();
        (attr.format, attr.wait_obj) = (FORMAT_CONTEXT, WAIT_FD);
        assert_eq!(((*domain).ops.cq_open)(domain, &mut attr, &mut cq, null_mut()), 0);
        assert_eq!(((*domain).ops.cntr_open)(domain, null_mut(), &mut cntr, null_mut()), 0);
        for &ep in &client.eps {
            let ep = ep.cast::<Fid>();
            assert_eq!(((*ep).ops.bind)(ep, cq.cast(), TRANSMIT | RECV), 0);
            assert_eq!(((*ep).ops.bind)(ep, cntr.cast(), TRANSMIT | RECV), 0);
        }
    }
    let mut fd: c_int = -1;
    // SAFETY: a queue that is open, with a descriptor.
    assert_eq!(unsafe { ((*cq).fid.ops.control)(cq.cast(), CONTROL_GETWAIT, (&raw mut fd).cast()) }, 0);
    let try_wait = || {
        let mut fids: [*mut Fid; 1] = [cq.cast()];
        // SAFETY: one queue that is open.
        unsafe { ((*client.fabric).ops.trywait)(client.fabric, fids.as_mut_ptr(), 1) }
    };
    let mut room = [0u8; 8];
    assert_eq!(client.receive(1, ADDR_UNSPEC, 1, 0, &mut room, 1), 0);
    let begin = Instant::now();
    while try_wait() != 0 {
        assert!(begin.elapsed() < BOUND, "it is never quiet");
    }
    let mut polled = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    assert_eq!(client.send(0, 1, 1, b"now", 2), 0);
    let mut contexts = Vec::new();
    while contexts.len() < 2 {
        assert!(begin.elapsed() < BOUND, "nothing completes");
        let mut context = 0usize;
        // SAFETY: there is room for one of that format.
        match unsafe { ((*cq).ops.read)(cq, (&raw mut context).cast(), 1) } {
            1 => contexts.push(context),
            AGAIN if try_wait() == 0 => {
                // SAFETY: one descriptor that is open.
                unsafe { libc::poll(&mut polled, 1, 1000) };
            }
            other => assert_eq!(other, AGAIN),
        }
    }
    contexts.sort_unstable();
    assert_eq!(contexts, [1, 2]);
    // SAFETY: a counter that is open.
    unsafe {
        assert_eq!(((*cntr).ops.wait)(cntr, 2, 10_000), 0);
        assert_eq!((((*cntr).ops.read)(cntr), ((*cntr).ops.readerr)(cntr)), (2, 0));
        assert_eq!(((*cntr).ops.wait)(cntr, 3, 1), -libc::ETIMEDOUT);
    }
    // They are in use until the endpoints are closed.
    assert_eq!(closed(cq.cast()), -libc::EBUSY);
    for ep in client.eps.drain(..) {
        assert_eq!(closed(ep.cast()), 0);
    }
    assert_eq!((closed(cntr.cast()), closed(cq.cast())), (0, 0));
}

/// Two clients with an endpoint each, that know each other at number 0.
fn two_clients() -> [Client; 2] {
    let clients = [(); 2].map(|()| Client::unacquainted(directed));
    for (client, other) in [(0, 1), (1, 0)] {
        let (av, address, mut number) = (clients[client].av, clients[other].address(0), 7);
        // SAFETY: an address vector that is open, an address, and a place for a number.
        let inserted = unsafe { ((*av).ops.insert)(av, address.as_ptr().cast(), 1, &mut number, 0, null_mut()) };
        assert_eq!((inserted, number), (1, 0));
    }
    clients
}

/// A sender may sleep once it has read the completion of its send.
#[test]
fn a_completed_send_needs_no_more_calls_of_its_sender() {
    for injects in [false, true] {
        let [a, b] = two_clients();
        let mut room = [0; 4];
        assert_eq!(b.receive(0, ADDR_UNSPEC, 1, 0, &mut room, 1), 0);
        if injects {
            let ep = a.eps[0];
            // SAFETY: the bytes are there.
            let inject = || unsafe { ((*ep).tagged.inject)(ep, b"away".as_ptr().cast(), 4, 0, 1) };
            let begin = Instant::now();
            while inject() == AGAIN {
                assert!(begin.elapsed() < BOUND, "it cannot be sent");
            }
        } else {
            assert_eq!(a.send(0, 0, 1, b"away", 2), 0);
            assert_eq!(a.next().expect("sent").0.op_context, 2);
        }
        assert_eq!(b.next().expect("received").0.len, 4);
        assert_eq!(&room, b"away");
    }
}

#[test]
fn a_message_of_64_kib_needs_no_more_calls_of_its_sender() {
    static CONTENTS: [u8; 64 << 10] = [7; 64 << 10];
    let [a, b] = two_clients();
    for (tag, len) in [(1, 4), (2, (16 << 10) + 1), (3, 64 << 10)] {
        let mut room = vec![0; len];
        assert_eq!(b.receive(0, ADDR_UNSPEC, tag, 0, &mut room, 1), 0);
        assert_eq!(a.send(0, 0, tag, &CONTENTS[..len], 2), 0);
        if tag == 1 {
            // Now there is a session.
            assert_eq!(a.next().expect("sent").0.op_context, 2);
        }
        assert_eq!(b.next().expect("received").0.len, len);
        assert_eq!(room, CONTENTS[..len]);
    }
}

/// Clients take the context of an error for a request of theirs, so there is none without one.
#[test]
fn an_injected_message_that_comes_back_fails_the_next_injection() {
    let [a, mut b] = two_clients();
    let mut room = [0; 8];
    assert_eq!(b.receive(0, ADDR_UNSPEC, 1, 0, &mut room, 1), 0);
    assert_eq!(a.send(0, 0, 1, b"first", 2), 0);
    assert_eq!(a.next().expect("sent").0.op_context, 2);
    assert_eq!(b.next().expect("received").0.len, 5);
    assert_eq!(closed(b.eps.pop().expect("one").cast()), 0);
    drop(b);
    let ep = a.eps[0];
    // SAFETY: the bytes are there.
    let inject = || unsafe { ((*ep).tagged.inject)(ep, b"away".as_ptr().cast(), 4, 0, 1) };
    let begin = Instant::now();
    let failed = loop {
        assert!(begin.elapsed() < BOUND, "no injection fails");
        assert_eq!(a.try_next().map(|_| ()), Err(AGAIN), "an error without a context");
        let result = inject();
        if result != 0 && result != AGAIN {
            break result;
        }
    };
    assert_eq!(failed, -(libc::ECONNREFUSED as isize));
    assert_eq!(a.send(0, 0, 1, b"third", 4), 0);
    assert_eq!(a.next().expect_err("nobody is there").entry.op_context, 4);
}

#[test]
fn receives_outlive_a_peer_that_leaves_in_good_order() {
    let [a, mut b] = two_clients();
    let (mut first, mut second, mut third) = ([0; 8], [0; 8], [0; 8]);
    assert_eq!(a.receive(0, 0, 1, 0, &mut first, 1), 0);
    assert_eq!(a.receive(0, 0, 2, 0, &mut second, 2), 0);
    assert_eq!(a.receive(0, ADDR_UNSPEC, 3, 0, &mut third, 3), 0);
    assert_eq!(b.send(0, 0, 1, b"bye", 9), 0);
    assert_eq!(b.next().expect("sent").0.op_context, 9);
    assert_eq!(closed(b.eps.pop().expect("one").cast()), 0);
    drop(b);
    assert_eq!(a.next().expect("received").0.op_context, 1);
    // Long enough to learn of the end.
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(300) {
        assert_eq!(a.try_next().map(|_| ()), Err(AGAIN), "a receive failed");
    }
    // A sender learns that nobody is left there.
    assert_eq!(a.send(0, 0, 1, b"hello?", 4), 0);
    let error = a.next().expect_err("nobody is there");
    assert_eq!((error.entry.op_context, error.err), (4, libc::ECONNREFUSED));
    // The receives still belong to the client.
    for context in [2, 3] {
        let ep = a.eps[0].cast::<Fid>();
        // SAFETY: an endpoint that is open.
        assert_eq!(unsafe { ((*a.eps[0]).ops.cancel)(ep, context as *mut c_void) }, 0);
        let error = a.next().expect_err("it was cancelled");
        assert_eq!((error.entry.op_context, error.err), (context, libc::ECANCELED));
    }
}

/// More messages than a receiver has room for, sent before anything is received, and then received backwards.
#[test]
fn a_flood_is_sent_and_received_in_any_order() {
    const FLOOD: u64 = 20_000;
    let [a, b] = two_clients();
    for tag in 0..FLOOD {
        assert_eq!(a.send(0, 0, tag, b"one of many", 1), 0);
        a.next().expect("it is copied");
    }
    let mut room = [0; 16];
    for tag in (0..FLOOD).rev() {
        assert_eq!(b.receive(0, 0, tag, 0, &mut room, tag as usize), 0);
        let begin = Instant::now();
        let (done, _) = loop {
            match b.try_next() {
                Ok(done) => break done,
                Err(error) => assert_eq!(error, AGAIN),
            }
            assert_eq!(a.try_next().map(|_| ()), Err(AGAIN));
            assert!(begin.elapsed() < BOUND, "{tag} does not come");
        };
        assert_eq!((done.op_context, done.tag, done.len), (tag as usize, tag, 11));
    }
}

/// A sender may also sleep after it has read the completions of more sends than there is room for.
#[test]
fn a_flood_arrives_though_its_sender_makes_no_more_calls() {
    const FLOOD: u64 = 20_000;
    let [a, b] = two_clients();
    for tag in 0..FLOOD {
        assert_eq!(a.send(0, 0, tag, b"one of many", 1), 0);
        a.next().expect("it is copied");
    }
    let mut room = [0; 16];
    for tag in 0..FLOOD {
        assert_eq!(b.receive(0, 0, tag, 0, &mut room, tag as usize), 0);
        assert_eq!(b.next().expect("received").0.tag, tag);
    }
}

/// The endpoints of a domain share one session, which exists when the second one sends its first message.
#[test]
fn the_first_message_of_each_endpoint_arrives() {
    let client = Client::new(4, plain, false);
    let mut rooms = [[0u8; 8]; 16];
    for (number, room) in rooms.iter_mut().enumerate() {
        assert_eq!(client.receive(number % 4, ADDR_UNSPEC, number as u64, 0, room, 100), 0);
    }
    for number in 0..16 {
        let ep = client.eps[number / 4];
        let to = (number % 4) as u64;
        // SAFETY: an endpoint that is open, and bytes that are there.
        let inject = || unsafe { ((*ep).tagged.inject)(ep, b"injected".as_ptr().cast(), 8, to, number as u64) };
        let begin = Instant::now();
        while inject() == AGAIN {
            assert!(begin.elapsed() < BOUND, "it cannot be sent");
        }
    }
    client.next_few(16);
    assert!(rooms.iter().all(|room| room == b"injected"));
}

/// A forked child's calls return an error, and closing does nothing.
#[test]
fn a_forked_child_is_refused() {
    let client = Client::new(1, plain, false);
    let child = || {
        let ep = client.eps[0];
        let mut room = [0; 8];
        let refused = -(EOPBADSTATE as isize);
        let is_refused = client.send(0, 0, 1, b"no", 1) == refused
            && client.receive(0, ADDR_UNSPEC, 1, 0, &mut room, 2) == refused
            && client.try_next().map(|_| ()) == Err(refused);
        // SAFETY: objects that are open.
        let is_cancelled = unsafe { ((*ep).ops.cancel)(ep.cast(), null_mut()) };
        let mut entry = CqEntry::default();
        // SAFETY: there is room for one.
        let waited = unsafe { ((*client.cq).ops.sread)(client.cq, (&raw mut entry).cast(), 1, null(), 1000) };
        let mut fids: [*mut Fid; 1] = [client.cq.cast()];
        // SAFETY: one queue that is open.
        let tried = unsafe { ((*client.fabric).ops.trywait)(client.fabric, fids.as_mut_ptr(), 1) };
        let closed = [client.eps[0].cast(), client.cq.cast(), client.av.cast(), client.domain.cast()].map(closed);
        is_refused && is_cancelled == refused && waited == refused && tried == -EOPBADSTATE && closed == [0; 4]
    };
    // SAFETY: the child calls nothing that another thread could have left locked, and ends without the handlers of an exit.
    let process = unsafe { libc::fork() };
    if process == 0 {
        let is_well = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(false);
        // SAFETY: it may end.
        unsafe { libc::_exit(if is_well { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: a child of ours.
    assert_eq!(unsafe { libc::waitpid(process, &mut status, 0) }, process);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "status {status:x}");
    assert_eq!(client.send(0, 0, 1, b"on", 1), 0, "the parent goes on");
    client.next().expect("sent");
}

#[test]
fn calls_that_do_not_exist_return_an_error() {
    let client = Client::new(1, plain, false);
    let ep = client.eps[0];
    // SAFETY: they look at no argument.
    unsafe {
        for call in &(*ep).collective.calls {
            assert_eq!(call(), -(libc::ENOSYS as isize));
        }
    }
    // Addresses: a malformed one, one to look up, one to remove.
    let mut address = [0u8; ADDRESS_BYTES];
    let (mut len, mut number) = (address.len(), 0);
    // SAFETY: an address vector that is open, and places for what is asked.
    unsafe {
        let av = client.av;
        assert_eq!(((*av).ops.insert)(av, [0xffu8; ADDRESS_BYTES].as_ptr().cast(), 1, &mut number, 0, null_mut()), 0);
        assert_eq!(number, ADDR_UNSPEC);
        assert_eq!(((*av).ops.lookup)(av, 0, address.as_mut_ptr().cast(), &mut len), 0);
        assert_eq!(&address[..], client.address(0));
        number = 0;
        assert_eq!(((*av).ops.remove)(av, &mut number, 1, 0), 0);
        assert_eq!(((*av).ops.remove)(av, &mut number, 1, 0), -libc::EINVAL);
    }
    assert_eq!(client.send(0, 0, 1, b"nobody", 1), -(libc::EINVAL as isize));
}

/// A first message to a peer, reported as sent or not reported at all, arrives although its sender only calls `end` afterwards.
fn a_first_message_arrives(
    send: impl Fn(&Client) -> isize + Send + 'static,
    end: impl Fn(&mut Client) + Send + 'static,
) {
    let receiver = Client::new(1, plain, false);
    let mut room = [0u8; 8];
    assert_eq!(receiver.receive(0, ADDR_UNSPEC, 1, 0, &mut room, 1), 0);
    let address = receiver.address(0);
    let (keep, until) = std::sync::mpsc::channel::<()>();
    let sender = std::thread::spawn(move || {
        let mut client = Client::new(1, plain, false);
        let mut number = 0;
        // SAFETY: as a client calls it.
        let inserted =
            unsafe { ((*client.av).ops.insert)(client.av, address.as_ptr().cast(), 1, &mut number, 0, null_mut()) };
        assert_eq!((inserted, number), (1, 1));
        assert_eq!(send(&client), 0);
        end(&mut client);
        // Without another call, like a program that does something else, or that exits: nothing of the domain is closed.
        _ = until.recv();
        std::mem::forget(client);
    });
    let begin = Instant::now();
    let told = receiver.next();
    assert!(begin.elapsed() < BOUND / 2);
    assert_eq!((told.expect("the message").0.len, &room[..5]), (5, &b"first"[..]));
    drop(keep);
    sender.join().expect("it ended");
}

fn close_the_endpoint(client: &mut Client) {
    let ep = client.eps.remove(0);
    assert_eq!(closed(ep.cast()), 0);
}

#[test]
fn a_first_message_arrives_though_its_endpoint_is_closed_at_once() {
    a_first_message_arrives(|client| client.send(0, 1, 1, b"first", 2), close_the_endpoint);
}

#[test]
fn a_first_message_arrives_though_its_sender_does_something_else() {
    a_first_message_arrives(|client| client.send(0, 1, 1, b"first", 2), |_| {});
}

#[test]
fn a_first_injected_message_arrives_though_its_sender_does_something_else() {
    let inject = |client: &Client| {
        let ep = client.eps[0];
        // SAFETY: an endpoint that is open; the bytes stay.
        unsafe { ((*ep).tagged.inject)(ep, b"first".as_ptr().cast(), 5, 1, 1) }
    };
    a_first_message_arrives(inject, |_| {});
}
