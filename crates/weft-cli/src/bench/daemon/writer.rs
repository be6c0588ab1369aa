//! A program with many endpoints that write in turn, at a given rate: with few frames, each write needs a remapping.

use crate::bench::contention::{contents, Order, Returns, Seen};
use crate::bench::peer::{ask, contact, say};
use crate::bench::talk::{Answer, Contact};
use crate::error::Error;
use serde::{Deserialize, Serialize};
use std::cell::{Cell, RefCell};
use std::io::Write;
use std::rc::Rc;
use std::time::{Duration, Instant};
use weft::{Bundle, Endpoint, Node, SendError};

/// How long it may take until every endpoint has its first answer, and until the last message is answered.
const BEGIN_MOST: Duration = Duration::from_secs(15);
const REST_MOST: Duration = Duration::from_secs(10);

/// The most overdue writes that are made up for after a time in which this program did not run.
const ARREARS: u32 = 4;

/// The job of the program.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct WriteJob {
    /// Endpoints that write.
    pub endpoints: u32,
    /// Messages per second, all endpoints together.
    pub per_second: u32,
}

/// Does the job until a message to its first contact tells it to end.
///
/// The endpoints write to an endpoint in another bundle of this program, which answers. So only the daemon has work, and no other
/// program.
pub fn write(node: &Node, job: &WriteJob, out: &mut dyn Write) -> Result<Answer, Error> {
    let mut taker = Taker::new(node, job.endpoints)?;
    let mut writers = Writers::new(node, &taker.contact, job.endpoints)?;
    writers.begin(&mut taker)?;
    say(&Answer::Ready(vec![taker.contact.clone()]), out)?;
    let pause = Duration::from_secs(1) / job.per_second.max(1);
    let mut next = Instant::now();
    while !taker.is_over.get() && writers.returns.count == 0 {
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
        next = (next + pause).max(Instant::now() - pause * ARREARS);
        writers.turn(&mut taker);
        writers.write_next();
    }
    writers.rest(&mut taker);
    Ok(Answer::Contended(writers.seen(&taker)))
}

/// The endpoint that receives the writes.
struct Taker {
    bundle: Bundle,
    contact: Contact,
    orders: Rc<RefCell<Vec<Order>>>,
    refused: Rc<Cell<u64>>,
    is_over: Rc<Cell<bool>>,
    returns: Returns,
}

impl Taker {
    fn new(node: &Node, endpoints: u32) -> Result<Taker, Error> {
        let mut bundle = Bundle::new(node)?;
        let endpoint = bundle.endpoint_with_random_key()?;
        let orders = Rc::new(RefCell::new((0..endpoints).map(Order::new).collect::<Vec<_>>()));
        let (refused, is_over) = (Rc::new(Cell::new(0u64)), Rc::new(Cell::new(false)));
        let (seen, count) = (orders.clone(), refused.clone());
        bundle.on(endpoint, ask::PAYLOAD, move |m| {
            let (mut orders, writer) =
                (seen.borrow_mut(), m.args().first().map_or(usize::MAX, |writer| *writer as usize));
            // A writer that does not exist shows up at the end as a missing message.
            orders.get_mut(writer).into_iter().for_each(|order| order.note(m.args(), m.payload()));
            if m.reply(ask::PAYLOAD, m.args(), m.payload()).is_err() {
                count.set(count.get().saturating_add(1));
            }
        })?;
        let over = is_over.clone();
        bundle.on(endpoint, ask::STOP, move |_| over.set(true))?;
        let contact = contact(&bundle, endpoint)?;
        Ok(Taker { bundle, contact, orders, refused, is_over, returns: Returns::default() })
    }
}

/// The endpoints that write.
struct Writers {
    bundle: Bundle,
    all: Vec<Writer>,
    /// The next one to write.
    next: usize,
    returns: Returns,
}

struct Writer {
    endpoint: Endpoint,
    number: u32,
    sent: u64,
    order: Rc<RefCell<Order>>,
}

impl Writers {
    fn new(node: &Node, to: &Contact, endpoints: u32) -> Result<Writers, Error> {
        let mut bundle = Bundle::new(node)?;
        let (name, key) = to.read()?;
        let mut all = Vec::new();
        for number in 0..endpoints {
            let endpoint = bundle.endpoint_with_random_key()?;
            bundle.map(endpoint, 0, name, key)?;
            let order = Rc::new(RefCell::new(Order::new(number)));
            let seen = order.clone();
            bundle.on(endpoint, ask::PAYLOAD, move |m| seen.borrow_mut().note(m.args(), m.payload()))?;
            all.push(Writer { endpoint, number, sent: 0, order });
        }
        Ok(Writers { bundle, all, next: 0, returns: Returns::default() })
    }

    /// Lets each write once, so that all lines are open, and waits for the answers.
    fn begin(&mut self, taker: &mut Taker) -> Result<(), Error> {
        let since = Instant::now();
        while self.returns.count == 0 && self.all.iter().any(|writer| writer.came() == 0) {
            if self.all.get(self.next).is_some_and(|writer| writer.sent == 0) {
                self.write_next();
            }
            self.turn(taker);
            if since.elapsed() > BEGIN_MOST {
                let what = "first answers of some endpoints that write".to_owned();
                return Err(Error::Silence { seconds: BEGIN_MOST.as_secs(), what });
            }
        }
        Ok(())
    }

    /// Lets the next one write. If there is no room, it stays the next one.
    fn write_next(&mut self) {
        let Some(writer) = self.all.get_mut(self.next) else { return };
        let number = writer.sent as u32;
        let args = [writer.number, number];
        let contents = contents(writer.number, number);
        match self.bundle.try_request(writer.endpoint, 0, ask::PAYLOAD, &args, &contents) {
            Ok(()) => {
                writer.sent = writer.sent.saturating_add(1);
                self.next = (self.next + 1) % self.all.len();
            }
            Err(SendError::Full) => {}
            Err(error) => self.returns.note(error),
        }
    }

    fn turn(&mut self, taker: &mut Taker) {
        taker.bundle.poll();
        taker.returns.take(&mut taker.bundle);
        self.bundle.poll();
        self.returns.take(&mut self.bundle);
    }

    /// Waits for the remaining answers, and checks that none is left over.
    fn rest(&mut self, taker: &mut Taker) {
        let since = Instant::now();
        while self.returns.count == 0 && self.came() < self.sent() && since.elapsed() < REST_MOST {
            self.turn(taker);
        }
        (0..1000).for_each(|_| self.turn(taker));
    }

    fn sent(&self) -> u64 {
        self.all.iter().map(|writer| writer.sent).sum()
    }

    fn came(&self) -> u64 {
        self.all.iter().map(Writer::came).sum()
    }

    fn seen(self, taker: &Taker) -> Seen {
        let orders = taker.orders.borrow();
        let taken: u64 = orders.iter().map(|order| order.came).sum();
        let strange = self.all.iter().map(|writer| writer.order.borrow().strange);
        let strange: u64 = strange.chain(orders.iter().map(|order| order.strange)).sum();
        let (sent, came) = (self.sent(), self.came());
        let returned = self.returns.count.saturating_add(taker.returns.count).saturating_add(taker.refused.get());
        let why = self.returns.why.or_else(|| taker.returns.why.clone());
        // Messages received twice or never count as strange, too.
        Seen { sent, came, strange: strange.saturating_add(taken.abs_diff(sent)), returned, why, ..Seen::default() }
    }
}

impl Writer {
    fn came(&self) -> u64 {
        self.order.borrow().came
    }
}
