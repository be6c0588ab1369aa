//! The calls that send and receive, as C makes them.

use crate::abi::{self, FiAddr, FidEp, MsgArgs, MsgOps, TaggedArgs, TaggedOps};
use crate::ep::of;
use crate::messages::{Receiving, Sending};
use libc::iovec;
use std::ffi::c_void;
use std::mem::size_of;
use weft::tagged::{Label, Lent, Tags};

pub static MSG: MsgOps =
    MsgOps { size: size_of::<MsgOps>(), recv, recvv, recvmsg, send, sendv, sendmsg, inject, senddata, injectdata };
pub static TAGGED: TaggedOps = TaggedOps {
    size: size_of::<TaggedOps>(),
    recv: trecv,
    recvv: trecvv,
    recvmsg: trecvmsg,
    send: tsend,
    sendv: tsendv,
    sendmsg: tsendmsg,
    inject: tinject,
    senddata: tsenddata,
    injectdata: tinjectdata,
};

fn plain(data: Option<u64>) -> Label {
    Label { tag: None, data }
}

fn tagged(tag: u64, data: Option<u64>) -> Label {
    Label { tag: Some(tag), data }
}

unsafe extern "C" fn recv(
    ep: *mut FidEp,
    buf: *mut c_void,
    len: usize,
    _desc: *mut c_void,
    from: FiAddr,
    context: *mut c_void,
) -> isize {
    // SAFETY: libfabric's promise.
    let ep = unsafe { of(ep) };
    // SAFETY: the client's promise.
    unsafe { ep.receive(buf, len, &Receiving::new(from, None, context, None)) }
}

unsafe extern "C" fn recvv(
    ep: *mut FidEp,
    iov: *const iovec,
    _desc: *mut *mut c_void,
    count: usize,
    from: FiAddr,
    context: *mut c_void,
) -> isize {
    // SAFETY: libfabric's promise.
    let ep = unsafe { of(ep) };
    let receiving = Receiving::new(from, None, context, None);
    // SAFETY: the client's promise.
    unsafe { ep.receive_pieces(iov, count, &receiving) }
}

unsafe extern "C" fn recvmsg(ep: *mut FidEp, msg: *const MsgArgs, flags: u64) -> isize {
    // SAFETY: libfabric's promise of the endpoint, and the client's of the message.
    let (ep, msg) = unsafe { (of(ep), &*msg) };
    let receiving = Receiving::new(msg.addr, None, msg.context, Some(flags));
    // SAFETY: the client's promise.
    unsafe { ep.receive_pieces(msg.iov, msg.iov_count, &receiving) }
}

unsafe extern "C" fn send(
    ep: *mut FidEp,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    to: FiAddr,
    context: *mut c_void,
) -> isize {
    // SAFETY: libfabric's promise.
    let ep = unsafe { of(ep) };
    let sending = Sending::new(to, plain(None), context, None);
    // SAFETY: the client's promise.
    unsafe { ep.send(buf, len, &sending) }
}

unsafe extern "C" fn sendv(
    ep: *mut FidEp,
    iov: *const iovec,
    _desc: *mut *mut c_void,
    count: usize,
    to: FiAddr,
    context: *mut c_void,
) -> isize {
    // SAFETY: libfabric's promise.
    let ep = unsafe { of(ep) };
    let sending = Sending::new(to, plain(None), context, None);
    // SAFETY: the client's promise.
    unsafe { ep.send_pieces(iov, count, &sending) }
}

unsafe extern "C" fn sendmsg(ep: *mut FidEp, msg: *const MsgArgs, flags: u64) -> isize {
    // SAFETY: libfabric's promise of the endpoint, and the client's of the message.
    let (ep, msg) = unsafe { (of(ep), &*msg) };
    let data = (flags & abi::REMOTE_CQ_DATA != 0).then_some(msg.data);
    let sending = Sending::new(msg.addr, plain(data), msg.context, Some(flags));
    // SAFETY: the client's promise.
    unsafe { ep.send_pieces(msg.iov, msg.iov_count, &sending) }
}

unsafe extern "C" fn inject(ep: *mut FidEp, buf: *const c_void, len: usize, to: FiAddr) -> isize {
    // SAFETY: libfabric's promise of the endpoint, and the client's of the bytes, which are lent until this call returns.
    unsafe { of(ep).inject(to, plain(None), Lent::new(buf.cast(), len).bytes()) }
}

unsafe extern "C" fn senddata(
    ep: *mut FidEp,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    data: u64,
    to: FiAddr,
    context: *mut c_void,
) -> isize {
    // SAFETY: libfabric's promise.
    let ep = unsafe { of(ep) };
    let sending = Sending::new(to, plain(Some(data)), context, None);
    // SAFETY: the client's promise.
    unsafe { ep.send(buf, len, &sending) }
}

unsafe extern "C" fn injectdata(ep: *mut FidEp, buf: *const c_void, len: usize, data: u64, to: FiAddr) -> isize {
    // SAFETY: libfabric's promise of the endpoint, and the client's of the bytes, which are lent until this call returns.
    unsafe { of(ep).inject(to, plain(Some(data)), Lent::new(buf.cast(), len).bytes()) }
}

unsafe extern "C" fn trecv(
    ep: *mut FidEp,
    buf: *mut c_void,
    len: usize,
    _desc: *mut c_void,
    from: FiAddr,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: libfabric's promise.
    let ep = unsafe { of(ep) };
    let tags = Some(Tags { tag, ignore });
    // SAFETY: the client's promise.
    unsafe { ep.receive(buf, len, &Receiving::new(from, tags, context, None)) }
}

unsafe extern "C" fn trecvv(
    ep: *mut FidEp,
    iov: *const iovec,
    _desc: *mut *mut c_void,
    count: usize,
    from: FiAddr,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: libfabric's promise.
    let ep = unsafe { of(ep) };
    let tags = Some(Tags { tag, ignore });
    let receiving = Receiving::new(from, tags, context, None);
    // SAFETY: the client's promise.
    unsafe { ep.receive_pieces(iov, count, &receiving) }
}

unsafe extern "C" fn trecvmsg(ep: *mut FidEp, msg: *const TaggedArgs, flags: u64) -> isize {
    // SAFETY: libfabric's promise of the endpoint, and the client's of the message.
    let (ep, msg) = unsafe { (of(ep), &*msg) };
    let tags = Some(Tags { tag: msg.tag, ignore: msg.ignore });
    let receiving = Receiving::new(msg.addr, tags, msg.context, Some(flags));
    // SAFETY: the client's promise.
    unsafe { ep.receive_pieces(msg.iov, msg.iov_count, &receiving) }
}

unsafe extern "C" fn tsend(
    ep: *mut FidEp,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    to: FiAddr,
    tag: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: libfabric's promise.
    let ep = unsafe { of(ep) };
    let sending = Sending::new(to, tagged(tag, None), context, None);
    // SAFETY: the client's promise.
    unsafe { ep.send(buf, len, &sending) }
}

unsafe extern "C" fn tsendv(
    ep: *mut FidEp,
    iov: *const iovec,
    _desc: *mut *mut c_void,
    count: usize,
    to: FiAddr,
    tag: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: libfabric's promise.
    let ep = unsafe { of(ep) };
    let sending = Sending::new(to, tagged(tag, None), context, None);
    // SAFETY: the client's promise.
    unsafe { ep.send_pieces(iov, count, &sending) }
}

unsafe extern "C" fn tsendmsg(ep: *mut FidEp, msg: *const TaggedArgs, flags: u64) -> isize {
    // SAFETY: libfabric's promise of the endpoint, and the client's of the message.
    let (ep, msg) = unsafe { (of(ep), &*msg) };
    let data = (flags & abi::REMOTE_CQ_DATA != 0).then_some(msg.data);
    let sending = Sending::new(msg.addr, tagged(msg.tag, data), msg.context, Some(flags));
    // SAFETY: the client's promise.
    unsafe { ep.send_pieces(msg.iov, msg.iov_count, &sending) }
}

unsafe extern "C" fn tinject(ep: *mut FidEp, buf: *const c_void, len: usize, to: FiAddr, tag: u64) -> isize {
    // SAFETY: libfabric's promise of the endpoint, and the client's of the bytes, which are lent until this call returns.
    unsafe { of(ep).inject(to, tagged(tag, None), Lent::new(buf.cast(), len).bytes()) }
}

unsafe extern "C" fn tsenddata(
    ep: *mut FidEp,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    data: u64,
    to: FiAddr,
    tag: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: libfabric's promise.
    let ep = unsafe { of(ep) };
    let sending = Sending::new(to, tagged(tag, Some(data)), context, None);
    // SAFETY: the client's promise.
    unsafe { ep.send(buf, len, &sending) }
}

unsafe extern "C" fn tinjectdata(
    ep: *mut FidEp,
    buf: *const c_void,
    len: usize,
    data: u64,
    to: FiAddr,
    tag: u64,
) -> isize {
    // SAFETY: libfabric's promise of the endpoint, and the client's of the bytes, which are lent until this call returns.
    unsafe { of(ep).inject(to, tagged(tag, Some(data)), Lent::new(buf.cast(), len).bytes()) }
}
