//! Differences between versions of HTTP in an exchange: how the head of a response is written.

use std::fmt::{Debug, Display};
use std::io::Write;

use host::app::StreamId;
use http::{HeaderName, HeaderValue, StatusCode};

use crate::semantics::rate::Multiplexed;
use crate::semantics::versions::HttpVersion;

/// A version of HTTP, with a request's connection options.
pub(crate) trait Version: Copy + Debug {
    /// Name of the version, as in a request line.
    const NAME: &'static str;

    /// The version that rules name.
    const VERSION: HttpVersion;

    /// The connection of a stream that shares one with others.
    type Connection: Copy + Debug;

    /// The connection, if its streams share the connection's rate.
    fn multiplexed(connection: Self::Connection) -> Option<Multiplexed>;

    /// The host's stream that carries a stream.
    fn carrier(_connection: Self::Connection, stream: StreamId) -> StreamId {
        stream
    }

    /// Begins the head of a response in `out`, which is empty.
    fn begin(self, out: &mut Vec<u8>, status: StatusCode);

    /// Writes the connection-specific fields.
    fn connection(self, _out: &mut Vec<u8>) {}

    /// Writes a field.
    fn field(self, out: &mut Vec<u8>, name: &str, value: &[u8]);

    /// Writes a field whose value `write` appends.
    fn field_with(self, out: &mut Vec<u8>, name: &str, write: impl FnOnce(&mut Vec<u8>));

    /// Ends the head; a body of `body_bytes` follows.
    fn end(self, out: &mut Vec<u8>, body_bytes: u64);

    /// Ends the head of an interim response (RFC 9110 §15.2); another response follows.
    fn end_interim(self, out: &mut Vec<u8>) {
        self.end(out, 0);
    }

    /// Writes trailers into `out`, which is empty. False if the version has none.
    fn trailers(self, _out: &mut Vec<u8>, _fields: &[(HeaderName, HeaderValue)]) -> bool {
        false
    }

    /// Prepares the head of a response, which has a body, for trailers of this length behind that.
    fn expect_trailers(_response: &mut [u8], _trailers_bytes: u64) {}

    /// True if the response's head is a field section longer than the limit (RFC 9114 §4.2.2).
    fn has_longer_section(_response: &[u8], _bytes_max: u32) -> bool {
        false
    }

    /// Returns the offset of the body in a response.
    fn body_start(response: &[u8]) -> usize;

    /// Writes a field with a text value.
    fn text(self, out: &mut Vec<u8>, name: &str, value: &str) {
        self.field(out, name, value.as_bytes());
    }

    /// Writes a field with a formatted value.
    fn display(self, out: &mut Vec<u8>, name: &str, value: impl Display) {
        // Writing to a `Vec` cannot fail.
        self.field_with(out, name, |out| {
            let _ = write!(out, "{value}");
        });
    }
}
