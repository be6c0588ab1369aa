//! Stamps of the requests that operations make, for `weft trace --stages`.

use super::Engine;
use crate::paths::Outlet;
use crate::status::recorder::{Place, Recorder, What};
use crate::status::stamps::now;
use crate::status::Operation;
use weft_core::State;

/// Posts an operation to an index. If requests are stamped and the operation made one, records it. Operations of several pieces are
/// not recorded, nor those before which the engine asks for the region.
#[inline(always)]
pub(super) fn stamped<R>(
    stamps: &mut Option<&mut Recorder>,
    (engine, state): (&mut Engine, &mut State<Outlet>),
    (to, operation): (u32, Operation),
    post: impl FnOnce(&mut Engine, &mut State<Outlet>) -> R,
) -> R {
    match stamps {
        None => post(engine, state),
        Some(recorder) => note(recorder, (engine, state), (to, operation), post),
    }
}

#[cold]
#[inline(never)]
fn note<R>(
    recorder: &mut Recorder,
    (engine, state): (&mut Engine, &mut State<Outlet>),
    (to, operation): (u32, Operation),
    post: impl FnOnce(&mut Engine, &mut State<Outlet>) -> R,
) -> R {
    let from = engine.endpoint();
    let (before, attaching) = (state.asking(from, to), engine.attaching());
    let called = now();
    let posted = post(engine, state);
    let written = now();
    if let (Some((flow, before)), Some((same, after))) = (before, state.asking(from, to)) {
        let new = after & !before;
        if flow == same && new.is_power_of_two() && engine.attaching() == attaching {
            let what = What { operation: Some(operation), region: None };
            recorder.asking.put(Place { flow, slot: new.trailing_zeros() as u16 }, what, [called, written]);
        }
    }
    posted
}
