//! Status line and field lines of a response (RFC 9112 §4, §5).

use http::StatusCode;

use crate::exchange::lines;
use crate::exchange::version::Version;
use crate::semantics::rate::Multiplexed;
use crate::semantics::versions::HttpVersion;

/// Connection options of an HTTP/1.1 request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Http1 {
    /// Persistence of the connection after the response.
    pub(crate) persistence: Persistence,
    /// Length of the body to skip before the next request, in bytes. Meaningless with
    /// [`Persistence::Close`].
    pub(crate) body_bytes: u32,
}

impl Http1 {
    /// The connection ends with the response.
    pub(crate) const CLOSE: Http1 = Http1 {
        persistence: Persistence::Close,
        body_bytes: 0,
    };
}

/// What becomes of a connection after a response (RFC 9112 §9.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Persistence {
    /// It ends: `Connection: close`.
    Close,
    /// It persists, as is HTTP/1.1's default.
    Default,
    /// It persists, as an HTTP/1.0 client asked: `Connection: keep-alive`.
    KeepAlive,
}

impl Version for Http1 {
    const NAME: &'static str = "HTTP/1.1";

    const VERSION: HttpVersion = HttpVersion::Http1;

    type Connection = ();

    fn multiplexed((): ()) -> Option<Multiplexed> {
        None
    }

    fn begin(self, out: &mut Vec<u8>, status: StatusCode) {
        let reason = status.canonical_reason().unwrap_or("Error");
        for piece in ["HTTP/1.1 ", status.as_str(), " ", reason, "\r\n"] {
            out.extend_from_slice(piece.as_bytes());
        }
    }

    fn connection(self, out: &mut Vec<u8>) {
        match self.persistence {
            Persistence::Close => self.text(out, "Connection", "close"),
            Persistence::KeepAlive => self.text(out, "Connection", "keep-alive"),
            Persistence::Default => {}
        }
    }

    fn field(self, out: &mut Vec<u8>, name: &str, value: &[u8]) {
        lines::line(out, name, value);
    }

    fn field_with(self, out: &mut Vec<u8>, name: &str, write: impl FnOnce(&mut Vec<u8>)) {
        lines::line_with(out, name, write);
    }

    fn end(self, out: &mut Vec<u8>, _body_bytes: u64) {
        lines::end(out);
    }

    fn body_start(response: &[u8]) -> usize {
        let end = response.windows(4).position(|four| four == b"\r\n\r\n");
        end.map_or(response.len(), |end| end + 4)
    }
}
