//! A key-value server: `cargo run --example kv_server PORT`. A client asks at the port for its name and key.
//! It prints both; without PORT, hand them to the client.
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use weft::am::Message;
use weft::names::NameServer;
use weft::{Bundle, Node};

/// The server's handlers, and the handler of its answers.
const GET: u8 = 1;
const PUT: u8 = 2;
const VALUE: u8 = 1;

fn main() -> Result<(), weft::Error> {
    let mut bundle = Bundle::new(&Node::new()?)?;
    let server = bundle.endpoint_with_random_key()?;
    let store: Rc<RefCell<HashMap<Vec<u8>, Vec<u8>>>> = Rc::default();

    let values = store.clone();
    bundle.on(server, GET, move |m| {
        let values = values.borrow();
        answer(m, values.get(m.payload()).map_or(b"(nothing)", |v| v));
    })?;
    bundle.on(server, PUT, move |m| {
        // The argument says where in the payload the key ends and the value begins.
        let length = m.args().first().map_or(0, |&length| length as usize);
        let Some((key, value)) = m.payload().split_at_checked(length) else { return answer(m, b"(no such key)") };
        store.borrow_mut().insert(key.to_vec(), value.to_vec());
        answer(m, value);
    })?;
    // Answers to a client without a handler for `VALUE` come back. This server does not take them, so weft drops them beyond a
    // bound.
    let port = std::env::args().nth(1).map(|port| port.parse().expect("a port is a number up to 65535"));
    let names = port.map(NameServer::open).transpose()?;
    if let Some(names) = &names {
        names.tell_with_key("", bundle.contact(server)?)?;
    }
    println!("{} {:016x}", bundle.name(server)?, bundle.key(server)?.0);
    bundle.serve()
}

fn answer(m: &mut Message, value: &[u8]) {
    m.reply(VALUE, &[], value).unwrap_or_else(|why| eprintln!("a client gets no answer: {why}"));
}
