//! Files of the NIC stack: the functions of IO-TCP (Kim et al., NSDI 2023, Table 3).
//!
//! A file is a descriptor. Opening is asynchronous: the descriptor becomes readable when the file
//! is open, or has failed (§3.2). Ranges of the file are queued behind the bytes of a connection;
//! the application never sees their content.

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::{Errno, Result};
use socket_channel::message::PATH_BYTES_MAX;
use socket_channel::{Command, FileMeta, Flags, Lock};

use super::application::Client;
use super::blocking;
use super::opening::{DescriptorFlags, named, set_flags};
use super::process::errno;
use super::socket::{Direction, Socket, note};
use super::splice;
use super::tally::{self, Counted};
use super::transfer::{is_over, may_move_or_is_noted, may_send};

impl Client {
    /// Begins to open a file below the NIC stack's root, for reading. ENAMETOOLONG, EMFILE;
    /// [`Client::file_meta`] later returns the reason if it could not be opened.
    pub fn open_file(&self, path: &[u8], flags: DescriptorFlags) -> Result<OwnedFd> {
        if path.is_empty() {
            return Err(Errno::NOENT);
        }
        if path.len() > PATH_BYTES_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        let process = self.process()?;
        let handle = process.take_handle(flags.nonblocking)?;
        let id = handle.id;
        let answer = process.link.ask(|request| Command::OpenFile {
            request,
            handle: id,
            path,
        })?;
        let file = named(answer)?;
        set_flags(&handle, flags)?;
        self.adopt(handle.fd, handle.id, file)
    }

    /// Returns a file's metadata. EAGAIN while the file is being opened; ENOENT, EACCES or EIO if
    /// it could not be opened or read; EBADF if it is no file of the NIC stack.
    pub fn file_meta(&self, file: BorrowedFd<'_>) -> Result<FileMeta> {
        let file = self.file_of(file)?;
        file_error(&file)?;
        let meta = file.record.file_meta().map_err(errno)?;
        meta.ok_or(Errno::AGAIN)
    }

    /// Queues a range of a file behind the data already sent. Returns the number of bytes queued,
    /// limited by the connection's credit and by the file's end. While the file is being opened its
    /// end is unknown, and a range beyond it fails the connection.
    ///
    /// EOPNOTSUPP if the peer is on the same stack, to which the NIC stack does not send. EAGAIN if
    /// no byte may be queued and the connection does not block; the errors of [`Client::send`], and
    /// those of [`Client::file_meta`] except EAGAIN.
    pub fn send_file(
        &self,
        fd: BorrowedFd<'_>,
        file: BorrowedFd<'_>,
        offset: u64,
        len: usize,
    ) -> Result<usize> {
        let socket = self.socket_of(fd)?;
        let file = self.file_of(file)?;
        if i64::try_from(offset).is_err() {
            return Err(Errno::INVAL);
        }
        loop {
            let look = may_send(&socket)?;
            file_error(&file)?;
            let meta = file.record.file_meta().map_err(errno)?;
            let rest = meta.map_or(u64::MAX, |meta| meta.size.saturating_sub(offset));
            let wanted = rest.min(len as u64);
            if wanted == 0 {
                return Ok(0);
            }
            if look.flags.has(Flags::LOOPED) {
                return Err(Errno::OPNOTSUPP);
            }
            if look.flags.has(Flags::CONNECTED) {
                match queue(&socket, &file, offset, wanted) {
                    Ok(0) => {}
                    Err(Errno::BUSY) if splice::give_back_to_send(&socket)? => {}
                    queued => return queued,
                }
            }
            if socket.is_nonblocking()? {
                return Err(Errno::AGAIN);
            }
            blocking::wait(&socket, socket.timeout(Direction::Send), || {
                let look = socket.look()?;
                let is_elsewhere = splice::is_spliced(look.flags);
                let has_credit = socket.record.file_credit_bytes() > 0 && !is_elsewhere;
                let is_ready = has_credit && look.flags.has(Flags::CONNECTED)
                    || is_over(look.flags)
                    || look.error_is_new
                    || socket.has_note(note::SHUT_WRITE);
                may_move_or_is_noted(&socket)?;
                Ok(is_ready.then_some(()))
            })?;
        }
    }

    fn file_of<'a>(&'a self, fd: BorrowedFd<'a>) -> Result<Socket<'a>> {
        let file = self.find(fd)?.ok_or(Errno::BADF)?;
        if !file.look()?.flags.has(Flags::FILE) {
            return Err(Errno::BADF);
        }
        Ok(file)
    }
}

/// Returns the error of a file; it stays for later calls.
fn file_error(file: &Socket<'_>) -> Result<()> {
    let flags = file.look()?.flags;
    if flags.has(Flags::DETACHED) {
        return Err(Errno::CONNRESET);
    }
    if is_over(flags) {
        return Err(super::attach::errno_of(file.record.last_error()));
    }
    Ok(())
}

/// Queues as much of a range as the credit allows.
fn queue(socket: &Socket<'_>, file: &Socket<'_>, offset: u64, wanted: u64) -> Result<usize> {
    let record = socket.record;
    // The lock is kept until the command is in the ring: positions in the ring only grow.
    let queued = socket.with_lock(Lock::Tx, || {
        record.may_move().map_err(errno)?;
        let len = record.queue_file(wanted);
        if len > 0 {
            let (mark, at) = record.mark();
            // The end of the range completes the data announced by `MSG_MORE`, as in sendfile(2).
            if len == wanted {
                record.end_more_with_mark();
            }
            socket.tell(&Command::SendFile {
                socket: socket.id,
                file: file.id,
                offset,
                len,
                mark,
                at,
            })?;
        }
        Ok(len as usize)
    })?;
    queued.inspect(|len| tally::count(Counted::FileBytes, *len))
}
