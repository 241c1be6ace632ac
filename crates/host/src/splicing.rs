//! Splices for applications: limits, errors and events of [`Io::splice`](crate::app::Io::splice).

use std::fmt;
use std::time::Duration;

/// Bounds of a splice; beyond them both peers are reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpliceLimits {
    /// Nothing has passed for so long.
    pub idle: Option<Duration>,
    /// It was joined so long ago.
    pub life: Option<Duration>,
}

/// Why two streams are not joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SpliceError {
    /// This stack has no NIC stack that joins connections, or none is there.
    NoNicStack,
    /// A stream is gone, not established, half closed or part of a splice, or both are the same.
    NotOpen,
    /// A stream speaks TLS here.
    Tls,
    /// A stream has both ends on this stack.
    Looped,
    /// One of the connections has timestamps, and the other has not.
    Timestamps,
    /// There are as many splices as there may be, or the NIC stack has refused one just now.
    Full,
    /// The connections did not become quiet in time.
    NotQuiet,
    /// A stream has ended meanwhile.
    Ended,
    /// The application has asked for it.
    Cancelled,
}

impl fmt::Display for SpliceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SpliceError::NoNicStack => "no NIC stack joins connections",
            SpliceError::NotOpen => "a stream is not open in both directions, or is joined already",
            SpliceError::Tls => "a stream speaks TLS",
            SpliceError::Looped => "a stream has both ends here",
            SpliceError::Timestamps => "timestamps are used on one side only",
            SpliceError::Full => "there are too many splices",
            SpliceError::NotQuiet => "the connections did not become quiet in time",
            SpliceError::Ended => "a stream has ended",
            SpliceError::Cancelled => "the application went back on it",
        })
    }
}

impl std::error::Error for SpliceError {}

/// How a splice has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SpliceEnd {
    /// Both peers have closed, in order.
    Finished,
    /// A peer has reset the connection: the one of the first stream, or of the second.
    Reset {
        /// It was the second.
        by_second: bool,
    },
    /// [`SpliceLimits::idle`].
    Idle,
    /// [`SpliceLimits::life`].
    Overdue,
    /// A stream was aborted.
    Aborted,
    /// The NIC stack is gone, or could not give the connections back.
    DataPlaneFailed,
}

/// An event of a splice, for its first stream. Bytes are those that the peer of each stream has
/// sent and that were forwarded to the other peer, since [`Io::splice`](crate::app::Io::splice).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpliceEvent {
    /// The NIC stack has the connections.
    Joined,
    /// Bytes have passed.
    Progress {
        /// Totals so far.
        bytes: [u64; 2],
    },
    /// The streams are the application's again: it reads and writes both as if each were readable
    /// and writable.
    Returned {
        /// Why they are not joined; `None` after [`Io::unsplice`](crate::app::Io::unsplice).
        error: Option<SpliceError>,
        /// Totals.
        bytes: [u64; 2],
    },
    /// It is over. `Closed` of each stream follows.
    Ended {
        /// How.
        end: SpliceEnd,
        /// Totals.
        bytes: [u64; 2],
    },
}
