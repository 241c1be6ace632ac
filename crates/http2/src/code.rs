//! Error codes (RFC 9113 §7), and whether an error ends the stream or the connection.

use crate::budget::Exhausted;

/// An error code of HTTP/2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code(pub u32);

impl Code {
    /// NO_ERROR
    pub const NO_ERROR: Code = Code(0x0);
    /// PROTOCOL_ERROR
    pub const PROTOCOL_ERROR: Code = Code(0x1);
    /// INTERNAL_ERROR
    pub const INTERNAL_ERROR: Code = Code(0x2);
    /// FLOW_CONTROL_ERROR
    pub const FLOW_CONTROL_ERROR: Code = Code(0x3);
    /// SETTINGS_TIMEOUT
    pub const SETTINGS_TIMEOUT: Code = Code(0x4);
    /// STREAM_CLOSED
    pub const STREAM_CLOSED: Code = Code(0x5);
    /// FRAME_SIZE_ERROR
    pub const FRAME_SIZE_ERROR: Code = Code(0x6);
    /// REFUSED_STREAM
    pub const REFUSED_STREAM: Code = Code(0x7);
    /// CANCEL
    pub const CANCEL: Code = Code(0x8);
    /// COMPRESSION_ERROR
    pub const COMPRESSION_ERROR: Code = Code(0x9);
    /// ENHANCE_YOUR_CALM
    pub const ENHANCE_YOUR_CALM: Code = Code(0xb);
}

/// An error of the peer (RFC 9113 §5.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The connection ends, for this reason.
    Connection(Code, &'static str),
    /// This stream ends.
    Stream(u32, Code),
}

impl Fault {
    /// A connection error of type PROTOCOL_ERROR.
    pub const fn protocol(why: &'static str) -> Fault {
        Fault::Connection(Code::PROTOCOL_ERROR, why)
    }
}

impl From<Exhausted> for Fault {
    fn from(_: Exhausted) -> Self {
        Fault::Connection(Code::ENHANCE_YOUR_CALM, Exhausted::WHY)
    }
}
