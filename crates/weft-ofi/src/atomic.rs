//! Atomic operations on peers' memory, as C calls them.

use crate::abi::{self, AtomicArgs, AtomicAttr, AtomicOps, FiAddr, FidDomain, FidEp, Ioc, RmaIoc};
use crate::ep::{of, Ep};
use crate::info::IOV_MOST;
use crate::memory::{Action, Changing, Remote};
use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::mem::size_of;
use weft::memory::{Atomic, Change, Lent, LentMut, Place, RegionKey, Target, Type};

pub static ATOMIC: AtomicOps = AtomicOps {
    size: size_of::<AtomicOps>(),
    write,
    writev,
    writemsg,
    inject,
    readwrite,
    readwritev,
    readwritemsg,
    compwrite,
    compwritev,
    compwritemsg,
    writevalid,
    readwritevalid,
    compwritevalid,
};

/// Bytes of words that one operation changes, at most.
const WORDS_MOST: usize = 64 << 10;

const INVALID: isize = -(libc::EINVAL as isize);
const NO_SUCH: isize = -(libc::EOPNOTSUPP as isize);

/// The three forms of calls.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    /// Nothing comes back.
    Base,
    /// Old values come back.
    Fetch,
    /// Old values come back, and there are values to compare with.
    Compare,
}

/// The operation that the client's numbers for type and operation stand for, if it exists in that form.
fn meant(of: c_int, atomic: c_int, form: Form) -> Option<(Type, Atomic)> {
    let of = match of {
        abi::INT8 => Type::I8,
        abi::UINT8 => Type::U8,
        abi::INT16 => Type::I16,
        abi::UINT16 => Type::U16,
        abi::INT32 => Type::I32,
        abi::UINT32 => Type::U32,
        abi::INT64 => Type::I64,
        abi::UINT64 => Type::U64,
        abi::FLOAT => Type::F32,
        abi::DOUBLE => Type::F64,
        _ => return None,
    };
    let atomic = match (atomic, form) {
        (abi::CSWAP, Form::Compare) => Atomic::CompareSwap,
        (abi::MSWAP, Form::Compare) => Atomic::MaskedSwap,
        (abi::CSWAP_NE, Form::Compare) => Atomic::SwapIfOther,
        (abi::CSWAP_LE, Form::Compare) => Atomic::SwapIfAtMost,
        (abi::CSWAP_LT, Form::Compare) => Atomic::SwapIfBelow,
        (abi::CSWAP_GE, Form::Compare) => Atomic::SwapIfAtLeast,
        (abi::CSWAP_GT, Form::Compare) => Atomic::SwapIfAbove,
        (_, Form::Compare) => return None,
        (abi::ATOMIC_READ, Form::Fetch) => Atomic::Read,
        (abi::MIN, _) => Atomic::Min,
        (abi::MAX, _) => Atomic::Max,
        (abi::SUM, _) => Atomic::Add,
        (abi::PROD, _) => Atomic::Multiply,
        (abi::LAND, _) => Atomic::LogicalAnd,
        (abi::LOR, _) => Atomic::LogicalOr,
        (abi::LXOR, _) => Atomic::LogicalXor,
        (abi::BOR, _) => Atomic::Or,
        (abi::BAND, _) => Atomic::And,
        (abi::BXOR, _) => Atomic::Xor,
        (abi::ATOMIC_WRITE, _) => Atomic::Write,
        _ => return None,
    };
    atomic.is_for(of).then_some((of, atomic))
}

/// Words of the client, in pieces.
#[derive(Clone, Copy)]
struct Words {
    iov: *const Ioc,
    count: usize,
}

impl Words {
    const NONE: Words = Words { iov: std::ptr::null(), count: 0 };

    /// The number of words. `None` for too many pieces, or too many words of this type.
    ///
    /// # Safety
    /// There are so many pieces.
    unsafe fn len(self, of: Type) -> Option<usize> {
        if self.count > IOV_MOST {
            return None;
        }
        // SAFETY: the caller's promise.
        let counts = (0..self.count).map(|at| unsafe { (*self.iov.add(at)).count });
        let sum = counts.fold(0, usize::saturating_add);
        (sum <= WORDS_MOST / of.bytes()).then_some(sum)
    }

    /// The words' bytes, copied.
    ///
    /// # Safety
    /// There are so many pieces, `Words::len` of them has words, and all can be read.
    unsafe fn copy(self, of: Type) -> Vec<u8> {
        let mut bytes = Vec::new();
        for at in 0..self.count {
            // SAFETY: the caller's promise.
            let piece = unsafe { &*self.iov.add(at) };
            // SAFETY: the caller's promise. The bytes are copied at once, and the value is dropped.
            let lent = unsafe { Lent::new(piece.addr.cast(), piece.count * of.bytes()) };
            bytes.extend_from_slice(lent.bytes());
        }
        bytes
    }

    /// The places for words.
    ///
    /// # Safety
    /// As [`Words::copy`], except that the words can be written, and are left alone, until the operation has ended.
    unsafe fn places(self, of: Type) -> Vec<LentMut> {
        // SAFETY: the caller's promise.
        let pieces = (0..self.count).map(|at| unsafe { &*self.iov.add(at) });
        // SAFETY: as above.
        pieces.map(|piece| unsafe { LentMut::new(piece.addr.cast(), piece.count * of.bytes()) }).collect()
    }
}

/// An atomic operation, with the arguments of all forms of calls.
struct Atomically<'a> {
    remote: Remote,
    /// Its places, if it has several.
    places: &'a [RmaIoc],
    of: c_int,
    atomic: c_int,
    form: Form,
    operands: Words,
    compare: Words,
    result: Words,
}

impl Ep {
    /// Posts an atomic operation.
    ///
    /// # Safety
    /// All words exist: operands and values to compare with until this returns, and room for results until the operation has ended.
    unsafe fn change(&self, it: Atomically<'_>) -> isize {
        let Atomically { remote, places, operands, compare, result, form, .. } = it;
        let Some((of, atomic)) = meant(it.of, it.atomic, form) else { return NO_SUCH };
        // SAFETY: the caller's promise.
        let lens = unsafe { [operands.len(of), compare.len(of), result.len(of)] };
        let [Some(words), Some(compared), Some(results)] = lens else { return INVALID };
        if form != Form::Base && results == 0 || form == Form::Compare && compared != words {
            return INVALID;
        }
        // SAFETY: the caller's promise: they can be written until the operation has ended.
        let mut rooms = unsafe { result.places(of) };
        let (old, pieces) = match rooms.len() {
            0 => (None, Vec::new()),
            1 => (Some(Target::Lent(rooms.swap_remove(0))), Vec::new()),
            _ => (Some(Target::Owned(vec![0; results * of.bytes()])), rooms),
        };
        let operands = match atomic {
            // There may be no operands. The results determine which words are read.
            Atomic::Read => vec![0; results * of.bytes()],
            _ if form != Form::Base && results != words => return INVALID,
            // SAFETY: the caller's promise: they can be read.
            _ => unsafe { operands.copy(of) },
        };
        // SAFETY: as above.
        let second = if form == Form::Compare { unsafe { compare.copy(of) } } else { Vec::new() };
        let change = Change { place: remote.place(), atomic, of };
        let changing = Changing { change, operands, second, old, pieces };
        match places.len() {
            0 | 1 => self.operate(&remote, Action::Change(Box::new(changing))),
            _ => match spread(changing, places) {
                Some(actions) => self.operate_all(&remote, actions),
                None => INVALID,
            },
        }
    }
}

/// Words that lie in one piece.
fn one(start: *const c_void, count: usize) -> Ioc {
    Ioc { addr: start.cast_mut(), count }
}

fn words(piece: &Ioc) -> Words {
    Words { iov: piece, count: 1 }
}

fn plain(to: FiAddr, addr: u64, key: u64, context: *mut c_void) -> Remote {
    Remote { to, addr, key, context: context as usize, flags: None, data: None, is_quiet: false }
}

/// Splits an operation on words at several places into one for each place. `None` if the number of words differs from that of operands.
fn spread(changing: Changing, places: &[RmaIoc]) -> Option<Vec<Action>> {
    let Changing { change, operands, second, old, pieces } = changing;
    let bytes = change.of.bytes();
    let (mut operands, mut second) = (&operands[..], &second[..]);
    let mut rooms: VecDeque<LentMut> = match old {
        Some(Target::Lent(one)) => VecDeque::from([one]),
        _ => pieces.into(),
    };
    rooms.retain(|room| !room.is_empty());
    let is_fetched = !rooms.is_empty();
    let mut actions = Vec::new();
    for place in places {
        let (mut at, mut left) = (place.addr, place.count.checked_mul(bytes)?);
        while left > 0 {
            let old = match is_fetched {
                true => Some(rooms.pop_front()?),
                false => None,
            };
            let len = old.as_ref().map_or(left, |old| old.len().min(left));
            let (these, rest) = operands.split_at_checked(len)?;
            let (those, other) = second.split_at(len.min(second.len()));
            (operands, second) = (rest, other);
            let old = old.map(|old| {
                let (old, rest) = old.split_at(len);
                if !rest.is_empty() {
                    rooms.push_front(rest);
                }
                Target::Lent(old)
            });
            let change = Change { place: Place::new(RegionKey(place.key), at), ..change };
            let (operands, second) = (these.to_vec(), those.to_vec());
            actions.push(Action::Change(Box::new(Changing { change, operands, second, old, pieces: Vec::new() })));
            (at, left) = (at.saturating_add(len as u64), left - len);
        }
    }
    (operands.is_empty() && !actions.is_empty()).then_some(actions)
}

/// The operation of a description. `None` if it has too many places at the target, or none.
///
/// # Safety
/// There are as many places as it counts, until the result is dropped.
unsafe fn described<'a>(
    msg: &AtomicArgs,
    flags: u64,
    form: Form,
    compare: Words,
    result: Words,
) -> Option<Atomically<'a>> {
    if !(1..=IOV_MOST).contains(&msg.rma_iov_count) {
        return None;
    }
    // SAFETY: the caller's promise.
    let places = unsafe { std::slice::from_raw_parts(msg.rma_iov, msg.rma_iov_count) };
    let remote = Remote { flags: Some(flags), ..plain(msg.addr, places[0].addr, places[0].key, msg.context) };
    let operands = Words { iov: msg.msg_iov, count: msg.iov_count };
    Some(Atomically { remote, places, of: msg.datatype, atomic: msg.op, form, operands, compare, result })
}

unsafe extern "C" fn write(
    ep: *mut FidEp,
    buf: *const c_void,
    count: usize,
    _desc: *mut c_void,
    to: FiAddr,
    addr: u64,
    key: u64,
    of_type: c_int,
    op: c_int,
    context: *mut c_void,
) -> isize {
    let operands = one(buf, count);
    // SAFETY: libfabric's promise of the endpoint, and the client's of the words.
    unsafe { writev(ep, &operands, std::ptr::null_mut(), 1, to, addr, key, of_type, op, context) }
}

unsafe extern "C" fn writev(
    ep: *mut FidEp,
    iov: *const Ioc,
    _desc: *mut *mut c_void,
    count: usize,
    to: FiAddr,
    addr: u64,
    key: u64,
    of_type: c_int,
    op: c_int,
    context: *mut c_void,
) -> isize {
    let it = Atomically {
        remote: plain(to, addr, key, context),
        places: &[],
        of: of_type,
        atomic: op,
        form: Form::Base,
        operands: Words { iov, count },
        compare: Words::NONE,
        result: Words::NONE,
    };
    // SAFETY: libfabric's promise of the endpoint, and the client's of the words.
    unsafe { of(ep).change(it) }
}

unsafe extern "C" fn writemsg(ep: *mut FidEp, msg: *const AtomicArgs, flags: u64) -> isize {
    // SAFETY: libfabric's promise of the endpoint, and the client's of the description.
    let (ep, msg) = unsafe { (of(ep), &*msg) };
    // SAFETY: the client's promise.
    let described = unsafe { described(msg, flags, Form::Base, Words::NONE, Words::NONE) };
    let Some(it) = described else { return INVALID };
    // SAFETY: the client's promise.
    unsafe { ep.change(it) }
}

unsafe extern "C" fn inject(
    ep: *mut FidEp,
    buf: *const c_void,
    count: usize,
    to: FiAddr,
    addr: u64,
    key: u64,
    of_type: c_int,
    op: c_int,
) -> isize {
    let operands = one(buf, count);
    let it = Atomically {
        remote: Remote { is_quiet: true, ..plain(to, addr, key, std::ptr::null_mut()) },
        places: &[],
        of: of_type,
        atomic: op,
        form: Form::Base,
        operands: words(&operands),
        compare: Words::NONE,
        result: Words::NONE,
    };
    // SAFETY: libfabric's promise of the endpoint, and the client's of the words.
    unsafe { of(ep).change(it) }
}

unsafe extern "C" fn readwrite(
    ep: *mut FidEp,
    buf: *const c_void,
    count: usize,
    _desc: *mut c_void,
    result: *mut c_void,
    _result_desc: *mut c_void,
    to: FiAddr,
    addr: u64,
    key: u64,
    of_type: c_int,
    op: c_int,
    context: *mut c_void,
) -> isize {
    let (operands, mut result) = (one(buf, count), one(result, count));
    let none = std::ptr::null_mut();
    // SAFETY: libfabric's promise of the endpoint, and the client's of the words.
    unsafe { readwritev(ep, &operands, none, 1, &mut result, none, 1, to, addr, key, of_type, op, context) }
}

unsafe extern "C" fn readwritev(
    ep: *mut FidEp,
    iov: *const Ioc,
    _desc: *mut *mut c_void,
    count: usize,
    result: *mut Ioc,
    _result_desc: *mut *mut c_void,
    result_count: usize,
    to: FiAddr,
    addr: u64,
    key: u64,
    of_type: c_int,
    op: c_int,
    context: *mut c_void,
) -> isize {
    let it = Atomically {
        remote: plain(to, addr, key, context),
        places: &[],
        of: of_type,
        atomic: op,
        form: Form::Fetch,
        operands: Words { iov, count },
        compare: Words::NONE,
        result: Words { iov: result, count: result_count },
    };
    // SAFETY: libfabric's promise of the endpoint, and the client's of the words.
    unsafe { of(ep).change(it) }
}

unsafe extern "C" fn readwritemsg(
    ep: *mut FidEp,
    msg: *const AtomicArgs,
    result: *mut Ioc,
    _result_desc: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> isize {
    // SAFETY: libfabric's promise of the endpoint, and the client's of the description.
    let (ep, msg) = unsafe { (of(ep), &*msg) };
    let result = Words { iov: result, count: result_count };
    // SAFETY: the client's promise.
    let Some(it) = (unsafe { described(msg, flags, Form::Fetch, Words::NONE, result) }) else { return INVALID };
    // SAFETY: the client's promise.
    unsafe { ep.change(it) }
}

unsafe extern "C" fn compwrite(
    ep: *mut FidEp,
    buf: *const c_void,
    count: usize,
    _desc: *mut c_void,
    compare: *const c_void,
    _compare_desc: *mut c_void,
    result: *mut c_void,
    _result_desc: *mut c_void,
    to: FiAddr,
    addr: u64,
    key: u64,
    of_type: c_int,
    op: c_int,
    context: *mut c_void,
) -> isize {
    let (operands, compare, result) = (one(buf, count), one(compare, count), one(result, count));
    let it = Atomically {
        remote: plain(to, addr, key, context),
        places: &[],
        of: of_type,
        atomic: op,
        form: Form::Compare,
        operands: words(&operands),
        compare: words(&compare),
        result: words(&result),
    };
    // SAFETY: libfabric's promise of the endpoint, and the client's of the words.
    unsafe { of(ep).change(it) }
}

unsafe extern "C" fn compwritev(
    ep: *mut FidEp,
    iov: *const Ioc,
    _desc: *mut *mut c_void,
    count: usize,
    compare: *const Ioc,
    _compare_desc: *mut *mut c_void,
    compare_count: usize,
    result: *mut Ioc,
    _result_desc: *mut *mut c_void,
    result_count: usize,
    to: FiAddr,
    addr: u64,
    key: u64,
    of_type: c_int,
    op: c_int,
    context: *mut c_void,
) -> isize {
    let it = Atomically {
        remote: plain(to, addr, key, context),
        places: &[],
        of: of_type,
        atomic: op,
        form: Form::Compare,
        operands: Words { iov, count },
        compare: Words { iov: compare, count: compare_count },
        result: Words { iov: result, count: result_count },
    };
    // SAFETY: libfabric's promise of the endpoint, and the client's of the words.
    unsafe { of(ep).change(it) }
}

unsafe extern "C" fn compwritemsg(
    ep: *mut FidEp,
    msg: *const AtomicArgs,
    compare: *const Ioc,
    _compare_desc: *mut *mut c_void,
    compare_count: usize,
    result: *mut Ioc,
    _result_desc: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> isize {
    // SAFETY: libfabric's promise of the endpoint, and the client's of the description.
    let (ep, msg) = unsafe { (of(ep), &*msg) };
    let compare = Words { iov: compare, count: compare_count };
    let result = Words { iov: result, count: result_count };
    // SAFETY: the client's promise.
    let Some(it) = (unsafe { described(msg, flags, Form::Compare, compare, result) }) else { return INVALID };
    // SAFETY: the client's promise.
    unsafe { ep.change(it) }
}

/// Returns how many words an operation may change, if the operation exists.
///
/// # Safety
/// `count` is null or can be written.
unsafe fn valid(of: c_int, op: c_int, form: Form, count: *mut usize) -> c_int {
    let Some((of, _)) = meant(of, op, form) else { return -libc::EOPNOTSUPP };
    if !count.is_null() {
        // SAFETY: the caller's promise.
        unsafe { *count = WORDS_MOST / of.bytes() };
    }
    0
}

unsafe extern "C" fn writevalid(_ep: *mut FidEp, of: c_int, op: c_int, count: *mut usize) -> c_int {
    // SAFETY: the client's promise.
    unsafe { valid(of, op, Form::Base, count) }
}

unsafe extern "C" fn readwritevalid(_ep: *mut FidEp, of: c_int, op: c_int, count: *mut usize) -> c_int {
    // SAFETY: the client's promise.
    unsafe { valid(of, op, Form::Fetch, count) }
}

unsafe extern "C" fn compwritevalid(_ep: *mut FidEp, of: c_int, op: c_int, count: *mut usize) -> c_int {
    // SAFETY: the client's promise.
    unsafe { valid(of, op, Form::Compare, count) }
}

/// `fi_query_atomic`.
pub unsafe extern "C" fn query(
    _domain: *mut FidDomain,
    of: c_int,
    op: c_int,
    attr: *mut AtomicAttr,
    flags: u64,
) -> c_int {
    let form = match flags {
        0 => Form::Base,
        abi::FETCH_ATOMIC => Form::Fetch,
        abi::COMPARE_ATOMIC => Form::Compare,
        _ => return -abi::EBADFLAGS,
    };
    let Some((of, _)) = meant(of, op, form) else { return -libc::EOPNOTSUPP };
    // SAFETY: the client's promise: there are attributes, to be written.
    unsafe { *attr = AtomicAttr { count: WORDS_MOST / of.bytes(), size: of.bytes() } };
    0
}
