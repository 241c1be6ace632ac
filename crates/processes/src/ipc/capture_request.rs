//! A client's request to the supervisor to capture packets.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use netdev::packet::capture::{Only, SNAPLEN_MAX};
use serde::{Deserialize, Serialize};

/// The packets and bytes to capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CaptureRequest {
    /// Filter of packets.
    pub only: Only,
    /// Most bytes of each packet.
    pub snaplen: u32,
}

impl fmt::Display for CaptureRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "snaplen={}", self.snaplen)?;
        if let Some(host) = self.only.host {
            write!(f, " host={host}")?;
        }
        if let Some(port) = self.only.port {
            write!(f, " port={port}")?;
        }
        Ok(())
    }
}

impl FromStr for CaptureRequest {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut wanted = Self {
            only: Only::default(),
            snaplen: 0,
        };
        for word in text.split(' ') {
            let (name, value) = word.split_once('=').ok_or(())?;
            match name {
                "snaplen" => wanted.snaplen = value.parse().map_err(drop)?,
                "host" => wanted.only.host = Some(value.parse::<IpAddr>().map_err(drop)?),
                "port" => wanted.only.port = Some(value.parse().map_err(drop)?),
                _ => return Err(()),
            }
        }
        match (1..=SNAPLEN_MAX).contains(&wanted.snaplen) {
            true => Ok(wanted),
            false => Err(()),
        }
    }
}

/// Mark (`SO_MARK`) of packets that the host process sends.
pub const HOST_MARK: u32 = 0x5357_0001;
/// Mark (`SO_MARK`) of packets that NIC processes send.
pub const NIC_MARK: u32 = 0x5357_0002;

/// Source of a tap's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// From clients.
    Received,
    /// From the host process.
    HostSends,
    /// From NIC processes.
    NicSends,
    /// From both, where marks cannot distinguish them.
    BothSend,
}

/// Description of a capture, besides the taps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Captured {
    /// The link.
    pub device: String,
    /// Source of each tap's packets, in the order of the taps.
    pub parts: Vec<Part>,
    /// Number of NIC stacks on other machines, whose packets do not pass here.
    pub nics_elsewhere: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for host in [None, Some("10.0.0.1"), Some("fd77::1")] {
            for port in [None, Some(443)] {
                let host = host.map(|host| host.parse().unwrap());
                let wanted = CaptureRequest {
                    only: Only { host, port },
                    snaplen: 96,
                };
                assert_eq!(wanted.to_string().parse(), Ok(wanted));
            }
        }
        for wrong in [
            "",
            "snaplen=0",
            "snaplen=524288",
            "host=10.0.0.1",
            "snaplen=96 host=x",
            "snaplen=96 port=65536",
            "snaplen=96 mac=1",
            "snaplen=96  port=1",
        ] {
            assert_eq!(wrong.parse::<CaptureRequest>(), Err(()), "{wrong}");
        }
    }
}
