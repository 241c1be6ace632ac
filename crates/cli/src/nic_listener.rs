//! `splitway nic`: waits on a Unix socket for host stacks and serves one after the other, each with a NIC
//! process of its own. So a host stack meets fresh memory, and a crash ends one session, not the service.

use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use failure::Failure;
use netsetup::device::Inventory;
use netsetup::listener::Listener;
use sandbox::{kernel, privileges};

use crate::args::NicArgs;
use crate::child::{Child, option};
use crate::family::{Family, Happening, Role};
use crate::messages::Message;
use crate::program::Program;
use crate::root::check_root;
use crate::say;
use crate::signals::Signals;

/// How long a host stack may wait for the one before it: longer than a session takes to end, shorter than
/// a host stack waits for the hello.
const WAITING_MAX: Duration = Duration::from_secs(2);

/// Runs until the user ends it.
pub(crate) fn run(args: &NicArgs, log: &str) -> Result<(), Failure> {
    check_root(args.root())?;
    args.cache.check(args.workers)?;
    Inventory::take()?.device(&args.dev)?;
    kernel::require()?;
    privileges::require(
        &format!("sending packets on {}", args.dev),
        privileges::FOR_DEVICE,
    )?;

    let mut family = Family::new(Signals::catch_ends()?);
    let listener = Listener::bind("NIC socket", &args.socket, "--socket")?;
    let program = Program::own()?;
    say(&format!("listening on {}\n", args.socket.display()));
    let result = serve(&mut family, &listener, &program, args, log);
    let ended = family.end(&[Role::Nic(0)]);
    result.and(ended)
}

fn serve(
    family: &mut Family,
    listener: &Listener,
    program: &Program,
    args: &NicArgs,
    log: &str,
) -> Result<(), Failure> {
    let mut waiting: Option<Visitor> = None;
    loop {
        if family.pid(Role::Nic(0)).is_none()
            && let Some(visitor) = waiting.take()
        {
            match Child::spawn(
                "NIC process",
                &program.image(),
                session_arguments(args, log),
                visitor.socket,
            ) {
                Ok(child) => {
                    say(&format!(
                        "nic process {}: serves a host stack\n",
                        child.pid()
                    ));
                    family.adopt(Role::Nic(0), child);
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
        match family.next_or_readable(accepting, deadline)? {
            Happening::Signal => return Ok(()),
            Happening::Readable => {
                waiting = listener.accept().map(|socket| Visitor {
                    socket,
                    until: Instant::now() + WAITING_MAX,
                });
            }
            Happening::Nothing => {
                // Closing the connection is the answer: the host stack tells its user.
                waiting = None;
                tracing::warn!("refused a host stack: another one is being served");
            }
            Happening::Said(_, Message::Failed(failure)) => tracing::error!("{failure}"),
            Happening::Said(..) => {}
            Happening::Ended(_) => {
                if let Err(failure) = family.end(&[Role::Nic(0)]) {
                    tracing::error!("{failure}");
                }
                family.dismiss(Role::Nic(0));
                say("the host stack is gone; waiting for the next one\n");
            }
        }
    }
}

/// A host stack that has connected and is not served yet.
struct Visitor {
    socket: OwnedFd,
    until: Instant,
}

/// The command line of a session's NIC process.
pub(crate) fn session_arguments(args: &NicArgs, log: &str) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = ["nic", "--control-stdin", "--log", log, "--workers"]
        .map(OsString::from)
        .into();
    arguments.push(args.workers.to_string().into());
    arguments.extend(args.cache.arguments());
    arguments.extend(args.measuring.arguments());
    arguments.push(option("--dev", args.dev.as_ref()));
    arguments.push(option("--root", args.root().as_os_str()));
    arguments
}
