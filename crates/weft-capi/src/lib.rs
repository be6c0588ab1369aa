//! libweft: weft for programs in C and C++, and Active Messages II. `docs/c.md` and `docs/am2.md` say how they are used.
//!
//! The library holds no logic of its own that belongs to messages: it turns what C passes into calls of the crate `weft` and back. What is
//! here is what C needs beside that: handles that are recognised without following them (`handle.rs`), a lock that a sequential bundle does not
//! notice (`turns.rs`), tokens of messages (`running.rs`), calls with exactly as many arguments as were sent (`invoke.rs`).
//! A panic ends in `guard.rs`.
//!
//! # Promises
//!
//! What C passes is checked as far as it can be: handles, tokens, numbers, lengths, NULLs. The rest is the program's promise, and notes
//! on unsafe blocks name it:
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
