//! Identity of a connection (RFC 9110 §7.4).

use std::fmt;
use std::sync::Arc;

use rustls::pki_types::{CertificateDer, ServerName};
use webpki::EndEntityCert;

/// The hosts that a connection is for: the server name that its client asked for, and the names of
/// its certificate.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Identity {
    server_name: Option<Box<str>>,
    /// The server's own certificate.
    certificate: Option<Arc<CertificateDer<'static>>>,
}

impl Identity {
    pub(crate) fn new(
        server_name: Option<&str>,
        certificate: Option<Arc<CertificateDer<'static>>>,
    ) -> Self {
        Self {
            server_name: server_name.map(Into::into),
            certificate,
        }
    }

    /// The server name (RFC 6066 §3), if the client asked for one.
    pub fn server_name(&self) -> Option<&str> {
        self.server_name.as_deref()
    }

    /// True if a client may use the connection for a host without a port (RFC 9110 §4.3.3): it has
    /// asked for that name, or the certificate is valid for it. A client that has asked for none
    /// has connected to an address, and may mean any.
    pub fn is_for(&self, host: &str) -> bool {
        let Some(own) = &self.server_name else {
            return true;
        };
        let host = host.strip_suffix('.').unwrap_or(host);
        own.eq_ignore_ascii_case(host) || self.is_certified(host)
    }

    fn is_certified(&self, host: &str) -> bool {
        let address = host.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
        let Ok(name) = ServerName::try_from(address.unwrap_or(host)) else {
            return false;
        };
        let certificate = self.certificate.as_deref();
        let parsed = certificate.and_then(|it| EndEntityCert::try_from(it).ok());
        parsed.is_some_and(|it| it.verify_is_valid_for_subject_name(&name).is_ok())
    }
}

/// Without the certificate.
impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("server_name", &self.server_name)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(server_name: Option<&str>) -> Identity {
        let names = ["a.org", "*.b.org", "192.0.2.7", "2001:db8::7"].map(str::to_owned);
        let made = rcgen::generate_simple_self_signed(names).unwrap();
        Identity::new(server_name, Some(Arc::new(made.cert.der().clone())))
    }

    /// Covers: RFC 9110 §7.4, RFC 9113 §9.1.1
    #[test]
    fn a_connection_is_for_its_server_name_and_the_names_of_its_certificate() {
        let own = identity(Some("own.example"));
        for (host, is_for) in [
            ("own.example", true),
            ("OWN.example.", true),
            ("x.own.example", false),
            ("a.org", true),
            ("A.ORG.", true),
            ("x.a.org", false),
            ("x.b.org", true),
            ("x.y.b.org", false),
            ("b.org", false),
            ("192.0.2.7", true),
            ("192.0.2.8", false),
            ("[2001:db8::7]", true),
            ("[2001:db8::8]", false),
            ("", false),
            ("_.!", false),
        ] {
            assert_eq!(own.is_for(host), is_for, "{host}");
        }
    }

    #[test]
    fn a_connection_without_a_server_name_is_for_any_host() {
        let none = identity(None);
        assert!(none.is_for("192.0.2.8") && none.is_for("elsewhere.example"));
        assert_eq!(none.server_name(), None);
    }
}
