//! The two processes of the real run: the server, and all clients.

use super::order::{contents, Order};
use crate::bench::peer::{contact, say};
use crate::bench::talk::{Answer, Contact};
use crate::error::Error;
use serde::{Deserialize, Serialize};
use std::cell::{Cell, RefCell};
use std::io::Write;
use std::rc::Rc;
use std::time::{Duration, Instant};
use weft::{Bundle, Endpoint, Event, Node, SendError};

/// Requests of each client under way.
pub const WINDOW: u64 = 32;

/// Handlers of the server's endpoints, and of the clients'.
const ASK: u8 = 1;
const STOP: u8 = 2;
const ANSWER: u8 = 1;

/// How long it may take until every client has its first answer, until the last request is answered, and until the server hears of
/// the end.
const BEGIN_MOST: Duration = Duration::from_secs(15);
const REST_MOST: Duration = Duration::from_secs(10);
const STOP_MOST: Duration = Duration::from_secs(3);

/// The job of a process in the real run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum ContentionJob {
    /// Answer with this many endpoints, all in one bundle.
    Serve { endpoints: u32 },
    /// Send requests to each of these from a client of its own: for `warms` after each client's first answer, then for `lasts`, in
    /// which answers are counted.
    Ask { to: Vec<Contact>, warms: Duration, lasts: Duration },
}

/// The counts of such a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// Requests sent, or answers sent.
    pub sent: u64,
    /// Answers received, or requests received.
    pub came: u64,
    /// Those that came out of order, twice, or with wrong contents.
    pub strange: u64,
    /// Messages that came back or were refused, and sessions that ended.
    pub returned: u64,
    /// Why, for the first of them.
    pub why: Option<String>,
    /// Answers in the measured time, per client.
    pub counted: Vec<u64>,
    /// The measured time.
    pub lasted: Duration,
}

/// Does the job.
pub fn play(node: &Node, job: &ContentionJob, out: &mut dyn Write) -> Result<Answer, Error> {
    let seen = match job {
        ContentionJob::Serve { endpoints } => serve(node, *endpoints, out)?,
        ContentionJob::Ask { to, warms, lasts } => Asking::new(node, to)?.run(*warms, *lasts, out)?,
    };
    Ok(Answer::Contended(seen))
}

/// One thread that polls all endpoints until a message tells it to end.
fn serve(node: &Node, endpoints: u32, out: &mut dyn Write) -> Result<Seen, Error> {
    let mut bundle = Bundle::new(node)?;
    let (is_over, sent, refused) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(0u64)), Rc::new(Cell::new(0u64)));
    let (mut orders, mut contacts) = (Vec::new(), Vec::new());
    for client in 0..endpoints {
        let endpoint = bundle.endpoint_with_random_key()?;
        let order = Rc::new(RefCell::new(Order::new(client)));
        let (seen, sent, refused) = (order.clone(), sent.clone(), refused.clone());
        bundle.on(endpoint, ASK, move |m| {
            seen.borrow_mut().note(m.args(), m.payload());
            let count = if m.reply(ANSWER, m.args(), m.payload()).is_ok() { &sent } else { &refused };
            count.set(count.get().saturating_add(1));
        })?;
        let is_over = is_over.clone();
        bundle.on(endpoint, STOP, move |_| is_over.set(true))?;
        contacts.push(contact(&bundle, endpoint)?);
        orders.push(order);
    }
    say(&Answer::Ready(contacts), out)?;
    let mut returns = Returns::default();
    while !is_over.get() {
        bundle.poll();
        returns.take(&mut bundle);
    }
    let sum = |of: fn(&Order) -> u64| orders.iter().map(|order| of(&order.borrow())).sum();
    Ok(Seen {
        sent: sent.get(),
        came: sum(|order| order.came),
        strange: sum(|order| order.strange),
        returned: returns.count.saturating_add(refused.get()),
        why: returns.why,
        ..Seen::default()
    })
}

/// Messages that came back or were refused, and sessions that ended.
#[derive(Default)]
pub struct Returns {
    pub count: u64,
    /// Why, for the first of them.
    pub why: Option<String>,
}

impl Returns {
    /// Counts those that the bundle reports.
    pub fn take(&mut self, bundle: &mut Bundle) {
        while let Some(event) = bundle.next_event() {
            match event {
                Event::Returned(back) => self.note(back.reason),
                Event::PeerLost { reason, .. } | Event::ReplyRefused { reason, .. } => self.note(reason),
                Event::Completed(_) | Event::CanSend { .. } => {}
            }
        }
    }

    /// Notes one.
    pub fn note(&mut self, why: impl ToString) {
        self.count = self.count.saturating_add(1);
        self.why.get_or_insert_with(|| why.to_string());
    }
}

/// All clients.
struct Asking {
    bundle: Bundle,
    clients: Vec<Client>,
    returns: Returns,
}

struct Client {
    endpoint: Endpoint,
    number: u32,
    sent: u64,
    order: Rc<RefCell<Order>>,
}

impl Client {
    fn came(&self) -> u64 {
        self.order.borrow().came
    }

    /// Whether one more request may be sent.
    fn may_ask(&self) -> bool {
        self.sent.saturating_sub(self.came()) < WINDOW
    }
}

impl Asking {
    fn new(node: &Node, to: &[Contact]) -> Result<Asking, Error> {
        let mut bundle = Bundle::new(node)?;
        let mut clients = Vec::new();
        for (number, contact) in (0..).zip(to) {
            let (name, key) = contact.read()?;
            let endpoint = bundle.endpoint_with_random_key()?;
            bundle.map(endpoint, 0, name, key)?;
            let order = Rc::new(RefCell::new(Order::new(number)));
            let seen = order.clone();
            bundle.on(endpoint, ANSWER, move |m| seen.borrow_mut().note(m.args(), m.payload()))?;
            clients.push(Client { endpoint, number, sent: 0, order });
        }
        Ok(Asking { bundle, clients, returns: Returns::default() })
    }

    /// Sends requests until the time is over, waits for the last answers, and tells the server to end.
    fn run(mut self, warms: Duration, lasts: Duration, out: &mut dyn Write) -> Result<Seen, Error> {
        let began = self.ask_until(BEGIN_MOST, |clients| clients.iter().all(|client| client.came() > 0));
        if !began && self.returns.count == 0 {
            let what = "first answers of some clients".to_owned();
            return Err(Error::Silence { seconds: BEGIN_MOST.as_secs(), what });
        }
        self.ask_until(warms, |_| false);
        say(&Answer::Ready(Vec::new()), out)?;
        let (before, since) = (self.answered(), Instant::now());
        self.ask_until(lasts, |_| false);
        let (after, lasted) = (self.answered(), since.elapsed());
        self.rest();
        self.stop();
        let counted = after.iter().zip(before).map(|(after, before)| after.saturating_sub(before)).collect();
        let sum = |of: fn(&Client) -> u64| self.clients.iter().map(of).sum();
        Ok(Seen {
            sent: sum(|client| client.sent),
            came: sum(Client::came),
            strange: sum(|client| client.order.borrow().strange),
            returned: self.returns.count,
            why: self.returns.why,
            counted,
            lasted,
        })
    }

    /// Sends requests for `most`, or until `is_so`. Returns whether it was. Sends nothing more once a message has come back.
    fn ask_until(&mut self, most: Duration, is_so: impl Fn(&[Client]) -> bool) -> bool {
        let since = Instant::now();
        while self.returns.count == 0 && since.elapsed() < most {
            if is_so(&self.clients) {
                return true;
            }
            self.turn();
            let Asking { bundle, clients, returns } = self;
            clients.iter_mut().for_each(|client| ask(bundle, client, returns));
        }
        false
    }

    /// Waits for the remaining answers, unless a message has come back.
    fn rest(&mut self) {
        let since = Instant::now();
        let is_due = |asking: &Asking| asking.clients.iter().any(|client| client.came() < client.sent);
        while self.returns.count == 0 && is_due(self) && since.elapsed() < REST_MOST {
            self.turn();
        }
        // A surplus answer would arrive soon after the last one.
        (0..1000).for_each(|_| self.turn());
    }

    fn turn(&mut self) {
        self.bundle.poll();
        self.returns.take(&mut self.bundle);
    }

    /// If the server does not hear it, its parent ends it.
    fn stop(&mut self) {
        let Some(first) = self.clients.first() else { return };
        let _ = self.bundle.try_send(first.endpoint, 0, STOP, &[], &[]);
        self.bundle.poll_until_within(STOP_MOST, Bundle::is_acknowledged);
    }

    fn answered(&self) -> Vec<u64> {
        self.clients.iter().map(Client::came).collect()
    }
}

/// Sends as many requests of a client as allowed.
fn ask(bundle: &mut Bundle, client: &mut Client, returns: &mut Returns) {
    while client.may_ask() {
        let request = client.sent as u32;
        let args = [client.number, request];
        match bundle.try_request(client.endpoint, 0, ASK, &args, &contents(client.number, request)) {
            Ok(()) => client.sent += 1,
            Err(SendError::Full) => return,
            Err(error) => return returns.note(error),
        }
    }
}
