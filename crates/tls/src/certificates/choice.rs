//! The certificate of one handshake.

use std::sync::{Arc, Mutex, MutexGuard};

use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::Certificates;
use crate::identity::Identity;

/// Chooses a certificate, and notes the choice.
#[derive(Debug)]
pub(crate) struct Choice {
    certificates: Arc<Certificates>,
    identity: Mutex<Identity>,
}

impl Choice {
    pub(crate) fn new(certificates: Arc<Certificates>) -> Self {
        Self {
            certificates,
            identity: Mutex::default(),
        }
    }

    /// The identity that the last ClientHello has got.
    pub(crate) fn identity(&self) -> Identity {
        self.noted().clone()
    }

    fn noted(&self) -> MutexGuard<'_, Identity> {
        // Nothing that holds the lock can panic.
        self.identity
            .lock()
            .unwrap_or_else(|error| error.into_inner())
    }
}

impl ResolvesServerCert for Choice {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let set = self.certificates.set();
        let index = set.resolve(&hello)?;
        *self.noted() = Identity::new(hello.server_name(), set.own.get(index).cloned());
        set.certificates.get(index).cloned()
    }
}
