//! A job's process and its launcher: descriptors inherited from it, and PMIx by way of its C library.
//!
//! This is a crate of its own because it is unsafe: both rely on promises of another program. It knows nothing of weft, and its interface
//! is safe.

pub mod passed;
pub mod pmix;
