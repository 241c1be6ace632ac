//! SETTINGS (RFC 9113 §6.5).

use crate::code::{Code, Fault};
use crate::frame::{self, PAYLOAD_BYTES_MAX};
use crate::hpack::encode::Encoder;
use crate::window::INITIAL_BYTES;

/// SETTINGS_HEADER_TABLE_SIZE
const HEADER_TABLE_SIZE: u16 = 0x1;
/// SETTINGS_ENABLE_PUSH
const ENABLE_PUSH: u16 = 0x2;
/// SETTINGS_MAX_CONCURRENT_STREAMS
const MAX_CONCURRENT_STREAMS: u16 = 0x3;
/// SETTINGS_INITIAL_WINDOW_SIZE
const INITIAL_WINDOW_SIZE: u16 = 0x4;
/// SETTINGS_MAX_FRAME_SIZE
const MAX_FRAME_SIZE: u16 = 0x5;
/// SETTINGS_MAX_HEADER_LIST_SIZE
const MAX_HEADER_LIST_SIZE: u16 = 0x6;
/// SETTINGS_NO_RFC7540_PRIORITIES (RFC 9218 §2.1)
const NO_RFC7540_PRIORITIES: u16 = 0x9;

/// Length of a setting, in bytes.
const SETTING_BYTES: usize = 6;

/// The peer's settings, but for that of its decoder's table, which the encoder has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Initial window of streams, in bytes.
    pub initial_window_bytes: u32,
    /// Most concurrent streams that this side may open.
    pub streams_max: u32,
    /// Longest payload of a frame, in bytes.
    pub frame_bytes_max: u32,
    /// Largest field section; `u32::MAX`: any.
    pub section_bytes_max: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            initial_window_bytes: INITIAL_BYTES,
            streams_max: u32::MAX,
            frame_bytes_max: PAYLOAD_BYTES_MAX as u32,
            section_bytes_max: u32::MAX,
        }
    }
}

impl Settings {
    /// Applies the payload of a SETTINGS frame. The encoder announces the least size of its table
    /// and the last one (RFC 7541 §4.2).
    ///
    /// # Errors
    /// The payload is no list of settings, or a value is out of its range.
    pub fn apply(&mut self, payload: &[u8], encoder: &mut Encoder) -> Result<(), Fault> {
        let (settings, rest) = payload.as_chunks::<SETTING_BYTES>();
        if !rest.is_empty() {
            let why = "SETTINGS that is no list of settings";
            return Err(Fault::Connection(Code::FRAME_SIZE_ERROR, why));
        }
        for &[a, b, value @ ..] in settings {
            let value = u32::from_be_bytes(value);
            match u16::from_be_bytes([a, b]) {
                HEADER_TABLE_SIZE => encoder.limit(value as usize),
                ENABLE_PUSH if value > 1 => {
                    return Err(Fault::protocol("SETTINGS_ENABLE_PUSH above 1"));
                }
                MAX_CONCURRENT_STREAMS => self.streams_max = value,
                INITIAL_WINDOW_SIZE if value >= 1 << 31 => {
                    let why = "SETTINGS_INITIAL_WINDOW_SIZE above 2^31-1";
                    return Err(Fault::Connection(Code::FLOW_CONTROL_ERROR, why));
                }
                INITIAL_WINDOW_SIZE => self.initial_window_bytes = value,
                MAX_FRAME_SIZE if !(1 << 14..1 << 24).contains(&value) => {
                    return Err(Fault::protocol("SETTINGS_MAX_FRAME_SIZE out of range"));
                }
                MAX_FRAME_SIZE => self.frame_bytes_max = value,
                MAX_HEADER_LIST_SIZE => self.section_bytes_max = value,
                NO_RFC7540_PRIORITIES if value > 1 => {
                    return Err(Fault::protocol("SETTINGS_NO_RFC7540_PRIORITIES above 1"));
                }
                // RFC 9113 §6.5.2: unknown settings are ignored.
                _ => {}
            }
        }
        Ok(())
    }
}

/// Appends SETTINGS of a server: this many concurrent streams, field sections of at most this
/// length, and no priorities of RFC 7540.
pub fn write(out: &mut Vec<u8>, streams_max: u32, section_bytes_max: u32) {
    let values = [
        (MAX_CONCURRENT_STREAMS, streams_max),
        (MAX_HEADER_LIST_SIZE, section_bytes_max),
        (NO_RFC7540_PRIORITIES, 1),
    ];
    write_values(out, &values);
}

/// Appends SETTINGS of a client: no pushes, and field sections of at most this length.
pub fn write_of_client(out: &mut Vec<u8>, section_bytes_max: u32) {
    let values = [(ENABLE_PUSH, 0), (MAX_HEADER_LIST_SIZE, section_bytes_max)];
    write_values(out, &values);
}

fn write_values(out: &mut Vec<u8>, values: &[(u16, u32)]) {
    let mut payload = Vec::with_capacity(values.len() * SETTING_BYTES);
    for (identifier, value) in values {
        payload.extend_from_slice(&identifier.to_be_bytes());
        payload.extend_from_slice(&value.to_be_bytes());
    }
    frame::settings(out, &payload);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied(list: &[(u16, u32)]) -> Result<Settings, Code> {
        let mut payload = Vec::new();
        for (identifier, value) in list {
            payload.extend_from_slice(&identifier.to_be_bytes());
            payload.extend_from_slice(&value.to_be_bytes());
        }
        let mut settings = Settings::default();
        match settings.apply(&payload, &mut Encoder::default()) {
            Ok(()) => Ok(settings),
            Err(Fault::Connection(code, _)) => Err(code),
            Err(Fault::Stream(..)) => panic!("settings are about a connection"),
        }
    }

    /// Covers: RFC 9113 §6.5.1, RFC 9113 §6.5.2, RFC 9218 §2.1
    #[test]
    fn values_have_ranges_and_unknown_settings_are_ignored() {
        let all = [
            (1, 0),
            (2, 0),
            (3, 7),
            (4, 5),
            (5, 1 << 15),
            (6, 99),
            (9, 1),
        ];
        let expected = Settings {
            initial_window_bytes: 5,
            streams_max: 7,
            frame_bytes_max: 1 << 15,
            section_bytes_max: 99,
        };
        assert_eq!(applied(&all), Ok(expected));
        assert_eq!(applied(&[]), Ok(Settings::default()));
        assert_eq!(applied(&[(0x1a1a, u32::MAX)]), Ok(Settings::default()));
        let last = applied(&[(4, 1), (4, 2)]).map(|settings| settings.initial_window_bytes);
        assert_eq!(last, Ok(2));
        for (setting, code) in [
            ((2, 2), Code::PROTOCOL_ERROR),
            ((4, 1 << 31), Code::FLOW_CONTROL_ERROR),
            ((5, (1 << 14) - 1), Code::PROTOCOL_ERROR),
            ((5, 1 << 24), Code::PROTOCOL_ERROR),
            ((9, 2), Code::PROTOCOL_ERROR),
        ] {
            assert_eq!(applied(&[setting]), Err(code), "{setting:?}");
        }
        let cut = Settings::default().apply(&[0; 7], &mut Encoder::default());
        assert!(matches!(
            cut,
            Err(Fault::Connection(Code::FRAME_SIZE_ERROR, _))
        ));
    }

    /// Covers: RFC 7541 §4.2
    #[test]
    fn the_least_table_since_the_last_block_and_the_final_one_are_announced() {
        let table = |value: u32| [&1u16.to_be_bytes()[..], &value.to_be_bytes()].concat();
        let frames = [
            vec![[table(5000), table(0), table(4096)].concat()],
            vec![table(0), table(4096)],
        ];
        for frames in frames {
            let (mut settings, mut encoder) = (Settings::default(), Encoder::default());
            for payload in frames {
                settings.apply(&payload, &mut encoder).unwrap();
            }
            let mut block = Vec::new();
            encoder.begin(&mut block);
            assert_eq!(block, [0x20, 0x3f, 0xe1, 0x1f]);
        }
    }

    /// Covers: RFC 9113 §6.5
    #[test]
    fn own_settings_are_a_frame_that_a_peer_can_apply() {
        let mut out = Vec::new();
        write(&mut out, 100, 20_000);
        let header = frame::Header::read(&out).unwrap();
        assert_eq!((header.kind, header.stream), (frame::kind::SETTINGS, 0));
        let payload = &out[frame::HEADER_BYTES..];
        assert_eq!(header.payload_bytes as usize, payload.len());
        let mut settings = Settings::default();
        settings.apply(payload, &mut Encoder::default()).unwrap();
        assert_eq!(settings.section_bytes_max, 20_000);
    }
}
