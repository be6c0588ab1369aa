//! Event queues, and addresses by host and port.

use super::*;
use std::ffi::CString;

fn event_queue(fabric: *mut FidFabric, size: usize, wait_obj: c_int) -> *mut FidEq {
    let mut attr = EqAttr { size, flags: WRITE, wait_obj };
    let mut eq = null_mut();
    // SAFETY: a fabric that is open, attributes, and a place.
    assert_eq!(unsafe { ((*fabric).ops.eq_open)(fabric, &mut attr, &mut eq, null_mut()) }, 0);
    eq
}

fn write(eq: *mut FidEq, event: u32, data: &[u8]) -> isize {
    // SAFETY: a queue that is open, and bytes.
    unsafe { ((*eq).ops.write)(eq, event, data.as_ptr().cast(), data.len(), 0) }
}

/// The result of a read: its code, the event's number, and its data.
fn read(eq: *mut FidEq, room: usize, flags: u64) -> (isize, u32, Vec<u8>) {
    let (mut event, mut data) = (0, vec![0; room]);
    // SAFETY: a queue that is open, and places for what is read.
    let read = unsafe { ((*eq).ops.read)(eq, &mut event, data.as_mut_ptr().cast(), room, flags) };
    data.truncate(usize::try_from(read).unwrap_or(0));
    (read, event, data)
}

#[test]
fn events_are_read_as_they_were_written() {
    let client = Client::new(1, plain, false);
    let eq = event_queue(client.fabric, 3, WAIT_FD);
    let mut fd = -1;
    // SAFETY: a queue that is open, with a descriptor.
    assert_eq!(unsafe { ((*eq).fid.ops.control)(eq.cast(), CONTROL_GETWAIT, (&raw mut fd).cast()) }, 0);
    let is_ready = || {
        let mut asked = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one descriptor that is open.
        unsafe { libc::poll(&mut asked, 1, 0) == 1 }
    };
    let try_wait = || {
        let mut fids: [*mut Fid; 1] = [eq.cast()];
        // SAFETY: one queue that is open.
        unsafe { ((*client.fabric).ops.trywait)(client.fabric, fids.as_mut_ptr(), 1) }
    };
    assert_eq!((read(eq, 8, 0).0, is_ready(), try_wait()), (AGAIN, false, 0));
    for event in 1..=3u32 {
        assert_eq!(write(eq, event, &event.to_le_bytes()), 4);
    }
    assert_eq!(write(eq, 4, b"more"), -(EOVERRUN as isize));
    assert_eq!((is_ready(), try_wait()), (true, -libc::EAGAIN));
    assert_eq!(read(eq, 3, 0).0, -(ETOOSMALL as isize));
    for event in 1..=3u32 {
        let told = (4, event, event.to_le_bytes().to_vec());
        assert_eq!((read(eq, 8, PEEK), is_ready()), (told.clone(), true));
        assert_eq!(read(eq, 8, 0), told);
    }
    assert_eq!((read(eq, 8, 0).0, is_ready()), (AGAIN, false));
    let (mut event, mut room, begin) = (0, [0u8; 8], Instant::now());
    let place = room.as_mut_ptr().cast();
    // SAFETY: as above; here and below.
    assert_eq!(unsafe { ((*eq).ops.sread)(eq, &mut event, place, 8, 20, 0) }, AGAIN);
    assert!(begin.elapsed() >= Duration::from_millis(20));
    assert_eq!(write(eq, 9, b""), 0);
    // SAFETY: as above.
    assert_eq!(unsafe { ((*eq).ops.sread)(eq, &mut event, place, 8, 10_000, 0) }, 0);
    assert_eq!(event, 9);
    assert_eq!(closed(client.fabric.cast()), -libc::EBUSY);
    assert_eq!(closed(eq.cast()), 0);
}

/// What `fi_getinfo` finds for a host and port.
fn found(node: Option<&str>, service: &str, flags: u64) -> Result<&'static mut Info, c_int> {
    let [node, service] = [node, Some(service)].map(|text| text.map(|text| CString::new(text).expect("a string")));
    let [node, service] = [&node, &service].map(|text| text.as_ref().map_or(null(), |text| text.as_ptr()));
    let mut found = null_mut();
    // SAFETY: strings or null, and a place.
    match unsafe { (provider().getinfo)(version(1, 17), node, service, flags, null(), &mut found) } {
        // SAFETY: it was found. The tests never free it.
        0 => Ok(unsafe { &mut *found }),
        error => Err(error),
    }
}

#[test]
fn a_peer_is_found_by_host_and_port() {
    // Another process could take the port meanwhile, but only if it looked for this one.
    let port =
        std::net::TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port").port();
    let port = port.to_string();
    let own = found(Some("127.0.0.1"), &port, SOURCE).expect("a host and a port");
    assert!(own.src_addrlen == ADDRESS_BYTES && !own.src_addr.is_null() && own.dest_addr.is_null());
    let mut b = Client::unacquainted(plain);
    let mut ep = null_mut();
    // SAFETY: as a client calls them, with objects that are open.
    unsafe {
        assert_eq!(((*b.domain).ops.endpoint)(b.domain, own, &mut ep, null_mut()), 0);
        let fid = ep.cast::<Fid>();
        assert_eq!(((*fid).ops.bind)(fid, b.av.cast(), 0), 0);
        assert_eq!(((*fid).ops.bind)(fid, b.cq.cast(), TRANSMIT | RECV), 0);
        // The port is taken.
        let mut other = null_mut();
        assert_eq!(((*b.domain).ops.endpoint)(b.domain, own, &mut other, null_mut()), -libc::EADDRINUSE);
    }
    b.eps.push(ep);
    let mut room = [0; 5];
    assert_eq!(b.receive(1, ADDR_UNSPEC, 1, 0, &mut room, 1), 0);
    let a = Client::unacquainted(plain);
    let there = found(Some("127.0.0.1"), &port, 0).expect("a host and a port");
    assert_eq!((there.src_addrlen, there.dest_addrlen), (ADDRESS_BYTES, ADDRESS_BYTES));
    let (av, mut numbers) = (a.av, [7; 3]);
    let [node, service, nobody] = ["127.0.0.1", &port, "1"].map(|text| CString::new(text).expect("a string"));
    // SAFETY: an address vector that is open, strings, an address, and places for the numbers.
    unsafe {
        assert_eq!(((*av).ops.insert)(av, there.dest_addr, 1, &mut numbers[0], 0, null_mut()), 1);
        let insert = (*av).ops.insertsvc;
        assert_eq!(insert(av, node.as_ptr(), service.as_ptr(), &mut numbers[1], 0, null_mut()), 1);
        assert_eq!(insert(av, node.as_ptr(), nobody.as_ptr(), &mut numbers[2], 0, null_mut()), 0);
        // An address that says nothing.
        assert_eq!(((*av).ops.insert)(av, there.src_addr, 1, &mut numbers[2], 0, null_mut()), 0);
    }
    assert_eq!(numbers, [0, 1, ADDR_UNSPEC]);
    assert_eq!(a.send(0, 1, 1, b"found", 2), 0);
    assert_eq!((a.next().expect("sent").0.op_context, b.next().expect("received").0.len), (2, 5));
    assert_eq!(&room, b"found");
    for (node, service) in [(None, "9228"), (Some("127.0.0.1"), "no port")] {
        assert_eq!(found(node, service, 0).err(), Some(-libc::ENODATA));
    }
}
