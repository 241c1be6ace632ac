//! The listener for those who watch the server: HTTP/1.1 on the kernel's TCP, a few clients at a time, none of which
//! may take long.

use std::borrow::Cow;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use super::exposition;
use super::metrics::Metrics;

/// Most clients at a time; others wait to be accepted.
const CLIENTS_MAX: usize = 16;

/// How long a request may take to come, and each write of the answer to be taken.
const PATIENCE: Duration = Duration::from_secs(5);

/// Longest request head, in bytes.
const HEAD_BYTES_MAX: usize = 8 << 10;

struct Answer {
    status: &'static str,
    media_type: &'static str,
    further: Cow<'static, str>,
    body: Cow<'static, str>,
}

/// All of it, without any other resource.
const DASHBOARD: &str = include_str!("dashboard.html");

/// What the page may do: what is written in it, and ask this listener how it goes.
static POLICY: LazyLock<String> = LazyLock::new(|| {
    let hash = |tag: &str| {
        let (_, rest) = DASHBOARD
            .split_once(&format!("<{tag}>"))
            .unwrap_or_default();
        let (text, _) = rest.split_once(&format!("</{tag}>")).unwrap_or_default();
        format!("'sha256-{}'", base64(&Sha256::digest(text)))
    };
    format!(
        "Content-Security-Policy: default-src 'none'; style-src {}; script-src {}; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n",
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

/// Answers until `stop` is readable. Nobody waits for clients that are being answered then.
pub(crate) fn serve(listener: &TcpListener, stop: BorrowedFd<'_>, metrics: &Arc<Metrics>) {
    let clients = Arc::new(AtomicUsize::new(0));
    while super::wait_or_stop(listener.as_fd(), stop) {
        let client = match clients.load(Ordering::Acquire) {
            CLIENTS_MAX.. => Err(io::ErrorKind::WouldBlock.into()),
            _ => listener.accept(),
        };
        let Ok((client, _)) = client else {
            // It has gone again, or there is no place or descriptor for it: those of others are free soon.
            thread::sleep(Duration::from_millis(10));
            continue;
        };
        clients.fetch_add(1, Ordering::AcqRel);
        let (metrics, place) = (Arc::clone(metrics), Place(Arc::clone(&clients)));
        let work = move || {
            let _place = place;
            if let Err(error) = attend(client, &metrics) {
                tracing::debug!(%error, "a client of the admin listener has gone");
            }
        };
        let builder = thread::Builder::new().name("client".to_owned());
        if let Err(error) = builder.stack_size(256 << 10).spawn(work) {
            tracing::debug!(%error, "no thread for a client of the admin listener");
        }
    }
}

/// That of a client among [`CLIENTS_MAX`].
struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// One request, one answer.
fn attend(mut client: TcpStream, metrics: &Metrics) -> io::Result<()> {
    client.set_nonblocking(false)?;
    client.set_write_timeout(Some(PATIENCE))?;
    let until = Instant::now() + PATIENCE;
    let (mut head, mut length) = ([0; HEAD_BYTES_MAX], 0);
    let answer = loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || length == head.len() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        client.set_read_timeout(Some(left))?;
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
                break answer(
                    request.method.unwrap_or_default(),
                    request.path.unwrap_or_default(),
                    metrics,
                );
            }
            Err(_) => break plain("400 Bad Request", "this is no request\n"),
        }
    };
    let is_head = head.starts_with(b"HEAD ");
    let Answer {
        status,
        media_type,
        further,
        body,
    } = answer;
    let mut text = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {media_type}\r\nContent-Length: {}\r\nCache-Control: no-store\r\n\
         X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n{further}Connection: close\r\n\r\n",
        body.len()
    );
    if !is_head {
        text.push_str(&body);
    }
    client.write_all(text.as_bytes())?;
    client.shutdown(std::net::Shutdown::Write)?;
    // What was not read yet would make the kernel reset the connection.
    let _ = client.read(&mut head);
    Ok(())
}

fn answer(method: &str, target: &str, metrics: &Metrics) -> Answer {
    if !["GET", "HEAD"].contains(&method) {
        return Answer {
            further: "Allow: GET, HEAD\r\n".into(),
            ..plain("405 Method Not Allowed", "nothing can be changed here\n")
        };
    }
    match target.split('?').next().unwrap_or_default() {
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
        "/healthz" => match metrics.health() {
            Ok(()) => plain("200 OK", "ok\n"),
            Err(why) => plain("503 Service Unavailable", format!("{why}\n")),
        },
        _ => plain(
            "404 Not Found",
            "there are /, /metrics, /status.json and /healthz\n",
        ),
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
