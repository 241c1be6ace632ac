//! The frames of a 1-RTT packet: any bytes may come, and are understood to the last one or refused;
//! of frames that a peer may make, stream data is found where it is.

#![no_main]

// It is private to its crate, and depends on nothing.
#[path = "../../crates/quic/src/frames.rs"]
#[allow(dead_code, reason = "the errors are not shown here")]
mod frames;

use frames::{StreamData, stream_data};
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
enum Input<'a> {
    Bytes(&'a [u8]),
    Frames {
        frames: Vec<Frame<'a>>,
        /// Numbers have more bytes than they need.
        is_wasteful: bool,
        /// STREAM or DATAGRAM without a length, at the end.
        last: Option<Frame<'a>>,
        /// So many bytes are missing.
        cut: Option<u16>,
    },
}

#[derive(Arbitrary, Debug)]
enum Frame<'a> {
    Padding(u8),
    /// PING, HANDSHAKE_DONE or IMMEDIATE_ACK.
    Bare(u8),
    Ack {
        ranges: Vec<(u32, u32)>,
        ecn: Option<[u32; 3]>,
    },
    ResetStream([u32; 3]),
    /// Two numbers: STOP_SENDING, MAX_STREAM_DATA or STREAM_DATA_BLOCKED.
    Two(u8, [u32; 2]),
    Crypto(u32, &'a [u8]),
    NewToken(&'a [u8]),
    Stream {
        stream: u32,
        offset: Option<u64>,
        is_last: bool,
        data: &'a [u8],
    },
    /// One number: MAX_DATA and others.
    One(u8, u32),
    NewConnectionId([u32; 2], &'a [u8]),
    Path(bool, [u8; 8]),
    Close {
        is_of_application: bool,
        reason: &'a [u8],
    },
    Datagram(&'a [u8]),
    AckFrequency([u32; 4]),
}

/// What was written, and where stream data lies in it.
struct Writer {
    bytes: Vec<u8>,
    found: Vec<StreamData>,
    is_wasteful: bool,
}

fuzz_target!(|input: Input<'_>| match input {
    Input::Bytes(bytes) => check(bytes),
    Input::Frames {
        frames,
        is_wasteful,
        last,
        cut,
    } => {
        let mut writer = Writer {
            bytes: Vec::new(),
            found: Vec::new(),
            is_wasteful,
        };
        frames.iter().for_each(|frame| writer.frame(frame, true));
        if let Some(last) = &last {
            writer.frame(last, false);
        }
        let mut found = Vec::new();
        let parsed = stream_data(&writer.bytes, |data| found.push(data));
        assert_eq!(parsed, Ok(()), "{frames:?}");
        assert_eq!(found, writer.found);
        if let Some(cut) = cut {
            let len = writer.bytes.len().saturating_sub(cut.into());
            check(&writer.bytes[..len]);
        }
    }
});

/// Whatever comes, what is found lies within the packet, in order.
fn check(bytes: &[u8]) {
    let mut end = 0;
    let parsed = stream_data(bytes, |data| {
        assert!(end < data.at.start, "behind its own type");
        assert!(data.at.start <= data.at.end && data.at.end <= bytes.len());
        end = data.at.end;
    });
    // A type that is not known is refused wherever it is, and all that follows it.
    if parsed.is_ok() {
        let more = [bytes, &[0x40, 0xfe]].concat();
        let mut last = None;
        if stream_data(&more, |data| last = Some(data.at.end)).is_ok() {
            let is_swallowed = last == Some(more.len()) || contains_datagram(bytes);
            assert!(is_swallowed, "{bytes:02x?}");
        }
    }
}

/// A frame without a length may be the last one.
fn contains_datagram(bytes: &[u8]) -> bool {
    bytes.contains(&0x30)
}

impl Writer {
    fn number(&mut self, value: u64) {
        let value = value & (u64::MAX >> 2);
        let bytes = match value {
            _ if self.is_wasteful => 8,
            0..0x40 => 1,
            0x40..0x4000 => 2,
            0x4000..0x4000_0000 => 4,
            _ => 8,
        };
        let prefix = u64::from(usize::trailing_zeros(bytes)) << (8 * bytes - 2);
        let all = (value | prefix).to_be_bytes();
        self.bytes.extend_from_slice(&all[8 - bytes..]);
    }

    fn numbers<'n>(&mut self, values: impl IntoIterator<Item = &'n u32>) {
        values
            .into_iter()
            .for_each(|value| self.number((*value).into()));
    }

    fn counted(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.bytes.extend_from_slice(bytes);
    }

    /// Writes a frame, with its length if it may have one.
    fn frame(&mut self, frame: &Frame<'_>, has_length: bool) {
        match *frame {
            Frame::Padding(count) => self.bytes.extend(vec![0; count.into()]),
            Frame::Bare(kind) => self.number([0x01, 0x1e, 0x1f][usize::from(kind % 3)]),
            Frame::Ack { ref ranges, ecn } => {
                self.number(if ecn.is_some() { 0x03 } else { 0x02 });
                self.numbers(&[7, 0]);
                self.number(ranges.len() as u64);
                self.numbers(&[0]);
                ranges
                    .iter()
                    .for_each(|(gap, len)| self.numbers(&[*gap, *len]));
                self.numbers(ecn.iter().flatten());
            }
            Frame::ResetStream(ref numbers) => {
                self.number(0x04);
                self.numbers(numbers);
            }
            Frame::Two(kind, ref numbers) => {
                self.number([0x05, 0x11, 0x15][usize::from(kind % 3)]);
                self.numbers(numbers);
            }
            Frame::Crypto(offset, data) => {
                self.number(0x06);
                self.numbers(&[offset]);
                self.counted(data);
            }
            Frame::NewToken(token) => {
                self.number(0x07);
                self.counted(token);
            }
            Frame::Stream {
                stream,
                offset,
                is_last,
                data,
            } => {
                let kind = 0x08
                    | u64::from(offset.is_some()) << 2
                    | u64::from(has_length) << 1
                    | u64::from(is_last);
                self.number(kind);
                self.numbers(&[stream]);
                let offset = offset.map(|offset| offset & (u64::MAX >> 2));
                offset.into_iter().for_each(|offset| self.number(offset));
                match has_length {
                    true => self.counted(data),
                    false => self.bytes.extend_from_slice(data),
                }
                let end = self.bytes.len();
                self.found.push(StreamData {
                    stream: stream.into(),
                    offset: offset.unwrap_or(0),
                    at: end - data.len()..end,
                });
            }
            Frame::One(kind, number) => {
                let kinds = [0x10, 0x12, 0x13, 0x14, 0x16, 0x17, 0x19];
                self.number(kinds[usize::from(kind) % kinds.len()]);
                self.numbers(&[number]);
            }
            Frame::NewConnectionId(ref numbers, id) => {
                let id = &id[..id.len().min(255)];
                self.number(0x18);
                self.numbers(numbers);
                self.bytes.push(id.len() as u8);
                self.bytes.extend_from_slice(id);
                self.bytes.extend([7; 16]);
            }
            Frame::Path(is_response, data) => {
                self.number(0x1a + u64::from(is_response));
                self.bytes.extend_from_slice(&data);
            }
            Frame::Close {
                is_of_application,
                reason,
            } => {
                self.number(0x1c + u64::from(is_of_application));
                self.numbers(&[1]);
                if !is_of_application {
                    self.numbers(&[0]);
                }
                self.counted(reason);
            }
            Frame::Datagram(data) => {
                self.number(if has_length { 0x31 } else { 0x30 });
                match has_length {
                    true => self.counted(data),
                    false => self.bytes.extend_from_slice(data),
                }
            }
            Frame::AckFrequency(ref numbers) => {
                self.number(0xaf);
                self.numbers(numbers);
            }
        }
    }
}
