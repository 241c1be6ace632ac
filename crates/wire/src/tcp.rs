//! TCP segments (RFC 9293 §3.1) and their options.

/// The control bits of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Flags(pub u8);

impl Flags {
    /// No more data from the sender.
    pub const FIN: Flags = Flags(0x01);
    /// Synchronize sequence numbers.
    pub const SYN: Flags = Flags(0x02);
    /// Reset the connection.
    pub const RST: Flags = Flags(0x04);
    /// Push function.
    pub const PSH: Flags = Flags(0x08);
    /// The acknowledgment field is significant.
    pub const ACK: Flags = Flags(0x10);
    /// The urgent pointer is significant.
    pub const URG: Flags = Flags(0x20);
    /// ECN echo (RFC 3168).
    pub const ECE: Flags = Flags(0x40);
    /// Congestion window reduced (RFC 3168).
    pub const CWR: Flags = Flags(0x80);

    /// True if all bits of `other` are set.
    pub const fn contains(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }
}

impl std::ops::BitOr for Flags {
    type Output = Flags;
    fn bitor(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

/// The timestamps option (RFC 7323 §3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timestamps {
    /// TSval.
    pub value: u32,
    /// TSecr.
    pub echo_reply: u32,
}

/// The options that Splitway knows; others are skipped on reception.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Maximum segment size (RFC 9293 §3.7.1).
    pub mss: Option<u16>,
    /// Window scale shift (RFC 7323 §2), as sent.
    pub window_scale: Option<u8>,
    /// SACK permitted (RFC 2018 §2).
    pub sack_permitted: bool,
    /// Timestamps.
    pub timestamps: Option<Timestamps>,
    /// SACK blocks (RFC 2018 §3): left and right edge; unused places are `None`.
    pub sack: [Option<(u32, u32)>; 4],
}

/// A TCP header without checksum and urgent pointer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Source port.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgment number; significant with [`Flags::ACK`].
    pub ack: u32,
    /// Control bits.
    pub flags: Flags,
    /// Window, as on the wire (unscaled).
    pub window: u16,
    /// Options.
    pub options: Options,
}

/// A received segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment<'a> {
    /// Its header.
    pub header: Header,
    /// Its payload; after GRO it may be longer than the MSS.
    pub payload: &'a [u8],
}
