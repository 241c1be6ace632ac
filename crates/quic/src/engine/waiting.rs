//! The queue of handshakes: each costs a signature.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;

use quinn_proto::{ConnectionEvent, ConnectionId, Incoming};

use crate::engine::session::VERSION_1;
use crate::types::Handle;

/// Clients that wait for their first answer. At this bound, Initial packets of others are dropped.
pub(super) const CLIENTS_MAX: usize = 1024;

/// Datagrams kept beyond the first of each waiting client, in all: the rest of a long ClientHello,
/// and early data.
const DATAGRAMS_MAX: usize = 2048;

/// The same, for one client.
const CLIENT_DATAGRAMS_MAX: usize = 8;

/// Shortest datagram with a client's first Initial packet, in bytes (RFC 9000 §14.1).
const INITIAL_BYTES_MIN: usize = 1200;

/// Shortest destination connection ID of a client's first packet, in bytes (RFC 9000 §7.2). Those
/// of the endpoint are as long.
const ID_BYTES_MIN: u8 = 8;

/// Longest connection ID of version 1, in bytes (RFC 9000 §17.2).
const ID_BYTES_MAX: usize = 20;

/// An entry of the queue.
pub(super) enum Waiting {
    /// A new client. `bytes`: received from it.
    Client { incoming: Incoming, bytes: usize },
    /// A datagram of a connection whose ClientHello is not complete.
    Datagram(Datagram),
}

/// A datagram of a connection.
pub(super) struct Datagram {
    pub(super) connection: Handle,
    pub(super) remote: SocketAddr,
    pub(super) bytes: usize,
    pub(super) event: ConnectionEvent,
}

enum Entry {
    Client(ConnectionId, Box<Incoming>),
    Datagram(Box<Datagram>),
}

/// A waiting client.
struct Client {
    remote: SocketAddr,
    /// Bytes received from `remote`.
    bytes: usize,
    /// Datagrams kept beyond the first.
    datagrams: usize,
}

/// The queue, in order of arrival.
#[derive(Default)]
pub(super) struct Queue {
    entries: VecDeque<Entry>,
    /// By the destination connection IDs that they chose.
    clients: HashMap<ConnectionId, Client>,
    /// Datagrams kept beyond the first of each client.
    datagrams: usize,
    dropped: u64,
}

impl Queue {
    /// Queues a client with its first datagram.
    pub(super) fn push_client(&mut self, incoming: Incoming, payload: &[u8]) {
        let id = destination_id(payload).unwrap_or(*incoming.orig_dst_cid());
        let client = Client {
            remote: incoming.remote_address(),
            bytes: payload.len(),
            datagrams: 0,
        };
        self.clients.insert(id, client);
        self.entries
            .push_back(Entry::Client(id, Box::new(incoming)));
    }

    /// True if there is room for a datagram of a connection with this number of waiting ones.
    pub(super) fn admits_datagram(&mut self, waiting: usize) -> bool {
        let has_room = self.datagrams < DATAGRAMS_MAX && waiting < CLIENT_DATAGRAMS_MAX;
        self.dropped += u64::from(!has_room);
        has_room
    }

    /// Queues a datagram that may complete a ClientHello.
    pub(super) fn push_datagram(&mut self, datagram: Datagram) {
        self.datagrams += 1;
        self.entries.push_back(Entry::Datagram(Box::new(datagram)));
    }

    /// Admits a datagram: quinn-proto buffers those of waiting clients. False if there is no room
    /// for that.
    pub(super) fn admits(&mut self, remote: SocketAddr, payload: &[u8]) -> bool {
        let client = destination_id(payload).and_then(|id| self.clients.get_mut(&id));
        let Some(client) = client else {
            return true;
        };
        if self.datagrams >= DATAGRAMS_MAX || client.datagrams >= CLIENT_DATAGRAMS_MAX {
            self.dropped += 1;
            return false;
        }
        self.datagrams += 1;
        client.datagrams += 1;
        if client.remote == remote {
            client.bytes += payload.len();
        }
        true
    }

    /// quinn-proto has buffered a datagram for its client, or dropped it.
    pub(super) fn on_swallowed(&mut self, payload: &[u8]) {
        let is_full = self.clients.len() >= CLIENTS_MAX;
        if is_full && may_begin(payload) {
            let id = destination_id(payload);
            let is_kept = id.is_some_and(|id| self.clients.contains_key(&id));
            self.dropped += u64::from(!is_kept);
        }
    }

    /// The new client that comes next, if one does.
    pub(super) fn next_client(&self) -> Option<&Incoming> {
        match self.entries.front()? {
            Entry::Client(_, incoming) => Some(incoming),
            Entry::Datagram(_) => None,
        }
    }

    pub(super) fn pop(&mut self) -> Option<Waiting> {
        Some(match self.entries.pop_front()? {
            Entry::Client(id, incoming) => {
                let client = self.clients.remove(&id);
                self.datagrams -= client.as_ref().map_or(0, |it| it.datagrams);
                Waiting::Client {
                    incoming: *incoming,
                    bytes: client.map_or(0, |it| it.bytes),
                }
            }
            Entry::Datagram(datagram) => {
                self.datagrams -= 1;
                Waiting::Datagram(*datagram)
            }
        })
    }

    /// Datagrams dropped since the last call.
    pub(super) fn take_dropped(&mut self) -> u64 {
        std::mem::take(&mut self.dropped)
    }
}

/// The destination connection ID of a packet with a long header (RFC 9000 §17.2).
fn destination_id(payload: &[u8]) -> Option<ConnectionId> {
    let [first, _, _, _, _, len, rest @ ..] = payload else {
        return None;
    };
    let len = usize::from(*len);
    let is_long = first & 0x80 != 0 && len <= ID_BYTES_MAX;
    let id = rest.get(..len).filter(|_| is_long)?;
    Some(ConnectionId::new(id))
}

/// True for an Initial packet with a destination connection ID that is too short for a client's
/// first packet (RFC 9000 §7.2), and for a later one. quinn-proto would derive keys to refuse it.
pub(super) fn has_short_id(payload: &[u8]) -> bool {
    is_initial(payload) && payload.get(5).is_none_or(|len| *len < ID_BYTES_MIN)
}

/// True if a datagram begins with an Initial packet of version 1 (RFC 9000 §17.2.2), whatever the
/// fixed bit is (RFC 9287).
fn is_initial(payload: &[u8]) -> bool {
    payload.len() >= 5 && payload[0] & 0xb0 == 0x80 && payload[1..5] == VERSION_1.to_be_bytes()
}

/// True if a datagram may be a client's first: an Initial packet, and long enough.
fn may_begin(payload: &[u8]) -> bool {
    payload.len() >= INITIAL_BYTES_MIN && is_initial(payload)
}
