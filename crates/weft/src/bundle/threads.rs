//! The threads in which a bundle's handlers and clients may run.

use super::own::Attached;
use crate::am::{Context, Message};
use crate::memory::{Memory, Notice};
use crate::net::Users;
use std::any::Any;
use weft_core::Returned;

/// The threads in which a bundle's handlers may run: [`OneThread`] or [`AnyThread`].
pub trait Threads: sealed::Sealed + 'static {
    /// A handler, which runs when a message for it arrives.
    type Handler: FnMut(&mut Message<'_>);
    /// A handler that runs when a message comes back.
    type ReturnHandler: FnMut(&mut Context<'_>, Returned);
    /// A handler that runs when a peer's write with a notice is whole.
    type NoticeHandler: FnMut(&mut Memory<'_>, Notice);
}

/// Handlers run in the thread that made the bundle, and need not be [`Send`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OneThread {}

/// Handlers run in any thread, one at a time, and must be [`Send`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AnyThread {}

impl Threads for OneThread {
    type Handler = Box<dyn FnMut(&mut Message<'_>)>;
    type ReturnHandler = Box<dyn FnMut(&mut Context<'_>, Returned)>;
    type NoticeHandler = Box<dyn FnMut(&mut Memory<'_>, Notice)>;
}

impl Threads for AnyThread {
    type Handler = Box<dyn FnMut(&mut Message<'_>) + Send>;
    type ReturnHandler = Box<dyn FnMut(&mut Context<'_>, Returned) + Send>;
    type NoticeHandler = Box<dyn FnMut(&mut Memory<'_>, Notice) + Send>;
}

pub(crate) mod sealed {
    use super::{Any, AnyThread, Attached, OneThread, Users};
    use crate::paths::Outlet;
    use weft_core::Client;

    /// Keeps other crates from implementing [`Threads`](super::Threads).
    pub trait Sealed {
        #[doc(hidden)]
        const USERS: Users;
        /// A client that the program attached.
        #[doc(hidden)]
        type Client: Client<Outlet>;

        #[doc(hidden)]
        fn as_any_mut(client: &mut Self::Client) -> &mut dyn Any;
    }

    impl Sealed for OneThread {
        const USERS: Users = Users::OneThread;
        type Client = Box<dyn Attached>;

        fn as_any_mut(client: &mut Box<dyn Attached>) -> &mut dyn Any {
            // Deref first: the box has the method too.
            (**client).as_any_mut()
        }
    }

    impl Sealed for AnyThread {
        const USERS: Users = Users::SeveralThreads;
        type Client = Box<dyn Attached + Send>;

        fn as_any_mut(client: &mut Box<dyn Attached + Send>) -> &mut dyn Any {
            (**client).as_any_mut()
        }
    }
}
