//! Keys behind quinn-proto's interface.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::BytesMut;
use contract::tls::TAG_BYTES;
use quinn_proto::crypto::{CryptoError, HeaderKey, KeyPair, Keys, PacketKey};
use rustls::quic;

use crate::recorder::Recorder;
use crate::trace::PacketType;
use crate::types::SealKey;

/// A recorder that a connection's keys and its endpoint share, on one thread.
#[derive(Clone, Debug, Default)]
pub(super) struct Shared(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    recorder: Mutex<Recorder>,
    /// The connection is traced; keys check this first.
    is_traced: AtomicBool,
    /// A Handshake packet of the peer was opened.
    has_opened_handshake: AtomicBool,
    /// The peer's ClientHello is answered.
    has_answered_hello: AtomicBool,
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, Recorder> {
        // A panic ends the process, so poisoned state is never read.
        let recorder = &self.0.recorder;
        recorder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_traced(&self) -> bool {
        self.0.is_traced.load(Ordering::Relaxed)
    }

    /// True if a Handshake packet of the peer was opened: its address is validated (RFC 9000 §8.1).
    pub(super) fn has_opened_handshake(&self) -> bool {
        self.0.has_opened_handshake.load(Ordering::Relaxed)
    }

    /// The peer's ClientHello is answered: nothing else that it sends costs a signature.
    pub(super) fn has_answered_hello(&self) -> bool {
        self.0.has_answered_hello.load(Ordering::Relaxed)
    }

    pub(super) fn on_hello_answered(&self) {
        self.0.has_answered_hello.store(true, Ordering::Relaxed);
    }

    /// Starts a trace. `is_new`: the connection has sent nothing yet.
    pub(super) fn begin_trace(&self, is_new: bool) {
        self.lock().begin_trace(is_new);
        self.0.is_traced.store(true, Ordering::Relaxed);
    }

    pub(super) fn end_trace(&self) {
        self.0.is_traced.store(false, Ordering::Relaxed);
        self.lock().end_trace();
    }

    /// Continues the trace of `other`, if it has one.
    pub(super) fn take_trace(&self, other: &Self) {
        if other.is_traced()
            && let Some(trace) = other.lock().end_trace()
        {
            other.0.is_traced.store(false, Ordering::Relaxed);
            self.lock().adopt_trace(trace);
            self.0.is_traced.store(true, Ordering::Relaxed);
        }
    }
}

/// A packet key of rustls: of the handshake, or for the peer's packets.
pub(super) struct RustlsPacketKey {
    key: Box<dyn quic::PacketKey>,
    packet_type: PacketType,
    /// Where packets are traced.
    recorder: Shared,
}

impl PacketKey for RustlsPacketKey {
    fn encrypt(&self, number: u64, packet: &mut [u8], header_bytes: usize) {
        let plaintext_end = packet.len() - TAG_BYTES;
        if self.recorder.is_traced()
            && let Some(trace) = self.recorder.lock().trace()
        {
            let plaintext = &packet[header_bytes..plaintext_end];
            trace.on_sent((self.packet_type, number), packet.len(), plaintext);
        }
        let (header, payload) = packet.split_at_mut(header_bytes);
        let (plaintext, tag) = payload.split_at_mut(plaintext_end - header_bytes);
        let sealed = self.key.encrypt_in_place(number, header, plaintext);
        // A packet is far from the length that a cipher refuses. If sealing failed, the plaintext
        // must not leave.
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
        let bytes = header.len() + payload.len();
        let opened = self.key.decrypt_in_place(number, header, payload);
        let len = opened.map_err(|_| CryptoError)?.len();
        payload.truncate(len);
        match self.packet_type {
            PacketType::Handshake => {
                let has_opened = &self.recorder.0.has_opened_handshake;
                has_opened.store(true, Ordering::Relaxed);
            }
            PacketType::ZeroRtt => self.recorder.lock().on_opened(number),
            PacketType::Initial | PacketType::OneRtt => {}
        }
        if self.recorder.is_traced()
            && let Some(trace) = self.recorder.lock().trace()
        {
            trace.on_received((self.packet_type, number), bytes, payload);
        }
        Ok(())
    }

    fn tag_len(&self) -> usize {
        TAG_BYTES
    }

    fn confidentiality_limit(&self) -> u64 {
        self.key.confidentiality_limit()
    }

    fn integrity_limit(&self) -> u64 {
        self.key.integrity_limit()
    }
}

/// A header protection key of rustls.
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
        // Sample and number have the required lengths, so this does not fail.
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

/// The key of 1-RTT packets that the peer sends. Packets that a NIC stack has opened are plaintext
/// already, and have a [`Mark`](crate::recorder::Mark).
pub(super) struct OpeningKey {
    key: RustlsPacketKey,
    generation: u32,
}

impl OpeningKey {
    pub(super) fn boxed(
        key: Box<dyn quic::PacketKey>,
        generation: u32,
        recorder: Shared,
    ) -> Box<dyn PacketKey> {
        Box::new(Self {
            key: RustlsPacketKey {
                key,
                packet_type: PacketType::OneRtt,
                recorder,
            },
            generation,
        })
    }

    /// Opens a marked packet.
    fn take_opened(
        &self,
        number: u64,
        header: &[u8],
        payload: &mut BytesMut,
    ) -> Result<(), CryptoError> {
        let bytes = header.len() + payload.len();
        let mut recorder = self.key.recorder.lock();
        let mark = recorder.open_marked(self.generation, number);
        let mark = mark.ok_or(CryptoError)?;
        payload.truncate(mark.plaintext_bytes);
        recorder.on_received_plaintext(payload);
        if let Some(trace) = recorder.trace() {
            let plaintext = if mark.is_bare { &[] } else { &payload[..] };
            trace.on_received((PacketType::OneRtt, number), bytes, plaintext);
        }
        Ok(())
    }
}

impl PacketKey for OpeningKey {
    /// Seals nothing: this side has its own key.
    fn encrypt(&self, _: u64, packet: &mut [u8], _: usize) {
        packet.fill(0);
    }

    fn decrypt(
        &self,
        number: u64,
        header: &[u8],
        payload: &mut BytesMut,
    ) -> Result<(), CryptoError> {
        let recorder = &self.key.recorder;
        if recorder.lock().is_marked() {
            return self.take_opened(number, header, payload);
        }
        self.key.decrypt(number, header, payload)?;
        let mut recorder = recorder.lock();
        recorder.on_opened(number);
        recorder.on_received_plaintext(payload);
        Ok(())
    }

    fn tag_len(&self) -> usize {
        TAG_BYTES
    }

    fn confidentiality_limit(&self) -> u64 {
        self.key.confidentiality_limit()
    }

    fn integrity_limit(&self) -> u64 {
        self.key.integrity_limit()
    }
}

/// Header protection of 1-RTT packets that the peer sends. A NIC stack has already removed it from
/// those that it opened.
pub(super) struct OpeningHeaderKey {
    key: RustlsHeaderKey,
    recorder: Shared,
}

impl OpeningHeaderKey {
    pub(super) fn boxed(
        key: Box<dyn quic::HeaderProtectionKey>,
        recorder: Shared,
    ) -> Box<dyn HeaderKey> {
        let key = RustlsHeaderKey(key);
        Box::new(Self { key, recorder })
    }
}

impl HeaderKey for OpeningHeaderKey {
    fn decrypt(&self, number_at: usize, packet: &mut [u8]) {
        if !self.recorder.lock().is_marked() {
            self.key.decrypt(number_at, packet);
        }
    }

    fn encrypt(&self, _: usize, _: &mut [u8]) {}

    fn sample_size(&self) -> usize {
        self.key.sample_size()
    }
}

/// The key of 1-RTT packets that this side sends: it describes them. It seals none, so no
/// placeholder can leave under a valid tag.
pub(super) struct DescribingKey {
    pub(super) key: Arc<SealKey>,
    pub(super) integrity_limit: u64,
    pub(super) recorder: Shared,
}

impl PacketKey for DescribingKey {
    fn encrypt(&self, number: u64, packet: &mut [u8], header_bytes: usize) {
        let mut recorder = self.recorder.lock();
        recorder.on_plaintext(&self.key, number, packet, header_bytes);
    }

    /// Opens nothing: the peer has its own key.
    fn decrypt(&self, _: u64, _: &[u8], _: &mut BytesMut) -> Result<(), CryptoError> {
        Err(CryptoError)
    }

    fn tag_len(&self) -> usize {
        TAG_BYTES
    }

    fn confidentiality_limit(&self) -> u64 {
        self.key.packets_max
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

/// A key for packets of a type; `recorder` traces them if the connection is traced.
pub(super) fn packet(
    key: Box<dyn quic::PacketKey>,
    packet_type: PacketType,
    recorder: &Shared,
) -> Box<dyn PacketKey> {
    Box::new(RustlsPacketKey {
        key,
        packet_type,
        recorder: recorder.clone(),
    })
}

pub(super) fn header(key: Box<dyn quic::HeaderProtectionKey>) -> Box<dyn HeaderKey> {
    Box::new(RustlsHeaderKey(key))
}

/// Keys of the handshake.
pub(super) fn of_handshake(keys: quic::Keys, packet_type: PacketType, recorder: &Shared) -> Keys {
    Keys {
        header: KeyPair {
            local: header(keys.local.header),
            remote: header(keys.remote.header),
        },
        packet: KeyPair {
            local: packet(keys.local.packet, packet_type, recorder),
            remote: packet(keys.remote.packet, packet_type, recorder),
        },
    }
}
