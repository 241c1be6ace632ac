//! Buffering of a request's body before the request takes a connection to a backend, as with
//! HAProxy's `http-buffer-request`: a short body completely, a longer one up to `request_buffer`.

use crate::answer::Refusal;
use crate::body::Decode;
use crate::config::Pool;
use crate::forward::Request;
use http_message::framing::Body;

/// Progress in parsing a buffered body.
#[derive(Debug)]
pub(super) struct Gathering {
    decode: Decode,
    scanned_bytes: usize,
    /// Number of buffered bytes that suffice.
    pub(super) bytes_max: usize,
}

/// State of a buffered body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gathered {
    /// The request may proceed.
    Enough,
    TooLittle,
    /// The client has ended before the body did.
    CutShort,
}

impl Gathering {
    /// `None` if the request proceeds at once. With `Expect: 100-continue` the backend has to
    /// answer before the body is sent (RFC 9110 §10.1.1), and a client of gRPC may wait for the
    /// answer to one message before it sends the next.
    pub(super) fn new(request: &Request, pool: &Pool) -> Option<Self> {
        let bytes_max = pool.request_buffer_bytes;
        let may_converse = request.is_to_http2 && request.body == Body::Chunked;
        let is_due = request.has_body() && !request.expects_continue && !may_converse;
        let is_due = is_due && bytes_max > 0;
        is_due.then(|| Gathering {
            decode: request.coding().0,
            scanned_bytes: 0,
            bytes_max,
        })
    }

    /// True if the body ends within `bytes`, its beginning, which extends the bytes of the last
    /// call.
    pub(super) fn is_whole(&mut self, bytes: &[u8]) -> Result<bool, Refusal> {
        let decoder = match &mut self.decode {
            Decode::Length(length) => return Ok(*length <= bytes.len() as u64),
            Decode::Chunked(decoder) => decoder,
            Decode::UntilEnd => return Ok(false),
        };
        while self.scanned_bytes < bytes.len() && !decoder.is_done() {
            let step = decoder.step(&bytes[self.scanned_bytes..]);
            let step = step.map_err(|_| Refusal::BrokenBody)?;
            self.scanned_bytes += step.consumed;
        }
        Ok(decoder.is_done())
    }
}

#[cfg(test)]
mod tests {
    use http_message::chunked::Decoder;

    use super::*;

    fn gathering(decode: Decode) -> Gathering {
        Gathering {
            decode,
            scanned_bytes: 0,
            bytes_max: 100,
        }
    }

    #[test]
    fn the_end_of_a_body_is_found_wherever_reads_end() {
        let body = b"3;a=b\r\nabc\r\n10\r\n0123456789abcdef\r\n0\r\nT: u\r\n\r\n";
        for step in 1..=body.len() {
            let mut chunked = gathering(Decode::Chunked(Decoder::default()));
            let ends = (step..body.len()).step_by(step);
            for end in ends {
                assert_eq!(chunked.is_whole(&body[..end]), Ok(false), "{step} {end}");
            }
            let more = [&body[..], b"GET /"].concat();
            assert_eq!(chunked.is_whole(&more), Ok(true), "{step}");
        }
        let mut broken = gathering(Decode::Chunked(Decoder::default()));
        assert_eq!(broken.is_whole(b"3\r\nabc"), Ok(false));
        assert_eq!(broken.is_whole(b"3\r\nabcd"), Err(Refusal::BrokenBody));
        let mut plain = gathering(Decode::Length(3));
        assert_eq!(plain.is_whole(b"ab"), Ok(false));
        assert_eq!(plain.is_whole(b"abcd"), Ok(true));
    }
}
