//! What processes say to each other. A child writes one JSON object per line to its standard
//! output; the supervisor answers over the child's control socket
//! ([`fd_passing`](crate::ipc::fd_passing)). Each pair of processes has one type each way.

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

/// A line of a child that says `M`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Line<M> {
    /// The child ends because of this.
    Failed(Failure),
    /// The child ends in order; this is what it did.
    Report(Report),
    /// What only this kind of child says.
    Says(M),
}

/// What only one kind of child says.
pub trait FromChild: Serialize + DeserializeOwned {}

/// What the host process says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromHost {
    /// The host stack answers on the link, and is locked out of the file system.
    Ready(LockedOut),
    /// What has become of a NIC process.
    Nic {
        /// Its NIC stack.
        nic: usize,
        /// Which of the processes passed for that NIC stack, from 1.
        generation: u64,
        /// What has become of it.
        fate: NicFate,
    },
    /// The oldest configuration that is pending is in use.
    Reloaded {
        /// How many certificates it has.
        certificates: usize,
    },
    /// The oldest configuration that is pending is refused.
    ReloadRefused(String),
    /// All connections are closed, as [`ToHost::Drain`] asked.
    Drained,
    /// The answer to [`ToHost::Ping`], given between two turns.
    Pong,
    /// The answer to [`ToHost::Detach`].
    Detached {
        /// The process that was named.
        pid: u32,
        /// Whether an application has such a process; it is served no more then.
        is_known: bool,
    },
}

/// What has become of a NIC process in the host process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NicFate {
    /// The host stack uses it.
    Joined,
    /// The host stack does not use it.
    Refused {
        /// Why, for the log.
        why: String,
    },
    /// The host stack has used it, and lost it.
    Lost {
        /// Why, for the log.
        why: String,
    },
    /// The host stack uses it, and a worker gives no heartbeat.
    Silent {
        /// The worker, from 0.
        worker: usize,
    },
}

/// What a NIC process says, and the relay that stands for one on another machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromNic {
    /// The NIC stack takes commands.
    Ready {
        /// How many workers it has.
        workers: usize,
    },
    /// The counters of a worker so far.
    Counters {
        /// The worker, from 0.
        worker: usize,
        /// Its counters.
        report: Report,
    },
}

/// What the fetcher says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromFetcher {
    /// The fetcher takes requests.
    Ready,
    /// Its counters so far.
    Counters {
        /// URL of the origin that they are of; none: of all.
        origin: Option<String>,
        /// The counters.
        report: Report,
    },
}

/// What the broker says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromBroker {
    /// Applications can attach.
    Ready,
    /// The answer to [`ToBroker::Ping`].
    Pong,
    /// Its counters so far, if they have changed.
    Counters(Report),
}

/// What the observer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromObserver {
    /// The observer receives records and logs.
    Ready,
    /// A log goes on in the file that was passed for it.
    LogChanged,
    /// The answer to [`ToObserver::Ping`].
    Pong,
}

/// What the relay of `splitway nic --control` says.
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
        /// Counts the hosts, modulo 256.
        session: u8,
        /// Its address on the control link.
        host: String,
    },
    /// A session has ended.
    HostGone {
        /// Which.
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

/// What the supervisor says to the host process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToHost {
    /// With a sealed file: a configuration to use
    /// ([`HostConfiguration`](crate::ipc::host_configuration::HostConfiguration)).
    Configure,
    /// With a socket that leads to the observer.
    Observer,
    /// With a socket over which a process of this NIC stack says hello.
    Nic(usize),
    /// With a socket that leads to a fetcher.
    Fetcher,
    /// With a socket that leads to a broker ([`BrokerToHost`], [`HostToBroker`]): the first, or one
    /// that takes the place of another. What has attached stays attached.
    Broker,
    /// With a pipe: the connections are to be written to it.
    Stat,
    /// With a pipe: what connections of QUIC do is to be written to it.
    Qlog(QlogRequest),
    /// All connections are to be closed when their responses have ended.
    Drain,
    /// Is to be answered between two turns.
    Ping,
    /// The application with this process is to be served no more.
    Detach(u32),
    /// Its log is to have this level.
    LogLevel(Text<LogLevel>),
}

/// What the supervisor says to a NIC process, and to the relay that stands for one on another
/// machine.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToNic {
    /// Its log is to have this level.
    LogLevel(Text<LogLevel>),
}

/// What the supervisor says to the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToBroker {
    /// With the socket on which applications connect.
    Listener,
    /// Is to be answered.
    Ping,
    /// Its log is to have this level.
    LogLevel(Text<LogLevel>),
    /// With a socket on which a NIC process takes files ([`BrokerToNic`]).
    Nic,
}

/// What the broker says to a NIC process: which files applications have passed. It is answered by
/// [`NicToBroker`] where that is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BrokerToNic {
    /// With a descriptor that is open for reading, which an application may have as well.
    File {
        /// Its number among those of all applications
        /// ([`AppId::passed`](socket_channel::AppId::passed)).
        file: u64,
    },
    /// Nothing is sent of a file any more.
    Close {
        /// The file.
        file: u64,
    },
    /// Nothing is sent of the files of an application any more.
    CloseAll {
        /// The application.
        app: u32,
    },
    /// The descriptor of a file is to come back, for an earlier broker has taken its own along.
    /// Answered by [`NicToBroker::File`].
    Return {
        /// The file.
        file: u64,
    },
    /// All files that were passed before this NIC process began have been sent.
    Complete,
}

/// What a NIC process says to the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NicToBroker {
    /// With the descriptor of a file, if the NIC process has it.
    File {
        /// The file.
        file: u64,
    },
}

/// What the broker says to the host process. It has made all descriptors itself: none of them was
/// an application's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BrokerToHost {
    /// With the memory of a channel, the host's bell and the application's; before these, for the
    /// first process of an application, its segment. Answered by [`HostToBroker::Attached`] or
    /// [`HostToBroker::Refused`].
    Attach(NewProcess),
    /// A process that an earlier broker attached has come to this one. Answered like
    /// [`BrokerToHost::Attach`].
    Reattach {
        /// The application.
        app: u32,
        /// The channel of the process.
        channel: u32,
    },
    /// With the host's ends of handles, in the order of their numbers. It comes before the
    /// application has the other ends.
    Handles {
        /// The application.
        app: u32,
        /// The channel of the process that gets them.
        channel: u32,
        /// Number of the first. When there are no more, they begin again at 0.
        first: u32,
    },
    /// A process of an application is gone, whatever handles others have of it. After the last one
    /// comes no more of that application.
    Gone {
        /// The application.
        app: u32,
        /// The channel of the process.
        channel: u32,
    },
}

/// What the host process says to the broker: first what earlier brokers have attached, with
/// [`HostToBroker::Known`] behind the last of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HostToBroker {
    /// An application, with its segment.
    Application(KnownApplication),
    /// A process of the application before it.
    Process(KnownProcess),
    /// A file that an application has passed to an earlier broker, and that may be sent yet.
    File {
        /// The application.
        app: u32,
        /// The number of the file.
        file: u32,
    },
    /// The broker knows all that there is, and may serve.
    Known,
    /// A process that an earlier broker attached has ended, and will not come to this one.
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
    /// The host stack does not serve the channel, and has forgotten it: an application whose first
    /// it was is detached.
    Refused {
        /// The application.
        app: u32,
        /// The channel.
        channel: u32,
        /// Why: an `errno`, never 0.
        errno: u32,
    },
    /// So many handles of an application have been closed since the last such message.
    HandlesClosed {
        /// The application.
        app: u32,
        /// How many.
        count: u32,
    },
    /// The host stack has nothing of the application any more. If it still has processes, they are
    /// cut off.
    Detached {
        /// The application.
        app: u32,
    },
    /// Nothing is sent any more of a file that an application has passed.
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
    /// The modes that are on, of `socket_channel::attach`.
    pub modes: u32,
    /// Number of its next handle.
    pub next_handle: u32,
    /// Its handles that are open.
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
    /// Its application, never 0, and never that of another that the host stack still knows.
    pub app: u32,
    /// Its channel, as unique.
    pub channel: u32,
    /// The process; none if it is not visible here.
    pub pid: Option<i32>,
    /// Its user.
    pub uid: u32,
    /// The modes that are on, of `socket_channel::attach`.
    pub modes: u32,
    /// The application, if this is its first process.
    pub application: Option<NewApplication>,
}

/// What an application may use, and do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewApplication {
    /// How much it may use.
    pub limits: SocketLimits,
    /// What it may do.
    pub rights: SocketRights,
    /// Its secret.
    #[serde(with = "key_bytes")]
    pub key: Key,
}

/// A key as a list of its bytes.
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

/// How much an application may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketLimits {
    /// Sockets.
    pub sockets_max: u32,
    /// Size of the segment, in bytes.
    pub segment_bytes: u64,
    /// Listening sockets.
    pub listeners_max: u32,
    /// Bound addresses and ports.
    pub bindings_max: u32,
    /// Files.
    pub files_max: u32,
    /// Most of its sockets that connections of one source take, in percent.
    pub source_share_percent: u32,
    /// Messages that the host stack takes in a turn.
    pub messages_per_turn: u32,
    /// Time that the host stack spends on messages in a turn, in microseconds.
    pub turn_us_max: u32,
}

impl SocketLimits {
    /// What the segment is laid out for.
    pub fn of_segment(&self) -> socket_channel::Limits {
        socket_channel::Limits {
            sockets_max: self.sockets_max,
            segment_bytes: self.segment_bytes,
        }
    }
}

/// What an application may do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketRights {
    /// Ports that it may listen on.
    pub listen: Vec<Text<PortRange>>,
    /// Addresses of the stack that it may use; none: all.
    pub addresses: Vec<Text<AddressRange>>,
    /// It may open connections.
    pub connect: bool,
}

impl SocketRights {
    /// It may listen on this port, which is not 0.
    pub fn may_listen(&self, port: u16) -> bool {
        self.listen.iter().any(|ports| ports.0.contains(port))
    }

    /// It may use this address of the stack.
    pub fn may_use(&self, address: IpAddr) -> bool {
        let mut ranges = self.addresses.iter();
        self.addresses.is_empty() || ranges.any(|range| range.0.contains(address))
    }
}

/// What the supervisor says to the observer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToObserver {
    /// With the socket on which the host process sends access records.
    Records,
    /// With a file: the access log, or the one in which it goes on.
    AccessLog,
    /// With the pipe to which all processes write their logs.
    Errors,
    /// With a file: the error log, or the one in which it goes on.
    ErrorLog,
    /// With a file: the key log, for good.
    KeyLog,
    /// With the listener for metrics and the dashboard.
    Admin,
    /// All descriptors were passed that it starts with.
    Start,
    /// The counters of a worker.
    Worker(WorkerReport),
    /// The counters of the fetcher.
    Fetcher(FetcherReport),
    /// The counters of the broker.
    Broker(BrokerReport),
    /// The health of the server has changed.
    Health(Health),
    /// Is to be answered.
    Ping,
}

/// What the supervisor says to the relay of `splitway nic --control`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToRelay {
    /// With the socket over which the NIC process of a session says hello, or without if it could
    /// not be started.
    Nic {
        /// The session.
        session: u8,
    },
}

impl<M: FromChild> Line<M> {
    /// Writes it to standard output, and flushes that.
    pub fn write(&self, mut stdout: std::io::StdoutLock<'_>) -> std::io::Result<()> {
        use std::io::Write;
        let mut line = serde_json::to_vec(self).map_err(std::io::Error::other)?;
        line.push(b'\n');
        stdout.write_all(&line)?;
        stdout.flush()
    }
}

/// Cuts lines out of what arrives in pieces.
#[derive(Debug, Default)]
pub struct LineBuffer {
    bytes: Vec<u8>,
    /// The line that is arriving is dropped.
    is_too_long: bool,
}

/// Longest message, in bytes: twice what the fetcher's longest report takes.
const LINE_BYTES_MAX: usize = 128 << 10;

impl LineBuffer {
    /// Adds what has arrived. A line longer than any message is dropped as it arrives, so that a
    /// child cannot make its supervisor hold more.
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

    /// The next complete line, without its end.
    pub fn next_line(&mut self) -> Option<Vec<u8>> {
        let end = self.bytes.iter().position(|byte| *byte == b'\n')?;
        Some(self.bytes.drain(..=end).take(end).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The next line, as a message of a NIC process, or as it is.
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
