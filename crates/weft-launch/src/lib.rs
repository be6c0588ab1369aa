//! What a process of a job takes from its launcher by numbers and by C: a descriptor that it inherited, and libpmix.
//!
//! This crate is apart because it is unsafe: both are promises of another program. It knows nothing of weft, and what it offers is safe.

pub mod passed;
pub mod pmix;
