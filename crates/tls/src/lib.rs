//! TLS on the host: handshakes, records from clients, and the framing of plaintext into records
//! that the NIC stack seals.
//!
//! Sans-IO: it is given bytes and the time, and returns bytes, keys and runs of records. The
//! handshake is done by rustls, the cryptography by aws-lc. Nothing here seals a record: after the
//! handshake, all that a [`Connection`] sends is described by [`Run`]s, whose plaintext may be
//! ranges of objects that the host never sees.
//!
//! Begin with [`Connection`]. [`Certificates`] authenticate the server, [`Config`] is shared by a
//! listener's connections.
#![forbid(unsafe_code)]

mod certificates;
mod config;
mod connection;
mod content_type;
mod error;
mod framing;
mod handshake;
mod hello;
mod identity;
mod key;
mod ledger;
mod opener;
mod plain_http;
mod run;
mod traffic_secrets;

pub use certificates::{
    CertificateError, Certificates, Checking, Examined, Files, Problem, Standing, Validity,
};
pub use config::{Config, Limits, Settings};
pub use connection::{Connection, Event, Transmit};
pub use content_type::ContentType;
pub use contract::limits::RECORD_PLAINTEXT_BYTES_MAX;
pub use contract::tls::{Cipher, RECORD_HEADER_BYTES, Suite, TAG_BYTES, Tag, Version};
pub use error::Error;
pub use handshake::Agreed;
pub use identity::Identity;
pub use key::Key;
pub use ledger::{Definition, Known, SealedError};
pub use run::{Piece, Run, RunLimits};
pub use rustls::{AlertDescription, KeyLog};
