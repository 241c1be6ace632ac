//! Decodes field blocks (RFC 7541 §3, §6).

use super::TABLE_BYTES_MAX;
use super::table::Table;
use crate::huffman;
use crate::integer;

/// The block is not well-formed: COMPRESSION_ERROR (RFC 9113 §4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Undecodable;

/// Decodes the blocks of a connection, in their order.
#[derive(Debug)]
pub struct Decoder {
    table: Table,
}

/// How a representation begins (RFC 7541 §6).
enum Representation {
    Indexed,
    /// With the length of the index' prefix, and whether the field enters the table.
    Literal(u32, bool),
    TableSize,
}

impl Representation {
    fn of(first: u8) -> Self {
        match first {
            0b1000_0000.. => Representation::Indexed,
            0b0100_0000.. => Representation::Literal(6, true),
            0b0010_0000.. => Representation::TableSize,
            // Never indexed, or not indexed.
            _ => Representation::Literal(4, false),
        }
    }
}

impl Default for Decoder {
    fn default() -> Self {
        Decoder {
            table: Table::new(TABLE_BYTES_MAX),
        }
    }
}

impl Decoder {
    /// Memory of the dynamic table, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.table.memory_bytes()
    }

    /// Passes the names and values of a block to `each`, in order. `scratch` is overwritten, and
    /// grows to at most the block's expansion by the Huffman code.
    ///
    /// # Errors
    /// The block is not well-formed. The connection's blocks cannot be decoded any more.
    pub fn decode(
        &mut self,
        block: &[u8],
        scratch: &mut Vec<u8>,
        mut each: impl FnMut(&[u8], &[u8]),
    ) -> Result<(), Undecodable> {
        let mut rest = block;
        let mut is_begun = false;
        while let Some(&first) = rest.first() {
            match Representation::of(first) {
                Representation::Indexed => {
                    let index = take_integer(&mut rest, 7)?;
                    let (name, value) = self.table.field(index).ok_or(Undecodable)?;
                    each(name, value);
                }
                Representation::Literal(prefix_bits, enters) => {
                    scratch.clear();
                    match take_integer(&mut rest, prefix_bits)? {
                        0 => take_string(&mut rest, scratch)?,
                        index => {
                            let (name, _) = self.table.field(index).ok_or(Undecodable)?;
                            scratch.extend_from_slice(name);
                        }
                    }
                    let name_bytes = scratch.len();
                    take_string(&mut rest, scratch)?;
                    let (name, value) = scratch.split_at(name_bytes);
                    each(name, value);
                    if enters {
                        self.table.insert(name, value);
                    }
                }
                // RFC 7541 §4.2: only at the beginning, and within what SETTINGS allows.
                Representation::TableSize => {
                    let bytes_max = take_integer(&mut rest, 5)?;
                    if is_begun || bytes_max > TABLE_BYTES_MAX {
                        return Err(Undecodable);
                    }
                    self.table.resize(bytes_max);
                    continue;
                }
            }
            is_begun = true;
        }
        Ok(())
    }
}

fn take_integer(rest: &mut &[u8], prefix_bits: u32) -> Result<usize, Undecodable> {
    let (value, bytes) = integer::read(rest, prefix_bits).map_err(|_| Undecodable)?;
    *rest = &rest[bytes..];
    usize::try_from(value).map_err(|_| Undecodable)
}

/// Appends a string to `out` (RFC 7541 §5.2).
fn take_string(rest: &mut &[u8], out: &mut Vec<u8>) -> Result<(), Undecodable> {
    let is_coded = rest.first().is_some_and(|first| first & 0x80 != 0);
    let length = take_integer(rest, 7)?;
    let (string, behind) = rest.split_at_checked(length).ok_or(Undecodable)?;
    *rest = behind;
    if !is_coded {
        out.extend_from_slice(string);
        return Ok(());
    }
    huffman::decode(string, out).map_err(|huffman::Invalid| Undecodable)
}

#[cfg(test)]
mod tests {
    use super::*;

    type Fields = Vec<(String, String)>;

    fn decoded(decoder: &mut Decoder, block: &[u8]) -> Result<Fields, Undecodable> {
        let mut fields = Vec::new();
        decoder.decode(block, &mut Vec::new(), |name, value| {
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
            fields.push((text(name), text(value)));
        })?;
        Ok(fields)
    }

    fn hex(text: &str) -> Vec<u8> {
        let digits: String = text.split_whitespace().collect();
        let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
        (0..digits.len()).step_by(2).map(byte).collect()
    }

    fn fields(list: &[(&str, &str)]) -> Fields {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        list.iter().map(owned).collect()
    }

    const FIRST: [(&str, &str); 4] = [
        (":method", "GET"),
        (":scheme", "http"),
        (":path", "/"),
        (":authority", "www.example.com"),
    ];

    /// Covers: RFC 7541 §C.3, RFC 7541 §C.4, RFC 7541 §6.1, RFC 7541 §6.2.1
    #[test]
    fn the_requests_of_the_text_are_decoded_plain_and_coded() {
        let second = [&FIRST[..], &[("cache-control", "no-cache")]].concat();
        let third = [
            (":method", "GET"),
            (":scheme", "https"),
            (":path", "/index.html"),
            (":authority", "www.example.com"),
            ("custom-key", "custom-value"),
        ];
        for blocks in [
            [
                "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
                "8286 84be 5808 6e6f 2d63 6163 6865",
                "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
            ],
            [
                "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
                "8286 84be 5886 a8eb 1064 9cbf",
                "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
            ],
        ] {
            let mut decoder = Decoder::default();
            let expected = [&FIRST[..], &second, &third];
            for (block, expected) in blocks.iter().zip(expected) {
                let got = decoded(&mut decoder, &hex(block));
                assert_eq!(got, Ok(fields(expected)), "{block}");
            }
        }
    }

    /// Covers: RFC 7541 §C.2.2, RFC 7541 §C.2.3, RFC 7541 §6.2.2, RFC 7541 §6.2.3
    #[test]
    fn literals_that_are_not_indexed_leave_the_table_as_it_is() {
        let mut decoder = Decoder::default();
        let path = hex("040c 2f73 616d 706c 652f 7061 7468");
        let expected = fields(&[(":path", "/sample/path")]);
        assert_eq!(decoded(&mut decoder, &path), Ok(expected));
        let password = hex("1008 7061 7373 776f 7264 0673 6563 7265 74");
        let expected = fields(&[("password", "secret")]);
        assert_eq!(decoded(&mut decoder, &password), Ok(expected));
        assert_eq!(decoded(&mut decoder, &[0xbe]), Err(Undecodable));
    }

    /// Covers: RFC 7541 §4.2, RFC 7541 §6.3
    #[test]
    fn the_table_is_resized_at_the_beginning_of_a_block_only() {
        let mut decoder = Decoder::default();
        let update = |bytes| {
            let mut block = Vec::new();
            integer::write(&mut block, 0x20, 5, bytes);
            block
        };
        let entry = b"\x40\x01a\x01b";
        assert!(decoded(&mut decoder, entry).is_ok());
        let emptied = [update(0), update(4096), vec![0xbe]].concat();
        assert_eq!(decoded(&mut decoder, &emptied), Err(Undecodable), "evicted");
        let mut decoder = Decoder::default();
        assert!(decoded(&mut decoder, &update(4096)).is_ok());
        assert_eq!(decoded(&mut decoder, &update(4097)), Err(Undecodable));
        let late = [&[0x82][..], &update(0)].concat();
        assert_eq!(decoded(&mut Decoder::default(), &late), Err(Undecodable));
    }

    /// Covers: RFC 7541 §5.1, RFC 7541 §5.2, RFC 7541 §6.1
    #[test]
    fn blocks_that_are_not_well_formed_are_refused() {
        for block in [
            // Index 0, and beyond the tables.
            "80",
            "be",
            "7f 80 80 01 01 61", // A string beyond the block, and one without its value.
            "40 05 61 62",
            "40 01 61", // An integer of too many bits.
            "ff ff ff ff ff ff ff ff ff ff ff 7f",
            // EOS in a coded string, and padding of more than seven bits.
            "00 84 ff ff ff ff 00",
            "00 82 1f ff 00",
        ] {
            assert_eq!(
                decoded(&mut Decoder::default(), &hex(block)),
                Err(Undecodable),
                "{block}"
            );
        }
    }
}
