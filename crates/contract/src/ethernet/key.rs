//! The key that both machines share.

use std::fmt;

use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Prk, Salt};

/// Bytes of the key.
pub const KEY_BYTES: usize = 32;

/// The key that both machines share: any machine that has it may command the NIC stack. Only keys
/// that are derived from it are ever used on the link.
#[derive(Clone, PartialEq, Eq)]
pub struct PreSharedKey([u8; KEY_BYTES]);

/// Why a text is no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyError {
    /// Not as many digits as a key has.
    Length {
        /// How many there are.
        digits: usize,
    },
    /// A character that is no hexadecimal digit.
    NotHexadecimal,
    /// All digits are the same: no generator drew this at random.
    NotRandom,
}

impl PreSharedKey {
    /// Creates a key from these bytes, which must be random.
    pub const fn new(bytes: [u8; KEY_BYTES]) -> PreSharedKey {
        PreSharedKey(bytes)
    }

    /// Reads 64 hexadecimal digits; white space around them is ignored.
    pub fn from_hex(text: &str) -> Result<PreSharedKey, KeyError> {
        let digits = text.trim().as_bytes();
        if digits.iter().any(|digit| !digit.is_ascii_hexdigit()) {
            return Err(KeyError::NotHexadecimal);
        }
        if digits.len() != 2 * KEY_BYTES {
            return Err(KeyError::Length {
                digits: digits.len(),
            });
        }
        if digits.iter().all(|digit| digit == &digits[0]) {
            return Err(KeyError::NotRandom);
        }
        let mut bytes = [0; KEY_BYTES];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
            *byte = pair.iter().fold(0, |byte, digit| {
                byte << 4 | (*digit as char).to_digit(16).unwrap_or(0) as u8
            });
        }
        Ok(PreSharedKey(bytes))
    }

    /// The bytes of the key.
    pub const fn bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }

    /// The key as [`PreSharedKey::from_hex`] reads it.
    pub fn to_hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Derives the key of another protocol than the one between a host and a NIC stack. Sessions of
    /// one never begin with the key of the other, though both come from one file.
    pub fn for_protocol(&self, label: &str) -> PreSharedKey {
        let secret = Salt::new(HKDF_SHA256, b"splitway protocol").extract(&self.0);
        PreSharedKey(expand(&secret, label.as_bytes(), &[]))
    }

    /// The key that authenticates HELLOs.
    pub(super) fn hello_key(&self) -> [u8; KEY_BYTES] {
        let secret = Salt::new(HKDF_SHA256, b"splitway ethernet").extract(&self.0);
        expand(&secret, b"hello", &[])
    }

    /// Returns the secret from which the keys of one session are expanded: extracted from the fresh
    /// secret of two ephemeral keys, so that a later thief of this key cannot read recorded
    /// sessions, and from this key, so that only its holders take part (HKDF, RFC 5869).
    pub(super) fn session_secret(&self, agreed: &[u8]) -> Prk {
        Salt::new(HKDF_SHA256, &self.0).extract(agreed)
    }
}

/// Expands a key for one purpose, bound to the transcript of the handshake.
pub(super) fn expand(secret: &Prk, purpose: &[u8], transcript: &[u8]) -> [u8; KEY_BYTES] {
    struct Length;
    impl KeyType for Length {
        fn len(&self) -> usize {
            KEY_BYTES
        }
    }
    let mut key = [0; KEY_BYTES];
    secret
        .expand(&[purpose, transcript], Length)
        .and_then(|expanded| expanded.fill(&mut key))
        .expect("HKDF-SHA256 gives up to 255 times 32 bytes");
    key
}

impl fmt::Debug for PreSharedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PreSharedKey(…)")
    }
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyError::Length { digits } => write!(
                f,
                "a key has {} hexadecimal digits, and there are {digits}",
                2 * KEY_BYTES
            ),
            KeyError::NotHexadecimal => {
                f.write_str("a key consists of hexadecimal digits and nothing else")
            }
            KeyError::NotRandom => f.write_str("a key is random, and this one is not"),
        }
    }
}

impl std::error::Error for KeyError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocols_have_keys_of_their_own() {
        let key = PreSharedKey::new([0xab; 32]);
        let [one, other] = ["one", "other"].map(|label| key.for_protocol(label));
        assert_eq!(one, key.for_protocol("one"));
        assert!(one != other && one != key && other != key);
        let next = PreSharedKey::new([0xac; 32]);
        assert_ne!(one, next.for_protocol("one"));
    }

    #[test]
    fn a_key_reads_as_it_was_written() {
        let key = PreSharedKey::new(std::array::from_fn(|i| i as u8 * 7));
        assert_eq!(PreSharedKey::from_hex(&key.to_hex()), Ok(key.clone()));
        let text = format!("  {}\n", key.to_hex().to_uppercase());
        assert_eq!(PreSharedKey::from_hex(&text), Ok(key));
    }

    #[test]
    fn what_is_no_key_is_refused() {
        let digits = |digits: usize| {
            "0123456789abcdef"
                .chars()
                .cycle()
                .take(digits)
                .collect::<String>()
        };
        for len in [0, 63, 65, 128] {
            assert_eq!(
                PreSharedKey::from_hex(&digits(len)),
                Err(KeyError::Length { digits: len })
            );
        }
        assert_eq!(
            PreSharedKey::from_hex(&digits(64).replace('f', "g")),
            Err(KeyError::NotHexadecimal)
        );
        assert_eq!(
            PreSharedKey::from_hex(&"0".repeat(64)),
            Err(KeyError::NotRandom)
        );
    }

    #[test]
    fn a_key_is_not_printed() {
        let key = PreSharedKey::new([0xab; 32]);
        assert!(!format!("{key:?}").contains("ab"), "{key:?}");
    }
}
