//! A self-signed certificate for testing: clients trust it only if they are given its file.

use std::fs::Permissions;
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use tempfile::NamedTempFile;
use tls::Files;
use zeroize::Zeroizing;

use crate::temporary::TemporaryDirectory;
use failure::Failure;

/// Validity in days: it must not replace a certificate signed by an authority.
pub const VALID_DAYS: u64 = 30;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Tolerance for slow clocks of clients.
const CLOCKS_DIFFER_BY: Duration = Duration::from_secs(3600);

/// Name of the file in its directory.
const NAME: &str = "certificate.pem";

/// The file with the certificate in use, without the key; dropping the value removes it.
#[derive(Debug)]
pub struct SelfSigned {
    directory: TemporaryDirectory,
    path: PathBuf,
}

/// A certificate in a file of its own, until it is in use and replaces the previous one. Dropping
/// it removes the file.
#[derive(Debug)]
pub struct Fresh {
    file: NamedTempFile,
    place: PathBuf,
}

impl Fresh {
    /// Publishes the file: clients see either the previous certificate or this one, complete.
    pub fn put_in_place(self) -> Result<(), Failure> {
        let renamed = self.file.persist(&self.place);
        renamed.map(|_| ()).map_err(|failed| {
            let what = format!("putting a certificate into {}", self.place.display());
            Failure::broken(what, failed.error)
        })
    }
}

impl SelfSigned {
    /// Makes a key and its certificate, and writes the certificate into the directory for temporary
    /// files.
    ///
    /// # Errors
    ///
    /// The key or certificate cannot be made, or the file cannot be written.
    pub fn new() -> Result<Self, Failure> {
        let failed = |error: io::Error| {
            let parent = std::env::temp_dir();
            Failure::input(
                format!("--tls-self-signed: a file in {}", parent.display()),
                error,
            )
            .remedy("The certificate goes there for clients; TMPDIR chooses another directory.")
        };
        let directory = TemporaryDirectory::new().map_err(failed)?;
        let path = directory.path().join(NAME);
        Ok(Self { directory, path })
    }

    /// Path of the certificate for clients.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes a new certificate, with its own key, for these addresses and `localhost`, beside the
    /// one in use.
    pub fn renew(
        &self,
        addresses: &[IpAddr],
        unix_time: Duration,
    ) -> Result<(Files, Fresh), Failure> {
        let what = "making a certificate";
        let (certificate, key) =
            make(addresses, unix_time).map_err(|error| Failure::broken(what, error))?;
        let directory = self.directory.path();
        let write = || -> io::Result<NamedTempFile> {
            let mut file = file_in(directory)?;
            file.write_all(certificate.as_bytes())?;
            Ok(file)
        };
        let file = write().map_err(|error| {
            Failure::broken(format!("writing a file in {}", directory.display()), error)
        })?;
        let place = self.path.clone();
        let files = Files::from_pem("self-signed, for testing", &certificate, &key);
        Ok((files, Fresh { file, place }))
    }
}

/// A file readable by all users, regardless of the umask, since clients may be of other users.
fn file_in(directory: &Path) -> io::Result<NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    let builder = builder.prefix("next-").suffix(".pem");
    let file = builder.tempfile_in(directory)?;
    let everybody = Permissions::from_mode(0o644);
    file.as_file().set_permissions(everybody)?;
    Ok(file)
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

    use tls::Standing;

    use super::*;

    const NOW: Duration = Duration::from_secs(1_800_000_000);

    #[test]
    fn it_is_valid_for_some_days_and_renewed_in_its_place() {
        let made = SelfSigned::new().unwrap();
        let addresses = ["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()];
        let (files, fresh) = made.renew(&addresses, NOW).unwrap();
        let files = [files];
        let days = |days: u32| NOW + DAY * days;
        let validity = files[0].examine().unwrap().validity;
        let is_valid = |at| matches!(validity.at(at), Standing::Valid(_));
        assert!(is_valid(NOW) && is_valid(days(VALID_DAYS as u32 - 1)));
        assert_eq!(
            validity.at(days(VALID_DAYS as u32 + 1)),
            Standing::Expired(DAY)
        );

        fresh.put_in_place().unwrap();
        let first = fs::read_to_string(made.path()).unwrap();
        made.renew(&addresses, NOW).unwrap();
        assert_eq!(fs::read_to_string(made.path()).unwrap(), first, "not used");
        let mut reads = fs::File::open(made.path()).unwrap();
        let (_, fresh) = made.renew(&addresses, NOW).unwrap();
        fresh.put_in_place().unwrap();
        let second = fs::read_to_string(made.path()).unwrap();
        assert_ne!(first, second);
        assert_eq!(io::read_to_string(&mut reads).unwrap(), first, "whole");
        for text in [first, second] {
            assert_eq!(text.matches("BEGIN").count(), 1, "{text}");
            assert!(text.contains("BEGIN CERTIFICATE"), "{text}");
        }
    }

    #[test]
    fn every_user_may_read_its_file_which_goes_with_it() {
        let made = SelfSigned::new().unwrap();
        let path = made.path().to_owned();
        let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        let (_, fresh) = made.renew(&[], NOW).unwrap();
        fresh.put_in_place().unwrap();
        assert_eq!(mode(), 0o644);
        let (_, unused) = made.renew(&[], NOW).unwrap();
        let beside = unused.file.path().to_owned();
        assert!(beside.exists());
        drop(unused);
        drop(made);
        assert!(!path.exists() && !beside.exists());
    }
}
