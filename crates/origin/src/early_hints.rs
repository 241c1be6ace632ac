//! Early hints of an origin (RFC 8297): links that its clients get before the response.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use http::header::LINK;
use http::{HeaderMap, StatusCode};
use hyper::ext::on_informational;
use tokio::sync::mpsc;

use crate::store::VersionId;
use crate::transfer::Event;

/// Most interim responses to a request that are passed on.
const RESPONSES_MAX: u32 = 4;

/// Most links of one, and their length together, in bytes.
const LINKS_MAX: usize = 16;
const LINK_BYTES_MAX: usize = 4 << 10;

/// Where the links of a transfer's interim responses go.
#[derive(Clone, Debug)]
pub(crate) struct Hints {
    id: VersionId,
    events: mpsc::Sender<Event>,
    count: Arc<AtomicU32>,
}

impl Hints {
    pub(crate) fn new(id: VersionId, events: &mpsc::Sender<Event>) -> Self {
        Hints {
            id,
            events: events.clone(),
            count: Arc::default(),
        }
    }

    /// Takes them from the interim responses to a request.
    pub(crate) fn of<B>(&self, request: &mut http::Request<B>) {
        let hints = self.clone();
        on_informational(request, move |response| {
            hints.take(response.status(), response.headers());
        });
    }

    fn take(&self, status: StatusCode, fields: &HeaderMap) {
        let links = links(fields);
        if status != StatusCode::EARLY_HINTS || links.is_empty() {
            return;
        }
        if self.count.fetch_add(1, Ordering::Relaxed) < RESPONSES_MAX {
            let id = self.id;
            // Hints that come too fast are worth no wait.
            let _ = self.events.try_send(Event::EarlyHints { id, links });
        }
    }
}

/// The links, as far as the bounds allow.
fn links(fields: &HeaderMap) -> Vec<String> {
    let mut bytes_left = LINK_BYTES_MAX;
    let values = fields.get_all(LINK).into_iter();
    let texts = values.filter_map(|value| value.to_str().ok());
    let bounded = texts.take_while(|text| {
        let left = bytes_left.checked_sub(text.len());
        bytes_left = left.unwrap_or(0);
        left.is_some()
    });
    bounded.take(LINKS_MAX).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[&[u8]]) -> HeaderMap {
        let mut fields = HeaderMap::new();
        for value in values {
            fields.append(LINK, http::HeaderValue::from_bytes(value).unwrap());
        }
        fields
    }

    #[test]
    fn links_are_bounded_and_text() {
        assert_eq!(links(&of(&[b"</a>", b"\xff", b"</b>"])), ["</a>", "</b>"]);
        assert_eq!(links(&of(&[b"<x>"; 20])).len(), LINKS_MAX);
        let long = vec![b'x'; LINK_BYTES_MAX - 3];
        assert_eq!(links(&of(&[b"<a>", &long, b"<b>"])).len(), 2);
        assert_eq!(links(&of(&[b"<ab>", &long, b"<b>"])), ["<ab>"]);
    }
}
