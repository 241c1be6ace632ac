//! Options of sockets (socket(7), tcp(7)). They are kept until there is a connection, and inherited
//! by connections that a listener accepts.

use std::time::Duration;

use host::CongestionAlgorithm;
use host::app::{Io, StreamId, StreamOption, StreamOptions, TrafficClass};
use rustix::io::Errno;
use socket_channel::SocketOption;
use tcp::Keepalive;

/// Smallest and largest buffer sizes, in bytes; others are clamped, as in the kernel.
const BUFFER_BYTES_MIN: u64 = 4 << 10;
const BUFFER_BYTES_MAX: u64 = 1 << 20;

/// Smallest accepted MSS, in bytes (`TCP_MIN_MSS` of Linux).
const MSS_MIN: u64 = 88;

/// Longest accepted keep-alive times, in seconds, and most probes (`MAX_TCP_KEEPIDLE`,
/// `MAX_TCP_KEEPCNT` of Linux).
const KEEPALIVE_SECONDS_MAX: u64 = 32_767;
const KEEPALIVE_PROBES_MAX: u64 = 127;

/// Congestion controls in the order of their codes ([`socket_channel::message::CONGESTIONS`]).
const CONGESTIONS: [CongestionAlgorithm; 3] = [
    CongestionAlgorithm::NewReno,
    CongestionAlgorithm::Cubic,
    CongestionAlgorithm::Bbr,
];

/// Returns the code of a congestion control in messages.
pub(crate) fn congestion_code(algorithm: CongestionAlgorithm) -> u64 {
    let before = CONGESTIONS.iter().take_while(|known| **known != algorithm);
    before.count() as u64
}

/// Option values of a socket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    nodelay: bool,
    cork: bool,
    keepalive: bool,
    keepalive_times: Keepalive,
    user_timeout_ms: u64,
    pub(crate) linger_ms: Option<u64>,
    quickack: bool,
    defer_accept_seconds: u64,
    pub(crate) receive_buffer_bytes: Option<usize>,
    pub(crate) send_buffer_bytes: Option<usize>,
    congestion: Option<CongestionAlgorithm>,
    notsent_lowat_bytes: Option<u64>,
    mss_max: Option<u16>,
    fast_open_queue: u64,
    traffic_class: TrafficClass,
    setup_offload: Option<bool>,
    teardown_offload: Option<bool>,
}

impl Default for Options {
    /// Returns the kernel's defaults: above all, the Nagle algorithm is on.
    fn default() -> Options {
        Options {
            nodelay: false,
            cork: false,
            keepalive: false,
            keepalive_times: Keepalive::default(),
            user_timeout_ms: 0,
            linger_ms: None,
            quickack: true,
            defer_accept_seconds: 0,
            receive_buffer_bytes: None,
            send_buffer_bytes: None,
            congestion: None,
            notsent_lowat_bytes: None,
            mss_max: None,
            fast_open_queue: 0,
            traffic_class: TrafficClass::default(),
            setup_offload: None,
            teardown_offload: None,
        }
    }
}

/// The bound of `net.core.somaxconn`.
const FAST_OPEN_QUEUE_MAX: u64 = 4096;

/// Checks that a number is between `least` and `most`.
fn within(value: u64, least: u64, most: u64) -> Result<u64, Errno> {
    if (least..=most).contains(&value) {
        Ok(value)
    } else {
        Err(Errno::INVAL)
    }
}

/// Returns a traffic class without its ECN field.
fn class(value: u64) -> Result<u8, Errno> {
    Ok(within(value, 0, u8::MAX.into())? as u8 & !3)
}

fn buffer(value: u64) -> usize {
    value.clamp(BUFFER_BYTES_MIN, BUFFER_BYTES_MAX) as usize
}

impl Options {
    fn keepalive(&self) -> Option<Keepalive> {
        self.keepalive.then_some(self.keepalive_times)
    }

    fn user_timeout(&self) -> Option<Duration> {
        let ms = self.user_timeout_ms;
        (ms > 0).then(|| Duration::from_millis(ms))
    }

    /// Returns the options that a connection inherits from its listener.
    pub(crate) fn inherited(self) -> Options {
        Options {
            fast_open_queue: 0,
            defer_accept_seconds: 0,
            ..self
        }
    }

    /// Sets an option.
    pub(crate) fn set(&mut self, option: SocketOption, value: u64) -> Result<(), Errno> {
        match option {
            SocketOption::NoDelay => self.nodelay = value != 0,
            SocketOption::Cork => self.cork = value != 0,
            SocketOption::KeepAlive => self.keepalive = value != 0,
            SocketOption::KeepIdleSeconds => {
                let seconds = within(value, 1, KEEPALIVE_SECONDS_MAX)?;
                self.keepalive_times.idle = Duration::from_secs(seconds);
            }
            SocketOption::KeepIntervalSeconds => {
                let seconds = within(value, 1, KEEPALIVE_SECONDS_MAX)?;
                self.keepalive_times.interval = Duration::from_secs(seconds);
            }
            SocketOption::KeepCount => {
                self.keepalive_times.probes = within(value, 1, KEEPALIVE_PROBES_MAX)? as u8;
            }
            SocketOption::UserTimeoutMs => {
                self.user_timeout_ms = within(value, 0, i32::MAX as u64)?;
            }
            SocketOption::LingerMs => self.linger_ms = (value != u64::MAX).then_some(value),
            SocketOption::QuickAck => self.quickack = value != 0,
            SocketOption::DeferAcceptSeconds => {
                self.defer_accept_seconds = value.min(i32::MAX as u64);
            }
            SocketOption::ReceiveBufferBytes => self.receive_buffer_bytes = Some(buffer(value)),
            SocketOption::SendBufferBytes => self.send_buffer_bytes = Some(buffer(value)),
            SocketOption::Congestion => {
                let known = CONGESTIONS.get(usize::try_from(value).unwrap_or(usize::MAX));
                self.congestion = Some(*known.ok_or(Errno::NOENT)?);
            }
            SocketOption::MaxSegmentBytes => {
                self.mss_max = match value {
                    0 => None,
                    _ => Some(within(value, MSS_MIN, u16::MAX.into())? as u16),
                };
            }
            SocketOption::NotSentLowWaterBytes => self.notsent_lowat_bytes = Some(value),
            SocketOption::FastOpenQueue => {
                let wanted = within(value, 0, i32::MAX as u64)?;
                self.fast_open_queue = wanted.min(FAST_OPEN_QUEUE_MAX);
            }
            SocketOption::TypeOfService => self.traffic_class.v4 = class(value)?,
            SocketOption::TrafficClass => self.traffic_class.v6 = class(value)?,
            SocketOption::SetupOffload => self.setup_offload = Some(value != 0),
            SocketOption::TeardownOffload => self.teardown_offload = Some(value != 0),
            // These concern the binding of an address, and come with Bind.
            SocketOption::ReuseAddress | SocketOption::ReusePort | SocketOption::V6Only => {
                return Err(Errno::INVAL);
            }
        }
        Ok(())
    }

    /// Reports `TCP_CORK`.
    pub(crate) fn cork(&self) -> bool {
        self.cork
    }

    /// Returns `TCP_NOTSENT_LOWAT`, in bytes, if it is set.
    pub(crate) fn notsent_lowat_bytes(&self) -> Option<u64> {
        self.notsent_lowat_bytes.filter(|bytes| *bytes > 0)
    }

    pub(crate) fn get(&self, option: SocketOption) -> Result<u64, Errno> {
        Ok(match option {
            SocketOption::NoDelay => self.nodelay.into(),
            SocketOption::Cork => self.cork.into(),
            SocketOption::KeepAlive => self.keepalive.into(),
            SocketOption::KeepIdleSeconds => self.keepalive_times.idle.as_secs(),
            SocketOption::KeepIntervalSeconds => self.keepalive_times.interval.as_secs(),
            SocketOption::KeepCount => self.keepalive_times.probes.into(),
            SocketOption::UserTimeoutMs => self.user_timeout_ms,
            SocketOption::LingerMs => self.linger_ms.unwrap_or(u64::MAX),
            SocketOption::QuickAck => self.quickack.into(),
            SocketOption::DeferAcceptSeconds => self.defer_accept_seconds,
            SocketOption::ReceiveBufferBytes => self.receive_buffer_bytes.unwrap_or(0) as u64,
            SocketOption::SendBufferBytes => self.send_buffer_bytes.unwrap_or(0) as u64,
            SocketOption::Congestion => congestion_code(self.congestion.unwrap_or_default()),
            SocketOption::MaxSegmentBytes => self.mss_max.map_or(DEFAULT_MSS, u64::from),
            SocketOption::NotSentLowWaterBytes => self.notsent_lowat_bytes.unwrap_or(0),
            SocketOption::FastOpenQueue => self.fast_open_queue,
            SocketOption::TypeOfService => self.traffic_class.v4.into(),
            SocketOption::TrafficClass => self.traffic_class.v6.into(),
            SocketOption::SetupOffload => self.setup_offload.unwrap_or(false).into(),
            SocketOption::TeardownOffload => self.teardown_offload.unwrap_or(false).into(),
            SocketOption::ReuseAddress | SocketOption::ReusePort | SocketOption::V6Only => {
                return Err(Errno::INVAL);
            }
        })
    }

    /// Returns the value set for an option that NIC stacks implement; `None` if unset, or for
    /// others.
    pub(crate) fn wanted_offload(&self, option: SocketOption) -> Option<bool> {
        match option {
            SocketOption::SetupOffload => self.setup_offload,
            SocketOption::TeardownOffload => self.teardown_offload,
            _ => None,
        }
    }

    /// Returns the initial options of a listener's connections.
    pub(crate) fn to_stream_options(self) -> StreamOptions {
        let defer_accept = self.defer_accept_seconds;
        StreamOptions {
            nodelay: Some(self.nodelay),
            keepalive: Some(self.keepalive()),
            user_timeout: Some(self.user_timeout()),
            receive_buffer_bytes: self.receive_buffer_bytes,
            send_buffer_bytes: self.send_buffer_bytes,
            congestion: self.congestion,
            mss_max: self.mss_max,
            defer_accept: (defer_accept > 0).then(|| Duration::from_secs(defer_accept)),
            fast_open: Some(self.fast_open_queue > 0),
            traffic_class: self.traffic_class,
            setup_offload: self.setup_offload,
            teardown_offload: self.teardown_offload,
        }
    }

    /// Applies all options to a connection that is being opened.
    pub(crate) fn apply(&self, io: &mut dyn Io, stream: StreamId) {
        io.set_option(stream, StreamOption::NoDelay(self.nodelay));
        io.set_option(stream, StreamOption::Keepalive(self.keepalive()));
        io.set_option(stream, StreamOption::UserTimeout(self.user_timeout()));
        if let Some(bytes) = self.receive_buffer_bytes {
            io.set_option(stream, StreamOption::ReceiveBufferBytes(bytes));
        }
        if let Some(bytes) = self.send_buffer_bytes {
            io.set_option(stream, StreamOption::SendBufferBytes(bytes));
        }
        if let Some(algorithm) = self.congestion {
            io.set_option(stream, StreamOption::Congestion(algorithm));
        }
        if let Some(bytes) = self.mss_max {
            io.set_option(stream, StreamOption::MssMax(bytes));
        }
        if self.traffic_class != TrafficClass::default() {
            io.set_option(stream, StreamOption::TrafficClass(self.traffic_class));
        }
    }

    /// Returns the change for a live connection after one option was set.
    pub(crate) fn change_of(&self, option: SocketOption) -> Option<StreamOption> {
        Some(match option {
            SocketOption::NoDelay => StreamOption::NoDelay(self.nodelay),
            SocketOption::KeepAlive
            | SocketOption::KeepIdleSeconds
            | SocketOption::KeepIntervalSeconds
            | SocketOption::KeepCount => StreamOption::Keepalive(self.keepalive()),
            SocketOption::UserTimeoutMs => StreamOption::UserTimeout(self.user_timeout()),
            SocketOption::QuickAck => StreamOption::QuickAck(self.quickack),
            SocketOption::ReceiveBufferBytes => {
                StreamOption::ReceiveBufferBytes(self.receive_buffer_bytes?)
            }
            SocketOption::SendBufferBytes => StreamOption::SendBufferBytes(self.send_buffer_bytes?),
            SocketOption::Congestion => StreamOption::Congestion(self.congestion?),
            SocketOption::TypeOfService | SocketOption::TrafficClass => {
                StreamOption::TrafficClass(self.traffic_class)
            }
            SocketOption::TeardownOffload => StreamOption::TeardownOffload(self.teardown_offload?),
            // Corking also depends on the connection's bytes.
            SocketOption::Cork
            | SocketOption::LingerMs
            | SocketOption::DeferAcceptSeconds
            | SocketOption::MaxSegmentBytes
            | SocketOption::NotSentLowWaterBytes
            | SocketOption::ReuseAddress
            | SocketOption::ReusePort
            | SocketOption::V6Only
            | SocketOption::FastOpenQueue
            | SocketOption::SetupOffload => return None,
        })
    }
}

/// The kernel's value for the MSS of an unconnected socket, in bytes.
const DEFAULT_MSS: u64 = 536;
