//! Options about TLS and its certificates.

use std::path::PathBuf;

use clap::{Args, value_parser};
use failure::Failure;

use crate::args::named::named;
use config::Certificate;
use config::tls_names::{CipherName, KEY_RECORDS, VersionName};

/// Options of `splitway serve`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "TLS")]
pub(crate) struct TlsOptions {
    /// TCP port to serve HTTPS on; may be repeated. HTTP without TLS then needs an explicit
    /// --listen
    #[arg(
        long,
        value_name = "PORT",
        group = "tls_ports",
        value_parser = value_parser!(u16).range(1..),
    )]
    pub(crate) tls_listen: Vec<u16>,

    /// Serve HTTP/3 as well, on the UDP ports of the same numbers as --tls-listen
    #[arg(long, requires = "tls_listen")]
    pub(crate) http3: bool,

    /// TLS versions that clients may use [default: 1.2,1.3]
    #[arg(
        long,
        value_name = "1.2,1.3",
        requires = "tls_ports",
        value_delimiter = ',',
        hide_possible_values = true,
        value_parser = named::<VersionName>(VersionName::names()),
    )]
    pub(crate) tls_versions: Vec<VersionName>,

    /// Ciphers that clients may use [default: aes-256-gcm,aes-128-gcm,chacha20-poly1305]
    #[arg(
        long,
        value_name = "NAME,…",
        requires = "tls_ports",
        value_delimiter = ',',
        hide_possible_values = true,
        value_parser = named::<CipherName>(CipherName::names()),
    )]
    pub(crate) tls_ciphers: Vec<CipherName>,

    /// Records sealed per key: then the key is replaced or, with TLS 1.2, the connection ends
    /// [default: 8388608]
    #[arg(
        long,
        value_name = "N",
        requires = "tls_ports",
        value_parser = value_parser!(u64).range(KEY_RECORDS.0..=KEY_RECORDS.1),
    )]
    pub(crate) tls_key_records: Option<u64>,
}

/// Where `splitway serve` gets its certificates from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "TLS")]
pub(crate) struct CertificateOptions {
    /// Certificate chain file (PEM, the server's own certificate first); may be repeated, each with
    /// a --tls-key. The server name that a client requests decides; the first certificate is the
    /// default
    #[arg(long, value_name = "FILE", requires = "tls_ports")]
    pub(crate) tls_cert: Vec<PathBuf>,

    /// Private key file of the certificate (PEM), which others must not be able to read
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Vec<PathBuf>,

    /// OCSP response file (DER) to staple to the certificate; if repeated, in the order of the
    /// certificates
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_ocsp: Vec<PathBuf>,

    /// Create a self-signed certificate for the served addresses and localhost, for testing:
    /// clients trust it only if it is added to their trust store
    #[arg(long, requires = "tls_ports", conflicts_with = "tls_cert")]
    pub(crate) tls_self_signed: bool,
}

impl CertificateOptions {
    /// Which files belong together.
    pub(crate) fn paths(&self) -> Result<Vec<Certificate>, Failure> {
        let (certificates, keys) = (self.tls_cert.len(), self.tls_key.len());
        if certificates != keys {
            let why = format!("{certificates} of them, and {keys} of --tls-key");
            return Err(Failure::input("--tls-cert", why).remedy(
                "Each certificate needs its key, in the same order: --tls-cert FILE --tls-key \
                 FILE.",
            ));
        }
        if self.tls_ocsp.len() > certificates {
            let why = format!(
                "{} of them, and {certificates} of --tls-cert",
                self.tls_ocsp.len()
            );
            return Err(Failure::input("--tls-ocsp", why)
                .remedy("The first is for the first certificate, and so on."));
        }
        let ocsp = self.tls_ocsp.iter().cloned().map(Some);
        let ocsp = ocsp.chain(std::iter::repeat(None));
        let files = self.tls_cert.iter().zip(&self.tls_key).zip(ocsp);
        Ok(files
            .map(|((chain, key), ocsp)| Certificate {
                chain: chain.clone(),
                key: key.clone(),
                ocsp,
            })
            .collect())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Options {
        #[command(flatten)]
        tls: TlsOptions,
        #[command(flatten)]
        certificates: CertificateOptions,
    }

    fn parse(line: &str) -> Result<Options, String> {
        let words = ["splitway"].into_iter().chain(line.split_whitespace());
        Options::try_parse_from(words).map_err(|error| error.to_string())
    }

    #[test]
    fn what_there_is_not_says_what_there_is() {
        for (rest, complaint) in [
            ("--tls-versions 1.1", "1.2 or 1.3"),
            ("--tls-versions=", "1.2 or 1.3"),
            ("--tls-ciphers 3des", "aes-256-gcm"),
            ("--tls-key-records 15", "16..="),
            ("--tls-listen 0", "1..="),
        ] {
            let message = parse(&format!("--tls-listen 443 {rest}")).unwrap_err();
            assert!(message.contains(complaint), "{rest}: {message}");
        }
        for alone in [
            "--tls-versions 1.3",
            "--tls-ciphers aes-128-gcm",
            "--tls-key-records 100",
            "--tls-cert a --tls-key b",
            "--tls-self-signed",
        ] {
            let message = parse(alone).unwrap_err();
            assert!(message.contains("--tls-listen"), "{alone}: {message}");
        }
        for rest in ["--tls-key b", "--tls-ocsp c"] {
            let message = parse(&format!("--tls-listen 443 {rest}")).unwrap_err();
            assert!(message.contains("--tls-cert"), "{rest}: {message}");
        }
        let both = "--tls-listen 443 --tls-self-signed --tls-cert a --tls-key b";
        assert!(parse(both).is_err());
    }

    #[test]
    fn certificates_go_with_keys_in_their_order() {
        let paths = |line: &str| {
            let options = parse(&format!("--tls-listen 443 {line}")).unwrap();
            options.certificates.paths()
        };
        let pairs =
            paths("--tls-cert a --tls-key b --tls-ocsp o --tls-cert c --tls-key d").unwrap();
        assert_eq!(pairs.len(), 2);
        assert_eq!(pairs[1].chain, PathBuf::from("c"));
        assert_eq!(pairs[1].key, PathBuf::from("d"));
        assert_eq!(pairs[0].ocsp, Some("o".into()));
        assert_eq!(pairs[1].ocsp, None);
        for line in [
            "--tls-cert a",
            "--tls-cert a --tls-key b --tls-cert c",
            "--tls-cert a --tls-key b --tls-key c",
            "--tls-cert a --tls-key b --tls-ocsp o --tls-ocsp p",
        ] {
            assert_eq!(paths(line).unwrap_err().exit_code(), 2, "{line}");
        }
    }
}
