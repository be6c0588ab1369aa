//! `weft serve`: an endpoint that answers pings.

use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::output::{note_line, print_line};
use std::cell::Cell;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::rc::Rc;
use weft::names::{Contact, NameServer};
use weft::{Admission, Bundle, NetworkError, Node};

/// Handlers of the endpoint that answers.
pub mod ask {
    /// Answer with the same arguments and payload. Programs seldom use this number: pinged by mistake, they run no handler of
    /// their own.
    pub const PING: u8 = 255;
}

/// Handlers of the endpoint that asks.
pub mod answer {
    /// The answer to a ping.
    pub const PONG: u8 = 255;
}

/// The variable that tells weft which port to use.
const PORT_VARIABLE: &str = "WEFT_PORT";

/// The variable that tells weft its only address.
const ADDRESS_VARIABLE: &str = "WEFT_ADDR";

/// Text after the options in `--help`.
const HELP: &str = "\
Prints one line, NAME#KEY: the endpoint's name and its key. Use it as `weft ping NAME#KEY`. Quote it: some shells \
take # for something else.

The name and the key are also given to everybody who asks by TCP at the port of the same number; `weft ping HOST:PORT` does that. \
So the key keeps nobody out: everybody who reaches the port gets an echo. On this host, other users are answered only \
with --users all.";

/// The arguments of `weft serve`.
#[derive(Clone, Copy, Debug, clap::Args)]
#[command(after_help = HELP)]
pub struct Options {
    /// The port at which other hosts reach it, for UDP and TCP (default: any free one).
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Whose pings are answered on this host: all users', or only its own user's. Pings from other hosts are always answered.
    #[arg(long, value_name = "WHOSE", default_value = "own")]
    users: Users,
}

/// Whose processes on this host are answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Users {
    All,
    Own,
}

/// Answers until the user asks it to end.
pub fn run(options: &Options) -> Result<(), Error> {
    let interrupt = Interrupt::watch(|| {})?;
    if let Some(port) = options.port {
        std::env::set_var(PORT_VARIABLE, port.to_string());
    }
    let mut bundle = Bundle::new(&Node::new()?).map_err(|why| of_option(why, options))?;
    let endpoint = bundle.endpoint_with_random_key()?;
    if options.users == Users::All {
        bundle.set_admission(endpoint, Admission::AnyUser)?;
    }
    let answered = Rc::new(Cell::new(0u64));
    let count = answered.clone();
    bundle.on(endpoint, ask::PING, move |m| {
        // The reply fails only for a one-way message, whose sender expects none.
        if m.reply(answer::PONG, m.args(), m.payload()).is_ok() {
            count.set(count.get() + 1);
        }
    })?;
    let contact = bundle.contact(endpoint)?;
    let _names = tell_names(options, contact)?; // kept until the end
    print_line(contact.to_string())?;
    if contact.name.address.is_none() && options.port.is_some() {
        note_line("weft serve: no other host can reach it without an address. Start it again when the network is up, or set WEFT_ADDR");
    }
    interrupt.ends_waits_of(bundle.waker());
    bundle.serve_until(|_| interrupt.came());
    note_line(format!("answered {} requests", answered.get()));
    Ok(())
}

/// If the port is in use, name the option that asked for it, not the variable that the option sets.
fn of_option(why: weft::Error, options: &Options) -> Error {
    match (why, options.port) {
        (weft::Error::Network(NetworkError::PortInUse { .. }), Some(port)) => Error::PortInUse { port },
        (why, _) => why.into(),
    }
}

/// Serves the endpoint's name and key at the TCP port of the same number.
fn tell_names(options: &Options, contact: Contact) -> Result<Option<NameServer>, Error> {
    let address = contact.name.address;
    let Some(port) = options.port.or((!address.is_none()).then_some(address.port)) else {
        return Ok(None); // no network, and no port asked for
    };
    // Listen at the address that was set, or at all addresses if none or several were.
    let is_told = address.each().count() == 1 && std::env::var_os(ADDRESS_VARIABLE).is_some();
    let opened = match is_told {
        true => NameServer::open_at(SocketAddr::new(IpAddr::V6(Ipv6Addr::from(address.ip)).to_canonical(), port)),
        false => NameServer::open(port),
    };
    match opened {
        Ok(names) => {
            names.tell_with_key("", contact).map_err(weft::Error::from)?;
            Ok(Some(names))
        }
        Err(error) if options.port.is_some() => Err(error.into()),
        // Another program has this TCP port: by chance, or since both use one weftd. Nobody was told the port, and the name works.
        Err(_) => Ok(None),
    }
}
