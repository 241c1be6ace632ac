//! Conversion between kernel sockets and split sockets: the new socket takes over the number, the
//! flags, the options that were set, and the entry in an epoll set.

use std::mem::ManuallyDrop;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};

use capi::Family;
use capi::abi::last_error;
use capi::client::{Client, DescriptorFlags, EpollChange};
use rustix::fs::{OFlags, fcntl_getfl, fstat};
use rustix::io::{Errno, FdFlags, Result, fcntl_getfd};
use rustix::net::ipproto;

use crate::attached::complain;
use crate::epoll_sets;
use crate::events::{extend, wake_waiting};
use crate::kernel::kernel;
use crate::kernels::{
    OPTIONS, VALUE_BYTES, bound, make_settable, stream_family, tcp_socket, unspecified,
};
use crate::options::{splitway_preload_getsockopt, splitway_preload_setsockopt};
use crate::pending::{self, Interest};
use crate::settings::settings;
use crate::streams;

/// Direction in which an address is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Listen,
    Connect,
}

/// Returns the family of a kernel TCP socket.
pub(crate) fn tcp_family(fd: BorrowedFd<'_>) -> Option<Family> {
    stream_family(fd, &[ipproto::TCP])
}

/// Converts a kernel socket to a split one if a rule holds the address. Returns true if it is split
/// then.
///
/// Fails if the host stack provides no socket: the socket never stays with the kernel silently.
pub(crate) fn convert(fd: BorrowedFd<'_>, address: SocketAddr, purpose: Purpose) -> Result<bool> {
    let Some(settings) = settings() else {
        return Ok(false);
    };
    let rules = match purpose {
        Purpose::Listen => &settings.listen,
        Purpose::Connect => &settings.connect,
    };
    if !rules.hold(address) {
        return Ok(false);
    }
    let Some(family) = tcp_family(fd) else {
        return Ok(false);
    };
    replace(fd, family).inspect_err(|errno| {
        let verb = match purpose {
            Purpose::Listen => "bind to",
            Purpose::Connect => "connect to",
        };
        let why = match capi::abi::init_error() {
            why if why.is_empty() => errno.to_string(),
            why => why,
        };
        complain(&format!(
            "cannot {verb} {address} on the split stack: {why}"
        ));
    })?;
    Ok(true)
}

/// Converts a socket that is to listen without an address: the kernel would bind it to a port of
/// all addresses.
pub(crate) fn convert_unbound(fd: BorrowedFd<'_>) -> Result<bool> {
    let Some(family) = tcp_family(fd).filter(|_| bound(fd).is_none()) else {
        return Ok(false);
    };
    convert(fd, unspecified(family), Purpose::Listen)
}

fn flags_of(fd: BorrowedFd<'_>) -> Result<DescriptorFlags> {
    Ok(DescriptorFlags {
        nonblocking: fcntl_getfl(fd)?.contains(OFlags::NONBLOCK),
        close_on_exec: fcntl_getfd(fd)?.contains(FdFlags::CLOEXEC),
    })
}

/// Converts a bound split socket back to a kernel socket, if it connects to an address that no rule
/// holds. Returns true if it is a kernel socket then; a socket bound to an address that the kernel
/// lacks connects by the split stack.
pub(crate) fn revert(client: &Client, fd: BorrowedFd<'_>, peer: SocketAddr) -> Result<bool> {
    let leads = |settings: &crate::settings::Settings| settings.connect.hold(peer);
    if settings().is_none_or(leads) || !client.is_unconnected(fd)? {
        return Ok(false);
    }
    let local = client.local_address(fd)?;
    let family = client.family(fd)?;
    let new = tcp_socket(family)?;
    let fresh = client.socket(family, DescriptorFlags::default())?;
    let (from, usual) = (fd.as_raw_fd(), fresh.as_raw_fd());
    copy_options(from, usual, new.as_raw_fd());
    client.close(fresh)?;
    match rustix::net::bind(&new, &local) {
        Err(Errno::ADDRNOTAVAIL) => return Ok(false),
        bound => bound?,
    }
    let flags = flags_of(fd)?;
    if flags.nonblocking {
        rustix::fs::fcntl_setfl(&new, OFlags::RDWR | OFlags::NONBLOCK)?;
    }
    let entries = client.epoll_entries(fd)?;
    let mut done = Ok(());
    // SAFETY: `from` is open; the program's descriptor of this number becomes the kernel socket.
    let _ = client.close_by(unsafe { OwnedFd::from_raw_fd(from) }, |own| {
        // SAFETY: `own` is open, and owned here.
        done = unsafe { put(&new, own.into_raw_fd(), flags) };
    });
    done?;
    for (epoll, event) in entries {
        // SAFETY: the number is the program's and not -1; the kernel checks whether it is open.
        let epoll = unsafe { BorrowedFd::borrow_raw(epoll) };
        client.epoll_change(epoll, fd, EpollChange::Add(event))?;
    }
    Ok(true)
}

/// Replaces the socket at a program's number, and sets close-on-exec as in `flags`.
///
/// # Safety
/// `number` is open, and not owned elsewhere.
unsafe fn put(new: &OwnedFd, number: RawFd, flags: DescriptorFlags) -> Result<()> {
    let cloexec = if flags.close_on_exec {
        libc::O_CLOEXEC
    } else {
        0
    };
    // SAFETY: both descriptors are open.
    if unsafe { kernel!(SYS_dup3, new.as_raw_fd(), number, cloexec) } < 0 {
        return Err(last_error());
    }
    Ok(())
}

fn replace(fd: BorrowedFd<'_>, family: Family) -> Result<()> {
    let client = capi::abi::attach_from_environment()?;
    let flags = flags_of(fd)?;
    let new = client.socket(family, flags)?;
    let fresh = tcp_socket(family)?;
    let (from, fresh) = (fd.as_raw_fd(), fresh.as_raw_fd());
    copy_options(from, fresh, new.as_raw_fd());
    let duplicates = duplicates(fd)?;
    // The kernel's sets lose a socket when its last descriptor is replaced.
    let entries = [from].into_iter().chain(duplicates.iter().copied());
    let entries: Vec<(RawFd, Vec<Interest>)> = entries.map(|fd| (fd, entries_of(fd))).collect();
    // SAFETY: `fd` is open; the program's descriptor of this number becomes the split socket.
    unsafe { put(&new, from, flags) }?;
    pending::remove(from);
    // SAFETY: the number now is a duplicate; it is given back to the program below.
    let own = unsafe { OwnedFd::from_raw_fd(from) };
    let own = client.note_successor(new.as_fd(), own);
    own.map(IntoRawFd::into_raw_fd)?;
    client.close(new)?;
    for duplicate in duplicates {
        // SAFETY: `from` is open, and so is the program's duplicate.
        unsafe { replace_duplicate(client, fd, duplicate) }?;
    }
    for (number, entries) in entries {
        streams::note_split(number);
        // SAFETY: the number is the program's, and not -1; the kernel checks whether it is open.
        let fd = unsafe { BorrowedFd::borrow_raw(number) };
        for entry in entries {
            enter(client, fd, entry)?;
        }
    }
    Ok(())
}

/// Returns the program's other descriptors of a socket that is about to be converted.
fn duplicates(fd: BorrowedFd<'_>) -> Result<Vec<RawFd>> {
    if !pending::get(fd.as_raw_fd()).is_duplicated {
        return Ok(Vec::new());
    }
    // A number of the kernel's own, which no two sockets share.
    let of = |fd: BorrowedFd<'_>| fstat(fd).map(|it| (it.st_dev, it.st_ino));
    let own = of(fd)?;
    let is_other = |other: &RawFd| {
        // SAFETY: the number is not -1; the kernel reports a closed one.
        let other_fd = unsafe { BorrowedFd::borrow_raw(*other) };
        *other != fd.as_raw_fd() && of(other_fd) == Ok(own)
    };
    Ok(pending::duplicated().into_iter().filter(is_other).collect())
}

/// Makes a duplicate of a former kernel socket one of the split socket.
///
/// # Safety
/// Both are open, and the program's.
unsafe fn replace_duplicate(client: &Client, fd: BorrowedFd<'_>, number: RawFd) -> Result<()> {
    // SAFETY: the number is open, by this function's contract.
    let flags = flags_of(unsafe { BorrowedFd::borrow_raw(number) })?;
    // SAFETY: as above; `own` is given back to the program.
    unsafe {
        let split = ManuallyDrop::new(OwnedFd::from_raw_fd(fd.as_raw_fd()));
        put(&split, number, flags)?;
        let own = client.note_duplicate(fd, OwnedFd::from_raw_fd(number));
        own.map(IntoRawFd::into_raw_fd)?;
    }
    pending::remove(number);
    Ok(())
}

/// Returns the entries of a pending socket in epoll sets, as the kernel lists them: it knows all,
/// and whether an entry has reported with `EPOLLONESHOT`.
fn entries_of(fd: RawFd) -> Vec<Interest> {
    const ONE_SHOT: u32 = libc::EPOLLONESHOT.cast_unsigned();
    const ALWAYS: u32 = (libc::EPOLLERR | libc::EPOLLHUP).cast_unsigned();
    let pending = pending::get(fd);
    let mut interest = pending.interest;
    let is_one_shot = interest.is_some_and(|it| it.event.events & ONE_SHOT != 0);
    if pending.is_in_several || is_one_shot {
        let entries = epoll_sets::entries_of(fd);
        if !entries.is_empty() {
            return entries;
        }
    }
    if let Some(interest) = &mut interest {
        interest.event.events |= ALWAYS;
    }
    interest.into_iter().collect()
}

/// Adds a converted socket to a set that had the kernel socket as a member.
fn enter(client: &Client, fd: BorrowedFd<'_>, entry: Interest) -> Result<()> {
    // SAFETY: the number is the program's and not -1; the kernel checks whether it is open.
    let epoll = unsafe { BorrowedFd::borrow_raw(entry.epoll) };
    extend(client, epoll)?;
    match client.epoll_succeed(epoll, fd, entry.event) {
        // By another descriptor of the set.
        Err(Errno::EXIST) => {}
        added => added?,
    }
    wake_waiting(client);
    Ok(())
}

/// Copies the options of a socket that differ from those of a fresh one of its kind to a socket of
/// the other kind.
fn copy_options(from: RawFd, fresh: RawFd, to: RawFd) {
    for (level, name) in OPTIONS {
        let value = |fd: RawFd| {
            let mut bytes = [0; VALUE_BYTES];
            let mut len = VALUE_BYTES as libc::socklen_t;
            let at = bytes.as_mut_ptr().cast();
            // SAFETY: the pointers are those of an array and of its length.
            let got = unsafe { splitway_preload_getsockopt(fd, level, name, at, &raw mut len) };
            (got == 0).then_some((bytes, len))
        };
        let (Some(found), Some(usual)) = (value(from), value(fresh)) else {
            continue;
        };
        if found == usual {
            continue;
        }
        let (mut bytes, len) = found;
        make_settable(level, name, &mut bytes);
        // An option that `to` rejects is dropped, as if the program had set it there now.
        let at = bytes.as_ptr().cast();
        // SAFETY: the pointer and the length are those of an array.
        let _ = unsafe { splitway_preload_setsockopt(to, level, name, at, len) };
    }
}
