//! Error codes (RFC 9114 §8.1, RFC 9204 §6), and whether an error ends the stream or the
//! connection.

use http2::budget::Exhausted;

/// An error code of HTTP/3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Code(pub(crate) u64);

impl Code {
    /// H3_NO_ERROR
    pub(crate) const NO_ERROR: Code = Code(0x100);
    /// H3_GENERAL_PROTOCOL_ERROR
    pub(crate) const GENERAL_PROTOCOL_ERROR: Code = Code(0x101);
    /// H3_INTERNAL_ERROR
    pub(crate) const INTERNAL_ERROR: Code = Code(0x102);
    /// H3_STREAM_CREATION_ERROR
    pub(crate) const STREAM_CREATION_ERROR: Code = Code(0x103);
    /// H3_CLOSED_CRITICAL_STREAM
    pub(crate) const CLOSED_CRITICAL_STREAM: Code = Code(0x104);
    /// H3_FRAME_UNEXPECTED
    pub(crate) const FRAME_UNEXPECTED: Code = Code(0x105);
    /// H3_FRAME_ERROR
    pub(crate) const FRAME_ERROR: Code = Code(0x106);
    /// H3_EXCESSIVE_LOAD
    pub(crate) const EXCESSIVE_LOAD: Code = Code(0x107);
    /// H3_ID_ERROR
    pub(crate) const ID_ERROR: Code = Code(0x108);
    /// H3_SETTINGS_ERROR
    pub(crate) const SETTINGS_ERROR: Code = Code(0x109);
    /// H3_MISSING_SETTINGS
    pub(crate) const MISSING_SETTINGS: Code = Code(0x10a);
    /// H3_REQUEST_REJECTED
    pub(crate) const REQUEST_REJECTED: Code = Code(0x10b);
    /// H3_REQUEST_CANCELLED
    pub(crate) const REQUEST_CANCELLED: Code = Code(0x10c);
    /// H3_REQUEST_INCOMPLETE
    pub(crate) const REQUEST_INCOMPLETE: Code = Code(0x10d);
    /// H3_MESSAGE_ERROR
    pub(crate) const MESSAGE_ERROR: Code = Code(0x10e);
    /// QPACK_DECOMPRESSION_FAILED
    pub(crate) const QPACK_DECOMPRESSION_FAILED: Code = Code(0x200);
    /// QPACK_ENCODER_STREAM_ERROR
    pub(crate) const QPACK_ENCODER_STREAM_ERROR: Code = Code(0x201);
    /// QPACK_DECODER_STREAM_ERROR
    pub(crate) const QPACK_DECODER_STREAM_ERROR: Code = Code(0x202);
}

impl From<Exhausted> for Fault {
    fn from(_: Exhausted) -> Self {
        Fault::Connection(Code::EXCESSIVE_LOAD, Exhausted::WHY)
    }
}

/// An error of the peer (RFC 9114 §8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The connection ends, for this reason.
    Connection(Code, &'static str),
    /// The stream ends.
    Stream(Code),
}
