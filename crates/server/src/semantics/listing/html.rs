//! A listing for people: one page without further resources.

use std::fmt;
use std::io::Write;

use host::app::{Entry, EntryKind};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};

use super::Listing;
use crate::semantics::date;
use crate::semantics::target;

/// Bytes that are escaped in a link's segment: a colon would turn a name into a scheme.
pub(super) const NOT_UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

const STYLE: &str = "\
:root { color-scheme: light dark; --text: #1f2328; --soft: #59636e;
  --line: #d1d9e0; --page: #fff; --link: #0a58ca }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6e8eb; --soft: #9aa4af; --line: #343a41;
    --page: #16181b; --link: #7db4ff }
}
body { margin: 2rem auto; padding: 0 1rem; max-width: 60rem; font: 1rem/1.5 system-ui, sans-serif;
  color: var(--text); background: var(--page) }
h1 { font-size: 1.25rem; overflow-wrap: anywhere }
table { width: 100%; border-collapse: collapse }
th, td { padding: .25rem .5rem; text-align: left;
  border-bottom: 1px solid var(--line);
  overflow-wrap: anywhere }
th, td + td { color: var(--soft); font-weight: normal }
td + td { white-space: nowrap; font-variant-numeric: tabular-nums }
th:nth-child(2), td:nth-child(2) { text-align: right }
a { color: var(--link); text-decoration: none }
a:hover { text-decoration: underline }
";

/// Writes the page of the directory with this path, relative to its site's root.
pub(super) fn write(listing: &Listing, path: &[u8], out: &mut Vec<u8>) {
    let title = match path {
        b"" => "/".to_owned(),
        _ => format!("/{}/", String::from_utf8_lossy(path)),
    };
    let mut escaped = Vec::new();
    escape(&title, &mut escaped);
    for piece in [
        b"<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
          <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
          <title>Index of "
            .as_slice(),
        &escaped,
        b"</title>\n<style>\n",
        STYLE.as_bytes(),
        b"</style>\n<h1>Index of <bdi>",
        &escaped,
        b"</bdi></h1>\n<table>\n<thead><tr><th>Name<th>Size<th>Modified (UTC)</thead>\n<tbody>\n",
    ] {
        out.extend_from_slice(piece);
    }
    if !path.is_empty() {
        out.extend_from_slice(b"<tr><td><a href=\"../\">../</a><td><td>\n");
    }
    let mut count = 0;
    for entry in listing.entries() {
        row(&entry, out);
        count += 1;
    }
    out.extend_from_slice(b"</tbody>\n</table>\n");
    if listing.is_truncated {
        put(
            out,
            format_args!("<p>This directory has more: only {count} of its entries are listed.\n"),
        );
    } else if count == 0 {
        out.extend_from_slice(b"<p>This directory is empty.\n");
    }
    out.extend_from_slice(b"</html>\n");
}

/// Writes a row in pieces: a format string with several arguments costs more than the pieces, and a
/// page may have thousands of rows.
fn row(entry: &Entry<'_>, out: &mut Vec<u8>) {
    let slash: &[u8] = match entry.kind {
        EntryKind::Directory => b"/",
        EntryKind::File => b"",
    };
    out.extend_from_slice(b"<tr><td><a href=\"");
    target::extend(out, percent_encode(entry.name, NOT_UNRESERVED));
    out.extend_from_slice(slash);
    // Isolated, so that a name cannot change the direction of the text after it.
    out.extend_from_slice(b"\"><bdi>");
    escape(&String::from_utf8_lossy(entry.name), out);
    out.extend_from_slice(b"</bdi>");
    out.extend_from_slice(slash);
    out.extend_from_slice(b"</a><td>");
    if entry.kind == EntryKind::File {
        out.extend_from_slice(b"<data value=\"");
        put(out, format_args!("{}", entry.size));
        out.extend_from_slice(b"\">");
        size(entry.size, out);
        out.extend_from_slice(b"</data>");
    }
    out.extend_from_slice(b"<td>");
    if let Some(second) = date::modified_s(entry.mtime_ns) {
        out.extend_from_slice(b"<time>");
        put(out, format_args!("{}", date::Minute(second)));
        out.extend_from_slice(b"</time>");
    }
    out.push(b'\n');
}

fn put(out: &mut Vec<u8>, text: fmt::Arguments<'_>) {
    // Writing to a `Vec` cannot fail.
    let _ = out.write_fmt(text);
}

/// Writes text for elements and attributes, with special characters escaped.
fn escape(text: &str, out: &mut Vec<u8>) {
    let mut rest = text;
    let is_special = |char: char| matches!(char, '&' | '<' | '>' | '"' | '\'') || char.is_control();
    while let Some(at) = rest.find(is_special) {
        let (before, behind) = rest.split_at(at);
        let mut behind = behind.chars();
        out.extend_from_slice(before.as_bytes());
        let written = match behind.next() {
            Some('&') => "&amp;",
            Some('<') => "&lt;",
            Some('>') => "&gt;",
            Some('"') => "&quot;",
            Some('\'') => "&#39;",
            // HTML cannot express control characters.
            _ => "\u{fffd}",
        };
        out.extend_from_slice(written.as_bytes());
        rest = behind.as_str();
    }
    out.extend_from_slice(rest.as_bytes());
}

/// Writes a size for people, with one decimal below 100.
fn size(bytes: u64, out: &mut Vec<u8>) {
    const UNITS: [&str; 6] = [" KiB", " MiB", " GiB", " TiB", " PiB", " EiB"];
    let power = (bytes.max(1).ilog2() / 10) as usize;
    let Some(unit) = power.checked_sub(1).and_then(|at| UNITS.get(at)) else {
        return put(out, format_args!("{bytes} B"));
    };
    // Below 2^74, and below 10 * 2^10 after the shift.
    let tenths = ((u128::from(bytes) * 10) >> (10 * power)) as u32;
    put(out, format_args!("{}", tenths / 10));
    if tenths < 1000 {
        out.extend_from_slice(&[b'.', b'0' + (tenths % 10) as u8]);
    }
    out.extend_from_slice(unit.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(entries: &[(EntryKind, &str, u64, i64)], path: &str) -> String {
        let mut listing = Listing::default();
        listing.take(&super::super::tests::part(entries), None);
        listing.sort();
        let mut out = Vec::new();
        write(&listing, path.as_bytes(), &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn names_mean_nothing_but_themselves() {
        let name = "<b>&\"'\n\u{202e}:%2f?#";
        let page = page(&[(EntryKind::File, name, 1, 0)], "a/<i>");
        let href = "%3Cb%3E%26%22%27%0A%E2%80%AE%3A%252f%3F%23";
        let text = "&lt;b&gt;&amp;&quot;&#39;\u{fffd}\u{202e}:%2f?#";
        let link = format!("<a href=\"{href}\"><bdi>{text}</bdi></a>");
        assert!(page.contains(&link), "{page}");
        assert!(
            page.contains("<title>Index of /a/&lt;i&gt;/</title>"),
            "{page}"
        );
        assert!(!page.contains("<b>") && !page.contains("<i>"), "{page}");
    }

    #[test]
    fn a_page_leads_up_and_down_and_tells_sizes_and_times() {
        let entries = [
            (EntryKind::File, "b.txt", 1536, 784_111_777_000_000_000),
            (EntryKind::Directory, "sub", 4096, 784_111_777_000_000_000),
            (EntryKind::File, "ancient", 0, -1),
        ];
        let inner = page(&entries, "d");
        let rows: Vec<&str> = inner
            .lines()
            .filter(|line| line.starts_with("<tr>"))
            .collect();
        assert_eq!(
            rows,
            [
                "<tr><td><a href=\"../\">../</a><td><td>",
                "<tr><td><a href=\"sub/\"><bdi>sub</bdi>/</a><td><td><time>1994-11-06 08:49</time>",
                "<tr><td><a href=\"ancient\"><bdi>ancient</bdi></a><td><data value=\"0\">0 \
                 B</data><td>",
                "<tr><td><a href=\"b.txt\"><bdi>b.txt</bdi></a><td><data value=\"1536\">1.5 \
                 KiB</data><td><time>1994-11-06 08:49</time>",
            ]
        );
        assert!(
            !page(&entries, "").contains("../"),
            "the root has no parent"
        );
        assert!(page(&[], "").contains("is empty"));
    }

    #[test]
    fn sizes_are_written_as_people_read_them() {
        for (bytes, expected) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (10_188, "9.9 KiB"),
            (102_400, "100 KiB"),
            (1 << 20, "1.0 MiB"),
            (5 << 30, "5.0 GiB"),
            (u64::MAX, "15.9 EiB"),
        ] {
            let mut out = Vec::new();
            size(bytes, &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), expected);
        }
    }
}
