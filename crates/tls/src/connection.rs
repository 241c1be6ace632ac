//! A TLS connection, as the server.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use rustls::AlertDescription;

use crate::config::Config;
use crate::content_type::ContentType;
use crate::error::Error;
use crate::framing::{Cut, Framing};
use crate::handshake::{Agreed, Done, Handshake, NextKeys};
use crate::hello;
use crate::key::Key;
use crate::ledger::{Definition, Known, Ledger, SealedError};
use crate::opener::Opener;
use crate::plain_http;
use crate::run::{Piece, Run, RunLimits};
use contract::limits::RECORD_PLAINTEXT_BYTES_MAX;
use contract::tls::{RECORD_HEADER_BYTES, Suite, Tag, Version};

/// Empty records in a row, and warnings of TLS 1.2, that a client may send: as many as OpenSSL
/// allows.
const USELESS_RECORDS_MAX: u32 = 32;

/// KeyUpdates that a client may send within [`KEY_UPDATE_WINDOW_US`].
const KEY_UPDATES_MAX: u32 = 32;
const KEY_UPDATE_WINDOW_US: u64 = 60_000_000;

const CLIENT_HELLO: u8 = 1;
const KEY_UPDATE: u8 = 24;
const WARNING: u8 = 1;
const FATAL: u8 = 2;

/// A TLS connection, as the server.
///
/// It does no I/O and has no clock. Time is given as microseconds of any clock that does not go
/// back. The stream below is TCP's; its byte 0 is the first byte ever sent.
///
/// Inputs:
/// - [`received`](Self::received) with bytes of the stream as they come, [`on_fin`](Self::on_fin)
///   at its end,
/// - [`write`](Self::write), [`write_range`](Self::write_range) and [`close`](Self::close) from the
///   application, also before the handshake's end,
/// - [`on_sealed`](Self::on_sealed) with the tags that the NIC stack reports,
///   [`acknowledge`](Self::acknowledge) with the acknowledgments of the peer's TCP,
/// - [`on_timeout`](Self::on_timeout) at [`deadline_us`](Self::deadline_us).
///
/// After each input, call in this order:
/// 1. [`poll_event`](Self::poll_event) until `None`. [`Event::Failed`] ends the connection; only an
///    alert from `poll_transmit` may follow.
/// 2. [`read`](Self::read) until 0. While plaintext waits, `received` takes no more: offer the rest
///    again.
/// 3. [`poll_transmit`](Self::poll_transmit): the next part of the stream. Call it only while
///    little of its earlier output waits to be sent, some hundred kilobytes: that output cannot be
///    changed any more, and an alert or KeyUpdate comes behind it.
/// 4. [`missing`](Self::missing) until `None`, and pass each definition to the NIC stack: it needs
///    a record's definition before any byte of the record is sent. A restarted NIC stack knows
///    none.
/// 5. When `poll_transmit` returns `None` and [`is_finished`](Self::is_finished), close the stream
///    below.
pub struct Connection {
    config: Arc<Config>,
    rx: Rx,
    /// Set at the handshake's end.
    established: Option<Box<Established>>,
    /// The beginning of an incomplete record.
    record: Vec<u8>,
    plaintext: VecDeque<u8>,
    /// Bytes to be sent as they are.
    raw: Vec<u8>,
    /// Stream offset behind the polled output.
    stream_offset: u64,
    framing: Framing,
    ledger: Ledger,
    events: VecDeque<Event>,
    released: Vec<u32>,
    taken_bytes: u64,
    is_closing: bool,
    is_finished: bool,
}

/// State of the client's stream.
enum Rx {
    Handshaking {
        handshake: Box<Handshake>,
        bytes: usize,
        deadline_us: u64,
        /// The beginning of the ClientHello, which may span several records; `None` once it was
        /// examined.
        hello: Option<Vec<u8>>,
        /// ChangeCipherSpec has arrived.
        has_changed_cipher: bool,
    },
    Open,
    /// After close_notify or the end of the stream.
    Finished,
    Failed,
}

struct Established {
    agreed: Agreed,
    next_keys: Box<dyn NextKeys>,
    opener: Opener,
    /// An incomplete handshake message.
    message: Vec<u8>,
    /// Bytes still to come of a refused message.
    message_refused_bytes: usize,
    useless_records: u32,
    has_renegotiated: bool,
    key_updates: u32,
    key_updates_since_us: u64,
    /// The current sealing key, until it is polled.
    key: Option<Key>,
    epoch: u16,
    suite: Suite,
    /// Number of the next record.
    number: u64,
    key_since_us: u64,
    is_key_update_due: bool,
    /// Level and description.
    warning: Option<[u8; 2]>,
    fatal: Option<[u8; 2]>,
}

/// An event of the connection.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The handshake is complete.
    Connected(Agreed),
    /// The client sends no more. Data received before can still be read, and the server can still
    /// send.
    PeerFinished {
        /// True if TCP has ended without close_notify: an attacker may have cut the stream (RFC
        /// 8446 §6.1).
        is_truncated: bool,
    },
    /// The connection has failed.
    Failed(Error),
}

/// The next part of the stream.
#[derive(Debug)]
pub enum Transmit<'a> {
    /// Bytes to be sent as they are.
    Raw(Vec<u8>),
    /// No bytes: the following runs are sealed with this key.
    Key(&'a Key),
    /// Records.
    Run(&'a Run),
}

impl Connection {
    /// Creates the connection that a client has just opened.
    ///
    /// # Errors
    /// If the system provides no random numbers.
    pub fn new(config: Arc<Config>, now_us: u64) -> Result<Self, Error> {
        let handshake = Handshake::new(&config).map_err(Error::Handshake)?;
        Ok(Self {
            rx: Rx::Handshaking {
                handshake: Box::new(handshake),
                bytes: 0,
                deadline_us: now_us.saturating_add(config.limits.handshake_us_max),
                hello: Some(Vec::new()),
                has_changed_cipher: false,
            },
            config,
            established: None,
            record: Vec::new(),
            plaintext: VecDeque::new(),
            raw: Vec::new(),
            stream_offset: 0,
            framing: Framing::default(),
            ledger: Ledger::default(),
            events: VecDeque::new(),
            released: Vec::new(),
            taken_bytes: 0,
            is_closing: false,
            is_finished: false,
        })
    }

    /// Takes bytes from the client; returns their number: all, unless plaintext waits to be read.
    pub fn received(&mut self, now_us: u64, bytes: &[u8]) -> usize {
        let mut rest = bytes;
        while !rest.is_empty() {
            // Bytes behind the end are ignored (RFC 8446 §6.1).
            if matches!(self.rx, Rx::Finished | Rx::Failed) {
                return bytes.len();
            }
            if self.plaintext.len() >= self.config.limits.received_bytes_max {
                break;
            }
            if let Err(error) = self.take(now_us, &mut rest) {
                self.fail(error);
            }
        }
        bytes.len() - rest.len()
    }

    /// The client's stream has ended, and [`Connection::received`] has taken all its bytes: others
    /// are lost, and the stream is reported as truncated.
    pub fn on_fin(&mut self) {
        match self.rx {
            Rx::Handshaking { .. } => self.fail(Error::ClosedInHandshake),
            Rx::Open => self.peer_finished(true),
            Rx::Finished | Rx::Failed => {}
        }
    }

    /// Takes received plaintext; returns the number of bytes, 0 if there are none.
    pub fn read(&mut self, buffer: &mut [u8]) -> usize {
        let count = buffer.len().min(self.plaintext.len());
        for (slot, byte) in buffer.iter_mut().zip(self.plaintext.drain(..count)) {
            *slot = byte;
        }
        if self.plaintext.is_empty() {
            self.plaintext = VecDeque::new();
        }
        count
    }

    /// Returns the plaintext that waits for [`Connection::read`], in bytes.
    pub fn readable_bytes(&self) -> usize {
        self.plaintext.len()
    }

    /// Returns the memory for received bytes, for waiting or unacknowledged plaintext, and for a
    /// handshake in progress, in bytes.
    pub fn memory_bytes(&self) -> usize {
        let message = self.established.as_deref();
        let message = message.map_or(0, |it| it.message.capacity());
        let handshake = match &self.rx {
            Rx::Handshaking {
                handshake, hello, ..
            } => handshake.memory_bytes() + hello.as_ref().map_or(0, Vec::capacity),
            Rx::Open | Rx::Finished | Rx::Failed => 0,
        };
        let received = self.record.capacity() + self.plaintext.capacity() + message + handshake;
        received + self.raw.capacity() + self.framing.memory_bytes() + self.ledger.memory_bytes()
    }

    /// Queues plaintext; returns the number of bytes taken: fewer if much waits, none after
    /// [`Connection::close`] or a failure.
    pub fn write(&mut self, bytes: &[u8]) -> usize {
        if !self.is_writable() || self.framing.extents() >= self.config.limits.extents_max {
            return 0;
        }
        let room = self.config.limits.real_bytes_max;
        let room = room.saturating_sub(self.framing.real_bytes());
        let taken = &bytes[..bytes.len().min(room)];
        self.framing.push_real(taken);
        self.taken_bytes += taken.len() as u64;
        taken.len()
    }

    /// Queues a range of an object. Returns false, and queues nothing, if much waits, after
    /// [`Connection::close`] or a failure, or if the range's end exceeds 64 bits. Otherwise
    /// [`Connection::poll_released`] returns the object once.
    pub fn write_range(&mut self, object: u32, offset: u64, len: u64) -> bool {
        let is_taken = self.is_writable()
            && len > 0
            && self.framing.extents() < self.config.limits.extents_max
            && self.framing.push_virtual(object, offset, len);
        self.taken_bytes += if is_taken { len } else { 0 };
        is_taken
    }

    /// True if at least half of each queue limit is free.
    pub fn has_room(&self) -> bool {
        let limits = &self.config.limits;
        self.is_writable()
            && self.framing.real_bytes() <= limits.real_bytes_max / 2
            && self.framing.extents() <= limits.extents_max / 2
    }

    /// Queues close_notify after all queued plaintext. Before the handshake's end, no peer could
    /// receive it.
    pub fn close(&mut self) {
        self.is_closing = true;
        if self.established.is_none() {
            self.is_finished = true;
        }
    }

    /// Returns the plaintext that waits to be cut into records, in bytes.
    pub fn queued_bytes(&self) -> u64 {
        self.framing.bytes()
    }

    /// Returns the plaintext that the application has queued so far, in bytes.
    pub fn taken_bytes(&self) -> u64 {
        self.taken_bytes
    }

    /// Returns the plaintext that the peer's TCP has acknowledged, by [`Connection::acknowledge`],
    /// in bytes. A record acknowledged in part counts in part.
    pub fn acknowledged_bytes(&self) -> u64 {
        self.ledger.acknowledged_plaintext()
    }

    /// Returns the plaintext queued and not acknowledged, in bytes.
    pub fn unacknowledged_bytes(&self) -> u64 {
        self.taken_bytes.saturating_sub(self.acknowledged_bytes())
    }

    /// Returns the first queued and unacknowledged byte of an object: the object, and the offset
    /// there.
    pub fn first_virtual(&self) -> Option<(u32, u64)> {
        let waits = || self.framing.first_virtual();
        self.ledger.first_virtual().or_else(waits)
    }

    /// Returns the negotiated parameters, once the handshake is complete.
    pub fn agreed(&self) -> Option<&Agreed> {
        self.established.as_deref().map(|it| &it.agreed)
    }

    /// True if [`Connection::poll_event`] has an event.
    pub fn has_event(&self) -> bool {
        !self.events.is_empty()
    }

    /// Takes the next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Takes an object of which a queued range is no longer needed.
    pub fn poll_released(&mut self) -> Option<u32> {
        self.released.pop()
    }

    /// Time at which [`Connection::on_timeout`] must be called.
    pub fn deadline_us(&self) -> Option<u64> {
        match self.rx {
            Rx::Handshaking { deadline_us, .. } => Some(deadline_us),
            _ => None,
        }
    }

    /// Handles the deadline, if it has passed.
    pub fn on_timeout(&mut self, now_us: u64) {
        if self.deadline_us().is_some_and(|at| at <= now_us) {
            self.fail(Error::HandshakeTimedOut);
        }
    }

    /// Answers a request without TLS, in place of the alert. For [`Error::PlainHttp`], before the
    /// next [`Connection::poll_transmit`].
    pub fn answer_plain_http(&mut self, response: Vec<u8>) {
        self.raw = response;
    }

    /// True when all output of this side was polled.
    pub fn is_finished(&self) -> bool {
        self.is_finished && self.raw.is_empty()
    }

    /// Returns the next output, or `None` if there is none. Records stay within `limits`.
    pub fn poll_transmit(&mut self, now_us: u64, limits: &RunLimits) -> Option<Transmit<'_>> {
        if !self.raw.is_empty() {
            self.stream_offset += self.raw.len() as u64;
            return Some(Transmit::Raw(std::mem::take(&mut self.raw)));
        }
        let established = self.established.as_mut()?;
        if let Some(key) = established.key.take() {
            return Some(Transmit::Key(self.ledger.install(key, self.stream_offset)));
        }
        if self.is_finished {
            return None;
        }
        if let Some(alert) = established.fatal.take() {
            self.is_finished = true;
            return self.define(ContentType::Alert, message(&alert));
        }
        if let Some(alert) = established.warning.take() {
            return self.define(ContentType::Alert, message(&alert));
        }
        let outstanding_left = limits.outstanding_max.saturating_sub(self.ledger.records());
        if outstanding_left == 0 {
            return None;
        }
        let records_left = self.config.limits.records_per_key_max;
        let records_left = records_left.saturating_sub(established.number);
        let is_old =
            now_us.saturating_sub(established.key_since_us) > self.config.limits.key_us_max;
        let is_worn = self.framing.bytes() > 0 && (records_left == 0 || is_old);
        match established.suite.version {
            // No data may come before the answer (RFC 8446 §4.6.3): all wait until a key is
            // acknowledged.
            Version::Tls13 if established.is_key_update_due || is_worn => {
                return if self.ledger.keys() < limits.keys_max {
                    self.update_key(now_us)
                } else {
                    None
                };
            }
            Version::Tls12 if is_worn && records_left == 0 => {
                self.fail(Error::KeyUsedUp);
                return self.poll_transmit(now_us, limits);
            }
            _ => {}
        }
        match self
            .framing
            .cut(now_us, limits, records_left.min(outstanding_left))
        {
            Some(cut) => self.define(ContentType::ApplicationData, cut),
            None if self.is_closing && self.framing.bytes() == 0 => {
                self.is_finished = true;
                self.close_notify()
            }
            None => None,
        }
    }

    /// Handles the tags of records, from `number` on, that the NIC stack has sealed for the first
    /// time.
    ///
    /// # Errors
    /// If they contradict earlier tags. The connection must be reset.
    pub fn on_sealed(&mut self, epoch: u16, number: u64, tags: &[Tag]) -> Result<(), SealedError> {
        self.ledger.on_sealed(epoch, number, tags)
    }

    /// The peer has acknowledged all bytes of the stream before `upto`. Calls `removed` with the
    /// epoch of each key that the NIC stack may forget.
    pub fn acknowledge(&mut self, upto: u64, removed: impl FnMut(u16)) {
        let released = &mut self.released;
        self.ledger
            .acknowledge(upto, |object| released.push(object), removed);
    }

    /// Returns the next definition that a NIC stack with this knowledge needs before it seals the
    /// unacknowledged records; `None` if nothing is missing.
    pub fn missing(&self, known: &Known) -> Option<Definition<'_>> {
        self.ledger.missing(known)
    }

    /// True if the tag of a record that begins before `stream_offset` is unknown. If such a record
    /// may have left, it must not be sealed by a NIC stack that does not know its tag either.
    pub fn untagged_before(&self, stream_offset: u64) -> bool {
        self.ledger.untagged_before(stream_offset)
    }

    fn is_writable(&self) -> bool {
        !self.is_closing && !self.is_finished && !matches!(self.rx, Rx::Failed)
    }

    /// Takes as much as belongs to one record.
    fn take(&mut self, now_us: u64, rest: &mut &[u8]) -> Result<(), Error> {
        if self.record.len() < RECORD_HEADER_BYTES {
            self.fill(RECORD_HEADER_BYTES, rest);
            if self.record.len() == RECORD_HEADER_BYTES {
                self.check_header()?;
            } else {
                return Ok(());
            }
        }
        let length = usize::from(u16::from_be_bytes([self.record[3], self.record[4]]));
        self.fill(RECORD_HEADER_BYTES + length, rest);
        if self.record.len() < RECORD_HEADER_BYTES + length {
            return Ok(());
        }
        let mut record = std::mem::take(&mut self.record);
        match self.rx {
            Rx::Handshaking { .. } => self.on_handshake_record(now_us, &record),
            _ => self.on_record(now_us, &mut record),
        }
    }

    fn fill(&mut self, upto: usize, rest: &mut &[u8]) {
        let missing = upto.saturating_sub(self.record.len()).min(rest.len());
        let (taken, left) = rest.split_at(missing);
        self.record.extend_from_slice(taken);
        *rest = left;
    }

    fn check_header(&self) -> Result<(), Error> {
        let content_type = self.record[0];
        let version = u16::from_be_bytes([self.record[1], self.record[2]]);
        let length = usize::from(u16::from_be_bytes([self.record[3], self.record[4]]));
        let Some(established) = &self.established else {
            let is_first = matches!(self.rx, Rx::Handshaking { bytes: 0, .. });
            if is_first && (content_type != ContentType::Handshake as u8 || version >> 8 != 3) {
                return Err(match self.record.first_chunk() {
                    Some(first) if plain_http::is_request(first) => Error::PlainHttp {
                        is_head: plain_http::is_head(first),
                    },
                    _ => Error::NotTls,
                });
            }
            return if length > self.handshake_length_max(content_type) {
                Err(Error::OversizedRecord)
            } else {
                Ok(())
            };
        };
        match established.suite.version {
            // All else would have to be sealed, and the version means nothing (RFC 8446 §5.1,
            // §5.2).
            Version::Tls13 if content_type != ContentType::ApplicationData as u8 => {
                return Err(Error::UnexpectedRecord { content_type });
            }
            Version::Tls12 if version != 0x0303 => return Err(Error::RecordVersion(version)),
            _ => {}
        }
        if length > established.opener.length_max() {
            Err(Error::OversizedRecord)
        } else {
            Ok(())
        }
    }

    /// Longest record length that the header may declare during the handshake, header excluded, in
    /// bytes: the limit of sealed records applies only to those that can be sealed (RFC 8446 §5.1,
    /// §5.2; RFC 5246 §6.2.1, §6.2.3).
    fn handshake_length_max(&self, content_type: u8) -> usize {
        let overhead = match &self.rx {
            _ if content_type == ContentType::ApplicationData as u8 => 256,
            Rx::Handshaking {
                handshake,
                has_changed_cipher: true,
                ..
            } if handshake.may_be_sealed() => 2048,
            _ => 0,
        };
        RECORD_PLAINTEXT_BYTES_MAX + overhead
    }

    fn on_handshake_record(&mut self, now_us: u64, record: &[u8]) -> Result<(), Error> {
        let Rx::Handshaking {
            handshake,
            bytes,
            hello,
            has_changed_cipher,
            ..
        } = &mut self.rx
        else {
            return Ok(());
        };
        *bytes += record.len();
        if *bytes > self.config.limits.handshake_bytes_max {
            return Err(Error::HandshakeTooLong);
        }
        *has_changed_cipher |= record[0] == ContentType::ChangeCipherSpec as u8;
        // Records are not authentic yet: an attacker who changes the client's offer can also split
        // it into two records.
        let is_handshake = record[0] == ContentType::Handshake as u8;
        if let Some(content) = hello.as_mut().filter(|_| is_handshake) {
            content.extend_from_slice(&record[RECORD_HEADER_BYTES..]);
            if hello::is_whole(content) {
                hello::check(content, self.config.has_tls13)?;
                if hello::has_early_data(content) {
                    handshake.expect_early_data();
                }
                *hello = None;
            }
        }
        if !handshake.on_record(record, &mut self.raw)? {
            return Ok(());
        }
        let Rx::Handshaking { handshake, .. } = std::mem::replace(&mut self.rx, Rx::Open) else {
            return Ok(());
        };
        let Done {
            agreed,
            tx,
            tx_number,
            opener,
            next_keys,
        } = handshake.finish()?;
        self.events.push_back(Event::Connected(agreed.clone()));
        self.established = Some(Box::new(Established {
            agreed,
            next_keys,
            opener,
            message: Vec::new(),
            message_refused_bytes: 0,
            useless_records: 0,
            has_renegotiated: false,
            key_updates: 0,
            key_updates_since_us: now_us,
            epoch: tx.epoch,
            suite: tx.suite,
            key: Some(tx),
            number: tx_number,
            key_since_us: now_us,
            is_key_update_due: false,
            warning: None,
            fatal: None,
        }));
        Ok(())
    }

    fn on_record(&mut self, now_us: u64, record: &mut [u8]) -> Result<(), Error> {
        let Some(established) = self.established.as_mut() else {
            return Ok(());
        };
        let (content_type, content) = established.opener.open(record)?;
        let content_type = ContentType::try_from(content_type)?;
        let is_amid_message =
            established.message_refused_bytes > 0 || !established.message.is_empty();
        if is_amid_message && content_type != ContentType::Handshake {
            // RFC 8446 §5.1: no other record between the parts of a message.
            return Err(Error::UnexpectedRecord {
                content_type: content_type as u8,
            });
        }
        match content_type {
            ContentType::ApplicationData if content.is_empty() => {
                established.useless_records += 1;
                if established.useless_records > USELESS_RECORDS_MAX {
                    Err(Error::TooMany("empty records"))
                } else {
                    Ok(())
                }
            }
            ContentType::ApplicationData => {
                established.useless_records = 0;
                self.plaintext.extend(content);
                Ok(())
            }
            ContentType::Alert => self.on_alert(content),
            ContentType::Handshake => established.on_handshake(now_us, content),
            ContentType::ChangeCipherSpec => Err(Error::UnexpectedRecord {
                content_type: content_type as u8,
            }),
        }
    }

    fn on_alert(&mut self, content: &[u8]) -> Result<(), Error> {
        if content.is_empty() {
            // RFC 8446 §5.4, RFC 5246 §6.2.1
            return Err(Error::UnexpectedRecord {
                content_type: ContentType::Alert as u8,
            });
        }
        let &[level, description] = content else {
            return Err(Error::Malformed("an alert"));
        };
        let description = AlertDescription::from(description);
        let established = self.established.as_mut();
        let is_tls12 = established
            .as_ref()
            .is_some_and(|established| established.suite.version == Version::Tls12);
        match description {
            AlertDescription::CloseNotify => {
                self.peer_finished(false);
                Ok(())
            }
            // In TLS 1.3 every other alert is fatal (RFC 8446 §6.2).
            AlertDescription::UserCanceled => self.on_warning(),
            _ if is_tls12 && level == WARNING => self.on_warning(),
            _ if is_tls12 && level != FATAL => {
                Err(Error::IllegalParameter("the level of an alert"))
            }
            _ => Err(Error::PeerAlert(description)),
        }
    }

    fn on_warning(&mut self) -> Result<(), Error> {
        let Some(established) = self.established.as_mut() else {
            return Ok(());
        };
        established.useless_records += 1;
        if established.useless_records > USELESS_RECORDS_MAX {
            Err(Error::TooMany("warnings"))
        } else {
            Ok(())
        }
    }

    fn peer_finished(&mut self, is_truncated: bool) {
        self.rx = Rx::Finished;
        self.record = Vec::new();
        self.events.push_back(Event::PeerFinished { is_truncated });
    }

    fn fail(&mut self, error: Error) {
        let framed = &mut self.released;
        self.framing.clear(|object| framed.push(object));
        self.record = Vec::new();
        self.is_closing = true;
        match (&mut self.established, error.alert()) {
            (Some(established), Some(alert)) => established.fatal = Some([FATAL, alert.into()]),
            (Some(_), None) => self.is_finished = true,
            (None, alert) => {
                self.is_finished = true;
                if let (Some(alert), Rx::Handshaking { handshake, .. }) = (alert, &self.rx)
                    && let Ok(record) = handshake.alert([FATAL, alert.into()])
                {
                    self.raw.extend(record);
                }
            }
        }
        self.rx = Rx::Failed;
        self.events.push_back(Event::Failed(error));
    }

    /// Queues KeyUpdate, and derives the next key.
    fn update_key(&mut self, now_us: u64) -> Option<Transmit<'_>> {
        const UPDATE_NOT_REQUESTED: [u8; 5] = [KEY_UPDATE, 0, 0, 1, 0];

        let established = self.established.as_mut()?;
        // The message is the last that the old key seals.
        let at = (established.epoch, established.number);
        match established.next_key(now_us) {
            Ok(()) => {
                let cut = message(&UPDATE_NOT_REQUESTED);
                self.define_at(at, ContentType::Handshake, cut)
            }
            // If there is no alert for the error, TCP ends without close_notify, so the client
            // detects the truncation.
            Err(error) => {
                self.fail(error);
                None
            }
        }
    }

    fn close_notify(&mut self) -> Option<Transmit<'_>> {
        let alert = [WARNING, AlertDescription::CloseNotify.into()];
        self.define(ContentType::Alert, message(&alert))
    }

    /// Defines the next records.
    fn define(&mut self, content_type: ContentType, cut: Cut) -> Option<Transmit<'_>> {
        let established = self.established.as_mut()?;
        let at = (established.epoch, established.number);
        established.number += cut.records();
        self.define_at(at, content_type, cut)
    }

    fn define_at(
        &mut self,
        (epoch, number): (u16, u64),
        content_type: ContentType,
        cut: Cut,
    ) -> Option<Transmit<'_>> {
        let run = Run {
            epoch,
            number,
            stream_offset: self.stream_offset,
            content_type,
            record_plaintext_bytes: cut.record_plaintext_bytes,
            follow_bytes: cut.follow_bytes,
            pieces: cut.pieces,
            tags: Vec::new(),
            suite: self.established.as_ref()?.suite,
        };
        self.stream_offset = run.stream_end();
        Some(Transmit::Run(self.ledger.define(run)))
    }
}

fn message(content: &[u8]) -> Cut {
    Cut {
        record_plaintext_bytes: content.len() as u16,
        pieces: vec![Piece::Real(content.into())],
        follow_bytes: 0,
    }
}

impl Established {
    /// Replaces the key that seals.
    fn next_key(&mut self, now_us: u64) -> Result<(), Error> {
        let epoch = self.epoch.checked_add(1).ok_or(Error::KeyUsedUp)?;
        let secrets = self.next_keys.next_tx().map_err(Error::Handshake)?;
        let key = Key::new(epoch, self.suite.version, &secrets)?;
        self.key = Some(key);
        self.epoch = epoch;
        self.number = 0;
        self.key_since_us = now_us;
        self.is_key_update_due = false;
        Ok(())
    }

    /// Takes the content of a handshake record.
    fn on_handshake(&mut self, now_us: u64, content: &[u8]) -> Result<(), Error> {
        if content.is_empty() {
            // RFC 8446 §5.1
            return Err(Error::UnexpectedRecord {
                content_type: ContentType::Handshake as u8,
            });
        }
        let mut rest = content;
        while !rest.is_empty() {
            let refused = self.message_refused_bytes.min(rest.len());
            self.message_refused_bytes -= refused;
            rest = &rest[refused..];
            self.fill(4, &mut rest);
            let &[handshake_type, high, middle, low, ..] = &self.message[..] else {
                continue;
            };
            let length = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
            match (self.suite.version, handshake_type) {
                (Version::Tls13, KEY_UPDATE) if length != 1 => {
                    return Err(Error::Malformed("a KeyUpdate"));
                }
                (Version::Tls13, KEY_UPDATE) => {
                    self.fill(5, &mut rest);
                    if let &[.., request] = &self.message[4..] {
                        self.message.clear();
                        if !rest.is_empty() {
                            // Any following message belongs to another key (RFC 8446 §5.1).
                            return Err(Error::UnexpectedMessage { handshake_type });
                        }
                        self.on_key_update(now_us, request)?;
                    }
                }
                (Version::Tls12, CLIENT_HELLO) if !self.has_renegotiated => {
                    // RFC 5246 §7.2.2: a warning, after which the client may go on as it was.
                    self.message.clear();
                    self.has_renegotiated = true;
                    self.message_refused_bytes = length;
                    self.warning = Some([WARNING, AlertDescription::NoRenegotiation.into()]);
                }
                (Version::Tls12, CLIENT_HELLO) => {
                    return Err(Error::TooMany("attempts to renegotiate"));
                }
                _ => return Err(Error::UnexpectedMessage { handshake_type }),
            }
        }
        Ok(())
    }

    fn fill(&mut self, upto: usize, rest: &mut &[u8]) {
        let missing = upto.saturating_sub(self.message.len()).min(rest.len());
        let (taken, left) = rest.split_at(missing);
        self.message.extend_from_slice(taken);
        *rest = left;
    }

    /// RFC 8446 §4.6.3.
    fn on_key_update(&mut self, now_us: u64, request: u8) -> Result<(), Error> {
        if request > 1 {
            return Err(Error::IllegalParameter("the request of a KeyUpdate"));
        }
        if now_us.saturating_sub(self.key_updates_since_us) > KEY_UPDATE_WINDOW_US {
            self.key_updates_since_us = now_us;
            self.key_updates = 0;
        }
        self.key_updates += 1;
        if self.key_updates > KEY_UPDATES_MAX {
            return Err(Error::TooMany("KeyUpdates"));
        }
        let secrets = self.next_keys.next_rx().map_err(Error::Untold)?;
        self.opener = Opener::new(&Key::new(0, self.suite.version, &secrets)?, 0)?;
        // One answer suffices for all requests before it is sent.
        self.is_key_update_due |= request == 1;
        Ok(())
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let agreed = self.established.as_ref().map(|it| &it.agreed);
        f.debug_struct("Connection")
            .field("agreed", &agreed)
            .field("stream_offset", &self.stream_offset)
            .field("is_finished", &self.is_finished)
            .finish_non_exhaustive()
    }
}
