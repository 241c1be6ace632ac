//! Which connections of QUIC are to be traced, as the client tells the supervisor, and what the
//! host process then writes to the client's pipe: a line of JSON each.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Most connections of a trace.
pub const CONNECTIONS_MAX: u32 = 10_000;

/// Which connections are to be traced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QlogRequest {
    /// This one alone, by its number.
    pub connection: Option<u64>,
    /// Those of this client.
    pub host: Option<IpAddr>,
    /// No more than so many: at most [`CONNECTIONS_MAX`].
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

/// What the host process writes to the pipe.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QlogLine {
    /// Nothing is traced.
    Refused {
        /// Why.
        why: String,
    },
    /// It has begun.
    Began {
        /// When, in microseconds since 1970.
        unix_time_us: u64,
    },
    /// The trace of a connection begins.
    Connection {
        /// Its number.
        connection: u64,
        /// Our end.
        local: SocketAddr,
        /// The client.
        peer: SocketAddr,
    },
    /// A connection has done something.
    Event {
        /// Which.
        connection: u64,
        /// Since the beginning, in microseconds.
        time_us: u64,
        /// Of the event, with the name space of its schema.
        name: String,
        /// As the schema has it.
        data: Value,
    },
    /// Events of a connection are missing, because the client was behind.
    Dropped {
        /// Which.
        connection: u64,
        /// How many.
        events: u64,
        /// Since the beginning, in microseconds.
        time_us: u64,
    },
    /// Nothing follows of a connection.
    End {
        /// Which.
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
