//! The transports of MPI, and the settings that make each MPI use them.

use super::find::Kind;
use super::place::Place;
use std::path::Path;
use std::time::Duration;

/// A transport that an MPI can use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Transport {
    /// The provider of weft.
    Weft,
    /// The MPI's own shared memory.
    Own,
    /// libfabric's tcp over loopback.
    Tcp,
    /// libfabric's shm.
    Shm,
}

impl Transport {
    /// In the order of columns.
    pub const ALL: [Transport; 4] = [Transport::Weft, Transport::Own, Transport::Tcp, Transport::Shm];

    /// The suffix of an MPI's name.
    pub fn name(self) -> &'static str {
        match self {
            Transport::Weft => "weft",
            Transport::Own => "own",
            Transport::Tcp => "tcp",
            Transport::Shm => "shm",
        }
    }

    /// The name in tables and pictures.
    pub fn title(self, is_of_hosts: bool) -> &'static str {
        match self {
            Transport::Weft => "weft",
            Transport::Own if is_of_hosts => "its own TCP",
            Transport::Own => "its own",
            Transport::Tcp => "libfabric tcp",
            Transport::Shm => "libfabric shm",
        }
    }

    /// The libfabric provider. An MPI's own transport has none.
    pub fn provider(self) -> Option<&'static str> {
        match self {
            Transport::Weft => Some("weft"),
            Transport::Own => None,
            // The MPIs' libfabric also has a plain tcp for unconnected endpoints, but Open MPI 5.0.11 gets no message through it.
            Transport::Tcp => Some("tcp;ofi_rxm"),
            Transport::Shm => Some("shm"),
        }
    }
}

/// The transports that were asked for, or all that work between the places.
pub fn wanted(over: &[Transport], is_of_hosts: bool) -> Vec<Transport> {
    let all = Transport::ALL.into_iter().filter(|transport| over.is_empty() || over.contains(transport));
    all.filter(|&transport| !is_of_hosts || transport != Transport::Shm).collect()
}

/// The half of the program that a run measures, or hpcc. Open MPI sends messages with one component and carries out one-sided
/// operations with another; in one run, both would be polled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Half {
    Messages,
    OneSided,
    Hpcc,
}

impl Half {
    /// How long a run may print nothing. A measurement of the program takes some tenths of a second, and on a loaded machine it was
    /// seen to take seconds. hpcc prints nothing before its end: ten seconds, or a minute on a loaded machine.
    pub fn silence(self) -> Duration {
        match self {
            Half::Messages | Half::OneSided => Duration::from_secs(20),
            Half::Hpcc => Duration::from_secs(180),
        }
    }

    /// In words.
    pub fn title(self) -> &'static str {
        match self {
            Half::Messages => "messages and collective operations",
            Half::OneSided => "put and get",
            Half::Hpcc => "hpcc",
        }
    }
}

/// The environment of a run. All other variables of these programs are removed.
#[derive(Debug)]
pub struct Settings {
    pub variables: Vec<(&'static str, String)>,
    /// The MPI prints this if it uses the given provider.
    pub sign: Option<String>,
    /// How it works, if the name of the transport does not say so.
    pub detail: Option<&'static str>,
}

/// The settings that make this MPI use this transport. `None` if the MPI has none of its own, or has it under another name.
pub fn settings(
    kind: Kind,
    transport: Transport,
    half: Half,
    provider: Option<&Path>,
    place: &Place,
) -> Option<Settings> {
    let (is_of_hosts, interface) = (place.is_of_hosts(), place.interface());
    let is_btl_tcp = (kind, transport, half) == (Kind::OpenMpi, Transport::Tcp, Half::OneSided);
    if is_of_hosts && (is_btl_tcp || (kind, transport) == (Kind::Mpich, Transport::Own)) {
        return None;
    }
    let mut variables: Vec<(&'static str, String)> = Vec::new();
    let mut set = |name, value: &str| variables.push((name, value.to_owned()));
    if let Some(name) = transport.provider() {
        set("FI_PROVIDER", name);
    }
    match transport {
        Transport::Weft => {
            let folder = provider.map(|folder| folder.to_string_lossy().into_owned()).unwrap_or_default();
            set("FI_PROVIDER_PATH", &folder);
        }
        Transport::Tcp => set("FI_TCP_IFACE", interface),
        Transport::Own | Transport::Shm => {}
    }
    let (sign, detail) = match kind {
        Kind::OpenMpi if is_btl_tcp || (transport == Transport::Own && is_of_hosts) => {
            set("OMPI_MCA_pml", "ob1");
            set("OMPI_MCA_osc", "rdma");
            set("OMPI_MCA_btl", "tcp,self");
            set("OMPI_MCA_btl_tcp_if_include", interface);
            (None, Some("ob1, btl/tcp, not libfabric"))
        }
        Kind::OpenMpi => openmpi(transport, half, &mut set),
        Kind::Mpich => mpich(transport, &mut set),
    };
    Some(Settings { variables, sign, detail })
}

type Signs = (Option<String>, Option<&'static str>);

fn openmpi(transport: Transport, half: Half, set: &mut impl FnMut(&'static str, &str)) -> Signs {
    let Some(name) = transport.provider() else {
        set("OMPI_MCA_pml", "ob1");
        set("OMPI_MCA_btl", "sm,self");
        return (None, Some("ob1, btl/sm"));
    };
    set("OMPI_MCA_pml", "cm");
    set("OMPI_MCA_mtl", "ofi");
    // Without the layers on top of it.
    set("OMPI_MCA_mtl_ofi_provider_include", name.split(';').next().unwrap_or(name));
    set("OMPI_MCA_mtl_ofi_verbose", "1");
    if half == Half::OneSided {
        set("OMPI_MCA_osc", "rdma");
        set("OMPI_MCA_btl", "ofi,self");
    }
    (Some(format!("mtl:ofi:provider: {name}")), None)
}

fn mpich(transport: Transport, set: &mut impl FnMut(&'static str, &str)) -> Signs {
    let Some(name) = transport.provider() else { return (None, Some("as it comes")) };
    set("MPIR_CVAR_CH4_NETMOD", "ofi");
    set("MPIR_CVAR_NOLOCAL", "1");
    set("MPIR_CVAR_DEBUG_SUMMARY", "1");
    (Some(format!("libfabric provider: {name} - ")), None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mpi_is_told_the_provider_and_must_say_that_it_uses_it() {
        for kind in Kind::ALL {
            for transport in Transport::ALL {
                for half in [Half::Messages, Half::OneSided, Half::Hpcc] {
                    let provider = Some(Path::new("/providers"));
                    let settings = settings(kind, transport, half, provider, &Place::Here).expect("all lead here");
                    let of = |name| settings.variables.iter().find(|v| v.0 == name).map(|v| v.1.as_str());
                    assert_eq!(of("FI_PROVIDER"), transport.provider(), "{kind:?} {transport:?}");
                    assert_eq!(of("FI_PROVIDER_PATH"), (transport == Transport::Weft).then_some("/providers"));
                    // Without a sign, the detail says how it is done instead.
                    assert!(settings.sign.is_some() != settings.detail.is_some(), "{kind:?} {transport:?} {half:?}");
                }
            }
        }
    }
}
