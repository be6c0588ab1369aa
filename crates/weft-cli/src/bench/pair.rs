//! `weft bench pair`: the cost of messages between two real machines. One listens; the other connects and measures weft, and bare
//! UDP and TCP in the same rounds. Between runs they talk through a TCP connection.

use super::bare::Bare;
use super::hosts::{table, ADDRESS_VARIABLE};
use super::json::{Between, Document};
use super::machine::{self, Cpus, Machine};
use super::meter::Sampled;
use super::peer::{Gone, Worker};
use super::results::{Key, Metric, Results, Run};
use super::talk::{lines_of, Peer, PATIENCE};
use super::weft_side::{Bench, Landing};
use super::Common;
use crate::error::Error;
use crate::output::{note_line, print_line};
use crate::progress::Progress;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream, ToSocketAddrs, UdpSocket};
use std::str::FromStr;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The default port of the connection.
const PORT: u16 = 7118;

/// The time of each run, without `--quick`.
const TIME: Duration = Duration::from_millis(300);

/// Round trips of weft per sample: as many as with bare sockets.
const BATCH: u32 = 16;

const SMALL: usize = 16;
const LARGE: usize = 65536;

/// Text after the options in `--help`.
const HELP: &str = "\
On one machine type `weft bench pair --listen`; it prints HOST:PORT#KEY. On the other one type `weft bench pair --connect` followed by \
that. TCP, and UDP at any port, must get through between the machines. The listener serves one measurement after the \
other until Ctrl-C.

Bare UDP and TCP are measured with one call per message, and never wait in the kernel. `weft bench hosts` measures more variants of them.";

/// The arguments of `weft bench pair`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = HELP)]
pub struct Options {
    /// Waits for the other machine.
    #[arg(long, required_unless_present = "connect", conflicts_with = "connect")]
    listen: bool,
    /// The port to listen at.
    #[arg(long, value_name = "PORT", default_value_t = PORT, requires = "listen")]
    port: u16,
    /// Connects to the machine that listens, and measures.
    #[arg(long, value_name = "HOST:PORT#KEY")]
    connect: Option<Contact>,
    /// Fewer rounds, shorter runs.
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    common: Common,
}

/// The address of the listening machine, and the key that it expects.
#[derive(Clone, Debug)]
struct Contact {
    host: String,
    key: u64,
}

impl FromStr for Contact {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Contact, &'static str> {
        let parts = text.trim().rsplit_once('#');
        let (host, key): (&str, weft::Key) = parts
            .and_then(|(host, key)| Some((host, key.parse().ok()?)))
            .ok_or("type the line that `weft bench pair --listen` printed there: HOST:PORT#KEY, in quotes")?;
        Ok(Contact { host: host.to_owned(), key: key.0 })
    }
}

/// Listens, or measures.
pub fn run(options: &Options) -> Result<(), Error> {
    match &options.connect {
        Some(contact) => measure(options, contact),
        None => listen(options.port),
    }
}

// ---- the side that listens

fn listen(port: u16) -> Result<(), Error> {
    let cannot = |e| Error::system("listen", e, "Is another one listening? Choose a port with --port");
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).map_err(cannot)?;
    let port = listener.local_addr().map_err(cannot)?.port();
    let key = random_key()?;
    if let Some(&cpu) = machine::allowed()?.last() {
        machine::pin(cpu)?;
    }
    let address = own_address();
    print_line(format!("{}:{port}#{key:016x}", address.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))))?;
    if address.is_none() {
        note_line("weft: this machine has no default route. Put its address, or its name, in place of 127.0.0.1");
    }
    for connection in listener.incoming() {
        match connection.map_err(cannot).and_then(|connection| serve(connection, key)) {
            Ok(()) => note_line("a measurement is done"),
            Err(error) => note_line(format!("weft: a measurement failed: {error}")),
        }
    }
    Ok(())
}

/// Does the jobs that arrive on the connection, until it ends.
fn serve(connection: TcpStream, key: u64) -> Result<(), Error> {
    let cannot = |e| Error::system("speak with the machine that measures", e, "Is the network up?");
    let from = connection.peer_addr().map_err(cannot)?;
    connection.set_nodelay(true).and_then(|()| connection.set_read_timeout(Some(PATIENCE))).map_err(cannot)?;
    let mut words = String::new();
    let mut reader = BufReader::new(connection.try_clone().map_err(cannot)?);
    // Read no more than a key has: the caller may be anyone.
    (&mut reader).take(17).read_line(&mut words).map_err(cannot)?;
    if u64::from_str_radix(words.trim(), 16) != Ok(key) {
        let cause = format!("{from} does not know the key");
        return Err(Error::Usage { cause, way_out: "Give it the line that was printed here, to its end".to_owned() });
    }
    connection.set_read_timeout(None).map_err(cannot)?;
    carry_address(&connection)?;
    let gone = Gone::default();
    let worker = Worker::new(gone.clone())?;
    let jobs = lines_of(EndNoted { from: reader, gone })?;
    let mut out = connection;
    out.write_all(b"\n").map_err(cannot)?;
    jobs.into_iter().try_for_each(|job| worker.answer(Ok(job), &mut out))
}

/// Notes when the reader has ended.
struct EndNoted<R> {
    from: R,
    gone: Gone,
}

impl<R: Read> Read for EndNoted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let got = self.from.read(buffer);
        if !matches!(got, Ok(1..)) {
            self.gone.store(true, Ordering::Relaxed);
        }
        got
    }
}

/// Makes this process's names carry the address at which the other machine reaches it, unless the user chose one.
fn carry_address(connection: &TcpStream) -> Result<(), Error> {
    let address =
        connection.local_addr().map_err(|e| Error::system("ask for this side's address", e, "Run it again"))?;
    if std::env::var_os(ADDRESS_VARIABLE).is_none() {
        std::env::set_var(ADDRESS_VARIABLE, address.ip().to_string());
    }
    Ok(())
}

/// The address from which this machine talks to others, if it can be found out. No packet is sent.
fn own_address() -> Option<IpAddr> {
    const SOMEWHERE: (Ipv4Addr, u16) = (Ipv4Addr::new(192, 0, 2, 1), 9); // for documentation: RFC 5737
    let told = std::env::var(ADDRESS_VARIABLE).ok().and_then(|address| address.parse().ok());
    let routed = || {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
        socket.connect(SOMEWHERE).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    told.or_else(routed)
}

fn random_key() -> Result<u64, Error> {
    let mut bytes = [0; 8];
    let got = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    match got {
        // So few bytes are never truncated: getrandom(2).
        Ok(_) => Ok(u64::from_le_bytes(bytes)),
        Err(e) => Err(Error::system("draw a random key", e, "Run it on Linux")),
    }
}

// ---- the side that measures

/// A thing to run in each round.
#[derive(Clone, Copy, Debug)]
enum Probe {
    Weft(Metric),
    Udp(Metric),
    Tcp(Metric),
}

const PROBES: [Probe; 7] = [
    Probe::Weft(Metric::Rtt),
    Probe::Udp(Metric::Rtt),
    Probe::Tcp(Metric::Rtt),
    Probe::Weft(Metric::Rate),
    Probe::Udp(Metric::Rate),
    Probe::Weft(Metric::Bandwidth),
    Probe::Tcp(Metric::Bandwidth),
];

fn measure(options: &Options, contact: &Contact) -> Result<(), Error> {
    let connection = connect(contact)?;
    let ours = machine::allowed()?.first().copied().unwrap_or(0);
    let title = format!("from CPU {ours} to {}", contact.host);
    let machine = Machine::describe(Cpus { ours, theirs: ours });
    machine::pin(ours)?;
    let rounds = options.common.rounds(options.quick);
    let time = options.common.time(options.quick, TIME);
    let progress = Progress::new();
    let measured = run_all(connection, rounds, time, &progress);
    progress.clear();
    let results = measured?;
    let document = Document::of(&machine, Between::Hosts { mtu: None, title: &title }, &results, &[]);
    options.common.tell(&document, false, &[], || table::render(&machine, &title, &results, None, &[]))
}

fn connect(contact: &Contact) -> Result<TcpStream, Error> {
    let cannot = |e| {
        Error::system(
            "reach the machine that listens",
            e,
            "Does `weft bench pair --listen` run there, and does TCP get through to its port?",
        )
    };
    let mut addresses = contact.host.to_socket_addrs().map_err(cannot)?.filter(|address| address.is_ipv4());
    let none = || std::io::Error::other("it has no IPv4 address");
    let address = addresses.next().ok_or_else(none).map_err(cannot)?;
    let mut connection = TcpStream::connect_timeout(&address, PATIENCE).map_err(cannot)?;
    let key = format!("{:016x}\n", contact.key);
    connection.set_nodelay(true).and_then(|()| connection.write_all(key.as_bytes())).map_err(cannot)?;
    let mut welcome = [0; 1];
    connection.set_read_timeout(Some(PATIENCE)).map_err(cannot)?;
    if connection.read_exact(&mut welcome).is_err() {
        let cause = "the machine that listens closed the connection".to_owned();
        return Err(Error::Usage { cause, way_out: "Is the key the one that it printed?".to_owned() });
    }
    connection.set_read_timeout(None).map_err(cannot)?;
    carry_address(&connection)?;
    Ok(connection)
}

fn run_all(connection: TcpStream, rounds: u32, time: Duration, progress: &Progress) -> Result<Results, Error> {
    let cannot = |e| Error::system("ask for the other side's address", e, "Run it again");
    let to = connection.peer_addr().map_err(cannot)?.ip();
    let mut weft = Bench::new(Peer::on_line(connection)?, time)?.with_batch(BATCH);
    let mut results = Results::default();
    progress.set_all(u64::from(rounds) * PROBES.len() as u64);
    for round in 0..rounds {
        for probe in PROBES {
            progress.say(format!("round {}: {probe:?}", round + 1));
            let (key, sampled, detail) = match probe {
                Probe::Weft(metric) => run_weft(&mut weft, metric)?,
                Probe::Udp(metric) => run_bare(weft.bare(to), true, metric)?,
                Probe::Tcp(metric) => run_bare(weft.bare(to), false, metric)?,
            };
            results.add(key, Run { round, sampled, detail: Some(detail.to_owned()) });
            progress.one_more();
        }
    }
    Ok(results)
}

fn run_weft(weft: &mut Bench, metric: Metric) -> Result<(Key, Sampled, &'static str), Error> {
    let key = |size| Key::plain(metric, size, "weft");
    Ok(match metric {
        Metric::Rtt => (key(SMALL), weft.round_trip(SMALL)?, "request and reply"),
        Metric::Rate => (key(SMALL), weft.rate(SMALL)?, "one pair of endpoints"),
        _ => (key(LARGE), weft.bandwidth(LARGE, Landing::InPlace)?, "the handler reads all bytes where they are"),
    })
}

fn run_bare(mut bare: Bare<'_>, is_udp: bool, metric: Metric) -> Result<(Key, Sampled, &'static str), Error> {
    let key = |size, system| Key::plain(metric, size, system);
    Ok(match (is_udp, metric) {
        (true, Metric::Rtt) => (key(SMALL, "udp-spin"), bare.udp_round_trip(SMALL)?, "never waits in the kernel"),
        (true, _) => (key(SMALL, "udp-spin"), bare.udp_rate(SMALL)?, "one call per datagram"),
        (false, Metric::Rtt) => {
            (key(SMALL, "tcp-spin"), bare.tcp_round_trip(SMALL)?, "TCP_NODELAY, never waits in the kernel")
        }
        (false, _) => (key(LARGE, "tcp-stream"), bare.tcp_bandwidth(LARGE)?, "one write per message"),
    })
}
