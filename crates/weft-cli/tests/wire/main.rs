//! Real processes on two hosts with `weft wire` between them: the kernel's network, with the faults that a test asks for.
//!
//! The hosts are network namespaces; the wire runs in a third one, the test's own. `unshare` and `ip` make all of them, for root or
//! for an ordinary user who may have user namespaces, and they end with their processes. Long forms run with `make soak`.

#![allow(clippy::disallowed_methods)] // a test that has no thread may panic

mod commands;
mod damage;
mod interfaces;
mod lab;
mod messages;
mod rival;
mod sessions;
mod sizes;
#[path = "../../../weft/tests/support/mod.rs"]
mod support;
#[path = "../support/mod.rs"]
mod typed;

#[test]
fn child() {
    support::play(&[("host", lab::host)]);
}
