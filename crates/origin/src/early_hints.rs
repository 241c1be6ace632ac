//! Early hints of an origin (RFC 8297): links that its clients get before the response.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use http::header::LINK;
use http::{HeaderMap, StatusCode};
use hyper::ext::on_informational;

/// Most interim responses to a request that are passed on.
const RESPONSES_MAX: u32 = 4;

/// Most links of one, and their length together, in bytes.
const LINKS_MAX: usize = 16;
const LINK_BYTES_MAX: usize = 4 << 10;

/// Where the links of a transfer's interim responses go.
#[derive(Clone)]
pub(crate) struct Hints {
    pass_on: Arc<dyn Fn(Vec<String>) + Send + Sync>,
    count: Arc<AtomicU32>,
}

impl Hints {
    pub(crate) fn new(pass_on: impl Fn(Vec<String>) + Send + Sync + 'static) -> Self {
        Hints {
            pass_on: Arc::new(pass_on),
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
            (self.pass_on)(links);
        }
    }
}

impl fmt::Debug for Hints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hints")
            .field("count", &self.count)
            .finish_non_exhaustive()
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
        assert_eq!(links(&of(&[&b"<x>"[..]; 20])).len(), LINKS_MAX);
        let long = vec![b'x'; LINK_BYTES_MAX - 3];
        assert_eq!(links(&of(&[b"<a>", &long, b"<b>"])).len(), 2);
        assert_eq!(links(&of(&[b"<ab>", &long, b"<b>"])), ["<ab>"]);
    }
}
