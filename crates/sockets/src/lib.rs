//! The sockets of applications in other processes, on the host stack.
//!
//! [`Sockets`] is a [`host::app::Application`]: its streams, listeners and files belong to
//! processes that reach it through a socket channel each ([`socket_channel`]). It takes their
//! commands, moves bytes between their FIFOs and TCP, and tells them by hints what has changed.
//!
//! An application is not trusted. All that it writes is copied before it is looked at; an index
//! that makes no sense resets its socket, a ring that makes none ends its channel. What it may use
//! is bounded by its [`Grant`]. No descriptor of an application ever comes here: the broker makes
//! the memory, the bells and the handles.
//!
//! | Module | What it holds |
//! |---|---|
//! | `sockets` | all applications, as an application of the shard |
//! | `application`, `turn` | one of them: its sockets, handles and channels; its turns and its end |
//! | `budget` | how much of a turn applications may take |
//! | `endings` | ends of descriptors and processes, which wait for the commands before them |
//! | `broker` | processes that attach, their handles and ends |
//! | `grant` | what it may do and use |
//! | `admission` | how many connections its listeners may still accept, and from where |
//! | `place` | from streams, listeners and look-ups to sockets |
//! | `commands` | what it asks for |
//! | `state/` | what the host alone knows: `area`, `socket`, `stream`, `listener`, `file`, `passed`, `search`, `splice`, `sources`, `options` |
//! | `listener` | connections that wait to be accepted |
//! | `connect`, `disconnect` | connections that it opens; sockets that are to be used again |
//! | `stream` | bytes between FIFOs and TCP |
//! | `fifos` | memory for these bytes, sized by use |
//! | `splice` | connections that a NIC stack joins |
//! | `file` | files, and ranges of them that go into a stream |
//! | `options`, `info` | setting options; what `TCP_INFO` says |
//! | `errno` | errors of the stack, in the kernel's numbers |
//! | `waker` | descriptors that end a sleep: bells and handles |
//! | `counters`, `view` | what was done, and for whom; what people are shown |
//!
//! It touches the clock that it is given, shared memory, the host's interface for applications, and
//! the descriptors that wake it.
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
pub use crate::counters::Counters;
pub use crate::grant::{Grant, Rules};
pub use crate::sockets::Sockets;
pub use crate::view::ApplicationView;
pub use crate::waker::{Waker, Woken};
