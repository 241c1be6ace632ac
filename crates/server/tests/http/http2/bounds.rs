//! Work that leads to no response, and memory for it (RFC 9113 §10.5): each test measures its
//! bound.

use std::time::Duration;

use server::Config;

use crate::http2::client::{
    ACK, CANCEL, CONTINUATION, Client, DATA, END_HEADERS, END_STREAM, ENHANCE_YOUR_CALM, HEADERS,
    PING, PRIORITY, PRIORITY_UPDATE, PROTOCOL_ERROR, REFUSED_STREAM, SETTINGS, STREAM_CLOSED,
    block, content, frame, headers, request, rst_stream, settings, window_update,
};
use crate::lab::Lab;

/// Tokens at first, and later ones per second.
const TOKENS: usize = 1000;
const TOKENS_PER_SECOND: u32 = 100;

fn lab() -> Lab {
    lab_of(Config::default())
}

fn lab_of(config: Config) -> Lab {
    let mut lab = Lab::alone(config);
    lab.file("a", "content");
    lab.file("large", content(200_000));
    lab
}

fn get() -> Vec<u8> {
    block(&request("GET", "/a", &[]))
}

/// How often something can be done until the connection ends for it.
fn times(
    lab: &mut Lab,
    client: &mut Client,
    mut again: impl FnMut(&mut Lab, &mut Client),
) -> usize {
    for time in 0..10 * TOKENS {
        again(lab, client);
        if lab.is_shut_down(client.stream) {
            let code = client.goaway(lab).map(|(_, code)| code);
            assert_eq!(code, Some(ENHANCE_YOUR_CALM));
            assert_eq!(lab.counters().http2_excessive_loads, 1);
            assert_eq!(lab.files_left_open(), 0);
            assert!(lab.memory_bytes(client.stream) < 20_000);
            return time;
        }
    }
    panic!("there is no bound");
}

/// The bound is about this; frames that open a connection, and responses, count as well.
fn assert_about(count: usize, expected: usize) {
    assert!(
        count.abs_diff(expected) <= 5,
        "{count} instead of {expected}"
    );
}

/// A client that opens requests only to cancel them (CVE-2023-44487).
#[test]
fn cancelled_requests_are_bounded() {
    let mut lab = lab();
    lab.hold_opens();
    let mut client = Client::open(&mut lab);
    let count = times(&mut lab, &mut client, |lab, client| {
        let id = client.next_id();
        client.send(
            lab,
            [headers(id, END_STREAM, &get()), rst_stream(id, CANCEL)].concat(),
        );
    });
    assert_about(count, TOKENS / 4);
    assert_about(lab.opened_paths().len(), TOKENS / 4);
}

/// A client that makes the server reset its requests (CVE-2025-8671).
#[test]
fn requests_that_the_server_has_to_reset_are_bounded() {
    type After = fn(u32) -> Vec<u8>;
    let ways: [(u8, After); 5] = [
        (END_STREAM, |id| window_update(id, 0)),
        (END_STREAM, |id| window_update(id, (1 << 31) - 1)),
        (END_STREAM, |id| frame(DATA, 0, id, b"x")),
        (END_STREAM, |id| headers(id, END_STREAM, b"")),
        (0, |id| headers(id, 0, b"")),
    ];
    for (flags, after) in ways {
        let mut lab = lab();
        lab.hold_opens();
        let mut client = Client::open(&mut lab);
        let count = times(&mut lab, &mut client, |lab, client| {
            let id = client.next_id();
            client.send(lab, [headers(id, flags, &get()), after(id)].concat());
        });
        // The frame that makes it so may cost a token of its own.
        assert!((TOKENS / 5 - 5..=TOKENS / 4).contains(&count), "{count}");
    }
    for fields in [
        vec![("x", "y")],
        request("GET", "/a", &[("content-length", "1")]),
    ] {
        let mut lab = lab();
        let mut client = Client::open(&mut lab);
        let malformed = block(&fields);
        let count = times(&mut lab, &mut client, |lab, client| {
            let id = client.next_id();
            client.send(lab, headers(id, END_STREAM, &malformed));
        });
        assert_about(count, TOKENS / 4);
    }
}

#[test]
fn a_client_that_cancels_now_and_then_goes_on_for_ever() {
    for is_patient in [true, false] {
        let mut lab = lab();
        let mut client = Client::open(&mut lab);
        for _ in 0..TOKENS / 2 {
            lab.hold_opens();
            let id = client.send_get(&mut lab, "/a");
            client.send(&mut lab, rst_stream(id, CANCEL));
            lab.answer_opens();
            match is_patient {
                true => lab.pass(Duration::from_secs(4) / TOKENS_PER_SECOND),
                false => (0..4).for_each(|_| {
                    client.send_get(&mut lab, "/a");
                }),
            }
        }
        assert_eq!(client.goaway(&lab), None);
        assert_eq!(client.get(&mut lab, "/a").status, 200);
    }
}

/// Covers: RFC 9113 §6.10, RFC 9113 §10.5
#[test]
fn a_field_block_has_a_bounded_number_of_frames_and_bytes() {
    for (bytes, expected) in [(0, 16), (1, 16), (4000, 15), (16_000, 3), (16_384, 3)] {
        let mut lab = lab();
        let mut client = Client::open(&mut lab);
        client.send(&mut lab, frame(HEADERS, 0, 1, vec![0; bytes]));
        let mut most = 0;
        let count = times(&mut lab, &mut client, |lab, client| {
            client.send(lab, frame(CONTINUATION, 0, 1, vec![0; bytes]));
            most = most.max(lab.memory_bytes(client.stream));
        });
        assert_eq!(count, expected, "of {bytes} bytes");
        assert!(most <= 2 * (64 << 10) + 20_000, "{most} bytes of memory");
    }
}

/// Covers: RFC 9113 §10.5
#[test]
fn frames_that_do_nothing_are_bounded() {
    for (useless, expected) in [
        (settings(&[]), TOKENS),
        (settings(&[(4, 5), (1, 0)]), TOKENS),
        (frame(SETTINGS, ACK, 0, b""), TOKENS),
        (frame(PING, 0, 0, [0; 8]), TOKENS),
        (frame(PING, ACK, 0, [0; 8]), TOKENS),
        (frame(PRIORITY, 0, 1, [0; 5]), TOKENS),
        (frame(PRIORITY, 0, 99, [0; 5]), TOKENS),
        (frame(PRIORITY_UPDATE, 0, 0, b"\0\0\0\x01u=1"), TOKENS),
        (frame(PRIORITY_UPDATE, 0, 0, b"\0\0\0\x09u=1"), TOKENS),
        (frame(7, 0, 0, [0; 8]), TOKENS),
        (window_update(0, 1), TOKENS),
        (window_update(1, 1), TOKENS),
        (frame(DATA, 0, 1, b""), TOKENS),
        (frame(DATA, 8, 1, [0]), TOKENS),
        (frame(0xb, 0, 0, b""), TOKENS),
        (frame(0xb, 0, 1, [0; 1023]), TOKENS),
        (frame(0xb, 0, 1, [0; 9 << 10]), TOKENS / 10),
    ] {
        let mut lab = lab();
        let mut client = Client::connect(&mut lab, &[]);
        lab.hold_opens();
        client.send_request(&mut lab, &request("GET", "/a", &[]), false);
        let count = times(&mut lab, &mut client, |lab, client| {
            client.send(lab, &useless)
        });
        assert_about(count, expected);
        assert!(lab.received(client.stream).len() < 20 * TOKENS, "answers");
    }
}

/// Covers: RFC 9113 §5.1
#[test]
fn resets_of_streams_that_are_over_are_bounded() {
    let mut lab = lab();
    let mut client = Client::open(&mut lab);
    let id = client.send_get(&mut lab, "/a");
    let count = times(&mut lab, &mut client, |lab, client| {
        client.send(lab, rst_stream(id, CANCEL));
    });
    assert_about(count, TOKENS);
}

/// Covers: RFC 9113 §6.9
#[test]
fn window_updates_for_data_are_free() {
    let mut lab = lab();
    lab.zeros("zeros", 1 << 20);
    let mut client = Client::connect(&mut lab, &[(4, 1000)]);
    let id = client.send_get(&mut lab, "/zeros");
    for _ in 0..1040 {
        client.send(
            &mut lab,
            [window_update(0, 1000), window_update(id, 1000)].concat(),
        );
    }
    assert_eq!(client.goaway(&lab), None);
    assert_eq!(client.received(&lab, id).body.len(), 1_041_000);
    // More than two for each DATA frame are not.
    let count = times(&mut lab, &mut client, |lab, client| {
        client.send(lab, window_update(0, 1));
    });
    assert!(count <= 2 * TOKENS + 5, "{count}");
}

/// A block that stands for far more than its bytes is refused at the size of a head.
///
/// Covers: RFC 9113 §10.5.1, RFC 7541 §7.3
#[test]
fn a_field_section_is_bounded_in_its_decoded_size() {
    let mut lab = lab();
    let mut client = Client::open(&mut lab);
    // An entry of nearly all of the table, and as often as it goes a byte that repeats it.
    let value = [&[0x7f, 0xf0, 0x1d][..], &[b'v'; 4015 - 128]].concat();
    let entry = [&[0x40, 1, b'x'][..], &value].concat();
    let bomb = [
        &[0x82, 0x87, 0x84, 0x01, 1, b'h'][..],
        &entry,
        &[0xbe; 55_000],
    ]
    .concat();
    for _ in 0..20 {
        let id = client.next_id();
        client.send(&mut lab, headers(id, END_STREAM, &bomb));
        assert_eq!(client.response(&mut lab, id).status, 431);
        let bytes = lab.memory_bytes(client.stream);
        assert!(bytes < 12_000, "{bytes} bytes of memory");
    }
    assert_eq!(client.get(&mut lab, "/a").body, b"content");
}

/// Covers: RFC 7541 §4.2, RFC 7541 §7.3
#[test]
fn the_dynamic_table_is_bounded_whatever_enters_it() {
    let mut lab = lab();
    let mut client = Client::open(&mut lab);
    let fields = block(&request("GET", "/a", &[]));
    for round in 0..100_u32 {
        let sizes = [0x3f, 0xe1, 0x1f, 0x20, 0x3f, 0xe1, 0x1f].repeat(50);
        let names = (0..130_u32).flat_map(|at| {
            let name = (round * 1000 + at)
                .to_be_bytes()
                .map(|byte| b'a' + byte % 16);
            [&[0x40, 4], &name[..], &[0]].concat()
        });
        let id = client.next_id();
        let block = [&sizes[..], &fields, &names.collect::<Vec<u8>>()].concat();
        client.send(&mut lab, headers(id, END_STREAM, &block));
        assert_eq!(client.response(&mut lab, id).status, 431, "130 fields");
        let bytes = lab.memory_bytes(client.stream);
        assert!(bytes < 16_000, "{bytes} bytes of memory");
    }
    let id = client.next_id();
    client.send(
        &mut lab,
        headers(id, END_STREAM, &[&[0x20][..], &fields].concat()),
    );
    assert_eq!(client.response(&mut lab, id).status, 200);
    // The encoder has a table of its own, whatever the client permits.
    client.send(&mut lab, settings(&[(1, u32::MAX)]));
    assert_eq!(client.get(&mut lab, "/a").status, 200);
    assert!(lab.memory_bytes(client.stream) < 4000);
}

/// Covers: RFC 9113 §5.1.2
#[test]
fn streams_beyond_the_limit_are_refused_and_open_nothing() {
    let mut lab = lab_of(Config {
        http2_streams_max: 3,
        ..Config::default()
    });
    lab.hold_opens();
    let mut client = Client::open(&mut lab);
    let ids = [(); 5].map(|()| client.send_get(&mut lab, "/a"));
    let codes = ids.map(|id| client.reset_code(&lab, id));
    let refused = Some(REFUSED_STREAM);
    assert_eq!(codes, [None, None, None, refused, refused]);
    assert_eq!(lab.opened_paths().len(), 3);
    client.send(&mut lab, rst_stream(ids[0], CANCEL));
    let next = client.send_get(&mut lab, "/a");
    let late = client.send_get(&mut lab, "/a");
    assert_eq!(client.reset_code(&lab, late), refused);
    lab.answer_opens();
    for id in [ids[1], ids[2], next] {
        assert_eq!(client.response(&mut lab, id).body, b"content");
    }
    assert_eq!(lab.counters().http2_requests, 4);
    assert_eq!(client.get(&mut lab, "/a").status, 200);
}

/// However a stream ends, its place is free.
///
/// Covers: RFC 9113 §5.1.2
#[test]
fn each_end_of_a_stream_makes_room_for_another() {
    let mut lab = lab_of(Config {
        http2_streams_max: 2,
        ..Config::default()
    });
    let mut client = Client::open(&mut lab);
    let half = |client: &mut Client, lab: &mut Lab, length| {
        let fields = request("GET", "/a", &[("content-length", length)]);
        client.send_request(lab, &fields, false)
    };
    for round in 0..12 {
        let id = half(&mut client, &mut lab, "1");
        match round % 6 {
            0 => client.send(&mut lab, frame(DATA, END_STREAM, id, b"x")),
            1 => client.send(&mut lab, frame(DATA, END_STREAM, id, b"")),
            2 => client.send(&mut lab, headers(id, END_STREAM, b"")),
            3 => client.send(&mut lab, headers(id, 0, b"")),
            4 => client.send(&mut lab, rst_stream(id, CANCEL)),
            _ => lab.pass(Duration::from_secs(16)),
        }
        let [one, other] = [(); 2].map(|()| half(&mut client, &mut lab, "0"));
        for id in [one, other] {
            assert_eq!(client.response(&mut lab, id).body, b"content", "{round}");
        }
        let refused = client.send_get(&mut lab, "/a");
        assert_eq!(
            client.reset_code(&lab, refused),
            Some(REFUSED_STREAM),
            "{round}"
        );
        for id in [one, other] {
            client.send(&mut lab, frame(DATA, END_STREAM, id, b""));
        }
        assert_eq!(client.get(&mut lab, "/a").body, b"content");
    }
    assert_eq!(client.goaway(&lab), None);
}

/// Covers: RFC 9113 §10.5
#[test]
fn streams_whose_windows_stay_closed_end_after_the_stall_timeout() {
    // The window of the stream is closed, or that of the connection.
    for (initial, is_pinging) in [(0, false), (0, true), (1 << 20, false), (1 << 20, true)] {
        let mut lab = lab();
        let mut client = Client::connect(&mut lab, &[(4, initial)]);
        (0..100).for_each(|_| {
            client.send_get(&mut lab, "/large");
        });
        assert_eq!(lab.files_left_open(), 100);
        let bytes = lab.memory_bytes(client.stream);
        assert!(bytes < 150_000, "{bytes} bytes of memory");
        for _ in 0..9 {
            lab.pass(Duration::from_secs(10));
            if is_pinging {
                client.send(&mut lab, frame(PING, 0, 0, [0; 8]));
            }
        }
        assert_eq!(lab.files_left_open(), 0, "{initial} {is_pinging}");
        assert_eq!(lab.counters().stall_timeouts, 100);
        for id in (1..200).step_by(2) {
            assert_eq!(client.reset_code(&lab, id), Some(CANCEL));
        }
        assert_eq!(client.goaway(&lab), None);
        client.send(&mut lab, settings(&[(4, 1000)]));
        client.send(&mut lab, window_update(0, 1 << 20));
        assert_eq!(client.get(&mut lab, "/a").body, b"content");
    }
}

/// A stream that waits for its turn is not stalled.
#[test]
fn a_stream_that_waits_behind_others_is_not_reset() {
    let mut lab = lab();
    lab.zeros("huge", 1 << 40);
    let mut client = Client::open(&mut lab);
    let stream = client.stream;
    lab.acknowledges(stream, false);
    client.send_get(&mut lab, "/huge");
    let behind = client.send_get(&mut lab, "/a");
    for _ in 0..20 {
        lab.pass(Duration::from_secs(8));
        lab.acknowledge(stream, 20_000);
    }
    assert!(!lab.is_aborted(stream));
    assert_eq!(client.reset_code(&lab, behind), None);
    client.send(&mut lab, rst_stream(1, CANCEL));
    lab.acknowledges(stream, true);
    assert_eq!(client.response(&mut lab, behind).body, b"content");
}

/// Streams that wait for the window of the connection are noted once.
#[test]
fn streams_that_wait_take_no_more_memory_with_time() {
    let mut lab = lab();
    let mut client = Client::connect(&mut lab, &[(4, 1 << 20)]);
    (0..20).for_each(|_| {
        client.send_get(&mut lab, "/large");
    });
    let before = lab.memory_bytes(client.stream);
    for round in 0..1500 {
        client.send(&mut lab, settings(&[(4, (1 << 20) + round)]));
        lab.pass(Duration::from_millis(20));
    }
    assert_eq!(client.goaway(&lab), None);
    let after = lab.memory_bytes(client.stream);
    assert!(after <= before + 1000, "{after} bytes after {before}");
}

/// Covers: RFC 9113 §10.5
#[test]
fn a_client_that_reads_nothing_fills_a_bounded_buffer() {
    let mut lab = lab();
    let mut client = Client::open(&mut lab);
    let stream = client.stream;
    lab.acknowledges(stream, false);
    lab.limit_queue(stream, 1000);
    let mut most = 0;
    for _ in 0..5000 {
        client.send(&mut lab, frame(PING, 0, 0, [0; 8]));
        most = most.max(lab.memory_bytes(stream));
        lab.pass(Duration::from_millis(10));
    }
    assert!(most < 60_000, "{most} bytes of memory");
    assert!(lab.unread_bytes(stream) > 0, "the receive window closes");
    assert_eq!(client.goaway(&lab), None);
    lab.acknowledges(stream, true);
    assert_eq!(lab.unread_bytes(stream), 0);
    assert!(client.frames_of(&lab, PING).len() > 2000);
}

/// Covers: RFC 9113 §5.1.1
#[test]
fn stream_ids_only_increase_and_are_odd() {
    for (before, id, code) in [
        (&[5][..], 3, PROTOCOL_ERROR),
        (&[5], 1, PROTOCOL_ERROR),
        (&[3], 1, PROTOCOL_ERROR),
        (&[1, 9, 11], 3, PROTOCOL_ERROR),
        (&[1, 9, 11], 7, PROTOCOL_ERROR),
        (&[1, 9, 11], 9, STREAM_CLOSED),
        (&[5], 5, STREAM_CLOSED),
        (&[1, 3], 1, STREAM_CLOSED),
        (&[5], 4, PROTOCOL_ERROR),
        (&[], 2, PROTOCOL_ERROR),
        (&[], (1 << 31) - 2, PROTOCOL_ERROR),
    ] {
        let mut lab = lab();
        let mut client = Client::open(&mut lab);
        before
            .iter()
            .for_each(|&id| client.send(&mut lab, headers(id, END_STREAM, &get())));
        client.send(&mut lab, headers(id, END_STREAM, &get()));
        let goaway = client.goaway(&lab);
        assert_eq!(goaway.map(|(_, code)| code), Some(code), "{before:?} {id}");
    }
    let mut lab = lab();
    let mut client = Client::open(&mut lab);
    client.send(&mut lab, headers((1 << 31) - 1, END_STREAM, &get()));
    assert_eq!(client.response(&mut lab, (1 << 31) - 1).body, b"content");
}

/// Covers: RFC 9113 §5.1
#[test]
fn frames_on_closed_streams_are_errors_unless_they_may_be_in_flight() {
    let on = |id: u32| {
        [
            (frame(DATA, 0, id, b"x"), true),
            (headers(id, END_STREAM, b""), true),
            (window_update(id, 1), false),
            (rst_stream(id, CANCEL), false),
            (frame(PRIORITY, 0, id, [0; 5]), false),
        ]
    };
    for at in 0..5 {
        let (bytes, is_error) = &on(1)[at];
        // Both sides have ended the stream.
        let mut lab = lab();
        let mut client = Client::connect(&mut lab, &[]);
        client.get(&mut lab, "/a");
        client.send(&mut lab, bytes);
        let expected = is_error.then_some((1, STREAM_CLOSED));
        assert_eq!(client.goaway(&lab), expected, "{bytes:?}");
        // The client has ended the request.
        let mut lab = self::lab();
        lab.hold_opens();
        let mut client = Client::connect(&mut lab, &[]);
        client.send_get(&mut lab, "/a");
        client.send(&mut lab, bytes);
        let expected = is_error.then_some(STREAM_CLOSED);
        assert_eq!(client.reset_code(&lab, 1), expected, "{bytes:?}");
        assert_eq!(client.goaway(&lab), None);
        // The server has reset it.
        let mut lab = self::lab();
        lab.hold_opens();
        let mut client = Client::connect(&mut lab, &[]);
        client.send_request(&mut lab, &request("GET", "/a", &[]), false);
        client.send(&mut lab, window_update(1, 0));
        client.send(&mut lab, [&bytes[..], bytes].concat());
        assert_eq!(client.reset_code(&lab, 1), Some(PROTOCOL_ERROR));
        assert_eq!(client.goaway(&lab), None);
        lab.answer_opens();
        assert_eq!(client.get(&mut lab, "/a").body, b"content");
        assert_eq!(lab.counters().http2_stream_errors, 1);
    }
    // The client has cancelled it.
    let mut lab = lab();
    lab.hold_opens();
    let mut client = Client::connect(&mut lab, &[]);
    let id = client.send_request(&mut lab, &request("GET", "/a", &[]), false);
    client.send(&mut lab, rst_stream(id, CANCEL));
    client.send(&mut lab, frame(DATA, END_STREAM | END_HEADERS, id, b"x"));
    assert_eq!(client.goaway(&lab), Some((1, STREAM_CLOSED)));
}
