//! Certificates of a server: the supervisor reads and checks them, at the start and on each reload.
//!
//! At the start, an unusable certificate is an error. On a reload, an unusable one leaves the one
//! in use in place, and the others are renewed. A certificate outside its validity is usable, with
//! a warning.

use std::net::IpAddr;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use failure::Failure;
use sandbox::lockdown;
use tls::{CertificateError, Examined, Files, Standing};

use crate::self_signed::{Fresh, SelfSigned};
use crate::warnings::covers_name;
use crate::{Certificate, Config, Site};

/// Subject of the failures.
pub const WHAT: &str = "TLS certificates";

/// Remaining validity below which the operator is warned.
pub const EXPIRES_SOON: Duration = Duration::from_secs(14 * 24 * 3600);

/// Source of a server's certificates.
#[derive(Clone, Debug)]
pub enum CertificateSource {
    /// Files, which may change.
    Files(Vec<Certificate>),
    /// A self-signed certificate for testing.
    SelfSigned(Rc<SelfSigned>),
}

/// A certificate in the host process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InUse {
    /// Its files.
    pub paths: Certificate,
    /// Its validity and names.
    pub examined: Examined,
}

/// The result of reading certificates.
#[derive(Debug, Default)]
pub struct Loaded {
    /// Files for the host process.
    pub files: Vec<Files>,
    /// A fresh self-signed file, to put in place once its certificate is in use.
    pub fresh: Option<Fresh>,
    /// The certificate of each of `files`.
    pub in_use: Vec<InUse>,
    /// Number of certificates that stay as they are.
    pub kept: usize,
    /// Errors of unusable certificates, with the consequence.
    pub refused: Vec<String>,
    /// Problems that do not prevent use.
    pub warnings: Vec<String>,
}

impl CertificateSource {
    /// The source by this configuration; `None` without TLS. Files have been read once, and are
    /// usable. A self-signed certificate keeps its place of `before`.
    pub fn check(config: &Config, before: Option<&Self>) -> Result<Option<Self>, Failure> {
        let source = Self::of(config, before)?;
        if let Some(source @ Self::Files(_)) = &source {
            source.read(&[])?;
        }
        Ok(source)
    }

    /// [`CertificateSource::check`] without reading files.
    pub fn of(config: &Config, before: Option<&Self>) -> Result<Option<Self>, Failure> {
        if !config.has_tls() {
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
        Ok(Some(Self::Files(config.tls.certificate.clone())))
    }

    /// The file that clients must add to their trust store, for a self-signed certificate.
    pub fn file_to_trust(&self) -> Option<&Path> {
        match self {
            Self::Files(_) => None,
            Self::SelfSigned(made) => Some(made.path()),
        }
    }

    /// Reads files, or makes a certificate for these addresses.
    ///
    /// # Errors
    ///
    /// All unusable certificates.
    pub fn read(&self, addresses: &[IpAddr]) -> Result<Loaded, Failure> {
        let paths = match self {
            Self::Files(paths) => paths,
            Self::SelfSigned(made) => return make(made, addresses),
        };
        let mut loaded = Loaded::default();
        let failures = paths.iter().filter_map(|paths| {
            let error = loaded.add(paths).err()?;
            Some(Failure::input(WHAT, error))
        });
        failures.reduce(Failure::and).map_or(Ok(loaded), Err)
    }

    /// Reads again while certificates are in use; unusable ones leave those in use in place.
    ///
    /// # Errors
    ///
    /// The self-signed certificate cannot be made.
    pub fn read_again(&self, addresses: &[IpAddr], in_use: &[InUse]) -> Result<Loaded, Failure> {
        let paths = match self {
            Self::Files(paths) => paths,
            Self::SelfSigned(made) => return make(made, addresses),
        };
        let is_same = |one: &Certificate, other: &Certificate| {
            (&one.chain, &one.key) == (&other.chain, &other.key)
        };
        let mut loaded = Loaded::default();
        let mut is_any_missing = false;
        for paths in paths {
            let Err(error) = loaded.add(paths) else {
                continue;
            };
            let known = in_use.iter().find(|known| is_same(&known.paths, paths));
            let then = match known {
                Some(known) => {
                    loaded.keep(known);
                    "the one in use stays"
                }
                None => {
                    is_any_missing = true;
                    "it is left out"
                }
            };
            loaded.refused.push(format!("{error}; {then}"));
        }
        // An unusable certificate may be the replacement of one in use.
        let is_named = |known: &&InUse| paths.iter().any(|paths| is_same(&known.paths, paths));
        for known in in_use.iter().filter(|known| !is_named(known)) {
            if is_any_missing {
                loaded.keep(known);
                let path = known.paths.chain.display();
                let text = format!("the certificate {path} stays in use until all can be used");
                loaded.refused.push(text);
            }
        }
        Ok(loaded)
    }
}

impl Loaded {
    /// Keeps all certificates in use.
    pub fn keep_all(in_use: &[InUse]) -> Self {
        let mut loaded = Self::default();
        for known in in_use {
            loaded.keep(known);
        }
        loaded
    }

    fn add(&mut self, paths: &Certificate) -> Result<(), CertificateError> {
        let mut files = Files::read(&paths.chain, &paths.key)?;
        let examined = files.examine()?;
        if let Some(Err(error)) = paths.ocsp.as_deref().map(|ocsp| files.staple(ocsp)) {
            self.warnings
                .push(format!("{error}; the certificate is used"));
        }
        self.files.push(files);
        self.in_use.push(InUse {
            paths: paths.clone(),
            examined,
        });
        Ok(())
    }

    fn keep(&mut self, known: &InUse) {
        let Certificate { chain, key, .. } = &known.paths;
        self.files.push(Files::kept(chain, key));
        self.in_use.push(known.clone());
        self.kept += 1;
    }
}

impl InUse {
    /// A warning for the operator, if the certificate is invalid or expires soon.
    pub fn warning(&self, unix_time: Duration) -> Option<String> {
        let standing = self.examined.validity.at(unix_time);
        let then = match standing {
            Standing::Valid(left) if left >= EXPIRES_SOON => return None,
            Standing::Valid(_) => "renew it in time",
            Standing::Expired(_) => {
                "clients refuse it: renew it, or check the clock of this machine"
            }
            Standing::NotYetValid(_) => "clients refuse it: check the clock of this machine",
        };
        let path = self.paths.chain.display();
        Some(format!("the certificate {path} {standing}; {then}"))
    }
}

/// Warnings about certificates whose names match no site: no client requests them. Without names of
/// sites, all certificates count as requested.
pub fn without_site(in_use: &[InUse], sites: &[Site]) -> Vec<String> {
    let names = sites.iter().flat_map(|site| &site.names);
    let names: Vec<String> = names.map(|name| name.0.to_string()).collect();
    let is_served = |own: &String| {
        let mut names = names.iter();
        names.any(|name| covers_name(own, name) || covers_name(name, own))
    };
    // The first also serves clients that request other names.
    let others = in_use.iter().skip(1).filter(|known| {
        let own = &known.examined.names;
        !names.is_empty() && !own.is_empty() && !own.iter().any(is_served)
    });
    let lines = others.map(|known| {
        format!(
            "the certificate {} is for {}, and no site has such a name",
            known.paths.chain.display(),
            known.examined.names.join(", ")
        )
    });
    lines.collect()
}

/// Makes a self-signed certificate.
fn make(made: &SelfSigned, addresses: &[IpAddr]) -> Result<Loaded, Failure> {
    let (files, fresh) = made.renew(addresses, unix_time())?;
    let examined = files
        .examine()
        .map_err(|error| Failure::broken("making a certificate", error))?;
    let paths = Certificate {
        chain: made.path().to_owned(),
        key: made.path().to_owned(),
        ocsp: None,
    };
    Ok(Loaded {
        files: vec![files],
        fresh: Some(fresh),
        in_use: vec![InUse { paths, examined }],
        ..Loaded::default()
    })
}

/// The current time, for the validity of certificates.
pub fn unix_time() -> Duration {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;

    use rcgen::{CertificateParams, KeyPair};

    use super::*;

    /// The files of a certificate that is valid until the end of a year.
    fn certificate(directory: &Path, name: &str, year: i32) -> Certificate {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new([format!("{name}.example")]).unwrap();
        params.not_before = rcgen::date_time_ymd(2000, 1, 1);
        params.not_after = rcgen::date_time_ymd(year, 12, 31);
        let chain = directory.join(format!("{name}.pem"));
        fs::write(&chain, params.self_signed(&key).unwrap().pem()).unwrap();
        let key_path = directory.join(format!("{name}.key"));
        fs::write(&key_path, key.serialize_pem()).unwrap();
        fs::set_permissions(&key_path, Permissions::from_mode(0o600)).unwrap();
        Certificate {
            chain,
            key: key_path,
            ocsp: None,
        }
    }

    fn chains(loaded: &Loaded) -> Vec<PathBuf> {
        let in_use = loaded.in_use.iter();
        in_use.map(|known| known.paths.chain.clone()).collect()
    }

    #[test]
    fn one_that_has_expired_is_used_with_a_warning() {
        let directory = tempfile::tempdir().unwrap();
        let old = certificate(directory.path(), "old", 2001);
        let good = certificate(directory.path(), "good", 2999);
        let loaded = CertificateSource::Files(vec![old, good]).read(&[]).unwrap();
        assert_eq!((loaded.files.len(), loaded.kept), (2, 0));
        let now = unix_time();
        let warning = loaded.in_use[0].warning(now).unwrap();
        assert!(
            warning.contains("old.pem expired") && warning.contains("days ago"),
            "{warning}"
        );
        assert_eq!(loaded.in_use[1].warning(now), None);
        let good = &loaded.in_use[1];
        let end = Duration::from_secs(good.examined.validity.not_after_s);
        let soon = good.warning(end - EXPIRES_SOON + Duration::from_secs(1));
        assert!(soon.unwrap().contains("expires in 13 days"));
        assert_eq!(good.warning(end - EXPIRES_SOON), None);
    }

    #[test]
    fn on_a_reload_one_that_cannot_be_used_stays_as_it_was_and_the_others_are_renewed() {
        let directory = tempfile::tempdir().unwrap();
        let [one, other, third] =
            ["one", "other", "third"].map(|name| certificate(directory.path(), name, 2999));
        let source = CertificateSource::Files(vec![one.clone(), other.clone()]);
        let before = source.read(&[]).unwrap().in_use;
        fs::write(&one.chain, "no certificate").unwrap();
        let refused = source.read(&[]).unwrap_err();
        assert_eq!(refused.exit_code(), 2);
        let loaded = source.read_again(&[], &before).unwrap();
        assert_eq!((loaded.files.len(), loaded.kept), (2, 1));
        assert_eq!(loaded.in_use, before);
        assert_eq!(loaded.refused.len(), 1);
        let refused = &loaded.refused[0];
        assert!(
            refused.contains("one.pem") && refused.ends_with("the one in use stays"),
            "{refused}"
        );

        // A certificate that was never in use has none to replace.
        fs::write(&third.key, "no key").unwrap();
        let source = CertificateSource::Files(vec![third, other.clone()]);
        let loaded = source.read_again(&[], &before).unwrap();
        assert_eq!(chains(&loaded), [other.chain.clone(), one.chain.clone()]);
        assert_eq!((loaded.kept, loaded.refused.len()), (1, 2));

        // A certificate that is not named any more is dropped once all others are usable.
        let source = CertificateSource::Files(vec![other.clone()]);
        let loaded = source.read_again(&[], &before).unwrap();
        assert_eq!(chains(&loaded), [other.chain]);
        assert!(loaded.refused.is_empty());
    }

    #[test]
    fn a_certificate_for_names_of_no_site_is_odd() {
        let directory = tempfile::tempdir().unwrap();
        let [one, other] = ["one", "other"].map(|name| certificate(directory.path(), name, 2999));
        let source = CertificateSource::Files(vec![one, other]);
        let in_use = source.read(&[]).unwrap().in_use;
        let odd = |names: &str| {
            let text = format!("[[site]]\nnames = [{names}]\n");
            let config: Config = toml::from_str(&text).unwrap();
            without_site(&in_use, &config.site)
        };
        assert!(odd("'a.org', 'one.example'")[0].contains("other.pem is for other.example"));
        for names in ["", "'other.example'", "'*.example'"] {
            assert_eq!(odd(names), [""; 0], "{names}");
        }
    }

    #[test]
    fn all_that_cannot_be_used_are_named_at_once_and_an_ocsp_response_is_no_reason() {
        let directory = tempfile::tempdir().unwrap();
        let [one, other, mut stapled] =
            ["one", "other", "stapled"].map(|name| certificate(directory.path(), name, 2999));
        stapled.ocsp = Some(directory.path().join("missing.ocsp"));
        let source = CertificateSource::Files(vec![stapled]);
        let loaded = source.read(&[]).unwrap();
        assert!(loaded.warnings[0].contains("missing.ocsp"), "{loaded:?}");
        for paths in [&one, &other] {
            fs::write(&paths.key, "no key").unwrap();
        }
        let source = CertificateSource::Files(vec![one, other]);
        let failure = source.read(&[]).unwrap_err().to_string();
        assert!(
            failure.contains("one.key") && failure.contains("other.key"),
            "{failure}"
        );
    }
}
