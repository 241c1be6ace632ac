//! From a file name to a media type.

use std::collections::HashMap;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use http2::field;

/// A media type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MediaType {
    /// One that the server knows.
    Known(&'static str),
    /// One of the configuration.
    Configured(Arc<ConfiguredType>),
}

/// A media type of the configuration, behind one pointer: waiting requests have little room.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ConfiguredType(Box<str>);

impl Deref for MediaType {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            MediaType::Known(name) => name,
            MediaType::Configured(configured) => &configured.0,
        }
    }
}

/// Media types by extension, before those that the server knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MediaTypes(HashMap<Box<[u8]>, Arc<ConfiguredType>>);

/// An extension or a type that is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MediaTypeError {
    /// No file has this extension.
    Extension(String),
    /// This is no media type.
    MediaType(String),
}

impl MediaTypes {
    /// Adds the type of an extension, without its dot, in any case.
    ///
    /// # Errors
    /// If no file has the extension, or the type is none (RFC 9110 §8.3.1).
    pub fn add(&mut self, extension: &str, media_type: &str) -> Result<(), MediaTypeError> {
        if extension.is_empty() || extension.contains(['.', '/', '\0']) {
            return Err(MediaTypeError::Extension(extension.to_owned()));
        }
        let essence = media_type.split(';').next().unwrap_or_default().trim_end();
        let is_token = |part: &str| !part.is_empty() && part.bytes().all(field::is_token);
        let is_type = essence
            .split_once('/')
            .is_some_and(|(kind, name)| is_token(kind) && is_token(name));
        if !is_type
            || !media_type
                .bytes()
                .all(|byte| byte == b' ' || byte.is_ascii_graphic())
        {
            return Err(MediaTypeError::MediaType(media_type.to_owned()));
        }
        let extension = extension.to_ascii_lowercase().into_bytes();
        let configured = ConfiguredType(media_type.into());
        self.0.insert(extension.into(), Arc::new(configured));
        Ok(())
    }

    /// The media type that a path's last extension stands for.
    pub(crate) fn of(&self, path: &[u8]) -> MediaType {
        let configured = (!self.0.is_empty()).then(|| {
            let extension = extension(path)?.to_ascii_lowercase();
            self.0.get(&extension[..]).cloned()
        });
        match configured.flatten() {
            Some(configured) => MediaType::Configured(configured),
            None => MediaType::Known(media_type(path)),
        }
    }
}

impl fmt::Display for MediaTypeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MediaTypeError::Extension(extension) => {
                write!(
                    f,
                    "{extension:?} is no extension: it has no dot and no slash, as in webp"
                )
            }
            MediaTypeError::MediaType(name) => write!(
                f,
                "{name:?} is no media type, such as image/webp or text/plain; charset=utf-8"
            ),
        }
    }
}

impl std::error::Error for MediaTypeError {}

/// Type of names without a known extension. RFC 9110 §8.3 leaves sniffing to clients.
const UNKNOWN: &str = "application/octet-stream";

fn extension(path: &[u8]) -> Option<&[u8]> {
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
    let dot = name.iter().rposition(|&byte| byte == b'.')?;
    // `.profile` is a hidden file without an extension.
    (dot > 0).then(|| &name[dot + 1..])
}

/// The media type that the server knows for a path's last extension.
fn media_type(path: &[u8]) -> &'static str {
    let Some(extension) = extension(path) else {
        return UNKNOWN;
    };
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

/// Whether the type wants a `charset`, and has none.
pub(crate) fn is_text(media_type: &str) -> bool {
    media_type.starts_with("text/") && !media_type.contains(';')
}

/// Whether files of this type are compressed already, so that compressing them once more gains
/// nothing.
pub(crate) fn is_compressed(media_type: &str) -> bool {
    let essence = media_type.split(';').next().unwrap_or_default().trim_end();
    let (kind, name) = essence.split_once('/').unwrap_or((essence, ""));
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
    fn configured_types_come_first_and_must_be_types() {
        let mut types = MediaTypes::default();
        types.add("MD", "text/markdown; charset=utf-8").unwrap();
        types.add("mp4", "application/mp4").unwrap();
        for (path, expected) in [
            ("a/b.Md", "text/markdown; charset=utf-8"),
            ("b.mp4", "application/mp4"),
            ("b.m4s", "video/iso.segment"),
            (".md", UNKNOWN),
            ("md", UNKNOWN),
        ] {
            assert_eq!(&*types.of(path.as_bytes()), expected, "{path}");
        }
        assert!(!is_text("text/markdown; charset=utf-8") && is_text("text/css"));
        for extension in ["", ".md", "a/b"] {
            let error = types.add(extension, "text/plain").unwrap_err();
            assert!(matches!(error, MediaTypeError::Extension(_)), "{error}");
        }
        for name in [
            "",
            "text",
            "text/",
            "/plain",
            "text/plain\r\nA: b",
            "te xt/plain",
            "a/b/c",
        ] {
            let error = types.add("md", name).unwrap_err();
            assert_eq!(error, MediaTypeError::MediaType(name.to_owned()));
            assert!(error.to_string().contains("image/webp"));
        }
    }

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
