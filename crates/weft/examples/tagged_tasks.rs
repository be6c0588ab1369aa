//! Tagged messages: squares of vectors, computed by three other processes: `cargo run --release --example tagged_tasks`
//!
//! The tag is the task's number. Small vectors go with their messages, large ones are announced and fetched; neither side
//! sees a difference.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use weft::tagged::{Label, Outcome, Pattern, Settings};
use weft::{Bundle, Endpoint, Key, Node};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const WORKERS: u32 = 3;
const TASKS: u64 = 12;
/// Not a task's tag: tells the worker to end.
const END: u64 = u64::MAX;

fn endpoint() -> Result<(Bundle, Endpoint)> {
    let mut bundle = Bundle::new(&Node::new()?)?;
    let here = bundle.tagged_endpoint(Key(7), Settings::default())?; // a real program uses a random key
    Ok((bundle, here))
}

/// Takes messages of any tag and length until it is told to end.
fn work(master: &str) -> Result<()> {
    let (mut bundle, here) = endpoint()?;
    println!("{}", bundle.name(here)?);
    std::io::stdout().flush()?;
    bundle.tagged(here)?.map(0, master.parse()?, Key(7))?;
    loop {
        // The length is known before there is a buffer.
        if let Some((message, claim)) = bundle.tagged(here)?.claim(Pattern::any_tag())? {
            if message.label.tag == Some(END) {
                return Ok(());
            }
            let room = vec![0; message.len];
            bundle.tagged(here)?.try_receive_claimed(claim, room, 0).map_err(|(error, ..)| error)?;
        }
        bundle.wait(None);
        while let Some(done) = bundle.next_completion() {
            match (done.outcome, done.buffer) {
                (Outcome::Received(received), Some(mut bytes)) => {
                    bytes.iter_mut().for_each(|byte| *byte = byte.wrapping_mul(*byte));
                    bundle.tagged(here)?.try_send(0, received.message.label, bytes, 0).map_err(|(error, _)| error)?;
                }
                (Outcome::Sent, _) => {}
                (other, _) => return Err(format!("the master is gone: {other:?}").into()),
            }
        }
    }
}

fn start_worker(master: &str) -> Result<(Child, String)> {
    let mut child = Command::new(std::env::current_exe()?).arg(master).stdout(Stdio::piped()).spawn()?;
    let mut name = String::new();
    BufReader::new(child.stdout.take().ok_or("no output")?).read_line(&mut name)?;
    Ok((child, name.trim().to_owned()))
}

fn give_out() -> Result<()> {
    let (mut bundle, here) = endpoint()?;
    let own = bundle.name(here)?.to_string();
    let mut workers = Vec::new();
    for index in 0..WORKERS {
        let (child, name) = start_worker(&own)?;
        bundle.tagged(here)?.map(index, name.parse()?, Key(7))?;
        workers.push(child);
    }
    let task = |number: u64| vec![number as u8; 10 << (2 * (number % 9))];
    for number in 0..TASKS {
        let mut calls = bundle.tagged(here)?;
        let room = vec![0; task(number).len()];
        let to = (number % u64::from(WORKERS)) as u32;
        calls.try_receive(Pattern::tagged(number).from(to), room, number).map_err(|(error, _)| error)?;
        calls.try_send(to, Label::tagged(number), task(number), END).map_err(|(error, _)| error)?;
    }
    let mut left = 2 * TASKS;
    while left > 0 {
        bundle.wait(None);
        while let Some(done) = bundle.next_completion() {
            left -= 1;
            if let (Outcome::Received(received), Some(bytes)) = (done.outcome, done.buffer) {
                let expected = (done.context as u8).wrapping_mul(done.context as u8);
                assert!(received.stored == bytes.len() && bytes.iter().all(|&byte| byte == expected));
                println!("task {}: {} bytes from worker {:?}", done.context, bytes.len(), received.message.source);
            } else if done.context != END {
                return Err("a worker is gone".into());
            }
        }
    }
    for index in 0..WORKERS {
        bundle.tagged(here)?.try_inject(index, Label::tagged(END), b"")?;
    }
    for mut worker in workers {
        if !worker.wait()?.success() {
            return Err("a worker failed".into());
        }
    }
    Ok(())
}

fn main() -> Result<()> {
    match std::env::args().nth(1) {
        Some(master) => work(&master),
        None => give_out(),
    }
}
