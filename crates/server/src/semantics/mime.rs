//! From a file name to a media type.

/// Type of names without a known extension. RFC 9110 §8.3 leaves sniffing to clients.
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
    let extension = &name[dot + 1..];
    registered(extension)
        .or_else(|| {
            let extension = std::str::from_utf8(extension).ok()?;
            new_mime_guess::from_ext(extension).first_raw()
        })
        .unwrap_or(UNKNOWN)
}

/// Longest extension in [`registered`], in bytes.
const REGISTERED_BYTES_MAX: usize = 8;

/// Types of the segments of streams, which are requested most, without a search; and types as IANA
/// or the format's own standard names them, where the general table has another, older or no name.
fn registered(extension: &[u8]) -> Option<&'static str> {
    let mut lower = [0; REGISTERED_BYTES_MAX];
    let lower = lower.get_mut(..extension.len())?;
    lower.copy_from_slice(extension);
    lower.make_ascii_lowercase();
    Some(match &*lower {
        b"m4a" => "audio/mp4",
        b"m4s" => "video/iso.segment",
        b"mp4" => "video/mp4",
        b"ts" => "video/mp2t",
        // Segments and tracks of CMAF are MP4 files (ISO/IEC 23000-19).
        b"cmfa" => "audio/mp4",
        b"cmfm" | b"cmft" => "application/mp4",
        b"cmfv" => "video/mp4",
        // ETSI TS 102 366, RFC 4598.
        b"ec3" => "audio/eac3",
        // RFC 8216 §4.
        b"m3u8" => "application/vnd.apple.mpegurl",
        // Of Blu-ray discs: a transport stream whose packets have a time in front.
        b"m2ts" => "video/mp2t",
        // RFC 9239 §6.
        b"mjs" => "text/javascript",
        // RFC 9559 §27.3.
        b"mk3d" => "video/matroska-3d",
        b"mka" => "audio/matroska",
        b"mkv" => "video/matroska",
        // RFC 9512, RFC 6922, RFC 6350, RFC 8949.
        b"yaml" | b"yml" => "application/yaml",
        b"sql" => "application/sql",
        b"vcf" => "text/vcard",
        b"cbor" => "application/cbor",
        // Registered by their makers.
        b"arrow" => "application/vnd.apache.arrow.file",
        b"mvt" => "application/vnd.mapbox-vector-tile",
        b"sqlite" | b"sqlite3" => "application/vnd.sqlite3",
        b"step" | b"stp" => "model/step",
        _ => return None,
    })
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
        "image" => !matches!(
            name,
            "svg+xml" | "bmp" | "x-icon" | "vnd.microsoft.icon" | "tiff"
        ),
        "font" => name.starts_with("woff"),
        "application" if PACKED.contains(&name) => true,
        _ => name.ends_with("+zip") || is_office_document(name),
    }
}

/// Types of applications whose files are compressed.
const PACKED: [&str; 18] = [
    "gzip",
    "java-archive",
    "mp4",
    "vnd.android.package-archive",
    "vnd.apache.parquet",
    "vnd.debian.binary-package",
    "vnd.google-earth.kmz",
    "vnd.ms-cab-compressed",
    "vnd.rar",
    "x-7z-compressed",
    "x-bzip2",
    "x-compress",
    "x-compressed",
    "x-rar-compressed",
    "x-rpm",
    "x-xz",
    "zip",
    "zstd",
];

/// ZIP archives of XML (ISO/IEC 29500, ISO/IEC 26300).
fn is_office_document(name: &str) -> bool {
    name.starts_with("vnd.openxmlformats-officedocument.")
        || name.starts_with("vnd.oasis.opendocument.") && !name.ends_with("-flat-xml")
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

    /// Extensions and types of IANA's registry, as far as it names extensions.
    const REGISTRY: &str = include_str!("../../tests/data/media_types.tsv");

    #[test]
    fn registered_extensions_have_the_registered_types() {
        let rows = REGISTRY.lines().filter(|line| !line.starts_with('#'));
        let mut extensions = Vec::new();
        for row in rows {
            let (extension, rest) = row.split_once('\t').unwrap();
            let (registered, _) = rest.split_once('\t').unwrap();
            for name in [
                format!("f.{extension}"),
                format!("F.{}", extension.to_uppercase()),
            ] {
                assert_eq!(media_type(name.as_bytes()), registered, "{name}");
            }
            extensions.push(extension);
        }
        assert!(extensions.is_sorted() && extensions.len() > 90);
    }

    #[test]
    fn tracks_of_cmaf_are_mp4() {
        for (path, expected) in [
            ("a.cmfv", "video/mp4"),
            ("a.CMFA", "audio/mp4"),
            ("a.cmft", "application/mp4"),
            ("a.ec3", "audio/eac3"),
            ("a.rpm", "application/x-rpm"),
            ("00001.m2ts", "video/mp2t"),
        ] {
            assert_eq!(media_type(path.as_bytes()), expected, "{path}");
            assert!(is_compressed(expected), "{path}");
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
            ("a.zst", true),
            ("a.deb", true),
            ("a.docx", true),
            ("a.odt", true),
            ("a.fodt", false),
            ("a.epub", true),
            ("a.usdz", true),
            ("a.stl", false),
            ("a.ttml", false),
            ("a.ico", false),
            ("a.tar", false),
            ("a.yaml", false),
        ] {
            assert_eq!(
                is_compressed(media_type(name.as_bytes())),
                expected,
                "{name}"
            );
        }
    }
}
