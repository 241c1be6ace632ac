//! A listing for programs: the format of nginx's `autoindex_format json`, with a link for names
//! that are not UTF-8.

use std::io::Write;

use host::app::EntryKind;
use percent_encoding::percent_encode;

use super::Listing;
use super::html::NOT_UNRESERVED;
use crate::semantics::date;

/// Writes an array of objects: `name`, `type`, `mtime` and, for files, `size`.
pub(super) fn write(listing: &Listing, out: &mut Vec<u8>) {
    out.push(b'[');
    let mut separator = "\n";
    for entry in listing.entries() {
        // Writing to a `Vec` cannot fail.
        let _ = write!(out, "{separator}{{ \"name\":");
        separator = ",\n";
        string(&String::from_utf8_lossy(entry.name), out);
        let kind = match entry.kind {
            EntryKind::File => "file",
            EntryKind::Directory => "directory",
        };
        let _ = write!(out, ", \"type\":\"{kind}\"");
        if let Some(date) = date::modified_s(entry.mtime_ns).and_then(date::http_date) {
            let _ = write!(out, ", \"mtime\":\"{date}\"");
        }
        if entry.kind == EntryKind::File {
            let _ = write!(out, ", \"size\":{}", entry.size);
        }
        if std::str::from_utf8(entry.name).is_err() {
            let href = percent_encode(entry.name, NOT_UNRESERVED);
            let _ = write!(out, ", \"href\":\"{href}\"");
        }
        out.extend_from_slice(b" }");
    }
    out.extend_from_slice(b"\n]\n");
}

/// RFC 8259 §7.
fn string(text: &str, out: &mut Vec<u8>) {
    out.push(b'"');
    for &byte in text.as_bytes() {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            0..0x20 => {
                let _ = write!(out, "\\u{byte:04x}");
            }
            _ => out.push(byte),
        }
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use host::app::{Entry, ListPart};

    use super::*;

    #[test]
    fn the_array_is_what_nginx_writes() {
        let mut part = super::super::tests::part(&[
            (EntryKind::Directory, "sub", 4096, 784_111_777_000_000_000),
            (EntryKind::File, "a \"b\"\\\n", 5, 784_111_778_999_999_999),
            (EntryKind::File, "old", 0, -1),
        ]);
        part.entries
            .push(&Entry {
                kind: EntryKind::File,
                size: u64::MAX,
                mtime_ns: 0,
                name: b"\xffz",
            })
            .unwrap();
        let mut listing = Listing::default();
        listing.take(&part, None);
        listing.sort();
        let mut out = Vec::new();
        write(&listing, &mut out);
        let expected = "[\n{ \"name\":\"sub\", \"type\":\"directory\", \"mtime\":\"Sun, 06 Nov \
            1994 08:49:37 GMT\" },\n{ \"name\":\"a \\\"b\\\"\\\\\\u000a\", \"type\":\"file\", \
            \"mtime\":\"Sun, 06 Nov 1994 08:49:38 GMT\", \"size\":5 },\n{ \"name\":\"old\", \
            \"type\":\"file\", \"size\":0 },\n{ \"name\":\"\u{fffd}z\", \"type\":\"file\", \
            \"mtime\":\"Thu, 01 Jan 1970 00:00:00 GMT\", \"size\":18446744073709551615, \
            \"href\":\"%FFz\" }\n]\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn an_empty_directory_is_an_empty_array() {
        let mut listing = Listing::default();
        listing.take(&ListPart::default(), None);
        let mut out = Vec::new();
        write(&listing, &mut out);
        assert_eq!(out, b"[\n]\n");
    }
}
