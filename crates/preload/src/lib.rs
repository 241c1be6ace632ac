//! The socket calls of the C library on the split stack: `splitway run` preloads this library into
//! an unmodified program.
//!
//! Each function here has the name of a call with [`PREFIX`] before it. The shared library
//! `libsplitway-preload.so` is linked with the plain names (`scripts/library.sh`), so that other
//! binaries that link this crate do not define `read`.
//!
//! A descriptor is the kernel's until an address makes it a split socket: `socket` creates a kernel
//! socket, and `bind` and `connect` replace it by a split socket according to the [rules]. All
//! other calls check whether their descriptor is split, and are either system calls or calls of
//! `libsplitway`.
//!
//! | Module | Contents |
//! |---|---|
//! | [`rules`] | addresses of split sockets |
//! | [`environment`] | variables from `splitway run`, and for new program images |
//! | [`kernels`] | kernel TCP sockets that split ones replace |
//! | `start` | the constructor |
//! | `attached` | this process's attachment to the host stack |
//! | `settings` | settings from the environment |
//! | `kernel` | raw system calls, which never re-enter this library |
//! | `library` | the C library's own functions, for kernel descriptors |
//! | `calls` | syscall(2): calls by their numbers |
//! | `streams` | fdopen(3) |
//! | `convert` | conversion between kernel sockets and split sockets |
//! | `pending` | kernel sockets that may become split, and their epoll sets |
//! | `sockets` | bind to getpeername |
//! | `options` | setsockopt, getsockopt |
//! | `bytes` | read and write in all forms |
//! | `pipes` | pipes between split sockets, and connections that a NIC stack joins instead |
//! | `events` | epoll and poll |
//! | `select` | select |
//! | `epoll_sets` | epoll sets of the kernel, and threads that wait in them |
//! | `descriptors` | close, dup, fcntl, ioctl |
//! | `confinement` | calls by which a process gives up rights |
//! | `cancel` | thread cancellation in calls on split sockets |
//! | `inherited` | split sockets from other processes |
//! | `copies` | descriptors that other processes get |
//! | `exec` | passes the library on to new program images |
//!
//! The functions take the arguments of their namesakes, with the same requirements for pointers;
//! the manual pages are their safety sections.
#![deny(unsafe_code)]
#![allow(
    clippy::missing_safety_doc,
    missing_docs,
    reason = "the interface is that of the C library"
)]

pub mod environment;
pub mod kernels;
pub mod rules;

#[allow(unsafe_code, reason = "a pointer of its own goes to the kernel")]
mod attached;
#[allow(unsafe_code, reason = "C passes pointers")]
pub mod bytes;
#[allow(unsafe_code, reason = "C passes pointers")]
pub mod calls;
#[allow(unsafe_code, reason = "the C library ends threads")]
pub mod cancel;
#[allow(unsafe_code, reason = "C passes pointers")]
pub mod confinement;
#[allow(unsafe_code, reason = "descriptors of the program are numbers")]
mod convert;
#[allow(unsafe_code, reason = "C passes pointers")]
pub mod copies;
#[allow(unsafe_code, reason = "C passes pointers")]
pub mod descriptors;
mod epoll_sets;
#[allow(unsafe_code, reason = "C passes pointers")]
pub mod events;
#[allow(unsafe_code, reason = "C passes pointers")]
pub mod exec;
#[allow(unsafe_code, reason = "control messages are as C has them")]
mod inherited;
#[allow(unsafe_code, reason = "it is about system calls")]
mod kernel;
#[allow(unsafe_code, reason = "its functions are those of C")]
mod library;
#[allow(unsafe_code, reason = "C passes pointers")]
pub mod options;
mod pending;
#[allow(unsafe_code, reason = "descriptors are numbers of the program's")]
mod pipes;
#[allow(unsafe_code, reason = "C passes pointers")]
pub mod select;
mod settings;
#[allow(unsafe_code, reason = "C passes pointers")]
pub mod sockets;
#[allow(unsafe_code, reason = "the loader calls the constructor")]
pub mod start;
#[allow(unsafe_code, reason = "C passes pointers")]
pub mod streams;

/// Prefix of the functions' names, before those of the C library.
pub const PREFIX: &str = "splitway_preload_";
