//! Send and receive in all forms.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::BorrowedFd;

use rustix::fs::{OFlags, SeekFrom, fcntl_getfl, seek, tell};
use rustix::io::{Errno, Result};

use super::global::{behind_descriptor, borrow, client, client_if_attached};
use super::memory::{CALL_BYTES_MAX, bytes, bytes_mut, pieces, pieces_mut, put, raw_address};
use super::outcome::length;
use super::probe::{check_given, check_value};
use crate::client::{ReceiveFlags, SendFlags};

/// Flags without effect on receiving: there is no urgent data (`MSG_OOB` is refused), and messages
/// carry no descriptors.
const RECEIVE_IGNORED: libc::c_int = libc::MSG_CMSG_CLOEXEC | libc::MSG_NOSIGNAL;

fn receive_flags(bits: libc::c_int) -> Result<ReceiveFlags> {
    let known = libc::MSG_DONTWAIT | libc::MSG_PEEK | libc::MSG_WAITALL | libc::MSG_TRUNC;
    if bits & !(known | RECEIVE_IGNORED) != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    Ok(ReceiveFlags {
        dont_wait: bits & libc::MSG_DONTWAIT != 0,
        peek: bits & libc::MSG_PEEK != 0,
        wait_all: bits & libc::MSG_WAITALL != 0,
        discard: bits & libc::MSG_TRUNC != 0,
    })
}

pub(crate) fn send_flags(bits: libc::c_int) -> Result<SendFlags> {
    let known = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_MORE;
    // `MSG_CMSG_CLOEXEC` has no effect: messages carry no descriptors.
    if bits & !(known | libc::MSG_CMSG_CLOEXEC) != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    Ok(SendFlags {
        dont_wait: bits & libc::MSG_DONTWAIT != 0,
        more: bits & libc::MSG_MORE != 0,
    })
}

/// Reports whether a descriptor is the kernel's, so read(2) and write(2) apply to it directly.
fn is_kernels(fd: libc::c_int) -> Result<bool> {
    let fd = borrow(fd)?;
    Ok(client_if_attached().is_none_or(|client| !client.is_split(fd)))
}

fn receive(fd: libc::c_int, buffers: &mut [IoSliceMut<'_>], flags: libc::c_int) -> Result<usize> {
    client()?.receive(borrow(fd)?, buffers, receive_flags(flags)?)
}

/// Sends; EPIPE raises SIGPIPE in this thread unless MSG_NOSIGNAL forbids it.
pub(crate) fn send(fd: libc::c_int, buffers: &[IoSlice<'_>], flags: libc::c_int) -> Result<usize> {
    let sent = client()?.send(borrow(fd)?, buffers, send_flags(flags)?);
    if sent == Err(Errno::PIPE) && flags & libc::MSG_NOSIGNAL == 0 {
        raise_pipe();
    }
    sent
}

/// Raises SIGPIPE in this thread.
pub(crate) fn raise_pipe() {
    // SAFETY: `raise` takes any number. The program chooses the signal's action.
    unsafe { libc::raise(libc::SIGPIPE) };
}

/// recv(2). Flags: MSG_DONTWAIT, MSG_PEEK, MSG_WAITALL, MSG_TRUNC; EOPNOTSUPP for others. EAGAIN,
/// ENOTCONN, EINTR; the error of the connection, once.
///
/// # Safety
/// `buffer` is null or has `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_recv(
    fd: libc::c_int,
    buffer: *mut libc::c_void,
    len: usize,
    flags: libc::c_int,
) -> libc::ssize_t {
    if flags & libc::MSG_TRUNC != 0 && buffer.is_null() {
        return length(discard(fd, len, flags));
    }
    // SAFETY: `buffer` is null or has `len` writable bytes, by the caller's contract.
    let buffer = behind_descriptor(fd, unsafe { bytes_mut(buffer, len) });
    length(buffer.and_then(|buffer| receive(fd, &mut [IoSliceMut::new(buffer)], flags)))
}

/// Discards up to `len` received bytes without a buffer of the caller.
fn discard(fd: libc::c_int, len: usize, flags: libc::c_int) -> Result<usize> {
    // The bytes are not copied; only the buffer's length matters.
    let mut buffer = vec![0; len.min(1 << 20)];
    receive(fd, &mut [IoSliceMut::new(&mut buffer)], flags)
}

/// recvfrom(2): as `sw_recv`. A stream names no sender, so `at` is not written and `len_at` is set
/// to 0.
///
/// # Safety
/// `buffer` is null or has `len` bytes; `len_at` is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_recvfrom(
    fd: libc::c_int,
    buffer: *mut libc::c_void,
    len: usize,
    flags: libc::c_int,
    at: *mut libc::sockaddr,
    len_at: *mut libc::socklen_t,
) -> libc::ssize_t {
    // SAFETY: `buffer` is null or has `len` writable bytes, by the caller's contract.
    let received = unsafe { sw_recv(fd, buffer, len, flags) };
    if received >= 0 && !at.is_null() {
        // SAFETY: `len_at` is null or valid, by the caller's contract.
        if let Err(errno) = unsafe { put(len_at, 0) } {
            return length(Err(errno));
        }
    }
    received
}

/// recvmsg(2): as `sw_recv`. Returns neither a name nor control data.
///
/// # Safety
/// `message` is null or points to a message whose buffers have the lengths that it names.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_recvmsg(
    fd: libc::c_int,
    message: *mut libc::msghdr,
    flags: libc::c_int,
) -> libc::ssize_t {
    // SAFETY: `message` is null or valid with its buffers, by the caller's contract.
    unsafe { receive_message_after(fd, message, flags, 0) }
}

/// `sw_recvmsg` as a part of a call that has received `before` messages already. If there are any,
/// the connection's error is left to the next call. Not for programs in C.
///
/// # Safety
/// As for `sw_recvmsg`.
pub unsafe fn receive_message_after(
    fd: libc::c_int,
    message: *mut libc::msghdr,
    flags: libc::c_int,
    before: usize,
) -> libc::ssize_t {
    if let Err(errno) = check_value(message) {
        return length(behind_descriptor(fd, Err(errno)));
    }
    // SAFETY: `message` is mapped, and valid by the caller's contract.
    let message = unsafe { &mut *message };
    // SAFETY: the message's buffers are writable for their lengths, by the caller's contract.
    let pieces = unsafe { pieces_mut(message.msg_iov, message.msg_iovlen, Errno::MSGSIZE) };
    let pieces = behind_descriptor(fd, pieces);
    let received = pieces.and_then(|mut pieces| {
        client()?.receive_after(borrow(fd)?, &mut pieces, receive_flags(flags)?, before)
    });
    if received.is_ok() {
        message.msg_namelen = 0;
        message.msg_controllen = 0;
        message.msg_flags = 0;
    }
    length(received)
}

/// send(2). Flags: MSG_DONTWAIT, MSG_NOSIGNAL, MSG_MORE; EOPNOTSUPP for others. EAGAIN, EINTR;
/// EPIPE, with SIGPIPE; the error of the connection, once.
///
/// # Safety
/// `buffer` is null or has `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_send(
    fd: libc::c_int,
    buffer: *const libc::c_void,
    len: usize,
    flags: libc::c_int,
) -> libc::ssize_t {
    // SAFETY: `buffer` is null or has `len` readable bytes, by the caller's contract.
    let bytes = behind_descriptor(fd, unsafe { bytes(buffer, len) });
    length(bytes.and_then(|bytes| send(fd, &[IoSlice::new(bytes)], flags)))
}

/// `sw_send` as a part of a call that has sent `before` bytes already. If there are any, the
/// connection's error is left to the next call, and this one fails with EPIPE. It raises no signal.
/// Not for programs in C.
///
/// # Safety
/// `buffer` is null or has `len` bytes.
pub unsafe fn send_after(
    fd: libc::c_int,
    buffer: *const libc::c_void,
    len: usize,
    flags: libc::c_int,
    before: usize,
) -> libc::ssize_t {
    let send = || {
        // SAFETY: `buffer` is null or has `len` readable bytes, by the caller's contract.
        let pieces = &[IoSlice::new(unsafe { bytes(buffer, len)? })];
        client()?.send_after(borrow(fd)?, pieces, send_flags(flags)?, before)
    };
    length(send())
}

/// sendto(2): as `sw_send`; the address is ignored, as Linux does for a stream.
///
/// # Safety
/// `buffer` is null or has `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_sendto(
    fd: libc::c_int,
    buffer: *const libc::c_void,
    len: usize,
    flags: libc::c_int,
    at: *const libc::sockaddr,
    len_at: libc::socklen_t,
) -> libc::ssize_t {
    if !at.is_null() {
        // SAFETY: the address is not read; only its length is checked.
        let length_only = unsafe { raw_address(at, len_at) };
        if let Err(errno) = behind_descriptor(fd, length_only) {
            return length(Err(errno));
        }
    }
    // SAFETY: `buffer` is null or has `len` readable bytes, by the caller's contract.
    unsafe { sw_send(fd, buffer, len, flags) }
}

/// sendmsg(2): as `sw_send`. The message's name and control data are ignored.
///
/// # Safety
/// `message` is null or points to a message whose buffers have the lengths that it names.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_sendmsg(
    fd: libc::c_int,
    message: *const libc::msghdr,
    flags: libc::c_int,
) -> libc::ssize_t {
    if let Err(errno) = check_value(message) {
        return length(behind_descriptor(fd, Err(errno)));
    }
    // SAFETY: `message` is mapped, and valid by the caller's contract.
    let message = unsafe { &*message };
    // SAFETY: the message's buffers are readable for their lengths, by the caller's contract.
    let pieces = unsafe { pieces(message.msg_iov, message.msg_iovlen, Errno::MSGSIZE) };
    let pieces = behind_descriptor(fd, pieces);
    length(pieces.and_then(|pieces| send(fd, &pieces, flags)))
}

/// read(2), of a descriptor of any kind.
///
/// # Safety
/// `buffer` is null or has `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_read(
    fd: libc::c_int,
    buffer: *mut libc::c_void,
    len: usize,
) -> libc::ssize_t {
    // SAFETY: `buffer` is null or has `len` writable bytes, by the caller's contract.
    unsafe {
        match is_kernels(fd) {
            Ok(true) => libc::read(fd, buffer, len),
            // As vfs_read of Linux, but not as recv(2).
            Ok(false) if len == 0 => 0,
            Ok(false) => sw_recv(fd, buffer, len, 0),
            Err(errno) => length(Err(errno)),
        }
    }
}

/// write(2), of a descriptor of any kind.
///
/// # Safety
/// `buffer` is null or has `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_write(
    fd: libc::c_int,
    buffer: *const libc::c_void,
    len: usize,
) -> libc::ssize_t {
    // SAFETY: `buffer` is null or has `len` readable bytes, by the caller's contract.
    unsafe {
        match is_kernels(fd) {
            Ok(true) => libc::write(fd, buffer, len),
            Ok(false) => sw_send(fd, buffer, len, 0),
            Err(errno) => length(Err(errno)),
        }
    }
}

/// readv(2), of a descriptor of any kind.
///
/// # Safety
/// `vectors` is null or has `count` buffers, each with the length that it names.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_readv(
    fd: libc::c_int,
    vectors: *const libc::iovec,
    count: libc::c_int,
) -> libc::ssize_t {
    match is_kernels(fd) {
        // SAFETY: `vectors` is null or has `count` writable buffers, by the caller's contract.
        Ok(true) => unsafe { libc::readv(fd, vectors, count) },
        Ok(false) => {
            let count = usize::try_from(count).unwrap_or(usize::MAX);
            // SAFETY: `vectors` is null or has `count` writable buffers, by the caller's contract.
            let pieces = unsafe { pieces_mut(vectors, count, Errno::INVAL) };
            length(pieces.and_then(|mut pieces| {
                let is_empty = pieces.iter().all(|piece| piece.is_empty());
                if is_empty {
                    return Ok(0);
                }
                receive(fd, &mut pieces, 0)
            }))
        }
        Err(errno) => length(Err(errno)),
    }
}

/// writev(2), of a descriptor of any kind.
///
/// # Safety
/// `vectors` is null or has `count` buffers, each with the length that it names.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_writev(
    fd: libc::c_int,
    vectors: *const libc::iovec,
    count: libc::c_int,
) -> libc::ssize_t {
    match is_kernels(fd) {
        // SAFETY: `vectors` is null or has `count` readable buffers, by the caller's contract.
        Ok(true) => unsafe { libc::writev(fd, vectors, count) },
        Ok(false) => {
            let count = usize::try_from(count).unwrap_or(usize::MAX);
            // SAFETY: `vectors` is null or has `count` readable buffers, by the caller's contract.
            let pieces = unsafe { pieces(vectors, count, Errno::INVAL) };
            length(pieces.and_then(|pieces| {
                let is_empty = pieces.iter().all(|piece| piece.is_empty());
                if is_empty {
                    return Ok(0);
                }
                send(fd, &pieces, 0)
            }))
        }
        Err(errno) => length(Err(errno)),
    }
}

/// sendfile(2), to a descriptor of any kind. On a split socket the NIC stack sends the file, which
/// never enters the program, if the file can be passed to it; otherwise the library reads and sends
/// the bytes. The file's own position moves only if `offset` is null. `in_fd` may be a file of
/// `offload_open`; then `offset` must not be null.
///
/// A file that is written to before its bytes have left ends the connection (ESTALE).
///
/// EAGAIN if no byte may be queued and `out_fd` does not block; EPIPE with SIGPIPE, and the other
/// errors of `sw_send`; EINVAL for a negative offset; EBADF if `in_fd` is not open for reading. If
/// `in_fd` has no positions, such as a pipe: EINVAL, or ESPIPE if `offset` is not null.
///
/// # Safety
/// `offset` is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_sendfile(
    out_fd: libc::c_int,
    in_fd: libc::c_int,
    offset: *mut libc::off_t,
    count: usize,
) -> libc::ssize_t {
    if is_kernels(out_fd) != Ok(false) {
        // SAFETY: `offset` is null or valid, by the caller's contract.
        return unsafe { libc::sendfile(out_fd, in_fd, offset, count) };
    }
    if let Err(errno) = check_given(offset) {
        return length(Err(errno));
    }
    // SAFETY: `offset` is null or valid, by the caller's contract.
    let place = unsafe { offset.as_mut() };
    let sent = send_file(out_fd, in_fd, place, count.min(CALL_BYTES_MAX));
    if sent == Err(Errno::PIPE) {
        raise_pipe();
    }
    length(sent)
}

fn is_readable(file: BorrowedFd<'_>) -> Result<bool> {
    Ok(fcntl_getfl(file)? & OFlags::ACCMODE != OFlags::WRONLY)
}

fn send_file(
    out_fd: libc::c_int,
    in_fd: libc::c_int,
    place: Option<&mut libc::off_t>,
    count: usize,
) -> Result<usize> {
    let (client, socket, file) = (client()?, borrow(out_fd)?, borrow(in_fd)?);
    match place {
        Some(place) => {
            let from = u64::try_from(*place).map_err(|_| Errno::INVAL)?;
            let sent = client.send_open_file(socket, file, from, count)?;
            *place += sent as libc::off_t;
            Ok(sent)
        }
        None if client.is_split(file) => Err(Errno::INVAL),
        None => {
            let from = tell(file).or_else(|errno| match errno {
                // As splice_direct_to_actor of Linux, for all but files and devices.
                Errno::SPIPE if is_readable(file)? => Err(Errno::INVAL),
                Errno::SPIPE => Err(Errno::BADF),
                errno => Err(errno),
            })?;
            let sent = client.send_open_file(socket, file, from, count)?;
            seek(file, SeekFrom::Start(from + sent as u64))?;
            Ok(sent)
        }
    }
}
