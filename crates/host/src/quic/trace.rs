//! Traces of connections: the endpoint's events of a connection, and the stack's exchanges with its
//! NIC worker.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use contract::quic::QuicSend;
use contract::{FileId, SendId};
use quic::{Handle, TraceEvent, Traced};
use tcp::Instant;

use super::QuicLayer;
use super::table::Connection;
use crate::app::QuicConnection;
use crate::ground::Ground;
use crate::nics::nic_stacks::NicStacks;

/// Receives the events of traced connections. No method may block.
pub trait QuicTracer: fmt::Debug {
    /// The trace is refused.
    fn refuse(&mut self, refusal: QuicTraceRefusal);

    /// The trace of a connection begins.
    fn begin(&mut self, at: Instant, connection: TracedConnection);

    /// An event of a connection.
    fn record(&mut self, at: Instant, connection: QuicConnection, event: &QuicTraceEvent);

    /// The trace of a connection ends.
    fn end(&mut self, at: Instant, connection: QuicConnection);

    /// Flushes buffered events. False if the receiver is gone.
    fn flush(&mut self) -> bool;
}

/// A traced connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracedConnection {
    /// Its name.
    pub connection: QuicConnection,
    /// Our end.
    pub local: SocketAddr,
    /// The peer.
    pub remote: SocketAddr,
}

/// An event of a traced connection.
#[derive(Clone, Debug, PartialEq)]
pub enum QuicTraceEvent {
    /// An event of the QUIC connection itself.
    Quic(TraceEvent),
    /// PREPARE: the NIC worker is to read a range into memory.
    PrepareIssued {
        /// The id of the command.
        prepare: u64,
        /// The stream that needs it.
        stream: u64,
        /// The range.
        file: FileId,
        /// Offset of its first byte.
        offset: u64,
        /// Length, in bytes.
        len: u64,
    },
    /// READY: the range is there.
    RangeReady {
        /// The id of the command.
        prepare: u64,
        /// Time since PREPARE, in microseconds.
        waited_us: u64,
    },
    /// QSEND: the NIC worker is to fill in, seal and send packets.
    SendIssued {
        /// The id of the command.
        send: u64,
        /// The NIC stack.
        nic: usize,
        /// Its worker.
        worker: usize,
        /// Numbers of the first and the last packet.
        packets: (u64, u64),
        /// Number of datagrams.
        datagrams: usize,
    },
    /// The packets have left.
    SendDeparted {
        /// The id of the command.
        send: u64,
        /// Time since QSEND, in microseconds.
        waited_us: u64,
    },
}

/// Which connections to trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuicTraceWanted {
    /// Only this one.
    pub connection: Option<QuicConnection>,
    /// Only those of this peer.
    pub peer: Option<IpAddr>,
    /// At most this many.
    pub connections_max: usize,
}

/// Why a trace is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuicTraceRefusal {
    /// No port speaks QUIC.
    NoQuic,
    /// Another trace is active.
    Busy,
    /// There is no such connection, or it is over.
    UnknownConnection(QuicConnection),
}

impl fmt::Display for QuicTraceRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoQuic => f.write_str("no port of this server speaks QUIC"),
            Self::Busy => f.write_str("connections are being traced already"),
            Self::UnknownConnection(connection) => {
                write!(f, "there is no connection {}, or it is over", connection.0)
            }
        }
    }
}

impl std::error::Error for QuicTraceRefusal {}

/// Most commands whose issue time is remembered. If that many are unanswered, since a NIC stack is
/// gone, all are forgotten.
const ISSUED_MAX: usize = 65_536;

/// An active trace.
#[derive(Debug)]
pub(super) struct Trace {
    tracer: Box<dyn QuicTracer>,
    /// Connections that may yet be traced.
    left: usize,
    traced: HashMap<(usize, Handle), QuicConnection>,
    /// The names of these.
    names: HashSet<u64>,
    /// When commands were issued, in microseconds.
    issued: HashMap<u64, u64>,
}

impl Trace {
    /// A QSEND is about to go to the NIC worker of its connection.
    #[cold]
    pub(super) fn on_qsend(
        &mut self,
        now_us: u64,
        connection: &Connection,
        send: &QuicSend<'_>,
        nics: &NicStacks,
    ) {
        let key = (connection.listener, connection.handle);
        let (Some(first), Some(last)) = (send.packets.first(), send.packets.last()) else {
            return;
        };
        if !self.traced.contains_key(&key) {
            return;
        }
        let nic = nics.of(connection.nic.worker);
        let event = QuicTraceEvent::SendIssued {
            send: send.id.0,
            nic,
            worker: connection.nic.worker - nics.workers(nic).start,
            packets: (first.number, last.number),
            datagrams: send.packets.len(),
        };
        self.issue(send.id, now_us);
        let at = Instant::from_us(now_us);
        self.tracer.record(at, connection.id, &event);
    }

    /// A QSEND has departed. `times`: now, and when it departed, in microseconds.
    #[cold]
    pub(super) fn on_departed(
        &mut self,
        (now_us, departed_us): (u64, u64),
        connection: QuicConnection,
        id: SendId,
    ) {
        if let Some(waited_us) = self.take_wait_us(departed_us, id) {
            let event = QuicTraceEvent::SendDeparted {
                send: id.0,
                waited_us,
            };
            self.tracer
                .record(Instant::from_us(now_us), connection, &event);
        }
    }

    fn issue(&mut self, id: SendId, now_us: u64) {
        if self.issued.len() >= ISSUED_MAX {
            self.issued.clear();
        }
        self.issued.insert(id.0, now_us);
    }

    /// A command is answered at this time; returns how long that took.
    fn take_wait_us(&mut self, at_us: u64, id: SendId) -> Option<u64> {
        let issued_us = self.issued.remove(&id.0)?;
        Some(at_us.saturating_sub(issued_us))
    }
}

impl QuicLayer {
    /// Records an event of a connection, if it is traced.
    #[inline]
    pub(super) fn trace(
        &mut self,
        now_us: u64,
        connection: QuicConnection,
        event: impl FnOnce() -> QuicTraceEvent,
    ) {
        if self.trace.is_some() {
            self.record(now_us, connection, None, event());
        }
    }

    /// The same for an issued command, noting the time until its answer.
    #[inline]
    pub(super) fn trace_issued(
        &mut self,
        now_us: u64,
        connection: QuicConnection,
        id: SendId,
        event: impl FnOnce() -> QuicTraceEvent,
    ) {
        if self.trace.is_some() {
            self.record(now_us, connection, Some(id), event());
        }
    }

    #[cold]
    fn record(
        &mut self,
        now_us: u64,
        connection: QuicConnection,
        issued: Option<SendId>,
        event: QuicTraceEvent,
    ) {
        if let Some(trace) = self.trace.as_deref_mut()
            && trace.names.contains(&connection.0)
        {
            if let Some(id) = issued {
                trace.issue(id, now_us);
            }
            let at = Instant::from_us(now_us);
            trace.tracer.record(at, connection, &event);
        }
    }

    /// A command is answered; returns how long that took, if it was traced.
    #[inline]
    pub(super) fn traced_wait_us(&mut self, now_us: u64, id: SendId) -> Option<u64> {
        self.trace.as_deref_mut()?.take_wait_us(now_us, id)
    }

    /// A connection is forgotten.
    pub(super) fn end_trace_of(&mut self, now_us: u64, key: (usize, Handle)) {
        if let Some(trace) = self.trace.as_deref_mut()
            && let Some(connection) = trace.traced.remove(&key)
        {
            trace.names.remove(&connection.0);
            trace.tracer.end(Instant::from_us(now_us), connection);
        }
    }

    /// Traces existing and new QUIC connections until `tracer` reports its end, unless the trace is
    /// refused at once.
    pub(crate) fn begin_trace(
        &mut self,
        ground: &mut Ground,
        now_us: u64,
        wanted: QuicTraceWanted,
        mut tracer: Box<dyn QuicTracer>,
    ) {
        if let Err(refusal) = self.begin_traces(now_us, wanted) {
            tracer.refuse(refusal);
            tracer.flush();
            return;
        }
        self.trace = Some(Box::new(Trace {
            tracer,
            // Existing connections join with their first event.
            left: wanted.connections_max,
            traced: HashMap::new(),
            names: HashSet::new(),
            issued: HashMap::new(),
        }));
        self.drain_trace(ground);
        self.flush_trace();
    }

    /// Has the endpoints trace the wanted connections.
    fn begin_traces(
        &mut self,
        now_us: u64,
        wanted: QuicTraceWanted,
    ) -> Result<(), QuicTraceRefusal> {
        if self.listeners.is_empty() {
            return Err(QuicTraceRefusal::NoQuic);
        }
        if self.trace.is_some() {
            return Err(QuicTraceRefusal::Busy);
        }
        let connections = self.table.connections.iter();
        let found = connections.filter(|(_, it)| match wanted.connection {
            Some(connection) => it.id == connection,
            None => wanted.peer.is_none_or(|peer| it.remote.ip() == peer),
        });
        let found: Vec<_> = found.map(|(_, it)| (it.listener, it.handle)).collect();
        let now = Instant::from_us(now_us);
        let mut left = wanted.connections_max;
        for (listener, handle) in found {
            if left > 0 && self.listeners[listener].endpoint.trace(now, handle) {
                left -= 1;
            }
        }
        if let Some(connection) = wanted.connection {
            if left == wanted.connections_max {
                return Err(QuicTraceRefusal::UnknownConnection(connection));
            }
        } else if left > 0 {
            for listener in &mut self.listeners {
                listener.endpoint.trace_new(wanted.peer);
            }
        }
        Ok(())
    }

    /// Lets the tracer flush; ends the trace if the receiver is gone.
    pub(crate) fn flush_trace(&mut self) {
        let is_over = self.trace.as_mut().is_some_and(|it| !it.tracer.flush());
        if is_over && let Some(trace) = self.trace.take() {
            for listener in &mut self.listeners {
                listener.endpoint.stop_tracing_new();
            }
            for (listener, handle) in trace.traced.into_keys() {
                self.listeners[listener].endpoint.untrace(handle);
            }
        }
    }

    /// Collects the endpoints' trace events.
    #[inline]
    pub(super) fn trace_endpoints(&mut self, ground: &mut Ground) {
        if self.trace.is_some() {
            self.drain_trace(ground);
        }
    }

    #[cold]
    fn drain_trace(&mut self, ground: &mut Ground) {
        let listeners = self.listeners.len();
        for listener in 0..listeners {
            while let Some(traced) = self.listeners[listener].endpoint.poll_traced() {
                self.on_traced(ground, listener, traced);
            }
        }
    }

    fn on_traced(&mut self, ground: &mut Ground, listener: usize, traced: Traced) {
        let key = (listener, traced.connection);
        let place = self.place(ground, listener, traced.connection);
        let (Some(place), Some(trace)) = (place, self.trace.as_deref_mut()) else {
            return;
        };
        let Some(connection) = self.table.connections.get(place) else {
            return;
        };
        if !trace.traced.contains_key(&key) {
            if trace.left == 0 {
                return self.listeners[listener].endpoint.untrace(traced.connection);
            }
            trace.left -= 1;
            trace.traced.insert(key, connection.id);
            trace.names.insert(connection.id.0);
            let begun = TracedConnection {
                connection: connection.id,
                local: connection.local,
                remote: connection.remote,
            };
            trace.tracer.begin(traced.at, begun);
            if trace.left == 0 {
                for listener in &mut self.listeners {
                    listener.endpoint.stop_tracing_new();
                }
            }
        }
        let event = QuicTraceEvent::Quic(traced.event);
        trace.tracer.record(traced.at, connection.id, &event);
    }
}
