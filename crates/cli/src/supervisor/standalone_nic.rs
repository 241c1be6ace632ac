//! `splitway nic`: waits on a Unix socket for host stacks and serves them one after the other, each
//! with a NIC process of its own. So a host stack meets fresh memory, and a crash ends one session,
//! not the service.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use failure::Failure;
use netsetup::device::Inventory;
use netsetup::listener::Listener;
use sandbox::{kernel, privileges};

use crate::args::nic::NicArgs;
use crate::supervisor::children::{Children, Event, Role};
use crate::supervisor::executable::Program;
use crate::terminal::say;
use config::log_level::LogLevel;
use config::root::check_root;
use processes::ipc::launch;
use processes::ipc::messages::FromNic;
use processes::ipc::signals::Signals;
use processes::nic::NicSettings;

/// Longest time that a host stack waits for the one before it: longer than a session takes to end,
/// shorter than a host stack waits for the hello.
const WAITING_MAX: Duration = Duration::from_secs(2);

/// Runs until the user ends it.
pub(crate) fn run(args: &NicArgs, log: LogLevel) -> Result<(), Failure> {
    check_root(args.root())?;
    let cache_default = args.cache.check(args.workers)?;
    Inventory::take()?.device(&args.dev)?;
    kernel::require()?;
    privileges::require(
        &format!("sending packets on {}", args.dev),
        privileges::FOR_DEVICE,
    )?;

    let mut children = Children::new(Signals::catch_ends()?);
    let listener = Listener::bind("NIC socket", &args.socket, "--socket")?;
    let program = Program::own()?;
    say(&format!("listening on {}\n", args.socket.display()));
    let settings = args.settings(cache_default);
    let result = serve(&mut children, &listener, &program, &settings, log);
    let ended = children.end(&[Role::Nic(0)]);
    result.and(ended)
}

fn serve(
    children: &mut Children,
    listener: &Listener,
    program: &Program,
    settings: &NicSettings,
    log: LogLevel,
) -> Result<(), Failure> {
    let mut waiting: Option<Visitor> = None;
    loop {
        if children.pid(Role::Nic(0)).is_none()
            && let Some(visitor) = waiting.take()
        {
            match launch::start(&program.image(), settings, log, &[&visitor.socket]) {
                Ok((child, _control)) => {
                    say(&format!(
                        "nic process {}: serves a host stack\n",
                        child.pid()
                    ));
                    children.add(Role::Nic(0), child);
                }
                Err(failure) => tracing::error!("{failure}"),
            }
        }
        // One waits; the others stay in the socket's queue.
        let accepting: &[_] = match waiting {
            Some(_) => &[],
            None => &[listener.as_fd()],
        };
        let deadline = waiting.as_ref().map(|visitor| visitor.until);
        match children.next_or_readable(accepting, deadline)? {
            Event::Signal => return Ok(()),
            Event::Readable => {
                waiting = listener.accept().map(|socket| Visitor {
                    socket,
                    until: Instant::now() + WAITING_MAX,
                });
            }
            Event::Timeout => {
                // The closed connection is the answer; the host stack reports it to its user.
                waiting = None;
                tracing::warn!("refused a host stack: another one is being served");
            }
            Event::Exited(_) => {
                if let Err(failure) = children.end(&[Role::Nic(0)]) {
                    tracing::error!("{failure}");
                }
                children.forget(Role::Nic(0));
                say("the host stack is gone; waiting for the next one\n");
            }
            // Its exit follows.
            Event::Failed(_) | Event::Reported(_) => {}
            Event::Nic(_, FromNic::Ready { .. } | FromNic::Counters { .. }) => {}
            // There are no such children.
            Event::Host(_) | Event::Fetcher(_) | Event::Observer(_) | Event::Relay(_) => {}
            Event::Broker(_) => {}
        }
    }
}

/// A host stack that has connected and is not served yet.
struct Visitor {
    socket: OwnedFd,
    until: Instant,
}
