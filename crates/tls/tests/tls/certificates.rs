//! Certificates and keys that cannot be used, and what is said about them.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use tempfile::TempDir;
use tls::{Certificates, Checking, Files, Problem, Settings};

use fakes::keys::SUITES;
use fakes::site::{Identity, Site, UNIX_TIME};
use fakes::tls_pair::Pair;

/// A folder with a good certificate and key.
struct Folder {
    folder: TempDir,
    identity: Identity,
}

impl Folder {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let identity = Identity::ecdsa(&["localhost"]);
        let this = Self { folder, identity };
        this.write("cert.pem", &this.identity.certificate.pem(), 0o644);
        this.write("key.pem", &this.identity.key.serialize_pem(), 0o600);
        this
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, text: &str, mode: u32) {
        fs::write(self.path(name), text).unwrap();
        fs::set_permissions(self.path(name), Permissions::from_mode(mode)).unwrap();
    }

    /// What is wrong, in words. The message must name the file.
    fn message(&self, names: &str, unix_time: Duration) -> String {
        let names: Vec<&str> = names.split(' ').collect();
        let ocsp = names.get(2).map(|name| self.path(name));
        let files = Files::read(
            &self.path(names[0]),
            &self.path(names[1]),
            ocsp.as_deref().map(Path::new),
        );
        let error = files
            .and_then(|files| Certificates::new(&[files], unix_time))
            .unwrap_err();
        let message = error.to_string();
        let named = names.iter().any(|name| {
            let path = self.path(name);
            message.contains(path.to_str().unwrap())
        });
        assert!(named, "{message}");
        message
    }
}

#[test]
fn good_files_are_taken() {
    let folder = Folder::new();
    folder.write("group.pem", &folder.identity.key.serialize_pem(), 0o640);
    for key in ["key.pem", "group.pem"] {
        let files = Files::read(&folder.path("cert.pem"), &folder.path(key), None).unwrap();
        Certificates::new(&[files], UNIX_TIME).unwrap();
    }
}

#[test]
fn bad_files_are_refused_with_what_to_do() {
    let folder = Folder::new();
    let other = Identity::ecdsa(&["other"]);
    let cert = folder.identity.certificate.pem();
    let key = folder.identity.key.serialize_pem();
    folder.write("empty", "", 0o600);
    folder.write("text", "no PEM at all", 0o600);
    let cut = cert.len() / 2;
    folder.write("cut.pem", &cert[..cut], 0o600);
    folder.write(
        "damaged.pem",
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        0o600,
    );
    folder.write("open.pem", &key, 0o644);
    folder.write("other.pem", &other.key.serialize_pem(), 0o600);
    folder.write(
        "swapped.pem",
        &[other.certificate.pem(), cert.clone()].concat(),
        0o600,
    );
    folder.write(
        "encrypted.pem",
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n",
        0o600,
    );
    let mode = Mode::RUSR | Mode::WUSR;
    mknodat(CWD, folder.path("pipe"), FileType::Fifo, mode, 0).unwrap();
    folder.write("huge", &"x".repeat((1 << 20) + 1), 0o600);
    for (name, der) in [
        ("text.ocsp", &b"0 is what a SEQUENCE begins with"[..]),
        ("cut.ocsp", &[0x30, 3, 0x0a, 1]),
        ("more.ocsp", &[0x30, 3, 0x0a, 1, 0, 0]),
        ("no-status.ocsp", &[0x30, 3, 0x02, 1, 0]),
        ("later.ocsp", &[0x30, 3, 0x0a, 1, 3]),
    ] {
        fs::write(folder.path(name), der).unwrap();
    }
    for (names, expected) in [
        ("missing key.pem", "No such file"),
        ("cert.pem missing", "No such file"),
        ("cert.pem key.pem missing", "No such file"),
        (". key.pem", "no regular file"),
        // No process will ever write there: it is not waited for.
        ("pipe key.pem", "no regular file"),
        ("cert.pem pipe", "no regular file"),
        ("cert.pem key.pem pipe", "no regular file"),
        ("huge key.pem", "longer than 1 MiB"),
        ("empty key.pem", "no certificate in"),
        ("text key.pem", "no certificate in"),
        ("key.pem key.pem", "no certificate in"),
        ("cut.pem key.pem", "no certificate in"),
        ("damaged.pem key.pem", "cannot be used: it is not valid DER"),
        ("key.pem cert.pem", "the two files are swapped"),
        ("cert.pem empty", "no private key in"),
        ("cert.pem text", "no private key in"),
        ("cert.pem encrypted.pem", "not encrypted"),
        ("cert.pem open.pem", "chmod o="),
        ("cert.pem other.pem", "does not belong to the certificate"),
        ("swapped.pem key.pem", "certificate number 2"),
        ("cert.pem key.pem text", "not an OCSP response"),
        ("cert.pem key.pem text.ocsp", "not an OCSP response"),
        ("cert.pem key.pem cut.ocsp", "not an OCSP response"),
        ("cert.pem key.pem more.ocsp", "not an OCSP response"),
        ("cert.pem key.pem no-status.ocsp", "openssl ocsp -issuer"),
        ("cert.pem key.pem later.ocsp", "there is none (tryLater)"),
    ] {
        let message = folder.message(names, UNIX_TIME);
        assert!(message.contains(expected), "{names}: {message}");
    }
}

#[test]
fn certificates_out_of_their_time_are_refused() {
    let folder = Folder::new();
    let mut params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    params.not_before = rcgen::date_time_ymd(2020, 1, 1);
    params.not_after = rcgen::date_time_ymd(2020, 2, 1);
    let certificate = params.self_signed(&folder.identity.key).unwrap();
    folder.write("old.pem", &certificate.pem(), 0o644);
    let february = Duration::from_secs(1_580_515_200);
    let day = Duration::from_secs(86_400);
    assert!(
        folder
            .message("old.pem key.pem", february + 10 * day)
            .contains("expired 10 days ago")
    );
    assert!(
        folder
            .message("old.pem key.pem", february - 41 * day)
            .contains("becomes valid only in 10 days")
    );
    let files = Files::read(&folder.path("old.pem"), &folder.path("key.pem"), None).unwrap();
    Certificates::new(&[files], february - day).unwrap();
}

#[test]
fn no_certificate_at_all_is_an_error() {
    let error = Certificates::new(&[], UNIX_TIME).unwrap_err();
    assert!(matches!(error.problem(), Problem::NoCertificates));
}

#[test]
fn certificates_that_are_checked_one_after_the_other_are_used_when_all_are_good() {
    let site = Site::plain();
    let read = |folder: &Folder| {
        Files::read(&folder.path("cert.pem"), &folder.path("key.pem"), None).unwrap()
    };
    let (folder, bad) = (Folder::new(), Folder::new());
    bad.write("key.pem", &folder.identity.key.serialize_pem(), 0o600);
    let mut checking = Checking::new(vec![read(&folder), read(&bad)], UNIX_TIME).unwrap();
    assert!(checking.step().unwrap());
    assert!(!site.certificates.replace_by(&mut checking));
    checking.step().unwrap_err();
    assert!(!site.certificates.replace_by(&mut checking));

    let mut checking = Checking::new(vec![read(&folder), read(&folder)], UNIX_TIME).unwrap();
    assert!(checking.step().unwrap() && checking.step().unwrap());
    assert!(!checking.step().unwrap());
    // A client that trusts the old one alone finds another.
    let trusting = |site: &Site| Pair::new(site, Arc::new(site.client_config(SUITES[0])));
    trusting(&site).pump().unwrap();
    assert!(site.certificates.replace_by(&mut checking));
    trusting(&site).pump().unwrap_err();
}

#[test]
fn a_reload_that_fails_leaves_everything_as_it_was() {
    let site = Site::plain();
    let client = Arc::new(site.client_config(SUITES[0]));
    let broken = Files::from_pem("broken", "broken", "broken");
    site.certificates.replace(&[broken], UNIX_TIME).unwrap_err();
    let mut pair = Pair::new(&site, client);
    pair.pump().unwrap();
    pair.download(1, 1000);
}

#[test]
fn an_ocsp_response_is_stapled() {
    use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
    use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
    use rustls::{DigitallySignedStruct, Error, SignatureScheme};

    const RESPONSE: &[u8] = &[0x30, 3, 0x0a, 1, 0];

    #[derive(Debug)]
    struct Expects;

    impl ServerCertVerifier for Expects {
        fn verify_server_cert(
            &self,
            _: &CertificateDer<'_>,
            _: &[CertificateDer<'_>],
            _: &ServerName<'_>,
            ocsp: &[u8],
            _: UnixTime,
        ) -> Result<ServerCertVerified, Error> {
            assert_eq!(ocsp, RESPONSE);
            Ok(ServerCertVerified::assertion())
        }
        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Ok(HandshakeSignatureValid::assertion())
        }
        fn verify_tls13_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Ok(HandshakeSignatureValid::assertion())
        }
        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            vec![SignatureScheme::ECDSA_NISTP256_SHA256]
        }
    }

    let folder = Folder::new();
    fs::write(folder.path("ocsp"), RESPONSE).unwrap();
    let files = Files::read(
        &folder.path("cert.pem"),
        &folder.path("key.pem"),
        Some(&folder.path("ocsp")),
    );
    let site = Site::new(&[Identity::ecdsa(&["localhost"])], &Settings::default());
    site.certificates
        .replace(&[files.unwrap()], UNIX_TIME)
        .unwrap();
    for suite in SUITES {
        let mut client = site.client_config(suite);
        client
            .dangerous()
            .set_certificate_verifier(Arc::new(Expects));
        let mut pair = Pair::new(&site, Arc::new(client));
        pair.pump().unwrap();
        pair.download(1, 1000);
    }
}
