//! A TLS connection of the host stack together with its sealer.

use tls::{Connection, Event, Transmit};

use crate::keys::Keys;
use crate::run_sealer::{LIMITS, RunSealer};
use crate::site::Site;

/// A server with its sealer, which sends plain bytes instead of commands.
pub struct TlsServer {
    /// Connection.
    pub connection: Connection,
    /// Sealer of its records.
    pub nic: RunSealer,
    /// Time of the server, in microseconds.
    pub now_us: u64,
    /// Events so far.
    pub events: Vec<Event>,
    /// Plaintext received.
    pub received: Vec<u8>,
}

impl TlsServer {
    /// Returns a server for `site`.
    pub fn new(site: &Site) -> Self {
        Self {
            connection: site.server(),
            nic: RunSealer::default(),
            now_us: 0,
            events: Vec::new(),
            received: Vec::new(),
        }
    }

    /// Receives bytes from the client.
    pub fn receive(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let taken = self.connection.received(self.now_us, rest);
            rest = &rest[taken..];
            let read = self.read();
            assert!(taken + read > 0, "neither side goes on");
        }
        self.read();
        self.events
            .extend(std::iter::from_fn(|| self.connection.poll_event()));
    }

    fn read(&mut self) -> usize {
        let mut buffer = [0; 1000];
        let mut total = 0;
        loop {
            match self.connection.read(&mut buffer) {
                0 => return total,
                count => self.received.extend(&buffer[..count]),
            }
            total += 1;
        }
    }

    /// Returns all bytes to send.
    pub fn transmit(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        while let Some(transmit) = self.connection.poll_transmit(self.now_us, &LIMITS) {
            match transmit {
                Transmit::Raw(raw) => {
                    self.nic.stream_end += raw.len() as u64;
                    bytes.extend(raw);
                }
                Transmit::Key(key) => {
                    self.nic.keys.insert(key.epoch, Keys::of(key));
                }
                Transmit::Run(run) => {
                    let (epoch, number) = (run.epoch, run.number);
                    let (sealed, tags) = self.nic.seal(run);
                    bytes.extend(sealed);
                    self.connection.on_sealed(epoch, number, &tags).unwrap();
                }
            }
        }
        self.events
            .extend(std::iter::from_fn(|| self.connection.poll_event()));
        bytes
    }
}

impl TlsServer {
    /// Returns the stream offset after the last byte sent.
    pub fn nic_stream_end(&self) -> u64 {
        self.nic.stream_end
    }
}
