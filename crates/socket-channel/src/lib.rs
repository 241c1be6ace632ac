//! Interface between an application and the host stack: sockets in a shared segment of memory, and
//! messages about them.
//!
//! Readiness, bytes and the accept queue are in records and FIFOs of the segment; messages go
//! through two rings for each process. Hints may be lost or duplicated: the record is
//! authoritative. The host stack trusts no data of an application, and resets a socket whose record
//! is invalid; other sockets are not affected.
//!
//! | Module | Contents |
//! |---|---|
//! | [`ids`] | IDs of applications, channels, handles and sockets |
//! | [`segment`] | layout of the segment, from its limits |
//! | `parts` | a segment mapped on demand |
//! | [`record`] | the words of a socket, its state and readiness, kicks and hints |
//! | `fifo` | bytes in atomic words |
//! | [`fifo_area`] | allocation of the FIFO area |
//! | [`host_record`], [`app_record`] | a socket as each side sees it |
//! | [`message`] | commands and events as bytes |
//! | [`channel`] | a command ring, an event ring and their wake-ups |
//! | [`outbox`] | events of the host stack that wait for room in a ring |
//! | [`attach`] | packets between an application and the broker |
//! | [`handle_name`] | names that identify descriptors |
//! | `loom` | kicks, hints and the accept queue under the model checker |
//!
//! ```
//! use socket_channel::app_record::AppRecord;
//! use socket_channel::fifo_area::FifoArea;
//! use socket_channel::host_record::HostRecord;
//! use socket_channel::segment::{Layout, Limits, Segment};
//! use socket_channel::{Command, Event, Flags, SocketId, channel};
//!
//! let limits = Limits { sockets_max: 4, segment_bytes: 1 << 20 };
//! let segment = Segment::in_memory(Layout::of(limits).expect("a megabyte is enough"));
//! let mut area = FifoArea::new(segment.layout());
//! let (rx, tx) = (area.allocate(4096), area.allocate(4096));
//! let socket = SocketId { index: 0, generation: 1 };
//! let flags = Flags::STREAM | Flags::CONNECTED;
//! let mut host = HostRecord::new(&segment, socket, flags, rx, tx);
//! let (mut host_end, mut app_end) = channel::in_memory();
//!
//! let app = AppRecord::of(&segment, socket).expect("the record is there");
//! assert_eq!(app.write(b"GET"), Ok(3));
//! assert!(app.must_kick());
//! app_end.send(&Command::Kick { socket }).expect("an empty ring has room");
//! app_end.flush();
//!
//! assert_eq!(host_end.receive(), Ok(Some(Command::Kick { socket })));
//! assert_eq!(host.look().map(|news| news.tx_added_bytes), Ok(3));
//! let mut sent = Vec::new();
//! host.tx_read(u64::MAX, |chunk| {
//!     sent.extend_from_slice(chunk);
//!     chunk.len()
//! });
//! assert_eq!(sent, b"GET");
//! assert_eq!(host.rx_write(b"200"), 3);
//! host_end.send(&Event::Ready { socket }).expect("an empty ring has room");
//! host_end.flush();
//!
//! assert_eq!(app_end.receive(), Ok(Some(Event::Ready { socket })));
//! let mut answer = [0; 16];
//! assert_eq!(app.read(&mut answer), Ok(3));
//! assert_eq!(&answer[..3], b"200");
//! ```
//!
//! The crate uses its arguments and shared memory only; it has no policy and no clock.
#![forbid(unsafe_code)]

pub mod app_record;
pub mod attach;
#[cfg(not(loom))]
pub mod channel;
mod fifo;
pub mod fifo_area;
#[cfg(not(loom))]
pub mod handle_name;
pub mod host_record;
pub mod ids;
#[cfg(all(test, loom))]
mod loom;
pub mod message;
#[cfg(not(loom))]
pub mod outbox;
#[cfg(not(loom))]
mod parts;
pub mod record;
pub mod segment;

pub use app_record::{AppRecord, Lock, Unusable};
pub use host_record::HostRecord;
pub use ids::{AppId, ChannelId, HandleId, SocketId};
pub use message::{Command, Event, Family, How, Side, SocketOption};
pub use record::{FileMeta, Flags, Look, Nonsense, Readiness, SpliceStage, SpliceState, Wanted};
pub use segment::{Block, Layout, Limits, Segment};
