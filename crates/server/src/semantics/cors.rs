//! Access to answers by pages of other origins (CORS, as specified by the Fetch standard).

use std::fmt;
use std::time::Duration;

use http::HeaderName;

/// Permissions of pages of other origins.
#[derive(Clone, Debug)]
pub struct Cors {
    origins: Origins,
    /// Request fields that a page may set, besides those that it always may. Default: `Range` and
    /// the conditions.
    pub request_fields: Vec<HeaderName>,
    /// Response fields that a page may read, besides those that it always may. Default: fields
    /// about ranges for media players, and whether a listing is truncated.
    pub exposed_fields: Vec<HeaderName>,
    /// Time for which a browser may cache the permission. Default: a day.
    pub max_age: Duration,
}

#[derive(Clone, Debug)]
enum Origins {
    Any,
    These {
        origins: Vec<Box<str>>,
        credentials: bool,
    },
}

/// A text that is no origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginError(String);

impl Cors {
    /// Permits pages of all origins, without credentials.
    pub fn any() -> Self {
        Cors::of(Origins::Any)
    }

    /// Permits pages of `origins`, such as `https://example.org`; with cookies and other
    /// credentials if `credentials`.
    pub fn these(origins: &[&str], credentials: bool) -> Result<Self, OriginError> {
        let checked = origins.iter().map(|&origin| {
            let host = origin.split_once("://").map_or("", |(_, host)| host);
            let may_stand = |byte: u8| byte.is_ascii_graphic() && !b"/?#,*".contains(&byte);
            if !host.is_empty() && host.bytes().all(may_stand) {
                Ok(origin.to_ascii_lowercase().into())
            } else {
                Err(OriginError(origin.to_owned()))
            }
        });
        Ok(Cors::of(Origins::These {
            origins: checked.collect::<Result<_, _>>()?,
            credentials,
        }))
    }

    fn of(origins: Origins) -> Self {
        use http::header;
        Cors {
            origins,
            request_fields: vec![
                header::RANGE,
                header::IF_RANGE,
                header::IF_MATCH,
                header::IF_NONE_MATCH,
                header::IF_MODIFIED_SINCE,
                header::IF_UNMODIFIED_SINCE,
            ],
            exposed_fields: vec![
                header::ACCEPT_RANGES,
                header::CONTENT_ENCODING,
                header::CONTENT_LENGTH,
                header::CONTENT_RANGE,
                header::DATE,
                header::ETAG,
                HeaderName::from_static("listing-truncated"),
            ],
            max_age: Duration::from_secs(86_400),
        }
    }

    /// True if answers differ between origins.
    pub(crate) fn varies(&self) -> bool {
        matches!(self.origins, Origins::These { .. })
    }

    /// Passes the CORS fields for a page of this origin to `put`; those for a preflight if
    /// `preflight`.
    pub(crate) fn write(
        &self,
        origin: Option<&[u8]>,
        preflight: bool,
        mut put: impl FnMut(&'static str, fmt::Arguments<'_>),
    ) {
        let credentials = match &self.origins {
            Origins::Any => {
                put("Access-Control-Allow-Origin", format_args!("*"));
                false
            }
            Origins::These {
                origins,
                credentials,
            } => {
                let mut known = origins.iter().filter(|known| {
                    origin.is_some_and(|origin| known.as_bytes().eq_ignore_ascii_case(origin))
                });
                let Some(known) = known.next() else { return };
                put("Access-Control-Allow-Origin", format_args!("{known}"));
                *credentials
            }
        };
        if credentials {
            put("Access-Control-Allow-Credentials", format_args!("true"));
        }
        let list = |put: &mut dyn FnMut(&'static str, fmt::Arguments<'_>), name, fields| {
            let fields: &[HeaderName] = fields;
            if !fields.is_empty() {
                put(name, format_args!("{}", List(fields)));
            }
        };
        if preflight {
            let methods = format_args!("GET, HEAD, OPTIONS");
            put("Access-Control-Allow-Methods", methods);
            list(
                &mut put,
                "Access-Control-Allow-Headers",
                &self.request_fields,
            );
            let seconds = self.max_age.as_secs();
            put("Access-Control-Max-Age", format_args!("{seconds}"));
        } else {
            list(
                &mut put,
                "Access-Control-Expose-Headers",
                &self.exposed_fields,
            );
        }
    }
}

/// Names of fields, as the value of another field.
struct List<'a>(&'a [HeaderName]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, field) in self.0.iter().enumerate() {
            let between = if at == 0 { "" } else { ", " };
            write!(f, "{between}{field}")?;
        }
        Ok(())
    }
}

impl fmt::Display for OriginError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} is no origin: write a scheme and a host, such as https://example.org or \
             http://localhost:8080, without a path",
            self.0
        )
    }
}

impl std::error::Error for OriginError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(cors: &Cors, origin: Option<&str>, preflight: bool) -> String {
        let mut out = String::new();
        cors.write(origin.map(str::as_bytes), preflight, |name, value| {
            out += &format!("{name}: {value}\r\n");
        });
        out
    }

    #[test]
    fn every_origin_may_without_credentials() {
        let cors = Cors::any();
        for origin in [None, Some("https://a.org"), Some("null")] {
            let text = written(&cors, origin, false);
            assert!(text.starts_with(
                "Access-Control-Allow-Origin: *\r\nAccess-Control-Expose-Headers: accept-ranges, "
            ));
            assert!(text.contains("content-range") && text.contains("listing-truncated"));
            assert!(!text.contains("Credentials"));
        }
        let text = written(&cors, Some("https://a.org"), true);
        assert!(
            text.contains("Access-Control-Allow-Headers: range, if-range"),
            "{text}"
        );
        assert!(
            text.ends_with("Access-Control-Max-Age: 86400\r\n"),
            "{text}"
        );
        assert!(!cors.varies());
    }

    #[test]
    fn only_those_named_may() {
        let cors = Cors::these(&["https://A.org", "http://localhost:8080"], true).unwrap();
        let text = written(&cors, Some("https://a.org"), false);
        assert!(text.starts_with(
            "Access-Control-Allow-Origin: https://a.org\r\nAccess-Control-Allow-Credentials: \
             true\r\n"
        ));
        for origin in [
            None,
            Some("null"),
            Some("https://b.org"),
            Some("https://a.org.b.org"),
            Some("http://a.org"),
            Some(""),
        ] {
            assert_eq!(written(&cors, origin, false), "", "{origin:?}");
            assert_eq!(written(&cors, origin, true), "", "{origin:?}");
        }
        assert!(cors.varies());
    }

    #[test]
    fn what_is_no_origin_is_refused() {
        for origin in [
            "",
            "*",
            "null",
            "a.org",
            "https://",
            "https://a.org/",
            "https://*.a.org",
            "https://a b",
        ] {
            let error = Cors::these(&[origin], false).unwrap_err().to_string();
            assert!(error.contains(&format!("{origin:?}")), "{error}");
        }
    }
}
