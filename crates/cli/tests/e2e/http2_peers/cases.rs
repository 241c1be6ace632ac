//! The frames of each row, and the answers that RFC 9113, RFC 9218 and RFC 7541 permit.

use fakes::http2::{
    ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PADDED, PING, PREFACE,
    PRIORITIZED, PRIORITY, PRIORITY_UPDATE, PUSH_PROMISE, RST_STREAM, SETTINGS, WINDOW_UPDATE,
    block, frame, headers, rst_stream, settings, window_update,
};

/// A row.
pub(super) struct Case {
    pub(super) what: &'static str,
    /// Bytes, and the stream whose end ends the step.
    pub(super) steps: Vec<(Vec<u8>, u32)>,
    /// The server may close in its own time.
    pub(super) awaits_end: bool,
    pub(super) rule: &'static str,
    /// Answers that the text permits.
    pub(super) permitted: &'static [&'static str],
}

/// Answers to a malformed request.
const MALFORMED: &[&str] = &["RST_STREAM PROTOCOL_ERROR", "400", "GOAWAY PROTOCOL_ERROR"];

const PROTOCOL: &[&str] = &["GOAWAY PROTOCOL_ERROR", "closes"];
const FRAME_SIZE: &[&str] = &["GOAWAY FRAME_SIZE_ERROR", "closes"];
const FLOW_CONTROL: &[&str] = &["GOAWAY FLOW_CONTROL_ERROR", "closes"];
const COMPRESSION: &[&str] = &["GOAWAY COMPRESSION_ERROR", "closes"];
const CLOSED: &[&str] = &[
    "200, RST_STREAM STREAM_CLOSED",
    "GOAWAY STREAM_CLOSED",
    "RST_STREAM STREAM_CLOSED",
    "closes",
];
const OK: &[&str] = &["200"];

/// The first frames of a client, whose windows are large.
fn greeting() -> Vec<u8> {
    let windows = [settings(&[(4, 1 << 20)]), window_update(0, 1 << 24)];
    [PREFACE, &windows.concat()].concat()
}

/// A GET of the file on this stream.
fn get(id: u32) -> Vec<u8> {
    headers(id, END_STREAM, &block(&REQUEST))
}

const REQUEST: [(&str, &str); 4] = [
    (":method", "GET"),
    (":scheme", "http"),
    (":authority", "site"),
    (":path", "/file"),
];

/// A row of one step.
fn case(
    what: &'static str,
    bytes: &[Vec<u8>],
    watched: u32,
    rule: &'static str,
    permitted: &'static [&'static str],
) -> Case {
    let bytes = [greeting(), bytes.concat()].concat();
    Case {
        what,
        steps: vec![(bytes, watched)],
        awaits_end: false,
        rule,
        permitted,
    }
}

/// A row of a whole request with these fields.
fn fields(
    what: &'static str,
    fields: &[(&str, &str)],
    rule: &'static str,
    permitted: &'static [&'static str],
) -> Case {
    let request = headers(1, END_STREAM, &block(fields));
    case(what, &[request], 1, rule, permitted)
}

/// The same with a further field.
fn with(
    what: &'static str,
    field: (&str, &str),
    rule: &'static str,
    permitted: &'static [&'static str],
) -> Case {
    let all = [&REQUEST[..], &[field]].concat();
    fields(what, &all, rule, permitted)
}

/// A row of frames before a GET.
fn before(
    what: &'static str,
    frames: &[Vec<u8>],
    rule: &'static str,
    permitted: &'static [&'static str],
) -> Case {
    case(what, &[frames.concat(), get(101)], 101, rule, permitted)
}

/// A row of frames after the end of stream 1, and before another GET.
fn after(
    what: &'static str,
    frames: &[Vec<u8>],
    rule: &'static str,
    permitted: &'static [&'static str],
) -> Case {
    Case {
        what,
        steps: vec![
            ([greeting(), get(1)].concat(), 1),
            ([frames.concat(), get(3)].concat(), 3),
        ],
        awaits_end: false,
        rule,
        permitted,
    }
}

/// All rows, in the order of the page.
pub(super) fn all() -> Vec<Case> {
    let groups = [
        pseudo_fields(),
        more_pseudo_fields(),
        names_and_values(),
        connection_fields(),
        bodies(),
        settings_values(),
        pings_and_ends(),
        windows(),
        idle_streams(),
        closed_streams(),
        priorities(),
        field_blocks(),
        compression(),
        lengths(),
    ];
    groups.into_iter().flatten().collect()
}

/// The request without one of its fields.
fn without(name: &str) -> Vec<(&'static str, &'static str)> {
    let fields = REQUEST.into_iter();
    fields.filter(|(known, _)| *known != name).collect()
}

/// The request with another value of a field.
fn other(name: &str, value: &'static str) -> Vec<(&'static str, &'static str)> {
    let fields = REQUEST.into_iter();
    let fields = fields.map(|(known, old)| (known, if known == name { value } else { old }));
    fields.collect()
}

fn pseudo_fields() -> Vec<Case> {
    const MISSING: &str = "malformed (RFC 9113 §8.3.1)";
    const TWICE: &str = "malformed (RFC 9113 §8.3)";
    vec![
        fields("GET", &REQUEST, "200", OK),
        fields("HEAD", &other(":method", "HEAD"), "200", OK),
        fields("no `:method`", &without(":method"), MISSING, MALFORMED),
        fields("no `:scheme`", &without(":scheme"), MISSING, MALFORMED),
        fields("no `:path`", &without(":path"), MISSING, MALFORMED),
        fields("an empty `:path`", &other(":path", ""), MISSING, MALFORMED),
        fields(
            "`:path: file`, without a slash",
            &other(":path", "file"),
            "malformed (RFC 9113 §8.3.1)",
            MALFORMED,
        ),
        with("`:method` twice", (":method", "GET"), TWICE, MALFORMED),
        with("`:path` twice", (":path", "/file"), TWICE, MALFORMED),
        with(
            "`:authority` twice",
            (":authority", "site"),
            TWICE,
            MALFORMED,
        ),
        with(
            "`:status`",
            (":status", "200"),
            "malformed (RFC 9113 §8.3)",
            MALFORMED,
        ),
        with(
            "`:other`",
            (":other", "x"),
            "malformed (RFC 9113 §8.3)",
            MALFORMED,
        ),
        fields(
            "`:path` behind other fields",
            &[
                &without(":path")[..],
                &[("accept", "*/*"), (":path", "/file")],
            ]
            .concat(),
            "malformed (RFC 9113 §8.3)",
            MALFORMED,
        ),
    ]
}

fn more_pseudo_fields() -> Vec<Case> {
    let connect = [(":method", "CONNECT"), (":authority", "site:80")];
    let extended = [
        &other(":method", "CONNECT")[..],
        &[(":protocol", "websocket")],
    ]
    .concat();
    let no_tunnel = &["405", "501", "400", "403", "404"];
    vec![
        fields(
            "`Host` in place of `:authority`",
            &[&without(":authority")[..], &[("host", "site")]].concat(),
            "as good (RFC 9113 §8.3.1)",
            OK,
        ),
        with(
            "`Host` beside another `:authority`",
            ("host", "other"),
            "should be malformed (RFC 9113 §8.3.1)",
            MALFORMED,
        ),
        fields(
            "neither",
            &without(":authority"),
            "400 (RFC 9110 §7.2)",
            MALFORMED,
        ),
        fields(
            "`:authority: user@site`",
            &other(":authority", "user@site"),
            "not to be sent (RFC 9113 §8.3.1); 400 or ignored",
            &["400", "RST_STREAM PROTOCOL_ERROR", "200"],
        ),
        fields(
            "`:scheme: ftp`",
            &other(":scheme", "ftp"),
            "another scheme may be refused (RFC 9110 §7.4)",
            &["400", "421", "404", "RST_STREAM PROTOCOL_ERROR", "200"],
        ),
        fields(
            "`:method: get`",
            &other(":method", "get"),
            "an unknown method: 501, or 405 (RFC 9110 §9.1)",
            &["501", "405", "400"],
        ),
        fields("CONNECT", &connect, "refused (RFC 9110 §9.3.6)", no_tunnel),
        fields(
            "CONNECT with `:scheme` and `:path`",
            &other(":method", "CONNECT"),
            "malformed (RFC 9113 §8.5)",
            MALFORMED,
        ),
        fields(
            "CONNECT with `:protocol`",
            &extended,
            "malformed where it is not offered (RFC 8441 §3, RFC 9113 §8.3)",
            MALFORMED,
        ),
    ]
}

fn names_and_values() -> Vec<Case> {
    const RULE: &str = "malformed (RFC 9113 §8.2.1)";
    let long = "x".repeat(20_000);
    vec![
        with("a name in upper case", ("Accept", "*/*"), RULE, MALFORMED),
        with("a name with a space", ("a b", "x"), RULE, MALFORMED),
        with("a name with a colon", ("a:b", "x"), RULE, MALFORMED),
        with("an empty name", ("", "x"), RULE, MALFORMED),
        with("NUL in a value", ("x", "a\0b"), RULE, MALFORMED),
        with("LF in a value", ("x", "a\nb"), RULE, MALFORMED),
        with("CR in a value", ("x", "a\rb"), RULE, MALFORMED),
        with("a space before a value", ("x", " a"), RULE, MALFORMED),
        with("a tab behind a value", ("x", "a\t"), RULE, MALFORMED),
        with("an empty value", ("x", ""), "200", OK),
        with(
            "a field of 20,000 bytes",
            ("x", &long),
            "431 or a reset (RFC 9113 §10.5.1), if it is too long",
            &[
                "431",
                "400",
                "200",
                "RST_STREAM PROTOCOL_ERROR",
                "RST_STREAM INTERNAL_ERROR",
                "RST_STREAM ENHANCE_YOUR_CALM",
                "GOAWAY ENHANCE_YOUR_CALM",
                "GOAWAY COMPRESSION_ERROR",
            ],
        ),
        fields(
            "`Cookie` twice",
            &[&REQUEST[..], &[("cookie", "a=b"), ("cookie", "c=d")]].concat(),
            "one value in two parts (RFC 9113 §8.2.3)",
            OK,
        ),
    ]
}

fn connection_fields() -> Vec<Case> {
    const RULE: &str = "malformed (RFC 9113 §8.2.2)";
    vec![
        with("`Connection`", ("connection", "close"), RULE, MALFORMED),
        with("`Keep-Alive`", ("keep-alive", "1"), RULE, MALFORMED),
        with(
            "`Proxy-Connection`",
            ("proxy-connection", "close"),
            RULE,
            MALFORMED,
        ),
        with(
            "`Transfer-Encoding`",
            ("transfer-encoding", "chunked"),
            RULE,
            MALFORMED,
        ),
        with("`Upgrade`", ("upgrade", "h2c"), RULE, MALFORMED),
        with(
            "`TE: trailers`",
            ("te", "trailers"),
            "200 (RFC 9113 §8.2.2)",
            OK,
        ),
        with("`TE: gzip`", ("te", "gzip"), RULE, MALFORMED),
    ]
}

/// A request with this content length, or none, that goes on.
fn open(length: Option<&str>) -> Vec<u8> {
    let length = length.map(|length| ("content-length", length));
    let fields: Vec<_> = REQUEST.into_iter().chain(length).collect();
    headers(1, 0, &block(&fields))
}

fn bodies() -> Vec<Case> {
    const RULE: &str = "malformed (RFC 9113 §8.1.1)";
    let trailers = |flags, name| headers(1, flags, &block(&[(name, "x")]));
    let data = |flags, bytes: usize| frame(DATA, flags, 1, vec![b'x'; bytes]);
    let body = |what, frames: &[Vec<u8>], rule, permitted| case(what, frames, 1, rule, permitted);
    // RFC 9113 §8.1: a response may precede the request's end, and so its fault.
    const LATE: &[&str] = &[
        "RST_STREAM PROTOCOL_ERROR",
        "400",
        "GOAWAY PROTOCOL_ERROR",
        "200, RST_STREAM PROTOCOL_ERROR",
        "200, GOAWAY PROTOCOL_ERROR",
    ];
    vec![
        body("a body", &[open(Some("5")), data(END_STREAM, 5)], "200", OK),
        body(
            "no END_STREAM",
            &[open(None)],
            "200, if the body does not matter",
            OK,
        ),
        with(
            "`Content-Length: 5` without a body",
            ("content-length", "5"),
            RULE,
            MALFORMED,
        ),
        body(
            "`Content-Length: 5`, and 4 bytes",
            &[open(Some("5")), data(END_STREAM, 4)],
            RULE,
            LATE,
        ),
        body(
            "`Content-Length: 5`, and 6 bytes",
            &[open(Some("5")), data(END_STREAM, 6)],
            RULE,
            LATE,
        ),
        with(
            "`Content-Length: x`",
            ("content-length", "x"),
            RULE,
            MALFORMED,
        ),
        body(
            "trailers",
            &[open(None), data(0, 5), trailers(END_STREAM, "x")],
            "200 (RFC 9113 §8.1)",
            OK,
        ),
        body(
            "trailers with `:path`",
            &[open(None), data(0, 5), trailers(END_STREAM, ":path")],
            "malformed (RFC 9113 §8.1)",
            LATE,
        ),
        body(
            "trailers without END_STREAM",
            &[open(None), data(0, 5), trailers(0, "x")],
            "malformed (RFC 9113 §8.1)",
            LATE,
        ),
        body(
            "DATA with padding",
            &[
                open(Some("5")),
                frame(DATA, PADDED | END_STREAM, 1, b"\x03hello\0\0\0"),
            ],
            "200 (RFC 9113 §6.1)",
            OK,
        ),
    ]
}

fn settings_values() -> Vec<Case> {
    let value = |id, value| vec![settings(&[(id, value)])];
    vec![
        Case {
            what: "a request before SETTINGS",
            steps: vec![([PREFACE, &get(1)].concat(), 1)],
            awaits_end: false,
            rule: "PROTOCOL_ERROR (RFC 9113 §3.4)",
            permitted: PROTOCOL,
        },
        before(
            "an unknown setting",
            &value(0x1a1a, 1),
            "ignored (RFC 9113 §6.5.2)",
            OK,
        ),
        before(
            "ENABLE_PUSH = 2",
            &value(2, 2),
            "PROTOCOL_ERROR (RFC 9113 §6.5.2)",
            PROTOCOL,
        ),
        before(
            "INITIAL_WINDOW_SIZE = 2^31",
            &value(4, 1 << 31),
            "FLOW_CONTROL_ERROR (RFC 9113 §6.5.2)",
            FLOW_CONTROL,
        ),
        before(
            "MAX_FRAME_SIZE = 16,383",
            &value(5, 16_383),
            "PROTOCOL_ERROR (RFC 9113 §6.5.2)",
            PROTOCOL,
        ),
        before(
            "NO_RFC7540_PRIORITIES = 2",
            &value(9, 2),
            "PROTOCOL_ERROR (RFC 9218 §2.1), if it is known",
            &["GOAWAY PROTOCOL_ERROR", "200"],
        ),
        before(
            "HEADER_TABLE_SIZE = 0",
            &value(1, 0),
            "announced before the next field (RFC 7541 §4.2)",
            OK,
        ),
        before(
            "SETTINGS of 5 bytes",
            &[frame(SETTINGS, 0, 0, [0; 5])],
            "FRAME_SIZE_ERROR (RFC 9113 §6.5)",
            FRAME_SIZE,
        ),
        before(
            "SETTINGS on stream 1",
            &[frame(SETTINGS, 0, 1, [])],
            "PROTOCOL_ERROR (RFC 9113 §6.5)",
            PROTOCOL,
        ),
        before(
            "an acknowledgment with a value",
            &[frame(SETTINGS, ACK, 0, [0; 6])],
            "FRAME_SIZE_ERROR (RFC 9113 §6.5)",
            FRAME_SIZE,
        ),
    ]
}

fn pings_and_ends() -> Vec<Case> {
    let goaway = |stream| frame(GOAWAY, 0, stream, [0; 8]);
    vec![
        before(
            "PING",
            &[frame(PING, 0, 0, [1; 8])],
            "answered (RFC 9113 §6.7)",
            &["200, PING"],
        ),
        before(
            "PING of 7 bytes",
            &[frame(PING, 0, 0, [1; 7])],
            "FRAME_SIZE_ERROR (RFC 9113 §6.7)",
            FRAME_SIZE,
        ),
        before(
            "PING on stream 1",
            &[frame(PING, 0, 1, [1; 8])],
            "PROTOCOL_ERROR (RFC 9113 §6.7)",
            PROTOCOL,
        ),
        Case {
            awaits_end: true,
            ..case(
                "GOAWAY behind a request",
                &[get(1), goaway(0)],
                1,
                "the request is answered (RFC 9113 §6.8)",
                &["200", "200, closes", "200, GOAWAY NO_ERROR, closes"],
            )
        },
        before(
            "GOAWAY on stream 1",
            &[goaway(1)],
            "PROTOCOL_ERROR (RFC 9113 §6.8)",
            PROTOCOL,
        ),
        before(
            "PUSH_PROMISE",
            &[frame(PUSH_PROMISE, END_HEADERS, 1, [0, 0, 0, 2])],
            "PROTOCOL_ERROR (RFC 9113 §8.4)",
            PROTOCOL,
        ),
        before(
            "an unknown frame",
            &[frame(0xbb, 0xff, 7, b"payload")],
            "ignored (RFC 9113 §5.5)",
            OK,
        ),
    ]
}

fn windows() -> Vec<Case> {
    const MAX: u32 = (1 << 31) - 1;
    vec![
        case(
            "a window of 0, then WINDOW_UPDATE",
            &[settings(&[(4, 0)]), get(1), window_update(1, 200_000)],
            1,
            "200 (RFC 9113 §6.9)",
            OK,
        ),
        case(
            "a window of 0, then another in SETTINGS",
            &[settings(&[(4, 0)]), get(1), settings(&[(4, 200_000)])],
            1,
            "200 (RFC 9113 §6.9.2)",
            OK,
        ),
        before(
            "WINDOW_UPDATE of 0",
            &[window_update(0, 0)],
            "PROTOCOL_ERROR (RFC 9113 §6.9)",
            PROTOCOL,
        ),
        case(
            "WINDOW_UPDATE of 0 on a stream",
            &[settings(&[(4, 0)]), get(1), window_update(1, 0)],
            1,
            "PROTOCOL_ERROR of the stream (RFC 9113 §6.9)",
            &[
                "RST_STREAM PROTOCOL_ERROR",
                "200, RST_STREAM PROTOCOL_ERROR",
                "GOAWAY PROTOCOL_ERROR",
                "200, GOAWAY PROTOCOL_ERROR",
            ],
        ),
        before(
            "WINDOW_UPDATE of 3 bytes",
            &[frame(WINDOW_UPDATE, 0, 0, [1; 3])],
            "FRAME_SIZE_ERROR (RFC 9113 §6.9)",
            FRAME_SIZE,
        ),
        before(
            "a window above 2^31-1",
            &[window_update(0, MAX)],
            "FLOW_CONTROL_ERROR (RFC 9113 §6.9.1)",
            FLOW_CONTROL,
        ),
        case(
            "a stream's window above 2^31-1",
            &[get(1), window_update(1, MAX)],
            1,
            "FLOW_CONTROL_ERROR of the stream (RFC 9113 §6.9.1), if it is open yet",
            &[
                "RST_STREAM FLOW_CONTROL_ERROR",
                "200, RST_STREAM FLOW_CONTROL_ERROR",
                "GOAWAY FLOW_CONTROL_ERROR",
                "200, GOAWAY FLOW_CONTROL_ERROR",
                "200",
            ],
        ),
    ]
}

fn idle_streams() -> Vec<Case> {
    const RULE: &str = "PROTOCOL_ERROR (RFC 9113 §5.1)";
    vec![
        before(
            "DATA on an idle stream",
            &[frame(DATA, 0, 1, b"x")],
            RULE,
            PROTOCOL,
        ),
        before(
            "RST_STREAM on an idle stream",
            &[rst_stream(1, 8)],
            RULE,
            PROTOCOL,
        ),
        before(
            "WINDOW_UPDATE on an idle stream",
            &[window_update(1, 1)],
            RULE,
            PROTOCOL,
        ),
        before(
            "DATA on stream 0",
            &[frame(DATA, 0, 0, b"x")],
            "PROTOCOL_ERROR (RFC 9113 §6.1)",
            PROTOCOL,
        ),
        before(
            "HEADERS on stream 0",
            &[get(0)],
            "PROTOCOL_ERROR (RFC 9113 §6.2)",
            PROTOCOL,
        ),
        before(
            "RST_STREAM on stream 0",
            &[rst_stream(0, 8)],
            "PROTOCOL_ERROR (RFC 9113 §6.4)",
            PROTOCOL,
        ),
        before(
            "HEADERS on stream 2",
            &[get(2)],
            "PROTOCOL_ERROR (RFC 9113 §5.1.1)",
            PROTOCOL,
        ),
    ]
}

fn closed_streams() -> Vec<Case> {
    const IN_FLIGHT: &str = "ignored (RFC 9113 §5.1)";
    vec![
        after(
            "HEADERS on a closed stream",
            &[get(1)],
            "STREAM_CLOSED (RFC 9113 §5.1)",
            &[
                "GOAWAY STREAM_CLOSED",
                "GOAWAY PROTOCOL_ERROR",
                "RST_STREAM STREAM_CLOSED",
                "closes",
            ],
        ),
        after(
            "DATA on a closed stream",
            &[frame(DATA, 0, 1, b"x")],
            "STREAM_CLOSED (RFC 9113 §5.1, §6.1)",
            CLOSED,
        ),
        after(
            "WINDOW_UPDATE on a closed stream",
            &[window_update(1, 1)],
            IN_FLIGHT,
            OK,
        ),
        after(
            "RST_STREAM on a closed stream",
            &[rst_stream(1, 8)],
            IN_FLIGHT,
            OK,
        ),
        after(
            "PRIORITY on a closed stream",
            &[frame(PRIORITY, 0, 1, [0; 5])],
            "permitted (RFC 9113 §5.3.2)",
            OK,
        ),
        Case {
            what: "stream 3 behind stream 5",
            steps: vec![
                ([greeting(), get(5)].concat(), 5),
                ([get(3), get(7)].concat(), 7),
            ],
            awaits_end: false,
            rule: "PROTOCOL_ERROR (RFC 9113 §5.1.1)",
            permitted: &["GOAWAY PROTOCOL_ERROR", "GOAWAY STREAM_CLOSED", "closes"],
        },
        case(
            "a request that is cancelled at once",
            &[get(1), rst_stream(1, 8), get(3)],
            3,
            "the next one is answered (RFC 9113 §5.1)",
            OK,
        ),
        before(
            "RST_STREAM of 3 bytes",
            &[frame(RST_STREAM, 0, 1, [0; 3])],
            "FRAME_SIZE_ERROR (RFC 9113 §6.4)",
            &["GOAWAY FRAME_SIZE_ERROR", "GOAWAY PROTOCOL_ERROR", "closes"],
        ),
    ]
}

fn priorities() -> Vec<Case> {
    let update = |stream, payload: &[u8]| frame(PRIORITY_UPDATE, 0, stream, payload);
    const IF_KNOWN: &[&str] = &["GOAWAY PROTOCOL_ERROR", "200"];
    let of_frame = [&[0, 0, 0, 3, 15][..], &block(&REQUEST)].concat();
    vec![
        with("`Priority: u=1, i`", ("priority", "u=1, i"), "200", OK),
        before("PRIORITY_UPDATE", &[update(0, b"\0\0\0\x65u=1")], "200", OK),
        before(
            "PRIORITY_UPDATE on a stream",
            &[update(1, b"\0\0\0\x65u=1")],
            "PROTOCOL_ERROR (RFC 9218 §7.1), if it is known",
            IF_KNOWN,
        ),
        before(
            "PRIORITY_UPDATE of stream 0",
            &[update(0, b"\0\0\0\0u=1")],
            "PROTOCOL_ERROR (RFC 9218 §7.1), if it is known",
            IF_KNOWN,
        ),
        before(
            "PRIORITY of 4 bytes",
            &[frame(PRIORITY, 0, 1, [0; 4])],
            "FRAME_SIZE_ERROR of the stream (RFC 9113 §6.3)",
            &[
                "RST_STREAM FRAME_SIZE_ERROR",
                "GOAWAY FRAME_SIZE_ERROR",
                "closes",
            ],
        ),
        before(
            "PRIORITY on stream 0",
            &[frame(PRIORITY, 0, 0, [0; 5])],
            "PROTOCOL_ERROR (RFC 9113 §6.3)",
            PROTOCOL,
        ),
        before(
            "PRIORITY of a stream on itself",
            &[frame(PRIORITY, 0, 1, [0, 0, 0, 1, 15])],
            "an error in RFC 7540 §5.3.1 alone",
            &[
                "200",
                "200, RST_STREAM PROTOCOL_ERROR",
                "GOAWAY PROTOCOL_ERROR",
            ],
        ),
        case(
            "HEADERS with a priority",
            &[headers(1, END_STREAM | PRIORITIZED, &of_frame)],
            1,
            "ignored (RFC 9113 §5.3.2)",
            OK,
        ),
    ]
}

fn field_blocks() -> Vec<Case> {
    const RULE: &str = "PROTOCOL_ERROR (RFC 9113 §6.10)";
    let request = block(&REQUEST);
    let (first, second) = request.split_at(10);
    let begun = || frame(HEADERS, END_STREAM, 1, first);
    let rest = |stream| frame(CONTINUATION, END_HEADERS, stream, second);
    let padded = |length: u8, padding: usize| {
        let payload = [&[length][..], &request, &vec![0; padding]].concat();
        headers(1, END_STREAM | PADDED, &payload)
    };
    vec![
        case(
            "CONTINUATION",
            &[begun(), rest(1)],
            1,
            "200 (RFC 9113 §6.10)",
            OK,
        ),
        before("CONTINUATION alone", &[rest(1)], RULE, PROTOCOL),
        before(
            "CONTINUATION of another stream",
            &[begun(), rest(3)],
            RULE,
            PROTOCOL,
        ),
        before(
            "PING within a field block",
            &[begun(), frame(PING, 0, 0, [1; 8]), rest(1)],
            RULE,
            PROTOCOL,
        ),
        before(
            "an unknown frame within a field block",
            &[begun(), frame(0xbb, 0, 1, []), rest(1)],
            RULE,
            PROTOCOL,
        ),
        case(
            "HEADERS with padding",
            &[padded(9, 9)],
            1,
            "200 (RFC 9113 §6.2)",
            OK,
        ),
        case(
            "padding as long as its frame",
            &[padded(255, 0)],
            1,
            "PROTOCOL_ERROR (RFC 9113 §6.2)",
            PROTOCOL,
        ),
    ]
}

fn compression() -> Vec<Case> {
    const RULE: &str = "COMPRESSION_ERROR (RFC 9113 §4.3)";
    let coded = |bytes: &[u8]| headers(1, END_STREAM, &[&block(&REQUEST), bytes].concat());
    let row = |what, bytes: &[u8]| case(what, &[coded(bytes)], 1, RULE, COMPRESSION);
    vec![
        row("index 0 (RFC 7541 §6.1)", &[0x80]),
        row(
            "an index beyond the tables (RFC 7541 §2.3.3)",
            &[0xff, 0x20],
        ),
        row(
            "a table size above the limit (RFC 7541 §6.3)",
            &[0x3f, 0xff, 0xff, 0x7f],
        ),
        row("a table size behind fields (RFC 7541 §4.2)", &[0x20]),
        row("a string that is cut off", &[0x40, 5, b'x']),
        row(
            "an integer of 70 bits",
            &[0x7f, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1],
        ),
        row(
            "EOS in a Huffman code (RFC 7541 §5.2)",
            &[0x40, 1, b'x', 0x84, 255, 255, 255, 255],
        ),
        row(
            "padding of a Huffman code that is not EOS",
            &[0x40, 1, b'x', 0x81, 0b0001_1000],
        ),
    ]
}

fn lengths() -> Vec<Case> {
    vec![
        case(
            "DATA of 16,385 bytes",
            &[open(None), frame(DATA, END_STREAM, 1, [0; 16_385])],
            1,
            "FRAME_SIZE_ERROR (RFC 9113 §4.2)",
            &[
                "GOAWAY FRAME_SIZE_ERROR",
                "RST_STREAM FRAME_SIZE_ERROR",
                "200, GOAWAY FRAME_SIZE_ERROR",
                "200, RST_STREAM FRAME_SIZE_ERROR",
                "closes",
            ],
        ),
        before(
            "an unknown frame of 16,385 bytes",
            &[frame(0xbb, 0, 0, [0; 16_385])],
            "FRAME_SIZE_ERROR (RFC 9113 §4.2)",
            FRAME_SIZE,
        ),
        case(
            "padding as long as its DATA",
            &[open(None), frame(DATA, PADDED, 1, [5, 0, 0, 0])],
            1,
            "PROTOCOL_ERROR (RFC 9113 §6.1)",
            &[
                "GOAWAY PROTOCOL_ERROR",
                "200, GOAWAY PROTOCOL_ERROR",
                "closes",
            ],
        ),
    ]
}
