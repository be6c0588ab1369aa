//! A program's own client, beside Active Messages and tagged messages: a register that peers add to and read. `cargo run --release
//! --example own_client` prints its NAME and serves; with NAME as argument it adds 1 to 10 there and prints the sum.

use weft::client::{Client, Delivery, State, Tx};
use weft::{Bundle, Endpoint, Key, MessageKind, Name, Node, Outgoing, Reason, Returned, SendError};

const KEY: Key = Key(7);
const ADD: u8 = 1;
const READ: u8 = 2;

/// The state of an endpoint for registers.
#[derive(Default)]
struct Register {
    value: u32,
    /// The value of a peer's register when we read it.
    read: Option<u32>,
    lost: u32,
}

impl<T: Tx> Client<T> for Register {
    fn deliver(&mut self, state: &mut State<T>, message: &Delivery<'_>) -> Result<(), Reason> {
        match (message.kind(), message.op(), message.args) {
            (MessageKind::OneWay, ADD, &[number]) => self.value = self.value.wrapping_add(number),
            (MessageKind::Request, READ, []) => {
                let token = message.take_reply().ok_or(Reason::NoHandler)?;
                state.reply(token, READ, &[self.value], b"").map_err(|_| Reason::PeerLost)?;
            }
            (MessageKind::Reply, READ, &[value]) => self.read = Some(value),
            _ => return Err(Reason::NoHandler), // it goes back to its sender
        }
        Ok(())
    }

    fn returned(&mut self, _: &mut State<T>, _: Returned) -> Option<Returned> {
        self.lost += 1;
        None
    }
}

/// The client's own call: a message to the register at index 0, as soon as there is room.
fn ask(bundle: &mut Bundle, me: Endpoint, kind: MessageKind, op: u8, args: &[u32]) -> Result<(), SendError> {
    let message = Outgoing { op, args, ..Outgoing::default() };
    let mut sent = Err(SendError::Full);
    bundle.poll_until(|bundle| {
        sent = bundle.try_post(me, 0, kind, message);
        sent != Err(SendError::Full)
    });
    sent
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut bundle = Bundle::new(&Node::new()?)?;
    let me = bundle.endpoint(KEY)?;
    bundle.attach(me, Register::default())?;
    let Some(name) = std::env::args().nth(1) else {
        println!("{}", bundle.name(me)?); // give it to the clients
        bundle.serve();
    };
    bundle.map(me, 0, name.parse::<Name>()?, KEY)?;
    (1..=10).try_for_each(|number| ask(&mut bundle, me, MessageKind::OneWay, ADD, &[number]))?;
    ask(&mut bundle, me, MessageKind::Request, READ, &[])?;
    bundle.drain(); // until every message is stored, and the request is answered or came back
    let (register, _) = bundle.client::<Register>(me)?;
    match (register.read, register.lost) {
        (Some(sum), 0) => println!("{sum}"),
        (_, 0) => return Err("there was no answer".into()),
        (_, lost) => return Err(format!("{lost} messages came back: nobody is there").into()),
    }
    Ok(())
}
