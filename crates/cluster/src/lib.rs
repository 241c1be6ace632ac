//! The cluster form of *TCP Servers* (Rangarajan et al., 2002): programs run on an *application
//! node*, which has no TCP of its own, and their sockets are on a *stack node*.
//!
//! To programs, the application node is a host stack: it holds their segments, and executes their
//! commands. To the host stack, the stack node is an application. Between the two, a session
//! carries bytes, commands and record changes, transparently to programs and host stacks.
//!
//! A socket has the same name on both nodes, the one that the host stack assigned, so a record on
//! one node is the copy of a record on the other. Each side of a stream sends at most the bytes for
//! which it has credit, and the application node sends a bounded number of commands, so that every
//! message finds room: no socket and no application blocks another.
//!
//! | Module | What it holds |
//! |---|---|
//! | [`message`] | messages between the nodes |
//! | [`node`] | on the application node: the host stack's side of programs |
//! | [`gate`] | on the stack node: the applications' side of the host stack |
//! | `complaints` | rate limit of log lines about invalid messages |
//!
//! It touches shared memory, and descriptors to wait for and to close; messages are its input and
//! output. It knows no link, no key and no clock besides the time that callers pass.
#![forbid(unsafe_code)]

mod complaints;
pub mod gate;
pub mod message;
pub mod node;

pub use gate::{Brought, Gate, Granted, Stack};
pub use node::{Node, Reply};
