//! The contract between the host stack and the NIC stack.
//!
//! The host stack sends [`Command`]s, the NIC stack answers with [`Event`]s. Both cross as
//! little-endian records of fixed size, followed by their variable part, through one ring in each
//! direction ([`channel`]). Each side treats its input as untrusted: a record that does not decode
//! is an error value, never a panic.
//!
//! | Module | Contents |
//! |---|---|
//! | [`ids`] | names that cross the split |
//! | [`command`] | host to NIC: OPEN, OPENPASSED, LIST, CLOS, SEND, ACKD, KEY, KEYGONE, RECORDS, |
//! | ... | FRAME, PART, PARTGONE, SPLICE, SPLICEMSS, UNSPLICE, SETUP, |
//! | ... | QKEY, QKEYGONE, QSEND, PREPARE, QRELEASE, QRXKEY, QCID, QRXKEYGONE |
//! | `file`, [`segment`] | versions of files; parts of a payload |
//! | [`event`] | NIC to host: opened, open failed, listed, departed, read failed, sealed, |
//! | ... | seal mismatch, rejected, ended, load, frame, part refused, part ended, |
//! | ... | splice refused, splice progress, splice ended, unspliced, setup ready, ready |
//! | [`listing`] | directory listings: the answer to LIST |
//! | [`tls`] | keys and records of TLS: KEY and RECORDS |
//! | [`parting`] | connections whose end the NIC stack runs: PART |
//! | [`splicing`] | two connections that the NIC stack joins: SPLICE |
//! | [`setup`] | listeners whose SYNs the NIC stack answers: SETUP |
//! | [`quic`] | packets of QUIC connections that the NIC stack seals, and opens |
//! | [`limits`] | bounds that both sides rely on |
//! | [`codec`] | commands and events as bytes: those of QUIC in its `quic` and `quic_receive` |
//! | [`channel`] | a command ring, an event ring and their wake-ups |
//! | [`control`] | the hello over a Unix socket that sets channels up |
//! | [`ethernet`] | commands and events in frames, for a NIC stack on another machine |
//!
//! ```
//! use contract::{Command, Event, FileId, Growth, channel};
//!
//! let (mut host, mut nic) = channel::in_memory();
//! let open = Command::Open {
//!     file: FileId(1),
//!     growth: Growth::Forbidden,
//!     path: b"movie.mp4",
//! };
//! host.send(&open).expect("an empty ring has room");
//! host.flush();
//!
//! assert_eq!(nic.receive(), Ok(Some(open)));
//! let answer = Event::OpenFailed { file: FileId(1), errno: 2 };
//! nic.send(&answer).expect("an empty ring has room");
//! nic.flush();
//!
//! assert_eq!(host.receive(), Ok(Some(answer)));
//! ```
//!
//! This room may touch its arguments and a ring's shared memory; it knows no policy and no clock.
#![cfg_attr(not(test), forbid(unsafe_code))]

pub mod channel;
pub mod codec;
pub mod command;
pub mod control;
pub mod ethernet;
pub mod event;
pub mod file;
pub mod ids;
pub mod limits;
pub mod listing;
pub mod parting;
pub mod quic;
pub mod segment;
pub mod setup;
pub mod splicing;
pub mod tls;

pub use command::{Command, Send};
pub use event::{Event, RejectReason};
pub use file::{FileMeta, Growth};
pub use ids::{FileId, FlowId, PassedId, SendId};
pub use listing::{Entries, Entry, EntryKind};
pub use parting::Part;
pub use segment::{Segment, Segments};
pub use setup::Setup;
pub use splicing::Splice;
