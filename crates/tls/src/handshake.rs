//! The handshake, which rustls does.
//!
//! rustls gets one record at a time: when the one that ends the handshake has been taken, nothing of what follows it
//! has.

use std::sync::Arc;

use rustls::kernel::KernelConnection;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, InsufficientSizeError};
use rustls::{ConnectionTrafficSecrets, HandshakeKind, ServerConfig};

use crate::error::Error;
use crate::key::{Key, version};
use crate::opener::Opener;
use contract::tls::Suite;

/// Where the keys come from that follow a KeyUpdate (RFC 8446 §7.2).
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

/// What was agreed upon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// Version and cipher.
    pub suite: Suite,
    /// The application protocol, if the client asked for one (RFC 7301).
    pub alpn: Option<Vec<u8>>,
    /// True if an earlier session was resumed.
    pub is_resumed: bool,
}

/// What a handshake leaves behind.
pub(crate) struct Done {
    pub(crate) agreed: Agreed,
    pub(crate) tx: Key,
    /// Number of the first record that is to be sealed: tickets and Finished come before it.
    pub(crate) tx_number: u64,
    pub(crate) opener: Opener,
    pub(crate) next_keys: Box<dyn NextKeys>,
}

pub(crate) struct Handshake {
    connection: UnbufferedServerConnection,
    /// Records of which rustls still needs something.
    incoming: Vec<u8>,
}

impl Handshake {
    pub(crate) fn new(config: Arc<ServerConfig>) -> Result<Self, rustls::Error> {
        Ok(Self {
            connection: UnbufferedServerConnection::new(config)?,
            incoming: Vec::new(),
        })
    }

    /// Takes a record, header included; appends to `raw` what is to be sent, also if it fails. True at the end of the
    /// handshake.
    pub(crate) fn on_record(&mut self, record: &[u8], raw: &mut Vec<u8>) -> Result<bool, Error> {
        self.incoming.extend_from_slice(record);
        let result = self.drive(raw, false);
        if matches!(result, Err(Error::Handshake(_))) {
            // The alert is still in there.
            while self.connection.wants_write() && self.drive(raw, true).is_ok() {}
        }
        result
    }

    /// `has_failed`: only until something is to be sent. Behind that, rustls would look once more at what it could not take
    /// apart, and have another alert.
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
            },
            tx,
            tx_number,
            opener,
            next_keys: Box::new(kernel),
        })
    }
}
