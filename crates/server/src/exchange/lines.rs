//! Field lines as text: in HTTP/1.1 (RFC 9112 §5), and in the parts of multipart bodies in all
//! versions.

/// Writes a field.
pub(crate) fn line(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    line_with(out, name, |out| out.extend_from_slice(value));
}

/// Writes a field whose value `write` appends.
pub(crate) fn line_with(out: &mut Vec<u8>, name: &str, write: impl FnOnce(&mut Vec<u8>)) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    write(out);
    end(out);
}

/// Ends a line.
pub(crate) fn end(out: &mut Vec<u8>) {
    out.extend_from_slice(b"\r\n");
}
