//! Keys of one direction, which seal and open records by RustCrypto.

use aes_gcm::aead::{Aead, KeyInit, Payload};
use aes_gcm::{Aes128Gcm, Aes256Gcm};
use chacha20poly1305::ChaCha20Poly1305;
use hkdf::Hkdf;
use rustls::ConnectionTrafficSecrets;
use sha2::{Sha256, Sha384};
use tls::{Cipher, Key, Suite, Version};

/// All suites.
pub const SUITES: [Suite; 6] = [
    suite(Version::Tls13, Cipher::Aes128Gcm),
    suite(Version::Tls13, Cipher::Aes256Gcm),
    suite(Version::Tls13, Cipher::ChaCha20Poly1305),
    suite(Version::Tls12, Cipher::Aes128Gcm),
    suite(Version::Tls12, Cipher::Aes256Gcm),
    suite(Version::Tls12, Cipher::ChaCha20Poly1305),
];

/// Returns a suite.
pub const fn suite(version: Version, cipher: Cipher) -> Suite {
    Suite { version, cipher }
}

/// Keys of one direction, for RustCrypto.
#[derive(Clone)]
pub struct Keys {
    /// Suite of the keys.
    pub suite: Suite,
    /// Key.
    pub key: Vec<u8>,
    /// IV.
    pub iv: [u8; 12],
}

impl Keys {
    /// Returns the keys of a KEY command.
    pub fn of(key: &Key) -> Self {
        Self {
            suite: key.suite,
            key: key.key().to_vec(),
            iv: *key.iv(),
        }
    }

    /// Returns keys extracted from rustls.
    pub fn extracted(suite: Suite, secrets: &ConnectionTrafficSecrets) -> Self {
        let (key, iv) = match secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv }
            | ConnectionTrafficSecrets::Aes256Gcm { key, iv }
            | ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (key, iv),
            _ => panic!("no such suite"),
        };
        Self {
            suite,
            key: key.as_ref().to_vec(),
            iv: iv.as_ref().try_into().unwrap(),
        }
    }

    /// Returns the keys derived from a traffic secret (RFC 8446 §7.3).
    pub fn derived(cipher: Cipher, secret: &[u8]) -> Self {
        let key_bytes = match cipher {
            Cipher::Aes128Gcm => 16,
            _ => 32,
        };
        Self {
            suite: suite(Version::Tls13, cipher),
            key: expand(cipher, secret, b"key", key_bytes),
            iv: expand(cipher, secret, b"iv", 12).try_into().unwrap(),
        }
    }

    fn nonce(&self, number: u64) -> [u8; 12] {
        let mut nonce = self.iv;
        for (byte, number) in nonce[4..].iter_mut().zip(number.to_be_bytes()) {
            *byte ^= number;
        }
        nonce
    }

    /// Seals a record with any content.
    pub fn seal(&self, number: u64, content_type: u8, content: &[u8]) -> Vec<u8> {
        match self.suite.version {
            Version::Tls13 => {
                let inner = [content, &[content_type]].concat();
                self.seal_inner(number, &inner)
            }
            Version::Tls12 => {
                let nonce = self.nonce(number);
                let explicit = &nonce[12 - self.suite.explicit_nonce_bytes()..];
                let mut aad = number.to_be_bytes().to_vec();
                aad.extend([content_type, 3, 3]);
                aad.extend((content.len() as u16).to_be_bytes());
                let sealed = self.encrypt(&nonce, &aad, content);
                let length = (explicit.len() + sealed.len()) as u16;
                let header = [&[content_type, 3, 3][..], &length.to_be_bytes()].concat();
                [&header, explicit, &sealed].concat()
            }
        }
    }

    /// Seals a record of TLS 1.3 with this TLSInnerPlaintext.
    pub fn seal_inner(&self, number: u64, inner: &[u8]) -> Vec<u8> {
        let length = (inner.len() + 16) as u16;
        let header = [&[23, 3, 3][..], &length.to_be_bytes()].concat();
        let sealed = self.encrypt(&self.nonce(number), &header, inner);
        [header, sealed].concat()
    }

    /// Opens a record; returns its content type and content.
    pub fn open(&self, number: u64, record: &[u8]) -> (u8, Vec<u8>) {
        match self.suite.version {
            Version::Tls13 => {
                let mut inner = self.decrypt(&self.nonce(number), &record[..5], &record[5..]);
                let content_type = inner.pop().unwrap();
                (content_type, inner)
            }
            Version::Tls12 => {
                let explicit = self.suite.explicit_nonce_bytes();
                let mut nonce = self.nonce(number);
                nonce[12 - explicit..].copy_from_slice(&record[5..5 + explicit]);
                let sealed = &record[5 + explicit..];
                let mut aad = number.to_be_bytes().to_vec();
                aad.extend(&record[..3]);
                aad.extend((sealed.len() as u16 - 16).to_be_bytes());
                (record[0], self.decrypt(&nonce, &aad, sealed))
            }
        }
    }

    fn encrypt(&self, nonce: &[u8; 12], aad: &[u8], msg: &[u8]) -> Vec<u8> {
        let nonce = nonce.into();
        let payload = Payload { msg, aad };
        match self.suite.cipher {
            Cipher::Aes128Gcm => Aes128Gcm::new_from_slice(&self.key)
                .unwrap()
                .encrypt(nonce, payload),
            Cipher::Aes256Gcm => Aes256Gcm::new_from_slice(&self.key)
                .unwrap()
                .encrypt(nonce, payload),
            Cipher::ChaCha20Poly1305 => ChaCha20Poly1305::new_from_slice(&self.key)
                .unwrap()
                .encrypt(nonce, payload),
        }
        .unwrap()
    }

    fn decrypt(&self, nonce: &[u8; 12], aad: &[u8], msg: &[u8]) -> Vec<u8> {
        let nonce = nonce.into();
        let payload = Payload { msg, aad };
        match self.suite.cipher {
            Cipher::Aes128Gcm => Aes128Gcm::new_from_slice(&self.key)
                .unwrap()
                .decrypt(nonce, payload),
            Cipher::Aes256Gcm => Aes256Gcm::new_from_slice(&self.key)
                .unwrap()
                .decrypt(nonce, payload),
            Cipher::ChaCha20Poly1305 => ChaCha20Poly1305::new_from_slice(&self.key)
                .unwrap()
                .decrypt(nonce, payload),
        }
        .expect("the record is authentic")
    }
}

/// HKDF-Expand-Label (RFC 8446 §7.1), without a context.
pub fn expand(cipher: Cipher, secret: &[u8], label: &[u8], bytes: u16) -> Vec<u8> {
    let length = bytes.to_be_bytes();
    let label_length = [6 + label.len() as u8];
    let info = [&length, &label_length[..], b"tls13 ", label, &[0]].concat();
    let mut output = vec![0; usize::from(bytes)];
    match cipher {
        Cipher::Aes256Gcm => Hkdf::<Sha384>::from_prk(secret)
            .unwrap()
            .expand(&info, &mut output),
        _ => Hkdf::<Sha256>::from_prk(secret)
            .unwrap()
            .expand(&info, &mut output),
    }
    .unwrap();
    output
}
