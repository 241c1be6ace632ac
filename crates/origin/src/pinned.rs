//! Origins whose own certificate is trusted directly.
//!
//! The certificate that `openssl req -x509` makes is a CA certificate. A CA certificate is not
//! accepted as a server's (RFC 5280 §4.2.1.9), so without this the operator's own certificate would
//! be refused.

use std::fmt;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, SignatureScheme};

/// Verifies chains as usual, and accepts the pinned certificates themselves.
#[derive(Debug)]
pub(crate) struct PinnedVerifier {
    pub(crate) chains: Arc<WebPkiServerVerifier>,
    pub(crate) pinned: Vec<CertificateDer<'static>>,
}

impl ServerCertVerifier for PinnedVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let chains = &self.chains;
        let verdict =
            chains.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match verdict {
            Err(Error::InvalidCertificate(CertificateError::Other(why)))
                if is_of_authority(&why) && self.pinned.iter().any(|it| it == end_entity) =>
            {
                // rustls checked the validity before the purpose, but not the name.
                let certificate = ParsedCertificate::try_from(end_entity)?;
                verify_server_name(&certificate, server_name)?;
                Ok(ServerCertVerified::assertion())
            }
            verdict => verdict,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chains.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chains.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chains.supported_verify_schemes()
    }
}

/// Whether a certificate was refused for being a CA's.
fn is_of_authority(why: &impl fmt::Debug) -> bool {
    // The type of the reason is not public.
    format!("{why:?}").contains("CaUsedAsEndEntity")
}
