use super::{answer, limit, note, Fault};
use crate::guard::{slice, store};
use std::ffi::{c_char, c_int, CStr};
use std::time::Duration;
use weft::{Key, Name};

/// Bytes of a name as text, with its end.
pub const WEFT_NAME_TEXT: usize = 61;

/// An endpoint's name: 40 bytes that may be sent and stored as they are.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct WeftName {
    pub bytes: [u8; 40],
}

impl WeftName {
    pub fn new(name: &Name) -> WeftName {
        WeftName { bytes: name.to_bytes() }
    }

    pub fn name(&self) -> Result<Name, Fault> {
        Name::from_bytes(&self.bytes).map_err(|error| {
            note(&error.to_string());
            Fault::Name
        })
    }
}

/// Reads a name from C.
///
/// # Safety
/// The program's promise.
pub unsafe fn read(name: *const WeftName) -> Result<Name, Fault> {
    // SAFETY: the program's promise.
    match unsafe { slice(name, 1) } {
        Some([name]) => name.name(),
        _ => Err(Fault::Argument),
    }
}

/// Reads a text from C.
///
/// # Safety
/// The program's promise: it ends, and stays during the call.
unsafe fn text<'a>(text: *const c_char) -> Result<&'a str, Fault> {
    if text.is_null() {
        return Err(Fault::Argument);
    }
    // SAFETY: it is not NULL; the program's promise.
    unsafe { CStr::from_ptr(text) }.to_str().map_err(|_| Fault::Name)
}

/// Writes a name as text, with a NUL at its end: WEFT_NAME_TEXT bytes.
///
/// # Safety
/// The program's promise: there is room for `size` bytes.
#[no_mangle]
pub unsafe extern "C" fn weft_name_print(name: *const WeftName, text: *mut c_char, size: usize) -> c_int {
    answer(|| {
        // SAFETY: the program's promise.
        let printed = unsafe { read(name) }?.to_string();
        if text.is_null() || size < WEFT_NAME_TEXT || printed.len() >= size {
            return Err(Fault::Argument);
        }
        // SAFETY: the program's promise, and the text with its end is not longer than `size`.
        unsafe { std::ptr::copy_nonoverlapping(printed.as_ptr().cast(), text, printed.len()) };
        // SAFETY: as above.
        unsafe { text.add(printed.len()).write(0) };
        Ok(())
    })
}

/// Reads a name as weft_name_print writes it.
///
/// # Safety
/// The program's promise.
#[no_mangle]
pub unsafe extern "C" fn weft_name_parse(text: *const c_char, name: *mut WeftName) -> c_int {
    answer(|| {
        // SAFETY: the program's promise.
        let parsed: Result<Name, _> = unsafe { self::text(text) }?.parse();
        let parsed = parsed.map_err(|error| {
            note(&format!("{error}"));
            Fault::Name
        })?;
        // SAFETY: the program's promise.
        unsafe { store(name, WeftName::new(&parsed)) }.then_some(()).ok_or(Fault::Argument)
    })
}

/// Whether two names mean the same endpoint: 1 or 0. Their bytes may differ in the address.
///
/// # Safety
/// The program's promise.
#[no_mangle]
pub unsafe extern "C" fn weft_name_equal(one: *const WeftName, other: *const WeftName) -> c_int {
    crate::guard::guard(0, || {
        // SAFETY: the program's promise.
        match (unsafe { read(one) }, unsafe { read(other) }) {
            (Ok(one), Ok(other)) => (one == other).into(),
            _ => 0,
        }
    })
}

/// Reads a key: 1 to 16 hexadecimal digits.
///
/// # Safety
/// The program's promise.
#[no_mangle]
pub unsafe extern "C" fn weft_key_parse(text: *const c_char, key: *mut u64) -> c_int {
    answer(|| {
        // SAFETY: the program's promise.
        let parsed: Key = unsafe { self::text(text) }?.parse().map_err(|_| Fault::Name)?;
        // SAFETY: the program's promise.
        unsafe { store(key, parsed.0) }.then_some(()).ok_or(Fault::Argument)
    })
}

/// Asks a name server for a name and its key: `place` is HOST:PORT or HOST:PORT/LABEL. Blocks for `milliseconds` at most; if that is
/// negative, for 10 s.
///
/// # Safety
/// The program's promise.
#[no_mangle]
pub unsafe extern "C" fn weft_resolve(
    place: *const c_char,
    milliseconds: c_int,
    name: *mut WeftName,
    key: *mut u64,
) -> c_int {
    answer(|| {
        if name.is_null() || key.is_null() {
            return Err(Fault::Argument);
        }
        // SAFETY: the program's promise.
        let place = unsafe { self::text(place) }?;
        let limit = limit(milliseconds).unwrap_or(Duration::from_secs(10));
        let contact = weft::names::resolve(place, limit).map_err(weft::Error::from)?;
        // SAFETY: the program's promise.
        unsafe { store(name, WeftName::new(&contact.name)) };
        // SAFETY: the program's promise.
        unsafe { store(key, contact.key.0) };
        Ok(())
    })
}
