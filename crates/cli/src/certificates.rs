//! Certificates on their way to the host process, which can open no file: the supervisor reads and checks them, and
//! passes their contents on, at the start and whenever they are to be read anew.

use std::fs::File;
use std::io::{self, Seek, Write};
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use tls::{Certificates, Files};
use zeroize::Zeroizing;

use crate::args::ServeArgs;
use crate::child::retry;
use crate::error::Failure;
use crate::lockdown;
use crate::self_signed::{Fresh, SelfSigned};
use crate::tls_options::CertificatePaths;

/// What failures are about.
pub(crate) const WHAT: &str = "TLS certificates";

/// More than a hundred certificates of the greatest length.
const BYTES_MAX: u64 = 256 << 20;

/// Where the certificates of a server come from.
pub(crate) enum CertificateSource {
    /// From files, which may change.
    Files(Vec<CertificatePaths>),
    /// Made for trying out.
    SelfSigned(SelfSigned),
}

impl CertificateSource {
    /// What was asked for; `None` if TLS was not. Files have been read once, and found good.
    pub(crate) fn check(args: &ServeArgs) -> Result<Option<Self>, Failure> {
        let Some(port) = args.tls.tls_listen.first() else {
            return Ok(None);
        };
        args.tls.check(args.plain_port())?;
        // Keys pass through this process, too.
        lockdown::forbid_core_dumps()?;
        let paths = args.certificates.paths()?;
        if args.certificates.tls_self_signed {
            return Ok(Some(Self::SelfSigned(SelfSigned::new()?)));
        }
        if paths.is_empty() {
            let why = "there is no certificate to show to clients";
            return Err(Failure::input(format!("--tls-listen {port}"), why).remedy(
                "Give one with --tls-cert FILE --tls-key FILE, or have one made for trying out: --tls-self-signed.",
            ));
        }
        let source = Self::Files(paths);
        source.read(&[])?;
        Ok(Some(source))
    }

    /// The file that clients need who are to trust a certificate made for trying out.
    pub(crate) fn file_to_trust(&self) -> Option<&Path> {
        match self {
            Self::Files(_) => None,
            Self::SelfSigned(made) => Some(made.path()),
        }
    }

    /// Reads files, or makes a certificate for these addresses, and checks them.
    fn read(&self, addresses: &[IpAddr]) -> Result<(Vec<Files>, Option<Fresh>), Failure> {
        let now = unix_time();
        let (files, fresh) = match self {
            Self::SelfSigned(made) => {
                let (files, fresh) = made.renew(addresses, now)?;
                (vec![files], Some(fresh))
            }
            Self::Files(paths) => {
                let files = paths
                    .iter()
                    .map(|paths| Files::read(&paths.certificate, &paths.key, paths.ocsp.as_deref()))
                    .collect::<Result<_, _>>()
                    .map_err(|error| Failure::input(WHAT, error))?;
                (files, None)
            }
        };
        Certificates::new(&files, now).map_err(|error| Failure::input(WHAT, error))?;
        Ok((files, fresh))
    }

    /// Reads them, and makes a message of them for the host process. What has been made for trying out is to be put in
    /// its place when it is used.
    pub(crate) fn message(
        &self,
        addresses: &[IpAddr],
    ) -> Result<(OwnedFd, Option<Fresh>), Failure> {
        let (files, fresh) = self.read(addresses)?;
        Ok((message_of(&files)?, fresh))
    }
}

/// A message for the host process.
pub(crate) fn message_of(files: &[Files]) -> Result<OwnedFd, Failure> {
    write(&Files::to_bytes(files))
        .map_err(|error| Failure::broken("handing certificates to the host process", error))
}

/// A file of memory with these bytes, to be read from its beginning. Its memory goes when both ends have closed it.
fn write(bytes: &[u8]) -> io::Result<OwnedFd> {
    let mut file: File =
        rustix::fs::memfd_create("splitway-certificates", MemfdFlags::CLOEXEC)?.into();
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file.into())
}

/// In the host process: what the supervisor has read, of a message. No system call here looks for a file.
pub(crate) fn receive(message: impl AsFd) -> Result<Vec<Files>, Failure> {
    let what = "taking certificates from the supervisor";
    let bytes = read(message.as_fd()).map_err(|errno| Failure::broken(what, errno))?;
    Files::from_bytes(&bytes).ok_or_else(|| Failure::broken(what, "they are cut off"))
}

fn read(message: impl AsFd) -> rustix::io::Result<Zeroizing<Vec<u8>>> {
    let bytes = rustix::fs::fstat(message.as_fd())?.st_size;
    let bytes = u64::try_from(bytes)
        .ok()
        .filter(|bytes| *bytes <= BYTES_MAX);
    let mut contents = Zeroizing::new(vec![0; bytes.ok_or(Errno::FBIG)? as usize]);
    let mut at = 0;
    while at < contents.len() {
        match retry(|| rustix::io::read(message.as_fd(), &mut contents[at..]))? {
            0 => break,
            count => at += count,
        }
    }
    contents.truncate(at);
    Ok(contents)
}

/// Now, for the validity of certificates.
pub(crate) fn unix_time() -> Duration {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_passed_on_is_what_was_read() {
        let source = CertificateSource::SelfSigned(SelfSigned::new().unwrap());
        let (message, _) = source.message(&["192.0.2.1".parse().unwrap()]).unwrap();
        let received = receive(&message).unwrap();
        assert_eq!(received.len(), 1);
        Certificates::new(&received, unix_time()).unwrap();
        let again = receive(&message).unwrap();
        assert!(again.is_empty(), "it is read once");
    }

    #[test]
    fn nonsense_is_refused() {
        let message = write(b"nonsense").unwrap();
        let failure = receive(&message).map(|_| ()).unwrap_err();
        assert!(failure.to_string().contains("cut off"), "{failure}");
    }
}
