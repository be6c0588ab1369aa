//! Jobs, by `am_spmd.h`: the crate `weft-job` with an endpoint of Active Messages II.

use crate::am::{objects, system, table, Eb, En, Ep, ERR_BAD_ARG, ERR_NOT_INIT, ERR_NOT_SENT, ERR_RESOURCE, OK};
use crate::bundles::{self, NotHere, Use};
use crate::endpoints::{self, TABLE_FIRST};
use crate::guard::{guard, slice, store};
use crate::handle::Handle;
use crate::of_either;
use std::cell::RefCell;
use std::ffi::{c_char, c_int, CString};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;
use weft::Key;
use weft_job::{Ending, Job, JobError};

/// The job of this process, between begin and end. Locked during a call of `am_spmd.h`, so a handler that makes such a call fails.
static STARTED: Mutex<Option<Started>> = Mutex::new(None);

/// Lets handlers end the job.
static ENDING: Mutex<Option<Ending>> = Mutex::new(None);

/// Rank and size, which handlers may ask for.
static RANK: AtomicI32 = AtomicI32::new(-1);
static SIZE: AtomicI32 = AtomicI32::new(-1);

/// How long the end of a job waits for sent messages to end: a peer may never reply.
const SETTLES_WITHIN: Duration = Duration::from_secs(10);

struct Started {
    job: Job,
    bundle: Handle,
}

/// Why a call fails: its code, and the text of `am_spmd_error`.
struct Failed(c_int, String);

impl From<JobError> for Failed {
    fn from(error: JobError) -> Failed {
        let code = match error {
            JobError::TooLarge { .. } => ERR_BAD_ARG,
            JobError::Lost { .. } | JobError::OutOfStep { .. } => ERR_NOT_SENT,
            JobError::NotJoined | JobError::Forked => ERR_NOT_INIT,
            _ => ERR_RESOURCE,
        };
        Failed(code, error.to_string())
    }
}

impl From<NotHere> for Failed {
    fn from(not: NotHere) -> Failed {
        let (code, why) = match not {
            NotHere::Stale => (ERR_BAD_ARG, "the bundle of the job was freed"),
            NotHere::InHandler => (ERR_RESOURCE, "a handler cannot make this call"),
            NotHere::Elsewhere => (ERR_RESOURCE, "another thread uses the bundle of the job"),
            NotHere::Forked => return Failed(ERR_NOT_INIT, JobError::Forked.to_string()),
        };
        Failed(code, why.to_owned())
    }
}

thread_local! {
    static WHY: RefCell<CString> = RefCell::default();
}

/// Runs a call, and keeps its reason if it fails.
fn told(call: impl FnOnce() -> Result<(), Failed>) -> c_int {
    let broken = || Err(Failed(ERR_RESOURCE, "a fault of weft: it panicked".to_owned()));
    match guard(None, || Some(call())).unwrap_or_else(broken) {
        Ok(()) => OK,
        Err(Failed(code, why)) => {
            // A launcher's text may contain a NUL. A thread that is ending asks for no reason.
            _ = WHY.try_with(|kept| kept.replace(CString::new(why.replace('\0', " ")).unwrap_or_default()));
            code
        }
    }
}

/// The job, for one call.
fn started() -> Result<MutexGuard<'static, Option<Started>>, Failed> {
    match STARTED.try_lock() {
        Ok(started) => Ok(started),
        Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => {
            Err(Failed(ERR_RESOURCE, "a handler, or another thread, cannot make this call meanwhile".to_owned()))
        }
    }
}

fn not_begun() -> Failed {
    Failed(ERR_NOT_INIT, "the job has not begun: call am_spmd_begin first".to_owned())
}

/// Turns the code of a call of `am.h` into a result.
fn ok(code: c_int, what: &str) -> Result<(), Failed> {
    match code {
        OK => Ok(()),
        code => Err(Failed(code, format!("{what} failed"))),
    }
}

/// Begins the job.
///
/// # Safety
/// The program's promise.
#[no_mangle]
pub unsafe extern "C" fn am_spmd_begin(bundle: *mut *mut Eb, endpoint: *mut *mut Ep) -> c_int {
    told(|| {
        if bundle.is_null() || endpoint.is_null() {
            return Err(Failed(ERR_BAD_ARG, "am_spmd_begin was given NULL".to_owned()));
        }
        let mut started = started()?;
        if started.is_some() {
            return Err(Failed(ERR_RESOURCE, "the job has begun already".to_owned()));
        }
        let job = Job::from_environment()?;
        ok(system::AM_Init(), "AM_Init")?;
        let made = make(job).inspect_err(|_| _ = system::AM_Terminate())?;
        // SAFETY: the program's promise.
        unsafe { store(bundle, made.0.bundle.to_c()) };
        // SAFETY: the program's promise.
        unsafe { store(endpoint, made.1.to_c()) };
        let (rank, size) = (made.0.job.rank(), made.0.job.size());
        RANK.store(rank.try_into().unwrap_or(c_int::MAX), Ordering::Relaxed);
        SIZE.store(size.try_into().unwrap_or(c_int::MAX), Ordering::Relaxed);
        *ENDING.lock().unwrap_or_else(PoisonError::into_inner) = Some(made.0.job.ending());
        *started = Some(made.0);
        Ok(())
    })
}

/// Makes the bundle and the endpoint, and joins. If that fails, Active Messages free the bundle when they end.
fn make(mut job: Job) -> Result<(Started, Handle), Failed> {
    let (mut bundle, mut endpoint, mut name) = (std::ptr::null_mut(), std::ptr::null_mut(), En::NONE);
    // SAFETY: all of them are variables of this function.
    ok(unsafe { objects::AM_AllocateBundle(objects::SEQUENTIAL, &mut bundle) }, "AM_AllocateBundle")?;
    // SAFETY: as above.
    ok(unsafe { objects::AM_AllocateEndpoint(bundle, &mut endpoint, &mut name) }, "AM_AllocateEndpoint")?;
    // Its present key is random, and nobody knows it.
    let key = endpoints::with(
        Handle::from_c(endpoint),
        |used, endpoint, _| of_either!(used, bundle => bundle.key(endpoint)),
    )?;
    let Key(tag) = key.map_err(|error| Failed(ERR_RESOURCE, error.to_string()))?;
    ok(objects::AM_SetTag(endpoint, tag), "AM_SetTag")?;
    let size = job.size();
    if size > TABLE_FIRST {
        let size = size.try_into().unwrap_or(c_int::MAX);
        ok(table::AM_SetNumTranslations(endpoint, size), "AM_SetNumTranslations")?;
    }
    let (bundle, handle) = (Handle::from_c(bundle), Handle::from_c(endpoint));
    let mapped = endpoints::with(handle, |used, endpoint, _| match used {
        Use::Own(bundle) => job.join(bundle, endpoint),
        Use::Shared(bundle) => job.join(&mut bundle.clone(), endpoint),
    })??;
    let entries = (0..).zip(mapped.into_iter().map(|(name, Key(tag))| (name, tag)));
    endpoints::find(handle)?.said().entries.extend(entries);
    Ok((Started { job, bundle }, handle))
}

/// This process's rank, or -1.
#[no_mangle]
pub extern "C" fn am_spmd_rank() -> c_int {
    RANK.load(Ordering::Relaxed)
}

/// The number of ranks, or -1.
#[no_mangle]
pub extern "C" fn am_spmd_size() -> c_int {
    SIZE.load(Ordering::Relaxed)
}

/// Runs a call of the job with its bundle.
macro_rules! with_bundle {
    ($started:expr, $job:ident, $bundle:ident => $call:expr) => {{
        let Started { job: $job, bundle } = $started;
        bundles::with(*bundle, |used| match used {
            Use::Own($bundle) => $call,
            Use::Shared(shared) => {
                let $bundle = &mut shared.clone();
                $call
            }
        })?
    }};
}

/// Waits until all ranks have called it.
#[no_mangle]
pub extern "C" fn am_spmd_barrier() -> c_int {
    told(|| {
        let mut started = started()?;
        Ok(with_bundle!(started.as_mut().ok_or_else(not_begun)?, job, bundle => job.barrier(bundle))?)
    })
}

/// Gives bytes to all ranks.
///
/// # Safety
/// The program's promise: `bytes` are at `from`, and size times as many at `to`.
#[no_mangle]
pub unsafe extern "C" fn am_spmd_all_gather(from: *const u8, to: *mut u8, bytes: usize) -> c_int {
    told(|| {
        let mut started = started()?;
        let started = started.as_mut().ok_or_else(not_begun)?;
        // SAFETY: the program's promise.
        let gift = unsafe { slice(from, bytes) }.filter(|_| bytes == 0 || !to.is_null());
        let gift = gift.ok_or_else(|| Failed(ERR_BAD_ARG, "am_spmd_all_gather was given NULL".to_owned()))?;
        let gifts = with_bundle!(started, job, bundle => job.all_gather(bundle, gift))?;
        if let Some(other) = gifts.iter().position(|gift| gift.len() != bytes) {
            let why = format!("rank {other} gave {} bytes, and this one {bytes}", gifts[other].len());
            return Err(Failed(ERR_BAD_ARG, why));
        }
        let all = gifts.concat();
        if !all.is_empty() {
            // SAFETY: the program's promise: so many bytes have room there. `all` is new, so they do not overlap.
            unsafe { std::ptr::copy_nonoverlapping(all.as_ptr(), to, all.len()) };
        }
        Ok(())
    })
}

/// Ends the job in order.
#[no_mangle]
pub extern "C" fn am_spmd_end() -> c_int {
    told(|| {
        let mut started = started()?;
        let now = started.as_mut().ok_or_else(not_begun)?;
        with_bundle!(now, job, bundle => job.barrier(bundle))?;
        // From here on only handlers send requests. The wait lets each rank answer while the others still have their bundles.
        bundles::with(now.bundle, |used| match used {
            Use::Own(bundle) => Ok(bundle.drain_within(SETTLES_WITHIN)),
            Use::Shared(bundle) => bundle.drain_within(SETTLES_WITHIN),
        })?
        .map_err(NotHere::from)?;
        with_bundle!(now, job, bundle => job.barrier(bundle))?;
        let Some(Started { job, bundle }) = started.take() else { return Err(not_begun()) };
        *ENDING.lock().unwrap_or_else(PoisonError::into_inner) = None;
        RANK.store(-1, Ordering::Relaxed);
        SIZE.store(-1, Ordering::Relaxed);
        let freed = endpoints::free_bundle(bundle);
        let left = job.leave();
        ok(system::AM_Terminate(), "AM_Terminate")?;
        freed?;
        Ok(left?)
    })
}

/// Ends the job everywhere with this exit status, and this process.
#[no_mangle]
pub extern "C" fn am_spmd_exit(status: c_int) -> ! {
    let job = guard(None, || started().ok()?.take()).map(|started| started.job);
    match job {
        Some(job) => job.exit(status),
        // From a handler, or without a job.
        None => match ENDING.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(ending) => ending.exit(status),
            None => std::process::exit(status),
        },
    }
}

/// Why the last call failed in this thread.
#[no_mangle]
pub extern "C" fn am_spmd_error() -> *const c_char {
    guard(c"".as_ptr(), || WHY.try_with(|why| why.borrow().as_ptr()).unwrap_or(c"".as_ptr()))
}
