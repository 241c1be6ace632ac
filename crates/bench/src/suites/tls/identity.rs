//! One certificate for all servers: ECDSA P-256, signed by itself.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256};
use testbed::{Context, Result};

/// Name in the certificate.
pub(crate) const NAME: &str = "localhost";

/// Paths of certificate and key, as PEM.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

impl Identity {
    /// Makes both, in a directory.
    pub(crate) fn make(directory: &Path) -> Result<Identity> {
        let making = || "making a certificate".to_owned();
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).context(making)?;
        let params = CertificateParams::new([NAME.to_owned()]).context(making)?;
        let certificate = params.self_signed(&key).context(making)?;
        Ok(Identity {
            certificate: write(directory, "certificate.pem", &certificate.pem())?,
            key: write(directory, "key.pem", &key.serialize_pem())?,
        })
    }
}

fn write(directory: &Path, name: &str, pem: &str) -> Result<PathBuf> {
    let path = directory.join(name);
    fs::write(&path, pem)
        .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(0o600)))
        .context(|| format!("writing {}", path.display()))?;
    Ok(path)
}
