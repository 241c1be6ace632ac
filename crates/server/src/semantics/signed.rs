//! Signed URLs: the holder of one may have the file, until it expires.
//!
//! A URL is signed by adding to its query `expires`, the second since the epoch until which it
//! holds; `key`, the name of the key; and `signature`, the last of all: 64 hexadecimal digits of
//! the HMAC-SHA256 (RFC 2104) under that key of everything before `&signature=`, from the path's
//! first slash on, byte for byte as the client sends it. Other parameters may stand before it, and
//! are signed as well.
//!
//! ```text
//! /video/film.mp4?expires=1767225600&key=2025&signature=d1c4…
//! └─────────────────── signed ──────────────┘
//! ```
//!
//! Several keys may be in use: to change keys, add the new one, sign with it, and remove the old
//! one when all URLs signed with it have expired.

use std::fmt;
use std::time::Duration;

use aws_lc_rs::hmac;

/// Bytes of an HMAC-SHA256.
const SIGNATURE_BYTES: usize = 32;

/// Shortest secret, in bytes: RFC 2104 §3 calls less than the hash's length strongly discouraged;
/// half the hash's length is still beyond any search.
const SECRET_BYTES_MIN: usize = 16;

/// The keys that URLs may be signed with.
#[derive(Clone, Default)]
pub struct SigningKeys {
    keys: Vec<(Box<str>, hmac::Key)>,
}

/// A key that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SigningKeyError {
    /// The name is empty, or has characters other than letters, digits, `-`, `_`, `.` and `~`.
    Name(String),
    /// Another key has this name.
    Repeated(String),
    /// The secret is shorter than 16 bytes.
    Short(String),
}

/// Why a URL is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unsigned {
    /// The signature is missing or wrong.
    Wrong,
    /// The URL is signed, but has expired.
    Expired,
}

impl SigningKeys {
    /// Adds a key.
    pub fn add(&mut self, name: &str, secret: &[u8]) -> Result<(), SigningKeyError> {
        let is_unreserved = |c: char| c.is_ascii_alphanumeric() || "-_.~".contains(c);
        if name.is_empty() || !name.chars().all(is_unreserved) {
            return Err(SigningKeyError::Name(name.to_owned()));
        }
        self.check_new(name)?;
        if secret.len() < SECRET_BYTES_MIN {
            return Err(SigningKeyError::Short(name.to_owned()));
        }
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
        self.keys.push((name.into(), key));
        Ok(())
    }

    /// Adds all keys of `others`.
    pub fn extend(&mut self, others: &SigningKeys) -> Result<(), SigningKeyError> {
        for (name, key) in &others.keys {
            self.check_new(name)?;
            self.keys.push((name.clone(), key.clone()));
        }
        Ok(())
    }

    fn check_new(&self, name: &str) -> Result<(), SigningKeyError> {
        if self.keys.iter().any(|(known, _)| **known == *name) {
            Err(SigningKeyError::Repeated(name.to_owned()))
        } else {
            Ok(())
        }
    }

    /// Returns a target in origin-form, signed until this second; `None` without a key of this
    /// name.
    pub fn sign(&self, target: &str, key: &str, expires_s: u64) -> Option<String> {
        let (name, key) = self.keys.iter().find(|(name, _)| **name == *key)?;
        let mark = if target.contains('?') { '&' } else { '?' };
        let mut signed = format!("{target}{mark}expires={expires_s}&key={name}");
        let signature = hmac::sign(key, signed.as_bytes());
        signed.push_str("&signature=");
        for byte in signature.as_ref() {
            signed.push_str(&format!("{byte:02x}"));
        }
        Some(signed)
    }

    /// Checks a target in origin-form at this time since the epoch.
    pub(crate) fn verify(&self, target: &[u8], unix_time: Duration) -> Result<(), Unsigned> {
        const NAME: &[u8] = b"signature=";
        let place = target.len().checked_sub(NAME.len() + 2 * SIGNATURE_BYTES);
        let (signed, last) = place
            .and_then(|place| target.split_at_checked(place))
            .ok_or(Unsigned::Wrong)?;
        let digits = last.strip_prefix(NAME).ok_or(Unsigned::Wrong)?;
        let signature = bytes_of(digits).ok_or(Unsigned::Wrong)?;
        let signed = signed.strip_suffix(b"&").ok_or(Unsigned::Wrong)?;

        let query = signed.iter().position(|&byte| byte == b'?');
        let query = &signed[query.map_or(signed.len(), |at| at + 1)..];
        let name = parameter(query, b"key=").ok_or(Unsigned::Wrong)?;
        let named = |(known, _): &&(Box<str>, hmac::Key)| known.as_bytes() == name;
        let (_, key) = self.keys.iter().find(named).ok_or(Unsigned::Wrong)?;
        // In constant time, which does not reveal how many bytes are right.
        hmac::verify(key, signed, &signature).map_err(|_| Unsigned::Wrong)?;

        // Only signed parameters are trusted.
        let expires = parameter(query, b"expires=").ok_or(Unsigned::Wrong)?;
        let expires_s = std::str::from_utf8(expires)
            .ok()
            .filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))
            .and_then(|text| text.parse().ok())
            .ok_or(Unsigned::Wrong)?;
        if unix_time.as_secs() < expires_s {
            Ok(())
        } else {
            Err(Unsigned::Expired)
        }
    }
}

/// Removes the parameters of the signature from a query: the origin's object is the same for all
/// clients.
pub(crate) fn unsigned(query: &[u8]) -> Option<Vec<u8>> {
    let is_ours = |parameter: &&[u8]| {
        let names: [&[u8]; 3] = [b"expires=", b"key=", b"signature="];
        names.iter().any(|name| parameter.starts_with(name))
    };
    let others = query.split(|&byte| byte == b'&').filter(|it| !is_ours(it));
    let others: Vec<&[u8]> = others.collect();
    (!others.is_empty()).then(|| others.join(&b'&'))
}

/// The value of the only parameter of this name.
fn parameter<'a>(query: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let parameters = query.split(|&byte| byte == b'&');
    let mut values = parameters.filter_map(|parameter| parameter.strip_prefix(name));
    let value = values.next()?;
    values.next().is_none().then_some(value)
}

fn bytes_of(digits: &[u8]) -> Option<[u8; SIGNATURE_BYTES]> {
    let mut bytes = [0; SIGNATURE_BYTES];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
        for &digit in pair {
            let value = char::from(digit).to_digit(16)? as u8;
            *byte = *byte << 4 | value;
        }
    }
    Some(bytes)
}

impl fmt::Debug for SigningKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.keys.iter().map(|(name, _)| name);
        f.debug_list().entries(names).finish()
    }
}

impl fmt::Display for SigningKeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SigningKeyError::Name(name) => write!(
                f,
                "a key for signed URLs cannot be named {name:?}: names consist of letters, digits, \
                 -, _, . and ~"
            ),
            SigningKeyError::Repeated(name) => {
                write!(
                    f,
                    "there are two keys for signed URLs named {name:?}: rename one"
                )
            }
            SigningKeyError::Short(name) => write!(
                f,
                "the key {name:?} for signed URLs has fewer than {SECRET_BYTES_MIN} bytes: \
                 `openssl rand -hex 32` makes a good one"
            ),
        }
    }
}

impl std::error::Error for SigningKeyError {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: Duration = Duration::from_secs(1_000);

    fn keys() -> SigningKeys {
        let mut keys = SigningKeys::default();
        keys.add("old", b"sixteen bytes or").unwrap();
        keys.add("new", b"0123456789abcdef0123456789abcdef")
            .unwrap();
        keys
    }

    fn verified(target: &str) -> Result<(), Unsigned> {
        keys().verify(target.as_bytes(), NOW)
    }

    #[test]
    fn signatures_are_what_openssl_makes() {
        // printf '/a.mp4?expires=2000&key=new' | openssl dgst -sha256 -hmac
        // 0123456789abcdef0123456789abcdef
        let signed = keys().sign("/a.mp4", "new", 2000).unwrap();
        assert_eq!(
            signed,
            "/a.mp4?expires=2000&key=new\
             &signature=14e594800512f08089cf76d2a855c24e6e90d897c40f0259145c86b135b887ef"
        );
    }

    #[test]
    fn what_is_signed_is_good_until_it_expires() {
        for target in ["/", "/a.mp4", "/a%20b?x=1&y", "/a?"] {
            for key in ["old", "new"] {
                let of = |expires_s| keys().sign(target, key, expires_s).unwrap();
                assert_eq!(verified(&of(1_001)), Ok(()), "{target}");
                assert_eq!(verified(&of(u64::MAX)), Ok(()));
                assert_eq!(verified(&of(1_000)), Err(Unsigned::Expired));
            }
        }
        assert_eq!(keys().sign("/", "newer", 0), None);
    }

    #[test]
    fn a_key_that_is_gone_signs_no_more() {
        let signed = keys().sign("/a", "old", 2_000).unwrap();
        let mut only_new = SigningKeys::default();
        only_new
            .add("new", b"0123456789abcdef0123456789abcdef")
            .unwrap();
        assert_eq!(
            only_new.verify(signed.as_bytes(), NOW),
            Err(Unsigned::Wrong)
        );
    }

    #[test]
    fn nothing_of_it_can_be_changed() {
        let signed = keys().sign("/a/b?x=1", "new", 2_000).unwrap();
        assert_eq!(verified(&signed), Ok(()));
        for at in 0..signed.len() {
            let mut changed = signed.clone().into_bytes();
            changed[at] ^= 1;
            assert!(keys().verify(&changed, NOW).is_err(), "at {at}");
        }
        for target in [
            "",
            "/a",
            "/a?signature=",
            "/a/b?x=1&expires=2000&key=new",
            &format!("{signed}&y=1"),
            &signed.replace("2000", "3000"),
            &signed.replace("key=new", "key=old"),
            &signed.replace("/a/b", "/a/c"),
            &signed.replace("&signature", "?signature"),
            &signed.replace("&signature", "&key=new&signature"),
        ] {
            assert_eq!(verified(target), Err(Unsigned::Wrong), "{target}");
        }
        // Signed, but with a repeated or malformed parameter.
        for target in ["/a?expires=1&x=1", "/a?expires=+5000", "/a?key=new"] {
            let signed = keys().sign(target, "new", 2_000).unwrap();
            assert_eq!(verified(&signed), Err(Unsigned::Wrong), "{target}");
        }
    }

    #[test]
    fn keys_are_named_and_long() {
        let mut keys = keys();
        let mut add = |name: &str, secret: &[u8]| keys.add(name, secret).unwrap_err().to_string();
        assert!(add("a&b", &[0; 32]).contains("\"a&b\""));
        assert!(add("", &[0; 32]).contains("letters"));
        assert!(add("old", &[0; 32]).contains("two keys"));
        assert!(add("short", &[0; 15]).contains("openssl rand"));
        let both = keys.clone().extend(&keys).unwrap_err();
        assert_eq!(both, SigningKeyError::Repeated("old".to_owned()));
        let mut copy = SigningKeys::default();
        copy.extend(&keys).unwrap();
        assert_eq!(copy.sign("/", "new", 0), keys.sign("/", "new", 0));
        assert_eq!(format!("{keys:?}"), "[\"old\", \"new\"]", "no secrets");
    }

    proptest! {
        #[test]
        fn guesses_are_refused(target in "/[a-z?&=]{0,20}", tail in "[0-9a-f]{60,68}") {
            for middle in [
                "?signature=",
                "?expires=2000&key=new&signature=",
                "&key=old&expires=2000&signature=",
            ] {
                prop_assert_eq!(verified(&format!("{target}{middle}{tail}")), Err(Unsigned::Wrong));
            }
        }
    }
}
