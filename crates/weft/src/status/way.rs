//! The path that messages to a name would take from here, and why. This repeats the decision of the home (`home.rs`) without
//! sending anything.

use super::ask::{holder, program};
use super::daemon::{look_at_daemon, Attaches, DaemonFound};
use super::document::Path;
use crate::node::Error;
use crate::office::address as set_up_address;
use crate::owner::{owner, Owner, UserMap};
use crate::settings;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType};
use serde::Serialize;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::time::Duration;
use weft_link::address::{self, LeftOut, Wanted};
use weft_wire::status::Scope;
use weft_wire::{Epoch, HostAddress, Name, Uid};

/// How long a daemon has to answer.
const DAEMON_PATIENCE: Duration = Duration::from_secs(2);

/// The path to a name.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Way {
    /// How it would be reached; `None` if it would not.
    pub path: Option<Path>,
    /// Why.
    pub why: Why,
    /// The process of this host that owns the name's set-up socket.
    pub holder: Option<Holder>,
    /// The addresses that the name carries, the preferred one first, if they matter.
    pub addresses: Vec<Leg>,
}

/// The owner of a set-up socket.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Holder {
    /// Its process, if it is in this PID namespace.
    pub pid: Option<u32>,
    /// Its user.
    pub uid: u32,
    /// Its program.
    pub program: Option<String>,
}

/// How packets would go to one address.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Leg {
    /// The address and port.
    pub to: String,
    /// Our address that they leave from, if there is a route.
    pub from: Option<String>,
    /// The interface that has it.
    pub interface: Option<String>,
    /// Its MTU in bytes.
    pub mtu: Option<u32>,
    /// Why there is no route.
    pub error: Option<String>,
}

/// Why a path is taken, or none.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// Its process answers on this host.
    #[error("its process runs on this host, under this user, and has its set-up socket open")]
    SameHost,
    /// The name states another user than the kernel does.
    #[error("the process that answers under this name does not belong to the user that the name states: get the current name from its owner")]
    WrongOwner,
    /// It is another user's.
    #[error(
        "its process runs on this host under another user: through memory, as foreigners, if both endpoints admit every user \
         (set_admission); else run both under one user"
    )]
    OtherUser,
    /// Its process is not on this host, and it has an address of another.
    #[error("its process does not run on this host (in this network namespace), and the name carries an address")]
    OtherHost,
    /// `WEFT_LOCAL=off`.
    #[error("WEFT_LOCAL=off sends everything over the network; unset it to use memory between processes of one host")]
    LocalOff,
    /// All its addresses are ours, and no process has its socket.
    #[error(
        "its process ran on this host and has ended (or is in another network namespace); ask its owner for the current name"
    )]
    Ended,
    /// Programs of this user use weftd.
    #[error("programs of this user use weftd, which carries messages to its other programs and to other hosts")]
    ByDaemon,
    /// It carries no address.
    #[error(
        "its process does not run on this host, and the name carries no address: it was made with WEFT_ADDR=none or without a \
         network; only processes of its own host reach it"
    )]
    NoAddress,
    /// We have no network.
    #[error(
        "its process does not run on this host, and this side has no network: WEFT_ADDR is none, or no interface of this \
         host has an address that others could reach; set WEFT_ADDR to one"
    )]
    NoNetwork,
    /// No route leads to any of its addresses.
    #[error("no route of this host leads to any of its addresses: see `ip route get ADDRESS`")]
    NoRoute,
}

weft_wire::debug_says_display!(Why);

/// Finds the path that messages of a process of this user, with this environment, would take to a name.
///
/// # Errors
/// If a variable of the environment is invalid, or there is no descriptor left.
pub fn way_to(name: &Name) -> Result<Way, Error> {
    let uses_memory = settings::is_on(settings::LOCAL)?;
    let holder = find_holder(name.epoch)?;
    if let Some(holder) = holder.filter(|_| uses_memory) {
        let users = UserMap::of_this_process();
        let [own, seen] = [rustix::process::geteuid().as_raw(), holder.uid].map(|uid| users.outside(Uid(uid)));
        let (path, why) = match owner(seen, name.uid, own) {
            Owner::Us => (Some(Path::Memory), Why::SameHost),
            Owner::Other(_) => (Some(Path::Memory), Why::OtherUser),
            Owner::NotAsNamed => (None, Why::WrongOwner),
        };
        return Ok(Way { path, why, holder: Some(holder), addresses: Vec::new() });
    }
    if daemon_serves()? {
        return Ok(Way { path: Some(Path::Daemon), why: Why::ByDaemon, holder: None, addresses: Vec::new() });
    }
    let wanted = Wanted::from_environment()?;
    Ok(over_network(name, uses_memory, wanted.as_ref()))
}

/// Whether programs of this user with this environment attach to a daemon that answers.
fn daemon_serves() -> Result<bool, Error> {
    let found = look_at_daemon(Scope::Totals, DAEMON_PATIENCE)?;
    let attaches = |found: &DaemonFound| matches!(found.attaches, Attaches::Told | Attaches::ByThemselves);
    Ok(found.is_some_and(|found| attaches(&found) && found.answer.is_ok()))
}

/// The path to a name whose set-up socket nobody here owns, or does not matter.
fn over_network(name: &Name, uses_memory: bool, wanted: Option<&Wanted>) -> Way {
    let way = |path, why, addresses| Way { path, why, holder: None, addresses };
    if name.address.is_none() {
        return way(None, Why::NoAddress, Vec::new());
    }
    let Some(wanted) = wanted else { return way(None, Why::NoNetwork, Vec::new()) };
    let mut there = name.address.each().map(ip_of);
    if uses_memory && there.all(|ip| wanted.addresses.contains(&ip)) {
        return way(None, Why::Ended, Vec::new());
    }
    let legs: Vec<Leg> = name.address.each().map(|to| leg(to, wanted)).collect();
    match (legs.iter().any(|leg| leg.from.is_some()), uses_memory) {
        (false, _) => way(None, Why::NoRoute, legs),
        (true, true) => way(Some(Path::Network), Why::OtherHost, legs),
        (true, false) => way(Some(Path::Network), Why::LocalOff, legs),
    }
}

/// Finds the owner of the set-up socket of an epoch. Connects to the socket for that, but sends nothing.
fn find_holder(epoch: Epoch) -> Result<Option<Holder>, Error> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(|e| Error::system("cannot make a socket", e, "raise the limit of open files (ulimit -n)"))?;
    match net::connect(&socket, &set_up_address(epoch)?) {
        Ok(()) => Ok(holder(&socket).map(|(pid, uid)| Holder { pid, uid, program: program(pid) })),
        Err(Errno::AGAIN) => Err(Error::system(
            "cannot find out who owns the name",
            Errno::AGAIN,
            "too many programs call that process now; try again",
        )),
        Err(_) => Ok(None),
    }
}

/// How packets to one address would leave. Connecting a UDP socket sends nothing.
fn leg(to: HostAddress, wanted: &Wanted) -> Leg {
    let ip = ip_of(to);
    let unspecified: IpAddr = if ip.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let from = UdpSocket::bind((unspecified, 0)).and_then(|socket| {
        socket.connect((ip, to.port))?;
        Ok(socket.local_addr()?.ip())
    });
    let from = from.and_then(|from| source(wanted, from));
    let found = from.as_ref().ok().and_then(|from| interface_of(*from));
    Leg {
        to: format!("{to:?}"),
        from: from.as_ref().ok().map(ToString::to_string),
        interface: found.as_ref().map(|(name, _)| name.clone()),
        mtu: found.and_then(|(_, mtu)| mtu),
        error: from.err().map(|error| error.to_string()),
    }
}

/// The source address of packets for which the kernel would take `from`: another one if `WEFT_ADDR` does not include that.
fn source(wanted: &Wanted, from: IpAddr) -> io::Result<IpAddr> {
    let set = wanted.addresses.first().filter(|_| wanted.are_set && !wanted.addresses.contains(&from));
    let Some(set) = set else { return Ok(from) };
    let lost =
        |e: io::Error| io::Error::new(e.kind(), format!("WEFT_ADDR is {set}, which this host does not have ({e})"));
    UdpSocket::bind((*set, 0)).map(|_| *set).map_err(lost)
}

/// Whether long runs of packets can go to other hosts without a copy here: since Linux 6.5. Does not block.
pub fn sends_pages() -> bool {
    weft_shm::Pages::are_sent()
}

/// The addresses of this host that are left out of names which carry `carried`: interface, address, and the reason.
pub fn left_out(carried: &[IpAddr]) -> Vec<(String, IpAddr, LeftOut)> {
    address::left_out(carried)
}

/// The interface that has an address of this host, and its MTU, if the kernel reports it.
pub fn interface_of(address: IpAddr) -> Option<(String, Option<u32>)> {
    address::interface_of(address)
}

fn ip_of(address: HostAddress) -> IpAddr {
    IpAddr::V6(Ipv6Addr::from(address.ip)).to_canonical()
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_link::address::Ports;
    use weft_transport::Method;
    use weft_wire::packet::Integrity;
    use weft_wire::EndpointId;

    fn name(addresses: &[&str]) -> Name {
        let ips: Vec<Ipv4Addr> = addresses.iter().map(|a| a.parse().expect("a test's address is right")).collect();
        let address = HostAddress::of_several(&ips, 4000).unwrap_or(HostAddress::NONE);
        Name { epoch: Epoch(1), endpoint: EndpointId(1), uid: Uid(0), address }
    }

    fn wanted(addresses: &[&str]) -> Wanted {
        let addresses = addresses.iter().map(|a| a.parse().expect("a test's address is right")).collect();
        Wanted {
            addresses,
            are_set: false,
            ports: Ports::ANY,
            suspicion: None,
            congestion: Method::default(),
            integrity: Integrity::Full,
        }
    }

    #[test]
    fn packets_leave_from_the_address_that_is_set_and_from_none_if_the_host_has_lost_it() {
        let set = |addresses: &[&str]| Wanted { are_set: true, ..wanted(addresses) };
        let leg_to = |to: &str, ours: &Wanted| over_network(&name(&[to]), false, Some(ours)).addresses.remove(0);
        if leg_to("127.0.0.1", &wanted(&["127.0.0.1"])).from.is_none() {
            return eprintln!("the loopback interface is down");
        }
        assert_eq!(
            leg_to("127.0.0.1", &wanted(&["127.0.0.9"])).from.as_deref(),
            Some("127.0.0.1"),
            "it is chosen anew"
        );
        assert_eq!(leg_to("127.0.0.1", &set(&["127.0.0.9"])).from.as_deref(), Some("127.0.0.9"));
        let lost = leg_to("127.0.0.1", &set(&["192.0.2.77"]));
        assert_eq!(lost.from, None);
        let said = lost.error.expect("a reason");
        assert!(said.contains("WEFT_ADDR is 192.0.2.77, which this host does not have"), "{said}");
    }

    #[test]
    fn without_its_socket_a_name_goes_by_its_addresses_as_the_home_has_it() {
        let ours = wanted(&["127.0.0.1", "10.0.0.1"]);
        let why = |addresses: &[&str], uses_memory, wanted| {
            let way = over_network(&name(addresses), uses_memory, wanted);
            (way.path, way.why)
        };
        assert_eq!(why(&[], true, Some(&ours)), (None, Why::NoAddress));
        assert_eq!(why(&["127.0.0.1"], true, None), (None, Why::NoNetwork));
        assert_eq!(why(&["127.0.0.1"], true, Some(&ours)), (None, Why::Ended));
        assert_eq!(why(&["10.0.0.1", "127.0.0.1"], true, Some(&ours)), (None, Why::Ended));
        // The kernel refuses a broadcast address, without sending a packet.
        let nowhere = over_network(&name(&["255.255.255.255"]), true, Some(&ours));
        assert_eq!((nowhere.path, nowhere.why), (None, Why::NoRoute));
        assert!(nowhere.addresses[0].error.is_some() && nowhere.addresses[0].from.is_none(), "{nowhere:?}");
        let by_loopback = over_network(&name(&["127.0.0.1"]), false, Some(&ours));
        if by_loopback.why != Why::NoRoute {
            assert_eq!((by_loopback.path, by_loopback.why), (Some(Path::Network), Why::LocalOff));
            let leg = &by_loopback.addresses[0];
            assert_eq!((&*leg.to, leg.from.as_deref()), ("127.0.0.1:4000", Some("127.0.0.1")));
            let elsewhere = over_network(&name(&["127.0.0.2"]), true, Some(&ours));
            assert_eq!((elsewhere.path, elsewhere.why), (Some(Path::Network), Why::OtherHost));
        }
    }
}
