//! The first program of the README: without an argument it answers requests, with a name it sends one.
use weft::{Bundle, Key, Name, Node};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut bundle = Bundle::new(&Node::new()?)?;
    let me = bundle.endpoint(Key(7))?;
    bundle.on(me, 1, |m| m.reply(2, &[], &m.payload().to_ascii_uppercase()).unwrap_or_default())?; // a request
    bundle.on(me, 2, |m| println!("{}", String::from_utf8_lossy(m.payload())))?; // the reply
    bundle.on_return(me, |_, back| eprintln!("it came back: {}", back.reason))?;
    let Some(name) = std::env::args().nth(1) else {
        println!("{}", bundle.name(me)?); // hand it to whoever may ask, and the key
        bundle.serve(); // until Ctrl-C
    };
    bundle.map(me, 0, name.parse::<Name>()?, Key(7))?;
    bundle.request(me, 0, 1, &[], b"hello")?;
    bundle.drain(); // until it was answered or came back
    match bundle.counters().replies_delivered {
        0 => Err("there was no answer".into()),
        _ => Ok(()),
    }
}
