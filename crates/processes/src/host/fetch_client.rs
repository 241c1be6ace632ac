//! The host process's end of the socket to the fetcher. A new fetcher gets all pending requests
//! again.

use std::collections::{HashMap, VecDeque};
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use failure::Failure;
use http::{HeaderValue, StatusCode};
use origin::message::{self, Answer, HostRequest, MESSAGE_BYTES_MAX, Refusal};
use rustix::event::epoll::{self, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use server::{CacheStatus, Object, OriginEvent, Origins, Passed, Ticket};

use config::origin_place::CachePlace;

/// The version that a client reads is unavailable.
const LOST: OriginEvent = OriginEvent::Lost {
    status: StatusCode::BAD_GATEWAY,
};

/// Passes a fetcher's socket and the place of the cache to [`FetchClient`].
#[derive(Clone, Debug)]
pub struct FetcherSlot {
    left: Arc<Mutex<Left>>,
    /// Whether a socket is in the slot, and the wakeup readable.
    is_taken: Arc<AtomicBool>,
    wakeup: Arc<OwnedFd>,
}

/// Contents of the slot.
#[derive(Debug, Default)]
struct Left {
    socket: Option<OwnedFd>,
    cache: Option<CachePlace>,
}

impl FetcherSlot {
    fn left(&self) -> MutexGuard<'_, Left> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes the socket of a new fetcher, which replaces the current one.
    pub fn put(&self, socket: OwnedFd) {
        self.left().socket = Some(socket);
        // The counter is far from its maximum, and only this end writes to it.
        let _ = rustix::io::write(&*self.wakeup, &1u64.to_ne_bytes());
        // Stored last: a reader that sees it clears the wakeup.
        self.is_taken.store(true, Ordering::Release);
    }

    /// Sets the directory of the cache.
    pub fn show(&self, cache: &CachePlace) {
        self.left().cache = Some(cache.clone());
    }

    fn take(&self) -> Option<OwnedFd> {
        if !self.is_taken.swap(false, Ordering::Acquire) {
            return None;
        }
        let _ = rustix::io::read(&*self.wakeup, &mut [0u8; 8]);
        self.left().socket.take()
    }
}

/// A request that is not finished.
#[derive(Debug)]
struct Open {
    origin: Arc<str>,
    target: String,
    /// Request fields that may select a variant.
    fields: Vec<(String, String)>,
    /// Directory of the version that the server knows.
    directory: Option<String>,
    /// Segments that it needs; it waits for the first.
    wants: Option<Range<u64>>,
}

impl Open {
    fn ask(&self, ticket: u64) -> HostRequest {
        let (origin, target) = (self.origin.to_string(), self.target.clone());
        match &self.directory {
            None => HostRequest::Object {
                ticket,
                origin,
                target,
                fields: self.fields.clone(),
            },
            Some(directory) => HostRequest::Again {
                ticket,
                origin,
                target,
                directory: directory.clone(),
            },
        }
    }
}

/// See the [module documentation](self).
#[derive(Debug)]
pub struct FetchClient {
    slot: FetcherSlot,
    /// Readable while there are events or a new fetcher.
    wake: OwnedFd,
    socket: Option<OwnedFd>,
    /// Socket events that `wake` watches.
    watched: EventFlags,
    /// Requests that the socket has not taken.
    unsent: VecDeque<HostRequest>,
    open: HashMap<u64, Open>,
    news: VecDeque<(Ticket, OriginEvent)>,
    buffer: Vec<u8>,
}

impl FetchClient {
    /// Starts without a fetcher.
    pub fn new() -> Result<(Self, FetcherSlot), Failure> {
        let failed = |errno| Failure::broken("waiting for the fetcher", errno);
        let wakeup = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(failed)?;
        let wake = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        epoll::add(&wake, &wakeup, epoll::EventData::new_u64(0), EventFlags::IN).map_err(failed)?;
        let slot = FetcherSlot {
            left: Arc::default(),
            is_taken: Arc::default(),
            wakeup: Arc::new(wakeup),
        };
        let fetch_client = Self {
            slot: slot.clone(),
            wake,
            socket: None,
            watched: EventFlags::empty(),
            unsent: VecDeque::new(),
            open: HashMap::new(),
            news: VecDeque::new(),
            buffer: vec![0; MESSAGE_BYTES_MAX],
        };
        Ok((fetch_client, slot))
    }

    /// Takes the socket of a new fetcher, if any, and repeats all open requests to it.
    fn meet(&mut self) {
        let Some(socket) = self.slot.take() else {
            return;
        };
        self.hang_up();
        let data = epoll::EventData::new_u64(0);
        if let Err(errno) = epoll::add(&self.wake, &socket, data, EventFlags::IN) {
            tracing::error!("watching the fetcher: {errno}");
            return;
        }
        self.socket = Some(socket);
        self.watched = EventFlags::IN;
        let open = self.open.iter();
        let asks = open.map(|(&ticket, open)| open.ask(ticket));
        self.unsent = asks.chain([HostRequest::Settled]).collect();
    }

    /// Drops the fetcher's socket and the unsent requests.
    fn hang_up(&mut self) {
        // Others may hold copies of the socket, so closing ours does not suffice.
        if let Some(socket) = self.socket.take() {
            let _ = epoll::delete(&self.wake, &socket);
        }
        self.unsent.clear();
    }

    fn say(&mut self, ask: HostRequest) {
        if self.socket.is_some() {
            self.unsent.push_back(ask);
            self.flush();
        }
    }

    fn flush(&mut self) {
        let Some(socket) = &self.socket else {
            return;
        };
        let mut events = EventFlags::IN;
        while let Some(ask) = self.unsent.front() {
            let bytes = serde_json::to_vec(ask).unwrap_or_default();
            match send(socket, &bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(_) => drop(self.unsent.pop_front()),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    events |= EventFlags::OUT;
                    break;
                }
                Err(_) => return self.hang_up(),
            }
        }
        if events == self.watched {
            return;
        }
        self.watched = events;
        let data = epoll::EventData::new_u64(0);
        if let Err(errno) = epoll::modify(&self.wake, socket, data, events) {
            tracing::error!("watching the fetcher: {errno}");
        }
    }

    /// Receives one message; returns false if there is none.
    fn receive(&mut self) -> bool {
        let Some(socket) = &self.socket else {
            return false;
        };
        let bytes = match recv(socket, &mut self.buffer[..], RecvFlags::DONTWAIT) {
            Ok((bytes, _)) if bytes > 0 => bytes.min(self.buffer.len()),
            Err(Errno::INTR) => return true,
            Err(Errno::AGAIN) => return false,
            _ => {
                self.hang_up();
                return false;
            }
        };
        match serde_json::from_slice::<Answer>(&self.buffer[..bytes]) {
            Ok(answer) => self.on_answer(answer),
            Err(error) => tracing::error!("invalid message from the fetcher: {error}"),
        }
        true
    }

    fn on_answer(&mut self, answer: Answer) {
        match answer {
            Answer::Object {
                ticket,
                object,
                how,
            } => self.on_object(ticket, object, how),
            Answer::EarlyHints { ticket, links } => self.on_early_hints(ticket, &links),
            Answer::Segment { ticket, segment } => {
                if let Some(open) = self.open.get_mut(&ticket)
                    && open.wants.as_ref().is_some_and(|it| it.start == segment)
                {
                    open.wants = None;
                    self.news
                        .push_back((Ticket(ticket), OriginEvent::Segment(segment)));
                }
            }
            Answer::Refused {
                ticket,
                refusal,
                how,
            } => {
                let news = refused(&refusal, how).unwrap_or(LOST);
                self.end(ticket, news);
            }
            Answer::Lost { ticket, status } => {
                let status = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY);
                self.end(ticket, OriginEvent::Lost { status });
            }
        }
    }

    /// Passes links on for a request whose response has not begun.
    fn on_early_hints(&mut self, ticket: u64, links: &[String]) {
        let open = self.open.get(&ticket);
        if open.is_none_or(|open| open.directory.is_some()) {
            return;
        }
        let links = links.iter().take(server::EARLY_HINTS_MAX);
        let links: Vec<_> = links
            .filter_map(|link| HeaderValue::from_str(link).ok())
            .collect();
        self.news
            .push_back((Ticket(ticket), OriginEvent::EarlyHints(links)));
    }

    fn end(&mut self, ticket: u64, news: OriginEvent) {
        if self.open.remove(&ticket).is_some() {
            self.news.push_back((Ticket(ticket), news));
        }
    }

    fn on_object(&mut self, ticket: u64, object: message::Object, how: message::CacheStatus) {
        let Some(open) = self.open.get_mut(&ticket) else {
            return;
        };
        let wants = open.wants.clone();
        match &open.directory {
            // Answer of a new fetcher to a repeated request: it continues with the same version.
            Some(known) if *known == object.directory => {
                if let Some(segments) = wants {
                    self.say(HostRequest::Segment {
                        ticket,
                        segment: segments.start,
                        end: segments.end,
                    });
                }
            }
            Some(_) => {
                self.say(HostRequest::Done { ticket });
                self.end(ticket, LOST);
            }
            None => {
                let directory = object.directory.clone();
                match self.object(object, how) {
                    Some(object) => {
                        if let Some(open) = self.open.get_mut(&ticket) {
                            open.directory = Some(directory);
                        }
                        let news = OriginEvent::Object(Box::new(object));
                        self.news.push_back((Ticket(ticket), news));
                    }
                    None => {
                        tracing::error!(ticket, "the fetcher reported an invalid object");
                        self.say(HostRequest::Done { ticket });
                        self.end(ticket, LOST);
                    }
                }
            }
        }
    }

    /// Converts an object for the server; `None` if it is invalid.
    fn object(&self, object: message::Object, how: message::CacheStatus) -> Option<Object> {
        // Only in a directory two levels below the objects of the cache.
        let mut names = object.directory.split('/');
        let is_number =
            |name: &str| !name.is_empty() && name.bytes().all(|it| it.is_ascii_hexdigit());
        if names.next() != Some(origin::OBJECTS)
            || names.clone().count() != 2
            || !names.all(is_number)
        {
            return None;
        }
        Some(Object {
            directory: self
                .slot
                .left()
                .cache
                .as_ref()?
                .directory(&object.directory)
                .ok()?,
            size_bytes: object.size_bytes,
            segment_bytes: NonZeroU64::new(object.segment_bytes)?,
            tag: object.tag,
            last_modified_s: object.last_modified_s,
            passed: Passed {
                fields: object.fields.to_headers()?,
                age_s: Some(object.age_s),
            },
            trailers: object.trailers.to_headers()?,
            present: object.present,
            how: meant(how),
        })
    }
}

/// Converts a cache status for the server.
fn meant(how: message::CacheStatus) -> CacheStatus {
    match how {
        message::CacheStatus::Hit => CacheStatus::Hit,
        message::CacheStatus::Miss => CacheStatus::Miss,
        message::CacheStatus::Expired => CacheStatus::Expired,
        message::CacheStatus::Revalidated => CacheStatus::Revalidated,
        message::CacheStatus::Stale => CacheStatus::Stale,
        message::CacheStatus::Updating => CacheStatus::Updating,
        message::CacheStatus::Bypass => CacheStatus::Bypass,
    }
}

/// Returns the response for the client; `None` if the refusal is invalid.
fn refused(refusal: &Refusal, how: message::CacheStatus) -> Option<OriginEvent> {
    let status = StatusCode::from_u16(refusal.status).ok()?;
    let location = match &refusal.location {
        Some(location) => Some(HeaderValue::from_str(location).ok()?),
        None => None,
    };
    let is_redirect = matches!(refusal.status, 301 | 302 | 303 | 307 | 308);
    let is_error = status.is_client_error() || status.is_server_error();
    let makes_sense = (is_redirect && location.is_some()) || (is_error && location.is_none());
    let fields = refusal.fields.to_headers()?;
    let passed = (!fields.is_empty()).then(|| {
        Box::new(Passed {
            fields,
            age_s: Some(refusal.age_s),
        })
    });
    makes_sense.then_some(OriginEvent::Refused {
        status,
        location,
        passed,
        how: meant(how),
    })
}

impl FetchClient {
    /// Requests segments of a ticket's object, and records that they are wanted. `ask` takes the
    /// ticket, the first segment, and the end of the range.
    fn ask_for(
        &mut self,
        ticket: Ticket,
        segments: Range<u64>,
        ask: fn(u64, u64, u64) -> HostRequest,
    ) {
        let Ticket(ticket) = ticket;
        if let Some(open) = self.open.get_mut(&ticket) {
            let ask = ask(ticket, segments.start, segments.end);
            open.wants = Some(segments);
            self.say(ask);
        }
    }
}

impl Origins for FetchClient {
    fn selecting(&self) -> &'static [&'static str] {
        &origin::SELECTING
    }

    fn ask(
        &mut self,
        ticket: Ticket,
        origin: &Arc<str>,
        target: &str,
        fields: &[(&'static str, String)],
    ) {
        let Ticket(ticket) = ticket;
        // Longer fields select no variant, and would make the message too long.
        let bytes_of = |name: &str| -> usize {
            let lines = fields.iter().filter(|(other, _)| *other == name);
            lines.map(|(_, value)| value.len()).sum()
        };
        let is_short = |&(name, _): &&(&str, String)| bytes_of(name) <= origin::VALUE_BYTES_MAX;
        let fields = fields.iter().filter(is_short);
        let open = Open {
            origin: Arc::clone(origin),
            target: target.to_owned(),
            fields: fields
                .map(|(name, value)| ((*name).to_owned(), value.clone()))
                .collect(),
            directory: None,
            wants: None,
        };
        let ask = open.ask(ticket);
        self.open.insert(ticket, open);
        self.say(ask);
    }

    fn want(&mut self, ticket: Ticket, segments: Range<u64>) {
        self.ask_for(ticket, segments, |ticket, segment, end| {
            HostRequest::Segment {
                ticket,
                segment,
                end,
            }
        });
    }

    fn want_again(&mut self, ticket: Ticket, segments: Range<u64>) {
        self.ask_for(ticket, segments, |ticket, segment, end| {
            HostRequest::Missing {
                ticket,
                segment,
                end,
            }
        });
    }

    fn done(&mut self, ticket: Ticket) {
        let Ticket(ticket) = ticket;
        if self.open.remove(&ticket).is_some() {
            self.say(HostRequest::Done { ticket });
        }
    }

    fn hear(&mut self) -> Option<(Ticket, OriginEvent)> {
        self.meet();
        self.flush();
        while self.news.is_empty() && self.receive() {}
        self.news.pop_front()
    }

    fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netsetup::seqpacket;

    const ORIGIN: &str = "http://a.example";

    fn fetch_client() -> (FetchClient, FetcherSlot) {
        let (fetch_client, slot) = FetchClient::new().unwrap();
        let place = r#"{ "path": "cache", "is_among_files": true }"#;
        slot.show(&serde_json::from_str(place).unwrap());
        (fetch_client, slot)
    }

    fn heard(socket: &OwnedFd) -> Vec<HostRequest> {
        let mut asks = Vec::new();
        let mut buffer = vec![0; MESSAGE_BYTES_MAX];
        while let Ok((bytes, _)) = recv(socket, &mut buffer[..], RecvFlags::DONTWAIT) {
            asks.push(serde_json::from_slice(&buffer[..bytes]).unwrap());
        }
        asks
    }

    fn say(socket: &OwnedFd, answer: &Answer) {
        let bytes = serde_json::to_vec(answer).unwrap();
        send(socket, &bytes, SendFlags::empty()).unwrap();
    }

    fn object(directory: &str) -> message::Object {
        message::Object {
            directory: directory.to_owned(),
            size_bytes: 10,
            segment_bytes: 10,
            tag: 0,
            last_modified_s: None,
            fields: fields("content-type:text/x\nlink:\u{e4}\n"),
            trailers: fields("digest:a\n"),
            age_s: 0,
            present: Vec::new(),
        }
    }

    fn fields(lines: &str) -> origin::Fields {
        serde_json::from_value(lines.into()).unwrap()
    }

    fn told(ticket: u64, object: message::Object) -> Answer {
        let how = message::CacheStatus::Hit;
        Answer::Object {
            ticket,
            object,
            how,
        }
    }

    fn ask(ticket: u64) -> HostRequest {
        HostRequest::Object {
            ticket,
            origin: ORIGIN.to_owned(),
            target: "/x".to_owned(),
            fields: Vec::new(),
        }
    }

    fn again(ticket: u64) -> HostRequest {
        HostRequest::Again {
            ticket,
            origin: ORIGIN.to_owned(),
            target: "/x".to_owned(),
            directory: "objects/ab/cd".to_owned(),
        }
    }

    #[test]
    fn fields_that_are_too_long_together_are_left_out() {
        let (mut fetch_client, slot) = fetch_client();
        let line = |name, bytes| (name, "\"".repeat(bytes));
        let mut fields = vec![line("origin", origin::VALUE_BYTES_MAX)];
        fields.extend((0..1000).map(|_| line("accept", 500)));
        fetch_client.ask(Ticket(1), &ORIGIN.into(), "/x", &fields);
        let (own, fetcher) = seqpacket::pair().unwrap();
        slot.put(own);
        assert_eq!(fetch_client.hear(), None);
        let asks = heard(&fetcher);
        let Some(HostRequest::Object { fields, .. }) = asks.first() else {
            panic!("{asks:?}")
        };
        assert_eq!(fields.len(), 1);
        assert_eq!(fields[0].0, "origin");
    }

    #[test]
    fn another_fetcher_is_asked_for_what_the_one_before_has_not_brought() {
        let (mut fetch_client, slot) = fetch_client();
        for ticket in [1, 2, 3] {
            fetch_client.ask(Ticket(ticket), &ORIGIN.into(), "/x", &[]);
        }
        let (own, first) = seqpacket::pair().unwrap();
        slot.put(own);
        assert_eq!(fetch_client.hear(), None);
        assert_eq!(heard(&first).pop(), Some(HostRequest::Settled));
        for ticket in [1, 2] {
            let object = object("objects/ab/cd");
            say(&first, &told(ticket, object));
            let news = fetch_client.hear();
            assert!(
                matches!(news, Some((_, OriginEvent::Object(_)))),
                "{news:?}"
            );
            fetch_client.want(Ticket(ticket), 0..2);
        }
        fetch_client.done(Ticket(3));
        fetch_client.ask(Ticket(4), &ORIGIN.into(), "/x", &[]);
        drop(first);
        assert_eq!(fetch_client.hear(), None);
        let (own, second) = seqpacket::pair().unwrap();
        slot.put(own);
        assert_eq!(fetch_client.hear(), None);
        let mut asks = heard(&second);
        assert_eq!(asks.pop(), Some(HostRequest::Settled));
        asks.sort_by_key(|ask| format!("{ask:?}"));
        assert_eq!(asks, [again(1), again(2), ask(4)]);
        // One continues with its version; the version of the other is gone.
        for (ticket, directory) in [(1, "objects/ab/cd"), (2, "objects/ab/ef")] {
            let object = object(directory);
            say(&second, &told(ticket, object));
        }
        assert_eq!(fetch_client.hear(), Some((Ticket(2), LOST)));
        let (ticket, segment) = (1, 0);
        let wanted = HostRequest::Segment {
            ticket,
            segment,
            end: 2,
        };
        let expected = [wanted, HostRequest::Done { ticket: 2 }];
        assert_eq!(heard(&second), expected);
        say(&second, &Answer::Segment { ticket, segment });
        assert_eq!(
            fetch_client.hear(),
            Some((Ticket(1), OriginEvent::Segment(0)))
        );
    }

    #[test]
    fn fields_that_a_server_must_not_send_are_refused() {
        let (mut fetch_client, slot) = fetch_client();
        let (own, fetcher) = seqpacket::pair().unwrap();
        slot.put(own);
        for (ticket, lines) in [
            (1, "content-length:7\n"),
            (2, "content-language:a\r\nb: c\n"),
            (3, "connection:close\n"),
            (4, "link"),
        ] {
            fetch_client.ask(Ticket(ticket), &ORIGIN.into(), "/x", &[]);
            let object = message::Object {
                fields: fields(lines),
                ..object("objects/ab/cd")
            };
            say(&fetcher, &told(ticket, object));
            let lost = Some((Ticket(ticket), LOST));
            assert_eq!(fetch_client.hear(), lost, "{lines:?}");
        }
    }

    #[test]
    fn early_hints_come_before_an_object_and_are_bounded() {
        let (mut fetch_client, slot) = fetch_client();
        let (own, fetcher) = seqpacket::pair().unwrap();
        slot.put(own);
        let hints = |ticket, links: &[&str]| Answer::EarlyHints {
            ticket,
            links: links.iter().map(|&link| link.to_owned()).collect(),
        };
        fetch_client.ask(Ticket(1), &ORIGIN.into(), "/x", &[]);
        say(&fetcher, &hints(2, &["</other>"]));
        say(&fetcher, &hints(1, &["</a>", "</b>\r\nA: b", "</c>"]));
        say(&fetcher, &hints(1, &["</d>"; 20]));
        let links = ["</a>", "</c>"].map(HeaderValue::from_static);
        let first = OriginEvent::EarlyHints(links.into());
        assert_eq!(fetch_client.hear(), Some((Ticket(1), first)));
        let links = vec![HeaderValue::from_static("</d>"); server::EARLY_HINTS_MAX];
        let second = OriginEvent::EarlyHints(links);
        assert_eq!(fetch_client.hear(), Some((Ticket(1), second)));
        say(&fetcher, &told(1, object("objects/ab/cd")));
        let heard = fetch_client.hear();
        assert!(
            matches!(heard, Some((Ticket(1), OriginEvent::Object(_)))),
            "{heard:?}"
        );
        say(&fetcher, &hints(1, &["</late>"]));
        assert_eq!(fetch_client.hear(), None);
    }

    #[test]
    fn what_a_fetcher_says_is_believed_only_as_far_as_it_makes_sense() {
        let (mut fetch_client, slot) = fetch_client();
        let (own, fetcher) = seqpacket::pair().unwrap();
        slot.put(own);
        for (ticket, directory) in [
            (1, "objects/../../etc"),
            (2, "elsewhere/ab/cd"),
            (3, "objects"),
            (4, "objects//cd"),
            (5, "/objects/ab/cd"),
            (12, "objectsab/cd/ef"),
            (13, "objects/ab/cd/ef"),
            (14, "objects/ab/"),
            (15, "objects/ab/x"),
        ] {
            fetch_client.ask(Ticket(ticket), &ORIGIN.into(), "/x", &[]);
            let object = object(directory);
            say(&fetcher, &told(ticket, object));
            let lost = Some((Ticket(ticket), LOST));
            assert_eq!(fetch_client.hear(), lost, "{directory}");
        }
        for (ticket, status, location) in [
            (6, 200, None),
            (7, 99, None),
            (8, 302, None),
            (9, 302, Some("a\r\nb")),
            (10, 404, Some("/")),
        ] {
            fetch_client.ask(Ticket(ticket), &ORIGIN.into(), "/x", &[]);
            let location = location.map(str::to_owned);
            let refusal = Refusal {
                status,
                location,
                fields: origin::Fields::default(),
                age_s: 0,
            };
            let how = message::CacheStatus::Miss;
            let answer = Answer::Refused {
                ticket,
                refusal,
                how,
            };
            say(&fetcher, &answer);
            let lost = Some((Ticket(ticket), LOST));
            assert_eq!(fetch_client.hear(), lost, "{status}");
        }
        send(&fetcher, b"nonsense", SendFlags::empty()).unwrap();
        fetch_client.ask(Ticket(11), &ORIGIN.into(), "/x", &[]);
        say(
            &fetcher,
            &Answer::Segment {
                ticket: 11,
                segment: 5,
            },
        );
        say(
            &fetcher,
            &Answer::Lost {
                ticket: 99,
                status: 502,
            },
        );
        let object = object("objects/ab/cd");
        say(&fetcher, &told(11, object));
        let Some((Ticket(11), OriginEvent::Object(object))) = fetch_client.hear() else {
            panic!("it makes sense");
        };
        assert_eq!(object.directory.to_string(), "cache/objects/ab/cd");
        let passed = object.passed.fields.iter();
        let values: Vec<_> = passed
            .map(|(name, value)| (name.as_str(), value.as_bytes()))
            .collect();
        assert_eq!(
            values,
            [("content-type", &b"text/x"[..]), ("link", b"\xe4")]
        );
    }

    #[test]
    fn what_the_socket_does_not_take_at_once_is_said_later() {
        let (mut fetch_client, slot) = fetch_client();
        let (own, fetcher) = seqpacket::pair().unwrap();
        slot.put(own);
        assert_eq!(fetch_client.hear(), None);
        assert_eq!(heard(&fetcher), [HostRequest::Settled]);
        let count = 20_000;
        for ticket in 0..count {
            fetch_client.ask(Ticket(ticket), &ORIGIN.into(), "/x", &[]);
        }
        assert!(!fetch_client.unsent.is_empty(), "it is full");
        let mut asks = 0;
        while asks < count {
            asks += heard(&fetcher).len() as u64;
            assert_eq!(fetch_client.hear(), None);
        }
        assert!(fetch_client.unsent.is_empty());
    }
}
