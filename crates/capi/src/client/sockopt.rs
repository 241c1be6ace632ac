//! getsockopt(2) and setsockopt(2), by the numbers of Linux.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use rustix::io::{Errno, Result};
use socket_channel::message::{CONGESTIONS, Info};
use socket_channel::{Command, Family, Flags, Lock, SocketOption};

use super::application::Client;
use super::link::Answer;
use super::socket::{Direction, Socket, note};
use super::unshared::Reuse;

/// Level of this library's own options; the kernel has no such level.
pub const SOL_SPLITWAY: i32 = 0x5357;

/// NIC stacks answer the SYNs of a listener.
pub const SW_SETUP_OFFLOAD: i32 = 1;

/// NIC stacks run the end of a connection.
pub const SW_TEARDOWN_OFFLOAD: i32 = 2;

/// Longest name of a congestion control, as `TCP_CA_NAME_MAX`.
const CONGESTION_BYTES_MAX: usize = 16;

/// Longest `SO_LINGER`, in seconds: Linux counts them in a long.
const LINGER_S_MAX: u64 = i32::MAX as u64;

/// The value of an option.
#[derive(Clone, Debug, PartialEq)]
pub enum OptionValue {
    /// A number, or 0 and 1 for off and on.
    Number(i32),
    /// `SO_LINGER`.
    Linger {
        /// Whether `close` lingers.
        on: bool,
        /// How long, in seconds.
        seconds: i32,
    },
    /// `SO_RCVTIMEO`, `SO_SNDTIMEO`; `None` is no limit.
    Timeout(Option<Duration>),
    /// `TCP_CONGESTION`.
    Name(String),
    /// `TCP_INFO`; cannot be set.
    Info(Box<Info>),
}

/// Reports whether an option belongs to the descriptor itself, a socket of the kernel: it does not
/// affect bytes, and has the kernel's bounds, permissions and values.
pub fn is_of_descriptor(level: i32, name: i32) -> bool {
    level == libc::SOL_SOCKET && [libc::SO_PRIORITY, libc::SO_COOKIE].contains(&name)
}

/// Conversion between the host stack's value of an option and Linux's.
#[derive(Clone, Copy)]
enum Unit {
    /// 0 or 1.
    Switch,
    /// The same number, within Linux's bounds: least and most.
    Number(i32, i32),
    /// A buffer: Linux reports twice the size that was set (socket(7)).
    Buffer,
    /// 32 bits without a sign.
    Bits,
    /// A traffic class with any bits (`__ip_sock_set_tos` of Linux).
    AnyClass,
    /// A traffic class; -1 is that of a new socket (`do_ipv6_setsockopt`).
    Class,
    /// Seconds, rounded up to a time at which a SYN-ACK would be retransmitted.
    Retransmissions,
}

/// The largest MSS that can be set, in bytes (`MAX_TCP_WINDOW` of Linux).
const MAX_TCP_WINDOW: i32 = 32_767;

/// Returns an option that the host stack keeps, with its unit.
fn kept_by_host(level: i32, name: i32) -> Option<(SocketOption, Unit)> {
    use SocketOption as Is;
    let of_socket = level == libc::SOL_SOCKET;
    let of_tcp = level == libc::IPPROTO_TCP;
    let is_own = level == SOL_SPLITWAY;
    let found = match name {
        libc::SO_KEEPALIVE if of_socket => (Is::KeepAlive, Unit::Switch),
        libc::SO_RCVBUF if of_socket => (Is::ReceiveBufferBytes, Unit::Buffer),
        libc::SO_SNDBUF if of_socket => (Is::SendBufferBytes, Unit::Buffer),
        libc::TCP_NODELAY if of_tcp => (Is::NoDelay, Unit::Switch),
        libc::TCP_CORK if of_tcp => (Is::Cork, Unit::Switch),
        // The bounds of `net/ipv4/tcp.c`.
        libc::TCP_KEEPIDLE if of_tcp => (Is::KeepIdleSeconds, Unit::Number(1, 32_767)),
        libc::TCP_KEEPINTVL if of_tcp => (Is::KeepIntervalSeconds, Unit::Number(1, 32_767)),
        libc::TCP_KEEPCNT if of_tcp => (Is::KeepCount, Unit::Number(1, 127)),
        libc::TCP_USER_TIMEOUT if of_tcp => (Is::UserTimeoutMs, Unit::Number(0, i32::MAX)),
        libc::TCP_QUICKACK if of_tcp => (Is::QuickAck, Unit::Switch),
        libc::TCP_DEFER_ACCEPT if of_tcp => (Is::DeferAcceptSeconds, Unit::Retransmissions),
        // The host stack checks the least size, which is above 0.
        libc::TCP_MAXSEG if of_tcp => (Is::MaxSegmentBytes, Unit::Number(0, MAX_TCP_WINDOW)),
        libc::TCP_FASTOPEN if of_tcp => (Is::FastOpenQueue, Unit::Number(0, i32::MAX)),
        libc::TCP_NOTSENT_LOWAT if of_tcp => (Is::NotSentLowWaterBytes, Unit::Bits),
        libc::IP_TOS if level == libc::IPPROTO_IP => (Is::TypeOfService, Unit::AnyClass),
        libc::IPV6_TCLASS if level == libc::IPPROTO_IPV6 => (Is::TrafficClass, Unit::Class),
        SW_SETUP_OFFLOAD if is_own => (Is::SetupOffload, Unit::Switch),
        SW_TEARDOWN_OFFLOAD if is_own => (Is::TeardownOffload, Unit::Switch),
        _ => return None,
    };
    Some(found)
}

/// Returns the bit of an option that this side keeps.
fn note_of(level: i32, name: i32) -> Option<u64> {
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_REUSEADDR) => Some(note::REUSE_ADDR),
        (libc::SOL_SOCKET, libc::SO_REUSEPORT) => Some(note::REUSE_PORT),
        (libc::SOL_SOCKET, libc::SO_OOBINLINE) => Some(note::OOB_INLINE),
        (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => Some(note::V6_ONLY),
        _ => None,
    }
}

fn timeout_of(level: i32, name: i32) -> Option<Direction> {
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => Some(Direction::Receive),
        (libc::SOL_SOCKET, libc::SO_SNDTIMEO) => Some(Direction::Send),
        _ => None,
    }
}

impl Client {
    /// Returns the value of an option, as getsockopt(2). ENOPROTOOPT if there is no such option.
    pub fn option(&self, fd: BorrowedFd<'_>, level: i32, name: i32) -> Result<OptionValue> {
        let socket = self.socket_of(fd)?;
        let flags = socket.look_at_stream()?.flags;
        if let Some(note) = note_of(level, name) {
            // The kernel does not return ENOPROTOOPT here (`ip_getsockopt`).
            is_of_family(&socket, level).map_err(|_| Errno::OPNOTSUPP)?;
            return Ok(OptionValue::Number(socket.has_note(note).into()));
        }
        if let Some(direction) = timeout_of(level, name) {
            return Ok(OptionValue::Timeout(socket.timeout(direction)));
        }
        if let Some((option, unit)) = kept_by_host(level, name) {
            is_of_family(&socket, level).map_err(|_| Errno::OPNOTSUPP)?;
            let value = get(&socket, option, self.table.reuse(fd.as_raw_fd()))?;
            return Ok(match unit {
                Unit::Buffer => number(value.saturating_mul(2)),
                Unit::Bits => OptionValue::Number(value as u32 as i32),
                Unit::Switch
                | Unit::Number(..)
                | Unit::Retransmissions
                | Unit::AnyClass
                | Unit::Class => number(value),
            });
        }
        match (level, name) {
            (libc::SOL_SOCKET, libc::SO_ERROR) => {
                let error = socket.take_error().err();
                Ok(OptionValue::Number(error.map_or(0, Errno::raw_os_error)))
            }
            (libc::SOL_SOCKET, libc::SO_TYPE) => Ok(OptionValue::Number(libc::SOCK_STREAM)),
            (libc::SOL_SOCKET, libc::SO_PROTOCOL) => Ok(OptionValue::Number(libc::IPPROTO_TCP)),
            (libc::SOL_SOCKET, libc::SO_DOMAIN) => Ok(OptionValue::Number(domain(&socket))),
            (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => {
                Ok(OptionValue::Number(flags.has(Flags::LISTENER).into()))
            }
            (libc::SOL_SOCKET, libc::SO_RCVLOWAT) => {
                Ok(number(socket.record.wanted_rx_lowat().max(1)))
            }
            (libc::SOL_SOCKET, libc::SO_LINGER) => {
                let ms = get(&socket, SocketOption::LingerMs, Reuse::NONE)?;
                Ok(linger_of(ms))
            }
            (libc::IPPROTO_TCP, libc::TCP_CONGESTION) => {
                let code = get(&socket, SocketOption::Congestion, Reuse::NONE)?;
                let name = usize::try_from(code)
                    .ok()
                    .and_then(|at| CONGESTIONS.get(at));
                let name = name.ok_or(Errno::PROTO)?;
                Ok(OptionValue::Name((*name).to_owned()))
            }
            (libc::IPPROTO_TCP, libc::TCP_INFO) => {
                let id = socket.id;
                let request = |request| Command::GetInfo {
                    request,
                    socket: id,
                };
                match socket.process.link.ask(request)? {
                    Answer::Info(info) => Ok(OptionValue::Info(Box::new(info))),
                    Answer::Done { .. } => Err(Errno::PROTO),
                }
            }
            _ => Err(Errno::NOPROTOOPT),
        }
    }

    /// Sets an option that the host stack keeps; without waiting for an answer if none is needed.
    fn set_for_connection(
        &self,
        socket: &Socket<'_>,
        option: SocketOption,
        value: u64,
        flags: Flags,
    ) -> Result<()> {
        let fd = socket.fd.as_raw_fd();
        let reuse = self.table.reuse(fd);
        if told(socket, option, reuse) == Some(value) && IDEMPOTENT.contains(&option) {
            return Ok(());
        }
        if UNANSWERED.contains(&option) && reuse.is_allowed() && may_send(socket, flags) {
            self.table.set_reuse(fd, Reuse::with_sent_options);
            return send(socket, option, value);
        }
        set(socket, option, value)
    }

    /// Sets an option, as setsockopt(2). ENOPROTOOPT if there is no such option, or it cannot be
    /// set; EINVAL if the value is of another kind or out of range.
    pub fn set_option(
        &self,
        fd: BorrowedFd<'_>,
        level: i32,
        name: i32,
        value: &OptionValue,
    ) -> Result<()> {
        let socket = self.socket_of(fd)?;
        let flags = socket.look_at_stream()?.flags;
        if let Some(note) = note_of(level, name) {
            is_of_family(&socket, level)?;
            if note == note::V6_ONLY && has_port(flags) {
                return Err(Errno::INVAL);
            }
            let &OptionValue::Number(value) = value else {
                return Err(Errno::INVAL);
            };
            socket.set_note(note, value != 0);
            return match note {
                note::REUSE_ADDR if is_bound(flags) => {
                    set(&socket, SocketOption::ReuseAddress, (value != 0).into())
                }
                note::REUSE_PORT if is_bound(flags) => {
                    set(&socket, SocketOption::ReusePort, (value != 0).into())
                }
                _ => Ok(()),
            };
        }
        if let Some(direction) = timeout_of(level, name) {
            let &OptionValue::Timeout(timeout) = value else {
                return Err(Errno::INVAL);
            };
            socket.set_timeout(direction, timeout);
            return Ok(());
        }
        if let Some((option, unit)) = kept_by_host(level, name) {
            is_of_family(&socket, level)?;
            let &OptionValue::Number(value) = value else {
                return Err(Errno::INVAL);
            };
            let value = for_host(value, unit)?;
            if option == SocketOption::Cork && flags.has(Flags::CONNECTED) && !socket.waits() {
                return cork(&socket, value);
            }
            return self.set_for_connection(&socket, option, value, flags);
        }
        match (level, name, value) {
            (libc::SOL_SOCKET, libc::SO_RCVLOWAT, &OptionValue::Number(bytes)) => {
                // A negative number counts as the maximum (`sock_setsockopt` of Linux).
                let bytes = u64::try_from(bytes).unwrap_or(i32::MAX as u64);
                socket.record.set_rx_lowat(bytes);
                // Threads that wait for more bytes look again.
                socket.process.link.watchers.notify(socket.id.index);
                socket.process.link.nudge();
                Ok(())
            }
            (libc::SOL_SOCKET, libc::SO_LINGER, &OptionValue::Linger { on, seconds }) => {
                let seconds = u64::try_from(seconds).unwrap_or(LINGER_S_MAX);
                let ms = if on { seconds * 1000 } else { u64::MAX };
                set(&socket, SocketOption::LingerMs, ms)?;
                socket.set_note(note::LINGER, on);
                Ok(())
            }
            (libc::IPPROTO_TCP, libc::TCP_CONGESTION, OptionValue::Name(name)) => {
                let code = CONGESTIONS.iter().position(|known| known == name);
                let code = code.ok_or(Errno::NOENT)?;
                set(&socket, SocketOption::Congestion, code as u64)
            }
            (libc::SOL_SOCKET, libc::SO_LINGER | libc::SO_RCVLOWAT, _)
            | (libc::IPPROTO_TCP, libc::TCP_CONGESTION, _) => Err(Errno::INVAL),
            _ => Err(Errno::NOPROTOOPT),
        }
    }
}

/// Returns the kind of an option's value, as the C interface reads it from memory.
pub(crate) fn kind_of(level: i32, name: i32) -> Kind {
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_RCVTIMEO | libc::SO_SNDTIMEO) => Kind::Timeout,
        (libc::SOL_SOCKET, libc::SO_LINGER) => Kind::Linger,
        (libc::IPPROTO_TCP, libc::TCP_CONGESTION) => Kind::Name(CONGESTION_BYTES_MAX),
        (libc::IPPROTO_IP, _) => Kind::ByteOrNumber,
        _ => Kind::Number,
    }
}

/// See [`kind_of`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Number,
    /// A byte, if there is room for no more (ip(7)).
    ByteOrNumber,
    Timeout,
    Linger,
    /// A name of at most this many bytes.
    Name(usize),
}

fn domain(socket: &Socket<'_>) -> i32 {
    match socket.family() {
        Family::V4 => libc::AF_INET,
        Family::V6 => libc::AF_INET6,
    }
}

/// Reports whether a socket has a port of its own.
fn has_port(flags: Flags) -> bool {
    let having = [Flags::BOUND, Flags::CONNECTING, Flags::CONNECTED];
    having.into_iter().any(|having| flags.has(having)) && !flags.is_over()
}

/// Reports whether a program has chosen the address of a socket.
fn is_bound(flags: Flags) -> bool {
    flags.has(Flags::BOUND) && !flags.is_over()
}

/// ENOPROTOOPT for options of IPv6 on a socket of IPv4.
fn is_of_family(socket: &Socket<'_>, level: i32) -> Result<()> {
    if level == libc::IPPROTO_IPV6 && !socket.has_note(note::IS_V6) {
        return Err(Errno::NOPROTOOPT);
    }
    Ok(())
}

fn number(value: u64) -> OptionValue {
    OptionValue::Number(i32::try_from(value).unwrap_or(i32::MAX))
}

fn linger_of(ms: u64) -> OptionValue {
    let on = ms != u64::MAX;
    let seconds = if on { ms.div_ceil(1000) } else { 0 };
    OptionValue::Linger {
        on,
        seconds: i32::try_from(seconds).unwrap_or(i32::MAX),
    }
}

fn for_host(value: i32, unit: Unit) -> Result<u64> {
    let value = match unit {
        Unit::Switch => i32::from(value != 0),
        Unit::Buffer => value.max(0),
        Unit::Bits => return Ok(u64::from(value as u32)),
        Unit::AnyClass => value & 0xff,
        Unit::Class if !(-1..=0xff).contains(&value) => return Err(Errno::INVAL),
        Unit::Class => value.max(0),
        Unit::Retransmissions => return Ok(retransmitted_at(value)),
        Unit::Number(least, most) => {
            if !(least..=most).contains(&value) {
                return Err(Errno::INVAL);
            }
            value
        }
    };
    u64::try_from(value).map_err(|_| Errno::INVAL)
}

/// Returns the time in seconds of Linux's first retransmission of a SYN-ACK at or after `wanted`
/// (`secs_to_retrans` and `retrans_to_secs` of `net/ipv4/tcp.c`).
fn retransmitted_at(wanted: i32) -> u64 {
    const FIRST_S: u64 = 1;
    const LONGEST_S: u64 = 120;
    const RETRANSMISSIONS_MAX: u32 = 255;
    let Some(wanted) = u64::try_from(wanted).ok().filter(|wanted| *wanted > 0) else {
        return 0;
    };
    let (mut timeout, mut at) = (FIRST_S, FIRST_S);
    for _ in 1..RETRANSMISSIONS_MAX {
        if wanted <= at {
            break;
        }
        timeout = (timeout * 2).min(LONGEST_S);
        at += timeout;
    }
    at
}

/// Options that need no command for their present value. The others have side effects, or also
/// change without their callers.
const IDEMPOTENT: [SocketOption; 7] = [
    SocketOption::NoDelay,
    SocketOption::KeepAlive,
    SocketOption::KeepIdleSeconds,
    SocketOption::KeepIntervalSeconds,
    SocketOption::KeepCount,
    SocketOption::UserTimeoutMs,
    SocketOption::LingerMs,
];

/// Options that the host stack sets to any value that this library lets pass: a server sets them
/// for each connection, and needs no answer.
const UNANSWERED: [SocketOption; 5] = [
    SocketOption::NoDelay,
    SocketOption::KeepAlive,
    SocketOption::KeepIdleSeconds,
    SocketOption::KeepIntervalSeconds,
    SocketOption::KeepCount,
];

/// Reports whether an option of a socket that no other process has may be set without an answer.
fn may_send(socket: &Socket<'_>, flags: Flags) -> bool {
    let is_open = flags.has(Flags::CONNECTED) && !flags.is_over();
    is_open && !flags.has(Flags::LOOKED_UP) && !socket.waits()
}

/// Sets an option without waiting for an answer. Until the host stack has the command, the record
/// has the former value.
fn send(socket: &Socket<'_>, option: SocketOption, value: u64) -> Result<()> {
    socket.process.link.send(&Command::SetOption {
        request: 0,
        socket: socket.id,
        option,
        value,
    })
}

/// Returns the value of an option in the record of a connection that came with its options. The
/// record may lag behind `TCP_CORK`, and options that were sent.
fn told(socket: &Socket<'_>, option: SocketOption, reuse: Reuse) -> Option<u64> {
    let told = socket.record.option(option);
    let lags = reuse.has_sent_options() && UNANSWERED.contains(&option);
    told.filter(|_| !socket.waits() && option != SocketOption::Cork && !lags)
}

fn get(socket: &Socket<'_>, option: SocketOption, reuse: Reuse) -> Result<u64> {
    if let Some(value) = told(socket, option, reuse) {
        return Ok(value);
    }
    let id = socket.id;
    let answer = socket.process.link.ask(|request| Command::GetOption {
        request,
        socket: id,
        option,
    })?;
    match answer {
        Answer::Done { value, .. } => Ok(value),
        Answer::Info(_) => Err(Errno::PROTO),
    }
}

/// Sets `TCP_CORK` of a connection without waiting for an answer: servers set and clear it for each
/// response. Until the host stack has the command, each write announces that more follows.
///
/// A child may share the socket, and commands of two processes have an order only through answers.
fn cork(socket: &Socket<'_>, value: u64) -> Result<()> {
    socket.set_note(note::CORKED, value != 0);
    if value == 0 {
        socket.with_lock(Lock::Tx, || socket.record.end_more())?;
    }
    if socket.process.has_forked() {
        return set(socket, SocketOption::Cork, value);
    }
    let command = Command::SetOption {
        request: 0,
        socket: socket.id,
        option: SocketOption::Cork,
        value,
    };
    let link = &socket.process.link;
    match value {
        0 => link.send(&command),
        _ => link.send_ahead(&command),
    }
}

fn set(socket: &Socket<'_>, option: SocketOption, value: u64) -> Result<()> {
    let may_lag = UNANSWERED.contains(&option);
    if IDEMPOTENT.contains(&option) && !may_lag && told(socket, option, Reuse::NONE) == Some(value)
    {
        return Ok(());
    }
    let id = socket.id;
    socket.process.link.ask(|request| Command::SetOption {
        request,
        socket: id,
        option,
        value,
    })?;
    Ok(())
}
