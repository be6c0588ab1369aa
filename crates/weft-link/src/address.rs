//! The addresses of this host that names carry, and how large packets may be there.
//!
//! `WEFT_ADDR`, `WEFT_PORT`, `WEFT_SUSPICION`, `WEFT_CONGESTION` and `WEFT_INTEGRITY` decide if they are set; otherwise the host's routes
//! and interfaces do. Nothing here sends a packet.

use crate::NetworkError as Error;
use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;
use std::{env, fmt, fs};
use weft_shm::fork::without_forks;
use weft_transport::Method;
use weft_wire::packet::Integrity;
use weft_wire::ADDRESSES_MOST;

/// The settings of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Addresses of this host, the preferred one first: at least one, and several only if they are of IPv4.
    pub addresses: Vec<IpAddr>,
    /// The user has set the addresses, so it is an error if one of them cannot be had.
    pub are_set: bool,
    /// The ports to choose from.
    pub ports: Ports,
    /// For how long a peer may be silent, if that is set.
    pub suspicion: Option<Duration>,
    /// The method of congestion control.
    pub congestion: Method,
    /// What the checksums of packets cover, with peers that want the same.
    pub integrity: Integrity,
}

impl Wanted {
    /// The settings of `WEFT_ADDR`, `WEFT_PORT`, `WEFT_SUSPICION`, `WEFT_CONGESTION` and `WEFT_INTEGRITY`, and those of this host for
    /// variables that are not set. `None` if no network is wanted, or there is no address that others could reach.
    pub fn from_environment() -> Result<Option<Wanted>, Error> {
        let read = |variable| env::var_os(variable).map(|value| value.to_string_lossy().into_owned());
        Wanted::from_settings(read(ADDR).as_deref(), read(PORT).as_deref())
    }

    /// As [`Wanted::from_environment`], with an address and a port that were set elsewhere, in the form of `WEFT_ADDR` and `WEFT_PORT`.
    pub fn from_settings(address: Option<&str>, port: Option<&str>) -> Result<Option<Wanted>, Error> {
        let read = |variable| env::var_os(variable).map(|value| value.to_string_lossy().into_owned());
        let ports = Ports::from_setting(port)?;
        let suspicion = suspicion_from_setting(read(SUSPICION).as_deref())?;
        let congestion = congestion_from_setting(read(CONGESTION).as_deref())?;
        let integrity = integrity_from_setting(read(INTEGRITY).as_deref())?;
        let addresses = match address.map(str::trim).filter(|value| !value.is_empty()) {
            Some(value) => (from_setting(value)?, true),
            None => (choose(source_of_default_route(), &interfaces()), false),
        };
        Ok(Some(addresses).filter(|(all, _)| !all.is_empty()).map(|(addresses, are_set)| Wanted {
            addresses,
            are_set,
            ports,
            suspicion,
            congestion,
            integrity,
        }))
    }
}

/// Whether an interface of this host has this address.
pub fn is_here(address: IpAddr) -> bool {
    interfaces().iter().any(|interface| interface.address == address)
}

/// The addresses that names would carry now without a setting.
pub fn present() -> Vec<IpAddr> {
    choose(source_of_default_route(), &interfaces())
}

/// The ports that a link may take: one, the first free one of a range, or any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports {
    first: u16,
    last: u16,
}

impl Ports {
    /// Any port: the kernel chooses.
    pub const ANY: Ports = Ports { first: 0, last: 0 };

    /// Only this port.
    pub fn only(port: u16) -> Ports {
        Ports { first: port, last: port }
    }

    /// Reads a value of `WEFT_PORT`: `4000`, `4000-4099`, or nothing for any port.
    pub fn from_setting(value: Option<&str>) -> Result<Ports, Error> {
        let Some(value) = value.map(str::trim).filter(|value| !value.is_empty()) else {
            return Ok(Ports::ANY);
        };
        let (first, last) = value.split_once('-').unwrap_or((value, value));
        let port = |text: &str| text.trim().parse().ok().filter(|port: &u16| *port != 0);
        match (port(first), port(last)) {
            (Some(first), Some(last)) if first <= last => Ok(Ports { first, last }),
            _ => Err(Error::Setting {
                variable: PORT,
                value: value.into(),
                wanted: "a port from 1 to 65535, or the first and the last of a range: 4000-4099",
            }),
        }
    }

    /// The ports to try, in this order; 0 for any.
    pub fn iter(self) -> impl Iterator<Item = u16> {
        self.first..=self.last
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.first)?;
        if self.last > self.first {
            write!(f, "-{}", self.last)?;
        }
        Ok(())
    }
}

/// Reads a value of `WEFT_SUSPICION`.
fn suspicion_from_setting(value: Option<&str>) -> Result<Option<Duration>, Error> {
    let wanted = "for how many milliseconds a peer may be silent, from 50 to 300000";
    milliseconds(SUSPICION, value, &SUSPICION_RANGE, wanted)
}

/// The setting of `WEFT_LINGER`: how long a bundle that is dropped waits until its messages are out.
pub fn linger_from_environment() -> Result<Option<Duration>, Error> {
    linger_from_setting(env::var_os(LINGER).map(|value| value.to_string_lossy().into_owned()).as_deref())
}

fn linger_from_setting(value: Option<&str>) -> Result<Option<Duration>, Error> {
    let wanted = "for how many milliseconds a bundle that is dropped may wait, from 0 to 300000";
    milliseconds(LINGER, value, &LINGER_RANGE, wanted)
}

/// Reads a time in milliseconds, if one is set.
fn milliseconds(
    variable: &'static str,
    value: Option<&str>,
    range: &RangeInclusive<u64>,
    wanted: &'static str,
) -> Result<Option<Duration>, Error> {
    let Some(value) = value.map(str::trim).filter(|value| !value.is_empty()) else { return Ok(None) };
    let number = value.parse().ok().filter(|number| range.contains(number));
    let number = number.ok_or_else(|| Error::Setting { variable, value: value.into(), wanted })?;
    Ok(Some(Duration::from_millis(number)))
}

/// Reads a value of `WEFT_CONGESTION`.
fn congestion_from_setting(value: Option<&str>) -> Result<Method, Error> {
    match value.map(str::trim).unwrap_or_default() {
        "" | "delay" => Ok(Method::Delay),
        "fixed" => Ok(Method::Fixed),
        other => Err(Error::Setting {
            variable: CONGESTION,
            value: other.into(),
            wanted: "`delay` for a window that follows the delay, or `fixed`",
        }),
    }
}

/// Reads a value of `WEFT_INTEGRITY`.
fn integrity_from_setting(value: Option<&str>) -> Result<Integrity, Error> {
    match value.map(str::trim).unwrap_or_default() {
        "" => Ok(Integrity::Full),
        word => Integrity::from_word(word).ok_or_else(|| Error::Setting {
            variable: INTEGRITY,
            value: word.into(),
            wanted: "`full` for a checksum over everything, or `header` for one that leaves payloads to UDP's",
        }),
    }
}

/// The first guess how many bytes a packet may have, without the headers of IP and UDP, at an address of this host.
///
/// # Errors
/// If its interface carries less than IP promises everywhere.
pub fn first_packet_bytes(address: IpAddr) -> Result<usize, Error> {
    let Some(interface) = interfaces().into_iter().find(|interface| interface.address == address) else {
        // The unspecified address, or one of another host. A packet that fits everywhere is a fair first guess.
        return packet_bytes("", address, IPV6_LEAST);
    };
    packet_bytes(&interface.name, address, mtu(&interface).unwrap_or(IPV6_LEAST))
}

/// The interface that has an address of this host, and how large packets it carries, if the kernel says so.
pub fn interface_of(address: IpAddr) -> Option<(String, Option<u32>)> {
    let interface = interfaces().into_iter().find(|interface| interface.address == address)?;
    let mtu = mtu(&interface);
    Some((interface.name, mtu))
}

/// An address of an interface, and what the kernel says about the interface.
#[derive(Clone, Debug)]
struct Interface {
    name: String,
    address: IpAddr,
    /// It is set up, and has a carrier.
    is_up: bool,
    is_loopback: bool,
    is_bridge: bool,
}

impl Interface {
    /// Whether other hosts can reach this host here. Interfaces between a host and its own containers lead nowhere else.
    fn is_usable(&self) -> bool {
        let is_inner = self.is_bridge || INNER.iter().any(|prefix| self.name.starts_with(prefix));
        self.is_up && !self.is_loopback && !is_inner && is_global(self.address)
    }
}

/// Why names do not carry an address of this host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeftOut {
    /// Its interface is down, or has no carrier.
    Down,
    /// Its interface is a bridge, or leads to containers.
    Inner,
    /// It is valid on one link only.
    OneLink,
    /// Names carry another address of its interface.
    OtherOfInterface,
    /// `WEFT_ADDR` names other addresses.
    Setting,
    /// Names have no room for it: they carry three addresses of IPv4, or one of IPv6.
    NoRoom,
}

impl LeftOut {
    /// The reason in words.
    pub fn in_words(self) -> &'static str {
        match self {
            LeftOut::Down => "down, or without a carrier",
            LeftOut::Inner => "a bridge, or for containers",
            LeftOut::OneLink => "valid on one link only",
            LeftOut::OtherOfInterface => "names carry another address of the interface",
            LeftOut::Setting => "WEFT_ADDR names others",
            LeftOut::NoRoom => "names have no room for more",
        }
    }
}

/// The addresses of this host that names leave out if they carry these, with their interfaces and the reasons. Without those of loopback.
pub fn left_out(carried: &[IpAddr]) -> Vec<(String, IpAddr, LeftOut)> {
    let is_set = env::var_os(ADDR).is_some_and(|value| !value.is_empty());
    judge(&interfaces(), carried, is_set)
}

fn judge(interfaces: &[Interface], carried: &[IpAddr], is_set: bool) -> Vec<(String, IpAddr, LeftOut)> {
    let is_carried = |interface: &&Interface| carried.contains(&interface.address);
    let with_one: Vec<&str> = interfaces.iter().filter(is_carried).map(|i| &*i.name).collect();
    let why = |i: &Interface| match i {
        _ if is_set => LeftOut::Setting,
        i if !i.is_up => LeftOut::Down,
        i if !is_global(i.address) => LeftOut::OneLink,
        i if !i.is_usable() => LeftOut::Inner,
        i if with_one.contains(&&*i.name) => LeftOut::OtherOfInterface,
        _ => LeftOut::NoRoom,
    };
    let others = interfaces.iter().filter(|i| !i.is_loopback && !is_carried(i));
    others.map(|i| (i.name.clone(), i.address, why(i))).collect()
}

/// Reads a value of `WEFT_ADDR`. No addresses if it asks for no network.
fn from_setting(value: &str) -> Result<Vec<IpAddr>, Error> {
    if value == "none" {
        return Ok(Vec::new());
    }
    let address = |text: &str| {
        let address = text.trim().parse::<IpAddr>().ok()?.to_canonical();
        (!address.is_unspecified() && !address.is_multicast()).then_some(address)
    };
    let addresses: Option<Vec<IpAddr>> = value.split(',').map(address).collect();
    let can_be = |all: &Vec<IpAddr>| {
        let is_first = |(at, address): (usize, &IpAddr)| !all[..at].contains(address);
        let are_v4 = all.iter().all(IpAddr::is_ipv4);
        (all.len() == 1 || all.len() <= ADDRESSES_MOST && are_v4) && all.iter().enumerate().all(is_first)
    };
    addresses.filter(can_be).ok_or_else(|| Error::Setting {
        variable: ADDR,
        value: value.into(),
        wanted: "an IPv4 or IPv6 address of this host (`ip addr` lists them), up to three of IPv4 with commas between \
                 them, or `none` for no network",
    })
}

/// The source address of the default route, or else the first usable address, and one address of each further interface by which others
/// may reach this host.
fn choose(source: Option<IpAddr>, interfaces: &[Interface]) -> Vec<IpAddr> {
    let usable = || interfaces.iter().filter(|i| i.is_usable());
    let Some(first) = source.or_else(|| usable().next().map(|i| i.address)) else { return Vec::new() };
    let mut addresses = vec![first];
    let mut names: Vec<&str> = interfaces.iter().filter(|i| i.address == first).map(|i| &*i.name).collect();
    for interface in usable().filter(|i| first.is_ipv4() && i.address.is_ipv4()) {
        if !names.contains(&&*interface.name) && !addresses.contains(&interface.address) {
            names.push(&interface.name);
            addresses.push(interface.address);
        }
    }
    addresses.truncate(ADDRESSES_MOST);
    addresses
}

/// The bytes of a packet without its headers, at an interface that carries `mtu` bytes.
fn packet_bytes(interface: &str, address: IpAddr, mtu: u32) -> Result<usize, Error> {
    let (least, headers) = if address.is_ipv4() { (IPV4_LEAST, 20 + 8) } else { (IPV6_LEAST, 40 + 8) };
    if mtu < least {
        return Err(Error::SmallMtu { interface: interface.into(), address, mtu, least });
    }
    Ok((mtu.min(MTU_MOST) - headers) as usize)
}

/// The source address of packets to the rest of the world. Connecting a UDP socket sends nothing.
fn source_of_default_route() -> Option<IpAddr> {
    let source = |from: SocketAddr, to: IpAddr| {
        without_forks(|| {
            let socket = UdpSocket::bind(from).ok()?;
            socket.connect((to, DISCARD)).ok()?;
            Some(socket.local_addr().ok()?.ip()).filter(|address| is_global(*address))
        })
    };
    source((Ipv4Addr::UNSPECIFIED, 0).into(), FAR_IPV4.into())
        .or_else(|| source((Ipv6Addr::UNSPECIFIED, 0).into(), FAR_IPV6.into()))
}

/// All addresses of this host's interfaces. None if the kernel does not say.
fn interfaces() -> Vec<Interface> {
    let Ok(all) = getifaddrs() else { return Vec::new() };
    let interface = |i: nix::ifaddrs::InterfaceAddress| {
        let address = i.address?;
        let v4 = address.as_sockaddr_in().map(|a| IpAddr::V4(a.ip()));
        let address = v4.or_else(|| address.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip())))?;
        Some(Interface {
            address,
            is_up: i.flags.contains(InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING),
            is_loopback: i.flags.contains(InterfaceFlags::IFF_LOOPBACK),
            is_bridge: Path::new(CLASS_NET).join(&i.interface_name).join("bridge").exists(),
            name: i.interface_name,
        })
    };
    all.filter_map(interface).collect()
}

/// The bytes of the largest packet that an interface carries. `None` where there is no /sys.
fn mtu(interface: &Interface) -> Option<u32> {
    let file = Path::new(CLASS_NET).join(&interface.name).join("mtu");
    fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok())
}

/// Whether an address names the same host everywhere.
fn is_global(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(a) => {
            !a.is_unspecified() && !a.is_loopback() && !a.is_link_local() && !a.is_multicast() && !a.is_broadcast()
        }
        IpAddr::V6(a) => !a.is_unspecified() && !a.is_loopback() && !a.is_unicast_link_local() && !a.is_multicast(),
    }
}

const ADDR: &str = "WEFT_ADDR";
const PORT: &str = "WEFT_PORT";
const SUSPICION: &str = "WEFT_SUSPICION";
/// See `linger_from_environment`.
const LINGER: &str = "WEFT_LINGER";
const CONGESTION: &str = "WEFT_CONGESTION";
const INTEGRITY: &str = "WEFT_INTEGRITY";

/// The allowed milliseconds of `WEFT_SUSPICION`.
const SUSPICION_RANGE: RangeInclusive<u64> = 50..=300_000;

/// The allowed milliseconds of `WEFT_LINGER`.
const LINGER_RANGE: RangeInclusive<u64> = 0..=300_000;

/// The kernel's directory of interfaces.
const CLASS_NET: &str = "/sys/class/net";

/// Prefixes of the names of interfaces that lead only to containers and virtual machines of this host.
const INNER: [&str; 10] = ["docker", "virbr", "veth", "cni", "flannel", "cali", "kube", "lxc", "lxd", "podman"];

/// Bytes of packets that IP promises to carry everywhere: RFC 791, section 3.1 ("Total Length"), and RFC 8200, section 5.
const IPV4_LEAST: u32 = 576;
const IPV6_LEAST: u32 = 1280;

/// The most bytes of a packet. Larger ones gain nothing, and a lost one costs more.
const MTU_MOST: u32 = 9000;

/// Addresses that no host has (RFC 5737, RFC 3849), so the way to them is the default route.
const FAR_IPV4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const FAR_IPV6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);

/// A port to connect to; nothing is sent there.
const DISCARD: u16 = 9;

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("a test's address is right")
    }

    fn interface(name: &str, address: &str) -> Interface {
        let flag = |prefix| name.starts_with(prefix);
        Interface {
            name: name.into(),
            address: ip(address),
            is_up: true,
            is_loopback: flag("lo"),
            is_bridge: flag("br"),
        }
    }

    fn host() -> Vec<Interface> {
        let mut down = interface("eth9", "10.9.0.1");
        down.is_up = false;
        vec![
            interface("lo", "127.0.0.1"),
            interface("docker0", "172.17.0.1"),
            interface("virbr0", "192.168.122.1"),
            interface("br-4711", "172.18.0.1"),
            interface("veth12ab", "172.19.0.1"),
            down,
            interface("tun0", "10.8.0.1"),
            interface("eth0", "fe80::1"),
            interface("eth0", "fd00::1"),
            interface("eth0", "169.254.1.1"),
            interface("eth0", "10.0.0.1"),
            interface("eth1", "10.1.0.1"),
        ]
    }

    fn ips(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| ip(text)).collect()
    }

    #[test]
    fn a_setting_is_one_address_or_some_or_none() {
        let set = |value| from_setting(value).expect("a good setting");
        assert_eq!(set("none"), ips(&[]));
        assert_eq!(set("10.1.2.3"), ips(&["10.1.2.3"]));
        assert_eq!(set(" fd00::7 "), ips(&["fd00::7"]));
        assert_eq!(set("::ffff:10.1.2.3"), ips(&["10.1.2.3"]));
        assert_eq!(set("127.0.0.1"), ips(&["127.0.0.1"]));
        assert_eq!(set("10.1.2.3, 10.2.2.3,127.0.0.1"), ips(&["10.1.2.3", "10.2.2.3", "127.0.0.1"]));
    }

    #[test]
    fn wrong_addresses_are_told_with_the_way_out() {
        for value in [
            "eth0",
            "0.0.0.0",
            "::",
            "224.0.0.1",
            "10.0.0.1:4000",
            "None",
            ",",
            "10.0.0.1,",
            "10.0.0.1,none",
            "10.0.0.1,10.0.0.1",
            "10.0.0.1,fd00::1",
            "fd00::2,fd00::1",
            "10.0.0.1,10.0.0.2,10.0.0.3,10.0.0.4",
        ] {
            let error = from_setting(value).expect_err(value).to_string();
            assert!(error.contains("WEFT_ADDR") && error.contains(value) && error.contains("none"), "{error}");
        }
    }

    #[test]
    fn the_source_of_the_default_route_is_first_and_one_address_of_other_real_interfaces_follows() {
        assert_eq!(choose(Some(ip("10.1.0.1")), &host()), ips(&["10.1.0.1", "10.8.0.1", "10.0.0.1"]));
        // The source may be on an interface that would not be chosen.
        assert_eq!(choose(Some(ip("172.18.0.1")), &host()), ips(&["172.18.0.1", "10.8.0.1", "10.0.0.1"]));
        assert_eq!(choose(Some(ip("10.99.0.1")), &[]), ips(&["10.99.0.1"]));
        let two_of_one = [interface("eth0", "10.0.0.1"), interface("eth0", "10.0.0.2"), interface("eth1", "10.0.0.2")];
        assert_eq!(choose(Some(ip("10.0.0.2")), &two_of_one), ips(&["10.0.0.2"]));
        // Names have room for one of IPv6.
        assert_eq!(choose(Some(ip("fd00::1")), &host()), ips(&["fd00::1"]));
    }

    #[test]
    fn each_address_that_is_left_out_has_a_reason() {
        use LeftOut::*;
        let told = |is_set| {
            let all = judge(&host(), &ips(&["10.8.0.1", "10.0.0.1"]), is_set);
            all.into_iter().map(|(name, address, why)| (name, address.to_string(), why)).collect::<Vec<_>>()
        };
        let wanted = [
            ("docker0", "172.17.0.1", Inner),
            ("virbr0", "192.168.122.1", Inner),
            ("br-4711", "172.18.0.1", Inner),
            ("veth12ab", "172.19.0.1", Inner),
            ("eth9", "10.9.0.1", Down),
            ("eth0", "fe80::1", OneLink),
            ("eth0", "fd00::1", OtherOfInterface),
            ("eth0", "169.254.1.1", OneLink),
            ("eth1", "10.1.0.1", NoRoom),
        ];
        assert_eq!(told(false), wanted.map(|(name, address, why)| (name.to_owned(), address.to_owned(), why)));
        assert!(told(true).iter().all(|(.., why)| *why == Setting));
    }

    #[test]
    fn without_a_default_route_the_first_real_interface_is_first() {
        assert_eq!(choose(None, &host()), ips(&["10.8.0.1", "10.0.0.1", "10.1.0.1"]));
        assert_eq!(choose(None, &host().split_off(7)), ips(&["fd00::1"]));
        let inner: Vec<Interface> = host().into_iter().filter(|i| !i.is_usable()).collect();
        assert_eq!(choose(None, &inner), ips(&[]));
    }

    #[test]
    fn integrity_is_full_unless_the_header_alone_is_wanted() {
        let integrity = |value| integrity_from_setting(value).expect("a good setting");
        assert_eq!([integrity(None), integrity(Some("")), integrity(Some(" full "))], [Integrity::Full; 3]);
        assert_eq!(integrity(Some("header")), Integrity::Header);
        for value in ["off", "none", "Header"] {
            let error = integrity_from_setting(Some(value)).expect_err(value).to_string();
            assert!(error.contains("WEFT_INTEGRITY") && error.contains(value) && error.contains("`full`"), "{error}");
        }
    }

    #[test]
    fn congestion_control_is_of_two_kinds() {
        let method = |value| congestion_from_setting(value).expect("a good setting");
        assert_eq!([method(None), method(Some("")), method(Some(" delay "))], [Method::Delay; 3]);
        assert_eq!(method(Some("fixed")), Method::Fixed);
        let error = congestion_from_setting(Some("cubic")).expect_err("another").to_string();
        assert!(error.contains("WEFT_CONGESTION") && error.contains("cubic") && error.contains("delay"), "{error}");
    }

    #[test]
    fn ports_are_one_or_some_or_any() {
        let ports = |value| Ports::from_setting(value).expect("a good setting");
        let all = |value| ports(Some(value)).iter().collect::<Vec<u16>>();
        assert_eq!(ports(None), Ports::ANY);
        assert_eq!(ports(Some("")), Ports::ANY);
        assert_eq!(all("4000"), [4000]);
        assert_eq!(all(" 4000 - 4002 "), [4000, 4001, 4002]);
        assert_eq!(all("65535"), [65535]);
        assert_eq!(ports(Some("4000-4002")).to_string(), "4000-4002");
        assert_eq!(ports(Some("4000")).to_string(), "4000");
        for value in ["0", "65536", "-1", "4000-", "4002-4000", "0-5", "http", "1-2-3"] {
            let error = Ports::from_setting(Some(value)).expect_err(value).to_string();
            assert!(error.contains("WEFT_PORT") && error.contains(value) && error.contains("4000-4099"), "{error}");
        }
    }

    #[test]
    fn a_suspicion_time_is_a_number_of_milliseconds_within_its_range() {
        let said = |value| suspicion_from_setting(Some(value)).expect("a good setting");
        assert_eq!(suspicion_from_setting(None).expect("nothing said"), None);
        assert_eq!(
            [said(""), said(" 50 "), said("300000")],
            [None, Some(50), Some(300_000)].map(|s| s.map(Duration::from_millis))
        );
        for value in ["49", "300001", "3s", "-1"] {
            let error = suspicion_from_setting(Some(value)).expect_err(value).to_string();
            assert!(error.contains("WEFT_SUSPICION") && error.contains(value) && error.contains("300000"), "{error}");
        }
    }

    #[test]
    fn a_linger_time_is_a_number_of_milliseconds_and_may_be_none() {
        assert_eq!(linger_from_setting(Some("0")).expect("a good setting"), Some(Duration::ZERO));
        assert_eq!(linger_from_setting(Some("")).expect("nothing said"), None);
        let error = linger_from_setting(Some("off")).expect_err("no number").to_string();
        assert!(error.contains("WEFT_LINGER") && error.contains("off") && error.contains("300000"), "{error}");
    }

    #[test]
    fn packets_fit_the_interface() {
        let bytes = |address, mtu| packet_bytes("eth0", ip(address), mtu).ok();
        assert_eq!(bytes("10.0.0.1", 1500), Some(1472));
        assert_eq!(bytes("fd00::1", 1500), Some(1452));
        assert_eq!(bytes("127.0.0.1", 65536), Some(8972));
        assert_eq!(bytes("10.0.0.1", 576), Some(548));
        assert_eq!(bytes("10.0.0.1", 575), None);
        assert_eq!(bytes("fd00::1", 1280), Some(1232));
        assert_eq!(bytes("fd00::1", 1279), None);
    }

    #[test]
    fn small_mtu_is_told_with_the_way_out() {
        let error = packet_bytes("eth0", ip("fd00::1"), 1000).expect_err("too small").to_string();
        for part in ["eth0", "fd00::1", "1000", "1280", "ip link set", "WEFT_ADDR"] {
            assert!(error.contains(part), "{part}: {error}");
        }
    }

    #[test]
    fn addresses_of_this_host_are_usable() {
        // Its addresses are unknown here, but each must be usable.
        let all = interfaces();
        for interface in all.iter().filter(|i| i.is_loopback && i.address == ip("127.0.0.1")) {
            assert!(!interface.is_usable());
            assert!(first_packet_bytes(interface.address).is_ok_and(|bytes| (548..=8972).contains(&bytes)));
        }
        assert!(source_of_default_route().is_none_or(is_global));
        assert_eq!(first_packet_bytes(ip("192.0.2.1")).ok(), Some(1252));
    }
}
