//! One request to the origin, and its answer on the way into segments.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::header::{
    ACCEPT_ENCODING, ACCEPT_RANGES, CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_ENCODING,
    CONTENT_LANGUAGE, CONTENT_RANGE, CONTENT_TYPE, EXPIRES, HeaderName, HeaderValue,
    IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, LAST_MODIFIED, LOCATION, RANGE, USER_AGENT, VARY,
    VIA,
};
use http::{HeaderMap, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot, watch};
use tokio::time::timeout;

use crate::disk::Disk;
use crate::failure::Failure;
use crate::freshness::Freshness;
use crate::message::{MESSAGE_BYTES_MAX, Refusal};
use crate::store::{Meta, VersionId};
use crate::upstream::{OriginUrl, Upstream};
use crate::validator::Validators;
use crate::vary::{Names, Variant};

/// How often something is written again after room was made for it.
const ROOM_MADE_MAX: u32 = 3;

/// What is to be asked for, and where it goes.
pub(crate) struct Order {
    /// The version that it becomes a part of, or that it becomes if it is another than is known.
    pub(crate) id: VersionId,
    /// Of all transfers.
    pub(crate) number: u64,
    pub(crate) upstream: Arc<Upstream>,
    pub(crate) target: String,
    pub(crate) variant: Variant,
    pub(crate) disk: Disk,
    pub(crate) segment_bytes: u64,
    pub(crate) what: What,
    /// No segment is fetched from this one on, for now. It ends when the other end is dropped.
    pub(crate) limit: watch::Receiver<u64>,
}

pub(crate) enum What {
    /// All of it, unless it is the version with these validators.
    Whole(Option<Validators>),
    /// Some segments of a version.
    Part {
        segments: Range<u64>,
        size_bytes: u64,
        validators: Validators,
        /// They can be asked for without the others; if not, these are all.
        takes_ranges: bool,
    },
}

/// What becomes of transfers.
pub(crate) enum Event {
    /// The answer to [`What::Whole`] has begun, or there is none. If it is an object, it goes on.
    Head {
        id: VersionId,
        head: Result<Head, Failure>,
    },
    /// So much of a version is about to be written; it is when this has been answered, and given up
    /// if it is not.
    Room {
        id: VersionId,
        bytes: u64,
        reply: oneshot::Sender<()>,
    },
    /// It could not be written.
    Unwritten { id: VersionId, bytes: u64 },
    /// A segment has been written.
    Stored {
        id: VersionId,
        number: u64,
        segment: u64,
        bytes: u64,
        /// See [`Disk::write_segment`].
        write: u64,
    },
    /// What is known of a version has been written down, or that cannot be.
    Recorded {
        id: VersionId,
        result: io::Result<()>,
    },
    /// There is no room on the disk; it is tried again when this has been answered.
    Full(Full),
    /// Room that was made on the disk has helped, or has not.
    RoomMade { has_helped: bool },
    /// All of it has come, of this length in bytes, or no more comes.
    Ended {
        id: VersionId,
        number: u64,
        result: Result<u64, Failure>,
    },
    /// Time has passed since a failure.
    Again(VersionId),
}

/// Something could not be written.
#[derive(Debug)]
pub(crate) struct Full {
    /// The version whose content it is; `None` for what is known of a version.
    pub(crate) content_of: Option<VersionId>,
    pub(crate) made: oneshot::Sender<()>,
}

/// An answer, as far as its head tells.
#[derive(Debug)]
pub(crate) enum Head {
    /// The version that is known.
    Same(Renewal),
    Object(Meta),
    /// A redirect, or that there is none.
    Refused(Refusal, Freshness, Names),
}

impl Head {
    /// The fields of requests by which the origin selects what it answers.
    pub(crate) fn varies_by(&self) -> Names {
        let fields = match self {
            Head::Object(meta) => return meta.varies_by(),
            Head::Same(renewal) => &renewal.fields,
            Head::Refused(_, _, names) => return *names,
        };
        names(fields)
    }
}

/// Those of its fields `Vary` that may select.
fn names(fields: &HeaderMap) -> Names {
    let vary = fields.get_all(VARY).into_iter();
    Names::of(vary.filter_map(|value| value.to_str().ok()))
}

/// What a 304 says of a version that is known.
#[derive(Debug)]
pub(crate) struct Renewal {
    fields: HeaderMap,
    asked_s: u64,
    answered_s: u64,
}

impl Renewal {
    /// Puts its fields in the place of those of the same names; what it does not say stays as it
    /// was (RFC 9111 §3.2).
    pub(crate) fn apply(mut self, meta: &mut Meta) {
        let modified = meta.validators.last_modified.iter();
        let modified = modified.map(|value| (LAST_MODIFIED.as_str(), value.as_str()));
        let caching = meta.caching.iter();
        let caching = caching.map(|(name, value)| (name.as_str(), value.as_str()));
        let mut kept = HeaderMap::new();
        for (name, value) in modified.chain(caching) {
            let field = (HeaderName::try_from(name), HeaderValue::from_str(value));
            if let (Ok(name), Ok(value)) = field
                && !self.fields.contains_key(&name)
            {
                kept.append(name, value);
            }
        }
        for (name, value) in &kept {
            self.fields.append(name, value.clone());
        }
        // It is of the answer that is kept, and that is a 200.
        meta.freshness = Freshness::of(StatusCode::OK, &self.fields, self.asked_s, self.answered_s);
        meta.caching = chosen(&self.fields, &CACHING);
    }
}

/// The values of these fields, as far as they are text.
fn chosen(fields: &HeaderMap, names: &[HeaderName]) -> Vec<(String, String)> {
    let values = names.iter().flat_map(|name| {
        let values = fields.get_all(name).into_iter();
        values.filter_map(move |value| Some((name.to_string(), value.to_str().ok()?.to_owned())))
    });
    values.collect()
}

/// Fields for clients: about the content, and about caching.
const CONTENT: [HeaderName; 4] = [
    CONTENT_TYPE,
    CONTENT_ENCODING,
    CONTENT_LANGUAGE,
    CONTENT_DISPOSITION,
];
const CACHING: [HeaderName; 3] = [CACHE_CONTROL, EXPIRES, VARY];

/// Longest `Location` that is passed on, in bytes: more than any client follows, and it has to fit
/// into a message.
const LOCATION_BYTES_MAX: usize = 8 << 10;

const _: () = assert!(
    2 * LOCATION_BYTES_MAX < MESSAGE_BYTES_MAX,
    "also where JSON writes each byte as two"
);

/// Statuses of refusals that are about the target, and say the same to every client.
const PASSED_ON: [u16; 8] = [400, 402, 403, 404, 409, 410, 429, 451];
const REDIRECTS: [u16; 5] = [301, 302, 303, 307, 308];

/// Carries an order out, and tells what becomes of it.
pub(crate) async fn run(mut order: Order, events: mpsc::Sender<Event>) {
    let (id, number) = (order.id, order.number);
    if let Some(result) = order.carry_out(&events).await {
        // There is no reader when the fetcher is about to end.
        let _ = events.send(Event::Ended { id, number, result }).await;
    }
}

/// What comes, unless no client wants it any more before that.
async fn wanted<T>(
    limit: &watch::Receiver<u64>,
    coming: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let mut limit = limit.clone();
    let given_up = async { while limit.changed().await.is_ok() {} };
    tokio::select! {
        came = coming => came,
        () = given_up => Err(Failure::Stopped),
    }
}

impl Order {
    /// `None` if the head of the answer has said all.
    async fn carry_out(&mut self, events: &mpsc::Sender<Event>) -> Option<Result<u64, Failure>> {
        let what = std::mem::replace(&mut self.what, What::Whole(None));
        match what {
            What::Whole(known) => {
                let answered = wanted(&self.limit, async {
                    let slot = self.upstream.slot().await?;
                    let (head, body) = whole(self, known).await?;
                    Ok((head, body.map(|body| (body, slot))))
                });
                let (head, body) = match answered.await {
                    Ok((head, body)) => (Ok(head), body),
                    Err(failure) => (Err(failure), None),
                };
                let id = self.id;
                let _ = events.send(Event::Head { id, head }).await;
                let (body, slot) = body?;
                let expected = body.size_hint().exact();
                Some(self.take(body, 0, expected, slot, events).await)
            }
            What::Part {
                segments,
                size_bytes,
                validators,
                takes_ranges,
            } => {
                let answered = wanted(&self.limit, async {
                    let slot = self.upstream.slot().await?;
                    let (body, expected) = if takes_ranges {
                        part(self, &segments, size_bytes, &validators).await?
                    } else {
                        whole_again(self, size_bytes, &validators).await?
                    };
                    Ok((body, expected, slot))
                });
                Some(match answered.await {
                    Ok((body, expected, slot)) => {
                        let first = segments.start;
                        self.take(body, first, Some(expected), slot, events).await
                    }
                    Err(failure) => Err(failure),
                })
            }
        }
    }
}

fn request_fields(variant: &Variant) -> HeaderMap {
    let mut fields = HeaderMap::new();
    for (name, value) in variant.fields() {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::from_str(value)) {
            fields.insert(name, value);
        }
    }
    // One answer is good for clients of all codings.
    fields.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    fields.insert(
        USER_AGENT,
        HeaderValue::from_static(concat!("splitway/", env!("CARGO_PKG_VERSION"))),
    );
    fields.insert(VIA, HeaderValue::from_static("1.1 splitway"));
    fields
}

async fn whole(
    order: &Order,
    known: Option<Validators>,
) -> Result<(Head, Option<Incoming>), Failure> {
    let mut fields = request_fields(&order.variant);
    let known = known.unwrap_or_default();
    for (name, value) in [
        (IF_NONE_MATCH, known.etag.as_deref()),
        (IF_MODIFIED_SINCE, known.last_modified.as_deref()),
    ] {
        if let Some(value) = value.and_then(|value| HeaderValue::from_str(value).ok()) {
            fields.insert(name, value);
        }
    }
    let is_conditional =
        fields.contains_key(IF_NONE_MATCH) || fields.contains_key(IF_MODIFIED_SINCE);
    let asked_s = unix_time_s();
    let answer = order.upstream.get(&order.target, &fields).await?;
    let url = order.upstream.url();
    let head = judge(&answer, url, is_conditional, asked_s, unix_time_s())?;
    let body = matches!(head, Head::Object(_)).then(|| answer.into_body());
    Ok((head, body))
}

/// What an answer to a GET means.
fn judge(
    answer: &Response<Incoming>,
    url: &OriginUrl,
    is_conditional: bool,
    asked_s: u64,
    answered_s: u64,
) -> Result<Head, Failure> {
    let (status, fields) = (answer.status(), answer.headers());
    let freshness = Freshness::of(status, fields, asked_s, answered_s);
    match status.as_u16() {
        200 => Ok(Head::Object(Meta {
            size_bytes: answer.body().size_hint().exact(),
            validators: Validators::of(fields, answered_s),
            takes_ranges: fields
                .get(ACCEPT_RANGES)
                .is_some_and(|units| units.as_bytes().eq_ignore_ascii_case(b"bytes")),
            freshness,
            content: chosen(fields, &CONTENT),
            caching: chosen(fields, &CACHING),
        })),
        304 if is_conditional => Ok(Head::Same(Renewal {
            fields: fields.clone(),
            asked_s,
            answered_s,
        })),
        status if REDIRECTS.contains(&status) => {
            let location = fields.get(LOCATION).and_then(|value| value.to_str().ok());
            let location = location
                .ok_or_else(|| Failure::Useless(format!("it answers {status} without Location")))?;
            if location.len() > LOCATION_BYTES_MAX {
                let bytes = location.len();
                let why = format!("it answers {status} with a Location of {bytes} bytes");
                return Err(Failure::Useless(why));
            }
            let refusal = Refusal {
                status,
                location: Some(url.for_clients(location)),
            };
            Ok(Head::Refused(refusal, freshness, names(fields)))
        }
        // It is about how often it is asked, and not about what is there.
        429 if is_conditional => Err(Failure::Status(429)),
        status if PASSED_ON.contains(&status) => {
            let refusal = Refusal {
                status,
                location: None,
            };
            Ok(Head::Refused(refusal, freshness, names(fields)))
        }
        status @ 400.. => Err(Failure::Status(status)),
        status => Err(Failure::Useless(format!("it answers a GET with {status}"))),
    }
}

/// Asks for some segments, and nothing of another version. Returns the body, and its length in
/// bytes.
async fn part(
    order: &Order,
    segments: &Range<u64>,
    size_bytes: u64,
    validators: &Validators,
) -> Result<(Incoming, u64), Failure> {
    let start = segments.start * order.segment_bytes;
    let end = segments
        .end
        .saturating_mul(order.segment_bytes)
        .min(size_bytes);
    let last = end - 1;
    let changed = |why: String| Failure::OtherVersion(why);
    let value =
        |text: &str| HeaderValue::from_str(text).map_err(|_| changed("its tag is none".to_owned()));
    let strong = validators
        .strong()
        .ok_or_else(|| changed("nothing tells versions apart".to_owned()))?;
    let mut fields = request_fields(&order.variant);
    fields.insert(RANGE, value(&format!("bytes={start}-{last}"))?);
    fields.insert(IF_RANGE, value(strong)?);
    let answer = order.upstream.get(&order.target, &fields).await?;
    match answer.status().as_u16() {
        206 => {}
        status @ 500.. => return Err(Failure::Status(status)),
        status => {
            return Err(changed(format!(
                "it answers bytes {start}-{last} of {strong} with {status}"
            )));
        }
    }
    let range = answer.headers().get(CONTENT_RANGE);
    let range = range.and_then(|value| value.to_str().ok()).unwrap_or("-");
    if range != format!("bytes {start}-{last}/{size_bytes}") {
        let why = format!("it answers bytes {start}-{last}/{size_bytes} with {range}");
        return Err(changed(why));
    }
    if validators.contradicts(&Validators::of(answer.headers(), unix_time_s())) {
        return Err(changed("a part of it says so".to_owned()));
    }
    Ok((answer.into_body(), end - start))
}

/// Asks for all of a version again of an origin that gives no parts. Returns the body, and its
/// length in bytes.
async fn whole_again(
    order: &Order,
    size_bytes: u64,
    validators: &Validators,
) -> Result<(Incoming, u64), Failure> {
    let answer = order
        .upstream
        .get(&order.target, &request_fields(&order.variant))
        .await?;
    let changed = |why: String| Err(Failure::OtherVersion(why));
    match answer.status().as_u16() {
        200 => {}
        status @ 500.. => return Err(Failure::Status(status)),
        status => return changed(format!("it answers {status}")),
    }
    let size = answer.body().size_hint().exact();
    if size.is_some_and(|it| it != size_bytes) {
        return changed(format!("it has another length than {size_bytes} bytes"));
    }
    let now = Validators::of(answer.headers(), unix_time_s());
    if now.strong().is_none() || now.strong() != validators.strong() {
        return changed("it has another tag or date".to_owned());
    }
    Ok((answer.into_body(), size_bytes))
}

/// Pieces of a segment.
#[derive(Default)]
struct Filling {
    pieces: Vec<Bytes>,
    bytes: u64,
}

impl Order {
    /// Writes a body of which so many bytes are expected into segments, from this one on. Returns
    /// its length in bytes.
    async fn take(
        &mut self,
        mut body: Incoming,
        mut segment: u64,
        expected: Option<u64>,
        slot: OwnedSemaphorePermit,
        events: &mpsc::Sender<Event>,
    ) -> Result<u64, Failure> {
        let mut slot = Some(slot);
        let first = segment;
        let is_over = |total| expected.is_some_and(|expected| total >= expected);
        let idle = self.upstream.timeouts.idle;
        let mut filling = Filling::default();
        let mut total = 0;
        loop {
            if !is_over(total) {
                self.may_go_on(segment, segment > first, &mut slot).await?;
            }
            // What is being written is always written to its end, and reported: nothing lies there
            // that the store does not know of.
            let frame = wanted(&self.limit, async { Ok(timeout(idle, body.frame()).await) });
            let frame = match frame.await? {
                Err(_) => {
                    let why = format!("nothing has come for {idle:?} after {total} bytes");
                    return Err(Failure::Late(why));
                }
                Ok(None) => break,
                Ok(Some(Err(error))) => {
                    let reason = Failure::broken(&error);
                    return Err(Failure::Cut(format!("after {total} bytes: {reason}")));
                }
                Ok(Some(Ok(frame))) => frame,
            };
            let Ok(mut data) = frame.into_data() else {
                continue;
            };
            total += data.len() as u64;
            if let Some(expected) = expected.filter(|&expected| total > expected) {
                // Nothing of it is stored: there is no telling where it belongs.
                let why = format!("more than {expected} bytes have come");
                return Err(Failure::Cut(why));
            }
            while !data.is_empty() {
                self.may_go_on(segment, segment > first, &mut slot).await?;
                let room = self.segment_bytes - filling.bytes;
                let piece = data.split_to((data.len() as u64).min(room) as usize);
                filling.bytes += piece.len() as u64;
                filling.pieces.push(piece);
                if filling.bytes == self.segment_bytes {
                    self.store(segment, std::mem::take(&mut filling), events)
                        .await?;
                    segment += 1;
                }
            }
        }
        if let Some(expected) = expected.filter(|&expected| expected != total) {
            let why = format!("{total} bytes have come in the place of {expected}");
            return Err(Failure::Cut(why));
        }
        if filling.bytes > 0 {
            self.store(segment, filling, events).await?;
        }
        Ok(total)
    }

    /// Waits until this segment is to be fetched.
    async fn may_go_on(
        &mut self,
        segment: u64,
        has_begun: bool,
        slot: &mut Option<OwnedSemaphorePermit>,
    ) -> Result<(), Failure> {
        while segment >= *self.limit.borrow_and_update() {
            // At the start it has only not been said yet how far to go; later it may take long
            // until a client reads on.
            if has_begun {
                *slot = None;
            }
            if self.limit.changed().await.is_err() {
                return Err(Failure::Stopped);
            }
        }
        if slot.is_none() {
            *slot = Some(wanted(&self.limit, self.upstream.slot()).await?);
        }
        Ok(())
    }

    async fn store(
        &self,
        segment: u64,
        filling: Filling,
        events: &mpsc::Sender<Event>,
    ) -> Result<(), Failure> {
        let Filling { pieces, bytes } = filling;
        let (id, (reply, has_room)) = (self.id, oneshot::channel());
        let room = Event::Room { id, bytes, reply };
        events.send(room).await.map_err(|_| Failure::Stopped)?;
        has_room.await.map_err(|_| Failure::Stopped)?;
        let (disk, writer) = (self.disk.clone(), self.number);
        let write = move || disk.write_segment(segment, writer, &pieces);
        let write = match written(write, Some(id), events).await {
            Ok(write) => write,
            Err(error) => {
                let _ = events.send(Event::Unwritten { id, bytes }).await;
                return Err(Failure::unwritten(self.disk.directory(), &error));
            }
        };
        let stored = Event::Stored {
            id,
            number: self.number,
            segment,
            bytes,
            write,
        };
        events.send(stored).await.map_err(|_| Failure::Stopped)
    }
}

/// Writes to the cache directory, in another thread: content of a version, or what is known of one.
/// If there is no room on the disk, others make some first.
pub(crate) async fn written<T: Send + 'static>(
    write: impl Fn() -> io::Result<T> + Send + Sync + 'static,
    content_of: Option<VersionId>,
    events: &mpsc::Sender<Event>,
) -> io::Result<T> {
    let write = Arc::new(write);
    let mut room_made = 0;
    loop {
        let write = Arc::clone(&write);
        let written = tokio::task::spawn_blocking(move || write()).await;
        match written.unwrap_or_else(|error| Err(io::Error::other(error))) {
            Err(error) if is_full(&error) && room_made < ROOM_MADE_MAX => {
                room_made += 1;
                let (made, is_made) = oneshot::channel();
                let full = Full { content_of, made };
                let _ = events.send(Event::Full(full)).await;
                if is_made.await.is_err() {
                    return Err(error);
                }
            }
            written => {
                if room_made > 0 {
                    let has_helped = written.is_ok();
                    let _ = events.send(Event::RoomMade { has_helped }).await;
                }
                return written;
            }
        }
    }
}

/// Writes to the cache directory, in another thread, and has nothing make room for it.
pub(crate) async fn written_if_there_is_room<T: Send + 'static>(
    write: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let written = tokio::task::spawn_blocking(write).await;
    written.unwrap_or_else(|error| Err(io::Error::other(error)))
}

fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

/// Seconds since the epoch.
pub(crate) fn unix_time_s() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs()
}
