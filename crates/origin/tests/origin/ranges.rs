//! Answers to requests for parts of an object, in all forms that RFC 9110 §14 and §15.3.7 allow,
//! and in some that they do not.

use origin::message::Answer;
use testbed::web::{Reply, Request, Web, content};

use crate::host::{Host, Outcome, SEGMENT_BYTES};

const FRESH: &str = "Cache-Control: max-age=1000";
const TAG: &str = "ETag: \"v\"";
const BYTES: usize = 50_000;

fn body() -> Vec<u8> {
    content(BYTES, 1)
}

/// The first and the last byte that a request asks for.
fn asked(request: &Request) -> Option<(usize, usize)> {
    let range = request.field("range")?.strip_prefix("bytes=")?;
    let (first, last) = range.split_once('-')?;
    Some((first.parse().unwrap(), last.parse().unwrap()))
}

/// 206 with these bytes, and this value of `Content-Range`.
fn partial(first: usize, last: usize, range: &str) -> Reply {
    let fields = format!("{FRESH}\n{TAG}\nContent-Range: {range}");
    Reply {
        status: 206,
        ..Reply::ok(&fields, &body()[first..=last])
    }
}

fn whole() -> Reply {
    Reply::ok(&format!("{FRESH}\n{TAG}\nAccept-Ranges: bytes"), &body())
}

/// One part of a multipart body.
fn of_parts(ranges: &[(usize, usize)]) -> Reply {
    let mut parts = Vec::new();
    for &(first, last) in ranges {
        let head = format!("\r\n--b\r\nContent-Range: bytes {first}-{last}/{BYTES}\r\n\r\n");
        parts.extend(head.into_bytes());
        parts.extend(&body()[first..=last]);
    }
    parts.extend(b"\r\n--b--\r\n");
    let media_type = "Content-Type: Multipart/ByteRanges; boundary=b";
    Reply {
        status: 206,
        ..Reply::ok(&format!("{FRESH}\n{TAG}\n{media_type}"), &parts)
    }
}

fn unsatisfied() -> Reply {
    let range = format!("Content-Range: bytes */{BYTES}");
    Reply {
        status: 416,
        ..Reply::ok(&range, b"")
    }
}

/// How an origin answers to a request for bytes from the first to the last.
type Answers = fn(usize, usize) -> Reply;

/// Each with the most requests that it may take to read five segments from the 30th on.
const FORMS: [(&str, Answers, usize); 22] = [
    (
        "as asked",
        |a, z| partial(a, z, &format!("bytes {a}-{z}/{BYTES}")),
        1,
    ),
    (
        "without a length",
        |a, z| partial(a, z, &format!("bytes {a}-{z}/*")),
        1,
    ),
    (
        "capital unit",
        |a, z| partial(a, z, &format!("BYTES {a}-{z}/{BYTES}")),
        1,
    ),
    (
        "white space",
        |a, z| partial(a, z, &format!("bytes   {a} - {z} / {BYTES}")),
        1,
    ),
    (
        "chunked",
        |a, z| Reply {
            is_chunked: true,
            ..partial(a, z, &format!("bytes {a}-{z}/{BYTES}"))
        },
        1,
    ),
    (
        "wider at both ends",
        |a, z| {
            let (a, z) = (a - 1234, (z + 777).min(BYTES - 1));
            partial(a, z, &format!("bytes {a}-{z}/{BYTES}"))
        },
        1,
    ),
    (
        "all of it",
        |_, _| partial(0, BYTES - 1, &format!("bytes 0-{}/{BYTES}", BYTES - 1)),
        1,
    ),
    (
        "wider, chunked, without a length",
        |a, _| Reply {
            is_chunked: true,
            ..partial(
                a - 1,
                BYTES - 1,
                &format!("bytes {}-{}/*", a - 1, BYTES - 1),
            )
        },
        1,
    ),
    (
        "narrower",
        |a, z| {
            let z = z.min(a + 1499);
            partial(a, z, &format!("bytes {a}-{z}/{BYTES}"))
        },
        4,
    ),
    (
        "starting before and narrower",
        |a, z| {
            let (a, z) = (a - 100, z.min(a + 1499));
            partial(a, z, &format!("bytes {a}-{z}/*"))
        },
        4,
    ),
    (
        "a byte at a time",
        |a, _| partial(a, a, &format!("bytes {a}-{a}/{BYTES}")),
        17,
    ),
    (
        "starting behind",
        |a, z| {
            let a = a + 100;
            partial(a, z, &format!("bytes {a}-{z}/{BYTES}"))
        },
        2,
    ),
    (
        "starting elsewhere",
        |_, _| partial(0, 99, &format!("bytes 0-99/{BYTES}")),
        2,
    ),
    ("one part", |a, z| of_parts(&[(a, z)]), 2),
    ("two parts", |a, z| of_parts(&[(a, a + 9), (a + 10, z)]), 2),
    ("416", |_, _| unsatisfied(), 2),
    (
        "no Content-Range",
        |a, z| Reply {
            fields: format!("{TAG}\r\n"),
            ..partial(a, z, "")
        },
        2,
    ),
    (
        "a malformed range",
        |a, z| partial(a, z, &format!("bytes {z}-{a}/{BYTES}")),
        2,
    ),
    (
        "another unit",
        |a, z| partial(a, z, &format!("items {a}-{z}/{BYTES}")),
        2,
    ),
    (
        "another length than its body",
        |a, z| partial(a, z - 1, &format!("bytes {a}-{z}/{BYTES}")),
        2,
    ),
    ("the range ignored", |_, _| whole(), 1),
    (
        "the range ignored, as a 206 without asking",
        |_, _| Reply {
            fields: format!("{TAG}\r\n"),
            ..partial(0, BYTES - 1, "")
        },
        2,
    ),
];

/// Covers: RFC 9110 §14.4, RFC 9110 §15.3.7
#[test]
fn whatever_form_an_answer_has_its_bytes_are_right() {
    for (form, answers, requests_max) in FORMS {
        let web = Web::new(move |request| match asked(request) {
            Some((first, last)) => answers(first, last),
            None => Reply {
                gate_at: (form == "as asked").then_some(1500),
                ..whole()
            },
        });
        let root = tempfile::tempdir().unwrap();
        let mut host = Host::new(root.path(), &web.url);
        let ticket = host.ask("/x");
        let object = host.object(ticket).unwrap();
        let before = web.requests().len();
        for segment in 30..35 {
            host.want_to(ticket, segment..35);
            let answer = host.hear(ticket);
            assert_eq!(answer, Answer::Segment { ticket, segment }, "{form}");
        }
        host.done(ticket);
        let asked = web.requests().len() - before;
        assert!(asked <= requests_max, "{form}: {asked} requests");
        // What lies there now is read, and the rest is fetched in the same way.
        let ticket = host.ask("/x");
        assert_eq!(host.object(ticket).unwrap().directory, object.directory);
        for segment in 30..50 {
            let at = segment as usize * SEGMENT_BYTES as usize;
            let read = host.segment(ticket, &object, segment);
            let expected = &body()[at..at + SEGMENT_BYTES as usize];
            assert!(read.as_deref() == Ok(expected), "{form}: {segment}");
        }
        web.open_gate();
    }
}

/// No form makes one version out of two.
#[test]
fn parts_of_another_version_are_refused_in_every_form() {
    let other = |fields: &str, status| Reply {
        status,
        ..Reply::ok(fields, &content(1000, 2))
    };
    let range = "Content-Range: bytes 30000-30999";
    for (form, reply) in [
        (
            "another length",
            other(&format!("{TAG}\n{range}/60000"), 206),
        ),
        (
            "another tag",
            other(&format!("ETag: \"w\"\n{range}/*"), 206),
        ),
        (
            "beyond the end",
            other(&format!("{TAG}\nContent-Range: bytes 49500-50499/*"), 206),
        ),
        (
            "416 of another length",
            other("Content-Range: bytes */7", 416),
        ),
        ("another 200", other("ETag: \"w\"", 200)),
    ] {
        let is_beyond = form == "beyond the end";
        let web = Web::new(move |request| match asked(request) {
            Some(_) => reply.clone(),
            // Nor is it there as a whole any more.
            None if is_beyond => whole(),
            None => Reply {
                gate_at: Some(1500),
                ..whole()
            },
        });
        let root = tempfile::tempdir().unwrap();
        let mut host = Host::new(root.path(), &web.url);
        let ticket = host.ask("/x");
        let object = host.object(ticket).unwrap();
        let read = host.segment(ticket, &object, 30);
        if is_beyond {
            assert!(read.as_deref() == Ok(&body()[30_000..31_000]), "{form}");
        } else {
            assert_eq!(read, Err(Outcome::Lost), "{form}");
        }
    }
}

/// RFC 9110 §15.3.7
#[test]
fn a_206_without_a_range_is_used_if_it_has_all() {
    let all = format!("bytes 0-{}/{BYTES}", BYTES - 1);
    for (form, reply, is_used) in [
        ("all", partial(0, BYTES - 1, &all), true),
        (
            "all, chunked",
            Reply {
                is_chunked: true,
                ..partial(0, BYTES - 1, &all)
            },
            true,
        ),
        (
            "a part",
            partial(0, 9, &format!("bytes 0-9/{BYTES}")),
            false,
        ),
        (
            "unknown length",
            partial(0, BYTES - 1, "bytes 0-49999/*"),
            false,
        ),
        ("shorter", partial(0, 9, &all), false),
        ("parts", of_parts(&[(0, BYTES - 1)]), false),
    ] {
        let web = Web::new(move |_| reply.clone());
        let root = tempfile::tempdir().unwrap();
        let mut host = Host::new(root.path(), &web.url);
        let expected = if is_used {
            Outcome::Content(body())
        } else {
            Outcome::Refused(502)
        };
        assert!(host.get("/x") == expected, "{form}");
    }
}

/// A chunked 206 has the length of its `Content-Range`, or nothing of it is taken for the end.
#[test]
fn a_chunked_206_is_held_against_its_range() {
    let all = format!("bytes 0-{}/{BYTES}", BYTES - 1);
    for bytes in [BYTES - 100, BYTES + 500] {
        let last_whole = BYTES - SEGMENT_BYTES as usize;
        let reply = Reply {
            is_chunked: true,
            body: content(bytes, 1),
            // The last bytes arrive by themselves.
            gate_at: Some(last_whole + 500),
            ..partial(0, BYTES - 1, &all)
        };
        let web = Web::new(move |_| reply.clone());
        let root = tempfile::tempdir().unwrap();
        let mut host = Host::new(root.path(), &web.url);
        let ticket = host.ask("/x");
        let object = host.object(ticket).unwrap();
        assert_eq!(object.size_bytes, BYTES as u64);
        let last = last_whole as u64 / SEGMENT_BYTES;
        for segment in 0..last {
            let at = (segment * SEGMENT_BYTES) as usize;
            let read = host.segment(ticket, &object, segment);
            let expected = &body()[at..at + SEGMENT_BYTES as usize];
            assert!(read.as_deref() == Ok(expected), "{bytes}: {segment}");
        }
        web.open_gate();
        assert_eq!(host.segment(ticket, &object, last), Err(Outcome::Lost));
    }
}

/// RFC 9110 §14.4
#[test]
fn a_range_means_nothing_in_a_200() {
    let fields = format!("{FRESH}\n{TAG}\nContent-Range: bytes 0-9/10");
    let reply = Reply {
        is_chunked: true,
        ..Reply::ok(&fields, &body())
    };
    let web = Web::new(move |_| reply.clone());
    let root = tempfile::tempdir().unwrap();
    let mut host = Host::new(root.path(), &web.url);
    assert!(host.get("/x") == Outcome::Content(body()));
}
