use std::fmt;
use std::io;

use rustix::io::Errno;

/// Reasons why a port could not be opened on an interface.
#[derive(Debug)]
pub enum OpenError {
    /// There is no interface of this name.
    NoSuchInterface {
        /// The name.
        interface: String,
        /// Interfaces that exist.
        existing: Vec<String>,
    },
    /// The interface has no Ethernet headers: loopback, a tunnel.
    NotEthernet {
        /// Its name.
        interface: String,
    },
    /// The interface is down.
    Down {
        /// Its name.
        interface: String,
    },
    /// The process lacks `CAP_NET_RAW`.
    NotPermitted {
        /// The interface's name.
        interface: String,
    },
    /// The kernel lacks a feature.
    Unsupported {
        /// The interface's name.
        interface: String,
        /// The operation that failed.
        tried: &'static str,
        /// The kernel's error.
        error: io::Error,
    },
    /// The kernel refused for another reason.
    System {
        /// The interface's name.
        interface: String,
        /// The operation that failed.
        tried: &'static str,
        /// The kernel's error.
        error: io::Error,
    },
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::NoSuchInterface {
                interface,
                existing,
            } => write!(
                f,
                "there is no network interface {interface}; there are: {}",
                existing.join(", ")
            ),
            OpenError::NotEthernet { interface } => write!(
                f,
                "{interface} is not an Ethernet interface; a packet port needs one that is"
            ),
            OpenError::Down { interface } => write!(
                f,
                "{interface} is down; take it up with: ip link set {interface} up"
            ),
            OpenError::NotPermitted { interface } => write!(
                f,
                "no permission for raw packets on {interface}: CAP_NET_RAW is missing; run with \
                 sudo, or once: sudo setcap cap_net_raw+ep PROGRAM"
            ),
            OpenError::Unsupported {
                interface,
                tried,
                error,
            } => write!(
                f,
                "this kernel cannot do what a packet port on {interface} needs: {tried}: {error}; \
                 use one that has CONFIG_PACKET"
            ),
            OpenError::System {
                interface,
                tried,
                error,
            } => write!(f, "{tried} on {interface} failed: {error}"),
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            OpenError::Unsupported { error, .. } | OpenError::System { error, .. } => Some(error),
            _ => None,
        }
    }
}

/// A system call that failed.
#[derive(Debug)]
pub(super) struct System {
    tried: &'static str,
    error: io::Error,
}

impl System {
    pub(super) fn new(tried: &'static str, error: io::Error) -> System {
        System { tried, error }
    }

    /// Returns the resulting error of opening a port on `interface`.
    pub(super) fn on(self, interface: &str) -> OpenError {
        let System { tried, error } = self;
        let interface = interface.to_owned();
        match Errno::from_io_error(&error) {
            Some(Errno::PERM) => OpenError::NotPermitted { interface },
            Some(
                Errno::AFNOSUPPORT
                | Errno::NOPROTOOPT
                | Errno::PROTONOSUPPORT
                | Errno::SOCKTNOSUPPORT
                | Errno::OPNOTSUPP,
            ) => OpenError::Unsupported {
                interface,
                tried,
                error,
            },
            _ => OpenError::System {
                interface,
                tried,
                error,
            },
        }
    }
}
