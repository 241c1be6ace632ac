//! The listener for operators: HTTP/1.1 on the kernel's TCP, for a few clients at a time, each
//! within a time limit.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use crate::exposition;
use crate::intake::wait_or_stop;
use crate::metrics::Metrics;

/// Most clients at a time; one more disconnects the oldest.
const CLIENTS_MAX: usize = 16;

/// Time limit of a client's request and response.
const PATIENCE: Duration = Duration::from_secs(5);

/// Longest request head, in bytes.
const HEAD_BYTES_MAX: usize = 8 << 10;

struct Answer {
    status: &'static str,
    media_type: &'static str,
    further: Cow<'static, str>,
    body: Cow<'static, str>,
}

/// The whole page, without other resources.
const DASHBOARD: &str = include_str!("dashboard.html");

/// Content security policy of the page: its inline script and style, and requests to this listener.
static POLICY: LazyLock<String> = LazyLock::new(|| {
    let hash = |tag: &str| {
        let (_, rest) = DASHBOARD
            .split_once(&format!("<{tag}>"))
            .unwrap_or_default();
        let (text, _) = rest.split_once(&format!("</{tag}>")).unwrap_or_default();
        format!("'sha256-{}'", base64(&Sha256::digest(text)))
    };
    format!(
        "Content-Security-Policy: default-src 'none'; style-src {}; script-src {}; connect-src \
         'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n",
        hash("style"),
        hash("script"),
    )
});

/// RFC 4648 §4.
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let [a, b, c] = [0, 1, 2].map(|at| u32::from(chunk.get(at).copied().unwrap_or(0)));
        let bits = a << 16 | b << 8 | c;
        for place in 0..4 {
            let digit = ALPHABET[(bits >> (18 - 6 * place) & 63) as usize];
            text.push(if place > chunk.len() {
                '='
            } else {
                digit.into()
            });
        }
    }
    text
}

/// Responds until `stop` is readable; unfinished clients are then cut off.
pub fn serve(listener: &TcpListener, stop: BorrowedFd<'_>, metrics: &Arc<Metrics>) {
    let clients = Arc::new(Clients::default());
    while wait_or_stop(listener.as_fd(), stop) {
        let Ok((client, _)) = listener.accept() else {
            // The client has gone, or there is no descriptor for it: other clients free theirs
            // soon.
            thread::sleep(Duration::from_millis(10));
            continue;
        };
        let (metrics, place) = (Arc::clone(metrics), Place::take(&clients, client));
        let work = move || {
            if let Err(error) = attend(&place.client, &metrics, PATIENCE) {
                tracing::debug!(%error, "a client of the admin listener has gone");
            }
        };
        let builder = thread::Builder::new().name("client".to_owned());
        if let Err(error) = builder.stack_size(256 << 10).spawn(work) {
            tracing::debug!(%error, "no thread for a client of the admin listener");
        }
    }
}

/// Clients in service, the oldest first.
type Clients = Mutex<VecDeque<Arc<TcpStream>>>;

/// A client's entry among [`CLIENTS_MAX`].
struct Place {
    client: Arc<TcpStream>,
    clients: Arc<Clients>,
}

impl Place {
    fn take(clients: &Arc<Clients>, client: TcpStream) -> Self {
        let client = Arc::new(client);
        let mut all = clients.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= CLIENTS_MAX
            && let Some(oldest) = all.pop_front()
        {
            let _ = oldest.shutdown(Shutdown::Both);
        }
        all.push_back(Arc::clone(&client));
        drop(all);
        let clients = Arc::clone(clients);
        Self { client, clients }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut all = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|client| !Arc::ptr_eq(client, &self.client));
    }
}

/// Time left until then; an error if there is none.
fn left(until: Instant) -> io::Result<Option<Duration>> {
    match until.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
        left => Ok(Some(left)),
    }
}

/// Sends all bytes before the deadline, or fails.
fn send(mut client: &TcpStream, mut unsent: &[u8], until: Instant) -> io::Result<()> {
    while !unsent.is_empty() {
        client.set_write_timeout(left(until)?)?;
        let count = client.write(unsent)?;
        unsent = &unsent[count..];
    }
    Ok(())
}

/// Serves one request.
fn attend(mut client: &TcpStream, metrics: &Metrics, patience: Duration) -> io::Result<()> {
    client.set_nonblocking(false)?;
    let until = Instant::now() + patience;
    let mut is_head = false;
    let (mut head, mut length) = ([0; HEAD_BYTES_MAX], 0);
    let answer = loop {
        if length == head.len() {
            break plain("431 Request Header Fields Too Large", "this is too long\n");
        }
        client.set_read_timeout(left(until)?)?;
        let count = client.read(&mut head[length..])?;
        if count == 0 {
            return Ok(());
        }
        length += count;
        let mut fields = [httparse::EMPTY_HEADER; 64];
        let mut request = httparse::Request::new(&mut fields);
        match request.parse(&head[..length]) {
            Ok(httparse::Status::Partial) => {}
            Ok(httparse::Status::Complete(_)) => {
                is_head = request.method == Some("HEAD");
                break answer(&request, metrics);
            }
            Err(_) => break plain("400 Bad Request", "this is not a request\n"),
        }
    };
    let Answer {
        status,
        media_type,
        further,
        body,
    } = answer;
    let mut text = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {media_type}\r\nContent-Length: {}\r\nCache-Control: \
         no-store\r\nX-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n\
         {further}Connection: close\r\n\r\n",
        body.len()
    );
    if !is_head {
        text.push_str(&body);
    }
    send(client, text.as_bytes(), until)?;
    client.shutdown(Shutdown::Write)?;
    // Unread bytes would make the kernel reset the connection.
    client.set_read_timeout(left(until)?)?;
    let _ = client.read(&mut head);
    Ok(())
}

/// Whether the request cannot come from another site's page by DNS rebinding: its host is an
/// address, localhost, or absent.
fn is_own_host(request: &httparse::Request<'_, '_>) -> bool {
    let host = request
        .headers
        .iter()
        .find(|field| field.name.eq_ignore_ascii_case("host"));
    let Some(host) = host.and_then(|field| std::str::from_utf8(field.value).ok()) else {
        return host.is_none();
    };
    let host = host.trim();
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let ipv6 = name
        .strip_prefix('[')
        .and_then(|name| name.strip_suffix(']'));
    ipv6.unwrap_or(name).parse::<IpAddr>().is_ok() || name.eq_ignore_ascii_case("localhost")
}

fn answer(request: &httparse::Request<'_, '_>, metrics: &Metrics) -> Answer {
    let (method, target) = (
        request.method.unwrap_or_default(),
        request.path.unwrap_or_default(),
    );
    if !["GET", "HEAD"].contains(&method) {
        return Answer {
            further: "Allow: GET, HEAD\r\n".into(),
            ..plain("405 Method Not Allowed", "nothing can be changed here\n")
        };
    }
    match target.split('?').next().unwrap_or_default() {
        // These list file names; the others list none, and are requested by host name.
        "/" | "/status.json" if !is_own_host(request) => plain(
            "421 Misdirected Request",
            "ask for this by address or as localhost; a proxy has to send such a Host\n",
        ),
        "/" => Answer {
            media_type: "text/html; charset=utf-8",
            further: POLICY.as_str().into(),
            ..plain("200 OK", DASHBOARD)
        },
        "/metrics" => Answer {
            media_type: exposition::MEDIA_TYPE,
            ..plain("200 OK", metrics.text())
        },
        "/status.json" => Answer {
            media_type: "application/json",
            ..plain("200 OK", metrics.status())
        },
        "/healthz" => well_or(metrics.health()),
        "/readyz" => well_or(metrics.readiness()),
        _ => plain(
            "404 Not Found",
            "there are /, /metrics, /status.json, /healthz and /readyz\n",
        ),
    }
}

fn well_or(answer: Result<(), String>) -> Answer {
    match answer {
        Ok(()) => plain("200 OK", "ok\n"),
        Err(why) => plain("503 Service Unavailable", format!("{why}\n")),
    }
}

fn plain(status: &'static str, body: impl Into<Cow<'static, str>>) -> Answer {
    Answer {
        status,
        media_type: "text/plain; charset=utf-8",
        further: "".into(),
        body: body.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    /// The response to this request.
    fn answered(request: &str) -> String {
        let (mut client, server) = pair();
        client.write_all(request.as_bytes()).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        attend(&server, &Metrics::new(Vec::new()), PATIENCE).unwrap();
        drop(server);
        let mut text = String::new();
        client.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn pages_of_others_are_not_told_which_files_there_are() {
        for (host, is_own) in [
            ("127.0.0.1:9180", true),
            ("[::1]:9180", true),
            ("[::1]", true),
            ("localhost:9180", true),
            ("192.0.2.1", true),
            ("example.org:9180", false),
            ("127.0.0.1.example.org", false),
            ("", false),
        ] {
            for (path, tells) in [("/", is_own), ("/status.json", is_own), ("/metrics", true)] {
                let answer = answered(&format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
                assert_eq!(answer.starts_with("HTTP/1.1 200 "), tells, "{host} {path}");
                assert_eq!(answer.starts_with("HTTP/1.1 421 "), !tells, "{host} {path}");
            }
        }
        assert!(answered("GET / HTTP/1.0\r\n\r\n").starts_with("HTTP/1.1 200 "));
    }

    #[test]
    fn an_answer_to_head_has_no_body() {
        for before in ["", "\r\n"] {
            let answer = answered(&format!("{before}HEAD / HTTP/1.0\r\n\r\n"));
            assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("\r\n\r\n"));
        }
    }

    #[test]
    fn who_has_been_there_for_longest_makes_room() {
        let clients = Arc::new(Clients::default());
        let mut all: Vec<_> = (0..=CLIENTS_MAX)
            .map(|_| {
                let (client, server) = pair();
                (client, Place::take(&clients, server))
            })
            .collect();
        assert_eq!(all[0].0.read(&mut [0]).unwrap(), 0);
        all[1].0.set_nonblocking(true).unwrap();
        assert!(all[1].0.read(&mut [0]).is_err());
        drop(all);
        assert!(clients.lock().unwrap().is_empty());
    }

    #[test]
    fn who_reads_slowly_is_given_up_as_well() {
        let (mut client, server) = pair();
        // More than the socket buffers hold, while the client reads slowly.
        let text = vec![0; 64 << 20];
        let until = Instant::now() + Duration::from_millis(50);
        let sending = thread::spawn(move || send(&server, &text, until));
        while !sending.is_finished() {
            thread::park_timeout(Duration::from_millis(5));
            let _ = client.read(&mut [0; 1000]);
        }
        assert!(sending.join().unwrap().is_err());
    }

    #[test]
    fn base64_is_that_of_the_rfc() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
    }

    #[test]
    fn the_page_needs_nothing_else() {
        for outside in ["http://", "https://", "//cdn", "@import", "src="] {
            let page = DASHBOARD.replace("http://www.w3.org/2000/svg", "");
            assert!(!page.contains(outside), "{outside}");
        }
        assert_eq!(DASHBOARD.matches("<script>").count(), 1);
        assert_eq!(DASHBOARD.matches("<style>").count(), 1);
        assert!(!DASHBOARD.contains(" style=") && !DASHBOARD.contains(" onclick="));
    }
}
