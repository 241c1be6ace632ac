//! The server without a network: one request for a file, and its response.
//!
//! `cargo run -p splitway-server --example minimal`
//!
//! The server acts on streams and files through [`Io`] alone. On the host stack, a stream is a TCP
//! connection and files lie with the NIC stack; here, both are a few bytes in memory.

use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::time::Duration;

use host::app::{AppEvent, Application, FileHandle, FileMeta, Io, ListPlace, StreamId};
use host::{Growth, PassedId};
use server::{Config, Server};

const STREAM: StreamId = StreamId(1);
const FILE: FileHandle = FileHandle(1);
const CONTENT: &[u8] = b"Hello from the NIC stack.\n";

/// One stream and one file.
#[derive(Default)]
struct Memory {
    request: &'static [u8],
    opened: Vec<u8>,
    response: Vec<u8>,
}

impl Io for Memory {
    fn read(&mut self, _: StreamId, buffer: &mut [u8]) -> usize {
        let count = buffer.len().min(self.request.len());
        let (taken, left) = self.request.split_at(count);
        buffer[..count].copy_from_slice(taken);
        self.request = left;
        count
    }

    /// Header bytes.
    fn write(&mut self, _: StreamId, bytes: &[u8]) -> usize {
        self.response.extend_from_slice(bytes);
        bytes.len()
    }

    /// A range of a file: the server names it, and never sees its bytes.
    fn write_file(&mut self, _: StreamId, _: FileHandle, range: Range<u64>) -> u64 {
        let bytes = &CONTENT[range.start as usize..range.end as usize];
        self.response.extend_from_slice(bytes);
        bytes.len() as u64
    }

    /// `Opened` follows, once the NIC stack has answered.
    fn open(&mut self, _: StreamId, path: &[u8], _: Growth) -> FileHandle {
        self.opened = path.to_vec();
        FILE
    }

    fn open_passed(&mut self, _: StreamId, _: PassedId) -> FileHandle {
        unreachable!("the server opens files by path")
    }

    fn list(&mut self, _: StreamId, _: &[u8], _: Option<ListPlace>) -> FileHandle {
        FILE
    }

    fn close_file(&mut self, _: FileHandle) {}

    fn shutdown(&mut self, _: StreamId) {}

    fn abort(&mut self, _: StreamId) {}

    fn set_timer(&mut self, _: StreamId, _: Option<Duration>) {}

    fn set_idle(&mut self, _: StreamId, _: bool) {}

    fn set_max_pacing_rate(&mut self, _: StreamId, _: Option<u64>) {}

    fn set_notsent_lowat(&mut self, _: StreamId, _: u64) {}

    fn acknowledged(&self, _: StreamId) -> u64 {
        0
    }

    fn unacknowledged(&self, _: StreamId) -> u64 {
        self.response.len() as u64
    }

    fn unsent(&self, _: StreamId) -> u64 {
        0
    }

    fn usable_window(&self, _: StreamId) -> u64 {
        0
    }

    fn waits_for_peer(&self, _: StreamId) -> bool {
        !self.response.is_empty()
    }

    fn retransmissions(&self, _: StreamId) -> u32 {
        0
    }

    fn now_us(&self) -> u64 {
        0
    }

    fn unix_time(&self) -> Duration {
        // RFC 9110 §5.6.7's example.
        Duration::from_secs(784_111_777)
    }
}

fn main() {
    let mut server = Server::new(Config::default());
    let mut memory = Memory {
        request: b"GET /hello.txt HTTP/1.1\r\nHost: example.org\r\n\r\n",
        ..Memory::default()
    };
    let accepted = AppEvent::Accepted {
        peer: SocketAddr::from((Ipv4Addr::LOCALHOST, 40_000)),
        proxied: None,
        tls: None,
    };
    server.on_event(&mut memory, STREAM, accepted);
    server.on_event(&mut memory, STREAM, AppEvent::Readable);
    assert_eq!(memory.opened, b"hello.txt", "what the request is for");

    let opened = AppEvent::Opened {
        file: FILE,
        meta: FileMeta {
            size: CONTENT.len() as u64,
            mtime_ns: 784_000_000_000_000_000,
            ..FileMeta::default()
        },
    };
    server.on_event(&mut memory, STREAM, opened);

    let response = String::from_utf8(memory.response).expect("this one is text");
    assert!(response.starts_with("HTTP/1.1 200 OK\r\n"));
    assert!(response.ends_with("\r\n\r\nHello from the NIC stack.\n"));
    print!("{response}");
}
