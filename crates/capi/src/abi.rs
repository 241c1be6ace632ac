//! The C interface: `splitway.h`, made from these functions.
//!
//! Each checks its pointers as far as that costs little, and reports as the C library does: -1 and
//! `errno`. The rules of what the pointers point to are those of the call that each is named for.
//!
//! | Module | What it holds |
//! |---|---|
//! | `outcome` | `errno`, and how results become numbers |
//! | `global` | the application that all calls are made on; `sw_init` |
//! | `probe` | whether memory of the program is there |
//! | `memory` | pointers of C as slices, addresses, and values of options |
//! | `sockets` | socket to getpeername, shutdown, close |
//! | `bytes` | send and receive in all forms |
//! | `options` | setsockopt, getsockopt, fcntl, ioctl |
//! | `events` | epoll and poll |
//! | `offload` | the functions of IO-TCP |
//! | `zero_copy` | sends that report when the peer has what they sent |
//! | `splice` | two connections that a NIC stack joins |

mod bytes;
mod events;
mod global;
mod memory;
mod offload;
mod options;
mod outcome;
mod probe;
mod sockets;
mod splice;
mod zero_copy;

pub use crate::sys::{last_error, system_call};
pub use bytes::*;
pub use events::*;
pub use global::*;
pub use memory::{address, address_bytes, address_of};
pub use offload::*;
pub use options::*;
pub use outcome::set_errno;
pub use probe::{check_given, check_items, check_value};
pub use sockets::*;
pub use splice::*;
pub use zero_copy::*;
