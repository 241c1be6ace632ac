//! sendfile(2) of files that the program has opened itself.
//!
//! On first use, a file is passed to the NIC stacks: through the broker, since the host stack never
//! gets a descriptor of an application. It then is a file of the NIC stack, which this process
//! keeps for later calls under its fstat(2) data, unless that does not distinguish the file's
//! versions. If a file cannot be passed, its bytes are read here and sent: one that is also open
//! for writing, a pipe or a device, a file system that may block its readers, a stack whose NIC
//! stacks all run on other machines, a peer on the same stack.

use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat, tell};
use rustix::io::{Errno, Result};
use socket_channel::{Command, FileMeta, Flags};

use super::application::Client;
use super::blocking;
use super::opening::named;
use super::own;
use super::process::Process;
use super::sent_files::{Known, Version, Way};
use super::timing::Instant;
use super::transfer::{SendFlags, is_over, may_send_after};

/// Longest wait for a file's opening, after which it is read here.
const OPENING: Duration = Duration::from_secs(5);

/// Bytes read at a time.
const READ_BYTES: usize = 64 << 10;

/// Reports whether a file has bytes to send, before checks of the connection. EBADF if it is not
/// open for reading, EINVAL if it is a directory, ESPIPE if it has no positions.
fn has_range(file: BorrowedFd<'_>, offset: u64, len: usize) -> Result<bool> {
    let flags = fcntl_getfl(file)?;
    if flags.contains(OFlags::PATH) || flags & OFlags::ACCMODE == OFlags::WRONLY {
        return Err(Errno::BADF);
    }
    tell(file)?;
    let stat = fstat(file)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => Err(Errno::INVAL),
        FileType::RegularFile => Ok(len > 0 && offset < stat.st_size.cast_unsigned()),
        _ => Ok(len > 0),
    }
}

impl Client {
    /// sendfile(2): queues a range of an open file behind the data already sent. Returns the number
    /// of bytes queued; 0 at the file's end. The bytes sent are those that the file has when they
    /// leave. If the file is written to before, the connection is reset: ESTALE.
    ///
    /// EBADF if the file is not open for reading; EAGAIN if no byte may be queued and the
    /// connection does not block; the errors of [`Client::send`].
    pub fn send_open_file(
        &self,
        fd: BorrowedFd<'_>,
        file: BorrowedFd<'_>,
        offset: u64,
        len: usize,
    ) -> Result<usize> {
        if let Some(split) = self.find(file)? {
            let is_file = split.look()?.flags.has(Flags::FILE);
            return if is_file {
                self.send_file(fd, file, offset, len)
            } else {
                Err(Errno::SPIPE)
            };
        }
        let socket = self.socket_of(fd)?;
        if offset.saturating_add(len as u64) > i64::MAX as u64 {
            return Err(Errno::INVAL);
        }
        let look = socket.look_at_stream()?;
        let flags = look.flags;
        let is_usual = flags.has(Flags::CONNECTED) && !is_over(flags) && len > 0;
        if !is_usual && !has_range(file, offset, len)? {
            return Ok(0);
        }
        may_send_after(&socket, look)?;
        if flags.has(Flags::LOOPED) {
            return self.read_and_send(fd, file, offset, len);
        }
        match self.way_of(socket.process, file)? {
            Way::Passed(passed) => {
                let sent = self.send_file(fd, passed.as_fd(), offset, len);
                self.close_if_last(passed);
                sent
            }
            Way::ReadHere => self.read_and_send(fd, file, offset, len),
        }
    }

    fn way_of(&self, process: &Process, file: BorrowedFd<'_>) -> Result<Way> {
        let stat = fstat(file)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Ok(Way::ReadHere);
        }
        // A program with write access uses it, such as a server that stores a response while it
        // arrives: the file grows while its beginning is sent, and would then be another version.
        if fcntl_getfl(file)? & OFlags::ACCMODE == OFlags::RDWR {
            return Ok(Way::ReadHere);
        }
        let (version, now) = (Version::of(&stat), Instant::now());
        let mut has_distinct_version = version.is_settled();
        let (way, over) = process.sent_files.find(version, now);
        self.close_all(over);
        if let Some(way) = way {
            return Ok(way);
        }
        let way = match self.pass(process, file) {
            Ok((passed, meta)) => {
                has_distinct_version &= !meta.is_weak;
                Way::Passed(Arc::new(passed))
            }
            Err(Errno::BADF) => return Err(Errno::BADF),
            Err(Errno::MFILE) => {
                // The closed files make room for the next call.
                self.close_all(process.sent_files.shed());
                return Ok(Way::ReadHere);
            }
            Err(_) => {
                // The file has no version here: its bytes are sent as the program reads them.
                has_distinct_version = true;
                Way::ReadHere
            }
        };
        if !has_distinct_version {
            return Ok(way);
        }
        let gone = process.sent_files.insert(Known {
            version,
            way: way.clone(),
            used: now,
        });
        self.close_all(gone);
        Ok(way)
    }

    fn close_all(&self, files: Vec<Known>) {
        for known in files {
            if let Way::Passed(file) = known.way {
                self.close_if_last(file);
            }
        }
    }

    fn close_if_last(&self, file: Arc<OwnedFd>) {
        if let Some(file) = Arc::into_inner(file) {
            self.close_own(file);
        }
    }

    fn close_own(&self, file: OwnedFd) {
        own::forget(file.as_fd());
        // There is nothing to linger for.
        let _ = self.close(file);
    }

    /// Passes a file, and waits until the NIC stack has opened it.
    fn pass(&self, process: &Process, file: BorrowedFd<'_>) -> Result<(OwnedFd, FileMeta)> {
        let handle = process.take_handle(false)?;
        let number = match process.pass_file(file) {
            Ok(number) => number,
            Err(errno) => {
                process.handles.put_back(handle);
                return Err(errno);
            }
        };
        let id = handle.id;
        let answer = process.link.ask(|request| Command::OpenPassed {
            request,
            handle: id,
            file: number,
        })?;
        // Programs expect low numbers for their own descriptors.
        let fd = own::move_up(handle.fd);
        let passed = self.adopt(fd, id, named(answer)?)?;
        own::keep(passed.as_fd());
        match self.await_open(passed.as_fd()) {
            Ok(meta) => Ok((passed, meta)),
            Err(errno) => {
                self.close_own(passed);
                // The program's descriptor is valid, so not EBADF.
                Err(if errno == Errno::BADF {
                    Errno::IO
                } else {
                    errno
                })
            }
        }
    }

    fn await_open(&self, file: BorrowedFd<'_>) -> Result<FileMeta> {
        let socket = self.socket_of(file)?;
        let until = Instant::now() + OPENING;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let waited = blocking::wait(&socket, Some(left), || {
                let flags = socket.look()?.flags;
                let is_done = flags.has(Flags::FILE_OPEN) || is_over(flags);
                Ok(is_done.then_some(()))
            });
            match waited {
                // As in Linux, signals do not interrupt the reading of a disk.
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
                Ok(()) => return self.file_meta(file),
            }
        }
    }

    /// Sends a range of a file as bytes.
    fn read_and_send(
        &self,
        fd: BorrowedFd<'_>,
        file: BorrowedFd<'_>,
        offset: u64,
        len: usize,
    ) -> Result<usize> {
        let mut buffer = vec![0; len.min(READ_BYTES)];
        let mut sent = 0;
        while sent < len {
            let wanted = (len - sent).min(READ_BYTES);
            let place = offset.checked_add(sent as u64).ok_or(Errno::INVAL)?;
            let step = match rustix::io::pread(file, &mut buffer[..wanted], place) {
                Err(Errno::ISDIR) => return Err(Errno::INVAL),
                Ok(0) => break,
                Ok(read) => {
                    let pieces = &[IoSlice::new(&buffer[..read])];
                    let result = self.send_after(fd, pieces, SendFlags::default(), sent);
                    result.map(|taken| (taken, taken < read))
                }
                Err(errno) => Err(errno),
            };
            match step {
                Ok((taken, is_full)) => {
                    sent += taken;
                    if is_full {
                        break;
                    }
                }
                Err(_) if sent > 0 => break,
                Err(errno) => return Err(errno),
            }
        }
        Ok(sent)
    }
}
