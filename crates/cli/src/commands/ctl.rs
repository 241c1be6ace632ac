//! `splitway ctl`: asks a running server for something.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use failure::Failure;
use netsetup::seqpacket;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketAddrUnix, recvmsg,
};

use config::socket_values::AddressRange;
use config::text::Time;
use processes::ipc::sealed;

use crate::supervisor::control_socket::{self, DESCRIPTORS_SPACE, LINE_BYTES_MAX, Request};
use crate::terminal::say;

/// Requests to a running server.
#[derive(Clone, Debug, Args)]
pub(crate) struct CtlArgs {
    /// Control socket of the server, as the server printed it [default: that of this user's only
    /// server]
    #[arg(long, value_name = "PATH", global = true)]
    pub(crate) socket: Option<PathBuf>,

    #[command(subcommand)]
    pub(crate) command: CtlCommand,
}

/// What to ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Subcommand)]
pub(crate) enum CtlCommand {
    /// Replace the NIC process with a new one, from the program as it is now; connections continue
    RestartNic,
    /// List the NIC stacks: whether each serves, for how long, with how many workers, and if not,
    /// why
    Nics,
    /// Reload the configuration file, certificates and keys, for new requests and connections
    Reload,
    /// Accept no more connections, finish the responses in progress, and exit
    Drain,
    /// Reopen the log files at their paths, after they were renamed
    Reopen,
    /// Detach a program: reset its connections and stop serving it
    Detach {
        /// One of its processes, as `splitway stat` lists it
        #[arg(value_parser = clap::value_parser!(u32).range(1..))]
        pid: u32,
    },
    /// Deny an address or network: end its connections, and answer none of its packets
    Deny {
        /// The address, or the network, such as 192.0.2.0/24
        network: AddressRange,
        /// How long, such as 90s, 10m or 1d [default: until it is allowed, or the server ends]
        #[arg(long = "for", value_name = "TIME")]
        time: Option<Time>,
    },
    /// Take back what `deny` has denied
    Allow {
        /// The address or network, as it was denied
        network: AddressRange,
    },
    /// List what `deny` has denied, in the form of a file for --deny-file
    Denied,
}

pub(crate) const CTL_HELP: &str = "\
Only the user who runs the server, and root, may control it. The exit code is 0 only on success.

`restart-nic` starts the program that is now at the path from which the server was started: after \
an upgrade, the new one. The new process takes over once it says hello and speaks the same version \
of the contract; if not, it is killed, and the old one continues.

`reload`, like SIGHUP, reads the --config file and the certificates with their keys. If anything \
in them is invalid, everything stays as it was, and the answer says why. It also names the keys \
that need a restart.

`drain`, like SIGQUIT: no more connections, and the server exits when the last response has been \
sent, or after drain_timeout.

`reopen`, like SIGUSR1, reopens the files of --access-log and --error-log, and answers when \
nothing is written to the old ones any more.

`detach` cuts an attached program (--sockets) off the host stack: its connections are reset, and \
it gets no more sockets (ESHUTDOWN). PID is any of the processes that share them. The program may \
attach again when it is restarted.

`deny` ends the connections of clients with this address, and the server answers none of their \
packets: for a time, until `allow` takes it back, or until the server ends. A request in which a \
trusted proxy names such a client gets 403. Denying the same network again replaces the time. \
docs/firewall.md says how fail2ban calls it.

Examples:
  sudo splitway ctl restart-nic
  sudo splitway ctl nics
  sudo splitway ctl reload
  sudo splitway ctl drain
  sudo mv access.log access.log.1 && sudo splitway ctl reopen
  sudo splitway ctl detach 4711
  sudo splitway ctl deny 192.0.2.7 --for 10m
  sudo splitway ctl allow 192.0.2.7";

/// Longer than a server takes for any request.
const PATIENCE: Duration = Duration::from_secs(60);

/// Sends the request, and prints the answer.
pub(crate) fn run(args: &CtlArgs) -> Result<(), Failure> {
    let request = match args.command {
        CtlCommand::RestartNic => Request::RestartNic,
        CtlCommand::Nics => Request::Nics,
        CtlCommand::Reload => Request::Reload,
        CtlCommand::Drain => Request::Drain,
        CtlCommand::Reopen => Request::Reopen,
        CtlCommand::Detach { pid } => Request::Detach(pid),
        CtlCommand::Deny { network, time } => Request::Deny(network, time),
        CtlCommand::Allow { network } => Request::Allow(network),
        CtlCommand::Denied => Request::Denied,
    };
    let answer = ask(args.socket.as_deref(), request)?;
    let Some(list) = answer.descriptors.first() else {
        say(&format!("{}\n", answer.text));
        return Ok(());
    };
    let list = sealed::read(list).map_err(|errno| Failure::broken("reading the answer", errno))?;
    say(&String::from_utf8_lossy(&list));
    Ok(())
}

/// A server's answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) text: String,
    /// Descriptors that come with the answer, from which to read more.
    pub(crate) descriptors: Vec<OwnedFd>,
    /// Process ID of the server, if known.
    pub(crate) server: Option<i32>,
}

/// Sends a request to the server at `socket`, or to this user's only one.
pub(crate) fn ask(socket: Option<&Path>, request: Request) -> Result<Answer, Failure> {
    let (path, server) = match socket {
        Some(path) => (path.to_owned(), connect(path)?),
        None => the_only_server()?,
    };
    let what = format!("asking the server at {}", path.display());
    let answer = exchange(&server, request).map_err(|errno| Failure::broken(&what, errno))?;
    let Some((line, descriptors)) = answer else {
        let failure = "no answer; its own messages may say why";
        return Err(Failure::broken(what, failure));
    };
    match line.split_once(' ') {
        Some(("ok", text)) => Ok(Answer {
            text: text.to_owned(),
            descriptors,
            server: seqpacket::peer_pid(&server),
        }),
        Some(("error", text)) => Err(Failure::broken(request.name(), text)),
        _ => Err(
            Failure::broken(what, "it does not answer like a splitway server")
                .remedy("Is it the control socket, as `splitway serve` has printed it?"),
        ),
    }
}

/// Returns the answer and its descriptors; `None` if the server closes the connection.
fn exchange(
    server: &OwnedFd,
    request: Request,
) -> rustix::io::Result<Option<(String, Vec<OwnedFd>)>> {
    let line = format!("{request}\n");
    rustix::io::retry_on_intr(|| rustix::net::send(server, line.as_bytes(), SendFlags::NOSIGNAL))?;
    let timeout = Timespec {
        tv_sec: PATIENCE.as_secs() as i64,
        tv_nsec: 0,
    };
    let mut fds = [PollFd::new(server, PollFlags::IN)];
    if rustix::io::retry_on_intr(|| poll(&mut fds, Some(&timeout)))? == 0 {
        return Ok(None);
    }
    let mut answer = [0; LINE_BYTES_MAX];
    let mut space = [MaybeUninit::uninit(); DESCRIPTORS_SPACE];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::io::retry_on_intr(|| {
        let mut slices = [IoSliceMut::new(&mut answer)];
        recvmsg(server, &mut slices, &mut ancillary, RecvFlags::CMSG_CLOEXEC)
    })?;
    let descriptors = ancillary.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(passed) => passed.collect(),
        _ => Vec::new(),
    });
    let descriptors = descriptors.collect();
    let answer = answer
        .get(..received.bytes)
        .filter(|answer| !answer.is_empty());
    let text = answer.map(|answer| String::from_utf8_lossy(answer).into_owned());
    Ok(text.map(|text| (text, descriptors)))
}

fn connect(path: &Path) -> Result<OwnedFd, Failure> {
    let what = format!("control socket {}", path.display());
    try_connect(path).map_err(|errno| match errno {
        Errno::NOENT => Failure::input(what, "there is none")
            .remedy("`splitway serve` prints the path of its control socket."),
        Errno::CONNREFUSED => Failure::input(what, "no server listens there any more"),
        Errno::ACCESS | Errno::PERM => Failure::input(what, errno)
            .remedy("Only the user who runs the server, and root, may ask it: try sudo."),
        Errno::PROTOTYPE => Failure::input(what, "it is a socket of another program"),
        errno => Failure::input(what, errno),
    })
}

fn try_connect(path: &Path) -> rustix::io::Result<OwnedFd> {
    seqpacket::connect(&SocketAddrUnix::new(path)?)
}

/// Connects to the server with a socket in the default directory, if there is exactly one.
fn the_only_server() -> Result<(PathBuf, OwnedFd), Failure> {
    let what = "server of this user";
    let Some(directory) = control_socket::directory() else {
        return Err(
            Failure::input(what, "XDG_RUNTIME_DIR does not say where its socket is")
                .remedy("Name the socket, as `splitway serve` has printed it: --socket PATH."),
        );
    };
    find_in(&control_socket::places(&directory))
}

/// Connects to the only server in these directories.
fn find_in(places: &[PathBuf]) -> Result<(PathBuf, OwnedFd), Failure> {
    let what = "server of this user";
    let mut tried = Vec::new();
    let mut paths = Vec::new();
    for place in places {
        let shown = place.display();
        let listed = control_socket::check_own(place)
            .and_then(|()| std::fs::read_dir(place).map_err(|error| error.to_string()));
        match listed {
            Ok(listed) => {
                paths.extend(listed.filter_map(|entry| Some(entry.ok()?.path())));
                tried.push(format!("no socket in {shown} answers"));
            }
            Err(error) => tried.push(format!("{shown}: {error}")),
        }
    }
    // A killed server leaves its socket behind.
    let mut servers: Vec<_> = paths
        .into_iter()
        .filter_map(|path| try_connect(&path).ok().map(|socket| (path, socket)))
        .collect();
    if servers.len() > 1 {
        let mut paths: Vec<String> = servers
            .iter()
            .map(|(path, _)| path.display().to_string())
            .collect();
        paths.sort();
        return Err(Failure::input(what, format!("there are {}", paths.len()))
            .remedy(format!("Choose one with --socket:\n{}", paths.join("\n"))));
    }
    servers.pop().ok_or_else(|| {
        Failure::input(
            what,
            format!(
                "none runs, or it has no control socket: {}",
                tried.join("; ")
            ),
        )
        .remedy(
            "Start one with `splitway serve`, which prints where its socket is or warns that it \
             has none, or name the socket of another user's: --socket PATH.",
        )
    })
}
