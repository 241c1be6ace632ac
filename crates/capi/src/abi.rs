//! The C interface: `splitway.h`, made from these functions.
//!
//! Each function checks its pointers as far as that is cheap, and reports errors as the C library
//! does: -1 and `errno`. Its pointers must satisfy the contract of the call of the same name.
//!
//! | Module | Contents |
//! |---|---|
//! | `outcome` | `errno`, and results as return values |
//! | `global` | the application that all calls use; `sw_init` |
//! | `probe` | checks that the program's memory is mapped |
//! | `memory` | pointers of C as slices, addresses, and values of options |
//! | `sockets` | socket to getpeername, shutdown, close |
//! | `bytes` | send and receive in all forms |
//! | `options` | setsockopt, getsockopt, fcntl, ioctl |
//! | `events` | epoll and poll |
//! | `offload` | the functions of IO-TCP |
//! | `zero_copy` | sends that report the peer's acknowledgment |
//! | `splice` | two connections joined by a NIC stack |

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
