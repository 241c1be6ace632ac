//! The application that all calls are made on.

use std::cell::RefCell;
use std::ffi::{CStr, OsStr};
use std::os::fd::{BorrowedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::OnceLock;

use once_cell::race::OnceBox;
use rustix::io::{Errno, Result};

use super::outcome::{set_errno, zero};
use crate::client::{Client, ForkLock, Modes, Options};

/// Every call waits until the host stack has done its part.
pub const SW_MODE_SPLIT_TCP: u32 = 1;
/// Sending returns when the bytes are in the FIFO.
pub const SW_MODE_ASYNC_SEND: u32 = 2;
/// The host stack fills the receive FIFO before it is asked to.
pub const SW_MODE_EAGER_RECEIVE: u32 = 4;
/// The host stack puts connections into the accept queue before it is asked to.
pub const SW_MODE_EAGER_ACCEPT: u32 = 8;
/// An accepted connection comes with addresses, options and first bytes.
pub const SW_MODE_SETUP_WITH_ACCEPT: u32 = 16;
/// Buffers of a connection are allocated with the first byte of their direction.
pub const SW_MODE_BUFFERS_ON_DEMAND: u32 = 32;
/// All but `SW_MODE_SPLIT_TCP`.
pub const SW_MODE_DEFAULT: u32 = 62;

/// How to attach.
#[allow(non_camel_case_types, reason = "the name is for C")]
#[repr(C)]
#[derive(Debug)]
pub struct sw_options {
    /// Path of the broker's socket; null: `$SPLITWAY_SOCKET`, or `/run/splitway/sockets.sock`.
    pub socket_path: *const libc::c_char,
    /// `SW_MODE_…` bits; 0: `$SPLITWAY_MODES`, or `SW_MODE_DEFAULT`.
    pub modes: u32,
    /// 0.
    pub reserved: u32,
}

static CLIENT: OnceBox<Client> = OnceBox::new();
static ATTACHING: ForkLock = ForkLock::new();
static DEFAULTS: OnceLock<Options> = OnceLock::new();

thread_local! {
    static WHY: RefCell<String> = const { RefCell::new(String::new()) };
}

fn fail(why: String, errno: Errno) -> Errno {
    WHY.set(why);
    errno
}

fn attach(options: &Options) -> Result<&'static Client> {
    // One at a time, so that no attachment is made and thrown away.
    let _attaching = ATTACHING.lock();
    if let Some(client) = CLIENT.get() {
        return Ok(client);
    }
    let client = Client::attach_in_program(options);
    let client = client.map_err(|error| fail(error.to_string(), error.errno()))?;
    Ok(CLIENT.get_or_init(|| Box::new(client)))
}

/// The application; attached as the environment says if `sw_init` was not called.
pub(crate) fn client() -> Result<&'static Client> {
    match CLIENT.get() {
        Some(client) => Ok(client),
        None => attach(&from_environment()?),
    }
}

/// The application, attached as the environment says unless it is attached already. Why it cannot
/// be, [`init_error`] tells.
pub fn attach_from_environment() -> Result<&'static Client> {
    client()
}

/// Why this thread could not attach; empty if it could.
pub fn init_error() -> String {
    WHY.with_borrow(Clone::clone)
}

/// The application that the functions of C are called on, if this process is attached.
pub fn attached() -> Option<&'static Client> {
    CLIENT.get()
}

/// The application, if it is attached: for calls that are not about sockets.
pub(crate) fn client_if_attached() -> Option<&'static Client> {
    CLIENT.get()
}

/// Sets how to attach unless `sw_init` says otherwise, once: the environment is not read any more.
pub fn set_default_options(options: Options) {
    let _ = DEFAULTS.set(options);
}

/// What [`set_default_options`] has set.
pub fn default_options() -> Option<&'static Options> {
    DEFAULTS.get()
}

fn from_environment() -> Result<Options> {
    if let Some(options) = DEFAULTS.get() {
        return Ok(options.clone());
    }
    Options::from_environment().map_err(|error| fail(error.to_string(), Errno::INVAL))
}

/// A descriptor that C has passed; EBADF for a negative number.
pub(crate) fn borrow<'a>(fd: RawFd) -> Result<BorrowedFd<'a>> {
    if fd < 0 {
        return Err(Errno::BADF);
    }
    // SAFETY: it is not -1. That it is open is the caller's matter, as in every call of C; the
    // kernel answers EBADF if it is not.
    Ok(unsafe { BorrowedFd::borrow_raw(fd) })
}

/// The error of an argument, unless the descriptor is no split socket: that is found first.
pub(crate) fn behind_descriptor<T>(fd: RawFd, argument: Result<T>) -> Result<T> {
    if argument.is_err() {
        client()?.family(borrow(fd)?)?;
    }
    argument
}

/// Attaches this process to the host stack. Without it, the first call does so as the environment
/// says. `options` may be null.
///
/// Returns 0, or -1: EALREADY if it is attached; ENOENT or ECONNREFUSED if no broker answers;
/// EACCES or EMFILE if it refuses; EPROTONOSUPPORT if it is of another version; EINVAL for a mode
/// that there is not. `sw_init_error` tells more.
///
/// # Safety
/// `options` is null or points to a struct whose path is null or ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_init(options: *const sw_options) -> libc::c_int {
    // SAFETY: the caller's promise.
    let asked = unsafe { options.as_ref() };
    zero(init(asked))
}

fn init(asked: Option<&sw_options>) -> Result<()> {
    if CLIENT.get().is_some() {
        return Err(Errno::ALREADY);
    }
    let mut options = from_environment()?;
    if let Some(asked) = asked {
        if !asked.socket_path.is_null() {
            // SAFETY: the promise of `sw_init`'s caller.
            let path = unsafe { CStr::from_ptr(asked.socket_path) };
            options.path = PathBuf::from(OsStr::from_bytes(path.to_bytes()));
        }
        if asked.modes != 0 {
            options.modes = Modes::from_bits(asked.modes);
            if options.modes.bits() != asked.modes {
                return Err(fail("there are no such modes".to_owned(), Errno::INVAL));
            }
        }
        if asked.reserved != 0 {
            return Err(fail("reserved is not 0".to_owned(), Errno::INVAL));
        }
    }
    attach(&options).map(drop)
}

/// Writes why this thread could not attach into `buffer`, with a zero byte at the end, cut off at
/// `size` bytes. Returns how long all of it is, without the zero byte; 0 if there was no failure.
///
/// # Safety
/// `buffer` is null or has `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_init_error(buffer: *mut libc::c_char, size: usize) -> usize {
    WHY.with_borrow(|why| {
        if !buffer.is_null() && size > 0 {
            let len = why.len().min(size - 1);
            // SAFETY: `len + 1` is at most `size`, which the caller promises.
            unsafe {
                buffer.copy_from_nonoverlapping(why.as_ptr().cast(), len);
                buffer.add(len).write(0);
            }
        }
        why.len()
    })
}

/// The modes that the host stack has granted: `SW_MODE_…` bits; 0 and `errno` if this process
/// cannot be attached.
#[unsafe(no_mangle)]
pub extern "C" fn sw_modes() -> u32 {
    let modes = client().and_then(Client::modes);
    modes.map_or_else(
        |errno| {
            set_errno(errno);
            0
        },
        Modes::bits,
    )
}
