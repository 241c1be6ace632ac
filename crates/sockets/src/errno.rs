//! Errors of the stack, in the kernel's numbers (connect(2), bind(2), tcp(7)).

use host::app::{BindError, CloseReason, ConnectError};
use host::splicing::SpliceError;
use rustix::io::Errno;

/// Returns an error's number in messages and records.
pub(crate) fn number(errno: Errno) -> u32 {
    errno.raw_os_error() as u32
}

pub(crate) fn of_bind(error: BindError) -> Errno {
    match error {
        BindError::NoAddress => Errno::ADDRNOTAVAIL,
        BindError::InUse | BindError::NoPort => Errno::ADDRINUSE,
        BindError::NoBinding => Errno::INVAL,
        BindError::TooManyBindings => Errno::NOBUFS,
    }
}

pub(crate) fn of_connect(error: ConnectError) -> Errno {
    match error {
        ConnectError::NoAddress | ConnectError::NoPort => Errno::ADDRNOTAVAIL,
        ConnectError::LoopbackOnly => Errno::INVAL,
        ConnectError::PortInUse => Errno::ADDRINUSE,
        ConnectError::TooManyConnections => Errno::NOBUFS,
    }
}

/// Returns the error with which a connection has ended; `None` if in order. A reset in CLOSE-WAIT
/// is EPIPE (`tcp_reset` of Linux).
pub(crate) fn of_close(reason: CloseReason, is_close_wait: bool) -> Option<Errno> {
    match reason {
        CloseReason::Finished => None,
        CloseReason::Reset if is_close_wait => Some(Errno::PIPE),
        CloseReason::Reset | CloseReason::TlsFailed => Some(Errno::CONNRESET),
        CloseReason::TimedOut => Some(Errno::TIMEDOUT),
        CloseReason::Refused => Some(Errno::CONNREFUSED),
        CloseReason::Unreachable => Some(Errno::HOSTUNREACH),
        CloseReason::Aborted => Some(Errno::CONNABORTED),
        CloseReason::DataPlaneFailed => Some(Errno::IO),
    }
}

/// Returns the error for connections that could not be joined.
pub(crate) fn of_splice(error: SpliceError) -> Errno {
    match error {
        SpliceError::NoNicStack => Errno::NODEV,
        SpliceError::NotOpen | SpliceError::Ended => Errno::NOTCONN,
        SpliceError::Tls | SpliceError::Looped => Errno::OPNOTSUPP,
        SpliceError::Timestamps => Errno::PROTONOSUPPORT,
        SpliceError::Full => Errno::NOBUFS,
        SpliceError::NotQuiet => Errno::TIMEDOUT,
        SpliceError::Cancelled => Errno::CANCELED,
    }
}
