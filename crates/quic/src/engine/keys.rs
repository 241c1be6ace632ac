//! Keys as the engine's QUIC calls them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::BytesMut;
use contract::tls::TAG_BYTES;
use quinn_proto::crypto::{CryptoError, HeaderKey, KeyPair, Keys, PacketKey};
use rustls::quic;

use crate::recorder::Recorder;
use crate::types::SealKey;

/// A recorder that a connection's keys and its endpoint share. Both are used by one thread.
#[derive(Clone, Debug, Default)]
pub(super) struct Shared(Arc<Mutex<Recorder>>);

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, Recorder> {
        // A panic ends the process; what it leaves behind is not read.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A packet key of rustls: of the handshake, or of what the peer sends.
pub(super) struct RustlsPacketKey(Box<dyn quic::PacketKey>);

impl PacketKey for RustlsPacketKey {
    fn encrypt(&self, number: u64, packet: &mut [u8], header_bytes: usize) {
        let plaintext_end = packet.len() - TAG_BYTES;
        let (header, payload) = packet.split_at_mut(header_bytes);
        let (plaintext, tag) = payload.split_at_mut(plaintext_end - header_bytes);
        let sealed = self.0.encrypt_in_place(number, header, plaintext);
        // A packet is far from the length that a cipher refuses. If it did, what leaves must not be
        // the plaintext.
        match sealed {
            Ok(sealed) => tag.copy_from_slice(sealed.as_ref()),
            Err(_) => payload.fill(0),
        }
    }

    fn decrypt(
        &self,
        number: u64,
        header: &[u8],
        payload: &mut BytesMut,
    ) -> Result<(), CryptoError> {
        let opened = self.0.decrypt_in_place(number, header, payload);
        let len = opened.map_err(|_| CryptoError)?.len();
        payload.truncate(len);
        Ok(())
    }

    fn tag_len(&self) -> usize {
        TAG_BYTES
    }

    fn confidentiality_limit(&self) -> u64 {
        self.0.confidentiality_limit()
    }

    fn integrity_limit(&self) -> u64 {
        self.0.integrity_limit()
    }
}

/// A key of header protection of rustls.
pub(super) struct RustlsHeaderKey(Box<dyn quic::HeaderProtectionKey>);

impl RustlsHeaderKey {
    /// Calls `apply` with the sample, the first byte and the packet number, which may be shorter
    /// (RFC 9001 §5.4.2).
    fn apply(
        packet: &mut [u8],
        number_at: usize,
        sample_bytes: usize,
        apply: impl FnOnce(&[u8], &mut u8, &mut [u8]) -> Result<(), rustls::Error>,
    ) {
        let Some((head, rest)) = packet.split_at_mut_checked(number_at + 4) else {
            return;
        };
        let Some(sample) = rest.get(..sample_bytes) else {
            return;
        };
        let (first, rest) = head.split_at_mut(1);
        let number = &mut rest[number_at - 1..];
        // Sample and number have the lengths that it wants: it does not fail.
        let applied = apply(sample, &mut first[0], number);
        debug_assert!(applied.is_ok());
    }
}

impl HeaderKey for RustlsHeaderKey {
    fn decrypt(&self, number_at: usize, packet: &mut [u8]) {
        let key = &self.0;
        Self::apply(
            packet,
            number_at,
            key.sample_len(),
            |sample, first, number| key.decrypt_in_place(sample, first, number),
        );
    }

    fn encrypt(&self, number_at: usize, packet: &mut [u8]) {
        let key = &self.0;
        Self::apply(
            packet,
            number_at,
            key.sample_len(),
            |sample, first, number| key.encrypt_in_place(sample, first, number),
        );
    }

    fn sample_size(&self) -> usize {
        self.0.sample_len()
    }
}

/// The key of 1-RTT packets that this side sends: it describes them. No such packet is sealed here,
/// so that no placeholder can leave under a valid tag.
pub(super) struct DescribingKey {
    pub(super) key: Arc<SealKey>,
    pub(super) confidentiality_limit: u64,
    pub(super) integrity_limit: u64,
    pub(super) recorder: Shared,
}

impl PacketKey for DescribingKey {
    fn encrypt(&self, number: u64, packet: &mut [u8], header_bytes: usize) {
        let mut recorder = self.recorder.lock();
        recorder.on_plaintext(&self.key, number, packet, header_bytes);
    }

    /// It opens nothing: the peer has a key of its own.
    fn decrypt(&self, _: u64, _: &[u8], _: &mut BytesMut) -> Result<(), CryptoError> {
        Err(CryptoError)
    }

    fn tag_len(&self) -> usize {
        TAG_BYTES
    }

    fn confidentiality_limit(&self) -> u64 {
        self.confidentiality_limit
    }

    fn integrity_limit(&self) -> u64 {
        self.integrity_limit
    }
}

/// Header protection of 1-RTT packets that this side sends: the NIC stack's work.
pub(super) struct Unprotected {
    pub(super) sample_bytes: usize,
}

impl HeaderKey for Unprotected {
    fn decrypt(&self, _: usize, _: &mut [u8]) {}

    fn encrypt(&self, _: usize, _: &mut [u8]) {}

    fn sample_size(&self) -> usize {
        self.sample_bytes
    }
}

pub(super) fn packet(key: Box<dyn quic::PacketKey>) -> Box<dyn PacketKey> {
    Box::new(RustlsPacketKey(key))
}

pub(super) fn header(key: Box<dyn quic::HeaderProtectionKey>) -> Box<dyn HeaderKey> {
    Box::new(RustlsHeaderKey(key))
}

/// Keys of the handshake.
pub(super) fn of_handshake(keys: quic::Keys) -> Keys {
    Keys {
        header: KeyPair {
            local: header(keys.local.header),
            remote: header(keys.remote.header),
        },
        packet: KeyPair {
            local: packet(keys.local.packet),
            remote: packet(keys.remote.packet),
        },
    }
}
