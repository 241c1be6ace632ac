//! Certificates and keys that cannot be used, and what is said about them.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use tempfile::TempDir;
use tls::{CertificateError, Certificates, Checking, Files, Problem, Settings, Standing};

use fakes::keys::SUITES;
use fakes::site::{Identity, Site};
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

    fn read(&self, certificate: &str, key: &str) -> Result<Files, CertificateError> {
        Files::read(&self.path(certificate), &self.path(key))
    }

    /// What is wrong, in words. The message must name the file.
    fn message(&self, names: &str) -> String {
        let names: Vec<&str> = names.split(' ').collect();
        let files = self.read(names[0], names[1]);
        let error = match names.get(2) {
            Some(ocsp) => files.unwrap().staple(&self.path(ocsp)).unwrap_err(),
            None => files
                .and_then(|files| Certificates::new(&[files]))
                .unwrap_err(),
        };
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
        let files = folder.read("cert.pem", key).unwrap();
        Certificates::new(&[files]).unwrap();
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
        let message = folder.message(names);
        assert!(message.contains(expected), "{names}: {message}");
    }
}

/// A certificate for January 2020, and its end.
fn of_january(folder: &Folder) -> Duration {
    let mut params = rcgen::CertificateParams::new(vec!["Localhost".to_owned()]).unwrap();
    params.not_before = rcgen::date_time_ymd(2020, 1, 1);
    params.not_after = rcgen::date_time_ymd(2020, 2, 1);
    let certificate = params.self_signed(&folder.identity.key).unwrap();
    folder.write("old.pem", &certificate.pem(), 0o644);
    Duration::from_secs(1_580_515_200)
}

#[test]
fn certificates_out_of_their_time_can_be_used_and_say_so() {
    let folder = Folder::new();
    let february = of_january(&folder);
    let files = folder.read("old.pem", "key.pem").unwrap();
    let examined = files.examine().unwrap();
    assert_eq!(examined.names, ["localhost"]);
    let day = Duration::from_secs(86_400);
    for (at, standing, text) in [
        (
            february + 10 * day,
            Standing::Expired(10 * day),
            "expired 10 days ago",
        ),
        (
            february - 41 * day,
            Standing::NotYetValid(10 * day),
            "becomes valid only in 10 days",
        ),
        (
            february - 3 * day,
            Standing::Valid(3 * day),
            "expires in 3 days",
        ),
    ] {
        let found = examined.validity.at(at);
        assert_eq!(found, standing);
        assert_eq!(found.to_string(), text);
    }
    assert_eq!(examined.validity.not_after_s, february.as_secs());
    Certificates::new(&[files]).unwrap();
}

#[test]
fn no_certificate_at_all_is_an_error() {
    let none = Path::new("none");
    for files in [vec![], vec![Files::kept(none, none)]] {
        let error = Certificates::new(&files).unwrap_err();
        assert!(matches!(error.problem(), Problem::NoCertificates));
    }
}

#[test]
fn certificates_that_are_checked_one_after_the_other_are_used_when_all_are_good() {
    let site = Site::plain();
    let read = |folder: &Folder| folder.read("cert.pem", "key.pem").unwrap();
    let (folder, bad) = (Folder::new(), Folder::new());
    bad.write("key.pem", &folder.identity.key.serialize_pem(), 0o600);
    let current = &site.certificates;
    let mut checking = Checking::new(vec![read(&folder), read(&bad)]).unwrap();
    assert!(checking.step(current).unwrap());
    assert!(!current.replace_by(&mut checking).unwrap());
    checking.step(current).unwrap_err();
    assert!(!current.replace_by(&mut checking).unwrap());

    let mut checking = Checking::new(vec![read(&folder), read(&folder)]).unwrap();
    assert!(checking.step(current).unwrap() && checking.step(current).unwrap());
    assert!(!checking.step(current).unwrap());
    // A client that trusts the old one alone finds another.
    let trusting = |site: &Site| Pair::new(site, Arc::new(site.client_config(SUITES[0])));
    trusting(&site).pump().unwrap();
    assert!(current.replace_by(&mut checking).unwrap());
    trusting(&site).pump().unwrap_err();
}

#[test]
fn one_that_is_kept_stays_while_others_are_renewed() {
    let kept = Identity::ecdsa(&["localhost"]);
    let site = Site::new(&[kept], &Settings::default());
    let client = Arc::new(site.client_config(SUITES[0]));
    let other = Folder::new();
    let renewed = other.read("cert.pem", "key.pem").unwrap();
    // Files that are not in use are left out.
    let unknown = Files::kept(Path::new("unknown"), Path::new("unknown"));
    let name = Path::new(fakes::site::FILES);
    let files = vec![Files::kept(name, name), unknown, renewed];
    let mut checking = Checking::new(files).unwrap();
    while checking.step(&site.certificates).unwrap() {}
    assert!(site.certificates.replace_by(&mut checking).unwrap());
    let mut pair = Pair::new(&site, client);
    pair.pump().unwrap();
    pair.download(1, 1000);
    // Without any, those in use stay.
    let unknown = Files::kept(Path::new("unknown"), Path::new("unknown"));
    let mut checking = Checking::new(vec![unknown]).unwrap();
    while checking.step(&site.certificates).unwrap() {}
    site.certificates.replace_by(&mut checking).unwrap_err();
}

#[test]
fn a_reload_that_fails_leaves_everything_as_it_was() {
    let site = Site::plain();
    let client = Arc::new(site.client_config(SUITES[0]));
    let broken = Files::from_pem("broken", "broken", "broken");
    site.certificates.replace(&[broken]).unwrap_err();
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
    let mut files = folder.read("cert.pem", "key.pem").unwrap();
    files.staple(&folder.path("ocsp")).unwrap();
    let site = Site::new(&[Identity::ecdsa(&["localhost"])], &Settings::default());
    let is_stapled = || {
        for suite in SUITES {
            let mut client = site.client_config(suite);
            client
                .dangerous()
                .set_certificate_verifier(Arc::new(Expects));
            let mut pair = Pair::new(&site, Arc::new(client));
            pair.pump().unwrap();
            pair.download(1, 1000);
        }
    };
    site.certificates.replace(&[files]).unwrap();
    is_stapled();
    // The same certificate keeps its response when there is no new one.
    let mut again = folder.read("cert.pem", "key.pem").unwrap();
    again.staple(&folder.path("missing")).unwrap_err();
    let again = Files::from_bytes(&Files::to_bytes(&[again])).unwrap();
    site.certificates.replace(&again).unwrap();
    is_stapled();
}
