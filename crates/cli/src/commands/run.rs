//! `splitway run`: an unmodified program whose sockets are those of the split stack.
//!
//! | Module | Purpose |
//! |---|---|
//! | `program` | finds the program, and rejects those that cannot load a library |
//! | `library` | finds the library |
//! | `stats` | the report on the program's sockets at its end |
//! | `direct_waits` | notices programs that wait for split sockets by direct system calls |
//! | `own_stack` | a stack for the program if none runs |
//! | `supervised` | programs that load no library: `--compat` |
//! | `wait` | passes signals on, and waits for all processes that the program has started |
//! | `unloaded` | notices processes of the program that have not loaded the library |
//! | `looks` | has `direct_waits` and `unloaded` look at intervals, in one thread |

mod direct_waits;
mod library;
mod looks;
mod own_stack;
mod program;
mod stats;
mod supervised;
mod unloaded;
mod wait;

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use clap::Args;
use failure::Failure;
use netsetup::seqpacket;
use preload::environment::{
    APPLICATION_FILE, CONNECT, DEFAULT_SOCKET, LISTEN, LOADED, OF_LIBRARY, PRELOAD, ProgramSets,
    SPLICE, create_application_file,
};
use preload::rules::{Rule, Rules};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd, retry_on_intr};
use rustix::net::SocketAddrUnix;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Pid;

use crate::commands::run::direct_waits::DirectWaits;
use crate::commands::run::own_stack::OwnStack;
use crate::commands::run::stats::Stats;
use crate::commands::run::unloaded::Unloaded;
use crate::commands::run::wait::Descendants;
use config::log_level::LogLevel;

/// A program, and what of it is split.
#[derive(Clone, Debug, Args)]
pub(crate) struct RunArgs {
    /// Addresses whose listeners are split: any, PORT, FIRST-LAST, ADDRESS/BITS, or
    /// ADDRESS/BITS:PORT. May be repeated; loopback addresses stay with the kernel unless a rule
    /// names them, such as 127.0.0.0/8 or ::1
    #[arg(long, value_name = "RULE", default_value = "any")]
    pub(crate) listen: Vec<Rule>,

    /// Destinations whose connections are split, in the same form [default: none]
    #[arg(long, value_name = "RULE")]
    pub(crate) connect: Vec<Rule>,

    /// Addresses of connections, in the same form, between which the program copies by splice(2)
    /// without looking at the bytes, as HAProxy does in `mode tcp`: the NIC stack forwards them
    /// instead [default: none]
    #[arg(long, value_name = "RULE", conflicts_with = "compat")]
    pub(crate) splice: Vec<Rule>,

    /// Unix socket of a running stack: of `serve --sockets`, or of `sockets-node` [default:
    /// /run/splitway/sockets.sock if a stack answers there; otherwise a stack for this program
    /// alone, on a link made for it]
    #[arg(long, value_name = "PATH")]
    pub(crate) sockets: Option<PathBuf>,

    /// Library that the program loads [default: libsplitway-preload.so beside this program, or in
    /// the lib directory next to its own]
    #[arg(long, value_name = "PATH")]
    pub(crate) library: Option<PathBuf>,

    /// When the program exits, report its sockets on standard error: connections, bytes, which of
    /// these were offloaded, and CPU time
    #[arg(long, conflicts_with = "compat")]
    pub(crate) stats: bool,

    /// Support programs that load no library, such as statically linked ones or those in Go: this
    /// process answers their socket calls, and moves their bytes. Slower, and `sendfile` is not
    /// offloaded
    #[arg(long, conflicts_with = "library")]
    pub(crate) compat: bool,

    /// Program and its arguments
    #[arg(
        value_name = "PROGRAM",
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub(crate) program: Vec<OsString>,
}

pub(crate) const RUN_HELP: &str = "The program runs unmodified: its listeners and connections use \
the split stack where a rule says so, and the kernel otherwise. Its `sendfile` is an \
offloaded write: the file goes from the NIC process to the wire, and the program never has its \
bytes. docs/run.md says what works, and what does not.

If no stack runs, the program gets its own, on a link like that of `splitway serve`: at 10.77.0.2 \
and fd77::2, for this machine.

Examples:
  sudo splitway run nginx -c /etc/nginx/nginx.conf
  sudo splitway run --listen 8000 python3 -m http.server
  sudo splitway run --connect 10.77.0.0/24 curl http://10.77.0.1:8080/
  sudo splitway run --connect any --splice 443 haproxy -f tcp.cfg
  sudo splitway run --compat caddy file-server --root /srv/www --listen :8080
  splitway run --sockets /run/splitway/sockets.sock redis-server --bind 0.0.0.0 --port 7000";

/// Longest time in which the program reports that the library is loaded.
const LOADING: Duration = Duration::from_secs(2);

/// Runs a program, and returns its exit code.
pub(crate) fn run(args: &RunArgs, log: LogLevel) -> Result<ExitCode, Failure> {
    let [name, arguments @ ..] = &args.program[..] else {
        return Err(Failure::input("program", "missing"));
    };
    let path = program::find(name)?;
    program::check(&path, args.compat)?;
    let library = if args.compat {
        None
    } else {
        Some(library::find(args.library.as_deref())?)
    };
    let (own_stack, socket) = match stack_that_runs(args)? {
        Some(socket) => (None, socket),
        None => {
            let own = OwnStack::start(log)?;
            let socket = own.socket().to_owned();
            (Some(own), socket)
        }
    };
    let descendants = Descendants::gather(own_stack.as_ref().map(OwnStack::pid))?;
    let mut command = Command::new(&path);
    command.args(arguments);
    std::os::unix::process::CommandExt::arg0(&mut command, name);
    let Some(library) = library else {
        let code = supervised::run(command, &socket, args, &descendants)?;
        own_stack.map_or(Ok(String::new()), OwnStack::end)?;
        return Ok(ExitCode::from(code));
    };
    let rules = |rules: &[Rule]| rules.iter().copied().collect::<Rules>().to_string();
    command
        .env(PRELOAD, preloaded(&library))
        .env(OF_LIBRARY[0], &socket)
        .env(LISTEN, rules(&args.listen))
        .env(CONNECT, rules(&args.connect))
        .env(SPLICE, rules(&args.splice));
    let stats = args.stats.then(Stats::begin).transpose()?;
    if let Some(stats) = &stats {
        stats.pass_to(&mut command);
    }
    let (sets, application) = application_file()?;
    command.env(APPLICATION_FILE, application.as_raw_fd().to_string());
    let (loaded, says_so) = pipe()?;
    command.env(LOADED, says_so.as_raw_fd().to_string());
    let child = command
        .spawn()
        .map_err(|error| Failure::input(format!("program {}", path.display()), error))?;
    drop(says_so);
    let pid = Pid::from_child(&child);
    if let Err(failure) = await_loaded(&loaded, &path, &library) {
        descendants.kill(pid);
        return Err(failure);
    }
    drop(loaded);
    let unloaded = Unloaded::new(&library, own_stack.as_ref().map(OwnStack::pid));
    looks::begin(unloaded, DirectWaits::new(sets));
    let code = descendants.wait(pid)?;
    let table = stats.map(|stats| stats.table());
    let of_stack = own_stack.map_or(Ok(String::new()), OwnStack::end)?;
    if let Some(table) = table {
        eprint!("\n{table}\n{of_stack}");
    }
    Ok(ExitCode::from(code))
}

/// Returns the socket of a running stack; `None` if none runs and none was named.
fn stack_that_runs(args: &RunArgs) -> Result<Option<PathBuf>, Failure> {
    let path = args.sockets.as_deref().unwrap_or(Path::new(DEFAULT_SOCKET));
    let connected = SocketAddrUnix::new(path).and_then(|address| seqpacket::connect(&address));
    match connected {
        Ok(_) => Ok(Some(path.to_owned())),
        Err(_) if args.sockets.is_none() => Ok(None),
        Err(errno) => Err(Failure::input(
            format!("--sockets {}", path.display()),
            format!("no stack answers there: {errno}"),
        )
        .remedy("Start one with `splitway serve ROOT --sockets PATH`, or leave --sockets out.")),
    }
}

/// Returns the value of LD_PRELOAD with the library in front.
fn preloaded(library: &Path) -> OsString {
    let mut list = library.as_os_str().to_owned();
    if let Some(others) = std::env::var_os(PRELOAD).filter(|others| !others.is_empty()) {
        list.push(":");
        list.push(others);
    }
    list
}

/// Creates the file by which all processes of the program belong to one application.
fn application_file() -> Result<(ProgramSets, OwnedFd), Failure> {
    let failed = |error| Failure::broken("making a memory file", error);
    let (sets, file) = create_application_file().map_err(failed)?;
    Ok((sets, inherited(file).map_err(failed)?))
}

/// Lowest descriptor that the program inherits, above those that programs use by number.
const INHERITED_FROM: i32 = 64;

/// Makes a file inheritable by the program.
fn inherited(file: OwnedFd) -> io::Result<OwnedFd> {
    let file = fcntl_dupfd_cloexec(&file, INHERITED_FROM).unwrap_or(file);
    fcntl_setfd(&file, FdFlags::empty())?;
    Ok(file)
}

/// Creates a pipe whose write end the program inherits.
fn pipe() -> Result<(OwnedFd, OwnedFd), Failure> {
    let failed = |errno| Failure::broken("making a pipe", errno);
    let (read, write) = pipe_with(PipeFlags::empty()).map_err(failed)?;
    fcntl_setfd(&read, FdFlags::CLOEXEC).map_err(failed)?;
    Ok((read, write))
}

/// Fails unless the library reports in time that it is loaded: a program never falls back to the
/// kernel's sockets silently.
fn await_loaded(loaded: &OwnedFd, program: &Path, library: &Path) -> Result<(), Failure> {
    let failed = |why: String| {
        Failure::broken(format!("program {}", program.display()), why).remedy(format!(
            "The message of the loader above may say why it has not loaded {}.",
            library.display()
        ))
    };
    let timeout = Timespec {
        tv_sec: LOADING.as_secs().cast_signed(),
        tv_nsec: 0,
    };
    let mut fds = [PollFd::new(loaded, PollFlags::IN)];
    let polled = retry_on_intr(|| poll(&mut fds, Some(&timeout)));
    match polled {
        Ok(0) => {
            return Err(failed(format!(
                "it has not loaded the library in {LOADING:?}"
            )));
        }
        Ok(_) => {}
        Err(errno) => return Err(Failure::broken("waiting for the program", errno)),
    }
    let mut byte = [0];
    match retry_on_intr(|| rustix::io::read(loaded.as_fd(), &mut byte)) {
        Ok(1) => Ok(()),
        _ => Err(failed("it has begun without the library".to_owned())),
    }
}
