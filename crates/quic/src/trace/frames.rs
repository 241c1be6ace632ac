//! The frames of a plaintext (RFC 9000 §19, and the ACK frequency extension), for display: without
//! their payload.

use crate::frames::{FrameError, Reader};

/// A frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TracedFrame {
    /// PADDING: its length in bytes.
    Padding(usize),
    /// PING
    Ping,
    /// ACK: the acknowledged ranges, highest first, and the delay as encoded.
    Ack {
        /// Lowest and highest number of each range.
        ranges: Vec<(u64, u64)>,
        /// Shifted by the sender's `ack_delay_exponent`.
        encoded_delay: u64,
        /// ECT(0), ECT(1) and CE counts.
        ecn: Option<[u64; 3]>,
    },
    /// RESET_STREAM
    ResetStream {
        /// The stream.
        stream: u64,
        /// The application error code.
        code: u64,
        /// In bytes.
        final_size: u64,
    },
    /// STOP_SENDING
    StopSending {
        /// The stream.
        stream: u64,
        /// The application error code.
        code: u64,
    },
    /// CRYPTO
    Crypto {
        /// Offset in the handshake's stream.
        offset: u64,
        /// In bytes.
        len: u64,
    },
    /// NEW_TOKEN
    NewToken,
    /// STREAM
    Stream {
        /// The stream.
        stream: u64,
        /// Offset of the first byte.
        offset: u64,
        /// In bytes.
        len: u64,
        /// It ends the stream.
        is_fin: bool,
    },
    /// MAX_DATA
    MaxData(u64),
    /// MAX_STREAM_DATA
    MaxStreamData {
        /// The stream.
        stream: u64,
        /// In bytes.
        maximum: u64,
    },
    /// MAX_STREAMS
    MaxStreams {
        /// It is about unidirectional streams.
        is_unidirectional: bool,
        /// How many.
        maximum: u64,
    },
    /// DATA_BLOCKED
    DataBlocked(u64),
    /// STREAM_DATA_BLOCKED
    StreamDataBlocked {
        /// The stream.
        stream: u64,
        /// In bytes.
        limit: u64,
    },
    /// STREAMS_BLOCKED
    StreamsBlocked {
        /// It is about unidirectional streams.
        is_unidirectional: bool,
        /// How many.
        limit: u64,
    },
    /// NEW_CONNECTION_ID
    NewConnectionId {
        /// Its sequence number.
        sequence: u64,
        /// IDs with lower sequence numbers are to be retired.
        retire_prior_to: u64,
        /// The ID.
        id: Vec<u8>,
    },
    /// RETIRE_CONNECTION_ID
    RetireConnectionId(u64),
    /// PATH_CHALLENGE
    PathChallenge,
    /// PATH_RESPONSE
    PathResponse,
    /// CONNECTION_CLOSE
    ConnectionClose {
        /// The application closed the connection.
        is_of_application: bool,
        /// The code.
        code: u64,
        /// The reason phrase.
        reason: String,
    },
    /// HANDSHAKE_DONE
    HandshakeDone,
    /// IMMEDIATE_ACK
    ImmediateAck,
    /// ACK_FREQUENCY
    AckFrequency {
        /// Ack-eliciting threshold: packets that may arrive without an acknowledgment.
        threshold: u64,
        /// In microseconds.
        max_delay_us: u64,
    },
    /// An unknown type: the rest of the packet is not parsed.
    Unknown(u64),
}

impl TracedFrame {
    /// True if the peer must acknowledge it (RFC 9000 §13.2).
    pub(super) fn is_ack_eliciting(&self) -> bool {
        !matches!(
            self,
            Self::Padding(_) | Self::Ack { .. } | Self::ConnectionClose { .. }
        )
    }
}

/// The frames of a plaintext, up to a truncated or unknown one.
pub(super) fn parse(plaintext: &[u8]) -> Vec<TracedFrame> {
    let mut reader = Reader::new(plaintext);
    let mut frames = Vec::new();
    while !reader.is_at_end() {
        let Ok(frame) = next(&mut reader) else {
            break;
        };
        let is_last = matches!(frame, TracedFrame::Unknown(_));
        frames.push(frame);
        if is_last {
            break;
        }
    }
    frames
}

fn next(reader: &mut Reader<'_>) -> Result<TracedFrame, FrameError> {
    let kind = reader.varint()?;
    Ok(match kind {
        0x00 => TracedFrame::Padding(1 + reader.skip_zeros()),
        0x01 => TracedFrame::Ping,
        0x02 | 0x03 => ack(reader, kind == 0x03)?,
        0x04 => TracedFrame::ResetStream {
            stream: reader.varint()?,
            code: reader.varint()?,
            final_size: reader.varint()?,
        },
        0x05 => TracedFrame::StopSending {
            stream: reader.varint()?,
            code: reader.varint()?,
        },
        0x06 => {
            let offset = reader.varint()?;
            let len = reader.counted()?.len() as u64;
            TracedFrame::Crypto { offset, len }
        }
        0x07 => {
            reader.counted()?;
            TracedFrame::NewToken
        }
        0x08..=0x0f => {
            let data = reader.stream(kind)?;
            TracedFrame::Stream {
                stream: data.stream,
                offset: data.offset,
                len: data.at.len() as u64,
                is_fin: kind & 1 != 0,
            }
        }
        0x10 => TracedFrame::MaxData(reader.varint()?),
        0x11 => TracedFrame::MaxStreamData {
            stream: reader.varint()?,
            maximum: reader.varint()?,
        },
        0x12 | 0x13 => TracedFrame::MaxStreams {
            is_unidirectional: kind == 0x13,
            maximum: reader.varint()?,
        },
        0x14 => TracedFrame::DataBlocked(reader.varint()?),
        0x15 => TracedFrame::StreamDataBlocked {
            stream: reader.varint()?,
            limit: reader.varint()?,
        },
        0x16 | 0x17 => TracedFrame::StreamsBlocked {
            is_unidirectional: kind == 0x17,
            limit: reader.varint()?,
        },
        0x18 => new_connection_id(reader)?,
        0x19 => TracedFrame::RetireConnectionId(reader.varint()?),
        0x1a | 0x1b => {
            reader.skip(8)?;
            match kind {
                0x1a => TracedFrame::PathChallenge,
                _ => TracedFrame::PathResponse,
            }
        }
        0x1c | 0x1d => connection_close(reader, kind == 0x1d)?,
        0x1e => TracedFrame::HandshakeDone,
        0x1f => TracedFrame::ImmediateAck,
        0xaf => {
            let _sequence = reader.varint()?;
            let threshold = reader.varint()?;
            let max_delay_us = reader.varint()?;
            let _reordering = reader.varint()?;
            TracedFrame::AckFrequency {
                threshold,
                max_delay_us,
            }
        }
        _ => TracedFrame::Unknown(kind),
    })
}

/// RFC 9000 §19.3
fn ack(reader: &mut Reader<'_>, has_ecn: bool) -> Result<TracedFrame, FrameError> {
    let largest = reader.varint()?;
    let encoded_delay = reader.varint()?;
    let more = reader.varint()?;
    let below = |from: u64, len: u64| from.checked_sub(len).ok_or(FrameError::Truncated);
    let mut smallest = below(largest, reader.varint()?)?;
    let mut ranges = vec![(smallest, largest)];
    for _ in 0..more {
        let gap = reader.varint()?;
        let len = reader.varint()?;
        let largest = below(smallest, gap.saturating_add(2))?;
        smallest = below(largest, len)?;
        ranges.push((smallest, largest));
    }
    let ecn = if has_ecn {
        Some([reader.varint()?, reader.varint()?, reader.varint()?])
    } else {
        None
    };
    Ok(TracedFrame::Ack {
        ranges,
        encoded_delay,
        ecn,
    })
}

/// RFC 9000 §19.15, without the stateless reset token.
fn new_connection_id(reader: &mut Reader<'_>) -> Result<TracedFrame, FrameError> {
    let sequence = reader.varint()?;
    let retire_prior_to = reader.varint()?;
    let len = reader.skip(1)?;
    let len = reader.bytes(len)[0];
    let id = reader.skip(len.into())?;
    let id = reader.bytes(id).to_vec();
    reader.skip(16)?;
    Ok(TracedFrame::NewConnectionId {
        sequence,
        retire_prior_to,
        id,
    })
}

/// RFC 9000 §19.19
fn connection_close(
    reader: &mut Reader<'_>,
    is_of_application: bool,
) -> Result<TracedFrame, FrameError> {
    let code = reader.varint()?;
    if !is_of_application {
        let _frame_type = reader.varint()?;
    }
    let reason = reader.counted()?;
    let reason = String::from_utf8_lossy(reader.bytes(reason)).into_owned();
    Ok(TracedFrame::ConnectionClose {
        is_of_application,
        code,
        reason,
    })
}

/// The id of the parameter whose value allows resetting the connection (RFC 9000 §18.2).
const STATELESS_RESET_TOKEN: u64 = 0x02;

/// Transport parameters, up to a truncated one.
pub(super) fn parameters(encoded: &[u8]) -> Vec<(u64, Vec<u8>)> {
    let mut reader = Reader::new(encoded);
    let mut found = Vec::new();
    while !reader.is_at_end() {
        let mut next = || {
            let id = reader.varint()?;
            let value = reader.counted()?;
            Ok::<_, FrameError>((id, reader.bytes(value).to_vec()))
        };
        match next() {
            Ok((STATELESS_RESET_TOKEN, _)) => {}
            Ok(parameter) => found.push(parameter),
            Err(_) => break,
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_frame_is_known_and_what_follows_it() {
        let cases: [(&[u8], TracedFrame); 12] = [
            (&[0, 0, 0], TracedFrame::Padding(3)),
            (
                &[0x02, 20, 7, 1, 2, 3, 4],
                TracedFrame::Ack {
                    ranges: vec![(18, 20), (9, 13)],
                    encoded_delay: 7,
                    ecn: None,
                },
            ),
            (
                &[0x03, 5, 0, 0, 5, 9, 8, 7],
                TracedFrame::Ack {
                    ranges: vec![(0, 5)],
                    encoded_delay: 0,
                    ecn: Some([9, 8, 7]),
                },
            ),
            (
                &[0x06, 3, 2, b'a', b'b'],
                TracedFrame::Crypto { offset: 3, len: 2 },
            ),
            (
                &[0x0f, 4, 9, 3, 1, 2, 3],
                TracedFrame::Stream {
                    stream: 4,
                    offset: 9,
                    len: 3,
                    is_fin: true,
                },
            ),
            (
                &[0x13, 50],
                TracedFrame::MaxStreams {
                    is_unidirectional: true,
                    maximum: 50,
                },
            ),
            (
                &[
                    0x18, 1, 0, 2, 8, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                ],
                TracedFrame::NewConnectionId {
                    sequence: 1,
                    retire_prior_to: 0,
                    id: vec![8, 9],
                },
            ),
            (&[0x1b, 1, 2, 3, 4, 5, 6, 7, 8], TracedFrame::PathResponse),
            (
                &[0x1c, 7, 6, 2, b'n', b'o'],
                TracedFrame::ConnectionClose {
                    is_of_application: false,
                    code: 7,
                    reason: "no".to_owned(),
                },
            ),
            (
                &[0x1d, 7, 0],
                TracedFrame::ConnectionClose {
                    is_of_application: true,
                    code: 7,
                    reason: String::new(),
                },
            ),
            (&[0x1e], TracedFrame::HandshakeDone),
            (
                &[0x40, 0xaf, 1, 10, 25, 3],
                TracedFrame::AckFrequency {
                    threshold: 10,
                    max_delay_us: 25,
                },
            ),
        ];
        for (bytes, frame) in cases {
            let followed = [bytes, &[0x01]].concat();
            assert_eq!(parse(&followed), [frame, TracedFrame::Ping]);
        }
    }

    #[test]
    fn what_is_cut_off_or_unknown_ends_the_packet() {
        assert_eq!(parse(&[0x01, 0x06, 0]), [TracedFrame::Ping]);
        // It would acknowledge numbers below zero.
        assert_eq!(parse(&[0x02, 3, 0, 0, 4]), []);
        let unknown = [TracedFrame::Ping, TracedFrame::Unknown(0x21)];
        assert_eq!(parse(&[0x01, 0x21, 0x01]), unknown);
    }

    #[test]
    fn parameters_are_read_but_for_the_token_of_resets() {
        let encoded = [1, 2, 0x40, 100, 2, 3, 7, 7, 7, 0x0c, 0, 4, 9, 1];
        let wanted = [(1, vec![0x40, 100]), (0x0c, vec![])];
        assert_eq!(parameters(&encoded), wanted);
    }
}
