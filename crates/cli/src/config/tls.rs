//! TLS.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::text::Text;
use crate::tls_options::{CipherName, VersionName};

/// TLS and its certificates.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Tls {
    /// Versions that clients may use, of `"1.2"` and `"1.3"`. Without it, both.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) versions: Vec<Text<VersionName>>,
    /// Ciphers that clients may use, of `"aes-256-gcm"`, `"aes-128-gcm"` and `"chacha20-poly1305"`. Without it, all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) ciphers: Vec<Text<CipherName>>,
    /// Records that one key seals, from 16 to 16777216: then it is replaced, or, with TLS 1.2, the connection ends. Without
    /// it, 8388608.
    pub(crate) key_records: Option<u64>,
    /// Make a certificate for the served addresses and localhost, for trying out: clients trust it only if it is added to their trust store.
    pub(crate) self_signed: bool,
    /// Certificates, one table for each. The name that a client asks for decides; the first is for all others.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) certificate: Vec<Certificate>,
}

/// The files of a certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Certificate {
    /// File of the chain (PEM, the server's own certificate first).
    pub(crate) chain: PathBuf,
    /// File of its private key (PEM), which others must not be able to read.
    pub(crate) key: PathBuf,
    /// File of an OCSP response (DER) to be stapled to it.
    #[serde(default)]
    pub(crate) ocsp: Option<PathBuf>,
}
