//! seccomp(2), its notifications, and other calls that have no safe form.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use capi::abi::last_error;
use rustix::io::{Errno, Result};
use rustix::process::{Pid, Signal, set_parent_process_death_signal};

/// `ERESTARTSYS`, the result of kernel calls that a signal interrupts: the call is made again, or
/// fails with EINTR, depending on the handler of the thread's pending signal.
pub(crate) const RESTART: i32 = 512;

/// A call that a thread of the program has made, and that waits for an answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Notification {
    id: u64,
    /// The thread; `None` if it is in no namespace that this process sees.
    pub(crate) thread: Option<Pid>,
    /// The number of the call.
    pub(crate) call: libc::c_long,
    /// `AUDIT_ARCH_…` that the number belongs to.
    pub(crate) architecture: u32,
    pub(crate) arguments: [u64; 6],
}

/// Source of calls, and sink of answers.
#[derive(Debug)]
pub(crate) struct Notifier(OwnedFd);

/// Has a program decide the calls of this thread, and of processes that it starts from now on. The
/// thread must not gain privileges (`PR_SET_NO_NEW_PRIVS`), unless it may administer the system.
pub(crate) fn install(program: &[libc::sock_filter]) -> Result<Notifier> {
    let len = program.len().try_into().map_err(|_| Errno::INVAL)?;
    let program = libc::sock_fprog {
        len,
        filter: program.as_ptr().cast_mut(),
    };
    // A call in progress is not restarted for a signal: it would be made twice.
    let flags =
        libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
    // SAFETY: the pointer is to a program of the right length, which the kernel copies.
    let fd = unsafe {
        let mode = libc::SECCOMP_SET_MODE_FILTER;
        libc::syscall(libc::SYS_seccomp, mode, flags, &raw const program)
    };
    let fd = RawFd::try_from(fd).unwrap_or(-1);
    if fd < 0 {
        return Err(last_error());
    }
    // SAFETY: the kernel has just opened this descriptor, which has no other owner.
    Ok(Notifier(unsafe { OwnedFd::from_raw_fd(fd) }))
}

/// Has a program killed when the thread that starts it ends: without this process, its calls would
/// fail with ENOSYS.
pub(crate) fn die_with_parent(command: &mut Command) {
    let before = || -> std::io::Result<()> {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        Ok(())
    };
    // SAFETY: the code between fork and exec makes one system call, and allocates no memory.
    unsafe { command.pre_exec(before) };
}

impl Notifier {
    /// Returns the next call; `None` if its thread is gone, or has continued for a signal.
    pub(crate) fn receive(&self) -> Result<Option<Notification>> {
        let mut raw = MaybeUninit::<libc::seccomp_notif>::zeroed();
        // SAFETY: the request takes this struct, zeroed as the kernel requires.
        let done = unsafe { self.ioctl(libc::SECCOMP_IOCTL_NOTIF_RECV, raw.as_mut_ptr()) };
        match done {
            Ok(_) => {}
            Err(Errno::NOENT | Errno::INTR) => return Ok(None),
            Err(errno) => return Err(errno),
        }
        // SAFETY: the struct consists of integers, zeroed or written.
        let raw = unsafe { raw.assume_init() };
        Ok(Some(Notification {
            id: raw.id,
            thread: i32::try_from(raw.pid).ok().and_then(Pid::from_raw),
            call: raw.data.nr.into(),
            architecture: raw.data.arch,
            arguments: raw.data.args,
        }))
    }

    /// True if the thread still waits. If so, files opened by its number before are its own.
    pub(crate) fn is_waiting(&self, notification: &Notification) -> bool {
        let mut id = notification.id;
        // SAFETY: the request takes an integer of 64 bits.
        unsafe { self.ioctl(libc::SECCOMP_IOCTL_NOTIF_ID_VALID, &raw mut id) }.is_ok()
    }

    /// Answers the call with a value or an error.
    pub(crate) fn answer(&self, notification: &Notification, value: i64, error: i32) -> Result<()> {
        self.send(notification, value, error, 0)
    }

    /// Lets the kernel make the call as if it had not been reported. The kernel reads all arguments
    /// again.
    pub(crate) fn leave_to_kernel(&self, notification: &Notification) -> Result<()> {
        let goes_on = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32;
        self.send(notification, 0, 0, goes_on)
    }

    fn send(&self, notification: &Notification, val: i64, error: i32, flags: u32) -> Result<()> {
        let mut raw = libc::seccomp_notif_resp {
            id: notification.id,
            val,
            error: -error,
            flags,
        };
        // SAFETY: the request takes this struct.
        unsafe { self.ioctl(libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut raw) }.map(drop)
    }

    /// Replaces a descriptor of the thread by another one.
    pub(crate) fn replace(
        &self,
        notification: &Notification,
        fd: BorrowedFd<'_>,
        place: RawFd,
        close_on_exec: bool,
    ) -> Result<()> {
        let flags = libc::SECCOMP_ADDFD_FLAG_SETFD as u32;
        let place = u32::try_from(place).map_err(|_| Errno::BADF)?;
        self.add(notification, fd, (flags, place), close_on_exec)
            .map(drop)
    }

    /// Answers the call with a descriptor, which is added to the thread's at the same moment.
    pub(crate) fn answer_with(
        &self,
        notification: &Notification,
        fd: BorrowedFd<'_>,
        close_on_exec: bool,
    ) -> Result<RawFd> {
        let flags = libc::SECCOMP_ADDFD_FLAG_SEND as u32;
        self.add(notification, fd, (flags, 0), close_on_exec)
    }

    fn add(
        &self,
        notification: &Notification,
        fd: BorrowedFd<'_>,
        (flags, newfd): (u32, u32),
        close_on_exec: bool,
    ) -> Result<RawFd> {
        let mut raw = libc::seccomp_notif_addfd {
            id: notification.id,
            flags,
            srcfd: fd.as_raw_fd().unsigned_abs(),
            newfd,
            newfd_flags: if close_on_exec {
                libc::O_CLOEXEC.unsigned_abs()
            } else {
                0
            },
        };
        // SAFETY: the request takes this struct.
        unsafe { self.ioctl(libc::SECCOMP_IOCTL_NOTIF_ADDFD, &raw mut raw) }
    }

    /// # Safety
    /// `argument` must point to the type that the request takes.
    unsafe fn ioctl<T>(&self, request: libc::c_ulong, argument: *mut T) -> Result<i32> {
        // SAFETY: `argument` points to the type that the request takes, by the caller's contract.
        let done = unsafe { libc::ioctl(self.0.as_raw_fd(), request, argument) };
        if done < 0 {
            Err(last_error())
        } else {
            Ok(done)
        }
    }
}

impl AsFd for Notifier {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Returns the value of an option of a kernel socket, as bytes.
pub(crate) fn option_bytes(fd: BorrowedFd<'_>, level: i32, name: i32) -> Result<Vec<u8>> {
    /// `TCP_INFO` is the longest.
    const BYTES_MAX: usize = 512;
    let mut bytes = [0_u8; BYTES_MAX];
    let mut len = BYTES_MAX as libc::socklen_t;
    // SAFETY: the pointers are to an array and to its length.
    let done = unsafe {
        let at = bytes.as_mut_ptr().cast();
        libc::getsockopt(fd.as_raw_fd(), level, name, at, &raw mut len)
    };
    if done < 0 {
        return Err(last_error());
    }
    Ok(bytes[..BYTES_MAX.min(len as usize)].to_vec())
}

/// Sets an option of a socket of the kernel's.
pub(crate) fn set_option_bytes(
    fd: BorrowedFd<'_>,
    level: i32,
    name: i32,
    bytes: &[u8],
) -> Result<()> {
    let len = bytes.len() as libc::socklen_t;
    // SAFETY: the pointer and the length are those of `bytes`.
    let done = unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, bytes.as_ptr().cast(), len) };
    if done < 0 { Err(last_error()) } else { Ok(()) }
}
