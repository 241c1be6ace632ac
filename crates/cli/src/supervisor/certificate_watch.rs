//! Certificates in use that expire soon, have expired, or are not valid yet: each is a line in the
//! log, once, and a metric.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use config::certificates::{InUse, unix_time};
use observer::CertificateReport;
use tls::Standing;

/// How often validity is looked at.
const PERIOD: Duration = Duration::from_secs(60);

/// Paths of certificates in metrics, in bytes: they cross in one packet. Further certificates have
/// no metric.
const REPORTED_BYTES_MAX: usize = 64 << 10;

/// See the [module documentation](self).
#[derive(Debug, Default)]
pub(crate) struct CertificateWatch {
    next: Option<Instant>,
    /// What was logged, of which certificate that expires when.
    logged: Vec<(PathBuf, u64, Kind)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    ExpiresSoon,
    Expired,
    NotYetValid,
}

impl CertificateWatch {
    /// Logs what is new about certificates.
    pub(crate) fn on_time(&mut self, now: Instant, in_use: &[InUse]) {
        if self.next.is_some_and(|next| now < next) {
            return;
        }
        self.next = (!in_use.is_empty()).then_some(now + PERIOD);
        for line in self.news(in_use, unix_time()) {
            tracing::warn!("{line}");
        }
    }

    /// Others are in use.
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
            let kind = match validity.at(unix_time) {
                Standing::Valid(_) => Kind::ExpiresSoon,
                Standing::Expired(_) => Kind::Expired,
                Standing::NotYetValid(_) => Kind::NotYetValid,
            };
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

/// For metrics.
pub(crate) fn reports(in_use: &[InUse]) -> Vec<CertificateReport> {
    let mut bytes = 0;
    let reports = in_use.iter().map(|known| CertificateReport {
        certificate: known.paths.chain.display().to_string(),
        not_before_s: known.examined.validity.not_before_s,
        not_after_s: known.examined.validity.not_after_s,
    });
    let fitting = reports.take_while(|report| {
        bytes += report.certificate.len();
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
        let long = known(&"x".repeat(4000), 5000);
        let many: Vec<InUse> = std::iter::repeat_n(long, 100).collect();
        assert_eq!(reports(&many).len(), REPORTED_BYTES_MAX / 4000);
    }
}
