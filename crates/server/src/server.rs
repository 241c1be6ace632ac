//! The table of connections, and what they share.

use std::collections::HashMap;

use host::app::{AppEvent, Application, Io, StreamId};

use crate::config::Config;
use crate::connection::{Connection, Shared};
use crate::counters::Counters;
use crate::date::DateCache;
use crate::input::Pool;
use crate::rate::{Rates, Source};
use crate::site::Names;

/// An HTTP/1.1 server of files: one per shard.
pub struct Server {
    connections: HashMap<StreamId, Connection>,
    shared: Shared,
}

impl Server {
    /// A server with these limits.
    ///
    /// # Panics
    /// If a limit is zero that leaves no room for any request: `head_bytes_max` or
    /// `responses_in_flight_max`; or if there is no site.
    pub fn new(mut config: Config) -> Self {
        assert!(config.head_bytes_max > 0, "a request head needs room");
        assert!(
            config.responses_in_flight_max > 0,
            "a response must be allowed to be in flight"
        );
        assert!(!config.sites.is_empty(), "a server serves something");
        for site in &mut config.sites {
            site.offer_each_coding_once();
        }
        Server {
            connections: HashMap::new(),
            shared: Shared {
                counters: Counters::default(),
                date: DateCache::default(),
                pool: Pool::new(config.head_bytes_max),
                out: Vec::new(),
                path: Vec::new(),
                location: Vec::new(),
                between: Vec::new(),
                file_path: Vec::new(),
                names: Names::new(&config.sites),
                rates: Rates::new(
                    config.connection_bytes_per_second_max,
                    config.source_bytes_per_second_max,
                ),
                config,
            },
        }
    }

    /// What has happened so far.
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }
}

impl Application for Server {
    fn on_event(&mut self, io: &mut dyn Io, event: AppEvent) {
        let stream = match event {
            AppEvent::Accepted { stream, peer, .. } => {
                self.shared.counters.connections_accepted += 1;
                let connection = Connection::new(stream, Source::of(peer.ip()));
                self.connections.insert(stream, connection);
                stream
            }
            AppEvent::Closed { stream, .. } => {
                if let Some(connection) = self.connections.remove(&stream) {
                    self.shared.counters.connections_closed += 1;
                    connection.closed(io, &mut self.shared);
                }
                return;
            }
            AppEvent::Readable { stream }
            | AppEvent::PeerFinished { stream }
            | AppEvent::Writable { stream }
            | AppEvent::Drained { stream }
            | AppEvent::Opened { stream, .. }
            | AppEvent::OpenFailed { stream, .. }
            | AppEvent::Timer { stream } => stream,
        };
        if let Some(connection) = self.connections.get_mut(&stream) {
            connection.on_event(io, &mut self.shared, &event);
        }
    }
}
