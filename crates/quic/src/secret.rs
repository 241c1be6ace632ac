//! The secret of an endpoint.

use std::fmt;

use aws_lc_rs::hmac;
use zeroize::Zeroizing;

/// 32 random bytes: keys of tokens, stateless resets and connection IDs derive from them. Dropping
/// a secret erases it, and `Debug` does not print it.
#[derive(Clone)]
pub struct Secret(Zeroizing<[u8; 32]>);

impl Secret {
    /// Makes a secret of these bytes, which must be random.
    pub fn new(secret: [u8; 32]) -> Self {
        Self(Zeroizing::new(secret))
    }

    /// The secret of the endpoint at a UDP port. No endpoint resets connections of another port,
    /// whose packets can be redirected to it (RFC 9000 §21.11), or accepts its tokens.
    pub fn of_port(&self, port: u16) -> Self {
        let [high, low] = port.to_be_bytes();
        self.derive(&[&b"port "[..], &[high, low]].concat())
    }

    /// Derives another secret for each label.
    pub(crate) fn derive(&self, label: &[u8]) -> Self {
        let mut derived = Zeroizing::new([0; 32]);
        derived.copy_from_slice(hmac::sign(&self.key(), label).as_ref());
        Self(derived)
    }

    /// HMAC-SHA256 with the secret as its key.
    pub(crate) fn key(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, &self.0[..])
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_port_has_a_secret_of_its_own_and_none_is_shown() {
        let secret = Secret::new([0xab; 32]);
        let other = Secret::new([0xac; 32]);
        assert_eq!(secret.of_port(443).0, secret.of_port(443).0);
        assert_ne!(secret.of_port(443).0, secret.of_port(444).0);
        assert_ne!(secret.of_port(443).0, other.of_port(443).0);
        assert_eq!(format!("{secret:?}"), "Secret(…)");
    }
}
