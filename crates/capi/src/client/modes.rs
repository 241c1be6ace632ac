//! The modes of "TCP Servers" (Rangarajan et al., 2002), and the options of an attachment.

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use socket_channel::attach;

use super::application_key::ApplicationKey;
use super::attach::DEFAULT_PATH;

/// Environment variable with the path of the broker's socket.
const SOCKET_VARIABLE: &str = "SPLITWAY_SOCKET";

/// Environment variable with the names of the modes, separated by commas.
const MODES_VARIABLE: &str = "SPLITWAY_MODES";

/// Environment variable with the key of the application to join.
pub const APPLICATION_VARIABLE: &str = "SPLITWAY_APPLICATION";

/// A set of modes in which an application and the host stack cooperate, as bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Modes(u32);

impl Modes {
    /// Every call waits until the host stack has processed it.
    pub const SPLIT_TCP: Modes = Modes(attach::MODE_SPLIT_TCP);
    /// Sending returns when the bytes are in the FIFO. Without: when the host stack has processed
    /// them.
    pub const ASYNC_SEND: Modes = Modes(attach::MODE_ASYNC_SEND);
    /// The host stack fills the receive FIFO without a request. Without: each call requests as many
    /// bytes as it has room for.
    pub const EAGER_RECEIVE: Modes = Modes(attach::MODE_EAGER_RECEIVE);
    /// The host stack puts connections into the accept queue without a request. Without: each
    /// `accept` requests one.
    pub const EAGER_ACCEPT: Modes = Modes(attach::MODE_EAGER_ACCEPT);
    /// An accepted connection comes with addresses, options and first bytes. Without: addresses and
    /// options are requested, and bytes come after the accept.
    pub const SETUP_WITH_ACCEPT: Modes = Modes(attach::MODE_SETUP_WITH_ACCEPT);
    /// Buffers of a connection are allocated with the first byte of their direction. Without: with
    /// the connection.
    pub const BUFFERS_ON_DEMAND: Modes = Modes(attach::MODE_BUFFERS_ON_DEMAND);

    /// Returns the modes of some bits; bits of no mode are ignored.
    pub const fn from_bits(bits: u32) -> Modes {
        Modes(bits & attach::MODES_ALL)
    }

    /// Returns the modes as bits, as in Attach.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Returns the union of both sets.
    pub const fn with(self, other: Modes) -> Modes {
        Modes(self.0 | other.0)
    }

    /// True if all of `modes` are on.
    pub const fn has(self, modes: Modes) -> bool {
        self.0 & modes.0 == modes.0
    }

    /// Parses a list of names, such as `async-send,eager-receive`; the error is the first unknown
    /// name.
    pub fn parse(names: &str) -> Result<Modes, String> {
        let mut modes = Modes(0);
        for name in names.split(',').filter(|name| !name.is_empty()) {
            let mut known = attach::MODE_NAMES.into_iter();
            let known = known.find(|(known, _)| *known == name);
            let (_, mode) = known.ok_or_else(|| name.to_owned())?;
            modes = modes.with(Modes(mode));
        }
        Ok(modes)
    }
}

impl Default for Modes {
    /// Returns all modes but Split-TCP, which waits where the others do not.
    fn default() -> Self {
        Modes(attach::MODES_DEFAULT)
    }
}

impl fmt::Display for Modes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = attach::MODE_NAMES.into_iter();
        let on = names.filter(|(_, mode)| self.has(Modes(*mode)));
        for (i, (name, _)) in on.enumerate() {
            let separator = if i == 0 { "" } else { "," };
            write!(f, "{separator}{name}")?;
        }
        Ok(())
    }
}

/// Options of an attachment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Path of the broker's socket.
    pub path: PathBuf,
    /// Requested modes.
    pub modes: Modes,
    /// Application to join; if it is `None` or has ended, the process becomes a new application.
    pub application: Option<ApplicationKey>,
}

/// `SPLITWAY_MODES` contains an unknown mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownMode(pub String);

impl fmt::Display for UnknownMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{MODES_VARIABLE} names {:?}; modes are", self.0)?;
        for (i, (name, _)) in attach::MODE_NAMES.into_iter().enumerate() {
            write!(f, "{}{name}", if i == 0 { " " } else { ", " })?;
        }
        Ok(())
    }
}

impl std::error::Error for UnknownMode {}

impl Default for Options {
    fn default() -> Self {
        Options {
            path: PathBuf::from(DEFAULT_PATH),
            modes: Modes::default(),
            application: None,
        }
    }
}

impl Options {
    /// Reads the options from `SPLITWAY_SOCKET`, `SPLITWAY_MODES` and `SPLITWAY_APPLICATION`.
    pub fn from_environment() -> Result<Options, UnknownMode> {
        let application = env::var(APPLICATION_VARIABLE).ok();
        let options =
            Options::from_values(env::var_os(SOCKET_VARIABLE), env::var_os(MODES_VARIABLE))?;
        Ok(Options {
            // An invalid key is ignored.
            application: application.and_then(|text| text.parse().ok()),
            ..options
        })
    }

    fn from_values(
        path: Option<OsString>,
        modes: Option<OsString>,
    ) -> Result<Options, UnknownMode> {
        let mut options = Options::default();
        if let Some(path) = path {
            options.path = PathBuf::from(path);
        }
        if let Some(modes) = modes {
            options.modes = Modes::parse(&modes.to_string_lossy()).map_err(UnknownMode)?;
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_modes_are_read_as_they_are_written() {
        let modes = Modes::ASYNC_SEND.with(Modes::EAGER_ACCEPT);
        assert_eq!(modes.to_string(), "async-send,eager-accept");
        assert_eq!(Modes::parse(&modes.to_string()), Ok(modes));
        assert_eq!(Modes::parse(""), Ok(Modes::from_bits(0)));
        assert_eq!(Modes::parse("async"), Err("async".to_owned()));
    }

    #[test]
    fn the_environment_names_the_socket_and_the_modes() {
        let options = Options::from_values(Some("/x".into()), Some("split-tcp".into())).unwrap();
        assert_eq!(options.path, PathBuf::from("/x"));
        assert_eq!(options.modes, Modes::SPLIT_TCP);
        assert_eq!(Options::from_values(None, None), Ok(Options::default()));
        let unknown = Options::from_values(None, Some("fast".into())).unwrap_err();
        assert!(unknown.to_string().contains("\"fast\""), "{unknown}");
    }
}
