//! QUIC on the host: connections, decisions and packet numbers, without content.
//!
//! Sans-IO. An [`Endpoint`] is given datagrams and the time, and says what is to be done
//! ([`Output`]). Packets of the handshake come out sealed. A 1-RTT packet (RFC 9000 §17.3.1) comes
//! out *described*: its header, its number, its key's generation, and its plaintext as segments,
//! of which some are ranges of files that only the NIC stack can read. The NIC stack reads them,
//! seals the packet, protects its header and sends it.
//!
//! Numbers, loss detection, flow control and streams are quinn-proto's, unmodified: the engine
//! writes *placeholders* on its streams, and its keys see the plaintext of each packet and find
//! them there (`extents`, `recorder`). The host has no means to seal a 1-RTT packet, so that no
//! placeholder leaves under a valid tag; and a packet that is not understood to its last byte
//! closes the connection.
//!
//! | A reader who looks for | finds it in |
//! |---|---|
//! | the endpoint and its connections; all that names quinn | `engine/` |
//! | what goes in and out | `types` |
//! | ... and what goes out as commands of the contract | `commands` |
//! | settings and bounds | `config` |
//! | placeholders, and which range of which file each stands for | `extents` |
//! | packets as descriptions | `recorder` |
//! | the frames of a packet | `frames` |
//! | what a connection does, packet by packet, for those who look into it | `trace` |
//!
//! Begin with [`Endpoint`].
#![forbid(unsafe_code)]

mod commands;
mod config;
mod engine;
mod extents;
mod frames;
mod recorder;
mod trace;
mod types;

pub use commands::Framing;
pub use config::{AeadLimits, Crypto, Limits, PreferredAddress, Settings};
pub use engine::Endpoint;
pub use trace::{
    CongestionState, Metrics, PacketType, TraceEvent, Traced, TracedFrame, TracedPacket,
};
pub use types::{
    Arrival, CloseReason, Ecn, Event, EventKind, FileRange, Handle, Opened, Output, Packet, Read,
    Route, SealKey, Segment, Send, StreamError, StreamId,
};
