//! How hosts are connected: which links there are, and which way packets take.

/// The number of a host, from 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct HostId(pub u32);

/// The most hosts of a topology.
pub const HOSTS_MOST: u32 = 16_384;

/// How hosts are connected. Each link has two directions, with a queue at the beginning of each.
///
/// ```
/// use weft_sim::Topology;
///
/// assert_eq!(Topology::Star(16).hosts(), 16);
/// assert_eq!(Topology::Tree { switches: 16, hosts: 16 }.hosts(), 256);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Topology {
    /// Two hosts with one link between them.
    Pair,
    /// This many hosts at one switch.
    Star(u32),
    /// Two levels: switches with hosts, and one switch that connects them.
    Tree {
        /// Switches with hosts.
        switches: u32,
        /// Hosts at each of them.
        hosts: u32,
    },
}

/// Where the end of a link is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Hop {
    /// At the host that the packet is for.
    Host,
    /// At a switch that sends it on over this link.
    Port(u32),
}

/// A set of directions of links.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Links {
    /// All of them.
    All,
    /// Those from hosts: each packet takes one of them.
    Up,
    /// The one from this host.
    From(HostId),
    /// The one to this host.
    To(HostId),
    /// Those between switches.
    Trunks,
}

impl Topology {
    /// Hosts in all.
    pub fn hosts(self) -> u32 {
        match self {
            Topology::Pair => 2,
            Topology::Star(hosts) => hosts.clamp(2, HOSTS_MOST),
            Topology::Tree { switches, hosts } => switches.clamp(1, 64) * hosts.clamp(2, 64),
        }
    }

    /// Directions of links in all. First those from hosts, by host, then those to hosts, then from switches to the one above, then
    /// back. In a pair both are from hosts.
    pub(crate) fn ports(self) -> u32 {
        match self {
            Topology::Pair => 2,
            Topology::Star(_) => 2 * self.hosts(),
            Topology::Tree { switches, .. } => 2 * self.hosts() + 2 * switches.clamp(1, 64),
        }
    }

    /// Where a link leads, for a packet to this host.
    #[inline]
    pub(crate) fn after(self, port: u32, to: u32) -> Hop {
        let all = self.hosts();
        match self {
            Topology::Pair => Hop::Host,
            Topology::Star(_) if port < all => Hop::Port(all + to),
            Topology::Star(_) => Hop::Host,
            Topology::Tree { switches, hosts } => {
                let (switches, hosts) = (switches.clamp(1, 64), hosts.clamp(2, 64));
                match port {
                    _ if port < all && port / hosts == to / hosts => Hop::Port(all + to),
                    _ if port < all => Hop::Port(2 * all + port / hosts),
                    _ if port < 2 * all => Hop::Host,
                    _ if port < 2 * all + switches => Hop::Port(2 * all + switches + to / hosts),
                    _ => Hop::Port(all + to),
                }
            }
        }
    }

    /// Whether a link is between switches.
    pub(crate) fn is_trunk(self, port: u32) -> bool {
        matches!(self, Topology::Tree { .. }) && port >= 2 * self.hosts()
    }

    /// The link by which packets reach a host.
    pub(crate) fn down(self, host: u32) -> u32 {
        match self {
            Topology::Pair => 1 - host.min(1),
            _ => self.hosts() + host,
        }
    }

    /// Whether a link is in this set.
    pub(crate) fn has(self, links: Links, port: u32) -> bool {
        match links {
            Links::All => true,
            Links::Up => port < self.hosts(),
            Links::From(host) => port == host.0,
            Links::To(host) => port == self.down(host.0),
            Links::Trunks => self.is_trunk(port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_packet_gets_to_its_host_by_the_shortest_way() {
        let tree = Topology::Tree { switches: 16, hosts: 16 };
        for (topology, most) in [(Topology::Pair, 1), (Topology::Star(9), 2), (tree, 4)] {
            let hosts = topology.hosts();
            for (from, to) in (0..hosts).flat_map(|from| (0..hosts).map(move |to| (from, to))).filter(|(a, b)| a != b) {
                let (mut port, mut links) = (from, 1);
                while let Hop::Port(next) = topology.after(port, to) {
                    assert!(next < topology.ports());
                    (port, links) = (next, links + 1);
                }
                assert_eq!(port, if most == 1 { from } else { topology.down(to) });
                let is_near = most < 4 || from / 16 == to / 16;
                assert_eq!(links, if is_near { most.min(2) } else { 4 }, "{topology:?} {from} {to}");
            }
        }
    }
}
