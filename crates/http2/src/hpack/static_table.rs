//! The static table (RFC 7541 Appendix A).

/// Names and values, from index 1 on.
pub(super) const STATIC_TABLE: [(&str, &str); 61] = [
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "200"),
    (":status", "204"),
    (":status", "206"),
    (":status", "304"),
    (":status", "400"),
    (":status", "404"),
    (":status", "500"),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
    ("accept-language", ""),
    ("accept-ranges", ""),
    ("accept", ""),
    ("access-control-allow-origin", ""),
    ("age", ""),
    ("allow", ""),
    ("authorization", ""),
    ("cache-control", ""),
    ("content-disposition", ""),
    ("content-encoding", ""),
    ("content-language", ""),
    ("content-length", ""),
    ("content-location", ""),
    ("content-range", ""),
    ("content-type", ""),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("expect", ""),
    ("expires", ""),
    ("from", ""),
    ("host", ""),
    ("if-match", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("if-range", ""),
    ("if-unmodified-since", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("max-forwards", ""),
    ("proxy-authenticate", ""),
    ("proxy-authorization", ""),
    ("range", ""),
    ("referer", ""),
    ("refresh", ""),
    ("retry-after", ""),
    ("server", ""),
    ("set-cookie", ""),
    ("strict-transport-security", ""),
    ("transfer-encoding", ""),
    ("user-agent", ""),
    ("vary", ""),
    ("via", ""),
    ("www-authenticate", ""),
];

/// Index of the first entry with this name, which is in lower case.
pub(super) fn index_of(name: &str) -> Option<usize> {
    let found = STATIC_TABLE.iter().position(|(known, _)| *known == name);
    found.map(|place| place + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers: RFC 7541 §A
    #[test]
    fn names_have_the_indices_of_the_text() {
        for (name, index) in [
            (":authority", 1),
            (":status", 8),
            ("accept-charset", 15),
            ("content-length", 28),
            ("date", 33),
            ("www-authenticate", 61),
        ] {
            assert_eq!(index_of(name), Some(index), "{name}");
        }
        assert_eq!(index_of("x-none"), None);
    }
}
