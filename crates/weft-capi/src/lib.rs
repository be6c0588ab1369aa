//! libweft: weft and Active Messages II for programs in C and C++. `docs/c.md` and `docs/am2.md` explain their use.
//!
//! The library contains no messaging logic: it turns calls of C into calls of the crate `weft`. Beyond that it has what only C needs:
//! handles that are checked without being followed (`handle.rs`), a lock that costs a sequential bundle almost nothing (`turns.rs`), tokens
//! of messages (`running.rs`), and calls with exactly as many arguments as were sent (`invoke.rs`). Panics stop in `guard.rs`.
//!
//! # Promises
//!
//! Arguments from C are checked as far as possible: handles, tokens, numbers, lengths, NULLs. The rest is the program's promise, and notes
//! on unsafe blocks refer to it:
//!
//! - *The program's promise*: a pointer that is not NULL points to as much memory as the header says, and nobody changes it during the call.
//!   A handler takes the parameters that the header says for it, and does not leave by an exception or by `longjmp`.
#![deny(unsafe_code)]

#[allow(unsafe_code)] // C calls it
mod am;
mod bundles;
#[allow(unsafe_code)] // homes are read while they change
mod endpoints;
#[allow(unsafe_code)] // memory that C names
mod guard;
#[allow(unsafe_code)] // chunks of places, which stay
mod handle;
#[allow(unsafe_code)] // handlers of C
mod invoke;
#[allow(unsafe_code)] // C calls it
mod native;
mod reasons;
#[allow(unsafe_code)] // a message that a handler of C names by its token
mod running;
#[allow(unsafe_code)] // C calls it
mod spmd;
#[allow(unsafe_code)] // a lock
mod turns;
