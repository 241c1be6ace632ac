//! HTTP Strict Transport Security (RFC 6797): browsers use a host over TLS only.

use std::fmt;
use std::time::Duration;

/// What `Strict-Transport-Security` states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hsts {
    /// Time that browsers remember it, in whole seconds; zero: they forget it.
    pub max_age: Duration,
    /// It applies to all names below the host's as well.
    pub include_subdomains: bool,
    /// The operator consents to lists of hosts that are built into browsers.
    pub preload: bool,
}

/// Shortest `max-age` that the list of browsers accepts (hstspreload.org).
const PRELOAD_MAX_AGE_MIN: Duration = Duration::from_secs(365 * 24 * 3600);

impl Hsts {
    /// True if the list of browsers accepts the host.
    pub fn can_be_preloaded(&self) -> bool {
        self.include_subdomains && self.max_age >= PRELOAD_MAX_AGE_MIN
    }
}

/// The value of the field (RFC 6797 §6.1).
impl fmt::Display for Hsts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "max-age={}", self.max_age.as_secs())?;
        if self.include_subdomains {
            f.write_str("; includeSubDomains")?;
        }
        if self.preload {
            f.write_str("; preload")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers: RFC 6797 §6.1
    #[test]
    fn directives_are_those_that_are_set() {
        let year = Hsts {
            max_age: PRELOAD_MAX_AGE_MIN,
            include_subdomains: true,
            preload: true,
        };
        assert_eq!(
            year.to_string(),
            "max-age=31536000; includeSubDomains; preload"
        );
        assert!(year.can_be_preloaded());
        let short = Hsts {
            max_age: Duration::from_secs(60),
            ..year
        };
        let alone = Hsts {
            include_subdomains: false,
            ..year
        };
        assert!(!short.can_be_preloaded() && !alone.can_be_preloaded());
        let none = Hsts {
            max_age: Duration::ZERO,
            include_subdomains: false,
            preload: false,
        };
        assert_eq!(none.to_string(), "max-age=0");
    }
}
