//! Active health checks: a connection, or a request, to each backend from time to time.

use std::collections::HashMap;

use client_address::proxy_protocol;
use host::app::{AppEvent, CloseReason, ConnectError, Io, Owner, StreamId};
use http_message::response;

use crate::buffer::Buffer;
use crate::config::{Check, CheckKind};
use crate::http2::names::is_of_http2;
use crate::http2::wanted::Carrier;
use crate::pools::BackendId;
use crate::shared::{Shared, Use};

/// Most bytes of an answer that are read behind its head.
const REST_BYTES_MAX: usize = 1 << 20;

/// A check under way.
#[derive(Debug)]
struct Running {
    backend: BackendId,
    input: Buffer,
    /// The verdict is known. The rest of the answer is read: a reset would be an error in the
    /// backend's log.
    rest_bytes: Option<usize>,
    has_connected: bool,
}

/// Why a backend failed a check; `Ok` if it did not.
type Verdict = Result<(), String>;

/// All checks under way.
#[derive(Debug, Default)]
pub(crate) struct Checks {
    running: HashMap<StreamId, Running>,
}

impl Checks {
    /// Begins the checks that are due; true if there are any.
    pub(crate) fn begin_due(&mut self, io: &mut dyn Io, shared: &mut Shared) -> bool {
        let due = shared.pools.begin_checks(&shared.config, io.now_us());
        for backend in &due {
            let Some(address) = shared.pools.get(*backend).map(|state| state.address) else {
                continue;
            };
            let timeout = check_of(shared, *backend).map(|check| check.timeout);
            if let Some(stream) = ask_for_stream(shared, *backend) {
                shared.streams.insert(stream, Use::Check);
                self.running.insert(stream, Running::new(*backend));
                continue;
            }
            match io.connect(Owner::PROXY, None, address) {
                Ok(stream) => {
                    shared.streams.insert(stream, Use::Check);
                    io.set_timer(stream, timeout);
                    self.running.insert(stream, Running::new(*backend));
                }
                // A local failure, not the backend's.
                Err(ConnectError::NoPort) => {
                    shared.on_no_port(io.now_us(), *backend);
                    shared.pools.on_check_failed_here(*backend);
                }
                Err(error) => finish(shared, *backend, &Err(error.to_string())),
            }
        }
        !due.is_empty()
    }

    /// The stack could not open a connection for a check: the backend has not failed.
    pub(crate) fn on_not_opened(&mut self, shared: &mut Shared, stream: StreamId) {
        if let Some(running) = self.running.remove(&stream) {
            shared.streams.remove(&stream);
            shared.pools.on_check_failed_here(running.backend);
        }
    }

    /// A backend of HTTP/2 has not processed the request of a check.
    pub(crate) fn on_unprocessed(&mut self, shared: &mut Shared, stream: StreamId) {
        if let Some(running) = self.running.remove(&stream) {
            shared.streams.remove(&stream);
            let verdict = Err("it has refused the request".to_owned());
            finish(shared, running.backend, &verdict);
        }
    }

    /// Ends all checks without a verdict.
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
        if running.rest_bytes.is_some() {
            return self.on_rest(io, shared, stream, event);
        }
        let verdict = match event {
            AppEvent::Connected => {
                running.has_connected = true;
                if is_of_http2(stream) {
                    let timeout = check_of(shared, running.backend).map(|check| check.timeout);
                    io.set_timer(stream, timeout);
                }
                running.on_connected(io, shared, stream)
            }
            AppEvent::Readable | AppEvent::PeerFinished => {
                let has_ended = *event == AppEvent::PeerFinished;
                running.on_bytes(io, shared, stream, has_ended)
            }
            AppEvent::Timer
            | AppEvent::Closed {
                reason: CloseReason::TimedOut,
                ..
            } => Some(Err(running.lateness(shared))),
            AppEvent::Closed { .. } => Some(Err(running.end(shared).to_owned())),
            _ => None,
        };
        let Some(verdict) = verdict else {
            return;
        };
        let backend = running.backend;
        let has_answered = !running.input.is_empty();
        let is_over = matches!(event, AppEvent::Closed { .. } | AppEvent::Timer);
        finish(shared, backend, &verdict);
        // A stream of HTTP/2 is reset without harm.
        if has_answered && !is_over && !is_of_http2(stream) {
            if let Some(running) = self.running.get_mut(&stream) {
                running.rest_bytes = Some(0);
            }
            return self.on_rest(io, shared, stream, event);
        }
        self.forget(shared, stream);
        if !matches!(event, AppEvent::Closed { .. }) {
            io.abort(stream);
        }
    }

    /// Reads an answer to its end, within the time of the check.
    fn on_rest(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        stream: StreamId,
        event: &AppEvent,
    ) {
        let Some(running) = self.running.get_mut(&stream) else {
            return;
        };
        running.input.clear();
        let mut rest_bytes = running.rest_bytes.unwrap_or_default();
        loop {
            match io.read(stream, &mut shared.scratch) {
                0 => break,
                count => rest_bytes += count,
            }
        }
        running.rest_bytes = Some(rest_bytes);
        match event {
            AppEvent::Closed { .. } => self.forget(shared, stream),
            AppEvent::PeerFinished => {
                self.forget(shared, stream);
                io.close(stream);
            }
            AppEvent::Timer => {
                self.forget(shared, stream);
                io.abort(stream);
            }
            _ if rest_bytes > REST_BYTES_MAX => {
                self.forget(shared, stream);
                io.abort(stream);
            }
            _ => {}
        }
    }

    fn forget(&mut self, shared: &mut Shared, stream: StreamId) {
        self.running.remove(&stream);
        shared.streams.remove(&stream);
    }
}

/// Asks for a stream on a connection of its own, if the check is a request to a backend of HTTP/2.
fn ask_for_stream(shared: &mut Shared, backend: BackendId) -> Option<StreamId> {
    let pool = shared.pools.get(backend)?.pool?;
    let check = check_of(shared, backend)?;
    let is_request = matches!(check.kind, CheckKind::Http { .. });
    if !is_request || !shared.config.speaks_http2(Some(pool)) {
        return None;
    }
    let (mut header, timeout) = (Vec::new(), check.timeout);
    if let Some(version) = shared.config.pools[pool].send_proxy {
        proxy_protocol::build(version, None, &mut header);
    }
    let carrier = Carrier::Own(header);
    Some(shared.wanted.ask(backend, carrier, timeout))
}

fn check_of(shared: &Shared, backend: BackendId) -> Option<&Check> {
    let pool = shared.pools.get(backend)?.pool?;
    shared.config.pools[pool].check.as_ref()
}

fn finish(shared: &mut Shared, backend: BackendId, verdict: &Verdict) {
    match verdict {
        Ok(()) => shared.counters.checks_passed += 1,
        Err(_) => shared.counters.checks_failed += 1,
    }
    let verdict = match verdict {
        Ok(()) => Ok(()),
        Err(why) => Err(why.as_str()),
    };
    let waiting = shared.pools.on_check(&shared.config, backend, verdict);
    shared.woken.extend(waiting);
    shared.pools.count(&mut shared.counters);
}

impl Running {
    fn new(backend: BackendId) -> Self {
        Running {
            backend,
            input: Buffer::default(),
            rest_bytes: None,
            has_connected: false,
        }
    }

    /// Returns the verdict, if the check is for a connection only.
    fn on_connected(&self, io: &mut dyn Io, shared: &Shared, stream: StreamId) -> Option<Verdict> {
        let Some(check) = check_of(shared, self.backend) else {
            return Some(Ok(()));
        };
        let CheckKind::Http { path, host, .. } = &check.kind else {
            return Some(Ok(()));
        };
        let pool = shared.pools.get(self.backend).and_then(|state| state.pool);
        let mut request = Vec::new();
        if let Some(version) = pool.and_then(|pool| shared.config.pools[pool].send_proxy)
            && !is_of_http2(stream)
        {
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
        // A new stream takes a request of this size at once.
        let is_taken = io.write(stream, &request) == request.len();
        (!is_taken).then(|| Err("the request could not be sent".to_owned()))
    }

    fn on_bytes(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        stream: StreamId,
        has_ended: bool,
    ) -> Option<Verdict> {
        let Some(check) = check_of(shared, self.backend) else {
            return Some(Ok(()));
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
            Ok(Some(status)) if statuses.contains(&status) => Some(Ok(())),
            Ok(Some(status)) => Some(Err(format!("it answers {status}"))),
            Ok(None) => has_ended.then(|| Err(self.end(shared).to_owned())),
            Err(_) => Some(Err("its answer is malformed".to_owned())),
        }
    }

    fn is_http(&self, shared: &Shared) -> bool {
        let check = check_of(shared, self.backend);
        check.is_some_and(|check| matches!(check.kind, CheckKind::Http { .. }))
    }

    /// Reason for a failure if the backend closed.
    fn end(&self, shared: &Shared) -> &'static str {
        if !self.has_connected {
            "no connection: it was refused, or is unreachable"
        } else if self.is_http(shared) {
            "it closed before it answered"
        } else {
            "it closed the connection"
        }
    }

    /// Reason for a failure if the backend did not answer in time.
    fn lateness(&self, shared: &Shared) -> String {
        let timeout = check_of(shared, self.backend).map(|check| check.timeout);
        let timeout = timeout.unwrap_or_default();
        match self.has_connected {
            true => format!("no answer within {timeout:?}"),
            false => format!("no connection within {timeout:?}"),
        }
    }
}
