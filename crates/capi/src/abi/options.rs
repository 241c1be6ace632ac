//! setsockopt, getsockopt, fcntl, ioctl.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::io::{Errno, Result};

use super::global::{borrow, client, client_if_attached};
use super::memory::{info_bytes, put, put_bytes, structure, timeout, timeout_bytes};
use super::outcome::zero;
use super::probe::check_value;
use crate::Family;
use crate::client::OptionValue;
use crate::client::sockopt::{self, Kind, kind_of};
use crate::sys::{system_call, word};

/// Level of this library's own options; the kernel does not use it.
pub const SOL_SPLITWAY: libc::c_int = 0x5357;
/// NIC stacks answer the SYNs of a listener: 0 or 1.
pub const SW_SETUP_OFFLOAD: libc::c_int = 1;
/// NIC stacks run the end of a connection, or of a listener's connections: 0 or 1.
pub const SW_TEARDOWN_OFFLOAD: libc::c_int = 2;

const _: () = assert!(
    SOL_SPLITWAY == sockopt::SOL_SPLITWAY
        && SW_SETUP_OFFLOAD == sockopt::SW_SETUP_OFFLOAD
        && SW_TEARDOWN_OFFLOAD == sockopt::SW_TEARDOWN_OFFLOAD,
    "C and Rust have the same numbers"
);

fn first_word(bytes: &[u8]) -> Result<(i32, &[u8])> {
    let (found, rest) = bytes.split_first_chunk().ok_or(Errno::INVAL)?;
    Ok((i32::from_ne_bytes(*found), rest))
}

/// Decodes an option's value from its C representation. EINVAL if it is too short; EDOM, ENOENT.
pub fn option_value_of(level: i32, name: i32, bytes: &[u8]) -> Result<OptionValue> {
    match kind_of(level, name) {
        Kind::Number => Ok(OptionValue::Number(first_word(bytes)?.0)),
        Kind::ByteOrNumber => {
            let byte = bytes.first().copied().map_or(0, i32::from);
            let number = first_word(bytes).map_or(byte, |(number, _)| number);
            Ok(OptionValue::Number(number))
        }
        Kind::Timeout => Ok(OptionValue::Timeout(timeout(bytes)?)),
        Kind::Linger => {
            let (on, rest) = first_word(bytes)?;
            let (seconds, _) = first_word(rest)?;
            Ok(OptionValue::Linger {
                on: on != 0,
                seconds,
            })
        }
        Kind::Name(_) if bytes.is_empty() => Err(Errno::INVAL),
        Kind::Name(max) => {
            let bytes = &bytes[..bytes.len().min(max - 1)];
            let name = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
            let name = std::str::from_utf8(name).map_err(|_| Errno::NOENT)?;
            Ok(OptionValue::Name(name.to_owned()))
        }
    }
}

/// Encodes an option's value in its C representation.
pub fn option_bytes_of(level: i32, name: i32, value: &OptionValue) -> Vec<u8> {
    match value {
        OptionValue::Number(number) => number.to_ne_bytes().to_vec(),
        OptionValue::Linger { on, seconds } => {
            [i32::from(*on).to_ne_bytes(), seconds.to_ne_bytes()].concat()
        }
        OptionValue::Timeout(timeout) => timeout_bytes(*timeout),
        OptionValue::Name(text) => {
            let mut bytes = text.clone().into_bytes();
            if let Kind::Name(max) = kind_of(level, name) {
                bytes.resize(max, 0);
            }
            bytes
        }
        OptionValue::Info(info) => info_bytes(info),
    }
}

/// setsockopt(2). SOL_SOCKET: REUSEADDR, REUSEPORT, KEEPALIVE, LINGER, RCVBUF, SNDBUF, RCVLOWAT,
/// RCVTIMEO, SNDTIMEO, PRIORITY. IPPROTO_TCP: NODELAY, CORK, KEEPIDLE, KEEPINTVL, KEEPCNT,
/// USER_TIMEOUT, QUICKACK, DEFER_ACCEPT, FASTOPEN, MAXSEG, NOTSENT_LOWAT, CONGESTION. IPPROTO_IP:
/// TOS. IPPROTO_IPV6: V6ONLY, TCLASS. SOL_SPLITWAY: SW_SETUP_OFFLOAD, SW_TEARDOWN_OFFLOAD.
///
/// ENOPROTOOPT for others; EINVAL, EDOM; ENOENT for an unknown congestion control; EPERM for an
/// offload that the stack's configuration forbids.
///
/// # Safety
/// `value` is null or has `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_setsockopt(
    fd: libc::c_int,
    level: libc::c_int,
    name: libc::c_int,
    value: *const libc::c_void,
    len: libc::socklen_t,
) -> libc::c_int {
    let set = || {
        let client = client()?;
        let fd = borrow(fd)?;
        let family = client.family(fd)?;
        if len > i32::MAX as libc::socklen_t {
            return Err(Errno::INVAL);
        }
        if level == libc::IPPROTO_IPV6 && family == Family::V4 {
            return Err(Errno::NOPROTOOPT);
        }
        if sockopt::is_of_descriptor(level, name) {
            let arguments = [level.into(), name.into(), word(value), len.into(), 0];
            return option_of_descriptor(libc::SYS_setsockopt, fd, arguments);
        }
        // SAFETY: `value` is null or has `len` bytes, by the caller's contract.
        let bytes = unsafe { structure(value, len as usize)? };
        client.set_option(fd, level, name, &option_value_of(level, name, bytes)?)
    };
    zero(set())
}

/// Gets or sets an option of the kernel's socket behind a descriptor by a direct system call: the
/// program may have replaced the functions of the C library.
fn option_of_descriptor(
    number: libc::c_long,
    fd: BorrowedFd<'_>,
    [a, b, c, d, e]: [libc::c_long; 5],
) -> Result<()> {
    // SAFETY: the kernel checks the pointers.
    unsafe { system_call(number, [fd.as_raw_fd().into(), a, b, c, d, e]) }.map(drop)
}

/// getsockopt(2). The options of `sw_setsockopt`; SOL_SOCKET: ERROR, TYPE, DOMAIN, PROTOCOL,
/// ACCEPTCONN, COOKIE; IPPROTO_TCP: INFO (`struct tcp_info`, cut off at `len`).
///
/// # Safety
/// `value` is null or has as many bytes as `len` points to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_getsockopt(
    fd: libc::c_int,
    level: libc::c_int,
    name: libc::c_int,
    value: *mut libc::c_void,
    len: *mut libc::socklen_t,
) -> libc::c_int {
    let get = || {
        let (client, fd) = (client()?, borrow(fd)?);
        if sockopt::is_of_descriptor(level, name) {
            client.family(fd)?;
            let arguments = [level.into(), name.into(), word(value), word(len), 0];
            return option_of_descriptor(libc::SYS_getsockopt, fd, arguments);
        }
        let found = client.option(fd, level, name)?;
        let mut bytes = option_bytes_of(level, name, &found);
        if kind_of(level, name) == Kind::ByteOrNumber {
            check_value(len)?;
            // SAFETY: `len` is mapped, and valid by the caller's contract.
            let room = unsafe { len.read_unaligned() };
            if (1..size_of::<libc::c_int>() as libc::socklen_t).contains(&room) {
                bytes.truncate(1);
            }
        }
        // SAFETY: `value` has as many bytes as `len` points to, by the caller's contract.
        unsafe { put_bytes(value, len, &bytes, false) }
    };
    zero(get())
}

/// fcntl(2), of a descriptor of any kind. A duplicate by F_DUPFD or F_DUPFD_CLOEXEC of a split
/// socket is a split socket; O_NONBLOCK and FD_CLOEXEC are the kernel's. `argument` is the number
/// or the pointer that the command takes, or 0.
///
/// # Safety
/// If the command takes a pointer, it is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_fcntl(
    fd: libc::c_int,
    command: libc::c_int,
    argument: libc::c_long,
) -> libc::c_int {
    // SAFETY: a pointer that the command takes is valid, by the caller's contract.
    let done = unsafe { libc::fcntl(fd, command, argument) };
    let is_new = command == libc::F_DUPFD || command == libc::F_DUPFD_CLOEXEC;
    if done >= 0
        && is_new
        && let Err(errno) = note_duplicate(fd, done)
    {
        return zero(Err(errno));
    }
    done
}

/// Registers `new` as a duplicate of `old`, or closes it.
fn note_duplicate(old: RawFd, new: RawFd) -> Result<()> {
    let Some(client) = client_if_attached() else {
        return Ok(());
    };
    // SAFETY: fcntl(2) has just returned `new`, so nothing else owns it.
    let owned = unsafe { OwnedFd::from_raw_fd(new) };
    let owned = client.note_duplicate(borrow(old)?, owned)?;
    debug_assert_eq!(owned.as_raw_fd(), new);
    // The caller owns it.
    std::mem::forget(owned);
    Ok(())
}

/// Request for the number of unsent bytes.
const SIOCOUTQNSD: libc::c_ulong = 0x894b;

/// Request for whether urgent data is next; the C library has no constant for it.
const SIOCATMARK: libc::c_ulong = 0x8905;

/// ioctl(2), of a descriptor of any kind. For a split socket: FIONREAD, TIOCOUTQ (SIOCOUTQ),
/// SIOCOUTQNSD, SIOCATMARK, FIONBIO, FIOCLEX, FIONCLEX; ENOTTY for others.
///
/// # Safety
/// `argument` is valid for the request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_ioctl(
    fd: libc::c_int,
    request: libc::c_ulong,
    argument: *mut libc::c_void,
) -> libc::c_int {
    let is_split = || {
        let fd = borrow(fd)?;
        Ok(client_if_attached().is_some_and(|client| client.is_split(fd)))
    };
    let split: Result<bool> = is_split();
    let kernels = [libc::FIONBIO, libc::FIOCLEX, libc::FIONCLEX];
    if split == Ok(false) || kernels.contains(&request) {
        // SAFETY: `argument` is valid for the request, by the caller's contract.
        return unsafe { libc::ioctl(fd, request, argument) };
    }
    let queued = || {
        split?;
        let bytes = match request {
            libc::FIONREAD => client()?.unread_bytes(borrow(fd)?)?,
            libc::TIOCOUTQ => client()?.unacknowledged_bytes(borrow(fd)?)?,
            SIOCOUTQNSD => client()?.unsent_bytes(borrow(fd)?)?,
            // There is no urgent data, so the mark is never next.
            SIOCATMARK => client()?.family(borrow(fd)?).map(|_| 0)?,
            _ => return Err(Errno::NOTTY),
        };
        let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
        // SAFETY: these requests take a pointer to an int, valid by the caller's contract.
        unsafe { put(argument.cast(), bytes) }
    };
    zero(queued())
}
