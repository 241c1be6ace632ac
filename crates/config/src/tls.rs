//! TLS.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tls::Settings;

use super::text::Text;
use crate::tls_names::{CipherName, VersionName};

/// TLS and its certificates.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Tls {
    /// Protocol versions that clients may use, of `"1.2"` and `"1.3"`. Default: both.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub versions: Vec<Text<VersionName>>,
    /// Ciphers that clients may use, of `"aes-256-gcm"`, `"aes-128-gcm"` and `"chacha20-poly1305"`.
    /// Default: all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ciphers: Vec<Text<CipherName>>,
    /// Records sealed per key, from 16 to 16777216: then the key is replaced or, with TLS 1.2, the
    /// connection ends. Default: 8388608.
    pub key_records: Option<u64>,
    /// Offer HTTP/2 on TLS ports (ALPN). Default: true.
    pub http2: Option<bool>,
    /// Create a self-signed certificate for the served addresses and localhost, for testing:
    /// clients trust it only if it is added to their trust store.
    #[cfg_attr(test, schemars(extend("x-reload" = true)))]
    pub self_signed: bool,
    /// Certificates, one table for each. The server name that a client requests decides; the first
    /// certificate is the default.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(test, schemars(extend("x-reload" = true)))]
    pub certificate: Vec<Certificate>,
}

/// Settings common to the connections of all TLS ports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TlsSettings {
    versions: Vec<Text<VersionName>>,
    ciphers: Vec<Text<CipherName>>,
    key_records: Option<u64>,
    http2: bool,
}

impl Tls {
    /// The settings for processes, without certificates.
    pub fn settings(&self) -> TlsSettings {
        TlsSettings {
            versions: self.versions.clone(),
            ciphers: self.ciphers.clone(),
            key_records: self.key_records,
            http2: self.http2 != Some(false),
        }
    }
}

impl TlsSettings {
    /// The settings for the crate `tls`.
    pub fn to_tls(&self) -> Settings {
        let mut settings = Settings::default();
        if !self.versions.is_empty() {
            settings.versions = self.versions.iter().map(|name| name.0.0).collect();
        }
        if !self.ciphers.is_empty() {
            settings.ciphers = self.ciphers.iter().map(|name| name.0.0).collect();
        }
        if let Some(records) = self.key_records {
            settings.limits.records_per_key_max = records;
        }
        if self.http2 {
            settings.alpn.insert(0, b"h2".to_vec());
        }
        settings
    }
}

/// The files of a certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Certificate {
    /// Certificate chain file (PEM, the server's own certificate first).
    pub chain: PathBuf,
    /// Private key file (PEM), which others must not be able to read.
    pub key: PathBuf,
    /// OCSP response file (DER) to staple.
    #[serde(default)]
    pub ocsp: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use tls::{Cipher, Version};

    use super::*;

    #[test]
    fn settings_cross_to_the_host_process_and_default_to_all() {
        let text = r#"versions = ["1.3"]
            ciphers = ["AES-128-GCM", "chacha20-poly1305"]
            key_records = 1000
            http2 = false"#;
        let tls: Tls = toml::from_str(text).unwrap();
        let crossed = serde_json::to_string(&tls.settings()).unwrap();
        let settings: TlsSettings = serde_json::from_str(&crossed).unwrap();
        let settings = settings.to_tls();
        assert_eq!(settings.versions, [Version::Tls13]);
        assert_eq!(
            settings.ciphers,
            [Cipher::Aes128Gcm, Cipher::ChaCha20Poly1305]
        );
        assert_eq!(settings.limits.records_per_key_max, 1000);
        assert_eq!(settings.alpn, [&b"http/1.1"[..], b"http/1.0"]);
        let all = Tls::default().settings().to_tls();
        assert_eq!((all.versions.len(), all.ciphers.len()), (2, 3));
        assert_eq!(all.alpn[..2], [&b"h2"[..], b"http/1.1"]);
    }
}
