//! The socket calls of the C library, on the split stack: what `splitway run` has an unmodified
//! program load.
//!
//! Each function here has the name of a call with [`PREFIX`] before it. The shared library
//! `libsplitway-preload.so` is linked from these with the plain names (`scripts/library.sh`), so
//! that nothing else that has this crate defines `read`.
//!
//! A descriptor is the kernel's until an address makes it a split socket: `socket` is not among the
//! calls, and `bind` and `connect` put a split socket in the place of the kernel's if the
//! [rules] say so. All else asks for each descriptor whether it is split, and is either a
//! system call or that of `libsplitway`.
//!
//! | Module | What it holds |
//! |---|---|
//! | [`rules`] | which addresses are those of split sockets |
//! | [`environment`] | what `splitway run` tells the library, and what a new program image needs |
//! | [`kernels`] | TCP sockets of the kernel's, in whose place split ones are put |
//! | `start` | the constructor |
//! | `attached` | this process at the host stack |
//! | `settings` | what it reads |
//! | `kernel` | system calls, which never come back here |
//! | `library` | the C library's own functions, for what is the kernel's |
//! | `calls` | syscall(2): calls by their numbers |
//! | `streams` | fdopen(3) |
//! | `convert` | puts a split socket in the place of one of the kernel |
//! | `pending` | sockets of the kernel that may become split, and the epoll sets they are in |
//! | `sockets` | bind to getpeername |
//! | `options` | setsockopt, getsockopt |
//! | `bytes` | read and write in all forms |
//! | `pipes` | pipes between split sockets, and connections that a NIC stack joins instead |
//! | `events` | epoll, poll, select |
//! | `epoll_sets` | epoll sets of the kernel, and threads that wait in them |
//! | `descriptors` | close, dup, fcntl, ioctl |
//! | `confinement` | calls by which a process gives up rights |
//! | `cancel` | threads that are cancelled in calls on split sockets |
//! | `inherited` | split sockets that come from other processes |
//! | `exec` | a new program image gets the library as well |
//!
//! The functions take what their namesakes take; a pointer that those may not be given, these may
//! not either. Their safety sections are those of the manual pages.
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
mod settings;
#[allow(unsafe_code, reason = "C passes pointers")]
pub mod sockets;
#[allow(unsafe_code, reason = "the loader calls the constructor")]
pub mod start;
#[allow(unsafe_code, reason = "C passes pointers")]
pub mod streams;

/// What the names of the functions begin with, before those of the C library.
pub const PREFIX: &str = "splitway_preload_";
