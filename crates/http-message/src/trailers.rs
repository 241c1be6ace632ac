//! Fields that a trailer section may have (RFC 9110 §6.5.1).

/// Fields that cannot be trailers: of connections, framing, routing, conditions, authentication,
/// caching, the form of the content, and policies that a browser applies before it reads the
/// content.
const FORBIDDEN: [&str; 43] = [
    "allow",
    "authorization",
    "cache-control",
    "clear-site-data",
    "connection",
    "content-encoding",
    "content-length",
    "content-range",
    "content-security-policy",
    "content-type",
    "cookie",
    "date",
    "expect",
    "expires",
    "forwarded",
    "host",
    "http2-settings",
    "keep-alive",
    "location",
    "max-forwards",
    "pragma",
    "proxy-authenticate",
    "proxy-authentication-info",
    "proxy-authorization",
    "proxy-connection",
    "range",
    "refresh",
    "retry-after",
    "set-cookie",
    "strict-transport-security",
    "surrogate-control",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "vary",
    "via",
    "warning",
    "www-authenticate",
    "x-content-type-options",
    "x-forwarded-for",
    "x-forwarded-proto",
    "x-frame-options",
];

/// Beginnings of further names: conditions, and permissions for scripts.
const FORBIDDEN_PREFIXES: [&str; 2] = ["if-", "access-control-"];

/// True if a trailer section may have fields of this name, in any case.
pub fn may_have(name: &[u8]) -> bool {
    let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
    let begins_with = |prefix: &str| {
        let start = name.get(..prefix.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(prefix.as_bytes()))
    };
    !FORBIDDEN.into_iter().any(is) && !FORBIDDEN_PREFIXES.into_iter().any(begins_with)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers: RFC 9110 §6.5.1
    #[test]
    fn fields_of_framing_routing_or_content_are_no_trailers() {
        for name in [
            "Content-Length",
            "host",
            "TE",
            "If-Match",
            "access-control-max-age",
        ] {
            assert!(!may_have(name.as_bytes()), "{name}");
        }
        for name in [
            "grpc-status",
            "Digest",
            "Server-Timing",
            "i",
            "iffy",
            "x-te",
        ] {
            assert!(may_have(name.as_bytes()), "{name}");
        }
    }
}
