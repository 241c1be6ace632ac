//! Instructions that the server spends on a request for a file, counted by callgrind: from the
//! bytes that have come to the response's header and the file's range in the queue of the stream,
//! the answer to OPEN in between.
//!
//! A browser's request on a connection that goes on. The streams and files around the server are a
//! few numbers.

#[path = "request/net.rs"]
mod net;

use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;

use host::app::{AppEvent, Application, FileHandle, FileMeta};
use server::{Config, Server};
use testbed::instructions::{Count, check};

use crate::net::{Net, STREAM};

const FILE_BYTES: u64 = 500_000;
const REQUESTS: u64 = 10_000;
/// Requests before anything is counted.
const WARM_UP_REQUESTS: u64 = 100;

const REQUEST: &[u8] = b"GET /videos/chunk-000123.m4s HTTP/1.1\r\n\
Host: media.example.org\r\n\
User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0\r\n\
Accept: */*\r\n\
Accept-Language: en-US,en;q=0.5\r\n\
Accept-Encoding: gzip, deflate, br, zstd\r\n\
Referer: https://media.example.org/watch\r\n\
Connection: keep-alive\r\n\r\n";

fn main() -> ExitCode {
    check(&Count {
        what: "instructions per request for a file",
        within: "counted_event",
        times: REQUESTS,
        committed: 9_222,
        promised: None,
        workload,
    })
}

fn workload() {
    let mut server = Server::new(Config::default());
    let mut net = Net::default();
    let peer = SocketAddr::from((Ipv4Addr::new(10, 77, 0, 1), 40_000));
    let accepted = AppEvent::Accepted {
        peer,
        proxied: None,
        tls: None,
    };
    server.on_event(&mut net, STREAM, accepted);
    for number in 0..WARM_UP_REQUESTS + REQUESTS {
        net.inbox = REQUEST;
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
        assert_eq!(
            net.file_bytes,
            (number + 1) * FILE_BYTES,
            "each is answered"
        );
    }
    assert_eq!(net.inbox, b"", "all is read");
}

#[inline(never)]
fn counted_event(server: &mut Server, net: &mut Net, event: AppEvent) {
    server.on_event(net, STREAM, event);
}
