//! A client of `kv_server`: `cargo run --example kv_client HOST:PORT get K`, or `put K V`; or with NAME KEY instead of HOST:PORT
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;
use weft::names::{resolve, Contact};
use weft::{Bundle, Node};

/// The server's handlers, and the handler of its answers.
const GET: u8 = 1;
const PUT: u8 = 2;
const VALUE: u8 = 1;

/// How long a client waits for a server that is stopped or overloaded.
const PATIENCE: Duration = Duration::from_secs(5);

const USAGE: &str =
    "usage: kv_client HOST:PORT get K | put K V (or the NAME and KEY that the server prints, instead of HOST:PORT)";

fn run(words: &[&str]) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
    let (at, handler, args, payload) = match *words {
        [ref at @ .., "put", k, v] => (at, PUT, vec![k.len() as u32], format!("{k}{v}")),
        [ref at @ .., "get", k] => (at, GET, vec![], k.to_owned()),
        _ => return Err(USAGE.into()),
    };
    let server = match *at {
        [place] => resolve(place, PATIENCE)?,
        [name, key] => Contact { name: name.parse()?, key: key.parse()? },
        _ => return Err(USAGE.into()),
    };
    let mut bundle = Bundle::new(&Node::new()?)?;
    let me = bundle.endpoint_with_random_key()?;
    bundle.map(me, 0, server.name, server.key)?;

    // A request is answered, or it comes back, or it ends without an answer.
    let outcome = Rc::new(RefCell::new(None));
    let (answered, returned) = (outcome.clone(), outcome.clone());
    bundle.on(me, VALUE, move |m| *answered.borrow_mut() = Some(Ok(m.payload().to_vec())))?;
    bundle.on_return(me, move |_, m| *returned.borrow_mut() = Some(Err(format!("{}: {}", m.certainty, m.reason))))?;
    bundle.request_within(PATIENCE, me, 0, handler, &args, payload.as_bytes())?;
    if !bundle.drain_within(PATIENCE) {
        return Err(format!("no answer within {PATIENCE:?}").into());
    }
    Ok(outcome.take().unwrap_or_else(|| Err("no value came".to_owned()))?)
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let answer = run(&words.iter().map(String::as_str).collect::<Vec<_>>()).unwrap_or_else(|why| {
        eprintln!("kv_client: {why}");
        std::process::exit(1)
    });
    println!("{}", String::from_utf8_lossy(&answer));
}
