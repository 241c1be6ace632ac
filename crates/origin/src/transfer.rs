//! One request to the origin, and its response on the way into segments.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::{Buf, Bytes};
use http::header::{
    ACCEPT_ENCODING, ACCEPT_RANGES, CONNECTION, CONTENT_LOCATION, HeaderName, HeaderValue,
    IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, LAST_MODIFIED, LOCATION, RANGE, TE, USER_AGENT,
    VARY, VIA,
};
use http::{HeaderMap, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot, watch};
use tokio::time::timeout;

use crate::content_range::{ContentRange, is_multipart};
use crate::disk::Disk;
use crate::early_hints::Hints;
use crate::failure::Failure;
use crate::fields::{FieldLimits, Fields};
use crate::freshness::Freshness;
use crate::message::{LOCATION_BYTES_MAX, Refusal};
use crate::store::{Meta, VersionId};
use crate::upstream::{OriginUrl, Upstream};
use crate::validator::Validators;
use crate::vary::{Names, Variant};

/// Most repeats of a write after room was made for it.
const ROOM_MADE_MAX: u32 = 3;

/// Most responses in a row that complete no segment; then the whole object is fetched.
const PIECES_MAX: u32 = 16;

/// A request to send, and the destination of its content.
pub(crate) struct Order {
    /// The version whose part it fetches, or the ID of the new version if the origin has another
    /// one.
    pub(crate) id: VersionId,
    /// Number of the transfer, unique within the fetcher.
    pub(crate) number: u64,
    pub(crate) upstream: Arc<Upstream>,
    pub(crate) target: String,
    pub(crate) variant: Variant,
    pub(crate) disk: Disk,
    pub(crate) segment_bytes: u64,
    pub(crate) field_limits: FieldLimits,
    pub(crate) what: What,
    /// The trailers of [`What::Whole`]'s response, once it has ended.
    pub(crate) trailers: Fields,
    /// Segments from this one on are not fetched for now. The transfer ends when the sender is
    /// dropped.
    pub(crate) limit: watch::Receiver<u64>,
}

pub(crate) enum What {
    /// The whole object, unless it is the version with these validators.
    Whole(Option<Validators>),
    /// Some segments of a version.
    Part {
        segments: Range<u64>,
        size_bytes: u64,
        validators: Validators,
        /// Whether the origin serves parts; if not, the segments are all of the version.
        takes_ranges: bool,
    },
}

/// Progress of a transfer.
pub(crate) enum Event {
    /// Result of [`What::Whole`]'s response head. If it is an object, the transfer goes on.
    Head {
        id: VersionId,
        head: Result<Head, Failure>,
    },
    /// Links of an interim response to [`What::Whole`].
    EarlyHints { id: VersionId, links: Vec<String> },
    /// Requests room to write `bytes` of a version. The write follows the reply, and is abandoned
    /// if the sender is dropped.
    Room {
        id: VersionId,
        bytes: u64,
        reply: oneshot::Sender<()>,
    },
    /// The write failed.
    Unwritten { id: VersionId, bytes: u64 },
    /// A segment was written.
    Stored {
        id: VersionId,
        number: u64,
        segment: u64,
        bytes: u64,
        /// See [`Disk::write_segment`].
        write: u64,
    },
    /// Result of writing a version's metadata.
    Recorded {
        id: VersionId,
        result: io::Result<()>,
    },
    /// The disk is full; the write is repeated after the reply.
    Full(Full),
    /// Whether the write succeeded after room was made on the disk.
    RoomMade { has_helped: bool },
    /// The transfer ended, with the length of its content in bytes, or failed.
    Ended {
        id: VersionId,
        number: u64,
        result: Result<u64, Failure>,
        trailers: Fields,
    },
    /// The pause after a failure is over.
    Again(VersionId),
}

/// A write that found the disk full.
#[derive(Debug)]
pub(crate) struct Full {
    /// The version whose content is written; `None` for metadata.
    pub(crate) content_of: Option<VersionId>,
    pub(crate) made: oneshot::Sender<()>,
}

/// The result of a response head.
#[derive(Debug)]
pub(crate) enum Head {
    /// The known version is still current.
    Same(Renewal),
    Object(Meta),
    /// A redirect or an error for the client.
    Refused(Refusal, Freshness, Names),
}

impl Head {
    /// The request fields by which the origin selects its response.
    pub(crate) fn varies_by(&self) -> Names {
        let fields = match self {
            Head::Object(meta) => return meta.varies_by(),
            Head::Same(renewal) => &renewal.all,
            Head::Refused(_, _, names) => return *names,
        };
        names(fields)
    }
}

/// The selecting fields that `Vary` names.
fn names(fields: &HeaderMap) -> Names {
    let vary = fields.get_all(VARY).into_iter();
    Names::of(vary.filter_map(|value| value.to_str().ok()))
}

/// A 304 for a known version.
#[derive(Debug)]
pub(crate) struct Renewal {
    all: HeaderMap,
    asked_s: u64,
    answered_s: u64,
}

impl Renewal {
    /// Replaces the stored fields that the 304 has; others stay (RFC 9111 §3.2).
    pub(crate) fn apply(mut self, meta: &mut Meta) {
        meta.fields.update(&Fields::of(&self.all, self.answered_s));
        if let Some(modified) = &meta.validators.last_modified
            && !self.all.contains_key(LAST_MODIFIED)
            && let Ok(modified) = HeaderValue::from_str(modified)
        {
            self.all.insert(LAST_MODIFIED, modified);
        }
        meta.fields.add_to(&mut self.all);
        // The lifetime is that of the stored response, a 200.
        meta.freshness = Freshness::of(StatusCode::OK, &self.all, self.asked_s, self.answered_s);
    }
}

/// Statuses that are about the target, and equal for every client.
const PASSED_ON: [u16; 8] = [400, 402, 403, 404, 409, 410, 429, 451];
const REDIRECTS: [u16; 5] = [301, 302, 303, 307, 308];

/// Carries out an order, and reports its progress as events.
pub(crate) async fn run(mut order: Order, events: mpsc::Sender<Event>) {
    let (id, number) = (order.id, order.number);
    if let Some(result) = order.carry_out(&events).await {
        // The receiver is gone when the fetcher is about to end.
        let ended = Event::Ended {
            id,
            number,
            result,
            trailers: order.trailers,
        };
        let _ = events.send(ended).await;
    }
}

/// Awaits a result; fails if no client wants it any more before it comes.
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
    /// Returns `None` if the head was the whole result.
    async fn carry_out(&mut self, events: &mpsc::Sender<Event>) -> Option<Result<u64, Failure>> {
        let what = std::mem::replace(&mut self.what, What::Whole(None));
        match what {
            What::Whole(known) => {
                let answered = wanted(&self.limit, async {
                    let slot = self.upstream.slot().await?;
                    let (head, body) = whole(self, known, events).await?;
                    Ok((head, body.map(|body| (body, slot))))
                });
                let (head, body) = match answered.await {
                    Ok((head, body)) => (Ok(head), body),
                    Err(failure) => (Err(failure), None),
                };
                let length = match &head {
                    Ok(Head::Object(meta)) => meta.size_bytes,
                    _ => None,
                };
                let id = self.id;
                let _ = events.send(Event::Head { id, head }).await;
                let (body, slot) = body?;
                let source = Source::whole(body, length);
                let mut filling = Filling::at(0);
                let mut slot = Some(slot);
                Some(
                    match self.take(source, &mut filling, &mut slot, events).await {
                        Ok(bytes) => self.finish(filling, events).await.map(|()| bytes),
                        Err(failure) => Err(failure),
                    },
                )
            }
            What::Part {
                segments,
                size_bytes,
                validators,
                takes_ranges,
            } => {
                let version = Known {
                    size_bytes,
                    validators,
                };
                Some(
                    self.take_part(&segments, &version, takes_ranges, events)
                        .await,
                )
            }
        }
    }

    /// Fetches some segments of a version, with as many requests as the origin requires.
    async fn take_part(
        &mut self,
        segments: &Range<u64>,
        version: &Known,
        takes_ranges: bool,
        events: &mpsc::Sender<Event>,
    ) -> Result<u64, Failure> {
        let start = segments.start * self.segment_bytes;
        let end = segments.end.saturating_mul(self.segment_bytes);
        let end = end.min(version.size_bytes);
        let mut filling = Filling::at(segments.start);
        let mut slot = None;
        let (mut at, mut pieces) = (start, 0);
        while at < end {
            if slot.is_none() {
                slot = Some(wanted(&self.limit, self.upstream.slot()).await?);
            }
            // An origin may serve less than the requested range, but not indefinitely.
            let source = if takes_ranges && pieces < PIECES_MAX {
                wanted(&self.limit, part(self, at..end, version)).await?
            } else {
                wanted(&self.limit, whole_again(self, at..end, version)).await?
            };
            let segment = filling.segment;
            at += self.take(source, &mut filling, &mut slot, events).await?;
            pieces = if filling.segment > segment {
                0
            } else {
                pieces + 1
            };
        }
        self.finish(filling, events).await?;
        Ok(end - start)
    }
}

fn request_fields(variant: &Variant) -> HeaderMap {
    let mut fields = HeaderMap::new();
    for (name, value) in variant.fields() {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::from_str(value)) {
            fields.insert(name, value);
        }
    }
    // One response serves clients of all codings.
    fields.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    fields.insert(
        USER_AGENT,
        HeaderValue::from_static(concat!("splitway/", env!("CARGO_PKG_VERSION"))),
    );
    fields.insert(VIA, HeaderValue::from_static("1.1 splitway"));
    // RFC 9110 §10.1.4: the connection option goes with it.
    fields.insert(TE, HeaderValue::from_static("trailers"));
    fields.insert(CONNECTION, HeaderValue::from_static("TE"));
    fields
}

async fn whole(
    order: &Order,
    known: Option<Validators>,
    events: &mpsc::Sender<Event>,
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
    let (id, sender) = (order.id, events.clone());
    let hints = Hints::new(move |links| {
        // Hints that come too fast are worth no wait.
        let _ = sender.try_send(Event::EarlyHints { id, links });
    });
    let upstream = &order.upstream;
    let answer = upstream.get(&order.target, &fields, Some(&hints)).await?;
    let url = order.upstream.url();
    let times = (asked_s, unix_time_s());
    let head = judge(&answer, url, is_conditional, times, &order.field_limits)?;
    let body = matches!(head, Head::Object(_)).then(|| answer.into_body());
    Ok((head, body))
}

/// Classifies the response to a GET; the times are those of request and response.
fn judge(
    answer: &Response<Incoming>,
    url: &OriginUrl,
    is_conditional: bool,
    (asked_s, answered_s): (u64, u64),
    limits: &FieldLimits,
) -> Result<Head, Failure> {
    let (status, all) = (answer.status(), answer.headers());
    let freshness = Freshness::of(status, all, asked_s, answered_s);
    let fields = Fields::of(all, answered_s).map(|name, value| {
        let is_location = name == CONTENT_LOCATION.as_str();
        is_location.then(|| url.for_clients(value))
    });
    if let Some(why) = limits
        .excess(&fields)
        .filter(|_| status != StatusCode::NOT_MODIFIED)
    {
        return Err(Failure::TooManyFields(why));
    }
    let refused = |location| {
        let refusal = Refusal {
            status: status.as_u16(),
            location,
            age_s: freshness.age_s(answered_s),
            fields: fields
                .clone()
                .without_body()
                .retain(|name| name != LOCATION.as_str()),
        };
        Head::Refused(refusal, freshness.clone(), names(all))
    };
    match status.as_u16() {
        200 | 206 if status == StatusCode::OK || has_all(answer) => Ok(Head::Object(Meta {
            size_bytes: size_of_object(answer),
            validators: Validators::of(all, answered_s),
            takes_ranges: takes_ranges(all),
            freshness,
            fields,
            trailers: Fields::default(),
        })),
        304 if is_conditional => Ok(Head::Same(Renewal {
            all: all.clone(),
            asked_s,
            answered_s,
        })),
        status if REDIRECTS.contains(&status) => {
            let location = all.get(LOCATION).and_then(|value| value.to_str().ok());
            let location = location
                .ok_or_else(|| Failure::Useless(format!("it answers {status} without Location")))?;
            if location.len() > LOCATION_BYTES_MAX {
                let bytes = location.len();
                let why = format!("it answers {status} with a Location of {bytes} bytes");
                return Err(Failure::Useless(why));
            }
            Ok(refused(Some(url.for_clients(location))))
        }
        // The status is about the request rate, not about the object.
        429 if is_conditional => Err(Failure::Status(429)),
        status if PASSED_ON.contains(&status) => Ok(refused(None)),
        status @ 400.. => Err(Failure::Status(status)),
        status => Err(Failure::Useless(format!("it answers a GET with {status}"))),
    }
}

/// Whether the origin serves ranges of an object (RFC 9110 §14.3).
fn takes_ranges(fields: &HeaderMap) -> bool {
    let values = fields.get_all(ACCEPT_RANGES).into_iter();
    let mut units = values.flat_map(|value| value.as_bytes().split(|&byte| byte == b','));
    units.any(|unit| unit.trim_ascii().eq_ignore_ascii_case(b"bytes"))
}

/// Length of the object in a full response, as far as the head states it.
fn size_of_object(answer: &Response<Incoming>) -> Option<u64> {
    let length = answer.body().size_hint().exact();
    length.or_else(|| all_bytes(answer))
}

/// Length of an object that a 206 has from its first byte to its last. With another status,
/// `Content-Range` has no meaning (RFC 9110 §14.4).
fn all_bytes(answer: &Response<Incoming>) -> Option<u64> {
    if answer.status() != StatusCode::PARTIAL_CONTENT {
        return None;
    }
    match ContentRange::of(answer.headers())? {
        ContentRange::Part {
            first: 0,
            last,
            size_bytes: Some(size_bytes),
        } if size_bytes - 1 == last => Some(size_bytes),
        _ => None,
    }
}

/// Whether an unrequested 206 has the whole object, and so equals a 200.
fn has_all(answer: &Response<Incoming>) -> bool {
    let length = answer.body().size_hint().exact();
    let all = all_bytes(answer).filter(|_| !is_multipart(answer.headers()));
    all.is_some_and(|all| length.is_none_or(|length| length == all))
}

/// The version whose parts are fetched.
struct Known {
    size_bytes: u64,
    validators: Validators,
}

/// A response body, and its used range.
struct Source {
    body: Incoming,
    /// Length of the body, as far as the head states it.
    length: Option<u64>,
    /// Bytes before the used range.
    skipped: u64,
    /// Length of the used range; `None`: up to the end.
    used: Option<u64>,
}

impl Source {
    /// Uses a whole body of this length, if known.
    fn whole(body: Incoming, length: Option<u64>) -> Source {
        Source {
            length,
            body,
            skipped: 0,
            used: None,
        }
    }
}

/// Requests some bytes of a version, and of no other one. The origin may send more or fewer (RFC
/// 9110 §14.2, §15.3.7); the returned source starts with the first requested byte.
async fn part(order: &Order, bytes: Range<u64>, version: &Known) -> Result<Source, Failure> {
    let (start, last) = (bytes.start, bytes.end - 1);
    let Known {
        size_bytes,
        validators,
    } = version;
    let changed = |why: String| Failure::OtherVersion(why);
    let value =
        |text: &str| HeaderValue::from_str(text).map_err(|_| changed("its tag is none".to_owned()));
    let strong = validators
        .strong()
        .ok_or_else(|| changed("nothing tells versions apart".to_owned()))?;
    let mut fields = request_fields(&order.variant);
    fields.insert(RANGE, value(&format!("bytes={start}-{last}"))?);
    fields.insert(IF_RANGE, value(strong)?);
    let answer = order.upstream.get(&order.target, &fields, None).await?;
    let range = ContentRange::of(answer.headers());
    match answer.status().as_u16() {
        // The origin ignored the range (RFC 9110 §14.2), or has another version.
        200 => return rest(answer, bytes, version),
        206 | 416 => {}
        status @ 500.. => return Err(Failure::Status(status)),
        status => {
            return Err(changed(format!(
                "it answers bytes {start}-{last} of {strong} with {status}"
            )));
        }
    }
    let other_size = match range {
        Some(ContentRange::Part { size_bytes, .. }) => size_bytes,
        Some(ContentRange::Unsatisfied { size_bytes }) => Some(size_bytes),
        None => None,
    };
    if let Some(other) = other_size.filter(|other| other != size_bytes) {
        let why = format!("it has {other} bytes in the place of {size_bytes}");
        return Err(changed(why));
    }
    if validators.contradicts(&Validators::of(answer.headers(), unix_time_s())) {
        return Err(changed("a part of it says so".to_owned()));
    }
    let length = answer.body().size_hint().exact();
    match range.filter(|_| answer.status() == StatusCode::PARTIAL_CONTENT) {
        Some(ContentRange::Part { first, last, .. })
            if (first..=last).contains(&start)
                && last < *size_bytes
                && length.is_none_or(|length| length == last - first + 1)
                && !is_multipart(answer.headers()) =>
        {
            Ok(Source {
                body: answer.into_body(),
                length: Some(last - first + 1),
                skipped: start - first,
                used: Some((last + 1).min(bytes.end) - start),
            })
        }
        // A request for the whole object still gets the bytes.
        _ => {
            tracing::debug!(
                origin = %order.upstream.url(),
                target = order.target,
                status = answer.status().as_u16(),
                "asked for bytes {start}-{last}, the origin has not answered with them: all of the \
                 object is fetched"
            );
            drop(answer);
            whole_again(order, bytes, version).await
        }
    }
}

/// Requests a whole version again, to use some of its bytes.
async fn whole_again(order: &Order, bytes: Range<u64>, version: &Known) -> Result<Source, Failure> {
    let fields = request_fields(&order.variant);
    let answer = order.upstream.get(&order.target, &fields, None).await?;
    match answer.status().as_u16() {
        200 => rest(answer, bytes, version),
        206 if has_all(&answer) => rest(answer, bytes, version),
        status @ 500.. => Err(Failure::Status(status)),
        status => Err(Failure::OtherVersion(format!("it answers {status}"))),
    }
}

/// Uses some bytes of a response with the whole version.
fn rest(answer: Response<Incoming>, bytes: Range<u64>, version: &Known) -> Result<Source, Failure> {
    let changed = |why: String| Err(Failure::OtherVersion(why));
    let size_bytes = version.size_bytes;
    if size_of_object(&answer).is_some_and(|it| it != size_bytes) {
        return changed(format!("it has another length than {size_bytes} bytes"));
    }
    let now = Validators::of(answer.headers(), unix_time_s());
    if now.strong().is_none() || now.strong() != version.validators.strong() {
        return changed("it has another tag or date".to_owned());
    }
    Ok(Source {
        body: answer.into_body(),
        length: Some(size_bytes),
        skipped: bytes.start,
        used: Some(bytes.end - bytes.start),
    })
}

/// The next segment, and its pieces so far.
#[derive(Default)]
struct Filling {
    segment: u64,
    /// The order has already written an earlier segment.
    has_begun: bool,
    pieces: Vec<Bytes>,
    bytes: u64,
}

impl Filling {
    fn at(segment: u64) -> Filling {
        Filling {
            segment,
            ..Filling::default()
        }
    }
}

impl Order {
    /// Writes the used range of a body into segments, but for a last one that is not full. Returns
    /// the number of used bytes.
    async fn take(
        &mut self,
        source: Source,
        filling: &mut Filling,
        slot: &mut Option<OwnedSemaphorePermit>,
        events: &mpsc::Sender<Event>,
    ) -> Result<u64, Failure> {
        let Source {
            mut body,
            length,
            skipped,
            used,
        } = source;
        let idle = self.upstream.timeouts.idle;
        let end = used.map(|used| skipped + used);
        // After the used range, a body that ends there is only read to its end.
        let is_over = |total: u64| end.is_some_and(|end| total >= end) || Some(total) == length;
        let (mut total, mut taken) = (0, 0);
        loop {
            if !is_over(total) {
                self.may_go_on(filling, slot).await?;
            } else if end.is_some() && end < length {
                return Ok(taken);
            }
            // Only this wait is cancelled: a write in progress always completes and is reported, so
            // the store knows of every file.
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
            let mut data = match frame.into_data() {
                Ok(data) => data,
                Err(frame) => {
                    self.take_trailers(&frame.into_trailers().unwrap_or_default());
                    continue;
                }
            };
            let before = total;
            total += data.len() as u64;
            if let Some(length) = length.filter(|&length| total > length) {
                // None of the frame is stored: its place in the object is unknown.
                let why = format!("more than {length} bytes have come");
                return Err(Failure::Cut(why));
            }
            let unused = skipped.saturating_sub(before).min(data.len() as u64);
            data.advance(unused as usize);
            let left = used.map_or(u64::MAX, |used| used - taken);
            data.truncate(usize::try_from(left).unwrap_or(usize::MAX));
            taken += data.len() as u64;
            self.fill(data, filling, slot, events).await?;
        }
        if let Some(length) = length.filter(|&length| length != total) {
            let why = format!("{total} bytes have come in the place of {length}");
            return Err(Failure::Cut(why));
        }
        Ok(taken)
    }

    /// Keeps trailers for clients, as far as the limits of fields allow.
    fn take_trailers(&mut self, all: &HeaderMap) {
        let trailers = Fields::of_trailers(all);
        match self.field_limits.excess(&trailers) {
            None => self.trailers = trailers,
            Some(why) => tracing::debug!(
                origin = %self.upstream.url(),
                target = self.target,
                "trailers are not passed on: {why}"
            ),
        }
    }

    /// Cuts data into segments, and writes the full ones.
    async fn fill(
        &mut self,
        mut data: Bytes,
        filling: &mut Filling,
        slot: &mut Option<OwnedSemaphorePermit>,
        events: &mpsc::Sender<Event>,
    ) -> Result<(), Failure> {
        while !data.is_empty() {
            self.may_go_on(filling, slot).await?;
            let room = self.segment_bytes - filling.bytes;
            let piece = data.split_to((data.len() as u64).min(room) as usize);
            filling.bytes += piece.len() as u64;
            filling.pieces.push(piece);
            if filling.bytes == self.segment_bytes {
                let next = Filling {
                    has_begun: true,
                    ..Filling::at(filling.segment + 1)
                };
                self.store(std::mem::replace(filling, next), events).await?;
            }
        }
        Ok(())
    }

    /// Writes the last segment, if it is not full.
    async fn finish(&self, filling: Filling, events: &mpsc::Sender<Event>) -> Result<(), Failure> {
        if filling.bytes > 0 {
            self.store(filling, events).await?;
        }
        Ok(())
    }

    /// Waits until the limit allows this segment.
    async fn may_go_on(
        &mut self,
        filling: &Filling,
        slot: &mut Option<OwnedSemaphorePermit>,
    ) -> Result<(), Failure> {
        while filling.segment >= *self.limit.borrow_and_update() {
            // At the start, the limit comes soon; later, it may wait long for a client to read on,
            // so the slot is returned.
            if filling.has_begun {
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

    async fn store(&self, filling: Filling, events: &mpsc::Sender<Event>) -> Result<(), Failure> {
        let Filling {
            segment,
            pieces,
            bytes,
            ..
        } = filling;
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

/// Writes content or metadata to the cache directory, on another thread. If the disk is full,
/// requests room and tries again.
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

/// Writes to the cache directory, on another thread, without evicting for it.
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
