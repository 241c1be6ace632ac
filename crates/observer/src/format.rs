//! Lines of the access log.

use std::borrow::Cow;
use std::io::Write as _;
use std::time::{Duration, SystemTime};

use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use server::AccessRecord;
use time::OffsetDateTime;

use crate::access_format::AccessFormat;

/// Converts times of the host's clock to the time of day.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    now: SystemTime,
    now_us: u64,
}

impl Clock {
    /// The clock at this moment.
    pub(crate) fn now() -> Self {
        let monotonic = clock_gettime(ClockId::Monotonic);
        Self {
            now: SystemTime::now(),
            now_us: monotonic.tv_sec as u64 * 1_000_000 + monotonic.tv_nsec as u64 / 1_000,
        }
    }

    fn at(self, us: u64) -> OffsetDateTime {
        let ago = Duration::from_micros(self.now_us.saturating_sub(us));
        OffsetDateTime::from(self.now.checked_sub(ago).unwrap_or(self.now))
    }
}

/// Appends the line of a record. The cache status uses nginx's terms and spelling.
pub(crate) fn write(
    format: AccessFormat,
    clock: Clock,
    record: &AccessRecord<'_>,
    lines: &mut Vec<u8>,
) {
    let ended = clock.at(record.ended_us);
    match format {
        AccessFormat::Combined => combined(ended, record, lines),
        AccessFormat::CombinedCache => {
            combined(ended, record, lines);
            lines.push(b' ');
            lines.extend(
                record
                    .cache
                    .unwrap_or("-")
                    .bytes()
                    .map(|it| it.to_ascii_uppercase()),
            );
        }
        AccessFormat::Json => json(ended, record, lines),
    }
    lines.push(b'\n');
}

const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];

/// `$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent "$http_referer"
/// "$http_user_agent"` in nginx's terms, in UTC.
fn combined(ended: OffsetDateTime, record: &AccessRecord<'_>, lines: &mut Vec<u8>) {
    let month = MONTHS[usize::from(u8::from(ended.month())) - 1];
    let (hour, minute, second) = ended.to_hms();
    // Writing to memory does not fail.
    let _ = write!(
        lines,
        "{} - - [{:02}/{month}/{:04}:{hour:02}:{minute:02}:{second:02} +0000] \"",
        record.client.ip(),
        ended.day(),
        ended.year(),
    );
    let request = Some(record.request_line).filter(|line| !line.is_empty());
    escape(request, lines);
    let _ = write!(lines, "\" {} {} \"", record.status, record.body_bytes);
    escape(record.referer, lines);
    lines.extend_from_slice(b"\" \"");
    escape(record.user_agent, lines);
    lines.push(b'"');
}

/// Escapes as nginx does by default: bytes other than printable ASCII, quotation marks and
/// backslashes become `\xXX`; a missing text becomes `-`.
fn escape(text: Option<&[u8]>, lines: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    for &byte in text.unwrap_or(b"-") {
        match byte {
            b'"' | b'\\' | ..=0x1f | 0x7f.. => {
                let (high, low) = (usize::from(byte >> 4), usize::from(byte & 15));
                lines.extend_from_slice(&[b'\\', b'x', HEX[high], HEX[low]]);
            }
            byte => lines.push(byte),
        }
    }
}

/// A line in JSON, in the order of its fields.
#[derive(Serialize)]
struct Line<'a> {
    time: String,
    remote_addr: std::net::IpAddr,
    remote_port: Option<u16>,
    peer_addr: Option<std::net::IpAddr>,
    connection: u64,
    connection_request: u32,
    method: Option<Cow<'a, str>>,
    target: Option<Cow<'a, str>>,
    protocol: Option<Cow<'a, str>>,
    host: Option<Cow<'a, str>>,
    site: Option<&'a str>,
    status: u16,
    body_bytes: u64,
    offloaded_bytes: u64,
    range: Option<Cow<'a, str>>,
    referer: Option<Cow<'a, str>>,
    user_agent: Option<Cow<'a, str>>,
    content_coding: Option<&'a str>,
    cache: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    backend: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retries: Option<u8>,
    first_byte_us: Option<u64>,
    total_us: u64,
    cut_short: bool,
    retransmissions: u32,
    tls_version: Option<&'a str>,
    tls_cipher: Option<&'a str>,
    tls_resumed: Option<bool>,
}

fn json(ended: OffsetDateTime, record: &AccessRecord<'_>, lines: &mut Vec<u8>) {
    fn text(bytes: &[u8]) -> Cow<'_, str> {
        String::from_utf8_lossy(bytes)
    }
    let [method, target, protocol] = parts(record.request_line);
    let (hour, minute, second) = ended.to_hms();
    let line = Line {
        time: format!(
            "{:04}-{:02}-{:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z",
            ended.year(),
            u8::from(ended.month()),
            ended.day(),
            ended.millisecond(),
        ),
        remote_addr: record.client.ip(),
        remote_port: Some(record.client.port()).filter(|port| *port != 0),
        peer_addr: record.proxy,
        connection: record.connection,
        connection_request: record.request,
        method: method.map(text),
        target: target.map(text),
        protocol: protocol.map(text),
        host: record.host.map(text),
        site: record.site,
        status: record.status,
        body_bytes: record.body_bytes,
        offloaded_bytes: record.offloaded_bytes,
        range: record.range.map(text),
        referer: record.referer.map(text),
        user_agent: record.user_agent.map(text),
        content_coding: record.coding,
        cache: record.cache,
        backend: record.backend,
        retries: record.backend.map(|_| record.retries),
        first_byte_us: record.first_byte_us,
        total_us: record.total_us,
        cut_short: record.is_cut_short,
        retransmissions: record.retransmissions,
        tls_version: record.tls.map(|tls| tls.version),
        tls_cipher: record.tls.map(|tls| tls.cipher),
        tls_resumed: record.tls.map(|tls| tls.is_resumed),
    };
    // Neither these types nor writing to memory fail.
    let _ = serde_json::to_writer(&mut *lines, &line);
}

/// Method, target and protocol of a request line; a malformed line is returned as the target.
pub(crate) fn parts(line: &[u8]) -> [Option<&[u8]>; 3] {
    let mut words = line.splitn(2, |&byte| byte == b' ');
    if let (Some(method), Some(rest)) = (words.next(), words.next())
        && let Some(end) = rest.iter().rposition(|&byte| byte == b' ')
        && rest[end + 1..].starts_with(b"HTTP/")
    {
        return [Some(method), Some(&rest[..end]), Some(&rest[end + 1..])];
    }
    [None, Some(line).filter(|line| !line.is_empty()), None]
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use server::AccessTls;

    pub(crate) fn record() -> AccessRecord<'static> {
        AccessRecord {
            client: "[2001:db8::7]:40000".parse().unwrap(),
            proxy: None,
            connection: 12,
            request: 3,
            ended_us: 5_000_000,
            total_us: 1_234,
            first_byte_us: Some(56),
            status: 206,
            body_bytes: 1_000,
            offloaded_bytes: 900,
            retransmissions: 2,
            is_cut_short: true,
            tls: Some(AccessTls {
                version: "TLSv1.3",
                cipher: "AES-128-GCM",
                is_resumed: true,
            }),
            coding: Some("br"),
            cache: Some("hit"),
            backend: None,
            retries: 0,
            site: Some("example.org"),
            request_line: b"GET /a%20b?q=\"x\" HTTP/1.1",
            host: Some(b"example.org:8443"),
            range: Some(b"bytes=0-999"),
            referer: Some(b"https://example.net/\\"),
            user_agent: Some(b"na\xc3\xafve\x7f\x01"),
        }
    }

    /// 2026-11-02 03:04:05.678 at five seconds of the host's clock.
    fn clock() -> Clock {
        Clock {
            now: SystemTime::UNIX_EPOCH + Duration::from_millis(1_793_588_645_678 + 1_000),
            now_us: 6_000_000,
        }
    }

    fn line(format: AccessFormat, record: &AccessRecord<'_>) -> String {
        let mut lines = Vec::new();
        write(format, clock(), record, &mut lines);
        String::from_utf8(lines).unwrap()
    }

    #[test]
    fn combined_lines_are_those_of_nginx() {
        assert_eq!(
            line(AccessFormat::Combined, &record()),
            "2001:db8::7 - - [02/Nov/2026:03:04:05 +0000] \"GET /a%20b?q=\\x22x\\x22 HTTP/1.1\" \
             206 1000 \"https://example.net/\\x5C\" \"na\\xC3\\xAFve\\x7F\\x01\"\n"
        );
        let with_cache = line(AccessFormat::CombinedCache, &record());
        assert!(with_cache.ends_with("\\x7F\\x01\" HIT\n"), "{with_cache}");
        let bare = AccessRecord {
            client: "192.0.2.1:1".parse().unwrap(),
            status: 408,
            body_bytes: 0,
            request_line: b"",
            referer: None,
            user_agent: Some(b""),
            cache: None,
            ..record()
        };
        let with_cache = line(AccessFormat::CombinedCache, &bare);
        assert!(with_cache.ends_with("\"-\" \"\" -\n"), "{with_cache}");
        assert_eq!(
            line(AccessFormat::Combined, &bare),
            "192.0.2.1 - - [02/Nov/2026:03:04:05 +0000] \"-\" 408 0 \"-\" \"\"\n"
        );
    }

    #[test]
    fn json_lines_have_everything() {
        assert_eq!(
            line(AccessFormat::Json, &record()),
            concat!(
                r#"{"time":"2026-11-02T03:04:05.678Z","remote_addr":"2001:db8::7","#,
                r#""remote_port":40000,"peer_addr":null,"#,
                r#""connection":12,"#,
                r#""connection_request":3,"method":"GET","target":"/a%20b?q=\"x\"","#,
                r#""protocol":"HTTP/1.1","#,
                r#""host":"example.org:8443","site":"example.org","status":206,"body_bytes":1000,"#,
                r#""offloaded_bytes":900,"#,
                r#""range":"bytes=0-999","referer":"https://example.net/\\","user_agent":"naïve"#,
                "\u{7f}",
                r#"\u0001","#,
                r#""content_coding":"br","cache":"hit","first_byte_us":56,"total_us":1234,"#,
                r#""cut_short":true,"#,
                r#""retransmissions":2,"#,
                r#""tls_version":"TLSv1.3","tls_cipher":"AES-128-GCM","tls_resumed":true}"#,
                "\n"
            )
        );
    }

    #[test]
    fn a_client_behind_a_proxy_has_no_port_if_the_proxy_does_not_name_it() {
        let proxied = AccessRecord {
            client: "192.0.2.1:0".parse().unwrap(),
            proxy: Some("fd00::9".parse().unwrap()),
            ..record()
        };
        let fields = r#""remote_addr":"192.0.2.1","remote_port":null,"peer_addr":"fd00::9","#;
        let json = line(AccessFormat::Json, &proxied);
        assert!(json.contains(fields), "{json}");
        let combined = line(AccessFormat::Combined, &proxied);
        assert!(combined.starts_with("192.0.2.1 - - ["), "{combined}");
    }

    #[test]
    fn what_was_forwarded_has_its_backend() {
        let forwarded = AccessRecord {
            backend: Some("192.0.2.7:80"),
            retries: 1,
            ..record()
        };
        let line = line(AccessFormat::Json, &forwarded);
        let fields = r#""cache":"hit","backend":"192.0.2.7:80","retries":1,"first_byte_us""#;
        assert!(line.contains(fields), "{line}");
    }

    #[test]
    fn what_is_no_request_line_is_logged_as_it_came() {
        for (line, expected) in [
            (
                &b"GET / HTTP/1.0"[..],
                [Some(&b"GET"[..]), Some(b"/"), Some(b"HTTP/1.0")],
            ),
            (
                b"GET /a b HTTP/1.1",
                [Some(b"GET"), Some(b"/a b"), Some(b"HTTP/1.1")],
            ),
            (b"GET /", [None, Some(b"GET /"), None]),
            (b"\x16\x03\x01", [None, Some(b"\x16\x03\x01"), None]),
            (b"", [None, None, None]),
        ] {
            assert_eq!(parts(line), expected);
        }
        let odd = AccessRecord {
            request_line: b"\xff\n",
            ..record()
        };
        let text = line(AccessFormat::Json, &odd);
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["target"], "\u{fffd}\n");
        assert_eq!(text.lines().count(), 1);
    }
}
