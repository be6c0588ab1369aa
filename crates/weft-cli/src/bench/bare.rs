//! Bare sockets between two machines: one call per message, and both sides spin. It replaces the limit programs, which are not on
//! every machine.

use super::meter::{Meter, Per, Sampled};
use super::peer::{expect_jobs, say, Gone};
use super::source::{sum_bytes, Half, Source};
use super::talk::{Account, Answer, BareJob, Peer, PATIENCE};
use crate::error::Error;
use std::hint::black_box;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

/// An unanswered datagram is lost after this time.
const LOST: Duration = Duration::from_millis(20);

/// Round trips per sample.
const BATCH: u32 = 16;

/// Calls without data, or sends, between two checks whether to end.
const LOOK_EVERY: u32 = 1 << 10;

/// The messages of the measuring side that begin and end a job; no other message is this short.
const BEGIN: [u8; 1] = [1];
const END: [u8; 1] = [2];

// ---- the side that answers

/// Does a job.
pub fn serve(job: BareJob, source: &Source, gone: &Gone, out: &mut dyn Write) -> Result<Answer, Error> {
    let any = (Ipv4Addr::UNSPECIFIED, 0);
    let done = match job {
        BareJob::UdpEcho { size } | BareJob::UdpStream { size } => {
            let socket = UdpSocket::bind(any).map_err(cannot)?;
            socket.set_nonblocking(true).map_err(cannot)?;
            say(&Answer::ReadyAt(socket.local_addr().map_err(cannot)?.port()), out)?;
            match job {
                BareJob::UdpEcho { .. } => echo_datagrams(&socket, source, size, gone)?,
                _ => send_datagrams(&socket, source, size, gone)?,
            }
        }
        BareJob::TcpEcho { size } | BareJob::TcpStream { size } => {
            let listener = TcpListener::bind(any).map_err(cannot)?;
            listener.set_nonblocking(true).map_err(cannot)?;
            say(&Answer::ReadyAt(listener.local_addr().map_err(cannot)?.port()), out)?;
            let mut stream = accept(&listener, gone)?;
            stream.set_nodelay(true).map_err(cannot)?;
            match job {
                BareJob::TcpEcho { .. } => echo_stream(&mut stream, source, size)?,
                _ => send_stream(&mut stream, source, size)?,
            }
        }
    };
    Ok(Answer::Done(Account { received: done, received_sum: 0, sent: done }))
}

fn accept(listener: &TcpListener, gone: &Gone) -> Result<TcpStream, Error> {
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).map_err(cannot)?;
                return Ok(stream);
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => std::thread::sleep(Duration::from_micros(200)),
            Err(e) => return Err(cannot(e)),
        }
        expect_jobs(gone)?;
    }
}

/// Answers each datagram with one of the same size, until told to end.
fn echo_datagrams(socket: &UdpSocket, source: &Source, size: usize, gone: &Gone) -> Result<u64, Error> {
    source.rewind(size, Half::Second);
    let mut message = vec![0; size];
    let (mut n, mut idle) = (0, 0u32);
    loop {
        match socket.recv_from(&mut message) {
            Ok((got, from)) if got == size => {
                black_box(sum_bytes(&message));
                later(socket.send_to(source.message(size), from))?;
                source.advance(size);
                n += 1;
            }
            Ok((got, _)) if message[..got] == END => return Ok(n),
            Ok(_) => {}
            Err(e) => later(Err(e)).map(|_: Option<usize>| ())?,
        }
        idle = idle.wrapping_add(1);
        if idle % LOOK_EVERY == 0 {
            expect_jobs(gone)?;
        }
    }
}

/// Sends to the sender of the first datagram, until told to end.
fn send_datagrams(socket: &UdpSocket, source: &Source, size: usize, gone: &Gone) -> Result<u64, Error> {
    source.rewind(size, Half::First);
    let mut to: Option<SocketAddr> = None;
    let (mut n, mut turns) = (0, 0u32);
    loop {
        if let Some(to) = to {
            if later(socket.send_to(source.message(size), to))?.is_some() {
                source.advance(size);
                n += 1;
            }
        }
        turns = turns.wrapping_add(1);
        if to.is_none() || turns % 64 == 0 {
            let mut word = [0; 1];
            match later(socket.recv_from(&mut word))? {
                Some((_, from)) if word == BEGIN => to = Some(from),
                Some(_) if word == END => return Ok(n),
                _ => {}
            }
        }
        if turns % LOOK_EVERY == 0 {
            expect_jobs(gone)?;
        }
    }
}

fn echo_stream(stream: &mut TcpStream, source: &Source, size: usize) -> Result<u64, Error> {
    source.rewind(size, Half::Second);
    stream.set_nonblocking(true).map_err(cannot)?;
    let mut message = vec![0; size];
    let mut n = 0;
    while read_spinning(stream, &mut message)? {
        black_box(sum_bytes(&message));
        write_spinning(stream, source.message(size))?;
        source.advance(size);
        n += 1;
    }
    Ok(n)
}

/// Sends until the other side has closed the connection.
fn send_stream(stream: &mut TcpStream, source: &Source, size: usize) -> Result<u64, Error> {
    source.rewind(size, Half::First);
    let mut n = 0;
    while stream.write_all(source.message(size)).is_ok() {
        source.advance(size);
        n += 1;
    }
    Ok(n)
}

// ---- the side that measures

/// Measures bare sockets to a machine.
#[derive(Debug)]
pub struct Bare<'a> {
    pub peer: &'a mut Peer,
    pub source: &'a Source,
    pub to: IpAddr,
    pub time: Duration,
}

impl Bare<'_> {
    /// Round trip of a datagram and its answer.
    pub fn udp_round_trip(&mut self, size: usize) -> Result<Sampled, Error> {
        let socket = self.udp(BareJob::UdpEcho { size })?;
        self.source.rewind(size, Half::First);
        let mut message = vec![0; size];
        let start = Instant::now();
        let mut heard = start;
        let mut meter = Meter::start(Per::Unit, self.time);
        loop {
            for _ in 0..BATCH {
                later(socket.send(self.source.message(size)))?;
                self.source.advance(size);
                match await_datagram(&socket, &mut message)? {
                    true => heard = Instant::now(),
                    false if heard.elapsed() > PATIENCE => return Err(silence("an answer to a datagram")),
                    false => drain(&socket, &mut message),
                }
            }
            if !meter.tick(f64::from(BATCH)) {
                break;
            }
        }
        self.end_udp(&socket)?;
        Ok(meter.finish())
    }

    /// Datagrams received per second, if the other side sends them one by one.
    pub fn udp_rate(&mut self, size: usize) -> Result<Sampled, Error> {
        let socket = self.udp(BareJob::UdpStream { size })?;
        let mut message = vec![0; size];
        later(socket.send(&BEGIN))?;
        let mut heard = Instant::now();
        let (mut meter, mut n) = (Meter::start(Per::Second, self.time), 0u32);
        loop {
            if later(socket.recv(&mut message))? == Some(size) {
                black_box(sum_bytes(&message));
                n += 1;
                if n % BATCH == 0 {
                    heard = Instant::now();
                    if !meter.tick(f64::from(BATCH)) {
                        break;
                    }
                }
            } else if heard.elapsed() > LOST {
                // The message to begin may have been lost.
                later(socket.send(&BEGIN))?;
                if heard.elapsed() > PATIENCE {
                    return Err(silence("datagrams"));
                }
            }
        }
        self.end_udp(&socket)?;
        Ok(meter.finish())
    }

    /// Round trip through a connection.
    pub fn tcp_round_trip(&mut self, size: usize) -> Result<Sampled, Error> {
        let mut stream = self.tcp(BareJob::TcpEcho { size })?;
        self.source.rewind(size, Half::First);
        let mut message = vec![0; size];
        let mut meter = Meter::start(Per::Unit, self.time);
        loop {
            for _ in 0..BATCH {
                write_spinning(&mut stream, self.source.message(size))?;
                self.source.advance(size);
                if !read_spinning(&mut stream, &mut message)? {
                    return Err(silence("an answer through the connection, which ended"));
                }
                black_box(sum_bytes(&message));
            }
            if !meter.tick(f64::from(BATCH)) {
                break;
            }
        }
        drop(stream);
        self.peer.finish()?;
        Ok(meter.finish())
    }

    /// Bytes received per second through a connection.
    pub fn tcp_bandwidth(&mut self, size: usize) -> Result<Sampled, Error> {
        let mut stream = self.tcp(BareJob::TcpStream { size })?;
        let mut buffer = vec![0; size];
        let mut meter = Meter::start(Per::Second, self.time);
        let mut heard = Instant::now();
        loop {
            match later(stream.read(&mut buffer))? {
                Some(0) => return Err(silence("bytes through the connection, which ended")),
                Some(got) => {
                    black_box(sum_bytes(&buffer[..got]));
                    heard = Instant::now();
                    if !meter.tick(got as f64) {
                        break;
                    }
                }
                None if heard.elapsed() > PATIENCE => return Err(silence("bytes through the connection")),
                None => {}
            }
        }
        drop(stream);
        self.peer.finish()?;
        Ok(meter.finish())
    }

    fn udp(&mut self, job: BareJob) -> Result<UdpSocket, Error> {
        let port = self.peer.give_bare(job)?;
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).map_err(cannot)?;
        socket.connect((self.to, port)).and_then(|()| socket.set_nonblocking(true)).map_err(cannot)?;
        Ok(socket)
    }

    /// Sends the message to end until it is answered, since it may be lost.
    fn end_udp(&mut self, socket: &UdpSocket) -> Result<(), Error> {
        let start = Instant::now();
        while self.peer.finished()?.is_none() {
            later(socket.send(&END))?;
            std::thread::sleep(Duration::from_millis(1));
            if start.elapsed() > PATIENCE {
                return Err(silence("the other side's word that it is done"));
            }
        }
        Ok(())
    }

    fn tcp(&mut self, job: BareJob) -> Result<TcpStream, Error> {
        let port = self.peer.give_bare(job)?;
        let stream = TcpStream::connect_timeout(&(self.to, port).into(), PATIENCE).map_err(cannot)?;
        stream.set_nodelay(true).and_then(|()| stream.set_nonblocking(true)).map_err(cannot)?;
        Ok(stream)
    }
}

/// Whether an answer came in time. Otherwise it is taken for lost.
fn await_datagram(socket: &UdpSocket, message: &mut [u8]) -> Result<bool, Error> {
    let mut idle = 0u32;
    let mut start = None;
    loop {
        if let Some(got) = later(socket.recv(message))? {
            black_box(sum_bytes(&message[..got]));
            return Ok(true);
        }
        idle += 1;
        if idle % LOOK_EVERY == 0 && start.get_or_insert_with(Instant::now).elapsed() > LOST {
            return Ok(false);
        }
    }
}

/// After a loss, discards late answers, so that they are not taken for those of later requests.
fn drain(socket: &UdpSocket, message: &mut [u8]) {
    std::thread::sleep(LOST);
    while socket.recv(message).is_ok() {}
}

/// `None` if the call may work later. A refused datagram shows that the other side has closed its socket.
fn later<T>(outcome: io::Result<T>) -> Result<Option<T>, Error> {
    match outcome {
        Ok(value) => Ok(Some(value)),
        Err(e) => match e.kind() {
            ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::ConnectionRefused => Ok(None),
            _ => Err(cannot(e)),
        },
    }
}

/// Fills the message; false if the connection has ended.
fn read_spinning(stream: &mut TcpStream, message: &mut [u8]) -> Result<bool, Error> {
    let mut filled = 0;
    while filled < message.len() {
        match later(stream.read(&mut message[filled..]))? {
            Some(0) => return Ok(false),
            Some(got) => filled += got,
            None => {}
        }
    }
    Ok(true)
}

fn write_spinning(stream: &mut TcpStream, message: &[u8]) -> Result<(), Error> {
    let mut sent = 0;
    while sent < message.len() {
        sent += later(stream.write(&message[sent..]))?.unwrap_or(0);
    }
    Ok(())
}

fn cannot(source: io::Error) -> Error {
    Error::system("use a socket", source, "Check the limit of open files (ulimit -n), and that the network is up")
}

fn silence(what: &str) -> Error {
    Error::Silence { seconds: PATIENCE.as_secs(), what: what.to_owned() }
}
