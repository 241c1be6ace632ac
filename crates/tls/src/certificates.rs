//! Certificates and their keys: found by the name that a client asks for, and replaced without
//! losing a connection.

mod bytes;
pub(crate) mod choice;
mod validity;

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock};

use rustix::fs::OFlags;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use webpki::EndEntityCert;
use zeroize::Zeroizing;

use crate::identity::Identity;

pub use validity::{Standing, Validity};

/// Longest file of a certificate chain, a key or an OCSP response, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// A certificate chain and its key, as files have them. Reading is apart from using, since the
/// process that uses them may have no access to the file system.
#[derive(Clone)]
pub struct Files {
    certificate_path: PathBuf,
    certificate: Vec<u8>,
    key_path: PathBuf,
    key: Zeroizing<Vec<u8>>,
    ocsp: Option<(PathBuf, Vec<u8>)>,
}

impl Files {
    /// Reads a chain (PEM, the server's own certificate first) and its key (PEM).
    ///
    /// # Errors
    /// If one cannot be read, or is no regular file or absurdly long, or everybody may read the
    /// key.
    pub fn read(certificate: &Path, key: &Path) -> Result<Self, CertificateError> {
        let of_key = |problem| CertificateError::new(key, problem);
        let unreadable = |error| of_key(Problem::KeyUnreadable(error));
        // The mode belongs to the open file, even if its name is reused.
        let (key_file, metadata) = open(key).map_err(unreadable)?;
        let key_bytes = Zeroizing::new(read_file(key_file, &metadata).map_err(unreadable)?);
        // A certificate in the place of the key may be open, and is another mistake.
        let is_secret = PrivateKeyDer::from_pem_slice(&key_bytes).is_ok()
            || CertificateDer::from_pem_slice(&key_bytes).is_err();
        if is_secret && metadata.mode() & 0o007 != 0 {
            let mode = metadata.mode() & 0o777;
            return Err(of_key(Problem::KeyOpen { mode }));
        }
        let certificate_file = open(certificate);
        let bytes = certificate_file
            .and_then(|(file, metadata)| read_file(file, &metadata))
            .map_err(|error| {
                CertificateError::new(certificate, Problem::CertificateUnreadable(error))
            })?;
        Ok(Self {
            certificate_path: certificate.to_owned(),
            certificate: bytes,
            key_path: key.to_owned(),
            key: key_bytes,
            ocsp: None,
        })
    }

    /// Reads an OCSP response (DER) to be stapled. If it cannot be used, the response in use before
    /// stays with the same certificate, and another certificate has none.
    ///
    /// # Errors
    /// If it cannot be read, is no response, or is that of a responder that could not answer.
    pub fn staple(&mut self, ocsp: &Path) -> Result<(), CertificateError> {
        let bytes = open(ocsp)
            .and_then(|(file, metadata)| read_file(file, &metadata))
            .map_err(Problem::OcspUnreadable)
            .and_then(|bytes| check_ocsp(&bytes).map(|()| bytes));
        let (bytes, result) = match bytes {
            Ok(bytes) => (bytes, Ok(())),
            Err(problem) => (Vec::new(), Err(CertificateError::new(ocsp, problem))),
        };
        self.ocsp = Some((ocsp.to_owned(), bytes));
        result
    }

    /// In the place of files that cannot be used: the certificate in use with these paths stays.
    pub fn kept(certificate: &Path, key: &Path) -> Self {
        Self {
            certificate_path: certificate.to_owned(),
            certificate: Vec::new(),
            key_path: key.to_owned(),
            key: Zeroizing::default(),
            ocsp: None,
        }
    }

    fn is_kept(&self) -> bool {
        self.certificate.is_empty() && self.key.is_empty()
    }

    fn is_of(&self, other: &Paths) -> bool {
        (&self.certificate_path, &self.key_path) == (&other.certificate, &other.key)
    }

    /// Checks that the certificate can be used with its key, whether or not it is valid now.
    ///
    /// # Errors
    /// If it cannot be used.
    pub fn examine(&self) -> Result<Examined, CertificateError> {
        let certified = certified(self)?;
        let unusable = |problem| CertificateError::new(&self.certificate_path, problem);
        let own = parse(&certified.cert[0]).map_err(unusable)?;
        Ok(Examined {
            validity: Validity::of(&own).map_err(unusable)?,
            names: names(&own).collect(),
        })
    }

    /// A chain and a key that are in no file, such as those made for trying out. `name` stands for
    /// them in messages.
    pub fn from_pem(name: &str, certificate: &str, key: &str) -> Self {
        Self {
            certificate_path: name.into(),
            certificate: certificate.into(),
            key_path: name.into(),
            key: Zeroizing::new(key.into()),
            ocsp: None,
        }
    }
}

/// Without the key.
impl fmt::Debug for Files {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Files")
            .field("certificate_path", &self.certificate_path)
            .field("key_path", &self.key_path)
            .finish_non_exhaustive()
    }
}

/// A certificate that can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Examined {
    /// When it is valid.
    pub validity: Validity,
    /// DNS names that it is for, in lower case.
    pub names: Vec<String>,
}

/// Opens a regular file, without waiting: a pipe may never have a writer, and could not be read
/// twice.
fn open(path: &Path) -> io::Result<(File, Metadata)> {
    let do_not_wait = OFlags::NONBLOCK.bits() as i32;
    let file = File::options()
        .read(true)
        .custom_flags(do_not_wait)
        .open(path)?;
    let metadata = file.metadata()?;
    if metadata.is_file() {
        Ok((file, metadata))
    } else {
        Err(io::Error::other(
            "it is no regular file, but a directory, a pipe or a device, which cannot be read \
             again",
        ))
    }
}

fn read_file(file: File, metadata: &Metadata) -> io::Result<Vec<u8>> {
    // Reserves all memory at once: a growing vector leaves copies behind, of keys, too.
    let bytes = metadata.len().min(FILE_BYTES_MAX) + 1;
    let mut bytes = Vec::with_capacity(bytes as usize);
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 <= FILE_BYTES_MAX {
        Ok(bytes)
    } else {
        Err(io::Error::other("it is longer than 1 MiB"))
    }
}

/// A problem with a certificate or a key: its file, and the remedy.
#[derive(Debug)]
pub struct CertificateError {
    path: PathBuf,
    problem: Problem,
}

/// The kind of problem.
#[derive(Debug)]
#[non_exhaustive]
pub enum Problem {
    /// No certificates were given.
    NoCertificates,
    /// The certificate's file cannot be read.
    CertificateUnreadable(io::Error),
    /// The key's file cannot be read.
    KeyUnreadable(io::Error),
    /// The OCSP response's file cannot be read.
    OcspUnreadable(io::Error),
    /// Others may read the key.
    KeyOpen {
        /// Permissions.
        mode: u32,
    },
    /// There is no certificate in the file.
    NotACertificate(String),
    /// There is no private key in the file.
    NotAKey(String),
    /// The key is of an unsupported kind.
    UnusableKey(rustls::Error),
    /// The certificate is of an unsupported kind.
    UnusableCertificate(String),
    /// The key belongs to another certificate.
    KeyOfAnother {
        /// The certificate's file.
        certificate: PathBuf,
        /// The certificate of the chain that the key belongs to, from 1.
        nth: Option<usize>,
    },
    /// The file is not DER, or has bytes before or behind it.
    NotAnOcspResponse,
    /// The responder could not answer, with this status.
    OcspFailed(i64),
}

impl CertificateError {
    fn new(path: &Path, problem: Problem) -> Self {
        let path = path.to_owned();
        Self { path, problem }
    }

    /// Returns the kind of problem.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }
}

impl fmt::Display for CertificateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match &self.problem {
            Problem::NoCertificates => f.write_str("no certificate was given"),
            Problem::CertificateUnreadable(error) => write!(
                f,
                "cannot read the certificate {path}: {error}; give the file of a PEM certificate \
                 chain that this user may read"
            ),
            Problem::KeyUnreadable(error) => write!(
                f,
                "cannot read the key {path}: {error}; give the file of the certificate's PEM key, \
                 and let this user read it"
            ),
            Problem::OcspUnreadable(error) => write!(
                f,
                "cannot read the OCSP response {path}: {error}; give the file of a DER response \
                 that this user may read"
            ),
            Problem::KeyOpen { mode } => write!(
                f,
                "the key {path} is open to every user (mode {mode:03o}): run `chmod o= {path}`, \
                 and replace the key if others may have read it"
            ),
            Problem::NotACertificate(error) => write!(
                f,
                "there is no certificate in {path}: {error}; it must hold the chain as PEM, the \
                 server's own certificate first"
            ),
            Problem::NotAKey(error) => write!(
                f,
                "there is no private key in {path}: {error}; it must be PEM (PKCS #8, SEC1 or PKCS \
                 #1) and not encrypted"
            ),
            Problem::UnusableKey(error) => write!(
                f,
                "the key {path} cannot be used: {error}; ECDSA (P-256, P-384, P-521), Ed25519 and \
                 RSA (2048 to 8192 bits) can"
            ),
            Problem::UnusableCertificate(error) => write!(
                f,
                "the certificate {path} cannot be used: {error}; have an X.509 version 3 \
                 certificate issued"
            ),
            Problem::KeyOfAnother {
                certificate,
                nth: Some(nth),
            } => write!(
                f,
                "the key {path} is that of certificate number {nth} in {}: put the server's own \
                 certificate first",
                certificate.display()
            ),
            Problem::KeyOfAnother { certificate, .. } => write!(
                f,
                "the key {path} does not belong to the certificate {}: give the key that it was \
                 issued for",
                certificate.display()
            ),
            Problem::NotAnOcspResponse => {
                write!(f, "{path} is not an OCSP response in DER: {FETCH_OCSP}")
            }
            Problem::OcspFailed(status) => write!(
                f,
                "the OCSP response {path} says that there is none ({}): {FETCH_OCSP}",
                ocsp_status_name(*status)
            ),
        }
    }
}

impl std::error::Error for CertificateError {}

const FETCH_OCSP: &str =
    "fetch one with `openssl ocsp -issuer ISSUER.pem -cert CHAIN.pem -url URL -respout FILE`";

/// `OCSPResponseStatus` of RFC 6960 §4.2.1.
fn ocsp_status_name(status: i64) -> &'static str {
    match status {
        1 => "malformedRequest",
        2 => "internalError",
        3 => "tryLater",
        5 => "sigRequired",
        6 => "unauthorized",
        _ => "an unknown status",
    }
}

/// Certificates in use.
#[derive(Debug)]
pub struct Certificates(RwLock<Arc<Set>>);

impl Certificates {
    /// Checks and takes certificates; the first serves clients that name no server, or an unknown
    /// one. Whether they are valid now is the operator's concern: [`Files::examine`].
    ///
    /// # Errors
    /// If there is none, or one cannot be used.
    pub fn new(files: &[Files]) -> Result<Self, CertificateError> {
        let set = Set::new(files, &Set::default())?;
        Ok(Self(RwLock::new(Arc::new(set))))
    }

    /// Takes others instead, for handshakes that begin from now on.
    ///
    /// # Errors
    /// As [`Certificates::new`]; then the old ones stay.
    pub fn replace(&self, files: &[Files]) -> Result<(), CertificateError> {
        self.take(Set::new(files, &self.set())?);
        Ok(())
    }

    /// Takes those that have been checked instead. True if they all are.
    ///
    /// # Errors
    /// If there is none among them.
    pub fn replace_by(&self, checking: &mut Checking) -> Result<bool, CertificateError> {
        if !checking.files.is_empty() {
            return Ok(false);
        }
        some(&checking.set.certificates)?;
        self.take(std::mem::take(&mut checking.set));
        Ok(true)
    }

    /// The identity of a connection whose client has asked for this server name.
    pub fn identity(&self, server_name: Option<&str>) -> Identity {
        let set = self.set();
        let index = set.candidates(server_name).and_then(|them| them.first());
        let own = set.own.get(index.copied().unwrap_or(0));
        Identity::new(server_name, own.cloned())
    }

    fn set(&self) -> Arc<Set> {
        let set = self.0.read().unwrap_or_else(|error| error.into_inner());
        Arc::clone(&set)
    }

    fn take(&self, set: Set) {
        // Nothing that holds the lock can panic.
        *self.0.write().unwrap_or_else(|error| error.into_inner()) = Arc::new(set);
    }
}

/// Certificates that are being checked, one at a time: an RSA key takes milliseconds, and the
/// process that checks has connections to serve.
pub struct Checking {
    files: VecDeque<Files>,
    set: Set,
}

impl Checking {
    /// At least one is to be checked.
    ///
    /// # Errors
    /// If there is none.
    pub fn new(files: Vec<Files>) -> Result<Self, CertificateError> {
        some(&files)?;
        let (files, set) = (files.into(), Set::default());
        Ok(Self { files, set })
    }

    /// Checks the next one; false if there was none. Those that are kept are taken from `current`.
    ///
    /// # Errors
    /// If it cannot be used.
    pub fn step(&mut self, current: &Certificates) -> Result<bool, CertificateError> {
        let Some(files) = self.files.front() else {
            return Ok(false);
        };
        // One that is no good stays, and with it all that follow.
        self.set.add(files, &current.set())?;
        self.files.pop_front();
        Ok(true)
    }
}

/// Without the keys.
impl fmt::Debug for Checking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checking")
            .field("left", &self.files.len())
            .finish_non_exhaustive()
    }
}

fn some<T>(certificates: &[T]) -> Result<(), CertificateError> {
    if certificates.is_empty() {
        Err(CertificateError::new(
            Path::new(""),
            Problem::NoCertificates,
        ))
    } else {
        Ok(())
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let set = self.set();
        let index = set.resolve(&hello)?;
        set.certificates.get(index).cloned()
    }
}

/// Files by which a certificate is known.
#[derive(Clone, Debug)]
struct Paths {
    certificate: PathBuf,
    key: PathBuf,
}

#[derive(Debug, Default)]
struct Set {
    certificates: Vec<Arc<CertifiedKey>>,
    /// The server's own of each chain, which outlives the key where a connection needs it.
    own: Vec<Arc<CertificateDer<'static>>>,
    /// Of each certificate.
    paths: Vec<Paths>,
    /// Certificates that are good for a name. `*.` stands for one label.
    by_name: HashMap<String, Vec<usize>>,
}

impl Set {
    fn new(files: &[Files], current: &Self) -> Result<Self, CertificateError> {
        let mut set = Self::default();
        for files in files {
            set.add(files, current)?;
        }
        some(&set.certificates)?;
        Ok(set)
    }

    /// Adds a certificate, or the one of `current` that is to be kept, if it is there.
    fn add(&mut self, files: &Files, current: &Self) -> Result<(), CertificateError> {
        let before = current.find(files);
        let certificate = match before {
            Some(before) if files.is_kept() => Arc::clone(before),
            None if files.is_kept() => return Ok(()),
            before => Arc::new(renewed(certified(files)?, files, before)),
        };
        let index = self.certificates.len();
        if let Ok(own) = EndEntityCert::try_from(&certificate.cert[0]) {
            for name in names(&own) {
                self.by_name.entry(name).or_default().push(index);
            }
        }
        self.own.push(Arc::new(certificate.cert[0].clone()));
        self.certificates.push(certificate);
        self.paths.push(Paths {
            certificate: files.certificate_path.clone(),
            key: files.key_path.clone(),
        });
        Ok(())
    }

    fn find(&self, files: &Files) -> Option<&Arc<CertifiedKey>> {
        let at = self.paths.iter().position(|paths| files.is_of(paths))?;
        self.certificates.get(at)
    }

    /// The certificates for a server name; `None` if there is no name, or none for it.
    fn candidates(&self, server_name: Option<&str>) -> Option<&Vec<usize>> {
        let name = server_name?.to_ascii_lowercase();
        let wildcard = name
            .split_once('.')
            .map(|(_, parent)| format!("*.{parent}"));
        let exact = self.by_name.get(&name);
        exact.or_else(|| self.by_name.get(&wildcard?))
    }

    /// Of the certificates for the name that the client asks for, the first with whose key it can
    /// do something.
    fn resolve(&self, hello: &ClientHello<'_>) -> Option<usize> {
        let named = self.candidates(hello.server_name());
        let all: Vec<usize> = (0..self.certificates.len()).collect();
        let candidates = named.unwrap_or(&all);
        let usable = candidates.iter().find(|&&index| {
            let key = &self.certificates[index].key;
            key.choose_scheme(hello.signature_schemes()).is_some()
        });
        // If none is usable, rustls chooses the right alert with any certificate.
        usable.or(candidates.first()).copied()
    }
}

/// Returns the problem if the files of certificate and key are swapped.
fn swapped(files: &Files) -> Option<String> {
    PrivateKeyDer::from_pem_slice(&files.certificate).ok()?;
    CertificateDer::from_pem_slice(&files.key).ok()?;
    let path = files.key_path.display();
    Some(format!(
        "it holds a private key, and {path} holds a certificate: the two files are swapped"
    ))
}

/// DNS names that a certificate is for. `*.` stands for one label.
fn names<'a>(certificate: &'a EndEntityCert<'_>) -> impl Iterator<Item = String> + 'a {
    let names = certificate.valid_dns_names();
    names.map(str::to_ascii_lowercase)
}

/// With the OCSP response in use before, if there is to be one, and the new one cannot be used.
fn renewed(
    mut certificate: CertifiedKey,
    files: &Files,
    before: Option<&Arc<CertifiedKey>>,
) -> CertifiedKey {
    let is_missing = files.ocsp.as_ref().is_some_and(|(_, der)| der.is_empty());
    let before = before.filter(|before| is_missing && before.cert[0] == certificate.cert[0]);
    if let Some(before) = before {
        certificate.ocsp.clone_from(&before.ocsp);
    }
    certificate
}

/// Parses and checks one chain and its key.
fn certified(files: &Files) -> Result<CertifiedKey, CertificateError> {
    let of_certificate = |problem| CertificateError::new(&files.certificate_path, problem);
    let of_key = |problem| CertificateError::new(&files.key_path, problem);

    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&files.certificate).collect();
    let chain = chain
        .map_err(|error| error.to_string())
        .and_then(|chain| {
            if chain.is_empty() {
                Err(swapped(files).unwrap_or("nothing in it is marked as one".to_owned()))
            } else {
                Ok(chain)
            }
        })
        .map_err(|error| of_certificate(Problem::NotACertificate(error)))?;
    parse(&chain[0])
        .and_then(|own| Validity::of(&own))
        .map_err(of_certificate)?;

    let key = PrivateKeyDer::from_pem_slice(&files.key)
        .map_err(|error| of_key(Problem::NotAKey(error.to_string())))?;
    let key = aws_lc_rs::default_provider()
        .key_provider
        .load_private_key(key)
        .map_err(|error| of_key(Problem::UnusableKey(error)))?;
    let mut certified = CertifiedKey::new(chain, key);
    if certified.keys_match().is_err() {
        let matches = |certificate: &CertificateDer<'static>| {
            CertifiedKey::new(vec![certificate.clone()], Arc::clone(&certified.key))
                .keys_match()
                .is_ok()
        };
        let nth = certified.cert.iter().position(matches).map(|at| at + 1);
        let certificate = files.certificate_path.clone();
        return Err(of_key(Problem::KeyOfAnother { certificate, nth }));
    }
    if let Some((_, ocsp)) = files.ocsp.as_ref().filter(|(_, der)| !der.is_empty()) {
        certified.ocsp = Some(ocsp.clone());
    }
    Ok(certified)
}

/// Checks that the file is an OCSP response and nothing else, and that its responder could answer.
/// Clients judge the response itself.
fn check_ocsp(der: &[u8]) -> Result<(), Problem> {
    // OCSPResponse of RFC 6960 §4.2.1.
    let status = yasna::parse_der(der, |reader| {
        reader.read_sequence(|reader| {
            let status = reader.next().read_enum()?;
            reader.read_optional(|bytes| bytes.read_tagged_der().map(drop))?;
            Ok(status)
        })
    });
    match status {
        Ok(0) => Ok(()),
        Ok(status) => Err(Problem::OcspFailed(status)),
        Err(_) => Err(Problem::NotAnOcspResponse),
    }
}

/// Parses a certificate.
fn parse<'a>(certificate: &'a CertificateDer<'_>) -> Result<EndEntityCert<'a>, Problem> {
    EndEntityCert::try_from(certificate).map_err(unusable)
}

fn unusable(error: webpki::Error) -> Problem {
    Problem::UnusableCertificate(match error {
        webpki::Error::BadDer | webpki::Error::TrailingData(_) => "it is not valid DER".to_owned(),
        webpki::Error::InvalidCertValidity => "its validity ends before it begins".to_owned(),
        other => other.to_string(),
    })
}
