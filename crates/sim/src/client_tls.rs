//! A client's TLS: rustls performs the handshake and checks the certificate; the records that
//! follow go through the [oracle](crate::oracle), which checks every rule for the server's records.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use contract::tls::{Cipher, RECORD_HEADER_BYTES, Suite, Version};
use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::kernel::KernelConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, InsufficientSizeError};
use rustls::{ConnectionTrafficSecrets, KeyLog, ProtocolVersion};

use crate::oracle::{PLAINTEXT_BYTES_MAX, Records};
use crate::scenario::TlsPlan;
use crate::site::ClientTlsConfig;
use crate::violation::{Check, Violation, ensure, violation};

const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const APPLICATION_DATA: u8 = 23;

const NEW_SESSION_TICKET: u8 = 4;
const KEY_UPDATE: u8 = 24;

/// Level and description of the alert.
const CLOSE_NOTIFY: [u8; 2] = [1, 0];

/// KeyUpdates that a server must accept from one client; it may refuse more.
const KEY_UPDATES_MAX: u32 = 20;

/// One connection's TLS.
pub(crate) struct ClientTls {
    plan: TlsPlan,
    state: State,
    secrets: Arc<Secrets>,
    /// Received bytes that are not a whole record yet.
    incoming: Vec<u8>,
    /// Bytes to be sent.
    outgoing: Vec<u8>,
    /// Plaintext to be sealed once there are keys.
    waiting: Vec<u8>,
    /// Sends close_notify, if planned, and FIN once all plaintext is sealed.
    closes: bool,
    has_closed: bool,
    /// The server has sent close_notify.
    is_closed: bool,
    /// Plaintext received since its own last KeyUpdate, in bytes.
    since_update: u64,
    updates: u32,
}

enum State {
    Handshaking {
        connection: Box<UnbufferedClientConnection>,
        /// A record that rustls has not consumed as a whole.
        record: Vec<u8>,
    },
    Open(Box<Session>),
    Failed,
}

struct Session {
    rx: Records,
    tx: Records,
    /// Processes session tickets.
    kernel: KernelConnection<ClientConnectionData>,
}

/// Traffic secrets of TLS 1.3, by label of the key log.
#[derive(Default)]
struct Secrets(Mutex<HashMap<String, Vec<u8>>>);

impl Secrets {
    fn take(&self, label: &str) -> Option<Vec<u8>> {
        let mut secrets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        secrets.remove(label)
    }
}

impl KeyLog for Secrets {
    fn log(&self, label: &str, _: &[u8], secret: &[u8]) {
        let mut secrets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        secrets.insert(label.to_owned(), secret.to_vec());
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secrets").finish_non_exhaustive()
    }
}

impl ClientTls {
    /// Starts the handshake: queues the ClientHello.
    pub(crate) fn new(
        plan: TlsPlan,
        wanted: &ClientTlsConfig,
        now_us: u64,
    ) -> Result<ClientTls, Violation> {
        let secrets = Arc::new(Secrets::default());
        let mut config = wanted.config(now_us);
        config.key_log = Arc::clone(&secrets) as Arc<dyn KeyLog>;
        let connection = UnbufferedClientConnection::new(Arc::new(config), ClientTlsConfig::name());
        let connection = connection.map_err(|error| Violation(format!("no TLS: {error}")))?;
        let mut secure = ClientTls {
            plan,
            state: State::Handshaking {
                connection: Box::new(connection),
                record: Vec::new(),
            },
            secrets,
            incoming: Vec::new(),
            outgoing: Vec::new(),
            waiting: Vec::new(),
            closes: false,
            has_closed: false,
            is_closed: false,
            since_update: 0,
            updates: 0,
        };
        secure.shake_hands(&[])?;
        Ok(secure)
    }

    /// Reports whether the server has sent close_notify.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Reports whether all records are queued, so that only FIN is left.
    pub(crate) fn has_closed(&self) -> bool {
        self.has_closed
    }

    /// Takes the bytes to be sent.
    pub(crate) fn take_outgoing(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.outgoing)
    }

    /// Queues plaintext for sending.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Check {
        self.waiting.extend_from_slice(bytes);
        self.speak()
    }

    /// Closes the sending direction.
    pub(crate) fn close(&mut self) -> Check {
        self.closes = true;
        self.speak()
    }

    /// Seals the queued plaintext, and close_notify if due.
    fn speak(&mut self) -> Check {
        let State::Open(session) = &mut self.state else {
            return Ok(());
        };
        for content in self.waiting.chunks(self.plan.record_bytes) {
            let padding = self.plan.padding_bytes;
            session
                .tx
                .seal(APPLICATION_DATA, content, padding, &mut self.outgoing)?;
        }
        self.waiting.clear();
        if self.closes && !std::mem::replace(&mut self.has_closed, true) && self.plan.says_close {
            session
                .tx
                .seal(ALERT, &CLOSE_NOTIFY, 0, &mut self.outgoing)?;
        }
        Ok(())
    }

    /// Takes received bytes, and appends their plaintext.
    pub(crate) fn take(&mut self, bytes: &[u8], plaintext: &mut Vec<u8>) -> Check {
        self.incoming.extend_from_slice(bytes);
        let incoming = std::mem::take(&mut self.incoming);
        let mut rest = &incoming[..];
        while let Some(header) = rest.first_chunk::<RECORD_HEADER_BYTES>() {
            let length = usize::from(u16::from_be_bytes([header[3], header[4]]));
            self.check_header(header, length)?;
            let Some((record, later)) = rest.split_at_checked(RECORD_HEADER_BYTES + length) else {
                break;
            };
            rest = later;
            match &self.state {
                State::Handshaking { .. } => self.shake_hands(record)?,
                _ => self.on_record(&mut record.to_vec(), plaintext)?,
            }
        }
        self.incoming = rest.to_vec();
        self.speak()
    }

    fn check_header(&self, header: &[u8; RECORD_HEADER_BYTES], length: usize) -> Check {
        let State::Open(session) = &self.state else {
            return Ok(());
        };
        let &[content_type, major, minor, ..] = header;
        let is_right = (major, minor) == (3, 3)
            && length <= session.rx.length_max()
            && match self.plan.suite.version {
                Version::Tls13 => content_type == APPLICATION_DATA,
                Version::Tls12 => (ALERT..=APPLICATION_DATA).contains(&content_type),
            };
        ensure(is_right, || format!("no header of a record: {header:02x?}"))
    }

    /// Feeds a record to the handshake; nothing to start it.
    fn shake_hands(&mut self, arrived: &[u8]) -> Check {
        let State::Handshaking { connection, record } = &mut self.state else {
            return Ok(());
        };
        record.extend_from_slice(arrived);
        let is_done = loop {
            let status = connection.process_tls_records(record);
            let discard = status.discard;
            let step = match status.state {
                Ok(ConnectionState::EncodeTlsData(mut data)) => {
                    let at = self.outgoing.len();
                    if let Err(EncodeError::InsufficientSize(InsufficientSizeError {
                        required_size,
                    })) = data.encode(&mut [])
                    {
                        self.outgoing.resize(at + required_size, 0);
                        let encoded = data.encode(&mut self.outgoing[at..]);
                        debug_assert!(encoded.is_ok(), "there was room");
                    }
                    None
                }
                Ok(ConnectionState::TransmitTlsData(data)) => {
                    data.done();
                    None
                }
                Ok(ConnectionState::WriteTraffic(_)) => Some(true),
                Ok(ConnectionState::BlockedHandshake) => Some(false),
                Ok(state) => return violation(format!("a handshake leads to {state:?}")),
                Err(error) => return violation(format!("a handshake fails: {error}")),
            };
            record.drain(..discard);
            if let Some(step) = step {
                break step;
            }
        };
        if is_done {
            self.open()?;
        }
        Ok(())
    }

    /// Takes the keys from rustls once the handshake is over.
    fn open(&mut self) -> Check {
        let State::Handshaking { connection, record } =
            std::mem::replace(&mut self.state, State::Failed)
        else {
            return Ok(());
        };
        ensure(record.is_empty(), || "a handshake left over".to_owned())?;
        let suite = self.plan.suite;
        let version = match suite.version {
            Version::Tls12 => ProtocolVersion::TLSv1_2,
            Version::Tls13 => ProtocolVersion::TLSv1_3,
        };
        let agreed = (connection.protocol_version(), connection.alpn_protocol());
        let protocol = self.plan.protocol().as_bytes();
        ensure(agreed == (Some(version), Some(protocol)), || {
            format!("{suite:?} was asked for, and {agreed:?} agreed to")
        })?;
        let extracted = connection.dangerous_into_kernel_connection();
        let (secrets, kernel) =
            extracted.map_err(|error| Violation(format!("no secrets: {error}")))?;
        let records = |label: &str, (number, keys): (u64, ConnectionTrafficSecrets)| {
            let records = match self.secrets.take(label) {
                Some(secret) => Records::of_secret(suite, secret, number),
                None => {
                    let (cipher, key, iv) = match &keys {
                        ConnectionTrafficSecrets::Aes128Gcm { key, iv } => {
                            (Cipher::Aes128Gcm, key, iv)
                        }
                        ConnectionTrafficSecrets::Aes256Gcm { key, iv } => {
                            (Cipher::Aes256Gcm, key, iv)
                        }
                        ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => {
                            (Cipher::ChaCha20Poly1305, key, iv)
                        }
                        _ => return violation("a cipher that was not offered"),
                    };
                    let suite = Suite { cipher, ..suite };
                    Records::new(suite, key.as_ref(), iv.as_ref(), number)
                }
            };
            records.map_or_else(|| violation("keys of another cipher"), Ok)
        };
        self.state = State::Open(Box::new(Session {
            rx: records("SERVER_TRAFFIC_SECRET_0", secrets.rx)?,
            tx: records("CLIENT_TRAFFIC_SECRET_0", secrets.tx)?,
            kernel,
        }));
        Ok(())
    }

    fn on_record(&mut self, record: &mut [u8], plaintext: &mut Vec<u8>) -> Check {
        let State::Open(session) = &mut self.state else {
            return violation("a record for no connection");
        };
        let (content_type, content) = session.rx.open(record)?;
        ensure(!self.is_closed, || {
            format!("a record of type {content_type} behind close_notify")
        })?;
        ensure((1..=PLAINTEXT_BYTES_MAX).contains(&content.len()), || {
            format!(
                "a record of type {content_type} with {} bytes",
                content.len()
            )
        })?;
        match (content_type, content) {
            (APPLICATION_DATA, _) => {
                plaintext.extend_from_slice(content);
                self.since_update += content.len() as u64;
                let is_due = |every_bytes| self.since_update >= every_bytes;
                if self.updates < KEY_UPDATES_MAX
                    && self.plan.updates_every_bytes.is_some_and(is_due)
                {
                    self.since_update = 0;
                    self.updates += 1;
                    self.update_key(true)?;
                }
                Ok(())
            }
            (ALERT, content) if content == CLOSE_NOTIFY => {
                self.is_closed = true;
                Ok(())
            }
            (HANDSHAKE, content) if self.plan.suite.version == Version::Tls13 => {
                self.on_handshake(content)
            }
            _ => violation(format!("a record of type {content_type}: {content:02x?}")),
        }
    }

    fn on_handshake(&mut self, mut messages: &[u8]) -> Check {
        while let &[kind, a, b, c, ref rest @ ..] = messages {
            let length = u32::from_be_bytes([0, a, b, c]) as usize;
            let Some((message, later)) = rest.split_at_checked(length) else {
                break;
            };
            messages = later;
            let State::Open(session) = &mut self.state else {
                return Ok(());
            };
            match (kind, message) {
                (NEW_SESSION_TICKET, ticket) => {
                    let taken = session.kernel.handle_new_session_ticket(ticket);
                    taken.map_err(|error| Violation(format!("no ticket: {error}")))?;
                }
                // Records after a KeyUpdate are protected with another key (RFC 8446 §5.1).
                (KEY_UPDATE, &[asks @ (0 | 1)]) if later.is_empty() => {
                    ensure(session.rx.update().is_some(), || "no next key".to_owned())?;
                    if asks == 1 {
                        self.update_key(false)?;
                    }
                }
                _ => {
                    return violation(format!(
                        "message {kind} that was not asked for: {message:02x?}"
                    ));
                }
            }
        }
        ensure(messages.is_empty(), || {
            format!("a message that is cut: {messages:02x?}")
        })
    }

    /// Updates the sending key, and requests the same from the server if `asks`.
    fn update_key(&mut self, asks: bool) -> Check {
        let State::Open(session) = &mut self.state else {
            return Ok(());
        };
        if self.has_closed || self.plan.suite.version == Version::Tls12 {
            return Ok(());
        }
        let message = [KEY_UPDATE, 0, 0, 1, u8::from(asks)];
        session
            .tx
            .seal(HANDSHAKE, &message, 0, &mut self.outgoing)?;
        ensure(session.tx.update().is_some(), || "no next key".to_owned())
    }
}

impl fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientTls")
            .field("plan", &self.plan)
            .field("is_closed", &self.is_closed)
            .finish_non_exhaustive()
    }
}
