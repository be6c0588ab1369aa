//! A chat of any number of members on any hosts, without a server: each line goes to all the others.
//!
//!     cargo run --release --example chat ann              prints NAME and KEY
//!     cargo run --release --example chat bob NAME KEY     joins by way of any member
//!
//! A member greets each new member that it hears of, and the reply lists the members that the other one knows. A member that has
//! left is noticed because a line to it comes back.
mod members;

use members::{nick_of, printable, Chat};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::mpsc;
use weft::{Bundle, Event, Node};

/// A member's handlers: enter a member that greets; enter members from a list; show a line.
const GREET: u8 = 1;
const MEMBERS: u8 = 2;
const LINE: u8 = 3;

/// The index of the member through which we join; the other members follow.
const DOOR: u32 = 0;

fn run(words: &[&str]) -> Result<(), Box<dyn std::error::Error>> {
    let (nick, door) = match *words {
        [nick] if !nick.contains(' ') => (nick, None),
        [nick, name, key] if !nick.contains(' ') => (nick, Some((name.parse()?, key.parse()?))),
        _ => return Err("usage: chat NICK [NAME KEY] (a member's program prints NAME and KEY)".into()),
    };
    let mut bundle = Bundle::new(&Node::new()?)?;
    let me = bundle.endpoint_with_random_key()?;
    let name = bundle.name(me)?;
    let contact = format!("{name} {:016x}", bundle.key(me)?.0);
    let chat = Chat { me: (me, name), members: BTreeMap::new(), next: DOOR + 1, new: Vec::new() };
    let chat = Rc::new(RefCell::new(chat));
    let (greeted, told, lines) = (chat.clone(), chat.clone(), chat.clone());
    bundle.on(me, GREET, move |m| {
        let (mut chat, line) = (greeted.borrow_mut(), String::from_utf8_lossy(m.payload()));
        chat.enter(m.context(), &line);
        let known: Vec<&str> = chat.members.values().map(|(_, line)| &line[..]).collect();
        m.reply(MEMBERS, &[], known.join("\n").as_bytes()).ok(); // if this fails, it learns them from others
    })?;
    bundle.on(me, MEMBERS, move |m| {
        for line in String::from_utf8_lossy(m.payload()).lines() {
            told.borrow_mut().enter(m.context(), line);
        }
    })?;
    bundle.on(me, LINE, move |m| {
        let (source, text) = (m.source(), String::from_utf8_lossy(m.payload()));
        if let Some((_, line)) = lines.borrow().members.values().find(|(name, _)| Some(*name) == source) {
            println!("{}: {}", nick_of(line), printable(&text));
        }
    })?;
    println!("{contact}");
    let greeting = format!("{nick} {contact}");
    if let Some((name, key)) = door {
        bundle.map(me, DOOR, name, key)?;
        bundle.request(me, DOOR, GREET, &[], greeting.as_bytes())?;
    }
    let (typing, typed) = mpsc::channel();
    let waker = bundle.waker();
    std::thread::spawn(move || {
        // The end of the input is sent as `None`.
        for line in std::io::stdin().lines().map(Result::ok).chain([None]) {
            typing.send(line).ok();
            waker.wake();
        }
    });
    loop {
        bundle.wait(None);
        while let Some(event) = bundle.next_event() {
            let Event::Returned(m) = event else { continue };
            match m.destination.and_then(|index| chat.borrow_mut().members.remove(&index)) {
                Some((_, line)) => println!("* {} has left: {}", nick_of(&line), m.reason),
                None if m.destination == Some(DOOR) => return Err(m.reason.into()),
                None => {} // a reply, or another line to a member that has left
            }
        }
        // Taken out first: handlers run while a request is made, and they borrow the chat.
        let new = std::mem::take(&mut chat.borrow_mut().new);
        for index in new {
            bundle.request(me, index, GREET, &[], greeting.as_bytes())?;
        }
        for line in typed.try_iter() {
            let Some(line) = line else {
                bundle.drain();
                return Ok(());
            };
            let members: Vec<u32> = chat.borrow().members.keys().copied().collect();
            for index in members {
                bundle.request(me, index, LINE, &[], line.as_bytes())?;
            }
        }
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let Err(why) = run(&words.iter().map(String::as_str).collect::<Vec<_>>()) {
        eprintln!("chat: {why}");
        std::process::exit(1);
    }
}
