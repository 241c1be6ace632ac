//! When a certificate is valid.

use std::fmt;
use std::time::Duration;

use rustls::pki_types::UnixTime;
use webpki::{EndEntityCert, KeyUsage};

use super::{Problem, unusable};

/// Period in which a certificate is valid, in seconds since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// The first second.
    pub not_before_s: u64,
    /// The last second.
    pub not_after_s: u64,
}

/// Validity of a certificate at some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It remains valid for this time.
    Valid(Duration),
    /// Time since its expiry.
    Expired(Duration),
    /// Time until it becomes valid.
    NotYetValid(Duration),
}

impl Validity {
    /// Finds the validity of a parsed certificate. The verifier's errors for times beyond the
    /// bounds contain them.
    pub(super) fn of(certificate: &EndEntityCert<'_>) -> Result<Self, Problem> {
        let at = |seconds: u64| {
            let time = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
            let usage = KeyUsage::server_auth();
            let verified = certificate.verify_for_usage(&[], &[], &[], time, usage, None, None);
            verified.err()
        };
        let refused = |error: &webpki::Error| {
            matches!(
                error,
                webpki::Error::BadDer | webpki::Error::InvalidCertValidity
            )
        };
        let (first, last) = (at(0), at(u64::MAX));
        let mut errors = [&first, &last].into_iter().flatten();
        if let Some(error) = errors.find(|error| refused(error)) {
            return Err(unusable(error.clone()));
        }
        let not_before_s = match first {
            Some(webpki::Error::CertNotValidYet { not_before, .. }) => not_before.as_secs(),
            _ => 0,
        };
        let not_after_s = match last {
            Some(webpki::Error::CertExpired { not_after, .. }) => not_after.as_secs(),
            _ => u64::MAX,
        };
        Ok(Self {
            not_before_s,
            not_after_s,
        })
    }

    /// Returns the standing at this time since the Unix epoch.
    pub fn at(&self, unix_time: Duration) -> Standing {
        let now_s = unix_time.as_secs();
        if now_s > self.not_after_s {
            Standing::Expired(Duration::from_secs(now_s - self.not_after_s))
        } else if now_s < self.not_before_s {
            Standing::NotYetValid(Duration::from_secs(self.not_before_s - now_s))
        } else {
            Standing::Valid(Duration::from_secs(self.not_after_s - now_s))
        }
    }
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Valid(left) => write!(f, "expires in {}", Span(*left)),
            Self::Expired(ago) => write!(f, "expired {} ago", Span(*ago)),
            Self::NotYetValid(until) => write!(f, "becomes valid only in {}", Span(*until)),
        }
    }
}

/// A time, for people.
struct Span(Duration);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        let (count, unit) = match seconds {
            0..120 => (seconds, "seconds"),
            120..7200 => (seconds / 60, "minutes"),
            7200..172_800 => (seconds / 3600, "hours"),
            _ => (seconds / 86_400, "days"),
        };
        write!(f, "{count} {unit}")
    }
}
