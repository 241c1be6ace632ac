//! A message's body on its way from one stream to another, its framing removed and written again: a
//! receiver sees only the proxy's own framing.

use host::app::{Io, StreamId};
use http_message::chunked::{self, Decoder};

use crate::buffer::{Buffer, COPY_BYTES};
use crate::trailers;

/// Where a body ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Decode {
    /// After this number of further bytes.
    Length(u64),
    /// At the end of its chunked coding.
    Chunked(Decoder),
    /// With the stream.
    UntilEnd,
}

/// How a receiver finds the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encode {
    /// By its length, or by the end of the stream.
    Plain,
    /// By chunks.
    Chunked,
}

/// A body on its way.
#[derive(Debug)]
pub(crate) struct Relay {
    decode: Decode,
    encode: Encode,
    is_done: bool,
    /// Bytes have been taken from the sender.
    has_begun: bool,
    /// Bytes taken from the sender, including framing.
    taken_bytes: u64,
    /// Bytes taken from the sender or by the receiver's stream, including framing.
    progress: u64,
    /// Bytes of content that the receiver's stream has taken, or will take.
    content_bytes: u64,
    /// All bytes taken from the sender, while they may be needed again.
    kept: Option<Vec<u8>>,
}

/// Why a relay has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The body is completely handed over.
    Done,
    /// The receiver has no room.
    Blocked,
    /// The sender has sent no more yet.
    Starved,
    /// The sender has ended before the body did, or the framing is malformed.
    Broken,
}

/// A stream, with bytes read from it or to be written to it.
pub(crate) struct End<'a> {
    pub(crate) stream: StreamId,
    pub(crate) buffer: &'a mut Buffer,
}

impl Relay {
    pub(crate) fn new(decode: Decode, encode: Encode) -> Self {
        Relay {
            decode,
            encode,
            is_done: false,
            has_begun: false,
            taken_bytes: 0,
            progress: 0,
            content_bytes: 0,
            kept: None,
        }
    }

    /// Keeps a body's bytes, as long as they are few, so that it can be sent again.
    pub(crate) fn keeping(mut self) -> Self {
        self.kept = Some(Vec::new());
        self
    }

    /// The body will not be sent again.
    pub(crate) fn forget(&mut self) {
        self.kept = None;
    }

    /// True if the body can be sent from its beginning.
    pub(crate) fn can_rewind(&self) -> bool {
        !self.has_begun || self.kept.is_some()
    }

    /// Puts the bytes that were taken from the sender back; the body begins again, so coded.
    pub(crate) fn rewind(&mut self, from: &mut Buffer, (decode, encode): (Decode, Encode)) {
        let kept = self.kept.take().unwrap_or_default();
        from.put_back(&kept);
        *self = Relay::new(decode, encode).keeping();
    }

    /// Memory of kept bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.kept.as_ref().map_or(0, Vec::capacity)
    }

    /// Creates an empty body.
    pub(crate) fn none() -> Self {
        Relay::new(Decode::Length(0), Encode::Plain)
    }

    /// True if the body is completely handed over.
    pub(crate) fn is_done(&self) -> bool {
        self.is_done
    }

    /// True if bytes have been taken from the sender, which cannot be read again.
    pub(crate) fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// True if the sender's buffer has the rest of the body. `has_ended`: the sender has sent FIN.
    pub(crate) fn is_fed(&self, from: &Buffer, has_ended: bool) -> bool {
        match &self.decode {
            Decode::Length(left) => *left <= from.len() as u64,
            Decode::Chunked(decoder) => ends_within(decoder.clone(), from.bytes()),
            Decode::UntilEnd => has_ended,
        }
    }

    pub(crate) fn content_bytes(&self) -> u64 {
        self.content_bytes
    }

    pub(crate) fn taken_bytes(&self) -> u64 {
        self.taken_bytes
    }

    /// A number that grows with each byte that moves.
    pub(crate) fn progress(&self) -> u64 {
        self.progress
    }

    /// Moves available bytes. `has_ended`: the sender has sent FIN. Bytes that wait in the
    /// receiver's buffer go first.
    pub(crate) fn advance(
        &mut self,
        io: &mut dyn Io,
        mut from: End<'_>,
        to: End<'_>,
        has_ended: bool,
        scratch: &mut [u8],
    ) -> Stop {
        loop {
            let waiting = to.buffer.len();
            let is_taken = to.buffer.flush(io, to.stream);
            self.progress += (waiting - to.buffer.len()) as u64;
            if !is_taken {
                return Stop::Blocked;
            }
            if self.is_done {
                return Stop::Done;
            }
            if self.has_all() {
                self.finish(to.buffer);
                continue;
            }
            if from.buffer.is_empty() {
                from.buffer.fill(io, from.stream, scratch, COPY_BYTES);
            }
            if from.buffer.is_empty() {
                match (&self.decode, has_ended) {
                    (_, false) => return Stop::Starved,
                    (Decode::UntilEnd, true) => self.finish(to.buffer),
                    (_, true) => return Stop::Broken,
                }
                continue;
            }
            if !self.step(io, &mut from, to.stream, to.buffer) {
                return Stop::Broken;
            }
        }
    }

    /// Moves some of the sender's bytes; false if their framing is malformed.
    fn step(
        &mut self,
        io: &mut dyn Io,
        from: &mut End<'_>,
        to: StreamId,
        out: &mut Buffer,
    ) -> bool {
        self.has_begun = true;
        let bytes = from.buffer.bytes();
        let (consumed, content) = match &mut self.decode {
            Decode::Length(left) => {
                let count = bytes
                    .len()
                    .min(usize::try_from(*left).unwrap_or(usize::MAX));
                *left -= count as u64;
                (count, 0..count)
            }
            Decode::UntilEnd => (bytes.len(), 0..bytes.len()),
            Decode::Chunked(decoder) => match decoder.step(bytes) {
                Ok(step) => (step.consumed, step.content),
                Err(_) => return false,
            },
        };
        let content = &bytes[content];
        self.content_bytes += content.len() as u64;
        match self.encode {
            _ if content.is_empty() => {}
            Encode::Plain => {
                let taken = io.write(to, content).min(content.len());
                out.tail().extend_from_slice(&content[taken..]);
            }
            Encode::Chunked => {
                chunked::begin(out.tail(), content.len());
                out.tail().extend_from_slice(content);
                out.tail().extend_from_slice(chunked::CHUNK_END);
            }
        }
        if let Some(kept) = &mut self.kept {
            match kept.len() + consumed <= COPY_BYTES {
                true => kept.extend_from_slice(&bytes[..consumed]),
                false => self.kept = None,
            }
        }
        from.buffer.consume(consumed);
        self.taken_bytes += consumed as u64;
        self.progress += consumed as u64;
        true
    }

    fn has_all(&self) -> bool {
        match &self.decode {
            Decode::Length(left) => *left == 0,
            Decode::Chunked(decoder) => decoder.is_done(),
            Decode::UntilEnd => false,
        }
    }

    fn finish(&mut self, out: &mut Buffer) {
        self.is_done = true;
        if self.encode != Encode::Chunked {
            return;
        }
        let trailers = match &mut self.decode {
            Decode::Chunked(decoder) => decoder.take_trailers(),
            Decode::Length(_) | Decode::UntilEnd => Vec::new(),
        };
        out.tail().extend_from_slice(chunked::LAST_CHUNK);
        trailers::pass_on(out.tail(), &trailers);
        out.tail().extend_from_slice(chunked::TRAILERS_END);
    }
}

/// True if a chunked body ends in these bytes.
fn ends_within(mut decoder: Decoder, mut bytes: &[u8]) -> bool {
    while !decoder.is_done() && !bytes.is_empty() {
        match decoder.step(bytes) {
            Ok(step) => bytes = &bytes[step.consumed..],
            Err(_) => return false,
        }
    }
    decoder.is_done()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_whole_when_its_framing_says_so() {
        let is_fed = |decode: Decode, bytes: &[u8], has_ended| {
            let mut from = Buffer::default();
            from.tail().extend_from_slice(bytes);
            Relay::new(decode, Encode::Plain).is_fed(&from, has_ended)
        };
        let chunked = || Decode::Chunked(Decoder::default());
        assert!(is_fed(chunked(), b"3\r\nabc\r\n0\r\n\r\n", false));
        assert!(is_fed(chunked(), b"0\r\n\r\nmore", false));
        assert!(!is_fed(chunked(), b"9\r\nabc\r\n\r\n", true));
        assert!(is_fed(Decode::Length(3), b"abcd", false));
        assert!(!is_fed(Decode::Length(3), b"ab", true));
        assert!(is_fed(Decode::UntilEnd, b"ab", true));
        assert!(!is_fed(Decode::UntilEnd, b"ab", false));
    }
}
