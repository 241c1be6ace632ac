//! `splitway capture`: writes the packets of a running server to a file for Wireshark.
//!
//! The supervisor opens a packet socket each for received packets, the host stack's packets and the
//! NIC stacks' packets (`asked`), and passes them to the client, which reads them
//! (`netdev::packet::capture`), orders the packets (`order`) and writes the file (`pcapng`).

mod order;
mod pcapng;

use std::fs::OpenOptions;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use self::order::Order;
use self::pcapng::{Interface, Writer};
use clap::{Args, value_parser};
use failure::Failure;
use netdev::packet::capture::{Only, SNAPLEN_MAX, TapReader};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::time::{ClockId, clock_gettime};

use crate::commands::ctl;
use crate::supervisor::control_socket::Request;
use processes::ipc::capture_request::{CaptureRequest, Captured, Part};
use processes::ipc::signals::Signals;

/// Time for which packets are held back. They come from several sockets, each in its own order; a
/// packet sent before another must be written before it, but the kernel may be delayed between
/// taking its timestamp and queueing it.
const HOLD: Duration = Duration::from_millis(100);
const HOLD_NS: u64 = HOLD.as_nanos() as u64;

/// Most packets read from a socket at a time.
const BATCH: usize = 4096;

/// Most packets held back, and most bytes in them.
const HELD_MAX: usize = 256 << 10;
const HELD_BYTES_MAX: usize = 256 << 20;

/// Longest time to read packets that arrived before the end.
const END_MAX: Duration = Duration::from_secs(2);

/// What is to be captured.
#[derive(Clone, Debug, Args)]
pub(crate) struct CaptureArgs {
    /// Control socket of the server, as the server printed it [default: that of this user's only
    /// server]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,

    /// File to write, in pcapng format; - or nothing: standard output, unless it is a terminal
    #[arg(short = 'w', long = "write", value_name = "FILE|-")]
    write: Option<PathBuf>,

    /// Only IP packets from or to this address
    #[arg(long, value_name = "IP")]
    host: Option<IpAddr>,

    /// Only TCP segments and UDP datagrams from or to this port
    #[arg(long, value_name = "PORT", value_parser = value_parser!(u16).range(1..))]
    port: Option<u16>,

    /// Bytes to keep of each packet. The longest headers have 114; behind shorter ones, up to 60
    /// bytes of content are included
    #[arg(long, value_name = "BYTES", default_value = "114",
          value_parser = value_parser!(u32).range(64..=i64::from(SNAPLEN_MAX)))]
    snaplen: u32,

    /// Stop after so many packets
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..))]
    count: Option<u64>,

    /// Stop after so many seconds
    #[arg(long, value_name = "SECONDS", value_parser = value_parser!(u32).range(1..))]
    seconds: Option<u32>,
}

pub(crate) const CAPTURE_HELP: &str = "The file has three interfaces, so that Wireshark shows for \
each packet whether it was received, sent by the host stack, or sent by a NIC stack. TCP \
superpackets appear as the kernel gets them: longer than the link's MTU, with checksums \
completed later. UDP superpackets appear as the datagrams that they are split into.

Stop it with Ctrl-C: it prints how many packets there were, and how many are missing. Only the \
user who runs the server, and root, may capture.

Examples:
  sudo splitway capture -w server.pcapng
  sudo splitway capture --host 192.0.2.7 --port 443 --seconds 60 -w client.pcapng
  sudo splitway capture --snaplen 300000 --count 1000 -w whole.pcapng
  sudo splitway capture | tshark -r -";

/// Captures until the user, a limit or the server ends it.
pub(crate) fn run(args: &CaptureArgs) -> Result<(), Failure> {
    let output = Output::of(args)?;
    let mut signals = Signals::catch_ends()?;
    let wanted = CaptureRequest {
        only: Only {
            host: args.host,
            port: args.port,
        },
        snaplen: args.snaplen,
    };
    let answer = ctl::ask(args.socket.as_deref(), Request::Capture(wanted))?;
    let captured: Captured = serde_json::from_str(&answer.text).map_err(|error| {
        Failure::broken("answer of the server", error)
            .remedy("It runs another version of Splitway: use its own program.")
    })?;
    if answer.descriptors.len() != captured.parts.len() {
        return Err(
            Failure::broken("capturing", "not all packet sockets have arrived")
                .remedy("Too many descriptors are open: raise the limit (ulimit -n)."),
        );
    }
    if captured.nics_elsewhere > 0 {
        tracing::warn!(
            "{} NIC stacks are on other machines: their packets do not pass here; capture them \
             there, with tcpdump",
            captured.nics_elsewhere
        );
    }
    if captured.parts.contains(&Part::BothSend) {
        tracing::warn!(
            "host stack and NIC stacks cannot be distinguished: marking packets needs Linux \
             5.17, or CAP_NET_ADMIN"
        );
    }
    let server = answer.server.and_then(watch);
    let mut capture = Capture::new(output, &captured, answer.descriptors, args)?;
    let deadline = args
        .seconds
        .map(|seconds| Instant::now() + Duration::from_secs(seconds.into()));
    let result = capture.run(&mut signals, server.as_ref(), deadline);
    // Packets read so far are kept in any case.
    let ended = capture.end();
    match result.and(ended) {
        Err(Stop::Unread) => Ok(()),
        Err(Stop::Failed(failure)) => Err(failure),
        Ok(()) => Ok(()),
    }
}

/// Returns a descriptor that is readable once the process has ended; `None` if it cannot be
/// watched.
fn watch(pid: i32) -> Option<OwnedFd> {
    pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()
}

/// Destination of the file.
struct Output {
    name: String,
    into: BufWriter<Box<dyn Write>>,
}

impl Output {
    fn of(args: &CaptureArgs) -> Result<Self, Failure> {
        let into: (String, Box<dyn Write>) = match args.write.as_deref() {
            Some(path) if path != Path::new("-") => {
                let name = format!("file {}", path.display());
                let mut options = OpenOptions::new();
                // Only the owner may read the addresses of clients.
                options.write(true).create(true).truncate(true).mode(0o600);
                let file = options.open(path).map_err(|error| {
                    Failure::input(&name, error)
                        .remedy("Choose a place where this user may write with -w.")
                })?;
                (name, Box::new(file))
            }
            _ if io::stdout().is_terminal() => {
                return Err(
                    Failure::input("standard output", "a terminal cannot show packets")
                        .remedy("Name a file with -w, or pipe it into a program: | tshark -r -"),
                );
            }
            _ => ("standard output".to_owned(), Box::new(io::stdout())),
        };
        let (name, into) = into;
        Ok(Self {
            name,
            into: BufWriter::with_capacity(256 << 10, into),
        })
    }
}

/// Reason for an early stop.
enum Stop {
    /// The output is closed.
    Unread,
    Failed(Failure),
}

struct Capture {
    output: String,
    writer: Writer<BufWriter<Box<dyn Write>>>,
    device: String,
    taps: Vec<TapReader>,
    parts: Vec<Part>,
    /// Packets written from each tap.
    written: Vec<u64>,
    held: Order,
    count_max: u64,
}

impl Capture {
    fn new(
        output: Output,
        captured: &Captured,
        sockets: Vec<OwnedFd>,
        args: &CaptureArgs,
    ) -> Result<Self, Failure> {
        let taps = sockets
            .into_iter()
            .map(|socket| TapReader::new(socket, args.snaplen))
            .collect::<io::Result<Vec<_>>>()
            .map_err(|error| Failure::broken("setting up the memory for packets", error))?;
        let described: Vec<_> = captured
            .parts
            .iter()
            .map(|part| interface_of(*part))
            .collect();
        let interfaces: Vec<_> = described
            .iter()
            .map(|(name, description, comment)| Interface {
                name,
                description,
                comment,
                snaplen: args.snaplen,
            })
            .collect();
        let program = concat!("splitway ", env!("CARGO_PKG_VERSION"));
        let writer = Writer::new(output.into, program, &interfaces)
            .map_err(|error| Failure::broken(&output.name, error))?;
        Ok(Self {
            output: output.name,
            writer,
            device: captured.device.clone(),
            written: vec![0; taps.len()],
            taps,
            parts: captured.parts.clone(),
            held: Order::new(HELD_MAX, HELD_BYTES_MAX),
            count_max: args.count.unwrap_or(u64::MAX),
        })
    }

    /// Captures until a signal, a limit, the deadline or the server's end.
    fn run(
        &mut self,
        signals: &mut Signals,
        server: Option<&OwnedFd>,
        deadline: Option<Instant>,
    ) -> Result<(), Stop> {
        self.flush()?;
        // Started with sudo, the program has the privilege that the capture needs.
        let _ = writeln!(io::stderr(), "splitway: capturing on {}", self.device);
        loop {
            let begun = Instant::now();
            // Taken before the sockets are read: a packet that enters one socket while another is
            // read belongs to the next round.
            let settled_ns = realtime_ns().saturating_sub(HOLD_NS);
            let (taken, complete_until_ns) = self.take();
            self.write_until(settled_ns.min(complete_until_ns))?;
            let is_late = deadline.is_some_and(|deadline| deadline <= begun);
            if self.is_full() || is_late || signals.take() {
                return Ok(());
            }
            if taken > 0 {
                continue;
            }
            self.flush()?;
            if self.wait(signals, server, deadline)? {
                return Ok(());
            }
        }
    }

    /// Reads pending packets; returns their number, and the time until which no packet is left in
    /// any socket.
    fn take(&mut self) -> (usize, u64) {
        let (mut taken, mut complete_until_ns) = (0, u64::MAX);
        for (tap, reader) in self.taps.iter_mut().enumerate() {
            let held = &mut self.held;
            let mut last_ns = 0;
            let count = reader.receive(BATCH, &mut |packet| {
                last_ns = packet.time_ns;
                held.hold(tap, packet.time_ns, packet.len, packet.bytes);
            });
            taken += count;
            if count == BATCH {
                complete_until_ns = complete_until_ns.min(last_ns.saturating_sub(HOLD_NS));
            }
        }
        (taken, complete_until_ns)
    }

    /// Writes the packets with timestamps before `time_ns`, in order.
    fn write_until(&mut self, time_ns: u64) -> Result<(), Stop> {
        while !self.is_full()
            && let Some(packet) = self.held.next(time_ns)
        {
            self.writer
                .packet(packet.tap, packet.time_ns, packet.len, &packet.bytes)
                .map_err(|error| failed(&self.output, error))?;
            self.written[packet.tap] += 1;
        }
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.written.iter().sum::<u64>() >= self.count_max
    }

    /// Sleeps until a descriptor is ready or the deadline; returns true if the server has ended.
    fn wait(
        &mut self,
        signals: &Signals,
        server: Option<&OwnedFd>,
        deadline: Option<Instant>,
    ) -> Result<bool, Stop> {
        let held = (!self.held.is_empty()).then_some(HOLD);
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let timeout = held.into_iter().chain(left).min();
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let taps = self.taps.iter().map(AsFd::as_fd);
        let watched = taps.chain([signals.as_fd()]).chain(server.map(AsFd::as_fd));
        let mut fds: Vec<_> = watched
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        rustix::io::retry_on_intr(|| poll(&mut fds, timeout.as_ref()))
            .map_err(|errno| Stop::Failed(Failure::broken("waiting for packets", errno)))?;
        let gone = server.is_some() && fds.last().is_some_and(|fd| !fd.revents().is_empty());
        if gone {
            tracing::warn!("the server has ended");
            return Ok(true);
        }
        for tap in &self.taps {
            // The interface is gone, or down: packets come no more, or only later.
            if let Err(error) = tap.take_error() {
                let why = format!("{}: {error}", self.device);
                return Err(Stop::Failed(Failure::broken("capturing", why)));
            }
        }
        Ok(false)
    }

    /// Writes the remaining packets, the statistics, and a summary.
    fn end(&mut self) -> Result<(), Stop> {
        let (end_ns, begun) = (realtime_ns(), Instant::now());
        loop {
            let (_, complete_until_ns) = self.take();
            // Packets may go on arriving.
            if complete_until_ns > end_ns || begun.elapsed() > END_MAX {
                break;
            }
            self.write_until(complete_until_ns)?;
        }
        self.write_until(u64::MAX)?;
        let mut dropped = Vec::new();
        let now_ns = realtime_ns();
        for (number, tap) in self.taps.iter_mut().enumerate() {
            let missing = tap.dropped().unwrap_or(0);
            let received = self.written[number] + missing;
            self.writer
                .statistics(number, now_ns, received, missing)
                .map_err(|error| failed(&self.output, error))?;
            dropped.push(missing);
        }
        self.flush()?;
        let parts = self.parts.iter().zip(&self.written);
        let parts: Vec<_> = parts
            .map(|(part, written)| format!("{}: {written}", interface_of(*part).0))
            .collect();
        let (all, missing): (u64, u64) = (self.written.iter().sum(), dropped.iter().sum());
        let missing = match missing {
            0 => "none is missing".to_owned(),
            count => format!("{count} came faster than they were written, and are missing"),
        };
        let text = format!(
            "splitway: {all} packets ({}); {missing}\n",
            parts.join(", ")
        );
        let _ = io::stderr().lock().write_all(text.as_bytes());
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Stop> {
        let flushed = self.writer.flush();
        flushed.map_err(|error| failed(&self.output, error))
    }
}

fn failed(output: &str, error: io::Error) -> Stop {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Stop::Unread,
        _ => Stop::Failed(Failure::broken(output, error)),
    }
}

/// Name, description and comment of the interface of `part`.
fn interface_of(part: Part) -> (&'static str, &'static str, &'static str) {
    const RECEIVED: &str =
        "As the kernel hands them over: GRO may have merged several packets into one.";
    const SENT: &str = "As they are handed to the kernel: superpackets are not cut yet, nor \
            their checksums complete.";
    match part {
        Part::Received => (
            "received",
            "what is sent to the addresses of the server",
            RECEIVED,
        ),
        Part::HostSends => (
            "host stack sends",
            "handshakes, acknowledgments, short responses, ARP",
            SENT,
        ),
        Part::NicSends => (
            "NIC stack sends",
            "packets with bytes of files, and what follows them",
            SENT,
        ),
        Part::BothSend => ("sent", "what host stack and NIC stacks send", SENT),
    }
}

/// Reads the clock of the kernel's packet timestamps.
fn realtime_ns() -> u64 {
    let now = clock_gettime(ClockId::Realtime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
