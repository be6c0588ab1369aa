use super::{answer, Fault};
use crate::guard::store;
use crate::handle::{Handle, Kind, Table};
use std::ffi::c_int;
use std::sync::{Mutex, PoisonError};
use weft::Node;

/// A process's network interface.
pub struct WeftNode;

static NODES: Table<Mutex<Option<Node>>> = Table::new(Kind::Node);

pub fn find(node: *mut WeftNode) -> Result<Node, Fault> {
    let place = NODES.find(Handle::from_c(node)).ok_or(Fault::Handle)?;
    place.lock().unwrap_or_else(PoisonError::into_inner).clone().ok_or(Fault::Handle)
}

/// Makes a node. A process needs one.
///
/// # Safety
/// The program's promise.
#[no_mangle]
pub unsafe extern "C" fn weft_node_new(node: *mut *mut WeftNode) -> c_int {
    answer(|| {
        if node.is_null() {
            return Err(Fault::Argument);
        }
        let made = Node::new()?;
        let (place, handle) = NODES.take().ok_or(Fault::System)?;
        *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(made);
        place.publish(handle);
        // SAFETY: the program's promise.
        unsafe { store(node, handle.to_c()) };
        Ok(())
    })
}

/// Gives a node up. Its bundles stay until they are freed.
#[no_mangle]
pub extern "C" fn weft_node_free(node: *mut WeftNode) -> c_int {
    answer(|| {
        let handle = Handle::from_c(node);
        let place = NODES.find(handle).ok_or(Fault::Handle)?;
        if !place.withdraw(handle) {
            return Err(Fault::Handle);
        }
        let node = place.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(node);
        NODES.give_back(handle);
        Ok(())
    })
}
