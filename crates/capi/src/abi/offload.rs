//! The functions of IO-TCP (Kim et al., NSDI 2023, Table 3).

use std::ffi::CStr;

use rustix::io::{Errno, Result};

use super::bytes::raise_pipe;
use super::global::{borrow, client};
use super::memory::put;
use super::outcome::{descriptor, length, zero};
use super::sockets::sw_close;
use crate::FileMeta;
use crate::client::DescriptorFlags;

/// Begins to open a file below the NIC stack's root for reading. Returns a descriptor that becomes
/// readable when the file is open or has failed; EPOLLERR marks a failure. `mode` is O_RDONLY,
/// optionally with O_CLOEXEC and O_NONBLOCK.
///
/// EINVAL for another mode, ENOENT, ENAMETOOLONG, EMFILE. `offload_fstat` returns the reason of a
/// failure.
///
/// # Safety
/// `filename` is null or ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn offload_open(
    filename: *const libc::c_char,
    mode: libc::c_int,
) -> libc::c_int {
    let open = || {
        if filename.is_null() {
            return Err(Errno::FAULT);
        }
        if mode & !(libc::O_CLOEXEC | libc::O_NONBLOCK) != libc::O_RDONLY {
            return Err(Errno::INVAL);
        }
        // SAFETY: `filename` is not null, and ends with a zero byte by the caller's contract.
        let path = unsafe { CStr::from_ptr(filename) };
        let flags = DescriptorFlags {
            nonblocking: mode & libc::O_NONBLOCK != 0,
            close_on_exec: mode & libc::O_CLOEXEC != 0,
        };
        client()?.open_file(path.to_bytes(), flags)
    };
    descriptor(open())
}

/// Closes a file. Its queued ranges are still sent. EBADF if `fid` is no file of the NIC stack.
#[unsafe(no_mangle)]
pub extern "C" fn offload_close(fid: libc::c_int) -> libc::c_int {
    let meta = || client()?.file_meta(borrow(fid)?);
    match meta() {
        Err(Errno::BADF) => zero(Err(Errno::BADF)),
        Ok(_) | Err(_) => sw_close(fid),
    }
}

/// Returns a file's metadata from the NIC stack: size, times, inode and device; the type is a
/// regular file. EAGAIN while the file is being opened. ENOENT, EACCES or EIO if it could not be
/// opened or read; EBADF if `fid` is no file of the NIC stack.
///
/// # Safety
/// `buffer` is null or has room for a `struct stat`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn offload_fstat(fid: libc::c_int, buffer: *mut libc::stat) -> libc::c_int {
    let meta = || client()?.file_meta(borrow(fid)?);
    // SAFETY: `buffer` is null or has room for a `struct stat`, by the caller's contract.
    zero(meta().and_then(|meta| unsafe { put(buffer, stat_of(meta)) }))
}

fn stat_of(meta: FileMeta) -> libc::stat {
    const BLOCK_BYTES: u64 = 4096;
    const NS: i64 = 1_000_000_000;
    // SAFETY: `stat` consists of integers, for which zero is valid.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    stat.st_dev = meta.device;
    stat.st_ino = meta.inode;
    stat.st_mode = libc::S_IFREG | 0o444;
    stat.st_nlink = 1;
    stat.st_size = i64::try_from(meta.size).unwrap_or(i64::MAX);
    stat.st_blksize = BLOCK_BYTES as _;
    stat.st_blocks = meta.size.div_ceil(512) as _;
    stat.st_mtime = meta.mtime_ns.div_euclid(NS);
    stat.st_mtime_nsec = meta.mtime_ns.rem_euclid(NS);
    stat.st_ctime = meta.ctime_ns.div_euclid(NS);
    stat.st_ctime_nsec = meta.ctime_ns.rem_euclid(NS);
    stat.st_atime = stat.st_mtime;
    stat.st_atime_nsec = stat.st_mtime_nsec;
    stat
}

/// Queues a range of a file behind the data already sent. Returns the number of bytes queued: fewer
/// than `len` if the connection may not queue more, 0 at the end of the file. The file may still be
/// opening.
///
/// EOPNOTSUPP if the peer is on the same stack, to which the NIC stack does not send: send the
/// bytes themselves. EAGAIN if no byte may be queued and `socket` does not block; EPIPE with
/// SIGPIPE, and the other errors of `sw_send`; the error of `offload_fstat` for a file that has
/// failed; EINVAL for a negative offset; EBADF if `fid` is no file of the NIC stack.
#[unsafe(no_mangle)]
pub extern "C" fn offload_write(
    socket: libc::c_int,
    fid: libc::c_int,
    offset: libc::off_t,
    len: usize,
) -> libc::ssize_t {
    let write = || -> Result<usize> {
        let offset = u64::try_from(offset).map_err(|_| Errno::INVAL)?;
        client()?.send_file(borrow(socket)?, borrow(fid)?, offset, len)
    };
    let written = write();
    if written == Err(Errno::PIPE) {
        raise_pipe();
    }
    length(written)
}
