//! An origin: its address, and requests to it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, Uri};
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::circuit::Circuit;
use crate::early_hints::Hints;
use crate::failure::Failure;
use crate::fields::FieldLimits;
use crate::pinned::PinnedVerifier;
use crate::resolver::Resolver;

/// Most attempts at a request, including the first, while no response has begun.
const ATTEMPTS_MAX: u32 = 3;

/// Wait before the second attempt; doubles with each.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// Most concurrent responses of an origin; further requests wait. Each has up to one segment in
/// memory.
const SLOTS: usize = 128;

/// Idle connections kept per origin.
const IDLE_CONNECTIONS_MAX: usize = 16;

/// Most header fields in a response head, including dropped ones. A head has at most 400 KiB.
const HEAD_FIELDS_MAX: usize = FieldLimits::COUNT_MAX + 64;

/// The address of an origin: `http://origin.example:8080/base`. Request targets are appended.
///
/// The URL is normalized, since it keys the cache: the host in lower case, without a default port,
/// and without a slash at the end.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OriginUrl {
    text: Arc<str>,
    port: u16,
}

/// A text that is no origin URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginUrlError {
    text: String,
    why: &'static str,
}

impl OriginUrl {
    /// Longest URL, in bytes.
    pub const BYTES_MAX: usize = 2048;

    /// The TCP port of the origin.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Whether connections use TLS.
    pub fn is_secure(&self) -> bool {
        self.text.starts_with("https:")
    }

    /// The normalized URL.
    pub fn text(&self) -> &Arc<str> {
        &self.text
    }

    /// Rewrites a `Location` of the origin for clients. A URL below the origin's base becomes its
    /// path there, which is the clients' target; otherwise the client would bypass the cache and
    /// connect to the origin, at an address that may be unreachable. Other URLs stay.
    pub(crate) fn for_clients(&self, location: &str) -> String {
        let base_path = self.text.splitn(4, '/').nth(3).unwrap_or_default();
        let below = match location.strip_prefix('/') {
            Some(path) if !path.starts_with('/') && !base_path.is_empty() => {
                path.strip_prefix(base_path)
            }
            Some(_) => None,
            None => self.below(location),
        };
        let below = below.filter(|rest| rest.is_empty() || rest.starts_with(['/', '?', '#']));
        match below {
            // Browsers take either for another host.
            Some(rest) if rest.starts_with("//") || rest.starts_with("/\\") => location.to_owned(),
            Some(rest) if rest.starts_with('/') => rest.to_owned(),
            Some(rest) => format!("/{rest}"),
            None => location.to_owned(),
        }
    }

    /// The rest of an absolute URL after the origin's base; `None` if it is elsewhere.
    fn below<'a>(&self, location: &'a str) -> Option<&'a str> {
        let (scheme, rest) = location.split_once("://")?;
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, rest) = rest.split_at(end);
        // Normalized as `self` is.
        let base: OriginUrl = format!("{scheme}://{authority}").parse().ok()?;
        let base_path = self.text.strip_prefix(&**base.text())?;
        if !base_path.is_empty() && !base_path.starts_with('/') {
            return None;
        }
        rest.strip_prefix(base_path)
    }

    /// The URL of a target at the origin.
    fn of(&self, target: &str) -> Result<Uri, Failure> {
        let text = format!("{}{target}", self.text);
        text.parse()
            .map_err(|error| Failure::Broken(format!("{text} is no URL: {error}")))
    }
}

impl FromStr for OriginUrl {
    type Err = OriginUrlError;

    fn from_str(text: &str) -> Result<Self, OriginUrlError> {
        let failed = |why| OriginUrlError {
            text: text.to_owned(),
            why,
        };
        if text.len() > OriginUrl::BYTES_MAX {
            return Err(failed("it is too long"));
        }
        let uri: Uri = text.parse().map_err(|_| failed("it is no URL"))?;
        let (scheme, default) = match uri.scheme_str() {
            Some("http") => ("http", 80),
            Some("https") => ("https", 443),
            _ => return Err(failed("it begins with neither http:// nor https://")),
        };
        let authority = uri.authority().ok_or_else(|| failed("it names no host"))?;
        let host = uri.host().filter(|host| !host.is_empty());
        let host = host.ok_or_else(|| failed("it names no host"))?;
        if authority.as_str().contains('@') {
            return Err(failed("it has a user name, and origins are asked without"));
        }
        if text.contains(['"', '\\']) {
            return Err(failed("it has a byte that no URL may have"));
        }
        if text.contains(['?', '#']) {
            return Err(failed(
                "a query or fragment cannot stand before the path that is asked for",
            ));
        }
        let has_port = !authority.as_str().ends_with(']') && authority.as_str().len() > host.len();
        let port = match uri.port_u16() {
            Some(port) if port > 0 => port,
            None if !has_port => default,
            _ => return Err(failed("its port is none")),
        };
        let mut text = format!("{scheme}://{}", host.to_ascii_lowercase());
        if port != default {
            text.push_str(&format!(":{port}"));
        }
        text.push_str(uri.path().trim_end_matches('/'));
        Ok(OriginUrl {
            text: text.into(),
            port,
        })
    }
}

impl fmt::Display for OriginUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Display for OriginUrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} is no origin: {}; write one such as http://origin.example:8080",
            self.text, self.why
        )
    }
}

impl std::error::Error for OriginUrlError {}

/// Time limits for an origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Until TCP and TLS are connected. Default: 5 s.
    pub connect: Duration,
    /// From then on until the response head. Default: 30 s.
    pub head: Duration,
    /// Between two frames of the body. Default: 20 s.
    pub idle: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Timeouts {
            connect: Duration::from_secs(5),
            head: Duration::from_secs(30),
            idle: Duration::from_secs(20),
        }
    }
}

/// Trusted certificates. Read before the process is confined.
#[derive(Clone, Debug)]
pub struct Trust {
    roots: RootCertStore,
    /// Also trusted as the certificate of an origin.
    pinned: Vec<CertificateDer<'static>>,
}

/// Why no trusted authority was loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustError {
    file: Option<PathBuf>,
    why: String,
}

impl Trust {
    /// Loads the authorities that this machine trusts.
    pub fn of_machine() -> Result<Trust, TrustError> {
        let found = rustls_native_certs::load_native_certs();
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(found.certs);
        let why = found.errors.first();
        let why = why.map_or_else(|| "there is none".to_owned(), ToString::to_string);
        if roots.is_empty() {
            Err(TrustError { file: None, why })
        } else {
            let pinned = Vec::new();
            Ok(Trust { roots, pinned })
        }
    }

    /// Loads the certificates of a PEM file, and no others. Each is trusted both as an authority
    /// and as an origin's own certificate.
    pub fn of_file(path: &Path) -> Result<Trust, TrustError> {
        let failed = |why: String| TrustError {
            file: Some(path.to_owned()),
            why,
        };
        let (mut roots, mut pinned) = (RootCertStore::empty(), Vec::new());
        let certificates = CertificateDer::pem_file_iter(path);
        for certificate in certificates.map_err(|error| failed(error.to_string()))? {
            let certificate = certificate.map_err(|error| failed(error.to_string()))?;
            pinned.push(certificate.clone());
            roots
                .add(certificate)
                .map_err(|error| failed(error.to_string()))?;
        }
        if roots.is_empty() {
            Err(failed("there is no certificate in it".to_owned()))
        } else {
            Ok(Trust { roots, pinned })
        }
    }

    /// Trusts no certificate: for origins without TLS.
    pub fn none() -> Trust {
        Trust {
            roots: RootCertStore::empty(),
            pinned: Vec::new(),
        }
    }
}

impl fmt::Display for TrustError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.file {
            Some(file) => write!(f, "certificates in {}: {}", file.display(), self.why),
            None => write!(
                f,
                "certificates of the authorities that this machine believes: {}",
                self.why
            ),
        }
    }
}

impl std::error::Error for TrustError {}

/// An origin with its client, circuit breaker and limits.
#[derive(Debug)]
pub(crate) struct Upstream {
    pub(crate) url: OriginUrl,
    client: Client<HttpsConnector<HttpConnector<Resolver>>, Empty<Bytes>>,
    pub(crate) timeouts: Timeouts,
    circuit: Mutex<Circuit>,
    slots: Arc<Semaphore>,
}

impl Upstream {
    /// The origin's URL.
    pub(crate) fn url(&self) -> &OriginUrl {
        &self.url
    }

    pub(crate) fn new(url: OriginUrl, trust: &Trust, timeouts: Timeouts) -> Arc<Upstream> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let tls = rustls::ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .expect("the provider has suites for both versions");
        let roots = Arc::new(trust.roots.clone());
        let chains = WebPkiServerVerifier::builder_with_provider(roots, provider).build();
        let tls = match chains {
            Ok(chains) => {
                tls.dangerous()
                    .with_custom_certificate_verifier(Arc::new(PinnedVerifier {
                        chains,
                        pinned: trust.pinned.clone(),
                    }))
            }
            // Without authorities, no origin is trusted.
            Err(_) => tls.with_root_certificates(trust.roots.clone()),
        };
        let tls = tls.with_no_client_auth();
        let mut http = HttpConnector::new_with_resolver(Resolver::new(timeouts.connect));
        http.enforce_http(false);
        http.set_nodelay(true);
        http.set_connect_timeout(Some(timeouts.connect));
        let connector = hyper_rustls::HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_or_http()
            .enable_http1()
            .wrap_connector(http);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(Duration::from_secs(30))
            .pool_max_idle_per_host(IDLE_CONNECTIONS_MAX)
            .http1_max_headers(HEAD_FIELDS_MAX)
            .build(connector);
        Arc::new(Upstream {
            url,
            client,
            timeouts,
            circuit: Mutex::new(Circuit::default()),
            slots: Arc::new(Semaphore::new(SLOTS)),
        })
    }

    /// Waits for a response slot, at most as long as for a response head.
    pub(crate) async fn slot(&self) -> Result<OwnedSemaphorePermit, Failure> {
        let patience = self.timeouts.connect + self.timeouts.head;
        match timeout(patience, Arc::clone(&self.slots).acquire_owned()).await {
            Ok(Ok(slot)) => Ok(slot),
            // The semaphore is never closed: this is the timeout.
            _ => Err(Failure::Late(format!(
                "{SLOTS} answers of this origin are under way, and none has ended within \
                 {patience:?}"
            ))),
        }
    }

    fn circuit(&self) -> MutexGuard<'_, Circuit> {
        self.circuit.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests a target, with retries, and returns the first response that is no failure. Early
    /// hints before it go to `hints`.
    pub(crate) async fn get(
        &self,
        target: &str,
        fields: &HeaderMap,
        hints: Option<&Hints>,
    ) -> Result<Response<Incoming>, Failure> {
        let uri = self.url.of(target)?;
        let mut wait = RETRY_AFTER;
        for attempt in 1.. {
            if !self.circuit().may_ask(Instant::now()) {
                return Err(Failure::LeftAlone);
            }
            let answer = self.get_once(&uri, fields, hints).await;
            match answer {
                Ok(answer) => {
                    self.note_answer();
                    return Ok(answer);
                }
                Err(failure) => {
                    self.note(&failure);
                    // The client has waited for the whole timeout already.
                    let is_final = matches!(failure, Failure::Late(_) | Failure::TooManyFields(_));
                    if attempt >= ATTEMPTS_MAX || is_final {
                        return Err(failure);
                    }
                    tracing::debug!(origin = %self.url, target, "retried: {failure}");
                }
            }
            tokio::time::sleep(wait).await;
            wait *= 2;
        }
        Err(Failure::LeftAlone)
    }

    fn note_answer(&self) {
        if self.circuit().on_answer() {
            tracing::warn!(origin = %self.url, "the origin answers again");
        }
    }

    fn note(&self, failure: &Failure) {
        if failure.is_of_target() {
            self.note_answer();
        } else if self.circuit().on_failure(Instant::now()) {
            tracing::error!(
                origin = %self.url,
                "the origin has failed too often, and is left alone for a while: {failure}"
            );
        }
    }

    async fn get_once(
        &self,
        uri: &Uri,
        fields: &HeaderMap,
        hints: Option<&Hints>,
    ) -> Result<Response<Incoming>, Failure> {
        let mut request = Request::new(Empty::new());
        *request.uri_mut() = uri.clone();
        *request.headers_mut() = fields.clone();
        if let Some(hints) = hints {
            hints.of(&mut request);
        }
        let patience = self.timeouts.connect + self.timeouts.head;
        let answer = match timeout(patience, self.client.request(request)).await {
            Err(_) => {
                return Err(Failure::Late(format!("no answer within {patience:?}")));
            }
            Ok(Err(error)) if error.is_connect() && is_timeout(&error) => {
                let connect = self.timeouts.connect;
                return Err(Failure::Late(format!("no connection within {connect:?}")));
            }
            Ok(Err(error)) if is_too_large(&error) => {
                let why = "its head has more fields than can be read".to_owned();
                return Err(Failure::TooManyFields(why));
            }
            Ok(Err(error)) => return Err(Failure::broken(&error)),
            Ok(Ok(answer)) => answer,
        };
        match answer.status().as_u16() {
            // Another attempt may help.
            status @ (502..=504) => Err(Failure::Status(status)),
            _ => Ok(answer),
        }
    }
}

fn is_too_large(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        let hyper = error.downcast_ref::<hyper::Error>();
        // hyper has a public method only for servers.
        if hyper.is_some_and(|it| it.is_parse() && it.to_string().contains("too large")) {
            return true;
        }
        next = error.source();
    }
    false
}

fn is_timeout(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        let io = error.downcast_ref::<std::io::Error>();
        if io.is_some_and(|io| io.kind() == std::io::ErrorKind::TimedOut) {
            return true;
        }
        next = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_location_below_the_base_is_a_path_for_clients() {
        for (origin, location, told) in [
            (
                "http://127.0.0.1:8080/base",
                "http://127.0.0.1:8080/base/sub/",
                "/sub/",
            ),
            ("http://127.0.0.1:8080/base", "/base/sub/?a=b", "/sub/?a=b"),
            (
                "http://127.0.0.1:8080/base",
                "http://127.0.0.1:8080/base",
                "/",
            ),
            (
                "http://127.0.0.1:8080/base",
                "HTTP://127.0.0.1:8080/base?x",
                "/?x",
            ),
            ("http://a.example", "http://A.example:80/sub/", "/sub/"),
            ("https://a.example/", "https://a.example:443/x", "/x"),
            ("http://a.example", "/sub/", "/sub/"),
            ("http://[fd00::1]:8080", "http://[FD00::1]:8080/x", "/x"),
        ] {
            let origin: OriginUrl = origin.parse().unwrap();
            assert_eq!(origin.for_clients(location), told, "{origin:?} {location}");
        }
        let origin: OriginUrl = "http://a.example:8080/base".parse().unwrap();
        for elsewhere in [
            "http://a.example:8080/other/",
            "http://a.example:8080/baseless",
            "http://a.example:80801/base/x",
            "http://a.example/base/x",
            "https://a.example:8080/base/x",
            "http://b.example:8080/base/x",
            "http://u@a.example:8080/base/x",
            "http://a.example:8080/base//b.example/",
            "http://a.example:8080/base/\\b.example/",
            "/base/\\b.example/",
            "/base//b.example/",
            "/other",
            "//b.example/base/x",
            "relative/base",
            "",
        ] {
            assert_eq!(origin.for_clients(elsewhere), elsewhere);
        }
    }

    #[test]
    fn origins_are_urls_without_a_query() {
        for (text, port) in [
            ("http://a.example", 80),
            ("https://a.example/", 443),
            ("http://10.0.0.1:8080/base/", 8080),
            ("https://[fd00::1]:444", 444),
            ("http://[fd00::1]", 80),
        ] {
            let url: OriginUrl = text.parse().unwrap();
            assert_eq!(url.port(), port, "{text}");
            let target = url.of("/x/y.mp4?a=b").unwrap().to_string();
            assert_eq!(
                target,
                format!("{}/x/y.mp4?a=b", text.trim_end_matches('/'))
            );
        }
        for (text, same) in [
            ("HTTP://A.Example:80/", "http://a.example"),
            ("https://a.example:443/Base//", "https://a.example/Base"),
            ("http://[FD00::1]:443", "http://[fd00::1]:443"),
        ] {
            let url: OriginUrl = text.parse().unwrap();
            assert_eq!(&**url.text(), same);
            assert_eq!(same.parse(), Ok(url));
        }
        for text in [
            "",
            "a.example",
            "ftp://a.example",
            "http://",
            "http://a.example?x",
            "http://a.example/#x",
            "http://u:p@a.example",
            "http://a.example:0",
            "http://a.example:99999",
            "/path",
        ] {
            let error = text.parse::<OriginUrl>().unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?}")), "{error}");
        }
    }
}
