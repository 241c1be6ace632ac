//! From a file name to a media type.

/// For names that tell nothing. RFC 9110 §8.3 leaves sniffing to clients.
const UNKNOWN: &str = "application/octet-stream";

/// The media type that a path's last extension stands for.
pub(crate) fn media_type(path: &[u8]) -> &'static str {
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
    let Some(dot) = name.iter().rposition(|&byte| byte == b'.') else {
        return UNKNOWN;
    };
    // `.profile` is a hidden file without an extension.
    if dot == 0 {
        return UNKNOWN;
    }
    let Ok(extension) = std::str::from_utf8(&name[dot + 1..]) else {
        return UNKNOWN;
    };
    registered(extension)
        .or_else(|| mime_guess::from_ext(extension).first_raw())
        .unwrap_or(UNKNOWN)
}

/// Types of streaming files as IANA or the format's own RFC names them, where the general table has
/// another, older or no name.
fn registered(extension: &str) -> Option<&'static str> {
    const TYPES: [(&str, &str); 5] = [
        ("m3u8", "application/vnd.apple.mpegurl"),
        ("m4a", "audio/mp4"),
        ("m4s", "video/iso.segment"),
        ("mjs", "text/javascript"),
        ("ts", "video/mp2t"),
    ];
    TYPES
        .iter()
        .find(|(known, _)| known.eq_ignore_ascii_case(extension))
        .map(|&(_, media_type)| media_type)
}

/// Whether the type wants a `charset`.
pub(crate) fn is_text(media_type: &str) -> bool {
    media_type.starts_with("text/")
}

/// Whether files of this type are compressed already, so that compressing them once more gains
/// nothing.
pub(crate) fn is_compressed(media_type: &str) -> bool {
    let (kind, name) = media_type.split_once('/').unwrap_or((media_type, ""));
    match kind {
        "video" | "audio" => true,
        "image" => !matches!(name, "svg+xml" | "bmp" | "x-icon" | "tiff"),
        "font" => name.starts_with("woff"),
        "application" => [
            "epub+zip",
            "gzip",
            "java-archive",
            "vnd.android.package-archive",
            "vnd.rar",
            "x-7z-compressed",
            "x-bzip2",
            "x-rar-compressed",
            "x-xz",
            "zip",
            "zstd",
        ]
        .contains(&name),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extensions_name_types_in_any_case() {
        for (path, expected) in [
            ("index.html", "text/html"),
            ("a/b/STYLE.CSS", "text/css"),
            ("app.js", "text/javascript"),
            ("app.mjs", "text/javascript"),
            ("video.mp4", "video/mp4"),
            ("video.webm", "video/webm"),
            ("live/0001.Ts", "video/mp2t"),
            ("live.m3u8", "application/vnd.apple.mpegurl"),
            ("live.m4s", "video/iso.segment"),
            ("manifest.mpd", "application/dash+xml"),
            ("logo.svg", "image/svg+xml"),
            ("data.json", "application/json"),
            ("release.tar.gz", "application/gzip"),
            ("module.wasm", "application/wasm"),
        ] {
            assert_eq!(media_type(path.as_bytes()), expected, "{path}");
        }
    }

    #[test]
    fn names_that_tell_nothing_are_octets() {
        for path in [
            &b"README"[..],
            b".html",
            b"a/.html",
            b"a.html/b",
            b"x.",
            b"x.nosuchtype",
            b"x.\xff\xfe",
            b"",
        ] {
            assert_eq!(media_type(path), UNKNOWN, "{path:?}");
        }
    }

    #[test]
    fn only_what_is_not_compressed_is_worth_compressing() {
        for (name, expected) in [
            ("a.html", false),
            ("a.css", false),
            ("a.js", false),
            ("a.json", false),
            ("a.svg", false),
            ("a.wasm", false),
            ("a.m3u8", false),
            ("a.mpd", false),
            ("a.ttf", false),
            ("README", false),
            ("a.mp4", true),
            ("a.m4s", true),
            ("a.ts", true),
            ("a.mp3", true),
            ("a.jpg", true),
            ("a.png", true),
            ("a.webp", true),
            ("a.woff2", true),
            ("a.zip", true),
            ("a.gz", true),
            ("a.7z", true),
        ] {
            assert_eq!(
                is_compressed(media_type(name.as_bytes())),
                expected,
                "{name}"
            );
        }
    }
}
