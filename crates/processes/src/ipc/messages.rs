//! Messages between processes. A child writes one JSON object per line to its standard output; the
//! supervisor answers over the child's control socket ([`fd_passing`](crate::ipc::fd_passing)).
//! Each pair of processes has one type for each direction.

use std::net::IpAddr;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::ipc::qlog_request::QlogRequest;
use config::Text;
use config::log_level::LogLevel;
use config::socket_values::{AddressRange, PortRange};
use failure::Failure;
use observer::{BrokerReport, FetcherReport, Health, Report, WorkerReport};
use sandbox::lockdown::LockedOut;
use socket_channel::attach::Key;

/// A line of a child with messages of type `M`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Line<M> {
    /// The child ends because of this failure.
    Failed(Failure),
    /// The child ends in order, with its final report.
    Report(Report),
    /// A message specific to this kind of child.
    Says(M),
}

/// Messages of one kind of child.
pub trait FromChild: Serialize + DeserializeOwned {}

/// Messages of the host process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromHost {
    /// The host stack answers on the link, and is locked out of the file system.
    Ready(LockedOut),
    /// The state of a NIC process has changed.
    Nic {
        /// The NIC stack.
        nic: usize,
        /// Number of the process among those passed for that NIC stack, from 1.
        generation: u64,
        /// The new state.
        fate: NicFate,
    },
    /// The oldest pending configuration is in use.
    Reloaded {
        /// Number of its certificates.
        certificates: usize,
        /// Number of connections ended because their clients may no longer connect.
        ended: usize,
    },
    /// The oldest pending configuration is refused.
    ReloadRefused(String),
    /// All connections are closed, as [`ToHost::Drain`] requested.
    Drained,
    /// The answer to [`ToHost::Ping`], given between two turns.
    Pong,
    /// The answer to [`ToHost::Deny`] and [`ToHost::Allow`].
    AccessChanged {
        /// Number of connections ended.
        ended: usize,
    },
    /// The answer to [`ToHost::Detach`].
    Detached {
        /// The requested process.
        pid: u32,
        /// Whether it belongs to an application, which is detached then.
        is_known: bool,
    },
}

/// State of a NIC process in the host process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NicFate {
    /// The host stack uses it.
    Joined,
    /// The host stack has refused it.
    Refused {
        /// Reason, for the log.
        why: String,
    },
    /// The host stack used it, and has lost it.
    Lost {
        /// Reason, for the log.
        why: String,
    },
    /// The host stack uses it, and a worker sends no heartbeat.
    Silent {
        /// The worker, from 0.
        worker: usize,
    },
}

/// Messages of a NIC process, and of the relay to one on another machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromNic {
    /// The NIC stack takes commands.
    Ready {
        /// Number of workers.
        workers: usize,
    },
    /// Counters of a worker so far.
    Counters {
        /// The worker, from 0.
        worker: usize,
        /// Its counters.
        report: Report,
    },
}

/// Messages of the fetcher.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromFetcher {
    /// The fetcher takes requests.
    Ready,
    /// Counters so far.
    Counters {
        /// URL of their origin; none: all origins together.
        origin: Option<String>,
        /// The counters.
        report: Report,
    },
}

/// Messages of the broker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromBroker {
    /// Applications can attach.
    Ready,
    /// The answer to [`ToBroker::Ping`].
    Pong,
    /// Counters so far, if they have changed.
    Counters(Report),
}

/// Messages of the observer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromObserver {
    /// The observer receives records and logs.
    Ready,
    /// A log continues in the file that was passed for it.
    LogChanged,
    /// The answer to [`ToObserver::Ping`].
    Pong,
}

/// Messages of the relay of `splitway nic --control`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromRelay {
    /// Host stacks may connect.
    Listening {
        /// The relay's address on the control link.
        mac: String,
    },
    /// A host stack needs a NIC process.
    HostConnected {
        /// Number of the session, modulo 256.
        session: u8,
        /// The host stack's address on the control link.
        host: String,
    },
    /// A session has ended.
    HostGone {
        /// The session.
        session: u8,
        /// Its counters.
        report: Report,
    },
}

impl FromChild for FromHost {}
impl FromChild for FromNic {}
impl FromChild for FromFetcher {}
impl FromChild for FromBroker {}
impl FromChild for FromObserver {}
impl FromChild for FromRelay {}

/// Messages of the supervisor to the host process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToHost {
    /// With a sealed file: the configuration to use
    /// ([`HostConfiguration`](crate::ipc::host_configuration::HostConfiguration)).
    Configure,
    /// With a socket to the observer.
    Observer,
    /// With a socket over which a process of this NIC stack sends its hello.
    Nic(usize),
    /// With a socket to a fetcher.
    Fetcher,
    /// With a socket to a broker ([`BrokerToHost`], [`HostToBroker`]): the first, or the successor
    /// of another. Attached applications stay attached.
    Broker,
    /// With a pipe: asks for the connections, to be written to it.
    Stat,
    /// With a pipe: asks for events of QUIC connections, to be written to it.
    Qlog(QlogRequest),
    /// Asks to close each connection after its responses.
    Drain,
    /// Asks for a [`FromHost::Pong`] between two turns.
    Ping,
    /// Asks to detach the application with this process.
    Detach(u32),
    /// Denies a network, and ends its connections.
    Deny {
        /// The network.
        network: Text<AddressRange>,
        /// End of the denial, in microseconds of the monotonic clock; none: for good.
        until_us: Option<u64>,
    },
    /// Takes a denial of this network back.
    Allow(Text<AddressRange>),
    /// Sets the level of the process's log.
    LogLevel(Text<LogLevel>),
    /// With a sealed file: addresses and gateways from now on
    /// ([`NewAddresses`](crate::ipc::shared_link::NewAddresses)).
    Addresses,
}

/// Messages of the supervisor to a NIC process, and to the relay to one on another machine.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToNic {
    /// Sets the level of the process's log.
    LogLevel(Text<LogLevel>),
}

/// Messages of the supervisor to the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToBroker {
    /// With the socket at which applications connect.
    Listener,
    /// Asks for a [`FromBroker::Pong`].
    Ping,
    /// Sets the level of the process's log.
    LogLevel(Text<LogLevel>),
    /// With a socket over which a NIC process takes files ([`BrokerToNic`]).
    Nic,
}

/// Messages of the broker to a NIC process, about files that applications have passed.
/// [`NicToBroker`] answers where noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BrokerToNic {
    /// With a descriptor open for reading, which an application may hold as well.
    File {
        /// Its number among those of all applications
        /// ([`AppId::passed`](socket_channel::AppId::passed)).
        file: u64,
    },
    /// The file is sent no more.
    Close {
        /// The file.
        file: u64,
    },
    /// The files of an application are sent no more.
    CloseAll {
        /// The application.
        app: u32,
    },
    /// Asks for the descriptor of a file that an earlier broker held; answered by
    /// [`NicToBroker::File`].
    Return {
        /// The file.
        file: u64,
    },
    /// All files passed before this NIC process began have been sent.
    Complete,
}

/// Messages of a NIC process to the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NicToBroker {
    /// With the descriptor of a file, if the NIC process has it.
    File {
        /// The file.
        file: u64,
    },
}

/// Messages of the broker to the host process. The broker has created all their descriptors itself:
/// an application's are never among them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BrokerToHost {
    /// With the memory of a channel, the host's bell and the application's; before these, for the
    /// first process of an application, its segment. Answered by [`HostToBroker::Attached`] or
    /// [`HostToBroker::Refused`].
    Attach(NewProcess),
    /// A process that an earlier broker attached has connected to this one. Answered like
    /// [`BrokerToHost::Attach`].
    Reattach {
        /// The application.
        app: u32,
        /// The channel of the process.
        channel: u32,
    },
    /// With the host's ends of handles, in the order of their numbers. Sent before the application
    /// has the other ends.
    Handles {
        /// The application.
        app: u32,
        /// Channel of the process that gets them.
        channel: u32,
        /// Number of the first. Numbers wrap to 0.
        first: u32,
    },
    /// A process of an application has ended, even if others hold its handles. After the last
    /// process, the broker sends no more about the application.
    Gone {
        /// The application.
        app: u32,
        /// The channel of the process.
        channel: u32,
    },
}

/// Messages of the host process to the broker: first the applications and processes that earlier
/// brokers attached, then [`HostToBroker::Known`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HostToBroker {
    /// An application, with its segment.
    Application(KnownApplication),
    /// A process of the preceding application.
    Process(KnownProcess),
    /// A file that an application has passed to an earlier broker, and that may still be sent.
    File {
        /// The application.
        app: u32,
        /// The number of the file.
        file: u32,
    },
    /// The broker knows everything attached, and may serve.
    Known,
    /// A process that an earlier broker attached has ended, and will not connect to this one.
    Ended {
        /// The application.
        app: u32,
        /// The channel of the process.
        channel: u32,
    },
    /// The host stack serves the channel.
    Attached {
        /// The application.
        app: u32,
        /// The channel.
        channel: u32,
    },
    /// The host stack does not serve the channel, and has forgotten it: if it was the application's
    /// first, the application is detached.
    Refused {
        /// The application.
        app: u32,
        /// The channel.
        channel: u32,
        /// Reason: an `errno`, never 0.
        errno: u32,
    },
    /// Handles of an application have been closed.
    HandlesClosed {
        /// The application.
        app: u32,
        /// Number closed since the last such message.
        count: u32,
    },
    /// The host stack has released the application's state. Its remaining processes, if any, are
    /// cut off.
    Detached {
        /// The application.
        app: u32,
    },
    /// A file that an application has passed is sent no more.
    Released {
        /// The application.
        app: u32,
        /// The number of the file.
        file: u32,
    },
}

/// An application that an earlier broker attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownApplication {
    /// Its number.
    pub app: u32,
    /// The user of its first process.
    pub uid: u32,
    /// Modes that are on, of `socket_channel::attach`.
    pub modes: u32,
    /// Number of its next handle.
    pub next_handle: u32,
    /// Number of its open handles.
    pub handles: u32,
    /// Its secret.
    #[serde(with = "key_bytes")]
    pub key: Key,
}

/// A process that an earlier broker attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownProcess {
    /// Its application.
    pub app: u32,
    /// Its channel.
    pub channel: u32,
    /// Its process ID when it attached; 0 if it was not visible.
    pub pid: u32,
    /// Its user when it attached.
    pub uid: u32,
}

/// A process that attaches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewProcess {
    /// Its application, never 0, and never the number of another that the host stack still knows.
    pub app: u32,
    /// Its channel, equally unique.
    pub channel: u32,
    /// The process; none if it is not visible here.
    pub pid: Option<i32>,
    /// Its user.
    pub uid: u32,
    /// Modes that are on, of `socket_channel::attach`.
    pub modes: u32,
    /// The application, if this is its first process.
    pub application: Option<NewApplication>,
}

/// Limits and rights of a new application.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewApplication {
    /// Its limits.
    pub limits: SocketLimits,
    /// Its rights.
    pub rights: SocketRights,
    /// Its secret.
    #[serde(with = "key_bytes")]
    pub key: Key,
}

/// Serializes a key as a list of its bytes.
mod key_bytes {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use socket_channel::attach::Key;

    pub(super) fn serialize<S: Serializer>(key: &Key, serializer: S) -> Result<S::Ok, S::Error> {
        key.bytes().serialize(serializer)
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(deserializer: D) -> Result<Key, D::Error> {
        <[u8; Key::BYTES]>::deserialize(deserializer).map(Key::new)
    }
}

/// Limits of an application.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketLimits {
    /// Most sockets.
    pub sockets_max: u32,
    /// Size of the segment, in bytes.
    pub segment_bytes: u64,
    /// Most listening sockets.
    pub listeners_max: u32,
    /// Most bound addresses and ports.
    pub bindings_max: u32,
    /// Most files.
    pub files_max: u32,
    /// Largest share of its sockets for connections of one source, in percent.
    pub source_share_percent: u32,
    /// Most messages that the host stack takes in a turn.
    pub messages_per_turn: u32,
    /// Most time that the host stack spends on messages in a turn, in microseconds.
    pub turn_us_max: u32,
}

impl SocketLimits {
    /// Returns the limits that determine the segment's layout.
    pub fn of_segment(&self) -> socket_channel::Limits {
        socket_channel::Limits {
            sockets_max: self.sockets_max,
            segment_bytes: self.segment_bytes,
        }
    }
}

/// Rights of an application.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketRights {
    /// Ports that it may listen on.
    pub listen: Vec<Text<PortRange>>,
    /// Addresses of the stack that it may use; none: all.
    pub addresses: Vec<Text<AddressRange>>,
    /// Whether it may open connections.
    pub connect: bool,
}

impl SocketRights {
    /// Returns whether it may listen on this port, which is not 0.
    pub fn may_listen(&self, port: u16) -> bool {
        self.listen.iter().any(|ports| ports.0.contains(port))
    }

    /// Returns whether it may use this address of the stack.
    pub fn may_use(&self, address: IpAddr) -> bool {
        let mut ranges = self.addresses.iter();
        self.addresses.is_empty() || ranges.any(|range| range.0.contains(address))
    }
}

/// Messages of the supervisor to the observer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToObserver {
    /// With the socket on which the host process sends access records.
    Records,
    /// With a file: the access log, or its continuation.
    AccessLog,
    /// With the pipe to which all processes write their logs.
    Errors,
    /// With a file: the error log, or its continuation.
    ErrorLog,
    /// With a file: the key log, permanently.
    KeyLog,
    /// With the listener for metrics and the dashboard.
    Admin,
    /// All initial descriptors have been passed.
    Start,
    /// The counters of a worker.
    Worker(WorkerReport),
    /// The counters of the fetcher.
    Fetcher(FetcherReport),
    /// The counters of the broker.
    Broker(BrokerReport),
    /// The health of the server has changed.
    Health(Health),
    /// Asks for a [`FromObserver::Pong`].
    Ping,
}

/// Messages of the supervisor to the relay of `splitway nic --control`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToRelay {
    /// With the socket over which the NIC process of a session sends its hello, or without if the
    /// process could not be started.
    Nic {
        /// The session.
        session: u8,
    },
}

impl<M: FromChild> Line<M> {
    /// Writes the line to standard output, and flushes it.
    pub fn write(&self, mut stdout: std::io::StdoutLock<'_>) -> std::io::Result<()> {
        use std::io::Write;
        let mut line = serde_json::to_vec(self).map_err(std::io::Error::other)?;
        line.push(b'\n');
        stdout.write_all(&line)?;
        stdout.flush()
    }
}

/// Splits a byte stream into lines.
#[derive(Debug, Default)]
pub struct LineBuffer {
    bytes: Vec<u8>,
    /// Whether the current line is too long and is dropped.
    is_too_long: bool,
}

/// Longest message, in bytes: twice the fetcher's longest report.
const LINE_BYTES_MAX: usize = 128 << 10;

impl LineBuffer {
    /// Adds received bytes. A line longer than any message is dropped as it arrives, which bounds
    /// the supervisor's memory.
    pub fn push(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        if self.is_too_long {
            let Some(end) = rest.iter().position(|byte| *byte == b'\n') else {
                return;
            };
            self.is_too_long = false;
            rest = &rest[end + 1..];
        }
        self.bytes.extend_from_slice(rest);
        let last = self.bytes.iter().rposition(|byte| *byte == b'\n');
        let begun = last.map_or(0, |end| end + 1);
        if self.bytes.len() - begun > LINE_BYTES_MAX {
            self.bytes.truncate(begun);
            self.bytes
                .extend_from_slice(b"a line that is too long for a message\n");
            self.is_too_long = true;
        }
    }

    /// Returns the next complete line, without its end.
    pub fn next_line(&mut self) -> Option<Vec<u8>> {
        let end = self.bytes.iter().position(|byte| *byte == b'\n')?;
        Some(self.bytes.drain(..=end).take(end).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the next line, as a message of a NIC process, or as text.
    fn next(buffer: &mut LineBuffer) -> Option<Result<Line<FromNic>, String>> {
        let line = buffer.next_line()?;
        Some(serde_json::from_slice(&line).map_err(|_| String::from_utf8_lossy(&line).into_owned()))
    }

    fn ready(workers: usize) -> Line<FromNic> {
        Line::Says(FromNic::Ready { workers })
    }

    const READY: &[u8] = b"{\"says\":{\"ready\":{\"workers\":1}}}\n";

    #[test]
    fn messages_survive_being_cut_anywhere() {
        let messages = [
            ready(2),
            Line::Failed(Failure::input("port", "in \"use\"\nreally").remedy("wait")),
            Line::Report(Report {
                counters: vec![("sends".into(), 7)],
                ..Report::now(Vec::new())
            }),
        ];
        let mut bytes = Vec::new();
        for message in &messages {
            bytes.extend(serde_json::to_vec(message).unwrap());
            bytes.push(b'\n');
        }
        for piece in 1..bytes.len() {
            let (mut buffer, mut received) = (LineBuffer::default(), Vec::new());
            for bytes in bytes.chunks(piece) {
                buffer.push(bytes);
                received.extend(std::iter::from_fn(|| next(&mut buffer)).map(Result::unwrap));
            }
            assert_eq!(received, messages, "in pieces of {piece} bytes");
        }
    }

    #[test]
    fn a_line_that_is_no_message_does_not_hide_the_next() {
        let mut buffer = LineBuffer::default();
        buffer.push(b"warning: something\n");
        buffer.push(READY);
        buffer.push(b"{\"says");
        assert_eq!(
            next(&mut buffer),
            Some(Err("warning: something".to_owned()))
        );
        assert_eq!(next(&mut buffer), Some(Ok(ready(1))));
        assert_eq!(next(&mut buffer), None);
    }

    #[test]
    fn a_line_without_end_takes_bounded_memory_and_hides_no_message() {
        let mut buffer = LineBuffer::default();
        for _ in 0..1_000 {
            buffer.push(&[b'x'; 4096]);
            assert!(buffer.bytes.len() <= LINE_BYTES_MAX + 4096);
        }
        buffer.push(b"\n");
        buffer.push(READY);
        assert!(matches!(next(&mut buffer), Some(Err(_))));
        assert_eq!(next(&mut buffer), Some(Ok(ready(1))));
        assert_eq!(next(&mut buffer), None);
    }

    #[test]
    fn what_two_processes_did_adds_up() {
        let mut sum = Report {
            counters: vec![("opens".into(), 3)],
            cpu_user_us: 5,
            memory_bytes_max: 100,
            ..Report::default()
        };
        sum.absorb(&Report {
            counters: vec![("opens".into(), 4), ("closes".into(), 1)],
            cpu_user_us: 7,
            memory_bytes_max: 60,
            ..Report::default()
        });
        assert_eq!(
            (sum.counter("opens"), sum.counter("closes")),
            (Some(7), Some(1))
        );
        assert_eq!((sum.cpu_user_us, sum.memory_bytes_max), (12, 100));
    }

    #[test]
    fn a_counter_is_found_by_name() {
        let report = Report::now(vec![("opens".into(), 3)]);
        assert_eq!(report.counter("opens"), Some(3));
        assert_eq!(report.counter("closes"), None);
        assert!(report.memory_bytes_max > 0);
    }
}
