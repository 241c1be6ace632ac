//! How two machines meet: a handshake of two frames, and the first frame of the session.
//!
//! 1. The host stack sends HELLO: its versions, the size of frames that it takes, a fresh X25519
//!    key, and the time, authenticated with the shared key. It is padded to that size: a HELLO that
//!    arrives has proved that the link carries such frames.
//! 2. The NIC stack answers with the version, a fresh key of its own, and its [`Terms`], sealed
//!    with a key derived from the shared key, both fresh keys and the HELLO. The answer is padded
//!    likewise.
//! 3. The first sealed frame of the host proves that the HELLO was not a recorded one. Only then
//!    does the NIC stack give up the session that it has.
//!
//! Recorded HELLOs keep no host out, however many an attacker replays: the NIC stack remembers few,
//! and those that began last, among which the host's own always is. The clock has no other use: a
//! host whose clock has gone back is accepted as well, unless an attacker replays recordings at the
//! same time.
//!
//! An attacker who gets the shared key only later cannot read recorded sessions (it is Noise's
//! NNpsk0 in spirit). An unacceptable HELLO is answered with a REFUSAL, which nothing
//! authenticates, since the two sides may have no key in common: a host stack takes it for a hint
//! and keeps trying.

use std::fmt;

use aws_lc_rs::agreement::{PrivateKey, UnparsedPublicKey, X25519, agree};
use aws_lc_rs::{digest, hmac};
use zerocopy::{FromBytes, IntoBytes};
use zeroize::Zeroizing;

use super::frame::{
    ANSWER, AnswerHeader, AnswerTerms, EPHEMERAL_BYTES, FRAME_BYTES_MAX, FRAME_BYTES_MIN, HELLO,
    Head, Hello, MAC_BYTES, MAGIC, REFUSAL, Refusal, SealedHeader, VERSIONS, sealed_header,
    unpadded,
};
use super::key::{KEY_BYTES, PreSharedKey, expand};
use super::seal::SealKey;
use super::session::{Agreed, Session};
use crate::limits::{VERSION, WORKERS_MAX};

/// Answers that wait for their host's first frame, to the HELLOs that began last.
const PENDING_MAX: usize = 8;

/// Properties of the NIC stack's machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Workers of the NIC stack.
    pub workers: u16,
    /// Size of frames, in bytes after the Ethernet header, [`FRAME_BYTES_MIN`] to
    /// [`FRAME_BYTES_MAX`]: the maximum of the NIC stack's machine; in a session, of both.
    pub frame_bytes: u16,
    /// Largest IP packet on the link that data leaves on, in bytes.
    pub mtu: u32,
    /// The Ethernet source address of all data, which overrides that of SENDs; `None`: SENDs keep
    /// theirs. A switch that learns addresses would otherwise send the host's packets to the NIC
    /// stack.
    pub source_mac: Option<[u8; 6]>,
}

/// Why a NIC stack refuses a HELLO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Reason {
    /// No version in common.
    Version = 1,
    /// Another key.
    Key = 2,
    /// Another host stack is being served.
    Busy = 3,
}

/// Reason for the failure of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandshakeError {
    /// The two have no version in common.
    Version {
        /// Lowest and highest version of the peer's transport.
        transport: (u8, u8),
        /// Its version of the contract.
        contract: u16,
    },
    /// The two have different keys.
    Key,
    /// The NIC stack serves another host stack.
    Busy,
    /// The frame is no frame of a handshake, or not of this one.
    Malformed,
}

/// The host stack's side: one attempt.
pub struct Initiator {
    key: PreSharedKey,
    /// Taken once there is a session: a second session would have the same keys, and repeat the
    /// numbers of frames.
    private: Option<PrivateKey>,
    hello: Hello,
}

/// The NIC stack's side.
#[derive(Debug)]
pub struct Responder {
    key: PreSharedKey,
    terms: Terms,
    pending: Vec<Pending>,
}

/// A session whose host stack has not spoken yet. Its buffers are not allocated: they would take
/// megabytes.
struct Pending {
    hello: Hello,
    /// Without padding.
    answer: Vec<u8>,
    agreed: Agreed,
    terms: Terms,
}

impl Initiator {
    /// Creates an attempt that offers frames of up to `frame_bytes` after the Ethernet header.
    /// `begun_us` is the time, in microseconds since 1970; `seed` must be random and secret.
    ///
    /// # Panics
    /// If the size is not one of [`FRAME_BYTES_MIN`] to [`FRAME_BYTES_MAX`].
    pub fn new(key: &PreSharedKey, frame_bytes: u16, begun_us: u64, seed: [u8; 32]) -> Initiator {
        assert!((FRAME_BYTES_MIN..=FRAME_BYTES_MAX).contains(&frame_bytes.into()));
        let (private, ephemeral) = key_pair(&seed);
        let mut hello = Hello {
            head: Head::new(HELLO, VERSIONS.0, size_of::<Hello>()),
            magic: MAGIC,
            highest: VERSIONS.1,
            zero: 0,
            contract: VERSION.into(),
            frame_bytes: frame_bytes.into(),
            reserved: [0; 2],
            ephemeral,
            begun_us: begun_us.into(),
            mac: [0; MAC_BYTES],
        };
        let mac = hmac::sign(&hello_key(key), authenticated(&hello));
        hello.mac.copy_from_slice(mac.as_ref());
        Initiator {
            key: key.clone(),
            private: Some(private),
            hello,
        }
    }

    /// Writes the HELLO, to be sent, and repeated until an answer arrives.
    pub fn hello(&self, frame: &mut Vec<u8>) {
        frame.clear();
        frame.extend_from_slice(self.hello.as_bytes());
        frame.resize(self.hello.frame_bytes.get().into(), 0);
    }

    /// Handles a frame; returns the session if the frame is the answer. Ignore
    /// [`HandshakeError::Malformed`], and any error after the answer; another error is the reason
    /// to report if no answer arrives.
    pub fn on_frame(
        &mut self,
        now_us: u64,
        frame: &mut [u8],
    ) -> Result<(Session, Terms), HandshakeError> {
        match (unpadded(frame), &self.private) {
            (Some((ANSWER, frame)), Some(private)) => {
                let met = self.on_answer(now_us, private, frame)?;
                self.private = None;
                Ok(met)
            }
            (Some((REFUSAL, frame)), Some(_)) => Err(self.on_refusal(frame)),
            _ => Err(HandshakeError::Malformed),
        }
    }

    fn on_answer(
        &self,
        now_us: u64,
        private: &PrivateKey,
        frame: &mut [u8],
    ) -> Result<(Session, Terms), HandshakeError> {
        let (header, _) =
            AnswerHeader::read_from_prefix(frame).map_err(|_| HandshakeError::Malformed)?;
        let version = header.head.version;
        if header.hello_mac != self.hello.mac || !(VERSIONS.0..=VERSIONS.1).contains(&version) {
            return Err(HandshakeError::Malformed);
        }
        let keys = Keys::derive(&self.key, private, &header.ephemeral, &self.hello, &header)?;
        let terms = keys
            .answer
            .open(0, frame, size_of::<AnswerHeader>())
            .ok_or(HandshakeError::Key)?;
        let terms = AnswerTerms::read_from_bytes(terms).map_err(|_| HandshakeError::Malformed)?;
        let terms = Terms {
            workers: terms.workers.get(),
            frame_bytes: terms.frame_bytes.get(),
            mtu: terms.mtu.get(),
            source_mac: (terms.has_source_mac != 0).then_some(terms.source_mac),
        };
        let offered = self.hello.frame_bytes.get();
        if !(FRAME_BYTES_MIN as u16..=offered).contains(&terms.frame_bytes)
            || !(1..=WORKERS_MAX).contains(&terms.workers.into())
        {
            return Err(HandshakeError::Malformed);
        }
        let agreed = Agreed {
            session: keys.session,
            version,
            frame_bytes: terms.frame_bytes.into(),
            own_key: keys.host_to_nic,
            peer_key: keys.nic_to_host,
            is_host: true,
        };
        Ok((Session::new(now_us, agreed), terms))
    }

    fn on_refusal(&self, frame: &[u8]) -> HandshakeError {
        let Ok(refusal) = Refusal::read_from_bytes(frame) else {
            return HandshakeError::Malformed;
        };
        if refusal.magic != MAGIC || refusal.ephemeral != self.hello.ephemeral {
            return HandshakeError::Malformed;
        }
        match refusal.reason {
            reason if reason == Reason::Version as u8 => HandshakeError::Version {
                transport: (refusal.lowest, refusal.highest),
                contract: refusal.contract.get(),
            },
            reason if reason == Reason::Key as u8 => HandshakeError::Key,
            reason if reason == Reason::Busy as u8 => HandshakeError::Busy,
            _ => HandshakeError::Malformed,
        }
    }
}

impl Responder {
    /// Creates a side that answers HELLOs with these terms.
    ///
    /// # Panics
    /// If the size of frames is not one of [`FRAME_BYTES_MIN`] to [`FRAME_BYTES_MAX`].
    pub fn new(key: &PreSharedKey, terms: Terms) -> Responder {
        assert!((FRAME_BYTES_MIN..=FRAME_BYTES_MAX).contains(&terms.frame_bytes.into()));
        Responder {
            key: key.clone(),
            terms,
            pending: Vec::new(),
        }
    }

    /// Handles a frame of no session. `seed` must be random, secret and fresh.
    ///
    /// Returns the session if the frame is the host's first of an answered attempt. For a HELLO,
    /// `answer` must be sent back: if the HELLO is refused, it is the refusal, and the error is the
    /// reason.
    pub fn on_frame(
        &mut self,
        now_us: u64,
        frame: &mut [u8],
        seed: [u8; 32],
        answer: &mut Vec<u8>,
    ) -> Result<Option<(Session, Terms)>, HandshakeError> {
        answer.clear();
        if let Some(header) = sealed_header(frame) {
            return Ok(self.confirm(now_us, &header, frame));
        }
        let length = frame.len();
        let hello = match unpadded(frame) {
            Some((HELLO, hello)) => &*hello,
            _ => return Err(HandshakeError::Malformed),
        };
        self.on_hello(hello, length, seed, answer)?;
        Ok(None)
    }

    /// Writes the refusal if the frame is a HELLO.
    pub fn refuse(reason: Reason, frame: &[u8], refusal: &mut Vec<u8>) {
        refusal.clear();
        if let Some((_, ephemeral)) = stable_part(frame) {
            refusal.extend_from_slice(
                Refusal {
                    head: Head::new(REFUSAL, VERSIONS.0, size_of::<Refusal>()),
                    magic: MAGIC,
                    lowest: VERSIONS.0,
                    highest: VERSIONS.1,
                    contract: VERSION.into(),
                    reason: reason as u8,
                    zero: [0; 3],
                    ephemeral,
                }
                .as_bytes(),
            );
        }
    }

    /// True if the frame is a HELLO, of any version.
    pub fn is_hello(frame: &[u8]) -> bool {
        stable_part(frame).is_some()
    }

    fn on_hello(
        &mut self,
        frame: &[u8],
        length: usize,
        seed: [u8; 32],
        answer: &mut Vec<u8>,
    ) -> Result<(), HandshakeError> {
        let (versions, _) = stable_part(frame).ok_or(HandshakeError::Malformed)?;
        let Versions {
            lowest,
            highest,
            contract,
        } = versions;
        if lowest > VERSIONS.1 || highest < VERSIONS.0 || contract != VERSION {
            Self::refuse(Reason::Version, frame, answer);
            return Err(HandshakeError::Version {
                transport: (lowest, highest),
                contract,
            });
        }
        let hello = Hello::read_from_bytes(frame).map_err(|_| HandshakeError::Malformed)?;
        let offered = usize::from(hello.frame_bytes);
        if !(FRAME_BYTES_MIN..=FRAME_BYTES_MAX).contains(&offered) || length < offered {
            return Err(HandshakeError::Malformed);
        }
        if hmac::verify(&hello_key(&self.key), authenticated(&hello), &hello.mac).is_err() {
            Self::refuse(Reason::Key, frame, answer);
            return Err(HandshakeError::Key);
        }
        let known = |pending: &Pending| pending.hello.mac == hello.mac;
        let at = match self.pending.iter().position(known) {
            Some(at) => at,
            None => {
                if !self.make_room(hello.begun_us.get()) {
                    return Ok(());
                }
                let pending = self.answer(hello, highest.min(VERSIONS.1), seed)?;
                self.pending.push(pending);
                self.pending.len() - 1
            }
        };
        if let Some(pending) = self.pending.get(at) {
            answer.extend_from_slice(&pending.answer);
            answer.resize(pending.terms.frame_bytes.into(), 0);
        }
        Ok(())
    }

    /// Removes the attempt that began first, if there are too many; false if this one began even
    /// earlier.
    fn make_room(&mut self, begun_us: u64) -> bool {
        if self.pending.len() < PENDING_MAX {
            return true;
        }
        let begun = |pending: &Pending| pending.hello.begun_us.get();
        self.pending.sort_by_key(begun);
        let is_later = self
            .pending
            .first()
            .is_none_or(|first| begun(first) <= begun_us);
        if is_later {
            self.pending.remove(0);
        }
        is_later
    }

    fn answer(&self, hello: Hello, version: u8, seed: [u8; 32]) -> Result<Pending, HandshakeError> {
        let (private, ephemeral) = key_pair(&seed);
        let terms = Terms {
            frame_bytes: self.terms.frame_bytes.min(hello.frame_bytes.get()),
            ..self.terms
        };
        let sealed_bytes =
            size_of::<AnswerHeader>() + size_of::<AnswerTerms>() + super::seal::TAG_BYTES;
        let header = AnswerHeader {
            head: Head::new(ANSWER, version, sealed_bytes),
            hello_mac: hello.mac,
            ephemeral,
        };
        let keys = Keys::derive(&self.key, &private, &hello.ephemeral, &hello, &header)?;
        let said = AnswerTerms {
            workers: terms.workers.into(),
            frame_bytes: terms.frame_bytes.into(),
            mtu: terms.mtu.into(),
            source_mac: terms.source_mac.unwrap_or_default(),
            has_source_mac: u8::from(terms.source_mac.is_some()),
            zero: 0,
        };
        let mut answer = Vec::with_capacity(sealed_bytes);
        answer.extend_from_slice(header.as_bytes());
        answer.extend_from_slice(said.as_bytes());
        keys.answer.seal(0, &mut answer, size_of::<AnswerHeader>());
        let agreed = Agreed {
            session: keys.session,
            version,
            frame_bytes: terms.frame_bytes.into(),
            own_key: keys.nic_to_host,
            peer_key: keys.host_to_nic,
            is_host: false,
        };
        Ok(Pending {
            hello,
            answer,
            agreed,
            terms,
        })
    }

    /// Returns the session whose host stack has now spoken.
    fn confirm(
        &mut self,
        now_us: u64,
        header: &SealedHeader,
        frame: &mut [u8],
    ) -> Option<(Session, Terms)> {
        let is_meant = |pending: &Pending| pending.agreed.session == header.session.get();
        let at = self.pending.iter().position(is_meant)?;
        // A session takes megabytes and opens the frame in place, so a copy shows first that the
        // peer has the key.
        let mut copy = Zeroizing::new(frame.to_vec());
        let (_, sealed) = unpadded(&mut copy)?;
        let key = &self.pending.get(at)?.agreed.peer_key;
        key.open(header.number.get(), sealed, size_of::<SealedHeader>())?;
        let Pending { agreed, terms, .. } = self.pending.swap_remove(at);
        // All other attempts are older, or recordings.
        self.pending.clear();
        let mut session = Session::new(now_us, agreed);
        session.on_frame(now_us, frame).ok()?;
        Some((session, terms))
    }
}

/// The keys of a session.
struct Keys {
    session: u64,
    answer: SealKey,
    host_to_nic: SealKey,
    nic_to_host: SealKey,
}

impl Keys {
    /// The error: the peer's key is invalid, as from an attacker who wants to know the result.
    fn derive(
        key: &PreSharedKey,
        private: &PrivateKey,
        peer: &[u8; EPHEMERAL_BYTES],
        hello: &Hello,
        answer: &AnswerHeader,
    ) -> Result<Keys, HandshakeError> {
        let mut transcript = digest::Context::new(&digest::SHA256);
        transcript.update(hello.as_bytes());
        transcript.update(answer.as_bytes());
        let transcript = transcript.finish();
        let peer = UnparsedPublicKey::new(&X25519, peer);
        let secret = agree(private, peer, HandshakeError::Malformed, |agreed| {
            Ok(key.session_secret(agreed))
        })?;
        let expand = |purpose: &[u8]| expand(&secret, purpose, transcript.as_ref());
        let session = expand(b"session");
        let session = session
            .first_chunk()
            .map_or(0, |id| u64::from_le_bytes(*id));
        Ok(Keys {
            session,
            answer: SealKey::new(&expand(b"answer")),
            host_to_nic: SealKey::new(&expand(b"host to nic")),
            nic_to_host: SealKey::new(&expand(b"nic to host")),
        })
    }
}

fn key_pair(seed: &[u8; 32]) -> (PrivateKey, [u8; EPHEMERAL_BYTES]) {
    let private = PrivateKey::from_private_key(&X25519, seed)
        .expect("any 32 bytes are a private key of X25519");
    let public = private.compute_public_key().expect("it has a public key");
    let public = public.as_ref().try_into().expect("of 32 bytes");
    (private, public)
}

fn hello_key(key: &PreSharedKey) -> hmac::Key {
    let key: [u8; KEY_BYTES] = key.hello_key();
    hmac::Key::new(hmac::HMAC_SHA256, &key)
}

/// Returns the part of a HELLO that its MAC covers.
fn authenticated(hello: &Hello) -> &[u8] {
    let bytes = hello.as_bytes();
    &bytes[..bytes.len() - MAC_BYTES]
}

/// The versions in a HELLO.
struct Versions {
    lowest: u8,
    highest: u8,
    contract: u16,
}

/// Returns the part of a HELLO that is the same in all versions: versions and ephemeral key.
fn stable_part(frame: &[u8]) -> Option<(Versions, [u8; EPHEMERAL_BYTES])> {
    let (hello, _) = Hello::read_from_prefix(frame).ok()?;
    if hello.head.kind != HELLO || hello.magic != MAGIC {
        return None;
    }
    let versions = Versions {
        lowest: hello.head.version,
        highest: hello.highest,
        contract: hello.contract.get(),
    };
    Some((versions, hello.ephemeral))
}

impl fmt::Debug for Initiator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Initiator(…)")
    }
}

impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pending({:016x})", self.agreed.session)
    }
}

impl fmt::Display for HandshakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HandshakeError::Version {
                transport: (lowest, highest),
                contract,
            } => write!(
                f,
                "the other machine speaks versions {lowest} to {highest} of the transport and \
                 {contract} of the contract, this one {} to {} and {VERSION}: run the same release \
                 of splitway on both",
                VERSIONS.0, VERSIONS.1
            ),
            HandshakeError::Key => f.write_str(
                "the other machine has another key: copy the key file from one to the other",
            ),
            HandshakeError::Busy => f.write_str(
                "the NIC stack serves another host stack: end that one, or give this one a NIC \
                 stack of its own",
            ),
            HandshakeError::Malformed => f.write_str("a frame that is not one of the handshake"),
        }
    }
}

impl std::error::Error for HandshakeError {}
