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

/// Every call waits until the host stack has processed it.
pub const SW_MODE_SPLIT_TCP: u32 = 1;
/// Sending returns when the bytes are in the FIFO.
pub const SW_MODE_ASYNC_SEND: u32 = 2;
/// The host stack fills the receive FIFO without a request.
pub const SW_MODE_EAGER_RECEIVE: u32 = 4;
/// The host stack puts connections into the accept queue without a request.
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
    /// Must be 0.
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
    // One thread attaches at a time, so no attachment is made in vain.
    let _attaching = ATTACHING.lock();
    if let Some(client) = CLIENT.get() {
        return Ok(client);
    }
    let client = Client::attach_in_program(options);
    let client = client.map_err(|error| fail(error.to_string(), error.errno()))?;
    Ok(CLIENT.get_or_init(|| Box::new(client)))
}

/// Returns the application. Attaches it by the environment if `sw_init` was not called.
pub(crate) fn client() -> Result<&'static Client> {
    match CLIENT.get() {
        Some(client) => Ok(client),
        None => attach(&from_environment()?),
    }
}

/// Returns the application. Attaches it by the environment unless it is attached; [`init_error`]
/// explains a failure.
pub fn attach_from_environment() -> Result<&'static Client> {
    client()
}

/// Returns the reason why this thread could not attach; empty if it could.
pub fn init_error() -> String {
    WHY.with_borrow(Clone::clone)
}

/// Returns the application of the C functions, if this process is attached.
pub fn attached() -> Option<&'static Client> {
    CLIENT.get()
}

/// Returns the application, if it is attached: for calls that are not about sockets.
pub(crate) fn client_if_attached() -> Option<&'static Client> {
    CLIENT.get()
}

/// Sets the options of an attachment without `sw_init`, once; they replace the environment's.
pub fn set_default_options(options: Options) {
    let _ = DEFAULTS.set(options);
}

/// Returns the options that [`set_default_options`] has set.
pub fn default_options() -> Option<&'static Options> {
    DEFAULTS.get()
}

fn from_environment() -> Result<Options> {
    if let Some(options) = DEFAULTS.get() {
        return Ok(options.clone());
    }
    Options::from_environment().map_err(|error| fail(error.to_string(), Errno::INVAL))
}

/// Borrows a descriptor that C has passed; EBADF for a negative number.
pub(crate) fn borrow<'a>(fd: RawFd) -> Result<BorrowedFd<'a>> {
    if fd < 0 {
        return Err(Errno::BADF);
    }
    // SAFETY: `fd` is not -1. As in every call of C, the caller keeps it open; the kernel returns
    // EBADF if it is not.
    Ok(unsafe { BorrowedFd::borrow_raw(fd) })
}

/// Returns `argument`; if it is an error and `fd` is no split socket, the descriptor's error
/// instead.
pub(crate) fn behind_descriptor<T>(fd: RawFd, argument: Result<T>) -> Result<T> {
    if argument.is_err() {
        client()?.family(borrow(fd)?)?;
    }
    argument
}

/// Attaches this process to the host stack. Without it, the first call attaches by the environment.
/// `options` may be null.
///
/// Returns 0, or -1: EALREADY if the process is attached; ENOENT or ECONNREFUSED if no broker
/// answers; EACCES or EMFILE if the broker refuses; EPROTONOSUPPORT if its version differs; EINVAL
/// for an unknown mode. `sw_init_error` explains the failure.
///
/// # Safety
/// `options` is null or points to a struct whose path is null or ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_init(options: *const sw_options) -> libc::c_int {
    // SAFETY: `options` is null or points to a valid struct, by the caller's contract.
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
            // SAFETY: the path ends with a zero byte, by the contract of `sw_init`.
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

/// Writes the reason why this thread could not attach into `buffer`, cut off at `size` bytes, with
/// a zero byte at the end. Returns the length of the whole reason without the zero byte; 0 if there
/// was no failure.
///
/// # Safety
/// `buffer` is null or has `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_init_error(buffer: *mut libc::c_char, size: usize) -> usize {
    WHY.with_borrow(|why| {
        if !buffer.is_null() && size > 0 {
            let len = why.len().min(size - 1);
            // SAFETY: `len + 1` is at most `size`, and `buffer` has `size` bytes by the caller's
            // contract.
            unsafe {
                buffer.copy_from_nonoverlapping(why.as_ptr().cast(), len);
                buffer.add(len).write(0);
            }
        }
        why.len()
    })
}

/// Returns the modes that the host stack has granted: `SW_MODE_…` bits; 0, with `errno`, if this
/// process cannot be attached.
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
