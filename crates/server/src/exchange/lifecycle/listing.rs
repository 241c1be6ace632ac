//! Requests for a directory without an index, where listings are enabled.

use std::hash::Hasher;

use host::app::{FileHandle, Io, ListPart, ListPlace};
use http::StatusCode;
use siphasher::sip::SipHasher13;

use super::answer::common;
use super::{Exchange, Stage};
use crate::exchange::request::Request;
use crate::exchange::response;
use crate::exchange::shared::Shared;
use crate::exchange::version::Version;
use crate::semantics::conditional::{self, Validators, Verdict};
use crate::semantics::etag::ETag;
use crate::semantics::fields::Head;
use crate::semantics::listing::format::Format;
use crate::semantics::listing::{self, DirectoryRequest, HELD_BYTES_MAX, Listing, Step};
use crate::semantics::open_failure;
use crate::semantics::target::{self, Kind, PATH_BYTES_MAX};

impl<V: Version> Exchange<V> {
    /// Begins to list the requested directory; returns the request if it names no directory or one
    /// that may not be listed.
    pub(super) fn list(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        request: Request<V>,
    ) -> Option<Request<V>> {
        let target = self.served_target(&request);
        let is_directory = target::resolve(target, &mut shared.path) == Ok(Kind::Directory);
        if !is_directory || !request.lists() || listing::has_dot_name(&shared.path) {
            return Some(request);
        }
        if target::canonical(target, &shared.path, &mut shared.location) {
            self.send_elsewhere(io, shared, request, StatusCode::MOVED_PERMANENTLY);
            return None;
        }
        self.go_on_listing(io, shared, request, Box::default(), None)
    }

    /// Requests a part of a listing; returns the request if the directory may not be listed.
    fn go_on_listing(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        request: Request<V>,
        listing: Box<Listing>,
        from: Option<ListPlace>,
    ) -> Option<Request<V>> {
        let Some(site) = request.site() else {
            return Some(request);
        };
        let _ = target::resolve(self.served_target(&request), &mut shared.path);
        let path = &mut shared.file_path;
        site.below(&shared.path, path);
        let hidden = shared.config.hidden.as_ref();
        if path.len() > PATH_BYTES_MAX || hidden.is_some_and(|hidden| hidden.holds(path)) {
            return Some(request);
        }
        self.stage = Stage::Listing {
            file: io.list(self.stream, path, from),
            request,
            listing,
        };
        None
    }

    /// Takes the listing that awaits this file; `None` if there is none.
    fn listing_awaiting(&mut self, awaited: FileHandle) -> Option<(Request<V>, Box<Listing>)> {
        match std::mem::replace(&mut self.stage, Stage::Idle) {
            Stage::Listing {
                file,
                request,
                listing,
            } if file == awaited => {
                // Each part has the whole stall timeout.
                self.watch.clear();
                Some((request, listing))
            }
            other => {
                self.stage = other;
                None
            }
        }
    }

    /// Handles a part of a listing.
    pub(super) fn listed(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        file: FileHandle,
        part: &ListPart,
    ) {
        let Some((request, mut listing)) = self.listing_awaiting(file) else {
            return;
        };
        let _ = target::resolve(self.served_target(&request), &mut shared.path);
        if let Some(site) = request.site() {
            site.below(&shared.path, &mut shared.file_path);
        }
        let hidden = shared.config.hidden.as_ref();
        let hidden = hidden.and_then(|hidden| listing::hidden_name(hidden, &shared.file_path));
        let step = listing.take(part, hidden);
        if !self.hold(shared, listing.held_bytes()) {
            return self.refuse_listing(io, shared, request, StatusCode::SERVICE_UNAVAILABLE);
        }
        match step {
            Step::Ask(from) => {
                if let Some(request) = self.go_on_listing(io, shared, request, listing, from) {
                    self.refuse_listing(io, shared, request, StatusCode::NOT_FOUND);
                }
            }
            Step::Tell => self.tell_listing(io, shared, request, *listing),
        }
    }

    /// Handles the failure of a part. False if no listing awaits it.
    pub(super) fn listing_failed(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        file: FileHandle,
        errno: u16,
    ) -> bool {
        let Some((request, mut listing)) = self.listing_awaiting(file) else {
            return false;
        };
        let status = match i32::from(errno) {
            // The NIC stack that began the listing is gone.
            libc::ESTALE if listing.begin_again() => {
                match self.go_on_listing(io, shared, request, listing, None) {
                    None => return true,
                    Some(request) => {
                        self.refuse_listing(io, shared, request, StatusCode::NOT_FOUND);
                        return true;
                    }
                }
            }
            libc::ESTALE => StatusCode::SERVICE_UNAVAILABLE,
            _ => open_failure::status(errno),
        };
        if status.is_server_error() {
            tracing::warn!(stream = self.stream.0, errno, %status, "a directory could not be \
                listed");
        }
        self.refuse_listing(io, shared, request, status);
        true
    }

    fn refuse_listing(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        request: Request<V>,
        status: StatusCode,
    ) {
        self.hold(shared, 0);
        self.refuse(io, shared, request, status);
    }

    /// Answers with a complete listing, or 304 if the client has it.
    fn tell_listing(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        request: Request<V>,
        listing: Listing,
    ) {
        let head = Head::new(&self.input.bytes()[..request.head_bytes], request.present);
        let format = Format::of(head);
        let told = DirectoryRequest {
            path: &shared.path,
            format,
        };
        let mut body = Vec::new();
        let truncated_after = listing.write(told, &mut body);
        // The key is not secret: the same listing has the same tag after a restart.
        let mut hasher = SipHasher13::new();
        hasher.write(&body);
        // A JSON body does not show the truncation.
        if let Some(count) = truncated_after {
            hasher.write_usize(count);
        }
        let number = hasher.finish();
        let validators = Validators::of_number(number, None);
        let now = io.unix_time();
        let common = common(&mut shared.date, &shared.config, &request, head, now);
        let entity = response::Listed {
            media_type: format.media_type(),
            etag: ETag::of_number(number),
            truncated_after,
        };
        let status = match conditional::judge(head, &validators) {
            Verdict::Proceed => {
                response::listing(&mut shared.out, &common, &entity, &body);
                StatusCode::OK
            }
            Verdict::NotModified => {
                response::listing_not_modified(&mut shared.out, &common, &entity);
                StatusCode::NOT_MODIFIED
            }
            Verdict::Failed => {
                let status = StatusCode::PRECONDITION_FAILED;
                return self.refuse_listing(io, shared, request, status);
            }
        };
        drop(body);
        let bytes = shared.out.capacity();
        if !self.hold(shared, bytes) {
            shared.out = Vec::new();
            let status = StatusCode::SERVICE_UNAVAILABLE;
            return self.refuse_listing(io, shared, request, status);
        }
        let pace = request.rule().and_then(|rule| rule.pace);
        self.limit(io, shared, pace.map(|pace| pace.bytes_per_second));
        self.send(io, shared, request, status, None);
    }

    /// Sets the memory held for a listing, in bytes. False, without a change, if all connections
    /// together would exceed the limit.
    pub(super) fn hold(&mut self, shared: &mut Shared, bytes: usize) -> bool {
        let others = shared.listings_bytes - self.listing_bytes as usize;
        let fits = bytes == 0 || others + bytes <= HELD_BYTES_MAX;
        if fits {
            shared.listings_bytes = others + bytes;
            self.listing_bytes = bytes as u32;
        }
        fits
    }
}
