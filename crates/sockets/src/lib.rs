//! Sockets on the host stack for applications in other processes.
//!
//! [`Sockets`] is a [`host::app::Application`]: its streams, listeners and files belong to
//! processes that reach it through a socket channel each ([`socket_channel`]). It executes their
//! commands, moves bytes between their FIFOs and TCP, and announces changes by hints.
//!
//! Applications are not trusted. All their data is copied before it is checked; an invalid index
//! resets its socket, an invalid ring ends its channel. The [`Grant`] bounds an application's use
//! of resources. No descriptor of an application ever reaches this process: the broker makes the
//! memory, the bells and the handles.
//!
//! | Module | Contents |
//! |---|---|
//! | `sockets` | all applications, as an application of the shard |
//! | `application`, `turn` | one application: its sockets, handles and channels; turns and end |
//! | `budget` | limits of applications in a turn |
//! | `endings` | ends of descriptors and processes, which wait for earlier commands |
//! | `broker` | messages about attaching processes, their handles and ends |
//! | `grant` | rights and limits of an application |
//! | `admission` | limits on accepted connections, per application and source |
//! | `place` | maps from streams, listeners and lookups to sockets |
//! | `commands` | commands of an application |
//! | `state/` | the host's private state: `area`, `socket`, `stream`, `listener`, `file`, |
//! | | `passed`, `search`, `splice`, `sources`, `options` |
//! | `listener` | connections that wait to be accepted |
//! | `connect`, `disconnect` | connections that applications open; disconnected sockets |
//! | `stream` | bytes between FIFOs and TCP |
//! | `fifos` | memory for these bytes, sized by use |
//! | `splice` | connections that a NIC stack joins |
//! | `file` | files, and file ranges in a stream |
//! | `options`, `info` | socket options; `TCP_INFO` |
//! | `errno` | errors of the stack, in the kernel's numbers |
//! | `waker` | descriptors that end a sleep: bells and handles |
//! | `counters`, `view` | counters; the state of an application for people |
//!
//! The crate uses the clock that it is given, shared memory, the host's interface for applications,
//! and the descriptors that wake it.
#![forbid(unsafe_code)]

mod admission;
mod application;
mod broker;
mod budget;
mod commands;
mod connect;
mod counters;
mod disconnect;
mod endings;
mod errno;
mod fifos;
mod file;
mod grant;
mod info;
mod listener;
mod options;
mod place;
mod sockets;
mod splice;
mod state;
mod stream;
mod turn;
mod view;
mod waker;

pub use crate::broker::{
    Arrived, Attachment, Broker, BrokerGone, First, Identity, Known, NewHandles,
};
pub use crate::budget::{Budget, Clock};
pub use crate::counters::Counters;
pub use crate::grant::{Grant, Rules};
pub use crate::sockets::Sockets;
pub use crate::view::ApplicationView;
pub use crate::waker::{Waker, Woken};
pub use host::monotonic_us;
