//! Which connections are shown.

use std::cmp::Reverse;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use clap::{Args, ValueEnum, value_parser};
use tcp::State;

use netsetup::cidr::Cidr;
use processes::ipc::stat_report::{Connection, QuicConnection};

/// A connection is shown if it is what each of these says.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Selecting connections")]
pub(crate) struct Selection {
    /// States to show, such as established or fin-wait-2
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    state: Vec<StateName>,

    /// Peer addresses or networks to show
    #[arg(long, value_name = "IP|CIDR", value_delimiter = ',')]
    peer: Vec<Network>,

    /// Local port to show
    #[arg(long, value_name = "PORT", value_parser = value_parser!(u16).range(1..))]
    port: Option<u16>,

    /// Text that the path of the file being sent contains, below the root
    #[arg(long, value_name = "TEXT")]
    file: Option<String>,

    /// Sort by this key, largest first
    #[arg(long, value_name = "WHAT")]
    sort: Option<Key>,

    /// Maximum connections shown
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
}

/// What connections are ordered by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Key {
    /// Bytes queued and not acknowledged
    SendQ,
    /// Bytes acknowledged
    Acked,
    /// Retransmissions
    Retrans,
    /// Smoothed round-trip time
    Rtt,
    /// Congestion window
    Cwnd,
    /// Time since the connection was opened
    Age,
    /// Time since the client last acknowledged something new
    Lastack,
}

impl Key {
    fn of(self, connection: &Connection) -> u64 {
        let tcp = &connection.tcp;
        match self {
            Key::SendQ => tcp.queued_bytes,
            Key::Acked => tcp.bytes_acked,
            Key::Retrans => tcp.retransmissions,
            Key::Rtt => tcp.srtt_us.unwrap_or(0),
            Key::Cwnd => tcp.cwnd_bytes,
            Key::Age => tcp.age_us,
            Key::Lastack => tcp.since_progress_us,
        }
    }
}

impl Selection {
    /// Sorts the connections and applies the limit.
    pub(crate) fn order(&self, connections: &mut Vec<Connection>) {
        if let Some(key) = self.sort {
            connections.sort_by_key(|connection| Reverse(key.of(connection)));
        }
        connections.truncate(self.limit.unwrap_or(usize::MAX));
    }

    pub(crate) fn takes(&self, connection: &Connection) -> bool {
        let path = connection.file.as_ref().map_or("", |file| &file.path);
        self.takes_ends(&connection.state, connection.local, connection.peer)
            && self.file.as_ref().is_none_or(|text| path.contains(text))
    }

    /// Selects a QUIC connection, whose streams may send several files.
    pub(crate) fn takes_quic(&self, connection: &QuicConnection) -> bool {
        self.takes_ends(&connection.state, connection.local, connection.peer) && self.file.is_none()
    }

    fn takes_ends(&self, state: &str, local: SocketAddr, peer: SocketAddr) -> bool {
        let mut peers = self.peer.iter();
        (self.state.is_empty() || self.state.contains(&StateName::of(state)))
            && (self.peer.is_empty() || peers.any(|it| it.0.contains(peer.ip())))
            && self.port.is_none_or(|port| port == local.port())
    }
}

/// The name of a state in lower case, without dashes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct StateName(String);

impl StateName {
    fn of(name: &str) -> Self {
        let letters = name.chars().filter(|letter| !"-_".contains(*letter));
        Self(letters.map(|letter| letter.to_ascii_lowercase()).collect())
    }
}

impl FromStr for StateName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let StateName(name) = StateName::of(text);
        // Names that `ss` uses.
        let name = match &name[..] {
            "estab" => "established",
            "synrecv" => "synreceived",
            name => name,
        };
        let known = State::ALL.map(|state| state.name().to_ascii_lowercase());
        if known.iter().any(|known| StateName::of(known).0 == name) {
            Ok(Self(name.to_owned()))
        } else {
            Err(format!("there are {}", known.join(", ")))
        }
    }
}

/// An address, or a network prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Network(Cidr);

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (address, prefix_len) = match text.split_once('/') {
            Some((address, prefix_len)) => (address, Some(prefix_len)),
            None => (text, None),
        };
        let address: IpAddr = address
            .parse()
            .map_err(|_| "it is an IP address, or a network such as 192.0.2.0/24".to_owned())?;
        let max = if address.is_ipv4() { 32 } else { 128 };
        let prefix_len = match prefix_len.map(str::parse::<u8>) {
            None => max,
            Some(Ok(prefix_len)) if prefix_len <= max => prefix_len,
            Some(_) => return Err(format!("the length of the prefix is 0 to {max}")),
        };
        Ok(Self(Cidr::new(address, prefix_len)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::text::tests::connection;
    use super::*;

    fn network(text: &str) -> Network {
        text.parse().unwrap()
    }

    #[test]
    fn a_connection_is_what_all_say_and_of_each_one_of_several() {
        let connection = connection();
        let takes = |selection: Selection| selection.takes(&connection);
        assert!(takes(Selection::default()));
        let states = |names: &[&str]| Selection {
            state: names.iter().map(|name| name.parse().unwrap()).collect(),
            ..Selection::default()
        };
        assert!(takes(states(&["fin-wait-1", "ESTAB"])) && takes(states(&["established"])));
        assert!(!takes(states(&["FIN-WAIT-1"])));
        let peers = |texts: &[&str]| Selection {
            peer: texts.iter().copied().map(network).collect(),
            ..Selection::default()
        };
        assert!(takes(peers(&["fd77::/64", "10.77.0.0/16"])) && takes(peers(&["10.77.0.1"])));
        assert!(takes(peers(&["0.0.0.0/0"])) && !takes(peers(&["::/0"])));
        assert!(!takes(peers(&["10.77.0.2"])));
        let (port, file) = (Some(80), Some("movie".to_owned()));
        let both = Selection {
            port,
            file,
            ..Selection::default()
        };
        assert!(takes(both.clone()));
        let port = Some(443);
        assert!(!takes(Selection { port, ..both }));
    }

    #[test]
    fn who_has_most_comes_first_and_what_is_too_much_is_left_out() {
        let mut connections = Vec::new();
        for retransmissions in [3, 9, 0, 5] {
            let mut connection = connection();
            connection.tcp.retransmissions = retransmissions;
            connections.push(connection);
        }
        let selection = Selection {
            sort: Some(Key::Retrans),
            limit: Some(3),
            ..Selection::default()
        };
        selection.order(&mut connections);
        let left: Vec<u64> = connections
            .iter()
            .map(|connection| connection.tcp.retransmissions)
            .collect();
        assert_eq!(left, [9, 5, 3]);
    }

    #[test]
    fn what_is_no_state_and_no_network_lists_what_there_is() {
        let failure = "listen".parse::<StateName>().unwrap_err();
        assert!(failure.contains("established") && failure.contains("time-wait"));
        for text in ["10.0.0", "10.0.0.1/33", "::/129", "10.0.0.1/", "/8"] {
            assert!(text.parse::<Network>().is_err(), "{text}");
        }
    }
}
