//! `HOST:PORT` instead of a name: whoever connects to that port by TCP is told the endpoint's NAME#KEY, one line, and that is all.
//!
//! A name carries the random number of its process' life, so a datagram to an address alone reaches nobody: the name must be
//! fetched first. This hands the key to everybody, so it is for endpoints that answer everybody.

use crate::contact::Contact;
use crate::error::Error;
use crate::thread;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Bytes of the longest line that is one: a name has 54 + 6 letters at most, a key 16.
const LINE_MOST: u64 = 128;

/// How long a caller may take to take its line.
const PATIENCE: Duration = Duration::from_millis(200);

/// Addresses of a host that are asked.
const ADDRESSES_MOST: usize = 16;

/// Waits between two tries to accept after one failed for want of descriptors or memory.
const REST: Duration = Duration::from_millis(100);

/// Opens the port, at all addresses of this host or at one.
pub fn open(port: u16, at: Option<IpAddr>) -> std::io::Result<TcpListener> {
    match at {
        Some(address) => TcpListener::bind((address, port)),
        // With IPv6 comes IPv4; without it there is only that.
        None => TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))
            .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))),
    }
}

/// Tells every caller the line, from now on, in a thread of its own.
pub fn tell_callers(listener: TcpListener, contact: Contact) -> Result<(), Error> {
    let line = format!("{contact}\n");
    thread::start(move || {
        for caller in listener.incoming() {
            match caller {
                // A caller that is gone, or does not read, misses it.
                Ok(mut caller) => {
                    let _ = caller.set_write_timeout(Some(PATIENCE)).and_then(|()| caller.write_all(line.as_bytes()));
                }
                Err(_) => std::thread::sleep(REST),
            }
        }
    })
}

/// Asks the port of a host for its endpoint's name and key.
pub fn ask(host_and_port: &str, most: Duration) -> Result<Contact, Error> {
    let end = Instant::now() + most;
    let cannot = |source| Error::Rendezvous { at: host_and_port.to_owned(), source };
    let addresses = host_and_port.to_socket_addrs().map_err(cannot)?.take(ADDRESSES_MOST).collect();
    ask_all(addresses, end)?.map_err(|source| cannot(in_time(source, most)))
}

/// The same error, in words of its own if the time was over: the kernel says *Resource temporarily unavailable* for a read that took too
/// long.
fn in_time(error: std::io::Error, most: Duration) -> std::io::Error {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => {
            std::io::Error::new(ErrorKind::TimedOut, format!("no answer within {} s", most.as_secs_f64()))
        }
        _ => error,
    }
}

/// Asks all addresses of a host side by side. Returns the first name that one of them says, else the last error.
fn ask_all(addresses: Vec<SocketAddr>, end: Instant) -> Result<std::io::Result<Contact>, Error> {
    let (tell, said) = mpsc::channel();
    for address in addresses {
        let tell = tell.clone();
        // It ends in time by itself; if another one was faster nobody listens any more.
        thread::start(move || _ = tell.send(ask_one(&address, end)))?;
    }
    drop(tell);
    let mut last = std::io::Error::new(ErrorKind::NotFound, "the host has no address");
    for answer in said {
        match answer {
            Ok(contact) => return Ok(Ok(contact)),
            Err(error) => last = error,
        }
    }
    Ok(Err(last))
}

fn ask_one(address: &SocketAddr, end: Instant) -> std::io::Result<Contact> {
    let line = fetch_from(address, end)?;
    line.parse().map_err(|e| std::io::Error::new(ErrorKind::InvalidData, format!("what it said is no name: {e}")))
}

fn fetch_from(address: &SocketAddr, end: Instant) -> std::io::Result<String> {
    let rest = || end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    let mut connection = TcpStream::connect_timeout(address, rest())?;
    let mut line = Vec::new();
    // Byte after byte at worst, each within the time that is left.
    while !line.ends_with(b"\n") && (line.len() as u64) < LINE_MOST {
        connection.set_read_timeout(Some(rest()))?;
        let mut piece = [0; LINE_MOST as usize];
        match connection.read(&mut piece)? {
            0 => break,
            bytes => line.extend_from_slice(&piece[..bytes]),
        }
        if Instant::now() >= end {
            return Err(ErrorKind::TimedOut.into());
        }
    }
    String::from_utf8(line).map_err(|_| std::io::Error::new(ErrorKind::InvalidData, "what it said is no text"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Somebody who listens, if there is a loopback.
    fn one_who_says(words: &'static [u8]) -> Option<String> {
        // Some networks of tests have no loopback.
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).ok()?;
        let address = listener.local_addr().ok()?;
        TcpStream::connect(address).ok()?;
        thread::try_start(move || {
            for caller in listener.incoming().flatten() {
                let mut caller = caller;
                let _ = caller.write_all(words);
                let _ = caller.read(&mut [0]); // until the other side is gone
            }
        })
        .expect("a thread");
        Some(address.to_string())
    }

    #[test]
    fn a_port_that_says_something_else_or_nothing_is_not_waited_for() {
        let most = Duration::from_millis(300);
        for words in [&b"SSH-2.0-x\r\n"[..], b"", &[b'x'; 4096], b"weft1:AQAA#1\n", &[0xff, b'\n']] {
            let Some(at) = one_who_says(words) else { return };
            let start = Instant::now();
            let error = ask(&at, most).expect_err("there is no name").to_string();
            assert!(error.contains(&at) && error.contains("weft serve"), "{error}");
            assert!(start.elapsed() < Duration::from_secs(5));
        }
    }

    #[test]
    fn of_several_addresses_one_that_is_silent_or_wrong_keeps_nobody_waiting() {
        let line: &'static [u8] = b"weft1:AQA0EugDAAAIBwYFBAMCASoAAAAAAAAAAAAAAAAA__8KAAABAAAAAA#7\n";
        let servers: [&[u8]; 4] = [b"", b"SSH-2.0-x\r\n", line, b""];
        let all: Option<Vec<SocketAddr>> =
            servers.into_iter().map(|words| Some(one_who_says(words)?.parse().expect("an address"))).collect();
        let Some(all) = all else { return };
        let start = Instant::now();
        let contact = ask_all(all, start + Duration::from_secs(60)).expect("threads").expect("one says it");
        assert_eq!(format!("{}#{}\n", contact.name, contact.key.0).as_bytes(), line);
        assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    }
}
