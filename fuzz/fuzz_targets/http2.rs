//! An HTTP/2 connection on which a client sends anything, in any order: nothing breaks, frames and
//! field blocks of the server are well-formed, no window is exceeded, every request gets a response
//! or a reset, and nothing is left when the connection is over.

#![no_main]

#[path = "http2/client.rs"]
mod client;
#[path = "http2/net.rs"]
mod net;

use fakes::http2::{
    ACK, DATA, END_HEADERS, END_STREAM, HEADERS, PADDED, PREFACE, SETTINGS, block, frame, headers,
    rst_stream, settings, window_update,
};
use host::app::{
    AppEvent, Application, Owner, TlsAgreed, TlsCipher, TlsIdentity, TlsSuite, TlsVersion,
};
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use server::{Config, Server};

use crate::net::{Net, STREAM};

/// Bound of a connection's memory, in bytes: a hundred streams, field blocks, a request's head, and
/// notes on bytes in flight.
const MEMORY_BYTES_MAX: usize = 600_000;

#[derive(Arbitrary, Debug)]
enum Act<'a> {
    /// A frame, whatever it has.
    Frame {
        kind: u8,
        flags: u8,
        stream: u8,
        payload: &'a [u8],
    },
    /// Bytes that may be no frame.
    Bytes(&'a [u8]),
    /// The next request for a file, with a further field.
    Get {
        file: u8,
        name: Name,
        value: &'a str,
        ends: bool,
    },
    /// The next request, with these representations of fields (RFC 7541 §6) at its end.
    Coded {
        representations: &'a [u8],
        is_split: bool,
    },
    Data {
        stream: u8,
        bytes: u16,
        padding: Option<u8>,
        ends: bool,
    },
    Trailers {
        stream: u8,
        representations: &'a [u8],
    },
    Window {
        stream: u8,
        increment: u32,
    },
    Settings {
        table_bytes: Option<u32>,
        window_bytes: Option<u32>,
        frame_bytes: Option<u32>,
        section_bytes: Option<u32>,
        table_bytes_again: Option<u32>,
    },
    Reset(u8),
    Finish,
    /// The client acknowledges all but this much.
    Acknowledge(u16),
    /// The TCP stream takes this much.
    Room(u16),
    AnswerOpens(bool),
    Pass(u16),
    Drain,
}

/// Names of fields that matter to the server.
#[derive(Arbitrary, Clone, Copy, Debug)]
enum Name {
    Range,
    IfNoneMatch,
    ContentLength,
    Priority,
    Te,
    Expect,
    Host,
    Connection,
    Other,
}

impl Name {
    fn text(self) -> &'static str {
        match self {
            Name::Range => "range",
            Name::IfNoneMatch => "if-none-match",
            Name::ContentLength => "content-length",
            Name::Priority => "priority",
            Name::Te => "te",
            Name::Expect => "expect",
            Name::Host => "host",
            Name::Connection => "connection",
            Name::Other => "x-other",
        }
    }
}

fuzz_target!(|session: (bool, Vec<Act<'_>>)| {
    let (begins_well, acts) = session;
    let mut server = Server::new(Config::default());
    let mut net = Net::default();
    let tls = Box::new(TlsAgreed {
        suite: TlsSuite {
            version: TlsVersion::Tls13,
            cipher: TlsCipher::Aes256Gcm,
        },
        alpn: Some(b"h2".to_vec()),
        is_resumed: false,
        identity: TlsIdentity::default(),
    });
    net.accept(&mut server, tls);
    if begins_well {
        let ack = frame(SETTINGS, ACK, 0, b"");
        net.send(&[PREFACE, &settings(&[]), &ack].concat());
    }
    net.deliver(&mut server);
    for act in acts.into_iter().take(300) {
        take(&mut net, &mut server, act);
        net.deliver(&mut server);
        let memory = server.memory(Owner::SERVER, STREAM);
        assert!(memory.bytes < MEMORY_BYTES_MAX, "{memory:?}");
    }
    net.settle(&mut server);
    net.end(&mut server);
    assert_eq!(server.connections(), 0);
    let counters = server.counters();
    assert_eq!(counters.connections_accepted, counters.connections_closed);
});

fn take(net: &mut Net, server: &mut Server, act: Act<'_>) {
    match act {
        Act::Frame {
            kind,
            flags,
            stream,
            payload,
        } => net.send(&frame(kind, flags, stream.into(), payload)),
        Act::Bytes(bytes) => net.send(bytes),
        Act::Get {
            file,
            name,
            value,
            ends,
        } => {
            let path = format!("/{}", file % 6);
            let fields = block(&request(&path, &[(name.text(), value)]));
            let flags = if ends { END_STREAM } else { 0 };
            net.send(&headers(net.client.next_id(), flags, &fields));
        }
        Act::Coded {
            representations,
            is_split,
        } => coded(net, representations, is_split),
        Act::Data {
            stream,
            bytes,
            padding,
            ends,
        } => data(net, stream, bytes, padding, ends),
        Act::Trailers {
            stream,
            representations,
        } => net.send(&headers(stream.into(), END_STREAM, representations)),
        Act::Window { stream, increment } => net.send(&window_update(stream.into(), increment)),
        Act::Settings {
            table_bytes,
            window_bytes,
            frame_bytes,
            section_bytes,
            table_bytes_again,
        } => {
            let values = [
                (1, table_bytes),
                (4, window_bytes),
                (5, frame_bytes.map(|bytes| bytes % (1 << 24))),
                (6, section_bytes),
                (1, table_bytes_again),
            ];
            let values = values.into_iter();
            let values = values.filter_map(|(id, value)| Some((id, value?)));
            net.send(&settings(&values.collect::<Vec<_>>()));
        }
        Act::Reset(stream) => net.send(&rst_stream(stream.into(), 8)),
        Act::Finish => net.finish(),
        Act::Acknowledge(but) => net.acknowledge(but.into()),
        Act::Room(bytes) => net.room = bytes.into(),
        Act::AnswerOpens(are_there) => net.answer_opens(are_there),
        Act::Pass(milliseconds) => net.pass(milliseconds),
        Act::Drain => {
            server.drain(|| {});
            let now_us = net.now.as_micros() as u64;
            server.on_turn(net, now_us);
        }
    }
}

fn request<'a>(path: &'a str, more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let pseudo = [
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", "h"),
        (":path", path),
    ];
    [&pseudo, more].concat()
}

/// A request whose field block is in two frames if `is_split`.
fn coded(net: &mut Net, representations: &[u8], is_split: bool) {
    let fields = [&block(&request("/3", &[]))[..], representations].concat();
    let id = net.client.next_id();
    if !is_split {
        return net.send(&headers(id, END_STREAM, &fields));
    }
    let (first, second) = fields.split_at(fields.len() / 2);
    net.send(&frame(HEADERS, END_STREAM, id, first));
    net.send(&frame(9, END_HEADERS, id, second));
}

fn data(net: &mut Net, stream: u8, bytes: u16, padding: Option<u8>, ends: bool) {
    let mut payload = vec![0; usize::from(bytes % 16_000)];
    let mut flags = if ends { END_STREAM } else { 0 };
    if let Some(padding) = padding {
        payload.insert(0, padding);
        flags |= PADDED;
    }
    net.send(&frame(DATA, flags, stream.into(), payload));
}

/// An event of the connection.
fn event(server: &mut Server, net: &mut Net, event: AppEvent) {
    server.on_event(net, STREAM, event);
}
