//! A client of `kv_server`: `cargo run --example kv_client NAME KEY get K`, or `put K V`
use std::cell::RefCell;
use std::rc::Rc;
use weft::{Bundle, Node};

/// What the server does for a request, and what it answers.
const GET: u8 = 1;
const PUT: u8 = 2;
const VALUE: u8 = 1;

fn run(words: &[&str]) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
    let (name, key, handler, args, payload) = match *words {
        [name, key, "get", k] => (name, key, GET, vec![], k.to_owned()),
        [name, key, "put", k, v] => (name, key, PUT, vec![k.len() as u32], format!("{k}{v}")),
        _ => return Err("usage: kv_client NAME KEY get K | put K V (the server prints NAME and KEY)".into()),
    };
    let mut bundle = Bundle::new(&Node::new()?)?;
    let me = bundle.endpoint_with_random_key()?;
    bundle.map(me, 0, name.parse()?, key.parse()?)?;

    // A request is answered, or it comes back, or it ends without an answer.
    let outcome = Rc::new(RefCell::new(None));
    let (answered, returned) = (outcome.clone(), outcome.clone());
    bundle.on(me, VALUE, move |m| *answered.borrow_mut() = Some(Ok(m.payload().to_vec())))?;
    bundle.on_return(me, move |_, m| *returned.borrow_mut() = Some(Err(format!("{}: {}", m.certainty, m.reason))))?;
    bundle.request(me, 0, handler, &args, payload.as_bytes())?;
    bundle.drain();
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
