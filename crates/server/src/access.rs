//! The access log of a server: a record of each completed response.

use std::collections::VecDeque;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use host::app::TlsAgreed;
use http_message::access::{AccessLog, AccessRecord, AccessTls, RequestText};

use crate::exchange::client::Arrival;
use crate::semantics::encoding::Coding;
use crate::semantics::pull::CacheStatus;

/// Access log state of one connection.
#[derive(Debug)]
pub(crate) struct Accesses {
    /// The peer, if it passes on connections or requests of others.
    proxy: Option<IpAddr>,
    /// The client of the request in hand.
    client: SocketAddr,
    connection: u64,
    tls: Option<AccessTls<'static>>,
    /// Number of the request in hand on its connection.
    request: u32,
    /// Content coding of the file for the response in hand.
    coding: Option<Coding>,
    /// Length of the trailers of the response in hand.
    tail_bytes: usize,
    /// Role of the cache in an origin's answer to the request in hand.
    how: Option<CacheStatus>,
    /// When the head of the request in hand was complete, in microseconds.
    begun_us: u64,
    /// Responses that are not complete, in order.
    responses: VecDeque<Response>,
}

/// A response that is not complete.
#[derive(Debug)]
struct Response {
    client: SocketAddr,
    request: u32,
    begun_us: u64,
    first_byte_us: Option<u64>,
    status: u16,
    coding: Option<&'static str>,
    cache: Option<&'static str>,
    /// Offsets of the response and of its body in the stream.
    start: u64,
    body_start: u64,
    /// Length of the trailers behind the body.
    tail_bytes: u64,
    /// Offset of its end in the stream, once the response is queued.
    end: Option<u64>,
    file_bytes: u64,
    /// Site and request.
    text: RequestText,
}

/// A response that begins.
pub(crate) struct Begun<'a> {
    /// The head of the request.
    pub(crate) request: &'a [u8],
    pub(crate) site: Option<&'a dyn fmt::Display>,
    pub(crate) status: u16,
    /// Offset of the response in the stream.
    pub(crate) start: u64,
    pub(crate) head_bytes: usize,
    pub(crate) file_bytes: u64,
}

impl Accesses {
    pub(crate) fn new(connection: u64, arrival: &Arrival, tls: Option<&TlsAgreed>) -> Self {
        let is_proxied = arrival.is_forwarding || arrival.address != arrival.peer;
        Accesses {
            proxy: is_proxied.then_some(arrival.peer.ip()),
            client: arrival.address,
            connection,
            tls: tls.map(|agreed| AccessTls {
                version: agreed.suite.version.name(),
                cipher: agreed.suite.cipher.name(),
                is_resumed: agreed.is_resumed,
            }),
            request: 0,
            coding: None,
            tail_bytes: 0,
            how: None,
            begun_us: 0,
            responses: VecDeque::new(),
        }
    }

    /// Notes a request.
    pub(crate) fn on_request(&mut self, now_us: u64, number: u32) {
        self.request = number;
        self.begun_us = now_us;
        self.how = None;
    }

    /// Notes the client that a proxy names in the request.
    pub(crate) fn on_client(&mut self, client: SocketAddr) {
        self.client = client;
    }

    /// Notes the role of the cache in an origin's answer.
    pub(crate) fn on_how(&mut self, how: CacheStatus) {
        self.how = Some(how);
    }

    /// Notes the content coding of the file for the response.
    pub(crate) fn on_coding(&mut self, coding: Option<Coding>) {
        self.coding = coding;
    }

    /// Notes the length of the trailers of the response.
    pub(crate) fn on_trailers(&mut self, bytes: usize) {
        self.tail_bytes = bytes;
    }

    /// Notes the beginning of a response.
    pub(crate) fn on_response(&mut self, log: &mut AccessLog, begun: &Begun<'_>) {
        let Some(text) = RequestText::new(log, begun.request, begun.site) else {
            return;
        };
        self.responses.push_back(Response {
            client: self.client,
            request: self.request,
            begun_us: self.begun_us,
            first_byte_us: None,
            status: begun.status,
            coding: self.coding.take().map(Coding::name),
            cache: self.how.map(CacheStatus::name),
            start: begun.start,
            body_start: begun.start + begun.head_bytes as u64,
            tail_bytes: std::mem::take(&mut self.tail_bytes) as u64,
            end: None,
            file_bytes: begun.file_bytes,
            text,
        });
    }

    /// Notes the number of queued bytes of the stream; `is_all`: the response is queued completely.
    pub(crate) fn on_queued(&mut self, now_us: u64, queued_bytes: u64, is_all: bool) {
        // Earlier responses are queued completely.
        let Some(response) = self.responses.back_mut().filter(|last| last.end.is_none()) else {
            return;
        };
        if queued_bytes > response.start {
            response.first_byte_us.get_or_insert(now_us);
        }
        response.end = is_all.then_some(queued_bytes);
    }

    /// Notes the number of acknowledged bytes of the stream.
    pub(crate) fn on_acknowledged(
        &mut self,
        log: &mut AccessLog,
        now_us: u64,
        acknowledged: u64,
        retransmissions: u32,
    ) {
        let is_over = |response: &mut Response| response.end.is_some_and(|end| end <= acknowledged);
        while let Some(response) = self.responses.pop_front_if(is_over) {
            self.note(log, now_us, response, acknowledged, retransmissions);
        }
    }

    /// Handles the end of the connection.
    pub(crate) fn on_closed(
        mut self,
        log: &mut AccessLog,
        now_us: u64,
        acknowledged: u64,
        retransmissions: u32,
    ) {
        self.on_acknowledged(log, now_us, acknowledged, retransmissions);
        while let Some(response) = self.responses.pop_front() {
            self.note(log, now_us, response, acknowledged, retransmissions);
        }
    }

    fn note(
        &self,
        log: &mut AccessLog,
        now_us: u64,
        response: Response,
        acknowledged: u64,
        retransmissions: u32,
    ) {
        let is_cut_short = response.end.is_none_or(|end| end > acknowledged);
        let end = response.end.unwrap_or(u64::MAX).min(acknowledged);
        // Only a complete response has all of its trailers.
        let tail_bytes = if is_cut_short { 0 } else { response.tail_bytes };
        let body_bytes = end.saturating_sub(response.body_start + tail_bytes);
        let text = &response.text;
        log.note(&AccessRecord {
            client: response.client,
            proxy: self.proxy,
            connection: self.connection,
            request: response.request,
            ended_us: now_us,
            total_us: now_us.saturating_sub(response.begun_us),
            first_byte_us: response
                .first_byte_us
                .map(|at_us| at_us.saturating_sub(response.begun_us)),
            status: response.status,
            body_bytes,
            offloaded_bytes: response.file_bytes.min(body_bytes),
            retransmissions,
            is_cut_short,
            tls: self.tls,
            coding: response.coding,
            cache: response.cache,
            backend: None,
            retries: 0,
            site: text.site(),
            request_line: text.request_line(),
            host: text.field(0),
            range: text.field(1),
            referer: text.field(2),
            user_agent: text.field(3),
        });
        response.text.release(log);
    }
}
