//! read(2) and write(2) in all their forms, and files on sockets.

use std::os::fd::BorrowedFd;

use capi::abi::{
    check_value, last_error, receive_message_after, send_after, set_errno, sw_poll, sw_readv,
    sw_recv, sw_recvfrom, sw_recvmsg, sw_send, sw_sendfile, sw_sendmsg, sw_sendto, sw_writev,
};
use capi::client::cancellation;
use libc::{
    c_int, c_short, c_uint, c_void, iovec, mmsghdr, msghdr, off_t, size_t, sockaddr, socklen_t,
    ssize_t, timespec,
};
use rustix::io::Errno;

use crate::attached::{client, is_split};
use crate::cancel::point;
use crate::copies;
use crate::inherited;
use crate::kernel::kernel;
use crate::library;
use crate::pipes;

unsafe extern "C" {
    /// Aborts the program where a fortified call would write beyond its buffer.
    fn __chk_fail() -> !;
}

/// read(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splitway_preload_read(
    fd: c_int,
    to: *mut c_void,
    len: size_t,
) -> ssize_t {
    // SAFETY: the arguments are valid for read(2), by the caller's contract.
    unsafe {
        match is_split(fd) {
            // As vfs_read of Linux, but not as recv(2).
            true if len == 0 => 0,
            true => point(|| sw_recv(fd, to, len, 0)),
            false => library::read(fd, to, len),
        }
    }
}

/// `read` with the buffer size that the compiler knows.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splitway_preload___read_chk(
    fd: c_int,
    to: *mut c_void,
    len: size_t,
    room: size_t,
) -> ssize_t {
    // SAFETY: the arguments are valid for `read`, by the caller's contract.
    unsafe {
        if len > room {
            __chk_fail();
        }
        splitway_preload_read(fd, to, len)
    }
}

/// write(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splitway_preload_write(
    fd: c_int,
    from: *const c_void,
    len: size_t,
) -> ssize_t {
    // SAFETY: the arguments are valid for write(2), by the caller's contract.
    unsafe {
        if is_split(fd) {
            point(|| sw_send(fd, from, len, 0))
        } else {
            library::write(fd, from, len)
        }
    }
}

/// readv(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splitway_preload_readv(
    fd: c_int,
    vectors: *const iovec,
    count: c_int,
) -> ssize_t {
    // SAFETY: the arguments are valid for readv(2), by the caller's contract.
    unsafe {
        if is_split(fd) {
            point(|| sw_readv(fd, vectors, count))
        } else {
            library::readv(fd, vectors, count)
        }
    }
}

/// writev(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splitway_preload_writev(
    fd: c_int,
    vectors: *const iovec,
    count: c_int,
) -> ssize_t {
    // SAFETY: the arguments are valid for writev(2), by the caller's contract.
    unsafe {
        if is_split(fd) {
            point(|| sw_writev(fd, vectors, count))
        } else {
            library::writev(fd, vectors, count)
        }
    }
}

/// Flags of preadv2(2) that a socket accepts; all but the first have no effect there.
const RWF_NOWAIT: c_int = 8;
const RWF_OF_SOCKETS: c_int = RWF_NOWAIT | 1 | 2 | 4 | 16;

/// Converts the arguments of preadv2(2) and pwritev2(2) on a split socket into a message without an
/// address and its flags, as the kernel does.
unsafe fn positioned(
    vectors: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> Result<(msghdr, c_int), Errno> {
    if offset != -1 {
        return Err(Errno::SPIPE);
    }
    if flags & !RWF_OF_SOCKETS != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    // SAFETY: all fields are numbers and pointers, for which zero is a valid value.
    let mut message: msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = vectors.cast_mut();
    message.msg_iovlen = usize::try_from(count).map_err(|_| Errno::INVAL)? as _;
    let flags = if flags & RWF_NOWAIT != 0 {
        libc::MSG_DONTWAIT
    } else {
        0
    };
    Ok((message, flags))
}

/// preadv2(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splitway_preload_preadv2(
    fd: c_int,
    vectors: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the arguments are valid for preadv2(2), by the caller's contract.
    unsafe {
        if !is_split(fd) {
            return library::preadv2(fd, vectors, count, offset, flags);
        }
        match positioned(vectors, count, offset, flags) {
            Ok((_, 0)) => point(|| sw_readv(fd, vectors, count)),
            Ok((mut message, flags)) => point(|| sw_recvmsg(fd, &raw mut message, flags)),
            Err(errno) => fail(errno),
        }
    }
}

/// pwritev2(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splitway_preload_pwritev2(
    fd: c_int,
    vectors: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the arguments are valid for pwritev2(2), by the caller's contract.
    unsafe {
        if !is_split(fd) {
            return library::pwritev2(fd, vectors, count, offset, flags);
        }
        match positioned(vectors, count, offset, flags) {
            Ok((_, 0)) => point(|| sw_writev(fd, vectors, count)),
            Ok((message, flags)) => point(|| sw_sendmsg(fd, &raw const message, flags)),
            Err(errno) => fail(errno),
        }
    }
}

/// `preadv2` for large files: identical on 64-bit machines.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splitway_preload_preadv64v2(
    fd: c_int,
    vectors: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the arguments are valid for `preadv2`, by the caller's contract.
    unsafe { splitway_preload_preadv2(fd, vectors, count, offset, flags) }
}

/// `pwritev2` for large files.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splitway_preload_pwritev64v2(
    fd: c_int,
    vectors: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the arguments are valid for `pwritev2`, by the caller's contract.
    unsafe { splitway_preload_pwritev2(fd, vectors, count, offset, flags) }
}

/// recv(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splitway_preload_recv(
    fd: c_int,
    to: *mut c_void,
    len: size_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the arguments are valid for recv(2), by the caller's contract.
    unsafe {
        if is_split(fd) {
            point(|| sw_recv(fd, to, len, flags))
        } else {
            library::recv(fd, to, len, flags)
        }
    }
}

/// `recv` with the buffer size that the compiler knows.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splitway_preload___recv_chk(
    fd: c_int,
    to: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the arguments are valid for `recv`, by the caller's contract.
    unsafe {
        if len > room {
            __chk_fail();
        }
        splitway_preload_recv(fd, to, len, flags)
    }
}

/// recvfrom(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splitway_preload_recvfrom(
    fd: c_int,
    to: *mut c_void,
    len: size_t,
    flags: c_int,
    at: *mut sockaddr,
    at_len: *mut socklen_t,
) -> ssize_t {
    // SAFETY: the arguments are valid for recvfrom(2), by the caller's contract.
    unsafe {
        if is_split(fd) {
            point(|| sw_recvfrom(fd, to, len, flags, at, at_len))
        } else {
            library::recvfrom(fd, to, len, flags, at, at_len)
        }
    }
}

/// `recvfrom` with the buffer size that the compiler knows.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splitway_preload___recvfrom_chk(
    fd: c_int,
    to: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
    at: *mut sockaddr,
    at_len: *mut socklen_t,
) -> ssize_t {
    // SAFETY: the arguments are valid for `recvfrom`, by the caller's contract.
    unsafe {
        if len > room {
            __chk_fail();
        }
        splitway_preload_recvfrom(fd, to, len, flags, at, at_len)
    }
}

/// recvmsg(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splitway_preload_recvmsg(
    fd: c_int,
    message: *mut msghdr,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the arguments are valid for recvmsg(2), by the caller's contract.
    unsafe {
        if is_split(fd) {
            return point(|| sw_recvmsg(fd, message, flags));
        }
        let received = library::recvmsg(fd, message, flags);
        if received >= 0 {
            inherited::recover_passed(&*message);
        }
        received
    }
}

/// send(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splitway_preload_send(
    fd: c_int,
    from: *const c_void,
    len: size_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the arguments are valid for send(2), by the caller's contract.
    unsafe { splitway_preload_sendto(fd, from, len, flags, std::ptr::null(), 0) }
}

/// sendto(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splitway_preload_sendto(
    fd: c_int,
    from: *const c_void,
    len: size_t,
    flags: c_int,
    at: *const sockaddr,
    at_len: socklen_t,
) -> ssize_t {
    // SAFETY: the arguments are valid for sendto(2), by the caller's contract.
    unsafe {
        if is_split(fd) {
            point(|| sw_sendto(fd, from, len, flags, at, at_len))
        } else {
            library::sendto(fd, from, len, flags, at, at_len)
        }
    }
}

/// sendmsg(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splitway_preload_sendmsg(
    fd: c_int,
    message: *const msghdr,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the arguments are valid for sendmsg(2), by the caller's contract.
    unsafe {
        if is_split(fd) {
            point(|| sw_sendmsg(fd, message, flags))
        } else {
            copies::share_passed(message);
            library::sendmsg(fd, message, flags)
        }
    }
}

/// recvmmsg(2). A split socket receives message by message, as in the kernel: a pending error fails
/// the call before the first message, and an error after it is left to the next call. The timeout
/// is checked between messages.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splitway_preload_recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    // SAFETY: the arguments are valid for recvmmsg(2), by the caller's contract.
    unsafe {
        if !is_split(fd) {
            let received = library::recvmmsg(fd, messages, count, flags, timeout);
            for place in 0..usize::try_from(received).unwrap_or(0) {
                inherited::recover_passed(&(*messages.add(place)).msg_hdr);
            }
            return received;
        }
        // Errors precede data, as in Linux's do_recvmmsg.
        let socket = BorrowedFd::borrow_raw(fd);
        if let Some(Err(errno)) = client().map(|client| client.take_error(socket)) {
            return fail(errno) as c_int;
        }
        let waits_for_one = flags & libc::MSG_WAITFORONE != 0;
        let mut flags = flags & !libc::MSG_WAITFORONE;
        one_by_one(count, |place| {
            let message = messages.add(place);
            if let Err(errno) = check_value(message) {
                return (fail(errno) >= 0, true);
            }
            let header = &raw mut (*message).msg_hdr;
            let len = point(|| receive_message_after(fd, header, flags, place));
            if waits_for_one {
                flags |= libc::MSG_DONTWAIT;
            }
            if len >= 0 {
                (*message).msg_len = len as c_uint;
            }
            // The end of the stream is reported once.
            (len >= 0, len == 0)
        })
    }
}

/// sendmmsg(2). A split socket sends message by message, as in the kernel: a message that was sent
/// in part is the last, and an error after the first is lost.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splitway_preload_sendmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
) -> c_int {
    // SAFETY: the arguments are valid for sendmmsg(2), by the caller's contract.
    unsafe {
        if !is_split(fd) {
            copies::share_all_passed(messages, count);
            return library::sendmmsg(fd, messages, count, flags);
        }
        one_by_one(count, |place| {
            let message = messages.add(place);
            if let Err(errno) = check_value(message) {
                return (fail(errno) >= 0, true);
            }
            let len = point(|| sw_sendmsg(fd, &raw const (*message).msg_hdr, flags));
            if len >= 0 {
                (*message).msg_len = len as c_uint;
            }
            let is_whole =
                usize::try_from(len).is_ok_and(|len| len == bytes_of(&(*message).msg_hdr));
            (len >= 0, !is_whole)
        })
    }
}

/// Returns the number of bytes of a message that was just sent.
unsafe fn bytes_of(message: &msghdr) -> usize {
    let count = message.msg_iovlen;
    // SAFETY: the call that sent the message has read `msg_iovlen` buffers.
    (0..count).fold(0usize, |bytes, place| unsafe {
        bytes.saturating_add((*message.msg_iov.add(place)).iov_len)
    })
}

/// Largest number of messages of a call: `UIO_MAXIOV` of Linux.
const MESSAGES_MAX: usize = 1024;

/// Returns the number of messages moved by `each`, which returns whether it moved one, and whether
/// that was the last.
fn one_by_one(count: c_uint, mut each: impl FnMut(usize) -> (bool, bool)) -> c_int {
    let count = (count as usize).min(MESSAGES_MAX);
    for place in 0..count {
        let (has_moved, is_last) = each(place);
        match (has_moved, place) {
            (false, 0) => return -1,
            (false, _) => return place as c_int,
            (true, _) if is_last => return place as c_int + 1,
            (true, _) => {}
        }
    }
    count as c_int
}

/// sendfile(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splitway_preload_sendfile(
    to: c_int,
    from: c_int,
    offset: *mut off_t,
    count: size_t,
) -> ssize_t {
    // SAFETY: the arguments are valid for sendfile(2), by the caller's contract.
    unsafe {
        if is_split(to) {
            point(|| sw_sendfile(to, from, offset, count))
        } else {
            kernel!(SYS_sendfile, to, from, offset, count) as ssize_t
        }
    }
}

/// `sendfile` for large files: identical on 64-bit machines.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splitway_preload_sendfile64(
    to: c_int,
    from: c_int,
    offset: *mut off_t,
    count: size_t,
) -> ssize_t {
    // SAFETY: the arguments are valid for `sendfile`, by the caller's contract.
    unsafe { splitway_preload_sendfile(to, from, offset, count) }
}

/// Bytes that [`splitway_preload_splice`] moves at a time: the default capacity of a pipe.
const SPLICE_BYTES: usize = 64 << 10;

/// splice(2). Between a split socket and a pipe, bytes are copied: correct, and slower than the
/// kernel's. If the program runs with `--splice`, a NIC stack eventually moves the bytes, and the
/// pipe only counts them.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splitway_preload_splice(
    from: c_int,
    from_offset: *mut off_t,
    to: c_int,
    to_offset: *mut off_t,
    len: size_t,
    flags: c_uint,
) -> ssize_t {
    // SAFETY: the arguments are valid for splice(2), by the caller's contract.
    unsafe {
        match (is_split(from), is_split(to)) {
            (false, false) => library::splice(from, from_offset, to, to_offset, len, flags),
            (true, true) => fail(Errno::INVAL),
            _ if !from_offset.is_null() || !to_offset.is_null() => fail(Errno::SPIPE),
            _ if len == 0 => 0,
            (true, false) => point(|| splice_in(from, to, len, flags)),
            (false, true) => point(|| splice_out(from, to, len, flags)),
        }
    }
}

fn fail(errno: Errno) -> ssize_t {
    set_errno(errno);
    -1
}

/// Moves bytes from a split socket into a pipe, at most as many as the pipe has room for.
unsafe fn splice_in(from: c_int, to: c_int, len: size_t, flags: c_uint) -> ssize_t {
    let is_nonblocking = flags & libc::SPLICE_F_NONBLOCK != 0;
    let Some(client) = client() else {
        return fail(Errno::BADF);
    };
    // SAFETY: the number of a split socket is not -1; the calls take numbers.
    unsafe {
        let socket = BorrowedFd::borrow_raw(from);
        if pipe(to).0 == 0 {
            return fail(Errno::INVAL);
        }
        loop {
            if pipes::are_watched() {
                match pipes::take_passed(client, socket, to, len) {
                    Ok(None) => {}
                    Ok(Some(0)) if is_nonblocking || !blocks(from) => return fail(Errno::AGAIN),
                    Ok(Some(0)) => {
                        if await_event(from, libc::POLLIN) < 0 {
                            return -1;
                        }
                        continue;
                    }
                    Ok(Some(bytes)) => return bytes as ssize_t,
                    Err(errno) => return fail(errno),
                }
            }
            if !has_room(to, is_nonblocking) {
                return fail(Errno::AGAIN);
            }
            let mut put = 0;
            let take = |bytes: &[u8]| {
                put = fill_pipe(to, bytes);
                usize::try_from(put).unwrap_or(0)
            };
            let taken = client.receive_into(socket, len.min(SPLICE_BYTES), is_nonblocking, take);
            return match taken {
                _ if put < 0 => put,
                // A NIC stack has just taken over the connection.
                Ok(None) => continue,
                Ok(Some(taken)) => {
                    if taken > 0 && pipes::are_watched() {
                        pipes::on_filled(client, socket, to);
                    }
                    taken as ssize_t
                }
                Err(errno) => fail(errno),
            };
        }
    }
}

/// Reports whether calls on a socket block.
unsafe fn blocks(fd: c_int) -> bool {
    // SAFETY: fcntl takes numbers here.
    let flags = unsafe { kernel!(SYS_fcntl, fd, libc::F_GETFL, 0) as c_int };
    flags & libc::O_NONBLOCK == 0
}

/// Reports whether a pipe takes [`libc::PIPE_BUF`] bytes without blocking; waits for room unless
/// `now`.
unsafe fn has_room(pipe: c_int, now: bool) -> bool {
    let mut polled = libc::pollfd {
        fd: pipe,
        events: libc::POLLOUT,
        revents: 0,
    };
    let none = timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let timeout = if now {
        &raw const none
    } else {
        std::ptr::null()
    };
    let mask = std::ptr::null::<c_void>();
    // SAFETY: the pointers are those of one item and of a timeout or null. A pipe without a reader
    // counts as writable; the write then fails.
    unsafe { kernel!(SYS_ppoll, &raw mut polled, 1, timeout, mask, 8) == 1 }
}

/// Writes into a pipe as much as it takes without blocking; returns the number of bytes. A pipe has
/// a limited number of buffers, so its free bytes alone do not suffice.
unsafe fn fill_pipe(pipe: c_int, bytes: &[u8]) -> ssize_t {
    let mut done = 0;
    // SAFETY: the pointer and the length are those of the chunk.
    unsafe {
        for chunk in bytes.chunks(libc::PIPE_BUF) {
            if done > 0 && !has_room(pipe, true) {
                break;
            }
            let put = kernel!(SYS_write, pipe, chunk.as_ptr(), chunk.len()) as ssize_t;
            match put {
                ..0 if done == 0 => return put,
                ..0 => break,
                put => done += put,
            }
            if put < chunk.len() as ssize_t {
                break;
            }
        }
    }
    done
}

/// Moves bytes from a pipe to a split socket: as many as the socket takes at once.
unsafe fn splice_out(from: c_int, to: c_int, len: size_t, flags: c_uint) -> ssize_t {
    let is_watched = pipes::are_watched();
    if is_watched && let taken @ 1.. = pipes::take_noted(from, len) {
        return taken as ssize_t;
    }
    let mut buffer = vec![0u8; len.min(SPLICE_BYTES)];
    let at = buffer.as_mut_ptr().cast::<c_void>();
    // SAFETY: `at` has `buffer.len()` writable bytes; the other calls take numbers or local items.
    unsafe {
        let (size, waiting) = pipe(from);
        if size == 0 {
            return fail(Errno::INVAL);
        }
        if waiting == 0 && flags & libc::SPLICE_F_NONBLOCK != 0 {
            // End of file, or EAGAIN.
            let mut empty = libc::pollfd {
                fd: from,
                events: libc::POLLIN,
                revents: 0,
            };
            let now = timespec {
                tv_sec: 0,
                tv_nsec: 0,
            };
            let none = std::ptr::null::<c_void>();
            kernel!(SYS_ppoll, &raw mut empty, 1, &raw const now, none, 8);
            return if empty.revents & libc::POLLHUP != 0 {
                0
            } else {
                fail(Errno::AGAIN)
            };
        }
        // Bytes read from the pipe beyond the socket's room would be lost.
        let is_nonblocking = flags & libc::SPLICE_F_NONBLOCK != 0 || !blocks(to);
        let room = loop {
            match room_of(to) {
                None => return -1,
                Some(0) if is_nonblocking => return fail(Errno::AGAIN),
                Some(0) if await_writable(to) < 0 => return -1,
                Some(0) => {}
                Some(room) => break room,
            }
        };
        let taken = kernel!(SYS_read, from, at, buffer.len().min(room)) as ssize_t;
        if taken <= 0 {
            return taken;
        }
        let more = if flags & libc::SPLICE_F_MORE != 0 {
            libc::MSG_MORE
        } else {
            0
        };
        let mut rest = &buffer[..taken as usize];
        while !rest.is_empty() {
            let (at, before) = (rest.as_ptr().cast(), taken as usize - rest.len());
            match send_after(to, at, rest.len(), more, before) {
                sent @ 0.. => rest = &rest[sent as usize..],
                // Another thread has used the room. Bytes read from the pipe must be sent, despite
                // interruptions.
                _ if last_error() == Errno::AGAIN => {
                    if await_writable(to) < 0 && last_error() == Errno::CANCELED {
                        cancellation::forget();
                    }
                }
                // The connection has ended and the rest is lost. The next call reports the error.
                _ if before > 0 => break,
                _ => return -1,
            }
        }
        if is_watched && let Some(client) = client() {
            pipes::on_emptied(client, from, BorrowedFd::borrow_raw(to));
        }
        taken
    }
}

unsafe fn await_writable(fd: c_int) -> c_int {
    // SAFETY: the function takes numbers.
    unsafe { await_event(fd, libc::POLLOUT) }
}

unsafe fn await_event(fd: c_int, events: c_short) -> c_int {
    let mut polled = libc::pollfd {
        fd,
        events,
        revents: 0,
    };
    // SAFETY: the pointer is that of one item.
    unsafe { sw_poll(&raw mut polled, 1, -1) }
}

/// Returns the number of bytes that a socket takes at once; `None` with `errno` if it takes no
/// more.
fn room_of(fd: c_int) -> Option<usize> {
    // SAFETY: the number belongs to the program and to a split socket, so it is not -1.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    match client()?.send_room_bytes(fd) {
        Ok(room) => Some(room),
        Err(errno) => {
            set_errno(errno);
            None
        }
    }
}

/// Returns the capacity and the fill of a pipe, in bytes; capacity 0 if `fd` is no pipe.
unsafe fn pipe(fd: c_int) -> (usize, usize) {
    let mut waiting: c_int = 0;
    // SAFETY: the calls take a number, or the pointer of one.
    let size = unsafe {
        let size = kernel!(SYS_fcntl, fd, libc::F_GETPIPE_SZ, 0);
        kernel!(SYS_ioctl, fd, libc::FIONREAD, &raw mut waiting);
        size
    };
    let bytes = |number: i64| usize::try_from(number).unwrap_or(0);
    (bytes(size), bytes(waiting.into()))
}
