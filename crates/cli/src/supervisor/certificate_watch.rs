//! Logs each certificate in use that expires soon, has expired or is not valid yet, once, and
//! exports its validity.

use std::mem::{Discriminant, discriminant};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use config::certificates::{InUse, unix_time};
use observer::CertificateReport;
use tls::Standing;

/// Interval between checks of validity.
const PERIOD: Duration = Duration::from_secs(60);

/// Certificates in metrics, in bytes of JSON: they cross in one packet, which a socket's buffer
/// must hold. Further certificates have no metric.
const REPORTED_BYTES_MAX: usize = 64 << 10;

/// See the [module documentation](self).
#[derive(Debug, Default)]
pub(crate) struct CertificateWatch {
    next: Option<Instant>,
    /// Warnings already logged: certificate, expiry, kind.
    logged: Vec<(PathBuf, u64, Discriminant<Standing>)>,
}

impl CertificateWatch {
    /// Logs new warnings about certificates.
    pub(crate) fn on_time(&mut self, now: Instant, in_use: &[InUse]) {
        if self.next.is_some_and(|next| now < next) {
            return;
        }
        self.next = (!in_use.is_empty()).then_some(now + PERIOD);
        for line in self.news(in_use, unix_time()) {
            tracing::warn!("{line}");
        }
    }

    /// Checks again at once: the certificates in use have changed.
    pub(crate) fn look_again(&mut self) {
        self.next = None;
    }

    /// When to call [`CertificateWatch::on_time`] at the latest.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.next
    }

    fn news(&mut self, in_use: &[InUse], unix_time: Duration) -> Vec<String> {
        let mut lines = Vec::new();
        let mut logged = Vec::new();
        for known in in_use {
            let Some(line) = known.warning(unix_time) else {
                continue;
            };
            let validity = known.examined.validity;
            let kind = discriminant(&validity.at(unix_time));
            let this = (known.paths.chain.clone(), validity.not_after_s, kind);
            if !self.logged.contains(&this) {
                lines.push(line);
            }
            logged.push(this);
        }
        self.logged = logged;
        lines
    }
}

/// Returns the metrics of certificates.
pub(crate) fn reports(in_use: &[InUse]) -> Vec<CertificateReport> {
    let mut bytes = 0;
    let reports = in_use.iter().map(|known| CertificateReport {
        certificate: known.paths.chain.display().to_string(),
        not_before_s: known.examined.validity.not_before_s,
        not_after_s: known.examined.validity.not_after_s,
    });
    let fitting = reports.take_while(|report| {
        // Serialization does not fail.
        bytes += serde_json::to_string(report).map_or(REPORTED_BYTES_MAX, |json| json.len());
        bytes <= REPORTED_BYTES_MAX
    });
    fitting.collect()
}

#[cfg(test)]
mod tests {
    use config::Certificate;
    use tls::{Examined, Validity};

    use super::*;

    fn known(name: &str, until_s: u64) -> InUse {
        InUse {
            paths: Certificate {
                chain: name.into(),
                key: "key".into(),
                ocsp: None,
            },
            examined: Examined {
                validity: Validity {
                    not_before_s: 1000,
                    not_after_s: until_s,
                },
                names: Vec::new(),
            },
        }
    }

    #[test]
    fn each_change_is_logged_once_and_a_renewed_one_that_expires_soon_again() {
        const DAY: u64 = 24 * 3600;
        let at = |days| Duration::from_secs(1000 + days * DAY);
        let mut watch = CertificateWatch::default();
        let in_use = [known("a", 1000 + 30 * DAY), known("b", 1000 + 90 * DAY)];
        let mut news = |in_use: &[InUse], at| watch.news(in_use, at).join("\n");
        assert!(news(&in_use, Duration::ZERO).contains("becomes valid only in"));
        assert_eq!(news(&in_use, at(1)), "");
        assert!(news(&in_use, at(20)).contains("a expires in 10 days"));
        assert_eq!(news(&in_use, at(21)), "");
        assert!(news(&in_use, at(33)).contains("a expired 3 days ago"));
        assert_eq!(news(&in_use, at(34)), "");
        let renewed = [known("a", 1000 + 40 * DAY), in_use[1].clone()];
        assert!(news(&renewed, at(34)).contains("a expires in 6 days"));
        assert_eq!(news(&renewed, at(35)), "");
    }

    #[test]
    fn reports_are_bounded() {
        for (name, least) in [("x".repeat(4000), 10), ("x".to_owned(), 500)] {
            let many: Vec<InUse> = std::iter::repeat_n(known(&name, 5000), 10_000).collect();
            let certificates = reports(&many);
            assert!(certificates.len() > least, "{}", certificates.len());
            let health = observer::Health {
                certificates,
                ..observer::Health::default()
            };
            let bytes = serde_json::to_vec(&health).unwrap().len();
            assert!(bytes < 100_000, "{bytes}");
        }
    }
}
