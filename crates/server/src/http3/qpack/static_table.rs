//! The static table (RFC 9204 Appendix A), and lookups by name.

/// Names and values, by index.
pub(crate) const STATIC_TABLE: [(&str, &str); 99] = [
    (":authority", ""),
    (":path", "/"),
    ("age", "0"),
    ("content-disposition", ""),
    ("content-length", "0"),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("referer", ""),
    ("set-cookie", ""),
    (":method", "CONNECT"),
    (":method", "DELETE"),
    (":method", "GET"),
    (":method", "HEAD"),
    (":method", "OPTIONS"),
    (":method", "POST"),
    (":method", "PUT"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "103"),
    (":status", "200"),
    (":status", "304"),
    (":status", "404"),
    (":status", "503"),
    ("accept", "*/*"),
    ("accept", "application/dns-message"),
    ("accept-encoding", "gzip, deflate, br"),
    ("accept-ranges", "bytes"),
    ("access-control-allow-headers", "cache-control"),
    ("access-control-allow-headers", "content-type"),
    ("access-control-allow-origin", "*"),
    ("cache-control", "max-age=0"),
    ("cache-control", "max-age=2592000"),
    ("cache-control", "max-age=604800"),
    ("cache-control", "no-cache"),
    ("cache-control", "no-store"),
    ("cache-control", "public, max-age=31536000"),
    ("content-encoding", "br"),
    ("content-encoding", "gzip"),
    ("content-type", "application/dns-message"),
    ("content-type", "application/javascript"),
    ("content-type", "application/json"),
    ("content-type", "application/x-www-form-urlencoded"),
    ("content-type", "image/gif"),
    ("content-type", "image/jpeg"),
    ("content-type", "image/png"),
    ("content-type", "text/css"),
    ("content-type", "text/html; charset=utf-8"),
    ("content-type", "text/plain"),
    ("content-type", "text/plain;charset=utf-8"),
    ("range", "bytes=0-"),
    ("strict-transport-security", "max-age=31536000"),
    (
        "strict-transport-security",
        "max-age=31536000; includesubdomains",
    ),
    (
        "strict-transport-security",
        "max-age=31536000; includesubdomains; preload",
    ),
    ("vary", "accept-encoding"),
    ("vary", "origin"),
    ("x-content-type-options", "nosniff"),
    ("x-xss-protection", "1; mode=block"),
    (":status", "100"),
    (":status", "204"),
    (":status", "206"),
    (":status", "302"),
    (":status", "400"),
    (":status", "403"),
    (":status", "421"),
    (":status", "425"),
    (":status", "500"),
    ("accept-language", ""),
    ("access-control-allow-credentials", "FALSE"),
    ("access-control-allow-credentials", "TRUE"),
    ("access-control-allow-headers", "*"),
    ("access-control-allow-methods", "get"),
    ("access-control-allow-methods", "get, post, options"),
    ("access-control-allow-methods", "options"),
    ("access-control-expose-headers", "content-length"),
    ("access-control-request-headers", "content-type"),
    ("access-control-request-method", "get"),
    ("access-control-request-method", "post"),
    ("alt-svc", "clear"),
    ("authorization", ""),
    (
        "content-security-policy",
        "script-src 'none'; object-src 'none'; base-uri 'none'",
    ),
    ("early-data", "1"),
    ("expect-ct", ""),
    ("forwarded", ""),
    ("if-range", ""),
    ("origin", ""),
    ("purpose", "prefetch"),
    ("server", ""),
    ("timing-allow-origin", "*"),
    ("upgrade-insecure-requests", "1"),
    ("user-agent", ""),
    ("x-forwarded-for", ""),
    ("x-frame-options", "deny"),
    ("x-frame-options", "sameorigin"),
];

/// Longest name in the table, in bytes.
const NAME_BYTES_MAX: usize = 32;

/// Indices in order of the length of their names, and where those of each length begin.
const BY_LENGTH: ([u8; STATIC_TABLE.len()], [u8; NAME_BYTES_MAX + 2]) = {
    let mut indices = [0; STATIC_TABLE.len()];
    let mut starts = [0; NAME_BYTES_MAX + 2];
    let (mut count, mut length) = (0, 0);
    while length <= NAME_BYTES_MAX {
        starts[length] = count as u8;
        let mut index = 0;
        while index < STATIC_TABLE.len() {
            if STATIC_TABLE[index].0.len() == length {
                indices[count] = index as u8;
                count += 1;
            }
            index += 1;
        }
        length += 1;
    }
    starts[NAME_BYTES_MAX + 1] = count as u8;
    assert!(count == STATIC_TABLE.len(), "every name has a place");
    (indices, starts)
};

/// Indices of the entries with this name, in any case.
pub(crate) fn named(name: &str) -> impl Iterator<Item = u8> {
    let (indices, starts) = &BY_LENGTH;
    let of_length = match (starts.get(name.len()), starts.get(name.len() + 1)) {
        (Some(&start), Some(&end)) => &indices[usize::from(start)..usize::from(end)],
        _ => &[],
    };
    let has_name = |&index: &u8| {
        STATIC_TABLE[usize::from(index)]
            .0
            .eq_ignore_ascii_case(name)
    };
    of_length.iter().copied().filter(has_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers: RFC 9204 §3.1
    #[test]
    fn every_entry_is_found_by_its_name() {
        for (index, (name, _)) in STATIC_TABLE.iter().enumerate() {
            assert_eq!(*name, name.to_ascii_lowercase());
            let capitals = name.to_ascii_uppercase();
            assert!(named(&capitals).any(|found| usize::from(found) == index));
            assert!(named(name).all(|found| STATIC_TABLE[usize::from(found)].0 == *name));
        }
        for unknown in [
            "",
            "x",
            "etags",
            &"x".repeat(32),
            &"x".repeat(33),
            &"x".repeat(1000),
        ] {
            assert_eq!(named(unknown).count(), 0, "{unknown}");
        }
    }

    /// Covers: RFC 9204 §A
    #[test]
    fn the_table_is_that_of_the_text() {
        for (index, entry) in [
            (0, (":authority", "")),
            (1, (":path", "/")),
            (15, (":method", "CONNECT")),
            (25, (":status", "200")),
            (32, ("accept-ranges", "bytes")),
            (52, ("content-type", "text/html; charset=utf-8")),
            (62, ("x-xss-protection", "1; mode=block")),
            (63, (":status", "100")),
            (74, ("access-control-allow-credentials", "TRUE")),
            (98, ("x-frame-options", "sameorigin")),
        ] {
            assert_eq!(STATIC_TABLE[index], entry);
        }
    }
}
