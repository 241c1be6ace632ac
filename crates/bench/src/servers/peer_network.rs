//! A network namespace for peers, behind a veth pair that is made like Splitway's.

use std::net::Ipv4Addr;

use rustix::process::Pid;
use testbed::Result;
use testbed::namespace::{Network, within};
use testbed::process::{run, tool};

use crate::CLIENT_CORE;
use crate::SERVER_CORE;
use crate::servers::link::{Device, copy_sizes, steer};

/// Address of the client's end, and of the peers', of the first network.
pub(crate) const CLIENT: Ipv4Addr = client(0);
pub(crate) const SERVER: Ipv4Addr = server(0);

/// Address of the client's end of a network.
const fn client(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 78, number, 1)
}

/// Address of the peers of a network.
pub(crate) const fn server(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 78, number, 2)
}

/// Name of both ends of a network's link.
pub(crate) fn device(number: u8) -> String {
    format!("peer{number}")
}

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct PeerNetwork {
    network: Network,
    device: String,
}

impl PeerNetwork {
    /// Creates the network and its link, whose ends, the client's and the servers', are made like
    /// those of `model`. With `steer_requests`, the kernel receives the client's packets on the
    /// servers' core.
    pub(crate) fn new(model: [Device<'_>; 2], steer_requests: bool) -> Result<PeerNetwork> {
        PeerNetwork::numbered(0, model, steer_requests)
    }

    /// The same, of several.
    pub(crate) fn numbered(
        number: u8,
        model: [Device<'_>; 2],
        steer_requests: bool,
    ) -> Result<PeerNetwork> {
        let network = Network::new()?;
        let name = device(number);
        let holder = network.holder();
        let pid = holder.as_raw_nonzero();
        run(&mut tool(&format!(
            "ip link add {name} type veth peer name {name} netns {pid}"
        )))?;
        let ends = [
            (None, client(number), CLIENT_CORE),
            (Some(holder), server(number), SERVER_CORE),
        ];
        for ((namespace, address, core), model) in ends.into_iter().zip(model) {
            let device = Device {
                namespace,
                name: &name,
            };
            copy_sizes(model, device)?;
            for line in [
                format!("ip address add {address}/24 dev {name}"),
                format!("ip link set {name} up"),
                // The congestion control of connections on this route. The namespace's own default
                // cannot be set to CUBIC where the machine's default is another.
                format!(
                    "ip route replace 10.78.{number}.0/24 dev {name} src {address} congctl cubic"
                ),
            ] {
                run(&mut namespace.map_or_else(|| tool(&line), |process| within(process, &line)))?;
            }
            if namespace.is_none() || steer_requests {
                steer(device, core)?;
            }
        }
        Ok(PeerNetwork {
            network,
            device: name,
        })
    }

    /// Returns the process that holds the namespace.
    pub(crate) fn holder(&self) -> Pid {
        self.network.holder()
    }
}

impl Drop for PeerNetwork {
    fn drop(&mut self) {
        // The namespace ends shortly after its last process; the link's name may be needed before.
        let _ = run(&mut tool(&format!("ip link delete {}", self.device)));
    }
}
