//! Cancellation of threads (pthreads(7)) in calls on split sockets, which block in this library and
//! not in the C library.

use capi::abi::last_error;
use capi::client::cancellation;
use libc::{c_int, pthread_t, ssize_t};
use rustix::io::Errno;

use crate::attached::client;
use crate::library;

/// Return value of a call.
pub(crate) trait Returned {
    /// Reports whether the call has failed with `errno`.
    fn has_failed(&self) -> bool;
}

impl Returned for c_int {
    fn has_failed(&self) -> bool {
        *self < 0
    }
}

impl Returned for ssize_t {
    fn has_failed(&self) -> bool {
        *self < 0
    }
}

/// Runs a call that may block, as a cancellation point. Neither the call nor its caller may hold
/// anything to drop: a cancelled thread unwinds the stack from here.
pub(crate) unsafe fn point<T: Returned>(mut call: impl FnMut() -> T) -> T {
    loop {
        // The C library knows of every cancellation that is noted. A remaining note is of an
        // earlier thread of this name, or its cancellation is deferred: it must not cut the call
        // short.
        cancellation::forget();
        // SAFETY: the function takes no arguments.
        unsafe { library::pthread_testcancel() };
        let done = call();
        match last_error() {
            _ if !done.has_failed() => return done,
            // The call starts over, and its timeout with it.
            Errno::CANCELED => {}
            errno => {
                if errno == Errno::INTR {
                    // C libraries may cancel by a signal.
                    // SAFETY: the function takes no arguments.
                    unsafe { library::pthread_testcancel() };
                }
                return done;
            }
        }
    }
}

/// pthread_cancel(3). The C library is notified first: a thread that wakes for the cancellation
/// queries it.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splitway_preload_pthread_cancel(thread: pthread_t) -> c_int {
    // SAFETY: `thread` is a valid thread, by the contract of pthread_cancel(3).
    let done = unsafe { library::pthread_cancel(thread) };
    if let Some(client) = client().filter(|_| done == 0) {
        client.cancel(thread as usize);
    }
    done
}
