//! Translation tables.

use super::{answer, not_done, not_here, En, Ep, ERR_BAD_ARG, ERR_RESOURCE, TABLE_MOST};
use crate::endpoints::{self, Said, TABLE_FIRST};
use crate::guard::store;
use crate::handle::Handle;
use crate::of_either_held;
use std::ffi::c_int;
use weft::{Error, Key, Name};

/// The index in a table. The error differs from that of a wrong handle.
fn index_in(said: &Said, index: c_int) -> Result<u32, c_int> {
    u32::try_from(index).ok().filter(|index| *index < said.table_size).ok_or(ERR_BAD_ARG)
}

/// Changes an endpoint's table, and the settings that C has made for it, under the lock of its bundle. `plan` returns the index and its new
/// entry.
fn change(
    endpoint: *mut Ep,
    plan: impl FnOnce(&Said) -> Result<(u32, Option<(Name, u64)>), c_int>,
) -> Result<u32, c_int> {
    let changed = endpoints::with(Handle::from_c(endpoint), |used, endpoint, place| {
        Ok::<_, Error>(of_either_held!(used, bundle => {
            let mut said = place.said();
            match plan(&said) {
                // Unproven, because a destination with the tag AM_ALL does not know the tag that it would have to prove.
                Ok((index, Some((name, tag)))) => {
                    bundle.map_unproven(endpoint, index, name, Key(tag))?;
                    said.entries.insert(index, (name, tag));
                    Ok(index)
                }
                Ok((index, None)) => {
                    bundle.unmap(endpoint, index)?;
                    said.entries.remove(&index);
                    Ok(index)
                }
                Err(code) => Err(code),
            }
        }))
    });
    changed.map_err(not_here)?.map_err(not_done)?
}

#[no_mangle]
pub extern "C" fn AM_Map(endpoint: *mut Ep, index: c_int, name: En, tag: u64) -> c_int {
    answer(|| {
        let name = name.name()?;
        change(endpoint, |said| {
            let index = index_in(said, index)?;
            if said.entries.contains_key(&index) {
                return Err(ERR_RESOURCE);
            }
            Ok((index, Some((name, tag))))
        })?;
        Ok(())
    })
}

/// # Safety
/// The program's promise.
#[no_mangle]
pub unsafe extern "C" fn AM_MapAny(endpoint: *mut Ep, index: *mut c_int, name: En, tag: u64) -> c_int {
    answer(|| {
        if index.is_null() {
            return Err(ERR_BAD_ARG);
        }
        let name = name.name()?;
        let chosen = change(endpoint, |said| {
            // The keys are in order, so the first one that differs from its position leaves a gap.
            let free = (0u32..).zip(said.entries.keys()).find(|(at, used)| at != *used);
            let lowest = free.map_or(said.entries.len() as u32, |(at, _)| at);
            if lowest >= said.table_size {
                return Err(ERR_RESOURCE);
            }
            Ok((lowest, Some((name, tag))))
        })?;
        // SAFETY: the program's promise. A table has fewer entries than an `int` counts.
        unsafe { store(index, chosen as c_int) };
        Ok(())
    })
}

#[no_mangle]
pub extern "C" fn AM_UnMap(endpoint: *mut Ep, index: c_int) -> c_int {
    answer(|| {
        change(endpoint, |said| {
            let index = index_in(said, index)?;
            match said.entries.contains_key(&index) {
                true => Ok((index, None)),
                false => Err(ERR_RESOURCE),
            }
        })?;
        Ok(())
    })
}

/// The entry of a table at an index.
fn entry(endpoint: *mut Ep, index: c_int) -> Result<(Name, u64), c_int> {
    let place = endpoints::find(Handle::from_c(endpoint)).map_err(not_here)?;
    let said = place.said();
    let index = index_in(&said, index)?;
    said.entries.get(&index).copied().ok_or(ERR_RESOURCE)
}

#[no_mangle]
pub extern "C" fn AM_GetTranslationInuse(endpoint: *mut Ep, index: c_int) -> c_int {
    answer(|| entry(endpoint, index).map(|_| ()))
}

/// # Safety
/// The program's promise.
#[no_mangle]
pub unsafe extern "C" fn AM_GetTranslationTag(endpoint: *mut Ep, index: c_int, tag: *mut u64) -> c_int {
    answer(|| {
        let (_, told) = entry(endpoint, index)?;
        // SAFETY: the program's promise.
        unsafe { store(tag, told) }.then_some(()).ok_or(ERR_BAD_ARG)
    })
}

/// # Safety
/// The program's promise.
#[no_mangle]
pub unsafe extern "C" fn AM_GetTranslationName(endpoint: *mut Ep, index: c_int, name: *mut En) -> c_int {
    answer(|| {
        let (told, _) = entry(endpoint, index)?;
        // SAFETY: the program's promise.
        unsafe { store(name, En::new(&told)) }.then_some(()).ok_or(ERR_BAD_ARG)
    })
}

/// Changes the tag of an entry. Allowed while messages are under way.
#[no_mangle]
pub extern "C" fn am_set_translation_tag(endpoint: *mut Ep, index: c_int, tag: u64) -> c_int {
    answer(|| {
        change(endpoint, |said| {
            let index = index_in(said, index)?;
            let (name, _) = said.entries.get(&index).ok_or(ERR_RESOURCE)?;
            Ok((index, Some((*name, tag))))
        })?;
        Ok(())
    })
}

/// # Safety
/// The program's promise.
#[no_mangle]
pub unsafe extern "C" fn AM_GetNumTranslations(endpoint: *mut Ep, count: *mut c_int) -> c_int {
    answer(|| {
        let place = endpoints::find(Handle::from_c(endpoint)).map_err(not_here)?;
        let told = place.said().table_size as c_int;
        // SAFETY: the program's promise.
        unsafe { store(count, told) }.then_some(()).ok_or(ERR_BAD_ARG)
    })
}

#[no_mangle]
pub extern "C" fn AM_SetNumTranslations(endpoint: *mut Ep, count: c_int) -> c_int {
    answer(|| {
        let place = endpoints::find(Handle::from_c(endpoint)).map_err(not_here)?;
        let count = u32::try_from(count).map_err(|_| ERR_BAD_ARG)?;
        let mut said = place.said();
        let cuts = said.entries.last_key_value().is_some_and(|(last, _)| *last >= count);
        if !(TABLE_FIRST..=TABLE_MOST).contains(&count) || cuts {
            return Err(ERR_RESOURCE);
        }
        said.table_size = count;
        Ok(())
    })
}

/// Resources are made when they are needed, so this only checks its arguments and notes that it was called.
#[no_mangle]
pub extern "C" fn AM_SetExpectedResources(endpoint: *mut Ep, endpoints: c_int, outstanding: c_int) -> c_int {
    const OUTSTANDING_MOST: c_int = 1024;
    answer(|| {
        let place = endpoints::find(Handle::from_c(endpoint)).map_err(not_here)?;
        if endpoints < 0 || !(1..=OUTSTANDING_MOST).contains(&outstanding) {
            return Err(ERR_BAD_ARG);
        }
        match std::mem::replace(&mut place.said().has_resources, true) {
            true => Err(ERR_RESOURCE),
            false => Ok(()),
        }
    })
}
