//! weft under tokio: replies and arrivals are futures, and only the runtime waits.
//!
//!     cargo run --release -- serve                   prints NAME and KEY; answers words in capitals, each after 10 ms (in this folder)
//!     cargo run --release -- ask NAME KEY WORD...    asks for all words at once
//!
//! [`Weft::run`] is the driver, in `driver.rs`.
#![deny(unsafe_code)]

mod driver;

use driver::Weft;
use std::time::Duration;
use tokio::task::{spawn_local, LocalSet};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;
async fn serve() -> Result<()> {
    let (weft, mut arrivals) = Weft::new()?;
    println!("{} {:016x}", weft.bundle.borrow().name(weft.me)?, weft.bundle.borrow().key(weft.me)?.0);
    let driver = weft.clone();
    let driver = spawn_local(async move { driver.run().await });
    while let Some(arrival) = arrivals.recv().await {
        let weft = weft.clone();
        spawn_local(async move {
            tokio::time::sleep(Duration::from_millis(10)).await;
            let answer = arrival.payload.to_ascii_uppercase();
            weft.reply(arrival, &answer);
        });
    }
    Ok(driver.await??)
}

async fn ask(name: &str, key: &str, words: &[&str]) -> Result<()> {
    let (weft, _) = Weft::new()?;
    weft.bundle.borrow_mut().map(weft.me, 0, name.parse()?, key.parse()?)?;
    let driver = weft.clone();
    spawn_local(async move { driver.run().await });
    let ask = |word: &&str| {
        let (weft, word) = (weft.clone(), word.to_string());
        spawn_local(async move { weft.request(0, word.as_bytes()).await })
    };
    let answers: Vec<_> = words.iter().map(ask).collect();
    for answer in answers {
        println!("{}", String::from_utf8_lossy(&answer.await??));
    }
    Ok(())
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let done = LocalSet::new().block_on(&runtime, async {
        match &words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            ["serve"] => serve().await,
            ["ask", name, key, words @ ..] => ask(name, key, words).await,
            _ => Err("usage: weft-tokio serve | ask NAME KEY WORD... (the server prints NAME and KEY)".into()),
        }
    });
    if let Err(why) = done {
        eprintln!("weft-tokio: {why}");
        std::process::exit(1);
    }
    Ok(())
}
