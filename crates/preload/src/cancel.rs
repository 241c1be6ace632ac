//! Cancellation of threads (pthreads(7)) in calls on split sockets, which wait in this library and
//! not in the C library.

use capi::abi::last_error;
use capi::client::cancellation;
use libc::{c_int, pthread_t, ssize_t};
use rustix::io::Errno;

use crate::attached::client;
use crate::library;

/// What a call returns.
pub(crate) trait Returned {
    /// Whether it has failed, and `errno` says how.
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

/// A call that may wait, as a cancellation point. It has nothing to drop when it has returned, nor
/// has its caller: a thread that is cancelled unwinds the stack from here.
pub(crate) unsafe fn point<T: Returned>(mut call: impl FnMut() -> T) -> T {
    loop {
        // The C library knows of each cancellation that is noted. What is left is of an earlier
        // thread of this name, or is put off: it must not cut the call short.
        cancellation::forget();
        // SAFETY: it takes nothing.
        unsafe { library::pthread_testcancel() };
        let done = call();
        match last_error() {
            _ if !done.has_failed() => return done,
            // A timeout begins again.
            Errno::CANCELED => {}
            errno => {
                if errno == Errno::INTR {
                    // C libraries may cancel by a signal.
                    // SAFETY: it takes nothing.
                    unsafe { library::pthread_testcancel() };
                }
                return done;
            }
        }
    }
}

/// pthread_cancel(3). The C library knows first: a thread that ends its wait for this asks it.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splitway_preload_pthread_cancel(thread: pthread_t) -> c_int {
    // SAFETY: the caller's promise.
    let done = unsafe { library::pthread_cancel(thread) };
    if let Some(client) = client().filter(|_| done == 0) {
        client.cancel(thread as usize);
    }
    done
}
