//! The link, the addresses and the ports of the stack.

use std::net::IpAddr;
use std::num::NonZeroU16;

use serde::{Deserialize, Serialize};

use super::socket_values::{AddressRange, PortRange};
use super::text::Text;
use netsetup::cidr::Cidr;

/// Link and addresses of the stack.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Network {
    /// Ethernet interface to attach the stack to. Without it, the server creates a veth pair, whose
    /// end on this machine is `splitway0`.
    pub interface: Option<String>,
    /// Addresses of the stack on that interface, each with its on-link prefix length:
    /// `"192.0.2.10/24"`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<Text<Cidr>>,
    /// Share the interface's addresses with the kernel, which keeps all ports but those that the
    /// server listens on. The server follows the kernel's addresses, routes and gateways. The
    /// firewall (netfilter) does not see packets of its ports. Requires `interface`, and no
    /// `addresses` or `gateways`.
    pub share: bool,
    /// With `share`: ports of the connections to a proxy's backends. The kernel must not use them:
    /// they lie outside `net.ipv4.ip_local_port_range`, or in `net.ipv4.ip_local_reserved_ports`.
    pub local_ports: Text<PortRange>,
    /// Default gateways, one each for IPv4 and IPv6.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gateways: Vec<IpAddr>,
    /// Duplicate address detection at startup: the server does not start if another machine has one
    /// of the addresses. On an interface only.
    pub dad: bool,
    /// MTU of the veth pair, in bytes, from 1280 to 65535; default 1500. An interface has its own.
    pub mtu: Option<u32>,
}

/// A port to serve on, at all addresses: of TCP, and with HTTP/3 of UDP as well.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Listen {
    /// Port number.
    #[cfg_attr(test, schemars(extend("x-reload" = false)))]
    pub port: NonZeroU16,
    /// Serve HTTPS on the port instead of HTTP.
    #[serde(default)]
    #[cfg_attr(test, schemars(extend("x-reload" = false)))]
    pub tls: bool,
    /// Serve HTTP/3 on the UDP port of the same number, with the same certificates; responses over
    /// TCP advertise it (`Alt-Svc`). Requires `tls`.
    #[serde(default)]
    #[cfg_attr(test, schemars(extend("x-reload" = false)))]
    pub http3: bool,
    /// Addresses, such as `["10.0.0.0/8"]`, from which every TCP connection begins with a PROXY
    /// protocol header, version 1 or 2, which names the client; from others none does. With `tls`,
    /// the header comes before TLS.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub proxy_protocol_from: Vec<Text<AddressRange>>,
}

impl Default for Network {
    fn default() -> Self {
        Self {
            interface: None,
            addresses: Vec::new(),
            share: false,
            local_ports: Text(Self::LOCAL_PORTS),
            gateways: Vec::new(),
            dad: true,
            mtu: None,
        }
    }
}

impl Network {
    /// Default of `local_ports`: above Linux's default of `ip_local_port_range`.
    pub const LOCAL_PORTS: PortRange = PortRange {
        first: 61_000,
        last: 65_535,
    };

    /// Default MTU of a veth pair, in bytes.
    pub const MTU: u32 = 1500;
}
