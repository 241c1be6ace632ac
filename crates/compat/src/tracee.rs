//! A thread of the program, as proc(5) shows it.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

use capi::client::DescriptorFlags;
use rustix::io::{Errno, Result};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

/// `PIDFD_THREAD`, Linux 6.9: a thread that is not the first of its process.
const OF_THREAD: PidfdFlags = PidfdFlags::from_bits_retain(libc::O_EXCL.unsigned_abs());

/// See the [module documentation](self).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tracee(pub(crate) Pid);

/// A signal that waits until a call of a thread is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pending {
    /// It is this thread's.
    Surely,
    /// It may be that of another thread, which is handling it just now.
    Perhaps,
}

fn errno(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// Returns the value of a line of `status` or `fdinfo`.
fn value<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = text.lines();
    let found = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    found.map(str::trim)
}

impl Tracee {
    fn place(self, name: &str) -> String {
        format!("/proc/{}/{name}", self.0.as_raw_nonzero())
    }

    /// Opens its memory.
    pub(crate) fn memory(self) -> Result<Memory> {
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .open(self.place("mem"));
        opened.map(Memory).map_err(|error| errno(&error))
    }

    /// Returns the inode of the socket behind a descriptor; `None` if there is none, or no socket.
    pub(crate) fn socket(self, fd: RawFd) -> Result<Option<u64>> {
        let target = match fs::read_link(self.place(&format!("fd/{fd}"))) {
            Ok(target) => target,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(errno(&error)),
        };
        Ok(socket_inode(&target))
    }

    /// Returns whether a descriptor blocks, and whether `exec` closes it.
    pub(crate) fn flags(self, fd: RawFd) -> Result<DescriptorFlags> {
        let info = fs::read_to_string(self.place(&format!("fdinfo/{fd}")));
        let info = info.map_err(|error| errno(&error))?;
        let flags = value(&info, "flags").and_then(|octal| i32::from_str_radix(octal, 8).ok());
        let flags = flags.ok_or(Errno::BADF)?;
        Ok(DescriptorFlags {
            nonblocking: flags & libc::O_NONBLOCK != 0,
            close_on_exec: flags & libc::O_CLOEXEC != 0,
        })
    }

    /// Returns a duplicate of one of its descriptors.
    pub(crate) fn duplicate(self, fd: RawFd) -> Result<OwnedFd> {
        let process = match pidfd_open(self.0, OF_THREAD) {
            Err(Errno::INVAL) => pidfd_open(self.process()?, PidfdFlags::empty()),
            other => other,
        };
        pidfd_getfd(process?, fd, PidfdGetfdFlags::empty())
    }

    /// Returns a duplicate of a descriptor of a socket that this thread had by a number, or that it
    /// or another process has now: descriptors are passed on.
    pub(crate) fn find_end(self, place: RawFd, inode: u64) -> Option<OwnedFd> {
        let is_it = |fd: &OwnedFd| rustix::fs::fstat(fd).is_ok_and(|stat| stat.st_ino == inode);
        if let Some(fd) = self.duplicate(place).ok().filter(is_it) {
            return Some(fd);
        }
        let processes = fs::read_dir("/proc").ok()?.flatten();
        let processes = processes.filter_map(|entry| {
            let number = entry.file_name().to_str()?.parse().ok()?;
            Pid::from_raw(number).filter(|pid| *pid != getpid())
        });
        let mut holders = std::iter::once(self.0).chain(processes).map(Tracee);
        holders.find_map(|holder| holder.find(inode).filter(is_it))
    }

    fn find(self, inode: u64) -> Option<OwnedFd> {
        let entries = fs::read_dir(self.place("fd")).ok()?.flatten();
        let mut numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let found = numbers.find(|number| self.socket(*number) == Ok(Some(inode)))?;
        self.duplicate(found).ok()
    }

    fn status(self) -> Result<String> {
        fs::read_to_string(self.place("status")).map_err(|error| errno(&error))
    }

    /// Returns its process.
    pub(crate) fn process(self) -> Result<Pid> {
        let status = self.status()?;
        let number = value(&status, "Tgid").and_then(|number| number.parse().ok());
        number.and_then(Pid::from_raw).ok_or(Errno::SRCH)
    }

    /// Returns whether a signal waits until its call is over.
    pub(crate) fn pending(self) -> Option<Pending> {
        pending(&self.status().ok()?)
    }

    /// Returns the path of its executable, for messages.
    pub(crate) fn executable(self) -> String {
        let path = fs::read_link(self.place("exe"));
        path.map_or_else(|_| "?".to_owned(), |path| path.display().to_string())
    }
}

fn socket_inode(target: &Path) -> Option<u64> {
    let name = target.to_str()?.strip_prefix("socket:[")?;
    name.strip_suffix(']')?.parse().ok()
}

fn pending(status: &str) -> Option<Pending> {
    let mask = |name| u64::from_str_radix(value(status, name)?, 16).ok();
    let blocked = mask("SigBlk")?;
    let (own, shared) = (mask("SigPnd")? & !blocked, mask("ShdPnd")? & !blocked);
    let is_alone = value(status, "Threads") == Some("1");
    match (own != 0, shared != 0) {
        (true, _) => Some(Pending::Surely),
        (false, true) if is_alone => Some(Pending::Surely),
        (false, true) => Some(Pending::Perhaps),
        (false, false) => None,
    }
}

/// The memory of a process, even if the process's number is reused.
#[derive(Debug)]
pub(crate) struct Memory(File);

impl Memory {
    /// Reads bytes at an address; EFAULT if it is not mapped.
    pub(crate) fn read(&self, at: u64, len: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        let read = self.0.read_exact_at(&mut bytes, at);
        read.map_err(|_| Errno::FAULT)?;
        Ok(bytes)
    }

    /// Reads a `socklen_t`.
    pub(crate) fn read_len(&self, at: u64) -> Result<u32> {
        let bytes = self.read(at, size_of::<u32>())?;
        let bytes = bytes.first_chunk().ok_or(Errno::FAULT)?;
        Ok(u32::from_ne_bytes(*bytes))
    }

    pub(crate) fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        self.0.write_all_at(bytes, at).map_err(|_| Errno::FAULT)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    const STATUS: &str = "Name:\tit\nThreads:\t1\nSigPnd:\t0000000000000000\n\
                          ShdPnd:\t0000000000004000\nSigBlk:\t0000000000000000\n";

    #[test]
    fn a_signal_that_waits_is_seen_unless_it_is_blocked() {
        assert_eq!(pending(STATUS), Some(Pending::Surely));
        let threads = STATUS.replace("Threads:\t1", "Threads:\t2");
        assert_eq!(pending(&threads), Some(Pending::Perhaps));
        let blocked = "SigBlk:\t0000000000004000";
        let blocked = STATUS.replace("SigBlk:\t0000000000000000", blocked);
        assert_eq!(pending(&blocked), None);
    }

    #[test]
    fn a_socket_is_known_by_its_inode_and_a_file_is_none() {
        let own = Tracee(rustix::process::getpid());
        let socket = std::os::unix::net::UnixDatagram::unbound().unwrap();
        let inode = rustix::fs::fstat(&socket).unwrap().st_ino;
        assert_eq!(own.socket(socket.as_raw_fd()), Ok(Some(inode)));
        assert!(own.find(inode).is_some());
        let file = File::open("/proc/self/status").unwrap();
        assert_eq!(own.socket(file.as_raw_fd()), Ok(None));
        assert_eq!(own.socket(-1), Ok(None));
        let flags = own.flags(file.as_raw_fd()).unwrap();
        assert!(flags.close_on_exec && !flags.nonblocking);
        assert_eq!(own.process(), Ok(own.0));
    }

    #[test]
    fn memory_that_is_not_there_is_a_fault() {
        let memory = Tracee(rustix::process::getpid()).memory().unwrap();
        let number = 7_u32;
        let at = std::ptr::from_ref(&number).addr() as u64;
        assert_eq!(memory.read_len(at), Ok(7));
        assert_eq!(memory.read(8, 4), Err(Errno::FAULT));
        assert_eq!(memory.write(8, b"it"), Err(Errno::FAULT));
    }
}
