//! Registered memory, and peers' operations on it.

use super::*;

const ALL: u64 = REMOTE_READ | REMOTE_WRITE;

/// Memory that peers read and write. Only used by its address, since there may be no reference to it.
struct Shared(*mut u64, usize);

impl Shared {
    fn new(words: usize) -> Shared {
        Shared(Box::into_raw(vec![0u64; words].into_boxed_slice()).cast(), words)
    }

    fn word(&self, at: usize) -> u64 {
        assert!(at < self.1);
        // SAFETY: it is within the memory.
        unsafe { self.0.add(at).read_volatile() }
    }

    fn set(&self, at: usize, word: u64) {
        assert!(at < self.1);
        // SAFETY: as above.
        unsafe { self.0.add(at).write_volatile(word) };
    }

    fn bytes(&self) -> Vec<u8> {
        (0..self.1).flat_map(|at| self.word(at).to_ne_bytes()).collect()
    }

    fn len(&self) -> usize {
        8 * self.1
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let words = std::ptr::slice_from_raw_parts_mut(self.0, self.1);
        // SAFETY: `new` made it, and its registrations are closed.
        drop(unsafe { Box::from_raw(words) });
    }
}

fn memory(hints: &mut Hints) {
    hints.info.caps = MSG | RMA | ATOMIC;
}

/// Offsets are the owner's addresses, and the provider chooses the keys.
fn basic(hints: &mut Hints) {
    memory(hints);
    hints.domain.mr_mode = MR_BASIC;
}

fn register(client: &Client, start: *mut c_void, len: usize, access: u64, key: u64) -> Result<*mut FidMr, c_int> {
    let (domain, mut mr) = (client.domain, null_mut());
    // SAFETY: a domain that is open; the tests close what they register before the memory goes.
    match unsafe { ((*domain).mr.reg)(domain.cast(), start, len, access, 0, key, 0, &mut mr, null_mut()) } {
        0 => Ok(mr),
        error => Err(error),
    }
}

fn registered(client: &Client, shared: &Shared, access: u64, key: u64) -> *mut FidMr {
    register(client, shared.0.cast(), shared.len(), access, key).expect("it is registered")
}

fn key_of(mr: *mut FidMr) -> u64 {
    // SAFETY: a registration that is open.
    unsafe { (*mr).key }
}

impl Client {
    fn write(&self, (addr, key): (u64, u64), bytes: &'static [u8], context: usize) -> isize {
        let ep = self.eps[0];
        let context = context as *mut c_void;
        // SAFETY: the bytes stay.
        unsafe { ((*ep).rma.write)(ep, bytes.as_ptr().cast(), bytes.len(), null_mut(), 1, addr, key, context) }
    }

    fn read(&self, (addr, key): (u64, u64), room: &mut [u8], context: usize) -> isize {
        let (ep, len) = (self.eps[0], room.len());
        let context = context as *mut c_void;
        // SAFETY: the tests keep what they read into until its completion.
        unsafe { ((*ep).rma.read)(ep, room.as_mut_ptr().cast(), len, null_mut(), 1, addr, key, context) }
    }

    /// The error of the next operation that ends.
    fn next_error(&self) -> c_int {
        self.next().expect_err("it fails").err
    }
}

#[test]
fn memory_is_written_and_read_by_offsets_and_the_clients_keys() {
    let client = Client::new(2, memory, false);
    let shared = Shared::new(1 << 15);
    let mr = registered(&client, &shared, ALL, 77);
    assert_eq!(key_of(mr), 77);
    static BYTES: [u8; 100_000] = [0x5a; 100_000];
    for (len, context) in [(0, 1), (1, 2), (8, 3), (4_000, 4), (100_000, 5)] {
        assert_eq!(client.write((16, 77), &BYTES[..len], context), 0);
        let (entry, _) = client.next().expect("written");
        assert_eq!((entry.op_context, entry.flags), (context, RMA | WRITE));
        let mut room = vec![0u8; len];
        assert_eq!(client.read((16, 77), &mut room, context), 0);
        let (entry, _) = client.next().expect("read");
        assert_eq!((entry.op_context, entry.flags), (context, RMA | READ));
        assert!(room[..] == BYTES[..len] && shared.bytes()[16..16 + len] == BYTES[..len]);
        assert_eq!((shared.word(0), shared.word(1)), (0, 0));
    }
    assert_eq!(closed(mr.cast()), 0);
}

#[test]
fn pieces_data_and_injected_bytes_arrive() {
    let client = Client::new(2, memory, false);
    let shared = Shared::new(8);
    let mr = registered(&client, &shared, ALL, 1);
    let ep = client.eps[0];
    let pieces = [b"abc".as_slice(), b"defgh"]
        .map(|piece| libc::iovec { iov_base: piece.as_ptr() as *mut c_void, iov_len: piece.len() });
    let place = RmaIov { addr: 8, len: 8, key: 1 };
    let context = 5 as *mut c_void;
    let mut args = RmaArgs {
        iov: pieces.as_ptr(),
        desc: null_mut(),
        iov_count: 2,
        addr: 1,
        rma_iov: &place,
        rma_iov_count: 1,
        context,
        data: 0xda7a,
    };
    // SAFETY: an endpoint that is open; all of it stays until the completions.
    unsafe {
        assert_eq!(((*ep).rma.writemsg)(ep, &args, REMOTE_CQ_DATA | DELIVERY_COMPLETE | FENCE), 0);
    }
    let done = client.next_few(2);
    assert_eq!((done[0].0.flags, done[0].0.data), (RMA | REMOTE_WRITE | REMOTE_CQ_DATA, 0xda7a));
    assert_eq!((done[1].0.flags, done[1].0.op_context, done[0].0.len), (RMA | WRITE, 5, 8));
    assert_eq!(&shared.bytes()[8..16], b"abcdefgh");
    let (mut one, mut other) = ([0u8; 2], [0u8; 6]);
    let rooms = [one.as_mut_ptr_range(), other.as_mut_ptr_range()];
    let rooms =
        rooms.map(|room| libc::iovec { iov_base: room.start.cast(), iov_len: room.end as usize - room.start as usize });
    args.iov = rooms.as_ptr();
    // SAFETY: as above.
    assert_eq!(unsafe { ((*ep).rma.readmsg)(ep, &args, COMPLETION) }, 0);
    assert_eq!(client.next().expect("read").0.op_context, 5);
    assert_eq!((&one, &other), (b"ab", b"cdefgh"));
    // More places at the target than `rma_iov_limit` allows.
    args.rma_iov_count = 9;
    // SAFETY: as above; it is refused before the second one is looked at.
    assert_eq!(unsafe { ((*ep).rma.readmsg)(ep, &args, 0) }, -(libc::EINVAL as isize));
    // Injected: not reported here; the data is reported there.
    let bytes = *b"injected";
    // SAFETY: an endpoint that is open; the bytes are copied.
    unsafe {
        assert_eq!(((*ep).rma.injectdata)(ep, bytes.as_ptr().cast(), 8, 9, 1, 0, 1), 0);
        assert_eq!(((*ep).rma.inject)(ep, bytes.as_ptr().cast(), 1 << 20, 1, 0, 1), -(libc::EMSGSIZE as isize));
    }
    assert_eq!(client.next().expect("the data").0.data, 9);
    assert_eq!(&shared.bytes()[..8], b"injected");
    assert_eq!(client.try_next().err(), Some(AGAIN));
    assert_eq!(closed(mr.cast()), 0);
}

#[test]
fn basic_registrations_have_the_providers_keys_and_the_owners_addresses() {
    let client = Client::new(2, basic, false);
    let shared = Shared::new(8);
    let (mr, other) = (registered(&client, &shared, ALL, 5), registered(&client, &shared, ALL, 5));
    assert!(key_of(mr) != key_of(other) && key_of(mr) != 5);
    let start = shared.0 as u64;
    assert_eq!(client.write((start + 8, key_of(mr)), b"by name!", 1), 0);
    client.next().expect("written");
    assert_eq!(&shared.bytes()[8..16], b"by name!");
    for addr in [8, start - 1, start + 57] {
        assert_eq!(client.write((addr, key_of(mr)), b"by name!", 1), 0);
        assert_eq!(client.next_error(), libc::EFAULT, "{addr:x}");
    }
    assert_eq!((closed(mr.cast()), closed(other.cast())), (0, 0));
}

#[test]
fn all_memory_may_be_registered_at_once() {
    let client = Client::new(2, memory, false);
    let shared = Shared::new(2);
    // SAFETY: nothing is accessed by it.
    if let Err(why) = unsafe { weft::memory::Window::whole_address_space() } {
        assert_eq!(register(&client, null_mut(), usize::MAX, ALL, 3).err(), Some(-libc::ENOSYS));
        return eprintln!("LEFT OUT: accesses to all memory: {why}");
    }
    let mr = register(&client, null_mut(), usize::MAX, ALL, 3).expect("all of it");
    assert_eq!(client.write((shared.0 as u64, 3), b"anywhere", 1), 0);
    client.next().expect("written");
    assert_eq!(&shared.bytes()[..8], b"anywhere");
    assert_eq!(client.write((16, 3), b"anywhere", 1), 0);
    assert_eq!(client.next_error(), libc::EFAULT);
    assert_eq!(register(&client, 8 as *mut c_void, usize::MAX, ALL, 4).err(), Some(-libc::EINVAL));
    assert_eq!(closed(mr.cast()), 0);
}

#[test]
fn what_is_not_granted_is_refused_and_nothing_is_changed() {
    let client = Client::new(2, memory, false);
    let shared = Shared::new(8);
    let (readable, writable) =
        (registered(&client, &shared, REMOTE_READ, 1), registered(&client, &shared, REMOTE_WRITE, 2));
    let mine = registered(&client, &shared, READ | WRITE, 3);
    assert_eq!(register(&client, shared.0.cast(), 8, ALL, 1).err(), Some(-ENOKEY), "the key is taken");
    let write_at = |place| {
        assert_eq!(client.write(place, b"nothing!", 9), 0);
        let told = client.next().expect_err("it is refused");
        assert_eq!((told.entry.op_context, told.entry.flags), (9, RMA | WRITE));
        (told.err, told.prov_errno)
    };
    assert_eq!(write_at((0, 1)).0, libc::EACCES, "it may be read only");
    assert_eq!(write_at((0, 3)).0, libc::EACCES, "nobody else may do anything");
    assert_eq!(write_at((0, 4)).0, libc::EACCES, "there is no such key");
    assert_eq!(write_at((57, 2)).0, libc::EFAULT);
    assert_eq!(write_at((u64::MAX - 3, 2)).0, libc::EFAULT);
    let mut room = [7u8; 8];
    assert_eq!(client.read((0, 2), &mut room, 1), 0);
    assert_eq!((client.next_error(), room), (libc::EACCES, [7; 8]), "it may be written only");
    assert_eq!(closed(writable.cast()), 0);
    let (err, number) = write_at((0, 2));
    assert_eq!(err, libc::EACCES);
    // SAFETY: a queue that is open.
    let words = unsafe { ((*client.cq).ops.strerror)(client.cq, number, null(), null_mut(), 0) };
    // SAFETY: it is a string.
    let words = unsafe { std::ffi::CStr::from_ptr(words) };
    assert_eq!(words, c"the peer has no memory registered under that key");
    // The key is free again.
    let again = registered(&client, &shared, ALL, 2);
    assert!(shared.bytes().iter().all(|byte| *byte == 0));
    assert_eq!(client.write((0, 2), b"allowed.", 1), 0);
    client.next().expect("written");
    for mr in [readable, mine, again] {
        assert_eq!(closed(mr.cast()), 0);
    }
    // An endpoint without the capability has no such memory, and cannot access any.
    let client = Client::new(2, plain_messages, false);
    assert_eq!(client.write((0, 1), b"nothing!", 1), -(libc::EOPNOTSUPP as isize));
    assert_eq!(client.send(0, 1, 1, b"a message", 1), 0);
}

#[test]
fn operations_have_several_pieces_here_and_several_places_there() {
    let client = Client::new(2, memory, false);
    let shared = [(); 2].map(|()| Shared::new(1 << 15));
    let mrs = [1, 2].map(|key| registered(&client, &shared[key as usize - 1], ALL, key));
    let ep = client.eps[0];
    static BYTES: [u8; 150_000] = [7; 150_000];
    let context = 5 as *mut c_void;
    /// The lengths of the pieces, and each place's address, length and key.
    type Round = (&'static [usize], &'static [(u64, usize, u64)]);
    let rounds: [Round; 7] = [
        (&[8], &[(0, 8, 1)]),
        (&[3, 5], &[(16, 8, 2)]),
        (&[8], &[(0, 3, 1), (100, 5, 1)]),
        (&[3, 0, 5, 4], &[(0, 8, 1), (8, 0, 1), (16, 4, 2)]),
        (&[100_000, 50_000], &[(0, 70_000, 1), (100_000, 10_000, 1), (8, 70_000, 2)]),
        (
            &[1, 1, 1, 1, 1, 1, 1, 1],
            &[(0, 1, 1), (1, 1, 2), (2, 1, 1), (3, 1, 2), (4, 1, 1), (5, 1, 2), (6, 1, 1), (7, 1, 2)],
        ),
        (&[], &[(0, 0, 1), (0, 0, 2)]),
    ];
    for (lens, places) in rounds {
        shared.iter().for_each(|shared| (0..1 << 15).for_each(|at| shared.set(at, 0)));
        let whole: usize = lens.iter().sum();
        let mut from = 0;
        let pieces: Vec<libc::iovec> = lens
            .iter()
            .map(|&iov_len| {
                from += iov_len;
                libc::iovec { iov_base: BYTES[from - iov_len..].as_ptr().cast_mut().cast(), iov_len }
            })
            .collect();
        let places: Vec<RmaIov> = places.iter().map(|&(addr, len, key)| RmaIov { addr, len, key }).collect();
        let mut args = RmaArgs {
            iov: pieces.as_ptr(),
            desc: null_mut(),
            iov_count: pieces.len(),
            addr: 1,
            rma_iov: places.as_ptr(),
            rma_iov_count: places.len(),
            context,
            data: 0,
        };
        // SAFETY: an endpoint that is open; all of it stays until the completion.
        assert_eq!(unsafe { ((*ep).rma.writemsg)(ep, &args, COMPLETION) }, 0);
        assert_eq!(client.next().expect("written").0.op_context, 5);
        let bytes = shared.each_ref().map(Shared::bytes);
        let written: usize = bytes.iter().flatten().filter(|byte| **byte == 7).count();
        assert_eq!(written, whole, "no byte is written elsewhere, or twice");
        for RmaIov { addr, len, key } in &places {
            let there = &bytes[*key as usize - 1][*addr as usize..][..*len];
            assert!(there.iter().all(|byte| *byte == 7), "{addr} {len} {key}");
        }
        let mut room = vec![0u8; whole];
        let mut rest = room.as_mut_ptr();
        let rooms: Vec<libc::iovec> = lens
            .iter()
            .map(|&iov_len| {
                let iov_base = rest.cast();
                rest = rest.wrapping_add(iov_len);
                libc::iovec { iov_base, iov_len }
            })
            .collect();
        args.iov = rooms.as_ptr();
        // SAFETY: as above.
        assert_eq!(unsafe { ((*ep).rma.readmsg)(ep, &args, COMPLETION) }, 0);
        assert_eq!(client.next().expect("read").0.op_context, 5);
        assert!(room == BYTES[..whole]);
        assert_eq!(client.try_next().err(), Some(AGAIN), "one completion each");
        // Lengths that differ.
        args.iov_count = 1;
        let more = libc::iovec { iov_base: BYTES.as_ptr().cast_mut().cast(), iov_len: whole + 1 };
        args.iov = &more;
        // SAFETY: as above.
        assert_eq!(unsafe { ((*ep).rma.writemsg)(ep, &args, 0) }, -(libc::EINVAL as isize));
    }
    let fails = |places: [RmaIov; 2], flags| {
        let iov_len = places.iter().map(|place| place.len).sum();
        let piece = libc::iovec { iov_base: BYTES.as_ptr().cast_mut().cast(), iov_len };
        let args = RmaArgs {
            iov: &piece,
            desc: null_mut(),
            iov_count: 1,
            addr: 1,
            rma_iov: places.as_ptr(),
            rma_iov_count: 2,
            context,
            data: 3,
        };
        // SAFETY: as above.
        unsafe { ((*ep).rma.writemsg)(ep, &args, flags) }
    };
    // If one of the two fails, the operation fails, once.
    let place = |addr, key| RmaIov { addr, len: 8, key };
    assert_eq!(fails([place(0, 1), place(0, 3)], COMPLETION), 0);
    assert_eq!(client.next_error(), libc::EACCES);
    assert_eq!(fails([place(1 << 20, 1), place(0, 2)], INJECT | COMPLETION), 0);
    assert_eq!(client.next_error(), libc::EFAULT);
    assert_eq!(client.try_next().err(), Some(AGAIN));
    // Both together may not inject more than one may.
    let half = |key, len| RmaIov { addr: 0, len, key };
    assert_eq!(fails([half(1, 2049), half(2, 2048)], INJECT | COMPLETION), -(libc::EMSGSIZE as isize));
    assert_eq!(fails([half(1, 2048), half(2, 2048)], INJECT | COMPLETION), 0);
    assert_eq!(client.next().expect("written").0.op_context, 5);
    // Data would mean that everything is stored, which is unknown with several places.
    assert_eq!(fails([place(0, 1), place(0, 2)], REMOTE_CQ_DATA), -(libc::EINVAL as isize));
    assert_eq!(fails([place(0, 1), place(64, 1)], REMOTE_CQ_DATA | COMPLETION), -(libc::EINVAL as isize));
    assert_eq!(client.try_next().err(), Some(AGAIN));
    for mr in mrs {
        assert_eq!(closed(mr.cast()), 0);
    }
}

#[test]
fn words_at_several_places_are_changed_fetched_and_compared() {
    let client = Client::new(2, memory, false);
    let shared = [(); 2].map(|()| Shared::new(8));
    let mrs = [1, 2].map(|key| registered(&client, &shared[key as usize - 1], ALL, key));
    let ep = client.eps[0];
    let (operands, mut old) = ([10u64, 20, 30, 40], [0u64; 4]);
    let pieces = [Ioc { addr: operands.as_ptr().cast_mut().cast(), count: 4 }];
    let places = [(0, 1, 1), (16, 2, 1), (8, 1, 2)].map(|(addr, count, key)| RmaIoc { addr, count, key });
    let mut args = AtomicArgs {
        msg_iov: pieces.as_ptr(),
        desc: null_mut(),
        iov_count: 1,
        addr: 1,
        rma_iov: places.as_ptr(),
        rma_iov_count: 3,
        datatype: UINT64,
        op: SUM,
        context: 6 as *mut c_void,
        data: 0,
    };
    let all = || [shared[0].word(0), shared[0].word(2), shared[0].word(3), shared[1].word(1)];
    let start: *mut u64 = old.as_mut_ptr();
    let mut rooms = [(0, 3), (3, 1)].map(|(at, count)| Ioc { addr: start.wrapping_add(at).cast(), count });
    let none = null_mut();
    // SAFETY: an endpoint that is open; all words stay.
    unsafe {
        let calls = (*ep).atomic;
        assert_eq!((calls.writemsg)(ep, &args, COMPLETION), 0);
        assert_eq!((client.next().expect("changed").0.flags, all()), (ATOMIC | WRITE, operands));
        assert_eq!((calls.readwritemsg)(ep, &args, rooms.as_mut_ptr(), none, 2, COMPLETION), 0);
        assert_eq!((client.next().expect("fetched").0.flags, all()), (ATOMIC | READ, operands.map(|word| 2 * word)));
        assert_eq!([0, 1, 2, 3].map(|at| start.add(at).read()), operands);
        // Pieces without words do not count.
        let mut with_nothing =
            [(0, 1), (1, 0), (1, 3)].map(|(at, count)| Ioc { addr: start.wrapping_add(at).cast(), count });
        args.op = BOR;
        assert_eq!((calls.readwritemsg)(ep, &args, with_nothing.as_mut_ptr(), none, 3, COMPLETION), 0);
        client.next().expect("fetched");
        assert_eq!([0, 1, 2, 3].map(|at| start.add(at).read()), operands.map(|word| 2 * word));
        let [a, b, c, d] = operands.map(|word| word | (2 * word));
        assert_eq!(all(), [a, b, c, d]);
        for (at, word) in [(0, 20), (2, 40), (3, 60)] {
            shared[0].set(at, word);
        }
        shared[1].set(1, 80);
        args.op = CSWAP;
        let expected = [20u64, 0, 60, 80];
        let compare = Ioc { addr: expected.as_ptr().cast_mut().cast(), count: 4 };
        assert_eq!((calls.compwritemsg)(ep, &args, &compare, none, 1, rooms.as_mut_ptr(), none, 2, COMPLETION), 0);
        client.next().expect("compared");
        assert_eq!(all(), [10, 40, 30, 40], "the second one was another value");
        args.rma_iov_count = 2;
        assert_eq!(
            (calls.writemsg)(ep, &args, COMPLETION),
            -(libc::EOPNOTSUPP as isize),
            "no such operation in that form"
        );
        args.op = SUM;
        assert_eq!((calls.writemsg)(ep, &args, COMPLETION), -(libc::EINVAL as isize), "fewer words there than here");
    }
    assert_eq!(client.try_next().err(), Some(AGAIN));
    for mr in mrs {
        assert_eq!(closed(mr.cast()), 0);
    }
}

#[test]
fn words_are_changed_fetched_and_compared() {
    let client = Client::new(2, memory, false);
    let shared = Shared::new(4);
    let mr = registered(&client, &shared, ALL, 1);
    let (ep, context) = (client.eps[0], 2 as *mut c_void);
    let (operands, compare) = ([5u64, 7], [5u64, 99]);
    let (mut old, mut pieces) = ([1u64; 2], [[0u64; 1]; 2]);
    let from: *const c_void = operands.as_ptr().cast();
    let to: *mut c_void = old.as_mut_ptr().cast();
    let next = || client.next().expect("changed").0.flags;
    // SAFETY: an endpoint that is open; all words stay.
    unsafe {
        let calls = (*ep).atomic;
        assert_eq!((calls.write)(ep, from, 2, null_mut(), 1, 8, 1, UINT64, SUM, context), 0);
        assert_eq!((next(), shared.word(1), shared.word(2)), (ATOMIC | WRITE, 5, 7));
        let none = null_mut();
        assert_eq!((calls.readwrite)(ep, from, 2, none, to, none, 1, 8, 1, UINT64, SUM, context), 0);
        assert_eq!((next(), old, shared.word(1), shared.word(2)), (ATOMIC | READ, [5, 7], 10, 14));
        shared.set(1, 5);
        let wanted = compare.as_ptr().cast();
        let posted = (calls.compwrite)(ep, from, 2, none, wanted, none, to, none, 1, 8, 1, UINT64, CSWAP, context);
        assert_eq!((posted, next(), old), (0, ATOMIC | READ, [5, 14]));
        assert_eq!((shared.word(1), shared.word(2)), (5, 14), "the second one was another value");
        // Read into two pieces, without operands.
        let rooms = pieces.each_mut().map(|piece| Ioc { addr: piece.as_mut_ptr().cast(), count: 1 });
        let mut rooms = rooms;
        let rooms = rooms.as_mut_ptr();
        let read =
            (calls.readwritev)(ep, null(), null_mut(), 0, rooms, null_mut(), 2, 1, 8, 1, UINT64, ATOMIC_READ, context);
        assert_eq!((read, next(), pieces), (0, ATOMIC | READ, [[5], [14]]));
        assert_eq!((calls.inject)(ep, from, 1, 1, 0, 1, UINT32, ATOMIC_WRITE), 0);
        // After it, in order.
        assert_eq!((calls.readwrite)(ep, from, 1, none, to, none, 1, 0, 1, INT32, MAX, context), 0);
        assert_eq!((next(), old[0] as u32, shared.word(0)), (ATOMIC | READ, 5, 5));
        // Operations that do not exist, and unaligned words.
        assert_eq!(
            (calls.write)(ep, from, 1, null_mut(), 1, 8, 1, DOUBLE, BXOR, context),
            -(libc::EOPNOTSUPP as isize)
        );
        const LONG_DOUBLE: c_int = 12;
        assert_eq!(
            (calls.write)(ep, from, 1, null_mut(), 1, 8, 1, LONG_DOUBLE, SUM, context),
            -(libc::EOPNOTSUPP as isize)
        );
        assert_eq!((calls.write)(ep, from, 1, null_mut(), 1, 4, 1, UINT64, SUM, context), 0);
    }
    assert_eq!(client.next_error(), libc::EINVAL);
    assert_eq!(closed(mr.cast()), 0);
}

#[test]
fn queries_about_atomic_operations_are_true() {
    let client = Client::new(2, memory, false);
    let shared = Shared::new(2);
    let mr = registered(&client, &shared, ALL, 1);
    let (ep, domain) = (client.eps[0], client.domain);
    let mut there_are = 0;
    for (of, op) in (0..14).flat_map(|of| (0..19).map(move |op| (of, op))) {
        let mut attr = AtomicAttr { count: 0, size: 0 };
        let (operand, mut old, mut count) = ([0u64; 2], [0u64; 2], 0);
        let from: *const c_void = operand.as_ptr().cast();
        let to: *mut c_void = old.as_mut_ptr().cast();
        let none = null_mut();
        // SAFETY: what is open, and words of every size.
        let (asked, valid, posted) = unsafe {
            let calls = (*ep).atomic;
            let asked = [0, FETCH_ATOMIC, COMPARE_ATOMIC]
                .map(|form| ((*domain).ops.query_atomic)(domain, of, op, &mut attr, form) == 0);
            let valid = [calls.writevalid, calls.readwritevalid, calls.compwritevalid]
                .map(|valid| valid(ep, of, op, &mut count) == 0);
            let posted = [
                (calls.write)(ep, from, 1, none, 1, 0, 1, of, op, none),
                (calls.readwrite)(ep, from, 1, none, to, none, 1, 0, 1, of, op, none),
                (calls.compwrite)(ep, from, 1, none, from, none, to, none, 1, 0, 1, of, op, none),
            ];
            (asked, valid, posted.map(|posted| posted == 0))
        };
        assert_eq!((asked, asked), (valid, posted), "{of} {op}");
        let there = asked.iter().filter(|there| **there).count();
        client.next_few(there);
        assert!(there == 0 || (attr.count == count && attr.count * attr.size == 64 << 10));
        there_are += there;
    }
    // Eight integer types: ten operations in two forms, seven with comparison, and writing, swapping and reading. Two other types without
    // the bitwise operations.
    assert_eq!(there_are, 8 * (10 * 2 + 7 + 3) + 2 * (7 * 2 + 6 + 3));
    assert_eq!(closed(mr.cast()), 0);
}

#[test]
fn an_endpoint_that_comes_later_has_what_was_registered_before_and_counters_count() {
    let mut owner = Client::new(0, memory, false);
    let shared = Shared::new(2);
    let mr = registered(&owner, &shared, ALL, 1);
    owner.open(false);
    let mut client = Client::new(1, memory, false);
    let (mut number, mut cntr) = (0, null_mut());
    let ep = client.eps[0];
    // SAFETY: as a client calls them.
    unsafe {
        let address = owner.address(0);
        assert_eq!(((*client.av).ops.insert)(client.av, address.as_ptr().cast(), 1, &mut number, 0, null_mut()), 1);
        assert_eq!(((*client.domain).ops.cntr_open)(client.domain, null_mut(), &mut cntr, null_mut()), 0);
        assert_eq!(((*ep).fid.ops.bind)(ep.cast(), cntr.cast(), READ | WRITE), 0);
    }
    // The owner makes no calls: a thread serves it.
    assert_eq!(client.write((8, 1), b"serviced", 4), 0);
    assert_eq!(client.next().expect("written").0.op_context, 4);
    assert_eq!(&shared.bytes()[8..], b"serviced");
    let mut room = [0u8; 8];
    assert_eq!(client.read((100, 1), &mut room, 5), 0);
    assert_eq!(client.next_error(), libc::EFAULT);
    // SAFETY: a counter that is open.
    unsafe { assert_eq!((((*cntr).ops.read)(cntr), ((*cntr).ops.readerr)(cntr)), (1, 1)) };
    // The registration keeps its domain in use.
    assert_eq!(closed(mr.cast()), 0);
    assert_eq!(client.read((8, 1), &mut room, 5), 0);
    assert_eq!(client.next_error(), libc::EACCES);
    assert_eq!(closed(client.eps.remove(0).cast()), 0);
    assert_eq!(closed(cntr.cast()), 0);
}

/// A counter of that client.
fn counter(client: &Client) -> *mut FidCntr {
    let mut cntr = null_mut();
    // SAFETY: a domain that is open.
    assert_eq!(unsafe { ((*client.domain).ops.cntr_open)(client.domain, null_mut(), &mut cntr, null_mut()) }, 0);
    cntr
}

fn bound(fid: *mut Fid, cntr: *mut FidCntr, flags: u64) -> c_int {
    // SAFETY: both are open.
    unsafe { ((*fid).ops.bind)(fid, cntr.cast(), flags) }
}

/// Waits until a counter has a number.
fn counted(cntr: *mut FidCntr, number: u64) {
    // SAFETY: a counter that is open.
    assert_eq!(unsafe { ((*cntr).ops.wait)(cntr, number, BOUND.as_millis() as c_int) }, 0);
    // SAFETY: as above.
    assert_eq!(unsafe { ((*cntr).ops.read)(cntr) }, number);
}

#[test]
fn counters_count_what_peers_do_to_a_registration_and_by_way_of_an_endpoint() {
    let events = |hints: &mut Hints| hints.info.caps = MSG | RMA | ATOMIC | RMA_EVENT;
    let mut client = Client::new(2, events, false);
    // SAFETY: it exists as long as the client.
    assert_ne!(unsafe { (*client.info).caps } & RMA_EVENT, 0);
    let shared = Shared::new(4096);
    let [by_endpoint, reads, writes] = [(); 3].map(|()| counter(&client));
    assert_eq!(bound(client.eps[1].cast(), by_endpoint, REMOTE_READ | REMOTE_WRITE), 0);
    let mr = registered(&client, &shared, ALL, 7);
    assert_eq!((bound(mr.cast(), reads, REMOTE_READ), bound(mr.cast(), writes, REMOTE_WRITE)), (0, 0));
    assert_eq!(bound(mr.cast(), writes, SEND), -EBADFLAGS);
    static BYTES: [u8; 30_000] = [0x5a; 30_000];
    let mut room = vec![0u8; 30_000];
    for (len, context) in [(8, 1), (30_000, 2)] {
        assert_eq!(client.write((0, 7), &BYTES[..len], context), 0);
        counted(writes, context as u64);
        assert_eq!(client.read((0, 7), &mut room[..len], context), 0);
        counted(reads, context as u64);
        counted(by_endpoint, 2 * context as u64);
        client.next_few(2);
    }
    let ep = client.eps[0];
    let (word, mut old) = (1u64, 0u64);
    // SAFETY: an endpoint that is open; the words stay until the completions.
    unsafe {
        let (word, old, none) = ((&raw const word).cast(), (&raw mut old).cast(), null_mut());
        assert_eq!(((*ep).atomic.write)(ep, word, 1, none, 1, 0, 7, UINT64, SUM, none), 0);
        counted(writes, 3);
        assert_eq!(((*ep).atomic.readwrite)(ep, word, 1, none, old, none, 1, 0, 7, UINT64, SUM, none), 0);
        counted(reads, 3);
        counted(writes, 4);
        // A fetch counts as a read for an endpoint, and as both for a registration.
        counted(by_endpoint, 6);
    }
    client.next_few(2);
    assert_eq!(old, 0x5a5a_5a5a_5a5a_5a5b);
    // A later endpoint counts for the registration too, but not for the other endpoint.
    client.open(false);
    let address = client.address(2);
    let mut number = 0;
    // SAFETY: as a client calls it.
    let inserted =
        unsafe { ((*client.av).ops.insert)(client.av, address.as_ptr().cast(), 1, &mut number, 0, null_mut()) };
    assert_eq!(inserted, 1);
    let to_third = |context: usize| {
        let (ep, context) = (client.eps[0], context as *mut c_void);
        // SAFETY: the bytes stay.
        unsafe { ((*ep).rma.write)(ep, BYTES.as_ptr().cast(), 8, null_mut(), number, 0, 7, context) }
    };
    assert_eq!(to_third(9), 0);
    counted(writes, 5);
    assert_eq!(client.next().expect("written").0.op_context, 9);
    // SAFETY: a counter that is open.
    assert_eq!(unsafe { ((*by_endpoint).ops.read)(by_endpoint) }, 6);
    assert_eq!(closed(mr.cast()), 0);
    for cntr in [by_endpoint, reads, writes] {
        assert_eq!(closed(cntr.cast()), 0);
    }
}

#[test]
fn a_domain_that_is_asked_for_makes_progress_by_itself() {
    let auto = |hints: &mut Hints| {
        plain_messages(hints);
        hints.domain.data_progress = PROGRESS_AUTO;
    };
    let receiver = Client::new(1, auto, false);
    let sender = Client::new(1, plain_messages, false);
    let mut number = 0;
    let mut room = vec![0u8; 1 << 20];
    assert_eq!(receiver.receive(0, ADDR_UNSPEC, 1, 0, &mut room, 1), 0);
    let address = receiver.address(0);
    // SAFETY: as a client calls it.
    let inserted =
        unsafe { ((*sender.av).ops.insert)(sender.av, address.as_ptr().cast(), 1, &mut number, 0, null_mut()) };
    assert_eq!((inserted, number), (1, 1));
    static BYTES: [u8; 1 << 20] = [3; 1 << 20];
    // Too long to complete before the receiver has done its part.
    assert_eq!(sender.send(0, 1, 1, &BYTES, 2), 0);
    assert_eq!(sender.next().expect("sent").0.op_context, 2);
    assert_eq!(receiver.next().expect("received").0.len, BYTES.len());
    assert!(room[..] == BYTES);
}
