//! The scheme of a request: a connection with TLS has `https`, even if the client writes `http`.
//!
//! A client may write any scheme (RFC 9113 §8.3.1), so its own word decides nothing.

use std::fmt;
use std::str::FromStr;

/// A scheme (RFC 9110 §4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// Without TLS.
    Http,
    /// With TLS, or over QUIC.
    Https,
}

/// A text that is no scheme.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchemeError(String);

impl Scheme {
    /// All schemes.
    pub const ALL: [Scheme; 2] = [Scheme::Http, Scheme::Https];

    /// The scheme of a connection.
    pub(crate) fn of_connection<T>(tls: Option<&T>) -> Self {
        match tls {
            None => Scheme::Http,
            Some(_) => Scheme::Https,
        }
    }

    /// The name in URLs.
    pub fn name(self) -> &'static str {
        match self {
            Scheme::Http => "http",
            Scheme::Https => "https",
        }
    }
}

impl FromStr for Scheme {
    type Err = SchemeError;

    fn from_str(text: &str) -> Result<Self, SchemeError> {
        let found = Scheme::ALL.into_iter().find(|scheme| scheme.name() == text);
        found.ok_or_else(|| SchemeError(text.to_owned()))
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for SchemeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is no scheme: write http or https", self.0)
    }
}

impl std::error::Error for SchemeError {}
