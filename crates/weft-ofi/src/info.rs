//! The provider's description, and whether it suits a client's wishes.

use crate::abi::{self, DomainAttr, EpAttr, FabricAttr, Info, RxAttr, TxAttr};
use crate::addr::{self, Address, ADDRESS_BYTES};
use std::ffi::{c_char, c_int, c_void, CStr};
use std::net::SocketAddr;

/// The most bytes that an injected operation copies.
pub const INJECT_MOST: usize = 4096;

/// Pieces of a message, at most.
pub const IOV_MOST: usize = 8;

/// Operations under way at an endpoint, in each direction.
pub const OPERATIONS: usize = 4096;

/// The same in weft's reads, writes and atomic operations: an operation is cut at the end of each piece here and of each place there.
pub const MEMORY_OPERATIONS: usize = OPERATIONS * 2 * IOV_MOST;

/// The longest message.
const MESSAGE_MOST: usize = 1 << 40;

/// Our addresses, as fi_getname gives them.
pub const FORMAT: u32 = abi::PROV_SPECIFIC | 0x7765_6674;
const PROTOCOL: u32 = FORMAT;

const MESSAGES: u64 = abi::MSG | abi::TAGGED;
const SIDES: u64 = abi::SEND | abi::RECV;
const MEMORY: u64 = abi::RMA | abi::ATOMIC;
const MEMORY_SIDES: u64 = abi::READ | abi::WRITE | abi::REMOTE_READ | abi::REMOTE_WRITE;
const PRIMARY: u64 = MESSAGES | SIDES | MEMORY | MEMORY_SIDES | abi::DIRECTED_RECV;
const SECONDARY: u64 = abi::MULTI_RECV | abi::RMA_EVENT | abi::SOURCE | abi::FENCE | abi::LOCAL_COMM | abi::REMOTE_COMM;
const CAPS: u64 = PRIMARY | SECONDARY;
/// Which peers the domain reaches. The sides of an endpoint do not set this.
const COMM: u64 = abi::LOCAL_COMM | abi::REMOTE_COMM;
const TX_CAPS: u64 = MESSAGES | abi::SEND | MEMORY | abi::READ | abi::WRITE | abi::FENCE;
const RX_CAPS: u64 = MESSAGES
    | abi::RECV
    | MEMORY
    | abi::REMOTE_READ
    | abi::REMOTE_WRITE
    | abi::RMA_EVENT
    | abi::MULTI_RECV
    | abi::SOURCE
    | abi::DIRECTED_RECV;

/// Flags of operations that ask for completions.
const TX_FLAGS: u64 =
    abi::COMPLETION | abi::INJECT | abi::INJECT_COMPLETE | abi::TRANSMIT_COMPLETE | abi::DELIVERY_COMPLETE;
const RX_FLAGS: u64 = abi::COMPLETION | abi::MULTI_RECV;

/// Sends stay in order, and so do reads, writes and atomic operations: these are the bits of both, and of the kinds of the latter. There is
/// no order between a send and one of the others (bits 2 and 5 to 7).
const ORDERS: u64 = 0b1_0001_1011 | 0xff << 32;

/// libfabric's rule for results: caps and orders are what was asked for, if anything was.
fn asked_or(asked: u64, all: u64) -> u64 {
    match asked {
        0 => all,
        asked => asked,
    }
}

/// A client's wishes, read once.
#[derive(Clone, Copy, Debug)]
struct Wish {
    caps: u64,
    tx_caps: u64,
    rx_caps: u64,
    tx_flags: u64,
    rx_flags: u64,
    tx_order: u64,
    rx_order: u64,
    threading: c_int,
    control: c_int,
    data: c_int,
    av_type: c_int,
    mr_mode: c_int,
}

impl Wish {
    const NONE: Wish = Wish {
        caps: 0,
        tx_caps: 0,
        rx_caps: 0,
        tx_flags: 0,
        rx_flags: 0,
        tx_order: 0,
        rx_order: 0,
        threading: abi::THREAD_UNSPEC,
        control: abi::PROGRESS_UNSPEC,
        data: abi::PROGRESS_UNSPEC,
        av_type: abi::AV_UNSPEC,
        mr_mode: 0,
    };

    /// `None` if the provider cannot satisfy them.
    ///
    /// # Safety
    /// They are hints as a client makes them: each pointer in them is null or valid, and each name is a string.
    unsafe fn of(hints: &Info) -> Option<Wish> {
        let mut wish = Wish { caps: hints.caps, ..Wish::NONE };
        if hints.caps & !CAPS != 0 || ![abi::FORMAT_UNSPEC, FORMAT].contains(&hints.addr_format) {
            return None;
        }
        // SAFETY: the caller's promise: the pointer is null or valid.
        if let Some(ep) = unsafe { hints.ep_attr.as_ref() } {
            if !suits_ep(ep) {
                return None;
            }
        }
        // SAFETY: as above.
        if let Some(tx) = unsafe { hints.tx_attr.as_ref() } {
            if !suits_tx(tx) {
                return None;
            }
            (wish.tx_caps, wish.tx_flags, wish.tx_order) = (tx.caps, tx.op_flags, tx.msg_order);
        }
        // SAFETY: as above.
        if let Some(rx) = unsafe { hints.rx_attr.as_ref() } {
            if !suits_rx(rx) {
                return None;
            }
            (wish.rx_caps, wish.rx_flags, wish.rx_order) = (rx.caps, rx.op_flags, rx.msg_order);
        }
        // SAFETY: as above.
        if let Some(fabric) = unsafe { hints.fabric_attr.as_ref() } {
            // SAFETY: the caller's promise: a name is null or a string.
            if !unsafe { is_or_null(fabric.name, c"weft") } || !fabric.fabric.is_null() {
                return None;
            }
        }
        // SAFETY: as above.
        if let Some(domain) = unsafe { hints.domain_attr.as_ref() } {
            // SAFETY: as above.
            if !suits_domain(domain) || !unsafe { is_or_null(domain.name, c"weft0") } {
                return None;
            }
            wish.threading = domain.threading;
            (wish.control, wish.data) = (domain.control_progress, domain.data_progress);
            (wish.av_type, wish.mr_mode) = (domain.av_type, domain.mr_mode);
        }
        Some(wish)
    }
}

fn suits_ep(ep: &EpAttr) -> bool {
    [abi::EP_UNSPEC, abi::EP_RDM].contains(&ep.kind)
        && [0, PROTOCOL].contains(&ep.protocol)
        && ep.max_msg_size <= MESSAGE_MOST
        && ep.msg_prefix_size == 0
        && ep.tx_ctx_cnt <= 1
        && ep.rx_ctx_cnt <= 1
        && ep.auth_key_size == 0
}

fn suits_tx(tx: &TxAttr) -> bool {
    tx.caps & !(TX_CAPS | COMM) == 0
        && tx.op_flags & !TX_FLAGS == 0
        && tx.msg_order & !ORDERS == 0
        && tx.comp_order == 0
        && tx.inject_size <= INJECT_MOST
        && tx.size <= OPERATIONS
        && tx.iov_limit <= IOV_MOST
        && tx.rma_iov_limit <= IOV_MOST
}

fn suits_rx(rx: &RxAttr) -> bool {
    rx.caps & !(RX_CAPS | COMM) == 0
        && rx.op_flags & !RX_FLAGS == 0
        && rx.msg_order & !ORDERS == 0
        && rx.comp_order == 0
        && rx.size <= OPERATIONS
        && rx.iov_limit <= IOV_MOST
}

fn suits_domain(domain: &DomainAttr) -> bool {
    domain.cq_data_size <= size_of::<u64>()
        && domain.caps & !COMM == 0
        && domain.max_ep_tx_ctx <= 1
        && domain.max_ep_rx_ctx <= 1
        && domain.max_ep_stx_ctx == 0
        && domain.max_ep_srx_ctx == 0
        && domain.auth_key_size == 0
        && domain.domain.is_null()
}

/// # Safety
/// `text` is null or a string.
unsafe fn is_or_null(text: *const c_char, expected: &CStr) -> bool {
    // SAFETY: the caller's promise.
    text.is_null() || unsafe { CStr::from_ptr(text) } == expected
}

/// Memory that libfabric frees, zeroed.
fn made<T>() -> Option<*mut T> {
    // SAFETY: the call has no conditions.
    let memory = unsafe { libc::calloc(1, size_of::<T>()) }.cast::<T>();
    (!memory.is_null()).then_some(memory)
}

/// A string that libfabric frees.
fn named(name: &CStr) -> *mut c_char {
    // SAFETY: a `CStr` is a string that ends.
    unsafe { libc::strdup(name.as_ptr()) }
}

/// An address that libfabric frees.
fn copied(address: &[u8; ADDRESS_BYTES]) -> Option<*mut c_void> {
    let memory = made::<[u8; ADDRESS_BYTES]>()?;
    // SAFETY: it was made for that.
    unsafe { *memory = *address };
    Some(memory.cast())
}

/// The source and destination of a description.
#[derive(Clone, Copy)]
struct Ends {
    source: [u8; ADDRESS_BYTES],
    target: Option<[u8; ADDRESS_BYTES]>,
}

impl Ends {
    /// From host and port, or else from the hints. `None` if there is no such host or port.
    ///
    /// # Safety
    /// The names are null or strings. Of the hints, addresses have the lengths that they say.
    unsafe fn of(node: *const c_char, service: *const c_char, flags: u64, hints: Option<&Info>) -> Option<Ends> {
        let hinted = |address: *mut c_void, len: usize| {
            let is_ours = !address.is_null() && len == ADDRESS_BYTES;
            // SAFETY: the caller's promise.
            is_ours.then(|| unsafe { *address.cast::<[u8; ADDRESS_BYTES]>() })
        };
        let source = hints.and_then(|hints| hinted(hints.src_addr, hints.src_addrlen));
        let target = hints.and_then(|hints| hinted(hints.dest_addr, hints.dest_addrlen));
        let (mut source, mut target) = (source.unwrap_or_else(|| Address::NOWHERE.encode()), target);
        if !node.is_null() || !service.is_null() {
            // SAFETY: the caller's promise.
            let place = Address::Place(unsafe { addr::place(node, service, flags) }?).encode();
            match (flags & abi::SOURCE != 0, node.is_null()) {
                (true, _) => source = place,
                (false, false) => target = Some(place),
                // A port without a use.
                (false, true) => return None,
            }
        }
        Some(Ends { source, target })
    }
}

/// The one description, adapted to a client's wishes. `None` if memory has run out.
fn describe(version: u32, wish: &Wish, ends: &Ends) -> Option<*mut Info> {
    let (source, target) = (copied(&ends.source)?, ends.target.as_ref().map(copied));
    let target = target.map_or(Some(std::ptr::null_mut()), |target| target)?;
    let info = made::<Info>()?;
    let (tx, rx, ep) = (made::<TxAttr>()?, made::<RxAttr>()?, made::<EpAttr>()?);
    // Larger than our structures, for libfabrics that append to them.
    let (domain, fabric) =
        (made::<[DomainAttr; 2]>()?.cast::<DomainAttr>(), made::<[FabricAttr; 2]>()?.cast::<FabricAttr>());
    let caps = asked_or(wish.caps, CAPS);
    // If no side is named, all are meant.
    let implied = |what: u64, sides: u64| if caps & what != 0 && caps & sides == 0 { sides } else { 0 };
    let caps = caps | implied(MESSAGES, SIDES) | implied(MEMORY, MEMORY_SIDES);
    let caps = caps | abi::LOCAL_COMM | abi::REMOTE_COMM | abi::MULTI_RECV;
    // SAFETY: all of it was made above, so it is long enough, aligned for every type as `calloc` aligns it, and nobody else has it yet.
    // It holds zeros, which are a value of each type.
    unsafe {
        *tx = TxAttr {
            caps: asked_or(wish.tx_caps & !COMM, caps & TX_CAPS),
            op_flags: wish.tx_flags,
            msg_order: asked_or(wish.tx_order, ORDERS),
            inject_size: INJECT_MOST,
            size: OPERATIONS,
            iov_limit: IOV_MOST,
            mode: 0,
            comp_order: 0,
            rma_iov_limit: IOV_MOST,
            tclass: 0,
        };
        *rx = RxAttr {
            caps: asked_or(wish.rx_caps & !COMM, caps & RX_CAPS),
            op_flags: wish.rx_flags,
            msg_order: asked_or(wish.rx_order, ORDERS),
            size: OPERATIONS,
            iov_limit: IOV_MOST,
            mode: 0,
            comp_order: 0,
            total_buffered_recv: 0,
        };
        (*ep).kind = abi::EP_RDM;
        (*ep).protocol = PROTOCOL;
        (*ep).protocol_version = 1;
        (*ep).max_msg_size = MESSAGE_MOST;
        (*ep).max_order_raw_size = MESSAGE_MOST;
        (*ep).max_order_war_size = MESSAGE_MOST;
        (*ep).max_order_waw_size = MESSAGE_MOST;
        (*ep).mem_tag_format = u64::MAX;
        (*ep).tx_ctx_cnt = 1;
        (*ep).rx_ctx_cnt = 1;
        (*domain).name = named(c"weft0");
        (*domain).threading = if wish.threading == abi::THREAD_UNSPEC { abi::THREAD_SAFE } else { wish.threading };
        (*domain).control_progress =
            if wish.control == abi::PROGRESS_UNSPEC { abi::PROGRESS_MANUAL } else { wish.control };
        (*domain).data_progress = if wish.data == abi::PROGRESS_UNSPEC { abi::PROGRESS_MANUAL } else { wish.data };
        (*domain).resource_mgmt = abi::RM_ENABLED;
        (*domain).av_type = if wish.av_type == abi::AV_UNSPEC { abi::AV_TABLE } else { wish.av_type };
        // Nothing is demanded of the client; before 1.5 that was called scalable. A client that only knows another mode gets that.
        (*domain).mr_mode = match wish.mr_mode {
            mode if mode & (abi::MR_BASIC | abi::MR_SCALABLE) == abi::MR_BASIC => abi::MR_BASIC,
            _ if version >= abi::version(1, 5) => 0,
            _ => abi::MR_SCALABLE,
        };
        (*domain).mr_key_size = size_of::<u64>();
        (*domain).cq_data_size = size_of::<u64>();
        (*domain).cq_cnt = 1 << 16;
        (*domain).ep_cnt = 1 << 12;
        (*domain).tx_ctx_cnt = 1 << 12;
        (*domain).rx_ctx_cnt = 1 << 12;
        (*domain).max_ep_tx_ctx = 1;
        (*domain).max_ep_rx_ctx = 1;
        (*domain).cntr_cnt = 1 << 12;
        (*domain).mr_iov_limit = 1;
        (*domain).mr_cnt = 1 << 16;
        (*domain).caps = abi::LOCAL_COMM | abi::REMOTE_COMM;
        // libfabric fills in the provider's name.
        (*fabric).name = named(c"weft");
        (*fabric).prov_version = crate::VERSION;
        (*fabric).api_version = version;
        *info = Info {
            next: std::ptr::null_mut(),
            caps,
            mode: 0,
            addr_format: FORMAT,
            src_addrlen: ADDRESS_BYTES,
            dest_addrlen: if target.is_null() { 0 } else { ADDRESS_BYTES },
            src_addr: source,
            dest_addr: target,
            handle: std::ptr::null_mut(),
            tx_attr: tx,
            rx_attr: rx,
            ep_attr: ep,
            domain_attr: domain,
            fabric_attr: fabric,
            nic: std::ptr::null_mut(),
        };
    }
    Some(info)
}

/// `fi_getinfo`: one description, or `ENODATA`. Host and port are where an endpoint's name is published, or where it is asked for.
///
/// # Safety
/// As libfabric calls it: `hints` is null or what a client made, `found` can be written.
pub unsafe extern "C" fn getinfo(
    version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const Info,
    found: *mut *mut Info,
) -> c_int {
    // SAFETY: the caller's promise.
    let hints = unsafe { hints.as_ref() };
    let wish = match hints {
        None => Some(Wish::NONE),
        // SAFETY: as above.
        Some(hints) => unsafe { Wish::of(hints) },
    };
    let Some(wish) = wish else { return -libc::ENODATA };
    // SAFETY: as above.
    let Some(ends) = (unsafe { Ends::of(node, service, flags, hints) }) else { return -libc::ENODATA };
    match describe(version, &wish, &ends) {
        Some(info) => {
            // SAFETY: the caller's promise.
            unsafe { *found = info };
            0
        }
        None => -libc::ENOMEM,
    }
}

/// The settings that an endpoint is opened with.
#[derive(Clone, Copy, Debug)]
pub struct Chosen {
    pub is_directed: bool,
    /// Whether it reads, writes or changes memory of peers, or peers do so here.
    pub has_memory: bool,
    pub tx_flags: u64,
    pub rx_flags: u64,
    /// Where its address is to be published.
    pub place: Option<SocketAddr>,
}

impl Chosen {
    /// # Safety
    /// It is a description as `getinfo` gives them, or a copy.
    pub unsafe fn of(info: &Info) -> Chosen {
        // SAFETY: the caller's promise.
        let tx_flags = unsafe { info.tx_attr.as_ref() }.map_or(0, |tx| tx.op_flags);
        // SAFETY: as above.
        let rx_flags = unsafe { info.rx_attr.as_ref() }.map_or(0, |rx| rx.op_flags);
        let (is_directed, has_memory) = (info.caps & abi::DIRECTED_RECV != 0, info.caps & MEMORY != 0);
        let source = (!info.src_addr.is_null() && info.src_addrlen == ADDRESS_BYTES)
            // SAFETY: the caller's promise: an address is as long as it says.
            .then(|| unsafe { *info.src_addr.cast::<[u8; ADDRESS_BYTES]>() });
        let place = match source.as_ref().and_then(Address::decode) {
            Some(Address::Place(place)) => Some(place).filter(|place| place.port() != 0),
            Some(Address::Peer(_)) | None => None,
        };
        Chosen { is_directed, has_memory, tx_flags, rx_flags, place }
    }
}

const _: () = assert!(ADDRESS_BYTES <= 56, "the shortest buffer that clients have for an address");
