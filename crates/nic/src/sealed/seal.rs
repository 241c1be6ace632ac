//! Sealing one record (RFC 8446 §5.2, RFC 5246 §6.2.3.3).

use contract::limits::RECORD_TAIL_BYTES_MAX;
use contract::tls::{ContentType, RECORD_HEADER_BYTES, TAG_BYTES, Tag, Version};

use super::keys::SealingKey;

/// Plaintext of a record.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plaintext<'a> {
    pub(super) text: &'a [u8],
    /// What follows, at most [`RECORD_TAIL_BYTES_MAX`] bytes.
    pub(super) tail: &'a [u8],
}

/// Writes the record of this number to `out`, which has the record's length. Returns the tag.
///
/// # Panics
/// If `out` is not as long as the record, or the plaintext or its tail longer than a record's.
pub(super) fn seal(
    key: &SealingKey,
    number: u64,
    content_type: ContentType,
    plaintext: &Plaintext<'_>,
    out: &mut [u8],
) -> Tag {
    let suite = key.suite;
    let mut nonce = *key.iv;
    for (byte, number) in nonce[4..].iter_mut().zip(number.to_be_bytes()) {
        *byte ^= number;
    }
    let (prefix, fragment) = out.split_at_mut(suite.prefix_bytes());
    let (header, explicit_nonce) = prefix.split_at_mut(RECORD_HEADER_BYTES);
    let fragment_len = (explicit_nonce.len() + fragment.len()) as u16;
    // Where there is one, it is the last 8 bytes.
    explicit_nonce.copy_from_slice(&nonce[nonce.len() - explicit_nonce.len()..]);

    // The version on the wire is that of TLS 1.2, also for TLS 1.3.
    let record_header = |content_type: ContentType, len: u16| {
        let [high, low] = len.to_be_bytes();
        [content_type as u8, 3, 3, high, low]
    };
    let Plaintext { text, tail } = *plaintext;
    // In TLS 1.3 the content type ends the plaintext.
    let mut end = [content_type as u8; RECORD_TAIL_BYTES_MAX + 1];
    end[..tail.len()].copy_from_slice(tail);
    let mut additional = [0; 8 + RECORD_HEADER_BYTES];
    let (additional, end) = match suite.version {
        Version::Tls13 => {
            header.copy_from_slice(&record_header(ContentType::ApplicationData, fragment_len));
            (&header[..], &end[..tail.len() + 1])
        }
        Version::Tls12 => {
            let len = (text.len() + tail.len()) as u16;
            header.copy_from_slice(&record_header(content_type, fragment_len));
            additional[..8].copy_from_slice(&number.to_be_bytes());
            additional[8..].copy_from_slice(&record_header(content_type, len));
            (&additional[..], &end[..tail.len()])
        }
    };
    key.key.seal(nonce, additional, text, end, fragment);
    *fragment
        .last_chunk::<TAG_BYTES>()
        .expect("a record ends with its tag")
}
