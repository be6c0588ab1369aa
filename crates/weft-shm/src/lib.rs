//! Shared memory: sealed memfds ([`sys`]), the ring that carries records from one bundle to another ([`ring`]), and the
//! bells by which a producer tells a consumer of many rings which one to look at ([`bell`]).
//! Besides, code that needs `unsafe` for other reasons, such as [`arrival`] and [`pages`].
//!
//! This crate is weft's unsafe island. The unsafe code is in `sys` (system calls that make and map memory), `mem` and `bell` (loads
//! and stores in that memory), `arrival`, `biased`, `copy`, `direct`, `evict`, `exit`, `foreign`, `fork`, `lent`, `pages`, `pull`,
//! `rights`, `segment`, `whole` and `window`. The ring is safe code over the trait [`mem::RingMem`], so that loom explores the very ring
//! that ships. Its only unsafe code reads the payload of a trusted producer in place, and views copied words as arguments and bytes.
//!
//! The process on the other side of a mapping is an attacker: geometry, cursors and limits live in private memory, each
//! foreign word is loaded once and checked, and a word that fails its check breaks the ring for good.

pub mod arrival;
pub mod barrier;
pub mod bell;
pub mod biased;
mod copy;
pub mod direct;
mod distance;
#[cfg(target_arch = "x86_64")]
mod evict;
pub mod exit;
mod foreign;
pub mod fork;
pub mod lent;
pub mod mem;
pub mod pages;
mod pull;
pub mod rights;
pub mod ring;
pub mod segment;
pub mod sys;
pub mod users;
mod whole;
pub mod window;

pub use bell::{Bell, BellMem, BellPage};
pub use direct::{Closer, Offer, Remote, RemoteError, Ticket};
pub use fork::{Descriptor, Forked, Life, Own};
pub use lent::{Lent, LentMut};
pub use mem::{MapMem, RingMem};
pub use pages::Pages;
pub use pull::{PullError, PullFrom};
pub use ring::{wakes_by_this_thread, Consumer, Lanes, Producer, Ringing, Steps, Waker};
pub use segment::{AwakePage, AwakeView, SegmentFile};
pub use sys::{OpenError, Shared};
pub use window::Window;
