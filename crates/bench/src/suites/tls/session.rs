//! TLS 1.3 for a client that must never be the bottleneck: rustls does the handshake and receives a
//! first response, then its keys are extracted. One key seals requests; most received records are
//! only counted by their headers.
//!
//! Opened are the record in which a response begins, all records of a response to be compared, and
//! every short record, so that an alert or a key update is not mistaken for content.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use rustls::crypto::{CryptoProvider, aws_lc_rs as provider};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{
    CipherSuite, ClientConfig, ClientConnection, ConnectionTrafficSecrets, RootCertStore, Stream,
};
use testbed::{Context, Failure, Result};

use super::identity::NAME;
use crate::RECEIVE_WAIT_MAX;

const HEADER_BYTES: usize = 5;
const TAG_BYTES: usize = 16;

/// Bytes of a record beside its plaintext, without its header: the inner type (RFC 8446 §5.2) and
/// the tag.
const OVERHEAD_BYTES: usize = 1 + TAG_BYTES;

/// Longest record, without its header (RFC 8446 §5.2).
const RECORD_BYTES_MAX: usize = (1 << 14) + 256;

/// Records with at most this much plaintext are opened in any case.
const SHORT_BYTES_MAX: usize = 512;

const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const APPLICATION_DATA: u8 = 23;

/// The first byte of a NewSessionTicket.
const NEW_SESSION_TICKET: u8 = 4;

/// Returns a configuration with TLS 1.3, AES-256-GCM and X25519, for a server with this
/// certificate.
pub(crate) fn config(certificate: &Path) -> Result<Arc<ClientConfig>> {
    let mut config = ClientConfig::builder_with_provider(Arc::new(crypto()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .context(|| "choosing TLS 1.3".into())?
        .with_root_certificates(roots(certificate)?)
        .with_no_client_auth();
    config.enable_secret_extraction = true;
    Ok(Arc::new(config))
}

/// Returns the algorithms that all clients offer.
pub(super) fn crypto() -> CryptoProvider {
    let mut crypto = provider::default_provider();
    let wanted = CipherSuite::TLS13_AES_256_GCM_SHA384;
    crypto.cipher_suites.retain(|suite| suite.suite() == wanted);
    crypto.kx_groups = vec![provider::kx_group::X25519];
    crypto
}

pub(in crate::suites) fn roots(certificate: &Path) -> Result<RootCertStore> {
    let reading = || format!("reading {}", certificate.display());
    let mut roots = RootCertStore::empty();
    let der = CertificateDer::from_pem_file(certificate).context(reading)?;
    roots.add(der).context(reading)?;
    Ok(roots)
}

pub(in crate::suites) fn name() -> ServerName<'static> {
    ServerName::try_from(NAME).expect("a name")
}

/// Received content of a response.
#[derive(Debug)]
pub(crate) enum Content<'a> {
    /// Bytes of an opened record.
    Opened(&'a [u8]),
    /// Number of bytes in an unopened record, which are not compared.
    Counted(usize),
}

/// The keys of a connection, and its partial record.
#[derive(Debug)]
pub(crate) struct Session {
    sending: Key,
    receiving: Key,
    /// Header of the partial record, and its protected bytes if it is to be opened.
    record: Vec<u8>,
    /// Bytes after the header.
    record_bytes: usize,
    /// Bytes after the header that have not arrived.
    missing: usize,
    is_counted: bool,
}

impl Session {
    /// Does the handshake, and sends a request; `take` reads the whole response.
    pub(crate) fn begin(
        config: Arc<ClientConfig>,
        stream: &TcpStream,
        request: &str,
        take: impl FnOnce(&mut dyn Read) -> Result<()>,
    ) -> Result<Session> {
        stream
            .set_read_timeout(Some(RECEIVE_WAIT_MAX))
            .context(|| "setting options of a socket".into())?;
        let mut connection =
            ClientConnection::new(config, name()).context(|| "beginning TLS".into())?;
        let mut socket = stream;
        let mut tls = Stream::new(&mut connection, &mut socket);
        tls.write_all(request.as_bytes())
            .and_then(|()| tls.flush())
            .context(|| "shaking hands".into())?;
        take(&mut tls)?;
        let secrets = connection
            .dangerous_extract_secrets()
            .context(|| "taking the keys of a TLS connection".into())?;
        Ok(Session::new(Key::new(secrets.tx)?, Key::new(secrets.rx)?))
    }

    fn new(sending: Key, receiving: Key) -> Session {
        Session {
            sending,
            receiving,
            record: Vec::new(),
            record_bytes: 0,
            missing: 0,
            is_counted: false,
        }
    }

    /// Returns a record with this plaintext.
    pub(crate) fn seal(&mut self, plaintext: &[u8]) -> Vec<u8> {
        self.sending.seal(APPLICATION_DATA, plaintext)
    }

    /// Takes bytes from the front until a record with content is complete; returns `None` if none
    /// is. A record that begins is opened if `is_wanted`.
    pub(crate) fn next(
        &mut self,
        bytes: &mut &[u8],
        is_wanted: bool,
    ) -> Result<Option<Content<'_>>> {
        loop {
            if self.missing == 0 {
                // The previous record is complete.
                if self.record.len() >= HEADER_BYTES {
                    self.record.clear();
                }
                let header = HEADER_BYTES - self.record.len();
                self.record.extend_from_slice(split_off(bytes, header));
                if self.record.len() < HEADER_BYTES {
                    return Ok(None);
                }
                self.record_bytes = record_bytes(&self.record)?;
                self.missing = self.record_bytes;
                self.is_counted =
                    !is_wanted && self.record_bytes > SHORT_BYTES_MAX + OVERHEAD_BYTES;
            }
            let some = split_off(bytes, self.missing);
            self.missing -= some.len();
            if !self.is_counted {
                self.record.extend_from_slice(some);
            }
            if self.missing > 0 {
                return Ok(None);
            }
            if self.is_counted {
                self.receiving.number += 1;
                return Ok(Some(Content::Counted(self.record_bytes - OVERHEAD_BYTES)));
            }
            let len = self.open()?;
            if len > 0 {
                let content = &self.record[HEADER_BYTES..HEADER_BYTES + len];
                return Ok(Some(Content::Opened(content)));
            }
        }
    }

    /// Opens the record. Returns the length of its content, which is 0 for a ticket.
    fn open(&mut self) -> Result<usize> {
        let number = self.receiving.number;
        let (content_type, content) = self.receiving.open(&mut self.record)?;
        match (content_type, content) {
            (APPLICATION_DATA, content) => Ok(content.len()),
            (HANDSHAKE, [NEW_SESSION_TICKET, ..]) => Ok(0),
            (ALERT, content) => Err(Failure::new(format!(
                "the server has sent an alert: {content:?} (RFC 8446 §6)"
            ))),
            (other, content) => Err(Failure::new(format!(
                "record {number} is of type {other} and begins with {:?}, which was not expected",
                &content[..content.len().min(4)]
            ))),
        }
    }
}

/// Takes up to `len` bytes from the front.
fn split_off<'a>(bytes: &mut &'a [u8], len: usize) -> &'a [u8] {
    let (some, rest) = bytes.split_at(len.min(bytes.len()));
    *bytes = rest;
    some
}

/// Returns the length of a record after its header.
fn record_bytes(header: &[u8]) -> Result<usize> {
    if let [APPLICATION_DATA, 3, 3, high, low] = *header {
        let bytes = usize::from(u16::from_be_bytes([high, low]));
        if (OVERHEAD_BYTES..=RECORD_BYTES_MAX).contains(&bytes) {
            return Ok(bytes);
        }
    }
    Err(Failure::new(format!(
        "{header:?} is not the header of a sealed record"
    )))
}

/// A key of one direction, and the number of its next record.
#[derive(Debug)]
struct Key {
    key: LessSafeKey,
    iv: [u8; 12],
    number: u64,
}

impl Key {
    fn new((number, secrets): (u64, ConnectionTrafficSecrets)) -> Result<Key> {
        let ConnectionTrafficSecrets::Aes256Gcm { key, iv } = secrets else {
            return Err(Failure::new("the server has not chosen AES-256-GCM"));
        };
        let iv = iv.as_ref().try_into().expect("12 bytes");
        Ok(Key::of(key.as_ref(), iv, number))
    }

    fn of(key: &[u8], iv: [u8; 12], number: u64) -> Key {
        let key = UnboundKey::new(&AES_256_GCM, key).expect("the length of its kind");
        Key {
            key: LessSafeKey::new(key),
            iv,
            number,
        }
    }

    /// Returns the next nonce (RFC 8446 §5.3).
    fn next_nonce(&mut self) -> Nonce {
        let mut nonce = self.iv;
        for (byte, number) in nonce[4..].iter_mut().zip(self.number.to_be_bytes()) {
            *byte ^= number;
        }
        self.number += 1;
        Nonce::assume_unique_for_key(nonce)
    }

    fn seal(&mut self, content_type: u8, plaintext: &[u8]) -> Vec<u8> {
        let bytes = (plaintext.len() + OVERHEAD_BYTES) as u16;
        let [high, low] = bytes.to_be_bytes();
        let header = [APPLICATION_DATA, 3, 3, high, low];
        let mut sealed = [plaintext, &[content_type]].concat();
        let nonce = self.next_nonce();
        self.key
            .seal_in_place_append_tag(nonce, Aad::from(header), &mut sealed)
            .expect("the length of a record");
        [&header[..], &sealed].concat()
    }

    /// Opens a record in place. Returns its inner type, and its content.
    fn open<'a>(&mut self, record: &'a mut [u8]) -> Result<(u8, &'a [u8])> {
        let number = self.number;
        let nonce = self.next_nonce();
        let (header, sealed) = record.split_at_mut(HEADER_BYTES);
        let inner = self
            .key
            .open_in_place(nonce, Aad::from(&*header), sealed)
            .map_err(|_| Failure::new(format!("record {number} has a wrong tag")))?;
        // Padding may follow the type.
        let last = inner.iter().rposition(|byte| *byte != 0);
        let last = last.ok_or_else(|| Failure::new(format!("record {number} has no type")))?;
        Ok((inner[last], &inner[..last]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: [u8; 32] = [3; 32];

    fn key() -> Key {
        Key::of(&KEY, [5; 12], 7)
    }

    /// Receives these bytes in pieces of this length, with only `wanted` records opened: returns
    /// the opened bytes, and the number of bytes counted.
    fn received(
        bytes: &[u8],
        piece: usize,
        wanted: impl Fn(usize) -> bool,
    ) -> Result<(Vec<u8>, usize)> {
        let mut session = Session::new(key(), key());
        let (mut opened, mut counted, mut records) = (Vec::new(), 0, 0);
        for mut piece in bytes.chunks(piece) {
            while let Some(content) = session.next(&mut piece, wanted(records))? {
                match content {
                    Content::Opened(bytes) => opened.extend_from_slice(bytes),
                    Content::Counted(bytes) => counted += bytes,
                }
                records += 1;
            }
        }
        Ok((opened, counted))
    }

    fn sealed(contents: &[(u8, Vec<u8>)]) -> Vec<u8> {
        let mut key = key();
        let records = contents.iter();
        records
            .flat_map(|(content_type, content)| key.seal(*content_type, content))
            .collect()
    }

    #[test]
    fn records_are_opened_or_counted_however_they_come() {
        let contents = [
            (APPLICATION_DATA, vec![1; 1000]),
            (HANDSHAKE, vec![NEW_SESSION_TICKET; 300]),
            (APPLICATION_DATA, vec![2; 1 << 14]),
            (APPLICATION_DATA, vec![3; 20]),
            (APPLICATION_DATA, vec![4; 5000]),
        ];
        let bytes = sealed(&contents);
        for piece in [1, 2, 7, 4096, 1 << 20] {
            let all = received(&bytes, piece, |_| true).unwrap();
            let expected = [vec![1; 1000], vec![2; 1 << 14], vec![3; 20], vec![4; 5000]];
            assert!(all == (expected.concat(), 0), "{piece}");
            let few = received(&bytes, piece, |record| record == 0).unwrap();
            let expected = [vec![1; 1000], vec![3; 20]].concat();
            assert_eq!(few, (expected, (1 << 14) + 5000), "{piece}");
        }
    }

    #[test]
    fn what_is_no_content_is_noticed_though_it_is_not_compared() {
        let count_all = |bytes: &[u8]| received(bytes, 1 << 20, |_| false).unwrap_err().to_string();
        let after_content = |what| sealed(&[(APPLICATION_DATA, vec![1; 5000]), what]);
        // close_notify, and KeyUpdate.
        assert!(count_all(&after_content((ALERT, vec![1, 0]))).contains("alert"));
        assert!(count_all(&after_content((HANDSHAKE, vec![24, 0, 0, 1, 0]))).contains("type 22"));
        let mut changed = after_content((APPLICATION_DATA, vec![1; 30]));
        *changed.last_mut().unwrap() ^= 1;
        assert!(count_all(&changed).contains("wrong tag"));
        assert!(count_all(b"HTTP/1.1 400 Bad Request\r\n").contains("header"));
        assert!(count_all(&[23, 3, 3, 0x7f, 0]).contains("header"));
    }
}
