//! The link, the addresses and the ports of the stack.

use std::net::IpAddr;
use std::num::NonZeroU16;

use serde::{Deserialize, Serialize};

use super::text::Text;
use netsetup::cidr::Cidr;

/// The link and the addresses of the stack.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Network {
    /// Ethernet interface to attach the stack to. Without it, a veth pair is made, whose end on
    /// this machine is `splitway0`.
    pub interface: Option<String>,
    /// The stack's own addresses on that interface, each with the length of its on-link prefix:
    /// `"192.0.2.10/24"`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<Text<Cidr>>,
    /// Routers to everything that is not on the link, one each for IPv4 and IPv6.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gateways: Vec<IpAddr>,
    /// Ask the link at the start whether another machine has one of the addresses already, and do
    /// not start if so. On an interface only.
    pub dad: bool,
    /// MTU of the veth pair, in bytes, from 1280 to 65535; 1500 if nothing is said. An interface
    /// has its own.
    pub mtu: Option<u32>,
}

/// A port to serve on, at all addresses: of TCP, and with HTTP/3 of UDP as well.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Listen {
    /// The port.
    pub port: NonZeroU16,
    /// HTTPS is served there, and not HTTP.
    #[serde(default)]
    pub tls: bool,
    /// HTTP/3 is served on the UDP port of the same number, with the same certificates; responses
    /// over TCP say so (`Alt-Svc`). With `tls` only.
    #[serde(default)]
    pub http3: bool,
}

impl Default for Network {
    fn default() -> Self {
        Self {
            interface: None,
            addresses: Vec::new(),
            gateways: Vec::new(),
            dad: true,
            mtu: None,
        }
    }
}

impl Network {
    /// MTU of a veth pair unless told otherwise.
    pub const MTU: u32 = 1500;
}
