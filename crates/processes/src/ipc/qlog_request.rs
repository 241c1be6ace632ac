//! A client's request to the supervisor to trace QUIC connections, and the lines of JSON that the
//! host process writes to the client's pipe.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Most connections of a trace.
pub const CONNECTIONS_MAX: u32 = 10_000;

/// Filter of connections to trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QlogRequest {
    /// Number of the only connection.
    pub connection: Option<u64>,
    /// Address of the client.
    pub host: Option<IpAddr>,
    /// Most connections: at most [`CONNECTIONS_MAX`].
    pub connections_max: u32,
}

impl fmt::Display for QlogRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "connections={}", self.connections_max)?;
        if let Some(connection) = self.connection {
            write!(f, " connection={connection}")?;
        }
        if let Some(host) = self.host {
            write!(f, " host={host}")?;
        }
        Ok(())
    }
}

impl FromStr for QlogRequest {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut wanted = Self {
            connection: None,
            host: None,
            connections_max: 0,
        };
        for word in text.split(' ') {
            let (name, value) = word.split_once('=').ok_or(())?;
            match name {
                "connections" => wanted.connections_max = value.parse().map_err(drop)?,
                "connection" => wanted.connection = Some(value.parse().map_err(drop)?),
                "host" => wanted.host = Some(value.parse().map_err(drop)?),
                _ => return Err(()),
            }
        }
        match (1..=CONNECTIONS_MAX).contains(&wanted.connections_max) {
            true => Ok(wanted),
            false => Err(()),
        }
    }
}

/// A line of the host process in the pipe.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QlogLine {
    /// The request is refused.
    Refused {
        /// Reason.
        why: String,
    },
    /// Tracing has begun.
    Began {
        /// Time of the beginning, in microseconds since 1970.
        unix_time_us: u64,
    },
    /// The trace of a connection begins.
    Connection {
        /// Number of the connection.
        connection: u64,
        /// Address of our end.
        local: SocketAddr,
        /// Address of the client.
        peer: SocketAddr,
    },
    /// An event of a connection.
    Event {
        /// Number of the connection.
        connection: u64,
        /// Time since the beginning, in microseconds.
        time_us: u64,
        /// Name of the event, with its schema's name space.
        name: String,
        /// Data in the form of the schema.
        data: Value,
    },
    /// Events of a connection are missing because the client was behind.
    Dropped {
        /// Number of the connection.
        connection: u64,
        /// Number of events.
        events: u64,
        /// Time since the beginning, in microseconds.
        time_us: u64,
    },
    /// The connection has no further lines.
    End {
        /// Number of the connection.
        connection: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for connection in [None, Some(7)] {
            for host in [None, Some("10.0.0.1"), Some("fd77::1")] {
                let wanted = QlogRequest {
                    connection,
                    host: host.map(|host| host.parse().unwrap()),
                    connections_max: 100,
                };
                assert_eq!(wanted.to_string().parse(), Ok(wanted));
            }
        }
        for wrong in [
            "",
            "connections=0",
            "connections=10001",
            "connection=7",
            "connections=5 host=x",
            "connections=5 port=443",
            "connections=5  connection=1",
        ] {
            assert_eq!(wrong.parse::<QlogRequest>(), Err(()), "{wrong}");
        }
    }
}
