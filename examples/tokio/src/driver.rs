//! A bundle for the tasks of one thread. Its driver, [`Weft::run`], waits on the bundle's descriptor, and polls when needed.

use super::Result;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;
use tokio::io::{unix::AsyncFd, Interest};
use tokio::sync::{mpsc, oneshot, Notify};
use weft::am::ReplyToken;
use weft::{Bundle, Endpoint, Event, MessageKind, Node, Outgoing, SendError};

type Answer = std::result::Result<Vec<u8>, String>;

/// The handlers of requests and of replies. Both have the request's ticket as their argument.
const ASK: u8 = 1;
const REPLY: u8 = 2;

/// A bundle with one endpoint, for the tasks of one thread.
pub struct Weft {
    pub bundle: RefCell<Bundle>,
    pub me: Endpoint,
    /// The task that waits for each ticket's reply.
    asked: Rc<RefCell<HashMap<u32, oneshot::Sender<Answer>>>>,
    ticket: Cell<u32>,
    /// A send that returned *full* may be tried again.
    room: Notify,
}

/// A request that came.
pub struct Arrival {
    pub payload: Vec<u8>,
    ticket: u32,
    token: ReplyToken,
}

impl Weft {
    pub fn new() -> Result<(Rc<Weft>, mpsc::UnboundedReceiver<Arrival>)> {
        let mut bundle = Bundle::new(&Node::new()?)?;
        let me = bundle.endpoint_with_random_key()?;
        // Unbounded here, but bounded by what peers may have under way: 32 requests each, which count until they are answered.
        let (arrived, arrivals) = mpsc::unbounded_channel();
        bundle.on(me, ASK, move |m| {
            let (&[ticket], payload) = (m.args(), m.payload().to_vec()) else { return };
            let Some(token) = m.defer() else { return };
            arrived.send(Arrival { payload, ticket, token }).ok(); // no task takes it: dropping it ends the request
        })?;
        let asked = Rc::new(RefCell::new(HashMap::<u32, oneshot::Sender<Answer>>::new()));
        let replied = asked.clone();
        bundle.on(me, REPLY, move |m| {
            if let Some(asker) = m.args().first().and_then(|ticket| replied.borrow_mut().remove(ticket)) {
                asker.send(Ok(m.payload().to_vec())).ok(); // the task has given up
            }
        })?;
        let (bundle, ticket, room) = (RefCell::new(bundle), Cell::new(0), Notify::new());
        Ok((Rc::new(Weft { bundle, me, asked, ticket, room }), arrivals))
    }

    /// The reply to a request, or the reason why there is none.
    pub async fn request(&self, to: u32, payload: &[u8]) -> Answer {
        let ticket = self.ticket.replace(self.ticket.get().wrapping_add(1));
        let message = Outgoing { op: ASK, args: &[ticket], payload, completion: Some(ticket.into()) };
        loop {
            let room = self.room.notified();
            let sent = self.bundle.borrow_mut().try_post(self.me, to, MessageKind::Request, message);
            self.bundle.borrow().waker().wake(); // the driver may have to set a session up, or to poll sooner
            match sent {
                Ok(()) => break,
                Err(SendError::Full) => room.await,
                Err(why) => return Err(why.to_string()),
            }
        }
        let (asker, answer) = oneshot::channel();
        self.asked.borrow_mut().insert(ticket, asker);
        answer.await.unwrap_or_else(|_| Err("the driver has ended".into()))
    }

    pub fn reply(&self, to: Arrival, payload: &[u8]) {
        let mut bundle = self.bundle.borrow_mut();
        bundle.reply(to.token, REPLY, &[to.ticket], payload).ok(); // fails if the peer has gone
        bundle.waker().wake();
    }

    /// The driver, to be spawned: runs handlers, and wakes waiting tasks.
    pub async fn run(&self) -> std::io::Result<()> {
        let readable = self.bundle.borrow().wait_fd().try_clone_to_owned()?;
        // SAFETY: an `OwnedFd` is this one descriptor as long as it lives, and nothing else closes it.
        #[allow(unsafe_code)] // tokio has no safe call for foreign descriptors
        let readable = unsafe { AsyncFd::register_with_interest(readable, Interest::READABLE)? };
        loop {
            let (is_armed, limit) = self.poll();
            if !is_armed {
                tokio::task::yield_now().await;
            } else if let Ok(guard) = tokio::time::timeout(limit, readable.readable()).await {
                guard?.clear_ready(); // a timeout is no error: the protocol needs a poll then
            }
        }
    }

    /// Polls and takes events. Returns whether the descriptor will report more, and how long to wait for that.
    fn poll(&self) -> (bool, Duration) {
        let mut bundle = self.bundle.borrow_mut();
        bundle.poll();
        let is_armed = bundle.arm();
        while let Some(event) = bundle.next_event() {
            let (ticket, why) = match event {
                Event::CanSend { .. } => {
                    self.room.notify_waiters();
                    continue;
                }
                Event::Completed(ticket) => (Some(ticket), "ended without a reply".to_owned()),
                Event::Returned(m) => (m.completion, format!("{}: {}", m.certainty, m.reason)),
                Event::PeerLost { .. } | Event::ReplyRefused { .. } => continue,
            };
            let asker = ticket.and_then(|ticket| self.asked.borrow_mut().remove(&(ticket as u32)));
            asker.map(|asker| asker.send(Err(why)).ok());
        }
        (is_armed, bundle.wait_limit())
    }
}
