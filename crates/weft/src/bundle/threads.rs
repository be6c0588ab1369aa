//! In which threads a bundle's handlers may run.

use crate::am::{Context, Message};
use crate::net::Users;
use weft_core::Returned;

/// In which threads a bundle's handlers may run: [`OneThread`] or [`AnyThread`].
pub trait Threads: sealed::Sealed + 'static {
    /// Runs when a message for it arrives.
    type Handler: FnMut(&mut Message<'_>);
    /// Runs when a message comes back.
    type ReturnHandler: FnMut(&mut Context<'_>, Returned);
}

/// In the thread that made the bundle: handlers may hold what cannot be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OneThread {}

/// In any thread, one at a time: handlers hold only what can be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AnyThread {}

impl Threads for OneThread {
    type Handler = Box<dyn FnMut(&mut Message<'_>)>;
    type ReturnHandler = Box<dyn FnMut(&mut Context<'_>, Returned)>;
}

impl Threads for AnyThread {
    type Handler = Box<dyn FnMut(&mut Message<'_>) + Send>;
    type ReturnHandler = Box<dyn FnMut(&mut Context<'_>, Returned) + Send>;
}

pub(crate) mod sealed {
    use super::{AnyThread, OneThread, Users};

    /// Nobody else can say in which threads handlers run.
    pub trait Sealed {
        #[doc(hidden)]
        const USERS: Users;
    }

    impl Sealed for OneThread {
        const USERS: Users = Users::OneThread;
    }

    impl Sealed for AnyThread {
        const USERS: Users = Users::SeveralThreads;
    }
}
