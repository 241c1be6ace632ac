//! Metrics of the certificates and directories that the supervisor watches.

use crate::catalog::{Kind, Metric};
use crate::exposition::Exposition;
use crate::report::Health;

/// See the [module documentation](self).
pub(crate) struct Supervised {
    not_before: Metric,
    not_after: Metric,
    is_replaced: Metric,
}

impl Supervised {
    pub(crate) fn new() -> Self {
        let metric = |name: &str, help: &str| Metric {
            name: format!("splitway_{name}"),
            kind: Kind::Gauge,
            help: help.to_owned(),
        };
        Self {
            not_before: metric(
                "tls_certificate_not_before_seconds",
                "Time from which a certificate is valid, in seconds since the epoch.",
            ),
            not_after: metric(
                "tls_certificate_not_after_seconds",
                "Time at which a certificate expires, in seconds since the epoch.",
            ),
            is_replaced: metric(
                "directory_replaced",
                "1 while the path of the root or of the cache directory leads to another directory \
                 than the one in use, or to none; otherwise 0.",
            ),
        }
    }

    #[cfg(test)]
    pub(crate) fn all(&self) -> [&Metric; 3] {
        [&self.not_before, &self.not_after, &self.is_replaced]
    }

    pub(crate) fn expose(&self, health: &Health, text: &mut Exposition) {
        let certificates = &health.certificates;
        if !certificates.is_empty() {
            text.metric(&self.not_before);
            for it in certificates {
                let labels: &[(&str, &dyn std::fmt::Display)] = &[("certificate", &it.certificate)];
                text.sample(&self.not_before, "", labels, it.not_before_s);
            }
            text.metric(&self.not_after);
            for it in certificates {
                let labels: &[(&str, &dyn std::fmt::Display)] = &[("certificate", &it.certificate)];
                text.sample(&self.not_after, "", labels, it.not_after_s);
            }
        }
        if !health.directories.is_empty() {
            text.metric(&self.is_replaced);
            for it in &health.directories {
                let labels: &[(&str, &dyn std::fmt::Display)] = &[("path", &it.path)];
                text.sample(&self.is_replaced, "", labels, u64::from(it.is_replaced));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exposition::parse;
    use crate::report::{CertificateReport, DirectoryReport};

    #[test]
    fn certificates_and_directories_have_their_values() {
        let mut text = Exposition::default();
        let certificate = |name: &str, not_after_s| CertificateReport {
            certificate: name.to_owned(),
            not_before_s: 7,
            not_after_s,
        };
        let health = Health {
            certificates: vec![certificate("a.pem", 1_900_000_000), certificate("b", 9)],
            directories: vec![DirectoryReport {
                path: "/srv".to_owned(),
                is_replaced: true,
            }],
            ..Health::default()
        };
        Supervised::new().expose(&health, &mut text);
        let samples = parse(&text.finish());
        for (sample, value) in [
            (
                "splitway_tls_certificate_not_after_seconds{certificate=\"a.pem\"}",
                1.9e9,
            ),
            (
                "splitway_tls_certificate_not_after_seconds{certificate=\"b\"}",
                9.0,
            ),
            (
                "splitway_tls_certificate_not_before_seconds{certificate=\"b\"}",
                7.0,
            ),
            ("splitway_directory_replaced{path=\"/srv\"}", 1.0),
        ] {
            assert_eq!(samples[sample], value, "{sample}");
        }
        let mut nothing = Exposition::default();
        Supervised::new().expose(&Health::default(), &mut nothing);
        assert_eq!(nothing.finish(), Exposition::default().finish());
    }
}
