//! Two users of one host: one serves, the other one asks. By default, processes of other users are refused.
//!
//!     cargo run --release --example two_users serve 4000       as one user; goes on until Ctrl-C
//!     cargo run --release --example two_users localhost:4000   as the other one
//!
//! Both endpoints admit all users, because each receives from the other one's user. Then only the key keeps strangers out, and here
//! everybody who asks at the port gets the key. If not all users may call, do without the name server and give `NAME#KEY` to the
//! users who may.
use std::time::Duration;
use weft::names::{resolve, NameServer};
use weft::{Admission, Bundle, Node, Uid};

fn run(words: &[&str]) -> Result<(), Box<dyn std::error::Error>> {
    let mut bundle = Bundle::new(&Node::new()?)?;
    let me = bundle.endpoint_with_random_key()?;
    bundle.set_admission(me, Admission::AnyUser)?;
    match *words {
        ["serve", port] => {
            // The user comes from the kernel, not from the message.
            bundle.on(me, 1, |m| {
                let Uid(user) = m.source().map_or(Uid::UNKNOWN, |name| name.uid);
                let answer = format!("hello, user {user}");
                m.reply(2, &[], answer.as_bytes()).ok(); // nobody waits for an answer to a one-way message
            })?;
            let names = NameServer::open(port.parse()?)?;
            names.tell_with_key("", bundle.contact(me)?)?;
            println!("{}", names.port());
            loop {
                bundle.wait(None);
                while bundle.next_event().is_some() {} // callers that have gone
            }
        }
        [place] => {
            let server = resolve(place, Duration::from_secs(5))?;
            bundle.map(me, 0, server.name, server.key)?;
            bundle.on(me, 2, |m| println!("{}", String::from_utf8_lossy(m.payload())))?;
            bundle.on_return(me, |_, back| println!("it came back: {}", back.reason))?;
            bundle.request(me, 0, 1, &[], b"")?;
            bundle.drain(); // until it was answered or came back
            Ok(())
        }
        _ => Err("usage: two_users serve PORT | HOST:PORT".into()),
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let Err(why) = run(&words.iter().map(String::as_str).collect::<Vec<_>>()) {
        eprintln!("two_users: {why}");
        std::process::exit(1);
    }
}
