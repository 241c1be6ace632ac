//! Encodes the fields of responses (RFC 7541 §6).
//!
//! Fields that most responses of a connection repeat enter the dynamic table, and later ones then
//! take a byte or two.

use super::TABLE_BYTES_MAX;
use super::static_table::{STATIC_TABLE, index_of};
use super::table::Table;
use crate::integer;

/// Fields whose values many responses of a connection share.
const REPEATED: [&str; 14] = [
    "accept-ranges",
    "access-control-allow-origin",
    "access-control-expose-headers",
    "allow",
    "alt-svc",
    "cache-control",
    "content-encoding",
    "content-security-policy",
    "content-type",
    "server",
    "strict-transport-security",
    "timing-allow-origin",
    "vary",
    "x-content-type-options",
];

/// Longest value of a field in the table, in bytes.
const VALUE_BYTES_MAX: usize = 256;

/// Encodes the blocks of a connection, in their order.
#[derive(Debug)]
pub struct Encoder {
    table: Table,
    /// The smallest size since the last block, and the present one, if the next block must
    /// announce them (RFC 7541 §4.2).
    resized: Option<(usize, usize)>,
}

impl Default for Encoder {
    fn default() -> Self {
        Encoder {
            table: Table::new(TABLE_BYTES_MAX),
            resized: None,
        }
    }
}

impl Encoder {
    /// Memory of the dynamic table, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.table.memory_bytes()
    }

    /// The peer's SETTINGS_HEADER_TABLE_SIZE, in bytes.
    pub fn limit(&mut self, bytes_max: usize) {
        let bytes_max = bytes_max.min(TABLE_BYTES_MAX);
        if bytes_max == self.table.bytes_max() {
            return;
        }
        self.table.resize(bytes_max);
        let least = self.resized.map_or(bytes_max, |(least, _)| least);
        self.resized = Some((least.min(bytes_max), bytes_max));
    }

    /// Begins a block.
    pub fn begin(&mut self, out: &mut Vec<u8>) {
        if let Some((least, last)) = self.resized.take() {
            integer::write(out, 0x20, 5, least);
            if last != least {
                integer::write(out, 0x20, 5, last);
            }
        }
    }

    /// Appends a field, whose name is in lower case.
    pub fn field(&mut self, out: &mut Vec<u8>, name: &str, value: &[u8]) {
        let named = index_of(name);
        let exact = named.and_then(|first| {
            let same = STATIC_TABLE[first - 1..].iter();
            let mut same = same.take_while(|(known, _)| *known == name);
            let place = same.position(|(_, known)| known.as_bytes() == value)?;
            // An empty value stands for any in the table.
            (!value.is_empty()).then_some(first + place)
        });
        let is_repeated = value.len() <= VALUE_BYTES_MAX && REPEATED.contains(&name);
        let known = || self.table.index_of(name.as_bytes(), value);
        if let Some(index) = exact.or_else(|| is_repeated.then(known).flatten()) {
            // Indexed.
            return integer::write(out, 0x80, 7, index);
        }
        let (pattern, prefix_bits) = match is_repeated {
            true => (0x40, 6),
            false => (0x00, 4),
        };
        integer::write(out, pattern, prefix_bits, named.unwrap_or(0));
        if named.is_none() {
            string(out, name.as_bytes());
        }
        string(out, value);
        if is_repeated {
            self.table.insert(name.as_bytes(), value);
        }
    }
}

/// Appends a string, not coded.
fn string(out: &mut Vec<u8>, string: &[u8]) {
    integer::write(out, 0, 7, string.len());
    out.extend_from_slice(string);
}

#[cfg(test)]
mod tests {
    use super::super::decode::Decoder;
    use super::*;

    fn block(encoder: &mut Encoder, fields: &[(&str, &str)]) -> Vec<u8> {
        let mut out = Vec::new();
        encoder.begin(&mut out);
        for (name, value) in fields {
            encoder.field(&mut out, name, value.as_bytes());
        }
        out
    }

    fn assert_decoded(decoder: &mut Decoder, block: &[u8], expected: &[(&str, &str)]) {
        let mut fields = Vec::new();
        let each = |name: &[u8], value: &[u8]| {
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
            fields.push((text(name), text(value)));
        };
        decoder.decode(block, &mut Vec::new(), each).unwrap();
        let expected = expected.iter();
        let expected: Vec<_> = expected
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        assert_eq!(fields, expected);
    }

    /// Covers: RFC 7541 §6.1, RFC 7541 §6.2.1, RFC 7541 §6.2.2
    #[test]
    fn a_field_that_was_sent_before_takes_a_byte() {
        let (mut encoder, mut decoder) = (Encoder::default(), Decoder::default());
        let response = [
            (":status", "200"),
            ("server", "splitway"),
            ("content-type", "text/html; charset=utf-8"),
            ("content-length", "1234567"),
            ("etag", "\"1-2\""),
            ("x-own", ""),
        ];
        let first = block(&mut encoder, &response);
        assert_decoded(&mut decoder, &first, &response);
        let second = block(&mut encoder, &response);
        assert_decoded(&mut decoder, &second, &response);
        assert_eq!(
            second.len(),
            3 + (1 + 1 + 8) + (1 + 1 + 1 + 5) + (1 + 6 + 1)
        );
        let other = [(":status", "206"), (":status", "418"), ("server", "")];
        let third = block(&mut encoder, &other);
        assert_decoded(&mut decoder, &third, &other);
    }

    /// Covers: RFC 7541 §4.2, RFC 7541 §4.3
    #[test]
    fn a_smaller_table_is_announced_before_the_next_field() {
        let (mut encoder, mut decoder) = (Encoder::default(), Decoder::default());
        let fields = [("server", "splitway"), ("vary", "origin")];
        assert_decoded(&mut decoder, &block(&mut encoder, &fields), &fields);
        encoder.limit(0);
        encoder.limit(60);
        let resized = block(&mut encoder, &fields);
        assert_eq!(resized[..3], [0x20, 0x3f, 60 - 31]);
        assert_decoded(&mut decoder, &resized, &fields);
        encoder.limit(1 << 20);
        let grown = block(&mut encoder, &fields);
        assert_eq!(grown[..3], [0x3f, 0xe1, 0x1f]);
        assert_decoded(&mut decoder, &grown, &fields);
        assert_eq!(block(&mut encoder, &fields).len(), 2);
    }
}
