//! HTTPS servers and their clients: rustls on the kernel's TCP, and the tools that people use.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, RsaKeySize};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use testbed::http::{Connection, PATIENCE, be_patient};
use testbed::process::{Process, run, tool};
use testbed::site::{KnownFile, Site, write_secret};
use testbed::splitway::{STACK_V4, STACK_V6, Splitway};
use testbed::{Context, Result};

use crate::support::serve_with;

/// The HTTPS server in each family.
pub(crate) const HTTPS: [SocketAddr; 2] = [
    SocketAddr::new(STACK_V4, 443),
    SocketAddr::new(STACK_V6, 443),
];

/// A version of TLS and a cipher, as OpenSSL and GnuTLS call them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Suite {
    pub(crate) is_13: bool,
    pub(crate) openssl: &'static str,
    pub(crate) gnutls: &'static str,
    /// What certificate it needs; in TLS 1.3, any will do.
    pub(crate) key: &'static str,
}

const fn suite13(openssl: &'static str, gnutls: &'static str) -> Suite {
    Suite {
        is_13: true,
        openssl,
        gnutls,
        key: "ec",
    }
}

const fn suite12(openssl: &'static str, gnutls: &'static str, key: &'static str) -> Suite {
    Suite {
        is_13: false,
        openssl,
        gnutls,
        key,
    }
}

/// All that there are.
pub(crate) const SUITES: [Suite; 9] = [
    suite13("TLS_AES_128_GCM_SHA256", "AES-128-GCM"),
    suite13("TLS_AES_256_GCM_SHA384", "AES-256-GCM"),
    suite13("TLS_CHACHA20_POLY1305_SHA256", "CHACHA20-POLY1305"),
    suite12("ECDHE-ECDSA-AES128-GCM-SHA256", "AES-128-GCM", "ec"),
    suite12("ECDHE-ECDSA-AES256-GCM-SHA384", "AES-256-GCM", "ec"),
    suite12("ECDHE-ECDSA-CHACHA20-POLY1305", "CHACHA20-POLY1305", "ec"),
    suite12("ECDHE-RSA-AES128-GCM-SHA256", "AES-128-GCM", "rsa"),
    suite12("ECDHE-RSA-AES256-GCM-SHA384", "AES-256-GCM", "rsa"),
    suite12("ECDHE-RSA-CHACHA20-POLY1305", "CHACHA20-POLY1305", "rsa"),
];

const DAY: Duration = Duration::from_secs(24 * 3600);

/// A certificate for some names, valid for three days.
#[derive(Debug)]
pub(crate) struct Certificate {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

impl Certificate {
    /// For the stack's addresses and these names. `key` is `ec` or `rsa`; `name` is where it is
    /// put, in `directory`.
    pub(crate) fn new(directory: &Path, name: &str, key: &str, names: &[&str]) -> Self {
        let made = Self {
            certificate: directory.join(format!("{name}.pem")),
            key: directory.join(format!("{name}.key")),
        };
        let addresses = [STACK_V4, STACK_V6].map(|address| address.to_string());
        let names = names.iter().map(|name| (*name).to_owned());
        let mut params =
            CertificateParams::new(addresses.into_iter().chain(names).collect::<Vec<_>>()).unwrap();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        params.not_before = rcgen::date_time_ymd(1970, 1, 1) + now - DAY;
        params.not_after = params.not_before + 3 * DAY;
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        let key = match key {
            "ec" => KeyPair::generate(),
            _ => KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, RsaKeySize::_2048),
        };
        let key = key.unwrap();
        fs::write(&made.certificate, params.self_signed(&key).unwrap().pem()).unwrap();
        write_secret(&made.key, &key.serialize_pem()).unwrap();
        made
    }

    /// One that expired with the year 2019.
    pub(crate) fn expired(directory: &Path, name: &str) -> Self {
        let made = Self::new(directory, name, "ec", &[]);
        let key = KeyPair::from_pem(&fs::read_to_string(&made.key).unwrap()).unwrap();
        let mut params = CertificateParams::new([format!("{name}.example")]).unwrap();
        params.not_before = rcgen::date_time_ymd(2019, 1, 1);
        params.not_after = rcgen::date_time_ymd(2020, 1, 1);
        fs::write(&made.certificate, params.self_signed(&key).unwrap().pem()).unwrap();
        made
    }

    /// The options that have a server use it.
    pub(crate) fn options(&self) -> [String; 4] {
        let path = |path: &Path| path.to_str().unwrap().to_owned();
        [
            "--tls-cert".to_owned(),
            path(&self.certificate),
            "--tls-key".to_owned(),
            path(&self.key),
        ]
    }

    /// What a client trusts that trusts it alone.
    pub(crate) fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(self.der()).unwrap();
        roots
    }

    pub(crate) fn der(&self) -> CertificateDer<'static> {
        CertificateDer::from_pem_file(&self.certificate).unwrap()
    }
}

/// `splitway serve --tls-listen 443` with certificates and further arguments.
pub(crate) fn serve_tls(
    site: &Site,
    certificates: &[&Certificate],
    arguments: &[&str],
) -> Splitway {
    let options: Vec<String> = certificates
        .iter()
        .flat_map(|certificate| certificate.options())
        .collect();
    let mut all = vec!["--tls-listen", "443", "--report-json"];
    all.extend(options.iter().map(String::as_str));
    all.extend(arguments);
    serve_with(site, &all)
}

/// The same with one certificate for `localhost`, and a client that trusts it.
pub(crate) fn serve_and_trust(site: &Site, arguments: &[&str]) -> (Splitway, Client) {
    let certificate = Certificate::new(site.outside(), "server", "ec", &["localhost"]);
    let splitway = serve_tls(site, &[&certificate], arguments);
    (splitway, Client::new(&[&certificate], Choice::Any))
}

/// What a client can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    Any,
    Tls12,
    Tls13,
    /// Nothing but this version, and AES-128-GCM.
    Aes128 {
        is_13: bool,
    },
}

impl Choice {
    fn versions(self) -> Vec<&'static rustls::SupportedProtocolVersion> {
        match self {
            Self::Any => vec![&TLS13, &TLS12],
            Self::Tls12 | Self::Aes128 { is_13: false } => vec![&TLS12],
            Self::Tls13 | Self::Aes128 { is_13: true } => vec![&TLS13],
        }
    }
}

/// A connection of rustls.
pub(crate) type Https = Connection<StreamOwned<ClientConnection, TcpStream>>;

/// Clients of one kind, who know sessions of each other.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    pub(crate) config: Arc<ClientConfig>,
}

impl Client {
    /// Trusts these certificates.
    pub(crate) fn new(trusted: &[&Certificate], choice: Choice) -> Self {
        let mut provider = aws_lc_rs::default_provider();
        if let Choice::Aes128 { .. } = choice {
            let is_it = |suite: &rustls::SupportedCipherSuite| {
                format!("{:?}", suite.suite()).contains("AES_128_GCM")
            };
            provider.cipher_suites.retain(is_it);
        }
        let mut roots = RootCertStore::empty();
        for certificate in trusted {
            roots.add(certificate.der()).unwrap();
        }
        let mut config = ClientConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(&choice.versions())
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.enable_secret_extraction = true;
        let config = Arc::new(config);
        Self { config }
    }

    /// Connects, and does the handshake.
    pub(crate) fn open(&self, server: SocketAddr) -> Result<Https> {
        self.open_named(server, "localhost")
    }

    pub(crate) fn open_named(&self, server: SocketAddr, name: &str) -> Result<Https> {
        let (mut tls, mut stream) = self.connect(server, name)?;
        while tls.is_handshaking() {
            tls.complete_io(&mut stream)
                .context(|| format!("handshake with {server}"))?;
        }
        Ok(Connection::over(StreamOwned::new(tls, stream)))
    }

    /// Connects, and says nothing yet.
    pub(crate) fn connect(
        &self,
        server: SocketAddr,
        name: &str,
    ) -> Result<(ClientConnection, TcpStream)> {
        let stream = TcpStream::connect_timeout(&server, PATIENCE)
            .context(|| format!("connecting to {server}"))?;
        be_patient(&stream)?;
        let name = ServerName::try_from(name.to_owned()).context(|| name.to_owned())?;
        let tls = ClientConnection::new(Arc::clone(&self.config), name)
            .context(|| "a client".to_owned())?;
        Ok((tls, stream))
    }

    /// Downloads a file on a connection of its own, and sees the end that TLS wants.
    pub(crate) fn download(&self, server: SocketAddr, file: &KnownFile) -> Result<()> {
        let mut connection = self.open(server)?;
        connection.get(file)?;
        finish(connection)
    }
}

/// Says close_notify, and hears it.
pub(crate) fn finish(mut connection: Https) -> Result<()> {
    let tls = connection.stream_mut();
    tls.conn.send_close_notify();
    tls.flush().context(|| "sending close_notify".to_owned())?;
    connection.read_end()
}

/// A tool that passes its standard input on to a server, and what that answers to its standard
/// output.
#[derive(Debug)]
pub(crate) struct Tool {
    /// Ends with this value.
    _process: Process,
    input: ChildStdin,
    output: ChildStdout,
}

impl Tool {
    pub(crate) fn start(command: &mut Command) -> Connection<Tool> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Process::spawn(command).unwrap();
        let input = process.child().stdin.take().unwrap();
        let output = process.child().stdout.take().unwrap();
        Connection::over(Tool {
            _process: process,
            input,
            output,
        })
    }

    /// Bytes that it has been given and not read yet.
    pub(crate) fn unread(&self) -> u64 {
        rustix::io::ioctl_fionread(&self.input).unwrap()
    }
}

impl Read for Tool {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.output.read(buffer)
    }
}

impl Write for Tool {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.input.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.input.flush()
    }
}

/// `openssl s_client` that trusts a certificate, with further options; it prints nothing of its
/// own.
pub(crate) fn openssl(server: SocketAddr, trusted: &Certificate, options: &str) -> Command {
    let mut command = tool(&format!(
        "openssl s_client -connect {server} -servername localhost -verify_return_error {options}"
    ));
    command.arg("-CAfile").arg(&trusted.certificate);
    command
}

/// `gnutls-cli` that trusts a certificate, with a priority string and further options.
pub(crate) fn gnutls(
    server: SocketAddr,
    trusted: &Certificate,
    priority: &str,
    options: &str,
) -> Command {
    let mut command = tool(&format!(
        "gnutls-cli --port {} --verify-hostname localhost --sni-hostname localhost --logfile \
         /dev/null {options}",
        server.port()
    ));
    command.arg("--x509cafile").arg(&trusted.certificate);
    command.arg("--priority").arg(priority);
    command.arg(server.ip().to_string());
    command
}

/// Downloads a file with curl, and compares every byte.
pub(crate) fn curl(
    site: &Site,
    trusted: &Path,
    server: SocketAddr,
    file: &KnownFile,
    options: &str,
) {
    let downloaded = site.outside().join("downloaded");
    let mut command = tool(&format!(
        "curl -q --silent --show-error --fail --max-time 60 {options}"
    ));
    command.arg("--cacert").arg(trusted);
    command.arg("--output").arg(&downloaded);
    run(command.arg(format!("https://{server}/{}", file.name()))).unwrap();
    let bytes = fs::read(&downloaded).unwrap();
    assert_eq!(bytes.len() as u64, file.size(), "{options}");
    assert_eq!(file.check(0, &bytes), Ok(()), "{options}");
}
