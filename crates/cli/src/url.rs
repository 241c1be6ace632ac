//! URLs of the server and its files.

use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Scheme of a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scheme {
    Http,
    Https,
}

impl Scheme {
    fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }

    /// Returns the default port of the scheme.
    fn port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }
}

/// Returns the root's URL, without the scheme's default port.
pub(crate) fn of(scheme: Scheme, address: IpAddr, port: u16) -> String {
    let host = match address {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => format!("[{address}]"),
    };
    let name = scheme.name();
    if port == scheme.port() {
        format!("{name}://{host}/")
    } else {
        format!("{name}://{host}:{port}/")
    }
}

/// Encodes a relative path for a URL (RFC 3986, section 2.1).
pub(crate) fn encode_path(path: &Path) -> String {
    let mut encoded = String::new();
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                encoded.push(char::from(*byte));
            }
            byte => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

/// Returns a command that downloads a file from the site: its page, or else the first file by name.
/// Names the certificate to trust, if any.
pub(crate) fn curl_line(url: &str, root: Option<&Path>, trusted: Option<&Path>) -> String {
    let trust = trusted.map_or_else(String::new, |file| format!("--cacert {} ", file.display()));
    let quoted = if url.contains('[') {
        format!("'{url}'")
    } else {
        url.to_owned()
    };
    match root.and_then(file_to_try) {
        Some(name) => format!("curl {trust}-O {}{}", url, encode_path(Path::new(&name))),
        None => format!("curl {trust}{quoted}"),
    }
}

/// Returns the first file by name, unless the site has an index page or no file at all.
fn file_to_try(root: &Path) -> Option<std::ffi::OsString> {
    if root.join("index.html").is_file() {
        return None;
    }
    let entries = std::fs::read_dir(root).ok()?.flatten();
    entries
        .filter(|entry| entry.path().is_file())
        .map(|entry| entry.file_name())
        .min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_is_named_unless_it_is_the_usual_one() {
        let (v4, v6) = ("10.77.0.2".parse().unwrap(), "fd77::2".parse().unwrap());
        let http = |address, port| of(Scheme::Http, address, port);
        let https = |address, port| of(Scheme::Https, address, port);
        assert_eq!(http(v4, 80), "http://10.77.0.2/");
        assert_eq!(http(v4, 8080), "http://10.77.0.2:8080/");
        assert_eq!(http(v6, 80), "http://[fd77::2]/");
        assert_eq!(http(v6, 443), "http://[fd77::2]:443/");
        assert_eq!(https(v4, 443), "https://10.77.0.2/");
        assert_eq!(https(v6, 80), "https://[fd77::2]:80/");
    }

    #[test]
    fn names_are_percent_encoded_byte_by_byte() {
        assert_eq!(
            encode_path(Path::new("a/b c%d#é?.txt")),
            "a/b%20c%25d%23%C3%A9%3F.txt"
        );
    }

    #[test]
    fn the_curl_line_names_something_that_is_there() {
        let root = tempfile::tempdir().unwrap();
        let line = || curl_line("http://10.77.0.2/", Some(root.path()), None);
        assert_eq!(line(), "curl http://10.77.0.2/");
        std::fs::create_dir(root.path().join("a")).unwrap();
        std::fs::write(root.path().join("c.mp4"), "").unwrap();
        std::fs::write(root.path().join("b b.mp4"), "").unwrap();
        assert_eq!(line(), "curl -O http://10.77.0.2/b%20b.mp4");
        std::fs::write(root.path().join("index.html"), "").unwrap();
        assert_eq!(line(), "curl http://10.77.0.2/");
        let trusting = curl_line("https://10.77.0.2/", None, Some(Path::new("/tmp/a.pem")));
        assert_eq!(trusting, "curl --cacert /tmp/a.pem https://10.77.0.2/");
    }
}
