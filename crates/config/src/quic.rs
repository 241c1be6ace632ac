//! QUIC, for all connections.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::str::FromStr;

use failure::Failure;
use host::{CongestionAlgorithm, QuicPreferredAddress, QuicReceive, QuicSettings};
use serde::{Deserialize, Serialize};

use super::key_file::{self, SecretBytes};
use super::size::Size;
use super::text::{Text, Time};
use crate::tls::TlsSettings;

/// QUIC, which carries HTTP/3.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Quic {
    /// Maximum connections per port. Beyond that, idle ones make room for new clients.
    pub connections_max: NonZeroU32,
    /// Connections on a port from which on clients must validate their address (RFC 9000 §8.1.2),
    /// which takes a round trip; 0: always.
    pub retry_above: u32,
    /// Idle timeout: a connection ends if nothing arrives for so long, from `"1s"` to `"10m"`.
    pub idle_timeout: Text<Time>,
    /// Allow clients to change their address, as a phone does when it leaves a wireless network.
    pub migration: bool,
    /// Addresses of the stack, at most one IPv4 and one IPv6, to which capable clients move once
    /// connected (RFC 9000 §9.6): the server's own, where many servers share an address. The port
    /// stays.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub preferred_addresses: Vec<Text<Preferred>>,
    /// File with the secret of stateless resets and address validation tokens: 64 hexadecimal
    /// digits, as `splitway keygen` writes them, which no other user may read. A restarted server
    /// with the same secret resets connections that it has lost. Without the file, each host
    /// process draws its own secret, and clients of one that was killed wait for their idle
    /// timeout.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_file: Option<PathBuf>,
    /// Accept requests of returning clients before the handshake is over (0-RTT), a round trip
    /// earlier. Requests to an origin wait for the handshake: early data can be recorded and
    /// replayed.
    pub early_data: bool,
    /// Process that opens client packets once the handshake is over: `"host"`, or `"nic"`, where
    /// NIC workers open them, put them in order, and drop acknowledgments that later ones repeat.
    /// The host opens what the workers cannot. A reload moves existing connections.
    #[cfg_attr(test, schemars(extend("x-reload" = true)))]
    pub receive: Text<ReceiveOption>,
    /// With `receive = "nic"`: bytes sent to the client before a worker opens the connection's
    /// packets, so that short connections take no room for a receive key; `"0"`: from the end of
    /// the handshake on.
    #[cfg_attr(test, schemars(extend("x-reload" = true)))]
    pub receive_after: Text<Size>,
}

/// An address of the stack to which clients move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preferred(pub IpAddr);

impl FromStr for Preferred {
    type Err = String;

    fn from_str(text: &str) -> Result<Preferred, String> {
        text.parse().map(Preferred).map_err(|_| {
            if text.parse::<SocketAddr>().is_ok() {
                format!("{text:?} has a port: clients stay with that of [[listen]]; leave it out")
            } else {
                format!("{text:?} is no IP address, such as 192.0.2.7 or 2001:db8::7")
            }
        })
    }
}

impl fmt::Display for Preferred {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The process that opens client packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReceiveOption {
    /// The host process.
    #[default]
    Host,
    /// NIC workers, as far as they can.
    Nic,
}

impl ReceiveOption {
    /// Names in the configuration.
    pub(crate) const NAMES: [(Self, &str); 2] = [(Self::Host, "host"), (Self::Nic, "nic")];
}

impl FromStr for ReceiveOption {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::NAMES.iter().find(|(_, name)| *name == text);
        found
            .map(|(value, _)| *value)
            .ok_or_else(|| "it is host or nic".to_owned())
    }
}

impl fmt::Display for ReceiveOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = Self::NAMES.iter().find(|(value, _)| value == self);
        f.write_str(found.map_or("", |(_, name)| name))
    }
}

impl Default for Quic {
    fn default() -> Self {
        let settings = QuicSettings::default();
        let limits = settings.limits;
        let connections_max = u32::try_from(limits.connections_max).ok();
        Self {
            connections_max: connections_max
                .and_then(NonZeroU32::new)
                .unwrap_or(NonZeroU32::MAX),
            retry_above: u32::try_from(limits.retry_above).unwrap_or(u32::MAX),
            idle_timeout: Text(Time(settings.idle_timeout)),
            migration: settings.migration,
            preferred_addresses: Vec::new(),
            secret_file: None,
            early_data: settings.early_data,
            receive: Text(ReceiveOption::default()),
            receive_after: Text(Size(0)),
        }
    }
}

impl Quic {
    /// The preferred address, with the port of each endpoint.
    fn preferred_address(&self) -> QuicPreferredAddress {
        let mut preferred = QuicPreferredAddress::default();
        for Text(Preferred(address)) in &self.preferred_addresses {
            match address {
                IpAddr::V4(address) => preferred.v4 = Some(*address),
                IpAddr::V6(address) => preferred.v6 = Some(*address),
            }
        }
        preferred
    }

    /// Where client packets are opened; changeable while a stack runs.
    pub fn receive(&self) -> QuicReceive {
        match self.receive.0 {
            ReceiveOption::Host => QuicReceive::Host,
            ReceiveOption::Nic => QuicReceive::Nic {
                after_bytes: self.receive_after.0.0,
            },
        }
    }

    /// The part for the host process, which reads no file.
    pub fn without_files(&self) -> Self {
        Self {
            secret_file: None,
            ..self.clone()
        }
    }

    /// Reads the secret from [`secret_file`](Self::secret_file), if set.
    pub fn secret(&self) -> Result<Option<SecretBytes>, Failure> {
        let path = self.secret_file.as_deref();
        path.map(key_file::read_quic_secret).transpose()
    }

    /// Settings of the host stack without the secret, with the ciphers of TLS.
    pub fn settings(&self, tls: &TlsSettings, congestion: CongestionAlgorithm) -> QuicSettings {
        let mut settings = QuicSettings {
            ciphers: tls.to_tls().ciphers,
            congestion,
            idle_timeout: self.idle_timeout.0.0,
            migration: self.migration,
            preferred_address: self.preferred_address(),
            early_data: self.early_data,
            ..QuicSettings::default()
        };
        settings.limits.connections_max = self.connections_max.get() as usize;
        settings.limits.retry_above = self.retry_above as usize;
        settings
    }
}
