//! Frames as bytes, from the end of the Ethernet header on. All integers are little-endian.
//!
//! Every frame begins with a head: its kind, the version of the transport, and its length in bytes
//! without the padding that may follow (Ethernet pads short frames, and the handshake pads long).
//!
//! | Kind | Frame | Follows the head |
//! |---|---|---|
//! | 1 | HELLO of a host stack | magic, versions, size of frames, ephemeral key, time, MAC |
//! | 2 | ANSWER of a NIC stack | MAC of the HELLO, ephemeral key; sealed: terms |
//! | 3 | REFUSAL | magic, versions, why, ephemeral key of the HELLO |
//! | 4 | sealed | session, number; sealed: status and, maybe, a parcel |
//!
//! HELLO up to and with its ephemeral key, and REFUSAL, are the same in all versions, so that
//! stacks of any two versions can exchange them.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::WINDOW;
use super::seal::TAG_BYTES;

/// The EtherType: IEEE 802 Local Experimental 1.
pub const ETHER_TYPE: u16 = 0x88b5;

/// Largest frame, in bytes after the Ethernet header: jumbo frames on the links that have them.
pub const FRAME_BYTES_MAX: usize = 9216;

/// Smallest frame that any link carries, in bytes after the Ethernet header. A HELLO that offers
/// less is malformed.
pub const FRAME_BYTES_MIN: usize = 1280;

/// Lowest and highest version of the transport that this side speaks.
pub(super) const VERSIONS: (u8, u8) = (1, 1);

pub(super) const HELLO: u8 = 1;
pub(super) const ANSWER: u8 = 2;
pub(super) const REFUSAL: u8 = 3;
pub(super) const SEALED: u8 = 4;

pub(super) const MAGIC: [u8; 8] = *b"splitway";

/// Bytes of an X25519 public key.
pub(super) const EPHEMERAL_BYTES: usize = 32;
/// Bytes of HMAC-SHA256.
pub(super) const MAC_BYTES: usize = 32;

/// Declares record types and asserts their size in bytes.
macro_rules! records {
    ($($(#[$doc:meta])* $name:ident: $bytes:literal {
        $($(#[$field_doc:meta])* $field:ident: $type:ty,)*
    })*) => {$(
        $(#[$doc])*
        #[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
        #[repr(C)]
        pub(super) struct $name { $($(#[$field_doc])* pub(super) $field: $type,)* }
        const _: () = assert!(size_of::<$name>() == $bytes, "frames never change within a version");
    )*};
}

records! {
    Head: 4 { kind: u8, version: u8, bytes: U16, }

    Hello: 92 {
        /// Its version is the lowest that the host stack speaks.
        head: Head,
        magic: [u8; 8],
        highest: u8,
        zero: u8,
        contract: U16,
        /// Size of frames that the host stack takes; the HELLO itself is padded to it.
        frame_bytes: U16,
        reserved: [u8; 2],
        ephemeral: [u8; EPHEMERAL_BYTES],
        /// When the attempt began by the host's clock, in microseconds since 1970.
        begun_us: U64,
        mac: [u8; MAC_BYTES],
    }

    AnswerHeader: 68 {
        /// Its version is the one that both speak from now on.
        head: Head,
        hello_mac: [u8; MAC_BYTES],
        ephemeral: [u8; EPHEMERAL_BYTES],
    }

    AnswerTerms: 16 {
        workers: U16,
        frame_bytes: U16,
        mtu: U32,
        source_mac: [u8; 6],
        has_source_mac: u8,
        zero: u8,
    }

    Refusal: 52 {
        head: Head,
        magic: [u8; 8],
        lowest: u8,
        highest: u8,
        contract: U16,
        reason: u8,
        zero: [u8; 3],
        ephemeral: [u8; EPHEMERAL_BYTES],
    }

    /// The beginning of a sealed frame: authenticated, not encrypted.
    SealedHeader: 20 { head: Head, session: U64, number: U64, }

    /// State of the frame's sender.
    Status: 88 {
        /// Its clock, in microseconds.
        sent_us: U64,
        /// `sent_us` of the frame that it has received last, zero if none.
        echo_us: U64,
        /// How long ago that was, in microseconds.
        echo_delay_us: U32,
        flags: u8,
        /// Why it leaves, if it does.
        leaving: u8,
        parcel_bytes: U16,
        /// The highest number of a frame that it has received.
        largest: U64,
        /// All parcels below have arrived.
        expected: U64,
        /// It takes parcels below this.
        credit: U64,
        /// Number of the parcel that follows, if `parcel_bytes` is not zero.
        parcel: U64,
        /// Bit `i` of word `w`: parcel `expected + 1 + 64 w + i` has arrived.
        received: [U64; WINDOW / 64],
    }
}

/// A flag of [`Status`]: requests a frame from the peer.
pub(super) const ANSWER_WANTED: u8 = 1;

/// Bytes of a sealed frame besides its parcel.
pub(super) const OVERHEAD_BYTES: usize =
    size_of::<SealedHeader>() + size_of::<Status>() + TAG_BYTES;

const _: () = assert!(
    size_of::<Hello>() <= FRAME_BYTES_MIN && 4 * OVERHEAD_BYTES <= FRAME_BYTES_MIN,
    "the smallest frame holds a HELLO, and mostly parcel"
);

/// Reason for leaving a session, sent to the other stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Leaving {
    /// Its program ends in order.
    Ended = 1,
    /// The process behind it, host stack or NIC stack, has ended.
    ProcessGone = 2,
    /// The same host stack has begun another session.
    Superseded = 3,
    /// The other side has broken a rule.
    PeerBroken = 4,
    /// The host process has died, and has ended no connection: the NIC stack does.
    HostDied = 5,
}

impl Leaving {
    pub(super) fn from_byte(byte: u8) -> Option<Leaving> {
        use Leaving::*;
        [Ended, ProcessGone, Superseded, PeerBroken, HostDied]
            .into_iter()
            .find(|leaving| *leaving as u8 == byte)
    }
}

impl Head {
    pub(super) fn new(kind: u8, version: u8, bytes: usize) -> Head {
        Head {
            kind,
            version,
            bytes: (bytes as u16).into(),
        }
    }
}

/// Returns the frame without its padding, and its kind; `None` if it is shorter than its head
/// states.
pub(super) fn unpadded(frame: &mut [u8]) -> Option<(u8, &mut [u8])> {
    let (head, _) = Head::read_from_prefix(frame).ok()?;
    let frame = frame.get_mut(..head.bytes.get().into())?;
    (frame.len() >= size_of::<Head>()).then_some((head.kind, frame))
}

/// Session and number of a sealed frame, without padding.
pub(super) fn sealed_header(frame: &[u8]) -> Option<SealedHeader> {
    let (header, _) = SealedHeader::read_from_prefix(frame).ok()?;
    (header.head.kind == SEALED).then_some(header)
}
