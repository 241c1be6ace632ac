//! The server, as the world of the host's tests knows applications.

use std::time::Duration;

use host::app::{
    AppEvent, Application, FileHandle, FileMeta, Io, Owner, QuicConnection, QuicEvent, StreamId,
    StreamMemory,
};
use server::{Config, Server};

/// See the [module documentation](self).
pub(crate) struct App {
    pub(crate) server: Server,
    pub(crate) quic: Vec<(QuicConnection, QuicEvent)>,
}

impl Default for App {
    /// Clients may take an hour for a head.
    fn default() -> Self {
        let hour = Duration::from_secs(3600);
        let config = Config {
            head_timeout: hour,
            stall_timeout: hour,
            bytes_per_second_min: None,
            ..Config::default()
        };
        Self {
            server: Server::new(config),
            quic: Vec::new(),
        }
    }
}

/// Of responses that only the application of the host's tests has.
pub(crate) fn real_byte(_: usize) -> u8 {
    panic!("the server has files only")
}

impl Application for App {
    fn on_event(&mut self, io: &mut dyn Io, stream: StreamId, event: AppEvent) {
        self.server.on_event(io, stream, event);
    }

    fn on_looked_up(&mut self, io: &mut dyn Io, file: FileHandle, found: Result<FileMeta, u16>) {
        self.server.on_looked_up(io, file, found);
    }

    fn on_quic(&mut self, io: &mut dyn Io, connection: QuicConnection, event: QuicEvent) {
        self.quic.push((connection, event.clone()));
        self.server.on_quic(io, connection, event);
    }

    fn memory(&self, owner: Owner, stream: StreamId) -> StreamMemory {
        self.server.memory(owner, stream)
    }

    fn quic_memory_bytes(&self, connection: QuicConnection) -> usize {
        self.server.quic_memory_bytes(connection)
    }

    fn on_turn(&mut self, io: &mut dyn Io, now_us: u64) -> bool {
        self.server.on_turn(io, now_us)
    }

    fn next_timeout_us(&self) -> Option<u64> {
        self.server.next_timeout_us()
    }
}
