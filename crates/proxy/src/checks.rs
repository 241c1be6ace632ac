//! Active health checks: a connection, or a request, to each backend from time to time.

use std::collections::HashMap;

use host::app::{AppEvent, ConnectError, Io, Owner, StreamId};
use http_message::response;

use crate::buffer::Buffer;
use crate::config::{Check, CheckKind};
use crate::pools::BackendId;
use crate::proxy_protocol;
use crate::shared::{Shared, Use};

/// A check under way.
#[derive(Debug)]
struct Running {
    backend: BackendId,
    input: Buffer,
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Checks {
    running: HashMap<StreamId, Running>,
}

impl Checks {
    /// Begins those that are due; true if there are any.
    pub(crate) fn begin_due(&mut self, io: &mut dyn Io, shared: &mut Shared) -> bool {
        let due = shared.pools.begin_checks(&shared.config, io.now_us());
        for backend in &due {
            let Some(state) = shared.pools.get(*backend) else {
                continue;
            };
            let timeout = check_of(shared, *backend).map(|check| check.timeout);
            match io.connect(Owner::PROXY, None, state.address) {
                Ok(stream) => {
                    shared.streams.insert(stream, Use::Check);
                    io.set_timer(stream, timeout);
                    let input = Buffer::default();
                    let backend = *backend;
                    self.running.insert(stream, Running { backend, input });
                }
                // It says nothing about the backend.
                Err(ConnectError::NoPort) => {
                    shared.on_no_port(io.now_us(), *backend);
                    shared.pools.on_check_failed_here(*backend);
                }
                Err(_) => finish(shared, *backend, false),
            }
        }
        !due.is_empty()
    }

    /// Ends all of them without a verdict.
    pub(crate) fn abort(&mut self, io: &mut dyn Io, shared: &mut Shared) {
        for (stream, _) in self.running.drain() {
            shared.streams.remove(&stream);
            io.abort(stream);
        }
    }

    pub(crate) fn on_event(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        stream: StreamId,
        event: &AppEvent,
    ) {
        let Some(running) = self.running.get_mut(&stream) else {
            return;
        };
        let verdict = match event {
            AppEvent::Connected => running.on_connected(io, shared, stream),
            AppEvent::Readable | AppEvent::PeerFinished => {
                let has_ended = *event == AppEvent::PeerFinished;
                running.on_bytes(io, shared, stream, has_ended)
            }
            AppEvent::Timer | AppEvent::Closed { .. } => Some(false),
            _ => None,
        };
        let Some(is_good) = verdict else {
            return;
        };
        let backend = running.backend;
        self.running.remove(&stream);
        shared.streams.remove(&stream);
        if !matches!(event, AppEvent::Closed { .. }) {
            io.abort(stream);
        }
        finish(shared, backend, is_good);
    }
}

fn check_of(shared: &Shared, backend: BackendId) -> Option<&Check> {
    let pool = shared.pools.get(backend)?.pool?;
    shared.config.pools[pool].check.as_ref()
}

fn finish(shared: &mut Shared, backend: BackendId, is_good: bool) {
    match is_good {
        true => shared.counters.checks_passed += 1,
        false => shared.counters.checks_failed += 1,
    }
    let waiting = shared.pools.on_check(&shared.config, backend, is_good);
    shared.woken.extend(waiting);
    shared.pools.count(&mut shared.counters);
}

impl Running {
    /// The verdict, if a connection was all that was asked for.
    fn on_connected(&self, io: &mut dyn Io, shared: &Shared, stream: StreamId) -> Option<bool> {
        let Some(check) = check_of(shared, self.backend) else {
            return Some(true);
        };
        let CheckKind::Http { path, host, .. } = &check.kind else {
            return Some(true);
        };
        let pool = shared.pools.get(self.backend).and_then(|state| state.pool);
        let mut request = Vec::new();
        if let Some(version) = pool.and_then(|pool| shared.config.pools[pool].send_proxy) {
            proxy_protocol::build(version, None, &mut request);
        }
        let address = shared
            .pools
            .get(self.backend)
            .map(|state| state.address.to_string());
        let host = match host.is_empty() {
            true => address.as_deref().unwrap_or_default(),
            false => host,
        };
        let text = format!(
            "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\
             User-Agent: splitway-check\r\n\r\n"
        );
        request.extend_from_slice(text.as_bytes());
        // A new stream takes so little whole.
        let is_taken = io.write(stream, &request) == request.len();
        (!is_taken).then_some(false)
    }

    fn on_bytes(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        stream: StreamId,
        has_ended: bool,
    ) -> Option<bool> {
        let Some(check) = check_of(shared, self.backend) else {
            return Some(true);
        };
        let CheckKind::Http { statuses, .. } = &check.kind else {
            return None;
        };
        let statuses = statuses.clone();
        let head_bytes_max = shared.config.head_bytes_max;
        self.input
            .fill(io, stream, &mut shared.scratch, head_bytes_max);
        let parsed = response::parse(self.input.bytes(), head_bytes_max, |head| Ok(head.status));
        match parsed {
            Ok(Some(status)) => Some(statuses.contains(&status)),
            Ok(None) => has_ended.then_some(false),
            Err(_) => Some(false),
        }
    }
}
