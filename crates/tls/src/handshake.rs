//! The handshake, which rustls does.
//!
//! rustls gets one record at a time: when it has taken the last record of the handshake, it has
//! taken nothing behind it.

use std::sync::Arc;

use rustls::kernel::KernelConnection;
use rustls::server::{ResolvesServerCert, ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, InsufficientSizeError};
use rustls::{ConnectionTrafficSecrets, HandshakeKind, KeyLog, ProtocolVersion, ServerConfig};

use crate::certificates::choice::Choice;
use crate::config::Config;
use crate::content_type::ContentType;
use crate::error::Error;
use crate::identity::Identity;
use crate::key::{Key, version};
use crate::opener::Opener;
use crate::traffic_secrets::TrafficSecrets;
use contract::tls::{RECORD_HEADER_BYTES, Suite, TAG_BYTES};

/// Rejected early data that is skipped, in bytes of plaintext: what tickets of other servers under
/// the same name may have allowed (RFC 8446 §4.2.10).
const EARLY_DATA_BYTES_MAX: usize = 16 << 10;

/// Source of the keys that follow a KeyUpdate (RFC 8446 §7.2).
pub(crate) trait NextKeys: Send {
    fn next_tx(&mut self) -> Result<ConnectionTrafficSecrets, rustls::Error>;
    fn next_rx(&mut self) -> Result<ConnectionTrafficSecrets, rustls::Error>;
}

impl NextKeys for KernelConnection<ServerConnectionData> {
    fn next_tx(&mut self) -> Result<ConnectionTrafficSecrets, rustls::Error> {
        self.update_tx_secret().map(|(_, secrets)| secrets)
    }

    fn next_rx(&mut self) -> Result<ConnectionTrafficSecrets, rustls::Error> {
        self.update_rx_secret().map(|(_, secrets)| secrets)
    }
}

/// The negotiated parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// Version and cipher.
    pub suite: Suite,
    /// The application protocol, if the client asked for one (RFC 7301).
    pub alpn: Option<Vec<u8>>,
    /// True if an earlier session was resumed.
    pub is_resumed: bool,
    /// The hosts that the connection is for.
    pub identity: Identity,
}

/// Result of a handshake.
pub(crate) struct Done {
    pub(crate) agreed: Agreed,
    pub(crate) tx: Key,
    /// Number of the first record to be sealed: tickets and Finished come before it.
    pub(crate) tx_number: u64,
    pub(crate) opener: Opener,
    pub(crate) next_keys: Box<dyn NextKeys>,
}

pub(crate) struct Handshake {
    connection: UnbufferedServerConnection,
    /// Records that rustls has not fully consumed.
    incoming: Vec<u8>,
    secrets: Arc<TrafficSecrets>,
    choice: Arc<Choice>,
    /// Rejected early data that may still come, in bytes; `None` if none may.
    early_data_left: Option<usize>,
}

/// Memory of a handshake that waits for its client, in bytes: rustls's state and configuration.
const STATE_BYTES: usize = 4 << 10;

impl Handshake {
    /// Memory in use, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        STATE_BYTES + self.incoming.capacity()
    }

    pub(crate) fn new(config: &Config) -> Result<Self, rustls::Error> {
        let choice = Arc::new(Choice::new(Arc::clone(&config.certificates)));
        let mut config = ServerConfig::clone(&config.rustls);
        let secrets = Arc::new(TrafficSecrets::new(Arc::clone(&config.key_log)));
        config.key_log = Arc::clone(&secrets) as Arc<dyn KeyLog>;
        config.cert_resolver = Arc::clone(&choice) as Arc<dyn ResolvesServerCert>;
        Ok(Self {
            connection: UnbufferedServerConnection::new(Arc::new(config))?,
            incoming: Vec::new(),
            secrets,
            choice,
            early_data_left: None,
        })
    }

    /// The client has announced early data, which is never accepted.
    pub(crate) fn expect_early_data(&mut self) {
        self.early_data_left = Some(EARLY_DATA_BYTES_MAX);
    }

    /// True if a record that is not of application data may be sealed.
    pub(crate) fn may_be_sealed(&self) -> bool {
        self.connection.protocol_version() == Some(ProtocolVersion::TLSv1_2)
    }

    /// The record of a fatal alert, sealed from the server's Finished on.
    pub(crate) fn alert(&self, alert: [u8; 2]) -> Result<Vec<u8>, Error> {
        let sealed = match self.connection.negotiated_cipher_suite() {
            Some(suite) => self.secrets.seal_alert(suite, alert)?,
            None => None,
        };
        let plain = || [&[ContentType::Alert as u8, 3, 3, 0, 2][..], &alert].concat();
        Ok(sealed.unwrap_or_else(plain))
    }

    /// Takes a record, header included; appends output to `raw`, also on failure. True at the end
    /// of the handshake.
    pub(crate) fn on_record(&mut self, record: &[u8], raw: &mut Vec<u8>) -> Result<bool, Error> {
        if self.is_rejected_early_data(record)? {
            return Ok(false);
        }
        self.incoming.extend_from_slice(record);
        match self.drive(raw, false) {
            Err(Error::Handshake(error)) => {
                // The alert is still in there, if there is one.
                let before = raw.len();
                while self.connection.wants_write() && self.drive(raw, true).is_ok() {}
                Err(if raw.len() > before {
                    Error::Handshake(error)
                } else {
                    Error::Untold(error)
                })
            }
            result => result,
        }
    }

    /// True for a record to be skipped (RFC 8446 §4.2.10): after HelloRetryRequest every one of
    /// application data, and after ServerHello every one that the handshake key does not open, up
    /// to the first that it opens.
    ///
    /// rustls can skip them as well, but keeps each until the end, and tries it once more with each
    /// that follows.
    fn is_rejected_early_data(&mut self, record: &[u8]) -> Result<bool, Error> {
        let is_tls13 = self.connection.protocol_version() == Some(ProtocolVersion::TLSv1_3);
        let is_data = record[0] == ContentType::ApplicationData as u8;
        let Some(left) = self.early_data_left.filter(|_| is_tls13 && is_data) else {
            return Ok(false);
        };
        if let Some(suite) = self.connection.negotiated_cipher_suite()
            && let Some(mut opener) = self.secrets.handshake_opener(suite)?
            && opener.open(&mut record.to_vec()) != Err(Error::BadRecord)
        {
            self.early_data_left = None;
            return Ok(false);
        }
        let overhead = RECORD_HEADER_BYTES + 1 + TAG_BYTES;
        let left = left.checked_sub(record.len().saturating_sub(overhead));
        let left = left.ok_or(Error::TooMany("bytes of early data"))?;
        self.early_data_left = Some(left);
        Ok(true)
    }

    /// `has_failed`: stops at the first output. After it, rustls would parse the faulty record once
    /// more, and produce another alert.
    fn drive(&mut self, raw: &mut Vec<u8>, has_failed: bool) -> Result<bool, Error> {
        loop {
            let status = self.connection.process_tls_records(&mut self.incoming);
            let discard = status.discard;
            let step = match status.state {
                Ok(ConnectionState::EncodeTlsData(mut data)) => {
                    let at = raw.len();
                    if let Err(EncodeError::InsufficientSize(InsufficientSizeError {
                        required_size,
                    })) = data.encode(&mut [])
                    {
                        raw.resize(at + required_size, 0);
                        let encoded = data.encode(&mut raw[at..]);
                        debug_assert!(encoded.is_ok(), "there was room");
                    }
                    has_failed.then_some(Ok(false))
                }
                Ok(ConnectionState::TransmitTlsData(data)) => {
                    data.done();
                    None
                }
                Ok(ConnectionState::WriteTraffic(_)) => Some(Ok(true)),
                Ok(ConnectionState::BlockedHandshake) => Some(Ok(false)),
                Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => {
                    Some(Err(Error::ClosedInHandshake))
                }
                // Early data is never offered, and other data cannot come before the end.
                Ok(_) => Some(Err(Error::Unsupported)),
                Err(rustls::Error::AlertReceived(alert)) => Some(Err(Error::PeerAlert(alert))),
                Err(error) => Some(Err(Error::Handshake(error))),
            };
            self.incoming.drain(..discard);
            if let Some(step) = step {
                return step;
            }
        }
    }

    /// After the end.
    pub(crate) fn finish(self) -> Result<Done, Error> {
        let common = &self.connection;
        let version = version(common.protocol_version().ok_or(Error::Unsupported)?)?;
        let alpn = common.alpn_protocol().map(<[u8]>::to_vec);
        let is_resumed = common.handshake_kind() == Some(HandshakeKind::Resumed);
        let identity = self.choice.identity();
        let (secrets, kernel) = self
            .connection
            .dangerous_into_kernel_connection()
            .map_err(Error::Handshake)?;
        let (tx_number, tx) = secrets.tx;
        let (rx_number, rx) = secrets.rx;
        let tx = Key::new(0, version, &tx)?;
        let opener = Opener::new(&Key::new(0, version, &rx)?, rx_number)?;
        Ok(Done {
            agreed: Agreed {
                suite: tx.suite,
                alpn,
                is_resumed,
                identity,
            },
            tx,
            tx_number,
            opener,
            next_keys: Box::new(kernel),
        })
    }
}
