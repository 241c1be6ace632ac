//! From a request target (RFC 9112 §3.2) to a path below the root.

use http::StatusCode;
use http_message::authority;
use percent_encoding::{AsciiSet, CONTROLS, NON_ALPHANUMERIC, percent_encode};

/// Longest path that OPEN accepts, in bytes; `PATH_MAX` of Linux without the final zero.
pub(crate) const PATH_BYTES_MAX: usize = 4095;

/// Kind of file that a target names, by its form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A file, or a directory whose final slash is missing.
    File,
    /// A directory: the request is for an index in it.
    Directory,
}

/// Bytes to escape in a path: all but `pchar` of RFC 3986 §3.3, and the `/` between segments.
pub(crate) const NOT_PCHAR: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'!')
    .remove(b'$')
    .remove(b'&')
    .remove(b'\'')
    .remove(b'(')
    .remove(b')')
    .remove(b'*')
    .remove(b'+')
    .remove(b',')
    .remove(b';')
    .remove(b'=')
    .remove(b':')
    .remove(b'@')
    .remove(b'/');

/// Bytes to escape in a query. RFC 3986 §3.4 has more, but browsers leave the others as they are
/// (URL Standard, "query percent-encode set"), and origins expect that.
const NOT_QUERY: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'#').add(b'<').add(b'>');

/// Writes the path that a target names into `path`: relative to its site's root, decoded, without
/// `.`, `..` or empty segments, and without a slash at its end.
///
/// Escapes are decoded before dot segments are removed (RFC 3986 §6.2.2: `%2e` is a dot). Empty
/// segments are dropped, as a file system drops them, so `..` always takes a name away.
///
/// # Errors
/// The status to answer with: 400 for an invalid target, or one that climbs above the root; 404 for
/// a path that no file can have.
pub(crate) fn resolve(target: &[u8], path: &mut Vec<u8>) -> Result<Kind, StatusCode> {
    path.clear();
    let (before_query, query) = split_query(target);
    // A fragment is no part of a target (RFC 9112 §3.2); one in the path is detected while it is
    // decoded.
    if query.is_some_and(|query| query.contains(&b'#')) {
        return Err(StatusCode::BAD_REQUEST);
    }
    let Some(segments) = origin_path(before_query).strip_prefix(b"/") else {
        return Err(StatusCode::BAD_REQUEST);
    };
    let mut kind = Kind::Directory;
    for raw in segments.split(|&byte| byte == b'/') {
        let parent_len = path.len();
        if !path.is_empty() {
            path.push(b'/');
        }
        let name_start = path.len();
        decode(raw, path)?;
        kind = match &path[name_start..] {
            b"" | b"." => {
                path.truncate(parent_len);
                Kind::Directory
            }
            b".." => {
                path.truncate(parent_len);
                if path.is_empty() {
                    return Err(StatusCode::BAD_REQUEST);
                }
                let grandparent_len = path.iter().rposition(|&byte| byte == b'/').unwrap_or(0);
                path.truncate(grandparent_len);
                Kind::Directory
            }
            _ => Kind::File,
        };
    }
    Ok(kind)
}

/// Writes the path of a target in the form that patterns are compared with: with a slash at its
/// start, and at its end if it is a directory's. `path` is the result of [`resolve`].
pub(crate) fn absolute(path: &[u8], kind: Kind, out: &mut Vec<u8>) {
    out.clear();
    out.push(b'/');
    out.extend_from_slice(path);
    if kind == Kind::Directory && !path.is_empty() {
        out.push(b'/');
    }
}

/// Returns the target to request from an origin: the path and this query, with escapes for the
/// bytes that no URL may have. `path` is the result of [`resolve`].
pub(crate) fn at_origin(path: &[u8], kind: Kind, query: Option<&[u8]>) -> String {
    let mut out = Vec::new();
    out.push(b'/');
    extend(&mut out, percent_encode(path, NOT_PCHAR));
    if kind == Kind::Directory && !path.is_empty() {
        out.push(b'/');
    }
    if let Some(query) = query {
        out.push(b'?');
        extend(&mut out, percent_encode(query, NOT_QUERY));
    }
    // Escaped text is ASCII.
    String::from_utf8(out).unwrap_or_default()
}

/// Writes `Location` for a target that lacks its final slash; `None` if it has one.
///
/// The value is rebuilt from decoded segments and begins with exactly one slash: `//elsewhere` or
/// `/\elsewhere`, which browsers take for another host, cannot come out.
pub(crate) fn redirect(target: &[u8], path: &mut Vec<u8>, location: &mut Vec<u8>) -> Option<()> {
    if resolve(target, path).ok()? == Kind::Directory {
        return None;
    }
    location.clear();
    location.push(b'/');
    extend(location, percent_encode(path, NOT_PCHAR));
    location.push(b'/');
    if let Some(query) = split_query(target).1 {
        location.push(b'?');
        extend(location, percent_encode(query, CONTROLS));
    }
    Some(())
}

/// Writes `Location` for a directory's target, if relative links in an answer to it would lead
/// elsewhere, since it ends with `..` or the like: the same path without that. False if they would
/// not. `path` is the result of [`resolve`].
pub(crate) fn canonical(target: &[u8], path: &[u8], location: &mut Vec<u8>) -> bool {
    let (raw, query) = split_query(target);
    if origin_path(raw).ends_with(b"/") {
        return false;
    }
    location.clear();
    location.push(b'/');
    if !path.is_empty() {
        extend(location, percent_encode(path, NOT_PCHAR));
        location.push(b'/');
    }
    if let Some(query) = query {
        location.push(b'?');
        extend(location, percent_encode(query, CONTROLS));
    }
    true
}

pub(crate) fn extend<'a>(out: &mut Vec<u8>, pieces: impl Iterator<Item = &'a str>) {
    pieces.for_each(|piece| out.extend_from_slice(piece.as_bytes()));
}

pub(crate) fn split_query(target: &[u8]) -> (&[u8], Option<&[u8]>) {
    match target.iter().position(|&byte| byte == b'?') {
        Some(at) => (&target[..at], Some(&target[at + 1..])),
        None => (target, None),
    }
}

/// Returns the authority of a target in absolute-form, which overrides `Host` (RFC 9112 §3.2.2);
/// `None` for any other form.
pub(crate) fn authority(target: &[u8]) -> Option<&[u8]> {
    let rest = after_scheme(target)?;
    let end = rest.iter().position(|byte| b"/?#".contains(byte));
    Some(&rest[..end.unwrap_or(rest.len())])
}

/// `uri-host [ ":" port ]` (RFC 9110 §7.2) without the port.
pub(crate) fn without_port(authority: &[u8]) -> &[u8] {
    match authority.iter().rposition(|&byte| byte == b':') {
        Some(colon) if authority[colon..].iter().all(|&byte| byte != b']') => &authority[..colon],
        _ => authority,
    }
}

fn after_scheme(target: &[u8]) -> Option<&[u8]> {
    let after = |scheme: &[u8]| {
        let (start, rest) = target.split_at_checked(scheme.len())?;
        start.eq_ignore_ascii_case(scheme).then_some(rest)
    };
    after(b"http://").or_else(|| after(b"https://"))
}

/// Returns a target in absolute-form from its path's first slash on, which is nothing without a
/// path; returns any other form unchanged.
pub(crate) fn without_authority(target: &[u8]) -> &[u8] {
    let Some(rest) = after_scheme(target) else {
        return target;
    };
    match rest.iter().position(|byte| b"/?".contains(byte)) {
        Some(at) if rest[at] == b'/' => &rest[at..],
        // A path behind `?` is not the one that is served.
        _ => b"",
    }
}

/// The path of a target in origin-form or absolute-form. An absolute-form without a path means `/`.
fn origin_path(target: &[u8]) -> &[u8] {
    let Some(rest) = after_scheme(target) else {
        return target;
    };
    // RFC 9110 §4.2.1, §4.2.4: an http URI with an empty host, or with userinfo, is invalid.
    let end = rest.iter().position(|byte| b"/#".contains(byte));
    let (authority, path) = rest.split_at(end.unwrap_or(rest.len()));
    if !authority::is_valid(authority) || path.starts_with(b"#") {
        return b"";
    }
    if path.is_empty() { b"/" } else { path }
}

/// Decodes a segment's escapes onto the end of `path`.
fn decode(segment: &[u8], path: &mut Vec<u8>) -> Result<(), StatusCode> {
    let mut bytes = segment.iter();
    while let Some(&byte) = bytes.next() {
        match byte {
            b'%' => {
                let mut digit = || {
                    bytes
                        .next()
                        .and_then(|&digit| char::from(digit).to_digit(16))
                };
                let (Some(high), Some(low)) = (digit(), digit()) else {
                    return Err(StatusCode::BAD_REQUEST);
                };
                match (high * 16 + low) as u8 {
                    0 => return Err(StatusCode::BAD_REQUEST),
                    // A slash within a name: not two segments (RFC 3986 §2.2), and no file has such
                    // a name.
                    b'/' => return Err(StatusCode::NOT_FOUND),
                    decoded => path.push(decoded),
                }
            }
            b'#' => return Err(StatusCode::BAD_REQUEST),
            _ => path.push(byte),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path_of(target: &str) -> Result<String, u16> {
        let mut path = b"left over".to_vec();
        let kind = resolve(target.as_bytes(), &mut path).map_err(|status| status.as_u16())?;
        let path = String::from_utf8_lossy(&path).into_owned();
        Ok(match kind {
            Kind::File => path,
            Kind::Directory => path + "/",
        })
    }

    fn location_of(target: &str) -> Option<String> {
        let (mut path, mut location) = (Vec::new(), b"left over".to_vec());
        redirect(target.as_bytes(), &mut path, &mut location)
            .map(|()| String::from_utf8(location).expect("Location is ASCII"))
    }

    #[test]
    fn targets_name_paths() {
        for (target, path) in [
            ("/", "/"),
            ("/a", "a"),
            ("/a/", "a/"),
            ("/a/b.mp4?t=1?2/../3", "a/b.mp4"),
            ("//a///b//", "a/b/"),
            ("/%61%2Eb", "a.b"),
            ("/a%20b+c", "a b+c"),
            ("/%e2%82%ac", "€"),
            ("/%25%32%66", "%2f"),
            ("http://example.org/a", "a"),
            ("HTTPS://example.org:8/", "/"),
            ("http://example.org", "/"),
            ("http://example.org?q", "/"),
        ] {
            assert_eq!(path_of(target), Ok(path.to_owned()), "{target}");
        }
    }

    #[test]
    fn dot_segments_are_removed() {
        for (target, path) in [
            ("/.", "/"),
            ("/a/.", "a/"),
            ("/a/..", "/"),
            ("/a/b/..", "a/"),
            ("/a/./b", "a/b"),
            ("/a/../b", "b"),
            ("/a/b/../../c", "c"),
            ("/a//../b", "b"),
            ("/a/%2e%2E/b", "b"),
            ("/a/%2e/b", "a/b"),
            ("/...", "..."),
            ("/.a/..b/c..", ".a/..b/c.."),
        ] {
            assert_eq!(path_of(target), Ok(path.to_owned()), "{target}");
        }
    }

    #[test]
    fn nothing_climbs_above_the_root() {
        for target in [
            "/..",
            "/../",
            "/../a",
            "/a/../..",
            "/a/../../a",
            "/%2e%2e/a",
            "/./..",
            "//..",
            "http://h/../a",
        ] {
            assert_eq!(path_of(target), Err(400), "{target}");
        }
    }

    #[test]
    fn what_is_no_target_is_refused() {
        for target in [
            "",
            "*",
            "a",
            "?a",
            "example.org:80",
            "ftp://h/a",
            "http:///a",
            "http://",
            "http:/a",
            "/%",
            "/%4",
            "/%4/",
            "/%zz",
            "/%+1",
            "/%00",
            "/a%00.html",
            "/a#b",
            "/a?b#c",
            "/a?#",
            "http://h#/a",
            "http://h/a?b#",
        ] {
            assert_eq!(path_of(target), Err(400), "{target}");
        }
    }

    #[test]
    fn an_escaped_slash_is_no_separator() {
        assert_eq!(path_of("/a%2fb"), Err(404));
        assert_eq!(path_of("/..%2F..%2Fetc/passwd"), Err(404));
    }

    #[test]
    fn the_authority_of_an_absolute_form_names_the_host() {
        for (target, expected) in [
            ("http://a.org/b", Some("a.org")),
            ("HTTPS://a.org:8080", Some("a.org:8080")),
            ("http://a.org?http://b.org/", Some("a.org")),
            ("http:///a", Some("")),
            ("/http://a.org/", None),
            ("*", None),
            ("a.org:80", None),
        ] {
            assert_eq!(
                authority(target.as_bytes()),
                expected.map(str::as_bytes),
                "{target}"
            );
        }
    }

    #[test]
    fn what_follows_the_authority_begins_with_the_path_that_is_served() {
        for (target, expected) in [
            ("/a?b", "/a?b"),
            ("http://h/a?/b", "/a?/b"),
            ("http://h", ""),
            ("http://h?/a", ""),
        ] {
            assert_eq!(without_authority(target.as_bytes()), expected.as_bytes());
        }
    }

    #[test]
    fn redirects_keep_path_and_query() {
        for (target, location) in [
            ("/a", "/a/"),
            ("/a/b?q=1&r=%20", "/a/b/?q=1&r=%20"),
            ("/a?", "/a/?"),
            ("/a b/../c%20d%25", "/c%20d%25/"),
            ("/%e2%82%ac?€", "/%E2%82%AC/?%E2%82%AC"),
            ("http://elsewhere/a", "/a/"),
        ] {
            assert_eq!(location_of(target).as_deref(), Some(location), "{target}");
        }
    }

    #[test]
    fn redirects_stay_here() {
        for (target, location) in [
            ("//evil.example", "/evil.example/"),
            ("/.//evil.example", "/evil.example/"),
            ("/a/..//evil.example", "/evil.example/"),
            ("/\\evil.example", "/%5Cevil.example/"),
            ("/%5cevil.example", "/%5Cevil.example/"),
            ("/%0d%0aSet-Cookie:x", "/%0D%0ASet-Cookie:x/"),
        ] {
            assert_eq!(location_of(target).as_deref(), Some(location), "{target}");
        }
    }

    #[test]
    fn what_has_its_slash_is_not_redirected() {
        assert_eq!(location_of("/"), None);
        assert_eq!(location_of("/a/"), None);
        assert_eq!(location_of("/a/."), None);
    }
}
