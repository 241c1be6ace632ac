//! Instructions that the server spends on a request for a file, counted by callgrind: from the
//! bytes that have come to the response's header and the file's range in the queue of the stream,
//! the answer to OPEN in between.
//!
//! A browser's request on a connection that goes on. The streams and files around the server are a
//! few numbers.

use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::process::ExitCode;
use std::time::Duration;

use host::app::{AppEvent, Application, FileHandle, FileMeta, Io, ListPlace, StreamId};
use host::{Growth, PassedId};
use server::{Config, Server};
use testbed::instructions::{Count, check};

const STREAM: StreamId = StreamId(1);
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
    let accepted = AppEvent::Accepted { peer, tls: None };
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

/// One stream, and files that are all the same.
#[derive(Default)]
struct Net {
    inbox: &'static [u8],
    opens: u64,
    written: u64,
    file_bytes: u64,
    acknowledged: u64,
}

impl Io for Net {
    fn read(&mut self, _: StreamId, buffer: &mut [u8]) -> usize {
        let count = buffer.len().min(self.inbox.len());
        let (now, later) = self.inbox.split_at(count);
        buffer[..count].copy_from_slice(now);
        self.inbox = later;
        count
    }

    fn write(&mut self, _: StreamId, bytes: &[u8]) -> usize {
        self.written += std::hint::black_box(bytes).len() as u64;
        bytes.len()
    }

    fn write_file(&mut self, _: StreamId, _: FileHandle, range: Range<u64>) -> u64 {
        let bytes = range.end - range.start;
        self.written += bytes;
        self.file_bytes += bytes;
        bytes
    }

    fn open(&mut self, _: StreamId, path: &[u8], _: Growth) -> FileHandle {
        std::hint::black_box(path);
        self.opens += 1;
        FileHandle(self.opens)
    }

    fn open_passed(&mut self, _: StreamId, _: PassedId) -> FileHandle {
        unreachable!("the server opens files by path")
    }

    fn list(&mut self, _: StreamId, _: &[u8], _: Option<ListPlace>) -> FileHandle {
        unreachable!("no request is for a directory")
    }

    fn close_file(&mut self, _: FileHandle) {}

    fn shutdown(&mut self, _: StreamId) {
        panic!("the connection goes on");
    }

    fn abort(&mut self, _: StreamId) {
        panic!("nothing is wrong");
    }

    fn set_timer(&mut self, _: StreamId, _: Option<Duration>) {}

    fn set_idle(&mut self, _: StreamId, _: bool) {}

    fn set_max_pacing_rate(&mut self, _: StreamId, _: Option<u64>) {}

    fn set_notsent_lowat(&mut self, _: StreamId, _: u64) {}

    fn acknowledged(&self, _: StreamId) -> u64 {
        self.acknowledged
    }

    fn unacknowledged(&self, _: StreamId) -> u64 {
        self.written - self.acknowledged
    }

    fn unsent(&self, _: StreamId) -> u64 {
        0
    }

    fn waits_for_peer(&self, _: StreamId) -> bool {
        self.written > self.acknowledged
    }

    fn retransmissions(&self, _: StreamId) -> u32 {
        0
    }

    fn now_us(&self) -> u64 {
        self.opens
    }

    fn unix_time(&self) -> Duration {
        Duration::from_secs(784_111_777)
    }
}
