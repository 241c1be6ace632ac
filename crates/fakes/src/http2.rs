//! Frames (RFC 9113 §4) and field blocks (RFC 7541) of a client of HTTP/2, without a dynamic table.

/// RFC 7541 Appendix A: a line for each entry, name and value with a tab between.
const STATIC_TABLE: &str = include_str!("http2/static_table.txt");

/// Content. This and those that follow are types of frames (RFC 9113 §6).
pub const DATA: u8 = 0;
/// A head, or trailers.
pub const HEADERS: u8 = 1;
/// A priority of RFC 7540.
pub const PRIORITY: u8 = 2;
/// Ends a stream early.
pub const RST_STREAM: u8 = 3;
/// The first frame of a connection.
pub const SETTINGS: u8 = 4;
/// Announces a push.
pub const PUSH_PROMISE: u8 = 5;
/// Is answered at once.
pub const PING: u8 = 6;
/// Ends a connection in order.
pub const GOAWAY: u8 = 7;
/// Enlarges a window.
pub const WINDOW_UPDATE: u8 = 8;
/// A further part of a field block.
pub const CONTINUATION: u8 = 9;
/// The priority of a request (RFC 9218 §7.1).
pub const PRIORITY_UPDATE: u8 = 0x10;

/// The last frame of a stream. This and those that follow are flags.
pub const END_STREAM: u8 = 1;
/// Acknowledges SETTINGS or PING.
pub const ACK: u8 = 1;
/// The last frame of a field block.
pub const END_HEADERS: u8 = 4;
/// Has padding.
pub const PADDED: u8 = 8;
/// Has a priority of RFC 7540.
pub const PRIORITIZED: u8 = 0x20;

/// The first bytes of a client (RFC 9113 §3.4).
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Longest payload of a frame where SETTINGS permit no longer one, in bytes.
const PAYLOAD_BYTES_MAX: usize = 16_384;

/// Returns a frame (RFC 9113 §4.1).
pub fn frame(kind: u8, flags: u8, stream: u32, payload: impl AsRef<[u8]>) -> Vec<u8> {
    let payload = payload.as_ref();
    let length = (payload.len() as u32).to_be_bytes();
    let stream = stream.to_be_bytes();
    [&length[1..], &[kind, flags], &stream, payload].concat()
}

/// Returns SETTINGS with these values.
pub fn settings(values: &[(u16, u32)]) -> Vec<u8> {
    let value = |&(id, value): &(u16, u32)| [&id.to_be_bytes()[..], &value.to_be_bytes()].concat();
    let payload: Vec<u8> = values.iter().flat_map(value).collect();
    frame(SETTINGS, 0, 0, payload)
}

/// Returns WINDOW_UPDATE; `stream` 0 for the connection.
pub fn window_update(stream: u32, increment: u32) -> Vec<u8> {
    frame(WINDOW_UPDATE, 0, stream, increment.to_be_bytes())
}

/// Returns RST_STREAM.
pub fn rst_stream(stream: u32, code: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, code.to_be_bytes())
}

/// Returns HEADERS with these flags, and CONTINUATION for a long field block.
pub fn headers(stream: u32, mut flags: u8, block: &[u8]) -> Vec<u8> {
    let (first, mut rest) = block.split_at(block.len().min(PAYLOAD_BYTES_MAX));
    let (mut kind, mut fragment, mut bytes) = (HEADERS, first, Vec::new());
    while !rest.is_empty() {
        bytes.extend(frame(kind, flags, stream, fragment));
        (kind, flags) = (CONTINUATION, 0);
        (fragment, rest) = rest.split_at(rest.len().min(PAYLOAD_BYTES_MAX));
    }
    bytes.extend(frame(kind, flags | END_HEADERS, stream, fragment));
    bytes
}

/// Returns a field block of literals without indexing (RFC 7541 §6.2.2).
pub fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, value) in fields {
        out.push(0);
        for string in [name, value] {
            integer(&mut out, string.len());
            out.extend_from_slice(string.as_bytes());
        }
    }
    out
}

/// Appends an integer with a prefix of seven bits (RFC 7541 §5.1).
fn integer(out: &mut Vec<u8>, value: usize) {
    let Some(mut rest) = value.checked_sub(127) else {
        return out.push(value as u8);
    };
    out.push(127);
    while rest >= 128 {
        out.push(rest as u8 | 128);
        rest /= 128;
    }
    out.push(rest as u8);
}

/// Takes an integer with a prefix of this length, in bits.
fn take_integer(bytes: &mut &[u8], bits: u32) -> usize {
    let mask = (1 << bits) - 1;
    let first = usize::from(bytes[0]) & mask;
    *bytes = &bytes[1..];
    if first < mask {
        return first;
    }
    let (mut value, mut shift) = (mask, 0);
    loop {
        let byte = bytes[0];
        *bytes = &bytes[1..];
        value += usize::from(byte & 0x7f) << shift;
        shift += 7;
        if byte & 0x80 == 0 {
            return value;
        }
    }
}

/// Takes a string that is not coded.
fn take_string(bytes: &mut &[u8]) -> String {
    assert_eq!(bytes[0] >> 7, 0, "not coded");
    let length = take_integer(bytes, 7);
    let (text, rest) = bytes.split_at(length);
    *bytes = rest;
    String::from_utf8(text.to_vec()).expect("text")
}

/// Returns the fields of a block that uses only the static table and literals without Huffman
/// coding.
pub fn fields(mut block: &[u8]) -> Vec<(String, String)> {
    let table: Vec<(&str, &str)> = STATIC_TABLE
        .lines()
        .map(|line| line.split_once('\t').expect("a name and a value"))
        .collect();
    assert_eq!(table.len(), 61);
    let mut fields = Vec::new();
    while let Some(&first) = block.first() {
        if first >> 5 == 0b001 {
            // The table's size changes (RFC 7541 §6.3).
            take_integer(&mut block, 5);
            continue;
        }
        if first >> 7 == 1 {
            let (name, value) = table[take_integer(&mut block, 7) - 1];
            fields.push((name.to_owned(), value.to_owned()));
            continue;
        }
        let bits = if first >> 6 == 1 { 6 } else { 4 };
        let name = match take_integer(&mut block, bits) {
            0 => take_string(&mut block),
            index => table[index - 1].0.to_owned(),
        };
        let value = take_string(&mut block);
        fields.push((name, value));
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_as_they_are_written() {
        let long = "v".repeat(1000);
        let list = [(":status", "200"), ("x-long", &long), ("empty", "")];
        let owned = list.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(fields(&block(&list)), owned);
        let known = [0x20, 0x88, 0x5f, 1, b'x'];
        let expected = [(":status", "200"), ("content-type", "x")];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(fields(&known), expected);
    }
}
