//! A certificate for trying out, which nobody trusts who is not given its file.

use std::fs::Permissions;
use std::io::Write;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use tempfile::NamedTempFile;
use tls::Files;
use zeroize::Zeroizing;

use crate::error::Failure;

/// How long it is valid, in days. It is no replacement for one that somebody vouches for.
pub(crate) const VALID_DAYS: u64 = 30;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Clients whose clocks are slow by less take it.
const CLOCKS_DIFFER_BY: Duration = Duration::from_secs(3600);

/// The file with the certificate, and never the key; it goes with this value.
#[derive(Debug)]
pub(crate) struct SelfSigned {
    file: NamedTempFile,
}

impl SelfSigned {
    pub(crate) fn new() -> Result<Self, Failure> {
        let everybody = Permissions::from_mode(0o644);
        let make = || -> std::io::Result<NamedTempFile> {
            let mut builder = tempfile::Builder::new();
            let file = builder.prefix("splitway-").suffix(".pem").tempfile()?;
            // Whatever the umask says: the clients are other users.
            file.as_file().set_permissions(everybody)?;
            Ok(file)
        };
        let file = make().map_err(|error| {
            let directory = std::env::temp_dir();
            Failure::input(
                format!("--tls-self-signed: a file in {}", directory.display()),
                error,
            )
            .remedy("The certificate is put there for clients. TMPDIR chooses another directory.")
        })?;
        Ok(Self { file })
    }

    /// Where clients find it.
    pub(crate) fn path(&self) -> &Path {
        self.file.path()
    }

    /// Makes another one, with a key of its own, for these addresses and `localhost`, and puts it in its file.
    pub(crate) fn renew(
        &mut self,
        addresses: &[IpAddr],
        unix_time: Duration,
    ) -> Result<Files, Failure> {
        let what = "making a certificate";
        let (certificate, key) =
            make(addresses, unix_time).map_err(|error| Failure::broken(what, error))?;
        let file = self.file.as_file_mut();
        let mut write = || -> std::io::Result<()> {
            rustix::fs::ftruncate(&*file, 0)?;
            rustix::fs::seek(&*file, rustix::fs::SeekFrom::Start(0))?;
            file.write_all(certificate.as_bytes())
        };
        write().map_err(|error| {
            Failure::broken(format!("writing {}", self.file.path().display()), error)
        })?;
        Ok(Files::from_pem("made for trying out", &certificate, &key))
    }
}

/// A certificate and its key, as PEM.
fn make(
    addresses: &[IpAddr],
    unix_time: Duration,
) -> Result<(String, Zeroizing<String>), rcgen::Error> {
    let addresses = addresses.iter().map(IpAddr::to_string);
    let names: Vec<String> = addresses.chain(["localhost".to_owned()]).collect();
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name = DistinguishedName::new();
    let name = "Splitway, for trying out";
    params.distinguished_name.push(DnType::CommonName, name);
    let now = rcgen::date_time_ymd(1970, 1, 1) + unix_time;
    params.not_before = now - CLOCKS_DIFFER_BY;
    params.not_after = now + DAY * VALID_DAYS as u32;
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?.pem();
    Ok((certificate, Zeroizing::new(key.serialize_pem())))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tls::Certificates;

    use super::*;

    const NOW: Duration = Duration::from_secs(1_800_000_000);

    #[test]
    fn it_is_valid_for_some_days_and_renewed_in_its_place() {
        let mut made = SelfSigned::new().unwrap();
        let addresses = ["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()];
        let files = [made.renew(&addresses, NOW).unwrap()];
        let days = |days: u32| NOW + DAY * days;
        Certificates::new(&files, NOW).unwrap();
        Certificates::new(&files, days(VALID_DAYS as u32 - 1)).unwrap();
        let error = Certificates::new(&files, days(VALID_DAYS as u32 + 1)).unwrap_err();
        assert!(
            error.to_string().contains("expired 24 hours ago"),
            "{error}"
        );

        let first = fs::read_to_string(made.path()).unwrap();
        made.renew(&addresses, NOW).unwrap();
        let second = fs::read_to_string(made.path()).unwrap();
        assert_ne!(first, second);
        for text in [first, second] {
            assert_eq!(text.matches("BEGIN").count(), 1, "{text}");
            assert!(text.contains("BEGIN CERTIFICATE"), "{text}");
        }
    }

    #[test]
    fn every_user_may_read_its_file_which_goes_with_it() {
        let made = SelfSigned::new().unwrap();
        let path = made.path().to_owned();
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o644
        );
        drop(made);
        assert!(!path.exists());
    }
}
