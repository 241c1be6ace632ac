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
use crate::inherited;
use crate::kernel::kernel;
use crate::library;
use crate::pipes;

unsafe extern "C" {
    /// What the C library calls where a fortified call would write beyond its buffer.
    fn __chk_fail() -> !;
}

/// read(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splitway_preload_read(
    fd: c_int,
    to: *mut c_void,
    len: size_t,
) -> ssize_t {
    // SAFETY: the caller's promise.
    unsafe {
        match is_split(fd) {
            // As vfs_read of Linux, but not as recv(2).
            true if len == 0 => 0,
            true => point(|| sw_recv(fd, to, len, 0)),
            false => library::read(fd, to, len),
        }
    }
}

/// `read` with the length of the buffer that the compiler knows.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splitway_preload___read_chk(
    fd: c_int,
    to: *mut c_void,
    len: size_t,
    room: size_t,
) -> ssize_t {
    // SAFETY: the caller's promise.
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
    // SAFETY: the caller's promise.
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
    // SAFETY: the caller's promise.
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
    // SAFETY: the caller's promise.
    unsafe {
        if is_split(fd) {
            point(|| sw_writev(fd, vectors, count))
        } else {
            library::writev(fd, vectors, count)
        }
    }
}

/// Flags of preadv2(2) that a socket takes; all but the first mean nothing to it.
const RWF_NOWAIT: c_int = 8;
const RWF_OF_SOCKETS: c_int = RWF_NOWAIT | 1 | 2 | 4 | 16;

/// What preadv2(2) and pwritev2(2) do with a split socket: a message without an address, as the
/// kernel has it, and its flags.
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
    // SAFETY: all of it are numbers and pointers, for which zero is a value.
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
    // SAFETY: the caller's promise.
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
    // SAFETY: the caller's promise.
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

/// `preadv2` of programs with large files: the same on machines of 64 bits.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splitway_preload_preadv64v2(
    fd: c_int,
    vectors: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the caller's promise.
    unsafe { splitway_preload_preadv2(fd, vectors, count, offset, flags) }
}

/// `pwritev2` of programs with large files.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splitway_preload_pwritev64v2(
    fd: c_int,
    vectors: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the caller's promise.
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
    // SAFETY: the caller's promise.
    unsafe {
        if is_split(fd) {
            point(|| sw_recv(fd, to, len, flags))
        } else {
            library::recv(fd, to, len, flags)
        }
    }
}

/// `recv` with the length of the buffer that the compiler knows.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splitway_preload___recv_chk(
    fd: c_int,
    to: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the caller's promise.
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
    // SAFETY: the caller's promise.
    unsafe {
        if is_split(fd) {
            point(|| sw_recvfrom(fd, to, len, flags, at, at_len))
        } else {
            library::recvfrom(fd, to, len, flags, at, at_len)
        }
    }
}

/// `recvfrom` with the length of the buffer that the compiler knows.
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
    // SAFETY: the caller's promise.
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
    // SAFETY: the caller's promise.
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
    // SAFETY: the caller's promise.
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
    // SAFETY: the caller's promise.
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
    // SAFETY: the caller's promise.
    unsafe {
        if is_split(fd) {
            point(|| sw_sendmsg(fd, message, flags))
        } else {
            library::sendmsg(fd, message, flags)
        }
    }
}

/// recvmmsg(2). Of a split socket, one message after the other, as the kernel has it: an error
/// comes before the first, and one behind that is left to the next call. The timeout is looked at
/// between messages.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splitway_preload_recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        if !is_split(fd) {
            let received = library::recvmmsg(fd, messages, count, flags, timeout);
            for place in 0..usize::try_from(received).unwrap_or(0) {
                inherited::recover_passed(&(*messages.add(place)).msg_hdr);
            }
            return received;
        }
        // Before what there is to receive, as do_recvmmsg of Linux has it.
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
            // The end of the stream is said once.
            (len >= 0, len == 0)
        })
    }
}

/// sendmmsg(2). Of a split socket, one message after the other, as the kernel has it: one that was
/// sent in part is the last, and an error behind the first is lost.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splitway_preload_sendmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        if !is_split(fd) {
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

/// Bytes of a message that was just sent.
unsafe fn bytes_of(message: &msghdr) -> usize {
    let count = message.msg_iovlen;
    // SAFETY: the caller's promise: the call has used as many buffers.
    (0..count).fold(0usize, |bytes, place| unsafe {
        bytes.saturating_add((*message.msg_iov.add(place)).iov_len)
    })
}

/// Messages that one call takes, at most: `UIO_MAXIOV` of Linux.
const MESSAGES_MAX: usize = 1024;

/// How many messages `each` has moved: it says whether it has, and whether that was the last.
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
    // SAFETY: the caller's promise.
    unsafe {
        if is_split(to) {
            point(|| sw_sendfile(to, from, offset, count))
        } else {
            kernel!(SYS_sendfile, to, from, offset, count) as ssize_t
        }
    }
}

/// `sendfile` of programs with large files: the same on machines of 64 bits.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splitway_preload_sendfile64(
    to: c_int,
    from: c_int,
    offset: *mut off_t,
    count: size_t,
) -> ssize_t {
    // SAFETY: the caller's promise.
    unsafe { splitway_preload_sendfile(to, from, offset, count) }
}

/// Bytes that [`splitway_preload_splice`] moves at a time: those of a pipe, as it is made.
const SPLICE_BYTES: usize = 64 << 10;

/// splice(2). Between a split socket and a pipe, bytes are copied: right, and slower than the
/// kernel's. Where the program is run with `--splice`, a NIC stack moves them in the end, and the
/// pipe is only said to have them.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splitway_preload_splice(
    from: c_int,
    from_offset: *mut off_t,
    to: c_int,
    to_offset: *mut off_t,
    len: size_t,
    flags: c_uint,
) -> ssize_t {
    // SAFETY: the caller's promise.
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

/// From a split socket into a pipe. No byte is taken that the pipe has no room for.
unsafe fn splice_in(from: c_int, to: c_int, len: size_t, flags: c_uint) -> ssize_t {
    let is_nonblocking = flags & libc::SPLICE_F_NONBLOCK != 0;
    let Some(client) = client() else {
        return fail(Errno::BADF);
    };
    // SAFETY: the number of a split socket is not -1; the others are numbers.
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
                // A NIC stack has the connection since just now.
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

/// Whether calls on a socket wait.
unsafe fn blocks(fd: c_int) -> bool {
    // SAFETY: it takes numbers.
    let flags = unsafe { kernel!(SYS_fcntl, fd, libc::F_GETFL, 0) as c_int };
    flags & libc::O_NONBLOCK == 0
}

/// Whether a pipe takes [`libc::PIPE_BUF`] bytes without waiting; waits for that unless `now`.
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
    // SAFETY: the pointer is that of one item. A pipe without a reader has room, and the write says
    // so.
    unsafe { kernel!(SYS_ppoll, &raw mut polled, 1, timeout, mask, 8) == 1 }
}

/// Writes into a pipe what it takes without waiting, and returns how much: a pipe has room for a
/// number of pieces, so bytes alone do not tell.
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

/// From a pipe to a split socket: as many bytes as it takes at once.
unsafe fn splice_out(from: c_int, to: c_int, len: size_t, flags: c_uint) -> ssize_t {
    let is_watched = pipes::are_watched();
    if is_watched && let taken @ 1.. = pipes::take_noted(from, len) {
        return taken as ssize_t;
    }
    let mut buffer = vec![0u8; len.min(SPLICE_BYTES)];
    let at = buffer.as_mut_ptr().cast::<c_void>();
    // SAFETY: the buffer is as long as is said.
    unsafe {
        let (size, waiting) = pipe(from);
        if size == 0 {
            return fail(Errno::INVAL);
        }
        if waiting == 0 && flags & libc::SPLICE_F_NONBLOCK != 0 {
            // Its end, or EAGAIN.
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
        // What the socket does not take would be lost once it is out of the pipe.
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
                // Another thread has used the room. What has left the pipe is waited for, whatever
                // interrupts that.
                _ if last_error() == Errno::AGAIN => {
                    if await_writable(to) < 0 && last_error() == Errno::CANCELED {
                        cancellation::forget();
                    }
                }
                // The connection has ended, and with it what was under way. The next call says why.
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
    // SAFETY: it takes numbers.
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

/// How many bytes a socket takes at once; `None` and `errno` if it takes none any more.
fn room_of(fd: c_int) -> Option<usize> {
    // SAFETY: the number is the program's; it is split.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    match client()?.send_room_bytes(fd) {
        Ok(room) => Some(room),
        Err(errno) => {
            set_errno(errno);
            None
        }
    }
}

/// Bytes that a pipe holds at most, and that are in it; 0 if it is none.
unsafe fn pipe(fd: c_int) -> (usize, usize) {
    let mut waiting: c_int = 0;
    // SAFETY: both take a number or the pointer of one.
    let size = unsafe {
        let size = kernel!(SYS_fcntl, fd, libc::F_GETPIPE_SZ, 0);
        kernel!(SYS_ioctl, fd, libc::FIONREAD, &raw mut waiting);
        size
    };
    let bytes = |number: i64| usize::try_from(number).unwrap_or(0);
    (bytes(size), bytes(waiting.into()))
}
