//! Frames (RFC 9114 §7) and field sections (RFC 9204 §4.5) of an HTTP/3 client, without a dynamic
//! table.

/// RFC 9204 Appendix A: a line for each entry, name and value with a tab between.
const STATIC_TABLE: &str = include_str!("http3/static_table.txt");

/// Frame type of content. This and the following are types of frames (RFC 9114 §7.2).
pub const DATA: u64 = 0;
/// Frame type of a head, or of trailers.
pub const HEADERS: u64 = 1;
/// Frame type that cancels a push.
pub const CANCEL_PUSH: u64 = 3;
/// Frame type of settings, the first of a control stream.
pub const SETTINGS: u64 = 4;
/// Frame type that announces a push.
pub const PUSH_PROMISE: u64 = 5;
/// Frame type that ends a connection gracefully.
pub const GOAWAY: u64 = 7;
/// Frame type that permits pushes.
pub const MAX_PUSH_ID: u64 = 0xd;
/// Frame type of the priority of a request (RFC 9218 §7).
pub const PRIORITY_UPDATE: u64 = 0xf0700;
/// Frame type of the priority of a push (RFC 9218 §7).
pub const PRIORITY_UPDATE_PUSH: u64 = 0xf0701;
/// A reserved frame type without meaning (RFC 9114 §7.2.8).
pub const RESERVED: u64 = 0x1f * 7 + 0x21;

/// Encodes an integer of variable length (RFC 9000 §16).
pub fn varint(value: u64) -> Vec<u8> {
    match value {
        0..64 => vec![value as u8],
        64..16_384 => (0x4000 | value as u16).to_be_bytes().to_vec(),
        16_384..1_073_741_824 => (0x8000_0000 | value as u32).to_be_bytes().to_vec(),
        _ => (0xc000_0000_0000_0000 | value).to_be_bytes().to_vec(),
    }
}

/// Takes an integer of variable length from the front of some bytes.
pub fn take_varint(bytes: &mut &[u8]) -> u64 {
    let length = 1 << (bytes[0] >> 6);
    let (number, rest) = bytes.split_at(length);
    *bytes = rest;
    let value = number
        .iter()
        .fold(0, |value, &byte| value << 8 | u64::from(byte));
    value & (u64::MAX >> (64 - 8 * length + 2))
}

/// Returns a frame.
pub fn frame(kind: u64, payload: impl AsRef<[u8]>) -> Vec<u8> {
    let payload = payload.as_ref();
    [&varint(kind)[..], &varint(payload.len() as u64), payload].concat()
}

/// Encodes an integer with a prefix (RFC 7541 §5.1).
fn prefixed(pattern: u8, bits: u32, value: usize) -> Vec<u8> {
    let mask = (1 << bits) - 1;
    if value < mask {
        return vec![pattern | value as u8];
    }
    let mut bytes = vec![pattern | mask as u8];
    let mut rest = value - mask;
    while rest > 127 {
        bytes.push(rest as u8 | 128);
        rest /= 128;
    }
    bytes.push(rest as u8);
    bytes
}

fn take_prefixed(bytes: &mut &[u8], bits: u32) -> usize {
    let mask = (1 << bits) - 1;
    let mut value = usize::from(bytes[0]) & mask;
    *bytes = &bytes[1..];
    if value < mask {
        return value;
    }
    for shift in (0..).step_by(7) {
        let byte = bytes[0];
        *bytes = &bytes[1..];
        value += usize::from(byte & 127) << shift;
        if byte < 128 {
            break;
        }
    }
    value
}

/// Returns a field section: each field a literal, name included.
pub fn section(fields: &[(&str, &str)]) -> Vec<u8> {
    let fields: Vec<(&[u8], &[u8])> = fields
        .iter()
        .map(|(name, value)| (name.as_bytes(), value.as_bytes()))
        .collect();
    raw_section(&fields)
}

/// Returns a field section whose names and values may be any bytes.
pub fn raw_section(fields: &[(&[u8], &[u8])]) -> Vec<u8> {
    let mut section = vec![0, 0];
    for (name, value) in fields {
        section.extend(prefixed(0b0010_0000, 3, name.len()));
        section.extend_from_slice(name);
        section.extend(prefixed(0, 7, value.len()));
        section.extend_from_slice(value);
    }
    section
}

/// Returns the fields of a section that uses only the static table and literals without Huffman
/// coding.
pub fn fields(mut section: &[u8]) -> Vec<(String, String)> {
    let table: Vec<(&str, &str)> = STATIC_TABLE
        .lines()
        .map(|line| line.split_once('\t').expect("a name and a value"))
        .collect();
    assert_eq!(table.len(), 99);
    assert_eq!(section[..2], [0, 0], "no dynamic table");
    section = &section[2..];
    let mut fields = Vec::new();
    let take = |section: &mut &[u8], bits| {
        assert_eq!(section[0] >> bits & 1, 0, "not coded");
        let length = take_prefixed(section, bits);
        let (text, rest) = section.split_at(length);
        *section = rest;
        String::from_utf8(text.to_vec()).expect("text")
    };
    while let Some(&first) = section.first() {
        let (name, value) = if first >> 6 == 0b11 {
            let (name, value) = table[take_prefixed(&mut section, 6)];
            (name.to_owned(), value.to_owned())
        } else if first >> 4 == 0b0101 {
            let name = table[take_prefixed(&mut section, 4)].0.to_owned();
            (name, take(&mut section, 7))
        } else {
            assert_eq!(first >> 5, 0b001, "a literal");
            let name = take(&mut section, 3);
            (name, take(&mut section, 7))
        };
        assert_eq!(name, name.to_ascii_lowercase());
        fields.push((name, value));
    }
    fields
}

/// Returns a HEADERS frame.
pub fn headers(fields: &[(&str, &str)]) -> Vec<u8> {
    frame(HEADERS, section(fields))
}
