//! In the host process: writes the events of traced QUIC connections to a client's pipe, as lines
//! ([`QlogLine`]). Nothing waits for the client: events that it does not read in time are dropped,
//! and counted.

mod events;

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use failure::Failure;
use host::app::QuicConnection;
use host::{
    QuicTraceEvent, QuicTraceRefusal, QuicTraceWanted, QuicTracer, Stack, TracedConnection,
};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;
use tcp::Instant;

use crate::ipc::qlog_request::{QlogLine, QlogRequest};

/// Most bytes buffered for the client.
const WAITING_BYTES_MAX: usize = 4 << 20;

/// Writes to a client's pipe.
#[derive(Debug)]
pub struct PipeTracer {
    /// Does not block.
    pipe: OwnedFd,
    /// Epoll set that is readable once the pipe has room for buffered bytes, or has lost its
    /// reader.
    wake: Arc<OwnedFd>,
    awaits_room: bool,
    began: Instant,
    /// Bytes not yet written to the pipe, from `written` on.
    lines: Vec<u8>,
    written: usize,
    /// Dropped events not yet reported, by connection.
    dropped: BTreeMap<u64, u64>,
}

impl PipeTracer {
    /// Writes to a client that reads at the other end of `pipe`.
    fn new(pipe: OwnedFd, wake: Arc<OwnedFd>, began: Instant) -> Result<Self, Failure> {
        // At first, only the end of its reader is watched.
        let data = epoll::EventData::new_u64(0);
        epoll::add(&wake, &pipe, data, epoll::EventFlags::empty())
            .map_err(|errno| Failure::broken("tracing connections", errno))?;
        Ok(Self {
            pipe,
            wake,
            awaits_room: false,
            began,
            lines: Vec::new(),
            written: 0,
            dropped: BTreeMap::new(),
        })
    }

    fn since_us(&self, at: Instant) -> u64 {
        at.as_us().saturating_sub(self.began.as_us())
    }

    fn push(&mut self, line: &QlogLine) {
        // Writing to memory does not fail, and all map keys are strings.
        if let Err(error) = serde_json::to_writer(&mut self.lines, line) {
            tracing::error!("a line that cannot be serialized: {error}");
        }
        self.lines.push(b'\n');
    }

    /// Returns whether there is room for another event.
    fn has_room(&self) -> bool {
        self.lines.len() - self.written < WAITING_BYTES_MAX
    }

    fn tell_dropped(&mut self, connection: u64, at: Instant) {
        if let Some(events) = self.dropped.remove(&connection) {
            let time_us = self.since_us(at);
            self.push(&QlogLine::Dropped {
                connection,
                events,
                time_us,
            });
        }
    }

    /// Starts or stops watching for room in the pipe.
    fn await_room(&mut self, awaits_room: bool) {
        if awaits_room == self.awaits_room {
            return;
        }
        let flags = if awaits_room {
            epoll::EventFlags::OUT
        } else {
            epoll::EventFlags::empty()
        };
        let data = epoll::EventData::new_u64(0);
        match epoll::modify(&self.wake, &self.pipe, data, flags) {
            Ok(()) => self.awaits_room = awaits_room,
            Err(errno) => tracing::debug!("a pipe is watched as before: {errno}"),
        }
    }

    fn has_reader(&self) -> bool {
        let mut fds = [PollFd::new(&self.pipe, PollFlags::empty())];
        let polled = rustix::io::retry_on_intr(|| poll(&mut fds, Some(&Timespec::default())));
        polled.is_ok() && !fds[0].revents().contains(PollFlags::ERR)
    }
}

impl QuicTracer for PipeTracer {
    fn refuse(&mut self, refusal: QuicTraceRefusal) {
        let why = refusal.to_string();
        self.push(&QlogLine::Refused { why });
    }

    // Begins and ends are always written: the number of connections is limited.
    fn begin(&mut self, _at: Instant, connection: TracedConnection) {
        self.push(&QlogLine::Connection {
            connection: connection.connection.0,
            local: connection.local,
            peer: connection.remote,
        });
    }

    fn record(&mut self, at: Instant, connection: QuicConnection, event: &QuicTraceEvent) {
        let connection = connection.0;
        if !self.has_room() {
            *self.dropped.entry(connection).or_default() += 1;
            return;
        }
        self.tell_dropped(connection, at);
        let (name, data) = events::of(event);
        let time_us = self.since_us(at);
        self.push(&QlogLine::Event {
            connection,
            time_us,
            name: name.to_owned(),
            data,
        });
    }

    fn end(&mut self, at: Instant, connection: QuicConnection) {
        self.tell_dropped(connection.0, at);
        self.push(&QlogLine::End {
            connection: connection.0,
        });
    }

    fn flush(&mut self) -> bool {
        while let Some(rest) = self.lines.get(self.written..)
            && !rest.is_empty()
        {
            match rustix::io::retry_on_intr(|| rustix::io::write(&self.pipe, rest)) {
                Ok(count) => self.written += count,
                Err(Errno::AGAIN) => {
                    if self.written > WAITING_BYTES_MAX / 4 {
                        self.lines.drain(..self.written);
                        self.written = 0;
                    }
                    self.await_room(true);
                    return true;
                }
                Err(errno) => {
                    tracing::debug!("a client no longer reads a trace: {errno}");
                    return false;
                }
            }
        }
        self.lines.clear();
        self.written = 0;
        self.await_room(false);
        self.has_reader()
    }
}

impl Drop for PipeTracer {
    fn drop(&mut self) {
        // Closing our end does not suffice while the supervisor holds a copy.
        if let Err(errno) = epoll::delete(&self.wake, self.pipe.as_fd()) {
            tracing::debug!("a pipe remains watched: {errno}");
        }
    }
}

/// Has the stack trace the wanted connections for a client that reads at the other end of `pipe`.
pub fn begin(
    stack: &mut Stack,
    now_us: u64,
    wanted: QlogRequest,
    pipe: OwnedFd,
    wake: &Arc<OwnedFd>,
) -> Result<(), Failure> {
    let began = Instant::from_us(now_us);
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
    let unix_time_us = since_1970.map_or(0, |since| since.as_micros() as u64);
    let mut tracer = PipeTracer::new(pipe, Arc::clone(wake), began)?;
    tracer.push(&QlogLine::Began { unix_time_us });
    let wanted = QuicTraceWanted {
        connection: wanted.connection.map(QuicConnection),
        peer: wanted.host,
        connections_max: wanted.connections_max as usize,
    };
    stack.trace_quic(now_us, wanted, Box::new(tracer));
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{BufRead, BufReader};

    use rustix::fs::{OFlags, fcntl_setfl};
    use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

    use super::*;

    const AT: Instant = Instant::from_us(1_000_000);

    fn tracer() -> (PipeTracer, File, Arc<OwnedFd>) {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap();
        fcntl_setpipe_size(&writer, 4096).unwrap();
        fcntl_setfl(&reader, OFlags::empty()).unwrap();
        let wake = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC).unwrap());
        let tracer = PipeTracer::new(writer, Arc::clone(&wake), AT).unwrap();
        (tracer, File::from(reader), wake)
    }

    fn is_woken(wake: &OwnedFd) -> bool {
        let mut fds = [PollFd::new(wake, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).unwrap() == 1
    }

    fn event(send: u64) -> QuicTraceEvent {
        QuicTraceEvent::SendDeparted { send, waited_us: 5 }
    }

    #[test]
    fn what_a_client_does_not_read_is_dropped_and_counted() {
        let (mut tracer, reader, wake) = tracer();
        let connection = QuicConnection(7);
        let mut recorded = 0;
        while tracer.dropped.is_empty() {
            tracer.record(AT, connection, &event(recorded));
            recorded += 1;
            assert!(tracer.flush());
        }
        for _ in 0..10 {
            tracer.record(AT, connection, &event(recorded));
        }
        let waiting = tracer.lines.len() - tracer.written;
        assert!(waiting < WAITING_BYTES_MAX + 1000, "{waiting}");
        assert!(!is_woken(&wake), "there is no room");
        // The client reads on.
        let mut lines = BufReader::new(reader).lines();
        let mut next = |tracer: &mut PipeTracer| -> QlogLine {
            assert!(tracer.flush());
            serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap()
        };
        for number in 0..recorded - 1 {
            let line = next(&mut tracer);
            let QlogLine::Event { data, .. } = line else {
                panic!("an event: {line:?}");
            };
            assert_eq!(data["send"], number);
        }
        tracer.record(AT, connection, &event(recorded));
        let dropped = QlogLine::Dropped {
            connection: 7,
            events: 11,
            time_us: 0,
        };
        assert_eq!(next(&mut tracer), dropped);
        assert!(matches!(next(&mut tracer), QlogLine::Event { .. }));
        assert!(!is_woken(&wake), "nothing waits");
    }

    #[test]
    fn a_client_that_has_gone_is_noticed_without_an_event() {
        let (mut tracer, reader, wake) = tracer();
        assert!(tracer.flush());
        assert!(!is_woken(&wake));
        drop(reader);
        assert!(is_woken(&wake));
        assert!(!tracer.flush());
        drop(tracer);
        assert!(!is_woken(&wake));
    }
}
