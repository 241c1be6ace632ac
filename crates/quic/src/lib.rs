//! QUIC on the host: connections, decisions and packet numbers, without content.
//!
//! Sans-IO. The caller gives an [`Endpoint`] datagrams and the time, and carries out its
//! [`Output`]s. Packets of the handshake come out sealed. A 1-RTT packet (RFC 9000 §17.3.1) comes
//! out *described*: its header, its number, its key's generation, and its plaintext as segments, of
//! which some are ranges of files that only the NIC stack can read. The NIC stack reads them, seals
//! the packet, protects its header and sends it.
//!
//! Packet numbers, loss detection, flow control and streams are quinn-proto's, unmodified. The
//! engine writes *placeholders* on quinn-proto's streams, and finds them again in the plaintext
//! that quinn-proto passes to its packet keys (`extents`, `recorder`). The host cannot seal a 1-RTT
//! packet, so no placeholder leaves under a valid tag; and a packet that does not parse to its last
//! byte closes the connection.
//!
//! | A reader who looks for | finds it in |
//! |---|---|
//! | the endpoint and its connections; all that names quinn | `engine/` |
//! | inputs and outputs | `types` |
//! | ... outputs as commands of the contract | `commands` |
//! | settings and bounds | `config` |
//! | the secret that outlives an endpoint | `secret` |
//! | placeholders, and which range of which file each stands for | `extents` |
//! | packets as descriptions | `recorder` |
//! | the frames of a packet | `frames` |
//! | received data that was not read | `received` |
//! | what a connection does, packet by packet | `trace` |
//!
//! Begin with [`Endpoint`].
#![forbid(unsafe_code)]

mod commands;
mod config;
mod engine;
mod extents;
mod frames;
mod received;
mod recorder;
mod secret;
mod trace;
mod types;

pub use commands::Framing;
pub use config::{AeadLimits, Crypto, Limits, PreferredAddress, Settings};
pub use engine::Endpoint;
pub use secret::Secret;
pub use trace::{
    CongestionState, Metrics, PacketType, TraceEvent, Traced, TracedFrame, TracedPacket,
};
pub use types::{
    Arrival, CloseReason, Ecn, Event, EventKind, FileRange, Handle, Opened, Output, Packet, Read,
    Route, SealKey, Segment, Send, StreamError, StreamId,
};
