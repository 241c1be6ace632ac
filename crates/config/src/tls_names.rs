//! Values of `[tls]`: versions and ciphers by name.

use std::fmt;
use std::str::FromStr;

use tls::{Cipher, Version};

/// Least and most records of a key. Replacing a key after fewer records gains nothing; AES-GCM
/// allows no more (RFC 8446 §5.5).
pub const KEY_RECORDS: (u64, u64) = (16, 1 << 24);

/// A version of TLS by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionName(pub Version);

/// A cipher by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CipherName(pub Cipher);

const VERSIONS: [(Version, &str); 2] = [(Version::Tls12, "1.2"), (Version::Tls13, "1.3")];

const CIPHERS: [(Cipher, &str); 3] = [
    (Cipher::Aes256Gcm, "aes-256-gcm"),
    (Cipher::Aes128Gcm, "aes-128-gcm"),
    (Cipher::ChaCha20Poly1305, "chacha20-poly1305"),
];

impl VersionName {
    /// All names.
    pub fn names() -> impl Iterator<Item = &'static str> {
        VERSIONS.iter().map(|(_, name)| *name)
    }
}

impl CipherName {
    /// All names.
    pub fn names() -> impl Iterator<Item = &'static str> {
        CIPHERS.iter().map(|(_, name)| *name)
    }
}

impl FromStr for VersionName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let version = find(&VERSIONS, text);
        version
            .map(Self)
            .ok_or_else(|| "it is 1.2 or 1.3; others are not secure".to_owned())
    }
}

impl FromStr for CipherName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let cipher = find(&CIPHERS, &text.to_ascii_lowercase());
        cipher.map(Self).ok_or_else(|| {
            let names = CIPHERS.map(|(_, name)| name);
            format!("it is one of {}", names.join(", "))
        })
    }
}

impl fmt::Display for VersionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(name(&VERSIONS, &self.0))
    }
}

impl fmt::Display for CipherName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(name(&CIPHERS, &self.0))
    }
}

fn find<T: Copy>(names: &[(T, &str)], text: &str) -> Option<T> {
    let found = names.iter().find(|(_, name)| *name == text);
    found.map(|(value, _)| *value)
}

fn name<T: PartialEq>(names: &[(T, &'static str)], value: &T) -> &'static str {
    let found = names.iter().find(|(other, _)| other == value);
    found.map_or("", |(_, name)| name)
}
