//! `weft serve`: an endpoint that answers pings.

use crate::contact::Contact;
use crate::error::Error;
use crate::interrupt::Interrupt;
use std::cell::Cell;
use std::io::Write;
use std::rc::Rc;
use weft::am::Bundle;
use weft::Node;

/// Handlers of the endpoint that answers.
pub mod ask {
    /// Answer with the same arguments and payload.
    pub const PING: u8 = 1;
}

/// Handlers of the endpoint that asks.
pub mod answer {
    /// The answer to a ping.
    pub const PONG: u8 = 1;
}

/// The variable by which weft is told which port to take.
const PORT_VARIABLE: &str = "WEFT_PORT";

/// What is said at the end of `--help`.
const HELP: &str = "\
Prints one line, NAME#KEY: the endpoint's name and its key. Whoever has it may type `weft ping NAME#KEY`. Quote it: some shells \
take # for something else.";

/// What can be asked of `weft serve`.
#[derive(Clone, Copy, Debug, clap::Args)]
#[command(after_help = HELP)]
pub struct Options {
    /// The port by which other hosts reach it (any that is free).
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
}

/// Answers until somebody asks for the end.
pub fn run(options: &Options) -> Result<(), Error> {
    let interrupt = Interrupt::watch(|| {})?;
    if let Some(port) = options.port {
        std::env::set_var(PORT_VARIABLE, port.to_string());
    }
    let mut bundle = Bundle::new(&Node::new()?)?;
    let endpoint = bundle.endpoint_with_random_key()?;
    let answered = Rc::new(Cell::new(0u64));
    let count = answered.clone();
    bundle.on(endpoint, ask::PING, move |m| {
        // It fails for a one-way message only, to which nobody expects an answer.
        if m.reply(answer::PONG, m.args(), m.payload()).is_ok() {
            count.set(count.get() + 1);
        }
    })?;
    let contact = Contact { name: bundle.name(endpoint)?, key: bundle.key(endpoint)? };
    let told = writeln!(std::io::stdout(), "{contact}").and_then(|()| std::io::stdout().flush());
    told.map_err(|e| Error::system("print the endpoint's name", e, "Give it an open standard output"))?;
    bundle.poll_until(|_| interrupt.came());
    eprintln!("answered {} requests", answered.get());
    Ok(())
}
