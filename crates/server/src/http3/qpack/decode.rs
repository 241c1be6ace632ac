//! Decodes field sections (RFC 9204 §4.5).

use crate::http3::qpack::static_table::STATIC_TABLE;
use http2::field::FIELD_BYTES;
use http2::huffman;
use http2::integer::{self, NoInteger};

/// Why decoding a field section stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure<E> {
    /// The section is malformed or refers to the dynamic table: QPACK_DECOMPRESSION_FAILED.
    Undecodable,
    /// The section ends within a field.
    Truncated,
    /// Names, values and 32 bytes per field exceed the limit (RFC 9114 §4.2.2).
    TooLarge,
    /// The callback has refused a field.
    Refused(E),
}

impl<E> From<NoInteger> for Failure<E> {
    fn from(error: NoInteger) -> Self {
        match error {
            NoInteger::Partial => Failure::Truncated,
            NoInteger::TooLarge => Failure::Undecodable,
        }
    }
}

/// Passes the names and values of a field section to `each`, in order. `scratch` is overwritten,
/// and grows to at most twice the section.
pub(crate) fn decode<E>(
    section: &[u8],
    size_bytes_max: usize,
    scratch: &mut Vec<u8>,
    mut each: impl FnMut(&[u8], &[u8]) -> Result<(), E>,
) -> Result<(), Failure<E>> {
    let mut rest = section;
    // Required Insert Count and Base. Without a dynamic table the count is 0, so the base must not
    // be negative, and has no meaning (RFC 9204 §4.5.1.2).
    let (insert_count, _) = take_integer(&mut rest, 8)?;
    if insert_count != 0 {
        return Err(Failure::Undecodable);
    }
    let (_, sign) = take_integer(&mut rest, 7)?;
    if sign & 0x80 != 0 {
        return Err(Failure::Undecodable);
    }
    let mut size_bytes = 0;
    while let Some(&first) = rest.first() {
        scratch.clear();
        let (name, value) = match first {
            // Indexed Field Line: T selects the static table.
            0b1100_0000.. => {
                let entry = static_entry(&mut rest, 6)?;
                (entry.0.as_bytes(), entry.1.as_bytes())
            }
            // Literal Field Line with Name Reference.
            0b0101_0000..=0b0101_1111 | 0b0111_0000..=0b0111_1111 => {
                let (name, _) = static_entry(&mut rest, 4)?;
                take_string(&mut rest, 7, scratch)?;
                (name.as_bytes(), &scratch[..])
            }
            // Literal Field Line with Literal Name.
            0b0010_0000..=0b0011_1111 => {
                take_string(&mut rest, 3, scratch)?;
                let name_bytes = scratch.len();
                take_string(&mut rest, 7, scratch)?;
                scratch.split_at(name_bytes)
            }
            // All others refer to the dynamic table.
            _ => return Err(Failure::Undecodable),
        };
        size_bytes += name.len() + value.len() + FIELD_BYTES;
        if size_bytes > size_bytes_max {
            return Err(Failure::TooLarge);
        }
        each(name, value).map_err(Failure::Refused)?;
    }
    Ok(())
}

fn take_integer(rest: &mut &[u8], prefix_bits: u32) -> Result<(u64, u8), NoInteger> {
    let (value, bytes) = integer::read(rest, prefix_bits)?;
    let first = rest[0];
    *rest = &rest[bytes..];
    Ok((value, first))
}

fn static_entry<E>(
    rest: &mut &[u8],
    prefix_bits: u32,
) -> Result<(&'static str, &'static str), Failure<E>> {
    let (index, _) = take_integer(rest, prefix_bits)?;
    let index = usize::try_from(index).unwrap_or(usize::MAX);
    STATIC_TABLE.get(index).copied().ok_or(Failure::Undecodable)
}

/// Appends a string to `out`. The bit before its length selects Huffman coding.
fn take_string<E>(rest: &mut &[u8], prefix_bits: u32, out: &mut Vec<u8>) -> Result<(), Failure<E>> {
    let (length, first) = take_integer(rest, prefix_bits)?;
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    let (string, behind) = rest.split_at_checked(length).ok_or(Failure::Truncated)?;
    *rest = behind;
    if first & (1 << prefix_bits) == 0 {
        out.extend_from_slice(string);
        return Ok(());
    }
    huffman::decode(string, out).map_err(|huffman::Invalid| Failure::Undecodable)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http3::qpack::encode;

    type Fields = Vec<(String, String)>;

    fn decoded(section: &[u8], size_bytes_max: usize) -> Result<Fields, Failure<()>> {
        let mut fields = Vec::new();
        let mut scratch = b"x".to_vec();
        decode(section, size_bytes_max, &mut scratch, |name, value| {
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
            fields.push((text(name), text(value)));
            Ok(())
        })?;
        assert!(scratch.len() <= 2 * section.len());
        Ok(fields)
    }

    fn field(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    /// Covers: RFC 9204 §B.1
    #[test]
    fn the_example_without_a_dynamic_table() {
        let section = b"\0\0\x51\x0b/index.html";
        let expected = vec![field(":path", "/index.html")];
        assert_eq!(decoded(section, 1000), Ok(expected));
    }

    /// Covers: RFC 9204 §B.2, RFC 9204 §2.2.3, RFC 9204 §4.5.3, RFC 9204 §4.5.5
    #[test]
    fn references_to_the_dynamic_table_are_refused() {
        for section in [
            // From the examples.
            &b"\x03\x81\x10\x11"[..],
            b"\x05\0\x80\xc1\x81",
            // With an insert count of 0: indexed, by post-base index, and as name references.
            b"\0\0\x80",
            b"\0\0\x10",
            b"\0\0\x40\x01a",
            b"\0\0\x60\x01a",
            b"\0\0\x00\x01a",
            b"\x01\0\xd1",
            b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\0",
        ] {
            let result = decoded(section, 1000);
            assert_eq!(result, Err(Failure::Undecodable), "{section:x?}");
        }
    }

    /// Covers: RFC 9204 §3.1, RFC 9204 §4.5.2
    #[test]
    fn every_entry_of_the_static_table_is_read_and_no_further_one() {
        for (index, (name, value)) in STATIC_TABLE.into_iter().enumerate() {
            let mut section = vec![0, 0];
            integer::write(&mut section, 0xc0, 6, index);
            assert_eq!(decoded(&section, 1000), Ok(vec![field(name, value)]));
            let mut section = vec![0, 0];
            integer::write(&mut section, 0x50, 4, index);
            section.extend_from_slice(b"\x02ab");
            assert_eq!(decoded(&section, 1000), Ok(vec![field(name, "ab")]));
        }
        for index in [99, 100, 1 << 40] {
            let mut section = vec![0, 0];
            integer::write(&mut section, 0xc0, 6, index);
            assert_eq!(decoded(&section, 1000), Err(Failure::Undecodable));
        }
    }

    /// Covers: RFC 9204 §4.5.4, RFC 9204 §4.5.6, RFC 9204 §4.1.2
    #[test]
    fn literals_are_read_coded_or_not_and_never_indexed_or_not() {
        let huffman = [0x25, 0xa8, 0x49, 0xe9, 0x5b, 0xa9, 0x7d, 0x7f];
        for never in [0, 0b1_0000] {
            // A Huffman-coded name of eight bytes: longer than the prefix holds.
            let mut section = vec![0, 0, 0b0010_1111 | never, 0x01];
            section.extend_from_slice(&huffman);
            section.push(0x88);
            section.extend_from_slice(&huffman);
            let expected = vec![field("custom-key", "custom-key")];
            assert_eq!(decoded(&section, 1000), Ok(expected), "{section:x?}");
        }
        assert_eq!(decoded(b"\0\0\x21a\0", 1000), Ok(vec![field("a", "")]));
        assert_eq!(
            decoded(b"\0\0\x21a\x81\x00", 1000),
            Err(Failure::Undecodable)
        );
    }

    /// Covers: RFC 9204 §4.5.1.2
    #[test]
    fn a_base_must_not_be_negative() {
        for base in [&b"\x00"[..], b"\x05", b"\x7f\x01"] {
            let mut section = [&[0][..], base, b"\xd1"].concat();
            assert!(decoded(&section, 1000).is_ok(), "{section:x?}");
            section[1] |= 0x80;
            let result = decoded(&section, 1000);
            assert_eq!(result, Err(Failure::Undecodable), "{section:x?}");
        }
    }

    #[test]
    fn a_section_that_is_cut_off_is_no_whole_one() {
        let section = b"\0\0\xd1\x51\x0b/index.html\x27\x02customkey\x05value";
        let whole = decoded(section, 1000).unwrap();
        assert_eq!(whole.len(), 3);
        for cut in 0..section.len() {
            match decoded(&section[..cut], 1000) {
                Err(Failure::Truncated) => {}
                Ok(fields) => assert!([2, 3, 16].contains(&cut), "{fields:?}"),
                other => panic!("{cut}: {other:?}"),
            }
        }
    }

    /// Fields that are encoded in one byte, as index 85, do not evade the bound.
    ///
    /// Covers: RFC 9114 §4.2.2, RFC 9204 §7.3
    #[test]
    fn sections_that_decode_to_too_much_are_refused() {
        let (name, value) = STATIC_TABLE[85];
        let each = name.len() + value.len() + 32;
        let mut section = vec![0, 0];
        for _ in 0..10 {
            integer::write(&mut section, 0xc0, 6, 85);
        }
        assert_eq!(decoded(&section, 10 * each).unwrap().len(), 10);
        assert_eq!(decoded(&section, 10 * each - 1), Err(Failure::TooLarge));
        // Empty fields count as well.
        let empty = [&[0, 0][..], &b"\x20\0".repeat(100)].concat();
        assert_eq!(decoded(&empty, 3200).unwrap().len(), 100);
        assert_eq!(decoded(&empty, 3199), Err(Failure::TooLarge));
    }

    /// Covers: RFC 9204 §4.5
    #[test]
    fn what_is_encoded_is_decoded() {
        let mut section = Vec::new();
        encode::begin(&mut section);
        let long = "v".repeat(20_000);
        let mut expected = Vec::new();
        let fields = [
            ("Content-Type", "text/html; charset=utf-8"),
            ("content-type", "text/html"),
            ("ETag", ""),
            ("Server", "splitway"),
            ("X-Nothing-Like-It", "1"),
            ("Listing-Truncated", &long[..126]),
            ("listing-truncated", &long[..127]),
            ("Age", &long[..128]),
            ("age", &long[..383]),
            ("x", &long),
        ];
        for (name, value) in fields {
            encode::field_with(&mut section, name, |out| {
                out.extend_from_slice(value.as_bytes())
            });
            expected.push(field(&name.to_ascii_lowercase(), value));
        }
        assert_eq!(decoded(&section, 1 << 20), Ok(expected));
        assert_eq!(
            section[2],
            0xc0 | 52,
            "one byte for a field that the table has"
        );
    }
}
