//! Traces of an endpoint's connections: which connections are traced, and their events.

use std::collections::VecDeque;
use std::net::IpAddr;

use quinn_proto::Incoming;
use tcp::Instant;

use crate::engine::Endpoint;
use crate::engine::connection::Connection;
use crate::engine::controller;
use crate::engine::keys::Shared;
use crate::trace::{CongestionState, Losses, Metrics, TraceEvent, Traced};
use crate::types::{CloseReason, Handle};

/// Which new connections are traced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    None,
    All,
    Of(IpAddr),
}

/// An endpoint's tracing state.
pub(super) struct Tracing {
    wanted: Wanted,
    /// Where the first packet of a connection is traced, before it has a session.
    first: Shared,
    traced: VecDeque<Traced>,
    /// The time of the endpoint's last call.
    pub(super) now: Instant,
}

impl Tracing {
    pub(super) fn new(first: Shared, now: Instant) -> Self {
        Self {
            wanted: Wanted::None,
            first,
            traced: VecDeque::new(),
            now,
        }
    }

    /// A client's first packet is about to be opened. Returns its destination connection ID if the
    /// connection is traced.
    #[inline]
    pub(super) fn begin(&self, incoming: &Incoming) -> Option<Vec<u8>> {
        let remote = incoming.remote_address().ip();
        let is_wanted = match self.wanted {
            Wanted::None => return None,
            Wanted::All => true,
            Wanted::Of(peer) => peer == remote,
        };
        is_wanted.then(|| {
            self.first.begin_trace(true);
            incoming.orig_dst_cid().to_vec()
        })
    }

    /// The packet started no connection.
    pub(super) fn give_up(&self) {
        if self.first.is_traced() {
            self.first.end_trace();
        }
    }
}

impl Connection {
    /// Losses so far, recovery metrics, and the congestion state.
    fn recovery(&self) -> (Losses, Metrics, CongestionState) {
        let path = self.quinn.stats().path;
        let (control, observed) = controller::observe(self.quinn.congestion_state());
        let losses = Losses {
            packets: path.lost_packets,
            probes: path.lost_plpmtud_probes,
            last_sent: observed.last_lost_sent,
        };
        let metrics = Metrics {
            smoothed_rtt: path.rtt,
            min_rtt: path.min_rtt,
            congestion_window: control.congestion_window,
            ssthresh: control.ssthresh,
            bytes_in_flight: None,
            pacing_rate: control.pacing_rate.map(|bits| bits / 8),
        };
        (losses, metrics, observed.state)
    }

    /// Takes the events since the last call.
    fn take_trace(&mut self, now: Instant) -> Vec<TraceEvent> {
        let (losses, metrics, congestion) = self.recovery();
        let mut recorder = self.recorder.lock();
        let Some(trace) = recorder.trace() else {
            return Vec::new();
        };
        trace.on_state(now, losses, metrics, congestion);
        trace.take()
    }
}

impl Endpoint {
    /// Traces new connections from now on, only those of `peer` if given.
    pub fn trace_new(&mut self, peer: Option<IpAddr>) {
        self.tracing.wanted = peer.map_or(Wanted::All, Wanted::Of);
    }

    /// Stops tracing new connections.
    pub fn stop_tracing_new(&mut self) {
        self.tracing.wanted = Wanted::None;
    }

    /// Traces an existing connection from now on. False if there is none, or it is over.
    pub fn trace(&mut self, now: Instant, connection: Handle) -> bool {
        self.tracing.now = now;
        let Some(found) = self.get(connection) else {
            return false;
        };
        if std::mem::replace(&mut found.is_traced, true) {
            return true;
        }
        found.recorder.begin_trace(false);
        let (losses, ..) = found.recovery();
        if let Some(trace) = found.recorder.lock().trace() {
            trace.set_losses(losses);
        }
        // The session traces the peer's parameters.
        let _ = found.quinn.crypto_session().transport_parameters();
        self.trace_started(connection.index, None);
        self.collect_trace(connection.index);
        true
    }

    /// Ends the trace of a connection.
    pub fn untrace(&mut self, connection: Handle) {
        if let Some(found) = self.at(connection.index)
            && found.handle == connection
            && std::mem::take(&mut found.is_traced)
        {
            found.recorder.end_trace();
        }
        self.tracing
            .traced
            .retain(|traced| traced.connection != connection);
    }

    /// The next trace event, in order of time.
    pub fn poll_traced(&mut self) -> Option<Traced> {
        self.tracing.traced.pop_front()
    }

    pub(super) fn trace_started(&mut self, index: usize, original_id: Option<Vec<u8>>) {
        let Some(connection) = self.at(index) else {
            return;
        };
        let handle = connection.handle;
        let (remote, local_ip) = connection.path();
        let event = TraceEvent::Started {
            remote,
            local_ip,
            original_id,
        };
        self.push_traced(handle, event);
    }

    #[cold]
    pub(super) fn trace_closed(&mut self, index: usize, reason: &CloseReason) {
        self.collect_trace(index);
        if let Some(connection) = self.at(index) {
            let handle = connection.handle;
            self.push_traced(handle, TraceEvent::Closed(reason.clone()));
        }
    }

    /// Collects a connection's trace events after any call on it.
    #[inline]
    pub(super) fn collect_trace(&mut self, index: usize) {
        let now = self.tracing.now;
        if let Some(connection) = self.at(index)
            && connection.is_traced
        {
            let (handle, events) = (connection.handle, connection.take_trace(now));
            for event in events {
                self.push_traced(handle, event);
            }
        }
    }

    #[cold]
    fn push_traced(&mut self, connection: Handle, event: TraceEvent) {
        self.tracing.traced.push_back(Traced {
            connection,
            at: self.tracing.now,
            event,
        });
    }
}
