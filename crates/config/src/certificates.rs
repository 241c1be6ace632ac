//! Where the certificates of a server come from: the supervisor reads and checks them, at the start
//! and whenever they are to be read again.

use std::net::IpAddr;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use failure::Failure;
use sandbox::lockdown;
use tls::{Certificates, Files};

use crate::self_signed::{Fresh, SelfSigned};
use crate::{Certificate, Config};

/// What failures are about.
pub const WHAT: &str = "TLS certificates";

/// Where the certificates of a server come from.
#[derive(Clone, Debug)]
pub enum CertificateSource {
    /// From files, which may change.
    Files(Vec<Certificate>),
    /// Made for trying out.
    SelfSigned(Rc<SelfSigned>),
}

impl CertificateSource {
    /// What was asked for; `None` if TLS was not. Files have been read once, and found good. What
    /// is made for trying out lies where it has lain `before`.
    pub fn check(config: &Config, before: Option<&Self>) -> Result<Option<Self>, Failure> {
        if config.ports(true).next().is_none() {
            return Ok(None);
        }
        // Keys pass through this process, too.
        lockdown::forbid_core_dumps()?;
        if config.tls.self_signed {
            return match before {
                Some(Self::SelfSigned(_)) => Ok(before.cloned()),
                _ => Ok(Some(Self::SelfSigned(Rc::new(SelfSigned::new()?)))),
            };
        }
        let source = Self::Files(config.tls.certificate.clone());
        source.read(&[])?;
        Ok(Some(source))
    }

    /// The file that clients need who are to trust a certificate made for trying out.
    pub fn file_to_trust(&self) -> Option<&Path> {
        match self {
            Self::Files(_) => None,
            Self::SelfSigned(made) => Some(made.path()),
        }
    }

    /// Reads files, or makes a certificate for these addresses, and checks them. What has been made
    /// for trying out is to be put in its place when it is used.
    pub fn read(&self, addresses: &[IpAddr]) -> Result<(Vec<Files>, Option<Fresh>), Failure> {
        let now = unix_time();
        let (files, fresh) = match self {
            Self::SelfSigned(made) => {
                let (files, fresh) = made.renew(addresses, now)?;
                (vec![files], Some(fresh))
            }
            Self::Files(paths) => {
                let files = paths
                    .iter()
                    .map(|paths| Files::read(&paths.chain, &paths.key, paths.ocsp.as_deref()))
                    .collect::<Result<_, _>>()
                    .map_err(|error| Failure::input(WHAT, error))?;
                (files, None)
            }
        };
        Certificates::new(&files, now).map_err(|error| Failure::input(WHAT, error))?;
        Ok((files, fresh))
    }
}

/// Now, for the validity of certificates.
pub fn unix_time() -> Duration {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
}
