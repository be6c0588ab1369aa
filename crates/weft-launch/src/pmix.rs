//! PMIx, the interface of `mpirun`, `prterun` and Slurm's `srun`: the client's part of libpmix, loaded when it is first needed.
//!
//! Types and numbers are those of the PMIx standard 4, which later ones keep.

use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::fmt;
use std::mem::{offset_of, size_of};
use std::ptr;

/// The library's name; all versions since PMIx 3 have it.
const LIBRARY: &str = "libpmix.so.2";

/// The environment variable that says where the launcher's PMIx is installed. Its library is tried first: with a library of another version
/// the launcher falls back to an older protocol, and complains.
const PREFIX: &str = "PMIX_PREFIX";
/// Where the library may lie below that.
const FOLDERS: [&str; 2] = ["lib", "lib/openmpi"];

const KEY_BYTES: usize = 512;
const NAMESPACE_BYTES: usize = 256;

const SUCCESS: c_int = 0;
const RANK_OF_ALL: u32 = u32::MAX - 1;
const SCOPE_GLOBAL: u8 = 3;
const TYPE_BOOL: u16 = 1;
const TYPE_UINT32: u16 = 14;
const TYPE_BYTES: u16 = 27;
const JOB_SIZE: &CStr = c"pmix.job.size";
const COLLECT_DATA: &CStr = c"pmix.collect";

/// The most bytes of a value that is taken from another process.
const VALUE_MOST: usize = 1 << 20;

/// `pmix_proc_t`
#[repr(C)]
#[derive(Clone, Copy)]
struct Proc {
    namespace: [c_char; NAMESPACE_BYTES],
    rank: u32,
}

/// `pmix_byte_object_t`
#[repr(C)]
#[derive(Clone, Copy)]
struct Bytes {
    bytes: *mut c_char,
    size: usize,
}

/// The union in `pmix_value_t`. Its largest member, `pmix_envar_t`, has three words.
#[repr(C)]
#[derive(Clone, Copy)]
union Data {
    flag: bool,
    uint32: u32,
    bytes: Bytes,
    all: [usize; 3],
}

/// `pmix_value_t`
#[repr(C)]
#[derive(Clone, Copy)]
struct Value {
    kind: u16,
    data: Data,
}

/// `pmix_info_t`
#[repr(C)]
struct Info {
    key: [c_char; KEY_BYTES],
    flags: u32,
    value: Value,
}

const _: () = assert!(size_of::<Proc>() == 260 && offset_of!(Proc, rank) == 256);
#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<Value>() == 32 && size_of::<Info>() == 552 && offset_of!(Info, value) == 520);

type Init = unsafe extern "C" fn(*mut Proc, *mut Info, usize) -> c_int;
type Finalize = unsafe extern "C" fn(*const Info, usize) -> c_int;
type Put = unsafe extern "C" fn(u8, *const c_char, *mut Value) -> c_int;
type Commit = unsafe extern "C" fn() -> c_int;
type Fence = unsafe extern "C" fn(*const Proc, usize, *const Info, usize) -> c_int;
type Get = unsafe extern "C" fn(*const Proc, *const c_char, *const Info, usize, *mut *mut Value) -> c_int;
type Abort = unsafe extern "C" fn(c_int, *const c_char, *mut Proc, usize) -> c_int;
type ErrorString = unsafe extern "C" fn(c_int) -> *const c_char;

/// The functions of the library that are called here.
#[derive(Clone, Copy)]
struct Library {
    init: Init,
    finalize: Finalize,
    put: Put,
    commit: Commit,
    fence: Fence,
    get: Get,
    abort: Abort,
    error_string: ErrorString,
}

/// Why a call of PMIx failed.
#[derive(Debug, thiserror::Error)]
pub enum PmixError {
    /// The library cannot be loaded.
    #[error("cannot load libpmix.so.2: {0}. Install it (Debian: libpmix2), or set LD_LIBRARY_PATH to the folder of the launcher's own")]
    Library(String),
    /// The library or the launcher refused something.
    #[error("{call}: {said}. Check that mpirun, prterun or srun started this process and still runs")]
    Refused {
        /// The function.
        call: &'static str,
        /// The library's words for its status.
        said: String,
    },
    /// A value is missing, or not of the kind that weft stores there.
    #[error("another process of the job stored a value that weft does not store; start the same program everywhere")]
    Strange,
}

/// A process's connection to its launcher by PMIx.
pub struct Pmix {
    library: Library,
    me: Proc,
    size: u32,
    /// `PMIx_Finalize` was called.
    has_left: bool,
}

impl fmt::Debug for Pmix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pmix").field("rank", &self.me.rank).field("size", &self.size).finish_non_exhaustive()
    }
}

impl Pmix {
    /// Loads the library and connects. Blocks until the launcher has answered.
    ///
    /// # Errors
    /// If there is no library, or no launcher that answers.
    pub fn connect() -> Result<Pmix, PmixError> {
        let library = Library::load()?;
        let mut me = Proc { namespace: [0; NAMESPACE_BYTES], rank: 0 };
        // SAFETY: `me` is a `pmix_proc_t` that the call fills in; no info is passed.
        let status = unsafe { (library.init)(&mut me, ptr::null_mut(), 0) };
        library.check("PMIx_Init", status)?;
        me.namespace[NAMESPACE_BYTES - 1] = 0;
        let mut pmix = Pmix { library, me, size: 0, has_left: false };
        pmix.size = pmix.job_size()?;
        Ok(pmix)
    }

    /// This process's rank among the processes of the job.
    pub fn rank(&self) -> u32 {
        self.me.rank
    }

    /// The number of processes of the job.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Puts bytes under a key, for all processes of the job to [get](Pmix::get) after the next [fence](Pmix::fence).
    ///
    /// # Errors
    /// If the library refuses.
    pub fn put(&mut self, key: &str, bytes: &[u8]) -> Result<(), PmixError> {
        let key = as_key(key)?;
        let mut data = Data { all: [0; 3] };
        data.bytes = Bytes { bytes: bytes.as_ptr().cast_mut().cast(), size: bytes.len() };
        let mut value = Value { kind: TYPE_BYTES, data };
        // SAFETY: the key ends with a zero. The library copies the value before it returns, and does not write to its bytes.
        let status = unsafe { (self.library.put)(SCOPE_GLOBAL, key.as_ptr(), &mut value) };
        self.library.check("PMIx_Put", status)?;
        // SAFETY: it takes nothing.
        let status = unsafe { (self.library.commit)() };
        self.library.check("PMIx_Commit", status)
    }

    /// Waits until all processes of the job have called this. Their values can be [got](Pmix::get) then. Blocks.
    ///
    /// # Errors
    /// If the library refuses, or a process has ended.
    pub fn fence(&mut self) -> Result<(), PmixError> {
        let all = Proc { rank: RANK_OF_ALL, ..self.me };
        let mut data = Data { all: [0; 3] };
        data.flag = true;
        let mut collect = Info { key: [0; KEY_BYTES], flags: 0, value: Value { kind: TYPE_BOOL, data } };
        for (to, &from) in collect.key.iter_mut().zip(COLLECT_DATA.to_bytes()) {
            *to = from as c_char;
        }
        // SAFETY: one `pmix_proc_t` and one `pmix_info_t`, which the call reads and does not keep: it returns when the fence is over.
        let status = unsafe { (self.library.fence)(&all, 1, &collect, 1) };
        self.library.check("PMIx_Fence", status)
    }

    /// Gets the bytes that a process has put under a key.
    ///
    /// # Errors
    /// If it has put nothing there, or a value of another kind.
    pub fn get(&mut self, rank: u32, key: &str) -> Result<Vec<u8>, PmixError> {
        let key = as_key(key)?;
        self.get_value(Proc { rank, ..self.me }, &key, |value| {
            if value.kind != TYPE_BYTES {
                return None;
            }
            // SAFETY: this kind of value has bytes.
            let Bytes { bytes, size } = unsafe { value.data.bytes };
            match size {
                0 => Some(Vec::new()),
                _ if bytes.is_null() || size > VALUE_MOST => None,
                // SAFETY: the library says that this many bytes are there. They stay there until the value is freed, further down.
                _ => Some(unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), size) }.to_vec()),
            }
        })
    }

    /// Ends the whole job with this status. The launcher kills this process as well, but the call may return before that.
    ///
    /// # Errors
    /// If the library refuses.
    pub fn abort(&mut self, status: i32) -> Result<(), PmixError> {
        let message = c"the program asked for it";
        // No list of ranks: that is the whole job. With a list of all of them, Open MPI's launcher ends only the ranks of this host.
        // SAFETY: a text with a zero at its end, and no list.
        let told = unsafe { (self.library.abort)(status, message.as_ptr(), std::ptr::null_mut(), 0) };
        self.library.check("PMIx_Abort", told)
    }

    /// Tells the launcher that this process no longer needs it. Without this the launcher takes the process's end for a failure.
    ///
    /// # Errors
    /// If the library refuses.
    pub fn leave(&mut self) -> Result<(), PmixError> {
        if std::mem::replace(&mut self.has_left, true) {
            return Ok(());
        }
        // SAFETY: no info is passed, and nothing is called after this.
        let status = unsafe { (self.library.finalize)(ptr::null(), 0) };
        self.library.check("PMIx_Finalize", status)
    }

    /// In a forked child: leaves the connection to the parent.
    pub fn forget(&mut self) {
        self.has_left = true;
    }

    fn job_size(&self) -> Result<u32, PmixError> {
        self.get_value(Proc { rank: RANK_OF_ALL, ..self.me }, JOB_SIZE, |value| {
            if value.kind != TYPE_UINT32 {
                return None;
            }
            // SAFETY: this kind of value has 32 bits, and any bits are a number.
            Some(unsafe { value.data.uint32 })
        })
    }

    /// Gets a value, reads it and frees it.
    fn get_value<R>(&self, of: Proc, key: &CStr, read: impl FnOnce(&Value) -> Option<R>) -> Result<R, PmixError> {
        let mut found: *mut Value = ptr::null_mut();
        // SAFETY: one `pmix_proc_t`, a text with a zero at its end, no info, and a place for the pointer to the value.
        let status = unsafe { (self.library.get)(&of, key.as_ptr(), ptr::null(), 0, &mut found) };
        self.library.check("PMIx_Get", status)?;
        // SAFETY: after success this is null or points to a value that is ours.
        let Some(value) = (unsafe { found.as_ref() }) else { return Err(PmixError::Strange) };
        let result = read(value);
        if value.kind == TYPE_BYTES {
            // SAFETY: this kind of value has bytes, which the library got from malloc for us. As PMIX_VALUE_RELEASE does it.
            unsafe { libc::free(value.data.bytes.bytes.cast::<c_void>()) };
        }
        // SAFETY: the value is ours, it is from malloc, and nobody refers to it any more.
        unsafe { libc::free(found.cast::<c_void>()) };
        result.ok_or(PmixError::Strange)
    }
}

impl Drop for Pmix {
    fn drop(&mut self) {
        // There is nobody to report an error to.
        let _ = self.leave();
    }
}

/// The files that may be the library, the preferred one first.
fn candidates() -> Vec<CString> {
    // SAFETY: it takes a number, and returns one.
    let is_privileged = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    // As the system's loader ignores LD_LIBRARY_PATH: the user of a privileged program must not choose its libraries.
    let prefix = std::env::var(PREFIX).ok().filter(|prefix| prefix.starts_with('/') && !is_privileged);
    let own = prefix.iter().flat_map(|prefix| FOLDERS.map(|folder| format!("{prefix}/{folder}/{LIBRARY}")));
    own.chain([LIBRARY.to_owned()]).filter_map(|path| CString::new(path).ok()).collect()
}

fn as_key(key: &str) -> Result<CString, PmixError> {
    CString::new(key).ok().filter(|key| key.as_bytes().len() < KEY_BYTES).ok_or(PmixError::Strange)
}

impl Library {
    fn load() -> Result<Library, PmixError> {
        // Global, because its plug-ins need its symbols. It is never unloaded, because it has a thread.
        let open = |path: &CString| {
            // SAFETY: a text with a zero at its end. Libraries run code when they are loaded; these are the launcher's or the system's own.
            unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) }
        };
        let handle = candidates().iter().map(open).find(|handle| !handle.is_null());
        let handle = handle.ok_or_else(|| PmixError::Library(last_error()))?;
        let find = |name: &CStr| {
            // SAFETY: the handle is of a library that is loaded, and the name ends with a zero.
            let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
            match found.is_null() {
                true => Err(PmixError::Library(last_error())),
                false => Ok(found),
            }
        };
        // SAFETY: each is a function of the type that the PMIx standard gives it, and is not null.
        unsafe {
            Ok(Library {
                init: std::mem::transmute::<*mut c_void, Init>(find(c"PMIx_Init")?),
                finalize: std::mem::transmute::<*mut c_void, Finalize>(find(c"PMIx_Finalize")?),
                put: std::mem::transmute::<*mut c_void, Put>(find(c"PMIx_Put")?),
                commit: std::mem::transmute::<*mut c_void, Commit>(find(c"PMIx_Commit")?),
                fence: std::mem::transmute::<*mut c_void, Fence>(find(c"PMIx_Fence")?),
                get: std::mem::transmute::<*mut c_void, Get>(find(c"PMIx_Get")?),
                abort: std::mem::transmute::<*mut c_void, Abort>(find(c"PMIx_Abort")?),
                error_string: std::mem::transmute::<*mut c_void, ErrorString>(find(c"PMIx_Error_string")?),
            })
        }
    }

    fn check(&self, call: &'static str, status: c_int) -> Result<(), PmixError> {
        if status == SUCCESS {
            return Ok(());
        }
        // SAFETY: it takes a number, and returns a text of the library's own or null.
        let text = unsafe { (self.error_string)(status) };
        let said = match text.is_null() {
            true => format!("status {status}"),
            // SAFETY: not null, and a constant of the library that ends with a zero.
            false => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
        };
        Err(PmixError::Refused { call, said })
    }
}

/// The loader's words for its last error.
fn last_error() -> String {
    // SAFETY: it takes nothing, and returns a text of this thread's or null.
    let text = unsafe { libc::dlerror() };
    match text.is_null() {
        true => "no reason is known".to_owned(),
        // SAFETY: not null, and valid until the next call of the loader in this thread.
        false => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
    }
}
