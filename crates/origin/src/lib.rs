//! Origin pull: objects that clients request and the cache lacks are fetched from an HTTP origin,
//! once, and kept in a cache directory.
//!
//! This is the *fetcher*. It stands beside the data path: the host process requests objects over a
//! socket ([`message`]), and receives the places of their bytes in the cache directory; the NIC
//! stack reads them from there. The fetcher never sees a client.
//!
//! An object lies in a directory of its own, cut into *segments* of a fixed size. A segment is
//! written under a temporary name and renamed when it is complete, so that no file changes while a
//! reader may see it. Only the set of segments changes. Another version of the object is another
//! directory.
//!
//! | Module | Its one idea |
//! |---|---|
//! | [`message`] | messages between host process and fetcher |
//! | `fetcher` | tickets and transfers: one request to the origin for all clients of an object |
//! | `transfer` | one request to the origin, and its response on the way into segments |
//! | `content_range` | which bytes of an object a response has (RFC 9110 §14.4) |
//! | `store` | stored versions and segments, and their eviction |
//! | `disk` | the files of a version: written, removed, checked |
//! | `boot` | whether the machine was rebooted since the cache was written |
//! | `early_hints` | links that clients get before a response (RFC 8297) |
//! | `fields` | which header fields of a response are kept and passed on |
//! | `freshness` | how long a response may be used (RFC 9111) |
//! | `validator` | whether two responses are parts of the same version |
//! | `vary` | which request fields select a response (RFC 9111 §4.1) |
//! | `variants` | the stored variants of a target |
//! | `upstream` | an origin: its address, and requests to it |
//! | `pinned` | origins whose own certificate is trusted directly |
//! | `resolver` | name resolution for an origin |
//! | `circuit` | circuit breaker of an origin that does not respond |
//! | `broken` | back-off from a target that fails |
//! | `missing` | memory of refused and failed targets |
//! | `failure` | a client's response when the origin fails |
//! | `counters` | counters of a fetcher |
//! | `log_limit` | rate limit of repeated log lines |
//! | `endpoint` | the fetcher's end of the socket |
//!
//! This room may touch the cache directory, sockets of the kernel and a clock. It never sees
//! clients, connections of the stack or the contract.

#![forbid(unsafe_code)]

mod boot;
mod broken;
mod circuit;
mod content_range;
mod counters;
mod disk;
mod early_hints;
mod endpoint;
mod failure;
mod fetcher;
mod fields;
mod freshness;
mod log_limit;
pub mod message;
mod missing;
mod pinned;
mod resolver;
mod store;
mod transfer;
mod upstream;
mod validator;
mod variants;
mod vary;

pub use counters::{CacheCounters, Counted, OriginCounters, Totals};
pub use endpoint::{Config, Ends, FetcherError, run};
pub use fields::{FieldLimits, Fields};
pub use store::OBJECTS;
pub use upstream::{OriginUrl, OriginUrlError, Timeouts, Trust, TrustError};
pub use vary::{SELECTING, VALUE_BYTES_MAX};
