//! A server that sends parts of files on streams of QUIC, and does other things that clients ask
//! for.

use std::collections::HashMap;

use host::Growth;
use host::app::{AppEvent, Application, FileHandle, Io, QuicConnection, QuicEvent, StreamId};

/// What it does with its streams when it next gets an event.
pub(crate) type Deed = Box<dyn FnOnce(&mut dyn Io)>;

/// What a stream's response consists of that is not queued yet.
#[derive(Default)]
struct Response {
    /// Part of the file that is opened.
    offset: u64,
    len: u64,
    /// Real bytes that follow.
    real: usize,
    file: Option<FileHandle>,
}

/// Answers `size offset len real\n` with `ok`, a part of the file of this size, and so many real
/// bytes. `abort\n` has the stream aborted, `reset n\n` reset with a code, `close n\n` the
/// connection closed, `push n\n` a stream opened with so many bytes, `list\n` a
/// directory listed; `idle\n` is not answered.
#[derive(Default)]
pub(crate) struct App {
    pub(crate) events: Vec<(StreamId, AppEvent)>,
    pub(crate) quic: Vec<(QuicConnection, QuicEvent)>,
    /// What came in which order: streams by `Some`, connections by `None`.
    pub(crate) order: Vec<Option<StreamId>>,
    requests: HashMap<StreamId, Vec<u8>>,
    responses: HashMap<StreamId, Response>,
    pub(crate) does: Option<Deed>,
    /// It reads nothing.
    pub(crate) is_deaf: bool,
    /// Priority of the next stream that asks.
    pub(crate) priorities: HashMap<u64, i32>,
}

/// A byte that the server makes itself.
pub(crate) fn real_byte(at: usize) -> u8 {
    (at * 7 + at / 256) as u8
}

impl App {
    pub(crate) fn count(&self, kind: fn(&AppEvent) -> bool) -> usize {
        self.events.iter().filter(|(_, event)| kind(event)).count()
    }

    fn on_readable(&mut self, io: &mut dyn Io, stream: StreamId) {
        let mut buffer = [0; 100];
        loop {
            let count = io.read(stream, &mut buffer);
            if count == 0 {
                return;
            }
            for &byte in &buffer[..count] {
                let request = self.requests.entry(stream).or_default();
                if byte != b'\n' {
                    request.push(byte);
                    continue;
                }
                let line = String::from_utf8(std::mem::take(request)).unwrap();
                self.on_request(io, stream, &line);
            }
        }
    }

    fn on_request(&mut self, io: &mut dyn Io, stream: StreamId, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| words[at].parse::<u64>().unwrap();
        let quic = io.quic_stream(stream).expect("a stream of QUIC");
        if let Some(priority) = self.priorities.get(&quic.id) {
            io.prioritize(stream, *priority);
        }
        match words[0] {
            "abort" => io.abort(stream),
            "reset" => io.reset_stream(stream, number(1)),
            "stop" => io.stop_sending(stream, number(1)),
            "close" => io.close_quic(quic.connection, number(1), b"bye"),
            "list" => {
                io.list(stream, b"dir", None);
            }
            "idle" => {}
            "push" => {
                let pushed = io.open_unidirectional(quic.connection).expect("a stream");
                let bytes: Vec<u8> = (0..number(1) as usize).map(real_byte).collect();
                assert_eq!(io.write(pushed, &bytes), bytes.len());
                io.shutdown(pushed);
                io.shutdown(stream);
            }
            size => {
                let response = Response {
                    offset: number(1),
                    len: number(2),
                    real: number(3) as usize,
                    file: None,
                };
                self.responses.insert(stream, response);
                io.open(stream, size.as_bytes(), Growth::Forbidden);
            }
        }
    }

    fn go_on(&mut self, io: &mut dyn Io, stream: StreamId) {
        let Some(response) = self.responses.get_mut(&stream) else {
            return;
        };
        if let Some(file) = response.file
            && response.len > 0
        {
            let range = response.offset..response.offset + response.len;
            if io.write_file(stream, file, range) == 0 {
                return;
            }
            response.len = 0;
            io.close_file(file);
        }
        while response.real > 0 {
            // From the end, so that what is left says where it is.
            let bytes: Vec<u8> = (0..response.real.min(1000))
                .map(|at| real_byte(response.real - at))
                .collect();
            let written = io.write(stream, &bytes);
            response.real -= written;
            if written < bytes.len() {
                return;
            }
        }
        self.responses.remove(&stream);
        io.shutdown(stream);
    }
}

impl Application for App {
    fn on_event(&mut self, io: &mut dyn Io, stream: StreamId, event: AppEvent) {
        if let Some(deed) = self.does.take() {
            deed(io);
        }
        assert!(io.quic_stream(stream).is_some(), "{event:?}");
        match event {
            AppEvent::Readable if !self.is_deaf => self.on_readable(io, stream),
            AppEvent::Opened { file, .. } => {
                assert_eq!(io.write(stream, b"ok"), 2);
                if let Some(response) = self.responses.get_mut(&stream) {
                    response.file = Some(file);
                }
                self.go_on(io, stream);
            }
            AppEvent::OpenFailed { .. } => {
                io.write(stream, b"no");
                io.shutdown(stream);
            }
            AppEvent::Writable => self.go_on(io, stream),
            AppEvent::Listed { ref part, .. } => {
                for entry in &part.entries {
                    io.write(stream, entry.name);
                }
                io.shutdown(stream);
            }
            _ => {}
        }
        self.events.push((stream, event));
        self.order.push(Some(stream));
    }

    fn on_quic(&mut self, io: &mut dyn Io, connection: QuicConnection, event: QuicEvent) {
        if let Some(deed) = self.does.take() {
            deed(io);
        }
        self.quic.push((connection, event));
        self.order.push(None);
    }
}
