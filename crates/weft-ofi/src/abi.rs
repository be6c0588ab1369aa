//! The binary interface of libfabric 1.17, as a provider sees it: structures, tables of calls, numbers. Calls that the provider uses have
//! their real types; the others are a [`Stub`].
//!
//! Structures only grow at their ends, so the fields read here exist in every later version. A table begins with its size, by which a
//! client sees that a later call is missing.

use libc::iovec;
use std::ffi::{c_char, c_int, c_void};
use std::mem::size_of;

pub type FiAddr = u64;
/// A call that the provider does not have. On all supported platforms the caller removes the arguments, so the type does not matter.
pub type Stub = unsafe extern "C" fn() -> isize;

/// A version as the interface numbers it.
pub const fn version(major: u32, minor: u32) -> u32 {
    major << 16 | minor
}

// ---- capabilities, modes and flags

pub const MSG: u64 = 1 << 1;
pub const RMA: u64 = 1 << 2;
pub const TAGGED: u64 = 1 << 3;
pub const ATOMIC: u64 = 1 << 4;
pub const READ: u64 = 1 << 8;
pub const WRITE: u64 = 1 << 9;
pub const RECV: u64 = 1 << 10;
pub const SEND: u64 = 1 << 11;
pub const REMOTE_READ: u64 = 1 << 12;
pub const REMOTE_WRITE: u64 = 1 << 13;
pub const MULTI_RECV: u64 = 1 << 16;
pub const REMOTE_CQ_DATA: u64 = 1 << 17;
pub const PEEK: u64 = 1 << 19;
pub const FENCE: u64 = 1 << 21;
pub const COMPLETION: u64 = 1 << 24;
pub const INJECT: u64 = 1 << 25;
pub const INJECT_COMPLETE: u64 = 1 << 26;
pub const TRANSMIT_COMPLETE: u64 = 1 << 27;
pub const DELIVERY_COMPLETE: u64 = 1 << 28;
pub const LOCAL_COMM: u64 = 1 << 51;
pub const REMOTE_COMM: u64 = 1 << 52;
pub const RMA_EVENT: u64 = 1 << 56;
pub const SOURCE: u64 = 1 << 57;
pub const DIRECTED_RECV: u64 = 1 << 59;
/// Flags of a receive. Elsewhere the same numbers are capabilities and attributes.
pub const CLAIM: u64 = 1 << 59;
pub const DISCARD: u64 = 1 << 58;
/// Flags of a query for atomic operations.
pub const FETCH_ATOMIC: u64 = 1 << 58;
pub const COMPARE_ATOMIC: u64 = 1 << 59;
/// Flag: the host's name is a numeric address.
pub const NUMERICHOST: u64 = 1 << 55;
/// Flag of a binding.
pub const SELECTIVE_COMPLETION: u64 = 1 << 59;
/// The two directions of an endpoint.
pub const TRANSMIT: u64 = SEND;

pub const ADDR_UNSPEC: FiAddr = u64::MAX;
pub const PROV_SPECIFIC: u32 = 1 << 31;
pub const FORMAT_UNSPEC: u32 = 0;
pub const MR_BASIC: c_int = 1;
pub const MR_SCALABLE: c_int = 2;
pub const MR_VIRT_ADDR: c_int = 1 << 4;
pub const MR_PROV_KEY: c_int = 1 << 6;

// ---- enumerations

pub const EP_UNSPEC: c_int = 0;
pub const EP_RDM: c_int = 3;
pub const AV_UNSPEC: c_int = 0;
pub const AV_MAP: c_int = 1;
pub const AV_TABLE: c_int = 2;
pub const PROGRESS_UNSPEC: c_int = 0;
pub const PROGRESS_AUTO: c_int = 1;
pub const PROGRESS_MANUAL: c_int = 2;
pub const THREAD_UNSPEC: c_int = 0;
pub const THREAD_SAFE: c_int = 1;
pub const THREAD_DOMAIN: c_int = 3;
pub const RM_ENABLED: c_int = 2;
pub const FORMAT_CONTEXT: c_int = 1;
pub const FORMAT_MSG: c_int = 2;
pub const FORMAT_DATA: c_int = 3;
pub const FORMAT_TAGGED: c_int = 4;
pub const WAIT_NONE: c_int = 0;
pub const WAIT_UNSPEC: c_int = 1;
pub const WAIT_FD: c_int = 3;
pub const WAIT_MUTEX_COND: c_int = 4;
pub const WAIT_YIELD: c_int = 5;
pub const OPT_ENDPOINT: c_int = 0;
pub const OPT_MIN_MULTI_RECV: c_int = 0;
pub const CONTROL_GETOPSFLAG: c_int = 2;
pub const CONTROL_SETOPSFLAG: c_int = 3;
pub const CONTROL_GETWAIT: c_int = 5;
pub const CONTROL_ENABLE: c_int = 6;

pub const INT8: c_int = 0;
pub const UINT8: c_int = 1;
pub const INT16: c_int = 2;
pub const UINT16: c_int = 3;
pub const INT32: c_int = 4;
pub const UINT32: c_int = 5;
pub const INT64: c_int = 6;
pub const UINT64: c_int = 7;
pub const FLOAT: c_int = 8;
pub const DOUBLE: c_int = 9;

pub const MIN: c_int = 0;
pub const MAX: c_int = 1;
pub const SUM: c_int = 2;
pub const PROD: c_int = 3;
pub const LOR: c_int = 4;
pub const LAND: c_int = 5;
pub const BOR: c_int = 6;
pub const BAND: c_int = 7;
pub const LXOR: c_int = 8;
pub const BXOR: c_int = 9;
pub const ATOMIC_READ: c_int = 10;
pub const ATOMIC_WRITE: c_int = 11;
pub const CSWAP: c_int = 12;
pub const CSWAP_NE: c_int = 13;
pub const CSWAP_LE: c_int = 14;
pub const CSWAP_LT: c_int = 15;
pub const CSWAP_GE: c_int = 16;
pub const CSWAP_GT: c_int = 17;
pub const MSWAP: c_int = 18;

pub const CLASS_FABRIC: usize = 1;
pub const CLASS_DOMAIN: usize = 2;
pub const CLASS_EP: usize = 3;
pub const CLASS_AV: usize = 11;
pub const CLASS_MR: usize = 12;
pub const CLASS_EQ: usize = 13;
pub const CLASS_CQ: usize = 14;
pub const CLASS_CNTR: usize = 15;

// ---- errors beyond the system's

pub const ETOOSMALL: c_int = 257;
pub const EOPBADSTATE: c_int = 258;
pub const EAVAIL: c_int = 259;
pub const EBADFLAGS: c_int = 260;
pub const EOVERRUN: c_int = 268;
pub const ENOCQ: c_int = 263;
pub const ETRUNC: c_int = 265;
pub const ENOKEY: c_int = 266;
pub const ENOAV: c_int = 267;

// ---- structures that describe a fabric

#[repr(C)]
pub struct TxAttr {
    pub caps: u64,
    pub mode: u64,
    pub op_flags: u64,
    pub msg_order: u64,
    pub comp_order: u64,
    pub inject_size: usize,
    pub size: usize,
    pub iov_limit: usize,
    pub rma_iov_limit: usize,
    pub tclass: u32,
}

#[repr(C)]
pub struct RxAttr {
    pub caps: u64,
    pub mode: u64,
    pub op_flags: u64,
    pub msg_order: u64,
    pub comp_order: u64,
    pub total_buffered_recv: usize,
    pub size: usize,
    pub iov_limit: usize,
}

#[repr(C)]
pub struct EpAttr {
    pub kind: c_int,
    pub protocol: u32,
    pub protocol_version: u32,
    pub max_msg_size: usize,
    pub msg_prefix_size: usize,
    pub max_order_raw_size: usize,
    pub max_order_war_size: usize,
    pub max_order_waw_size: usize,
    pub mem_tag_format: u64,
    pub tx_ctx_cnt: usize,
    pub rx_ctx_cnt: usize,
    pub auth_key_size: usize,
    pub auth_key: *mut u8,
}

#[repr(C)]
pub struct DomainAttr {
    pub domain: *mut Fid,
    pub name: *mut c_char,
    pub threading: c_int,
    pub control_progress: c_int,
    pub data_progress: c_int,
    pub resource_mgmt: c_int,
    pub av_type: c_int,
    pub mr_mode: c_int,
    pub mr_key_size: usize,
    pub cq_data_size: usize,
    pub cq_cnt: usize,
    pub ep_cnt: usize,
    pub tx_ctx_cnt: usize,
    pub rx_ctx_cnt: usize,
    pub max_ep_tx_ctx: usize,
    pub max_ep_rx_ctx: usize,
    pub max_ep_stx_ctx: usize,
    pub max_ep_srx_ctx: usize,
    pub cntr_cnt: usize,
    pub mr_iov_limit: usize,
    pub caps: u64,
    pub mode: u64,
    pub auth_key: *mut u8,
    pub auth_key_size: usize,
    pub max_err_data: usize,
    pub mr_cnt: usize,
    pub tclass: u32,
}

#[repr(C)]
pub struct FabricAttr {
    pub fabric: *mut Fid,
    pub name: *mut c_char,
    pub prov_name: *mut c_char,
    pub prov_version: u32,
    pub api_version: u32,
}

#[repr(C)]
pub struct Info {
    pub next: *mut Info,
    pub caps: u64,
    pub mode: u64,
    pub addr_format: u32,
    pub src_addrlen: usize,
    pub dest_addrlen: usize,
    pub src_addr: *mut c_void,
    pub dest_addr: *mut c_void,
    pub handle: *mut Fid,
    pub tx_attr: *mut TxAttr,
    pub rx_attr: *mut RxAttr,
    pub ep_attr: *mut EpAttr,
    pub domain_attr: *mut DomainAttr,
    pub fabric_attr: *mut FabricAttr,
    pub nic: *mut c_void,
}

/// What libfabric knows of a provider. It writes into `context`.
#[repr(C)]
pub struct Provider {
    pub version: u32,
    pub fi_version: u32,
    pub context: [*mut c_void; 4],
    pub name: *const c_char,
    pub getinfo: unsafe extern "C" fn(u32, *const c_char, *const c_char, u64, *const Info, *mut *mut Info) -> c_int,
    pub fabric: unsafe extern "C" fn(*mut FabricAttr, *mut *mut FidFabric, *mut c_void) -> c_int,
    pub cleanup: unsafe extern "C" fn(),
}

// ---- objects

/// The head of every object.
#[repr(C)]
pub struct Fid {
    pub fclass: usize,
    pub context: *mut c_void,
    pub ops: &'static Ops,
}

#[repr(C)]
pub struct Ops {
    pub size: usize,
    pub close: unsafe extern "C" fn(*mut Fid) -> c_int,
    pub bind: unsafe extern "C" fn(*mut Fid, *mut Fid, u64) -> c_int,
    pub control: unsafe extern "C" fn(*mut Fid, c_int, *mut c_void) -> c_int,
    pub ops_open: Stub,
    pub tostr: Stub,
    pub ops_set: Stub,
}

#[repr(C)]
pub struct FidFabric {
    pub fid: Fid,
    pub ops: &'static FabricOps,
    pub api_version: u32,
}

#[repr(C)]
pub struct FabricOps {
    pub size: usize,
    pub domain: unsafe extern "C" fn(*mut FidFabric, *mut Info, *mut *mut FidDomain, *mut c_void) -> c_int,
    pub passive_ep: Stub,
    pub eq_open: unsafe extern "C" fn(*mut FidFabric, *mut EqAttr, *mut *mut FidEq, *mut c_void) -> c_int,
    pub wait_open: Stub,
    pub trywait: unsafe extern "C" fn(*mut FidFabric, *mut *mut Fid, c_int) -> c_int,
    pub domain2: unsafe extern "C" fn(*mut FidFabric, *mut Info, *mut *mut FidDomain, u64, *mut c_void) -> c_int,
}

#[repr(C)]
pub struct FidDomain {
    pub fid: Fid,
    pub ops: &'static DomainOps,
    pub mr: &'static MrOps,
}

#[repr(C)]
pub struct DomainOps {
    pub size: usize,
    pub av_open: unsafe extern "C" fn(*mut FidDomain, *mut AvAttr, *mut *mut FidAv, *mut c_void) -> c_int,
    pub cq_open: unsafe extern "C" fn(*mut FidDomain, *mut CqAttr, *mut *mut FidCq, *mut c_void) -> c_int,
    pub endpoint: unsafe extern "C" fn(*mut FidDomain, *mut Info, *mut *mut FidEp, *mut c_void) -> c_int,
    pub scalable_ep: Stub,
    pub cntr_open: unsafe extern "C" fn(*mut FidDomain, *mut CntrAttr, *mut *mut FidCntr, *mut c_void) -> c_int,
    pub poll_open: Stub,
    pub stx_ctx: Stub,
    pub srx_ctx: Stub,
    pub query_atomic: unsafe extern "C" fn(*mut FidDomain, c_int, c_int, *mut AtomicAttr, u64) -> c_int,
    pub query_collective: Stub,
    pub endpoint2: unsafe extern "C" fn(*mut FidDomain, *mut Info, *mut *mut FidEp, u64, *mut c_void) -> c_int,
}

#[repr(C)]
pub struct MrOps {
    pub size: usize,
    #[allow(clippy::type_complexity)]
    pub reg:
        unsafe extern "C" fn(*mut Fid, *const c_void, usize, u64, u64, u64, u64, *mut *mut FidMr, *mut c_void) -> c_int,
    #[allow(clippy::type_complexity)]
    pub regv:
        unsafe extern "C" fn(*mut Fid, *const iovec, usize, u64, u64, u64, u64, *mut *mut FidMr, *mut c_void) -> c_int,
    pub regattr: unsafe extern "C" fn(*mut Fid, *const MrAttr, u64, *mut *mut FidMr) -> c_int,
}

/// The first fields; the client's structure may have more.
#[repr(C)]
pub struct MrAttr {
    pub mr_iov: *const iovec,
    pub iov_count: usize,
    pub access: u64,
    pub offset: u64,
    pub requested_key: u64,
    pub context: *mut c_void,
}

#[repr(C)]
pub struct FidMr {
    pub fid: Fid,
    pub mem_desc: *mut c_void,
    pub key: u64,
}

#[repr(C)]
pub struct AvAttr {
    pub kind: c_int,
    pub rx_ctx_bits: c_int,
    pub count: usize,
    pub ep_per_node: usize,
    pub name: *const c_char,
    pub map_addr: *mut c_void,
    pub flags: u64,
}

#[repr(C)]
pub struct FidAv {
    pub fid: Fid,
    pub ops: &'static AvOps,
}

#[repr(C)]
pub struct AvOps {
    pub size: usize,
    pub insert: unsafe extern "C" fn(*mut FidAv, *const c_void, usize, *mut FiAddr, u64, *mut c_void) -> c_int,
    pub insertsvc:
        unsafe extern "C" fn(*mut FidAv, *const c_char, *const c_char, *mut FiAddr, u64, *mut c_void) -> c_int,
    pub insertsym: Stub,
    pub remove: unsafe extern "C" fn(*mut FidAv, *mut FiAddr, usize, u64) -> c_int,
    pub lookup: unsafe extern "C" fn(*mut FidAv, FiAddr, *mut c_void, *mut usize) -> c_int,
    pub straddr: unsafe extern "C" fn(*mut FidAv, *const c_void, *mut c_char, *mut usize) -> *const c_char,
    pub av_set: Stub,
}

/// Attributes of an event queue, as far as they are read.
#[repr(C)]
pub struct EqAttr {
    pub size: usize,
    pub flags: u64,
    pub wait_obj: c_int,
}

#[repr(C)]
pub struct FidEq {
    pub fid: Fid,
    pub ops: &'static EqOps,
}

#[repr(C)]
pub struct EqOps {
    pub size: usize,
    pub read: unsafe extern "C" fn(*mut FidEq, *mut u32, *mut c_void, usize, u64) -> isize,
    pub readerr: unsafe extern "C" fn(*mut FidEq, *mut c_void, u64) -> isize,
    pub write: unsafe extern "C" fn(*mut FidEq, u32, *const c_void, usize, u64) -> isize,
    pub sread: unsafe extern "C" fn(*mut FidEq, *mut u32, *mut c_void, usize, c_int, u64) -> isize,
    pub strerror: unsafe extern "C" fn(*mut FidEq, c_int, *const c_void, *mut c_char, usize) -> *const c_char,
}

#[repr(C)]
pub struct CntrAttr {
    pub events: c_int,
    pub wait_obj: c_int,
    pub wait_set: *mut c_void,
    pub flags: u64,
}

/// A mutex and a condition, as `FI_GETWAIT` returns them.
#[repr(C)]
pub struct MutexCondPlace {
    pub mutex: *mut libc::pthread_mutex_t,
    pub cond: *mut libc::pthread_cond_t,
}

#[repr(C)]
pub struct CqAttr {
    pub size: usize,
    pub flags: u64,
    pub format: c_int,
    pub wait_obj: c_int,
    pub signaling_vector: c_int,
    pub wait_cond: c_int,
    pub wait_set: *mut c_void,
}

#[repr(C)]
pub struct FidCq {
    pub fid: Fid,
    pub ops: &'static CqOps,
}

#[repr(C)]
pub struct CqOps {
    pub size: usize,
    pub read: unsafe extern "C" fn(*mut FidCq, *mut c_void, usize) -> isize,
    pub readfrom: unsafe extern "C" fn(*mut FidCq, *mut c_void, usize, *mut FiAddr) -> isize,
    pub readerr: unsafe extern "C" fn(*mut FidCq, *mut CqErrEntry, u64) -> isize,
    pub sread: unsafe extern "C" fn(*mut FidCq, *mut c_void, usize, *const c_void, c_int) -> isize,
    #[allow(clippy::type_complexity)]
    pub sreadfrom: unsafe extern "C" fn(*mut FidCq, *mut c_void, usize, *mut FiAddr, *const c_void, c_int) -> isize,
    pub signal: unsafe extern "C" fn(*mut FidCq) -> c_int,
    pub strerror: unsafe extern "C" fn(*mut FidCq, c_int, *const c_void, *mut c_char, usize) -> *const c_char,
}

/// The longest completion; shorter formats are prefixes of it. Addresses are plain numbers here: nothing is accessed through them.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CqEntry {
    pub op_context: usize,
    pub flags: u64,
    pub len: usize,
    pub buf: usize,
    pub data: u64,
    pub tag: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CqErrEntry {
    pub entry: CqEntry,
    pub olen: usize,
    pub err: c_int,
    pub prov_errno: c_int,
    pub err_data: usize,
    pub err_data_size: usize,
}

#[repr(C)]
pub struct FidCntr {
    pub fid: Fid,
    pub ops: &'static CntrOps,
}

#[repr(C)]
pub struct CntrOps {
    pub size: usize,
    pub read: unsafe extern "C" fn(*mut FidCntr) -> u64,
    pub readerr: unsafe extern "C" fn(*mut FidCntr) -> u64,
    pub add: unsafe extern "C" fn(*mut FidCntr, u64) -> c_int,
    pub set: unsafe extern "C" fn(*mut FidCntr, u64) -> c_int,
    pub wait: unsafe extern "C" fn(*mut FidCntr, u64, c_int) -> c_int,
    pub adderr: unsafe extern "C" fn(*mut FidCntr, u64) -> c_int,
    pub seterr: unsafe extern "C" fn(*mut FidCntr, u64) -> c_int,
}

#[repr(C)]
pub struct FidEp {
    pub fid: Fid,
    pub ops: &'static EpOps,
    pub cm: &'static CmOps,
    pub msg: &'static MsgOps,
    pub rma: &'static RmaOps,
    pub tagged: &'static TaggedOps,
    pub atomic: &'static AtomicOps,
    pub collective: &'static StubOps<11>,
}

#[repr(C)]
pub struct EpOps {
    pub size: usize,
    pub cancel: unsafe extern "C" fn(*mut Fid, *mut c_void) -> isize,
    pub getopt: unsafe extern "C" fn(*mut Fid, c_int, c_int, *mut c_void, *mut usize) -> c_int,
    pub setopt: unsafe extern "C" fn(*mut Fid, c_int, c_int, *const c_void, usize) -> c_int,
    pub tx_ctx: Stub,
    pub rx_ctx: Stub,
    pub rx_size_left: Stub,
    pub tx_size_left: Stub,
}

#[repr(C)]
pub struct CmOps {
    pub size: usize,
    pub setname: Stub,
    pub getname: unsafe extern "C" fn(*mut Fid, *mut c_void, *mut usize) -> c_int,
    pub getpeer: Stub,
    pub connect: Stub,
    pub listen: Stub,
    pub accept: Stub,
    pub reject: Stub,
    pub shutdown: Stub,
    pub join: Stub,
}

/// A table of calls that the provider does not have.
#[repr(C)]
pub struct StubOps<const N: usize> {
    pub size: usize,
    pub calls: [Stub; N],
}

#[repr(C)]
pub struct MsgArgs {
    pub iov: *const iovec,
    pub desc: *mut *mut c_void,
    pub iov_count: usize,
    pub addr: FiAddr,
    pub context: *mut c_void,
    pub data: u64,
}

#[repr(C)]
pub struct TaggedArgs {
    pub iov: *const iovec,
    pub desc: *mut *mut c_void,
    pub iov_count: usize,
    pub addr: FiAddr,
    pub tag: u64,
    pub ignore: u64,
    pub context: *mut c_void,
    pub data: u64,
}

#[repr(C)]
pub struct RmaIov {
    pub addr: u64,
    pub len: usize,
    pub key: u64,
}

#[repr(C)]
pub struct RmaArgs {
    pub iov: *const iovec,
    pub desc: *mut *mut c_void,
    pub iov_count: usize,
    pub addr: FiAddr,
    pub rma_iov: *const RmaIov,
    pub rma_iov_count: usize,
    pub context: *mut c_void,
    pub data: u64,
}

/// Words of this process.
#[repr(C)]
pub struct Ioc {
    pub addr: *mut c_void,
    pub count: usize,
}

/// Words of a peer.
#[repr(C)]
pub struct RmaIoc {
    pub addr: u64,
    pub count: usize,
    pub key: u64,
}

#[repr(C)]
pub struct AtomicArgs {
    pub msg_iov: *const Ioc,
    pub desc: *mut *mut c_void,
    pub iov_count: usize,
    pub addr: FiAddr,
    pub rma_iov: *const RmaIoc,
    pub rma_iov_count: usize,
    pub datatype: c_int,
    pub op: c_int,
    pub context: *mut c_void,
    pub data: u64,
}

#[repr(C)]
pub struct AtomicAttr {
    pub count: usize,
    pub size: usize,
}

type Ep = *mut FidEp;
type Iov = *const iovec;
type Desc = *mut c_void;
type Descs = *mut *mut c_void;
type Buf = *mut c_void;
type ConstBuf = *const c_void;

#[repr(C)]
pub struct MsgOps {
    pub size: usize,
    pub recv: unsafe extern "C" fn(Ep, Buf, usize, Desc, FiAddr, *mut c_void) -> isize,
    pub recvv: unsafe extern "C" fn(Ep, Iov, Descs, usize, FiAddr, *mut c_void) -> isize,
    pub recvmsg: unsafe extern "C" fn(Ep, *const MsgArgs, u64) -> isize,
    pub send: unsafe extern "C" fn(Ep, ConstBuf, usize, Desc, FiAddr, *mut c_void) -> isize,
    pub sendv: unsafe extern "C" fn(Ep, Iov, Descs, usize, FiAddr, *mut c_void) -> isize,
    pub sendmsg: unsafe extern "C" fn(Ep, *const MsgArgs, u64) -> isize,
    pub inject: unsafe extern "C" fn(Ep, ConstBuf, usize, FiAddr) -> isize,
    pub senddata: unsafe extern "C" fn(Ep, ConstBuf, usize, Desc, u64, FiAddr, *mut c_void) -> isize,
    pub injectdata: unsafe extern "C" fn(Ep, ConstBuf, usize, u64, FiAddr) -> isize,
}

#[repr(C)]
pub struct TaggedOps {
    pub size: usize,
    pub recv: unsafe extern "C" fn(Ep, Buf, usize, Desc, FiAddr, u64, u64, *mut c_void) -> isize,
    pub recvv: unsafe extern "C" fn(Ep, Iov, Descs, usize, FiAddr, u64, u64, *mut c_void) -> isize,
    pub recvmsg: unsafe extern "C" fn(Ep, *const TaggedArgs, u64) -> isize,
    pub send: unsafe extern "C" fn(Ep, ConstBuf, usize, Desc, FiAddr, u64, *mut c_void) -> isize,
    pub sendv: unsafe extern "C" fn(Ep, Iov, Descs, usize, FiAddr, u64, *mut c_void) -> isize,
    pub sendmsg: unsafe extern "C" fn(Ep, *const TaggedArgs, u64) -> isize,
    pub inject: unsafe extern "C" fn(Ep, ConstBuf, usize, FiAddr, u64) -> isize,
    pub senddata: unsafe extern "C" fn(Ep, ConstBuf, usize, Desc, u64, FiAddr, u64, *mut c_void) -> isize,
    pub injectdata: unsafe extern "C" fn(Ep, ConstBuf, usize, u64, FiAddr, u64) -> isize,
}

#[repr(C)]
pub struct RmaOps {
    pub size: usize,
    pub read: unsafe extern "C" fn(Ep, Buf, usize, Desc, FiAddr, u64, u64, *mut c_void) -> isize,
    pub readv: unsafe extern "C" fn(Ep, Iov, Descs, usize, FiAddr, u64, u64, *mut c_void) -> isize,
    pub readmsg: unsafe extern "C" fn(Ep, *const RmaArgs, u64) -> isize,
    pub write: unsafe extern "C" fn(Ep, ConstBuf, usize, Desc, FiAddr, u64, u64, *mut c_void) -> isize,
    pub writev: unsafe extern "C" fn(Ep, Iov, Descs, usize, FiAddr, u64, u64, *mut c_void) -> isize,
    pub writemsg: unsafe extern "C" fn(Ep, *const RmaArgs, u64) -> isize,
    pub inject: unsafe extern "C" fn(Ep, ConstBuf, usize, FiAddr, u64, u64) -> isize,
    pub writedata: unsafe extern "C" fn(Ep, ConstBuf, usize, Desc, u64, FiAddr, u64, u64, *mut c_void) -> isize,
    pub injectdata: unsafe extern "C" fn(Ep, ConstBuf, usize, u64, FiAddr, u64, u64) -> isize,
}

type Iocs = *const Ioc;
type IocsMut = *mut Ioc;

#[repr(C)]
#[allow(clippy::type_complexity)]
pub struct AtomicOps {
    pub size: usize,
    pub write: unsafe extern "C" fn(Ep, ConstBuf, usize, Desc, FiAddr, u64, u64, c_int, c_int, *mut c_void) -> isize,
    pub writev: unsafe extern "C" fn(Ep, Iocs, Descs, usize, FiAddr, u64, u64, c_int, c_int, *mut c_void) -> isize,
    pub writemsg: unsafe extern "C" fn(Ep, *const AtomicArgs, u64) -> isize,
    pub inject: unsafe extern "C" fn(Ep, ConstBuf, usize, FiAddr, u64, u64, c_int, c_int) -> isize,
    pub readwrite: unsafe extern "C" fn(
        Ep,
        ConstBuf,
        usize,
        Desc,
        Buf,
        Desc,
        FiAddr,
        u64,
        u64,
        c_int,
        c_int,
        *mut c_void,
    ) -> isize,
    pub readwritev: unsafe extern "C" fn(
        Ep,
        Iocs,
        Descs,
        usize,
        IocsMut,
        Descs,
        usize,
        FiAddr,
        u64,
        u64,
        c_int,
        c_int,
        *mut c_void,
    ) -> isize,
    pub readwritemsg: unsafe extern "C" fn(Ep, *const AtomicArgs, IocsMut, Descs, usize, u64) -> isize,
    pub compwrite: unsafe extern "C" fn(
        Ep,
        ConstBuf,
        usize,
        Desc,
        ConstBuf,
        Desc,
        Buf,
        Desc,
        FiAddr,
        u64,
        u64,
        c_int,
        c_int,
        *mut c_void,
    ) -> isize,
    pub compwritev: unsafe extern "C" fn(
        Ep,
        Iocs,
        Descs,
        usize,
        Iocs,
        Descs,
        usize,
        IocsMut,
        Descs,
        usize,
        FiAddr,
        u64,
        u64,
        c_int,
        c_int,
        *mut c_void,
    ) -> isize,
    pub compwritemsg:
        unsafe extern "C" fn(Ep, *const AtomicArgs, Iocs, Descs, usize, IocsMut, Descs, usize, u64) -> isize,
    pub writevalid: unsafe extern "C" fn(Ep, c_int, c_int, *mut usize) -> c_int,
    pub readwritevalid: unsafe extern "C" fn(Ep, c_int, c_int, *mut usize) -> c_int,
    pub compwritevalid: unsafe extern "C" fn(Ep, c_int, c_int, *mut usize) -> c_int,
}

/// The sizes in the headers of 1.17 on 64-bit Linux. `tests/mpi/abi.c` compares this list with the headers themselves.
macro_rules! sizes {
    ($($structure:ty: $bytes:literal),* $(,)?) => { $(const _: () = assert!(size_of::<$structure>() == $bytes);)* };
}
sizes! {
    TxAttr: 80, RxAttr: 64, EpAttr: 96, DomainAttr: 192, FabricAttr: 32, Info: 120, Provider: 72, Fid: 24, Ops: 56, FidFabric: 40,
    FabricOps: 56, FidDomain: 40, DomainOps: 96, MrOps: 32, FidMr: 40, AvAttr: 48, FidAv: 32, AvOps: 64, FidEq: 32, EqOps: 48,
    CntrAttr: 24, MutexCondPlace: 16, CqAttr: 40, FidCq: 32, CqOps: 64, CqEntry: 48, CqErrEntry: 80, FidCntr: 32, CntrOps: 64, FidEp: 80, EpOps: 64, CmOps: 80, RmaOps: 80, AtomicOps: 112,
    StubOps<11>: 96, RmaIov: 24, RmaArgs: 64, Ioc: 16, RmaIoc: 24, AtomicArgs: 72, AtomicAttr: 16, MsgArgs: 48, TaggedArgs: 64, MsgOps: 80, TaggedOps: 80,
}

/// Offsets of fields that follow one of another size, as in the headers. `tests/mpi/abi.c` compares this list too.
macro_rules! places {
    ($($structure:ty, $field:ident: $bytes:literal),* $(,)?) => {
        $(const _: () = assert!(std::mem::offset_of!($structure, $field) == $bytes);)*
    };
}
places! {
    MrAttr, context: 40, DomainAttr, mr_mode: 36, DomainAttr, caps: 136, Info, addr_format: 24, Info, tx_attr: 72, CqErrEntry, olen: 48,
    CqErrEntry, err: 56, EpOps, cancel: 8, FidEp, tagged: 56, AtomicArgs, datatype: 48,
}
