//! KEY and RECORDS as bytes.

use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, IntoBytes};

use super::{
    KEY, KeyRecord, RECORDS, RecordsRecord, SegmentRecord, all_zero, check_segment, head,
    inline_bytes, parse_segments, split, whole,
};
use crate::ids::FlowId;
use crate::limits::{INLINE_BYTES_MAX, RECORD_PLAINTEXT_BYTES_MAX, RECORDS_MAX, SEGMENTS_MAX};
use crate::segment::{Segment, Segments};
use crate::tls::{Cipher, ContentType, Key, Records, Suite, TAG_BYTES, Tag, Version};

/// The cipher that a record of a key names.
pub(super) fn cipher(number: u8) -> Result<Cipher, &'static str> {
    match number {
        1 => Ok(Cipher::Aes128Gcm),
        2 => Ok(Cipher::Aes256Gcm),
        3 => Ok(Cipher::ChaCha20Poly1305),
        _ => Err("the cipher is known"),
    }
}

impl<'a> Key<'a> {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let at = out.len();
        let record = KeyRecord {
            head: head(KEY, size_of::<KeyRecord>()),
            flow: self.flow.0.into(),
            key: [0; 32],
            iv: self.iv,
            epoch: self.epoch.into(),
            version: self.suite.version as u8,
            // Any other length would not show.
            cipher: match self.check() {
                Ok(()) => self.suite.cipher as u8,
                Err(_) => 0,
            },
        };
        out.extend_from_slice(record.as_bytes());
        // No copy of the key is left on the stack.
        if let Ok((record, _)) = KeyRecord::mut_from_prefix(&mut out[at..]) {
            let len = self.key.len().min(record.key.len());
            record.key[..len].copy_from_slice(&self.key[..len]);
        }
    }

    pub(super) fn parse(bytes: &'a [u8]) -> Result<Self, &'static str> {
        let record = whole::<KeyRecord>(bytes)?;
        let version = match record.version {
            2 => Version::Tls12,
            3 => Version::Tls13,
            _ => return Err("the version is TLS 1.2 or 1.3"),
        };
        let cipher = cipher(record.cipher)?;
        let (key, unused) = record.key.split_at(cipher.key_bytes());
        all_zero(unused)?;
        Ok(Key {
            flow: FlowId(record.flow.get()),
            epoch: record.epoch.get(),
            suite: Suite { version, cipher },
            key,
            iv: record.iv,
        })
    }

    pub(super) fn check(&self) -> Result<(), &'static str> {
        if self.key.len() == self.suite.cipher.key_bytes() {
            Ok(())
        } else {
            Err("a key is as long as its cipher wants")
        }
    }
}

impl<'a> Records<'a> {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let tags = self.tags.as_bytes();
        let length = size_of::<RecordsRecord>()
            + self.segments.len() * size_of::<SegmentRecord>()
            + tags.len()
            + inline_bytes(&self.segments);
        let record = RecordsRecord {
            head: head(RECORDS, length),
            flow: self.flow.0.into(),
            stream_offset: self.stream_offset.into(),
            number: self.number.into(),
            follow_bytes: self.follow_bytes.into(),
            epoch: self.epoch.into(),
            record_plaintext_bytes: self.record_plaintext_bytes.into(),
            segments: (self.segments.len() as u16).into(),
            tags: (self.tags.len() as u16).into(),
            content_type: self.content_type as u8,
            zero: [0; 3],
        };
        out.extend_from_slice(record.as_bytes());
        for segment in &self.segments {
            out.extend_from_slice(SegmentRecord::from(segment).as_bytes());
        }
        out.extend_from_slice(tags);
        for segment in &self.segments {
            if let Segment::Inline(bytes) = segment {
                out.extend_from_slice(bytes);
            }
        }
    }

    pub(super) fn parse(bytes: &'a [u8]) -> Result<Self, &'static str> {
        let (record, rest) = split::<RecordsRecord>(bytes)?;
        all_zero(&record.zero)?;
        let count = usize::from(record.segments);
        if count > SEGMENTS_MAX {
            return Err("there are at most SEGMENTS_MAX segments");
        }
        let (segments, rest) = <[SegmentRecord]>::ref_from_prefix_with_elems(rest, count)
            .map_err(|_| "the segments lie within the message")?;
        let (known, mut inline) = rest
            .split_at_checked(usize::from(record.tags) * TAG_BYTES)
            .ok_or("the tags lie within the message")?;
        let content_type = match record.content_type {
            21 => ContentType::Alert,
            22 => ContentType::Handshake,
            23 => ContentType::ApplicationData,
            _ => return Err("content is alerts, handshake messages or application data"),
        };
        let mut records = Records {
            flow: FlowId(record.flow.get()),
            epoch: record.epoch.get(),
            number: record.number.get(),
            stream_offset: record.stream_offset.get(),
            content_type,
            record_plaintext_bytes: record.record_plaintext_bytes.get(),
            follow_bytes: record.follow_bytes.get(),
            segments: Segments::new(),
            tags: tags(known, record.tags)?,
        };
        parse_segments(segments, &mut inline, &mut records.segments)?;
        Ok(records)
    }

    pub(super) fn check(&self) -> Result<(), &'static str> {
        let each = usize::from(self.record_plaintext_bytes);
        if each == 0 || each > RECORD_PLAINTEXT_BYTES_MAX {
            return Err("a record has 1 to RECORD_PLAINTEXT_BYTES_MAX bytes of plaintext");
        }
        if inline_bytes(&self.segments) > INLINE_BYTES_MAX {
            return Err("there are at most INLINE_BYTES_MAX inline bytes");
        }
        for segment in &self.segments {
            if let Segment::Sealed { .. } = segment {
                return Err("plaintext is inline or of a file");
            }
            check_segment(segment)?;
        }
        let count = self.count();
        if count == 0 || count > RECORDS_MAX as u64 {
            return Err("there are 1 to RECORDS_MAX records");
        }
        if self.tags.len() as u64 > count {
            return Err("there are not more tags than records");
        }
        let stream_bytes = self.plaintext_bytes() + count * Suite::OVERHEAD_BYTES_MAX as u64;
        if self.stream_offset.checked_add(stream_bytes).is_none() {
            return Err("a stream ends below 2^64");
        }
        match self.number.checked_add(count) {
            Some(_) => Ok(()),
            None => Err("record numbers end below 2^64"),
        }
    }
}

/// Parses exactly `count` tags.
pub(super) fn tags(bytes: &[u8], count: U16) -> Result<&[Tag], &'static str> {
    match <[Tag]>::ref_from_bytes(bytes) {
        Ok(tags) if tags.len() == usize::from(count) => Ok(tags),
        _ => Err("the tags fill the message"),
    }
}
