//! Certificates and their keys: found by the name that a client asks for, and replaced without
//! losing a connection.

mod bytes;

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use rustix::fs::OFlags;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use webpki::{EndEntityCert, KeyUsage};
use zeroize::Zeroizing;

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
    /// Reads a chain (PEM, the server's own certificate first), its key (PEM), and an OCSP response
    /// (DER) to be stapled.
    ///
    /// # Errors
    /// If one cannot be read, or is no regular file or absurdly long, or everybody may read the
    /// key.
    pub fn read(
        certificate: &Path,
        key: &Path,
        ocsp: Option<&Path>,
    ) -> Result<Self, CertificateError> {
        let read = |path: &Path, problem: fn(io::Error) -> Problem| {
            open(path)
                .and_then(|(file, metadata)| read_file(file, &metadata))
                .map_err(|error| CertificateError::new(path, problem(error)))
        };
        let of_key = |problem| CertificateError::new(key, problem);
        let unreadable = |error| of_key(Problem::KeyUnreadable(error));
        // The mode is that of the file that is read, whatever becomes of its name.
        let (key_file, metadata) = open(key).map_err(unreadable)?;
        let key_bytes = Zeroizing::new(read_file(key_file, &metadata).map_err(unreadable)?);
        // A certificate in the place of the key may be open, and is another mistake.
        let is_secret = PrivateKeyDer::from_pem_slice(&key_bytes).is_ok()
            || CertificateDer::from_pem_slice(&key_bytes).is_err();
        if is_secret && metadata.mode() & 0o007 != 0 {
            let mode = metadata.mode() & 0o777;
            return Err(of_key(Problem::KeyOpen { mode }));
        }
        let ocsp = ocsp.map(|path| {
            let bytes = read(path, Problem::OcspUnreadable)?;
            Ok((path.to_owned(), bytes))
        });
        Ok(Self {
            certificate_path: certificate.to_owned(),
            certificate: read(certificate, Problem::CertificateUnreadable)?,
            key_path: key.to_owned(),
            key: key_bytes,
            ocsp: ocsp.transpose()?,
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

/// Opens a regular file, without waiting: a pipe may never have a writer, and what it had could not
/// be read again.
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
    // Room for all at once: what grows leaves copies behind, of keys, too.
    let bytes = metadata.len().min(FILE_BYTES_MAX) + 1;
    let mut bytes = Vec::with_capacity(bytes as usize);
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 <= FILE_BYTES_MAX {
        Ok(bytes)
    } else {
        Err(io::Error::other("it is longer than 1 MiB"))
    }
}

/// What is wrong with a certificate or a key, where, and what to do.
#[derive(Debug)]
pub struct CertificateError {
    path: PathBuf,
    problem: Problem,
}

/// What is wrong.
#[derive(Debug)]
#[non_exhaustive]
pub enum Problem {
    /// There is none.
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
    /// It is not of a kind that can be used.
    UnusableKey(rustls::Error),
    /// It is not a certificate that can be used.
    UnusableCertificate(String),
    /// The key is not the certificate's.
    KeyOfAnother {
        /// Where the certificate is.
        certificate: PathBuf,
        /// The certificate of the chain whose key it is, from 1.
        nth: Option<usize>,
    },
    /// It has expired so many seconds ago.
    Expired(u64),
    /// It becomes valid in so many seconds.
    NotYetValid(u64),
    /// It is not DER, or something is before or behind it.
    NotAnOcspResponse,
    /// It says that the responder could not answer, with this status.
    OcspFailed(i64),
}

impl CertificateError {
    fn new(path: &Path, problem: Problem) -> Self {
        let path = path.to_owned();
        Self { path, problem }
    }

    /// What is wrong.
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
            Problem::Expired(seconds) => write!(
                f,
                "the certificate {path} expired {} ago: renew it, or check this machine's clock",
                Ago(*seconds)
            ),
            Problem::NotYetValid(seconds) => write!(
                f,
                "the certificate {path} becomes valid only in {}: check this machine's clock",
                Ago(*seconds)
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

/// A number of seconds, for people.
struct Ago(u64);

impl fmt::Display for Ago {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, unit) = match self.0 {
            0..120 => (self.0, "seconds"),
            120..7200 => (self.0 / 60, "minutes"),
            7200..172_800 => (self.0 / 3600, "hours"),
            _ => (self.0 / 86_400, "days"),
        };
        write!(f, "{count} {unit}")
    }
}

/// Certificates in use.
#[derive(Debug)]
pub struct Certificates(RwLock<Arc<Set>>);

impl Certificates {
    /// Checks and takes certificates; the first serves clients that name no server, or an unknown
    /// one.
    ///
    /// # Errors
    /// If there is none, or one is not valid now, or does not go with its key.
    pub fn new(files: &[Files], unix_time: Duration) -> Result<Self, CertificateError> {
        let set = Set::new(files, unix_time)?;
        Ok(Self(RwLock::new(Arc::new(set))))
    }

    /// Takes others instead, for handshakes that begin from now on.
    ///
    /// # Errors
    /// As [`Certificates::new`]; then the old ones stay.
    pub fn replace(&self, files: &[Files], unix_time: Duration) -> Result<(), CertificateError> {
        self.take(Set::new(files, unix_time)?);
        Ok(())
    }

    /// Takes those that have been checked instead. True if they all are.
    pub fn replace_by(&self, checking: &mut Checking) -> bool {
        let all = checking.files.is_empty();
        if all {
            self.take(std::mem::take(&mut checking.set));
        }
        all
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
    unix_time: Duration,
    set: Set,
}

impl Checking {
    /// At least one is to be checked.
    ///
    /// # Errors
    /// If there is none.
    pub fn new(files: Vec<Files>, unix_time: Duration) -> Result<Self, CertificateError> {
        some(&files)?;
        let (files, set) = (files.into(), Set::default());
        Ok(Self {
            files,
            unix_time,
            set,
        })
    }

    /// Checks the next one; false if there was none.
    ///
    /// # Errors
    /// If it is not valid now, or does not go with its key.
    pub fn step(&mut self) -> Result<bool, CertificateError> {
        let Some(files) = self.files.front() else {
            return Ok(false);
        };
        // One that is no good stays, and with it all that follow.
        self.set.add(files, self.unix_time)?;
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

fn some(files: &[Files]) -> Result<(), CertificateError> {
    if files.is_empty() {
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
        let set = self.0.read().unwrap_or_else(|error| error.into_inner());
        set.resolve(&hello)
    }
}

#[derive(Debug, Default)]
struct Set {
    certificates: Vec<Arc<CertifiedKey>>,
    /// Certificates that are good for a name. `*.` stands for one label.
    by_name: HashMap<String, Vec<usize>>,
}

impl Set {
    fn new(files: &[Files], unix_time: Duration) -> Result<Self, CertificateError> {
        some(files)?;
        let mut set = Self::default();
        for files in files {
            set.add(files, unix_time)?;
        }
        Ok(set)
    }

    fn add(&mut self, files: &Files, unix_time: Duration) -> Result<(), CertificateError> {
        let certificate = certified(files, unix_time)?;
        let index = self.certificates.len();
        let own = &certificate.cert[0];
        if let Ok(own) = EndEntityCert::try_from(own) {
            for name in own.valid_dns_names() {
                let name = name.to_ascii_lowercase();
                self.by_name.entry(name).or_default().push(index);
            }
        }
        self.certificates.push(Arc::new(certificate));
        Ok(())
    }

    /// Of the certificates for the name that the client asks for, the first with whose key it can
    /// do something.
    fn resolve(&self, hello: &ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = hello.server_name().map(str::to_ascii_lowercase);
        let named = name.and_then(|name| {
            let wildcard = name
                .split_once('.')
                .map(|(_, parent)| format!("*.{parent}"));
            let exact = self.by_name.get(&name);
            exact.or_else(|| self.by_name.get(&wildcard?))
        });
        let all: Vec<usize> = (0..self.certificates.len()).collect();
        let candidates = named.unwrap_or(&all);
        let usable = candidates.iter().find(|&&index| {
            let key = &self.certificates[index].key;
            key.choose_scheme(hello.signature_schemes()).is_some()
        });
        // None is usable: with any of them, rustls finds the right words.
        let index = usable.or(candidates.first())?;
        self.certificates.get(*index).cloned()
    }
}

/// What is wrong if the key is in the place of the certificate, and the certificate in that of the
/// key.
fn swapped(files: &Files) -> Option<String> {
    PrivateKeyDer::from_pem_slice(&files.certificate).ok()?;
    CertificateDer::from_pem_slice(&files.key).ok()?;
    let path = files.key_path.display();
    Some(format!(
        "it holds a private key, and {path} holds a certificate: the two files are swapped"
    ))
}

/// Parses and checks one chain and its key.
fn certified(files: &Files, unix_time: Duration) -> Result<CertifiedKey, CertificateError> {
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
    check_validity(&chain[0], unix_time).map_err(of_certificate)?;

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
    if let Some((path, ocsp)) = &files.ocsp {
        check_ocsp(ocsp).map_err(|problem| CertificateError::new(path, problem))?;
        certified.ocsp = Some(ocsp.clone());
    }
    Ok(certified)
}

/// Checks that there is a response and nothing else, and that it is none of a responder that could
/// not answer. What it says is the clients' business.
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

/// Checks that a certificate can be parsed, and is valid now. Whether it is trusted is the clients'
/// decision, so other complaints of the verifier do not count.
fn check_validity(certificate: &CertificateDer<'_>, unix_time: Duration) -> Result<(), Problem> {
    let unusable = |error: webpki::Error| {
        Problem::UnusableCertificate(match error {
            webpki::Error::BadDer | webpki::Error::TrailingData(_) => {
                "it is not valid DER".to_owned()
            }
            webpki::Error::InvalidCertValidity => "its validity ends before it begins".to_owned(),
            other => other.to_string(),
        })
    };
    let parsed = EndEntityCert::try_from(certificate).map_err(unusable)?;
    let now = UnixTime::since_unix_epoch(unix_time);
    match parsed.verify_for_usage(&[], &[], &[], now, KeyUsage::server_auth(), None, None) {
        Err(webpki::Error::CertExpired { time, not_after }) => {
            Err(Problem::Expired(time.as_secs() - not_after.as_secs()))
        }
        Err(webpki::Error::CertNotValidYet { time, not_before }) => {
            Err(Problem::NotYetValid(not_before.as_secs() - time.as_secs()))
        }
        Err(error @ (webpki::Error::BadDer | webpki::Error::InvalidCertValidity)) => {
            Err(unusable(error))
        }
        _ => Ok(()),
    }
}
