//! Requests and their responses, one after the other.

use std::borrow::Cow;
use std::time::Duration;

use client_address::proxy_protocol;
use host::app::{CloseReason, Io, StreamId};
use http_message::access::NO_RESPONSE;
use http_message::request::{Parsed, without_empty_lines};
use http2::bounds::PREFACE;

use super::gather::{Gathered, Gathering};
use super::tunnel::Tunnel;
use super::{Phase, RESET, Session, Step};
use crate::answer::{self, Refusal};
use crate::attempt::{Attempt, Link, Opening, Reuse, refusal_of};
use crate::body::{End, Relay, Stop};
use crate::buffer::Buffer;
use crate::config::Config;
use crate::forward::{self, Context, Kind, Request, Response};
use crate::http2::names::is_of_http2;
use crate::joint::Joint;
use crate::note::{Note, Outcome};
use crate::pace::{self, Look, Pace, Since};
use crate::shared::{Leave, Shared};

/// Time for which a client that sends `Expect: 100-continue` delays nothing, in microseconds: its
/// backend has to answer. Then the client has to send the body without an answer (RFC 9110
/// §10.1.1), as curl does after a second.
const CONTINUE_US: u64 = 3_000_000;

/// A request in hand.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub(super) attempt: Attempt,
    request: Request,
    /// The beginning of the body is awaited, without a backend.
    pub(super) gathering: Option<Gathering>,
    /// When the request got its backend.
    pub(super) since: Option<Since>,
    /// Measurement of the client's rate.
    pace: Pace,
    /// The request's body.
    pub(super) upload: Relay,
    /// Bytes that the backend's stream has not taken.
    up: Buffer,
    /// The head is on its way to the backend.
    is_sent: bool,
    /// Bytes from the backend, not consumed.
    down: Buffer,
    /// The backend has sent FIN.
    pub(super) has_ended: bool,
    /// The backend's stream is over.
    is_gone: bool,
    /// An interim response, from this backend or another one, has gone to the client.
    is_answered: bool,
    /// The request is completely sent, and the response timeout runs.
    awaits_response: bool,
    pub(super) response: Option<Response>,
    /// The response's body.
    download: Relay,
    note: Note,
}

impl Exchange {
    /// Takes the unread bytes of the backend's stream, which has ended.
    pub(super) fn take_unread(&mut self, io: &mut dyn Io, stream: StreamId, reason: CloseReason) {
        self.down.tail().extend(io.take_unread(stream));
        self.is_gone = true;
        // After a reset, a body that the end would delimit is incomplete.
        self.has_ended |= reason == CloseReason::Finished;
    }

    /// Longest time in which no byte of a body moves.
    fn idle_timeout(&self, config: &Config) -> Duration {
        match self.request.is_grpc {
            true => config.tunnel_timeout,
            false => config.idle_timeout,
        }
    }

    /// Longest time from the request's end to the response's head, which a server of gRPC may send
    /// with its first message.
    fn response_timeout(&self, config: &Config) -> Duration {
        match self.request.is_grpc {
            true => config.tunnel_timeout,
            false => config.response_timeout,
        }
    }

    /// Memory for bytes to the backend, and for bytes to the client, in bytes.
    pub(super) fn memory_bytes(&self) -> [usize; 2] {
        let up = self.up.memory_bytes() + self.request.head.capacity();
        let up = up + self.upload.memory_bytes();
        let head = self.response.as_ref().map_or(0, |it| it.head.capacity());
        [up, self.down.memory_bytes() + head]
    }

    /// True if the client alone delays the request; `input` has the bytes received from the client.
    pub(super) fn awaits_body(&self, input: &Buffer, now_us: u64) -> bool {
        let is_taken = self.up.is_empty() && input.is_empty() && !self.awaits_continue(now_us);
        // A client of gRPC may be silent for long.
        !self.upload.is_done() && !self.request.is_grpc && (self.gathering.is_some() || is_taken)
    }

    /// True if the client waits for the backend's 100 before it sends the body.
    fn awaits_continue(&self, now_us: u64) -> bool {
        let held_us = self.since.map_or(0, |it| now_us.saturating_sub(it.at_us));
        let is_expected = self.request.expects_continue && !self.is_answered;
        is_expected && !self.upload.has_begun() && held_us < CONTINUE_US
    }

    /// True if the request may be sent again (RFC 9110 §9.2.2): no response has begun, and the
    /// whole request is still here.
    fn may_retry(&self) -> bool {
        let is_unanswered = self.response.is_none() && self.down.is_empty() && !self.is_answered;
        is_unanswered && !self.upload.has_begun() && (self.request.is_idempotent || !self.is_sent)
    }
}

impl Exchange {
    /// True if the request may be sent to a backend after another one has not processed it: no
    /// response has begun, and the body is here from its beginning.
    fn may_replay(&self) -> bool {
        let is_unanswered = self.response.is_none() && self.down.is_empty() && !self.is_answered;
        is_unanswered && self.upload.can_rewind()
    }
}

impl Session {
    /// Waits for another request on the connection.
    pub(super) fn next_request(&mut self, io: &mut dyn Io, shared: &mut Shared) -> Step {
        self.arm_idle(io, shared.config.keepalive_timeout, None);
        (Phase::Head { has_begun: false }, true)
    }

    pub(super) fn read_head(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        mut has_begun: bool,
    ) -> Step {
        let head_bytes_max = shared.config.head_bytes_max;
        self.input
            .fill(io, self.client, &mut shared.scratch, head_bytes_max);
        if self.input.is_empty() {
            if self.has_ended || (shared.is_draining && self.requests > 0) {
                return self.close(io);
            }
            io.set_idle(self.client, true);
            return (Phase::Head { has_begun }, false);
        }
        io.set_idle(self.client, false);
        match self.preface(shared) {
            Preface::Other => {}
            Preface::Whole => return (Phase::Preface, false),
            Preface::Partial => return (Phase::Head { has_begun }, false),
        }
        let config = shared.config.clone();
        let context = Context {
            config: &config,
            listener: &config.listeners[self.listener],
            peer: self.peer,
            local: self.local,
            is_tls: self.arrival.tls.is_some(),
            is_http2: is_of_http2(self.client),
        };
        let request = match forward::parse_request(self.input.bytes(), &context) {
            Parsed::Complete(request) => request,
            Parsed::Broken(status) => {
                return self.refuse_head(io, shared, Refusal::Request(status));
            }
            Parsed::Partial if self.has_ended => {
                return self.refuse_head(io, shared, BAD_REQUEST);
            }
            Parsed::Partial => {
                if !has_begun {
                    has_begun = true;
                    self.arm(io, config.head_timeout);
                }
                return (Phase::Head { has_begun }, false);
            }
        };
        self.requests += 1;
        shared.counters.requests += 1;
        let pool_name = request.pool.map(|pool| &*config.pools[pool].name);
        let head = &self.input.bytes()[..request.head_bytes];
        let note = Note::new(shared, io.now_us(), &self.logged(head), pool_name);
        self.input.consume(request.head_bytes);
        self.begin_exchange(io, shared, request, note)
    }

    /// Whether the client has begun with HTTP/2, where that is permitted.
    fn preface(&self, shared: &Shared) -> Preface {
        let listener = &shared.config.listeners[self.listener];
        let is_first = self.requests == 0 && !is_of_http2(self.client);
        let bytes = self.input.bytes();
        let count = bytes.len().min(PREFACE.len());
        match listener.http2_prior_knowledge && is_first && bytes[..count] == PREFACE[..count] {
            false => Preface::Other,
            true if count == PREFACE.len() => Preface::Whole,
            true => Preface::Partial,
        }
    }

    /// The head of a request as the access log has it: the line names the client's version.
    fn logged<'a>(&self, head: &'a [u8]) -> Cow<'a, [u8]> {
        let line = head.split(|&byte| byte == b'\r').next().unwrap_or(head);
        match line.strip_suffix(b"1.1") {
            Some(start) if is_of_http2(self.client) => {
                Cow::Owned([start, b"2.0", &head[line.len()..]].concat())
            }
            _ => Cow::Borrowed(head),
        }
    }

    fn begin_exchange(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        request: Request,
        note: Note,
    ) -> Step {
        let config = shared.config.clone();
        let pool = request.pool;
        let settings = pool.map(|pool| &config.pools[pool]);
        let sends_proxy = settings.is_some_and(|pool| pool.send_proxy.is_some());
        let is_to_http2 = request.is_to_http2;
        let reuse = if is_to_http2 {
            // GOAWAY tells which requests a backend has processed.
            Reuse::Any
        } else if request.upgrades || sends_proxy {
            // The PROXY protocol names one client for a whole connection.
            Reuse::None
        } else if !request.is_idempotent || request.has_body() {
            // A backend may close an idle connection, and a request that cannot be sent twice would
            // be lost with the connection.
            Reuse::Recent
        } else {
            Reuse::Any
        };
        let pool_number = pool.unwrap_or(usize::MAX);
        let mut attempt = Attempt::new(self.holder(), pool_number, request.key, reuse);
        if let Some(version) = settings.and_then(|pool| pool.send_proxy)
            && is_to_http2
        {
            let (mut header, addresses) = (Vec::new(), Some((self.peer, self.local)));
            proxy_protocol::build(version, addresses, &mut header);
            attempt = attempt.with_own_connection(header);
        }
        let (decode, encode) = request.coding();
        let upload = Relay::new(decode, encode);
        let is_upgrade = request.upgrades && is_to_http2;
        let gathering = settings.and_then(|pool| Gathering::new(&request, pool));
        if gathering.is_some() {
            shared.counters.bodies_awaited += 1;
            self.arm_body(io, shared, (config.idle_timeout, None));
        }
        let exchange = Box::new(Exchange {
            attempt,
            gathering,
            since: None,
            pace: Pace::default(),
            upload: match is_to_http2 {
                true => upload.keeping(),
                false => upload,
            },
            request,
            up: Buffer::default(),
            is_sent: false,
            down: Buffer::default(),
            has_ended: false,
            is_gone: false,
            is_answered: false,
            awaits_response: false,
            response: None,
            download: Relay::none(),
            note,
        });
        match pool {
            Some(_) if is_upgrade => self.refuse(io, shared, exchange, Refusal::NoUpgrade),
            Some(_) => (Phase::Exchange(exchange), true),
            None => self.refuse(io, shared, exchange, Refusal::NoPool),
        }
    }

    pub(super) fn exchange(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        mut it: Box<Exchange>,
    ) -> Step {
        match self.gather(io, shared, &mut it) {
            Ok(Gathered::Enough) => {}
            Ok(Gathered::TooLittle) => return (Phase::Exchange(it), false),
            Ok(Gathered::CutShort) => return self.cut_short(io, shared, it),
            Err(why) => return self.refuse(io, shared, it, why),
        }
        let link = match it.attempt.advance(io, shared) {
            Ok(Opening::Established(link)) => link,
            Ok(Opening::Waits(time)) => {
                self.arm(io, time);
                return (Phase::Exchange(it), false);
            }
            Ok(Opening::Still) => return (Phase::Exchange(it), false),
            Err(why) => return self.refuse(io, shared, it, why),
        };
        if !it.is_sent {
            self.send_head(io, shared, &mut it);
        }
        if it.response.is_none() {
            match self.upload(io, shared, &mut it, link) {
                Stop::Broken if !self.has_ended => {
                    return self.refuse(io, shared, it, Refusal::BrokenBody);
                }
                Stop::Broken => return self.cut_short(io, shared, it),
                Stop::Done | Stop::Blocked | Stop::Starved => {}
            }
            return self.read_response(io, shared, it, link);
        }
        // A failure to send the rest of the request does not matter once the response has begun.
        let _ = self.upload(io, shared, &mut it, link);
        self.download(io, shared, it, link)
    }

    /// Reads the client's bytes of an awaited body.
    pub(super) fn gather(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        it: &mut Exchange,
    ) -> Result<Gathered, Refusal> {
        let Some(gathering) = &mut it.gathering else {
            return Ok(Gathered::Enough);
        };
        let bytes_max = gathering.bytes_max;
        let count = self
            .input
            .fill(io, self.client, &mut shared.scratch, bytes_max);
        if count > 0 {
            self.moved_us = io.now_us();
        }
        if gathering.is_whole(self.input.bytes())? || self.input.len() >= bytes_max {
            it.gathering = None;
            return Ok(Gathered::Enough);
        }
        Ok(match self.has_ended {
            true => Gathered::CutShort,
            false => Gathered::TooLittle,
        })
    }

    /// Returns the state of a client that sends or takes a body.
    pub(super) fn look(&self, io: &dyn Io, it: &Exchange) -> Look {
        let client = self.client;
        match it.response {
            None => Look {
                moved_bytes: it.upload.taken_bytes() + self.input.len() as u64,
                left_bytes: u64::MAX,
                is_awaited: it.awaits_body(&self.input, io.now_us()),
            },
            Some(_) => Look {
                moved_bytes: io.acknowledged(client),
                left_bytes: match self.output.is_empty() {
                    true => io.unacknowledged(client),
                    false => u64::MAX,
                },
                is_awaited: io.waits_for_peer(client),
            },
        }
    }

    /// Bytes moved between the client and the proxy.
    pub(super) fn moved_bytes(&self, io: &dyn Io, it: &Exchange) -> u64 {
        let sent = it.upload.taken_bytes() + self.input.len() as u64;
        sent + io.acknowledged(self.client)
    }

    fn send_head(&mut self, io: &mut dyn Io, shared: &Shared, it: &mut Exchange) {
        (it.is_sent, it.is_gone, it.has_ended) = (true, false, false);
        let pool = it.attempt.pool().map(|pool| &shared.config.pools[pool]);
        if let Some(version) = pool.and_then(|pool| pool.send_proxy)
            && !it.request.is_to_http2
        {
            let addresses = Some((self.peer, self.local));
            proxy_protocol::build(version, addresses, it.up.tail());
        }
        it.up.tail().extend_from_slice(&it.request.head);
        self.measure_upload(io, shared, it);
    }

    /// Begins to measure the client, which may send the body now.
    fn measure_upload(&mut self, io: &mut dyn Io, shared: &Shared, it: &mut Exchange) {
        it.since = Some(Since {
            at_us: io.now_us(),
            moved_bytes: self.moved_bytes(io, it),
        });
        it.pace = Pace::default();
        let backend = it.attempt.link().map(|link| link.stream);
        self.arm_body(io, shared, (it.idle_timeout(&shared.config), backend));
    }

    fn upload(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        it: &mut Exchange,
        link: Link,
    ) -> Stop {
        let before = (it.upload.content_bytes(), it.upload.progress());
        let from = End {
            stream: self.client,
            buffer: &mut self.input,
        };
        let to = End {
            stream: link.stream,
            buffer: &mut it.up,
        };
        let scratch = &mut shared.scratch;
        let stop = it.upload.advance(io, from, to, self.has_ended, scratch);
        shared.counters.bytes_in += it.upload.content_bytes() - before.0;
        if it.upload.progress() > before.1 {
            self.moved_us = io.now_us();
        }
        if stop == Stop::Done && !it.awaits_response && it.response.is_none() {
            it.awaits_response = true;
            self.arm(io, it.response_timeout(&shared.config));
        }
        stop
    }

    /// Reads response heads until the final one has arrived.
    fn read_response(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        mut it: Box<Exchange>,
        link: Link,
    ) -> Step {
        let config = shared.config.clone();
        loop {
            // Bytes of earlier heads that the client has not taken go first.
            if !self.output.flush(io, self.client) {
                return (Phase::Exchange(it), false);
            }
            let head_bytes_max = config.head_bytes_max;
            it.down
                .fill(io, link.stream, &mut shared.scratch, head_bytes_max);
            // After its FIN, a client may still wait for the responses to earlier requests.
            let is_last = self.has_ended && self.input.is_empty() && io.unread(self.client) == 0;
            let closes = shared.is_draining || !it.upload.is_done() || is_last;
            let bytes = it.down.bytes();
            let response = match forward::parse_response(bytes, &config, &it.request, closes) {
                Ok(Some(response)) => response,
                Ok(None) if !it.has_ended => return (Phase::Exchange(it), false),
                Ok(None) if it.down.is_empty() => {
                    return self.retry(io, shared, it, (Refusal::NoResponse, Leave::Close));
                }
                Ok(None) | Err(_) => {
                    let why = (Refusal::BadResponse, Leave::Abort);
                    return self.retry(io, shared, it, why);
                }
            };
            it.down.consume(response.head_bytes);
            it.upload.forget();
            let now_us = io.now_us();
            it.note.on_first_byte(now_us);
            self.output.tail().extend_from_slice(&response.head);
            match response.kind {
                Kind::Interim => {
                    let was_answered = std::mem::replace(&mut it.is_answered, true);
                    if it.request.expects_continue && !was_answered && !it.awaits_response {
                        self.measure_upload(io, shared, &mut it);
                    }
                }
                Kind::Switching => return self.switch(io, shared, it, link),
                Kind::Final => {
                    shared.counters.responses += 1;
                    shared.pools.on_success(link.backend);
                    let (decode, encode) = response.coding.clone();
                    it.download = Relay::new(decode, encode);
                    it.response = Some(response);
                    it.pace = Pace::default();
                    let times = (it.idle_timeout(&config), Some(link.stream));
                    self.arm_body(io, shared, times);
                    return (Phase::Exchange(it), true);
                }
            }
        }
    }

    /// Joins the client and the backend, which speak another protocol from now on.
    fn switch(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        mut it: Box<Exchange>,
        link: Link,
    ) -> Step {
        shared.counters.responses += 1;
        shared.counters.upgrades += 1;
        shared.pools.on_success(link.backend);
        let mut up = std::mem::take(&mut it.up);
        up.tail().extend_from_slice(self.input.bytes());
        self.input.clear();
        let mut down = std::mem::take(&mut self.output);
        down.tail().extend_from_slice(it.down.bytes());
        let mut joint = Joint::new((self.client, up), (link.stream, down));
        if it.has_ended {
            joint.on_peer_finished(link.stream);
        }
        let tunnel = Tunnel::new(shared, it.attempt, joint, (it.note, 101));
        self.join(io, shared, tunnel)
    }

    fn download(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        mut it: Box<Exchange>,
        link: Link,
    ) -> Step {
        let before = (it.download.content_bytes(), it.download.progress());
        let from = End {
            stream: link.stream,
            buffer: &mut it.down,
        };
        let to = End {
            stream: self.client,
            buffer: &mut self.output,
        };
        let scratch = &mut shared.scratch;
        let stop = it.download.advance(io, from, to, it.has_ended, scratch);
        shared.counters.bytes_out += it.download.content_bytes() - before.0;
        if it.download.progress() > before.1 {
            self.moved_us = io.now_us();
        }
        match stop {
            Stop::Blocked | Stop::Starved => (Phase::Exchange(it), false),
            Stop::Broken => self.cut_short(io, shared, it),
            Stop::Done => self.finish(io, shared, it),
        }
    }

    /// Completes an exchange whose response the client's stream has taken.
    fn finish(&mut self, io: &mut dyn Io, shared: &mut Shared, mut it: Box<Exchange>) -> Step {
        let (persists, closes, status) = it
            .response
            .as_ref()
            .map_or((false, true, NO_RESPONSE), |it| {
                (it.persists, it.closes, it.status)
            });
        let is_whole = it.upload.is_done();
        let is_clean = it.down.is_empty() && !it.has_ended;
        let pool = it.attempt.pool().map(|pool| &shared.config.pools[pool]);
        let sends_proxy = pool.is_some_and(|pool| pool.send_proxy.is_some());
        let how = if it.is_gone {
            Leave::Gone
        } else if !is_whole || !it.up.is_empty() {
            // The rest of this request would be taken for part of the next one.
            Leave::Abort
        } else if persists && is_clean && !shared.is_draining && !sends_proxy {
            Leave::Reuse
        } else if it.has_ended {
            Leave::Close
        } else {
            Leave::End
        };
        let backend = it.attempt.backend(shared);
        it.attempt.leave(io, shared, how);
        let name = backend.as_ref().map(|(name, _)| &**name);
        self.end_exchange(io, shared, *it, (Some(status), name, false));
        if closes || !is_whole {
            return self.close(io);
        }
        self.next_request(io, shared)
    }

    /// Logs the result of a request; without a status, that of its response.
    pub(super) fn end_exchange(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        it: Exchange,
        (status, backend, is_cut_short): (Option<u16>, Option<&str>, bool),
    ) {
        let of_response = it.response.as_ref().map_or(NO_RESPONSE, |it| it.status);
        it.note.end(
            shared,
            io.now_us(),
            &Outcome {
                body_bytes: it.download.content_bytes(),
                is_cut_short,
                backend,
                retries: it.attempt.retries(),
                ..self.outcome(io, status.unwrap_or(of_response))
            },
        );
    }

    /// Resets the client's connection, since the rest will never arrive: the client must not take
    /// the beginning for the whole.
    pub(super) fn cut_short(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        mut it: Box<Exchange>,
    ) -> Step {
        let backend = it.attempt.backend(shared);
        it.attempt.leave(io, shared, Leave::Abort);
        let name = backend.as_ref().map(|(name, _)| &**name);
        self.end_exchange(io, shared, *it, (None, name, true));
        io.abort(self.client);
        RESET
    }

    /// Handles a failure of the backend before a response: another one is tried, if permitted.
    fn retry(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        mut it: Box<Exchange>,
        why: (Refusal, Leave),
    ) -> Step {
        let may_retry = it.may_retry();
        match it.attempt.fail(io, shared, why, may_retry) {
            Ok(()) => {
                (it.is_sent, it.awaits_response, it.has_ended) = (false, false, false);
                it.up.clear();
                (Phase::Exchange(it), true)
            }
            Err(why) => self.refuse(io, shared, it, why),
        }
    }

    /// Sends a request again that a backend has not processed, even one that is not idempotent (RFC
    /// 9113 §8.7), if all of it is here.
    pub(super) fn retry_unprocessed(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        mut it: Box<Exchange>,
        is_refused: bool,
    ) -> Step {
        let how = (is_refused, it.may_replay());
        match it.attempt.on_unprocessed(io, shared, how) {
            Ok(()) => {
                (it.is_sent, it.awaits_response, it.has_ended) = (false, false, false);
                it.up.clear();
                let coding = it.request.coding();
                it.upload.rewind(&mut self.input, coding);
                (Phase::Exchange(it), true)
            }
            Err(why) => self.refuse(io, shared, it, why),
        }
    }

    /// Handles the end of the backend's stream.
    pub(super) fn lost_backend(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        it: Box<Exchange>,
        reason: CloseReason,
    ) -> Step {
        if it.attempt.is_connecting() {
            return self.retry(io, shared, it, (refusal_of(reason), Leave::Gone));
        }
        if it.response.is_none() && it.down.is_empty() {
            return self.retry(io, shared, it, (Refusal::NoResponse, Leave::Gone));
        }
        // The rest of a response may have come before a reset.
        let Some(link) = it.attempt.link() else {
            return self.cut_short(io, shared, it);
        };
        let (phase, _) = match it.response {
            None => self.read_response(io, shared, it, link),
            Some(_) => (Phase::Exchange(it), false),
        };
        let Phase::Exchange(mut it) = phase else {
            return (phase, true);
        };
        let (phase, goes_on) = match it.response {
            None => {
                let why = (Refusal::BadResponse, Leave::Gone);
                return self.retry(io, shared, it, why);
            }
            Some(_) => {
                it.up.clear();
                self.download(io, shared, it, link)
            }
        };
        match phase {
            // The client blocks the rest of the response, which is completely buffered.
            Phase::Exchange(it) if it.download.is_fed(&it.down, it.has_ended) => {
                (Phase::Exchange(it), false)
            }
            Phase::Exchange(it) => self.cut_short(io, shared, it),
            phase => (phase, goes_on),
        }
    }

    /// Handles the timeout of the event that the request waits for.
    pub(super) fn exchange_late(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        mut it: Box<Exchange>,
    ) -> Step {
        if it.attempt.is_queued() {
            shared.counters.queue_timeouts += 1;
            return self.refuse(io, shared, it, Refusal::QueueTimeout);
        }
        if it.attempt.is_connecting() {
            return self.retry(io, shared, it, (Refusal::ConnectTimeout, Leave::Abort));
        }
        if it.response.is_none() && it.awaits_response {
            return self.response_late(io, shared, it);
        }
        let look = self.look(io, &it);
        if it.pace.is_too_slow(io.now_us(), look, &shared.config) {
            shared.on_slow_client(io.now_us(), self.client);
            return match it.response {
                None => self.refuse(io, shared, it, Refusal::RequestTimeout),
                Some(_) => self.cut_short(io, shared, it),
            };
        }
        let backend = it.attempt.link().map(|link| link.stream);
        let times = (
            it.idle_timeout(&shared.config),
            pace::look_interval(&shared.config),
        );
        if !self.is_idle_for(io, times, backend) {
            return (Phase::Exchange(it), false);
        }
        match it.response {
            // The backend takes no more of the request.
            None if !it.up.is_empty() => self.response_late(io, shared, it),
            None => self.refuse(io, shared, it, Refusal::RequestTimeout),
            Some(_) => self.cut_short(io, shared, it),
        }
    }

    /// Ends the request because its backend is too slow.
    fn response_late(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        mut it: Box<Exchange>,
    ) -> Step {
        let why = (Refusal::ResponseTimeout, Leave::Abort);
        let failed = it.attempt.fail(io, shared, why, false);
        self.refuse(io, shared, it, failed.err().unwrap_or(why.0))
    }

    /// Answers a request in the place of a backend.
    pub(super) fn refuse(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        mut it: Box<Exchange>,
        why: Refusal,
    ) -> Step {
        let backend = it.attempt.backend(shared);
        it.attempt.leave(io, shared, Leave::Abort);
        let is_whole = !it.request.has_body() || it.upload.is_done();
        let closes = shared.is_draining || !it.request.persists || !is_whole;
        it.note.on_first_byte(io.now_us());
        let is_head = it.request.is_head;
        let name = backend.as_ref().map(|(name, _)| &**name);
        let status = why.status().as_u16();
        self.end_exchange(io, shared, *it, (Some(status), name, false));
        self.begin_answer(io, shared, why, (is_head, closes))
    }

    /// Answers a request whose head cannot be parsed.
    pub(super) fn refuse_head(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        why: Refusal,
    ) -> Step {
        self.requests += 1;
        shared.counters.requests += 1;
        let bytes = without_empty_lines(self.input.bytes());
        let is_head = bytes.starts_with(b"HEAD ");
        let note = Note::new(shared, io.now_us(), &self.logged(bytes), None);
        let outcome = self.outcome(io, why.status().as_u16());
        note.end(shared, io.now_us(), &outcome);
        self.begin_answer(io, shared, why, (is_head, true))
    }

    fn begin_answer(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        why: Refusal,
        (is_head, closes): (bool, bool),
    ) -> Step {
        shared.count_refusal(why);
        answer::write(why, is_head, closes, self.output.tail());
        self.arm_idle(io, shared.config.idle_timeout, None);
        (Phase::Answer { closes }, true)
    }
}

/// The beginning of a client's first bytes.
enum Preface {
    Other,
    Partial,
    /// That of HTTP/2.
    Whole,
}

const BAD_REQUEST: Refusal = Refusal::Request(http::StatusCode::BAD_REQUEST);
