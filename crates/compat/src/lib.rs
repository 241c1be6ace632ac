//! Split sockets for programs that load no library: linked statically, or written in Go.
//!
//! A seccomp filter has the kernel ask this process about calls on sockets (seccomp_unotify(2)).
//! Where a rule makes a socket split, the program gets an end of a pair of Unix sockets in its
//! place, and this process moves the bytes between the other end and a split socket of its own: to
//! the stack it is an ordinary application, and the program's sockets are all its own.
//!
//! So the program's other operations on a descriptor are the kernel's own: `epoll`, `dup`, `fork`,
//! `splice`, threads. Calls with an address, or an option, are answered here. That costs copies and
//! turns of this process: programs that load the library are faster, and their files are sent by
//! the NIC stack.
//!
//! | Module | Contents |
//! |---|---|
//! | `sys` | seccomp(2), and other calls without a safe form |
//! | `filter` | the calls that are reported |
//! | `tracee` | a thread of the program: its memory, its descriptors, its signals |
//! | `pair` | the two Unix sockets, and the state of the program's end |
//! | `socket` | a split socket of the program, and its pending calls |
//! | `options` | options of sockets that become split, or the kernel's again |
//! | `relay` | bytes between the sockets of a connection |
//! | `supervisor` | the thread that does all this |
//! | `calls` | the result of each call |
//!
//! It may touch the program that it has started, the broker, and memory of the stack as the library
//! does; `unsafe` is in `sys` only.
#![deny(unsafe_code)]

mod calls;
mod filter;
mod options;
mod pair;
mod relay;
mod socket;
mod supervisor;
#[allow(unsafe_code, reason = "it is what the module is for")]
mod sys;
mod tracee;

use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use capi::Client;
use capi::client::Options;
use failure::Failure;
use preload::rules::Rules;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::supervisor::Supervisor;
use crate::sys::Notifier;

/// A program that runs with its sockets relayed.
#[derive(Debug)]
pub struct Compat {
    supervisor: JoinHandle<()>,
    end: OwnedFd,
}

/// Reasons why a program has not begun.
enum NotStarted {
    Filter(Errno),
    Program(std::io::Error),
}

/// Starts a program under the filter. The thread that has the filter stays, since its end kills the
/// program.
fn start(mut command: Command) -> Result<(Child, Notifier), NotStarted> {
    let (tell, told) = mpsc::channel();
    sys::die_with_parent(&mut command);
    thread::spawn(move || {
        let mut started = || {
            rustix::thread::set_no_new_privs(true).map_err(NotStarted::Filter)?;
            let notifier = sys::install(&filter::program()).map_err(NotStarted::Filter)?;
            let child = command.spawn().map_err(NotStarted::Program)?;
            Ok((child, notifier))
        };
        let _ = tell.send(started());
        loop {
            thread::park();
        }
    });
    told.recv().unwrap_or(Err(NotStarted::Filter(Errno::AGAIN)))
}

impl Compat {
    /// Attaches to the stack at `socket`, and starts a program, whose sockets are split where the
    /// rules hold their addresses.
    pub fn start(
        command: Command,
        socket: &Path,
        listen: Rules,
        connect: Rules,
    ) -> Result<(Child, Compat), Failure> {
        let options = Options::from_environment()
            .map_err(|error| Failure::input("modes of the program", error))?;
        let options = Options {
            path: socket.to_owned(),
            application: None,
            ..options
        };
        let client = Client::attach(&options)
            .map_err(|error| Failure::broken("attaching to the stack", error))?;
        let failed = |errno: Errno| Failure::broken("supervising the program", errno);
        let end = eventfd(0, EventfdFlags::CLOEXEC).map_err(failed)?;
        let ends = end
            .try_clone()
            .map_err(|error| Failure::broken("supervising the program", error))?;
        let name = command.get_program().to_owned();
        let (child, notifier) = start(command).map_err(|error| match error {
            NotStarted::Filter(Errno::INVAL) => Failure::input(
                "supervising the program",
                "the kernel does not ask about calls in the way that is needed",
            )
            .remedy("--compat needs Linux 5.19 or later."),
            NotStarted::Filter(errno) => Failure::input("supervising the program", errno).remedy(
                "The kernel must be built with CONFIG_SECCOMP_FILTER, and a container's own filter \
                 must allow seccomp(2).",
            ),
            NotStarted::Program(error) => {
                Failure::input(format!("program {}", name.display()), error)
            }
        })?;
        raise_limit();
        let supervisor = Supervisor::new(client, notifier, (listen, connect), ends);
        let supervisor = supervisor.map_err(failed)?;
        let supervisor = thread::spawn(move || supervisor.run());
        Ok((child, Compat { supervisor, end }))
    }

    /// Waits, after the end of the program and all its descendants, until the stack has all bytes
    /// that they have sent.
    pub fn finish(self) {
        let _ = rustix::io::write(&self.end, &1_u64.to_ne_bytes());
        let _ = self.supervisor.join();
    }
}

/// Raises the limit on descriptors: each connection takes two. The program keeps the limit that it
/// was started with.
fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    let _ = setrlimit(Resource::Nofile, raised);
}
