//! What may be sent on which stream (RFC 9114 §6, §7; RFC 9204 §4).

use crate::http3::client::{
    CANCEL_PUSH, DATA, GOAWAY, HEADERS, MAX_PUSH_ID, PRIORITY_UPDATE, PRIORITY_UPDATE_PUSH,
    PUSH_PROMISE, RESERVED, SETTINGS, frame, get, varint,
};
use crate::lab::Lab;

const STREAM_CREATION_ERROR: u64 = 0x103;
const CLOSED_CRITICAL_STREAM: u64 = 0x104;
const FRAME_UNEXPECTED: u64 = 0x105;
const FRAME_ERROR: u64 = 0x106;
const EXCESSIVE_LOAD: u64 = 0x107;
const ID_ERROR: u64 = 0x108;
const SETTINGS_ERROR: u64 = 0x109;
const MISSING_SETTINGS: u64 = 0x10a;
const QPACK_DECOMPRESSION_FAILED: u64 = 0x200;
const QPACK_ENCODER_STREAM_ERROR: u64 = 0x201;
const QPACK_DECODER_STREAM_ERROR: u64 = 0x202;

fn lab() -> Lab {
    let mut lab = Lab::new();
    lab.file("a", "content");
    lab
}

/// With which code a connection ends on which this comes on a request stream; whether bytes come at
/// once or each on its own is all the same.
fn on_request(bytes: &[u8]) -> Option<u64> {
    let mut codes = Vec::new();
    for is_split in [false, true] {
        let mut lab = lab();
        let connection = lab.http3();
        let stream = lab.open_stream(connection, false);
        match is_split {
            false => lab.send(stream, bytes),
            true => bytes.iter().for_each(|&byte| lab.send(stream, [byte])),
        }
        lab.finish(stream);
        codes.push(lab.quic_closed(connection));
        ends_as_it_should(&mut lab, codes[0]);
    }
    assert_eq!(codes[0], codes[1]);
    codes[0]
}

/// The same on a stream in one direction, which goes on. `has_control`: the client has a control
/// stream besides.
fn on_unidirectional(has_control: bool, bytes: &[u8]) -> Option<u64> {
    let mut codes = Vec::new();
    for is_split in [false, true] {
        let mut lab = lab();
        let connection = match has_control {
            true => lab.http3(),
            false => lab.open_quic(false),
        };
        let stream = lab.open_stream(connection, true);
        match is_split {
            false => lab.send(stream, bytes),
            true => bytes.iter().for_each(|&byte| lab.send(stream, [byte])),
        }
        codes.push(lab.quic_closed(connection));
        if codes[0].is_none() {
            assert_eq!(lab.ask3(connection, &get("/a")).body, b"content");
        }
        ends_as_it_should(&mut lab, codes[0]);
    }
    assert_eq!(codes[0], codes[1], "{bytes:x?}");
    codes[0]
}

fn ends_as_it_should(lab: &mut Lab, code: Option<u64>) {
    let errors = u64::from(code.is_some());
    assert_eq!(lab.counters().http3_connection_errors, errors);
    assert_eq!(lab.connections(), usize::from(code.is_none()));
    assert_eq!(lab.counters().connections_closed, errors);
    assert_eq!(lab.files_left_open(), 0);
}

/// A control stream with SETTINGS and this.
fn on_control(bytes: &[u8]) -> Option<u64> {
    on_unidirectional(false, &[&[0][..], &frame(SETTINGS, ""), bytes].concat())
}

/// Covers: RFC 9114 §4.1, RFC 9114 §7.2, RFC 9114 §7.2.8, RFC 9218 §7.1
#[test]
fn a_request_stream_has_frames_of_requests_only() {
    let (headers, data) = (get("/a"), frame(DATA, "data"));
    assert_eq!(on_request(&data), Some(FRAME_UNEXPECTED), "before HEADERS");
    let trailers = frame(HEADERS, [0, 0]);
    let whole = [&headers[..], &data, &data, &trailers].concat();
    assert_eq!(on_request(&whole), None);
    for behind in [&data, &trailers] {
        let bytes = [&whole[..], behind].concat();
        assert_eq!(
            on_request(&bytes),
            Some(FRAME_UNEXPECTED),
            "behind trailers"
        );
    }
    for kind in [
        CANCEL_PUSH,
        SETTINGS,
        PUSH_PROMISE,
        GOAWAY,
        MAX_PUSH_ID,
        PRIORITY_UPDATE,
        PRIORITY_UPDATE_PUSH,
        0x2,
        0x6,
        0x8,
        0x9,
    ] {
        let wrong = frame(kind, [0]);
        assert_eq!(on_request(&wrong), Some(FRAME_UNEXPECTED), "{kind:x}");
        let bytes = [&headers[..], &wrong].concat();
        assert_eq!(on_request(&bytes), Some(FRAME_UNEXPECTED), "{kind:x}");
    }
}

/// Covers: RFC 9114 §7.2.8, RFC 9114 §9
#[test]
fn what_is_not_known_is_ignored() {
    for kind in [RESERVED, 0xa, 0xc, 0xe, 0x21, (1 << 62) - 1] {
        for payload in [&[][..], &[0; 10], &[1; 1000]] {
            let unknown = frame(kind, payload);
            let bytes = [&unknown[..], &get("/a"), &unknown].concat();
            assert_eq!(on_request(&bytes), None, "{kind:x}");
            assert_eq!(on_control(&[&unknown[..], &unknown].concat()), None);
        }
    }
}

/// Covers: RFC 9114 §7.1
#[test]
fn a_stream_does_not_end_within_a_frame() {
    let whole = [&get("/a")[..], &frame(DATA, "data"), &frame(RESERVED, "x")].concat();
    let ends = [get("/a").len(), whole.len() - 4, whole.len()];
    for cut in 1..whole.len() {
        let expected = (!ends.contains(&cut)).then_some(FRAME_ERROR);
        assert_eq!(on_request(&whole[..cut]), expected, "{cut}");
    }
}

/// Covers: RFC 9204 §2.2, RFC 9204 §6
#[test]
fn a_field_section_that_is_not_well_formed_ends_the_connection() {
    for section in [
        &b""[..],
        b"\0",
        b"\0\0\xff",
        b"\0\0\x80",
        b"\x01\0\xd1",
        b"\0\0\xff\x24",
        b"\0\0\x51\x81\0",
        b"\0\0\x51\x05ab",
    ] {
        let bytes = frame(HEADERS, section);
        let expected = Some(QPACK_DECOMPRESSION_FAILED);
        assert_eq!(on_request(&bytes), expected, "{section:x?}");
        let trailers = [&get("/a")[..], &bytes].concat();
        assert_eq!(on_request(&trailers), expected, "{section:x?}");
    }
}

/// Covers: RFC 9114 §6.2, RFC 9114 §6.2.2, RFC 9114 §6.2.3
#[test]
fn streams_of_unknown_types_are_not_read_and_clients_do_not_push() {
    for kind in [0x21, 0x40, (1 << 62) - 1] {
        let mut lab = lab();
        let connection = lab.http3();
        let bytes = [&varint(kind)[..], b"anything"].concat();
        let stream = lab.unidirectional(connection, &bytes);
        assert_eq!(
            lab.stop_code(stream),
            Some(STREAM_CREATION_ERROR),
            "{kind:x}"
        );
        assert_eq!(lab.quic_closed(connection), None);
        assert!(lab.is_closed(stream));
    }
    assert_eq!(
        on_unidirectional(true, &[1, 0]),
        Some(STREAM_CREATION_ERROR)
    );
    // A stream that ends before its type is there is ignored.
    for bytes in [&[][..], &[0x40]] {
        let mut lab = lab();
        let connection = lab.http3();
        let stream = lab.unidirectional(connection, bytes);
        lab.finish(stream);
        assert_eq!(lab.quic_closed(connection), None);
    }
}

/// Covers: RFC 9114 §6.2.1, RFC 9204 §4.2
#[test]
fn critical_streams_come_once_and_never_end() {
    let control = [&[0][..], &frame(SETTINGS, "")].concat();
    for (bytes, has_control) in [(&control[..], false), (b"\x02", true), (b"\x03", true)] {
        let setup = || {
            let mut lab = lab();
            let connection = match has_control {
                true => lab.http3(),
                false => lab.open_quic(false),
            };
            let stream = lab.unidirectional(connection, bytes);
            assert_eq!(lab.quic_closed(connection), None);
            (lab, connection, stream)
        };
        let (mut lab, connection, _) = setup();
        lab.unidirectional(connection, bytes);
        assert_eq!(lab.quic_closed(connection), Some(STREAM_CREATION_ERROR));
        let (mut lab, connection, stream) = setup();
        lab.finish(stream);
        assert_eq!(lab.quic_closed(connection), Some(CLOSED_CRITICAL_STREAM));
        let (mut lab, connection, stream) = setup();
        lab.peer_resets(stream, 0);
        assert_eq!(lab.quic_closed(connection), Some(CLOSED_CRITICAL_STREAM));
        assert_eq!(lab.connections(), 0);
    }
    let mut lab = lab();
    let connection = lab.http3();
    lab.peer_stops(lab.control_stream(connection), 0);
    assert_eq!(lab.quic_closed(connection), Some(CLOSED_CRITICAL_STREAM));
}

/// Covers: RFC 9114 §6.2.1, RFC 9114 §7.2.4, RFC 9114 §7.2.4.1
#[test]
fn a_control_stream_begins_with_settings() {
    let control = |bytes: &[u8]| on_unidirectional(false, &[&[0][..], bytes].concat());
    assert_eq!(control(&frame(SETTINGS, "")), None);
    assert_eq!(
        control(&frame(SETTINGS, [0x6, 0x80, 0, 0x40, 0, 0x21, 0])),
        None
    );
    for first in [GOAWAY, MAX_PUSH_ID, RESERVED, DATA, PRIORITY_UPDATE] {
        assert_eq!(
            control(&frame(first, [0])),
            Some(MISSING_SETTINGS),
            "{first:x}"
        );
    }
    let twice = [frame(SETTINGS, ""), frame(SETTINGS, "")].concat();
    assert_eq!(control(&twice), Some(FRAME_UNEXPECTED));
    assert_eq!(control(&frame(SETTINGS, [0x2, 0])), Some(SETTINGS_ERROR));
    assert_eq!(
        control(&frame(SETTINGS, [0x6, 0, 0x6, 0])),
        Some(SETTINGS_ERROR)
    );
    assert_eq!(control(&frame(SETTINGS, [0x6])), Some(FRAME_ERROR));
}

/// Covers: RFC 9114 §7.2.1, RFC 9114 §7.2.2, RFC 9114 §7.2.5, RFC 9114 §7.2.8
#[test]
fn a_control_stream_has_no_frames_of_requests() {
    for kind in [DATA, HEADERS, PUSH_PROMISE, 0x2, 0x6, 0x8, 0x9] {
        assert_eq!(
            on_control(&frame(kind, "x")),
            Some(FRAME_UNEXPECTED),
            "{kind:x}"
        );
    }
}

/// Covers: RFC 9114 §5.2, RFC 9114 §7.2.3, RFC 9114 §7.2.6, RFC 9114 §7.2.7
#[test]
fn ids_on_a_control_stream_go_the_right_way_and_no_push_is_there_to_cancel() {
    let of = |kind, ids: &[u64]| {
        let frames: Vec<u8> = ids.iter().flat_map(|&id| frame(kind, varint(id))).collect();
        on_control(&frames)
    };
    assert_eq!(of(GOAWAY, &[8, 8, 0]), None);
    assert_eq!(of(GOAWAY, &[8, 9]), Some(ID_ERROR));
    assert_eq!(of(MAX_PUSH_ID, &[0, 8, 8]), None);
    assert_eq!(of(MAX_PUSH_ID, &[8, 7]), Some(ID_ERROR));
    assert_eq!(of(CANCEL_PUSH, &[0]), Some(ID_ERROR));
    assert_eq!(
        on_control(&frame(PRIORITY_UPDATE_PUSH, [0])),
        Some(ID_ERROR)
    );
    for kind in [GOAWAY, MAX_PUSH_ID, CANCEL_PUSH] {
        for payload in [&[][..], &[0x40], &[0, 0]] {
            let result = on_control(&frame(kind, payload));
            assert_eq!(result, Some(FRAME_ERROR), "{kind:x} {payload:x?}");
        }
    }
    for kind in [GOAWAY, SETTINGS, PRIORITY_UPDATE] {
        let long = frame(kind, vec![0; 1025]);
        let result = on_unidirectional(false, &[&[0][..], &frame(SETTINGS, ""), &long].concat());
        let expected = match kind {
            SETTINGS => FRAME_UNEXPECTED,
            _ => EXCESSIVE_LOAD,
        };
        assert_eq!(result, Some(expected), "{kind:x}");
    }
}

/// Covers: RFC 9204 §3.2.3, RFC 9204 §4.3, RFC 9204 §4.4
#[test]
fn streams_of_qpack_have_nothing_to_say_without_a_dynamic_table() {
    let encoder = |bytes: &[u8]| on_unidirectional(true, &[b"\x02", bytes].concat());
    assert_eq!(encoder(b"\x20\x20"), None, "a capacity of nothing");
    for wrong in [
        &b"\x21"[..],
        b"\x3f\x01",
        b"\x3f\xff\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\xc0\x01a",
        b"\x80\x01a",
        b"\x41a\x01b",
        b"\x00",
        b"\x20\x00",
    ] {
        assert_eq!(
            encoder(wrong),
            Some(QPACK_ENCODER_STREAM_ERROR),
            "{wrong:x?}"
        );
    }
    let decoder = |bytes: &[u8]| on_unidirectional(true, &[b"\x03", bytes].concat());
    assert_eq!(
        decoder(b"\x40\x44\x7f\x80\x01"),
        None,
        "streams that are cancelled"
    );
    for wrong in [&b"\x80"[..], b"\x84", b"\x00", b"\x01", b"\x40\x01"] {
        assert_eq!(
            decoder(wrong),
            Some(QPACK_DECODER_STREAM_ERROR),
            "{wrong:x?}"
        );
    }
    let endless = [&b"\x7f"[..], &[0xff; 20]].concat();
    assert_eq!(decoder(&endless), Some(QPACK_DECODER_STREAM_ERROR));
}
