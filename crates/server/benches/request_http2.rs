//! Instructions that the server spends on a request for a file of 1 KB over HTTP/2, counted by
//! callgrind: from the bytes that have come to the response's HEADERS and DATA in the queue of the
//! stream, the answer to OPEN in between.
//!
//! A browser's request on a connection that goes on: its fields, but for the path, are in the
//! dynamic table.

#[path = "request/net.rs"]
mod net;

use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;

use fakes::http2::{ACK, END_STREAM, PREFACE, SETTINGS, frame, headers, settings, window_update};
use host::app::{
    AppEvent, Application, FileHandle, FileMeta, TlsAgreed, TlsCipher, TlsIdentity, TlsSuite,
    TlsVersion,
};
use server::{Config, Server};
use testbed::instructions::{Count, check};

use crate::net::{Net, STREAM};

const FILE_BYTES: u64 = 1000;
const REQUESTS: u64 = 10_000;
/// Requests before anything is counted.
const WARM_UP_REQUESTS: u64 = 100;

/// `:method: GET`, `:scheme: https`, and `:path: /videos/chunk-000123.m4s` in Huffman code, not
/// indexed.
const FIRST_FIELDS: &[u8] =
    b"\x82\x87\x04\x91c\xb9\xa4)\xd0\xc1'\xb6\xae\xab\x00\x00\x08\x99^\x96\x91";

/// Fields that enter the dynamic table with the first request: `:authority`, `user-agent`,
/// `accept`, `accept-language`, `accept-encoding`, `referer`, `priority`.
const INDEXED: [(u8, &str, &str); 7] = [
    (1, "", "media.example.org"),
    (
        58,
        "",
        "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0",
    ),
    (19, "", "*/*"),
    (17, "", "en-US,en;q=0.5"),
    (16, "", "gzip, deflate, br, zstd"),
    (51, "", "https://media.example.org/watch"),
    (0, "priority", "u=4"),
];

fn main() -> ExitCode {
    check(&Count {
        what: "instructions per request for a file of 1 KB over HTTP/2",
        within: "counted_event",
        times: REQUESTS,
        committed: 28_195,
        promised: None,
        workload,
    })
}

/// The client's frames before its first request.
fn greeting() -> Vec<u8> {
    let frames = [
        settings(&[(4, 1 << 20)]),
        window_update(0, 1 << 30),
        frame(SETTINGS, ACK, 0, b""),
    ];
    [PREFACE, &frames.concat()].concat()
}

/// The field block of a request: literals with indexing in the first one (RFC 7541 §6.2.1), indices
/// in the others, the newest entry being 62.
fn fields(is_first: bool) -> Vec<u8> {
    let mut block = FIRST_FIELDS.to_vec();
    if !is_first {
        block.extend(
            (62..62 + INDEXED.len() as u8)
                .rev()
                .map(|index| 0x80 | index),
        );
        return block;
    }
    for (index, name, value) in INDEXED {
        block.push(0x40 | index);
        for string in [name, value] {
            if !string.is_empty() {
                block.push(string.len() as u8);
                block.extend_from_slice(string.as_bytes());
            }
        }
    }
    block
}

fn workload() {
    let mut server = Server::new(Config::default());
    let mut net = Net::default();
    let peer = SocketAddr::from((Ipv4Addr::new(10, 77, 0, 1), 40_000));
    let tls = TlsAgreed {
        suite: TlsSuite {
            version: TlsVersion::Tls13,
            cipher: TlsCipher::Aes256Gcm,
        },
        alpn: Some(b"h2".to_vec()),
        is_resumed: false,
        identity: TlsIdentity::default(),
    };
    let tls = Some(Box::new(tls));
    server.on_event(
        &mut net,
        STREAM,
        AppEvent::Accepted {
            peer,
            proxied: None,
            tls,
        },
    );
    net.inbox = greeting().leak();
    server.on_event(&mut net, STREAM, AppEvent::Readable);
    let requests = (0..WARM_UP_REQUESTS + REQUESTS).map(|number| {
        let id = 1 + 2 * number as u32;
        &*headers(id, END_STREAM, &fields(number == 0)).leak()
    });
    let requests: Vec<&'static [u8]> = requests.collect();
    for (number, request) in (0..).zip(requests) {
        net.inbox = request;
        let mut step = |net: &mut Net, event| {
            if number < WARM_UP_REQUESTS {
                server.on_event(net, STREAM, event)
            } else {
                counted_event(&mut server, net, event)
            }
        };
        step(&mut net, AppEvent::Readable);
        let opened = AppEvent::Opened {
            file: FileHandle(net.opens),
            meta: FileMeta {
                size: FILE_BYTES,
                mtime_ns: 1_700_000_000_000_000_000,
                ..FileMeta::default()
            },
        };
        step(&mut net, opened);
        net.acknowledged = net.written;
        step(&mut net, AppEvent::Drained);
        assert_eq!(net.opens, number + 1);
        let answered_bytes = (number + 1) * FILE_BYTES;
        assert_eq!(net.file_bytes, answered_bytes, "each is answered");
    }
    assert_eq!(net.inbox, b"", "all is read");
}

#[inline(never)]
fn counted_event(server: &mut Server, net: &mut Net, event: AppEvent) {
    server.on_event(net, STREAM, event);
}
