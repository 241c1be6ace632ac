//! The TLS layer of a connection, between its TCP and its application.
//!
//! TCP sends two kinds of bytes for it: rustls's handshake messages, which are real bytes, and
//! records, which the NIC stack seals. To TCP, records are virtual bytes of one object, [`SEALED`],
//! whose offsets are those of the stream. Records are *defined* when they are queued, and no
//! earlier than needed: until then a KeyUpdate or an alert can come before them.

use std::sync::Arc;

use contract::limits::{FLOW_RECORDS_MAX, INLINE_BYTES_MAX, KEYS_MAX, SEGMENTS_MAX};
use tls::{Known, RunLimits, Transmit};

use crate::tables::files::FileTable;

/// TCP's object id for records.
pub(crate) const SEALED: u32 = u32::MAX;

const _: () = assert!(
    FileTable::FILES_MAX <= SEALED as usize,
    "no file has this id"
);

/// Records are defined this far beyond the bytes that can be sent now: so a SEND never ends in the
/// middle of a packet for want of records.
const AHEAD_BYTES: u64 = 256 << 10;

/// Upper limit on the burst for which records are defined, in bytes.
const BURST_BYTES_MAX: u64 = 8 << 20;

/// Limits of the NIC stack; some are lower because the NIC stack learns of acknowledgments later.
const RUN_LIMITS: RunLimits = RunLimits {
    // Half a megabyte, so that not much more is defined than needed.
    records_max: 32,
    pieces_max: SEGMENTS_MAX,
    real_bytes_max: INLINE_BYTES_MAX,
    outstanding_max: FLOW_RECORDS_MAX as u64 / 2,
    keys_max: KEYS_MAX - 1,
};

/// Time for a failed connection to send its alert, in microseconds.
const FAREWELL_US: u64 = 3_000_000;

/// Received bytes that go through TLS at a time.
const CHUNK_BYTES: usize = 4 << 10;

/// The TLS layer of a connection.
#[derive(Debug)]
pub(crate) struct TlsLayer {
    pub(crate) connection: tls::Connection,
    /// Keys and records that its NIC worker knows.
    pub(crate) known: Known,
    /// End of the stream bytes that SENDs to this worker have covered.
    pub(crate) sent_end: u64,
    /// Received bytes that TLS has not taken, because plaintext waits for the application.
    untaken: Vec<u8>,
    /// Handshake bytes that TCP has not taken.
    raw: Vec<u8>,
    /// The peer's TCP has sent FIN; `is_fin_told` once TLS knows.
    has_fin: bool,
    is_fin_told: bool,
    /// The application's last write came back short.
    write_blocked: bool,
    pending: PendingEvents,
    pub(crate) has_failed: bool,
    /// Deadline after which a failed connection is reset, in microseconds.
    farewell_us: Option<u64>,
    /// Keys that replaced another since the last [`TlsLayer::take_key_updates`].
    key_updates: u64,
}

/// Pending events for the application.
#[derive(Debug, Default)]
struct PendingEvents {
    readable: bool,
    peer_finished: bool,
}

/// An event for the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TlsEvent {
    Readable,
    PeerFinished,
    Writable,
}

impl TlsLayer {
    pub(crate) fn new(config: Arc<tls::Config>, now_us: u64) -> Result<TlsLayer, tls::Error> {
        Ok(TlsLayer {
            connection: tls::Connection::new(config, now_us)?,
            known: Known::default(),
            sent_end: 0,
            untaken: Vec::new(),
            raw: Vec::new(),
            has_fin: false,
            is_fin_told: false,
            write_blocked: false,
            pending: PendingEvents::default(),
            has_failed: false,
            farewell_us: None,
            key_updates: 0,
        })
    }

    /// Takes in the peer's bytes, as far as the application keeps up.
    pub(crate) fn take_in(&mut self, tcp: &mut tcp::Connection, now_us: u64) {
        let before = self.connection.readable_bytes();
        let mut chunk = [0; CHUNK_BYTES];
        loop {
            let taken = self.connection.received(now_us, &self.untaken);
            self.untaken.drain(..taken);
            if !self.untaken.is_empty() {
                break;
            }
            let count = tcp.read(&mut chunk);
            if count == 0 {
                break;
            }
            let taken = self.connection.received(now_us, &chunk[..count]);
            self.untaken.extend_from_slice(&chunk[taken..count]);
        }
        self.pending.readable |= self.connection.readable_bytes() > before;
        let is_all = self.untaken.is_empty() && tcp.unread_bytes() == 0;
        if self.has_fin && is_all && !std::mem::replace(&mut self.is_fin_told, true) {
            self.connection.on_fin();
        }
    }

    /// The peer's TCP has sent FIN.
    pub(crate) fn on_fin(&mut self, tcp: &mut tcp::Connection, now_us: u64) {
        self.has_fin = true;
        self.take_in(tcp, now_us);
    }

    /// [`crate::app::Io::read`]
    pub(crate) fn read(
        &mut self,
        tcp: &mut tcp::Connection,
        now_us: u64,
        buffer: &mut [u8],
    ) -> usize {
        if self.connection.readable_bytes() == 0 {
            // Received bytes that did not fit before fit now.
            self.take_in(tcp, now_us);
        }
        let count = self.connection.read(buffer);
        self.pending.readable &= self.connection.readable_bytes() > 0;
        count
    }

    /// [`crate::app::Io::write`]
    pub(crate) fn write(&mut self, bytes: &[u8]) -> usize {
        let taken = self.connection.write(bytes);
        self.write_blocked |= taken < bytes.len();
        taken
    }

    /// [`crate::app::Io::write_file`]
    pub(crate) fn write_range(&mut self, object: u32, offset: u64, len: u64) -> u64 {
        let is_taken = self.connection.write_range(object, offset, len);
        self.write_blocked |= !is_taken;
        if is_taken { len } else { 0 }
    }

    /// Defines the next records, and closes TCP's side of the stream after the last one.
    pub(crate) fn define(&mut self, tcp: &mut tcp::Connection, now_us: u64) {
        loop {
            if !self.raw.is_empty() {
                let taken = tcp.write(&self.raw);
                self.raw.drain(..taken);
            }
            let flight = tcp.flight_bytes();
            let waiting = tcp.queued_bytes().saturating_sub(flight);
            let burst = tcp.congestion_window().saturating_sub(flight);
            let is_enough = waiting >= burst.min(BURST_BYTES_MAX) + AHEAD_BYTES;
            if is_enough || !self.raw.is_empty() || !tcp.takes_virtual() {
                return;
            }
            match self.connection.poll_transmit(now_us, &RUN_LIMITS) {
                Some(Transmit::Raw(bytes)) => self.raw = bytes,
                Some(Transmit::Key(key)) => self.key_updates += u64::from(key.epoch > 0),
                Some(Transmit::Run(run)) => {
                    let (offset, len) = (run.stream_offset, run.stream_bytes());
                    let taken = tcp.write_virtual(SEALED, offset, len);
                    if taken != len {
                        // All later records would be at other places in the stream.
                        tracing::error!(
                            offset,
                            len,
                            taken,
                            "TCP does not take records: the connection is reset"
                        );
                        tcp.abort();
                        return;
                    }
                }
                None => break,
            }
        }
        if self.connection.is_finished() {
            tcp.shutdown();
        }
    }

    /// Returns the memory of received bytes and of bytes to send, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.untaken.capacity() + self.raw.capacity() + self.connection.memory_bytes()
    }

    /// True if no bytes wait to be handed to TCP.
    pub(crate) fn is_drained(&self) -> bool {
        self.connection.queued_bytes() == 0 && self.raw.is_empty()
    }

    /// True if there is an event for the application.
    pub(crate) fn has_news(&self) -> bool {
        let is_writable = self.write_blocked && self.connection.has_room();
        self.connection.has_event()
            || self.pending.readable
            || self.pending.peer_finished
            || is_writable
    }

    /// Takes the next event for the application.
    pub(crate) fn take_event(&mut self) -> Option<TlsEvent> {
        if std::mem::take(&mut self.pending.readable) {
            Some(TlsEvent::Readable)
        } else if std::mem::take(&mut self.pending.peer_finished) {
            Some(TlsEvent::PeerFinished)
        } else if self.write_blocked && self.connection.has_room() {
            self.write_blocked = false;
            Some(TlsEvent::Writable)
        } else {
            None
        }
    }

    /// The peer has sent close_notify, or its TCP has sent FIN: a request needs no close_notify,
    /// since HTTP delimits it.
    pub(crate) fn on_peer_finished(&mut self) {
        self.pending.peer_finished = true;
    }

    /// The handshake or a record failed: the alert must leave by the deadline. Without an alert,
    /// the peer gets RST, unless it has closed.
    pub(crate) fn on_failed(&mut self, tcp: &mut tcp::Connection, now_us: u64, error: &tls::Error) {
        self.has_failed = true;
        self.write_blocked = false;
        self.farewell_us = Some(now_us.saturating_add(FAREWELL_US));
        if self.connection.is_finished() && *error != tls::Error::ClosedInHandshake {
            tcp.abort();
        }
    }

    /// Returns the number of keys that replaced another since the last call.
    pub(crate) fn take_key_updates(&mut self) -> u64 {
        std::mem::take(&mut self.key_updates)
    }

    /// Time at which [`TlsLayer::on_timeout`] must be called, in microseconds.
    pub(crate) fn deadline_us(&self) -> Option<u64> {
        self.connection.deadline_us().or(self.farewell_us)
    }

    /// Handles the deadlines that have passed.
    pub(crate) fn on_timeout(&mut self, tcp: &mut tcp::Connection, now_us: u64) {
        if self.deadline_us().is_none_or(|at_us| at_us > now_us) {
            return;
        }
        self.connection.on_timeout(now_us);
        if self.farewell_us.is_some_and(|at_us| at_us <= now_us) {
            tcp.abort();
        }
    }

    /// The NIC worker has nothing of the stream left to send: another worker, which knows no keys
    /// or records, gets everything again.
    pub(crate) fn on_worker_left(&mut self) {
        self.known = Known::default();
        self.sent_end = 0;
    }

    /// True if bytes of a record whose tag is unknown may have left.
    pub(crate) fn is_unproven(&self) -> bool {
        self.connection.untagged_before(self.sent_end)
    }
}
