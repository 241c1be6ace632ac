//! Origins with TLS.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::thread;

use origin::Trust;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use rustls_pki_types::PrivateKeyDer;
use testbed::web::content;

use crate::host::{Host, Outcome, config};

/// An origin of this name, with a certificate of its own making: where it listens, and the
/// certificate in PEM.
fn origin(name: &str) -> (u16, String) {
    origin_with(rcgen::CertificateParams::new([name.to_owned()]).unwrap())
}

/// The same with a certificate that is its own authority, as `openssl req -x509` makes it.
fn origin_of_authority(name: &str, is_valid: bool) -> (u16, String) {
    let mut params = rcgen::CertificateParams::new([name.to_owned()]).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    if !is_valid {
        params.not_after = rcgen::date_time_ymd(2001, 1, 1);
    }
    origin_with(params)
}

fn origin_with(params: rcgen::CertificateParams) -> (u16, String) {
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = params.self_signed(&key).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let secret = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], secret)
        .unwrap();
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let connection = ServerConnection::new(Arc::clone(&config)).unwrap();
            let mut stream = StreamOwned::new(connection, stream.unwrap());
            let mut request = Vec::new();
            // Who does not believe it hangs up.
            while !request.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                match stream.read(&mut byte) {
                    Ok(1) => request.push(byte[0]),
                    _ => break,
                }
            }
            let head = "HTTP/1.1 200 OK\r\nContent-Length: 2500\r\nConnection: close\r\n\r\n";
            let _ = stream.write_all(&[head.as_bytes(), &content(2500, 1)].concat());
            stream.conn.send_close_notify();
            let _ = stream.flush();
        }
    });
    (port, certificate.pem())
}

#[test]
fn an_origin_is_believed_for_its_name_and_by_whom_it_is_certified() {
    for (name, trusts, outcome) in [
        ("localhost", true, Outcome::Content(content(2500, 1))),
        ("localhost", false, Outcome::Refused(502)),
        ("elsewhere.example", true, Outcome::Refused(502)),
    ] {
        let (port, pem) = origin(name);
        let root = tempfile::tempdir().unwrap();
        let authorities = tempfile::NamedTempFile::new().unwrap();
        fs::write(&authorities, pem).unwrap();
        let trust = if trusts {
            Trust::of_file(authorities.path()).unwrap()
        } else {
            Trust::none()
        };
        let mut host = Host::with(origin::Config {
            trust,
            ..config(root.path(), &format!("https://localhost:{port}"))
        });
        assert!(host.get("/x") == outcome, "{name}, {trusts}");
    }
}

#[test]
fn a_certificate_that_is_its_own_authority_is_believed_if_it_is_the_one_that_was_given() {
    for (name, is_valid, is_given, is_believed) in [
        ("localhost", true, true, true),
        ("localhost", true, false, false),
        ("localhost", false, true, false),
        ("elsewhere.example", true, true, false),
    ] {
        let (port, own) = origin_of_authority(name, is_valid);
        let (_, other) = origin_of_authority(name, is_valid);
        let root = tempfile::tempdir().unwrap();
        let authorities = tempfile::NamedTempFile::new().unwrap();
        fs::write(&authorities, if is_given { own } else { other }).unwrap();
        let mut host = Host::with(origin::Config {
            trust: Trust::of_file(authorities.path()).unwrap(),
            ..config(root.path(), &format!("https://localhost:{port}"))
        });
        let outcome = if is_believed {
            Outcome::Content(content(2500, 1))
        } else {
            Outcome::Refused(502)
        };
        assert!(host.get("/x") == outcome, "{name} {is_valid} {is_given}");
    }
}
