//! Bundles on different hosts: the network interface, the transport and the core as they ship, over links in memory and
//! in virtual time.

mod addresses;
mod admission;
mod bounds;
mod closing;
mod endings;
mod faults;
mod refusals;
mod strangers;
mod streams;
mod transcripts;
mod world;
