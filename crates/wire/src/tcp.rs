//! TCP segments (RFC 9293 §3.1) and their options.

use crate::ParseError;
use crate::ip::Ecn;

/// Length of a header without options, in bytes.
pub const HEADER_BYTES_MIN: usize = 20;
/// Length of the longest header, in bytes.
pub const HEADER_BYTES_MAX: usize = 60;
/// Most bytes of options in a header.
pub const OPTIONS_BYTES_MAX: usize = HEADER_BYTES_MAX - HEADER_BYTES_MIN;

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

    /// Returns true if all bits of `other` are set.
    pub const fn contains(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns true for a SYN that begins a connection: it answers none, and ends none (RFC 9293
    /// §3.10.7.2).
    pub const fn begin_connection(self) -> bool {
        let mask = Flags::SYN.0 | Flags::ACK.0 | Flags::RST.0 | Flags::FIN.0;
        self.0 & mask == Flags::SYN.0
    }

    /// Returns these bits without those of `other`.
    pub const fn without(self, other: Flags) -> Flags {
        Flags(self.0 & !other.0)
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

/// The Fast Open option of a SYN (RFC 7413 §4.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FastOpen {
    /// A request for a cookie. Cookies of other lengths than [`FAST_OPEN_COOKIE_BYTES`] are read as
    /// this: a peer with a foreign cookie needs one of ours.
    Request,
    /// A cookie.
    Cookie([u8; FAST_OPEN_COOKIE_BYTES]),
}

/// Bytes of a Fast Open cookie that Splitway makes; RFC 7413 permits 4 to 16.
pub const FAST_OPEN_COOKIE_BYTES: usize = 8;

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
    /// Fast Open (RFC 7413), of a SYN.
    pub fast_open: Option<FastOpen>,
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
    /// Header of the segment.
    pub header: Header,
    /// Payload; after GRO it may be longer than the MSS.
    pub payload: &'a [u8],
    /// ECN field of the packet's IP header. GRO merges only packets with equal fields.
    pub ecn: Ecn,
}

impl<'a> Segment<'a> {
    /// Parses the payload of an IP packet. The caller checks the checksum and sets the ECN field.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Segment<'a>, ParseError> {
        let header = bytes
            .first_chunk::<HEADER_BYTES_MIN>()
            .ok_or(ParseError::BadTcpHeader)?;
        let header_len = usize::from(header[12] >> 4) * 4;
        let options = bytes
            .get(HEADER_BYTES_MIN..header_len)
            .ok_or(ParseError::BadTcpHeader)?;
        Ok(Segment {
            header: Header {
                source_port: u16::from_be_bytes([header[0], header[1]]),
                destination_port: u16::from_be_bytes([header[2], header[3]]),
                seq: u32::from_be_bytes([header[4], header[5], header[6], header[7]]),
                ack: u32::from_be_bytes([header[8], header[9], header[10], header[11]]),
                flags: Flags(header[13]),
                window: u16::from_be_bytes([header[14], header[15]]),
                options: Options::parse(options),
            },
            payload: &bytes[header_len..],
            ecn: Ecn::NotEct,
        })
    }
}

impl Header {
    /// Returns the length with options, in bytes.
    pub fn len_bytes(&self) -> usize {
        HEADER_BYTES_MIN + self.options.len_bytes()
    }

    /// Writes the header, checksum and urgent pointer zero, to the start of `buffer`; returns its
    /// length.
    ///
    /// # Panics
    /// If `buffer` is shorter than [`Header::len_bytes`].
    #[inline]
    pub fn write(&self, buffer: &mut [u8]) -> usize {
        let (fixed, options) = buffer.split_at_mut(HEADER_BYTES_MIN);
        let len = HEADER_BYTES_MIN + self.options.write(options);
        fixed[0..2].copy_from_slice(&self.source_port.to_be_bytes());
        fixed[2..4].copy_from_slice(&self.destination_port.to_be_bytes());
        fixed[4..8].copy_from_slice(&self.seq.to_be_bytes());
        fixed[8..12].copy_from_slice(&self.ack.to_be_bytes());
        fixed[12] = (len as u8 / 4) << 4;
        fixed[13] = self.flags.0;
        fixed[14..16].copy_from_slice(&self.window.to_be_bytes());
        fixed[16..20].fill(0);
        len
    }
}

const END: u8 = 0;
const NOP: u8 = 1;
const MSS: u8 = 2;
const WINDOW_SCALE: u8 = 3;
const SACK_PERMITTED: u8 = 4;
const SACK: u8 = 5;
const TIMESTAMPS: u8 = 8;
const TIMESTAMPS_LEN: u8 = 10;
const FAST_OPEN: u8 = 34;
const SACK_BLOCK_BYTES: usize = 8;
/// Two NOPs, and the timestamps option (RFC 7323 appendix A).
const TIMESTAMPS_ALONE_BYTES: usize = 12;

impl Options {
    /// Parses the options of a header. Unknown options and known ones of a wrong length are
    /// skipped; one with an invalid length hides those behind it (RFC 9293 §3.1, MUST-6 and
    /// MUST-7).
    #[inline]
    pub fn parse(bytes: &[u8]) -> Options {
        // The form of all segments of an established connection (RFC 7323 appendix A).
        if let [NOP, NOP, TIMESTAMPS, TIMESTAMPS_LEN, data @ ..] = bytes
            && let Ok(data) = <&[u8; 8]>::try_from(data)
        {
            return Options {
                timestamps: Some(Timestamps::parse(data)),
                ..Options::default()
            };
        }
        let mut options = Options::default();
        options.parse_any(bytes);
        options
    }

    /// Parses options of any form: of a handshake, and with SACK blocks.
    #[inline(never)]
    fn parse_any(&mut self, mut bytes: &[u8]) {
        while let [kind, rest @ ..] = bytes {
            match *kind {
                END => break,
                NOP => {
                    bytes = rest;
                    continue;
                }
                _ => {}
            }
            let Some(data_and_rest) = rest
                .split_first()
                .and_then(|(len, rest)| rest.split_at_checked(usize::from(*len).checked_sub(2)?))
            else {
                break;
            };
            let (data, rest) = data_and_rest;
            bytes = rest;
            match (*kind, data) {
                (MSS, &[high, low]) => self.mss = Some(u16::from_be_bytes([high, low])),
                (WINDOW_SCALE, &[shift]) => self.window_scale = Some(shift),
                (SACK_PERMITTED, []) => self.sack_permitted = true,
                (SACK, blocks) if blocks.len().is_multiple_of(SACK_BLOCK_BYTES) => {
                    let (blocks, _) = blocks.as_chunks::<SACK_BLOCK_BYTES>();
                    for (place, &[l0, l1, l2, l3, r0, r1, r2, r3]) in
                        self.sack.iter_mut().zip(blocks)
                    {
                        let left = u32::from_be_bytes([l0, l1, l2, l3]);
                        *place = Some((left, u32::from_be_bytes([r0, r1, r2, r3])));
                    }
                }
                (TIMESTAMPS, data) => {
                    if let Ok(data) = data.try_into() {
                        self.timestamps = Some(Timestamps::parse(data));
                    }
                }
                (FAST_OPEN, data) => {
                    let cookie = data.try_into().map(FastOpen::Cookie);
                    self.fast_open = Some(cookie.unwrap_or(FastOpen::Request));
                }
                _ => {}
            }
        }
    }

    /// Returns the length as [`Options::write`] writes them, in bytes: a multiple of 4, at most
    /// [`OPTIONS_BYTES_MAX`].
    pub fn len_bytes(&self) -> usize {
        if self.timestamps_alone().is_some() {
            return TIMESTAMPS_ALONE_BYTES;
        }
        self.len_without_sack() + self.sack_bytes()
    }

    /// Returns the timestamps, if there is no other option: the form of all segments of a
    /// connection without loss.
    fn timestamps_alone(&self) -> Option<Timestamps> {
        let others = self.mss.is_some()
            || self.window_scale.is_some()
            || self.sack_permitted
            || self.fast_open.is_some()
            || self.sack.iter().any(Option::is_some);
        self.timestamps.filter(|_| !others)
    }

    /// Returns the length of the SACK option, padding included, in bytes.
    pub fn sack_bytes(&self) -> usize {
        match self.sack_blocks_sent() {
            0 => 0,
            blocks => 4 + blocks * SACK_BLOCK_BYTES,
        }
    }

    fn len_without_sack(&self) -> usize {
        let mss = if self.mss.is_some() { 4 } else { 0 };
        let window_scale = if self.window_scale.is_some() { 4 } else { 0 };
        let sack_permitted_and_timestamps = match (self.sack_permitted, self.timestamps) {
            (_, Some(_)) => 12,
            (true, None) => 4,
            (false, None) => 0,
        };
        let fast_open = match self.fast_open {
            Some(FastOpen::Request) => 4,
            Some(FastOpen::Cookie(_)) => 4 + FAST_OPEN_COOKIE_BYTES,
            None => 0,
        };
        mss + window_scale + sack_permitted_and_timestamps + fast_open
    }

    /// Returns how many SACK blocks fit (RFC 2018 §3: three beside timestamps, four without).
    fn sack_blocks_sent(&self) -> usize {
        let room = OPTIONS_BYTES_MAX - self.len_without_sack();
        self.sack
            .iter()
            .flatten()
            .count()
            .min(room.saturating_sub(4) / SACK_BLOCK_BYTES)
    }

    /// Writes the options to the start of `buffer`, each aligned as RFC 7323 appendix A shows;
    /// returns their length. SACK blocks that do not fit are left out, the last ones first.
    ///
    /// # Panics
    /// If `buffer` is shorter than [`Options::len_bytes`].
    #[inline]
    pub fn write(&self, buffer: &mut [u8]) -> usize {
        if let Some(timestamps) = self.timestamps_alone() {
            let buffer = &mut buffer[..TIMESTAMPS_ALONE_BYTES];
            buffer[..4].copy_from_slice(&[NOP, NOP, TIMESTAMPS, TIMESTAMPS_LEN]);
            buffer[4..8].copy_from_slice(&timestamps.value.to_be_bytes());
            buffer[8..].copy_from_slice(&timestamps.echo_reply.to_be_bytes());
            return TIMESTAMPS_ALONE_BYTES;
        }
        self.write_any(buffer)
    }

    fn write_any(&self, buffer: &mut [u8]) -> usize {
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            buffer[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        if let Some(mss) = self.mss {
            put(&[MSS, 4]);
            put(&mss.to_be_bytes());
        }
        match (self.sack_permitted, self.timestamps.is_some()) {
            (true, true) => put(&[SACK_PERMITTED, 2]),
            (true, false) => put(&[NOP, NOP, SACK_PERMITTED, 2]),
            (false, true) => put(&[NOP, NOP]),
            (false, false) => {}
        }
        if let Some(timestamps) = self.timestamps {
            put(&[TIMESTAMPS, TIMESTAMPS_LEN]);
            put(&timestamps.value.to_be_bytes());
            put(&timestamps.echo_reply.to_be_bytes());
        }
        if let Some(shift) = self.window_scale {
            put(&[NOP, WINDOW_SCALE, 3, shift]);
        }
        match self.fast_open {
            Some(FastOpen::Request) => put(&[NOP, NOP, FAST_OPEN, 2]),
            Some(FastOpen::Cookie(cookie)) => {
                put(&[NOP, NOP, FAST_OPEN, 2 + FAST_OPEN_COOKIE_BYTES as u8]);
                put(&cookie);
            }
            None => {}
        }
        let blocks = self.sack_blocks_sent();
        if blocks > 0 {
            put(&[NOP, NOP, SACK, (2 + blocks * SACK_BLOCK_BYTES) as u8]);
            for (left, right) in self.sack.iter().flatten().take(blocks) {
                put(&left.to_be_bytes());
                put(&right.to_be_bytes());
            }
        }
        at
    }
}

impl Timestamps {
    fn parse(data: &[u8; 8]) -> Timestamps {
        let [v0, v1, v2, v3, e0, e1, e2, e3] = *data;
        Timestamps {
            value: u32::from_be_bytes([v0, v1, v2, v3]),
            echo_reply: u32::from_be_bytes([e0, e1, e2, e3]),
        }
    }
}

/// Returns the offset of TSval in `options`, in bytes; `None` if there is no timestamps option.
pub(crate) fn timestamp_value_offset(options: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        match *options.get(at)? {
            END => return None,
            NOP => at += 1,
            kind => {
                let len = usize::from(*options.get(at + 1)?);
                if len < 2 || options.len() - at < len {
                    return None;
                }
                if kind == TIMESTAMPS && len == usize::from(TIMESTAMPS_LEN) {
                    return Some(at + 2);
                }
                at += len;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn options() -> impl Strategy<Value = Options> {
        (
            any::<Option<u16>>(),
            any::<Option<u8>>(),
            any::<bool>(),
            any::<Option<(u32, u32)>>(),
            any::<Option<Option<[u8; FAST_OPEN_COOKIE_BYTES]>>>(),
            prop::collection::vec(any::<(u32, u32)>(), 0..=4),
        )
            .prop_map(
                |(mss, window_scale, sack_permitted, timestamps, cookie, blocks)| {
                    let mut sack = [None; 4];
                    for (place, block) in sack.iter_mut().zip(blocks) {
                        *place = Some(block);
                    }
                    Options {
                        mss,
                        window_scale,
                        sack_permitted,
                        timestamps: timestamps
                            .map(|(value, echo_reply)| Timestamps { value, echo_reply }),
                        fast_open: cookie
                            .map(|cookie| cookie.map_or(FastOpen::Request, FastOpen::Cookie)),
                        sack,
                    }
                },
            )
    }

    /// Option sequences with valid parts, so that random bytes get past the first one.
    fn option_bytes() -> impl Strategy<Value = Vec<u8>> {
        let valid = options().prop_map(|options| {
            let mut bytes = vec![0; options.len_bytes()];
            options.write(&mut bytes);
            bytes
        });
        let piece = prop_oneof![valid, any::<Vec<u8>>()];
        prop::collection::vec(piece, 0..4).prop_map(|pieces| pieces.concat())
    }

    /// Covers: RFC 7323 §A
    #[test]
    fn syn_of_linux() {
        let bytes = [
            2, 4, 0x05, 0xb4, 4, 2, 8, 10, 0, 0, 0, 7, 0, 0, 0, 0, 1, 3, 3, 7,
        ];
        let options = Options {
            mss: Some(1460),
            window_scale: Some(7),
            sack_permitted: true,
            timestamps: Some(Timestamps {
                value: 7,
                echo_reply: 0,
            }),
            ..Options::default()
        };
        assert_eq!(Options::parse(&bytes), options);
        let mut written = [0; OPTIONS_BYTES_MAX];
        let len = options.write(&mut written);
        assert_eq!(written[..len], bytes);
    }

    /// Covers: RFC 9293 §3.1 (MUST-6)
    #[test]
    fn option_of_wrong_length_is_skipped() {
        // An MSS of 3 bytes, an unknown option, then window scale.
        let options = Options::parse(&[2, 3, 9, 254, 4, 0, 0, 3, 3, 7, 0, 99]);
        assert_eq!(
            options,
            Options {
                window_scale: Some(7),
                ..Options::default()
            }
        );
    }

    /// Covers: RFC 7413 §4.1.1
    #[test]
    fn a_fast_open_cookie_of_another_length_asks_for_one() {
        let of = |bytes: &[u8]| Options::parse(bytes).fast_open;
        let cookie = FastOpen::Cookie([1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(of(&[1, 1, 34, 10, 1, 2, 3, 4, 5, 6, 7, 8]), Some(cookie));
        assert_eq!(of(&[34, 2]), Some(FastOpen::Request));
        assert_eq!(of(&[34, 6, 1, 2, 3, 4]), Some(FastOpen::Request));
        let longest = [&[34, 18][..], &[7; 16]].concat();
        assert_eq!(of(&longest), Some(FastOpen::Request));
    }

    /// Covers: RFC 9293 §3.1 (MUST-7)
    #[test]
    fn option_of_senseless_length_hides_the_rest() {
        for senseless in [[254, 0], [254, 1], [254, 200]] {
            let bytes = [&[3, 3, 7][..], &senseless, &[2, 4, 5, 0xb4]].concat();
            let options = Options::parse(&bytes);
            assert_eq!(options.window_scale, Some(7));
            assert_eq!(options.mss, None);
        }
    }

    proptest! {
        /// Covers: RFC 9293 §3.2, RFC 2018 §3
        #[test]
        fn options_survive_the_wire(options in options()) {
            let mut bytes = [0xff; OPTIONS_BYTES_MAX];
            let len = options.write(&mut bytes);
            prop_assert_eq!(len, options.len_bytes());
            prop_assert_eq!(len % 4, 0);
            let parsed = Options::parse(&bytes[..len]);
            let blocks = options.sack_blocks_sent();
            let sent = options.sack.iter().flatten().take(blocks);
            prop_assert!(parsed.sack.iter().flatten().eq(sent));
            prop_assert_eq!(Options { sack: options.sack, ..parsed }, options);
        }

        #[test]
        fn shortcut_and_full_parser_agree(bytes in option_bytes()) {
            let mut options = Options::default();
            options.parse_any(&bytes);
            prop_assert_eq!(Options::parse(&bytes), options);
        }

        #[test]
        fn timestamp_is_found_where_it_is_parsed(bytes in option_bytes()) {
            let parsed = timestamp_value_offset(&bytes).map(|at| {
                Timestamps::parse(bytes[at..].first_chunk().unwrap())
            });
            // With several, the parser takes the last and the offset is that of the first.
            if Options::parse(&bytes).timestamps.is_none() {
                prop_assert_eq!(parsed, None);
            } else {
                prop_assert!(parsed.is_some());
            }
        }

        #[test]
        fn headers_survive_the_wire(ports: (u16, u16), seq: u32, ack: u32, flags: u8, window: u16,
                                    mut options in options(), payload: Vec<u8>) {
            let blocks = options.sack_blocks_sent();
            options.sack[blocks..].fill(None);
            let header = Header {
                source_port: ports.0,
                destination_port: ports.1,
                seq,
                ack,
                flags: Flags(flags),
                window,
                options,
            };
            let mut bytes = vec![0xff; HEADER_BYTES_MAX];
            let len = header.write(&mut bytes);
            prop_assert_eq!(len, header.len_bytes());
            bytes.truncate(len);
            bytes.extend(&payload);
            let segment = Segment::parse(&bytes).unwrap();
            prop_assert_eq!(segment, Segment { header, payload: &payload, ecn: Ecn::NotEct });
        }
    }
}
