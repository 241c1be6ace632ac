//! The cluster form of *TCP Servers* (Rangarajan et al., 2002): programs run on an *application
//! node*, which has no TCP of its own, and their sockets are on a *stack node*.
//!
//! To programs, the application node is a host stack: it has their segments, and takes their
//! commands. To the host stack, the stack node is an application. Between the two, a session
//! carries bytes, commands and changes of records; neither a program nor a host stack knows.
//!
//! A socket has the same name on both nodes, that which the host stack has given it, so a record
//! of one is the copy of a record of the other. Each side of a stream sends as many bytes as the
//! other has said that it takes, and the application node sends only so many commands, so that
//! whatever comes finds room: no socket, and no application, holds up another.
//!
//! | Module | What it holds |
//! |---|---|
//! | [`message`] | what the nodes say to each other |
//! | [`node`] | on the application node: the host stack's side of programs |
//! | [`gate`] | on the stack node: the applications' side of the host stack |
//! | `complaints` | what the log says of messages that make no sense |
//!
//! It touches shared memory, and descriptors to wait for and to close; messages go in and come
//! out. It knows no link, no key and no clock but the time that it is given.
#![forbid(unsafe_code)]

mod complaints;
pub mod gate;
pub mod message;
pub mod node;

pub use gate::{Brought, Gate, Granted, Stack};
pub use node::{Node, Reply};
