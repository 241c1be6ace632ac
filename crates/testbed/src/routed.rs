//! A path with a router in it, the kernel's: this namespace, one for the router, one beyond.
//!
//! ```text
//! client ───── near   router   far ───── uplink       veth pairs
//! 10.91.0.1    10.91.0.254     10.92.0.254            fd91::1, fd91::254, fd92::254
//! ```
//!
//! The link to the client may have a smaller MTU than both ends of the path assume: only the router
//! has it. A stack beyond chooses its own addresses in 10.92.0.0/24 and fd92::/64; the kernel has
//! none there.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::Command;

use rustix::process::Pid;

use crate::Result;
use crate::namespace::{Network, within};
use crate::process::{run, tool};

/// The device beyond the router.
pub const UPLINK: &str = "uplink";

/// The router's addresses towards the stack beyond.
pub const GATEWAYS: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(10, 92, 0, 254)),
    IpAddr::V6(Ipv6Addr::new(0xfd92, 0, 0, 0, 0, 0, 0, 0x254)),
];

/// The path.
#[derive(Debug)]
pub struct Routed {
    router: Network,
    beyond: Network,
}

impl Routed {
    /// Makes the namespaces and devices. All links carry 1500 bytes.
    pub fn new() -> Result<Routed> {
        let routed = Routed {
            router: Network::new()?,
            beyond: Network::new()?,
        };
        let (router, beyond) = (routed.router(), routed.beyond());
        for (outer, inner) in [("client", "near"), (UPLINK, "far")] {
            let router = router.as_raw_nonzero();
            run(&mut tool(&format!(
                "ip link add {outer} type veth peer name {inner} netns {router}"
            )))?;
        }
        let pid = beyond.as_raw_nonzero();
        run(&mut tool(&format!("ip link set {UPLINK} netns {pid}")))?;
        // The router resolves neighbors from its link-local addresses, and packets that wait for a
        // resolution before these exist are late: a first SYN by a second, and then without ECN.
        // The kernel would create these addresses at an arbitrary time.
        for line in [
            "link set near addrgenmode none",
            "link set far addrgenmode none",
            "link set near up",
            "link set far up",
            "address add 10.91.0.254/24 dev near",
            "address add fd91::254/64 dev near nodad",
            "address add fe80::91:254/64 dev near nodad",
            "address add 10.92.0.254/24 dev far",
            "address add fd92::254/64 dev far nodad",
            "address add fe80::92:254/64 dev far nodad",
        ] {
            run(&mut within(router, &format!("ip {line}")))?;
        }
        for setting in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
            set(&mut within(router, "sh -c"), setting, 1)?;
        }
        // The kernel must not send packets there.
        for line in [
            format!("link set {UPLINK} addrgenmode none"),
            format!("link set {UPLINK} up"),
        ] {
            run(&mut within(beyond, &format!("ip {line}")))?;
        }
        for line in [
            "link set client up",
            "address add 10.91.0.1/24 dev client",
            "address add fd91::1/64 dev client nodad",
            "route add 10.92.0.0/24 via 10.91.0.254",
            "route add fd92::/64 via fd91::254",
        ] {
            run(&mut tool(&format!("ip {line}")))?;
        }
        Ok(routed)
    }

    /// Returns a process in the router's namespace.
    pub fn router(&self) -> Pid {
        self.router.holder()
    }

    /// Returns a process in the namespace beyond.
    pub fn beyond(&self) -> Pid {
        self.beyond.holder()
    }

    /// Lowers the router's MTU towards the client, without the client's knowledge.
    pub fn narrow(&self, mtu: u32) -> Result<()> {
        run(&mut within(
            self.router(),
            &format!("ip link set near mtu {mtu}"),
        ))?;
        Ok(())
    }

    /// Runs `nft` with a script on the router; returns its output.
    pub fn nft(&self, script: &str) -> Result<String> {
        run(within(self.router(), "nft").arg(script))
    }

    /// Makes the client's TCP request ECN.
    pub fn offer_ecn(&self) -> Result<()> {
        set(&mut tool("sh -c"), "ipv4/tcp_ecn", 1)
    }
}

/// Writes a setting below `/proc/sys/net`, in the namespace where `shell` runs.
fn set(shell: &mut Command, setting: &str, value: u32) -> Result<()> {
    run(shell.arg(format!("echo {value} > /proc/sys/net/{setting}")))?;
    Ok(())
}
